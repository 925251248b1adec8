//! Short campaigns of each kind find nothing, and find what is done wrong on purpose.
//!
//! The random campaigns find what is wrong in the module too: with a fault planted in it, it
//! is caught within a minute on one server, and within five through fail-overs, without
//! protection too. `make planted` runs that. Of the faults that belong to fail-overs it is not
//! asked to find `offset-too-early`, `reentry-in-grace` and `not-fenced`, which it would meet
//! by rare luck, nor `place-outlived`: their scenes do (`scenes.rs`).

mod support;

use std::process::Command;

use redis_lock_testing::{binary, module};

/// Runs these campaigns: the fault planted in the module, the arguments, and the kinds of
/// faults after `: `, if only some. Each has to succeed, and to say this.
#[track_caller]
fn assert_each_says(says: &str, campaigns: &[(&'static str, String)]) {
    support::play(campaigns.to_vec(), |(fault, arguments)| {
        let (module, planted) = match fault {
            "" => (module(), "none"),
            _ => (support::module_with_faults().to_owned(), fault),
        };
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"));
        command.arg("--server").arg(binary());
        command.arg("--module").arg(module);
        let (words, only) = arguments.split_once(": ").unwrap_or((&arguments, ""));
        command.args(words.split_whitespace());
        let only = only.split("; ").filter(|kind| !kind.is_empty());
        command.args(only.flat_map(|kind| ["--only", kind]));
        command.env("REDISLOCK_PLANTED_FAULT", planted);
        let output = command.env("TMPDIR", scratch.path()).output().unwrap();
        let report = [output.stdout, output.stderr].concat();
        let report = String::from_utf8_lossy(&report).into_owned();
        let last = report.lines().last().unwrap_or_default();
        println!("{fault} {arguments}: {last}");
        let is_right = output.status.success() && report.contains(says);
        (!is_right).then(|| format!("{fault} {arguments}: {report}"))
    });
}

/// With one promotion of a replica that lags, and without faults.
#[test]
fn short_campaigns_of_each_kind_find_nothing() {
    let campaigns = [
        "--duration 15 --seed 1",
        "--client library --seconds 6 --seed 1",
        "--client session --seconds 6 --seed 2",
        "--client library --seconds 10 --seed 3 --topology cluster",
        "--client session --seconds 10 --seed 4 --topology sentinel",
        "--client redlock --duration 8 --seed 1 --servers 3",
        "--client redlock --duration 8 --seed 2 --servers 5",
        "--without-faults --duration 3 --seed 1 --topology sentinel --mode plain",
        "--duration 1 --seed 1 --topology sentinel: late replica promoted",
        "--duration 1 --seed 1 --topology sentinel --mode grace --lease-max 700 --clock-drift-ppm 1000: late replica promoted",
        // Though nothing protects the locks themselves.
        "--duration 1 --seed 1 --topology sentinel --mode plain --workload guarded-set: late replica promoted",
    ];
    let campaigns = campaigns.map(|arguments| ("", arguments.to_owned()));
    assert_each_says("breaches: 0;", &campaigns);
}

/// Work that goes on after a release or a loss, and votes that are forgotten at once.
#[test]
fn what_is_done_wrong_on_purpose_is_found() {
    let wrong = [
        "--client library --seed 6 --planted releases-too-early",
        "--client library --seed 6 --planted ignores-loss",
        "--client redlock --seed 1 --servers 3 --restart-at-once",
    ];
    let until = "--duration 120 --until-breach-of exclusion";
    let campaigns = wrong.map(|wrong| ("", format!("{wrong} {until}")));
    assert_each_says("breach of exclusion: 2 owners", &campaigns);
}

/// What each fault breaks. `/50` strikes each fiftieth chance.
const FAULTS: [(&str, &str); 21] = [
    ("expiry-ignored", "exclusion"),
    ("owner-not-checked", "possession"),
    ("token-reused", "tokens"),
    ("last-in-first-out", "order"),
    ("hand-off-skipped", "liveness"),
    ("limit-ignored", "exclusion"),
    ("session-outlived", "liveness"),
    ("deadlock-missed", "deadlock"),
    ("reader-barges", "order"),
    ("waiter-dropped", "order"),
    ("waiter-dropped/50", "order"),
    ("lease-from-enqueue", "exclusion"),
    ("late-renewal", "possession"),
    ("late-renewal/50", "possession"),
    ("own-token-again", "tokens"),
    ("own-token-again/50", "tokens"),
    ("expiry-not-propagated", "liveness"),
    ("place-not-kept", "order"),
    ("grant-unheard", "liveness"),
    ("unclaimed-kept", "liveness"),
    ("rechecks-late", "liveness"),
];

/// With each of two seeds.
#[test]
#[ignore = "random, for `make planted`"]
fn a_planted_fault_is_found_on_one_server() {
    let runs = FAULTS.iter().flat_map(|run| [1, 2].map(|seed| (run, seed)));
    let campaigns = runs.map(|(&(fault, promise), seed)| {
        let arguments = format!("--duration 60 --seed {seed} --until-breach-of {promise}");
        (fault, arguments)
    });
    assert_each_says("breach of ", &campaigns.collect::<Vec<_>>());
}

/// What is found through fail-overs: a fault, if one is planted, and how. Without one nothing
/// protects enough.
const THROUGH_FAIL_OVERS: &str = "
| sentinel --mode plain: primary killed; primary killed, back at once
| sentinel --mode plain: primary stopped
| sentinel --mode plain: primary cut off
| sentinel --mode plain: late replica promoted
| cluster --mode plain: late replica promoted
acknowledgement-not-awaited| sentinel: late replica promoted
hand-off-not-covered| sentinel
renewal-not-covered| sentinel: late replica promoted
grace-ignored| sentinel --mode grace
| sentinel --mode grace --clock-drift-ppm 800000";

#[test]
#[ignore = "random, for `make planted`"]
fn two_owners_are_found_through_fail_overs() {
    let campaigns = THROUGH_FAIL_OVERS.trim().lines().map(|line| {
        let (fault, how) = line.split_once('|').unwrap();
        let until = "--seed 1 --duration 300 --until-breach-of exclusion";
        (fault, format!("{until} --topology{how}"))
    });
    assert_each_says("breach of exclusion: ", &campaigns.collect::<Vec<_>>());
}
