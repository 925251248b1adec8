//! What breaks around a lock: holders, servers, connections, clocks.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::Value;
use redis_lock_testing::{
    Client, Clock, Fate, Int, LONG, Nil, Play, Proxy, Server, Signal, signal,
};

#[test]
fn a_dead_holder_is_replaced_when_its_lease_ends() {
    Play::held().run(
        "h > LOCK.ACQUIRE k h LONG -> H
        w > LOCK.ACQUIRE k w BLOCK 0 -> ..
        h > LOCK.RENEW k h LEASE 300 -> 1
        h drops
        w < token
        w > HGET k h -> null",
    );
}

#[test]
fn a_holder_stopped_past_its_lease_is_refused_when_it_wakes() {
    let server = Server::start();
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
    let stored = next.call("HGETALL k");
    signal(holder.id(), Signal::CONT).unwrap();
    assert_eq!(reply(), "0");
    assert_eq!(reply(), "");
    assert_eq!(next.call("HGETALL k"), stored);
    drop(commands);
    holder.wait().unwrap();
}

#[test]
fn a_server_stopped_past_a_lease_refuses_the_late_renewal() {
    // Long enough for the stop to come before its end.
    let mut play = Play::held();
    play.run(
        "w > LOCK.ACQUIRE k w BLOCK 0 -> ..
        h > LOCK.RENEW k h LEASE 2000 -> 1
        server stops
        h sends LOCK.RENEW k h LEASE 60000 | LOCK.RELEASE k h",
    );
    std::thread::sleep(Duration::from_millis(2010));
    play.run("server goes on \n h < 0 \n h < null \n w < token");
}

/// A client that neither reads nor closes looks to the server like one behind a network
/// that swallows everything.
#[test]
fn a_waiter_that_does_not_read_holds_the_lock_for_its_lease() {
    Play::held().run(
        "stalled > LOCK.ACQUIRE k stalled LEASE 100 BLOCK 0 -> ..
        next > LOCK.ACQUIRE k next BLOCK 0 -> ..
        h > LOCK.RELEASE k h -> 1
        next < token
        stalled < token
        stalled > LOCK.RELEASE k stalled -> null",
    );
}

#[test]
fn a_holder_behind_a_silent_network_is_replaced() {
    let server = Server::start();
    let network = Proxy::to(server.addr()).unwrap();
    let mut holder = Client::open(network.addr()).unwrap();
    let (mut waiter, mut observer) = (server.client(), server.client());
    let old = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    waiter.send(&format!("LOCK.ACQUIRE k waiter {LONG} BLOCK 0"));
    server.await_info("blocked_clients", 1);
    // Its last renewal gets through, the next ones and its release do not.
    assert_eq!(holder.call("LOCK.RENEW k holder LEASE 100"), Int(1));
    let connected = observer.info("connected_clients");
    network.set(Fate::Swallowed);
    holder.send(&format!("LOCK.RENEW k holder {LONG}"));
    holder.send("LOCK.RELEASE k holder");
    drop(holder);
    assert!(waiter.reply_int() > old);
    // The server does not know that the holder is gone.
    assert_eq!(observer.info("connected_clients"), connected);
    assert_eq!(observer.call("HGET k holder"), Nil);
}

#[test]
fn a_reply_that_was_lost_comes_again_when_asked_again() {
    Play::held().run(
        "lost > LOCK.ACQUIRE k a HOLD 1 BLOCK 0 -> ..
        h > LOCK.RELEASE k h -> 1
        until blocked_clients = 0
        lost drops
        again > LOCK.ACQUIRE k a HOLD 1 BLOCK 0 -> A
        again > HGET k @fence -> '$A'
        again > HGET k a -> '1'
        again > LOCK.RELEASE k a HOLD 1 -> 1
        again > LOCK.RELEASE k a HOLD 1 -> 1",
    );
}

/// What came after the snapshot is lost, its tokens are not issued again.
#[test]
fn a_crash_after_a_save_keeps_the_lock() {
    Play::held().run(
        "h > LOCK.ACQUIRE k h LONG -> H
        h > LOCK.ACQUIRE shared a LONG SHARED -> A
        h > LOCK.ACQUIRE shared b LONG SHARED -> B
        h > PEXPIRETIME k -> :end
        h > DEBUG DIGEST -> :digest
        h > SAVE -> OK
        h > LOCK.ACQUIRE lost a -> L
        crash
        h > DEBUG DIGEST -> $digest
        h > PEXPIRETIME k -> $end
        h > LOCK.ACQUIRE k b -> null
        h > LOCK.ACQUIRE shared b SHARED HOLD 1 -> B
        h > LOCK.ACQUIRE k h HOLD 2 -> H
        h > LOCK.RELEASE k h ALL -> 1
        h > LOCK.ACQUIRE k b -> T",
    );
}

#[test]
fn a_lease_that_ends_while_the_server_is_down_is_over() {
    let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    // Long enough for the crash to come before its end.
    Play::on(server).run(
        "o > LOCK.ACQUIRE k a LONG -> A
        o > LOCK.RENEW k a LEASE 1500 -> 1
        o > LOCK.ACQUIRE k b -> null
        crash for 1510
        o > LOCK.RENEW k a -> 0
        o > LOCK.ACQUIRE k b -> B",
    );
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
    let mut play = Play::on(clock.server()).and_held();
    clock.set_ahead(7200);
    play.run(
        "w > LOCK.ACQUIRE k w LONG -> W
        h > LOCK.RENEW k h -> 0
        h > LOCK.RELEASE k h -> null",
    );
    // Back again, the waiter's lease is longer than it asked for, and counts.
    clock.set_ahead(0);
    play.run(
        "h > LOCK.ACQUIRE k h -> null
        w > LOCK.RENEW k w FENCE $W -> 1
        h > PTTL k -> 1..30000
        h > LOCK.ACQUIRE k h BLOCK 0 -> ..
        w > LOCK.RELEASE k w -> 1
        h < T",
    );
    play.run("sound");
}

/// The clock ends no lease. The connection's end does, and nothing that became of the
/// session takes the lock from the next one.
#[test]
fn a_session_outlives_steps_of_the_clock_that_its_lease_outlives() {
    let clock = Clock::new();
    let mut play = Play::on(clock.server());
    for (nth, ahead) in [-3600, -60, -3600].into_iter().enumerate() {
        play.run(&format!(
            "s > LOCK.ACQUIRE k s LEASE 7200000 SESSION -> S{nth}
            w > LOCK.ACQUIRE k w LEASE 7200000 BLOCK 0 -> .."
        ));
        clock.set_ahead(ahead);
        play.run(&format!(
            "s > LOCK.RENEW k s LEASE 7200000 -> 1
            o > LOCK.ACQUIRE k stranger -> null
            s closes
            w < W{nth}
            o > HGET k s -> null
            until lock_sessions = 0
            o > HGET k w -> '1'
            w > LOCK.RELEASE k w -> 1"
        ));
    }
    play.run("sound");
}
