//! The right to publish, which a place needs, and what its message may name.

use redis_lock_testing::{Cluster, Play};

/// `h` holds `k`, and `u` is a connection of a user with these rights.
#[track_caller]
fn held_beside(rights: &str) -> Play {
    let mut play = Play::held();
    play.run(&format!(
        "h > ACL SETUSER u reset on >secret +@all {rights} -> OK
        u > AUTH u secret -> OK"
    ));
    play
}

#[test]
fn a_place_needs_the_right_to_publish_even_where_the_lock_is_free() {
    let mut play = held_beside("~* resetchannels &other &c?");
    for channel in ["secret", "chh", "\"\"", "c"] {
        for key in ["k", "free"] {
            play.run(&format!(
                "u > LOCK.ACQUIRE {key} a QUEUE 60000 {channel} -> !NOPERM"
            ));
        }
    }
    // Nothing else of the command needs it.
    play.run(
        "h > EXISTS free -> 0
        lock_places = 0
        u > LOCK.ACQUIRE k a PLACED -> 0
        u > LOCK.ACQUIRE free a QUEUE 60000 other -> token
        u > LOCK.ACQUIRE free a -> token",
    );
}

#[test]
fn the_key_has_to_be_writable_too() {
    held_beside("%R~* ~mine &*").run(
        "u > LOCK.ACQUIRE k a PLACED -> !NOPERM
        u > LOCK.ACQUIRE mine a QUEUE 60000 ch -> token
        lock_places = 0",
    );
}

/// The place was had by right, and outlives the right, and the user.
#[test]
fn the_right_is_asked_for_at_each_request_and_a_refusal_changes_nothing() {
    held_beside("~* resetchannels &ch").run(
        "u > LOCK.ACQUIRE k a PLACED -> 0
        h > ACL SETUSER u resetchannels &other -> OK
        new > AUTH u secret -> OK
        new > LOCK.ACQUIRE k a PLACED -> !NOPERM
        queue k = a
        h > ACL DELUSER u -> 1
        h > LOCK.RELEASE k h -> 1
        ears heard a token",
    );
}

#[test]
fn a_script_and_a_transaction_have_the_rights_of_who_runs_them() {
    let place = |channel| {
        let ask = format!("'LOCK.ACQUIRE','k','a','QUEUE',60000,'{channel}'");
        format!("EVAL \"return redis.pcall({ask})\" 0")
    };
    held_beside("~* resetchannels &ch").run(&format!(
        "u > {} -> !NOPERM
        u > {} -> 0
        u >> LOCK.ACQUIRE k b QUEUE 60000 other | LOCK.ACQUIRE k a PLACED -> !NOPERM | 0
        queue k = a",
        place("other"),
        place("ch")
    ));
}

/// A cluster, where other keys are looked at in the next turn.
#[test]
fn a_deadlock_that_is_told_names_no_key_that_the_user_may_not_read() {
    for (rights, is_named) in [("~{t}k resetchannels &{t}ch", false), ("~* &*", true)] {
        let mut play = Play::on(Cluster::of_one_node());
        play.run(&format!(
            "h > ACL SETUSER u reset on >secret +@all {rights} -> OK
            u > AUTH u secret -> OK
            ears hears sharded {{t}}ch
            h > LOCK.ACQUIRE {{t}}k h LONG -> token
            h > LOCK.ACQUIRE {{t}}secret a LONG -> token
            h > LOCK.ACQUIRE {{t}}secret h LONG QUEUE 600000 {{t}}nobody -> 0
            u > LOCK.ACQUIRE {{t}}k a LONG QUEUE 600000 {{t}}ch -> 0"
        ));
        let told = play.client("ears").told();
        assert_eq!(told.owner, "a");
        assert!(told.result.starts_with("-DEADLOCK "), "{told:?}");
        assert!(told.result.contains("'{t}k'"), "{told:?}");
        assert_eq!(told.result.contains("'{t}secret'"), is_named, "{told:?}");
    }
}

#[test]
fn who_may_not_read_a_lock_is_not_shown_its_places() {
    held_beside("~other &*").run(
        "ears > LOCK.ACQUIRE k a PLACED -> 0
        u > LOCK.LIST -> []
        u > LOCK.INFO k -> !NOPERM",
    );
}
