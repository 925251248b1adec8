//! Replies that replicas have to acknowledge first.

use super::*;
use crate::acks::Acknowledgement;

const TIMEOUT_MS: i64 = 1000;

impl Server {
    /// One whose replies one replica has to acknowledge.
    fn replicated() -> Self {
        let mut server = Self::new();
        server.tells = false;
        server.needs(1);
        server
    }

    fn needs(&mut self, replicas: usize) {
        self.table.settings.acks = Some(Acknowledgement {
            replicas,
            connected: replicas,
            timeout_ms: TIMEOUT_MS,
            client: None,
        });
    }

    fn connected(&mut self, connected: usize) {
        let acks = self.table.settings.acks.as_mut().unwrap();
        acks.connected = connected;
    }

    /// The request gets what it asks for, and its reply is withheld.
    #[track_caller]
    fn take_withheld(&mut self, key: KeyRef<'_>, ask: Ask) -> (WaiterId, FencingToken) {
        let token = self.take(key, ask);
        (self.withheld.expect("it is withheld"), token)
    }

    #[track_caller]
    fn renew_withheld(&mut self, name: &str, by: u64, lease_ms: i64) -> WaiterId {
        self.asks_by(ClientId(by));
        assert!(self.renew(K, name, lease_ms));
        self.withheld.expect("it is withheld")
    }

    /// A turn of the server ends. Something was written in it.
    fn end_turn(&mut self) -> i64 {
        self.offset += 10;
        self.table.offset_known(self.offset);
        self.offset
    }

    /// The replicas have acknowledged these offsets. Returns who is told what, and each
    /// hears of it.
    fn acknowledge(&mut self, offsets: &[i64]) -> Vec<(WaiterId, Answer)> {
        let replicas = self.table.settings.acks.map_or(0, |acks| acks.replicas);
        let (table, offsets) = (&mut self.table, offsets.to_vec());
        let (replies, _) = table.acknowledged(replicas, offsets, usize::MAX);
        let mut told = Vec::new();
        for (id, key) in replies {
            self.expire();
            let answer = self.tell(id, key.as_ref());
            if matches!(answer, Some(Answer::Granted(_) | Answer::Renewed(true))) {
                self.table.grant_told(id, true, self.ms());
            }
            told.extend(answer.map(|answer| (id, answer)));
        }
        told
    }

    fn tell(&mut self, id: WaiterId, key: KeyRef<'_>) -> Option<Answer> {
        let (stored, now) = (self.look(key), self.now());
        self.table.tell(id, stored, now).map(|(_, answer)| answer)
    }

    /// A turn ends, and all that was written is acknowledged.
    fn settle(&mut self) -> Vec<(WaiterId, Answer)> {
        let offset = self.end_turn();
        self.acknowledge(&[offset; 3])
    }

    /// The same, and these are granted the lock, and nobody is told anything else.
    #[track_caller]
    fn settles_grants<const N: usize>(&mut self, expected: [WaiterId; N]) {
        let told = self.settle().into_iter();
        let granted = told.map(|(id, answer)| match answer {
            Answer::Granted(_) => id,
            other => panic!("{id:?} was told {other:?}"),
        });
        assert_eq!(granted.collect::<Vec<_>>(), expected);
    }

    /// The owner has the lock, and was told.
    fn held_by(&mut self, key: KeyRef<'_>, ask: Ask) -> FencingToken {
        let (id, token) = self.take_withheld(key, ask);
        assert_eq!(self.settle(), [(id, Answer::Granted(token))]);
        token
    }
}

fn unsafe_to_say(id: WaiterId) -> (WaiterId, Answer) {
    (id, Answer::Refused(LockError::NoReplicas))
}

#[test]
fn a_grant_is_told_once_a_replica_has_acknowledged_it() {
    let mut server = Server::replicated();
    server.end_turn();
    let (id, token) = server.take_withheld(K, ask("a").now());
    assert_eq!(server.holds(K, "a"), 1, "it is written at once");
    let before = server.offset;
    assert_eq!(
        server.acknowledge(&[before + 1000]),
        [],
        "its offset is not known"
    );
    let offset = server.end_turn();
    assert_eq!(server.acknowledge(&[before]), []);
    assert_eq!(server.acknowledge(&[offset - 1]), []);
    let told = server.acknowledge(&[offset]);
    assert_eq!(told, [(id, Answer::Granted(token))]);
    server.release(K, "a");
    server.check_nothing_is_left();
}

#[test]
fn whoever_sees_the_lock_ends_what_is_withheld_from_places_that_have_ended() {
    let mut server = Server::replicated();
    server.held_by(K, ask("x").by(1).now());
    for n in 0..=8 {
        let asks = ask(&nth(n)).shared().place().by(7).session();
        server.wait_for(K, asks, 60_000);
    }
    server.wait(K, ask("b"));
    server.release(K, "x");
    assert_eq!(server.holders(K).len(), 8 + 1);
    server.disconnect(7);
    server.asks_by(ClientId(2));
    assert!(!server.renew(K, "y", LEASE_MS));
    assert_eq!(server.holders(K), ["b"]);
}

#[test]
fn a_place_for_a_hold_that_does_not_fit_any_more_is_refused() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    server.pause_grants();
    let asks = ask("a").place().hold(2);
    let place = server.wait_for(K, asks, 60_000);
    server.release(K, "a");
    server.resume_grants();
    server.run();
    let error = LockError::HoldCount { wanted: 2, held: 0 };
    assert_eq!(server.refused(), [(place, error)]);
    server.check_nothing_is_left();
}

#[test]
fn a_place_that_ends_with_its_session_while_it_is_withheld_is_told_so() {
    let mut server = Server::replicated();
    server.held_by(K, ask("x").by(1).now());
    let places = ["a", "b"].map(|name| {
        let asks = ask(name).place().by(7).session();
        server.wait_for(K, asks, 60_000)
    });
    server.release(K, "x");
    assert_eq!(server.holders(K), ["a"]);
    server.disconnect(7);
    assert_eq!(server.wake_at_ms(), Some(0));
    let told = places.map(|id| (id, Answer::NotGranted));
    assert_eq!(server.give_up(), told);
    server.run();
    assert_eq!(server.holders(K), [""; 0]);
    assert_eq!(server.settle(), []);
    server.check_nothing_is_left();
}

#[test]
fn a_place_that_was_told_is_bound_for_all_of_its_first_lease() {
    let mut server = Server::replicated();
    server.held_by(K, ask("x").by(1).now());
    let asks = ask("a").place().by(7).session();
    let place = server.wait_for(K, asks, 60_000);
    server.release(K, "x");
    server.settles_grants([place]);
    let claim_ms = server.table.settings.claim_timeout_ms + TIMEOUT_MS;
    let bound = |server: &Server| server.table.bound_client(K, &owner("a"));
    server.pass(claim_ms);
    assert_eq!(bound(&server), Some(ClientId(7)));
    server.pass(1);
    assert_eq!(bound(&server), None);
    assert!(server.table.to_close.is_empty());
}

#[test]
fn what_is_still_to_be_told_is_told_where_writes_are_refused() {
    let mut server = withheld_from_a_session(1);
    let key = key("n00000");
    server.disconnect(7);
    let (reply, token) = server.take_withheld(key, ask("b").now());
    let is_anything_left = |server: &mut Server| {
        let now = server.now();
        server.table.put_off_everything(now, 64).is_some()
    };
    // The end of a place, when nothing else is left.
    assert_eq!(server.settle(), [(reply, Answer::Granted(token))]);
    assert!(is_anything_left(&mut server));
    assert_eq!(server.give_up().len(), 1);
    assert!(!is_anything_left(&mut server));
    // A reply that replicas may take too long for.
    server.take_withheld(key, ask("b").hold(1).now());
    assert!(is_anything_left(&mut server));
    server.settle();
    assert!(!is_anything_left(&mut server));
}

#[test]
fn many_places_that_end_while_they_are_withheld_are_told_bit_by_bit() {
    const MANY: usize = 100;
    let mut server = withheld_from_a_session(MANY);
    server.disconnect(7);
    let now = server.now();
    server.table.end_some_gone(MANY);
    let mut give_up = || server.table.give_up(now, MANY / 2).len();
    assert_eq!([give_up(), give_up(), give_up()], [MANY / 2, MANY / 2, 0]);
    server.run();
    server.check_nothing_is_left();
}

/// Grants to places of one session are withheld, each of a lock of its own.
fn withheld_from_a_session(count: usize) -> Server {
    let mut server = Server::replicated();
    for n in 0..count {
        let name = nth(n);
        server.held_by(key(&name), ask("x").by(1).now());
        let asks = ask("a").place().by(7).session();
        server.wait_for(key(&name), asks, 60_000);
    }
    for n in 0..count {
        server.release(key(&nth(n)), "x");
    }
    server
}

#[test]
fn a_place_that_has_ended_is_told_so_acknowledged_or_not() {
    for in_time in [true, false] {
        let mut server = withheld_from_a_session(2);
        let offset = server.end_turn();
        if !in_time {
            server.sleep(TIMEOUT_MS);
        }
        server.disconnect(7);
        if in_time {
            let (replies, _) = server.table.acknowledged(1, vec![offset], usize::MAX);
            assert_eq!(replies, []);
        }
        let told = server.give_up();
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|(_, answer)| *answer == Answer::NotGranted));
        assert_eq!(server.metrics().replies_unacknowledged, 0);
        server.run();
        server.check_nothing_is_left();
    }
}

/// `count` owners share a lock by places of one session, and one by itself. They were not
/// told.
fn shared_by_a_session(count: usize) -> Server {
    let mut server = Server::replicated();
    server.held_by(L, ask("a").by(2).now());
    server.held_by(K, ask("w").by(1).now());
    let places = (0..count).map(|n| ask(&nth(n)).place().by(7).session());
    for asks in places.chain([ask("z").place().by(8).session()]) {
        server.wait_for(K, asks.shared(), 60_000);
    }
    server.release(K, "w");
    server.run();
    assert_eq!(server.holders(K).len(), count + 1);
    server
}

#[test]
fn a_crowd_of_places_that_have_ended_keeps_nobody_out() {
    for breaks in [false, true] {
        for is_one_left in [false, true] {
            let mut server = shared_by_a_session(2 * ENDS_A_STEP + 1);
            if !is_one_left {
                server.disconnect(8);
            }
            server.disconnect(7);
            if breaks {
                assert_eq!(server.break_lock(K, None), is_one_left);
            } else {
                let taken = server.acquire(K, ask("x").now()).unwrap();
                assert_eq!(taken == Acquired::Busy, is_one_left);
            }
        }
    }
}

#[test]
fn places_that_have_ended_make_no_cycle() {
    for has_ended in [false, true] {
        let mut server = shared_by_a_session(2 * ENDS_A_STEP + 1);
        server.wait(K, ask("a").by(3));
        if has_ended {
            server.disconnect(7);
        }
        let last = nth(2 * ENDS_A_STEP);
        let waits = server.acquire(L, ask(&last).by(4));
        assert_eq!(server.questions, 1);
        match has_ended {
            true => assert!(matches!(waits, Ok(Acquired::Queued(_))), "{waits:?}"),
            false => assert!(matches!(waits, Err(LockError::Deadlock { .. }))),
        }
    }
}

#[test]
fn the_end_of_a_connection_concerns_only_what_is_withheld_from_it() {
    const MANY: u64 = 10_000;
    let mut server = Server::replicated();
    let names: Vec<String> = (0..MANY).map(|n| n.to_string()).collect();
    for (name, client) in names.iter().zip(MANY..) {
        server.held_by(key(name), ask("x").by(1).now());
        let place = ask("a").place().by(client);
        let place = if client % 2 == 0 {
            place.session()
        } else {
            place
        };
        server.wait_for(key(name), place, 60_000);
    }
    for name in &names {
        server.release(key(name), "x");
    }
    server.take_withheld(K, ask("b").by(2).now());
    let concerned = |server: &Server, client| {
        let outbox = &server.table.outbox;
        outbox.any_of(ClientId(client)).is_some()
    };
    let counts = [1, 2, MANY, MANY + 1].map(|client| concerned(&server, client));
    assert_eq!(counts, [false, true, true, false]);
    server.disconnect(1);
    assert_eq!(server.give_up(), []);
    server.disconnect(MANY);
    assert_eq!(server.give_up().len(), 1);
    assert_eq!(server.settle().len() as u64, MANY);
    let left = (0..2 * MANY).find(|client| concerned(&server, *client));
    assert_eq!(left, None);
}

#[test]
fn as_many_replicas_as_asked_for_have_to_acknowledge_it() {
    let mut server = Server::replicated();
    server.needs(2);
    let (id, token) = server.take_withheld(K, ask("a").now());
    let offset = server.end_turn();
    assert_eq!(server.acknowledge(&[offset]), []);
    assert_eq!(server.acknowledge(&[offset - 1, offset]), []);
    let told = server.acknowledge(&[offset, 0, offset + 5]);
    assert_eq!(told, [(id, Answer::Granted(token))]);
}

#[test]
fn all_that_was_withheld_in_one_turn_waits_for_one_offset() {
    let mut server = Server::replicated();
    let first = server.take_withheld(K, ask("a").now()).0;
    let second = server.take_withheld(L, ask("b").now()).0;
    let offset = server.end_turn();
    let third = server.take_withheld(M, ask("c").now()).0;
    server.end_turn();
    let ids =
        |told: Vec<(WaiterId, Answer)>| told.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(server.acknowledge(&[offset])), [first, second]);
    let offset = server.offset;
    assert_eq!(ids(server.acknowledge(&[offset])), [third]);
}

#[test]
fn what_is_not_acknowledged_in_time_is_given_back_and_the_next_is_asked() {
    let mut server = Server::replicated();
    let (id, token) = server.take_withheld(K, ask("a").now());
    server.end_turn();
    let next = server.wait(K, ask("b"));
    server.sleep(TIMEOUT_MS - 1);
    assert_eq!(server.give_up(), []);
    server.sleep(1);
    assert_eq!(server.give_up(), [unsafe_to_say(id)]);
    assert_eq!(server.holders(K), ["a"], "nothing is written yet");
    server.run();
    assert_eq!(server.holders(K), ["b"]);
    assert!(server.token(K, "b") > token);
    let (told, answer) = server.settle().remove(0);
    assert_eq!(told, next);
    assert!(matches!(answer, Answer::Granted(_)));
    server.release(K, "b");
    server.check_nothing_is_left();
}

#[test]
fn a_step_of_the_wall_clock_neither_hurries_replicas_nor_gives_them_longer() {
    for step_ms in [-3_600_000, 3_600_000] {
        let mut server = Server::replicated();
        let asks = ask("a").lease(2 * 3_600_000).now();
        let (id, _) = server.take_withheld(K, asks);
        let waiter = server.wait(K, ask("b"));
        server.sleep(100);
        server.set_clock(step_ms);
        server.sleep(TIMEOUT_MS - 101);
        assert_eq!(server.give_up(), []);
        server.sleep(1);
        assert_eq!(server.give_up(), [unsafe_to_say(id)]);
        server.leave(waiter);
        server.run();
        server.check_nothing_is_left();
    }
}

#[test]
fn the_next_request_sees_what_was_given_back() {
    let mut server = Server::replicated();
    let id = server.take_withheld(K, ask("a").hold(1).now()).0;
    server.sleep(TIMEOUT_MS);
    assert_eq!(server.give_up(), [unsafe_to_say(id)]);
    let again = server.take_withheld(K, ask("a").hold(1).now()).0;
    assert_eq!(server.holds(K, "a"), 1);
    server.settles_grants([again]);
}

#[test]
fn a_request_that_confirmed_a_hold_takes_none_back() {
    let mut server = Server::replicated();
    let token = server.held_by(K, ask("a").hold(1).now());
    let (id, same) = server.take_withheld(K, ask("a").hold(1).lease(2 * LEASE_MS).now());
    assert_eq!(same, token);
    server.sleep(TIMEOUT_MS);
    assert_eq!(server.give_up(), [unsafe_to_say(id)]);
    server.run();
    assert_eq!(server.holds(K, "a"), 1);
}

#[test]
fn what_is_withheld_and_writes_nothing_has_the_stream_go_on() {
    let mut server = Server::replicated();
    server.take_withheld(K, ask("a").hold(1).now());
    assert!(!server.stream_goes_on);
    server.take_withheld(K, ask("a").hold(1).now());
    assert!(server.effects.is_empty() && server.stream_goes_on);
    server.take_withheld(K, ask("a").hold(1).lease(2 * LEASE_MS).now());
    assert!(!server.stream_goes_on);
    server.asks_by(ClientId(7));
    assert!(!server.renew(K, "b", LEASE_MS));
    assert!(!server.stream_goes_on);
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
    let mut server = Server::replicated();
    server.held_by(K, ask("a").hold(1).now());
    server.pause_grants();
    let waiter = server.wait(K, ask("a").hold(1));
    server.resume_grants();
    server.run();
    assert!(server.effects.is_empty() && server.stream_goes_on);
    server.settles_grants([waiter]);
}

#[test]
fn a_renewal_that_is_told_keeps_what_a_lost_grant_was_to_tell_of() {
    for is_taken_over in [false, true] {
        let mut server = Server::replicated();
        let (mut grant, _) = server.take_withheld(K, ask("a").by(1).now());
        let renewal = server.renew_withheld("a", 2, LEASE_MS);
        let offset = server.end_turn();
        if is_taken_over {
            grant = server.take_withheld(K, ask("a").by(3).now()).0;
        }
        let (replies, _) = server.table.acknowledged(1, vec![offset], usize::MAX);
        let mut told = Vec::new();
        for (id, key) in replies {
            let answer = server.tell(id, key.as_ref());
            told.extend(answer.map(|answer| (id, answer)));
        }
        assert_eq!(told.last(), Some(&(renewal, Answer::Renewed(true))));
        // Its client is gone by now.
        server.table.waiter_left(grant, WaitEnd::Gone, server.ms());
        server.run();
        assert_eq!(server.holds(K, "a"), 1, "taken over: {is_taken_over}");
    }
}

#[test]
fn a_release_after_a_renewal_that_is_not_told_yet_counts_for_it() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").by(1).now());
    server.take_withheld(K, ask("a").by(1).now());
    let renewal = server.renew_withheld("a", 2, LEASE_MS);
    server.release(K, "a");
    let (again, _) = server.take_withheld(K, ask("a").by(1).now());
    assert_eq!(server.holds(K, "a"), 2);
    server.told();
    let told = server.settle();
    assert!(told.contains(&(renewal, Answer::Renewed(true))), "{told:?}");
    assert!(told.iter().any(|(id, _)| *id == again));
}

#[test]
fn a_release_answers_a_grant_that_is_not_told_yet() {
    for lease_ms in [10, LEASE_MS] {
        let mut server = Server::replicated();
        let (id, _) = server.take_withheld(K, ask("a").by(1).lease(lease_ms).now());
        server.sleep(20);
        let released = server.release_as(K, "a", ReleaseExtent::One, None);
        let expected = match lease_ms {
            10 => Released::NotHeld,
            _ => Released::LastHold,
        };
        assert_eq!(released, Ok(expected));
        assert_eq!(server.told(), [(id, Answer::NotGranted)]);
        assert_eq!(server.settle(), []);
        server.check_nothing_is_left();
    }
}

#[test]
fn what_is_handed_to_a_waiter_is_withheld_too() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    let waiter = server.wait(K, ask("b"));
    server.release(K, "a");
    assert_eq!(server.told(), []);
    assert_eq!(server.holders(K), ["b"]);
    let token = server.token(K, "b");
    assert_eq!(server.settle(), [(waiter, Answer::Granted(token))]);
}

#[test]
fn the_wait_for_the_lock_is_bounded_and_not_that_for_replicas() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    let [b, c] = ["b", "c"].map(|name| server.wait_for(K, ask(name), 100));
    server.sleep(50);
    server.release(K, "a");
    server.sleep(50);
    assert_eq!(server.give_up(), [(c, Answer::NotGranted)]);
    server.sleep(TIMEOUT_MS - 51);
    server.settles_grants([b]);
    server.release(K, "b");
    server.check_nothing_is_left();
}

#[test]
fn a_renewal_is_told_once_it_is_acknowledged_and_its_lease_stays() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    let id = server.renew_withheld("a", 7, 2 * LEASE_MS);
    assert_eq!(server.settle(), [(id, Answer::Renewed(true))]);
    let id = server.renew_withheld("a", 7, 3 * LEASE_MS);
    server.sleep(TIMEOUT_MS);
    assert_eq!(server.give_up(), [unsafe_to_say(id)]);
    server.run();
    assert_eq!(server.holds(K, "a"), 1);
    let ends_ms = server.lock(K).expires_at_ms;
    assert_eq!(ends_ms, Some(server.ms() - TIMEOUT_MS + 3 * LEASE_MS));
    server.release(K, "a");
    server.check_nothing_is_left();
}

#[test]
fn a_renewal_of_nothing_is_told_at_once() {
    let mut server = Server::replicated();
    server.asks_by(ClientId(1));
    assert!(!server.renew(K, "a", LEASE_MS));
    assert_eq!(server.withheld, None);
}

#[test]
fn what_has_ended_meanwhile_is_not_told() {
    let ends: [fn(&mut Server); 5] = [
        // The same owner holds it by other means.
        |server| server.write(K, |value| value.remove(TOKEN_FIELD)),
        |server| server.release(K, "a"),
        |server| assert!(server.break_lock(K, None)),
        |server| server.delete(K),
        |server| server.overwrite(K),
    ];
    for (nth, end) in ends.into_iter().enumerate() {
        let mut server = Server::replicated();
        let grant = server.take_withheld(K, ask("a").by(1).now()).0;
        let renewal = server.renew_withheld("a", 2, LEASE_MS);
        end(&mut server);
        let nothing = [
            (grant, Answer::NotGranted),
            (renewal, Answer::Renewed(false)),
        ];
        let mut told = server.told();
        told.extend(server.settle());
        assert_eq!(told, nothing, "end {nth}");
    }
}

#[test]
fn a_token_whose_lease_is_over_is_not_told() {
    let mut server = Server::replicated();
    let id = server.take_withheld(K, ask("a").lease(10).now()).0;
    server.sleep(11);
    assert_eq!(server.settle(), [(id, Answer::NotGranted)]);
}

#[test]
fn a_hold_of_a_later_token_does_not_stand_for_an_earlier_one() {
    let mut server = Server::replicated();
    let first = server.take_withheld(K, ask("a").by(1).now()).0;
    server.delete(K);
    let (second, token) = server.take_withheld(K, ask("a").by(2).now());
    let superseded = Answer::Refused(LockError::Superseded);
    assert_eq!(server.told(), [(first, superseded)]);
    assert_eq!(server.settle(), [(second, Answer::Granted(token))]);
    assert_eq!(server.holds(K, "a"), 1);
}

#[test]
fn a_later_request_has_what_replicas_have_not_acknowledged() {
    let mut server = Server::replicated();
    let (first, token) = server.take_withheld(K, ask("a").by(1).now());
    let (second, same) = server.take_withheld(K, ask("a").by(2).now());
    let superseded = Answer::Refused(LockError::Superseded);
    assert_eq!((server.told(), same), (vec![(first, superseded)], token));
    assert_eq!(server.holds(K, "a"), 1);
    // Neither was told of any hold.
    let now_ms = server.ms();
    let left = server.table.waiter_left(second, WaitEnd::TimeUp, now_ms);
    assert_eq!(left, Some(Answer::Refused(LockError::NoReplicas)));
    server.run();
    assert_eq!(server.holders(K), [""; 0]);
    assert!(!server.table.awaits_replicas());
}

#[test]
fn an_unblocked_client_is_told_that_it_is_not_safe() {
    let mut server = Server::replicated();
    let id = server.take_withheld(K, ask("a").now()).0;
    let now_ms = server.ms();
    let told = server.table.waiter_left(id, WaitEnd::TimeUp, now_ms);
    assert_eq!(told, Some(Answer::Refused(LockError::NoReplicas)));
    server.run();
    assert_eq!(server.holders(K), [""; 0]);
    assert_eq!(server.metrics().wait_timeouts, 0);
    assert_eq!(server.metrics().replies_unacknowledged, 1);
}

#[test]
fn on_demotion_nothing_waits_for_replicas_any_more() {
    let mut server = Server::replicated();
    server.take_withheld(K, ask("a").now());
    server.table.forget_connections(4);
    assert!(!server.table.awaits_replicas());
    assert!(!server.table.remembers_holds());
}

#[test]
fn when_no_replica_is_needed_any_more_all_is_told() {
    let mut server = Server::replicated();
    let (id, token) = server.take_withheld(K, ask("a").now());
    server.end_turn();
    server.table.settings.acks = None;
    assert_eq!(server.acknowledge(&[]), [(id, Answer::Granted(token))]);
}

#[test]
fn who_cannot_wait_for_replicas_is_refused_and_nothing_changes() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    let mut refused = |ask: Ask, key| {
        server.effects = Effects::new();
        let stored = &mut server.look_for(key).unwrap();
        server.table.settings.acks.as_mut().unwrap().client = None;
        let result = server.step(key, |table, now, world, done| {
            table.step(key, stored, now, world, done, |step| {
                step.acquire(ask.request, None)
            })
        });
        assert!(server.effects.is_empty());
        result
    };
    let cannot_wait = Err(LockError::CannotAwaitReplicas);
    assert_eq!(refused(ask("b"), L), cannot_wait);
    assert_eq!(refused(ask("a"), K), cannot_wait);
    assert_eq!(refused(ask("b"), K), Ok(Acquired::Busy));
}

#[test]
fn with_too_few_replicas_who_would_not_wait_is_told_so_in_its_turn_alone() {
    let mut server = Server::replicated();
    server.connected(0);
    let reader = || ask("r").shared().now();
    assert_eq!(server.acquire(K, reader()), Err(LockError::NoReplicas));
    server.wait(K, ask("b").shared());
    assert_eq!(server.acquire(K, reader()), Ok(Acquired::Busy));
}

#[test]
fn with_too_few_replicas_who_waits_waits_on() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    let waiter = server.wait(K, ask("b"));
    server.connected(0);
    let refused = Err(LockError::NoReplicas);
    assert_eq!(server.acquire(L, ask("c").now()), refused);
    // A null would say that somebody else holds it.
    assert_eq!(server.acquire(K, ask("a").hold(1)), refused);
    let patient = server.wait(L, ask("c"));
    server.release(K, "a");
    server.run();
    assert!(server.holders(K).is_empty() && server.holders(L).is_empty());
    server.connected(1);
    server.table.everything_touched();
    server.run();
    let mut told: Vec<WaiterId> = server.settle().into_iter().map(|(id, _)| id).collect();
    told.sort();
    assert_eq!(told, [waiter, patient]);
}

#[test]
fn with_too_few_replicas_nothing_is_renewed() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").now());
    server.connected(0);
    let before = server.lock(K);
    let request = RenewRequest {
        owner: owner("a"),
        lease: lease(2 * LEASE_MS),
        token: None,
    };
    let renewed = server.try_renew(K, &request);
    assert_eq!(renewed, Err(LockError::NoReplicas));
    assert_eq!(server.lock(K), before);
}

#[test]
fn a_hold_without_a_token_gets_it_by_a_renewal_and_can_be_told_of() {
    let mut server = Server::replicated();
    let end_ms = START_MS + LEASE_MS;
    server.put(K, Value::by_redisson(&owner("a"), end_ms));
    let id = server.renew_withheld("a", 1, 2 * LEASE_MS);
    assert!(server.lock(K).last_token.is_some());
    assert_eq!(server.settle(), [(id, Answer::Renewed(true))]);
    server.release(K, "a");
    server.check_nothing_is_left();
}

#[test]
fn a_session_is_kept_up_by_leases_that_are_acknowledged() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").session().now());
    for _ in 0..10 {
        server.pass(LEASE_MS / 3);
        server.settle();
    }
    assert_eq!(server.holders(K), ["a"]);
    assert!(server.table.to_close.is_empty());
    assert!(server.steps < 20, "{} looks", server.steps);
}

#[test]
fn a_session_whose_leases_are_not_acknowledged_is_closed_in_time() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").session().now());
    let client = ask("a").client;
    server.pass(LEASE_MS - 21);
    assert!(server.table.to_close.is_empty());
    server.pass(2);
    assert_eq!(server.table.take_clients_to_close(9), [client]);
    assert_eq!(server.holders(K), ["a"], "what is stored was renewed");
}

#[test]
fn a_re_entry_that_is_not_acknowledged_keeps_no_session_up() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").session().now());
    server.sleep(1000);
    server.take_withheld(K, ask("a").lease(9 * LEASE_MS).now());
    server.sleep(1000);
    server.renew_withheld("a", 2, 9 * LEASE_MS);
    server.sleep(LEASE_MS - 2000 - 20);
    server.give_up();
    server.pass(1);
    assert_eq!(server.table.to_close, [ask("a").client].into());
}

#[test]
fn a_renewal_ends_longer_leases_that_are_not_acknowledged_yet() {
    let mut server = Server::replicated();
    server.held_by(K, ask("a").session().lease(1500).now());
    server.take_withheld(K, ask("a").lease(60_000).by(2).now());
    server.end_turn();
    server.renew_withheld("a", 3, 1500);
    server.settle();
    let bound = server.table.sessions.binding_of(K, &owner("a")).unwrap();
    assert_eq!(bound.kept_until_ms, server.ms() + 1500);
}

/// An owner's session was told, and it asks again by two other connections. The first of
/// these requests is taken over.
fn asked_again_by_two(lease_ms: i64) -> (Server, ClientId, WaiterId) {
    let mut server = Server::replicated();
    let first = ask("a").session().lease(lease_ms);
    let client = first.client;
    server.held_by(K, first.now());
    let again = |by| ask("a").session().lease(lease_ms).hold(1).by(by).now();
    let [second, third] = [7, 8].map(|by| server.take_withheld(K, again(by)).0);
    let superseded = Answer::Refused(LockError::Superseded);
    assert_eq!(server.told(), [(second, superseded)]);
    (server, client, third)
}

#[test]
fn a_session_stays_with_who_was_told_of_it() {
    for ended in [7, 8] {
        let (mut server, client, third) = asked_again_by_two(9 * LEASE_MS);
        let bound = |server: &Server| server.table.bound_client(K, &owner("a"));
        assert_eq!(bound(&server), Some(client));
        server.disconnect(ended);
        server.sleep(TIMEOUT_MS);
        let told = if ended == 8 {
            vec![]
        } else {
            vec![unsafe_to_say(third)]
        };
        assert_eq!(server.give_up(), told);
        server.run();
        assert_eq!(bound(&server), Some(client));
        assert_eq!(server.holds(K, "a"), 1);
        server.table.connection_ended(client);
        server.run();
        server.check_nothing_is_left();
    }
}

#[test]
fn a_session_that_ends_is_over_unless_the_next_one_is_told() {
    for (ends_before, is_told) in [(false, true), (true, true), (true, false)] {
        let (mut server, client, third) = asked_again_by_two(9 * LEASE_MS);
        let end_first = |server: &mut Server| {
            server.table.connection_ended(client);
            server.run();
            assert_eq!(server.holds(K, "a"), 1);
        };
        if ends_before {
            end_first(&mut server);
        }
        if is_told {
            server.settles_grants([third]);
            let bound = server.table.bound_client(K, &owner("a"));
            assert_eq!(bound, Some(ClientId(8)));
            if !ends_before {
                end_first(&mut server);
            }
            server.disconnect(8);
        } else {
            server.sleep(TIMEOUT_MS);
            assert_eq!(server.give_up(), [unsafe_to_say(third)]);
        }
        server.run();
        server.check_nothing_is_left();
    }
}

#[test]
fn a_session_is_closed_in_time_where_the_next_one_is_not_told() {
    let (mut server, client, _) = asked_again_by_two(LEASE_MS);
    server.sleep(TIMEOUT_MS);
    server.give_up();
    server.pass(LEASE_MS - TIMEOUT_MS - 21);
    assert!(server.table.to_close.is_empty());
    server.pass(2);
    assert_eq!(server.table.take_clients_to_close(9), [client]);
}

#[test]
fn silent_replicas_do_not_make_memory_grow() {
    let mut server = Server::replicated();
    for _ in 0..1000 {
        server.take_withheld(K, ask("a").now());
        server.end_turn();
        server.sleep(TIMEOUT_MS);
        server.give_up();
    }
    server.run();
    server.check_nothing_is_left();
}

#[test]
fn nor_do_they_behind_the_lease_of_a_session() {
    let mut server = Server::replicated();
    server.held_by(L, ask("s").session().lease(1_000_000_000).now());
    server.pass(400_000_000);
    assert!(server.table.awaits_replicas());
    for _ in 0..1000 {
        server.take_withheld(K, ask("a").lease(TIMEOUT_MS / 2).now());
        server.end_turn();
        server.sleep(TIMEOUT_MS);
        server.give_up();
    }
    assert!(server.table.acks.in_line() < 200);
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
