//! Three sentinels as witnesses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use redis::{Value, from_redis_value};
use redis_lock_testing::{Server, Setup, sentinel};

use super::{DOWN_AFTER_MS, NODES, ask};

/// Where their own connections come from, so that clients can be told from them.
pub(super) const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

/// How long a sentinel may take to promote a replica.
const FAILOVER_TIMEOUT_MS: u64 = 3000;

/// How eager the sentinels are, in milliseconds. They would take ten seconds
/// to look at a replica, or to correct one that takes itself for the primary.
const EAGER: [(&str, u64); 5] = [
    ("info-period", 300),
    ("ping-period", 150),
    ("ask-period", 200),
    ("publish-period", 300),
    ("min-link-reconnect-period", 300),
];

/// Starts them in folders of `dir`, to watch the primary at this address.
pub(super) fn start(binary: &Path, dir: &Path, addr: SocketAddr) -> Result<Vec<Server>> {
    let setups = [1, 2, 3].map(|number| Setup {
        dir: Some(dir.join(format!("sentinel-{number}"))),
        ..Setup::of(binary)
    });
    let sentinels = sentinel::watch(setups, addr, SOURCE);
    for sentinel in &sentinels {
        let mut connection = sentinel.connect()?;
        for (name, ms) in EAGER {
            connection.call_ok(&["SENTINEL", "DEBUG", name, &ms.to_string()])?;
        }
    }
    set(&sentinels, "down-after-milliseconds", DOWN_AFTER_MS)?;
    set(&sentinels, "failover-timeout", FAILOVER_TIMEOUT_MS)?;
    Ok(sentinels.into())
}

pub(super) fn set(sentinels: &[Server], name: &str, ms: u64) -> Result<()> {
    for sentinel in sentinels {
        let set = ["SENTINEL", "SET", "locks", name, &ms.to_string()];
        sentinel.connect()?.call_ok(&set)?;
    }
    Ok(())
}

/// What a sentinel knows of each replica.
fn replicas(sentinel: &Server) -> Vec<HashMap<String, String>> {
    let told = ask(sentinel.addr(), &["SENTINEL", "REPLICAS", "locks"]);
    from_redis_value(told.unwrap_or(Value::Nil)).unwrap_or_default()
}

fn has(replica: &HashMap<String, String>, name: &str, value: &str) -> bool {
    replica.get(name).is_some_and(|known| known == value)
}

/// Whether it sees all replicas, and that they are well.
pub(super) fn sees_all(sentinel: &Server) -> bool {
    let replicas = replicas(sentinel);
    let is_well = |it| has(it, "flags", "slave") && has(it, "master-link-status", "ok");
    replicas.len() == NODES - 1 && replicas.iter().all(is_well)
}

/// Whether it would promote the replica of this port first.
pub(super) fn prefers(sentinel: &Server, port: &str) -> bool {
    let mut replicas = replicas(sentinel).into_iter();
    replicas.any(|one| has(&one, "port", port) && has(&one, "slave-priority", "1"))
}

/// Orders it to promote a replica. Returns whether it will.
pub(super) fn order_promotion(sentinel: &Server) -> bool {
    ask(sentinel.addr(), &["SENTINEL", "FAILOVER", "locks"]) == Some(Value::Okay)
}
