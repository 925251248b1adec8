//! Requests as the words of a command, and what the replies mean.

use redis::Value;
use redis_lock_testing::Told;

use super::{Ask, CLAIM_TIMEOUT_MS};
use crate::history::{Link, Mode, Outcome, Request};
use crate::locks::in_database;

/// Which holds are given back.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    One,
    All,
    Hold(u64),
}

pub(super) fn acquire_words(ask: Ask) -> (Request, Vec<String>) {
    let request = Request::Acquire {
        lease_ms: ask.lease_ms,
        block_ms: ask.block_ms,
        mode: ask.mode,
        session: ask.session,
        claim_ms: None,
    };
    let mut words = vec!["LEASE".to_owned(), ask.lease_ms.to_string()];
    if let Some(block_ms) = ask.block_ms {
        words.extend(["BLOCK".to_owned(), block_ms.to_string()]);
    }
    if let Some(hold) = ask.hold {
        words.extend(["HOLD".to_owned(), hold.to_string()]);
    }
    match ask.mode {
        Mode::Exclusive => {}
        Mode::Shared => words.push("SHARED".to_owned()),
        Mode::Limited(limit) => words.extend(["LIMIT".to_owned(), limit.to_string()]),
    }
    if ask.session {
        words.push("SESSION".to_owned());
    }
    (request, words)
}

pub(super) fn release_words(fence: Option<i64>, extent: Extent) -> (Request, Vec<String>) {
    let (hold, mut words) = match extent {
        Extent::One => (None, Vec::new()),
        Extent::All => (None, vec!["ALL".to_owned()]),
        Extent::Hold(hold) => (Some(hold), vec!["HOLD".to_owned(), hold.to_string()]),
    };
    if let Some(token) = fence {
        words.extend(["FENCE".to_owned(), token.to_string()]);
    }
    (Request::Release { hold, fence }, words)
}

/// Whether nobody knows what became of a request.
pub(super) fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Lost | Outcome::GivenUp)
}

/// How long the client would wait for the reply.
pub(super) fn waits(request: Request) -> Option<u64> {
    match request {
        Request::Acquire { block_ms, .. } if !is_for_place(request) => block_ms,
        _ => None,
    }
}

pub(super) fn is_for_place(request: Request) -> bool {
    matches!(
        request,
        Request::Acquire {
            claim_ms: Some(_),
            ..
        }
    )
}

/// A request for a place in the queue, whose end is told by this channel.
pub(super) fn place_words(ask: Ask, channel: &str) -> (Request, Vec<String>) {
    let wait_ms = ask.block_ms.unwrap_or(1).max(1);
    let (_, mut words) = acquire_words(Ask {
        block_ms: None,
        ..ask
    });
    words.extend(["QUEUE", &wait_ms.to_string(), channel].map(str::to_owned));
    let request = Request::Acquire {
        lease_ms: ask.lease_ms,
        block_ms: Some(wait_ms),
        mode: ask.mode,
        session: ask.session,
        claim_ms: Some(CLAIM_TIMEOUT_MS),
    };
    (request, words)
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
            let of_lock = match request {
                Request::Release { .. } => replies.into_iter().next(),
                _ => replies.into_iter().next_back(),
            };
            outcome(request, of_lock.unwrap_or(Value::Nil), database)
        }
        (
            Request::Acquire {
                claim_ms: Some(_), ..
            },
            Value::Int(0),
        ) => Outcome::Pending,
        (Request::Acquire { .. }, Value::Int(token)) => Outcome::Granted(token),
        (Request::Acquire { .. }, Value::Nil) => Outcome::NotAvailable,
        (Request::Renew { .. }, Value::Int(1)) => Outcome::Renewed,
        (Request::Renew { .. }, Value::Int(0)) => Outcome::NotHeld,
        (Request::Release { .. }, Value::Int(1)) => Outcome::Released,
        (Request::Release { .. }, Value::Int(0)) => Outcome::StillHeld,
        (Request::Release { .. }, Value::Nil) => Outcome::NotHeld,
        (Request::Ping, Value::SimpleString(_)) => Outcome::Done,
        (Request::Acquire { .. }, Value::ServerError(error)) if error.code() == "DEADLOCK" => {
            let text = error.details().unwrap_or_default();
            // A script says where in it that was.
            let (cycle, _) = text.split_once(" script: ").unwrap_or((text, ""));
            deadlock(cycle, database)
        }
        (_, Value::ServerError(error)) => Outcome::Error(error.code().to_owned()),
        (_, other) => Outcome::Error(format!("{other:?}")),
    }
}
