//! Whether the servers of a Redlock are different ones.

use std::sync::{Arc, Mutex};

use crate::mutex::locked;

/// Which run of which server each node of a Redlock was found to be.
#[derive(Clone, Default)]
pub(crate) struct Identities(Arc<Mutex<Vec<Option<String>>>>);

/// One of these nodes.
pub(crate) struct Identity {
    all: Identities,
    nth: usize,
}

impl Identity {
    /// Notes which run of a server the node was found to be. Returns false if it is the
    /// same as that of another node.
    pub(crate) fn note(&self, run_id: &str) -> bool {
        self.all.note(self.nth, run_id)
    }
}

impl Identities {
    /// The node of this number.
    pub(crate) fn of(&self, nth: usize) -> Identity {
        Identity {
            all: self.clone(),
            nth,
        }
    }

    fn note(&self, nth: usize, run_id: &str) -> bool {
        let mut all = locked(&self.0);
        let missing = (nth + 1).saturating_sub(all.len());
        all.extend(std::iter::repeat_n(None, missing));
        let mut others = (0..).zip(&*all).filter(|(other, _)| *other != nth);
        if others.any(|(_, other)| other.as_deref() == Some(run_id)) {
            return false;
        }
        if let Some(own) = all.get_mut(nth) {
            *own = Some(run_id.into());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Identities;

    #[test]
    fn two_nodes_are_never_the_same_server() {
        let all = Identities::default();
        assert!(all.note(2, "a"));
        assert!(all.note(0, "b"));
        assert!(!all.note(1, "a"));
        assert!(all.note(2, "c"), "it was started anew");
        assert!(all.note(1, "a"));
    }
}
