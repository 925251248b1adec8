//! A cycle of owners, each of which waits for the next one, and how it is told.

use crate::keys::{KeyBuf, KeyRef};
use crate::request::Owner;

/// An edge of the wait-for graph: an owner that waits, and one that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitEdge {
    /// Who waits.
    pub waiter: Owner,
    /// For which lock.
    pub key: KeyBuf,
    /// Who holds it.
    pub blocker: Owner,
}

/// Says in words who waits for what. If the reader may not read a key, this says only that
/// there are some.
pub fn spell(cycle: &[WaitEdge], may_read: impl Fn(KeyRef<'_>) -> bool) -> String {
    const HIDDEN: &str = "others wait for keys that this user may not read";
    let mut spelled: Vec<String> = Vec::new();
    for edge in cycle {
        let key = edge.key.as_ref();
        if may_read(key) {
            spelled.push(format!(
                "'{}' waits for '{}' held by '{}'",
                edge.waiter.as_bytes().escape_ascii(),
                key.shown(),
                edge.blocker.as_bytes().escape_ascii(),
            ));
        } else if spelled.last().is_none_or(|last| last != HIDDEN) {
            spelled.push(HIDDEN.into());
        }
    }
    spelled.join(", ")
}
