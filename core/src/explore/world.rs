//! A server with the lock table, its clients, and what each of them knows.

use std::fmt::Write as _;
use std::rc::Rc;

use super::form::{Form, GENERATIONS, Names, orders_of};
use super::invariants::{self, Broken, Seen};
use super::keyspace::{Keyspace, Value, Write};
use super::scope::{Ask, Extent, Named, Scope};
use super::search;
use crate::deliveries::BoundBefore;
use crate::error::LockError;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::{Lock, Now, Released};
use crate::queue::{Addressee, Wait, WaiterId};
use crate::request::{
    AcquireRequest, ClientId, HoldNumber, Lease, Owner, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use crate::table::{
    Acquired, Answer, Done, HolderView, Leave, LockTable, Offer, Progress, Settings, Step, Stored,
    WORK_A_WAKE,
};
use crate::token::FencingToken;

/// How long a grant lasts, in milliseconds.
pub(super) const LEASE_MS: i64 = 3000;

/// How long a place is kept, in milliseconds.
pub(super) const PLACE_MS: i64 = 2000;

/// How long a grant to a place lasts that nobody claims, in milliseconds.
pub(super) const CLAIM_MS: i64 = 1000;

/// How often a contended lock is looked at for no other reason, in milliseconds.
pub(super) const RECHECK_MS: i64 = 5000;

pub(super) const BEGIN_MS: i64 = 1_700_000_000_000;

/// Something that a client, the server or time may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `LOCK.ACQUIRE`, by a connection, one of the scope's.
    Acquire(u8, u8, u8),
    /// `LOCK.RELEASE`, by a connection, one of the scope's.
    Release(u8, u8, u8),
    /// `LOCK.RENEW`, by a connection, one of the scope's.
    Renew(u8, u8, u8),
    /// `LOCK.BREAK`
    Break(u8),
    /// `DEL`
    Delete(u8),
    /// `SET`, of which the module is not told.
    Overwrite(u8),
    /// The server finds a key that has expired.
    Expire(u8),
    /// `RENAME` of this key to the other.
    Rename(u8),
    /// `SWAPDB`; the two keys are one in two databases.
    Swap,
    /// Redisson's scripts take the lock for the owner of this connection.
    Redisson(u8, u8),
    /// Time passes, until something can happen that could not before.
    Pass,
    /// The timer wakes the module.
    Wake,
    /// The same, while the server refuses every write.
    WakeRefused,
    /// A waiter's time is up, or `CLIENT UNBLOCK` has it be.
    TimeUp(u8),
    /// `CLIENT UNBLOCK ... ERROR`
    SendAway(u8),
    /// A connection ends.
    Disconnect(u8),
    /// A client hears of its grant.
    Hear(u8),
    /// A client was sent away before it heard of its grant.
    Miss(u8),
    /// Who listens to the messages to this owner's places goes away, or comes back.
    Listen(u8),
    /// A replica takes over. It may lack the last write.
    FailOver(bool),
}

/// Who is there.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) scope: Scope,
    pub(super) owners: Vec<Owner>,
    pub(super) keys: Vec<KeyBuf>,
    /// Whose each connection is.
    pub(super) owner_of: Vec<usize>,
    orders: Vec<Order>,
}

/// One way to order the names.
#[derive(Debug)]
struct Order {
    owners: Vec<usize>,
    keys: Vec<usize>,
    connections: Vec<usize>,
}

impl Cast {
    pub(super) fn new(scope: Scope) -> Rc<Self> {
        let names = ["a", "b", "c"];
        let owners = names.iter().take(scope.connections.len());
        let owners = owners.map(|name| Owner::new(name.as_bytes()).unwrap());
        let keys = (0..scope.keys).map(|db| KeyRef { db, name: b"k" }.into());
        let connections = scope.connections.iter().enumerate();
        let owner_of = connections.flat_map(|(owner, &count)| std::iter::repeat_n(owner, count));
        let mut cast = Self {
            scope,
            owners: owners.collect(),
            keys: keys.collect(),
            owner_of: owner_of.collect(),
            orders: Vec::new(),
        };
        let all_keys = orders_of(&(0..cast.keys.len()).collect::<Vec<_>>());
        for owners in orders_of(&(0..cast.owners.len()).collect::<Vec<_>>()) {
            let is_alike = |(&to, count): (&usize, &usize)| scope.connections[to] == *count;
            if !owners.iter().zip(scope.connections).all(is_alike) {
                continue;
            }
            let mut connections: Vec<Vec<usize>> = vec![Vec::new()];
            for owner in &owners {
                let of_owner: Vec<usize> = (0..cast.owner_of.len())
                    .filter(|&at| cast.owner_of[at] == *owner)
                    .collect();
                connections = connections
                    .iter()
                    .flat_map(|before| {
                        let all = orders_of(&of_owner).into_iter();
                        all.map(|of_owner| [before.clone(), of_owner].concat())
                    })
                    .collect();
            }
            for connections in connections {
                for keys in &all_keys {
                    cast.orders.push(Order {
                        owners: owners.clone(),
                        keys: keys.clone(),
                        connections: connections.clone(),
                    });
                }
            }
        }
        Rc::new(cast)
    }

    pub(super) fn key(&self, key: usize) -> KeyRef<'_> {
        self.keys[key].as_ref()
    }

    /// What a trace calls this connection: its owner, and which of its connections.
    pub(super) fn client_name(&self, at: usize) -> String {
        let owner = self.owner_of[at];
        let before = self.owner_of.iter().take(at);
        let number = before.filter(|&&one| one == owner).count() + 1;
        match self.scope.connections[owner] {
            1 => self.owner_name(owner).to_owned(),
            _ => format!("{}{number}", self.owner_name(owner)),
        }
    }

    pub(super) fn owner_name(&self, owner: usize) -> &str {
        ["a", "b", "c"][owner]
    }

    pub(super) fn key_name(&self, key: usize) -> &str {
        ["k", "l"][key]
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Doing {
    Nothing,
    Waits {
        key: usize,
        id: WaiterId,
        ask: Ask,
    },
    /// It was granted the lock, and has not heard of it yet.
    ToHear {
        /// Where the hold is now, if anywhere.
        key: usize,
        token: FencingToken,
        ask: Ask,
        bound_before: BoundBefore,
    },
}

/// A place in a queue, as its owner asked for it last.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceKept {
    pub(super) id: WaiterId,
    /// The connection that asked.
    at: usize,
    ask: Ask,
    pub(super) until_ms: i64,
    session: Option<ClientId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) generation: u64,
    pub(super) doing: Doing,
}

/// What an owner knows of a lock, and may rely on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The newest token that a reply told it.
    pub(super) told: Option<FencingToken>,
    /// A grant that stands, and until when.
    pub(super) promise: Option<(FencingToken, i64)>,
    /// So many holds it was told of.
    pub(super) holds: i64,
    /// The connection that the holds of a token are bound to.
    pub(super) bound_to: Option<(ClientId, FencingToken)>,
    /// Holds that ended with their connection.
    pub(super) over: Option<FencingToken>,
    /// A grant to a place that is not claimed, and when it ends at the latest.
    pub(super) unclaimed: Option<(FencingToken, i64)>,
}

/// A server, its clients, and what they know.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) cast: Rc<Cast>,
    pub(super) table: LockTable,
    pub(super) data: Keyspace,
    /// What a replica has that lacks the last write.
    copy: Keyspace,
    last_write: Vec<Write>,
    pub(super) now_ms: i64,
    steps: i64,
    pub(super) connections: Vec<Connection>,
    pub(super) known: [[Known; 3]; 2],
    /// The places of each owner that it was not told the end of.
    places: [[Option<PlaceKept>; 3]; 2],
    /// Whose messages nobody listens to.
    deaf: [bool; 3],
    /// The greatest token that was ever granted.
    pub(super) greatest: Option<FencingToken>,
    /// What became of a key since the module looked at it last.
    pub(super) changed: [Changed; 2],
    /// When the module tries again, after the server refused its writes.
    retry_at_ms: Option<i64>,
    /// What was said, where somebody listens.
    said: Option<String>,
}

impl search::World for World {
    type Scope = Scope;
    type Action = Action;

    fn new(scope: Scope) -> Self {
        Self::new(&Cast::new(scope))
    }

    fn actions(&self, actions: &mut Vec<Action>) {
        self.actions(actions);
    }

    fn act(&mut self, action: Action) -> Checked<()> {
        self.act(action)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint()
    }

    fn listen(&mut self) {
        self.said = Some(String::new());
    }

    fn said(&mut self) -> String {
        self.said.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// What became of a key since the module looked at it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Changed {
    /// Nothing but time.
    #[default]
    Nothing,
    /// Somebody wrote to it, and the module was told.
    Told,
    /// Somebody wrote to it, and the module was not told.
    Untold,
}

type Checked<T> = Result<T, Broken>;

impl World {
    pub(super) fn new(cast: &Rc<Cast>) -> Self {
        let connection = Connection {
            generation: 1,
            doing: Doing::Nothing,
        };
        Self {
            cast: Rc::clone(cast),
            table: new_table(&cast.scope),
            data: Keyspace::default(),
            copy: Keyspace::default(),
            last_write: Vec::new(),
            now_ms: BEGIN_MS,
            steps: 0,
            connections: vec![connection; cast.owner_of.len()],
            known: Default::default(),
            places: Default::default(),
            deaf: Default::default(),
            greatest: None,
            changed: Default::default(),
            retry_at_ms: None,
            said: None,
        }
    }

    fn scope(&self) -> &Scope {
        &self.cast.scope
    }

    pub(super) fn now(&self) -> Now {
        // Each step takes a moment, so that no two have the same time.
        Now {
            us: self.now_ms * 1000 + self.steps * 10,
        }
    }

    pub(super) fn client(&self, at: usize) -> ClientId {
        ClientId((at as u64 + 1) * GENERATIONS + self.connections[at].generation)
    }

    /// The connection with this id, if it has not ended.
    pub(super) fn connection_of(&self, client: ClientId) -> Option<usize> {
        (0..self.connections.len()).find(|&at| self.client(at) == client)
    }

    pub(super) fn owner(&self, at: usize) -> &Owner {
        &self.cast.owners[self.cast.owner_of[at]]
    }

    pub(super) fn owner_number(&self, owner: &Owner) -> usize {
        let at = self.cast.owners.iter().position(|one| one == owner);
        at.expect("an owner of the cast")
    }

    /// Who holds the lock, in everybody's eyes.
    pub(super) fn holders(&self, key: usize) -> Vec<HolderView> {
        if self.data.is_expired(key, self.now_ms) {
            return Vec::new();
        }
        let lock = self.data.read(key).unwrap_or_default();
        let view = self
            .table
            .view(self.cast.key(key), Stored::Read(lock), self.now());
        view.holders
    }

    pub(super) fn holds(&self, key: usize, owner: usize) -> Option<HolderView> {
        let holders = self.holders(key).into_iter();
        holders
            .filter(|one| one.owner == self.cast.owners[owner])
            .last()
    }

    /// The connections that wait for this key, in the order of their requests, and those
    /// that asked for places.
    pub(super) fn waiting(&self, key: usize) -> Vec<(WaiterId, usize, Ask)> {
        let all = self.connections.iter().enumerate();
        let blocked = all.filter_map(|(at, one)| match one.doing {
            Doing::Waits { key: its, id, ask } if its == key => Some((id, at, ask)),
            _ => None,
        });
        let places = self.places_for(key).map(|one| (one.id, one.at, one.ask));
        let mut waiting: Vec<_> = blocked.chain(places).collect();
        waiting.sort_by_key(|&(id, ..)| id);
        waiting
    }

    /// The places in this key's queue.
    pub(super) fn places_for(&self, key: usize) -> impl Iterator<Item = &PlaceKept> {
        self.places[key].iter().flatten()
    }

    /// Whether a place must not be granted anything any more.
    pub(super) fn is_over(&self, place: &PlaceKept) -> bool {
        let has_ended = |client| self.connection_of(client).is_none();
        place.until_ms <= self.now_ms || place.session.is_some_and(has_ended)
    }

    /// The key and the owner of a place.
    fn whose_place(&self, id: WaiterId) -> Checked<(usize, usize, PlaceKept)> {
        let keys = 0..self.cast.keys.len();
        let all = keys.flat_map(|key| (0..self.cast.owners.len()).map(move |owner| (key, owner)));
        let mut places = all.filter_map(|(key, owner)| {
            let place = self.places[key][owner]?;
            (place.id == id).then_some((key, owner, place))
        });
        places.next().ok_or_else(|| {
            Broken::new(
                "only_who_waits_is_answered",
                "the table told of a place that is not there".to_owned(),
            )
        })
    }

    /// When the module's timer is due.
    pub(super) fn wake_at_ms(&self) -> Option<i64> {
        if self.retry_at_ms.is_some() {
            return self.retry_at_ms;
        }
        self.table.wake_at_ms()
    }

    fn is_wake_due(&self) -> bool {
        self.wake_at_ms().is_some_and(|at_ms| at_ms <= self.now_ms)
    }

    /// The next time at which something can happen that could not before.
    fn next_time(&self) -> Option<i64> {
        let exact = self.scope().exact_ends;
        let ends = (0..self.cast.keys.len()).flat_map(|key| {
            let lock = self.data.read(key).unwrap_or_default();
            let leases = lock.holders().iter().filter_map(|one| one.lease_end_ms);
            let ends: Vec<i64> = leases.chain(self.data.expires_at_ms(key)).collect();
            ends
        });
        let ends = ends.flat_map(|end_ms| {
            let at = exact.then_some(end_ms);
            at.into_iter().chain([end_ms + 1])
        });
        let times = ends.chain(self.wake_at_ms());
        times.filter(|&at_ms| at_ms > self.now_ms).min()
    }

    /// All that can happen now.
    fn actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        let scope = self.scope();
        let keys = 0..self.cast.keys.len() as u8;
        let options = |count: usize| 0..count as u8;
        for at in options(self.connections.len()) {
            match self.connections[usize::from(at)].doing {
                Doing::Nothing => {
                    for key in keys.clone() {
                        for ask in options(scope.asks.len()) {
                            actions.push(Action::Acquire(at, key, ask));
                        }
                        for what in options(scope.releases.len()) {
                            actions.push(Action::Release(at, key, what));
                        }
                        for what in options(scope.renewals.len()) {
                            actions.push(Action::Renew(at, key, what));
                        }
                    }
                }
                Doing::Waits { .. } => {
                    if scope.leaves {
                        actions.push(Action::TimeUp(at));
                    }
                    if scope.sends_away {
                        actions.push(Action::SendAway(at));
                    }
                }
                Doing::ToHear { .. } => {
                    actions.push(Action::Hear(at));
                    if scope.sends_away {
                        actions.push(Action::Miss(at));
                    }
                }
            }
            if scope.disconnects {
                actions.push(Action::Disconnect(at));
            }
        }
        for key in keys.clone() {
            let at = usize::from(key);
            if scope.breaks {
                actions.push(Action::Break(key));
            }
            let is_there = self.data.value(at).is_some();
            if is_there && self.data.is_expired(at, self.now_ms) {
                actions.push(Action::Expire(key));
            }
            if scope.deletes && is_there {
                actions.push(Action::Delete(key));
            }
            if scope.overwrites && self.data.value(at) != Some(&Value::Text) {
                actions.push(Action::Overwrite(key));
            }
            if scope.renames && is_there {
                actions.push(Action::Rename(key));
            }
            if scope.redisson && !is_there {
                for owner in options(self.cast.owners.len()) {
                    actions.push(Action::Redisson(owner, key));
                }
            }
        }
        if scope.goes_deaf {
            let owners = options(self.cast.owners.len());
            actions.extend(owners.map(Action::Listen));
        }
        if scope.swaps {
            actions.push(Action::Swap);
        }
        if self.is_wake_due() {
            actions.push(Action::Wake);
            if scope.refuses_writes {
                actions.push(Action::WakeRefused);
            }
        }
        if (scope.is_late || !self.is_wake_due()) && self.next_time().is_some() {
            actions.push(Action::Pass);
        }
        if scope.fails_over {
            actions.push(Action::FailOver(false));
            if !self.last_write.is_empty() {
                actions.push(Action::FailOver(true));
            }
        }
    }

    fn say(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.said.is_some() {
            let what = what(self);
            if let Some(said) = &mut self.said {
                if !said.is_empty() {
                    said.push_str("; ");
                }
                let _ = write!(said, "{what}");
            }
        }
    }

    /// Does it.
    fn act(&mut self, action: Action) -> Checked<()> {
        self.steps += 1;
        match action {
            Action::Acquire(at, key, ask) => {
                let ask = self.scope().asks[usize::from(ask)];
                self.acquire(at.into(), key.into(), ask)?;
            }
            Action::Release(at, key, what) => {
                let what = self.scope().releases[usize::from(what)];
                self.release(at.into(), key.into(), what)?;
            }
            Action::Renew(at, key, what) => {
                let what = self.scope().renewals[usize::from(what)];
                self.renew(at.into(), key.into(), what)?;
            }
            Action::Break(key) => self.break_lock(key.into())?,
            Action::Delete(key) => {
                let key = usize::from(key);
                self.say(|w| format!("DEL {}", w.cast.key_name(key)));
                self.write(Write::Delete(key));
                self.change(key, true);
            }
            Action::Overwrite(key) => {
                let key = usize::from(key);
                self.say(|w| format!("SET {} text, untold", w.cast.key_name(key)));
                self.write(Write::Overwrite(key));
                self.change(key, false);
            }
            Action::Expire(key) => self.notice_expiry(key.into()),
            Action::Rename(from) => self.rename(from.into()),
            Action::Swap => self.swap(),
            Action::Redisson(owner, key) => {
                let (owner, key) = (usize::from(owner), usize::from(key));
                self.say(|w| {
                    let (owner, key) = (w.cast.owner_name(owner), w.cast.key_name(key));
                    format!("Redisson takes {key} for {owner}")
                });
                let name = self.cast.owners[owner].clone();
                self.write(Write::Redisson(key, name, self.now_ms + LEASE_MS));
                self.change(key, true);
            }
            Action::Pass => {
                let next_ms = self.next_time().expect("a time to come");
                self.say(|w| format!("{} ms pass", next_ms - w.now_ms));
                self.now_ms = next_ms;
            }
            Action::Wake => self.wake()?,
            Action::WakeRefused => self.wake_refused()?,
            Action::TimeUp(at) => self.leave(at.into(), Leave::TimeUp),
            Action::SendAway(at) => self.leave(at.into(), Leave::Gone),
            Action::Disconnect(at) => {
                self.say(|w| format!("{} disconnects", w.cast.client_name(at.into())));
                self.disconnect(at.into());
            }
            Action::Hear(at) => self.hear(at.into()),
            Action::Miss(at) => self.miss(at.into()),
            Action::Listen(owner) => {
                let owner = usize::from(owner);
                let is_deaf = &mut self.deaf[owner];
                *is_deaf = !*is_deaf;
                let listens = if *is_deaf {
                    "nobody listens"
                } else {
                    "somebody listens"
                };
                self.say(|w| format!("{listens} for {}", w.cast.owner_name(owner)));
            }
            Action::FailOver(lacks) => self.fail_over(lacks),
        }
        self.forget_what_has_gone();
        invariants::check(self)
    }

    fn write(&mut self, write: Write) {
        if self.scope().fails_over {
            for write in std::mem::take(&mut self.last_write) {
                self.copy.write(&write);
            }
            self.last_write.push(write.clone());
        }
        self.data.write(&write);
    }

    /// Somebody wrote to this key, and ended what was there.
    fn change(&mut self, key: usize, told: bool) {
        for known in &mut self.known[key] {
            known.promise = None;
        }
        if !told {
            self.changed[key] = Changed::Untold;
            return;
        }
        self.changed[key] = self.changed[key].max(Changed::Told);
        self.touch(key);
    }

    fn touch(&mut self, key: usize) {
        if self.table.follows_keys() {
            let cast = Rc::clone(&self.cast);
            self.table.key_touched(cast.key(key), self.now_ms);
        }
    }

    /// The server deletes a key that has expired, when it is opened or found.
    fn notice_expiry(&mut self, key: usize) {
        if self.data.is_expired(key, self.now_ms) {
            self.say(|w| format!("{} has expired", w.cast.key_name(key)));
            self.write(Write::Delete(key));
            self.changed[key] = self.changed[key].max(Changed::Told);
            self.touch(key);
        }
    }

    /// Opens and reads a lock as the module does.
    fn read(&mut self, key: usize, asker: Option<&Owner>) -> Checked<Result<Stored, LockError>> {
        self.notice_expiry(key);
        let expected = self.table.expected(self.cast.key(key), asker);
        if let Some(expected) = expected
            && let Some(Value::Hash(hash)) = self.data.value(key)
        {
            let lock = hash.read().unwrap_or_default();
            let holder = asker.and_then(|asker| lock.holder(asker)).cloned();
            if hash.fields() == expected.fields()
                && hash.expires_at_ms == expected.expires_at_ms
                && lock.last_token() == expected.last_token
                && (asker.is_none() || holder == expected.holder)
            {
                invariants::what_is_expected_is_stored(self, key, &lock)?;
                self.changed[key] = Changed::Nothing;
                return Ok(Ok(Stored::AsExpected));
            }
        }
        let lock = self.data.read(key);
        if lock.is_ok() {
            self.changed[key] = Changed::Nothing;
        }
        Ok(lock.map(Stored::Read))
    }

    /// The same for a command, which is refused where there is no lock.
    fn read_for_command(&mut self, key: usize, asker: Option<&Owner>) -> Checked<Option<Stored>> {
        let read = self.read(key, asker)?;
        if read.is_err() {
            self.say(|_| "-WRONGTYPE".to_owned());
            let cast = Rc::clone(&self.cast);
            self.table.forget_lock(cast.key(key));
        }
        Ok(read.ok())
    }

    /// Answers what a step asks, and takes it to its end.
    fn carry_out<T>(&mut self, mut progress: Progress<T>, seen: &mut Seen) -> Checked<Done<T>> {
        loop {
            let question = match progress {
                Progress::Done(done) => return Ok(done),
                Progress::Asks(question) => question,
                Progress::Offers(offer) => {
                    progress = self.publish(*offer, seen)?;
                    continue;
                }
            };
            let mut looked_at = Vec::new();
            for asked in question.asked().to_vec() {
                let at = self.cast.keys.iter().position(|one| *one == asked);
                let at = at.expect("a key of the cast");
                // A look does not count as one that ends what is over.
                self.notice_expiry(at);
                let changed = self.changed[at];
                let stored = self.read(at, None)?;
                self.changed[at] = changed;
                looked_at.push(stored.unwrap_or(Stored::Read(Lock::default())));
            }
            seen.questions += 1;
            progress = self.table.go_on(*question, looked_at);
        }
    }

    /// Publishes what is offered to a place.
    fn publish<T>(&mut self, offer: Offer<T>, seen: &mut Seen) -> Checked<Progress<T>> {
        let (id, token) = (offer.place().id, offer.token());
        let (key, owner, place) = self.whose_place(id)?;
        invariants::a_place_that_is_over_is_granted_nothing(self, &place)?;
        self.places[key][owner] = None;
        let heard = !self.deaf[owner];
        self.say(|w| {
            let (owner, key) = (w.cast.owner_name(owner), w.cast.key_name(key));
            let how = if heard { "is told" } else { "does not hear" };
            format!(
                "{owner} {how} that its place is granted {key}, token {}",
                w.short(token)
            )
        });
        if heard {
            let until_ms = self.now_ms + CLAIM_MS;
            let known = &mut self.known[key][owner];
            promise(known, token, until_ms);
            tell(known, token, place.ask);
            known.unclaimed = Some((token, until_ms));
            known.bound_to = place
                .session
                .map(|client| (client, token))
                .or(known.bound_to);
            let answer = Answer::Granted(token);
            seen.answers.push((id, place.at, place.ask, answer));
        } else {
            seen.unheard.push(owner);
        }
        Ok(self.table.offered(offer, heard))
    }

    /// A place ends, or its owner holds the lock by other means.
    fn tell_place(&mut self, id: WaiterId, answer: &Answer, gives_up: bool) -> Checked<PlaceKept> {
        let (key, owner, place) = self.whose_place(id)?;
        self.places[key][owner] = None;
        self.say(|w| {
            let (owner, key) = (w.cast.owner_name(owner), w.cast.key_name(key));
            format!("the place of {owner} for {key} ends: {answer:?}")
        });
        match answer {
            Answer::Granted(token) => {
                invariants::a_place_that_is_over_is_granted_nothing(self, &place)?;
                let session = place.session.map(|client| (client, *token));
                let known = &mut self.known[key][owner];
                known.bound_to = session.or(known.bound_to);
                // The message names a hold that there is, and adds none.
                if known.told.replace(*token) != Some(*token) {
                    known.holds = 0;
                }
            }
            Answer::NotGranted if !gives_up => {
                invariants::only_a_place_that_is_over_ends(self, &place)?;
            }
            _ => {}
        }
        Ok(place)
    }

    /// Writes what is to be written, and answers.
    fn apply(&mut self, step: Step, seen: &mut Seen) -> Checked<()> {
        if !step.effects.is_empty() {
            self.write(Write::Effects(seen.key, step.effects.to_vec()));
        }
        for (addressee, answer) in step.answers {
            let id = addressee.id();
            if let Addressee::Place(_) = addressee {
                let place = self.tell_place(id, &answer, seen.gives_up)?;
                seen.answers.push((id, place.at, place.ask, answer));
                continue;
            }
            let waiting =
                (0..self.connections.len()).find_map(|at| match self.connections[at].doing {
                    Doing::Waits { key, id: its, ask } if its == id => Some((at, key, ask)),
                    _ => None,
                });
            let Some((at, key, ask)) = waiting else {
                return Err(Broken::new(
                    "only_who_waits_is_answered",
                    "the table answered a waiter that does not wait".to_owned(),
                ));
            };
            seen.answers.push((id, at, ask, answer.clone()));
            match answer {
                Answer::Granted(token) => {
                    self.say(|w| {
                        let (client, key) = (w.cast.client_name(at), w.cast.key_name(key));
                        format!("{client} is handed {key}, token {}", w.short(token))
                    });
                    let owner = self.cast.owner_of[at];
                    let known = &mut self.known[key][owner];
                    let bound_before = known.bound_to.filter(|&(_, its)| its == token);
                    let bound_before = bound_before.map(|(client, _)| client).into();
                    promise(known, token, self.now_ms + LEASE_MS);
                    known.unclaimed = known.unclaimed.filter(|&(its, _)| its != token);
                    let client = self.client(at);
                    if ask.session {
                        self.known[key][owner].bound_to = Some((client, token));
                    }
                    self.connections[at].doing = Doing::ToHear {
                        key,
                        token,
                        ask,
                        bound_before,
                    };
                }
                Answer::Refused(error) => {
                    self.say(|w| format!("{} is told {}", w.cast.client_name(at), w.code(&error)));
                    self.connections[at].doing = Doing::Nothing;
                }
                Answer::NotGranted | Answer::Renewed(_) => {
                    return Err(Broken::new(
                        "only_what_was_withheld_is_told_later",
                        format!("the table told a waiter {answer:?}"),
                    ));
                }
            }
        }
        // Places were told before the others.
        seen.answers.sort_by_key(|(.., answer)| match answer {
            Answer::Granted(token) => Some(*token),
            _ => None,
        });
        Ok(())
    }

    fn seen(&self, key: usize, asker: Option<usize>) -> Seen {
        Seen::before(self, key, asker)
    }

    fn acquire(&mut self, at: usize, key: usize, ask: Ask) -> Checked<()> {
        let owner = self.owner(at).clone();
        self.say(|w| {
            let (client, key) = (w.cast.client_name(at), w.cast.key_name(key));
            format!("{client} acquires {key}{ask}")
        });
        let Some(stored) = self.read_for_command(key, Some(&owner))? else {
            return Ok(());
        };
        let mut seen = self.seen(key, Some(at));
        let client = self.client(at);
        let request = AcquireRequest {
            owner,
            lease: lease(LEASE_MS),
            hold: (ask.hold > 0).then(|| HoldNumber::new(ask.hold).unwrap()),
            limit: ask.limit,
            session: ask.session.then_some(client),
        };
        let (until_ms, channel) = match ask.place {
            true => (Some(self.now_ms + PLACE_MS), Some(b"channel"[..].into())),
            false => (None, None),
        };
        let wait = ask.waits.then_some(Wait {
            client,
            until_ms,
            channel,
        });
        let own = self.ask_again(at, key, ask);
        let kept = own.filter(|_| ask.place);
        seen.kept = own;
        let (cast, now) = (Rc::clone(&self.cast), self.now());
        self.table.settings.reads_other_keys = self.scope().reads_other_keys;
        let progress = self
            .table
            .acquire(cast.key(key), stored, request, wait, now);
        let done = self.carry_out(progress, &mut seen)?;
        match &done.result {
            Ok(Acquired::Queued(id)) => {
                let id = *id;
                if ask.place {
                    invariants::who_asks_again_keeps_its_place(self, at, kept, id)?;
                    self.places[key][self.cast.owner_of[at]] = Some(self.place(id, at, ask));
                } else {
                    self.connections[at].doing = Doing::Waits { key, id, ask };
                }
                seen.queued = kept.is_none().then_some(id);
                self.say(|_| "queued".to_owned());
            }
            Ok(Acquired::Granted(token)) => {
                seen.granted = Some(*token);
            }
            Ok(Acquired::Busy) => self.say(|_| "null".to_owned()),
            Err(error) => {
                self.say(|w| w.code(error));
                if let LockError::Deadlock { cycle } = error {
                    seen.refused = Some((at, ask, cycle.clone()));
                }
            }
        }
        // Whoever was handed the lock came before.
        self.apply(done.step, &mut seen)?;
        if let Some(token) = seen.granted {
            if own.is_some() {
                self.places[key][self.cast.owner_of[at]] = None;
            }
            self.say(|w| format!("token {}", w.short(token)));
            let owner = self.cast.owner_of[at];
            let now_ms = self.now_ms;
            let known = &mut self.known[key][owner];
            promise(known, token, now_ms + LEASE_MS);
            tell(known, token, ask);
            known.unclaimed = None;
            if ask.session {
                known.bound_to = Some((client, token));
            }
        }
        invariants::check_step(self, &seen)
    }

    fn place(&self, id: WaiterId, at: usize, ask: Ask) -> PlaceKept {
        PlaceKept {
            id,
            at,
            ask,
            until_ms: self.now_ms + PLACE_MS,
            session: ask.session.then(|| self.client(at)),
        }
    }

    /// An owner asks for a lock. Returns its place, if that is granted to what it asks
    /// now, or kept.
    fn ask_again(&mut self, at: usize, key: usize, ask: Ask) -> Option<WaiterId> {
        let owner = self.cast.owner_of[at];
        let place = self.places[key][owner]?;
        if self.is_over(&place) {
            // The others are told of its end.
            if ask.place {
                self.places[key][owner] = None;
            }
            return None;
        }
        if place.ask.limit != ask.limit || ask.hold > 1 {
            return None;
        }
        if ask.place {
            self.places[key][owner] = Some(self.place(place.id, at, ask));
        }
        Some(place.id)
    }

    fn release(&mut self, at: usize, key: usize, what: Extent) -> Checked<()> {
        let owner = self.owner(at).clone();
        let number = self.cast.owner_of[at];
        self.say(|w| {
            let (client, key) = (w.cast.client_name(at), w.cast.key_name(key));
            format!("{client} releases {key}{what}")
        });
        let Some(stored) = self.read_for_command(key, Some(&owner))? else {
            return Ok(());
        };
        let mut seen = self.seen(key, Some(at));
        let held = self.holds(key, number);
        let told = self.known[key][number].told;
        let (token, extent) = match what {
            Extent::One => (None, ReleaseExtent::One),
            Extent::All => (None, ReleaseExtent::All),
            Extent::Hold(n) => (None, ReleaseExtent::Hold(HoldNumber::new(n).unwrap())),
            Extent::Token(Named::Own) => (told.or(stale()), ReleaseExtent::One),
            Extent::Token(Named::Stale) => (stale(), ReleaseExtent::One),
        };
        let request = ReleaseRequest {
            owner,
            token,
            extent,
        };
        seen.gives_up = request.token.is_none() && held.is_none();
        let (cast, now) = (Rc::clone(&self.cast), self.now());
        let progress = self.table.release(cast.key(key), stored, &request, now);
        let done = self.carry_out(progress, &mut seen)?;
        let result = done.result.clone();
        self.say(|w| match &result {
            Ok(Released::LastHold) => "1".to_owned(),
            Ok(Released::StillHeld) => "0".to_owned(),
            Ok(Released::NotHeld) => "null".to_owned(),
            Err(error) => w.code(error),
        });
        let known = &mut self.known[key][number];
        match result {
            Ok(Released::LastHold) => {
                known.promise = None;
                // A place of its own may have been granted the lock since.
                let released = held.as_ref().and_then(|held| held.token);
                known.bound_to = known.bound_to.filter(|&(_, its)| released != Some(its));
                seen.released = held.is_some();
            }
            Ok(Released::StillHeld) => {
                known.told = held.as_ref().and_then(|held| held.token);
                known.holds = match extent {
                    ReleaseExtent::Hold(hold) => hold.count_without(),
                    _ => (known.holds - 1).max(1),
                };
            }
            _ => {}
        }
        invariants::releases_need_a_hold(&held, &request, &result)?;
        let gives_up = seen.gives_up;
        self.apply(done.step, &mut seen)?;
        if gives_up && self.places[key][number].is_some() {
            return Err(Broken::new(
                "a_release_gives_a_place_up",
                format!("{} has its place yet", self.cast.owner_name(number)),
            ));
        }
        invariants::check_step(self, &seen)
    }

    fn renew(
        &mut self,
        at: usize,
        key: usize,
        (lease_ms, named): (i64, Option<Named>),
    ) -> Checked<()> {
        let owner = self.owner(at).clone();
        let number = self.cast.owner_of[at];
        self.say(|w| {
            let (client, key) = (w.cast.client_name(at), w.cast.key_name(key));
            format!("{client} renews {key} for {lease_ms} ms")
        });
        let Some(stored) = self.read_for_command(key, Some(&owner))? else {
            return Ok(());
        };
        let mut seen = self.seen(key, Some(at));
        let held = self.holds(key, number);
        let request = RenewRequest {
            owner,
            lease: lease(lease_ms),
            token: match named {
                None => None,
                Some(Named::Own) => self.known[key][number].told.or(stale()),
                Some(Named::Stale) => stale(),
            },
        };
        let (cast, now) = (Rc::clone(&self.cast), self.now());
        let progress = self.table.renew(cast.key(key), stored, &request, now);
        let done = self.carry_out(progress, &mut seen)?;
        let renewed = done.result == Ok(true);
        self.say(|_| i32::from(renewed).to_string());
        invariants::renewals_need_a_hold(&held, &request, renewed)?;
        if let Some(token) = held.filter(|_| renewed).and_then(|held| held.token) {
            let known = &mut self.known[key][number];
            known.told = Some(token);
            known.promise = Some((token, now.ms() + lease_ms));
            known.holds = known.holds.max(1);
            known.unclaimed = None;
        }
        self.apply(done.step, &mut seen)?;
        invariants::check_step(self, &seen)
    }

    fn break_lock(&mut self, key: usize) -> Checked<()> {
        self.say(|w| format!("BREAK {}", w.cast.key_name(key)));
        let Some(stored) = self.read_for_command(key, None)? else {
            return Ok(());
        };
        let mut seen = self.seen(key, None);
        let (cast, now) = (Rc::clone(&self.cast), self.now());
        let progress = self.table.break_lock(cast.key(key), stored, None, now);
        let done = self.carry_out(progress, &mut seen)?;
        let broken = done.result == Ok(true);
        self.say(|_| i32::from(broken).to_string());
        if broken {
            seen.released = true;
            for (number, owner) in self.cast.owners.iter().enumerate() {
                let known = &mut self.known[key][number];
                known.promise = None;
                // A session that was lost before may be told of by its end.
                let before = seen.token_before(owner);
                known.bound_to = known.bound_to.filter(|&(_, token)| before != Some(token));
            }
        }
        self.apply(done.step, &mut seen)?;
        invariants::check_step(self, &seen)
    }

    fn rename(&mut self, from: usize) {
        let to = 1 - from;
        self.notice_expiry(from);
        self.notice_expiry(to);
        if self.data.value(from).is_none() {
            return;
        }
        self.say(|w| {
            let (from, to) = (w.cast.key_name(from), w.cast.key_name(to));
            format!("RENAME {from} {to}")
        });
        self.write(Write::Rename(from));
        let cast = Rc::clone(&self.cast);
        if self.table.follows_keys() {
            self.table.key_leaves(cast.key(from), self.now_ms);
            self.table.key_arrives(cast.key(to), self.now_ms);
        }
        self.changed = self.changed.map(|changed| changed.max(Changed::Told));
        self.known[to] = self.known[from];
        self.known[from] = Default::default();
        for known in &mut self.known[to] {
            known.promise = None;
        }
        for connection in &mut self.connections {
            // What was on its way to a holder of the other lock leads nowhere.
            if let Doing::ToHear { key, .. } = &mut connection.doing
                && *key == from
            {
                *key = to;
            }
        }
    }

    fn swap(&mut self) {
        self.say(|_| "SWAPDB".to_owned());
        self.write(Write::Swap);
        if self.table.follows_keys() {
            self.table.databases_swapped(0, 1, self.now_ms);
        }
        self.changed = self.changed.map(|changed| changed.max(Changed::Told));
        self.known.reverse();
        for known in self.known.iter_mut().flatten() {
            known.promise = None;
        }
        for connection in &mut self.connections {
            if let Doing::ToHear { key, .. } = &mut connection.doing {
                *key = 1 - *key;
            }
        }
    }

    fn wake(&mut self) -> Checked<()> {
        self.say(|_| "the timer wakes".to_owned());
        self.retry_at_ms = None;
        self.end_waits()?;
        self.close_clients()?;
        let mut left = WORK_A_WAKE;
        while left > 0
            && let Some(due) = self.table.take_due(self.now_ms)
        {
            left -= 1;
            let at = self.cast.keys.iter().position(|one| *one == due.key);
            let key = at.expect("a key of the cast");
            let stored = self.read(key, due.owner())?;
            let mut seen = self.seen(key, None);
            let now = self.now();
            self.table.settings.reads_other_keys = true;
            let progress = self.table.do_due(due, stored, now);
            let done = self.carry_out(progress, &mut seen)?;
            self.apply(done.step, &mut seen)?;
            invariants::check_step(self, &seen)?;
        }
        self.close_clients()?;
        self.table.begin_turns_anew();
        Ok(())
    }

    fn wake_refused(&mut self) -> Checked<()> {
        self.say(|_| "the timer wakes, and the server refuses writes".to_owned());
        self.end_waits()?;
        self.close_clients()?;
        let is_left = self.table.put_off_everything(self.now_ms, WORK_A_WAKE);
        self.close_clients()?;
        let retry_ms = self.now_ms + crate::table::REFUSED_RETRY_MS;
        self.retry_at_ms = is_left.then_some(retry_ms);
        Ok(())
    }

    fn end_waits(&mut self) -> Checked<()> {
        for (addressee, answer) in self.table.give_up(self.now_ms, WORK_A_WAKE) {
            self.tell_place(addressee.id(), &answer, false)?;
        }
        Ok(())
    }

    fn close_clients(&mut self) -> Checked<()> {
        for client in self.table.take_clients_to_close(WORK_A_WAKE) {
            let at = self.connection_of(client);
            invariants::who_is_closed_has_lost_a_session(self, client)?;
            if let Some(at) = at {
                self.say(|w| format!("the connection of {} is closed", w.cast.client_name(at)));
                self.disconnect(at);
            }
        }
        Ok(())
    }

    fn leave(&mut self, at: usize, leave: Leave) {
        let Doing::Waits { id, .. } = self.connections[at].doing else {
            return;
        };
        self.say(|w| {
            let how = match leave {
                Leave::TimeUp => "waits no more: its time is up",
                Leave::Gone => "is sent away",
            };
            format!("{} {how}", w.cast.client_name(at))
        });
        let told = self.table.waiter_left(id, leave, self.now_ms);
        assert_eq!(told, None, "nothing is withheld here");
        self.connections[at].doing = Doing::Nothing;
    }

    fn hear(&mut self, at: usize) {
        let Doing::ToHear {
            key, token, ask, ..
        } = self.connections[at].doing
        else {
            return;
        };
        self.say(|w| format!("{} hears of its grant", w.cast.client_name(at)));
        self.table.grant_told(self.client(at), true);
        let owner = self.cast.owner_of[at];
        if self.is_stored(key, owner, token) {
            tell(&mut self.known[key][owner], token, ask);
        }
        self.connections[at].doing = Doing::Nothing;
    }

    fn is_stored(&self, key: usize, owner: usize, token: FencingToken) -> bool {
        let lock = self.data.read(key).unwrap_or_default();
        let holder = lock.holder(&self.cast.owners[owner]);
        holder.is_some_and(|holder| holder.token == Some(token))
    }

    fn miss(&mut self, at: usize) {
        if let Doing::ToHear { .. } = self.connections[at].doing {
            self.say(|w| {
                let client = w.cast.client_name(at);
                format!("{client} is sent away before it hears of its grant")
            });
            self.lose_grant(at, false);
            self.table.grant_told(self.client(at), false);
            self.connections[at].doing = Doing::Nothing;
        }
    }

    /// The other connections of the same owner that are to hear of the same hold.
    fn others_to_hear(&self, at: usize, key: usize, token: FencingToken) -> Vec<(usize, Ask)> {
        let owner = self.cast.owner_of[at];
        let all = self.connections.iter().enumerate();
        all.filter(|&(other, _)| other != at && self.cast.owner_of[other] == owner)
            .filter_map(|(other, one)| match one.doing {
                Doing::ToHear {
                    key: its_key,
                    token: its_token,
                    ask,
                    ..
                } if its_key == key && its_token == token => Some((other, ask)),
                _ => None,
            })
            .collect()
    }

    /// Nobody will hear of the grant that was on its way to this connection.
    fn lose_grant(&mut self, at: usize, is_end: bool) {
        let Doing::ToHear {
            key,
            token,
            bound_before,
            ..
        } = self.connections[at].doing
        else {
            return;
        };
        let owner = self.cast.owner_of[at];
        let others = self.others_to_hear(at, key, token);
        let client = self.client(at);
        let heir = self.heir(&others, token);
        let before = bound_before.client();
        let before = before.filter(|&client| self.connection_of(client).is_some());
        let was_unbound = bound_before == BoundBefore::Nothing;
        let known = &mut self.known[key][owner];
        if known.bound_to == Some((client, token)) {
            known.bound_to = heir.or(before.map(|client| (client, token)));
            if known.bound_to.is_none() && is_end && others.is_empty() && !was_unbound {
                known.over = Some(token);
                known.promise = None;
            }
        }
        let known = &mut self.known[key][owner];
        if others.is_empty() && known.told != Some(token) {
            known.promise = known.promise.filter(|&(promised, _)| promised != token);
        }
    }

    /// The other client of the same owner that is to hear of the same hold, and asked
    /// that it be bound to it. No owner has more than two connections.
    fn heir(
        &self,
        others: &[(usize, Ask)],
        token: FencingToken,
    ) -> Option<(ClientId, FencingToken)> {
        let (other, _) = others.iter().find(|(_, ask)| ask.session)?;
        Some((self.client(*other), token))
    }

    fn disconnect(&mut self, at: usize) {
        let client = self.client(at);
        self.lose_grant(at, true);
        for key in 0..self.cast.keys.len() {
            for owner in 0..self.cast.owners.len() {
                let known = self.known[key][owner];
                let Some((_, bound)) = known.bound_to.filter(|&(its, _)| its == client) else {
                    continue;
                };
                let token = self.holds(key, owner).and_then(|held| held.token);
                if token != Some(bound) {
                    self.known[key][owner].bound_to = None;
                    continue;
                }
                let others = self.others_to_hear(at, key, bound);
                let heir = self.heir(&others, bound);
                let is_promised = !others.is_empty();
                let known = &mut self.known[key][owner];
                known.bound_to = heir;
                known.told = None;
                known.holds = 0;
                if !is_promised {
                    known.promise = None;
                    known.over = token;
                }
            }
        }
        self.table.connection_ended(client, false);
        match self.connections[at].doing {
            Doing::Waits { id, .. } => {
                self.table.waiter_left(id, Leave::Gone, self.now_ms);
            }
            Doing::ToHear { .. } => self.table.grant_told(client, false),
            Doing::Nothing => {}
        }
        for connection in &mut self.connections {
            if let Doing::ToHear { bound_before, .. } = &mut connection.doing
                && *bound_before == BoundBefore::Client(client)
            {
                *bound_before = BoundBefore::Ended;
            }
        }
        self.connections[at].generation += 1;
        self.connections[at].doing = Doing::Nothing;
    }

    fn fail_over(&mut self, lacks: bool) {
        self.say(|_| match lacks {
            true => "a replica takes over that lacks the last write".to_owned(),
            false => "a replica takes over".to_owned(),
        });
        if !lacks {
            for write in std::mem::take(&mut self.last_write) {
                self.copy.write(&write);
            }
        }
        self.last_write.clear();
        if lacks {
            self.data = self.copy.clone();
        }
        self.table = new_table(self.scope());
        self.places = Default::default();
        self.changed = Default::default();
        self.retry_at_ms = None;
        for connection in &mut self.connections {
            connection.generation += 1;
            connection.doing = Doing::Nothing;
        }
        for key in 0..self.cast.keys.len() {
            let lock = self.data.read(key).unwrap_or_default();
            for owner in 0..self.cast.owners.len() {
                let holder = lock.holder(&self.cast.owners[owner]);
                let known = &mut self.known[key][owner];
                known.bound_to = None;
                known.over = None;
                known.unclaimed = None;
                known.holds = 0;
                known.told = holder.and_then(|holder| holder.token);
                if lacks {
                    known.promise = None;
                }
            }
        }
    }

    /// Forgets what can't matter any more.
    fn forget_what_has_gone(&mut self) {
        for key in 0..self.cast.keys.len() {
            let lock = self.data.read(key).unwrap_or_default();
            for owner in 0..self.cast.owners.len() {
                let holder = lock.holder(&self.cast.owners[owner]);
                let token = holder.and_then(|holder| holder.token);
                let known = &mut self.known[key][owner];
                let now_ms = self.now_ms;
                known.promise = known.promise.filter(|&(_, until_ms)| until_ms >= now_ms);
                known.over = known.over.filter(|&over| token == Some(over));
                known.unclaimed = known.unclaimed.filter(|&(its, _)| token == Some(its));
                if token.is_none() && known.promise.is_none() {
                    known.holds = 0;
                }
            }
        }
    }

    /// A token as a small number.
    fn short(&self, token: FencingToken) -> i64 {
        let began_us = BEGIN_MS * 1000;
        match token.get() {
            token if token > began_us => token - began_us,
            token => token,
        }
    }

    /// The code of an error, and who waits for whom.
    fn code(&self, error: &LockError) -> String {
        let text = error.to_string();
        let code = text.split(' ').next().unwrap_or_default();
        let LockError::Deadlock { cycle } = error else {
            return format!("-{code}");
        };
        let edges = cycle.iter().map(|edge| {
            let key = self.cast.keys.iter().position(|one| *one == edge.key);
            let name = |owner: &Owner| self.cast.owner_name(self.owner_number(owner));
            let (waiter, blocker) = (name(&edge.waiter), name(&edge.blocker));
            let how = if edge.held { "held by" } else { "behind" };
            let key = key.map_or("?", |key| self.cast.key_name(key));
            format!("{waiter} waits for {key} {how} {blocker}")
        });
        format!("-{code}: {}", edges.collect::<Vec<_>>().join(", "))
    }

    /// A lock in few words.
    pub(super) fn sketch(&self, lock: &Lock) -> String {
        let in_ms = |at_ms: Option<i64>| match at_ms {
            Some(at_ms) => format!("{} ms", at_ms - self.now_ms),
            None => "ever".to_owned(),
        };
        let holders = lock.holders().iter().map(|one| {
            let name = self.cast.owner_name(self.owner_number(&one.owner));
            let token = one.token.map_or(0, |token| self.short(token));
            let (holds, left) = (one.holds, in_ms(one.lease_end_ms));
            format!("{name} {holds} time(s) by token {token} for {left}")
        });
        let holders: Vec<String> = holders.collect();
        match holders.is_empty() {
            true => "nobody".to_owned(),
            false => format!(
                "{}, of a key that lasts for {}",
                holders.join(" and "),
                in_ms(lock.expires_at_ms())
            ),
        }
    }

    /// The smallest fingerprint over all orders of names.
    fn fingerprint(&self) -> u64 {
        let names: Vec<Names> = self
            .cast
            .orders
            .iter()
            .map(|order| self.names(order))
            .collect();
        let mut form = Form::collecting(&names[0], self.now_ms);
        self.take_down(&self.cast.orders[0], &mut form);
        let mut smallest = u64::MAX;
        for (order, names) in self.cast.orders.iter().zip(&names) {
            let mut hashing = form.hashing(names);
            self.take_down(order, &mut hashing);
            smallest = smallest.min(hashing.fingerprint());
            form = hashing;
        }
        smallest
    }

    fn names(&self, order: &Order) -> Names {
        let owners = order.owners.iter();
        let keys = order.keys.iter();
        let connections = order.connections.iter();
        Names {
            owners: owners.map(|&at| self.cast.owners[at].clone()).collect(),
            keys: keys.map(|&at| self.cast.keys[at].clone()).collect(),
            connections: connections.map(|&at| self.client(at).0).collect(),
        }
    }

    fn take_down(&self, order: &Order, form: &mut Form<'_>) {
        self.table.take_down(form);
        self.data.take_down(&self.cast.keys, form);
        if self.scope().fails_over {
            self.copy.take_down(&self.cast.keys, form);
            form.flag(self.last_write.is_empty());
        }
        form.token(self.greatest);
        form.time(self.retry_at_ms);
        for &at in &order.connections {
            match self.connections[at].doing {
                Doing::Nothing => form.number(0),
                Doing::Waits { key, id, ask } => {
                    form.number(1);
                    form.key(self.cast.key(key));
                    form.waiter(Some(id));
                    ask.take_down(form);
                }
                Doing::ToHear {
                    key,
                    token,
                    ask,
                    bound_before,
                } => {
                    form.number(2);
                    form.key(self.cast.key(key));
                    form.token(Some(token));
                    ask.take_down(form);
                    form.flag(bound_before == BoundBefore::Ended);
                    form.client(bound_before.client());
                }
            }
        }
        for &owner in &order.owners {
            form.flag(self.deaf[owner]);
        }
        for &key in &order.keys {
            form.number(self.changed[key] as i64);
            for &owner in &order.owners {
                let place = self.places[key][owner];
                form.waiter(place.map(|place| place.id));
                if let Some(place) = place {
                    form.client(Some(self.client(place.at)));
                    place.ask.take_down(form);
                    form.time(Some(place.until_ms));
                    form.client(place.session);
                }
                let known = self.known[key][owner];
                form.token(known.told);
                form.token(known.promise.map(|(token, _)| token));
                form.time(known.promise.map(|(_, until_ms)| until_ms));
                form.number(known.holds);
                form.client(known.bound_to.map(|(client, _)| client));
                form.token(known.bound_to.map(|(_, token)| token));
                form.token(known.over);
                form.token(known.unclaimed.map(|(token, _)| token));
                form.time(known.unclaimed.map(|(_, until_ms)| until_ms));
            }
        }
    }
}

fn new_table(scope: &Scope) -> LockTable {
    let mut table = LockTable::default();
    table.settings = Settings {
        recheck_interval_ms: RECHECK_MS,
        claim_timeout_ms: CLAIM_MS,
        reads_other_keys: scope.reads_other_keys,
        ..Settings::default()
    };
    table
}

fn lease(ms: i64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

fn stale() -> Option<FencingToken> {
    FencingToken::new(1).ok()
}

/// The owner may rely on a grant until then at least.
fn promise(known: &mut Known, token: FencingToken, until_ms: i64) {
    let before = known.promise.filter(|&(promised, _)| promised == token);
    if before.is_none() && known.told != Some(token) {
        known.holds = 0;
    }
    let until_ms = before.map_or(until_ms, |(_, before_ms)| before_ms.max(until_ms));
    known.promise = Some((token, until_ms));
}

/// A reply tells the owner of a hold.
fn tell(known: &mut Known, token: FencingToken, ask: Ask) {
    if known.told.replace(token) != Some(token) {
        known.holds = 0;
    }
    known.holds = match ask.hold {
        0 => known.holds + 1,
        hold => known.holds.max(hold),
    };
}
