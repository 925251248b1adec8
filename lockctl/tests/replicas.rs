//! `lockctl run` where replicas have to acknowledge what the server tells, and within a
//! grace period.

mod support;

use redis_lock_testing::scene::{await_replicas, configure};
use redis_lock_testing::{Okay, Server, eventually};

use support::{Script, complained, lockctl, output, said};

/// A server and the replica that has to acknowledge what it tells. A reply that is not
/// acknowledged is withheld for a short while.
fn acknowledged() -> (Server, Server) {
    let server = Server::start();
    let replica = server.replica(true);
    let mut client = server.client();
    await_replicas(&mut client, 1);
    configure(&mut client, "min-replicas", 1);
    configure(&mut client, "replicas-timeout", 50);
    (server, replica)
}

#[test]
fn a_grant_that_is_not_known_to_be_safe_runs_nothing() {
    let (server, replica) = acknowledged();
    replica.stop().unwrap();
    for options in [&["--no-wait"][..], &["--wait", "300ms"]] {
        let mut command = lockctl(&server);
        command.args(["--json", "run"]).args(options);
        let ended = output(command.args(["lock", "echo", "never"]));
        assert_eq!(ended.status.code(), Some(125), "{options:?}");
        assert_eq!(said(&ended), "");
        let told = complained(&ended);
        assert!(told.contains(r#""code":"NOREPLICAS""#), "{told}");
        assert!(told.contains("not known to be safe"), "{told}");
        assert_eq!(server.client().int("EXISTS lock"), 0, "{told}");
    }
    replica.go_on().unwrap();
}

#[test]
fn who_is_not_granted_a_lock_is_told_whether_another_holds_it() {
    let server = Server::start();
    let mut client = server.client();
    let told = |options: &[&str]| {
        let mut command = lockctl(&server);
        command.args(options).args(["--wait", "300ms"]);
        let ended = output(command.args(["lock", "echo", "never"]));
        assert_eq!(ended.status.code(), Some(75), "{options:?}");
        assert_eq!(said(&ended), "");
        complained(&ended)
    };
    let held = "another holds it";
    client.int("LOCK.ACQUIRE lock a LEASE 600000");
    assert!(told(&["run", "-v"]).contains(held));
    client.int("DEL lock");
    // Who waits for a free lock is granted nothing while no replica is connected.
    assert_eq!(client.call("CONFIG SET lock.min-replicas 1"), Okay);
    eventually("the server says why", || {
        client.info("lock_replicas_missing") == 1
    });
    let missing = "nobody holds it, but too few replicas are online: lock_replicas_missing is 1";
    for options in [&["run", "-v"][..], &["--json", "run"]] {
        let told = told(options);
        assert!(told.contains(missing) && !told.contains(held), "{told}");
    }
    assert_eq!(told(&["run"]), "");
    client.call("CONFIG SET lock.min-replicas 0");
    client.call("ACL SETUSER blind on nopass ~* &* +@all -lock.info");
    client.int("LOCK.ACQUIRE lock a LEASE 600000");
    let url = format!("redis://blind:x@{}", server.addr());
    let told = told(&["--url", &url, "run", "-v"]);
    assert!(told.contains("who holds it is not known: NOPERM"), "{told}");
}

#[test]
fn a_wait_goes_on_until_a_replica_acknowledges() {
    let (server, replica) = acknowledged();
    replica.stop().unwrap();
    let mut script = Script::start(&server, &[], "exit 4");
    script.await_told(1, &["lockctl: lock: ", "NOREPLICAS not known to be safe"]);
    replica.go_on().unwrap();
    let (code, told) = script.end();
    assert_eq!(code, Some(4), "{told}");
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_command_whose_lock_is_not_known_to_be_safe_is_ended_in_time() {
    let (server, replica) = acknowledged();
    let command = "echo $$ > $DIR/pids; touch $DIR/ready; sleep 60";
    let mut script = Script::start_and_await(&server, &["--lease", "3s"], command);
    replica.stop().unwrap();
    script.await_told(1, &["lockctl: lock: ", "not renewed", "NOREPLICAS"]);
    let (code, told) = script.end();
    assert_eq!(code, Some(76), "{told}");
    assert!(told.contains("ran out"), "{told}");
    script.assert_nothing_runs();
    replica.go_on().unwrap();
}

#[test]
fn a_command_goes_on_where_a_replica_acknowledges_in_time_again() {
    let (server, replica) = acknowledged();
    let command = "touch $DIR/ready; sleep 7; exit 4";
    let mut script = Script::start_and_await(&server, &["--lease", "6s"], command);
    replica.stop().unwrap();
    script.await_told(1, &["lockctl: lock: ", "not renewed", "NOREPLICAS"]);
    replica.go_on().unwrap();
    let (code, told) = script.end();
    assert_eq!(code, Some(4), "{told}");
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn within_a_grace_period_a_lock_is_busy() {
    let server = Server::start_with(&["--lock.grace-period", "600000"]);
    for options in [&["--no-wait"][..], &["--wait", "100ms"]] {
        let mut command = lockctl(&server);
        command.args(["run", "-v"]).args(options);
        let ended = output(command.args(["lock", "echo", "never"]));
        assert_eq!(ended.status.code(), Some(75), "{options:?}");
        assert_eq!(said(&ended), "");
        let told = complained(&ended);
        assert!(told.contains("the server grants nothing for 5"), "{told}");
    }
    let mut script = Script::start(&server, &[], "exit 4");
    server.await_info("lock_waiters", 1);
    let listed = said(&output(lockctl(&server).arg("ls")));
    assert!(
        listed.contains("Grace period: nothing is granted"),
        "{listed}"
    );
    let mut top = lockctl(&server);
    top.args(["--json", "top", "--times", "1"]);
    let shown = said(&output(&mut top));
    assert!(shown.contains(r#""grace_ms":5"#), "{shown}");
    let end = "CONFIG SET lock.grace-period 0";
    assert_eq!(server.client().call(end), Okay);
    let (code, told) = script.end();
    assert_eq!(code, Some(4), "{told}");
}
