//! Places with `SESSION`: they end with the connection that asked last, and so do their
//! holds, which are kept up once they are claimed.

use redis_lock_testing::Play;

/// `a` has a place by the session of the client `a`, and `b` the one behind it.
#[track_caller]
fn two_places() -> Play {
    let mut play = Play::held();
    play.run(
        "h > CONFIG SET lock.claim-timeout 600000
        a > LOCK.ACQUIRE k a PLACED SESSION -> 0
        ears > LOCK.ACQUIRE k b PLACED -> 0",
    );
    play
}

#[track_caller]
fn check(lines: &str) {
    two_places().run(lines);
}

#[test]
fn a_place_ends_with_the_connection_that_asked_for_it() {
    check(
        "a closes
        ears heard a 0
        queue k = b
        lock_places = 1",
    );
}

/// Where it was granted the lock before, that ends with its connection, too.
#[test]
fn a_connection_that_ends_in_the_turn_of_the_release_is_passed_over() {
    for turn in [
        "CLIENT KILL ID $a | LOCK.RELEASE k h",
        "LOCK.RELEASE k h | CLIENT KILL ID $a",
    ] {
        let mut play = two_places();
        play.run(&format!("h > {turn} -> 1 | 1 \n until h > HGET k b -> '1'"));
        let told = play.client("ears").told_so_far();
        let of_b = told.iter().filter(|told| told.owner == "b").count();
        assert_eq!(of_b, 1, "{turn}: {told:?}");
        play.run("sound");
    }
}

/// The server reads that the connection of the place is closed after that.
#[test]
fn who_is_told_by_another_connection_than_that_of_its_place_keeps_the_lock() {
    check(
        "server stops
        h sends DEL k | LOCK.ACQUIRE k a LONG
        a drops
        server goes on
        h < 1
        h < A
        ears heard a !SUPERSEDED
        h > LOCK.INFO k -> {holders.0.client null}
        h > HGET k @fence -> '$A'
        h > LOCK.RELEASE k a -> 1
        ears heard b B",
    );
}

/// One that was asked for without a session, or was so last.
#[test]
fn a_place_without_a_session_outlives_its_connection() {
    for again in [
        "a > LOCK.ACQUIRE k a PLACED -> 0",
        "ears > LOCK.ACQUIRE k a PLACED -> 0",
    ] {
        check(&format!(
            "{again}
            a closes
            queue k = a b
            h > LOCK.RELEASE k h -> 1
            ears heard a A
            h > LOCK.INFO k -> {{holders.0.client null}}"
        ));
    }
}

#[test]
fn the_connection_that_asked_last_counts() {
    check(
        "second > LOCK.ACQUIRE k a PLACED SESSION -> 0
        a closes
        queue k = a b
        ears heard nothing
        h > LOCK.RELEASE k h -> 1
        ears heard a A
        h > LOCK.INFO k -> {holders.0.client $second}
        second closes
        ears heard b B",
    );
}

#[test]
fn a_hold_ends_with_its_connection_unless_it_was_claimed_by_another() {
    for (claim, is_over) in [
        ("", true),
        ("a > LOCK.RENEW k a LONG FENCE $A -> 1", true),
        ("a > LOCK.ACQUIRE k a PLACED SESSION -> A", true),
        ("ears > LOCK.RENEW k a LONG FENCE $A -> 1", false),
    ] {
        let release = match is_over {
            true => "",
            false => "h > HGET k a -> '1' \n h > LOCK.RELEASE k a -> 1",
        };
        check(&format!(
            "h > LOCK.RELEASE k h -> 1
            ears heard a A
            {claim}
            h > LOCK.INFO k -> {{holders.0.client $a}}
            a closes
            {release}
            ears heard b B
            h > HGET k a -> null
            lock_releases_session = {}
            ears > LOCK.RENEW k a LONG FENCE $A -> 0",
            i64::from(is_over)
        ));
    }
}

/// The connection has a session on another lock, which is kept up. The server may expire
/// the lock before the module looks.
#[test]
fn an_unclaimed_hold_is_not_kept_up_and_its_connection_lives() {
    Play::held().run(
        "h > CONFIG SET lock.claim-timeout 200
        a > LOCK.ACQUIRE other a LEASE 1000 SESSION -> token
        a > LOCK.ACQUIRE k a PLACED SESSION -> 0
        h > LOCK.RELEASE k h -> 1
        ears heard a A
        until h > EXISTS k -> 0
        until lock_grants_unclaimed = 1
        h > BLPOP none 1.5 -> null
        a > PING -> PONG
        a > HGET other a -> '1'
        lock_sessions = 1
        a > LOCK.ACQUIRE k a PLACED SESSION -> token",
    );
}

#[test]
fn a_claimed_hold_is_kept_up_while_the_connection_lives() {
    Play::held().run(
        "h > CONFIG SET lock.claim-timeout 3000
        a > LOCK.ACQUIRE k a LEASE 1500 QUEUE 600000 ch SESSION -> 0
        h > LOCK.RELEASE k h -> 1
        ears heard a A
        a > LOCK.RENEW k a LEASE 1500 FENCE $A -> 1
        h > BLPOP none 3 -> null
        h > HGET k @fence -> '$A'
        h > HGET k a -> '1'
        a closes
        h > LOCK.RENEW k a -> 0",
    );
}

#[test]
fn a_killed_connection_ends_many_places_at_once_and_the_others_stay_in_order() {
    let mut play = Play::held();
    for i in 0..1000 {
        play.run(&format!("a > LOCK.ACQUIRE k s{i} PLACED SESSION -> 0"));
        if i % 100 == 0 {
            play.run(&format!("ears > LOCK.ACQUIRE k p{i} PLACED -> 0"));
        }
    }
    play.run("h > CLIENT KILL ID $a | LOCK.RELEASE k h -> 1 | 1");
    let (mut over, mut granted) = (0, Vec::new());
    while over < 1000 || granted.len() < 10 {
        let told = play.client("ears").told();
        match told.result.as_str() {
            "0" => over += 1,
            _ => {
                told.token();
                play.run(&format!("h > LOCK.RELEASE k {} -> 1", told.owner));
                granted.push(told.owner);
            }
        }
    }
    let plain: Vec<String> = (0..1000).step_by(100).map(|i| format!("p{i}")).collect();
    assert_eq!(granted, plain);
    play.run("ears heard nothing \n lock_places = 0");
}
