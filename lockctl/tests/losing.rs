//! `lockctl run` when the lock is lost: the command is ended in time, nothing
//! is left, and the exit code tells.

mod support;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use redis_lock_testing::{Judge, Signal, TestServer, eventually, int};

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
    let server = TestServer::start();
    let mut script = Script::start_and_await(&server, &LEASE, DILIGENT);
    let mut client = server.client();
    assert_eq!(client.call(command), int(1));
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
    let mut server = TestServer::start();
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
    let server = TestServer::start();
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
    let server = TestServer::start();
    let mut client = server.client();
    let mut judge = Judge::new("a command's use of its lease", LEFT);
    while judge.wants_more() {
        let mut script = Script::start_and_await(&server, &["--lease", "2s"], command);
        let before = client.int("PEXPIRETIME lock");
        eventually("it is renewed", || client.int("PEXPIRETIME lock") > before);
        let ends_at = time(client.int("PEXPIRETIME lock"));
        server.stop();
        let (code, told) = script.end();
        assert_eq!(code, LOST, "{told}");
        assert!(told.contains("ran out"), "{told}");
        script.assert_nothing_runs();
        let last = time(last_beat(&script));
        let used = last.duration_since(ends_at - LEFT).unwrap_or_default();
        eprintln!("it used {used:?} of the last {LEFT:?}");
        let last = Instant::now() - last.elapsed().unwrap();
        judge.judge(last - used, last);
        server.go_on();
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
    let server = TestServer::start();
    let options = ["--lease", "3s", "--kill-after", "200ms"];
    let mut script = Script::start_and_await(&server, &options, STUBBORN);
    server.client().int("DEL lock");
    assert_eq!(script.end().0, LOST);
    script.assert_nothing_runs();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_loss_that_nobody_noticed_is_told_when_the_command_ends() {
    let server = TestServer::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done";
    let mut script = Script::start_and_await(&server, &["--lease", "60s"], script);
    server.client().int("DEL lock");
    std::fs::write(script.path("go"), "").unwrap();
    let (code, told) = script.end();
    assert_eq!(code, LOST, "{told}");
}

#[test]
fn a_loss_is_told_in_json_with_a_code() {
    let server = TestServer::start();
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
    let mut server = TestServer::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done; exit 3";
    let mut script = Script::start_and_await(&server, &["--lease", "3s"], script);
    server.crash();
    std::fs::write(script.path("go"), "").unwrap();
    let (code, told) = script.end();
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("could not be released"), "{told}");
}

#[test]
fn a_stopped_lockctl_that_goes_on_too_late_kills_the_command() {
    let server = TestServer::start();
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
    let server = TestServer::start();
    let stubborn = "trap \"\" TERM; sleep 60 & echo $! > $DIR/pids; touch $DIR/ready; \
        while :; do sleep 0.1; done";
    let url = format!("redis://{}", server.addr());
    let inner = format!("$LOCKCTL run --url {url} --lease 60s inner sh -c '{stubborn}'");
    let mut outer = lockctl(&server);
    outer.env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"));
    let mut script = Script::start_by(outer, &["--lease", "3s"], &inner);
    eventually("the script runs", || script.path("ready").exists());
    server.client().int("DEL lock");
    assert_eq!(script.end().0, LOST);
    script.assert_nothing_runs();
}

/// Writes again and again, and starts nothing for it: a shell in the middle of `vfork`
/// can't be suspended as long as its child is.
const WRITING: &str = "while test -d $DIR; do echo >> $DIR/beats; done";

#[test]
fn a_suspended_command_whose_lease_is_over_does_not_go_on() {
    let server = TestServer::start();
    let mut client = server.client();
    let begins = "echo $$ > $DIR/pids; touch $DIR/ready;";
    for at_its_end in [
        "trap 'echo TERM >> $DIR/beats; exit 1' TERM;",
        "trap '' TERM;",
    ] {
        let command = format!("{at_its_end} {begins} {WRITING}");
        // In a group that this process could continue: TSTP stops no other.
        let mut lockctl = lockctl(&server);
        lockctl.process_group(0);
        let mut script = Script::start_by(lockctl, &["--lease", "2s"], &command);
        eventually("it writes", || !script.wrote("beats").is_empty());
        script.signal(Signal::TSTP);
        eventually("the lease is over", || client.int("EXISTS lock") == 0);
        let before = script.wrote("beats");
        script.signal(Signal::CONT);
        let (code, told) = script.end();
        assert_eq!(code, LOST, "{told}");
        assert_eq!(script.wrote("beats"), before);
        script.assert_nothing_runs();
    }
}

/// Commands with a part that does not hear Ctrl-Z: it is deaf to that, or in a group of its
/// own. It writes, as `$WRITES` says.
#[cfg(target_os = "linux")]
const NOT_HEARING: [&str; 3] = [
    "(trap '' TSTP; eval \"$WRITES\") & wait",
    "timeout 60 sh -c \"$WRITES\"; exit 1",
    "exec bash -c 'set -m; sh -c \"$WRITES\" & wait'",
];

#[cfg(target_os = "linux")]
fn is_stopped(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    status.is_ok_and(|status| status.contains(") T "))
}

/// Runs a command of which a part writes, in a group that this process could continue: TSTP
/// stops no other.
#[cfg(target_os = "linux")]
fn start_writing(server: &TestServer, lease: &str, command: &str) -> Script {
    let mut lockctl = lockctl(server);
    lockctl.process_group(0).env("WRITES", WRITING);
    let command = format!("echo $$ > $DIR/pids; {command}");
    let script = Script::start_by(lockctl, &["--lease", lease], &command);
    eventually("it writes", || !script.wrote("beats").is_empty());
    script
}

/// Whether it writes within a time that is long enough for that.
#[cfg(target_os = "linux")]
fn writes(script: &Script) -> bool {
    let before = script.wrote("beats");
    std::thread::sleep(Duration::from_millis(300));
    script.wrote("beats") != before
}

#[test]
#[cfg(target_os = "linux")]
fn no_part_of_a_suspended_command_goes_on_without_the_lock() {
    let server = TestServer::start();
    let mut client = server.client();
    for command in NOT_HEARING {
        let mut script = start_writing(&server, "2s", command);
        script.signal(Signal::TSTP);
        eventually("the lease is over", || client.int("EXISTS lock") == 0);
        let before = script.wrote("beats").len();
        assert!(!writes(&script), "{command}");
        script.signal(Signal::CONT);
        let (code, told) = script.end();
        assert_eq!(code, LOST, "{command}: {told}");
        assert_eq!(script.wrote("beats").len(), before, "{command}");
        script.assert_nothing_runs();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn all_parts_of_a_suspended_command_go_on_with_it() {
    let server = TestServer::start();
    for command in NOT_HEARING {
        let mut script = start_writing(&server, "60s", command);
        for _ in 0..2 {
            script.signal(Signal::TSTP);
            eventually("all is stopped", || {
                is_stopped(&script.lockctl().to_string())
            });
            assert!(!writes(&script), "{command}");
            script.signal(Signal::CONT);
            eventually("it writes again", || writes(&script));
        }
        // Its own shell takes no part for stopped.
        assert!(support::runs(&script.wrote("pids")), "{command}");
        script.signal(Signal::TERM);
        assert_eq!(script.end().0, Some(128 + 15), "{command}");
        script.assert_nothing_runs();
    }
}
