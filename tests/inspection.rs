//! What an operator sees, and how a lock is taken from its holders.

use redis::Value;
use redis_lock_testing::scene::{await_waiting, settle};
use redis_lock_testing::{Client, LONG, TestServer, eventually, int, nil, status, text};

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

fn wait(server: &TestServer, command: &str) -> Client {
    let mut client = server.client();
    client.send_and_block(&mut server.client(), command);
    client
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
    let server = TestServer::start();
    let mut holder = server.client();
    let id = holder.int("CLIENT ID");
    holder.call(&format!("LOCK.ACQUIRE k a {LONG} SESSION"));
    let token = holder.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    let mut waiters = Vec::new();
    for (owner, options) in [
        ("w1", "BLOCK 0"),
        ("w2", "BLOCK 60000 SHARED"),
        ("w3", "BLOCK 60000 LIMIT 3"),
    ] {
        waiters.push(wait(&server, &format!("LOCK.ACQUIRE k {owner} {options}")));
    }
    let info = server.client().call("LOCK.INFO k");
    assert_eq!(field(&info, "state"), &text("held"));
    assert_eq!(field(&info, "mode"), &text("exclusive"));
    assert_eq!(number(&info, "limit"), 1);
    assert_eq!(number(&info, "fence"), token);
    assert!((590_000..=600_000).contains(&number(&info, "ttl")));
    let [shown] = list(&info, "holders") else {
        panic!("not one holder: {info:?}");
    };
    assert_eq!(field(shown, "owner"), &text("a"));
    assert_eq!(number(shown, "holds"), 2);
    assert_eq!(number(shown, "fence"), token);
    assert_eq!(number(shown, "ttl"), number(&info, "ttl"));
    assert_eq!(number(shown, "client"), id);
    assert_eq!(number(&info, "waiting"), 3);
    let shown = list(&info, "waiters");
    for ((waiter, owner), mode) in
        shown
            .iter()
            .zip(["w1", "w2", "w3"])
            .zip(["exclusive", "shared", "limited"])
    {
        assert_eq!(field(waiter, "owner"), &text(owner));
        assert_eq!(field(waiter, "mode"), &text(mode));
        assert!((0..10_000).contains(&number(waiter, "waited")));
        let timeout = number(waiter, "timeout");
        assert_eq!(timeout == -1, owner == "w1", "{owner}: {timeout}");
        assert!(timeout <= 60_000);
        let (client, Value::BulkString(address)) =
            (number(waiter, "client"), field(waiter, "addr"))
        else {
            panic!("no address: {waiter:?}");
        };
        let address = String::from_utf8_lossy(address);
        let line = format!("id={client} addr={address} ");
        let clients = server.client().bulk("CLIENT LIST");
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

/// Checks what `LOCK.INFO` tells of those who wait for `k`: all of its fields, in order.
fn check_waiters(info: &Value) {
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
        let is_place = owner == "place";
        assert_eq!(field(waiter, "client") == &nil(), is_place, "{owner}");
        assert_eq!(field(waiter, "addr") == &nil(), is_place, "{owner}");
        let channel = if is_place { text("mine") } else { nil() };
        assert_eq!(field(waiter, "channel"), &channel, "{owner}");
    }
}

#[test]
fn who_waits_is_told_with_its_limit_on_both_protocols() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    let _waiters = ["exclusive", "shared SHARED", "limited LIMIT 3"]
        .map(|asking| wait(&server, &format!("LOCK.ACQUIRE k {asking} BLOCK 0")));
    let place = "LOCK.ACQUIRE k place QUEUE 600000 mine LIMIT 7";
    assert_eq!(client.call(place), int(0));
    let flat = client.call("LOCK.INFO k");
    assert!(matches!(flat, Value::Array(_)));
    check_waiters(&flat);
    client.call("HELLO 3");
    let map = client.call("LOCK.INFO k");
    assert!(matches!(map, Value::Map(_)));
    check_waiters(&map);
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
    let server = TestServer::start();
    let mut client = server.client();
    assert!(items(&client.call("LOCK.LIST")).is_empty());
    let mut waiters = Vec::new();
    for key in ["old", "middle", "young"] {
        client.call(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
        waiters.push(wait(&server, &format!("LOCK.ACQUIRE {key} w BLOCK 0")));
    }
    waiters.push(wait(&server, "LOCK.ACQUIRE old w2 BLOCK 0"));
    client.call("LOCK.ACQUIRE free holder");
    let listed = client.call("LOCK.LIST");
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
    assert_eq!(items(&client.call("LOCK.LIST COUNT 2")).len(), 2);
    for wrong in ["COUNT", "COUNT 0", "COUNT x", "NOPE", "COUNT 1 COUNT 1"] {
        let error = client.error(&format!("LOCK.LIST {wrong}"));
        assert!(error.starts_with("ERR "), "{wrong}: {error}");
    }
    client.call("SELECT 1");
    assert!(items(&client.call("LOCK.LIST")).is_empty());
}

#[test]
fn a_broken_lock_goes_to_the_next_in_line() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.call("LOCK.BREAK k"), int(0));
    let token = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    client.call(&format!("LOCK.ACQUIRE k a {LONG}"));
    let mut waiter = wait(&server, &format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    let other = token - 1;
    assert_eq!(client.call(&format!("LOCK.BREAK k FENCE {other}")), int(0));
    assert_eq!(client.call(&format!("LOCK.BREAK k FENCE {token}")), int(1));
    let Value::Int(next) = waiter.reply() else {
        panic!("the waiter was not granted the lock");
    };
    assert!(next > token);
    assert_eq!(client.call(&format!("LOCK.BREAK k FENCE {token}")), int(0));
    assert_eq!(client.call("LOCK.RELEASE k a"), nil());
    assert_eq!(client.call("LOCK.BREAK k"), int(1));
    assert_eq!(client.int("EXISTS k"), 0);
    for owner in ["r1", "r2", "r3"] {
        client.call(&format!("LOCK.ACQUIRE k {owner} SHARED"));
    }
    assert_eq!(client.call("LOCK.BREAK k"), int(1));
    assert_eq!(client.int("EXISTS k"), 0);
    assert_eq!(client.info("lock_releases_broken"), 5);
    assert_eq!(client.info("lock_tokens_refused"), 2);
}

#[test]
fn a_replica_shows_what_the_data_shows() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let mut client = server.client();
    let token = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    server.assert_same_data(&replica);
    let mut reader = replica.client();
    let info = reader.call("LOCK.INFO k");
    assert_eq!(number(&info, "fence"), token);
    assert!(items(&reader.call("LOCK.LIST")).is_empty());
    assert!(reader.error("LOCK.BREAK k").starts_with("READONLY "));
}

#[test]
fn users_see_what_the_acl_lets_them_see() {
    let server = TestServer::start();
    let mut admin = server.client();
    admin.call("LOCK.ACQUIRE mine a");
    admin.call("LOCK.ACQUIRE other a");
    let rules = "ACL SETUSER viewer on nopass %R~mine +lock.info +lock.list";
    assert_eq!(admin.call(rules), status("OK"));
    let mut viewer = server.client();
    assert_eq!(viewer.call("AUTH viewer x"), status("OK"));
    assert_eq!(
        field(&viewer.call("LOCK.INFO mine"), "state"),
        &text("held")
    );
    viewer.call("LOCK.LIST");
    for refused in ["LOCK.INFO other", "LOCK.BREAK mine", "LOCK.ACQUIRE mine b"] {
        let error = viewer.error(refused);
        assert!(error.starts_with("NOPERM "), "{refused}: {error}");
    }
}

/// Redis 7.4, Valkey 8 and later let modules have ACL categories. Before that an
/// administrator has to name the commands.
#[test]
fn a_category_of_the_acl_has_all_the_commands_since_7_4() {
    let server = TestServer::start();
    let mut admin = server.client();
    let reply = admin.call("ACL SETUSER worker on nopass ~* +@lock");
    if server.version() < (7, 4) {
        let Value::ServerError(error) = reply else {
            panic!("this server knows the category: {reply:?}");
        };
        let text = error.details().unwrap_or_default();
        assert!(text.contains("Unknown command or category name"), "{text}");
        let rules = "+lock.acquire +lock.release";
        let named = format!("ACL SETUSER worker on nopass ~* {rules}");
        assert_eq!(admin.call(&named), status("OK"));
    } else {
        assert_eq!(reply, status("OK"));
    }
    let mut worker = server.client();
    worker.call("AUTH worker x");
    assert!(matches!(worker.call("LOCK.ACQUIRE w w"), Value::Int(_)));
    assert_eq!(worker.call("LOCK.RELEASE w w"), int(1));
    assert!(worker.error("GET w").starts_with("NOPERM "));
}

#[test]
fn the_list_shows_only_locks_whose_keys_the_user_may_read() {
    let server = TestServer::start();
    let mut admin = server.client();
    for (user, rules) in [
        ("reader", "%R~mine:*"),
        ("both", "~mine:*"),
        ("writer", "%W~mine:*"),
        ("all", "~*"),
    ] {
        let rules = format!("ACL SETUSER {user} on nopass {rules} +lock.list");
        assert_eq!(admin.call(&rules), status("OK"));
    }
    let keys = ["secret:1", "mine:1", "secret:2", "mine:2", "secret:3"];
    let mut waiters = Vec::new();
    for key in keys {
        admin.call(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
        waiters.push(wait(&server, &format!("LOCK.ACQUIRE {key} w BLOCK 0")));
    }
    let listed = |user: &str, count: &str| {
        let mut client = server.client();
        assert_eq!(client.call(&format!("AUTH {user} x")), status("OK"));
        let reply = client.call(format!("LOCK.LIST {count}").trim());
        let keys = items(&reply).iter().map(|lock| field(lock, "key").clone());
        keys.collect::<Vec<Value>>()
    };
    let mine = [text("mine:1"), text("mine:2")];
    for user in ["reader", "both"] {
        assert_eq!(listed(user, ""), mine, "{user}");
        assert_eq!(listed(user, "COUNT 1"), mine[..1], "{user}");
        assert_eq!(listed(user, "COUNT 2"), mine, "{user}");
    }
    assert_eq!(listed("writer", ""), []);
    assert_eq!(listed("all", ""), keys.map(text));
    assert_eq!(listed("all", "COUNT 2"), keys.map(text)[..2]);
}

#[test]
fn the_counters_tell_what_happened() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int("LOCK.ACQUIRE k a");
    client.int("LOCK.ACQUIRE k a");
    let mut waiter = wait(&server, "LOCK.ACQUIRE k b BLOCK 0 LEASE 600000");
    let longest = || server.info("lock_longest_wait_ms");
    eventually("the wait is seen to grow", || longest() > 5);
    client.call("LOCK.RELEASE k a ALL");
    waiter.reply();
    assert_eq!(waiter.call("LOCK.ACQUIRE k c BLOCK 5"), nil());
    let gone = wait(&server, "LOCK.ACQUIRE k d BLOCK 0");
    drop(gone);
    eventually("it has left", || client.info("lock_waits_abandoned") == 1);
    let mut last = wait(&server, "LOCK.ACQUIRE k e BLOCK 0 LEASE 600000");
    client.call("DEL k");
    last.reply();
    let mut next = wait(&server, "LOCK.ACQUIRE k f BLOCK 0 SESSION LEASE 600000");
    assert_eq!(client.call("LOCK.RENEW k e LEASE 30"), int(1));
    next.reply();
    drop(next);
    eventually("the session has ended", || {
        client.info("lock_releases_session") == 1
    });
    for (name, count) in [
        ("grants_immediate", 1),
        ("reentries", 1),
        ("grants_after_wait", 3),
        ("hand_offs", 3),
        ("wait_timeouts", 1),
        ("releases", 1),
        ("releases_deleted", 1),
        ("releases_expired", 1),
        ("releases_broken", 0),
        ("superseded", 0),
        ("deadlocks_refused", 0),
        ("wait_count", 3),
        ("hold_count", 2),
        ("waiters", 0),
        ("longest_wait_ms", 0),
    ] {
        assert_eq!(client.info(&format!("lock_{name}")), count, "{name}");
    }
    assert!(client.info("lock_wait_us_max") >= client.info("lock_wait_us_p50"));
    assert!(client.info("lock_wait_us_p50") > 0);
}

/// Pipelined commands run in one turn of the server's event loop, before the
/// waiter that the first one grants the lock can be told.
#[test]
fn a_slow_wait_and_a_refused_deadlock_are_logged_once() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("CONFIG SET lock.log-slow-wait 20");
    client.call(&format!("LOCK.ACQUIRE k1 a {LONG} SESSION"));
    client.call(&format!("LOCK.ACQUIRE k2 b {LONG}"));
    let _waiter = wait(&server, "LOCK.ACQUIRE k1 b BLOCK 0");
    eventually("the slow wait is logged", || {
        server.log().contains("slow wait: 'b'")
    });
    assert!(
        client
            .error("LOCK.ACQUIRE k2 a BLOCK 0")
            .starts_with("DEADLOCK ")
    );
    // Two more looks at the key find nothing new.
    let looked = wait(&server, "LOCK.ACQUIRE k1 c BLOCK 0");
    eventually("the second is logged", || {
        server.log().contains("slow wait: 'c'")
    });
    drop(looked);
    let log = server.log();
    assert_eq!(log.matches("slow wait: 'b'").count(), 1);
    let line = log
        .lines()
        .find(|line| line.contains("slow wait: 'b'"))
        .unwrap();
    let id = client.int("CLIENT ID");
    for part in [
        "for 'k1' in database 0",
        "held by 'a'",
        &format!("(client id={id} addr="),
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(log.contains("deadlock refused: 'a' waits for 'k2' held by 'b'"));
}

#[test]
fn the_life_of_a_lock_can_be_listened_to() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("CONFIG SET notify-keyspace-events Kd");
    let mut listener = server.client();
    listener.call("SUBSCRIBE __keyspace@0__:k");
    let mut heard = || {
        let Value::Array(words) = listener.reply() else {
            panic!("no message");
        };
        words[2].clone()
    };
    client.call("LOCK.ACQUIRE k a");
    client.call("LOCK.ACQUIRE k a");
    client.call("LOCK.RELEASE k a");
    let mut waiter = wait(&server, &format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    client.call("LOCK.RELEASE k a");
    waiter.reply();
    let mut last = wait(&server, &format!("LOCK.ACQUIRE k c {LONG} BLOCK 0"));
    assert_eq!(client.call("LOCK.RENEW k b LEASE 20"), int(1));
    last.reply();
    client.call("LOCK.BREAK k");
    for event in [
        "acquire", "release", "acquire", "expire", "acquire", "break",
    ] {
        assert_eq!(heard(), text(format!("lock.{event}")));
    }
}

#[test]
fn the_ends_of_crowds_are_heard_of_each_in_its_database() {
    const CROWD: usize = 200;
    let server = TestServer::start();
    let (mut client, mut session) = (server.client(), server.client());
    let id = session.int("CLIENT ID");
    for db in [3, 5] {
        assert_eq!(session.call(&format!("SELECT {db}")), status("OK"));
        for n in 0..CROWD {
            session.int(&format!("LOCK.ACQUIRE k n{n} {LONG} SHARED SESSION"));
        }
    }
    client.call("CONFIG SET notify-keyspace-events Kd");
    let mut listener = server.client();
    listener.send("SUBSCRIBE __keyspace@3__:k __keyspace@5__:k");
    let mut heard = || {
        let Value::Array(words) = listener.reply() else {
            panic!("no message");
        };
        words
    };
    for _ in 0..2 {
        assert_eq!(heard()[0], text("subscribe"));
    }
    assert_eq!(client.int(&format!("CLIENT KILL ID {id}")), 1);
    let mut heard_in = [0; 2];
    for _ in 0..2 * CROWD {
        let words = heard();
        assert_eq!(words[2], text("lock.release"));
        heard_in[usize::from(words[1] == text("__keyspace@5__:k"))] += 1;
    }
    assert_eq!(heard_in, [CROWD; 2]);
}

#[test]
fn the_ends_of_a_crowd_are_heard_of_before_the_grant_that_follows() {
    const CROWD: usize = 1000;
    let server = TestServer::start();
    let (mut client, mut session) = (server.client(), server.client());
    let id = session.int("CLIENT ID");
    for n in 0..CROWD {
        session.int(&format!("LOCK.ACQUIRE k n{n} {LONG} SHARED SESSION"));
    }
    client.call("CONFIG SET notify-keyspace-events Kd");
    let mut listener = server.client();
    listener.call("SUBSCRIBE __keyspace@0__:k");
    client.send_bytes(
        format!("CLIENT KILL ID {id}\r\nLOCK.ACQUIRE k x\r\nLOCK.RELEASE k x\r\n").as_bytes(),
    );
    let mut heard = || {
        let Value::Array(words) = listener.reply() else {
            panic!("no message");
        };
        words[2].clone()
    };
    for _ in 0..CROWD {
        assert_eq!(heard(), text("lock.release"));
    }
    for event in ["acquire", "release"] {
        assert_eq!(heard(), text(format!("lock.{event}")));
    }
}

#[test]
fn a_holder_that_a_search_for_deadlocks_finds_gone_is_counted() {
    let server = TestServer::start();
    let mut ann = server.client();
    ann.call(&format!("LOCK.ACQUIRE k1 ann {LONG}"));
    ann.call(&format!("LOCK.ACQUIRE k2 bob {LONG}"));
    let mut bob = wait(&server, "LOCK.ACQUIRE k1 bob BLOCK 0");
    // In one write, so that the search comes before the look at the key.
    ann.send_bytes(b"DEL k1\r\nLOCK.ACQUIRE k2 ann BLOCK 0\r\n");
    assert_eq!(ann.reply(), int(1));
    assert!(matches!(bob.reply(), Value::Int(_)));
    assert_eq!(server.info("lock_releases_deleted"), 1);
    assert_eq!(server.info("lock_deadlocks_refused"), 0);
}

/// One who holds the lock, and its queue. A search for deadlocks finds that its
/// lease is over before anybody else does.
#[track_caller]
fn end_before_a_search(mode: &str) -> (TestServer, Client, Client) {
    let server = TestServer::start();
    let mut ann = server.client();
    ann.call("CONFIG SET notify-keyspace-events Kd");
    let mut listener = server.client();
    ann.int(format!("LOCK.ACQUIRE k1 ann {LONG} {mode}").trim());
    if !mode.is_empty() {
        ann.int(&format!("LOCK.ACQUIRE k1 other {LONG} {mode}"));
    }
    ann.int(&format!("LOCK.ACQUIRE k2 bob {LONG}"));
    let bob = wait(&server, &format!("LOCK.ACQUIRE k1 bob {LONG} BLOCK 0"));
    listener.call("SUBSCRIBE __keyspace@0__:k1");
    // In one write, so that nothing else runs after the sleep but the search.
    ann.send_bytes(
        b"LOCK.RENEW k1 ann LEASE 50\r\nDEBUG SLEEP 0.2\r\nLOCK.ACQUIRE k2 ann BLOCK 0\r\n",
    );
    assert_eq!([ann.reply(), ann.reply()], [int(1), status("OK")]);
    let mut observer = server.client();
    await_waiting(&mut observer, "k2", 1);
    settle(&server);
    assert_eq!(observer.call("HGET k1 ann"), nil());
    assert_eq!(observer.info("lock_deadlocks_refused"), 0);
    (server, listener, bob)
}

#[test]
fn a_readers_end_that_a_search_finds_is_counted_once() {
    let (server, _listener, _bob) = end_before_a_search("SHARED");
    let mut client = server.client();
    client.send("LOCK.RELEASE k1 other");
    assert_eq!(client.reply(), int(1));
    assert_eq!(client.info("lock_releases_expired"), 1);
    assert_eq!(client.info("lock_releases_deleted"), 0);
}

#[test]
fn a_leases_end_that_a_search_finds_can_be_listened_to() {
    let (server, mut listener, mut bob) = end_before_a_search("");
    assert!(matches!(bob.reply(), Value::Int(_)));
    assert_eq!(server.info("lock_releases_expired"), 1);
    for event in ["expire", "acquire"] {
        let Value::Array(words) = listener.reply() else {
            panic!("no message");
        };
        assert_eq!(words[2], text(format!("lock.{event}")));
    }
}

#[test]
fn a_wait_that_ends_with_an_error_is_counted() {
    let server = TestServer::start();
    let mut client = server.client();
    // The server does not tell of a `SET`. The module's regular look finds it.
    client.call("CONFIG SET lock.recheck-interval 500");
    client.call(&format!("LOCK.ACQUIRE k ann {LONG}"));
    let mut bob = wait(&server, "LOCK.ACQUIRE k bob BLOCK 0");
    client.call("SET k text");
    assert!(bob.reply_error().starts_with("WRONGTYPE "));
    assert_eq!(server.info("lock_waits_refused"), 1);
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
