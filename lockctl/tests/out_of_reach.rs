//! `lockctl run` when it may not end what the command has started: it says so,
//! and the lock is not given up while that runs.
#![cfg(target_os = "linux")]

mod support;

use std::process::Command;

use redis_lock_testing::{Server, Signal, eventually};
use rustix::process::geteuid;

use support::Script;

/// Another user than the one whose lockctl runs it: waits until it may end.
const FOREIGN: &str = "setpriv --reuid 65534 sh -c '\
    echo $$ > $DIR/pids; touch $DIR/ready; \
    while test -d $DIR && ! test -e $DIR/go; do sleep 0.01; done; exit 3'";

/// lockctl that may not signal another user's processes, though it is root here:
/// it starts such a process as `sudo` would. None where the tests are not run by
/// root.
fn powerless(server: &Server) -> Option<Command> {
    if !geteuid().is_root() {
        eprintln!("not tested: only root can start another user's processes");
        return None;
    }
    let mut command = support::heedful("setpriv");
    command
        .args(["--bounding-set", "-kill", "--inh-caps", "-kill"])
        .arg(env!("CARGO_BIN_EXE_lockctl"))
        .env("REDIS_URL", format!("redis://{}", server.addr()));
    Some(command)
}

fn start(server: &Server, script: &str) -> Option<Script> {
    let lockctl = powerless(server)?;
    let options = ["--lease", "2s", "--kill-after", "100ms"];
    let script = Script::start_by(lockctl, &options, script);
    eventually("the script runs", || script.path("ready").exists());
    Some(script)
}

fn let_go(script: &Script) {
    std::fs::write(script.path("go"), "").unwrap();
}

/// Waits until the lock has been renewed.
fn await_renewal(server: &Server) {
    let mut client = server.client();
    let before = client.int("PEXPIRETIME lock");
    eventually("it is renewed", || client.int("PEXPIRETIME lock") > before);
}

#[test]
fn a_command_that_outlives_its_lock_is_told_and_waited_for() {
    let server = Server::start();
    let Some(mut script) = start(&server, &format!("exec {FOREIGN}")) else {
        return;
    };
    let pid = script.wrote("pids");
    server.client().int("DEL lock");
    script.await_told(3, &["lock: lost, but", "still runs", pid.trim()]);
    assert!(support::runs(&pid));
    let_go(&script);
    let (code, told) = script.end();
    assert_eq!(code, Some(76), "{told}");
    script.assert_nothing_runs();
}

/// How often lockctl has gone to sleep so far.
fn rests(script: &Script) -> u64 {
    let path = format!("/proc/{}/status", script.lockctl());
    let status = std::fs::read_to_string(path).unwrap();
    let field = "voluntary_ctxt_switches:";
    let mut rests = status.lines().filter_map(|line| line.strip_prefix(field));
    rests.next().unwrap().trim().parse().unwrap()
}

#[test]
fn what_can_not_be_ended_is_looked_after_in_growing_pauses() {
    let server = Server::start();
    let Some(mut script) = start(&server, &format!("exec {FOREIGN}")) else {
        return;
    };
    server.client().int("DEL lock");
    // From here to there two seconds pass, and four.
    script.await_told(2, &["still runs"]);
    let before = rests(&script);
    script.await_told(4, &["still runs"]);
    let rests = rests(&script) - before;
    assert!(rests < 150, "it went to sleep {rests} times");
    // Its end is noticed by itself.
    let_go(&script);
    let (code, told) = script.end();
    assert_eq!(code, Some(76), "{told}");
}

#[test]
fn a_lock_is_kept_while_what_the_command_left_can_not_be_ended() {
    let server = Server::start();
    let script = format!("{FOREIGN} & until test -e $DIR/ready; do sleep 0.01; done; exit 5");
    let Some(mut script) = start(&server, &script) else {
        return;
    };
    let pid = script.wrote("pids");
    script.await_told(2, &["still runs", "the lock stays taken", pid.trim()]);
    await_renewal(&server);
    let_go(&script);
    let (code, told) = script.end();
    assert_eq!(code, Some(5), "{told}");
    script.assert_nothing_runs();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_command_that_can_not_be_ended_keeps_its_lock() {
    let server = Server::start();
    let Some(mut script) = start(&server, &format!("exec {FOREIGN}")) else {
        return;
    };
    let pid = script.wrote("pids");
    script.signal(Signal::TERM);
    script.await_told(1, &["still runs", "the lock stays taken", pid.trim()]);
    await_renewal(&server);
    let_go(&script);
    let (code, told) = script.end();
    assert_eq!(code, Some(3), "{told}");
    assert_eq!(server.client().int("EXISTS lock"), 0);
}
