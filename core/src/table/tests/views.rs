use super::*;
use crate::table::view::SHOWN_OF_A_LOCK;

#[test]
fn a_view_leaves_out_what_is_over_and_changes_nothing() {
    let mut server = Server::new();
    server.take(K, ask("a").shared().lease(10));
    server.take(K, ask("b").shared().session());
    server.take(K, ask("c").shared().session());
    server.wait(K, ask("w"));
    server.disconnect(ask("b").client.0);
    server.sleep(20);
    let lock = server.lock(K);
    server.table.end_holds_of_gone(K, &lock);
    let view = server.table.view(K, lock, server.now());
    let [holder] = &view.holders[..] else {
        panic!("{view:?}");
    };
    assert_eq!(holder.owner, owner("c"));
    assert_eq!(holder.client, Some(ask("c").client));
    assert_eq!(view.limit, Some(Limit::SHARED));
    assert_eq!((view.ttl_ms, holder.ttl_ms), (LEASE_MS - 20, LEASE_MS - 20));
    let [waiter] = &view.waiters[..] else {
        panic!("{view:?}");
    };
    assert_eq!(waiter.waited_ms(server.now()), 20);
    assert_eq!(waiter.left_ms(server.now()), -1);
    let holders = server.table.holders(K, server.lock(K), server.now());
    assert_eq!(holders, [owner("c")]);
    let noted = server.table.noted(K, server.now());
    let holders = server.table.holders(K, noted, server.now());
    assert_eq!(holders, [owner("c")]);
    assert_eq!(server.holders(K), ["a", "b", "c"]);
}

#[test]
fn no_key_and_no_expiry_are_told_apart() {
    let mut server = Server::new();
    let view = server.table.view(K, server.lock(K), server.now());
    assert_eq!((view.ttl_ms, view.limit), (-2, None));
    server.take(K, ask("a"));
    server.write(K, |value| value.expires_at_ms = None);
    let view = server.table.view(K, server.lock(K), server.now());
    assert_eq!((view.ttl_ms, view.holders[0].ttl_ms), (-1, -1));
}

#[test]
fn contended_locks_are_listed_longest_wait_first() {
    let mut server = Server::new();
    for key in [K, L, in_db(1, "k")] {
        server.take(key, ask("a"));
    }
    for (key, name) in [(L, "b"), (in_db(1, "k"), "b"), (K, "b"), (L, "c")] {
        server.sleep(10);
        server.wait(key, ask(name));
    }
    let listed = server.table.contended(0, server.now());
    let listed: Vec<_> = listed
        .map(|view| (view.key, view.waiting, view.waited_ms))
        .collect();
    assert_eq!(listed, [(L.into(), 2, 30), (K.into(), 1, 10)]);
    let totals = server.table.totals(server.now());
    assert_eq!(totals.longest_wait_ms, 30);
    assert_eq!(totals.counts.waiters, 4);
    assert_eq!(totals.counts.contended_keys, 3);
}

#[test]
fn of_many_holders_and_waiters_the_first_are_shown_and_all_are_counted() {
    let mut server = Server::new();
    for n in 0..SHOWN_OF_A_LOCK + 2 {
        server.take(K, ask(&nth(n)).shared());
    }
    for n in 0..SHOWN_OF_A_LOCK + 3 {
        server.wait(K, ask(&format!("w{n}")));
    }
    let view = server.table.view(K, server.lock(K), server.now());
    let shown = [view.holders.len(), view.waiters.len()];
    assert_eq!(shown, [SHOWN_OF_A_LOCK; 2]);
    assert_eq!(view.holding, SHOWN_OF_A_LOCK + 2);
    assert_eq!(view.waiting, SHOWN_OF_A_LOCK + 3);
    assert_eq!(view.waiters[0].request.owner, owner("w0"));
}
