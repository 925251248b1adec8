//! Servers that share the slots of a cluster.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::{Connection, Error, Result, SOON, Setup, comes_true};

/// The slot of a key, by its tag if it has one.
pub fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % 16384
}

/// A tag whose slot satisfies `wanted`, different for each `nth`.
pub fn tag(wanted: impl Fn(u16) -> bool, nth: usize) -> String {
    (0..u32::MAX)
        .map(|n| n.to_string())
        .filter(|tag| wanted(slot(tag)))
        .nth(nth)
        .unwrap_or_default()
}

/// Runs `redis-cli` to its end, for a minute at most: it may wait for the nodes
/// of a cluster without end. Returns whether it succeeded, and what it wrote.
pub fn redis_cli(args: &[&str]) -> Result<(bool, String)> {
    let output = Command::new("timeout")
        .args(["60", "redis-cli"])
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok((output.status.success(), said))
}

fn cluster_command(args: &[&str]) -> Result<()> {
    match redis_cli(&[&["--cluster"], args, &["--cluster-yes"]].concat())? {
        (true, _) => Ok(()),
        (false, said) => Err(Error::new(format!("no {}: {said}", args[0]))),
    }
}

/// This server as a node that is in no cluster yet.
pub fn node(setup: Setup) -> Setup {
    let mut setup = setup.options(&["--cluster-node-timeout", "10000"]);
    setup.in_cluster = true;
    setup
}

/// Makes a cluster of these nodes, each with a part of the slots in turn, and
/// waits until each serves it. Returns their names in the cluster.
pub fn create(nodes: &[SocketAddr]) -> Result<Vec<String>> {
    let addrs: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let mut args = vec!["create"];
    args.extend(addrs.iter().map(String::as_str));
    cluster_command(&args)?;
    await_agreement(nodes)?;
    let ids = nodes.iter().map(|&node| ask(node, "MYID"));
    ids.collect()
}

fn ask(node: SocketAddr, what: &str) -> Result<String> {
    let reply = Connection::open(node)?.call(&["CLUSTER", what])?;
    crate::reply_text(reply).ok_or_else(|| Error::new(format!("{node} does not tell {what}")))
}

/// Waits until every node says that all is well.
pub fn await_agreement(nodes: &[SocketAddr]) -> Result<()> {
    let known = format!("cluster_known_nodes:{}", nodes.len());
    let agree = comes_true(4 * SOON, || {
        let well = |info: String| info.contains("cluster_state:ok") && info.contains(&known);
        let mut infos = nodes.iter().map(|&node| ask(node, "INFO"));
        infos.all(|info| info.is_ok_and(well))
            && cluster_command(&["check", &nodes[0].to_string()]).is_ok()
    });
    let nobody = || Error::new("the nodes don't agree on the slots");
    agree.then_some(()).ok_or_else(nobody)
}

/// Moves the lowest slots of one node to another, as an operator would. `node`
/// is any node, the others are named.
pub fn reshard(node: SocketAddr, from: &str, to: &str, slots: usize) -> Result<()> {
    let (node, slots) = (node.to_string(), slots.to_string());
    let from_to = ["--cluster-from", from, "--cluster-to", to];
    let args = [
        &["reshard", &node][..],
        &from_to,
        &["--cluster-slots", &slots],
    ];
    cluster_command(&args.concat())
}
