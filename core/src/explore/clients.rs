//! Clients that hear of their grants, leave, or are lost.

use super::scope::Ask;
use super::world::{Doing, World};
use crate::deliveries::BoundBefore;
use crate::request::ClientId;
use crate::table::Leave;
use crate::token::FencingToken;

impl World {
    pub(super) fn leave(&mut self, at: usize, leave: Leave) {
        let Doing::Waits { id, .. } = self.connections[at].doing else {
            return;
        };
        self.say(|w| {
            let how = match leave {
                Leave::TimeUp => "waits no more: its time is up",
                Leave::Gone => "is sent away",
            };
            format!("{} {how}", w.cast.client_name(at))
        });
        let told = self.table.waiter_left(id, leave, self.now_ms);
        assert_eq!(told, None, "nothing is withheld here");
        self.connections[at].doing = Doing::Nothing;
    }

    pub(super) fn hear(&mut self, at: usize) {
        let Doing::ToHear {
            key, token, ask, ..
        } = self.connections[at].doing
        else {
            return;
        };
        self.say(|w| format!("{} hears of its grant", w.cast.client_name(at)));
        self.table.grant_told(self.client(at), true);
        let owner = self.cast.owner_of[at];
        if self.is_stored(key, owner, token) {
            self.known[key][owner].tell(token, ask);
        }
        self.connections[at].doing = Doing::Nothing;
    }

    pub(super) fn miss(&mut self, at: usize) {
        if let Doing::ToHear { .. } = self.connections[at].doing {
            self.say(|w| {
                let client = w.cast.client_name(at);
                format!("{client} is sent away before it hears of its grant")
            });
            self.lose_grant(at, false);
            self.table.grant_told(self.client(at), false);
            self.connections[at].doing = Doing::Nothing;
        }
    }

    /// Nobody will hear of the grant that was on its way to this connection.
    pub(super) fn lose_grant(&mut self, at: usize, is_end: bool) {
        let Doing::ToHear {
            key,
            token,
            bound_before,
            ..
        } = self.connections[at].doing
        else {
            return;
        };
        let owner = self.cast.owner_of[at];
        let others = self.others_to_hear(at, key, token);
        let client = self.client(at);
        let heir = self.heir(&others, token);
        let before = bound_before.client();
        let before = before.filter(|&client| self.connection_of(client).is_some());
        let was_unbound = bound_before == BoundBefore::Nothing;
        let known = &mut self.known[key][owner];
        if known.bound_to == Some((client, token)) {
            known.bound_to = heir.or(before.map(|client| (client, token)));
            if known.bound_to.is_none() && is_end && others.is_empty() && !was_unbound {
                known.over = Some(token);
                known.promise = None;
            }
        }
        let known = &mut self.known[key][owner];
        if others.is_empty() && known.told != Some(token) {
            known.promise = known.promise.filter(|&(promised, _)| promised != token);
        }
    }

    /// The other client of the same owner that is to hear of the same hold, and asked
    /// that it be bound to it. No owner has more than two connections.
    pub(super) fn heir(
        &self,
        others: &[(usize, Ask)],
        token: FencingToken,
    ) -> Option<(ClientId, FencingToken)> {
        let (other, _) = others.iter().find(|(_, ask)| ask.session)?;
        Some((self.client(*other), token))
    }

    pub(super) fn disconnect(&mut self, at: usize) {
        let client = self.client(at);
        self.lose_grant(at, true);
        for key in 0..self.cast.keys.len() {
            for owner in 0..self.cast.owners.len() {
                let known = self.known[key][owner];
                let Some((_, bound)) = known.bound_to.filter(|&(its, _)| its == client) else {
                    continue;
                };
                let token = self.holds(key, owner).and_then(|held| held.token);
                if token != Some(bound) {
                    self.known[key][owner].bound_to = None;
                    continue;
                }
                let others = self.others_to_hear(at, key, bound);
                let heir = self.heir(&others, bound);
                let is_promised = !others.is_empty();
                let known = &mut self.known[key][owner];
                known.bound_to = heir;
                known.told = None;
                known.holds = 0;
                if !is_promised {
                    known.promise = None;
                    known.over = token;
                }
            }
        }
        self.table.connection_ended(client, false);
        match self.connections[at].doing {
            Doing::Waits { id, .. } => {
                self.table.waiter_left(id, Leave::Gone, self.now_ms);
            }
            Doing::ToHear { .. } => self.table.grant_told(client, false),
            Doing::Nothing => {}
        }
        for connection in &mut self.connections {
            if let Doing::ToHear { bound_before, .. } = &mut connection.doing
                && *bound_before == BoundBefore::Client(client)
            {
                *bound_before = BoundBefore::Ended;
            }
        }
        self.connections[at].generation += 1;
        self.connections[at].doing = Doing::Nothing;
    }
}
