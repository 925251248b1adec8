//! Grants that could not be told: what they added is taken back, and nothing else.

use redis::Value;
use redis_lock_testing::scene::{await_gone, await_waiting, settle, transaction, waiting};
use redis_lock_testing::{Client, LONG, TestServer, int, nil, status, text, token};

/// A lock that somebody holds, requests of one owner in its queue, and another
/// owner behind them.
struct Scene {
    server: TestServer,
    observer: Client,
    requests: Vec<Client>,
    ids: Vec<i64>,
    next: Client,
}

impl Scene {
    /// The options of each request of the owner.
    fn set(options: &[&str]) -> Self {
        let server = TestServer::start();
        let mut scene = Self {
            observer: server.client(),
            requests: Vec::new(),
            ids: Vec::new(),
            next: server.client(),
            server,
        };
        let observer = &mut scene.observer;
        observer.int(&format!("LOCK.ACQUIRE k before {LONG}"));
        for (count, options) in (1..).zip(options) {
            let mut client = scene.server.client();
            scene.ids.push(client.int("CLIENT ID"));
            let command = format!("LOCK.ACQUIRE k owner {LONG} BLOCK 0 {options}");
            client.send(command.trim());
            scene.requests.push(client);
            await_waiting(observer, "k", count);
        }
        let command = format!("LOCK.ACQUIRE k next {LONG} BLOCK 0");
        scene.next.send(&command);
        let count = i64::try_from(options.len()).unwrap();
        await_waiting(observer, "k", count + 1);
        scene
    }

    /// Releases the lock, does the rest, and returns the replies to it, all in
    /// one turn of the server.
    #[track_caller]
    fn release_and(&mut self, rest: &[&str]) -> Vec<Value> {
        let turn = [&["LOCK.RELEASE k before"], rest].concat();
        let mut replies = transaction(&mut self.observer, &turn);
        assert_eq!(replies.remove(0), int(1));
        settle(&self.server);
        replies
    }

    fn kill(&self, nth: usize) -> String {
        format!("CLIENT KILL ID {}", self.ids[nth])
    }

    /// The owner has this many holds, and the other one still waits.
    #[track_caller]
    fn assert_held(&mut self, holds: i64, what: &str) {
        let holds = text(holds.to_string());
        assert_eq!(self.observer.call("HGET k owner"), holds, "{what}");
        assert_eq!(waiting(&mut self.observer, "k"), 1, "{what}");
    }

    /// The other one has the lock.
    #[track_caller]
    fn assert_passed_on(&mut self, what: &str) {
        assert_eq!(self.observer.call("HGET k owner"), nil(), "{what}");
        assert_eq!(self.observer.call("HGET k next"), text("1"), "{what}");
        token(&self.next.reply());
    }
}

#[test]
fn one_who_resends_and_one_who_closes_its_socket_then() {
    let server = TestServer::start();
    let (mut observer, mut sleeper) = (server.client(), server.client());
    let (mut holder, mut next) = (server.client(), server.client());
    for round in 0..100 {
        holder.int(&format!("LOCK.ACQUIRE k before {LONG}"));
        let (mut stays, mut leaves) = (server.client(), server.client());
        let id = leaves.int("CLIENT ID");
        let asks = format!("LOCK.ACQUIRE k owner {LONG} HOLD 1 BLOCK 0");
        leaves.send_and_block(&mut observer, &asks);
        stays.send(&asks);
        assert!(leaves.reply_error().starts_with("SUPERSEDED "));
        next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
        await_waiting(&mut observer, "k", 2);
        // While the server sleeps both arrive, so that one turn reads both.
        if round % 2 == 0 {
            sleeper.send("DEBUG SLEEP 0.005");
        }
        holder.send("LOCK.RELEASE k before");
        drop(leaves);
        assert_eq!(holder.reply(), int(1));
        if round % 2 == 0 {
            assert_eq!(sleeper.reply(), status("OK"));
        }
        let told = token(&stays.reply());
        await_gone(&mut observer, id);
        settle(&server);
        let stored = observer.call("HGET k @fence");
        assert_eq!(stored, text(told.to_string()), "round {round}");
        assert_eq!(stays.call("LOCK.RELEASE k owner"), int(1));
        assert!(token(&next.reply()) > told);
        assert_eq!(next.call("LOCK.RELEASE k next"), int(1));
    }
}

/// Another connection of the owner hears of the hold before its own is gone.
#[test]
fn a_hold_that_another_connection_was_told_of_stands() {
    for command in [
        "LOCK.ACQUIRE k owner LEASE 600000 HOLD 1",
        "LOCK.RENEW k owner LEASE 600000",
    ] {
        let mut scene = Scene::set(&["HOLD 1"]);
        let kill = scene.kill(0);
        let replies = scene.release_and(&[command, &kill]);
        assert!(matches!(replies[0], Value::Int(1..)), "{replies:?}");
        scene.assert_held(1, command);
    }
}

/// The waiter is gone before another connection of its owner asks. Whichever
/// comes first, what the owner is told is so.
#[test]
fn who_asks_after_the_waiter_has_gone_keeps_what_it_is_told_of() {
    for command in [
        "LOCK.ACQUIRE k owner LEASE 600000 HOLD 1",
        "LOCK.ACQUIRE k owner LEASE 600000",
        "LOCK.ACQUIRE k owner LEASE 600000 HOLD 1 SESSION",
        "LOCK.RENEW k owner LEASE 600000",
    ] {
        for options in ["HOLD 1", ""] {
            let mut scene = Scene::set(&[options]);
            let kill = scene.kill(0);
            let replies = scene.release_and(&[&kill, command]);
            match replies[1] {
                Value::Nil | Value::Int(0) => scene.assert_passed_on(command),
                _ => {
                    let held = scene.observer.call("HEXISTS k owner");
                    assert_eq!(held, int(1), "{command}: told, then taken");
                    assert_eq!(waiting(&mut scene.observer, "k"), 1, "{command}");
                }
            }
        }
    }
}

/// While a script takes long the server answers others. One that hears of its
/// grant then and closes its connection holds the lock until its lease ends.
#[test]
fn one_told_in_a_long_script_keeps_the_lock_though_it_goes() {
    let server = TestServer::start_with(&["--busy-reply-threshold", "20"]);
    let (mut observer, mut runner) = (server.client(), server.client());
    let (mut leaves, mut next) = (server.client(), server.client());
    observer.int(&format!("LOCK.ACQUIRE k before {LONG}"));
    let id = leaves.int("CLIENT ID");
    leaves.send(&format!("LOCK.ACQUIRE k leaves {LONG} BLOCK 0"));
    await_waiting(&mut observer, "k", 1);
    next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
    await_waiting(&mut observer, "k", 2);
    let script = b"local released = redis.call('LOCK.RELEASE', KEYS[1], 'before')
        local function now()
            local time = redis.call('TIME')
            return time[1] + time[2] / 1000000
        end
        local start = now()
        while now() - start < 1 do end
        return released";
    runner.send_words(&[b"EVAL", script, b"1", b"k"]);
    let told = token(&leaves.reply());
    drop(leaves);
    assert_eq!(runner.reply(), int(1));
    await_gone(&mut observer, id);
    settle(&server);
    assert_eq!(observer.call("HGET k leaves"), text("1"));
    assert_eq!(observer.call("HGET k @fence"), text(told.to_string()));
    assert_eq!(waiting(&mut observer, "k"), 1);
}

/// Redis 7.0 sends both replies to a client that is unblocked in the turn of its
/// grant, so there the session is that client's.
#[test]
fn who_is_unblocked_with_an_error_has_no_session() {
    let mut scene = Scene::set(&["SESSION"]);
    let hears_both = scene.server.version() < (7, 2);
    let unblock = format!("CLIENT UNBLOCK {} ERROR", scene.ids[0]);
    scene.release_and(&[&unblock]);
    if hears_both {
        token(&scene.requests[0].reply());
    }
    assert!(scene.requests[0].reply_error().starts_with("UNBLOCKED "));
    match hears_both {
        true => scene.assert_held(1, "it has it"),
        // It lives on, and keeps nothing up.
        false => scene.assert_passed_on("it was told an error"),
    }
}

#[test]
fn who_reads_a_grant_and_closes_at_once_was_told() {
    let server = TestServer::start();
    let mut observer = server.client();
    for nth in 0..30 {
        let (mut holder, mut waiter) = (server.client(), server.client());
        holder.int(&format!("LOCK.ACQUIRE k{nth} holder {LONG}"));
        waiter.send(&format!("LOCK.ACQUIRE k{nth} waiter {LONG} BLOCK 0"));
        await_waiting(&mut observer, &format!("k{nth}"), 1);
        // What is released at the end of a pause is answered in a busy turn.
        observer.call("CLIENT PAUSE 60 WRITE");
        holder.send(&format!("LOCK.RELEASE k{nth} holder"));
        let mut others: Vec<_> = (0..20).map(|_| server.client()).collect();
        for other in &mut others {
            (0..20).for_each(|key| other.send(&format!("SET x{key} {}", "y".repeat(2000))));
        }
        assert!(matches!(waiter.reply(), Value::Int(_)));
        drop(waiter);
        settle(&server);
        let stored = observer.call(&format!("HGET k{nth} waiter"));
        assert_eq!(stored, text("1"), "it was taken back");
    }
}
