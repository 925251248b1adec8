//! No more owners hold a lock together than each of them admits.

use super::lock::Lock;
use super::{Breaches, CertainHold, Promise};

pub(super) fn check(lock: &Lock<'_>, breaches: &mut Breaches) {
    let holds = lock.tenancies.values().flat_map(|tenancy| &tenancy.certain);
    let mut holds: Vec<&CertainHold<'_>> = holds.collect();
    holds.sort_by_key(|hold| hold.start);
    let mut together: Vec<&CertainHold<'_>> = Vec::new();
    for hold in holds {
        together.retain(|other| other.end > hold.start);
        let owner = &hold.shown_by.owner;
        let mut rivals: Vec<&CertainHold<'_>> = Vec::new();
        for &other in &together {
            let is_new = |known: &&CertainHold<'_>| known.shown_by.owner != other.shown_by.owner;
            if other.shown_by.owner != *owner && rivals.iter().all(is_new) {
                rivals.push(other);
            }
        }
        let all = || rivals.iter().chain([&hold]);
        let limit = all().map(|hold| hold.limit).min().unwrap_or(1);
        if rivals.len() >= limit {
            let end = all().map(|hold| hold.end).min().unwrap_or(hold.end);
            let what = format!(
                "{} owners together held a lock that admits {limit}, for {} us",
                rivals.len() + 1,
                (end - hold.start) / 1000
            );
            breaches.add(Promise::Exclusion, &what, all().map(|hold| hold.shown_by));
        }
        together.push(hold);
    }
}
