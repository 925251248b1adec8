//! What campaigns tell in one line, and what they leave at a breach.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::history::History;

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

/// Writes a history, a line each, as `redis-lock-chaos --judge` reads it.
pub fn write_history(history: &History, path: &Path) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for operation in &history.operations {
            serde_json::to_writer(&mut file, operation)?;
            file.write_all(b"\n")?;
        }
        for interference in &history.interferences {
            serde_json::to_writer(&mut file, interference)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    };
    write().map_err(|error| format!("{}: {error}", path.display()))
}
