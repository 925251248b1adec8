//! Random histories: commands of a few owners, other clients that write, and time.

use proptest::prelude::*;

use super::*;
use crate::queue::Waiter;

const OWNERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const KEYS: [KeyRef<'static>; 2] = [K, L];

#[derive(Clone, Debug)]
enum Step {
    /// Somebody asks for a lock, and for a place in its queue for this long.
    Acquire(usize, usize, Ask, Option<i64>),
    /// A request for a place is sent again, by another connection.
    Again(prop::sample::Index, bool, i64),
    /// Whoever listens to this channel goes away, or comes back.
    Listen(u8),
    /// What ends without a write is ended.
    GiveUp,
    Release(usize, usize, ReleaseExtent),
    Renew(usize, usize, i64),
    Break(usize),
    /// The connection of some request ends.
    End(prop::sample::Index),
    /// A waiter's time is up.
    Leave(prop::sample::Index),
    /// A grant on its way is heard of, or not.
    Tell(prop::sample::Index, bool),
    Time(i64),
    /// The wall clock is set.
    Clock(i64),
    Due,
    Delete(usize),
    /// `HDEL key owner`
    RemoveOwner(usize, usize),
    /// Redisson's script takes a lock that is free.
    Redisson(usize, usize),
    Persist(usize),
    Rename,
}

/// The longest time of a place.
const PLACE_MS: i64 = 1000;

fn channel(number: u8) -> Channel {
    [number].into()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..OWNERS.len();
    let key = || 0..KEYS.len();
    let lease = || 1..2000_i64;
    let hold_count = prop_oneof![3 => Just(None), 1 => (1..4_i64).prop_map(Some)];
    let limit = prop_oneof![
        2 => Just(Limit::EXCLUSIVE),
        3 => Just(Limit::SHARED),
        3 => (2..=3_i64).prop_map(|count| Limit::from_count(count).unwrap()),
    ];
    let extent = prop_oneof![
        4 => Just(ReleaseExtent::One),
        1 => Just(ReleaseExtent::All),
        2 => (1..4_i64).prop_map(|n| ReleaseExtent::Hold(hold_number(n))),
    ];
    let place_ms = || 1..=PLACE_MS;
    // How long a place is kept, and on which channel it is told.
    let place = (place_ms(), 0..2_u8).prop_map(Some);
    let waits = prop_oneof![
        2 => Just((false, None)),
        4 => Just((true, None)),
        4 => place.prop_map(|place| (true, place)),
    ];
    let any = any::<prop::sample::Index>;
    let acquire = (
        (who(), key(), lease()),
        (hold_count, limit),
        (prop::bool::weighted(0.3), waits),
    );
    let step = prop_oneof![
        16 => acquire.prop_map(|((who, key, lease_ms), (hold, limit), (session, waits))| {
            let (is_patient, place) = waits;
            let mut ask = ask(OWNERS[who]).lease(lease_ms);
            ask.is_patient = is_patient;
            ask.channel = place.map(|(_, number)| channel(number));
            ask.request.limit = limit;
            ask.request.hold = hold.or(place.map(|_| 1)).map(hold_number);
            ask.request.session = session.then_some(ask.client);
            Step::Acquire(who, key, ask, place.map(|(ms, _)| ms))
        }),
        3 => (any(), prop::bool::ANY, place_ms())
            .prop_map(|(place, session, ms)| Step::Again(place, session, ms)),
        2 => (0..2_u8).prop_map(Step::Listen),
        3 => Just(Step::GiveUp),
        8 => (who(), key(), extent)
            .prop_map(|(who, key, extent)| Step::Release(who, key, extent)),
        2 => (who(), key(), lease())
            .prop_map(|(who, key, lease_ms)| Step::Renew(who, key, lease_ms)),
        1 => key().prop_map(Step::Break),
        2 => any().prop_map(Step::End),
        2 => any().prop_map(Step::Leave),
        6 => (any(), prop::bool::weighted(0.8))
            .prop_map(|(client, heard)| Step::Tell(client, heard)),
        4 => prop_oneof![0..3_i64, 0..1500_i64].prop_map(Step::Time),
        2 => prop_oneof![-3000..3000_i64, -9..9_i64].prop_map(Step::Clock),
        4 => Just(Step::Due),
        1 => key().prop_map(Step::Delete),
        1 => (who(), key()).prop_map(|(who, key)| Step::RemoveOwner(who, key)),
        1 => (who(), key()).prop_map(|(who, key)| Step::Redisson(who, key)),
        1 => key().prop_map(Step::Persist),
        1 => Just(Step::Rename),
    ];
    prop::collection::vec(step, 1..80)
}

/// A server, and what its clients know of it.
#[derive(Default)]
struct History {
    server: Server,
    next_client: u64,
    /// Clients with a connection.
    connected: Vec<ClientId>,
    /// Clients that have been granted the lock and do not know it yet.
    on_their_way: Vec<ClientId>,
    /// Who took which lock by Redisson's script. Such a hold gets its token with the
    /// first request of its owner that is served, also where that asks for no other, or
    /// when it is renewed.
    by_redisson: Vec<(usize, usize)>,
    queued: Vec<Queued>,
    newest: Option<FencingToken>,
    /// When the first leases end of grants that are not claimed.
    first_ends_ms: BTreeMap<FencingToken, i64>,
    /// Who released which lock in this step.
    releases: Option<(usize, usize)>,
}

/// Who waits.
#[derive(Clone, Debug, PartialEq)]
struct Queued {
    key: usize,
    id: WaiterId,
    who: usize,
    limit: Limit,
    /// How long a place is kept.
    until_ms: Option<i64>,
    session: Option<ClientId>,
}

impl Queued {
    fn is_place(&self) -> bool {
        self.until_ms.is_some()
    }
}

impl History {
    fn new() -> Self {
        let mut server = Server::new();
        server.tells = false;
        Self {
            server,
            ..Self::default()
        }
    }

    /// Whether a place is over.
    fn is_over(&self, place: &Queued) -> bool {
        let is_time_up = place
            .until_ms
            .is_some_and(|ms| ms <= self.server.now().steady_ms);
        let is_connected = |client| self.connected.contains(&client);
        is_time_up || place.is_place() && !place.session.is_none_or(is_connected)
    }

    fn acquire(&mut self, asked: Queued, ask: Ask) -> Result<(), TestCaseError> {
        let Queued {
            key, who, limit, ..
        } = asked;
        let is_its = |one: &Queued| (one.key, one.who) == (key, who);
        let earlier = self.queued.iter().find(|one| is_its(one));
        let own = earlier.filter(|one| one.limit == limit && !self.is_over(one));
        let own = own.map(|one| one.id);
        let is_in_front =
            |one: &&Queued| one.key == key && one.who != who && own.is_none_or(|own| one.id < own);
        let in_front = self.queued.iter().filter(is_in_front);
        let in_front = in_front.filter(|one| !self.is_over(one)).count();
        let server = &mut self.server;
        let held_before = server.value(KEYS[key]).has(OWNERS[who].as_bytes());
        let answered = server.answers.len() + server.unheard.len();
        let acquired = server.acquire_until(KEYS[key], ask, asked.until_ms);
        let superseded = Answer::Refused(LockError::Superseded);
        let is_superseded = |(_, answer): &(WaiterId, Answer)| *answer == superseded;
        let told = server.answers.extract_if(.., |told| is_superseded(told));
        let told: Vec<WaiterId> = told.map(|(id, _)| id).collect();
        prop_assert!(told.len() <= 1 && (told.is_empty() || acquired.is_ok()));
        if let Ok(Acquired::Granted(token)) = acquired {
            let is_new = self.newest.is_none_or(|newest| token > newest);
            let served = server.answers.len() + server.unheard.len() - answered;
            let granted = Answer::Granted(token);
            let has_its_token = server.answers.iter().any(|(_, answer)| *answer == granted);
            prop_assert!(
                held_before || is_new && served >= in_front || has_its_token,
                "a newcomer passed the queue"
            );
            prop_assert_eq!(server.token(KEYS[key], OWNERS[who]), token);
        }
        if let Ok(Acquired::Granted(_) | Acquired::Queued(_)) = acquired {
            // What else it waited with is over. Others of it are looked at by the check.
            let is_told = |id| server.answers.iter().any(|(told, _)| *told == id);
            let is_offered = |id| server.unheard.iter().any(|(unheard, _)| *unheard == id);
            self.queued
                .retain(|one| !is_its(one) || is_told(one.id) || is_offered(one.id));
        }
        if let Ok(Acquired::Queued(id)) = acquired {
            prop_assert!(own.is_none_or(|own| own == id), "its position was not kept");
            self.queued.push(Queued { id, ..asked });
            self.queued.sort_by_key(|one| one.id);
        }
        Ok(())
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let server = &mut self.server;
        self.releases = None;
        match *step {
            Step::Acquire(who, key, ref ask, place_ms) => {
                self.next_client += 1;
                let ask = ask.clone().by(self.next_client);
                self.connected.push(ask.client);
                let asked = Queued {
                    key,
                    id: WaiterId(0),
                    who,
                    limit: ask.request.limit,
                    until_ms: place_ms.map(|ms| server.now().steady_ms + ms),
                    session: ask.request.session,
                };
                self.acquire(asked, ask)?;
            }
            Step::Again(place, session, ms) => {
                let places = self.queued.iter().filter(|one| one.is_place());
                let places: Vec<&Queued> = places.collect();
                if places.is_empty() {
                    return Ok(());
                }
                let place = places[place.index(places.len())].clone();
                self.next_client += 1;
                let client = ClientId(self.next_client);
                self.connected.push(client);
                let mut ask = ask(OWNERS[place.who]).place().by(self.next_client);
                ask.request.limit = place.limit;
                ask.request.session = session.then_some(client);
                let asked = Queued {
                    until_ms: Some(server.now().steady_ms + ms),
                    session: ask.request.session,
                    ..place
                };
                self.acquire(asked, ask)?;
            }
            Step::Listen(number) => {
                let channel = channel(number);
                if !server.deaf.remove(&channel) {
                    server.deaf.insert(channel);
                }
            }
            Step::GiveUp => {
                let given_up = server.give_up();
                server.answers.extend(given_up);
            }
            Step::Release(who, key, extent) => {
                self.releases = Some((key, who));
                let _ = server.release_as(KEYS[key], OWNERS[who], extent, None);
                // Whose grant was not told yet is told that it has none.
                let waits = |id| self.queued.iter().any(|one| one.id == id);
                let answers = &mut server.answers;
                answers.retain(|(id, answer)| *answer != Answer::NotGranted || waits(*id));
            }
            Step::Renew(who, key, lease_ms) => {
                server.renew(KEYS[key], OWNERS[who], lease_ms);
            }
            Step::Break(key) => {
                server.break_lock(KEYS[key], None);
            }
            Step::End(client) => {
                if !self.connected.is_empty() {
                    let at = client.index(self.connected.len());
                    let client = self.connected.remove(at);
                    self.on_their_way.retain(|other| *other != client);
                    let is_blocked = |one: &&Queued| {
                        !one.is_place() && server.clients.get(&one.id) == Some(&client)
                    };
                    let blocked = self.queued.iter().find(is_blocked).map(|one| one.id);
                    if let Some(id) = blocked {
                        server.leave(id);
                        self.queued.retain(|queued| queued.id != id);
                    }
                    server.table.connection_ended(client);
                    let mut owners = KEYS.iter().flat_map(|key| OWNERS.map(|name| (*key, name)));
                    let bound = owners.any(|(key, name)| {
                        server.table.bound_client(key, &owner(name)) == Some(client)
                    });
                    prop_assert!(!bound, "it is bound to {:?} yet", client);
                }
            }
            Step::Leave(waiter) => {
                let blocked = self.queued.iter().filter(|one| !one.is_place());
                let blocked: Vec<WaiterId> = blocked.map(|one| one.id).collect();
                if !blocked.is_empty() {
                    let id = blocked[waiter.index(blocked.len())];
                    self.queued.retain(|queued| queued.id != id);
                    server.leave(id);
                }
            }
            Step::Tell(client, heard) => {
                if !self.on_their_way.is_empty() {
                    let at = client.index(self.on_their_way.len());
                    let client = self.on_their_way.remove(at);
                    server.table.client_told(client, heard);
                }
            }
            Step::Time(ms) => server.sleep(ms),
            Step::Clock(by_ms) => self.server.set_clock(by_ms),
            Step::Due => server.run(),
            Step::Delete(key) => server.delete(KEYS[key]),
            Step::RemoveOwner(who, key) => {
                server.write(KEYS[key], |value| value.remove(OWNERS[who].as_bytes()));
            }
            Step::Redisson(who, key) => {
                server.expire();
                let end_ms = server.ms() + 1000;
                if !server.keys.contains_key(&KeyBuf::from(KEYS[key])) {
                    let taken = Value::by_redisson(&owner(OWNERS[who]), end_ms);
                    server.put(KEYS[key], taken);
                    self.by_redisson.push((who, key));
                }
            }
            Step::Persist(key) => {
                // A count with neither an expiry nor a token is no lock.
                if server.value(KEYS[key]).has(TOKEN_FIELD) {
                    server.write(KEYS[key], |value| value.expires_at_ms = None);
                    self.first_ends_ms
                        .values_mut()
                        .for_each(|ms| *ms = i64::MAX);
                }
            }
            Step::Rename => {
                server.expire();
                if server.keys.contains_key(&KeyBuf::from(K)) {
                    server.rename(K, L);
                    let moved = self.by_redisson.iter().filter(|(_, key)| *key == 0);
                    let moved: Vec<_> = moved.map(|(who, _)| (*who, 1)).collect();
                    self.by_redisson.extend(moved);
                }
            }
        }
        Ok(())
    }

    /// What is true after each step.
    fn check(&mut self, clients: &[(WaiterId, ClientId)]) -> Result<(), TestCaseError> {
        let mut last: [Option<WaiterId>; KEYS.len()] = Default::default();
        let mut told = self.server.told();
        // Places are told before the others.
        told.sort_by_key(|(_, answer)| match answer {
            Answer::Granted(token) => Some(*token),
            _ => None,
        });
        for (id, token) in std::mem::take(&mut self.server.unheard) {
            let at = self.queued.iter().position(|queued| queued.id == id);
            let Queued { key, who, .. } = self.queued.remove(at.expect("it was in the queue"));
            let lock = self.server.lock(KEYS[key]);
            let held = lock.holder(&owner(OWNERS[who]));
            let is_granted = held.is_some_and(|held| held.token == Some(token));
            let is_told = told
                .iter()
                .any(|(_, answer)| *answer == Answer::Granted(token));
            prop_assert!(
                !is_granted || is_told || self.newest < Some(token),
                "unheard"
            );
        }
        for (id, answer) in told {
            let at = self.queued.iter().position(|queued| queued.id == id);
            let queued = self.queued.remove(at.expect("nobody is answered twice"));
            let Queued { key, who, .. } = queued;
            let is_over = self.is_over(&queued);
            let Answer::Granted(token) = answer else {
                let is_given_up = self.releases == Some((key, who));
                prop_assert!(answer != Answer::NotGranted || is_over || is_given_up);
                continue;
            };
            // It may have the lock already, by a grant that was told before the key was renamed.
            let first_end = self.first_ends_ms.entry(token);
            if queued.is_place() {
                prop_assert!(!is_over, "a place that is over was granted the lock");
                let first_ms = self.server.ms() + self.server.table.settings.claim_timeout_ms;
                first_end.and_modify(|ms| *ms = first_ms.max(*ms));
            } else {
                first_end.and_modify(|ms| *ms = i64::MAX);
                let client = clients.iter().find(|(waiter, _)| *waiter == id).unwrap().1;
                self.on_their_way.push(client);
            }
            // Whoever was passed was passed by one that holds the lock.
            let mut earlier = self
                .queued
                .iter()
                .filter(|one| one.key == key && one.id < id);
            let passed = earlier.any(|one| !self.is_over(one));
            if passed {
                let lock = self.server.lock(KEYS[key]);
                let reenters = lock
                    .holder(&owner(OWNERS[who]))
                    .is_some_and(|one| one.holds > 1)
                    || self.by_redisson.contains(&(who, key));
                prop_assert!(reenters || last[key].is_some() || self.newest >= Some(token));
            }
            last[key] = Some(id);
        }
        for key in KEYS {
            let lock = self.server.lock(key);
            let count = lock.holders().len();
            if let Some(strictest) = lock.strictest_limit() {
                prop_assert!(count <= 1 || strictest.has_room_beside(count - 1));
            }
            let tokens = lock.holders().iter().filter_map(|holder| holder.token);
            self.newest = self.newest.max(tokens.max());
            let waiters: Vec<&Waiter> = self.server.table.queues.waiters(key).collect();
            // A place that is over may have been removed.
            let stands = |id: WaiterId| waiters.iter().any(|one| one.id == id);
            let expected = self.queued.iter().filter(|one| KEYS[one.key] == key);
            let expected = expected.filter(|one| !self.is_over(one) || stands(one.id));
            let standing = waiters.iter().map(|one| one.id);
            prop_assert!(standing.eq(expected.map(|one| one.id)));
            let places = waiters.iter().filter(|waiter| waiter.is_place());
            let owners: BTreeSet<_> = places.clone().map(|place| &place.request.owner).collect();
            prop_assert_eq!(owners.len(), places.count());
            for holder in self.server.lock(key).holders() {
                let Some(token) = holder.token else { continue };
                if self.server.table.unclaimed.contains_key(&token) {
                    let ends = &mut self.first_ends_ms;
                    let first_ms = self.server.ms() + self.server.table.settings.claim_timeout_ms;
                    let first_ms = ends.entry(token).or_insert(first_ms);
                    let end_ms = holder.lease_end_ms.unwrap_or(i64::MAX);
                    prop_assert!(end_ms <= *first_ms, "an unclaimed grant lasts");
                }
            }
            // Where somebody could have the lock, a look is planned in time.
            if self.server.table.queues.contended(key) {
                let wake_ms = self.server.table.wake_at_ms(self.server.now());
                let soon_ms = self.server.ms() + 500;
                prop_assert!(wake_ms.is_some_and(|at_ms| at_ms <= soon_ms));
            }
        }
        let table = &self.server.table;
        prop_assert!(table.agree());
        for place in self.queued.iter().filter(|one| one.is_place()) {
            let end_ms = place.until_ms.filter(|_| !self.is_over(place));
            let wake_ms = table.wake_at_ms(self.server.now());
            let end_ms = end_ms.map(|end_ms| end_ms + self.server.ahead_ms);
            let by_ms = end_ms.unwrap_or(self.server.ms());
            prop_assert!(wake_ms.is_some_and(|wake_ms| wake_ms <= by_ms));
        }
        Ok(())
    }

    fn play(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            let clients = self.server.clients.iter();
            let before: Vec<_> = clients.map(|(id, client)| (*id, *client)).collect();
            self.run(step)?;
            self.check(&before)?;
        }
        Ok(())
    }

    /// Everybody goes away, and time passes.
    fn end(&mut self) -> Result<(), TestCaseError> {
        for queued in std::mem::take(&mut self.queued) {
            if !queued.is_place() {
                self.server.leave(queued.id);
            }
        }
        while let Some(&(end_ms, _)) = self.server.table.time_outs.first() {
            let now_ms = self.server.now().steady_ms;
            self.server.sleep((end_ms - now_ms).max(0));
            self.server.give_up();
        }
        for client in std::mem::take(&mut self.on_their_way) {
            self.server.table.client_told(client, true);
        }
        for client in std::mem::take(&mut self.connected) {
            self.server.table.connection_ended(client);
        }
        for key in KEYS {
            self.server.delete(key);
        }
        self.server.run();
        // The clock may have been set back meanwhile.
        while let Some((_, &end_ms)) = self.server.table.unclaimed.first_key_value() {
            self.server.sleep((end_ms - self.server.ms()).max(0));
            self.server.give_up();
        }
        self.server.run();
        self.server.give_up();
        self.server.table.take_clients_to_close(usize::MAX);
        self.server.check_nothing_is_left();
        Ok(())
    }
}

proptest! {
    #[test]
    fn locks_keep_their_promises_whatever_happens(steps in steps()) {
        let mut history = History::new();
        history.play(&steps)?;
        history.end()?;
    }
}
