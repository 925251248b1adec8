//! A command that is guarded by a token runs while that token's hold is present, and
//! then as the server would run it in a script.

use redis::Value;
use redis_lock_testing::scene::transaction;
use redis_lock_testing::{Client, LONG, TestServer, eventually, int, nil, status, text, token};

const NOTHELD: &str = "NOTHELD nobody holds the lock with this token now, and nothing was done; \
                       stop the work, and acquire the lock again before you start it anew";

/// A server, a client, and the token by which it holds `k`.
fn held() -> (TestServer, Client, i64) {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    (server, client, token)
}

/// It must fail with this text, and leave all keys as they were.
#[track_caller]
fn check(client: &mut Client, command: &str, error: &str) {
    check_words(
        client,
        &command.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
        error,
    );
}

#[track_caller]
fn check_words(client: &mut Client, words: &[&[u8]], error: &str) {
    let before = client.call("DEBUG DIGEST");
    client.send_words(words);
    assert_eq!(client.reply_error(), error);
    assert_eq!(client.call("DEBUG DIGEST"), before, "{error}");
}

/// Lets this time pass for the server.
fn pass(client: &mut Client, seconds: &str) {
    assert_eq!(client.call(&format!("DEBUG SLEEP {seconds}")), status("OK"));
}

#[test]
fn the_token_of_a_present_hold_lets_a_command_run() {
    let (server, mut client, token) = held();
    // By any connection.
    let mut other = server.client();
    let set = other.call(&format!("LOCK.GUARD k {token} SET x 1"));
    assert_eq!(set, status("OK"));
    assert_eq!(client.call(&format!("lock.guard k {token} incr x")), int(2));
    assert_eq!(other.call("GET x"), text("2"));
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    check(
        &mut other,
        &format!("LOCK.GUARD k {token} SET x 3"),
        NOTHELD,
    );
}

#[test]
fn another_token_lets_nothing_run() {
    let (_server, mut client, token) = held();
    for wrong in [1, token - 1, token + 1, (1 << 53) - 1] {
        check(
            &mut client,
            &format!("LOCK.GUARD k {wrong} SET x 1"),
            NOTHELD,
        );
    }
    check(
        &mut client,
        &format!("LOCK.GUARD l {token} SET x 1"),
        NOTHELD,
    );
    assert_eq!(client.info("lock_tokens_refused"), 5);
    for no_token in ["0", "-1", "9007199254740992"] {
        let error = "ERR a token must be between 1 and 9007199254740991";
        check(
            &mut client,
            &format!("LOCK.GUARD k {no_token} SET x 1"),
            error,
        );
    }
    for no_number in ["", "a", "1.0", "+1"] {
        let error = "ERR value is not an integer or out of range";
        check(
            &mut client,
            &format!("LOCK.GUARD k {no_number} SET x 1"),
            error,
        );
    }
}

#[test]
fn a_key_that_is_no_lock_guards_nothing() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HSET hash a b c d");
    client.call("SET string 1");
    let error = client.error("LOCK.GUARD hash 5 SET x 1");
    assert!(error.starts_with("NOTALOCK "), "{error}");
    let error = client.error("LOCK.GUARD string 5 SET x 1");
    assert!(error.starts_with("WRONGTYPE "), "{error}");
    // Redisson gives no token.
    client.call("HSET redisson a 1");
    client.call("PEXPIRE redisson 600000");
    check(&mut client, "LOCK.GUARD redisson 1 SET x 1", NOTHELD);
}

#[test]
fn a_writer_whose_lease_is_over_is_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    for mode in ["", " SHARED", " LIMIT 3"] {
        let late = client.int(&format!("LOCK.ACQUIRE k late LEASE 1{mode}"));
        let present =
            (!mode.is_empty()).then(|| client.int(&format!("LOCK.ACQUIRE k present {LONG}{mode}")));
        pass(&mut client, "0.01");
        let write = format!("LOCK.GUARD k {late} SET x late");
        assert_eq!(client.error(&write), NOTHELD, "{mode}");
        if let Some(present) = present {
            let write = format!("LOCK.GUARD k {present} SET x present");
            assert_eq!(client.call(&write), status("OK"));
        }
        client.call("DEL k");
    }
    assert_eq!(client.call("GET x"), text("present"));
}

#[test]
fn after_a_hand_off_the_new_token_writes_and_the_old_one_does_not() {
    let (server, mut client, old) = held();
    let mut next = server.client();
    next.send_and_block(&mut client, &format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    // The old one stops for longer than its lease.
    assert_eq!(client.call("LOCK.RENEW k a LEASE 1"), int(1));
    let new = token(&next.reply());
    check(
        &mut client,
        &format!("LOCK.GUARD k {old} SET x old"),
        NOTHELD,
    );
    assert_eq!(
        next.call(&format!("LOCK.GUARD k {new} SET x new")),
        status("OK")
    );
    check(&mut client, &format!("LOCK.GUARD k {old} DEL x"), NOTHELD);
    assert_eq!(client.call("GET x"), text("new"));
}

#[test]
fn every_shared_holder_writes_by_its_own_token() {
    let server = TestServer::start();
    let mut client = server.client();
    let tokens: Vec<i64> = (0..100)
        .map(|n| client.int(&format!("LOCK.ACQUIRE k owner{n} {LONG} SHARED")))
        .collect();
    for (count, token) in (1..).zip(&tokens) {
        assert_eq!(
            client.call(&format!("LOCK.GUARD k {token} INCR x")),
            int(count)
        );
    }
    assert_eq!(client.call("LOCK.RELEASE k owner0"), int(1));
    check(
        &mut client,
        &format!("LOCK.GUARD k {} INCR x", tokens[0]),
        NOTHELD,
    );
    assert_eq!(
        client.call(&format!("LOCK.GUARD k {} INCR x", tokens[99])),
        int(101)
    );
}

#[test]
fn a_session_that_has_ended_writes_no_more() {
    let server = TestServer::start();
    let (mut session, mut client) = (server.client(), server.client());
    let id = session.int("CLIENT ID");
    let token = session.int(&format!("LOCK.ACQUIRE k a {LONG} SESSION"));
    let write = format!("LOCK.GUARD k {token} SET x 1");
    assert_eq!(session.call(&write), status("OK"));
    assert_eq!(client.call(&write), status("OK"), "while it lives");
    let replies = transaction(&mut client, &[&format!("CLIENT KILL ID {id}"), &write]);
    let Value::ServerError(error) = &replies[1] else {
        panic!("the session has ended: {replies:?}");
    };
    assert_eq!(error.code(), "NOTHELD");
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn what_would_lie_about_replicas_is_refused() {
    let (_server, mut client, token) = held();
    let error = "ERR LOCK.GUARD runs no WAIT or WAITAOF; send them after it";
    for wait in ["WAIT 1 10", "wait 0 0", "WAITAOF 1 1 10"] {
        check(&mut client, &format!("LOCK.GUARD k {token} {wait}"), error);
    }
}

#[test]
fn what_no_script_may_call_is_refused() {
    let (_server, mut client, token) = held();
    let own = "ERR LOCK.GUARD runs no LOCK.* command; those that need it take the token as FENCE";
    for (command, error) in [
        ("LOCK.RELEASE k a", own),
        ("lock.guard k 5 SET x 1", own),
        ("Lock.List", own),
        ("MULTI", "ERR command 'multi' is not allowed on script mode"),
        (
            "WATCH x",
            "ERR command 'watch' is not allowed on script mode",
        ),
        (
            "SUBSCRIBE c",
            "ERR command 'subscribe' is not allowed on script mode",
        ),
        (
            "EVAL return 0",
            "ERR command 'eval' is not allowed on script mode",
        ),
        (
            "CONFIG SET maxmemory 1",
            "ERR command 'config|set' is not allowed on script mode",
        ),
        (
            "SHUTDOWN NOSAVE",
            "ERR command 'shutdown' is not allowed on script mode",
        ),
        (
            "CLIENT PAUSE 1",
            "ERR command 'client|pause' is not allowed on script mode",
        ),
        ("SET x", "ERR wrong number of arguments for 'set' command"),
        ("GET", "ERR wrong number of arguments for 'get' command"),
    ] {
        check(
            &mut client,
            &format!("LOCK.GUARD k {token} {command}"),
            error,
        );
    }
    for unknown in [
        "NONE x 1",
        "LOCK x",
        "CLIENT NONE",
        "",
        "SET\0 x 1",
        "\u{e9}",
    ] {
        let error = client.error(&format!("LOCK.GUARD k {token} {unknown}"));
        assert!(error.starts_with("ERR unknown "), "{unknown}: {error}");
    }
    assert_eq!(client.int("EXISTS x"), 0);
    check(
        &mut client,
        &format!("LOCK.GUARD k {token}"),
        "ERR wrong number of arguments for 'lock.guard' command",
    );
}

#[test]
fn it_works_in_a_transaction() {
    let (_server, mut client, token) = held();
    let [set, get] = ["SET x 1", "GET x"].map(|command| format!("LOCK.GUARD k {token} {command}"));
    let replies = transaction(
        &mut client,
        &[&set, "LOCK.RELEASE k a", &get, "LOCK.ACQUIRE k b"],
    );
    assert_eq!(replies[0], status("OK"));
    let Value::ServerError(error) = &replies[2] else {
        panic!("{replies:?}");
    };
    assert_eq!(error.code(), "NOTHELD");
    assert!(token < self::token(&replies[3]));
}

#[test]
fn it_works_in_a_script_and_runs_none() {
    let (server, mut client, token) = held();
    let token = token.to_string();
    let mut eval = |script: &str| {
        client.words(&[
            b"EVAL",
            script.as_bytes(),
            b"2",
            b"k",
            b"x",
            token.as_bytes(),
        ])
    };
    let set = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'SET', KEYS[2], '1')";
    assert_eq!(eval(set), status("OK"));
    let types = "redis.setresp(3) redis.call('HSET', 'h', 'f', 'v') \
                 return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'HGETALL', 'h').map.f";
    assert_eq!(eval(types), text("v"));
    for inner in [
        "'EVAL', 'return 1', '0'",
        "'EVALSHA', 'x', '0'",
        "'FCALL', 'f', '0'",
    ] {
        let script =
            format!("return redis.pcall('LOCK.GUARD', KEYS[1], ARGV[1], {inner}).err or 'it ran'");
        let reply = format!("{:?}", eval(&script));
        assert!(
            reply.contains("is not allowed on script mode"),
            "{inner}: {reply}"
        );
    }
    let late = "return redis.call('LOCK.GUARD', KEYS[1], '5', 'SET', KEYS[2], '2')";
    let Value::ServerError(error) = eval(late) else {
        panic!("the token is wrong");
    };
    assert_eq!(error.code(), "NOTHELD");
    assert_eq!(server.client().call("GET x"), text("1"));
    server.assert_sound();
}

#[test]
fn a_blocking_command_does_what_it_does_in_a_script() {
    let (_server, mut client, token) = held();
    for (command, lua) in [
        ("BLPOP l 0", "'BLPOP', KEYS[1], '0'"),
        (
            "XREAD BLOCK 0 STREAMS l $",
            "'XREAD', 'BLOCK', '0', 'STREAMS', KEYS[1], '$'",
        ),
    ] {
        let script = format!("return redis.call({lua})");
        let in_a_script = client.words(&[b"EVAL", script.as_bytes(), b"1", b"l"]);
        let guarded = client.call(&format!("LOCK.GUARD k {token} {command}"));
        match (in_a_script, guarded) {
            // Redis 7.0 refuses them to scripts; XREAD of a module does not wait there.
            (Value::ServerError(_), Value::ServerError(_) | Value::Nil) => {}
            (in_a_script, guarded) => assert_eq!(guarded, in_a_script, "{command}"),
        }
    }
}

#[test]
fn a_user_needs_the_right_to_the_command_its_keys_and_channels() {
    let (server, mut admin, token) = held();
    let rules = "ACL SETUSER writer on nopass %R~k ~mine:* &mine:* +lock.guard +set +publish";
    assert_eq!(admin.call(rules), status("OK"));
    assert_eq!(
        admin.call("ACL SETUSER other on nopass ~* +lock.guard +set"),
        status("OK")
    );
    assert_eq!(
        admin.call("ACL SETUSER blind on nopass ~mine:* +lock.guard +set"),
        status("OK")
    );
    let as_user = |user: &str| {
        let mut client = server.client();
        assert_eq!(client.call(&format!("AUTH {user} x")), status("OK"));
        client
    };
    let mut writer = as_user("writer");
    let set = format!("LOCK.GUARD k {token} SET mine:x 1");
    assert_eq!(
        writer.call(&set),
        status("OK"),
        "it may only read the lock's key"
    );
    let publish = format!("LOCK.GUARD k {token} PUBLISH mine:c 1");
    assert_eq!(writer.call(&publish), int(0));
    let digest = admin.call("DEBUG DIGEST");
    for command in ["SET other 1", "GET mine:x", "PUBLISH other 1", "DEL k"] {
        let error = writer.error(&format!("LOCK.GUARD k {token} {command}"));
        assert!(error.starts_with("NOPERM "), "{command}: {error}");
    }
    // The server's own words.
    if server.version() >= (7, 2) {
        for command in ["SET other 1", "GET mine:x", "PUBLISH other 1"] {
            let own = writer.error(command);
            assert_eq!(
                writer.error(&format!("LOCK.GUARD k {token} {command}")),
                own
            );
        }
    }
    for user in ["blind", "other"] {
        let mut client = as_user(user);
        let command = if user == "blind" {
            "SET mine:x 2"
        } else {
            "GET mine:x"
        };
        let error = client.error(&format!("LOCK.GUARD k {token} {command}"));
        assert!(error.starts_with("NOPERM "), "{user}: {error}");
    }
    assert_eq!(admin.call("DEBUG DIGEST"), digest);
    // In a script, the rights of the one who called it count.
    assert_eq!(admin.call("ACL SETUSER writer +eval"), status("OK"));
    let script = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'GET', 'mine:x')";
    let words = ["EVAL", script, "1", "k", &token.to_string()];
    writer.send_words(&words.map(str::as_bytes));
    let error = writer.reply_error();
    assert!(
        error.contains("NOPERM") || error.contains("permissions"),
        "{error}"
    );
}

#[test]
fn without_memory_only_what_needs_none_runs() {
    let (_server, mut client, token) = held();
    client.call("SET x 1");
    client.call("CONFIG SET maxmemory 1");
    check(
        &mut client,
        &format!("LOCK.GUARD k {token} SET x 2"),
        "OOM command not allowed when used memory > 'maxmemory'.",
    );
    assert_eq!(
        client.call(&format!("LOCK.GUARD k {token} GET x")),
        text("1")
    );
    assert_eq!(client.call(&format!("LOCK.GUARD k {token} DEL x")), int(1));
}

#[test]
fn a_replica_and_a_primary_without_replicas_refuse_it() {
    let (server, mut client, token) = held();
    let replica = server.replica(true);
    let read = format!("LOCK.GUARD k {token} GET x");
    let error = replica.client().error(&read);
    assert!(error.starts_with("READONLY "), "{error}");
    client.call("CONFIG SET min-replicas-to-write 2");
    let error = client.error(&read);
    assert!(error.starts_with("NOREPLICAS "), "{error}");
    client.call("CONFIG SET min-replicas-to-write 0");
    assert_eq!(client.call(&read), nil());
}

#[test]
fn a_replica_holds_what_the_primary_holds() {
    let (server, mut client, token) = held();
    for with_module in [true, false] {
        let replica = server.replica(with_module);
        for command in [
            "SET x 1",
            "INCRBYFLOAT f 0.1",
            "SET t 1 PX 600000",
            "SADD s a b c d e",
            "SPOP s",
            "XADD stream * f v",
            "RENAME x y",
            "GET y",
            "PUBLISH c m",
        ] {
            let reply = client.call(&format!("LOCK.GUARD k {token} {command}"));
            assert!(
                !matches!(reply, Value::ServerError(_)),
                "{command}: {reply:?}"
            );
        }
        server.assert_same_data(&replica);
    }
}

/// The reply to the guarded command must be that to the command.
#[track_caller]
fn check_reply(client: &mut Client, token: i64, command: &str) {
    let own = client.call(command);
    let guarded = client.call(&format!("LOCK.GUARD k {token} {command}"));
    assert_eq!(guarded, own, "{command}");
}

#[test]
fn replies_of_every_kind_are_passed_on_as_they_are() {
    for protocol in [2, 3] {
        let (_server, mut client, token) = held();
        client.call(&format!("HELLO {protocol}"));
        for command in [
            "HSET h a 1 b 2",
            "SADD s a b",
            "ZADD z 1.5 a inf b",
            "RPUSH l a b",
            "XADD x 1-1 f v",
            "GEOADD g 13.36 38.11 p",
            "SET n 1",
            "SET empty ",
        ] {
            client.call(command);
        }
        for command in [
            "GET n",
            "GET none",
            "GET empty",
            "SET n 1",
            "SET n 1 NX",
            "SET n 1 GET",
            "TYPE h",
            "STRLEN n",
            "HGETALL h",
            "HGETALL none",
            "HMGET h a none b",
            "SMEMBERS s",
            "ZSCORE z a",
            "ZSCORE z none",
            "ZSCORE z b",
            "ZRANGE z 0 -1 WITHSCORES",
            "LRANGE l 0 -1",
            "LRANGE none 0 -1",
            "LPOP none 2",
            "XRANGE x - +",
            "XREAD STREAMS x 0",
            "GEOPOS g p none",
            "SMISMEMBER s a c",
            "INFO keyspace",
            "COMMAND INFO get none",
            "COMMAND DOCS get",
            "OBJECT FREQ none",
            "INCR h",
            "GETRANGE h 0 1",
        ] {
            check_reply(&mut client, token, command);
        }
    }
}

#[test]
fn an_error_is_told_to_who_caused_it() {
    let (server, mut client, token) = held();
    client.int("RPUSH list x");
    let mut other = server.client();
    for command in [
        "GETDEL list",
        "getset list y",
        "GETEX list",
        "APPEND list y",
    ] {
        check_reply(&mut client, token, command);
        let set = format!("LOCK.GUARD k {token} SET n 1");
        assert_eq!(other.call(&set), status("OK"), "after {command}");
        assert_eq!(client.call("ECHO here"), text("here"), "after {command}");
    }
    let guarded = format!("LOCK.GUARD k {token} GETDEL list");
    let replies = transaction(&mut client, &[&guarded, "ECHO here"]);
    assert_eq!(replies.last(), Some(&text("here")));
    assert_eq!(replies.len(), 2);
}

#[test]
fn arguments_are_any_bytes_and_any_number() {
    let (server, mut client, token) = held();
    let token = token.to_string();
    let all: Vec<u8> = (0..=255).collect();
    let guard: [&[u8]; 3] = [b"LOCK.GUARD", b"k", token.as_bytes()];
    let set = [&guard[..], &[b"SET", &all, &all]].concat();
    assert_eq!(client.words(&set), status("OK"));
    assert_eq!(client.words(&[b"GET", &all]), text(&all));
    let values: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let mut push = [&guard[..], &[b"RPUSH", b"l"]].concat();
    push.extend(values.iter().map(String::as_bytes));
    assert_eq!(client.words(&push), int(100_000));
    assert_eq!(client.call("LINDEX l -1"), text("99999"));
    server.assert_sound();
}

#[test]
fn a_guarded_command_on_the_lock_itself_is_as_any_command() {
    let (server, mut client, token) = held();
    let mut next = server.client();
    next.send_and_block(&mut client, &format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    assert_eq!(client.call(&format!("LOCK.GUARD k {token} DEL k")), int(1));
    let new = self::token(&next.reply());
    check(
        &mut client,
        &format!("LOCK.GUARD k {token} SET x 1"),
        NOTHELD,
    );
    assert_eq!(
        next.call(&format!("LOCK.GUARD k {new} FLUSHALL")),
        status("OK")
    );
    server.assert_sound();
}

#[test]
fn each_database_has_its_own_lock() {
    let (_server, mut client, token) = held();
    client.call("SELECT 3");
    check(
        &mut client,
        &format!("LOCK.GUARD k {token} SET x 1"),
        NOTHELD,
    );
    let here = client.int(&format!("LOCK.ACQUIRE k a {LONG}"));
    assert_eq!(
        client.call(&format!("LOCK.GUARD k {here} SET x 3")),
        status("OK")
    );
    assert_eq!(client.call("GET x"), text("3"));
    client.call("SELECT 0");
    assert_eq!(client.call("GET x"), nil());
}

#[test]
fn only_what_is_written_fails_a_watch() {
    let (server, mut client, token) = held();
    client.call("SET x 1");
    let mut other = server.client();
    for (between, is_kept) in [
        ("GET x".to_owned(), true),
        ("SET other 1".to_owned(), true),
        ("SET x 2".to_owned(), false),
    ] {
        assert_eq!(client.call("WATCH k x"), status("OK"));
        other.call(&format!("LOCK.GUARD k {token} {between}"));
        client.call("MULTI");
        client.call("PING");
        assert_eq!(client.call("EXEC") != nil(), is_kept, "{between}");
    }
}

/// Begins the check of those who can't send `LOCK.GUARD`, as `docs/fencing.md` has it.
/// Returns whether the lock is held with this token.
fn begin_checked_write(client: &mut Client, token: i64) -> bool {
    assert_eq!(client.call("WATCH k"), status("OK"));
    let is_held = client.call("HGET k @fence") == text(token.to_string());
    assert_eq!(client.call("MULTI"), status("OK"));
    assert_eq!(client.call("SET x 1"), status("QUEUED"));
    is_held
}

#[test]
fn a_checked_transaction_writes_while_the_lock_is_held() {
    let (_server, mut client, token) = held();
    assert!(begin_checked_write(&mut client, token));
    assert_eq!(client.call("EXEC"), Value::Array(vec![status("OK")]));
    assert!(!begin_checked_write(&mut client, token - 1));
}

#[test]
fn a_checked_transaction_after_a_hand_off_writes_nothing() {
    let (server, mut client, token) = held();
    let (mut other, mut next) = (server.client(), server.client());
    next.send_and_block(&mut other, &format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    assert!(begin_checked_write(&mut client, token));
    assert_eq!(other.call("LOCK.RELEASE k a"), int(1));
    assert!(matches!(next.reply(), Value::Int(_)));
    assert_eq!(client.call("EXEC"), nil());
    assert_eq!(client.call("GET x"), nil());
    assert!(!begin_checked_write(&mut client, token));
}

#[test]
fn a_checked_transaction_after_the_end_of_the_lease_writes_nothing() {
    let (server, mut client, _) = held();
    let mut other = server.client();
    client.call("LOCK.BREAK k");
    // On a slow machine the lease may be over at once.
    loop {
        let token = client.int("LOCK.ACQUIRE k a LEASE 200");
        if begin_checked_write(&mut client, token) {
            break;
        }
        client.call("DISCARD");
    }
    eventually("the lease is over", || other.int("EXISTS k") == 0);
    assert_eq!(client.call("EXEC"), nil());
    assert_eq!(client.call("GET x"), nil());
}

#[test]
fn a_checked_transaction_fails_needlessly_after_a_renewal() {
    let (server, mut client, token) = held();
    let mut other = server.client();
    assert!(begin_checked_write(&mut client, token));
    assert_eq!(other.call("LOCK.RENEW k a LEASE 700000"), int(1));
    assert_eq!(client.call("EXEC"), nil());
    // A guarded command does not.
    assert_eq!(
        client.call(&format!("LOCK.GUARD k {token} SET x 1")),
        status("OK")
    );
}
