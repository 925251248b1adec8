//! What clients do, and what they believe.

use super::{Action, CLAIM, KEY, Waiting, World};
use crate::explore::cast::owner_name;
use crate::explore::form::client_id;
use crate::explore::nodes::scope::Expected;
use crate::explore::search::{Broken, Checked, World as _};
use crate::lock::{Lock, Released};
use crate::queue::{Wait, WaiterId};
use crate::request::{
    AcquireRequest, HoldNumber, Lease, Limit, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use crate::table::{Acquired, WaitEnd};
use crate::token::FencingToken;

impl World {
    pub(super) fn client_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let client = &self.clients[at];
        let number = at as u8;
        if client.blocked.is_some() {
            actions.push(Action::GiveUp(number));
            return;
        }
        let believes = client.belief.is_some();
        let leases = 0..self.scope().leases.len() as u8;
        for node in 0..self.nodes.len() {
            if !self.is_primary(node) || !self.may_write(node) {
                continue;
            }
            let to = node as u8;
            let ask = |lease| Action::Acquire(number, to, lease);
            actions.extend(leases.clone().map(ask));
            if self.scope().place > 0 {
                let ask = |lease| Action::Queue(number, to, lease);
                actions.extend(leases.clone().map(ask));
            }
            if (believes || self.scope().renews_what_is_over) && self.may_renew(node) {
                let ask = |lease| Action::Renew(number, to, lease);
                actions.extend(leases.clone().map(ask));
            }
            let mut places = client.places.iter();
            let has_place = places.any(|place| place.is_in_queue_of(node));
            if believes || has_place || self.token_of(node, at).is_some() {
                actions.push(Action::Release(number, to));
            }
        }
    }

    /// Until when a client may rely on a lease that begins now.
    pub(super) fn until(&self, lease: i64) -> i64 {
        self.ticks + lease - self.scope().in_hand
    }

    /// A token was given to this owner.
    pub(super) fn issue(
        &mut self,
        node: usize,
        at: usize,
        before: &Lock,
        token: FencingToken,
    ) -> Checked {
        let holder = before.holder(&self.cast.owners[at]);
        // A message may come before the reply.
        let is_told = self.clients[at]
            .belief
            .is_some_and(|(known, _)| known == token);
        let is_new = !is_told && holder.is_none_or(|holder| holder.token != Some(token));
        if is_new && self.said.is_some() {
            self.tokens.push(token);
        }
        self.say(|w| {
            let (name, owner, token) = (w.node_name(node), owner_name(at), w.short(token));
            let again = if is_new { "" } else { " again" };
            format!("{name} grants k to {owner}{again}, token {token}")
        });
        let is_to_rise = is_new && self.scope().expected == Expected::Holds;
        if is_to_rise && Some(token) <= self.greatest_told {
            return Err(Broken::new(
                "tokens_rise",
                format!("{} is given a token below one told before", owner_name(at)),
            ));
        }
        Ok(())
    }

    /// A client hears of its hold.
    pub(super) fn believe(&mut self, at: usize, token: FencingToken, until: i64) {
        self.greatest_told = self.greatest_told.max(Some(token));
        let belief = &mut self.clients[at].belief;
        let until = belief.map_or(until, |(_, before)| until.max(before));
        if until < self.ticks {
            self.say(|_| format!("{} hears of it too late", owner_name(at)));
            return;
        }
        *belief = Some((token, until));
        self.say(|w| {
            let (name, token) = (owner_name(at), w.short(token));
            format!("{name} believes that it holds k by token {token} until {until}")
        });
    }

    /// How long the first lease of a place is for which this one is asked.
    fn first_lease(&self, node: usize, lease: i64) -> i64 {
        let acks = match self.setting(node, self.scope().min_replicas) {
            0 => 0,
            _ => self.scope().acks_timeout,
        };
        lease.min(CLAIM + acks)
    }

    pub(super) fn acquire(&mut self, at: usize, node: usize, lease: i64, queue: bool) -> Checked {
        self.say(|w| {
            let (owner, name) = (owner_name(at), w.node_name(node));
            let how = if queue { ", or a place" } else { "" };
            format!("{owner} acquires k for {lease}{how} on {name}")
        });
        let stored = self.read(node);
        let before = self.stored(node);
        let owner = self.cast.owners[at].clone();
        let reenters = self.scope().reenters_in_grace && before.holder(&owner).is_some();
        let request = AcquireRequest {
            owner,
            lease: Lease::from_ms(lease).unwrap(),
            hold: HoldNumber::new(1).ok(),
            limit: Limit::EXCLUSIVE,
            session: None,
        };
        let now = self.now(node);
        let wait = (queue || self.scope().waits).then(|| Wait {
            client: client_id(at, 0),
            until_ms: queue.then_some(now.ms() + self.scope().place),
            channel: queue.then(|| b"channel"[..].into()),
        });
        let may_grant = !self.is_in_grace(node);
        let done = self.step(node, Some(at), |table, now, world| {
            table.settings.may_grant = may_grant || reenters;
            table.step(KEY, stored, now, world, |step| step.acquire(request, wait))
        })?;
        self.nodes[node].table.settings.may_grant = may_grant;
        let acquired = done.result.expect("no owner is at fault");
        let withheld = done.step.withheld;
        self.apply(node, done.step)?;
        let waiting = |id, lease| Waiting {
            node,
            id,
            lease,
            until: None,
            is_left: false,
        };
        match acquired {
            Acquired::Granted(token) => {
                if queue {
                    // It is granted in the stead of its place, unless that was before.
                    let places = &mut self.clients[at].places;
                    places.retain(|place| !place.is_in_queue_of(node));
                }
                self.issue(node, at, &before, token)?;
                self.reply(node, at, withheld, token, lease);
            }
            Acquired::Queued(id) if queue => {
                self.say(|_| "it has a place".to_owned());
                let place = waiting(id, self.first_lease(node, lease));
                let places = &mut self.clients[at].places;
                places.retain(|place| !place.is_in_queue_of(node));
                places.push(place);
            }
            Acquired::Queued(id) => {
                self.say(|_| "it waits".to_owned());
                self.clients[at].blocked = Some(waiting(id, lease));
            }
            Acquired::Busy => self.say(|_| "null".to_owned()),
        }
        Ok(())
    }

    /// A client that asked for this lease is told now of its hold, or waits by this name.
    fn reply(
        &mut self,
        node: usize,
        at: usize,
        withheld: Option<WaiterId>,
        token: FencingToken,
        lease: i64,
    ) {
        let until = self.until(lease);
        match withheld {
            Some(id) => {
                self.clients[at].blocked = Some(Waiting {
                    node,
                    id,
                    lease,
                    until: Some(until),
                    is_left: false,
                });
            }
            None => self.believe(at, token, until),
        }
    }

    pub(super) fn renew(&mut self, at: usize, node: usize, lease: i64) -> Checked {
        let until = self.until(lease);
        // A renewal may shorten the lease, and its reply may be lost.
        let belief = &mut self.clients[at].belief;
        *belief = belief.map(|(token, before)| (token, before.min(until)));
        let token = belief.map(|(token, _)| token);
        let token = token.filter(|_| self.scope().place > 0);
        let stored = self.read(node);
        let request = RenewRequest {
            owner: self.cast.owners[at].clone(),
            lease: Lease::from_ms(lease).unwrap(),
            token,
        };
        let done = self.step(node, Some(at), |table, now, world| {
            table.step(KEY, stored, now, world, |step| step.renew(&request))
        })?;
        let renewed = done.result == Ok(true);
        let withheld = done.step.withheld;
        self.apply(node, done.step)?;
        self.say(|w| {
            let (owner, name) = (owner_name(at), w.node_name(node));
            let renewed = i32::from(renewed);
            format!("{owner} renews k for {lease} on {name}: {renewed}")
        });
        match self.token_of(node, at).filter(|_| renewed) {
            Some(token) => self.reply(node, at, withheld, token, lease),
            None => self.clients[at].belief = None,
        }
        Ok(())
    }

    pub(super) fn release(&mut self, at: usize, node: usize) -> Checked {
        self.clients[at].belief = None;
        for place in &mut self.clients[at].places {
            place.is_left |= place.node != node;
        }
        let stored = self.read(node);
        let request = ReleaseRequest {
            owner: self.cast.owners[at].clone(),
            token: None,
            extent: ReleaseExtent::All,
        };
        let done = self.step(node, Some(at), |table, now, world| {
            table.step(KEY, stored, now, world, |step| step.release(&request))
        })?;
        self.apply(node, done.step)?;
        let released = done.result.expect("a release is no fault");
        self.say(|w| {
            let (owner, name) = (owner_name(at), w.node_name(node));
            let reply = match released {
                Released::NotHeld => "null",
                Released::StillHeld => "0",
                Released::LastHold => "1",
            };
            format!("{owner} releases k on {name}: {reply}")
        });
        Ok(())
    }

    pub(super) fn give_up(&mut self, at: usize) -> Checked {
        if let Some(Waiting { node, id, .. }) = self.clients[at].blocked.take() {
            let now_ms = self.now(node).ms();
            let table = &mut self.nodes[node].table;
            let told = table.waiter_left(id, WaitEnd::TimeUp, now_ms);
            self.say(|_| match told {
                None => format!("{} waits no more", owner_name(at)),
                Some(_) => format!("{} is told NOREPLICAS", owner_name(at)),
            });
            if told.is_some() {
                // What is over is ended before anything else happens.
                return self.wake(node);
            }
        }
        Ok(())
    }
}
