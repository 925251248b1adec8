//! `QUEUE`: places in the queue, told of their end by messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{
    Client, Int, LONG, Nil, Okay, Play, Server, Told, need_files, stay_on_one_processor, text,
};

/// `k` is held, and these owners have places for it.
#[track_caller]
fn queued(owners: &[&str]) -> Play {
    let mut play = Play::held();
    for owner in owners {
        play.run(&format!("ears > LOCK.ACQUIRE k {owner} PLACED -> 0"));
    }
    play
}

#[test]
fn a_place_is_told_of_its_grant_and_its_claim_makes_a_full_lease() {
    queued(&["a"]).run(
        "ears heard nothing
        h > LOCK.RELEASE k h -> 1
        ears heard a A 2000
        h > HGET k @fence -> '$A'
        h > HGET k a -> '1'
        h > PTTL k -> 1..2000
        ears > LOCK.RENEW k a LONG FENCE $A -> 1
        h > PTTL k -> 500000..
        lock_claims = 1
        h > LOCK.RELEASE k a -> 1
        ears heard nothing
        h > EXISTS k -> 0",
    );
}

#[test]
fn a_free_lock_is_had_at_once_with_its_full_lease_and_no_message() {
    let mut play = Play::held();
    play.run(
        "ears > LOCK.ACQUIRE free a LONG QUEUE 1000 ch -> token
        ears > PTTL free -> 500000..
        ears heard nothing",
    );
}

#[test]
fn a_message_names_the_database_and_any_bytes_of_the_key() {
    let server = Server::start();
    let mut ears = server.client();
    ears.subscribe("SUBSCRIBE ch");
    assert_eq!(ears.call("SELECT 3"), Okay);
    let key = b"3:a,\r\n\0\xff";
    ears.words(&[b"LOCK.ACQUIRE", key, b"holder"]);
    let placed = ears.words(&[b"LOCK.ACQUIRE", key, b"1:b,", b"QUEUE", b"60000", b"ch"]);
    assert_eq!(placed, Int(0));
    assert_eq!(ears.words(&[b"LOCK.RELEASE", key, b"holder"]), Int(1));
    let told = ears.told();
    assert_eq!((told.db, told.owner.as_str()), (3, "1:b,"));
    assert_eq!(told.key, key);
    told.token();
}

#[test]
fn a_message_is_five_netstrings() {
    let mut play = queued(&["a", "bob"]);
    play.run("ears > LOCK.RELEASE k bob -> null\n h > LOCK.RELEASE k h -> 1");
    let fence = play.client("h").bulk("HGET k @fence");
    for message in [
        "1:0,1:k,3:bob,1:0,1:0,".to_owned(),
        format!("1:0,1:k,1:a,{}:{fence},4:2000,", fence.len()),
    ] {
        let (_, data) = play.client("ears").pushed();
        assert_eq!(data, [text("ch"), text(&message)]);
    }
}

#[test]
fn a_connection_of_resp2_hears_on_a_second_one() {
    let mut play = Play::held();
    let mut ears = play.server.client();
    ears.call("SUBSCRIBE ch");
    play.run("h > LOCK.ACQUIRE k a QUEUE 60000 ch -> 0 \n h > LOCK.RELEASE k h -> 1");
    let Value::Array(words) = ears.reply() else {
        panic!("no message");
    };
    let [kind, Value::BulkString(channel), Value::BulkString(message)] = &words[..] else {
        panic!("{words:?}");
    };
    assert_eq!(*kind, text("message"));
    let fence = Told::parse(channel, message).unwrap().token();
    play.run(&format!("h > LOCK.RENEW k a FENCE {fence} -> 1"));
}

#[test]
fn ten_thousand_of_both_kinds_are_served_in_exactly_the_order_of_their_requests() {
    const ALL: usize = 10_000;
    need_files(1_200);
    stay_on_one_processor();
    let server = Server::start_with(&["--maxclients", "2000"]);
    let mut ears = server.client();
    ears.subscribe("SUBSCRIBE ch");
    ears.int(&format!("LOCK.ACQUIRE k holder {LONG}"));
    let mut blocked: BTreeMap<usize, Client> =
        (3..ALL).step_by(10).map(|i| (i, server.client())).collect();
    for client in blocked.values_mut() {
        assert_eq!(client.bulk("PING"), "PONG");
    }
    for i in 0..ALL {
        if let Some(client) = blocked.get_mut(&i) {
            client.send(&format!("LOCK.ACQUIRE k {i} {LONG} BLOCK 0"));
            // Its reply comes in the turn in which the server reads what came before.
            assert_eq!(ears.bulk("PING"), "PONG");
        } else {
            let place = format!("LOCK.ACQUIRE k {i} {LONG} QUEUE 600000 ch");
            assert_eq!(ears.call(&place), Int(0));
        }
    }
    assert_eq!(server.info("lock_waiters"), 10_000);
    assert_eq!(server.info("lock_places"), 9_000);
    assert_eq!(ears.call("LOCK.ACQUIRE k newcomer"), Nil);
    let mut last = 0;
    assert_eq!(ears.call("LOCK.RELEASE k holder"), Int(1));
    for i in 0..ALL {
        let fence = match blocked.get_mut(&i) {
            Some(client) => client.reply_int(),
            None => ears.granted(&i.to_string()),
        };
        assert!(fence > last, "{i}");
        last = fence;
        let release = format!("LOCK.RELEASE k {i} FENCE {fence}");
        assert_eq!(ears.call(&release), Int(1));
    }
    assert_eq!(ears.told_so_far(), []);
    assert_eq!(ears.call("EXISTS k"), Int(0));
    server.assert_sound();
}

/// What one more place takes on average: all on one lock, or each the only one of its lock,
/// where all tables have just grown, and are half empty. The names are as long as UUIDs.
#[test]
fn a_place_costs_less_than_a_kilobyte() {
    for (places, locks) in [(10_000, 1), (16_000, 16_000)] {
        let mut play = queued(&["first"]);
        let mut all = |count: usize, command: &dyn Fn(usize) -> String| {
            for at in (0..count).step_by(500) {
                let lines: Vec<String> = (at..count.min(at + 500)).map(command).collect();
                let ears = play.client("ears");
                let batch = lines.join("\r\n") + "\r\n";
                ears.connection.send_bytes(batch.as_bytes()).unwrap();
                lines.iter().for_each(|_| drop(ears.reply()));
            }
            play.client("h").used_memory()
        };
        let key = |at: usize| format!("lock:{:027}", at % locks);
        let before = all(locks, &|at| {
            format!("LOCK.ACQUIRE {} holder:{at:029} {LONG}", key(at))
        });
        let after = all(places, &|at| {
            let key = key(at);
            format!("LOCK.ACQUIRE {key} waiter:{at:029} {LONG} QUEUE 600000 ch")
        });
        assert_eq!(play.info("lock_places"), 1 + places as i64);
        let cost = (after - before) / places as i64;
        assert!(cost < 1000, "{places} on {locks}: {cost} bytes");
    }
}

#[test]
fn readers_with_places_come_in_together_and_a_writer_after_them() {
    let mut play = Play::held();
    play.run(
        "each 0..99: ears > LOCK.ACQUIRE k r# PLACED SHARED -> 0
        ears > LOCK.ACQUIRE k w PLACED -> 0
        ears > LOCK.ACQUIRE k late PLACED SHARED -> 0
        h > LOCK.RELEASE k h -> 1
        each 0..99: ears heard r# token
        h > HLEN k -> 201
        each 99..0: ears heard nothing ; h > LOCK.RELEASE k r# -> 1
        ears heard w token
        ears heard nothing
        h > LOCK.RELEASE k w -> 1
        ears heard late token",
    );
}

#[test]
fn a_place_without_hold_is_for_the_first_hold() {
    // The owner of the lock confirms what it has.
    Play::held().run(
        "ears > LOCK.ACQUIRE k h PLACED -> H
        h > HGET k h -> '1'
        ears > LOCK.ACQUIRE k h PLACED HOLD 2 -> H
        h > HGET k h -> '2'
        ears > LOCK.ACQUIRE k h PLACED -> !HOLDCOUNT
        lock_places = 0
        ears heard nothing",
    );
}

#[test]
fn a_grant_that_nobody_claims_ends_and_the_lock_passes_on() {
    let mut play = queued(&["a", "b"]);
    play.run(
        "h > CONFIG SET lock.claim-timeout 200
        h > LOCK.RELEASE k h -> 1
        ears heard a A",
    );
    let start = Instant::now();
    play.run("ears heard b B");
    // The lease began before the message came.
    assert!(start.elapsed() > Duration::from_millis(100));
    play.run(
        "ears > LOCK.RENEW k a LONG FENCE $A -> 0
        ears > LOCK.RENEW k b LONG FENCE $B -> 1
        lock_claims = 1
        lock_grants_unclaimed = 1",
    );
}

/// As if the message had been lost.
#[test]
fn a_token_that_is_replied_needs_no_claim() {
    for (place, who, again, sessions) in [
        ("PLACED", "ears", "PLACED", 0),
        ("PLACED SESSION", "h", "LONG HOLD 1", 1),
    ] {
        Play::held().run(&format!(
            "h > CONFIG SET lock.claim-timeout 100
            ears > LOCK.ACQUIRE k a {place} -> 0
            h > LOCK.RELEASE k h -> 1
            ears heard a A
            {who} > LOCK.ACQUIRE k a {again} -> A
            h > PTTL k -> 500000..
            other > BLPOP none 0.3 -> null
            h > HGET k a -> '1'
            lock_claims = 1
            lock_grants_unclaimed = 0
            lock_sessions = {sessions}"
        ));
    }
}

#[test]
fn a_renewal_claims_unless_it_names_another_token() {
    queued(&["a"]).run(
        "h > LOCK.RELEASE k h -> 1
        ears heard a A
        ears > LOCK.RENEW k a LONG FENCE $H -> 0
        lock_claims = 0
        h > PTTL k -> 1..2000
        ears > LOCK.RENEW k a LONG -> 1
        lock_claims = 1",
    );
}

#[test]
fn the_same_request_again_keeps_the_place_and_takes_over_its_options() {
    let mut play = queued(&["a", "b"]);
    play.run(
        "other hears other
        h > LOCK.ACQUIRE k a LEASE 500 QUEUE 70000 other -> 0
        ears heard a !SUPERSEDED
        queue k = a b
        lock_places = 2
        h > LOCK.INFO k -> {waiters.0.channel 'other' waiters.0.timeout 60001..70000}
        h > LOCK.RELEASE k h -> 1
        other heard a token
        h > PTTL k -> 1..500
        ears heard b token",
    );
}

#[test]
fn places_whose_time_is_over_are_told_so_and_passed_over() {
    let mut play = Play::held();
    play.run("each 0..999: ears > LOCK.ACQUIRE k # QUEUE 500 ch -> 0");
    play.run("ears > LOCK.ACQUIRE k last PLACED -> 0");
    // In any order: a look at the lock ends those in front, too.
    let ears = play.client("ears");
    let told: BTreeSet<_> = (0..1000)
        .map(|_| ears.told())
        .map(|end| (end.owner, end.result))
        .collect();
    let expected = (0..1000).map(|i| (i.to_string(), "0".to_owned()));
    assert_eq!(told, expected.collect());
    play.run(
        "lock_wait_timeouts = 1000
        queue k = last
        h > LOCK.RELEASE k h -> 1
        ears heard last token",
    );
}

#[test]
fn places_count_as_waiters_of_the_lock_and_as_places_of_the_server() {
    // Who has one keeps it, in any mode.
    queued(&["a"]).run(
        "h > LOCK.ACQUIRE l h LONG -> token
        h > CONFIG SET lock.max-waiters 2
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        ears > LOCK.ACQUIRE k c PLACED -> !QUEUEFULL
        ears > LOCK.ACQUIRE k c BLOCKED -> !QUEUEFULL
        h > CONFIG SET lock.max-waiters 100
        h > CONFIG SET lock.max-places 2
        ears > LOCK.ACQUIRE k c PLACED -> 0
        ears > LOCK.ACQUIRE l d PLACED -> !QUEUEFULL
        ears > LOCK.ACQUIRE k a PLACED -> 0
        ears > LOCK.ACQUIRE k a PLACED SHARED -> 0
        queue k = b c a
        lock_queues_full = 3
        h > LOCK.RELEASE k c -> null
        ears > LOCK.ACQUIRE l d PLACED -> 0",
    );
}

#[test]
fn what_is_wrong_about_a_place_is_refused_and_nothing_changes() {
    let mut play = Play::held();
    for (words, error) in [
        ("QUEUE 0 ch", "ERR QUEUE must"),
        ("QUEUE -1 ch", "ERR QUEUE must"),
        ("QUEUE 86400001 ch", "ERR QUEUE must"),
        ("QUEUE 1.5 ch", "ERR value is not an integer"),
        ("QUEUE 1000", "ERR syntax error"),
        ("QUEUE 1000 ch BLOCK 0", "ERR syntax error"),
    ] {
        play.run(&format!("ears > LOCK.ACQUIRE k a {words} -> !{error}"));
    }
    play.run(
        "lock_places = 0
        ears > LOCK.ACQUIRE k a queue 86400000 ch lease 1 hold 1 -> 0
        queue k = a",
    );
}

#[test]
fn a_channel_is_any_string_of_1024_bytes_at_most() {
    let mut play = Play::held();
    let too_long = [b'c'; 1025];
    let place = |channel| {
        [
            b"LOCK.ACQUIRE",
            &b"k"[..],
            b"a",
            b"QUEUE",
            b"60000",
            channel,
        ]
    };
    for channel in [&b""[..], b"\0\r\n\xff", &too_long[..1024]] {
        let mut ears = play.server.client().in_resp3();
        let subscribe = [&b"SUBSCRIBE"[..], channel];
        ears.connection.send(&subscribe).unwrap();
        ears.pushed();
        assert_eq!(ears.words(&place(channel)), Int(0));
        play.run("h > LOCK.RELEASE k h -> 1");
        ears.granted("a");
        play.run("h > LOCK.RELEASE k a -> 1\n h > LOCK.ACQUIRE k h LONG -> token");
    }
    let refused = play.client("h").words(&place(&too_long));
    assert!(matches!(refused, Value::ServerError(_)), "{refused:?}");
    play.run("lock_places = 0");
    play.run("sound");
}
