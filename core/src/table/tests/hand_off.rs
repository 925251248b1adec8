use super::*;

#[test]
fn a_lock_that_comes_free_goes_to_the_first_in_line() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let [b, c] = ["b", "c"].map(|name| server.wait(K, ask(name)));
    server.release(K, "a");
    assert_eq!(server.granted(), [b]);
    assert_eq!(server.holders(K), ["b"]);
    assert!(!server.freed);
    server.release(K, "b");
    assert_eq!(server.granted(), [c]);
    server.release(K, "c");
    assert!(server.freed);
    server.check_nothing_is_left();
    let metrics = server.metrics();
    assert_eq!((metrics.grants_immediate, metrics.hand_offs), (1, 2));
    assert_eq!((metrics.grants_after_wait, metrics.releases), (2, 3));
    assert_eq!(metrics.waits.summary().count, 2);
    assert_eq!(metrics.holds.summary().count, 3);
    let (acquired, released) = (LockEvent::Acquired, LockEvent::Released);
    let expected = [acquired, released, acquired, released, acquired, released];
    assert_eq!(server.events(), expected);
}

#[test]
fn who_waited_gets_the_longest_lease_at_most() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.wait(K, ask("b").lease(5000));
    server.table.settings.max_lease = Lease::from_ms(1000).unwrap();
    server.release(K, "a");
    let end_ms = server.lock(K).next_lease_end_ms();
    assert_eq!(end_ms, Some(server.ms() + 1000));
}

#[test]
fn who_leaves_the_middle_of_the_line_has_nobody_look() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    let [_, c] = ["b", "c"].map(|name| server.wait(K, ask(name)));
    let planned = server.wake_at_ms();
    server.leave(c);
    assert_eq!(server.wake_at_ms(), planned);
}

#[test]
fn many_grants_come_in_portions_with_others_in_between() {
    let mut server = Server::new();
    server.take(K, ask("w"));
    let readers: Vec<_> = (0..2 * GRANTS_A_STEP + 5)
        .map(|n| server.wait(K, ask(&nth(n)).shared()))
        .collect();
    server.release(K, "w");
    assert_eq!(server.granted(), readers[..GRANTS_A_STEP]);
    assert_eq!(server.wake_at_ms(), Some(server.ms()));
    // Nobody passes those that have not had their turn.
    let late = server.wait(K, ask("x"));
    assert_eq!(server.granted(), readers[GRANTS_A_STEP..2 * GRANTS_A_STEP]);
    let reader = ask("y").shared().now();
    assert_eq!(server.acquire(K, reader), Ok(Acquired::Busy));
    assert_eq!(server.granted(), readers[2 * GRANTS_A_STEP..]);
    server.run();
    assert_eq!(server.granted(), []);
    assert!(server.table.is_waiting(late));
}

#[test]
fn reentry_is_delayed_by_nobody_who_waits() {
    let mut server = Server::new();
    let token = server.take(K, ask("a").shared());
    server.wait(K, ask("w"));
    assert_eq!(server.take(K, ask("a").shared()), token);
    assert_eq!(server.holds(K, "a"), 2);
    assert_eq!(server.metrics().reentries, 1);
}

#[test]
fn a_full_queue_takes_nobody_more() {
    let mut server = Server::new();
    server.table.settings.max_waiters = 1;
    server.take(K, ask("a"));
    server.wait(K, ask("b"));
    let full = LockError::QueueFull { max_waiters: 1 };
    assert_eq!(server.acquire(K, ask("c")), Err(full));
    assert_eq!(server.metrics().queues_full, 1);
    assert!(server.table.queues.waits_of(&owner("c")).next().is_none());
}

#[test]
fn a_holder_that_came_by_other_means_is_served_in_the_queue() {
    let (mut server, _) = contended();
    let mine = server.wait(K, ask("c"));
    // Another client of the same owner takes the lock without the module.
    server.put(K, Value::by_redisson(&owner("c"), START_MS + 5000));
    server.run();
    assert_eq!(server.granted(), [mine]);
    assert_eq!(server.holds(K, "c"), 1, "nothing is added");
    assert_eq!(server.metrics().releases_deleted, 1);
}

#[test]
fn a_broken_lock_goes_to_the_next_in_line() {
    let mut server = Server::new();
    let token = server.take(K, ask("a").session());
    let next = server.wait(K, ask("b"));
    let stale = FencingToken::new(token.get() - 1).unwrap();
    assert!(!server.break_lock(K, Some(stale)));
    assert_eq!(server.metrics().tokens_refused, 1);
    assert!(server.break_lock(K, Some(token)));
    assert_eq!(server.granted(), [next]);
    assert!(!server.freed && !server.table.remembers_holds());
    assert_eq!(server.metrics().releases_broken, 1);
    assert!(server.events().contains(&LockEvent::Broken));
    assert!(server.break_lock(K, None) && server.freed);
    assert!(!server.break_lock(K, None) && !server.freed);
}

#[test]
fn who_names_another_token_is_counted() {
    let mut server = Server::new();
    let token = server.take(K, ask("a"));
    let stale = FencingToken::new(token.get() - 1).ok();
    let released = server.release_as(K, "a", ReleaseExtent::One, stale);
    assert_eq!(released, Ok(Released::NotHeld));
    assert!(!server.renew_as(K, "a", 10, stale));
    assert_eq!(server.metrics().tokens_refused, 2);
    // An owner that holds nothing names no other token.
    let released = server.release_as(K, "b", ReleaseExtent::One, stale);
    assert_eq!(released, Ok(Released::NotHeld));
    assert!(!server.renew_as(K, "b", 10, stale));
    assert_eq!(server.metrics().tokens_refused, 2);
    assert!(server.renew_as(K, "a", 10, Some(token)));
}
