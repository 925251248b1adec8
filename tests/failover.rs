//! A primary that steps down, a replica that takes over, and everything else
//! that makes a whole server pause, reload or end while clients wait for locks,
//! blocked and by places.

use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Int, NO_REGULAR_LOOKS, Play, Server, module};

/// Nothing may be granted during this time. It is the absence of an event that
/// is observed, so there is nothing to poll for.
fn let_pass(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// `h` holds these locks, and for each somebody is blocked, and has a place behind that.
#[track_caller]
fn line_up(play: &mut Play, keys: &[&str]) {
    play.run("ears hears ch");
    for key in keys {
        play.run(&format!(
            "h > LOCK.ACQUIRE {key} h LONG
            w{key} > LOCK.ACQUIRE {key} w BLOCKED -> ..
            ears > LOCK.ACQUIRE {key} p PLACED -> 0"
        ));
    }
}

/// They hear that the server serves them no more, in any order of the locks.
#[track_caller]
fn assert_unblocked(play: &mut Play, keys: &[&str]) {
    for key in keys {
        play.run(&format!("w{key} < !UNBLOCKED \n w{key} drops"));
    }
    let mut told: Vec<Vec<u8>> = keys
        .iter()
        .map(|_| {
            let told = play.client("ears").told();
            assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
            told.key
        })
        .collect();
    told.sort();
    assert_eq!(
        told,
        keys.iter().map(|key| key.as_bytes()).collect::<Vec<_>>()
    );
}

/// The lock passes to those in line for it, one after the other.
#[track_caller]
fn assert_served(play: &mut Play, key: &str) {
    play.run(&format!(
        "w{key} < token
        w{key} > LOCK.RELEASE {key} w -> 1
        ears heard p token
        w{key} > LOCK.RELEASE {key} p -> 1"
    ));
}

#[test]
fn on_demotion_every_waiter_hears_of_it_and_none_is_granted() {
    let mut play = Play::start();
    play.run("r starts");
    line_up(&mut play, &["a", "b"]);
    // In one turn of the event loop.
    play.run(
        "new at r
        new > LOCK.ACQUIRE a other LONG -> token
        h > LOCK.RENEW a h LEASE 500 | REPLICAOF 127.0.0.1 $r -> 1 | OK",
    );
    assert_unblocked(&mut play, &["a", "b"]);
    play.await_link().unwrap();
    // Both leases end while the node is a replica, the one that it had and the
    // one that it got.
    play.run(
        "h > LOCK.RELEASE b h -> !READONLY
        new > LOCK.RENEW a other LEASE 500 -> 1",
    );
    let_pass(1000);
    play.run(
        "blocked_clients = 0
        lock_waiters = 0
        lock_places = 0
        h > KEYS * -> []",
    );
    play.others["r"].assert_same_data(&play.server);
    // Promoted again, it has nobody in line, and serves who comes.
    play.run("h > REPLICAOF NO ONE -> OK \n queue a = nobody");
    line_up(&mut play, &["a"]);
    play.run("h > LOCK.RELEASE a h -> 1");
    assert_served(&mut play, "a");
}

#[test]
fn a_demotion_tells_many_places_of_many_locks() {
    let mut play = Play::held().with_replica();
    play.run("each 0..49: h > LOCK.ACQUIRE k# h LONG -> token");
    for i in 0..1000 {
        play.run(&format!(
            "ears > LOCK.ACQUIRE k{} owner{i} PLACED -> 0",
            i % 50
        ));
    }
    play.run("new at r \n new > REPLICAOF NO ONE -> OK \n h > REPLICAOF 127.0.0.1 $r -> OK");
    let mut owners: Vec<String> = (0..1000)
        .map(|_| {
            let told = play.client("ears").told();
            assert!(told.result.starts_with("-UNBLOCKED "), "{told:?}");
            told.owner
        })
        .collect();
    owners.sort();
    owners.dedup();
    assert_eq!(owners.len(), 1000);
    play.run("lock_places = 0");
}

#[test]
fn what_ended_just_before_a_demotion_is_not_undone_after_it() {
    let mut play = Play::start().with_replica();
    play.run("s > LOCK.ACQUIRE k s LONG SESSION -> S \n in step");
    // In one turn of the event loop: the connection ends, and the server is a
    // replica before it can give the lock back.
    play.run(
        "new at r
        new > REPLICAOF NO ONE -> OK
        o > CLIENT KILL ID $s | REPLICAOF 127.0.0.1 $r -> 1 | OK",
    );
    play.await_link().unwrap();
    // On the new primary the owner has it still, and confirms that.
    play.run("new > LOCK.ACQUIRE k s LONG HOLD 1 -> S");
    play.others["r"].assert_same_data(&play.server);
    // Promoted again, the old one does not remember what it was about to do.
    let_pass(100);
    play.run("o > REPLICAOF NO ONE -> OK");
    let_pass(300);
    play.run(
        "o > HGET k s -> '1'
        lock_releases_session = 0
        o > LOCK.ACQUIRE k s LONG HOLD 1 -> S",
    );
}

#[test]
fn a_promoted_replica_keeps_the_locks_and_hands_them_on() {
    let mut play = Play::start().with_replica();
    play.run(
        "h > LOCK.ACQUIRE kept h LONG -> A
        h > LOCK.ACQUIRE kept h LONG -> A
        h > LOCK.ACQUIRE released h LONG -> B
        h > LOCK.ACQUIRE released h LONG -> B
        h > LOCK.ACQUIRE short h LONG -> C
        in step
        h > HGETALL kept -> :stored
        h at r
        h > REPLICAOF NO ONE -> OK
        short@r > LOCK.ACQUIRE short w BLOCKED -> ..
        released@r > LOCK.ACQUIRE released w BLOCKED -> ..
        h > HGETALL kept -> $stored
        h > LOCK.ACQUIRE kept other -> null
        h > LOCK.ACQUIRE kept h HOLD 3 -> A
        h > LOCK.RELEASE released h ALL -> 1
        h > LOCK.RENEW short h LEASE 300 -> 1
        released@r < D
        short@r < E
        h > LOCK.RELEASE short h -> null
        sound",
    );
}

#[test]
fn a_replica_grants_nothing_when_a_lease_ends_and_gives_no_places() {
    Play::held().with_replica().run(
        "w > LOCK.ACQUIRE k w BLOCKED -> ..
        in step
        there at r
        there > LOCK.ACQUIRE k other BLOCK 0 -> !READONLY
        there > LOCK.ACQUIRE k other QUEUE 60000 ch -> !READONLY
        h > LOCK.RENEW k h LEASE 300 -> 1
        w < W
        in step
        there > HLEN k -> 2
        there > HGET k w -> '1'
        there > HGET k @fence -> '$W'
        there > CONFIG SET replica-read-only no
        there > LOCK.ACQUIRE k a QUEUE 60000 ch -> !READONLY
        there > LOCK.ACQUIRE k a QUEUE 60000 ch -> ~leave BLOCK, QUEUE and SESSION out
        r.lock_places = 0",
    );
}

#[test]
fn failover_unblocks_the_waiters_and_keeps_the_locks() {
    let mut play = Play::start().with_replica();
    line_up(&mut play, &["long", "short"]);
    play.run(
        "h > LOCK.ACQUIRE long h LONG -> L
        h > LOCK.RENEW short h LEASE 1000 | FAILOVER -> 1 | OK",
    );
    assert_unblocked(&mut play, &["long", "short"]);
    play.run(
        "until h > INFO replication -> ~role:slave
        until h@r > INFO replication -> ~role:master
        h at r
        w at r
        ears at r
        ears hears ch
        h > LOCK.ACQUIRE long other -> null
        h > LOCK.ACQUIRE long h LONG -> L
        w > LOCK.ACQUIRE long w BLOCKED -> ..
        ears > LOCK.ACQUIRE long p PLACED -> 0
        h > LOCK.RELEASE long h ALL -> 1
        w < W
        w > LOCK.RELEASE long w -> 1
        ears heard p P
        until h > LOCK.ACQUIRE short another -> token
        sound",
    );
    play.await_link().unwrap();
    play.others["r"].assert_same_data(&play.server);
}

#[test]
fn a_failover_that_is_aborted_leaves_the_waiters_in_line() {
    let mut play = Play::start().with_replica();
    line_up(&mut play, &["k"]);
    // A replica that is behind and does not answer keeps the failover in its
    // first stage, in which the primary must not write, until its time is up.
    play.run("r stops \n h > SET behind 1");
    let paused_at = Instant::now();
    // In one turn of the event loop, so the lease ends in that stage.
    play.run(
        "h > LOCK.RENEW k h LEASE 300 | FAILOVER TO 127.0.0.1 $r TIMEOUT 1000 -> 1 | OK
        wk < token",
    );
    assert!(paused_at.elapsed() >= Duration::from_millis(999));
    play.run(
        "r goes on
        until h > INFO replication -> ~master_failover_state:no-failover
        sound",
    );
}

#[test]
fn a_grant_that_a_demotion_left_unclaimed_ends_with_its_lease() {
    let mut play = Play::held().with_replica();
    play.run(
        "h > CONFIG SET lock.claim-timeout 300
        ears > LOCK.ACQUIRE k a PLACED -> 0
        h > LOCK.RELEASE k h -> 1
        ears heard a token
        in step
        new at r
        new > REPLICAOF NO ONE -> OK
        until new > EXISTS k -> 0
        new > LOCK.ACQUIRE k b -> token",
    );
}

/// A lease ends in the pause. The lock is handed on after it, not in it; but a place whose
/// time is over is told so.
#[test]
fn client_pause_over_a_leases_end_puts_the_grant_off() {
    for mode in ["WRITE", "ALL"] {
        let mut play = Play::start().with_replica();
        line_up(&mut play, &["k"]);
        let mut watcher = play.others["r"].client();
        play.run("ears > LOCK.ACQUIRE k short QUEUE 100 ch -> 0");
        let start = Instant::now();
        // In one turn of the event loop, so the lease ends in the pause.
        play.run(&format!(
            "h > LOCK.RENEW k h LEASE 300 | CLIENT PAUSE 2500 {mode} -> 1 | OK
            ears heard short 0"
        ));
        // Nobody may ask the paused server, so its replica tells what it wrote. The
        // last look is long before the pause ends.
        while start.elapsed() < Duration::from_millis(1400) {
            assert_eq!(watcher.call("HEXISTS k w"), Int(0));
            std::thread::sleep(Duration::from_millis(5));
        }
        play.run("wk < token");
        assert!(start.elapsed() >= Duration::from_millis(2499), "{mode}");
        play.run("h > LOCK.RELEASE k w -> 1 \n ears heard p token \n in step");
    }
}

#[test]
fn debug_reload_with_waiters_keeps_the_lock_and_the_queue() {
    let mut play = Play::start();
    line_up(&mut play, &["k", "short"]);
    play.run(
        "h > LOCK.RENEW short h LEASE 500 | DEBUG RELOAD -> 1 | OK
        h > HGET k h -> '1'",
    );
    assert_served(&mut play, "short");
    play.run("queue k = w p \n h > LOCK.RELEASE k h ALL -> 1");
    assert_served(&mut play, "k");
    play.run("sound");
}

/// What somebody waits for, and what is kept up.
#[test]
fn the_module_is_unloaded_only_when_nobody_waits_and_works_when_loaded_again() {
    let load = format!(
        "MODULE LOAD {} {}",
        module().display(),
        NO_REGULAR_LOOKS.join(" ")
    );
    let mut play = Play::start();
    play.run(&format!(
        "h > LOCK.ACQUIRE k h LONG -> H
        w > LOCK.ACQUIRE k w BLOCKED SESSION -> ..
        h > MODULE UNLOAD lock -> !ERR
        h > LOCK.RELEASE k h -> 1
        w < token
        h > MODULE UNLOAD lock -> !ERR
        h > LOCK.RELEASE k w -> 1
        ears hears ch
        h > LOCK.ACQUIRE k h LONG -> token
        h > LOCK.ACQUIRE k p PLACED -> 0
        h > MODULE UNLOAD lock -> !ERR
        h > LOCK.RELEASE k p -> null
        ears heard p 0 0
        h > LOCK.RELEASE k h -> 1
        each w ears: # > PING -> _
        until h > MODULE UNLOAD lock -> OK
        h > LOCK.ACQUIRE k h -> !ERR unknown command
        h > {load} -> OK
        h > LOCK.ACQUIRE k h LONG -> token
        w > LOCK.ACQUIRE k w BLOCKED -> ..
        h > LOCK.RENEW k h LEASE 100 -> 1
        w < token"
    ));
    play.run("sound");
}

/// The server would read a command that is gone: in `CLIENT LIST`, at the client's next command
/// (Redis 8.0 and later), or in its `EXEC`.
#[test]
fn the_module_is_unloaded_only_when_no_client_has_run_its_command_last_or_is_in_a_transaction() {
    Play::start().run(
        "w > LOCK.INFO k -> _ \n o > MODULE UNLOAD lock -> !ERR \n w > PING -> _
        h > MULTI -> OK \n o > MODULE UNLOAD lock -> !ERR \n h > EXEC -> []
        o > MODULE UNLOAD lock -> OK
        w > LOCK.INFO k -> !ERR unknown command \n o > CLIENT LIST -> _",
    );
}

#[test]
fn shutdown_with_waiters_ends_cleanly() {
    let mut play = Play::start();
    line_up(&mut play, &["k", "short"]);
    play.run("each 0..99: ears > LOCK.ACQUIRE k owner# PLACED -> 0");
    play.run("h sends LOCK.RENEW short h LEASE 1 | SHUTDOWN NOSAVE");
    // The server may end before it has written the first reply.
    let replies = [(); 2].map(|()| play.client("h").try_reply());
    assert!(matches!(replies, [None | Some(Value::Int(1)), None]));
    let ended = play.server.await_end().unwrap();
    let log = play.log();
    assert!(ended.success(), "{ended}\n{log}");
    assert!(!log.contains("BUG REPORT START"), "{log}");
    assert!(!matches!(
        play.client("wk").try_reply(),
        Some(Value::Int(_))
    ));
}

/// One of nine holders has so short a lease, which is renewed on another server alone.
/// Returns whether it lasted until then.
#[track_caller]
fn check_full_sync(lease_ms: u64) -> bool {
    let options = [
        "--repl-diskless-load",
        "swapdb",
        "--repl-diskless-sync",
        "yes",
        "--repl-diskless-sync-delay",
        "0",
    ];
    let mut play = Play::on(Server::start_with(&options));
    let replica = Server::start_with(&options);
    play.others.insert("other".into(), replica);
    let here = play.port;
    play.run(&format!(
        "there at other
        there > REPLICAOF 127.0.0.1 {here} -> OK
        each 0..7: o > LOCK.ACQUIRE k o# LONG LIMIT 9 -> token
        o > LOCK.ACQUIRE k b LEASE {lease_ms} LIMIT 9 -> token"
    ));
    let over = Instant::now() + Duration::from_millis(lease_ms + 100);
    play.run(
        "until there > HLEN k -> 19
        there > REPLICAOF NO ONE -> OK",
    );
    // The key does not end later for it.
    if play.client("there").int("LOCK.RENEW k b LEASE 300000") == 0 {
        return false;
    }
    // What the old primary took too long makes it load the whole data set.
    play.run("o > SET stray x \n o > REPLICAOF 127.0.0.1 $other -> OK");
    play.await_link().unwrap();
    play.run("o > EXISTS stray -> 0 \n o > REPLICAOF NO ONE -> OK");
    std::thread::sleep(over.saturating_duration_since(Instant::now()));
    play.run(
        "o > LOCK.ACQUIRE k newcomer LIMIT 9 -> null
        o > LOCK.RENEW k b LEASE 300000 -> 1",
    );
    true
}

#[test]
fn after_a_full_sync_nothing_older_is_believed() {
    // A slow machine needs a longer lease.
    let leases_ms = [2000, 8000, 32_000];
    assert!(leases_ms.into_iter().any(check_full_sync));
}
