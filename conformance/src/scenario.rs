//! Scenarios as the files in `scenarios` have them, and what is expected of what is seen.

use std::collections::HashMap;
use std::path::Path;

use redis_lock_testing::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// One thing that every package has to do.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called in the table.
    pub name: String,
    /// The same for people, in a sentence.
    pub says: String,
    /// The servers: see `Bed`.
    #[serde(default)]
    pub bed: Kind,
    /// Options of the one server, as on its command line.
    #[serde(default)]
    pub options: Vec<String>,
    /// Whether there is a proxy between the actors and the server.
    #[serde(default)]
    pub proxy: bool,
    /// Who takes part, each a process; "a" alone if not said.
    #[serde(default = "one_actor")]
    pub actors: Vec<String>,
    /// Whether the actors are one of each language.
    #[serde(default)]
    pub mixed: bool,
    /// Whether it is judged by times, and so tried again if the machine stood still.
    #[serde(default)]
    pub timed: bool,
    /// Whether the actors go by a wall clock of their own.
    #[serde(default)]
    pub clock: bool,
    /// Commands to the server before anybody connects.
    #[serde(default)]
    pub before: Vec<String>,
    /// What `connect` is told more.
    #[serde(default)]
    pub connect: Map<String, Value>,
    /// A fault of the Rust driver, or once of the Python driver, that it has to notice.
    pub fault: String,
    /// What happens, one after the other.
    pub steps: Vec<Step>,
}

/// The servers of a scenario.
#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One with the module.
    #[default]
    One,
    /// One without the module.
    Plain,
    /// One and its replica, number 1.
    Replica,
    /// One that is spoken to over TLS.
    Tls,
    /// A primary, two replicas, three sentinels.
    Sentinel,
    /// Three nodes, and a slot that can move from number 0 to number 1.
    Cluster,
}

/// One step. Words such as `$h.token` stand for what was seen before.
#[derive(Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Step {
    /// An actor is told something; `*` is each of them in turn. The answer is waited for
    /// if something is expected of it.
    Call {
        actor: String,
        call: String,
        #[serde(default)]
        args: Map<String, Value>,
        #[serde(rename = "as")]
        name: Option<String>,
        /// How often; `$n` in `args` is the number.
        #[serde(default = "once")]
        times: u64,
        /// After each so many wait for this key, and one more each time.
        joins: Option<String>,
        expect: Option<Value>,
        /// Why an answer that is not as expected shows that this can't be tried here.
        else_unsupported: Option<String>,
    },
    /// All calls of this name are answered, or have had their event.
    Answer {
        answer: String,
        #[serde(default)]
        event: bool,
        expect: Value,
        #[serde(default = "patience")]
        within_ms: u64,
    },
    /// No call of this name is answered yet.
    NoAnswer { no_answer: String },
    /// The acquires of this name are answered one after the other, in the order in which
    /// they were begun, and each is released for the next.
    InTurn {
        in_turn: String,
        #[serde(default)]
        any_order: bool,
        #[serde(default = "patience")]
        within_ms: u64,
    },
    /// Something is asked of a server, the proxy or the clock: see `Bed::ask`. On a
    /// connection of a name a command is only sent: `REPLY name` waits for the reply.
    Ask {
        ask: String,
        #[serde(default)]
        at: Node,
        on: Option<String>,
        #[serde(rename = "as")]
        name: Option<String>,
        expect: Option<Value>,
    },
    /// The same, or a call of an actor, again and again, until it is as expected.
    Await {
        r#await: String,
        #[serde(default)]
        at: Node,
        actor: Option<String>,
        #[serde(default)]
        args: Map<String, Value>,
        #[serde(rename = "as")]
        name: Option<String>,
        expect: Value,
        #[serde(default = "patience")]
        within_ms: u64,
    },
    /// Something is done to the servers, the proxy or a process: see `Bed::act`.
    Act {
        act: String,
        #[serde(default)]
        at: Node,
        actor: Option<String>,
        ms: Option<i64>,
        word: Option<String>,
        error: Option<String>,
    },
    /// Steps that are made several times.
    Repeat { repeat: u64, steps: Vec<Self> },
}

/// Which server, by its number; -1 is the primary that the sentinels name.
pub type Node = i32;

fn one_actor() -> Vec<String> {
    vec!["a".into()]
}

fn once() -> u64 {
    1
}

fn patience() -> u64 {
    40_000
}

/// The scenarios of all files in a folder, in the order of their names.
pub fn read(folder: &Path) -> Result<Vec<Scenario>> {
    let files = std::fs::read_dir(folder)?;
    let mut files: Vec<_> = files.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    let mut scenarios = Vec::new();
    for file in files {
        let wrong = |error| Error::msg(format!("{}: {error}", file.display()));
        let text = std::fs::read_to_string(&file)?;
        let read: Vec<Scenario> = serde_json::from_str(&text).map_err(wrong)?;
        scenarios.extend(read);
    }
    Ok(scenarios)
}

/// What was seen, by name.
#[derive(Default)]
pub struct Seen(pub HashMap<String, Value>);

impl Seen {
    /// What a path such as `h.token` or `info.waiters.0.owner` stands for.
    fn at(&self, path: &str) -> Result<Value> {
        let mut parts = path.split('.');
        let name = parts.next().unwrap_or_default();
        let mut value = self.0.get(name);
        for part in parts {
            value = value.and_then(|value| match value {
                Value::Array(items) => items.get(part.parse::<usize>().ok()?),
                value => value.get(part),
            });
        }
        value
            .cloned()
            .ok_or_else(|| Error::msg(format!("nothing is known of {path}")))
    }

    /// The words with what they stand for in their place.
    pub fn fill(&self, text: &str) -> Result<String> {
        let words = text.split(' ').map(|word| match word.strip_prefix('$') {
            Some(path) => match self.at(path)? {
                Value::String(text) => Ok(text),
                other => Ok(other.to_string()),
            },
            None => Ok(word.to_owned()),
        });
        Ok(words.collect::<Result<Vec<_>>>()?.join(" "))
    }

    /// The same in a call's fields.
    pub fn fill_in(&self, args: &Map<String, Value>) -> Result<Map<String, Value>> {
        let filled = args.iter().map(|(name, value)| {
            let value = match value {
                Value::String(text) => self.fill(text)?.into(),
                value => value.clone(),
            };
            Ok((name.clone(), value))
        });
        filled.collect()
    }

    /// A number, what a name stands for, or that and so much more.
    fn number(&self, value: &Value) -> Result<f64> {
        let number = match value {
            Value::String(path) => self.at(path)?.as_f64(),
            Value::Array(sum) => {
                return sum.iter().map(|term| self.number(term)).sum();
            }
            number => number.as_f64(),
        };
        number.ok_or_else(|| Error::msg(format!("{value} is no number")))
    }

    /// Whether something is as expected, or why not: see README.md.
    pub fn fits(&self, expected: &Value, seen: &Value) -> Result<()> {
        let differs = || Err(Error::msg(format!("expected {expected}, seen {seen}")));
        match expected {
            Value::Object(fields) => {
                for (name, expected) in fields {
                    let number = || {
                        seen.as_f64()
                            .ok_or_else(|| Error::msg(format!("{seen} is no number")))
                    };
                    let is_so = match name.as_str() {
                        "above" => number()? > self.number(expected)?,
                        "below" => number()? < self.number(expected)?,
                        "one_of" => expected.as_array().is_some_and(|of| of.contains(seen)),
                        name => {
                            self.fits(expected, seen.get(name).unwrap_or(&Value::Null))
                                .map_err(|why| Error::msg(format!("{name}: {why}")))?;
                            true
                        }
                    };
                    if !is_so {
                        return differs();
                    }
                }
                Ok(())
            }
            Value::Array(expected) => match seen {
                Value::Array(seen) if seen.len() == expected.len() => expected
                    .iter()
                    .zip(seen)
                    .try_for_each(|(expected, seen)| self.fits(expected, seen)),
                _ => differs(),
            },
            Value::String(text) if text == "any" && !seen.is_null() => Ok(()),
            Value::String(text) if text.starts_with('$') => self.fits(&self.at(&text[1..])?, seen),
            expected if expected == seen => Ok(()),
            Value::Number(number) if number.as_f64() == seen.as_f64() => Ok(()),
            _ => differs(),
        }
    }
}
