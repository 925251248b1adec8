use std::collections::BTreeMap;

use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use crate::lock::fence::FENCE_MAX;
use crate::lock::request::HoldNumber;
use crate::lock::stored::{FENCE_FIELD, Reader};

const NOW: Now = Now {
    us: 1_700_000_000_000_999,
};
const NOW_MS: i64 = 1_700_000_000_000;

/// The token of a new grant at `NOW` by a fresh clock.
const NEW: i64 = NOW.us;

/// The lease of every request here, unless a test says otherwise.
const LEASE_MS: i64 = 1000;

/// When a lease that begins at `NOW` is over.
const END: i64 = NOW_MS + LEASE_MS;

fn owner(name: &str) -> Owner {
    Owner::new(name.as_bytes()).unwrap()
}

fn fence(token: i64) -> Fence {
    Fence::new(token).unwrap()
}

pub(in crate::lock) fn free(last_fence: Option<i64>) -> Lock {
    Lock {
        last_fence: last_fence.map(fence),
        ..Lock::default()
    }
}

pub(in crate::lock) fn held(
    name: &str,
    holds: i64,
    token: Option<i64>,
    lease_end_ms: Option<i64>,
) -> Lock {
    Lock {
        holders: smallvec![Holder {
            owner: owner(name),
            holds,
            fence: token.map(fence),
            lease_end_ms,
            limit: Limit::EXCLUSIVE,
        }],
        last_fence: token.map(fence),
        expires_at_ms: lease_end_ms,
        leftovers: false,
    }
}

fn sets(name: &str, holds: i64, new_fence: Option<i64>) -> Effect {
    Effect::SetHolder {
        owner: owner(name),
        holds,
        permit: None,
        new_fence: new_fence.map(fence),
    }
}

fn expires(at_ms: i64) -> Effect {
    Effect::ExpireAt { at_ms }
}

fn acquire(name: &str, lease_ms: i64, hold: Option<i64>) -> AcquireRequest {
    AcquireRequest {
        owner: owner(name),
        lease: Lease::from_ms(lease_ms).unwrap(),
        hold: hold.map(hold_number),
        limit: Limit::EXCLUSIVE,
        session: None,
    }
}

fn release(name: &str, token: Option<i64>, extent: ReleaseExtent) -> ReleaseRequest {
    ReleaseRequest {
        owner: owner(name),
        fence: token.map(fence),
        extent,
    }
}

fn renew(name: &str, lease_ms: i64, token: Option<i64>) -> RenewRequest {
    RenewRequest {
        owner: owner(name),
        lease: Lease::from_ms(lease_ms).unwrap(),
        fence: token.map(fence),
    }
}

fn hold_number(n: i64) -> HoldNumber {
    HoldNumber::new(n).unwrap()
}

fn hold(n: i64) -> ReleaseExtent {
    ReleaseExtent::Hold(hold_number(n))
}

fn granted(token: i64) -> Result<Acquired, LockError> {
    Ok(Acquired::Granted(fence(token)))
}

fn hold_count<T>(wanted: i64, held: i64) -> Result<T, LockError> {
    Err(LockError::HoldCount { wanted, held })
}

/// Runs one transition. An earlier one has written something already, which
/// must stay where it is.
#[track_caller]
fn check<R: PartialEq + std::fmt::Debug>(
    before: &Lock,
    transition: impl FnOnce(&mut Lock, &mut Effects) -> R,
    reply: R,
    effects: &[Effect],
    after: &Lock,
) {
    let mut lock = before.clone();
    let mut written: Effects = smallvec![Effect::Delete];
    assert_eq!(transition(&mut lock, &mut written), reply);
    assert_eq!(written.split_first(), Some((&Effect::Delete, effects)));
    assert_eq!(&lock, after);
}

#[track_caller]
fn check_acquire(
    before: &Lock,
    request: &AcquireRequest,
    reply: Result<Acquired, LockError>,
    effects: &[Effect],
    after: &Lock,
) {
    let mut fences = FenceClock::default();
    check(
        before,
        |lock, written| lock.acquire(request, true, NOW, &mut fences, written),
        reply,
        effects,
        after,
    );
}

/// A request that is refused, or finds the lock busy, leaves no trace.
#[track_caller]
fn check_acquire_in_vain(
    lock: &Lock,
    request: &AcquireRequest,
    reply: Result<Acquired, LockError>,
) {
    check_acquire(lock, request, reply, &[], lock);
}

#[track_caller]
fn check_release(
    before: &Lock,
    request: &ReleaseRequest,
    reply: Result<Released, LockError>,
    effects: &[Effect],
    after: &Lock,
) {
    check(
        before,
        |lock, written| lock.release(request, written),
        reply,
        effects,
        after,
    );
}

#[track_caller]
fn check_release_in_vain(
    lock: &Lock,
    request: &ReleaseRequest,
    reply: Result<Released, LockError>,
) {
    check_release(lock, request, reply, &[], lock);
}

#[track_caller]
fn check_renew(
    before: &Lock,
    request: &RenewRequest,
    renewed: bool,
    effects: &[Effect],
    after: &Lock,
) {
    check(
        before,
        |lock, written| lock.renew(request, NOW, written),
        renewed,
        effects,
        after,
    );
}

mod acquiring {
    use super::*;

    #[test]
    fn a_free_lock_is_granted_with_a_new_token_and_a_lease() {
        for hold in [None, Some(1)] {
            check_acquire(
                &free(None),
                &acquire("a", LEASE_MS, hold),
                granted(NEW),
                &[sets("a", 1, Some(NEW)), expires(END)],
                &held("a", 1, Some(NEW), Some(END)),
            );
        }
    }

    #[test]
    fn a_new_token_is_greater_than_the_one_the_lock_remembers() {
        check_acquire(
            &free(Some(NEW + 5)),
            &acquire("a", LEASE_MS, None),
            granted(NEW + 6),
            &[sets("a", 1, Some(NEW + 6)), expires(END)],
            &held("a", 1, Some(NEW + 6), Some(END)),
        );
    }

    #[test]
    fn there_is_no_grant_without_a_greater_token() {
        check_acquire_in_vain(
            &free(Some(FENCE_MAX)),
            &acquire("a", LEASE_MS, None),
            Err(Usage::FencesExhausted.into()),
        );
    }

    #[test]
    fn reentry_counts_and_keeps_the_token() {
        check_acquire(
            &held("a", 1, Some(7), Some(END - 1)),
            &acquire("a", LEASE_MS, None),
            granted(7),
            &[sets("a", 2, None), expires(END)],
            &held("a", 2, Some(7), Some(END)),
        );
    }

    #[test]
    fn reentry_never_shortens_the_lease() {
        for end in [END, END + 1, i64::MAX] {
            check_acquire(
                &held("a", 1, Some(7), Some(end)),
                &acquire("a", LEASE_MS, None),
                granted(7),
                &[sets("a", 2, None)],
                &held("a", 2, Some(7), Some(end)),
            );
        }
    }

    #[test]
    fn a_hold_of_redisson_gets_its_token_on_reentry() {
        check_acquire(
            &held("a", 1, None, Some(END + 1)),
            &acquire("a", LEASE_MS, None),
            granted(NEW),
            &[sets("a", 2, Some(NEW))],
            &held("a", 2, Some(NEW), Some(END + 1)),
        );
        // The resent request changes no count, but its reply is a token all
        // the same, and that token must be the stored one.
        check_acquire(
            &held("a", 2, None, Some(END + 1)),
            &acquire("a", LEASE_MS, Some(2)),
            granted(NEW),
            &[sets("a", 2, Some(NEW))],
            &held("a", 2, Some(NEW), Some(END + 1)),
        );
    }

    #[test]
    fn a_persisted_lock_keeps_having_no_end() {
        check_acquire(
            &held("a", 1, Some(7), None),
            &acquire("a", LEASE_MS, None),
            granted(7),
            &[sets("a", 2, None)],
            &held("a", 2, Some(7), None),
        );
    }

    #[test]
    fn the_hold_that_comes_next_is_counted() {
        check_acquire(
            &held("a", 4, Some(7), Some(END)),
            &acquire("a", LEASE_MS, Some(5)),
            granted(7),
            &[sets("a", 5, None)],
            &held("a", 5, Some(7), Some(END)),
        );
    }

    #[test]
    fn a_resent_hold_changes_nothing_but_the_lease() {
        check_acquire(
            &held("a", 5, Some(7), Some(END)),
            &acquire("a", LEASE_MS, Some(5)),
            granted(7),
            &[],
            &held("a", 5, Some(7), Some(END)),
        );
        check_acquire(
            &held("a", 5, Some(7), Some(END - 1)),
            &acquire("a", LEASE_MS, Some(5)),
            granted(7),
            &[expires(END)],
            &held("a", 5, Some(7), Some(END)),
        );
    }

    #[test]
    fn any_other_hold_is_refused() {
        let lock = held("a", 5, Some(7), Some(END - 1));
        for wanted in [1, 4, 7, i64::MAX] {
            let request = acquire("a", LEASE_MS, Some(wanted));
            check_acquire_in_vain(&lock, &request, hold_count(wanted, 5));
        }
        // A refused request uses up no token either, and gives none to a hold
        // of Redisson.
        let of_redisson = held("a", 5, None, Some(END - 1));
        let request = acquire("a", LEASE_MS, Some(2));
        check_acquire_in_vain(&of_redisson, &request, hold_count(2, 5));
    }

    #[test]
    fn a_free_lock_has_only_a_first_hold_to_give() {
        for lock in [free(None), free(Some(7))] {
            let request = acquire("a", LEASE_MS, Some(2));
            check_acquire_in_vain(&lock, &request, hold_count(2, 0));
        }
    }

    #[test]
    fn a_lock_of_another_owner_is_busy() {
        for lock in [
            held("b", 2, Some(7), Some(END)),
            held("b", 2, Some(7), None),
            held("b", 2, None, Some(END)),
            // The server alone decides when a lease is over.
            held("b", 2, Some(7), Some(NOW_MS - 1)),
        ] {
            for hold in [None, Some(1)] {
                let request = acquire("a", LEASE_MS, hold);
                check_acquire_in_vain(&lock, &request, Ok(Acquired::Busy));
            }
            // Waiting would never make these fit, whatever the other owner has.
            for wanted in [2, 3] {
                let request = acquire("a", LEASE_MS, Some(wanted));
                check_acquire_in_vain(&lock, &request, hold_count(wanted, 0));
            }
        }
    }

    #[test]
    fn a_hold_count_does_not_overflow() {
        let most = held("a", i64::MAX, Some(7), Some(END));
        let error = Err(Usage::TooManyHolds.into());
        check_acquire_in_vain(&most, &acquire("a", LEASE_MS, None), error);
        check_acquire(
            &most,
            &acquire("a", LEASE_MS, Some(i64::MAX)),
            granted(7),
            &[],
            &most,
        );
    }

    #[test]
    fn a_refused_grant_uses_up_no_token() {
        let mut fences = FenceClock::default();
        let mut effects = Effects::new();
        let request = acquire("a", LEASE_MS, Some(2));
        let refused = free(None).acquire(&request, true, NOW, &mut fences, &mut effects);
        assert_eq!(refused, hold_count(2, 0));
        assert_eq!(fences.next(0, None), Ok(fence(1)));
    }
}

mod releasing {
    use super::*;

    #[test]
    fn one_release_ends_one_hold() {
        check_release(
            &held("a", 3, Some(7), Some(END)),
            &release("a", None, ReleaseExtent::One),
            Ok(Released::StillHeld),
            &[sets("a", 2, None)],
            &held("a", 2, Some(7), Some(END)),
        );
    }

    #[test]
    fn the_last_release_frees_the_lock() {
        for (holds, extent) in [
            (1, ReleaseExtent::One),
            (1, ReleaseExtent::All),
            (5, ReleaseExtent::All),
            (i64::MAX, ReleaseExtent::All),
            (1, hold(1)),
        ] {
            for token in [None, Some(7)] {
                check_release(
                    &held("a", holds, Some(7), Some(END)),
                    &release("a", token, extent),
                    Ok(Released::LastHold),
                    &[Effect::Delete],
                    &free(Some(7)),
                );
            }
        }
    }

    #[test]
    fn a_hold_of_redisson_is_released_like_any_other() {
        let of_redisson = |holds| held("a", holds, None, Some(END));
        check_release(
            &of_redisson(2),
            &release("a", None, ReleaseExtent::One),
            Ok(Released::StillHeld),
            &[sets("a", 1, None)],
            &of_redisson(1),
        );
        check_release(
            &of_redisson(1),
            &release("a", None, ReleaseExtent::One),
            Ok(Released::LastHold),
            &[Effect::Delete],
            &free(None),
        );
        // It has no token, so none can be the right one.
        let named = release("a", Some(7), ReleaseExtent::All);
        check_release_in_vain(&of_redisson(1), &named, Ok(Released::NotHeld));
    }

    #[test]
    fn who_names_another_token_releases_nothing() {
        let lock = held("a", 2, Some(7), Some(END));
        for token in [6, 8] {
            for extent in [ReleaseExtent::One, ReleaseExtent::All, hold(2), hold(9)] {
                let request = release("a", Some(token), extent);
                check_release_in_vain(&lock, &request, Ok(Released::NotHeld));
            }
        }
    }

    #[test]
    fn who_does_not_hold_the_lock_releases_nothing() {
        for lock in [
            free(None),
            free(Some(7)),
            held("b", 1, Some(7), Some(END)),
            held("b", 1, None, Some(END)),
        ] {
            for extent in [ReleaseExtent::One, ReleaseExtent::All] {
                for token in [None, Some(7)] {
                    let request = release("a", token, extent);
                    check_release_in_vain(&lock, &request, Ok(Released::NotHeld));
                }
            }
        }
    }

    #[test]
    fn a_named_hold_ends_once() {
        check_release(
            &held("a", 3, Some(7), Some(END)),
            &release("a", None, hold(3)),
            Ok(Released::StillHeld),
            &[sets("a", 2, None)],
            &held("a", 2, Some(7), Some(END)),
        );
        check_release_in_vain(
            &held("a", 2, Some(7), Some(END)),
            &release("a", None, hold(3)),
            Ok(Released::StillHeld),
        );
    }

    #[test]
    fn a_resent_release_of_the_first_hold_gets_the_reply_it_missed() {
        let request = release("a", None, hold(1));
        for lock in [free(None), free(Some(7)), held("b", 3, Some(8), Some(END))] {
            check_release_in_vain(&lock, &request, Ok(Released::LastHold));
        }
    }

    #[test]
    fn any_other_hold_is_refused() {
        let lock = held("a", 3, Some(7), Some(END));
        for wanted in [1, 2, 5, i64::MAX] {
            let request = release("a", None, hold(wanted));
            check_release_in_vain(&lock, &request, hold_count(wanted, 3));
        }
        for lock in [free(None), held("b", 3, Some(8), Some(END))] {
            let request = release("a", None, hold(2));
            check_release_in_vain(&lock, &request, hold_count(2, 0));
        }
    }

    #[test]
    fn a_release_and_the_grant_that_follows_are_one_list_of_writes() {
        let mut lock = held("a", 1, Some(NEW + 5), Some(END));
        let mut effects = Effects::new();
        let released = lock.release(&release("a", None, ReleaseExtent::One), &mut effects);
        assert_eq!(released, Ok(Released::LastHold));
        let request = acquire("b", LEASE_MS, None);
        let acquired = lock.acquire(
            &request,
            true,
            NOW,
            &mut FenceClock::default(),
            &mut effects,
        );
        assert_eq!(acquired, granted(NEW + 6));
        let expected = [Effect::Delete, sets("b", 1, Some(NEW + 6)), expires(END)];
        assert_eq!(effects[..], expected);
        assert_eq!(lock, held("b", 1, Some(NEW + 6), Some(END)));
    }
}

mod renewing {
    use super::*;

    #[test]
    fn a_renewed_lease_ends_exactly_then_even_if_that_is_earlier() {
        for end in [Some(END - 1), Some(END + 1), None] {
            for token in [None, Some(7)] {
                check_renew(
                    &held("a", 2, Some(7), end),
                    &renew("a", LEASE_MS, token),
                    true,
                    &[expires(END)],
                    &held("a", 2, Some(7), Some(END)),
                );
            }
        }
    }

    #[test]
    fn a_hold_of_redisson_is_renewed_without_getting_a_token() {
        check_renew(
            &held("a", 2, None, Some(END - 1)),
            &renew("a", LEASE_MS, None),
            true,
            &[expires(END)],
            &held("a", 2, None, Some(END)),
        );
    }

    #[test]
    fn who_does_not_hold_the_lock_with_this_token_renews_nothing() {
        for (lock, token) in [
            (free(None), None),
            (free(Some(7)), Some(7)),
            (held("b", 1, Some(7), Some(END - 1)), None),
            (held("b", 1, Some(7), Some(END - 1)), Some(7)),
            (held("a", 1, Some(7), Some(END - 1)), Some(6)),
            (held("a", 1, Some(7), Some(END - 1)), Some(8)),
            (held("a", 1, None, Some(END - 1)), Some(7)),
        ] {
            check_renew(&lock, &renew("a", LEASE_MS, token), false, &[], &lock);
        }
    }
}

/// Random histories of one key: commands of a few owners, Redisson's scripts,
/// and whatever else may befall a key.
mod histories {
    use super::*;

    const OWNERS: [&str; 3] = ["a", "b", "c"];

    /// The token that a command names.
    #[derive(Clone, Copy, Debug)]
    enum Named {
        Nothing,
        Newest,
        Stale,
    }

    impl Named {
        fn token(self, newest: i64) -> Option<i64> {
            match self {
                Self::Nothing => None,
                Self::Newest => Some(newest),
                Self::Stale => Some(1),
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Acquire {
            who: usize,
            lease_ms: i64,
            hold: Option<i64>,
        },
        Release {
            who: usize,
            named: Named,
            extent: ReleaseExtent,
        },
        Renew {
            who: usize,
            lease_ms: i64,
            named: Named,
        },
        RedissonLocks {
            who: usize,
            lease_ms: i64,
        },
        /// Time passes, or the clock is set back.
        Clock {
            by_us: i64,
        },
        Del,
        /// `HDEL key owner`
        HdelOwner,
        Persist,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let who = || 0..OWNERS.len();
        let lease = || 1..2000_i64;
        let named = || prop_oneof![3 => Just(Named::Nothing), 3 => Just(Named::Newest), 1 => Just(Named::Stale)];
        let extent = prop_oneof![
            4 => Just(ReleaseExtent::One),
            1 => Just(ReleaseExtent::All),
            3 => (1..5_i64).prop_map(hold),
        ];
        let step = prop_oneof![
            12 => (who(), lease(), prop::option::of(1..5_i64))
                .prop_map(|(who, lease_ms, hold)| Step::Acquire { who, lease_ms, hold }),
            8 => (who(), named(), extent)
                .prop_map(|(who, named, extent)| Step::Release { who, named, extent }),
            3 => (who(), lease(), named())
                .prop_map(|(who, lease_ms, named)| Step::Renew { who, lease_ms, named }),
            2 => (who(), lease()).prop_map(|(who, lease_ms)| Step::RedissonLocks { who, lease_ms }),
            4 => (-200_000..600_000_i64).prop_map(|by_us| Step::Clock { by_us }),
            1 => Just(Step::Del),
            1 => Just(Step::HdelOwner),
            1 => Just(Step::Persist),
        ];
        prop::collection::vec(step, 1..80)
    }

    /// What the server would do with the core commands that the effects stand for.
    fn apply(hash: &mut BTreeMap<Vec<u8>, Vec<u8>>, expiry: &mut Option<i64>, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::SetHolder {
                    owner,
                    holds,
                    permit,
                    new_fence,
                } => {
                    hash.insert(owner.as_bytes().to_vec(), holds.to_string().into_bytes());
                    if let Some(permit) = permit {
                        let field = [b"@permit:", owner.as_bytes()].concat();
                        hash.insert(field, permit.to_text().into_bytes());
                    }
                    if let Some(fence) = new_fence {
                        hash.insert(b"@fence".to_vec(), fence.get().to_string().into_bytes());
                    }
                }
                Effect::RemoveHolder { owner } => {
                    let field = [b"@permit:", owner.as_bytes()].concat();
                    assert!(hash.remove(owner.as_bytes()).is_some());
                    assert!(hash.remove(&field).is_some());
                }
                Effect::ExpireAt { at_ms } => {
                    assert!(!hash.is_empty(), "PEXPIREAT would find no key");
                    *expiry = Some(*at_ms);
                }
                Effect::Delete => {
                    hash.clear();
                    *expiry = None;
                }
            }
        }
    }

    #[derive(Debug, PartialEq)]
    enum Reply {
        Acquired(Result<Acquired, LockError>),
        Released(Result<Released, LockError>),
        Renewed(bool),
        Event,
    }

    impl Reply {
        fn is_error(&self) -> bool {
            matches!(self, Self::Acquired(Err(_)) | Self::Released(Err(_)))
        }
    }

    /// The code under test over a stored hash. The working copy lives on from
    /// command to command, and is read anew only after an event that was none
    /// of ours.
    struct Real {
        hash: BTreeMap<Vec<u8>, Vec<u8>>,
        expiry: Option<i64>,
        now: Now,
        lock: Lock,
        fences: FenceClock,
        effects: Effects,
        newest: i64,
    }

    impl Real {
        fn new() -> Self {
            Self {
                hash: BTreeMap::new(),
                expiry: None,
                now: NOW,
                lock: free(None),
                fences: FenceClock::default(),
                effects: Effects::new(),
                newest: 1,
            }
        }

        fn reread(&self) -> Lock {
            let mut reader = Reader::default();
            for (name, value) in &self.hash {
                reader.field(name, value);
            }
            reader.finish(self.expiry).unwrap()
        }

        /// The working copy as it would be reread. That of a lock that was
        /// released just now remembers a token which is stored no more.
        fn expected_reread(&self) -> Lock {
            if self.hash.is_empty() {
                free(None)
            } else {
                self.lock.clone()
            }
        }

        fn run(&mut self, step: &Step) -> Reply {
            let written = self.effects.len();
            let reply = match *step {
                Step::Acquire {
                    who,
                    lease_ms,
                    hold,
                } => {
                    let request = acquire(OWNERS[who], lease_ms, hold);
                    let (fences, effects) = (&mut self.fences, &mut self.effects);
                    let acquired = self.lock.acquire(&request, true, self.now, fences, effects);
                    if let Ok(Acquired::Granted(fence)) = acquired {
                        self.newest = self.newest.max(fence.get());
                    }
                    Reply::Acquired(acquired)
                }
                Step::Release { who, named, extent } => {
                    let request = release(OWNERS[who], named.token(self.newest), extent);
                    Reply::Released(self.lock.release(&request, &mut self.effects))
                }
                Step::Renew {
                    who,
                    lease_ms,
                    named,
                } => {
                    let request = renew(OWNERS[who], lease_ms, named.token(self.newest));
                    Reply::Renewed(self.lock.renew(&request, self.now, &mut self.effects))
                }
                _ => {
                    self.suffer(step);
                    self.lock = self.reread();
                    Reply::Event
                }
            };
            let (hash, expiry) = (&mut self.hash, &mut self.expiry);
            apply(hash, expiry, &self.effects[written..]);
            reply
        }

        /// What the server does without the module.
        fn suffer(&mut self, event: &Step) {
            let owner = self.hash.keys().find(|name| name[0] != b'@').cloned();
            match *event {
                Step::RedissonLocks { who, lease_ms } => {
                    let name = OWNERS[who].as_bytes();
                    if self.hash.is_empty() || self.hash.contains_key(name) {
                        let count = self.hash.get(name).map_or(0, |count| {
                            String::from_utf8_lossy(count).parse::<i64>().unwrap()
                        });
                        let count = (count + 1).to_string().into_bytes();
                        self.hash.insert(name.to_vec(), count);
                        self.expiry = Some(self.now.ms() + lease_ms);
                    }
                }
                Step::Clock { by_us } => {
                    self.now.us += by_us;
                    if self.expiry.is_some_and(|end| end <= self.now.ms()) {
                        apply(&mut self.hash, &mut self.expiry, &[Effect::Delete]);
                    }
                }
                Step::Del => apply(&mut self.hash, &mut self.expiry, &[Effect::Delete]),
                Step::HdelOwner => {
                    if let Some(owner) = owner {
                        self.hash.remove(&owner);
                    }
                    if self.hash.is_empty() {
                        self.expiry = None;
                    }
                }
                // Without a token and an expiry it would be no lock.
                Step::Persist if self.hash.contains_key(FENCE_FIELD) => self.expiry = None,
                _ => {}
            }
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Hold {
        who: usize,
        count: i64,
        token: Option<i64>,
        end_ms: Option<i64>,
    }

    /// The contract in its own words: who holds the lock, how often, since which token.
    #[derive(Clone, Debug)]
    struct Model {
        hold: Option<Hold>,
        /// Whether the key is there without an owner, and until when.
        leftover: Option<Option<i64>>,
        newest: i64,
        now_us: i64,
    }

    impl Model {
        fn new() -> Self {
            Self {
                hold: None,
                leftover: None,
                newest: 1,
                now_us: NOW.us,
            }
        }

        fn count_of(&self, who: usize) -> i64 {
            self.hold_of(who).map_or(0, |hold| hold.count)
        }

        fn hold_of(&self, who: usize) -> Option<Hold> {
            self.hold.filter(|hold| hold.who == who)
        }

        fn now_ms(&self) -> i64 {
            self.now_us / 1000
        }

        /// Follows a step. Only the value of a new token is taken from the
        /// reply; everything else is foretold.
        fn follow(&mut self, step: &Step, reply: &Reply) -> Result<(), TestCaseError> {
            let foretold = match *step {
                Step::Acquire {
                    who,
                    lease_ms,
                    hold,
                } => Reply::Acquired(self.acquire(who, self.now_ms() + lease_ms, hold, reply)?),
                Step::Release { who, named, extent } => {
                    Reply::Released(self.release(who, named.token(self.newest), extent))
                }
                Step::Renew {
                    who,
                    lease_ms,
                    named,
                } => {
                    let named = named.token(self.newest);
                    let end_ms = Some(self.now_ms() + lease_ms);
                    let renewed = self
                        .hold_of(who)
                        .filter(|hold| named.is_none() || named == hold.token)
                        .map(|hold| Hold { end_ms, ..hold });
                    self.hold = renewed.or(self.hold);
                    Reply::Renewed(renewed.is_some())
                }
                _ => {
                    self.suffer(step);
                    Reply::Event
                }
            };
            prop_assert_eq!(reply, &foretold);
            Ok(())
        }

        fn acquire(
            &mut self,
            who: usize,
            end_ms: i64,
            wanted: Option<i64>,
            reply: &Reply,
        ) -> Result<Result<Acquired, LockError>, TestCaseError> {
            let held = self.count_of(who);
            let count = wanted.unwrap_or(held + 1);
            if count != held && count != held + 1 {
                return Ok(hold_count(count, held));
            }
            if self.hold.is_some_and(|hold| hold.who != who) {
                return Ok(Ok(Acquired::Busy));
            }
            let token = match self.hold.and_then(|hold| hold.token) {
                Some(token) => token,
                None => {
                    let Reply::Acquired(Ok(Acquired::Granted(fence))) = reply else {
                        return Err(TestCaseError::fail(format!("no grant: {reply:?}")));
                    };
                    prop_assert!(fence.get() > self.newest, "tokens rise with every holding");
                    prop_assert!(fence.get() >= self.now_us);
                    self.newest = fence.get();
                    fence.get()
                }
            };
            let end_ms = match self.hold {
                Some(hold) => hold.end_ms.map(|old| old.max(end_ms)),
                None => Some(end_ms),
            };
            self.hold = Some(Hold {
                who,
                count,
                token: Some(token),
                end_ms,
            });
            self.leftover = None;
            Ok(granted(token))
        }

        fn release(
            &mut self,
            who: usize,
            named: Option<i64>,
            extent: ReleaseExtent,
        ) -> Result<Released, LockError> {
            let held = self.count_of(who);
            let token = self.hold_of(who).and_then(|hold| hold.token);
            if held > 0 && named.is_some() && named != token {
                return Ok(Released::NotHeld);
            }
            let count = match extent {
                ReleaseExtent::One | ReleaseExtent::All if held == 0 => {
                    return Ok(Released::NotHeld);
                }
                ReleaseExtent::One => held - 1,
                ReleaseExtent::All => 0,
                ReleaseExtent::Hold(n) => {
                    let n = n.count_with();
                    if n != held && n != held + 1 {
                        return hold_count(n, held);
                    }
                    n - 1
                }
            };
            if held > 0 {
                self.hold = self.hold.map(|hold| Hold { count, ..hold });
                self.hold = self.hold.filter(|_| count > 0);
            }
            Ok(if count == 0 {
                Released::LastHold
            } else {
                Released::StillHeld
            })
        }

        fn suffer(&mut self, event: &Step) {
            match *event {
                Step::RedissonLocks { who, lease_ms } => {
                    let absent = self.hold.is_none() && self.leftover.is_none();
                    if absent || self.count_of(who) > 0 {
                        self.hold = Some(Hold {
                            who,
                            count: self.count_of(who) + 1,
                            token: self.hold.and_then(|hold| hold.token),
                            end_ms: Some(self.now_ms() + lease_ms),
                        });
                    }
                }
                Step::Clock { by_us } => {
                    self.now_us += by_us;
                    let now_ms = self.now_ms();
                    let lasts = |end: Option<i64>| end.is_none_or(|end| end > now_ms);
                    self.hold = self.hold.filter(|hold| lasts(hold.end_ms));
                    self.leftover = self.leftover.filter(|&end| lasts(end));
                }
                Step::Del => (self.hold, self.leftover) = (None, None),
                Step::HdelOwner => {
                    if let Some(hold) = self.hold.take() {
                        self.leftover = hold.token.map(|_| hold.end_ms);
                    }
                }
                Step::Persist => {
                    self.leftover = self.leftover.map(|_| None);
                    if let Some(hold) = &mut self.hold
                        && hold.token.is_some()
                    {
                        hold.end_ms = None;
                    }
                }
                _ => {}
            }
        }

        fn holder(&self) -> Option<Holder> {
            self.hold.map(|hold| Holder {
                owner: owner(OWNERS[hold.who]),
                holds: hold.count,
                fence: hold.token.map(fence),
                lease_end_ms: hold.end_ms,
                limit: Limit::EXCLUSIVE,
            })
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_the_working_copy_says(steps in steps()) {
            let mut real = Real::new();
            for step in &steps {
                let (lock, effects) = (real.lock.clone(), real.effects.clone());
                let reply = real.run(step);
                prop_assert!(real.effects.starts_with(&effects));
                if reply.is_error() {
                    prop_assert_eq!(&real.lock, &lock);
                    prop_assert_eq!(&real.effects, &effects);
                }
                prop_assert_eq!(real.reread(), real.expected_reread(), "after {:?}", step);
                prop_assert!(real.hash.len() <= 2);
            }
        }

        #[test]
        fn a_copy_read_anew_decides_like_the_one_that_was_kept(steps in steps()) {
            let (mut kept, mut anew) = (Real::new(), Real::new());
            for step in &steps {
                anew.lock = anew.reread();
                prop_assert_eq!(kept.run(step), anew.run(step), "at {:?}", step);
            }
            prop_assert_eq!(kept.effects, anew.effects);
        }

        #[test]
        fn locks_do_what_the_contract_says(steps in steps()) {
            let (mut real, mut model) = (Real::new(), Model::new());
            for step in &steps {
                let reply = real.run(step);
                model.follow(step, &reply)?;
                prop_assert_eq!(real.lock.holders().first().cloned(), model.holder(), "after {:?}", step);
            }
        }
    }
}
