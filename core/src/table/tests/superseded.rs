//! One request at a time: a later one of the same owner takes the earlier one over.

use super::*;

fn superseded(id: WaiterId) -> (WaiterId, Answer) {
    (id, Answer::Refused(LockError::Superseded))
}

/// `x` holds the lock, `a` waits for it in this way, and `b` behind it.
fn waited_for(first: Ask) -> (Server, WaiterId, WaiterId) {
    let mut server = Server::new();
    server.take(K, ask("x"));
    let first = server.wait_for(K, first, 60_000);
    let behind = server.wait(K, ask("b"));
    (server, first, behind)
}

/// A waiter was granted the lock, and hears of it later.
fn on_its_way_to(first: Ask) -> (Server, WaiterId, FencingToken) {
    let (mut server, first, _) = waited_for(first);
    server.tells = false;
    server.release(K, "x");
    let token = server.token(K, "a");
    assert_eq!(server.told(), [(first, Answer::Granted(token))]);
    (server, first, token)
}

#[test]
fn who_waits_again_in_the_same_mode_keeps_its_position() {
    let [blocked, place] = [ask("a").by(1), ask("a").place().by(1)];
    for (first, then, is_told) in [
        (blocked.clone(), blocked.clone(), true),
        (blocked.clone(), place.clone(), true),
        (place.clone(), blocked, true),
        // The message of the later one is on the same channel.
        (place.clone(), place, false),
    ] {
        let (mut server, first, behind) = waited_for(first);
        let again = server.wait_for(K, then.by(2).lease(77), 60_000);
        assert_eq!(again, first);
        let expected = if is_told {
            vec![superseded(first)]
        } else {
            vec![]
        };
        assert_eq!(server.told(), expected);
        assert_eq!(server.metrics().superseded, u64::from(is_told));
        assert!(server.table.agree());
        server.release(K, "x");
        let token = server.token(K, "a");
        assert_eq!(server.told(), [(again, Answer::Granted(token))]);
        let end_ms = server.lock(K).next_lease_end_ms();
        assert_eq!(end_ms, Some(server.ms() + 77), "the later lease counts");
        server.release(K, "a");
        assert_eq!(server.granted(), [behind]);
        server.release(K, "b");
        server.give_up();
        server.check_nothing_is_left();
    }
}

#[test]
fn who_waits_again_in_another_mode_goes_to_the_end() {
    for first in [ask("a"), ask("a").place()] {
        let (mut server, first, behind) = waited_for(first);
        let again = server.wait(K, ask("a").by(2).shared());
        assert_eq!(server.told(), [superseded(first)]);
        server.release(K, "x");
        assert_eq!(server.granted(), [behind]);
        server.release(K, "b");
        assert_eq!(server.granted(), [again]);
    }
}

#[test]
fn what_is_answered_at_once_without_a_token_leaves_the_earlier_one() {
    let (mut server, first, _) = waited_for(ask("a").by(1));
    server.table.settings.max_places = 0;
    for (later, answer) in [
        (ask("a").by(2).now(), Ok(Acquired::Busy)),
        (
            ask("a").by(2).hold(2),
            Err(LockError::HoldCount { wanted: 2, held: 0 }),
        ),
        (
            ask("a").by(2).place(),
            Err(LockError::PlacesFull { max_places: 0 }),
        ),
    ] {
        assert_eq!(server.acquire_until(K, later, Some(i64::MAX)), answer);
        assert_eq!(server.told(), []);
    }
    server.release(K, "x");
    assert_eq!(server.granted(), [first]);
}

#[test]
fn a_request_that_does_not_fit_when_it_is_its_turn_leaves_the_earlier_one() {
    let mut server = Server::new();
    server.take(K, ask("x").lease(10));
    let first = server.wait(K, ask("a"));
    server.sleep(11);
    let refused = server.acquire(K, ask("a").by(2).hold(2).now());
    assert!(matches!(refused, Err(LockError::HoldCount { .. })));
    assert_eq!(server.granted(), [first]);
}

#[test]
fn a_later_request_is_granted_in_the_stead_of_a_waiter() {
    for first in [ask("a").by(1), ask("a").place().by(1)] {
        let (mut server, first, behind) = waited_for(first);
        server.delete(K);
        server.take(K, ask("a").by(2).now());
        assert_eq!(server.told(), [superseded(first)]);
        assert_eq!((server.holds(K, "a"), server.offers), (1, 0));
        let end_ms = server.lock(K).next_lease_end_ms();
        assert_eq!(end_ms, Some(server.ms() + LEASE_MS), "it is no first lease");
        server.release(K, "a");
        assert_eq!(server.granted(), [behind]);
    }
}

#[test]
fn a_hold_that_is_not_told_yet_passes_with_its_token() {
    for (later, holds) in [
        (ask("a").by(2).now(), Ok(1)),
        (ask("a").by(2), Ok(1)),
        (ask("a").by(2).hold(1), Ok(1)),
        (ask("a").by(2).place(), Ok(1)),
        // As if the earlier one had not been asked.
        (ask("a").by(2).hold(2), Err(0)),
    ] {
        let (mut server, first, token) = on_its_way_to(ask("a").by(1));
        let granted = server.acquire(K, later);
        match holds {
            Ok(holds) => {
                assert_eq!(granted, Ok(Acquired::Granted(token)));
                assert_eq!(server.told(), [superseded(first)]);
                assert_eq!(server.holds(K, "a"), holds);
            }
            Err(held) => {
                let error = LockError::HoldCount { wanted: 2, held };
                assert_eq!(granted, Err(error));
                assert_eq!(server.told(), []);
            }
        }
        // What becomes of the earlier reply does not matter any more.
        server.table.client_told(ClientId(1), false);
        server.run();
        assert_eq!(server.holds(K, "a"), i64::from(holds.is_ok()));
    }
}

#[test]
fn a_reply_that_is_in_the_output_buffer_is_told() {
    let (mut server, first, token) = on_its_way_to(ask("a").by(1));
    server.table.grant_said(first);
    assert_eq!(server.take(K, ask("a").by(2).now()), token);
    assert_eq!(server.told(), []);
    assert_eq!(server.holds(K, "a"), 2);
    server.table.client_told(ClientId(1), false);
    server.run();
    assert_eq!(server.holds(K, "a"), 2);
}

#[test]
fn an_error_in_the_place_of_a_reply_gives_its_hold_back() {
    let (mut server, first, _) = on_its_way_to(ask("a").by(1));
    server.table.grant_said(first);
    server.table.client_told(ClientId(1), false);
    server.run();
    assert_eq!(server.holders(K), ["b"]);
}

#[test]
fn the_session_is_that_of_the_request_that_is_told() {
    for (first, later, client) in [
        (ask("a").by(1).session(), ask("a").by(2).session(), Some(2)),
        (ask("a").by(1).session(), ask("a").by(2), None),
        (ask("a").by(1), ask("a").by(2).session(), Some(2)),
    ] {
        let (mut server, ..) = on_its_way_to(first);
        server.take(K, later.now());
        for ends in [1, 2] {
            server.disconnect(ends);
            server.run();
            let stays = client.is_none_or(|client| client > ends);
            assert_eq!(server.holds(K, "a"), i64::from(stays), "{client:?}");
        }
    }
}

#[test]
fn a_release_gives_up_what_its_owner_waits_for() {
    for first in [ask("a").by(1), ask("a").place().by(1)] {
        for extent in [
            ReleaseExtent::One,
            ReleaseExtent::All,
            ReleaseExtent::Hold(hold_number(1)),
        ] {
            let (mut server, first, behind) = waited_for(first.clone());
            // A request that names a token speaks of a hold.
            let stale = FencingToken::new(1).ok();
            server.release_as(K, "a", extent, stale).unwrap();
            assert_eq!(server.told(), []);
            server.release_as(K, "a", extent, None).unwrap();
            assert_eq!(server.told(), [(first, Answer::NotGranted)]);
            server.release(K, "x");
            assert_eq!(server.granted(), [behind]);
        }
    }
}

#[test]
fn what_was_told_after_a_release_or_a_renewal_stays() {
    // Two holds, of which the second is not told.
    let second_on_its_way = || {
        let mut server = Server::new();
        server.take(K, ask("a").by(1));
        server.pause_grants();
        server.wait(K, ask("a").by(2));
        server.resume_grants();
        server.tells = false;
        server.run();
        assert_eq!(server.holds(K, "a"), 2);
        server
    };
    type Do = fn(&mut Server);
    let renews: Do = |server| assert!(server.renew(K, "a", LEASE_MS));
    let releases: Do = |server| _ = server.release_as(K, "a", ReleaseExtent::One, None);
    for (before, held) in [(None, 1), (Some(renews), 2), (Some(releases), 1)] {
        let mut server = second_on_its_way();
        if let Some(before) = before {
            before(&mut server);
        }
        server.table.client_told(ClientId(2), false);
        server.run();
        assert_eq!(server.holds(K, "a"), held);
    }
}

#[test]
fn a_hold_that_does_not_fit_when_its_turn_comes_is_refused() {
    let hold_count = LockError::HoldCount { wanted: 2, held: 3 };
    for (asks, holds, refused) in [
        (ask("a").by(2), 3, hold_count.clone()),
        (ask("a").by(2).hold(2), 3, hold_count),
    ] {
        let mut server = Server::new();
        server.take(K, ask("a"));
        server.pause_grants();
        let waits = server.wait(K, asks);
        server.table.settings.may_grant = true;
        server.write(K, |value| value.set(b"a", holds));
        server.table.everything_touched();
        server.run();
        assert_eq!(server.told(), [(waits, Answer::Refused(refused))]);
        assert_eq!(server.metrics().waits_refused, 1);
    }
}

#[test]
fn what_was_granted_and_not_told_is_given_back_where_the_later_one_has_to_wait() {
    let (mut server, first, _) = on_its_way_to(ask("a").by(1));
    server.pause_grants();
    let again = server.wait(K, ask("a").by(2));
    assert_eq!(server.told(), [superseded(first)]);
    assert_eq!(server.holders(K), [""; 0]);
    server.table.settings.may_grant = true;
    server.tells = true;
    server.delete(K);
    server.run();
    server.release(K, "b");
    assert_eq!(server.granted().last(), Some(&again));
}

#[test]
fn a_wait_that_is_over_is_taken_over_by_nobody() {
    let (place, blocked) = (ask("a").place().by(7).session(), ask("a").by(8));
    for (first, later, is_told) in [
        (place.clone(), ask("a").by(1), true),
        (place, ask("a").by(1).place(), false),
        (blocked.clone(), ask("a").by(1), true),
        (blocked, ask("a").by(1).place(), true),
    ] {
        let (mut server, first, behind) = waited_for(first);
        server.renew(K, "x", 90_000);
        server.disconnect(7);
        server.sleep(60_000);
        let again = server.wait_for(K, later, 60_000);
        let expected = Vec::from_iter(is_told.then_some((first, Answer::NotGranted)));
        assert_eq!(server.told(), expected);
        server.release(K, "x");
        assert_eq!(server.granted(), [behind]);
        server.release(K, "b");
        assert_eq!(server.granted(), [again]);
    }
}
