//! Locks that several owners hold together.

use std::time::{Duration, Instant};

use redis_lock_testing::{Client, LONG, TestServer, eventually, int, nil, text, token};

/// Leases begin and end with a whole millisecond. Redis 7.4 and later may delete
/// a key within the one in which it expires (`activeExpireCycleTryExpire`).
const WHOLE_MS: Duration = Duration::from_millis(1);

/// This many clients, each of which has sent its own of these commands.
fn clients(server: &TestServer, count: usize, command: impl Fn(usize) -> String) -> Vec<Client> {
    (0..count)
        .map(|n| {
            let mut client = server.client();
            client.send(&command(n));
            client
        })
        .collect()
}

#[track_caller]
fn tokens(clients: &mut [Client]) -> Vec<i64> {
    clients
        .iter_mut()
        .map(|client| token(&client.reply()))
        .collect()
}

#[test]
fn twenty_readers_are_in_together_each_with_a_token_of_its_own() {
    let server = TestServer::start();
    let mut readers = clients(&server, 20, |n| {
        format!("LOCK.ACQUIRE k r{n} {LONG} SHARED")
    });
    let mut tokens = tokens(&mut readers);
    assert_eq!(server.client().hash("k").len(), 41);
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 20);
    let mut client = server.client();
    for (n, reader) in readers.iter_mut().enumerate() {
        assert_eq!(client.call(&format!("HGET k r{n}")), text("1"));
        assert_eq!(reader.call(&format!("LOCK.RELEASE k r{n}")), int(1));
    }
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn a_writer_behind_readers_goes_before_the_readers_behind_it() {
    let server = TestServer::start();
    let mut observer = server.client();
    let mut first = clients(&server, 3, |n| format!("LOCK.ACQUIRE k r{n} {LONG} SHARED"));
    let highest = tokens(&mut first).into_iter().max().unwrap();
    let mut writer = server.client();
    writer.send_and_block(&mut observer, &format!("LOCK.ACQUIRE k w {LONG} BLOCK 0"));
    let mut later = clients(&server, 5, |n| {
        format!("LOCK.ACQUIRE k l{n} {LONG} SHARED BLOCK 0")
    });
    server.await_blocked(6);
    // Not even one that would not wait gets past the writer.
    assert_eq!(observer.call("LOCK.ACQUIRE k newcomer SHARED"), nil());
    for n in 0..3 {
        server.await_blocked(6);
        assert_eq!(observer.call(&format!("LOCK.RELEASE k r{n}")), int(1));
    }
    let written = token(&writer.reply());
    assert!(written > highest);
    server.await_blocked(5);
    assert_eq!(writer.call("LOCK.RELEASE k w"), int(1));
    assert!(tokens(&mut later).into_iter().min().unwrap() > written);
    server.await_blocked(0);
}

#[test]
fn a_writer_that_leaves_the_queue_lets_the_readers_behind_it_in_at_once() {
    let server = TestServer::start();
    let mut observer = server.client();
    observer.call(&format!("LOCK.ACQUIRE k r0 {LONG} SHARED"));
    for way in [
        "kill",
        "unblock",
        "unblock error",
        "time-out",
        "close",
        "kill",
    ] {
        let mut writer = server.client();
        let id = writer.int("CLIENT ID");
        let timeout_ms = if way == "time-out" { 1500 } else { 0 };
        writer.send_and_block(
            &mut observer,
            &format!("LOCK.ACQUIRE k w BLOCK {timeout_ms}"),
        );
        let mut reader = server.client();
        reader.send_and_block(&mut observer, "LOCK.ACQUIRE k r1 SHARED BLOCK 0");
        match way {
            "kill" => observer.call(&format!("CLIENT KILL ID {id}")),
            "unblock" => observer.call(&format!("CLIENT UNBLOCK {id}")),
            "unblock error" => observer.call(&format!("CLIENT UNBLOCK {id} ERROR")),
            "close" => {
                drop(writer);
                nil()
            }
            _ => writer.reply(),
        };
        // Nothing but the leaving tells the module of it.
        token(&reader.reply());
        assert_eq!(reader.call("LOCK.RELEASE k r1"), int(1));
    }
}

#[test]
fn one_release_lets_in_all_who_may_come_in_together_and_no_more() {
    let server = TestServer::start();
    let mut observer = server.client();
    observer.call(&format!("LOCK.ACQUIRE k w {LONG}"));
    let mut waiters = Vec::new();
    for mode in ["SHARED", "LIMIT 3", "SHARED", "SHARED", "LIMIT 2"] {
        let mut client = server.client();
        let n = waiters.len();
        let command = format!("LOCK.ACQUIRE k o{n} {LONG} {mode} BLOCK 0");
        client.send_and_block(&mut observer, &command);
        waiters.push(client);
    }
    assert_eq!(observer.call("LOCK.RELEASE k w"), int(1));
    // The limit of the second is three, whoever else would come in.
    tokens(&mut waiters[..3]);
    server.await_blocked(2);
    assert_eq!(observer.call("LOCK.RELEASE k o1"), int(1));
    tokens(&mut waiters[3..4]);
    server.await_blocked(1);
    for n in [0, 2] {
        server.await_blocked(1);
        assert_eq!(observer.call(&format!("LOCK.RELEASE k o{n}")), int(1));
    }
    tokens(&mut waiters[4..]);
}

#[test]
fn readers_with_different_leases_each_end_on_time() {
    let server = TestServer::start();
    let mut client = server.client();
    for reader in ["a", "b", "c"] {
        client.int(&format!("LOCK.ACQUIRE k {reader} {LONG} SHARED"));
    }
    // Each of these fits in when one more reader has gone.
    let mut waiters = Vec::new();
    for (limit, owner) in [(3, "after a"), (2, "after c"), (1, "after b")] {
        let mut waiter = server.client();
        let (owner, limit) = (owner.as_bytes(), limit.to_string());
        let limit = limit.as_bytes();
        waiter.send_words(&[
            b"LOCK.ACQUIRE",
            b"k",
            owner,
            b"LEASE",
            b"600000",
            b"LIMIT",
            limit,
            b"BLOCK",
            b"0",
        ]);
        waiters.push((waiter, owner));
        server.await_blocked(i64::try_from(waiters.len()).unwrap());
    }
    let start = Instant::now();
    client.send_bytes(
        b"LOCK.RENEW k a LEASE 100\r\nLOCK.RENEW k b LEASE 300\r\nLOCK.RENEW k c LEASE 200\r\n",
    );
    for _ in 0..3 {
        assert_eq!(client.reply(), int(1));
    }
    let ttl = client.int("PTTL k");
    assert!(ttl <= 300, "{ttl}: the key lives as long as the last");
    for ((mut waiter, owner), lease_ms) in waiters.into_iter().zip([100, 200, 300]) {
        token(&waiter.reply());
        let waited = start.elapsed();
        let in_time = waited >= Duration::from_millis(lease_ms) - WHOLE_MS;
        assert!(in_time, "{lease_ms} ms: in after {waited:?}");
        assert_eq!(waiter.words(&[b"LOCK.RELEASE", b"k", owner]), int(1));
    }
}

#[test]
fn a_reader_whose_lease_is_over_holds_nothing_although_others_do() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int(&format!("LOCK.ACQUIRE k alive {LONG} SHARED"));
    let token = client.int("LOCK.ACQUIRE k dead LEASE 20 LIMIT 2");
    eventually("the dead one's permit is over", || {
        client.call("LOCK.RENEW k dead") == int(0) || {
            // The renewal came too early and lasts; end it again.
            client.call("LOCK.RENEW k dead LEASE 1");
            false
        }
    });
    assert_eq!(
        client.call(&format!("LOCK.RELEASE k dead FENCE {token}")),
        nil()
    );
    assert_eq!(client.call("LOCK.RELEASE k dead"), nil());
    assert_eq!(client.call("HGET k dead"), nil());
    assert_eq!(client.call("LOCK.RELEASE k alive"), int(1));
}

#[test]
fn the_sixth_of_five_permits_comes_when_the_first_lease_ends() {
    let server = TestServer::start();
    let (mut client, mut waiter) = (server.client(), server.client());
    for n in 0..5 {
        client.int(&format!("LOCK.ACQUIRE k p{n} {LONG} LIMIT 5"));
    }
    assert_eq!(client.call("LOCK.ACQUIRE k p5 LIMIT 5"), nil());
    waiter.send_and_block(&mut client, "LOCK.ACQUIRE k p5 LIMIT 5 BLOCK 0");
    let start = Instant::now();
    assert_eq!(client.call("LOCK.RENEW k p0 LEASE 100"), int(1));
    token(&waiter.reply());
    let waited = start.elapsed();
    assert!(
        waited >= Duration::from_millis(100) - WHOLE_MS,
        "{waited:?}"
    );
}

#[test]
fn a_changed_limit_is_judged_by_the_stricter() {
    let server = TestServer::start();
    let mut client = server.client();
    for n in 0..3 {
        client.int(&format!("LOCK.ACQUIRE k p{n} LIMIT 5"));
    }
    assert_eq!(client.call("LOCK.ACQUIRE k strict LIMIT 3"), nil());
    client.int("LOCK.ACQUIRE k strict LIMIT 4");
    assert_eq!(client.call("LOCK.ACQUIRE k loose LIMIT 9"), nil());
    assert_eq!(client.call("LOCK.ACQUIRE k loose SHARED"), nil());
    assert_eq!(client.call("LOCK.RELEASE k strict"), int(1));
    client.int("LOCK.ACQUIRE k loose SHARED");
}

#[test]
fn a_limit_of_one_is_an_exclusive_lock() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a LIMIT 1");
    let expected = [
        ("@fence".to_owned(), token.to_string()),
        ("a".to_owned(), "1".to_owned()),
    ];
    assert_eq!(client.hash("k"), expected);
    assert_eq!(client.call("LOCK.ACQUIRE k b SHARED"), nil());
}

#[test]
fn a_writer_reenters_as_a_reader_and_keeps_the_lock_to_itself() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k w");
    for mode in ["SHARED", "LIMIT 7", ""] {
        assert_eq!(
            client.call(format!("LOCK.ACQUIRE k w {mode}").trim()),
            int(token)
        );
    }
    assert_eq!(client.call("LOCK.ACQUIRE k r SHARED"), nil());
    assert_eq!(client.call("LOCK.RELEASE k w HOLD 4"), int(0));
    assert_eq!(client.call("LOCK.RELEASE k w ALL"), int(1));
}

#[test]
fn a_reader_that_asks_to_write_is_refused_at_once_and_keeps_reading() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int("LOCK.ACQUIRE k r SHARED");
    client.int("LOCK.ACQUIRE k p LIMIT 4");
    let before = client.hash("k");
    for command in [
        "LOCK.ACQUIRE k r",
        "LOCK.ACQUIRE k r BLOCK 0",
        "LOCK.ACQUIRE k r LIMIT 1000",
        "LOCK.ACQUIRE k p LIMIT 3",
    ] {
        let error = client.error(command);
        assert!(error.starts_with("UPGRADE "), "{command}: {error}");
    }
    assert_eq!(client.hash("k"), before);
    client.int("LOCK.ACQUIRE k p SHARED");
}

#[test]
fn a_permit_is_reentrant_fenced_and_safe_to_resend() {
    let server = TestServer::start();
    let mut client = server.client();
    let other = client.int(&format!("LOCK.ACQUIRE k other {LONG} SHARED"));
    let token = client.int("LOCK.ACQUIRE k a SHARED HOLD 1");
    assert!(token > other);
    for command in [
        "LOCK.ACQUIRE k a SHARED HOLD 1",
        "LOCK.ACQUIRE k a SHARED HOLD 2",
    ] {
        assert_eq!(client.call(command), int(token));
    }
    assert_eq!(client.call("HGET k a"), text("2"));
    assert_eq!(
        client.call(&format!("LOCK.RELEASE k a FENCE {other}")),
        nil()
    );
    assert_eq!(
        client.call(&format!("LOCK.RENEW k a FENCE {other}")),
        int(0)
    );
    assert_eq!(
        client.call(&format!("LOCK.RENEW k a FENCE {token} LEASE 5000")),
        int(1)
    );
    for _ in 0..2 {
        assert_eq!(client.call("LOCK.RELEASE k a HOLD 2"), int(0));
    }
    for _ in 0..2 {
        assert_eq!(client.call("LOCK.RELEASE k a HOLD 1"), int(1));
    }
    assert_eq!(client.call("HGET k other"), text("1"));
    assert!(client.int("LOCK.ACQUIRE k a SHARED") > token);
}

#[test]
fn foreign_commands_on_a_shared_lock_let_waiters_in_and_strangers_never() {
    let server = TestServer::start();
    let mut client = server.client();
    let hold = |client: &mut Client| {
        client.int(&format!("LOCK.ACQUIRE k r1 {LONG} SHARED"));
        client.int(&format!("LOCK.ACQUIRE k r2 {LONG} SHARED"))
    };
    for free in [
        "DEL k",
        "PEXPIRE k 1",
        "HDEL k r1 r2",
        "RENAME k elsewhere",
        "FLUSHALL",
    ] {
        client.call("FLUSHALL");
        let newest = hold(&mut client);
        let mut waiter = server.client();
        waiter.send_and_block(&mut client, "LOCK.ACQUIRE k w BLOCK 0");
        client.call(free);
        assert!(token(&waiter.reply()) > newest, "{free}");
        assert_eq!(client.hash("k").len(), 2, "{free} leaves nothing behind");
    }
    client.call("FLUSHALL");
    hold(&mut client);
    client.call("HDEL k r1");
    assert_eq!(client.call("LOCK.RELEASE k r1"), nil());
    assert_eq!(client.call("LOCK.RELEASE k r2"), int(1));
    for broken in ["HSET k stranger 1", "HSET k @permit:r1 x", "HSET k r1 x"] {
        client.call("DEL k");
        hold(&mut client);
        client.call(broken);
        let error = client.error("LOCK.ACQUIRE k a SHARED");
        assert!(error.starts_with("NOTALOCK "), "{broken}: {error}");
    }
}

#[test]
fn the_replica_and_the_aof_hold_the_same_permits() {
    let mut server = TestServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let replica = server.replica(false);
    let mut client = server.client();
    for n in 0..5 {
        client.int(&format!("LOCK.ACQUIRE k r{n} {LONG} SHARED"));
    }
    let mut waiter = server.client();
    waiter.send_and_block(
        &mut client,
        &format!("LOCK.ACQUIRE k w {LONG} LIMIT 3 BLOCK 0"),
    );
    client.call("LOCK.RENEW k r3 LEASE 700000");
    client.call("LOCK.ACQUIRE k r4 SHARED");
    for n in 0..3 {
        assert_eq!(client.call(&format!("LOCK.RELEASE k r{n}")), int(1));
    }
    let token = token(&waiter.reply());
    server.assert_same_data(&replica);
    let (stored, end) = (client.hash("k"), client.int("PEXPIRETIME k"));
    drop(replica);
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!(client.hash("k"), stored);
    assert_eq!(client.int("PEXPIRETIME k"), end);
    assert_eq!(client.call("LOCK.ACQUIRE k w LIMIT 3 HOLD 1"), int(token));
    assert_eq!(client.call("LOCK.ACQUIRE k another SHARED"), nil());
}

/// Somebody who knows nothing of locks makes the key end before its permits.
#[test]
fn who_enters_again_keeps_the_lock_after_a_foreign_expiry() {
    for mode in ["SHARED", "LIMIT 3"] {
        for (first_ms, again_ms) in [(60_000, 60_000), (60_000, 20_000), (20_000, 60_000)] {
            let server = TestServer::start();
            let mut client = server.client();
            let first = format!("LOCK.ACQUIRE k a LEASE {first_ms} {mode}");
            let token = client.int(&first);
            assert_eq!(client.int("PEXPIRE k 5000"), 1);
            let again = format!("LOCK.ACQUIRE k a LEASE {again_ms} {mode}");
            assert_eq!(client.int(&again), token);
            let ttl = client.int("PTTL k");
            assert!(
                ttl > again_ms - 10_000,
                "{first}, {again}: ends in {ttl} ms"
            );
        }
    }
}

#[test]
fn the_servers_renewal_keeps_a_permit_after_a_foreign_expiry() {
    for mode in ["SHARED", "LIMIT 3"] {
        let server = TestServer::start();
        let (mut session, mut client) = (server.client(), server.client());
        let token = session.int(&format!("LOCK.ACQUIRE k a LEASE 60000 {mode}"));
        // The lease that is kept up is shorter than the one that it has.
        let bound = format!("LOCK.ACQUIRE k a LEASE 3000 {mode} SESSION");
        assert_eq!(session.int(&bound), token);
        assert_eq!(client.int("PEXPIRE k 2500"), 1);
        let end = client.int("PEXPIRETIME k");
        eventually("the renewal keeps the key", || {
            let now = client.int("PEXPIRETIME k");
            assert!(now > 0, "{mode}: the lock is gone");
            now > end
        });
        assert_eq!(client.call("HGET k @fence"), text(token.to_string()));
    }
}

#[test]
fn a_lock_has_no_more_holders_than_it_may() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("CONFIG SET lock.max-holders 2");
    let refused = client.error("LOCK.ACQUIRE k a LIMIT 3");
    assert_eq!(
        refused,
        "ERR LIMIT is greater than lock.max-holders; ask for less"
    );
    token(&client.call("LOCK.ACQUIRE k a SHARED LEASE 600000"));
    token(&client.call("LOCK.ACQUIRE k b SHARED LEASE 600000"));
    assert_eq!(client.call("LOCK.ACQUIRE k c SHARED"), nil());
    let mut waiter = server.client();
    waiter.send("LOCK.ACQUIRE k c SHARED LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    // Who holds it stays, and nobody comes in while there are as many as may be.
    client.call("CONFIG SET lock.max-holders 1");
    assert_eq!(client.call("LOCK.RENEW k b"), int(1));
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    assert_eq!(server.info("blocked_clients"), 1);
    assert_eq!(client.call("LOCK.RELEASE k b"), int(1));
    token(&waiter.reply());
}
