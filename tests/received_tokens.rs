//! Over fail-overs and restarts tokens rise above all that a server has received, if
//! the clocks agree within a minute.

use std::time::{SystemTime, UNIX_EPOCH};

use redis_lock_testing::{Clock, Play, TestServer};

/// Tokens of a clock that is so many seconds ahead have these names from here on.
fn name_tokens(play: &mut Play) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for seconds in [5, 30, 40, 45, 50, 120] {
        let token = now.as_micros() + seconds * 1_000_000;
        play.name(&format!("t{seconds}"), token.to_string());
    }
}

/// Somebody's token, which a server only keeps.
fn store(key: &str, token: &str) -> String {
    format!("o > HSET {key} owner 1 @fence {token} -> 2 \n o > PEXPIRE {key} 600000 -> 1")
}

/// Once it has all, a replica is promoted, and gives a lock that nobody had before this token.
fn promote(replica: &str, token: &str) -> String {
    format!(
        "in step with {replica}
        n@{replica} > REPLICAOF NO ONE -> OK
        n@{replica} > LOCK.ACQUIRE new o LONG -> {token}"
    )
}

#[test]
fn a_promoted_replica_gives_greater_tokens_than_any_that_it_received() {
    let mut play = Play::start();
    name_tokens(&mut play);
    play.run(&store("loaded", "$t30"))
        .run("o > SELECT 3")
        .run(&store("loaded", "$t40"));
    for name in ["r1", "r2", "r3"] {
        let replica = play.server.replica(true);
        play.others.insert(name.into(), replica);
    }
    // By the full synchronization, by the stream, and in the stream as a whole key, as
    // grants are. What somebody writes on a primary counts for its own lock alone.
    play.run(&promote("r1", "$t40+1.."))
        .run(&store("streamed", "$t45"))
        .run(&promote("r2", "$t45+1.."))
        .run(
            "o > HSET restored @fence $t50 -> 1
            o > LOCK.ACQUIRE restored o LONG -> $t50+1",
        )
        .run(&promote("r3", "$t50+2.."))
        .run("o > LOCK.ACQUIRE new o LONG -> 1..$t5");
}

#[test]
fn who_has_handed_over_gives_greater_tokens_than_any_that_it_received_since() {
    let mut play = Play::start().with_replica();
    name_tokens(&mut play);
    play.run(
        "o > FAILOVER -> OK
        until o@r > INFO replication -> ~role:master
        until o > INFO replication -> ~role:slave",
    );
    play.await_link().unwrap();
    // It loads nothing.
    play.run("r.sync_full = 0 \n o at r")
        .run(&store("k", "$t40"));
    play.others["r"].assert_same_data(&play.server);
    play.run(
        "n > REPLICAOF NO ONE -> OK
        n > LOCK.ACQUIRE new o LONG -> $t40+1..",
    );
}

#[test]
fn what_a_replica_receives_far_ahead_of_its_clock_is_left_aside() {
    let mut play = Play::start();
    name_tokens(&mut play);
    play.run(&store("loaded", "$t120"));
    play.with_replica()
        .run(&store("streamed", "$t120"))
        .run(&promote("r", "1..$t5"));
}

#[test]
fn a_replica_whose_clock_is_behind_goes_on_where_its_primary_was() {
    let clock = Clock::new();
    let mut play = Play::start();
    clock.set_ahead(-50);
    let port = play.port().to_string();
    let replica = clock.server_with(&["--replicaof", "127.0.0.1", &port]);
    replica.await_link().unwrap();
    play.others.insert("r".into(), replica);
    play.run(
        "o > LOCK.ACQUIRE k o LONG -> T
        until o@r > HGET k o -> '1'
        o@r > REPLICAOF NO ONE -> OK
        o@r > LOCK.ACQUIRE new o LONG -> U",
    );
}

#[test]
fn a_server_that_loads_its_data_gives_greater_tokens_than_any_in_it() {
    let appended = "o > CONFIG SET appendfsync always -> OK \n o > SET last write -> OK";
    for (options, written) in [
        (&["--appendonly", "yes"][..], appended),
        (
            &["--appendonly", "yes", "--aof-use-rdb-preamble", "no"],
            appended,
        ),
        (&["--save", "3600 1"], "o > SAVE -> OK"),
    ] {
        for (stored, next) in [("$t50", "$t50+1.."), ("$t120", "1..$t120")] {
            let mut play = Play::on(TestServer::start_with(options));
            name_tokens(&mut play);
            play.run(&store("k", stored)).run(written);
            play.run(&format!("crash \n o > LOCK.ACQUIRE new o LONG -> {next}"));
        }
    }
}
