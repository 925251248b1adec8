//! Server and module are upgraded, one node after the other, while clients hold locks and
//! wait. `REDISLOCK_NEWER_SERVER` names the server that they become, if it is another one.

use std::fs;
use std::path::Path;

use redis_lock_testing::scene::await_replicas;
use redis_lock_testing::{Client, LONG, TestServer, eventually, int, module, status, text, token};

/// Ends a server in good order, and starts it with the new server and the new module.
#[track_caller]
fn upgrade(node: &mut TestServer, module: &Path, primary: &TestServer) {
    node.shut_down().unwrap();
    let mut setup = node.setup.clone();
    if let Some(newer) = std::env::var_os("REDISLOCK_NEWER_SERVER") {
        setup.binary = newer.into();
    }
    setup.module = Some(module.into());
    let is_replica = setup.options.contains(&"--replicaof".into());
    node.setup = match is_replica {
        true => setup,
        false => setup.replica_of(primary.addr()),
    };
    node.restart();
    node.await_link().unwrap();
    let modules = format!("{:?}", node.client().call("MODULE LIST"));
    assert!(modules.contains("newer.so"), "{modules}");
}

/// Clients that wait for `k`: one blocked, one with a place, and again one blocked.
struct Line {
    first: Client,
    place: Client,
    last: Client,
}

impl Line {
    /// They ask, one after the other.
    fn ask(at: &TestServer) -> Self {
        let mut line = Self {
            first: at.client(),
            place: at.subscriber("mine"),
            last: at.client(),
        };
        let ask = |owner: &str| format!("LOCK.ACQUIRE k {owner} {LONG} HOLD 1");
        line.first.send(&(ask("first") + " BLOCK 0"));
        at.await_waiters(1);
        let place = ask("place") + " QUEUE 600000 mine";
        assert_eq!(line.place.call(&place), int(0));
        line.last.send(&(ask("last") + " BLOCK 0"));
        at.await_waiters(3);
        line
    }
}

#[test]
fn locks_stay_and_who_waits_asks_again_while_each_node_is_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let newer = folder.path().join("newer.so");
    fs::copy(module(), &newer).unwrap();
    let mut old = TestServer::start();
    let mut new = old.replica(true);
    await_replicas(&mut old.client(), 1);
    let (mut holder, mut session) = (old.client(), old.client());
    let fence = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    session.int(&format!("LOCK.ACQUIRE kept session {LONG} SESSION"));
    let mut line = Line::ask(&old);

    // The replica goes first. Nobody who waits notices.
    upgrade(&mut new, &newer, &old);
    await_replicas(&mut old.client(), 1);
    assert_eq!(old.info("lock_waiters"), 3);
    assert_eq!(holder.call(&format!("LOCK.RENEW k holder {LONG}")), int(1));
    old.assert_same_data(&new);

    // The hand-over: who waits is told, and the session is closed.
    assert_eq!(old.client().call("FAILOVER"), status("OK"));
    assert!(line.first.reply_error().starts_with("UNBLOCKED "));
    assert!(line.last.reply_error().starts_with("UNBLOCKED "));
    let told = line.place.told();
    assert_eq!(told.owner, "place");
    assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
    assert_eq!(session.try_reply(), None);
    for (server, role) in [(&new, "role:master"), (&old, "role:slave")] {
        let mut client = server.client();
        eventually(role, || client.bulk("INFO replication").contains(role));
    }

    // Holds are what they were, and who asks again waits on.
    let mut holder = new.client();
    let renew = format!("LOCK.RENEW k holder {LONG} FENCE {fence}");
    assert_eq!(holder.call(&renew), int(1));
    assert_eq!(holder.call("HGET kept session"), text("1"));
    let mut line = Line::ask(&new);

    // Then the old primary. Nobody notices this either.
    upgrade(&mut old, &newer, &new);
    await_replicas(&mut new.client(), 1);
    assert_eq!(new.info("lock_waiters"), 3);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    let first = token(&line.first.reply());
    assert!(first > fence);
    assert_eq!(line.first.call("LOCK.RELEASE k first"), int(1));
    let told = line.place.told();
    assert!(told.token() > first);
    let release = format!("LOCK.RELEASE k place FENCE {}", told.token());
    assert_eq!(line.place.call(&release), int(1));
    assert!(token(&line.last.reply()) > told.token());
    new.assert_same_data(&old);
    old.assert_sound();
    new.assert_sound();
}
