//! Owners that wait for each other.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::certain::CertainHold;
use super::waits::certain_wait;
use super::{Breach, Effect, History, MS, Nanos, Operation, Outcome, Promise, Tenancies};

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
pub(super) fn check_refusals(
    history: &History,
    tenancies: &Tenancies<'_>,
    breaches: &mut Vec<Breach>,
) {
    for refused in &history.operations {
        let Outcome::Deadlock(links) = &refused.outcome else {
            continue;
        };
        if !closes(links, refused) {
            breaches.push(Breach::new(
                Promise::Deadlock,
                "a refusal names no cycle",
                [refused],
            ));
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
            let waits = index == 0 || may_wait(tenancies, &link.lock, &link.waiter, refused);
            if !waits || !may_hold(tenancies, link, refused) {
                breaches.push(Breach::new(
                    Promise::Deadlock,
                    &format!("a refusal names a wait that was none: {link:?}"),
                    [refused],
                ));
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
fn may_wait(tenancies: &Tenancies<'_>, lock: &str, owner: &str, refused: &Operation) -> bool {
    let tenancy = tenancies.get(&(lock, owner));
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
fn may_hold(tenancies: &Tenancies<'_>, link: &Link, refused: &Operation) -> bool {
    let Some(tenancy) = tenancies.get(&(link.lock.as_str(), link.blocker.as_str())) else {
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
    let over = !tenancy
        .operations
        .iter()
        .any(|one| one.acquires() && one.unknown())
        && tenancy.operations.iter().any(|one| {
            one.shows_no_hold()
                && last.answered.is_some_and(|answered| one.sent > answered)
                && ended_before(one, refused)
        });
    let limit = last.limit().unwrap_or(1);
    let excluded = tenancies.iter().any(|(&(lock, owner), other)| {
        lock == link.lock
            && owner != link.blocker
            && other.certain.iter().any(|hold| {
                (limit == 1 || hold.limit == 1)
                    && hold.start <= refused.sent
                    && refused
                        .answered
                        .is_some_and(|answered| answered <= hold.end)
            })
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
pub(super) fn check_waits(
    history: &History,
    tenancies: &Tenancies<'_>,
    breaches: &mut Vec<Breach>,
) {
    let waits = certain_waits(history, tenancies);
    for (index, first) in waits.iter().enumerate() {
        let mut way = vec![first];
        // Each cycle is looked for from its first wait alone.
        if find_cycle(&waits[index..], &mut way, first.start, first.end) {
            let shown = way.iter().flat_map(|wait| [wait.holder, wait.waiter]);
            breaches.push(Breach::new(
                Promise::Deadlock,
                "owners waited for each other, and none was refused",
                shown,
            ));
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
    for next in waits {
        let (start, end) = (start.max(next.start), end.min(next.end));
        let visited = way
            .iter()
            .any(|wait| wait.waiter.owner == next.waiter.owner);
        if next.waiter.owner == last.holder.owner && !visited && start + CYCLE_MARGIN < end {
            way.push(next);
            if find_cycle(waits, way, start, end) {
                return true;
            }
            way.pop();
        }
    }
    false
}

fn certain_waits<'o>(history: &History, tenancies: &Tenancies<'o>) -> Vec<CertainWait<'o>> {
    let holds = holds_by_lock(tenancies);
    let mut waits = Vec::new();
    for (&(lock, owner), tenancy) in tenancies {
        let Some(Holds { sorted, longest }) = holds.get(lock) else {
            continue;
        };
        for &waiter in &tenancy.operations {
            let Some((start, end)) = certain_wait(history, waiter) else {
                continue;
            };
            let first =
                sorted.partition_point(|(_, hold)| hold.start.saturating_add(*longest) < start);
            let during = sorted[first..]
                .iter()
                .take_while(|(_, hold)| hold.start < end)
                .filter(|&&(holder, _)| holder != owner);
            for (_, hold) in during {
                let exclusive = hold.limit == 1 || waiter.limit() == Some(1);
                let (start, end) = (start.max(hold.start), end.min(hold.end));
                if exclusive && start + CYCLE_MARGIN < end {
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
    waits
}

/// The certain holds of a lock with their owners, by the time of their start.
#[derive(Default)]
struct Holds<'t, 'o> {
    sorted: Vec<(&'o str, &'t CertainHold<'o>)>,
    longest: Nanos,
}

fn holds_by_lock<'t, 'o>(tenancies: &'t Tenancies<'o>) -> HashMap<&'o str, Holds<'t, 'o>> {
    let mut by_lock: HashMap<&str, Holds<'_, '_>> = HashMap::new();
    for (&(lock, owner), tenancy) in tenancies {
        let holds = by_lock.entry(lock).or_default();
        for hold in &tenancy.certain {
            holds.sorted.push((owner, hold));
            holds.longest = holds.longest.max(hold.end.saturating_sub(hold.start));
        }
    }
    for holds in by_lock.values_mut() {
        holds.sorted.sort_by_key(|(_, hold)| hold.start);
    }
    by_lock
}
