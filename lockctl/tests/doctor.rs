//! `lockctl doctor`: what is wrong with the servers, and what to do.

mod support;

use std::collections::BTreeSet;

use redis_lock_testing::scene::await_replicas;
use redis_lock_testing::{Cluster, Okay, Server};
use serde_json::Value as Json;

use support::{lockctl, output, said};

/// The exit code, and what was found: which kind, of which server, and what.
fn examined(server: &Server, options: &[&str]) -> (Option<i32>, Vec<[String; 3]>) {
    let ended = output(lockctl(server).args(["--json", "doctor"]).args(options));
    let found = said(&ended);
    let found = found.lines().map(|line| {
        let line: Json = serde_json::from_str(line).unwrap();
        ["finding", "server", "what"].map(|field| line[field].as_str().unwrap().into())
    });
    (ended.status.code(), found.collect())
}

#[track_caller]
fn assert_found(found: &[[String; 3]], kind: &str, words: &str) {
    let fits = |it: &&[String; 3]| it[0] == kind && it[2].contains(words);
    assert_eq!(found.iter().filter(fits).count(), 1, "{words}: {found:#?}");
}

#[track_caller]
fn set(server: &Server, settings: &[&str]) {
    for setting in settings {
        let set = server.client().call(&format!("CONFIG SET {setting}"));
        assert_eq!(set, Okay, "{setting}");
    }
}

const SAFE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

#[test]
fn a_server_that_is_set_up_well_has_nothing_wrong() {
    let server = Server::start_with(&SAFE);
    let (code, found) = examined(&server, &[]);
    assert_eq!(code, Some(0), "{found:#?}");
    assert_found(&found, "good", "of the module");
    assert_found(&found, "good", "A restart forgets no lock");
    assert!(!found.iter().any(|it| it[0] == "wrong"), "{found:#?}");
    let lines = said(&output(lockctl(&server).arg("doctor")));
    let first = format!("good   {}  It has version 0.", server.addr());
    assert!(lines.starts_with(&first), "{lines}");
}

#[test]
fn settings_that_lose_locks_are_wrong() {
    let server = Server::start();
    let (code, found) = examined(&server, &[]);
    assert_eq!(code, Some(0), "{found:#?}");
    assert_found(&found, "note", "CONFIG SET appendonly yes");
    set(
        &server,
        &[
            "maxmemory-policy allkeys-lru",
            "timeout 60",
            "appendonly yes",
        ],
    );
    set(&server, &["appendfsync everysec", "lock.min-replicas 1"]);
    let (code, found) = examined(&server, &[]);
    assert_eq!(code, Some(1), "{found:#?}");
    for wrong in ["evict", "CONFIG SET timeout 0", "so few replicas"] {
        assert_found(&found, "wrong", wrong);
    }
    assert_found(&found, "note", "CONFIG SET appendfsync always");
    set(
        &server,
        &[
            "lock.min-replicas 0",
            "lock.grace-period 5000",
            "lock.max-lease 4000",
        ],
    );
    let (_, found) = examined(&server, &[]);
    assert_found(
        &found,
        "wrong",
        "grace period is 5000 ms, and old leases need 16000",
    );
    set(&server, &["lock.grace-period 16000"]);
    let (_, found) = examined(&server, &[]);
    assert_found(
        &found,
        "good",
        "A restart grants nothing before old leases end",
    );
}

#[test]
fn replicas_are_examined_too() {
    let server = Server::start();
    let (with_module, without) = (server.replica(true), server.replica(false));
    await_replicas(&mut server.client(), 2);
    let (code, found) = examined(&server, &[]);
    assert_eq!(code, Some(1), "{found:#?}");
    assert_found(&found, "wrong", "has no lock module");
    assert_found(
        &found,
        "note",
        "CONFIG SET lock.min-replicas 2, or set a grace period",
    );
    let servers: BTreeSet<_> = found.iter().map(|it| it[1].clone()).collect();
    let expected = [&server, &with_module, &without].map(|it| it.addr().to_string());
    assert_eq!(servers, expected.into());
    set(&server, &["lock.min-replicas 1"]);
    set(&with_module, &["lock.max-lease 60000"]);
    let (_, found) = examined(&server, &[]);
    assert_found(&found, "note", "not awaited");
    assert_found(&found, "wrong", "It has lock.max-lease 60000");
    assert_found(
        &found,
        "wrong",
        "It has lock.min-replicas 0, and its primary 1",
    );
    let mut by_replica = lockctl(&with_module);
    let told = said(&output(by_replica.arg("doctor")));
    assert!(told.contains("It is a replica"), "{told}");
}

#[test]
fn all_primaries_of_a_cluster_are_examined() {
    let cluster = Cluster::start();
    let mut doctor = lockctl(&cluster.nodes[0]);
    let url = format!("redis-cluster://{}", cluster.nodes[1].addr());
    let told = said(&output(doctor.args(["doctor", "--url", &url])));
    for node in &cluster.nodes {
        let line = format!("good   {}  It has version", node.addr());
        assert_eq!(told.matches(&line).count(), 1, "{told}");
    }
    assert_eq!(told.matches("User default may").count(), 1, "{told}");
}

/// Places of a cluster are told by sharded channels.
#[test]
fn in_a_cluster_the_right_to_wait_is_another() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let mut client = server.client();
    let rights = "on >x ~locks:* +lock.acquire +lock.renew +lock.release &redislock:*";
    for (user, right) in [("app", "+ssubscribe"), ("worker", "+subscribe")] {
        let set = format!("ACL SETUSER {user} {rights} {right}");
        assert_eq!(client.call(&set), Okay);
    }
    let (_, found) = examined(&server, &[]);
    assert_found(&found, "good", "User app may take");
    assert_found(&found, "note", "without +ssubscribe &redislock:*");
}

#[test]
fn users_are_shown_with_what_they_may_do() {
    let server = Server::start_with(&SAFE);
    let mut client = server.client();
    for user in [
        "app on >x ~locks:* +lock.acquire +lock.renew +lock.release &redislock:* +subscribe",
        "worker on >x ~locks:* resetchannels +lock.acquire +lock.renew +lock.release",
        "leaver on >x ~locks:* +lock.acquire +subscribe",
        "cleaner on >x ~* +del",
        "observer on >x %R~locks:* +lock.info",
        "other on >x ~data:* +get",
        "nobody off >x ~* +@all",
    ] {
        assert_eq!(client.call(&format!("ACL SETUSER {user}")), Okay);
    }
    let (code, found) = examined(&server, &[]);
    assert_eq!(code, Some(1), "{found:#?}");
    assert_found(
        &found,
        "note",
        "User default may take, renew, release, guard, look at, break",
    );
    assert_found(
        &found,
        "good",
        "User app may take, renew, release locks like locks:",
    );
    assert_found(
        &found,
        "note",
        "User worker may take, renew, release locks like locks:; each",
    );
    assert_found(
        &found,
        "wrong",
        "User leaver may take locks like locks:; add",
    );
    assert_found(&found, "note", "User cleaner may delete locks like lock");
    assert_found(
        &found,
        "good",
        "User observer may look at locks like locks:",
    );
    for silent in ["User other", "User nobody"] {
        assert!(!found.iter().any(|it| it[2].contains(silent)), "{found:#?}");
    }
    let (_, found) = examined(&server, &["--name", "elsewhere"]);
    assert!(
        !found.iter().any(|it| it[2].contains("User app")),
        "{found:#?}"
    );
}

#[test]
fn what_its_user_may_not_see_is_told_once() {
    let server = Server::start();
    let user = "ACL SETUSER blind on >x ~* +module|list +role";
    assert_eq!(server.client().call(user), Okay);
    let mut blind = lockctl(&server);
    blind.env("REDIS_URL", format!("redis://blind:x@{}", server.addr()));
    let ended = output(blind.arg("doctor"));
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let told = said(&ended);
    assert_eq!(told.matches("Not all is seen: NOPERM").count(), 2, "{told}");
    assert!(told.contains("of the module"), "{told}");
}
