//! Commands.

use std::rc::Rc;

use super::invariants::{self, Seen, holds};
use super::scope::{Ask, Extent, LEASE_MS, Named, PLACE_MS};
use super::search::{Broken, Checked, World as _};
use super::world::{Doing, PlaceKept, World};
use crate::effect::Effect;
use crate::error::LockError;
use crate::explore::cast::{key_name, owner_name};
use crate::lock::{Lock, Released};
use crate::queue::{Wait, WaiterId};
use crate::request::{
    AcquireRequest, HoldNumber, Lease, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use crate::table::Acquired;
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

    pub(super) fn acquire(&mut self, at: usize, key: usize, ask: Ask) -> Checked {
        let owner = self.owner(at).clone();
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
        let cast = Rc::clone(&self.cast);
        let command = self.command(at, key, |key| format!("acquires {key}{ask}"));
        let Some((stored, mut seen)) = command else {
            return Ok(());
        };
        let number = self.cast.owner_of[at];
        let own = self.own(key, number, ask);
        seen.kept = own;
        self.table.settings.reads_other_keys = self.scope().reads_other_keys;
        let done = self.step(&mut seen, |table, now, world| {
            table.step(cast.key(key), stored, now, world, |step| {
                step.acquire(request, wait)
            })
        })?;
        // Whether it was told before that it holds the lock.
        let mut was_held = false;
        if let Ok(Acquired::Granted(token)) = done.result {
            seen.granted = Some(token);
            was_held = match self.is_untold(key, number, token) {
                true => self.known[key][number].told == Some(token),
                false => seen.had(self, number, token),
            };
        }
        let withheld = done.step.withheld;
        // Whoever was handed the lock came before.
        self.apply(done.step, &mut seen)?;
        match done.result {
            Ok(Acquired::Queued(id)) => {
                holds!(invariants::who_asks_again_keeps_its_position(
                    self, at, own, id
                ))?;
                self.queued(at, key, ask, id);
                seen.queued = own.is_none().then_some(id);
            }
            Ok(Acquired::Granted(token)) => {
                // The later one alone is told of, on the channel of its place.
                self.places[key][number] = None;
                self.say(|w| format!("token {}", w.short(token)));
                let until_ms = self.now_ms + LEASE_MS;
                if let Some(id) = withheld {
                    self.connections[at].doing = Doing::Withheld {
                        key,
                        id,
                        token,
                        grant: Some((ask, was_held)),
                        until_ms,
                    };
                    return invariants::check_step(self, &seen);
                }
                self.is_told_at_once()?;
                let known = &mut self.known[key][number];
                known.rely_until(token, until_ms);
                known.tell(token, ask);
                known.unclaimed = None;
                match ask.session {
                    true => known.tie(client, token, was_held),
                    false => known.told_by(client, token),
                }
            }
            Ok(Acquired::Busy) => self.say(|_| "null".to_owned()),
            Err(error) => {
                self.say(|w| w.code(&error));
                if let LockError::Deadlock { cycle } = error {
                    seen.refused = Some((at, ask, cycle));
                }
            }
        }
        invariants::check_step(self, &seen)
    }

    /// The waiter of this owner whose position its next request takes over.
    fn own(&mut self, key: usize, owner: usize, ask: Ask) -> Option<WaiterId> {
        let (id, earlier) = self.waiter_of(key, owner)?;
        if earlier.place
            && let Some(place) = self.places[key][owner]
            && self.is_over(&place)
        {
            // The others are told of its end.
            if ask.place {
                self.places[key][owner] = None;
            }
            return None;
        }
        (earlier.limit == ask.limit).then_some(id)
    }

    fn queued(&mut self, at: usize, key: usize, ask: Ask, id: WaiterId) {
        if ask.place {
            self.places[key][self.cast.owner_of[at]] = Some(self.place(id, at, ask));
        } else {
            self.connections[at].doing = Doing::Waiting { key, id, ask };
        }
        self.say(|_| "queued".to_owned());
    }

    pub(super) fn place(&self, id: WaiterId, at: usize, ask: Ask) -> PlaceKept {
        PlaceKept {
            id,
            at,
            ask,
            until_ms: self.now_ms + PLACE_MS,
            session: ask.session.then(|| self.client(at)),
        }
    }

    pub(super) fn release(&mut self, at: usize, key: usize, what: Extent) -> Checked {
        let owner = self.owner(at).clone();
        let number = self.cast.owner_of[at];
        let command = self.command(at, key, |key| format!("releases {key}{what}"));
        let Some((stored, mut seen)) = command else {
            return Ok(());
        };
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
        let cast = Rc::clone(&self.cast);
        let done = self.step(&mut seen, |table, now, world| {
            table.step(cast.key(key), stored, now, world, |step| {
                step.release(&request)
            })
        })?;
        let (result, client) = (done.result.clone(), self.client(at));
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
        holds!(invariants::releases_need_a_hold(&held, &request, &result))?;
        let gives_up = seen.gives_up;
        self.apply(done.step, &mut seen)?;
        if gives_up && self.waiter_of(key, number).is_some() {
            return Err(Broken::new(
                "a_release_gives_a_wait_up",
                format!("{} waits yet", owner_name(number)),
            ));
        }
        invariants::check_step(self, &seen)
    }

    pub(super) fn renew(
        &mut self,
        at: usize,
        key: usize,
        (lease_ms, named): (i64, Option<Named>),
    ) -> Checked {
        let owner = self.owner(at).clone();
        let number = self.cast.owner_of[at];
        let command = self.command(at, key, |key| format!("renews {key} for {lease_ms} ms"));
        let Some((stored, mut seen)) = command else {
            return Ok(());
        };
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
        let done = self.step(&mut seen, |table, now, world| {
            table.step(cast.key(key), stored, now, world, |step| {
                step.renew(&request)
            })
        })?;
        let renewed = done.result == Ok(true);
        self.say(|_| i32::from(renewed).to_string());
        holds!(invariants::renewals_need_a_hold(&held, &request, renewed))?;
        // A hold of Redisson's gets its token now.
        let given = done.step.effects.iter().find_map(|effect| match effect {
            Effect::SetHolder { new_token, .. } => *new_token,
            _ => None,
        });
        if let Some(token) = held
            .filter(|_| renewed)
            .and_then(|held| held.token.or(given))
        {
            let (client, until_ms) = (self.client(at), now.ms() + lease_ms);
            self.may_shorten(key, number, until_ms);
            match done.step.withheld {
                None => {
                    self.is_told_at_once()?;
                    self.known[key][number].renewed(client, token, until_ms);
                }
                Some(id) => {
                    self.connections[at].doing = Doing::Withheld {
                        key,
                        id,
                        token,
                        grant: None,
                        until_ms,
                    };
                }
            }
        }
        self.apply(done.step, &mut seen)?;
        invariants::check_step(self, &seen)
    }

    /// From sending a renewal on, its owner relies on the shorter of the two leases.
    fn may_shorten(&mut self, key: usize, owner: usize, by_ms: i64) {
        if let Some((_, until_ms)) = &mut self.known[key][owner].promise {
            *until_ms = by_ms.min(*until_ms);
        }
        for (one, &its_owner) in self.connections.iter_mut().zip(&self.cast.owner_of) {
            if let Doing::Withheld {
                key: its_key,
                until_ms,
                ..
            } = &mut one.doing
                && (*its_key, its_owner) == (key, owner)
            {
                *until_ms = by_ms.min(*until_ms);
            }
        }
    }

    pub(super) fn break_lock(&mut self, key: usize) -> Checked {
        self.say(|_| format!("BREAK {}", key_name(key)));
        let Some(stored) = self.read_for_command(key) else {
            return Ok(());
        };
        let mut seen = Seen::before(self, key, None);
        let cast = Rc::clone(&self.cast);
        let done = self.step(&mut seen, |table, now, world| {
            table.step(cast.key(key), stored, now, world, |step| {
                step.break_lock(None)
            })
        })?;
        let broken = done.result == Ok(true);
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
        self.apply(done.step, &mut seen)?;
        invariants::check_step(self, &seen)
    }
}

fn lease(ms: i64) -> Lease {
    Lease::from_ms(ms).unwrap()
}

fn stale() -> Option<FencingToken> {
    FencingToken::new(1).ok()
}
