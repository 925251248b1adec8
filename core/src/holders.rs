//! Who holds a lock.
//!
//! Most locks have one holder, and a list of one serves it best. Where many hold a
//! lock together, an index beside the list finds a holder by its name or its token, the
//! lease that ends next or last, and the strictest limit, each in logarithmic time.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::ops::{Bound, Deref};

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

#[cfg(test)]
pub(crate) use crate::bounds::FEW;
use crate::bounds::few;
use crate::holder::Holder;
use crate::request::{Limit, Owner};
use crate::sharded::Shards;
use crate::token::FencingToken;

/// The holders of a lock. Those of many have no order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders {
    list: SmallVec<[Holder; 1]>,
    /// There while more than a few hold the lock, and a while longer.
    index: Option<Box<Index>>,
}

#[derive(Clone, Debug, Default)]
struct Index {
    /// The holders' places in the list, by their names.
    by_owner: Shards<usize>,
    hasher: DefaultHashBuilder,
    /// The ends of the leases that have one, each with the holder's place in the
    /// list.
    lease_ends: BTreeSet<(i64, usize)>,
    /// The tokens, each with its holder's place in the list.
    tokens: BTreeSet<(FencingToken, usize)>,
    /// How many holders have each limit.
    limits: BTreeMap<Limit, usize>,
}

impl Deref for Holders {
    type Target = [Holder];

    fn deref(&self) -> &[Holder] {
        &self.list
    }
}

impl PartialEq for Holders {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Holders {}

impl From<SmallVec<[Holder; 1]>> for Holders {
    fn from(list: SmallVec<[Holder; 1]>) -> Self {
        let mut all = Self { list, index: None };
        all.index_if_many();
        all
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Self {
        holders.into_iter().collect::<SmallVec<_>>().into()
    }
}

impl Holders {
    #[inline]
    pub(crate) fn get(&self, owner: &Owner) -> Option<&Holder> {
        // Mostly there is nobody, or one.
        match self.list.as_slice() {
            [] => None,
            [only] => (only.owner == *owner).then_some(only),
            _ => self.list.get(self.find(owner)?),
        }
    }

    fn find(&self, owner: &Owner) -> Option<usize> {
        match &self.index {
            Some(index) => index.find(owner, &self.list),
            None => self.list.iter().position(|holder| holder.owner == *owner),
        }
    }

    /// The holder with this token.
    pub(crate) fn with_token(&self, token: FencingToken) -> Option<&Holder> {
        match &self.index {
            Some(index) => {
                let (_, at) = index.tokens.range((token, 0)..).next()?;
                self.list.get(*at).filter(|one| one.token == Some(token))
            }
            None => self.list.iter().find(|one| one.token == Some(token)),
        }
    }

    /// The holders in the order of their tokens; none where few hold the lock.
    pub(crate) fn by_token(&self) -> impl Iterator<Item = &Holder> {
        let tokens = self.index.as_ref().map(|index| index.tokens.iter());
        let tokens = tokens.unwrap_or_default();
        tokens.filter_map(|&(_, at)| self.list.get(at))
    }

    /// The holders of greater tokens than this in the order of their tokens, where many
    /// hold the lock and each has one.
    pub(crate) fn by_token_after(
        &self,
        token: Option<FencingToken>,
    ) -> Option<impl Iterator<Item = &Holder>> {
        let index = self.index.as_ref();
        let index = index.filter(|index| index.tokens.len() == self.list.len())?;
        let after = token.map_or(Bound::Unbounded, |token| {
            Bound::Excluded((token, usize::MAX))
        });
        let tokens = index.tokens.range((after, Bound::Unbounded));
        Some(tokens.filter_map(|&(_, at)| self.list.get(at)))
    }

    pub(crate) fn push(&mut self, holder: Holder) {
        let at = self.list.len();
        self.list.push(holder);
        match &mut self.index {
            Some(index) => index.insert(at, &self.list),
            None => self.index_if_many(),
        }
    }

    /// Changes what an owner holds, but not its name. Returns whether it holds
    /// anything.
    pub(crate) fn update(&mut self, owner: &Owner, change: impl FnOnce(&mut Holder)) -> bool {
        let at = self.find(owner);
        let Some((at, holder)) = at.and_then(|at| Some((at, self.list.get_mut(at)?))) else {
            return false;
        };
        match &mut self.index {
            None => change(holder),
            Some(index) => {
                index.forget_terms(holder, at);
                change(holder);
                index.note_terms(holder, at);
            }
        }
        true
    }

    pub(crate) fn remove(&mut self, owner: &Owner) -> Option<Holder> {
        let at = self.find(owner)?;
        let Some(index) = &mut self.index else {
            return Some(self.list.remove(at));
        };
        let last = self.list.len() - 1;
        index.remove(at, &self.list);
        if at < last {
            index.remove(last, &self.list);
        }
        let removed = self.list.swap_remove(at);
        if at < last {
            index.insert(at, &self.list);
        }
        if self.list.len() <= few() / 2 {
            self.index = None;
        }
        Some(removed)
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.index = None;
    }

    /// Gives back the memory of at most `at_most` holders, in no order. Whoever does so
    /// needs none of them any more.
    pub(crate) fn give_back(&mut self, at_most: usize) {
        if let Some(index) = &mut self.index {
            for _ in 0..at_most {
                index.lease_ends.pop_first();
                index.tokens.pop_first();
            }
        }
        self.list.truncate(self.list.len().saturating_sub(at_most));
    }

    /// Who shares the lock, and whose lease was over before this time.
    #[inline]
    pub(crate) fn overdue(&self, now_ms: i64) -> Option<&Holder> {
        let is_over = |holder: &&Holder| holder.is_overdue(now_ms);
        match &self.index {
            Some(index) => {
                let (_, at) = index.lease_ends.first()?;
                self.list.get(*at).filter(is_over)
            }
            None => self.list.iter().find(is_over),
        }
    }

    /// Who shares the lock with others and is not overdue, found without a look at who is.
    /// Only where many hold the lock, and each has a token and a lease that ends.
    pub(crate) fn not_overdue(&self, now_ms: i64) -> Option<impl Iterator<Item = &Holder>> {
        let index = self.index.as_ref()?;
        let counts = [index.lease_ends.len(), index.tokens.len()];
        if counts != [self.list.len(); 2] || self.strictest_limit() == Some(Limit::EXCLUSIVE) {
            return None;
        }
        let left = index.lease_ends.range((now_ms, 0)..);
        let left = left.filter_map(|(_, at)| self.list.get(*at));
        Some(left.filter(move |holder| !holder.is_overdue(now_ms)))
    }

    /// When the next lease ends, of those that do.
    pub(crate) fn first_lease_end_ms(&self) -> Option<i64> {
        match &self.index {
            Some(index) => index.lease_ends.first().map(|&(end_ms, _)| end_ms),
            None => self.lease_ends().min(),
        }
    }

    /// When the last lease ends, of those that do.
    pub(crate) fn last_lease_end_ms(&self) -> Option<i64> {
        match &self.index {
            Some(index) => index.lease_ends.last().map(|&(end_ms, _)| end_ms),
            None => self.lease_ends().max(),
        }
    }

    /// How many leases are over at this time.
    pub(crate) fn count_ended_by(&self, now_ms: i64) -> usize {
        match &self.index {
            Some(index) => index.lease_ends.range(..=(now_ms, usize::MAX)).count(),
            None => self.list.iter().filter(|one| one.ends_by(now_ms)).count(),
        }
    }

    fn lease_ends(&self) -> impl Iterator<Item = i64> {
        self.list.iter().filter_map(|holder| holder.lease_end_ms)
    }

    /// The strictest limit of them all.
    pub(crate) fn strictest_limit(&self) -> Option<Limit> {
        match &self.index {
            Some(index) => index.limits.keys().next().copied(),
            None => self.list.iter().map(|holder| holder.limit).min(),
        }
    }

    /// Whether each of them is alone in its own view.
    pub(crate) fn are_all_exclusive(&self) -> bool {
        match &self.index {
            Some(index) => index.limits.keys().next_back() <= Some(&Limit::EXCLUSIVE),
            None => self.list.iter().all(|one| one.limit == Limit::EXCLUSIVE),
        }
    }

    fn index_if_many(&mut self) {
        if self.index.is_none() && self.list.len() > few() {
            self.index = Some(Box::new(Index::of(&self.list)));
        }
    }
}

impl Index {
    fn of(list: &[Holder]) -> Self {
        let ends = list.iter().enumerate();
        let ends = ends.filter_map(|(at, holder)| Some((holder.lease_end_ms?, at)));
        let tokens = list.iter().enumerate();
        let tokens = tokens.filter_map(|(at, holder)| Some((holder.token?, at)));
        let mut index = Self {
            // Those that are made of all of them take far less time.
            lease_ends: ends.collect(),
            tokens: tokens.collect(),
            ..Self::default()
        };
        for (at, holder) in list.iter().enumerate() {
            index.note_owner(at, list);
            *index.limits.entry(holder.limit).or_default() += 1;
        }
        index
    }

    fn find(&self, owner: &Owner, list: &[Holder]) -> Option<usize> {
        let is_it = |at: &usize| list.get(*at).is_some_and(|holder| holder.owner == *owner);
        let hash = self.hasher.hash_one(owner);
        self.by_owner.find(hash, is_it).copied()
    }

    fn note_owner(&mut self, at: usize, list: &[Holder]) {
        let hash_of = hashes_in(list, &self.hasher);
        self.by_owner.insert(at, hash_of);
    }

    fn insert(&mut self, at: usize, list: &[Holder]) {
        if let Some(holder) = list.get(at) {
            self.note_owner(at, list);
            self.note_terms(holder, at);
        }
    }

    fn remove(&mut self, at: usize, list: &[Holder]) {
        let Some(holder) = list.get(at) else { return };
        let hash_of = hashes_in(list, &self.hasher);
        let hash = hash_of(&at);
        self.by_owner.remove(hash, |one| *one == at, hash_of);
        self.forget_terms(holder, at);
    }

    fn note_terms(&mut self, holder: &Holder, at: usize) {
        if let Some(end_ms) = holder.lease_end_ms {
            self.lease_ends.insert((end_ms, at));
        }
        self.tokens.extend(holder.token.map(|token| (token, at)));
        *self.limits.entry(holder.limit).or_default() += 1;
    }

    fn forget_terms(&mut self, holder: &Holder, at: usize) {
        if let Some(end_ms) = holder.lease_end_ms {
            self.lease_ends.remove(&(end_ms, at));
        }
        if let Some(token) = holder.token {
            self.tokens.remove(&(token, at));
        }
        if let Some(count) = self.limits.get_mut(&holder.limit) {
            *count -= 1;
            if *count == 0 {
                self.limits.remove(&holder.limit);
            }
        }
    }
}

/// The hash of the owner at each place in the list.
fn hashes_in(list: &[Holder], hasher: &DefaultHashBuilder) -> impl Fn(&usize) -> u64 {
    |at| {
        let owner = list.get(*at).map(|holder| &holder.owner);
        owner.map_or(0, |owner| hasher.hash_one(owner))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lock::tests::permitted;

    #[derive(Clone, Debug)]
    enum Step {
        Push(i64, i64),
        Remove(usize),
        Renew(usize, i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (1..60_i64, 2..4_i64).prop_map(|(end, limit)| Step::Push(end, limit)),
            2 => (0..40_usize).prop_map(Step::Remove),
            1 => (0..40_usize, 1..60_i64).prop_map(|(who, end)| Step::Renew(who, end)),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn many_holders_are_found_as_few_are(steps in steps()) {
            let mut holders = Holders::default();
            let mut plain: Vec<Holder> = Vec::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(end_ms, limit) => {
                        let limit = Limit::from_count(limit).unwrap();
                        let token = i64::try_from(n).unwrap() + 1;
                        let holder = permitted(&n.to_string(), token, end_ms, limit);
                        holders.push(holder.clone());
                        plain.push(holder);
                    }
                    Step::Remove(who) if who < plain.len() => {
                        let gone = plain.remove(who);
                        prop_assert_eq!(holders.remove(&gone.owner), Some(gone.clone()));
                        prop_assert_eq!(gone.token.and_then(|one| holders.with_token(one)), None);
                    }
                    Step::Renew(who, end_ms) if who < plain.len() => {
                        plain[who].lease_end_ms = Some(end_ms);
                        let owner = plain[who].owner.clone();
                        prop_assert!(holders.update(&owner, |one| one.lease_end_ms = Some(end_ms)));
                    }
                    Step::Remove(_) | Step::Renew(..) => {}
                }
                prop_assert_eq!(holders.len(), plain.len());
                if plain.len() > FEW {
                    let by_token: Vec<_> = holders.by_token().collect();
                    prop_assert_eq!(by_token.len(), plain.len());
                    prop_assert!(by_token.is_sorted_by_key(|one| one.token));
                    let middle = by_token[plain.len() / 2].token;
                    for (token, first) in [(None, 0), (middle, plain.len() / 2 + 1)] {
                        let after: Vec<_> = holders.by_token_after(token).unwrap().collect();
                        prop_assert_eq!(&after[..], &by_token[first..]);
                    }
                }
                for holder in &plain {
                    prop_assert_eq!(holders.get(&holder.owner), Some(holder));
                    let token = holder.token.unwrap();
                    prop_assert_eq!(holders.with_token(token), Some(holder));
                }
                let ends = || plain.iter().filter_map(|one| one.lease_end_ms);
                prop_assert_eq!(holders.first_lease_end_ms(), ends().min());
                prop_assert_eq!(holders.last_lease_end_ms(), ends().max());
                if plain.len() > FEW {
                    let left: Vec<_> = holders.not_overdue(30).unwrap().collect();
                    prop_assert_eq!(left.len(), ends().filter(|end| *end >= 30).count());
                    prop_assert!(left.iter().all(|one| one.lease_end_ms >= Some(30)));
                }
                let ended = ends().filter(|end| *end <= 30).count();
                prop_assert_eq!(holders.count_ended_by(30), ended);
                let strictest = plain.iter().map(|one| one.limit).min();
                prop_assert_eq!(holders.strictest_limit(), strictest);
                let overdue = holders.overdue(30).and_then(|one| one.lease_end_ms);
                prop_assert_eq!(overdue.is_some(), ends().any(|end| end < 30));
                prop_assert!(overdue.is_none_or(|end| end < 30));
            }
        }
    }
}
