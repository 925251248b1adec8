//! Waits that would close a cycle of owners are refused.

use redis::Value;
use redis_lock_testing::{Client, TestServer, eventually, int, nil, status};

const LONG: &str = "LEASE 600000";

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
fn through_readers_permits_and_the_queue() {
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

    // One of two permits.
    hold(&mut client, "pool", "p1", "LIMIT 2");
    hold(&mut client, "pool", "p2", "LIMIT 2");
    hold(&mut client, "x", "p3", "");
    let p2 = wait(&server, "x", "p2", "");
    let error = client.error("LOCK.ACQUIRE pool p3 LIMIT 2 BLOCK 0");
    assert!(
        error.starts_with("DEADLOCK 'p3' waits for 'pool' held by 'p2'"),
        "{error}"
    );
    drop(p2);
    server.await_blocked(0);

    // The one in front waits for another lock as well.
    hold(&mut client, "busy", "somebody", "");
    hold(&mut client, "mine", "me", "");
    let front = wait(&server, "busy", "front", "");
    let also = wait(&server, "mine", "front", "");
    assert_eq!(
        client.error("LOCK.ACQUIRE busy me BLOCK 0"),
        "DEADLOCK 'me' waits for 'busy' behind 'front', 'front' waits for 'mine' held by 'me'"
    );
    drop((front, also));
}

#[test]
fn where_there_is_no_cycle_there_is_no_alarm() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "k1", "a", "");
    hold(&mut client, "k2", "b", "");
    let a = wait(&server, "k2", "a", "");
    // A chain, and the same owner twice in one queue.
    let c = wait(&server, "k1", "c", "");
    let again = wait(&server, "k2", "a", "");
    // A waiter that has gone waits for nobody.
    drop((a, again));
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
