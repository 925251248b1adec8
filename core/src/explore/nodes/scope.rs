//! Under which conditions nodes are explored, and what is expected of each.

use crate::explore::scope::{NONE, Scope as OneServer, Times};

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
    /// After how many steps exclusion breaks at the soonest. If never, owners exclude each
    /// other, and tokens rise over fail-overs as well.
    pub(super) breaks: Option<usize>,
    /// How far it is followed.
    pub(super) depth: usize,
}

impl Scope {
    /// The scope of each node by itself.
    pub(super) fn of_a_server(&self) -> OneServer {
        OneServer {
            connections: &[1, 1, 1][..self.owners],
            times: Times {
                place: self.place,
                claim: 1,
                acks: self.acks_timeout,
                recheck: 1,
            },
            acks: self.min_replicas[0],
            is_a_node: true,
            ..NONE
        }
    }

    /// One with other conditions, in which exclusion holds.
    fn holds(mut self, name: &'static str, change: impl FnOnce(&mut Self)) -> Self {
        self.name = name;
        change(&mut self);
        self
    }

    /// The same, but exclusion breaks after so many steps.
    fn breaks(self, steps: usize, name: &'static str, change: impl FnOnce(&mut Self)) -> Self {
        let breaks = Some(steps);
        Self { breaks, ..self }.holds(name, change)
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.min_replicas_to_write != [0, 0]
    }
}

/// No search goes this far.
const TO_THE_END: usize = 1000;

const PLAIN: Scope = Scope {
    name: "",
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
    breaks: None,
    depth: TO_THE_END,
};

/// Two nodes: what one tells, the other one has acknowledged.
const ACKS: Scope = Scope {
    min_replicas: [1, 1],
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
pub(super) fn scopes() -> Vec<Scope> {
    vec![
        PLAIN.breaks(3, "plain", |_| {}),
        PLAIN.breaks(3, "plain, no lag", |it| it.lag = 0),
        PLAIN.breaks(3, "plain, places", |it| {
            it.place = 1;
            it.owners = 2;
        }),
        ACKS.holds("acks", |_| {}),
        ACKS.holds("acks, two fail-overs", |it| it.promotions = 2),
        ACKS.holds("acks, waits", |it| {
            it.waits = true;
            it.leases = &[1];
            it.lag = 1;
        }),
        ACKS.holds("acks, fewer after a fail-over", |it| {
            it.min_replicas = [1, 0]
        }),
        ACKS.holds("acks, a clock ahead, kept in hand", |it| {
            it.clocks = &[0, 1];
            it.in_hand = 1;
            it.leases = &[2];
        }),
        ACKS.holds("acks, a clock behind, kept in hand", |it| {
            it.clocks = &[1, 0];
            it.in_hand = 1;
            it.leases = &[2];
        }),
        ACKS_OF_TWO.holds("acks, three nodes", |_| {}),
        ACKS_OF_TWO.holds("acks, three nodes, two fail-overs", |it| it.promotions = 2),
        ACKS_OF_TWO.holds("acks, three nodes, fewer after a fail-over", |it| {
            it.min_replicas = [2, 1]
        }),
        ACKS_OF_PLACES.holds("acks, places", |_| {}),
        ACKS_OF_PLACES.holds("acks, places that are not heard", |it| {
            it.goes_deaf = true;
            it.depth = 11;
        }),
        ACKS_OF_PLACES.holds("acks, places, two fail-overs", |it| {
            it.promotions = 2;
            it.depth = 11;
        }),
        ACKS_OF_PLACES.holds("acks, places, three nodes", |it| {
            it.clocks = &[0, 0, 0];
            it.min_replicas = [2, 2];
            it.depth = 10;
        }),
        ACKS_OF_PLACES.breaks(8, "acks, places, told by old ones", |it| {
            it.tells_by_old_acks = true
        }),
        ACKS.breaks(7, "acks, a clock ahead", |it| it.clocks = &[0, 1]),
        ACKS.breaks(7, "acks, a clock ahead by more than in hand", |it| {
            it.clocks = &[0, 2];
            it.in_hand = 1;
            it.leases = &[2];
        }),
        ACKS.breaks(7, "acks, a replica restarts", |it| it.restarts = true),
        ACKS.breaks(8, "acks, told by old ones", |it| {
            it.tells_by_old_acks = true
        }),
        ACKS.breaks(5, "acks, fewer after a fail-over, and another one", |it| {
            it.min_replicas = [1, 0];
            it.promotions = 2;
        }),
        ACKS_OF_TWO.breaks(6, "acks, three nodes, one acknowledges", |it| {
            it.min_replicas = [1, 1]
        }),
        FENCED.holds("self-fencing", |_| {}),
        FENCED.holds("self-fencing, two fail-overs", |it| it.promotions = 2),
        FENCED.holds("self-fencing, waits", |it| {
            it.waits = true;
            it.leases = &[1];
            it.lag = 1;
            it.grace = 3;
        }),
        FENCED_PLACES.holds("self-fencing, places", |_| {}),
        FENCED_PLACES.holds("self-fencing, places that are not heard", |it| {
            it.goes_deaf = true;
            it.depth = 13;
        }),
        FENCED.holds("self-fencing, longer times", |it| {
            it.leases = &[1, 3];
            it.max_lag = 2;
            it.grace = 6;
        }),
        FENCED.holds("self-fencing, a clock ahead", |it| it.clocks = &[0, 3]),
        FENCED.holds("self-fencing, a clock behind", |it| it.clocks = &[3, 0]),
        FENCED_BY_TWO.holds("self-fencing, three nodes", |_| {}),
        FENCED_BY_TWO.holds("self-fencing, three nodes, two fail-overs", |it| {
            it.promotions = 2
        }),
        FENCED.holds("self-fencing, a replica restarts", |it| it.restarts = true),
        FENCED.holds("self-fencing, late acknowledgements, longer grace", |it| {
            it.ack_delay = 1;
            it.grace = 5;
        }),
        FENCED.holds(
            "self-fencing, fewer after a fail-over, late renewals",
            |it| {
                it.min_replicas_to_write = [1, 0];
                it.no_renewal = 2;
            },
        ),
        FENCED_BY_TWO.holds(
            "self-fencing, three nodes, fewer after, late renewals",
            |it| {
                it.min_replicas_to_write = [2, 1];
                it.no_renewal = 2;
            },
        ),
        FENCED.breaks(7, "self-fencing, fewer after a fail-over", |it| {
            it.min_replicas_to_write = [1, 0]
        }),
        FENCED.breaks(7, "self-fencing, grace too short", |it| it.grace = 3),
        FENCED.breaks(7, "self-fencing, grace for newcomers alone", |it| {
            it.reenters_in_grace = true
        }),
        FENCED.breaks(8, "self-fencing, a lease beyond the longest", |it| {
            it.leases = &[1, 2, 3]
        }),
        FENCED.breaks(8, "self-fencing, late acknowledgements", |it| {
            it.ack_delay = 1
        }),
        FENCED.breaks(7, "self-fencing, what is over is renewed", |it| {
            it.renews_what_is_over = true
        }),
        FENCED.breaks(9, "self-fencing, hand-offs pass it", |it| {
            it.waits = true;
            it.leases = &[1];
            it.lag = 1;
            it.grace = 3;
            it.binds_hand_offs = false;
        }),
        FENCED_PLACES.breaks(9, "self-fencing, places, hand-offs pass it", |it| {
            it.leases = &[1];
            it.place = 4;
            it.grace = 3;
            it.binds_hand_offs = false;
        }),
        FENCED_BY_TWO.breaks(7, "self-fencing, three nodes, one is enough", |it| {
            it.min_replicas_to_write = [1, 1];
            it.no_renewal = 2;
        }),
    ]
}
