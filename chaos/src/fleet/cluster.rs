//! The nodes as one shard of a cluster, and two primaries of one slot each as
//! witnesses, which vote on who is promoted.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use redis::Value;
use redis_lock_testing::{comes_true, tag};

use super::{Node, ask, ask_text};

/// All slots but those of the witnesses.
const SLOTS: u16 = 16382;

/// How long the nodes may take to get to know each other.
const ACQUAINTANCE: Duration = Duration::from_secs(30);

/// The settings of each node. A replica that lags may be promoted, too, and
/// stays with its primary.
pub(super) const SETTINGS: &str = "--cluster-node-timeout 1000 \
    --cluster-replica-validity-factor 0 \
    --cluster-allow-replica-migration no --cluster-require-full-coverage no";

/// What the names of all locks begin with, so that the nodes serve them.
pub(super) fn prefix() -> String {
    format!("{{{}}}", tag(|slot| slot < SLOTS, 0))
}

/// Makes a cluster of them. The first node is the primary.
pub(super) fn form(nodes: &[Node], witnesses: &[Node]) -> Result<()> {
    let all = || nodes.iter().chain(witnesses);
    let last = (SLOTS - 1).to_string();
    let call = |node: &Node, words: &[&str]| node.server.connect()?.call_ok(words);
    call(&nodes[0], &["CLUSTER", "ADDSLOTSRANGE", "0", &last])?;
    for (slot, witness) in (SLOTS..).zip(witnesses) {
        call(witness, &["CLUSTER", "ADDSLOTS", &slot.to_string()])?;
    }
    for (epoch, node) in (1..).zip(all()) {
        call(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()])?;
    }
    for node in all().skip(1) {
        let [port, bus] = [node.addr, node.bus_addr].map(|addr| addr.port().to_string());
        let meet = ["CLUSTER", "MEET", &node.addr.ip().to_string(), &port, &bus];
        call(&nodes[0], &meet)?;
    }
    let known = format!("cluster_known_nodes:{}\r", all().count());
    let knows_all = |node: &Node| {
        let info = ask_text(node.server.addr(), &["CLUSTER", "INFO"]);
        info.is_some_and(|info| info.contains(&known))
    };
    if !comes_true(ACQUAINTANCE, || all().all(knows_all)) {
        bail!("the nodes don't get to know each other");
    }
    let id = ask_text(nodes[0].server.addr(), &["CLUSTER", "MYID"]).unwrap_or_default();
    for node in &nodes[1..] {
        call(node, &["CLUSTER", "REPLICATE", &id])?;
    }
    Ok(())
}

/// The port of whom this witness says that it is the primary.
pub(super) fn primary_port(witness: SocketAddr) -> Option<u16> {
    let nodes = ask_text(witness, &["CLUSTER", "NODES"])?;
    // Its id, host, port, and so on, and the slots that it serves.
    let primary = nodes.lines().find(|line| line.contains(" 0-"))?;
    primary.split([' ', ':', '@']).nth(2)?.parse().ok()
}

/// Whether a node serves, and sees that all others are well.
pub(super) fn sees_all(node: &Node) -> bool {
    let ask = |what| ask_text(node.server.addr(), &["CLUSTER", what]);
    let serves = ask("INFO").is_some_and(|info| info.contains("cluster_state:ok"));
    let nodes = ask("NODES").filter(|_| serves);
    let is_ill = |word: &str| ["fail", "fail?", "handshake", "disconnected"].contains(&word);
    nodes.is_some_and(|nodes| !nodes.split([' ', ',', '\n']).any(is_ill))
}

/// Has a replica take over without asking the primary, or even the others. Says
/// whether it will.
pub(super) fn order_promotion(replica: &Node, asks_others: bool) -> bool {
    let how = if asks_others { "FORCE" } else { "TAKEOVER" };
    ask(replica.server.addr(), &["CLUSTER", "FAILOVER", how]) == Some(Value::Okay)
}
