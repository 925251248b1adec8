//! Clients that hear of their grants, leave, or are lost.

use super::world::{Doing, World};
use crate::request::ClientId;
use crate::table::Leave;

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
            key,
            token,
            ask,
            was_held,
        } = self.connections[at].doing
        else {
            return;
        };
        self.say(|w| format!("{} hears of its grant", w.cast.client_name(at)));
        let client = self.client(at);
        self.table.client_told(client, true);
        let owner = self.cast.owner_of[at];
        let is_stored = self.is_stored(key, owner, token);
        let known = &mut self.known[key][owner];
        if is_stored {
            known.tell(token, ask);
        }
        match ask.session {
            // Who is told of a session that is over already has its connection closed.
            true => known.tie(client, token, was_held),
            false => known.told_by(client, token),
        }
        self.connections[at].doing = Doing::Nothing;
    }

    pub(super) fn miss(&mut self, at: usize) {
        if let Doing::ToHear { .. } = self.connections[at].doing {
            self.say(|w| {
                let client = w.cast.client_name(at);
                format!("{client} is sent away before it hears of its grant")
            });
            self.lose_grant(at);
            self.table.client_told(self.client(at), false);
            self.connections[at].doing = Doing::Nothing;
        }
    }

    /// Nobody will hear of the grant that was on its way to this connection.
    fn lose_grant(&mut self, at: usize) {
        let Doing::ToHear { key, token, .. } = self.connections[at].doing else {
            return;
        };
        let known = &mut self.known[key][self.cast.owner_of[at]];
        if known.told != Some(token) {
            known.promise = known.promise.filter(|&(promised, _)| promised != token);
        }
    }

    /// This connection keeps up no hold of this owner any more.
    fn untie(&mut self, key: usize, owner: usize, client: ClientId) {
        let token = self.holds(key, owner).and_then(|held| held.token);
        let known = &mut self.known[key][owner];
        let over = known.untie(client);
        // A lock that was moved, and came back, may be a session again, or not.
        let has_moved = self.cast.scope.renames || self.cast.scope.swaps;
        if over.is_some() && over == token && has_moved {
            known.promise = None;
        } else if over.is_some() && over == token {
            known.told = None;
            known.holds = 0;
            known.promise = None;
            known.over = over;
        }
    }

    pub(super) fn disconnect(&mut self, at: usize) {
        let client = self.client(at);
        self.lose_grant(at);
        for key in 0..self.cast.keys.len() {
            for owner in 0..self.cast.owners.len() {
                self.untie(key, owner, client);
            }
        }
        self.table.connection_ended(client);
        match self.connections[at].doing {
            Doing::Waits { id, .. } => {
                self.table.waiter_left(id, Leave::Gone, self.now_ms);
            }
            Doing::ToHear { .. } => self.table.client_told(client, false),
            Doing::Nothing => {}
        }
        self.connections[at].generation += 1;
        self.connections[at].doing = Doing::Nothing;
    }
}
