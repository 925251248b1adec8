//! No more owners hold a lock together than each of them admits.

use std::collections::HashSet;

use super::lock::Lock;
use super::{Breaches, CertainHold, Promise};

pub(super) fn check(lock: &Lock<'_>, breaches: &mut Breaches) {
    let holds = lock.tenancies.values().flat_map(|tenancy| &tenancy.certain);
    let mut holds: Vec<&CertainHold<'_>> = holds.collect();
    holds.sort_by_key(|hold| hold.start);
    let mut together: Vec<&CertainHold<'_>> = Vec::new();
    for hold in holds {
        together.retain(|other| other.end > hold.start);
        // One hold of each other owner.
        let mut owners = HashSet::from([&hold.shown_by.owner]);
        let rivals = together.iter().copied();
        let rivals: Vec<_> = rivals
            .filter(|one| owners.insert(&one.shown_by.owner))
            .collect();
        let all = || rivals.iter().chain([&hold]);
        let limit = all().map(|hold| hold.limit).min().unwrap_or(1);
        if rivals.len() >= limit {
            let end = all().map(|hold| hold.end).min().unwrap_or(hold.end);
            let (owners, us) = (rivals.len() + 1, (end - hold.start) / 1000);
            let what =
                format!("{owners} owners together held a lock that admits {limit}, for {us} us");
            breaches.add(Promise::Exclusion, &what, all().map(|hold| hold.shown_by));
        }
        together.push(hold);
    }
}
