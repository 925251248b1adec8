//! Waiters that go away leave the queue, and delay nobody.

use redis::Value;
use redis_lock_testing::{Client, TestServer, eventually, int, need_files, nil, status};

/// A holder, and a waiter behind the one that goes away.
struct Line {
    server: TestServer,
    holder: Client,
    leaver: Client,
    next: Client,
}

impl Line {
    fn form() -> Self {
        let server = TestServer::start();
        let (mut holder, mut leaver) = (server.client(), server.client());
        let mut next = server.client();
        holder.call("LOCK.ACQUIRE k holder");
        leaver.send("LOCK.ACQUIRE k leaver BLOCK 0");
        server.await_blocked(1);
        next.send("LOCK.ACQUIRE k next BLOCK 0");
        server.await_blocked(2);
        Self {
            server,
            holder,
            leaver,
            next,
        }
    }

    #[track_caller]
    fn assert_next_gets_the_lock(mut self) {
        self.server.await_blocked(1);
        assert_eq!(self.holder.call("LOCK.RELEASE k holder"), int(1));
        assert!(matches!(self.next.reply(), Value::Int(_)));
        assert_eq!(self.next.call("LOCK.RELEASE k next"), int(1));
        assert_eq!(self.holder.call("EXISTS k"), int(0));
        // The module's memory of the queue is gone too: a new line works.
        assert_ne!(self.holder.call("LOCK.ACQUIRE k holder BLOCK 0"), nil());
    }
}

#[test]
fn one_that_disconnects_is_skipped() {
    let mut line = Line::form();
    let dummy = line.server.client();
    drop(std::mem::replace(&mut line.leaver, dummy));
    line.assert_next_gets_the_lock();
}

#[test]
fn one_that_is_killed_is_skipped() {
    let mut line = Line::form();
    let id = leaver_id(&mut line.holder);
    line.holder.call(&format!("CLIENT KILL ID {id}"));
    assert!(line.leaver.try_reply().is_none());
    line.assert_next_gets_the_lock();
}

#[test]
fn one_that_is_unblocked_gets_null_and_is_skipped() {
    let mut line = Line::form();
    let id = leaver_id(&mut line.holder);
    assert_eq!(line.holder.call(&format!("CLIENT UNBLOCK {id}")), int(1));
    assert_eq!(line.leaver.reply(), nil());
    line.assert_next_gets_the_lock();
}

#[test]
fn one_that_is_unblocked_with_an_error_gets_it_and_is_skipped() {
    let mut line = Line::form();
    let id = leaver_id(&mut line.holder);
    assert_eq!(
        line.holder.call(&format!("CLIENT UNBLOCK {id} ERROR")),
        int(1)
    );
    assert!(line.leaver.reply_error().starts_with("UNBLOCKED "));
    line.assert_next_gets_the_lock();
}

#[test]
fn one_whose_time_is_up_is_skipped() {
    let server = TestServer::start();
    let (mut holder, mut leaver, mut next) = (server.client(), server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder");
    leaver.send("LOCK.ACQUIRE k leaver BLOCK 1500");
    server.await_blocked(1);
    next.send("LOCK.ACQUIRE k next BLOCK 0");
    server.await_blocked(2);
    assert_eq!(leaver.reply(), nil());
    Line {
        server,
        holder,
        leaver,
        next,
    }
    .assert_next_gets_the_lock();
}

#[test]
fn nine_of_ten_of_a_thousand_that_go_leave_the_others_in_order() {
    need_files(1_100);
    let server = TestServer::start_with(&["--maxclients", "2000"]);
    let mut holder = server.client();
    holder.call("LOCK.ACQUIRE k holder LEASE 600000");
    let mut waiters: Vec<Option<Client>> = (0..1000)
        .map(|i| {
            let mut client = server.client();
            client.send(&format!("LOCK.ACQUIRE k owner{i} BLOCK 0"));
            // The answer to a second connection's command tells that the
            // server has read what came before.
            holder.call("PING");
            Some(client)
        })
        .collect();
    server.await_blocked(1000);
    for (i, waiter) in waiters.iter_mut().enumerate() {
        if i % 10 != 3 {
            *waiter = None;
        }
    }
    server.await_blocked(100);
    holder.call("LOCK.RELEASE k holder");
    for (i, waiter) in waiters.iter_mut().enumerate() {
        if let Some(client) = waiter {
            assert!(matches!(client.reply(), Value::Int(_)), "owner{i}");
            assert_eq!(client.call(&format!("LOCK.RELEASE k owner{i}")), int(1));
        }
    }
    assert_eq!(holder.call("EXISTS k"), int(0));
}

/// No trace of those who waited is left, and it is shown that some were granted
/// the lock and gone before they could be told, and that some left in time.
#[track_caller]
fn assert_no_traces(client: &mut Client) {
    eventually("nothing is remembered", || {
        ["lock_waiters", "lock_contended_keys", "lock_planned_looks"]
            .into_iter()
            .all(|count| client.info(count) == 0)
    });
    assert_eq!(client.call("EXISTS k"), int(0));
    assert!(client.info("lock_waits_abandoned") > 0, "not tested");
}

/// What is in its buffer when it goes counts as told: then its lease ends that.
#[test]
fn a_waiter_that_goes_in_the_moment_of_a_release_delays_the_next_by_a_lease_at_most() {
    let server = TestServer::start();
    let (mut holder, mut killer) = (server.client(), server.client());
    let mut next = server.client();
    for round in 0..10_000 {
        let mut victim = server.client();
        let kill = format!("CLIENT KILL ID {}", victim.int("CLIENT ID"));
        let release = "LOCK.RELEASE k holder";
        // One that is killed first is granted nothing.
        let lease_ms = if round % 5 == 2 { 600_000 } else { 3 };
        holder.call("LOCK.ACQUIRE k holder");
        victim.send(&format!("LOCK.ACQUIRE k victim LEASE {lease_ms} BLOCK 0"));
        next.send("LOCK.ACQUIRE k next LEASE 600000 BLOCK 20000");
        eventually("both wait", || killer.info("blocked_clients") == 2);
        match round % 5 {
            // Two connections, in whichever order the server reads them.
            0 => {
                holder.send(release);
                killer.send(&kill);
                assert_eq!([holder.reply(), killer.reply()], [int(1), int(1)]);
            }
            // One turn of the event loop: granted, then killed; and killed, then released.
            order @ (1 | 2) => {
                let commands = if order == 1 {
                    format!("{release}\r\n{kill}\r\n")
                } else {
                    format!("{kill}\r\n{release}\r\n")
                };
                holder.send_bytes(commands.as_bytes());
                assert_eq!([holder.reply(), holder.reply()], [int(1), int(1)]);
            }
            3 => {
                holder.send(release);
                drop(std::mem::replace(&mut victim, server.client()));
                assert_eq!(holder.reply(), int(1));
            }
            _ => {
                drop(std::mem::replace(&mut victim, server.client()));
                holder.send(release);
                assert_eq!(holder.reply(), int(1));
            }
        }
        assert!(matches!(next.reply(), Value::Int(_)), "round {round}");
        assert_eq!(next.call("LOCK.RELEASE k next"), int(1), "round {round}");
    }
    assert_no_traces(&mut holder);
}

#[test]
fn one_whose_socket_closed_at_the_release_holds_for_its_lease_at_most() {
    let server = TestServer::start();
    let (mut holder, mut sleeper) = (server.client(), server.client());
    let mut next = server.client();
    for round in 0..200 {
        let closes_first = round % 2 == 0;
        let mut victim = server.client();
        holder.call("LOCK.ACQUIRE k holder");
        victim.send("LOCK.ACQUIRE k victim LEASE 50 BLOCK 0");
        next.send("LOCK.ACQUIRE k next LEASE 600000 BLOCK 20000");
        server.await_blocked(2);
        // While the server sleeps both arrive, so that one turn of its event
        // loop reads both.
        sleeper.send("DEBUG SLEEP 0.005");
        if closes_first {
            drop(victim);
            holder.send("LOCK.RELEASE k holder");
        } else {
            holder.send("LOCK.RELEASE k holder");
            drop(victim);
        }
        assert_eq!(holder.reply(), int(1));
        assert_eq!(sleeper.reply(), status("OK"));
        assert!(matches!(next.reply(), Value::Int(_)), "round {round}");
        assert_eq!(next.call("LOCK.RELEASE k next"), int(1), "round {round}");
    }
    assert_no_traces(&mut holder);
}

#[test]
fn one_that_quits_after_its_grant_keeps_the_lock_that_it_was_told_of() {
    let server = TestServer::start();
    let (mut holder, mut leaver) = (server.client(), server.client());
    holder.call("LOCK.ACQUIRE k holder");
    leaver.send_bytes(b"LOCK.ACQUIRE k leaver BLOCK 0\r\nQUIT\r\n");
    server.await_blocked(1);
    assert_eq!(holder.call("LOCK.RELEASE k holder"), int(1));
    let token = leaver.reply();
    assert_eq!(leaver.reply(), status("OK"));
    assert!(leaver.try_reply().is_none());
    assert_eq!(holder.call("LOCK.ACQUIRE k holder BLOCK 50"), nil());
    assert_eq!(holder.call("LOCK.ACQUIRE k leaver HOLD 1"), token);
}

/// The id of the leaver, which is the client that connected after the holder.
fn leaver_id(holder: &mut Client) -> i64 {
    holder.int("CLIENT ID") + 1
}

/// Redis 7.0 can't take back a reply: there the client is told of both.
#[test]
fn one_granted_then_unblocked_with_an_error_hears_the_error() {
    let mut line = Line::form();
    let id = leaver_id(&mut line.holder);
    let commands = format!("LOCK.RELEASE k holder\r\nCLIENT UNBLOCK {id} ERROR\r\n");
    line.holder.send_bytes(commands.as_bytes());
    assert_eq!([line.holder.reply(), line.holder.reply()], [int(1), int(1)]);
    let told_of_both = line.server.version() < (7, 2);
    if told_of_both {
        assert!(matches!(line.leaver.reply(), Value::Int(_)));
    }
    assert!(line.leaver.reply_error().starts_with("UNBLOCKED "));
    assert_eq!(line.leaver.call("PING"), status("PONG"));
    if told_of_both {
        assert_eq!(line.leaver.call("LOCK.RELEASE k leaver"), int(1));
    }
    assert!(matches!(line.next.reply(), Value::Int(_)));
}

#[test]
fn a_waiter_granted_and_unblocked_in_one_turn_is_told_once() {
    let mut line = Line::form();
    let id = leaver_id(&mut line.holder);
    line.holder
        .send_bytes(format!("LOCK.RELEASE k holder\r\nCLIENT UNBLOCK {id}\r\n").as_bytes());
    assert_eq!(line.holder.reply(), int(1));
    assert!(matches!(line.leaver.reply(), Value::Int(_)));
    line.holder.reply();
    assert_eq!(line.leaver.call("LOCK.RELEASE k leaver"), int(1));
    assert!(matches!(line.next.reply(), Value::Int(_)));
}
