//! Which processor runs what. A server and its clients on one processor hand
//! over by a switch of tasks, on two by waking a sleeping one; left to the
//! kernel it is now the one, now the other, and no two figures compare.

use anyhow::{Context, Result};
use redis_lock_testing::{processors, stay_on};

/// Where the server runs, seen from its clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placement {
    /// On a processor of its own, if there are two.
    Apart,
    /// On the clients' processor, so that nothing sleeps and nothing is woken.
    Together,
}

/// The processors of the run.
#[derive(Clone, Copy)]
pub struct Processors {
    clients: usize,
    server: usize,
}

impl Processors {
    /// Chooses among those that this process may use.
    pub fn choose() -> Result<Self> {
        let mut allowed = processors()?.into_iter();
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
        Ok(stay_on(self.clients)?)
    }

    /// Where such a server belongs.
    pub fn of(self, placement: Placement) -> usize {
        match placement {
            Placement::Apart => self.server,
            Placement::Together => self.clients,
        }
    }
}
