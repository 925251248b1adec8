use smallvec::smallvec;

use super::*;
use crate::explore::keyspace::{Value, permit_field};
use crate::request::HoldNumber;
use crate::stored::TOKEN_FIELD;
use crate::token::TOKEN_MAX;
use crate::usage::Usage;

mod acquiring;
mod breaking;
mod keeping;
mod leaving;
mod releasing;
mod renewing;
mod sharing;

const NOW: Now = Now {
    us: 1_700_000_000_000_999,
    steady_ms: NOW_MS,
};
const NOW_MS: i64 = 1_700_000_000_000;

/// The token of a new grant at `NOW` by a fresh clock.
const NEW: i64 = NOW.us;

/// The lease of every request here, unless a test says otherwise.
const LEASE_MS: i64 = 1000;

/// When a lease that begins at `NOW` is over.
const END: i64 = NOW_MS + LEASE_MS;

pub(crate) fn owner(name: &str) -> Owner {
    Owner::new(name.as_bytes()).unwrap()
}

pub(crate) fn token(token: i64) -> FencingToken {
    FencingToken::new(token).unwrap()
}

pub(crate) fn free(last_token: Option<i64>) -> Lock {
    Lock {
        last_token: last_token.map(self::token),
        ..Lock::default()
    }
}

pub(crate) fn held(name: &str, holds: i64, token: Option<i64>, lease_end_ms: Option<i64>) -> Lock {
    Lock {
        holders: Holders::from_iter([Holder {
            owner: owner(name),
            holds,
            token: token.map(self::token),
            lease_end_ms,
            limit: Limit::EXCLUSIVE,
        }]),
        last_token: token.map(self::token),
        expires_at_ms: lease_end_ms,
        leftovers: 0,
    }
}

/// Somebody who may hold the lock together with others, and holds it once.
pub(crate) fn permitted(name: &str, token: i64, lease_end_ms: i64, limit: Limit) -> Holder {
    Holder {
        owner: owner(name),
        holds: 1,
        token: Some(self::token(token)),
        lease_end_ms: Some(lease_end_ms),
        limit,
    }
}

/// The lock that these hold, as it was left by their commands.
pub(crate) fn held_by<const N: usize>(holders: [Holder; N]) -> Lock {
    Lock {
        last_token: holders.iter().filter_map(|holder| holder.token).max(),
        expires_at_ms: holders
            .iter()
            .filter_map(|holder| holder.lease_end_ms)
            .max(),
        leftovers: 0,
        holders: holders.into_iter().collect(),
    }
}

pub(crate) fn limit(count: i64) -> Limit {
    Limit::from_count(count).unwrap()
}

/// The fields of a hash have no order, and so the holders of a lock have none.
pub(crate) fn sorted(mut lock: Lock) -> Lock {
    let mut holders = lock.holders().to_vec();
    holders.sort_by_key(|holder| holder.owner.as_bytes().to_vec());
    lock.holders = holders.into_iter().collect();
    lock
}

/// What is stored of a lock.
pub(crate) fn stored(lock: &Lock) -> Value {
    let mut value = Value::default();
    for holder in lock.holders() {
        value.set(holder.owner.as_bytes(), holder.holds);
        if let Some(permit) = holder.permit() {
            value.set(&permit_field(&holder.owner), permit.to_text());
        }
    }
    for n in 0..lock.leftovers {
        value.set(&permit_field(&owner(&format!("gone {n}"))), "0 1 0");
    }
    if let Some(token) = lock.last_token {
        value.set(TOKEN_FIELD, token.get());
    }
    value.expires_at_ms = lock.expires_at_ms;
    value
}

/// The write of a permit and of the count beside it.
fn writes(holder: &Holder, new_token: Option<i64>) -> Effect {
    Effect::SetHolder {
        owner: holder.owner.clone(),
        holds: holder.holds,
        permit: holder.permit(),
        new_token: new_token.map(self::token),
    }
}

fn removes(name: &str) -> Effect {
    Effect::RemoveHolder { owner: owner(name) }
}

fn sets(name: &str, holds: i64, new_token: Option<i64>) -> Effect {
    Effect::SetHolder {
        owner: owner(name),
        holds,
        permit: None,
        new_token: new_token.map(self::token),
    }
}

fn expires(at_ms: i64) -> Effect {
    Effect::ExpireAt { at_ms }
}

fn replaces(name: &str, token: i64, end_ms: i64) -> Effect {
    Effect::Replace {
        owner: owner(name),
        token: self::token(token),
        end_ms,
    }
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

fn acquire_as(limit: Limit, name: &str) -> AcquireRequest {
    AcquireRequest {
        limit,
        ..acquire(name, LEASE_MS, None)
    }
}

fn release(name: &str, token: Option<i64>, extent: ReleaseExtent) -> ReleaseRequest {
    ReleaseRequest {
        owner: owner(name),
        token: token.map(self::token),
        extent,
    }
}

fn renew(name: &str, lease_ms: i64, token: Option<i64>) -> RenewRequest {
    RenewRequest {
        owner: owner(name),
        lease: Lease::from_ms(lease_ms).unwrap(),
        token: token.map(self::token),
    }
}

pub(crate) fn hold_number(n: i64) -> HoldNumber {
    HoldNumber::new(n).unwrap()
}

fn hold(n: i64) -> ReleaseExtent {
    ReleaseExtent::Hold(hold_number(n))
}

fn granted(token: i64) -> Result<Option<FencingToken>, LockError> {
    Ok(Some(self::token(token)))
}

fn hold_count<T>(wanted: i64, held: i64) -> Result<T, LockError> {
    Err(LockError::HoldCount { wanted, held })
}

/// Runs one transition. An earlier one has written something already, which
/// must stay where it is, unless the whole lock is written anew. Afterwards the lock is
/// the one that is read from what these effects wrote; a free one remembers its token.
#[track_caller]
fn check<R: PartialEq + std::fmt::Debug>(
    before: &Lock,
    transition: impl FnOnce(&mut Lock, &mut Effects) -> R,
    reply: R,
    effects: &[Effect],
) {
    let mut lock = before.clone();
    let mut written: Effects = smallvec![Effect::Delete];
    assert_eq!(transition(&mut lock, &mut written), reply);
    let earlier: &[Effect] = match effects {
        [Effect::Replace { .. }] => &[],
        _ => &[Effect::Delete],
    };
    assert_eq!(written[..], [earlier, effects].concat());
    let mut value = stored(before);
    value.apply(effects);
    let after = match value.is_there() {
        true => value.read().unwrap(),
        false => Lock {
            last_token: before.last_token,
            ..Lock::default()
        },
    };
    assert_eq!(sorted(lock), sorted(after));
}

#[track_caller]
fn check_acquire(
    before: &Lock,
    request: &AcquireRequest,
    reply: Result<Option<FencingToken>, LockError>,
    effects: &[Effect],
) {
    let mut tokens = TokenClock::default();
    check(
        before,
        |lock, written| lock.acquire(request, None, true, NOW, &mut tokens, written),
        reply,
        effects,
    );
}

#[track_caller]
fn check_granted(before: &Lock, limit: Limit, name: &str, token: i64, effects: &[Effect]) {
    let request = acquire_as(limit, name);
    check_acquire(before, &request, granted(token), effects);
}

/// A request that is refused, or finds the lock busy, leaves no trace.
#[track_caller]
fn check_acquire_in_vain(
    lock: &Lock,
    request: &AcquireRequest,
    reply: Result<Option<FencingToken>, LockError>,
) {
    check_acquire(lock, request, reply, &[]);
}

#[track_caller]
fn check_release(
    before: &Lock,
    request: &ReleaseRequest,
    reply: Result<Released, LockError>,
    effects: &[Effect],
) {
    check(
        before,
        |lock, written| lock.release(request, written),
        reply,
        effects,
    );
}

#[track_caller]
fn check_release_in_vain(
    lock: &Lock,
    request: &ReleaseRequest,
    reply: Result<Released, LockError>,
) {
    check_release(lock, request, reply, &[]);
}

#[track_caller]
fn check_renew(before: &Lock, request: &RenewRequest, token: Option<i64>, effects: &[Effect]) {
    check(
        before,
        |lock, written| lock.renew(request, NOW, &mut TokenClock::default(), written),
        Ok(token.map(self::token)),
        effects,
    );
}

#[test]
fn a_lock_tells_its_token_and_its_expiry() {
    for token in [None, Some(7)] {
        assert_eq!(free(token).last_token, token.map(self::token));
        assert_eq!(free(token).expires_at_ms, None);
    }
    let lock = held("a", 1, Some(7), Some(END));
    assert_eq!(lock.last_token, Some(token(7)));
    assert_eq!(lock.expires_at_ms, Some(END));
}
