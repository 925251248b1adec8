//! Places in a cluster: their messages are sharded, and slots move.

use redis::PushKind;
use redis_lock_testing::scene::waiting;
use redis_lock_testing::{Client, LONG, MovingSlot, eventually, int, tag, text, token};

/// A slot of node 0, with a lock that is held, and who hears a channel of that slot.
struct Scene {
    moving: MovingSlot,
    channel: String,
    ears: Client,
}

impl Scene {
    fn held() -> Self {
        let moving = MovingSlot::start();
        let channel = moving.key.replace("lock", "places");
        let mut ears = moving.cluster.client(0).in_resp3();
        ears.subscribe(&format!("SSUBSCRIBE {channel}"));
        token(&ears.call(&format!("LOCK.ACQUIRE {} holder {LONG}", moving.key)));
        Self {
            moving,
            channel,
            ears,
        }
    }

    #[track_caller]
    fn place(&mut self, owner: &str) {
        let (key, channel) = (&self.moving.key, &self.channel);
        let command = format!("LOCK.ACQUIRE {key} {owner} {LONG} QUEUE 600000 {channel}");
        assert_eq!(self.ears.call(&command), int(0));
    }

    #[track_caller]
    fn granted(&mut self, owner: &str) -> i64 {
        let told = self.ears.told();
        assert_eq!(
            (told.db, told.key.as_slice()),
            (0, self.moving.key.as_bytes())
        );
        assert_eq!(told.owner, owner);
        told.token()
    }
}

#[test]
fn a_place_is_told_by_a_sharded_message() {
    let mut scene = Scene::held();
    scene.place("a");
    scene.place("b");
    let release = format!("LOCK.RELEASE {} holder", scene.moving.key);
    assert_eq!(scene.ears.call(&release), int(1));
    let fence = scene.granted("a");
    let claim = format!("LOCK.RENEW {} a {LONG} FENCE {fence}", scene.moving.key);
    assert_eq!(scene.ears.call(&claim), int(1));
    let release = format!("LOCK.RELEASE {} a", scene.moving.key);
    assert_eq!(scene.ears.call(&release), int(1));
    assert!(scene.granted("b") > fence);
    scene.moving.cluster.assert_sound();
}

#[test]
fn a_subscription_that_is_not_sharded_hears_nothing_of_places() {
    let mut scene = Scene::held();
    let mut other = scene.moving.cluster.client(0).in_resp3();
    other.subscribe(&format!("SUBSCRIBE {}", scene.channel));
    scene.place("a");
    scene.ears.send(&format!("SUNSUBSCRIBE {}", scene.channel));
    assert_eq!(scene.ears.pushed().0, PushKind::SUnsubscribe);
    let release = format!("LOCK.RELEASE {} holder", scene.moving.key);
    assert_eq!(scene.ears.call(&release), int(1));
    assert_eq!(scene.moving.cluster.nodes[0].info("lock_places_unheard"), 1);
    assert_eq!(
        scene.ears.call(&format!("EXISTS {}", scene.moving.key)),
        int(0)
    );
    assert_eq!(other.told_so_far(), []);
}

#[test]
fn a_channel_of_another_slot_is_refused_and_nothing_changes() {
    let mut scene = Scene::held();
    let neighbour = tag(|slot| slot < 5000, 1);
    let foreign = tag(|slot| slot > 12000, 0);
    let free = scene.moving.key.replace("lock", "free");
    for channel in [
        format!("{{{neighbour}}}"),
        format!("{{{foreign}}}"),
        "ch".into(),
    ] {
        for key in [&scene.moving.key, &free] {
            let command = format!("LOCK.ACQUIRE {key} a QUEUE 60000 {channel}");
            let error = scene.ears.error(&command);
            assert!(error.starts_with("CROSSSLOT "), "{error}");
        }
    }
    assert_eq!(scene.ears.call(&format!("EXISTS {free}")), int(0));
    assert_eq!(scene.moving.cluster.nodes[0].info("lock_places"), 0);
    // The key itself will do as a channel.
    let own = format!("LOCK.ACQUIRE {0} a QUEUE 60000 {0}", scene.moving.key);
    assert_eq!(scene.ears.call(&own), int(0));
}

#[test]
fn whoever_has_a_place_in_a_slot_that_moves_hears_so_and_the_old_node_forgets_it() {
    let mut scene = Scene::held();
    scene.place("a");
    scene.place("b");
    scene.moving.begin();
    scene.moving.migrate(&scene.moving.key);
    // Nobody is granted what has left this node but not its slot.
    assert_eq!(scene.ears.told_so_far(), []);
    scene.moving.finish();
    // The server ends the subscriptions of a slot that it loses, so a message would not
    // be heard.
    let (kind, data) = scene.ears.pushed();
    assert_eq!(kind, PushKind::SUnsubscribe, "{data:?}");
    let mut old = scene.moving.cluster.client(0);
    eventually("the old node has no place", || old.info("lock_places") == 0);
    assert_eq!(old.info("lock_waiters"), 0);
    let key = &scene.moving.key;
    let again = format!("LOCK.ACQUIRE {key} a {LONG} QUEUE 600000 {}", scene.channel);
    assert_eq!(old.error(&again), scene.moving.moved());
    // There the same request is as good as it was here.
    let mut there = scene.moving.cluster.client(1).in_resp3();
    there.subscribe(&format!("SSUBSCRIBE {}", scene.channel));
    assert_eq!(there.call(&again), int(0));
    assert_eq!(there.call(&format!("LOCK.RELEASE {key} holder")), int(1));
    there.granted("a");
    assert_eq!(old.call("DBSIZE"), int(0));
    scene.moving.cluster.assert_sound();
}

#[test]
fn a_move_that_is_given_up_serves_the_places_where_they_are() {
    let mut scene = Scene::held();
    scene.place("a");
    scene.moving.begin();
    let mut client = scene.moving.cluster.client(0);
    let short = format!("LOCK.RENEW {} holder LEASE 100", scene.moving.key);
    assert_eq!(client.call(&short), int(1));
    eventually("the lease is over", || client.call("DBSIZE") == int(0));
    assert_eq!(scene.ears.told_so_far(), []);
    scene.moving.set(0, "STABLE");
    scene.moving.set(1, "STABLE");
    scene.granted("a");
    let held = client.call(&format!("HGET {} a", scene.moving.key));
    assert_eq!(held, text("1"));
    assert_eq!(waiting(&mut client, &scene.moving.key), 0);
}

#[test]
fn a_place_in_a_slot_that_has_moved_makes_no_deadlock() {
    let mut scene = Scene::held();
    scene.place("a");
    scene.place("b");
    scene.moving.begin();
    scene.moving.migrate(&scene.moving.key);
    // "a" and "b" have the lock elsewhere, one after the other, before the old node has
    // looked at their places again.
    let slot_that_stays = tag(|slot| slot < 5000, 1);
    let (key, channel) = (
        format!("lock:{{{slot_that_stays}}}"),
        format!("places:{{{slot_that_stays}}}"),
    );
    let mut ears = scene.moving.cluster.client(0).in_resp3();
    ears.subscribe(&format!("SSUBSCRIBE {channel}"));
    token(&ears.call(&format!("LOCK.ACQUIRE {key} b {LONG}")));
    let wait = format!("LOCK.ACQUIRE {key} a {LONG} QUEUE 600000 {channel}");
    assert_eq!(ears.call(&wait), int(0));
    assert_eq!(ears.call(&format!("LOCK.RELEASE {key} b")), int(1));
    let told = ears.told();
    assert_eq!((told.owner.as_str(), told.token() > 0), ("a", true));
}
