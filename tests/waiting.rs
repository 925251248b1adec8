//! Waiting for a lock: order, time-outs, many clients.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Client, Int, Nil, Play, Server, arrivals, need_files};

#[test]
fn those_who_come_in_together_are_told_in_their_order() {
    let server = Server::start();
    let mut observer = server.client();
    for _ in 0..10 {
        observer.call("LOCK.ACQUIRE k writer LEASE 600000");
        let mut readers: Vec<Client> = (0..6).map(|_| server.client()).collect();
        for (i, reader) in (0..).zip(&mut readers) {
            let command = format!("LOCK.ACQUIRE k reader{i} SHARED BLOCK 0");
            reader.send(&command);
            server.await_info("blocked_clients", i + 1);
        }
        let told = arrivals(&readers, || {
            assert_eq!(observer.call("LOCK.RELEASE k writer"), Int(1));
            // What one turn of the event loop replies is written before the next.
            server.await_info("blocked_clients", 0);
        });
        assert_eq!(told, [0, 1, 2, 3, 4, 5]);
        observer.call("DEL k");
    }
}

#[test]
fn the_lease_of_a_waiter_starts_at_its_grant() {
    Play::held().run(
        "b > LOCK.ACQUIRE k b LEASE 60000 BLOCK 0 -> ..
        o > BLPOP none 1.5 -> null
        h > LOCK.RELEASE k h -> 1
        b < token
        o > PTTL k -> 59000..60000",
    );
}

/// All in one turn of the event loop: the key is gone when the newcomer asks.
#[test]
fn no_newcomer_passes_the_queue() {
    Play::held().run(
        "b > LOCK.ACQUIRE k b BLOCKED -> ..
        newcomer > DEL k | LOCK.ACQUIRE k newcomer -> 1 | null
        b < B
        o > HGET k b -> '1'",
    );
}

#[test]
fn a_wait_ends_after_its_time_and_not_before() {
    let mut play = Play::held();
    for block_ms in [1, 500, 3000] {
        let start = Instant::now();
        play.run(&format!("b > LOCK.ACQUIRE k b BLOCK {block_ms} -> null"));
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(block_ms), "{waited:?}");
    }
    play.run("h > LOCK.RELEASE k h -> 1 \n h > EXISTS k -> 0");
}

#[test]
fn of_a_thousand_that_wait_ten_milliseconds_one_holds_the_lock() {
    need_files(2_100);
    let server = Server::start_with(&["--maxclients", "2000"]);
    let mut clients: Vec<Client> = (0..1000).map(|_| server.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(&format!("LOCK.ACQUIRE k owner{i} BLOCK 10 LEASE 10000"));
    }
    let granted = clients
        .iter_mut()
        .map(Client::reply)
        .filter(|reply| *reply != Nil)
        .count();
    assert_eq!(granted, 1);
    assert_eq!(server.info("blocked_clients"), 0);
}

#[test]
fn sixteen_threads_that_fight_for_a_lock_never_hold_it_together() {
    const THREADS: usize = 16;
    const SECTIONS: usize = 500;
    let server = Server::start();
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
                    assert_eq!(client.call(&release), Int(1));
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
    Play::held().run(
        "o > CONFIG SET lock.max-waiters 1
        b > LOCK.ACQUIRE k b BLOCK 0 -> ..
        c > LOCK.ACQUIRE k c BLOCK 0 -> !QUEUEFULL
        c > LOCK.ACQUIRE k c -> null
        lock_queues_full = 1
        c > LOCK.ACQUIRE other c BLOCK 0 -> token
        h > LOCK.RELEASE k h -> 1
        b < token",
    );
}

#[test]
fn resp3_clients_wait_and_get_the_null_of_their_protocol() {
    Play::held().run(
        "b > HELLO 3
        b > LOCK.ACQUIRE k b -> null
        b > LOCK.ACQUIRE k b BLOCK 5 -> null
        b > LOCK.ACQUIRE k b BLOCK 0 -> ..
        h > LOCK.RELEASE k h -> 1
        b < token",
    );
}

#[test]
fn a_client_that_wants_no_replies_neither_hangs_nor_breaks_anything() {
    Play::held().run(
        "b sends CLIENT REPLY OFF
        b > LOCK.ACQUIRE k b BLOCK 0 -> ..
        h > LOCK.RELEASE k h -> 1
        until o > HEXISTS k b -> 1
        b sends LOCK.RELEASE k b | CLIENT REPLY ON
        b < OK
        o > EXISTS k -> 0",
    );
}

#[test]
fn transactions_and_scripts_try_once_and_hand_the_lock_on() {
    Play::held().run(
        "b >> LOCK.ACQUIRE k b BLOCK 0 | LOCK.ACQUIRE free b BLOCK 0 -> null | token
        b > EVAL \"return redis.call('LOCK.ACQUIRE','k','b','BLOCK',0)\" 0 -> null
        blocked_clients = 0
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        h >> LOCK.RELEASE k h | LOCK.ACQUIRE k h -> 1 | null
        b < B
        h > LOCK.ACQUIRE k h BLOCKED -> ..
        b > EVAL \"return redis.call('LOCK.RELEASE','k','b')\" 0 -> 1
        h < token",
    );
}

/// Valkey 8.1.1 and later block no client that has subscribed: it tries once.
#[test]
fn who_subscribes_waits_or_hears_at_once_that_it_does_not() {
    Play::held().run(
        "ears > LOCK.ACQUIRE k ears BLOCK 100 -> null
        lock_waiters = 0
        h > LOCK.RELEASE k h -> 1
        h > EXISTS k -> 0
        ears > LOCK.ACQUIRE k ears BLOCK 0 -> token",
    );
}
