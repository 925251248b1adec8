//! What many places in this module's queues cost. All are one client's: it has one
//! connection for commands, and one for messages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use redis_lock_testing::{Connection, pack, reply_text};
use subject::told;

use super::Pace;
use super::memory::data_bytes;
use crate::measurement::{Measurement, US, histogram};
use crate::protocols::owner_name;
use crate::server::Server;

const PLACES: usize = 100_000;
/// Owners. Two that wait for each other's locks would be refused as a deadlock.
const MANY: Range<usize> = 0..PLACES + 1;
const TWO: Range<usize> = MANY.end..MANY.end + 2;
const HOLDER: usize = TWO.end;
/// Commands of one kind before the other kind has its turn, and those of a write after
/// the first turn, which goes one by one.
const TURN: usize = 10_000;
const BATCH: usize = 500;
const CHANNEL: &str = "channel";
const LONG_MS: &str = "600000";
/// What many commands leave to do is over by then.
const REST: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(4);

/// Asks for many places, hands a lock on among few and among many, and watches the
/// server while nothing happens to any of them.
pub fn run(server: &Server, pace: Pace) -> Result<Measurement> {
    let mut info = server.connect()?;
    // Of one lock, by default 65,536.
    let most = (PLACES + 1).to_string();
    info.call_ok(&["CONFIG", "SET", "lock.max-waiters", &most])?;
    let mut client = Client::connect(server)?;
    let mut measurement = Measurement::default();

    client.send_all(TWO.take(1), |n| hold("lock:one", n))?;
    client.send_all(TWO.skip(1), |n| ask("lock:one", n))?;
    let one_us = client.hand_off("lock:one", TWO, pace)?;

    client.send_all(MANY.take(1), |n| hold("lock:many", n))?;
    let (mut one_by_one, mut setting, mut asking, mut bytes) = (0.0, 0.0, 0.0, 0);
    for from in (1..=PLACES).step_by(TURN) {
        if from > 1 {
            client.batch = BATCH;
        }
        let numbers = from..from + TURN;
        setting += client.send_all(numbers.clone(), set)?;
        bytes -= data_bytes(&mut info)?;
        asking += client.send_all(numbers, |n| ask("lock:many", n))?;
        bytes += data_bytes(&mut info)?;
        if from == 1 {
            one_by_one = setting / asking;
            (setting, asking) = (0.0, 0.0);
        }
    }
    let many_us = client.hand_off("lock:many", MANY, pace)?;

    let lock = |n| format!("lock:{n:06}");
    client.send_all(MANY.skip(1), |n| hold(&lock(n), HOLDER))?;
    client.send_all(MANY.skip(1), |n| ask(&lock(n), n))?;
    sleep(REST);
    let (cpu, from) = (server.cpu_time()?, Instant::now());
    sleep(IDLE);
    let busy = (server.cpu_time()? - cpu).as_secs_f64() / from.elapsed().as_secs_f64();

    let places = PLACES as f64;
    measurement.figure("places/s to SET/s", one_by_one);
    measurement.figure("the same, 500 a write", setting / asking);
    measurement.figure("bytes/wait", bytes as f64 / places);
    measurement.figure("hand-off p50 µs, one place", one_us);
    measurement.figure("100,000 places", many_us);
    measurement.figure("to one", many_us / one_us);
    measurement.figure("idle, % of a processor", 100.0 * busy);
    Ok(measurement)
}

fn set(n: usize) -> Vec<u8> {
    pack(&["SET", &format!("value:{n}"), &owner_name(n)])
}

fn hold(lock: &str, n: usize) -> Vec<u8> {
    pack(&["LOCK.ACQUIRE", lock, &owner_name(n), "LEASE", LONG_MS])
}

fn ask(lock: &str, n: usize) -> Vec<u8> {
    let owner = owner_name(n);
    pack(&[
        "LOCK.ACQUIRE",
        lock,
        &owner,
        "LEASE",
        LONG_MS,
        "QUEUE",
        LONG_MS,
        CHANNEL,
    ])
}

struct Client {
    pipeline: TcpStream,
    /// Commands of a write.
    batch: usize,
    commands: Connection,
    messages: Connection,
}

impl Client {
    fn connect(server: &Server) -> Result<Self> {
        let mut messages = server.connect()?;
        messages.call_ok(&["SUBSCRIBE", CHANNEL])?;
        let pipeline = TcpStream::connect(server.addr())?;
        pipeline.set_nodelay(true)?;
        Ok(Self {
            pipeline,
            batch: 1,
            commands: server.connect()?,
            messages,
        })
    }

    /// Sends a command of each number, and returns how many seconds that took, replies
    /// included.
    fn send_all(
        &mut self,
        numbers: impl Iterator<Item = usize>,
        command: impl Fn(usize) -> Vec<u8>,
    ) -> Result<f64> {
        let numbers: Vec<usize> = numbers.collect();
        let packed = |batch: &[usize]| {
            (
                batch.len(),
                batch.iter().flat_map(|n| command(*n)).collect(),
            )
        };
        let batches: Vec<(usize, Vec<u8>)> = numbers.chunks(self.batch).map(packed).collect();
        let mut replies = vec![0; 32 * 1024];
        let from = Instant::now();
        for (mut unanswered, batch) in batches {
            self.pipeline.write_all(&batch)?;
            while unanswered > 0 {
                let read = self.pipeline.read(&mut replies)?;
                ensure!(read > 0, "the server hung up");
                let read = &replies[..read];
                ensure!(!read.contains(&b'-'), "{}", String::from_utf8_lossy(read));
                // A line each.
                unanswered -= read.iter().filter(|byte| **byte == b'\n').count();
            }
        }
        Ok(from.elapsed().as_secs_f64())
    }

    /// Hands the lock on, from the first of these owners to the next one, and so on.
    /// Whoever gave it back is the last one then. Returns the median from the release to
    /// the message.
    fn hand_off(&mut self, lock: &str, owners: Range<usize>, pace: Pace) -> Result<f64> {
        let mut latencies = histogram();
        let warm = Instant::now() + pace.warm_up;
        for (holder, next) in owners.clone().cycle().zip(owners.cycle().skip(1)) {
            let released = Instant::now();
            self.commands
                .send(&["LOCK.RELEASE", lock, &owner_name(holder)])?;
            let message = self.messages.reply()?;
            if warm < released {
                latencies.record(released.elapsed().as_nanos() as u64)?;
            }
            self.commands.reply()?.extract_error()?;
            let text = message.as_sequence().and_then(|parts| parts.last());
            let text = text.cloned().and_then(reply_text);
            let text = text.with_context(|| format!("no message: {message:?}"))?;
            let next = owner_name(next);
            let claim = [
                "LOCK.RENEW",
                lock,
                &next,
                "LEASE",
                LONG_MS,
                "FENCE",
                told(&text),
            ];
            self.commands.call_ok(&claim)?;
            self.commands.send_bytes(&ask(lock, holder))?;
            self.commands.reply()?.extract_error()?;
            if warm + pace.measure < released {
                break;
            }
        }
        Ok(latencies.value_at_quantile(0.5) as f64 / US)
    }
}
