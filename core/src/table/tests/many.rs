//! Locks of many holders.

use super::*;

#[test]
fn beyond_the_most_holders_readers_wait_until_one_leaves() {
    let mut server = Server::new();
    server.table.settings.max_holders = 2;
    server.take(K, ask("a").shared());
    server.take(K, ask("b").shared());
    let not_now = server.acquire(K, ask("c").shared().now());
    assert_eq!(not_now, Ok(Acquired::Busy));
    let c = server.wait(K, ask("c").shared());
    // Nobody passes it, and who holds the lock re-enters it.
    let d = server.wait(K, ask("d").shared());
    server.take(K, ask("a").shared());
    server.release(K, "b");
    assert_eq!(server.granted(), [c]);
    server.release(K, "c");
    assert_eq!(server.granted(), [d]);
    assert_eq!(server.holders(K), ["a", "d"]);
}

#[test]
fn who_holds_a_lock_keeps_it_when_the_most_holders_are_fewer() {
    let mut server = Server::new();
    for name in ["a", "b", "c"] {
        server.take(K, ask(name).shared());
    }
    server.table.settings.max_holders = 1;
    assert!(server.renew(K, "a", LEASE_MS));
    let d = server.wait(K, ask("d").limit(3));
    server.release(K, "a");
    server.release(K, "b");
    assert_eq!(server.granted(), []);
    assert_eq!(server.holders(K), ["c"]);
    server.release(K, "c");
    assert_eq!(server.granted(), [d]);
}

#[test]
fn who_waits_for_room_is_let_in_when_there_may_be_more() {
    let mut server = Server::new();
    server.table.settings.max_holders = 1;
    server.take(K, ask("a").shared());
    let b = server.wait(K, ask("b").shared());
    server.table.settings.max_holders = 2;
    server.pass(RECHECK_INTERVAL_MS);
    assert_eq!(server.granted(), [b]);
}

#[test]
fn a_reader_that_waits_for_room_closes_no_cycle() {
    let mut server = Server::new();
    server.table.settings.max_holders = 2;
    server.take(K, ask("a").shared());
    server.take(K, ask("b").shared());
    server.take(L, ask("c"));
    server.wait(L, ask("a"));
    // The other one may leave.
    server.wait(K, ask("c").shared());
}

#[test]
fn all_that_is_over_of_many_holders_ends_with_the_next_step() {
    const MANY: usize = 200;
    for by_session in [false, true] {
        let mut server = Server::new();
        for n in 0..MANY {
            let ask = ask(&nth(n)).by(1).shared();
            server.take(K, if by_session { ask.session() } else { ask });
        }
        match by_session {
            true => server.table.connection_ended(ClientId(1)),
            false => server.sleep(LEASE_MS + 1),
        }
        server.take(K, ask("x").by(2));
        assert_eq!(server.holders(K), ["x"]);
        let metrics = server.metrics();
        let ended = metrics.releases_session + metrics.releases_expired;
        assert!(ended == MANY as u64 || ended == 0, "{ended}");
        server.release(K, "x");
        server.run();
        server.give_up();
        server.check_nothing_is_left();
    }
}

#[test]
fn a_break_takes_a_lock_from_all_of_many_holders() {
    let mut server = Server::new();
    for n in 0..200 {
        server.take(K, ask(&nth(n)).shared().session());
    }
    let w = server.wait(K, ask("w"));
    assert!(server.break_lock(K, None));
    assert_eq!(server.granted(), [w]);
    assert_eq!(server.metrics().releases_broken, 200);
    assert_eq!(server.table.totals(server.now()).sessions, 0);
}

#[test]
fn much_that_ends_with_a_connection_is_over_at_once_and_ended_bit_by_bit() {
    const MANY: usize = 10_000;
    let mut server = Server::new();
    for n in 0..MANY {
        server.take(key(&nth(n)), ask("a").session().by(1));
        let place = ask("b").place().session().by(1);
        server.wait_for(key(&nth(n)), place, 60_000);
    }
    server.table.connection_ended(ClientId(1));
    assert!(server.table.places() >= MANY - ENDS_A_STEP);
    // Wherever somebody looks first.
    for n in [MANY - 1, 17, MANY / 2] {
        server.take(key(&nth(n)), ask("c").now());
        assert_eq!(server.holders(key(&nth(n))), ["c"]);
    }
    while server.table.wake_at_ms(server.now()) == Some(0) {
        server.table.end_some_gone(WORK_A_WAKE);
        let told = server.table.give_up(server.now(), WORK_A_WAKE);
        assert!(told.len() <= 2 * WORK_A_WAKE);
        for _ in 0..WORK_A_WAKE {
            server.do_one();
        }
    }
    assert_eq!(server.metrics().releases_session, MANY as u64);
    assert_eq!((server.table.places(), server.keys.len()), (0, 3));
}

#[test]
fn the_end_of_a_connection_does_not_wait_for_the_crowd_of_another() {
    let mut server = Server::new();
    for n in 0..10 * ENDS_A_STEP {
        server.take(key(&nth(n)), ask("a").session().by(1));
    }
    server.take(K, ask("b").session().by(2));
    let waiter = server.wait(K, ask("c").by(3));
    for client in [1, 2, 4] {
        server.table.connection_ended(ClientId(client));
    }
    assert_eq!(server.table.ended_at_once, ENDS_A_STEP, "of all of them");
    server.table.end_some_gone(4);
    server.run();
    assert_eq!(server.granted(), [waiter]);
}

#[test]
fn many_places_that_are_over_keep_out_no_newcomer() {
    for by_time in [true, false] {
        let mut server = Server::new();
        server.take(K, ask("x"));
        for n in 0..10 * GRANTS_A_STEP {
            let place = ask(&nth(n)).place().session().by(7);
            server.wait_for(K, place, 1000);
        }
        match by_time {
            true => server.sleep(1001),
            false => server.table.connection_ended(ClientId(7)),
        }
        server.renew(K, "x", LEASE_MS);
        server.release(K, "x");
        server.take(K, ask("y").now());
    }
}
