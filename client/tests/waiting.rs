//! Whatever happens to somebody who waits, the wait goes on, and its grant is one hold.

mod support;

use std::time::Duration;

use redis_lock_client::{Lock, LockClient};
use redis_lock_testing::{Client, Fate, Proxy, Server, text};

use support::{
    assert_nothing_left, eventually, give_back, queue, take_away, url_as, waiters, within,
};

const LEASE: Duration = Duration::from_secs(60);

/// A reply that takes longer counts as lost. Those that are only delayed take less.
const LATE_REPLY: Duration = Duration::from_millis(500);

/// A connection that has fallen silent is found to be after some seconds.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// Nothing.
    Waits,
    /// Connections of this kind are closed by the server.
    Killed(&'static str),
    /// A blocked connection is unblocked so.
    Unblocked(&'static str),
    /// This becomes of what passes by, until the lock has been given back.
    Fate(Fate),
    /// All connections fall silent, and new ones do not.
    Silent,
    /// All connections end, and there are no new ones for a while.
    Down,
}

use Event::{Down, Killed, Silent, Unblocked, Waits};

/// What happens to who has a place. Those of the first line leave a session alone.
const OF_PLACES: [&[Event]; 2] = [
    &[
        Waits,
        Killed("pubsub"),
        Event::Fate(Fate::Messages(0)),
        Event::Fate(Fate::Messages(2)),
        Event::Fate(Fate::Delayed(Duration::from_millis(50))),
    ],
    &[
        Killed("normal"),
        Event::Fate(Fate::RepliesLost(100)),
        Event::Fate(Fate::RepliesSwallowed(100)),
        Event::Fate(Fate::CommandsHeld),
        Silent,
        Down,
    ],
];

/// What happens to who blocks a connection.
const OF_BLOCKED: [Event; 7] = [
    Waits,
    Killed("normal"),
    Unblocked("ERROR"),
    Unblocked("TIMEOUT"),
    Event::Fate(Fate::Delayed(Duration::from_millis(50))),
    Event::Fate(Fate::RepliesLost(100)),
    Down,
];

struct Scene {
    server: Server,
    proxy: Proxy,
    client: LockClient,
    stranger: Client,
}

impl Scene {
    /// A client of a user who may do all but what these rules take.
    async fn new(rules: &str, response_timeout: Duration) -> Self {
        let server = Server::start();
        let proxy = Proxy::to(server.addr()).unwrap();
        url_as(&server, "user", rules);
        let url = format!("redis://user:secret@{}", proxy.addr());
        let builder = LockClient::builder().response_timeout(response_timeout);
        Self {
            client: builder.connect(url).await.unwrap(),
            stranger: server.client(),
            proxy,
            server,
        }
    }

    /// The id of the one connection that is blocked.
    fn blocked_client(&mut self) -> Option<String> {
        let clients = self.stranger.bulk("CLIENT LIST");
        let mut clients = clients.lines();
        let blocked = clients.find(|line| line.contains("flags=b"))?;
        Some(blocked.strip_prefix("id=")?.split(' ').next()?.to_string())
    }

    fn asked(&mut self) -> u64 {
        support::calls(&mut self.stranger, "lock.acquire")
    }

    async fn goes_on(&mut self, lock: &Lock, event: Event) {
        take_away(&mut self.stranger, "lock");
        let before = self.stranger.bulk("HGET lock @fence");
        let waiting = queue(&self.server, lock, 0).await;
        let (asked, lost) = (self.asked(), self.proxy.affected());
        match event {
            Waits => {}
            Killed(kind) => {
                self.stranger.int(&format!("CLIENT KILL TYPE {kind}"));
            }
            Unblocked(how) => {
                let blocked = self.blocked_client().unwrap();
                let unblock = format!("CLIENT UNBLOCK {blocked} {how}");
                assert_eq!(self.stranger.int(&unblock), 1);
                eventually("it asks again", || self.asked() > asked).await;
                waiters(&self.server, 1).await;
            }
            Event::Fate(fate) => self.proxy.set(fate),
            Silent => self.proxy.swallow_on(|| true),
            Down => {
                self.proxy.set(Fate::Down);
                for kind in ["normal", "pubsub"] {
                    self.stranger.int(&format!("CLIENT KILL TYPE {kind}"));
                }
            }
        }
        give_back(&mut self.stranger, "lock");
        if let Event::Fate(Fate::Messages(0) | Fate::RepliesSwallowed(_)) = event {
            eventually("it is lost", || self.proxy.affected() > lost).await;
        }
        if event == Event::Fate(Fate::Messages(0)) {
            // Who hears nothing asks again after a minute. It counts from when it read that it
            // waits, which may be after the first of these minutes.
            for _ in 0..30 {
                tokio::time::pause();
                tokio::time::advance(Duration::from_secs(60)).await;
                tokio::time::resume();
                let heard = async {
                    while !waiting.is_finished() {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                };
                if tokio::time::timeout(Duration::from_secs(1), heard)
                    .await
                    .is_ok()
                {
                    break;
                }
            }
        }
        if event == Down {
            waiters(&self.server, 0).await;
        }
        self.proxy.set(Fate::Passes);
        let guard = within(PATIENCE, &format!("a grant after {event:?}"), waiting).await;
        let guard = guard.unwrap();
        let guard = guard.unwrap_or_else(|error| panic!("{event:?}: {error}"));
        assert!(guard.token() > before.parse().unwrap(), "{event:?}");
        within(PATIENCE, "a renewal", async {
            while guard.renew().await.is_err() {
                assert!(!guard.valid_for().is_zero(), "{event:?}");
            }
        })
        .await;
        assert!(guard.valid_for() > LEASE * 9 / 10, "{event:?}");
        let holds = [b"HGET", &b"lock"[..], guard.owner()];
        assert_eq!(self.stranger.words(&holds), text("1"), "{event:?}");
        guard.release().await.unwrap();
        self.proxy.close_swallowing();
        assert_nothing_left(&self.server, &self.client).await;
    }
}

#[tokio::test]
async fn of_places() {
    let mut scene = Scene::new("", LATE_REPLY).await;
    let job = scene.client.job();
    let locks = [
        job.lock("lock"),
        scene.client.lock("lock"),
        scene.client.lock("lock").shared(),
    ];
    let locks = locks.map(|lock| lock.lease(LEASE));
    for event in OF_PLACES.concat() {
        for lock in &locks {
            scene.goes_on(lock, event).await;
        }
    }
}

#[tokio::test]
async fn of_a_place_of_a_session() {
    // The clock is moved by minutes while a renewal may be under way, which must not end it.
    let mut scene = Scene::new("", Duration::from_secs(3600)).await;
    let session = scene.client.session().await.unwrap();
    for event in OF_PLACES[0] {
        let lock = session.lock("lock").lease(LEASE);
        scene.goes_on(&lock, *event).await;
    }
}

#[tokio::test]
async fn of_blocked_connections() {
    let mut scene = Scene::new("resetchannels", LATE_REPLY).await;
    let job = scene.client.job();
    for event in OF_BLOCKED {
        for lock in [scene.client.lock("lock"), job.lock("lock")] {
            scene.goes_on(&lock.lease(LEASE), event).await;
        }
    }
}
