//! No more owners hold a lock together than each of them admits.

use std::collections::HashMap;

use super::{Breach, CertainHold, Promise, Tenancies};

pub(super) fn check(tenancies: &Tenancies<'_>, breaches: &mut Vec<Breach>) {
    let mut by_lock: HashMap<&str, Vec<&CertainHold<'_>>> = HashMap::new();
    for ((lock, _), tenancy) in tenancies {
        by_lock.entry(lock).or_default().extend(&tenancy.certain);
    }
    for holds in by_lock.values_mut() {
        holds.sort_by_key(|hold| hold.start);
        let mut together: Vec<&CertainHold<'_>> = Vec::new();
        for &hold in holds.iter() {
            together.retain(|other| other.end > hold.start);
            let owner = &hold.shown_by.owner;
            let mut rivals: Vec<&CertainHold<'_>> = Vec::new();
            for &other in &together {
                let is_new =
                    |known: &&CertainHold<'_>| known.shown_by.owner != other.shown_by.owner;
                if other.shown_by.owner != *owner && rivals.iter().all(is_new) {
                    rivals.push(other);
                }
            }
            let limit = rivals
                .iter()
                .fold(hold.limit, |limit, rival| limit.min(rival.limit));
            if rivals.len() >= limit {
                let end = rivals
                    .iter()
                    .fold(hold.end, |end, rival| end.min(rival.end));
                let what = format!(
                    "{} owners together held a lock that admits {limit}, for {} us",
                    rivals.len() + 1,
                    (end - hold.start) / 1000
                );
                let shown = rivals.iter().chain([&hold]).map(|hold| hold.shown_by);
                breaches.push(Breach::new(Promise::Exclusion, &what, shown));
            }
            together.push(hold);
        }
    }
}
