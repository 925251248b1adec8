use proptest::prelude::*;

use super::*;
use crate::lock::tests::{owner, token};

const KEY: KeyRef<'static> = key(0, b"k");

const fn key(db: i32, name: &[u8]) -> KeyRef<'_> {
    KeyRef { db, name }
}

fn lease(ms: i64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

/// What a test compares of a binding: client, token and lease.
type Told = (u64, i64, i64);

fn told(binding: &Binding) -> Told {
    let newest = binding.clients.last().unwrap();
    (newest.0, binding.token.get(), binding.lease.ms())
}

fn bind(sessions: &mut Sessions, key: KeyRef<'_>, name: &str, to: Told, now_ms: i64) {
    let (client, token, lease_ms) = to;
    let lease = lease(lease_ms);
    let session = SessionToBe {
        client: ClientId(client),
        lease,
        end_ms: lease.end_ms(now_ms),
    };
    sessions.bind(at(key, name), session, self::token(token), false);
}

/// Sets the lease of whatever holds are bound.
fn set_lease(sessions: &mut Sessions, key: KeyRef<'_>, name: &str, lease_ms: i64, now_ms: i64) {
    let binding = sessions.binding_of(key, &owner(name));
    let token = binding.map_or(token(1), |binding| binding.token);
    let lease = lease(lease_ms);
    sessions.change(&at(key, name), Some(token), |bound| {
        bound.set_lease(lease, now_ms)
    });
}

fn take_client(sessions: &mut Sessions, client: u64) -> Vec<(HoldId, Told)> {
    let gone = BTreeSet::from([ClientId(client)]);
    let mut taken = Vec::new();
    while let Some(hold) = sessions.any_of(ClientId(client)).cloned() {
        let before = told(sessions.binding(&hold).unwrap());
        let ended = sessions.untie(&hold, &gone);
        taken.extend(ended.map(|_| (hold, before)));
    }
    taken
}

fn at(key: KeyRef<'_>, name: &str) -> HoldId {
    HoldId::new(key, &owner(name))
}

#[track_caller]
fn check_nothing_is_left(sessions: &mut Sessions) {
    assert!(sessions.is_empty());
    assert_eq!(sessions.len(), 0);
    assert_eq!(sessions.next_renewal_ms(), None);
    assert_eq!(sessions.take_due(i64::MAX), None);
    assert!(sessions.by_client.is_empty());
    assert!(sessions.agree());
}

#[test]
fn of_two_connections_the_one_that_lives_is_shown() {
    let mut sessions = Sessions::default();
    for client in [1, 2] {
        bind(&mut sessions, KEY, "a", (client, 7, 300), 0);
    }
    assert_eq!(take_client(&mut sessions, 2), []);
    let bound = sessions.binding_of(KEY, &owner("a")).unwrap();
    assert_eq!(told(&bound), (1, 7, 300));
    assert_eq!(take_client(&mut sessions, 1), [(at(KEY, "a"), (1, 7, 300))]);
    assert_eq!(sessions.binding_of(KEY, &owner("a")), None);
}

#[test]
fn who_was_told_elsewhere_outlives_its_connections() {
    let tell = |sessions: &mut Sessions, client, told| {
        sessions.change(&at(KEY, "a"), Some(token(told)), |bound| {
            bound.told_by(Some(ClientId(client)))
        });
    };
    for (told, client, is_over) in [(7, 1, true), (8, 2, true), (7, 2, false)] {
        let mut sessions = Sessions::default();
        tell(&mut sessions, client, told);
        bind(&mut sessions, KEY, "a", (1, 7, 300), 0);
        tell(&mut sessions, client, told);
        let gone = BTreeSet::from([ClientId(1)]);
        let binding = sessions.untie(&at(KEY, "a"), &gone).unwrap();
        assert_eq!(binding.told_elsewhere, !is_over);
        check_nothing_is_left(&mut sessions);
    }
}

#[test]
fn no_time_overflows() {
    let mut sessions = Sessions::default();
    let longest = Lease::LONGEST.ms();
    bind(&mut sessions, KEY, "a", (1, 7, longest), i64::MAX - 1);
    assert!(sessions.next_renewal_ms().is_some());
}

/// The sessions against a plain list.
mod against_a_model {
    use super::*;

    const KEYS: [KeyRef<'static>; 3] = [key(0, b"a"), key(0, b"b"), key(1, b"a")];
    const OWNERS: [&str; 3] = ["x", "y", "z"];

    #[derive(Clone, Debug)]
    enum Step {
        Binding(usize, usize, Told),
        SetLease(usize, usize, i64),
        Unbind(usize, usize),
        TakeClient(u64),
        TakeDue,
        /// Time passes, or the clock is set back.
        Clock(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let hold = || (0..KEYS.len(), 0..OWNERS.len());
        let client = || 1..4_u64;
        let lease_ms = || 1..100_i64;
        let step = prop_oneof![
            8 => (hold(), (client(), 1..4_i64, lease_ms()))
                .prop_map(|((key, who), to)| Step::Binding(key, who, to)),
            2 => (hold(), lease_ms())
                .prop_map(|((key, who), lease_ms)| Step::SetLease(key, who, lease_ms)),
            2 => hold().prop_map(|(key, who)| Step::Unbind(key, who)),
            1 => client().prop_map(Step::TakeClient),
            6 => Just(Step::TakeDue),
            4 => (-10..40_i64).prop_map(Step::Clock),
        ];
        prop::collection::vec(step, 1..120)
    }

    #[derive(Clone, Debug)]
    struct BoundHold {
        hold: HoldId,
        /// The one that asked last at the end.
        clients: Vec<u64>,
        token: i64,
        lease_ms: i64,
        renew_at_ms: i64,
    }

    impl BoundHold {
        fn told(&self) -> (HoldId, Told) {
            let newest = *self.clients.last().unwrap();
            (self.hold.clone(), (newest, self.token, self.lease_ms))
        }
    }

    #[derive(Default)]
    struct Model {
        bindings: Vec<BoundHold>,
    }

    impl Model {
        fn unbind(&mut self, hold: &HoldId) -> Option<BoundHold> {
            let found = self.bindings.iter().position(|bound| bound.hold == *hold)?;
            Some(self.bindings.remove(found))
        }

        fn bind(&mut self, hold: HoldId, (client, token, lease_ms): Told, now_ms: i64) {
            let old = self.unbind(&hold).filter(|old| old.token == token);
            let mut clients = old.as_ref().map_or(Vec::new(), |old| old.clients.clone());
            clients.retain(|other| *other != client);
            clients.push(client);
            let renew_at_ms = now_ms + (lease_ms / 3).max(1);
            let new = BoundHold {
                hold,
                clients: clients.clone(),
                token,
                lease_ms,
                renew_at_ms,
            };
            // A shorter lease changes no plan.
            self.bindings.push(match old {
                Some(old) if old.lease_ms > lease_ms => BoundHold { clients, ..old },
                _ => new,
            });
        }

        fn set_lease(&mut self, hold: &HoldId, lease_ms: i64, now_ms: i64) {
            if let Some(bound) = self.bindings.iter_mut().find(|one| one.hold == *hold) {
                bound.lease_ms = lease_ms;
                bound.renew_at_ms = now_ms + (lease_ms / 3).max(1);
            }
        }

        fn take_client(&mut self, client: u64) -> Vec<(HoldId, Told)> {
            let mut gone = Vec::new();
            self.bindings.retain_mut(|bound| {
                let told = bound.told();
                bound.clients.retain(|one| *one != client);
                if bound.clients.is_empty() {
                    gone.push(told);
                }
                !bound.clients.is_empty()
            });
            in_order(gone)
        }

        fn next_renewal_ms(&self) -> Option<i64> {
            self.bindings.iter().map(|bound| bound.renew_at_ms).min()
        }

        /// Plans the next renewal of holds that were due. Those that were due first come
        /// first, in whatever order.
        fn renew(&mut self, hold: &HoldId, now_ms: i64) -> Option<(HoldId, Told)> {
            let first_ms = self.next_renewal_ms()?;
            let bound = self.bindings.iter().find(|one| one.hold == *hold)?.clone();
            self.set_lease(hold, bound.lease_ms, now_ms);
            (bound.renew_at_ms == first_ms && first_ms <= now_ms).then(|| bound.told())
        }
    }

    fn in_order(mut holds: Vec<(HoldId, Told)>) -> Vec<(HoldId, Told)> {
        holds.sort();
        holds
    }

    proptest! {
        #[test]
        fn sessions_behave_like_a_plain_list(steps in steps()) {
            let mut sessions = Sessions::default();
            check_nothing_is_left(&mut sessions);
            let mut model = Model::default();
            let mut now_ms = 1000;
            for step in steps {
                match step {
                    Step::Binding(key, who, (client, token, lease_ms)) => {
                        bind(&mut sessions, KEYS[key], OWNERS[who], (client, token, lease_ms), now_ms);
                        let hold = at(KEYS[key], OWNERS[who]);
                        model.bind(hold, (client, token, lease_ms), now_ms);
                    }
                    Step::SetLease(key, who, lease_ms) => {
                        set_lease(&mut sessions, KEYS[key], OWNERS[who], lease_ms, now_ms);
                        model.set_lease(&at(KEYS[key], OWNERS[who]), lease_ms, now_ms);
                    }
                    Step::Unbind(key, who) => {
                        sessions.unbind(KEYS[key], &owner(OWNERS[who]));
                        model.unbind(&at(KEYS[key], OWNERS[who]));
                    }
                    Step::TakeClient(client) => {
                        let gone = in_order(take_client(&mut sessions, client));
                        prop_assert_eq!(gone, model.take_client(client));
                    }
                    Step::TakeDue => {
                        let next = sessions.next_due(now_ms);
                        let due = sessions.take_due(now_ms);
                        prop_assert_eq!(due.as_ref(), next.as_ref());
                        match due {
                            Some(hold) => {
                                let binding = sessions.binding_of(hold.key.as_ref(), &hold.owner);
                                let due = (hold, told(&binding.unwrap()));
                                let renewed = model.renew(&due.0, now_ms);
                                prop_assert_eq!(Some(due), renewed);
                            }
                            None => {
                                let next_ms = model.next_renewal_ms();
                                prop_assert!(next_ms.is_none_or(|at_ms| at_ms > now_ms));
                            }
                        }
                    }
                    Step::Clock(by_ms) => now_ms += by_ms,
                }
                prop_assert_eq!(sessions.len(), model.bindings.len());
                prop_assert_eq!(sessions.is_empty(), model.bindings.is_empty());
                let [next, expected] = [sessions.next_renewal_ms(), model.next_renewal_ms()];
                prop_assert_eq!(next, expected);
                for (key, who) in KEYS.iter().flat_map(|key| OWNERS.map(|who| (*key, who))) {
                    let binding = sessions.binding_of(key, &owner(who));
                    let bound = model.bindings.iter().find(|bound| bound.hold == at(key, who));
                    prop_assert_eq!(binding.as_ref().map(told), bound.map(|bound| bound.told().1));
                }
                prop_assert!(sessions.agree());
            }
            for client in 1..4 {
                let gone = in_order(take_client(&mut sessions, client));
                prop_assert_eq!(gone, model.take_client(client));
            }
            check_nothing_is_left(&mut sessions);
        }
    }
}

#[test]
fn holds_last_as_long_as_they_have_been_kept_up() {
    let mut sessions = Sessions::default();
    let kept_until = |sessions: &Sessions| {
        let binding = sessions.binding_of(KEY, &owner("a")).unwrap();
        binding.kept_until_ms
    };
    let change = |sessions: &mut Sessions, name: &str, told, change: fn(&mut Binding)| {
        sessions.change(&at(KEY, name), Some(token(told)), change);
    };
    bind(&mut sessions, KEY, "a", (1, 7, 300), 1000);
    assert_eq!(kept_until(&sessions), 1300);
    sessions.take_due(1100).unwrap();
    assert_eq!(kept_until(&sessions), 1300);
    change(&mut sessions, "a", 7, |bound| bound.last_until(1400));
    assert_eq!(kept_until(&sessions), 1400);
    change(&mut sessions, "a", 7, |bound| {
        bound.set_lease(lease(50), 1200)
    });
    assert_eq!(kept_until(&sessions), 1250);
    // The lease of other holds is not that of the bound ones.
    change(&mut sessions, "a", 8, |bound| {
        bound.set_lease(lease(10), 1200)
    });
    assert_eq!(kept_until(&sessions), 1250);
    change(&mut sessions, "a", 8, |bound| bound.last_until(9000));
    assert_eq!(kept_until(&sessions), 1250);
    change(&mut sessions, "a", 7, |bound| bound.last_until(1240));
    assert_eq!(kept_until(&sessions), 1250);
    change(&mut sessions, "a", 7, |bound| bound.last_until(2000));
    assert_eq!(kept_until(&sessions), 2000);
    // Whoever is not bound has nothing to keep.
    change(&mut sessions, "b", 7, |bound| bound.last_until(1400));
    assert_eq!(sessions.len(), 1);
}

#[test]
fn reentry_by_a_shorter_lease_postpones_no_renewal() {
    let mut sessions = Sessions::default();
    bind(&mut sessions, KEY, "a", (1, 7, 60_000), 0);
    bind(&mut sessions, KEY, "a", (2, 7, 1000), 15_000);
    assert_eq!(sessions.next_renewal_ms(), Some(20_000));
    let bound = sessions.binding_of(KEY, &owner("a")).unwrap();
    assert_eq!(told(&bound), (2, 7, 60_000));
    assert_eq!(bound.kept_until_ms, 60_000);
    bind(&mut sessions, KEY, "a", (1, 7, 50_000), 15_000);
    let bound = sessions.binding_of(KEY, &owner("a")).unwrap();
    assert_eq!(bound.kept_until_ms, 65_000);
}

#[test]
fn a_renewal_that_was_not_possible_is_tried_again_when_it_is_planned() {
    let mut sessions = Sessions::default();
    bind(&mut sessions, KEY, "a", (1, 7, 300), 0);
    sessions.take_due(100).unwrap();
    sessions.change(&at(KEY, "a"), Some(token(7)), |bound| {
        bound.renew_at_ms = 110
    });
    assert_eq!(sessions.next_renewal_ms(), Some(110));
    assert_eq!(sessions.next_due(109), None);
    assert_eq!(sessions.next_due(110), Some(at(KEY, "a")));
    assert_eq!(sessions.forget_any().as_deref(), Some(&[ClientId(1)][..]));
    assert_eq!(sessions.forget_any(), None);
    check_nothing_is_left(&mut sessions);
}
