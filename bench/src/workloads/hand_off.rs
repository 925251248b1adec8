//! From the release of a lock to the next holder: the time from just before
//! the release is sent to the moment when the next holder has read its reply.
//! Whoever gave the lock back queues again, so that the number of waiters stays.

use std::time::Instant;

use anyhow::Result;
use redis_lock_testing::{Connection, info_field, pack};

use super::Pace;
use crate::measurement::{Measurement, US, histogram};
use crate::protocols::{Event, LEASE, Protocol};
use crate::server::Server;
use crate::swarm::{Happened, Swarm};

const LOCK: &str = "lock:hand-off";

/// Hands one lock on, with this many waiters in the queue at every release.
pub fn run(
    protocol: &Protocol,
    server: &Server,
    pace: Pace,
    waiters: usize,
) -> Result<Measurement> {
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
    let warm = Instant::now() + pace.warm_up;
    let mut start = None;
    let mut traffic = Traffic::read(&mut info, &swarm)?;
    while start.is_none_or(|start: Instant| start.elapsed() < pace.measure) || latencies.is_empty()
    {
        if start.is_none() && Instant::now() >= warm {
            latencies.reset();
            traffic = Traffic::read(&mut info, &swarm)?;
            start = Some(Instant::now());
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
    }
    let hand_offs = latencies.len() as f64;
    let (commands, bytes) = Traffic::read(&mut info, &swarm)?.since(&traffic);
    let mut measurement = Measurement::default();
    measurement.quantiles("hand-off p50 µs", "hand-off p99 µs", US, &latencies);
    measurement.figure("commands/hand-off", commands / hand_offs);
    measurement.figure("bytes/hand-off", bytes / hand_offs);
    Ok(measurement)
}

fn held_by(happened: &mut Vec<Happened>) -> usize {
    happened.pop().expect("somebody holds the lock").client
}

/// What has gone through the server.
struct Traffic {
    commands: i64,
    bytes: i64,
    /// What this program asked for itself: round trips of `PING`, and the bytes
    /// of this very question and its answer.
    pings: i64,
    question: i64,
}

impl Traffic {
    fn read(info: &mut Connection, swarm: &Swarm) -> Result<Self> {
        let section = "stats";
        let stats = info.info_section(section)?;
        let number = |field| Ok::<i64, anyhow::Error>(info_field(&stats, field)?.parse()?);
        let header = format!("${}\r\n\r\n", stats.len());
        let question = pack(&["INFO", section]).len() + header.len() + stats.len();
        Ok(Self {
            commands: number("total_commands_processed")?,
            bytes: number("total_net_input_bytes")? + number("total_net_output_bytes")?,
            pings: i64::try_from(swarm.control_pings)?,
            question: i64::try_from(question)?,
        })
    }

    /// Commands and bytes of the lock clients alone.
    fn since(&self, earlier: &Self) -> (f64, f64) {
        const PING_AND_PONG: i64 = 14 + 7;
        let pings = self.pings - earlier.pings;
        // The later numbers include the later question's bytes and the earlier
        // one's answer.
        let commands = self.commands - earlier.commands - pings - 1;
        let bytes = self.bytes - earlier.bytes - pings * PING_AND_PONG - earlier.question;
        (commands as f64, bytes as f64)
    }
}
