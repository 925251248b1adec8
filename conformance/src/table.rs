//! The result: scenarios and languages.

use std::fmt::{self, Display, Write};
use std::path::Path;

use redis_lock_testing::{Error, Result};

use crate::process::Language;
use crate::scenario::Scenario;

const BEGIN: &str = "<!-- conformance: begin -->\n";
const END: &str = "<!-- conformance: end -->\n";

/// What came of a scenario.
#[derive(Clone)]
pub enum Outcome {
    /// All was as expected.
    Passed,
    /// Something was not.
    Failed(String),
    /// The package does not offer it.
    Unsupported(String),
}

impl Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => formatter.write_str("passed     "),
            Self::Failed(why) => write!(formatter, "FAILED     {why}\n          "),
            Self::Unsupported(why) => write!(formatter, "not offered {why}\n          "),
        }
    }
}

/// The table, as a document has it.
pub fn of(
    scenarios: &[Scenario],
    languages: &[Language],
    outcomes: &[(&Scenario, &Language, Outcome)],
) -> String {
    let mut table = String::from("| what is tried |");
    for language in languages {
        let _ = write!(table, " {} |", language.title());
    }
    let _ = writeln!(table, "\n|---|{}", "---|".repeat(languages.len()));
    for scenario in scenarios {
        let _ = write!(table, "| {} |", scenario.says);
        for language in languages {
            let mut found = outcomes
                .iter()
                .filter(|(of, by, _)| of.name == scenario.name && *by == language);
            let cell = match found.next().map(|(.., outcome)| outcome) {
                Some(Outcome::Passed) => "yes",
                Some(Outcome::Failed(_)) => "**no**",
                Some(Outcome::Unsupported(_)) => "–",
                None => "not tried",
            };
            let _ = write!(table, " {cell} |");
        }
        table.push('\n');
    }
    table
}

/// Puts the table between the markers of a document.
pub fn write(document: &Path, table: &str) -> Result<()> {
    let text = std::fs::read_to_string(document)?;
    let parts = text
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) =
        parts.ok_or_else(|| Error::msg(format!("{} has no markers", document.display())))?;
    Ok(std::fs::write(
        document,
        [before, BEGIN, table, END, after].concat(),
    )?)
}
