//! What an operator is shown, and how a lock is broken.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{SOON, text};

use super::{Expect, Place, Token, Waiter, World};
use crate::commands::{Block, Lease, Mode, UNIT_OF_LEASES};
use crate::stored::{Holder, is_short};

/// What `LOCK.INFO` must show.
#[derive(Clone, Debug, PartialEq)]
pub struct LockView {
    fence: Option<Token>,
    ttl: Ttl,
    /// Each with the client to which holds of this owner are tied, and their token.
    holders: Vec<(Holder, Option<(usize, Token)>)>,
    waiters: Vec<Waiter>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ttl {
    NoKey,
    Forever,
    Lease(Lease),
}

/// A lock that somebody waits for, as `LOCK.LIST` must show it.
#[derive(Clone, Debug, PartialEq)]
pub struct ContendedView {
    key: &'static str,
    holders: Vec<&'static str>,
    waiting: usize,
    since: Instant,
}

/// A client's connection, as the server knows it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub id: i64,
    pub address: String,
}

impl From<Option<Lease>> for Ttl {
    fn from(lease: Option<Lease>) -> Self {
        lease.map_or(Self::Forever, Self::Lease)
    }
}

impl World {
    pub(super) fn break_lock(&mut self, at: Place, fence: Option<i64>) -> Result<Expect, Expect> {
        let newest = self.newest_token(at);
        self.look(at)?;
        let holders = self.lock(at)?.holders;
        let names_another = fence.is_some() && fence != newest;
        if names_another || holders.is_empty() {
            let refused = names_another && !holders.is_empty();
            self.account.tokens_refused += u64::from(refused);
            return Ok(Expect::Int(0));
        }
        for holder in holders {
            self.account.releases_broken += 1;
            self.ties.remove(&(at, holder.owner));
        }
        self.free(at);
        Ok(Expect::Int(1))
    }

    /// The number of the token that is stored with the lock, if it is known.
    pub fn newest_token(&self, at: Place) -> Option<i64> {
        let stored = self.databases[at.db].get(at.key)?;
        self.value(stored.newest_token()?)
    }

    pub(super) fn info(&self, at: Place) -> Result<Expect, Expect> {
        let lock = self.lock(at)?;
        let stored = self.databases[at.db].get(at.key);
        let holders = lock.holders.into_iter().filter(|holder| !holder.over);
        let tie_of = |holder: &Holder| self.ties.get(&(at, holder.owner)).copied();
        Ok(Expect::Lock(LockView {
            fence: stored.and_then(|stored| stored.newest_token()),
            ttl: stored.map_or(Ttl::NoKey, |stored| stored.lease.into()),
            holders: holders.map(|holder| (holder, tie_of(&holder))).collect(),
            waiters: self
                .queues
                .get(&at)
                .into_iter()
                .flatten()
                .copied()
                .collect(),
        }))
    }

    pub(super) fn list(&self, db: usize, count: Option<usize>) -> Expect {
        let queues = self.queues.iter().filter(|(at, _)| at.db == db);
        let mut locks: Vec<ContendedView> = queues
            .filter_map(|(&at, queue)| {
                let holders = self.lock(at).unwrap_or_default().holders;
                let holders = holders.iter().filter(|holder| !holder.over);
                Some(ContendedView {
                    key: at.key,
                    holders: holders.map(|holder| holder.owner).collect(),
                    waiting: queue.len(),
                    since: queue.front()?.since,
                })
            })
            .collect();
        locks.sort_by_key(|lock| lock.since);
        locks.truncate(count.unwrap_or(locks.len()));
        Expect::Contended(locks)
    }

    pub(super) fn agrees_with_view(&mut self, view: &LockView, reply: &Value) -> Option<bool> {
        let limit = view.holders.iter().map(|(holder, _)| holder.limit).min();
        let holders = list(field(reply, "holders")?)?;
        let waiters = list(field(reply, "waiters")?)?;
        let waiting = i64::try_from(view.waiters.len()).unwrap();
        let mut agrees = field(reply, "state")? == &text(limit.map_or("free", |_| "held"))
            && field(reply, "mode")? == &limit.map_or(Value::Nil, |limit| text(mode_name(limit)))
            && field(reply, "limit")? == &limit.map_or(Value::Nil, shown_limit)
            && self.agrees_with_token(view.fence, field(reply, "fence")?)
            && self.lasts(view.ttl, field(reply, "ttl")?)
            && field(reply, "waiting")? == &Value::Int(waiting)
            && holders.len() == view.holders.len()
            && waiters.len() == view.waiters.len();
        // The holders come in the order in which the hash happens to keep them.
        for (holder, tie) in &view.holders {
            let client = tie.filter(|&(_, token)| self.is_token(token, holder.token));
            let owner = text(holder.owner);
            let shown = holders
                .iter()
                .find(|shown| field(shown, "owner") == Some(&owner))?;
            let client = client.map_or(Value::Nil, |(client, _)| Value::Int(self.peers[client].id));
            agrees &= field(shown, "holds")? == &Value::Int(holder.count)
                && self.agrees_with_token(holder.token, field(shown, "fence")?)
                && self.lasts(holder.lease.into(), field(shown, "ttl")?)
                && field(shown, "client")? == &client;
        }
        for (waiter, shown) in view.waiters.iter().zip(waiters) {
            let peer = &self.peers[waiter.client];
            let waited = field(shown, "waited")?;
            agrees &= field(shown, "owner")? == &text(waiter.request.owner)
                && field(shown, "mode")? == &text(mode_name(waiter.request.mode.limit()))
                && field(shown, "client")? == &Value::Int(peer.id)
                && field(shown, "addr")? == &text(&peer.address)
                && has_waited(waiter.since, waited)
                && gives_up(
                    waiter.block,
                    number(waited)?,
                    number(field(shown, "timeout")?)?,
                );
        }
        Some(agrees)
    }

    fn agrees_with_token(&mut self, token: Option<Token>, reply: &Value) -> bool {
        let expected = token.map_or(Expect::Nil, Expect::Token);
        self.agrees(&expected, reply)
    }

    /// All leases began in the run.
    fn lasts(&self, expected: Ttl, reply: &Value) -> bool {
        let Some(ttl) = number(reply) else {
            return false;
        };
        match expected {
            Ttl::NoKey => ttl == -2,
            Ttl::Forever => ttl == -1,
            Ttl::Lease(lease) if is_short(Some(lease)) => (0..=lease).contains(&ttl),
            Ttl::Lease(lease) => (lease - ms(self.started.elapsed() + SOON)..=lease).contains(&ttl),
        }
    }
}

pub(super) fn agrees_with_list(locks: &[ContendedView], reply: &Value) -> Option<bool> {
    let shown = list(reply)?;
    let mut agrees = shown.len() == locks.len();
    for (lock, shown) in locks.iter().zip(shown) {
        let holders = list(field(shown, "holders")?)?;
        let waiting = i64::try_from(lock.waiting).unwrap();
        agrees &= field(shown, "key")? == &text(lock.key)
            && holders.len() == lock.holders.len()
            && lock
                .holders
                .iter()
                .all(|owner| holders.contains(&text(owner)))
            && field(shown, "waiting")? == &Value::Int(waiting)
            && has_waited(lock.since, field(shown, "waited")?);
    }
    Some(agrees)
}

pub(super) fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

fn shown_limit(limit: i64) -> Value {
    Value::Int(if limit == Mode::Shared.limit() {
        0
    } else {
        limit
    })
}

fn mode_name(limit: i64) -> &'static str {
    match limit {
        1 => "exclusive",
        i64::MAX => "shared",
        _ => "limited",
    }
}

/// The server's clock and the run's need not agree to the millisecond on when a
/// wait began.
fn has_waited(since: Instant, reply: &Value) -> bool {
    let expected = ms(since.elapsed());
    number(reply).is_some_and(|waited| (expected - waited).abs() <= ms(SOON))
}

fn gives_up(block: Block, waited: i64, left: i64) -> bool {
    match block {
        Block::Endless => left == -1,
        Block::Long => (waited + left - UNIT_OF_LEASES).abs() <= ms(SOON),
        Block::Short => left >= 0,
    }
}

/// The value of a field in a flat list of names and values.
fn field<'r>(map: &'r Value, name: &str) -> Option<&'r Value> {
    let mut pairs = list(map)?.chunks_exact(2);
    pairs
        .find(|pair| pair[0] == text(name))
        .map(|pair| &pair[1])
}

fn list(reply: &Value) -> Option<&[Value]> {
    match reply {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn number(reply: &Value) -> Option<i64> {
    match reply {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}
