//! Over fail-overs and restarts tokens rise above all that a server has received, if
//! the clocks agree within a minute.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::Value;
use redis_lock_testing::{Client, Clock, LONG, TestServer, eventually, status};

/// A token of a clock that is this many seconds ahead.
fn token_ahead(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_micros()).unwrap() + seconds * 1_000_000
}

/// Somebody's token, which this server only keeps.
fn store(client: &mut Client, key: &str, token: i64) {
    client.int(&format!("HSET {key} owner 1 @fence {token}"));
    assert_eq!(client.int(&format!("PEXPIRE {key} 600000")), 1);
}

/// The token of a lock that nobody had before.
#[track_caller]
fn new_token(server: &TestServer) -> i64 {
    let mut client = server.client();
    let key = client.info("total_commands_processed");
    client.int(&format!("LOCK.ACQUIRE new{key} owner {LONG}"))
}

fn promote(replica: &TestServer) {
    assert_eq!(replica.client().call("REPLICAOF NO ONE"), status("OK"));
}

#[track_caller]
fn check_promoted(primary: &TestServer, replica: &TestServer, key: &str) {
    primary.assert_same_data(replica);
    promote(replica);
    let mut client = replica.client();
    client.call("SELECT 3");
    let received = client.bulk(&format!("HGET {key} @fence"));
    let (received, token): (i64, i64) = (received.parse().unwrap(), new_token(replica));
    assert!(token > received, "{key}: {token} <= {received}");
}

#[test]
fn a_promoted_replica_gives_greater_tokens_than_any_that_it_received() {
    let primary = TestServer::start();
    let mut client = primary.client();
    // By the full synchronization, by the stream, and in the stream as a whole key.
    store(&mut client, "loaded", token_ahead(30));
    client.call("SELECT 3");
    store(&mut client, "loaded", token_ahead(40));
    let replicas = [(); 3].map(|()| primary.replica(true));
    let [by_rdb, by_stream, by_restore] = replicas;
    check_promoted(&primary, &by_rdb, "loaded");
    store(&mut client, "streamed", token_ahead(45));
    check_promoted(&primary, &by_stream, "streamed");
    store(&mut client, "restored", token_ahead(50));
    let dump = client.call("DUMP restored");
    let Value::BulkString(dump) = dump else {
        panic!("{dump:?} is no dump");
    };
    assert_eq!(client.int("DEL restored"), 1);
    let words: [&[u8]; 4] = [b"RESTORE", b"restored", b"0", &dump];
    assert_eq!(client.words(&words), status("OK"));
    check_promoted(&primary, &by_restore, "restored");
    // What somebody writes on a primary counts for its own lock alone.
    let token = new_token(&primary);
    assert!(token < token_ahead(5), "{token}");
}

#[test]
fn who_has_handed_over_gives_greater_tokens_than_any_that_it_received_since() {
    let server = TestServer::start();
    let other = server.replica(true);
    other.await_link().unwrap();
    assert_eq!(server.client().call("FAILOVER"), status("OK"));
    let is = |server: &TestServer, role: &str| {
        let told = server.client().bulk("INFO replication");
        told.contains(&format!("role:{role}"))
    };
    eventually("the other has taken over", || is(&other, "master"));
    eventually("this one follows it", || is(&server, "slave"));
    server.await_link().unwrap();
    assert_eq!(other.info("sync_full"), 0, "it loads nothing");
    let received = token_ahead(40);
    store(&mut other.client(), "k", received);
    other.assert_same_data(&server);
    promote(&server);
    let token = new_token(&server);
    assert!(token > received, "{token} <= {received}");
}

#[test]
fn what_a_replica_receives_far_ahead_of_its_clock_is_left_aside() {
    let primary = TestServer::start();
    let mut client = primary.client();
    store(&mut client, "loaded", token_ahead(120));
    let replica = primary.replica(true);
    store(&mut client, "streamed", token_ahead(120));
    primary.assert_same_data(&replica);
    promote(&replica);
    let token = new_token(&replica);
    assert!(token < token_ahead(5), "{token}");
}

#[test]
fn a_replica_whose_clock_is_behind_goes_on_where_its_primary_was() {
    let clock = Clock::new();
    let primary = TestServer::start();
    clock.set_ahead(-50);
    let port = primary.addr().port().to_string();
    let replica = clock.server_with(&["--replicaof", "127.0.0.1", &port]);
    replica.await_link().unwrap();
    let mut client = primary.client();
    let last = client.int(&format!("LOCK.ACQUIRE k owner {LONG}"));
    eventually("the replica is in step", || {
        replica.info("slave_repl_offset") == client.info("master_repl_offset")
    });
    promote(&replica);
    let next = new_token(&replica);
    assert!(next > last, "{next} <= {last}");
}

#[test]
fn a_server_that_loads_its_data_gives_greater_tokens_than_any_in_it() {
    for options in [
        &["--appendonly", "yes"][..],
        &["--appendonly", "yes", "--aof-use-rdb-preamble", "no"],
        &["--save", "3600 1"],
    ] {
        for (ahead, is_passed) in [(50, true), (120, false)] {
            let mut server = TestServer::start_with(options);
            let mut client = server.client();
            let stored = token_ahead(ahead);
            store(&mut client, "k", stored);
            if options[0] == "--appendonly" {
                assert_eq!(client.call("CONFIG SET appendfsync always"), status("OK"));
                client.call("SET last write");
            } else {
                assert_eq!(client.call("SAVE"), status("OK"));
            }
            server.crash_and_restart();
            let token = new_token(&server);
            assert_eq!(token > stored, is_passed, "{options:?}, {ahead} s: {token}");
        }
    }
}
