//! What was added to a set is there when it is read later.

use super::lock::Lock;
use super::{Breaches, Outcome, Promise, Request};

pub(super) fn check(lock: &Lock<'_>, breaches: &mut Breaches) {
    for read in lock.operations() {
        let Outcome::Elements(elements) = &read.outcome else {
            continue;
        };
        for added in lock.operations() {
            if let Request::Add { element } = added.request
                && added.over_by(read.sent)
                && added.outcome == Outcome::Done
                && !elements.contains(&element)
            {
                let what = "an acknowledged addition was lost";
                breaches.add(Promise::Updates, what, [added]);
            }
        }
    }
}
