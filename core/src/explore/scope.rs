//! What is explored together.
//!
//! All that can happen, in every order, is too much for any depth that shows much. So
//! there are scopes: one of everything, which is searched to a small depth, and one for
//! each part of the rules, which is searched deeper.

use crate::request::Limit;

/// How long a grant lasts, in milliseconds.
pub(super) const LEASE_MS: i64 = 3000;

/// Times of a server and of its clients, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// How long a place is kept.
    pub(super) place: i64,
    /// How long a grant to a place lasts that nobody claims.
    pub(super) claim: i64,
    /// How long replicas have to acknowledge what is told.
    pub(super) acks: i64,
    /// How often a contended lock is looked at for no other reason.
    pub(super) recheck: i64,
}

pub(super) const BEGIN_MS: i64 = 1_700_000_000_000;

/// A way to ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ask {
    /// In the words of a command, whose numbers stand behind a `=` here.
    pub(super) words: &'static str,
    pub(super) lease_ms: i64,
    pub(super) limit: Limit,
    pub(super) waits: bool,
    /// The hold that is asked for, or 0.
    pub(super) hold: i64,
    pub(super) session: bool,
    /// Where it waits, it has a place in the queue.
    pub(super) place: bool,
}

impl Ask {
    pub(super) fn of(words: &'static str) -> Self {
        const WORDS: &str = "SHARED LIMIT=2 HOLD=1 HOLD=2 SESSION BLOCK QUEUE";
        assert!(words.split(' ').all(|one| WORDS.contains(one)), "{words}");
        let has = |word| words.split(' ').any(|one| one == word);
        Self {
            words,
            lease_ms: LEASE_MS,
            limit: match (has("SHARED"), has("LIMIT=2")) {
                (true, _) => Limit::SHARED,
                (_, true) => Limit::TWO,
                _ => Limit::EXCLUSIVE,
            },
            waits: has("BLOCK") || has("QUEUE"),
            hold: i64::from(has("HOLD=1")) + 2 * i64::from(has("HOLD=2")),
            session: has("SESSION"),
            place: has("QUEUE"),
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
    /// How they ask, as commands say it.
    pub(super) asks: &'static [&'static str],
    /// How much they give back, or by which token.
    pub(super) releases: &'static [&'static str],
    /// New leases, and the tokens that are named with them.
    pub(super) renewals: &'static [(i64, &'static str)],
    /// What else can happen.
    pub(super) happens: &'static [Event],
    pub(super) times: Times,
    /// How many replicas have to acknowledge what is told.
    pub(super) acks: usize,
    /// Whether it is one of several nodes. Then its writes go to replicas, and who is granted
    /// the lock hears of it before anything else happens.
    pub(super) is_a_node: bool,
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
    fn with(
        mut self,
        name: &'static str,
        depths: [usize; 2],
        change: impl FnOnce(&mut Self),
    ) -> Self {
        (self.name, self.depths) = (name, depths);
        change(&mut self);
        self
    }

    pub(super) fn has(&self, event: Event) -> bool {
        self.happens.contains(&event)
    }

    /// Whether locks are moved. One that comes back may be a session again, or not, and its
    /// owner is taken to know of it.
    pub(super) fn moves(&self) -> bool {
        self.has(Rename) || self.has(Swap)
    }
}

pub(super) const NONE: Scope = Scope {
    name: "",
    connections: &[1, 1, 1],
    keys: 1,
    asks: &["BLOCK"],
    releases: &[""],
    renewals: &[],
    happens: &[],
    times: Times {
        place: 2000,
        claim: 1000,
        acks: 500,
        recheck: 5000,
    },
    acks: 0,
    is_a_node: false,
    is_late: false,
    exact_ends: false,
    reads_other_keys: true,
    small_bounds: false,
    depths: [0, 0],
};

/// All scopes.
pub(super) fn scopes() -> Vec<Scope> {
    vec![
        NONE.with("queue", [6, 12], |it| {
            it.asks = &["", "BLOCK"];
            it.releases = &["", "FENCE=other"];
            it.renewals = &[(LEASE_MS, ""), (LEASE_MS / 3, "FENCE=own")];
            it.happens = &[Break, Delete, Overwrite, Leave, Disconnect];
        }),
        NONE.with("modes", [4, 9], |it| {
            it.asks = &["BLOCK", "SHARED BLOCK", "LIMIT=2 BLOCK", "SHARED"];
            it.renewals = &[(LEASE_MS / 3, "")];
            it.happens = &[Delete, Leave];
            it.exact_ends = true;
        }),
        NONE.with("modes, small bounds", [4, 9], |it| {
            it.asks = &["BLOCK", "SHARED BLOCK", "LIMIT=2 BLOCK"];
            it.renewals = &[(LEASE_MS / 3, "")];
            it.happens = &[Delete, Overwrite, Leave];
            it.small_bounds = true;
        }),
        NONE.with("sessions", [5, 12], |it| {
            it.connections = &[1, 1];
            it.asks = &["BLOCK", "SESSION BLOCK"];
            it.renewals = &[(LEASE_MS / 3, "")];
            it.happens = &[Break, Delete, SendAway, Disconnect, Refuse];
            it.is_late = true;
        }),
        NONE.with("moves", [4, 8], |it| {
            it.connections = &[1, 1];
            it.keys = 2;
            it.asks = &["BLOCK", "SESSION BLOCK"];
            it.happens = &[Delete, Rename, Swap, SendAway, Disconnect];
        }),
        NONE.with("moves, small bounds", [4, 7], |it| {
            it.connections = &[1, 1];
            it.keys = 2;
            it.asks = &["SHARED SESSION", "SESSION BLOCK"];
            it.happens = &[Break, Rename, Swap, Disconnect];
            it.small_bounds = true;
        }),
        NONE.with("two connections", [4, 9], |it| {
            it.connections = &[2, 2];
            it.asks = &["BLOCK", "HOLD=1 BLOCK", "HOLD=2", "SESSION BLOCK"];
            it.releases = &["", "ALL", "HOLD=1"];
            it.happens = &[Delete, Leave, SendAway, Disconnect];
        }),
        NONE.with("acknowledged, two connections", [6, 11], |it| {
            it.connections = &[2, 1];
            it.asks = &["BLOCK", "HOLD=2", "SESSION BLOCK"];
            it.renewals = &[(LEASE_MS / 3, "")];
            it.happens = &[Leave, SendAway, Disconnect];
            it.acks = 1;
        }),
        NONE.with("paused grants, two connections", [5, 10], |it| {
            it.connections = &[2, 1];
            it.asks = &["BLOCK", "HOLD=2 BLOCK", "SESSION BLOCK"];
            it.releases = &["", "HOLD=1"];
            it.renewals = &[(LEASE_MS / 3, "")];
            it.happens = &[Leave, SendAway, Disconnect, Pause];
        }),
        NONE.with("deadlocks", [4, 7], |it| {
            it.keys = 2;
            it.asks = &["BLOCK", "SHARED BLOCK", "LIMIT=2 BLOCK"];
            it.happens = &[Leave];
        }),
        NONE.with("deadlocks, two connections", [4, 8], |it| {
            it.connections = &[2, 2];
            it.keys = 2;
            it.asks = &["BLOCK", "SHARED BLOCK"];
            it.happens = &[Redisson, Leave];
        }),
        NONE.with("deadlocks, small bounds", [5, 9], |it| {
            it.connections = &[2, 1, 1];
            it.keys = 2;
            it.asks = &["BLOCK"];
            it.happens = &[Leave];
            it.small_bounds = true;
        }),
        NONE.with("deadlocks, other keys unread", [5, 10], |it| {
            it.keys = 2;
            it.asks = &["BLOCK"];
            it.happens = &[Delete, Overwrite, Leave];
            it.reads_other_keys = false;
        }),
        NONE.with("fail-over", [4, 11], |it| {
            it.connections = &[1, 1];
            it.asks = &["BLOCK", "SHARED BLOCK", "SESSION BLOCK"];
            it.happens = &[Delete, Disconnect, FailOver];
        }),
        NONE.with("places", [5, 8], |it| {
            it.asks = &["", "HOLD=1 QUEUE"];
            it.renewals = &[(LEASE_MS, "FENCE=own")];
            it.happens = &[Delete, GoDeaf];
            it.exact_ends = true;
        }),
        NONE.with("places in modes", [4, 7], |it| {
            it.asks = &[
                "HOLD=1 QUEUE",
                "HOLD=1 SHARED QUEUE",
                "HOLD=1 LIMIT=2 QUEUE",
            ];
            it.renewals = &[(LEASE_MS, "FENCE=own")];
            it.happens = &[Delete, GoDeaf];
            it.small_bounds = true;
        }),
        NONE.with("places and blocked waiters", [4, 7], |it| {
            it.connections = &[2, 1];
            it.asks = &[
                "BLOCK",
                "HOLD=1 SHARED QUEUE",
                "HOLD=1 SHARED BLOCK",
                "HOLD=1 SESSION QUEUE",
            ];
            it.releases = &["", "ALL"];
            it.renewals = &[(LEASE_MS, "FENCE=own")];
            it.happens = &[Break, Delete, Leave, SendAway, Disconnect, GoDeaf];
        }),
        NONE.with("places with sessions", [4, 7], |it| {
            it.connections = &[1, 1];
            it.asks = &["BLOCK", "HOLD=1 QUEUE", "HOLD=1 SESSION QUEUE"];
            it.renewals = &[(LEASE_MS, "FENCE=own")];
            it.happens = &[Delete, SendAway, Disconnect, GoDeaf, Refuse];
            it.is_late = true;
            it.exact_ends = true;
        }),
        NONE.with("places and deadlocks", [4, 7], |it| {
            it.connections = &[1, 1];
            it.keys = 2;
            it.asks = &["BLOCK", "HOLD=1 QUEUE", "HOLD=1 SHARED QUEUE"];
            it.happens = &[Overwrite, Rename, Leave, GoDeaf];
        }),
        NONE.with("everything", [2, 5], |it| {
            it.connections = &[2, 1, 1];
            it.keys = 2;
            it.asks = &[
                "",
                "BLOCK",
                "SHARED BLOCK",
                "LIMIT=2 BLOCK",
                "HOLD=2",
                "HOLD=1 BLOCK",
                "SESSION BLOCK",
                "HOLD=1 QUEUE",
                "HOLD=1 SHARED QUEUE",
                "HOLD=1 SESSION QUEUE",
            ];
            it.releases = &["", "ALL", "HOLD=1", "FENCE=own", "FENCE=other"];
            it.renewals = &[
                (LEASE_MS, ""),
                (LEASE_MS / 3, "FENCE=own"),
                (LEASE_MS, "FENCE=other"),
            ];
            it.happens = &[
                Break, Delete, Overwrite, Rename, Swap, Redisson, Leave, SendAway, Disconnect,
                GoDeaf, FailOver, Refuse,
            ];
            it.is_late = true;
            it.exact_ends = true;
        }),
    ]
}
