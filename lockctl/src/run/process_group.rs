//! A command, and all that it started and that stayed in its session.

use std::io;
use std::iter;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, test_kill_process,
    test_kill_process_group, wait,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::members::{Process, living};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::signals::is_to_end;

/// How soon to look again whether the last process has gone: after twice the time each time
/// that no child has ended meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(5);

/// And after this at last.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How soon a process that was killed is gone, unless it can't be killed or the system is
/// stuck. Then that is told, after twice the time each time.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// What happened to the command.
pub enum Change {
    /// It ended like this.
    Ended(Exit),
    /// Signal n stopped it.
    Stopped(Signal),
}

/// A process group whose leader is the command.
pub struct ProcessGroup {
    leader: Pid,
    /// Whether the end of the leader was seen. From then on its number is that of the group
    /// only as long as somebody is left in it, and then comes round to a stranger.
    has_ended: bool,
    /// Whether nobody was left in it after that.
    is_forgotten: bool,
    /// What was there already.
    before: Vec<Process>,
    /// What comes when a child has changed.
    child_signals: tokio::signal::unix::Signal,
}

impl ProcessGroup {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> Result<Self, Failure> {
        // Where it can't be seen what the command has started, that can't be ended.
        let before = living(&[]);
        let before = before.map_err(|error| Failure::file("SYSTEM", Path::new("/proc"), &error))?;
        // Those whose parent has ended go when they have ended, even where the first process
        // does not see to it, as in many containers.
        set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
        let child_signals = signal(SignalKind::child())?;
        command.process_group(0);
        die_with_parent(command);
        let child = command.spawn().map_err(|error| Failure::Command {
            command: command.get_program().to_string_lossy().into_owned(),
            error,
        })?;
        Ok(Self {
            leader: Pid::from_child(&child),
            has_ended: false,
            is_forgotten: false,
            before,
            child_signals,
        })
    }

    /// Its number, which is that of the command.
    pub fn id(&self) -> Pid {
        self.leader
    }

    /// Sends a signal to the group, as a terminal does. Who has gone needs none.
    pub fn signal(&self, signal: Signal) {
        for signal in as_heard(signal) {
            let _ = kill_process_group(self.leader, signal);
        }
    }

    /// Waits until the command ends or stops. After its end this must not be
    /// called again.
    pub async fn change(&mut self) -> Change {
        loop {
            while let Some((child, status)) = self.reap() {
                if child != self.leader {
                    // An orphan of the command.
                    continue;
                }
                if let Some(change) = Change::read(status) {
                    return change;
                }
            }
            // Whoever started this process may have blocked the signal.
            let _ = timeout(LOOK_EVERY, self.child_signals.recv()).await;
        }
    }

    /// The next child that has ended or stopped, if there is one.
    fn reap(&mut self) -> Option<(Pid, WaitStatus)> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let (child, status) = rustix::io::retry_on_intr(|| wait(options)).ok()??;
        self.has_ended |= child == self.leader && !status.stopped();
        Some((child, status))
    }

    /// The answer to a signal to the group. It has gone for good once nobody was left in it
    /// after the end of its leader.
    fn test(&mut self) -> rustix::io::Result<()> {
        if self.is_forgotten {
            return Err(Errno::SRCH);
        }
        let answer = test_kill_process_group(self.leader);
        self.is_forgotten = self.has_ended && answer == Err(Errno::SRCH);
        answer
    }

    fn living(&self) -> io::Result<Vec<Process>> {
        living(&self.before)
    }

    /// Those that may not be signalled, since they run as another user.
    pub fn out_of_reach(&self) -> Vec<Process> {
        let answer = |process: &Process| Some(test_kill_process(Pid::from_raw(process.pid)?));
        let is_out = |process: &Process| answer(process) == Some(Err(Errno::PERM));
        let living = self.living().unwrap_or_default();
        living.into_iter().filter(is_out).collect()
    }

    /// Sends a signal to the group, and to what was started in another one, as `timeout` does.
    fn signal_all(&self, signal: Signal) {
        let living = self.living().unwrap_or_default();
        let is_in = |process: &&Process| process.group == self.leader.as_raw_nonzero().get();
        if !self.has_ended || living.iter().any(|process| is_in(&process)) {
            self.signal(signal);
        }
        let others = living.iter().filter(|process| !is_in(process));
        for other in others.filter_map(|other| Pid::from_raw(other.pid)) {
            for signal in as_heard(signal) {
                let _ = kill_process(other, signal);
            }
        }
    }

    /// Ends what is left: TERM, and KILL when the time is over. Without any time KILL
    /// comes first, and what is stopped does not go on. Returns when all of it has gone.
    /// What can't be ended is told, again and again.
    pub async fn end(&mut self, grace: Duration, tell: impl Fn(&[Process])) {
        if self.is_gone() {
            return;
        }
        self.signal_all(match grace.is_zero() {
            true => Signal::KILL,
            false => Signal::TERM,
        });
        let unreached = self.out_of_reach();
        if !unreached.is_empty() {
            tell(&unreached);
        }
        if timeout(grace, self.gone()).await.is_ok() {
            return;
        }
        self.signal_all(Signal::KILL);
        let mut patience = KILLED_WITHIN;
        while timeout(patience, self.gone()).await.is_err() {
            tell(&self.out_of_reach());
            // For those that have come since, or that can be killed by now.
            self.signal_all(Signal::KILL);
            patience *= 2;
        }
    }

    async fn gone(&mut self) {
        let mut patience = LOOK_AFTER;
        while !self.is_gone() {
            sleep(LOOK_AFTER).await;
            // The last one is a child of this process, once its parents have ended. Where the
            // system has it adopted by another, nothing comes.
            let _ = timeout(patience, self.child_signals.recv()).await;
            patience = LOOK_EVERY.min(patience * 2);
        }
    }

    fn is_gone(&mut self) -> bool {
        while self.reap().is_some() {}
        let answer = self.test();
        // Another user's may be hidden. One that has ended is no reason to wait, though its
        // parent may never see it.
        let is_empty = self.living().is_ok_and(|living| living.is_empty());
        // Who has ended meanwhile may have left a child that the look did not see.
        is_empty && answer != Err(Errno::PERM) && (self.reap().is_none() || self.is_gone())
    }
}

/// This signal, and what it takes for it to be heard: who is stopped hears nothing but KILL.
fn as_heard(signal: Signal) -> impl Iterator<Item = Signal> {
    let goes_on = is_to_end(signal).then_some(Signal::CONT);
    iter::once(signal).chain(goes_on)
}

impl Change {
    fn read(status: WaitStatus) -> Option<Self> {
        if let Some(code) = status.exit_status() {
            let exit = u8::try_from(code).map_or(Exit::FAILED, Exit::Code);
            return Some(Self::Ended(exit));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Self::Ended(Exit::Signal(signal)));
        }
        let signal = Signal::from_named_raw(status.stopping_signal()?)?;
        Some(Self::Stopped(signal))
    }
}

/// Has the command killed if this process is, since then nobody renews its lock.
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let before_exec = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have been killed before.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::Error::from(Errno::SRCH)),
        }
    };
    // SAFETY: it makes two system calls, and neither allocates nor locks.
    #[allow(unsafe_code, reason = "there is no other way to set it")]
    unsafe {
        command.pre_exec(before_exec);
    }
}
