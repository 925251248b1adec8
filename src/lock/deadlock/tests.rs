use proptest::prelude::*;

use super::*;
use crate::error::LockError;
use crate::lock::fence::FenceClock;
use crate::lock::record::Effects;
use crate::lock::record::{Acquired, Lock, Now};
use crate::lock::request::{AcquireRequest, Lease, Limit, ReleaseExtent, ReleaseRequest};
use crate::lock::waiters::Waiter;

const OWNERS: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"\xff'"];
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;
const BINARY: usize = 5;

/// The last one is in another database.
const KEYS: [KeyRef<'static>; 4] = [key(0, b"k"), key(0, b"l"), key(0, b"m"), key(1, b"k")];
const K: usize = 0;
const L: usize = 1;
const M: usize = 2;
const K_IN_DB_1: usize = 3;

const fn key(db: i32, name: &[u8]) -> KeyRef<'_> {
    KeyRef { db, name }
}

fn owner(who: usize) -> Owner {
    Owner::new(OWNERS[who]).unwrap()
}

fn limit(count: i64) -> Limit {
    Limit::from_count(count).unwrap()
}

/// Locks and those who wait for them, changed as the manager changes them.
#[derive(Default)]
struct World {
    locks: [Lock; KEYS.len()],
    queues: WaitQueues<WaiterId>,
    fences: FenceClock,
    /// The queues in plain words: each owner once, where it stands, with what it
    /// asked for.
    lines: [Vec<(usize, Vec<WaiterId>)>; KEYS.len()],
}

#[derive(Debug)]
enum Outcome {
    Granted,
    Waits(WaiterId),
    Deadlock(Vec<Link>),
    /// Its owner holds the lock in a looser mode.
    Upgrade,
}

impl World {
    fn acquire(&mut self, who: usize, key: usize, limit: Limit) -> Outcome {
        let request = AcquireRequest {
            owner: owner(who),
            lease: Lease::LONGEST,
            hold: None,
            limit,
            session: None,
        };
        let in_turn = !self.queues.contended(KEYS[key]);
        match self.try_acquire(key, &request, in_turn) {
            Ok(Acquired::Granted(_)) => return Outcome::Granted,
            Ok(Acquired::Busy) => {}
            Err(LockError::Upgrade) => return Outcome::Upgrade,
            Err(error) => panic!("{error}"),
        }
        if let Some(cycle) = self.deadlock(who, key, limit) {
            return Outcome::Deadlock(cycle);
        }
        let pushed = self.queues.push(KEYS[key], request, 0, usize::MAX, |id| id);
        let id = pushed.unwrap();
        match self.lines[key].iter_mut().find(|place| place.0 == who) {
            Some((_, ids)) => ids.push(id),
            None => self.lines[key].push((who, vec![id])),
        }
        self.note_holders(key);
        Outcome::Waits(id)
    }

    fn deadlock(&self, who: usize, key: usize, limit: Limit) -> Option<Vec<Link>> {
        let holders = holders_of(self.locks[key].holders());
        let certain = Certain::from_iter([(KEYS[key].into(), holders)]);
        let wait = Wait {
            owner: &owner(who),
            key: KEYS[key],
            limit,
            place: None,
        };
        find(&self.queues, wait, &certain)
    }

    fn try_acquire(
        &mut self,
        key: usize,
        request: &AcquireRequest,
        in_turn: bool,
    ) -> Result<Acquired, LockError> {
        let (now, fences) = (Now { us: 1 }, &mut self.fences);
        self.locks[key].acquire(request, in_turn, now, fences, &mut Effects::new())
    }

    fn release(&mut self, who: usize, key: usize, extent: ReleaseExtent) {
        let request = ReleaseRequest {
            owner: owner(who),
            fence: None,
            extent,
        };
        let released = self.locks[key].release(&request, &mut Effects::new());
        released.unwrap();
        self.hand_on(key);
    }

    fn leave(&mut self, key: usize, id: WaiterId) {
        assert!(self.queues.remove(KEYS[key], id).is_some());
        self.forget(key, id);
    }

    fn hand_on(&mut self, key: usize) {
        while let Some(first) = self.queues.first(KEYS[key])
            && self.locks[key].admits(first.request.limit)
            && let Some(waiter) = self.queues.take_first(KEYS[key])
        {
            let owner = waiter.request.owner.clone();
            assert_eq!(OWNERS[self.lines[key][0].0], owner.as_bytes());
            self.serve(key, &waiter);
            while let Some(waiter) = self.queues.take_first_of(KEYS[key], &owner) {
                self.serve(key, &waiter);
            }
        }
        self.note_holders(key);
    }

    /// A request for a stricter mode than the one that its owner was granted a
    /// moment ago is refused, and is done with all the same.
    fn serve(&mut self, key: usize, waiter: &Waiter<WaiterId>) {
        let served = self.try_acquire(key, &waiter.request, true);
        assert!(!matches!(served, Ok(Acquired::Busy)));
        self.forget(key, waiter.ticket);
    }

    fn note_holders(&mut self, key: usize) {
        let holders = self.locks[key].holders().iter();
        self.queues.note_holders(KEYS[key], holders);
    }

    fn forget(&mut self, key: usize, id: WaiterId) {
        for (_, ids) in &mut self.lines[key] {
            ids.retain(|&waiting| waiting != id);
        }
        self.lines[key].retain(|(_, ids)| !ids.is_empty());
    }

    fn is_in_line(&self, who: usize, key: usize) -> bool {
        self.lines[key].iter().any(|place| place.0 == who)
    }

    fn holds(&self, who: usize, key: usize) -> bool {
        let mut holders = self.locks[key].holders().iter();
        holders.any(|holder| holder.owner.as_bytes() == OWNERS[who])
    }
}

mod what_is_a_deadlock {
    use super::*;

    /// Two owners that hold a lock each.
    fn a_holds_k_and_b_holds_l() -> World {
        let mut world = World::default();
        take(&mut world, A, K, Limit::EXCLUSIVE);
        take(&mut world, B, L, Limit::EXCLUSIVE);
        world
    }

    #[track_caller]
    fn take(world: &mut World, who: usize, key: usize, limit: Limit) {
        let outcome = world.acquire(who, key, limit);
        assert!(matches!(outcome, Outcome::Granted), "{outcome:?}");
    }

    #[track_caller]
    fn wait(world: &mut World, who: usize, key: usize, limit: Limit) -> WaiterId {
        match world.acquire(who, key, limit) {
            Outcome::Waits(id) => id,
            outcome => panic!("{outcome:?}"),
        }
    }

    #[track_caller]
    fn check_deadlock(world: &mut World, who: usize, key: usize, limit: Limit, told: &str) {
        match world.acquire(who, key, limit) {
            Outcome::Deadlock(cycle) => assert_eq!(spell(&cycle, |_| true), told),
            outcome => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn who_waits_for_somebody_that_waits_for_nothing_is_let_wait() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, C, K, Limit::EXCLUSIVE);
        wait(&mut world, D, K, Limit::EXCLUSIVE);
        wait(&mut world, C, L, Limit::EXCLUSIVE);
    }

    #[test]
    fn two_that_wait_for_each_other() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        let told = "'b' waits for 'k' held by 'a', 'a' waits for 'l' held by 'b'";
        check_deadlock(&mut world, B, K, Limit::EXCLUSIVE, told);
        // Refused, it waits for nobody, and others may wait for it.
        wait(&mut world, C, K, Limit::EXCLUSIVE);
    }

    #[test]
    fn three_that_wait_in_a_ring() {
        let mut world = a_holds_k_and_b_holds_l();
        take(&mut world, C, M, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        wait(&mut world, B, M, Limit::EXCLUSIVE);
        let told = "'c' waits for 'k' held by 'a', 'a' waits for 'l' held by 'b', \
                    'b' waits for 'm' held by 'c'";
        check_deadlock(&mut world, C, K, Limit::EXCLUSIVE, told);
    }

    #[test]
    fn of_two_ways_back_the_shorter_one_is_told() {
        let mut world = World::default();
        for who in [C, A] {
            take(&mut world, who, K, Limit::SHARED);
        }
        take(&mut world, D, L, Limit::EXCLUSIVE);
        take(&mut world, A, M, Limit::EXCLUSIVE);
        // 'd' would wait for 'c' as well, which waits for 'a'.
        wait(&mut world, C, M, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        let told = "'d' waits for 'k' held by 'a', 'a' waits for 'l' held by 'd'";
        check_deadlock(&mut world, D, K, Limit::EXCLUSIVE, told);
    }

    #[test]
    fn a_ring_that_the_newcomer_would_only_wait_for_is_not_its_own() {
        // What detection that was switched off let happen.
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        let request = AcquireRequest {
            owner: owner(B),
            lease: Lease::LONGEST,
            hold: None,
            limit: Limit::EXCLUSIVE,
            session: None,
        };
        let pushed = world.queues.push(KEYS[K], request, 0, usize::MAX, |id| id);
        pushed.unwrap();
        world.note_holders(K);
        assert_eq!(world.deadlock(C, K, Limit::EXCLUSIVE), None);
    }

    #[test]
    fn every_holder_of_a_shared_lock_is_waited_for() {
        for blocker in [A, B, C] {
            let mut world = World::default();
            for who in [A, B, C] {
                take(&mut world, who, K, Limit::SHARED);
            }
            take(&mut world, D, L, Limit::EXCLUSIVE);
            wait(&mut world, blocker, L, Limit::EXCLUSIVE);
            let name = OWNERS[blocker].escape_ascii();
            let told =
                format!("'d' waits for 'k' held by '{name}', '{name}' waits for 'l' held by 'd'");
            check_deadlock(&mut world, D, K, Limit::EXCLUSIVE, &told);
        }
    }

    #[test]
    fn who_gets_in_beside_the_holders_waits_for_nobody() {
        let mut world = World::default();
        take(&mut world, A, K, limit(2));
        take(&mut world, B, L, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        take(&mut world, B, K, limit(2));
    }

    #[test]
    fn one_of_several_permits_is_worth_waiting_for() {
        let mut world = World::default();
        take(&mut world, A, K, limit(2));
        take(&mut world, C, K, limit(2));
        take(&mut world, B, L, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        // 'c' may give its permit back.
        wait(&mut world, B, K, limit(2));
    }

    #[test]
    fn who_waits_for_a_permit_is_no_link_of_a_cycle() {
        let mut world = World::default();
        take(&mut world, A, K, limit(2));
        take(&mut world, C, K, limit(2));
        take(&mut world, B, L, Limit::EXCLUSIVE);
        wait(&mut world, B, K, limit(2));
        wait(&mut world, A, L, Limit::EXCLUSIVE);
    }

    #[test]
    fn behind_a_writer_every_reader_is_waited_for() {
        let mut world = World::default();
        take(&mut world, A, K, Limit::SHARED);
        take(&mut world, C, K, Limit::SHARED);
        take(&mut world, B, L, Limit::EXCLUSIVE);
        wait(&mut world, D, K, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        let told = "'b' waits for 'k' held by 'a', 'a' waits for 'l' held by 'b'";
        check_deadlock(&mut world, B, K, Limit::SHARED, told);
    }

    #[test]
    fn readers_that_are_let_in_together_do_not_wait_for_each_other() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, C, K, Limit::SHARED);
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        wait(&mut world, B, K, Limit::SHARED);
        // A writer between them keeps them apart.
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, C, K, Limit::SHARED);
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        wait(&mut world, D, K, Limit::EXCLUSIVE);
        let told = "'b' waits for 'k' behind 'c', 'c' waits for 'l' held by 'b'";
        check_deadlock(&mut world, B, K, Limit::SHARED, told);
    }

    #[test]
    fn a_reader_waits_for_the_one_that_holds_all_alone() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        let told = "'b' waits for 'k' held by 'a', 'a' waits for 'l' held by 'b'";
        check_deadlock(&mut world, B, K, Limit::SHARED, told);
    }

    #[test]
    fn who_waits_already_can_be_checked_in_its_place() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        let request = AcquireRequest {
            owner: owner(B),
            lease: Lease::LONGEST,
            hold: None,
            limit: Limit::EXCLUSIVE,
            session: None,
        };
        let pushed = world.queues.push(KEYS[K], request, 0, usize::MAX, |id| id);
        let id = pushed.unwrap();
        world.note_holders(K);
        let in_place = Wait {
            owner: &owner(B),
            key: KEYS[K],
            limit: Limit::EXCLUSIVE,
            place: Some(id),
        };
        let found = find(&world.queues, in_place, &Certain::new()).unwrap();
        let told = "'b' waits for 'k' held by 'a', 'a' waits for 'l' held by 'b'";
        assert_eq!(spell(&found, |_| true), told);
        // What is certain counts more than what was noted.
        let certain = Certain::from_iter([(KEYS[L].into(), Holders::new())]);
        assert_eq!(find(&world.queues, in_place, &certain), None);
    }

    #[test]
    fn whoever_queued_before_is_waited_for() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, C, K, Limit::EXCLUSIVE);
        // 'c' waits for 'l' as well, and so for 'b'.
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        let told = "'b' waits for 'k' behind 'c', 'c' waits for 'l' held by 'b'";
        check_deadlock(&mut world, B, K, Limit::EXCLUSIVE, told);
    }

    #[test]
    fn the_newcomer_may_stand_in_front_of_whom_it_would_wait_for() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, C, K, Limit::EXCLUSIVE);
        wait(&mut world, B, K, Limit::EXCLUSIVE);
        let told = "'c' waits for 'l' held by 'b', 'b' waits for 'k' behind 'c'";
        check_deadlock(&mut world, C, L, Limit::EXCLUSIVE, told);
    }

    #[test]
    fn whoever_queued_later_is_not_waited_for() {
        let mut world = a_holds_k_and_b_holds_l();
        take(&mut world, C, M, Limit::EXCLUSIVE);
        wait(&mut world, C, K, Limit::EXCLUSIVE);
        wait(&mut world, D, K, Limit::EXCLUSIVE);
        wait(&mut world, D, L, Limit::EXCLUSIVE);
        // 'd' waits for 'b', but 'c' does not wait for 'd'.
        wait(&mut world, B, M, Limit::EXCLUSIVE);
    }

    #[test]
    fn who_queues_for_this_very_key_gets_no_alarm() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
    }

    #[test]
    fn who_is_in_line_already_gets_no_alarm_for_those_behind() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        // 'c' waits for 'a' here and there, but 'a' does not wait for 'c'.
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        wait(&mut world, C, K, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
    }

    #[test]
    fn who_gave_its_place_up_is_waited_for_no_more() {
        let mut world = a_holds_k_and_b_holds_l();
        let id = wait(&mut world, A, L, Limit::EXCLUSIVE);
        world.leave(L, id);
        wait(&mut world, B, K, Limit::EXCLUSIVE);
    }

    #[test]
    fn a_lock_that_was_handed_on_is_held_by_who_got_it() {
        let mut world = a_holds_k_and_b_holds_l();
        wait(&mut world, C, K, Limit::EXCLUSIVE);
        wait(&mut world, D, K, Limit::EXCLUSIVE);
        world.release(A, K, ReleaseExtent::One);
        wait(&mut world, C, L, Limit::EXCLUSIVE);
        wait(&mut world, A, K, Limit::EXCLUSIVE);
        let told = "'b' waits for 'k' held by 'c', 'c' waits for 'l' held by 'b'";
        check_deadlock(&mut world, B, K, Limit::EXCLUSIVE, told);
    }

    #[test]
    fn keys_of_the_same_name_in_other_databases_are_other_keys() {
        let mut world = a_holds_k_and_b_holds_l();
        take(&mut world, C, K_IN_DB_1, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        wait(&mut world, B, K_IN_DB_1, Limit::EXCLUSIVE);
    }

    #[test]
    fn a_queue_is_searched_again_from_further_back() {
        const E: usize = 4;
        let mut world = World::default();
        take(&mut world, A, K, Limit::SHARED);
        take(&mut world, B, K, Limit::SHARED);
        take(&mut world, D, L, Limit::EXCLUSIVE);
        take(&mut world, E, M, Limit::EXCLUSIVE);
        for who in [A, C, B] {
            wait(&mut world, who, L, Limit::EXCLUSIVE);
        }
        wait(&mut world, C, M, Limit::EXCLUSIVE);
        // 'a' stands before 'c', and 'b' behind it.
        let told = "'e' waits for 'k' held by 'b', 'b' waits for 'l' behind 'c', \
                    'c' waits for 'm' held by 'e'";
        check_deadlock(&mut world, E, K, Limit::EXCLUSIVE, told);
    }

    #[test]
    fn keys_that_the_reader_may_not_read_are_not_named() {
        let mut world = a_holds_k_and_b_holds_l();
        take(&mut world, C, M, Limit::EXCLUSIVE);
        wait(&mut world, A, L, Limit::EXCLUSIVE);
        wait(&mut world, B, M, Limit::EXCLUSIVE);
        let cycle = world.deadlock(C, K, Limit::EXCLUSIVE).unwrap();
        let told = "'c' waits for 'k' held by 'a', \
                    others wait for keys that this user may not read";
        assert_eq!(spell(&cycle, |key| key == KEYS[K]), told);
    }

    #[test]
    fn names_are_spelled_so_that_they_can_be_read() {
        let mut world = World::default();
        take(&mut world, BINARY, K, Limit::EXCLUSIVE);
        take(&mut world, A, M, Limit::EXCLUSIVE);
        wait(&mut world, BINARY, M, Limit::EXCLUSIVE);
        let told = r"'a' waits for 'k' held by '\xff\'', '\xff\'' waits for 'm' held by 'a'";
        check_deadlock(&mut world, A, K, Limit::EXCLUSIVE, told);
    }
}

/// Random lock graphs, as they arise, against a search that looks at everything.
mod against_brute_force {
    use std::cell::Cell;

    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Acquire {
            who: usize,
            key: usize,
            limit: Limit,
        },
        Release {
            who: usize,
            key: usize,
            extent: ReleaseExtent,
        },
        /// Its time is up, or its client is gone.
        Leave { waiter: prop::sample::Index },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let who = || 0..OWNERS.len();
        let key = || 0..KEYS.len();
        let limit = prop_oneof![
            4 => Just(Limit::EXCLUSIVE),
            2 => Just(Limit::SHARED),
            3 => (2..=4_i64).prop_map(limit),
        ];
        let extent = prop_oneof![Just(ReleaseExtent::One), Just(ReleaseExtent::All)];
        let step = prop_oneof![
            8 => (who(), key(), limit)
                .prop_map(|(who, key, limit)| Step::Acquire { who, key, limit }),
            3 => (who(), key(), extent)
                .prop_map(|(who, key, extent)| Step::Release { who, key, extent }),
            1 => any::<prop::sample::Index>().prop_map(|waiter| Step::Leave { waiter }),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// A set of owners, a bit for each.
    type Owners = u8;

    const fn only(who: usize) -> Owners {
        1 << who
    }

    /// Whom each owner waits for.
    type Graph = [Owners; OWNERS.len()];

    impl World {
        fn run(&mut self, step: &Step) -> Option<Outcome> {
            match *step {
                Step::Acquire { who, key, limit } => return Some(self.acquire(who, key, limit)),
                Step::Release { who, key, extent } => self.release(who, key, extent),
                Step::Leave { waiter } => {
                    let waiting: Vec<(usize, WaiterId)> = (0..KEYS.len())
                        .flat_map(|key| self.free_to_leave(key).map(move |id| (key, id)))
                        .collect();
                    if !waiting.is_empty() {
                        let &(key, id) = waiter.get(&waiting);
                        self.leave(key, id);
                        self.hand_on(key);
                    }
                }
            }
            None
        }

        /// The requests that can leave without their owner losing its place to
        /// somebody behind them.
        fn free_to_leave(&self, key: usize) -> impl Iterator<Item = WaiterId> {
            let of_owner = |(_, ids): &(usize, Vec<WaiterId>)| match &ids[..] {
                [only] => vec![*only],
                [_, later @ ..] => later.to_vec(),
                [] => Vec::new(),
            };
            self.lines[key].iter().flat_map(of_owner)
        }

        fn holders_of(&self, key: usize) -> Owners {
            let holding = (0..OWNERS.len()).filter(|&who| self.holds(who, key));
            holding.fold(0, |holders, who| holders | only(who))
        }

        /// Whether a request can't be granted before every holder is gone, in
        /// front of which these are queued.
        fn needs_all_gone(&self, key: usize, limit: Limit, in_front: &[WaiterId]) -> bool {
            let mut holders = self.locks[key].holders().iter();
            limit == Limit::EXCLUSIVE
                || self.any_alone(key, in_front)
                || holders.all(|holder| holder.limit == Limit::EXCLUSIVE)
        }

        fn requests(&self, key: usize) -> Vec<WaiterId> {
            let queued = self.queues.waiters(KEYS[key]);
            queued.map(|waiter| waiter.ticket).collect()
        }

        /// Whom a request waits for that has these in front.
        fn blockers(&self, key: usize, limit: Limit, in_front: &[WaiterId]) -> Owners {
            if !self.needs_all_gone(key, limit, in_front) {
                return 0;
            }
            let line = self.lines[key].iter();
            let alone = limit == Limit::EXCLUSIVE;
            line.filter(|(_, ids)| {
                let behind: Vec<WaiterId> = in_front
                    .iter()
                    .copied()
                    .filter(|&id| id >= ids[0])
                    .collect();
                in_front.contains(&ids[0]) && (alone || self.any_alone(key, &behind))
            })
            .fold(self.holders_of(key), |all, &(who, _)| all | only(who))
        }

        fn any_alone(&self, key: usize, requests: &[WaiterId]) -> bool {
            let mut queued = self.queues.waiters(KEYS[key]);
            queued.any(|waiter| {
                waiter.request.limit == Limit::EXCLUSIVE && requests.contains(&waiter.ticket)
            })
        }

        fn graph(&self) -> Graph {
            let mut graph = Graph::default();
            for (key, line) in self.lines.iter().enumerate() {
                for (who, ids) in line {
                    assert!(!self.holds(*who, key), "a holder waits for nobody");
                    let waiter = self.queues.waiter(KEYS[key], ids[0]).unwrap();
                    let mut in_front = self.requests(key);
                    in_front.retain(|&id| id < ids[0]);
                    graph[*who] |= self.blockers(key, waiter.request.limit, &in_front);
                }
            }
            graph
        }

        /// Whom an owner would wait for at the end of this line.
        fn blockers_at_the_end(&self, key: usize, limit: Limit) -> Owners {
            self.blockers(key, limit, &self.requests(key))
        }

        fn closes_a_cycle(&self, who: usize, key: usize, limit: Limit) -> bool {
            let mut graph = self.graph();
            graph[who] |= self.blockers_at_the_end(key, limit);
            !self.is_in_line(who, key) && is_in_a_cycle(&graph, who)
        }

        /// Whether these links are a way from the newcomer back to it, and each is
        /// what it says.
        fn check_cycle(&self, who: usize, key: usize, cycle: &[Link]) -> Result<(), TestCaseError> {
            prop_assert_eq!(&cycle[0].waiter, &owner(who));
            prop_assert_eq!(cycle[0].key.as_ref(), KEYS[key]);
            let next = cycle.iter().cycle().skip(1);
            for (index, (link, next)) in cycle.iter().zip(next).enumerate() {
                prop_assert_eq!(&link.blocker, &next.waiter);
                let waiter = OWNERS
                    .iter()
                    .position(|name| *name == link.waiter.as_bytes());
                let blocker = OWNERS
                    .iter()
                    .position(|name| *name == link.blocker.as_bytes());
                let (waiter, blocker) = (waiter.unwrap(), blocker.unwrap());
                let key = KEYS
                    .iter()
                    .position(|key| *key == link.key.as_ref())
                    .unwrap();
                let place_of = |who| self.lines[key].iter().position(|place| place.0 == who);
                let end_of_line = (index == 0).then_some(usize::MAX);
                let place = place_of(waiter).or(end_of_line);
                prop_assert!(place.is_some(), "does not wait: {:?}", link);
                let is_real = if link.held {
                    self.holds(blocker, key)
                } else {
                    place_of(blocker).is_some_and(|before| Some(before) < place)
                };
                prop_assert!(is_real, "{:?}", link);
                let seen = cycle[..index].iter().any(|seen| seen.waiter == link.waiter);
                prop_assert!(!seen, "a detour: {:?}", cycle);
            }
            Ok(())
        }
    }

    fn is_in_a_cycle(graph: &Graph, who: usize) -> bool {
        let mut reached = graph[who];
        loop {
            let further = (0..OWNERS.len())
                .filter(|&by| reached & only(by) != 0)
                .fold(reached, |all, by| all | graph[by]);
            if further == reached {
                return reached & only(who) != 0;
            }
            reached = further;
        }
    }

    /// `PROPTEST_CASES` says how many graphs grow, if more than a few thousand.
    #[test]
    fn every_deadlock_is_refused_and_nothing_else() {
        let config = Config::default();
        let cases = config.cases.max(4096);
        let mut runner = TestRunner::new(Config {
            cases,
            source_file: Some(file!()),
            ..config
        });
        let (waits, refused) = (Cell::new(0_u64), Cell::new(0_u64));
        let result = runner.run(&steps(), |steps| {
            let mut world = World::default();
            for step in &steps {
                let closes_a_cycle = match *step {
                    Step::Acquire { who, key, limit } => world.closes_a_cycle(who, key, limit),
                    _ => false,
                };
                match (step, world.run(step)) {
                    (_, Some(Outcome::Waits(_))) => {
                        waits.set(waits.get() + 1);
                        prop_assert!(!closes_a_cycle, "missed at {:?}", step);
                    }
                    (&Step::Acquire { who, key, .. }, Some(Outcome::Deadlock(cycle))) => {
                        refused.set(refused.get() + 1);
                        prop_assert!(closes_a_cycle, "false alarm at {:?}: {:?}", step, cycle);
                        world.check_cycle(who, key, &cycle)?;
                    }
                    _ => {}
                }
                let graph = world.graph();
                let deadlocked = (0..OWNERS.len()).any(|who| is_in_a_cycle(&graph, who));
                prop_assert!(!deadlocked, "after {:?}", step);
            }
            Ok(())
        });
        let (waits, refused) = (waits.get(), refused.get());
        println!("{cases} graphs: {waits} waits, {refused} more refused");
        if let Err(error) = result {
            panic!("{error}");
        }
        assert!(refused > u64::from(cases), "the graphs are too loose");
    }
}
