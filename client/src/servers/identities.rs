//! Whether the servers of a Redlock are different ones.

use std::sync::{Arc, Mutex};

use crate::mutex::locked;

/// Which run of which server each node of a Redlock was found to be.
#[derive(Clone, Default)]
pub(crate) struct Identities(Arc<Mutex<Vec<Known>>>);

/// What is known of a node.
#[derive(Clone, Default)]
struct Known {
    run_id: Option<String>,
    /// Another node seems to be the server that this one was. It has to be asked again.
    is_doubted: bool,
}

/// What a node was found to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A server that no other node is.
    Alone,
    /// A server that another node was before, as this one was another. Perhaps their
    /// addresses have changed places: the other one has to be asked first.
    Doubtful,
    /// The same server as another node.
    Another,
}

/// One of these nodes.
pub(crate) struct Identity {
    all: Identities,
    nth: usize,
}

impl Identity {
    /// Notes which run of a server the node was found to be.
    pub(crate) fn note(&self, run_id: &str) -> Found {
        self.all.note(self.nth, run_id)
    }

    /// Whether the node has to be asked again before it is relied on.
    pub(crate) fn is_doubted(&self) -> bool {
        let all = locked(&self.all.0);
        all.get(self.nth).is_some_and(|known| known.is_doubted)
    }
}

impl Identities {
    /// The node of this number.
    pub(crate) fn of(&self, nth: usize) -> Identity {
        let mut all = locked(&self.0);
        let missing = (nth + 1).saturating_sub(all.len());
        all.extend(std::iter::repeat_n(Known::default(), missing));
        drop(all);
        Identity {
            all: self.clone(),
            nth,
        }
    }

    fn note(&self, nth: usize, run_id: &str) -> Found {
        let mut all = locked(&self.0);
        let was_known = std::mem::take(&mut all[nth]).run_id.is_some();
        let same = |other: &&mut Known| other.run_id.as_deref() == Some(run_id);
        match all.iter_mut().find(same) {
            Some(other) if was_known || other.is_doubted => {
                other.is_doubted = true;
                Found::Doubtful
            }
            Some(_) => Found::Another,
            None => {
                all[nth].run_id = Some(run_id.into());
                Found::Alone
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_are_never_the_same_server() {
        let all = Identities::default();
        let nodes = [0, 1, 2].map(|nth| all.of(nth));
        assert_eq!(nodes[2].note("a"), Found::Alone);
        assert_eq!(nodes[0].note("b"), Found::Alone);
        assert_eq!(nodes[1].note("a"), Found::Another);
        assert_eq!(nodes[2].note("c"), Found::Alone, "it was started anew");
        assert_eq!(nodes[1].note("a"), Found::Alone);
        assert!(nodes.iter().all(|node| !node.is_doubted()));
    }

    #[test]
    fn where_nodes_change_places_the_other_one_is_asked_again() {
        let all = Identities::default();
        let [one, other] = [0, 1].map(|nth| all.of(nth));
        one.note("a");
        other.note("b");
        assert_eq!(one.note("b"), Found::Doubtful);
        assert!(other.is_doubted() && !one.is_doubted());
        assert_eq!(one.note("b"), Found::Doubtful, "nobody has asked yet");
        assert_eq!(other.note("a"), Found::Alone);
        assert!(!other.is_doubted());
        assert_eq!(one.note("b"), Found::Alone);
    }

    #[test]
    fn a_node_that_comes_to_be_the_server_of_another_is_refused() {
        let all = Identities::default();
        let [one, other] = [0, 1].map(|nth| all.of(nth));
        one.note("a");
        other.note("b");
        assert_eq!(one.note("b"), Found::Doubtful);
        assert_eq!(
            other.note("b"),
            Found::Alone,
            "it is the server that it was"
        );
        assert_eq!(one.note("b"), Found::Another);
        assert!(!other.is_doubted());
    }
}
