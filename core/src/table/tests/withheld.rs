//! While nothing may be granted.

use super::*;

#[test]
fn nothing_is_granted_while_grants_are_withheld() {
    let mut server = Server::new();
    server.take(K, ask("a").lease(1000));
    server.pause_grants();
    let newcomer = server.acquire(L, ask("b").now());
    assert_eq!(newcomer, Ok(Acquired::Busy));
    let again = server.acquire(K, ask("a").now());
    assert_eq!(again, Ok(Acquired::Busy));
    let confirmed = server.acquire(K, ask("a").hold(1).now());
    assert_eq!(confirmed, Ok(Acquired::Busy));
    assert!(server.renew(K, "a", 2000));
    server.release(K, "a");
    assert!(server.holders(K).is_empty());
}

#[test]
fn who_waits_is_served_in_order_when_grants_resume() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.pause_grants();
    let again = server.wait(K, ask("a").by(1));
    let [b, c] = ["b", "c"].map(|name| server.wait(K, ask(name).shared()));
    server.resume_grants();
    server.run();
    assert_eq!(server.granted(), [again]);
    server.pause_grants();
    server.release(K, "a");
    server.release(K, "a");
    server.run();
    assert_eq!(server.granted(), []);
    server.resume_grants();
    assert_eq!(server.wake_at_ms(), Some(0));
    server.run();
    assert_eq!(server.granted(), [b, c]);
}

#[test]
fn an_owner_that_asks_again_for_what_it_holds_waits_for_nobody() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.take(L, ask("b"));
    server.pause_grants();
    let b = server.wait(K, ask("b"));
    let again = server.wait(K, ask("a").by(1));
    let c = server.wait(K, ask("c"));
    server.run();
    // And nobody waits for anybody by way of it.
    let last = server.wait(L, ask("c").by(2));
    server.run();
    assert_eq!(server.told(), []);
    server.resume_grants();
    server.run();
    assert_eq!(server.granted(), [again]);
    let released = server.release_as(K, "a", ReleaseExtent::All, None);
    assert_eq!(released, Ok(Released::LastHold));
    server.release(L, "b");
    server.run();
    assert_eq!(server.granted(), [b, last]);
    server.release(K, "b");
    server.run();
    assert_eq!(server.granted(), [c]);
}

#[test]
fn a_deadlock_is_refused_while_grants_are_withheld() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.take(L, ask("b"));
    server.pause_grants();
    server.wait(K, ask("a").by(1));
    server.wait(K, ask("b"));
    let refused = server.acquire(L, ask("a").by(2));
    assert!(matches!(refused, Err(LockError::Deadlock { .. })));
}

#[test]
fn holders_that_asked_again_are_all_served_where_a_deadlock_is_refused_meanwhile() {
    let holders: Vec<String> = (0..40).map(nth).collect();
    let mut server = Server::new();
    for name in &holders {
        server.take(K, ask(name).shared());
    }
    server.take(L, ask("x"));
    server.pause_grants();
    let writer = server.wait(K, ask("w"));
    for name in &holders {
        server.wait(K, ask(name).shared().hold(1));
    }
    server.wait(L, ask(&nth(1)).by(2));
    server.resume_grants();
    let refused = server.acquire(K, ask("x"));
    assert!(matches!(refused, Err(LockError::Deadlock { .. })));
    server.run();
    assert_eq!(server.granted().len(), holders.len());
    assert!(server.table.is_waiting(writer));
}
