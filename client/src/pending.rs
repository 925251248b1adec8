//! An acquire that is under way, and what it may leave on the servers.
//!
//! Whatever ends it early - a failure, or the future that is dropped - goes
//! through the same door: the connections that may still bring the hold are
//! closed, and then the hold is released.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::Object;
use futures_util::future::join_all;
use redis::Cmd;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::background::Debt;
use crate::client::Inner;
use crate::commands;
use crate::error::Error;
use crate::guard::OwnerState;
use crate::hold::whole_ms;
use crate::keyed::Turn;
use crate::link::{Link, ServerSideName};
use crate::lock::Lock;
use crate::mode::Mode;
use crate::node::{Reply, WaitLink};

/// The turn of an owner with a name of its own.
pub(crate) type OwnerTurn = Turn<(Vec<u8>, Vec<u8>), OwnerState>;

/// An answer to one of several servers' acquires: which server, and its token.
pub(crate) type Ask = (usize, Result<Option<u64>, Error>);

/// An acquire that is under way.
pub(crate) struct Pending {
    inner: Arc<Inner>,
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) lease: Duration,
    mode: Mode,
    /// Kept until nothing is left on the servers, so that the owner's next
    /// acquire does not meet what this one left.
    turn: Option<OwnerTurn>,
    /// Whether a command is unanswered.
    in_flight: bool,
    /// Whether one will never be answered.
    in_doubt: bool,
    waiting: Option<(WaitLink, Option<ServerSideName>)>,
    /// Connections on which something will stay unanswered.
    unanswered: Vec<ServerSideName>,
    /// Unanswered acquires on several servers.
    pub(crate) asks: JoinSet<Ask>,
}

impl Pending {
    /// Begins one, of this owner or of a new one.
    pub(crate) fn new(lock: &Lock, turn: Option<OwnerTurn>) -> Self {
        let owner = lock.owner.clone();
        Self {
            inner: Arc::clone(&lock.inner),
            key: lock.key.clone(),
            owner: owner.unwrap_or_else(|| lock.inner.new_owner()),
            lease: lock.lease_or_default(),
            mode: lock.mode,
            turn,
            in_flight: false,
            in_doubt: false,
            waiting: None,
            unanswered: Vec::new(),
            asks: JoinSet::new(),
        }
    }

    /// What to send, on a connection that others may share.
    pub(crate) fn command(&self) -> Cmd {
        commands::acquire(&self.key, &self.owner, whole_ms(self.lease), self.mode)
    }

    /// A command goes out that may bring the hold.
    pub(crate) fn sent(&mut self) {
        self.in_flight = true;
    }

    /// As [`Pending::sent`], on a connection of its own.
    pub(crate) fn sent_on(&mut self, link: WaitLink, name: Option<ServerSideName>) -> Link {
        self.in_flight = true;
        let clone = Link::clone(&link);
        self.waiting = Some((link, name));
        clone
    }

    /// Its answer came, and it did not bring the hold.
    pub(crate) fn refused(&mut self) {
        self.in_flight = false;
        self.waiting = None;
    }

    /// Something else went out that may bring the hold, and was not answered.
    pub(crate) fn doubted(&mut self) {
        self.in_doubt = true;
    }

    /// It failed with this error.
    pub(crate) fn failed(&mut self, error: &Error) {
        if error.leaves_doubt() {
            self.in_doubt = true;
            self.in_flight = false;
            self.close_waiting();
        } else {
            if error.calls_for_new_connection() {
                self.close_waiting();
            }
            self.refused();
        }
    }

    /// Another connection has to be used from now on.
    fn close_waiting(&mut self) {
        if let Some((link, name)) = self.keep_connection() {
            self.unanswered.extend(name);
            drop(link);
        }
    }

    /// The connection that waits, to be used by nobody else from now on.
    pub(crate) fn keep_connection(&mut self) -> Option<(Link, Option<ServerSideName>)> {
        let (link, name) = self.waiting.take()?;
        Some((Object::take(link), name))
    }

    /// The hold is a guard's now. Gives the owner's turn back, and the asks that
    /// are still to be answered.
    pub(crate) fn granted(mut self) -> (Option<OwnerTurn>, JoinSet<Ask>) {
        self.refused();
        self.in_doubt = false;
        if !self.unanswered.is_empty() {
            // What lingers there must not take the lock when it was released.
            let node = Arc::clone(&self.inner.nodes[0]);
            let (key, names) = (self.key.clone(), std::mem::take(&mut self.unanswered));
            self.inner.background.spawn(async move {
                // The lease bounds what that leaves.
                let _ = node.close_all(&key, &names).await;
            });
        }
        (self.turn.take(), std::mem::take(&mut self.asks))
    }

    /// Gives the owner's turn to the next try.
    pub(crate) fn give_up(mut self) -> Option<OwnerTurn> {
        let turn = self.turn.take();
        self.in_doubt = true;
        self.clean();
        turn
    }

    /// Leaves nothing behind, and waits until that is so or a server did not
    /// answer; then it goes on in the background.
    pub(crate) async fn take_back(&mut self) {
        self.in_doubt = true;
        join_all(self.clean()).await;
    }

    fn clean(&mut self) -> Vec<oneshot::Receiver<Result<Reply, Error>>> {
        self.close_waiting();
        if !self.in_flight && !self.in_doubt {
            return Vec::new();
        }
        self.in_flight = false;
        self.in_doubt = false;
        let mut outcomes = Vec::new();
        let mut settling = Vec::new();
        for node in &self.inner.nodes {
            let debt = Debt {
                node: Arc::clone(node),
                key: self.key.clone(),
                release: commands::release(&self.key, &self.owner, None),
                session: None,
                waiting: std::mem::take(&mut self.unanswered),
                until: Instant::now() + self.lease,
            };
            let (first, outcome) = oneshot::channel();
            outcomes.push(outcome);
            settling.push(debt.settle(first));
        }
        let turn = self.turn.take();
        let mut asks = std::mem::take(&mut self.asks);
        self.inner.background.spawn(async move {
            // None of them may come after the release.
            asks.shutdown().await;
            join_all(settling).await;
            drop(turn);
        });
        outcomes
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.clean();
    }
}
