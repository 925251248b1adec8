//! What campaigns tell in one line.

use std::collections::BTreeMap;

/// Each kind with its number, and the sum before them.
pub fn counts(kinds: &BTreeMap<impl AsRef<str>, usize>) -> String {
    let mut line = kinds.values().sum::<usize>().to_string();
    for (index, (kind, count)) in kinds.iter().enumerate() {
        let separator = if index == 0 { " (" } else { ", " };
        line.push_str(&format!("{separator}{} {count}", kind.as_ref()));
    }
    if !kinds.is_empty() {
        line.push(')');
    }
    line
}
