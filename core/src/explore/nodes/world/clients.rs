//! What clients do, and what they believe.

use super::{Action, Server, World};
use crate::explore::cast::owner_name;
use crate::explore::scope::Ask;
use crate::explore::search::{Checked, World as _, broken};
use crate::explore::world::Doing;
use crate::table::WaitEnd;
use crate::token::FencingToken;

impl World {
    pub(super) fn client_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let number = at as u8;
        if self.blocked_on(at).is_some() {
            actions.push(Action::GiveUp(number));
            return;
        }
        let believes = self.beliefs[at].is_some();
        let leases = 0..self.scope().leases.len() as u8;
        for node in 0..self.nodes.len() {
            if !self.is_primary(node) || !self.may_write(node) {
                continue;
            }
            let to = node as u8;
            let mut ask = |how: fn(u8, u8, u8) -> Action| {
                actions.extend(leases.clone().map(|lease| how(number, to, lease)));
            };
            ask(Action::Acquire);
            if self.scope().place > 0 {
                ask(Action::Queue);
            }
            if (believes || self.scope().renews_what_is_over) && self.may_renew(node) {
                ask(Action::Renew);
            }
            let mut places = self.nodes[node].server.places_for(0);
            let has_place = places.any(|place| place.owner == at);
            if believes || has_place || self.token_of(node, at).is_some() {
                actions.push(Action::Release(number, to));
            }
        }
    }

    /// The node for whose reply a client waits.
    pub(super) fn blocked_on(&self, at: usize) -> Option<usize> {
        let doing = |server: &Server| server.connections[at].doing;
        let mut nodes = self.nodes.iter();
        nodes.position(|node| doing(&node.server) != Doing::Nothing)
    }

    /// Has a node do something. Its writes go to its replicas, and clients believe what they
    /// are told.
    pub(super) fn on<T>(
        &mut self,
        node: usize,
        what: impl FnOnce(&mut Server) -> Checked<T>,
    ) -> Checked<T> {
        let clients = 0..self.beliefs.len();
        let tokens: Vec<_> = clients.clone().map(|at| self.token_of(node, at)).collect();
        let server = &mut self.nodes[node].server;
        server.said = self.said.is_some().then(String::new);
        let done = what(server);
        server.forget_what_has_gone();
        let written = std::mem::take(&mut server.written);
        let told = std::mem::take(&mut server.told);
        if let Some(said) = server.said.take().filter(|said| !said.is_empty()) {
            self.say(|w| format!("{}: {said}", w.node_name(node)));
        }
        let done = done?;
        for write in written {
            self.send(node, &write);
        }
        for at in clients {
            let token = self.token_of(node, at).filter(|_| self.is_to_hold());
            if token.is_some() && token != tokens[at] && token <= self.greatest_told {
                let shown_by = format!("{} is given a token below one told", owner_name(at));
                return broken("tokens_rise", shown_by);
            }
        }
        for (at, hold) in told {
            let ahead = self.nodes[node].server.now_ms - self.ticks + self.scope().in_hand;
            match hold {
                Some((token, until_ms)) => self.believe(at, token, until_ms - ahead),
                None => self.beliefs[at] = None,
            }
        }
        Ok(done)
    }

    /// Whether exclusion is to hold, and so tokens rise.
    pub(super) fn is_to_hold(&self) -> bool {
        self.scope().breaks.is_none()
    }

    /// A client hears of its hold.
    fn believe(&mut self, at: usize, token: FencingToken, until: i64) {
        self.greatest_told = self.greatest_told.max(Some(token));
        let belief = &mut self.beliefs[at];
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

    pub(super) fn acquire(&mut self, at: usize, node: usize, lease: i64, queue: bool) -> Checked {
        let mut ask = match (queue, self.scope().waits) {
            (true, _) => Ask::of("HOLD=1 QUEUE"),
            (false, true) => Ask::of("HOLD=1 BLOCK"),
            (false, false) => Ask::of("HOLD=1"),
        };
        ask.lease_ms = lease;
        let may_grant = !self.is_in_grace(node);
        let reenters = self.scope().reenters_in_grace && self.token_of(node, at).is_some();
        self.on(node, |server| {
            server.table.settings.may_grant = may_grant || reenters;
            let done = server.acquire(at, 0, ask);
            server.table.settings.may_grant = may_grant;
            done
        })
    }

    pub(super) fn renew(&mut self, at: usize, node: usize, lease: i64) -> Checked {
        // A renewal may shorten the lease, and its reply may be lost.
        let until = self.ticks + lease - self.scope().in_hand;
        let belief = self.beliefs[at].map(|(token, before)| (token, before.min(until)));
        self.beliefs[at] = belief;
        let token = belief.map(|(token, _)| token);
        let token = token.filter(|_| self.scope().place > 0);
        let renewed = self.on(node, |server| server.renew(at, 0, lease, token))?;
        self.beliefs[at] = self.beliefs[at].filter(|_| renewed);
        Ok(())
    }

    pub(super) fn release(&mut self, at: usize, node: usize) -> Checked {
        self.beliefs[at] = None;
        for (number, other) in self.nodes.iter_mut().enumerate() {
            for place in &mut other.server.places {
                place.is_left |= place.owner == at && number != node;
            }
        }
        self.on(node, |server| server.release(at, 0, "ALL"))
    }

    pub(super) fn give_up(&mut self, at: usize) -> Checked {
        let Some(node) = self.blocked_on(at) else {
            return Ok(());
        };
        self.on(node, |server| {
            let doing = server.connections[at].doing;
            server.leave(at, WaitEnd::TimeUp);
            match doing {
                // What is over is ended before anything else happens.
                Doing::Withheld(..) => server.wake(),
                _ => Ok(()),
            }
        })
    }

    /// A turn of each primary ends: it delivers the replies that need not be withheld
    /// any more.
    pub(super) fn end_turns(&mut self) -> Checked {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if self.is_primary(at) && node.server.table.awaits_replicas() {
                let acked = node.peers.iter().filter_map(|peer| peer.acked).collect();
                let offset = node.offset;
                self.on(at, |server| server.acknowledge(offset, acked))?;
            }
        }
        Ok(())
    }
}
