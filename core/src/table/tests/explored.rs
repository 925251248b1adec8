//! What the exploration has found, each by its shortest way.

use super::*;
use crate::table::connections::Leave;

fn end(server: &mut Server, client: u64) {
    server.table.connection_ended(ClientId(client));
}

#[test]
fn nothing_is_left_of_a_lock_whose_only_waiter_left() {
    let (mut server, waiter) = contended();
    let now_ms = server.ms();
    server.table.waiter_left(waiter, Leave::TimeUp, now_ms);
    assert!(!server.table.follows_keys());
}

/// Both requests of an owner are granted at the end of another one's session, the one
/// that waited by client 1, and a second one by client 2.
fn granted_twice(waits: Ask) -> Server {
    let mut server = Server::new();
    server.tells = false;
    server.take(K, ask("a").session());
    server.wait(K, waits.by(1));
    let other = ask("a").client;
    server.table.connection_ended(other);
    server.take(K, ask("b").session().by(2));
    assert_eq!(server.holds(K, "b"), 2);
    server
}

#[test]
fn a_hold_that_is_heard_of_after_the_end_of_a_session_stays() {
    let mut server = granted_twice(ask("b"));
    end(&mut server, 2);
    server.table.grant_told(ClientId(1), true);
    server.run();
    assert_eq!(server.holds(K, "b"), 2);
}

#[test]
fn what_a_session_was_told_of_ends_with_it_whoever_inherits() {
    let mut server = granted_twice(ask("b").session());
    end(&mut server, 2);
    server.table.grant_told(ClientId(1), false);
    server.run();
    assert_eq!(server.holds(K, "b"), 0);
    assert!(!server.table.remembers_holds());
}

#[test]
fn an_heir_that_ends_too_leaves_nothing() {
    let mut server = granted_twice(ask("b").session());
    end(&mut server, 2);
    server.table.grant_told(ClientId(1), true);
    end(&mut server, 1);
    let now = server.now();
    let view = server.table.view(K, server.lock(K), now);
    assert!(view.holders.is_empty());
    server.run();
    assert_eq!(server.holds(K, "b"), 0);
    assert!(!server.table.remembers_holds());
}

#[test]
fn nothing_is_left_of_a_lock_whose_only_place_is_given_up() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.wait_for(K, ask("b").place(), 60_000);
    let given_up = server.release_as(K, "b", ReleaseExtent::One, None);
    assert_eq!(given_up, Ok(Released::NotHeld));
    assert!(server.table.agree());
}

#[test]
fn who_only_waited_behind_its_own_place_does_not_wait() {
    let mut server = Server::new();
    server.take(K, ask("a").shared());
    server.wait_for(K, ask("b").place(), 60_000);
    let b = server.wait_for(K, ask("b").place().shared(), 60_000);
    server.run();
    assert_eq!(server.granted(), [b]);
}

#[test]
fn a_reply_to_a_blocked_client_claims_what_its_owner_got_by_a_place() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.wait_for(K, ask("b").place().by(7).session(), 60_000);
    server.wait(K, ask("b").by(1).hold(1));
    server.release(K, "a");
    server.pass(3 * LEASE_MS);
    assert_eq!(server.holds(K, "b"), 1);
    assert_eq!(server.metrics().claims, 1);
    // The reply was to another connection.
    end(&mut server, 7);
    server.run();
    assert_eq!(server.holds(K, "b"), 1);
    server.pass(LEASE_MS);
    assert_eq!(server.holds(K, "b"), 0);
}

#[test]
fn a_place_of_a_connection_that_has_ended_binds_nothing_to_it() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let blocked = server.wait(K, ask("b").by(1));
    let place = server.wait_for(K, ask("b").place().by(7).session(), 60_000);
    end(&mut server, 7);
    server.release(K, "a");
    let granted = Answer::Granted(server.token(K, "b"));
    let told = [(blocked, granted), (place, Answer::NotGranted)];
    assert_eq!(server.told(), told);
    assert_eq!(server.table.bound_client(K, &owner("b")), None);
}

#[test]
fn a_grant_can_be_claimed_as_long_as_it_lasts() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.wait_for(K, ask("b").place().by(7).session(), 60_000);
    server.release(K, "a");
    let token = server.token(K, "b");
    let claim_ms = server.table.settings.claim_timeout_ms;
    server.pass(claim_ms);
    assert!(server.renew_as(K, "b", LEASE_MS, Some(token)));
    assert_eq!(server.table.bound_client(K, &owner("b")), Some(ClientId(7)));
    assert_eq!(server.metrics().claims, 1);
}

#[test]
fn a_connection_that_did_not_claim_its_grant_is_not_closed_by_the_next_one() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.wait_for(K, ask("b").place().by(7).session(), 60_000);
    server.release(K, "a");
    server.sleep(server.table.settings.claim_timeout_ms + 1);
    server.take(K, ask("b").place().by(8).session());
    assert!(server.table.to_close.is_empty());
    assert_eq!(server.table.bound_client(K, &owner("b")), Some(ClientId(8)));
}

#[test]
fn a_place_is_served_before_its_owner_has_a_second_hold() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let b = server.wait_for(K, ask("b").place(), 60_000);
    server.delete(K);
    let token = server.take(K, ask("b").place().hold(2));
    assert_eq!(server.told(), [(b, Answer::Granted(token))]);
    assert_eq!(server.holds(K, "b"), 2);
}
