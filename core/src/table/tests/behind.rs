//! Requests that wait behind others without a look at the lock.

use super::*;
use crate::ended::EndedBy;
use crate::sessions::HoldId;

/// `a` holds the lock, and `b` waits for it.
fn contended() -> Server {
    let mut server = Server::new();
    server.take(K, ask("a"));
    server.wait(K, ask("b"));
    server
}

/// Whether this request is queued without a look at the lock.
fn is_unread(server: &mut Server, ask: Ask) -> bool {
    let before = server.unread;
    server.wait_for(K, ask, 1000);
    server.unread > before
}

#[test]
fn behind_others_no_look_is_needed_and_the_order_is_that_of_the_requests() {
    let mut server = contended();
    for name in ["c", "d", "e"] {
        assert!(is_unread(&mut server, ask(name).place()), "{name}");
        assert!(
            is_unread(&mut server, ask(&(name.to_owned() + "'"))),
            "{name}"
        );
    }
    assert!(is_unread(&mut server, ask("f").session().place()));
    assert!(is_unread(&mut server, ask("g").shared()));
    let waiters = server.table.queues.owners(K).map(Owner::as_bytes);
    let waiters: Vec<_> = waiters.map(String::from_utf8_lossy).collect();
    assert_eq!(waiters, ["b", "c", "c'", "d", "d'", "e", "e'", "f", "g"]);
    assert!(server.table.time_outs.next_ms().is_some());
}

#[test]
fn a_look_is_taken_where_anything_else_may_come_of_a_request() {
    type Case = (&'static str, fn(&mut Server), Ask);
    let cases: [Case; 8] = [
        (
            "the key was touched",
            |server| {
                let now_ms = server.ms();
                server.table.key_touched(K, now_ms);
            },
            ask("c"),
        ),
        (
            "the lease is over",
            |server| server.now_us += (LEASE_MS + 1) * 1000,
            ask("c"),
        ),
        (
            "who asks holds another lock that somebody waits for",
            |server| {
                server.take(L, ask("c"));
                server.wait(L, ask("x"));
            },
            ask("c"),
        ),
        (
            "who asks waits for another lock",
            |server| {
                server.take(L, ask("x"));
                server.wait(L, ask("c"));
            },
            ask("c"),
        ),
        (
            "who asks has a place here",
            |server| {
                server.wait_for(K, ask("c").place(), 1000);
            },
            ask("c").place(),
        ),
        (
            "a connection has ended",
            |server| {
                server.take(L, ask("x").session());
                server.table.connection_ended(ask("x").client, false);
            },
            ask("c"),
        ),
        (
            "long waits are logged",
            |server| server.table.settings.log_slow_wait_ms = Some(100),
            ask("c"),
        ),
        (
            "a hold is over that is still stored",
            |server| {
                let hold = HoldId::new(L, &owner("x"));
                let token = FencingToken::new(7).unwrap();
                server.table.ended.push(hold, token, EndedBy::Session);
            },
            ask("c"),
        ),
    ];
    for (why, change, ask) in cases {
        let mut server = contended();
        change(&mut server);
        assert!(!is_unread(&mut server, ask), "{why}");
    }
}

#[test]
fn without_a_look_no_more_wait_than_may() {
    let mut server = contended();
    server.table.settings.max_places = 1;
    assert!(is_unread(&mut server, ask("c").place()));
    let full = LockError::PlacesFull { max_places: 1 };
    assert_eq!(server.acquire(K, ask("d").place()), Err(full));
    assert!(is_unread(&mut server, ask("d")));
    server.table.settings.max_waiters = 3;
    let full = LockError::QueueFull { max_waiters: 3 };
    assert_eq!(server.acquire(K, ask("e")), Err(full));
    let mut server = contended();
    let does_not_fit = LockError::HoldCount { wanted: 2, held: 0 };
    assert_eq!(server.acquire(K, ask("c").hold(2)), Err(does_not_fit));
}
