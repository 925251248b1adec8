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

    const fn shared(self) -> Self {
        let limit = Limit::SHARED;
        Self { limit, ..self }
    }

    /// One of two permits.
    const fn two(self) -> Self {
        let limit = Limit::TWO;
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

/// What can happen beside what clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// `LOCK.BREAK`
    Break,
    /// `DEL` by somebody else.
    Delete,
    /// `SET` by somebody else, of which the module is not told.
    Overwrite,
    /// `RENAME` of a key to the other.
    Rename,
    /// `SWAPDB`
    Swap,
    /// Redisson's scripts take free locks.
    Redisson,
    /// Waiters leave: their time is up, or somebody unblocks them.
    Leave,
    /// Clients are sent away with an error, also between a grant and its reply.
    SendAway,
    /// Connections end.
    Disconnect,
    /// Whoever listens to the messages to an owner's places comes and goes.
    GoDeaf,
    /// A replica takes over.
    FailOver,
    /// At times nothing may be granted, as in a grace period.
    Pause,
    /// The server refuses writes now and then.
    Refuse,
}

use Event::*;

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
    /// What else can happen.
    pub(super) happens: &'static [Event],
    /// What is told has to be acknowledged by a replica.
    pub(super) acks: bool,
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

impl Scope {
    pub(super) fn has(&self, event: Event) -> bool {
        self.happens.contains(&event)
    }

    /// Whether locks are moved. One that comes back may be a session again, or not, and its
    /// owner is taken to know of it.
    pub(super) fn moves(&self) -> bool {
        self.has(Rename) || self.has(Swap)
    }
}

const NONE: Scope = Scope {
    name: "",
    connections: &[1, 1, 1],
    keys: 1,
    asks: &[Ask::WAIT],
    releases: &[Extent::One],
    renewals: &[],
    happens: &[],
    acks: false,
    is_late: false,
    exact_ends: false,
    reads_other_keys: true,
    small_bounds: false,
    depths: [0, 0],
};

/// All scopes.
pub(super) const SCOPES: &[Scope] = &[
    Scope {
        name: "queue",
        asks: &[Ask::TRY, Ask::WAIT],
        releases: &[Extent::One, Extent::Token(Named::Stale)],
        renewals: &[(LEASE_MS, None), (LEASE_MS / 3, Some(Named::Own))],
        happens: &[Break, Delete, Overwrite, Leave, Disconnect],
        depths: [6, 12],
        ..NONE
    },
    Scope {
        name: "modes",
        asks: &[
            Ask::WAIT,
            Ask::WAIT.shared(),
            Ask::WAIT.two(),
            Ask::TRY.shared(),
        ],
        renewals: &[(LEASE_MS / 3, None)],
        happens: &[Delete, Leave],
        exact_ends: true,
        depths: [4, 9],
        ..NONE
    },
    Scope {
        name: "modes, small bounds",
        asks: &[Ask::WAIT, Ask::WAIT.shared(), Ask::WAIT.two()],
        renewals: &[(LEASE_MS / 3, None)],
        happens: &[Delete, Overwrite, Leave],
        small_bounds: true,
        depths: [4, 9],
        ..NONE
    },
    Scope {
        name: "sessions",
        connections: &[1, 1],
        asks: &[Ask::WAIT, Ask::WAIT.session()],
        renewals: &[(LEASE_MS / 3, None)],
        happens: &[Break, Delete, SendAway, Disconnect, Refuse],
        is_late: true,
        depths: [5, 12],
        ..NONE
    },
    Scope {
        name: "moves",
        connections: &[1, 1],
        keys: 2,
        asks: &[Ask::WAIT, Ask::WAIT.session()],
        happens: &[Delete, Rename, Swap, SendAway, Disconnect],
        depths: [4, 8],
        ..NONE
    },
    Scope {
        name: "moves, small bounds",
        connections: &[1, 1],
        keys: 2,
        asks: &[Ask::TRY.shared().session(), Ask::WAIT.session()],
        happens: &[Break, Rename, Swap, Disconnect],
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
        happens: &[Delete, Leave, SendAway, Disconnect],
        depths: [4, 9],
        ..NONE
    },
    Scope {
        name: "acknowledged, two connections",
        connections: &[2, 1],
        asks: &[Ask::WAIT, Ask::TRY.hold(2), Ask::WAIT.session()],
        renewals: &[(LEASE_MS / 3, None)],
        happens: &[Leave, SendAway, Disconnect],
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
        happens: &[Leave, SendAway, Disconnect, Pause],
        depths: [5, 10],
        ..NONE
    },
    Scope {
        name: "deadlocks",
        keys: 2,
        asks: &[Ask::WAIT, Ask::WAIT.shared(), Ask::WAIT.two()],
        happens: &[Leave],
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "deadlocks, two connections",
        connections: &[2, 2],
        keys: 2,
        asks: &[Ask::WAIT, Ask::WAIT.shared()],
        happens: &[Redisson, Leave],
        depths: [4, 8],
        ..NONE
    },
    Scope {
        name: "deadlocks, small bounds",
        connections: &[2, 1, 1],
        keys: 2,
        asks: &[Ask::WAIT],
        happens: &[Leave],
        small_bounds: true,
        depths: [5, 9],
        ..NONE
    },
    Scope {
        name: "deadlocks, other keys unread",
        keys: 2,
        asks: &[Ask::WAIT],
        happens: &[Delete, Overwrite, Leave],
        reads_other_keys: false,
        depths: [5, 10],
        ..NONE
    },
    Scope {
        name: "fail-over",
        connections: &[1, 1],
        asks: &[Ask::WAIT, Ask::WAIT.shared(), Ask::WAIT.session()],
        happens: &[Delete, Disconnect, FailOver],
        depths: [4, 11],
        ..NONE
    },
    Scope {
        name: "places",
        asks: &[Ask::TRY, Ask::PLACE],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        happens: &[Delete, GoDeaf],
        exact_ends: true,
        depths: [5, 8],
        ..NONE
    },
    Scope {
        name: "places in modes",
        asks: &[Ask::PLACE, Ask::PLACE.shared(), Ask::PLACE.two()],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        happens: &[Delete, GoDeaf],
        small_bounds: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "places and blocked waiters",
        connections: &[2, 1],
        asks: &[
            Ask::WAIT,
            Ask::PLACE.shared(),
            Ask::WAIT.hold(1).shared(),
            Ask::PLACE.session(),
        ],
        releases: &[Extent::One, Extent::All],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        happens: &[Break, Delete, Leave, SendAway, Disconnect, GoDeaf],
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "places with sessions",
        connections: &[1, 1],
        asks: &[Ask::WAIT, Ask::PLACE, Ask::PLACE.session()],
        renewals: &[(LEASE_MS, Some(Named::Own))],
        happens: &[Delete, SendAway, Disconnect, GoDeaf, Refuse],
        is_late: true,
        exact_ends: true,
        depths: [4, 7],
        ..NONE
    },
    Scope {
        name: "places and deadlocks",
        connections: &[1, 1],
        keys: 2,
        asks: &[Ask::WAIT, Ask::PLACE, Ask::PLACE.shared()],
        happens: &[Overwrite, Rename, Leave, GoDeaf],
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
            Ask::WAIT.shared(),
            Ask::WAIT.two(),
            Ask::TRY.hold(2),
            Ask::WAIT.hold(1),
            Ask::WAIT.session(),
            Ask::PLACE,
            Ask::PLACE.shared(),
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
        happens: &[
            Break, Delete, Overwrite, Rename, Swap, Redisson, Leave, SendAway, Disconnect, GoDeaf,
            FailOver, Refuse,
        ],
        is_late: true,
        exact_ends: true,
        depths: [2, 5],
        ..NONE
    },
];
