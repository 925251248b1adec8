//! A server that refuses writes does not write by itself either.

use redis_lock_testing::scene::assert_none_granted;
use redis_lock_testing::{Play, Server, eventually};

/// Locks that come free while the server refuses writes: `ended` because its lease ends,
/// `closed` because its session closes. Somebody waits for each, and `placed` has a place.
#[track_caller]
fn lined_up(server: Server) -> Play {
    let mut play = Play::on(server);
    play.run(
        "h > LOCK.ACQUIRE ended h LONG -> token
        s > LOCK.ACQUIRE closed h LONG SESSION -> token
        ears hears ch
        wended > LOCK.ACQUIRE ended waiter BLOCKED -> ..
        wclosed > LOCK.ACQUIRE closed waiter BLOCKED -> ..
        ears > LOCK.ACQUIRE ended placed PLACED -> 0",
    );
    play
}

/// Lets the lease be over while writes are refused.
const ENDS_AFTER_THAT: &str = "h > LOCK.RENEW ended h LEASE 1000 -> 1";

/// Writes are refused now. Nothing may be handed on, and nobody gets a place.
#[track_caller]
fn assert_nothing_is_granted(play: &mut Play, code: &str) {
    play.run(&format!(
        "h > LOCK.ACQUIRE another h -> !{code}
        h > LOCK.ACQUIRE ended another PLACED -> !{code}
        s drops
        until h > HGET ended h -> null"
    ));
    assert_none_granted(play.client("h"), &["ended", "closed"]);
}

/// Writes are accepted again. Everybody gets what is free.
#[track_caller]
fn assert_granted(play: &mut Play) {
    play.run(
        "wended < E
        h > HGET ended @fence -> '$E'
        h > LOCK.RELEASE ended waiter -> 1
        ears heard placed token
        wclosed < token
        h > HGET closed waiter -> '1'",
    );
    play.run("sound");
}

#[test]
fn without_replicas_nobody_is_granted_until_fewer_will_do_or_one_has_come() {
    for comes in [false, true] {
        let mut play = lined_up(Server::start());
        play.run(ENDS_AFTER_THAT)
            .run("h > CONFIG SET min-replicas-to-write 1");
        assert_nothing_is_granted(&mut play, "NOREPLICAS");
        let _replica = comes.then(|| play.server.replica(false));
        if !comes {
            play.run("h > CONFIG SET min-replicas-to-write 0");
        }
        assert_granted(&mut play);
    }
}

/// A session's lease is not moved while writes are refused, and it ends. Who holds by a
/// connection must not believe in it any longer.
#[track_caller]
fn check_not_kept_up(server: Server, refuse: impl FnOnce(&mut Play), accept: &str) {
    let mut play = Play::on(server);
    play.run(
        "kept > LOCK.ACQUIRE kept h LEASE 1500 SESSION -> token
        w > LOCK.ACQUIRE kept waiter BLOCKED -> ..",
    );
    refuse(&mut play);
    let observer = play.client("o");
    let end = observer.int("PEXPIRETIME kept");
    eventually("the session's lease is over", || {
        let now = observer.int("PEXPIRETIME kept");
        assert!(now <= end, "the session was kept up, or handed on");
        now == -2
    });
    play.run(&format!("kept < closed \n o > {accept} -> OK \n w < token"));
}

#[test]
fn without_enough_replicas_no_session_is_kept_up() {
    check_not_kept_up(
        Server::start(),
        |play| _ = play.run("o > CONFIG SET min-replicas-to-write 1"),
        "CONFIG SET min-replicas-to-write 0",
    );
}

/// A server whose next snapshot fails, because its name is a folder's.
fn without_a_disk() -> Server {
    let server = Server::start_with(&["--dbfilename", "folder"]);
    std::fs::create_dir(server.dir.join("folder")).unwrap();
    let save: [&[u8]; 4] = [b"CONFIG", b"SET", b"save", b"3600 1"];
    server.client().words(&save);
    server
}

fn fail_a_snapshot(play: &mut Play) {
    play.run("o > BGSAVE");
    await_in_info(play, "rdb_last_bgsave_status:err");
}

#[track_caller]
fn await_in_info(play: &mut Play, what: &str) {
    let observer = play.client("o");
    eventually(what, || observer.bulk("INFO persistence").contains(what));
}

#[test]
fn after_a_failed_snapshot_nobody_is_granted_until_allowed() {
    let mut play = lined_up(without_a_disk());
    play.run(ENDS_AFTER_THAT);
    fail_a_snapshot(&mut play);
    assert_nothing_is_granted(&mut play, "MISCONF");
    play.run("h > CONFIG SET stop-writes-on-bgsave-error no");
    assert_granted(&mut play);
}

#[test]
fn after_a_failed_snapshot_no_session_is_kept_up() {
    let accept = "CONFIG SET stop-writes-on-bgsave-error no";
    check_not_kept_up(without_a_disk(), fail_a_snapshot, accept);
}

/// The append-only file is a device that is always full.
#[test]
fn while_the_append_only_file_is_full_nothing_is_handed_on() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("appendonlydir");
    std::fs::create_dir(&folder).unwrap();
    for name in ["temp-appendonly.aof.incr", "appendonly.aof.1.incr.aof"] {
        std::os::unix::fs::symlink("/dev/full", folder.join(name)).unwrap();
    }
    let path = dir.path().to_str().unwrap();
    let mut play = lined_up(Server::start_with(&["--dir", path]));
    play.run("h > CONFIG SET appendonly yes")
        .run(ENDS_AFTER_THAT);
    await_in_info(&mut play, "aof_last_write_status:err");
    assert_nothing_is_granted(&mut play, "MISCONF");
    play.run("h > CONFIG SET appendonly no");
    assert_granted(&mut play);
}

/// Whether the lock is free or held. Without them it is as on a primary.
#[test]
fn a_writable_replica_has_neither_waiters_nor_sessions() {
    let mut play = Play::start().with_replica();
    play.run(
        "there at r
        there > CONFIG SET replica-read-only no
        there > LOCK.ACQUIRE held h LONG -> token",
    );
    for options in [
        "BLOCK 100",
        "BLOCK 0",
        "SESSION",
        "SESSION BLOCK 100",
        "QUEUE 60000 ch",
    ] {
        play.run(&format!(
            "each free held: there > LOCK.ACQUIRE # another {options} -> !READONLY"
        ));
    }
    play.run(
        "there > EXISTS free -> 0
        there > LOCK.ACQUIRE k a LONG -> A
        there > LOCK.ACQUIRE k a LONG -> A
        there > LOCK.ACQUIRE k b -> null
        there > LOCK.RENEW k a LONG -> 1
        there > LOCK.RELEASE k a -> 0
        there > LOCK.RELEASE k a -> 1
        there > LOCK.ACQUIRE k b LONG -> B
        each blocked_clients lock_sessions lock_places: r.# = 0",
    );
}

/// What hides a lock that is over from the commands of the same transaction, without
/// deleting it, and what ends that.
const HIDING: [[&str; 2]; 2] = [
    ["CLIENT PAUSE 60000 WRITE", "CLIENT UNPAUSE"],
    ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"],
];

/// The lock `k` ends, unseen, and a transaction runs this command where it is hidden: in one
/// write, so that the server does nothing else in between.
#[track_caller]
fn check_hidden(command: &str, waits: bool) {
    for [hides, shows] in HIDING {
        let mut play = Play::held();
        if waits {
            play.run("w > LOCK.ACQUIRE k w BLOCKED -> ..");
        }
        play.run(&format!(
            "h sends LOCK.RENEW k h LEASE 10 | DEBUG SLEEP 0.02 | MULTI | {hides} | {command} | {shows} | EXEC
            h < 1
            h < OK
            h < OK
            h < QUEUED
            h < QUEUED
            h < QUEUED"
        ));
        let replies = format!("{:?}", play.client("h").reply());
        let is_refused = replies.contains("READONLY");
        assert!(is_refused, "{command} after {hides}: {replies}");
        if waits && hides.starts_with("CLIENT") {
            play.run("w < W");
        }
        play.run("h > LOCK.RENEW k h LONG FENCE $H -> 0");
    }
}

#[test]
fn a_transaction_that_has_paused_writes_takes_no_lock_that_is_over() {
    check_hidden("LOCK.ACQUIRE k c LONG", false);
    check_hidden("LOCK.ACQUIRE k c LONG", true);
}

#[test]
fn a_transaction_that_has_paused_writes_hands_no_lock_off_that_is_over() {
    for command in [
        "RELEASE k h",
        "RENEW k h LONG",
        "BREAK k",
        "GUARD k $H SET x late",
    ] {
        check_hidden(&format!("LOCK.{command}"), true);
    }
}

#[test]
fn a_transaction_that_has_paused_writes_may_release_what_is_held() {
    let [hides, shows] = HIDING[0];
    let mut play = Play::held();
    play.run(&format!(
        "h >> {hides} | LOCK.RELEASE k h | {shows} -> OK | 1 | OK"
    ));
    play.run("sound");
}
