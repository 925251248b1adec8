//! While nothing may be granted.

use super::*;

#[test]
fn nothing_is_granted_while_grants_are_withheld() {
    let mut server = Server::new();
    server.take(K, ask("a").lease(1000));
    server.table.settings.may_grant = false;
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
    server.table.settings.may_grant = false;
    let again = server.wait(K, ask("a").by(1));
    let [b, c] = ["b", "c"].map(|name| server.wait(K, ask(name).shared()));
    server.table.settings.may_grant = true;
    server.table.grants_resume(server.ms());
    server.run();
    assert_eq!(server.granted(), [again]);
    server.table.settings.may_grant = false;
    server.release(K, "a");
    server.release(K, "a");
    server.run();
    assert_eq!(server.granted(), []);
    server.table.settings.may_grant = true;
    server.table.grants_resume(server.ms());
    assert_eq!(server.table.wake_at_ms(), Some(server.ms()));
    server.run();
    assert_eq!(server.granted(), [b, c]);
}
