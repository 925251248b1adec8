//! What comes and goes leaves nothing behind.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Client, TestServer, eventually, int, nil};

/// The server's memory, once what it frees in the background is freed.
fn used_memory(client: &mut Client) -> i64 {
    client.call("MEMORY PURGE");
    eventually("nothing is left to free in the background", || {
        client.info("lazyfree_pending_objects") == 0
    });
    client.info("used_memory")
}

/// Memory may not have grown by more than a hundredth. The server keeps the
/// reply buffers of blocked clients in a pool, which it empties by fifty every
/// tenth of a second: 10,000 waiters take forty seconds.
#[track_caller]
fn assert_back(client: &mut Client, before: i64) {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let now = used_memory(client);
        if now <= before + before / 100 {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "used_memory was {before} and is {now}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
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
    let server = TestServer::start();
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
    let before = used_memory(&mut observer);
    run(1000);
    assert_back(&mut observer, before);
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

#[test]
fn ten_thousand_waiters_that_come_and_go_leave_no_memory_behind() {
    const ROUNDS: usize = 10;
    const WAITERS: usize = 1000;
    let server = TestServer::start_with(&["--maxclients", "4000"]);
    let mut holder = server.client();
    let mut observer = server.client();
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let mut clients: Vec<Client> = (0..WAITERS).map(|_| server.client()).collect();
    let mut before = 0;
    // The first round is to warm up: the server keeps some buffers.
    for round in 0..=ROUNDS {
        for (i, client) in clients.iter_mut().enumerate() {
            let timeout = if i % 2 == 0 { 1 } else { 0 };
            client.send(&format!("LOCK.ACQUIRE k owner{i} BLOCK {timeout}"));
        }
        for client in clients.iter_mut().step_by(2) {
            assert_eq!(client.reply(), nil());
        }
        server.await_blocked(i64::try_from(WAITERS / 2).unwrap());
        holder.call("LOCK.RELEASE k holder");
        for (i, client) in clients.iter_mut().enumerate().skip(1).step_by(2) {
            assert!(matches!(client.reply(), Value::Int(_)));
            assert_eq!(client.call(&format!("LOCK.RELEASE k owner{i}")), int(1));
        }
        assert_nothing_remembered(&mut observer);
        holder.call("LOCK.ACQUIRE k holder LEASE 600000");
        if round == 0 {
            before = used_memory(&mut observer);
        }
    }
    assert_back(&mut observer, before);
}

#[test]
fn ten_thousand_waiters_of_whom_nine_in_ten_go_and_the_rest_come_in_order() {
    const WAITERS: usize = 10_000;
    let server = TestServer::start_with(&["--maxclients", "12000"]);
    let mut holder = server.client();
    let mut observer = server.client();
    let block = |command: &dyn Fn(usize) -> String| -> Vec<Option<Client>> {
        let mut ping = server.client();
        let waiters = (0..WAITERS).map(|i| {
            let mut client = server.client();
            client.send(&command(i));
            // Once this is answered the server has read what was sent before.
            ping.call("PING");
            Some(client)
        });
        let waiters = waiters.collect();
        server.await_blocked(i64::try_from(WAITERS).unwrap());
        waiters
    };
    // So many clients leave traces in the server whatever they do; those of
    // clients that know nothing of locks are not of interest.
    drop(block(&|_| "BLPOP nothing 0".into()));
    eventually("all have gone", || observer.info("connected_clients") == 2);
    have_times_counted(&server);
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let before = used_memory(&mut observer);
    let mut waiters = block(&|i| format!("LOCK.ACQUIRE k owner{i} BLOCK 0"));
    for (i, waiter) in waiters.iter_mut().enumerate() {
        if i % 10 != 7 {
            *waiter = None;
        }
    }
    server.await_blocked(i64::try_from(WAITERS / 10).unwrap());
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
    eventually("all have gone", || observer.info("connected_clients") == 2);
    // The pool of reply buffers, two for each waiter, gives the buffers back but
    // keeps the array of pointers to them.
    let pool = i64::try_from(2 * WAITERS * size_of::<usize>()).unwrap();
    assert_back(&mut observer, before + pool);
}
