use super::*;

/// How much the clock is set by. Leases are shorter.
const STEP_MS: i64 = 3_600_000;

impl Server {
    /// The wall clock is set by this much, and the table is told.
    pub(super) fn set_clock(&mut self, by_ms: i64) {
        self.now_us += by_ms * 1000;
        self.table.clock_stepped(by_ms, self.ms());
    }

    /// The same, but the server has expired what is over by its clock before.
    pub(super) fn set_clock_late(&mut self, by_ms: i64) {
        self.now_us += by_ms * 1000;
        self.expire();
        self.table.clock_stepped(by_ms, self.ms());
    }

    /// How long the owner's lease runs, in milliseconds.
    fn left_ms(&self, key: KeyRef<'_>, name: &str) -> i64 {
        let lock = self.lock(key);
        lock.holder(&owner(name)).unwrap().lease_end_ms.unwrap() - self.ms()
    }
}

const WAYS: [fn(&mut Server, i64); 2] = [Server::set_clock, Server::set_clock_late];

#[test]
fn a_step_forward_takes_no_lock_that_somebody_waits_for() {
    for set_clock in WAYS {
        let mut server = Server::new();
        let token = server.take(K, ask("a"));
        server.take(K, ask("a"));
        let b = server.wait(K, ask("b"));
        server.sleep(1000);
        set_clock(&mut server, STEP_MS);
        server.run();
        assert_eq!((server.granted(), server.holds(K, "a")), (vec![], 2));
        assert_eq!(
            (server.token(K, "a"), server.left_ms(K, "a")),
            (token, LEASE_MS - 1000)
        );
        assert_eq!(server.events(), [LockEvent::Acquired]);
        assert_eq!(server.metrics().releases_expired, 0);
        server.pass(LEASE_MS - 1000);
        assert_eq!(server.granted(), []);
        server.pass(1);
        assert_eq!(server.granted(), [b]);
        assert!(server.token(K, "b") > token);
    }
}

#[test]
fn whoever_comes_first_after_a_step_finds_the_holder_in_its_place() {
    for set_clock in WAYS {
        let mut server = Server::new();
        let token = server.take(K, ask("a"));
        server.wait(K, ask("b"));
        set_clock(&mut server, STEP_MS);
        assert_eq!(server.acquire(K, ask("c").now()), Ok(Acquired::Busy));
        set_clock(&mut server, STEP_MS);
        assert_eq!(server.take(K, ask("a").hold(1)), token);
        set_clock(&mut server, STEP_MS);
        assert!(server.guard(K, token));
        set_clock(&mut server, STEP_MS);
        assert!(server.renew_as(K, "a", LEASE_MS, Some(token)));
        set_clock(&mut server, STEP_MS);
        assert!(server.break_lock(K, Some(token)));
        assert_eq!(server.granted().len(), 1);
    }
}

#[test]
fn what_is_written_is_the_hold_and_its_new_end() {
    let mut server = Server::new();
    let token = server.take(K, ask("a"));
    server.wait(K, ask("b"));
    let at_ms = START_MS + LEASE_MS + STEP_MS;
    server.set_clock_late(STEP_MS);
    assert!(server.do_one());
    let put_back = Effect::SetHolder {
        owner: owner("a"),
        holds: 1,
        permit: None,
        new_token: Some(token),
    };
    assert_eq!(server.effects[..], [put_back, Effect::ExpireAt { at_ms }]);
    let at_ms = at_ms + 5000;
    server.set_clock(5000);
    assert!(server.do_one());
    assert_eq!(server.effects[..], [Effect::ExpireAt { at_ms }]);
    server.run();
    assert!(server.effects.is_empty());
}

#[test]
fn all_who_share_a_lock_keep_it_as_long_as_they_would_have() {
    for set_clock in WAYS {
        for by_ms in [STEP_MS, 5000, -STEP_MS] {
            let mut server = Server::new();
            server.take(K, ask("a").limit(3));
            server.take(K, ask("b").limit(3).lease(10_000));
            server.take(K, ask("c").limit(4).lease(1000));
            let d = server.wait(K, ask("d").limit(3));
            let token = server.token(K, "c");
            set_clock(&mut server, by_ms);
            server.run();
            for (name, lease_ms) in [("a", LEASE_MS), ("b", 10_000), ("c", 1000)] {
                assert_eq!(server.left_ms(K, name), lease_ms, "{name} by {by_ms}");
            }
            assert_eq!(server.lock(K).last_token(), Some(token));
            assert_eq!(server.lock(K).expires_at_ms(), Some(server.ms() + LEASE_MS));
            server.pass(1000);
            assert_eq!(server.granted(), []);
            server.pass(2);
            assert_eq!(server.granted(), [d]);
            assert_eq!(server.holders(K), ["a", "b", "d"]);
        }
    }
}

#[test]
fn what_is_over_by_any_clock_is_handed_on_at_once() {
    for set_clock in WAYS {
        let mut server = Server::new();
        server.take(K, ask("a").lease(500));
        let b = server.wait(K, ask("b"));
        server.take(L, ask("a").shared().lease(500));
        server.take(L, ask("x").shared());
        server.wait(L, ask("c"));
        // The process was stopped.
        server.sleep(501);
        set_clock(&mut server, STEP_MS);
        server.run();
        assert_eq!(server.granted(), [b]);
        assert_eq!(server.metrics().releases_expired, 2);
        assert_eq!(server.left_ms(L, "x"), LEASE_MS - 501);
    }
}

#[test]
fn a_lease_is_no_longer_for_a_step_backward() {
    let (mut server, b) = contended();
    server.set_clock(-STEP_MS);
    server.pass(LEASE_MS);
    assert_eq!(server.granted(), []);
    server.pass(1);
    assert_eq!(server.granted(), [b]);
}

#[test]
fn steps_that_cancel_each_other_change_nothing() {
    let (mut server, b) = contended();
    server.set_clock(STEP_MS);
    server.set_clock(-STEP_MS);
    server.pass(LEASE_MS);
    assert_eq!((server.granted(), server.effects.len()), (vec![], 0));
    server.pass(1);
    assert_eq!(server.granted(), [b]);
}

#[test]
fn a_lease_that_began_after_the_step_is_not_moved() {
    let (mut server, _) = contended();
    server.now_us += 5_000_000;
    let end_ms = server.ms() + LEASE_MS;
    server.write(K, |value| value.expires_at_ms = Some(end_ms));
    server.table.clock_stepped(5000, server.ms());
    server.run();
    assert_eq!(server.left_ms(K, "a"), LEASE_MS);
    // Nor one that began before anybody waited.
    server.take(L, ask("a"));
    server.now_us += 5_000_000;
    server.table.clock_stepped(5000, server.ms());
    server.wait(L, ask("c"));
    server.run();
    assert_eq!(server.left_ms(L, "a"), LEASE_MS - 5000);
}

#[test]
fn what_somebody_else_ended_is_not_put_back() {
    let ends: [fn(&mut Server); 4] = [
        |server| server.delete(K),
        |server| server.overwrite(K),
        |server| server.rename(K, L),
        |server| {
            // The server expires it, and somebody else has it for a moment.
            server.expire();
            server.write(K, |value| value.set(b"c", 1));
            server.delete(K);
        },
    ];
    for end in ends {
        let (mut server, b) = contended();
        server.now_us += STEP_MS * 1000;
        if server.keys.contains_key(&K.into()) {
            end(&mut server);
        }
        server.table.clock_stepped(STEP_MS, server.ms());
        server.delete(K);
        server.run();
        assert_eq!(server.granted(), [b]);
    }
}

#[test]
fn clocks_and_ends_of_leases_are_followed_while_it_matters() {
    let mut server = Server::new();
    let follows = |server: &Server| {
        [
            server.table.follows_clock(),
            server.table.follows_lease_ends(),
        ]
    };
    server.take(K, ask("a"));
    assert_eq!(follows(&server), [false; 2]);
    let b = server.wait(K, ask("b"));
    assert_eq!(follows(&server), [true; 2]);
    server.leave(b);
    assert_eq!(follows(&server), [false; 2]);
    server.take(K, ask("a").session());
    assert_eq!(follows(&server), [true; 2]);
    server.release_as(K, "a", ReleaseExtent::All, None).unwrap();
    assert_eq!(follows(&server), [false; 2]);
}

#[test]
fn what_ends_at_this_moment_is_put_back_until_it_has() {
    let (mut server, b) = contended();
    server.sleep(LEASE_MS);
    server.set_clock_late(STEP_MS);
    server.run();
    assert_eq!((server.granted(), server.left_ms(K, "a")), (vec![], 0));
    server.pass(1);
    assert_eq!(server.granted(), [b]);
}

#[test]
fn who_came_in_between_by_other_means_keeps_it() {
    let (mut server, b) = contended();
    server.now_us += STEP_MS * 1000;
    server.expire();
    let end_ms = server.ms() + LEASE_MS;
    server.write(K, |value| {
        value.set(b"c", 1);
        value.expires_at_ms = Some(end_ms);
    });
    server.table.clock_stepped(STEP_MS, server.ms());
    server.run();
    assert_eq!(server.holders(K), ["c"]);
    assert_eq!(server.left_ms(K, "c"), LEASE_MS);
    assert_eq!(server.granted(), []);
    server.delete(K);
    server.run();
    assert_eq!(server.granted(), [b]);
}

#[test]
fn a_hold_of_redissons_is_put_back_as_it_was() {
    let mut server = Server::new();
    let end_ms = server.ms() + LEASE_MS;
    server.write(K, |value| {
        value.set(b"r", 2);
        value.expires_at_ms = Some(end_ms);
    });
    server.wait(K, ask("b"));
    let before = server.value(K).fields;
    server.set_clock_late(STEP_MS);
    server.run();
    assert_eq!(server.value(K).fields, before);
    assert_eq!(server.left_ms(K, "r"), LEASE_MS);
}

#[test]
fn it_is_put_back_though_nobody_waits_any_more() {
    for set_clock in WAYS {
        let (mut server, b) = contended();
        set_clock(&mut server, STEP_MS);
        server.leave(b);
        server.table.key_touched(L, server.ms());
        assert_eq!(server.table.wake_at_ms(), Some(0));
        server.run();
        assert_eq!(server.left_ms(K, "a"), LEASE_MS);
        server.release(K, "a");
        server.check_nothing_is_left();
    }
}

#[test]
fn of_a_lock_that_nobody_waits_for_nothing_is_known() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.set_clock_late(STEP_MS);
    server.run();
    server.take(K, ask("b"));
    assert_eq!(server.holders(K), ["b"]);
}

#[test]
fn a_step_forward_takes_no_lock_of_a_session() {
    for set_clock in WAYS {
        let mut server = Server::new();
        let token = server.take(K, ask("a").session());
        server.take(K, ask("a"));
        server.take(K, ask("a").session().lease(1000));
        server.release(K, "a");
        server.take(L, ask("a").session().limit(2));
        server.take(L, ask("b").limit(2));
        for _ in 0..3 {
            set_clock(&mut server, STEP_MS);
            server.run();
            assert_eq!((server.holds(K, "a"), server.token(K, "a")), (2, token));
            assert_eq!(server.left_ms(K, "a"), LEASE_MS);
            assert_eq!(server.lock(L).strictest_limit(), Limit::from_count(2).ok());
            assert_eq!(server.holders(L), ["a", "b"]);
        }
        // It is kept up as before.
        server.pass(LEASE_MS * 2);
        assert_eq!(server.holds(K, "a"), 2);
        assert!(server.table.to_close.is_empty());
        server.table.connection_ended(ask("a").client, false);
        server.run();
        assert!(server.lock(K).is_free());
        assert_eq!(server.holds(L, "a"), 0);
    }
}

#[test]
fn a_session_that_a_step_does_not_overtake_is_renewed_in_time() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.set_clock(LEASE_MS - 1000);
    server.pass(LEASE_MS * 2);
    assert_eq!(server.holds(K, "a"), 1);
    server.set_clock(-STEP_MS);
    server.pass(LEASE_MS * 2);
    assert_eq!(server.holds(K, "a"), 1);
    assert!(server.table.to_close.is_empty());
}

#[test]
fn a_session_that_is_over_is_not_put_back() {
    for set_clock in WAYS {
        let mut server = Server::new();
        server.take(K, ask("a").session());
        server.table.connection_ended(ask("a").client, false);
        set_clock(&mut server, STEP_MS);
        server.take(K, ask("b"));
        server.release(K, "b");
        // Nobody could keep up the lease in time.
        server.take(K, ask("a").session());
        server.sleep(LEASE_MS + 1);
        set_clock(&mut server, STEP_MS);
        server.run();
        assert!(server.lock(K).is_free());
        assert_eq!(server.table.take_clients_to_close(9), [ask("a").client]);
        server.check_nothing_is_left();
    }
}

/// Its binding stays until somebody looks at the lock.
#[test]
fn a_session_that_somebody_has_robbed_is_not_put_back() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.delete(K);
    server.take(K, ask("b").session());
    server.set_clock_late(STEP_MS);
    server.run();
    assert_eq!(server.holders(K), ["b"]);
    // A script has it now.
    server.delete(K);
    let end_ms = server.ms() + LEASE_MS;
    server.write(K, |value| {
        value.set(b"r", 1);
        value.expires_at_ms = Some(end_ms);
    });
    server.set_clock_late(STEP_MS);
    server.run();
    assert!(server.lock(K).is_free());
}

#[test]
fn a_session_is_known_though_nobody_waits_any_more() {
    for set_clock in WAYS {
        let mut server = Server::new();
        server.take(K, ask("a").session());
        let b = server.wait(K, ask("b"));
        server.leave(b);
        set_clock(&mut server, STEP_MS);
        server.take(L, ask("x").limit(2));
        server.take(L, ask("a").session().limit(2));
        server.wait(L, ask("b").limit(2));
        server.release(L, "x");
        set_clock(&mut server, STEP_MS);
        server.run();
        assert_eq!(server.holders(K), ["a"]);
        assert_eq!(server.holders(L), ["a", "b"]);
        server.release(L, "b");
        server.release(L, "a");
        server.release(K, "a");
        server.told();
        server.check_nothing_is_left();
    }
}

#[test]
fn a_session_lock_that_somebody_deletes_after_a_step_is_free() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.set_clock_late(STEP_MS);
    server.delete(K);
    server.run();
    assert!(server.lock(K).is_free());
    server.check_nothing_is_left();
}

#[test]
fn a_session_that_ends_and_waits_in_one_step_ends() {
    for set_clock in WAYS {
        let mut server = Server::new();
        server.take(K, ask("a").session());
        let b = server.wait(K, ask("b"));
        server.table.connection_ended(ask("a").client, false);
        set_clock(&mut server, STEP_MS);
        server.run();
        assert_eq!(server.granted(), [b]);
    }
}

#[test]
fn what_can_not_be_written_now_is_put_back_later() {
    let (mut server, _) = contended();
    server.set_clock_late(STEP_MS);
    let due = server.table.take_due(server.ms()).unwrap();
    server.table.put_off(due, NotNow::Refused, server.ms());
    assert_eq!(server.table.next_due(server.ms()), Some(K.into()));
    assert!(server.table.put_off_everything(server.ms(), 9).is_some());
    server.run();
    assert_eq!(server.left_ms(K, "a"), LEASE_MS);
}

#[test]
fn what_another_node_serves_is_forgotten() {
    let (mut server, b) = contended();
    server.set_clock_late(STEP_MS);
    server.leave(b);
    let due = server.table.take_due(server.ms()).unwrap();
    server
        .table
        .put_off(due, NotNow::NotServedHere, server.ms());
    server.check_nothing_is_left();
}

#[test]
fn a_replica_puts_nothing_back() {
    let (mut server, b) = contended();
    server.set_clock_late(STEP_MS);
    server.leave(b);
    server.table.forget_connections(9);
    server.check_nothing_is_left();
}

#[test]
fn a_lock_of_many_with_a_session_is_put_back() {
    for set_clock in WAYS {
        let mut server = Server::new();
        for n in 0..=crate::bounds::FEW {
            server.take(K, ask(&nth(n)).shared());
        }
        server.take(K, ask("a").shared().session());
        for _ in 0..2 {
            set_clock(&mut server, STEP_MS);
            server.run();
            assert_eq!(server.holders(K).len(), crate::bounds::FEW + 2);
        }
    }
}

#[test]
fn a_lock_of_many_is_moved_and_one_of_a_crowd_is_not() {
    for (count, is_moved) in [(crate::bounds::FEW + 1, true), (600, false)] {
        let mut server = Server::new();
        for n in 0..count {
            server.take(K, ask(&nth(n)).shared());
        }
        server.wait(K, ask("w"));
        server.set_clock(5000);
        server.run();
        let left_ms = if is_moved { LEASE_MS } else { LEASE_MS - 5000 };
        assert_eq!(server.left_ms(K, &nth(0)), left_ms, "{count}");
    }
}

#[test]
fn an_unclaimed_grant_to_a_place_can_be_claimed_as_long_as_without_a_step() {
    for set_clock in WAYS {
        for by_ms in [STEP_MS, -STEP_MS] {
            let mut server = Server::new();
            server.take(K, ask("x"));
            let place = ask("a").place().by(7).session();
            server.wait_for(K, place, 60_000);
            server.release(K, "x");
            let (token, left_ms) = (server.token(K, "a"), server.left_ms(K, "a"));
            set_clock(&mut server, by_ms);
            server.run();
            server.give_up();
            assert_eq!(
                (server.token(K, "a"), server.left_ms(K, "a")),
                (token, left_ms)
            );
            server.pass(left_ms - 1);
            server.give_up();
            assert!(server.renew_as(K, "a", LEASE_MS, Some(token)));
            assert_eq!(server.metrics().claims, 1);
            server.pass(3 * LEASE_MS);
            assert_eq!(server.token(K, "a"), token);
        }
    }
}

#[test]
fn an_unclaimed_grant_to_a_place_ends_as_soon_as_without_a_step() {
    for set_clock in WAYS {
        for by_ms in [STEP_MS, -STEP_MS] {
            let mut server = Server::new();
            server.take(K, ask("x"));
            server.wait_for(K, ask("a").place().by(7).session(), 60_000);
            let b = server.wait(K, ask("b"));
            server.release(K, "x");
            let left_ms = server.left_ms(K, "a");
            set_clock(&mut server, by_ms);
            server.run();
            server.pass(left_ms + 1);
            server.give_up();
            assert_eq!(server.metrics().grants_unclaimed, 1);
            assert!(server.granted().contains(&b));
            assert_eq!(server.holders(K), ["b"]);
        }
    }
}

#[test]
fn a_step_that_is_noticed_with_a_request_leaves_the_holder_the_lock_that_a_place_waits_for() {
    for set_clock in WAYS {
        let mut server = Server::new();
        let token = server.take(K, ask("x"));
        server.wait_for(K, ask("a").place(), 2 * STEP_MS);
        set_clock(&mut server, STEP_MS);
        assert_eq!(server.acquire(K, ask("a").now()), Ok(Acquired::Busy));
        assert_eq!((server.token(K, "x"), server.offers), (token, 0));
        assert_eq!(server.left_ms(K, "x"), LEASE_MS);
        // Its own time follows the wall clock.
        set_clock(&mut server, STEP_MS);
        server.run();
        server.give_up();
        assert_eq!((server.table.places(), server.token(K, "x")), (0, token));
        assert_eq!(server.left_ms(K, "x"), LEASE_MS);
    }
}
