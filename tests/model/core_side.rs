//! The core in this process, driven as the module drives it in a server: what is
//! stored is read, the table is asked for a step, the step is carried out. Here the
//! keyspace is a simulated one, the clock stands where the run sets it, and clients
//! are numbers.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;
use redis_lock_core::effect::Effect;
use redis_lock_core::error::LockError;
use redis_lock_core::keys::{KeyBuf, KeyRef};
use redis_lock_core::lock::{Lock, Now, Released};
use redis_lock_core::queue::{Addressee, Place, Wait, WaiterId};
use redis_lock_core::request::{
    AcquireRequest, ClientId, HoldNumber, Lease as CoreLease, Limit, Owner, ReleaseExtent,
    ReleaseRequest, RenewRequest, Timeout,
};
use redis_lock_core::stored::{PERMIT_PREFIX, Reader, TOKEN_FIELD};
use redis_lock_core::table::{
    Acquired, Answer, Due, LockTable, LockView, Settings, Step, Transition, WORK_A_WAKE, WaitEnd,
    World,
};
use redis_lock_core::token::FencingToken;
use redis_lock_core::usage::Usage;
use redis_lock_testing::{Told, text};

use crate::commands::{
    CHANNELS, CLAIM_TIMEOUT_MS, Command, DATABASES, DEFAULT_LEASE, Extent, KEYS, Lease, Mode,
    OWNERS, Patience, Request,
};
use crate::keyspace::{Content, DbKey, Dump, Event, Keyspace, Stored};
use crate::replies::{self, Counters, Expect, counters_of};

/// A client's connection, as the server knows it.
#[derive(Clone, Debug)]
pub struct Peer {
    pub id: ClientId,
    pub is_connected: bool,
    pub address: String,
}

/// Who runs a script has no connection.
const NOT_CONNECTED: ClientId = ClientId(0);

/// Who sends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client(usize),
    /// A client's transaction: it never waits.
    Transaction(usize),
    /// It never waits and has no connection.
    Script,
}

/// A client that is blocked and can be answered.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub client: usize,
    pub at: DbKey,
    pub request: Request,
    until_ms: Option<i64>,
}

/// A client that was answered, and whom the server frees at the end of its turn.
#[derive(Clone, Copy, Debug)]
struct Woken {
    id: WaiterId,
    to: usize,
    heard: bool,
}

/// What happens when a blocked client is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// It is told at once, before Redis 7.2.
    TellsAtOnce,
    /// Its reply is in its buffer, where an error may yet take its place: Redis 7.2, and Valkey.
    FillsTheBuffer,
    /// It is told before the server sleeps: Redis 7.4 and later.
    TellsLate,
}

/// Somebody who holds a lock, as the run draws from.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub owner: &'static str,
    pub count: i64,
    pub token: Option<i64>,
    pub limit: Limit,
}

/// A grant that a message told of.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub at: DbKey,
    pub owner: &'static str,
    pub token: i64,
}

/// How a wake of the timer came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The timer was set by a command or an event: the server's runs in the same turn.
    SameTurn,
    /// It was set by the wake before: the server's runs a millisecond later.
    Later,
}

pub struct CoreSide {
    table: LockTable,
    pub keyspace: Keyspace,
    /// The clients' connections, by the clients' numbers.
    pub peers: Vec<Peer>,
    waiting: BTreeMap<WaiterId, Waiter>,
    answered: Vec<(WaiterId, Waiter, Answer)>,
    woken: Vec<Woken>,
    /// What clients that waited must have heard by now.
    pub replies: Vec<(usize, Expect)>,
    /// Clients whose connections the module closed.
    pub closed: Vec<usize>,
    /// The channels that somebody listens to.
    pub heard: BTreeSet<&'static str>,
    /// What must have been published on them by now, in this order.
    pub messages: Vec<Told>,
    /// The last grants among these, which may be claimed by now, or over.
    pub grants: Vec<Grant>,
    /// Who asked last for a place that ends with its connection.
    askers: BTreeMap<(DbKey, &'static str), ClientId>,
    /// When the timer wakes the module.
    armed_ms: Option<i64>,
    armed_by_wake: bool,
    /// Who sends this command.
    asker: Option<ClientId>,
    waking: Waking,
}

impl CoreSide {
    pub fn new(now_ms: i64, peers: Vec<Peer>, recheck_interval_ms: i64, waking: Waking) -> Self {
        let mut table = LockTable::default();
        table.settings.recheck_interval_ms = recheck_interval_ms;
        table.settings.claim_timeout_ms = CLAIM_TIMEOUT_MS;
        let mut keyspace = Keyspace::default();
        keyspace.now_ms = now_ms;
        Self {
            table,
            keyspace,
            peers,
            waiting: BTreeMap::new(),
            answered: Vec::new(),
            woken: Vec::new(),
            replies: Vec::new(),
            closed: Vec::new(),
            heard: CHANNELS.into(),
            messages: Vec::new(),
            grants: Vec::new(),
            askers: BTreeMap::new(),
            asker: None,
            waking,
            armed_ms: None,
            armed_by_wake: false,
        }
    }

    fn now(&self) -> Now {
        Now {
            us: self.keyspace.now_ms * 1000,
            steady_ms: self.keyspace.now_ms,
        }
    }

    pub fn settings(&mut self) -> &mut Settings {
        &mut self.table.settings
    }

    /// When something is due next without anybody's command.
    pub fn next_event_ms(&self) -> Option<i64> {
        let waits = self.waiting.values();
        // The server takes a time for over one millisecond after it.
        let timeouts = waits.filter_map(|waiter| Some(waiter.until_ms? + 1));
        timeouts.chain(self.armed_ms).min()
    }
}

// What the run draws from.
impl CoreSide {
    /// The lock of this key, if it is one.
    fn lock(&self, at: DbKey) -> Option<Lock> {
        let stored = self.keyspace.peek(at);
        stored.map_or(Some(Lock::default()), |stored| read(stored).ok())
    }

    pub fn is_lock(&self, at: DbKey) -> bool {
        self.lock(at).is_some()
    }

    /// Those owners of the run that hold the lock.
    pub fn holders(&self, at: DbKey) -> Vec<Holder> {
        let lock = self.lock(at).unwrap_or_default();
        let holders = lock.holders().iter().filter_map(|holder| {
            let mut owners = OWNERS.iter();
            Some(Holder {
                owner: owners.find(|owner| owner.as_bytes() == holder.owner.as_bytes())?,
                count: holder.holds,
                token: holder.token.map(FencingToken::get),
                limit: holder.limit,
            })
        });
        holders.collect()
    }

    pub fn newest_token(&self, at: DbKey) -> Option<i64> {
        Some(self.lock(at)?.last_token?.get())
    }

    /// Who waits for this lock, in the order in which they began.
    pub fn waiters(&self, at: DbKey) -> impl Iterator<Item = &Waiter> {
        self.waiting.values().filter(move |waiter| waiter.at == at)
    }

    pub fn waits(&self, client: usize) -> bool {
        self.waiting.values().any(|waiter| waiter.client == client)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The locks that somebody waits for.
    pub fn contended(&self) -> Vec<DbKey> {
        let mut keys: Vec<DbKey> = self.waiting.values().map(|waiter| waiter.at).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Those that alone keep readers among the holders from a lock.
    pub fn in_the_way(&self) -> Vec<usize> {
        let keys = self.contended().into_iter();
        let firsts = keys.filter_map(|at| {
            let holders = self.holders(at);
            let mut waiters = self.waiters(at);
            let (first, next) = (waiters.next()?, waiters.next()?);
            let are_readers = holders.iter().all(|holder| holder.limit == Limit::SHARED);
            (are_readers && next.request.mode == Mode::Shared).then_some(first.client)
        });
        firsts.collect()
    }

    fn bound(&self, at: DbKey, owner: &str) -> Option<ClientId> {
        self.table.bound_client(key_of(at), &owner_of(owner))
    }

    /// The locks of this database of which holds are bound to a connection, and whose.
    pub fn bound_in(&self, db: usize) -> Vec<(&'static str, &'static str)> {
        let all = KEYS
            .iter()
            .flat_map(|&key| OWNERS.map(|owner| (key, owner)));
        all.filter(|&(key, owner)| self.bound(DbKey { db, key }, owner).is_some())
            .collect()
    }

    /// Whether anything is bound to the client's connection.
    pub fn has_sessions(&self, client: usize) -> bool {
        let id = self.peers[client].id;
        let mut holds = all_keys().flat_map(|at| OWNERS.map(|owner| (at, owner)));
        holds.any(|(at, owner)| self.bound(at, owner) == Some(id))
            || all_keys().any(|at| {
                let places = self.places(at).into_iter();
                let mut askers = places.filter_map(|(owner, _)| self.askers.get(&(at, owner)));
                askers.any(|asker| *asker == id)
            })
    }

    fn view(&self, at: DbKey) -> LockView {
        let lock = self.lock(at).unwrap_or_default();
        self.table.view(key_of(at), lock, self.now())
    }

    /// The places for this lock, each as it is asked for.
    pub fn places(&self, at: DbKey) -> Vec<(&'static str, Mode)> {
        let waiters = self.view(at).waiters.into_iter();
        let places = waiters.filter(|waiter| waiter.is_place());
        let places = places.map(|place| {
            let mode = match place.request.limit {
                Limit::EXCLUSIVE => Mode::Exclusive,
                Limit::SHARED => Mode::Shared,
                limit => Mode::Limit(limit.count_or_zero()),
            };
            (known_owner(&place.request.owner), mode)
        });
        places.collect()
    }

    /// Who waits for what, in queue order.
    pub fn queues(&self) -> String {
        let lines = all_keys().flat_map(|at| {
            let waiters = self.view(at).waiters.into_iter();
            waiters.map(move |waiter| {
                let owner = known_owner(&waiter.request.owner);
                let channel = waiter.wait.channel.as_deref().map(String::from_utf8_lossy);
                let client = waiter.client();
                format!(
                    "{} {}: {owner}, {client:?}, {channel:?}
",
                    at.db, at.key
                )
            })
        });
        lines.collect()
    }

    pub fn counters(&self) -> Counters {
        counters_of(&self.table.totals(self.now()), self.table.metrics())
    }

    /// What a dump of this key stands for.
    pub fn dump(&self, at: DbKey, bytes: Vec<u8>) -> Option<Dump> {
        let content = self.keyspace.peek(at)?.content.clone();
        Some(Dump { bytes, content })
    }
}

// Commands.
impl CoreSide {
    /// Runs a command.
    pub fn run(&mut self, db: usize, command: &Command, sender: Sender) -> Expect {
        let at = |key| DbKey { db, key };
        self.asker = match sender {
            Sender::Client(client) | Sender::Transaction(client) => Some(self.peers[client].id),
            Sender::Script => None,
        };
        let reply = match *command {
            Command::Acquire(key, request, patience) => {
                self.acquire(at(key), request, patience, sender)
            }
            Command::Release(key, owner, fence, extent) => {
                self.release(at(key), owner, fence, extent)
            }
            Command::Renew(key, owner, lease, fence) => {
                let lease = lease.unwrap_or(DEFAULT_LEASE);
                self.renew(at(key), owner, lease, fence)
            }
            Command::Break(key, fence) => self.break_lock(at(key), fence),
            Command::Guard(key, token) => self.guard(at(key), token),
            Command::Info(key) => self.info(at(key)),
            Command::List(count) => Ok(self.list(db, count)),
            Command::Kill(client, _) => {
                self.disconnects(client);
                Ok(Value::Int(1))
            }
            Command::KillEars(_) => {
                self.heard.clear();
                Ok(Value::Int(1))
            }
            ref foreign => {
                let reply = self.keyspace.run(db, foreign);
                self.hear_of_keys();
                return reply;
            }
        };
        self.wake_answered();
        match reply {
            Ok(Value::Okay) => Expect::Waits,
            Ok(reply) => Expect::Reply(reply),
            Err(error) => Expect::error(&error),
        }
    }

    /// Replies OK, which it never does otherwise, where the client waits.
    fn acquire(
        &mut self,
        at: DbKey,
        asked: Request,
        patience: Patience,
        sender: Sender,
    ) -> Result<Value, LockError> {
        let session = match (asked.session, self.asker) {
            (false, _) => None,
            (true, Some(id)) => Some(id),
            (true, None) => return Err(Usage::NoSession.into()),
        };
        let hold = asked.hold.map(HoldNumber::new).transpose()?;
        let first_of_place = matches!(patience, Patience::Queue(..)).then_some(HoldNumber::FIRST);
        let request = AcquireRequest {
            owner: owner_of(asked.owner),
            lease: CoreLease::from_ms(asked.lease.unwrap_or(DEFAULT_LEASE))?,
            hold: hold.or(first_of_place),
            limit: match asked.mode {
                Mode::Exclusive => Limit::EXCLUSIVE,
                Mode::Shared => Limit::SHARED,
                Mode::Limit(limit) => Limit::from_count(limit)?,
            },
            session,
        };
        let waiting_client = match sender {
            Sender::Client(client) => Some(client),
            Sender::Transaction(_) | Sender::Script => None,
        };
        let now_ms = self.keyspace.now_ms;
        let wait = match patience {
            Patience::None => None,
            Patience::Block(block) => {
                let until_ms = Timeout::from_ms(block)?.end_ms(now_ms);
                waiting_client.map(|client| Wait {
                    client: self.peers[client].id,
                    until_ms,
                    channel: None,
                })
            }
            Patience::Queue(ms, channel) => Some(Wait {
                client: self.asker.unwrap_or(NOT_CONNECTED),
                until_ms: Some(now_ms + ms),
                channel: Some(channel.as_bytes().into()),
            }),
        };
        let until_ms = wait.as_ref().and_then(|wait| wait.until_ms);
        match self.step(at, |step| step.acquire(request, wait))? {
            Acquired::Granted(token) => Ok(Value::Int(token.get())),
            Acquired::Busy => Ok(Value::Nil),
            Acquired::Queued(_) if matches!(patience, Patience::Queue(..)) => {
                match session {
                    Some(client) => self.askers.insert((at, asked.owner), client),
                    None => self.askers.remove(&(at, asked.owner)),
                };
                Ok(Value::Int(0))
            }
            Acquired::Queued(id) => {
                let waiter = Waiter {
                    client: waiting_client.unwrap_or_default(),
                    at,
                    request: asked,
                    until_ms,
                };
                self.waiting.insert(id, waiter);
                Ok(Value::Okay)
            }
        }
    }

    fn release(
        &mut self,
        at: DbKey,
        owner: &str,
        fence: Option<i64>,
        extent: Extent,
    ) -> Result<Value, LockError> {
        let request = ReleaseRequest {
            owner: owner_of(owner),
            token: fence.map(FencingToken::new).transpose()?,
            extent: match extent {
                Extent::One => ReleaseExtent::One,
                Extent::Hold(n) => ReleaseExtent::Hold(HoldNumber::new(n)?),
                Extent::All => ReleaseExtent::All,
            },
        };
        Ok(match self.step(at, |step| step.release(&request))? {
            Released::LastHold => Value::Int(1),
            Released::StillHeld => Value::Int(0),
            Released::NotHeld => Value::Nil,
        })
    }

    fn guard(&mut self, at: DbKey, token: i64) -> Result<Value, LockError> {
        let token = FencingToken::new(token)?;
        match self.step(at, |step| step.guard(token))? {
            true => Ok(Value::Int(1)),
            false => Err(LockError::NotHeld),
        }
    }

    fn renew(
        &mut self,
        at: DbKey,
        owner: &str,
        lease: Lease,
        fence: Option<i64>,
    ) -> Result<Value, LockError> {
        let request = RenewRequest {
            owner: owner_of(owner),
            lease: CoreLease::from_ms(lease)?,
            token: fence.map(FencingToken::new).transpose()?,
        };
        let renewed = self.step(at, |step| step.renew(&request))?;
        Ok(Value::Int(renewed.into()))
    }

    fn break_lock(&mut self, at: DbKey, fence: Option<i64>) -> Result<Value, LockError> {
        let token = fence.map(FencingToken::new).transpose()?;
        let broken = self.step(at, |step| step.break_lock(token))?;
        Ok(Value::Int(broken.into()))
    }

    fn info(&mut self, at: DbKey) -> Result<Value, LockError> {
        let lock = self.look(at)?;
        let view = self.table.view(key_of(at), lock, self.now());
        Ok(replies::info(&view, &self.peers, self.now()))
    }

    fn list(&mut self, db: usize, count: Option<usize>) -> Value {
        let now = self.now();
        let number_of_db = i32::try_from(db).unwrap();
        let locks = self.table.contended(number_of_db, now);
        let locks: Vec<_> = locks.take(count.unwrap_or(usize::MAX)).collect();
        let views = locks.into_iter().map(|lock| {
            // What is no lock is held by nobody.
            let stored = self.look(db_key(&lock.key)).unwrap_or_default();
            let holders = self.table.holders(lock.key.as_ref(), stored, now);
            let owners = holders.iter().map(|owner| text(owner.as_bytes()));
            replies::map([
                ("key", text(lock.key.as_ref().name)),
                ("holders", Value::Array(owners.collect())),
                ("waiting", replies::number(lock.waiting)),
                ("waited", Value::Int(lock.waited_ms)),
            ])
        });
        Value::Array(views.collect())
    }
}

impl World for CoreSide {
    fn asker(&self) -> Option<ClientId> {
        self.asker
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> bool {
        self.publish(place, &Answer::Granted(token))
    }

    fn read(&mut self, key: KeyRef<'_>) -> Lock {
        let stored = self.keyspace.get(db_key(&key.into()));
        stored
            .and_then(|stored| read(stored).ok())
            .unwrap_or_default()
    }
}

// The road: read, step, apply, arm the timer, answer.
impl CoreSide {
    fn look(&mut self, at: DbKey) -> Result<Lock, LockError> {
        let stored = self.keyspace.get(at);
        let lock = stored.map_or(Ok(Lock::default()), |stored| read(stored));
        self.hear_of_keys();
        lock
    }

    /// Looks at a lock that a command is about, takes a step, and does what it says.
    fn step<T>(
        &mut self,
        at: DbKey,
        ask: impl FnOnce(&mut Transition<'_>) -> Result<T, LockError>,
    ) -> Result<T, LockError> {
        let known = self.look(at);
        let mut known = known.inspect_err(|_| self.table.forget_ended(key_of(at)))?;
        let take = |table: &mut LockTable, now, world: &mut dyn World, step: &mut Step| {
            table.step(key_of(at), &mut known, now, world, step, ask)
        };
        self.step_and_count(at, take).0
    }

    /// As [`CoreSide::step`]. Returns how many were answered, too.
    fn step_and_count<T>(
        &mut self,
        at: DbKey,
        take: impl FnOnce(&mut LockTable, Now, &mut dyn World, &mut Step) -> T,
    ) -> (T, usize) {
        let (mut table, now) = (std::mem::take(&mut self.table), self.now());
        let mut step = Step::default();
        let result = take(&mut table, now, self, &mut step);
        self.table = table;
        self.hear_of_keys();
        self.apply(at, &step.effects);
        self.arm_timer();
        let answered = step.answers.len();
        for (addressee, answer) in step.answers {
            self.tell(addressee, answer);
        }
        (result, answered)
    }

    fn apply(&mut self, at: DbKey, effects: &[Effect]) {
        let keyspace = &mut self.keyspace;
        for effect in effects {
            match effect {
                Effect::SetHolder {
                    owner,
                    holds,
                    permit,
                    new_token,
                } => {
                    let owner = name_of(owner.as_bytes());
                    let mut fields = vec![(owner.clone(), holds.to_string())];
                    fields.extend(permit.map(|permit| (permit_field(&owner), permit.to_text())));
                    let token = new_token.map(|token| token.get().to_string());
                    fields.extend(token.map(|token| (name_of(TOKEN_FIELD), token)));
                    for (name, value) in fields {
                        keyspace.set_field(at, &name, value).unwrap();
                    }
                }
                Effect::RemoveHolder { owner } => {
                    let owner = name_of(owner.as_bytes());
                    for name in [permit_field(&owner), owner] {
                        keyspace.remove_field(at, &name).unwrap();
                    }
                }
                Effect::ExpireAt { at_ms } => {
                    if let Some(stored) = keyspace.get(at) {
                        stored.expires_at_ms = Some(*at_ms);
                    }
                }
                Effect::Delete => {
                    keyspace.remove(at);
                }
                Effect::Replace {
                    owner,
                    token,
                    end_ms,
                } => {
                    let fields = [(TOKEN_FIELD, token.get()), (owner.as_bytes(), 1)];
                    let fields = fields.map(|(name, number)| (name_of(name), number.to_string()));
                    let ends = end_ms - keyspace.now_ms;
                    keyspace.overwrite(at, Content::Hash(fields.into()), Some(ends));
                }
            }
        }
    }

    fn tell(&mut self, addressee: Addressee, answer: Answer) {
        match addressee {
            Addressee::Blocked(id, _) => {
                if let Some(waiter) = self.waiting.remove(&id) {
                    self.answered.push((id, waiter, answer));
                } else if let Some(told) = self.answered.iter_mut().find(|told| told.0 == id) {
                    told.2 = answer;
                } else {
                    self.tell_instead(id, &answer);
                }
            }
            Addressee::Place(place) => {
                let heard = self.publish(&place, &answer);
                if let Answer::Granted(_) = answer {
                    self.note(|table, now_ms| table.grant_told(place.id, heard, now_ms));
                }
            }
        }
    }

    /// A later request has what this waiter was to be told of in this turn, or a release ended it.
    fn tell_instead(&mut self, id: WaiterId, answer: &Answer) {
        let at = self.woken.iter().position(|woken| woken.id == id);
        let woken = self.woken.remove(at.expect("a grant that is not told"));
        let is_its = |(to, _): &&mut (usize, Expect)| *to == woken.to;
        let reply = self.replies.iter_mut().rfind(is_its);
        reply.expect("its reply").1 = match answer {
            Answer::Refused(error) => Expect::error(error),
            _ => Expect::Reply(Value::Nil),
        };
    }

    /// Publishes the end of a place. Returns whether anybody listens.
    fn publish(&mut self, place: &Place, answer: &Answer) -> bool {
        let is_it = |name: &&&str| name.as_bytes() == &*place.channel;
        let channel = *CHANNELS.iter().find(is_it).unwrap();
        if !self.heard.contains(channel) {
            return false;
        }
        let (at, owner) = (db_key(&place.key), known_owner(&place.owner));
        let result = match answer {
            Answer::Granted(token) => {
                let token = token.get();
                self.grants.push(Grant { at, owner, token });
                if self.grants.len() > 3 {
                    self.grants.remove(0);
                }
                token.to_string()
            }
            Answer::NotGranted => "0".into(),
            Answer::Refused(error) => {
                let asked_by = |peer: &Peer| peer.is_connected && peer.id == place.client;
                let may_read = self.peers.iter().any(asked_by);
                format!("-{}", error.text_for(|_| may_read))
            }
            Answer::Renewed(_) => panic!("a place renews nothing"),
        };
        let lease_ms = match answer {
            Answer::Granted(_) => place.first_lease.ms(),
            _ => 0,
        };
        self.messages.push(Told {
            channel: channel.into(),
            db: i64::try_from(at.db).unwrap(),
            key: at.key.into(),
            owner: owner.into(),
            result,
            lease_ms,
        });
        true
    }

    fn arm_timer(&mut self) {
        let Some(at_ms) = self.table.wake_at_ms(self.now()) else {
            return;
        };
        let at_ms = at_ms.max(self.keyspace.now_ms);
        if self.armed_ms.is_none_or(|armed_ms| at_ms < armed_ms) {
            self.armed_ms = Some(at_ms);
        }
    }

    fn wake_answered(&mut self) {
        for (id, waiter, answer) in std::mem::take(&mut self.answered).into_iter().rev() {
            let reply = match &answer {
                Answer::Granted(token) => Expect::Reply(Value::Int(token.get())),
                Answer::Refused(error) => Expect::error(error),
                Answer::NotGranted => Expect::Reply(Value::Nil),
                Answer::Renewed(_) => panic!("{answer:?} although nothing is withheld"),
            };
            self.replies.push((waiter.client, reply));
            if !matches!(answer, Answer::Granted(_)) {
                continue;
            }
            if self.waking == Waking::TellsAtOnce {
                self.note(|table, now_ms| table.grant_told(id, true, now_ms));
                continue;
            }
            if self.waking == Waking::FillsTheBuffer {
                self.table.grant_said(id);
            }
            self.woken.push(Woken {
                id,
                to: waiter.client,
                heard: true,
            });
        }
    }
}

// What the server tells.
impl CoreSide {
    fn note(&mut self, what: impl FnOnce(&mut LockTable, i64)) {
        what(&mut self.table, self.keyspace.now_ms);
        self.arm_timer();
    }

    /// Tells the table what has happened to keys.
    fn hear_of_keys(&mut self) {
        for event in self.keyspace.take_events() {
            match event {
                Event::AllTouched => self.note(|table, _| table.everything_touched()),
                _ if !self.table.follows_keys() => {}
                Event::Touched(at) => {
                    self.note(|table, now_ms| table.key_touched(key_of(at), now_ms));
                }
            }
        }
    }

    /// The client's connection ends.
    pub fn disconnects(&mut self, client: usize) {
        let id = self.peers[client].id;
        self.peers[client].is_connected = false;
        self.note(|table, _| table.connection_ended(id));
        self.leaves(client, WaitEnd::Gone);
        self.replies.retain(|(to, _)| *to != client);
        for woken in &mut self.woken {
            woken.heard &= woken.to != client;
        }
    }

    /// The client's wait ends, and its connection does not.
    pub fn leaves(&mut self, client: usize, leave: WaitEnd) {
        let mut waiting = self.waiting.iter();
        let found = waiting.find(|(_, waiter)| waiter.client == client);
        if let Some((&id, _)) = found {
            self.waiting.remove(&id);
            self.note(|table, now_ms| {
                table.waiter_left(id, leave, now_ms);
            });
        }
    }
}

// What is due.
impl CoreSide {
    /// Lets time pass.
    pub fn set_time(&mut self, now_ms: i64) {
        self.keyspace.now_ms = now_ms;
        let waiting = self.waiting.values();
        let over = waiting.filter(|waiter| waiter.until_ms.is_some_and(|until| until < now_ms));
        let clients: Vec<usize> = over.map(|waiter| waiter.client).collect();
        for client in clients {
            self.leaves(client, WaitEnd::TimeUp);
            self.replies.push((client, Expect::Reply(Value::Nil)));
        }
    }

    /// Whether the timer wakes in this turn.
    pub fn is_due(&self) -> bool {
        let now_ms = self.keyspace.now_ms;
        self.armed_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Does what the server does before it sleeps, until there is nothing left.
    /// Returns how often the timer woke, each with how that came about.
    pub fn do_all_that_is_due(&mut self) -> Vec<Wake> {
        let mut wakes = Vec::new();
        loop {
            let now_ms = self.keyspace.now_ms;
            if self.is_due() {
                wakes.push(match self.armed_by_wake {
                    true => Wake::Later,
                    false => Wake::SameTurn,
                });
                self.armed_ms = None;
                self.on_wake();
                self.armed_by_wake = self.armed_ms.is_some_and(|at_ms| at_ms <= now_ms);
                self.wake_answered();
            } else if self.woken.is_empty() {
                return wakes;
            }
            for Woken { id, heard, .. } in std::mem::take(&mut self.woken) {
                self.note(|table, now_ms| table.grant_told(id, heard, now_ms));
            }
        }
    }

    fn on_wake(&mut self) {
        let now_ms = self.keyspace.now_ms;
        self.table.end_some_gone(WORK_A_WAKE);
        for (addressee, answer) in self.table.give_up(self.now(), WORK_A_WAKE) {
            self.tell(addressee, answer);
        }
        self.close_clients();
        // The server asks itself whether that key may be written.
        if let Some(key) = self.table.next_due(now_ms) {
            self.keyspace.get(db_key(&key));
            self.hear_of_keys();
        }
        let mut left = WORK_A_WAKE;
        while left > 0
            && let Some(due) = self.table.take_due(now_ms)
        {
            left = left.saturating_sub(self.do_due(due));
        }
        self.close_clients();
        self.arm_timer();
    }

    fn do_due(&mut self, due: Due) -> usize {
        let at = db_key(&due.key);
        let known = self.look(at);
        let ((), answered) = self.step_and_count(at, |table, now, world, step| {
            table.do_due(due, known, now, world, step);
        });
        1 + answered
    }

    fn close_clients(&mut self) {
        for id in self.table.take_clients_to_close(WORK_A_WAKE) {
            let client = self.peers.iter().position(|peer| peer.id == id);
            if let Some(client) = client
                && !self.closed.contains(&client)
            {
                self.closed.push(client);
                self.disconnects(client);
            }
        }
    }
}

fn key_of(at: DbKey) -> KeyRef<'static> {
    KeyRef {
        db: i32::try_from(at.db).unwrap(),
        name: at.key.as_bytes(),
    }
}

fn db_key(key: &KeyBuf) -> DbKey {
    let KeyRef { db, name } = key.as_ref();
    let db = usize::try_from(db).unwrap();
    let key = KEYS.iter().find(|key| key.as_bytes() == name).unwrap();
    DbKey { db, key }
}

fn all_keys() -> impl Iterator<Item = DbKey> {
    (0..DATABASES).flat_map(|db| KEYS.iter().map(move |&key| DbKey { db, key }))
}

/// One of the run's.
fn known_owner(owner: &Owner) -> &'static str {
    let is_it = |name: &&&str| name.as_bytes() == owner.as_bytes();
    OWNERS.iter().find(is_it).unwrap()
}

fn owner_of(name: &str) -> Owner {
    Owner::new(name.as_bytes()).unwrap()
}

/// The name of a field.
fn name_of(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The field of the owner's permit.
fn permit_field(owner: &str) -> String {
    name_of(PERMIT_PREFIX) + owner
}

fn read(stored: &Stored) -> Result<Lock, LockError> {
    let Content::Hash(fields) = &stored.content else {
        return Err(LockError::WrongType);
    };
    let mut reader = Reader::default();
    for (name, value) in fields {
        reader.field(name.as_bytes(), value.as_bytes());
    }
    reader.finish(stored.expires_at_ms)
}
