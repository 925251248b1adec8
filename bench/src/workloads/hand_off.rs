//! From the release of a lock to the next holder: the time from just before
//! the release is sent to the moment when the next holder has read its reply.
//! Whoever gave the lock back queues again, so that the number of waiters stays.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Measurement, histogram};
use crate::clients::{Event, LEASE, Protocol};
use crate::server::Server;
use crate::swarm::Swarm;

const FOR: Duration = Duration::from_millis(900);
const HAND_OFFS: u64 = 5000;
const WARM_UP: u64 = 20;
const LOCK: &str = "lock:hand-off";

/// Hands one lock on, with so many waiters in the queue at every release.
pub fn run(protocol: &Protocol, server: &Server, waiters: usize) -> Result<Measurement> {
    let mut info = server.connect()?;
    protocol.set_up(&mut info, &[LOCK.to_string()])?;
    let mut swarm = Swarm::connect(server.addr(), protocol, waiters + 1)?;
    let mut happened = Vec::new();
    for n in 0..=waiters {
        swarm.acquire(n, LOCK, LEASE)?;
        if n % 100 == 0 {
            swarm.settle(&mut happened)?;
        }
    }
    swarm.settle(&mut happened)?;
    let mut holder = held_by(&mut happened);
    let mut latencies = histogram();
    let mut traffic = Traffic::read(&mut info, &swarm)?;
    let mut start = Instant::now();
    let mut done = 0;
    while done < HAND_OFFS + WARM_UP && start.elapsed() < FOR {
        if done == WARM_UP {
            latencies.reset();
            traffic = Traffic::read(&mut info, &swarm)?;
            start = Instant::now();
        }
        let release = Instant::now();
        swarm.release(holder)?;
        let (mut next, mut released) = (None, false);
        while next.is_none() || !released {
            swarm.next(None, &mut happened)?;
            for event in happened.drain(..) {
                match event.event {
                    Event::Held => next = Some((event.client, event.at)),
                    Event::Released => released = true,
                }
            }
        }
        let (next, at) = next.expect("the loop ended with a holder");
        latencies.record((at - release).as_nanos() as u64)?;
        swarm.acquire(holder, LOCK, LEASE)?;
        swarm.settle(&mut happened)?;
        holder = next;
        done += 1;
    }
    let hand_offs = latencies.len() as f64;
    let traffic = Traffic::read(&mut info, &swarm)?.since(&traffic);
    let mut measurement = Measurement::default();
    measurement.latencies("hand-off p50 µs", "hand-off p99 µs", latencies);
    measurement.figure("commands/hand-off", traffic.commands / hand_offs);
    measurement.figure("bytes/hand-off", traffic.bytes / hand_offs);
    Ok(measurement)
}

fn held_by(happened: &mut Vec<crate::swarm::Happened>) -> usize {
    happened.pop().expect("somebody holds the lock").client
}

/// What has gone through the server, less what this program asked for itself.
struct Traffic {
    commands: f64,
    bytes: f64,
}

impl Traffic {
    fn read(info: &mut crate::wire::Connection, swarm: &Swarm) -> Result<Self> {
        const PING_AND_PONG: u64 = 14 + 7;
        let pings = swarm.control_pings;
        let input = info.info("total_net_input_bytes")?;
        let output = info.info("total_net_output_bytes")?;
        let commands = info.info("total_commands_processed")?;
        Ok(Self {
            commands: commands as f64 - pings as f64,
            bytes: (input + output) as f64 - (pings * PING_AND_PONG) as f64,
        })
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            commands: self.commands - earlier.commands,
            bytes: self.bytes - earlier.bytes,
        }
    }
}
