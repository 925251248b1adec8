//! The report.

use std::fmt::Write;
use std::path::Path;

use crate::results::Results;
use crate::scenarios::Scenario;
use crate::targets::{Bound, OURS, Verdict};
use anyhow::Result;

/// What the figures were measured on and with.
pub struct Conditions {
    pub machine: String,
    pub server: String,
    pub module: String,
    pub run: String,
    pub contenders: Vec<String>,
    pub missing: Vec<String>,
}

/// A contender's names, in files and in tables.
pub struct Name {
    pub name: &'static str,
    pub title: &'static str,
}

/// Writes `results.md`.
pub fn write(
    folder: &Path,
    conditions: &Conditions,
    names: &[Name],
    scenarios: &[Scenario],
    verdicts: &[Verdict],
    results: &Results,
) -> Result<()> {
    let mut report = String::from("# Benchmark\n\n");
    describe(&mut report, conditions)?;
    if !verdicts.is_empty() {
        report.push_str("\n## Targets\n\n");
        report.push_str(&targets(verdicts)?);
    }
    for scenario in scenarios {
        write!(report, "\n## {}\n\n`{}`\n\n", scenario.title, scenario.name)?;
        table(&mut report, scenario, names, results)?;
    }
    std::fs::write(folder.join("results.md"), report)?;
    Ok(())
}

fn describe(report: &mut String, conditions: &Conditions) -> Result<()> {
    for (what, text) in [
        ("Machine", &conditions.machine),
        ("Server", &conditions.server),
        ("Module", &conditions.module),
        ("Run", &conditions.run),
    ] {
        writeln!(report, "- {what}: {text}")?;
    }
    for settings in &conditions.contenders {
        writeln!(report, "- {settings}")?;
    }
    for missing in &conditions.missing {
        writeln!(report, "- Not measured: {missing}")?;
    }
    report.push_str(
        "\nFigures are medians of the rounds, with the least and the greatest in brackets. \
         \"× ours\" is how many times this module's figure it is. A floor is what plain commands \
         reach in the module's place: `blpop` passes an element of a list to a blocked client, \
         `set-del` sets a key and deletes it.\n",
    );
    Ok(())
}

/// The targets as a Markdown table.
pub fn targets(verdicts: &[Verdict]) -> Result<String> {
    let mut table = String::from("| | target | reached | | floor |\n|---|---|---|---|---|\n");
    for verdict in verdicts {
        let bound = match verdict.bound {
            Bound::AtMost(most) => format!("≤ {most}"),
            Bound::AtLeast(least) => format!("≥ {least}"),
        };
        let floor = verdict
            .floor
            .as_ref()
            .map(|floor| format!("{:.2} (`{}`)", floor.reached, floor.contender))
            .unwrap_or_default();
        writeln!(
            table,
            "| {} | {bound} | {:.3} ({:.3} to {:.3}) | {} | {floor} |",
            verdict.target,
            verdict.reached,
            verdict.spread.0,
            verdict.spread.1,
            if verdict.met { "met" } else { "**missed**" },
        )?;
    }
    Ok(table)
}

fn table(
    report: &mut String,
    scenario: &Scenario,
    names: &[Name],
    results: &Results,
) -> Result<()> {
    let mut metrics: Vec<&str> = Vec::new();
    for series in results.of(&scenario.name) {
        if !metrics.contains(&series.metric) {
            metrics.push(series.metric);
        }
    }
    let Some(first) = metrics.first() else {
        report.push_str("Nothing was measured.\n");
        return Ok(());
    };
    writeln!(report, "| | {} | × ours |", metrics.join(" | "))?;
    writeln!(report, "|---|{}---:|", "---:|".repeat(metrics.len()))?;
    let mut ours = names.iter().filter(|name| name.name.starts_with(OURS));
    let ours = ours.find_map(|name| results.find(&scenario.name, name.name, first));
    for name in names {
        let find = |metric| results.find(&scenario.name, name.name, metric);
        if metrics.iter().all(|metric| find(metric).is_none()) {
            continue;
        }
        write!(report, "| {} |", name.title)?;
        for metric in &metrics {
            match find(metric) {
                Some(series) => write!(
                    report,
                    " {} ({} to {}) |",
                    number(series.median()),
                    number(series.min()),
                    number(series.max())
                )?,
                None => report.push_str(" |"),
            }
        }
        match (find(first), ours) {
            (Some(theirs), Some(ours)) => {
                writeln!(report, " {} |", number(theirs.median() / ours.median()))?;
            }
            _ => report.push_str(" |\n"),
        }
    }
    Ok(())
}

/// Three digits that count, and no more.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
