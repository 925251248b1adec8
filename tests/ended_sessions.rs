//! Sessions that have ended, and what the next command sees of their locks.

use redis::Value;
use redis_lock_testing::scene::{
    await_gone, await_waiting, field, holders, settle, transaction, waiting,
};
use redis_lock_testing::{
    Client, LONG, TestServer, eventually, int, module, nil, status, stay_on_one_processor, text,
    token,
};

/// A lock that a session holds, and somebody who waits for it.
struct Scene {
    server: TestServer,
    observer: Client,
    session: Client,
    id: i64,
    first: i64,
    next: Client,
}

impl Scene {
    fn set() -> Self {
        let mut scene = Self::uncontended();
        let command = format!("LOCK.ACQUIRE k next {LONG} BLOCK 0");
        scene.next.send(&command);
        await_waiting(&mut scene.observer, "k", 1);
        scene
    }

    fn uncontended() -> Self {
        let server = TestServer::start();
        let mut session = server.client();
        Self {
            observer: server.client(),
            next: server.client(),
            id: session.int("CLIENT ID"),
            first: session.int(&format!("LOCK.ACQUIRE k owner {LONG} SESSION")),
            session,
            server,
        }
    }

    /// Ends the session and sends a command in one transaction. Returns the
    /// command's reply.
    #[track_caller]
    fn end_and(&mut self, command: &str) -> Value {
        let kill = format!("CLIENT KILL ID {}", self.id);
        let replies = transaction(&mut self.observer, &[&kill, command]);
        assert_eq!(replies[0], int(1));
        replies[1].clone()
    }

    /// The one who waited has the lock, alone.
    #[track_caller]
    fn assert_next_holds(mut self) {
        let next = token(&self.next.reply());
        assert!(next > self.first);
        settle(&self.server);
        let held = [
            ("@fence".to_owned(), next.to_string()),
            ("next".to_owned(), "1".to_owned()),
        ];
        assert_eq!(self.observer.hash("k"), held);
        assert!(self.session.try_reply().is_none());
    }
}

const ASKS: [&str; 4] = ["", "HOLD 1", "SESSION", "HOLD 1 SESSION"];

#[test]
fn its_owner_does_not_pass_those_who_wait() {
    for options in ASKS {
        let mut scene = Scene::set();
        let ask = format!("LOCK.ACQUIRE k owner {LONG} {options}");
        assert_eq!(scene.end_and(ask.trim()), nil(), "{options}");
        scene.assert_next_holds();
    }
}

#[test]
fn its_owner_gets_a_new_hold_that_lasts() {
    for options in ASKS {
        let mut scene = Scene::uncontended();
        let ask = format!("LOCK.ACQUIRE k owner {LONG} {options}");
        let granted = token(&scene.end_and(ask.trim()));
        assert!(granted > scene.first, "{options}: the hold that has ended");
        settle(&scene.server);
        let held = [
            ("@fence".to_owned(), granted.to_string()),
            ("owner".to_owned(), "1".to_owned()),
        ];
        assert_eq!(scene.observer.hash("k"), held, "{options}");
    }
}

#[test]
fn another_owner_gets_the_lock_at_once() {
    let mut scene = Scene::uncontended();
    let granted = token(&scene.end_and(&format!("LOCK.ACQUIRE k another {LONG}")));
    assert!(granted > scene.first);
    settle(&scene.server);
    assert_eq!(scene.observer.call("HGET k another"), text("1"));
}

#[test]
fn its_hold_can_neither_be_renewed_nor_given_back_nor_broken() {
    for (command, reply) in [
        ("LOCK.RENEW k owner LEASE 600000", int(0)),
        ("LOCK.RENEW k owner LEASE 600000 FENCE first", int(0)),
        ("LOCK.RELEASE k owner", nil()),
        ("LOCK.RELEASE k owner ALL", nil()),
        ("LOCK.RELEASE k owner FENCE first", nil()),
        ("LOCK.BREAK k FENCE first", int(0)),
    ] {
        let mut scene = Scene::set();
        let exact = command.replace("first", &scene.first.to_string());
        assert_eq!(scene.end_and(&exact), reply, "{command}");
        scene.assert_next_holds();

        let mut scene = Scene::uncontended();
        let exact = command.replace("first", &scene.first.to_string());
        assert_eq!(scene.end_and(&exact), reply, "{command}, nobody waits");
        settle(&scene.server);
        assert_eq!(scene.observer.int("EXISTS k"), 0);
    }
}

#[test]
fn its_lock_is_not_shown_as_held_by_it() {
    let mut scene = Scene::set();
    let info = scene.end_and("LOCK.INFO k");
    let shown = holders(&info);
    assert!(!shown.contains(&"owner".to_owned()), "{shown:?}");
    scene.assert_next_holds();

    let mut scene = Scene::uncontended();
    let info = scene.end_and("LOCK.INFO k");
    assert_eq!(field(&info, "state"), &text("free"));
    assert_eq!(holders(&info), [""; 0]);

    let mut scene = Scene::set();
    let Value::Array(listed) = scene.end_and("LOCK.LIST") else {
        panic!("LOCK.LIST did not answer a list");
    };
    for lock in &listed {
        let shown = holders(lock);
        assert!(!shown.contains(&"owner".to_owned()), "{shown:?}");
    }
    scene.assert_next_holds();
}

/// Ends a session of 300 readers in a transaction with this command, and returns its reply.
/// Another reader is left, if one is named.
#[track_caller]
fn end_a_crowd(left: Option<&str>, command: &str) -> (TestServer, Value) {
    const CROWD: usize = 300;
    let server = TestServer::start();
    let (mut client, mut session) = (server.client(), server.client());
    let id = session.int("CLIENT ID");
    for n in 0..CROWD {
        if let Some(left) = left.filter(|_| n == CROWD / 2) {
            client.int(&format!("LOCK.ACQUIRE k {left} {LONG} SHARED"));
        }
        session.send(&format!("LOCK.ACQUIRE k n{n} {LONG} SHARED SESSION"));
        token(&session.reply());
    }
    let replies = transaction(&mut client, &[&format!("CLIENT KILL ID {id}"), command]);
    (server, replies[1].clone())
}

/// Who holds the lock when all is settled, and how many sessions were ended.
#[track_caller]
fn assert_left(server: &TestServer, left: &[&str]) {
    let mut client = server.client();
    eventually("all has settled", || {
        let fields = client.hash("k").into_iter().map(|(name, _)| name);
        let mut holders: Vec<_> = fields.filter(|name| !name.starts_with('@')).collect();
        holders.sort();
        holders == left && client.info("lock_sessions") == 0
    });
    assert_eq!(client.info("lock_releases_session"), 300);
    eventually("all is measured", || client.info("lock_hold_count") == 300);
}

#[test]
fn a_crowd_of_readers_ends_with_its_connection() {
    let (server, granted) = end_a_crowd(None, &format!("LOCK.ACQUIRE k x {LONG}"));
    token(&granted);
    assert_left(&server, &["x"]);
    let (server, broken) = end_a_crowd(None, "LOCK.BREAK k");
    assert_eq!(broken, int(0));
    assert_left(&server, &[]);
    let script = "EVAL return(redis.call('LOCK.ACQUIRE','k','x')) 0";
    let (server, granted) = end_a_crowd(None, script);
    token(&granted);
    assert_left(&server, &["x"]);
}

#[test]
fn who_is_left_of_a_crowd_holds_the_lock() {
    let ask = format!("LOCK.ACQUIRE k x {LONG}");
    let (server, granted) = end_a_crowd(Some("z"), &ask);
    assert_eq!(granted, nil());
    assert_left(&server, &["z"]);
    let (server, granted) = end_a_crowd(Some("z"), &format!("{ask} LIMIT 2"));
    token(&granted);
    assert_left(&server, &["x", "z"]);
    let (server, broken) = end_a_crowd(Some("z"), "LOCK.BREAK k");
    assert_eq!(broken, int(1));
    assert_left(&server, &[]);
    assert_eq!(server.info("lock_releases_broken"), 1);
}

#[test]
fn a_reader_among_readers_ends_alone() {
    let server = TestServer::start();
    let (mut client, mut session) = (server.client(), server.client());
    let id = session.int("CLIENT ID");
    session.int(&format!("LOCK.ACQUIRE k reader {LONG} SHARED SESSION"));
    client.int(&format!("LOCK.ACQUIRE k other {LONG} SHARED"));
    let kill = format!("CLIENT KILL ID {id}");
    let renew = "LOCK.RENEW k reader LEASE 600000";
    let other = "LOCK.RENEW k other LEASE 600000";
    assert_eq!(
        transaction(&mut client, &[&kill, renew, other]),
        [int(1), int(0), int(1)]
    );
    settle(&server);
    assert_eq!(client.call("HGET k reader"), nil());
    assert_eq!(client.call("HGET k other"), text("1"));
}

/// Its connection ends while the server must not write, and its owner asks on
/// a new one.
#[test]
fn its_owner_asks_again_after_a_pause_of_the_server() {
    let mut scene = Scene::set();
    let pause = "CLIENT PAUSE 60000 WRITE";
    assert_eq!(scene.observer.call(pause), status("OK"));
    drop(scene.session);
    await_gone(&mut scene.observer, scene.id);
    let mut again = scene.server.client();
    again.call("PING");
    again.send(&format!("LOCK.ACQUIRE k owner {LONG} HOLD 1"));
    scene.observer.call("PING");
    assert_eq!(scene.observer.call("CLIENT UNPAUSE"), status("OK"));
    let reply = again.reply();
    settle(&scene.server);
    match reply {
        Value::Nil => assert!(token(&scene.next.reply()) > scene.first),
        told => {
            let stored = scene.observer.call("HGET k @fence");
            assert_eq!(stored, text(token(&told).to_string()), "told, then taken");
            assert_eq!(scene.observer.call("HGET k owner"), text("1"));
        }
    }
}

/// What keeps the server from reading while a session ends.
#[derive(Clone, Copy)]
enum Busy {
    Not,
    Asleep,
    InAScript,
}

/// Ends sessions again and again while their owner asks on a connection that is
/// open already. Whoever is told that it holds the lock must still hold it.
#[track_caller]
fn check_rounds(quit: bool, busy: &[Busy]) {
    stay_on_one_processor();
    let server = TestServer::start();
    let (mut observer, mut sleeper) = (server.client(), server.client());
    let (mut pooled, mut next) = (server.client(), server.client());
    for round in 0..200 {
        let ask = [
            "LOCK.ACQUIRE k owner LEASE 600000",
            "LOCK.ACQUIRE k owner LEASE 600000 HOLD 1",
            "LOCK.ACQUIRE k owner LEASE 600000 SESSION",
            "LOCK.RENEW k owner LEASE 600000",
        ][round % 4];
        let mut session = server.client();
        let id = session.int("CLIENT ID");
        let first = session.int(&format!("LOCK.ACQUIRE k owner {LONG} SESSION"));
        next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
        await_waiting(&mut observer, "k", 1);
        let busy = busy[round / 4 % busy.len()];
        match busy {
            Busy::Not => {}
            Busy::Asleep => sleeper.send("DEBUG SLEEP 0.005"),
            Busy::InAScript => {
                let script = b"local n = 0 for i = 1, 500000 do n = n + i end return 1";
                sleeper.send_words(&[b"EVAL", script, b"0"]);
            }
        }
        if quit {
            session.send("QUIT");
        } else {
            drop(session);
        }
        let reply = pooled.call(ask);
        if !matches!(busy, Busy::Not) {
            sleeper.reply();
        }
        await_gone(&mut observer, id);
        settle(&server);
        let told = match reply {
            Value::Nil => None,
            Value::Int(renewed) if ask.starts_with("LOCK.RENEW") => (renewed == 1).then_some(first),
            reply => Some(token(&reply)),
        };
        if let Some(told) = told {
            let stored = [
                observer.call("HEXISTS k owner"),
                observer.call("HGET k @fence"),
            ];
            assert_eq!(
                stored,
                [int(1), text(told.to_string())],
                "round {round}, {ask}: told, then taken"
            );
            assert_eq!(waiting(&mut observer, "k"), 1, "round {round}, {ask}");
            assert_eq!(pooled.call("LOCK.RELEASE k owner ALL"), int(1));
        }
        let granted = token(&next.reply());
        assert!(granted > first, "round {round}, {ask}");
        assert_eq!(next.call("LOCK.RELEASE k next"), int(1));
    }
    assert_eq!(observer.int("EXISTS k"), 0);
    assert_eq!(observer.info("lock_sessions"), 0);
}

#[test]
fn who_asks_after_a_close_keeps_what_it_is_told_of() {
    check_rounds(false, &[Busy::Not]);
}

#[test]
fn who_asks_after_a_close_of_which_a_busy_server_hears_late() {
    check_rounds(false, &[Busy::Asleep, Busy::InAScript]);
}

#[test]
fn who_asks_after_quit_keeps_what_it_is_told_of() {
    check_rounds(true, &[Busy::Not]);
}

#[test]
fn who_asks_after_quit_of_which_a_busy_server_hears_late() {
    check_rounds(true, &[Busy::Asleep, Busy::InAScript]);
}

/// The hold of a session was deleted, another holds the lock, and the owner
/// waits for it again. The old renewal and the end of the other's lease fall
/// due while the server sleeps.
#[test]
fn a_lost_hold_does_not_unbind_the_next_one_of_its_owner() {
    let server = TestServer::start();
    let (mut observer, mut next) = (server.client(), server.client());
    let (mut first, mut second) = (server.client(), server.client());
    first.int("LOCK.ACQUIRE k owner SESSION LEASE 6000");
    assert_eq!(observer.call("DEL k"), int(1));
    observer.int("LOCK.ACQUIRE k other LEASE 1900");
    let id = second.int("CLIENT ID");
    second.send("LOCK.ACQUIRE k owner SESSION LEASE 2000 BLOCK 0");
    await_waiting(&mut observer, "k", 1);
    next.send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
    await_waiting(&mut observer, "k", 2);
    // A third of the session's lease is 2000 ms, so both are due at its end.
    eventually("the other's lease nears its end", || {
        observer.int("PTTL k") < 600
    });
    assert_eq!(observer.call("DEBUG SLEEP 1.5"), status("OK"));
    token(&second.reply());
    settle(&server);
    let info = observer.call("LOCK.INFO k");
    let Value::Array(shown) = field(&info, "holders") else {
        panic!("no holders: {info:?}");
    };
    assert_eq!(field(&shown[0], "owner"), &text("owner"));
    assert_eq!(field(&shown[0], "client"), &int(id));
    let end = observer.int("PEXPIRETIME k");
    eventually("the lease is kept up", || {
        let now = observer.int("PEXPIRETIME k");
        assert_eq!(observer.call("HEXISTS k owner"), int(1));
        now > end + 2000
    });
    assert_eq!(waiting(&mut observer, "k"), 1);
    drop(second);
    token(&next.reply());
}

#[test]
fn sessions_end_also_after_a_demotion_and_a_load_of_the_module() {
    let (server, primary) = (TestServer::start(), TestServer::start());
    let (mut admin, mut holder) = (server.client(), server.client());
    holder.int("LOCK.ACQUIRE before owner SESSION LEASE 2000");
    let port = primary.addr().port();
    let follow = format!("REPLICAOF 127.0.0.1 {port}");
    assert_eq!(admin.call(&follow), status("OK"));
    eventually("the demoted server forgets its sessions", || {
        admin.info("lock_sessions") == 0
    });
    eventually("the module is unloaded", || {
        admin.call("MODULE UNLOAD lock") == status("OK")
    });
    let load = format!("MODULE LOAD {}", module().display());
    assert_eq!(admin.call(&load), status("OK"));
    assert_eq!(admin.call("REPLICAOF NO ONE"), status("OK"));
    let mut holder = server.client();
    let id = holder.int("CLIENT ID");
    holder.int(&format!("LOCK.ACQUIRE k owner SESSION {LONG}"));
    drop(holder);
    await_gone(&mut admin, id);
    settle(&server);
    assert_eq!(admin.int("EXISTS k"), 0);
    assert_eq!(admin.info("lock_sessions"), 0);
}

/// Of a session's lock that was moved elsewhere, nothing follows it there.
#[test]
fn a_lock_that_moved_is_a_plain_hold_where_it_is() {
    for (command, db, key) in [
        ("SWAPDB 0 1", 1, "k"),
        ("RENAME k moved", 0, "moved"),
        ("RENAMENX k moved", 0, "moved"),
        ("MOVE k 1", 1, "k"),
    ] {
        let server = TestServer::start();
        let (mut session, mut observer) = (server.client(), server.client());
        let id = session.int("CLIENT ID");
        session.int("LOCK.ACQUIRE k owner SESSION LEASE 1500");
        let moved = observer.call(command);
        assert!(moved == status("OK") || moved == int(1), "{moved:?}");
        assert_eq!(observer.call(&format!("SELECT {db}")), status("OK"));
        let end = observer.int(&format!("PEXPIRETIME {key}"));
        eventually("nothing is bound", || observer.info("lock_sessions") == 0);
        let now = observer.int(&format!("PEXPIRETIME {key}"));
        assert!(now == end || now == -2, "{command}: {now}");
        drop(session);
        await_gone(&mut observer, id);
        let mut next = server.client();
        next.call(&format!("SELECT {db}"));
        next.send(&format!("LOCK.ACQUIRE {key} next {LONG} BLOCK 0"));
        token(&next.reply());
    }
}

#[test]
fn a_session_renamed_over_a_lock_keeps_its_waiter_waiting_for_what_is_left_of_its_lease() {
    let mut scene = Scene::uncontended();
    let observer = &mut scene.observer;
    observer.int(&format!("LOCK.ACQUIRE other somebody {LONG}"));
    let command = format!("LOCK.ACQUIRE other next {LONG} BLOCK 0");
    scene.next.send(&command);
    await_waiting(observer, "other", 1);
    assert_eq!(observer.call("RENAME k other"), status("OK"));
    drop(scene.session);
    await_gone(observer, scene.id);
    settle(&scene.server);
    assert_eq!(waiting(observer, "other"), 1);
    assert_eq!(observer.call("HGET other owner"), text("1"));
    assert_eq!(observer.call("LOCK.BREAK other"), int(1));
    assert!(token(&scene.next.reply()) > scene.first);
}

#[test]
fn a_session_whose_lease_ended_unnoticed_is_closed() {
    let server = TestServer::start();
    let (mut old, mut new, mut observer) = (server.client(), server.client(), server.client());
    let id = old.int("CLIENT ID");
    old.int("LOCK.ACQUIRE k owner LEASE 200 SESSION");
    new.send("DEBUG SLEEP 0.5");
    new.send("LOCK.ACQUIRE k owner LEASE 600000 SESSION");
    assert_eq!(new.reply(), status("OK"));
    token(&new.reply());
    await_gone(&mut observer, id);
    assert_eq!(observer.call("HGET k owner"), text("1"));
}

#[test]
fn a_renewal_of_another_hold_does_not_touch_the_session() {
    let server = TestServer::start();
    let (mut session, mut observer) = (server.client(), server.client());
    session.int(&format!("LOCK.ACQUIRE k owner {LONG} SESSION"));
    assert_eq!(observer.call("DEL k"), int(1));
    session.int(&format!("LOCK.ACQUIRE k owner {LONG}"));
    assert_eq!(session.call("LOCK.RENEW k owner LEASE 1"), int(1));
    eventually("the lease is over", || observer.int("EXISTS k") == 0);
    settle(&server);
    assert_eq!(session.call("PING"), status("PONG"));
}

#[test]
fn a_longer_lease_of_another_connection_lasts_while_nothing_is_kept_up() {
    let server = TestServer::start();
    let (mut session, mut other) = (server.client(), server.client());
    let mut observer = server.client();
    session.int("LOCK.ACQUIRE k owner LEASE 300 SESSION");
    other.int(&format!("LOCK.ACQUIRE k owner {LONG}"));
    let refuse = "CONFIG SET min-replicas-to-write";
    assert_eq!(observer.call(&format!("{refuse} 1")), status("OK"));
    assert_eq!(observer.call("DEBUG SLEEP 0.4"), status("OK"));
    assert_eq!(observer.call("PING"), status("PONG"));
    assert_eq!(observer.call(&format!("{refuse} 0")), status("OK"));
    settle(&server);
    assert_eq!(session.call("PING"), status("PONG"));
    assert_eq!(observer.call("HGET k owner"), text("2"));
}
