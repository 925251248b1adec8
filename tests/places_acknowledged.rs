//! `lock.min-replicas` and places: a grant is told when it is acknowledged, if anybody
//! hears it then.

use redis_lock_testing::{Int, LONG, Play};

/// `k` is held on a server whose replica `r` has to acknowledge, and these have places.
#[track_caller]
fn queued(owners: &[&str]) -> Play {
    let mut play = Play::acknowledged().and_held();
    for owner in owners {
        play.run(&format!("ears > LOCK.ACQUIRE k {owner} PLACED -> 0"));
    }
    play
}

/// The first of these has been granted the lock, and is not told as long as `r` stands still.
#[track_caller]
fn withheld(owners: &[&str]) -> Play {
    let mut play = queued(owners);
    play.run(
        "r stops
        h > LOCK.RELEASE k h -> 1
        until lock_replies_withheld = 1",
    );
    play
}

#[track_caller]
fn assert_over(play: &mut Play) {
    play.run("until lock_replies_withheld = 0 \n ears heard nothing");
    play.run("in step");
}

#[test]
fn a_place_is_told_of_its_grant_after_a_replica_has_acknowledged_it() {
    let mut play = withheld(&["a"]);
    // The first lease is longer by what the replicas may take.
    play.run(
        "h > HGET k a -> '1'
        h > LOCK.ACQUIRE k b -> null
        ears heard nothing
        h > PTTL k -> 590001..
        r goes on
        ears heard a A
        h > HGET k @fence -> '$A'
        r stops
        b > LOCK.RENEW k a LONG FENCE $A -> ..
        lock_claims = 1
        r goes on
        b < 1",
    );
    assert_over(&mut play);
}

/// Whether it waits yet, or was granted the lock and is not told.
#[test]
fn a_place_is_taken_over_by_a_later_request_of_its_owner() {
    for (options, is_told) in [
        ("PLACED", false),
        ("LONG QUEUE 600000 other", true),
        ("LONG", true),
    ] {
        let told = if is_told { "a !SUPERSEDED" } else { "nothing" };
        for is_granted in [false, true] {
            let mut play = if is_granted {
                withheld(&["a"])
            } else {
                queued(&["a"])
            };
            if !is_granted {
                play.run("r stops\n h > DEL k -> 1\n until lock_replies_withheld = 1");
            }
            play.run(&format!(
                "b > LOCK.ACQUIRE k a {options} -> ..
                ears heard {told}
                until lock_replies_withheld = 1
                r goes on
                b < B
                ears heard nothing
                h > HGET k a -> '1'
                h > PTTL k -> 500001.."
            ));
            assert_over(&mut play);
        }
    }
}

#[test]
fn a_crowd_whose_lock_was_touched_meanwhile_is_told_in_time() {
    const CROWD: usize = 1000;
    let mut play = queued(&[]);
    play.run("h > CONFIG SET lock.claim-timeout 600000");
    let asks =
        (0..CROWD).map(|nth| format!("LOCK.ACQUIRE k r{nth} {LONG} QUEUE 600000 ch SHARED\r\n"));
    let asks: String = asks.collect();
    play.client("h")
        .connection
        .send_bytes(asks.as_bytes())
        .unwrap();
    for _ in 0..CROWD {
        assert_eq!(play.client("h").reply(), Int(0));
    }
    play.run(
        "h > CONFIG SET lock.replicas-timeout 30000
        r stops
        h > LOCK.RELEASE k h -> 1
        until lock_replies_withheld = 1000
        h > PEXPIRE k 600000 -> 1
        r goes on",
    );
    for _ in 0..CROWD {
        play.client("ears").told().token();
    }
    play.run("lock_replies_unacknowledged = 0");
}

#[test]
fn what_nobody_hears_when_it_is_told_is_given_back_and_the_next_is_asked() {
    let mut play = queued(&[]);
    play.run(
        "gone hears gone
        ears > LOCK.ACQUIRE k a LONG QUEUE 600000 gone -> 0
        ears > LOCK.ACQUIRE k b PLACED -> 0
        r stops
        h > LOCK.RELEASE k h -> 1
        until h > HGET k a -> '1'
        gone closes
        r goes on
        ears heard b B
        h > HGET k a -> null",
    );
    assert_over(&mut play);
}

#[test]
fn a_transaction_takes_a_place_and_it_is_told_when_it_is_safe() {
    let mut play = queued(&[]);
    play.run(
        "h >> LOCK.ACQUIRE k a PLACED | LOCK.RELEASE k h | LOCK.ACQUIRE free a -> 0 | 1 | !NOREPLICAS
        ears heard a A",
    );
    assert_over(&mut play);
}

/// Or where somebody does. Replicas have ten minutes.
#[test]
fn a_demotion_tells_a_place_so_whose_grant_is_withheld_where_nobody_else_waits() {
    for owners in [&["a"][..], &["a", "b"]] {
        let mut play = withheld(owners);
        play.run("primary starts");
        play.run("h > REPLICAOF 127.0.0.1 $primary -> OK");
        for owner in owners {
            play.run(&format!("ears heard {owner} !UNBLOCKED"));
        }
        play.run("until lock_replies_withheld = 0\n lock_places = 0\n r goes on");
        play.run("sound");
    }
}

#[test]
fn the_module_is_not_unloaded_while_the_grant_of_a_place_is_withheld() {
    let mut play = withheld(&["a"]);
    play.run("h > MODULE UNLOAD lock -> !ERR \n r goes on \n ears heard a A");
    assert_over(&mut play);
}
