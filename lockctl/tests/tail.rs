//! `lockctl tail`: what happens to locks, as the servers post it.

mod support;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use redis_lock_testing::{Cluster, Int, Okay, Sentinels, Server, Signal, signal, tag, text};
use serde_json::{Value as Json, json};

use support::{complained, lockctl, output, said};

const POSTED: [&str; 2] = ["--notify-keyspace-events", "Ed"];

/// A `lockctl tail` that listens already.
struct Tail {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    complained: Lines<BufReader<ChildStderr>>,
}

impl Tail {
    fn start(mut lockctl: Command, options: &[&str]) -> Self {
        let mut child = lockctl
            .args(["--json", "tail"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let complained = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut tail = Self {
            child,
            said,
            complained,
        };
        assert_eq!(tail.complained()["event"], "listening");
        tail
    }

    #[track_caller]
    fn complained(&mut self) -> Json {
        let line = self.complained.next().expect("a line").unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"))
    }

    #[track_caller]
    fn told(&mut self) -> Json {
        let line = self.said.next().expect("a line").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[track_caller]
    fn assert_told(&mut self, key: &str, events: &[&str]) {
        for event in events {
            let told = self.told();
            assert_eq!([&told["key"], &told["event"]], [key, event], "{told}");
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = signal(self.child.id(), Signal::KILL);
        let _ = self.child.wait();
    }
}

#[test]
fn the_life_of_a_lock_is_told_in_its_order() {
    let server = Server::start_with(&POSTED);
    let mut tail = Tail::start(lockctl(&server), &["--count", "6"]);
    let (mut client, mut waiter) = (server.client(), server.client());
    client.int("LOCK.ACQUIRE k a");
    client.call("SET other 1");
    client.int("LOCK.RELEASE k a");
    client.int("LOCK.ACQUIRE k b LEASE 600000");
    waiter.send("LOCK.ACQUIRE k c BLOCK 0");
    server.await_info("lock_waiters", 1);
    client.int("LOCK.RENEW k b LEASE 1");
    waiter.reply();
    client.int("LOCK.BREAK k");
    let first = tail.told();
    assert_eq!(first["event"], "acquired");
    assert_eq!(first["server"], server.addr().to_string());
    let time = first["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    tail.assert_told("k", &["released", "acquired", "expired", "acquired"]);
    tail.assert_told("k", &["broken"]);
    assert!(tail.child.wait().unwrap().success());
}

#[test]
fn only_the_locks_that_are_named_of_the_database_are_told() {
    let server = Server::start_with(&POSTED);
    let mut in_2 = lockctl(&server);
    in_2.env("REDIS_URL", format!("redis://{}/2", server.addr()));
    let mut tail = Tail::start(in_2, &["-n", "2", "two words", "b"]);
    let mut client = server.client();
    client.words(&[b"LOCK.ACQUIRE", b"two words", b"a"]);
    client.call("SELECT 2");
    client.int("LOCK.ACQUIRE c a");
    client.words(&[b"LOCK.ACQUIRE", b"two words", b"a"]);
    client.int("LOCK.ACQUIRE b a");
    tail.assert_told("two words", &["acquired"]);
    tail.assert_told("b", &["acquired"]);
    assert!(tail.child.wait().unwrap().success());
}

#[test]
fn where_nothing_is_posted_it_says_what_to_type_and_sets_nothing_by_itself() {
    let server = Server::start_with(&["--notify-keyspace-events", "Kx"]);
    let mut client = server.client();
    let ended = output(lockctl(&server).arg("tail"));
    assert_eq!(ended.status.code(), Some(125));
    let told = complained(&ended);
    let command = told.split("Type there: ").nth(1).expect(&told).trim();
    let is_set = "CONFIG GET notify-keyspace-events";
    let flags = |client: &mut redis_lock_testing::Client| format!("{:?}", client.call(is_set));
    assert!(!flags(&mut client).contains(['E', 'd']));
    let json = complained(&output(lockctl(&server).args(["--json", "tail"])));
    let json: Json = serde_json::from_str(&json).unwrap();
    assert_eq!(json["error"]["code"], "NOEVENTS");
    // What it says helps, and so does the option.
    assert_eq!(client.call(command), Okay);
    drop(Tail::start(lockctl(&server), &[]));
    client.call("CONFIG SET notify-keyspace-events Kx");
    let mut tail = Tail::start(lockctl(&server), &["--notify"]);
    client.int("LOCK.ACQUIRE k a");
    tail.assert_told("k", &["acquired"]);
    let set = client.call(is_set);
    let redis::Value::Array(words) = &set else {
        panic!("{set:?}");
    };
    assert_ne!(words[1], text(""));
    let all = format!("{set:?}");
    assert!("KxEd".chars().all(|flag| all.contains(flag)), "{all}");
}

#[test]
fn a_user_who_may_not_see_the_setting_hears_what_is_posted() {
    let server = Server::start_with(&POSTED);
    let rules = "on >secret resetkeys resetchannels &__keyevent@0__:lock.* +subscribe";
    let user = server.client().call(&format!("ACL SETUSER ears {rules}"));
    assert_eq!(user, Okay);
    let mut with_user = lockctl(&server);
    with_user.env(
        "REDIS_URL",
        format!("redis://ears:secret@{}", server.addr()),
    );
    let mut tail = Tail::start(with_user, &[]);
    server.client().int("LOCK.ACQUIRE k a");
    tail.assert_told("k", &["acquired"]);
}

#[test]
fn in_a_cluster_all_primaries_are_heard() {
    let cluster = Cluster::start();
    let mut anywhere = support::heedful(env!("CARGO_BIN_EXE_lockctl"));
    let url = format!("redis-cluster://{}", cluster.nodes[0].addr());
    anywhere.env("REDIS_URL", url);
    let mut tail = Tail::start(anywhere, &["--notify"]);
    for (nth, node) in cluster.nodes.iter().enumerate() {
        let third = 16384 / 3 * nth;
        let key = tag(|slot| (third..third + 5000).contains(&usize::from(slot)), 0);
        node.client().int(&format!("LOCK.ACQUIRE {key} a"));
        let told = tail.told();
        assert_eq!(told["key"], key);
        assert_eq!(told["server"], node.addr().to_string());
    }
}

#[test]
fn behind_sentinels_whichever_is_the_primary_is_heard() {
    let mut sentinels = Sentinels::start();
    let addrs = sentinels.addrs().map(|addr| addr.to_string()).join(",");
    for node in sentinels.replicas.iter().chain([&sentinels.primary]) {
        node.client().call("CONFIG SET notify-keyspace-events Ed");
    }
    let mut by_name = support::heedful(env!("CARGO_BIN_EXE_lockctl"));
    by_name.env("REDIS_URL", format!("redis-sentinel://{addrs}/locks"));
    let mut tail = Tail::start(by_name, &[]);
    sentinels.primary.client().int("LOCK.ACQUIRE k a");
    tail.assert_told("k", &["acquired"]);
    let old = sentinels.primary.addr().to_string();
    sentinels.primary.crash();
    let gone = tail.complained();
    assert_eq!([&gone["event"], &gone["server"]], ["server_gone", &old]);
    let back = tail.complained();
    assert_eq!(back["event"], "server_back");
    let mut replicas = sentinels.replicas.iter();
    let new = replicas.find(|it| back["server"] == it.addr().to_string());
    new.unwrap().client().int("LOCK.ACQUIRE other a");
    tail.assert_told("other", &["acquired"]);
}

#[test]
fn a_server_that_ends_and_comes_back_is_told_and_heard_again() {
    let mut server = Server::start_with(&POSTED);
    let mut tail = Tail::start(lockctl(&server), &[]);
    server.crash();
    let gone = tail.complained();
    assert_eq!(gone["event"], "server_gone");
    assert_eq!(gone["server"], server.addr().to_string());
    assert!(gone["why"].is_string());
    server.restart().unwrap();
    let back = json!({"event": "server_back", "server": server.addr().to_string(), "why": null});
    assert_eq!(tail.complained(), back);
    server.client().int("LOCK.ACQUIRE k a");
    tail.assert_told("k", &["acquired"]);
}

#[test]
fn without_json_a_line_is_a_time_what_happened_and_the_key() {
    let server = Server::start_with(&POSTED);
    let mut tail = lockctl(&server);
    tail.args(["tail", "-n", "1", "k"]);
    // It is not known when it listens: the lock is taken and given back until it has.
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| output(&mut tail));
        let mut client = server.client();
        while !told.is_finished() {
            client.int("LOCK.ACQUIRE k a");
            assert_eq!(client.call("LOCK.RELEASE k a"), Int(1));
        }
        told.join().unwrap()
    });
    let line = said(&told);
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(
        matches!(words[..], [_, "acquired" | "released", "k"]),
        "{line}"
    );
    assert!(complained(&told).starts_with("lockctl: listening to "));
}
