//! Clients that hear of their grants, leave, or are lost.

use super::search::{Checked, World as _};
use super::world::{Doing, Grant, World};
use crate::error::LockError;
use crate::request::ClientId;
use crate::table::{WORK_A_WAKE, WaitEnd};

impl World {
    pub(super) fn leave(&mut self, at: usize, leave: WaitEnd) {
        let Some(id) = self.connections[at].doing.waiter() else {
            return;
        };
        self.say(|w| format!("{} waits no more: {leave:?}", w.cast.client_name(at)));
        let told = self.table.waiter_left(id, leave, self.now_ms);
        let is_withheld = matches!(self.connections[at].doing, Doing::Withheld(..));
        assert!(told.is_some() == is_withheld, "only that is given up");
        self.connections[at].doing = Doing::Nothing;
    }

    pub(super) fn hear(&mut self, at: usize) {
        let Doing::ToHear(grant) = self.connections[at].doing else {
            return;
        };
        let (key, token) = (grant.key, grant.token);
        let ask = grant.ask.expect("a renewal is told at once");
        self.say(|w| format!("{} hears of its grant", w.cast.client_name(at)));
        let client = self.client(at);
        self.table.client_told(client, true);
        let owner = self.cast.owner_of[at];
        let is_stored = self.is_stored(key, owner, token);
        let has_moved = self.scope().moves();
        let known = &mut self.known[key][owner];
        // A renewal may have been told meanwhile.
        let was_held = grant.was_held || !has_moved && known.told == Some(token);
        if is_stored {
            known.tell(token, ask);
        }
        // If the session is over already, its connection gets closed.
        known.bind(client, ask, token, was_held);
        self.connections[at].doing = Doing::Nothing;
    }

    pub(super) fn miss(&mut self, at: usize) {
        if let Doing::ToHear(_) = self.connections[at].doing {
            self.say(|w| format!("{} does not hear of its grant", w.cast.client_name(at)));
            self.lose_grant(at);
            self.table.client_told(self.client(at), false);
            self.connections[at].doing = Doing::Nothing;
        }
    }

    /// The server is made a replica: waiters are told, and its connections keep up nothing.
    pub(super) fn demote(&mut self) -> Checked {
        for at in 0..self.connections.len() {
            self.leave(at, WaitEnd::Gone);
        }
        for (addressee, answer) in self.table.forget_places(&LockError::Unblocked, usize::MAX) {
            self.tell_place(addressee.id(), &answer, None)?;
        }
        self.table.forget_connections(WORK_A_WAKE);
        Ok(())
    }

    /// Nobody will hear of the grant that was on its way to this connection.
    pub(super) fn lose_grant(&mut self, at: usize) {
        let Doing::ToHear(Grant { key, token, .. }) = self.connections[at].doing else {
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
        // An owner that is about to be told of the hold keeps it.
        if !matches!(to_tell, Some(Doing::ToHear(_))) {
            known.promise = None;
        }
        match to_tell.and_then(|doing| doing.grant_of(key, over)) {
            Some(grant) => grant.was_held = false,
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
        if let Some(id) = doing.waiter() {
            self.table.waiter_left(id, WaitEnd::Gone, self.now_ms);
        } else if let Doing::ToHear(_) = doing {
            self.table.client_told(client, false);
        }
        self.connections[at].generation += 1;
    }
}
