//! In a cluster, a guarded command and its lock are in one slot.

use redis_lock_testing::scene::BEGIN_MOVE;
use redis_lock_testing::{Play, slot, tag};

/// `h` holds `$key` on node 0, where `$x`, `$y`, and `$here` are of its slot, and `$there` is
/// of another one. `$elsewhere` is of another node.
fn held() -> Play {
    let mut play = Play::moving();
    let here = tag(|slot| slot < 5000, 0);
    for name in ["x", "y", "here"] {
        play.name(name, format!("{name}{{{here}}}"));
    }
    let there = tag(|other| other < 5000 && other != slot(&here), 0);
    play.name("there", there)
        .name("elsewhere", tag(|slot| slot > 12_000, 0))
        .run("h > LOCK.ACQUIRE $key h LONG -> H");
    play
}

#[test]
fn in_a_cluster_all_keys_are_in_the_slot_of_the_lock() {
    let mut play = held();
    // Those without a key run anywhere.
    play.run(
        "h > LOCK.GUARD $key $H MSET $x 1 $y 2 -> OK
        h > LOCK.GUARD $key $H GET $x -> '1'
        h > LOCK.GUARD $key $H PUBLISH c 1 -> 0
        h > LOCK.GUARD $key $H DBSIZE -> 3
        h >> LOCK.GUARD $key $H INCR $x -> 2
        h > DEBUG DIGEST -> :digest",
    );
    let script = "return redis.call('LOCK.GUARD',KEYS[1],ARGV[1],'SET',ARGV[2],'1')";
    for other in ["$there", "$elsewhere"] {
        for command in [
            "SET # 1",
            "GET #",
            "MSET $x 3 # 3",
            "RENAME $x #",
            "SORT $here STORE #",
        ] {
            let command = command.replace('#', other);
            play.run(&format!(
                "h > LOCK.GUARD $key $H {command} -> !CROSSSLOT Keys in request don't hash to \
                 the same slot
                h > DEBUG DIGEST -> $digest"
            ));
        }
        play.run(&format!(
            "h > EVAL \"{script}\" 1 $key $H {other} -> !CROSSSLOT"
        ));
    }
    let moved = slot(&tag(|slot| slot > 12_000, 0));
    play.run(&format!(
        "h > LOCK.GUARD $elsewhere $H SET $elsewhere 1 -> !MOVED {moved} 127.0.0.1:$n2
        sound"
    ));
}

#[test]
fn a_guarded_shard_message_reaches_its_subscribers_or_is_refused() {
    held().run(
        "each $here $there: s > SSUBSCRIBE # ; h > LOCK.GUARD $key $H SPUBLISH # m -> 1 ; s < ~smessage
        h > LOCK.GUARD $key $H SPUBLISH $elsewhere m -> !ERR",
    );
}

#[test]
fn in_a_cluster_guards_within_guards_take_no_more_stack_than_one() {
    let mut play = held();
    let guards = "LOCK.GUARD $key 5 ".repeat(100_000);
    play.run(&format!(
        "h > {guards} GET $key -> !ERR LOCK.GUARD runs no LOCK.*\nsound"
    ));
}

#[test]
fn while_a_slot_moves_the_server_asks_for_patience_as_for_any_command_of_two_keys() {
    // The lock is here still, and the key it guards is not.
    held().run("h > SET $x 1").run(BEGIN_MOVE).run(
        "h > MIGRATE 127.0.0.1 $n1 $x 0 5000 -> OK
        h > LOCK.GUARD $key $H SET $x 2 -> !TRYAGAIN
        h > EXISTS $key -> 1",
    );
}
