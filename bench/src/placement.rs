//! Which processor runs what. A server and its clients on one processor hand
//! over by a switch of tasks, on two by waking a sleeping one; left to the
//! kernel it is now the one, now the other, and no two figures compare.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the server runs, seen from its clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placement {
    /// On a processor of its own, if there are two.
    Apart,
    /// On the clients' processor, so that nothing sleeps and nothing is woken.
    Together,
}

const THIS_THREAD: Pid = Pid::from_raw(0);

/// The processors of the run.
#[derive(Clone, Copy)]
pub struct Processors {
    clients: usize,
    server: usize,
}

impl Processors {
    /// Chooses among those that this process may use.
    pub fn choose() -> Result<Self> {
        let allowed = sched_getaffinity(THIS_THREAD)?;
        let mut allowed = (0..CpuSet::count()).filter(|&n| allowed.is_set(n) == Ok(true));
        let clients = allowed.next().context("no processor to run on")?;
        Ok(Self {
            clients,
            server: allowed.next().unwrap_or(clients),
        })
    }

    /// Where servers are, in words.
    pub fn describe(self) -> &'static str {
        if self.server == self.clients {
            "on the clients' processor, there being one only"
        } else {
            "on a processor of its own"
        }
    }

    /// Puts this thread, which plays the clients, in its place.
    pub fn place_clients(self) -> Result<()> {
        pin(self.clients)
    }

    /// Does something that starts a server, which stays where it belongs.
    pub fn start_server<T>(
        self,
        placement: Placement,
        start: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let before = sched_getaffinity(THIS_THREAD)?;
        pin(match placement {
            Placement::Apart => self.server,
            Placement::Together => self.clients,
        })?;
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
