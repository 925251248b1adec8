//! Random words and random bytes: the server answers or closes the
//! connection, and lives.
//!
//! The same few runs each time, and one that is new. `FUZZ_SEED` repeats one,
//! `FUZZ_SECONDS` makes the new one longer.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redis_lock_testing::{Client, Okay, Server, eventually};

const NAMES: &str = "\
    LOCK.ACQUIRE LOCK.RELEASE LOCK.RENEW lock.acquire Lock.Release LOCK.INFO LOCK.LIST \
    LOCK.BREAK LOCK.GUARD";

/// How many batches each client sends in a run.
const ROUNDS: u32 = 100;

const FOREIGN: &str = "\
    DEL k | SET k v | HSET k a 1 | HSET k @fence 5 | HDEL k a | PEXPIRE k 3 | PERSIST k | \
    RENAME k l | COPY l k REPLACE | FLUSHALL | SWAPDB 0 1 | SELECT 1 | SELECT 0 | MULTI | \
    EXEC | DISCARD | HELLO 3 | HELLO 2 | CLIENT REPLY SKIP | RESET | RPUSH k x | \
    CLIENT NO-EVICT on | DEBUG RELOAD | CONFIG SET lock.max-waiters 2 | \
    CONFIG SET lock.max-waiters 1000 | CONFIG SET lock.claim-timeout 1 | \
    LOCK.ACQUIRE k a QUEUE 30000 ch | LOCK.ACQUIRE k b QUEUE 30000 ch | \
    LOCK.ACQUIRE k a QUEUE 30000 none SHARED | \
    LOCK.ACQUIRE l a LEASE 5 QUEUE 5 ch SESSION | \
    LOCK.ACQUIRE l b LEASE 5 QUEUE 30000 ch LIMIT 2 SESSION";

const WORDS: &str = "\
    k,l,,a,b,@a,LEASE,BLOCK,QUEUE,ch,HOLD,FENCE,ALL,lease,Block,SHARED,LIMIT,SESSION,\
    COUNT,0,1,2,5,-1,30000,9223372036854775807,9223372036854775808,-9223372036854775808,\
    9007199254740991,9007199254740992,1e3,01,+1, 1";

fn one_of<'l>(random: &mut StdRng, list: &'l str, between: &str) -> &'l str {
    let all: Vec<&str> = list.split(between).collect();
    all.choose(random).unwrap()
}

fn word(random: &mut StdRng) -> Vec<u8> {
    match random.random_range(0..20) {
        0 => {
            let length = random.random_range(0..64);
            random.random_iter().take(length).collect()
        }
        1 if random.random_ratio(1, 50) => vec![random.random(); 200_000],
        _ => one_of(random, WORDS, ",").into(),
    }
}

fn command(random: &mut StdRng) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    if random.random_ratio(1, 8) {
        for word in one_of(random, FOREIGN, " | ").split(' ') {
            command.arg(word);
        }
    } else {
        command.arg(one_of(random, NAMES, " "));
        for _ in 0..random.random_range(0..9) {
            command.arg(word(random));
        }
    }
    let mut bytes = command.get_packed_command();
    if random.random_ratio(1, 100) {
        let at = random.random_range(0..bytes.len());
        bytes[at] = random.random();
    }
    bytes
}

#[test]
fn the_server_survives_random_words_and_random_bytes() {
    let number = |name| std::env::var(name).ok().map(|n: String| n.parse().unwrap());
    let length = number("FUZZ_SECONDS").map(Duration::from_secs);
    match (number("FUZZ_SEED"), length) {
        (Some(seed), _) => run(seed, length),
        (None, None) => (1..=3).for_each(|seed| run(seed, None)),
        (None, Some(_)) => run(rand::random(), length),
    }
}

fn run(seed: u64, length: Option<Duration>) {
    println!("FUZZ_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start();
    let mut observer = server.client();
    let mut ears = server.client();
    ears.subscribe("SUBSCRIBE ch");
    let mut clients: Vec<Client> = (0..8).map(|_| server.client()).collect();
    let mut sent = 0;
    let start = Instant::now();
    let goes_on = |round| length.map_or(round < ROUNDS, |length| start.elapsed() < length);
    for _ in (0..).take_while(|round| goes_on(*round)) {
        for client in &mut clients {
            let batch: Vec<u8> = (0..20).flat_map(|_| command(&mut random)).collect();
            // The server may have closed it.
            let _ = client.connection.send_bytes(&batch);
            sent += 20;
            // Replies are not of interest; a client with a broken stream, one
            // that waits, or one that has many to read is replaced.
            if random.random_ratio(1, 4) {
                *client = server.client();
            }
        }
        assert_eq!(observer.bulk("PING"), "PONG", "FUZZ_SEED={seed}");
    }
    println!("{sent} commands in {:?}", start.elapsed());
    clients.clear();
    // Places outlive their connections. Where nobody hears, none is granted anything.
    drop(ears);
    assert_eq!(observer.call("FLUSHALL"), Okay);
    eventually("nobody waits", || observer.info("lock_waiters") == 0);
    assert!(
        !server.log().contains("panic in"),
        "FUZZ_SEED={seed}: {}",
        server.log()
    );
    assert!(matches!(
        observer.call("LOCK.ACQUIRE fresh a"),
        redis::Value::Int(_)
    ));
}
