//! The table as a server drives it, with a keyspace to which effects are applied and
//! from which locks are read.

use crate::holder::Holder;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::explore::keyspace::{Value, permit_field};
use crate::keys::KeyBuf;
use crate::lock::Released;
use crate::lock::tests::{hold_number, owner};
use crate::metrics::Metrics;
use crate::queue::{Addressee, Channel, Place, Wait};
use crate::request::{AcquireRequest, Lease, Limit, ReleaseExtent, ReleaseRequest, RenewRequest};
use crate::stored::TOKEN_FIELD;

mod acknowledged;
mod connections;
mod deadlocks;
mod due;
mod guarded;
mod hand_off;
mod histories;
mod keys;
mod many;
mod places;
mod superseded;
mod views;
mod withheld;

const K: KeyRef<'static> = key("k");
const L: KeyRef<'static> = key("l");
const M: KeyRef<'static> = key("m");

const START_MS: i64 = 1_700_000_000_000;

/// The lease of every request, unless a test says otherwise.
const LEASE_MS: i64 = 30_000;

const fn key(name: &str) -> KeyRef<'_> {
    KeyRef {
        db: 0,
        name: name.as_bytes(),
    }
}

const fn in_db(db: i32, name: &str) -> KeyRef<'_> {
    KeyRef {
        db,
        name: name.as_bytes(),
    }
}

fn lease(ms: i64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

/// A request, the connection that it comes from, and how long it would wait.
#[derive(Clone, Debug)]
struct Ask {
    request: AcquireRequest,
    client: ClientId,
    is_patient: bool,
    channel: Option<Channel>,
}

/// This owner would wait for the lock all alone. Its connection is named after it.
fn ask(name: &str) -> Ask {
    let digits = name.bytes().take(7);
    let client = digits.fold(0, |all, byte| all << 8 | u64::from(byte));
    Ask {
        request: AcquireRequest {
            owner: owner(name),
            lease: lease(LEASE_MS),
            hold: None,
            limit: Limit::EXCLUSIVE,
            session: None,
        },
        client: ClientId(client),
        is_patient: true,
        channel: None,
    }
}

impl Ask {
    fn shared(mut self) -> Self {
        self.request.limit = Limit::SHARED;
        self
    }

    fn limit(mut self, count: i64) -> Self {
        self.request.limit = Limit::from_count(count).unwrap();
        self
    }

    fn hold(mut self, n: i64) -> Self {
        self.request.hold = Some(hold_number(n));
        self
    }

    fn lease(mut self, ms: i64) -> Self {
        self.request.lease = lease(ms);
        self
    }

    /// From another connection.
    fn by(mut self, client: u64) -> Self {
        self.client = ClientId(client);
        self.request.session = self.request.session.map(|_| self.client);
        self
    }

    fn session(mut self) -> Self {
        self.request.session = Some(self.client);
        self
    }

    /// For a place in the queue.
    fn place(mut self) -> Self {
        self.channel = Some((*b"channel").into());
        self.hold(1)
    }

    /// Without a wait.
    fn now(mut self) -> Self {
        self.is_patient = false;
        self
    }
}

/// A server with its table.
#[derive(Clone, Default)]
struct Server {
    table: LockTable,
    keys: BTreeMap<KeyBuf, Value>,
    /// Before this no key expires.
    first_expiry_ms: i64,
    now_us: i64,
    /// How far the wall clock is ahead of the steady one.
    ahead_ms: i64,
    /// What waiters were told that nobody asked about yet.
    answers: Vec<(WaiterId, Answer)>,
    clients: BTreeMap<WaiterId, ClientId>,
    events: Vec<LockEvent>,
    log: Vec<LogLine>,
    /// The effects of the last step.
    effects: Effects,
    /// Whether the last step left the lock free.
    freed: bool,
    /// How far the replication stream reaches.
    offset: i64,
    /// The reply that the last step withheld.
    withheld: Option<WaiterId>,
    /// The last step has something that changes nothing go to replicas.
    stream_goes_on: bool,
    /// How many steps were taken because something was due.
    steps: usize,
    /// How often other keys were looked at.
    questions: usize,
    /// Clients hear of their grants at once.
    tells: bool,
    /// Somebody listens to what is published.
    listens: bool,
    /// Nobody listens to these channels.
    deaf: BTreeSet<Channel>,
    /// Places of whose grants nobody heard.
    unheard: Vec<(WaiterId, FencingToken)>,
    /// Who asks now.
    asker: Option<ClientId>,
    /// How many grants were said.
    offers: usize,
    /// The places to which the last step granted the lock, as the messages name them.
    granted_places: Vec<Place>,
}

impl World for Server {
    fn asker(&self) -> Option<ClientId> {
        self.asker
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> bool {
        let heard = self.listens && !self.deaf.contains(&place.channel);
        self.clients.remove(&place.id).unwrap();
        match heard {
            true => {
                self.answers.push((place.id, Answer::Granted(token)));
                self.granted_places.push(place.clone());
            }
            false => self.unheard.push((place.id, token)),
        }
        self.offers += 1;
        heard
    }

    fn read(&mut self, key: KeyRef<'_>) -> Lock {
        self.questions += 1;
        self.look(key).unwrap_or_default()
    }
}

impl Server {
    fn new() -> Self {
        Self {
            first_expiry_ms: i64::MIN,
            now_us: START_MS * 1000,
            tells: true,
            listens: true,
            ..Self::default()
        }
    }

    fn now(&self) -> Now {
        Now {
            us: self.now_us,
            steady_ms: self.now_us / 1000 - self.ahead_ms,
        }
    }

    fn ms(&self) -> i64 {
        self.now().ms()
    }

    fn metrics(&self) -> &Metrics {
        self.table.metrics()
    }

    fn value(&self, key: KeyRef<'_>) -> Value {
        self.keys
            .get(&KeyBuf::from(key))
            .cloned()
            .unwrap_or_default()
    }

    /// The lock as it is stored.
    fn lock(&self, key: KeyRef<'_>) -> Lock {
        self.value(key).read().unwrap()
    }

    fn holds(&self, key: KeyRef<'_>, name: &str) -> i64 {
        let lock = self.lock(key);
        lock.holder(&owner(name)).map_or(0, |holder| holder.holds)
    }

    fn token(&self, key: KeyRef<'_>, name: &str) -> FencingToken {
        let lock = self.lock(key);
        lock.holder(&owner(name)).unwrap().token.unwrap()
    }

    fn holders(&self, key: KeyRef<'_>) -> Vec<String> {
        let lock = self.lock(key);
        let mut names: Vec<String> = lock.holders().iter().map(name_of_holder).collect();
        names.sort();
        names
    }

    fn look(&self, key: KeyRef<'_>) -> Result<Lock, LockError> {
        let stored = self.keys.get(&KeyBuf::from(key));
        let nothing = Value::default();
        let value = stored.unwrap_or(&nothing);
        value.read()
    }

    fn look_for(&mut self, key: KeyRef<'_>) -> Result<Lock, LockError> {
        self.expire();
        let stored = self.look(key);
        if stored.is_err() {
            self.table.forget_ended(key);
        }
        stored
    }

    /// What is over by the server's own clock is deleted, and it tells so.
    fn expire(&mut self) {
        let now_ms = self.ms();
        if now_ms <= self.first_expiry_ms {
            return;
        }
        let is_over = |value: &Value| value.expires_at_ms.is_some_and(|end_ms| end_ms < now_ms);
        let over = self.keys.iter().filter(|(_, value)| is_over(value));
        let over: Vec<KeyBuf> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.keys.remove(&key);
            self.table.key_touched(key.as_ref(), now_ms);
        }
        let ends = self.keys.values().filter_map(|value| value.expires_at_ms);
        self.first_expiry_ms = ends.min().unwrap_or(i64::MAX);
    }

    /// Takes a step with this lock, and does what it says.
    fn step<T>(
        &mut self,
        key: KeyRef<'_>,
        take: impl FnOnce(&mut LockTable, Now, &mut dyn World, &mut Step) -> Result<T, LockError>,
    ) -> Result<T, LockError> {
        self.granted_places.clear();
        let (mut table, now) = (std::mem::take(&mut self.table), self.now());
        let mut step = Step::default();
        let result = take(&mut table, now, self, &mut step);
        self.table = table;
        let value = self.keys.entry(key.into()).or_default();
        value.apply(&step.effects);
        let end_ms = value.expires_at_ms.unwrap_or(i64::MAX);
        self.first_expiry_ms = self.first_expiry_ms.min(end_ms);
        if !value.is_there() {
            self.keys.remove(&KeyBuf::from(key));
        }
        for (addressee, answer) in &step.answers {
            if let (Addressee::Place(place), Answer::Granted(_)) = (addressee, answer) {
                self.granted_places.push(Place::clone(place));
            }
        }
        self.check_first_leases(key);
        self.effects = step.effects;
        self.freed = step.freed;
        self.withheld = step.withheld;
        self.stream_goes_on = step.stream_goes_on;
        self.events.extend(step.events);
        self.log.extend(step.log);
        for (addressee, answer) in step.answers {
            let id = addressee.id();
            // A grant that is not told yet may be taken over.
            let client = self.clients.remove(&id);
            let superseded = Answer::Refused(LockError::Superseded);
            assert!(client.is_some() || [superseded, Answer::NotGranted].contains(&answer));
            let is_granted = matches!(answer, Answer::Granted(_));
            if let (Addressee::Place(place), true) = (&addressee, is_granted) {
                let heard = !self.deaf.contains(&place.channel);
                self.table.grant_told(id, heard, self.ms());
            } else if self.tells && is_granted {
                self.table.grant_told(id, true, self.ms());
            }
            self.answers.push((id, answer));
        }
        result
    }

    /// No message tells of a first lease that is longer than the lease that is stored.
    fn check_first_leases(&self, key: KeyRef<'_>) {
        for place in &self.granted_places {
            let lock = self.lock(key);
            let stored_ms = lock.holder(&place.owner).map(|holder| holder.lease_end_ms);
            let told_ms = place.first_lease.end_ms(self.ms());
            let lasts =
                stored_ms.is_some_and(|end_ms| end_ms.is_none_or(|end_ms| end_ms >= told_ms));
            assert!(lasts, "{place:?}: {stored_ms:?} is before {told_ms}");
        }
    }

    fn acquire(&mut self, key: KeyRef<'_>, ask: Ask) -> Result<Acquired, LockError> {
        self.acquire_until(key, ask, None)
    }

    fn acquire_until(
        &mut self,
        key: KeyRef<'_>,
        ask: Ask,
        until_ms: Option<i64>,
    ) -> Result<Acquired, LockError> {
        let wait = ask.is_patient.then_some(Wait {
            client: ask.client,
            until_ms,
            channel: ask.channel,
        });
        let stored = &mut self.look_for(key)?;
        self.asks_by(ask.client);
        let acquired = self.step(key, |table, now, world, done| {
            table.step(key, stored, now, world, done, |step| {
                step.acquire(ask.request, wait)
            })
        })?;
        if let Acquired::Queued(id) = acquired {
            self.clients.insert(id, ask.client);
        }
        Ok(acquired)
    }

    /// This client sends the next request, and can wait for replicas.
    fn asks_by(&mut self, client: ClientId) {
        self.asker = Some(client);
        if let Some(acks) = &mut self.table.settings.acks {
            acks.client = Some(client);
        }
    }

    /// Has the lock at once.
    #[track_caller]
    fn take(&mut self, key: KeyRef<'_>, ask: Ask) -> FencingToken {
        match self.acquire(key, ask) {
            Ok(Acquired::Granted(token)) => token,
            other => panic!("{other:?}"),
        }
    }

    /// Is put into the queue.
    #[track_caller]
    fn wait(&mut self, key: KeyRef<'_>, ask: Ask) -> WaiterId {
        self.wait_until(key, ask, None)
    }

    /// As [`Server::wait`], for this long at most.
    #[track_caller]
    fn wait_for(&mut self, key: KeyRef<'_>, ask: Ask, timeout_ms: i64) -> WaiterId {
        self.wait_until(key, ask, Some(self.now().steady_ms + timeout_ms))
    }

    #[track_caller]
    fn wait_until(&mut self, key: KeyRef<'_>, ask: Ask, until_ms: Option<i64>) -> WaiterId {
        match self.acquire_until(key, ask, until_ms) {
            Ok(Acquired::Queued(id)) => id,
            other => panic!("{other:?}"),
        }
    }

    fn release_as(
        &mut self,
        key: KeyRef<'_>,
        name: &str,
        extent: ReleaseExtent,
        token: Option<FencingToken>,
    ) -> Result<Released, LockError> {
        let request = ReleaseRequest {
            owner: owner(name),
            token,
            extent,
        };
        let stored = &mut self.look_for(key)?;
        self.asker = Some(ask(name).client);
        self.step(key, |table, now, world, done| {
            table.step(key, stored, now, world, done, |step| step.release(&request))
        })
    }

    /// Gives one hold back.
    #[track_caller]
    fn release(&mut self, key: KeyRef<'_>, name: &str) {
        let released = self.release_as(key, name, ReleaseExtent::One, None);
        assert!(matches!(
            released,
            Ok(Released::LastHold | Released::StillHeld)
        ));
    }

    fn renew(&mut self, key: KeyRef<'_>, name: &str, lease_ms: i64) -> bool {
        self.renew_as(key, name, lease_ms, None)
    }

    fn renew_as(
        &mut self,
        key: KeyRef<'_>,
        name: &str,
        lease_ms: i64,
        token: Option<FencingToken>,
    ) -> bool {
        let request = RenewRequest {
            owner: owner(name),
            lease: lease(lease_ms),
            token,
        };
        self.asker = Some(ask(name).client);
        self.try_renew(key, &request).unwrap()
    }

    fn try_renew(&mut self, key: KeyRef<'_>, request: &RenewRequest) -> Result<bool, LockError> {
        let stored = &mut self.look_for(key)?;
        self.step(key, |table, now, world, done| {
            table.step(key, stored, now, world, done, |step| step.renew(request))
        })
    }

    fn break_lock(&mut self, key: KeyRef<'_>, token: Option<FencingToken>) -> bool {
        let stored = &mut self.look_for(key).unwrap();
        let broken = self.step(key, |table, now, world, done| {
            table.step(key, stored, now, world, done, |step| step.break_lock(token))
        });
        broken.unwrap()
    }

    fn guard(&mut self, key: KeyRef<'_>, token: FencingToken) -> bool {
        let stored = &mut self.look_for(key).unwrap();
        let is_held = self.step(key, |table, now, world, done| {
            table.step(key, stored, now, world, done, |step| step.guard(token))
        });
        is_held.unwrap()
    }

    /// Ends what ends without anything to be written.
    fn give_up(&mut self) -> Vec<(WaiterId, Answer)> {
        let now = self.now();
        self.table.end_some_gone(usize::MAX);
        let told = self.table.give_up(now, usize::MAX).into_iter();
        let told = told.map(|(addressee, answer)| (addressee.id(), answer));
        let mut told: Vec<_> = told.collect();
        // Those whose waits end at once are told in no order that anybody could rely on.
        told.sort_by_key(|(id, _)| *id);
        for (id, _) in &told {
            self.clients.remove(id);
        }
        told
    }

    fn wake_at_ms(&self) -> Option<i64> {
        self.table.wake_at_ms(self.now())
    }

    fn pause_grants(&mut self) {
        self.table.settings.may_grant = false;
    }

    fn resume_grants(&mut self) {
        self.table.settings.may_grant = true;
        self.table.everything_touched();
    }

    fn disconnect(&mut self, client: u64) {
        self.table.connection_ended(ClientId(client));
    }

    /// Ends places that are kept for a second, or for as long as a connection lives.
    fn end_places(&mut self, by_time: bool) {
        match by_time {
            true => self.sleep(1001),
            false => self.disconnect(7),
        }
    }

    fn leave(&mut self, id: WaiterId) {
        let now_ms = self.ms();
        self.table.waiter_left(id, WaitEnd::Gone, now_ms);
        self.clients.remove(&id);
    }

    /// Somebody else writes to the key.
    fn write(&mut self, key: KeyRef<'_>, change: impl FnOnce(&mut Value)) {
        let value = self.keys.entry(key.into()).or_default();
        change(value);
        let end_ms = value.expires_at_ms.unwrap_or(i64::MAX);
        self.first_expiry_ms = self.first_expiry_ms.min(end_ms);
        if !value.is_there() {
            self.keys.remove(&KeyBuf::from(key));
        }
        let now_ms = self.ms();
        self.table.key_touched(key, now_ms);
    }

    fn put(&mut self, key: KeyRef<'_>, value: Value) {
        self.write(key, |old| *old = value);
    }

    fn delete(&mut self, key: KeyRef<'_>) {
        self.put(key, Value::default());
    }

    /// `SET key value`
    fn overwrite(&mut self, key: KeyRef<'_>) {
        self.put(key, Value::other());
    }

    fn rename(&mut self, from: KeyRef<'_>, to: KeyRef<'_>) {
        let value = self.keys.remove(&KeyBuf::from(from)).unwrap();
        self.keys.insert(to.into(), value);
        let now_ms = self.ms();
        self.table.key_touched(from, now_ms);
        self.table.key_touched(to, now_ms);
    }

    fn do_due(&mut self, due: Due) {
        self.steps += 1;
        let key = due.key.clone();
        let stored = self.look(key.as_ref());
        let done = self.step(key.as_ref(), |table, now, world, done| {
            table.do_due(due, stored, now, world, done);
            Ok(())
        });
        done.unwrap();
    }

    /// Does what is due now, one thing. Returns whether anything was.
    fn do_one(&mut self) -> bool {
        self.expire();
        let Some(due) = self.table.take_due(self.ms()) else {
            return false;
        };
        self.do_due(due);
        true
    }

    /// Does all that is due now.
    fn run(&mut self) {
        let before = self.steps;
        while self.do_one() {
            assert!(self.steps - before < 100_000, "an endless round");
        }
    }

    /// Time passes, and what comes due meanwhile is done in time.
    fn pass(&mut self, ms: i64) {
        let end_us = self.now_us + ms * 1000;
        loop {
            self.wake();
            let wake_ms = self.table.wake_at_ms(self.now()).unwrap_or(i64::MAX);
            if wake_ms.saturating_mul(1000) >= end_us || !self.table.to_close.is_empty() {
                break;
            }
            self.now_us = self.now_us.max(wake_ms * 1000);
        }
        self.now_us = end_us;
        self.wake();
    }

    fn wake(&mut self) {
        let ended = self.give_up();
        self.answers.extend(ended);
        self.run();
    }

    /// Time passes, and nobody does anything.
    fn sleep(&mut self, ms: i64) {
        self.now_us += ms * 1000;
    }

    /// The wall clock is set, and the server's cron runs.
    fn set_clock(&mut self, by_ms: i64) {
        self.now_us += by_ms * 1000;
        self.ahead_ms += by_ms;
        self.table.everything_touched();
    }

    /// What waiters were told since this was asked last.
    fn told(&mut self) -> Vec<(WaiterId, Answer)> {
        std::mem::take(&mut self.answers)
    }

    /// The first lease of which the message of the last step tells.
    #[track_caller]
    fn first_lease_ms(&self) -> i64 {
        let [place] = &self.granted_places[..] else {
            panic!("{:?}", self.granted_places);
        };
        place.first_lease.ms()
    }

    /// Who was granted its request since this was asked last.
    #[track_caller]
    fn granted(&mut self) -> Vec<WaiterId> {
        let granted = self.told().into_iter().map(|(id, answer)| match answer {
            Answer::Granted(_) => id,
            other => panic!("{other:?}"),
        });
        granted.collect()
    }

    #[track_caller]
    fn refused(&mut self) -> Vec<(WaiterId, LockError)> {
        let refused = self.told().into_iter().map(|(id, answer)| match answer {
            Answer::Refused(error) => (id, error),
            other => panic!("{id:?} was told {other:?}"),
        });
        refused.collect()
    }

    fn events(&mut self) -> Vec<LockEvent> {
        std::mem::take(&mut self.events)
    }

    /// Nothing is remembered, and nothing is planned.
    #[track_caller]
    fn check_nothing_is_left(&self) {
        let table = &self.table;
        assert!(!table.awaits_replicas());
        assert_eq!(table.totals(self.now()).withheld, 0);
        assert!(table.queues.is_empty() && !table.remembers_holds());
        assert!(table.unchecked.is_empty() && table.to_close.is_empty());
        assert!(table.time_outs.is_empty() && table.unclaimed.is_empty());
        assert!(table.untold.is_empty());
        assert!(!table.follows_keys());
        assert_eq!(table.wake_at_ms(self.now()), None);
        let counts = table.totals(self.now()).counts;
        let all = [
            counts.waiters,
            counts.contended_keys,
            counts.planned_rechecks,
        ];
        assert_eq!(all, [0; 3]);
    }
}

/// `a` holds the lock, and `b` waits for it.
fn contended() -> (Server, WaiterId) {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let b = server.wait(K, ask("b"));
    (server, b)
}

/// The same, and `a` has released it: the grant to `b` is on its way.
fn on_its_way() -> Server {
    let (mut server, _) = contended();
    server.tells = false;
    server.release(K, "a");
    server
}

fn name_of_holder(holder: &Holder) -> String {
    String::from_utf8_lossy(holder.owner.as_bytes()).into_owned()
}

/// Owners by number.
fn nth(n: usize) -> String {
    format!("n{n:05}")
}
