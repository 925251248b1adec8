//! A primary that steps down, a replica that takes over, and everything else
//! that makes a whole server pause, reload or end while clients wait for locks.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{await_replicas, await_role};
use redis_lock_testing::{
    Client, LONG, NO_REGULAR_LOOKS, TestServer, eventually, int, module, nil, status, text, token,
};

/// A replica that its primary, too, knows to be in step.
fn replica_of(primary: &TestServer) -> TestServer {
    let replica = primary.replica(true);
    await_replicas(&mut primary.client(), 1);
    replica
}

/// Clients that wait, one after another, for a lock that is held.
fn waiters(server: &TestServer, key: &str, count: usize) -> Vec<Client> {
    let before = server.info("blocked_clients");
    (0..count)
        .map(|i| {
            let mut waiter = server.client();
            waiter.send(&format!("LOCK.ACQUIRE {key} waiter{i} {LONG} BLOCK 0"));
            server.await_blocked(before + i64::try_from(i).unwrap() + 1);
            waiter
        })
        .collect()
}

fn follow(server: &TestServer, primary: &TestServer) {
    let port = primary.addr().port();
    let mut client = server.client();
    assert_eq!(
        client.call(&format!("REPLICAOF 127.0.0.1 {port}")),
        status("OK")
    );
}

fn await_link(replica: &TestServer) {
    let mut client = replica.client();
    eventually("the replica is connected", || {
        client
            .bulk("INFO replication")
            .contains("master_link_status:up")
    });
}

/// Nothing may be granted during this time. It is the absence of an event that
/// is observed, so there is nothing to poll for.
fn let_pass(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[test]
fn on_demotion_every_waiter_hears_of_it_and_none_is_granted() {
    let (old, new) = (TestServer::start(), TestServer::start());
    let mut holder = old.client();
    holder.call(&format!("LOCK.ACQUIRE a holder {LONG}"));
    holder.call(&format!("LOCK.ACQUIRE b holder {LONG}"));
    let mut line = waiters(&old, "a", 3);
    line.extend(waiters(&old, "b", 3));
    new.client().call(&format!("LOCK.ACQUIRE a other {LONG}"));
    let port = new.addr().port();
    // In one turn of the event loop.
    let steps = format!("LOCK.RENEW a holder LEASE 500\r\nREPLICAOF 127.0.0.1 {port}\r\n");
    holder.send_bytes(steps.as_bytes());
    assert_eq!([holder.reply(), holder.reply()], [int(1), status("OK")]);
    for waiter in &mut line {
        assert!(waiter.reply_error().starts_with("UNBLOCKED "));
    }
    await_link(&old);
    assert!(
        holder
            .error("LOCK.RELEASE b holder")
            .starts_with("READONLY ")
    );
    // Both leases end while the node is a replica, the one that it had and the
    // one that it got.
    assert_eq!(new.client().call("LOCK.RENEW a other LEASE 500"), int(1));
    let_pass(1000);
    assert_eq!(old.info("blocked_clients"), 0);
    new.assert_same_data(&old);
    assert_eq!(old.client().call("KEYS *"), Value::Array(Vec::new()));
    let mut client = new.client();
    token(&client.call("LOCK.ACQUIRE a waiter0 LEASE 600000"));
    old.assert_sound();
    new.assert_same_data(&old);
}

#[test]
fn a_demoted_node_that_is_promoted_again_serves_new_waiters() {
    let (old, new) = (TestServer::start(), TestServer::start());
    let mut holder = old.client();
    holder.call(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut line = waiters(&old, "k", 2);
    follow(&old, &new);
    for waiter in &mut line {
        assert!(waiter.reply_error().starts_with("UNBLOCKED "));
    }
    await_link(&old);
    old.client().call("REPLICAOF NO ONE");
    let first = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut line = waiters(&old, "k", 1);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    assert!(token(&line[0].reply()) > first);
}

#[test]
fn what_ended_just_before_a_demotion_is_not_undone_after_it() {
    let old = TestServer::start();
    let new = replica_of(&old);
    let mut holder = old.client();
    let fence = holder.int(&format!("LOCK.ACQUIRE k holder {LONG} SESSION"));
    let id = holder.int("CLIENT ID");
    old.assert_same_data(&new);
    assert_eq!(new.client().call("REPLICAOF NO ONE"), status("OK"));
    // In one turn of the event loop: the connection ends, and the server is a
    // replica before it can give the lock back.
    let mut client = old.client();
    let port = new.addr().port();
    let steps = format!("CLIENT KILL ID {id}\r\nREPLICAOF 127.0.0.1 {port}\r\n");
    client.send_bytes(steps.as_bytes());
    assert_eq!([client.reply(), client.reply()], [int(1), status("OK")]);
    await_link(&old);
    // On the new primary the owner has it still, and confirms that.
    let confirm = format!("LOCK.ACQUIRE k holder {LONG} HOLD 1");
    assert_eq!(new.client().call(&confirm), int(fence));
    new.assert_same_data(&old);
    // Promoted again, the old one does not remember what it was about to do.
    let_pass(100);
    assert_eq!(client.call("REPLICAOF NO ONE"), status("OK"));
    let_pass(300);
    assert_eq!(client.call("HGET k holder"), text("1"));
    assert_eq!(client.info("lock_releases_session"), 0);
    assert_eq!(client.call(&confirm), int(fence));
}

#[test]
fn a_promoted_replica_keeps_the_locks_and_hands_them_on() {
    let primary = TestServer::start();
    let replica = replica_of(&primary);
    let mut holder = primary.client();
    let mut newest = 0;
    for key in ["kept", "released"] {
        newest = holder.int(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
        holder.call(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
    }
    newest = newest.max(holder.int(&format!("LOCK.ACQUIRE short holder {LONG}")));
    primary.assert_same_data(&replica);
    let stored = holder.hash("kept");

    let mut holder = replica.client();
    assert_eq!(holder.call("REPLICAOF NO ONE"), status("OK"));
    await_role(&mut replica.client(), "master");
    let mut line = waiters(&replica, "short", 1);
    line.extend(waiters(&replica, "released", 1));
    assert_eq!(holder.hash("kept"), stored);
    assert_eq!(holder.call("LOCK.ACQUIRE kept other"), nil());
    let kept = holder.bulk("HGET kept @fence");
    assert_eq!(
        holder.int("LOCK.ACQUIRE kept holder HOLD 3").to_string(),
        kept
    );
    assert_eq!(holder.call("LOCK.RELEASE released holder ALL"), int(1));
    assert_eq!(holder.call("LOCK.RENEW short holder LEASE 300"), int(1));
    for waiter in line.iter_mut().rev() {
        let fence = token(&waiter.reply());
        assert!(fence > newest, "{fence} does not outrank {newest}");
        newest = fence;
    }
    assert_eq!(holder.call("LOCK.RELEASE short holder"), nil());
    replica.assert_sound();
}

#[test]
fn a_replica_grants_nothing_when_a_lease_ends() {
    let primary = TestServer::start();
    let replica = replica_of(&primary);
    let mut holder = primary.client();
    holder.call(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut waiter = waiters(&primary, "k", 1).remove(0);
    primary.assert_same_data(&replica);
    let mut there = replica.client();
    assert!(
        there
            .error("LOCK.ACQUIRE k other BLOCK 0")
            .starts_with("READONLY ")
    );
    assert_eq!(holder.call("LOCK.RENEW k holder LEASE 300"), int(1));
    let first = token(&waiter.reply());
    primary.assert_same_data(&replica);
    assert_eq!(
        there.hash("k"),
        [
            ("@fence".into(), first.to_string()),
            ("waiter0".into(), "1".into())
        ]
    );
}

#[test]
fn failover_unblocks_the_waiters_and_keeps_the_locks() {
    let primary = TestServer::start();
    let replica = replica_of(&primary);
    let mut holder = primary.client();
    holder.call(&format!("LOCK.ACQUIRE short holder {LONG}"));
    let fence = holder.int(&format!("LOCK.ACQUIRE long holder {LONG}"));
    let mut line = waiters(&primary, "short", 2);
    line.extend(waiters(&primary, "long", 2));
    holder.send_bytes(b"LOCK.RENEW short holder LEASE 1000\r\nFAILOVER\r\n");
    assert_eq!([holder.reply(), holder.reply()], [int(1), status("OK")]);
    for waiter in &mut line {
        assert!(waiter.reply_error().starts_with("UNBLOCKED "));
    }
    await_role(&mut primary.client(), "slave");
    await_role(&mut replica.client(), "master");
    let mut holder = replica.client();
    assert_eq!(holder.call("LOCK.ACQUIRE long other"), nil());
    assert_eq!(
        holder.call(&format!("LOCK.ACQUIRE long holder {LONG}")),
        int(fence)
    );
    let mut line = waiters(&replica, "long", 1);
    holder.call("LOCK.RELEASE long holder ALL");
    assert!(token(&line[0].reply()) > fence);
    eventually("the short lease is over", || {
        matches!(holder.call("LOCK.ACQUIRE short another"), Value::Int(_))
    });
    await_link(&primary);
    replica.assert_same_data(&primary);
    primary.assert_sound();
    replica.assert_sound();
}

#[test]
fn a_failover_that_is_aborted_leaves_the_waiters_in_line() {
    let primary = TestServer::start();
    let replica = replica_of(&primary);
    let mut holder = primary.client();
    let fence = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut line = waiters(&primary, "k", 1);
    // A replica that is behind and does not answer keeps the failover in its
    // first stage, in which the primary must not write, until its time is up.
    replica.stop();
    holder.call("SET behind 1");
    let paused_at = Instant::now();
    // In one turn of the event loop, so the lease ends in that stage.
    let port = replica.addr().port();
    let steps =
        format!("LOCK.RENEW k holder LEASE 300\r\nFAILOVER TO 127.0.0.1 {port} TIMEOUT 1000\r\n");
    holder.send_bytes(steps.as_bytes());
    assert_eq!([holder.reply(), holder.reply()], [int(1), status("OK")]);
    let granted = token(&line[0].reply());
    assert!(granted > fence);
    assert!(paused_at.elapsed() >= Duration::from_millis(999));
    replica.go_on();
    primary.assert_sound();
    eventually("the failover is over", || {
        holder
            .bulk("INFO replication")
            .contains("master_failover_state:no-failover")
    });
}

/// A lease ends in the pause. The lock is handed on after it, not in it.
#[track_caller]
fn check_pause(mode: &str) {
    let server = TestServer::start();
    let replica = replica_of(&server);
    let (mut holder, mut waiter) = (server.client(), server.client());
    let fence = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    waiter.send_and_block(&mut holder, "LOCK.ACQUIRE k waiter BLOCK 0");
    let mut watcher = replica.client();
    let start = Instant::now();
    // In one turn of the event loop, so the lease ends in the pause.
    let steps = format!("LOCK.RENEW k holder LEASE 300\r\nCLIENT PAUSE 2500 {mode}\r\n");
    holder.send_bytes(steps.as_bytes());
    assert_eq!([holder.reply(), holder.reply()], [int(1), status("OK")]);
    // Nobody may ask the paused server, so its replica tells what it wrote. The
    // last look is long before the pause ends.
    while start.elapsed() < Duration::from_millis(1400) {
        assert_eq!(watcher.call("HEXISTS k waiter"), int(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(token(&waiter.reply()) > fence);
    assert!(start.elapsed() >= Duration::from_millis(2499));
    server.assert_same_data(&replica);
    server.assert_sound();
}

#[test]
fn client_pause_write_over_a_leases_end_puts_the_grant_off() {
    check_pause("WRITE");
}

#[test]
fn client_pause_all_over_a_leases_end_puts_the_grant_off() {
    check_pause("ALL");
}

#[test]
fn debug_reload_with_waiters_keeps_the_lock_and_the_queue() {
    let server = TestServer::start();
    let mut holder = server.client();
    let fence = holder.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    holder.call(&format!("LOCK.ACQUIRE short holder {LONG}"));
    let mut line = waiters(&server, "k", 2);
    line.extend(waiters(&server, "short", 1));
    holder.send_bytes(b"LOCK.RENEW short holder LEASE 500\r\nDEBUG RELOAD\r\n");
    assert_eq!([holder.reply(), holder.reply()], [int(1), status("OK")]);
    assert_eq!(
        holder.call(&format!("LOCK.ACQUIRE k holder {LONG}")),
        int(fence)
    );
    assert!(token(&line[2].reply()) > fence);
    server.await_blocked(2);
    assert_eq!(holder.call("LOCK.RELEASE k holder ALL"), int(1));
    let first = token(&line[0].reply());
    assert_eq!(holder.call("LOCK.RELEASE k waiter0"), int(1));
    assert!(token(&line[1].reply()) > first);
    server.assert_sound();
}

#[test]
fn swapdb_with_waiters_on_both_sides_grants_in_each_database_what_is_free_there() {
    let server = TestServer::start();
    let (mut zero, mut one) = (server.client(), server.client());
    one.call("SELECT 1");
    let fence = zero.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    one.call(&format!("LOCK.ACQUIRE k holder {LONG}"));
    zero.call(&format!("LOCK.ACQUIRE only0 holder {LONG}"));
    one.call(&format!("LOCK.ACQUIRE only1 holder {LONG}"));
    // In database 0 wait for `only0` and `k`, in database 1 for `only1` and `k`.
    let mut line: Vec<Client> = Vec::new();
    for (db, key) in [(0, "only0"), (0, "k"), (1, "only1"), (1, "k")] {
        let mut waiter = server.client();
        waiter.call(&format!("SELECT {db}"));
        waiter.send(&format!("LOCK.ACQUIRE {key} waiter{db} {LONG} BLOCK 0"));
        line.push(waiter);
        server.await_blocked(i64::try_from(line.len()).unwrap());
    }
    assert_eq!(zero.call("SWAPDB 0 1"), status("OK"));
    // `only0` is free in database 0 now, and `only1` in database 1.
    assert!(token(&line[0].reply()) > fence);
    assert!(token(&line[2].reply()) > fence);
    server.await_blocked(2);
    assert_eq!(zero.call("HEXISTS only0 waiter0"), int(1));
    assert_eq!(one.call("HEXISTS only1 waiter1"), int(1));
    assert_eq!(zero.call("LOCK.RELEASE k holder"), int(1));
    assert!(token(&line[1].reply()) > fence);
    assert_eq!(zero.call("HEXISTS k waiter0"), int(1));
    assert_eq!(one.call("HEXISTS k holder"), int(1));
    assert_eq!(one.call("LOCK.RELEASE k holder"), int(1));
    assert!(token(&line[3].reply()) > fence);
}

fn await_unloaded(server: &TestServer, client: &mut Client) {
    let mut last = Value::Nil;
    let deadline = Instant::now() + redis_lock_testing::SOON;
    while last != status("OK") {
        assert!(
            Instant::now() < deadline,
            "MODULE UNLOAD: {last:?}\n{}",
            server.log()
        );
        last = client.call("MODULE UNLOAD lock");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_module_can_be_unloaded_only_when_nobody_waits() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.call(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut line = waiters(&server, "k", 1);
    assert!(holder.error("MODULE UNLOAD lock").starts_with("ERR "));
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    token(&line[0].reply());
    assert_eq!(holder.call("LOCK.RELEASE k waiter0"), int(1));
    await_unloaded(&server, &mut holder);
    assert!(
        holder
            .error("LOCK.ACQUIRE k holder")
            .starts_with("ERR unknown command")
    );
    server.assert_sound();
}

#[test]
fn the_module_is_not_unloaded_while_it_keeps_up_a_session_and_works_when_loaded_again() {
    let server = TestServer::start();
    let (mut admin, mut holder) = (server.client(), server.client());
    token(&holder.call("LOCK.ACQUIRE k holder SESSION"));
    assert!(admin.error("MODULE UNLOAD lock").starts_with("ERR "));
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    await_unloaded(&server, &mut admin);
    let load = format!(
        "MODULE LOAD {} {}",
        module().display(),
        NO_REGULAR_LOOKS.join(" ")
    );
    assert_eq!(admin.call(&load), status("OK"));
    let fence = token(&holder.call(&format!("LOCK.ACQUIRE k holder {LONG}")));
    let mut line = waiters(&server, "k", 1);
    assert_eq!(holder.call("LOCK.RENEW k holder LEASE 100"), int(1));
    assert!(token(&line[0].reply()) > fence);
    server.assert_sound();
}

#[test]
fn shutdown_with_waiters_ends_cleanly() {
    let mut server = TestServer::start();
    let mut holder = server.client();
    holder.call(&format!("LOCK.ACQUIRE short holder {LONG}"));
    holder.call(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut line = waiters(&server, "k", 5);
    line.extend(waiters(&server, "short", 2));
    holder.send_bytes(b"LOCK.RENEW short holder LEASE 1\r\nSHUTDOWN NOSAVE\r\n");
    // The server may end before it has written the first reply.
    let replies = [holder.try_reply(), holder.try_reply()];
    assert!(matches!(replies, [None | Some(Value::Int(1)), None]));
    let ended = server.await_end();
    let log = server.log();
    assert!(ended.success(), "{ended}\n{log}");
    assert!(!log.contains("BUG REPORT START"), "{log}");
    for waiter in &mut line[..5] {
        assert!(!matches!(waiter.try_reply(), Some(Value::Int(_))));
    }
}

/// One of nine holders has so short a lease, which is renewed on another server alone.
/// Returns whether it lasted until then.
#[track_caller]
fn check_full_sync(lease_ms: u64) -> bool {
    let options = [
        "--repl-diskless-load",
        "swapdb",
        "--repl-diskless-sync",
        "yes",
        "--repl-diskless-sync-delay",
        "0",
    ];
    let (one, other) = (
        TestServer::start_with(&options),
        TestServer::start_with(&options),
    );
    follow(&other, &one);
    await_link(&other);
    let mut here = one.client();
    for n in 0..8 {
        token(&here.call(&format!("LOCK.ACQUIRE k o{n} {LONG} LIMIT 9")));
    }
    token(&here.call(&format!("LOCK.ACQUIRE k b LEASE {lease_ms} LIMIT 9")));
    let over = Instant::now() + Duration::from_millis(lease_ms + 100);
    let mut there = other.client();
    eventually("the replica has all holders", || {
        there.call("HLEN k") == int(19)
    });
    assert_eq!(there.call("REPLICAOF NO ONE"), status("OK"));
    // The key does not end later for it.
    if there.call("LOCK.RENEW k b LEASE 300000") == int(0) {
        return false;
    }
    // What the old primary took too long makes it load the whole data set.
    assert_eq!(here.call("SET stray x"), status("OK"));
    follow(&one, &other);
    await_link(&one);
    assert_eq!(here.call("EXISTS stray"), int(0));
    assert_eq!(here.call("REPLICAOF NO ONE"), status("OK"));
    std::thread::sleep(over.saturating_duration_since(Instant::now()));
    assert_eq!(here.call("LOCK.ACQUIRE k newcomer LIMIT 9"), nil());
    assert_eq!(here.call("LOCK.RENEW k b LEASE 300000"), int(1));
    true
}

#[test]
fn after_a_full_sync_nothing_older_is_believed() {
    // A slow machine needs a longer lease.
    let leases_ms = [2000, 8000, 32_000];
    assert!(leases_ms.into_iter().any(check_full_sync));
}
