//! Waits by users who may not subscribe, each of which blocks a connection.

mod support;

use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::Server;

use support::{
    assert_nothing_left, connect_blocking, eventually, granted, queue, subscribers, take, waiters,
};

#[tokio::test]
async fn who_may_not_subscribe_waits_by_connections() {
    let server = Server::start();
    let client = connect_blocking(&server, LockClient::builder()).await;
    let before = server.info("connected_clients");
    let held = take(&client, "lock").await;
    let (job, session) = (client.job(), client.session().await.unwrap());
    let mut waiting = Vec::new();
    for (nth, lock) in (0..).zip([
        client.lock("lock"),
        job.lock("lock"),
        session.lock("lock"),
        client.lock("lock").lease(Duration::from_secs(40)),
    ]) {
        waiting.push(queue(&server, &lock, nth).await);
    }
    let doomed = queue(&server, &client.lock("lock"), 4).await;
    assert_eq!(server.info("blocked_clients"), 5);
    let short = Duration::from_millis(50);
    let none = client.lock("lock").acquire_within(short).await.unwrap();
    assert!(none.is_none());
    doomed.abort();
    waiters(&server, 4).await;
    held.release().await.unwrap();
    for waiting in waiting {
        let guard = granted(waiting).await;
        assert!(guard.valid_for() > Duration::from_secs(20));
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    session.close().await;
    client.flush().await;
    eventually("their connections are closed", || {
        server.info("connected_clients") <= before + subscribers(&server)
    })
    .await;
    assert_nothing_left(&server, &client).await;
}
