//! A primary that dies after it said `NOREPLICAS`, or is demoted before it said anything,
//! and whose replica, which takes over, has the hold all the same.

mod support;

use redis::Value;
use redis_lock_client::{Error, LockClient, LockGuard};
use redis_lock_testing::scene::{await_replicas, configure};
use redis_lock_testing::{Client, Fate, Proxy, TestServer, int, status, text};
use tokio::task::JoinHandle;

use support::{eventually, soon};

#[tokio::test]
async fn a_renewal_and_a_release_that_reach_a_demoted_primary_are_sent_to_the_new_one() {
    let primary = TestServer::start();
    let replica = primary.replica(true);
    replica.await_link().unwrap();
    let way = Proxy::to(primary.addr()).unwrap();
    let url = format!("redis://{}", way.addr());
    let client = LockClient::connect(url).await.unwrap();
    let guard = client.lock("lock").acquire().await.unwrap();
    primary.assert_same_data(&replica);
    way.lead_to(replica.addr());
    let mut observer = primary.client();
    let swap = |observer: &mut Client, to: &TestServer| {
        assert_eq!(to.client().call("REPLICAOF NO ONE"), status("OK"));
        let follow = format!("REPLICAOF 127.0.0.1 {}", to.addr().port());
        assert_eq!(observer.call(&follow), status("OK"));
    };
    swap(&mut observer, &replica);
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(replica.client().int("EXISTS lock"), 0);
}

/// A primary and its replica. The client reaches whichever of them is the primary by
/// one address.
struct Scene {
    primary: TestServer,
    observer: Client,
    replica: TestServer,
    /// The replica's way to its primary.
    replication: Proxy,
    /// The client's way to the primary.
    way: Proxy,
    client: LockClient,
}

impl Scene {
    async fn new() -> Self {
        let primary = TestServer::start();
        let replication = Proxy::to(primary.addr()).unwrap();
        let port = replication.addr().port().to_string();
        let replica = TestServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        replica.await_link().unwrap();
        let mut observer = primary.client();
        await_replicas(&mut observer, 1);
        configure(&mut observer, "min-replicas", 1);
        configure(&mut observer, "replicas-timeout", 600_000);
        let way = Proxy::to(primary.addr()).unwrap();
        let url = format!("redis://{}", way.addr());
        Self {
            primary,
            observer,
            replica,
            replication,
            way,
            client: LockClient::connect(url).await.unwrap(),
        }
    }

    /// The token of alice's one hold, as the replica has it.
    fn on_replica(&self) -> Option<u64> {
        let mut client = self.replica.client();
        let holds = client.call("HGET lock alice");
        let Value::BulkString(token) = client.call("HGET lock @fence") else {
            return None;
        };
        let token = String::from_utf8(token).unwrap().parse().unwrap();
        (holds == text("1")).then_some(token)
    }

    /// Alice asks once, and is told nothing: the replica has the hold, and what it sends is
    /// lost. Returns what she will be told, and the token.
    async fn withhold(&mut self) -> (JoinHandle<Result<Option<LockGuard>, Error>>, u64) {
        self.replication.set(Fate::CommandsSwallowed);
        let lock = self.client.lock("lock").owner("alice");
        let taking = tokio::spawn(lock.try_acquire());
        (taking, self.lose_acknowledgement().await)
    }

    /// The replica receives alice's hold, its acknowledgement is lost, and from then on
    /// it receives nothing. Returns the token.
    async fn lose_acknowledgement(&mut self) -> u64 {
        eventually("the replica has it", || self.on_replica().is_some()).await;
        self.replication.set(Fate::Swallowed);
        eventually("it is withheld", || {
            self.observer.info("lock_replies_withheld") == 1
        })
        .await;
        self.on_replica().unwrap()
    }

    /// The primary says that the hold is not known to be safe.
    fn refuse(&mut self) {
        let clients = self.observer.bulk("CLIENT LIST");
        let is_blocked = |line: &&str| {
            let flags = line.split(' ').find_map(|it| it.strip_prefix("flags="));
            flags.is_some_and(|flags| flags.contains('b'))
        };
        let blocked = clients.lines().find(is_blocked);
        let id = blocked.and_then(|line| line.strip_prefix("id=")?.split(' ').next());
        let unblock = format!("CLIENT UNBLOCK {}", id.unwrap());
        assert_eq!(self.observer.call(&unblock), int(1));
    }

    /// The primary dies, and the replica takes over with what it has.
    #[track_caller]
    fn fail_over(&mut self, token: u64) {
        self.primary.crash();
        assert_eq!(self.on_replica(), Some(token));
        let promoted = self.replica.client().call("REPLICAOF NO ONE");
        assert_eq!(promoted, status("OK"));
        self.way.lead_to(self.replica.addr());
        self.way.set(Fate::Passes);
    }
}

#[tokio::test]
async fn what_no_replica_acknowledged_is_given_back_at_the_promoted_one() {
    let mut scene = Scene::new().await;
    let (taking, token) = scene.withhold().await;
    // The release does not reach the old primary.
    scene.way.set(Fate::CommandsSwallowed);
    scene.refuse();
    let error = soon("an answer", taking).await.unwrap().unwrap_err();
    assert_eq!(error.code(), "NOREPLICAS", "{error:?}");
    scene.fail_over(token);
    soon("it is given back", scene.client.flush()).await;
    assert_eq!(scene.replica.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn what_no_replica_acknowledged_is_confirmed_by_the_promoted_one() {
    let mut scene = Scene::new().await;
    scene.replication.set(Fate::CommandsSwallowed);
    let lock = scene.client.lock("lock").owner("alice");
    let waiting: JoinHandle<Result<LockGuard, Error>> = tokio::spawn(lock.acquire());
    let token = scene.lose_acknowledgement().await;
    scene.refuse();
    eventually("it asks again", || scene.way.seen("LOCK.ACQUIRE") > 1).await;
    scene.fail_over(token);
    let guard = soon("the grant", waiting).await.unwrap().unwrap();
    assert_eq!(guard.token(), token);
    assert_eq!(scene.on_replica(), Some(token));
    guard.release().await.unwrap();
    assert_eq!(scene.replica.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn what_a_demoted_primary_withheld_is_given_back_at_the_promoted_one() {
    let mut scene = Scene::new().await;
    let (taking, token) = scene.withhold().await;
    assert_eq!(scene.on_replica(), Some(token));
    let promoted = scene.replica.client().call("REPLICAOF NO ONE");
    assert_eq!(promoted, status("OK"));
    scene.way.lead_to(scene.replica.addr());
    let port = scene.replica.addr().port();
    let demoted = scene.observer.call(&format!("REPLICAOF 127.0.0.1 {port}"));
    assert_eq!(demoted, status("OK"));
    let error = soon("an answer", taking).await.unwrap().unwrap_err();
    assert_eq!(error.code(), "UNBLOCKED", "{error:?}");
    soon("it is given back", scene.client.flush()).await;
    assert_eq!(scene.replica.client().int("EXISTS lock"), 0);
}
