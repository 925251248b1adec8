//! The commands of the run, as data, so that the model can read what the
//! server is sent.

use std::fmt::Display;

/// Databases of the run, by number.
pub const DATABASES: usize = 2;
pub const KEYS: [&str; 3] = ["a", "b", "c"];
pub const OWNERS: [&str; 4] = ["ann", "bob", "cid", "dan"];

/// With them, a lock has more holders than the module reads each time.
pub const CROWD: [&str; 9] = [
    "eve", "fay", "gus", "hal", "ida", "jim", "kay", "lea", "max",
];

pub type Key = &'static str;

/// Of an owner, or of a field.
pub type Name = &'static str;

/// A lease in milliseconds.
pub type Lease = i64;

/// Commands are sent at whole multiples of it, in milliseconds since 1970.
pub const STEP_MS: i64 = 1000;

pub const UNIT_OF_LEASES: Lease = 60 * 60 * 1000;

/// They are over before the next command, several in a row as well.
pub const SHORT_LEASES: [Lease; 3] = [10, 30, 50];

/// What `lock.default-lease` is set to.
pub const DEFAULT_LEASE: Lease = 4 * UNIT_OF_LEASES;

/// How long `LOCK.ACQUIRE` blocks: without end, long, or so that it is over before the next
/// command. No lease ends in the same millisecond: those of the run are counted in
/// seconds, or short, and the server may do either first.
pub const ENDLESS_MS: i64 = 0;
pub const LONG_MS: i64 = 2 * UNIT_OF_LEASES + 777;
pub const SHORT_MS: i64 = 600;

pub const CHANNELS: [&str; 2] = ["one", "two"];

/// The first one is over before the next command. As with those, nothing else
/// ends in the same millisecond.
pub const QUEUE_MS: [i64; 2] = [400, 2 * UNIT_OF_LEASES + 555];

/// What `lock.claim-timeout` is set to: who is told has some steps to claim.
pub const CLAIM_TIMEOUT_MS: i64 = 5 * STEP_MS + 130;

/// Whether `LOCK.ACQUIRE` would wait, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    None,
    Block(i64),
    /// For how long, and where its end is published.
    Queue(i64, Name),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    One,
    Hold(i64),
    All,
}

/// With how many others an owner would hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Exclusive,
    Shared,
    Limit(i64),
}

/// A lock that is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    pub owner: &'static str,
    pub lease: Option<Lease>,
    pub hold: Option<i64>,
    pub mode: Mode,
    /// Whether the hold shall last as long as the client's connection.
    pub session: bool,
}

#[derive(Clone, Debug)]
pub enum Command {
    Acquire(Key, Request, Patience),
    /// With a token, if it names one.
    Release(Key, Name, Option<i64>, Extent),
    Renew(Key, Name, Option<Lease>, Option<i64>),
    Break(Key, Option<i64>),
    /// It guards a question whether the lock's key exists, by this token.
    Guard(Key, i64),
    Info(Key),
    /// With the most that shall be listed.
    List(Option<usize>),
    RedissonLock(Key, Name, Lease),
    RedissonUnlock(Key, Name, Lease),
    Del(Key),
    Unlink(Key),
    Set(Key),
    Rename(Key, Key),
    RenameNx(Key, Key),
    Move(Key, usize),
    /// To a key of this database.
    CopyReplace(Key, Key, usize),
    Dump(Key),
    RestoreReplace(Key, Option<Lease>, crate::keyspace::Dump),
    /// Negative: in the past. Else a long lease, since it counts in seconds.
    Expire(Key, Lease),
    Pexpire(Key, Lease),
    Persist(Key),
    Hdel(Key, Vec<Name>),
    Hset(Key, Name, i64),
    FlushDb,
    FlushAll,
    SwapDb,
    /// Ends a client's connection, which has this number.
    Kill(usize, u64),
    /// Ends the connection that hears the messages.
    KillEars(i64),
}

/// How Redisson's `RLock` locks and unlocks.
const REDISSON_LOCK: &str = "\
if (redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then \
redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); \
return nil; end; return redis.call('pttl', KEYS[1]);";
const REDISSON_UNLOCK: &str = "\
if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; \
else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; \
return nil;";

/// Runs the commands in its arguments, each preceded by its number of words.
const RUN_ALL: &str = "\
local replies, at = {}, 1 \
while at <= #ARGV do \
  local words = tonumber(ARGV[at]) \
  replies[#replies + 1] = redis.pcall(unpack(ARGV, at + 1, at + words)) \
  at = at + words + 1 \
end \
return replies";

/// One `EVAL` that runs these commands one after another.
pub fn in_a_script(commands: &[Command]) -> Vec<Vec<u8>> {
    let mut all = words(&["EVAL", RUN_ALL, "0"]);
    for command in commands {
        let words = command.words();
        all.push(words.len().to_string().into_bytes());
        all.extend(words);
    }
    all
}

impl Command {
    /// What is sent to the server.
    pub fn words(&self) -> Vec<Vec<u8>> {
        let line = match self {
            Self::Acquire(key, request, patience) => {
                let patience = match patience {
                    Patience::None => String::new(),
                    Patience::Block(ms) => format!(" BLOCK {ms}"),
                    Patience::Queue(ms, channel) => format!(" QUEUE {ms} {channel}"),
                };
                let (lease, hold) = (option("LEASE", request.lease), option("HOLD", request.hold));
                let mode = match request.mode {
                    Mode::Exclusive => String::new(),
                    Mode::Shared => " SHARED".into(),
                    Mode::Limit(limit) => format!(" LIMIT {limit}"),
                };
                let session = if request.session { " SESSION" } else { "" };
                let owner = request.owner;
                format!("LOCK.ACQUIRE {key} {owner}{lease}{patience}{hold}{mode}{session}")
            }
            Self::Release(key, owner, fence, extent) => {
                let extent = match extent {
                    Extent::One => String::new(),
                    Extent::Hold(n) => format!(" HOLD {n}"),
                    Extent::All => " ALL".into(),
                };
                format!(
                    "LOCK.RELEASE {key} {owner}{}{extent}",
                    option("FENCE", *fence)
                )
            }
            Self::Renew(key, owner, lease, fence) => {
                let (lease, fence) = (option("LEASE", *lease), option("FENCE", *fence));
                format!("LOCK.RENEW {key} {owner}{lease}{fence}")
            }
            Self::Break(key, fence) => format!("LOCK.BREAK {key}{}", option("FENCE", *fence)),
            Self::Guard(key, token) => format!("LOCK.GUARD {key} {token} EXISTS {key}"),
            Self::Info(key) => format!("LOCK.INFO {key}"),
            Self::List(count) => format!("LOCK.LIST{}", option("COUNT", *count)),
            Self::RedissonLock(key, owner, lease) => {
                let lease = lease.to_string();
                return words(&["EVAL", REDISSON_LOCK, "1", key, &lease, owner]);
            }
            Self::RedissonUnlock(key, owner, lease) => {
                let arguments = format!("2 {key} channel 0 {lease} {owner}");
                let arguments: Vec<&str> = arguments.split(' ').collect();
                return words(&[&["EVAL", REDISSON_UNLOCK][..], &arguments].concat());
            }
            Self::Del(key) => format!("DEL {key}"),
            Self::Unlink(key) => format!("UNLINK {key}"),
            Self::Set(key) => format!("SET {key} text"),
            Self::Rename(from, to) => format!("RENAME {from} {to}"),
            Self::RenameNx(from, to) => format!("RENAMENX {from} {to}"),
            Self::Move(key, db) => format!("MOVE {key} {db}"),
            Self::CopyReplace(from, to, db) => format!("COPY {from} {to} DB {db} REPLACE"),
            Self::Dump(key) => format!("DUMP {key}"),
            Self::RestoreReplace(key, lease, dump) => {
                let mut all = words(&["RESTORE", key, &lease.unwrap_or(0).to_string()]);
                all.extend([dump.bytes.clone(), "REPLACE".into()]);
                return all;
            }
            Self::Expire(key, lease) => format!("EXPIRE {key} {}", lease / 1000),
            Self::Pexpire(key, lease) => format!("PEXPIRE {key} {lease}"),
            Self::Persist(key) => format!("PERSIST {key}"),
            Self::Hdel(key, fields) => format!("HDEL {key} {}", fields.join(" ")),
            Self::Hset(key, field, value) => format!("HSET {key} {field} {value}"),
            Self::FlushDb => "FLUSHDB".into(),
            Self::FlushAll => "FLUSHALL".into(),
            Self::SwapDb => "SWAPDB 0 1".into(),
            Self::KillEars(id) => format!("CLIENT KILL ID {id}"),
            Self::Kill(_, id) => format!("CLIENT KILL ID {id}"),
        };
        words(&line.split(' ').collect::<Vec<_>>())
    }

    /// What the run's summary files it under.
    pub fn name(&self) -> String {
        match self {
            Self::RedissonLock(..) => "Redisson's lock".into(),
            Self::RedissonUnlock(..) => "Redisson's unlock".into(),
            _ => String::from_utf8(self.words().remove(0)).unwrap(),
        }
    }

    /// A renewal, or a claim.
    pub fn renew(key: &'static str, owner: &'static str, lease: Option<Lease>) -> Self {
        Self::Renew(key, owner, lease, None)
    }

    /// A request to share a lock, which does not wait.
    pub fn share(key: &'static str, owner: &'static str, lease: Lease) -> Self {
        Self::Acquire(
            key,
            Request {
                owner,
                lease: Some(lease),
                hold: None,
                mode: Mode::Shared,
                session: false,
            },
            Patience::None,
        )
    }
}

pub fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn option(name: &str, value: Option<impl Display>) -> String {
    value.map_or(String::new(), |value| format!(" {name} {value}"))
}
