//! What an operator sees, and how a lock is taken from its holders.

use redis::Value;
use redis_lock_testing::scene::{at, field};
use redis_lock_testing::{Play, reply_text, text};

#[test]
fn a_free_lock_has_neither_mode_nor_holders() {
    Play::start().run(
        "o > LOCK.INFO k -> {state 'free' mode null limit null fence null ttl -2 waiting 0}
        o > LOCK.INFO k -> {holders [] waiters []}
        o > EXISTS k -> 0",
    );
}

/// All of the fields of each, in order.
#[test]
fn an_exclusive_lock_with_a_session_and_waiters_of_all_modes() {
    let mut play = Play::start();
    play.run(
        "h > LOCK.ACQUIRE k h LONG SESSION -> H
        h > LOCK.ACQUIRE k h LONG -> H
        exclusive > LOCK.ACQUIRE k exclusive BLOCK 0 -> ..
        shared > LOCK.ACQUIRE k shared BLOCK 60000 SHARED -> ..
        limited > LOCK.ACQUIRE k limited BLOCK 60000 LIMIT 3 -> ..
        h > LOCK.ACQUIRE k place QUEUE 60000 mine LIMIT 7 -> 0
        h > LOCK.INFO k -> {holders.0.client $h}",
    );
    for protocol in [2, 3] {
        play.run(&format!(
            "o > HELLO {protocol}
            o > LOCK.INFO k -> {{state 'held' mode 'exclusive' limit 1 fence H ttl 590000..600000}}
            o > LOCK.INFO k -> {{holding 1 waiting 4 holders.0.owner 'h' holders.0.holds 2}}
            o > LOCK.INFO k -> {{holders.0.fence H holders.0.ttl 590000..600000 holders.1 nothing}}"
        ));
        let info = play.client("o").call("LOCK.INFO k");
        assert_eq!(matches!(info, Value::Map(_)), protocol == 3);
        for (nth, waiter, mode, timeout) in [
            (0, "exclusive", "'exclusive', 'limit', 1", "-1"),
            (1, "shared", "'shared', 'limit', 0", "1..60000"),
            (2, "limited", "'limited', 'limit', 3", "1..60000"),
        ] {
            let addr = reply_text(at(&info, &format!("waiters.{nth}.addr")).unwrap().clone());
            let addr = addr.unwrap();
            play.run(&format!(
                "o > CLIENT LIST ID ${waiter} -> ~ addr={addr}
                o > LOCK.INFO k -> {{waiters.{nth} ['owner', '{waiter}', 'mode', {mode}, \
                 'client', ${waiter}, 'addr', '{addr}', 'channel', null, 'waited', 0..9999, \
                 'timeout', {timeout}]}}"
            ));
        }
        play.run(
            "o > LOCK.INFO k -> {waiters.3 ['owner', 'place', 'mode', 'limited', 'limit', 7, \
             'client', null, 'addr', null, 'channel', 'mine', 'waited', 0..9999, \
             'timeout', 1..60000]}
            o > LOCK.LIST -> {0.waiting 4}",
        );
    }
}

#[test]
fn shared_and_limited_locks_over_resp3() {
    Play::start().run(
        "o > HELLO 3
        o > LOCK.ACQUIRE k r1 SHARED LEASE 50000 -> A
        o > LOCK.ACQUIRE k r2 SHARED LEASE 90000 -> B
        o > LOCK.INFO k -> {mode 'shared' limit 0 fence B holders.0 ['owner', 'r1', 'holds', 1, \
         'fence', A, 'ttl', 45000..50000, 'client', null]}
        o > LOCK.INFO k -> {holders.1 ['owner', 'r2', 'holds', 1, \
         'fence', B, 'ttl', 85000..90000, 'client', null]}
        o > LOCK.ACQUIRE pool p LIMIT 4 -> token
        o > LOCK.INFO pool -> {mode 'limited' limit 4}",
    );
}

#[test]
fn a_lock_that_redisson_holds_has_no_token() {
    Play::start().run(
        "o > HSET k 5f6c0e1e-6a0e-4a55-b5b5-0123456789ab:1 2
        o > PEXPIRE k 30000
        o > LOCK.INFO k -> {state 'held' fence null holders.0.holds 2 holders.0.fence null}
        o > HSET other a b
        o > LOCK.INFO other -> !NOTALOCK
        o > SET string s
        o > LOCK.INFO string -> !WRONGTYPE",
    );
}

#[test]
fn contended_locks_are_listed_longest_wait_first() {
    Play::start().run(
        "o > LOCK.LIST -> []
        each old middle young: o > LOCK.ACQUIRE # h LONG ; # > LOCK.ACQUIRE # w BLOCK 0 -> ..
        another > LOCK.ACQUIRE old w2 BLOCK 0 -> ..
        o > LOCK.ACQUIRE free h
        o > LOCK.LIST -> {0 ['key', 'old', 'holders', ['h'], 'waiting', 2, 'waited', 0..]}
        o > LOCK.LIST -> {1 ['key', 'middle', 'holders', ['h'], 'waiting', 1, 'waited', 0..]}
        o > LOCK.LIST -> {2.key 'young' 3 nothing}
        o > LOCK.LIST COUNT 2 -> {1.key 'middle' 2 nothing}
        each COUNT NOPE: o > LOCK.LIST # -> !ERR
        each 0 x 1: o > LOCK.LIST COUNT # COUNT 1 -> !ERR
        each 0 x: o > LOCK.LIST COUNT # -> !ERR
        o > SELECT 1
        o > LOCK.LIST -> []",
    );
}

#[test]
fn a_list_ends_after_ten_thousand_holders() {
    let crowds = b"for l = 1, 110 do \
        for h = 1, 100 do redis.call('LOCK.ACQUIRE', l, h, 'SHARED') end \
        redis.call('LOCK.ACQUIRE', l, 'w', 'QUEUE', 60000, 'channel') end";
    let mut play = Play::start();
    play.client("o").words(&[b"EVAL", crowds, b"0"]);
    play.run("o > LOCK.LIST -> {99.waiting 1 100 nothing}");
}

#[test]
fn a_replica_shows_what_the_data_shows() {
    Play::held().with_replica().run(
        "in step
        o@r > LOCK.LIST -> []
        o@r > LOCK.BREAK k -> !READONLY
        o@r > LOCK.INFO k -> {fence H}",
    );
}

/// Redis 7.4, Valkey 8 and later let modules have ACL categories. Before that an
/// administrator has to name the commands.
#[test]
fn a_category_of_the_acl_has_all_the_commands_since_7_4() {
    let mut play = Play::start();
    let reply = match play.version() < (7, 4) {
        true => "!ERR Error in ACL SETUSER modifier '+@lock': Unknown command or category name",
        false => "OK",
    };
    play.run(&format!(
        "o > ACL SETUSER worker on nopass ~* +@lock -> {reply}"
    ));
    if play.version() < (7, 4) {
        play.run("o > ACL SETUSER worker on nopass ~* +lock.acquire +lock.release -> OK");
    }
    play.run(
        "w > AUTH worker x
        w > LOCK.ACQUIRE w w -> token
        w > LOCK.RELEASE w w -> 1
        w > GET w -> !NOPERM",
    );
}

#[test]
fn the_list_shows_only_locks_whose_keys_the_user_may_read() {
    let mut play = Play::start();
    let keys = ["secret:1", "mine:1", "secret:2", "mine:2", "secret:3"];
    for key in keys {
        play.run(&format!(
            "o > LOCK.ACQUIRE {key} holder LONG
            {key} > LOCK.ACQUIRE {key} w BLOCK 0 -> .."
        ));
    }
    let mine = [text("mine:1"), text("mine:2")];
    let all = keys.map(text);
    for (user, rights, counts) in [
        ("reader", "%R~mine:*", [&mine[..], &mine[..1], &mine]),
        ("both", "~mine:*", [&mine, &mine[..1], &mine]),
        ("writer", "%W~mine:*", [&[], &[], &[]]),
        ("all", "~*", [&all, &all[..1], &all[..2]]),
    ] {
        play.run(&format!(
            "o > ACL SETUSER {user} on nopass {rights} +lock.list
            {user} > AUTH {user} x"
        ));
        for (count, shown) in ["", " COUNT 1", " COUNT 2"].into_iter().zip(counts) {
            let Value::Array(listed) = play.client(user).call(&format!("LOCK.LIST{count}")) else {
                panic!("no list");
            };
            let keys = listed.iter().map(|lock| field(lock, "key").clone());
            assert_eq!(keys.collect::<Vec<Value>>(), shown, "{user}{count}");
        }
    }
}

/// Pipelined commands run in one turn of the server's event loop, before the
/// waiter that the first one grants the lock can be told.
#[test]
fn a_slow_wait_and_a_refused_deadlock_are_logged_once() {
    let mut play = Play::start();
    // Two more looks at the key find nothing new.
    play.run(
        "o > CONFIG SET lock.log-slow-wait 20
        o > LOCK.ACQUIRE k1 a LONG SESSION -> token
        o > LOCK.ACQUIRE k2 b LONG -> token
        b > LOCK.ACQUIRE k1 b BLOCK 0 -> ..
        logged slow wait: 'b'
        o > LOCK.ACQUIRE k2 a BLOCK 0 -> !DEADLOCK
        c > LOCK.ACQUIRE k1 c BLOCK 0 -> ..
        logged slow wait: 'c'
        logged deadlock refused: 'a' waits for 'k2' held by 'b'",
    );
    let log = play.log();
    let mut lines = log.lines().filter(|line| line.contains("slow wait: 'b'"));
    let line = lines.next().unwrap();
    assert_eq!(lines.next(), None);
    let client = format!("(client id={} addr=", play.client("o").int("CLIENT ID"));
    for part in ["for 'k1' in database 0", "held by 'a'", &client] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

#[test]
fn the_life_of_a_lock_can_be_listened_to() {
    Play::start().run(
        "o > CONFIG SET notify-keyspace-events Kd
        l > SUBSCRIBE __keyspace@0__:k -> _
        o > LOCK.ACQUIRE k a
        o > LOCK.ACQUIRE k a
        o > LOCK.RELEASE k a
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        o > LOCK.RELEASE k a
        b < token
        c > LOCK.ACQUIRE k c BLOCKED -> ..
        o > LOCK.RENEW k b LEASE 20 -> 1
        c < token
        o > LOCK.BREAK k
        each acquire release acquire expire acquire break: l < [_, _, 'lock.#']",
    );
}

#[test]
fn the_ends_of_crowds_are_heard_of_each_in_its_database_before_the_next_grant() {
    Play::start().run(
        "o > CONFIG SET notify-keyspace-events Kd
        s > SELECT 3
        each 1..1000: s > LOCK.ACQUIRE k n# LONG SHARED SESSION -> token
        s > SELECT 5
        each 1..1000: s > LOCK.ACQUIRE k n# LONG SHARED SESSION -> token
        each 3 5: l# > SUBSCRIBE __keyspace@#__:k -> _
        o > SELECT 5
        o > CLIENT KILL ID $s | LOCK.ACQUIRE k x | LOCK.RELEASE k x -> 1 | token | 1
        each 1..1000: l3 < [_, '__keyspace@3__:k', 'lock.release']
        each 1..1000: l5 < [_, '__keyspace@5__:k', 'lock.release']
        each acquire release: l5 < [_, '__keyspace@5__:k', 'lock.#']",
    );
}

/// A search for deadlocks finds that a lease is over before anybody else does: nothing
/// else runs after the sleep. A writer's is heard of, too.
#[test]
fn a_readers_end_that_a_search_finds_is_counted_once() {
    let heard = "each expire acquire: l < [_, _, 'lock.#']";
    for [mode, takes, leaves, heard] in [
        ["", "", "", heard],
        [
            "SHARED",
            "o > LOCK.ACQUIRE k1 other LONG SHARED",
            "o > LOCK.RELEASE k1 other -> 1",
            "",
        ],
    ] {
        Play::start().run(&format!(
            "ann > LOCK.ACQUIRE k1 ann LONG {mode} -> token
            {takes}
            ann > LOCK.ACQUIRE k2 bob LONG -> token
            bob > LOCK.ACQUIRE k1 bob BLOCKED -> ..
            o > CONFIG SET notify-keyspace-events Kd
            l > SUBSCRIBE __keyspace@0__:k1 -> _
            ann > LOCK.RENEW k1 ann LEASE 50 | DEBUG SLEEP 0.2 | LOCK.ACQUIRE k2 ann BLOCK 0 \
             -> 1 | OK | ..
            settled
            o > HGET k1 ann -> null
            lock_deadlocks_refused = 0
            {leaves}
            bob < token
            lock_releases_expired = 1
            lock_releases_deleted = 0
            {heard}"
        ));
    }
}

/// The server does not tell of a `SET`. The module's regular look finds it.
#[test]
fn a_wait_that_ends_with_an_error_is_counted() {
    Play::start().run(
        "o > CONFIG SET lock.recheck-interval 500
        o > LOCK.ACQUIRE k ann LONG -> token
        bob > LOCK.ACQUIRE k bob BLOCK 0 -> ..
        o > SET k text
        bob < !WRONGTYPE
        lock_waits_refused = 1",
    );
}

#[test]
fn the_list_of_modules_and_info_show_the_version() {
    let number = |shown: i64, part: &str| shown * 100 + part.parse::<i64>().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let shown = version.split('.').fold(0, number);
    Play::start().run(&format!(
        "o > MODULE LIST -> ~'name', 'lock', 'ver', {shown}
        o > INFO lock -> ~lock_version:{version}"
    ));
}
