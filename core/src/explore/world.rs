//! The state of a server, of its clients, and of what they know.

use std::rc::Rc;

use super::cast::Cast;
use super::form::{Form, client_id};
use super::keyspace::{Keyspace, Write};
use super::scope::{Ask, BEGIN_MS, Scope};
use super::search::{Checked, broken};
use crate::explore::cast::key_name;
use crate::lock::Now;
use crate::queue::WaiterId;
use crate::request::{ClientId, Owner};
use crate::table::{HolderView, LockTable, Settings};
use crate::token::FencingToken;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Doing {
    Nothing,
    /// It waits for the lock of this key.
    Waiting(WaiterId, usize, Ask),
    /// It was granted the lock, and has not heard of it yet.
    ToHear(Grant),
    /// Its reply waits for replicas.
    Withheld(WaiterId, Grant),
}

/// What a reply tells of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grant {
    /// Where the hold is now, if anywhere.
    pub(super) key: usize,
    pub(super) token: FencingToken,
    /// What was asked for. A renewal was if nothing else.
    pub(super) ask: Option<Ask>,
    /// Whether its owner held the lock before.
    pub(super) was_held: bool,
    /// When the lease ends.
    pub(super) until_ms: i64,
}

impl PlaceKept {
    pub(super) fn is_in_queue_of(&self, key: usize) -> bool {
        self.key == key && self.withheld_until_ms.is_none()
    }
}

impl Grant {
    pub(super) fn new(
        key: usize,
        token: FencingToken,
        ask: Option<Ask>,
        was_held: bool,
        until_ms: i64,
    ) -> Self {
        Self {
            key,
            token,
            ask,
            was_held,
            until_ms,
        }
    }
}

impl Doing {
    /// The name by which it waits.
    pub(super) fn waiter(&self) -> Option<WaiterId> {
        match *self {
            Self::Waiting(id, ..) | Self::Withheld(id, _) => Some(id),
            Self::Nothing | Self::ToHear(_) => None,
        }
    }

    /// The grant of which it is about to be told, if it has this token.
    pub(super) fn grant_of(&mut self, key: usize, token: FencingToken) -> Option<&mut Grant> {
        let (Self::ToHear(grant) | Self::Withheld(_, grant)) = self else {
            return None;
        };
        let is_it = (grant.key, grant.token) == (key, token) && grant.ask.is_some();
        is_it.then_some(grant)
    }
}

/// A place, as its owner asked for it last.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceKept {
    pub(super) id: WaiterId,
    pub(super) key: usize,
    pub(super) owner: usize,
    /// The connection that asked.
    pub(super) at: usize,
    pub(super) ask: Ask,
    pub(super) until_ms: i64,
    pub(super) session: Option<ClientId>,
    /// It was granted the lock, and its message waits for replicas: when the lease ends of
    /// which that tells.
    pub(super) withheld_until_ms: Option<i64>,
    /// Its owner does not listen to it any more.
    pub(super) is_left: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) generation: u64,
    pub(super) doing: Doing,
}

/// What an owner knows of a lock, and may rely on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The newest token that a reply told it.
    pub(super) told: Option<FencingToken>,
    /// A grant that stands, and until when.
    pub(super) promise: Option<(FencingToken, i64)>,
    /// How many holds it was told of.
    pub(super) holds: i64,
    /// The connections that the holds of a token are bound to.
    pub(super) tied: Option<Tied>,
    /// Holds that ended with their connection.
    pub(super) over: Option<FencingToken>,
    /// A grant to a place that is not claimed, and when it ends at the latest.
    pub(super) unclaimed: Option<(FencingToken, i64)>,
}

/// What binds holds to connections. No owner has more than two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tied {
    pub(super) token: FencingToken,
    pub(super) older: Option<ClientId>,
    pub(super) newest: ClientId,
    pub(super) told_elsewhere: bool,
}

impl Tied {
    pub(super) fn has(&self, client: ClientId) -> bool {
        self.newest == client || self.older == Some(client)
    }

    fn without(self, client: ClientId) -> Option<Self> {
        let newest = match self.newest == client {
            true => self.older?,
            false => self.newest,
        };
        let older = self
            .older
            .filter(|&older| older != client && older != newest);
        Some(Self {
            older,
            newest,
            ..self
        })
    }
}

impl Known {
    /// The owner asked by this connection, with `SESSION`, and is told of a hold, which it
    /// had before, or not.
    pub(super) fn tie(&mut self, client: ClientId, token: FencingToken, was_held: bool) {
        let before = self.tied.filter(|tied| tied.token == token);
        self.tied = Some(Tied {
            token,
            older: before
                .and_then(|tied| tied.without(client))
                .map(|tied| tied.newest),
            newest: client,
            told_elsewhere: before.map_or(was_held, |tied| tied.told_elsewhere),
        });
    }

    /// It is told of a hold for which it asked by this connection.
    pub(super) fn bind(&mut self, client: ClientId, ask: Ask, token: FencingToken, held: bool) {
        match ask.session {
            true => self.tie(client, token, held),
            false => self.told_by(client, token),
        }
    }

    /// It is told of a hold by this connection, without `SESSION`.
    pub(super) fn told_by(&mut self, client: ClientId, token: FencingToken) {
        if let Some(tied) = &mut self.tied
            && tied.token == token
        {
            tied.told_elsewhere |= !tied.has(client);
        }
    }

    /// It is told of a renewal.
    pub(super) fn renewed(&mut self, client: ClientId, token: FencingToken) {
        self.told = Some(token);
        self.told_by(client, token);
        self.holds = self.holds.max(1);
        self.unclaimed = None;
    }

    /// A connection is none of those to which the holds are bound. Returns their token, if
    /// they are over with it.
    pub(super) fn untie(&mut self, client: ClientId) -> Option<FencingToken> {
        let tied = self.tied.filter(|tied| tied.has(client))?;
        self.tied = tied.without(client);
        (self.tied.is_none() && !tied.told_elsewhere).then_some(tied.token)
    }

    /// The owner may rely on a grant until then at least.
    fn rely_until(&mut self, token: FencingToken, until_ms: i64) {
        let before = self.promise.filter(|&(promised, _)| promised == token);
        if before.is_none() && self.told != Some(token) {
            self.holds = 0;
        }
        let until_ms = before.map_or(until_ms, |(_, before_ms)| before_ms.max(until_ms));
        self.promise = Some((token, until_ms));
    }

    /// A reply tells the owner of a hold.
    pub(super) fn tell(&mut self, token: FencingToken, ask: Ask) {
        if self.told.replace(token) != Some(token) {
            self.holds = 0;
        }
        self.holds = match ask.hold {
            0 => self.holds + 1,
            hold => self.holds.max(hold),
        };
    }
}

/// A server, its clients, and what they know.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) cast: Rc<Cast<Scope>>,
    pub(super) table: LockTable,
    pub(super) data: Keyspace,
    /// What a replica has that lacks the last write.
    pub(super) copy: Keyspace,
    pub(super) last_write: Vec<Write>,
    pub(super) now_ms: i64,
    pub(super) steps: i64,
    pub(super) connections: Vec<Connection>,
    pub(super) known: [[Known; 3]; 2],
    /// The places that their owners were not told the end of.
    pub(super) places: Vec<PlaceKept>,
    /// Whose messages nobody listens to.
    pub(super) deaf: [bool; 3],
    /// The greatest token that was ever granted.
    pub(super) greatest: Option<FencingToken>,
    /// What became of a key since the module looked at it last.
    pub(super) changed: [Changed; 2],
    /// When the module tries again, after the server refused its writes.
    pub(super) retry_at_ms: Option<i64>,
    /// How many replicas have to acknowledge what is told.
    pub(super) replicas: usize,
    /// What was written by the last action, for replicas, and what owners were told by it: a
    /// hold and until when it lasts, or that it is over.
    pub(super) written: Vec<Write>,
    pub(super) told: Vec<(usize, Option<(FencingToken, i64)>)>,
    /// What was said, where somebody listens.
    pub(super) said: Option<String>,
}

/// What became of a key since the module looked at it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Changed {
    /// Nothing but time.
    #[default]
    Nothing,
    /// Somebody wrote to it, and the module was told.
    Told,
    /// Somebody wrote to it, and the module was not told.
    Untold,
}

impl World {
    pub(super) fn scope(&self) -> &Scope {
        &self.cast.scope
    }

    pub(super) fn now(&self) -> Now {
        // Each step takes a moment, so that no two have the same time.
        Now {
            us: self.now_ms * 1000 + self.steps * 10,
            steady_ms: self.now_ms,
        }
    }

    pub(super) fn client(&self, at: usize) -> ClientId {
        client_id(at, self.connections[at].generation)
    }

    /// The connection with this id, if it has not ended.
    pub(super) fn connection_of(&self, client: ClientId) -> Option<usize> {
        (0..self.connections.len()).find(|&at| self.client(at) == client)
    }

    pub(super) fn owner(&self, at: usize) -> &Owner {
        &self.cast.owners[self.cast.owner_of[at]]
    }

    pub(super) fn owner_number(&self, owner: &Owner) -> usize {
        let at = self.cast.owners.iter().position(|one| one == owner);
        at.expect("an owner of the cast")
    }

    /// Who holds the lock, in everybody's eyes.
    pub(super) fn holders(&self, key: usize) -> Vec<HolderView> {
        if self.data.is_expired(key, self.now_ms) {
            return Vec::new();
        }
        let lock = self.data.read(key).unwrap_or_default();
        let mut table = self.table.clone();
        table.end_holds_of_gone(self.cast.key(key), &lock);
        table.view(self.cast.key(key), lock, self.now()).holders
    }

    pub(super) fn holds(&self, key: usize, owner: usize) -> Option<HolderView> {
        let holders = self.holders(key).into_iter();
        holders
            .filter(|one| one.owner == self.cast.owners[owner])
            .last()
    }

    /// The connections that wait for this key, in the order of their requests, and those
    /// that asked for places.
    pub(super) fn waiting(&self, key: usize) -> Vec<(WaiterId, usize, Ask)> {
        let all = self.connections.iter().enumerate();
        let blocked = all.filter_map(|(at, one)| match one.doing {
            Doing::Waiting(id, its, ask) if its == key => Some((id, at, ask)),
            _ => None,
        });
        let places = self.places_for(key).map(|one| (one.id, one.at, one.ask));
        let mut waiting: Vec<_> = blocked.chain(places).collect();
        waiting.sort_by_key(|&(id, ..)| id);
        waiting
    }

    /// The same, but for places that are over and have not been removed.
    pub(super) fn still_waiting(&self, key: usize) -> Vec<(WaiterId, usize, Ask)> {
        let is_over = |at: usize| self.has_place_over(key, self.cast.owner_of[at]);
        let waiting = self.waiting(key).into_iter();
        waiting.filter(|&(_, at, _)| !is_over(at)).collect()
    }

    /// Whether this owner has a place in this key's queue that is over.
    pub(super) fn has_place_over(&self, key: usize, owner: usize) -> bool {
        let mut places = self.places_for(key);
        places.any(|place| place.owner == owner && self.is_over(place))
    }

    /// The places in this key's queue.
    pub(super) fn places_for(&self, key: usize) -> impl Iterator<Item = &PlaceKept> {
        let is_in_queue = move |place: &&PlaceKept| place.is_in_queue_of(key);
        self.places.iter().filter(is_in_queue)
    }

    /// The place of this owner in this key's queue is there no more.
    pub(super) fn leave_place(&mut self, key: usize, owner: usize) {
        let is_it = |place: &PlaceKept| place.is_in_queue_of(key) && place.owner == owner;
        self.places.retain(|place| !is_it(place));
    }

    /// Whether a place must not be granted anything any more.
    pub(super) fn is_over(&self, place: &PlaceKept) -> bool {
        let has_ended = |client| self.connection_of(client).is_none();
        place.until_ms <= self.now_ms || place.session.is_some_and(has_ended)
    }

    /// Takes the place of which the table tells.
    pub(super) fn take_place(&mut self, id: WaiterId) -> Checked<PlaceKept> {
        match self.places.iter().position(|place| place.id == id) {
            Some(at) => Ok(self.places.remove(at)),
            None => broken("only_who_waits_is_answered", format!("{id:?}")),
        }
    }

    /// Whether its owner hears what is published for a place.
    pub(super) fn hears(&self, place: &PlaceKept) -> bool {
        !self.deaf[place.owner] && !place.is_left
    }

    /// How long the first lease of a place lasts.
    pub(super) fn first_lease(&self, ask: Ask) -> i64 {
        let times = self.scope().times;
        let acks_ms = if self.replicas > 0 { times.acks } else { 0 };
        ask.lease_ms.min(times.claim.saturating_add(acks_ms))
    }

    pub(super) fn tell_of(&mut self, owner: usize, hold: Option<(FencingToken, i64)>) {
        if self.scope().is_a_node {
            self.told.push((owner, hold));
        }
    }

    /// An owner is told of a hold that lasts until then.
    pub(super) fn rely(&mut self, key: usize, owner: usize, token: FencingToken, until_ms: i64) {
        self.known[key][owner].rely_until(token, until_ms);
        self.tell_of(owner, Some((token, until_ms)));
    }

    pub(super) fn is_stored(&self, key: usize, owner: usize, token: FencingToken) -> bool {
        let lock = self.data.read(key).unwrap_or_default();
        let holder = lock.holder(&self.cast.owners[owner]);
        holder.is_some_and(|holder| holder.token == Some(token))
    }

    /// The request with which this owner waits for this key, if any does.
    pub(super) fn waiter_of(&self, key: usize, owner: usize) -> Option<(WaiterId, Ask)> {
        let waiting = self.waiting(key).into_iter();
        let mut of_owner = waiting.filter(|&(_, at, _)| self.cast.owner_of[at] == owner);
        of_owner.next().map(|(id, _, ask)| (id, ask))
    }

    /// Whether a grant with this token is on its way to the owner, which it was not told of.
    pub(super) fn is_untold(&self, key: usize, owner: usize, token: FencingToken) -> bool {
        let mut all = self.connections.iter().enumerate();
        all.any(|(at, one)| {
            let mut doing = one.doing;
            doing.grant_of(key, token).is_some() && self.cast.owner_of[at] == owner
        })
    }

    /// When the module's timer is due.
    pub(super) fn wake_at_ms(&self) -> Option<i64> {
        if self.retry_at_ms.is_some() {
            return self.retry_at_ms;
        }
        self.table.wake_at_ms(self.now())
    }

    pub(super) fn is_wake_due(&self) -> bool {
        self.wake_at_ms().is_some_and(|at_ms| at_ms <= self.now_ms)
    }

    /// The next time at which something can happen that could not before.
    pub(super) fn next_time(&self) -> Option<i64> {
        let exact = self.scope().exact_ends;
        let ends = (0..self.cast.keys.len()).flat_map(|key| {
            let lock = self.data.read(key).unwrap_or_default();
            let leases = lock.holders().iter().filter_map(|one| one.lease_end_ms);
            let ends: Vec<i64> = leases.chain(self.data.expires_at_ms(key)).collect();
            ends
        });
        let ends = ends.flat_map(|end_ms| {
            let at = exact.then_some(end_ms);
            at.into_iter().chain([end_ms + 1])
        });
        let times = ends.chain(self.wake_at_ms());
        times.filter(|&at_ms| at_ms > self.now_ms).min()
    }

    /// A token as a small number.
    pub(super) fn short(&self, token: FencingToken) -> i64 {
        let began_us = BEGIN_MS * 1000;
        match token.get() {
            token if token > began_us => token - began_us,
            token => token,
        }
    }

    /// All that invariants are about.
    pub(super) fn picture(&self) -> String {
        let of_key = |key: usize| {
            let (lock, holders) = (self.data.read(key), self.holders(key));
            let (waiting, known) = (self.waiting(key), &self.known[key]);
            let name = key_name(key);
            format!("{name} is {lock:?}, held by {holders:?}, for which {waiting:?}; {known:?}")
        };
        let keys: Vec<String> = (0..self.cast.keys.len()).map(of_key).collect();
        format!("at {}: {}", self.now_ms, keys.join("; "))
    }

    /// Forgets what can't matter any more.
    pub(super) fn forget_what_has_gone(&mut self) {
        for key in 0..self.cast.keys.len() {
            let lock = self.data.read(key).unwrap_or_default();
            for owner in 0..self.cast.owners.len() {
                let holder = lock.holder(&self.cast.owners[owner]);
                let token = holder.and_then(|holder| holder.token);
                let known = &mut self.known[key][owner];
                let now_ms = self.now_ms;
                known.promise = known.promise.filter(|&(_, until_ms)| until_ms >= now_ms);
                known.over = known.over.filter(|&over| token == Some(over));
                known.unclaimed = known.unclaimed.filter(|&(its, _)| token == Some(its));
                if token.is_none() && known.promise.is_none() {
                    known.holds = 0;
                }
            }
        }
    }
}

pub(super) fn new_table(scope: &Scope) -> LockTable {
    let mut table = LockTable::default();
    table.settings = Settings {
        recheck_interval_ms: scope.times.recheck,
        claim_timeout_ms: scope.times.claim,
        reads_other_keys: scope.reads_other_keys,
        ..Settings::default()
    };
    table
}

/// Parts of a state.
impl World {
    pub(super) fn take_down_grant(&self, grant: &Grant, form: &mut Form<'_>) {
        form.key(self.cast.key(grant.key));
        form.token(Some(grant.token));
        form.flag(grant.ask.is_some());
        if let Some(ask) = grant.ask {
            form.text(ask.words);
            form.flag(grant.was_held);
        }
    }

    /// What an owner waits for on one of several nodes.
    pub(super) fn take_down_waits(&self, owner: usize, form: &mut Form<'_>) {
        let places = self.places.iter().filter(|place| place.owner == owner);
        form.count(places.clone().count());
        for place in places {
            form.waiter(Some(place.id));
            form.flag(place.is_left);
            let left_ms = place.withheld_until_ms.map(|at_ms| at_ms - self.now_ms);
            form.number(left_ms.map_or(i64::MIN, |left_ms| left_ms.max(-1)));
            form.number(self.first_lease(place.ask));
        }
        match self.connections[owner].doing {
            Doing::Waiting(id, _, ask) => {
                form.waiter(Some(id));
                form.number(ask.lease_ms);
            }
            Doing::Withheld(id, grant) => {
                form.waiter(Some(id));
                form.number((grant.until_ms - self.now_ms).max(-1));
            }
            Doing::Nothing | Doing::ToHear(_) => form.number(0),
        }
    }
}
