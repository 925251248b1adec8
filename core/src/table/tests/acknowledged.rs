//! Replies that replicas have to acknowledge first.

use super::*;
use crate::acks::Acknowledgement;

const TIMEOUT_MS: i64 = 1000;

/// A server whose replies one replica has to acknowledge.
struct Scene {
    server: Server,
    /// How far the replication stream reaches.
    offset: i64,
}

impl Scene {
    fn new() -> Self {
        let mut server = Server::new();
        server.tells = false;
        let mut scene = Self { server, offset: 0 };
        scene.needs(1);
        scene
    }

    fn needs(&mut self, replicas: usize) {
        self.server.table.settings.acks = Some(Acknowledgement {
            replicas,
            connected: replicas,
            timeout_ms: TIMEOUT_MS,
            client: None,
        });
    }

    fn connected(&mut self, connected: usize) {
        let acks = self.server.table.settings.acks.as_mut().unwrap();
        acks.connected = connected;
    }

    /// The request gets what it asks for, and its reply is withheld.
    #[track_caller]
    fn take(&mut self, key: KeyRef<'_>, ask: Ask) -> (WaiterId, FencingToken) {
        let token = self.server.take(key, ask);
        (self.server.withheld.expect("it is withheld"), token)
    }

    #[track_caller]
    fn renew(&mut self, key: KeyRef<'_>, name: &str, by: u64, lease_ms: i64) -> WaiterId {
        self.server.asks_by(ClientId(by));
        assert!(self.server.renew(key, name, lease_ms));
        self.server.withheld.expect("it is withheld")
    }

    /// A turn of the server ends. Something was written in it.
    fn end_turn(&mut self) -> i64 {
        self.offset += 10;
        self.server.table.offset_known(self.offset);
        self.offset
    }

    /// The replicas have acknowledged these offsets. Returns who is told what, and each
    /// hears of it.
    fn acknowledge(&mut self, offsets: &[i64]) -> Vec<(WaiterId, Answer)> {
        let replicas = self
            .server
            .table
            .settings
            .acks
            .map_or(0, |acks| acks.replicas);
        let ready = self
            .server
            .table
            .acknowledged(replicas, offsets.to_vec(), usize::MAX);
        let mut told = Vec::new();
        for (id, key) in ready.replies {
            self.server.expire();
            let stored = self.server.look(key.as_ref());
            let now = self.server.now();
            let Some((addressee, answer)) = self.server.table.tell(id, stored, now) else {
                continue;
            };
            if matches!(answer, Answer::Granted(_) | Answer::Renewed(true)) {
                let (id, now_ms) = (addressee.id(), self.server.ms());
                self.server.table.grant_told(id, true, now_ms);
            }
            told.push((id, answer));
        }
        told
    }

    /// A turn ends, and all that was written is acknowledged.
    fn settle(&mut self) -> Vec<(WaiterId, Answer)> {
        let offset = self.end_turn();
        self.acknowledge(&[offset; 3])
    }

    /// The owner has the lock, and was told.
    fn held_by(&mut self, key: KeyRef<'_>, ask: Ask) -> FencingToken {
        let (id, token) = self.take(key, ask);
        assert_eq!(self.settle(), [(id, Answer::Granted(token))]);
        token
    }

    fn give_up(&mut self) -> Vec<(WaiterId, Answer)> {
        let now = self.server.now();
        let told = self.server.table.give_up(now, usize::MAX).into_iter();
        told.map(|(addressee, answer)| (addressee.id(), answer))
            .collect()
    }

    #[track_caller]
    fn check_nothing_is_left(&self) {
        assert!(!self.server.table.awaits_replicas());
        assert_eq!(self.server.table.totals(self.server.now()).withheld, 0);
        self.server.check_nothing_is_left();
    }
}

fn unsafe_to_say(id: WaiterId) -> (WaiterId, Answer) {
    (id, Answer::Refused(LockError::NoReplicas))
}

#[test]
fn a_grant_is_told_once_a_replica_has_acknowledged_it() {
    let mut scene = Scene::new();
    scene.end_turn();
    let (id, token) = scene.take(K, ask("a").now());
    assert_eq!(scene.server.holds(K, "a"), 1, "it is written at once");
    let before = scene.offset;
    assert_eq!(
        scene.acknowledge(&[before + 1000]),
        [],
        "its offset is not known"
    );
    let offset = scene.end_turn();
    assert_eq!(scene.acknowledge(&[before]), []);
    assert_eq!(scene.acknowledge(&[offset - 1]), []);
    assert_eq!(scene.acknowledge(&[offset]), [(id, Answer::Granted(token))]);
    scene.server.release(K, "a");
    scene.check_nothing_is_left();
}

#[test]
fn whoever_sees_the_lock_ends_what_is_withheld_from_places_that_have_ended() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("x").by(1).now());
    for n in 0..=8 {
        let asks = ask(&nth(n)).shared().place().by(7).session();
        scene.server.wait_for(K, asks, 60_000);
    }
    scene.server.wait(K, ask("b"));
    scene.server.release(K, "x");
    assert_eq!(scene.server.holders(K).len(), 8 + 1);
    scene.server.table.connection_ended(ClientId(7));
    scene.server.asks_by(ClientId(2));
    assert!(!scene.server.renew(K, "y", LEASE_MS));
    assert_eq!(scene.server.holders(K), ["b"]);
}

#[test]
fn a_place_for_a_hold_that_does_not_fit_any_more_is_refused() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    scene.server.table.settings.may_grant = false;
    let asks = ask("a").place().hold(2);
    let place = scene.server.wait_for(K, asks, 60_000);
    scene.server.release(K, "a");
    scene.server.table.settings.may_grant = true;
    scene.server.table.everything_touched();
    scene.server.run();
    let error = LockError::HoldCount { wanted: 2, held: 0 };
    assert_eq!(scene.server.refused(), [(place, error)]);
    scene.check_nothing_is_left();
}

#[test]
fn a_place_that_ends_with_its_session_while_it_is_withheld_is_told_so() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("x").by(1).now());
    let places = ["a", "b"].map(|name| {
        let asks = ask(name).place().by(7).session();
        scene.server.wait_for(K, asks, 60_000)
    });
    scene.server.release(K, "x");
    assert_eq!(scene.server.holders(K), ["a"]);
    scene.server.table.connection_ended(ClientId(7));
    assert_eq!(scene.server.table.wake_at_ms(scene.server.now()), Some(0));
    let told = places.map(|id| (id, Answer::NotGranted));
    assert_eq!(scene.give_up(), told);
    scene.server.run();
    assert_eq!(scene.server.holders(K), [""; 0]);
    assert_eq!(scene.settle(), []);
    scene.check_nothing_is_left();
}

#[test]
fn a_place_that_was_told_is_bound_for_all_of_its_first_lease() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("x").by(1).now());
    let asks = ask("a").place().by(7).session();
    let place = scene.server.wait_for(K, asks, 60_000);
    scene.server.release(K, "x");
    assert!(matches!(scene.settle()[..], [(id, Answer::Granted(_))] if id == place));
    let claim_ms = scene.server.table.settings.claim_timeout_ms + TIMEOUT_MS;
    let bound = |scene: &Scene| scene.server.table.bound_client(K, &owner("a"));
    scene.server.pass(claim_ms);
    assert_eq!(bound(&scene), Some(ClientId(7)));
    scene.server.pass(1);
    assert_eq!(bound(&scene), None);
    assert!(scene.server.table.to_close.is_empty());
}

#[test]
fn what_is_still_to_be_told_is_told_where_writes_are_refused() {
    let mut scene = withheld_from_a_session(1);
    let key = key("n00000");
    scene.server.table.connection_ended(ClientId(7));
    let (reply, token) = scene.take(key, ask("b").now());
    let is_anything_left = |scene: &mut Scene| {
        let now_ms = scene.server.ms();
        scene.server.table.put_off_everything(now_ms, 64).is_some()
    };
    // The end of a place, when nothing else is left.
    assert_eq!(scene.settle(), [(reply, Answer::Granted(token))]);
    assert!(is_anything_left(&mut scene));
    assert_eq!(scene.give_up().len(), 1);
    assert!(!is_anything_left(&mut scene));
    // A reply that replicas may take too long for.
    scene.take(key, ask("b").hold(1).now());
    assert!(is_anything_left(&mut scene));
    scene.settle();
    assert!(!is_anything_left(&mut scene));
}

#[test]
fn many_places_that_end_while_they_are_withheld_are_told_bit_by_bit() {
    const MANY: usize = 100;
    let mut scene = withheld_from_a_session(MANY);
    scene.server.table.connection_ended(ClientId(7));
    let now = scene.server.now();
    let mut give_up = || scene.server.table.give_up(now, MANY / 2).len();
    assert_eq!([give_up(), give_up(), give_up()], [MANY / 2, MANY / 2, 0]);
    scene.server.run();
    scene.check_nothing_is_left();
}

/// Grants to places of one session are withheld, each of a lock of its own.
fn withheld_from_a_session(count: usize) -> Scene {
    let mut scene = Scene::new();
    for n in 0..count {
        let name = nth(n);
        scene.held_by(key(&name), ask("x").by(1).now());
        let asks = ask("a").place().by(7).session();
        scene.server.wait_for(key(&name), asks, 60_000);
    }
    for n in 0..count {
        scene.server.release(key(&nth(n)), "x");
    }
    scene
}

#[test]
fn a_place_that_has_ended_is_not_told_of_its_grant_by_replicas() {
    let mut scene = withheld_from_a_session(2);
    let offset = scene.end_turn();
    scene.server.table.connection_ended(ClientId(7));
    let ready = scene.server.table.acknowledged(1, vec![offset], usize::MAX);
    assert_eq!(ready.replies, []);
    let told = scene.give_up();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|(_, answer)| *answer == Answer::NotGranted));
    scene.server.run();
    scene.check_nothing_is_left();
}

#[test]
fn a_place_that_has_ended_is_told_so_though_replicas_took_too_long() {
    let mut scene = withheld_from_a_session(2);
    scene.server.sleep(TIMEOUT_MS);
    scene.server.table.connection_ended(ClientId(7));
    let told = scene.give_up();
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|(_, answer)| *answer == Answer::NotGranted));
    assert_eq!(scene.server.metrics().replies_unacknowledged, 0);
}

/// `count` owners share a lock by places of one session, and one by itself. They were not
/// told.
fn shared_by_a_session(count: usize) -> Scene {
    let mut scene = Scene::new();
    scene.held_by(L, ask("a").by(2).now());
    scene.held_by(K, ask("w").by(1).now());
    let places = (0..count).map(|n| ask(&nth(n)).place().by(7).session());
    for asks in places.chain([ask("z").place().by(8).session()]) {
        scene.server.wait_for(K, asks.shared(), 60_000);
    }
    scene.server.release(K, "w");
    scene.server.run();
    assert_eq!(scene.server.holders(K).len(), count + 1);
    scene
}

#[test]
fn a_crowd_of_places_that_have_ended_keeps_nobody_out() {
    for breaks in [false, true] {
        for is_one_left in [false, true] {
            let mut scene = shared_by_a_session(2 * ENDS_A_STEP + 1);
            if !is_one_left {
                scene.server.table.connection_ended(ClientId(8));
            }
            scene.server.table.connection_ended(ClientId(7));
            if breaks {
                assert_eq!(scene.server.break_lock(K, None), is_one_left);
            } else {
                let taken = scene.server.acquire(K, ask("x").now()).unwrap();
                assert_eq!(taken == Acquired::Busy, is_one_left);
            }
        }
    }
}

#[test]
fn places_that_have_ended_make_no_cycle() {
    for has_ended in [false, true] {
        let mut scene = shared_by_a_session(2 * ENDS_A_STEP + 1);
        scene.server.wait(K, ask("a").by(3));
        if has_ended {
            scene.server.table.connection_ended(ClientId(7));
        }
        let last = nth(2 * ENDS_A_STEP);
        let waits = scene.server.acquire(L, ask(&last).by(4));
        assert_eq!(scene.server.questions, 1);
        match has_ended {
            true => assert!(matches!(waits, Ok(Acquired::Queued(_))), "{waits:?}"),
            false => assert!(matches!(waits, Err(LockError::Deadlock { .. }))),
        }
    }
}

#[test]
fn the_end_of_a_connection_concerns_only_what_is_withheld_from_it() {
    const MANY: u64 = 10_000;
    let mut scene = Scene::new();
    let names: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
    for (name, client) in names.iter().zip(MANY..) {
        scene.held_by(key(name), ask("x").by(1).now());
        let place = ask("a").place().by(client);
        let place = if client % 2 == 0 {
            place.session()
        } else {
            place
        };
        scene.server.wait_for(key(name), place, 60_000);
    }
    for name in &names {
        scene.server.release(key(name), "x");
    }
    scene.take(K, ask("b").by(2).now());
    let concerned = |scene: &Scene, client| {
        let outbox = &scene.server.table.outbox;
        outbox.any_of(ClientId(client)).is_some()
    };
    let counts = [1, 2, MANY, MANY + 1].map(|client| concerned(&scene, client));
    assert_eq!(counts, [false, true, true, false]);
    scene.server.table.connection_ended(ClientId(1));
    assert_eq!(scene.give_up(), []);
    scene.server.table.connection_ended(ClientId(MANY));
    assert_eq!(scene.give_up().len(), 1);
    assert_eq!(scene.settle().len() as u64, MANY);
    let left = (0..2 * MANY).find(|client| concerned(&scene, *client));
    assert_eq!(left, None);
}

#[test]
fn as_many_replicas_as_asked_for_have_to_acknowledge_it() {
    let mut scene = Scene::new();
    scene.needs(2);
    let (id, token) = scene.take(K, ask("a").now());
    let offset = scene.end_turn();
    assert_eq!(scene.acknowledge(&[offset]), []);
    assert_eq!(scene.acknowledge(&[offset - 1, offset]), []);
    let told = scene.acknowledge(&[offset, 0, offset + 5]);
    assert_eq!(told, [(id, Answer::Granted(token))]);
}

#[test]
fn all_that_was_withheld_in_one_turn_waits_for_one_offset() {
    let mut scene = Scene::new();
    let first = scene.take(K, ask("a").now()).0;
    let second = scene.take(L, ask("b").now()).0;
    let offset = scene.end_turn();
    let third = scene.take(M, ask("c").now()).0;
    scene.end_turn();
    let ids =
        |told: Vec<(WaiterId, Answer)>| told.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(scene.acknowledge(&[offset])), [first, second]);
    let offset = scene.offset;
    assert_eq!(ids(scene.acknowledge(&[offset])), [third]);
}

#[test]
fn what_is_not_acknowledged_in_time_is_given_back_and_the_next_is_asked() {
    let mut scene = Scene::new();
    let (id, token) = scene.take(K, ask("a").now());
    scene.end_turn();
    let next = scene.server.wait(K, ask("b"));
    scene.server.sleep(TIMEOUT_MS - 1);
    assert_eq!(scene.give_up(), []);
    scene.server.sleep(1);
    assert_eq!(scene.give_up(), [unsafe_to_say(id)]);
    assert_eq!(scene.server.holders(K), ["a"], "nothing is written yet");
    scene.server.run();
    assert_eq!(scene.server.holders(K), ["b"]);
    assert!(scene.server.token(K, "b") > token);
    let (told, answer) = scene.settle().remove(0);
    assert_eq!(told, next);
    assert!(matches!(answer, Answer::Granted(_)));
    scene.server.release(K, "b");
    scene.check_nothing_is_left();
}

#[test]
fn a_step_of_the_wall_clock_neither_hurries_replicas_nor_gives_them_longer() {
    for step_ms in [-3_600_000, 3_600_000] {
        let mut scene = Scene::new();
        let id = scene.take(K, ask("a").lease(2 * 3_600_000).now()).0;
        let waiter = scene.server.wait(K, ask("b"));
        scene.server.sleep(100);
        scene.server.set_clock(step_ms);
        scene.server.sleep(TIMEOUT_MS - 101);
        assert_eq!(scene.give_up(), []);
        scene.server.sleep(1);
        assert_eq!(scene.give_up(), [unsafe_to_say(id)]);
        scene.server.leave(waiter);
        scene.server.run();
        scene.check_nothing_is_left();
    }
}

#[test]
fn the_next_request_sees_what_was_given_back() {
    let mut scene = Scene::new();
    let id = scene.take(K, ask("a").hold(1).now()).0;
    scene.server.sleep(TIMEOUT_MS);
    assert_eq!(scene.give_up(), [unsafe_to_say(id)]);
    let again = scene.take(K, ask("a").hold(1).now()).0;
    assert_eq!(scene.server.holds(K, "a"), 1);
    assert!(matches!(scene.settle()[..], [(id, Answer::Granted(_))] if id == again));
}

#[test]
fn a_request_that_confirmed_a_hold_takes_none_back() {
    let mut scene = Scene::new();
    let token = scene.held_by(K, ask("a").hold(1).now());
    let (id, same) = scene.take(K, ask("a").hold(1).lease(2 * LEASE_MS).now());
    assert_eq!(same, token);
    scene.server.sleep(TIMEOUT_MS);
    assert_eq!(scene.give_up(), [unsafe_to_say(id)]);
    scene.server.run();
    assert_eq!(scene.server.holds(K, "a"), 1);
}

#[test]
fn what_is_withheld_and_writes_nothing_has_the_stream_go_on() {
    let mut scene = Scene::new();
    scene.take(K, ask("a").hold(1).now());
    assert!(!scene.server.stream_goes_on);
    scene.take(K, ask("a").hold(1).now());
    assert!(scene.server.effects.is_empty() && scene.server.stream_goes_on);
    scene.take(K, ask("a").hold(1).lease(2 * LEASE_MS).now());
    assert!(!scene.server.stream_goes_on);
    scene.server.asks_by(ClientId(7));
    assert!(!scene.server.renew(K, "b", LEASE_MS));
    assert!(!scene.server.stream_goes_on);
}

#[test]
fn what_is_told_at_once_and_writes_nothing_has_the_stream_go_on() {
    let mut server = Server::new();
    server.take(K, ask("a").shared().hold(1));
    assert!(!server.stream_goes_on);
    server.take(K, ask("a").shared().hold(1));
    assert!(server.effects.is_empty() && server.stream_goes_on);
    assert!(server.renew(K, "a", LEASE_MS));
    assert!(server.effects.is_empty() && server.stream_goes_on);
    assert_eq!(server.acquire(K, ask("b").now()), Ok(Acquired::Busy));
    assert!(!server.stream_goes_on);
}

#[test]
fn a_waiter_that_is_handed_what_its_owner_has_has_the_stream_go_on() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").hold(1).now());
    scene.server.table.settings.may_grant = false;
    let waiter = scene.server.wait(K, ask("a").hold(1));
    scene.server.table.settings.may_grant = true;
    scene.server.table.everything_touched();
    scene.server.run();
    assert!(scene.server.effects.is_empty() && scene.server.stream_goes_on);
    assert!(matches!(scene.settle()[..], [(id, Answer::Granted(_))] if id == waiter));
}

#[test]
fn a_renewal_that_is_told_keeps_what_a_lost_grant_was_to_tell_of() {
    for is_taken_over in [false, true] {
        let mut scene = Scene::new();
        let (mut grant, _) = scene.take(K, ask("a").by(1).now());
        let renewal = scene.renew(K, "a", 2, LEASE_MS);
        let offset = scene.end_turn();
        if is_taken_over {
            grant = scene.take(K, ask("a").by(3).now()).0;
        }
        let ready = scene.server.table.acknowledged(1, vec![offset], usize::MAX);
        let mut told = Vec::new();
        for (id, key) in ready.replies {
            let (stored, now) = (scene.server.look(key.as_ref()), scene.server.now());
            let answer = scene.server.table.tell(id, stored, now);
            told.extend(answer.map(|(_, answer)| (id, answer)));
        }
        assert_eq!(told.last(), Some(&(renewal, Answer::Renewed(true))));
        // Its client is gone by now.
        scene
            .server
            .table
            .waiter_left(grant, Leave::Gone, scene.server.ms());
        scene.server.run();
        assert_eq!(scene.server.holds(K, "a"), 1, "taken over: {is_taken_over}");
    }
}

#[test]
fn a_release_after_a_renewal_that_is_not_told_yet_counts_for_it() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").by(1).now());
    scene.take(K, ask("a").by(1).now());
    let renewal = scene.renew(K, "a", 2, LEASE_MS);
    scene.server.release(K, "a");
    let (again, _) = scene.take(K, ask("a").by(1).now());
    assert_eq!(scene.server.holds(K, "a"), 2);
    scene.server.told();
    let told = scene.settle();
    assert!(told.contains(&(renewal, Answer::Renewed(true))), "{told:?}");
    assert!(told.iter().any(|(id, _)| *id == again));
}

#[test]
fn a_release_answers_a_grant_that_is_not_told_yet() {
    for lease_ms in [10, LEASE_MS] {
        let mut scene = Scene::new();
        let (id, _) = scene.take(K, ask("a").by(1).lease(lease_ms).now());
        scene.server.sleep(20);
        let released = scene.server.release_as(K, "a", ReleaseExtent::One, None);
        let expected = match lease_ms {
            10 => Released::NotHeld,
            _ => Released::LastHold,
        };
        assert_eq!(released, Ok(expected));
        assert_eq!(scene.server.told(), [(id, Answer::NotGranted)]);
        assert_eq!(scene.settle(), []);
        scene.check_nothing_is_left();
    }
}

#[test]
fn what_is_handed_to_a_waiter_is_withheld_too() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    let waiter = scene.server.wait(K, ask("b"));
    scene.server.release(K, "a");
    assert_eq!(scene.server.told(), []);
    assert_eq!(scene.server.holders(K), ["b"]);
    let token = scene.server.token(K, "b");
    assert_eq!(scene.settle(), [(waiter, Answer::Granted(token))]);
}

#[test]
fn a_waiter_that_gets_it_too_late_passes_it_on() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    let [b, c] = ["b", "c"].map(|name| scene.server.wait(K, ask(name)));
    scene.server.release(K, "a");
    scene.server.sleep(TIMEOUT_MS);
    assert_eq!(scene.give_up(), [unsafe_to_say(b)]);
    scene.server.run();
    assert_eq!(scene.server.holders(K), ["c"]);
    assert!(matches!(scene.settle()[..], [(id, Answer::Granted(_))] if id == c));
}

#[test]
fn the_wait_for_the_lock_is_bounded_and_not_that_for_replicas() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    let [b, c] = ["b", "c"].map(|name| scene.server.wait_for(K, ask(name), 100));
    scene.server.sleep(50);
    scene.server.release(K, "a");
    scene.server.sleep(50);
    assert_eq!(scene.give_up(), [(c, Answer::NotGranted)]);
    scene.server.sleep(TIMEOUT_MS - 51);
    assert!(matches!(scene.settle()[..], [(id, Answer::Granted(_))] if id == b));
    scene.server.release(K, "b");
    scene.check_nothing_is_left();
}

#[test]
fn a_renewal_is_told_once_it_is_acknowledged_and_its_lease_stays() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    let id = scene.renew(K, "a", 7, 2 * LEASE_MS);
    assert_eq!(scene.settle(), [(id, Answer::Renewed(true))]);
    let id = scene.renew(K, "a", 7, 3 * LEASE_MS);
    scene.server.sleep(TIMEOUT_MS);
    assert_eq!(scene.give_up(), [unsafe_to_say(id)]);
    scene.server.run();
    assert_eq!(scene.server.holds(K, "a"), 1);
    let ends_ms = scene.server.lock(K).expires_at_ms();
    assert_eq!(ends_ms, Some(scene.server.ms() - TIMEOUT_MS + 3 * LEASE_MS));
    scene.server.release(K, "a");
    scene.check_nothing_is_left();
}

#[test]
fn a_renewal_of_nothing_is_told_at_once() {
    let mut scene = Scene::new();
    scene.server.asks_by(ClientId(1));
    assert!(!scene.server.renew(K, "a", LEASE_MS));
    assert_eq!(scene.server.withheld, None);
}

#[test]
fn what_has_ended_meanwhile_is_not_told() {
    let ends: [fn(&mut Server); 5] = [
        // The same owner holds it by other means.
        |server| server.write(K, |value| drop(value.fields.remove(TOKEN_FIELD))),
        |server| server.release(K, "a"),
        |server| assert!(server.break_lock(K, None)),
        |server| server.delete(K),
        |server| server.overwrite(K),
    ];
    for (nth, end) in ends.into_iter().enumerate() {
        let mut scene = Scene::new();
        let grant = scene.take(K, ask("a").by(1).now()).0;
        let renewal = scene.renew(K, "a", 2, LEASE_MS);
        end(&mut scene.server);
        let nothing = [
            (grant, Answer::NotGranted),
            (renewal, Answer::Renewed(false)),
        ];
        let mut told = scene.server.told();
        told.extend(scene.settle());
        assert_eq!(told, nothing, "end {nth}");
    }
}

#[test]
fn a_token_whose_lease_is_over_is_not_told() {
    let mut scene = Scene::new();
    let id = scene.take(K, ask("a").lease(10).now()).0;
    scene.server.sleep(11);
    assert_eq!(scene.settle(), [(id, Answer::NotGranted)]);
}

#[test]
fn a_hold_of_a_later_token_does_not_stand_for_an_earlier_one() {
    let mut scene = Scene::new();
    let first = scene.take(K, ask("a").by(1).now()).0;
    scene.server.delete(K);
    let (second, token) = scene.take(K, ask("a").by(2).now());
    let superseded = Answer::Refused(LockError::Superseded);
    assert_eq!(scene.server.told(), [(first, superseded)]);
    assert_eq!(scene.settle(), [(second, Answer::Granted(token))]);
    assert_eq!(scene.server.holds(K, "a"), 1);
}

#[test]
fn a_client_that_goes_gives_back_what_was_withheld() {
    let mut scene = Scene::new();
    let id = scene.take(K, ask("a").by(1).now()).0;
    scene.server.table.connection_ended(ClientId(1));
    let now_ms = scene.server.ms();
    scene.server.table.waiter_left(id, Leave::Gone, now_ms);
    scene.server.run();
    assert_eq!(scene.server.holders(K), [""; 0]);
    assert_eq!(scene.settle(), []);
    scene.check_nothing_is_left();
}

#[test]
fn an_unblocked_client_is_told_that_it_is_not_safe() {
    let mut scene = Scene::new();
    let id = scene.take(K, ask("a").now()).0;
    let now_ms = scene.server.ms();
    let told = scene.server.table.waiter_left(id, Leave::TimeUp, now_ms);
    assert_eq!(told, Some(Answer::Refused(LockError::NoReplicas)));
    scene.server.run();
    assert_eq!(scene.server.holders(K), [""; 0]);
    assert_eq!(scene.server.metrics().wait_timeouts, 0);
    assert_eq!(scene.server.metrics().replies_unacknowledged, 1);
}

#[test]
fn on_demotion_nothing_waits_for_replicas_any_more() {
    let mut scene = Scene::new();
    scene.take(K, ask("a").now());
    scene.server.table.forget_connections(4);
    assert!(!scene.server.table.awaits_replicas());
    assert!(!scene.server.table.remembers_holds());
}

#[test]
fn when_no_replica_is_needed_any_more_all_is_told() {
    let mut scene = Scene::new();
    let (id, token) = scene.take(K, ask("a").now());
    scene.end_turn();
    scene.server.table.settings.acks = None;
    assert_eq!(scene.acknowledge(&[]), [(id, Answer::Granted(token))]);
}

#[test]
fn who_cannot_wait_for_replicas_is_refused_and_nothing_changes() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    let mut refused = |ask: Ask, key| {
        scene.server.effects = Effects::new();
        let stored = scene.server.look_for(key).unwrap();
        scene.server.table.settings.acks.as_mut().unwrap().client = None;
        let result = scene.server.step(key, |table, now, world| {
            table.acquire(key, stored, ask.request, None, now, world)
        });
        assert!(scene.server.effects.is_empty());
        result
    };
    let cannot_wait = Err(LockError::CannotAwaitReplicas);
    assert_eq!(refused(ask("b"), L), cannot_wait);
    assert_eq!(refused(ask("a"), K), cannot_wait);
    assert_eq!(refused(ask("b"), K), Ok(Acquired::Busy));
}

#[test]
fn with_too_few_replicas_who_would_not_wait_is_told_so_in_its_turn_alone() {
    let mut scene = Scene::new();
    scene.connected(0);
    let reader = || ask("r").shared().now();
    assert_eq!(
        scene.server.acquire(K, reader()),
        Err(LockError::NoReplicas)
    );
    scene.server.wait(K, ask("b").shared());
    assert_eq!(scene.server.acquire(K, reader()), Ok(Acquired::Busy));
}

#[test]
fn with_too_few_replicas_who_waits_waits_on() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    let waiter = scene.server.wait(K, ask("b"));
    scene.connected(0);
    let refused = Err(LockError::NoReplicas);
    assert_eq!(scene.server.acquire(L, ask("c").now()), refused);
    // A null would say that somebody else holds it.
    assert_eq!(scene.server.acquire(K, ask("a").hold(1)), refused);
    let patient = scene.server.wait(L, ask("c"));
    scene.server.release(K, "a");
    scene.server.run();
    assert!(scene.server.holders(K).is_empty() && scene.server.holders(L).is_empty());
    scene.connected(1);
    scene.server.table.everything_touched();
    scene.server.run();
    let mut told: Vec<WaiterId> = scene.settle().into_iter().map(|(id, _)| id).collect();
    told.sort();
    assert_eq!(told, [waiter, patient]);
}

/// A renewal by `a` ends in an error, and changes nothing.
#[track_caller]
fn check_renews_nothing(scene: &mut Scene) {
    let before = scene.server.lock(K);
    let request = RenewRequest {
        owner: owner("a"),
        lease: lease(2 * LEASE_MS),
        token: None,
    };
    let renewed = scene.server.try_renew(K, &request);
    assert_eq!(renewed, Err(LockError::NoReplicas));
    assert_eq!(scene.server.lock(K), before);
}

#[test]
fn with_too_few_replicas_nothing_is_renewed() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").now());
    scene.connected(0);
    check_renews_nothing(&mut scene);
}

#[test]
fn a_hold_without_a_token_gets_it_by_a_renewal_and_can_be_told_of() {
    let mut scene = Scene::new();
    scene.server.write(K, |value| {
        value.set(b"a", 1);
        value.expires_at_ms = Some(START_MS + LEASE_MS);
    });
    let id = scene.renew(K, "a", 1, 2 * LEASE_MS);
    assert!(scene.server.lock(K).last_token().is_some());
    assert_eq!(scene.settle(), [(id, Answer::Renewed(true))]);
    scene.server.release(K, "a");
    scene.check_nothing_is_left();
}

#[test]
fn a_session_is_kept_up_by_leases_that_are_acknowledged() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").session().now());
    for _ in 0..10 {
        scene.server.pass(LEASE_MS / 3);
        scene.settle();
    }
    assert_eq!(scene.server.holders(K), ["a"]);
    assert!(scene.server.table.to_close.is_empty());
    assert!(scene.server.steps < 20, "{} looks", scene.server.steps);
}

#[test]
fn a_session_whose_leases_are_not_acknowledged_is_closed_in_time() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").session().now());
    let client = ask("a").client;
    scene.server.pass(LEASE_MS - 21);
    assert!(scene.server.table.to_close.is_empty());
    scene.server.pass(2);
    assert_eq!(scene.server.table.take_clients_to_close(9), [client]);
    assert_eq!(scene.server.holders(K), ["a"], "what is stored was renewed");
}

#[test]
fn a_re_entry_that_is_not_acknowledged_keeps_no_session_up() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").session().now());
    scene.server.sleep(1000);
    scene.take(K, ask("a").lease(9 * LEASE_MS).now());
    scene.server.sleep(1000);
    scene.renew(K, "a", 2, 9 * LEASE_MS);
    scene.server.sleep(LEASE_MS - 2000 - 20);
    scene.give_up();
    scene.server.pass(1);
    assert_eq!(scene.server.table.to_close, [ask("a").client]);
}

#[test]
fn a_renewal_does_not_keep_a_hold_from_ending_with_its_session() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").session().now());
    let id = scene.renew(K, "a", 2, LEASE_MS);
    scene.server.table.connection_ended(ask("a").client);
    scene.server.run();
    assert_eq!(scene.server.holders(K), [""; 0]);
    assert_eq!(scene.settle(), [(id, Answer::Renewed(false))]);
    scene.check_nothing_is_left();
}

#[test]
fn a_renewal_that_is_given_up_leaves_the_session_bound() {
    let mut scene = Scene::new();
    scene.held_by(K, ask("a").session().now());
    let ClientId(client) = ask("a").client;
    let id = scene.renew(K, "a", client, LEASE_MS);
    scene.server.sleep(TIMEOUT_MS);
    assert_eq!(scene.give_up(), [unsafe_to_say(id)]);
    scene.server.run();
    let bound = scene.server.table.bound_client(K, &owner("a"));
    assert_eq!(bound, Some(ClientId(client)));
}

/// An owner's session was told, and it asks again by two other connections. The first of
/// these requests is taken over.
fn asked_again_by_two(lease_ms: i64) -> (Scene, ClientId, WaiterId) {
    let mut scene = Scene::new();
    let first = ask("a").session().lease(lease_ms);
    let client = first.client;
    scene.held_by(K, first.now());
    let again = |by| ask("a").session().lease(lease_ms).hold(1).by(by).now();
    let [second, third] = [7, 8].map(|by| scene.take(K, again(by)).0);
    let superseded = Answer::Refused(LockError::Superseded);
    assert_eq!(scene.server.told(), [(second, superseded)]);
    (scene, client, third)
}

#[test]
fn a_session_stays_with_who_was_told_of_it() {
    for ended in [7, 8] {
        let (mut scene, client, third) = asked_again_by_two(9 * LEASE_MS);
        let bound = |scene: &Scene| scene.server.table.bound_client(K, &owner("a"));
        assert_eq!(bound(&scene), Some(client));
        scene.server.table.connection_ended(ClientId(ended));
        scene.server.sleep(TIMEOUT_MS);
        let told = if ended == 8 {
            vec![]
        } else {
            vec![unsafe_to_say(third)]
        };
        assert_eq!(scene.give_up(), told);
        scene.server.run();
        assert_eq!(bound(&scene), Some(client));
        assert_eq!(scene.server.holds(K, "a"), 1);
        scene.server.table.connection_ended(client);
        scene.server.run();
        scene.check_nothing_is_left();
    }
}

#[test]
fn a_session_passes_on_when_the_next_one_is_told() {
    let (mut scene, client, third) = asked_again_by_two(9 * LEASE_MS);
    let told: Vec<WaiterId> = scene.settle().into_iter().map(|(id, _)| id).collect();
    assert_eq!(told, [third]);
    let bound = scene.server.table.bound_client(K, &owner("a"));
    assert_eq!(bound, Some(ClientId(8)));
    scene.server.table.connection_ended(client);
    scene.server.run();
    assert_eq!(scene.server.holds(K, "a"), 1);
    scene.server.table.connection_ended(ClientId(8));
    scene.server.run();
    scene.check_nothing_is_left();
}

#[test]
fn a_session_that_ends_is_over_unless_the_next_one_is_told() {
    for is_told in [true, false] {
        let (mut scene, client, third) = asked_again_by_two(9 * LEASE_MS);
        scene.server.table.connection_ended(client);
        scene.server.run();
        assert_eq!(scene.server.holds(K, "a"), 1);
        if is_told {
            let told: Vec<WaiterId> = scene.settle().into_iter().map(|(id, _)| id).collect();
            assert_eq!(told, [third]);
            let bound = scene.server.table.bound_client(K, &owner("a"));
            assert_eq!(bound, Some(ClientId(8)));
            scene.server.table.connection_ended(ClientId(8));
        } else {
            scene.server.sleep(TIMEOUT_MS);
            assert_eq!(scene.give_up(), [unsafe_to_say(third)]);
        }
        scene.server.run();
        scene.check_nothing_is_left();
    }
}

#[test]
fn a_session_is_closed_in_time_where_the_next_one_is_not_told() {
    let (mut scene, client, _) = asked_again_by_two(LEASE_MS);
    scene.server.sleep(TIMEOUT_MS);
    scene.give_up();
    scene.server.pass(LEASE_MS - TIMEOUT_MS - 21);
    assert!(scene.server.table.to_close.is_empty());
    scene.server.pass(2);
    assert_eq!(scene.server.table.take_clients_to_close(9), [client]);
}

#[test]
fn silent_replicas_do_not_make_memory_grow() {
    let mut scene = Scene::new();
    for _ in 0..1000 {
        scene.take(K, ask("a").now());
        scene.end_turn();
        scene.server.sleep(TIMEOUT_MS);
        scene.give_up();
    }
    scene.server.run();
    scene.check_nothing_is_left();
}

#[test]
fn nor_do_they_behind_the_lease_of_a_session() {
    let mut scene = Scene::new();
    scene.held_by(L, ask("s").session().lease(1_000_000_000).now());
    scene.server.pass(400_000_000);
    assert!(scene.server.table.awaits_replicas());
    for _ in 0..1000 {
        scene.take(K, ask("a").lease(TIMEOUT_MS / 2).now());
        scene.end_turn();
        scene.server.sleep(TIMEOUT_MS);
        scene.give_up();
    }
    assert!(scene.server.table.acks.in_line() < 200);
}

#[cfg(feature = "planted-faults")]
mod planted {
    use super::*;
    use crate::planted::plant;

    #[track_caller]
    fn check(fault: &str, scene: fn()) {
        assert!(plant(fault), "no fault is called {fault}");
        let found = std::panic::catch_unwind(scene).is_err();
        assert!(found, "nothing shows {fault}");
    }

    #[test]
    fn each_fault_of_acknowledgements_is_found() {
        check(
            "acknowledgement-not-awaited",
            a_grant_is_told_once_a_replica_has_acknowledged_it,
        );
        check(
            "offset-too-early",
            a_grant_is_told_once_a_replica_has_acknowledged_it,
        );
        check(
            "hand-off-not-covered",
            what_is_handed_to_a_waiter_is_withheld_too,
        );
        check(
            "renewal-not-covered",
            a_renewal_is_told_once_it_is_acknowledged_and_its_lease_stays,
        );
        check(
            "renewal-not-covered",
            a_session_whose_leases_are_not_acknowledged_is_closed_in_time,
        );
    }
}
