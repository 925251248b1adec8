//! Servers that refuse what they are asked for a while.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient, LockGuard};
use redis_lock_testing::{Fate, Server};

use support::{assert_nothing_left, connect, eventually, soon, start_behind_a_proxy, take, url_as};

const LONG: Duration = Duration::from_secs(20);

/// What a server may answer that could do it a little later.
const REFUSALS: [&str; 9] = [
    "BUSY it runs a script",
    "ERR it says",
    "LOADING its data",
    "MISCONF it can not save",
    "NOAUTH it has a new password",
    "NOPERM it has a new rule",
    "NOREPLICAS it has lost them",
    "OOM it is full",
    "READONLY it is a replica",
];

/// Releases a hold that the server does not release now.
async fn release_in_vain(guard: LockGuard) -> Error {
    let released = soon("an answer", guard.release()).await;
    released.expect_err("the server refuses")
}

#[tokio::test]
async fn whatever_a_release_is_answered_it_is_sent_again() {
    let (server, proxy, client) = start_behind_a_proxy().await;
    let session = client.session().await.unwrap();
    let mut kept = Vec::new();
    for refusal in REFUSALS {
        for dropped in [false, true] {
            for lock in [client.lock("lock"), session.lock("lock")] {
                let guard = soon("a hold", lock.acquire()).await.unwrap();
                let before = proxy.affected();
                proxy.set(Fate::Refuses("LOCK.RELEASE", refusal));
                match dropped {
                    true => drop(guard),
                    false => drop(release_in_vain(guard).await),
                }
                eventually("it is refused", || proxy.affected() > before).await;
                proxy.set(Fate::Passes);
                soon("all is done", client.flush()).await;
                if server.client().int("DEL lock") > 0 {
                    kept.push((refusal, dropped));
                }
            }
        }
    }
    assert!(kept.is_empty(), "never freed after {kept:?}");
}

#[tokio::test]
async fn a_wait_goes_on_at_a_server_that_refuses_for_a_while() {
    let (_server, proxy, client) = start_behind_a_proxy().await;
    for (refusal, is_waited_for) in [
        ("BUSY it runs a script", true),
        ("LOADING its data", true),
        ("NOREPLICAS it has lost them", true),
        ("MISCONF it can not save", false),
        ("OOM it is full", false),
        ("CLUSTERDOWN it is alone", true),
        ("TRYAGAIN it moves", true),
        ("ERR it says", false),
        ("NOPERM it has a new rule", false),
        ("WRONGTYPE it says", false),
    ] {
        let before = proxy.affected();
        proxy.set(Fate::Refuses("LOCK.ACQUIRE", refusal));
        // Who does not wait is told.
        let error = client.lock("lock").try_acquire().await.unwrap_err();
        assert!(refusal.starts_with(error.code()), "{refusal}: {error:?}");
        assert_eq!(error.is_retryable(), is_waited_for, "{refusal}: {error:?}");
        let waiting = tokio::spawn(client.lock("lock").acquire_within(LONG));
        eventually("it asks again", || {
            proxy.affected() > before + 3 || waiting.is_finished()
        })
        .await;
        proxy.set(Fate::Passes);
        let waited = soon("its end", waiting).await.unwrap();
        assert_eq!(waited.is_ok(), is_waited_for, "{refusal}: {waited:?}");
        drop(waited);
        soon("all is given back", client.flush()).await;
    }
}

#[tokio::test]
async fn a_right_or_a_password_that_comes_back_is_used() {
    let server = Server::start();
    let mut admin = server.client();
    let client = LockClient::connect(url_as(&server, "locks", ""))
        .await
        .unwrap();
    let guard = take(&client, "lock").await;
    admin.call("ACL SETUSER locks -lock.release");
    let error = release_in_vain(guard).await;
    assert!(matches!(error, Error::NoPermission { .. }), "{error:?}");
    admin.call("ACL SETUSER locks +lock.release");
    assert_nothing_left(&server, &client).await;

    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    admin.call("CONFIG SET requirepass secret");
    admin.call("CLIENT KILL TYPE normal");
    admin.call("CLIENT KILL TYPE pubsub");
    drop(release_in_vain(guard).await);
    admin.words(&[b"CONFIG", b"SET", b"requirepass", b""]);
    assert_nothing_left(&server, &client).await;
}
