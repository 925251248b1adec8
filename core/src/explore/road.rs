//! What the module does around each step of the table: it reads, carries out, tells.

use std::rc::Rc;

use super::invariants::{self, Seen, holds};
use super::keyspace::Write;
use super::scope::Ask;
use super::search::{Checked, World as _, broken};
use super::world::{Changed, Connection, Doing, Grant, PlaceKept, World};
use crate::acks::Acknowledgement;
use crate::error::LockError;
use crate::explore::cast::{key_name, owner_name};
use crate::keys::KeyRef;
use crate::lock::{Lock, Now};
use crate::queue::{Addressee, Place, WaiterId};
use crate::request::ClientId;
use crate::table::{self, Answer, LockTable, Step, WORK_A_WAKE};
use crate::token::FencingToken;

/// Answers what a step asks.
struct Asked<'a> {
    world: &'a mut World,
    seen: &'a mut Seen,
}

impl table::World for Asked<'_> {
    fn asker(&self) -> Option<ClientId> {
        self.seen.asker.map(|at| self.world.client(at))
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> bool {
        let heard = self.world.publish(place.id, token, self.seen);
        heard.expect("a place that may be told")
    }

    fn read(&mut self, key: KeyRef<'_>) -> Lock {
        let world = &mut *self.world;
        let at = world.cast.number(key);
        // A look does not count as one that ends what is over.
        world.notice_expiry(at);
        let changed = world.changed[at];
        let stored = world.read(at);
        world.changed[at] = changed;
        self.seen.questions += 1;
        stored.unwrap_or_default()
    }
}

impl World {
    /// Opens and reads a lock as the module does.
    pub(super) fn read(&mut self, key: usize) -> Result<Lock, LockError> {
        self.notice_expiry(key);
        let lock = self.data.read(key);
        if lock.is_ok() {
            self.changed[key] = Changed::Nothing;
        }
        lock
    }

    /// The same for a command, which is refused where there is no lock.
    pub(super) fn read_for_command(&mut self, key: usize) -> Option<Lock> {
        let read = self.read(key);
        if read.is_err() {
            self.say(|_| "-WRONGTYPE".to_owned());
            let cast = Rc::clone(&self.cast);
            self.table.forget_ended(cast.key(key));
        }
        read.ok()
    }

    /// Takes a step.
    pub(super) fn step<T>(
        &mut self,
        seen: &mut Seen,
        take: impl FnOnce(&mut LockTable, Now, &mut dyn table::World, &mut Step) -> T,
    ) -> Checked<(T, Step)> {
        let (mut step, now, before) = (Step::default(), self.now(), self.table.to_close().clone());
        let mut table = std::mem::take(&mut self.table);
        table.settings.acks = (self.replicas > 0).then(|| Acknowledgement {
            replicas: self.replicas,
            connected: self.replicas,
            timeout_ms: self.scope().times.acks,
            client: seen.asker.map(|at| self.client(at)),
        });
        let result = take(&mut table, now, &mut Asked { world: self, seen }, &mut step);
        self.table = table;
        holds!(invariants::who_is_to_be_closed_has_lost_a_session(
            self, &before
        ))?;
        Ok((result, step))
    }

    /// Publishes the grant of a place. Returns whether anybody hears it.
    fn publish(&mut self, id: WaiterId, token: FencingToken, seen: &mut Seen) -> Checked<bool> {
        let place = self.take_place(id)?;
        let (key, owner) = (place.key, place.owner);
        holds!(invariants::a_place_that_is_over_is_granted_nothing(
            self, &place
        ))?;
        let heard = self.hears(&place);
        self.say(|w| {
            let (owner, key, token) = (owner_name(owner), key_name(key), w.short(token));
            format!("the place of {owner} is granted {key}, token {token}, heard: {heard}")
        });
        if heard {
            let until_ms = self.now_ms + self.first_lease(place.ask);
            self.rely(key, owner, token, until_ms);
            let known = &mut self.known[key][owner];
            known.tell(token, place.ask);
            known.unclaimed = Some((token, until_ms));
            if let Some(client) = place.session {
                known.tie(client, token, false);
            }
            let answer = Answer::Granted(token);
            seen.answers.push((id, place.at, place.ask, answer));
        } else {
            seen.unheard.push(owner);
        }
        Ok(heard)
    }

    /// A place ends, or its owner holds the lock by other means.
    pub(super) fn tell_place(
        &mut self,
        id: WaiterId,
        answer: &Answer,
        seen: Option<&Seen>,
    ) -> Checked<PlaceKept> {
        let place = self.take_place(id)?;
        let (key, owner) = (place.key, place.owner);
        self.say(|_| {
            let (owner, key) = (owner_name(owner), key_name(key));
            format!("the place of {owner} for {key} ends: {answer:?}")
        });
        match answer {
            Answer::Granted(token) => {
                if place.is_in_queue_of(key) {
                    holds!(invariants::a_place_that_is_over_is_granted_nothing(
                        self, &place
                    ))?;
                }
                let asked_by = self.client(place.at);
                let was_held = seen.is_some_and(|seen| seen.had(self, owner, *token));
                let heard = self.hears(&place);
                self.table.grant_told(id, heard, self.now_ms);
                if !heard {
                    return Ok(place);
                }
                if self.scope().is_a_node {
                    let until_ms = self.now_ms + self.first_lease(place.ask);
                    let until_ms = place.withheld_until_ms.unwrap_or(until_ms);
                    self.rely(key, owner, *token, until_ms);
                }
                let known = &mut self.known[key][owner];
                match place.session {
                    Some(client) => known.tie(client, *token, was_held),
                    None => known.told_by(asked_by, *token),
                }
                // The message names a hold that there is, and adds none.
                if known.told.replace(*token) != Some(*token) {
                    known.holds = 0;
                }
            }
            Answer::NotGranted
                if place.is_in_queue_of(key) && !seen.is_some_and(|seen| seen.gives_up) =>
            {
                holds!(invariants::only_a_place_that_is_over_ends(self, &place))?;
            }
            _ => {}
        }
        Ok(place)
    }

    /// Writes what is to be written, and answers.
    pub(super) fn apply(&mut self, step: Step, seen: &mut Seen) -> Checked {
        if !step.effects.is_empty() {
            self.write(Write::Effects(seen.key, step.effects.to_vec()));
        }
        if step.stream_goes_on && self.scope().is_a_node {
            self.written.push(Write::Effects(seen.key, Vec::new()));
        }
        for (addressee, answer) in step.answers {
            let id = addressee.id();
            if let Addressee::Place(_) = addressee {
                let place = self.tell_place(id, &answer, Some(seen))?;
                seen.answers.push((id, place.at, place.ask, answer));
                continue;
            }
            let at = self.connection_of(addressee.client());
            let asked = at.and_then(|at| match (self.connections[at].doing, &answer) {
                (Doing::Waiting(its, key, ask), _) if its == id => Some((at, key, ask)),
                // A grant that is not told yet is taken over.
                (
                    Doing::ToHear(grant) | Doing::Withheld(_, grant),
                    Answer::Refused(LockError::Superseded) | Answer::NotGranted,
                ) => Some((at, grant.key, grant.ask?)),
                _ => None,
            });
            let Some((at, key, ask)) = asked else {
                return broken("only_who_waits_is_answered", format!("{addressee:?}"));
            };
            seen.answers.push((id, at, ask, answer.clone()));
            match answer {
                Answer::Granted(token) => {
                    if self.replicas > 0 {
                        return broken("what_is_told_is_acknowledged", self.picture());
                    }
                    self.say(|w| {
                        let (client, key) = (w.cast.client_name(at), key_name(key));
                        format!("{client} is handed {key}, token {}", w.short(token))
                    });
                    self.is_to_hear(at, self.grant(seen, at, key, ask, token));
                }
                Answer::Refused(error) => {
                    self.lose_grant(at);
                    self.say(|w| format!("{} is told -{error}", w.cast.client_name(at)));
                    self.connections[at].doing = Doing::Nothing;
                }
                Answer::NotGranted if seen.gives_up || seen.released => {
                    self.say(|w| format!("{} has given up", w.cast.client_name(at)));
                    self.connections[at].doing = Doing::Nothing;
                }
                Answer::NotGranted | Answer::Renewed(_) => {
                    let shown_by = format!("the table told a waiter {answer:?}");
                    return broken("only_what_was_withheld_is_told_later", shown_by);
                }
            }
        }
        self.withhold_hand_offs(seen);
        // Places were told before the others.
        seen.answers.sort_by_key(|(.., answer)| match answer {
            Answer::Granted(token) => Some(*token),
            _ => None,
        });
        Ok(())
    }

    /// Who waited was granted the lock, and is told once replicas have acknowledged it.
    fn withhold_hand_offs(&mut self, seen: &mut Seen) {
        for at in 0..self.places.len() {
            let place = self.places[at];
            if place.is_in_queue_of(seen.key) && self.table.told_by(place.id).is_some() {
                let until_ms = self.now_ms + self.first_lease(place.ask);
                self.places[at].withheld_until_ms = Some(until_ms);
            }
        }
        for at in 0..self.connections.len() {
            let Doing::Waiting(id, key, ask) = self.connections[at].doing else {
                continue;
            };
            if self.table.told_by(id).is_none() {
                continue;
            }
            let owner = self.cast.owner_of[at];
            let token = self.holds(key, owner).and_then(|held| held.token);
            let token = token.expect("it was just granted");
            self.say(|w| {
                let (client, key) = (w.cast.client_name(at), key_name(key));
                format!("{client} is to be told of {key}, token {}", w.short(token))
            });
            seen.answers.push((id, at, ask, Answer::Granted(token)));
            let grant = self.grant(seen, at, key, ask, token);
            self.connections[at].doing = Doing::Withheld(id, grant);
        }
    }

    /// What a connection that waited is granted now.
    fn grant(&self, seen: &Seen, at: usize, key: usize, ask: Ask, token: FencingToken) -> Grant {
        let was_held = seen.had(self, self.cast.owner_of[at], token);
        Grant::new(key, token, Some(ask), was_held, self.now_ms + ask.lease_ms)
    }

    /// A client is about to hear of its grant, and may rely on it.
    fn is_to_hear(&mut self, at: usize, grant: Grant) {
        let owner = self.cast.owner_of[at];
        self.rely(grant.key, owner, grant.token, grant.until_ms);
        self.connections[at].doing = Doing::ToHear(grant);
        if self.scope().is_a_node {
            self.hear(at);
        }
    }

    /// The connection whose reply is withheld by this name.
    fn withheld(&self, id: WaiterId) -> Checked<usize> {
        let is_it = |one: &Connection| matches!(one.doing, Doing::Withheld(its, _) if its == id);
        match self.connections.iter().position(is_it) {
            Some(at) => Ok(at),
            None => broken("only_what_was_withheld_is_told_later", format!("{id:?}")),
        }
    }

    /// Replicas have acknowledged so much, and what waits for that is told. All that was
    /// written reaches to this offset.
    pub(super) fn acknowledge(&mut self, offset: i64, acked: Vec<i64>) -> Checked {
        self.table.offset_known(offset);
        let (replies, _) = self.table.acknowledged(self.replicas, acked, usize::MAX);
        for (id, _) in replies {
            if let Some(&place) = self.places.iter().find(|place| place.id == id) {
                let (stored, now) = (self.read(place.key), self.now());
                let told = self.table.tell(id, stored, now);
                let answer = told.map_or(Answer::NotGranted, |(_, answer)| answer);
                self.tell_place(id, &answer, None)?;
                continue;
            }
            let at = self.withheld(id)?;
            let Doing::Withheld(_, grant) = self.connections[at].doing else {
                continue;
            };
            let key = grant.key;
            let (stored, now) = (self.read(key), self.now());
            let answer = self.table.tell(id, stored, now).map(|(_, answer)| answer);
            self.say(|w| format!("{} is told {answer:?}", w.cast.client_name(at)));
            let (client, owner) = (self.client(at), self.cast.owner_of[at]);
            self.connections[at].doing = Doing::Nothing;
            match (answer, grant.ask) {
                (Some(Answer::Granted(token)), Some(_)) => {
                    self.is_to_hear(at, Grant { token, ..grant });
                }
                (Some(Answer::Renewed(true)), None) => {
                    self.rely(key, owner, grant.token, grant.until_ms);
                    self.known[key][owner].renewed(client, grant.token);
                }
                _ => self.tell_of(owner, None),
            }
        }
        Ok(())
    }

    pub(super) fn wake(&mut self) -> Checked {
        self.say(|_| "the timer wakes".to_owned());
        self.retry_at_ms = None;
        self.end_waits()?;
        self.close_clients();
        for _ in 0..WORK_A_WAKE {
            let Some(due) = self.table.take_due(self.now_ms) else {
                break;
            };
            let key = self.cast.number(due.key.as_ref());
            let stored = self.read(key);
            let mut seen = Seen::before(self, key, None);
            self.table.settings.reads_other_keys = true;
            let ((), step) = self.step(&mut seen, |table, now, world, step| {
                table.do_due(due, stored, now, world, step);
            })?;
            self.apply(step, &mut seen)?;
            invariants::check_step(self, &seen)?;
        }
        self.close_clients();
        self.table.begin_turns_anew();
        Ok(())
    }

    pub(super) fn wake_refused(&mut self) -> Checked {
        self.say(|_| "the timer wakes, and the server refuses writes".to_owned());
        self.end_waits()?;
        self.close_clients();
        let (now, before) = (self.now(), self.table.to_close().clone());
        let again_ms = self.table.put_off_everything(now, WORK_A_WAKE);
        holds!(invariants::who_is_to_be_closed_has_lost_a_session(
            self, &before
        ))?;
        self.close_clients();
        self.retry_at_ms = again_ms;
        Ok(())
    }

    pub(super) fn end_waits(&mut self) -> Checked {
        self.table.end_some_gone(WORK_A_WAKE);
        for (addressee, answer) in self.table.give_up(self.now(), WORK_A_WAKE) {
            if let Addressee::Place(_) = addressee {
                self.tell_place(addressee.id(), &answer, None)?;
                continue;
            }
            let at = self.withheld(addressee.id())?;
            self.say(|w| format!("{} is told {answer:?}", w.cast.client_name(at)));
            self.connections[at].doing = Doing::Nothing;
        }
        Ok(())
    }

    pub(super) fn close_clients(&mut self) {
        for client in self.table.take_clients_to_close(WORK_A_WAKE) {
            if let Some(at) = self.connection_of(client) {
                self.say(|w| format!("the connection of {} is closed", w.cast.client_name(at)));
                self.disconnect(at);
            }
        }
    }
}
