//! Clients that hear of their grants, leave, or are lost.

use super::search::World as _;
use super::world::{Doing, World};
use crate::request::ClientId;
use crate::table::WaitEnd;

impl World {
    pub(super) fn leave(&mut self, at: usize, leave: WaitEnd) {
        let (Doing::Waiting { id, .. } | Doing::Withheld { id, .. }) = self.connections[at].doing
        else {
            return;
        };
        self.say(|w| {
            let how = match leave {
                WaitEnd::TimeUp => "waits no more: its time is up",
                WaitEnd::Gone => "is sent away",
            };
            format!("{} {how}", w.cast.client_name(at))
        });
        let told = self.table.waiter_left(id, leave, self.now_ms);
        let is_withheld = matches!(self.connections[at].doing, Doing::Withheld { .. });
        assert_eq!(
            told.is_some(),
            is_withheld,
            "only what is withheld is given up"
        );
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
        let has_moved = self.scope().moves();
        let known = &mut self.known[key][owner];
        // A renewal may have been told meanwhile.
        let was_held = was_held || !has_moved && known.told == Some(token);
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
    pub(super) fn lose_grant(&mut self, at: usize) {
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
        let has_moved = self.scope().moves();
        let known = &mut self.known[key][owner];
        let Some(over) = known.untie(client).filter(|over| Some(*over) == token) else {
            return;
        };
        let mut others = self.connections.iter_mut().map(|one| &mut one.doing);
        let to_tell = others.find_map(|doing| doing.grant_of(key, over).is_some().then_some(doing));
        if has_moved && to_tell.is_none() {
            known.promise = None;
            return;
        }
        known.told = None;
        known.holds = 0;
        // Who is about to be told of the hold keeps it.
        if !matches!(to_tell, Some(Doing::ToHear { .. })) {
            known.promise = None;
        }
        match to_tell.and_then(|doing| doing.grant_of(key, over)) {
            Some(was_held) => *was_held = false,
            None => known.over = Some(over),
        }
    }

    pub(super) fn disconnect(&mut self, at: usize) {
        let client = self.client(at);
        self.lose_grant(at);
        let doing = std::mem::replace(&mut self.connections[at].doing, Doing::Nothing);
        for key in 0..self.cast.keys.len() {
            for owner in 0..self.cast.owners.len() {
                self.untie(key, owner, client);
            }
        }
        self.table.connection_ended(client);
        match doing {
            Doing::Waiting { id, .. } | Doing::Withheld { id, .. } => {
                self.table.waiter_left(id, WaitEnd::Gone, self.now_ms);
            }
            Doing::ToHear { .. } => self.table.client_told(client, false),
            Doing::Nothing => {}
        }
        self.connections[at].generation += 1;
    }
}
