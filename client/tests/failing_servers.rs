//! Servers that restart, change their role or hang while somebody waits.

mod support;

use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, Lost};
use redis_lock_testing::{Judge, Okay, Server};

use support::{
    assert_nothing_left, connect, connect_with_leases, granted, queue, soon, take, url, waiters,
};

const LONG: Duration = Duration::from_secs(20);

const LEASE: Duration = Duration::from_secs(30);

/// So soon after a reconnect holds are looked at: much sooner than a renewal
/// is due.
const LOOKED_AFTER: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_restart_is_waited_out_by_who_waits_and_by_who_is_idle() {
    let mut server = Server::start();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let waiting = queue(&server, &client.lock("lock"), 0).await;
    // It forgets the lock.
    server.restart().unwrap();
    let next = granted(waiting).await;
    assert!(next.token() > guard.token());
    assert!(guard.renew().await.is_err() && guard.release().await.is_err());
    next.release().await.unwrap();
    client.flush().await;
    // All of its connections are idle, and closed by now.
    server.restart().unwrap();
    let guard = client
        .lock("lock")
        .acquire_within(LONG)
        .await
        .unwrap()
        .unwrap();
    let waiting = queue(&server, &client.lock("lock"), 0).await;
    drop(guard);
    drop(granted(waiting).await);
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn a_wait_at_a_server_that_hangs_ends_soon_after_its_time() {
    let server = Server::start();
    let response = Duration::from_secs(1);
    let builder = LockClient::builder().response_timeout(response);
    let client = builder.connect(url(&server)).await.unwrap();
    let _guard = take(&client, "lock").await;
    let wait = Duration::from_secs(3);
    let mut judge = Judge::new("from a wait's begin to its end", wait + 2 * response);
    while judge.wants_more() {
        let waiting = tokio::spawn(client.lock("lock").acquire_within(wait));
        let begun = Instant::now();
        waiters(&server, 1).await;
        server.stop().unwrap();
        let ended = soon("its end", waiting).await.unwrap();
        judge.judge(begun, Instant::now());
        assert!(
            matches!(ended, Ok(None) | Err(Error::Unavailable { .. })),
            "{ended:?}"
        );
        server.go_on().unwrap();
        soon("nothing is left", client.flush()).await;
        waiters(&server, 0).await;
    }
}

#[tokio::test]
async fn a_wait_that_is_over_before_anybody_was_asked_is_not_told_as_refused() {
    let mut server = Server::start();
    let client = connect(&server).await;
    server.crash();
    let taken = client.lock("lock").acquire_within(Duration::from_nanos(1));
    let error = taken.await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_hold_that_a_restart_forgot_is_told_as_lost_soon() {
    let mut judge = Judge::new("from a rival's grant until the loss is told", LOOKED_AFTER);
    while judge.wants_more() {
        let mut server = Server::start();
        let client = connect_with_leases(&server, LEASE).await;
        let guard = take(&client, "lock").await;
        server.restart().unwrap();
        let rival = take(&connect(&server).await, "lock").await;
        let begun = Instant::now();
        let why = tokio::time::timeout(LEASE, guard.lost()).await;
        judge.judge(begun, Instant::now());
        assert_eq!(why.unwrap(), Lost::Refused);
        rival.release().await.unwrap();
    }
}

/// The same address leads to another server from now on, as after a fail-over.
#[tokio::test]
async fn a_renewal_and_a_release_that_reach_a_demoted_primary_are_sent_to_the_new_one() {
    let primary = Server::start();
    let replica = primary.replica(true);
    let (way, client) = support::behind_a_proxy(&primary).await;
    let guard = take(&client, "lock").await;
    primary.assert_same_data(&replica);
    way.lead_to(replica.addr());
    assert_eq!(replica.client().call("REPLICAOF NO ONE"), Okay);
    let follow = format!("REPLICAOF 127.0.0.1 {}", replica.port);
    assert_eq!(primary.client().call(&follow), Okay);
    soon("a renewal at the new one", support::renewed(&guard)).await;
    let waiting = queue(&replica, &client.lock("lock"), 0).await;
    guard.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
    assert_nothing_left(&replica, &client).await;
}
