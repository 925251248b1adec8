//! What is written and not yet told: grants to those who waited, and replies that are
//! withheld until replicas have acknowledged them ([`acks`](crate::acks)).
//!
//! A waiter is granted the lock when it comes free, and hears of it a moment later.
//! Meanwhile its client may go away, nobody may listen, or replicas may take too long.
//! Then nobody knows of the hold, and it is given back.
//!
//! # One rule
//! For each lock an owner has at most one grant here: a later request takes the earlier
//! grant over. A grant asks for a count of holds, and knows how many the owner had `before`.
//! - It is told if the owner still has its token and at least as many holds.
//! - If it is lost, the owner keeps at most `before` holds.
//! - A release that is answered meanwhile sets `before` to what it left.
//! - A renewal that is told raises `before` to the holds that it renewed. A lost one gives
//!   none back.
//! - The end of the session by which the owner had the holds sets `before` to 0.
//!
//! # What it costs
//! Everything about one reply takes logarithmic time.

use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::KeyRef;
use crate::queue::{Addressee, WaiterId};
use crate::request::{ClientId, Owner};
use crate::sessions::{HoldId, SessionToBe};
use crate::token::FencingToken;

/// A reply, or a message to a place, that is not told yet.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) to: Addressee,
    pub(crate) hold: HoldId,
    pub(crate) token: FencingToken,
    /// How many holds it tells of.
    pub(crate) holds: i64,
    /// How many its owner had before, if it is a grant and no renewal.
    pub(crate) before: Option<i64>,
    /// The session that begins once it is told, if the request asked for one.
    pub(crate) session: Option<SessionToBe>,
    /// It is in the output buffer of its client. An error may still take its place.
    pub(crate) is_said: bool,
    /// While it is withheld: when it is given up, by the steady clock, and its serial
    /// number in the line for replicas.
    pub(crate) withheld: Option<(i64, u64)>,
}

impl Out {
    /// The client whose connection it ends with, if any. A place without a session has none.
    pub(crate) fn ends_with(&self) -> Option<ClientId> {
        match self.to.is_place() {
            true => self.session.map(|session| session.client),
            false => Some(self.to.client()),
        }
    }

    /// Whether it is still true of an owner that has so many holds of this token.
    pub(crate) fn stands(&self, token: Option<FencingToken>, held: i64) -> bool {
        token == Some(self.token) && (self.before.is_none() || self.holds <= held)
    }
}

/// All that is written and not yet told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    by_id: BTreeMap<WaiterId, Out>,
    /// At most one grant, and any renewals.
    by_hold: BTreeSet<(HoldId, WaiterId)>,
    /// The replies that end with each connection.
    by_client: BTreeSet<(ClientId, WaiterId)>,
}

impl Outbox {
    /// Whether all is told.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// How many are to be told.
    pub(crate) fn replies(&self) -> usize {
        self.by_id.len()
    }

    /// Has this told later.
    pub(crate) fn send(&mut self, out: Out) {
        let id = out.to.id();
        self.by_hold.insert((out.hold.clone(), id));
        if let Some(client) = out.ends_with() {
            self.by_client.insert((client, id));
        }
        self.by_id.insert(id, out);
    }

    /// Takes a reply that is told now, or never will be.
    pub(crate) fn take(&mut self, id: WaiterId) -> Option<Out> {
        let out = self.by_id.remove(&id)?;
        self.by_hold.remove(&(out.hold.clone(), id));
        if let Some(client) = out.ends_with() {
            self.by_client.remove(&(client, id));
        }
        Some(out)
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&Out> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Out> {
        self.by_id.get_mut(&id)
    }

    /// The grant of these holds that is not told yet.
    pub(crate) fn grant_of(&self, hold: &HoldId) -> Option<&Out> {
        let mut of_hold = self.by_hold.range(WaiterId::all_behind(hold.clone()));
        of_hold.find_map(|(_, id)| self.get(*id).filter(|out| out.before.is_some()))
    }

    /// The session of these holds has ended. If a grant of them is still to be told, the
    /// owner counts as having had none before. Returns whether there is such a grant.
    pub(crate) fn session_ended(&mut self, hold: &HoldId, token: FencingToken) -> bool {
        let out = self.grant_of(hold).filter(|out| out.token == token);
        let id = out.map(|out| out.to.id());
        let out = id.and_then(|id| self.get_mut(id));
        out.map(|out| out.before = Some(0)).is_some()
    }

    /// A reply that ends with this client's connection.
    pub(crate) fn any_of(&self, client: ClientId) -> Option<WaiterId> {
        let all = WaiterId::all_behind(client);
        self.by_client.range(all).next().map(|(_, id)| *id)
    }

    /// An owner is told that a release has left it so many holds.
    pub(crate) fn released(&mut self, key: KeyRef<'_>, owner: &Owner, left: i64) {
        self.change(key, owner, |out| match &mut out.before {
            Some(before) => *before = left,
            None => out.holds = left.min(out.holds),
        });
    }

    /// An owner is told of a renewal of so many holds.
    pub(crate) fn renewed(&mut self, key: KeyRef<'_>, owner: &Owner, holds: i64) {
        self.change(key, owner, |out| {
            out.before = out.before.map(|before| holds.max(before));
        });
    }

    fn change(&mut self, key: KeyRef<'_>, owner: &Owner, change: impl Fn(&mut Out)) {
        if self.is_empty() {
            return;
        }
        let of_hold = WaiterId::all_behind(HoldId::new(key, owner));
        for (_, id) in self.by_hold.range(of_hold) {
            if let Some(out) = self.by_id.get_mut(id) {
                change(out);
            }
        }
    }

    /// The messages to places.
    pub(crate) fn places(&self) -> Vec<WaiterId> {
        let all = self.by_id.iter();
        let places = all.filter(|(_, out)| out.to.is_place());
        places.map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
impl Outbox {
    /// Returns whether all that is kept twice agrees.
    pub(crate) fn agree(&self) -> bool {
        let all = || self.by_id.iter();
        let named = all().map(|(id, out)| (out.hold.clone(), *id));
        let grants = all().filter(|(_, out)| out.before.is_some());
        let holds = grants.clone().map(|(_, out)| &out.hold);
        let by_client = all().filter_map(|(id, out)| Some((out.ends_with()?, *id)));
        named.collect::<BTreeSet<_>>() == self.by_hold
            && holds.collect::<BTreeSet<_>>().len() == grants.count()
            && by_client.collect::<BTreeSet<_>>() == self.by_client
    }

    /// Adds to a form of the state all that can influence a later step.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        form.count(self.by_id.len());
        for (&id, out) in &self.by_id {
            form.waiter(Some(id));
            form.client(Some(out.to.client()));
            form.flag(out.to.is_place());
            form.key(out.hold.key.as_ref());
            form.owner(&out.hold.owner);
            form.token(Some(out.token));
            form.number(out.holds);
            form.number(out.before.unwrap_or(-1));
            form.client(out.session.map(|session| session.client));
            form.time(out.session.map(|session| session.end_ms));
            form.flag(out.is_said);
            form.flag(out.withheld.is_some());
        }
    }
}
