//! Commands.

use std::rc::Rc;

use super::invariants::{self, Seen, holds};
use super::scope::Ask;
use super::search::{Checked, World as _, broken};
use super::world::{Doing, Grant, PlaceKept, World};
use crate::effect::Effect;
use crate::error::LockError;
use crate::explore::cast::key_name;
use crate::lock::{Lock, Released};
use crate::queue::{Wait, WaiterId};
use crate::request::{
    AcquireRequest, HoldNumber, Lease, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use crate::table::{Acquired, Step, Transition};
use crate::token::FencingToken;

impl World {
    /// A client sends a command for a lock, and the module reads it, if it is one.
    fn command(
        &mut self,
        at: usize,
        key: usize,
        what: impl FnOnce(&str) -> String,
    ) -> Option<(Lock, Seen)> {
        self.say(|w| format!("{} {}", w.cast.client_name(at), what(key_name(key))));
        let stored = self.read_for_command(key)?;
        Some((stored, Seen::before(self, key, Some(at))))
    }

    /// Has the table do what a command says.
    fn obey<T>(
        &mut self,
        seen: &mut Seen,
        mut stored: Lock,
        command: impl FnOnce(&mut Transition<'_>) -> Result<T, LockError>,
    ) -> Checked<(Result<T, LockError>, Step)> {
        let (cast, key) = (Rc::clone(&self.cast), seen.key);
        self.step(seen, |table, now, world, step| {
            table.step(cast.key(key), &mut stored, now, world, step, command)
        })
    }

    /// A client is told of its hold, now or once replicas have acknowledged it.
    fn reply(&mut self, at: usize, withheld: Option<WaiterId>, grant: Grant) -> Checked {
        if let Some(id) = withheld {
            self.connections[at].doing = Doing::Withheld(id, grant);
            return Ok(());
        }
        if self.replicas > 0 {
            return broken("what_is_told_is_acknowledged", self.picture());
        }
        let (client, owner) = (self.client(at), self.cast.owner_of[at]);
        self.rely(grant.key, owner, grant.token, grant.until_ms);
        let known = &mut self.known[grant.key][owner];
        match grant.ask {
            None => known.renewed(client, grant.token),
            Some(ask) => {
                known.tell(grant.token, ask);
                known.unclaimed = None;
                known.bind(client, ask, grant.token, grant.was_held);
            }
        }
        Ok(())
    }

    pub(super) fn acquire(&mut self, at: usize, key: usize, ask: Ask) -> Checked {
        let (owner, client) = (self.owner(at).clone(), self.client(at));
        let request = AcquireRequest {
            owner,
            lease: lease(ask.lease_ms),
            hold: (ask.hold > 0).then(|| HoldNumber::new(ask.hold).unwrap()),
            limit: ask.limit,
            session: ask.session.then_some(client),
        };
        let wait = ask.waits.then(|| Wait {
            client,
            until_ms: ask.place.then(|| self.now_ms + self.scope().times.place),
            channel: ask.place.then(|| b"channel"[..].into()),
        });
        let command = self.command(at, key, |key| format!("acquires {key} {}", ask.words));
        let Some((stored, mut seen)) = command else {
            return Ok(());
        };
        let number = self.cast.owner_of[at];
        let (own, was_over) = (self.own(key, number, ask), self.has_place_over(key, number));
        seen.kept = own;
        self.table.settings.reads_other_keys = self.scope().reads_other_keys;
        let (result, done) = self.obey(&mut seen, stored, |step| step.acquire(request, wait))?;
        // Whether it was told before that it holds the lock.
        let mut was_held = false;
        if let Ok(Acquired::Granted(token)) = result {
            seen.granted = Some(token);
            was_held = match self.is_untold(key, number, token) {
                true => self.known[key][number].told == Some(token),
                false => seen.had(self, number, token),
            };
        }
        let withheld = done.withheld;
        if was_over && ask.place && result.is_ok() {
            // Only the later request is told of.
            self.leave_place(key, number);
        }
        // A waiter that was handed the lock came before.
        self.apply(done, &mut seen)?;
        match result {
            Ok(Acquired::Queued(id)) => {
                holds!(invariants::who_asks_again_keeps_its_position(self, own, id))?;
                self.queued(at, key, ask, id);
                seen.queued = own.is_none().then_some(id);
            }
            Ok(Acquired::Granted(token)) => {
                self.leave_place(key, number);
                self.say(|w| format!("token {}", w.short(token)));
                let until_ms = self.now_ms + ask.lease_ms;
                let grant = Grant::new(key, token, Some(ask), was_held, until_ms);
                self.reply(at, withheld, grant)?;
            }
            Ok(Acquired::Busy) => self.say(|_| "null".to_owned()),
            Err(error) => {
                self.say(|_| format!("-{error}"));
                if let LockError::Deadlock { cycle } = error {
                    seen.refused = Some((at, ask, cycle));
                }
            }
        }
        invariants::check_step(self, &seen)
    }

    /// The waiter of this owner whose position its next request takes over.
    fn own(&self, key: usize, owner: usize, ask: Ask) -> Option<WaiterId> {
        let (id, earlier) = self.waiter_of(key, owner)?;
        (earlier.limit == ask.limit && !self.has_place_over(key, owner)).then_some(id)
    }

    fn queued(&mut self, at: usize, key: usize, ask: Ask, id: WaiterId) {
        if ask.place {
            let owner = self.cast.owner_of[at];
            self.leave_place(key, owner);
            self.places.push(PlaceKept {
                id,
                key,
                owner,
                at,
                ask,
                until_ms: self.now_ms + self.scope().times.place,
                session: ask.session.then(|| self.client(at)),
                withheld_until_ms: None,
                is_left: false,
            });
        } else {
            self.connections[at].doing = Doing::Waiting(id, key, ask);
        }
        self.say(|_| "queued".to_owned());
    }

    /// The token that a command of this connection names.
    pub(super) fn named(&self, at: usize, key: usize, words: &str) -> Option<FencingToken> {
        let told = self.known[key][self.cast.owner_of[at]].told;
        match words {
            "FENCE=own" => told.or(stale()),
            "FENCE=other" => stale(),
            _ => None,
        }
    }

    pub(super) fn release(&mut self, at: usize, key: usize, words: &str) -> Checked {
        let owner = self.owner(at).clone();
        let number = self.cast.owner_of[at];
        let command = self.command(at, key, |key| format!("releases {key} {words}"));
        let Some((stored, mut seen)) = command else {
            return Ok(());
        };
        let held = self.holds(key, number);
        let extent = match words {
            "ALL" => ReleaseExtent::All,
            "HOLD=1" => ReleaseExtent::Hold(HoldNumber::new(1).unwrap()),
            _ => ReleaseExtent::One,
        };
        let request = ReleaseRequest {
            owner,
            token: self.named(at, key, words),
            extent,
        };
        seen.gives_up = request.token.is_none() && held.is_none();
        let (result, done) = self.obey(&mut seen, stored, |step| step.release(&request))?;
        let client = self.client(at);
        self.say(|_| format!("{result:?}"));
        let known = &mut self.known[key][number];
        match result {
            Ok(Released::LastHold) => {
                known.promise = None;
                // A place of its own may have been granted the lock since.
                let released = held.as_ref().and_then(|held| held.token);
                known.tied = known.tied.filter(|tied| released != Some(tied.token));
                seen.released = held.is_some();
            }
            Ok(Released::StillHeld) => {
                known.told = held.as_ref().and_then(|held| held.token);
                if let Some(token) = known.told {
                    known.told_by(client, token);
                }
                known.holds = match extent {
                    ReleaseExtent::Hold(hold) => hold.count_without(),
                    _ => (known.holds - 1).max(1),
                };
            }
            _ => {}
        }
        holds!(invariants::releases_need_a_hold(
            self, &held, &request, &result
        ))?;
        let gives_up = seen.gives_up;
        self.apply(done, &mut seen)?;
        if gives_up && self.waiter_of(key, number).is_some() {
            return broken("a_release_gives_a_wait_up", self.picture());
        }
        invariants::check_step(self, &seen)
    }

    /// Returns whether the lock was renewed.
    pub(super) fn renew(
        &mut self,
        at: usize,
        key: usize,
        lease_ms: i64,
        token: Option<FencingToken>,
    ) -> Checked<bool> {
        let owner = self.owner(at).clone();
        let number = self.cast.owner_of[at];
        let command = self.command(at, key, |key| format!("renews {key} for {lease_ms} ms"));
        let Some((stored, mut seen)) = command else {
            return Ok(false);
        };
        let held = self.holds(key, number);
        let request = RenewRequest {
            owner,
            lease: lease(lease_ms),
            token,
        };
        let (result, done) = self.obey(&mut seen, stored, |step| step.renew(&request))?;
        let renewed = result == Ok(true);
        self.say(|_| i32::from(renewed).to_string());
        holds!(invariants::renewals_need_a_hold(
            self, &held, &request, renewed
        ))?;
        // A hold of Redisson's gets its token now.
        let given = done.effects.iter().find_map(|effect| match effect {
            Effect::SetHolder { new_token, .. } => *new_token,
            _ => None,
        });
        let held = held.filter(|_| renewed);
        if let Some(token) = held.and_then(|held| held.token.or(given)) {
            let until_ms = self.now_ms + lease_ms;
            self.may_shorten(key, number, until_ms);
            let grant = Grant::new(key, token, None, true, until_ms);
            self.reply(at, done.withheld, grant)?;
        }
        self.apply(done, &mut seen)?;
        invariants::check_step(self, &seen)?;
        Ok(renewed)
    }

    /// From sending a renewal on, its owner relies on the shorter of the two leases.
    fn may_shorten(&mut self, key: usize, owner: usize, by_ms: i64) {
        if let Some((_, until_ms)) = &mut self.known[key][owner].promise {
            *until_ms = by_ms.min(*until_ms);
        }
        for (one, &its_owner) in self.connections.iter_mut().zip(&self.cast.owner_of) {
            if let Doing::Withheld(_, grant) = &mut one.doing
                && (grant.key, its_owner) == (key, owner)
            {
                grant.until_ms = by_ms.min(grant.until_ms);
            }
        }
    }

    pub(super) fn break_lock(&mut self, key: usize) -> Checked {
        self.say(|_| format!("BREAK {}", key_name(key)));
        let Some(stored) = self.read_for_command(key) else {
            return Ok(());
        };
        let mut seen = Seen::before(self, key, None);
        let (result, done) = self.obey(&mut seen, stored, |step| step.break_lock(None))?;
        let broken = result == Ok(true);
        self.say(|_| i32::from(broken).to_string());
        if broken {
            seen.released = true;
            for (number, owner) in self.cast.owners.iter().enumerate() {
                let known = &mut self.known[key][number];
                // A session that was lost before may be told of by its end, and a place may
                // have been told of its grant.
                let before = seen.token_before(owner);
                known.promise = known
                    .promise
                    .filter(|&(its, _)| before.is_some_and(|it| it < its));
                known.tied = known.tied.filter(|tied| before != Some(tied.token));
            }
        }
        self.apply(done, &mut seen)?;
        invariants::check_step(self, &seen)
    }
}

fn lease(ms: i64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

fn stale() -> Option<FencingToken> {
    FencingToken::new(1).ok()
}
