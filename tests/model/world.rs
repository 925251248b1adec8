//! The model: what the contract and Redis's manual say that the commands do.
//! It knows nothing of how the module does it.

mod account;
mod endings;
mod foreign;
mod inspection;
mod locks;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use account::{Account, Noted, Reason};
use endings::Telling;
pub use inspection::Peer;
use inspection::{ContendedView, LockView, agrees_with_list, ms};
use redis::Value;

use crate::commands::{Block, Command, DATABASES, DEFAULT_LEASE, Request};
use crate::stored::{Content, Dump, Lock, Stored, in_units, is_short};

/// A fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// That of the n-th grant of the run. Its value is learnt from the first
    /// reply that tells it.
    OfGrant(usize),
    /// One that somebody wrote with `HSET`.
    Written(i64),
}

/// A key of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub db: usize,
    pub key: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Waiter {
    client: usize,
    request: Request,
    block: Block,
    since: Instant,
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
    /// The reply of `LOCK.INFO`.
    Lock(LockView),
    /// The reply of `LOCK.LIST`.
    Contended(Vec<ContendedView>),
    /// The replies of a transaction or a script.
    List(Vec<Expect>),
    /// Nothing yet: the client is queued.
    Waits,
}

impl Waiter {
    fn gives_up_soon(&self) -> bool {
        self.block == Block::Short
    }
}

#[derive(Debug)]
struct Grant {
    place: Place,
    /// The token that was stored with the lock when it was granted.
    after: Option<Token>,
    value: Option<i64>,
    /// A client that was to be told of it went away before.
    lost: bool,
}

pub const WRONG_TYPE: Expect = Expect::Error("WRONGTYPE");
pub const NOT_A_LOCK: Expect = Expect::Error("NOTALOCK");
const HOLD_COUNT: Expect = Expect::Error("HOLDCOUNT");

/// Who sends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client(usize),
    /// A client's transaction: it never waits.
    Transaction(usize),
    /// It never waits and has no connection.
    Script,
}

pub struct World {
    started: Instant,
    databases: [BTreeMap<&'static str, Stored>; DATABASES],
    /// Which client's connection ties which holds to it, by their token.
    ties: BTreeMap<(Place, &'static str), (usize, Token)>,
    /// Whether waits that close a cycle are refused.
    pub refuses_deadlocks: bool,
    /// How many may wait for one lock.
    pub max_waiters: usize,
    /// The clients' connections, by the clients' numbers.
    pub peers: Vec<Peer>,
    queues: BTreeMap<Place, VecDeque<Waiter>>,
    grants: Vec<Grant>,
    /// How many of the grants are of earlier steps, and their greatest token.
    settled_grants: usize,
    greatest_token: i64,
    /// What the step at hand has for clients that waited.
    answers: Vec<(usize, Expect)>,
    account: Account,
    /// Who held the contended locks at the last look.
    noted: BTreeMap<Place, Vec<Noted>>,
    /// The newest token of the lock that was looked at last, where its last
    /// holder has left since.
    left: Option<Token>,
    /// The same of locks that the end of a connection has freed.
    left_by_ended: BTreeMap<Place, Token>,
    /// What owners are told in the step at hand.
    tellings: BTreeMap<(Place, &'static str), Telling>,
    /// The time of the short leases of the step at hand has passed.
    short_leases_are_over: bool,
}

// What is stored, and who holds the lock.
impl World {
    /// A server as it starts.
    pub fn new(peers: Vec<Peer>) -> Self {
        Self {
            started: Instant::now(),
            databases: Default::default(),
            ties: BTreeMap::new(),
            refuses_deadlocks: true,
            max_waiters: usize::MAX,
            peers,
            queues: BTreeMap::new(),
            grants: Vec::new(),
            settled_grants: 0,
            greatest_token: 0,
            answers: Vec::new(),
            account: Account::default(),
            noted: BTreeMap::new(),
            left: None,
            left_by_ended: BTreeMap::new(),
            tellings: BTreeMap::new(),
            short_leases_are_over: false,
        }
    }

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
    pub fn lock(&self, at: Place) -> Result<Lock, Expect> {
        let stored = self.databases[at.db].get(at.key);
        stored.map_or(Ok(Lock::default()), Stored::lock)
    }

    /// Whether these holds end with a connection.
    pub fn is_tied(&self, at: Place, owner: &'static str) -> bool {
        self.ties.contains_key(&(at, owner))
    }

    /// Takes the owner out of the lock, which goes with its last holder.
    fn remove_holder(&mut self, at: Place, owner: &str) {
        if let Some(stored) = self.stored(at)
            && let Content::Hash(hash) = &mut stored.content
        {
            hash.remove_holder(owner);
        }
        if self.lock(at).is_ok_and(|lock| lock.holders.is_empty()) {
            self.free(at);
        }
    }

    /// Removes the lock. If it is handed on, that is by its next token.
    fn free(&mut self, at: Place) {
        let removed = self.remove(at);
        self.left = removed.and_then(|stored| stored.newest_token());
    }

    fn expire_with_the_last_lease(&mut self, at: Place) {
        let holders = self.lock(at).unwrap_or_default().holders;
        let last = holders.iter().filter_map(|holder| holder.lease).max();
        if let Some(stored) = self.stored(at)
            && last.is_some()
        {
            stored.lease = last;
        }
    }
}

// Steps.
impl World {
    /// Runs a command.
    pub fn run(&mut self, db: usize, command: &Command, sender: Sender) -> Expect {
        let at = |key| Place { db, key };
        match *command {
            Command::Acquire {
                key,
                request,
                block,
            } => self
                .acquire(at(key), request, block, sender)
                .unwrap_or_else(|error| error),
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
            Command::Break { key, fence } => {
                let reply = self.break_lock(at(key), fence);
                self.serve(at(key));
                reply.unwrap_or_else(|error| error)
            }
            Command::Info(key) => self.info(at(key)).unwrap_or_else(|error| error),
            Command::List(count) => self.list(db, count),
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
            Command::RenameNx(from, to) => self.rename_nx(at(from), at(to)),
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
            Command::SwapDb => self.swap_databases(),
            Command::Kill { client, .. } => {
                self.disconnects(client);
                Expect::Int(1)
            }
        }
    }

    /// What a dump of this key stands for.
    pub fn dump(&mut self, at: Place, bytes: Vec<u8>) -> Option<Dump> {
        let content = self.stored(at)?.content.clone();
        Some(Dump { bytes, content })
    }

    /// The client's wait ends as if its time were up.
    pub fn times_out(&mut self, client: usize) {
        self.account.wait_timeouts += 1;
        self.leaves(client);
    }

    /// The client's wait ends with an error.
    pub fn is_sent_away(&mut self, client: usize) {
        self.account.waits_abandoned += 1;
        self.leaves(client);
    }

    fn leaves(&mut self, client: usize) {
        for queue in self.queues.values_mut() {
            queue.retain(|waiter| waiter.client != client);
        }
    }

    /// Who waits for this lock, in queue order: the clients, and as whom.
    pub fn waiters(&self, at: Place) -> impl Iterator<Item = (usize, Request)> {
        let queue = self.queues.get(&at).into_iter().flatten();
        queue.map(|waiter| (waiter.client, waiter.request))
    }

    /// The locks of this database of which holds are tied to a connection, and whose.
    pub fn tied(&self, db: usize) -> Vec<(&'static str, &'static str)> {
        let ties = self.ties.keys().filter(|(at, _)| at.db == db);
        ties.map(|&(at, owner)| (at.key, owner)).collect()
    }

    /// Whether anything is tied to the client's connection.
    pub fn has_sessions(&self, client: usize) -> bool {
        self.ties.values().any(|tie| tie.0 == client)
    }

    /// What follows from a step without anybody's command: waiters get what is
    /// theirs or hear why they can't, and short leases and waits end. Says
    /// whether one of those did.
    pub fn settle(&mut self) -> bool {
        let places: Vec<Place> = self.queues.keys().copied().collect();
        let mut time_passed = false;
        loop {
            for &at in &places {
                match self.look(at) {
                    Ok(()) => {
                        self.note_holders_late(at);
                        self.serve(at);
                    }
                    Err(error) => {
                        for waiter in self.queues.remove(&at).unwrap_or_default() {
                            self.account.waits_refused += 1;
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
                for stored in database.values_mut() {
                    lease_over |= stored.end_short_permits();
                }
            }
            if !lease_over {
                break;
            }
            time_passed = true;
            self.short_leases_are_over = true;
        }
        self.short_leases_are_over = false;
        for queue in self.queues.values_mut() {
            for waiter in queue.iter().filter(|waiter| waiter.gives_up_soon()) {
                self.answers.push((waiter.client, Expect::Nil));
                self.account.wait_timeouts += 1;
                time_passed = true;
            }
            queue.retain(|waiter| !waiter.gives_up_soon());
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.left_by_ended.clear();
        self.tellings.clear();
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

    fn is_contended(&self, at: Place) -> bool {
        self.queues.get(&at).is_some_and(|queue| !queue.is_empty())
    }

    /// The locks that somebody waits for.
    pub fn contended(&self) -> impl Iterator<Item = Place> {
        self.queues.keys().copied()
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

    /// Whether a holder's token is this one. Two grants may have the same where
    /// somebody wrote theirs far ahead.
    fn is_token(&self, token: Token, held: Option<Token>) -> bool {
        let value = self.value(token);
        held == Some(token) || value.is_some() && held.and_then(|held| self.value(held)) == value
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
            (Expect::Lock(view), reply) => self.agrees_with_view(view, reply) == Some(true),
            (Expect::Contended(locks), reply) => agrees_with_list(locks, reply) == Some(true),
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

    /// Whether a token is the next one after that which its lock had stored. What
    /// somebody stored there moves the tokens of no other lock.
    fn follows(&self, stored: Option<Token>, value: i64) -> bool {
        match stored {
            None => false,
            // Nobody was told that one.
            Some(Token::OfGrant(n)) if self.grants[n].value.is_none() => {
                self.follows(self.grants[n].after, value - 1)
            }
            Some(token) => self.value(token) == Some(value - 1),
        }
    }

    /// Ends a step: all its tokens are known. Each is above the one stored before;
    /// and but for those that follow it, those of one lock rise in the order of
    /// its grants, and none was given twice.
    pub fn check_new_tokens(&mut self) -> Result<(), String> {
        for (n, grant) in self.grants.iter().enumerate().skip(self.settled_grants) {
            let Some(value) = grant.value else {
                if grant.lost {
                    continue;
                }
                return Err(format!("nobody was told the token of {grant:?}"));
            };
            if let Some(stored) = grant.after.and_then(|token| self.value(token))
                && value <= stored
            {
                return Err(format!("{value} is not above the stored {stored}"));
            }
            if self.follows(grant.after, value) {
                continue;
            }
            for earlier in &self.grants[self.settled_grants..n] {
                let earlier_value = earlier.value.unwrap_or_default();
                if self.follows(earlier.after, earlier_value) {
                    continue;
                }
                let same_place = earlier.place == grant.place;
                if value == earlier_value || (same_place && value < earlier_value) {
                    return Err(format!("{value} was granted after {earlier_value}"));
                }
            }
        }
        let new = self.grants[self.settled_grants..].iter();
        let own = |grant: &Grant| {
            grant
                .value
                .filter(|&value| !self.follows(grant.after, value))
        };
        let greatest = new.filter_map(own).max();
        self.greatest_token = greatest.unwrap_or(0).max(self.greatest_token);
        self.settled_grants = self.grants.len();
        Ok(())
    }

    /// Reads from what the server lists which tokens are stored though nobody was
    /// told of them: those of lost grants beside which others hold the lock.
    pub fn learn_lost_tokens(&mut self, listing: &str) {
        for (db, database) in self.databases.iter().enumerate() {
            for (key, stored) in database {
                let Some(Token::OfGrant(n)) = stored.newest_token() else {
                    continue;
                };
                let grant = &mut self.grants[n];
                if grant.lost && grant.value.is_none() {
                    let start = format!("{db} {key} @fence=");
                    let mut lines = listing.lines();
                    let shown = lines.find_map(|line| line.strip_prefix(&start));
                    let number = shown.and_then(|rest| rest.split(' ').next());
                    grant.value = number.and_then(|number| number.parse().ok());
                }
            }
        }
    }

    /// All that is stored, a key a line, as the run's script lists it.
    pub fn listing(&self) -> String {
        let mut lines = String::new();
        for (db, database) in self.databases.iter().enumerate() {
            for (key, stored) in database {
                let mut line = format!("{db} {key}");
                match &stored.content {
                    Content::Text => line += " text",
                    Content::Hash(hash) => line += &hash.listing(|token| self.value(token)),
                }
                if let Some(lease) = stored.lease {
                    line += &format!(" ttl {}", in_units(lease));
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
