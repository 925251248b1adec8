//! A command, and all that it started and that stayed in its session.

use std::io;
use std::iter;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group,
    test_kill_process_group, wait,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::members::{Process, State, living, out_of_reach};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::signals::{self, is_to_end};

/// How soon to look again whether the last process has gone, where that takes no time.
const LOOK_AFTER: Duration = Duration::from_millis(5);

/// And how soon if no child has ended meanwhile: after twice the time each time, and after
/// this at last.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// To look at the processes takes at most one part in this many of the time.
const PART_OF_TIME: u32 = 5;

/// How soon a process that was killed is gone, unless it can't be killed or the system is
/// stuck. Then that is told, after twice the time each time.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// And at least this often.
const TOLD_EVERY: Duration = Duration::from_secs(600);

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
    /// What comes when a child has changed.
    child_signals: tokio::signal::unix::Signal,
}

impl ProcessGroup {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> Result<Self, Failure> {
        adopt_orphans();
        let child_signals = signal(SignalKind::child())?;
        // Whoever started this process may have blocked it.
        signals::unblock(Signal::CHILD);
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
            self.child_signals.recv().await;
        }
    }

    /// The next child that has ended or stopped, if there is one.
    fn reap(&mut self) -> Option<(Pid, WaitStatus)> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let (child, status) = rustix::io::retry_on_intr(|| wait(options)).ok()??;
        self.has_ended |= child == self.leader && !status.stopped();
        Some((child, status))
    }

    /// Whether the number is still that of the group.
    fn has_number(&self) -> bool {
        let is_in = |process: &Process| process.group == self.leader.as_raw_nonzero().get();
        let is_someone_in = || living().map(|living| living.iter().any(is_in));
        !self.has_ended || is_someone_in().unwrap_or(!self.is_forgotten)
    }

    /// The answer to a signal to the group.
    fn test(&mut self) -> rustix::io::Result<()> {
        if self.is_forgotten {
            return Err(Errno::SRCH);
        }
        let answer = test_kill_process_group(self.leader);
        self.is_forgotten = self.has_ended && means_gone(answer);
        answer
    }

    /// Sends a signal to the group, and to what was started in another one, as `timeout` does.
    fn signal_all(&self, signal: Signal) {
        if self.has_number() {
            self.signal(signal);
        }
        let leader = self.leader.as_raw_nonzero().get();
        let others = living().unwrap_or_default();
        let others = others.iter().filter(|other| other.group != leader);
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
        if grace.is_zero() {
            self.signal_all(Signal::KILL);
        } else {
            self.signal_all(Signal::TERM);
        }
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
            patience = TOLD_EVERY.min(patience * 2);
        }
    }

    /// Those of its processes that this one may not signal. Where they are not
    /// to be seen, the group stands for them.
    pub fn out_of_reach(&mut self) -> Vec<Process> {
        let mut found = out_of_reach(living().unwrap_or_default());
        if found.is_empty() && self.test() == Err(Errno::PERM) {
            found.push(Process {
                pid: self.leader.as_raw_nonzero().get(),
                name: "group".into(),
                group: self.leader.as_raw_nonzero().get(),
                state: State('?'),
            });
        }
        found
    }

    async fn gone(&mut self) {
        let mut patience = LOOK_AFTER;
        loop {
            let begun = Instant::now();
            if self.is_gone() {
                return;
            }
            sleep(LOOK_AFTER.max(begun.elapsed() * PART_OF_TIME)).await;
            // The last one is a child of this process, once its parents have ended. Where the
            // system has it adopted by another, nothing comes.
            let _ = timeout(patience, self.child_signals.recv()).await;
            patience = LOOK_EVERY.min(patience * 2);
        }
    }

    fn is_gone(&mut self) -> bool {
        while self.reap().is_some() {}
        let answer = self.test();
        match living() {
            // Another user's may be hidden. One that has ended is no reason to wait,
            // though its parent may never see it.
            Some(living) => living.is_empty() && answer != Err(Errno::PERM),
            None => means_gone(answer),
        }
    }
}

/// This signal, and what it takes for it to be heard: who is stopped hears nothing but KILL.
fn as_heard(signal: Signal) -> impl Iterator<Item = Signal> {
    let goes_on = is_to_end(signal).then_some(Signal::CONT);
    iter::once(signal).chain(goes_on)
}

/// Whether nobody is left, by the answer to a signal. A process that may not be
/// signalled is there all the same.
fn means_gone(answer: rustix::io::Result<()>) -> bool {
    answer == Err(Errno::SRCH)
}

impl Change {
    fn read(status: WaitStatus) -> Option<Self> {
        if let Some(code) = status.exit_status() {
            return Some(Self::Ended(
                u8::try_from(code).map_or(Exit::FAILED, Exit::Code),
            ));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Self::Ended(Exit::Signal(signal)));
        }
        let signal = Signal::from_named_raw(status.stopping_signal()?)?;
        Some(Self::Stopped(signal))
    }
}

/// Makes this process the parent of those whose parent has ended, so that they
/// go when they have ended even where the first process does not see to it, as
/// in many containers.
fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Has the command killed if this process is, since then nobody renews its lock.
fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpid, getppid, set_parent_process_death_signal};
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
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_may_not_be_signalled_has_not_gone() {
        assert!(means_gone(Err(Errno::SRCH)));
        assert!(!means_gone(Err(Errno::PERM)));
        assert!(!means_gone(Ok(())));
    }
}
