use super::*;

#[test]
fn a_lock_whose_lease_is_over_goes_to_who_waits_in_time() {
    let mut server = Server::new();
    server.take(K, ask("a").lease(50));
    let b = server.wait(K, ask("b"));
    // The server takes a key for expired one millisecond after its time.
    assert_eq!(server.wake_at_ms(), Some(START_MS + 51));
    server.pass(50);
    assert_eq!(server.granted(), []);
    server.pass(1);
    assert_eq!(server.granted(), [b]);
    assert_eq!(server.metrics().releases_expired, 1);
    assert!(server.events().contains(&LockEvent::Expired));
}

#[test]
fn a_contended_lock_is_looked_at_every_so_often() {
    let mut server = Server::new();
    server.table.settings.recheck_interval_ms = 100;
    server.take(K, ask("a"));
    assert_eq!(server.wake_at_ms(), None);
    server.wait(K, ask("b"));
    assert_eq!(server.wake_at_ms(), Some(START_MS + 100));
    server.pass(1000);
    assert_eq!(server.steps, 10);
}

#[test]
fn regular_looks_slow_down_with_the_number_of_locks() {
    let mut server = Server::new();
    server.table.settings.recheck_interval_ms = 10;
    for n in 0..1000 {
        let name = nth(n);
        server.take(key(&name), ask("a"));
        server.wait(key(&name), ask(&name));
    }
    assert_eq!(server.table.regular_recheck_ms(0), 50);
    server.pass(60);
    let before = server.steps;
    server.pass(1000);
    // Twenty thousand a second, however many there are.
    let looks = server.steps - before;
    assert!((18_000..=22_000).contains(&looks), "{looks}");
}

#[test]
fn after_each_step_the_next_look_is_planned() {
    let mut server = Server::new();
    let wake = |server: &Server| server.wake_at_ms().map(|at_ms| at_ms - server.ms());
    server.take(K, ask("a").shared().lease(400));
    assert_eq!(wake(&server), None);
    server.wait(K, ask("w"));
    assert_eq!(wake(&server), Some(401));
    server.take(K, ask("a").shared().lease(300));
    assert_eq!(wake(&server), Some(401));
    assert!(server.renew(K, "a", 200));
    assert_eq!(wake(&server), Some(201));
    let token = server.token(K, "a");
    let stale = FencingToken::new(token.get() - 1).unwrap();
    assert!(!server.break_lock(K, Some(stale)));
    assert_eq!(wake(&server), Some(201));
    let mine = server.release_as(K, "x", ReleaseExtent::One, None);
    assert_eq!(mine, Ok(Released::NotHeld));
    assert_eq!(wake(&server), Some(201));
    server.table.key_touched(K, server.ms());
    assert_eq!(wake(&server), Some(0));
    server.run();
    assert_eq!(wake(&server), Some(201));
}

#[test]
fn a_key_that_became_something_else_has_all_refused() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let crowd: Vec<_> = (0..GRANTS_A_STEP + 7)
        .map(|n| server.wait(K, ask(&nth(n))))
        .collect();
    server.overwrite(K);
    assert!(server.do_one());
    let refused = server.refused();
    assert_eq!(refused.len(), GRANTS_A_STEP);
    assert!(
        refused
            .iter()
            .all(|(_, error)| *error == LockError::WrongType)
    );
    assert_eq!(server.wake_at_ms(), Some(server.ms()));
    server.run();
    let left: Vec<_> = server.refused().iter().map(|(id, _)| *id).collect();
    assert_eq!(left, crowd[GRANTS_A_STEP..]);
    assert_eq!(server.metrics().waits_refused, crowd.len() as u64);
    assert!(server.value(K).is_other);
    server.check_nothing_is_left();
}

#[test]
fn a_lock_in_its_place_again_has_nobody_refused() {
    let (mut server, b) = contended();
    server.overwrite(K);
    server.delete(K);
    server.run();
    assert_eq!(server.granted(), [b]);
}

#[test]
fn every_kind_of_work_has_its_turn() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(30));
    server.take(L, ask("a").session().by(9));
    server.disconnect(9);
    server.take(M, ask("m"));
    let x = server.wait(M, ask("x"));
    server.sleep(10);
    server.table.key_touched(M, server.ms());
    server.table.unchecked.insert(x);
    let mut kinds = Vec::new();
    for _ in 0..4 {
        let due = server.table.take_due(server.ms()).unwrap();
        kinds.push(match &due.work {
            Work::Recheck if due.key == L.into() => "ended",
            Work::Recheck => "recheck",
            Work::Keep(..) => "keep",
            Work::CheckWait(_) => "check",
        });
        server.do_due(due);
    }
    kinds.sort_unstable();
    assert_eq!(kinds, ["check", "ended", "keep", "recheck"]);
    assert!(!server.do_one());
}

#[test]
fn the_next_lock_is_seen_before_it_is_taken() {
    let mut server = Server::new();
    let next = |server: &Server| server.table.next_due(server.ms());
    assert_eq!(next(&server), None);
    server.take(K, ask("a").session());
    server.disconnect(ask("a").client.0);
    assert_eq!(next(&server), Some(K.into()));
    server.run();
    assert_eq!(next(&server), None);
    server.take(L, ask("a").session().lease(30));
    server.sleep(10);
    assert_eq!(next(&server), Some(L.into()));
    server.run();
    server.take(M, ask("m"));
    let x = server.wait(M, ask("x"));
    server.table.unchecked.insert(x);
    assert_eq!(next(&server), Some(M.into()));
    server.run();
    assert_eq!(next(&server), None);
}

#[test]
fn a_look_that_is_refused_comes_again_soon() {
    let (mut server, b) = contended();
    server.delete(K);
    let due = server.table.take_due(server.ms()).unwrap();
    server.table.put_off(due, NotNow::Refused, server.ms());
    assert_eq!(server.wake_at_ms(), Some(server.ms() + REFUSED_RETRY_MS));
    server.pass(REFUSED_RETRY_MS);
    assert_eq!(server.granted(), [b]);
}

#[test]
fn a_look_at_a_key_served_elsewhere_comes_again_later() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.wait(K, ask("b"));
    server.disconnect(ask("a").client.0);
    let due = server.table.take_due(server.ms()).unwrap();
    server
        .table
        .put_off(due, NotNow::NotServedHere, server.ms());
    // Whoever serves the key now knows of no connection here.
    assert!(server.table.ended.is_empty());
    assert_eq!(server.wake_at_ms(), Some(server.ms() + 500));
    assert_eq!(server.holders(K), ["a"]);
}

#[test]
fn what_has_ended_is_tried_again_where_writes_are_refused() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.disconnect(ask("a").client.0);
    let due = server.table.take_due(server.ms()).unwrap();
    server.table.put_off(due, NotNow::Refused, server.ms());
    assert!(server.table.put_off_everything(server.now(), 64).is_some());
    server.run();
    assert_eq!(server.holders(K), [""; 0]);
    assert_eq!(server.table.put_off_everything(server.now(), 64), None);
}

#[test]
fn as_long_as_anybody_waits_it_is_tried_again_whether_writes_are_refused() {
    let (mut server, b) = contended();
    let again_ms = server.table.put_off_everything(server.now(), 64);
    assert_eq!(again_ms, Some(server.ms() + REFUSED_RETRY_MS));
    server.leave(b);
    assert_eq!(server.table.put_off_everything(server.now(), 64), None);
}

#[test]
fn sessions_are_kept_up_in_time_behind_a_crowd_that_was_left() {
    let mut server = Server::new();
    for n in 0..2000 {
        server.take(K, ask(&nth(n)).shared().session());
    }
    server.take(L, ask("a").session());
    server.break_lock(K, None);
    server.sleep(LEASE_MS / 3);
    let mut wakes = 0;
    while !server.do_one() {
        wakes += 1;
        let is_due = |at_ms| at_ms <= server.ms();
        assert!(server.wake_at_ms().is_some_and(is_due));
    }
    assert!(wakes <= 10, "{wakes}");
    let end_ms = server.lock(L).next_lease_end_ms();
    assert_eq!(end_ms, Some(server.ms() + LEASE_MS));
}

#[test]
fn a_check_comes_again_unless_its_key_is_served_elsewhere() {
    let (mut server, b) = contended();
    for (why, checks) in [(NotNow::Refused, 1), (NotNow::NotServedHere, 0)] {
        server.table.unchecked.clear();
        server.table.unchecked.insert(b);
        let due = server.table.take_due(server.ms()).unwrap();
        assert!(matches!(due.work, Work::CheckWait(_)));
        server.table.put_off(due, why, server.ms());
        assert_eq!(server.table.unchecked.len(), checks);
    }
}

#[test]
fn who_waits_no_more_is_not_checked() {
    let (mut server, b) = contended();
    server.table.unchecked.insert(b);
    server.leave(b);
    assert!(server.table.take_due(server.ms()).is_none());
}

#[test]
fn slow_waits_are_logged_once_with_who_holds_the_lock() {
    let mut server = Server::new();
    server.table.settings.log_slow_wait_ms = Some(100);
    server.take(K, ask("a").session());
    server.wait(K, ask("b"));
    assert_eq!(server.wake_at_ms(), Some(START_MS + 100));
    server.pass(99);
    assert_eq!(server.log, []);
    server.pass(1);
    let line = LogLine::SlowWait {
        owner: owner("b"),
        client: ask("b").client,
        waited_ms: 100,
        holders: vec![(owner("a"), Some(ask("a").client))],
        others: 0,
    };
    assert_eq!(server.log, [line]);
    server.pass(5000);
    assert_eq!(server.log.len(), 1);
}

#[test]
fn only_so_many_slow_waits_are_logged_in_one_step() {
    let mut server = Server::new();
    server.table.settings.log_slow_wait_ms = Some(100);
    for n in 0..20 {
        server.take(K, ask(&nth(n)).shared());
    }
    let crowd = 20;
    for n in 0..crowd {
        server.wait(K, ask(&format!("w{n}")));
    }
    server.sleep(100);
    assert!(server.do_one());
    assert_eq!(server.log.len(), 8);
    for line in &server.log {
        let LogLine::SlowWait {
            holders, others, ..
        } = line
        else {
            panic!("{line:?}");
        };
        assert_eq!((holders.len(), *others), (8, 12));
    }
    assert_eq!(server.wake_at_ms(), Some(server.ms()));
    server.run();
    assert_eq!(server.log.len(), crowd);
}

/// As the module does: a wake at a time that the table names, for a bounded number of
/// holds, and then as many closings. A wake takes a millisecond here.
#[test]
fn a_crowd_of_sessions_is_closed_in_time_where_writes_are_refused() {
    const HOLDS: usize = 5000;
    const LEASE_MS: i64 = 1000;
    let mut server = Server::new();
    for n in 0..HOLDS {
        let crowd = ask("crowd").session().lease(LEASE_MS);
        server.take(key(&nth(n)), crowd);
    }
    server.take(K, ask("a").session().lease(LEASE_MS));
    let ends_ms = server.ms() + LEASE_MS;
    let mut closed = Vec::new();
    while closed.len() < 2 {
        let again_ms = server.table.put_off_everything(server.now(), 64).unwrap();
        for client in server.table.take_clients_to_close(64) {
            server.table.connection_ended(client);
            closed.push((client, server.ms()));
        }
        server.now_us = (again_ms.max(server.ms()) + 1) * 1000;
    }
    for (client, at_ms) in closed {
        assert!(
            at_ms < ends_ms,
            "{client:?} is closed at {at_ms} of {ends_ms}"
        );
    }
}
