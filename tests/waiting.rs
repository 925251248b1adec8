//! Waiting for a lock: order, time-outs, many clients.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Arrivals, Client, TestServer, eventually, int, need_files, nil};

#[test]
fn a_release_hands_the_lock_to_each_waiter_in_turn() {
    let server = TestServer::start();
    let (mut a, mut b, mut c) = (server.client(), server.client(), server.client());
    let mut observer = server.client();
    let first = a.int("LOCK.ACQUIRE k a");
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b BLOCK 0");
    c.send_and_block(&mut observer, "LOCK.ACQUIRE k c BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE k a"), int(1));
    let Value::Int(second) = b.reply() else {
        panic!("b was not granted the lock");
    };
    assert!(second > first);
    assert_eq!(
        observer.hash("k"),
        [
            ("@fence".into(), second.to_string()),
            ("b".into(), "1".into())
        ]
    );
    assert_eq!(observer.info("blocked_clients"), 1);
    assert_eq!(b.call("LOCK.RELEASE k b"), int(1));
    assert!(matches!(c.reply(), Value::Int(third) if third > second));
}

#[test]
fn those_who_come_in_together_are_told_in_their_order() {
    let server = TestServer::start();
    let mut observer = server.client();
    for _ in 0..10 {
        observer.call("LOCK.ACQUIRE k writer LEASE 600000");
        let mut readers: Vec<Client> = (0..6).map(|_| server.client()).collect();
        for (i, reader) in readers.iter_mut().enumerate() {
            let command = format!("LOCK.ACQUIRE k reader{i} SHARED BLOCK 0");
            reader.send_and_block(&mut observer, &command);
        }
        let arrivals = Arrivals::at(&readers);
        assert_eq!(observer.call("LOCK.RELEASE k writer"), int(1));
        // What one turn of the event loop replies is written before the next.
        server.await_blocked(0);
        assert_eq!(arrivals.in_order(), [0, 1, 2, 3, 4, 5]);
        observer.call("DEL k");
    }
}

#[test]
fn the_lease_of_a_waiter_starts_at_its_grant() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let mut observer = server.client();
    a.call("LOCK.ACQUIRE k a");
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b LEASE 60000 BLOCK 0");
    std::thread::sleep(Duration::from_millis(1500));
    a.call("LOCK.RELEASE k a");
    b.reply();
    let ttl = observer.int("PTTL k");
    assert!((59_000..=60_000).contains(&ttl), "{ttl}");
}

#[test]
fn no_newcomer_passes_the_queue() {
    let server = TestServer::start();
    let (mut a, mut b, mut newcomer) = (server.client(), server.client(), server.client());
    let mut observer = server.client();
    a.call("LOCK.ACQUIRE k a");
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b BLOCK 0");
    // All in one turn of the event loop: the key is gone when the newcomer asks.
    newcomer.send_bytes(b"DEL k\r\nLOCK.ACQUIRE k newcomer\r\n");
    assert_eq!(newcomer.reply(), int(1));
    assert_eq!(newcomer.reply(), nil());
    assert!(matches!(b.reply(), Value::Int(_)));
}

#[test]
fn who_queued_gets_what_came_free_before_the_next_command() {
    let server = TestServer::start();
    let (mut a, mut b, mut again) = (server.client(), server.client(), server.client());
    let mut observer = server.client();
    a.call("LOCK.ACQUIRE k a");
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b BLOCK 0");
    // In one turn of the event loop. The second command finds b holding the lock.
    again.send_bytes(b"DEL k\r\nLOCK.ACQUIRE k c\r\n");
    assert_eq!([again.reply(), again.reply()], [int(1), nil()]);
    assert!(matches!(b.reply(), Value::Int(_)));
    assert_eq!(observer.bulk("HGET k b"), "1");
}

#[test]
fn a_wait_ends_after_its_time_and_not_before() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.call("LOCK.ACQUIRE k a");
    for block_ms in [1, 500, 3000] {
        let start = Instant::now();
        assert_eq!(b.call(&format!("LOCK.ACQUIRE k b BLOCK {block_ms}")), nil());
        let waited = start.elapsed();
        let due = Duration::from_millis(block_ms);
        assert!(waited >= due, "{waited:?}");
    }
    assert_eq!(a.call("LOCK.RELEASE k a"), int(1));
    assert_eq!(a.call("EXISTS k"), int(0));
}

#[test]
fn of_a_thousand_that_wait_ten_milliseconds_one_holds_the_lock() {
    need_files(2_100);
    let server = TestServer::start_with(&["--maxclients", "2000"]);
    let mut clients: Vec<Client> = (0..1000).map(|_| server.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(&format!("LOCK.ACQUIRE k owner{i} BLOCK 10 LEASE 10000"));
    }
    let granted = clients
        .iter_mut()
        .map(Client::reply)
        .filter(|reply| *reply != nil())
        .count();
    assert_eq!(granted, 1);
    assert_eq!(server.info("blocked_clients"), 0);
}

#[test]
fn a_hundred_that_wait_all_get_the_lock_in_the_order_in_which_they_queued() {
    let server = TestServer::start();
    let mut holder = server.client();
    let mut observer = server.client();
    holder.call("LOCK.ACQUIRE k holder LEASE 60000");
    let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send_and_block(
            &mut observer,
            &format!("LOCK.ACQUIRE k owner{i} BLOCK 10000"),
        );
    }
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    let mut last = 0;
    for (i, client) in clients.iter_mut().enumerate() {
        let Value::Int(token) = client.reply() else {
            panic!("owner{i} was not granted the lock");
        };
        assert!(token > last);
        last = token;
        assert_eq!(client.call(&format!("LOCK.RELEASE k owner{i}")), int(1));
    }
    assert_eq!(observer.call("EXISTS k"), int(0));
}

#[test]
fn sixteen_threads_that_fight_for_a_lock_never_hold_it_together() {
    const THREADS: usize = 16;
    const SECTIONS: usize = 500;
    let server = TestServer::start();
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let mut client = server.client();
            std::thread::spawn(move || {
                for _ in 0..SECTIONS {
                    let token = client.int(&format!("LOCK.ACQUIRE k owner{i} BLOCK 0"));
                    // Read, then write: updates get lost if two are in here.
                    let counter = match client.call("GET counter") {
                        Value::Nil => 0,
                        Value::BulkString(n) => String::from_utf8(n).unwrap().parse().unwrap(),
                        other => panic!("{other:?}"),
                    };
                    client.call(&format!("SET counter {}", counter + 1));
                    let release = format!("LOCK.RELEASE k owner{i} FENCE {token}");
                    assert_eq!(client.call(&release), int(1));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let mut client = server.client();
    let total = THREADS * SECTIONS;
    assert_eq!(client.bulk("GET counter"), total.to_string());
}

#[test]
fn a_full_queue_refuses_the_next_and_keeps_the_others() {
    let server = TestServer::start_with(&[]);
    let (mut a, mut b, mut c) = (server.client(), server.client(), server.client());
    let mut observer = server.client();
    observer.call("CONFIG SET lock.max-waiters 1");
    a.call("LOCK.ACQUIRE k a");
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b BLOCK 0");
    assert!(
        c.error("LOCK.ACQUIRE k c BLOCK 0")
            .starts_with("QUEUEFULL ")
    );
    assert_eq!(c.call("LOCK.ACQUIRE k c"), nil());
    assert_eq!(observer.info("lock_queues_full"), 1);
    assert!(matches!(
        c.call("LOCK.ACQUIRE other c BLOCK 0"),
        Value::Int(_)
    ));
    a.call("LOCK.RELEASE k a");
    assert!(matches!(b.reply(), Value::Int(_)));
}

#[test]
fn resp3_clients_wait_and_get_the_null_of_their_protocol() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let mut observer = server.client();
    b.call("HELLO 3");
    a.call("LOCK.ACQUIRE k a");
    assert_eq!(b.call("LOCK.ACQUIRE k b"), nil());
    assert_eq!(b.call("LOCK.ACQUIRE k b BLOCK 5"), nil());
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b BLOCK 0");
    a.call("LOCK.RELEASE k a");
    assert!(matches!(b.reply(), Value::Int(_)));
}

#[test]
fn a_client_that_wants_no_replies_neither_hangs_nor_breaks_anything() {
    let server = TestServer::start();
    let (mut a, mut silent) = (server.client(), server.client());
    let mut observer = server.client();
    a.call("LOCK.ACQUIRE k a");
    silent.send("CLIENT REPLY OFF");
    silent.send_and_block(&mut observer, "LOCK.ACQUIRE k silent BLOCK 0");
    a.call("LOCK.RELEASE k a");
    eventually("the silent client holds the lock", || {
        observer.call("HEXISTS k silent") == int(1)
    });
    silent.send("LOCK.RELEASE k silent");
    silent.send("CLIENT REPLY ON");
    assert_eq!(silent.reply(), redis_lock_testing::status("OK"));
    assert_eq!(observer.call("EXISTS k"), int(0));
}

#[test]
fn transactions_and_scripts_try_once_and_never_block() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.call("LOCK.ACQUIRE k a");
    b.call("MULTI");
    b.call("LOCK.ACQUIRE k b BLOCK 0");
    b.call("LOCK.ACQUIRE free b BLOCK 0");
    let Value::Array(replies) = b.call("EXEC") else {
        panic!("EXEC did not answer a list");
    };
    assert_eq!(replies[0], nil());
    assert!(matches!(replies[1], Value::Int(_)));
    let script = b"return redis.call('LOCK.ACQUIRE', KEYS[1], 'b', 'BLOCK', 0)";
    assert_eq!(b.words(&[b"EVAL", script, b"1", b"k"]), nil());
    assert_eq!(server.info("blocked_clients"), 0);
}

#[test]
fn a_release_in_a_transaction_or_a_script_hands_the_lock_on() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    let mut observer = server.client();
    a.call("LOCK.ACQUIRE k a");
    b.send_and_block(&mut observer, "LOCK.ACQUIRE k b BLOCK 0");
    a.call("MULTI");
    a.call("LOCK.RELEASE k a");
    a.call("LOCK.ACQUIRE k a");
    assert_eq!(a.call("EXEC"), Value::Array(vec![int(1), nil()]));
    assert!(matches!(b.reply(), Value::Int(_)));
    a.send_and_block(&mut observer, "LOCK.ACQUIRE k a BLOCK 0");
    let script = b"return redis.call('LOCK.RELEASE', KEYS[1], 'b')";
    assert_eq!(b.words(&[b"EVAL", script, b"1", b"k"]), int(1));
    assert!(matches!(a.reply(), Value::Int(_)));
}

/// Valkey 8.1.1 and later block no client that has subscribed: it tries once.
#[test]
fn who_subscribes_waits_or_hears_at_once_that_it_does_not() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE k holder");
    let mut ears = server.subscriber("ch");
    assert_eq!(ears.call("LOCK.ACQUIRE k ears BLOCK 100"), nil());
    assert_eq!(holder.info("lock_waiters"), 0);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    assert_eq!(holder.call("EXISTS k"), int(0));
    assert!(matches!(
        ears.call("LOCK.ACQUIRE k ears BLOCK 0"),
        Value::Int(_)
    ));
}
