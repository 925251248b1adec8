//! Bytes of `used_memory`.

use anyhow::Result;
use redis_lock_testing::Connection;

use crate::measurement::Measurement;
use crate::protocols::{LEASE, Protocol};
use crate::server::Server;
use crate::swarm::Swarm;

const LOCKS: usize = 10_000;
const WAITERS: usize = 1_000;
const LOCK: &str = "lock:memory";

/// A held lock, with Redisson's kind of owner for everybody.
pub fn of_locks(protocol: &Protocol, server: &Server) -> Result<Measurement> {
    let mut info = server.connect()?;
    protocol.set_up(&mut info, &[])?;
    let mut swarm = Swarm::connect(server.addr(), protocol, 1)?;
    let mut happened = Vec::new();
    let before = data_bytes(&mut info)?;
    for n in 0..LOCKS {
        swarm.acquire(0, &format!("lock:{n:06}"), LEASE)?;
        while happened.is_empty() {
            swarm.next(None, &mut happened)?;
        }
        happened.clear();
    }
    let mut measurement = Measurement::default();
    let bytes = data_bytes(&mut info)? - before;
    measurement.figure("bytes/held lock", bytes as f64 / LOCKS as f64);
    Ok(measurement)
}

/// A client that waits: what the wait costs, and what it costs with the
/// connections that it needs.
pub fn of_waiters(protocol: &Protocol, server: &Server) -> Result<Measurement> {
    let mut info = server.connect()?;
    protocol.set_up(&mut info, &[LOCK.to_string()])?;
    let unconnected = info.info("used_memory")?;
    let mut swarm = Swarm::connect(server.addr(), protocol, WAITERS + 1)?;
    let mut happened = Vec::new();
    swarm.settle(&mut happened)?;
    let connected = info.info("used_memory")?;
    for n in 0..=WAITERS {
        swarm.acquire(n, LOCK, LEASE)?;
    }
    swarm.settle(&mut happened)?;
    let mut measurement = Measurement::default();
    let wait = bytes_each(&mut info, connected, WAITERS)?;
    measurement.figure("bytes/wait", wait);
    let with_connections = bytes_each(&mut info, unconnected, WAITERS)?;
    measurement.figure("bytes/waiter and its connections", with_connections);
    Ok(measurement)
}

/// What is used without the buffers for clients, replicas and the AOF.
pub(super) fn data_bytes(info: &mut Connection) -> Result<i64> {
    let mut bytes = info.info("used_memory")?;
    for buffers in [
        "mem_clients_normal",
        "mem_total_replication_buffers",
        "mem_aof_buffer",
    ] {
        bytes -= info.info(buffers)?;
    }
    Ok(bytes)
}

fn bytes_each(info: &mut Connection, before: i64, count: usize) -> Result<f64> {
    Ok((info.info("used_memory")? - before) as f64 / count as f64)
}
