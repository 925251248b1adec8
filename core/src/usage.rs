//! What may be wrong with the words of a command.

use thiserror::Error;

/// What was wrong with the words of a command, as the client is told it.
#[expect(missing_docs, reason = "each message says what it means")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Usage {
    #[error("syntax error")]
    Syntax,
    #[error("value is not an integer or out of range")]
    NotAnInteger,
    #[error("LEASE must be between 1 and 315360000000 milliseconds")]
    LeaseOutOfRange,
    #[error("LEASE is longer than lock.max-lease; ask for a shorter one")]
    LeaseTooLong,
    #[error("HOLD must be 1 or greater")]
    HoldOutOfRange,
    #[error("LIMIT must be between 1 and 9007199254740991")]
    LimitOutOfRange,
    #[error("LIMIT is greater than lock.max-holders; ask for less")]
    LimitTooGreat,
    #[error("COUNT must be 1 or greater")]
    CountOutOfRange,
    #[error("SESSION needs a client's own connection; scripts and modules have none")]
    NoSession,
    #[error("a token must be between 1 and 9007199254740991")]
    TokenOutOfRange,
    #[error("LOCK.GUARD runs no LOCK.* command; those that need it take the token as FENCE")]
    LockCommandGuarded,
    /// Called by a module, they reply at once, whatever replicas have acknowledged.
    #[error("LOCK.GUARD runs no WAIT or WAITAOF; send them after it")]
    WaitGuarded,
    #[error("QUEUE must be between 1 and 86400000 milliseconds")]
    QueueOutOfRange,
    #[error("channel must not be longer than 1024 bytes")]
    ChannelTooLong,
    #[error("timeout is not an integer or out of range")]
    TimeoutOutOfRange,
    #[error("timeout is negative")]
    TimeoutNegative,
    #[error("owner must not be empty")]
    OwnerEmpty,
    #[error("owner must not be longer than 1024 bytes")]
    OwnerTooLong,
    /// It marks the module's own fields.
    #[error("owner must not begin with '@'")]
    OwnerReserved,
    #[error("hold count would overflow; release some holds first")]
    TooManyHolds,
    #[error("the stored @fence is the greatest possible token; delete the key first")]
    TokensExhausted,
    /// A handler panicked; the panic was caught.
    #[error("internal error in the lock module; the server log has the details, please report it")]
    Internal,
}
