//! Holds that last as long as a connection.
//!
//! Such a hold is bound to a client. Its lease is renewed again and again while
//! the client is connected, and it ends when the client is gone. What is stored
//! is a lock like any other: a binding is lost with the server's process, and its
//! hold then ends with its lease. A binding stays with the name of its lock: under another
//! one that is a plain hold.
//!
//! Whoever holds by a connection believes in its hold while the connection lives.
//! So where a lease could not be kept up, the connection has to be closed.
//!
//! # What it costs
//! Everything about one hold takes logarithmic time, and so does the end of a
//! connection, however much was bound to it: its bindings are set aside as a whole,
//! and each is taken from there when somebody sees its lock, or when its turn comes.
//! To find those of one lock takes as many looks as it has holders or as there are
//! such clients, whichever are fewer. To list the tokens of all of them takes a step for
//! each binding of the lock, which is far shorter than a look.
//!
//! A binding names its lock by an id, and only the id knows the key. So a lock that
//! moves, or two databases that change places, take no look at any binding; and neither
//! does a lock of which nothing shall be bound any more: its id is left behind, and its
//! bindings are taken from there bit by bit, by [`Sessions::take_left`].

mod lock_ids;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter;

use smallvec::SmallVec;

use crate::bounds::few;
#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{ClientId, Lease, Owner};
use crate::token::FencingToken;

use lock_ids::{LockId, LockIds};

/// A lease is renewed when this part of it is over, so that one renewal may
/// come late without harm.
const RENEWALS_A_LEASE: i64 = 3;

/// How many locks of connections that have ended are looked at for one that was not left
/// behind.
const LEFT_LOOKED_AT: usize = 64;

/// How many bindings that were left behind are told from others where they are counted.
const LEFT_COUNTED: usize = 1024;

/// An owner's holds on a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    /// The lock.
    pub key: KeyBuf,
    /// Who holds it.
    pub owner: Owner,
}

impl HoldId {
    /// The holds of this owner on this lock.
    pub fn new(key: KeyRef<'_>, owner: &Owner) -> Self {
        Self {
            key: key.into(),
            owner: owner.clone(),
        }
    }
}

/// What binds holds to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The client.
    pub client: ClientId,
    /// The token of the holds.
    pub token: FencingToken,
    /// How long they shall last at least, from any moment on.
    pub lease: Lease,
    /// Until when they last as far as they have been kept up, in milliseconds
    /// since 1970.
    pub kept_until_ms: i64,
    /// Whether the owner has claimed its grant. Until then nothing keeps it up.
    pub is_claimed: bool,
    pub(crate) renew_at_ms: i64,
}

/// An owner's holds on a lock, wherever that is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    lock: LockId,
    owner: Owner,
}

impl Bound {
    fn by_token(&self, binding: &Binding) -> (LockId, FencingToken, Owner) {
        (self.lock, binding.token, self.owner.clone())
    }
}

/// All bindings of a server.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    locks: LockIds,
    bindings: BTreeMap<Bound, Binding>,
    by_client: BTreeMap<ClientId, BTreeSet<Bound>>,
    /// The same of clients whose connections have ended.
    ended: BTreeMap<ClientId, BTreeSet<Bound>>,
    renewals: BTreeSet<(i64, Bound)>,
    /// Those of locks of which holds of several owners are bound.
    by_token: BTreeMap<(LockId, FencingToken, Owner), ClientId>,
    /// Locks that were left behind, and when.
    left: VecDeque<(LockId, i64)>,
}

impl Sessions {
    /// Whether nothing is bound to any client.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// How many bindings to living connections there are. Those of a crowd that was left
    /// behind may be counted until few of them are.
    pub fn len(&self) -> usize {
        let ended: usize = self.ended.values().map(BTreeSet::len).sum();
        let left = self.left.iter().flat_map(|(lock, _)| self.bound_of(*lock));
        let left = left.take(LEFT_COUNTED);
        let left = left.filter(|(_, binding)| !self.has_ended(binding.client));
        self.bindings.len() - ended - left.count()
    }

    /// How many connections there are to which anything is bound.
    pub fn clients(&self) -> usize {
        self.by_client.len()
    }

    /// How many bindings there are, also to connections that have ended.
    pub fn bindings(&self) -> usize {
        self.bindings.len()
    }

    /// What is bound of this lock, in the order of its owners.
    fn bound_of(&self, lock: LockId) -> impl Iterator<Item = (&Bound, &Binding)> {
        let owner = Owner::least();
        let from_first = self.bindings.range(Bound { lock, owner }..);
        from_first.take_while(move |(bound, _)| bound.lock == lock)
    }

    /// What is bound of this lock, if it is of one owner.
    fn only_bound_of(&self, lock: LockId) -> Option<(&Bound, &Binding)> {
        let mut bound = self.bound_of(lock);
        let first = bound.next()?;
        bound.next().is_none().then_some(first)
    }

    fn bound(&self, key: KeyRef<'_>, owner: &Owner) -> Option<Bound> {
        let lock = self.locks.at(key)?;
        let owner = owner.clone();
        Some(Bound { lock, owner })
    }

    fn hold(&self, bound: &Bound) -> Option<HoldId> {
        let key = self.locks.key(bound.lock)?;
        let owner = bound.owner.clone();
        Some(HoldId { key, owner })
    }

    fn binding_mut(&mut self, hold: &HoldId) -> Option<&mut Binding> {
        let bound = self.bound(hold.key.as_ref(), &hold.owner)?;
        self.bindings.get_mut(&bound)
    }

    /// What binds an owner's holds on a lock to a living connection.
    pub fn binding_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<Binding> {
        let binding = self.bindings.get(&self.bound(key, owner)?).copied();
        binding.filter(|binding| !self.has_ended(binding.client))
    }

    /// Whether this client's connection has ended, and something is bound to it yet.
    pub fn has_ended(&self, client: ClientId) -> bool {
        self.ended.contains_key(&client)
    }

    /// Sets aside what is bound to a client, because its connection has ended.
    pub fn end_client(&mut self, client: ClientId) {
        #[cfg(feature = "planted-faults")]
        if Fault::SessionOutlived.planted() {
            return;
        }
        if let Some(mut holds) = self.by_client.remove(&client) {
            self.ended.entry(client).or_default().append(&mut holds);
        }
    }

    /// Whether holds are bound to a connection which has ended.
    pub fn any_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Some holds that are bound to a connection which has ended. None where all were left
    /// behind, as far as one look goes.
    pub fn next_ended(&self) -> Option<HoldId> {
        let bound = self.ended.values().flat_map(one_a_lock);
        bound
            .take(LEFT_LOOKED_AT)
            .find_map(|bound| self.hold(bound))
    }

    /// The holds on this lock that are bound to connections which have ended, in the order
    /// of their tokens.
    pub fn ended_by_token(&self, key: KeyRef<'_>) -> impl Iterator<Item = (FencingToken, &Owner)> {
        let lock = self.locks.at(key).filter(|_| self.any_ended());
        let only = lock.and_then(|lock| self.only_bound_of(lock));
        let only = only.map(|(bound, binding)| (binding.token, &bound.owner, binding.client));
        let from_first = lock.map(|lock| {
            let first = (lock, FencingToken::LEAST, Owner::least());
            self.by_token.range(first..)
        });
        let from_first = from_first.unwrap_or_default();
        let bound = from_first.take_while(move |((other, ..), _)| Some(*other) == lock);
        let bound = bound.map(|((_, token, owner), client)| (*token, owner, *client));
        // Each client is in one of two maps, and mostly one of these is small.
        let few_have_ended = self.ended.len() <= self.by_client.len();
        let look_for = move |client: &ClientId| match few_have_ended {
            true => self.ended.contains_key(client),
            false => !self.by_client.contains_key(client),
        };
        // Mostly it is one client after all.
        let mut last = None;
        let mut has_ended = move |client: ClientId| {
            if let Some((last, has_ended)) = last
                && last == client
            {
                return has_ended;
            }
            let has_ended = look_for(&client);
            last = Some((client, has_ended));
            has_ended
        };
        let bound = only.into_iter().chain(bound);
        let ended = bound.filter(move |(.., client)| has_ended(*client));
        ended.map(|(token, owner, _)| (token, owner))
    }

    /// The holds on this lock that are bound to connections which have ended, of its
    /// holders and perhaps of others.
    pub fn ended_on<'o>(
        &self,
        key: KeyRef<'_>,
        holders: impl ExactSizeIterator<Item = &'o Owner>,
        at_most: usize,
    ) -> SmallVec<[HoldId; 1]> {
        let Some(lock) = self.locks.at(key) else {
            return SmallVec::new();
        };
        let of_owner = |owner: Owner| Bound { lock, owner };
        if holders.len() <= self.ended.len().max(few()) {
            let ended = holders.map(|owner| of_owner(owner.clone()));
            let ended = ended.filter(|bound| self.binding_of_ended(bound).is_some());
            let holds = ended.take(at_most).filter_map(|bound| self.hold(&bound));
            return holds.collect();
        }
        let first = of_owner(Owner::least());
        let of_client = |ended: &'_ BTreeSet<Bound>| -> SmallVec<[HoldId; 1]> {
            let from_first = ended.range(&first..);
            let here = from_first.take_while(|bound| bound.lock == lock);
            here.take(at_most)
                .filter_map(|bound| self.hold(bound))
                .collect()
        };
        let holds = self.ended.values().flat_map(of_client);
        holds.take(at_most).collect()
    }

    /// What binds these holds to a connection that has ended.
    pub fn ended_binding(&self, hold: &HoldId) -> Option<Binding> {
        self.binding_of_ended(&self.bound(hold.key.as_ref(), &hold.owner)?)
    }

    fn binding_of_ended(&self, bound: &Bound) -> Option<Binding> {
        let binding = self.bindings.get(bound).copied();
        binding.filter(|binding| self.has_ended(binding.client))
    }

    /// Takes what binds these holds to a connection that has ended.
    pub fn take_ended(&mut self, hold: &HoldId) -> Option<Binding> {
        if self.ended.is_empty() {
            return None;
        }
        let bound = self.bound(hold.key.as_ref(), &hold.owner)?;
        self.binding_of_ended(&bound)?;
        self.take(&bound)
    }

    /// Takes what binds holds to a living connection, to be bound anew.
    pub fn take_binding(&mut self, hold: &HoldId) -> Option<Binding> {
        self.binding_of(hold.key.as_ref(), &hold.owner)?;
        self.take(&self.bound(hold.key.as_ref(), &hold.owner)?)
    }

    /// Binds holds to a client, and to no other any more. Re-entry does not
    /// shorten the lease that is kept up.
    pub fn bind(
        &mut self,
        key: KeyRef<'_>,
        owner: &Owner,
        client: ClientId,
        token: FencingToken,
        lease: Lease,
        now_ms: i64,
    ) {
        let (lock, owner) = (self.locks.at_or_new(key), owner.clone());
        let bound = Bound { lock, owner };
        let kept_until_ms = lease.end_ms(now_ms);
        let old = self.remove(&bound).map(|(old, _)| old);
        let binding = match old.filter(|old| old.token == token) {
            // The longer lease is kept up as was planned: re-entry by a shorter
            // one did not prolong it.
            Some(old) if old.is_claimed && old.lease > lease => Binding {
                client,
                kept_until_ms: old.kept_until_ms.max(kept_until_ms),
                is_claimed: true,
                ..old
            },
            old => Binding {
                client,
                token,
                lease,
                kept_until_ms: old
                    .map_or(kept_until_ms, |old| old.kept_until_ms.max(kept_until_ms)),
                is_claimed: true,
                renew_at_ms: renew_at_ms(lease, now_ms),
            },
        };
        self.insert(bound, binding);
    }

    /// Notes that a grant lets bound holds last until then at least.
    pub fn last_until(&mut self, key: KeyRef<'_>, owner: &Owner, token: FencingToken, at_ms: i64) {
        if let Some(bound) = self.bound(key, owner)
            && let Some(binding) = self.bindings.get_mut(&bound)
            && binding.token == token
        {
            binding.kept_until_ms = binding.kept_until_ms.max(at_ms);
        }
    }

    /// Binds holds, whose binding has just been taken, to another client.
    pub fn rebind(&mut self, hold: HoldId, binding: Binding, client: ClientId, lease: Lease) {
        let lock = self.locks.at_or_new(hold.key.as_ref());
        let owner = hold.owner;
        self.insert(
            Bound { lock, owner },
            Binding {
                client,
                lease,
                ..binding
            },
        );
    }

    /// Keeps up another lease from now on, if the holds of this token are bound.
    pub fn set_lease(
        &mut self,
        key: KeyRef<'_>,
        owner: &Owner,
        token: FencingToken,
        lease: Lease,
        now_ms: i64,
    ) {
        let Some(bound) = self.bound(key, owner) else {
            return;
        };
        let ended = &self.ended;
        let binding = self
            .bindings
            .get_mut(&bound)
            .filter(|binding| binding.token == token && !ended.contains_key(&binding.client));
        if let Some(binding) = binding {
            binding.lease = lease;
            binding.kept_until_ms = lease.end_ms(now_ms);
            binding.is_claimed = true;
            self.renew_bound_by(bound, renew_at_ms(lease, now_ms));
        }
    }

    /// Notes that a grant is unclaimed: what it bound is not kept up.
    pub fn leave_unclaimed(&mut self, key: KeyRef<'_>, owner: &Owner) {
        #[cfg(feature = "planted-faults")]
        if Fault::UnclaimedKept.planted() {
            return;
        }
        if let Some(bound) = self.bound(key, owner)
            && let Some(binding) = self.bindings.get_mut(&bound)
        {
            binding.is_claimed = false;
            let over_ms = binding.kept_until_ms.saturating_add(1);
            self.renew_bound_by(bound, over_ms);
        }
    }

    /// Notes that a grant is claimed. It is kept up from then on.
    pub fn claim(&mut self, key: KeyRef<'_>, owner: &Owner, now_ms: i64) {
        if let Some(bound) = self.bound(key, owner)
            && let Some(binding) = self.bindings.get_mut(&bound)
            && !binding.is_claimed
        {
            binding.is_claimed = true;
            let at_ms = renew_at_ms(binding.lease, now_ms);
            self.renew_bound_by(bound, at_ms);
        }
    }

    /// Forgets a binding, because the holds are over.
    pub fn unbind(&mut self, key: KeyRef<'_>, owner: &Owner) {
        if let Some(bound) = self.bound(key, owner) {
            self.take(&bound);
        }
    }

    /// Notes until when holds last as far as anybody may rely on it.
    pub fn count_until(&mut self, hold: &HoldId, at_ms: i64) {
        if let Some(binding) = self.binding_mut(hold) {
            binding.kept_until_ms = at_ms;
        }
    }

    /// Notes that holds were kept up, and last for their whole lease again.
    pub fn kept(&mut self, hold: &HoldId, now_ms: i64) {
        if let Some(binding) = self.binding_mut(hold) {
            binding.kept_until_ms = binding.lease.end_ms(now_ms);
        }
    }

    /// Plans the next renewal anew.
    pub fn renew_by(&mut self, hold: &HoldId, at_ms: i64) {
        if let Some(bound) = self.bound(hold.key.as_ref(), &hold.owner) {
            self.renew_bound_by(bound, at_ms);
        }
    }

    fn renew_bound_by(&mut self, bound: Bound, at_ms: i64) {
        if let Some(binding) = self.bindings.get_mut(&bound) {
            let mut planned = (binding.renew_at_ms, bound);
            self.renewals.remove(&planned);
            binding.renew_at_ms = at_ms;
            planned.0 = at_ms;
            self.renewals.insert(planned);
        }
    }

    /// The key, if holds on this lock are bound, perhaps to a connection that has ended.
    pub fn bound_key(&self, key: KeyRef<'_>) -> Option<KeyBuf> {
        self.locks.key(self.locks.at(key)?)
    }

    /// A client to which something is bound.
    pub fn any_client(&self) -> Option<ClientId> {
        self.by_client.keys().next().copied()
    }

    /// Leaves behind all that is bound of this lock, because it is over.
    pub fn leave(&mut self, key: KeyRef<'_>, now_ms: i64) {
        let left = self.locks.take(key);
        self.left.extend(left.map(|lock| (lock, now_ms)));
    }

    /// Whether anything that was left behind has not been taken from there.
    pub fn any_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Takes a binding that was left behind. Returns with it when it was.
    pub fn take_left(&mut self) -> Option<(Binding, i64)> {
        loop {
            let &(lock, left_ms) = self.left.front()?;
            let first = self.bound_of(lock).next().map(|(bound, _)| bound.clone());
            match first.and_then(|bound| self.remove(&bound)) {
                Some((binding, _)) => return Some((binding, left_ms)),
                None => self.left.pop_front(),
            };
        }
    }

    /// When the next renewal is due.
    pub fn next_renewal_ms(&self) -> Option<i64> {
        self.renewals.first().map(|&(at_ms, _)| at_ms)
    }

    /// Holds whose renewal is due at `now_ms`. None while their turn is that of what was
    /// left behind.
    pub fn next_due(&self, now_ms: i64) -> Option<HoldId> {
        let (_, bound) = self
            .renewals
            .first()
            .filter(|(at_ms, _)| *at_ms <= now_ms)?;
        self.hold(bound)
    }

    /// Takes holds whose renewal is due at `now_ms`, and plans the one after it.
    /// Whoever finds that they are over unbinds them, and whoever finds that their
    /// connection has ended takes them from there.
    pub fn take_due(&mut self, now_ms: i64) -> Option<(HoldId, Binding)> {
        let hold = self.next_due(now_ms)?;
        let (_, bound) = self.renewals.pop_first()?;
        let binding = self.bindings.get_mut(&bound)?;
        binding.renew_at_ms = renew_at_ms(binding.lease, now_ms);
        self.renewals.insert((binding.renew_at_ms, bound));
        Some((hold, *binding))
    }

    fn insert(&mut self, bound: Bound, binding: Binding) {
        let of_client = match self.ended.get_mut(&binding.client) {
            Some(ended) => ended,
            None => self.by_client.entry(binding.client).or_default(),
        };
        of_client.insert(bound.clone());
        self.renewals.insert((binding.renew_at_ms, bound.clone()));
        let mut others = self.bound_of(bound.lock);
        let first = others.next();
        let first = first.map(|(bound, binding)| (bound.by_token(binding), binding.client));
        let is_second = others.next().is_none();
        drop(others);
        if let Some((by_token, client)) = first {
            if is_second {
                self.by_token.insert(by_token, client);
            }
            self.by_token
                .insert(bound.by_token(&binding), binding.client);
        }
        self.bindings.insert(bound, binding);
    }

    /// Takes a binding, and with the last one what its lock is called.
    fn take(&mut self, bound: &Bound) -> Option<Binding> {
        let (binding, is_last) = self.remove(bound)?;
        if is_last {
            self.locks.remove(bound.lock);
        }
        Some(binding)
    }

    /// Returns with it whether it was the last one of its lock.
    fn remove(&mut self, bound: &Bound) -> Option<(Binding, bool)> {
        let (bound, binding) = self.bindings.remove_entry(bound)?;
        for by_client in [&mut self.by_client, &mut self.ended] {
            if let Some(of_client) = by_client.get_mut(&binding.client) {
                of_client.remove(&bound);
                if of_client.is_empty() {
                    by_client.remove(&binding.client);
                }
            }
        }
        let mut others = self.bound_of(bound.lock);
        let first = others
            .next()
            .map(|(bound, binding)| bound.by_token(binding));
        let is_only = others.next().is_none();
        drop(others);
        let is_last = first.is_none();
        if let Some(first) = first {
            self.by_token.remove(&bound.by_token(&binding));
            if is_only {
                self.by_token.remove(&first);
            }
        }
        self.renewals.remove(&(binding.renew_at_ms, bound));
        Some((binding, is_last))
    }
}

#[cfg(test)]
impl Sessions {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            for owner in form.owners() {
                let bound = self.bound(key.as_ref(), owner);
                let binding = bound.and_then(|bound| self.bindings.get(&bound));
                form.client(binding.map(|one| one.client));
                if let Some(binding) = binding {
                    form.flag(self.has_ended(binding.client));
                    form.token(Some(binding.token));
                    form.number(binding.lease.ms());
                    form.flag(binding.is_claimed);
                    form.time(Some(binding.kept_until_ms));
                    form.time(Some(binding.renew_at_ms));
                }
            }
        }
        form.flag(self.any_left());
    }

    /// Whether holds on this lock are bound to a connection that has ended.
    pub(crate) fn any_ended_on(&self, key: KeyRef<'_>) -> bool {
        let lock = self.locks.at(key);
        let mut ended = self.ended.values().flatten();
        lock.is_some_and(|lock| ended.any(|bound| bound.lock == lock))
    }

    /// Whether all that is kept twice is the same.
    pub(crate) fn agree(&self) -> bool {
        let bindings = || self.bindings.iter();
        let renewals: BTreeSet<_> = bindings()
            .map(|(bound, binding)| (binding.renew_at_ms, bound.clone()))
            .collect();
        let by_token: BTreeMap<_, _> = bindings()
            .filter(|(bound, _)| self.only_bound_of(bound.lock).is_none())
            .map(|(bound, binding)| (bound.by_token(binding), binding.client))
            .collect();
        let all = || self.by_client.iter().chain(&self.ended);
        let by_client: usize = all().map(|(_, holds)| holds.len()).sum();
        let is_by_client = |(bound, binding): (&Bound, &Binding)| {
            let mut of_client = all().filter(|(client, _)| **client == binding.client);
            of_client.any(|(_, holds)| holds.contains(bound))
        };
        let locks: BTreeSet<LockId> = bindings().map(|(bound, _)| bound.lock).collect();
        let left: BTreeSet<LockId> = self.left.iter().map(|&(lock, _)| lock).collect();
        renewals == self.renewals
            && by_token == self.by_token
            && by_client == self.bindings.len()
            && bindings().all(is_by_client)
            && locks.difference(&left).copied().collect::<BTreeSet<_>>() == self.locks.all()
    }
}

/// The first of these of each lock. A lock is left behind as a whole.
fn one_a_lock(of_client: &BTreeSet<Bound>) -> impl Iterator<Item = &Bound> {
    iter::successors(of_client.first(), |bound| {
        let first = Bound {
            lock: bound.lock.next(),
            owner: Owner::least(),
        };
        of_client.range(first..).next()
    })
}

fn renew_at_ms(lease: Lease, now_ms: i64) -> i64 {
    now_ms.saturating_add((lease.ms() / RENEWALS_A_LEASE).max(1))
}

#[cfg(test)]
mod tests;
