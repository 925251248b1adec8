//! Three sentinels as witnesses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use redis::Value;
use redis_lock_testing::{Server, reply_text, sentinel};

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

/// Starts them, to watch the primary at this address.
pub(super) fn start(binary: &Path, primary: SocketAddr) -> Result<Vec<Server>, String> {
    let sentinels = sentinel::watch(binary, primary, SOURCE);
    for sentinel in &sentinels {
        let mut connection = sentinel.connect()?;
        let settings = [
            ("down-after-milliseconds", DOWN_AFTER_MS),
            ("failover-timeout", FAILOVER_TIMEOUT_MS),
        ];
        for (name, ms) in settings {
            let set = ["SENTINEL", "SET", "locks", name, &ms.to_string()];
            connection.call_ok(&set)?;
        }
        for (name, ms) in EAGER {
            connection.call_ok(&["SENTINEL", "DEBUG", name, &ms.to_string()])?;
        }
    }
    Ok(sentinels.into())
}

/// Has them take nobody for dead, however slow the machine is.
pub(super) fn stay_calm(sentinels: &[Server]) -> Result<(), String> {
    for sentinel in sentinels {
        let set = ["SENTINEL", "SET", "locks", "down-after-milliseconds"];
        let never_ms = "600000";
        let words = [&set[..], &[never_ms]].concat();
        sentinel.connect()?.call_ok(&words)?;
    }
    Ok(())
}

/// What a sentinel knows of each replica: names, each with its value.
fn replicas(sentinel: &Server) -> Vec<Vec<String>> {
    let replicas = ask(sentinel.addr(), &["SENTINEL", "REPLICAS", "locks"]);
    let parts = |value| match value {
        Some(Value::Array(parts)) => parts,
        _ => Vec::new(),
    };
    let fields = |replica| parts(Some(replica)).into_iter().filter_map(reply_text);
    let replicas = parts(replicas).into_iter();
    replicas.map(|replica| fields(replica).collect()).collect()
}

fn has(fields: &[String], name: &str, value: &str) -> bool {
    let mut pairs = fields.windows(2);
    pairs.any(|two| two[0] == name && two[1] == value)
}

/// Whether it sees all replicas, and that they are well.
pub(super) fn sees_all(sentinel: &Server) -> bool {
    let replicas = replicas(sentinel);
    let is_well = |fields: &Vec<String>| {
        has(fields, "flags", "slave") && has(fields, "master-link-status", "ok")
    };
    replicas.len() == NODES - 1 && replicas.iter().all(is_well)
}

/// Whether it would promote the replica of this port first.
pub(super) fn prefers(sentinel: &Server, port: &str) -> bool {
    let mut replicas = replicas(sentinel).into_iter();
    replicas.any(|fields| has(&fields, "port", port) && has(&fields, "slave-priority", "1"))
}

/// Orders it to promote a replica. Returns whether it will.
pub(super) fn order_promotion(sentinel: &Server) -> bool {
    ask(sentinel.addr(), &["SENTINEL", "FAILOVER", "locks"]) == Some(Value::Okay)
}
