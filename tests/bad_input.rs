//! What clients get wrong is told clearly and changes nothing.

use redis::Value;
use redis_lock_testing::{Client, TestServer, int, nil, status, text};

/// The command must fail with this text, and leave all keys as they were.
#[track_caller]
fn check(client: &mut Client, command: &str, error: &str) {
    let before = client.call("DEBUG DIGEST");
    assert_eq!(client.error(command), error, "{command}");
    assert_eq!(client.call("DEBUG DIGEST"), before, "{command}");
}

/// As [`check`], with one word more, which may have spaces.
#[track_caller]
fn check_word(client: &mut Client, command: &str, word: &str, error: &str) {
    let mut words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    words.push(word.as_bytes());
    let before = client.call("DEBUG DIGEST");
    client.send_words(&words);
    assert_eq!(client.reply_error(), error, "{command} {word:?}");
    assert_eq!(client.call("DEBUG DIGEST"), before, "{command} {word:?}");
}

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const LEASE_RANGE: &str = "ERR LEASE must be between 1 and 315360000000 milliseconds";
const HOLD_RANGE: &str = "ERR HOLD must be 1 or greater";
const FENCE_RANGE: &str = "ERR a token must be between 1 and 9007199254740991";
const TIMEOUT: &str = "ERR timeout is not an integer or out of range";
const SYNTAX: &str = "ERR syntax error";

#[test]
fn numbers_at_and_beyond_their_edges() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE held a");
    let no_numbers = [
        "1e3",
        "",
        "9223372036854775808",
        "+1",
        "01",
        "1.0",
        "0x1",
        "1\n",
        " 1",
        "1 ",
        " ",
    ];
    for (option, commands, out_of_range, range_error, not_a_number) in [
        (
            "LEASE",
            [
                "LOCK.ACQUIRE k a",
                "LOCK.ACQUIRE held a",
                "LOCK.RENEW held a",
            ]
            .as_slice(),
            ["0", "-1", "315360000001", "9223372036854775807"].as_slice(),
            LEASE_RANGE,
            NOT_AN_INTEGER,
        ),
        (
            "LIMIT",
            &["LOCK.ACQUIRE k a", "LOCK.ACQUIRE held a"],
            &["0", "-1", "9007199254740992"],
            "ERR LIMIT must be between 1 and 9007199254740991",
            NOT_AN_INTEGER,
        ),
        (
            "HOLD",
            &["LOCK.ACQUIRE k a", "LOCK.RELEASE held a"],
            &["0", "-1", "-9223372036854775808"],
            HOLD_RANGE,
            NOT_AN_INTEGER,
        ),
        (
            "FENCE",
            &["LOCK.RELEASE held a", "LOCK.RENEW held a"],
            &["0", "-1", "9007199254740992", "9223372036854775807"],
            FENCE_RANGE,
            NOT_AN_INTEGER,
        ),
        (
            "BLOCK",
            &["LOCK.ACQUIRE k a", "LOCK.ACQUIRE held b"],
            &["9223372036854775807", "4611686018427387904"],
            TIMEOUT,
            TIMEOUT,
        ),
        (
            "BLOCK",
            &["LOCK.ACQUIRE k a", "LOCK.ACQUIRE held b"],
            &["-1", "-9223372036854775808"],
            "ERR timeout is negative",
            TIMEOUT,
        ),
    ] {
        for command in commands {
            for number in out_of_range {
                check(
                    &mut client,
                    &format!("{command} {option} {number}"),
                    range_error,
                );
            }
            for word in no_numbers {
                check_word(
                    &mut client,
                    &format!("{command} {option}"),
                    word,
                    not_a_number,
                );
            }
        }
    }
    assert!(matches!(
        client.call("LOCK.ACQUIRE k a LEASE 315360000000"),
        Value::Int(_)
    ));
    assert!(matches!(
        client.call("LOCK.ACQUIRE l a LEASE 1 BLOCK 4611686018427387903"),
        Value::Int(_)
    ));
    assert_eq!(
        client.call("LOCK.RELEASE k a FENCE 9007199254740991"),
        nil()
    );
    check(
        &mut client,
        "LOCK.ACQUIRE k a HOLD 9223372036854775807",
        "HOLDCOUNT HOLD 9223372036854775807 does not fit: the owner has 1 hold(s) on this lock",
    );
}

#[test]
fn options_that_are_unknown_repeated_or_unfinished() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE held a");
    for command in [
        "LOCK.ACQUIRE k a LEASE",
        "LOCK.ACQUIRE k a BLOCK",
        "LOCK.ACQUIRE k a HOLD",
        "LOCK.ACQUIRE k a LEASE 5 LEASE 5",
        "LOCK.ACQUIRE k a BLOCK 5 LEASE 5 block 5",
        "LOCK.ACQUIRE k a HOLD 1 HOLD 1",
        "LOCK.ACQUIRE k a LEASE 5 BLOCK",
        "LOCK.ACQUIRE k a FENCE 5",
        "LOCK.ACQUIRE k a 5",
        "LOCK.ACQUIRE k a ",
        "LOCK.ACQUIRE k a SHARED SHARED",
        "LOCK.ACQUIRE k a SHARED LIMIT 5",
        "LOCK.ACQUIRE k a LIMIT 5 LIMIT 5",
        "LOCK.ACQUIRE k a LIMIT",
        "LOCK.ACQUIRE k a SESSION SESSION",
        "LOCK.RELEASE held a FENCE",
        "LOCK.RELEASE held a HOLD",
        "LOCK.RELEASE held a ALL ALL",
        "LOCK.RELEASE held a ALL HOLD 1",
        "LOCK.RELEASE held a LEASE 5",
        "LOCK.RENEW held a LEASE",
        "LOCK.RENEW held a FENCE",
        "LOCK.RENEW held a HOLD 1",
        "LOCK.RENEW held a LEASE 5 LEASE 5",
    ] {
        check(&mut client, command, SYNTAX);
    }
    for word in ["", " ", "LEASE ", " SHARED", "\0"] {
        check_word(&mut client, "LOCK.ACQUIRE k a", word, SYNTAX);
    }
    for name in ["ACQUIRE", "RELEASE", "RENEW"] {
        let lower = name.to_ascii_lowercase();
        let arity = format!("ERR wrong number of arguments for 'lock.{lower}' command");
        check(&mut client, &format!("LOCK.{name}"), &arity);
        check(&mut client, &format!("LOCK.{name} k"), &arity);
    }
    let options = "hold 1 bLoCk 5 Lease 5000";
    assert!(matches!(
        client.call(&format!("lock.acquire k a {options}")),
        Value::Int(_)
    ));
}

#[test]
fn owners_that_no_lock_can_have() {
    let server = TestServer::start();
    let mut client = server.client();
    let long = "x".repeat(1025);
    for command in ["LOCK.ACQUIRE k", "LOCK.RELEASE k", "LOCK.RENEW k"] {
        check(
            &mut client,
            &format!("{command} "),
            "ERR owner must not be empty",
        );
        check(
            &mut client,
            &format!("{command} @fence"),
            "ERR owner must not begin with '@'",
        );
        check(
            &mut client,
            &format!("{command} {long}"),
            "ERR owner must not be longer than 1024 bytes",
        );
    }
}

#[test]
fn keys_that_hold_something_else() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("SET string 1");
    client.call("RPUSH list a");
    client.call("HSET no-expiry a 1");
    client.call("HSET two a 1 b 1");
    client.call("HSET words a b");
    client.call("HSET zero a 0 @fence 5");
    client.call("HSET bad-fence a 1 @fence 0");
    client.call("HSET unknown a 1 @what 5");
    client.call("HSET three a 1 @fence 5 c 1");
    let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let not_a_lock = "NOTALOCK the key is a hash that does not describe a lock; \
                      use another key for the lock";
    for (key, error) in [
        ("string", wrong_type),
        ("list", wrong_type),
        ("no-expiry", not_a_lock),
        ("two", not_a_lock),
        ("words", not_a_lock),
        ("zero", not_a_lock),
        ("bad-fence", not_a_lock),
        ("unknown", not_a_lock),
        ("three", not_a_lock),
    ] {
        for command in ["ACQUIRE", "RELEASE", "RENEW"] {
            check(&mut client, &format!("LOCK.{command} {key} a"), error);
        }
        check(&mut client, &format!("LOCK.ACQUIRE {key} a BLOCK 0"), error);
    }
}

#[test]
fn a_hash_with_an_expiry_and_a_field_of_the_owners_name_is_a_lock_only_if_it_is_like_one() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.int("HSET hash a 1 b 2"), 2);
    // As Redisson and others write it: one owner, and no token.
    assert_eq!(client.int("HSET lock a 1"), 1);
    for key in ["hash", "lock"] {
        assert_eq!(client.int(&format!("PEXPIRE {key} 600000")), 1);
    }
    for command in [
        "LOCK.ACQUIRE hash a",
        "LOCK.RENEW hash a",
        "LOCK.RELEASE hash a",
        "LOCK.RELEASE hash a ALL",
    ] {
        let error = client.error(command);
        assert!(error.starts_with("NOTALOCK "), "{command}: {error}");
    }
    assert_eq!(client.int("HLEN hash"), 2);
    assert_eq!(client.int("LOCK.RELEASE lock a"), 1);
    assert_eq!(client.int("EXISTS lock"), 0);
}

#[test]
fn keys_and_owners_of_any_bytes() {
    let server = TestServer::start();
    let replica = server.replica(false);
    let mut client = server.client();
    let megabyte = vec![0xfe; 1 << 20];
    let keys: [&[u8]; 4] = [b"", b"\0k\0", b"\xff\xfe{\r\n", &megabyte];
    let owners: [&[u8]; 4] = [b"\0", b"\xff\0\r\n", &[0x80; 1024], b" "];
    for (i, key) in keys.into_iter().enumerate() {
        for (j, owner) in owners.into_iter().enumerate() {
            let reply = client.words(&[b"LOCK.ACQUIRE", key, owner]);
            assert!(
                matches!(reply, Value::Int(_)),
                "key {i}, owner {j}: {reply:?}"
            );
            assert_eq!(client.words(&[b"HGET", key, owner]), text("1"));
            assert_eq!(client.words(&[b"LOCK.ACQUIRE", key, b"other"]), nil());
            assert_eq!(client.words(&[b"LOCK.RENEW", key, owner]), int(1));
            server.assert_same_data(&replica);
            assert_eq!(client.words(&[b"LOCK.RELEASE", key, owner]), int(1));
        }
    }
    let reply = client.words(&[b"LOCK.ACQUIRE", b"k", &megabyte]);
    assert!(matches!(reply, Value::ServerError(_)), "{reply:?}");
    let reply = client.words(&[b"LOCK.ACQUIRE", b"k", b"a", &megabyte]);
    assert!(matches!(reply, Value::ServerError(_)), "{reply:?}");
    assert_eq!(client.call("PING"), status("PONG"));
}

#[test]
fn waiters_of_any_bytes() {
    let server = TestServer::start();
    let (mut a, mut b) = (server.client(), server.client());
    a.words(&[b"LOCK.ACQUIRE", b"\0\xff", b"a"]);
    b.send_words(&[b"LOCK.ACQUIRE", b"\0\xff", b"\xff\0", b"BLOCK", b"0"]);
    server.await_blocked(1);
    assert_eq!(a.words(&[b"LOCK.RELEASE", b"\0\xff", b"a"]), int(1));
    assert!(matches!(b.reply(), Value::Int(_)));
}

#[test]
fn a_hold_count_near_its_limit_ends_in_an_error() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HSET k a 9223372036854775807 @fence 7");
    client.call("PEXPIRE k 60000");
    check(
        &mut client,
        "LOCK.ACQUIRE k a",
        "ERR hold count would overflow; release some holds first",
    );
    assert_eq!(
        client.call("LOCK.ACQUIRE k a HOLD 9223372036854775807"),
        int(7)
    );
    assert_eq!(client.call("LOCK.RELEASE k a"), int(0));
}

#[test]
fn a_token_that_has_no_successor_ends_in_an_error() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HSET k @fence 9007199254740991");
    check(
        &mut client,
        "LOCK.ACQUIRE k a",
        "ERR the stored @fence is the greatest possible token; delete the key first",
    );
    assert!(matches!(client.call("LOCK.ACQUIRE other a"), Value::Int(_)));
}

#[test]
fn without_memory_a_lock_can_be_released_and_renewed_but_not_taken() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a");
    client.call("CONFIG SET maxmemory 1");
    check(
        &mut client,
        "LOCK.ACQUIRE other a",
        "OOM command not allowed when used memory > 'maxmemory'.",
    );
    assert_eq!(client.call("LOCK.RENEW k a"), int(1));
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
}

#[test]
fn without_memory_a_lock_is_handed_on_all_the_same() {
    let server = TestServer::start();
    let (mut a, mut observer) = (server.client(), server.client());
    for end in [
        "LOCK.RELEASE k a",
        "LOCK.RENEW k a LEASE 1",
        "LOCK.BREAK k",
        "DEL k",
    ] {
        a.int("LOCK.ACQUIRE k a LEASE 600000");
        let mut waiter = server.client();
        waiter.send_and_block(&mut observer, "LOCK.ACQUIRE k b LEASE 600000 BLOCK 0");
        observer.call("CONFIG SET maxmemory 1");
        assert_eq!(a.call(end), int(1), "{end}");
        assert!(matches!(waiter.reply(), Value::Int(_)), "{end}");
        assert_eq!(waiter.call("LOCK.RELEASE k b"), int(1), "{end}");
        observer.call("CONFIG SET maxmemory 0");
    }
}

#[test]
fn a_replica_refuses_to_write() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let mut client = replica.client();
    for command in ["LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "LOCK.RENEW k a"] {
        let error = client.error(command);
        assert!(error.starts_with("READONLY "), "{error}");
    }
}

#[test]
fn a_user_needs_permission_for_the_key() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("ACL SETUSER worker on >secret +lock.acquire ~locks:*");
    client.call("AUTH worker secret");
    assert!(matches!(
        client.call("LOCK.ACQUIRE locks:1 a"),
        Value::Int(_)
    ));
    assert!(client.error("LOCK.ACQUIRE other a").starts_with("NOPERM "));
}
