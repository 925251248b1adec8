//! The errors a client can be told. This is the only place where their codes
//! are spelled: the first word of each message is the code, and clients may
//! rely on it.

use thiserror::Error;

use crate::cycle::{self, WaitEdge};
use crate::keys::KeyRef;
use crate::usage::Usage;

/// A refusal, as the client is told it. A function that returns one has changed nothing.
#[expect(missing_docs, reason = "each message says what it means")]
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LockError {
    #[error("ERR {0}")]
    Usage(#[from] Usage),
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    #[error(
        "NOTALOCK the key is a hash that does not describe a lock; use another key for the lock"
    )]
    NotALock,
    #[error("HOLDCOUNT HOLD {wanted} does not fit: the owner has {held} hold(s) on this lock")]
    HoldCount { wanted: i64, held: i64 },
    #[error(
        "UPGRADE the owner holds this lock in a looser mode; release it before asking for a \
         stricter one"
    )]
    Upgrade,
    /// The text for a user who may read every key; [`LockError::text_for`] has that for others.
    #[error("DEADLOCK {}", cycle::spell(.cycle, |_| true))]
    Deadlock { cycle: Vec<WaitEdge> },
    #[error(
        "READONLY a replica hands no lock off and keeps up no lease; ask the primary, or leave \
         BLOCK, QUEUE and SESSION out"
    )]
    ReadOnly,
    #[error(
        "READONLY this transaction has paused writes or made the server a replica, which hides \
         locks that are over; send the command again outside of it"
    )]
    WritesPaused,
    #[error(
        "NOTHELD nobody holds the lock with this token now, and nothing was done; stop the work, \
         and acquire the lock again before you start it anew"
    )]
    NotHeld,
    /// The user may not run a guarded command. The reason is in the server's words.
    #[error("NOPERM {reason}")]
    NoPermission { reason: String },
    /// Fewer are in step than `min-replicas-to-write` demands. In the server's words.
    #[error("NOREPLICAS Not enough good replicas to write.")]
    TooFewReplicas,
    #[error(
        "QUEUEFULL {max_waiters} clients wait for this lock already; try again later or raise \
         lock.max-waiters"
    )]
    QueueFull { max_waiters: usize },
    #[error(
        "QUEUEFULL there are {max_places} places in queues already; try again later or raise \
         lock.max-places"
    )]
    PlacesFull { max_places: usize },
    #[error(
        "SUPERSEDED another request of this owner came after this one; do not send it again: who \
         else waits needs an owner of its own"
    )]
    Superseded,
    #[error(
        "CROSSSLOT the channel must hash to the slot of the key; put the same {{hash tag}} into both"
    )]
    ChannelCrossesSlots,
    /// In the server's words, as the next two.
    #[error("CROSSSLOT Keys in request don't hash to the same slot")]
    GuardedKeyCrossesSlots,
    #[error("TRYAGAIN Multiple keys request during rehashing of slot")]
    SlotMoves,
    #[error(
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> \
         replica?)"
    )]
    Unblocked,
    #[error(
        "NOREPLICAS not known to be safe: fewer than lock.min-replicas replicas have \
         acknowledged it; RELEASE with its HOLD, or send it again (an ACQUIRE with HOLD)"
    )]
    NoReplicas,
    #[error(
        "NOREPLICAS nothing was done: a client that can't block can't wait for \
         lock.min-replicas; send it outside of MULTI and scripts, on a connection that has not \
         subscribed"
    )]
    CannotAwaitReplicas,
}

impl LockError {
    /// The text for a user who may read these keys only.
    pub fn text_for(&self, may_read: impl Fn(KeyRef<'_>) -> bool) -> String {
        match self {
            Self::Deadlock { cycle } => format!("DEADLOCK {}", cycle::spell(cycle, may_read)),
            error => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_begins_with_its_code() {
        let cases = [
            (LockError::from(Usage::Syntax), "ERR"),
            (LockError::WrongType, "WRONGTYPE"),
            (LockError::NotALock, "NOTALOCK"),
            (LockError::HoldCount { wanted: 3, held: 1 }, "HOLDCOUNT"),
            (LockError::QueueFull { max_waiters: 1 }, "QUEUEFULL"),
            (LockError::Upgrade, "UPGRADE"),
            (LockError::NotHeld, "NOTHELD"),
            (
                LockError::NoPermission {
                    reason: String::new(),
                },
                "NOPERM",
            ),
            (LockError::ReadOnly, "READONLY"),
            (LockError::WritesPaused, "READONLY"),
            (LockError::NoReplicas, "NOREPLICAS"),
            (LockError::CannotAwaitReplicas, "NOREPLICAS"),
            (LockError::TooFewReplicas, "NOREPLICAS"),
            (LockError::Superseded, "SUPERSEDED"),
            (LockError::ChannelCrossesSlots, "CROSSSLOT"),
            (LockError::GuardedKeyCrossesSlots, "CROSSSLOT"),
            (LockError::SlotMoves, "TRYAGAIN"),
            (LockError::Deadlock { cycle: Vec::new() }, "DEADLOCK"),
        ];
        for (error, code) in cases {
            assert_eq!(error.to_string().split(' ').next(), Some(code));
        }
    }
}
