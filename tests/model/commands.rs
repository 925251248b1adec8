//! The commands of the run, as data, so that the model can read what the
//! server is sent.

/// Databases of the run, by number.
pub const DATABASES: usize = 2;
pub const KEYS: [&str; 3] = ["a", "b", "c"];
pub const OWNERS: [&str; 4] = ["ann", "bob", "cid", "dan"];

/// With them, a lock has more holders than the module reads each time.
pub const CROWD: [&str; 9] = [
    "eve", "fay", "gus", "hal", "ida", "jim", "kay", "lea", "max",
];

/// A lease in milliseconds.
pub type Lease = i64;

/// Commands are sent at whole multiples of it, in milliseconds since 1970.
pub const STEP_MS: i64 = 1000;

pub const UNIT_OF_LEASES: Lease = 60 * 60 * 1000;

/// They are over before the next command, several in a row as well.
pub const SHORT_LEASES: [Lease; 3] = [10, 30, 50];

/// What `lock.default-lease` is set to.
pub const DEFAULT_LEASE: Lease = 4 * UNIT_OF_LEASES;

/// How long `LOCK.ACQUIRE` would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    Endless,
    Long,
    /// It is over before the next command.
    Short,
}

impl Block {
    /// In milliseconds. No lease ends in the same one: those of the run are counted in
    /// seconds, or short, and the server may do either first.
    pub const fn ms(self) -> i64 {
        match self {
            Self::Endless => 0,
            Self::Long => 2 * UNIT_OF_LEASES + 777,
            Self::Short => 600,
        }
    }
}

/// How long a place in the queue is kept, and where its end is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub ms: i64,
    pub channel: &'static str,
}

pub const CHANNELS: [&str; 2] = ["one", "two"];

/// The first one is over before the next command. As with [`Block::ms`], nothing else
/// ends in the same millisecond.
pub const QUEUE_MS: [i64; 2] = [400, 2 * UNIT_OF_LEASES + 555];

/// What `lock.claim-timeout` is set to: who is told has some steps to claim.
pub const CLAIM_TIMEOUT_MS: i64 = 5 * STEP_MS + 130;

/// Whether `LOCK.ACQUIRE` would wait, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    None,
    Block(Block),
    Queue(Queue),
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
    Acquire {
        key: &'static str,
        request: Request,
        patience: Patience,
    },
    Release {
        key: &'static str,
        owner: &'static str,
        fence: Option<i64>,
        extent: Extent,
    },
    Renew {
        key: &'static str,
        owner: &'static str,
        lease: Option<Lease>,
        fence: Option<i64>,
    },
    Break {
        key: &'static str,
        fence: Option<i64>,
    },
    /// It guards a question whether the lock's key exists.
    Guard {
        key: &'static str,
        token: i64,
    },
    Info(&'static str),
    /// With the most that shall be listed.
    List(Option<usize>),
    RedissonLock {
        key: &'static str,
        owner: &'static str,
        lease: Lease,
    },
    RedissonUnlock {
        key: &'static str,
        owner: &'static str,
        lease: Lease,
    },
    Del(&'static str),
    Unlink(&'static str),
    Set(&'static str),
    Rename(&'static str, &'static str),
    RenameNx(&'static str, &'static str),
    Move(&'static str, usize),
    CopyReplace {
        from: &'static str,
        to: &'static str,
        db: usize,
    },
    Dump(&'static str),
    RestoreReplace {
        key: &'static str,
        lease: Option<Lease>,
        dump: crate::keyspace::Dump,
    },
    /// Negative: in the past. Else a long lease, since it counts in seconds.
    Expire(&'static str, Lease),
    Pexpire(&'static str, Lease),
    Persist(&'static str),
    Hdel(&'static str, Vec<&'static str>),
    Hset(&'static str, &'static str, i64),
    FlushDb,
    FlushAll,
    SwapDb,
    /// Ends a client's connection, which has this number.
    Kill {
        client: usize,
        id: u64,
    },
    /// Ends the connection that hears the messages.
    KillEars {
        id: i64,
    },
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
        match self {
            Self::Acquire {
                key,
                request,
                patience,
            } => {
                let mut all = words(&["LOCK.ACQUIRE", key, request.owner]);
                option(&mut all, "LEASE", request.lease);
                match patience {
                    Patience::None => {}
                    Patience::Block(block) => option(&mut all, "BLOCK", Some(block.ms())),
                    Patience::Queue(Queue { ms, channel }) => {
                        all.extend(words(&["QUEUE", &ms.to_string(), channel]));
                    }
                }
                option(&mut all, "HOLD", request.hold);
                match request.mode {
                    Mode::Exclusive => {}
                    Mode::Shared => all.extend(words(&["SHARED"])),
                    Mode::Limit(limit) => option(&mut all, "LIMIT", Some(limit)),
                }
                if request.session {
                    all.extend(words(&["SESSION"]));
                }
                all
            }
            Self::Release {
                key,
                owner,
                fence,
                extent,
            } => {
                let mut all = words(&["LOCK.RELEASE", key, owner]);
                option(&mut all, "FENCE", *fence);
                match *extent {
                    Extent::One => {}
                    Extent::Hold(n) => option(&mut all, "HOLD", Some(n)),
                    Extent::All => all.extend(words(&["ALL"])),
                }
                all
            }
            Self::Renew {
                key,
                owner,
                lease,
                fence,
            } => {
                let mut all = words(&["LOCK.RENEW", key, owner]);
                option(&mut all, "LEASE", *lease);
                option(&mut all, "FENCE", *fence);
                all
            }
            Self::Break { key, fence } => {
                let mut all = words(&["LOCK.BREAK", key]);
                option(&mut all, "FENCE", *fence);
                all
            }
            Self::Guard { key, token } => {
                words(&["LOCK.GUARD", key, &token.to_string(), "EXISTS", key])
            }
            Self::Info(key) => words(&["LOCK.INFO", key]),
            Self::List(count) => {
                let mut all = words(&["LOCK.LIST"]);
                let count = count.map(|count| i64::try_from(count).unwrap());
                option(&mut all, "COUNT", count);
                all
            }
            Self::RedissonLock { key, owner, lease } => {
                let lease = lease.to_string();
                words(&["EVAL", REDISSON_LOCK, "1", key, &lease, owner])
            }
            Self::RedissonUnlock { key, owner, lease } => words(&[
                "EVAL",
                REDISSON_UNLOCK,
                "2",
                key,
                "channel",
                "0",
                &lease.to_string(),
                owner,
            ]),
            Self::Del(key) => words(&["DEL", key]),
            Self::Unlink(key) => words(&["UNLINK", key]),
            Self::Set(key) => words(&["SET", key, "text"]),
            Self::Rename(from, to) => words(&["RENAME", from, to]),
            Self::RenameNx(from, to) => words(&["RENAMENX", from, to]),
            Self::Move(key, db) => words(&["MOVE", key, &db.to_string()]),
            Self::CopyReplace { from, to, db } => {
                words(&["COPY", from, to, "DB", &db.to_string(), "REPLACE"])
            }
            Self::Dump(key) => words(&["DUMP", key]),
            Self::RestoreReplace { key, lease, dump } => {
                let lease = lease.unwrap_or(0).to_string();
                let mut all = words(&["RESTORE", key, &lease]);
                all.push(dump.bytes.clone());
                all.extend(words(&["REPLACE"]));
                all
            }
            Self::Expire(key, lease) => words(&["EXPIRE", key, &(lease / 1000).to_string()]),
            Self::Pexpire(key, lease) => words(&["PEXPIRE", key, &lease.to_string()]),
            Self::Persist(key) => words(&["PERSIST", key]),
            Self::Hdel(key, fields) => {
                let mut all = words(&["HDEL", key]);
                all.extend(words(fields));
                all
            }
            Self::Hset(key, field, value) => words(&["HSET", key, field, &value.to_string()]),
            Self::FlushDb => words(&["FLUSHDB"]),
            Self::FlushAll => words(&["FLUSHALL"]),
            Self::SwapDb => words(&["SWAPDB", "0", "1"]),
            Self::KillEars { id } => words(&["CLIENT", "KILL", "ID", &id.to_string()]),
            Self::Kill { id, .. } => words(&["CLIENT", "KILL", "ID", &id.to_string()]),
        }
    }

    /// What the run's summary files it under.
    pub fn name(&self) -> String {
        match self {
            Self::RedissonLock { .. } => "Redisson's lock".into(),
            Self::RedissonUnlock { .. } => "Redisson's unlock".into(),
            _ => String::from_utf8(self.words().remove(0)).unwrap(),
        }
    }

    /// A renewal, or a claim.
    pub fn renew(key: &'static str, owner: &'static str, lease: Option<Lease>) -> Self {
        Self::Renew {
            key,
            owner,
            lease,
            fence: None,
        }
    }

    /// A request to share a lock, which does not wait.
    pub fn share(key: &'static str, owner: &'static str, lease: Lease) -> Self {
        Self::Acquire {
            key,
            request: Request {
                owner,
                lease: Some(lease),
                hold: None,
                mode: Mode::Shared,
                session: false,
            },
            patience: Patience::None,
        }
    }
}

pub fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn option(words: &mut Vec<Vec<u8>>, name: &str, value: Option<i64>) {
    if let Some(value) = value {
        words.push(name.into());
        words.push(value.to_string().into());
    }
}
