//! Tokens that somebody else wrote into a lock count for that lock alone.

use std::time::{SystemTime, UNIX_EPOCH};

use redis_lock_testing::Play;

const GREATEST: i64 = (1 << 53) - 1;
const AHEAD: i64 = 9_007_199_254_000_000;

/// A token of the wall clock in microseconds, as every lock gets it that
/// nobody has written to.
fn of_the_clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_micros()).unwrap();
    format!("{}..{}", now - 60_000_000, now + 60_000_000)
}

/// The tokens of other locks are those of the clock.
#[track_caller]
fn check_others(play: &mut Play, who: &str) {
    for (key, options) in [("new", ""), ("shared", "SHARED"), ("pool", "LIMIT 3")] {
        play.run(&format!(
            "{who} > LOCK.ACQUIRE {key} alice LONG {options} -> {}
            {who} > LOCK.RELEASE {key} alice -> 1",
            of_the_clock()
        ));
    }
}

#[test]
fn the_greatest_token_ends_the_tokens_of_its_own_lock_alone() {
    let mut play = Play::start();
    play.run(&format!(
        "o > ACL SETUSER evil on nopass ~evil:* +hset +lock.acquire -> OK
        evil > AUTH evil x -> OK
        evil > HSET evil:1 @fence {} -> 1
        evil > LOCK.ACQUIRE evil:1 x -> {GREATEST}",
        GREATEST - 1
    ));
    check_others(&mut play, "o");
    play.run(&format!(
        "evil > HSET evil:2 @fence {GREATEST} -> 1
        evil > LOCK.ACQUIRE evil:2 x -> !ERR"
    ));
    check_others(&mut play, "o");
    // Until the key is deleted.
    for key in ["evil:1", "evil:2"] {
        let token = of_the_clock();
        play.run(&format!(
            "o > DEL {key} -> 1 \n evil > LOCK.ACQUIRE {key} x -> {token}"
        ));
    }
}

#[test]
fn a_token_far_ahead_rises_in_its_own_lock_alone() {
    let mut play = Play::start();
    let (first, second) = (AHEAD + 1, AHEAD + 2);
    for line in [
        format!("o > HSET evil @fence {AHEAD} -> 1 \n o > LOCK.ACQUIRE evil x LONG -> {first}"),
        format!("o > LOCK.ACQUIRE evil x LONG -> {first}"),
        format!(
            "w > LOCK.ACQUIRE evil y BLOCKED -> ..
            o > LOCK.RELEASE evil x ALL -> 1
            w < {second}"
        ),
        "o > LOCK.RENEW evil y LONG -> 1 \n o > DEBUG RELOAD -> OK".into(),
        // A lock written by somebody else keeps its token to itself.
        format!(
            "o > HSET foreign x 1 @fence {AHEAD} -> 2
            o > PEXPIRE foreign 600000 -> 1
            o > LOCK.ACQUIRE foreign x LONG -> {AHEAD}"
        ),
        // A reader beside a reader has a token of its own in the same lock.
        format!(
            "o > HSET readers @fence {AHEAD} -> 1
            o > LOCK.ACQUIRE readers r1 LONG SHARED -> {first}
            o > LOCK.ACQUIRE readers r2 LONG SHARED -> {second}"
        ),
    ] {
        play.run(&line);
        check_others(&mut play, "o");
    }
}

#[test]
fn a_promoted_replica_leaves_aside_what_is_far_ahead() {
    let mut play = Play::start();
    play.run(&format!("o > HSET evil @fence {AHEAD} -> 1"));
    let mut play = play.with_replica();
    play.run(&format!("o > LOCK.ACQUIRE evil x LONG -> {}", AHEAD + 1));
    check_others(&mut play, "o");
    play.assert_in_step();
    play.run("new at r \n new > REPLICAOF NO ONE -> OK");
    check_others(&mut play, "new");
}
