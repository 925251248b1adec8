//! Places in a cluster: their messages are sharded, and slots move.

use redis::PushKind;
use redis_lock_testing::scene::{BEGIN_MOVE, END_MOVE, MIGRATE_KEY};
use redis_lock_testing::{Play, tag};

/// A lock that `h` holds in a slot of node 0, and for which `a` and `b` have places. `ears`
/// hear a channel of that slot.
fn queued() -> Play {
    let mut play = Play::moving();
    let tag = tag(|slot| slot < 5000, 0);
    play.name("channel", format!("places:{{{tag}}}")).run(
        "ears hears sharded $channel
        h > LOCK.ACQUIRE $key h LONG -> H
        each a b: h > LOCK.ACQUIRE $key # LONG QUEUE 600000 $channel -> 0",
    );
    play
}

#[test]
fn a_place_is_told_by_a_sharded_message() {
    let mut play = queued();
    play.run("h > LOCK.RELEASE $key h -> 1");
    let told = play.client("ears").told();
    assert_eq!((told.db, told.owner.as_str()), (0, "a"));
    play.name("told", String::from_utf8(told.key.clone()).unwrap());
    play.run(&format!(
        "h > LOCK.RENEW $told a LONG FENCE {} -> 1
        h > LOCK.RELEASE $key a -> 1
        ears heard b B
        sound",
        told.token()
    ));
}

#[test]
fn a_subscription_that_is_not_sharded_hears_nothing_of_places() {
    let mut play = queued();
    play.run(
        "other hears $channel
        ears sends SUNSUBSCRIBE $channel",
    );
    assert_eq!(play.client("ears").pushed().0, PushKind::SUnsubscribe);
    play.run(
        "h > LOCK.RELEASE $key h -> 1
        lock_places_unheard = 2
        h > EXISTS $key -> 0
        other heard nothing",
    );
}

#[test]
fn a_channel_of_another_slot_is_refused_and_nothing_changes() {
    let mut play = queued();
    let [neighbour, foreign] = [tag(|slot| slot < 5000, 1), tag(|slot| slot > 12000, 0)];
    play.name("neighbour", format!("{{{neighbour}}}"));
    play.name("foreign", format!("{{{foreign}}}"));
    // The key itself will do as a channel.
    play.run(
        "each $neighbour $foreign ch: h > LOCK.ACQUIRE $key c QUEUE 60000 # -> !CROSSSLOT
        each $neighbour $foreign ch: h > LOCK.ACQUIRE free$channel c QUEUE 60000 # -> !CROSSSLOT
        h > EXISTS free$channel -> 0
        lock_places = 2
        h > LOCK.ACQUIRE $key c QUEUE 60000 $key -> 0",
    );
}

#[test]
fn whoever_has_a_place_in_a_slot_that_moves_hears_so_and_the_old_node_forgets_it() {
    let mut play = queued();
    // Nobody is granted what has left this node but not its slot.
    play.run(&format!(
        "{BEGIN_MOVE}
        {MIGRATE_KEY}
        ears heard nothing
        {END_MOVE}"
    ));
    // The server ends the subscriptions of a slot that it loses, so a message would not
    // be heard.
    let (kind, data) = play.client("ears").pushed();
    assert_eq!(kind, PushKind::SUnsubscribe, "{data:?}");
    // There the same request is as good as it was here.
    play.run(
        "until lock_places = 0
        lock_waiters = 0
        h > LOCK.ACQUIRE $key a LONG QUEUE 600000 $channel -> !MOVED $slot 127.0.0.1:$n1
        ears@n1 hears sharded $channel
        ears@n1 > LOCK.ACQUIRE $key a LONG QUEUE 600000 $channel -> 0
        ears@n1 > LOCK.RELEASE $key h -> 1
        ears@n1 heard a A
        h > DBSIZE -> 0
        sound",
    );
}

#[test]
fn a_move_that_is_given_up_serves_the_places_where_they_are() {
    queued().run(BEGIN_MOVE).run(
        "h > LOCK.RENEW $key h LEASE 100 -> 1
        until h > DBSIZE -> 0
        ears heard nothing
        each h o@n1: # > CLUSTER SETSLOT $slot STABLE -> OK
        ears heard a A
        h > HGET $key a -> '1'
        queue $key = b",
    );
}

/// `a` and `b` have the lock elsewhere, one after the other, before the old node has looked
/// at their places again.
#[test]
fn a_place_in_a_slot_that_has_moved_makes_no_deadlock() {
    let mut play = queued();
    let stays = tag(|slot| slot < 5000, 1);
    play.name("stays", format!("{{{stays}}}"))
        .run(BEGIN_MOVE)
        .run(MIGRATE_KEY)
        .run(
            "other hears sharded places:$stays
            h > LOCK.ACQUIRE $stays b LONG -> token
            h > LOCK.ACQUIRE $stays a LONG QUEUE 600000 places:$stays -> 0
            h > LOCK.RELEASE $stays b -> 1
            other heard a token",
        );
}
