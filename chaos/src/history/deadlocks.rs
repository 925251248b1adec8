//! Owners that wait for each other.

use serde::{Deserialize, Serialize};

use super::lock::{Locks, Span, Spans};
use super::{Breaches, Effect, History, MS, Nanos, Operation, Outcome, Promise};

/// How long a certain cycle of waits may last.
const CYCLE_MARGIN: Nanos = 50 * MS;

/// An owner that waits, and one that it waits for, as a refusal names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Who waits.
    pub waiter: String,
    /// For which lock.
    pub lock: String,
    /// Who holds it.
    pub blocker: String,
}

impl Link {
    /// Reads the links of a refusal. The names of a campaign have no quotes.
    pub fn parse_all(text: &str) -> Option<Vec<Self>> {
        text.split(", ").map(Self::parse).collect()
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split('\'').collect();
        let &["", waiter, " waits for ", lock, " held by ", blocker, ""] = words.as_slice() else {
            return None;
        };
        Some(Self {
            waiter: waiter.to_owned(),
            lock: lock.to_owned(),
            blocker: blocker.to_owned(),
        })
    }
}

/// A refusal names a cycle, and one that may have been.
pub(super) fn check_refusals(history: &History, locks: &Locks<'_>, breaches: &mut Breaches) {
    for refused in &history.operations {
        let Outcome::Deadlock(links) = &refused.outcome else {
            continue;
        };
        if !closes(links, refused) {
            breaches.add(Promise::Deadlock, "a refusal names no cycle", [refused]);
        }
        // Strangers that a harmed lock may name are unknown here.
        let strangers = history.interferences.iter().any(|one| {
            one.effect == Effect::BringsBack
                && one.from <= refused.sent
                && refused.sent <= one.blocks_until()
        });
        if strangers {
            continue;
        }
        for (index, link) in links.iter().enumerate() {
            // The first link is the wait that was refused.
            let waits = index == 0 || may_wait(locks, link, refused);
            if !waits || !may_hold(locks, link, refused) {
                let what = format!("a refusal names a wait that was none: {link:?}");
                breaches.add(Promise::Deadlock, &what, [refused]);
            }
        }
    }
}

fn closes(links: &[Link], refused: &Operation) -> bool {
    let Some(first) = links.first() else {
        return false;
    };
    let nexts = links.iter().cycle().skip(1);
    (&first.waiter, &first.lock) == (&refused.owner, &refused.lock)
        && links
            .iter()
            .zip(nexts)
            .all(|(link, next)| link.blocker == next.waiter)
}

/// Whether the owner may have waited for the lock when the other was refused.
fn may_wait(locks: &Locks<'_>, link: &Link, refused: &Operation) -> bool {
    let lock = locks.get(link.lock.as_str());
    let tenancy = lock.and_then(|lock| lock.tenancies.get(link.waiter.as_str()));
    tenancy.is_some_and(|tenancy| {
        tenancy.operations.iter().any(|one| {
            let blocks = one.asked().is_some_and(|asked| asked.block_ms.is_some());
            blocks && began_before_end_of(one, refused) && !ended_before(one, refused)
        })
    })
}

fn began_before_end_of(one: &Operation, refused: &Operation) -> bool {
    refused.answered.is_none_or(|answered| one.sent <= answered)
}

fn ended_before(one: &Operation, refused: &Operation) -> bool {
    !one.unknown() && one.answered.is_some_and(|answered| answered < refused.sent)
}

/// Whether the blocker may have held the lock when the other was refused.
fn may_hold(locks: &Locks<'_>, link: &Link, refused: &Operation) -> bool {
    let lock = locks.get(link.lock.as_str());
    let blocker = link.blocker.as_str();
    let Some((lock, tenancy)) = lock.and_then(|lock| Some((lock, lock.tenancies.get(blocker)?)))
    else {
        return false;
    };
    // The last that may have given it the lock.
    let Some(last) = tenancy.operations.iter().rfind(|one| {
        one.acquires()
            && began_before_end_of(one, refused)
            && (one.unknown() || one.token().is_some())
    }) else {
        return false;
    };
    let shows_end = |one: &&Operation| {
        let is_later = last.answered.is_some_and(|answered| one.sent > answered);
        one.shows_no_hold() && is_later && ended_before(one, refused)
    };
    let over = tenancy.all_known() && tenancy.operations.iter().any(shows_end);
    let limit = last.limit().unwrap_or(1);
    let others = lock.tenancies.iter();
    let others = others.filter(|&(&owner, _)| owner != blocker);
    let mut certain = others.flat_map(|(_, other)| &other.certain);
    let excluded = certain.any(|hold| {
        let is_all_along = refused.answered.is_some_and(|at| at <= hold.end);
        (limit == 1 || hold.limit == 1) && hold.start <= refused.sent && is_all_along
    });
    !over && !excluded
}

/// A wait for a lock while another certainly holds it.
struct CertainWait<'o> {
    waiter: &'o Operation,
    holder: &'o Operation,
    start: Nanos,
    end: Nanos,
}

/// No owners certainly wait for each other for long.
pub(super) fn check_waits(locks: &Locks<'_>, breaches: &mut Breaches) {
    let waits = certain_waits(locks);
    for (index, first) in waits.iter().enumerate() {
        let mut way = vec![first];
        // Each cycle is looked for from its first wait alone.
        if find_cycle(&waits[index..], &mut way, first.start, first.end) {
            let shown = way.iter().flat_map(|wait| [wait.holder, wait.waiter]);
            let what = "owners waited for each other, and none was refused";
            breaches.add(Promise::Deadlock, what, shown);
        }
    }
}

fn find_cycle<'w, 'o>(
    waits: &'w [CertainWait<'o>],
    way: &mut Vec<&'w CertainWait<'o>>,
    start: Nanos,
    end: Nanos,
) -> bool {
    let (Some(first), Some(last)) = (way.first().copied(), way.last().copied()) else {
        return false;
    };
    if last.holder.owner == first.waiter.owner {
        return true;
    }
    let first = waits.partition_point(|next| next.waiter.owner < last.holder.owner);
    let nexts = waits[first..].iter();
    for next in nexts.take_while(|next| next.waiter.owner == last.holder.owner) {
        let (start, end) = (start.max(next.start), end.min(next.end));
        let mut before = way.iter();
        let visited = before.any(|wait| wait.waiter.owner == next.waiter.owner);
        if !visited && start + CYCLE_MARGIN < end {
            way.push(next);
            if find_cycle(waits, way, start, end) {
                return true;
            }
            way.pop();
        }
    }
    false
}

/// By their waiters.
fn certain_waits<'o>(locks: &Locks<'o>) -> Vec<CertainWait<'o>> {
    let mut waits = Vec::new();
    for lock in locks.values() {
        let certain = lock.tenancies.values().flat_map(|tenancy| &tenancy.certain);
        let holds = Spans::new(certain.map(|hold| Span {
            start: hold.start,
            end: hold.end,
            by: hold,
        }));
        for waiter in lock.operations() {
            let Some((start, end)) = lock.certain_wait(waiter) else {
                continue;
            };
            for hold in holds.overlapping(start, end) {
                let (start, end) = (start.max(hold.start), end.min(hold.end));
                let hold = hold.by;
                let excludes = hold.limit == 1 || waiter.limit() == Some(1);
                let is_another = hold.shown_by.owner != waiter.owner;
                if excludes && is_another && start + CYCLE_MARGIN < end {
                    waits.push(CertainWait {
                        waiter,
                        holder: hold.shown_by,
                        start,
                        end,
                    });
                }
            }
        }
    }
    waits.sort_unstable_by_key(|wait| &wait.waiter.owner);
    waits
}
