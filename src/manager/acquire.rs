//! How a lock is taken, and waited for.

use redis_module::Context;

use super::{RECEIVES, acks, gate, run};
use crate::server::acl::User;
use crate::server::blocked;
use crate::server::clients;
use crate::server::keyspace::{self, LockKey};
use crate::server::open_lock::Part;
use redis_lock_core::error::LockError;
use redis_lock_core::queue::Wait;
use redis_lock_core::request::{AcquireRequest, Timeout};
use redis_lock_core::table::Acquired;

/// How long a request would wait, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience<'a> {
    /// It would not.
    None,
    /// Its client would be blocked, if it can be.
    Block(Timeout),
    /// It would have a place in the queue.
    Queue(PlaceTime<'a>),
}

/// For how long a place is kept, in milliseconds, and where its end is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceTime<'a> {
    pub(crate) ms: i64,
    pub(crate) channel: &'a [u8],
}

/// Takes the lock, one hold more of it, or a position in its queue. Returns nothing if the
/// grant is withheld: then the client is told of it later.
pub(crate) fn acquire(
    key: LockKey<'_>,
    request: AcquireRequest,
    patience: Patience<'_>,
) -> Result<Option<Acquired>, LockError> {
    let ctx = key.ctx();
    let patience = match patience {
        Patience::Block(_) if !blocked::may_block(ctx) => Patience::None,
        patience => patience,
    };
    if (patience != Patience::None || request.session.is_some()) && RECEIVES.get() {
        return Err(LockError::ReadOnly);
    }
    if let Patience::Queue(place) = patience {
        check_channel(key, place.channel)?;
    }
    let may_grant = gate::check_replicas(ctx)?;
    let asker = request.owner.clone();
    let part = Part::Whole(Some(&asker));
    let acquired = run(key, part, may_grant, |step| {
        let wait = wait(ctx, step.now.steady_ms, patience);
        step.acquire(request, wait)
    });
    if let (Ok(Some(Acquired::Queued(waiter))), Patience::Block(timeout)) = (&acquired, patience) {
        // With replicas to await the core ends the wait: the server's time-out would end both.
        let timeout_ms = match acks::are_on() {
            true => 0,
            false => timeout.ms_or_zero(),
        };
        blocked::block(key, *waiter, timeout_ms);
    }
    acquired
}

fn wait(ctx: &Context, now_ms: i64, patience: Patience<'_>) -> Option<Wait> {
    let after = |ms| Some(now_ms.saturating_add(ms));
    let (until_ms, channel) = match patience {
        Patience::None => return None,
        Patience::Block(timeout) => (timeout.end_ms(now_ms), None),
        Patience::Queue(place) => (after(place.ms), Some(place.channel.into())),
    };
    Some(Wait {
        client: clients::running(ctx),
        until_ms,
        channel,
    })
}

/// Fails unless the client may publish to this channel, and in a cluster the key's slot
/// has it.
fn check_channel(key: LockKey<'_>, channel: &[u8]) -> Result<(), LockError> {
    let ctx = key.ctx();
    if keyspace::in_cluster(ctx) && !keyspace::is_in_slot_of(key, channel) {
        return Err(LockError::ChannelCrossesSlots);
    }
    match User::running(ctx).may_publish(channel) {
        true => Ok(()),
        false => Err(LockError::NoPermission {
            reason: CHANNEL_REFUSED.to_owned(),
        }),
    }
}

/// What Redis 7.0 says to a user who may not publish to a channel.
const CHANNEL_REFUSED: &str =
    "this user has no permissions to access one of the channels used as arguments";
