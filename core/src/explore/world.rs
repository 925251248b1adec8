//! The state of a server, of its clients, and of what they know.

use std::rc::Rc;

use super::cast::Cast;
use super::form::client_id;
use super::keyspace::{Keyspace, Write};
use super::scope::{Ask, BEGIN_MS, CLAIM_MS, RECHECK_MS, Scope};
use super::search::{Broken, Checked};
use crate::error::LockError;
use crate::explore::cast::{key_name, owner_name};
use crate::lock::{Lock, Now};
use crate::queue::WaiterId;
use crate::request::{ClientId, Owner};
use crate::table::{HolderView, LockTable, Settings};
use crate::token::FencingToken;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Doing {
    Nothing,
    Waiting {
        key: usize,
        id: WaiterId,
        ask: Ask,
    },
    /// It was granted the lock, and has not heard of it yet.
    ToHear {
        /// Where the hold is now, if anywhere.
        key: usize,
        token: FencingToken,
        ask: Ask,
        /// Whether its owner held the lock before.
        was_held: bool,
    },
    /// Its reply waits for replicas.
    Withheld {
        key: usize,
        id: WaiterId,
        token: FencingToken,
        /// What it was granted. A renewal was asked for if nothing was.
        grant: Option<(Ask, bool)>,
        /// When the lease ends of which the reply tells.
        until_ms: i64,
    },
}

impl Doing {
    /// Whether the owner held the lock before, if it is about to be told of a grant with
    /// this token.
    pub(super) fn grant_of(&mut self, of_key: usize, of_token: FencingToken) -> Option<&mut bool> {
        match self {
            Self::ToHear {
                key,
                token,
                was_held,
                ..
            }
            | Self::Withheld {
                key,
                token,
                grant: Some((_, was_held)),
                ..
            } if (*key, *token) == (of_key, of_token) => Some(was_held),
            _ => None,
        }
    }
}

/// A place in a queue, as its owner asked for it last.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceKept {
    pub(super) id: WaiterId,
    /// The connection that asked.
    pub(super) at: usize,
    pub(super) ask: Ask,
    pub(super) until_ms: i64,
    pub(super) session: Option<ClientId>,
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

    /// It is told of a hold by this connection, without `SESSION`.
    pub(super) fn told_by(&mut self, client: ClientId, token: FencingToken) {
        if let Some(tied) = &mut self.tied
            && tied.token == token
        {
            tied.told_elsewhere |= !tied.has(client);
        }
    }

    /// It is told of a renewal, which may have shortened its lease.
    pub(super) fn renewed(&mut self, client: ClientId, token: FencingToken, until_ms: i64) {
        self.rely_until(token, until_ms);
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
    pub(super) fn rely_until(&mut self, token: FencingToken, until_ms: i64) {
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
    /// The places of each owner that it was not told the end of.
    pub(super) places: [[Option<PlaceKept>; 3]; 2],
    /// Whose messages nobody listens to.
    pub(super) deaf: [bool; 3],
    /// The greatest token that was ever granted.
    pub(super) greatest: Option<FencingToken>,
    /// What became of a key since the module looked at it last.
    pub(super) changed: [Changed; 2],
    /// When the module tries again, after the server refused its writes.
    pub(super) retry_at_ms: Option<i64>,
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
    pub(super) fn begin(scope: Scope) -> Self {
        let cast = Cast::new(scope, scope.connections, scope.keys, &[0]);
        let connection = Connection {
            generation: 1,
            doing: Doing::Nothing,
        };
        Self {
            table: new_table(&scope),
            data: Keyspace::default(),
            copy: Keyspace::default(),
            last_write: Vec::new(),
            now_ms: BEGIN_MS,
            steps: 0,
            connections: vec![connection; cast.owner_of.len()],
            cast,
            known: Default::default(),
            places: Default::default(),
            deaf: Default::default(),
            greatest: None,
            changed: Default::default(),
            retry_at_ms: None,
            said: None,
        }
    }

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
        table.end_gone_on(self.cast.key(key), &lock);
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
            Doing::Waiting { key: its, id, ask } if its == key => Some((id, at, ask)),
            _ => None,
        });
        let places = self.places_for(key).map(|one| (one.id, one.at, one.ask));
        let mut waiting: Vec<_> = blocked.chain(places).collect();
        waiting.sort_by_key(|&(id, ..)| id);
        waiting
    }

    /// The same, but for places that are over and have not been removed.
    pub(super) fn still_waiting(&self, key: usize) -> Vec<(WaiterId, usize, Ask)> {
        let is_over = |id| {
            let mut places = self.places_for(key);
            places.any(|place| place.id == id && self.is_over(place))
        };
        let mut waiting = self.waiting(key);
        waiting.retain(|&(id, ..)| !is_over(id));
        waiting
    }

    /// The places in this key's queue.
    pub(super) fn places_for(&self, key: usize) -> impl Iterator<Item = &PlaceKept> {
        self.places[key].iter().flatten()
    }

    /// Whether a place must not be granted anything any more.
    pub(super) fn is_over(&self, place: &PlaceKept) -> bool {
        let has_ended = |client| self.connection_of(client).is_none();
        place.until_ms <= self.now_ms || place.session.is_some_and(has_ended)
    }

    /// The key and the owner of a place.
    pub(super) fn whose_place(&self, id: WaiterId) -> Checked<(usize, usize, PlaceKept)> {
        let keys = 0..self.cast.keys.len();
        let all = keys.flat_map(|key| (0..self.cast.owners.len()).map(move |owner| (key, owner)));
        let mut places = all.filter_map(|(key, owner)| {
            let place = self.places[key][owner]?;
            (place.id == id).then_some((key, owner, place))
        });
        places.next().ok_or_else(|| {
            Broken::new(
                "only_who_waits_is_answered",
                "the table told of a place that is not there".to_owned(),
            )
        })
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

    /// The code of an error, and who waits for whom.
    pub(super) fn code(&self, error: &LockError) -> String {
        let text = error.to_string();
        let code = text.split(' ').next().unwrap_or_default();
        let LockError::Deadlock { cycle } = error else {
            return format!("-{code}");
        };
        let edges = cycle.iter().map(|edge| {
            let key = self.cast.keys.iter().position(|one| *one == edge.key);
            let name = |owner: &Owner| owner_name(self.owner_number(owner));
            let (waiter, blocker) = (name(&edge.waiter), name(&edge.blocker));
            let key = key.map_or("?", |key| key_name(key));
            format!("{waiter} waits for {key} held by {blocker}")
        });
        format!("-{code}: {}", edges.collect::<Vec<_>>().join(", "))
    }

    /// A lock in few words.
    pub(super) fn sketch(&self, lock: &Lock) -> String {
        let in_ms = |at_ms: Option<i64>| match at_ms {
            Some(at_ms) => format!("{} ms", at_ms - self.now_ms),
            None => "ever".to_owned(),
        };
        let holders = lock.holders().iter().map(|one| {
            let name = owner_name(self.owner_number(&one.owner));
            let token = one.token.map_or(0, |token| self.short(token));
            let (holds, left) = (one.holds, in_ms(one.lease_end_ms));
            format!("{name} {holds} time(s) by token {token} for {left}")
        });
        let holders: Vec<String> = holders.collect();
        match holders.is_empty() {
            true => "nobody".to_owned(),
            false => format!(
                "{}, of a key that lasts for {}",
                holders.join(" and "),
                in_ms(lock.expires_at_ms)
            ),
        }
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
        recheck_interval_ms: RECHECK_MS,
        claim_timeout_ms: CLAIM_MS,
        reads_other_keys: scope.reads_other_keys,
        ..Settings::default()
    };
    table
}
