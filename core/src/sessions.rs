//! Holds that last as long as a connection.
//!
//! Such a hold is bound to the connections on which its owner asked for it with `SESSION`. Its
//! lease is renewed again and again while one of them lives, and it ends with the last one,
//! unless its owner was told of it elsewhere: then it is a plain hold for the rest of its lease.
//! What is stored is a lock like any other: a binding is lost with the server's process, and
//! stays with the name of its lock.
//!
//! A client with a session trusts its hold while its connection lives. So if a lease could
//! not be kept up, the connection has to be closed.
//!
//! # What it costs
//! Everything about one hold takes logarithmic time.

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

/// An owner's holds on a lock. The default comes before all others in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId {
    /// The lock.
    pub key: KeyBuf,
    /// Who holds it.
    pub owner: Owner,
}

impl HoldId {
    /// The holds of this owner on this lock.
    pub fn new(key: impl Into<KeyBuf>, owner: &Owner) -> Self {
        Self {
            key: key.into(),
            owner: owner.clone(),
        }
    }
}

/// Holds that are bound to a connection once their client is told of them.
#[derive(Clone, Copy, Debug)]
pub struct SessionToBe {
    /// The client.
    pub client: ClientId,
    /// The lease to be kept up.
    pub lease: Lease,
    /// When the lease that the reply tells of ends, in milliseconds since 1970.
    pub end_ms: i64,
}

/// What binds holds to connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The clients with these connections; the one that asked last stands last.
    pub clients: SmallVec<[ClientId; 1]>,
    /// Whether the owner was told of the holds on another connection, too.
    pub told_elsewhere: bool,
    /// The token of the holds.
    pub token: FencingToken,
    /// The lease that is kept up.
    pub lease: Lease,
    /// When the last lease that counts ends, in milliseconds since 1970.
    pub kept_until_ms: i64,
    /// Leases that wait for replicas by a smaller serial number are void, even if
    /// acknowledged: a lease has been set since.
    pub counts_from: u64,
    /// Whether the owner has claimed its grant. Until then nothing keeps it up.
    pub is_claimed: bool,
    pub(crate) renew_at_ms: i64,
}

impl Binding {
    /// The owner was told of its holds by this client, without asking that they be bound to
    /// its connection.
    pub fn told_by(&mut self, client: Option<ClientId>) {
        let is_one = client.is_some_and(|client| self.clients.contains(&client));
        self.told_elsewhere |= !is_one;
    }

    /// The holds last until then at least.
    pub fn last_until(&mut self, at_ms: i64) {
        self.kept_until_ms = self.kept_until_ms.max(at_ms);
    }

    /// Another lease is kept up from now on.
    pub fn set_lease(&mut self, lease: Lease, now_ms: i64) {
        self.lease = lease;
        self.kept_until_ms = lease.end_ms(now_ms);
        self.is_claimed = true;
        self.renew_at_ms = renew_at_ms(lease, now_ms);
    }

    /// The grant is unclaimed: nothing keeps it up.
    pub fn leave_unclaimed(&mut self) {
        #[cfg(feature = "planted-faults")]
        if Fault::UnclaimedKept.planted() {
            return;
        }
        self.is_claimed = false;
        self.renew_at_ms = self.kept_until_ms.saturating_add(1);
    }

    /// The grant is claimed, and kept up from then on.
    pub fn claim(&mut self, now_ms: i64) {
        if !self.is_claimed {
            self.is_claimed = true;
            self.renew_at_ms = renew_at_ms(self.lease, now_ms);
        }
    }
}

/// All bindings of a server.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    bindings: BTreeMap<HoldId, Binding>,
    by_client: BTreeSet<(ClientId, HoldId)>,
    renewals: BTreeSet<(i64, HoldId)>,
}

impl Sessions {
    /// Whether nothing is bound to any client.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// How many holds are bound.
    pub fn len(&self) -> usize {
        self.bindings.len()
    }

    fn hold(&self, key: impl Into<KeyBuf>, owner: &Owner) -> Option<HoldId> {
        (!self.is_empty()).then(|| HoldId::new(key, owner))
    }

    /// What binds an owner's holds on a lock.
    pub fn binding_of(&self, key: impl Into<KeyBuf>, owner: &Owner) -> Option<Binding> {
        self.binding(&self.hold(key, owner)?).cloned()
    }

    /// As [`Self::binding_of`], by the name of the holds.
    pub fn binding(&self, hold: &HoldId) -> Option<&Binding> {
        self.bindings.get(hold)
    }

    /// What binds the holds of a lock.
    pub fn of_lock(&self, key: KeyRef<'_>) -> impl Iterator<Item = (&HoldId, &Binding)> {
        let first = (!self.is_empty()).then(|| HoldId::new(key, &Owner::default()));
        first.into_iter().flat_map(|first| {
            let from_first = self.bindings.range(first.clone()..);
            from_first.take_while(move |(hold, _)| hold.key == first.key)
        })
    }

    /// Some holds that are bound to this client.
    pub fn any_of(&self, client: ClientId) -> Option<&HoldId> {
        #[cfg(feature = "planted-faults")]
        if Fault::SessionOutlived.planted() {
            return None;
        }
        let mut from_first = self.by_client.range((client, HoldId::default())..);
        let (of_client, hold) = from_first.next()?;
        (*of_client == client).then_some(hold)
    }

    /// Unties these holds from connections that have ended. Returns what bound them, if none
    /// is left.
    pub fn untie(&mut self, hold: &HoldId, ended: &BTreeSet<ClientId>) -> Option<Binding> {
        let binding = self.bindings.get(hold)?;
        if binding.clients.iter().all(|client| !ended.contains(client)) {
            return None;
        }
        let mut binding = self.remove(hold)?;
        binding.clients.retain(|client| !ended.contains(client));
        if binding.clients.is_empty() {
            return Some(binding);
        }
        self.insert(hold.clone(), binding);
        None
    }

    /// Binds holds to one connection more. Re-entry does not shorten the lease that is
    /// kept up. `was_plain` says whether they were held before without a session: then the
    /// owner was told of them elsewhere.
    pub fn bind(
        &mut self,
        hold: HoldId,
        session: SessionToBe,
        token: FencingToken,
        was_plain: bool,
    ) {
        let (client, lease) = (session.client, session.lease);
        let old = self.remove(&hold).filter(|old| old.token == token);
        let mut binding = old.unwrap_or_else(|| Binding {
            clients: SmallVec::new(),
            told_elsewhere: was_plain,
            token,
            lease,
            kept_until_ms: session.end_ms,
            counts_from: 0,
            is_claimed: false,
            renew_at_ms: session.end_ms,
        });
        // If a longer lease is kept up, its next renewal stays as planned.
        if !binding.is_claimed || binding.lease <= lease {
            binding.lease = lease;
            binding.is_claimed = true;
            binding.renew_at_ms = renew_at_ms(lease, session.end_ms.saturating_sub(lease.ms()));
        }
        binding.last_until(session.end_ms);
        binding.clients.retain(|other| *other != client);
        #[cfg(feature = "planted-faults")]
        if Fault::TieMoved.planted() {
            binding.clients.clear();
        }
        binding.clients.push(client);
        self.insert(hold, binding);
    }

    /// Changes what binds an owner's holds of this token, and plans their next renewal by it.
    pub fn change(
        &mut self,
        hold: &HoldId,
        token: Option<FencingToken>,
        change: impl FnOnce(&mut Binding),
    ) {
        if let Some(binding) = self.bindings.get_mut(hold)
            && Some(binding.token) == token
        {
            let mut planned = (binding.renew_at_ms, hold.clone());
            change(binding);
            let at_ms = binding.renew_at_ms;
            if at_ms != planned.0 {
                self.renewals.remove(&planned);
                planned.0 = at_ms;
                self.renewals.insert(planned);
            }
        }
    }

    /// Forgets a binding, because the holds are over.
    pub fn unbind(&mut self, key: KeyRef<'_>, owner: &Owner) {
        if let Some(bound) = self.hold(key, owner) {
            self.remove(&bound);
        }
    }

    /// Forgets some holds that are bound. Returns the clients that they were bound to.
    pub fn forget_any(&mut self) -> Option<SmallVec<[ClientId; 1]>> {
        let (_, hold) = self.by_client.first()?.clone();
        Some(self.remove(&hold)?.clients)
    }

    /// When the next renewal is due.
    pub fn next_renewal_ms(&self) -> Option<i64> {
        self.renewals.first().map(|&(at_ms, _)| at_ms)
    }

    /// Holds whose renewal is due at `now_ms`.
    pub fn next_due(&self, now_ms: i64) -> Option<HoldId> {
        let (at_ms, hold) = self.renewals.first()?;
        (*at_ms <= now_ms).then(|| hold.clone())
    }

    /// Takes holds whose renewal is due at `now_ms`, and plans the one after it. The caller
    /// unbinds holds that are over, and unties them from connections that have ended.
    pub fn take_due(&mut self, now_ms: i64) -> Option<HoldId> {
        let hold = self.next_due(now_ms)?;
        let token = self.binding(&hold)?.token;
        self.change(&hold, Some(token), |binding| {
            binding.renew_at_ms = renew_at_ms(binding.lease, now_ms);
        });
        Some(hold)
    }

    fn insert(&mut self, hold: HoldId, binding: Binding) {
        for client in &binding.clients {
            self.by_client.insert((*client, hold.clone()));
        }
        self.renewals.insert((binding.renew_at_ms, hold.clone()));
        self.bindings.insert(hold, binding);
    }

    fn remove(&mut self, hold: &HoldId) -> Option<Binding> {
        let (hold, binding) = self.bindings.remove_entry(hold)?;
        for client in &binding.clients {
            self.by_client.remove(&(*client, hold.clone()));
        }
        self.renewals.remove(&(binding.renew_at_ms, hold));
        Some(binding)
    }
}

#[cfg(test)]
impl Sessions {
    /// Adds to a form of the state all that can influence a later step.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            for owner in form.owners() {
                let binding = self.binding_of(key.as_ref(), owner);
                form.flag(binding.is_some());
                if let Some(binding) = binding {
                    for client in &binding.clients {
                        form.client(Some(*client));
                    }
                    form.client(None);
                    form.flag(binding.told_elsewhere);
                    form.token(Some(binding.token));
                    form.number(binding.lease.ms());
                    form.flag(binding.is_claimed);
                    form.time(Some(binding.kept_until_ms));
                    form.time(Some(binding.renew_at_ms));
                }
            }
        }
    }

    /// Returns whether all that is kept twice agrees.
    pub(crate) fn agree(&self) -> bool {
        let bindings = || self.bindings.iter();
        let renewals: BTreeSet<_> = bindings()
            .map(|(hold, binding)| (binding.renew_at_ms, hold.clone()))
            .collect();
        let ties: BTreeSet<_> = bindings()
            .flat_map(|(hold, binding)| {
                binding
                    .clients
                    .iter()
                    .map(move |client| (*client, hold.clone()))
            })
            .collect();
        renewals == self.renewals
            && self.by_client == ties
            && bindings().all(|(_, binding)| !binding.clients.is_empty())
    }
}

fn renew_at_ms(lease: Lease, now_ms: i64) -> i64 {
    now_ms.saturating_add((lease.ms() / RENEWALS_A_LEASE).max(1))
}

#[cfg(test)]
mod tests;
