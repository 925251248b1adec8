//! Under which conditions nodes are explored, and what is expected of each.

/// What can happen, and what is relied upon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) name: &'static str,
    /// By how many ticks the clock of each node is ahead.
    pub(super) clocks: &'static [i64],
    pub(super) owners: usize,
    /// How many promotions there are.
    pub(super) promotions: u8,
    /// The leases that are asked for, in ticks.
    pub(super) leases: &'static [i64],
    /// How much of its lease a client keeps in hand, in ticks.
    pub(super) in_hand: i64,
    /// Who can't have the lock waits for it, blocked.
    pub(super) waits: bool,
    /// For how many ticks a place in the queue is asked for; 0: for none.
    pub(super) place: i64,
    /// At times nobody hears what is published.
    pub(super) goes_deaf: bool,
    /// How many writes can be on their way to a replica. One that is further behind
    /// gets the whole data set, or nothing. 0: a write is everywhere at once.
    pub(super) lag: usize,
    /// Whether replicas restart, and have lost their data.
    pub(super) restarts: bool,
    /// Clients renew what is over by their own count, or what they have released.
    pub(super) renews_what_is_over: bool,
    /// `lock.min-replicas`: of the first primary, and of one that was promoted.
    pub(super) min_replicas: [usize; 2],
    /// `lock.replicas-timeout`, in ticks.
    pub(super) acks_timeout: i64,
    /// A hold that is confirmed without a write is told by what was acknowledged before.
    pub(super) tells_by_old_acks: bool,
    /// `min-replicas-to-write`: of the first primary, and of one that was promoted. A
    /// primary that needs none does not fence itself.
    pub(super) min_replicas_to_write: [usize; 2],
    /// For how many ticks a silent replica counts as a good one.
    pub(super) max_lag: i64,
    /// How late an acknowledgement can be heard of, in ticks.
    pub(super) ack_delay: i64,
    /// For how many ticks after its promotion a primary grants nothing.
    pub(super) grace: i64,
    /// For how many ticks after its promotion a primary renews nothing.
    pub(super) no_renewal: i64,
    /// What the module hands on by itself is fenced too.
    pub(super) binds_hand_offs: bool,
    /// Whether who holds the lock is served within the grace period.
    pub(super) reenters_in_grace: bool,
    pub(super) expected: Expected,
    /// How far it is followed.
    pub(super) depth: usize,
}

impl Scope {
    pub(super) fn is_fenced(&self) -> bool {
        self.min_replicas_to_write != [0, 0]
    }
}

/// No search goes this far.
const TO_THE_END: usize = 1000;

/// What a search is to come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Owners exclude each other, and tokens rise over fail-overs as well.
    Holds,
    /// Exclusion breaks, after this many steps at the soonest.
    Breaks(usize),
}

use Expected::{Breaks, Holds};

const PLAIN: Scope = Scope {
    name: "plain",
    clocks: &[0, 0],
    owners: 3,
    promotions: 1,
    leases: &[1, 2],
    in_hand: 0,
    waits: false,
    place: 0,
    goes_deaf: false,
    lag: 2,
    restarts: false,
    renews_what_is_over: false,
    min_replicas: [0, 0],
    acks_timeout: i64::MAX,
    tells_by_old_acks: false,
    min_replicas_to_write: [0, 0],
    max_lag: 1,
    ack_delay: 0,
    grace: 0,
    no_renewal: 0,
    binds_hand_offs: true,
    reenters_in_grace: false,
    expected: Breaks(3),
    depth: TO_THE_END,
};

/// Two nodes: what one tells, the other one has acknowledged.
const ACKS: Scope = Scope {
    min_replicas: [1, 1],
    expected: Holds,
    ..PLAIN
};

/// The same with three nodes.
const ACKS_OF_TWO: Scope = Scope {
    clocks: &[0, 0, 0],
    owners: 2,
    leases: &[1],
    lag: 1,
    min_replicas: [2, 2],
    ..ACKS
};

/// Places in the queue. A lease that is asked for is longer than the first one.
const ACKS_OF_PLACES: Scope = Scope {
    owners: 2,
    leases: &[2],
    place: 2,
    lag: 1,
    acks_timeout: 0,
    depth: 12,
    ..ACKS
};

/// Two nodes: one that does not hear of the other one writes nothing.
const FENCED: Scope = Scope {
    min_replicas_to_write: [1, 1],
    // The longest lease, the lag, and one tick more.
    grace: 4,
    expected: Holds,
    ..PLAIN
};

/// Places in the queue.
const FENCED_PLACES: Scope = Scope {
    owners: 2,
    leases: &[2],
    place: 2,
    lag: 1,
    depth: 15,
    ..FENCED
};

/// The same with three nodes.
const FENCED_BY_TWO: Scope = Scope {
    clocks: &[0, 0, 0],
    leases: &[1],
    lag: 1,
    min_replicas_to_write: [2, 2],
    grace: 3,
    ..FENCED
};

/// All scopes: each set of conditions, and what becomes of it without one of them.
pub(super) const SCOPES: &[Scope] = &[
    PLAIN,
    Scope {
        name: "plain, no lag",
        lag: 0,
        ..PLAIN
    },
    Scope {
        name: "plain, places",
        place: 1,
        owners: 2,
        ..PLAIN
    },
    Scope {
        name: "acks",
        ..ACKS
    },
    Scope {
        name: "acks, two fail-overs",
        promotions: 2,
        ..ACKS
    },
    Scope {
        name: "acks, waits",
        waits: true,
        leases: &[1],
        lag: 1,
        ..ACKS
    },
    Scope {
        name: "acks, fewer after a fail-over",
        min_replicas: [1, 0],
        ..ACKS
    },
    Scope {
        name: "acks, a clock ahead, kept in hand",
        clocks: &[0, 1],
        in_hand: 1,
        leases: &[2],
        ..ACKS
    },
    Scope {
        name: "acks, a clock behind, kept in hand",
        clocks: &[1, 0],
        in_hand: 1,
        leases: &[2],
        ..ACKS
    },
    Scope {
        name: "acks, three nodes",
        ..ACKS_OF_TWO
    },
    Scope {
        name: "acks, three nodes, two fail-overs",
        promotions: 2,
        ..ACKS_OF_TWO
    },
    Scope {
        name: "acks, three nodes, fewer after a fail-over",
        min_replicas: [2, 1],
        ..ACKS_OF_TWO
    },
    Scope {
        name: "acks, places",
        ..ACKS_OF_PLACES
    },
    Scope {
        name: "acks, places that are not heard",
        goes_deaf: true,
        depth: 11,
        ..ACKS_OF_PLACES
    },
    Scope {
        name: "acks, places, two fail-overs",
        promotions: 2,
        depth: 11,
        ..ACKS_OF_PLACES
    },
    Scope {
        name: "acks, places, three nodes",
        clocks: &[0, 0, 0],
        min_replicas: [2, 2],
        depth: 10,
        ..ACKS_OF_PLACES
    },
    Scope {
        name: "acks, places, told by old ones",
        tells_by_old_acks: true,
        expected: Breaks(8),
        ..ACKS_OF_PLACES
    },
    Scope {
        name: "acks, a clock ahead",
        clocks: &[0, 1],
        expected: Breaks(7),
        ..ACKS
    },
    Scope {
        name: "acks, a clock ahead by more than in hand",
        clocks: &[0, 2],
        in_hand: 1,
        leases: &[2],
        expected: Breaks(7),
        ..ACKS
    },
    Scope {
        name: "acks, a replica restarts",
        restarts: true,
        expected: Breaks(7),
        ..ACKS
    },
    Scope {
        name: "acks, told by old ones",
        tells_by_old_acks: true,
        expected: Breaks(8),
        ..ACKS
    },
    Scope {
        name: "acks, fewer after a fail-over, and another one",
        min_replicas: [1, 0],
        promotions: 2,
        expected: Breaks(5),
        ..ACKS
    },
    Scope {
        name: "acks, three nodes, one acknowledges",
        min_replicas: [1, 1],
        expected: Breaks(6),
        ..ACKS_OF_TWO
    },
    Scope {
        name: "self-fencing",
        ..FENCED
    },
    Scope {
        name: "self-fencing, two fail-overs",
        promotions: 2,
        ..FENCED
    },
    Scope {
        name: "self-fencing, waits",
        waits: true,
        leases: &[1],
        lag: 1,
        grace: 3,
        ..FENCED
    },
    Scope {
        name: "self-fencing, places",
        ..FENCED_PLACES
    },
    Scope {
        name: "self-fencing, places that are not heard",
        goes_deaf: true,
        depth: 13,
        ..FENCED_PLACES
    },
    Scope {
        name: "self-fencing, longer times",
        leases: &[1, 3],
        max_lag: 2,
        grace: 6,
        ..FENCED
    },
    Scope {
        name: "self-fencing, a clock ahead",
        clocks: &[0, 3],
        ..FENCED
    },
    Scope {
        name: "self-fencing, a clock behind",
        clocks: &[3, 0],
        ..FENCED
    },
    Scope {
        name: "self-fencing, three nodes",
        ..FENCED_BY_TWO
    },
    Scope {
        name: "self-fencing, three nodes, two fail-overs",
        promotions: 2,
        ..FENCED_BY_TWO
    },
    Scope {
        name: "self-fencing, a replica restarts",
        restarts: true,
        ..FENCED
    },
    Scope {
        name: "self-fencing, late acknowledgements, longer grace",
        ack_delay: 1,
        grace: 5,
        ..FENCED
    },
    Scope {
        name: "self-fencing, fewer after a fail-over, late renewals",
        min_replicas_to_write: [1, 0],
        no_renewal: 2,
        ..FENCED
    },
    Scope {
        name: "self-fencing, three nodes, fewer after, late renewals",
        min_replicas_to_write: [2, 1],
        no_renewal: 2,
        ..FENCED_BY_TWO
    },
    Scope {
        name: "self-fencing, fewer after a fail-over",
        min_replicas_to_write: [1, 0],
        expected: Breaks(7),
        ..FENCED
    },
    Scope {
        name: "self-fencing, grace too short",
        grace: 3,
        expected: Breaks(7),
        ..FENCED
    },
    Scope {
        name: "self-fencing, grace for newcomers alone",
        reenters_in_grace: true,
        expected: Breaks(7),
        ..FENCED
    },
    Scope {
        name: "self-fencing, a lease beyond the longest",
        leases: &[1, 2, 3],
        expected: Breaks(8),
        ..FENCED
    },
    Scope {
        name: "self-fencing, late acknowledgements",
        ack_delay: 1,
        expected: Breaks(8),
        ..FENCED
    },
    Scope {
        name: "self-fencing, what is over is renewed",
        renews_what_is_over: true,
        expected: Breaks(7),
        ..FENCED
    },
    Scope {
        name: "self-fencing, hand-offs pass it",
        waits: true,
        leases: &[1],
        lag: 1,
        grace: 3,
        binds_hand_offs: false,
        expected: Breaks(9),
        ..FENCED
    },
    Scope {
        name: "self-fencing, places, hand-offs pass it",
        leases: &[1],
        place: 4,
        grace: 3,
        binds_hand_offs: false,
        expected: Breaks(9),
        ..FENCED_PLACES
    },
    Scope {
        name: "self-fencing, three nodes, one is enough",
        min_replicas_to_write: [1, 1],
        no_renewal: 2,
        expected: Breaks(7),
        ..FENCED_BY_TWO
    },
];
