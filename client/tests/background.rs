//! Failures of which no caller is told are heard by who asked to hear them.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::{Fate, Proxy, Server};

use support::{assert_nothing_left, eventually, granted, take, way};

#[tokio::test]
async fn failures_in_the_background_are_heard() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&heard);
    let builder = LockClient::builder()
        .default_lease(Duration::from_secs(3))
        .on_failure(move |error| noting.lock().unwrap().push(error.code().to_owned()));
    let client = builder.connect(way(&proxy)).await.unwrap();
    let is_heard = |code: &str| {
        let was_heard = heard.lock().unwrap().iter().any(|it| it == code);
        was_heard && !std::mem::take(&mut *heard.lock().unwrap()).is_empty()
    };

    // What callers are told of is not for others.
    let refuse = |command, error| proxy.set(Fate::Refuses(command, error));
    refuse("LOCK.ACQUIRE", "ERR as it is meant to");
    client.lock("lock").acquire().await.unwrap_err();
    assert_eq!(heard.lock().unwrap().len(), 0);
    // The passing errors of a wait, a renewal, and the release of a dropped guard.
    refuse("LOCK.ACQUIRE", "NOREPLICAS for now");
    let waiting = tokio::spawn(client.lock("lock").acquire());
    eventually("a wait", || is_heard("NOREPLICAS")).await;
    proxy.set(Fate::Passes);
    let guard = granted(waiting).await;
    refuse("LOCK.RENEW", "MISCONF for now");
    eventually("a renewal", || is_heard("MISCONF")).await;
    refuse("LOCK.RELEASE", "NOPERM for now");
    drop(guard);
    eventually("a release", || is_heard("NOPERM")).await;
    proxy.set(Fate::Passes);
    assert_nothing_left(&server, &client).await;
    drop(take(&client, "lock").await);
}
