//! Other commands on the key of a lock that is waited for: its waiter gets the
//! lock, or hears why it can't.

use std::time::Duration;

use redis::Value;
use redis_lock_testing::{Client, Int, Play, Server};

/// `h` holds `k`, `w` waits for it, and `p` has a place behind that.
#[track_caller]
fn lined_up() -> Play {
    let mut play = Play::held();
    line_up(&mut play);
    play
}

/// No event tells of what happens then.
#[track_caller]
fn lined_up_with_regular_looks() -> Play {
    let mut play = Play::held();
    play.run("o > CONFIG SET lock.recheck-interval 500 -> OK");
    line_up(&mut play);
    play
}

#[track_caller]
fn line_up(play: &mut Play) {
    play.run(
        "w > LOCK.ACQUIRE k w BLOCKED -> ..
        ears > LOCK.ACQUIRE k p PLACED -> 0",
    );
}

/// Those who wait have the lock now, one after the other, and the former holder nothing.
#[track_caller]
fn assert_handed_on(play: &mut Play) {
    play.run(
        "w < W
        ears heard nothing
        w > HLEN k -> 2
        w > HGET k w -> '1'
        w > HGET k @fence -> '$W'
        h > LOCK.RENEW k h -> 0
        w > LOCK.RELEASE k w -> 1
        ears heard p P
        w > HGET k @fence -> '$P'
        w > LOCK.RELEASE k p -> 1
        w > EXISTS k -> 0",
    );
    play.run("sound");
}

#[test]
fn what_frees_the_lock_hands_it_on() {
    let target = Server::start();
    for free in [
        "o > DEL k -> 1",
        "o > UNLINK k -> 1",
        "o > EXPIRE k -1 -> 1",
        "o > PEXPIRE k 20 -> 1",
        "o > HDEL k h -> 1",
        "o > HDEL k h @fence -> 2",
        "o > RENAME k elsewhere -> OK",
        "o > MOVE k 1 -> 1",
        "o > FLUSHDB -> OK",
        "o > FLUSHALL -> OK",
        "o > SWAPDB 0 1 -> OK",
        "o > LOCK.BREAK k -> 1",
        "o > LOCK.RENEW k h LEASE 1 -> 1",
        "o > SET k v | DEL k -> OK | 1",
        "o >> DEL k | LOCK.ACQUIRE k o -> 1 | null",
        // What is left of a lock that is free.
        "o > HSET remains @fence 5 \n o > COPY remains k REPLACE -> 1",
        "o > HSET remains @fence 9000000000000 \n o > RENAME remains k -> OK",
        &format!(
            "o > MIGRATE 127.0.0.1 {} k 0 5000 REPLACE -> OK",
            target.port
        ),
    ] {
        assert_handed_on(lined_up().run(free));
        // And where a place is the first in line.
        Play::held().run(&format!(
            "ears > LOCK.ACQUIRE k p PLACED -> 0
            {free}
            ears heard p P
            h > HGET k @fence -> '$P'
            h > LOCK.RENEW k h -> 0"
        ));
    }
    // It is held there.
    let mut there = target.client();
    assert_eq!(there.call("LOCK.ACQUIRE k other"), Value::Nil);
    assert_eq!(there.call("LOCK.RELEASE k h"), Int(1));
}

/// The lock of that name in database 0 has nothing to do with it.
#[test]
fn a_lock_of_another_database_is_another_lock() {
    Play::start().run(
        "elsewhere > LOCK.ACQUIRE k w LONG -> token
        h > SELECT 5
        w > SELECT 5
        h > LOCK.ACQUIRE k h LONG -> H
        w > LOCK.ACQUIRE k w BLOCKED -> ..
        h > DEL k -> 1
        w < token
        elsewhere > HGET k w -> '1'",
    );
}

#[test]
fn restore_of_a_free_locks_remains_hands_it_on() {
    let mut play = lined_up();
    play.run("o > HSET remains @fence 5");
    let Value::BulkString(dump) = play.client("o").call("DUMP remains") else {
        panic!("DUMP did not answer bytes");
    };
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"0", &dump, b"REPLACE"];
    assert_eq!(play.client("o").words(&restore), Value::Okay);
    assert_handed_on(&mut play);
}

#[test]
fn what_leaves_the_lock_held_leaves_its_waiters() {
    for (change, holder) in [
        ("o > GETDEL k -> !WRONGTYPE", "h"),
        (
            "o > LOCK.ACQUIRE other o LONG
            o > COPY other k REPLACE -> 1
            h > LOCK.RENEW k h -> 0",
            "o",
        ),
        (
            "o > PERSIST k -> 1
            h > LOCK.ACQUIRE k h LEASE 900000 -> H
            h > PTTL k -> -1
            h >> LOCK.RENEW k h LONG | PEXPIRE k 9000 | LOCK.RENEW k h LONG -> 1 | 1 | 1
            h > PTTL k -> 599001..",
            "h",
        ),
        (
            "o >> HSET k o 1 | HDEL k h | LOCK.ACQUIRE k new -> 1 | 1 | null
            o > LOCK.ACQUIRE k o HOLD 1 -> H
            h > LOCK.ACQUIRE k h HOLD 1 -> null",
            "o",
        ),
    ] {
        let mut play = lined_up();
        play.run(&format!(
            "{change}
            queue k = w p
            o > LOCK.RELEASE k {holder} ALL -> 1"
        ));
        assert_handed_on(&mut play);
    }
}

/// Eviction comes with the next command that may need memory, and takes the grant to the
/// waiter too, as often as it can.
#[test]
fn evicted_by_any_policy_that_may() {
    for policy in [
        "allkeys-random",
        "allkeys-lru",
        "volatile-ttl",
        "volatile-lru",
    ] {
        lined_up().run(&format!(
            "o > CONFIG SET maxmemory-policy {policy} -> OK
            o > CONFIG SET maxmemory 1
            o > SET x y -> _
            o > CONFIG SET maxmemory 0
            w < W
            h > LOCK.RENEW k h -> 0"
        ));
    }
}

#[test]
fn what_makes_the_key_no_lock_tells_those_who_wait() {
    for commands in [
        "SET k v",
        "SETEX k 100 v",
        "PSETEX k 100000 v",
        "MSET other v k v",
        "SET string v | BITOP NOT k string",
        "SET string v | COPY string k REPLACE",
        "SET string v | RENAME string k",
        "SADD set m | SUNIONSTORE k set",
        "RPUSH list 1 | SORT list STORE k",
        "ZADD zset 1 m | ZUNIONSTORE k 1 zset",
        "ZADD zset 1 m | ZRANGESTORE k zset 0 1",
        "GEOADD g 1 1 m | GEOSEARCHSTORE k g FROMMEMBER m BYRADIUS 1 m",
        "MULTI | SET k v | EXEC",
        "EVAL \"return redis.call('set', 'k', 'v')\" 0",
    ] {
        let mut play = lined_up_with_regular_looks();
        play.run(&format!("o > {commands}"));
        // And so it is for who waits next.
        play.run(
            "w < !WRONGTYPE
            ears heard p !WRONGTYPE
            lock_places = 0
            lock_waits_refused = 2
            ears > LOCK.ACQUIRE k p PLACED -> !WRONGTYPE
            o > DEL k
            h > LOCK.ACQUIRE k h -> token
            w > LOCK.ACQUIRE k w BLOCK 0 -> ..
            o > SET k v
            w < !WRONGTYPE",
        );
    }
    lined_up().run(
        "o > HSET k other 1 another 2
        w < !NOTALOCK
        ears heard p !NOTALOCK",
    );
}

#[test]
fn redissons_scripts() {
    // What Redisson sends, abridged to what touches the lock's key.
    let lock = "if redis.call('exists', KEYS[1]) == 0 \
        or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then \
        redis.call('hincrby', KEYS[1], ARGV[2], 1); \
        redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
        return redis.call('pttl', KEYS[1]);";
    let unlock = "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil; end; \
        if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0; end; \
        redis.call('del', KEYS[1]); return 1;";
    // And Redisson's nested hold in its turn, seen and released natively.
    Play::start()
        .name("lock", format!("EVAL \"{lock}\" 1 k 30000 uuid:1"))
        .name("unlock", format!("EVAL \"{unlock}\" 1 k uuid:1"))
        .run(
            "r > $lock -> null
            r > $lock -> null
            w > LOCK.ACQUIRE k w BLOCK 0 -> ..
            r > $unlock -> 0
            blocked_clients = 1
            r > $unlock -> 1
            w < token
            r > $lock -> 29001..
            w > LOCK.RELEASE k w -> 1
            r > $lock -> null
            r > LOCK.ACQUIRE k uuid:1 -> token
            r > $unlock -> 0
            r > LOCK.RELEASE k uuid:1 -> 1",
        );
}

/// How much processor time the server has used.
fn processor_time(client: &mut Client) -> f64 {
    let info = client.bulk("INFO cpu");
    let used = |line: &str| {
        let user = line.strip_prefix("used_cpu_user:");
        let time = user.or(line.strip_prefix("used_cpu_sys:"))?;
        time.trim().parse::<f64>().ok()
    };
    info.lines().filter_map(used).sum()
}

/// While somebody waits and nothing happens the server rests.
#[track_caller]
fn assert_rests(client: &mut Client, what: &str) {
    const WATCHED: Duration = Duration::from_secs(2);
    let before = processor_time(client);
    std::thread::sleep(WATCHED);
    let used = processor_time(client) - before;
    // At rest it uses one percent. One that never rests uses all that a timer
    // of a millisecond lets it, which is ten times the bound.
    assert!(used < 0.1, "{what}: {used} s of {WATCHED:?}");
}

#[test]
fn an_end_that_never_comes_keeps_the_server_at_rest() {
    for expiry in ["PERSIST k", "PEXPIREAT k 9223372036854775807"] {
        let mut play = lined_up();
        play.run(&format!(
            "o > LOCK.RENEW k h LEASE 900 -> 1 \n o > {expiry} -> 1"
        ));
        assert_rests(play.client("o"), expiry);
        play.run("h > LOCK.RELEASE k h -> 1");
        assert_handed_on(&mut play);
        // And a permit without an end.
        play.run(&format!(
            "o > LOCK.ACQUIRE k a LONG SHARED -> A
            o > HSET k @permit:a \"0 $A 9223372036854775807\" -> 0
            o > {expiry} -> 1
            w > LOCK.ACQUIRE k w BLOCKED -> .."
        ));
        assert_rests(play.client("o"), expiry);
        play.run("sound \n o > LOCK.RELEASE k a -> 1 \n w < token");
    }
}
