//! `lock.min-replicas`: nothing is told before this many replicas have acknowledged it.

use redis::Value;
use redis_lock_testing::scene::{
    await_replicas, await_role, await_waiting, configure, transaction, waiting,
};
use redis_lock_testing::{Client, LONG, TestServer, eventually, int, nil, status, text, token};

/// A server, one replica that has to acknowledge, and one who looks on.
struct Scene {
    server: TestServer,
    replica: TestServer,
    observer: Client,
}

impl Scene {
    /// Replies are withheld as long as it takes.
    fn new() -> Self {
        Self::with_timeout(600_000)
    }

    fn with_timeout(ms: i64) -> Self {
        let server = TestServer::start();
        let replica = server.replica(true);
        let mut observer = server.client();
        await_replicas(&mut observer, 1);
        configure(&mut observer, "min-replicas", 1);
        configure(&mut observer, "replicas-timeout", ms);
        Self {
            server,
            replica,
            observer,
        }
    }

    /// The client sends this, and its reply is withheld.
    #[track_caller]
    fn withheld(&mut self, command: &str) -> Client {
        let before = self.observer.info("lock_replies_withheld");
        let mut client = self.server.client();
        client.send(command);
        self.await_withheld(before + 1);
        client
    }

    #[track_caller]
    fn await_withheld(&mut self, count: i64) {
        eventually(&format!("{count} replies are withheld"), || {
            self.observer.info("lock_replies_withheld") == count
        });
    }

    #[track_caller]
    fn holds(&mut self, owner: &str) -> Value {
        self.observer.call(&format!("HGET k {owner}"))
    }

    #[track_caller]
    fn await_holds(&mut self, owner: &str, holds: &Value) {
        eventually(&format!("{owner} has {holds:?} holds"), || {
            self.holds(owner) == *holds
        });
    }

    /// Nothing is left, and nobody crashed.
    #[track_caller]
    fn assert_over(mut self) {
        self.await_withheld(0);
        self.server.assert_sound();
        self.replica.assert_sound();
        self.server.assert_same_data(&self.replica);
    }
}

/// Nothing is on its way to the replica, or back from it.
#[track_caller]
fn await_all_acknowledged(observer: &mut Client) {
    eventually("all is acknowledged", || {
        let info = observer.bulk("INFO replication");
        let written = info
            .lines()
            .find_map(|line| line.strip_prefix("master_repl_offset:"));
        written.is_some_and(|written| info.contains(&format!(",offset={written},")))
    });
}

#[track_caller]
fn assert_unsafe(client: &mut Client) {
    let error = client.reply_error();
    assert!(error.starts_with("NOREPLICAS "), "{error}");
    // It can wait.
    assert!(!error.contains("MULTI"), "{error}");
}

/// This much time passes on the server.
fn let_pass(server: &TestServer, seconds: &str) {
    assert_eq!(
        server.client().call(&format!("BLPOP none {seconds}")),
        nil()
    );
}

#[test]
fn in_any_database_a_grant_is_told_when_it_is_acknowledged() {
    let scene = Scene::new();
    let mut client = scene.server.client();
    assert_eq!(client.call("SELECT 3"), status("OK"));
    let holds = token(&client.call(&format!("LOCK.ACQUIRE k a {LONG}")));
    assert_eq!(
        client.call(&format!("LOCK.RENEW k a FENCE {holds}")),
        int(1)
    );
    assert_eq!(client.call("LOCK.RELEASE k a"), int(1));
    scene.assert_over();
}

#[test]
fn a_server_that_is_demoted_misses_no_replicas_any_more() {
    let (server, primary) = (TestServer::start(), TestServer::start());
    let mut observer = server.client();
    configure(&mut observer, "min-replicas", 2);
    let misses = |observer: &mut Client| observer.info("lock_replicas_missing");
    eventually("it misses two", || misses(&mut observer) == 2);
    let port = primary.addr().port();
    observer.call(&format!("REPLICAOF 127.0.0.1 {port}"));
    eventually("it misses none", || misses(&mut observer) == 0);
}

#[test]
fn a_grant_is_told_after_a_replica_has_acknowledged_it() {
    let mut scene = Scene::new();
    let first = token(
        &scene
            .server
            .client()
            .call(&format!("LOCK.ACQUIRE k a {LONG}")),
    );
    assert_eq!(scene.observer.call("LOCK.RELEASE k a"), int(1));
    scene.replica.stop();
    let mut client = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
    assert_eq!(scene.holds("a"), text("1"), "it is written at once");
    assert_eq!(scene.observer.call("LOCK.ACQUIRE k b"), nil());
    let_pass(&scene.server, "0.3");
    scene.await_withheld(1);
    scene.replica.go_on();
    assert!(token(&client.reply()) > first);
    scene.assert_over();
}

#[test]
fn what_is_not_acknowledged_in_time_is_given_back_and_the_next_is_asked() {
    let mut scene = Scene::with_timeout(300);
    scene.replica.stop();
    let mut first = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG} HOLD 1"));
    let mut next = scene.server.client();
    next.send(&format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    await_waiting(&mut scene.observer, "k", 1);
    configure(&mut scene.observer, "replicas-timeout", 600_000);
    assert_unsafe(&mut first);
    scene.await_holds("b", &text("1"));
    assert_eq!(scene.holds("a"), nil());
    first.send(&format!("LOCK.ACQUIRE k a {LONG} HOLD 1 BLOCK 0"));
    await_waiting(&mut scene.observer, "k", 1);
    scene.replica.go_on();
    token(&next.reply());
    assert_eq!(next.call("LOCK.RELEASE k b"), int(1));
    token(&first.reply());
    scene.assert_over();
}

#[test]
fn a_request_that_confirmed_a_hold_takes_none_back() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    token(&owner.call(&format!("LOCK.ACQUIRE k a {LONG} HOLD 1")));
    configure(&mut scene.observer, "replicas-timeout", 100);
    scene.replica.stop();
    owner.send("LOCK.ACQUIRE k a LEASE 700000 HOLD 1");
    assert_unsafe(&mut owner);
    owner.send("LOCK.ACQUIRE k a LEASE 700000 HOLD 2");
    assert_unsafe(&mut owner);
    scene.await_holds("a", &text("1"));
    assert!(scene.observer.int("PTTL k") > 600_000, "a lease stays");
    scene.replica.go_on();
    scene.assert_over();
}

#[test]
fn nothing_that_was_acknowledged_before_confirms_a_hold() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    let first = token(&owner.call(&format!("LOCK.ACQUIRE k a {LONG} HOLD 1")));
    for command in [
        "LOCK.ACQUIRE k a LEASE 60000 HOLD 1",
        "LOCK.ACQUIRE k a LEASE 50000 HOLD 1",
    ] {
        await_all_acknowledged(&mut scene.observer);
        scene.replica.stop();
        let mut confirmed = scene.withheld(command);
        let_pass(&scene.server, "0.2");
        scene.await_withheld(1);
        scene.replica.go_on();
        assert_eq!(token(&confirmed.reply()), first);
    }
    await_all_acknowledged(&mut scene.observer);
    configure(&mut scene.observer, "replicas-timeout", 100);
    scene.replica.stop();
    owner.send("LOCK.ACQUIRE k a LEASE 60000 HOLD 1");
    assert_unsafe(&mut owner);
    assert_eq!(scene.holds("a"), text("1"));
    scene.replica.go_on();
    scene.assert_over();
}

#[test]
fn a_grant_and_a_renewal_are_withheld_together() {
    let mut scene = Scene::new();
    scene.replica.stop();
    let mut granted = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
    let mut renewal = scene.withheld("LOCK.RENEW k a LEASE 700000");
    scene.replica.go_on();
    token(&granted.reply());
    assert_eq!(renewal.reply(), int(1));
    assert_eq!(scene.holds("a"), text("1"));
    scene.assert_over();
}

#[test]
fn a_renewal_is_withheld_and_a_release_is_not() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    token(&owner.call("LOCK.ACQUIRE k a LEASE 60000"));
    scene.replica.stop();
    let mut renewal = scene.withheld("LOCK.RENEW k a LEASE 600000");
    assert!(scene.observer.int("PTTL k") > 60_000);
    assert_eq!(owner.call("LOCK.RENEW k b"), int(0));
    scene.replica.go_on();
    assert_eq!(renewal.reply(), int(1));
    scene.replica.stop();
    let mut renewal = scene.withheld("LOCK.RENEW k a LEASE 700000");
    assert_eq!(owner.call("LOCK.RELEASE k a"), int(1));
    scene.replica.go_on();
    assert_eq!(renewal.reply(), int(0), "it is over by now");
    scene.assert_over();
}

#[test]
fn a_renewal_of_a_hold_that_redisson_took_is_withheld_too() {
    let mut scene = Scene::new();
    scene.observer.call("HSET k redisson 1");
    scene.observer.call("PEXPIRE k 60000");
    scene.replica.stop();
    let mut client = scene.withheld(&format!("LOCK.RENEW k redisson {LONG}"));
    scene.replica.go_on();
    assert_eq!(client.reply(), int(1));
    let fence = scene.observer.bulk("HGET k @fence");
    let renew = format!("LOCK.RENEW k redisson FENCE {fence}");
    assert_eq!(client.call(&renew), int(1));
    scene.assert_over();
}

#[test]
fn a_client_that_goes_gives_back_what_was_withheld() {
    let mut scene = Scene::new();
    scene.replica.stop();
    drop(scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}")));
    scene.await_withheld(0);
    scene.await_holds("a", &nil());
    scene.replica.go_on();
    scene.assert_over();
}

#[test]
fn an_unblocked_client_gives_back_what_was_withheld() {
    for (how, code) in [
        ("", "NOREPLICAS "),
        (" TIMEOUT", "NOREPLICAS "),
        (" ERROR", "UNBLOCKED "),
    ] {
        for command in ["LOCK.ACQUIRE k a LEASE 600000", "LOCK.ACQUIRE k a BLOCK 0"] {
            let mut scene = Scene::new();
            scene.replica.stop();
            let mut client = scene.server.client();
            let id = client.int("CLIENT ID");
            client.send(command);
            scene.await_withheld(1);
            let unblocked = scene.observer.call(&format!("CLIENT UNBLOCK {id}{how}"));
            assert_eq!(unblocked, int(1));
            let error = client.reply_error();
            assert!(error.starts_with(code), "{error}");
            scene.await_holds("a", &nil());
            assert_eq!(client.call("PING"), status("PONG"));
            scene.replica.go_on();
            scene.assert_over();
        }
    }
}

#[test]
fn what_is_handed_to_a_waiter_is_withheld_longer_than_it_would_wait() {
    let mut scene = Scene::new();
    let mut holder = scene.server.client();
    token(&holder.call(&format!("LOCK.ACQUIRE k a {LONG}")));
    let mut waiter = scene.server.client();
    waiter.send(&format!("LOCK.ACQUIRE k b {LONG} BLOCK 500"));
    await_waiting(&mut scene.observer, "k", 1);
    scene.replica.stop();
    assert_eq!(holder.call("LOCK.RELEASE k a"), int(1));
    scene.await_withheld(1);
    let_pass(&scene.server, "0.6");
    scene.await_withheld(1);
    scene.replica.go_on();
    token(&waiter.reply());
    scene.assert_over();
}

#[test]
fn a_wait_for_the_lock_ends_in_time() {
    let scene = Scene::new();
    let mut holder = scene.server.client();
    token(&holder.call(&format!("LOCK.ACQUIRE k a {LONG}")));
    assert_eq!(
        scene.server.client().call("LOCK.ACQUIRE k b BLOCK 50"),
        nil()
    );
    scene.assert_over();
}

#[test]
fn writes_that_are_paused_bring_nobody_down_and_all_is_told_after() {
    let mut scene = Scene::new();
    let (mut sleeper, mut pauser) = (scene.server.client(), scene.server.client());
    let mut client = scene.server.client();
    // One turn reads both, so that the pause comes before the replica is asked.
    sleeper.send("DEBUG SLEEP 0.1");
    client.send(&format!("LOCK.ACQUIRE k a {LONG}"));
    pauser.send("CLIENT PAUSE 1500 WRITE");
    assert_eq!(sleeper.reply(), status("OK"));
    assert_eq!(pauser.reply(), status("OK"));
    token(&client.reply());
    scene.replica.stop();
    scene.observer.call("CLIENT UNPAUSE");
    let mut client = scene.withheld(&format!("LOCK.ACQUIRE l a {LONG}"));
    scene.observer.call("CLIENT PAUSE 500 WRITE");
    scene.replica.go_on();
    token(&client.reply());
    scene.observer.call("CLIENT UNPAUSE");
    scene.assert_over();
}

#[test]
fn a_planned_fail_over_brings_nobody_down_while_a_grant_is_withheld() {
    let mut scene = Scene::new();
    scene.replica.stop();
    let mut client = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
    let mut waiter = scene.server.client();
    waiter.send(&format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    await_waiting(&mut scene.observer, "k", 1);
    assert_eq!(scene.observer.call("FAILOVER"), status("OK"));
    scene.replica.go_on();
    match client.reply() {
        Value::Int(_) => {}
        other => assert!(format!("{other:?}").contains("UNBLOCKED"), "{other:?}"),
    }
    assert!(waiter.reply_error().starts_with("UNBLOCKED "));
    let mut new = scene.replica.client();
    await_role(&mut new, "master");
    assert_eq!(
        new.call("HGET k a"),
        text("1"),
        "a hold that may have been told"
    );
    scene.server.assert_sound();
    scene.replica.assert_sound();
}

#[test]
fn a_primary_that_steps_down_tells_nobody_of_a_hold() {
    let mut scene = Scene::new();
    scene.replica.stop();
    let mut client = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
    let other = TestServer::start();
    let port = other.addr().port();
    scene.observer.call(&format!("REPLICAOF 127.0.0.1 {port}"));
    assert!(client.reply_error().starts_with("UNBLOCKED "));
    scene.await_withheld(0);
    scene.replica.go_on();
    scene.server.assert_sound();
}

#[test]
fn where_the_client_cannot_wait_nothing_is_granted_or_renewed() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    token(&owner.call(&format!("LOCK.ACQUIRE k a {LONG}")));
    let before = scene.observer.hash("k");
    let replies = transaction(
        &mut scene.observer,
        &[
            "LOCK.ACQUIRE k a",
            "LOCK.RENEW k a",
            "LOCK.ACQUIRE l b BLOCK 0",
            "LOCK.ACQUIRE k b BLOCK 0",
            "LOCK.RENEW k b",
        ],
    );
    let errors = replies.iter().take(3).map(|reply| format!("{reply:?}"));
    for error in errors {
        assert!(error.contains("NOREPLICAS"), "{error}");
        assert!(error.contains("outside of MULTI and scripts"), "{error}");
    }
    assert_eq!(replies[3..], [nil(), int(0)]);
    for command in ["'LOCK.ACQUIRE','l','b'", "'LOCK.RENEW','k','a'"] {
        let script = format!("return redis.call({command})");
        let reply = scene.observer.words(&[b"EVAL", script.as_bytes(), b"0"]);
        let error = format!("{reply:?}");
        assert!(error.contains("NOREPLICAS"), "{error}");
    }
    assert_eq!(scene.observer.hash("k"), before);
    assert_eq!(scene.observer.call("EXISTS l"), int(0));
    assert_eq!(owner.call("LOCK.RELEASE k a"), int(1));
    scene.assert_over();
}

#[test]
fn a_session_is_kept_up_while_its_leases_are_acknowledged() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    token(&owner.call("LOCK.ACQUIRE k a LEASE 3000 SESSION"));
    let_pass(&scene.server, "4");
    assert_eq!(owner.call("PING"), status("PONG"));
    assert_eq!(scene.holds("a"), text("1"));
    scene.assert_over();
}

#[test]
fn a_session_that_ends_while_its_owner_asks_elsewhere_is_over_if_that_is_not_told() {
    for is_told in [true, false] {
        let mut scene = Scene::new();
        let mut session = scene.server.client();
        let held = token(&session.call("LOCK.ACQUIRE k a LEASE 600000 SESSION"));
        scene.replica.stop();
        let mut elsewhere = scene.withheld("LOCK.ACQUIRE k a HOLD 1 LEASE 600000");
        drop(session);
        eventually("the session is over", || {
            scene.observer.info("lock_sessions") == 0
        });
        assert_eq!(scene.holds("a"), text("1"));
        if is_told {
            scene.replica.go_on();
            assert_eq!(token(&elsewhere.reply()), held);
            assert_eq!(elsewhere.call("LOCK.RELEASE k a"), int(1));
        } else {
            drop(elsewhere);
            scene.await_holds("a", &nil());
            scene.replica.go_on();
        }
        scene.assert_over();
    }
}

#[test]
fn a_grant_behind_the_leases_of_a_crowd_of_sessions_is_told_when_it_is_acknowledged() {
    const CROWD: usize = 4000;
    let mut scene = Scene::with_timeout(2000);
    configure(&mut scene.observer, "min-replicas", 0);
    let mut owner = scene.server.client();
    let acquires: String = (0..CROWD)
        .map(|nth| format!("LOCK.ACQUIRE k{nth} a LEASE 12000 SESSION\r\n"))
        .collect();
    owner.send_bytes(acquires.as_bytes());
    for _ in 0..CROWD {
        token(&owner.reply());
    }
    configure(&mut scene.observer, "min-replicas", 1);
    await_all_acknowledged(&mut scene.observer);
    let last = format!("k{}", CROWD - 1);
    let end = |observer: &mut Client, key| observer.int(&format!("PEXPIRETIME {key}"));
    let before = ["k0", last.as_str()].map(|key| (key, end(&mut scene.observer, key)));
    scene.replica.stop();
    eventually("all are renewed", || {
        before
            .iter()
            .all(|(key, ms)| end(&mut scene.observer, key) > *ms)
    });
    // From now on the server has nothing else to do.
    owner.send(&format!("LOCK.ACQUIRE l a {LONG}"));
    scene.replica.go_on();
    token(&owner.reply());
}

#[test]
fn a_session_whose_leases_are_not_acknowledged_is_closed() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    token(&owner.call("LOCK.ACQUIRE k a LEASE 3000 SESSION"));
    scene.replica.stop();
    assert!(owner.try_reply().is_none(), "its connection is closed");
    scene.await_holds("a", &nil());
    scene.replica.go_on();
    scene.assert_over();
}

#[test]
fn a_lease_that_nobody_acknowledges_costs_the_turns_after_it_nothing() {
    let mut scene = Scene::new();
    let mut owner = scene.server.client();
    token(&owner.call("LOCK.ACQUIRE k a LEASE 3000 SESSION"));
    scene.replica.stop();
    scene.observer.call("CLIENT KILL TYPE replica");
    assert!(owner.try_reply().is_none(), "its connection is closed");
    let calls_of_info = |observer: &mut Client| {
        let stats = observer.bulk("INFO commandstats");
        let line = stats.lines().find(|line| line.starts_with("cmdstat_info:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls.map_or(0, |calls| calls.parse::<i64>().unwrap())
    };
    let before = calls_of_info(&mut scene.observer);
    for _ in 0..50 {
        scene.observer.call("PING");
    }
    let asked = calls_of_info(&mut scene.observer) - before;
    assert!(asked < 25, "INFO was called {asked} times");
    scene.replica.go_on();
}

#[test]
fn a_hold_that_is_over_by_then_is_not_told() {
    for end in ["DEL k", "LOCK.BREAK k", "SET k v", "FLUSHALL"] {
        let mut scene = Scene::new();
        scene.replica.stop();
        let mut client = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
        scene.observer.call(end);
        scene.replica.go_on();
        assert_eq!(client.reply(), nil(), "{end}");
        scene.assert_over();
    }
}

#[test]
fn a_hold_whose_lease_is_over_by_then_is_not_told() {
    let mut scene = Scene::new();
    // So the key expires when the module looks at it, at the end of a turn.
    scene.observer.call("DEBUG SET-ACTIVE-EXPIRE 0");
    scene.replica.stop();
    let mut client = scene.withheld("LOCK.ACQUIRE k a LEASE 300");
    let_pass(&scene.server, "0.4");
    scene.replica.go_on();
    assert_eq!(client.reply(), nil());
    assert_eq!(scene.observer.call("EXISTS k"), int(0));
    scene.assert_over();
}

#[test]
fn all_is_told_when_no_replica_is_needed_any_more() {
    let mut scene = Scene::new();
    scene.replica.stop();
    let mut client = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
    configure(&mut scene.observer, "min-replicas", 0);
    token(&client.reply());
    token(&scene.observer.call("LOCK.ACQUIRE l a"));
    scene.replica.go_on();
    scene.assert_over();
}

#[test]
fn as_many_replicas_as_asked_for_have_to_acknowledge_it() {
    let mut scene = Scene::new();
    let second = scene.server.replica(false);
    await_replicas(&mut scene.observer, 2);
    configure(&mut scene.observer, "min-replicas", 2);
    token(&scene.server.client().call("LOCK.ACQUIRE l a"));
    second.stop();
    let mut client = scene.withheld(&format!("LOCK.ACQUIRE k a {LONG}"));
    let_pass(&scene.server, "0.2");
    scene.await_withheld(1);
    second.go_on();
    token(&client.reply());
    scene.assert_over();
}

#[test]
fn with_too_few_replicas_nobody_who_waits_is_granted() {
    let server = TestServer::start();
    let (mut observer, mut holder) = (server.client(), server.client());
    token(&holder.call(&format!("LOCK.ACQUIRE k a {LONG}")));
    configure(&mut observer, "min-replicas", 1);
    // A replica that is online may acknowledge nothing for another second.
    configure(&mut observer, "replicas-timeout", 600_000);
    for command in [
        "LOCK.ACQUIRE l a",
        "LOCK.RENEW k a",
        "LOCK.ACQUIRE k a",
        "LOCK.ACQUIRE k a HOLD 1 BLOCK 0",
    ] {
        let error = holder.error(command);
        assert!(error.starts_with("NOREPLICAS "), "{command}: {error}");
    }
    eventually("the server says why", || {
        observer.info("lock_replicas_missing") == 1
    });
    assert_eq!(observer.call("LOCK.ACQUIRE k b"), nil());
    let mut waiter = server.client();
    waiter.send(&format!("LOCK.ACQUIRE k b {LONG} BLOCK 0"));
    await_waiting(&mut observer, "k", 1);
    assert_eq!(holder.call("LOCK.RELEASE k a"), int(1));
    let mut newcomer = server.client();
    newcomer.send(&format!("LOCK.ACQUIRE l c {LONG} BLOCK 0"));
    await_waiting(&mut observer, "l", 1);
    assert_eq!(waiting(&mut observer, "k"), 1);
    assert_eq!(observer.call("EXISTS k l"), int(0));
    let _replica = server.replica(false);
    token(&waiter.reply());
    token(&newcomer.reply());
    server.assert_sound();
}

/// Valkey 8.1.1 and later block no client that has subscribed.
#[test]
fn who_subscribes_is_told_what_is_safe_or_that_it_is_not_known() {
    let mut scene = Scene::new();
    let mut ears = scene.server.subscriber("ch");
    match ears.call("LOCK.ACQUIRE k a") {
        Value::Int(_) => assert_eq!(scene.holds("a"), text("1")),
        Value::ServerError(error) if error.code() == "NOREPLICAS" => {
            scene.await_holds("a", &nil());
        }
        other => panic!("{other:?}"),
    }
    scene.assert_over();
}

#[test]
fn the_append_only_file_holds_no_question_to_replicas() {
    let server = TestServer::start_with(&["--appendonly", "yes"]);
    let replica = server.replica(true);
    let mut client = server.client();
    await_replicas(&mut client, 1);
    configure(&mut client, "min-replicas", 1);
    for _ in 0..2 {
        token(&client.call("LOCK.ACQUIRE k a LEASE 60000 HOLD 1"));
        token(&client.call("LOCK.ACQUIRE k a LEASE 50000 HOLD 1"));
    }
    token(&client.call("LOCK.ACQUIRE l a"));
    let mut written = String::new();
    eventually("the file is written", || {
        written.clear();
        for file in std::fs::read_dir(server.dir().join("appendonlydir")).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            written.push_str(&String::from_utf8_lossy(&bytes));
        }
        written.matches("@fence").count() == 2
    });
    assert!(!written.contains("GETACK") && !written.contains("PING"));
    server.assert_same_data(&replica);
}

/// A client is told of one when replicas have it, and goes on to the next in that turn.
#[test]
fn commands_that_come_in_one_write_are_told_one_after_another_and_end_with_the_session() {
    let mut scene = Scene::new();
    let mut client = scene.server.client();
    let locks = (0..10).map(|nth| format!("LOCK.ACQUIRE k{nth} o{nth} {LONG} SESSION\r\n"));
    client.send_bytes(locks.collect::<String>().as_bytes());
    for nth in 0..10 {
        assert_eq!(token(&client.reply()).signum(), 1, "lock {nth}");
    }
    let renewals = (0..10).map(|nth| format!("LOCK.RENEW k{nth} o{nth} {LONG}\r\n"));
    client.send_bytes(renewals.collect::<String>().as_bytes());
    for nth in 0..10 {
        assert_eq!(client.reply(), int(1), "renewal {nth}");
    }
    client.send_bytes(b"LOCK.ACQUIRE k0 o0 SESSION\r\n".repeat(3).as_slice());
    for _ in 0..3 {
        assert_eq!(token(&client.reply()).signum(), 1);
    }
    assert_eq!(scene.observer.call("HGET k0 o0"), text("4"));
    drop(client);
    eventually("all have ended", || scene.observer.int("DBSIZE") == 0);
}
