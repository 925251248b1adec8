//! What clients are told, and what the run reads of the server.

use std::collections::BTreeMap;

use redis::Value;
use redis_lock_core::error::LockError;
use redis_lock_core::lock::Now;
use redis_lock_core::metrics::Metrics;
use redis_lock_core::request::{ClientId, Limit};
use redis_lock_core::table::{LockView, Totals};
use redis_lock_core::token::FencingToken;
use redis_lock_testing::{Client, text};

use crate::commands::DATABASES;
use crate::core_side::Peer;

/// What a client must be answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// This very reply.
    Reply(Value),
    /// An error of the module, in its words.
    Error(String),
    /// An error of the server with this code.
    Code(&'static str),
    /// What only the server can know.
    SomeBytes,
    /// The replies of a transaction or a script.
    List(Vec<Expect>),
    /// Nothing yet: the client is queued.
    Waits,
}

impl Expect {
    pub const OK: Self = Self::Reply(Value::Okay);

    /// Whether the reply is the expected one.
    pub fn agrees(&self, reply: &Value) -> bool {
        match (self, reply) {
            (Self::Reply(expected), reply) => expected == reply,
            (Self::Error(expected), Value::ServerError(error)) => {
                *expected == format!("{} {}", error.code(), error.details().unwrap_or_default())
            }
            (Self::Code(code), Value::ServerError(error)) => error.code() == *code,
            (Self::SomeBytes, Value::BulkString(_)) => true,
            (Self::List(expected), Value::Array(replies)) => {
                expected.len() == replies.len()
                    && expected
                        .iter()
                        .zip(replies)
                        .all(|(expected, reply)| expected.agrees(reply))
            }
            _ => false,
        }
    }

    /// What the run's summary files it under.
    pub fn kind(&self) -> String {
        match self {
            Self::Reply(Value::Int(n)) if *n > 1_000_000 => "a token or a time".into(),
            Self::Reply(Value::Int(n)) => n.to_string(),
            Self::Reply(Value::Nil) => "null".into(),
            Self::Reply(Value::Array(_)) => "a view".into(),
            Self::Reply(_) => "OK".into(),
            Self::Error(error) => error.split(' ').next().unwrap_or_default().into(),
            Self::Code(code) => (*code).into(),
            Self::SomeBytes => "bytes".into(),
            Self::List(_) => "a list".into(),
            Self::Waits => "a wait".into(),
        }
    }

    pub fn error(error: &LockError) -> Self {
        Self::Error(error.to_string())
    }
}

/// The reply of `LOCK.INFO`.
pub fn info(lock: &LockView, peers: &[Peer], now: Now) -> Value {
    let mode = lock.limit.map(mode_name);
    let holders = lock.holders.iter().map(|holder| {
        map([
            ("owner", text(holder.owner.as_bytes())),
            ("holds", Value::Int(holder.holds)),
            ("fence", token(holder.token)),
            ("ttl", Value::Int(holder.ttl_ms)),
            ("client", client(holder.client)),
        ])
    });
    let waiters = lock.waiters.iter().map(|waiter| {
        let peer = peers.iter().find(|peer| Some(peer.id) == waiter.client());
        let addr = peer.map_or("", |peer| &peer.address);
        let request = &waiter.request;
        map([
            ("owner", text(request.owner.as_bytes())),
            ("mode", text(mode_name(request.limit))),
            ("limit", Value::Int(request.limit.count_or_zero())),
            ("client", client(waiter.client())),
            ("addr", or_nil(waiter.client().map(|_| text(addr)))),
            ("channel", or_nil(waiter.wait.channel.as_ref().map(text))),
            ("waited", Value::Int(waiter.waited_ms(now))),
            ("timeout", Value::Int(waiter.left_ms(now))),
        ])
    });
    map([
        ("state", text(mode.map_or("free", |_| "held"))),
        ("mode", or_nil(mode.map(text))),
        (
            "limit",
            or_nil(lock.limit.map(|limit| Value::Int(limit.count_or_zero()))),
        ),
        ("fence", token(lock.token)),
        ("ttl", Value::Int(lock.ttl_ms)),
        ("holders", Value::Array(holders.collect())),
        ("holding", number(lock.holding)),
        ("waiting", number(lock.waiting)),
        ("waiters", Value::Array(waiters.collect())),
        ("grace", Value::Int(0)),
    ])
}

/// Names and values in turn.
pub fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let pairs = fields.map(|(name, value)| [text(name), value]);
    Value::Array(pairs.into_iter().flatten().collect())
}

pub fn number<N: TryInto<i64>>(number: N) -> Value {
    Value::Int(number.try_into().unwrap_or(i64::MAX))
}

fn or_nil(value: Option<Value>) -> Value {
    value.unwrap_or(Value::Nil)
}

fn token(token: Option<FencingToken>) -> Value {
    or_nil(token.map(|token| Value::Int(token.get())))
}

fn client(client: Option<ClientId>) -> Value {
    or_nil(client.map(|client| number(client.0)))
}

fn mode_name(limit: Limit) -> &'static str {
    match limit {
        Limit::EXCLUSIVE => "exclusive",
        Limit::SHARED => "shared",
        _ => "limited",
    }
}

pub type Counters = BTreeMap<String, u64>;

/// What `INFO lock` must show.
pub fn counters_of(totals: &Totals, metrics: &Metrics) -> Counters {
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let counts = totals.counts;
    let mut all = vec![
        ("waiters".to_owned(), count(counts.waiters)),
        ("places".to_owned(), count(counts.places)),
        ("contended_keys".into(), count(counts.contended_keys)),
        ("planned_looks".into(), count(counts.planned_rechecks)),
        ("sessions".into(), count(totals.sessions)),
        ("longest_wait_ms".into(), unsigned(totals.longest_wait_ms)),
        ("grants_immediate".into(), metrics.grants_immediate),
        ("grants_after_wait".into(), metrics.grants_after_wait),
        ("hand_offs".into(), metrics.hand_offs),
        ("reentries".into(), metrics.reentries),
        ("grants_undelivered".into(), metrics.grants_undelivered),
        ("claims".into(), metrics.claims),
        ("grants_unclaimed".into(), metrics.grants_unclaimed),
        ("places_unheard".into(), metrics.places_unheard),
        ("wait_timeouts".into(), metrics.wait_timeouts),
        ("waits_abandoned".into(), metrics.waits_abandoned),
        ("waits_refused".into(), metrics.waits_refused),
        ("releases".into(), metrics.releases),
        ("releases_expired".into(), metrics.releases_expired),
        ("releases_session".into(), metrics.releases_session),
        ("releases_broken".into(), metrics.releases_broken),
        ("releases_deleted".into(), metrics.releases_deleted),
        ("superseded".into(), metrics.superseded),
        ("deadlocks_refused".into(), metrics.deadlocks_refused),
        ("tokens_refused".into(), metrics.tokens_refused),
        ("queues_full".into(), metrics.queues_full),
        ("replies_withheld".into(), count(totals.withheld)),
        (
            "replies_unacknowledged".into(),
            metrics.replies_unacknowledged,
        ),
        ("grace_ms".into(), 0),
        ("replicas_missing".into(), 0),
    ];
    for (what, times) in [("wait", &metrics.waits), ("hold", &metrics.holds)] {
        let summary = times.summary();
        all.extend([
            (format!("{what}_count"), summary.count),
            (format!("{what}_us_p50"), summary.p50_us),
            (format!("{what}_us_p99"), summary.p99_us),
            (format!("{what}_us_p999"), summary.p999_us),
            (format!("{what}_us_max"), summary.max_us),
        ]);
    }
    let all = all.into_iter();
    all.map(|(name, number)| (format!("lock_{name}"), number))
        .collect()
}

/// What `INFO lock` shows.
pub fn counters(client: &mut Client) -> Counters {
    let info = client.bulk("INFO lock");
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let numbers =
        fields.filter_map(|(name, number)| Some((name.into(), number.trim().parse().ok()?)));
    numbers.collect()
}

/// Lists what `Keyspace::listing` does, after how many clients are blocked.
const LISTING: &str = "\
local lines = {string.match(redis.call('info', 'clients'), 'blocked_clients:(%d+)')} \
for db = 0, tonumber(ARGV[1]) - 1 do \
  redis.call('select', db) \
  local keys = redis.call('keys', '*') \
  table.sort(keys) \
  for _, key in ipairs(keys) do \
    local line = db .. ' ' .. key \
    if redis.call('type', key).ok == 'hash' then \
      local flat = redis.call('hgetall', key) \
      for i = 1, #flat, 2 do line = line .. ' ' .. flat[i] .. '=' .. flat[i + 1] end \
    else \
      line = line .. ' text' \
    end \
    lines[#lines + 1] = line .. ' until ' .. string.format('%.0f', redis.call('pexpiretime', key)) \
  end \
end \
return table.concat(lines, '\\n') .. '\\n'";

/// How many clients are blocked, and then all that is stored, a key a line.
pub fn listing(client: &mut Client) -> String {
    let databases = DATABASES.to_string();
    let words = ["EVAL", LISTING, "0", &databases].map(str::as_bytes);
    match client.words(&words) {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        other => panic!("the listing failed: {other:?}"),
    }
}

/// A command, for the report.
pub fn sentence(words: &[Vec<u8>]) -> String {
    let words = words.iter().map(|word| match word.as_slice() {
        [b'i' | b'l', .., b';'] => "<Redisson's script>".into(),
        word => word.escape_ascii().to_string(),
    });
    words.collect::<Vec<String>>().join(" ")
}
