//! Locks that end with the connection of their holder.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use redis::Value;
use redis_lock_testing::{Client, Play, Server, eventually, need_files};

/// `s` holds `k` by its connection, and its lease is this long.
#[track_caller]
fn bound(lease_ms: u32) -> Play {
    let mut play = Play::start();
    play.run(&format!(
        "s > LOCK.ACQUIRE k s LEASE {lease_ms} SESSION -> S"
    ));
    play
}

/// The lease is ten minutes, and nothing else frees the lock.
#[test]
fn the_end_of_its_connection_frees_the_lock_with_all_its_holds() {
    for end in ["s closes", "o > CLIENT KILL ID $s -> 1", "s > QUIT -> OK"] {
        bound(600_000).run(&format!(
            "s > LOCK.ACQUIRE k s LEASE 600000 SESSION -> S
            next > LOCK.ACQUIRE k next BLOCK 0 -> ..
            {end}
            next < token
            o > HGET k s -> null
            until lock_sessions = 0"
        ));
    }
    bound(600_000).run(
        "o > CONFIG SET timeout 1
        until o > LOCK.ACQUIRE k o LEASE 1 -> token",
    );
}

#[test]
fn the_lease_is_kept_up_while_the_connection_lives_and_replicas_know() {
    let mut play = bound(3000);
    let replica = play.server.replica(false);
    let end = play.client("s").int("PEXPIRETIME k") + 3000;
    play.run(&format!(
        "until s > PEXPIRETIME k -> {end}..
        s > HGET k @fence -> '$S'
        s > LOCK.RELEASE k s -> 1
        lock_sessions = 0"
    ));
    play.assert_same_data(&replica);
    // Released is released: what was bound is not kept up for the next one.
    play.run("s > LOCK.ACQUIRE k other LEASE 100 \n until s > EXISTS k -> 0");
}

#[test]
fn a_hold_lasts_while_one_of_its_connections_lives() {
    bound(600_000).run(
        "second > LOCK.ACQUIRE k s SESSION HOLD 1 -> S
        s closes
        o > LOCK.ACQUIRE k other -> null
        o > HGET k s -> '1'
        next > LOCK.ACQUIRE k next BLOCK 0 -> ..
        second closes
        next < token
        until lock_sessions = 0",
    );
}

#[test]
fn a_waiter_with_a_session_is_bound_from_its_grant_on() {
    bound(600_000).run(
        "b > LOCK.ACQUIRE k b BLOCKED SESSION -> ..
        c > LOCK.ACQUIRE k c BLOCKED SESSION -> ..
        s > LOCK.RELEASE k s -> 1
        b < token
        lock_sessions = 1
        b closes
        c < token
        lock_sessions = 1
        c closes
        until o > EXISTS k -> 0",
    );
}

/// By the next renewal at the latest, although the connection lives.
#[test]
fn a_hold_that_was_lost_is_not_kept_up_any_more() {
    for lose in ["DEL k", "FLUSHALL", "LOCK.BREAK k", "PEXPIRE k 0"] {
        bound(1500).run(&format!(
            "lock_sessions = 1
            o > {lose}
            until lock_sessions = 0
            s > LOCK.RENEW k s -> 0"
        ));
    }
    bound(600_000).run("o > LOCK.BREAK k -> 1\n lock_sessions = 0");
}

#[test]
fn what_was_lost_otherwise_is_not_taken_from_its_next_holder() {
    for lose in ["DEL k", "FLUSHALL", "PEXPIRE k 0"] {
        bound(600_000).run(&format!(
            "o > {lose}
            o > LOCK.ACQUIRE k s LONG -> T
            s closes
            until lock_sessions = 0
            o > HGET k @fence -> '$T'"
        ));
    }
}

#[test]
fn in_a_transaction_and_over_resp3_it_is_the_same_and_a_script_has_no_session() {
    Play::start().run(
        "s > HELLO 3
        s >> LOCK.ACQUIRE k s LONG SESSION | LOCK.ACQUIRE l s LONG SESSION SHARED -> token | token
        lock_sessions = 2
        next > LOCK.ACQUIRE k next BLOCK 0 -> ..
        s closes
        next < token
        until o > EXISTS l -> 0
        o > EVAL \"return redis.pcall('LOCK.ACQUIRE', 'l', 'a', 'SESSION')\" 0 -> !ERR
        o > EXISTS l -> 0",
    );
}

#[test]
fn the_locks_of_a_session_in_several_databases_are_handed_on_in_theirs() {
    Play::start().run(
        "each 3 5: s > SELECT # ; s > LOCK.ACQUIRE k s LONG SESSION
        each 3 5: next# > SELECT # ; next# > LOCK.ACQUIRE k next# BLOCKED -> ..
        o > CLIENT KILL ID $s -> 1
        each 3 5: next# < token ; o > SELECT # ; o > HGETALL k -> ['@fence', _, 'next#', '1']
        o > SELECT 0
        o > EXISTS k -> 0",
    );
}

#[test]
fn whoever_sends_nothing_more_is_answered_as_the_holder_that_it_is() {
    let server = Server::start();
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    let commands = "LOCK.ACQUIRE k a SESSION\r\nLOCK.RENEW k a\r\nLOCK.RELEASE k a\r\n";
    // It finds them together with the end.
    server.stop().unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    server.go_on().unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let replies: Vec<&str> = replies.lines().collect();
    assert_eq!(replies[1..], [":1", ":1"], "{replies:?}");
}

#[test]
fn a_demoted_server_forgets_its_sessions_and_the_new_primary_lets_the_lease_end() {
    let mut play = bound(500).with_replica();
    play.run("in step");
    play.run(
        "new at r
        new > REPLICAOF NO ONE -> OK
        o > REPLICAOF 127.0.0.1 $r -> OK
        new > LOCK.ACQUIRE k next BLOCK 0 -> token
        until lock_sessions = 0
        s closes
        o > PING -> PONG",
    );
    play.run("sound");
}

#[test]
fn ten_thousand_connections_with_a_lock_each_are_closed_at_once() {
    const CONNECTIONS: usize = 10_000;
    need_files(10_500);
    let server = Server::start_with(&["--maxclients", "11000"]);
    let mut observer = server.client();
    let round = |observer: &mut Client| {
        let mut holders: Vec<Client> = (0..CONNECTIONS)
            .map(|n| {
                let mut client = server.client();
                client.send(&format!("LOCK.ACQUIRE k{n} holder LEASE 600000 SESSION"));
                client
            })
            .collect();
        for holder in &mut holders {
            assert!(matches!(holder.reply(), Value::Int(_)));
        }
        let sessions = i64::try_from(CONNECTIONS).unwrap();
        assert_eq!(observer.info("lock_sessions"), sessions);
        drop(holders);
        eventually("all locks are free", || observer.int("DBSIZE") == 0);
        assert_eq!(observer.info("lock_sessions"), 0);
        eventually("all connections are closed", || {
            observer.info("connected_clients") == 1
        });
    };
    // The first round has the server make tables that it keeps.
    round(&mut observer);
    // Its tables shrink, and its clock's ticks free buffers, for a second or so.
    std::thread::sleep(Duration::from_secs(2));
    let before = observer.used_memory();
    round(&mut observer);
    // The observer's own buffers come and go; seven bytes a session would show.
    observer.assert_memory_back(before + 65_536);
}
