//! Locks that several clients want at once.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;

use super::Pace;
use crate::measurement::{MS, Measurement, histogram, jain};
use crate::protocols::{Event, LEASE, Protocol};
use crate::server::Server;
use crate::swarm::Swarm;

const LOCK: &str = "lock:contended";
/// How often every client should get the lock, so that its share tells
/// something about fairness.
const TURNS: u32 = 12;
/// The most usual exponent for how unevenly keys are wanted.
const ZIPF_EXPONENT: f64 = 0.99;
const SEED: u64 = 1;

/// One lock, fought over.
pub fn run(
    protocol: &Protocol,
    server: &Server,
    pace: Pace,
    clients: usize,
    section: Duration,
) -> Result<Measurement> {
    let a_turn_each = section * u32::try_from(clients)?;
    let pace = Pace {
        warm_up: pace.warm_up.max(a_turn_each),
        measure: pace.measure.max(TURNS * a_turn_each),
    };
    let locks = [LOCK.to_string()];
    fight(protocol, server, pace, clients, section, &locks, || 0)
}

/// Many locks, each client wanting one after the other.
pub fn run_zipf(
    protocol: &Protocol,
    server: &Server,
    pace: Pace,
    clients: usize,
    locks: usize,
) -> Result<Measurement> {
    let locks: Vec<String> = (0..locks).map(|n| format!("lock:{n:06}")).collect();
    let zipf = Zipf::new(locks.len() as f64, ZIPF_EXPONENT)?;
    let mut random = SmallRng::seed_from_u64(SEED);
    let pick = || random.sample(zipf) as usize - 1;
    fight(
        protocol,
        server,
        pace,
        clients,
        Duration::ZERO,
        &locks,
        pick,
    )
}

struct Count {
    start: Instant,
    cpu: Duration,
    sections: Vec<u64>,
    waits: Histogram<u64>,
}

fn fight(
    protocol: &Protocol,
    server: &Server,
    pace: Pace,
    clients: usize,
    section: Duration,
    locks: &[String],
    mut pick: impl FnMut() -> usize,
) -> Result<Measurement> {
    protocol.set_up(&mut server.connect()?, locks)?;
    let mut swarm = Swarm::connect(server.addr(), protocol, clients)?;
    // When each client began to wait, unless it holds the lock.
    let mut waits_since = vec![None; clients];
    for (n, since) in waits_since.iter_mut().enumerate() {
        *since = Some(Instant::now());
        swarm.acquire(n, &locks[pick()], LEASE)?;
    }
    let warm = Instant::now() + pace.warm_up;
    let mut count: Option<Count> = None;
    // With sections that take time there is one lock, so one holder.
    let mut to_release: Option<(Instant, usize)> = None;
    let mut happened = Vec::new();
    loop {
        let end = count
            .as_ref()
            .map_or(warm, |count| count.start + pace.measure);
        let deadline = to_release.map_or(end, |(at, _)| at.min(end));
        swarm.next(Some(deadline), &mut happened)?;
        for event in happened.drain(..) {
            let n = event.client;
            match event.event {
                Event::Held => {
                    let since = waits_since[n].take();
                    if let (Some(count), Some(since)) = (&mut count, since) {
                        count.sections[n] += 1;
                        count.waits.record((event.at - since).as_nanos() as u64)?;
                    }
                    if section.is_zero() {
                        swarm.release(n)?;
                    } else {
                        to_release = Some((event.at + section, n));
                    }
                }
                Event::Released => {
                    waits_since[n] = Some(Instant::now());
                    swarm.acquire(n, &locks[pick()], LEASE)?;
                }
            }
        }
        let now = Instant::now();
        if let Some((at, n)) = to_release
            && at <= now
        {
            to_release = None;
            swarm.release(n)?;
        }
        match &mut count {
            None if now >= warm => {
                count = Some(Count {
                    start: now,
                    cpu: server.cpu_time()?,
                    sections: vec![0; clients],
                    waits: histogram(),
                });
            }
            Some(counted) if now >= counted.start + pace.measure => {
                let cpu = server.cpu_time()? - counted.cpu;
                // Who still waits has waited this long at least.
                for since in waits_since.iter().flatten() {
                    counted.waits.record((now - *since).as_nanos() as u64)?;
                }
                let sections: u64 = counted.sections.iter().sum();
                let wall = (now - counted.start).as_secs_f64();
                let mut measurement = Measurement::default();
                measurement.figure("sections/s", sections as f64 / wall);
                measurement.figure("Jain's fairness", jain(&counted.sections));
                let cpu_us = cpu.as_secs_f64() * 1e6;
                measurement.figure("server CPU µs/section", cpu_us / sections as f64);
                let waits = counted.waits.clone();
                measurement.quantiles("wait p50 ms", "wait p99 ms", MS, &waits);
                return Ok(measurement);
            }
            _ => {}
        }
    }
}
