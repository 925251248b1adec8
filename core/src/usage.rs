//! What may be wrong with the words of a command.

/// What was wrong with the words of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// An option that is unknown, repeated, unfinished or in conflict with another.
    Syntax,
    /// Not an integer of 64 bits.
    NotAnInteger,
    /// `LEASE` outside of its range.
    LeaseOutOfRange,
    /// `LEASE` above `lock.max-lease`.
    LeaseTooLong,
    /// `HOLD` below 1.
    HoldOutOfRange,
    /// `LIMIT` outside of its range.
    LimitOutOfRange,
    /// `LIMIT` above `lock.max-holders`.
    LimitTooGreat,
    /// `COUNT` below 1.
    CountOutOfRange,
    /// `SESSION` from a client without a connection, such as a script.
    NoSession,
    /// A number that no token can equal.
    TokenOutOfRange,
    /// A guarded command of the module itself.
    LockCommandGuarded,
    /// `LOCK.GUARD` of `WAIT` or `WAITAOF`, which say 1 at once within a module.
    WaitGuarded,
    /// `QUEUE` outside of its range.
    QueueOutOfRange,
    /// The channel of a place is longer than 1024 bytes.
    ChannelTooLong,
    /// `BLOCK` that is no integer, or would end beyond the reach of the clock.
    TimeoutOutOfRange,
    /// `BLOCK` below 0.
    TimeoutNegative,
    /// An empty owner.
    OwnerEmpty,
    /// An owner longer than 1024 bytes.
    OwnerTooLong,
    /// An owner that begins with `@`, which marks the module's own fields.
    OwnerReserved,
    /// The hold count of this owner would pass 2^63 - 1.
    TooManyHolds,
    /// The stored token is 2^53 - 1: there is no greater one.
    TokensExhausted,
    /// A handler panicked; the panic was caught.
    Internal,
}

impl Usage {
    /// What the client is told.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Syntax => "syntax error",
            Self::NotAnInteger => "value is not an integer or out of range",
            Self::LeaseOutOfRange => "LEASE must be between 1 and 315360000000 milliseconds",
            Self::LeaseTooLong => "LEASE is longer than lock.max-lease; ask for a shorter one",
            Self::HoldOutOfRange => "HOLD must be 1 or greater",
            Self::LimitOutOfRange => "LIMIT must be between 1 and 9007199254740991",
            Self::LimitTooGreat => "LIMIT is greater than lock.max-holders; ask for less",
            Self::CountOutOfRange => "COUNT must be 1 or greater",
            Self::NoSession => {
                "SESSION needs a client's own connection; scripts and modules have none"
            }
            Self::TokenOutOfRange => "a token must be between 1 and 9007199254740991",
            Self::LockCommandGuarded => {
                "LOCK.GUARD runs no LOCK.* command; those that need it take the token as FENCE"
            }
            Self::WaitGuarded => "LOCK.GUARD runs no WAIT or WAITAOF; send them after it",
            Self::TimeoutOutOfRange => "timeout is not an integer or out of range",
            Self::QueueOutOfRange => "QUEUE must be between 1 and 86400000 milliseconds",
            Self::ChannelTooLong => "channel must not be longer than 1024 bytes",
            Self::TimeoutNegative => "timeout is negative",
            Self::OwnerEmpty => "owner must not be empty",
            Self::OwnerTooLong => "owner must not be longer than 1024 bytes",
            Self::OwnerReserved => "owner must not begin with '@'",
            Self::TooManyHolds => "hold count would overflow; release some holds first",
            Self::TokensExhausted => {
                "the stored @fence is the greatest possible token; delete the key first"
            }
            Self::Internal => {
                "internal error in the lock module; the server log has the details, please report it"
            }
        }
    }
}
