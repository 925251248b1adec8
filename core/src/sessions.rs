//! Holds that last as long as a connection.
//!
//! Such a hold is bound to a client. Its lease is renewed again and again while
//! the client is connected, and it ends when the client is gone. What is stored
//! is a lock like any other: a binding is lost with the server's process, and its
//! hold then ends with its lease. A binding follows its lock to another name or
//! another database.
//!
//! Whoever holds by a connection believes in its hold while the connection lives.
//! So where a lease could not be kept up, the connection has to be closed.
//!
//! # What it costs
//! Everything about one hold takes logarithmic time, and so does the end of a
//! connection, however much was bound to it: its bindings are set aside as a whole,
//! and each is taken from there when somebody sees its lock, or when its turn comes.
//! To find those of one lock takes as many looks as it has holders or as there are
//! such clients, whichever are fewer. A lock that moves to another key takes a look
//! and a few moves for each of its bindings; two databases that change places have
//! all bindings of the server inserted anew.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

#[cfg(test)]
use crate::explore::form::Form;
use crate::keys::{KeyBuf, KeyRef};
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::{ClientId, Lease, Owner};
use crate::token::FencingToken;

/// A lease is renewed when this part of it is over, so that one renewal may
/// come late without harm.
const RENEWALS_A_LEASE: i64 = 3;

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
    pub(crate) renew_at_ms: i64,
}

/// All bindings of a server.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    bindings: BTreeMap<HoldId, Binding>,
    by_client: BTreeMap<ClientId, BTreeSet<HoldId>>,
    /// The same of clients whose connections have ended.
    ended: BTreeMap<ClientId, BTreeSet<HoldId>>,
    renewals: BTreeSet<(i64, HoldId)>,
}

impl Sessions {
    /// Whether nothing is bound to any client.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// How many bindings to living connections there are.
    pub fn len(&self) -> usize {
        let ended: usize = self.ended.values().map(BTreeSet::len).sum();
        self.bindings.len() - ended
    }

    /// What binds an owner's holds on a lock to a living connection.
    pub fn binding_of(&self, key: KeyRef<'_>, owner: &Owner) -> Option<Binding> {
        if self.is_empty() {
            return None;
        }
        let binding = self.bindings.get(&HoldId::new(key, owner)).copied();
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

    /// Some holds that are bound to a connection which has ended.
    pub fn next_ended(&self) -> Option<&HoldId> {
        self.ended.values().next()?.first()
    }

    /// The holds on this lock that are bound to connections which have ended, of its
    /// holders and perhaps of others.
    pub fn ended_on<'o>(
        &self,
        key: KeyRef<'_>,
        holders: impl ExactSizeIterator<Item = &'o Owner>,
        at_most: usize,
    ) -> SmallVec<[HoldId; 1]> {
        if holders.len() <= self.ended.len() {
            let holds = holders.map(|owner| HoldId::new(key, owner));
            return holds
                .filter(|hold| self.ended_binding(hold).is_some())
                .take(at_most)
                .collect();
        }
        let first = HoldId::new(key, &Owner::least());
        let of_client = |holds: &'_ BTreeSet<HoldId>| -> SmallVec<[HoldId; 1]> {
            let from_first = holds.range(&first..);
            let here = from_first.take_while(|hold| hold.key == first.key);
            here.take(at_most).cloned().collect()
        };
        let holds = self.ended.values().flat_map(of_client);
        holds.take(at_most).collect()
    }

    /// What binds these holds to a connection that has ended.
    pub fn ended_binding(&self, hold: &HoldId) -> Option<Binding> {
        let binding = self.bindings.get(hold).copied();
        binding.filter(|binding| self.has_ended(binding.client))
    }

    /// Takes what binds these holds to a connection that has ended.
    pub fn take_ended(&mut self, hold: &HoldId) -> Option<Binding> {
        if self.ended.is_empty() {
            return None;
        }
        self.ended_binding(hold)?;
        self.unbind_hold(hold)
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
        let hold = HoldId {
            key: self.named(key),
            owner: owner.clone(),
        };
        let kept_until_ms = lease.end_ms(now_ms);
        let binding = match self.unbind_hold(&hold).filter(|old| old.token == token) {
            // The longer lease is kept up as was planned: re-entry by a shorter
            // one did not prolong it.
            Some(old) if old.lease > lease => Binding {
                client,
                kept_until_ms: old.kept_until_ms.max(kept_until_ms),
                ..old
            },
            _ => Binding {
                client,
                token,
                lease,
                kept_until_ms,
                renew_at_ms: renew_at_ms(lease, now_ms),
            },
        };
        self.insert(hold, binding);
    }

    /// The key as it is in memory already, if anything is bound that is held of it.
    fn named(&self, key: KeyRef<'_>) -> KeyBuf {
        let first = HoldId::new(key, &Owner::least());
        let next = self.bindings.range(&first..).next();
        let known = next.filter(|(hold, _)| hold.key == first.key);
        known.map_or(first.key.clone(), |(hold, _)| hold.key.clone())
    }

    /// Notes that a grant lets bound holds last until then at least.
    pub fn last_until(&mut self, key: KeyRef<'_>, owner: &Owner, token: FencingToken, at_ms: i64) {
        if self.is_empty() {
            return;
        }
        if let Some(binding) = self.bindings.get_mut(&HoldId::new(key, owner))
            && binding.token == token
        {
            binding.kept_until_ms = binding.kept_until_ms.max(at_ms);
        }
    }

    /// Binds holds, whose binding has just been taken, to another client.
    pub fn rebind(&mut self, hold: HoldId, binding: Binding, client: ClientId, lease: Lease) {
        self.insert(
            hold,
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
        let bound = self.binding_of(key, owner);
        if bound.is_none_or(|binding| binding.token != token) {
            return;
        }
        let hold = HoldId::new(key, owner);
        if let Some(binding) = self.unbind_hold(&hold) {
            let renew_at_ms = renew_at_ms(lease, now_ms);
            self.insert(
                hold,
                Binding {
                    lease,
                    kept_until_ms: lease.end_ms(now_ms),
                    renew_at_ms,
                    ..binding
                },
            );
        }
    }

    /// Forgets a binding, because the holds are over.
    pub fn unbind(&mut self, key: KeyRef<'_>, owner: &Owner) {
        if !self.is_empty() {
            self.unbind_hold(&HoldId::new(key, owner));
        }
    }

    /// Notes until when holds last as far as anybody may rely on it.
    pub fn count_until(&mut self, hold: &HoldId, at_ms: i64) {
        if let Some(binding) = self.bindings.get_mut(hold) {
            binding.kept_until_ms = at_ms;
        }
    }

    /// Forgets bindings, because the holds are over.
    pub fn unbind_all(&mut self, holds: &[HoldId]) {
        for hold in holds {
            self.unbind_hold(hold);
        }
    }

    /// The holds on this lock that are bound, in order: so they are found and moved in
    /// far less time than in another.
    pub fn bound_on(&self, key: KeyRef<'_>) -> Vec<HoldId> {
        if self.is_empty() {
            return Vec::new();
        }
        let first = HoldId::new(key, &Owner::least());
        let holds = self.bindings.range(&first..).map(|(hold, _)| hold);
        let here = holds.take_while(|hold| hold.key == first.key);
        here.cloned().collect()
    }

    /// Notes that holds were kept up, and last for their whole lease again.
    pub fn kept(&mut self, hold: &HoldId, now_ms: i64) {
        if let Some(binding) = self.bindings.get_mut(hold) {
            binding.kept_until_ms = binding.lease.end_ms(now_ms);
        }
    }

    /// Plans the next renewal anew.
    pub fn renew_by(&mut self, hold: &HoldId, at_ms: i64) {
        if let Some(binding) = self.bindings.get_mut(hold) {
            self.renewals.remove(&(binding.renew_at_ms, hold.clone()));
            binding.renew_at_ms = at_ms;
            self.renewals.insert((at_ms, hold.clone()));
        }
    }

    /// Moves the ends of leases, because the wall clock was set by so much, and has them
    /// renewed at once where they would end early. Returns the locks.
    pub fn clock_stepped(&mut self, by_ms: i64, now_ms: i64) -> BTreeSet<KeyBuf> {
        self.renewals.clear();
        for (hold, binding) in &mut self.bindings {
            binding.kept_until_ms = binding.kept_until_ms.saturating_add(by_ms);
            binding.renew_at_ms = match by_ms {
                0.. => now_ms,
                _ => binding.renew_at_ms.saturating_add(by_ms),
            };
            self.renewals.insert((binding.renew_at_ms, hold.clone()));
        }
        let holds = self.bindings.keys();
        holds.map(|hold| hold.key.clone()).collect()
    }

    /// A client to which something is bound.
    pub fn any_client(&self) -> Option<ClientId> {
        self.by_client.keys().next().copied()
    }

    /// Lets the bindings of one lock follow it to another key.
    pub fn follow(&mut self, from: KeyRef<'_>, to: KeyRef<'_>) {
        let to: KeyBuf = to.into();
        for old in self.bound_on(from) {
            self.move_binding(&old, to.clone());
        }
    }

    /// Lets the bindings follow the locks of two databases that changed places.
    pub fn swap_databases(&mut self, one: i32, other: i32) {
        self.renewals.clear();
        self.by_client.clear();
        self.ended.values_mut().for_each(BTreeSet::clear);
        for (HoldId { key, owner }, binding) in std::mem::take(&mut self.bindings) {
            let key = key.swapped(one, other);
            self.insert(HoldId { key, owner }, binding);
        }
    }

    fn move_binding(&mut self, from: &HoldId, key: KeyBuf) {
        let has_ended = self.ended_binding(from).is_some();
        if let Some(binding) = self.unbind_hold(from) {
            let owner = from.owner.clone();
            let to = HoldId { key, owner };
            // The lock that was there before has been overwritten.
            self.unbind_hold(&to);
            if has_ended {
                self.ended.entry(binding.client).or_default();
            }
            self.insert(to, binding);
        }
    }

    /// When the next renewal is due.
    pub fn next_renewal_ms(&self) -> Option<i64> {
        self.renewals.first().map(|&(at_ms, _)| at_ms)
    }

    /// Holds whose renewal is due at `now_ms`.
    pub fn next_due(&self, now_ms: i64) -> Option<&HoldId> {
        let (at_ms, hold) = self.renewals.first()?;
        (*at_ms <= now_ms).then_some(hold)
    }

    /// Takes holds whose renewal is due at `now_ms`, and plans the one after it.
    /// Whoever finds that they are over unbinds them, and whoever finds that their
    /// connection has ended takes them from there.
    pub fn take_due(&mut self, now_ms: i64) -> Option<(HoldId, Binding)> {
        if self.next_renewal_ms()? > now_ms {
            return None;
        }
        let (_, hold) = self.renewals.pop_first()?;
        let binding = self.bindings.get_mut(&hold)?;
        binding.renew_at_ms = renew_at_ms(binding.lease, now_ms);
        self.renewals.insert((binding.renew_at_ms, hold.clone()));
        Some((hold, *binding))
    }

    fn insert(&mut self, hold: HoldId, binding: Binding) {
        let holds = match self.ended.get_mut(&binding.client) {
            Some(ended) => ended,
            None => self.by_client.entry(binding.client).or_default(),
        };
        holds.insert(hold.clone());
        self.renewals.insert((binding.renew_at_ms, hold.clone()));
        self.bindings.insert(hold, binding);
    }

    fn unbind_hold(&mut self, hold: &HoldId) -> Option<Binding> {
        let (hold, binding) = self.bindings.remove_entry(hold)?;
        for by_client in [&mut self.by_client, &mut self.ended] {
            if let Some(holds) = by_client.get_mut(&binding.client) {
                holds.remove(&hold);
                if holds.is_empty() {
                    by_client.remove(&binding.client);
                }
            }
        }
        self.renewals.remove(&(binding.renew_at_ms, hold));
        Some(binding)
    }
}

#[cfg(test)]
impl Sessions {
    /// Writes down what decides what will happen.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            for owner in form.owners() {
                let binding = self.bindings.get(&HoldId::new(key.as_ref(), owner));
                form.client(binding.map(|one| one.client));
                if let Some(binding) = binding {
                    form.flag(self.has_ended(binding.client));
                    form.token(Some(binding.token));
                    form.number(binding.lease.ms());
                    form.time(Some(binding.kept_until_ms));
                    form.time(Some(binding.renew_at_ms));
                }
            }
        }
    }

    /// Whether holds on this lock are bound to a connection that has ended.
    pub(crate) fn any_ended_on(&self, key: KeyRef<'_>) -> bool {
        let mut holds = self.ended.values().flatten();
        holds.any(|hold| hold.key.as_ref() == key)
    }

    /// Whether all that is kept twice is the same.
    pub(crate) fn agree(&self) -> bool {
        let bindings = || self.bindings.iter();
        let renewals: BTreeSet<_> = bindings()
            .map(|(hold, binding)| (binding.renew_at_ms, hold.clone()))
            .collect();
        let all = || self.by_client.iter().chain(&self.ended);
        let by_client: usize = all().map(|(_, holds)| holds.len()).sum();
        let is_by_client = |(hold, binding): (&HoldId, &Binding)| {
            let mut of_client = all().filter(|(client, _)| **client == binding.client);
            of_client.any(|(_, holds)| holds.contains(hold))
        };
        renewals == self.renewals
            && by_client == self.bindings.len()
            && bindings().all(is_by_client)
    }
}

fn renew_at_ms(lease: Lease, now_ms: i64) -> i64 {
    now_ms.saturating_add((lease.ms() / RENEWALS_A_LEASE).max(1))
}

#[cfg(test)]
mod tests;
