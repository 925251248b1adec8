//! What this module must reach, and whether it did.

use serde::Serialize;

use crate::results::{Results, Series};
use crate::scenarios::DURABLE;

const OURS: &str = "redislock";
const HAND_OFF: &str = "hand-off p50 µs";
const PAIR_CPU: &str = "server CPU µs/pair";
const SECTIONS: &str = "sections/s";
const FAIRNESS: &str = "Jain's fairness";
const AFTER_LEASE: &str = "after the lease p99 ms";
const LOCK_BYTES: &str = "bytes/held lock";

/// A bound.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// A target, and what came of it.
#[derive(Serialize)]
pub struct Verdict {
    pub target: String,
    pub bound: Bound,
    /// Of the medians; the ratio where the target is one.
    pub reached: f64,
    /// The least and the greatest of the rounds.
    pub spread: (f64, f64),
    pub met: bool,
}

/// Judges all targets whose figures have been measured.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let ours = |scenario: &str, metric| results.find(scenario, OURS, metric);
    let theirs = |scenario, contender, metric| results.find(scenario, contender, metric);
    let mut verdicts: Vec<Option<Verdict>> = vec![
        ratio(
            "hand-off p50, one waiter, to `LPUSH` → `BLPOP`",
            Bound::AtMost(1.10),
            ours("hand-off-1", HAND_OFF),
            theirs("hand-off-1", "blpop", HAND_OFF),
        ),
        ratio(
            "hand-off p50, one waiter, to Redisson's scripts and pub/sub",
            Bound::AtMost(0.45),
            ours("hand-off-1", HAND_OFF),
            theirs("hand-off-1", "redisson-scripts", HAND_OFF),
        ),
        ratio(
            "hand-off p50, 1,000 waiters, to one waiter",
            Bound::AtMost(1.25),
            ours("hand-off-1000", HAND_OFF),
            ours("hand-off-1", HAND_OFF),
        ),
        ratio(
            "server CPU of an uncontended pair, pipelined, to `SET NX PX` + `DEL`",
            Bound::AtMost(1.5),
            ours("pipelined-cpu", PAIR_CPU),
            theirs("pipelined-cpu", "set-del", PAIR_CPU),
        ),
        ratio(
            "the same, to Redisson's two scripts by `EVALSHA`",
            Bound::AtMost(0.28),
            ours("pipelined-cpu", PAIR_CPU),
            theirs("pipelined-cpu", "redisson-scripts", PAIR_CPU),
        ),
        ratio(
            "sections/s, 64 clients, to real Redisson, a process each",
            Bound::AtLeast(5.0),
            ours("contended-64", SECTIONS),
            theirs("contended-64", "redisson-apart", SECTIONS),
        ),
        ratio(
            "the same, to Redisson in one process, whose threads pass each other",
            Bound::AtLeast(5.0),
            ours("contended-64", SECTIONS),
            theirs("contended-64", "redisson", SECTIONS),
        ),
        absolute(
            "Jain's fairness, 64 clients",
            Bound::AtLeast(0.99),
            ours("contended-64", FAIRNESS),
        ),
        absolute(
            "next holder after the lease's end, p99, ms",
            Bound::AtMost(2.0),
            ours("expiry", AFTER_LEASE),
        ),
        ratio(
            "memory of a held lock, to Redisson's",
            Bound::AtMost(1.25),
            ours("memory-lock", LOCK_BYTES),
            theirs("memory-lock", "redisson-scripts", LOCK_BYTES),
        ),
    ];
    let slower = Bound::AtMost(1.6);
    for (scenario, metric, what) in [
        ("hand-off-1", HAND_OFF, "hand-off p50, one waiter"),
        ("hand-off-1000", HAND_OFF, "hand-off p50, 1,000 waiters"),
        (
            "pipelined-cpu",
            PAIR_CPU,
            "server CPU of an uncontended pair",
        ),
        (
            "contended-64",
            "server CPU µs/section",
            "server CPU of a section, 64 clients",
        ),
        (
            "expiry",
            AFTER_LEASE,
            "next holder after the lease's end, p99",
        ),
        ("memory-lock", LOCK_BYTES, "memory of a held lock"),
    ] {
        verdicts.push(ratio(
            &format!("with AOF and a replica, to without: {what}"),
            slower,
            ours(&format!("{scenario}{DURABLE}"), metric),
            ours(scenario, metric),
        ));
    }
    verdicts.push(ratio(
        "without AOF and a replica, to with: sections/s, 64 clients",
        slower,
        ours("contended-64", SECTIONS),
        ours(&format!("contended-64{DURABLE}"), SECTIONS),
    ));
    verdicts.push(absolute(
        "with AOF and a replica: Jain's fairness, 64 clients",
        Bound::AtLeast(0.99),
        ours(&format!("contended-64{DURABLE}"), FAIRNESS),
    ));
    verdicts.into_iter().flatten().collect()
}

fn ratio(
    target: &str,
    bound: Bound,
    ours: Option<&Series>,
    theirs: Option<&Series>,
) -> Option<Verdict> {
    let (ours, theirs) = (ours?, theirs?);
    // Figures of one round stand closest together in time.
    let rounds = ours.values.iter().zip(&theirs.values);
    let ratios: Vec<f64> = rounds.map(|(ours, theirs)| ours / theirs).collect();
    Some(verdict(
        target,
        bound,
        ours.median() / theirs.median(),
        &ratios,
    ))
}

fn absolute(target: &str, bound: Bound, ours: Option<&Series>) -> Option<Verdict> {
    let ours = ours?;
    Some(verdict(target, bound, ours.median(), &ours.values))
}

fn verdict(target: &str, bound: Bound, reached: f64, rounds: &[f64]) -> Verdict {
    Verdict {
        target: target.into(),
        bound,
        reached,
        spread: (
            rounds.iter().copied().fold(f64::INFINITY, f64::min),
            rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ),
        met: match bound {
            Bound::AtMost(most) => reached <= most,
            Bound::AtLeast(least) => reached >= least,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Measurement;

    fn results(ours: &[f64], floor: &[f64]) -> Results {
        let mut results = Results::default();
        for (contender, values) in [(OURS, ours), ("blpop", floor)] {
            for &value in values {
                let mut measurement = Measurement::default();
                measurement.figure(HAND_OFF, value);
                results.add("hand-off-1", contender, measurement);
            }
        }
        results
    }

    #[test]
    fn a_ratio_is_one_of_medians_and_its_spread_one_of_rounds() {
        let verdicts = judge(&results(&[10.0, 30.0, 12.0], &[10.0, 10.0, 10.0]));
        let verdict = verdicts.first().unwrap();
        assert_eq!(verdict.reached, 1.2);
        assert_eq!(verdict.spread, (1.0, 3.0));
        assert!(!verdict.met);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert!(judge(&results(&[10.0], &[])).is_empty());
    }
}
