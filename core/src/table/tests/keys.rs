use super::*;

#[test]
fn a_deleted_key_is_handed_on() {
    let (mut server, b) = contended();
    server.delete(K);
    server.run();
    assert_eq!(server.granted(), [b]);
    assert_eq!(server.metrics().releases_deleted, 1);
    // Also where it would never have ended by itself.
    let c = server.wait(K, ask("c"));
    server.write(K, |value| value.expires_at_ms = None);
    server.run();
    server.delete(K);
    server.run();
    assert_eq!(server.granted(), [c]);
    let metrics = server.metrics();
    assert_eq!((metrics.releases_deleted, metrics.releases_expired), (2, 0));
}

#[test]
fn keys_are_followed_while_it_matters_what_happens_to_them() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    assert!(!server.table.follows_keys());
    let b = server.wait(K, ask("b"));
    assert!(server.table.follows_keys());
    server.leave(b);
    assert!(!server.table.follows_keys());
    server.wait(K, ask("b"));
    server.tells = false;
    server.release(K, "a");
    assert!(server.table.follows_keys());
    server.table.client_told(ask("b").client, true);
    assert!(!server.table.follows_keys());
    server.release(K, "b");
    server.take(K, ask("a").session());
    assert!(server.table.follows_keys());
    server.disconnect(ask("a").client.0);
    server.run();
    assert!(!server.table.follows_keys());
}

#[test]
fn who_holds_a_lock_alone_is_known_while_somebody_waits_for_it() {
    let mut server = Server::new();
    server.take(K, ask("a").shared());
    let holder = |server: &Server| server.table.sole_holder(K);
    assert_eq!(holder(&server), None);
    server.wait(K, ask("w"));
    assert_eq!(holder(&server), Some(owner("a")));
    server.delete(K);
    server.run();
    server.wait(K, ask("b").shared());
    server.wait(K, ask("c").shared());
    server.wait(K, ask("d"));
    assert_eq!(holder(&server), Some(owner("w")));
    server.release(K, "w");
    assert_eq!(server.holders(K), ["b", "c"]);
    assert_eq!(holder(&server), None);
}

#[test]
fn a_key_for_which_nobody_waits_is_not_looked_at() {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.table.key_touched(K, server.ms());
    server.table.everything_touched();
    assert_eq!(server.wake_at_ms(), None);
}

#[test]
fn when_anything_may_have_changed_every_queue_is_looked_at() {
    let mut server = Server::new();
    for key in [K, L] {
        server.take(key, ask("a"));
    }
    let waiters = [K, L].map(|key| server.wait(key, ask("b")));
    server.keys.clear();
    server.table.everything_touched();
    server.run();
    let mut granted = server.granted();
    granted.sort();
    assert_eq!(granted, waiters);
}

#[test]
fn who_waits_stays_with_the_key() {
    let (mut server, b) = contended();
    server.rename(K, L);
    server.run();
    assert_eq!(server.granted(), [b]);
    assert_eq!(server.holders(L), ["a"]);
}

#[test]
fn a_session_whose_lock_is_renamed_is_a_plain_hold_there() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    server.rename(K, L);
    server.sleep(100);
    server.run();
    // It is known to have gone, and kept up nowhere.
    assert_eq!(server.table.totals(server.now()).sessions, 0);
    server.disconnect(ask("a").client.0);
    server.run();
    assert_eq!(server.holders(L), ["a"]);
    server.pass(300);
    assert_eq!(server.holders(L), [""; 0]);
    server.check_nothing_is_left();
}

#[test]
fn a_session_whose_lock_comes_back_before_anybody_looks_is_one_again() {
    let mut server = Server::new();
    server.take(K, ask("a").session().lease(300));
    server.rename(K, L);
    server.rename(L, K);
    server.pass(1000);
    assert_eq!(server.holders(K), ["a"]);
    server.disconnect(ask("a").client.0);
    server.run();
    assert_eq!(server.holders(K), [""; 0]);
}

#[test]
fn what_is_over_at_the_name_of_before_ends_nothing_of_who_holds_it_now() {
    let mut server = Server::new();
    server.take(K, ask("a").session());
    server.rename(K, L);
    server.take(K, ask("a").by(2));
    server.disconnect(ask("a").client.0);
    server.run();
    assert_eq!([K, L].map(|key| server.holders(key)), [["a"], ["a"]]);
}
