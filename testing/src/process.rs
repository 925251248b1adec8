//! Child processes that do not outlive the test.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex, Once, PoisonError};

use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal,
    setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Order = (Command, Sender<std::io::Result<Child>>);

/// Starts all child processes. The kernel kills a child when the thread that
/// started it ends, so that thread must last as long as the process.
static STARTER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
    let (orders, taken): (_, Receiver<Order>) = channel();
    std::thread::Builder::new()
        .name("starter".into())
        .spawn(move || {
            for (mut command, started) in taken {
                let _ = started.send(command.spawn());
            }
        })
        .unwrap();
    Mutex::new(orders)
});

/// Starts a process that the kernel kills when this one ends, however it ends.
///
/// # Panics
/// If it can't be started.
pub fn spawn(mut command: Command) -> Child {
    raise_file_limit();
    let program = command.get_program().to_owned();
    let parent = getpid();
    // SAFETY: between fork and exec these calls are safe, and touch no memory.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before that.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::ErrorKind::Interrupted.into())
            }
        });
    }
    let (started, answer) = channel();
    STARTER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, started))
        .unwrap();
    answer
        .recv()
        .unwrap()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Lets this process, and so its children, open as many files as it may.
fn raise_file_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let most = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(Resource::Nofile, limit).unwrap();
    });
}

/// Keeps this thread on one processor from now on. Then what it sends on several
/// connections of this machine, their ends included, arrives in that order.
///
/// # Panics
/// If the system refuses.
pub fn stay_on_one_processor() {
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    let first = (0..CpuSet::MAX_CPU).find(|&processor| allowed.is_set(processor));
    one.set(first.unwrap());
    sched_setaffinity(None, &one).unwrap();
}

/// Checks that this process may open so many files.
///
/// # Panics
/// If it may not.
#[track_caller]
pub fn need_files(count: u64) {
    let most = getrlimit(Resource::Nofile).maximum;
    assert!(
        most.is_none_or(|most| most >= count),
        "this test needs {count} open files, and the hard limit is {}: see `ulimit -Hn`",
        most.unwrap_or_default()
    );
}
