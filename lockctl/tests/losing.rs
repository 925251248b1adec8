//! `lockctl run` when the lock is lost: the command is ended in time, nothing
//! is left, and the exit code tells.

mod support;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use redis_lock_testing::{Int, Judge, Server, Signal, eventually};

use support::{Script, lockctl};

const LOST: Option<i32> = Some(76);

/// Long enough for all that has to happen within it on a busy machine.
const LEASE: [&str; 4] = ["--lease", "6s", "--kill-after", "2s"];

/// Writes the time in milliseconds again and again, for ever, and writes a
/// line when it is asked to end.
const DILIGENT: &str = "trap 'echo TERM >> $DIR/beats; exit 1' TERM; \
    echo $$ > $DIR/pids; touch $DIR/ready; \
    while :; do date +%s%3N >> $DIR/beats; done";

/// The same, deaf to TERM, as is its child.
const STUBBORN: &str = "trap '' TERM; sleep 60 & \
    echo $$ $! > $DIR/pids; touch $DIR/ready; \
    while :; do date +%s%3N >> $DIR/beats; done";

/// When it last wrote the time.
fn last_beat(script: &Script) -> i64 {
    let beats = script.wrote("beats");
    let mut times = beats.lines().rev().filter_map(|line| line.parse().ok());
    times.next().unwrap()
}

/// A moment by the wall clock in milliseconds.
fn time(ms: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms.try_into().unwrap())
}

fn lose_by(command: &str) {
    let server = Server::start();
    let mut script = Script::start_and_await(&server, &LEASE, DILIGENT);
    let mut client = server.client();
    assert_eq!(client.call(command), Int(1));
    let token = client.int("LOCK.ACQUIRE lock rival");
    let (code, told) = script.end();
    assert_eq!(code, LOST, "{told}");
    assert!(
        told.contains("lost before the command had ended: the server says"),
        "{told}"
    );
    // The shell may tell something as well.
    assert_eq!(told.matches("lockctl: ").count(), 1, "{told}");
    assert!(
        script.wrote("beats").ends_with("TERM\n"),
        "it was asked to end"
    );
    script.assert_nothing_runs();
    // The rival's hold was not touched.
    assert_eq!(client.int("LOCK.ACQUIRE lock rival HOLD 1"), token);
}

#[test]
fn a_deleted_lock_ends_the_command() {
    lose_by("DEL lock");
}

#[test]
fn a_broken_lock_ends_the_command() {
    lose_by("LOCK.BREAK lock");
}

#[test]
fn a_killed_server_ends_the_command() {
    let mut server = Server::start();
    let mut script = Script::start_and_await(&server, &LEASE, DILIGENT);
    server.crash();
    let (code, told) = script.end();
    assert_eq!(code, LOST, "{told}");
    assert!(
        script.wrote("beats").ends_with("TERM\n"),
        "it was asked to end"
    );
    script.assert_nothing_runs();
}

/// A stderr that takes nothing more, as long as its other end is not read.
fn full_stderr() -> (UnixStream, Stdio) {
    let (unread, mut stderr) = UnixStream::pair().unwrap();
    stderr.set_nonblocking(true).unwrap();
    while stderr.write(b".").is_ok() {}
    stderr.set_nonblocking(false).unwrap();
    (unread, OwnedFd::from(stderr).into())
}

#[test]
fn a_lost_lock_ends_the_command_though_nobody_reads_what_lockctl_tells() {
    let server = Server::start();
    for options in [&["--lease", "3s"][..], &["--lease", "3s", "-v"]] {
        let (_unread, stderr) = full_stderr();
        let mut script = Script::start_telling(&server, options, DILIGENT, stderr);
        eventually("the script runs", || script.path("ready").exists());
        assert_eq!(server.client().int("DEL lock"), 1);
        assert_eq!(script.end().0, LOST);
        script.assert_nothing_runs();
    }
}

/// Stops the server until the lease is over. The command is asked to end when
/// this much of its lease is left, and must have ended when nothing is.
fn starve(command: &str) {
    const LEFT: Duration = Duration::from_millis(400);
    let server = Server::start();
    let mut client = server.client();
    let mut judge = Judge::new("a command's use of its lease", LEFT);
    while judge.wants_more() {
        let mut script = Script::start_and_await(&server, &["--lease", "2s"], command);
        let before = client.int("PEXPIRETIME lock");
        eventually("it is renewed", || client.int("PEXPIRETIME lock") > before);
        let ends_at = time(client.int("PEXPIRETIME lock"));
        server.stop().unwrap();
        let (code, told) = script.end();
        assert_eq!(code, LOST, "{told}");
        assert!(told.contains("ran out"), "{told}");
        script.assert_nothing_runs();
        let last = time(last_beat(&script));
        let used = last.duration_since(ends_at - LEFT).unwrap_or_default();
        eprintln!("it used {used:?} of the last {LEFT:?}");
        let last = Instant::now() - last.elapsed().unwrap();
        judge.judge(last - used, last);
        server.go_on().unwrap();
        eventually("the lease is over", || client.int("EXISTS lock") == 0);
    }
}

#[test]
fn a_stopped_server_ends_a_command_within_its_lease() {
    starve(DILIGENT);
}

#[test]
fn a_stopped_server_ends_a_deaf_command_within_its_lease() {
    starve(STUBBORN);
}

#[test]
fn a_command_that_ignores_term_is_killed_and_its_children_too() {
    let server = Server::start();
    let options = ["--lease", "3s", "--kill-after", "200ms"];
    let mut script = Script::start_and_await(&server, &options, STUBBORN);
    server.client().int("DEL lock");
    assert_eq!(script.end().0, LOST);
    script.assert_nothing_runs();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_loss_that_nobody_noticed_is_told_when_the_command_ends() {
    let server = Server::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done";
    let mut script = Script::start_and_await(&server, &["--lease", "60s"], script);
    server.client().int("DEL lock");
    std::fs::write(script.path("go"), "").unwrap();
    let (code, told) = script.end();
    assert_eq!(code, LOST, "{told}");
}

#[test]
fn a_loss_is_told_in_json_with_a_code() {
    let server = Server::start();
    let script = "touch $DIR/ready; exec sleep 60";
    let mut script = Script::start_and_await(&server, &["--json", "--lease", "2s"], script);
    server.client().int("DEL lock");
    let (code, told) = script.end();
    assert_eq!(code, LOST, "{told}");
    assert!(
        told.contains(r#""event":"lost","key":"lock","code":"REFUSED""#),
        "{told}"
    );
}

#[test]
fn a_server_killed_at_the_end_leaves_the_command_its_exit_code() {
    let mut server = Server::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done; exit 3";
    let mut script = Script::start_and_await(&server, &["--lease", "3s"], script);
    server.crash();
    std::fs::write(script.path("go"), "").unwrap();
    let (code, told) = script.end();
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("could not be released"), "{told}");
}

#[test]
fn a_server_out_of_reach_does_not_keep_lockctl_from_its_end() {
    let server = Server::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done; exit 3";
    for options in [&["--lease", "600s"][..], &["--lease", "600s", "--keep"]] {
        let mut script = Script::start_and_await(&server, options, script);
        server.stop().unwrap();
        let ended_at = Instant::now();
        std::fs::write(script.path("go"), "").unwrap();
        let (code, told) = script.end();
        assert_eq!(code, Some(3), "{told}");
        assert!(told.contains("could not be released"), "{told}");
        assert!(ended_at.elapsed() < Duration::from_secs(6), "{told}");
        server.go_on().unwrap();
        server.client().int("DEL lock");
    }
}

#[test]
fn a_stopped_lockctl_that_goes_on_too_late_kills_the_command() {
    let server = Server::start();
    let options = ["--lease", "2s"];
    let mut script = Script::start_and_await(&server, &options, STUBBORN);
    script.signal(Signal::STOP);
    eventually("the lease is over", || {
        server.client().int("EXISTS lock") == 0
    });
    let token = server.client().int("LOCK.ACQUIRE lock rival");
    script.signal(Signal::CONT);
    assert_eq!(script.end().0, LOST);
    script.assert_nothing_runs();
    let renewed = server.client().int("LOCK.ACQUIRE lock rival HOLD 1");
    assert_eq!(renewed, token);
}

#[test]
#[cfg(target_os = "linux")]
fn a_lost_lock_ends_what_runs_under_a_lockctl_in_a_lockctl() {
    let server = Server::start();
    let stubborn = "trap \"\" TERM; sleep 60 & echo $! > $DIR/pids; touch $DIR/ready; \
        while :; do sleep 0.1; done";
    let inner = format!("$LOCKCTL run --lease 60s inner sh -c '{stubborn}'");
    let mut outer = lockctl(&server);
    outer.env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"));
    let mut script = Script::start_by(outer, &["--lease", "3s"], &inner);
    eventually("the script runs", || script.path("ready").exists());
    server.client().int("DEL lock");
    assert_eq!(script.end().0, LOST);
    script.assert_nothing_runs();
}
