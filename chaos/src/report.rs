//! What a campaign tells of a history: what there was, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::history::{
    self, Breach, History, Interference, MS, Nanos, Operation, Outcome, Promise, TOLERANCE,
};

/// How many breaches of each promise are shown in full.
const SHOWN: usize = 3;

/// What is told with a breach may be over for so long.
const DONE_BEFORE: Nanos = 5000 * MS;

/// What came of all operations. What shows that a section relies upon its lock is none.
fn outcomes(history: &History) -> BTreeMap<String, usize> {
    let mut outcomes = BTreeMap::new();
    let is_none = |one: &&Operation| one.answered == Some(one.sent);
    for one in history.operations.iter().filter(|one| !is_none(one)) {
        let shown = format!("{:?}", one.outcome);
        let kind = match &one.outcome {
            Outcome::Error(code) => code,
            _ => shown.split(['(', ' ']).next().unwrap_or_default(),
        };
        *outcomes.entry(kind.to_owned()).or_default() += 1;
    }
    outcomes
}

/// Each kind with its number, and the sum before them.
fn counts(kinds: &BTreeMap<impl AsRef<str>, usize>) -> String {
    let sum: usize = kinds.values().sum();
    let each = kinds.iter();
    let each = each.map(|(kind, count)| format!("{} {count}", kind.as_ref()));
    let each: Vec<String> = each.collect();
    match each.is_empty() {
        true => sum.to_string(),
        false => format!("{sum} ({})", each.join(", ")),
    }
}

pub(crate) fn totals(
    history: &History,
    faults: &BTreeMap<&str, usize>,
    broken: &BTreeMap<String, usize>,
) -> String {
    let queued = history.operations.iter().filter(|one| one.queued.is_some());
    format!(
        "{} operations, {} seen to queue; {}; faults: {}; breaches: {}",
        history.operations.len(),
        queued.count(),
        counts(&outcomes(history)),
        counts(faults),
        counts(broken)
    )
}

/// Shows some breaches of each promise: the operations that show it, and what was done to the
/// servers. Returns how many there are.
pub fn show(breaches: &[Breach], history: &History) -> BTreeMap<String, usize> {
    let mut broken: BTreeMap<String, usize> = BTreeMap::new();
    for breach in breaches {
        let count = broken.entry(breach.promise.to_string()).or_default();
        *count += 1;
        if *count > SHOWN {
            continue;
        }
        println!("breach of {}: {}", breach.promise, breach.what);
        breach.shown.iter().for_each(|one| println!("  {one}"));
        let times = || breach.shown.iter().map(|one| one.sent);
        let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let first = first.saturating_sub(DONE_BEFORE);
        let near = |one: &&Interference| one.overlaps(first, last);
        for one in history.interferences.iter().filter(near) {
            let (from_ms, until_ms) = (one.from / MS, one.until / MS);
            println!("  {from_ms} to {until_ms} ms: == {}", one.what);
        }
    }
    broken
}

/// Exclusion first, and each once: the same holds may overlap as many requests show.
pub fn sort(breaches: &mut Vec<Breach>) {
    breaches.sort_by_key(|breach| {
        let begun = breach.shown.iter().map(|one| one.sent).max();
        (breach.promise != Promise::Exclusion, begun)
    });
    let mut seen = HashSet::new();
    breaches.retain(|breach| {
        let owners = breach.shown.iter().map(|one| one.owner.clone());
        let owners: BTreeSet<String> = owners.collect();
        seen.insert((breach.promise, owners))
    });
}

/// Writes a history, a line each, as `--judge` reads it.
pub fn write_history(history: &History, path: &Path) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let operations = history.operations.iter().map(serde_json::to_string);
        let interferences = history.interferences.iter().map(serde_json::to_string);
        for line in operations.chain(interferences) {
            writeln!(file, "{}", line?)?;
        }
        file.flush()
    };
    write().with_context(|| path.display().to_string())
}

/// Judges a history that was written before. Returns whether all promises were kept.
pub fn judge(path: &Path) -> Result<bool> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        Operation(Operation),
        Interference(Interference),
    }
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut history = History::default();
    for line in BufReader::new(file).lines() {
        let line = line?;
        match serde_json::from_str(&line).context(line)? {
            Line::Operation(one) => history.operations.push(one),
            Line::Interference(one) => history.interferences.push(one),
        }
    }
    let breaches = history::check(&history, TOLERANCE);
    let broken = show(&breaches, &history);
    println!("totals: {}", totals(&history, &BTreeMap::new(), &broken));
    Ok(breaches.is_empty())
}
