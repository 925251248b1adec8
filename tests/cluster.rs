//! Locks in a cluster whose slots move between its nodes.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{holders, transaction};
use redis_lock_testing::{
    Client, Cluster, LONG, MovingSlot, Play, eventually, int, nil, redis_cli, slot, status, tag,
    token,
};

/// A slot that is moved step by step.
struct Move(MovingSlot);

impl Deref for Move {
    type Target = MovingSlot;

    fn deref(&self) -> &MovingSlot {
        &self.0
    }
}

impl Move {
    fn prepare() -> Self {
        Self(MovingSlot::start())
    }

    /// With a lock that this client holds on node 0, and its token.
    fn held(lease: &str) -> (Self, Client, i64) {
        let moving = Self::prepare();
        let mut holder = moving.cluster.client(0);
        let fence = holder.int(&format!("LOCK.ACQUIRE {} holder {lease}", moving.key));
        (moving, holder, fence)
    }

    /// Clients that wait on node 0.
    fn waiters(&self, count: usize, options: &str) -> Vec<Client> {
        let before = self.cluster.nodes[0].info("blocked_clients");
        (0..count)
            .map(|i| {
                let mut waiter = self.cluster.client(0);
                waiter.send(&format!(
                    "LOCK.ACQUIRE {} waiter{i} {options} BLOCK 0",
                    self.key
                ));
                self.cluster.nodes[0].await_blocked(before + i64::try_from(i).unwrap() + 1);
                waiter
            })
            .collect()
    }

    fn assert_moved(&self, waiters: &mut [Client]) {
        for waiter in waiters {
            assert_eq!(waiter.reply_error(), self.moved());
        }
        self.cluster.nodes[0].await_blocked(0);
    }

    /// Has the holder's lease end soon, and waits until it has.
    fn end_lease(&self, holder: &mut Client) {
        let renewed = holder.call(&format!("LOCK.RENEW {} holder LEASE 100", self.key));
        assert_eq!(renewed, int(1));
        eventually("the lease is over", || self.keys_on(0) == 0);
    }

    /// This many keys are on the node that the slot leaves, and on the one that it comes to.
    #[track_caller]
    fn assert_keys(&self, counts: [i64; 2]) {
        assert_eq!([self.keys_on(0), self.keys_on(1)], counts);
    }
}

#[test]
fn waiters_in_a_slot_that_moves_are_redirected_and_the_lock_is_held_on_the_new_node() {
    let (moving, mut holder, fence) = Move::held(LONG);
    let key = &moving.key;
    holder.call(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
    let stored = holder.hash(key);
    let end = holder.int(&format!("PEXPIRETIME {key}"));
    let mut line = moving.waiters(3, LONG);

    moving.begin();
    moving.migrate(key);
    moving.assert_keys([0, 1]);
    // The key left node 0, which for a lock that does not move would mean that
    // it came free. The regular looks at it pass meanwhile.
    std::thread::sleep(Duration::from_millis(1200));
    moving.assert_keys([0, 1]);
    moving.cluster.nodes[0].await_blocked(3);
    assert!(
        holder
            .error(&format!("LOCK.RELEASE {key} holder"))
            .starts_with("ASK ")
    );
    moving.finish();
    moving.assert_moved(&mut line);
    moving.assert_keys([0, 1]);

    let mut holder = moving.cluster.client(1);
    assert_eq!(holder.hash(key), stored);
    // MIGRATE sends how long the key has to live, not until when.
    let late = holder.int(&format!("PEXPIRETIME {key}")) - end;
    assert!((0..5000).contains(&late), "{late} ms later");
    assert_eq!(holder.call(&format!("LOCK.ACQUIRE {key} other")), nil());
    assert_eq!(
        holder.call(&format!("LOCK.ACQUIRE {key} holder {LONG} HOLD 2")),
        int(fence)
    );
    let mut waiter = moving.cluster.client(1);
    waiter.send(&format!("LOCK.ACQUIRE {key} waiter0 {LONG} BLOCK 0"));
    moving.cluster.nodes[1].await_blocked(1);
    assert_eq!(
        holder.call(&format!("LOCK.RELEASE {key} holder ALL")),
        int(1)
    );
    assert!(token(&waiter.reply()) > fence);
    moving.cluster.assert_sound();
}

#[test]
fn a_lease_that_ends_after_the_slot_moved_is_handed_on_by_the_new_node_alone() {
    let (moving, _, fence) = Move::held("LEASE 3000");
    let key = &moving.key;
    let mut line = moving.waiters(2, LONG);
    moving.begin();
    moving.migrate(key);
    moving.finish();
    moving.assert_moved(&mut line);
    let mut waiter = moving.cluster.client(1);
    waiter.send(&format!("LOCK.ACQUIRE {key} waiter0 {LONG} BLOCK 0"));
    assert!(token(&waiter.reply()) > fence);
    moving.assert_keys([0, 1]);
    moving.cluster.assert_sound();
}

#[test]
fn a_lease_that_ends_while_the_slot_moves_is_handed_on_by_nobody_until_it_has_moved() {
    let (moving, mut holder, fence) = Move::held(LONG);
    let key = &moving.key;
    let mut line = moving.waiters(2, LONG);
    moving.begin();
    moving.end_lease(&mut holder);
    std::thread::sleep(Duration::from_millis(1200));
    moving.assert_keys([0, 0]);
    moving.cluster.nodes[0].await_blocked(2);
    // Whoever follows the redirection has it on the new node at once.
    let mut other = moving.cluster.client(1);
    other.call("ASKING");
    assert!(other.int(&format!("LOCK.ACQUIRE {key} other {LONG}")) > fence);
    moving.finish();
    moving.assert_moved(&mut line);
    moving.assert_keys([0, 1]);
    moving.cluster.assert_sound();
}

#[test]
fn a_move_that_is_given_up_serves_the_waiters_where_they_are() {
    let (moving, mut holder, fence) = Move::held(LONG);
    let mut line = moving.waiters(1, LONG);
    moving.begin();
    moving.end_lease(&mut holder);
    moving.set(0, "STABLE");
    moving.set(1, "STABLE");
    assert!(token(&line[0].reply()) > fence);
    moving.assert_keys([1, 0]);
}

#[test]
fn a_waiter_on_the_node_that_takes_the_slot_over_stays_and_is_served() {
    let (moving, _, fence) = Move::held("LEASE 3000");
    let key = &moving.key;
    moving.begin();
    moving.migrate(key);
    let mut waiter = moving.cluster.client(1);
    waiter.call("ASKING");
    waiter.send(&format!("LOCK.ACQUIRE {key} waiter {LONG} BLOCK 0"));
    moving.cluster.nodes[1].await_blocked(1);
    moving.finish();
    assert!(token(&waiter.reply()) > fence);
    moving.assert_keys([0, 1]);
}

#[test]
fn a_release_while_the_slot_moves_hands_on_where_the_key_is() {
    let (moving, mut holder, fence) = Move::held(LONG);
    let key = &moving.key;
    let mut line = moving.waiters(2, LONG);
    moving.begin();
    assert_eq!(holder.call(&format!("LOCK.RELEASE {key} holder")), int(1));
    let granted = token(&line[0].reply());
    assert!(granted > fence);
    moving.migrate(key);
    moving.finish();
    moving.assert_moved(&mut line[1..]);
    moving.assert_keys([0, 1]);
    assert_eq!(
        moving
            .cluster
            .client(1)
            .call(&format!("LOCK.ACQUIRE {key} waiter0 {LONG}")),
        int(granted)
    );
}

#[test]
fn a_reshard_by_redis_cli_redirects_the_waiters() {
    let cluster = Cluster::start();
    let keys: Vec<String> = (0..5)
        .map(|n| format!("lock:{{{}}}", tag(|slot| slot < 30, n)))
        .collect();
    let mut holder = cluster.client(0);
    let mut held = Vec::new();
    let mut line = Vec::new();
    for key in &keys {
        let fence = holder.int(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
        held.push((key, fence, holder.hash(key)));
        let mut waiter = cluster.client(0);
        waiter.send(&format!("LOCK.ACQUIRE {key} waiter {LONG} BLOCK 0"));
        line.push(waiter);
    }
    cluster.nodes[0].await_blocked(5);
    cluster.reshard(0, 1, 30);
    for waiter in &mut line {
        assert!(waiter.reply_error().starts_with("MOVED "));
    }
    let mut there = cluster.client(1);
    for (key, fence, stored) in held {
        assert_eq!(there.hash(key), stored);
        assert_eq!(
            there.call(&format!("LOCK.ACQUIRE {key} holder {LONG}")),
            int(fence)
        );
        let error = holder.error(&format!("LOCK.ACQUIRE {key} holder"));
        assert!(error.starts_with("MOVED "), "{error}");
    }
    assert_eq!(holder.call("DBSIZE"), int(0));
    for node in &cluster.nodes {
        node.assert_sound();
    }
}

#[test]
fn scripts_transactions_and_keys_of_two_slots_answer_as_the_server_does() {
    let moving = Move::prepare();
    let key = &moving.key;
    let mut client = moving.cluster.client(0);
    let foreign = format!("lock:{{{}}}", tag(|slot| slot > 12000, 0));
    // Another slot of the same node is no better.
    let neighbour = format!("lock:{{{}}}", tag(|slot| slot < 5000, 1));
    let mut expect = |command: &str, begins: &str| {
        let reply = client.call(command);
        let shown = match &reply {
            Value::ServerError(error) => error.code().to_owned(),
            other => format!("{other:?}"),
        };
        assert!(shown.starts_with(begins), "{command}: {shown}");
    };
    for command in ["ACQUIRE", "RELEASE", "RENEW"] {
        expect(&format!("LOCK.{command} {foreign} holder"), "MOVED");
    }
    for (second, reply, executed) in [
        (
            format!("LOCK.RELEASE {key} holder"),
            "simple",
            "array([int(",
        ),
        (
            format!("LOCK.ACQUIRE {foreign} holder"),
            "MOVED",
            "EXECABORT",
        ),
        (
            format!("LOCK.ACQUIRE {neighbour} holder"),
            "simple",
            "CROSSSLOT",
        ),
    ] {
        expect("MULTI", "ok");
        expect(&format!("LOCK.ACQUIRE {key} holder BLOCK 0"), "simple");
        expect(&second, reply);
        expect("EXEC", executed);
    }
    let script = b"return redis.call('LOCK.ACQUIRE', ARGV[1], 'holder')";
    let reply = client.words(&[b"EVAL", script, b"1", key.as_bytes(), foreign.as_bytes()]);
    assert!(matches!(reply, Value::ServerError(_)), "{reply:?}");
    assert_eq!(client.call("DBSIZE"), int(0));
    moving.cluster.assert_sound();
}

#[test]
fn cluster_failover_unblocks_the_waiters_and_the_replica_hands_the_lock_on() {
    let moving = Move::prepare();
    let (key, cluster) = (&moving.key, &moving.cluster);
    let replica = Cluster::node();
    let (added, said) = redis_cli(&[
        "--cluster",
        "add-node",
        &replica.addr().to_string(),
        &cluster.nodes[0].addr().to_string(),
        "--cluster-slave",
        "--cluster-master-id",
        &cluster.ids[0],
    ])
    .unwrap();
    assert!(added, "no replica: {said}");
    replica.await_link().unwrap();
    let mut there = replica.client();
    let mut holder = cluster.client(0);
    let fence = holder.int(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
    let mut line = moving.waiters(3, LONG);
    eventually("the replica has the lock", || {
        there.call("DBSIZE") == int(1)
    });
    // Who does not know it as a replica of that node does not vote for it.
    let relation = format!("slave {}", cluster.ids[0]);
    eventually("the nodes know the replica", || {
        let knows = |node| cluster.client(node).bulk("CLUSTER NODES");
        (0..3).all(|node| knows(node).contains(&relation))
    });
    assert_eq!(there.call("CLUSTER FAILOVER"), status("OK"));
    for waiter in &mut line {
        let error = waiter.reply_error();
        // Valkey 9 tells them where the slot is served now.
        let is_told = error.starts_with("UNBLOCKED ") || error.starts_with("MOVED ");
        assert!(is_told, "{error}");
    }
    eventually("the replica serves the slot", || {
        matches!(there.call(&format!("LOCK.ACQUIRE {key} rival")), Value::Nil)
    });
    let mut waiter = replica.client();
    waiter.send_and_block(
        &mut there,
        &format!("LOCK.ACQUIRE {key} waiter0 {LONG} BLOCK 0"),
    );
    assert_eq!(there.call(&format!("LOCK.RELEASE {key} holder")), int(1));
    assert!(token(&waiter.reply()) > fence);
    eventually("the old node redirects", || {
        let reply = cluster.client(0).call(&format!("LOCK.RENEW {key} holder"));
        matches!(reply, Value::ServerError(error) if error.code() == "MOVED")
    });
    moving.cluster.assert_sound();
    replica.assert_sound();
}

/// Owners that hold a lock each, in slots of their own, and wait for the next
/// one's; the last one would close the ring, of two or of four. The one that gives way helps the others.
#[test]
fn a_deadlock_of_two_across_slots_is_refused() {
    for keys in [&["foo", "bar"][..], &["foo", "bar", "baz", "qux"]] {
        let slots: Vec<u16> = keys.iter().map(|key| slot(key)).collect();
        assert!(slots.windows(2).all(|pair| pair[0] != pair[1]));
        let mut play = Play::on(Cluster::of_one_node());
        for key in keys {
            play.run(&format!("o > LOCK.ACQUIRE {key} of_{key} LONG -> token"));
        }
        for pair in keys.windows(2) {
            let [own, next] = pair else { unreachable!() };
            play.run(&format!(
                "{own} > LOCK.ACQUIRE {next} of_{own} BLOCKED -> .."
            ));
        }
        let (first, last) = (keys[0], keys[keys.len() - 1]);
        let ask = format!("LOCK.ACQUIRE {first} of_{last} {LONG} BLOCK 5000");
        let error = play.client("o").error(&ask);
        assert!(error.starts_with("DEADLOCK "), "{error}");
        for key in keys {
            assert!(error.contains(&format!("'{key}'")), "{error}");
        }
        let before = keys[keys.len() - 2];
        play.run(&format!(
            "lock_releases_deleted = 0
            lock_releases_expired = 0
            lock_deadlocks_refused = 1
            blocked_clients = {}
            o > LOCK.RELEASE {last} of_{last} -> 1
            {before} < token",
            keys.len() - 1
        ));
        play.assert_sound();
    }
}

#[test]
fn the_list_in_a_transaction_of_another_slot_shows_who_holds() {
    assert_ne!(slot("foo"), slot("bar"));
    let mut play = Play::on(Cluster::of_one_node());
    play.run(
        "o > LOCK.ACQUIRE bar b LONG -> token
        a > LOCK.ACQUIRE bar a BLOCKED -> ..",
    );
    for before in ["GET foo", "SET foo 1", "LOCK.INFO foo"] {
        play.run("o > DEL foo");
        let replies = transaction(play.client("o"), &[before, "LOCK.LIST"]);
        let Value::Array(listed) = &replies[1] else {
            panic!("{replies:?}");
        };
        let [lock] = &listed[..] else {
            panic!("not one lock: {listed:?}");
        };
        assert_eq!(holders(lock), ["b"], "after {before}");
    }
    let script = "redis.call('GET', KEYS[1]) return redis.call('LOCK.LIST')[1][4]";
    play.run(&format!("o > EVAL \"{script}\" 1 foo -> ['b']"));
}

/// Follows the redirections by hand, as a cluster client does.
struct Follower {
    addrs: Vec<SocketAddr>,
    clients: Vec<Client>,
    at: usize,
}

impl Follower {
    fn new(cluster: &Cluster) -> Self {
        Self {
            addrs: cluster.nodes.iter().map(|node| node.addr()).collect(),
            clients: (0..3).map(|node| cluster.client(node)).collect(),
            at: 0,
        }
    }

    /// Sends until some node answers something that is no redirection.
    fn call(&mut self, command: &str, redirected: &AtomicU64) -> Value {
        let mut ask = false;
        let deadline = Instant::now() + 2 * redis_lock_testing::SOON;
        loop {
            assert!(Instant::now() < deadline, "{command} goes round in circles");
            if ask {
                self.clients[self.at].call("ASKING");
            }
            let reply = self.clients[self.at].call(command);
            let Value::ServerError(error) = &reply else {
                return reply;
            };
            let to = error
                .details()
                .and_then(|text| text.split_once(' '))
                .and_then(|(_, addr)| {
                    self.addrs
                        .iter()
                        .position(|known| known.to_string() == addr)
                });
            match (error.code(), to) {
                ("MOVED" | "ASK", Some(to)) => {
                    redirected.fetch_add(1, Ordering::Relaxed);
                    ask = error.code() == "ASK";
                    self.at = to;
                }
                ("TRYAGAIN" | "CLUSTERDOWN", _) => ask = false,
                _ => return reply,
            }
        }
    }
}

/// How many slots are moved, the lowest ones.
const SLOTS: usize = 12;

#[test]
fn exclusion_holds_while_slots_are_moved_back_and_forth_under_load() {
    let cluster = Cluster::start();
    check_exclusion(&cluster, |from, to| cluster.reshard(from, to, SLOTS));
}

/// By a command of Valkey 9 or one of Redis 8.4.
#[test]
fn exclusion_holds_while_slots_change_hands_at_once_under_load() {
    let cluster = Cluster::start();
    let (mut from, mut to) = (cluster.client(0), cluster.client(1));
    let is_unknown = |reply: &Value| format!("{reply:?}").contains("unknown subcommand");
    let of_valkey = !is_unknown(&from.call("CLUSTER MIGRATESLOTS x"));
    if !of_valkey && is_unknown(&to.call("CLUSTER MIGRATION x")) {
        println!("skipped: slots change hands at once on Valkey 9 and Redis 8.4");
        return;
    }
    check_exclusion(&cluster, |from, to| {
        let (last, id) = (SLOTS - 1, &cluster.ids[to]);
        let (node, command) = match of_valkey {
            true => (from, format!("MIGRATESLOTS SLOTSRANGE 0 {last} NODE {id}")),
            false => (to, format!("MIGRATION IMPORT 0 {last}")),
        };
        let begun = cluster.client(node).call(&format!("CLUSTER {command}"));
        assert!(!matches!(begun, Value::ServerError(_)), "{begun:?}");
        let here = format!("EXISTS {{{}}}", tag(|slot| slot == 0, 0));
        eventually("the slots have moved", || {
            cluster.client(to).call(&here) == int(0)
        });
        cluster.await_agreement();
    });
}

/// Nobody is in anybody's way while slots are moved from one node to the next, in a
/// circle.
fn check_exclusion(cluster: &Cluster, move_slots: impl Fn(usize, usize)) {
    const LOCKS: usize = 4;
    const THREADS: usize = 8;
    let inside: Vec<AtomicBool> = (0..LOCKS).map(|_| AtomicBool::new(false)).collect();
    let newest: Vec<AtomicI64> = (0..LOCKS).map(|_| AtomicI64::new(0)).collect();
    let (rounds, redirected, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|i| {
                let mut follower = Follower::new(cluster);
                let (inside, newest) = (&inside, &newest);
                let (rounds, redirected, stop) = (&rounds, &redirected, &stop);
                scope.spawn(move || {
                    for round in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let n = (i + round) % LOCKS;
                        let key = format!("lock:{{{}}}", tag(|slot| usize::from(slot) < SLOTS, n));
                        let acquire = format!("LOCK.ACQUIRE {key} owner{i} LEASE 60000 BLOCK 0");
                        let fence = token(&follower.call(&acquire, redirected));
                        assert!(!inside[n].swap(true, Ordering::SeqCst), "two hold {key}");
                        let before = newest[n].load(Ordering::SeqCst);
                        assert!(fence > before, "{key}: {fence} after {before}");
                        std::thread::yield_now();
                        newest[n].store(fence, Ordering::SeqCst);
                        inside[n].store(false, Ordering::SeqCst);
                        let release = format!("LOCK.RELEASE {key} owner{i}");
                        assert_eq!(follower.call(&release, redirected), int(1));
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // A panic in here must not leave the workers running for ever.
        let moves = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                let before = rounds.load(Ordering::Relaxed);
                move_slots(from, to);
                eventually("the work goes on", || {
                    rounds.load(Ordering::Relaxed) >= before + 50
                        || workers
                            .iter()
                            .any(std::thread::ScopedJoinHandle::is_finished)
                });
            }
        }));
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
        if let Err(panic) = moves {
            std::panic::resume_unwind(panic);
        }
    });
    eprintln!(
        "{} holds, {} redirections",
        rounds.into_inner(),
        redirected.load(Ordering::Relaxed)
    );
    assert!(redirected.into_inner() > 0);
    for node in &cluster.nodes {
        node.assert_sound();
        assert_eq!(node.info("blocked_clients"), 0);
        assert_eq!(node.client().call("DBSIZE"), int(0));
    }
}
