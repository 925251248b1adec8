//! A breach as its reader sees it: what was done to the nodes, and what the
//! clients did with that lock.

use std::collections::HashSet;

use crate::failover::clients::Shared;
use crate::failover::faults::Event;
use crate::history::{Breach, History, MS, Nanos, Operation, Outcome, Request};

/// How long before the first of the operations that show it the story begins.
const BEFORE: Nanos = 500 * MS;

/// How long after the last one it ends.
const AFTER: Nanos = 200 * MS;

/// How much earlier the events begin that are told.
const EVENTS_BEFORE: Nanos = 5000 * MS;

/// A point in time, in seconds since the start of the campaign.
fn at(time: Nanos, start: Nanos) -> String {
    let ms = time.saturating_sub(start) / MS;
    format!("{:4}.{:03} s", ms / 1000, ms % 1000)
}

/// What led to a breach: what its owners did, but for most renewals, and which
/// others were granted the lock or gave it back.
pub fn tell(
    breach: &Breach,
    history: &History,
    events: &[Event],
    shared: &Shared,
    start: Nanos,
) -> String {
    let mut story = format!("breach of {}: ", breach.promise);
    story.push_str(breach.evidence.lines().next().unwrap_or_default());
    let times = || breach.shown.iter().map(|one| one.sent);
    let (Some(first), Some(last)) = (times().min(), times().max()) else {
        return story;
    };
    let (from, until) = (first.saturating_sub(BEFORE), last + AFTER);
    let is_shown = |one: &Operation| {
        let same = |shown: &Operation| (shown.sent, shown.client) == (one.sent, one.client);
        breach.shown.iter().any(same)
    };
    let owners: HashSet<&str> = breach.shown.iter().map(|one| one.owner.as_str()).collect();
    let mut near: Vec<&Operation> = history
        .operations
        .iter()
        .filter(|one| is_shown(one) || (one.lock == breach.shown[0].lock && one.sent <= until))
        .filter(|one| is_shown(one) || one.sent >= from || owners.contains(one.owner.as_str()))
        .collect();
    near.sort_by_key(|one| one.sent);
    let mut told = HashSet::new();
    let mut lines = Vec::new();
    for (index, one) in near.iter().enumerate() {
        let of_breach = owners.contains(one.owner.as_str());
        let matters = match one.outcome {
            // The others confirm it.
            Outcome::Granted(token) | Outcome::Told { token, .. } => {
                told.insert((token, shared.node_of(one)))
            }
            Outcome::Released => true,
            // The others in a row say no more.
            Outcome::Renewed => {
                let next = near[index + 1..]
                    .iter()
                    .find(|next| next.owner == one.owner);
                of_breach && next.is_none_or(|next| next.outcome != Outcome::Renewed)
            }
            _ => of_breach,
        };
        if matters || is_shown(one) {
            lines.push((one.sent, line(one, is_shown(one), shared)));
        }
    }
    let events = events
        .iter()
        .filter(|event| event.at >= from.saturating_sub(EVENTS_BEFORE) && event.at <= until);
    lines.extend(events.map(|event| (event.at, format!("== {}", event.what))));
    lines.sort_by_key(|&(time, _)| time);
    for (time, line) in lines {
        story.push_str(&format!("\n  {} {line}", at(time, start)));
    }
    story
}

/// One operation. Those that show the breach have a mark.
fn line(operation: &Operation, is_shown: bool, shared: &Shared) -> String {
    let mark = if is_shown { ">>" } else { "  " };
    let node = shared.node_of(operation).map_or(0, |node| node + 1);
    let asked = match operation.request {
        Request::Acquire {
            lease_ms,
            block_ms,
            claim_ms,
            ..
        } => {
            let how = claim_ms.map_or("BLOCK", |_| "QUEUE");
            let wait = block_ms.map_or_else(String::new, |ms| format!(" {how} {ms}"));
            format!("ACQUIRE LEASE {lease_ms}{wait}")
        }
        Request::Renew { lease_ms, .. } => format!("RENEW LEASE {lease_ms}"),
        Request::Release { .. } => "RELEASE".to_owned(),
        other => format!("{other:?}"),
    };
    let took = operation.answered.map_or_else(String::new, |answered| {
        format!(" after {} us", (answered - operation.sent) / 1000)
    });
    let (lock, owner, outcome) = (&operation.lock, &operation.owner, &operation.outcome);
    format!("{mark} node {node}, {lock}, {owner}: {asked} -> {outcome:?}{took}")
}
