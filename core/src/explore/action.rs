//! What can happen, and that it does.

use super::cast::{Cast, Order};
use super::form::Form;
use super::keyspace::Keyspace;
use super::scope::{Ask, BEGIN_MS, Event, Scope};
use super::search::Checked;
use super::world::{Connection, Doing, World, new_table};
use super::{invariants, search};

/// Something that a client, the server or time may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `LOCK.ACQUIRE`, by a connection, one of the scope's.
    Acquire(u8, u8, u8),
    /// `LOCK.RELEASE`, by a connection, one of the scope's.
    Release(u8, u8, u8),
    /// `LOCK.RENEW`, by a connection, one of the scope's.
    Renew(u8, u8, u8),
    /// Something else that happens in the scope, to the one with this number.
    Event(Event, u8),
    /// The server finds a key that has expired.
    Expire(u8),
    /// Time passes, until something can happen that could not before.
    Pass,
    /// The timer wakes the module.
    Wake,
    /// A client hears of its grant.
    Hear(u8),
    /// Replicas acknowledge all that was written.
    Acknowledge,
}

impl search::World for World {
    type Scope = Scope;
    type Action = Action;

    fn new(scope: Scope) -> Self {
        let cast = Cast::new(scope, scope.connections, scope.keys, &[0]);
        let connection = Connection {
            generation: 1,
            doing: Doing::Nothing,
        };
        Self {
            table: new_table(&scope),
            data: Keyspace::default(),
            copy: Keyspace::default(),
            last_write: Vec::new(),
            now_ms: BEGIN_MS,
            steps: 0,
            connections: vec![connection; cast.owner_of.len()],
            cast,
            known: Default::default(),
            places: Vec::new(),
            deaf: Default::default(),
            greatest: None,
            changed: Default::default(),
            retry_at_ms: None,
            replicas: scope.acks,
            written: Vec::new(),
            told: Vec::new(),
            said: None,
        }
    }

    fn cast(&self) -> &Cast<Scope> {
        &self.cast
    }

    fn moment(&self) -> (i64, Vec<u64>) {
        let generations = self.connections.iter().map(|one| one.generation);
        (self.now_ms, generations.collect())
    }

    fn said(&mut self) -> &mut Option<String> {
        &mut self.said
    }

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
                Doing::ToHear(_) => actions.push(Action::Hear(at)),
                Doing::Waiting(..) | Doing::Withheld(..) => {}
            }
        }
        for &event in scope.happens {
            let numbers = options(self.how_many(event));
            let possible = numbers.filter(|&number| self.is_possible(event, number.into()));
            actions.extend(possible.map(|number| Action::Event(event, number)));
        }
        for key in keys {
            if self.data.is_expired(key.into(), self.now_ms) {
                actions.push(Action::Expire(key));
            }
        }
        if self.table.awaits_replicas() {
            actions.push(Action::Acknowledge);
        }
        if self.is_wake_due() {
            actions.push(Action::Wake);
        }
        // A turn of the server's event loop, in which grants are told, takes no time.
        let to_hear = |one: &Connection| matches!(one.doing, Doing::ToHear(_));
        let is_turn_over = !self.is_wake_due() && !self.connections.iter().any(to_hear);
        if (scope.is_late || is_turn_over) && self.next_time().is_some() {
            actions.push(Action::Pass);
        }
    }

    fn act(&mut self, action: Action) -> Checked {
        self.steps += 1;
        match action {
            Action::Acquire(at, key, ask) => {
                let words = self.scope().asks[usize::from(ask)];
                self.acquire(at.into(), key.into(), Ask::of(words))?;
            }
            Action::Release(at, key, what) => {
                let what = self.scope().releases[usize::from(what)];
                self.release(at.into(), key.into(), what)?;
            }
            Action::Renew(at, key, what) => {
                let (lease_ms, words) = self.scope().renewals[usize::from(what)];
                let (at, key) = (usize::from(at), usize::from(key));
                let token = self.named(at, key, words);
                self.renew(at, key, lease_ms, token)?;
            }
            Action::Event(event, number) => self.happens(event, number.into())?,
            Action::Expire(key) => self.notice_expiry(key.into()),
            Action::Pass => {
                let next_ms = self.next_time().expect("a time to come");
                self.say(|w| format!("{} ms pass", next_ms - w.now_ms));
                self.now_ms = next_ms;
            }
            Action::Wake => self.wake()?,
            Action::Hear(at) => self.hear(at.into()),
            Action::Acknowledge => {
                self.say(|_| "a replica acknowledges all".to_owned());
                self.acknowledge(0, vec![0])?;
            }
        }
        self.forget_what_has_gone();
        invariants::check(self)
    }

    fn take_down(&self, order: &Order, form: &mut Form<'_>) {
        self.table.take_down(form);
        self.data.take_down(&self.cast.keys, form);
        if self.scope().has(Event::FailOver) {
            self.copy.take_down(&self.cast.keys, form);
            form.flag(self.last_write.is_empty());
        }
        form.token(self.greatest);
        form.flag(self.table.settings.may_grant);
        form.time(self.retry_at_ms);
        for &at in &order.connections {
            match self.connections[at].doing {
                Doing::Nothing => form.number(0),
                Doing::Waiting(id, key, ask) => {
                    form.number(1);
                    form.key(self.cast.key(key));
                    form.waiter(Some(id));
                    form.text(ask.words);
                }
                Doing::ToHear(grant) => {
                    form.number(2);
                    self.take_down_grant(&grant, form);
                }
                Doing::Withheld(id, grant) => {
                    form.number(3);
                    form.waiter(Some(id));
                    self.take_down_grant(&grant, form);
                    form.time(Some(grant.until_ms));
                }
            }
        }
        for &owner in &order.owners {
            form.flag(self.deaf[owner]);
        }
        for &key in &order.keys {
            form.number(self.changed[key] as i64);
            for &owner in &order.owners {
                let mut places = self.places_for(key);
                let place = places.find(|place| place.owner == owner);
                form.waiter(place.map(|place| place.id));
                if let Some(place) = place {
                    form.client(Some(self.client(place.at)));
                    form.text(place.ask.words);
                    form.time(Some(place.until_ms));
                    form.client(place.session);
                }
                let known = self.known[key][owner];
                form.token(known.told);
                form.until(known.promise);
                form.number(known.holds);
                form.token(known.tied.map(|tied| tied.token));
                if let Some(tied) = known.tied {
                    form.client(tied.older);
                    form.client(Some(tied.newest));
                    form.flag(tied.told_elsewhere);
                }
                form.token(known.over);
                form.until(known.unclaimed);
            }
        }
    }
}
