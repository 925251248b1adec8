//! Replies that get lost, and commands that arrive late.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient};
use redis_lock_testing::{Fate, Proxy, Server};

use support::{
    IMPATIENT, SEEDS, assert_nothing_left, connect, connect_through, eventually, give_back, soon,
    start_behind_a_proxy, take_away, url_as,
};

const RESPONSE: Duration = Duration::from_secs(1);

/// What happens to replies, and how often it is tried.
const FATES: [(Fate, usize); 2] = [
    (Fate::RepliesLost(15), 100),
    (Fate::RepliesSwallowed(20), 20),
];

/// Takes and gives back a lock through a lossy proxy, in turn with somebody
/// who has a good connection.
async fn nothing_leaks(fate: Fate, rounds: usize, seed: u64) {
    let server = Server::start();
    let proxy = Proxy::seeded(server.addr(), seed).unwrap();
    let client = connect_through(&proxy, IMPATIENT).await;
    let rival = connect(&server).await;
    proxy.set(fate);
    let rivals = tokio::spawn(async move {
        for _ in 0..rounds {
            let guard = rival.lock("lock").acquire().await.unwrap();
            guard.release().await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let job = client.job();
    let mut last = 0;
    for round in 0.. {
        if round >= rounds && proxy.affected() > 3 {
            break;
        }
        let lock = match round % 2 {
            0 => client.lock("lock"),
            _ => job.lock("lock"),
        };
        let guard = soon("a grant", lock.acquire()).await.unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        match guard.release().await {
            // Whether the lock is free could not be told in time.
            Ok(()) | Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    rivals.await.unwrap();
    assert_nothing_left(&server, &client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_lost_never_leaks_a_hold() {
    for seed in SEEDS {
        for (fate, rounds) in FATES {
            nothing_leaks(fate, rounds, seed).await;
        }
    }
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_is_sent_again_and_told_as_done() {
    let (server, proxy, client) = start_behind_a_proxy().await;
    let job = client.job();
    for lock in [client.lock("lock"), job.lock("lock")] {
        let guard = lock.acquire().await.unwrap();
        let lost = proxy.affected();
        proxy.set(Fate::RepliesLost(100));
        let releasing = tokio::spawn(guard.release());
        eventually("its reply is lost", || proxy.affected() > lost).await;
        assert_eq!(server.client().int("EXISTS lock"), 0);
        // By now it is another's, and that is not taken away.
        let mut stranger = server.client();
        take_away(&mut stranger, "lock");
        proxy.set(Fate::Passes);
        soon("an answer", releasing).await.unwrap().unwrap();
        give_back(&mut stranger, "lock");
        assert_nothing_left(&server, &client).await;
    }
}

#[tokio::test]
async fn a_command_that_arrives_after_it_was_given_up_takes_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(server.addr()).unwrap();
    let client = connect_through(&proxy, RESPONSE).await;
    for lock in [client.lock("lock"), client.job().lock("lock")] {
        proxy.set(Fate::CommandsHeld);
        // It may be asked for again on another connection meanwhile.
        drop(soon("an answer", lock.try_acquire()).await);
        // On another connection, while the command still lies in the proxy.
        soon("it is given back", client.flush()).await;
        proxy.set(Fate::Passes);
        eventually("the old connection is gone", || {
            server.info("connected_clients") <= 3
        })
        .await;
        support::free(&server, "lock").await;
    }
}

/// Commands of before arrive late, also those of a user who may not close connections.
#[tokio::test]
async fn a_renewal_that_arrives_late_leaves_no_more_than_is_relied_upon() {
    let server = Server::start();
    for (user, right) in [("all", ""), ("no-kill", "-client|kill")] {
        let proxy = Proxy::to(server.addr()).unwrap();
        url_as(&server, user, right);
        let url = format!("redis://{user}:secret@{}", proxy.addr());
        let builder = LockClient::builder().response_timeout(RESPONSE);
        let client = builder.connect(url).await.unwrap();
        let job = client.job();
        let lock = job.lock(user).renew(false);
        let short = 10 * RESPONSE;
        let first = lock.clone().lease(short).acquire().await.unwrap();
        proxy.set(Fate::CommandsHeld);
        let error = first.renew().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        // On another connection, while the renewal still lies in the proxy.
        let longer = lock.lease(10 * short).acquire().await.unwrap();
        proxy.set(Fate::Passes);
        // Whether it comes now or was lost with its connection.
        eventually("the old connection is gone", || {
            let clients = server.client().bulk("CLIENT LIST");
            clients.matches(&format!("user={user}")).count() <= 2
        })
        .await;
        longer.renew().await.ok();
        let left = server.client().int(&format!("PTTL {user}")).unsigned_abs();
        let valid = longer.valid_for();
        assert!(valid <= Duration::from_millis(left), "{left} ms: {user}");
    }
}
