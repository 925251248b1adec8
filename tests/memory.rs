//! What comes and goes leaves nothing behind.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_testing::{Client, TestServer, eventually, int, need_files, nil};

fn start() -> TestServer {
    TestServer::start_with(&["--maxclients", "12000"])
}

#[track_caller]
fn assert_nothing_remembered(client: &mut Client) {
    for count in ["lock_waiters", "lock_contended_keys", "lock_planned_looks"] {
        assert_eq!(client.info(count), 0, "{count}");
    }
}

#[test]
fn a_million_acquires_and_releases_leave_no_memory_behind() {
    const BATCH: usize = 1000;
    let server = start();
    let mut client = server.client();
    let pairs = b"LOCK.ACQUIRE k a\r\nLOCK.RELEASE k a\r\n".repeat(BATCH);
    let mut run = |batches: usize| {
        for _ in 0..batches {
            client.send_bytes(&pairs);
            for _ in 0..BATCH {
                assert!(matches!(client.reply(), Value::Int(_)));
                assert_eq!(client.reply(), int(1));
            }
        }
    };
    run(10);
    let mut observer = server.client();
    let before = observer.used_memory();
    run(1000);
    observer.assert_memory_back(before);
    assert_nothing_remembered(&mut observer);
}

/// The first wait and the first release make the tables in which all are counted.
fn have_times_counted(server: &TestServer) {
    let (mut holder, mut waiter) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE first holder");
    waiter.send("LOCK.ACQUIRE first waiter BLOCK 0");
    server.await_blocked(1);
    assert_eq!(holder.call("LOCK.RELEASE first holder"), int(1));
    assert!(matches!(waiter.reply(), Value::Int(_)));
    assert_eq!(waiter.call("LOCK.RELEASE first waiter"), int(1));
}

const WAITERS: usize = 10_000;

fn used_to_crowds() -> TestServer {
    need_files(10_500);
    let server = start();
    let mut observer = server.client();
    drop(crowd(&server, |_| "BLPOP nothing 0".into()));
    eventually("all have gone", || observer.info("connected_clients") == 1);
    have_times_counted(&server);
    server
}

fn crowd(server: &TestServer, command: impl Fn(usize) -> String) -> Vec<Option<Client>> {
    let mut ping = server.client();
    let clients = (0..WAITERS)
        .map(|i| {
            let mut client = server.client();
            client.send(&command(i));
            // Once this is answered the server has read what was sent before.
            ping.call("PING");
            Some(client)
        })
        .collect();
    drop(ping);
    server.await_blocked(i64::try_from(WAITERS).unwrap());
    clients
}

/// The pool of reply buffers, two for each waiter, gives the buffers back but
/// keeps the array of pointers to them.
fn pool() -> i64 {
    i64::try_from(2 * WAITERS * size_of::<usize>()).unwrap()
}

#[test]
fn of_ten_thousand_waiters_one_in_ten_stays_and_comes_in_order() {
    let server = used_to_crowds();
    let (mut holder, mut observer) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let before = observer.used_memory();
    let mut waiters = crowd(&server, |i| format!("LOCK.ACQUIRE k owner{i} BLOCK 0"));
    // The ids go up by one, from the first waiter's on.
    let list = observer.bulk("CLIENT LIST");
    let ids = list
        .lines()
        .filter(|line| line.contains(" cmd=lock.acquire ") && line.contains(" flags=b "));
    let id_of = |line: &str| -> u64 {
        let id = line
            .split_whitespace()
            .find_map(|field| field.strip_prefix("id="));
        id.unwrap().parse().unwrap()
    };
    let mut ids: Vec<u64> = ids.map(id_of).collect();
    ids.sort_unstable();
    assert_eq!(ids.len(), WAITERS);
    // Nine in ten go, in no order: some are killed, some close.
    let mut random = StdRng::seed_from_u64(7);
    let mut leavers: Vec<usize> = (0..WAITERS)
        .filter(|_| random.random_ratio(9, 10))
        .collect();
    for at in (1..leavers.len()).rev() {
        leavers.swap(at, random.random_range(0..=at));
    }
    for leaver in &leavers {
        if random.random_ratio(1, 2) {
            let kill = format!("CLIENT KILL ID {}", ids[*leaver]);
            assert_eq!(observer.call(&kill), int(1));
        }
        waiters[*leaver] = None;
    }
    server.await_blocked(i64::try_from(WAITERS - leavers.len()).unwrap());
    holder.call("LOCK.RELEASE k holder");
    let mut last = 0;
    for (i, waiter) in waiters.iter_mut().enumerate() {
        let Some(client) = waiter else {
            continue;
        };
        let Value::Int(token) = client.reply() else {
            panic!("owner{i} was not granted the lock");
        };
        assert!(token > last);
        last = token;
        assert_eq!(client.call(&format!("LOCK.RELEASE k owner{i}")), int(1));
    }
    drop(waiters);
    assert_nothing_remembered(&mut observer);
    let abandoned = i64::try_from(leavers.len()).unwrap();
    assert_eq!(observer.info("lock_waits_abandoned"), abandoned);
    eventually("all have gone", || observer.info("connected_clients") == 2);
    observer.assert_memory_back(before + pool());
}

#[test]
fn ten_thousand_waiters_time_out_at_once_and_leave_nothing() {
    let server = used_to_crowds();
    let (mut holder, mut observer) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let before = observer.used_memory();
    // All ask until the same moment, when all are there.
    let patience = Duration::from_secs(5);
    let end = Instant::now() + patience;
    let mut waiters = crowd(&server, |i| {
        let left = end.saturating_duration_since(Instant::now());
        format!("LOCK.ACQUIRE k owner{i} BLOCK {}", left.as_millis().max(1))
    });
    for client in waiters.iter_mut().flatten() {
        assert_eq!(client.reply(), nil());
    }
    assert_nothing_remembered(&mut observer);
    assert_eq!(
        observer.info("lock_wait_timeouts"),
        i64::try_from(WAITERS).unwrap()
    );
    // The lock is as it was, and the queue is open.
    let first = waiters[0].as_mut().unwrap();
    first.send("LOCK.ACQUIRE k owner0 BLOCK 0");
    server.await_blocked(1);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    assert!(matches!(first.reply(), Value::Int(_)));
    assert_eq!(first.call("LOCK.RELEASE k owner0"), int(1));
    drop(waiters);
    eventually("all have gone", || observer.info("connected_clients") == 2);
    observer.assert_memory_back(before + pool());
}
