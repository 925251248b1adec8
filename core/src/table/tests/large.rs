use super::*;
use crate::holders::FEW;

/// A lock with one holder more than are searched one by one.
fn crowded() -> Server {
    let mut server = Server::new();
    for n in 0..=FEW {
        server.take(K, ask(&nth(n)).shared());
    }
    server
}

#[test]
fn a_lock_of_many_holders_is_not_read_again() {
    let mut server = crowded();
    assert_eq!(server.unread, 0);
    assert!(server.renew(K, &nth(3), 1000));
    assert_eq!(server.effects.len(), 1);
    server.take(K, ask("x").shared());
    server.release(K, &nth(4));
    assert_eq!(server.unread, 3);
    let lock = server.table.remembered.lock(K).unwrap();
    assert_eq!(lock.holders().len(), FEW + 1);
}

#[test]
fn what_is_expected_names_what_shows_it() {
    let mut server = crowded();
    let token = server.token(K, &nth(FEW));
    let expected = server.table.expected(K, Some(&owner(&nth(2)))).unwrap();
    assert_eq!(expected.holders, FEW + 1);
    assert_eq!(expected.fields(), 2 * (FEW + 1) + 1);
    assert_eq!(expected.last_token, Some(token));
    assert_eq!(expected.expires_at_ms, Some(START_MS + LEASE_MS));
    assert_eq!(expected.holder.unwrap().owner, owner(&nth(2)));
    let expected = server.table.expected(K, Some(&owner("z"))).unwrap();
    assert_eq!(expected.holder, None);
    assert!(server.table.expected(L, None).is_none());
    server.take(L, ask("a"));
    assert!(server.table.expected(L, None).is_none());
}

#[test]
fn a_large_lock_that_somebody_touched_is_read_again() {
    let mut server = crowded();
    server.write(K, |value| {
        value.fields.remove(nth(0).as_bytes());
        value.fields.remove(&permit_field(&owner(&nth(0))));
    });
    assert!(server.table.expected(K, None).is_none());
    assert!(server.table.remembered.is_empty());
    assert!(!server.renew(K, &nth(0), 1000));
    assert_eq!(server.unread, 0);
}

#[test]
fn a_large_lock_of_which_somebody_removed_an_owner_is_read_once() {
    let mut server = crowded();
    server.take(K, ask("x").shared());
    server.write(K, |value| {
        value.fields.remove(nth(1).as_bytes());
    });
    assert!(server.renew(K, &nth(2), LEASE_MS));
    let before = server.unread;
    assert!(server.renew(K, &nth(3), LEASE_MS));
    assert_eq!(server.unread, before + 1);
    // Its permit is there yet, and is its own again.
    server.take(K, ask(&nth(1)).shared());
    assert!(server.renew(K, &nth(4), LEASE_MS));
    let before = server.unread;
    assert!(server.renew(K, &nth(5), LEASE_MS));
    assert_eq!(server.unread, before + 1);
}

#[test]
fn a_contended_large_lock_that_was_touched_is_read_once() {
    let mut server = crowded();
    server.wait(K, ask("w"));
    assert!(server.table.expected(K, None).is_some());
    server.write(K, |value| value.expires_at_ms = Some(START_MS + 500_000));
    assert!(server.table.expected(K, None).is_none());
    server.run();
    assert!(server.table.expected(K, None).is_some());
}

#[test]
fn a_change_that_nobody_told_of_is_seen_by_the_hash() {
    let mut server = crowded();
    let value = server.keys.get_mut(&K.into()).unwrap();
    value.fields.remove(nth(0).as_bytes());
    value.fields.remove(&permit_field(&owner(&nth(0))));
    assert!(server.renew(K, &nth(1), 1000));
    assert_eq!(server.unread, 0);
}

#[test]
fn a_large_lock_is_forgotten_when_it_is_free_or_small() {
    let mut server = crowded();
    server.release(K, &nth(0));
    assert!(server.table.remembered.is_empty());
    for n in 1..=FEW {
        server.release(K, &nth(n));
    }
    server.check_nothing_is_left();
    let mut server = crowded();
    assert!(server.break_lock(K, None));
    server.check_nothing_is_left();
    let mut server = crowded();
    server.delete(K);
    server.check_nothing_is_left();
}

/// A lock of enough holders that it is remembered as a whole.
fn very_crowded(count: usize) -> Server {
    let mut server = Server::new();
    for n in 0..count {
        server.take(K, ask(&nth(n)).shared());
    }
    server
}

#[test]
fn of_a_lock_for_which_nobody_waits_it_is_not_counted_how_it_went() {
    for count in [FEW + 1, crate::bounds::crowd() + 1] {
        for lasts_ms in [0, LEASE_MS] {
            let mut server = very_crowded(count);
            server.sleep(lasts_ms);
            server.keys.clear();
            server.table.everything_touched(server.ms());
            server.take(K, ask("x"));
            let metrics = server.metrics();
            assert_eq!((metrics.releases_deleted, metrics.releases_expired), (0, 0));
        }
    }
}

#[test]
fn holders_of_remembered_locks_are_known_while_they_are() {
    let mut server = crowded();
    let holds = |server: &Server, name: &str| server.table.remembered.is_holder(&owner(name));
    assert!(holds(&server, &nth(0)) && !holds(&server, "w"));
    server.take(L, ask("a"));
    let w = server.wait(L, ask("w"));
    assert!(holds(&server, "a"));
    server.leave(w);
    server.release(L, "a");
    assert!(!holds(&server, "a") && holds(&server, &nth(0)));
    server.delete(K);
    assert!(!holds(&server, &nth(0)));
}

#[test]
fn any_number_of_leases_that_are_over_keep_nobody_out() {
    let mut server = Server::new();
    server.take(K, ask("long").limit(1000).lease(10 * LEASE_MS));
    for n in 0..3 * ENDS_A_STEP {
        server.take(K, ask(&nth(n)).limit(1000));
    }
    server.sleep(LEASE_MS + 1);
    server.take(K, ask("two").limit(2));
    assert_eq!(server.holders(K).len(), 2);
}

#[test]
fn a_lock_of_which_only_leases_that_are_over_are_left_is_freed() {
    let mut server = Server::new();
    for n in 0..2 * ENDS_A_STEP {
        server.take(K, ask(&nth(n)).shared().lease(10));
    }
    server.take(K, ask("z").shared());
    server.sleep(20);
    server.release(K, "z");
    assert!(server.freed && server.holders(K).is_empty());
}

/// A lock that many hold by one connection, and `z` by a grant that is on its way.
fn crowd_and_a_grant_on_its_way() -> Server {
    let mut server = Server::new();
    server.tells = false;
    server.take(K, ask("w"));
    let z = server.wait(K, ask("z").shared());
    server.release(K, "w");
    assert_eq!(server.granted(), [z]);
    for n in 0..2 * ENDS_A_STEP {
        server.take(K, ask(&nth(n)).shared().session().by(7));
    }
    server
}

#[test]
fn a_lock_whose_holders_have_all_ended_can_not_be_broken() {
    let mut server = crowd_and_a_grant_on_its_way();
    server.table.connection_ended(ClientId(7), false);
    server.table.grant_told(ask("z").client, false);
    assert!(!server.break_lock(K, None));
}

#[test]
fn what_ended_before_a_lock_was_deleted_keeps_nobody_out_after_it() {
    let mut server = Server::new();
    for n in 0..3 * ENDS_A_STEP {
        server.take(K, ask(&nth(n)).shared().session().by(7));
    }
    server.delete(K);
    for n in 0..=FEW {
        server.take(K, ask(&format!("z{n}")).shared().session().by(7));
    }
    server.table.connection_ended(ClientId(7), false);
    server.take(K, ask("x").now());
    assert_eq!(server.holders(K), ["x"]);
}

#[test]
fn a_grant_that_is_on_its_way_outlives_a_crowd_that_is_over() {
    let mut server = crowd_and_a_grant_on_its_way();
    server.take(K, ask("z").shared().session().by(7));
    assert_eq!(server.holds(K, "z"), 2);
    server.table.connection_ended(ClientId(7), false);
    server.run();
    // Its other connection is about to hear of one of them.
    assert_eq!(
        (server.holders(K), server.holds(K, "z")),
        (vec!["z".to_owned()], 1)
    );
}

#[test]
fn a_grant_that_is_on_its_way_can_be_lost_after_a_crowd_beside_it_has_ended() {
    let mut server = crowd_and_a_grant_on_its_way();
    server.table.connection_ended(ClientId(7), false);
    server.take(K, ask("x").limit(2));
    assert_eq!(server.holders(K), ["x", "z"]);
    server.table.grant_told(ask("z").client, false);
    server.run();
    assert_eq!(server.holders(K), ["x"]);
}

#[test]
fn nothing_is_on_its_way_any_more_to_those_from_whom_a_lock_was_taken() {
    let mut server = crowd_and_a_grant_on_its_way();
    assert!(!server.table.deliveries.is_empty());
    assert!(server.break_lock(K, None));
    assert!(server.table.deliveries.is_empty());
}
