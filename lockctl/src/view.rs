//! What follows from the state of locks: who is blocked by whom, and how to
//! break what is stuck.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use redis_lock_client::{Error, Holder, LockClient, LockInfo, Mode, Waiter};
use serde::Serialize;

use crate::failure::Failure;
use crate::name::{Name, as_blocked_by, as_waits_for};

/// How many locks are asked after at a time.
const AT_A_TIME: usize = 64;

/// A lock.
#[derive(Debug, Serialize)]
pub struct LockView {
    #[serde(flatten, serialize_with = "Name::as_key")]
    pub key: Name,
    /// `held` or `free`.
    pub state: &'static str,
    /// `exclusive`, `shared` or `limited`; none where it is free.
    pub mode: Option<&'static str>,
    /// How many may hold it together, where that is limited.
    pub limit: Option<u64>,
    /// The newest token.
    pub token: Option<u64>,
    /// Until the last hold ends.
    pub ttl_ms: Option<u64>,
    pub holders: Vec<HolderView>,
    /// The holders that keep the first in line out. The others wait behind it.
    #[serde(flatten, serialize_with = "as_blocked_by")]
    pub blocked_by: Vec<Name>,
    /// How many wait.
    pub waiting: u64,
    /// Who waits, in the order of their turns.
    pub waiters: Vec<WaiterView>,
    /// How long its server will grant nothing yet.
    pub grace_ms: Option<u64>,
    /// The command that breaks the lock if it is stuck, and does nothing to
    /// who has it by the time it is typed.
    pub safe_break: Option<String>,
}

/// Who has a lock.
#[derive(Debug, Serialize)]
pub struct HolderView {
    #[serde(flatten, serialize_with = "Name::as_owner")]
    pub owner: Name,
    pub holds: u64,
    pub token: Option<u64>,
    pub ttl_ms: Option<u64>,
    /// The connection to which the hold is bound.
    pub client: Option<u64>,
    /// The locks for which this owner waits itself, as far as they are shown.
    #[serde(flatten, serialize_with = "as_waits_for")]
    pub waits_for: Vec<Name>,
}

/// Who waits for a lock.
#[derive(Debug, Serialize)]
pub struct WaiterView {
    #[serde(flatten, serialize_with = "Name::as_owner")]
    pub owner: Name,
    pub mode: &'static str,
    pub limit: Option<u64>,
    /// Its connection, where it keeps one busy.
    pub client: Option<u64>,
    pub addr: Option<String>,
    /// The channel on which it is told, where it has a place.
    pub channel: Option<String>,
    pub waited_ms: u64,
    /// How much longer it waits; none for a wait without end.
    pub timeout_ms: Option<u64>,
}

impl LockView {
    /// The longest time that anybody has waited.
    pub fn longest_wait(&self) -> Option<Duration> {
        let waited = self.waiters.iter().map(|waiter| waiter.waited_ms).max();
        waited.map(Duration::from_millis)
    }

    fn of(info: LockInfo) -> Self {
        let is_held = info.is_held();
        let (mode, limit) = info.mode.map(mode_and_limit).unzip();
        let mut lock = Self {
            key: info.key.into(),
            state: if is_held { "held" } else { "free" },
            mode,
            limit: limit.flatten(),
            token: info.token,
            ttl_ms: info.ttl.map(ms),
            holders: info.holders.into_iter().map(HolderView::of).collect(),
            blocked_by: Vec::new(),
            waiting: info.waiting,
            waiters: info.waiters.into_iter().map(WaiterView::of).collect(),
            grace_ms: info.grace.map(ms),
            safe_break: None,
        };
        lock.blocked_by = lock.blockers();
        lock
    }

    /// The holders that keep the first in line out.
    fn blockers(&self) -> Vec<Name> {
        let Some(first) = self.waiters.first() else {
            return Vec::new();
        };
        let limits = [first.limit, self.limit].into_iter().flatten();
        if limits
            .min()
            .is_none_or(|limit| (self.holders.len() as u64) < limit)
        {
            return Vec::new();
        }
        let owners = self.holders.iter().map(|holder| &holder.owner);
        owners
            .filter(|owner| **owner != first.owner)
            .cloned()
            .collect()
    }
}

/// The limit of a shared lock is none.
const fn mode_and_limit(mode: Mode) -> (&'static str, Option<u64>) {
    match mode {
        Mode::Exclusive => ("exclusive", Some(1)),
        Mode::Shared => ("shared", None),
        Mode::Limited(limit) => ("limited", Some(limit)),
    }
}

impl HolderView {
    fn of(holder: Holder) -> Self {
        Self {
            owner: holder.owner.into(),
            holds: holder.holds,
            token: holder.token,
            ttl_ms: holder.ttl.map(ms),
            client: holder.client,
            waits_for: Vec::new(),
        }
    }
}

impl WaiterView {
    fn of(waiter: Waiter) -> Self {
        let (mode, limit) = mode_and_limit(waiter.mode);
        Self {
            owner: waiter.owner.into(),
            mode,
            limit,
            client: waiter.client,
            addr: waiter.addr,
            channel: waiter
                .channel
                .map(|channel| String::from_utf8_lossy(&channel).into_owned()),
            waited_ms: ms(waiter.waited),
            timeout_ms: waiter.timeout.map(ms),
        }
    }
}

/// That nothing is granted yet, if any of these locks is on such a server.
pub fn grace(locks: &[LockView]) -> Option<String> {
    let left_ms = locks.iter().filter_map(|lock| lock.grace_ms).max()?;
    let left = seconds(left_ms);
    Some(format!("Grace period: nothing is granted for {left} yet."))
}

/// A time as people read it: tenths of seconds while they matter.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => humantime::format_duration(Duration::from_secs(ms / 1000)).to_string(),
    }
}

fn ms(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// The contended locks, longest wait first.
pub async fn contended(
    client: &LockClient,
    count: u32,
    stuck_after: Duration,
) -> Result<Vec<LockView>, Failure> {
    let mut locks = Vec::new();
    let listed = client.list(count.into()).await?;
    let mut views = views(client, listed.into_iter().map(|lock| lock.key));
    while let Some(view) = views.next().await {
        match view {
            Ok(lock) => locks.push(lock),
            // It has become something that is no lock since it was listed.
            Err(error) if matches!(error.code(), "NOTALOCK" | "WRONGTYPE") => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Others are free by now, or their waiters have been served.
    locks.retain(|lock| !lock.waiters.is_empty());
    locks.sort_by_key(|lock| Reverse(lock.longest_wait()));
    tell_what_follows(&mut locks, stuck_after);
    Ok(locks)
}

/// These locks, contended or not.
pub async fn named(
    client: &LockClient,
    keys: impl Iterator<Item = Vec<u8>>,
    stuck_after: Duration,
) -> Result<Vec<LockView>, Failure> {
    let mut locks: Vec<_> = views(client, keys).try_collect().await?;
    tell_what_follows(&mut locks, stuck_after);
    Ok(locks)
}

/// These locks in their order. Some are asked after at a time, so that many locks take
/// few round trips.
fn views(
    client: &LockClient,
    keys: impl Iterator<Item = Vec<u8>>,
) -> impl Stream<Item = Result<LockView, Error>> {
    let view = |key| {
        let lock = client.lock(key);
        async move { lock.info().await.map(LockView::of) }
    };
    stream::iter(keys.map(view)).buffered(AT_A_TIME)
}

fn tell_what_follows(locks: &mut [LockView], stuck_after: Duration) {
    tell_who_waits_elsewhere(locks);
    for lock in locks {
        lock.safe_break = safe_break(lock, stuck_after);
    }
}

/// Fills in for each holder for which of these locks it waits.
fn tell_who_waits_elsewhere(locks: &mut [LockView]) {
    let mut waits: HashMap<Name, BTreeSet<Name>> = HashMap::new();
    for lock in &*locks {
        for waiter in &lock.waiters {
            let keys = waits.entry(waiter.owner.clone()).or_default();
            keys.insert(lock.key.clone());
        }
    }
    for holder in locks.iter_mut().flat_map(|lock| &mut lock.holders) {
        if let Some(keys) = waits.get(&holder.owner) {
            holder.waits_for = keys.iter().cloned().collect();
        }
    }
}

/// A hold without a token was not taken by the module, and can't be told from
/// a later one of the same kind.
fn safe_break(lock: &LockView, stuck_after: Duration) -> Option<String> {
    let is_stuck = lock.longest_wait()? >= stuck_after && !lock.holders.is_empty();
    let token = lock.token.filter(|_| is_stuck)?;
    lock.key.break_command(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(owner: &str) -> HolderView {
        HolderView {
            owner: owner.as_bytes().into(),
            holds: 1,
            token: Some(42),
            ttl_ms: Some(1000),
            client: None,
            waits_for: Vec::new(),
        }
    }

    fn waiter(owner: &str, mode: Mode) -> WaiterView {
        let (mode, limit) = mode_and_limit(mode);
        WaiterView {
            owner: owner.as_bytes().into(),
            mode,
            limit,
            client: Some(7),
            addr: None,
            channel: None,
            waited_ms: 20_000,
            timeout_ms: None,
        }
    }

    fn lock(limit: Option<u64>, holders: &[&str], waiter: Option<WaiterView>) -> LockView {
        LockView {
            key: (&b"a b"[..]).into(),
            state: "held",
            mode: None,
            limit,
            token: Some(42),
            ttl_ms: Some(1000),
            holders: holders.iter().map(|owner| holder(owner)).collect(),
            blocked_by: Vec::new(),
            waiting: 1,
            waiters: waiter.into_iter().collect(),
            grace_ms: None,
            safe_break: None,
        }
    }

    #[test]
    fn a_lock_is_stuck_when_somebody_has_waited_so_long() {
        let lock = lock(Some(1), &["alice"], Some(waiter("bob", Mode::Exclusive)));
        assert_eq!(lock.longest_wait(), Some(Duration::from_secs(20)));
        let safe = safe_break(&lock, Duration::from_secs(10)).unwrap();
        assert_eq!(safe, "lockctl break 'a b' --fence 42");
        assert_eq!(safe_break(&lock, Duration::from_secs(30)), None);
    }

    #[test]
    fn the_first_in_line_is_blocked_by_the_holders() {
        let blockers = |limit, waiter| lock(limit, &["alice", "bob"], Some(waiter)).blockers();
        let both = [Name::from(&b"alice"[..]), Name::from(&b"bob"[..])];
        let writer = || waiter("carol", Mode::Exclusive);
        let reader = || waiter("carol", Mode::Shared);
        let one_of = |limit| waiter("carol", Mode::Limited(limit));
        assert_eq!(blockers(None, writer()), both);
        assert_eq!(blockers(Some(2), reader()), both);
        assert_eq!(blockers(None, one_of(2)), both);
        // These are let in at once, unless the server lets nobody in.
        assert_eq!(blockers(None, reader()), []);
        assert_eq!(blockers(Some(3), one_of(3)), []);
        let own = blockers(None, waiter("bob", Mode::Exclusive));
        assert_eq!(own, both[..1]);
    }

    #[test]
    fn a_holder_that_waits_elsewhere_is_told() {
        let bob = waiter("bob", Mode::Exclusive);
        let mut locks = [
            lock(Some(1), &["alice"], Some(bob)),
            lock(Some(1), &["bob"], None),
        ];
        tell_who_waits_elsewhere(&mut locks);
        assert!(locks[0].holders[0].waits_for.is_empty());
        assert_eq!(locks[1].holders[0].waits_for[0].to_string(), "a b");
    }
}
