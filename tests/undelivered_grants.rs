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

    /// Releases the lock and kills some of those who wait, by their bits. The
    /// others hear of a grant that left the owner this many holds.
    #[track_caller]
    fn check(mut self, killed: usize, holds: i64, what: &str) {
        let is_killed = |nth: &usize| killed & (1 << nth) != 0;
        let (gone, alive): (Vec<usize>, Vec<usize>) = (0..self.ids.len()).partition(is_killed);
        let kills: Vec<String> = gone.iter().map(|&nth| self.kill(nth)).collect();
        let kills: Vec<&str> = kills.iter().map(String::as_str).collect();
        self.release_and(&kills);
        if holds == 0 {
            self.assert_passed_on(what);
            return;
        }
        self.assert_held(holds, what);
        let stored = self.observer.call("HGET k @fence");
        for nth in alive {
            let told = token(&self.requests[nth].reply());
            assert_eq!(stored, text(told.to_string()), "{what}");
        }
    }
}

/// A resent request is served by the same grant. The hold stands as long as
/// one of those who were to hear of it lives.
#[test]
fn a_hold_ends_only_when_all_who_were_to_hear_of_it_have_gone() {
    for count in [2, 3] {
        let all = (1 << count) - 1;
        for killed in 1..=all {
            let what = format!("{killed:b} of {all:b} killed");
            let scene = Scene::set(&vec!["HOLD 1"; count]);
            scene.check(killed, i64::from(killed != all), &what);
        }
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
        for (count, client) in [(1, &mut stays), (2, &mut leaves)] {
            client.send(&format!("LOCK.ACQUIRE k owner {LONG} HOLD 1 BLOCK 0"));
            await_waiting(&mut observer, "k", count);
        }
        next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
        await_waiting(&mut observer, "k", 3);
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

#[test]
fn each_request_takes_back_just_what_it_added() {
    for (requests, held) in [
        // How many holds are left if the first, the second or both have gone.
        (["", ""], [1, 1, 0]),
        (["", "HOLD 1"], [1, 1, 0]),
        (["HOLD 1", ""], [1, 1, 0]),
    ] {
        for (killed, holds) in (1..).zip(held) {
            let what = format!("{requests:?}, {killed:b} killed");
            Scene::set(&requests).check(killed, holds, &what);
        }
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

/// The owner has a place as well, and the message tells of the hold that the blocked
/// client never hears of.
#[test]
fn a_hold_that_a_place_of_its_owner_was_told_of_stands() {
    for options in ["HOLD 1", "", "SESSION", "HOLD 1 SESSION"] {
        let mut scene = Scene::set(&[options]);
        let mut ears = scene.server.subscriber("ch");
        let place = format!("LOCK.ACQUIRE k owner {LONG} QUEUE 600000 ch");
        assert_eq!(ears.call(&place), int(0));
        let kill = scene.kill(0);
        scene.release_and(&[&kill]);
        let fence = ears.granted("owner");
        let held = scene.observer.call("HGET k owner");
        assert_eq!(held, text("1"), "{options}: told, then taken");
        let claim = format!("LOCK.RENEW k owner {LONG} FENCE {fence}");
        assert_eq!(ears.call(&claim), int(1), "{options}");
        scene.assert_held(1, options);
    }
}

/// The place comes first, and a session that nobody hears of takes nothing with it.
#[test]
fn a_place_keeps_its_hold_though_a_session_of_its_owner_is_unheard() {
    for options in ["HOLD 1 SESSION", "SESSION"] {
        let server = TestServer::start();
        let (mut observer, mut next) = (server.client(), server.client());
        let (mut blocked, mut ears) = (server.client(), server.subscriber("ch"));
        observer.int(&format!("LOCK.ACQUIRE k before {LONG}"));
        let place = format!("LOCK.ACQUIRE k owner {LONG} QUEUE 600000 ch");
        assert_eq!(ears.call(&place), int(0));
        let kill = format!("CLIENT KILL ID {}", blocked.int("CLIENT ID"));
        blocked.send(&format!("LOCK.ACQUIRE k owner {LONG} BLOCK 0 {options}"));
        await_waiting(&mut observer, "k", 2);
        next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
        await_waiting(&mut observer, "k", 3);
        transaction(&mut observer, &["LOCK.RELEASE k before", &kill]);
        settle(&server);
        let fence = ears.granted("owner");
        let claim = format!("LOCK.RENEW k owner {LONG} FENCE {fence}");
        assert_eq!(ears.call(&claim), int(1), "{options}");
        assert_eq!(observer.call("HGET k owner"), text("1"), "{options}");
        assert_eq!(waiting(&mut observer, "k"), 1, "{options}");
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

#[test]
fn what_others_confirm_keeps_no_hold_that_nobody_heard_of() {
    for command in [
        "LOCK.ACQUIRE other somebody LEASE 600000 HOLD 1",
        "LOCK.RENEW other somebody",
        "LOCK.ACQUIRE other owner LEASE 600000 HOLD 1",
    ] {
        let mut scene = Scene::set(&["HOLD 1"]);
        let owner = command.split(' ').nth(2).unwrap();
        scene.observer.int(&format!("LOCK.ACQUIRE other {owner}"));
        let kill = scene.kill(0);
        let replies = scene.release_and(&[command, &kill]);
        assert!(matches!(replies[0], Value::Int(1..)), "{replies:?}");
        scene.assert_passed_on(command);
    }
}

#[test]
fn what_a_reader_confirms_keeps_no_other_that_never_heard() {
    let server = TestServer::start();
    let mut client = server.client();
    client.int(&format!("LOCK.ACQUIRE k writer {LONG}"));
    let (mut lives, mut dies) = (server.client(), server.client());
    let id = dies.int("CLIENT ID");
    for (count, (client_of, name)) in [(&mut lives, "lives"), (&mut dies, "dies")]
        .into_iter()
        .enumerate()
    {
        client_of.send(&format!("LOCK.ACQUIRE k {name} {LONG} SHARED BLOCK 0"));
        await_waiting(&mut client, "k", i64::try_from(count).unwrap() + 1);
    }
    let confirm = format!("LOCK.ACQUIRE k lives {LONG} SHARED HOLD 1");
    let kill = format!("CLIENT KILL ID {id}");
    let replies = transaction(&mut client, &["LOCK.RELEASE k writer", &confirm, &kill]);
    settle(&server);
    assert_eq!(replies[0], int(1));
    assert_eq!(lives.reply(), replies[1]);
    assert_eq!(client.call("HGET k dies"), nil());
    assert_eq!(client.call("HGET k lives"), text("1"));
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

#[test]
fn what_the_owner_does_in_between_counts_in_its_order() {
    for (options, meanwhile, killed, holds) in [
        // A nested hold on top of the one that the first hears of.
        (&["HOLD 1", "HOLD 1"][..], "LOCK.ACQUIRE k owner", 1, 2),
        // A renewal tells of the first hold, not of the second.
        (&["", ""], "LOCK.RENEW k owner", 1, 1),
        // Of three holds one is given back and one is nobody's.
        (&["", "", ""], "LOCK.RELEASE k owner", 2, 1),
    ] {
        let mut scene = Scene::set(options);
        let kill = scene.kill(killed);
        scene.release_and(&[meanwhile, &kill]);
        scene.assert_held(holds, meanwhile);
    }
}

/// Redis 7.0 sends both replies to a client that is unblocked in the turn of its
/// grant, so there the session is that client's.
#[test]
fn who_is_unblocked_with_an_error_has_no_session() {
    let mut scene = Scene::set(&["SESSION", "SESSION"]);
    let hears_both = scene.server.version() < (7, 2);
    let unblock = format!("CLIENT UNBLOCK {} ERROR", scene.ids[1]);
    scene.release_and(&[&unblock]);
    token(&scene.requests[0].reply());
    if hears_both {
        token(&scene.requests[1].reply());
        assert!(scene.requests[1].reply_error().starts_with("UNBLOCKED "));
        scene.assert_held(2, "both have it");
        return;
    }
    assert!(scene.requests[1].reply_error().starts_with("UNBLOCKED "));
    scene.assert_held(1, "the first has it");
    // The second lives on, and keeps nothing up.
    drop(scene.requests.remove(0));
    await_gone(&mut scene.observer, scene.ids[0]);
    settle(&scene.server);
    scene.assert_passed_on("the first has gone");
}

#[test]
fn who_was_told_of_a_session_has_it_though_a_later_one_is_gone() {
    let mut scene = Scene::set(&["SESSION HOLD 1", "SESSION HOLD 1"]);
    let kill = scene.kill(1);
    scene.release_and(&[&kill]);
    token(&scene.requests[0].reply());
    scene.assert_held(1, "the first has it");
    drop(scene.requests.remove(0));
    await_gone(&mut scene.observer, scene.ids[0]);
    settle(&scene.server);
    scene.assert_passed_on("the first has gone");
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
