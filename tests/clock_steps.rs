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
