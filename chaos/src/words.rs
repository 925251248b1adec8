//! Requests as the words of a command, and what the replies mean.

use std::fmt::Display;

use redis::Value;
use redis_lock_testing::Told;

use crate::history::{Acquire, Link, Mode, Outcome, Request};
use crate::locks::in_database;

fn option(name: &str, value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| format!(" {name} {value}"))
}

/// What comes after this word.
pub fn word_after<'w>(words: &[&'w str], name: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1).copied()
}

impl Acquire {
    /// What these options ask for. What a message grants lasts so long unclaimed.
    pub fn of(words: &[&str], claim_ms: u64) -> Self {
        let option = |name| word_after(words, name)?.parse().ok();
        let place_ms = option("QUEUE");
        Self {
            lease_ms: option("LEASE").unwrap_or(30_000),
            block_ms: place_ms.or(option("BLOCK")),
            mode: match option("LIMIT") {
                Some(limit) => Mode::Limited(usize::try_from(limit).unwrap_or(usize::MAX)),
                None if words.contains(&"SHARED") => Mode::Shared,
                None => Mode::Exclusive,
            },
            hold: option("HOLD"),
            session: words.contains(&"SESSION"),
            claim_ms: place_ms.map(|_| claim_ms),
        }
    }
}

impl Request {
    /// The command of this owner, with its words between spaces. By this channel it hears
    /// of the end of a place.
    pub fn line(self, key: &str, owner: &str, channel: &str) -> String {
        match self {
            Self::Acquire(asked) => {
                let waits = match (asked.block_ms, asked.claim_ms) {
                    (Some(wait_ms), Some(_)) => format!(" QUEUE {wait_ms} {channel}"),
                    (block_ms, _) => option("BLOCK", block_ms),
                };
                let hold = option("HOLD", asked.hold);
                let mode = match asked.mode {
                    Mode::Exclusive => String::new(),
                    Mode::Shared => " SHARED".to_owned(),
                    Mode::Limited(limit) => format!(" LIMIT {limit}"),
                };
                let session = if asked.session { " SESSION" } else { "" };
                let lease_ms = asked.lease_ms;
                format!("LOCK.ACQUIRE {key} {owner} LEASE {lease_ms}{waits}{hold}{mode}{session}")
            }
            Self::Renew { lease_ms, fence } => {
                let fence = option("FENCE", fence);
                format!("LOCK.RENEW {key} {owner} LEASE {lease_ms}{fence}")
            }
            Self::Release { hold, fence, all } => {
                let (hold, fence) = (option("HOLD", hold), option("FENCE", fence));
                let all = if all { " ALL" } else { "" };
                format!("LOCK.RELEASE {key} {owner}{hold}{all}{fence}")
            }
            Self::Ping => "PING".to_owned(),
            // A client closes without a word, and what it does with data is its own affair.
            Self::Close | Self::Add { .. } | Self::Read => String::new(),
        }
    }

    /// Whether it waits by a place in the queue.
    pub fn is_for_place(self) -> bool {
        matches!(self, Self::Acquire(asked) if asked.claim_ms.is_some())
    }

    /// How long the client would wait for the reply.
    pub fn block_ms(self) -> Option<u64> {
        match self {
            Self::Acquire(asked) if !self.is_for_place() => asked.block_ms,
            _ => None,
        }
    }
}

/// What a message says of the end of a place.
pub fn outcome_of_place(told: &Told) -> Outcome {
    match told.result.strip_prefix('-') {
        Some(refusal) => match refusal.split_once(' ') {
            Some(("DEADLOCK", cycle)) => deadlock(cycle, told.db),
            _ => {
                let code = refusal.split(' ').next().unwrap_or_default();
                Outcome::Error(code.to_owned())
            }
        },
        None => match (told.result.parse(), u64::try_from(told.lease_ms)) {
            (Ok(0), Ok(0)) => Outcome::NotAvailable,
            (Ok(token @ 1..), Ok(lease_ms @ 1..)) => Outcome::Told { token, lease_ms },
            _ => Outcome::Error(format!("{told:?}")),
        },
    }
}

fn deadlock(cycle: &str, database: i64) -> Outcome {
    let mut links = Link::parse_all(cycle).unwrap_or_default();
    for link in &mut links {
        link.lock = in_database(database, &link.lock);
    }
    Outcome::Deadlock(links)
}

/// What a reply means, which may be that of a transaction.
pub fn outcome(request: Request, reply: Value, database: i64) -> Outcome {
    match (request, reply) {
        (_, Value::Array(replies)) => {
            let last = replies.into_iter().next_back();
            outcome(request, last.unwrap_or(Value::Nil), database)
        }
        (Request::Acquire(_), Value::Int(0)) if request.is_for_place() => Outcome::Pending,
        (Request::Acquire(_), Value::Int(token)) => Outcome::Granted(token),
        (Request::Acquire(_), Value::Nil) => Outcome::NotAvailable,
        (Request::Renew { .. }, Value::Int(1)) => Outcome::Renewed,
        (Request::Renew { .. }, Value::Int(0)) => Outcome::NotHeld,
        (Request::Release { .. }, Value::Int(1)) => Outcome::Released,
        (Request::Release { .. }, Value::Int(0)) => Outcome::StillHeld,
        (Request::Release { .. }, Value::Nil) => Outcome::NotHeld,
        (Request::Ping, Value::SimpleString(_)) => Outcome::Done,
        (Request::Acquire(_), Value::ServerError(error)) if error.code() == "DEADLOCK" => {
            let text = error.details().unwrap_or_default();
            // A script says where in it that was.
            let (cycle, _) = text.split_once(" script: ").unwrap_or((text, ""));
            deadlock(cycle, database)
        }
        (_, Value::ServerError(error)) => Outcome::Error(error.code().to_owned()),
        (_, other) => Outcome::Error(format!("{other:?}")),
    }
}
