//! A command that is guarded by a token runs while that token's hold is present, and
//! then as the server would run it in a script.

use redis::Value;
use redis_lock_testing::{Int, Play, text};

#[test]
fn the_token_of_a_present_hold_lets_a_command_run_and_no_other_does() {
    let mut play = Play::held();
    // By any connection.
    play.run(
        "other > LOCK.GUARD k $H SET x 1 -> OK
        h > lock.guard k $H incr x -> 2
        other > GET x -> '2'",
    );
    let (less, more) = (play.token("H") - 1, play.token("H") + 1);
    play.refuses(
        "NOTHELD nobody holds the lock with this token now, and nothing was done; stop the work, \
         and acquire the lock again before you start it anew",
        &[
            "LOCK.GUARD k 1 SET x 1",
            &format!("LOCK.GUARD k {less} SET x 1"),
            &format!("LOCK.GUARD k {more} SET x 1"),
            "LOCK.GUARD k 9007199254740991 SET x 1",
            "LOCK.GUARD l $H SET x 1",
        ],
    );
    play.run("lock_tokens_refused = 5");
    play.refuses(
        "ERR a token must be between 1 and 9007199254740991",
        &[
            "LOCK.GUARD k 0 SET x 1",
            "LOCK.GUARD k -1 SET x 1",
            "LOCK.GUARD k 9007199254740992 SET x 1",
        ],
    );
    play.refuses(
        "ERR value is not an integer or out of range",
        &[
            "LOCK.GUARD k \"\" SET x 1",
            "LOCK.GUARD k a SET x 1",
            "LOCK.GUARD k 1.0 SET x 1",
            "LOCK.GUARD k +1 SET x 1",
        ],
    );
    play.run("h > LOCK.RELEASE k h -> 1");
    play.refuses("NOTHELD", &["LOCK.GUARD k $H SET x 3"]);
}

/// The old one stops for longer than its lease.
#[test]
fn after_a_hand_off_the_new_token_writes_and_the_old_one_does_not() {
    Play::held().run(
        "next > LOCK.ACQUIRE k next BLOCKED -> ..
        h > LOCK.RENEW k h LEASE 1 -> 1
        next < N
        h > LOCK.GUARD k $H SET x old -> !NOTHELD
        next > LOCK.GUARD k $N SET x new -> OK
        h > LOCK.GUARD k $H DEL x -> !NOTHELD
        h > GET x -> 'new'",
    );
}

#[test]
fn a_session_that_has_ended_writes_no_more() {
    Play::start().run(
        "s > LOCK.ACQUIRE k s LONG SESSION -> S
        s > LOCK.GUARD k $S SET x 1 -> OK
        o > LOCK.GUARD k $S SET x 1 -> OK
        o >> CLIENT KILL ID $s | LOCK.GUARD k $S SET x 1 -> 1 | !NOTHELD
        o > EXISTS k -> 0",
    );
}

#[test]
fn what_would_lie_about_replicas_is_refused() {
    let error = "ERR LOCK.GUARD runs no WAIT or WAITAOF; send them after it";
    for wait in ["WAIT 1 10", "wait 0 0", "WAITAOF 1 1 10"] {
        Play::held().refuses(error, &[format!("LOCK.GUARD k $H {wait}")]);
    }
}

#[test]
fn what_no_script_may_call_is_refused() {
    let mut play = Play::held();
    for (command, name) in [
        ("MULTI", "multi"),
        ("WATCH x", "watch"),
        ("SUBSCRIBE c", "subscribe"),
        ("EVAL return 0", "eval"),
        ("CONFIG SET maxmemory 1", "config|set"),
        ("SHUTDOWN NOSAVE", "shutdown"),
        ("CLIENT PAUSE 1", "client|pause"),
    ] {
        let error = format!("ERR command '{name}' is not allowed on script mode");
        play.refuses(&error, &[format!("LOCK.GUARD k $H {command}")]);
    }
    let own = "LOCK.GUARD runs no LOCK.* command; those that need it take the token as FENCE";
    for (error, commands) in [
        (own, "LOCK.RELEASE k a | lock.guard k 5 SET x 1 | Lock.List"),
        ("wrong number of arguments for 'set' command", "SET x"),
        ("wrong number of arguments for 'get' command", "GET"),
        ("wrong number of arguments for 'lock.guard' command", ""),
        (
            "unknown ",
            "NONE x 1 | LOCK x | CLIENT NONE | \"\" | SET\0 x 1 | \u{e9}",
        ),
    ] {
        let guarded = |command| format!("LOCK.GUARD k $H {command}");
        let commands: Vec<String> = commands.split(" | ").map(guarded).collect();
        play.refuses(&format!("ERR {error}"), &commands);
    }
}

#[test]
fn it_works_in_a_transaction() {
    Play::held().run(
        "h >> LOCK.GUARD k $H SET x 1 | LOCK.RELEASE k h | LOCK.GUARD k $H GET x -> OK | 1 | !NOTHELD
        h > GET x -> '1'",
    );
}

#[test]
fn it_works_in_a_script_and_runs_none() {
    let mut play = Play::held();
    let guard = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1],";
    let types = "redis.setresp(3) redis.call('HSET', 'h', 'f', 'v')";
    play.run(&format!(
        "o > EVAL \"{guard} 'SET', KEYS[2], '1')\" 2 k x $H -> OK
        o > EVAL \"{types} {guard} 'HGETALL', 'h').map.f\" 2 k x $H -> 'v'
        o > EVAL \"{guard} 'SET', KEYS[2], '2')\" 2 k x 5 -> !NOTHELD
        o > GET x -> '1'"
    ));
    let guard = guard.replace("call", "pcall");
    for inner in [
        "'EVAL','return 1','0'",
        "'EVALSHA','x','0'",
        "'FCALL','f','0'",
    ] {
        play.run(&format!(
            "o > EVAL \"{guard} {inner})\" 1 k $H -> ~is not allowed on script mode"
        ));
    }
    play.run("sound");
}

#[test]
fn a_blocking_command_does_what_it_does_in_a_script() {
    let mut play = Play::held();
    for (command, lua) in [
        ("BLPOP l 0", "'BLPOP', KEYS[1], '0'"),
        (
            "XREAD BLOCK 0 STREAMS l $",
            "'XREAD', 'BLOCK', '0', 'STREAMS', KEYS[1], '$'",
        ),
    ] {
        let script = format!("return redis.call({lua})");
        let guarded = format!("LOCK.GUARD k {} {command}", play.token("H"));
        let client = play.client("o");
        let in_a_script = client.words(&[b"EVAL", script.as_bytes(), b"1", b"l"]);
        match (in_a_script, client.call(&guarded)) {
            // Redis 7.0 refuses them to scripts; XREAD of a module does not wait there.
            (Value::ServerError(_), Value::ServerError(_) | Value::Nil) => {}
            (in_a_script, guarded) => assert_eq!(guarded, in_a_script, "{command}"),
        }
    }
}

/// The lock's key has to be readable, no more.
#[test]
fn a_user_needs_the_right_to_the_command_its_keys_and_channels() {
    let mut play = Play::held();
    let rights = "ACL SETUSER writer on nopass";
    play.run(&format!(
        "h > {rights} %R~k ~mine:* &mine:* +lock.guard +set +publish
        h > ACL SETUSER other on nopass ~* +lock.guard +set
        h > ACL SETUSER blind on nopass ~mine:* +lock.guard +set
        writer > AUTH writer x
        other > AUTH other x
        blind > AUTH blind x
        writer > LOCK.GUARD k $H SET mine:x 1 -> OK
        writer > LOCK.GUARD k $H PUBLISH mine:c 1 -> 0
        blind > LOCK.GUARD k $H SET mine:x 2 -> !NOPERM
        other > LOCK.GUARD k $H GET mine:x -> !NOPERM"
    ));
    for command in ["SET other 1", "GET mine:x", "PUBLISH other 1", "DEL k"] {
        play.run(&format!("writer > LOCK.GUARD k $H {command} -> !NOPERM"));
        // The server's own words.
        if play.version() >= (7, 2) {
            let own = play.client("writer").error(command);
            play.run(&format!("writer > LOCK.GUARD k $H {command} -> !{own}"));
        }
    }
    // In a script, the rights of the one who called it count.
    play.run("h > GET mine:x -> '1' \n h > EXISTS other -> 0 \n h > ACL SETUSER writer +eval");
    let script = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'GET', 'mine:x')";
    play.run(&format!("writer sends EVAL \"{script}\" 1 k $H"));
    let error = play.client("writer").reply_error();
    let is_refused = error.contains("NOPERM") || error.contains("permissions");
    assert!(is_refused, "{error}");
}

#[test]
fn without_memory_only_what_needs_none_runs() {
    Play::held().run(
        "h > SET x 1
        h > CONFIG SET maxmemory 1
        h > LOCK.GUARD k $H SET x 2 -> !OOM command not allowed when used memory > 'maxmemory'.
        h > LOCK.GUARD k $H GET x -> '1'
        h > LOCK.GUARD k $H DEL x -> 1",
    );
}

#[test]
fn a_replica_and_a_primary_without_replicas_refuse_it() {
    Play::held().with_replica().run(
        "there at r
        there > LOCK.GUARD k $H GET x -> !READONLY
        h > CONFIG SET min-replicas-to-write 2
        h > LOCK.GUARD k $H GET x -> !NOREPLICAS
        h > CONFIG SET min-replicas-to-write 0
        h > LOCK.GUARD k $H GET x -> null",
    );
}

#[test]
fn a_replica_holds_what_the_primary_holds() {
    for with_module in [true, false] {
        let mut play = Play::held();
        let replica = play.server.replica(with_module);
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
            play.run(&format!("h > LOCK.GUARD k $H {command}"));
        }
        play.assert_same_data(&replica);
    }
}

/// The reply to the guarded command must be that to the command.
#[track_caller]
fn check_reply(play: &mut Play, command: &str) {
    let guarded = format!("LOCK.GUARD k {} {command}", play.token("H"));
    let client = play.client("h");
    let own = client.call(command);
    assert_eq!(client.call(&guarded), own, "{command}");
}

#[test]
fn replies_of_every_kind_are_passed_on_as_they_are() {
    for protocol in [2, 3] {
        let mut play = Play::held();
        play.run(&format!(
            "h > HELLO {protocol}
            h > HSET h a 1 b 2
            h > SADD s a b
            h > ZADD z 1.5 a inf b
            h > RPUSH l a b
            h > XADD x 1-1 f v
            h > GEOADD g 13.36 38.11 p
            h > SET n 1
            h > SET empty \"\""
        ));
        let commands = "GET n | GET none | GET empty | SET n 1 | SET n 1 NX | SET n 1 GET | TYPE h \
            | STRLEN n | HGETALL h | HGETALL none | HMGET h a none b | SMEMBERS s | ZSCORE z a \
            | ZSCORE z none | ZSCORE z b | ZRANGE z 0 -1 WITHSCORES | LRANGE l 0 -1 \
            | LRANGE none 0 -1 | LPOP none 2 | XRANGE x - + | XREAD STREAMS x 0 \
            | GEOPOS g p none | SMISMEMBER s a c | INFO keyspace | COMMAND INFO get none \
            | COMMAND DOCS get | OBJECT FREQ none | INCR h | GETRANGE h 0 1";
        for command in commands.split(" | ") {
            check_reply(&mut play, command);
        }
    }
}

#[test]
fn an_error_is_told_to_who_caused_it() {
    let mut play = Play::held();
    play.run("h > RPUSH list x");
    for command in [
        "GETDEL list",
        "getset list y",
        "GETEX list",
        "APPEND list y",
    ] {
        check_reply(&mut play, command);
        play.run(
            "other > LOCK.GUARD k $H SET n 1 -> OK
            h > ECHO here -> 'here'",
        );
    }
    play.run("h >> LOCK.GUARD k $H GETDEL list | ECHO here -> !WRONGTYPE | 'here'");
}

#[test]
fn arguments_are_any_bytes_and_any_number() {
    let mut play = Play::held();
    let token = play.token("H").to_string();
    let client = play.client("h");
    let all: Vec<u8> = (0..=255).collect();
    let guard: [&[u8]; 3] = [b"LOCK.GUARD", b"k", token.as_bytes()];
    client.words(&[&guard[..], &[b"SET", &all, &all]].concat());
    assert_eq!(client.words(&[b"GET", &all]), text(&all));
    let values: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let mut push = [&guard[..], &[b"RPUSH", b"l"]].concat();
    push.extend(values.iter().map(String::as_bytes));
    assert_eq!(client.words(&push), Int(100_000));
    play.run("h > LINDEX l -1 -> '99999'");
    play.run("sound");
}

#[test]
fn a_guarded_command_on_the_lock_itself_is_as_any_command() {
    let mut play = Play::held();
    play.run(
        "next > LOCK.ACQUIRE k next BLOCKED -> ..
        h > LOCK.GUARD k $H DEL k -> 1
        next < N
        h > LOCK.GUARD k $H SET x 1 -> !NOTHELD
        next > LOCK.GUARD k $N FLUSHALL -> OK",
    );
    play.run("sound");
}

#[test]
fn each_database_has_its_own_lock() {
    Play::held().run(
        "h > SELECT 3
        h > LOCK.GUARD k $H SET x 1 -> !NOTHELD
        h > LOCK.ACQUIRE k h LONG -> T
        h > LOCK.GUARD k $T SET x 3 -> OK
        h > GET x -> '3'
        h > SELECT 0
        h > GET x -> null",
    );
}

#[test]
fn only_what_is_written_fails_a_watch() {
    for (between, reply) in [
        ("GET x", "PONG"),
        ("SET other 1", "PONG"),
        ("SET x 2", "null"),
    ] {
        Play::held().run(&format!(
            "h > SET x 1
            h > WATCH k x
            other > LOCK.GUARD k $H {between}
            h >> PING -> {reply}"
        ));
    }
}

/// The check of those who can't send `LOCK.GUARD`, as `docs/fencing.md` has it: between
/// what it reads and its write, this happens.
#[test]
fn a_checked_transaction_writes_while_the_lock_is_held() {
    for (between, reply, left) in [
        ("", "OK", "'1'"),
        ("o > LOCK.RELEASE k h -> 1\n next < token", "null", "null"),
        // Needlessly; a guarded command does not fail.
        ("o > LOCK.RENEW k h LEASE 700000 -> 1", "null", "null"),
    ] {
        let mut play = Play::held();
        play.run(&format!(
            "next > LOCK.ACQUIRE k next BLOCKED -> ..
            h > WATCH k
            h > HGET k @fence -> '$H'
            {between}
            h >> SET x 1 -> {reply}
            h > GET x -> {left}"
        ));
    }
}

#[test]
fn a_checked_transaction_after_the_end_of_the_lease_writes_nothing() {
    Play::start().run(
        "o > LOCK.ACQUIRE k a LEASE 3000 -> A
        o > WATCH k
        o > HGET k @fence -> '$A'
        until other > EXISTS k -> 0
        o >> SET x 1 -> null
        other > GET x -> null",
    );
}
