use super::*;
use crate::token::TOKEN_MAX;

const CLAIM_MS: i64 = 2000;

/// `x` holds the lock.
fn held() -> Server {
    let mut server = Server::new();
    server.take(K, ask("x"));
    server
}

/// A session of `a` was told its grant, and has not claimed it.
fn unclaimed_session() -> Server {
    let mut server = held();
    server.wait_for(K, ask("a").place().by(7).session(), 60_000);
    server.release(K, "x");
    server
}

/// How long the lease of the first holder lasts.
fn lease_left_ms(server: &Server) -> i64 {
    let ends_ms = server.lock(K).holders()[0].lease_end_ms;
    ends_ms.unwrap() - server.ms()
}

/// Has a place for this long at most.
#[track_caller]
fn place_for(server: &mut Server, name: &str, ms: i64) -> WaiterId {
    server.wait_for(K, ask(name).place(), ms)
}

fn order(server: &Server) -> Vec<String> {
    let view = server.table.view(K, Lock::default(), server.now());
    let names = view.waiters.iter();
    names
        .map(|one| String::from_utf8_lossy(one.request.owner.as_bytes()).into_owned())
        .collect()
}

#[test]
fn a_place_is_told_its_token_and_has_a_short_lease_until_it_is_claimed() {
    let mut server = held();
    let place = place_for(&mut server, "a", 60_000);
    server.release(K, "x");
    let token = server.token(K, "a");
    assert_eq!(server.told(), [(place, Answer::Granted(token))]);
    assert_eq!(server.offers, 1);
    assert_eq!(lease_left_ms(&server), CLAIM_MS);
    assert!(server.renew_as(K, "a", LEASE_MS, Some(token)));
    assert_eq!(server.metrics().claims, 1);
    server.sleep(CLAIM_MS + 1);
    server.give_up();
    assert_eq!(server.metrics().grants_unclaimed, 0);
    assert_eq!(server.holds(K, "a"), 1);
    server.release(K, "a");
    server.check_nothing_is_left();
}

#[test]
fn nothing_is_left_to_be_claimed_of_a_crowd_that_has_ended() {
    let ends: [fn(&mut Server); 2] = [
        |server| server.table.connection_ended(ClientId(7)),
        |server| assert!(server.break_lock(K, None)),
    ];
    for end in ends {
        let mut server = held();
        for n in 0..2 * ENDS_A_STEP {
            let asks = ask(&nth(n)).shared().place().by(7).session();
            server.wait_for(K, asks, 60_000);
        }
        server.release(K, "x");
        server.run();
        assert_eq!(server.holders(K).len(), 2 * ENDS_A_STEP);
        end(&mut server);
        server.take(K, ask("y").now());
        server.release(K, "y");
        assert!(server.table.unclaimed.is_empty());
        server.disconnect(7);
        server.give_up();
        server.run();
        server.check_nothing_is_left();
    }
}

#[test]
fn the_first_lease_of_a_place_is_no_longer_than_it_asked_for() {
    let mut server = held();
    server.wait_for(K, ask("a").place().lease(500), 60_000);
    server.release(K, "x");
    assert_eq!(lease_left_ms(&server), 500);
    assert_eq!(server.first_lease_ms(), 500);
}

#[test]
fn a_message_tells_the_lease_with_which_a_grant_begins() {
    let mut server = held();
    server.wait_for(K, ask("a").place().lease(60_000), 60_000);
    server.wait_for(K, ask("b").place().lease(60_000), 60_000);
    server.release(K, "x");
    assert_eq!(server.first_lease_ms(), CLAIM_MS);
    server.table.settings.max_lease = Lease::from_ms(700).unwrap();
    server.release(K, "a");
    assert_eq!(server.first_lease_ms(), 700);
}

#[test]
fn an_unclaimed_grant_ends_and_the_next_is_asked() {
    let mut server = held();
    place_for(&mut server, "a", 60_000);
    let b = server.wait(K, ask("b"));
    server.release(K, "x");
    server.told();
    server.pass(CLAIM_MS + 1);
    assert_eq!(server.granted(), [b]);
    server.give_up();
    assert_eq!(server.metrics().grants_unclaimed, 1);
    server.release(K, "b");
    server.check_nothing_is_left();
}

#[test]
fn a_place_of_which_nobody_hears_is_granted_nothing() {
    let mut server = held();
    for name in ["a", "b"] {
        place_for(&mut server, name, 60_000);
    }
    let c = server.wait(K, ask("c"));
    server.listens = false;
    let before = server.token(K, "x");
    server.release(K, "x");
    assert_eq!(server.granted(), [c]);
    assert_eq!(server.metrics().places_unheard, 2);
    assert_eq!(server.metrics().hand_offs, 1);
    // As many tokens were given as there were grants.
    assert_eq!(server.token(K, "c").get(), before.get() + 1);
    server.release(K, "c");
    server.check_nothing_is_left();
}

#[test]
fn places_of_which_nobody_hears_are_given_up_in_portions() {
    let mut server = held();
    let count = 2 * UNHEARD_A_STEP + 1;
    for n in 0..count {
        place_for(&mut server, &nth(n), 60_000);
    }
    server.listens = false;
    server.release(K, "x");
    assert_eq!(server.offers, UNHEARD_A_STEP);
    assert_eq!(server.wake_at_ms(), Some(server.ms()));
    assert!(server.do_one());
    assert_eq!(server.offers, 2 * UNHEARD_A_STEP);
    server.run();
    assert_eq!(server.offers, count);
    server.check_nothing_is_left();
}

#[test]
fn who_asks_again_takes_over_what_it_asks_for_now() {
    let mut server = held();
    let asks = ask("a").place().lease(100);
    server.wait_for(K, asks, 1000);
    let mut again = ask("a").place().by(7).session();
    again.channel = Some((*b"another").into());
    server.wait_for(K, again, 60_000);
    let place = server.table.queues.waiter_of(K, &owner("a")).unwrap();
    assert_eq!(place.wait.client, ClientId(7));
    let view = server.table.view(K, Lock::default(), server.now());
    let [waiter] = &view.waiters[..] else {
        panic!("{:?}", view.waiters);
    };
    assert_eq!(waiter.wait.channel.as_deref(), Some(&b"another"[..]));
    assert_eq!(waiter.left_ms(server.now()), 60_000);
    server.disconnect(7);
    assert!(order(&server).is_empty());
}

#[test]
fn who_asks_again_when_it_is_its_turn_is_replied_its_token() {
    let mut server = held();
    place_for(&mut server, "a", 60_000);
    let b = server.wait_for(K, ask("b").place().shared(), 60_000);
    server.listens = false;
    server.delete(K);
    let token = server.take(K, ask("a").place());
    assert_eq!((server.offers, server.told()), (0, vec![]));
    let lock = server.lock(K);
    let a = lock.holder(&owner("a")).unwrap();
    assert_eq!((a.token, a.holds), (Some(token), 1));
    assert_eq!(a.lease_end_ms, Some(server.ms() + LEASE_MS));
    assert_eq!(order(&server), ["b"]);
    // And one that is let in beside it.
    server.listens = true;
    server.delete(K);
    server.take(K, ask("c").place().shared());
    assert_eq!(server.granted(), [b]);
    assert_eq!(server.holders(K), ["b", "c"]);
}

#[test]
fn a_request_that_is_refused_leaves_a_place_as_it_is() {
    let mut server = held();
    server.wait_for(K, ask("a").place().lease(100), 60_000);
    let refused = server.acquire_until(K, ask("a").place().hold(2), Some(i64::MAX));
    assert!(matches!(refused, Err(LockError::HoldCount { .. })));
    server.release(K, "x");
    assert_eq!(lease_left_ms(&server), 100);
}

#[test]
fn a_place_ends_with_its_time() {
    let mut server = held();
    let a = place_for(&mut server, "a", 1000);
    let b = place_for(&mut server, "b", 60_000);
    assert_eq!(server.wake_at_ms(), Some(server.ms() + 500));
    server.sleep(1000);
    // It is over before anybody looks.
    assert_eq!(order(&server), ["b"]);
    server.release(K, "x");
    let token = server.token(K, "b");
    assert_eq!(server.told(), [(b, Answer::Granted(token))]);
    assert_eq!(server.give_up(), [(a, Answer::NotGranted)]);
    assert_eq!(server.metrics().wait_timeouts, 1);
}

#[test]
fn places_of_a_session_end_with_its_connection() {
    let mut server = held();
    let a = server.wait_for(K, ask("a").place().by(7).session(), 60_000);
    let b = server.wait_for(K, ask("b").place().by(7), 60_000);
    let now_ms = server.ms();
    server.disconnect(7);
    assert_eq!(server.wake_at_ms(), Some(0));
    assert_eq!(order(&server), ["b"]);
    assert_eq!(server.give_up(), [(a, Answer::NotGranted)]);
    server.release(K, "x");
    assert_eq!(server.holders(K), ["b"]);
    // Also where nobody looks at the lock.
    let a = server.wait_for(K, ask("a").place().by(8).session(), 60_000);
    server.disconnect(8);
    assert_eq!(server.give_up(), [(a, Answer::NotGranted)]);
    assert!(now_ms == server.ms() && a > b);
    server.release(K, "b");
    server.check_nothing_is_left();
}

#[test]
fn a_session_is_kept_up_once_it_is_claimed() {
    // A claim over another connection makes the hold outlive that of the place.
    for (claimed_by, outlives) in [(7, false), (8, true)] {
        let mut server = unclaimed_session();
        let token = server.token(K, "a");
        server.pass(CLAIM_MS / 2);
        assert_eq!(lease_left_ms(&server), CLAIM_MS / 2);
        let claim = RenewRequest {
            owner: owner("a"),
            lease: lease(LEASE_MS),
            token: Some(token),
        };
        server.asker = Some(ClientId(claimed_by));
        assert_eq!(server.try_renew(K, &claim), Ok(true));
        server.pass(3 * LEASE_MS);
        assert_eq!(server.holds(K, "a"), 1);
        server.disconnect(7);
        server.run();
        assert_eq!(server.holds(K, "a"), i64::from(outlives));
        server.pass(LEASE_MS);
        server.check_nothing_is_left();
    }
}

#[test]
fn an_unclaimed_session_ends_and_its_connection_stays() {
    let mut server = unclaimed_session();
    server.pass(CLAIM_MS + 1);
    server.expire();
    server.run();
    server.give_up();
    assert!(server.table.to_close.is_empty());
    assert_eq!(server.holders(K), [""; 0]);
    assert_eq!(server.metrics().grants_unclaimed, 1);
    server.check_nothing_is_left();
}

#[test]
fn there_are_no_more_places_than_allowed() {
    let mut server = held();
    server.table.settings.max_places = 1;
    let a = place_for(&mut server, "a", 60_000);
    let refused = server.acquire_until(K, ask("b").place(), Some(i64::MAX));
    assert_eq!(refused, Err(LockError::PlacesFull { max_places: 1 }));
    assert_eq!(server.metrics().queues_full, 1);
    // It has one already.
    assert_eq!(place_for(&mut server, "a", 60_000), a);
    server.wait_for(K, ask("a").place().shared(), 60_000);
    assert_eq!(server.table.places(), 1);
    server.wait(K, ask("b"));
}

/// Two places of a session in each of two queues, and one that lasts in each. The others
/// end by their time, or by their connection.
fn most_are_over(by_time: bool) -> (Server, Vec<WaiterId>) {
    let mut server = held();
    server.take(L, ask("y"));
    let mut over = Vec::new();
    for key in [L, K] {
        server.wait_for(key, ask("a").place(), 60_000);
        for name in ["b", "c"] {
            over.push(server.wait_for(key, ask(name).place().by(7).session(), 1000));
        }
    }
    server.end_places(by_time);
    (server, over)
}

#[test]
fn a_place_that_is_over_takes_no_other_place() {
    for by_time in [true, false] {
        let (mut server, over) = most_are_over(by_time);
        server.table.settings.max_places = 6;
        for name in ["d", "e", "f", "g"] {
            place_for(&mut server, name, 60_000);
        }
        let refused = server.acquire_until(K, ask("h").place(), Some(i64::MAX));
        assert_eq!(refused, Err(LockError::PlacesFull { max_places: 6 }));
        let mut told = server.told();
        told.sort_by_key(|(id, _)| *id);
        let ended = |id: &WaiterId| (*id, Answer::NotGranted);
        assert_eq!(told, over.iter().map(ended).collect::<Vec<_>>());
        assert_eq!(order(&server), ["a", "d", "e", "f", "g"]);
    }
}

#[test]
fn a_place_that_is_over_takes_no_room_in_its_queue() {
    for by_time in [true, false] {
        let (mut server, over) = most_are_over(by_time);
        server.table.settings.max_waiters = 3;
        server.wait(K, ask("d"));
        place_for(&mut server, "e", 60_000);
        let full = LockError::QueueFull { max_waiters: 3 };
        assert_eq!(server.acquire(K, ask("f")), Err(full));
        let ended = |id: &WaiterId| (*id, Answer::NotGranted);
        server.answers.sort_by_key(|(id, _)| *id);
        assert_eq!(server.told(), over.iter().map(ended).collect::<Vec<_>>());
        assert_eq!(order(&server), ["a", "d", "e"]);
    }
}

/// Who was granted the lock, among others that were not.
fn granted_of_all(server: &mut Server) -> Vec<WaiterId> {
    let told = server.told().into_iter();
    let granted = told.filter(|(_, answer)| *answer != Answer::NotGranted);
    granted.map(|(id, _)| id).collect()
}

/// Many places that end by their time, or by their connection, and three who wait behind
/// them.
fn many_are_over(by_time: bool) -> (Server, [WaiterId; 3]) {
    let mut server = held();
    for n in 0..GRANTS_A_STEP / 2 {
        server.wait_for(K, ask(&nth(n)).place().by(7).session(), 1000);
    }
    let blocked = server.wait(K, ask("a"));
    let place = place_for(&mut server, "b", 60_000);
    let last = server.wait(K, ask("c"));
    server.end_places(by_time);
    (server, [blocked, place, last])
}

#[test]
fn places_that_are_over_are_passed_over_at_once() {
    for by_time in [true, false] {
        let (mut server, waiters) = many_are_over(by_time);
        for (holder, next) in ["x", "a", "b"].into_iter().zip(waiters) {
            server.release(K, holder);
            assert_eq!(granted_of_all(&mut server), [next], "by time: {by_time}");
        }
        server.release(K, "c");
        server.give_up();
        server.run();
        server.told();
        server.check_nothing_is_left();
    }
}

#[test]
fn places_that_are_over_keep_out_no_newcomer() {
    for by_time in [true, false] {
        let (mut server, waiters) = many_are_over(by_time);
        server.leave(waiters[0]);
        server.leave(waiters[2]);
        server.release_as(K, "b", ReleaseExtent::One, None).unwrap();
        server.release(K, "x");
        server.take(K, ask("d").now());
    }
}

#[test]
fn who_waits_behind_a_crowd_of_places_that_are_over_is_found_bit_by_bit() {
    let mut server = held();
    for n in 0..2 * PASSED_A_STEP + 2 * GRANTS_A_STEP {
        server.wait_for(K, ask(&nth(n)).place(), 1000);
    }
    let a = server.wait(K, ask("a"));
    let b = server.wait(K, ask("b"));
    server.sleep(1001);
    server.release(K, "x");
    assert_eq!(granted_of_all(&mut server), []);
    assert!(server.do_one());
    assert_eq!(granted_of_all(&mut server), []);
    assert!(server.do_one());
    assert_eq!(granted_of_all(&mut server), [a]);
    // They are not looked at again.
    server.release(K, "a");
    assert_eq!(granted_of_all(&mut server), [b]);
}

#[test]
fn no_newcomer_passes_who_waits_behind_a_crowd_of_places_that_are_over() {
    let mut server = held();
    for n in 0..2 * PASSED_A_STEP {
        server.wait_for(K, ask(&nth(n)).place(), 1000);
    }
    let a = server.wait(K, ask("a"));
    server.sleep(1001);
    server.delete(K);
    assert_eq!(server.acquire(K, ask("y").now()), Ok(Acquired::Busy));
    server.run();
    assert_eq!(granted_of_all(&mut server), [a]);
}

#[test]
fn a_reader_is_let_in_past_a_writer_whose_place_is_over() {
    for by_time in [true, false] {
        let mut server = Server::new();
        server.take(K, ask("x").shared());
        server.wait_for(K, ask("w").place().by(7).session(), 1000);
        let reader = server.wait(K, ask("r").shared());
        server.end_places(by_time);
        server.renew(K, "x", LEASE_MS);
        assert_eq!(granted_of_all(&mut server), [reader]);
    }
}

#[test]
fn places_that_can_not_be_served_any_more_are_told_why() {
    let mut server = held();
    let [a, b] = ["a", "b"].map(|name| place_for(&mut server, name, 60_000));
    server.take(L, ask("y"));
    let c = server.wait_for(L, ask("c").place(), 60_000);
    let told = server.table.forget_places(&LockError::Unblocked, 1);
    let unblocked = Answer::Refused(LockError::Unblocked);
    let told = told
        .into_iter()
        .map(|(addressee, answer)| (addressee.id(), answer));
    assert_eq!(told.collect::<Vec<_>>(), [(a, unblocked)]);
    let told = server.table.forget_places(&LockError::Unblocked, 10);
    assert_eq!(told.len(), 2);
    assert_eq!(server.table.places(), 0);
    assert_eq!(server.metrics().waits_refused, 3);
    assert!(b < c);
    // A replica remembers nothing, and looks at no key.
    assert!(!server.table.follows_keys());
}

#[test]
fn a_place_to_which_nobody_listens_is_removed_and_the_others_keep_theirs() {
    let mut server = held();
    let ids = ["a", "b", "c"].map(|name| place_for(&mut server, name, 60_000));
    let places = server.table.places_of(K, 2);
    let found: Vec<WaiterId> = places.iter().map(|place| place.id).collect();
    assert_eq!(found, ids[..2]);
    let now_ms = server.ms();
    server
        .table
        .waiter_left(places[0].id, WaitEnd::Gone, now_ms);
    assert_eq!(order(&server), ["b", "c"]);
    server.release(K, "x");
    assert_eq!(server.granted(), [ids[1]]);
}

#[test]
fn a_release_that_ends_in_an_error_leaves_the_place() {
    let mut server = held();
    let place = place_for(&mut server, "a", 60_000);
    let refused = server.release_as(K, "a", ReleaseExtent::Hold(hold_number(2)), None);
    assert!(refused.is_err() && server.table.is_waiting(place));
}

#[test]
fn a_request_that_finds_the_queue_full_leaves_its_place() {
    let mut server = held();
    for name in ["a", "b", "c"] {
        place_for(&mut server, name, 60_000);
    }
    server.table.settings.max_places = 2;
    let shared = ask("a").place().shared();
    let refused = server.acquire_until(K, shared.clone(), Some(i64::MAX));
    assert!(matches!(refused, Err(LockError::PlacesFull { .. })));
    assert_eq!(order(&server), ["a", "b", "c"]);
    server.table.settings.max_places = 3;
    server.table.settings.max_waiters = 2;
    let refused = server.acquire_until(K, shared.clone(), Some(i64::MAX));
    assert!(matches!(refused, Err(LockError::QueueFull { .. })));
    assert_eq!(order(&server), ["a", "b", "c"]);
    // Its own place is room for it.
    server.table.settings.max_waiters = 3;
    server.wait_for(K, shared, 60_000);
    assert_eq!(order(&server), ["b", "c", "a"]);
}

#[test]
fn a_place_for_what_is_no_lock_any_more_is_told_so() {
    let mut server = held();
    let a = place_for(&mut server, "a", 60_000);
    server.overwrite(K);
    server.run();
    assert_eq!(server.refused(), [(a, LockError::WrongType)]);
}

#[test]
fn a_place_that_would_wait_for_ever_is_refused() {
    let mut server = held();
    server.take(L, ask("a"));
    place_for(&mut server, "a", 60_000);
    let refused = server.acquire_until(L, ask("x").place(), Some(i64::MAX));
    assert!(matches!(refused, Err(LockError::Deadlock { .. })));
    assert_eq!(server.table.places(), 1);
}

#[test]
fn a_place_for_a_hold_that_does_not_fit_is_refused_at_once() {
    let mut server = Server::new();
    server.pause_grants();
    let refused = server.acquire_until(K, ask("a").place().hold(2), Some(i64::MAX));
    assert!(matches!(refused, Err(LockError::HoldCount { .. })));
    assert_eq!(server.table.places(), 0);
}

#[test]
fn a_place_for_a_hold_that_does_not_fit_any_more_is_told_so_and_of_no_token() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.pause_grants();
    let place = server.wait_for(K, ask("a").place().hold(2), 60_000);
    let next = place_for(&mut server, "b", 60_000);
    server.release(K, "a");
    server.resume_grants();
    server.run();
    let error = LockError::HoldCount { wanted: 2, held: 0 };
    let told = server.told();
    assert!(told.contains(&(place, Answer::Refused(error))));
    assert!(told.contains(&(next, Answer::Granted(server.token(K, "b")))));
    assert_eq!((told.len(), server.offers), (2, 1));
}

#[test]
fn a_session_that_is_claimed_with_a_shorter_lease_is_kept_up() {
    let mut server = unclaimed_session();
    server.take(K, ask("a").place().by(7).session().lease(1000));
    server.pass(10_000);
    assert!(server.table.to_close.is_empty());
    assert_eq!(server.holds(K, "a"), 1);
    let client = server.table.bound_client(K, &owner("a"));
    assert_eq!(client, Some(ClientId(7)));
}

#[test]
fn a_grant_that_nobody_claims_is_unbound_where_writes_are_refused() {
    let mut server = unclaimed_session();
    assert_eq!(server.table.totals(server.now()).sessions, 1);
    server.sleep(CLAIM_MS + 1);
    server.table.put_off_everything(server.now(), 64);
    assert_eq!(server.table.totals(server.now()).sessions, 0);
    assert!(server.table.to_close.is_empty());
}

#[test]
fn a_place_that_ends_by_the_error_of_who_asks_is_told_so() {
    let mut server = held();
    let place = place_for(&mut server, "a", 60_000);
    server.pause_grants();
    server.release(K, "x");
    // Nobody can have a greater one.
    server.write(K, |value| value.set(TOKEN_FIELD, TOKEN_MAX));
    server.table.settings.may_grant = true;
    let error = server.acquire(K, ask("a").now()).unwrap_err();
    assert_eq!(server.told(), [(place, Answer::Refused(error))]);
    assert_eq!(server.table.places(), 0);
}

#[test]
fn a_place_lasts_as_long_whatever_the_wall_clock_shows() {
    for by_ms in [-3_600_000, 3_600_000] {
        let mut server = Server::new();
        server.take(K, ask("a").lease(9 * 3_600_000));
        let b = server.wait_for(K, ask("b").place(), 1000);
        server.sleep(500);
        server.set_clock(by_ms);
        server.pass(499);
        assert_eq!(server.told(), []);
        server.pass(1);
        assert_eq!(server.told(), [(b, Answer::NotGranted)]);
    }
}

#[test]
fn a_grant_can_be_claimed_as_long_as_it_lasts() {
    let mut server = unclaimed_session();
    let token = server.token(K, "a");
    server.pass(CLAIM_MS);
    assert!(server.renew_as(K, "a", LEASE_MS, Some(token)));
    assert_eq!(server.table.bound_client(K, &owner("a")), Some(ClientId(7)));
    assert_eq!(server.metrics().claims, 1);
}

#[test]
fn a_connection_that_did_not_claim_its_grant_is_not_closed_by_the_next_one() {
    let mut server = unclaimed_session();
    server.sleep(CLAIM_MS + 1);
    server.take(K, ask("a").place().by(8).session());
    assert!(server.table.to_close.is_empty());
    assert_eq!(server.table.bound_client(K, &owner("a")), Some(ClientId(8)));
}

#[test]
fn who_only_waited_behind_its_own_place_does_not_wait() {
    let mut server = Server::new();
    server.take(K, ask("a").shared());
    server.wait_for(K, ask("b").place(), 60_000);
    server.take(K, ask("b").place().shared());
    assert_eq!((server.told(), server.holds(K, "b")), (vec![], 1));
}

#[test]
fn a_place_that_is_over_is_told_so_if_the_later_request_is_refused() {
    for by_time in [true, false] {
        let mut server = held();
        let place = server.wait_for(K, ask("a").place().by(7).session(), 1000);
        server.end_places(by_time);
        let refused = server.acquire_until(K, ask("a").place().hold(2), Some(i64::MAX));
        assert!(matches!(refused, Err(LockError::HoldCount { .. })));
        assert_eq!(server.told(), [(place, Answer::NotGranted)]);
        assert_eq!(server.give_up(), []);
    }
}
