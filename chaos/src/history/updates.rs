//! What was added to a set is there when it is read later.

use super::{Breach, History, Outcome, Promise, Request};

pub(super) fn check(history: &History, breaches: &mut Vec<Breach>) {
    for read in &history.operations {
        let Outcome::Elements(elements) = &read.outcome else {
            continue;
        };
        for added in history
            .operations
            .iter()
            .filter(|one| one.lock == read.lock)
        {
            if let Request::Add { element } = added.request
                && added.over_by(read.sent)
                && added.outcome == Outcome::Done
                && !elements.contains(&element)
            {
                let what = "an acknowledged addition was lost";
                breaches.push(Breach::new(Promise::Updates, what, [added]));
            }
        }
    }
}
