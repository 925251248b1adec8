//! Packets between two addresses that vanish, below the connections.
//!
//! The kernel of Linux does it, by rules for the routes of a network namespace in which nobody
//! else is. What vanishes goes to a device that nobody reads. TCP sends it again, later and
//! later, and whoever connects hears nothing, as where a cable is cut.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Result, ensure};

fn run(script: &str) -> Result<()> {
    let status = Command::new("sh").args(["-ec", script]).status()?;
    ensure!(status.success(), "only for make chaos-packets: {script}");
    Ok(())
}

/// Has local addresses come after our rules, which have number 5. Where there is a route, the
/// network is somebody else's.
pub(super) fn set_up() -> Result<()> {
    run("test -z \"$(ip route)\"
        ip link set lo up
        ip link add hole type veth peer name bottom
        ip link set hole arp off up
        ip link set bottom up
        echo 1 > /proc/sys/net/ipv4/conf/hole/route_localnet
        ip route add 127.0.0.0/8 dev hole table 5
        ip rule add pref 10 lookup local
        ip rule del pref 0")
}

/// Has packets vanish that others send to a node, that it sends to them, or both.
pub(super) fn lose(node: IpAddr, others: &[IpAddr], [heard, told]: [bool; 2]) -> Result<()> {
    let lose = |from, to| format!("ip rule add pref 5 from {from} to {to} lookup 5");
    let mut rules = Vec::new();
    for other in others {
        rules.extend(heard.then(|| lose(other, &node)));
        rules.extend(told.then(|| lose(&node, other)));
    }
    run(&rules.join("\n"))
}

/// Lets everything pass again.
pub(super) fn pass() -> Result<()> {
    run("while ip rule del pref 5 2> /dev/null; do :; done")
}
