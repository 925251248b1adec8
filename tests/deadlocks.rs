//! Waits that would close a cycle of owners are refused.

use redis_lock_testing::Play;

#[test]
fn two_owners_that_want_each_others_lock() {
    // Without waiting there is no deadlock, and who gives way helps the other.
    Play::start().run(
        "o > LOCK.ACQUIRE k1 a LONG -> token
        o > LOCK.ACQUIRE k2 b LONG -> token
        a > LOCK.ACQUIRE k2 a BLOCKED -> ..
        o > LOCK.ACQUIRE k1 b BLOCK 0 -> !DEADLOCK 'b' waits for 'k1' held by 'a', 'a' waits for 'k2' held by 'b'
        o > LOCK.ACQUIRE k1 b -> null
        o > LOCK.RELEASE k2 b -> 1
        a < token",
    );
}

/// A user that may use some of the keys of a cycle. A key that it may write to alone is not
/// one that it may read.
#[test]
fn a_deadlock_names_no_key_that_its_user_may_not_read() {
    for (first, second) in [("secret:a", "secret:b"), ("written:a", "written:b")] {
        // low's `me` waits for `known`, who waits for `hidden`, who waits for `me`.
        let mut play = Play::start();
        play.run(&format!(
            "o > ACL SETUSER low on nopass ~mine:* %W~written:* +lock.acquire -> OK
            low > AUTH low x -> OK
            o > LOCK.ACQUIRE {second} me LONG -> token
            o > LOCK.ACQUIRE {first} hidden LONG -> token
            low > LOCK.ACQUIRE mine:1 known LONG -> token
            known > LOCK.ACQUIRE {first} known BLOCKED -> ..
            hidden > LOCK.ACQUIRE {second} hidden BLOCKED -> .."
        ));
        let ask = "LOCK.ACQUIRE mine:1 me BLOCK 3000";
        let [told, all] = ["low", "o"].map(|who| play.client(who).error(ask));
        assert!(told.starts_with("DEADLOCK "), "{told}");
        // Whoever may read all of it sees all of it.
        for (part, is_told) in [
            ("mine:1", true),
            (first, false),
            (second, false),
            ("hidden", false),
        ] {
            assert_eq!(told.contains(part), is_told, "{part}: {told}");
            assert!(all.contains(&format!("'{part}'")), "{part}: {all}");
        }
    }
}

/// Valkey 9.1 keeps users from databases.
#[test]
fn a_deadlock_names_no_key_in_a_database_that_its_user_may_not_use() {
    let mut play = Play::start();
    if play.valkey_version() < Some((9, 1)) {
        return;
    }
    play.run(
        "o > ACL SETUSER low on nopass ~* +lock.acquire resetdbs db=0 -> OK
        other > SELECT 1
        other > LOCK.ACQUIRE secret victim LONG -> token
        o > LOCK.ACQUIRE mine low LONG -> token
        other > LOCK.ACQUIRE secret low BLOCK 0 -> ..
        low > AUTH low x -> OK",
    );
    let error = play
        .client("low")
        .error("LOCK.ACQUIRE mine victim BLOCK 3000");
    assert!(error.starts_with("DEADLOCK "), "{error}");
    let names_only_mine = error.contains("mine") && !error.contains("secret");
    assert!(names_only_mine, "{error}");
}

/// In one turn: the lock was freed and the waiter granted, or no timer runs before the look
/// finds that its lease is over.
#[test]
fn a_hold_that_is_found_to_be_over_closes_no_cycle_and_is_handed_on() {
    for (lease_ms, end, reply) in [(600_000, "DEL k2", "1"), (100, "DEBUG SLEEP 0.2", "OK")] {
        Play::start().run(&format!(
            "b > LOCK.ACQUIRE k1 a LONG -> token
            b > LOCK.ACQUIRE k2 b LEASE {lease_ms} -> token
            a > LOCK.ACQUIRE k2 a BLOCKED -> ..
            b > {end} | LOCK.ACQUIRE k1 b BLOCK 0 -> {reply} | ..
            a < token
            a > LOCK.RELEASE k1 a -> 1
            b < token"
        ));
    }
}

/// The search leaves the client in its own database.
#[test]
fn across_databases() {
    Play::start().run(
        "one > SELECT 1
        o > LOCK.ACQUIRE k a LONG -> token
        one > LOCK.ACQUIRE k b LONG -> token
        b > LOCK.ACQUIRE k b BLOCKED -> ..
        one > LOCK.ACQUIRE k a BLOCK 0 -> !DEADLOCK
        one > LOCK.RELEASE k b -> 1",
    );
}
