//! What breaks around a lock: holders, servers, connections, clocks.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use redis::Value;
use redis_lock_testing::{TestServer, int, nil, status};

#[test]
fn a_holder_that_died_is_replaced_at_the_end_of_its_lease_with_all_its_holds() {
    let server = TestServer::start();
    let (mut dead, mut waiter) = (server.client(), server.client());
    for _ in 0..3 {
        dead.call("LOCK.ACQUIRE k dead LEASE 300");
    }
    drop(dead);
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    assert!(matches!(waiter.reply(), Value::Int(_)));
    assert_eq!(waiter.call("HGET k dead"), nil());
}

#[test]
fn a_holder_stopped_past_its_lease_is_replaced_and_refused_when_it_wakes() {
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
    let signal = |name: &str| {
        let pid = holder.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.unwrap().success());
    };
    signal("STOP");
    writeln!(commands, "LOCK.RENEW k holder\nLOCK.RELEASE k holder").unwrap();
    assert!(next.int("LOCK.ACQUIRE k next BLOCK 0") > token);
    let stored = next.hash("k");
    signal("CONT");
    assert_eq!(reply(), "0");
    assert_eq!(reply(), "");
    assert_eq!(next.hash("k"), stored);
    drop(commands);
    holder.wait().unwrap();
}

#[test]
fn a_server_stopped_past_a_lease_refuses_the_renewal_that_waited_and_hands_on() {
    let server = TestServer::start();
    let (mut holder, mut waiter) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder LEASE 200");
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    server.signal("STOP");
    holder.send("LOCK.RENEW k holder LEASE 60000");
    holder.send("LOCK.RELEASE k holder");
    std::thread::sleep(Duration::from_millis(300));
    server.signal("CONT");
    assert_eq!(holder.reply(), int(0));
    assert_eq!(holder.reply(), nil());
    assert!(matches!(waiter.reply(), Value::Int(_)));
}

#[test]
fn a_waiter_whose_connection_stalls_is_granted_the_lock_until_its_lease_ends() {
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
    let Value::Int(token) = next.reply() else {
        panic!("the next was not granted the lock");
    };
    assert!(matches!(stalled.reply(), Value::Int(older) if older < token));
    assert_eq!(stalled.call("LOCK.RELEASE k stalled"), nil());
}

#[test]
fn a_reply_lost_after_the_grant_comes_again_when_the_request_is_resent() {
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

#[test]
fn a_crash_after_a_rewrite_of_the_aof_keeps_the_lock() {
    let mut server = TestServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a LEASE 600000");
    client.call("BGREWRITEAOF");
    redis_lock_testing::eventually("the AOF is rewritten", || {
        client.info("aof_rewrite_in_progress") == 0
    });
    client.call("LOCK.ACQUIRE k a");
    let (stored, end) = (client.hash("k"), client.int("PEXPIRETIME k"));
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!(client.hash("k"), stored);
    assert_eq!(client.int("PEXPIRETIME k"), end);
    assert_eq!(client.call("LOCK.ACQUIRE k a HOLD 2"), int(token));
}

#[test]
fn a_lease_that_ends_while_the_server_is_down_is_over_when_it_is_back() {
    let mut server = TestServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a LEASE 100");
    std::thread::sleep(Duration::from_millis(110));
    server.crash_and_restart();
    let mut client = server.client();
    assert_eq!(client.call("LOCK.RENEW k a"), int(0));
    assert!(client.int("LOCK.ACQUIRE k b") > token);
}

#[test]
fn tokens_rise_although_the_clock_is_set_back_and_forth() {
    let library = match faketime_library() {
        Ok(library) => library,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |offset: &str| std::fs::write(&clock, offset).unwrap();
    set("+0");
    let server = TestServer::start_in_environment(&[
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]);
    let mut client = server.client();
    let mut last = 0;
    for offset in ["+0", "-3600", "+7200", "-86400", "+0"] {
        set(offset);
        for owner in ["a", "b"] {
            let token = client.int(&format!("LOCK.ACQUIRE {owner} {owner}"));
            assert!(token > last, "{offset}: {token} after {last}");
            last = token;
            client.call(&format!("LOCK.RELEASE {owner} {owner}"));
        }
    }
    assert_eq!(client.call("PING"), status("PONG"));
}

fn faketime_library() -> Result<PathBuf, &'static str> {
    let library = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib",
    ]
    .iter()
    .map(|folder| PathBuf::from(folder).join("faketime/libfaketime.so.1"))
    .find(|library| library.exists())
    .ok_or("libfaketime is not installed (Debian: apt-get install libfaketime)")?;
    let mut trial = Command::new(redis_lock_testing::binary())
        .arg("--version")
        .env("LD_PRELOAD", &library)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut complaint = [0; 11];
    let complains = trial
        .stderr
        .take()
        .unwrap()
        .read_exact(&mut complaint)
        .is_ok();
    let _ = trial.kill();
    let _ = trial.wait();
    // Debian's servers load jemalloc as a library of its own, which asks for
    // the time before libfaketime is ready.
    if complains && complaint == *b"libfaketime" {
        return Err("libfaketime can't be loaded into this server");
    }
    Ok(library)
}
