//! The campaign against the Rust client finds nothing, and would.

use std::process::{Command, Output};

use redis_lock_testing::{binary, module};

fn campaign(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_client"));
    command.arg("--server").arg(binary());
    command.arg("--module").arg(module());
    command.args(arguments.split_whitespace()).output().unwrap()
}

/// What a campaign says that comes to this end.
#[track_caller]
fn told(arguments: &str, is_sound: bool) -> String {
    let output = campaign(arguments);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{}", report.lines().last().unwrap_or_default());
    assert_eq!(output.status.success(), is_sound, "{report}{errors}");
    report
}

#[track_caller]
fn assert_sound(arguments: &str) {
    let report = told(arguments, true);
    assert!(report.contains("breaches: 0;"), "{report}");
}

#[test]
fn leases_on_one_server_exclude_each_other() {
    assert_sound("--seconds 6 --seed 1");
}

#[test]
fn sessions_on_one_server_exclude_each_other() {
    assert_sound("--seconds 6 --seed 2 --mode session");
}

#[test]
fn leases_outlive_the_primaries_of_a_cluster() {
    assert_sound("--seconds 10 --seed 3 --topology cluster");
}

#[test]
fn sessions_outlive_primaries_behind_sentinels() {
    assert_sound("--seconds 10 --seed 4 --topology sentinel --mode session");
}

#[test]
fn acquires_that_are_given_up_and_crowds_leave_nothing() {
    let report = told("--seconds 0 --cancels 5000 --crowd 500 --seed 5", true);
    assert!(report.contains("5000 acquires given up"), "{report}");
    assert!(report.contains("500 holds and waits"), "{report}");
}

/// A campaign finds a client that would do this.
#[track_caller]
fn assert_found(planted: &str) {
    let report = told(&format!("--seconds 60 --seed 6 --planted {planted}"), false);
    assert!(report.contains("breach of exclusion: 2 owners"), "{report}");
}

#[test]
fn work_that_goes_on_after_a_release_is_found() {
    assert_found("releases-too-early");
}

#[test]
fn work_that_goes_on_after_a_loss_is_found() {
    assert_found("ignores-loss");
}
