//! The three commands on a lock that nobody waits for.

use redis_lock_testing::{TestServer, int, nil, text};

#[test]
fn holds_nest_and_only_the_last_release_frees_the_lock() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a");
    assert!((1..1 << 53).contains(&token));
    assert_eq!(client.call("LOCK.ACQUIRE k a"), int(token));
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
    assert_eq!(client.call("HGET k a"), text("2"));
    assert_eq!(client.call("LOCK.RELEASE k b"), nil());
    assert_eq!(client.call("LOCK.RELEASE k a"), int(0));
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    assert_eq!(client.call("EXISTS k"), int(0));
    assert_eq!(client.call("LOCK.RELEASE k a"), nil());
    assert!(client.int("LOCK.ACQUIRE k b") > token);
}

#[test]
fn a_lock_is_the_hash_that_redisson_knows_with_a_token() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a LEASE 60000");
    assert_eq!(
        client.hash("k"),
        [
            ("@fence".into(), token.to_string()),
            ("a".into(), "1".into())
        ]
    );
    let ttl = client.int("PTTL k");
    assert!((59_000..=60_000).contains(&ttl), "{ttl}");
}

#[test]
fn the_default_lease_is_a_setting() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a");
    let ttl = client.int("PTTL k");
    assert!((29_000..=30_000).contains(&ttl), "{ttl}");
    client.call("CONFIG SET lock.default-lease 5000");
    client.call("LOCK.RENEW k a");
    let ttl = client.int("PTTL k");
    assert!((4_000..=5_000).contains(&ttl), "{ttl}");
}

#[test]
fn reentry_never_shortens_a_lease_and_renewal_sets_it_exactly() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a LEASE 60000");
    client.call("LOCK.ACQUIRE k a LEASE 1000");
    assert!(client.int("PTTL k") > 59_000);
    client.call("LOCK.ACQUIRE k a LEASE 90000");
    assert!(client.int("PTTL k") > 89_000);
    client.call("LOCK.RELEASE k a");
    assert!(client.int("PTTL k") > 89_000);
    assert_eq!(client.call("LOCK.RENEW k a LEASE 1000"), int(1));
    assert!(client.int("PTTL k") <= 1000);
    assert_eq!(
        client.call(&format!("LOCK.RENEW k a LEASE 50000 FENCE {token}")),
        int(1)
    );
    assert_eq!(
        client.call(&format!("LOCK.RENEW k a FENCE {}", token + 1)),
        int(0)
    );
    assert_eq!(client.call("LOCK.RENEW k b"), int(0));
    assert_eq!(client.call("LOCK.RENEW absent a"), int(0));
    assert_eq!(client.call("EXISTS absent"), int(0));
    assert!(client.int("PTTL k") > 49_000);
}

#[test]
fn commands_that_name_their_hold_are_safe_to_resend() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a HOLD 1");
    assert_eq!(client.call("LOCK.ACQUIRE k a HOLD 1"), int(token));
    assert_eq!(client.call("HGET k a"), text("1"));
    assert_eq!(client.call("LOCK.ACQUIRE k a HOLD 2"), int(token));
    assert_eq!(client.call("LOCK.ACQUIRE k a HOLD 2"), int(token));
    assert_eq!(client.call("HGET k a"), text("2"));
    assert_eq!(client.call("LOCK.RELEASE k a HOLD 2"), int(0));
    assert_eq!(client.call("LOCK.RELEASE k a HOLD 2"), int(0));
    assert_eq!(client.call("LOCK.RELEASE k a HOLD 1"), int(1));
    assert_eq!(client.call("LOCK.RELEASE k a HOLD 1"), int(1));
    assert_eq!(client.call("EXISTS k"), int(0));
}

#[test]
fn a_hold_that_fits_neither_n_nor_n_less_one_is_an_error() {
    let server = TestServer::start();
    let mut client = server.client();
    assert!(
        client
            .error("LOCK.ACQUIRE k a HOLD 2")
            .starts_with("HOLDCOUNT ")
    );
    assert_eq!(client.call("EXISTS k"), int(0));
    client.call("LOCK.ACQUIRE k a");
    let stored = client.hash("k");
    for command in [
        "LOCK.ACQUIRE k a HOLD 3",
        "LOCK.RELEASE k a HOLD 3",
        "LOCK.ACQUIRE k b HOLD 2",
        "LOCK.ACQUIRE k b HOLD 2 BLOCK 0",
        "LOCK.RELEASE k b HOLD 2",
    ] {
        assert!(client.error(command).starts_with("HOLDCOUNT "), "{command}");
        assert_eq!(client.hash("k"), stored, "{command}");
    }
}

#[test]
fn a_release_with_another_token_is_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    let token = client.int("LOCK.ACQUIRE k a");
    client.call("LOCK.ACQUIRE k a");
    assert_eq!(
        client.call(&format!("LOCK.RELEASE k a FENCE {}", token - 1)),
        nil()
    );
    assert_eq!(client.call("HGET k a"), text("2"));
    assert_eq!(
        client.call(&format!("LOCK.RELEASE k a ALL FENCE {token}")),
        int(1)
    );
    assert_eq!(client.call("EXISTS k"), int(0));
}

#[test]
fn ten_thousand_acquires_and_releases_in_a_row_have_rising_tokens() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut last = 0;
    for _ in 0..10_000 {
        let token = client.int("LOCK.ACQUIRE k a");
        assert!(token > last);
        last = token;
        assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    }
    assert_eq!(client.call("DBSIZE"), int(0));
}

#[test]
fn a_lock_that_redisson_took_is_a_lock_like_any_other() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("HINCRBY k uuid:1 1");
    client.call("PEXPIRE k 30000");
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
    let token = client.int("LOCK.ACQUIRE k uuid:1");
    assert_eq!(client.call("HGET k @fence"), text(token.to_string()));
    assert_eq!(client.call("HGET k uuid:1"), text("2"));
    assert_eq!(client.call("LOCK.RENEW k uuid:1 LEASE 1000"), int(1));
    assert_eq!(client.call("LOCK.RELEASE k uuid:1 ALL"), int(1));
}

#[test]
fn databases_have_locks_of_their_own() {
    let server = TestServer::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a");
    client.call("SELECT 5");
    assert_ne!(client.call("LOCK.ACQUIRE k b"), nil());
    client.call("SELECT 0");
    assert_eq!(client.call("LOCK.ACQUIRE k b"), nil());
}

#[test]
fn a_lock_that_was_only_looked_at_does_not_fail_a_watch() {
    let server = TestServer::start();
    let mut watcher = server.client();
    let mut other = server.client();
    other.call("LOCK.ACQUIRE k a");
    watcher.call("WATCH k");
    other.call("LOCK.ACQUIRE k b");
    other.call("LOCK.RELEASE k b");
    watcher.call("MULTI");
    watcher.call("PING");
    assert_ne!(watcher.call("EXEC"), nil());
    watcher.call("WATCH k");
    other.call("LOCK.RELEASE k a");
    watcher.call("MULTI");
    watcher.call("PING");
    assert_eq!(watcher.call("EXEC"), nil());
}
