//! In a cluster, a guarded command and its lock are in one slot.

use redis_lock_testing::scene::transaction;
use redis_lock_testing::{Client, Cluster, LONG, MovingSlot, int, slot, status, tag, text};

/// It must fail with this text, and leave all keys as they were.
#[track_caller]
fn check(client: &mut Client, command: &str, error: &str) {
    let before = client.call("DEBUG DIGEST");
    assert_eq!(client.error(command), error, "{command}");
    assert_eq!(client.call("DEBUG DIGEST"), before, "{command}");
}

/// A name of this slot, one of another slot of the same node, one of another node.
fn names() -> [String; 3] {
    let here = tag(|slot| slot < 5000, 0);
    let there = tag(|other| other < 5000 && other != slot(&here), 0);
    [here, there, tag(|slot| slot > 12_000, 0)]
}

#[test]
fn in_a_cluster_all_keys_are_in_the_slot_of_the_lock() {
    let cluster = Cluster::start();
    let mut client = cluster.client(0);
    let [here, there, elsewhere] = names();
    let token = client.int(&format!("LOCK.ACQUIRE {{{here}}}k a {LONG}"));
    let guard = format!("LOCK.GUARD {{{here}}}k {token}");
    let set = format!("{guard} MSET {{{here}}}x 1 {{{here}}}y 2");
    assert_eq!(client.call(&set), status("OK"));
    assert_eq!(client.call(&format!("{guard} GET {{{here}}}x")), text("1"));
    // Those without a key run anywhere.
    assert_eq!(client.call(&format!("{guard} PUBLISH c 1")), int(0));
    assert_eq!(client.call(&format!("{guard} DBSIZE")), int(3));
    let replies = transaction(&mut client, &[&format!("{guard} INCR {{{here}}}x")]);
    assert_eq!(replies, [int(2)]);
    let crossed = "CROSSSLOT Keys in request don't hash to the same slot";
    for other in [&there, &elsewhere] {
        for command in [
            format!("SET {other} 1"),
            format!("GET {other}"),
            format!("MSET {{{here}}}x 3 {other} 3"),
            format!("RENAME {{{here}}}x {other}"),
            format!("SORT {{{here}}}l STORE {other}"),
        ] {
            check(&mut client, &format!("{guard} {command}"), crossed);
        }
    }
    let moved = format!("MOVED {} {}", slot(&elsewhere), cluster.nodes[2].addr());
    let error = client.error(&format!("LOCK.GUARD {elsewhere} {token} SET {elsewhere} 1"));
    assert_eq!(error, moved);
    for other in [&there, &elsewhere] {
        let script = "return redis.call('LOCK.GUARD', KEYS[1], ARGV[1], 'SET', ARGV[2], '1')";
        let key = format!("{{{here}}}k");
        let token = token.to_string();
        let words = ["EVAL", script, "1", &key, &token, other].map(str::as_bytes);
        client.send_words(&words);
        let error = client.reply_error();
        assert!(error.starts_with("CROSSSLOT "), "{other}: {error}");
    }
    for node in &cluster.nodes {
        node.assert_sound();
    }
}

#[test]
fn a_guarded_shard_message_reaches_its_subscribers_or_is_refused() {
    let cluster = Cluster::start();
    let mut client = cluster.client(0);
    let [here, there, elsewhere] = names();
    let token = client.int(&format!("LOCK.ACQUIRE {{{here}}}k a {LONG}"));
    for channel in [&here, &there] {
        let mut subscriber = cluster.client(0);
        subscriber.call(&format!("SSUBSCRIBE {channel}"));
        let publish = format!("LOCK.GUARD {{{here}}}k {token} SPUBLISH {channel} m");
        assert_eq!(client.call(&publish), int(1), "{channel}");
        let message = format!("{:?}", subscriber.reply());
        assert!(message.contains("smessage"), "{message}");
    }
    let publish = format!("LOCK.GUARD {{{here}}}k {token} SPUBLISH {elsewhere} m");
    let error = client.error(&publish);
    assert!(error.starts_with("ERR "), "{error}");
}

#[test]
fn in_a_cluster_guards_within_guards_take_no_more_stack_than_one() {
    let cluster = Cluster::start();
    let mut client = cluster.client(0);
    let [here, ..] = names();
    let guard = ["LOCK.GUARD", here.as_str(), "5"];
    let mut words: Vec<&[u8]> = guard
        .repeat(100_000)
        .iter()
        .map(|word| word.as_bytes())
        .collect();
    words.extend([b"GET".as_slice(), here.as_bytes()]);
    client.send_words(&words);
    let error = client.reply_error();
    assert!(
        error.starts_with("ERR LOCK.GUARD runs no LOCK.* "),
        "{error}"
    );
    cluster.nodes[0].assert_sound();
}

#[test]
fn while_a_slot_moves_the_server_asks_for_patience_as_for_any_command_of_two_keys() {
    let moving = MovingSlot::start();
    let (key, guarded) = (&moving.key, moving.key.replace("lock", "guarded"));
    let mut client = moving.cluster.client(0);
    let token = client.int(&format!("LOCK.ACQUIRE {key} a {LONG}"));
    client.call(&format!("SET {guarded} 1"));
    moving.begin();
    moving.migrate(&guarded);
    // The lock is here still, and the key it guards is not.
    let error = client.error(&format!("LOCK.GUARD {key} {token} SET {guarded} 2"));
    assert!(error.starts_with("TRYAGAIN "), "{error}");
    assert_eq!(client.int(&format!("EXISTS {key}")), 1);
}
