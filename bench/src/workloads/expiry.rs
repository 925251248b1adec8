//! Locks that come free though nobody releases them.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::measurement::{MS, Measurement, histogram};
use crate::protocols::{Event, Protocol};
use crate::server::Server;
use crate::swarm::Swarm;

const LOCKS: usize = 200;
/// Whole seconds are the least that python-redis-lock can do.
const LEASE: Duration = Duration::from_secs(1);
/// The locks are taken one after the other, so that they don't end together.
const STEP: Duration = Duration::from_millis(3);
/// When, in a lease, a second client begins to wait, and when the holder dies.
const WAIT_AFTER: Duration = Duration::from_millis(300);
const DIE_AFTER: Duration = Duration::from_millis(400);

/// From the end of a lease, counted from when its request was sent, to the next
/// holder's reply.
pub fn run(protocol: &Protocol, server: &Server) -> Result<Measurement> {
    let late = lose_holders(protocol, server, None)?;
    let mut measurement = Measurement::default();
    measurement.quantiles(
        "after the lease p50 ms",
        "after the lease p99 ms",
        MS,
        &late,
    );
    Ok(measurement)
}

/// From the death of a holder to the next holder's reply.
pub fn run_killed(protocol: &Protocol, server: &Server) -> Result<Measurement> {
    let late = lose_holders(protocol, server, Some(DIE_AFTER))?;
    let mut measurement = Measurement::default();
    measurement.quantiles(
        "after the death p50 ms",
        "after the death p99 ms",
        MS,
        &late,
    );
    Ok(measurement)
}

/// A step of the plan, for the lock of this number.
#[derive(Clone, Copy)]
enum Step {
    Hold(usize),
    Wait(usize),
    Die(usize),
}

fn lose_holders(
    protocol: &Protocol,
    server: &Server,
    die_after: Option<Duration>,
) -> Result<hdrhistogram::Histogram<u64>> {
    let locks: Vec<String> = (0..LOCKS).map(|n| format!("lock:{n:06}")).collect();
    protocol.set_up(&mut server.connect()?, &locks)?;
    // The first half holds, the second half waits.
    let mut swarm = Swarm::connect(server.addr(), protocol, 2 * LOCKS)?;
    // A lease is counted from its request, which shall not wait until the server
    // has let everybody in.
    let mut happened = Vec::new();
    swarm.settle(&mut happened)?;
    let mut plan: Vec<(Duration, Step)> = Vec::new();
    for n in 0..LOCKS {
        let at = STEP * u32::try_from(n)?;
        plan.push((at, Step::Hold(n)));
        plan.push((at + WAIT_AFTER, Step::Wait(n)));
        plan.extend(die_after.map(|after| (at + after, Step::Die(n))));
    }
    plan.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
    let start = Instant::now();
    let mut free_at = vec![start; LOCKS];
    let mut late = histogram();
    while late.len() < LOCKS as u64 {
        let deadline = plan.last().map(|&(at, _)| start + at);
        swarm.next(deadline, &mut happened)?;
        for event in happened.drain(..) {
            if let (Event::Held, Some(n)) = (event.event, event.client.checked_sub(LOCKS)) {
                let late_ns = event.at.saturating_duration_since(free_at[n]).as_nanos();
                late.record(late_ns as u64)?;
            }
        }
        while let Some(&(at, step)) = plan.last()
            && start + at <= Instant::now()
        {
            plan.pop();
            match step {
                Step::Hold(n) => {
                    free_at[n] = Instant::now() + LEASE;
                    swarm.acquire(n, &locks[n], LEASE)?;
                }
                Step::Wait(n) => swarm.acquire(LOCKS + n, &locks[n], LEASE)?,
                Step::Die(n) => {
                    free_at[n] = Instant::now();
                    swarm.kill(n);
                }
            }
        }
    }
    Ok(late)
}
