use super::*;
use crate::table::connections::WaitEnd;

/// The client that `ask` names after its owner.
fn client(name: &str) -> ClientId {
    ask(name).client
}

fn end(server: &mut Server, client: ClientId) {
    server.table.connection_ended(client);
}

#[test]
fn a_session_ends_with_its_connection_before_the_next_command() {
    let mut server = Server::new();
    let old = server.take(K, ask("a").session());
    server.take(K, ask("a").session());
    end(&mut server, client("a"));
    assert_eq!(server.wake_at_ms(), Some(0));
    assert_eq!(server.holders(K), ["a"], "nothing is written yet");
    let new = server.take(K, ask("b").now());
    assert!(new > old);
    assert_eq!(server.holders(K), ["b"]);
    assert_eq!(server.metrics().releases_session, 1);
    assert!(!server.table.remembers_holds());
    server.run();
    server.check_nothing_is_left();
}

#[test]
fn a_session_that_ended_passes_the_lock_on_without_a_command() {
    let mut server = Server::new();
    let _ = [K, L, M].map(|key| server.take(key, ask("a").session()));
    let waiters = [K, L, M].map(|key| server.wait(key, ask("b")));
    end(&mut server, client("a"));
    server.run();
    let mut granted = server.granted();
    granted.sort();
    assert_eq!(granted, waiters);
    assert_eq!(server.steps, 3);
}

#[test]
fn a_session_ends_while_its_owner_waits_elsewhere() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.take(L, ask("b"));
    let next = server.wait(K, ask("c"));
    // The same owner, by another connection.
    let elsewhere = server.wait(L, ask("a").by(2));
    end(&mut server, client("a"));
    server.run();
    assert_eq!(server.granted(), [next]);
    server.release(L, "b");
    assert_eq!(server.granted(), [elsewhere]);
}

#[test]
fn a_binding_moves_from_a_connection_whose_hold_stands() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.write(K, |value| {
        value.expires_at_ms = Some(START_MS + 2 * LEASE_MS)
    });
    // Nothing was kept up, and yet the hold has never been over.
    server.sleep(LEASE_MS + 1);
    server.take(K, ask("a").session().by(2));
    assert_eq!(server.holds(K, "a"), 2);
    assert!(server.table.to_close.is_empty());
}

#[test]
fn a_connection_whose_lease_ended_unnoticed_is_closed_when_another_is_granted_its_lock() {
    for (next, closed, bound) in [
        (ask("a").session(), vec![], client("a")),
        (ask("a").session().by(2), vec![client("a")], ClientId(2)),
        (ask("b"), vec![client("a")], client("a")),
    ] {
        let mut server = Server::new();
        server.take(K, ask("a").session().lease(300));
        server.sleep(301);
        server.take(K, next);
        assert_eq!(server.table.take_clients_to_close(64), closed);
        assert_eq!(server.table.bound_client(K, &owner("a")), Some(bound));
    }
}

#[test]
fn what_was_released_or_broken_is_bound_to_nobody() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.release(K, "a");
    assert!(!server.table.remembers_holds());
    server.take(K, ask("a"));
    end(&mut server, client("a"));
    server.run();
    assert_eq!(server.holds(K, "a"), 1);
}

#[test]
fn a_grant_that_nobody_heard_of_is_taken_back() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let [_, c] = ["b", "c"].map(|name| server.wait(K, ask(name)));
    server.tells = false;
    server.release(K, "a");
    server.told();
    server.table.client_told(client("b"), false);
    server.run();
    assert_eq!(server.granted(), [c]);
    assert_eq!(server.metrics().grants_undelivered, 1);
    server.table.client_told(client("c"), true);
    server.release(K, "c");
    server.check_nothing_is_left();
}

#[test]
fn a_grant_that_is_given_back_before_it_is_heard_of_leaves_nothing() {
    let mut server = on_its_way();
    assert!(server.table.remembers_holds());
    server.release(K, "b");
    server.table.client_told(client("b"), true);
    server.check_nothing_is_left();
}

#[test]
fn a_grant_is_taken_back_from_no_later_one() {
    let mut server = on_its_way();
    // Somebody deletes the key, and the owner takes the lock anew.
    server.delete(K);
    server.table.client_told(client("b"), false);
    let mut value = Value::by_redisson(&owner("b"), START_MS + 1000);
    value.set(TOKEN_FIELD, server.now_us + 77);
    server.keys.insert(K.into(), value);
    server.run();
    assert_eq!(server.holds(K, "b"), 1);
    assert_eq!(server.metrics().grants_undelivered, 0);
}

#[test]
fn a_hold_that_a_lost_grant_was_first_to_bind_stays_as_it_was() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.pause_grants();
    server.wait(K, ask("a").by(2).session());
    server.resume_grants();
    server.tells = false;
    server.run();
    let bound = |server: &Server| server.table.bound_client(K, &owner("a"));
    assert_eq!((server.holds(K, "a"), bound(&server)), (2, None));
    end(&mut server, ClientId(2));
    server.run();
    assert_eq!((server.holds(K, "a"), bound(&server)), (1, None));
}

#[test]
fn the_lease_of_a_session_is_kept_up() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    assert_eq!(server.wake_at_ms(), Some(START_MS + 100));
    server.pass(10_000);
    assert_eq!(server.holders(K), ["a"]);
    assert!((100..=110).contains(&server.steps), "{}", server.steps);
    assert!(server.table.take_clients_to_close(64).is_empty());
}

#[test]
fn a_session_is_kept_up_by_the_longest_lease_at_most() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(3000));
    server.table.settings.max_lease = Lease::from_ms(300).unwrap();
    server.pass(3000);
    // As long as the first lease lasted, nothing had to be written.
    server.pass(10_000);
    assert_eq!(server.holders(K), ["a"]);
    let end_ms = server.lock(K).next_lease_end_ms().unwrap();
    assert!((server.ms()..=server.ms() + 300).contains(&end_ms));
    assert!(server.table.take_clients_to_close(64).is_empty());
}

#[test]
fn a_session_whose_hold_is_gone_has_its_connection_closed() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    server.sleep(301);
    server.run();
    assert_eq!(server.table.take_clients_to_close(64), [client("a")]);
    assert!(!server.table.remembers_holds());
}

#[test]
fn a_session_whose_hold_was_deleted_lives_on() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    server.delete(K);
    server.pass(150);
    // Somebody ended the hold, and not the server by its failure to keep it up.
    assert!(server.table.take_clients_to_close(64).is_empty());
    assert!(!server.table.remembers_holds());
}

#[test]
fn a_session_that_is_not_kept_up_is_closed_in_time() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    // A longer lease that somebody cuts short is kept up as the session asked for it.
    server.take(K, ask("a").by(2).lease(60_000));
    server.write(K, |value| value.expires_at_ms = Some(START_MS + 300));
    server.pass(150);
    let mut tries = 0;
    let closed = loop {
        let wake_ms = server.wake_at_ms().unwrap();
        server.now_us = server.now_us.max(wake_ms * 1000);
        let closed = server.table.take_clients_to_close(64);
        if !closed.is_empty() {
            break closed;
        }
        let now = server.now();
        assert!(server.table.put_off_everything(now, 64).is_some());
        tries += 1;
    };
    assert_eq!(closed, [client("a")]);
    assert!(server.ms() < START_MS + 400 && server.ms() > START_MS + 370);
    assert!((3..20).contains(&tries), "{tries}");
}

#[test]
fn a_session_on_a_key_that_is_no_lock_is_closed_in_time() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    server.overwrite(K);
    server.pass(299);
    assert_eq!(server.table.take_clients_to_close(64), [client("a")]);
}

#[test]
fn a_session_on_a_key_served_elsewhere_is_closed_in_time() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    for _ in 0..100 {
        let wake_ms = server.wake_at_ms().unwrap();
        server.now_us = server.now_us.max(wake_ms * 1000);
        if let Some(due) = server.table.take_due(server.ms()) {
            server
                .table
                .put_off(due, NotNow::NotServedHere, server.ms());
        }
        if !server.table.to_close.is_empty() {
            break;
        }
    }
    assert_eq!(server.table.take_clients_to_close(64), [client("a")]);
    assert!(server.ms() < START_MS + 300);
}

#[test]
fn on_demotion_all_sessions_are_told_by_their_end() {
    let mut server = Server::new();
    for n in 0..10 {
        for key in [K, L] {
            server.take(key, ask(&nth(n)).shared().session());
        }
    }
    let mut closed = Vec::new();
    server.table.forget_connections(4);
    closed.extend(server.table.take_clients_to_close(64));
    assert_eq!(closed.len(), 2);
    for _ in 0..10 {
        server.table.forget_connections(4);
        closed.extend(server.table.take_clients_to_close(64));
    }
    closed.sort();
    closed.dedup();
    assert_eq!(closed.len(), 10);
    assert!(!server.table.remembers_holds());
    assert_eq!(server.holders(K).len(), 10, "a replica ends nothing");
}

#[test]
fn on_demotion_nothing_is_on_its_way_or_planned_any_more() {
    let mut server = Server::new();
    server.tells = false;
    for key in [K, L, M] {
        server.take(key, ask("x"));
    }
    server.wait(K, ask("a"));
    server.wait_for(L, ask("b").place(), 60_000);
    let b = server.wait(M, ask("b").by(2));
    for key in [K, L] {
        server.release(key, "x");
    }
    server.table.client_told(client("a"), false);
    let table = &mut server.table;
    table.unchecked.insert(b);
    assert!(table.remembers_holds() && !table.ended.is_empty());
    assert!(!table.unclaimed.is_empty() && !table.unchecked.is_empty());
    table.forget_connections(4);
    assert!(!table.remembers_holds() && table.ended.is_empty());
    assert!(table.unclaimed.is_empty() && table.unchecked.is_empty());
}

#[test]
fn the_lease_that_was_renewed_last_is_kept_up() {
    for (first_ms, then_ms) in [(300, 3000), (3000, 300)] {
        let mut server = Server::new();
        server.take(K, ask("a").session().lease(first_ms));
        assert!(server.renew(K, "a", then_ms));
        assert_eq!(server.wake_at_ms(), Some(START_MS + then_ms / 3));
        server.pass(2 * then_ms);
        let end_ms = server.lock(K).expires_at_ms;
        assert_eq!(end_ms, Some(server.ms() + then_ms));
    }
}

#[test]
fn clients_to_close_are_taken_in_portions() {
    let mut server = Server::new();
    server.table.to_close = (0..5).map(ClientId).collect();
    assert_eq!(server.wake_at_ms(), Some(0));
    let sizes = [2, 2, 2].map(|most| server.table.take_clients_to_close(most).len());
    assert_eq!(sizes, [2, 2, 1]);
    assert_eq!(server.wake_at_ms(), None);
}

#[test]
fn waits_that_end_without_the_table_are_counted_by_their_end() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let [b, c] = ["b", "c"].map(|name| server.wait(K, ask(name)));
    server.table.waiter_left(b, WaitEnd::TimeUp, server.ms());
    server.table.waiter_left(c, WaitEnd::Gone, server.ms());
    let metrics = server.metrics();
    assert_eq!((metrics.wait_timeouts, metrics.waits_abandoned), (1, 1));
    assert!(server.table.queues.is_empty());
}

#[test]
fn a_connection_that_ends_twice_ends_once() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    end(&mut server, client("a"));
    end(&mut server, client("a"));
    server.run();
    assert_eq!(server.metrics().releases_session, 1);
    server.check_nothing_is_left();
}

#[test]
fn holds_of_many_clients_that_ended_are_found_by_their_lock() {
    // More holders than clients that ended, and more clients than holders.
    for (holders, ended) in [(50, 3), (2, 40)] {
        let mut server = Server::new();
        for n in 0..holders {
            server.take(K, ask(&nth(n)).shared().session().by(n as u64));
        }
        for n in holders..50 {
            server.take(key(&nth(n)), ask("a").session().by(n as u64));
        }
        for n in 0..ended {
            end(&mut server, ClientId(n));
        }
        let left = holders.saturating_sub(ended as usize);
        let lock = server.lock(K);
        server.table.end_holds_of_gone(K, &lock);
        let seen = server.table.view(K, lock, server.now());
        assert_eq!(seen.holders.len(), left);
        server.break_lock(L, None);
        assert_eq!(server.holders(K).len(), holders);
        server.take(K, ask("z").shared());
        assert_eq!(server.holders(K).len(), left + 1);
    }
}
