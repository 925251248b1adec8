//! What breaks around a lock: holders, servers, connections, clocks.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::Value;
use redis_lock_testing::{
    Client, Clock, Fate, LONG, Proxy, Signal, TestServer, eventually, int, nil, signal, status,
    text, token,
};

#[test]
fn a_dead_holder_is_replaced_when_its_lease_ends() {
    let server = TestServer::start();
    let (mut dead, mut waiter) = (server.client(), server.client());
    for _ in 0..3 {
        dead.call(&format!("LOCK.ACQUIRE k dead {LONG}"));
    }
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    dead.call("LOCK.RENEW k dead LEASE 300");
    drop(dead);
    token(&waiter.reply());
    assert_eq!(waiter.call("HGET k dead"), nil());
}

#[test]
fn a_holder_stopped_past_its_lease_is_refused_when_it_wakes() {
    let server = TestServer::start();
    let mut next = server.client();
    let mut holder = Command::new("redis-cli")
        .args(["-p", &server.addr().port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = holder.stdin.take().unwrap();
    let mut replies = BufReader::new(holder.stdout.take().unwrap()).lines();
    let mut reply = || replies.next().unwrap().unwrap();
    writeln!(commands, "LOCK.ACQUIRE k holder LEASE 200").unwrap();
    let token: i64 = reply().parse().unwrap();
    signal(holder.id(), Signal::STOP).unwrap();
    writeln!(commands, "LOCK.RENEW k holder\nLOCK.RELEASE k holder").unwrap();
    assert!(next.int(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0")) > token);
    let stored = next.hash("k");
    signal(holder.id(), Signal::CONT).unwrap();
    assert_eq!(reply(), "0");
    assert_eq!(reply(), "");
    assert_eq!(next.hash("k"), stored);
    drop(commands);
    holder.wait().unwrap();
}

#[test]
fn a_server_stopped_past_a_lease_refuses_the_late_renewal() {
    let server = TestServer::start();
    let (mut holder, mut waiter) = (server.client(), server.client());
    holder.call(&format!("LOCK.ACQUIRE k holder {LONG}"));
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    // Long enough for the stop to come before its end.
    holder.call("LOCK.RENEW k holder LEASE 2000");
    server.stop();
    holder.send("LOCK.RENEW k holder LEASE 60000");
    holder.send("LOCK.RELEASE k holder");
    std::thread::sleep(Duration::from_millis(2010));
    server.go_on();
    assert_eq!(holder.reply(), int(0));
    assert_eq!(holder.reply(), nil());
    token(&waiter.reply());
}

#[test]
fn a_waiter_that_does_not_read_holds_the_lock_for_its_lease() {
    let server = TestServer::start();
    // A client that neither reads nor closes looks to the server like one
    // behind a network that swallows everything.
    let (mut holder, mut stalled, mut next) = (server.client(), server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder");
    stalled.send("LOCK.ACQUIRE k stalled LEASE 100 BLOCK 0");
    server.await_blocked(1);
    next.send("LOCK.ACQUIRE k next BLOCK 0");
    server.await_blocked(2);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    let token = token(&next.reply());
    assert!(matches!(stalled.reply(), Value::Int(older) if older < token));
    assert_eq!(stalled.call("LOCK.RELEASE k stalled"), nil());
}

#[test]
fn a_holder_behind_a_silent_network_is_replaced() {
    let server = TestServer::start();
    let network = Proxy::to(server.addr()).unwrap();
    let mut holder = Client::try_connect(network.addr()).unwrap();
    let (mut waiter, mut observer) = (server.client(), server.client());
    let old = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    waiter.send_and_block(
        &mut observer,
        &format!("LOCK.ACQUIRE k waiter {LONG} BLOCK 0"),
    );
    // Its last renewal gets through, the next ones and its release do not.
    assert_eq!(holder.call("LOCK.RENEW k holder LEASE 100"), int(1));
    let connected = observer.info("connected_clients");
    network.set(Fate::Swallowed);
    holder.send(&format!("LOCK.RENEW k holder {LONG}"));
    holder.send("LOCK.RELEASE k holder");
    drop(holder);
    assert!(token(&waiter.reply()) > old);
    // The server does not know that the holder is gone.
    assert_eq!(observer.info("connected_clients"), connected);
    assert_eq!(observer.call("HGET k holder"), nil());
}

#[test]
fn a_reply_that_was_lost_comes_again_when_asked_again() {
    let server = TestServer::start();
    let (mut holder, mut lost, mut resent) = (server.client(), server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder");
    lost.send("LOCK.ACQUIRE k owner HOLD 1 BLOCK 0");
    server.await_blocked(1);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    server.await_blocked(0);
    drop(lost);
    let token = resent.int("LOCK.ACQUIRE k owner HOLD 1 BLOCK 0");
    assert_eq!(resent.bulk("HGET k @fence"), token.to_string());
    assert_eq!(resent.bulk("HGET k owner"), "1");
    assert_eq!(resent.call("LOCK.RELEASE k owner HOLD 1"), int(1));
    assert_eq!(resent.call("LOCK.RELEASE k owner HOLD 1"), int(1));
}

/// What must be the same after a restart: the fields, and the end of the lease.
fn stored(client: &mut Client) -> (Vec<(String, String)>, i64) {
    (client.hash("k"), client.int("PEXPIRETIME k"))
}

#[test]
fn a_crash_after_a_rewrite_of_the_aof_keeps_the_lock() {
    let mut server = TestServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.client();
    let token = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    client.call("BGREWRITEAOF");
    eventually("the AOF is rewritten", || {
        client.info("aof_rewrite_scheduled") == 0 && client.info("aof_rewrite_in_progress") == 0
    });
    assert!(
        server
            .log()
            .contains("Background AOF rewrite finished successfully")
    );
    client.call("LOCK.ACQUIRE k a");
    let before = stored(&mut client);
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!(stored(&mut client), before);
    assert_eq!(client.call("LOCK.ACQUIRE k a HOLD 2"), int(token));
}

#[test]
fn a_crash_after_a_save_keeps_the_lock() {
    let mut server = TestServer::start();
    let mut client = server.client();
    let token = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    client.call(&format!("LOCK.ACQUIRE k a {LONG}"));
    client.int(&format!("LOCK.ACQUIRE shared a {LONG} SHARED"));
    let permit = client.int(&format!("LOCK.ACQUIRE shared b {LONG} SHARED"));
    let before = (stored(&mut client), client.hash("shared"));
    assert_eq!(client.call("SAVE"), status("OK"));
    // What came after the snapshot is lost, its tokens are not issued again.
    let lost = client.int("LOCK.ACQUIRE lost a");
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!((stored(&mut client), client.hash("shared")), before);
    assert_eq!(client.call("EXISTS lost"), int(0));
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
    assert_eq!(
        client.call("LOCK.ACQUIRE shared b SHARED HOLD 1"),
        int(permit)
    );
    assert_eq!(client.call("LOCK.ACQUIRE k a HOLD 2"), int(token));
    assert_eq!(client.call("LOCK.RELEASE k a ALL"), int(1));
    assert!(client.int("LOCK.ACQUIRE k b") > lost);
}

#[test]
fn a_lease_that_ends_while_the_server_is_down_is_over() {
    let mut server = TestServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.client();
    let token = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    // Long enough for the crash to come before its end.
    assert_eq!(client.call("LOCK.RENEW k a LEASE 1500"), int(1));
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
    server.crash();
    std::thread::sleep(Duration::from_millis(1510));
    server.restart();
    let mut client = server.client();
    assert_eq!(client.call("LOCK.RENEW k a"), int(0));
    assert!(client.int("LOCK.ACQUIRE k b") > token);
}

/// The server's wall clock in seconds.
fn time(client: &mut Client) -> i64 {
    match client.call("TIME") {
        Value::Array(words) => match &words[0] {
            Value::BulkString(seconds) => String::from_utf8_lossy(seconds).parse().unwrap(),
            other => panic!("{other:?} is no time"),
        },
        other => panic!("{other:?} is no time"),
    }
}

#[test]
fn tokens_rise_although_the_clock_is_set_back_and_forth() {
    let clock = Clock::new();
    let server = clock.server();
    let mut client = server.client();
    let begin = time(&mut client);
    let mut last = 0;
    for ahead in [0, -3600, 7200, -86400, 0] {
        clock.set_ahead(ahead);
        let off = time(&mut client) - begin - ahead;
        assert!((0..600).contains(&off), "the server's clock is {off} s off");
        for owner in ["a", "b"] {
            let token = client.int(&format!("LOCK.ACQUIRE {owner} {owner}"));
            assert!(token > last, "{ahead}: {token} after {last}");
            last = token;
            client.call(&format!("LOCK.RELEASE {owner} {owner}"));
        }
    }
    server.assert_sound();
}

#[test]
fn a_clock_set_forward_ends_a_lease_of_which_nothing_is_known() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut holder, mut waiter) = (server.client(), server.client());
    let old = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    clock.set_ahead(7200);
    let new = waiter.int(&format!("LOCK.ACQUIRE k waiter {LONG}"));
    assert!(new > old);
    assert_eq!(holder.call("LOCK.RENEW k holder"), int(0));
    assert_eq!(holder.call("LOCK.RELEASE k holder"), nil());
    // Back again, the waiter's lease is longer than it asked for, and counts.
    clock.set_ahead(0);
    assert_eq!(holder.call("LOCK.ACQUIRE k holder"), nil());
    assert_eq!(
        waiter.call(&format!("LOCK.RENEW k waiter FENCE {new}")),
        int(1)
    );
    assert!(holder.int("PTTL k") <= 30_000);
    holder.send_and_block(&mut server.client(), "LOCK.ACQUIRE k holder BLOCK 0");
    assert_eq!(waiter.call("LOCK.RELEASE k waiter"), int(1));
    assert!(token(&holder.reply()) > new);
    server.assert_sound();
}

#[test]
fn a_clock_set_back_loses_no_waiter() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut holder, mut waiter) = (server.client(), server.client());
    let mut observer = server.client();
    let old = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    waiter.send_and_block(&mut observer, "LOCK.ACQUIRE k waiter LEASE 100 BLOCK 0");
    clock.set_ahead(-3600);
    assert_eq!(observer.call("LOCK.ACQUIRE k stranger"), nil());
    let mut last = server.client();
    last.send_and_block(&mut observer, "LOCK.ACQUIRE k last BLOCK 0");
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    let second = token(&waiter.reply());
    assert!(second > old);
    // A lease that begins by the new clock ends by it.
    assert!(token(&last.reply()) > second);
    server.assert_sound();
}

#[test]
fn a_session_outlives_steps_of_the_clock_that_its_lease_outlives() {
    let clock = Clock::new();
    let server = clock.server();
    let mut observer = server.client();
    let mut last = 0;
    for ahead in [-3600, -60, -3600] {
        let mut holder = server.client();
        let acquire = "LOCK.ACQUIRE k holder LEASE 7200000 SESSION";
        let fence = holder.int(acquire);
        assert!(fence > last);
        let mut waiter = server.client();
        waiter.send_and_block(&mut observer, "LOCK.ACQUIRE k waiter LEASE 7200000 BLOCK 0");
        clock.set_ahead(ahead);
        // The clock ends no lease. The connection's end does.
        assert_eq!(holder.call("LOCK.RENEW k holder LEASE 7200000"), int(1));
        assert_eq!(observer.call("LOCK.ACQUIRE k stranger"), nil());
        drop(holder);
        last = token(&waiter.reply());
        assert!(last > fence, "{ahead}");
        assert_eq!(observer.call("HGET k holder"), nil());
        eventually("nothing is bound", || observer.info("lock_sessions") == 0);
        // Nothing that became of the session takes the lock from the next one.
        assert_eq!(observer.call("HGET k waiter"), text("1"));
        assert_eq!(waiter.call("LOCK.RELEASE k waiter"), int(1));
    }
    server.assert_sound();
}
