//! Redisson's waiters, who listen on a channel, are told of a release.

use redis::Value;
use redis_lock_testing::{Client, Cluster, TestServer, int, nil, status, text};

fn server() -> TestServer {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(
        client.call("CONFIG SET lock.redisson-notify publish"),
        status("OK")
    );
    server
}

fn subscribed(server: &TestServer, command: &str, channel: &str) -> Client {
    let mut client = server.client();
    client.call(&format!("{command} {channel}"));
    client
}

fn message(kind: &str, channel: &str) -> Value {
    Value::Array(vec![text(kind), text(channel), text("0")])
}

#[test]
fn a_final_release_that_no_waiter_takes_over_is_published_once() {
    let server = server();
    let mut listener = subscribed(&server, "PSUBSCRIBE", "*");
    let (mut a, mut b) = (server.client(), server.client());
    a.call("LOCK.ACQUIRE k a");
    a.call("LOCK.ACQUIRE k a");
    assert_eq!(a.call("LOCK.RELEASE k a"), int(0));
    b.send_and_block(&mut server.client(), "LOCK.ACQUIRE k b BLOCK 0");
    assert_eq!(a.call("LOCK.RELEASE k a HOLD 1"), int(1));
    assert_eq!(a.call("LOCK.RELEASE k a HOLD 1"), int(1));
    assert_eq!(a.call("LOCK.RELEASE k a"), nil());
    assert!(matches!(b.reply(), Value::Int(_)));
    assert_eq!(b.call("LOCK.RELEASE k b"), int(1));
    a.call("LOCK.ACQUIRE {tag}k a");
    assert_eq!(a.call("LOCK.RELEASE {tag}k a"), int(1));
    for channel in [
        "redisson_lock__channel:{k}",
        "redisson_lock__channel:{tag}k",
    ] {
        let Value::Array(words) = listener.reply() else {
            panic!("no message");
        };
        assert_eq!(words[2..], [text(channel), text("0")]);
    }
}

#[test]
fn a_release_in_a_transaction_or_a_script_is_published() {
    let server = server();
    let mut listener = subscribed(&server, "SUBSCRIBE", "redisson_lock__channel:{k}");
    let mut client = server.client();
    for command in ["MULTI", "LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "EXEC"] {
        client.call(command);
    }
    assert_eq!(
        listener.reply(),
        message("message", "redisson_lock__channel:{k}")
    );
    let script: &[&[u8]] = &[
        b"EVAL",
        b"redis.call('LOCK.ACQUIRE', KEYS[1], 'a') return redis.call('LOCK.RELEASE', KEYS[1], 'a')",
        b"1",
        b"k",
    ];
    assert_eq!(client.words(script), int(1));
    assert_eq!(
        listener.reply(),
        message("message", "redisson_lock__channel:{k}")
    );
}

#[test]
fn a_subscriber_of_a_replica_is_told_too() {
    let server = server();
    let replica = server.replica(false);
    let mut listener = subscribed(&replica, "SUBSCRIBE", "redisson_lock__channel:{k}");
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a");
    client.call("LOCK.RELEASE k a");
    assert_eq!(
        listener.reply(),
        message("message", "redisson_lock__channel:{k}")
    );
    server.assert_same_data(&replica);
}

#[test]
fn in_a_cluster_sharded_subscribers_are_told() {
    let cluster = Cluster::start();
    let key = (0..)
        .map(|n| format!("k{n}"))
        .find(|key| redis_lock_testing::slot(key) < 5000)
        .unwrap();
    let server = &cluster.nodes[0];
    let mut client = server.client();
    client.call("CONFIG SET lock.redisson-notify spublish");
    let channel = format!("redisson_lock__channel:{{{key}}}");
    let mut listener = subscribed(server, "SSUBSCRIBE", &channel);
    client.call(&format!("LOCK.ACQUIRE {key} a"));
    client.call(&format!("LOCK.RELEASE {key} a"));
    assert_eq!(listener.reply(), message("smessage", &channel));
}

#[test]
fn nothing_is_published_unless_it_is_asked_for() {
    let server = TestServer::start();
    let mut listener = subscribed(&server, "SUBSCRIBE", "redisson_lock__channel:{k}");
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a");
    client.call("LOCK.RELEASE k a");
    client.call("PUBLISH redisson_lock__channel:{k} end");
    let Value::Array(words) = listener.reply() else {
        panic!("no message");
    };
    assert_eq!(words[2], text("end"));
    for (value, taken) in [("spublish", true), ("no", true), ("perhaps", false)] {
        client.send(&format!("CONFIG SET lock.redisson-notify {value}"));
        assert_eq!(client.reply() == status("OK"), taken);
    }
    assert_eq!(
        client.call("CONFIG GET lock.redisson-notify"),
        Value::Array(vec![text("lock.redisson-notify"), text("no")])
    );
}
