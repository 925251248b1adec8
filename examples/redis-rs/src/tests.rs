//! Against the server that `REDIS_URL` names. Each test has keys of its own.

use std::thread;

use redis::Commands;

use super::*;

fn connection() -> Connection {
    connect(&env::var("REDIS_URL").unwrap()).unwrap()
}

#[test]
fn one_at_a_time() {
    let mut redis = connection();
    let _: () = redis.set("counter", 0).unwrap();
    let adders: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(|| {
                let (mut redis, mut unguarded) = (connection(), connection());
                for _ in 0..10 {
                    let _held = lock(&mut redis, "one", BLOCK_MS).unwrap().unwrap();
                    let count: u64 = unguarded.get("counter").unwrap();
                    let _: () = unguarded.set("counter", count + 1).unwrap();
                }
            })
        })
        .collect();
    for adder in adders {
        adder.join().unwrap();
    }
    assert_eq!(redis.get::<_, u64>("counter").unwrap(), 80);
}

#[test]
fn a_release_ends_the_wait() {
    let (mut redis, mut observer) = (connection(), connection());
    let held = lock(&mut redis, "two", BLOCK_MS).unwrap().unwrap();
    let token = held.token;
    let mut other = connection();
    let id: i64 = cmd("CLIENT").arg("ID").query(&mut other).unwrap();
    let waiter = thread::spawn(move || {
        let held = lock(&mut other, "two", BLOCK_MS).unwrap().unwrap();
        held.token
    });
    let mut look = || -> String {
        let list = cmd("CLIENT").arg(("LIST", "ID", id)).to_owned();
        list.query(&mut observer).unwrap()
    };
    while !look().contains(" flags=b ") {
        thread::yield_now();
    }
    assert!(!waiter.is_finished());
    drop(held);
    assert!(waiter.join().unwrap() > token);
}

#[test]
fn a_wait_that_is_over() {
    let (mut redis, mut other) = (connection(), connection());
    let _held = lock(&mut redis, "three", BLOCK_MS).unwrap().unwrap();
    assert!(lock(&mut other, "three", 50).unwrap().is_none());
}
