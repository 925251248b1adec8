//! Waits that would close a cycle of owners are refused.

use redis::Value;
use redis_lock_testing::scene::await_waiting;
use redis_lock_testing::{Client, LONG, TestServer, eventually, int, nil, pack, status};

fn hold(client: &mut Client, key: &str, owner: &str, mode: &str) {
    let command = format!("LOCK.ACQUIRE {key} {owner} {LONG} {mode}");
    client.int(command.trim());
}

/// A client that waits for the key as this owner.
fn wait(server: &TestServer, key: &str, owner: &str, mode: &str) -> Client {
    let mut client = server.client();
    let command = format!("LOCK.ACQUIRE {key} {owner} {LONG} BLOCK 0 {mode}");
    client.send_and_block(&mut server.client(), command.trim());
    client
}

#[test]
fn two_owners_that_want_each_others_lock() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "k1", "a", "");
    hold(&mut client, "k2", "b", "");
    let mut a = wait(&server, "k2", "a", "");
    assert_eq!(
        client.error("LOCK.ACQUIRE k1 b BLOCK 0"),
        "DEADLOCK 'b' waits for 'k1' held by 'a', 'a' waits for 'k2' held by 'b'"
    );
    // Without waiting there is no deadlock, and who gives way helps the other.
    assert_eq!(client.call("LOCK.ACQUIRE k1 b"), nil());
    assert_eq!(client.call("LOCK.RELEASE k2 b"), int(1));
    assert!(matches!(a.reply(), Value::Int(_)));
}

#[test]
fn a_ring_of_fifty_owners() {
    let server = TestServer::start();
    let mut client = server.client();
    for n in 0..50 {
        hold(&mut client, &format!("k{n}"), &format!("o{n}"), "");
    }
    let waiters: Vec<_> = (0..49)
        .map(|n| wait(&server, &format!("k{}", n + 1), &format!("o{n}"), ""))
        .collect();
    let error = client.error("LOCK.ACQUIRE k0 o49 BLOCK 0");
    assert!(error.starts_with("DEADLOCK 'o49' waits for 'k0' held by 'o0', 'o0' waits for 'k1'"));
    assert_eq!(error.matches("waits for").count(), 50);
    assert_eq!(client.info("blocked_clients"), 49);
    drop(waiters);
}

#[test]
fn through_readers_and_permits() {
    let server = TestServer::start();
    let mut client = server.client();
    // A reader waits for a lock of the writer that would wait for it.
    hold(&mut client, "shared", "reader1", "SHARED");
    hold(&mut client, "shared", "reader2", "SHARED");
    hold(&mut client, "own", "writer", "");
    let reader = wait(&server, "own", "reader2", "");
    let error = client.error("LOCK.ACQUIRE shared writer BLOCK 0");
    assert_eq!(
        error,
        "DEADLOCK 'writer' waits for 'shared' held by 'reader2', \
         'reader2' waits for 'own' held by 'writer'"
    );
    drop(reader);
    server.await_blocked(0);

    // All permits, for a request that wants the lock alone.
    hold(&mut client, "pool", "p1", "LIMIT 2");
    hold(&mut client, "pool", "p2", "LIMIT 2");
    hold(&mut client, "x", "p3", "");
    let p2 = wait(&server, "x", "p2", "");
    let error = client.error("LOCK.ACQUIRE pool p3 BLOCK 0");
    assert!(
        error.starts_with("DEADLOCK 'p3' waits for 'pool' held by 'p2'"),
        "{error}"
    );
    drop(p2);
    server.await_blocked(0);
}

/// A client whose request is queued, or refused as a deadlock. Says which.
#[track_caller]
fn ask(server: &TestServer, key: &str, owner: &str, mode: &str) -> (Client, bool) {
    let (mut client, mut observer) = (server.client(), server.client());
    let known = |observer: &mut Client| {
        observer.info("blocked_clients") + observer.info("lock_deadlocks_refused")
    };
    let (before, refused) = (
        known(&mut observer),
        observer.info("lock_deadlocks_refused"),
    );
    let command = format!("LOCK.ACQUIRE {key} {owner} {LONG} BLOCK 0 {mode}");
    client.send(command.trim());
    eventually("it waits or is refused", || {
        known(&mut observer) == before + 1
    });
    let is_queued = observer.info("lock_deadlocks_refused") == refused;
    (client, is_queued)
}

#[test]
fn one_of_several_permits_may_come_free_and_is_waited_for() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "pool", "a", "LIMIT 2");
    hold(&mut client, "pool", "c", "LIMIT 2");
    hold(&mut client, "l", "b", "");
    let a = wait(&server, "l", "a", "");
    let (mut b, queued) = ask(&server, "pool", "b", "LIMIT 2");
    assert!(queued, "{:?}", b.reply());
    assert_eq!(client.call("LOCK.RELEASE pool c"), int(1));
    assert!(matches!(b.reply(), Value::Int(_)));
    assert_eq!(client.info("lock_deadlocks_refused"), 0);
    drop(a);
}

#[test]
fn a_permit_is_waited_for_wherever_it_is_in_the_chain() {
    let server = TestServer::start();
    let mut client = server.client();
    // m waits for one of two permits; one of its holders asks for m's lock.
    hold(&mut client, "pool", "a", "LIMIT 2");
    hold(&mut client, "pool", "c", "LIMIT 2");
    hold(&mut client, "l", "m", "");
    let mut m = wait(&server, "pool", "m", "LIMIT 2");
    let (mut a, queued) = ask(&server, "l", "a", "");
    assert!(queued, "{:?}", a.reply());
    assert_eq!(client.call("LOCK.RELEASE pool c"), int(1));
    assert!(matches!(m.reply(), Value::Int(_)));
    assert_eq!(client.call("LOCK.RELEASE l m"), int(1));
    assert!(matches!(a.reply(), Value::Int(_)));

    // Of three holders two must go before this one may come in, not all.
    for owner in ["p1", "p2", "p3"] {
        hold(&mut client, "wide", owner, "LIMIT 3");
    }
    hold(&mut client, "x", "q", "");
    let p1 = wait(&server, "x", "p1", "");
    let (mut q, queued) = ask(&server, "wide", "q", "LIMIT 2");
    assert!(queued, "{:?}", q.reply());
    for owner in ["p2", "p3"] {
        assert_eq!(client.call(&format!("LOCK.RELEASE wide {owner}")), int(1));
    }
    assert!(matches!(q.reply(), Value::Int(_)));
    drop(p1);
}

#[test]
fn where_all_holders_must_go_one_that_waits_is_enough() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "pool", "a", "LIMIT 2");
    hold(&mut client, "pool", "c", "LIMIT 2");
    hold(&mut client, "l", "b", "");
    let _a = wait(&server, "l", "a", "");
    // Nobody is in front of it.
    let (b, queued) = ask(&server, "pool", "b", "LIMIT 2");
    assert!(queued);
    drop(b);
    server.await_blocked(1);
    // An exclusive request waits for all holders, and whoever is behind it too.
    for command in [
        "LOCK.ACQUIRE pool b BLOCK 5000",
        "LOCK.ACQUIRE pool b BLOCK 5000 LIMIT 1",
    ] {
        let error = client.error(command);
        assert!(error.starts_with("DEADLOCK "), "{error}");
    }
    let d = wait(&server, "pool", "d", "");
    for mode in ["LIMIT 2", "SHARED"] {
        let error = client.error(&format!("LOCK.ACQUIRE pool b BLOCK 5000 {mode}"));
        assert!(error.starts_with("DEADLOCK "), "{error}");
        for part in ["'b' waits for 'pool'", "'a' waits for 'l' held by 'b'"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }
    drop(d);
    await_waiting(&mut client, "pool", 0);
    let (_b, queued) = ask(&server, "pool", "b", "LIMIT 2");
    assert!(queued, "nobody is in front of it any more");
}

/// A client that may do everything, and one of a user with these rights.
fn with_rights(server: &TestServer, rights: &str) -> (Client, Client) {
    let (mut admin, mut low) = (server.client(), server.client());
    let rules = format!("ACL SETUSER low on nopass {rights}");
    assert_eq!(admin.call(&rules), status("OK"));
    assert_eq!(low.call("AUTH low x"), status("OK"));
    (admin, low)
}

/// A user that may use some of the keys of a cycle.
#[test]
fn a_deadlock_names_no_key_that_its_user_may_not_read() {
    let server = TestServer::start();
    let (mut admin, mut low) = with_rights(&server, "~mine:* +lock.acquire");
    // low's `me` waits for `known`, who waits for `hidden`, who waits for `me`.
    hold(&mut admin, "secret:b", "me", "");
    hold(&mut admin, "secret:a", "hidden", "");
    hold(&mut low, "mine:1", "known", "");
    let _known = wait(&server, "secret:a", "known", "");
    let _hidden = wait(&server, "secret:b", "hidden", "");
    let error = low.error("LOCK.ACQUIRE mine:1 me BLOCK 3000");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    for part in ["secret", "hidden"] {
        assert!(!error.contains(part), "{part} is in {error}");
    }
    assert!(error.contains("mine:1"), "{error}");
    // Whoever may read all of it sees all of it.
    let error = admin.error("LOCK.ACQUIRE mine:1 me BLOCK 3000");
    for part in [
        "'mine:1'",
        "'secret:a'",
        "'secret:b'",
        "'hidden'",
        "'known'",
    ] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn a_deadlock_of_two_names_no_key_that_its_user_may_not_read() {
    let server = TestServer::start();
    let (mut admin, mut low) = with_rights(&server, "~mine:* %W~written +lock.acquire");
    // A key that it may write to alone is not one that it may read.
    for key in ["secret:payroll", "written"] {
        hold(&mut admin, key, "victim", "");
        hold(&mut low, "mine:1", "low", "");
        let waiter = wait(&server, key, "low", "");
        let error = low.error("LOCK.ACQUIRE mine:1 victim BLOCK 3000");
        assert!(error.starts_with("DEADLOCK "), "{error}");
        assert!(!error.contains(key), "{error}");
        drop(waiter);
        server.await_blocked(0);
        admin.call("DEL mine:1");
    }
}

/// Valkey 9.1 keeps users from databases.
#[test]
fn a_deadlock_names_no_key_in_a_database_that_its_user_may_not_use() {
    let server = TestServer::start();
    if server.valkey_version() < Some((9, 1)) {
        return;
    }
    let (mut admin, mut other) = (server.client(), server.client());
    let rules = "ACL SETUSER low on nopass ~* +lock.acquire resetdbs db=0";
    assert_eq!(admin.call(rules), status("OK"));
    assert_eq!(other.call("SELECT 1"), status("OK"));
    hold(&mut other, "secret", "victim", "");
    hold(&mut admin, "mine", "low", "");
    other.send("LOCK.ACQUIRE secret low BLOCK 0");
    server.await_blocked(1);
    let mut low = server.client();
    assert_eq!(low.call("AUTH low x"), status("OK"));
    let error = low.error("LOCK.ACQUIRE mine victim BLOCK 3000");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    assert!(
        error.contains("mine") && !error.contains("secret"),
        "{error}"
    );
}

#[test]
fn where_there_is_no_cycle_there_is_no_alarm() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "k1", "a", "");
    hold(&mut client, "k2", "b", "");
    let a = wait(&server, "k2", "a", "");
    // A chain.
    let c = wait(&server, "k1", "c", "");
    // A waiter that has gone waits for nobody.
    drop(a);
    eventually("it has left", || client.info("blocked_clients") == 1);
    let b = wait(&server, "k1", "b", "");
    drop((b, c));
    server.await_blocked(0);

    // The lock was freed and the waiter granted in the same breath.
    client.call("FLUSHALL");
    hold(&mut client, "k1", "a", "");
    hold(&mut client, "k2", "b", "");
    let mut a = wait(&server, "k2", "a", "");
    client.send("DEL k2");
    client.send("LOCK.ACQUIRE k1 b BLOCK 0");
    assert_eq!(client.reply(), int(1));
    assert!(matches!(a.reply(), Value::Int(_)));
    assert_eq!(a.call("LOCK.RELEASE k1 a"), int(1));
    assert!(matches!(client.reply(), Value::Int(_)));
}

#[test]
fn a_lease_that_is_found_to_be_over_closes_no_cycle_and_is_handed_on() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "k1", "a", "");
    client.int("LOCK.ACQUIRE k2 b LEASE 100");
    let mut a = wait(&server, "k2", "a", "");
    // No timer runs between the two, so the look itself finds that the lease is over.
    let both = [
        pack(&["DEBUG", "SLEEP", "0.2"]),
        pack(&["LOCK.ACQUIRE", "k1", "b", "BLOCK", "0"]),
    ];
    client.send_bytes(&both.concat());
    assert_eq!(client.reply(), status("OK"));
    assert!(matches!(a.reply(), Value::Int(_)));
    assert_eq!(a.call("LOCK.RELEASE k1 a"), int(1));
    assert!(matches!(client.reply(), Value::Int(_)));
}

#[test]
fn across_databases() {
    let server = TestServer::start();
    let (mut zero, mut one) = (server.client(), server.client());
    one.call("SELECT 1");
    hold(&mut zero, "k", "a", "");
    hold(&mut one, "k", "b", "");
    let command = format!("LOCK.ACQUIRE k b {LONG} BLOCK 0");
    zero.send_and_block(&mut server.client(), &command);
    let error = one.error("LOCK.ACQUIRE k a BLOCK 0");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    // The search has left the client in its own database.
    assert_eq!(one.call("LOCK.RELEASE k b"), int(1));
}

#[test]
fn it_can_be_switched_off() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(
        client.call("CONFIG SET lock.deadlock-detection no"),
        status("OK")
    );
    hold(&mut client, "k1", "a", "");
    hold(&mut client, "k2", "b", "");
    let _a = wait(&server, "k2", "a", "");
    assert_eq!(client.call("LOCK.ACQUIRE k1 b BLOCK 30"), nil());
}
