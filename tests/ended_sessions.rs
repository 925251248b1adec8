//! Sessions that have ended, and what the next command sees of their locks.

use redis::Value;
use redis_lock_testing::scene::{await_gone, await_waiting, settle, transaction, waiting};
use redis_lock_testing::{
    LONG, Play, TestServer, eventually, int, module, stay_on_one_processor, text, token,
};

const ASKS: [&str; 4] = ["", "HOLD 1", "SESSION", "HOLD 1 SESSION"];

/// `s` holds `k` by its connection.
#[track_caller]
fn uncontended() -> Play {
    let mut play = Play::start();
    play.run("s > LOCK.ACQUIRE k s LONG SESSION -> S");
    play
}

/// The session ends, and in the same transaction somebody asks. Then the one who waited has
/// the lock, alone.
#[track_caller]
fn check_contended(command: &str, reply: &str) {
    uncontended().run(&format!(
        "next > LOCK.ACQUIRE k next BLOCKED -> ..
        o >> CLIENT KILL ID $s | {command} -> 1 | {reply}
        next < N
        settled
        o > HLEN k -> 2
        o > HGET k next -> '1'
        o > HGET k @fence -> '$N'
        s < closed"
    ));
}

/// The same where nobody waits, and then this is so.
#[track_caller]
fn check_uncontended(command: &str, reply: &str, then: &str) {
    uncontended().run(&format!(
        "o >> CLIENT KILL ID $s | {command} -> 1 | {reply}
        settled
        {then}"
    ));
}

#[test]
fn its_owner_does_not_pass_those_who_wait() {
    for options in ASKS {
        check_contended(&format!("LOCK.ACQUIRE k s LONG {options}"), "null");
    }
}

#[test]
fn its_owner_gets_a_new_hold_that_lasts() {
    let asks = ASKS.map(|options| ("s", options));
    for (owner, options) in [&asks[..], &[("another", "")]].concat() {
        check_uncontended(
            &format!("LOCK.ACQUIRE k {owner} LONG {options}"),
            "T",
            &format!("o > HLEN k -> 2 \n o > HGET k {owner} -> '1' \n o > HGET k @fence -> '$T'"),
        );
    }
}

#[test]
fn its_hold_can_neither_be_renewed_nor_given_back_nor_broken() {
    for (command, reply) in [
        ("LOCK.RENEW k s LONG", "0"),
        ("LOCK.RENEW k s LONG FENCE $S", "0"),
        ("LOCK.RELEASE k s", "null"),
        ("LOCK.RELEASE k s ALL", "null"),
        ("LOCK.RELEASE k s FENCE $S", "null"),
        ("LOCK.BREAK k FENCE $S", "0"),
    ] {
        check_contended(command, reply);
        check_uncontended(command, reply, "o > EXISTS k -> 0");
    }
}

#[test]
fn its_lock_is_not_shown_as_held_by_it() {
    for (command, waits) in [("INFO k", true), ("INFO k", false), ("LIST", true)] {
        let mut play = uncontended();
        if waits {
            play.run("next > LOCK.ACQUIRE k next BLOCKED -> ..");
        }
        let kill = format!("CLIENT KILL ID {}", play.client("s").int("CLIENT ID"));
        let replies = transaction(play.client("o"), &[&kill, &format!("LOCK.{command}")]);
        let shown = format!("{:?}", replies[1]);
        assert!(!shown.contains(&format!("{:?}", text("s"))), "{shown}");
        let is_free = shown.contains(&format!("{:?}", text("free")));
        assert!(is_free || waits, "{shown}");
    }
}

/// Ends a session of 300 readers in a transaction with this command, and returns its reply.
/// Another reader is left, if one is named.
#[track_caller]
fn end_a_crowd(left: Option<&str>, command: &str) -> (TestServer, Value) {
    const CROWD: usize = 300;
    let server = TestServer::start();
    let (mut client, mut session) = (server.client(), server.client());
    let id = session.int("CLIENT ID");
    for n in 0..CROWD {
        if let Some(left) = left.filter(|_| n == CROWD / 2) {
            client.int(&format!("LOCK.ACQUIRE k {left} {LONG} SHARED"));
        }
        session.send(&format!("LOCK.ACQUIRE k n{n} {LONG} SHARED SESSION"));
        token(&session.reply());
    }
    let replies = transaction(&mut client, &[&format!("CLIENT KILL ID {id}"), command]);
    (server, replies[1].clone())
}

/// Who holds the lock when all is settled, and how many sessions were ended.
#[track_caller]
fn assert_left(server: &TestServer, left: &[&str]) {
    let mut client = server.client();
    eventually("all has settled", || {
        let fields = client.hash("k").into_iter().map(|(name, _)| name);
        let mut holders: Vec<_> = fields.filter(|name| !name.starts_with('@')).collect();
        holders.sort();
        holders == left && client.info("lock_sessions") == 0
    });
    assert_eq!(client.info("lock_releases_session"), 300);
    eventually("all is measured", || client.info("lock_hold_count") == 300);
}

#[test]
fn a_crowd_of_readers_ends_with_its_connection() {
    let script = "EVAL return(redis.call('LOCK.ACQUIRE','k','x')) 0";
    for (left, command, is_granted, holders) in [
        (None, "LOCK.ACQUIRE k x", Some(true), &["x"][..]),
        (None, script, Some(true), &["x"]),
        (None, "LOCK.BREAK k", None, &[]),
        (Some("z"), "LOCK.ACQUIRE k x", Some(false), &["z"]),
        (
            Some("z"),
            "LOCK.ACQUIRE k x LIMIT 2",
            Some(true),
            &["x", "z"],
        ),
        (Some("z"), "LOCK.BREAK k", None, &[]),
    ] {
        let (server, reply) = end_a_crowd(left, command);
        match is_granted {
            Some(true) => _ = token(&reply),
            Some(false) => assert_eq!(reply, Value::Nil, "{command}"),
            None => assert_eq!(reply, int(left.is_some().into()), "{command}"),
        }
        assert_left(&server, holders);
        let is_broken = left.is_some() && is_granted.is_none();
        assert_eq!(server.info("lock_releases_broken"), is_broken.into());
    }
}

/// Its connection ends while the server must not write, and its owner asks on
/// a new one.
#[test]
fn its_owner_asks_again_after_a_pause_of_the_server() {
    let mut play = uncontended();
    play.run(
        "next > LOCK.ACQUIRE k next BLOCKED -> ..
        again > PING -> PONG
        o > CLIENT PAUSE 60000 WRITE -> OK
        s closes
        again sends LOCK.ACQUIRE k s LONG HOLD 1
        o > PING -> PONG
        o > CLIENT UNPAUSE -> OK",
    );
    match play.client("again").reply() {
        Value::Nil => play.run("settled \n next < token"),
        told => play.run(&format!(
            "settled
            o > HGET k @fence -> '{}'
            o > HGET k s -> '1'",
            token(&told)
        )),
    };
}

/// What keeps the server from reading while a session ends.
#[derive(Clone, Copy)]
enum Busy {
    Not,
    Asleep,
    InAScript,
}

/// Ends sessions again and again while their owner asks on a connection that is
/// open already. Whoever is told that it holds the lock must still hold it.
#[track_caller]
fn check_rounds(quit: bool, busy: &[Busy]) {
    stay_on_one_processor();
    let server = TestServer::start();
    let (mut observer, mut sleeper) = (server.client(), server.client());
    let (mut pooled, mut next) = (server.client(), server.client());
    for round in 0..200 {
        let ask = [
            "LOCK.ACQUIRE k owner LEASE 600000",
            "LOCK.ACQUIRE k owner LEASE 600000 HOLD 1",
            "LOCK.ACQUIRE k owner LEASE 600000 SESSION",
            "LOCK.RENEW k owner LEASE 600000",
        ][round % 4];
        let mut session = server.client();
        let id = session.int("CLIENT ID");
        let first = session.int(&format!("LOCK.ACQUIRE k owner {LONG} SESSION"));
        next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
        await_waiting(&mut observer, "k", 1);
        let busy = busy[round / 4 % busy.len()];
        match busy {
            Busy::Not => {}
            Busy::Asleep => sleeper.send("DEBUG SLEEP 0.005"),
            Busy::InAScript => {
                let script = b"local n = 0 for i = 1, 500000 do n = n + i end return 1";
                sleeper.send_words(&[b"EVAL", script, b"0"]);
            }
        }
        if quit {
            session.send("QUIT");
        } else {
            drop(session);
        }
        let reply = pooled.call(ask);
        if !matches!(busy, Busy::Not) {
            sleeper.reply();
        }
        await_gone(&mut observer, id);
        settle(&server);
        let told = match reply {
            Value::Nil => None,
            Value::Int(renewed) if ask.starts_with("LOCK.RENEW") => (renewed == 1).then_some(first),
            reply => Some(token(&reply)),
        };
        if let Some(told) = told {
            let stored = [
                observer.call("HEXISTS k owner"),
                observer.call("HGET k @fence"),
            ];
            assert_eq!(
                stored,
                [int(1), text(told.to_string())],
                "round {round}, {ask}: told, then taken"
            );
            assert_eq!(waiting(&mut observer, "k"), 1, "round {round}, {ask}");
            assert_eq!(pooled.call("LOCK.RELEASE k owner ALL"), int(1));
        }
        let granted = token(&next.reply());
        assert!(granted > first, "round {round}, {ask}");
        assert_eq!(next.call("LOCK.RELEASE k next"), int(1));
    }
    assert_eq!(observer.int("EXISTS k"), 0);
    assert_eq!(observer.info("lock_sessions"), 0);
}

#[test]
fn who_asks_after_a_close_keeps_what_it_is_told_of() {
    check_rounds(false, &[Busy::Not]);
}

#[test]
fn who_asks_after_a_close_of_which_a_busy_server_hears_late() {
    check_rounds(false, &[Busy::Asleep, Busy::InAScript]);
}

#[test]
fn who_asks_after_quit_keeps_what_it_is_told_of() {
    check_rounds(true, &[Busy::Not, Busy::Asleep, Busy::InAScript]);
}

/// The hold of a session was deleted, another holds the lock, and the owner
/// waits for it again. The old renewal and the end of the other's lease fall
/// due while the server sleeps.
#[test]
fn a_lost_hold_does_not_unbind_the_next_one_of_its_owner() {
    let mut play = Play::start();
    // A third of the session's lease is 2000 ms, so both are due at its end.
    play.run(
        "s > LOCK.ACQUIRE k s SESSION LEASE 6000 -> S
        o > DEL k -> 1
        o > LOCK.ACQUIRE k other LEASE 1900 -> token
        second > LOCK.ACQUIRE k s SESSION LEASE 2000 BLOCK 0 -> ..
        next > LOCK.ACQUIRE k next BLOCKED -> ..
        until o > PTTL k -> ..600
        o > DEBUG SLEEP 1.5 -> OK
        second < token
        settled
        bound k = second",
    );
    let observer = play.client("o");
    let end = observer.int("PEXPIRETIME k");
    eventually("the lease is kept up", || {
        assert_eq!(observer.call("HEXISTS k s"), int(1));
        observer.int("PEXPIRETIME k") > end + 2000
    });
    play.run("queue k = next \n second drops \n next < token");
}

#[test]
fn sessions_end_also_after_a_demotion_and_a_load_of_the_module() {
    let mut play = Play::start();
    play.run("primary starts");
    play.run(&format!(
        "before > LOCK.ACQUIRE before s SESSION LEASE 2000 -> token
        o > REPLICAOF 127.0.0.1 $primary -> OK
        until lock_sessions = 0
        until o > MODULE UNLOAD lock -> OK
        o > MODULE LOAD {} -> OK
        o > REPLICAOF NO ONE -> OK
        s > LOCK.ACQUIRE k s SESSION LONG -> token
        s closes
        settled
        o > EXISTS k -> 0
        lock_sessions = 0",
        module().display()
    ));
}

/// Of a session's lock that was moved elsewhere, nothing follows it there.
#[test]
fn a_lock_that_moved_is_a_plain_hold_where_it_is() {
    for (command, db, key) in [
        ("SWAPDB 0 1", 1, "k"),
        ("RENAME k moved", 0, "moved"),
        ("RENAMENX k moved", 0, "moved"),
        ("MOVE k 1", 1, "k"),
    ] {
        let mut play = Play::start();
        play.run(&format!(
            "s > LOCK.ACQUIRE k s SESSION LEASE 1500 -> S
            o > {command}
            o > SELECT {db}"
        ));
        let end = play.client("o").int(&format!("PEXPIRETIME {key}"));
        play.run("until lock_sessions = 0");
        let now = play.client("o").int(&format!("PEXPIRETIME {key}"));
        assert!(now == end || now == -2, "{command}: {now}");
        play.run(&format!(
            "s closes
            next > SELECT {db}
            next > LOCK.ACQUIRE {key} next BLOCK 0 -> token"
        ));
    }
}
