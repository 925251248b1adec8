//! Steps of the wall clock are told.

use redis_lock_testing::{Clock, eventually};

#[test]
fn steps_of_the_wall_clock_are_counted_and_logged() {
    let clock = Clock::new();
    let server = clock.server();
    let mut client = server.client();
    assert_eq!(client.info("lock_clock_steps"), 0);
    for (ahead_s, count, way) in [(3600, 1, "forward"), (0, 2, "backward")] {
        let before = client.info("lock_clock_step_ms_last");
        clock.set_ahead(ahead_s);
        eventually("the step is seen", || {
            client.info("lock_clock_steps") == count
        });
        let step_ms = client.info("lock_clock_step_ms_last");
        let expected_ms = if count == 1 { 3_600_000 } else { -before };
        assert!((step_ms - expected_ms).abs() < 1000, "{step_ms}");
        let told = format!("the wall clock was set {way} by ");
        assert!(server.log().contains(&told), "{}", server.log());
    }
}

#[test]
fn who_waits_is_served_after_a_step_backward() {
    let clock = Clock::new();
    let server = clock.server();
    let (mut client, mut waiter) = (server.client(), server.client());
    clock.set_ahead(3600);
    eventually("the step is seen", || client.info("lock_clock_steps") == 1);
    client.int("LOCK.ACQUIRE k holder LEASE 600000");
    waiter.send("LOCK.ACQUIRE k waiter LEASE 600000 BLOCK 0");
    server.await_blocked(1);
    clock.set_ahead(0);
    eventually("the step is seen", || client.info("lock_clock_steps") == 2);
    assert_eq!(client.int("LOCK.RELEASE k holder"), 1);
    redis_lock_testing::token(&waiter.reply());
}

#[test]
fn replicas_have_as_long_to_acknowledge_as_without_a_step() {
    let clock = Clock::new();
    // Of an hour later the server would take the replica for gone.
    let server = clock.server_with(&["--repl-timeout", "100000"]);
    let replica = server.replica(true);
    let mut observer = server.client();
    observer.call("SET new 1");
    assert_eq!(observer.int("WAIT 1 0"), 1);
    observer.call("CONFIG SET lock.min-replicas 1");
    for (ahead_s, timeout_ms) in [(3600, 1_800_000), (0, 1000)] {
        observer.call(&format!("CONFIG SET lock.replicas-timeout {timeout_ms}"));
        let steps = observer.info("lock_clock_steps");
        replica.stop();
        let mut client = server.client();
        client.send("LOCK.ACQUIRE k a LEASE 36000000");
        // On a slow machine its time may be over by now.
        eventually("it is withheld", || {
            observer.info("lock_replies_withheld") + observer.info("lock_replies_unacknowledged")
                > 0
        });
        clock.set_ahead(ahead_s);
        eventually("the step is seen", || {
            observer.info("lock_clock_steps") == steps + 1
        });
        if ahead_s > 0 {
            assert_eq!(observer.info("lock_replies_withheld"), 1);
            replica.go_on();
            redis_lock_testing::token(&client.reply());
        } else {
            let error = client.reply_error();
            assert!(error.starts_with("NOREPLICAS "), "{error}");
            replica.go_on();
        }
    }
}
