//! A hold on one server, and the order of its renewals there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::commands;
use crate::error::Error;
use crate::servers::node::Ask;

/// A hold on one server, and its token there if that is known.
#[derive(Clone)]
pub(crate) struct ServerHold {
    pub(crate) server: Arc<dyn Ask>,
    pub(crate) token: Option<u64>,
    pub(crate) trace: Trace,
    renewals: Arc<Renewals>,
}

/// Whether an acquire may have left anything on a server.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<AtomicBool>);

impl Trace {
    /// It may.
    pub(crate) fn left() -> Self {
        Self(Arc::new(true.into()))
    }

    /// Notes whether it may.
    pub(crate) fn set(&self, may_be: bool) {
        self.0.store(may_be, Ordering::SeqCst);
    }

    /// Returns whether it may.
    pub(crate) fn may_be(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Its renewals: a server sets the lease that it is told last, whatever it was before.
#[derive(Default)]
struct Renewals {
    /// How many there were.
    asked: AtomicU64,
    /// One at a time, with the shortest lease, in milliseconds, of those that may still
    /// be carried out.
    lingering: Mutex<Option<u64>>,
}

impl ServerHold {
    pub(crate) fn new(server: Arc<dyn Ask>, token: Option<u64>, trace: Trace) -> Self {
        Self {
            server,
            token,
            trace,
            renewals: Arc::default(),
        }
    }

    /// A renewal for so many milliseconds may yet be carried out, which was sent before
    /// there was the hold.
    pub(crate) async fn note_lingering(&self, lease_ms: u64) {
        let mut lingering = self.renewals.lingering.lock().await;
        *lingering = Some(lingering.map_or(lease_ms, |before| before.min(lease_ms)));
    }

    /// For how many milliseconds a grant for so many is good at least.
    pub(crate) async fn good_for_ms(&self, lease_ms: u64) -> u64 {
        match *self.renewals.lingering.lock().await {
            Some(lingering) if self.server.may_linger() => lingering.min(lease_ms),
            _ => lease_ms,
        }
    }

    /// Completes when no renewal is on the way, and has none be sent after that.
    pub(crate) async fn end_renewals(&self) {
        self.renew_no_more();
        let _turn = self.renewals.lingering.lock().await;
    }

    /// Has no renewal be sent that still waits for the one before.
    pub(crate) fn renew_no_more(&self) {
        self.renewals.asked.fetch_add(1, Ordering::SeqCst);
    }

    /// Renews once the renewal before is answered, unless a later one waits for that,
    /// too. Returns for how many milliseconds it is good at least, if it is held.
    pub(crate) fn renew(
        &self,
        key: &[u8],
        owner: &[u8],
        lease_ms: u64,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send + 'static + use<> {
        let (server, renewals) = (Arc::clone(&self.server), Arc::clone(&self.renewals));
        let cmd = commands::renew(key, owner, lease_ms, self.token);
        let key = key.to_vec();
        let nth = renewals.asked.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            let mut lingering = renewals.lingering.lock().await;
            if renewals.asked.load(Ordering::SeqCst) != nth {
                return Err(Error::unavailable("a later renewal does without this one"));
            }
            let before = *lingering;
            let shortest = before.map_or(lease_ms, |before| before.min(lease_ms));
            *lingering = Some(shortest);
            let reply = server.ask(&key, &cmd).await?;
            if !reply.resent {
                *lingering = before;
            }
            let mut good_for_ms = shortest;
            if !server.may_linger() {
                (*lingering, good_for_ms) = (None, lease_ms);
            }
            Ok(commands::found(&reply.value)?.then_some(good_for_ms))
        }
    }
}
