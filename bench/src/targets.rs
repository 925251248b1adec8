//! What this module must reach, and whether it did.

use crate::results::Results;
use crate::scenarios::DURABLE;

/// This module, and how the names of its variants begin.
pub const OURS: &str = "redislock";
const PLACES: &str = "redislock-places";
const CLIENT: &str = "redis-lock-client";
const HAND_OFF: &str = "hand-off p50 µs";
const PAIR_CPU: &str = "server CPU µs/pair";
const SECTIONS: &str = "sections/s";
const FAIRNESS: &str = "Jain's fairness";
const AFTER_LEASE: &str = "after the lease p99 ms";
const LOCK_BYTES: &str = "bytes/held lock";

/// A bound.
#[derive(Clone, Copy)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// A target, and what came of it.
pub struct Verdict {
    pub target: String,
    pub bound: Bound,
    /// Of the medians; the ratio where the target is one.
    pub reached: f64,
    /// The least and the greatest of the rounds.
    pub spread: (f64, f64),
    pub met: bool,
    /// Plain commands of the server in the place of this module, where that
    /// says what could be reached at all.
    pub floor: Option<Floor>,
}

/// What plain commands reach.
pub struct Floor {
    pub contender: &'static str,
    pub reached: f64,
}

/// Judges all targets whose figures have been measured.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let bench = Measured {
        results,
        whose: OURS,
    };
    let mut verdicts = vec![
        bench.ratio(
            "hand-off p50, one waiter, to `LPUSH` → `BLPOP`",
            Bound::AtMost(1.10),
            ("hand-off-1", HAND_OFF),
            ("hand-off-1", "blpop"),
            None,
        ),
        bench.ratio(
            "hand-off p50, one waiter, to Redisson's scripts and pub/sub",
            Bound::AtMost(0.45),
            ("hand-off-1", HAND_OFF),
            ("hand-off-1", "redisson-scripts"),
            Some("blpop"),
        ),
        bench.ratio(
            "hand-off p50, 1,000 waiters, to one waiter",
            Bound::AtMost(1.25),
            ("hand-off-1000", HAND_OFF),
            ("hand-off-1", OURS),
            Some("blpop"),
        ),
        bench.ratio(
            "server CPU of an uncontended pair, pipelined, to `SET NX PX` + `DEL`",
            Bound::AtMost(1.5),
            ("pipelined-cpu", PAIR_CPU),
            ("pipelined-cpu", "set-del"),
            None,
        ),
        bench.ratio(
            "the same, to Redisson's two scripts by `EVALSHA`",
            Bound::AtMost(0.28),
            ("pipelined-cpu", PAIR_CPU),
            ("pipelined-cpu", "redisson-scripts"),
            Some("set-del"),
        ),
        bench.ratio(
            "sections/s, 64 clients, to real Redisson, a process each",
            Bound::AtLeast(5.0),
            ("contended-64", SECTIONS),
            ("contended-64", "redisson-apart"),
            Some("blpop"),
        ),
        bench.ratio(
            "the same, to Redisson in one process, whose threads pass each other",
            Bound::AtLeast(5.0),
            ("contended-64", SECTIONS),
            ("contended-64", "redisson"),
            Some("blpop"),
        ),
        bench.figure(
            "Jain's fairness, 64 clients",
            Bound::AtLeast(0.99),
            ("contended-64", FAIRNESS),
        ),
        bench.figure(
            "next holder after the lease's end, p99, ms",
            Bound::AtMost(2.0),
            ("expiry", AFTER_LEASE),
        ),
        bench.ratio(
            "memory of a held lock, to Redisson's",
            Bound::AtMost(1.25),
            ("memory-lock", LOCK_BYTES),
            ("memory-lock", "redisson-scripts"),
            None,
        ),
    ];
    let client = Measured {
        whose: CLIENT,
        ..bench
    };
    for (tasks, locks) in [(64, 1), (64, 16), (1000, 1), (1000, 16)] {
        let scenario = format!("one-process-{tasks}-{locks}");
        verdicts.push(client.ratio(
            &format!("sections/s of the Rust client in one process, to Redisson in one: {tasks} on {locks}"),
            Bound::AtLeast(2.2),
            (&scenario, SECTIONS),
            (&scenario, "redisson"),
            (locks == 1).then_some("blpop"),
        ));
    }
    let places = Measured {
        whose: PLACES,
        ..bench
    };
    verdicts.extend([
        places.ratio(
            "hand-off p50, one waiter, to a place instead of a blocked client",
            Bound::AtMost(1.2),
            ("hand-off-1", HAND_OFF),
            ("hand-off-1", OURS),
            None,
        ),
        places.figure(
            "hand-off p50, one of 100,000 places, to one place",
            Bound::AtMost(1.2),
            ("places", "to one"),
        ),
        places.figure(
            "places asked for in a second, one by one, to `SET`",
            Bound::AtLeast(0.5),
            ("places", "places/s to SET/s"),
        ),
        places.figure(
            "the same, 500 a write",
            Bound::AtLeast(0.5),
            ("places", "the same, 500 a write"),
        ),
        places.ratio(
            "memory of a place, to that of a blocked client's wait",
            Bound::AtMost(0.05),
            ("places", "bytes/wait"),
            ("memory-waiter", OURS),
            None,
        ),
        places.figure(
            "100,000 places on as many locks, idle, % of a processor",
            Bound::AtMost(2.0),
            ("places", "idle, % of a processor"),
        ),
    ]);
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
        verdicts.push(bench.ratio(
            &format!("with AOF and a replica, to without: {what}"),
            slower,
            (&format!("{scenario}{DURABLE}"), metric),
            (scenario, OURS),
            Some("set-del-beside"),
        ));
    }
    let durable = format!("contended-64{DURABLE}");
    verdicts.push(bench.ratio(
        "without AOF and a replica, to with: sections/s, 64 clients",
        slower,
        ("contended-64", SECTIONS),
        (&durable, OURS),
        None,
    ));
    verdicts.push(bench.figure(
        "with AOF and a replica: Jain's fairness, 64 clients",
        Bound::AtLeast(0.99),
        (&durable, FAIRNESS),
    ));
    verdicts.into_iter().flatten().collect()
}

#[derive(Clone, Copy)]
struct Measured<'r> {
    results: &'r Results,
    whose: &'static str,
}

impl Measured<'_> {
    /// Our figure to another of the same metric: of which scenario, and whose.
    fn ratio(
        &self,
        target: &str,
        bound: Bound,
        (scenario, metric): (&str, &str),
        (to_scenario, to_contender): (&str, &str),
        floor: Option<&'static str>,
    ) -> Option<Verdict> {
        let ours = self.results.find(scenario, self.whose, metric)?;
        let theirs = self.results.find(to_scenario, to_contender, metric)?;
        let floor = floor.and_then(|contender| {
            let to_contender = if to_contender == OURS {
                contender
            } else {
                to_contender
            };
            let floor = self.results.find(scenario, contender, metric)?;
            let theirs = self.results.find(to_scenario, to_contender, metric)?;
            let reached = floor.median() / theirs.median();
            Some(Floor { contender, reached })
        });
        // Figures of one round stand closest together in time.
        let rounds = ours.values.iter().zip(&theirs.values);
        let ratios: Vec<f64> = rounds.map(|(ours, theirs)| ours / theirs).collect();
        let reached = ours.median() / theirs.median();
        Some(verdict(target, bound, reached, &ratios, floor))
    }

    /// A figure of ours by itself.
    fn figure(
        &self,
        target: &str,
        bound: Bound,
        (scenario, metric): (&str, &str),
    ) -> Option<Verdict> {
        let ours = self.results.find(scenario, self.whose, metric)?;
        Some(verdict(target, bound, ours.median(), &ours.values, None))
    }
}

fn verdict(
    target: &str,
    bound: Bound,
    reached: f64,
    rounds: &[f64],
    floor: Option<Floor>,
) -> Verdict {
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
        floor,
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
    fn a_floor_stands_in_our_place() {
        let mut results = results(&[30.0], &[15.0]);
        let mut measurement = Measurement::default();
        measurement.figure(HAND_OFF, 60.0);
        results.add("hand-off-1", "redisson-scripts", measurement);
        let verdicts = judge(&results);
        let verdict = verdicts.last().unwrap();
        assert_eq!(verdict.reached, 0.5);
        assert_eq!(verdict.floor.as_ref().unwrap().reached, 0.25);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert!(judge(&results(&[10.0], &[])).is_empty());
    }
}
