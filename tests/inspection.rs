//! What an operator sees, and how a lock is taken from its holders.

use redis::Value;
use redis_lock_testing::{Client, Play, TestServer, eventually, int, nil, text};

/// The value of a field in a flat list of names and values.
#[track_caller]
fn field<'r>(map: &'r Value, name: &str) -> &'r Value {
    match map {
        Value::Array(words) => words
            .chunks(2)
            .find(|pair| pair[0] == text(name))
            .map(|pair| &pair[1]),
        Value::Map(pairs) => pairs
            .iter()
            .find(|(field, _)| *field == text(name))
            .map(|(_, value)| value),
        other => panic!("{other:?} is no map"),
    }
    .unwrap_or_else(|| panic!("{map:?} has no {name}"))
}

#[track_caller]
fn number(map: &Value, name: &str) -> i64 {
    match field(map, name) {
        Value::Int(number) => *number,
        other => panic!("{name}: {other:?} is no number"),
    }
}

#[track_caller]
fn list<'r>(map: &'r Value, name: &str) -> &'r [Value] {
    items(field(map, name))
}

#[track_caller]
fn items(list: &Value) -> &[Value] {
    match list {
        Value::Array(items) => items,
        other => panic!("{other:?} is no list"),
    }
}

#[test]
fn a_free_lock_has_neither_mode_nor_holders() {
    let server = TestServer::start();
    let mut client = server.client();
    let info = client.call("LOCK.INFO k");
    assert_eq!(field(&info, "state"), &text("free"));
    for name in ["mode", "limit", "fence"] {
        assert_eq!(field(&info, name), &nil(), "{name}");
    }
    assert_eq!(number(&info, "ttl"), -2);
    assert_eq!(number(&info, "waiting"), 0);
    assert!(list(&info, "holders").is_empty() && list(&info, "waiters").is_empty());
    assert_eq!(client.int("EXISTS k"), 0);
}

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
        bound k = h",
    );
    for protocol in [2, 3] {
        let info = play
            .run(&format!("o > HELLO {protocol}"))
            .client("o")
            .call("LOCK.INFO k");
        assert_eq!(matches!(info, Value::Map(_)), protocol == 3);
        assert_eq!(field(&info, "state"), &text("held"));
        assert_eq!(field(&info, "mode"), &text("exclusive"));
        assert_eq!(number(&info, "limit"), 1);
        assert_eq!(number(&info, "fence"), play.token("H"));
        assert!((590_000..=600_000).contains(&number(&info, "ttl")));
        assert_eq!(number(&info, "holding"), 1);
        assert_eq!(number(&info, "waiting"), 4);
        let [shown] = list(&info, "holders") else {
            panic!("not one holder: {info:?}");
        };
        assert_eq!(field(shown, "owner"), &text("h"));
        assert_eq!(number(shown, "holds"), 2);
        assert_eq!(number(shown, "fence"), play.token("H"));
        assert_eq!(number(shown, "ttl"), number(&info, "ttl"));
        check_waiters(&info, &play.client("o").bulk("CLIENT LIST"));
    }
    play.run("o > HELLO 2");
    let listed = play.client("o").call("LOCK.LIST");
    assert_eq!(number(&items(&listed)[0], "waiting"), 4);
}

/// Checks what `LOCK.INFO` tells of those who wait for `k`: all of its fields, in order.
#[track_caller]
fn check_waiters(info: &Value, clients: &str) {
    const FIELDS: [&str; 8] = [
        "owner", "mode", "limit", "client", "addr", "channel", "waited", "timeout",
    ];
    let waiters = list(info, "waiters");
    assert_eq!(waiters.len(), 4);
    for (waiter, (owner, mode, limit)) in waiters.iter().zip([
        ("exclusive", "exclusive", 1),
        ("shared", "shared", 0),
        ("limited", "limited", 3),
        ("place", "limited", 7),
    ]) {
        let names: Vec<Value> = match waiter {
            Value::Map(fields) => fields.iter().map(|(name, _)| name.clone()).collect(),
            flat => items(flat).iter().step_by(2).cloned().collect(),
        };
        assert_eq!(names, FIELDS.map(text));
        assert_eq!(field(waiter, "owner"), &text(owner));
        assert_eq!(field(waiter, "mode"), &text(mode));
        assert_eq!(number(waiter, "limit"), limit, "{owner}");
        assert!((0..10_000).contains(&number(waiter, "waited")));
        let timeout = number(waiter, "timeout");
        assert_eq!(timeout == -1, owner == "exclusive", "{owner}: {timeout}");
        assert!(timeout <= 60_000);
        if owner == "place" {
            assert_eq!(
                [field(waiter, "client"), field(waiter, "addr")],
                [&nil(); 2]
            );
            assert_eq!(field(waiter, "channel"), &text("mine"));
            continue;
        }
        assert_eq!(field(waiter, "channel"), &nil(), "{owner}");
        let (id, Value::BulkString(address)) = (number(waiter, "client"), field(waiter, "addr"))
        else {
            panic!("no address: {waiter:?}");
        };
        let line = format!("id={id} addr={} ", String::from_utf8_lossy(address));
        assert!(clients.contains(&line), "{line} is not in {clients}");
    }
}

#[test]
fn shared_and_limited_locks_over_resp3() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HELLO 3");
    let first = client.int("LOCK.ACQUIRE k r1 SHARED LEASE 50000");
    let second = client.int("LOCK.ACQUIRE k r2 SHARED LEASE 90000");
    let info = client.call("LOCK.INFO k");
    assert!(matches!(info, Value::Map(_)));
    assert_eq!(field(&info, "mode"), &text("shared"));
    assert_eq!(number(&info, "limit"), 0);
    assert_eq!(number(&info, "fence"), second);
    let mut holders = list(&info, "holders").to_vec();
    holders.sort_by_key(|holder| number(holder, "fence"));
    for (holder, (owner, token, lease)) in holders
        .iter()
        .zip([("r1", first, 50_000), ("r2", second, 90_000)])
    {
        assert_eq!(field(holder, "owner"), &text(owner));
        assert_eq!(number(holder, "fence"), token);
        assert!((lease - 5000..=lease).contains(&number(holder, "ttl")));
        assert_eq!(field(holder, "client"), &nil());
    }
    client.int("LOCK.ACQUIRE pool p LIMIT 4");
    let info = client.call("LOCK.INFO pool");
    assert_eq!(field(&info, "mode"), &text("limited"));
    assert_eq!(number(&info, "limit"), 4);
}

#[test]
fn a_lock_that_redisson_holds_has_no_token() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HSET k 5f6c0e1e-6a0e-4a55-b5b5-0123456789ab:1 2");
    client.call("PEXPIRE k 30000");
    let info = client.call("LOCK.INFO k");
    assert_eq!(field(&info, "state"), &text("held"));
    assert_eq!(field(&info, "fence"), &nil());
    let [holder] = list(&info, "holders") else {
        panic!("not one holder: {info:?}");
    };
    assert_eq!(number(holder, "holds"), 2);
    assert_eq!(field(holder, "fence"), &nil());
    client.call("HSET other a b");
    assert!(client.error("LOCK.INFO other").starts_with("NOTALOCK "));
    client.call("SET string s");
    assert!(client.error("LOCK.INFO string").starts_with("WRONGTYPE "));
}

#[test]
fn contended_locks_are_listed_longest_wait_first() {
    let mut play = Play::start();
    play.run("o > LOCK.LIST -> []");
    for key in ["old", "middle", "young"] {
        play.run(&format!(
            "o > LOCK.ACQUIRE {key} holder LONG
            {key} > LOCK.ACQUIRE {key} w BLOCK 0 -> .."
        ));
    }
    play.run(
        "another > LOCK.ACQUIRE old w2 BLOCK 0 -> ..
        o > LOCK.ACQUIRE free holder",
    );
    let listed = play.client("o").call("LOCK.LIST");
    for (lock, (key, waiting)) in
        items(&listed)
            .iter()
            .zip([("old", 2), ("middle", 1), ("young", 1)])
    {
        assert_eq!(field(lock, "key"), &text(key));
        assert_eq!(list(lock, "holders"), [text("holder")]);
        assert_eq!(number(lock, "waiting"), waiting);
        assert!(number(lock, "waited") >= 0);
    }
    assert_eq!(items(&listed).len(), 3);
    let listed = play.client("o").call("LOCK.LIST COUNT 2");
    assert_eq!(items(&listed).len(), 2);
    for wrong in ["COUNT", "COUNT 0", "COUNT x", "NOPE", "COUNT 1 COUNT 1"] {
        play.run(&format!("o > LOCK.LIST {wrong} -> !ERR"));
    }
    play.run("o > SELECT 1 \n o > LOCK.LIST -> []");
}

#[test]
fn a_broken_lock_goes_to_the_next_in_line() {
    Play::start().run(
        "o > LOCK.BREAK k -> 0
        o > LOCK.ACQUIRE k a LONG -> A
        o > LOCK.ACQUIRE k a LONG -> A
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        o > LOCK.BREAK k FENCE 1 -> 0
        o > LOCK.BREAK k FENCE $A -> 1
        b < B
        o > LOCK.BREAK k FENCE $A -> 0
        o > LOCK.RELEASE k a -> null
        o > LOCK.BREAK k -> 1
        o > EXISTS k -> 0
        o > LOCK.ACQUIRE k r1 SHARED
        o > LOCK.ACQUIRE k r2 SHARED
        o > LOCK.ACQUIRE k r3 SHARED
        o > LOCK.BREAK k -> 1
        o > EXISTS k -> 0
        lock_releases_broken = 5
        lock_tokens_refused = 2",
    );
}

#[test]
fn a_replica_shows_what_the_data_shows() {
    let mut play = Play::held().with_replica();
    play.assert_in_step();
    play.run(
        "there at r
        there > LOCK.LIST -> []
        there > LOCK.BREAK k -> !READONLY",
    );
    let info = play.client("there").call("LOCK.INFO k");
    assert_eq!(number(&info, "fence"), play.token("H"));
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
            let listed = play.client(user).call(&format!("LOCK.LIST{count}"));
            let keys = items(&listed).iter().map(|lock| field(lock, "key").clone());
            assert_eq!(keys.collect::<Vec<Value>>(), shown, "{user}{count}");
        }
    }
}

#[test]
fn the_counters_tell_what_happened() {
    let mut play = Play::start();
    play.run(
        "o > LOCK.ACQUIRE k a -> token
        o > LOCK.ACQUIRE k a -> token
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        until lock_longest_wait_ms = 6..
        o > LOCK.RELEASE k a ALL
        b < token
        b > LOCK.ACQUIRE k c BLOCK 5 -> null
        d > LOCK.ACQUIRE k d BLOCK 0 -> ..
        d closes
        until lock_waits_abandoned = 1
        e > LOCK.ACQUIRE k e BLOCKED -> ..
        o > DEL k
        e < token
        f > LOCK.ACQUIRE k f BLOCKED SESSION -> ..
        o > LOCK.RENEW k e LEASE 30 -> 1
        f < token
        f closes
        until lock_releases_session = 1
        lock_grants_immediate = 1
        lock_reentries = 1
        lock_grants_after_wait = 3
        lock_hand_offs = 3
        lock_wait_timeouts = 1
        lock_releases = 1
        lock_releases_deleted = 1
        lock_releases_expired = 1
        lock_releases_broken = 0
        lock_superseded = 0
        lock_deadlocks_refused = 0
        lock_wait_count = 3
        lock_hold_count = 2
        lock_waiters = 0
        lock_longest_wait_ms = 0
        lock_wait_us_p50 = 1..",
    );
    assert!(play.info("lock_wait_us_max") >= play.info("lock_wait_us_p50"));
}

/// Pipelined commands run in one turn of the server's event loop, before the
/// waiter that the first one grants the lock can be told.
#[test]
fn a_slow_wait_and_a_refused_deadlock_are_logged_once() {
    let mut play = Play::start();
    let logged = |play: &Play, what: &str| {
        eventually(what, || play.log().contains(what));
    };
    play.run(
        "o > CONFIG SET lock.log-slow-wait 20
        o > LOCK.ACQUIRE k1 a LONG SESSION -> token
        o > LOCK.ACQUIRE k2 b LONG -> token
        b > LOCK.ACQUIRE k1 b BLOCK 0 -> ..",
    );
    logged(&play, "slow wait: 'b'");
    // Two more looks at the key find nothing new.
    play.run(
        "o > LOCK.ACQUIRE k2 a BLOCK 0 -> !DEADLOCK
        c > LOCK.ACQUIRE k1 c BLOCK 0 -> ..",
    );
    logged(&play, "slow wait: 'c'");
    let log = play.log();
    let mut lines = log.lines().filter(|line| line.contains("slow wait: 'b'"));
    let line = lines.next().unwrap();
    assert_eq!(lines.next(), None);
    let client = format!("(client id={} addr=", play.client("o").int("CLIENT ID"));
    for part in ["for 'k1' in database 0", "held by 'a'", &client] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(log.contains("deadlock refused: 'a' waits for 'k2' held by 'b'"));
}

/// A client that hears what happens to keys.
struct Listener(Client);

impl Listener {
    fn at(play: &mut Play, channels: &str) -> Self {
        play.run("o > CONFIG SET notify-keyspace-events Kd");
        let mut client = play.server.client();
        client.send(&format!("SUBSCRIBE {channels}"));
        channels.split(' ').for_each(|_| drop(client.reply()));
        Self(client)
    }

    /// The channel and the event.
    #[track_caller]
    fn heard(&mut self) -> [Value; 2] {
        match self.0.reply() {
            Value::Array(words) => [words[1].clone(), words[2].clone()],
            other => panic!("{other:?} is no message"),
        }
    }

    #[track_caller]
    fn assert_next(&mut self, events: &[&str]) {
        for event in events {
            assert_eq!(self.heard()[1], text(format!("lock.{event}")));
        }
    }
}

#[test]
fn the_life_of_a_lock_can_be_listened_to() {
    let mut play = Play::start();
    let mut listener = Listener::at(&mut play, "__keyspace@0__:k");
    play.run(
        "o > LOCK.ACQUIRE k a
        o > LOCK.ACQUIRE k a
        o > LOCK.RELEASE k a
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        o > LOCK.RELEASE k a
        b < token
        c > LOCK.ACQUIRE k c BLOCKED -> ..
        o > LOCK.RENEW k b LEASE 20 -> 1
        c < token
        o > LOCK.BREAK k",
    );
    listener.assert_next(&[
        "acquire", "release", "acquire", "expire", "acquire", "break",
    ]);
}

#[test]
fn the_ends_of_crowds_are_heard_of_each_in_its_database_before_the_next_grant() {
    const CROWD: usize = 1000;
    let mut play = Play::start();
    for db in [3, 5] {
        play.run(&format!("s > SELECT {db}"));
        for n in 0..CROWD {
            play.run(&format!(
                "s > LOCK.ACQUIRE k n{n} LONG SHARED SESSION -> token"
            ));
        }
    }
    let mut listener = Listener::at(&mut play, "__keyspace@3__:k __keyspace@5__:k");
    play.run(
        "o > SELECT 5
        o > CLIENT KILL ID $s | LOCK.ACQUIRE k x | LOCK.RELEASE k x -> 1 | token | 1",
    );
    let mut heard: [Vec<Value>; 2] = Default::default();
    for _ in 0..2 * CROWD + 2 {
        let [channel, event] = listener.heard();
        heard[usize::from(channel == text("__keyspace@5__:k"))].push(event);
    }
    let mut expected = vec![text("lock.release"); CROWD];
    assert_eq!(heard[0], expected);
    expected.extend(["acquire", "release"].map(|event| text(format!("lock.{event}"))));
    assert_eq!(heard[1], expected);
}

/// In one write, so that the search comes before the look at the key.
#[test]
fn a_holder_that_a_search_for_deadlocks_finds_gone_is_counted() {
    Play::start().run(
        "ann > LOCK.ACQUIRE k1 ann LONG -> token
        ann > LOCK.ACQUIRE k2 bob LONG -> token
        bob > LOCK.ACQUIRE k1 bob BLOCK 0 -> ..
        ann > DEL k1 | LOCK.ACQUIRE k2 ann BLOCK 0 -> 1 | ..
        bob < token
        lock_releases_deleted = 1
        lock_deadlocks_refused = 0",
    );
}

/// A search for deadlocks finds that a lease is over before anybody else does: nothing
/// else runs after the sleep. A writer's is heard of, too.
#[test]
fn a_readers_end_that_a_search_finds_is_counted_once() {
    for (mode, other) in [
        ("", ""),
        ("SHARED", "ann > LOCK.ACQUIRE k1 other LONG SHARED"),
    ] {
        let mut play = Play::start();
        play.run(&format!(
            "ann > LOCK.ACQUIRE k1 ann LONG {mode} -> token
            {other}
            ann > LOCK.ACQUIRE k2 bob LONG -> token
            bob > LOCK.ACQUIRE k1 bob BLOCKED -> .."
        ));
        let mut listener = Listener::at(&mut play, "__keyspace@0__:k1");
        play.run(
            "ann > LOCK.RENEW k1 ann LEASE 50 | DEBUG SLEEP 0.2 | LOCK.ACQUIRE k2 ann BLOCK 0 \
             -> 1 | OK | ..
            settled
            o > HGET k1 ann -> null
            lock_deadlocks_refused = 0",
        );
        if !other.is_empty() {
            play.run("o > LOCK.RELEASE k1 other -> 1");
        }
        play.run("bob < token \n lock_releases_expired = 1 \n lock_releases_deleted = 0");
        if other.is_empty() {
            listener.assert_next(&["expire", "acquire"]);
        }
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
    let server = TestServer::start();
    let Value::Array(modules) = server.client().call("MODULE LIST") else {
        panic!("no list");
    };
    let number = |shown: i64, part: &str| shown * 100 + part.parse::<i64>().unwrap();
    let version = env!("CARGO_PKG_VERSION").split('.').fold(0, number);
    let shown = [text("name"), text("lock"), text("ver"), int(version)];
    let is_shown =
        |module: &Value| matches!(module, Value::Array(fields) if fields.starts_with(&shown));
    assert!(modules.iter().any(is_shown), "{modules:?}");
    let info = server.client().bulk("INFO lock");
    let line = concat!("lock_version:", env!("CARGO_PKG_VERSION"), "\r\n");
    assert!(info.contains(line), "{info}");
}
