//! A server that refuses writes does not write by itself either.

use redis::Value;
use redis_lock_testing::scene::{
    assert_all_granted, assert_none_granted, await_gone, await_waiting, transaction,
};
use redis_lock_testing::{Client, LONG, Play, TestServer, eventually, int, nil, status, token};

/// Locks that come free while the server refuses writes, one because its lease
/// ends, one because its session closes. Somebody waits for each.
struct Scene {
    server: TestServer,
    observer: Client,
    session: Option<Client>,
    waiters: Vec<(&'static str, Client)>,
}

impl Scene {
    fn set(server: TestServer) -> Self {
        let mut observer = server.client();
        observer.int(&format!("LOCK.ACQUIRE ended holder {LONG}"));
        let mut session = server.client();
        session.int(&format!("LOCK.ACQUIRE closed holder {LONG} SESSION"));
        let mut waiters = Vec::new();
        for key in ["ended", "closed"] {
            let mut waiter = server.client();
            waiter.send(&format!("LOCK.ACQUIRE {key} waiter {LONG} BLOCK 0"));
            await_waiting(&mut observer, key, 1);
            waiters.push((key, waiter));
        }
        Self {
            server,
            observer,
            session: Some(session),
            waiters,
        }
    }

    /// A session whose lease is kept up, and a waiter behind it.
    fn keep_a_session(&mut self) -> (Client, i64) {
        let mut kept = self.server.client();
        let id = kept.int("CLIENT ID");
        kept.int("LOCK.ACQUIRE kept holder LEASE 1500 SESSION");
        let mut waiter = self.server.client();
        waiter.send(&format!("LOCK.ACQUIRE kept waiter {LONG} BLOCK 0"));
        await_waiting(&mut self.observer, "kept", 1);
        self.waiters.push(("kept", waiter));
        (kept, id)
    }

    /// Lets the lease be over while writes are refused.
    fn end_the_lease_after_that(&mut self) {
        let renew = "LOCK.RENEW ended holder LEASE 1000";
        assert_eq!(self.observer.call(renew), int(1));
    }

    /// Writes are refused now. Nothing may be handed on.
    #[track_caller]
    fn assert_nothing_is_granted(&mut self, code: &str) {
        let error = self.observer.error("LOCK.ACQUIRE another holder");
        assert!(error.starts_with(code), "{error}");
        drop(self.session.take());
        let observer = &mut self.observer;
        eventually("the lease is over", || {
            observer.call("HGET ended holder") == nil()
        });
        assert_none_granted(observer, &self.waiters);
    }

    /// Writes are accepted again. Everybody gets what is free.
    #[track_caller]
    fn assert_granted(mut self) {
        assert_all_granted(&mut self.observer, std::mem::take(&mut self.waiters));
        self.server.assert_sound();
    }
}

fn set(client: &mut Client, name: &str, value: &str) {
    let words = [
        b"CONFIG",
        b"SET".as_slice(),
        name.as_bytes(),
        value.as_bytes(),
    ];
    assert_eq!(client.words(&words), status("OK"), "{name} {value}");
}

#[test]
fn without_replicas_nobody_is_granted_until_fewer_will_do() {
    let mut scene = Scene::set(TestServer::start());
    scene.end_the_lease_after_that();
    set(&mut scene.observer, "min-replicas-to-write", "1");
    scene.assert_nothing_is_granted("NOREPLICAS ");
    set(&mut scene.observer, "min-replicas-to-write", "0");
    scene.assert_granted();
}

#[test]
fn without_replicas_nobody_is_granted_until_one_has_come() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let mut scene = Scene::set(server);
    scene.end_the_lease_after_that();
    set(&mut scene.observer, "min-replicas-to-write", "1");
    scene.assert_nothing_is_granted("NOREPLICAS ");
    let _replica = scene.server.replica(false);
    scene.assert_granted();
}

#[test]
fn without_enough_replicas_nobody_gets_a_place_and_who_has_one_waits_on() {
    Play::held().with_replica().run(
        "ears > LOCK.ACQUIRE k a PLACED -> 0
        h > CONFIG SET min-replicas-max-lag 10
        h > CONFIG SET min-replicas-to-write 2
        ears > LOCK.ACQUIRE k b PLACED -> !NOREPLICAS
        queue k = a
        h > CONFIG SET min-replicas-to-write 1
        h > LOCK.RELEASE k h -> 1
        ears heard a token",
    );
}

/// Its lease is not moved, and it ends.
#[track_caller]
fn assert_not_kept_up(scene: &mut Scene) {
    let end = scene.observer.int("PEXPIRETIME kept");
    let observer = &mut scene.observer;
    eventually("the session's lease is over", || {
        let now = observer.int("PEXPIRETIME kept");
        assert!(now <= end, "the session was kept up, or handed on");
        now == -2
    });
}

#[test]
fn without_enough_replicas_no_session_is_kept_up() {
    let mut scene = Scene::set(TestServer::start());
    let (_kept, id) = scene.keep_a_session();
    set(&mut scene.observer, "min-replicas-to-write", "1");
    assert_not_kept_up(&mut scene);
    // Who holds by a connection must not believe in it any longer.
    await_gone(&mut scene.observer, id);
    set(&mut scene.observer, "min-replicas-to-write", "0");
    drop(scene.session.take());
    scene.observer.call("DEL ended");
    scene.assert_granted();
}

/// A server whose next snapshot fails, because its name is a folder's.
fn without_a_disk() -> TestServer {
    let server = TestServer::start_with(&["--dbfilename", "folder"]);
    let mut client = server.client();
    let Value::Array(words) = client.call("CONFIG GET dir") else {
        panic!("CONFIG GET did not answer a list");
    };
    let Value::BulkString(dir) = &words[1] else {
        panic!("{words:?} names no folder");
    };
    let dir = String::from_utf8(dir.clone()).unwrap();
    std::fs::create_dir(std::path::Path::new(&dir).join("folder")).unwrap();
    set(&mut client, "save", "3600 1");
    server
}

fn fail_a_snapshot(client: &mut Client) {
    client.call("BGSAVE");
    eventually("the snapshot has failed", || {
        let info = client.bulk("INFO persistence");
        info.contains("rdb_last_bgsave_status:err")
    });
}

#[test]
fn after_a_failed_snapshot_nobody_is_granted_until_allowed() {
    let mut scene = Scene::set(without_a_disk());
    scene.end_the_lease_after_that();
    fail_a_snapshot(&mut scene.observer);
    scene.assert_nothing_is_granted("MISCONF ");
    set(&mut scene.observer, "stop-writes-on-bgsave-error", "no");
    scene.assert_granted();
}

#[test]
fn after_a_failed_snapshot_no_session_is_kept_up() {
    let mut scene = Scene::set(without_a_disk());
    let (_kept, id) = scene.keep_a_session();
    fail_a_snapshot(&mut scene.observer);
    assert_not_kept_up(&mut scene);
    await_gone(&mut scene.observer, id);
    set(&mut scene.observer, "stop-writes-on-bgsave-error", "no");
    drop(scene.session.take());
    scene.observer.call("DEL ended");
    scene.assert_granted();
}

/// The append-only file is a device that is always full.
#[test]
fn while_the_append_only_file_is_full_nothing_is_handed_on() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("appendonlydir");
    std::fs::create_dir(&folder).unwrap();
    for name in ["temp-appendonly.aof.incr", "appendonly.aof.1.incr.aof"] {
        std::os::unix::fs::symlink("/dev/full", folder.join(name)).unwrap();
    }
    let path = dir.path().to_str().unwrap();
    let mut scene = Scene::set(TestServer::start_with(&["--dir", path]));
    set(&mut scene.observer, "appendonly", "yes");
    scene.end_the_lease_after_that();
    eventually("the file can't be written", || {
        let info = scene.observer.bulk("INFO persistence");
        info.contains("aof_last_write_status:err")
    });
    scene.assert_nothing_is_granted("MISCONF ");
    set(&mut scene.observer, "appendonly", "no");
    scene.assert_granted();
}

#[test]
fn a_writable_replica_has_neither_waiters_nor_sessions() {
    let server = TestServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = server.replica(true);
    let mut client = replica.client();
    set(&mut client, "replica-read-only", "no");
    for options in ["BLOCK 100", "BLOCK 0", "SESSION", "SESSION BLOCK 100"] {
        // Free or held.
        for key in ["free", "held"] {
            if key == "held" {
                token(&client.call(&format!("LOCK.ACQUIRE held holder {LONG}")));
            }
            let command = format!("LOCK.ACQUIRE {key} another LEASE 1000 {options}");
            client.send(&command);
            let reply = client.reply();
            let Value::ServerError(error) = &reply else {
                panic!("{command}: {reply:?}");
            };
            assert_eq!(error.code(), "READONLY", "{command}: {error:?}");
        }
        assert_eq!(client.int("EXISTS free"), 0);
    }
    assert_eq!(client.info("blocked_clients"), 0);
    assert_eq!(client.info("lock_sessions"), 0);
    // Without them it is as on a primary.
    let first = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    assert_eq!(client.int(&format!("LOCK.ACQUIRE k a {LONG}")), first);
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
    assert_eq!(client.call("LOCK.RENEW k a LEASE 600000"), int(1));
    assert_eq!(client.call("LOCK.RELEASE k a"), int(0));
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    assert!(client.int(&format!("LOCK.ACQUIRE k b {LONG}")) > first);
}

/// What hides a lock that is over from the commands of the same transaction, without
/// deleting it, and what ends that.
const HIDING: [[&str; 2]; 2] = [
    ["CLIENT PAUSE 60000 WRITE", "CLIENT UNPAUSE"],
    ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"],
];

/// The lock `k` ends, unseen, and a transaction runs this command where it is hidden.
/// Returns the reply.
#[track_caller]
fn in_a_transaction_that_hides(client: &mut Client, hiding: [&str; 2], command: &str) -> Value {
    let [hides, shows] = hiding;
    let all = [
        "LOCK.RENEW k a LEASE 10",
        "DEBUG SLEEP 0.02",
        "MULTI",
        hides,
        command,
        shows,
        "EXEC",
    ];
    // In one write, so that the server does nothing else in between.
    client.send_bytes((all.join("\r\n") + "\r\n").as_bytes());
    assert_eq!(client.reply(), int(1), "it is held until now");
    for _ in &all[1..6] {
        client.reply();
    }
    let Value::Array(replies) = client.reply() else {
        panic!("{command}");
    };
    replies[1].clone()
}

#[track_caller]
fn check_hidden(command: &str, waits: bool) {
    for hiding in HIDING {
        let server = TestServer::start();
        let mut client = server.client();
        let before = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
        let mut waiter = server.client();
        if waits {
            waiter.send(&format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
            await_waiting(&mut client, "k", 1);
        }
        let command = command.replace("{before}", &before.to_string());
        let reply = in_a_transaction_that_hides(&mut client, hiding, &command);
        let Value::ServerError(error) = &reply else {
            panic!("{command} after {hiding:?}: {reply:?}");
        };
        assert_eq!(error.code(), "READONLY", "{command}");
        if waits && hiding[0].starts_with("CLIENT") {
            assert!(token(&waiter.reply()) > before, "{command}");
        }
        let renew = format!("LOCK.RENEW k a {LONG} FENCE {before}");
        assert_eq!(client.call(&renew), int(0), "{command} after {hiding:?}");
    }
}

#[test]
fn a_transaction_that_has_paused_writes_takes_no_lock_that_is_over() {
    check_hidden("LOCK.ACQUIRE k c LEASE 600000", false);
    check_hidden("LOCK.ACQUIRE k c LEASE 600000", true);
}

#[test]
fn a_transaction_that_has_paused_writes_hands_no_lock_off_that_is_over() {
    for command in [
        "LOCK.RELEASE k a",
        "LOCK.RENEW k a LEASE 600000",
        "LOCK.BREAK k",
        "LOCK.GUARD k {before} SET x late",
    ] {
        check_hidden(command, true);
    }
}

#[test]
fn a_transaction_that_has_paused_writes_may_release_what_is_held() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    let [hides, shows] = HIDING[0];
    let replies = transaction(&mut client, &[hides, "LOCK.RELEASE k a", shows]);
    assert_eq!(replies[1], int(1));
    server.assert_sound();
}
