//! A lease that ends passes the lock on by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Int, Judge, Play, Server};

/// How long after the end of a lease its next holder hears of it at the latest.
const PROMPT: Duration = Duration::from_millis(20);

/// Tests that measure time must not do so beside one that loads the machine.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holders let their leases end.
fn leases_end_on_time(server: &Server) {
    let (mut holder, mut waiter) = (server.client(), server.client());
    let mut judge = Judge::new("from a lease's end to the next holder", PROMPT);
    while judge.wants_more() {
        holder.int("LOCK.ACQUIRE k holder LEASE 600000");
        waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
        server.await_info("blocked_clients", 1);
        assert_eq!(holder.call("LOCK.RENEW k holder LEASE 100"), Int(1));
        let ends = Instant::now() + Duration::from_millis(100);
        assert!(matches!(waiter.reply(), Value::Int(_)));
        judge.judge(ends, Instant::now());
        assert_eq!(waiter.call("LOCK.RELEASE k waiter"), Int(1));
    }
}

#[test]
fn within_20_ms_of_its_end_on_an_idle_server() {
    let _alone = alone();
    leases_end_on_time(&Server::start());
}

#[test]
fn within_20_ms_of_its_end_on_a_busy_server() {
    let _alone = alone();
    let server = Server::start();
    let busy = Arc::new(AtomicBool::new(true));
    let mut client = server.client();
    let load = std::thread::spawn({
        let busy = Arc::clone(&busy);
        move || {
            let batch = b"SET x y\r\nLOCK.ACQUIRE own me\r\nLOCK.RELEASE own me\r\n".repeat(20);
            while busy.load(Ordering::Relaxed) {
                client.connection.send_bytes(&batch).unwrap();
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
    Play::start().run(
        "a > LOCK.ACQUIRE k a LEASE 50 -> A
        a > LOCK.ACQUIRE k a LEASE 50 -> A
        b > LOCK.ACQUIRE k b BLOCK 0 -> B
        a > LOCK.RENEW k a -> 0
        a > LOCK.RELEASE k a -> null
        a > LOCK.RELEASE k a FENCE $A -> null
        b > HLEN k -> 2
        b > HGET k b -> '1'
        b > HGET k @fence -> '$B'
        b > PTTL k -> 20000..",
    );
}

#[test]
fn a_renewal_keeps_the_waiter_waiting_a_shorter_one_less_long() {
    let _alone = alone();
    let mut play = Play::held();
    // In one piece, so that the short lease can't end before the longer one begins.
    play.run(
        "b > LOCK.ACQUIRE k b BLOCK 0 -> ..
        h > LOCK.RENEW k h LEASE 2000 | LOCK.RENEW k h LONG -> 1 | 1",
    );
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(2200) {
        play.run("h > LOCK.RENEW k h LEASE 60000 -> 1");
    }
    // The next look was to be a minute later, at the end of the longer lease.
    play.run(
        "blocked_clients = 1
        h > LOCK.RENEW k h LEASE 30 -> 1
        b < token",
    );
}
