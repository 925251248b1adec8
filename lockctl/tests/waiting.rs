//! `lockctl run` while it waits: it tells when its server goes and comes back,
//! and waits for one that is not up yet.

mod support;

use std::time::Instant;

use redis_lock_testing::{SOON, Server, Signal};

use support::{Script, complained, lockctl, output, said};

#[test]
fn a_server_that_goes_is_told() {
    for options in [&[][..], &["--wait", "60s"], &["--json"]] {
        let is_json = options.contains(&"--json");
        let gone = match is_json {
            false => ["lockctl: lock: ", "waiting on without the server"],
            true => [r#""event":"server_gone""#, r#""key":"lock""#],
        };
        let mut server = Server::start();
        server.client().int("LOCK.ACQUIRE lock holder LEASE 600000");
        let mut script = Script::start(&server, options, "exit 4");
        server.await_info("lock_waiters", 1);
        server.crash();
        script.await_told(1, &gone);
        // The holder's lock is gone with it.
        server.restart().unwrap();
        let (code, told) = script.end();
        assert_eq!(code, Some(4), "{told}");
        let fits = |line: &&str| gone.iter().all(|word| line.contains(word));
        assert_eq!(told.lines().filter(fits).count(), 1, "{told}");
    }
}

#[test]
fn a_server_that_refuses_for_a_while_is_told_as_such() {
    for options in [&[][..], &["--json"]] {
        let refuses = match options.is_empty() {
            true => ["waiting on while the server refuses", "NOREPLICAS"],
            false => [r#""event":"server_refuses""#, "NOREPLICAS"],
        };
        let server = Server::start_with(&["--min-replicas-to-write", "1"]);
        let mut script = Script::start(&server, options, "exit 4");
        script.await_told(1, &refuses);
        server.client().call("CONFIG SET min-replicas-to-write 0");
        let (code, told) = script.end();
        assert_eq!(code, Some(4), "{told}");
        assert!(!told.contains("without the server"), "{told}");
    }
}

#[test]
fn a_server_that_is_not_up_yet_is_waited_for() {
    for options in [&[][..], &["--wait", "60s"]] {
        let mut server = Server::start();
        server.crash();
        let mut script = Script::start(&server, options, "exit 4");
        script.await_told(1, &["lockctl: ", "waiting on without the server"]);
        server.restart().unwrap();
        let (code, told) = script.end();
        assert_eq!(code, Some(4), "{told}");
    }
}

#[test]
fn who_does_not_wait_does_not_wait_for_the_server_either() {
    let mut server = Server::start();
    server.crash();
    for options in [&["--no-wait"][..], &["--wait", "0"], &["--wait", "300ms"]] {
        let mut command = lockctl(&server);
        command.args(["--json", "run"]).args(options);
        let asked_at = Instant::now();
        let ended = output(command.args(["lock", "echo", "never"]));
        // Nothing is left on a server that heard nothing.
        assert!(asked_at.elapsed() < SOON, "{options:?}");
        assert_eq!(ended.status.code(), Some(125), "{options:?}");
        assert_eq!(said(&ended), "");
        let told = complained(&ended);
        assert!(told.contains(r#""code":"UNAVAILABLE""#), "{told}");
    }
}

#[test]
fn ctrl_c_ends_a_wait_for_the_server() {
    let mut server = Server::start();
    server.crash();
    let mut script = Script::start(&server, &[], "exit 4");
    script.await_told(1, &["waiting on without the server"]);
    script.signal(Signal::INT);
    assert_eq!(script.end().0, Some(128 + 2));
}

#[test]
fn ctrl_c_ends_a_wait_whose_server_went_away() {
    let mut server = Server::start();
    server.client().int("LOCK.ACQUIRE lock holder LEASE 600000");
    let mut script = Script::start(&server, &[], "exit 4");
    server.await_info("lock_waiters", 1);
    server.crash();
    script.await_told(1, &["waiting on without the server"]);
    script.signal(Signal::INT);
    assert_eq!(script.end().0, Some(128 + 2));
}

#[test]
fn a_renewal_that_fails_is_told_with_what_is_left() {
    let server = Server::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done";
    let script = Script::start_and_await(&server, &["--lease", "9s"], script);
    server.stop().unwrap();
    script.await_told(1, &["lockctl: lock: ", "not renewed", ", left "]);
    assert!(!script.told().contains("Some("), "{}", script.told());
    server.go_on().unwrap();
}

#[test]
fn a_bad_url_is_told_as_one() {
    let server = Server::start();
    for url in ["localhost:6379", "http://localhost", "redis://a:nan", ""] {
        for subcommand in [
            &["run", "lock", "true"][..],
            &["ls"],
            &["top", "--json"],
            &["break", "lock", "--force"],
        ] {
            let mut command = lockctl(&server);
            command.args(["--json", "--url", url]).args(subcommand);
            let ended = output(&mut command);
            assert_eq!(ended.status.code(), Some(125), "{url} {subcommand:?}");
            let told = complained(&ended);
            assert!(told.contains(r#""code":"ADDRESS""#), "{told}");
            assert!(!told.contains("no answer"), "{told}");
        }
    }
}

#[test]
fn a_server_that_refuses_is_not_waited_for() {
    let server = Server::start_plain(&[]);
    let mut command = lockctl(&server);
    let ended = output(command.args(["--json", "run", "lock", "true"]));
    assert_eq!(ended.status.code(), Some(125));
    let told = complained(&ended);
    assert!(told.contains(r#""code":"NOMODULE""#), "{told}");
    let server = Server::start();
    let mut command = lockctl(&server);
    let url = format!("redis://nobody:wrong@{}", server.addr());
    command.args(["--json", "--url", &url, "run", "--wait", "60s"]);
    let ended = output(command.args(["lock", "true"]));
    assert_eq!(ended.status.code(), Some(125));
    let told = complained(&ended);
    assert!(told.contains(r#""code":"WRONGPASS""#), "{told}");
}
