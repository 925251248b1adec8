//! What follows from the state of locks: who is blocked by whom, and how to
//! break what is stuck. As JSON and as a table.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use redis_lock_client::redis::{RedisError, Value, cmd, from_redis_value};
use redis_lock_client::{Error, Holder, LockClient, LockInfo, Mode, Waiter};
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::name::{Object, break_command, shown};
use crate::server::Server;

/// How many locks are asked after at a time.
const AT_A_TIME: usize = 64;

/// How many names a cell of the table has at most.
const NAMES_SHOWN: usize = 3;

/// The columns. `LEFT` is what is left of a holder's lease, and of the time
/// that a waiter will wait.
const HEADER: [&str; 8] = [
    "LOCK",
    "OWNER",
    "IS",
    "MODE",
    "WAITED",
    "LEFT",
    "TOKEN",
    "BLOCKED BY",
];

/// A lock, and what follows from its state.
pub struct LockView {
    pub lock: LockInfo,
    /// The owners that keep the first in line out. The others in line wait behind it.
    blocked_by: Vec<Vec<u8>>,
    /// For each owner that waits for other locks, as far as they are shown: these locks.
    waits_for: HashMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    /// The command that breaks the lock if it is stuck, and does nothing to
    /// who has it by the time it is typed.
    safe_break: Option<String>,
}

impl LockView {
    /// The longest time that anybody has waited.
    pub fn longest_wait(&self) -> Option<Duration> {
        self.lock.waiters.iter().map(|waiter| waiter.waited).max()
    }

    /// The locks for which a holder waits itself.
    fn waits_for(&self, holder: &Holder) -> Vec<&[u8]> {
        let keys = self.waits_for.get(&holder.owner).into_iter().flatten();
        keys.map(Vec::as_slice).collect()
    }

    /// What `--json` tells of it.
    pub fn json(&self) -> Json {
        let lock = &self.lock;
        let (mode, limit) = lock.mode.map(mode_and_limit).unzip();
        let blocked_by: Vec<_> = self.blocked_by.iter().map(Vec::as_slice).collect();
        let holders = lock.holders.iter().map(|holder| {
            Object::default()
                .name("owner", &holder.owner)
                .set("holds", holder.holds)
                .set("token", holder.token)
                .set("ttl_ms", holder.ttl.map(ms))
                .set("client", holder.client)
                .names("waits_for", &self.waits_for(holder))
                .into()
        });
        let waiters = lock.waiters.iter().map(|waiter| {
            let (mode, limit) = mode_and_limit(waiter.mode);
            let channel = waiter.channel.as_deref().map(String::from_utf8_lossy);
            Object::default()
                .name("owner", &waiter.owner)
                .set("mode", mode)
                .set("limit", limit)
                .set("client", waiter.client)
                .set("addr", waiter.addr.clone())
                .set("channel", channel)
                .set("waited_ms", ms(waiter.waited))
                .set("timeout_ms", waiter.timeout.map(ms))
                .into()
        });
        Object::default()
            .name("key", &lock.key)
            .set("state", lock.mode.map_or("free", |_| "held"))
            .set("mode", mode)
            .set("limit", limit.flatten())
            .set("token", lock.token)
            .set("ttl_ms", lock.ttl.map(ms))
            .set("holders", holders.collect::<Vec<Json>>())
            .names("blocked_by", &blocked_by)
            .set("waiting", lock.waiting)
            .set("waiters", waiters.collect::<Vec<Json>>())
            .set("grace_ms", lock.grace.map(ms))
            .set("safe_break", self.safe_break.clone())
            .into()
    }

    /// A row for each holder and waiter.
    fn rows(&self) -> Vec<[String; 8]> {
        let holders = self.lock.holders.iter();
        let waiters = (1..).zip(&self.lock.waiters);
        let waiters = waiters.map(|(turn, waiter)| self.waiter_row(turn, waiter));
        let mut rows: Vec<_> = holders.map(|holder| self.holder_row(holder)).collect();
        rows.extend(waiters);
        if rows.is_empty() {
            let mut row = HEADER.map(|_| String::new());
            row[0] = shown(&self.lock.key);
            row[2] = "free".into();
            rows.push(row);
        }
        rows
    }

    fn holder_row(&self, holder: &Holder) -> [String; 8] {
        let waits_for: Vec<_> = self.waits_for(holder).into_iter().map(shown).collect();
        [
            shown(&self.lock.key),
            shown(&holder.owner),
            match holder.holds {
                1 => "holder".into(),
                holds => format!("holder x{holds}"),
            },
            self.lock.mode.map_or_else(String::new, mode_shown),
            String::new(),
            holder.ttl.map_or_else(String::new, seconds),
            holder.token.map_or_else(String::new, |it| it.to_string()),
            match waits_for.is_empty() {
                true => String::new(),
                false => format!("waits for {}", some(&waits_for)),
            },
        ]
    }

    fn waiter_row(&self, turn: usize, waiter: &Waiter) -> [String; 8] {
        [
            shown(&self.lock.key),
            shown(&waiter.owner),
            format!("waiter {turn}"),
            mode_shown(waiter.mode),
            seconds(waiter.waited),
            waiter.timeout.map_or_else(|| "forever".into(), seconds),
            String::new(),
            match turn {
                1 => self.blockers(),
                _ => format!("waiter {}", turn - 1),
            },
        ]
    }

    /// Who blocks the first in line, and what those wait for themselves.
    fn blockers(&self) -> String {
        let holders = self.lock.holders.iter();
        let blocking = holders.filter(|holder| self.blocked_by.contains(&holder.owner));
        let blocking = blocking.map(|holder| {
            let owner = shown(&holder.owner);
            let waits_for: Vec<_> = self.waits_for(holder).into_iter().map(shown).collect();
            match waits_for.is_empty() {
                true => owner,
                false => format!("{owner} (waits for {})", some(&waits_for)),
            }
        });
        some(&blocking.collect::<Vec<_>>())
    }
}

/// A table of these locks, and the commands that break what is stuck.
pub fn table(locks: &[LockView]) -> Vec<String> {
    let mut rows = vec![HEADER.map(String::from)];
    rows.extend(locks.iter().flat_map(LockView::rows));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 8] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths);
        let padded = cells.map(|(cell, width)| format!("{cell:width$}"));
        let padded: Vec<_> = padded.collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<_> = rows.iter().map(line).collect();
    if let Some(left) = locks.iter().filter_map(|view| view.lock.grace).max() {
        let left = seconds(left);
        let told = format!("\nGrace period: nothing is granted for {left} yet.");
        lines.push(told);
    }
    let stuck = locks.iter().filter_map(|lock| lock.safe_break.as_ref());
    let mut stuck = stuck.peekable();
    if stuck.peek().is_some() {
        let title = "\nStuck. This passes a lock on if its holder is still the same:";
        lines.push(title.into());
        lines.extend(stuck.map(|command| format!("  {command}")));
    }
    lines
}

/// The contended locks, longest wait first.
pub async fn contended(
    server: &Server,
    client: &LockClient,
    count: u32,
    stuck_after: Duration,
) -> Result<Vec<LockView>, Failure> {
    let mut list = cmd("LOCK.LIST");
    list.arg("COUNT").arg(count);
    let listed: Vec<Vec<HashMap<String, Value>>> = server.ask(&list).await?;
    let mut keys: Vec<(u64, Vec<u8>)> = Vec::new();
    for mut lock in listed.into_iter().flatten() {
        let mut field = |name| lock.remove(name).unwrap_or(Value::Nil);
        let waited = from_redis_value(field("waited")).map_err(RedisError::from)?;
        let key = from_redis_value(field("key")).map_err(RedisError::from)?;
        keys.push((waited, key));
    }
    keys.sort_by_key(|(waited, _)| Reverse(*waited));
    keys.truncate(count as usize);
    let mut locks = Vec::new();
    let mut looked_at = look(client, keys.into_iter().map(|(_, key)| key));
    while let Some(lock) = looked_at.next().await {
        match lock {
            // Others are free by now, or their waiters have been served.
            Ok(lock) if lock.waiters.is_empty() => {}
            Ok(lock) => locks.push(lock),
            // It has become something that is no lock since it was listed.
            Err(error) if matches!(error.code(), "NOTALOCK" | "WRONGTYPE") => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut views = views(locks, stuck_after);
    views.sort_by_key(|lock| Reverse(lock.longest_wait()));
    Ok(views)
}

/// These locks in their order, contended or not. Some are asked after at a time, so that
/// many locks take few round trips.
pub fn look(
    client: &LockClient,
    keys: impl Iterator<Item = Vec<u8>>,
) -> impl Stream<Item = Result<LockInfo, Error>> {
    let look = |key| {
        let lock = client.lock(key);
        async move { lock.info().await }
    };
    stream::iter(keys.map(look)).buffered(AT_A_TIME)
}

/// What follows from these locks.
pub fn views(locks: Vec<LockInfo>, stuck_after: Duration) -> Vec<LockView> {
    let mut waits: HashMap<Vec<u8>, BTreeSet<Vec<u8>>> = HashMap::new();
    for lock in &locks {
        for waiter in &lock.waiters {
            let keys = waits.entry(waiter.owner.clone()).or_default();
            keys.insert(lock.key.clone());
        }
    }
    let view = |lock: LockInfo| {
        let owners: Vec<_> = lock.holders.iter().map(|it| it.owner.clone()).collect();
        let waits_for = |owner: &Vec<u8>| Some((owner.clone(), waits.get(owner)?.clone()));
        let waits_for = owners.iter().filter_map(waits_for).collect();
        let first = lock.waiters.first();
        let first = first.map(|first| (&first.owner, mode_and_limit(first.mode).1));
        let limit = lock.mode.and_then(|mode| mode_and_limit(mode).1);
        LockView {
            blocked_by: blockers(first, limit, owners),
            waits_for,
            safe_break: safe_break(&lock, stuck_after),
            lock,
        }
    };
    locks.into_iter().map(view).collect()
}

/// The holders that keep the first in line out.
fn blockers(
    first: Option<(&Vec<u8>, Option<u64>)>,
    held_limit: Option<u64>,
    mut holders: Vec<Vec<u8>>,
) -> Vec<Vec<u8>> {
    let Some((first, its_limit)) = first else {
        return Vec::new();
    };
    let limit = [its_limit, held_limit].into_iter().flatten().min();
    if limit.is_none_or(|limit| (holders.len() as u64) < limit) {
        return Vec::new();
    }
    holders.retain(|owner| owner != first);
    holders
}

/// A hold without a token was not taken by the module, and can't be told from
/// a later one of the same kind.
fn safe_break(lock: &LockInfo, stuck_after: Duration) -> Option<String> {
    let longest = lock.waiters.iter().map(|waiter| waiter.waited).max()?;
    let is_stuck = longest >= stuck_after && !lock.holders.is_empty();
    break_command(&lock.key, lock.token.filter(|_| is_stuck)?)
}

/// The limit of a shared lock is none.
fn mode_and_limit(mode: Mode) -> (&'static str, Option<u64>) {
    match mode {
        Mode::Exclusive => ("exclusive", Some(1)),
        Mode::Shared => ("shared", None),
        Mode::Limited(limit) => ("limited", Some(limit)),
    }
}

fn mode_shown(mode: Mode) -> String {
    match mode {
        Mode::Limited(limit) => format!("limit {limit}"),
        mode => mode_and_limit(mode).0.into(),
    }
}

/// The first of these, and how many more there are.
fn some(names: &[String]) -> String {
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..NAMES_SHOWN].join(", ")),
    }
}

/// A time as people read it: tenths of seconds while they matter.
pub fn seconds(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => humantime::format_duration(Duration::from_secs(time.as_secs())).to_string(),
    }
}

/// A time as programs read it.
pub fn ms(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_in_line_is_blocked_by_the_holders() {
        let [alice, bob, carol] = ["alice", "bob", "carol"].map(|name| name.as_bytes().to_vec());
        let both = vec![alice.clone(), bob.clone()];
        let of = |first, its_limit, held| blockers(Some((first, its_limit)), held, both.clone());
        assert_eq!(of(&carol, Some(1), None), both);
        assert_eq!(of(&carol, None, Some(2)), both);
        assert_eq!(of(&carol, Some(2), None), both);
        // These are let in at once, unless the server lets nobody in.
        assert!(of(&carol, None, None).is_empty());
        assert!(of(&carol, Some(3), Some(3)).is_empty());
        assert_eq!(of(&bob, Some(1), None), [alice]);
    }
}
