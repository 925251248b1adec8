//! A client goes on to its next command, or ends, in the turn of the event loop in which it
//! is told of its grant.

use redis::Value;
use redis_lock_testing::scene::{await_waiting, transaction, waiting};
use redis_lock_testing::{Client, TestServer, int, nil, text, token};

const LONG: &str = "LEASE 600000";

/// Two locks that somebody holds. The first in line for `k` sends more behind that, and
/// somebody stands behind it. Another client waits for `j`, and sends more behind that.
struct Scene {
    server: TestServer,
    observer: Client,
    holder: Client,
    first: Client,
    next: Client,
    other: Client,
}

impl Scene {
    fn new(options: &[&str]) -> Self {
        let server = TestServer::start_with(options);
        let [observer, mut holder, first, next, other] = [(); 5].map(|()| server.client());
        for key in ["k", "j"] {
            holder.int(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
        }
        Self {
            server,
            observer,
            holder,
            first,
            next,
            other,
        }
    }

    /// What each sends behind its request to wait, and how the first one asks for that.
    fn wait(&mut self, session: &str, behind_first: &str, behind_other: &[u8]) {
        let wait = format!("LOCK.ACQUIRE k first {LONG} BLOCK 0{session}\r\n{behind_first}\r\n");
        self.first.send_bytes(wait.as_bytes());
        await_waiting(&mut self.observer, "k", 1);
        self.next
            .send(&format!("LOCK.ACQUIRE k next {LONG} BLOCK 0"));
        await_waiting(&mut self.observer, "k", 2);
        let wait = format!("LOCK.ACQUIRE j other {LONG} BLOCK 0\r\n");
        self.other
            .send_bytes(&[wait.as_bytes(), behind_other, b"\r\n"].concat());
        await_waiting(&mut self.observer, "j", 1);
    }

    /// Both locks come free in one turn.
    fn release(&mut self) {
        let both = ["LOCK.RELEASE k holder", "LOCK.RELEASE j holder"];
        assert_eq!(transaction(&mut self.holder, &both), [int(1), int(1)]);
    }

    #[track_caller]
    fn assert_first_keeps_the_lock(&mut self, token: i64) {
        assert_eq!(self.observer.call("HGET k first"), text("1"));
        assert_eq!(self.observer.call("HGET k @fence"), text(token.to_string()));
        assert_eq!(waiting(&mut self.observer, "k"), 1);
    }
}

#[test]
fn who_has_sent_quit_is_told_and_keeps_the_lock_though_its_session_is_ended_before() {
    let mut scene = Scene::new(&[]);
    scene.first.int("LOCK.ACQUIRE m first SESSION");
    scene.wait("", "QUIT", b"LOCK.ACQUIRE m first");
    scene.release();
    let told = token(&scene.first.reply());
    scene.other.int("PING");
    scene.assert_first_keeps_the_lock(told);
}

#[test]
fn who_is_told_during_a_long_script_keeps_the_lock_though_it_goes() {
    let script = "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1000000 end \
                  local start = now() while now() - start < 1 do end return 1";
    let mut scene = Scene::new(&["--busy-reply-threshold", "20"]);
    let long = format!("EVAL \"{script}\" 0");
    scene.wait("", "", long.as_bytes());
    scene
        .holder
        .send_bytes(b"MULTI\r\nLOCK.RELEASE k holder\r\nLOCK.RELEASE j holder\r\nEXEC\r\n");
    let told = token(&scene.first.reply());
    scene.first = scene.server.client();
    assert_eq!(token(&scene.other.reply()).signum(), 1);
    assert_eq!(scene.other.reply(), int(1));
    scene.assert_first_keeps_the_lock(told);
}

#[test]
fn a_session_that_is_killed_before_it_is_told_leaves_nothing_whatever_it_has_sent() {
    for (session, behind) in [
        (" SESSION", "PING"),
        (" SESSION", "LOCK.ACQUIRE k first SESSION"),
        (" SESSION", "LOCK.ACQUIRE k first HOLD 1 SESSION"),
        (" SESSION", "LOCK.RENEW k first"),
    ] {
        let mut scene = Scene::new(&[]);
        let id = scene.first.int("CLIENT ID");
        let kill = format!("CLIENT KILL ID {id}");
        scene.wait(session, behind, kill.as_bytes());
        scene.release();
        assert!(scene.first.try_reply().is_none(), "{behind}");
        assert_eq!(token(&scene.next.reply()).signum(), 1, "{behind}");
        assert_eq!(scene.observer.call("HGET k first"), nil(), "{behind}");
    }
}

#[test]
fn who_goes_on_to_its_next_wait_is_told_of_both() {
    let mut scene = Scene::new(&[]);
    scene.holder.int(&format!("LOCK.ACQUIRE l holder {LONG}"));
    scene.wait(" SESSION", "LOCK.ACQUIRE l first BLOCK 0 SESSION", b"PING");
    scene.release();
    assert!(matches!(scene.first.reply(), Value::Int(_)));
    assert_eq!(scene.holder.call("LOCK.RELEASE l holder"), int(1));
    assert!(matches!(scene.first.reply(), Value::Int(_)));
    drop(scene.first);
    assert!(matches!(scene.next.reply(), Value::Int(_)));
}
