//! Places of which nobody hears: nothing is granted to them, and they keep nobody
//! waiting.

use redis::{PushKind, Value};
use redis_lock_testing::scene::{field, transaction, waiting};
use redis_lock_testing::{Client, LONG, Subscriber, TestServer, Told, int, status, text, token};

#[track_caller]
fn place(client: &mut Client, key: &str, owner: &str, channel: &str) {
    let command = format!("LOCK.ACQUIRE {key} {owner} {LONG} QUEUE 600000 {channel}");
    assert_eq!(client.call(&command), int(0), "{command}");
}

#[track_caller]
fn hold(client: &mut Client, key: &str) {
    token(&client.call(&format!("LOCK.ACQUIRE {key} holder {LONG}")));
}

#[test]
fn nothing_is_granted_or_written_where_nobody_hears() {
    let server = TestServer::start_with(&["--repl-ping-replica-period", "3600"]);
    let replica = server.replica(false);
    let mut client = server.client();
    // How much of the stream a release takes that nobody waits for.
    hold(&mut client, "a");
    let start = client.info("master_repl_offset");
    assert_eq!(client.call("LOCK.RELEASE a holder"), int(1));
    let alone = client.info("master_repl_offset") - start;

    hold(&mut client, "k");
    for (owner, mode) in [("p", ""), ("q", " SHARED"), ("r", " SHARED")] {
        place(&mut client, "k", owner, &format!("nobody{mode}"));
    }
    let start = client.info("master_repl_offset");
    assert_eq!(client.call("LOCK.RELEASE k holder"), int(1));
    assert_eq!(client.info("master_repl_offset") - start, alone);
    assert_eq!(client.call("EXISTS k"), int(0));
    assert_eq!(client.info("lock_places"), 0);
    assert_eq!(client.info("lock_places_unheard"), 3);
    assert_eq!(client.info("lock_hand_offs"), 0);
    assert_eq!(client.info("lock_waiters"), 0);
    server.assert_same_data(&replica);
    token(&client.call("LOCK.ACQUIRE k newcomer"));
}

#[test]
fn the_next_one_is_asked_whether_it_has_a_place_or_is_blocked() {
    let server = TestServer::start();
    let (mut client, mut ears) = (server.client(), server.subscriber("ch"));
    let mut blocked = server.client();
    hold(&mut client, "k");
    place(&mut client, "k", "a", "nobody");
    place(&mut client, "k", "b", "ch");
    place(&mut client, "k", "c", "nobody");
    blocked.send_and_block(&mut client, &format!("LOCK.ACQUIRE k d {LONG} BLOCK 0"));
    // It is so within the very command.
    let replies = transaction(&mut client, &["LOCK.RELEASE k holder", "HKEYS k"]);
    assert_eq!(replies[0], int(1));
    let Value::Array(fields) = &replies[1] else {
        panic!("{replies:?}");
    };
    assert!(fields.contains(&text("b")), "{fields:?}");
    let told = ears.told();
    assert_eq!(told.owner, "b");
    assert_eq!(waiting(&mut client, "k"), 2);
    assert_eq!(client.call("LOCK.RELEASE k b"), int(1));
    assert!(token(&blocked.reply()) > told.token());
    assert_eq!(ears.told_so_far(), []);
    assert_eq!(client.info("lock_places_unheard"), 2);
}

#[test]
fn a_newcomer_has_the_lock_when_all_who_came_before_are_unheard() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "k");
    place(&mut client, "k", "a", "nobody");
    // A transaction, so that nothing looks at the lock between.
    let acquire = format!("LOCK.ACQUIRE k newcomer {LONG}");
    let replies = transaction(&mut client, &["DEL k", &acquire]);
    token(&replies[1]);
    assert_eq!(client.info("lock_places_unheard"), 1);
}

#[test]
fn an_unheard_owner_that_asks_again_is_replied_its_token() {
    let server = TestServer::start();
    let mut client = server.client();
    hold(&mut client, "k");
    place(&mut client, "k", "a", "nobody");
    let again = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 nobody");
    let replies = transaction(&mut client, &["LOCK.RELEASE k holder", &again]);
    token(&replies[1]);
    assert_eq!(client.call("HGET k a"), text("1"));
    assert!(client.int("PTTL k") > 500_000);
}

#[test]
fn who_comes_first_and_asks_again_is_replied_its_token_and_not_told() {
    let server = TestServer::start();
    let (mut client, mut ears) = (server.client(), server.subscriber("ch"));
    hold(&mut client, "k");
    place(&mut client, "k", "a", "ch");
    place(&mut client, "k", "b", "ch");
    let again = format!("LOCK.ACQUIRE k a {LONG} QUEUE 600000 ch");
    let replies = transaction(&mut client, &["DEL k", &again]);
    token(&replies[1]);
    assert_eq!(ears.told_so_far(), []);
    assert!(client.int("PTTL k") > 500_000);
    assert_eq!(waiting(&mut client, "k"), 1);
}

#[test]
fn at_most_so_many_are_passed_over_at_once_and_the_lock_still_goes_on_by_itself() {
    let server = TestServer::start();
    let (mut client, mut ears) = (server.client(), server.subscriber("ch"));
    hold(&mut client, "k");
    for i in 0..1000 {
        place(&mut client, "k", &format!("unheard{i}"), "nobody");
    }
    place(&mut client, "k", "heard", "ch");
    let replies = transaction(&mut client, &["LOCK.RELEASE k holder", "LOCK.INFO k"]);
    assert_eq!(replies[0], int(1));
    let Value::Int(left) = field(&replies[1], "waiting") else {
        panic!("{replies:?}");
    };
    assert!(*left >= 1001 - 256, "{left}");
    assert_eq!(ears.told().owner, "heard");
    assert_eq!(client.info("lock_places_unheard"), 1000);
    assert_eq!(client.info("lock_waiters"), 0);
    assert_eq!(client.call("HGET k heard"), text("1"));
}

#[test]
fn who_listens_on_a_replica_hears_nothing_and_does_not_count() {
    let server = TestServer::start();
    let replica = server.replica(true);
    let (mut client, mut there) = (server.client(), replica.subscriber("ch"));
    hold(&mut client, "k");
    place(&mut client, "k", "a", "ch");
    assert_eq!(client.call("LOCK.RELEASE k holder"), int(1));
    assert_eq!(client.call("EXISTS k"), int(0));
    assert_eq!(client.info("lock_places_unheard"), 1);
    server.assert_same_data(&replica);
    assert_eq!(there.told_so_far(), []);
}

#[test]
fn a_subscription_to_a_pattern_hears_too_and_one_that_was_ended_does_not() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut ears = Subscriber::at(server.client());
    ears.subscribe("PSUBSCRIBE c*");
    hold(&mut client, "k");
    place(&mut client, "k", "a", "ch");
    place(&mut client, "k", "b", "ch");
    assert_eq!(client.call("LOCK.RELEASE k holder"), int(1));
    let (kind, data) = ears.pushed();
    assert_eq!(kind, PushKind::PMessage);
    let [_, Value::BulkString(channel), Value::BulkString(message)] = &data[..] else {
        panic!("{data:?}");
    };
    let told = Told::read(channel, message);
    assert_eq!(told.owner, "a");
    ears.send("PUNSUBSCRIBE c*");
    assert_eq!(ears.pushed().0, PushKind::PUnsubscribe);
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    assert_eq!(client.call("EXISTS k"), int(0));
    assert_eq!(client.info("lock_places_unheard"), 1);
}

/// Of two subscribers one goes in the moment of a grant to it.
#[test]
fn a_subscriber_that_dies_among_grants_keeps_no_lock_and_costs_none() {
    const PLACES: usize = 100;
    for round in 0..5 {
        let (dies_at, closes_first) = (20 * round, round % 2 == 1);
        let server = TestServer::start();
        let (mut client, mut ears) = (server.client(), server.subscriber("lives"));
        let mut doomed = Some(server.subscriber("doomed"));
        let set = "CONFIG SET lock.claim-timeout 600000";
        assert_eq!(client.call(set), status("OK"));
        hold(&mut client, "k");
        for i in (0..PLACES).step_by(2) {
            // A grant to it that was sent ends soon.
            let lease_ms = if i == dies_at { 200 } else { 600_000 };
            let dooms = format!("LOCK.ACQUIRE k {i} LEASE {lease_ms} QUEUE 600000 doomed");
            assert_eq!(client.call(&dooms), int(0));
            place(&mut client, "k", &(i + 1).to_string(), "lives");
        }
        let (mut before, mut last, mut told_of) = ("holder".to_owned(), 0, 0);
        for i in (0..PLACES).step_by(2) {
            if i == dies_at && closes_first {
                doomed = None;
            }
            ears.send(&format!("LOCK.RELEASE k {before}"));
            if i == dies_at {
                doomed = None;
            }
            assert_eq!(ears.reply(), int(1), "{before}");
            if let Some(doomed) = &mut doomed {
                let told = doomed.told();
                assert_eq!(told.owner, i.to_string());
                assert!(told.token() > last, "{told:?} after {last}");
                (last, told_of) = (told.token(), told_of + 1);
                let release = format!("LOCK.RELEASE k {i} FENCE {last}");
                assert_eq!(doomed.call(&release), int(1));
            }
            before = (i + 1).to_string();
            let told = ears.told();
            assert_eq!(told.owner, before);
            assert!(told.token() > last, "{told:?} after {last}");
            (last, told_of) = (told.token(), told_of + 1);
            let stored = client.call(&format!("HGET k {before}"));
            assert_eq!(stored, text("1"));
        }
        assert_eq!(ears.call(&format!("LOCK.RELEASE k {before}")), int(1));
        assert_eq!(ears.told_so_far(), []);
        assert_eq!(client.call("EXISTS k"), int(0));
        assert_eq!(client.info("lock_places"), 0);
        let (granted, unheard) = (
            client.info("lock_hand_offs"),
            client.info("lock_places_unheard"),
        );
        assert_eq!(granted + unheard, 100);
        assert!(
            (0..=1).contains(&(granted - told_of)),
            "{granted} {told_of}"
        );
        server.assert_sound();
    }
}
