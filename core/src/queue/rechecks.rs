//! When to look at contended locks again.
//!
//! To plan a look and to take the next one takes logarithmic time. To have all locks
//! looked at takes constant time, or a short step for each where others of such looks are
//! left.

use std::collections::BTreeSet;

use crate::keys::KeyBuf;
#[cfg(test)]
use crate::keys::KeyRef;
#[cfg(feature = "planted-faults")]
use crate::planted::Fault;

/// The looks that are planned, at most one for each lock. The queue of a lock knows for
/// when.
#[derive(Clone, Debug, Default)]
pub(super) struct Rechecks {
    planned: BTreeSet<(i64, KeyBuf)>,
    /// Looks that were planned for these times before all locks were to be looked at.
    overdue: BTreeSet<(i64, KeyBuf)>,
    /// When those are due at the latest.
    overdue_at_ms: i64,
}

impl Rechecks {
    pub(super) fn len(&self) -> usize {
        self.planned.len() + self.overdue.len()
    }

    /// Has the lock looked at again at `at_ms` or earlier. Returns for when that is
    /// planned; `before_ms` is for when it was.
    pub(super) fn plan(&mut self, key: &KeyBuf, before_ms: Option<i64>, at_ms: i64) -> i64 {
        #[cfg(feature = "planted-faults")]
        let at_ms = Fault::LooksLate.instead(at_ms, || at_ms + 500);
        if let Some(before_ms) = before_ms {
            if before_ms <= at_ms {
                return before_ms;
            }
            let planned = (before_ms, key.clone());
            if !self.planned.remove(&planned) {
                if self.overdue_at_ms <= at_ms {
                    return before_ms;
                }
                self.overdue.remove(&planned);
            }
        }
        self.planned.insert((at_ms, key.clone()));
        at_ms
    }

    /// Nobody waits for this lock any more.
    pub(super) fn forget(&mut self, key: KeyBuf, at_ms: i64) {
        let planned = (at_ms, key);
        if !self.planned.remove(&planned) {
            self.overdue.remove(&planned);
        }
    }

    /// Has all locks for which a look is planned looked at again at `at_ms` or earlier.
    pub(super) fn all_by(&mut self, at_ms: i64) {
        #[cfg(feature = "planted-faults")]
        let at_ms = Fault::LooksLate.instead(at_ms, || at_ms + 500);
        self.overdue_at_ms = match self.overdue.is_empty() {
            true => at_ms,
            false => self.overdue_at_ms.min(at_ms),
        };
        self.overdue.append(&mut self.planned);
    }

    fn next_overdue_ms(&self) -> Option<i64> {
        let &(planned_ms, _) = self.overdue.first()?;
        Some(planned_ms.min(self.overdue_at_ms))
    }

    /// When the next look is due.
    pub(super) fn next_ms(&self) -> Option<i64> {
        let planned_ms = self.planned.first().map(|&(at_ms, _)| at_ms);
        planned_ms.into_iter().chain(self.next_overdue_ms()).min()
    }

    /// If a look is due at `now_ms`, whether the next one is overdue.
    fn is_overdue_next(&self, now_ms: i64) -> Option<bool> {
        let next_ms = self.next_ms().filter(|&at_ms| at_ms <= now_ms)?;
        Some(self.next_overdue_ms() == Some(next_ms))
    }

    /// A lock whose look is due at `now_ms`.
    pub(super) fn next_due(&self, now_ms: i64) -> Option<&KeyBuf> {
        let (_, key) = match self.is_overdue_next(now_ms)? {
            true => self.overdue.first()?,
            false => self.planned.first()?,
        };
        Some(key)
    }

    /// Takes it.
    pub(super) fn take_due(&mut self, now_ms: i64) -> Option<KeyBuf> {
        let (_, key) = match self.is_overdue_next(now_ms)? {
            true => self.overdue.pop_first()?,
            false => self.planned.pop_first()?,
        };
        Some(key)
    }
}

#[cfg(test)]
impl Rechecks {
    /// When this lock is looked at whose look was planned for `planned_ms`.
    pub(super) fn at_ms(&self, key: KeyRef<'_>, planned_ms: i64) -> i64 {
        match self.overdue.contains(&(planned_ms, key.into())) {
            true => planned_ms.min(self.overdue_at_ms),
            false => planned_ms,
        }
    }

    /// Whether exactly these looks are planned.
    pub(super) fn agree(&self, looks: &BTreeSet<(i64, KeyBuf)>) -> bool {
        let all: BTreeSet<_> = self.planned.union(&self.overdue).cloned().collect();
        all == *looks && self.planned.is_disjoint(&self.overdue)
    }
}
