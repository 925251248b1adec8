//! Where lockctl's server is: behind sentinels, in a cluster.

mod support;

use std::net::SocketAddr;
use std::process::{Command, Output};

use redis_lock_testing::{Cluster, Sentinels, slot, tag};
use serde_json::Value as Json;

use support::{complained, output, said};

/// `lockctl` with these options before the subcommand's own.
fn lockctl(place: &[String], arguments: &[&str]) -> Output {
    let mut command: Command = support::heedful(env!("CARGO_BIN_EXE_lockctl"));
    command.env_remove("REDIS_URL").args(place).args(arguments);
    output(&mut command)
}

#[track_caller]
fn json(ended: &Output) -> Json {
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&said(ended)).unwrap()
}

fn hosts(addrs: &[SocketAddr]) -> String {
    let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
    addrs.join(",")
}

#[test]
fn all_subcommands_find_the_primary_behind_sentinels() {
    let sentinels = Sentinels::start();
    let hosts = hosts(&sentinels.addrs());
    let place = ["--url".into(), format!("redis-sentinel://{hosts}/locks")];
    let mut client = sentinels.primary.client();
    let ran = lockctl(&place, &["run", "lock", "printenv", "LOCK_TOKEN"]);
    assert!(ran.status.success(), "{ran:?}");
    let before: i64 = said(&ran).trim().parse().unwrap();
    let token = client.int("LOCK.ACQUIRE lock alice");
    assert!(token > before);
    let mut waiter = sentinels.primary.client();
    waiter.send("LOCK.ACQUIRE lock bob BLOCK 0");
    sentinels.primary.await_info("lock_waiters", 1);
    let listed = json(&lockctl(&place, &["ls", "--json"]));
    assert_eq!(listed[0]["holders"][0]["token"], token);
    let top = json(&lockctl(&place, &["top", "--json", "--times", "1"]));
    assert_eq!(top["waiting"], 1);
    let fence = token.to_string();
    let broken = lockctl(&place, &["break", "lock", "--fence", &fence, "--json"]);
    assert_eq!(json(&broken)["broken"], true);
    assert!(waiter.reply_int() > token);
    client.int("DEL lock");
    let replica = format!("redis://{}", sentinels.replicas[0].addr());
    let refused = lockctl(&["--url".into(), replica], &["--json", "run", "l", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    let told = complained(&refused);
    assert!(told.contains(r#""code":"WRONGSERVER""#), "{told}");
}

#[test]
fn all_subcommands_see_the_whole_cluster() {
    let cluster = Cluster::start();
    // One lock on each node.
    let keys: Vec<_> = (0..3)
        .map(|node: usize| tag(|slot| usize::from(slot) * 3 / 16384 == node, 0))
        .collect();
    let hosts = hosts(&[cluster.nodes[0].addr(), cluster.nodes[1].addr()]);
    let place = ["--url".into(), format!("redis-cluster://{hosts}")];
    let mut waiters = Vec::new();
    for (node, key) in keys.iter().enumerate() {
        let ran = lockctl(&place, &["run", key, "printenv", "LOCK_KEY"]);
        assert_eq!(said(&ran).trim(), key, "{ran:?}");
        let mut client = cluster.nodes[node].client();
        client.int(&format!("LOCK.ACQUIRE {key} alice"));
        let mut waiter = cluster.nodes[node].client();
        waiter.send(&format!("LOCK.ACQUIRE {key} bob BLOCK 0"));
        cluster.nodes[node].await_info("lock_waiters", 1);
        waiters.push(waiter);
    }
    let listed = json(&lockctl(&place, &["ls", "--json"]));
    let listed = listed.as_array().unwrap().iter();
    let mut listed: Vec<_> = listed.map(|lock| lock["key"].as_str().unwrap()).collect();
    listed.sort_by_key(|key| slot(key));
    assert_eq!(listed, keys);
    let times = ["top", "--json", "--times", "2", "--interval", "100ms"];
    let top = lockctl(&place, &times);
    for sample in said(&top).lines() {
        let sample: Json = serde_json::from_str(sample).unwrap();
        assert_eq!(sample["waiting"], 3, "{sample}");
    }
    for (key, waiter) in keys.iter().zip(&mut waiters) {
        let broken = lockctl(&place, &["break", key, "--force", "--json"]);
        assert_eq!(json(&broken)["broken"], true);
        waiter.reply_int();
    }
    for (node, key) in keys.iter().enumerate() {
        cluster.nodes[node].client().int(&format!("DEL {key}"));
    }
    let alone = format!("redis://{}", cluster.nodes[0].addr());
    let refused = lockctl(
        &["--url".into(), alone],
        &["--json", "run", &keys[2], "true"],
    );
    assert_eq!(refused.status.code(), Some(125));
    let told = complained(&refused);
    assert!(told.contains(r#""code":"WRONGSERVER""#), "{told}");
}
