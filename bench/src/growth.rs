//! What a command costs against how many there are of something, and what the longest turn
//! of the event loop is when all of them come to an end at once.
//!
//! `usec` is the server's own time a call, as `INFO commandstats` has it. The worst `PING` of
//! a connection that pings all the while shows how long a turn of the event loop takes at
//! most; the processor's time that the server used between two of them says the same,
//! whatever else the machine does. What the server's own hashes cost stands beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use redis::Value;
use redis_lock_testing::{
    Connection, SOON, Server, Told, comes_true, info_field, raise_file_limit,
};

use crate::{Subject, cpu_time};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    subject: Subject,
    /// How many places, sessions, holders and contended locks
    #[arg(long, default_value_t = 100_000)]
    crowd: usize,
    /// How many locks are held
    #[arg(long, default_value_t = 1_000_000)]
    locks: usize,
    /// Measures only what has this in its name
    #[arg(long, default_value = "")]
    only: String,
}

/// How often each command is measured, and each time how many of them.
const ROUNDS: usize = 15;
const A_ROUND: usize = 100;

/// Commands a pipeline sends before it reads the replies.
const BATCH: usize = 500;

/// What becomes more and more, and the command that is measured then. In each command `{n}`
/// is its number, and `{m}` the same below 100. Of a queue's places the first one holds the
/// lock.
struct Curve {
    label: &'static str,
    make: &'static [&'static str],
    measured: &'static str,
    /// What undoes the command that is measured.
    undo: &'static str,
}

const HELD: &[&str] = &["LOCK.ACQUIRE l{n} h LEASE 600000"];
const PLACES: &[&str] = &["LOCK.ACQUIRE k o{n} LEASE 600000 QUEUE 86400000 told"];
const HOLDERS: &[&str] = &["LOCK.ACQUIRE k o{n} LEASE 600000 SHARED"];
const SESSIONS: &[&str] = &["LOCK.ACQUIRE l{n} h LEASE 600000 SESSION"];
const SESSIONS_ON_ONE: &[&str] = &["LOCK.ACQUIRE k o{n} LEASE 600000 SHARED SESSION"];
const CONTENDED: &[&str] = &[
    "LOCK.ACQUIRE l{n} h LEASE 600000",
    "LOCK.ACQUIRE l{n} w LEASE 600000 QUEUE 86400000 told",
];
const SHORT_LEASES: &[&str] = &["LOCK.ACQUIRE l{n} h LEASE 20000", CONTENDED[1]];
const HASHES: &[&str] = &["HSET l{n} h 1 @fence 1790000000000000"];
const SHORT_HASHES: &[&str] = &[HASHES[0], "PEXPIRE l{n} 20000"];
const FIELDS: &[&str] = &["HSET k o{n} 1 @permit:o{n} 0-1790000000000000-1790000000000"];

const CURVES: [Curve; 11] = [
    Curve {
        label: "acquire, locks held",
        make: HELD,
        measured: "LOCK.ACQUIRE m{n} o LEASE 600000",
        undo: "LOCK.RELEASE m{n} o",
    },
    Curve {
        label: "renew, locks held",
        make: HELD,
        measured: "LOCK.RENEW l{m} h LEASE 600000",
        undo: "",
    },
    Curve {
        label: "new place, waiters on the lock",
        make: PLACES,
        measured: "LOCK.ACQUIRE k m{n} LEASE 600000 QUEUE 86400000 told",
        undo: "LOCK.RELEASE k m{n}",
    },
    Curve {
        label: "release, waiters on the lock",
        make: PLACES,
        // Each in its turn, to the end of the queue again.
        measured: "LOCK.RELEASE k o{n}",
        undo: "LOCK.ACQUIRE k again{n} LEASE 600000 QUEUE 86400000 told",
    },
    Curve {
        label: "new place, contended locks",
        make: CONTENDED,
        measured: "LOCK.ACQUIRE l{m} m{n} LEASE 600000 QUEUE 86400000 told",
        undo: "LOCK.RELEASE l{m} m{n}",
    },
    Curve {
        label: "renew, contended locks",
        make: CONTENDED,
        measured: "LOCK.RENEW l{m} h LEASE 600000",
        undo: "",
    },
    Curve {
        label: "new holder, holders of the lock",
        make: HOLDERS,
        measured: "LOCK.ACQUIRE k m{n} LEASE 600000 SHARED",
        undo: "LOCK.RELEASE k m{n}",
    },
    Curve {
        label: "renew, holders of the lock",
        make: HOLDERS,
        measured: "LOCK.RENEW k o{m} LEASE 600000",
        undo: "",
    },
    Curve {
        label: "floor, HSET of two fields, holders of the lock",
        make: FIELDS,
        measured: "HSET k m{n} 1 @permit:m{n} 0-1790000000000000-1790000000000",
        undo: "HDEL k m{n} @permit:m{n}",
    },
    Curve {
        label: "acquire, sessions of the connection",
        make: SESSIONS,
        measured: "LOCK.ACQUIRE m{n} o LEASE 600000 SESSION",
        undo: "LOCK.RELEASE m{n} o",
    },
    Curve {
        label: "release, sessions of the connection",
        make: SESSIONS,
        measured: "LOCK.RELEASE l{n} h",
        undo: "LOCK.ACQUIRE l{n} h LEASE 600000 SESSION",
    },
];

/// Something that happens to as many at once.
struct Event {
    label: &'static str,
    /// Before all others.
    first: &'static str,
    make: &'static [&'static str],
    happens: Happens,
    /// Whether those who are granted a lock claim it.
    claims: bool,
    /// The field of `INFO` that has this value when all is over.
    over: (&'static str, &'static str),
}

enum Happens {
    Command(&'static str),
    ConnectionCloses,
    /// What `make` says lasts 20 s, and is over then.
    TimeIsOver,
}

const NOBODY_WAITS: (&str, &str) = ("lock_waiters", "0");
const NO_SESSION: (&str, &str) = ("lock_sessions", "0");
const READERS: &[&str] = &["LOCK.ACQUIRE k o{n} LEASE 600000 SHARED QUEUE 86400000 told"];

const fn event(
    label: &'static str,
    make: &'static [&'static str],
    happens: Happens,
    over: (&'static str, &'static str),
) -> Event {
    Event {
        label,
        first: "PING",
        make,
        happens,
        claims: true,
        over,
    }
}

const EVENTS: [Event; 14] = [
    Event {
        first: "LOCK.ACQUIRE k w LEASE 600000",
        ..event(
            "a writer's release, readers behind it",
            READERS,
            Happens::Command("LOCK.RELEASE k w"),
            NOBODY_WAITS,
        )
    },
    Event {
        first: "LOCK.ACQUIRE k w LEASE 600000",
        claims: false,
        ..event(
            "a writer's release, readers behind it that claim nothing",
            READERS,
            Happens::Command("LOCK.RELEASE k w"),
            NOBODY_WAITS,
        )
    },
    event(
        "DEL of a lock, waiters on it",
        PLACES,
        Happens::Command("DEL k"),
        ("lock_grants_after_wait", "1"),
    ),
    event(
        "DEL of a shared lock, holders of it",
        HOLDERS,
        Happens::Command("DEL k"),
        NO_SESSION,
    ),
    event(
        "SET in a lock's place, waiters on it",
        PLACES,
        Happens::Command("SET k v"),
        NOBODY_WAITS,
    ),
    event(
        "FLUSHALL, contended locks",
        CONTENDED,
        Happens::Command("FLUSHALL"),
        NOBODY_WAITS,
    ),
    event(
        "SWAPDB, contended locks",
        CONTENDED,
        Happens::Command("SWAPDB 0 1"),
        NOBODY_WAITS,
    ),
    event(
        "the connection closes, sessions of it",
        SESSIONS,
        Happens::ConnectionCloses,
        NO_SESSION,
    ),
    event(
        "the connection closes, sessions of it on one lock",
        SESSIONS_ON_ONE,
        Happens::ConnectionCloses,
        NO_SESSION,
    ),
    Event {
        first: "LOCK.ACQUIRE k w LEASE 600000",
        ..event(
            "the time of places is over, waiters on a lock",
            &["LOCK.ACQUIRE k o{n} LEASE 600000 QUEUE 20000 told"],
            Happens::TimeIsOver,
            NOBODY_WAITS,
        )
    },
    event(
        "leases are over, contended locks",
        SHORT_LEASES,
        Happens::TimeIsOver,
        NOBODY_WAITS,
    ),
    event(
        "floor, leases are over, hashes",
        SHORT_HASHES,
        Happens::TimeIsOver,
        ("db0", ""),
    ),
    event(
        "floor, FLUSHALL, hashes",
        HASHES,
        Happens::Command("FLUSHALL"),
        ("db0", ""),
    ),
    event(
        "floor, DEL of a hash, fields of two",
        FIELDS,
        Happens::Command("DEL k"),
        ("db0", ""),
    ),
];

/// What shows a crowd as a whole.
const LOOKS: [(&str, &[&str], &str); 4] = [
    ("LOCK.INFO, waiters on the lock", PLACES, "LOCK.INFO k"),
    ("LOCK.INFO, holders of the lock", HOLDERS, "LOCK.INFO k"),
    (
        "LOCK.LIST, contended locks",
        CONTENDED,
        "LOCK.LIST COUNT 10",
    ),
    ("INFO lock, contended locks", CONTENDED, "INFO lock"),
];

/// What takes memory, the beginning of which is there before.
const MEMORY: [(&str, &str, &[&str]); 3] = [
    ("memory of a held lock", "PING", HELD),
    (
        "memory of a place in a queue",
        "LOCK.ACQUIRE k w LEASE 600000",
        PLACES,
    ),
    (
        "memory of a held lock and the only place for it",
        "PING",
        CONTENDED,
    ),
];

/// As many of these clients wait.
const BLOCKED: usize = 1_000;
const BLOCKING: [(&str, &str); 2] = [
    (
        "memory of a client in LOCK.ACQUIRE",
        "LOCK.ACQUIRE k o{n} LEASE 600000 BLOCK 0",
    ),
    ("memory of a client in BLPOP", "BLPOP list 0"),
];

pub fn run(options: &Options) -> Result<()> {
    raise_file_limit()?;
    println!("| what | measured |\n|---|---|");
    let wanted = |label: &str| label.contains(&options.only);
    for curve in CURVES.iter().filter(|curve| wanted(curve.label)) {
        let most = most(options, curve.make);
        // As many as a round needs, at least.
        for count in [100, 1_000, 10_000, 100_000, 1_000_000] {
            if count <= most.max(100) {
                println!(
                    "| {}: {count} | {:.1} usec |",
                    curve.label,
                    at(options, curve, count)?
                );
            }
        }
    }
    for event in EVENTS.iter().filter(|event| wanted(event.label)) {
        let count = most(options, event.make);
        println!("| {}: {count} | {} |", event.label, happen(options, event)?);
    }
    for (label, first, make) in MEMORY.iter().filter(|(label, ..)| wanted(label)) {
        let server = start(options)?;
        let mut connection = server.connect()?;
        run_all(&mut connection, &[(*first).into()])?;
        let before = data_bytes(&mut connection)?;
        run_all(&mut connection, &all(options.crowd, make))?;
        let bytes = (data_bytes(&mut connection)? - before) as f64 / options.crowd as f64;
        println!("| {label} | {bytes:.0} bytes |");
    }
    for (label, line) in BLOCKING.iter().filter(|(label, _)| wanted(label)) {
        println!(
            "| {label}, and its connection | {:.0} bytes |",
            blocked(options, line)?
        );
    }
    for (label, make, line) in LOOKS.iter().filter(|(label, ..)| wanted(label)) {
        let server = start(options)?;
        let mut connection = server.connect()?;
        let count = most(options, make);
        run_all(&mut connection, &all(count, make))?;
        let usec = usec_per_call(&mut connection, &vec![(*line).into(); 5])?;
        println!("| {label}: {count} | {usec:.0} usec |");
    }
    Ok(())
}

/// How many there are at most. Each command reads the whole hash of its lock, so many holders
/// of one would take hours to come.
fn most(options: &Options, make: &[&str]) -> usize {
    if make == HELD {
        options.locks
    } else if [HOLDERS, SESSIONS_ON_ONE, READERS].contains(&make) {
        options.crowd.min(10_000)
    } else {
        options.crowd
    }
}

fn start(options: &Options) -> Result<Server> {
    let limits = ["max-waiters", "1000000", "max-holders", "65536"];
    options.subject.with_module(&limits)?.start()
}

fn numbered(line: &str, n: usize) -> String {
    let below_100 = (n % 100).to_string();
    line.replace("{n}", &n.to_string())
        .replace("{m}", &below_100)
}

fn all(count: usize, make: &[&str]) -> Vec<String> {
    let numbers = 0..count;
    numbers
        .flat_map(|n| make.iter().map(move |line| numbered(line, n)))
        .collect()
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Sends these commands, and reads their replies.
fn run_all(connection: &mut Connection, lines: &[String]) -> Result<()> {
    for batch in lines.chunks(BATCH) {
        let batch: Vec<Vec<&str>> = batch.iter().map(|line| words(line)).collect();
        connection.send_all(&batch)?;
        for _ in &batch {
            connection.reply()?.extract_error()?;
        }
    }
    Ok(())
}

/// The server's time for each of these commands, in microseconds.
fn usec_per_call(connection: &mut Connection, lines: &[String]) -> Result<f64> {
    connection.call_ok(&["CONFIG", "RESETSTAT"])?;
    for line in lines {
        connection.call_ok(&words(line))?;
    }
    let stats = connection.info_section("commandstats")?;
    let name = words(lines.first().context("no command")?)[0].to_lowercase();
    let stats = info_field(&stats, &format!("cmdstat_{name}"))?;
    let usec = stats
        .split(',')
        .find_map(|field| field.strip_prefix("usec_per_call="));
    Ok(usec.context("no time a call")?.parse()?)
}

/// What is used without the buffers of clients.
fn data_bytes(connection: &mut Connection) -> Result<i64> {
    Ok(connection.info("used_memory")? - connection.info("mem_clients_normal")?)
}

/// The bytes of each client that waits so, with its connection.
fn blocked(options: &Options, line: &str) -> Result<f64> {
    let server = start(options)?;
    let mut observer = server.connect()?;
    run_all(
        &mut observer,
        &["LOCK.ACQUIRE k holder LEASE 600000".into()],
    )?;
    let before = observer.info("used_memory")?;
    let mut waiting = Vec::new();
    for n in 0..BLOCKED {
        let mut connection = server.connect()?;
        connection.send(&words(&numbered(line, n)))?;
        waiting.push(connection);
    }
    let all_wait = || {
        observer
            .info("blocked_clients")
            .is_ok_and(|count| count == BLOCKED as i64)
    };
    ensure!(comes_true(SOON, all_wait), "clients do not wait");
    Ok((observer.info("used_memory")? - before) as f64 / BLOCKED as f64)
}

/// The median of the rounds, in microseconds a command.
fn at(options: &Options, curve: &Curve, count: usize) -> Result<f64> {
    let server = start(options)?;
    listen(&server, false)?;
    let mut connection = server.connect()?;
    run_all(&mut connection, &all(count, curve.make))?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        // Of 100, the ones that are released are not used up before the end.
        let each = A_ROUND.min(count / ROUNDS).max(1);
        let numbers = round * each..(round + 1) * each;
        let lines = |line: &str| {
            numbers
                .clone()
                .map(|n| numbered(line, n))
                .collect::<Vec<_>>()
        };
        rounds.push(usec_per_call(&mut connection, &lines(curve.measured))?);
        if !curve.undo.is_empty() {
            run_all(&mut connection, &lines(curve.undo))?;
        }
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// Somebody who hears of all grants, and claims each where `claims` says so.
fn listen(server: &Server, claims: bool) -> Result<()> {
    let (mut listener, mut claimer) = (server.connect()?, server.connect()?);
    listener.call_ok(&["SUBSCRIBE", "told"])?;
    // It ends with the server.
    spawn(move || {
        let mut unread = 0;
        loop {
            let heard = listener.next_within(Duration::from_millis(1))?;
            let told = heard.as_ref().and_then(Told::of);
            if let Some(told) = told.filter(|told| claims && told.result != "0") {
                let key = String::from_utf8_lossy(&told.key).into_owned();
                let (owner, token) = (&told.owner, &told.result);
                let claim = format!("LOCK.RENEW {key} {owner} LEASE 600000 FENCE {token}");
                claimer.send(&words(&claim))?;
                unread += 1;
            }
            // Who sends without end and never reads comes to a stand.
            if unread > 500 || heard.is_none() {
                for _ in 0..std::mem::take(&mut unread) {
                    claimer.reply()?;
                }
            }
        }
        #[allow(unreachable_code)]
        anyhow::Ok(())
    });
    Ok(())
}

/// Has it happen to a crowd, and returns what that took.
fn happen(options: &Options, event: &Event) -> Result<String> {
    let server = start(options)?;
    listen(&server, event.claims)?;
    let (mut connection, mut observer) = (server.connect()?, server.connect()?);
    observer.call_ok(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"])?;
    run_all(&mut connection, &[event.first.into()])?;
    run_all(&mut connection, &all(most(options, event.make), event.make))?;
    let slowest_before = slowest(&mut observer)?;
    observer.call_ok(&["SLOWLOG", "RESET"])?;
    let pinger = Pinger::start(&server)?;
    let mut open = Some(connection);
    match event.happens {
        Happens::Command(line) => {
            observer.call_ok(&words(line))?;
        }
        Happens::ConnectionCloses => open = None,
        Happens::TimeIsOver => {}
    }
    let (field, wanted) = event.over;
    let from = Instant::now();
    let is_over = || {
        sleep(Duration::from_millis(20));
        let info = observer.info_section("everything");
        info.is_ok_and(|info| info_field(&info, field).unwrap_or_default() == wanted)
    };
    let ends = comes_true(Duration::from_secs(60), is_over);
    let all_ms = from.elapsed().as_millis();
    // What is left to be done is done meanwhile.
    sleep(Duration::from_secs(2));
    let worst = pinger.worst()?;
    let ends = if ends { "over" } else { "not over" };
    let slowest = slowest(&mut observer)?;
    drop(open);
    Ok(format!(
        "{ends} after {all_ms} ms, {worst}, {slowest}; before: {slowest_before}"
    ))
}

/// The longest command of those that took more than a millisecond.
fn slowest(connection: &mut Connection) -> Result<String> {
    let Value::Array(entries) = connection.call_ok(&["SLOWLOG", "GET", "-1"])? else {
        bail!("no slow log");
    };
    let slow = entries.iter().filter_map(|entry| {
        let [_, _, Value::Int(usec), Value::Array(words), ..] = entry.as_sequence()? else {
            return None;
        };
        let Some(Value::BulkString(name)) = words.first() else {
            return None;
        };
        Some((*usec, String::from_utf8_lossy(name)))
    });
    let slow = slow.filter(|(_, name)| !["SLOWLOG", "CONFIG", "INFO"].contains(&name.as_ref()));
    Ok(match slow.max_by_key(|(usec, _)| *usec) {
        Some((usec, name)) => format!("slowest command {name} {usec} usec"),
        None => "no command above 1 ms".into(),
    })
}

/// A connection that pings all the while.
struct Pinger {
    goes_on: Arc<AtomicBool>,
    worst: JoinHandle<Result<(Duration, Duration)>>,
}

impl Pinger {
    fn start(server: &Server) -> Result<Self> {
        let mut connection = server.connect()?;
        let pid = server.pid().context("no server")?;
        let goes_on = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&goes_on);
        let worst = spawn(move || {
            let (mut worst, mut most, mut before) =
                (Duration::ZERO, Duration::ZERO, cpu_time(pid)?);
            while asked.load(Ordering::Relaxed) {
                let from = Instant::now();
                connection.call_ok(&["PING"])?;
                worst = worst.max(from.elapsed());
                let now = cpu_time(pid)?;
                most = most.max(now.saturating_sub(before));
                before = now;
                sleep(Duration::from_micros(100));
            }
            Ok((worst, most))
        });
        Ok(Self { goes_on, worst })
    }

    /// What it has seen.
    fn worst(self) -> Result<String> {
        self.goes_on.store(false, Ordering::Relaxed);
        let (worst, most) = self.worst.join().map_err(|_| anyhow!("no pinger"))??;
        let [worst, most] = [worst, most].map(|time| time.as_secs_f64() * 1e3);
        Ok(format!(
            "worst PING {worst:.2} ms, {most:.2} ms of CPU between two"
        ))
    }
}
