//! Which processor runs what. A server and its clients on one processor hand
//! over by a switch of tasks, on two by waking a sleeping one; left to the
//! kernel it is now the one, now the other, and no two figures compare.

use anyhow::Result;
use clap::ValueEnum;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the server runs, seen from its clients.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Placement {
    /// On a processor of its own.
    Apart,
    /// On the clients' processor, so that nothing sleeps and nothing is woken.
    Together,
    /// Wherever the kernel likes.
    Free,
}

const THIS_THREAD: Pid = Pid::from_raw(0);

impl Placement {
    /// Puts this thread, which plays the clients, in its place.
    pub fn place_clients(self) -> Result<()> {
        match self {
            Self::Apart | Self::Together => pin(0),
            Self::Free => Ok(()),
        }
    }

    /// Does something that starts processes, which stay where servers belong.
    pub fn start_server<T>(self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = sched_getaffinity(THIS_THREAD)?;
        match self {
            Self::Apart => pin(1)?,
            Self::Together => pin(0)?,
            Self::Free => {}
        }
        let started = start();
        sched_setaffinity(THIS_THREAD, &before)?;
        started
    }
}

fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    Ok(sched_setaffinity(THIS_THREAD, &set)?)
}
