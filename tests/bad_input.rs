//! What clients get wrong is told clearly and changes nothing.

use redis::Value;
use redis_lock_testing::{Int, Nil, Play, Server, text};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const TIMEOUT: &str = "ERR timeout is not an integer or out of range";

/// What is no number, between commas.
const NO_NUMBERS: &str = "1e3,\"\",9223372036854775808,+1,01,1.0,0x1,\" 1\",\"1 \",\" \"";

#[test]
fn numbers_at_and_beyond_their_edges() {
    let mut play = Play::start();
    play.run("o > LOCK.ACQUIRE held a");
    for (option, commands, out_of_range, error) in [
        (
            "LEASE",
            &["ACQUIRE k a", "ACQUIRE held a", "RENEW held a"][..],
            "0,-1,315360000001,9223372036854775807",
            "ERR LEASE must be between 1 and 315360000000 milliseconds",
        ),
        (
            "LIMIT",
            &["ACQUIRE k a", "ACQUIRE held a"],
            "0,-1,9007199254740992",
            "ERR LIMIT must be between 1 and 9007199254740991",
        ),
        (
            "HOLD",
            &["ACQUIRE k a", "RELEASE held a"],
            "0,-1,-9223372036854775808",
            "ERR HOLD must be 1 or greater",
        ),
        (
            "FENCE",
            &["RELEASE held a", "RENEW held a"],
            "0,-1,9007199254740992,9223372036854775807",
            "ERR a token must be between 1 and 9007199254740991",
        ),
        (
            "BLOCK",
            &["ACQUIRE k a", "ACQUIRE held a"],
            "9223372036854775807,4611686018427387904",
            TIMEOUT,
        ),
        (
            "BLOCK",
            &["ACQUIRE k a", "ACQUIRE held a"],
            "-1,-9223372036854775808",
            "ERR timeout is negative",
        ),
    ] {
        let no_number = if option == "BLOCK" {
            TIMEOUT
        } else {
            NOT_AN_INTEGER
        };
        for command in commands {
            let with = |word: &str| format!("LOCK.{command} {option} {word}");
            for (words, error) in [(out_of_range, error), (NO_NUMBERS, no_number)] {
                play.refuses(error, &words.split(',').map(with).collect::<Vec<_>>());
            }
        }
    }
    play.run(
        "o > LOCK.ACQUIRE k a LEASE 315360000000 -> token
        o > LOCK.ACQUIRE l a LEASE 1 BLOCK 4611686018427387903 -> token
        o > LOCK.RELEASE k a FENCE 9007199254740991 -> null
        o > LOCK.ACQUIRE k a HOLD 9223372036854775807 -> !HOLDCOUNT HOLD 9223372036854775807 does not fit: the owner has 1 hold(s) on this lock",
    );
}

/// How words are read is the subject of the commands' own tests, but for those of `RENEW`.
#[test]
fn options_that_are_unknown_repeated_or_unfinished() {
    let mut play = Play::start();
    play.run("o > LOCK.ACQUIRE held a").refuses(
        "ERR syntax error",
        &[
            "LOCK.ACQUIRE k a LEASE",
            "LOCK.ACQUIRE k a BLOCK 5 LEASE 5 block 5",
            "LOCK.ACQUIRE k a FENCE 5",
            "LOCK.ACQUIRE k a \"\"",
            "LOCK.ACQUIRE k a \"LEASE \" 5",
            "LOCK.ACQUIRE k a SHARED\0",
            "LOCK.ACQUIRE k a SHARED LIMIT 5",
            "LOCK.RELEASE held a ALL HOLD 1",
            "LOCK.RENEW held a LEASE",
            "LOCK.RENEW held a FENCE",
            "LOCK.RENEW held a HOLD 1",
            "LOCK.RENEW held a LEASE 5 LEASE 5",
        ],
    );
    for name in ["ACQUIRE", "RELEASE", "RENEW"] {
        let lower = name.to_ascii_lowercase();
        let arity = format!("ERR wrong number of arguments for 'lock.{lower}' command");
        play.refuses(&arity, &[format!("LOCK.{name}"), format!("LOCK.{name} k")]);
    }
    play.run("o > lock.acquire k a hold 1 bLoCk 5 Lease 5000 -> token");
}

#[test]
fn owners_that_no_lock_can_have() {
    let long = "x".repeat(1025);
    for (owner, is_wrong) in [
        ("\"\"", "be empty"),
        ("@fence", "begin with '@'"),
        (&long, "be longer than 1024 bytes"),
    ] {
        let with = |name: &str| format!("LOCK.{name} k {owner}");
        let commands = ["ACQUIRE", "RELEASE", "RENEW"].map(with);
        Play::start().refuses(&format!("ERR owner must not {is_wrong}"), &commands);
    }
}

#[test]
fn keys_that_hold_something_else() {
    let mut play = Play::start();
    play.run(
        "o > SET string 1
        o > RPUSH list a
        o > HSET no-expiry a 1
        o > HSET two a 1 b 1
        o > HSET words a b
        o > HSET zero a 0 @fence 5
        o > HSET bad-fence a 1 @fence 0
        o > HSET unknown a 1 @what 5
        o > HSET three a 1 @fence 5 c 1
        o > HSET expires a 1 b 2
        o > PEXPIRE expires 600000 -> 1",
    );
    let not_a_lock = "NOTALOCK the key is a hash that does not describe a lock; \
                      use another key for the lock";
    let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let hashes = "no-expiry two words zero bad-fence unknown three expires";
    for (keys, error) in [(hashes, not_a_lock), ("string list", wrong_type)] {
        for key in keys.split(' ') {
            let all = "ACQUIRE # a,RELEASE # a,RELEASE # a ALL,RENEW # a,ACQUIRE # a BLOCK 0";
            let with_key = |command: &str| format!("LOCK.{}", command.replace('#', key));
            play.refuses(error, &all.split(',').map(with_key).collect::<Vec<_>>());
        }
    }
    // As Redisson and others write it: one owner, and no token.
    play.run(
        "o > HSET lock a 1
        o > PEXPIRE lock 600000 -> 1
        o > LOCK.RELEASE lock a -> 1
        o > EXISTS lock -> 0",
    );
}

#[test]
fn keys_and_owners_of_any_bytes() {
    let server = Server::start();
    let replica = server.replica(false);
    let mut client = server.client();
    let megabyte = vec![0xfe; 1 << 20];
    let keys: [&[u8]; 4] = [b"", b"\0k\0", b"\xff\xfe{\r\n", &megabyte];
    let owners: [&[u8]; 4] = [b"\0", b"\xff\0\r\n", &[0x80; 1024], b" "];
    for (i, key) in keys.into_iter().enumerate() {
        for (j, owner) in owners.into_iter().enumerate() {
            let reply = client.words(&[b"LOCK.ACQUIRE", key, owner]);
            let is_granted = matches!(reply, Value::Int(_));
            assert!(is_granted, "key {i}, owner {j}: {reply:?}");
            assert_eq!(client.words(&[b"HGET", key, owner]), text("1"));
            assert_eq!(client.words(&[b"LOCK.ACQUIRE", key, b"other"]), Nil);
            assert_eq!(client.words(&[b"LOCK.RENEW", key, owner]), Int(1));
            server.assert_same_data(&replica);
            assert_eq!(client.words(&[b"LOCK.RELEASE", key, owner]), Int(1));
        }
    }
    let reply = client.words(&[b"LOCK.ACQUIRE", b"k", &megabyte]);
    assert!(matches!(reply, Value::ServerError(_)), "{reply:?}");
    let reply = client.words(&[b"LOCK.ACQUIRE", b"k", b"a", &megabyte]);
    assert!(matches!(reply, Value::ServerError(_)), "{reply:?}");
    assert_eq!(client.bulk("PING"), "PONG");
}

#[test]
fn counts_and_tokens_at_their_limit_end_in_an_error() {
    let mut play = Play::start();
    play.run(
        "o > HSET k a 9223372036854775807 @fence 7
        o > PEXPIRE k 60000
        o > HSET last @fence 9007199254740991",
    );
    play.refuses(
        "ERR hold count would overflow; release some holds first",
        &["LOCK.ACQUIRE k a"],
    );
    play.refuses(
        "ERR the stored @fence is the greatest possible token; delete the key first",
        &["LOCK.ACQUIRE last a"],
    );
    play.run(
        "o > LOCK.ACQUIRE k a HOLD 9223372036854775807 -> 7
        o > LOCK.RELEASE k a -> 0
        o > LOCK.ACQUIRE other a -> token",
    );
}

#[test]
fn without_memory_a_lock_is_released_and_renewed_but_not_taken() {
    Play::start().run(
        "o > LOCK.ACQUIRE k a
        o > CONFIG SET maxmemory 1
        o > LOCK.ACQUIRE other a -> !OOM command not allowed when used memory > 'maxmemory'.
        o > LOCK.RENEW k a -> 1
        o > LOCK.RELEASE k a -> 1",
    );
}

#[test]
fn without_memory_a_lock_is_handed_on_all_the_same() {
    for end in [
        "LOCK.RELEASE k h",
        "LOCK.RENEW k h LEASE 1",
        "LOCK.BREAK k",
        "DEL k",
    ] {
        Play::held().run(&format!(
            "w > LOCK.ACQUIRE k w BLOCKED -> ..
            o > CONFIG SET maxmemory 1
            h > {end} -> 1
            w < token
            w > LOCK.RELEASE k w -> 1"
        ));
    }
}

#[test]
fn a_replica_refuses_to_write_and_a_user_needs_the_right_to_the_key() {
    Play::start().with_replica().run(
        "each ACQUIRE RELEASE RENEW: o@r > LOCK.# k a -> !READONLY
        o > ACL SETUSER worker on nopass +lock.acquire ~locks:* -> OK
        worker > AUTH worker x -> OK
        worker > LOCK.ACQUIRE locks:1 a -> token
        worker > LOCK.ACQUIRE other a -> !NOPERM",
    );
}
