//! Child processes that do not outlive this one, and what is done to them.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use anyhow::Context;
pub use rustix::process::Signal;
use rustix::process::set_parent_process_death_signal;
use rustix::process::{Pid, Resource, getpid, getppid, getrlimit, kill_process, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

type Order = (Command, Sender<std::io::Result<Child>>);

/// Starts all child processes. The kernel kills a child when the thread that
/// started it ends, so that thread must last as long as the process.
static STARTER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (orders, taken) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, started) in taken {
            let _ = started.send(command.spawn());
        }
    });
    orders
});

/// Starts a process that the kernel kills when this one ends, however it ends.
pub fn spawn(mut command: Command) -> Result<Child> {
    raise_file_limit()?;
    let program = command.get_program().to_owned();
    end_with_us(&mut command, Signal::KILL);
    let (started, answer) = channel();
    STARTER.send((command, started))?;
    let child = answer.recv()?;
    child.with_context(|| program.display().to_string())
}

/// Has the kernel send a process this signal when the thread that starts it ends.
pub fn end_with_us(command: &mut Command, signal: Signal) -> &mut Command {
    let parent = getpid();
    let before_exec = move || {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have ended before that.
        let is_there = (getppid() == Some(parent)).then_some(());
        is_there.ok_or_else(|| ErrorKind::Interrupted.into())
    };
    // SAFETY: it makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(before_exec) }
}

/// Sends a signal to a process that has not been waited for.
pub fn signal(process: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(process.cast_signed()).context("no process has the number 0")?;
    kill_process(pid, signal).with_context(|| format!("process {process}"))
}

/// Lets this process, and so its children, open as many files as it may. Returns how many
/// these are.
pub fn raise_file_limit() -> Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let most = limit.maximum.unwrap_or(u64::MAX);
    setrlimit(Resource::Nofile, limit)?;
    Ok(most)
}

/// The processors that this thread may use.
pub fn processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    let processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    Ok(processors.collect())
}

/// Keeps this thread on one processor from now on.
pub fn stay_on(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}
