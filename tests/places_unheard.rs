//! Places of which nobody hears: nothing is granted to them, and they keep nobody
//! waiting.

use redis::{PushKind, Value};
use redis_lock_testing::{Play, TestServer, Told};

#[test]
fn nothing_is_granted_or_written_where_nobody_hears() {
    let server = TestServer::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = server.replica(false);
    let mut play = Play::on(server);
    let mut written = Vec::new();
    for places in [
        &[][..],
        &["p PLACED", "q PLACED"],
        &["p PLACED", "q PLACED SHARED", "r PLACED SHARED"],
    ] {
        play.run("h > LOCK.ACQUIRE k h LONG -> token");
        for place in places {
            play.run(&format!("h > LOCK.ACQUIRE k {place} -> 0"));
        }
        let start = play.info("master_repl_offset");
        play.run("h > LOCK.RELEASE k h -> 1");
        written.push(play.info("master_repl_offset") - start);
    }
    // As much of the stream as a release takes that nobody waits for.
    assert_eq!(written, [written[0]; 3]);
    play.run(
        "h > EXISTS k -> 0
        lock_places = 0
        lock_places_unheard = 5
        lock_hand_offs = 0
        lock_waiters = 0",
    );
    play.assert_same_data(&replica);
    play.run("h > LOCK.ACQUIRE k newcomer -> token");
}

/// It is so within the very command.
#[test]
fn the_next_one_is_asked_whether_it_has_a_place_or_is_blocked() {
    Play::held().run(
        "h > LOCK.ACQUIRE k a LONG QUEUE 600000 nobody -> 0
        h > LOCK.ACQUIRE k b PLACED -> 0
        h > LOCK.ACQUIRE k c LONG QUEUE 600000 nobody -> 0
        d > LOCK.ACQUIRE k d BLOCKED -> ..
        h >> LOCK.RELEASE k h | HGET k b -> 1 | '1'
        ears heard b B
        queue k = c d
        h > LOCK.RELEASE k b -> 1
        d < D
        ears heard nothing
        lock_places_unheard = 2",
    );
}

/// A transaction, so that nothing looks at the lock between.
#[test]
fn who_asks_when_all_who_came_before_are_unheard_has_the_lock() {
    for (free, owner, options) in [
        ("DEL k", "newcomer", "LONG"),
        ("LOCK.RELEASE k h", "a", "LONG QUEUE 600000 nobody"),
    ] {
        Play::held().run(&format!(
            "h > LOCK.ACQUIRE k a LONG QUEUE 600000 nobody -> 0
            h >> {free} | LOCK.ACQUIRE k {owner} {options} -> 1 | token
            h > HGET k {owner} -> '1'
            h > PTTL k -> 500001..
            lock_places_unheard = 1"
        ));
    }
}

#[test]
fn who_comes_first_and_asks_again_is_replied_its_token_and_not_told() {
    Play::held().run(
        "ears > LOCK.ACQUIRE k a PLACED -> 0
        ears > LOCK.ACQUIRE k b PLACED -> 0
        h >> DEL k | LOCK.ACQUIRE k a PLACED -> 1 | token
        ears heard nothing
        h > PTTL k -> 500001..
        queue k = b",
    );
}

#[test]
fn at_most_so_many_are_passed_over_at_once_and_the_lock_still_goes_on_by_itself() {
    let mut play = Play::held();
    play.run("each 0..999: h > LOCK.ACQUIRE k unheard# LONG QUEUE 600000 nobody -> 0");
    play.run("h > LOCK.ACQUIRE k heard PLACED -> 0");
    play.run(
        "h >> LOCK.RELEASE k h | LOCK.INFO k -> 1 | {waiting 745..}
        ears heard heard token
        lock_places_unheard = 1000
        lock_waiters = 0
        h > HGET k heard -> '1'",
    );
}

#[test]
fn who_listens_on_a_replica_hears_nothing_and_does_not_count() {
    let mut play = Play::start().with_replica();
    play.run(
        "ears at r
        ears hears ch
        h > LOCK.ACQUIRE k h LONG -> H
        h > LOCK.ACQUIRE k a PLACED -> 0
        h > LOCK.RELEASE k h -> 1
        h > EXISTS k -> 0
        lock_places_unheard = 1",
    );
    play.run("in step");
    play.run("ears heard nothing");
}

#[test]
fn a_subscription_to_a_pattern_hears_too_and_one_that_was_ended_does_not() {
    let mut play = Play::start();
    let mut ears = play.server.client().in_resp3();
    ears.subscribe("PSUBSCRIBE c*");
    play.run(
        "h > LOCK.ACQUIRE k h LONG -> H
        h > LOCK.ACQUIRE k a PLACED -> 0
        h > LOCK.ACQUIRE k b PLACED -> 0
        h > LOCK.RELEASE k h -> 1",
    );
    let (kind, data) = ears.pushed();
    assert_eq!(kind, PushKind::PMessage);
    let [_, Value::BulkString(channel), Value::BulkString(message)] = &data[..] else {
        panic!("{data:?}");
    };
    assert_eq!(Told::parse(channel, message).unwrap().owner, "a");
    ears.send("PUNSUBSCRIBE c*");
    assert_eq!(ears.pushed().0, PushKind::PUnsubscribe);
    play.run("h > LOCK.RELEASE k a -> 1 \n h > EXISTS k -> 0 \n lock_places_unheard = 1");
}

/// Of two subscribers one goes in the moment of a grant to it, before the release that
/// grants it or after that.
#[test]
fn a_subscriber_that_dies_among_grants_keeps_no_lock_and_costs_none() {
    const PLACES: usize = 100;
    for round in 0..5 {
        let (dies_at, closes_first) = (20 * round, round % 2 == 1);
        let mut play = Play::held();
        play.run("doomed hears doomed \n h > CONFIG SET lock.claim-timeout 600000");
        for i in (0..PLACES).step_by(2) {
            // A grant to it that was sent ends soon.
            let lease_ms = if i == dies_at { 200 } else { 600_000 };
            play.run(&format!(
                "h > LOCK.ACQUIRE k {i} LEASE {lease_ms} QUEUE 600000 doomed -> 0
                h > LOCK.ACQUIRE k {} PLACED -> 0",
                i + 1
            ));
        }
        let (mut before, mut told) = ("h".to_owned(), 0);
        for i in (0..PLACES).step_by(2) {
            let mut turn = [format!("ears sends LOCK.RELEASE k {before}"), String::new()];
            if i == dies_at {
                turn[1] = "doomed drops".into();
                turn.rotate_left(closes_first.into());
            }
            play.run(&turn.join("\n")).run("ears < 1");
            if i < dies_at {
                play.run(&format!(
                    "doomed heard {i} token \n doomed > LOCK.RELEASE k {i} -> 1"
                ));
                told += 1;
            }
            before = (i + 1).to_string();
            play.run(&format!(
                "ears heard {before} token \n h > HGET k {before} -> '1'"
            ));
            told += 1;
        }
        play.run(&format!(
            "ears > LOCK.RELEASE k {before} -> 1
            ears heard nothing
            h > EXISTS k -> 0
            lock_places = 0"
        ));
        let granted = play.info("lock_hand_offs");
        assert_eq!(granted + play.info("lock_places_unheard"), 100);
        assert!((0..=1).contains(&(granted - told)), "{granted} {told}");
        play.run("sound");
    }
}
