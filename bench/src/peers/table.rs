//! The table, as Markdown between two marks of a document.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result};

use super::Options;

/// Where the table of a target of `make` begins, and where any ends.
fn begin(target: &str) -> String {
    format!("<!-- make {target} writes from here -->")
}
const END: &str = "<!-- to here -->";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// µs of an uncontended acquire and release, p50 and p99.
    Pair,
    /// µs of the server's processor for them.
    Cpu,
    /// µs from a release to the next one's section, p50 and p99.
    HandOff,
    /// ms until the next one holds when a holder is killed.
    AfterKill,
    /// KiB of the server for a waiter.
    Memory,
    /// Sections a second on this many locks, for each number of contenders.
    Sections(usize),
}

/// A library with one setting of its server.
pub struct Row {
    title: &'static str,
    setting: &'static str,
    version: String,
    cells: BTreeMap<Cell, Vec<Option<f64>>>,
    reasons: Vec<String>,
}

impl Row {
    pub fn new(title: &'static str, setting: &'static str, version: String) -> Self {
        Self {
            title,
            setting,
            version,
            cells: BTreeMap::new(),
            reasons: Vec::new(),
        }
    }

    /// Adds a figure, or why there is none.
    pub fn add(&mut self, cell: Cell, figure: Result<f64>) {
        match figure {
            Ok(figure) => self.cells.entry(cell).or_default().push(Some(figure)),
            Err(error) => {
                self.cells.entry(cell).or_default().push(None);
                self.reason(error);
            }
        }
    }

    /// Adds the median and the 99th percentile, in µs.
    pub fn quantiles(&mut self, cell: Cell, latencies_ns: &[u64]) {
        let mut sorted = latencies_ns.to_vec();
        sorted.sort_unstable();
        for percent in [50, 99] {
            let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            if let Some(latency) = sorted.get(at) {
                self.add(cell, Ok(*latency as f64 / 1e3));
            }
        }
    }

    /// Says why something was not measured.
    pub fn reason(&mut self, error: Error) {
        let reason = format!("{error:#}").replace('\n', " ");
        let short: String = reason.chars().take(100).collect();
        if !self.reasons.contains(&short) {
            self.reasons.push(short);
        }
    }

    fn shown(&self, cell: Cell) -> String {
        let Some(figures) = self.cells.get(&cell) else {
            return "-".into();
        };
        let figures: Vec<String> = figures
            .iter()
            .map(|figure| figure.map_or("-".into(), plain))
            .collect();
        figures.join(" / ")
    }
}

/// To three digits, or to the unit.
fn plain(figure: f64) -> String {
    match figure {
        figure if figure < 10.0 => format!("{figure:.1}"),
        figure if figure < 1_000.0 => format!("{figure:.0}"),
        figure => {
            let digits = format!("{figure:.0}");
            let (head, tail) = digits.split_at(digits.len() - 3);
            let head: f64 = head.parse().unwrap_or_default();
            let head = if head < 10.0 {
                format!("{head:.0}")
            } else {
                plain(head)
            };
            format!("{head},{tail}")
        }
    }
}

/// The table and what is to be known of it.
pub fn write(options: &Options, rows: &[Row], took: Duration, apart: bool) -> Result<String> {
    let mut cells = vec![
        (Cell::Pair, "pair p50 / p99, µs ↓".to_owned()),
        (Cell::Cpu, "server CPU a pair, µs ↓".to_owned()),
        (Cell::HandOff, "hand-off p50 / p99, µs ↓".to_owned()),
        (Cell::AfterKill, "next one after `kill -9`, ms ↓".to_owned()),
        (Cell::Memory, "memory a waiter, KiB ↓".to_owned()),
    ];
    let contenders: Vec<String> = options.contenders.iter().map(usize::to_string).collect();
    let contenders = contenders.join(" / ");
    for &locks in &options.locks {
        let which = if locks == 1 { "lock" } else { "locks" };
        let heading = format!("sections/s ↑ on {locks} {which} of {contenders}");
        cells.push((Cell::Sections(locks), heading));
    }
    let mut text = String::new();
    let headings: Vec<&str> = cells.iter().map(|(_, heading)| heading.as_str()).collect();
    text += &format!("| library | setting | {} |\n", headings.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(cells.len()));
    for row in rows {
        let shown: Vec<String> = cells.iter().map(|(cell, _)| row.shown(*cell)).collect();
        text += &format!(
            "| {} | {} | {} |\n",
            row.title,
            row.setting,
            shown.join(" | ")
        );
    }
    text += "\n";
    for row in rows {
        for reason in &row.reasons {
            text += &format!("Not measured: {}, {}: {reason}\n\n", row.title, row.setting);
        }
    }
    let mut versions: Vec<&str> = rows.iter().map(|row| row.version.as_str()).collect();
    versions.dedup();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').nth(2).unwrap_or("unknown");
    text += &format!(
        "{}; {}; {} s a cell, hand-offs {} s, {} waiters, a lease of {} s where a holder is killed; {} s in all, load at the end {load}.\n",
        versions.join(", "),
        if apart {
            "all clients on one processor, the server on another"
        } else {
            "clients and server on one processor"
        },
        options.seconds,
        5.0 * options.seconds,
        options.waiters,
        options.lease,
        took.as_secs(),
    );
    Ok(text)
}

/// What a document has before the table, the table, and what is behind it.
fn parts(document: &Path, target: &str) -> Result<[String; 3]> {
    let name = document.display();
    let text = std::fs::read_to_string(document).with_context(|| format!("no {name}"))?;
    let begins = text.split_once(&begin(target));
    let (head, rest) = begins.context("no mark of the begin")?;
    let (table, tail) = rest.split_once(END).context("no mark of the end")?;
    Ok([head, table, tail].map(String::from))
}

/// Puts the table between its marks of a document.
pub fn put(document: &Path, target: &str, text: &str) -> Result<()> {
    let [head, _, tail] = parts(document, target)?;
    let text = format!("{head}{}\n\n{text}\n{END}{tail}", begin(target));
    Ok(std::fs::write(document, text)?)
}

/// The table that a document has.
pub fn written(document: &Path, target: &str) -> Result<String> {
    let [_, table, _] = parts(document, target)?;
    Ok(table.trim_start().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_the_place_of_the_one_before_and_of_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("document.md");
        let [one, other] = ["one", "other"].map(begin);
        let text = format!("a\n{other}\nstays\n{END}\n{one}\nold\n{END}\nb\n");
        std::fs::write(&document, text).unwrap();
        put(&document, "one", "new\n").unwrap();
        put(&document, "one", "newer\n").unwrap();
        let text = std::fs::read_to_string(&document).unwrap();
        let expected = format!("a\n{other}\nstays\n{END}\n{one}\n\nnewer\n\n{END}\nb\n");
        assert_eq!(text, expected);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_latencies() {
        let mut row = Row::new("", "", String::new());
        row.quantiles(
            Cell::Pair,
            &(1..=100).rev().map(|n| n * 1_000).collect::<Vec<_>>(),
        );
        assert_eq!(row.shown(Cell::Pair), "51 / 100");
        assert_eq!(row.shown(Cell::Cpu), "-");
        assert_eq!(plain(12_345.4), "12,345");
        assert_eq!(plain(1_391_618.0), "1,391,618");
        assert_eq!(plain(999.6), "1000");
        assert_eq!(plain(2.54), "2.5");
    }
}
