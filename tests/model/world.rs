//! The model: what the contract and Redis's manual say that the commands do.
//! It knows nothing of how the module does it.

use std::collections::{BTreeMap, VecDeque};

use redis::Value;

use crate::commands::{
    Block, Command, DATABASES, DEFAULT_LEASE, Extent, LONGEST_SHORT_LEASE, Lease, Request,
    UNIT_OF_LEASES,
};

/// A fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// That of the n-th grant of the run. Its value is learnt from the first
    /// reply that tells it.
    OfGrant(usize),
    /// One that somebody wrote with `HSET`.
    Written(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Text,
    Hash {
        fields: BTreeMap<&'static str, i64>,
        /// The field `@fence`.
        fence: Option<Token>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    content: Content,
    /// The key's time to live, as it was last set.
    lease: Option<Lease>,
}

/// What `DUMP` answered, and what it stands for.
#[derive(Clone, Debug)]
pub struct Dump {
    pub bytes: Vec<u8>,
    content: Content,
}

/// A key of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub db: usize,
    pub key: &'static str,
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub owner: &'static str,
    pub count: i64,
    pub token: Option<Token>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    client: usize,
    request: Request,
    gives_up_soon: bool,
}

/// What a client must be answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    Nil,
    Int(i64),
    Ok,
    Token(Token),
    /// An error with this code.
    Error(&'static str),
    /// A `PTTL`, which is as exact as the clock.
    SomeTtl,
    /// What only the server can know.
    SomeBytes,
    /// The replies of a transaction or a script.
    List(Vec<Expect>),
    /// Nothing yet: the client is queued.
    Waits,
}

#[derive(Debug)]
struct Grant {
    place: Place,
    /// The token that was stored with the lock when it was granted.
    after: Option<Token>,
    value: Option<i64>,
}

const WRONG_TYPE: Expect = Expect::Error("WRONGTYPE");
const HOLD_COUNT: Expect = Expect::Error("HOLDCOUNT");

#[derive(Default)]
pub struct World {
    databases: [BTreeMap<&'static str, Stored>; DATABASES],
    queues: BTreeMap<Place, VecDeque<Waiter>>,
    grants: Vec<Grant>,
    /// How many of the grants are of earlier steps, and their greatest token.
    settled_grants: usize,
    greatest_token: i64,
    /// What the step at hand has for clients that waited.
    answers: Vec<(usize, Expect)>,
}

/// A lease that the run waits for.
fn is_short(lease: Option<Lease>) -> bool {
    lease.is_some_and(|lease| lease <= LONGEST_SHORT_LEASE)
}

// What is stored, and who holds the lock.
impl World {
    fn stored(&mut self, at: Place) -> Option<&mut Stored> {
        self.databases[at.db].get_mut(at.key)
    }

    fn put(&mut self, at: Place, stored: Stored) {
        self.databases[at.db].insert(at.key, stored);
    }

    fn remove(&mut self, at: Place) -> Option<Stored> {
        self.databases[at.db].remove(at.key)
    }

    /// Who holds the lock at this place, or why there is none.
    pub fn holder(&self, at: Place) -> Result<Option<Holder>, Expect> {
        let Some(stored) = self.databases[at.db].get(at.key) else {
            return Ok(None);
        };
        let Content::Hash { fields, fence } = &stored.content else {
            return Err(WRONG_TYPE);
        };
        let not_a_lock = Err(Expect::Error("NOTALOCK"));
        if matches!(fence, Some(Token::Written(n)) if *n < 1) {
            return not_a_lock;
        }
        let mut fields = fields.iter();
        match (fields.next(), fields.next()) {
            (None, _) => Ok(None),
            (Some((&owner, &count)), None)
                if !owner.starts_with('@')
                    && count >= 1
                    && (fence.is_some() || stored.lease.is_some()) =>
            {
                Ok(Some(Holder {
                    owner,
                    count,
                    token: *fence,
                }))
            }
            _ => not_a_lock,
        }
    }

    fn hold_of(&self, at: Place, owner: &str) -> Result<Option<Holder>, Expect> {
        let holder = self.holder(at)?;
        Ok(holder.filter(|holder| holder.owner == owner))
    }

    fn write_lock(&mut self, at: Place, holder: Holder, lease: Option<Lease>) {
        let content = Content::Hash {
            fields: BTreeMap::from([(holder.owner, holder.count)]),
            fence: holder.token,
        };
        self.put(at, Stored { content, lease });
    }
}

// The lock's own commands.
impl World {
    /// The lock is free or held by the one who asks.
    fn grant(&mut self, at: Place, request: Request) -> Result<Expect, Expect> {
        let held = self.hold_of(at, request.owner)?;
        let held_count = held.map_or(0, |held| held.count);
        let count = request.hold.unwrap_or(held_count + 1);
        if count != held_count && count != held_count + 1 {
            return Err(HOLD_COUNT);
        }
        let stored = self.databases[at.db].get(at.key);
        let old_lease = stored.map(|stored| stored.lease);
        let old_token = stored.and_then(|stored| match stored.content {
            Content::Hash { fence, .. } => fence,
            Content::Text => None,
        });
        let token = match held.and_then(|held| held.token) {
            Some(token) => token,
            None => {
                self.grants.push(Grant {
                    place: at,
                    after: old_token,
                    value: None,
                });
                Token::OfGrant(self.grants.len() - 1)
            }
        };
        let asked = request.lease.unwrap_or(DEFAULT_LEASE);
        let lease = match (held, old_lease) {
            // Re-entry never shortens a lease. A persisted lock stays so.
            (Some(_), Some(old)) => old.map(|old| old.max(asked)),
            _ => Some(asked),
        };
        let holder = Holder {
            owner: request.owner,
            count,
            token: Some(token),
        };
        self.write_lock(at, holder, lease);
        Ok(Expect::Token(token))
    }

    /// Everybody in the queue who may have the lock gets it: the first in line
    /// if it is free, and whoever asks as its holder.
    fn serve(&mut self, at: Place) {
        while let Ok(holder) = self.holder(at) {
            let Some(queue) = self.queues.get_mut(&at) else {
                return;
            };
            let next = match holder {
                None => 0,
                Some(holder) => {
                    let same = |waiter: &Waiter| waiter.request.owner == holder.owner;
                    match queue.iter().position(same) {
                        Some(next) => next,
                        None => return,
                    }
                }
            };
            let Some(waiter) = queue.remove(next) else {
                return;
            };
            let answer = self.grant(at, waiter.request).unwrap_or_else(|error| error);
            self.answers.push((waiter.client, answer));
        }
    }

    fn acquire(
        &mut self,
        at: Place,
        request: Request,
        wait: Option<(usize, Block)>,
    ) -> Result<Expect, Expect> {
        self.holder(at)?;
        // No newcomer passes the queue.
        self.serve(at);
        let holder = self.holder(at)?;
        if holder.is_none_or(|holder| holder.owner == request.owner) {
            return self.grant(at, request);
        }
        if request.hold.is_some_and(|n| n != 1) {
            return Err(HOLD_COUNT);
        }
        let Some((client, block)) = wait else {
            return Ok(Expect::Nil);
        };
        self.queues.entry(at).or_default().push_back(Waiter {
            client,
            request,
            gives_up_soon: block == Block::Short,
        });
        Ok(Expect::Waits)
    }

    fn release(
        &mut self,
        at: Place,
        owner: &str,
        fence: Option<i64>,
        extent: Extent,
    ) -> Result<Expect, Expect> {
        let Some(held) = self.hold_of(at, owner)? else {
            return match extent {
                // It may be sent again, after its first reply was lost.
                Extent::Hold(1) => Ok(Expect::Int(1)),
                Extent::Hold(_) => Err(HOLD_COUNT),
                Extent::One | Extent::All => Ok(Expect::Nil),
            };
        };
        if !self.names(fence, held) {
            return Ok(Expect::Nil);
        }
        let count = match extent {
            Extent::One => held.count - 1,
            Extent::All => 0,
            Extent::Hold(n) if n == held.count || n == held.count + 1 => n - 1,
            Extent::Hold(_) => return Err(HOLD_COUNT),
        };
        if count > 0 {
            let lease = self.stored(at).and_then(|stored| stored.lease);
            self.write_lock(at, Holder { count, ..held }, lease);
            return Ok(Expect::Int(0));
        }
        self.remove(at);
        Ok(Expect::Int(1))
    }

    fn renew(
        &mut self,
        at: Place,
        owner: &str,
        lease: Lease,
        fence: Option<i64>,
    ) -> Result<Expect, Expect> {
        let held = self.hold_of(at, owner)?;
        let held = held.filter(|held| self.names(fence, *held));
        if let Some(held) = held {
            self.write_lock(at, held, Some(lease));
        }
        Ok(Expect::Int(held.is_some().into()))
    }

    /// Whether `FENCE` names the token of this hold, if it was given at all.
    fn names(&self, fence: Option<i64>, held: Holder) -> bool {
        fence.is_none() || fence == held.token.and_then(|token| self.value(token))
    }
}

// Other commands, as Redis has them.
impl World {
    fn rename(&mut self, from: Place, to: Place) -> Expect {
        let Some(stored) = self.remove(from) else {
            return Expect::Error("ERR");
        };
        self.put(to, stored);
        Expect::Ok
    }

    fn move_to(&mut self, from: Place, to: Place) -> Expect {
        if self.stored(to).is_some() {
            return Expect::Int(0);
        }
        let Some(stored) = self.remove(from) else {
            return Expect::Int(0);
        };
        self.put(to, stored);
        Expect::Int(1)
    }

    fn copy(&mut self, from: Place, to: Place) -> Expect {
        if from == to {
            return Expect::Error("ERR");
        }
        let Some(stored) = self.stored(from).cloned() else {
            return Expect::Int(0);
        };
        self.put(to, stored);
        Expect::Int(1)
    }

    fn expire(&mut self, at: Place, lease: Lease) -> Expect {
        let Some(stored) = self.stored(at) else {
            return Expect::Int(0);
        };
        stored.lease = Some(lease);
        if lease < 0 {
            self.remove(at);
        }
        Expect::Int(1)
    }

    fn persist(&mut self, at: Place) -> Expect {
        let ended = self.stored(at).and_then(|stored| stored.lease.take());
        Expect::Int(ended.is_some().into())
    }

    fn hdel(&mut self, at: Place, names: &[&str]) -> Expect {
        let Some(stored) = self.stored(at) else {
            return Expect::Int(0);
        };
        let Content::Hash { fields, fence } = &mut stored.content else {
            return WRONG_TYPE;
        };
        let mut removed = 0;
        for &name in names {
            let found = if name == "@fence" {
                fence.take().is_some()
            } else {
                fields.remove(name).is_some()
            };
            removed += i64::from(found);
        }
        if fields.is_empty() && fence.is_none() {
            self.remove(at);
        }
        Expect::Int(removed)
    }

    /// The fields of the hash, which is made if there is none.
    fn fields(
        &mut self,
        at: Place,
    ) -> Option<(&mut BTreeMap<&'static str, i64>, &mut Option<Token>)> {
        let stored = self.databases[at.db].entry(at.key).or_insert(Stored {
            content: Content::Hash {
                fields: BTreeMap::new(),
                fence: None,
            },
            lease: None,
        });
        match &mut stored.content {
            Content::Hash { fields, fence } => Some((fields, fence)),
            Content::Text => None,
        }
    }

    fn hset(&mut self, at: Place, name: &'static str, value: i64) -> Expect {
        let Some((fields, fence)) = self.fields(at) else {
            return WRONG_TYPE;
        };
        let old = if name == "@fence" {
            fence.replace(Token::Written(value)).is_some()
        } else {
            fields.insert(name, value).is_some()
        };
        Expect::Int((!old).into())
    }

    fn has_field(&mut self, at: Place, name: &str) -> Result<bool, Expect> {
        match self.stored(at).map(|stored| &stored.content) {
            None => Ok(false),
            Some(Content::Hash { fields, .. }) => Ok(fields.contains_key(name)),
            Some(Content::Text) => Err(WRONG_TYPE),
        }
    }

    /// `HINCRBY`
    fn add(&mut self, at: Place, name: &'static str, by: i64) -> i64 {
        let Some((fields, _)) = self.fields(at) else {
            return 0;
        };
        let value = fields.entry(name).or_default();
        *value += by;
        *value
    }

    fn redisson_lock(
        &mut self,
        at: Place,
        owner: &'static str,
        lease: Lease,
    ) -> Result<Expect, Expect> {
        if self.stored(at).is_none() || self.has_field(at, owner)? {
            self.add(at, owner, 1);
            self.expire(at, lease);
            return Ok(Expect::Nil);
        }
        Ok(Expect::SomeTtl)
    }

    fn redisson_unlock(
        &mut self,
        at: Place,
        owner: &'static str,
        lease: Lease,
    ) -> Result<Expect, Expect> {
        if !self.has_field(at, owner)? {
            return Ok(Expect::Nil);
        }
        if self.add(at, owner, -1) > 0 {
            self.expire(at, lease);
            return Ok(Expect::Int(0));
        }
        self.remove(at);
        Ok(Expect::Int(1))
    }
}

// Steps.
impl World {
    /// Runs a command. `waits_as` is the client, if it may be blocked.
    pub fn run(&mut self, db: usize, command: &Command, waits_as: Option<usize>) -> Expect {
        let at = |key| Place { db, key };
        match *command {
            Command::Acquire {
                key,
                request,
                block,
            } => {
                let wait = waits_as.zip(block);
                self.acquire(at(key), request, wait)
                    .unwrap_or_else(|error| error)
            }
            Command::Release {
                key,
                owner,
                fence,
                extent,
            } => {
                let reply = self.release(at(key), owner, fence, extent);
                self.serve(at(key));
                reply.unwrap_or_else(|error| error)
            }
            Command::Renew {
                key,
                owner,
                lease,
                fence,
            } => {
                let reply = self.renew(at(key), owner, lease.unwrap_or(DEFAULT_LEASE), fence);
                self.serve(at(key));
                reply.unwrap_or_else(|error| error)
            }
            Command::RedissonLock { key, owner, lease } => self
                .redisson_lock(at(key), owner, lease)
                .unwrap_or_else(|error| error),
            Command::RedissonUnlock { key, owner, lease } => self
                .redisson_unlock(at(key), owner, lease)
                .unwrap_or_else(|error| error),
            Command::Del(key) | Command::Unlink(key) => {
                Expect::Int(self.remove(at(key)).is_some().into())
            }
            Command::Set(key) => {
                let content = Content::Text;
                let lease = None;
                self.put(at(key), Stored { content, lease });
                Expect::Ok
            }
            Command::Rename(from, to) => self.rename(at(from), at(to)),
            Command::Move(key, db) => self.move_to(at(key), Place { db, key }),
            Command::CopyReplace { from, to, db } => self.copy(at(from), Place { db, key: to }),
            Command::Dump(key) => match self.stored(at(key)) {
                Some(_) => Expect::SomeBytes,
                None => Expect::Nil,
            },
            Command::RestoreReplace {
                key,
                lease,
                ref dump,
            } => {
                let content = dump.content.clone();
                self.put(at(key), Stored { content, lease });
                Expect::Ok
            }
            Command::Expire(key, lease) | Command::Pexpire(key, lease) => {
                self.expire(at(key), lease)
            }
            Command::Persist(key) => self.persist(at(key)),
            Command::Hdel(key, ref names) => self.hdel(at(key), names),
            Command::Hset(key, name, value) => self.hset(at(key), name, value),
            Command::FlushDb => {
                self.databases[db].clear();
                Expect::Ok
            }
            Command::FlushAll => {
                self.databases = Default::default();
                Expect::Ok
            }
            // Who waits, waits for the key of that name in its database.
            Command::SwapDb => {
                self.databases.swap(0, 1);
                Expect::Ok
            }
        }
    }

    /// What a dump of this key stands for.
    pub fn dump(&mut self, at: Place, bytes: Vec<u8>) -> Option<Dump> {
        let content = self.stored(at)?.content.clone();
        Some(Dump { bytes, content })
    }

    /// The client waits no more, for a reason of its own.
    pub fn leaves(&mut self, client: usize) {
        for queue in self.queues.values_mut() {
            queue.retain(|waiter| waiter.client != client);
        }
    }

    /// What follows from a step without anybody's command: waiters get what is
    /// theirs or hear why they can't, and short leases and waits end. Says
    /// whether one of those did.
    pub fn settle(&mut self) -> bool {
        let places: Vec<Place> = self.queues.keys().copied().collect();
        let mut time_passed = false;
        loop {
            for &at in &places {
                match self.holder(at) {
                    Ok(_) => self.serve(at),
                    Err(error) => {
                        for waiter in self.queues.remove(&at).unwrap_or_default() {
                            self.answers.push((waiter.client, error.clone()));
                        }
                    }
                }
            }
            let mut lease_over = false;
            for database in &mut self.databases {
                let before = database.len();
                database.retain(|_, stored| !is_short(stored.lease));
                lease_over |= database.len() < before;
            }
            if !lease_over {
                break;
            }
            time_passed = true;
        }
        for queue in self.queues.values_mut() {
            for waiter in queue.iter().filter(|waiter| waiter.gives_up_soon) {
                self.answers.push((waiter.client, Expect::Nil));
                time_passed = true;
            }
            queue.retain(|waiter| !waiter.gives_up_soon);
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        time_passed
    }

    /// What clients that waited must be told now.
    pub fn take_answers(&mut self) -> Vec<(usize, Expect)> {
        std::mem::take(&mut self.answers)
    }

    pub fn waits(&self, client: usize) -> bool {
        let mut waiters = self.queues.values().flatten();
        waiters.any(|waiter| waiter.client == client)
    }

    pub fn waiting(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }
}

// Tokens and replies.
impl World {
    /// The number of this token, once it is known.
    pub fn value(&self, token: Token) -> Option<i64> {
        match token {
            Token::OfGrant(n) => self.grants[n].value,
            Token::Written(value) => Some(value),
        }
    }

    pub fn greatest_token(&self) -> i64 {
        self.greatest_token
    }

    /// Whether the reply is the expected one. A token that is told for the
    /// first time must be greater than all of the steps before.
    pub fn agrees(&mut self, expected: &Expect, reply: &Value) -> bool {
        match (expected, reply) {
            (Expect::Nil, Value::Nil) | (Expect::Ok, Value::Okay) => true,
            (Expect::Int(expected), Value::Int(reply)) => expected == reply,
            (Expect::SomeTtl, Value::Int(reply)) => *reply >= -1,
            (Expect::SomeBytes, Value::BulkString(_)) => true,
            (Expect::Error(code), Value::ServerError(error)) => error.code() == *code,
            (Expect::List(expected), Value::Array(replies)) => {
                expected.len() == replies.len()
                    && expected
                        .iter()
                        .zip(replies)
                        .all(|(expected, reply)| self.agrees(expected, reply))
            }
            (Expect::Token(Token::Written(expected)), Value::Int(reply)) => expected == reply,
            (Expect::Token(Token::OfGrant(n)), Value::Int(reply)) => {
                let known = *self.grants[*n].value.get_or_insert(*reply);
                let is_new = *n >= self.settled_grants;
                known == *reply && (!is_new || known > self.greatest_token)
            }
            _ => false,
        }
    }

    /// Ends a step: all its tokens are known. Those of one lock rise in the
    /// order of its grants, above the one stored before, and none was given
    /// twice.
    pub fn check_new_tokens(&mut self) -> Result<(), String> {
        for (n, grant) in self.grants.iter().enumerate().skip(self.settled_grants) {
            let Some(value) = grant.value else {
                return Err(format!("nobody was told the token of {grant:?}"));
            };
            if let Some(stored) = grant.after.and_then(|token| self.value(token))
                && value <= stored
            {
                return Err(format!("{value} is not above the stored {stored}"));
            }
            for earlier in &self.grants[self.settled_grants..n] {
                let earlier_value = earlier.value.unwrap_or_default();
                let same_place = earlier.place == grant.place;
                if value == earlier_value || (same_place && value < earlier_value) {
                    return Err(format!("{value} was granted after {earlier_value}"));
                }
            }
        }
        let new = self.grants[self.settled_grants..].iter();
        let greatest = new.filter_map(|grant| grant.value).max();
        self.greatest_token = greatest.unwrap_or(0).max(self.greatest_token);
        self.settled_grants = self.grants.len();
        Ok(())
    }

    /// All that is stored, a key a line, as the run's script lists it.
    pub fn listing(&self) -> String {
        let mut lines = String::new();
        for (db, database) in self.databases.iter().enumerate() {
            for (key, stored) in database {
                let mut line = format!("{db} {key}");
                match &stored.content {
                    Content::Text => line += " text",
                    Content::Hash { fields, fence } => {
                        if let Some(token) = fence {
                            line += &format!(" @fence={}", self.value(*token).unwrap_or(0));
                        }
                        for (name, value) in fields {
                            line += &format!(" {name}={value}");
                        }
                    }
                }
                if let Some(lease) = stored.lease {
                    line += &format!(" ttl {}", lease / UNIT_OF_LEASES);
                }
                lines += &line;
                lines.push('\n');
            }
        }
        lines
    }

    /// Who waits for what, in queue order.
    pub fn queues(&self) -> String {
        let mut lines = String::new();
        for (at, queue) in &self.queues {
            for waiter in queue {
                let owner = waiter.request.owner;
                lines += &format!(
                    "{} {}: client {} as {owner}\n",
                    at.db, at.key, waiter.client
                );
            }
        }
        lines
    }
}
