//! Locks that nobody else wants.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Pace;
use crate::measurement::{Measurement, US, histogram};
use crate::protocols::{Event, LEASE, Protocol, owner_name};
use crate::replies::ReplyBuffer;
use crate::server::Server;
use crate::swarm::Swarm;

const PAIRS_A_WRITE: usize = 100;
const REPLY_WITHIN: Duration = Duration::from_secs(30);

/// Takes and gives back, one command at a time on each connection.
pub fn run(
    protocol: &Protocol,
    server: &Server,
    pace: Pace,
    clients: usize,
) -> Result<Measurement> {
    let locks: Vec<String> = (0..clients).map(|n| format!("lock:{n:06}")).collect();
    protocol.set_up(&mut server.connect()?, &locks)?;
    let mut swarm = Swarm::connect(server.addr(), protocol, clients)?;
    let mut began = vec![Instant::now(); clients];
    for (n, lock) in locks.iter().enumerate() {
        swarm.acquire(n, lock, LEASE)?;
    }
    let warm = Instant::now() + pace.warm_up;
    let mut start = None;
    let mut pairs = 0u64;
    let mut latencies = histogram();
    let mut happened = Vec::new();
    loop {
        swarm.next(None, &mut happened)?;
        for event in happened.drain(..) {
            let n = event.client;
            match event.event {
                Event::Held => swarm.release(n)?,
                Event::Released => {
                    if start.is_some() {
                        pairs += 1;
                        latencies.record((event.at - began[n]).as_nanos() as u64)?;
                    }
                    began[n] = Instant::now();
                    swarm.acquire(n, &locks[n], LEASE)?;
                }
            }
        }
        let now = Instant::now();
        match start {
            None if now >= warm => start = Some((now, server.cpu_time()?)),
            Some((start, cpu)) if now >= start + pace.measure => {
                let cpu = server.cpu_time()? - cpu;
                let mut measurement = Measurement::default();
                measurement.figure("pairs/s", pairs as f64 / (now - start).as_secs_f64());
                measurement.figure("server CPU µs/pair", cpu.as_secs_f64() * 1e6 / pairs as f64);
                measurement.quantiles("pair p50 µs", "pair p99 µs", US, &latencies);
                return Ok(measurement);
            }
            _ => {}
        }
    }
}

fn connect(server: &Server) -> Result<TcpStream> {
    let stream = TcpStream::connect(server.addr())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REPLY_WITHIN))?;
    Ok(stream)
}

/// Takes and gives back a hundred times in one write, so that the server's time
/// goes into the commands and not into the network.
pub fn run_pipelined(protocol: &Protocol, server: &Server, pace: Pace) -> Result<Measurement> {
    let lock = "lock:pipelined".to_string();
    let owner = owner_name(0);
    protocol.set_up(&mut server.connect()?, std::slice::from_ref(&lock))?;
    let (mut stream, mut replies) = (connect(server)?, ReplyBuffer::default());
    let mut n = 0;
    let mut write = || -> Result<()> {
        let batch: Vec<u8> = (n..n + PAIRS_A_WRITE)
            .flat_map(|n| (protocol.pair)(&lock, &owner, n))
            .collect();
        n += PAIRS_A_WRITE;
        stream.write_all(&batch)?;
        for _ in 0..PAIRS_A_WRITE * protocol.pair_replies {
            replies.await_next(&mut stream)?;
        }
        Ok(())
    };
    let warm = Instant::now() + pace.warm_up;
    while Instant::now() < warm {
        write()?;
    }
    let start = Instant::now();
    let cpu = server.cpu_time()?;
    let mut pairs = 0;
    while start.elapsed() < pace.measure {
        write()?;
        pairs += PAIRS_A_WRITE;
    }
    let wall = start.elapsed();
    let cpu = server.cpu_time()? - cpu;
    let mut measurement = Measurement::default();
    measurement.figure("server CPU µs/pair", cpu.as_secs_f64() * 1e6 / pairs as f64);
    measurement.figure("pairs/s", pairs as f64 / wall.as_secs_f64());
    Ok(measurement)
}
