//! What the module does around each step of the table: it reads, carries out, tells.

use std::rc::Rc;

use super::invariants::{self, Seen, holds};
use super::keyspace::Write;
use super::scope::{CLAIM_MS, LEASE_MS};
use super::search::Broken;
use super::world::{Changed, Checked, Doing, PlaceKept, World};
use crate::error::LockError;
use crate::lock::Lock;
use crate::queue::{Addressee, WaiterId};
use crate::table::{Answer, Done, Offer, Progress, Step, WORK_A_WAKE};

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

    /// Answers what a step asks, and takes it to its end.
    pub(super) fn carry_out<T>(
        &mut self,
        mut progress: Progress<T>,
        seen: &mut Seen,
    ) -> Checked<Done<T>> {
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
                let stored = self.read(at);
                self.changed[at] = changed;
                looked_at.push(stored.unwrap_or_default());
            }
            seen.questions += 1;
            progress = self.table.go_on(*question, looked_at);
        }
    }

    /// Publishes what is offered to a place.
    pub(super) fn publish<T>(&mut self, offer: Offer<T>, seen: &mut Seen) -> Checked<Progress<T>> {
        let (id, token) = (offer.place().id, offer.token());
        let (key, owner, place) = self.whose_place(id)?;
        holds!(invariants::a_place_that_is_over_is_granted_nothing(
            self, &place
        ))?;
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
            known.rely_until(token, until_ms);
            known.tell(token, place.ask);
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
        Ok(self.table.offered(offer, heard, 1))
    }

    /// A place ends, or its owner holds the lock by other means.
    pub(super) fn tell_place(
        &mut self,
        id: WaiterId,
        answer: &Answer,
        gives_up: bool,
    ) -> Checked<PlaceKept> {
        let (key, owner, place) = self.whose_place(id)?;
        self.places[key][owner] = None;
        self.say(|w| {
            let (owner, key) = (w.cast.owner_name(owner), w.cast.key_name(key));
            format!("the place of {owner} for {key} ends: {answer:?}")
        });
        match answer {
            Answer::Granted(token) => {
                holds!(invariants::a_place_that_is_over_is_granted_nothing(
                    self, &place
                ))?;
                let session = place.session.map(|client| (client, *token));
                let known = &mut self.known[key][owner];
                known.bound_to = session.or(known.bound_to);
                // The message names a hold that there is, and adds none.
                if known.told.replace(*token) != Some(*token) {
                    known.holds = 0;
                }
            }
            Answer::NotGranted if !gives_up => {
                holds!(invariants::only_a_place_that_is_over_ends(self, &place))?;
            }
            _ => {}
        }
        Ok(place)
    }

    /// Writes what is to be written, and answers.
    pub(super) fn apply(&mut self, step: Step, seen: &mut Seen) -> Checked<()> {
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
                    known.rely_until(token, self.now_ms + LEASE_MS);
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

    pub(super) fn wake(&mut self) -> Checked<()> {
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

    pub(super) fn wake_refused(&mut self) -> Checked<()> {
        self.say(|_| "the timer wakes, and the server refuses writes".to_owned());
        self.end_waits()?;
        self.close_clients()?;
        let again_ms = self.table.put_off_everything(self.now_ms, WORK_A_WAKE);
        self.close_clients()?;
        self.retry_at_ms = again_ms;
        Ok(())
    }

    pub(super) fn end_waits(&mut self) -> Checked<()> {
        for (addressee, answer) in self.table.give_up(self.now(), WORK_A_WAKE) {
            self.tell_place(addressee.id(), &answer, false)?;
        }
        Ok(())
    }

    pub(super) fn close_clients(&mut self) -> Checked<()> {
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
