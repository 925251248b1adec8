//! What a crowd costs, counted and not timed.

use super::*;
use crate::bounds::{CYCLE_AT_MOST, LEFT_AT_ONCE};

const CROWD: usize = 10_000;

fn crowded() -> Server {
    let mut server = Server::new();
    for n in 0..CROWD {
        server.take(K, ask(&nth(n)).shared().session());
    }
    server
}

/// The effects of the last step name this owner and no other.
#[track_caller]
fn check_touches_only(server: &Server, name: &str) {
    assert!(server.effects.len() <= 2, "{:?}", server.effects);
    for effect in &server.effects {
        match effect {
            Effect::SetHolder { owner, .. } | Effect::RemoveHolder { owner } => {
                assert_eq!(owner.as_bytes(), name.as_bytes());
            }
            Effect::ExpireAt { .. } => {}
            Effect::Delete | Effect::Replace { .. } => panic!("the key was deleted"),
        }
    }
}

#[test]
fn one_of_many_holders_is_served_without_the_others() {
    let mut server = crowded();
    let reads = |server: &Server| server.unread;
    let before = reads(&server);
    let name = nth(CROWD / 2);
    assert!(server.renew(K, &name, 2 * LEASE_MS));
    check_touches_only(&server, &name);
    server.take(K, ask(&name).shared());
    check_touches_only(&server, &name);
    server.release(K, &name);
    check_touches_only(&server, &name);
    server.release(K, &name);
    check_touches_only(&server, &name);
    server.take(K, ask("x").shared());
    check_touches_only(&server, "x");
    assert_eq!(reads(&server) - before, 5, "the lock was read");

    server.sleep(LEASE_MS / 3);
    let due = server.table.take_due(server.ms()).unwrap();
    let kept = String::from_utf8(due.owner().unwrap().as_bytes().to_vec()).unwrap();
    server.do_due(due);
    check_touches_only(&server, &kept);
    assert_eq!(reads(&server) - before, 6, "the lock was read");
}

#[test]
fn many_sessions_leave_nothing_behind() {
    let mut server = crowded();
    for n in 0..CROWD {
        server.table.connection_ended(ask(&nth(n)).client, false);
    }
    server.run();
    assert_eq!(server.holders(K), [""; 0]);
    server.check_nothing_is_left();
}

#[test]
fn many_waiters_leave_nothing_behind() {
    let mut server = Server::new();
    server.take(K, ask("w"));
    let waiters: Vec<_> = (0..CROWD)
        .map(|n| server.wait(K, ask(&nth(n)).shared()))
        .collect();
    server.release(K, "w");
    server.run();
    assert_eq!(server.granted(), waiters);
    // Each step took as many as one may, and no look was in vain.
    assert!(
        server.steps <= CROWD / GRANTS_A_STEP + 1,
        "{}",
        server.steps
    );
    server.delete(K);
    server.run();
    server.check_nothing_is_left();
}

#[test]
fn readers_that_claim_among_grants_to_others_read_no_lock() {
    let mut server = Server::new();
    server.take(K, ask("w"));
    for n in 0..CROWD {
        server.wait(K, ask(&nth(n)).shared().place());
    }
    server.release(K, "w");
    let (unread, mut looks) = (server.unread, 0);
    for n in 0..CROWD {
        assert!(server.renew(K, &nth(n), LEASE_MS), "{n}");
        looks += 1;
        if let Some(due) = server.table.take_due(server.ms()) {
            server.do_due(due);
            looks += 1;
        }
    }
    assert_eq!(server.offers, CROWD);
    assert_eq!(server.unread - unread, looks, "the lock was read");
    // Each look took as many as one may.
    assert!(looks <= CROWD + CROWD / GRANTS_A_STEP, "{looks}");
}

#[test]
fn a_lock_that_was_touched_among_grants_to_places_is_read_once() {
    let mut server = Server::new();
    server.take(K, ask("w"));
    for n in 0..4 * GRANTS_A_STEP {
        server.wait(K, ask(&nth(n)).shared().place());
    }
    server.release(K, "w");
    server.table.key_touched(K, server.ms());
    let unread = server.unread;
    for n in 0..3 {
        assert!(server.renew(K, &nth(n), LEASE_MS), "{n}");
        assert_eq!(server.offers, (n + 2) * GRANTS_A_STEP);
        assert_eq!(server.unread - unread, n, "what was left to be read");
    }
}

#[test]
fn a_crowd_that_is_over_is_cleared_away_bit_by_bit() {
    for is_broken in [false, true] {
        let mut server = crowded();
        if is_broken {
            server.break_lock(K, None);
            assert_eq!(server.metrics().releases_broken, CROWD as u64);
            // They are not gone through to be counted.
            assert!(server.table.totals(server.now()).sessions > CROWD / 2);
            assert!(server.table.sessions.any_left());
        } else {
            server.delete(K);
        }
        assert!(server.table.remembered.any_discarded());
        assert_eq!(server.table.wake_at_ms(server.now()), Some(0));
        // Nothing of it is in the way of what comes next.
        server.take(K, ask("x").session());
        assert_eq!(server.holders(K), ["x"]);
        server.run();
        assert!(!server.table.is_to_be_cleared());
        if is_broken {
            let sessions = server.table.totals(server.now()).sessions;
            assert_eq!((sessions, server.holders(K)), (1, vec!["x".to_owned()]));
            server.release(K, "x");
            server.check_nothing_is_left();
        }
    }
}

#[test]
fn a_crowd_that_has_left_its_key_is_counted_and_not_gone_through() {
    for (count, left) in [(CROWD, 0), (CROWD, 3), (100, 0), (100, 3)] {
        let mut server = Server::new();
        for n in 0..count {
            let ask = ask(&nth(n)).shared();
            server.take(K, ask.lease((n % 2 + 1) as i64 * LEASE_MS));
        }
        let w = server.wait(K, ask("w"));
        server.sleep(LEASE_MS);
        let unread = server.unread;
        if left == 0 {
            server.delete(K);
        } else {
            server.write(K, |value| {
                for n in left..count {
                    value.fields.remove(nth(n).as_bytes());
                    value.fields.remove(&permit_field(&owner(&nth(n))));
                }
            });
        }
        assert!(server.do_one());
        assert_eq!(server.unread, unread, "it was read");
        let is_crowd = count == CROWD;
        assert_eq!(server.table.remembered.any_discarded(), is_crowd);
        let expired = (count / 2 - left.div_ceil(2)) as u64;
        let deleted = (count / 2 - left / 2) as u64;
        let metrics = server.metrics();
        assert_eq!(metrics.releases_expired, expired);
        assert_eq!(metrics.releases_deleted, deleted);
        let told = told_of(&mut server).into_iter();
        let told: Vec<_> = told
            .filter(|(event, _)| *event == LockEvent::Expired)
            .collect();
        assert_eq!(told, [(LockEvent::Expired, expired as usize)]);
        server.run();
        let owners: Vec<Owner> = (0..count).map(|n| owner(&nth(n))).collect();
        assert!(server.table.agree(&owners));
        assert_eq!(server.granted() == [w], left == 0);
    }
}

/// Many locks, each of more holders than are looked for one by one.
fn many_shared() -> Server {
    let mut server = Server::new();
    for n in 0..CROWD {
        server.take(key(&nth(n / 10)), ask(&nth(n)).shared());
    }
    server
}

#[test]
fn many_locks_that_were_touched_at_once_are_forgotten_bit_by_bit() {
    let mut server = many_shared();
    let count = |server: &Server| server.table.remembered.keys().count();
    let before = count(&server);
    assert_eq!(before, CROWD / 10);
    server.table.databases_swapped(0, 1, server.ms());
    assert_eq!(count(&server), before, "some were forgotten at once");
    assert_eq!(server.table.wake_at_ms(server.now()), Some(0));
    assert!((0..before).all(|n| !server.table.is_untouched(key(&nth(n)))));
    // Who is looked at meanwhile, or waited for, is known as ever.
    server.take(key(&nth(0)), ask("x").shared());
    let waiter = server.wait(key(&nth(1)), ask("w"));
    while server.table.is_to_be_cleared() {
        let left = count(&server);
        server.do_one();
        assert!(left - count(&server) <= 100, "{left}");
    }
    assert_eq!(count(&server), 2);
    assert!(server.table.is_untouched(key(&nth(0))));
    let owners: Vec<Owner> = (0..CROWD).map(|n| owner(&nth(n))).collect();
    assert!(server.table.agree(&owners));
    server.leave(waiter);
    server.table.everything_touched(server.ms());
    server.run();
    server.check_nothing_is_left();
}

#[test]
fn of_many_locks_that_were_touched_at_once_those_that_were_read_since_are_kept() {
    let mut server = many_shared();
    let count = |server: &Server| server.table.remembered.keys().count();
    let all = count(&server);
    server.table.everything_touched(server.ms());
    // Some are to be forgotten from now on.
    server.do_one();
    assert!(count(&server) < all);
    for n in 0..all {
        server.take(key(&nth(n)), ask("x").shared());
    }
    server.run();
    assert_eq!(count(&server), all);
}

#[test]
fn a_lock_whose_holders_have_all_ended_is_overwritten_at_once() {
    let mut server = Server::new();
    for n in 0..CROWD {
        let ask = ask(&nth(n)).shared().by(1).session();
        server.take(K, ask);
    }
    server.table.connection_ended(ClientId(1), false);
    server.take(K, ask("x"));
    assert_eq!(server.metrics().releases_session, CROWD as u64);
    assert!(matches!(server.effects[..], [Effect::Replace { .. }]));
    assert_eq!(server.holders(K), ["x"]);
}

/// A lock of many, half of them by a connection that has just ended, and half by leases
/// that are over. `live` hold it yet, and took it in between.
fn over(live: usize) -> Server {
    let mut server = Server::new();
    for n in 0..CROWD {
        if n == CROWD / 3 {
            for n in 0..live {
                server.take(K, ask(&format!("live{n}")).shared().lease(10 * LEASE_MS));
            }
        }
        server.take(
            K,
            match n % 2 {
                0 => ask(&nth(n)).shared().by(1).session().lease(10 * LEASE_MS),
                _ => ask(&nth(n)).shared(),
            },
        );
    }
    server.sleep(LEASE_MS + 1);
    server.table.connection_ended(ClientId(1), false);
    server.events();
    server
}

/// How many events of each kind there were, in the order in which they were told.
fn told_of(server: &mut Server) -> Vec<(LockEvent, usize)> {
    let mut told: Vec<(LockEvent, usize)> = Vec::new();
    for event in server.events() {
        match told.last_mut() {
            Some((last, count)) if *last == event => *count += 1,
            _ => told.push((event, 1)),
        }
    }
    told
}

#[test]
fn a_crowd_that_is_over_ends_as_one() {
    const HALF: usize = CROWD / 2;
    for is_broken in [false, true] {
        let mut server = over(0);
        if is_broken {
            assert!(!server.break_lock(K, None), "nobody held it");
            assert_eq!(server.effects[..], [Effect::Delete]);
        } else {
            server.take(K, ask("x"));
            assert!(matches!(server.effects[..], [Effect::Replace { .. }]));
        }
        assert!(
            server.table.sessions.any_left(),
            "they were unbound one by one"
        );
        let metrics = server.metrics();
        let [expired, ended] = [metrics.releases_expired, metrics.releases_session];
        assert_eq!([expired, ended], [HALF as u64; 2]);
        assert_eq!(metrics.releases_broken, 0);
        let mut told = vec![(LockEvent::Expired, HALF), (LockEvent::Released, HALF)];
        if !is_broken {
            told.push((LockEvent::Acquired, 1));
        }
        assert_eq!(told_of(&mut server), told);
        server.run();
        assert_eq!(server.metrics().holds.summary().count, HALF as u64);
        if !is_broken {
            server.release(K, "x");
        }
        server.check_nothing_is_left();
    }
}

#[test]
fn who_is_kept_out_of_a_crowd_ends_no_more_of_it_than_a_step_does() {
    for (live, limit) in [(1, 1), (3, 2), (200, 150)] {
        let mut server = over(live);
        let newcomer = ask("x").limit(limit);
        assert!(matches!(
            server.acquire(K, newcomer.clone().now()),
            Ok(Acquired::Busy)
        ));
        assert!(
            server.effects.len() <= 2 * ENDS_A_STEP,
            "{}",
            server.effects.len()
        );
        let x = server.wait(K, newcomer);
        assert!(
            server.effects.len() <= 2 * ENDS_A_STEP,
            "{}",
            server.effects.len()
        );
        assert!(server.holders(K).len() > CROWD / 2);
        // What is left of it goes step by step.
        server.run();
        assert_eq!(server.holders(K).len(), live);
        for n in 0..live {
            server.release(K, &format!("live{n}"));
        }
        assert_eq!(server.granted(), [x]);
    }
}

#[test]
fn places_that_are_over_keep_nobody_out_of_a_crowd_that_is_over() {
    let mut server = over(40);
    for n in 0..2 * GRANTS_A_STEP {
        server.wait_for(K, ask(&format!("p{n}")).place(), 10);
    }
    server.sleep(20);
    server.take(K, ask("x").limit(50).now());
    assert_eq!(server.holders(K).len(), 41);
}

#[test]
fn who_stands_behind_more_places_than_are_passed_over_ends_no_crowd() {
    let mut server = Server::new();
    for n in 0..CROWD {
        server.take(K, ask(&nth(n)).shared());
    }
    for n in 0..40 {
        let live = ask(&format!("live{n}")).shared();
        server.take(K, live.lease(10 * LEASE_MS));
    }
    for n in 0..PASSED_A_STEP + 2 * GRANTS_A_STEP {
        server.wait_for(K, ask(&format!("p{n}")).place(), 10);
    }
    let w = server.wait(K, ask("w"));
    server.sleep(LEASE_MS + 1);
    server.wait(K, ask("x").limit(50));
    assert!(server.holders(K).len() > CROWD / 2);
    server.run();
    assert_eq!(server.holders(K).len(), 40);
    assert!(server.table.is_waiting(w));
}

#[test]
fn who_can_be_granted_nothing_ends_no_more_of_a_crowd_than_a_step_does() {
    let no_grants = Settings {
        may_grant: false,
        ..Settings::default()
    };
    let no_replicas = Settings {
        acks: Some(Acknowledgement {
            replicas: 1,
            connected: 0,
            timeout_ms: 1000,
            client: None,
        }),
        ..Settings::default()
    };
    for settings in [no_grants, no_replicas] {
        let mut server = over(200);
        server.table.settings = settings;
        server.wait(K, ask("x").shared());
        let effects = server.effects.len();
        assert!(effects <= 2 * ENDS_A_STEP, "{effects}");
        assert!(server.holders(K).len() > CROWD / 2);
    }
}

#[test]
fn who_is_refused_because_replicas_are_missing_is_told_so_beside_a_crowd_that_is_over() {
    let mut server = over(2);
    server.table.settings.acks = Some(Acknowledgement {
        replicas: 1,
        connected: 0,
        timeout_ms: 1000,
        client: None,
    });
    let refused = server.acquire(K, ask("x").limit(3).now());
    assert_eq!(refused, Err(LockError::NoReplicas));
}

#[test]
fn who_is_let_in_beside_a_crowd_that_is_over_ends_all_of_it() {
    let mut server = over(2);
    server.take(K, ask("live1").shared().by(2).session());
    server.take(K, ask("x").limit(3));
    assert_eq!(server.holders(K), ["live0", "live1", "x"]);
    assert!(server.effects.len() < 10, "{}", server.effects.len());
    assert_eq!(server.lock(K).last_token(), Some(server.token(K, "x")));
    server.run();
    assert!(server.table.to_close.is_empty());
    // Who is left holds as before.
    assert_eq!(server.table.totals(server.now()).sessions, 1);
    server.table.connection_ended(ClientId(2), false);
    server.run();
    assert_eq!((server.holds(K, "live1"), server.holders(K).len()), (0, 2));
    for name in ["live0", "x"] {
        server.release(K, name);
    }
    server.check_nothing_is_left();
}

#[test]
fn who_is_let_in_beside_more_than_are_left_at_once_takes_the_lock_from_none_of_them() {
    let live = LEFT_AT_ONCE + 10;
    let mut server = over(live);
    let limit = i64::try_from(live).unwrap() + 1;
    server.take(K, ask("x").limit(limit));
    assert_eq!(server.holders(K).len(), live + 1);
}

#[test]
fn leases_that_are_over_are_told_from_others_whoever_asks() {
    for (live, limit) in [(0, 1), (1, 1), (2, 3), (40, 50), (40, 40), (1000, 1001)] {
        let mut server = Server::new();
        for n in 0..CROWD {
            server.take(K, ask(&nth(n)).shared());
        }
        for n in 0..live {
            let live = ask(&format!("live{n}")).shared();
            server.take(K, live.lease(10 * LEASE_MS));
        }
        // Somebody else's session is over as well.
        server.take(L, ask("a").by(1).session());
        server.sleep(LEASE_MS + 1);
        server.table.connection_ended(ClientId(1), false);
        let is_let_in = live < limit as usize;
        let asked = server.acquire(K, ask("x").limit(limit).now());
        assert_eq!(
            matches!(asked, Ok(Acquired::Granted(_))),
            is_let_in,
            "{live}"
        );
        let left = live + usize::from(is_let_in);
        if is_let_in {
            assert_eq!(server.holders(K).len(), left);
        } else {
            assert!(server.effects.len() <= 2 * ENDS_A_STEP);
        }
        assert!(server.break_lock(K, None));
        let metrics = server.metrics();
        let expired = if live == 0 { 0 } else { CROWD as u64 };
        assert_eq!(
            metrics.releases_expired, expired,
            "the key ended with the last"
        );
        assert_eq!(metrics.releases_broken, left as u64);
        server.run();
        server.check_nothing_is_left();
    }
}

#[test]
fn a_break_takes_a_crowd_from_those_who_hold_it_yet() {
    let mut server = over(2);
    let token = server.token(K, "live1");
    assert!(!server.break_lock(K, Some(token)), "it is not the newest");
    assert!(server.holders(K).len() > CROWD / 2);
    assert!(server.break_lock(K, None));
    assert_eq!(server.effects[..], [Effect::Delete]);
    let metrics = server.metrics();
    let [expired, ended] = [metrics.releases_expired, metrics.releases_session];
    assert_eq!([expired, ended], [CROWD as u64 / 2; 2]);
    assert_eq!(metrics.releases_broken, 2);
    assert_eq!(told_of(&mut server).last(), Some(&(LockEvent::Broken, 1)));
    server.run();
    server.check_nothing_is_left();
}

#[test]
fn waiters_of_a_crowd_that_is_over_are_served_in_one_step() {
    let mut server = Server::new();
    for n in 0..CROWD {
        server.take(K, ask(&nth(n)).shared().by(1).session());
    }
    let w = server.wait(K, ask("w"));
    server.table.connection_ended(ClientId(1), false);
    assert!(server.do_one());
    assert_eq!(server.granted(), [w]);
}

#[test]
fn what_is_left_of_a_crowd_is_not_in_the_way_of_other_holds_of_connections_that_ended() {
    for client in [1, 2] {
        let mut server = Server::new();
        for n in 0..CROWD {
            server.take(K, ask(&nth(n)).shared().by(1).session());
        }
        server.take(L, ask("a").by(client).session());
        let w = server.wait(L, ask("w"));
        for client in [1, 2] {
            server.table.connection_ended(ClientId(client), false);
        }
        server.take(K, ask("x"));
        for _ in 0..3 {
            server.do_one();
        }
        assert!(server.table.sessions.any_left());
        assert_eq!(server.granted(), [w]);
    }
}

#[test]
fn many_contended_keys_leave_nothing_behind() {
    let mut server = Server::new();
    let mut waiters = Vec::new();
    for n in 0..CROWD {
        let name = nth(n);
        server.take(key(&name), ask("a"));
        waiters.push(server.wait(key(&name), ask("b")));
    }
    assert_eq!(
        server.table.totals(server.now()).counts.contended_keys,
        CROWD
    );
    for id in waiters {
        server.leave(id);
    }
    server.run();
    assert_eq!(server.table.wake_at_ms(server.now()), None);
    // Who held locks that nobody waits for any more is forgotten with the next step.
    for n in 0..CROWD {
        server.release(key(&nth(n)), "a");
    }
    server.check_nothing_is_left();
}

#[test]
fn the_end_of_a_client_of_many_holds_is_done_bit_by_bit() {
    let mut server = Server::new();
    for n in 0..CROWD {
        server.take(key(&nth(n)), ask("a").session());
    }
    server.table.connection_ended(ask("a").client, false);
    assert!(server.table.ended.is_empty(), "nothing is moved at once");
    assert_eq!(server.table.totals(server.now()).sessions, 0);
    // Wherever somebody looks first, the hold is over.
    for n in [CROWD - 1, 17, CROWD / 2] {
        let name = nth(n);
        server.take(key(&name), ask("b").now());
        assert!(server.table.ended.is_empty());
    }
    server.run();
    assert_eq!(server.steps, CROWD - 3);
    assert_eq!(server.metrics().releases_session, CROWD as u64);
    assert!(!server.table.remembers_holds());
}

#[test]
fn renewals_of_a_client_that_ended_keep_nothing_up() {
    let mut server = Server::new();
    for n in 0..CROWD {
        server.take(key(&nth(n)), ask("a").session().lease(300));
    }
    server.sleep(100);
    server.table.connection_ended(ask("a").client, false);
    server.run();
    assert_eq!(server.steps, CROWD);
    assert!(server.keys.is_empty());
    server.check_nothing_is_left();
}

#[test]
fn a_writer_behind_a_crowd_is_searched_for_deadlocks_in_parts() {
    const PARTS: usize = 4;
    const READERS: usize = PARTS * SEARCH_A_STEP;
    for other in ["z".into(), nth(17), nth(READERS - 1)] {
        let mut server = Server::new();
        for n in 0..READERS {
            server.take(K, ask(&nth(n)).shared());
        }
        server.take(L, ask("w"));
        let waiter = server.wait(L, ask(&other));
        let w = server.wait(K, ask("w"));
        // Who leaves meanwhile, or takes one hold more, is in nobody's way.
        for n in 0..PARTS - 1 {
            server.release(K, &nth(SEARCH_A_STEP * n));
            server.take(K, ask(&nth(SEARCH_A_STEP * n + 1)).shared());
            assert!(server.do_one());
        }
        server.run();
        assert!(server.table.is_waiting(waiter));
        let steps = server.steps;
        assert!((PARTS..PARTS + 3).contains(&steps), "{steps}");
        if other == "z" {
            assert!(server.table.is_waiting(w));
        } else {
            let refused = server.refused();
            assert!(matches!(refused[..], [(id, LockError::Deadlock { .. })] if id == w));
        }
    }
}

#[test]
fn a_cycle_of_too_many_is_left_to_the_ends_of_leases() {
    for (count, is_refused) in [(CYCLE_AT_MOST, true), (CYCLE_AT_MOST + 1, false)] {
        let mut server = Server::new();
        let names: Vec<String> = (0..count).map(nth).collect();
        let keys = || names.iter().map(|name| in_db(0, name));
        for (name, key) in names.iter().zip(keys()) {
            server.take(key, ask(name));
        }
        let mut last = None;
        for (name, key) in names.iter().zip(keys().cycle().skip(1)) {
            last = Some(server.wait(key, ask(name)));
        }
        server.run();
        let refused = server.refused();
        let refused: Vec<_> = refused.iter().map(|(id, _)| *id).collect();
        let expected: Vec<_> = last.into_iter().filter(|_| is_refused).collect();
        assert_eq!(refused, expected, "{count} owners");
    }
}

#[test]
fn what_a_crowd_had_to_be_told_leaves_no_memory_behind() {
    let mut server = Server::new();
    let ids = || (0..CROWD as u64).map(WaiterId);
    let now = server.now();
    let table = &mut server.table;
    table.to_close.extend((0..CROWD as u64).map(ClientId));
    let untold = ids().map(|id| (Addressee::Blocked(id, ClientId(0)), Answer::NotGranted));
    table.untold.extend(untold);
    let unchecked = ids().map(|id| Unchecked { id, search: None });
    table.unchecked.extend(unchecked);
    let mut told = 0;
    while !table.to_close.is_empty() || !table.untold.is_empty() {
        told += table.take_clients_to_close(WORK_A_WAKE).len();
        told += table.give_up(now, WORK_A_WAKE).len();
    }
    assert_eq!(told, 2 * CROWD);
    assert!(table.take_due(START_MS).is_none());
    let room = [
        table.to_close.capacity(),
        table.untold.capacity(),
        table.unchecked.capacity(),
    ];
    assert!(room.iter().all(|room| *room <= WORK_A_WAKE), "{room:?}");
}
