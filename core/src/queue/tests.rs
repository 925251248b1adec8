//! The queues against lists that are searched from end to end, and what the lists do not tell.

use proptest::prelude::*;

use super::*;
use crate::bounds;
use crate::lock::tests::owner;
use crate::request::{Lease, Limit};

const KEY: KeyRef<'static> = KEYS[0];
const KEYS: [KeyRef<'static>; 5] = [
    key(0, b"k"),
    key(0, b""),
    key(0, b"a"),
    key(1, b"k"),
    key(-1, b"\xff"),
];
const OWNERS: [&str; 3] = ["x", "y", "z"];
const WAIT: Wait = Wait {
    client: ClientId(7),
    until_ms: Some(9),
    channel: None,
};

const fn key(db: i32, name: &[u8]) -> KeyRef<'_> {
    KeyRef { db, name }
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
    queues.push(key, request(name), WAIT, 0)
}

fn id_of(waiter: Option<&Waiter>) -> Option<WaiterId> {
    waiter.map(|waiter| waiter.id)
}

#[test]
fn nothing_is_left_of_a_line_in_which_nobody_waits() {
    type Leave = fn(&mut WaitQueues, WaiterId) -> Option<Waiter>;
    let ways: [Leave; 3] = [
        |queues, id| queues.remove(id),
        |queues, _| queues.take_first(KEY),
        |queues, _| queues.take_of(KEY, &owner("a")),
    ];
    for leave in ways {
        let mut queues = WaitQueues::default();
        let id = wait(&mut queues, KEY, "a");
        queues.note_slow(KEY, id);
        queues.recheck_by(KEY, 5);
        assert_eq!(leave(&mut queues, id).unwrap().id, id);
        assert!(queues.is_empty() && queues.by_id.is_empty());
        assert!(queues.by_owner.is_empty() && queues.rechecks.is_empty());
        // A new line does not inherit the plans of the old one.
        wait(&mut queues, KEY, "a");
        assert_eq!(queues.next_recheck_ms(), None);
    }
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
    queues.remove(queues.first(keys[1]).unwrap().id);
    assert_eq!(queues.take_next_of_round(), Some(key(0, b"c").into()));
    assert_eq!(queues.take_next_of_round(), Some(keys[2].into()));
    assert!(queues.is_in_round());
    assert_eq!(queues.take_next_of_round(), None);
    assert!(!queues.is_in_round());
    assert_eq!(queues.next_recheck_ms(), Some(10));
}

#[derive(Clone, Debug)]
enum Step {
    /// An owner waits, or takes the position over that it has in this line.
    Wait {
        key: usize,
        who: usize,
        asks: Asks,
    },
    Remove(prop::sample::Index),
    TakeFirst(usize),
    TakeOf(usize, usize),
    /// The next one is found to have waited for long.
    NoteSlow(usize),
    LookBy(usize, i64),
    TakeDue(i64),
}

/// What is asked for, and by whom.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asks {
    is_alone: bool,
    is_place: bool,
    client: ClientId,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS.len();
    let who = || 0..OWNERS.len();
    let time = || 0..20_i64;
    let asks = (any::<bool>(), any::<bool>(), 1..9_u64).prop_map(|(is_alone, is_place, client)| {
        let client = ClientId(client);
        Asks {
            is_alone,
            is_place,
            client,
        }
    });
    let step = prop_oneof![
        8 => (key(), who(), asks).prop_map(|(key, who, asks)| Step::Wait { key, who, asks }),
        3 => any::<prop::sample::Index>().prop_map(Step::Remove),
        2 => key().prop_map(Step::TakeFirst),
        2 => (key(), who()).prop_map(|(key, who)| Step::TakeOf(key, who)),
        2 => key().prop_map(Step::NoteSlow),
        4 => (key(), time()).prop_map(|(key, at_ms)| Step::LookBy(key, at_ms)),
        2 => time().prop_map(Step::TakeDue),
    ];
    prop::collection::vec(step, 1..120)
}

/// A request: key, owner, and which of all there have been, which is when it came.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waiting {
    key: usize,
    who: usize,
    id: WaiterId,
    since_us: i64,
    asks: Asks,
}

impl Waiting {
    fn request(&self) -> AcquireRequest {
        AcquireRequest {
            limit: match self.asks.is_alone {
                true => Limit::EXCLUSIVE,
                false => Limit::SHARED,
            },
            ..request(OWNERS[self.who])
        }
    }

    fn wait(&self) -> Wait {
        Wait {
            client: self.asks.client,
            channel: self.asks.is_place.then(|| b"channel"[..].into()),
            ..WAIT
        }
    }

    fn is(&self, waiter: &Waiter) -> bool {
        (waiter.id, waiter.key.as_ref(), waiter.since_us)
            == (self.id, KEYS[self.key], self.since_us)
            && (&waiter.request, &waiter.wait) == (&self.request(), &self.wait())
    }
}

#[derive(Default)]
struct Model {
    /// Sorted in the order in which they are served.
    waiting: Vec<Waiting>,
    /// Of each line, who was found last to wait for long.
    slow: [Option<WaiterId>; KEYS.len()],
    /// When each key is looked at.
    rechecks: Vec<(i64, usize)>,
}

impl Model {
    fn line(&self, key: usize) -> Vec<Waiting> {
        let line = self.waiting.iter().filter(|waiting| waiting.key == key);
        line.copied().collect()
    }

    fn of(&self, key: usize, who: usize) -> Option<Waiting> {
        let mut line = self.line(key).into_iter();
        line.find(|waiting| waiting.who == who)
    }

    fn next_not_slow(&self, key: usize) -> Option<WaiterId> {
        let ids = self.line(key).into_iter().map(|waiting| waiting.id);
        ids.filter(|id| Some(*id) > self.slow[key]).min()
    }

    fn take(&mut self, taken: Option<Waiting>) {
        let Some(taken) = taken else { return };
        self.waiting.retain(|waiting| *waiting != taken);
        if self.line(taken.key).is_empty() {
            self.rechecks.retain(|(_, key)| *key != taken.key);
        }
    }

    fn recheck_by(&mut self, key: usize, at_ms: i64) {
        if self.line(key).is_empty() {
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

    /// Takes the same step, and compares what it comes to.
    fn step(
        &mut self,
        queues: &mut WaitQueues,
        step: Step,
        ids: &mut Vec<WaiterId>,
    ) -> Result<(), TestCaseError> {
        let is_same = |one: Option<&Waiter>, other: Option<Waiting>| match (one, other) {
            (Some(one), Some(other)) => other.is(one),
            (one, other) => one.is_none() && other.is_none(),
        };
        match step {
            Step::Wait { key, who, asks } => {
                let id = WaiterId(u64::MAX);
                let since_us = ids.len() as i64;
                let mut later = Waiting {
                    key,
                    who,
                    id,
                    since_us,
                    asks,
                };
                if let Some(earlier) = self.of(key, who) {
                    let (id, since_us) = (earlier.id, earlier.since_us);
                    later = Waiting {
                        id,
                        since_us,
                        ..later
                    };
                    let was = queues.take_over(id, later.request(), later.wait());
                    prop_assert!(is_same(was.as_ref(), Some(earlier)));
                    let mut waiting = self.waiting.iter_mut();
                    *waiting.find(|one| **one == earlier).unwrap() = later;
                    return Ok(());
                }
                let (request, wait) = (later.request(), later.wait());
                later.id = queues.push(KEYS[key], request, wait, since_us);
                ids.push(later.id);
                self.waiting.push(later);
            }
            Step::Remove(..) if ids.is_empty() => {}
            Step::Remove(pushed) => {
                let id = *pushed.get(ids);
                let mut all = self.waiting.iter();
                let expected = all.find(|waiting| waiting.id == id).copied();
                prop_assert!(is_same(queues.remove(id).as_ref(), expected));
                self.take(expected);
            }
            Step::TakeFirst(key) => {
                let expected = self.line(key).first().copied();
                prop_assert!(is_same(queues.take_first(KEYS[key]).as_ref(), expected));
                self.take(expected);
            }
            Step::TakeOf(key, who) => {
                let taken = queues.take_of(KEYS[key], &owner(OWNERS[who]));
                let expected = self.of(key, who);
                prop_assert!(is_same(taken.as_ref(), expected));
                self.take(expected);
            }
            Step::NoteSlow(key) => {
                if let Some(next) = self.next_not_slow(key) {
                    self.slow[key] = Some(next);
                    queues.note_slow(KEYS[key], next);
                }
            }
            Step::LookBy(key, at_ms) => {
                queues.recheck_by(KEYS[key], at_ms);
                self.recheck_by(key, at_ms);
            }
            Step::TakeDue(now_ms) => {
                let due = self.take_due(now_ms).map(|key| KEYS[key].into());
                prop_assert_eq!(queues.next_due(now_ms), due.as_ref());
                prop_assert_eq!(queues.take_due(now_ms), due);
            }
        }
        Ok(())
    }

    /// Compares all that can be asked.
    fn check(&self, queues: &WaitQueues) -> Result<(), TestCaseError> {
        prop_assert!(queues.agree());
        let places = self.waiting.iter().filter(|waiting| waiting.asks.is_place);
        let contended = (0..KEYS.len()).filter(|&key| !self.line(key).is_empty());
        let counts = Counts {
            waiters: self.waiting.len(),
            places: places.count(),
            contended_keys: contended.count(),
            planned_rechecks: self.rechecks.len(),
        };
        prop_assert_eq!(queues.counts(), counts);
        prop_assert_eq!(queues.is_empty(), self.waiting.is_empty());
        let longest = self.waiting.first().map(|waiting| waiting.id);
        prop_assert_eq!(id_of(queues.longest()), longest);
        let next_recheck_ms = self.rechecks.iter().map(|(at_ms, _)| *at_ms).min();
        prop_assert_eq!(queues.next_recheck_ms(), next_recheck_ms);
        for (index, &key) in KEYS.iter().enumerate() {
            let line = self.line(index);
            prop_assert_eq!(queues.contended(key), !line.is_empty());
            prop_assert_eq!(queues.length(key), line.len());
            let listed: Vec<&Waiter> = queues.waiters(key).collect();
            prop_assert!(listed.len() == line.len());
            prop_assert!(line.iter().zip(&listed).all(|(one, listed)| one.is(listed)));
            prop_assert_eq!(id_of(queues.first(key)), line.first().map(|one| one.id));
            let alone = line.iter().find(|one| one.asks.is_alone);
            prop_assert_eq!(queues.first_exclusive(key), alone.map(|one| one.id));
            prop_assert_eq!(id_of(queues.next_not_slow(key)), self.next_not_slow(index));
            for (who, name) in OWNERS.iter().enumerate() {
                let own = self.of(index, who).map(|one| one.id);
                prop_assert_eq!(id_of(queues.waiter_of(key, &owner(name))), own);
                let has_before = |position: Option<WaiterId>| {
                    let before = |one: &&Waiting| position.is_none_or(|its| one.id < its);
                    let mut before = line.iter().filter(before);
                    before.any(|one| one.who != who && one.asks.is_alone)
                };
                for position in line.iter().map(|one| Some(one.id)).chain([None]) {
                    let (owner, left) = (owner(name), Cell::new(usize::MAX));
                    let has = queues.has_exclusive_before(key, &owner, position, &left);
                    prop_assert_eq!(has, has_before(position));
                }
            }
        }
        for db in [-1, 0, 1, 2] {
            let firsts = self
                .waiting
                .iter()
                .filter(|one| KEYS[one.key].db == db && self.line(one.key).first() == Some(*one));
            let expected: Vec<_> = firsts.map(|first| first.id).collect();
            let listed = queues.contended_keys(db).into_iter();
            prop_assert_eq!(listed.map(|first| first.id).collect::<Vec<_>>(), expected);
        }
        for (who, name) in OWNERS.iter().enumerate() {
            let keys = (0..KEYS.len()).filter(|&key| self.of(key, who).is_some());
            let keys: BTreeSet<KeyBuf> = keys.map(|key| KEYS[key].into()).collect();
            let waits: Vec<KeyBuf> = queues
                .waits_of(&owner(name))
                .map(|one| one.key.clone())
                .collect();
            prop_assert_eq!(queues.waits(&owner(name)), !keys.is_empty());
            prop_assert_eq!(waits.len(), keys.len(), "each key once");
            prop_assert!(waits.iter().all(|key| keys.contains(key)));
        }
        Ok(())
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
            model.step(&mut queues, step, &mut ids)?;
            model.check(&queues)?;
        }
        prop_assert!(ids.is_sorted(), "later waiters have greater ids");
        for id in ids {
            let waiting = model.waiting.iter().find(|waiting| waiting.id == id);
            let key = waiting.map(|waiting| KeyBuf::from(KEYS[waiting.key]));
            prop_assert_eq!(queues.key_of(id), key.as_ref());
        }
    }
}
