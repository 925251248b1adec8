//! The right to publish, which a place needs, and what its message may name.

use redis::Value;
use redis_lock_testing::scene::{await_gone, transaction, waiting};
use redis_lock_testing::{
    Client, Cluster, LONG, Subscriber, TestServer, eventually, int, nil, status, token,
};

const PLACE: &str = "LOCK.ACQUIRE k a LEASE 600000 QUEUE 600000 ch";

/// A connection of a user with these rights, made or changed now.
#[track_caller]
fn user(server: &TestServer, rights: &str) -> Client {
    let mut client = server.client();
    allow(&mut client, &format!("reset on >secret +@all {rights}"));
    assert_eq!(client.call("AUTH u secret"), status("OK"));
    client
}

#[track_caller]
fn allow(admin: &mut Client, rights: &str) {
    let set = admin.call(&format!("ACL SETUSER u {rights}"));
    assert_eq!(set, status("OK"));
}

fn held() -> (TestServer, Client) {
    let server = TestServer::start();
    let mut client = server.client();
    token(&client.call(&format!("LOCK.ACQUIRE k holder {LONG}")));
    (server, client)
}

#[track_caller]
fn assert_refused(client: &mut Client, command: &str) {
    let error = client.error(command);
    assert!(error.starts_with("NOPERM "), "{command}: {error}");
}

#[test]
fn a_place_needs_the_right_to_publish_even_where_the_lock_is_free() {
    let (server, mut admin) = held();
    let mut client = user(&server, "~* resetchannels &other &c?");
    for channel in ["secret", "chh", "", "c"] {
        for key in ["k", "free"] {
            let command = format!("LOCK.ACQUIRE {key} a QUEUE 60000 {channel}");
            assert_refused(&mut client, &command);
        }
    }
    assert_eq!(admin.call("EXISTS free"), int(0));
    assert_eq!(admin.info("lock_places"), 0);
    assert_eq!(client.call(PLACE), int(0));
    token(&client.call("LOCK.ACQUIRE free a QUEUE 60000 other"));
    // Nothing else of the command needs it.
    token(&client.call("LOCK.ACQUIRE free a"));
}

#[test]
fn the_key_has_to_be_writable_too() {
    let (server, mut admin) = held();
    let mut client = user(&server, "%R~* ~mine &*");
    assert_refused(&mut client, PLACE);
    token(&client.call("LOCK.ACQUIRE mine a QUEUE 60000 ch"));
    assert_eq!(admin.info("lock_places"), 0);
}

#[test]
fn the_right_is_asked_for_at_each_request_and_a_refusal_changes_nothing() {
    let (server, mut admin) = held();
    let mut ears = server.subscriber("ch");
    let mut client = user(&server, "~* resetchannels &ch");
    assert_eq!(client.call(PLACE), int(0));
    allow(&mut admin, "resetchannels &other");
    let mut client = server.client();
    assert_eq!(client.call("AUTH u secret"), status("OK"));
    assert_refused(&mut client, PLACE);
    assert_eq!(waiting(&mut admin, "k"), 1);
    // The place was had by right.
    assert_eq!(admin.call("LOCK.RELEASE k holder"), int(1));
    token(&Value::Int(ears.told().token()));
    assert_refused(&mut client, PLACE);
}

#[test]
fn a_script_and_a_transaction_have_the_rights_of_who_runs_them() {
    let (server, mut admin) = held();
    let mut client = user(&server, "~* resetchannels &ch");
    let script = "return redis.pcall('LOCK.ACQUIRE', KEYS[1], 'a', 'QUEUE', 60000, ARGV[1])";
    let mut eval = |channel: &[u8]| {
        let words = [b"EVAL", script.as_bytes(), b"1", b"k", channel];
        client.words(&words)
    };
    let refused = eval(b"other");
    assert!(format!("{refused:?}").contains("NOPERM"), "{refused:?}");
    assert_eq!(eval(b"ch"), int(0));
    let replies = transaction(&mut client, &["LOCK.ACQUIRE k b QUEUE 60000 other", PLACE]);
    assert!(
        format!("{:?}", replies[0]).contains("NOPERM"),
        "{replies:?}"
    );
    assert_eq!(replies[1], int(0));
    assert_eq!(waiting(&mut admin, "k"), 1);
}

#[test]
fn a_place_outlives_its_user() {
    let (server, mut admin) = held();
    let mut ears = server.subscriber("ch");
    let mut client = user(&server, "~* resetchannels &ch");
    assert_eq!(client.call(PLACE), int(0));
    let id = client.int("CLIENT ID");
    assert_eq!(admin.call("ACL DELUSER u"), int(1));
    await_gone(&mut admin, id);
    assert_eq!(admin.call("LOCK.RELEASE k holder"), int(1));
    assert_eq!(ears.told().owner, "a");
    server.assert_sound();
}

/// A cluster, where other keys are looked at in the next turn. `holder` has `{t}k` and waits
/// for `{t}secret`, which `a` has, who asks for a place for `{t}k` with these rights. Returns
/// what `a` is told.
#[track_caller]
fn refused(rights: &str) -> String {
    let server = Cluster::node();
    let mut admin = server.client();
    let all = "CLUSTER ADDSLOTSRANGE 0 16383";
    assert_eq!(admin.call(all), status("OK"));
    eventually("the node serves all slots", || {
        admin.bulk("CLUSTER INFO").contains("cluster_state:ok")
    });
    let mut ears = Subscriber::at(server.client());
    ears.subscribe("SSUBSCRIBE {t}ch");
    token(&admin.call(&format!("LOCK.ACQUIRE {{t}}k holder {LONG}")));
    token(&admin.call(&format!("LOCK.ACQUIRE {{t}}secret a {LONG}")));
    let other = format!("LOCK.ACQUIRE {{t}}secret holder {LONG} QUEUE 600000 {{t}}nobody");
    assert_eq!(admin.call(&other), int(0));
    let mut asks = user(&server, rights);
    let place = format!("LOCK.ACQUIRE {{t}}k a {LONG} QUEUE 600000 {{t}}ch");
    assert_eq!(asks.call(&place), int(0));
    let told = ears.told();
    assert_eq!(told.owner, "a");
    assert!(told.result.starts_with("-DEADLOCK "), "{told:?}");
    told.result
}

#[test]
fn a_deadlock_that_is_told_names_no_key_that_the_user_may_not_read() {
    let text = refused("~{t}k resetchannels &{t}ch");
    assert!(
        text.contains("'{t}k'") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn a_deadlock_that_is_told_names_all_keys_to_who_may_read_them() {
    let text = refused("~* resetchannels &{t}ch");
    assert!(
        text.contains("'{t}k'") && text.contains("'{t}secret'"),
        "{text}"
    );
}

#[test]
fn who_may_not_read_a_lock_is_not_shown_its_places() {
    let (server, mut admin) = held();
    let mut ears = server.subscriber("ch");
    assert_eq!(ears.call(PLACE), int(0));
    let mut client = user(&server, "~other &*");
    assert_eq!(client.call("LOCK.LIST"), Value::Array(Vec::new()));
    assert_refused(&mut client, "LOCK.INFO k");
    assert_eq!(admin.call("LOCK.RELEASE k a"), nil());
}
