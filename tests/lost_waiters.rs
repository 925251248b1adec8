//! Waiters that go away leave the queue, and delay nobody.

use redis::Value;
use redis_lock_testing::{Client, Int, Play, Server, eventually};

/// `h` holds `k`, and `a` waits for it with these options, then `next`.
#[track_caller]
fn lined_up(options: &str) -> Play {
    let mut play = Play::held();
    play.run(&format!(
        "a > LOCK.ACQUIRE k a BLOCK {options} -> ..
        next > LOCK.ACQUIRE k next BLOCK 0 -> .."
    ));
    play
}

/// The module's memory of the queue is gone, too: a new line works.
#[test]
fn one_that_leaves_hears_why_and_is_skipped() {
    for (timeout_ms, leave) in [
        ("0", "a closes"),
        ("0", "h > CLIENT KILL ID $a -> 1 \n a < closed"),
        ("0", "h > CLIENT UNBLOCK $a -> 1 \n a < null"),
        ("0", "h > CLIENT UNBLOCK $a ERROR -> 1 \n a < !UNBLOCKED"),
        ("1500", "a < null"),
    ] {
        lined_up(timeout_ms).run(&format!(
            "{leave}
            until queue k = next
            h > LOCK.RELEASE k h -> 1
            next < token
            next > LOCK.RELEASE k next -> 1
            h > EXISTS k -> 0
            h > LOCK.ACQUIRE k h BLOCK 0 -> token"
        ));
    }
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
    assert_eq!(client.call("EXISTS k"), Int(0));
    assert!(client.info("lock_waits_abandoned") > 0, "not tested");
}

/// What is in its buffer when it goes counts as told: then its lease ends that.
#[test]
fn a_waiter_that_goes_in_the_moment_of_a_release_delays_the_next_by_a_lease_at_most() {
    let server = Server::start();
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
                assert_eq!([holder.reply(), killer.reply()], [Int(1), Int(1)]);
            }
            // One turn of the event loop: granted, then killed; and killed, then released.
            order @ (1 | 2) => {
                let commands = if order == 1 {
                    format!("{release}\r\n{kill}\r\n")
                } else {
                    format!("{kill}\r\n{release}\r\n")
                };
                holder.connection.send_bytes(commands.as_bytes()).unwrap();
                assert_eq!([holder.reply(), holder.reply()], [Int(1), Int(1)]);
            }
            3 => {
                holder.send(release);
                drop(std::mem::replace(&mut victim, server.client()));
                assert_eq!(holder.reply(), Int(1));
            }
            _ => {
                drop(std::mem::replace(&mut victim, server.client()));
                holder.send(release);
                assert_eq!(holder.reply(), Int(1));
            }
        }
        assert!(matches!(next.reply(), Value::Int(_)), "round {round}");
        assert_eq!(next.call("LOCK.RELEASE k next"), Int(1), "round {round}");
    }
    assert_no_traces(&mut holder);
}

#[test]
fn one_whose_socket_closed_at_the_release_holds_for_its_lease_at_most() {
    let mut play = Play::start();
    play.run("sleeper > PING -> PONG");
    for round in 0..200 {
        let turn = ["a drops", "h sends LOCK.RELEASE k h"];
        let [first, second] = [turn[round % 2], turn[1 - round % 2]];
        // While the server sleeps both arrive, so that one turn of its event
        // loop reads both.
        play.run(&format!(
            "h > LOCK.ACQUIRE k h
            a > LOCK.ACQUIRE k a LEASE 50 BLOCK 0 -> ..
            next > LOCK.ACQUIRE k next LONG BLOCK 20000 -> ..
            sleeper sends DEBUG SLEEP 0.005
            {first}
            {second}
            h < 1
            sleeper < OK
            next < token
            next > LOCK.RELEASE k next -> 1"
        ));
    }
    assert_no_traces(play.client("h"));
}

#[test]
fn one_that_quits_after_its_grant_keeps_the_lock_that_it_was_told_of() {
    let mut play = Play::held();
    play.run(
        "a sends LOCK.ACQUIRE k a BLOCK 0 | QUIT
        until queue k = a
        h > LOCK.RELEASE k h -> 1
        a < A
        a < OK
        a < closed
        h > LOCK.ACQUIRE k h BLOCK 50 -> null
        h > LOCK.ACQUIRE k a HOLD 1 -> A",
    );
}

/// Redis 7.0 can't take back a reply: there the client is told of both.
#[test]
fn one_granted_then_unblocked_with_an_error_hears_the_error() {
    let mut play = lined_up("0");
    play.run("h > LOCK.RELEASE k h | CLIENT UNBLOCK $a ERROR -> 1 | 1");
    let told_of_both = play.version() < (7, 2);
    if told_of_both {
        play.run("a < token");
    }
    play.run("a < !UNBLOCKED \n a > PING -> PONG");
    if told_of_both {
        play.run("a > LOCK.RELEASE k a -> 1");
    }
    play.run("next < token");
}

#[test]
fn a_waiter_granted_and_unblocked_in_one_turn_is_told_once() {
    lined_up("0").run(
        "h > LOCK.RELEASE k h | CLIENT UNBLOCK $a -> 1 | _
        a < token
        a > LOCK.RELEASE k a -> 1
        next < token",
    );
}
