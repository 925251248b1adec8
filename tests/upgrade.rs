//! Server and module are upgraded, one node after the other, while clients hold locks and
//! wait. `REDISLOCK_NEWER_SERVER` names the server that they become, if it is another one.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use redis_lock_testing::scene::await_replicas;
use redis_lock_testing::{Play, TestServer, module};

/// Ends a server in good order, and starts it with the new server and the new module.
#[track_caller]
fn upgrade(node: &mut TestServer, module: &Path, primary: SocketAddr) {
    node.shut_down().unwrap();
    let mut setup = node.setup.clone();
    if let Some(newer) = std::env::var_os("REDISLOCK_NEWER_SERVER") {
        setup.binary = newer.into();
    }
    setup.module = Some(module.into());
    let is_replica = setup.options.contains(&"--replicaof".into());
    node.setup = match is_replica {
        true => setup,
        false => setup.replica_of(primary),
    };
    node.restart();
    node.await_link().unwrap();
    let modules = format!("{:?}", node.client().call("MODULE LIST"));
    assert!(modules.contains("newer.so"), "{modules}");
}

/// At a server three wait for `k`: one blocked, one with a place, and again one blocked.
fn line_up(at: &str) -> String {
    format!(
        "first{at} > LOCK.ACQUIRE k first BLOCKED HOLD 1 -> ..
        ears{at} hears mine
        ears{at} > LOCK.ACQUIRE k place LONG HOLD 1 QUEUE 600000 mine -> 0
        last{at} > LOCK.ACQUIRE k last BLOCKED HOLD 1 -> .."
    )
}

#[test]
fn locks_stay_and_who_waits_asks_again_while_each_node_is_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let newer = folder.path().join("newer.so");
    fs::copy(module(), &newer).unwrap();
    let mut play = Play::start().with_replica();
    play.run(
        "h > LOCK.ACQUIRE k h LONG -> H
        s > LOCK.ACQUIRE kept s LONG SESSION -> S",
    )
    .run(&line_up(""));

    // The replica goes first. Nobody who waits notices.
    let old = play.addr();
    upgrade(play.others.get_mut("r").unwrap(), &newer, old);
    await_replicas(&mut play.server.client(), 1);
    play.run(
        "lock_waiters = 3
        h > LOCK.RENEW k h LONG -> 1
        in step",
    );

    // The hand-over: who waits is told, and the session is closed.
    play.run(
        "o > FAILOVER -> OK
        first < !UNBLOCKED
        last < !UNBLOCKED
        ears heard place !UNBLOCKED
        s < closed
        until o@r > INFO replication -> ~role:master
        until o > INFO replication -> ~role:slave",
    );

    // Holds are what they were, and who asks again waits on.
    play.run(
        "h at r
        h > LOCK.RENEW k h LONG FENCE $H -> 1
        h > HGET kept s -> '1'",
    )
    .run(&line_up("@r"));

    // Then the old primary. Nobody notices this either.
    let new = play.others["r"].addr();
    upgrade(&mut play.server, &newer, new);
    await_replicas(&mut play.others["r"].client(), 1);
    play.run(
        "r.lock_waiters = 3
        h > LOCK.RELEASE k h -> 1
        first@r < F
        h > LOCK.RELEASE k first -> 1
        ears@r heard place P
        h > LOCK.RELEASE k place FENCE $P -> 1
        last@r < L",
    );
    play.others["r"].assert_same_data(&play.server);
    play.run("sound");
}
