//! Redisson's waiters, who listen on a channel, are told of a release.

use redis::Value;
use redis_lock_testing::{
    Client, Cluster, TestServer, eventually, int, nil, redis_cli, status, tag, text,
};

const CHANNEL: &str = "redisson_lock__channel:{k}";

fn server(notify: &str) -> TestServer {
    let server = TestServer::start();
    set(&mut server.client(), notify);
    server
}

#[track_caller]
fn set(client: &mut Client, notify: &str) {
    let set = format!("CONFIG SET lock.redisson-notify {notify}");
    assert_eq!(client.call(&set), status("OK"));
}

#[track_caller]
fn release(client: &mut Client, key: &str) {
    client.call(&format!("LOCK.ACQUIRE {key} a"));
    assert_eq!(client.call(&format!("LOCK.RELEASE {key} a")), int(1));
}

/// The next message of this listener is one that somebody published after what is of no
/// concern to it.
#[track_caller]
fn assert_heard_nothing(listener: &mut Client, publisher: &mut Client, publish: &str) {
    publisher.call(&format!("{publish} end"));
    let Value::Array(words) = listener.reply() else {
        panic!("no message");
    };
    assert_eq!(words.last(), Some(&text("end")));
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
    for notify in ["auto", "publish"] {
        is_published_once(&server(notify));
    }
}

#[track_caller]
fn is_published_once(server: &TestServer) {
    let mut listener = subscribed(server, "PSUBSCRIBE", "*");
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
    let server = TestServer::start();
    let mut listener = subscribed(&server, "SUBSCRIBE", CHANNEL);
    let mut client = server.client();
    for command in ["MULTI", "LOCK.ACQUIRE k a", "LOCK.RELEASE k a", "EXEC"] {
        client.call(command);
    }
    assert_eq!(listener.reply(), message("message", CHANNEL));
    let script: &[&[u8]] = &[
        b"EVAL",
        b"redis.call('LOCK.ACQUIRE', KEYS[1], 'a') return redis.call('LOCK.RELEASE', KEYS[1], 'a')",
        b"1",
        b"k",
    ];
    assert_eq!(client.words(script), int(1));
    assert_eq!(listener.reply(), message("message", CHANNEL));
}

#[test]
fn a_subscriber_of_a_replica_is_told_if_it_is_asked_for() {
    let server = TestServer::start();
    let replica = server.replica(false);
    let mut listener = subscribed(&replica, "SUBSCRIBE", CHANNEL);
    let mut client = server.client();
    release(&mut client, "k");
    assert_heard_nothing(&mut listener, &mut client, &format!("PUBLISH {CHANNEL}"));
    set(&mut client, "publish");
    release(&mut client, "k");
    assert_eq!(listener.reply(), message("message", CHANNEL));
    server.assert_same_data(&replica);
}

#[test]
fn in_a_cluster_sharded_subscribers_are_told() {
    let cluster = Cluster::start();
    let key = tag(|slot| slot < 5000, 0);
    let server = &cluster.nodes[0];
    let replica = replica_of_node_0(&cluster);
    let mut client = server.client();
    let channel = format!("redisson_lock__channel:{{{key}}}");
    // Nobody listens here.
    let mut beside = subscribed(&replica, "SSUBSCRIBE", &channel);
    release(&mut client, &key);
    assert_heard_nothing(&mut beside, &mut client, &format!("SPUBLISH {channel}"));
    set(&mut client, "spublish");
    release(&mut client, &key);
    assert_eq!(beside.reply(), message("smessage", &channel));

    for notify in ["auto", "spublish"] {
        set(&mut client, notify);
        let mut listener = subscribed(server, "SSUBSCRIBE", &channel);
        release(&mut client, &key);
        assert_eq!(listener.reply(), message("smessage", &channel));
    }
    cluster.assert_sound();
}

#[track_caller]
fn replica_of_node_0(cluster: &Cluster) -> TestServer {
    let (replica, primary) = (Cluster::node(), &cluster.nodes[0]);
    let addrs = [&replica, primary].map(|node| node.addr().to_string());
    let args = ["--cluster", "add-node", &addrs[0], &addrs[1]];
    let of = ["--cluster-slave", "--cluster-master-id", &cluster.ids[0]];
    let (added, said) = redis_cli(&[&args[..], &of].concat()).unwrap();
    assert!(added, "no replica: {said}");
    let relation = format!("slave {}", cluster.ids[0]);
    eventually("the primary knows the replica", || {
        primary.client().bulk("CLUSTER NODES").contains(&relation)
    });
    replica
}

#[test]
fn who_begins_to_listen_is_told_however_many_locks_nobody_heard_of() {
    let server = TestServer::start();
    let mut client = server.client();
    (0..1200).for_each(|n| release(&mut client, &format!("other{n}")));
    let mut listener = subscribed(&server, "SUBSCRIBE", CHANNEL);
    for _ in 0..2 {
        release(&mut client, "k");
        assert_eq!(listener.reply(), message("message", CHANNEL));
    }
}

#[test]
fn nothing_is_published_if_nothing_is_to_be() {
    let server = server("no");
    let mut listener = subscribed(&server, "SUBSCRIBE", CHANNEL);
    let mut client = server.client();
    release(&mut client, "k");
    assert_heard_nothing(&mut listener, &mut client, &format!("PUBLISH {CHANNEL}"));
}

#[test]
fn who_listens_is_told_by_default() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(
        client.call("CONFIG GET lock.redisson-notify"),
        Value::Array(vec![text("lock.redisson-notify"), text("auto")])
    );
    for (value, taken) in [("spublish", true), ("auto", true), ("perhaps", false)] {
        client.send(&format!("CONFIG SET lock.redisson-notify {value}"));
        assert_eq!(client.reply() == status("OK"), taken);
    }
}
