//! Places in the server's queue: messages that are lost, doubled or false, and
//! connections that break.

mod support;

use std::time::{Duration, Instant};

use redis_lock_testing::{Client, Fate, Judge};

use support::{
    assert_nothing_left, calls, eventually, give_back, granted, queue, soon, start,
    start_behind_a_proxy, take, take_away,
};

/// A pause is longer.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How many wait for one lock.
const MANY: usize = 100;

/// The channels to which anybody is subscribed.
fn channels(observer: &mut Client) -> Vec<String> {
    redis::from_redis_value(observer.call("PUBSUB CHANNELS")).unwrap()
}

/// A message as the server writes it.
fn message(key: &[u8], owner: &[u8], result: &str, lease: &str) -> Vec<u8> {
    let mut message = Vec::new();
    for text in [b"0", key, owner, result.as_bytes(), lease.as_bytes()] {
        message.extend(format!("{}:", text.len()).as_bytes());
        message.extend(text);
        message.push(b',');
    }
    message
}

#[tokio::test]
async fn a_grant_is_heard_in_the_pause_before_it_is_asked_again() {
    let (server, proxy, client) = start_behind_a_proxy().await;
    let mut stranger = server.client();
    let mut judge = Judge::new("from a release to the next holder", AT_ONCE);
    while judge.wants_more() {
        take_away(&mut stranger, "lock");
        let waiting = queue(&server, &client.lock("lock"), 0).await;
        let waiting = tokio::spawn(async move { (granted(waiting).await, Instant::now()) });
        let refused = proxy.affected();
        proxy.set(Fate::Refuses("LOCK.ACQUIRE", "NOREPLICAS for now"));
        stranger.int("CLIENT KILL TYPE pubsub");
        // Pauses are longest then.
        eventually("it has asked often", || proxy.affected() > refused + 6).await;
        proxy.set(Fate::Passes);
        let begun = Instant::now();
        give_back(&mut stranger, "lock");
        let (granted, at) = soon("its turn", waiting).await.unwrap();
        judge.judge(begun, at);
        granted.release().await.unwrap();
    }
}

#[tokio::test]
async fn order_is_kept_when_the_connection_that_subscribes_is_killed() {
    let (server, client) = start().await;
    let mut stranger = server.client();
    take_away(&mut stranger, "lock");
    let (turns, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for nth in 0..MANY {
        let turns = turns.clone();
        let waiting = queue(&server, &client.lock("lock"), nth as i64).await;
        tasks.push(tokio::spawn(async move {
            let guard = waiting.await.unwrap().unwrap();
            turns.send(nth).unwrap();
            guard.release().await.unwrap();
        }));
    }
    let asked = calls(&mut stranger, "lock.acquire");
    assert_eq!(stranger.int("CLIENT KILL TYPE pubsub"), 1);
    eventually("all have asked again", || {
        calls(&mut stranger, "lock.acquire") >= asked + MANY as u64
    })
    .await;
    assert_eq!(server.info("lock_waiters"), MANY as i64);
    give_back(&mut stranger, "lock");
    for task in tasks {
        soon("its turn", task).await.unwrap();
    }
    for nth in 0..MANY {
        assert_eq!(order.recv().await, Some(nth));
    }
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn a_message_that_is_not_true_gives_nobody_the_lock() {
    let (server, client) = start().await;
    let mut stranger = server.client();
    take_away(&mut stranger, "lock");
    let token: u64 = stranger.bulk("HGET lock @fence").parse().unwrap();
    let job = client.job();
    // A first wait may begin to work at a message; so it is the second one that checks it.
    give_back(&mut stranger, "lock");
    drop(job.lock("lock").acquire().await.unwrap());
    client.flush().await;
    take_away(&mut stranger, "lock");
    let waiting = queue(&server, &job.lock("lock"), 0).await;
    let channel = channels(&mut stranger).pop().unwrap();
    let results = [token, token + 1_000_000_000, 0].map(|token| token.to_string());
    for result in &results {
        let asked = calls(&mut stranger, "lock.acquire");
        let message = message(b"lock", job.owner(), result, "2000");
        stranger.words(&[b"PUBLISH", channel.as_bytes(), &message]);
        eventually("it asks again", || {
            calls(&mut stranger, "lock.acquire") > asked
        })
        .await;
    }
    for nonsense in [&b"nonsense"[..], b"1:0,4:lock,", b"", b"9999999999:0,"] {
        stranger.words(&[b"PUBLISH", channel.as_bytes(), nonsense]);
    }
    // Nobody waits by this name, or for this lock.
    for (key, owner) in [(&b"other"[..], job.owner()), (b"lock", b"nobody")] {
        let message = message(key, owner, &results[1], "2000");
        stranger.words(&[b"PUBLISH", channel.as_bytes(), &message]);
    }
    take(&client, "other").await.release().await.unwrap();
    assert!(!waiting.is_finished());
    assert_eq!(server.info("lock_waiters"), 1);
    give_back(&mut stranger, "lock");
    granted(waiting).await.release().await.unwrap();
    assert_nothing_left(&server, &client).await;
}

#[tokio::test]
async fn what_is_refused_later_is_told() {
    let (server, client) = start().await;
    // No event tells of a key that is overwritten.
    let look_often = "CONFIG SET lock.recheck-interval 100";
    server.client().call(look_often);
    for (command, code) in [
        ("SET lock text", "WRONGTYPE"),
        ("HSET lock b c", "NOTALOCK"),
    ] {
        let guard = take(&client, "lock").await;
        let waiting = queue(&server, &client.lock("lock"), 0).await;
        server.client().call(command);
        let error = soon("the error", waiting).await.unwrap().unwrap_err();
        assert_eq!(error.code(), code, "{error:?}");
        drop(guard);
        server.client().call("DEL lock");
        client.flush().await;
    }
}
