//! What the exploration has found, each by its shortest way.

use super::*;
use crate::table::connections::Leave;

#[test]
fn nothing_is_left_of_a_lock_whose_only_waiter_left() {
    let (mut server, waiter) = contended();
    let now_ms = server.ms();
    server.table.waiter_left(waiter, Leave::TimeUp, now_ms);
    assert!(!server.table.follows_keys());
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
    server.take(K, ask("b").place().shared());
    assert_eq!((server.told(), server.holds(K, "b")), (vec![], 1));
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
