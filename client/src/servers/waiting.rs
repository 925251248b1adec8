//! Turns of those who wait, and connections of their own for what blocks a
//! connection: to wait for replicas, and to wait for a lock where the server's module
//! knows no places.
//!
//! Each is opened for one such wait and closed after it. A limit bounds how many
//! there are of each kind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::mutex::locked;
use crate::servers::connection::{Connection, ConnectionName};
use crate::servers::node::Node;

/// The least time between two who ask again: what all of them ask after a lost
/// connection must not stand in the way of everything else.
const AGAIN: Duration = Duration::from_micros(100);

/// As much for those who ask because they may not block a connection yet: the server
/// has better things to do, however many there are.
const ASK: Duration = Duration::from_millis(50);

/// How many may wait how.
pub(crate) struct Waits {
    node: Arc<Node>,
    blocked: Arc<Semaphore>,
    /// For those that have been granted and ask replicas, which are not long.
    confirming: Arc<Semaphore>,
    again: Turns,
    asks: Turns,
}

/// The turns of those who come one after another.
struct Turns {
    next: Mutex<Instant>,
    apart: Duration,
}

impl Turns {
    fn new(apart: Duration) -> Self {
        Self {
            next: Mutex::new(Instant::now()),
            apart,
        }
    }

    async fn next(&self) {
        let turn = {
            let mut next = locked(&self.next);
            let turn = (*next).max(Instant::now());
            *next = turn + self.apart;
            turn
        };
        let mut reserved = Reserved {
            turns: self,
            is_over: false,
        };
        sleep_until(turn).await;
        reserved.is_over = true;
    }
}

/// A turn that has not come yet. One that is given up makes room for those that come.
struct Reserved<'a> {
    turns: &'a Turns,
    is_over: bool,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut next = locked(&self.turns.next);
            *next = next.checked_sub(self.turns.apart).unwrap_or(*next);
        }
    }
}

impl Waits {
    /// How many may block a connection to this server at a time.
    pub(crate) fn new(node: Arc<Node>, max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            node,
            blocked: Arc::new(Semaphore::new(max)),
            confirming: Arc::new(Semaphore::new(max)),
            again: Turns::new(AGAIN),
            asks: Turns::new(ASK),
        }
    }

    /// Waits for the turn to ask again.
    pub(crate) async fn turn(&self) {
        self.again.next().await;
    }

    /// Waits for the turn to ask of who may not block a connection yet.
    pub(crate) async fn turn_to_ask(&self) {
        self.asks.next().await;
    }

    /// A permit for a connection that may wait for a lock.
    pub(crate) async fn permit_to_block(&self) -> Result<OwnedSemaphorePermit, Error> {
        permit(&self.blocked).await
    }

    /// A connection that may wait for replicas. A hold must not wait for the waits of
    /// others to end.
    pub(crate) async fn to_confirm(&self, key: &[u8]) -> Result<WaitingConnection, Error> {
        let permit = permit(&self.confirming).await?;
        self.open(key, permit).await
    }

    /// A connection to the server of this key that may wait.
    pub(crate) async fn open(
        &self,
        key: &[u8],
        permit: OwnedSemaphorePermit,
    ) -> Result<WaitingConnection, Error> {
        let address = self.node.address(key).await?;
        Ok(WaitingConnection {
            connection: self.node.open(address).await?,
            node: Arc::clone(&self.node),
            _permit: permit,
        })
    }
}

async fn permit(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
    let permit = Arc::clone(permits).acquire_owned().await;
    permit.map_err(|_| Error::Stopped)
}

/// A connection that may block. It closes when this is dropped.
pub(crate) struct WaitingConnection {
    connection: Arc<Connection>,
    node: Arc<Node>,
    _permit: OwnedSemaphorePermit,
}

impl WaitingConnection {
    /// What the server calls it.
    pub(crate) fn name(&self) -> Option<&ConnectionName> {
        self.connection.name()
    }

    /// Sends a command that waits, and returns its reply.
    pub(crate) async fn ask(&self, key: &[u8], cmd: &Cmd) -> Result<Value, Error> {
        let answered = self.connection.ask(key, cmd).await;
        answered.map_err(|error| self.node.explain_told(error))
    }

    /// As [`WaitingConnection::ask`], with an end.
    pub(crate) async fn ask_within(
        &self,
        within: Duration,
        key: &[u8],
        cmd: &Cmd,
    ) -> Result<Value, Error> {
        let answered = self.connection.ask_within(within, key, cmd).await;
        answered.map_err(|error| self.node.explain_told(error))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_come_one_after_another() {
        let turns = Turns::new(ASK);
        let begun = Instant::now();
        for nth in 0..5 {
            turns.next().await;
            assert_eq!(begun.elapsed().as_millis(), (ASK * nth).as_millis());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn turns_that_were_given_up_delay_nobody() {
        let turns = Turns::new(ASK);
        turns.next().await;
        for _ in 0..1000 {
            assert!(turns.next().now_or_never().is_none());
        }
        let begun = Instant::now();
        turns.next().await;
        assert!(begun.elapsed() <= ASK, "{:?}", begun.elapsed());
    }
}
