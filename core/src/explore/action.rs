//! What can happen, and that it does.

use super::cast::{Cast, Order};
use super::form::Form;
use super::keyspace::Write;
use super::scope::{Event, LEASE_MS, Scope};
use super::search::Checked;
use super::world::{Connection, Doing, World};
use super::{invariants, search};
use crate::explore::cast::{key_name, owner_name};
use crate::table::WaitEnd;

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
    /// Nothing may be granted from now on, or again.
    MayGrant,
    /// Replicas acknowledge all that was written.
    Acknowledge,
    /// Who listens to the messages to this owner's places goes away, or comes back.
    Listen(u8),
    /// A replica takes over. It may lack the last write.
    FailOver(bool),
}

impl search::World for World {
    type Scope = Scope;
    type Action = Action;

    fn new(scope: Scope) -> Self {
        Self::begin(scope)
    }

    fn cast(&self) -> &Cast<Scope> {
        &self.cast
    }

    fn now_ms(&self) -> i64 {
        self.now_ms
    }

    fn generations(&self) -> Vec<u64> {
        let connections = self.connections.iter();
        connections.map(|one| one.generation).collect()
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
                Doing::Waiting { .. } | Doing::Withheld { .. } => {
                    if scope.has(Event::Leave) {
                        actions.push(Action::TimeUp(at));
                    }
                    if scope.has(Event::SendAway) {
                        actions.push(Action::SendAway(at));
                    }
                }
                Doing::ToHear { .. } => {
                    actions.push(Action::Hear(at));
                    if scope.has(Event::SendAway) {
                        actions.push(Action::Miss(at));
                    }
                }
            }
            if scope.has(Event::Disconnect) {
                actions.push(Action::Disconnect(at));
            }
        }
        for key in keys.clone() {
            let at = usize::from(key);
            if scope.has(Event::Break) {
                actions.push(Action::Break(key));
            }
            let is_there = self.data.value(at).is_there();
            if is_there && self.data.is_expired(at, self.now_ms) {
                actions.push(Action::Expire(key));
            }
            if scope.has(Event::Delete) && is_there {
                actions.push(Action::Delete(key));
            }
            if scope.has(Event::Overwrite) && !self.data.value(at).is_other {
                actions.push(Action::Overwrite(key));
            }
            if scope.has(Event::Rename) && is_there {
                actions.push(Action::Rename(key));
            }
            if scope.has(Event::Redisson) && !is_there {
                for owner in options(self.cast.owners.len()) {
                    actions.push(Action::Redisson(owner, key));
                }
            }
        }
        if scope.has(Event::GoDeaf) {
            let owners = options(self.cast.owners.len());
            actions.extend(owners.map(Action::Listen));
        }
        if scope.has(Event::Pause) {
            actions.push(Action::MayGrant);
        }
        if self.table.awaits_replicas() {
            actions.push(Action::Acknowledge);
        }
        if scope.has(Event::Swap) {
            actions.push(Action::Swap);
        }
        if self.is_wake_due() {
            actions.push(Action::Wake);
            if scope.has(Event::Refuse) {
                actions.push(Action::WakeRefused);
            }
        }
        // A turn of the server's event loop, in which grants are told, takes no time.
        let to_hear = |one: &Connection| matches!(one.doing, Doing::ToHear { .. });
        let is_turn_over = !self.is_wake_due() && !self.connections.iter().any(to_hear);
        if (scope.is_late || is_turn_over) && self.next_time().is_some() {
            actions.push(Action::Pass);
        }
        if scope.has(Event::FailOver) {
            actions.push(Action::FailOver(false));
            if !self.last_write.is_empty() {
                actions.push(Action::FailOver(true));
            }
        }
    }

    fn act(&mut self, action: Action) -> Checked {
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
                self.say(|_| format!("DEL {}", key_name(key)));
                self.write(Write::Delete(key));
                self.change(key, true);
            }
            Action::Overwrite(key) => {
                let key = usize::from(key);
                self.say(|_| format!("SET {} text, untold", key_name(key)));
                self.write(Write::Overwrite(key));
                self.change(key, false);
            }
            Action::Expire(key) => self.notice_expiry(key.into()),
            Action::Rename(from) => self.rename(from.into()),
            Action::Swap => self.swap(),
            Action::Redisson(owner, key) => {
                let (owner, key) = (usize::from(owner), usize::from(key));
                self.say(|_| {
                    let (owner, key) = (owner_name(owner), key_name(key));
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
            Action::TimeUp(at) => self.leave(at.into(), WaitEnd::TimeUp),
            Action::SendAway(at) => self.leave(at.into(), WaitEnd::Gone),
            Action::Disconnect(at) => {
                self.say(|w| format!("{} disconnects", w.cast.client_name(at.into())));
                self.disconnect(at.into());
            }
            Action::Hear(at) => self.hear(at.into()),
            Action::Miss(at) => self.miss(at.into()),
            Action::MayGrant => {
                let may_grant = &mut self.table.settings.may_grant;
                *may_grant = !*may_grant;
                if *may_grant {
                    self.table.everything_touched();
                }
                self.say(|w| format!("grants are possible: {}", w.table.settings.may_grant));
            }
            Action::Acknowledge => self.acknowledge()?,
            Action::Listen(owner) => {
                let owner = usize::from(owner);
                let is_deaf = &mut self.deaf[owner];
                *is_deaf = !*is_deaf;
                let listens = if *is_deaf {
                    "nobody listens"
                } else {
                    "somebody listens"
                };
                self.say(|_| format!("{listens} for {}", owner_name(owner)));
            }
            Action::FailOver(lacks) => self.fail_over(lacks),
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
                Doing::Waiting { key, id, ask } => {
                    form.number(1);
                    form.key(self.cast.key(key));
                    form.waiter(Some(id));
                    ask.take_down(form);
                }
                Doing::ToHear {
                    key,
                    token,
                    ask,
                    was_held,
                } => {
                    form.number(2);
                    form.key(self.cast.key(key));
                    form.token(Some(token));
                    ask.take_down(form);
                    form.flag(was_held);
                }
                Doing::Withheld {
                    key,
                    id,
                    token,
                    grant,
                    until_ms,
                } => {
                    form.number(3);
                    form.key(self.cast.key(key));
                    form.waiter(Some(id));
                    form.token(Some(token));
                    if let Some((ask, was_held)) = grant {
                        ask.take_down(form);
                        form.flag(was_held);
                    }
                    form.flag(grant.is_some());
                    form.time(Some(until_ms));
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
                form.token(known.tied.map(|tied| tied.token));
                if let Some(tied) = known.tied {
                    form.client(tied.older);
                    form.client(Some(tied.newest));
                    form.flag(tied.told_elsewhere);
                }
                form.token(known.over);
                form.token(known.unclaimed.map(|(token, _)| token));
                form.time(known.unclaimed.map(|(_, until_ms)| until_ms));
            }
        }
    }
}
