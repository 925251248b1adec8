//! A primary that dies under load, and sentinels that put a replica in its
//! place.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::{Client, Int, Nil, SOON, Sentinels, eventually, sentinel, text};

/// How long a fail-over may take, the sentinels' discovery of the death included.
const FAILOVER: Duration = Duration::from_secs(60);

const CLIENTS: usize = 6;

/// A connection to the primary of the moment.
struct Link {
    primary: SocketAddr,
    client: Client,
}

struct Grant {
    server: SocketAddr,
    lock: String,
    owner: String,
    token: i64,
}

struct World {
    sentinels: Vec<SocketAddr>,
    old: SocketAddr,
    /// Every grant, in the order in which its reply was read.
    grants: Mutex<Vec<Grant>>,
    stop: AtomicBool,
    /// How many holds each client had on the new primary.
    again: Vec<AtomicU64>,
}

impl World {
    /// Asks the sentinels for the primary until one answers that it is.
    fn connect(&self) -> Link {
        let deadline = Instant::now() + FAILOVER;
        while Instant::now() < deadline {
            for sentinel in &self.sentinels {
                if let Some(primary) = sentinel::primary(*sentinel)
                    && let Ok(mut client) = Client::open(primary)
                {
                    client.send("ROLE");
                    if let Some(Value::Array(role)) = client.try_reply()
                        && role.first() == Some(&text("master"))
                    {
                        return Link { primary, client };
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the sentinels know no primary");
    }

    /// Takes and returns locks until told to stop.
    fn work(&self, me: usize) {
        let mut link = self.connect();
        for round in 0.. {
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            if self.hold(&mut link, me, round).is_none() {
                link = self.connect();
            }
        }
    }

    /// None if this server is not the one to ask any more.
    fn hold(&self, link: &mut Link, me: usize, round: usize) -> Option<()> {
        let (lock, owner) = (format!("lock{}", round % 3), format!("owner{me}"));
        if self.acquire(link, me, &lock, "BLOCK 2000")?.is_some() {
            link.client.send("WAIT 1 1000");
            link.client.try_reply()?;
            // A hold whose release was lost with the old primary counts, too.
            link.client
                .send(&format!("LOCK.RELEASE {lock} {owner} ALL"));
            if let Value::ServerError(_) = link.client.try_reply()? {
                return None;
            }
        }
        Some(())
    }

    fn acquire(&self, link: &mut Link, me: usize, lock: &str, block: &str) -> Option<Option<i64>> {
        let owner = format!("owner{me}");
        let sent = Instant::now();
        link.client
            .send(&format!("LOCK.ACQUIRE {lock} {owner} LEASE 600000 {block}"));
        let reply = link.client.try_reply();
        assert!(sent.elapsed() < SOON, "{owner} hung on {lock}: {reply:?}");
        match reply? {
            Value::Int(token) => {
                self.grants.lock().unwrap().push(Grant {
                    server: link.primary,
                    lock: lock.to_string(),
                    owner,
                    token,
                });
                if link.primary != self.old {
                    self.again[me].fetch_add(1, Ordering::SeqCst);
                }
                Some(Some(token))
            }
            Value::Nil => Some(None),
            Value::ServerError(_) => None,
            other => panic!("{owner} on {lock}: {other:?}"),
        }
    }
}

/// Tokens of new holdings on the new primary outrank all those of the old one,
/// and each belongs to one holding. A lock whose release was lost with the old
/// primary has one holding from there, whose owner re-enters it.
fn check_tokens(grants: &[Grant], old: SocketAddr, fresh: i64) {
    let before = grants.iter().filter(|grant| grant.server == old);
    let newest_before = before.map(|grant| grant.token).max().unwrap();
    assert!(fresh > newest_before, "{fresh} after {newest_before}");
    let mut holding_of = HashMap::new();
    let mut carried_over = HashMap::new();
    for grant in grants {
        let holding = (&grant.lock, &grant.owner);
        let first = *holding_of.entry(grant.token).or_insert(holding);
        assert_eq!(first, holding, "two holdings have token {}", grant.token);
        if grant.server != old && grant.token <= newest_before {
            let first = *carried_over.entry(&grant.lock).or_insert(grant.token);
            assert_eq!(first, grant.token, "{} after {newest_before}", grant.lock);
        }
    }
}

/// Stops the clients when the test ends, however it does.
struct StopOnDrop<'w>(&'w AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn sentinels_promote_a_replica_under_load_and_every_client_gets_locks_again() {
    let mut group = Sentinels::start();
    let old = group.primary.addr();
    let world = World {
        sentinels: group.addrs().to_vec(),
        old,
        grants: Mutex::default(),
        stop: AtomicBool::new(false),
        again: (0..CLIENTS).map(|_| AtomicU64::new(0)).collect(),
    };
    // Somebody holds a lock for good, and others wait for it without end.
    let mut holder = group.primary.client();
    let fence = holder.int("LOCK.ACQUIRE lasting holder LEASE 600000");
    // Nor are these released. At least one replica has each.
    let kept: Vec<i64> = (0..12)
        .map(|n| holder.int(&format!("LOCK.ACQUIRE kept{n} owner LEASE 600000")))
        .collect();
    assert_eq!(holder.call("WAIT 2 5000"), Int(2));
    let mut waiters: Vec<Client> = (0..5).map(|_| group.primary.client()).collect();
    for (i, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!("LOCK.ACQUIRE lasting waiter{i} BLOCK 0"));
    }
    group.primary.await_info("blocked_clients", 5);

    let fresh = std::thread::scope(|scope| {
        let world = &world;
        let _stop = StopOnDrop(&world.stop);
        for me in 0..CLIENTS {
            scope.spawn(move || world.work(me));
        }
        eventually("all work", || world.grants.lock().unwrap().len() >= 60);
        let died = Instant::now();
        group.primary.crash();
        for waiter in &mut waiters {
            assert_eq!(waiter.try_reply(), None);
        }
        assert!(died.elapsed() < SOON, "a waiter of the dead server hung");
        let mut link = world.connect();
        eprintln!("a new primary after {:?}", died.elapsed());
        assert_ne!(link.primary, old);

        let client = &mut link.client;
        for (n, fence) in kept.iter().enumerate() {
            let rival = client.call(&format!("LOCK.ACQUIRE kept{n} rival"));
            assert_eq!(rival, Nil, "kept{n}");
            let owner = client.int(&format!("LOCK.ACQUIRE kept{n} owner HOLD 1"));
            assert_eq!(owner, *fence, "kept{n}");
        }
        let fresh = client.int("LOCK.ACQUIRE fresh holder");
        let again = client.int("LOCK.ACQUIRE lasting holder HOLD 1");
        assert_eq!(again, fence);
        let mut waiter = world.connect().client;
        waiter.send("LOCK.ACQUIRE lasting waiter0 BLOCK 0");
        assert_eq!(client.call("LOCK.RELEASE lasting holder"), Int(1));
        assert!(matches!(waiter.reply(), Value::Int(token) if token > fence));
        // Until the other replica follows the new primary, each WAIT takes its
        // full second, with a lock held.
        let again_by = Instant::now() + FAILOVER;
        let again = |count: &AtomicU64| count.load(Ordering::SeqCst) >= 3;
        while !world.again.iter().all(again) {
            assert!(Instant::now() < again_by, "{:?}", world.again);
            std::thread::sleep(Duration::from_millis(5));
        }
        fresh
    });

    check_tokens(&world.grants.into_inner().unwrap(), old, fresh);
    for replica in &group.replicas {
        replica.assert_sound();
    }
}
