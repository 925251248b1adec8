//! Holds that are over and are still stored.
//!
//! The server tells of the end of a connection at a moment when it allows no writes. What ended
//! with it waits here until a command or a timer may write. **What has ended is over before the
//! next command sees the lock**: each step first takes what has ended of its lock from here.
//!
//! To note, to find and to take what has ended of one lock takes logarithmic time, and
//! a step for each of its holds.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::effect::Effects;
#[cfg(test)]
use crate::explore::form::Form;
use crate::holder::Holder;
use crate::keys::{AnyKey, KeyBuf, KeyRef};
use crate::lock::Lock;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;
use crate::request::Owner;
use crate::sessions::HoldId;
use crate::token::FencingToken;

/// Why holds are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The connections that they were bound to have ended.
    Session,
    /// Nobody heard of their grant.
    Undelivered,
}

/// Holds of one owner that are over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Who had them.
    pub owner: Owner,
    /// Their token.
    pub token: FencingToken,
    /// How many holds the owner keeps at most.
    pub left: i64,
    /// Why its other holds are over.
    pub by: EndedBy,
}

impl Ended {
    /// Ends them. Returns the holder as it was, and how many holds it keeps.
    pub(crate) fn end(&self, lock: &mut Lock, effects: &mut Effects) -> Option<(Holder, i64)> {
        let held = lock.holder(&self.owner);
        let held = held.filter(|held| held.token == Some(self.token))?.clone();
        let left = self.left.min(held.holds);
        lock.leave(&self.owner, left, effects);
        Some((held, left))
    }
}

/// All holds of a server that are over and are still stored.
#[derive(Clone, Debug, Default)]
pub struct EndedHolds {
    by_key: BTreeMap<KeyBuf, SmallVec<[Ended; 1]>>,
}

impl EndedHolds {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Notes that these holds are over, but for `left` of them.
    pub fn push(&mut self, hold: HoldId, token: FencingToken, left: i64, by: EndedBy) {
        #[cfg(feature = "planted-faults")]
        if by == EndedBy::Undelivered && Fault::GrantToTheDead.planted() {
            return;
        }
        let HoldId { key, owner } = hold;
        let ended = self.by_key.entry(key).or_default();
        ended.push(Ended {
            owner,
            token,
            left,
            by,
        });
    }

    /// What has ended of this lock, in the order in which it did.
    pub fn of(&self, key: KeyRef<'_>) -> &[Ended] {
        let ended = self.by_key.get(&key as &dyn AnyKey);
        ended.map_or(&[], |ended| ended)
    }

    /// Takes what has ended of this lock. The caller removes it from the stored lock,
    /// unless nobody can.
    pub fn take(&mut self, key: KeyRef<'_>) -> SmallVec<[Ended; 1]> {
        self.by_key.remove(&key as &dyn AnyKey).unwrap_or_default()
    }

    /// A lock of which something has ended.
    pub fn next_key(&self) -> Option<&KeyBuf> {
        self.by_key.keys().next()
    }
}

#[cfg(test)]
impl EndedHolds {
    /// Adds to a form of the state all that can influence a later step.
    pub(crate) fn take_down(&self, form: &mut Form<'_>) {
        for key in form.keys() {
            let ended = self.of(key.as_ref());
            form.count(ended.len());
            for ended in ended {
                form.owner(&ended.owner);
                form.token(Some(ended.token));
                form.number(ended.left);
                form.flag(ended.by == EndedBy::Session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyRef<'_> = KeyRef { db: 0, name: b"k" };

    fn hold(owner: &str) -> HoldId {
        HoldId {
            key: KEY.into(),
            owner: Owner::new(owner.as_bytes()).unwrap(),
        }
    }

    #[test]
    fn what_ended_is_kept_in_order_until_it_is_taken() {
        let token = FencingToken::new(7).unwrap();
        let mut holds = EndedHolds::default();
        assert!(holds.is_empty() && holds.of(KEY).is_empty());
        holds.push(hold("b"), token, 0, EndedBy::Session);
        holds.push(hold("a"), token, 1, EndedBy::Undelivered);
        let owners: Vec<_> = holds.of(KEY).iter().map(|ended| &ended.owner).collect();
        assert_eq!(owners, [&hold("b").owner, &hold("a").owner]);
        assert_eq!(holds.next_key(), Some(&KEY.into()));
        assert_eq!(holds.take(KEY).len(), 2);
        assert!(holds.is_empty() && holds.next_key().is_none());
        assert!(holds.take(KEY).is_empty());
    }

    #[test]
    fn each_lock_has_its_own() {
        let mut holds = EndedHolds::default();
        holds.push(
            hold("a"),
            FencingToken::new(7).unwrap(),
            0,
            EndedBy::Session,
        );
        let other = KeyRef { db: 1, name: b"k" };
        assert!(holds.of(other).is_empty() && holds.take(other).is_empty());
        assert_eq!(holds.of(KEY).len(), 1);
    }
}
