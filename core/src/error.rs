//! The errors a client can be told. This is the only place where their codes
//! are spelled: the first word of each message is the code, and clients may
//! rely on it.

use std::fmt;

use crate::cycle::{self, WaitEdge};
use crate::keys::KeyRef;
use crate::usage::Usage;

/// A refusal. Whoever returns one has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// `ERR`: the command was not well-formed.
    Usage(Usage),
    /// `WRONGTYPE`: the key holds something that is not a hash.
    WrongType,
    /// `NOTALOCK`: the key is a hash, but not one that describes a lock.
    NotALock,
    /// `HOLDCOUNT`: `HOLD n` fits neither n nor n - 1.
    HoldCount {
        /// The hold the client spoke of.
        wanted: i64,
        /// How many holds the owner has.
        held: i64,
    },
    /// `UPGRADE`: a holder asked for a stricter mode than it holds the lock in.
    Upgrade,
    /// `DEADLOCK`: the wait would close a cycle of owners that wait for each other.
    Deadlock {
        /// Who waits for whom.
        cycle: Vec<WaitEdge>,
    },
    /// `READONLY`: a replica keeps up no lease and hands no lock off.
    ReadOnly,
    /// `READONLY`: the transaction has paused writes, or made the server a replica, and a
    /// lock that is over may be there unseen.
    WritesPaused,
    /// `NOTHELD`: nobody holds the lock with the token of a guarded command.
    NotHeld,
    /// `NOPERM`: the user may not run a guarded command.
    NoPermission {
        /// The server's words for it.
        reason: String,
    },
    /// `NOREPLICAS`: fewer replicas are connected and in step than
    /// `min-replicas-to-write` demands.
    TooFewReplicas,
    /// `QUEUEFULL`: as many clients wait for the lock as `lock.max-waiters` allows.
    QueueFull {
        /// The limit.
        max_waiters: usize,
    },
    /// `QUEUEFULL`: there are as many places in queues as `lock.max-places` allows.
    PlacesFull {
        /// The limit.
        max_places: usize,
    },
    /// `SUPERSEDED`: a later request of the same owner took this one over.
    Superseded,
    /// `CROSSSLOT`: the channel of a place is not in the lock's slot.
    ChannelCrossesSlots,
    /// `CROSSSLOT`: a key of a guarded command is not in the lock's slot.
    GuardedKeyCrossesSlots,
    /// `TRYAGAIN`: the slot moves, and a key of a guarded command is not here.
    SlotMoves,
    /// `UNBLOCKED`: the server has become a replica.
    Unblocked,
    /// `NOREPLICAS`: too few replicas acknowledged it in time, or too few are
    /// connected.
    NoReplicas,
    /// `NOREPLICAS`: the client can't wait for them.
    CannotAwaitReplicas,
}

impl LockError {
    /// As it is told to somebody who may read these keys only.
    pub fn text_for(&self, may_read: impl Fn(KeyRef<'_>) -> bool) -> String {
        match self {
            Self::Deadlock { cycle } => format!("DEADLOCK {}", cycle::spell(cycle, may_read)),
            error => error.to_string(),
        }
    }
}

impl From<Usage> for LockError {
    fn from(usage: Usage) -> Self {
        Self::Usage(usage)
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(usage) => write!(f, "ERR {}", usage.text()),
            Self::WrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Self::NotALock => f.write_str(
                "NOTALOCK the key is a hash that does not describe a lock; \
                 use another key for the lock",
            ),
            Self::HoldCount { wanted, held } => write!(
                f,
                "HOLDCOUNT HOLD {wanted} does not fit: the owner has {held} hold(s) on this lock"
            ),
            Self::Upgrade => f.write_str(
                "UPGRADE the owner holds this lock in a looser mode; release it before asking \
                 for a stricter one",
            ),
            Self::Deadlock { cycle } => {
                write!(f, "DEADLOCK {}", cycle::spell(cycle, |_| true))
            }
            Self::ReadOnly => f.write_str(
                "READONLY a replica hands no lock off and keeps up no lease; \
                 ask the primary, or leave BLOCK, QUEUE and SESSION out",
            ),
            Self::WritesPaused => f.write_str(
                "READONLY this transaction has paused writes or made the server a replica, \
                 which hides locks that are over; send the command again outside of it",
            ),
            Self::NotHeld => f.write_str(
                "NOTHELD nobody holds the lock with this token now, and nothing was done; \
                 stop the work, and acquire the lock again before you start it anew",
            ),
            Self::NoPermission { reason } => write!(f, "NOPERM {reason}"),
            // The server's own words.
            Self::TooFewReplicas => f.write_str("NOREPLICAS Not enough good replicas to write."),
            Self::QueueFull { max_waiters } => write!(
                f,
                "QUEUEFULL {max_waiters} clients wait for this lock already; \
                 try again later or raise lock.max-waiters"
            ),
            Self::PlacesFull { max_places } => write!(
                f,
                "QUEUEFULL there are {max_places} places in queues already; \
                 try again later or raise lock.max-places"
            ),
            Self::Superseded => f.write_str(
                "SUPERSEDED another request of this owner came after this one; \
                 do not send it again: who else waits needs an owner of its own",
            ),
            Self::ChannelCrossesSlots => f.write_str(
                "CROSSSLOT the channel must hash to the slot of the key; \
                 put the same {hash tag} into both",
            ),
            // The server's own words.
            Self::GuardedKeyCrossesSlots => {
                f.write_str("CROSSSLOT Keys in request don't hash to the same slot")
            }
            // The server's own words.
            Self::SlotMoves => {
                f.write_str("TRYAGAIN Multiple keys request during rehashing of slot")
            }
            // The server's own words.
            Self::Unblocked => f.write_str(
                "UNBLOCKED force unblock from blocking operation, \
                 instance state changed (master -> replica?)",
            ),
            Self::NoReplicas => f.write_str(
                "NOREPLICAS not known to be safe: fewer than lock.min-replicas replicas have \
                 acknowledged it; RELEASE with its HOLD, or send it again (an ACQUIRE with HOLD)",
            ),
            Self::CannotAwaitReplicas => f.write_str(
                "NOREPLICAS nothing was done: a client that can't block can't wait for \
                 lock.min-replicas; send it outside of MULTI and scripts, on a connection that \
                 has not subscribed",
            ),
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
