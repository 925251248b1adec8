use proptest::prelude::*;

use super::*;
use crate::request::{Lease, Limit};

const KEY: KeyRef<'static> = key(0, b"k");
const OTHER: KeyRef<'static> = key(0, b"other");
const MANY: usize = 1000;
const WAIT: Wait = Wait {
    client: ClientId(7),
    until_ms: Some(9),
    channel: None,
};

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

fn wait(queues: &mut WaitQueues, key: KeyRef<'_>, name: &str) -> WaiterId {
    wait_since(queues, key, name, 0)
}

fn wait_since(queues: &mut WaitQueues, key: KeyRef<'_>, name: &str, since_us: i64) -> WaiterId {
    let pushed = queues.push(key, request(name), WAIT, since_us, MANY);
    pushed.unwrap()
}

fn wait_in_line<const N: usize>(
    queues: &mut WaitQueues,
    key: KeyRef<'_>,
    names: [&str; N],
) -> [WaiterId; N] {
    names.map(|name| wait(queues, key, name))
}

fn id_of(waiter: Option<Waiter>) -> Option<WaiterId> {
    waiter.map(|waiter| waiter.id)
}

/// Takes all waiters of the key from the front.
fn drain(queues: &mut WaitQueues, key: KeyRef<'_>) -> Vec<WaiterId> {
    std::iter::from_fn(|| id_of(queues.take_first(key))).collect()
}

/// Takes the keys whose look is due, in the order in which they come.
fn drain_due(queues: &mut WaitQueues, now_ms: i64) -> Vec<KeyBuf> {
    let take = || {
        let next = queues.next_due(now_ms).cloned();
        let taken = queues.take_due(now_ms);
        assert_eq!(taken, next, "what is seen is taken");
        taken
    };
    std::iter::from_fn(take).collect()
}

fn bufs<const N: usize>(keys: [KeyRef<'_>; N]) -> [KeyBuf; N] {
    keys.map(KeyBuf::from)
}

#[track_caller]
fn check_nothing_is_left(queues: &mut WaitQueues) {
    assert!(queues.is_empty());
    assert!(!queues.contended(KEY));
    assert_eq!(queues.next_recheck_ms(), None);
    assert_eq!(queues.take_due(i64::MAX), None);
    assert!(queues.take_first(KEY).is_none());
    assert!(queues.first(KEY).is_none());
    assert_eq!(queues.waits.len(), 0);
    assert!(queues.by_id.is_empty());
}

#[test]
fn first_come_first_served() {
    let mut queues = WaitQueues::default();
    let line = wait_in_line(&mut queues, KEY, ["b", "a", "c", "d"]);
    assert_eq!(drain(&mut queues, KEY), line);
}

#[test]
fn the_first_is_seen_before_it_is_taken() {
    let mut queues = WaitQueues::default();
    assert!(queues.first(KEY).is_none());
    for id in wait_in_line(&mut queues, KEY, ["b", "a"]) {
        let first = queues.first(KEY);
        assert_eq!(first.map(|waiter| waiter.id), Some(id));
        queues.take_first(KEY).unwrap();
    }
    assert!(queues.first(KEY).is_none());
}

fn waits_of(queues: &WaitQueues, name: &str) -> Vec<KeyBuf> {
    queues.waits_of(&owner(name)).cloned().collect()
}

fn id_for(queues: &WaitQueues, key: KeyRef<'_>, name: &str) -> Option<WaiterId> {
    let waiter = queues.waiter_of(key, &owner(name));
    waiter.map(|waiter| waiter.id)
}

#[test]
fn it_is_known_for_which_keys_an_owner_waits() {
    let mut queues = WaitQueues::default();
    let in_zero = wait(&mut queues, KEY, "a");
    let b = wait(&mut queues, KEY, "b");
    assert_eq!(waits_of(&queues, "a"), bufs([KEY]));
    let in_one = wait(&mut queues, key(1, b"k"), "a");
    assert_eq!(waits_of(&queues, "a"), bufs([KEY, key(1, b"k")]));
    assert_eq!(waits_of(&queues, "b"), bufs([KEY]));
    assert_eq!(waits_of(&queues, "c"), []);
    assert!(queues.waits(&owner("b")) && !queues.waits(&owner("c")));
    assert_eq!(id_for(&queues, KEY, "a"), Some(in_zero));
    assert_eq!(id_for(&queues, key(1, b"k"), "a"), Some(in_one));
    assert_eq!(id_for(&queues, OTHER, "a"), None);

    queues.remove(KEY, in_zero).unwrap();
    assert_eq!(id_for(&queues, KEY, "a"), None);
    assert_eq!(waits_of(&queues, "a"), bufs([key(1, b"k")]));
    queues.remove(key(1, b"k"), in_one).unwrap();
    assert!(!queues.waits(&owner("a")));
    assert_eq!(queues.owners(KEY).count(), 1);
    assert_eq!(drain(&mut queues, KEY), [b]);
}

#[test]
fn a_later_request_has_the_position_of_the_one_that_it_takes_over() {
    let mut queues = WaitQueues::default();
    let line = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    let place = Wait {
        client: ClientId(8),
        until_ms: Some(10),
        channel: Some(b"channel"[..].into()),
    };
    let later = AcquireRequest {
        session: Some(ClientId(8)),
        ..request("b")
    };
    let earlier = queues.take_over(KEY, line[1], later.clone(), place.clone());
    assert_eq!(
        earlier.map(|one| (one.id, one.client)),
        Some((line[1], WAIT.client))
    );
    assert!(queues.agree() && queues.counts().places == 1);
    let waiter = queues.waiter_of(KEY, &owner("b")).unwrap();
    assert_eq!(waiter.request, later);
    assert_eq!(
        (waiter.client, waiter.until_ms),
        (place.client, place.until_ms)
    );
    let earlier = queues.take_over(KEY, line[1], request("b"), WAIT).unwrap();
    assert!(earlier.is_place() && queues.agree() && queues.counts().places == 0);
    assert_eq!(drain(&mut queues, KEY), line);
}

#[test]
fn a_waiter_keeps_its_request_and_its_client() {
    let mut queues = WaitQueues::default();
    let pushed = queues.push(KEY, request("a"), WAIT, 5, MANY);
    assert_eq!(queues.key_of(*pushed.as_ref().unwrap()), Some(&KEY.into()));
    let waiter = queues.take_first(KEY).unwrap();
    assert_eq!(waiter.request, request("a"));
    let wait = (waiter.client, waiter.until_ms, waiter.since_us);
    assert_eq!(wait, (WAIT.client, WAIT.until_ms, 5));
    assert_eq!(queues.key_of(waiter.id), None);
    assert_eq!(Ok(waiter.id), pushed);
}

#[test]
fn who_leaves_the_middle_of_the_line_holds_nobody_up() {
    let mut queues = WaitQueues::default();
    let [a, b, c] = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    assert_eq!(id_of(queues.remove(KEY, b)), Some(b));
    assert_eq!(drain(&mut queues, KEY), [a, c]);
}

#[test]
fn a_waiter_leaves_only_once_and_only_its_own_line() {
    let mut queues = WaitQueues::default();
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
fn the_waiter_of_an_owner_is_taken_from_anywhere_in_the_line() {
    let mut queues = WaitQueues::default();
    let [a, b, c] = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    let elsewhere = wait(&mut queues, OTHER, "d");
    assert_eq!(id_of(queues.take_of(KEY, &owner("b"))), Some(b));
    assert!(queues.take_of(KEY, &owner("b")).is_none());
    assert!(queues.take_of(KEY, &owner("d")).is_none());
    assert_eq!(drain(&mut queues, KEY), [a, c]);
    assert_eq!(drain(&mut queues, OTHER), [elsewhere]);
}

#[test]
fn a_full_line_takes_nobody_until_somebody_leaves() {
    let mut queues = WaitQueues::default();
    let full = Err(LockError::QueueFull { max_waiters: 2 });
    let push = |queues: &mut WaitQueues, key, name| queues.push(key, request(name), WAIT, 0, 2);
    let first = push(&mut queues, KEY, "a").unwrap();
    let second = push(&mut queues, KEY, "b").unwrap();
    assert_eq!(push(&mut queues, KEY, "c"), full);
    assert!(
        push(&mut queues, OTHER, "a").is_ok(),
        "each line has its own limit"
    );
    queues.remove(KEY, first).unwrap();
    let third = push(&mut queues, KEY, "c").unwrap();
    assert_eq!(push(&mut queues, KEY, "a"), full);
    assert_eq!(drain(&mut queues, KEY), [second, third]);
}

#[test]
fn nothing_is_left_of_who_finds_the_line_full() {
    let mut queues = WaitQueues::default();
    wait(&mut queues, KEY, "a");
    let refused = queues.push(KEY, request("b"), WAIT, 0, 1);
    assert_eq!(refused, Err(LockError::QueueFull { max_waiters: 1 }));
    assert!(queues.take_of(KEY, &owner("b")).is_none());
    assert!(!queues.waits(&owner("b")));
}

#[test]
fn nothing_is_left_of_a_line_in_which_nobody_waits() {
    type Leave = fn(&mut WaitQueues, WaiterId) -> Option<Waiter>;
    let ways: [Leave; 3] = [
        |queues, id| queues.remove(KEY, id),
        |queues, _| queues.take_first(KEY),
        |queues, _| queues.take_of(KEY, &owner("a")),
    ];
    for leave in ways {
        let mut queues = WaitQueues::default();
        check_nothing_is_left(&mut queues);
        let id = wait(&mut queues, KEY, "a");
        queues.recheck_by(KEY, 5);
        assert!(!queues.is_empty());
        assert!(queues.contended(KEY));
        assert_eq!(queues.next_recheck_ms(), Some(5));
        assert_eq!(id_of(leave(&mut queues, id)), Some(id));
        check_nothing_is_left(&mut queues);

        // A new line does not inherit the plans of the old one.
        wait(&mut queues, KEY, "a");
        assert_eq!(queues.next_recheck_ms(), None);
    }
}

#[test]
fn nothing_is_left_of_an_owner_that_waits_no_more() {
    let mut queues = WaitQueues::default();
    let id = wait(&mut queues, KEY, "a");
    wait(&mut queues, OTHER, "b");
    assert_eq!(queues.waits.len(), 2);
    queues.remove(KEY, id).unwrap();
    assert_eq!(queues.waits.len(), 1);
    queues.take_first(OTHER).unwrap();
    assert_eq!(queues.waits.len(), 0);
}

#[test]
fn a_line_is_listed_from_its_first_to_its_last() {
    let mut queues = WaitQueues::default();
    let list = |queues: &WaitQueues, key| -> Vec<WaiterId> {
        let waiters = queues.waiters(key);
        waiters.map(|waiter| waiter.id).collect()
    };
    assert_eq!(list(&queues, KEY), []);
    let [a, b, c] = wait_in_line(&mut queues, KEY, ["c", "a", "b"]);
    assert_eq!(list(&queues, KEY), [a, b, c]);
    assert_eq!(list(&queues, OTHER), []);
}

#[test]
fn each_line_has_its_own_length() {
    let mut queues = WaitQueues::default();
    let lengths = |queues: &WaitQueues| [KEY, OTHER].map(|key| queues.length(key));
    assert_eq!(lengths(&queues), [0, 0]);
    let [first, _, _] = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    wait(&mut queues, OTHER, "a");
    assert_eq!(lengths(&queues), [3, 1]);
    queues.remove(KEY, first).unwrap();
    assert_eq!(lengths(&queues), [2, 1]);
}

#[test]
fn what_is_remembered_is_counted() {
    let mut queues = WaitQueues::default();
    let counts = |queues: &WaitQueues| {
        let counts = queues.counts();
        [
            counts.waiters,
            counts.contended_keys,
            counts.planned_rechecks,
        ]
    };
    assert_eq!(counts(&queues), [0, 0, 0]);
    let [a, b, _] = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    wait(&mut queues, OTHER, "a");
    queues.recheck_by(KEY, 5);
    assert_eq!(counts(&queues), [4, 2, 1]);
    queues.remove(KEY, a).unwrap();
    queues.remove(KEY, b).unwrap();
    assert_eq!(counts(&queues), [2, 2, 1]);
    queues.take_first(KEY).unwrap();
    assert_eq!(counts(&queues), [1, 1, 0]);
}

#[test]
fn a_database_has_its_own_contended_keys() {
    let mut queues = WaitQueues::default();
    let contended = |queues: &WaitQueues, db| -> Vec<(KeyBuf, i64)> {
        let keys = queues.contended_keys(db);
        keys.map(|(key, since_us)| (key.clone(), since_us))
            .collect()
    };
    let in_one = key(1, b"k");
    let first = wait_since(&mut queues, KEY, "a", 20);
    for (key, since_us) in [(KEY, 30), (OTHER, 40), (in_one, 50)] {
        wait_since(&mut queues, key, "b", since_us);
    }
    let expected = [(KEY.into(), 20), (OTHER.into(), 40)];
    assert_eq!(contended(&queues, 0), expected);
    assert_eq!(contended(&queues, 1), [(in_one.into(), 50)]);
    assert_eq!(contended(&queues, 2), []);
    // The time is that of who is first in line now.
    queues.remove(KEY, first).unwrap();
    let expected = [(KEY.into(), 30), (OTHER.into(), 40)];
    assert_eq!(contended(&queues, 0), expected);
}

#[test]
fn who_stands_behind_another_is_not_gone_through_to_find_contended_keys() {
    let mut queues = WaitQueues::default();
    for n in 0..1000 {
        wait(&mut queues, KEY, &n.to_string());
    }
    wait(&mut queues, OTHER, "a");
    assert_eq!(queues.firsts.len(), 2);
    assert_eq!(queues.contended_keys(0).count(), 2);
    while queues.take_first(KEY).is_some() {
        assert!(queues.agree());
    }
    assert_eq!(queues.firsts.len(), 1);
}

#[test]
fn the_longest_wait_is_that_of_the_first_in_some_line() {
    let mut queues = WaitQueues::default();
    assert_eq!(queues.longest_since_us(), None);
    for (key, name, since_us) in [(KEY, "a", 20), (OTHER, "a", 30), (KEY, "b", 40)] {
        wait_since(&mut queues, key, name, since_us);
        assert_eq!(queues.longest_since_us(), Some(20));
    }
    for (over, longest) in [(KEY, Some(30)), (OTHER, None)] {
        drain(&mut queues, over);
        assert_eq!(queues.longest_since_us(), longest);
    }
}

#[test]
fn who_was_found_to_wait_for_long_is_passed_over() {
    let mut queues = WaitQueues::default();
    let next = |queues: &WaitQueues, key| {
        let next = queues.next_not_slow(key);
        next.map(|waiter| waiter.id)
    };
    queues.note_slow(KEY, WaiterId(0));
    assert_eq!(next(&queues, KEY), None);
    let [a, b, c] = wait_in_line(&mut queues, KEY, ["a", "b", "c"]);
    let other = wait(&mut queues, OTHER, "a");
    assert_eq!(next(&queues, KEY), Some(a));
    queues.note_slow(KEY, a);
    assert_eq!(next(&queues, KEY), Some(b));
    // Whoever leaves takes no place in line along.
    queues.remove(KEY, a).unwrap();
    assert_eq!(next(&queues, KEY), Some(b));
    queues.note_slow(KEY, b);
    assert_eq!(next(&queues, KEY), Some(c));
    queues.note_slow(KEY, c);
    assert_eq!(next(&queues, KEY), None);
    queues.remove(KEY, c).unwrap();
    assert_eq!(next(&queues, KEY), None);
    assert_eq!(next(&queues, OTHER), Some(other));
}

#[test]
fn a_look_is_never_moved_to_a_later_time() {
    let mut queues = WaitQueues::default();
    wait(&mut queues, KEY, "a");
    for (at_ms, planned) in [(50, 50), (60, 50), (50, 50), (40, 40), (45, 40), (-1, -1)] {
        queues.recheck_by(KEY, at_ms);
        assert_eq!(queues.next_recheck_ms(), Some(planned));
    }
    // The times that were given up are really gone.
    assert_eq!(drain_due(&mut queues, i64::MAX), bufs([KEY]));
}

#[test]
fn nobody_looks_at_a_key_for_which_nobody_waits() {
    let mut queues = WaitQueues::default();
    queues.recheck_by(KEY, 5);
    queues.recheck_all();
    check_nothing_is_left(&mut queues);
}

#[test]
fn looks_come_due_in_the_order_of_their_times() {
    let mut queues = WaitQueues::default();
    let keys = [
        key(0, b"a"),
        key(0, b"b"),
        key(1, b"a"),
        key(0, b"c"),
        key(0, b"d"),
    ];
    for (key, at_ms) in keys.into_iter().zip([30, 10, 20, 40, 41]) {
        wait(&mut queues, key, "a");
        queues.recheck_by(key, at_ms);
    }
    assert_eq!(queues.take_due(9), None);
    assert_eq!(queues.take_due(10), Some(keys[1].into()));
    assert_eq!(queues.take_due(10), None);
    let due = drain_due(&mut queues, 40);
    assert_eq!(due, bufs([keys[2], keys[0], keys[3]]));
    assert_eq!(queues.next_recheck_ms(), Some(41));
}

#[test]
fn after_a_look_the_next_one_may_be_later() {
    let mut queues = WaitQueues::default();
    wait(&mut queues, KEY, "a");
    queues.recheck_by(KEY, 10);
    assert_eq!(queues.take_due(10), Some(KEY.into()));
    assert_eq!(queues.next_recheck_ms(), None);
    assert!(queues.contended(KEY), "a look takes no waiter");
    queues.recheck_by(KEY, 99);
    assert_eq!(queues.next_recheck_ms(), Some(99));
}

#[test]
fn a_round_looks_at_each_key_once_and_leaves_its_plan() {
    let mut queues = WaitQueues::default();
    let keys = [key(0, b"a"), key(0, b"b"), key(1, b"a")];
    for key in keys {
        wait(&mut queues, key, "a");
    }
    queues.recheck_by(keys[2], 10);
    queues.recheck_all();
    assert_eq!(queues.take_next_of_round(), Some(keys[0].into()));
    wait(&mut queues, key(0, b"0"), "a");
    wait(&mut queues, key(0, b"c"), "a");
    queues.remove(keys[1], queues.first(keys[1]).unwrap().id);
    assert_eq!(queues.take_next_of_round(), Some(key(0, b"c").into()));
    assert_eq!(queues.take_next_of_round(), Some(keys[2].into()));
    assert!(queues.is_in_round());
    assert_eq!(queues.take_next_of_round(), None);
    assert!(!queues.is_in_round());
    assert_eq!(queues.next_recheck_ms(), Some(10));
}

#[test]
fn databases_do_not_share_their_keys() {
    let mut queues = WaitQueues::default();
    let [zero, one] = [key(0, b"k"), key(1, b"k")];
    let in_zero = wait(&mut queues, zero, "a");
    assert!(!queues.contended(one));
    let in_one = wait(&mut queues, one, "a");
    queues.recheck_by(zero, 10);
    queues.recheck_by(one, 5);
    assert_eq!(id_of(queues.take_of(one, &owner("a"))), Some(in_one));
    assert!(!queues.contended(one));
    assert_eq!(queues.next_recheck_ms(), Some(10));
    assert_eq!(drain(&mut queues, zero), [in_zero]);
    assert!(queues.is_empty());
}

#[test]
fn a_key_whose_look_is_due_is_seen_before_it_is_taken() {
    let mut queues = WaitQueues::default();
    wait(&mut queues, KEY, "a");
    assert_eq!(queues.next_due(i64::MAX), None);
    queues.recheck_by(KEY, 10);
    assert_eq!(queues.next_due(9), None);
    for now_ms in [10, 11] {
        assert_eq!(queues.next_due(now_ms), Some(&KEY.into()));
    }
    assert_eq!(drain_due(&mut queues, 10), bufs([KEY]));
    assert_eq!(queues.next_due(10), None);
}

#[test]
fn it_is_known_where_the_lock_is_wanted_all_alone() {
    let mut queues = WaitQueues::default();
    let asks = [
        ("a", Limit::SHARED),
        ("b", Limit::EXCLUSIVE),
        ("c", Limit::SHARED),
    ];
    let [before, alone, after] = asks.map(|(name, limit)| {
        let request = AcquireRequest {
            limit,
            ..request(name)
        };
        let pushed = queues.push(KEY, request, WAIT, 0, MANY);
        pushed.unwrap()
    });
    assert_eq!(queues.first_exclusive(KEY), Some(alone));
    assert_eq!(queues.first_exclusive(OTHER), None);
    for (position, is_kept_apart) in [
        (Some(before), false),
        (Some(alone), false),
        (Some(after), true),
        (None, true),
    ] {
        assert_eq!(
            queues.has_exclusive_before(KEY, &owner("z"), position),
            is_kept_apart
        );
        assert!(!queues.has_exclusive_before(OTHER, &owner("z"), position));
    }
    assert!(
        !queues.has_exclusive_before(KEY, &owner("b"), None),
        "but for itself"
    );
    queues.remove(KEY, alone);
    assert_eq!(queues.first_exclusive(KEY), None);
    assert!(!queues.has_exclusive_before(KEY, &owner("z"), None));
}

/// The queues against lists that are searched from end to end.
mod against_a_model {
    use super::*;
    use crate::bounds;

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
        TakeOf {
            key: usize,
            who: usize,
        },
        LookBy {
            key: usize,
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
            2 => (key(), who()).prop_map(|(key, who)| Step::TakeOf { key, who }),
            4 => (key(), time()).prop_map(|(key, at_ms)| Step::LookBy { key, at_ms }),
            2 => time().prop_map(|now_ms| Step::TakeDue { now_ms }),
        ];
        prop::collection::vec(step, 1..120)
    }

    /// A request: key, owner and which of all there have been.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Waiting {
        key: usize,
        who: usize,
        nth: usize,
    }

    #[derive(Default)]
    struct Model {
        /// Sorted in the order in which they are served.
        waiting: Vec<Waiting>,
        /// When each key is looked at.
        rechecks: Vec<(i64, usize)>,
    }

    impl Model {
        fn first(&self, wanted: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
            self.waiting.iter().copied().find(|waiting| wanted(waiting))
        }

        fn take(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Option<usize> {
            let taken = self.first(wanted)?;
            self.waiting.retain(|waiting| *waiting != taken);
            if self.length(taken.key) == 0 {
                self.rechecks.retain(|(_, key)| *key != taken.key);
            }
            Some(taken.nth)
        }

        fn length(&self, key: usize) -> usize {
            self.waiting
                .iter()
                .filter(|waiting| waiting.key == key)
                .count()
        }

        fn waits(&self, who: usize, key: usize) -> bool {
            self.first(|waiting| (waiting.key, waiting.who) == (key, who))
                .is_some()
        }

        /// The owners that wait for this key, first come first.
        fn line(&self, key: usize) -> Vec<Owner> {
            let mut line = self.waiting.clone();
            line.retain(|waiting| waiting.key == key);
            let mut owners = Vec::new();
            for waiting in line {
                let owner = owner(OWNERS[waiting.who]);
                if !owners.contains(&owner) {
                    owners.push(owner);
                }
            }
            owners
        }

        fn recheck_by(&mut self, key: usize, at_ms: i64) {
            if self.length(key) == 0 {
                return;
            }
            let look = self.rechecks.iter().find(|(_, one)| *one == key);
            if look.is_none_or(|(planned_ms, _)| *planned_ms > at_ms) {
                self.rechecks.retain(|(_, one)| *one != key);
                self.rechecks.push((at_ms, key));
            }
        }

        /// Keys that are due at the same time come in the order of database and name.
        fn take_due(&mut self, now_ms: i64) -> Option<usize> {
            let order = |&(at_ms, key): &(i64, usize)| (at_ms, KEYS[key].db, KEYS[key].name);
            let (at_ms, next) = self.rechecks.iter().copied().min_by_key(order)?;
            (at_ms <= now_ms).then(|| {
                self.rechecks.retain(|(_, key)| *key != next);
                next
            })
        }
    }

    proptest! {
        #[test]
        fn queues_behave_like_plain_lists(steps in steps(), few_are_many in any::<bool>()) {
            bounds::set(few_are_many);
            let mut queues = WaitQueues::default();
            let mut model = Model::default();
            // The ids of all waiters there have been.
            let mut ids: Vec<WaiterId> = Vec::new();
            for step in steps {
                match step {
                    // An owner waits for a key once.
                    Step::Push { key, who } if model.waits(who, key) => {}
                    Step::Push { key, who } => {
                        let room = model.length(key) < MAX_WAITERS;
                        let request = request(OWNERS[who]);
                        let pushed = queues.push(KEYS[key], request, WAIT, 0, MAX_WAITERS);
                        let full = LockError::QueueFull { max_waiters: MAX_WAITERS };
                        prop_assert_eq!(pushed.is_ok(), room);
                        match pushed {
                            Ok(id) => {
                                model.waiting.push(Waiting { key, who, nth: ids.len() });
                                ids.push(id);
                            }
                            Err(error) => prop_assert_eq!(error, full),
                        }
                    }
                    Step::Remove { .. } if ids.is_empty() => {}
                    Step::Remove { key, pushed } => {
                        let index = pushed.index(ids.len());
                        let removed = id_of(queues.remove(KEYS[key], ids[index]));
                        let expected = model.take(|w| w.key == key && w.nth == index);
                        let expected = expected.map(|nth| ids[nth]);
                        prop_assert_eq!(removed, expected);
                    }
                    Step::TakeFirst { key } => {
                        let taken = id_of(queues.take_first(KEYS[key]));
                        let expected = model.take(|w| w.key == key);
                        prop_assert_eq!(taken, expected.map(|nth| ids[nth]));
                    }
                    Step::TakeOf { key, who } => {
                        let taken = id_of(queues.take_of(KEYS[key], &owner(OWNERS[who])));
                        let expected = model.take(|w| (w.key, w.who) == (key, who));
                        prop_assert_eq!(taken, expected.map(|nth| ids[nth]));
                    }
                    Step::LookBy { key, at_ms } => {
                        queues.recheck_by(KEYS[key], at_ms);
                        model.recheck_by(key, at_ms);
                    }
                    Step::TakeDue { now_ms } => {
                        let due = model.take_due(now_ms).map(|key| KEYS[key].into());
                        prop_assert_eq!(queues.take_due(now_ms), due);
                    }
                }
                prop_assert!(queues.agree());
                prop_assert_eq!(queues.is_empty(), model.waiting.is_empty());
                let next_recheck_ms = model.rechecks.iter().map(|(at_ms, _)| *at_ms).min();
                prop_assert_eq!(queues.next_recheck_ms(), next_recheck_ms);
                for (index, &key) in KEYS.iter().enumerate() {
                    prop_assert_eq!(queues.contended(key), model.length(index) > 0);
                    let first = queues.first(key).map(|waiter| waiter.id);
                    let expected = model.first(|w| w.key == index).map(|w| ids[w.nth]);
                    prop_assert_eq!(first, expected);
                    let line = model.line(index);
                    let places = line.iter().map(|owner| Some(queues.waiter_of(key, owner)?.id));
                    prop_assert!(places.clone().all(|place| place.is_some()));
                    prop_assert!(places.is_sorted());
                }
                for (who, name) in OWNERS.iter().enumerate() {
                    let keys: BTreeSet<KeyBuf> = (0..KEYS.len())
                        .filter(|&key| model.waits(who, key))
                        .map(|key| KEYS[key].into())
                        .collect();
                    let owner = owner(name);
                    let waits: Vec<KeyBuf> = queues.waits_of(&owner).cloned().collect();
                    prop_assert_eq!(waits.len(), keys.len(), "each key once");
                    prop_assert!(waits.iter().all(|key| keys.contains(key)));
                    for (index, &key) in KEYS.iter().enumerate() {
                        let waits = queues.waiter_of(key, &owner).is_some();
                        prop_assert_eq!(waits, model.waits(who, index));
                    }
                }
            }
            prop_assert!(ids.is_sorted(), "later waiters have greater ids");
            for (index, &key) in KEYS.iter().enumerate() {
                let line = model.waiting.iter().filter(|waiting| waiting.key == index);
                let line: Vec<WaiterId> = line.map(|waiting| ids[waiting.nth]).collect();
                prop_assert_eq!(drain(&mut queues, key), line);
            }
            prop_assert!(queues.is_empty());
            prop_assert_eq!(queues.next_recheck_ms(), None);
        }
    }
}
