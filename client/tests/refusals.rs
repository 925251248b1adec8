//! Servers that refuse what they are asked for a while.

mod support;

use std::path::PathBuf;
use std::time::Duration;

use redis::Value;
use redis_lock_client::{Error, LockClient, LockGuard};
use redis_lock_testing::{Client, Fate, Proxy, TestServer, status};

use support::{connect, eventually, soon, take};

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

/// Checks that nothing was left to do once all is done in the background.
async fn assert_given_back(server: &TestServer, client: &LockClient) {
    soon("all is done", client.flush()).await;
    assert_eq!(server.client().int("EXISTS lock"), 0, "it was never freed");
}

#[tokio::test]
async fn whatever_a_release_is_answered_it_is_sent_again() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    let mut kept = Vec::new();
    for refusal in REFUSALS {
        for dropped in [false, true] {
            let guard = take(&client, "lock").await;
            let before = proxy.refused();
            proxy.set(Fate::Refuses("LOCK.RELEASE", refusal));
            match dropped {
                true => drop(guard),
                false => drop(release_in_vain(guard).await),
            }
            eventually("it is refused", || proxy.refused() > before).await;
            proxy.set(Fate::Passes);
            soon("all is done", client.flush()).await;
            if server.client().int("DEL lock") > 0 {
                kept.push((refusal, dropped));
            }
        }
    }
    assert!(kept.is_empty(), "never freed after {kept:?}");
}

/// Whoever runs a script for this many milliseconds keeps the server busy.
const SOON_BUSY: [&str; 2] = ["--busy-reply-threshold", "50"];

/// Has the server run a script until that is killed.
async fn keep_busy(server: &TestServer) -> (Client, Client) {
    let (mut script, mut observer) = (server.client(), server.client());
    script.send_words(&[b"EVAL", b"while true do end", b"0"]);
    eventually("it is busy", || observer.call("PING") != status("PONG")).await;
    (script, observer)
}

fn kill_script(mut script: Client, mut observer: Client) {
    assert_eq!(observer.call("SCRIPT KILL"), status("OK"));
    assert!(script.reply_error().contains("killed"));
}

#[tokio::test]
async fn a_release_at_a_server_that_runs_a_long_script_is_made_good() {
    let server = TestServer::start_with(&SOON_BUSY);
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let (script, observer) = keep_busy(&server).await;
    let error = release_in_vain(guard).await;
    assert_eq!(error.code(), "BUSY", "{error:?}");
    kill_script(script, observer);
    assert_given_back(&server, &client).await;
}

#[tokio::test]
async fn a_wait_at_a_server_that_runs_a_long_script_goes_on() {
    let server = TestServer::start_with(&SOON_BUSY);
    let client = connect(&server).await;
    let (script, observer) = keep_busy(&server).await;
    let waiting = tokio::spawn(client.lock("lock").acquire_within(LONG));
    // Who does not wait is told.
    let error = client.lock("lock").try_acquire().await.unwrap_err();
    assert_eq!(error.code(), "BUSY", "{error:?}");
    kill_script(script, observer);
    let granted = soon("the grant", waiting).await.unwrap();
    let granted = granted.unwrap_or_else(|error| panic!("{error}"));
    assert!(granted.is_some());
}

#[tokio::test]
async fn a_wait_goes_on_at_a_server_that_refuses_for_a_while() {
    let server = TestServer::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = LockClient::connect(format!("redis://{}", proxy.addr()));
    let client = client.await.unwrap();
    for refusal in ["BUSY it runs a script", "LOADING its data"] {
        let before = proxy.refused();
        proxy.set(Fate::Refuses("LOCK.ACQUIRE", refusal));
        let waiting = tokio::spawn(client.lock("lock").acquire_within(LONG));
        eventually("it asks again", || {
            proxy.refused() > before + 1 || waiting.is_finished()
        })
        .await;
        proxy.set(Fate::Passes);
        let granted = soon("the grant", waiting).await.unwrap();
        let guard = granted.unwrap_or_else(|error| panic!("{error}")).unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_right_to_release_that_comes_back_is_used() {
    let server = TestServer::start();
    let mut admin = server.client();
    admin.call("ACL SETUSER locks on >secret ~* &* +@all");
    let client = LockClient::connect(format!("redis://locks:secret@{}", server.addr()));
    let client = client.await.unwrap();
    let guard = take(&client, "lock").await;
    admin.call("ACL SETUSER locks -lock.release");
    let error = release_in_vain(guard).await;
    assert_eq!(error.code(), "NOPERM", "{error:?}");
    admin.call("ACL SETUSER locks +lock.release");
    assert_given_back(&server, &client).await;
}

#[tokio::test]
async fn a_password_that_is_taken_back_does_not_keep_the_lock() {
    let server = TestServer::start();
    let mut admin = server.client();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    admin.call("CONFIG SET requirepass secret");
    admin.call("CLIENT KILL TYPE normal");
    drop(release_in_vain(guard).await);
    admin.words(&[b"CONFIG", b"SET", b"requirepass", b""]);
    assert_given_back(&server, &client).await;
}

/// Has the server save its data. Returns whether it could.
async fn save(admin: &mut Client) -> bool {
    eventually("it begins to save", || {
        !matches!(admin.call("BGSAVE"), Value::ServerError(_))
    })
    .await;
    eventually("it has saved", || admin.info("rdb_bgsave_in_progress") == 0).await;
    admin
        .bulk("INFO persistence")
        .contains("rdb_last_bgsave_status:ok")
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_while_does_not_keep_the_lock() {
    let server = TestServer::start();
    let mut admin = server.client();
    let client = connect(&server).await;
    let guard = take(&client, "lock").await;
    let Value::Array(dir) = admin.call("CONFIG GET dir") else {
        panic!("it has no folder");
    };
    let Value::BulkString(dir) = &dir[1] else {
        panic!("{dir:?} is no folder");
    };
    // It can't put its data where a folder of this name is.
    let in_the_way = PathBuf::from(str::from_utf8(dir).unwrap()).join("dump.rdb");
    std::fs::create_dir(&in_the_way).unwrap();
    admin.words(&[b"CONFIG", b"SET", b"save", b"3600 1000000"]);
    assert!(!save(&mut admin).await);
    let error = release_in_vain(guard).await;
    assert_eq!(error.code(), "MISCONF", "{error:?}");
    assert_eq!(admin.call("TYPE lock"), status("hash"));
    std::fs::remove_dir(&in_the_way).unwrap();
    assert!(save(&mut admin).await);
    assert_given_back(&server, &client).await;
}
