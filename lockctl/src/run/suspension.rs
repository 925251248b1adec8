//! Suspending the command as a whole.
//!
//! While lockctl is suspended, nobody renews the lock. So before that, all that the command
//! has started is stopped: also what is deaf to Ctrl-Z, or in a group that does not hear it.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::{Instant, sleep};

use super::members::{Process, living};
use super::process_group::ProcessGroup;
use crate::signals;

/// Who has heard Ctrl-Z gets so long to stop by itself: it may have a terminal to tidy up.
const HEEDED_WITHIN: Duration = Duration::from_millis(100);

/// Who is in the middle of a system call after so long runs no further when that ends. As a
/// parent that waits in `vfork` for a child that is stopped, it may never do.
const HALTED_WITHIN: Duration = Duration::from_secs(1);

/// How soon to look again whether all stands still, where that takes no time.
const LOOK_AFTER: Duration = Duration::from_millis(5);

/// To look at the processes takes at most one part in this many of the time.
const PART_OF_TIME: u32 = 5;

/// One process can be missed by a look: its parent started it and ended, or stopped, while
/// that went on.
const LOOKS: u32 = 2;

/// What is about to be suspended, or is.
pub struct Suspension {
    by: Signal,
    had_terminal: bool,
    leader: Pid,
    begun: Instant,
    /// Those that did not stop by themselves, as they were found.
    halted: Vec<i32>,
}

impl Suspension {
    /// Of a command that this signal has stopped.
    pub fn new(group: &ProcessGroup, by: Signal, had_terminal: bool) -> Self {
        Self {
            by,
            had_terminal,
            leader: group.id(),
            begun: Instant::now(),
            halted: Vec::new(),
        }
    }

    /// Whether the command goes on with the terminal.
    pub fn wants_terminal(&self) -> bool {
        self.had_terminal || self.by != Signal::TSTP
    }

    /// Stops the rest of the command. Returns when all of it stands still.
    async fn halt(&mut self) {
        let mut looks = 0;
        while looks < LOOKS {
            let looked_at = Instant::now();
            looks = match living() {
                Some(living) if self.halt_among(&living) => looks + 1,
                Some(_) => 0,
                // The group alone is known.
                None => {
                    sleep(HEEDED_WITHIN).await;
                    let _ = kill_process_group(self.leader, Signal::STOP);
                    return;
                }
            };
            sleep(LOOK_AFTER.max(looked_at.elapsed() * PART_OF_TIME)).await;
        }
    }

    /// Stops those that do not stand still. Returns whether there was none.
    fn halt_among(&mut self, living: &[Process]) -> bool {
        let (mut are_still, since) = (true, self.begun.elapsed());
        for process in living {
            if process.state.is_stopped() {
                continue;
            }
            let Some(pid) = Pid::from_raw(process.pid) else {
                continue;
            };
            let has_heard = process.group == self.leader.as_raw_nonzero().get();
            if has_heard && since < HEEDED_WITHIN {
                are_still = false;
                continue;
            }
            // Another user's is out of reach.
            if kill_process(pid, Signal::STOP) != Err(Errno::PERM) {
                self.halted.push(process.pid);
                are_still &= process.state.is_in_call() && since > HALTED_WITHIN;
            }
        }
        self.halted.sort_unstable();
        self.halted.dedup();
        are_still
    }

    /// Stops this process, too. Returns when somebody continues it.
    pub fn stop_self(&self) {
        if self.had_terminal {
            // Only the command has heard Ctrl-Z. The shell waits for all of its job to
            // stop: a script around lockctl, the rest of a pipeline.
            signals::stop_group(self.by);
        } else {
            signals::stop_self(self.by);
        }
    }

    /// Has those go on that did not stop by themselves. Children come first, so that no
    /// shell takes a job of its own for stopped.
    pub fn undo(&self) {
        let living = living().unwrap_or_default();
        let halted = living.iter().rev().map(|process| process.pid);
        let halted = halted.filter(|pid| self.halted.binary_search(pid).is_ok());
        for pid in halted.filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// What is about to be suspended, as soon as all of it stands still.
pub async fn halted(suspension: &mut Option<Suspension>) -> Suspension {
    match suspension {
        Some(halting) => halting.halt().await,
        None => std::future::pending().await,
    }
    // It is there still.
    match suspension.take() {
        Some(halted) => halted,
        None => std::future::pending().await,
    }
}
