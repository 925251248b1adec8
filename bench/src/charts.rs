//! The charts of a run.

use std::path::Path;

use anyhow::Result;
use subject::chart::{Labels, Line, draw};

use crate::report::Name;
use crate::results::Results;

/// Draws every chart for which there are figures.
pub fn write(folder: &Path, names: &[Name], results: &Results) -> Result<()> {
    let waiters = Labels {
        file: "hand-off-waiters.svg",
        title: "Hand-off against the number of waiters",
        x: "waiters (log)",
        y: "µs to the next holder, median (log)",
    };
    let lines = by_number(names, results, "hand-off-", "hand-off p50 µs");
    draw(folder, &waiters, &lines)?;
    let contended = Labels {
        file: "contended-sections.svg",
        title: "One lock, fought over",
        x: "clients (log)",
        y: "sections a second (log)",
    };
    let lines = by_number(names, results, "contended-", "sections/s");
    draw(folder, &contended, &lines)
}

/// The figures of all scenarios whose names are a prefix and a number.
fn by_number(names: &[Name], results: &Results, prefix: &str, metric: &str) -> Vec<Line> {
    let lines = names.iter().map(|name| {
        let series = results
            .series
            .iter()
            .filter(|series| series.contender == name.name && series.metric == metric);
        let points = series.filter_map(|series| {
            let number: f64 = series.scenario.strip_prefix(prefix)?.parse().ok()?;
            Some((number, series.median()))
        });
        Line {
            label: name.title.replace(['`', '*'], ""),
            points: points.collect(),
        }
    });
    lines.filter(|line| !line.points.is_empty()).collect()
}
