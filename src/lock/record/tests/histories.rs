//! Random histories of one key: commands of a few owners, Redisson's scripts,
//! and whatever else may befall a key.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::lock::stored::{FENCE_FIELD, PERMIT_PREFIX, Reader};

const OWNERS: [&str; 4] = ["a", "b", "c", "d"];

/// The token that a command names.
#[derive(Clone, Copy, Debug)]
enum Named {
    Nothing,
    /// The last one that its owner got.
    Own,
    /// The last one that anybody got.
    Newest,
    Stale,
}

/// The tokens that were granted.
#[derive(Clone, Copy, Debug)]
struct Tokens {
    last_of: [i64; OWNERS.len()],
    newest: i64,
}

impl Tokens {
    const NONE: Self = Self {
        last_of: [1; OWNERS.len()],
        newest: 1,
    };

    fn note(&mut self, who: usize, token: i64) {
        self.last_of[who] = token;
        self.newest = self.newest.max(token);
    }

    fn named(&self, named: Named, who: usize) -> Option<i64> {
        match named {
            Named::Nothing => None,
            Named::Own => Some(self.last_of[who]),
            Named::Newest => Some(self.newest),
            Named::Stale => Some(1),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        who: usize,
        lease_ms: i64,
        hold: Option<i64>,
        limit: Limit,
        in_turn: bool,
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
    /// A connection to which the hold of this token is tied keeps it.
    Keep {
        who: usize,
        lease_ms: i64,
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
    HdelOwner {
        who: usize,
    },
    Persist,
    /// `PEXPIRE key ms`
    Expire {
        in_ms: i64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..OWNERS.len();
    let lease = || 1..2000_i64;
    let hold_count = prop_oneof![2 => Just(None), 1 => (1..5_i64).prop_map(Some)];
    let limit = prop_oneof![
        2 => Just(Limit::EXCLUSIVE),
        3 => Just(Limit::SHARED),
        3 => (2..=3_i64).prop_map(limit),
    ];
    let in_turn = || prop::bool::weighted(0.9);
    let named = || {
        prop_oneof![
            4 => Just(Named::Nothing),
            4 => Just(Named::Own),
            1 => Just(Named::Newest),
            1 => Just(Named::Stale),
        ]
    };
    let extent = prop_oneof![
        4 => Just(ReleaseExtent::One),
        1 => Just(ReleaseExtent::All),
        3 => (1..5_i64).prop_map(hold),
    ];
    let step = prop_oneof![
        16 => (who(), lease(), hold_count, limit, in_turn()).prop_map(
            |(who, lease_ms, hold, limit, in_turn)| {
                Step::Acquire { who, lease_ms, hold, limit, in_turn }
            }
        ),
        8 => (who(), named(), extent)
            .prop_map(|(who, named, extent)| Step::Release { who, named, extent }),
        3 => (who(), lease(), named())
            .prop_map(|(who, lease_ms, named)| Step::Renew { who, lease_ms, named }),
        2 => (who(), lease()).prop_map(|(who, lease_ms)| Step::Keep { who, lease_ms }),
        2 => (who(), lease()).prop_map(|(who, lease_ms)| Step::RedissonLocks { who, lease_ms }),
        4 => (-200_000..600_000_i64).prop_map(|by_us| Step::Clock { by_us }),
        1 => Just(Step::Del),
        1 => who().prop_map(|who| Step::HdelOwner { who }),
        1 => Just(Step::Persist),
        2 => (1..2000_i64).prop_map(|in_ms| Step::Expire { in_ms }),
    ];
    prop::collection::vec(step, 1..80)
}

/// The key, as the server keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Stored {
    hash: BTreeMap<Vec<u8>, Vec<u8>>,
    expires_at_ms: Option<i64>,
}

impl Stored {
    /// What the server would do with the core commands that the effects stand for.
    fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::SetHolder {
                    owner,
                    holds,
                    permit,
                    new_fence,
                } => {
                    self.set(owner.as_bytes(), holds);
                    if let Some(permit) = permit {
                        self.set(&permit_field(owner), permit.to_text());
                    }
                    if let Some(fence) = new_fence {
                        self.set(FENCE_FIELD, fence.get());
                    }
                }
                Effect::RemoveHolder { owner } => {
                    assert!(self.hash.remove(owner.as_bytes()).is_some());
                    assert!(self.hash.remove(&permit_field(owner)).is_some());
                    assert!(!self.hash.is_empty(), "the key would be gone");
                }
                Effect::ExpireAt { at_ms } => {
                    assert!(!self.hash.is_empty(), "PEXPIREAT would find no key");
                    self.expires_at_ms = Some(*at_ms);
                }
                Effect::Delete => *self = Self::default(),
            }
        }
    }

    fn set(&mut self, field: &[u8], value: impl ToString) {
        self.hash
            .insert(field.to_vec(), value.to_string().into_bytes());
    }

    /// What the server does without the module.
    fn suffer(&mut self, event: &Step, now_ms: i64) {
        match *event {
            Step::RedissonLocks { who, lease_ms } => {
                let name = OWNERS[who].as_bytes();
                if self.hash.is_empty() || self.hash.contains_key(name) {
                    let count = self.hash.get(name).map_or(0, |count| {
                        String::from_utf8_lossy(count).parse::<i64>().unwrap()
                    });
                    self.set(name, count + 1);
                    self.expires_at_ms = Some(now_ms + lease_ms);
                }
            }
            Step::Clock { .. } if self.expires_at_ms.is_none_or(|end| end >= now_ms) => {}
            Step::Clock { .. } | Step::Del => self.apply(&[Effect::Delete]),
            Step::HdelOwner { who } => {
                self.hash.remove(OWNERS[who].as_bytes());
                if self.hash.is_empty() {
                    self.expires_at_ms = None;
                }
            }
            // Without a token and an expiry it would be no lock.
            Step::Persist if self.hash.contains_key(FENCE_FIELD) => self.expires_at_ms = None,
            Step::Expire { in_ms } if !self.hash.is_empty() => {
                self.expires_at_ms = Some(now_ms + in_ms);
            }
            _ => {}
        }
    }

    fn read(&self) -> Lock {
        let mut reader = Reader::default();
        for (name, value) in &self.hash {
            reader.field(name, value);
        }
        reader.finish(self.expires_at_ms).unwrap()
    }
}

fn permit_field(owner: &Owner) -> Vec<u8> {
    [PERMIT_PREFIX, owner.as_bytes()].concat()
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
    stored: Stored,
    now: Now,
    lock: Lock,
    fences: FenceClock,
    tokens: Tokens,
}

impl Real {
    fn new() -> Self {
        Self {
            stored: Stored::default(),
            now: NOW,
            lock: free(None),
            fences: FenceClock::default(),
            tokens: Tokens::NONE,
        }
    }

    /// The working copy as it would be reread. That of a lock that was
    /// released just now remembers a token which is stored no more.
    fn expected_reread(&self) -> Lock {
        if self.stored.hash.is_empty() {
            free(None)
        } else {
            sorted(self.lock.clone())
        }
    }

    fn run(&mut self, step: &Step) -> Reply {
        let mut effects = Effects::new();
        let reply = match self.command(step, &mut effects) {
            Some(reply) => reply,
            None => {
                if let Step::Clock { by_us } = step {
                    self.now.us += by_us;
                }
                self.stored.suffer(step, self.now.ms());
                self.lock = self.stored.read();
                Reply::Event
            }
        };
        self.stored.apply(&effects);
        reply
    }

    /// Like every command, it ends the leases that are over, then does its part.
    /// That part changes nothing if it ends in an error.
    fn command(&mut self, step: &Step, effects: &mut Effects) -> Option<Reply> {
        if !is_command(step) {
            return None;
        }
        self.lock.end_leases(self.now, effects);
        let (lock, ended) = (self.lock.clone(), effects.clone());
        let reply = match *step {
            Step::Acquire {
                who,
                lease_ms,
                hold,
                limit,
                in_turn,
            } => {
                let request = AcquireRequest {
                    limit,
                    ..acquire(OWNERS[who], lease_ms, hold)
                };
                let fences = &mut self.fences;
                let acquired = self
                    .lock
                    .acquire(&request, in_turn, self.now, fences, effects);
                if let Ok(Acquired::Granted(fence)) = acquired {
                    self.tokens.note(who, fence.get());
                }
                Reply::Acquired(acquired)
            }
            Step::Release { who, named, extent } => {
                let request = release(OWNERS[who], self.tokens.named(named, who), extent);
                Reply::Released(self.lock.release(&request, effects))
            }
            Step::Renew {
                who,
                lease_ms,
                named,
            } => {
                let request = renew(OWNERS[who], lease_ms, self.tokens.named(named, who));
                Reply::Renewed(self.lock.renew(&request, self.now, effects))
            }
            Step::Keep { who, lease_ms } => {
                let (owner, token) = (owner(OWNERS[who]), fence(self.tokens.last_of[who]));
                let lease = Lease::from_ms(lease_ms).unwrap();
                Reply::Renewed(self.lock.keep(&owner, token, lease, self.now, effects))
            }
            _ => return None,
        };
        if reply.is_error() {
            assert_eq!((&self.lock, &*effects), (&lock, &ended));
        }
        Some(reply)
    }
}

fn is_command(step: &Step) -> bool {
    matches!(
        step,
        Step::Acquire { .. } | Step::Release { .. } | Step::Renew { .. } | Step::Keep { .. }
    )
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Hold {
    who: usize,
    count: i64,
    token: Option<i64>,
    limit: Limit,
    /// None if it ends with the key.
    end_ms: Option<i64>,
}

/// The contract in its own words: who holds the lock, how often, since which
/// token, together with how many others, and until when.
#[derive(Clone, Debug)]
struct Model {
    holds: Vec<Hold>,
    /// Whether the key is there, and until when.
    key: Option<Option<i64>>,
    tokens: Tokens,
    now_us: i64,
}

impl Model {
    fn new() -> Self {
        Self {
            holds: Vec::new(),
            key: None,
            tokens: Tokens::NONE,
            now_us: NOW.us,
        }
    }

    fn hold_of(&self, who: usize) -> Option<Hold> {
        self.holds.iter().copied().find(|hold| hold.who == who)
    }

    fn count_of(&self, who: usize) -> i64 {
        self.hold_of(who).map_or(0, |hold| hold.count)
    }

    fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    fn end_of(&self, hold: &Hold) -> Option<i64> {
        hold.end_ms.or(self.key.flatten())
    }

    fn change(&mut self, who: usize, change: impl FnOnce(&mut Hold)) {
        let mut holds = self.holds.iter_mut();
        change(holds.find(|hold| hold.who == who).unwrap());
    }

    fn remove(&mut self, gone: impl Fn(&Hold) -> bool) {
        let before = self.holds.len();
        self.holds.retain(|hold| !gone(hold));
        if before > 0 && self.holds.is_empty() {
            self.key = None;
        }
    }

    /// Lets the lease of one owner end then, and the key with the last lease.
    fn set_end(&mut self, who: usize, end_ms: i64) {
        if self.hold_of(who).unwrap().limit == Limit::EXCLUSIVE {
            self.key = Some(Some(end_ms));
        } else {
            self.change(who, |hold| hold.end_ms = Some(end_ms));
            self.end_key_with_last_lease();
        }
    }

    fn end_key_with_last_lease(&mut self) {
        if let Some(last) = self.holds.iter().filter_map(|hold| hold.end_ms).max() {
            self.key = Some(Some(last));
        }
    }

    /// Follows a step. Only the value of a new token is taken from the
    /// reply; everything else is foretold.
    fn follow(&mut self, step: &Step, reply: &Reply) -> Result<(), TestCaseError> {
        if is_command(step) {
            let now_ms = self.now_ms();
            self.remove(|hold| hold.end_ms.is_some_and(|end| end < now_ms));
        }
        let foretold = match *step {
            Step::Acquire { .. } => Reply::Acquired(self.acquire(step, reply)?),
            Step::Release { who, named, extent } => {
                let named = self.tokens.named(named, who);
                Reply::Released(self.release(who, named, extent))
            }
            Step::Renew {
                who,
                lease_ms,
                named,
            } => {
                let named = self.tokens.named(named, who);
                let end_ms = self.now_ms() + lease_ms;
                let hold = self.hold_of(who);
                let hold = hold.filter(|hold| named.is_none() || named == hold.token);
                if hold.is_some() {
                    self.set_end(who, end_ms);
                }
                Reply::Renewed(hold.is_some())
            }
            Step::Keep { who, lease_ms } => {
                let token = Some(self.tokens.last_of[who]);
                let hold = self.hold_of(who).filter(|hold| hold.token == token);
                if hold.is_some() {
                    self.lengthen(who, self.now_ms() + lease_ms);
                }
                Reply::Renewed(hold.is_some())
            }
            _ => {
                self.suffer(step);
                Reply::Event
            }
        };
        prop_assert_eq!(reply, &foretold);
        Ok(())
    }

    /// Moves the end of a lease that has one, but never to an earlier time.
    fn lengthen(&mut self, who: usize, end_ms: i64) {
        let end = self.hold_of(who).and_then(|hold| self.end_of(&hold));
        if end.is_some_and(|end| end < end_ms) {
            self.set_end(who, end_ms);
        }
        // Whoever was told of a lease has it, whatever others did to the key.
        if self.key.flatten().is_some_and(|end| end < end_ms) {
            self.end_key_with_last_lease();
        }
    }

    fn acquire(
        &mut self,
        step: &Step,
        reply: &Reply,
    ) -> Result<Result<Acquired, LockError>, TestCaseError> {
        let &Step::Acquire {
            who,
            lease_ms,
            hold: wanted,
            limit,
            in_turn,
        } = step
        else {
            unreachable!();
        };
        let end_ms = self.now_ms() + lease_ms;
        let present = self.hold_of(who);
        if present.is_some_and(|hold| limit < hold.limit) {
            return Ok(Err(LockError::Upgrade));
        }
        let held = self.count_of(who);
        let count = wanted.unwrap_or(held + 1);
        if count != held && count != held + 1 {
            return Ok(hold_count(count, held));
        }
        let limits = self.holds.iter().map(|hold| hold.limit).chain([limit]);
        let one_more = self.holds.len() + 1;
        let mut counts = limits.map(Limit::count_or_zero);
        let fits = counts.all(|most| most == 0 || one_more as i64 <= most);
        if present.is_none() && !(in_turn && fits) {
            return Ok(Ok(Acquired::Busy));
        }
        let token = match present.and_then(|hold| hold.token) {
            Some(token) => token,
            None => self.new_token(who, reply)?,
        };
        if present.is_some() {
            self.change(who, |hold| (hold.count, hold.token) = (count, Some(token)));
            self.lengthen(who, end_ms);
        } else {
            self.holds.push(Hold {
                who,
                count,
                token: Some(token),
                limit,
                end_ms: None,
            });
            self.set_end(who, end_ms);
        }
        Ok(granted(token))
    }

    fn new_token(&mut self, who: usize, reply: &Reply) -> Result<i64, TestCaseError> {
        let Reply::Acquired(Ok(Acquired::Granted(fence))) = reply else {
            return Err(TestCaseError::fail(format!("no grant: {reply:?}")));
        };
        let token = fence.get();
        prop_assert!(token > self.tokens.newest, "tokens rise with every grant");
        prop_assert!(token >= self.now_us);
        self.tokens.note(who, token);
        Ok(token)
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
        if count > 0 {
            self.change(who, |hold| hold.count = count);
            return Ok(Released::StillHeld);
        }
        if held > 0 {
            self.remove(|hold| hold.who == who);
            self.end_key_with_last_lease();
        }
        Ok(Released::LastHold)
    }

    fn suffer(&mut self, event: &Step) {
        let has_token = self.holds.iter().any(|hold| hold.token.is_some());
        match *event {
            Step::RedissonLocks { who, lease_ms } => {
                if self.key.is_none() {
                    self.holds.push(Hold {
                        who,
                        count: 0,
                        token: None,
                        limit: Limit::EXCLUSIVE,
                        end_ms: None,
                    });
                }
                if self.hold_of(who).is_some() {
                    self.change(who, |hold| hold.count += 1);
                    self.key = Some(Some(self.now_ms() + lease_ms));
                }
            }
            Step::Clock { by_us } => {
                self.now_us += by_us;
                if self.key.flatten().is_some_and(|end| end < self.now_ms()) {
                    (self.holds, self.key) = (Vec::new(), None);
                }
            }
            Step::Del => (self.holds, self.key) = (Vec::new(), None),
            // The token stays behind, and the permit.
            Step::HdelOwner { who } if has_token => self.holds.retain(|hold| hold.who != who),
            Step::HdelOwner { who } => self.remove(|hold| hold.who == who),
            Step::Persist if has_token || self.holds.is_empty() => {
                self.key = self.key.map(|_| None);
            }
            Step::Expire { in_ms } => self.key = self.key.map(|_| Some(self.now_ms() + in_ms)),
            _ => {}
        }
    }

    fn holders(&self) -> Vec<Holder> {
        let mut holds = self.holds.clone();
        holds.sort_by_key(|hold| hold.who);
        let holder = |hold: &Hold| Holder {
            owner: owner(OWNERS[hold.who]),
            holds: hold.count,
            fence: hold.token.map(fence),
            lease_end_ms: self.end_of(hold),
            limit: hold.limit,
        };
        holds.iter().map(holder).collect()
    }
}

proptest! {
    #[test]
    fn what_is_written_is_what_the_working_copy_says(steps in steps()) {
        let mut real = Real::new();
        for step in &steps {
            real.run(step);
            let reread = sorted(real.stored.read());
            prop_assert_eq!(reread, real.expected_reread(), "after {:?}", step);
        }
    }

    #[test]
    fn a_copy_read_anew_decides_like_the_one_that_was_kept(steps in steps()) {
        let (mut kept, mut anew) = (Real::new(), Real::new());
        for step in &steps {
            anew.lock = anew.stored.read();
            prop_assert_eq!(kept.run(step), anew.run(step), "at {:?}", step);
            prop_assert_eq!(&kept.stored, &anew.stored, "after {:?}", step);
        }
    }

    #[test]
    fn locks_do_what_the_contract_says(steps in steps()) {
        let (mut real, mut model) = (Real::new(), Model::new());
        for step in &steps {
            let reply = real.run(step);
            model.follow(step, &reply)?;
            let holders = sorted(real.lock.clone()).holders.into_vec();
            prop_assert_eq!(holders, model.holders(), "after {:?}", step);
            let key = (!real.stored.hash.is_empty()).then_some(real.stored.expires_at_ms);
            prop_assert_eq!(key, model.key, "after {:?}", step);
        }
    }
}
