use super::*;

#[test]
fn the_token_of_a_present_hold_guards_and_changes_nothing() {
    let mut server = Server::new();
    let token = server.take(K, ask("a"));
    let before = server.lock(K);
    assert!(server.guard(K, token));
    assert!(!server.guard(L, token));
    for other in [token.get() - 1, token.get() + 1] {
        assert!(!server.guard(K, FencingToken::new(other).unwrap()));
    }
    assert_eq!(server.lock(K), before);
    assert_eq!(server.metrics().tokens_refused, 3);
    server.release(K, "a");
    assert!(!server.guard(K, token));
    server.check_nothing_is_left();
}

#[test]
fn each_of_many_holders_guards_by_its_own_token() {
    for crowd in [2, 3 * ENDS_A_STEP] {
        let mut server = Server::new();
        let tokens: Vec<_> = (0..crowd)
            .map(|n| server.take(K, ask(&nth(n)).shared()))
            .collect();
        for &token in &tokens {
            assert!(server.guard(K, token));
        }
        server.release(K, &nth(0));
        assert!(!server.guard(K, tokens[0]));
        assert!(server.guard(K, tokens[1]));
    }
}

#[test]
fn a_lease_that_is_over_does_not_guard() {
    let mut server = Server::new();
    let alone = server.take(L, ask("a").lease(10));
    let mut over: Vec<_> = (0..2 * ENDS_A_STEP)
        .map(|n| server.take(K, ask(&nth(n)).shared().lease(10)))
        .collect();
    let present = server.take(K, ask("z").shared());
    server.sleep(20);
    // The first to be asked for is the last that a step would come to by itself.
    over.reverse();
    for token in over.into_iter().take(2) {
        assert!(!server.guard(K, token));
    }
    assert!(server.guard(K, present));
    assert!(!server.guard(L, alone));
}

#[test]
fn a_hold_whose_session_has_ended_does_not_guard() {
    let mut server = Server::new();
    let tokens: Vec<_> = (0..2 * ENDS_A_STEP)
        .map(|n| server.take(K, ask(&nth(n)).shared().session().by(7)))
        .collect();
    let next = server.wait(K, ask("b"));
    server.disconnect(7);
    for &token in tokens.iter().rev() {
        assert!(!server.guard(K, token));
    }
    assert_eq!(server.granted(), [next]);
    assert!(server.guard(K, server.token(K, "b")));
}

#[test]
fn a_grant_that_nobody_heard_of_does_not_guard() {
    let mut server = on_its_way();
    let token = server.token(K, "b");
    server.table.client_told(ask("b").client, false);
    assert!(!server.guard(K, token));
    assert_eq!(server.holders(K), [""; 0]);
}

#[test]
fn after_a_hand_off_the_old_token_does_not_guard() {
    let mut server = Server::new();
    let old = server.take(K, ask("a").lease(10));
    let next = server.wait(K, ask("b"));
    server.sleep(20);
    assert!(!server.guard(K, old));
    assert_eq!(
        server.granted(),
        [next],
        "the same step has handed the lock on"
    );
    assert!(server.guard(K, server.token(K, "b")));
}

#[test]
fn a_lock_without_a_token_guards_nothing() {
    let mut server = Server::new();
    server.put(K, Value::by_redisson(&owner("redisson"), START_MS + 5000));
    assert!(!server.guard(K, FencingToken::new(1).unwrap()));
    assert_eq!(server.holders(K), ["redisson"]);
}
