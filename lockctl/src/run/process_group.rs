//! A command, and all that it started and that stayed in its process group.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, test_kill_process_group, wait,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::KILLED_WITHIN;
use crate::exit::Exit;
use crate::failure::Failure;

/// How often to look whether the last process of the group has gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);

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
    /// What comes when a child has changed.
    child_signals: tokio::signal::unix::Signal,
}

impl ProcessGroup {
    /// Starts the command. It finds the token of its lock in `LOCK_TOKEN`.
    pub fn spawn(command: &[OsString], token: u64) -> Result<Self, Failure> {
        adopt_orphans();
        let child_signals = signal(SignalKind::child())?;
        let [program, arguments @ ..] = command else {
            return Err(Failure::Usage("no command"));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LOCK_TOKEN", token.to_string())
            .process_group(0);
        die_with_parent(&mut command);
        let child = command.spawn().map_err(|error| Failure::Command {
            command: program.to_string_lossy().into_owned(),
            error,
        })?;
        Ok(Self {
            leader: Pid::from_child(&child),
            child_signals,
        })
    }

    /// Its number, which is that of the command.
    pub fn id(&self) -> Pid {
        self.leader
    }

    /// Sends a signal to all of it. Who has gone needs none.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
        if matches!(
            signal,
            Signal::HUP | Signal::INT | Signal::QUIT | Signal::TERM
        ) {
            // Who is stopped hears nothing but KILL.
            let _ = kill_process_group(self.leader, Signal::CONT);
        }
    }

    /// Waits until the command ends or stops. After its end this must not be
    /// called again.
    pub async fn change(&mut self) -> Change {
        loop {
            while let Some((child, status)) = reap() {
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

    /// Ends what is left of it: TERM, and KILL when the time is over.
    pub async fn end(&mut self, grace: Duration) {
        if self.is_gone() {
            return;
        }
        self.signal(Signal::TERM);
        if timeout(grace, self.gone()).await.is_err() {
            self.signal(Signal::KILL);
            let _ = timeout(KILLED_WITHIN, self.gone()).await;
        }
    }

    async fn gone(&self) {
        while !self.is_gone() {
            sleep(LOOK_EVERY).await;
        }
    }

    fn is_gone(&self) -> bool {
        while reap().is_some() {}
        test_kill_process_group(self.leader).is_err()
    }
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

/// The next child that has ended or stopped, if there is one.
fn reap() -> Option<(Pid, WaitStatus)> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    rustix::io::retry_on_intr(|| wait(options)).ok().flatten()
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
        use rustix::process::set_parent_process_death_signal;
        let before_exec =
            || set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from);
        // SAFETY: it makes one system call, and neither allocates nor locks.
        #[allow(unsafe_code, reason = "there is no other way to set it")]
        unsafe {
            command.pre_exec(before_exec);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}
