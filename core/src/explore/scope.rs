//! What is explored together.
//!
//! All that can happen, in every order, is too much for any depth that shows much. So
//! there are scopes: one of everything, which is searched to a small depth, and one for
//! each part of the rules, which is searched deeper.

use std::fmt;

use super::form::Form;
use crate::request::Limit;

/// How long a grant lasts, in milliseconds.
pub(super) const LEASE_MS: i64 = 3000;

/// How long a place is kept, in milliseconds.
pub(super) const PLACE_MS: i64 = 2000;

/// How long a grant to a place lasts that nobody claims, in milliseconds.
pub(super) const CLAIM_MS: i64 = 1000;

/// How long replicas have to acknowledge what is told, in milliseconds.
pub(super) const ACKS_MS: i64 = 500;

/// How often a contended lock is looked at for no other reason, in milliseconds.
pub(super) const RECHECK_MS: i64 = 5000;

pub(super) const BEGIN_MS: i64 = 1_700_000_000_000;

/// A way to ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) limit: Limit,
    pub(super) waits: bool,
    /// The hold that is asked for, or 0.
    pub(super) hold: i64,
    pub(super) session: bool,
    /// Where it waits, it has a place in the queue.
    pub(super) place: bool,
}

impl Ask {
    const TRY: Self = Self {
        limit: Limit::EXCLUSIVE,
        waits: false,
        hold: 0,
        session: false,
        place: false,
    };
    const WAIT: Self = Self {
        waits: true,
        ..Self::TRY
    };
    const PLACE: Self = Self {
        place: true,
        hold: 1,
        ..Self::WAIT
    };

    const fn limit(self, limit: Limit) -> Self {
        Self { limit, ..self }
    }

    const fn hold(self, hold: i64) -> Self {
        Self { hold, ..self }
    }

    const fn session(self) -> Self {
        Self {
            session: true,
            ..self
        }
    }

    pub(super) fn take_down(self, form: &mut Form<'_>) {
        form.number(self.limit.count_or_zero());
        form.flag(self.waits);
        form.number(self.hold);
        form.flag(self.session);
        form.flag(self.place);
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit.count_or_zero() {
            0 => f.write_str(" SHARED")?,
            1 => {}
            limit => write!(f, " LIMIT {limit}")?,
        }
        if self.hold > 0 {
            write!(f, " HOLD {}", self.hold)?;
        }
        if self.session {
            f.write_str(" SESSION")?;
        }
        match (self.waits, self.place) {
            (_, true) => write!(f, " QUEUE {PLACE_MS} channel")?,
            (true, false) => f.write_str(" BLOCK 0")?,
            (false, false) => {}
        }
        Ok(())
    }
}

/// Which token a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The one that its owner was told last.
    Own,
    /// One of long ago.
    Stale,
}

/// How much a release gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    One,
    All,
    Hold(i64),
    Token(Named),
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One => Ok(()),
            Self::All => f.write_str(" ALL"),
            Self::Hold(hold) => write!(f, " HOLD {hold}"),
            Self::Token(Named::Own) => f.write_str(" FENCE (its own)"),
            Self::Token(Named::Stale) => f.write_str(" FENCE (another)"),
        }
    }
}

/// What can happen, to whom, and how far it is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) name: &'static str,
    /// How many connections each owner has.
    pub(super) connections: &'static [usize],
    pub(super) keys: i32,
    pub(super) asks: &'static [Ask],
    pub(super) releases: &'static [Extent],
    /// New leases, and the tokens that are named with them.
    pub(super) renewals: &'static [(i64, Option<Named>)],
    /// `LOCK.BREAK`
    pub(super) breaks: bool,
    /// `DEL` by somebody else.
    pub(super) deletes: bool,
    /// `SET` by somebody else, of which the module is not told.
    pub(super) overwrites: bool,
    pub(super) renames: bool,
    pub(super) swaps: bool,
    /// Redisson's scripts take free locks.
    pub(super) redisson: bool,
    /// Waiters leave: their time is up, or somebody unblocks them.
    pub(super) leaves: bool,
    /// Clients are sent away with an error, also between a grant and its reply.
    pub(super) sends_away: bool,
    pub(super) disconnects: bool,
    /// Whoever listens to the messages to an owner's places comes and goes.
    pub(super) goes_deaf: bool,
    pub(super) fails_over: bool,
    /// At times nothing may be granted, as in a grace period.
    pub(super) pauses_grants: bool,
    /// What is told has to be acknowledged by a replica.
    pub(super) acks: bool,
    /// The server refuses writes now and then.
    pub(super) refuses_writes: bool,
    /// The timer may be late.
    pub(super) is_late: bool,
    /// Time stops at the very end of a lease too.
    pub(super) exact_ends: bool,
    /// As outside of a cluster.
    pub(super) reads_other_keys: bool,
    /// Bounds of the table so small that a few owners reach them.
    pub(super) small_bounds: bool,
    /// How far it is followed in a test of seconds, and in one of minutes.
    pub(super) depths: [usize; 2],
}

const NONE: Scope = Scope {
    name: "",
    connections: &[1, 1, 1],
    keys: 1,
    asks: &[Ask::WAIT],
    releases: &[Extent::One],
    renewals: &[],
    breaks: false,
    deletes: false,
    overwrites: false,
    renames: false,
    swaps: false,
    redisson: false,
    leaves: false,
    sends_away: false,
    disconnects: false,
    goes_deaf: false,
    fails_over: false,
    pauses_grants: false,
    acks: false,
    refuses_writes: false,
    is_late: false,
    exact_ends: false,
    reads_other_keys: true,
    small_bounds: false,
    depths: [0, 0],
};

const TWO: Limit = Limit::TWO;

/// All scopes.
pub(super) const SCOPES: &[Scope] = &[
    Scope {
        name: "queue",
        asks: &[Ask::TRY, Ask::WAIT],
        releases: &[Extent::One, Extent::Token(Named::Stale)],
        renewals: &[(LEASE_MS, None), (LEASE_MS / 3, Some(Named::Own))],
        breaks: true,
        deletes: true,
        overwrites: true,
        leaves: true,
        disconnects: true,
        depths: [6, 12],
        ..NONE
    },
    Scope {
        name: "modes",
        asks: &[
            Ask::WAIT,
            Ask::WAIT.limit(Limit::SHARED),
            Ask::WAIT.limit(TWO),
            Ask::TRY.limit(Limit::SHARED),
        ],
        releases: &[Extent::One],
        renewals: &[(LEASE_MS / 3, None)],
        deletes: true,
        leaves: true,
        exact_ends: true,
        depths: [4, 9],
        ..NONE
    },
    Scope {
        name: "modes, small bounds",
        asks: &[
            Ask::WAIT,
            Ask::WAIT.limit(Limit::SHARED),
            Ask::WAIT.limit(TWO),
        ],
        releases: &[Extent::One],
        renewals: &[(LEASE_MS / 3, None)],
        deletes: true,
        overwrites: true,
        leaves: true,
        small_bounds: true,
        depths: [4, 9],
        ..NONE
    },
    Scope {
        name: "sessions",
        connections: &[1, 1],
        asks: &[Ask::WAIT, Ask::WAIT.session()],
        releases: &[Extent::One],
        renewals: &[(LEASE_MS / 3, None)],
        breaks: true,
        deletes: true,
        disconnects: true,
        sends_away: true,
        refuses_writes: true,
        is_late: true,
        depths: [5, 12],
        ..NONE
    },
    Scope {
        name: "moves",
        connections: &[1, 1],
        keys: 2,
        asks: &[Ask::WAIT, Ask::WAIT.session()],
        releases: &[Extent::One],
        deletes: true,
        renames: true,
        swaps: true,
        disconnects: true,
        sends_away: true,
        depths: [4, 8],
        ..NONE
    },
    Scope {
        name: "moves, small bounds",
        connections: &[1, 1],
        keys: 2,
        asks: &[Ask::TRY.limit(Limit::SHARED).session(), Ask::WAIT.session()],
        releases: &[Extent::One],
        breaks: true,
        renames: true,
        swaps: true,
        disconnects: true,
        small_bounds: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "two connections",
        connections: &[2, 2],
        asks: &[
            Ask::WAIT,
            Ask::WAIT.hold(1),
            Ask::TRY.hold(2),
            Ask::WAIT.session(),
        ],
        releases: &[Extent::One, Extent::All, Extent::Hold(1)],
        deletes: true,
        leaves: true,
        sends_away: true,
        disconnects: true,
        depths: [4, 9],
        ..NONE
    },
    Scope {
        name: "acknowledged, two connections",
        connections: &[2, 1],
        asks: &[Ask::WAIT, Ask::TRY.hold(2), Ask::WAIT.session()],
        releases: &[Extent::One],
        renewals: &[(LEASE_MS / 3, None)],
        leaves: true,
        sends_away: true,
        disconnects: true,
        acks: true,
        depths: [6, 11],
        ..NONE
    },
    Scope {
        name: "paused grants, two connections",
        connections: &[2, 1],
        asks: &[Ask::WAIT, Ask::WAIT.hold(2), Ask::WAIT.session()],
        releases: &[Extent::One, Extent::Hold(1)],
        renewals: &[(LEASE_MS / 3, None)],
        leaves: true,
        sends_away: true,
        disconnects: true,
        pauses_grants: true,
        depths: [5, 10],
        ..NONE
    },
    Scope {
        name: "deadlocks",
        keys: 2,
        asks: &[
            Ask::WAIT,
            Ask::WAIT.limit(Limit::SHARED),
            Ask::WAIT.limit(TWO),
        ],
        releases: &[Extent::One],
        leaves: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "deadlocks, two connections",
        connections: &[2, 2],
        keys: 2,
        asks: &[Ask::WAIT, Ask::WAIT.limit(Limit::SHARED)],
        releases: &[Extent::One],
        leaves: true,
        redisson: true,
        depths: [4, 8],
        ..NONE
    },
    Scope {
        name: "deadlocks, small bounds",
        connections: &[2, 1, 1],
        keys: 2,
        asks: &[Ask::WAIT],
        releases: &[Extent::One],
        leaves: true,
        small_bounds: true,
        depths: [5, 9],
        ..NONE
    },
    Scope {
        name: "deadlocks, other keys unread",
        keys: 2,
        asks: &[Ask::WAIT],
        releases: &[Extent::One],
        leaves: true,
        deletes: true,
        overwrites: true,
        reads_other_keys: false,
        depths: [5, 10],
        ..NONE
    },
    Scope {
        name: "fail-over",
        connections: &[1, 1],
        asks: &[
            Ask::WAIT,
            Ask::WAIT.limit(Limit::SHARED),
            Ask::WAIT.session(),
        ],
        releases: &[Extent::One],
        deletes: true,
        disconnects: true,
        fails_over: true,
        depths: [4, 11],
        ..NONE
    },
    Scope {
        name: "places",
        asks: &[Ask::TRY, Ask::PLACE],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        deletes: true,
        goes_deaf: true,
        exact_ends: true,
        depths: [5, 8],
        ..NONE
    },
    Scope {
        name: "places in modes",
        asks: &[
            Ask::PLACE,
            Ask::PLACE.limit(Limit::SHARED),
            Ask::PLACE.limit(TWO),
        ],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        deletes: true,
        goes_deaf: true,
        small_bounds: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "places and blocked waiters",
        connections: &[2, 1],
        asks: &[
            Ask::WAIT,
            Ask::PLACE.limit(Limit::SHARED),
            Ask::WAIT.hold(1).limit(Limit::SHARED),
            Ask::PLACE.session(),
        ],
        releases: &[Extent::One, Extent::All],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        breaks: true,
        deletes: true,
        leaves: true,
        sends_away: true,
        disconnects: true,
        goes_deaf: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "places with sessions",
        connections: &[1, 1],
        asks: &[Ask::WAIT, Ask::PLACE, Ask::PLACE.session()],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        deletes: true,
        sends_away: true,
        disconnects: true,
        goes_deaf: true,
        refuses_writes: true,
        is_late: true,
        exact_ends: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "places and deadlocks",
        connections: &[1, 1],
        keys: 2,
        asks: &[Ask::WAIT, Ask::PLACE, Ask::PLACE.limit(Limit::SHARED)],
        renames: true,
        overwrites: true,
        leaves: true,
        goes_deaf: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "everything",
        connections: &[2, 1, 1],
        keys: 2,
        asks: &[
            Ask::TRY,
            Ask::WAIT,
            Ask::WAIT.limit(Limit::SHARED),
            Ask::WAIT.limit(TWO),
            Ask::TRY.hold(2),
            Ask::WAIT.hold(1),
            Ask::WAIT.session(),
            Ask::PLACE,
            Ask::PLACE.limit(Limit::SHARED),
            Ask::PLACE.session(),
        ],
        releases: &[
            Extent::One,
            Extent::All,
            Extent::Hold(1),
            Extent::Token(Named::Own),
            Extent::Token(Named::Stale),
        ],
        renewals: &[
            (LEASE_MS, None),
            (LEASE_MS / 3, Some(Named::Own)),
            (LEASE_MS, Some(Named::Stale)),
        ],
        breaks: true,
        deletes: true,
        overwrites: true,
        renames: true,
        swaps: true,
        redisson: true,
        leaves: true,
        sends_away: true,
        disconnects: true,
        goes_deaf: true,
        fails_over: true,
        refuses_writes: true,
        is_late: true,
        exact_ends: true,
        depths: [2, 5],
        ..NONE
    },
];
