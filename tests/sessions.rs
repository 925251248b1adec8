//! Locks that end with the connection of their holder.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{
    Client, TestServer, eventually, int, need_files, nil, status, text, token,
};

fn id(client: &mut Client) -> i64 {
    client.int("CLIENT ID")
}

/// Has `next` wait for the lock, and says how long it took from `end` to its grant.
#[track_caller]
fn time_to_next(server: &TestServer, end: impl FnOnce(&mut Client)) -> Duration {
    let (mut observer, mut next) = (server.client(), server.client());
    next.send_and_block(&mut observer, "LOCK.ACQUIRE k next BLOCK 0");
    let start = Instant::now();
    end(&mut observer);
    assert!(matches!(next.reply(), Value::Int(_)));
    let waited = start.elapsed();
    assert_eq!(observer.call("HGET k holder"), nil());
    assert_eq!(next.call("LOCK.RELEASE k next"), int(1));
    eventually("nothing is bound any more", || {
        observer.info("lock_sessions") == 0
    });
    waited
}

#[track_caller]
fn check_prompt(waited: Duration) {
    // The server does it in 5 ms; the rest is for a machine that stalls. The
    // lease is ten minutes, and nothing else would free the lock.
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[test]
fn a_closed_connection_frees_the_lock_with_all_its_holds_at_once() {
    let server = TestServer::start();
    let mut holder = server.client();
    for _ in 0..3 {
        holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    }
    check_prompt(time_to_next(&server, |_| drop(holder)));
}

#[test]
fn client_kill_and_quit_free_the_lock_at_once() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    let id = id(&mut holder);
    check_prompt(time_to_next(&server, |observer| {
        assert_eq!(observer.call(&format!("CLIENT KILL ID {id}")), int(1));
    }));
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    check_prompt(time_to_next(&server, |_| holder.send("QUIT")));
}

#[test]
fn a_process_killed_with_kill_9_frees_the_lock_at_once() {
    let server = TestServer::start();
    let mut process = std::process::Command::new("redis-cli")
        .args(["-p", &server.addr().port().to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut commands = process.stdin.take().unwrap();
    std::io::Write::write_all(
        &mut commands,
        b"LOCK.ACQUIRE k holder LEASE 600000 SESSION\n",
    )
    .unwrap();
    let mut observer = server.client();
    eventually("the lock is held", || observer.int("EXISTS k") == 1);
    check_prompt(time_to_next(&server, |_| process.kill().unwrap()));
    process.wait().unwrap();
}

#[test]
fn a_time_out_of_the_server_frees_the_lock() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    let mut observer = server.client();
    assert_eq!(observer.call("CONFIG SET timeout 1"), status("OK"));
    eventually("the holder was idle for too long", || {
        observer.call("LOCK.ACQUIRE k observer LEASE 1") != nil()
    });
}

#[test]
fn the_lease_is_kept_up_while_the_connection_lives_and_replicas_know() {
    let server = TestServer::start();
    let replica = server.replica(false);
    let mut holder = server.client();
    let token = holder.int("LOCK.ACQUIRE k holder LEASE 3000 SESSION");
    let end = holder.int("PEXPIRETIME k");
    eventually("the lease has been renewed for another lease", || {
        holder.int("PEXPIRETIME k") > end + 3000
    });
    assert_eq!(holder.call("HGET k @fence"), text(token.to_string()));
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    server.assert_same_data(&replica);
    assert_eq!(holder.info("lock_sessions"), 0);
    // Released is released: what was bound is not kept up for the next one.
    holder.int("LOCK.ACQUIRE k other LEASE 100");
    eventually("the next lease ends", || holder.int("EXISTS k") == 0);
}

#[test]
fn a_renewal_sets_the_lease_that_is_kept_up() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    assert_eq!(holder.call("LOCK.RENEW k holder LEASE 3000"), int(1));
    let end = holder.int("PEXPIRETIME k");
    eventually("the short lease is kept up", || {
        holder.int("PEXPIRETIME k") > end + 500
    });
    assert!(holder.int("PTTL k") <= 3000);
}

#[test]
fn nested_holds_of_short_leases_do_not_stop_the_renewals() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder LEASE 3000 SESSION");
    let end = holder.int("PEXPIRETIME k");
    let mut next_at = 2500;
    eventually("the lease is kept up", || {
        let left = holder.int("PTTL k");
        assert!(left > 0, "the lease is over");
        // So seldom that they don't keep the lease up themselves.
        if left < next_at {
            next_at = left - 500;
            holder.int("LOCK.ACQUIRE k holder LEASE 10 SESSION");
            assert_eq!(holder.call("LOCK.RELEASE k holder"), int(0));
        }
        holder.int("PEXPIRETIME k") > end + 1000
    });
}

#[test]
fn another_connection_of_the_owner_takes_the_binding_over() {
    let server = TestServer::start();
    let (mut first, mut second) = (server.client(), server.client());
    let token = first.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION HOLD 1");
    assert_eq!(
        second.call("LOCK.ACQUIRE k holder SESSION HOLD 1"),
        int(token)
    );
    let gone = id(&mut first);
    drop(first);
    let mut observer = server.client();
    eventually("the first connection is gone", || {
        !observer
            .bulk("CLIENT LIST")
            .contains(&format!("id={gone} "))
    });
    assert_eq!(observer.call("LOCK.ACQUIRE k other"), nil());
    assert_eq!(observer.call("HGET k holder"), text("1"));
    check_prompt(time_to_next(&server, |_| drop(second)));
}

#[test]
fn a_waiter_with_a_session_is_bound_from_its_grant_on() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.int("LOCK.ACQUIRE k a SESSION");
    b.send_and_block(
        &mut server.client(),
        "LOCK.ACQUIRE k holder LEASE 600000 BLOCK 0 SESSION",
    );
    drop(a);
    assert!(matches!(b.reply(), Value::Int(_)));
    check_prompt(time_to_next(&server, |_| drop(b)));
}

#[test]
fn a_waiter_with_a_session_and_others_behind_it_is_bound_too() {
    let server = TestServer::start();
    let mut observer = server.client();
    let (mut a, mut b, mut c) = (server.client(), server.client(), server.client());
    a.int("LOCK.ACQUIRE k a LEASE 600000");
    b.send_and_block(
        &mut observer,
        "LOCK.ACQUIRE k b LEASE 600000 BLOCK 0 SESSION",
    );
    c.send_and_block(
        &mut observer,
        "LOCK.ACQUIRE k c LEASE 600000 BLOCK 0 SESSION",
    );
    assert_eq!(a.call("LOCK.RELEASE k a"), int(1));
    assert!(matches!(b.reply(), Value::Int(_)));
    assert_eq!(observer.info("lock_sessions"), 1);
    drop(b);
    assert!(matches!(c.reply(), Value::Int(_)));
    assert_eq!(observer.info("lock_sessions"), 1);
    drop(c);
    eventually("the lock is free", || observer.int("EXISTS k") == 0);
}

#[test]
fn a_hold_that_was_lost_is_not_kept_up_any_more() {
    let server = TestServer::start();
    let (mut observer, mut holder) = (server.client(), server.client());
    for lose in ["DEL k", "FLUSHALL", "LOCK.BREAK k", "PEXPIRE k 0"] {
        holder.int("LOCK.ACQUIRE k holder LEASE 300 SESSION");
        assert_eq!(observer.info("lock_sessions"), 1);
        observer.call(lose);
        // By the next renewal at the latest, although the connection lives.
        eventually(&format!("nothing is bound after {lose}"), || {
            observer.info("lock_sessions") == 0
        });
    }
    assert_eq!(holder.call("LOCK.RENEW k holder"), int(0));
}

#[test]
fn a_broken_lock_is_unbound_at_once() {
    let server = TestServer::start();
    let (mut observer, mut holder) = (server.client(), server.client());
    holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    assert_eq!(observer.call("LOCK.BREAK k"), int(1));
    assert_eq!(observer.info("lock_sessions"), 0);
}

#[test]
fn in_a_transaction_and_over_resp3_it_is_the_same_and_a_script_has_no_session() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HELLO 3");
    client.call("MULTI");
    client.call("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
    client.call("LOCK.ACQUIRE k2 holder LEASE 600000 SESSION SHARED");
    client.call("EXEC");
    let mut other = server.client();
    assert_eq!(other.info("lock_sessions"), 2);
    check_prompt(time_to_next(&server, |_| drop(client)));
    eventually("its other lock is free", || other.int("EXISTS k2") == 0);
    let script: &[&[u8]] = &[
        b"EVAL",
        b"return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'a', 'SESSION')",
        b"1",
        b"k",
    ];
    let Value::ServerError(error) = other.words(script) else {
        panic!("a script was bound");
    };
    assert_eq!(error.code(), "ERR");
    assert_eq!(other.int("EXISTS k"), 0);
}

#[test]
fn what_was_lost_otherwise_is_not_taken_from_its_next_holder() {
    let server = TestServer::start();
    let mut observer = server.client();
    for lose in ["DEL k", "FLUSHALL", "PEXPIRE k 0"] {
        let mut holder = server.client();
        holder.int("LOCK.ACQUIRE k holder LEASE 600000 SESSION");
        observer.call(lose);
        let next = observer.int("LOCK.ACQUIRE k holder LEASE 600000");
        let gone = id(&mut holder);
        drop(holder);
        eventually("the connection is gone and its binding too", || {
            observer.info("lock_sessions") == 0
                && !observer
                    .bulk("CLIENT LIST")
                    .contains(&format!("id={gone} "))
        });
        assert_eq!(
            observer.call("HGET k @fence"),
            text(next.to_string()),
            "{lose}"
        );
        observer.call("DEL k");
    }
}

#[test]
fn the_locks_of_a_session_in_several_databases_are_handed_on_in_theirs() {
    let server = TestServer::start();
    let (mut observer, mut holder) = (server.client(), server.client());
    let mut waiters = Vec::new();
    for (db, owner) in [(3, "three"), (5, "five")] {
        let mut waiter = server.client();
        for client in [&mut holder, &mut waiter] {
            assert_eq!(client.call(&format!("SELECT {db}")), status("OK"));
        }
        holder.int("LOCK.ACQUIRE k holder SESSION LEASE 600000");
        waiter.send(&format!("LOCK.ACQUIRE k {owner} LEASE 600000 BLOCK 0"));
        waiters.push((db, owner, waiter));
    }
    server.await_blocked(2);
    let bound = id(&mut holder);
    assert_eq!(observer.int(&format!("CLIENT KILL ID {bound}")), 1);
    for (db, owner, mut waiter) in waiters {
        let token = token(&waiter.reply());
        let expected = [
            ("@fence".into(), token.to_string()),
            (owner.into(), "1".into()),
        ];
        observer.call(&format!("SELECT {db}"));
        assert_eq!(observer.hash("k"), expected);
    }
    assert_eq!(observer.call("SELECT 0"), status("OK"));
    assert_eq!(observer.int("EXISTS k"), 0);
}

#[test]
fn whoever_sends_nothing_more_is_answered_as_the_holder_that_it_is() {
    let server = TestServer::start();
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    let commands = "LOCK.ACQUIRE k a SESSION\r\nLOCK.RENEW k a\r\nLOCK.RELEASE k a\r\n";
    // It finds them together with the end.
    server.stop();
    stream.write_all(commands.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    server.go_on();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let replies: Vec<&str> = replies.lines().collect();
    assert_eq!(replies[1..], [":1", ":1"], "{replies:?}");
}

#[test]
fn a_replica_that_may_be_written_to_begins_no_session() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let mut there = replica.client();
    there.call("CONFIG SET replica-read-only no");
    let error = there.error("LOCK.ACQUIRE k a SESSION");
    assert!(error.starts_with("READONLY "), "{error}");
    assert_eq!(there.info("lock_sessions"), 0);
    assert_eq!(there.int("EXISTS k"), 0);
}

#[test]
fn a_demoted_server_forgets_its_sessions_and_the_new_primary_lets_the_lease_end() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder LEASE 500 SESSION");
    server.assert_same_data(&replica);
    let mut client = replica.client();
    assert_eq!(client.call("REPLICAOF NO ONE"), status("OK"));
    let port = replica.addr().port();
    let mut demoted = server.client();
    assert_eq!(
        demoted.call(&format!("REPLICAOF 127.0.0.1 {port}")),
        status("OK")
    );
    assert!(matches!(
        client.call("LOCK.ACQUIRE k next BLOCK 0"),
        Value::Int(_)
    ));
    eventually("the demoted one forgets", || {
        demoted.info("lock_sessions") == 0
    });
    drop(holder);
    demoted.call("PING");
    server.assert_sound();
}

#[test]
fn ten_thousand_connections_with_a_lock_each_are_closed_at_once() {
    const CONNECTIONS: usize = 10_000;
    need_files(10_500);
    let server = TestServer::start_with(&["--maxclients", "11000"]);
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
