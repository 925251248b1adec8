//! Locks in a cluster whose slots move between its nodes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;
use redis_lock_testing::scene::{BEGIN_MOVE, END_MOVE, MIGRATE_KEY};
use redis_lock_testing::{Client, Cluster, Int, Play, eventually, redis_cli, slot, tag};

/// `h` holds the lock of a slot on node 0, and `w0` and `w1` wait for it.
fn lined_up() -> Play {
    let mut play = Play::moving();
    play.run(
        "h > LOCK.ACQUIRE $key h LONG -> H
        each 0..1: w# > LOCK.ACQUIRE $key w# BLOCKED -> ..",
    );
    play
}

/// Those who wait hear that the slot has moved, and node 1 alone has the key.
const REDIRECTED: &str = "each 0..1: w# < !MOVED $slot 127.0.0.1:$n1
    until blocked_clients = 0
    o > CLUSTER COUNTKEYSINSLOT $slot -> 0
    o@n1 > CLUSTER COUNTKEYSINSLOT $slot -> 1
    sound";

/// The lease of the holder ends before the slot moves on.
const END_LEASE: &str = "h > LOCK.RENEW $key h LEASE 100 -> 1
    until o > CLUSTER COUNTKEYSINSLOT $slot -> 0";

/// The regular looks at a lock pass. It is the absence of an event that is observed.
fn let_looks_pass() {
    std::thread::sleep(Duration::from_millis(1200));
}

#[test]
fn waiters_in_a_slot_that_moves_are_redirected_and_the_lock_is_held_on_the_new_node() {
    let mut play = lined_up();
    play.run(&format!(
        "h > LOCK.ACQUIRE $key h LONG -> H
        h > HGETALL $key -> :stored
        h > PEXPIRETIME $key -> :end
        {BEGIN_MOVE}
        {MIGRATE_KEY}"
    ));
    // The key left node 0, which for a lock that does not move would mean that
    // it came free.
    let_looks_pass();
    // MIGRATE sends how long the key has to live, not until when.
    play.run(&format!(
        "blocked_clients = 2
        h > LOCK.RELEASE $key h -> !ASK
        {END_MOVE}
        {REDIRECTED}
        h@n1 > HGETALL $key -> $stored
        h@n1 > PEXPIRETIME $key -> $end..$end+4999
        h@n1 > LOCK.ACQUIRE $key other -> null
        h@n1 > LOCK.ACQUIRE $key h LONG HOLD 2 -> H
        w0@n1 > LOCK.ACQUIRE $key w0 BLOCKED -> ..
        h@n1 > LOCK.RELEASE $key h ALL -> 1
        w0@n1 < W
        sound"
    ));
}

#[test]
fn a_lease_that_ends_after_the_slot_moved_is_handed_on_by_the_new_node_alone() {
    let mut play = lined_up();
    // Long enough for the slot to move before its end.
    play.run(&format!(
        "h > LOCK.RENEW $key h LEASE 3000 -> 1
        {BEGIN_MOVE}
        {MIGRATE_KEY}
        {END_MOVE}
        {REDIRECTED}
        w0@n1 > LOCK.ACQUIRE $key w0 LONG BLOCK 0 -> W
        o > CLUSTER COUNTKEYSINSLOT $slot -> 0
        sound"
    ));
}

#[test]
fn a_lease_that_ends_while_the_slot_moves_is_handed_on_by_nobody_until_it_has_moved() {
    let mut play = lined_up();
    play.run(BEGIN_MOVE).run(END_LEASE);
    let_looks_pass();
    // Whoever follows the redirection has it on the new node at once.
    play.run(&format!(
        "o > CLUSTER COUNTKEYSINSLOT $slot -> 0
        o@n1 > CLUSTER COUNTKEYSINSLOT $slot -> 0
        blocked_clients = 2
        other@n1 > ASKING -> OK
        other@n1 > LOCK.ACQUIRE $key other LONG -> O
        {END_MOVE}
        {REDIRECTED}"
    ));
}

#[test]
fn a_move_that_is_given_up_serves_the_waiters_where_they_are() {
    lined_up().run(BEGIN_MOVE).run(END_LEASE).run(
        "o > CLUSTER SETSLOT $slot STABLE -> OK
        o@n1 > CLUSTER SETSLOT $slot STABLE -> OK
        w0 < W
        o > CLUSTER COUNTKEYSINSLOT $slot -> 1
        o@n1 > CLUSTER COUNTKEYSINSLOT $slot -> 0",
    );
}

#[test]
fn a_waiter_on_the_node_that_takes_the_slot_over_stays_and_is_served() {
    Play::moving().run(&format!(
        "h > LOCK.ACQUIRE $key h LEASE 3000 -> H
        {BEGIN_MOVE}
        {MIGRATE_KEY}
        w@n1 > ASKING -> OK
        w@n1 > LOCK.ACQUIRE $key w BLOCKED -> ..
        {END_MOVE}
        w@n1 < W
        o > CLUSTER COUNTKEYSINSLOT $slot -> 0
        o@n1 > CLUSTER COUNTKEYSINSLOT $slot -> 1"
    ));
}

#[test]
fn a_release_while_the_slot_moves_hands_on_where_the_key_is() {
    lined_up().run(&format!(
        "{BEGIN_MOVE}
        h > LOCK.RELEASE $key h -> 1
        w0 < W
        w0 > LOCK.ACQUIRE $key more BLOCKED -> ..
        {MIGRATE_KEY}
        {END_MOVE}
        {REDIRECTED}
        o@n1 > LOCK.ACQUIRE $key w0 LONG -> W"
    ));
}

#[test]
fn a_reshard_by_redis_cli_redirects_the_waiters() {
    let mut play = Play::moving();
    for n in 0..5 {
        let tag = tag(|slot| slot < 30, n);
        play.name(&format!("k{n}"), format!("lock:{{{tag}}}"));
    }
    play.run(
        "each 0..4: h > LOCK.ACQUIRE $k# h LONG -> T# ; h > HGETALL $k# -> :stored#
        each 0..4: w# > LOCK.ACQUIRE $k# w BLOCKED -> ..",
    );
    let node = play.addr().to_string();
    let command = play.with_names("--cluster-from $id0 --cluster-to $id1 --cluster-slots 30");
    let options: Vec<&str> = command.split(' ').collect();
    let reshard = ["--cluster", "reshard", &node, "--cluster-yes"];
    redis_cli(&[&reshard, &options[..]].concat()).unwrap();
    play.run(
        "each 0..4: w# < !MOVED ; h > LOCK.ACQUIRE $k# h -> !MOVED
        each 0..4: o@n1 > HGETALL $k# -> $stored# ; o@n1 > LOCK.ACQUIRE $k# h LONG -> T#
        h > DBSIZE -> 0
        sound",
    );
}

#[test]
fn scripts_transactions_and_keys_of_two_slots_answer_as_the_server_does() {
    let mut play = Play::moving();
    let named = |which: fn(u16) -> bool, nth| format!("lock:{{{}}}", tag(which, nth));
    play.name("foreign", named(|slot| slot > 12000, 0));
    // Another slot of the same node is no better.
    play.name("neighbour", named(|slot| slot < 5000, 1));
    play.run("each ACQUIRE RELEASE RENEW: o > LOCK.# $foreign h -> !MOVED");
    for (second, queued, executed) in [
        ("RELEASE $key h", "QUEUED", "[token, 1]"),
        ("ACQUIRE $foreign h", "!MOVED", "!EXECABORT"),
        ("ACQUIRE $neighbour h", "QUEUED", "!CROSSSLOT"),
    ] {
        play.run(&format!(
            "o > MULTI -> OK
            o > LOCK.ACQUIRE $key h BLOCK 0 -> QUEUED
            o > LOCK.{second} -> {queued}
            o > EXEC -> {executed}"
        ));
    }
    let script = "return redis.call('LOCK.ACQUIRE',ARGV[1],'h')";
    play.run(&format!(
        "o > EVAL \"{script}\" 1 $key $foreign -> !
        o > DBSIZE -> 0
        sound"
    ));
}

#[test]
fn cluster_failover_unblocks_the_waiters_and_the_replica_hands_the_lock_on() {
    let mut play = lined_up();
    let id = play.client("o").bulk("CLUSTER MYID");
    let replica = Cluster::add_replica(&play.server, &id);
    play.others.insert("r".into(), replica);
    // Who does not know it as a replica of that node does not vote for it.
    play.run(
        "until o@r > DBSIZE -> 1
        each o o@n1 o@n2: until # > CLUSTER NODES -> ~slave $id0
        o@r > CLUSTER FAILOVER -> OK",
    );
    for waiter in ["w0", "w1"] {
        let error = play.client(waiter).reply_error();
        // Valkey 9 tells them where the slot is served now.
        let is_told = error.starts_with("UNBLOCKED ") || error.starts_with("MOVED ");
        assert!(is_told, "{error}");
    }
    play.run(
        "until o@r > LOCK.ACQUIRE $key rival -> null
        w@r > LOCK.ACQUIRE $key w0 BLOCKED -> ..
        o@r > LOCK.RELEASE $key h -> 1
        w@r < W
        until o > LOCK.RENEW $key h -> !MOVED
        sound",
    );
}

/// Owners that hold a lock each, in slots of their own, and wait for the next
/// one's; the last one would close the ring, of two or of four. The one that gives way helps the others.
#[test]
fn a_deadlock_of_two_across_slots_is_refused() {
    let ring = ["foo", "bar", "baz", "qux"];
    assert!(ring.windows(2).all(|pair| slot(pair[0]) != slot(pair[1])));
    for keys in [&ring[..2], &ring] {
        let mut play = Play::on(Cluster::of_one_node());
        let all = keys.join(" ");
        play.run(&format!(
            "each {all}: o > LOCK.ACQUIRE # of_# LONG -> token"
        ));
        for pair in keys.windows(2) {
            let [own, next] = [pair[0], pair[1]];
            play.run(&format!(
                "{own} > LOCK.ACQUIRE {next} of_{own} BLOCKED -> .."
            ));
        }
        let (waiting, last) = (keys.len() - 1, keys[keys.len() - 1]);
        let ask = format!("LOCK.ACQUIRE foo of_{last} LONG BLOCK 5000");
        play.run(&format!(
            "o > {ask} -> !DEADLOCK
            each {all}: o > {ask} -> ~'#'
            lock_releases_deleted = 0
            lock_releases_expired = 0
            lock_deadlocks_refused = {}
            blocked_clients = {waiting}
            o > LOCK.RELEASE {last} of_{last} -> 1
            {} < token
            sound",
            1 + keys.len(),
            keys[waiting - 1]
        ));
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
        play.run(&format!(
            "o > DEL foo
            o >> {before} | LOCK.LIST -> _ | {{0.holders ['b'] 1 nothing}}"
        ));
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
            clients: (0..3).map(|node| cluster.nodes[node].client()).collect(),
            at: 0,
        }
    }

    /// Sends until some node answers, with an integer, and not by a redirection.
    fn int(&mut self, command: &str, redirected: &AtomicU64) -> i64 {
        let mut ask = false;
        let deadline = Instant::now() + 2 * redis_lock_testing::SOON;
        loop {
            assert!(Instant::now() < deadline, "{command} goes round in circles");
            if ask {
                self.clients[self.at].call("ASKING");
            }
            let error = match self.clients[self.at].call(command) {
                Value::Int(number) => return number,
                Value::ServerError(error) => error,
                other => panic!("{command}: {other:?}"),
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
                _ => panic!("{command}: {error}"),
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
    let (mut from, mut to) = (cluster.nodes[0].client(), cluster.nodes[1].client());
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
        let begun = cluster.nodes[node]
            .client()
            .call(&format!("CLUSTER {command}"));
        assert!(!matches!(begun, Value::ServerError(_)), "{begun:?}");
        let here = format!("EXISTS {{{}}}", tag(|slot| slot == 0, 0));
        eventually("the slots have moved", || {
            cluster.nodes[to].client().call(&here) == Int(0)
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
                        let fence = follower.int(&acquire, redirected);
                        assert!(!inside[n].swap(true, Ordering::SeqCst), "two hold {key}");
                        let before = newest[n].load(Ordering::SeqCst);
                        assert!(fence > before, "{key}: {fence} after {before}");
                        std::thread::yield_now();
                        newest[n].store(fence, Ordering::SeqCst);
                        inside[n].store(false, Ordering::SeqCst);
                        let release = format!("LOCK.RELEASE {key} owner{i}");
                        assert_eq!(follower.int(&release, redirected), 1);
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
        assert_eq!(node.client().call("DBSIZE"), Int(0));
    }
}
