//! One request at a time: a later one of the same owner takes the earlier one over.

use redis::Value;
use redis_lock_testing::Play;

/// On a server on which `h` has the lock `k`, `a` waits for it by a client of its own,
/// and `b` behind it.
#[track_caller]
fn lined_up() -> Play {
    let mut play = Play::held();
    play.run(
        "a > LOCK.ACQUIRE k a BLOCKED -> ..
        b > LOCK.ACQUIRE k b BLOCKED -> ..",
    );
    play
}

#[track_caller]
fn check(lines: &str) -> Play {
    let mut play = lined_up();
    play.run(lines);
    play
}

/// `a` has this many holds, and its last release passes the lock on.
#[track_caller]
fn assert_held(play: &mut Play, holds: i64) {
    play.run(&format!(
        "h > HGET k a -> '{holds}'
        queue k = b
        h > LOCK.RELEASE k a ALL -> 1
        b < token"
    ));
}

/// Nor does the end of the earlier client take anything.
#[test]
fn a_later_wait_has_the_position_and_the_earlier_one_is_told() {
    for session in ["", "SESSION"] {
        let mut play = check(&format!(
            "later > LOCK.ACQUIRE k a BLOCKED {session} -> ..
            a < !SUPERSEDED
            lock_superseded = 1
            queue k = a b
            h > LOCK.RELEASE k h -> 1
            later < token
            a closes
            settled"
        ));
        assert_held(&mut play, 1);
    }
}

/// On Redis 7.4 and later the earlier client is told at the end of the turn. Before, its
/// token is in its output buffer by then, and the later request is a re-entry.
#[test]
fn what_was_granted_in_the_same_turn_is_told_once_or_counts_twice() {
    for (options, told_twice) in [("", 2), ("HOLD 1", 1)] {
        let mut play = check(&format!(
            "later >> LOCK.RELEASE k h | LOCK.ACQUIRE k a LONG {options} -> 1 | A"
        ));
        let holds = match play.client("a").reply() {
            Value::Int(first) => {
                assert_eq!(first, play.token("A"));
                told_twice
            }
            Value::ServerError(error) => {
                assert_eq!(error.code(), "SUPERSEDED");
                1
            }
            other => panic!("{other:?}"),
        };
        assert_held(&mut play, holds);
    }
}

#[test]
fn a_place_is_told_on_its_old_channel_unless_that_is_the_new_one() {
    for (asks, told, granted) in [
        ("PLACED -> 0", "nothing", "ears heard c"),
        (
            "LONG QUEUE 600000 other -> 0",
            "c !SUPERSEDED",
            "others heard c",
        ),
        ("BLOCKED -> ..", "c !SUPERSEDED", "later <"),
    ] {
        check(&format!(
            "others hears other
            h > LOCK.ACQUIRE k c PLACED -> 0
            later > LOCK.ACQUIRE k c {asks}
            ears heard {told}
            queue k = a b c
            h > LOCK.RELEASE k h -> 1
            h > LOCK.RELEASE k a -> 1
            h > LOCK.RELEASE k b -> 1
            {granted} token"
        ));
    }
}

#[test]
fn a_place_takes_a_blocked_wait_over() {
    let mut play = check(
        "later > LOCK.ACQUIRE k a PLACED -> 0
        a < !SUPERSEDED
        h > LOCK.RELEASE k h -> 1
        ears heard a A
        ears > LOCK.RENEW k a LONG FENCE $A -> 1",
    );
    assert_held(&mut play, 1);
}

/// Who names a token speaks of a hold.
#[test]
fn a_release_of_an_owner_that_holds_nothing_gives_its_wait_up() {
    for (options, reply) in [("", "null"), ("ALL", "null"), ("HOLD 1", "1")] {
        check(&format!(
            "later > LOCK.RELEASE k a FENCE 1 -> null
            queue k = a b
            later > LOCK.RELEASE k a {options} -> {reply}
            a < null
            queue k = b
            h > LOCK.RELEASE k h -> 1
            b < token"
        ));
    }
}

/// What replicas have not acknowledged is not told, so a later request has it. The end of
/// the earlier one's connection takes nothing from the later one.
#[test]
fn a_grant_that_is_withheld_passes_with_its_token() {
    for options in ["", "HOLD 1"] {
        let mut play = Play::acknowledged();
        let asks = format!("LOCK.ACQUIRE k a LONG {options} -> ..");
        play.run(&format!("r stops \n a > {asks}"));
        let written = play.client("o").bulk("HGET k @fence");
        play.run(&format!(
            "later > {asks}
            a < !SUPERSEDED
            a closes
            r goes on
            later < {written}
            o > HGET k a -> '1'
            later > LOCK.RELEASE k a ALL -> 1"
        ));
    }
}
