//! Other commands on the key of a lock that is waited for: its waiter gets the
//! lock, or hears why it can't.

use std::time::Duration;

use redis::Value;
use redis_lock_testing::scene::{await_waiting, transaction};
use redis_lock_testing::{Client, TestServer, eventually, int, nil, status};

/// A holder, a waiter, and somebody who knows nothing of locks.
struct Scene {
    server: TestServer,
    holder: Client,
    waiter: Client,
    stranger: Client,
    token: i64,
}

impl Scene {
    fn set() -> Self {
        Self::set_on(TestServer::start(), 0)
    }

    /// No event tells of what happens then.
    fn set_with_regular_looks() -> Self {
        let server = TestServer::start();
        let looks = "CONFIG SET lock.recheck-interval 500";
        assert_eq!(server.client().call(looks), status("OK"));
        Self::set_on(server, 0)
    }

    fn set_on(server: TestServer, db: u8) -> Self {
        let [mut holder, mut waiter, mut stranger] = [(); 3].map(|()| {
            let mut client = server.client();
            client.call(&format!("SELECT {db}"));
            client
        });
        let token = holder.int("LOCK.ACQUIRE k holder LEASE 600000");
        waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
        server.await_blocked(1);
        stranger.call("PING");
        Self {
            stranger,
            server,
            holder,
            waiter,
            token,
        }
    }

    /// The waiter has the lock now, and the former holder has nothing.
    #[track_caller]
    fn assert_handed_on(mut self) {
        let Value::Int(token) = self.waiter.reply() else {
            panic!("the waiter was not granted the lock");
        };
        assert!(token > self.token);
        assert_eq!(
            self.stranger.hash("k"),
            [
                ("@fence".into(), token.to_string()),
                ("waiter".into(), "1".into())
            ]
        );
        assert_eq!(self.holder.call("LOCK.RENEW k holder"), int(0));
        assert_eq!(self.waiter.call("LOCK.RELEASE k waiter"), int(1));
        assert_eq!(self.stranger.call("EXISTS k"), int(0));
    }
}

/// The command frees the lock, so the waiter must have it.
#[track_caller]
fn check_handed_on(command: &str) {
    let mut scene = Scene::set();
    let reply = scene.stranger.call(command);
    assert!(
        !matches!(reply, Value::ServerError(_)),
        "{command}: {reply:?}"
    );
    scene.assert_handed_on();
}

#[test]
fn del() {
    check_handed_on("DEL k");
}

#[test]
fn del_in_another_database() {
    let mut scene = Scene::set_on(TestServer::start(), 5);
    // The lock of that name in database 0 has nothing to do with it.
    let mut elsewhere = scene.server.client();
    elsewhere.call("LOCK.ACQUIRE k waiter LEASE 600000");
    assert_eq!(scene.stranger.call("DEL k"), int(1));
    scene.assert_handed_on();
}

#[test]
fn unlink() {
    check_handed_on("UNLINK k");
}

#[test]
fn getdel_is_refused_and_changes_nothing() {
    let mut scene = Scene::set();
    assert!(scene.stranger.error("GETDEL k").starts_with("WRONGTYPE "));
    assert_eq!(scene.server.info("blocked_clients"), 1);
}

#[test]
fn expire_in_the_past() {
    check_handed_on("EXPIRE k -1");
}

#[test]
fn pexpire_to_a_few_milliseconds() {
    check_handed_on("PEXPIRE k 20");
}

#[test]
fn hdel_of_the_owner() {
    check_handed_on("HDEL k holder");
}

#[test]
fn hdel_of_all_fields() {
    check_handed_on("HDEL k holder @fence");
}

#[test]
fn rename_to_another_key() {
    check_handed_on("RENAME k elsewhere");
}

#[test]
fn move_to_another_database() {
    check_handed_on("MOVE k 1");
}

#[test]
fn flushdb() {
    check_handed_on("FLUSHDB");
}

#[test]
fn flushall() {
    check_handed_on("FLUSHALL");
}

#[test]
fn restore_of_a_free_locks_remains() {
    let mut scene = Scene::set();
    scene.stranger.call("HSET remains @fence 5");
    let Value::BulkString(dump) = scene.stranger.call("DUMP remains") else {
        panic!("DUMP did not answer bytes");
    };
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"0", &dump, b"REPLACE"];
    assert_eq!(scene.stranger.words(&restore), status("OK"));
    scene.assert_handed_on();
}

#[test]
fn copy_of_a_free_locks_remains() {
    let mut scene = Scene::set();
    scene.stranger.call("HSET remains @fence 5");
    assert_eq!(scene.stranger.call("COPY remains k REPLACE"), int(1));
    scene.assert_handed_on();
}

#[test]
fn restore_of_anothers_lock_makes_the_waiter_wait_for_that_one() {
    let mut scene = Scene::set();
    scene
        .stranger
        .call("LOCK.ACQUIRE other stranger LEASE 600000");
    assert_eq!(scene.stranger.call("COPY other k REPLACE"), int(1));
    assert_eq!(scene.holder.call("LOCK.RENEW k holder"), int(0));
    assert_eq!(scene.server.info("blocked_clients"), 1);
    assert_eq!(scene.stranger.call("LOCK.RELEASE k stranger"), int(1));
    scene.assert_handed_on();
}

#[test]
fn swapdb_with_an_empty_database() {
    check_handed_on("SWAPDB 0 1");
}

#[test]
fn migrate_to_another_server() {
    let target = TestServer::start();
    let port = target.addr().port();
    check_handed_on(&format!("MIGRATE 127.0.0.1 {port} k 0 5000"));
    let mut there = target.client();
    assert_eq!(there.call("LOCK.ACQUIRE k other"), Value::Nil);
    assert_eq!(there.call("LOCK.RELEASE k holder"), int(1));
}

#[test]
fn overwritten_and_deleted() {
    let mut scene = Scene::set();
    scene.stranger.send_bytes(b"SET k v\r\nDEL k\r\n");
    assert_eq!(scene.stranger.reply(), status("OK"));
    assert_eq!(scene.stranger.reply(), int(1));
    scene.assert_handed_on();
}

#[test]
fn evicted_by_any_policy_that_may() {
    for policy in [
        "allkeys-random",
        "allkeys-lru",
        "volatile-ttl",
        "volatile-lru",
    ] {
        check_evicted(policy);
    }
}

#[track_caller]
fn check_evicted(policy: &str) {
    let mut scene = Scene::set();
    let set = format!("CONFIG SET maxmemory-policy {policy}");
    assert_eq!(scene.stranger.call(&set), status("OK"));
    scene.stranger.call("CONFIG SET maxmemory 1");
    // Eviction comes with the next command that may need memory, and takes the
    // grant to the waiter too, as often as it can.
    scene.stranger.call("SET x y");
    scene.stranger.call("CONFIG SET maxmemory 0");
    assert!(matches!(scene.waiter.reply(), Value::Int(token) if token > scene.token));
    assert_eq!(scene.holder.call("LOCK.RENEW k holder"), int(0));
}

#[test]
fn overwritten_by_any_command_tells_the_waiter() {
    for commands in [
        &["SET k v"][..],
        &["SETEX k 100 v"],
        &["PSETEX k 100000 v"],
        &["MSET other v k v"],
        &["SET string v", "BITOP NOT k string"],
        &["SET string v", "COPY string k REPLACE"],
        &["SET string v", "RENAME string k"],
        &["SADD set m", "SUNIONSTORE k set"],
        &["RPUSH list 1", "SORT list STORE k"],
        &["ZADD zset 1 m", "ZUNIONSTORE k 1 zset"],
        &["ZADD zset 1 m", "ZRANGESTORE k zset 0 1"],
        &[
            "GEOADD geo 1 1 m",
            "GEOSEARCHSTORE k geo FROMMEMBER m BYRADIUS 1 m",
        ],
        &["MULTI", "SET k v", "EXEC"],
    ] {
        check_overwritten(commands);
    }
}

#[track_caller]
fn check_overwritten(commands: &[&str]) {
    let mut scene = Scene::set_with_regular_looks();
    for command in commands {
        let reply = scene.stranger.call(command);
        assert!(
            !matches!(reply, Value::ServerError(_)),
            "{command}: {reply:?}"
        );
    }
    let error = scene.waiter.reply_error();
    assert!(error.starts_with("WRONGTYPE "), "{commands:?}: {error}");
    // And so it is for who waits next.
    scene.stranger.call("DEL k");
    assert!(matches!(
        scene.holder.call("LOCK.ACQUIRE k holder"),
        Value::Int(_)
    ));
    scene.waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    scene.server.await_blocked(1);
    scene.stranger.call("SET k v");
    assert!(scene.waiter.reply_error().starts_with("WRONGTYPE "));
}

#[test]
fn overwritten_by_a_script_tells_the_waiter() {
    const SET: &[u8] = b"return redis.call('set', 'k', 'v')";
    let mut scene = Scene::set_with_regular_looks();
    let eval: [&[u8]; 3] = [b"EVAL", SET, b"0"];
    assert_eq!(scene.stranger.words(&eval), status("OK"));
    assert!(scene.waiter.reply_error().starts_with("WRONGTYPE "));
}

#[test]
fn made_into_something_that_is_no_lock_tells_the_waiter() {
    let mut scene = Scene::set();
    scene.stranger.call("HSET k other 1 another 2");
    assert!(scene.waiter.reply_error().starts_with("NOTALOCK "));
}

#[test]
fn overwritten_by_rename_of_a_free_locks_remains() {
    let mut scene = Scene::set();
    scene.stranger.call("HSET remains @fence 9000000000000");
    assert_eq!(scene.stranger.call("RENAME remains k"), status("OK"));
    scene.assert_handed_on();
}

#[test]
fn persist_keeps_the_lock_held_until_it_is_released() {
    let mut scene = Scene::set();
    assert_eq!(scene.stranger.call("PERSIST k"), int(1));
    assert_eq!(scene.holder.call("LOCK.ACQUIRE k holder"), int(scene.token));
    assert_eq!(scene.stranger.call("PTTL k"), int(-1));
    assert_eq!(scene.server.info("blocked_clients"), 1);
    assert_eq!(scene.holder.call("LOCK.RELEASE k holder ALL"), int(1));
    assert!(matches!(scene.waiter.reply(), Value::Int(_)));
}

#[test]
fn in_a_transaction_that_frees_and_retakes_it() {
    let mut scene = Scene::set();
    scene.stranger.call("MULTI");
    scene.stranger.call("DEL k");
    scene.stranger.call("LOCK.ACQUIRE k stranger");
    let Value::Array(replies) = scene.stranger.call("EXEC") else {
        panic!("EXEC did not answer a list");
    };
    assert_eq!(replies, [int(1), Value::Nil]);
    scene.assert_handed_on();
}

#[test]
fn who_is_put_in_the_holders_stead_is_known_at_once() {
    let mut scene = Scene::set();
    let commands = [
        "HSET k other 1",
        "HDEL k holder",
        "LOCK.ACQUIRE k newcomer",
        "LOCK.ACQUIRE k other HOLD 1",
        "LOCK.ACQUIRE k holder HOLD 1",
    ];
    let replies = transaction(&mut scene.stranger, &commands);
    assert_eq!(replies[2..], [nil(), int(scene.token), nil()]);
}

#[test]
fn redissons_scripts() {
    // What Redisson sends, abridged to what touches the lock's key.
    const LOCK: &[u8] = b"if redis.call('exists', KEYS[1]) == 0 \
        or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then \
        redis.call('hincrby', KEYS[1], ARGV[2], 1); \
        redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
        return redis.call('pttl', KEYS[1]);";
    const UNLOCK: &[u8] = b"if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil; end; \
        if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0; end; \
        redis.call('del', KEYS[1]); return 1;";
    let server = TestServer::start();
    let (mut redisson, mut waiter) = (server.client(), server.client());
    let lock: [&[u8]; 6] = [b"EVAL", LOCK, b"1", b"k", b"30000", b"uuid:1"];
    let unlock: [&[u8]; 5] = [b"EVAL", UNLOCK, b"1", b"k", b"uuid:1"];
    assert_eq!(redisson.words(&lock), Value::Nil);
    assert_eq!(redisson.words(&lock), Value::Nil);
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    assert_eq!(redisson.words(&unlock), int(0));
    assert_eq!(server.info("blocked_clients"), 1);
    assert_eq!(redisson.words(&unlock), int(1));
    assert!(matches!(waiter.reply(), Value::Int(_)));
    assert!(matches!(redisson.words(&lock), Value::Int(pttl) if pttl > 29_000));
    assert_eq!(waiter.call("LOCK.RELEASE k waiter"), int(1));
    // And Redisson's nested hold in its turn, seen and released natively.
    assert_eq!(redisson.words(&lock), Value::Nil);
    assert!(matches!(
        redisson.call("LOCK.ACQUIRE k uuid:1"),
        Value::Int(_)
    ));
    assert_eq!(redisson.words(&unlock), int(0));
    assert_eq!(redisson.call("LOCK.RELEASE k uuid:1"), int(1));
}

#[test]
fn a_key_that_expires_by_itself_in_the_background_is_handed_on() {
    let server = TestServer::start();
    let (mut holder, mut waiter) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    holder.call("PEXPIRE k 5");
    eventually("the waiter holds the lock", || {
        holder.call("HEXISTS k waiter") == int(1)
    });
    assert!(matches!(waiter.reply(), Value::Int(_)));
}

#[test]
fn client_pause_puts_a_hand_off_off_and_hurts_nobody() {
    let server = TestServer::start();
    let (mut holder, mut waiter) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter BLOCK 0");
    server.await_blocked(1);
    let start = std::time::Instant::now();
    // In one turn of the event loop, so the lease ends in the pause.
    holder.send_bytes(b"LOCK.RENEW k holder LEASE 100\r\nCLIENT PAUSE 500 WRITE\r\n");
    assert_eq!([holder.reply(), holder.reply()], [int(1), status("OK")]);
    assert!(matches!(waiter.reply(), Value::Int(_)));
    assert!(start.elapsed() >= std::time::Duration::from_millis(499));
}

/// How much processor time the server has used.
fn processor_time(client: &mut Client) -> f64 {
    let info = client.bulk("INFO cpu");
    let seconds = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
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
fn an_expiry_at_the_end_of_time_keeps_the_server_at_rest() {
    let mut scene = Scene::set();
    let last = "PEXPIREAT k 9223372036854775807";
    assert_eq!(scene.stranger.call(last), int(1));
    assert_rests(&mut scene.stranger, last);
    scene.server.assert_sound();
    assert_eq!(scene.holder.call("LOCK.RELEASE k holder"), int(1));
    scene.assert_handed_on();
}

#[test]
fn a_permit_until_the_end_of_time_keeps_the_server_at_rest() {
    for expiry in ["PERSIST k", "PEXPIREAT k 9223372036854775807"] {
        let server = TestServer::start();
        let (mut client, mut waiter) = (server.client(), server.client());
        let token = client
            .int("LOCK.ACQUIRE k a LEASE 600000 SHARED")
            .to_string();
        let permit = format!("0 {token} 9223372036854775807");
        let write = [b"HSET", b"k".as_slice(), b"@permit:a", permit.as_bytes()];
        assert_eq!(client.words(&write), int(0));
        assert_eq!(client.call(expiry), int(1));
        waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
        await_waiting(&mut client, "k", 1);
        assert_rests(&mut client, expiry);
        server.assert_sound();
        assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
        assert!(matches!(waiter.reply(), Value::Int(_)));
    }
}
