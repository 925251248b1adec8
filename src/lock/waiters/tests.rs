use proptest::prelude::*;

use super::*;
use crate::lock::request::{Lease, Limit};

const KEY: KeyRef<'static> = key(0, b"k");
const OTHER: KeyRef<'static> = key(0, b"other");
const MANY: usize = 1000;

const fn key(db: i32, name: &[u8]) -> KeyRef<'_> {
    KeyRef { db, name }
}

fn owner(name: &str) -> Owner {
    Owner::new(name.as_bytes()).unwrap()
}

fn request(name: &str) -> AcquireRequest {
    AcquireRequest {
        owner: owner(name),
        lease: Lease::LONGEST,
        hold: None,
        limit: Limit::EXCLUSIVE,
        session: None,
    }
}

/// Queues whose tickets are the waiters' own ids.
type Queues = WaitQueues<WaiterId>;

fn wait(queues: &mut Queues, key: KeyRef<'_>, name: &str) -> WaiterId {
    queues.push(key, request(name), MANY, |id| id).unwrap()
}

fn wait_in_line<const N: usize>(
    queues: &mut Queues,
    key: KeyRef<'_>,
    names: [&str; N],
) -> [WaiterId; N] {
    names.map(|name| wait(queues, key, name))
}

fn ticket<T>(waiter: Option<Waiter<T>>) -> Option<T> {
    waiter.map(|waiter| waiter.ticket)
}

/// Takes all waiters of the key from the front.
fn drain<T>(queues: &mut WaitQueues<T>, key: KeyRef<'_>) -> Vec<T> {
    std::iter::from_fn(|| ticket(queues.take_first(key))).collect()
}

/// Takes the keys whose look is due, in the order in which they come.
fn drain_due<T>(queues: &mut WaitQueues<T>, now_ms: i64) -> Vec<KeyBuf> {
    std::iter::from_fn(|| queues.take_due(now_ms)).collect()
}

fn bufs<const N: usize>(keys: [KeyRef<'_>; N]) -> [KeyBuf; N] {
    keys.map(KeyBuf::from)
}

#[track_caller]
fn check_nothing_is_left(queues: &mut Queues) {
    assert!(queues.is_empty());
    assert!(!queues.contended(KEY));
    assert_eq!(queues.next_look_ms(), None);
    assert_eq!(queues.take_due(i64::MAX), None);
    assert!(queues.take_first(KEY).is_none());
}

#[test]
fn first_come_first_served() {
    let mut queues = Queues::default();
    let line = wait_in_line(&mut queues, KEY, ["b", "a", "c", "a"]);
    assert_eq!(drain(&mut queues, KEY), line);
}

#[test]
fn a_waiter_keeps_its_request_and_its_ticket() {
    let mut queues = WaitQueues::default();
    let pushed = queues.push(KEY, request("a"), MANY, |id| (id, "ticket"));
    let waiter = queues.take_first(KEY).unwrap();
    assert_eq!(waiter.request, request("a"));
    assert_eq!(Ok(waiter.ticket), pushed);
}

#[test]
fn who_leaves_the_middle_of_the_line_holds_nobody_up() {
    let mut queues = Queues::default();
    let [a, b, c] = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    assert_eq!(ticket(queues.remove(KEY, b)), Some(b));
    assert_eq!(drain(&mut queues, KEY), [a, c]);
}

#[test]
fn a_waiter_leaves_only_once_and_only_its_own_line() {
    let mut queues = Queues::default();
    let [a, b] = wait_in_line(&mut queues, KEY, ["a", "b"]);
    let other = wait(&mut queues, OTHER, "a");
    assert!(queues.remove(OTHER, a).is_none());
    assert!(queues.remove(key(1, b"k"), a).is_none());
    assert!(queues.remove(KEY, a).is_some());
    assert!(queues.remove(KEY, a).is_none());
    assert_eq!(drain(&mut queues, KEY), [b]);
    assert!(queues.remove(KEY, b).is_none());
    assert_eq!(drain(&mut queues, OTHER), [other]);
}

#[test]
fn the_first_request_of_an_owner_is_taken_from_anywhere_in_the_line() {
    let mut queues = Queues::default();
    let [a1, b1, a2, b2, b3] = wait_in_line(&mut queues, KEY, ["a", "b", "a", "b", "b"]);
    let mut take_b = || ticket(queues.take_first_of(KEY, &owner("b")));
    assert_eq!(take_b(), Some(b1));
    assert_eq!(take_b(), Some(b2));
    assert_eq!(take_b(), Some(b3));
    assert_eq!(take_b(), None);
    assert_eq!(drain(&mut queues, KEY), [a1, a2]);
}

#[test]
fn the_first_request_of_an_owner_is_one_that_still_waits() {
    let mut queues = Queues::default();
    let [_, a2, a3] = wait_in_line(&mut queues, KEY, ["a", "a", "a"]);
    queues.take_first(KEY).unwrap();
    queues.remove(KEY, a2).unwrap();
    let elsewhere = wait(&mut queues, OTHER, "c");
    assert!(queues.take_first_of(KEY, &owner("c")).is_none());
    assert_eq!(
        ticket(queues.take_first_of(KEY, &owner("a"))),
        Some(a3),
        "the two before it are gone"
    );
    assert_eq!(drain(&mut queues, OTHER), [elsewhere]);
}

#[test]
fn a_full_line_takes_nobody_until_somebody_leaves() {
    let mut queues = Queues::default();
    let full = Err(LockError::QueueFull { max_waiters: 2 });
    let push = |queues: &mut Queues, key| queues.push(key, request("a"), 2, |id| id);
    let first = push(&mut queues, KEY).unwrap();
    let second = push(&mut queues, KEY).unwrap();
    assert_eq!(push(&mut queues, KEY), full);
    assert!(
        push(&mut queues, OTHER).is_ok(),
        "each line has its own limit"
    );
    queues.remove(KEY, first).unwrap();
    let third = push(&mut queues, KEY).unwrap();
    assert_eq!(push(&mut queues, KEY), full);
    assert_eq!(drain(&mut queues, KEY), [second, third]);
}

#[test]
fn no_ticket_is_made_for_who_finds_the_line_full() {
    let mut queues = Queues::default();
    wait(&mut queues, KEY, "a");
    let refused = queues.push(KEY, request("b"), 1, |_| panic!("a ticket was made"));
    assert_eq!(refused, Err(LockError::QueueFull { max_waiters: 1 }));
    assert!(queues.take_first_of(KEY, &owner("b")).is_none());
}

#[test]
fn nothing_is_left_of_a_line_in_which_nobody_waits() {
    type Leave = fn(&mut Queues, WaiterId) -> Option<Waiter<WaiterId>>;
    let ways: [Leave; 3] = [
        |queues, id| queues.remove(KEY, id),
        |queues, _| queues.take_first(KEY),
        |queues, _| queues.take_first_of(KEY, &owner("a")),
    ];
    for leave in ways {
        let mut queues = Queues::default();
        check_nothing_is_left(&mut queues);
        let id = wait(&mut queues, KEY, "a");
        queues.look_by(KEY, 5);
        assert!(!queues.is_empty());
        assert!(queues.contended(KEY));
        assert_eq!(queues.next_look_ms(), Some(5));
        assert_eq!(ticket(leave(&mut queues, id)), Some(id));
        check_nothing_is_left(&mut queues);

        // A new line does not inherit the plans of the old one.
        wait(&mut queues, KEY, "a");
        assert_eq!(queues.next_look_ms(), None);
    }
}

#[test]
fn a_look_is_never_moved_to_a_later_time() {
    let mut queues = Queues::default();
    wait(&mut queues, KEY, "a");
    for (at_ms, planned) in [(50, 50), (60, 50), (50, 50), (40, 40), (45, 40), (-1, -1)] {
        queues.look_by(KEY, at_ms);
        assert_eq!(queues.next_look_ms(), Some(planned));
    }
    // The times that were given up are really gone.
    assert_eq!(drain_due(&mut queues, i64::MAX), bufs([KEY]));
}

#[test]
fn nobody_looks_at_a_key_for_which_nobody_waits() {
    let mut queues = Queues::default();
    queues.look_by(KEY, 5);
    queues.look_at_all_by(5);
    check_nothing_is_left(&mut queues);
}

#[test]
fn looks_come_due_in_the_order_of_their_times() {
    let mut queues = Queues::default();
    let keys = [
        key(0, b"a"),
        key(0, b"b"),
        key(1, b"a"),
        key(0, b"c"),
        key(0, b"d"),
    ];
    for (key, at_ms) in keys.into_iter().zip([30, 10, 20, 40, 41]) {
        wait(&mut queues, key, "a");
        queues.look_by(key, at_ms);
    }
    assert_eq!(queues.take_due(9), None);
    assert_eq!(queues.take_due(10), Some(keys[1].into()));
    assert_eq!(queues.take_due(10), None);
    let due = drain_due(&mut queues, 40);
    assert_eq!(due, bufs([keys[2], keys[0], keys[3]]));
    assert_eq!(queues.next_look_ms(), Some(41));
}

#[test]
fn after_a_look_the_next_one_may_be_later() {
    let mut queues = Queues::default();
    wait(&mut queues, KEY, "a");
    queues.look_by(KEY, 10);
    assert_eq!(queues.take_due(10), Some(KEY.into()));
    assert_eq!(queues.next_look_ms(), None);
    assert!(queues.contended(KEY), "a look takes no waiter");
    queues.look_by(KEY, 99);
    assert_eq!(queues.next_look_ms(), Some(99));
}

#[test]
fn a_look_at_all_moves_no_look_to_a_later_time() {
    let mut queues = Queues::default();
    let [early, late, unplanned] = [key(0, b"early"), key(1, b"late"), key(2, b"unplanned")];
    for key in [early, late, unplanned] {
        wait(&mut queues, key, "a");
    }
    queues.look_by(early, 10);
    queues.look_by(late, 30);
    queues.look_at_all_by(20);
    assert_eq!(drain_due(&mut queues, 19), bufs([early]));
    assert_eq!(drain_due(&mut queues, 20), bufs([late, unplanned]));
    assert_eq!(queues.next_look_ms(), None);
}

#[test]
fn databases_do_not_share_their_keys() {
    let mut queues = Queues::default();
    let [zero, one] = [key(0, b"k"), key(1, b"k")];
    let in_zero = wait(&mut queues, zero, "a");
    assert!(!queues.contended(one));
    let in_one = wait(&mut queues, one, "a");
    queues.look_by(zero, 10);
    queues.look_by(one, 5);
    assert_eq!(ticket(queues.take_first_of(one, &owner("a"))), Some(in_one));
    assert!(!queues.contended(one));
    assert_eq!(queues.next_look_ms(), Some(10));
    assert_eq!(drain(&mut queues, zero), [in_zero]);
    assert!(queues.is_empty());
}

/// The queues against lists that are searched from end to end.
mod against_a_model {
    use super::*;

    const KEYS: [KeyRef<'static>; 5] = [
        key(0, b""),
        key(0, b"a"),
        key(0, b"b"),
        key(1, b"a"),
        key(-1, b"\xff"),
    ];
    const OWNERS: [&str; 3] = ["x", "y", "z"];
    const MAX_WAITERS: usize = 4;

    #[derive(Clone, Debug)]
    enum Step {
        Push {
            key: usize,
            who: usize,
        },
        Remove {
            key: usize,
            pushed: prop::sample::Index,
        },
        TakeFirst {
            key: usize,
        },
        TakeFirstOf {
            key: usize,
            who: usize,
        },
        LookBy {
            key: usize,
            at_ms: i64,
        },
        LookAtAllBy {
            at_ms: i64,
        },
        TakeDue {
            now_ms: i64,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = || 0..KEYS.len();
        let who = || 0..OWNERS.len();
        let time = || 0..20_i64;
        let step = prop_oneof![
            8 => (key(), who()).prop_map(|(key, who)| Step::Push { key, who }),
            3 => (key(), any::<prop::sample::Index>())
                .prop_map(|(key, pushed)| Step::Remove { key, pushed }),
            2 => key().prop_map(|key| Step::TakeFirst { key }),
            2 => (key(), who()).prop_map(|(key, who)| Step::TakeFirstOf { key, who }),
            4 => (key(), time()).prop_map(|(key, at_ms)| Step::LookBy { key, at_ms }),
            1 => time().prop_map(|at_ms| Step::LookAtAllBy { at_ms }),
            2 => time().prop_map(|now_ms| Step::TakeDue { now_ms }),
        ];
        prop::collection::vec(step, 1..120)
    }

    #[derive(Default)]
    struct Model {
        /// Key, owner and ticket, in the order of arrival.
        waiting: Vec<(usize, usize, u32)>,
        /// Time and key.
        looks: Vec<(i64, usize)>,
    }

    impl Model {
        fn take(&mut self, wanted: impl Fn(usize, usize, u32) -> bool) -> Option<u32> {
            let found = self
                .waiting
                .iter()
                .position(|&(key, who, ticket)| wanted(key, who, ticket))?;
            let (key, _, ticket) = self.waiting.remove(found);
            if self.length(key) == 0 {
                self.looks.retain(|&(_, planned)| planned != key);
            }
            Some(ticket)
        }

        fn length(&self, key: usize) -> usize {
            self.waiting.iter().filter(|waiter| waiter.0 == key).count()
        }

        fn look_by(&mut self, key: usize, at_ms: i64) {
            if self.length(key) == 0 {
                return;
            }
            match self.looks.iter_mut().find(|look| look.1 == key) {
                Some(look) => look.0 = look.0.min(at_ms),
                None => self.looks.push((at_ms, key)),
            }
        }

        /// Keys that are due at the same time come in the order of database and name.
        fn take_due(&mut self, now_ms: i64) -> Option<usize> {
            self.looks
                .sort_by_key(|&(at_ms, key)| (at_ms, KEYS[key].db, KEYS[key].name));
            let &(at_ms, key) = self.looks.first()?;
            (at_ms <= now_ms).then(|| {
                self.looks.remove(0);
                key
            })
        }
    }

    proptest! {
        #[test]
        fn queues_behave_like_plain_lists(steps in steps()) {
            let mut queues = WaitQueues::<u32>::default();
            let mut model = Model::default();
            // The ids of all waiters there have been; their tickets are the indices.
            let mut ids: Vec<WaiterId> = Vec::new();
            for step in steps {
                match step {
                    Step::Push { key, who } => {
                        let ticket = u32::try_from(ids.len()).unwrap();
                        let room = model.length(key) < MAX_WAITERS;
                        let request = request(OWNERS[who]);
                        let pushed = queues.push(KEYS[key], request, MAX_WAITERS, |id| {
                            ids.push(id);
                            ticket
                        });
                        let full = LockError::QueueFull { max_waiters: MAX_WAITERS };
                        prop_assert_eq!(pushed, room.then_some(ticket).ok_or(full));
                        if room {
                            model.waiting.push((key, who, ticket));
                        }
                    }
                    Step::Remove { .. } if ids.is_empty() => {}
                    Step::Remove { key, pushed } => {
                        let index = pushed.index(ids.len());
                        let removed = ticket(queues.remove(KEYS[key], ids[index]));
                        let expected = model.take(|k, _, t| k == key && t as usize == index);
                        prop_assert_eq!(removed, expected);
                    }
                    Step::TakeFirst { key } => {
                        let taken = ticket(queues.take_first(KEYS[key]));
                        prop_assert_eq!(taken, model.take(|k, _, _| k == key));
                    }
                    Step::TakeFirstOf { key, who } => {
                        let taken = ticket(queues.take_first_of(KEYS[key], &owner(OWNERS[who])));
                        prop_assert_eq!(taken, model.take(|k, w, _| k == key && w == who));
                    }
                    Step::LookBy { key, at_ms } => {
                        queues.look_by(KEYS[key], at_ms);
                        model.look_by(key, at_ms);
                    }
                    Step::LookAtAllBy { at_ms } => {
                        queues.look_at_all_by(at_ms);
                        (0..KEYS.len()).for_each(|key| model.look_by(key, at_ms));
                    }
                    Step::TakeDue { now_ms } => {
                        let due = model.take_due(now_ms).map(|key| KEYS[key].into());
                        prop_assert_eq!(queues.take_due(now_ms), due);
                    }
                }
                prop_assert_eq!(queues.is_empty(), model.waiting.is_empty());
                let next_look_ms = model.looks.iter().map(|look| look.0).min();
                prop_assert_eq!(queues.next_look_ms(), next_look_ms);
                for (index, &key) in KEYS.iter().enumerate() {
                    prop_assert_eq!(queues.contended(key), model.length(index) > 0);
                }
            }
            prop_assert!(ids.is_sorted(), "later waiters have greater ids");
            for (index, &key) in KEYS.iter().enumerate() {
                let line = model.waiting.iter().filter(|waiter| waiter.0 == index);
                let line: Vec<u32> = line.map(|waiter| waiter.2).collect();
                prop_assert_eq!(drain(&mut queues, key), line);
            }
            prop_assert!(queues.is_empty());
            prop_assert_eq!(queues.next_look_ms(), None);
        }
    }
}
