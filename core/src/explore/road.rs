//! What the module does around each step of the table: it reads, carries out, tells.

use std::rc::Rc;

use super::invariants::{self, Seen, holds};
use super::keyspace::Write;
use super::scope::{ACKS_MS, CLAIM_MS, LEASE_MS};
use super::search::{Broken, Checked, World as _};
use super::world::{Changed, Connection, Doing, PlaceKept, World};
use crate::acks::Acknowledgement;
use crate::error::LockError;
use crate::explore::cast::{key_name, owner_name};
use crate::keys::KeyRef;
use crate::lock::{Lock, Now};
use crate::queue::{Addressee, Place, WaiterId};
use crate::request::ClientId;
use crate::table::{self, Answer, LockTable, Outcome, Step, WORK_A_WAKE};
use crate::token::FencingToken;

/// Answers what a step asks.
struct Asked<'a> {
    world: &'a mut World,
    seen: &'a mut Seen,
    broken: Option<Broken>,
}

impl table::World for Asked<'_> {
    fn asker(&self) -> Option<ClientId> {
        self.seen.asker.map(|at| self.world.client(at))
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> bool {
        let heard = self.world.publish(place.id, token, self.seen);
        heard.unwrap_or_else(|broken| {
            self.broken.get_or_insert(broken);
            false
        })
    }

    fn read(&mut self, key: KeyRef<'_>) -> Lock {
        let world = &mut *self.world;
        let at = world.cast.keys.iter().position(|one| one.as_ref() == key);
        let at = at.expect("a key of the cast");
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
        step: impl FnOnce(&mut LockTable, Now, &mut dyn table::World) -> Outcome<T>,
    ) -> Checked<Outcome<T>> {
        let (mut table, now) = (std::mem::take(&mut self.table), self.now());
        table.settings.acks = self.scope().acks.then(|| Acknowledgement {
            replicas: 1,
            connected: 1,
            timeout_ms: ACKS_MS,
            client: seen.asker.map(|at| self.client(at)),
        });
        let mut asked = Asked {
            world: self,
            seen,
            broken: None,
        };
        let done = step(&mut table, now, &mut asked);
        let broken = asked.broken;
        self.table = table;
        broken.map_or(Ok(done), Err)
    }

    /// Publishes the grant of a place. Returns whether anybody hears it.
    fn publish(&mut self, id: WaiterId, token: FencingToken, seen: &mut Seen) -> Checked<bool> {
        let (key, owner, place) = self.whose_place(id)?;
        holds!(invariants::a_place_that_is_over_is_granted_nothing(
            self, &place
        ))?;
        self.places[key][owner] = None;
        let heard = !self.deaf[owner];
        self.say(|w| {
            let (owner, key) = (owner_name(owner), key_name(key));
            let how = if heard { "is told" } else { "does not hear" };
            format!(
                "{owner} {how} that its place is granted {key}, token {}",
                w.short(token)
            )
        });
        if heard {
            let until_ms = self.now_ms + CLAIM_MS;
            let known = &mut self.known[key][owner];
            known.rely_until(token, until_ms);
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
        let (key, owner, place) = self.whose_place(id)?;
        self.places[key][owner] = None;
        self.say(|_| {
            let (owner, key) = (owner_name(owner), key_name(key));
            format!("the place of {owner} for {key} ends: {answer:?}")
        });
        match answer {
            Answer::Granted(token) => {
                holds!(invariants::a_place_that_is_over_is_granted_nothing(
                    self, &place
                ))?;
                let asked_by = self.client(place.at);
                let was_held = seen.is_some_and(|seen| seen.had(self, owner, *token));
                let heard = !self.deaf[owner];
                self.table.grant_told(id, heard, self.now_ms);
                if !heard {
                    return Ok(place);
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
            Answer::NotGranted if !seen.is_some_and(|seen| seen.gives_up) => {
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
        for (addressee, answer) in step.answers {
            let id = addressee.id();
            if let Addressee::Place(_) = addressee {
                let place = self.tell_place(id, &answer, Some(seen))?;
                seen.answers.push((id, place.at, place.ask, answer));
                continue;
            }
            let at = self.connection_of(addressee.client());
            let doing = at.map(|at| (at, self.connections[at].doing));
            let (at, key, ask) = match (doing, &answer) {
                (Some((at, Doing::Waiting { key, id: its, ask })), _) if its == id => {
                    (at, key, ask)
                }
                // A grant that is not told yet is taken over.
                (
                    Some((
                        at,
                        Doing::ToHear { key, ask, .. }
                        | Doing::Withheld {
                            key,
                            grant: Some((ask, _)),
                            ..
                        },
                    )),
                    Answer::Refused(LockError::Superseded) | Answer::NotGranted,
                ) => (at, key, ask),
                _ => {
                    return Err(Broken::new(
                        "only_who_waits_is_answered",
                        "the table answered a waiter that does not wait".to_owned(),
                    ));
                }
            };
            seen.answers.push((id, at, ask, answer.clone()));
            match answer {
                Answer::Granted(token) => {
                    self.is_told_at_once()?;
                    self.say(|w| {
                        let (client, key) = (w.cast.client_name(at), key_name(key));
                        format!("{client} is handed {key}, token {}", w.short(token))
                    });
                    let owner = self.cast.owner_of[at];
                    let was_held = seen.had(self, owner, token);
                    let known = &mut self.known[key][owner];
                    known.rely_until(token, self.now_ms + LEASE_MS);
                    self.connections[at].doing = Doing::ToHear {
                        key,
                        token,
                        ask,
                        was_held,
                    };
                }
                Answer::Refused(error) => {
                    self.lose_grant(at);
                    self.say(|w| format!("{} is told {}", w.cast.client_name(at), w.code(&error)));
                    self.connections[at].doing = Doing::Nothing;
                }
                Answer::NotGranted if seen.gives_up || seen.released => {
                    self.say(|w| format!("{} has given up", w.cast.client_name(at)));
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
        for at in 0..self.connections.len() {
            let Doing::Waiting { key, id, ask } = self.connections[at].doing else {
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
            self.connections[at].doing = Doing::Withheld {
                key,
                id,
                token,
                grant: Some((ask, seen.had(self, owner, token))),
                until_ms: self.now_ms + LEASE_MS,
            };
        }
    }

    /// Where replicas have to acknowledge what is told, nothing is.
    pub(super) fn is_told_at_once(&self) -> Checked {
        match self.scope().acks {
            true => Err(Broken::new("what_is_told_is_acknowledged", String::new())),
            false => Ok(()),
        }
    }

    /// The connection whose reply is withheld by this name.
    fn withheld(&self, id: WaiterId) -> Checked<usize> {
        let mut all = self.connections.iter();
        let is_it =
            |one: &Connection| matches!(one.doing, Doing::Withheld { id: its, .. } if its == id);
        all.position(is_it).ok_or_else(|| {
            let shown_by = "the table told of a reply that was not withheld".to_owned();
            Broken::new("only_what_was_withheld_is_told_later", shown_by)
        })
    }

    /// Replicas acknowledge all that was written, and what waits for that is told.
    pub(super) fn acknowledge(&mut self) -> Checked {
        self.say(|_| "a replica acknowledges all".to_owned());
        let offset = 0;
        self.table.offset_known(offset);
        let (replies, _) = self.table.acknowledged(1, vec![offset], usize::MAX);
        for (id, _) in replies {
            let at = self.withheld(id)?;
            let Doing::Withheld {
                key,
                token,
                grant,
                until_ms,
                ..
            } = self.connections[at].doing
            else {
                continue;
            };
            let (stored, now) = (self.read(key), self.now());
            let answer = self.table.tell(id, stored, now).map(|(_, answer)| answer);
            self.say(|w| format!("{} is told {answer:?}", w.cast.client_name(at)));
            let client = self.client(at);
            let known = &mut self.known[key][self.cast.owner_of[at]];
            self.connections[at].doing = match (answer, grant) {
                (Some(Answer::Granted(token)), Some((ask, was_held))) => {
                    known.rely_until(token, until_ms);
                    Doing::ToHear {
                        key,
                        token,
                        ask,
                        was_held,
                    }
                }
                (Some(Answer::Renewed(true)), None) => {
                    known.renewed(client, token, until_ms);
                    Doing::Nothing
                }
                _ => Doing::Nothing,
            };
        }
        Ok(())
    }

    pub(super) fn wake(&mut self) -> Checked {
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
            let stored = self.read(key);
            let mut seen = Seen::before(self, key, None);
            self.table.settings.reads_other_keys = true;
            let done = self.step(&mut seen, |table, now, world| {
                table.do_due(due, stored, now, world)
            })?;
            self.apply(done.step, &mut seen)?;
            invariants::check_step(self, &seen)?;
        }
        self.close_clients()?;
        self.table.begin_turns_anew();
        Ok(())
    }

    pub(super) fn wake_refused(&mut self) -> Checked {
        self.say(|_| "the timer wakes, and the server refuses writes".to_owned());
        self.end_waits()?;
        self.close_clients()?;
        let now = self.now();
        let again_ms = self.table.put_off_everything(now, WORK_A_WAKE);
        self.close_clients()?;
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

    pub(super) fn close_clients(&mut self) -> Checked {
        for client in self.table.take_clients_to_close(WORK_A_WAKE) {
            let at = self.connection_of(client);
            holds!(invariants::who_is_closed_has_lost_a_session(self, client))?;
            if let Some(at) = at {
                self.say(|w| format!("the connection of {} is closed", w.cast.client_name(at)));
                self.disconnect(at);
            }
        }
        Ok(())
    }
}
