//! A lease that ends passes the lock on by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Client, Judge, TestServer, int, nil};

/// How long after the end of a lease its next holder hears of it at the latest.
const PROMPT: Duration = Duration::from_millis(20);

/// Tests that measure time must not do so beside one that loads the machine.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holders let their leases end.
fn leases_end_on_time(server: &TestServer) {
    let (mut holder, mut waiter) = (server.client(), server.client());
    let mut judge = Judge::new("from a lease's end to the next holder", PROMPT);
    while judge.wants_more() {
        holder.int("LOCK.ACQUIRE k holder LEASE 600000");
        waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
        server.await_blocked(1);
        assert_eq!(holder.call("LOCK.RENEW k holder LEASE 100"), int(1));
        let ends = Instant::now() + Duration::from_millis(100);
        assert!(matches!(waiter.reply(), Value::Int(_)));
        judge.judge(ends, Instant::now());
        assert_eq!(waiter.call("LOCK.RELEASE k waiter"), int(1));
    }
}

#[test]
fn within_20_ms_of_its_end_on_an_idle_server() {
    let _alone = alone();
    leases_end_on_time(&TestServer::start());
}

#[test]
fn within_20_ms_of_its_end_on_a_busy_server() {
    let _alone = alone();
    let server = TestServer::start();
    let busy = Arc::new(AtomicBool::new(true));
    let mut client = server.client();
    let load = std::thread::spawn({
        let busy = Arc::clone(&busy);
        move || {
            let batch = b"SET x y\r\nLOCK.ACQUIRE own me\r\nLOCK.RELEASE own me\r\n".repeat(20);
            while busy.load(Ordering::Relaxed) {
                client.send_bytes(&batch);
                for _ in 0..60 {
                    client.reply();
                }
            }
        }
    });
    leases_end_on_time(&server);
    busy.store(false, Ordering::Relaxed);
    load.join().unwrap();
}

#[test]
fn the_old_owner_is_refused_afterwards_and_touches_nothing() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let token = a.int("LOCK.ACQUIRE k a LEASE 50");
    let Value::Int(next) = b.call("LOCK.ACQUIRE k b BLOCK 0") else {
        panic!("b was not granted the lock");
    };
    assert!(next > token);
    let stored = b.hash("k");
    assert_eq!(a.call("LOCK.RENEW k a"), int(0));
    assert_eq!(a.call("LOCK.RELEASE k a"), nil());
    assert_eq!(a.call(&format!("LOCK.RELEASE k a FENCE {token}")), nil());
    assert_eq!(b.hash("k"), stored);
}

#[test]
fn a_lease_ends_with_all_its_nested_holds() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    for _ in 0..3 {
        a.call("LOCK.ACQUIRE k a LEASE 50");
    }
    assert!(matches!(b.call("LOCK.ACQUIRE k b BLOCK 0"), Value::Int(_)));
    assert_eq!(b.bulk("HGET k b"), "1");
}

#[test]
fn a_renewal_keeps_the_waiter_waiting_a_shorter_one_less_long() {
    let _alone = alone();
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.call("LOCK.ACQUIRE k a LEASE 600000");
    b.send("LOCK.ACQUIRE k b BLOCK 0");
    server.await_blocked(1);
    // In one piece, so that the short lease can't end before the longer one begins.
    a.send_bytes(b"LOCK.RENEW k a LEASE 2000\r\nLOCK.RENEW k a LEASE 600000\r\n");
    assert_eq!([a.reply(), a.reply()], [int(1), int(1)]);
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(2200) {
        assert_eq!(a.call("LOCK.RENEW k a LEASE 60000"), int(1));
    }
    assert_eq!(server.info("blocked_clients"), 1);
    // The next look was to be a minute later, at the end of the longer lease.
    assert_eq!(a.call("LOCK.RENEW k a LEASE 30"), int(1));
    assert!(matches!(b.reply(), Value::Int(_)));
}

#[test]
fn waiters_that_never_release_come_in_order() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let mut waiters: Vec<Client> = (0..8).map(|_| server.client()).collect();
    for (i, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!("LOCK.ACQUIRE k owner{i} LEASE 100 BLOCK 0"));
        server.await_blocked(i64::try_from(i).unwrap() + 1);
    }
    assert_eq!(holder.call("LOCK.RENEW k holder LEASE 100"), int(1));
    let mut last = 0;
    for waiter in &mut waiters {
        let Value::Int(token) = waiter.reply() else {
            panic!("a waiter was not granted the lock");
        };
        assert!(token > last);
        last = token;
    }
}
