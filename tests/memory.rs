//! What comes and goes leaves nothing behind.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis_lock_testing::{Client, Clock, Int, Nil, Server, eventually, need_files};

#[track_caller]
fn assert_nothing_remembered(client: &mut Client) {
    for count in ["lock_waiters", "lock_contended_keys", "lock_planned_looks"] {
        assert_eq!(client.info(count), 0, "{count}");
    }
}

#[test]
fn a_hundred_thousand_acquires_and_releases_leave_no_memory_behind() {
    const BATCH: usize = 1000;
    let server = Server::start();
    let mut client = server.client();
    let pairs = b"LOCK.ACQUIRE k a\r\nLOCK.RELEASE k a\r\n".repeat(BATCH);
    let mut run = |batches: usize| {
        for _ in 0..batches {
            client.connection.send_bytes(&pairs).unwrap();
            for _ in 0..BATCH {
                assert!(matches!(client.reply(), Value::Int(_)));
                assert_eq!(client.reply(), Int(1));
            }
        }
    };
    run(10);
    let mut observer = server.client();
    let before = observer.used_memory();
    run(100);
    observer.assert_memory_back(before);
    assert_nothing_remembered(&mut observer);
}

fn crowd(
    server: &Server,
    waiters: usize,
    command: impl Fn(usize) -> String,
) -> Vec<Option<Client>> {
    let mut ping = server.client();
    let clients = (0..waiters)
        .map(|i| {
            let mut client = server.client();
            client.send(&command(i));
            // Once this is answered the server has read what was sent before.
            ping.call("PING");
            Some(client)
        })
        .collect();
    drop(ping);
    server.await_info("blocked_clients", i64::try_from(waiters).unwrap());
    clients
}

/// The server gives the memory of 50 waiters back at each tenth of a second, so that of
/// ten thousand would take long.
#[test]
fn ten_times_a_thousand_waiters_leave_no_memory_behind() {
    const WAITERS: usize = 1000;
    need_files(2000);
    let clock = Clock::new();
    let server = clock.server();
    // The first wait and the first release make the tables in which all are counted.
    all_time_out(&server, &clock, 1, 100);
    let mut observer = server.client();
    drop(crowd(&server, WAITERS, |_| "BLPOP nothing 0".into()));
    await_end(&mut observer);
    let before = observer.used_memory();
    for round in 2..=6_u8 {
        some_leave_and_others_are_served(&server, WAITERS, round.into());
        all_time_out(&server, &clock, WAITERS, i64::from(round) * 100);
    }
    // A first crowd leaves the server with some tables. The second does not enlarge them.
    const TABLES: i64 = 128 * 1024;
    observer.assert_memory_back(before + TABLES);
}

#[test]
fn of_ten_thousand_waiters_one_in_ten_stays_and_comes_in_order() {
    need_files(10_500);
    let server = Server::start_with(&["--maxclients", "12000"]);
    some_leave_and_others_are_served(&server, 10_000, 7);
}

fn some_leave_and_others_are_served(server: &Server, count: usize, seed: u64) {
    let (mut holder, mut observer) = (server.client(), server.client());
    let abandoned = observer.info("lock_waits_abandoned");
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let mut waiters = crowd(server, count, |i| {
        format!("LOCK.ACQUIRE k owner{i} BLOCK 0")
    });
    // The ids go up by one, from the first waiter's on.
    let list = observer.bulk("CLIENT LIST");
    let ids = list
        .lines()
        .filter(|line| line.contains(" cmd=lock.acquire ") && line.contains(" flags=b "));
    let id_of = |line: &str| -> u64 {
        let mut fields = line.split_whitespace();
        let id = fields.find_map(|field| field.strip_prefix("id="));
        id.unwrap().parse().unwrap()
    };
    let mut ids: Vec<u64> = ids.map(id_of).collect();
    ids.sort_unstable();
    assert_eq!(ids.len(), count);
    // Nine in ten go, in no order: some are killed, some close.
    let mut random = StdRng::seed_from_u64(seed);
    let mut leavers: Vec<usize> = (0..count).filter(|_| random.random_ratio(9, 10)).collect();
    for at in (1..leavers.len()).rev() {
        leavers.swap(at, random.random_range(0..=at));
    }
    for leaver in &leavers {
        if random.random_ratio(1, 2) {
            let kill = format!("CLIENT KILL ID {}", ids[*leaver]);
            assert_eq!(observer.call(&kill), Int(1));
        }
        waiters[*leaver] = None;
    }
    let left = i64::try_from(count - leavers.len()).unwrap();
    server.await_info("blocked_clients", left);
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
        assert_eq!(client.call(&format!("LOCK.RELEASE k owner{i}")), Int(1));
    }
    assert_nothing_remembered(&mut observer);
    let leavers = i64::try_from(leavers.len()).unwrap();
    assert_eq!(observer.info("lock_waits_abandoned"), abandoned + leavers);
    drop((waiters, holder));
    await_end(&mut observer);
}

#[test]
fn ten_thousand_waiters_time_out_at_once_and_leave_nothing() {
    need_files(10_500);
    let clock = Clock::new();
    let server = clock.server_with(&["--maxclients", "12000"]);
    all_time_out(&server, &clock, 10_000, 100);
}

/// Has so many clients wait, and then sets the clock ahead by so many seconds in all.
fn all_time_out(server: &Server, clock: &Clock, count: usize, ahead_s: i64) {
    let (mut holder, mut observer) = (server.client(), server.client());
    let timed_out = observer.info("lock_wait_timeouts");
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let mut waiters = crowd(server, count, |i| {
        format!("LOCK.ACQUIRE k owner{i} BLOCK 60000")
    });
    clock.set_ahead(ahead_s);
    for client in waiters.iter_mut().flatten() {
        assert_eq!(client.reply(), Nil);
    }
    assert_nothing_remembered(&mut observer);
    let expected = timed_out + i64::try_from(count).unwrap();
    assert_eq!(observer.info("lock_wait_timeouts"), expected);
    // The lock is as it was, and the queue is open.
    let first = waiters[0].as_mut().unwrap();
    first.send("LOCK.ACQUIRE k owner0 BLOCK 0");
    server.await_info("blocked_clients", 1);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), Int(1));
    assert!(matches!(first.reply(), Value::Int(_)));
    assert_eq!(first.call("LOCK.RELEASE k owner0"), Int(1));
    drop((waiters, holder));
    await_end(&mut observer);
}

/// The observers of a test and of its caller, if it has one, stay.
fn await_end(observer: &mut Client) {
    eventually("all have gone", || observer.info("connected_clients") <= 2);
}
