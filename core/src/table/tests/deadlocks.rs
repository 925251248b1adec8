use super::*;
use crate::bounds::WAITS_LOOKED_AT;
use crate::cycle::spell;

/// Two owners that hold a lock each.
fn a_holds_k_and_b_holds_l() -> Server {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.take(L, ask("b"));
    server
}

#[track_caller]
fn check_deadlock(server: &mut Server, key: KeyRef<'_>, ask: Ask, way: &str) {
    let refused = server.metrics().deadlocks_refused;
    match server.acquire(key, ask) {
        Err(LockError::Deadlock { cycle }) => {
            assert_eq!(spell(&cycle, |_| true), spelled(way));
            let line = LogLine::DeadlockRefused(cycle);
            assert_eq!(server.log.last(), Some(&line));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.metrics().deadlocks_refused, refused + 1);
}

/// The cycle for which this waiter was refused.
#[track_caller]
fn cycle_of(server: &mut Server, waiter: WaiterId) -> String {
    match &server.refused()[..] {
        [(id, LockError::Deadlock { cycle })] if *id == waiter => spell(cycle, |_| true),
        other => panic!("{other:?}"),
    }
}

/// Each word is what somebody does: `a:k` takes the lock, `a>k` waits for it, `a-k` gives it
/// back and `a/k` its wait up. A `*` behind asks for it shared, a number for a permit.
fn play(server: &mut Server, scene: &str) -> Result<Acquired, LockError> {
    let mut last = Ok(Acquired::Busy);
    for word in scene.split(' ') {
        let (name, does, on, mode) = (&word[..1], &word[1..2], key(&word[2..3]), &word[3..]);
        let asks = match mode {
            "" => ask(name),
            "*" => ask(name).shared(),
            count => ask(name).limit(count.parse().unwrap()),
        };
        match does {
            "-" => server.release(on, name),
            "/" => {
                let waiter = server.table.queues.waiter_of(on, &owner(name));
                server.leave(waiter.unwrap().id);
            }
            _ => {
                last = server.acquire(on, asks);
                let waits = matches!(last, Ok(Acquired::Queued(_)));
                assert!(last.is_err() || waits == (does == ">"), "{word} of {scene}");
            }
        }
    }
    last
}

/// `a k b l a`: `a` waits for `k` held by `b`, which waits for `l` held by `a`.
fn spelled(way: &str) -> String {
    let way: Vec<&str> = way.split(' ').collect();
    let edges = way.windows(3).step_by(2);
    let edges = edges.map(|edge| match edge {
        [waiter, key, holder] => format!("'{waiter}' waits for '{key}' held by '{holder}'"),
        _ => unreachable!(),
    });
    edges.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_last_wait_of_a_cycle_is_refused_and_no_other() {
    for (scene, way) in [
        ("a:k b:l c>k d>k c>l", None),
        ("a:k b:l a>l b>k", Some("b k a l b")),
        ("a:k b:l c:m a>l b>m c>k", Some("c k a l b m c")),
        // `d` would wait for `c` as well, which waits for `a`. The shorter way is told.
        ("c:k* a:k* d:l a:m c>m a>l d>k", Some("d k a l d")),
        // Every holder is waited for.
        ("a:k* b:k* c:k* d:l a>l d>k", Some("d k a l d")),
        ("a:k* b:k* c:k* d:l b>l d>k", Some("d k b l d")),
        ("a:k* b:k* c:k* d:l c>l d>k", Some("d k c l d")),
        // An owner that gets in waits for nobody, and another of several permits may come free.
        ("a:k2 b:l a>l b:k2", None),
        ("a:k2 c:k2 b:l a>l b>k2", None),
        ("a:k2 c:k2 b:l b>k2 a>l", None),
        // Behind a writer every reader is waited for.
        ("a:k* c:k* b:l d>k a>l b>k*", Some("b k a l b")),
        // Readers are let in together, when who holds it all alone has left.
        ("a:k b:l c>k* c>l b>k*", None),
        ("a:k b:l a>l b>k*", Some("b k a l b")),
        // An owner that waits for two locks at once is no link.
        ("a:k b:l c>k c>l b>k", None),
        // A waiter does not wait for those behind it, here and there.
        ("a:k b:l a>l c>l c>l a>l", None),
        ("a:k b:l a>l c>l c>k a>l", None),
        // A wait that was given up is none, and an owner that was handed a lock holds it.
        ("a:k b:l a>l a/l b>k", None),
        ("a:k b:l c>k d>k a-k c>l a>k b>k", Some("b k c l b")),
    ] {
        let mut server = Server::new();
        let told = match play(&mut server, scene) {
            Err(LockError::Deadlock { cycle }) => {
                assert_eq!(server.log, [LogLine::DeadlockRefused(cycle.clone())]);
                Some(spell(&cycle, |_| true))
            }
            _ => None,
        };
        assert_eq!(told, way.map(spelled), "{scene}");
        let refused = server.metrics().deadlocks_refused;
        assert_eq!(refused, u64::from(way.is_some()));
        // Refused, it waits for nobody, and others may wait for it.
        server.acquire(K, ask("z")).unwrap();
        server.acquire(L, ask("z")).unwrap();
    }
}

#[test]
fn a_place_that_is_over_closes_no_cycle() {
    for by_time in [true, false] {
        let mut server = a_holds_k_and_b_holds_l();
        server.wait_for(L, ask("a").place().by(7).session(), 1000);
        server.end_places(by_time);
        server.wait(K, ask("b"));
        // It can close one again.
        check_deadlock(&mut server, L, ask("a").place(), "a l b k a");
    }
}

#[test]
fn who_stands_behind_a_place_that_is_over_does_not_wait_for_its_owner() {
    for by_time in [true, false] {
        let mut server = Server::new();
        server.take(K, ask("x"));
        server.take(L, ask("b"));
        server.wait_for(K, ask("a").place().by(7).session(), 1000);
        server.wait(K, ask("b"));
        server.end_places(by_time);
        server.wait(L, ask("a"));
    }
}

#[test]
fn detection_can_be_switched_off() {
    let mut server = a_holds_k_and_b_holds_l();
    server.table.settings.deadlock_detection = false;
    server.wait(L, ask("a"));
    server.wait(K, ask("b"));
    server.run();
    assert_eq!(server.told(), []);
}

#[test]
fn a_ring_that_the_newcomer_would_only_wait_for_is_not_its_own() {
    let mut server = a_holds_k_and_b_holds_l();
    server.table.settings.deadlock_detection = false;
    server.wait(L, ask("a"));
    server.wait(K, ask("b"));
    server.table.settings.deadlock_detection = true;
    server.wait(K, ask("c"));
}

#[test]
fn keys_that_the_reader_may_not_read_are_not_named() {
    let mut server = a_holds_k_and_b_holds_l();
    server.take(M, ask("c"));
    server.wait(L, ask("a"));
    server.wait(M, ask("b"));
    let Err(LockError::Deadlock { cycle }) = server.acquire(K, ask("c")) else {
        panic!("no deadlock");
    };
    let told = "'c' waits for 'k' held by 'a', \
                others wait for keys that this user may not read";
    assert_eq!(spell(&cycle, |key| key == K), told);
}

#[test]
fn names_are_spelled_so_that_they_can_be_read() {
    let mut server = Server::new();
    let binary = || {
        let mut ask = ask("x");
        ask.request.owner = Owner::new(b"\xff'").unwrap();
        ask
    };
    server.take(K, binary());
    server.take(M, ask("a"));
    server.wait(M, binary());
    check_deadlock(&mut server, K, ask("a"), r"a k \xff\' m a");
}

#[test]
fn a_holder_in_many_queues_is_searched_for_in_all() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    for n in 0..20 {
        server.take(key(&nth(n)), ask("x"));
        server.wait(key(&nth(n)), ask("a"));
    }
    server.take(M, ask("b"));
    server.wait(M, ask("a"));
    check_deadlock(&mut server, K, ask("b"), "b k a m b");
}

#[test]
fn where_no_other_key_can_be_read_a_wait_is_refused_later() {
    let mut server = a_holds_k_and_b_holds_l();
    server.table.settings.reads_other_keys = false;
    server.wait(L, ask("a"));
    let b = server.wait(K, ask("b"));
    assert_eq!(server.questions, 0);
    server.run();
    assert_eq!(cycle_of(&mut server, b), spelled("b k a l b"));
    assert_eq!(server.questions, 1);
    assert_eq!(server.metrics().deadlocks_refused, 1);
}

#[test]
fn a_holder_that_has_let_others_in_meanwhile_is_not_waited_for() {
    let mut server = a_holds_k_and_b_holds_l();
    server.wait(L, ask("a").limit(2));
    // Nobody has told of this yet.
    let mut held = server.lock(L).holders()[0].clone();
    held.limit = Limit::from_count(2).unwrap();
    let permit = held.permit().unwrap().to_text();
    let value = server.keys.get_mut(&KeyBuf::from(L)).unwrap();
    value.set(&permit_field(&owner("b")), permit);
    server.wait(K, ask("b"));
    assert_eq!(server.questions, 1);
}

#[test]
fn who_is_left_a_hold_by_a_lost_grant_is_waited_for() {
    let mut server = a_holds_k_and_b_holds_l();
    server.pause_grants();
    server.wait(L, ask("b").by(2));
    server.wait(L, ask("a"));
    server.resume_grants();
    server.tells = false;
    server.run();
    server.table.client_told(ClientId(2), false);
    assert_eq!(server.holds(L, "b"), 2);
    assert!(!server.table.ended.is_empty());
    check_deadlock(&mut server, K, ask("b"), "b k a l b");
}

#[test]
fn holders_that_are_remembered_wrongly_have_nobody_refused() {
    let mut server = a_holds_k_and_b_holds_l();
    server.wait(L, ask("a"));
    // Nobody has told of this yet.
    let value = server.keys.get_mut(&KeyBuf::from(L)).unwrap();
    value.set(b"x", 1);
    value.remove(b"b");
    server.wait(K, ask("b"));
    assert_eq!(server.questions, 1);
}

#[test]
fn what_is_remembered_wrongly_of_many_locks_is_followed_for_a_while() {
    let mut server = Server::new();
    for n in 0..300 {
        server.take(K, ask(&nth(n)).shared());
        server.take(key(&nth(n)), ask("a"));
        server.wait(key(&nth(n)), ask(&nth(n)));
        // Nobody has told of this yet.
        let value = server.keys.get_mut(&KeyBuf::from(key(&nth(n)))).unwrap();
        value.set(b"x", 1);
        value.remove(b"a");
    }
    server.wait(K, ask("a"));
    assert!(server.questions < 40, "{}", server.questions);
}

#[test]
fn a_session_that_ended_makes_no_cycle() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.take(L, ask("b").session());
    server.wait(L, ask("a"));
    server.disconnect(ask("b").client.0);
    server.wait(K, ask("b").by(2));
}

#[test]
fn what_is_remembered_of_large_locks_is_believed_unread() {
    let mut server = Server::new();
    for n in 0..20 {
        server.take(K, ask(&nth(n)).shared());
    }
    server.take(L, ask("a"));
    server.wait(K, ask("a"));
    check_deadlock(&mut server, L, ask(&nth(7)), "n00007 l a k n00007");
    assert_eq!(server.questions, 1);
}

#[test]
fn what_is_over_of_other_large_locks_makes_no_cycle() {
    for end in 0..4 {
        let mut server = Server::new();
        let lasts = |ask: Ask| ask.lease(10 * LEASE_MS);
        for n in 0..20 {
            server.take(K, lasts(ask(&nth(n)).shared()));
        }
        server.take(L, lasts(ask("a")));
        match end {
            0 => drop(server.take(K, ask("b").shared())),
            1 => drop(server.take(K, lasts(ask("b").shared().session()))),
            _ => {
                let writer = server.wait(K, ask("w"));
                server.wait(K, lasts(ask("b").shared()));
                server.tells = false;
                server.leave(writer);
                server.run();
                server.told();
            }
        }
        server.wait(K, ask("a"));
        let is_over = match end {
            0 => {
                server.sleep(LEASE_MS + 1);
                true
            }
            1 => {
                server.disconnect(ask("b").client.0);
                true
            }
            heard => {
                server.table.client_told(ask("b").client, heard == 3);
                heard == 2
            }
        };
        assert_eq!(server.holds(K, "b"), 1);
        let b = server.acquire(L, ask("b").by(9));
        assert_eq!(server.questions, 1);
        match is_over {
            true => assert!(matches!(b, Ok(Acquired::Queued(_))), "end {end}: {b:?}"),
            false => assert!(matches!(b, Err(LockError::Deadlock { .. })), "{b:?}"),
        }
    }
}

#[test]
fn where_one_was_refused_those_behind_may_be_let_in() {
    let mut server = a_holds_k_and_b_holds_l();
    server.table.settings.reads_other_keys = false;
    server.take(M, ask("c").shared());
    server.take(M, ask("d").shared());
    server.wait(L, ask("c"));
    let writer = server.wait(M, ask("b"));
    let reader = server.wait(M, ask("e").shared());
    server.run();
    let told = server.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(matches!(&told[0], (id, Answer::Refused(_)) if *id == writer));
    assert!(matches!(&told[1], (id, Answer::Granted(_)) if *id == reader));
}

/// Random locks and waits, as they arise, against a search that looks at everything.
mod against_brute_force {
    use std::cell::Cell;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    const OWNERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    const KEYS: [KeyRef<'static>; 4] = [K, L, M, in_db(1, "k")];

    #[derive(Clone, Debug)]
    enum Step {
        Acquire(usize, usize, Limit),
        Release(usize, usize, ReleaseExtent),
        /// Its time is up, or its client is gone.
        Leave(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let who = || 0..OWNERS.len();
        let key = || 0..KEYS.len();
        let limit = prop_oneof![
            4 => Just(Limit::EXCLUSIVE),
            2 => Just(Limit::SHARED),
            3 => (2..=4_i64).prop_map(|count| Limit::from_count(count).unwrap()),
        ];
        let extent = prop_oneof![Just(ReleaseExtent::One), Just(ReleaseExtent::All)];
        let step = prop_oneof![
            8 => (who(), key(), limit)
                .prop_map(|(who, key, limit)| Step::Acquire(who, key, limit)),
            3 => (who(), key(), extent)
                .prop_map(|(who, key, extent)| Step::Release(who, key, extent)),
            1 => any::<prop::sample::Index>().prop_map(Step::Leave),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// A set of owners, a bit for each.
    type Owners = u8;

    fn bit(owner: &Owner) -> Owners {
        let mut names = OWNERS.iter();
        let who = names.position(|name| name.as_bytes() == owner.as_bytes());
        1 << who.unwrap()
    }

    /// Whom each owner waits for.
    type Graph = [Owners; OWNERS.len()];

    /// The queue of a key in plain words: who waits there, and with which limit.
    fn line(server: &Server, key: KeyRef<'_>) -> Vec<(Owner, Limit)> {
        let waiters = server.table.queues.waiters(key);
        waiters
            .map(|waiter| (waiter.request.owner.clone(), waiter.request.limit))
            .collect()
    }

    /// Whom a request waits for that has these in front.
    fn blockers(lock: &Lock, limit: Limit, in_front: &[(Owner, Limit)]) -> Owners {
        let is_alone = |limit: &Limit| *limit == Limit::EXCLUSIVE;
        let holders = lock.holders();
        let all_must_go = is_alone(&limit)
            || in_front.iter().any(|(_, limit)| is_alone(limit))
            || holders.iter().all(|holder| is_alone(&holder.limit));
        if !all_must_go {
            return 0;
        }
        let holding = holders.iter().map(|holder| &holder.owner);
        holding.fold(0, |all, one| all | bit(one))
    }

    fn graph(server: &Server) -> Graph {
        let mut graph = Graph::default();
        for key in KEYS {
            let (line, lock) = (line(server, key), server.lock(key));
            for (at, (owner, limit)) in line.iter().enumerate() {
                let in_front = &line[..at];
                assert!(in_front.iter().all(|(before, _)| before != owner));
                assert!(lock.holder(owner).is_none(), "a holder waits for nobody");
                let who = bit(owner).trailing_zeros() as usize;
                graph[who] |= blockers(&lock, *limit, in_front);
            }
        }
        graph
    }

    fn closes_a_cycle(server: &Server, who: usize, key: KeyRef<'_>, limit: Limit) -> bool {
        let (mut line, name) = (line(server, key), owner(OWNERS[who]));
        if line.contains(&(name.clone(), limit)) {
            // It has the position of the request that it takes over.
            return false;
        }
        line.retain(|(other, _)| *other != name);
        let first = blockers(&server.lock(key), limit, &line);
        leads_to(&graph(server), first, who)
    }

    /// Whether one of these waits for this one, directly or through others.
    fn leads_to(graph: &Graph, first: Owners, who: usize) -> bool {
        let mut reached = first;
        loop {
            let further = (0..OWNERS.len())
                .filter(|&by| reached & (1 << by) != 0)
                .fold(reached, |all, by| all | graph[by]);
            if further == reached {
                return reached & (1 << who) != 0;
            }
            reached = further;
        }
    }

    /// Whether these edges are a way from the newcomer back to it, and each owner is
    /// on it once. The first edge is not in the graph yet.
    fn check_cycle(graph: &Graph, cycle: &[WaitEdge]) -> Result<(), TestCaseError> {
        let next = cycle.iter().cycle().skip(1);
        for (index, (edge, next)) in cycle.iter().zip(next).enumerate() {
            prop_assert_eq!(&edge.blocker, &next.waiter);
            let waiter = bit(&edge.waiter).trailing_zeros() as usize;
            let is_there = graph[waiter] & bit(&edge.blocker) != 0;
            prop_assert!(index == 0 || is_there, "{:?}", edge);
            let seen = cycle[..index].iter().any(|seen| seen.waiter == edge.waiter);
            prop_assert!(!seen, "a detour: {:?}", cycle);
        }
        Ok(())
    }

    /// `PROPTEST_CASES` says how many graphs grow, if more than a few thousand.
    #[test]
    fn every_deadlock_is_refused_and_nothing_else() {
        let config = Config::default();
        let cases = config.cases.max(4096);
        let mut runner = TestRunner::new(Config {
            cases,
            source_file: Some(file!()),
            ..config
        });
        let (waits, refused) = (Cell::new(0_u64), Cell::new(0_u64));
        let result = runner.run(&steps(), |steps| {
            let mut server = Server::new();
            let mut client = 0;
            for step in &steps {
                match *step {
                    Step::Acquire(who, key, limit) => {
                        client += 1;
                        let mut ask = ask(OWNERS[who]).by(client);
                        ask.request.limit = limit;
                        let expected = closes_a_cycle(&server, who, KEYS[key], limit);
                        let before = graph(&server);
                        match server.acquire(KEYS[key], ask) {
                            Ok(Acquired::Queued(_)) => {
                                waits.set(waits.get() + 1);
                                prop_assert!(!expected, "missed at {:?}", step);
                            }
                            Err(LockError::Deadlock { cycle }) => {
                                refused.set(refused.get() + 1);
                                prop_assert!(expected, "false alarm: {:?}", cycle);
                                check_cycle(&before, &cycle)?;
                            }
                            _ => {}
                        }
                    }
                    Step::Release(who, key, extent) => {
                        let released = server.release_as(KEYS[key], OWNERS[who], extent, None);
                        released.unwrap();
                    }
                    Step::Leave(waiter) => {
                        let waiting: Vec<WaiterId> = server.clients.keys().copied().collect();
                        if !waiting.is_empty() {
                            server.leave(*waiter.get(&waiting));
                        }
                    }
                }
                server.run();
                server.told();
            }
            Ok(())
        });
        let (waits, refused) = (waits.get(), refused.get());
        println!("{cases} graphs: {waits} waits, {refused} more refused");
        if let Err(error) = result {
            panic!("{error}");
        }
        assert!(refused > u64::from(cases) / 2, "the graphs are too loose");
    }
}

#[test]
fn a_cycle_through_more_waits_than_are_looked_at_is_let_begin() {
    for (count, is_refused) in [(WAITS_LOOKED_AT, true), (WAITS_LOOKED_AT + 1, false)] {
        let mut server = Server::new();
        let names: Vec<String> = (0..count).map(nth).collect();
        for name in &names {
            server.take(key(name), ask(name));
        }
        for (name, next) in names.iter().zip(&names[1..]) {
            server.wait(key(next), ask(name));
        }
        let last = server.acquire(key(&names[0]), ask(&names[count - 1]));
        let refused = matches!(last, Err(LockError::Deadlock { .. }));
        assert_eq!(refused, is_refused, "{count} owners: {last:?}");
    }
}
