//! Work that begins before the claim: a grant that was waited for has a short first lease.

mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis_lock_client::{Error, Lock, LockClient, LockGuard, Lost};
use redis_lock_testing::{Client, Control, Fate, Proxy, Server};

use support::{
    IMPATIENT, assert_nothing_left, calls, connect_through, eventually, give_back, granted, queue,
    soon, take_away, waiters,
};

const LEASE: Duration = Duration::from_secs(60);

/// A client behind a proxy, and a stranger who holds the lock, at a server with this
/// first lease.
struct Scene {
    server: Server,
    proxy: Proxy,
    client: LockClient,
    stranger: Client,
}

impl Scene {
    async fn new(first_lease_ms: u64) -> Self {
        let server = Server::start();
        let proxy = Proxy::to(server.addr()).unwrap();
        let mut scene = Self {
            client: connect_through(&proxy, IMPATIENT).await,
            stranger: server.client(),
            proxy,
            server,
        };
        scene.set_first_lease(first_lease_ms);
        take_away(&mut scene.stranger, "lock");
        scene
    }

    fn set_first_lease(&mut self, ms: u64) {
        let set = format!("CONFIG SET lock.claim-timeout {ms}");
        self.stranger.call(&set);
    }

    fn lock(&self) -> Lock {
        self.client.lock("lock").lease(LEASE)
    }

    /// Hands the lock on to who waits, while this happens to what it sends.
    async fn hand_on(&mut self, lock: &Lock, fate: Fate) -> LockGuard {
        let waiting = queue(&self.server, lock, 0).await;
        self.proxy.set(fate);
        give_back(&mut self.stranger, "lock");
        granted(waiting).await
    }

    /// Waits until the one who waits has waited for so long.
    async fn have_waited(&self, at_least: Duration) {
        let waited = async {
            loop {
                // An impatient client may not hear on a busy machine. Then it asks again.
                let info = self.client.lock("lock").info().await;
                if info.is_ok_and(|info| info.waiters[0].waited > at_least) {
                    return;
                }
            }
        };
        soon("it has waited", waited).await;
    }
}

/// The one which the server has now.
fn stored_token(observer: &mut Client) -> u64 {
    observer.bulk("HGET lock @fence").parse().unwrap()
}

#[tokio::test]
async fn who_waited_for_less_than_the_first_lease_begins_before_the_claim_is_answered() {
    const FIRST: Duration = Duration::from_secs(20);
    for fate in [
        Fate::Refuses("LOCK.RENEW", "NOREPLICAS for now"),
        Fate::RepliesLost(100),
        Fate::RepliesSwallowed(100),
        Fate::CommandsHeld,
        Fate::Delayed(Duration::from_millis(30)),
    ] {
        let mut scene = Scene::new(20_000).await;
        let lock = scene.lock();
        let guard = scene.hand_on(&lock, fate).await;
        assert_eq!(guard.token(), stored_token(&mut scene.stranger));
        if fate != Fate::Delayed(Duration::from_millis(30)) {
            assert!(guard.valid_for() < FIRST, "{fate:?}");
        }
        scene.proxy.set(Fate::Passes);
        // The claim is sent again, and makes the lease a full one.
        eventually("it is claimed", || guard.valid_for() > LEASE * 9 / 10).await;
        let left = scene.stranger.int("PTTL lock").unsigned_abs();
        assert!(Duration::from_millis(left) > guard.valid_for(), "{fate:?}");
        guard.release().await.unwrap();
        assert_nothing_left(&scene.server, &scene.client).await;
    }
}

#[tokio::test]
async fn a_claim_that_never_gets_through_is_a_loss_in_time() {
    let control = Control::start();
    for fate in [
        Fate::Refuses("LOCK.RENEW", "NOREPLICAS for now"),
        Fate::CommandsSwallowed,
    ] {
        let mut scene = Scene::new(1500).await;
        let lock = scene.lock();
        let guard = scene.hand_on(&lock, fate).await;
        let ends_at = scene.stranger.int("PEXPIRETIME lock");
        let begun = Instant::now();
        assert_eq!(soon("the loss", guard.lost()).await, Lost::Expired);
        let told_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let early = ends_at - i64::try_from(told_at.as_millis()).unwrap();
        let stalled = control.stalled(begun, Instant::now());
        assert!(
            early >= 0 || stalled.as_millis() > 5,
            "{early} ms: {fate:?}"
        );
        scene.proxy.set(Fate::Passes);
        let released = guard.release().await;
        assert!(matches!(released, Err(Error::Lost(Lost::Expired))));
        soon("all is done", scene.client.flush()).await;
        support::free(&scene.server, "lock").await;
    }
}

#[tokio::test]
async fn who_waited_for_longer_than_the_first_lease_claims_first() {
    let mut scene = Scene::new(400).await;
    let waiting = queue(&scene.server, &scene.lock(), 0).await;
    scene.have_waited(Duration::from_millis(500)).await;
    let refused = scene.proxy.affected();
    scene
        .proxy
        .set(Fate::Refuses("LOCK.RENEW", "NOREPLICAS for now"));
    give_back(&mut scene.stranger, "lock");
    eventually("it is refused", || scene.proxy.affected() > refused).await;
    assert!(!waiting.is_finished());
    scene.proxy.set(Fate::Passes);
    granted(waiting).await.release().await.unwrap();
    assert_nothing_left(&scene.server, &scene.client).await;
}

/// The message is kept back on its way, or the process of who waits stands still.
#[tokio::test]
async fn who_hears_of_a_grant_after_its_first_lease_does_not_believe_it() {
    for stands_still in [false, true] {
        let mut scene = Scene::new(500).await;
        let waiting = queue(&scene.server, &scene.lock(), 0).await;
        if stands_still {
            // Nothing of the client runs while this thread is blocked.
            give_back(&mut scene.stranger, "lock");
            redis_lock_testing::eventually("the first lease is over", || {
                scene.stranger.int("EXISTS lock") == 0
            });
        } else {
            scene.proxy.set(Fate::KeptBack);
            give_back(&mut scene.stranger, "lock");
            support::free(&scene.server, "lock").await;
        }
        take_away(&mut scene.stranger, "lock");
        let token = stored_token(&mut scene.stranger);
        scene.proxy.set(Fate::Passes);
        waiters(&scene.server, 1).await;
        assert!(!waiting.is_finished(), "two hold it: {stands_still}");
        give_back(&mut scene.stranger, "lock");
        let guard = granted(waiting).await;
        assert!(guard.token() > token);
        guard.release().await.unwrap();
        assert_nothing_left(&scene.server, &scene.client).await;
    }
}

#[tokio::test]
async fn a_first_lease_of_a_millisecond_is_claimed_or_waited_for_again() {
    let mut scene = Scene::new(1).await;
    let mut waiting = Vec::new();
    for nth in 0..4 {
        waiting.push(queue(&scene.server, &scene.lock(), nth).await);
    }
    let turns = waiting.into_iter().map(|waiting| {
        let client = scene.client.clone();
        tokio::spawn(async move {
            let guard = waiting.await.unwrap().unwrap();
            if guard.renew().await.is_ok() {
                let holders = client.lock("lock").info().await.unwrap().holders;
                assert_eq!(holders.len(), 1);
                assert_eq!(holders[0].token, Some(guard.token()));
                guard.release().await.unwrap();
            }
        })
    });
    let turns: Vec<_> = turns.collect();
    scene.proxy.set(Fate::Delayed(Duration::from_millis(20)));
    let claims = calls(&mut scene.stranger, "lock.renew");
    give_back(&mut scene.stranger, "lock");
    eventually("all claims come too late", || {
        calls(&mut scene.stranger, "lock.renew") >= claims + 4
    })
    .await;
    scene.set_first_lease(2000);
    scene.proxy.set(Fate::Passes);
    for turn in turns {
        soon("its turn", turn).await.unwrap();
    }
    assert_nothing_left(&scene.server, &scene.client).await;
}
