//! What a command and an idle server cost as locks, holders and waiters become many.
//!
//! Prints a table, and draws `growth.svg` with `--out`. `usec` is the server's own time a call, as `INFO commandstats` has
//! it; the worst `PING` is that of a connection that pings all the while, and shows
//! how long a turn of the event loop takes at most; the time of the processor that the
//! server used between two of them says the same, whatever else the machine does. What the server's own hash costs
//! stands beside it: the same fields written by `HSET`.

#![forbid(unsafe_code)]

mod curves;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use clap::Parser;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use redis_lock_testing::{Connection, Error, Result, SOON, Server, comes_true, raise_file_limit};
use subject::Subject;

/// Shows what it costs when locks, holders and waiters become many.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    subject: Subject,
    /// How many holders, waiters, sessions and contended keys
    #[arg(long, default_value_t = 9_000)]
    count: usize,
    /// How many of what needs no connection of its own: places, sessions, holders
    #[arg(long, default_value_t = 100_000)]
    crowd: usize,
    /// How many locks are held
    #[arg(long, default_value_t = 1_000_000)]
    locks: usize,
    /// Where the chart goes
    #[arg(long)]
    out: Option<PathBuf>,
    /// Of what happens to a crowd, only what has this in its name
    #[arg(long)]
    event: Option<String>,
    /// How long an idle server is watched, in seconds
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Measures only what has this in its name
    #[arg(long)]
    only: Option<String>,
}

const LONG_LEASE: &str = "600000";

/// Commands a pipeline sends before it reads the replies.
const BATCH: usize = 500;

type Measure = fn(&Options) -> Result<()>;

fn main() -> Result<()> {
    let options = Options::parse();
    raise_file_limit()?;
    println!("| what | measured |\n|---|---|");
    let all: [(&str, Measure); 9] = [
        ("curves", curves::curves),
        ("crowd-events", curves::events),
        ("renewals", renewals),
        ("session-readers", session_readers),
        ("readers-behind-a-writer", readers_behind_a_writer),
        ("waiters-in-two-queues", waiters_in_two_queues),
        ("contended-keys", contended_keys),
        ("floor", floor),
        ("by-other-hands", by_other_hands),
    ];
    for (name, measure) in all {
        if options
            .only
            .as_deref()
            .is_none_or(|only| name.contains(only))
        {
            measure(&options)?;
        }
    }
    Ok(())
}

fn start(options: &Options) -> Result<Server> {
    let clients = (options.count + 1_000).to_string();
    let mut setup = options.subject.with_module()?;
    setup.module_args = ["max-waiters", "1000000", "max-holders", "65536"]
        .map(String::from)
        .into();
    Server::start(setup.options(&["--maxclients", &clients, "--save", ""]))
}

fn row(what: &str, measured: &str) {
    println!("| {what} | {measured} |");
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
            let reply = connection.reply()?;
            reply.extract_error().map_err(Error::new)?;
        }
    }
    Ok(())
}

/// Clients that wait, each on a connection of its own.
fn wait_all(server: &Server, lines: &[String]) -> Result<Vec<Connection>> {
    let mut waiting = Vec::with_capacity(lines.len());
    for line in lines {
        let mut connection = server.connect()?;
        connection.send(&words(line))?;
        waiting.push(connection);
    }
    await_blocked(server, lines.len())?;
    Ok(waiting)
}

fn await_blocked(server: &Server, count: usize) -> Result<()> {
    let mut observer = server.connect()?;
    let wanted = i64::try_from(count).unwrap_or(i64::MAX);
    let is_so = || {
        observer
            .info("blocked_clients")
            .is_ok_and(|count| count == wanted)
    };
    match comes_true(3 * SOON, is_so) {
        true => Ok(()),
        false => Err(Error::new("clients do not wait")),
    }
}

/// The server's time a call, in microseconds, since the statistics were reset.
fn usec_per_call(connection: &mut Connection, command: &str) -> Result<f64> {
    let stats = connection.info_section("commandstats")?;
    let prefix = format!("cmdstat_{command}:");
    let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
    let fields = line.unwrap_or_default().split(',');
    let usec = fields
        .filter_map(|field| field.strip_prefix("usec_per_call="))
        .find_map(|number| number.parse().ok());
    Ok(usec.unwrap_or(f64::NAN))
}

fn reset_stats(connection: &mut Connection) -> Result<()> {
    connection.call_ok(&["CONFIG", "RESETSTAT"])?;
    Ok(())
}

/// How much of a processor the server uses, in percent.
fn idle_percent(server: &Server, options: &Options) -> Result<f64> {
    let mut connection = server.connect()?;
    let mut seconds = || -> Result<f64> {
        let info = connection.info_section("cpu")?;
        let part = |name| -> Result<f64> {
            let field = redis_lock_testing::info_field(&info, name)?;
            field.parse().map_err(Error::new)
        };
        Ok(part("used_cpu_sys")? + part("used_cpu_user")?)
    };
    // What the crowd that has just come left to do is over by then.
    sleep(Duration::from_secs(2));
    let (before, from) = (seconds()?, Instant::now());
    sleep(Duration::from_secs(options.idle));
    Ok(100.0 * (seconds()? - before) / from.elapsed().as_secs_f64())
}

/// A connection that pings all the while.
struct Pinger {
    goes_on: Arc<AtomicBool>,
    worst: JoinHandle<Result<(Duration, Duration)>>,
}

impl Pinger {
    fn start(server: &Server) -> Result<Self> {
        let mut connection = server.connect()?;
        let pid = server.pid().ok_or_else(|| Error::new("no server"))?;
        let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).map_err(Error::new)?;
        let goes_on = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&goes_on);
        let worst = spawn(move || {
            let cpu_time = || clock.now().map(Duration::from).map_err(Error::new);
            let (mut worst, mut most, mut before) = (Duration::ZERO, Duration::ZERO, cpu_time()?);
            while asked.load(Ordering::Relaxed) {
                let from = Instant::now();
                connection.call_ok(&["PING"])?;
                worst = worst.max(from.elapsed());
                let now = cpu_time()?;
                most = most.max(now.saturating_sub(before));
                before = now;
                sleep(Duration::from_micros(100));
            }
            Ok((worst, most))
        });
        Ok(Self { goes_on, worst })
    }

    fn worst_ms(self) -> Result<String> {
        self.goes_on.store(false, Ordering::Relaxed);
        let worst = self.worst.join();
        let (worst, most) = worst.unwrap_or_else(|_| Err(Error::new("no pinger")))?;
        let [worst, most] = [worst, most].map(|time| time.as_secs_f64() * 1e3);
        Ok(format!(
            "worst PING {worst:.2} ms, {most:.2} ms of CPU between two"
        ))
    }
}

fn renewals(options: &Options) -> Result<()> {
    for holders in [100, 1_000, options.count] {
        renewals_among(options, holders)?;
    }
    Ok(())
}

fn renewals_among(options: &Options, holders: usize) -> Result<()> {
    let server = start(options)?;
    let mut connection = server.connect()?;
    let acquire = |n| format!("LOCK.ACQUIRE k o{n} LEASE {LONG_LEASE} SHARED");
    run_all(
        &mut connection,
        &(0..holders).map(acquire).collect::<Vec<_>>(),
    )?;
    reset_stats(&mut connection)?;
    let renew = |n: usize| format!("LOCK.RENEW k o{} LEASE {LONG_LEASE}", n * 7 % holders);
    run_all(&mut connection, &(0..1_000).map(renew).collect::<Vec<_>>())?;
    let usec = usec_per_call(&mut connection, "lock.renew")?;
    row(
        &format!("renew, {holders} holders"),
        &format!("{usec:.1} usec"),
    );
    Ok(())
}

fn session_readers(options: &Options) -> Result<()> {
    let (server, count) = (start(options)?, options.count);
    let mut holder = server.connect()?;
    let acquire = |n| format!("LOCK.ACQUIRE k o{n} SHARED SESSION");
    run_all(&mut holder, &(0..count).map(acquire).collect::<Vec<_>>())?;
    let percent = idle_percent(&server, options)?;
    let pinger = Pinger::start(&server)?;
    sleep(Duration::from_secs(options.idle));
    let worst = pinger.worst_ms()?;
    row(
        &format!("{count} readers with sessions, idle"),
        &format!("{percent:.1}% of a core, {worst}"),
    );
    let pinger = Pinger::start(&server)?;
    drop(holder);
    let mut observer = server.connect()?;
    let is_gone = || matches!(observer.call(&["EXISTS", "k"]), Ok(redis::Value::Int(0)));
    comes_true(SOON, is_gone);
    row("their connection closes", &pinger.worst_ms()?);
    Ok(())
}

fn readers_behind_a_writer(options: &Options) -> Result<()> {
    let (server, count) = (start(options)?, options.count);
    let mut writer = server.connect()?;
    let acquire = format!("LOCK.ACQUIRE k w LEASE {LONG_LEASE}");
    writer.call_ok(&words(&acquire))?;
    let wait = |n| format!("LOCK.ACQUIRE k o{n} SHARED LEASE {LONG_LEASE} BLOCK 0");
    let waiting = wait_all(&server, &(0..count).map(wait).collect::<Vec<_>>())?;
    reset_stats(&mut writer)?;
    let pinger = Pinger::start(&server)?;
    let from = Instant::now();
    writer.call_ok(&["LOCK.RELEASE", "k", "w"])?;
    await_blocked(&server, 0)?;
    let all_ms = from.elapsed().as_millis();
    let worst = pinger.worst_ms()?;
    let usec = usec_per_call(&mut writer, "lock.release")?;
    row(
        &format!("a writer's release, {count} readers behind it"),
        &format!("{usec:.0} usec, all let in after {all_ms} ms, {worst}"),
    );
    drop(waiting);
    Ok(())
}

fn waiters_in_two_queues(options: &Options) -> Result<()> {
    let (server, owners) = (start(options)?, options.count / 2);
    let mut holder = server.connect()?;
    let acquire = |n| format!("LOCK.ACQUIRE l{n} h{n} LEASE {LONG_LEASE}");
    run_all(&mut holder, &(0..=owners).map(acquire).collect::<Vec<_>>())?;
    reset_stats(&mut holder)?;
    // Each waits for the next one's lock before that one does.
    let waits = |n: usize| [n, n + 1].map(|lock| (n, lock));
    let wait = |(owner, lock)| format!("LOCK.ACQUIRE l{lock} o{owner} BLOCK 0");
    let lines: Vec<String> = (0..owners).flat_map(waits).map(wait).collect();
    let waiting = wait_all(&server, &lines)?;
    let usec = usec_per_call(&mut holder, "lock.acquire")?;
    let count = waiting.len();
    row(
        &format!("{count} waits, each owner in two of {owners} queues"),
        &format!("{usec:.1} usec a wait"),
    );
    for (who, what) in [
        ("n", "by a newcomer"),
        ("h", "by an owner that others wait for"),
    ] {
        reset_stats(&mut holder)?;
        let pinger = Pinger::start(&server)?;
        let mut more = Vec::new();
        for n in 0..20 {
            let mut connection = server.connect()?;
            // All those before wait behind each other, and none of them for it.
            let (lock, owner) = (owners - 200 + n, owners - 100 + n);
            let wait = format!("LOCK.ACQUIRE l{lock} {who}{owner} BLOCK 0");
            connection.send(&words(&wait))?;
            more.push(connection);
        }
        await_blocked(&server, count + more.len())?;
        let (worst, usec) = (
            pinger.worst_ms()?,
            usec_per_call(&mut holder, "lock.acquire")?,
        );
        row(
            &format!("one more wait, {what}"),
            &format!("{usec:.1} usec, {worst}"),
        );
        drop(more);
        await_blocked(&server, count)?;
    }
    drop(waiting);
    Ok(())
}

fn contended_keys(options: &Options) -> Result<()> {
    let (server, count) = (start(options)?, options.count);
    let mut holder = server.connect()?;
    let acquire = |n| format!("LOCK.ACQUIRE l{n} h LEASE {LONG_LEASE}");
    run_all(&mut holder, &(0..count).map(acquire).collect::<Vec<_>>())?;
    let wait = |n| format!("LOCK.ACQUIRE l{n} o BLOCK 0");
    let waiting = wait_all(&server, &(0..count).map(wait).collect::<Vec<_>>())?;
    let percent = idle_percent(&server, options)?;
    row(
        &format!("{count} contended keys, idle"),
        &format!("{percent:.1}% of a core"),
    );
    let mut by_all = |what: &str, lines: &[&str]| -> Result<()> {
        reset_stats(&mut holder)?;
        let pinger = Pinger::start(&server)?;
        for line in lines {
            holder.call_ok(&words(line))?;
            // All keys are looked at once by then.
            sleep(Duration::from_millis(300));
        }
        let worst = pinger.worst_ms()?;
        let usec = usec_per_call(&mut holder, &what.to_lowercase())?;
        row(
            &format!("{what} beside {count} contended keys"),
            &format!("{usec:.0} usec, {worst}"),
        );
        Ok(())
    };
    by_all("SWAPDB", &["SWAPDB 0 1", "SWAPDB 0 1"])?;
    // The first one gives back what the crowd of clients took.
    by_all("FLUSHDB", &["SELECT 1", "FLUSHDB"])?;
    by_all("FLUSHDB", &["FLUSHDB"])?;
    // Nobody gets what has become a string.
    let from = Instant::now();
    let set = |n| format!("SET l{n} v");
    let pinger = Pinger::start(&server)?;
    run_all(&mut holder, &["SELECT 0".into()])?;
    run_all(&mut holder, &(0..count).map(set).collect::<Vec<_>>())?;
    await_blocked(&server, 0)?;
    row(
        &format!("SET of {count} contended keys"),
        &format!(
            "all told after {} ms, {}",
            from.elapsed().as_millis(),
            pinger.worst_ms()?
        ),
    );
    drop(waiting);
    Ok(())
}

/// What the server does by itself for as many clients, and for as large a hash.
fn floor(options: &Options) -> Result<()> {
    let (server, count) = (start(options)?, options.count);
    let wait = |n| format!("BLPOP l{n} 0");
    let waiting = wait_all(&server, &(0..count).map(wait).collect::<Vec<_>>())?;
    let percent = idle_percent(&server, options)?;
    row(
        &format!("floor: {count} clients in BLPOP, idle"),
        &format!("{percent:.1}% of a core"),
    );
    drop(waiting);
    let mut connection = server.connect()?;
    let set = |n| format!("HSET k o{n} 1 @permit:o{n} 0-1790000000000000-1790000000000");
    run_all(&mut connection, &(0..count).map(set).collect::<Vec<_>>())?;
    reset_stats(&mut connection)?;
    run_all(&mut connection, &(0..1_000).map(set).collect::<Vec<_>>())?;
    let usec = usec_per_call(&mut connection, "hset")?;
    row(
        &format!("floor: HSET of a permit among {count}"),
        &format!("{usec:.1} usec"),
    );
    connection.call_ok(&["DEL", "k"])?;
    let usec = usec_per_call(&mut connection, "del")?;
    row("floor: DEL of it", &format!("{usec:.0} usec"));
    Ok(())
}

/// How often each is measured.
const TIMES: usize = 5;

/// What somebody else does to a lock of many holders, what the next command on it
/// costs then, and what the server's own hash costs.
fn by_other_hands(options: &Options) -> Result<()> {
    for session in ["", " SESSION"] {
        by_other_hands_with(options, session)?;
    }
    Ok(())
}

fn by_other_hands_with(options: &Options, session: &str) -> Result<()> {
    let (server, count) = (start(options)?, options.count);
    let mut client = server.connect()?;
    let acquire = |n| format!("LOCK.ACQUIRE k o{n} LEASE {LONG_LEASE} SHARED{session}");
    let acquire_all = (0..count).map(acquire).collect::<Vec<_>>();
    run_all(&mut client, &acquire_all)?;
    let set = |n| format!("HSET hash o{n} 1 @permit:o{n} 0-1790000000000000-1790000000000");
    run_all(&mut client, &(0..count).map(set).collect::<Vec<_>>())?;
    let among = format!("{count} holders{session}");
    let mut measure = |lines: &[&str], then: &str| -> Result<()> {
        reset_stats(&mut client)?;
        for _ in 0..TIMES {
            for line in lines {
                client.call_ok(&words(line))?;
            }
        }
        let mut measured = Vec::new();
        for line in lines.iter().filter(|line| !line.starts_with("SELECT")) {
            let name = words(line)[0].to_lowercase();
            let usec = usec_per_call(&mut client, &name)?;
            measured.push(format!("{name} {usec:.0} usec"));
        }
        measured.dedup();
        row(&format!("{among}: {then}"), &measured.join(", "));
        Ok(())
    };
    measure(&["HGETALL k"], "floor: all of the hash")?;
    measure(&["LOCK.INFO k"], "LOCK.INFO")?;
    let next = "LOCK.RENEW k o1 LEASE 600000";
    measure(&["HSET k o1 1", next], "the next command after HSET")?;
    let flush = ["SELECT 1", "SET x y", "FLUSHDB", "SELECT 0", next];
    measure(&flush, "the next after FLUSHDB elsewhere")?;
    measure(&["RENAME k l", "RENAME l k", next], "the next after RENAME")?;
    measure(&["SWAPDB 0 1", "SWAPDB 0 1", next], "the next after SWAPDB")?;
    reset_stats(&mut client)?;
    client.call_ok(&words("DEL hash"))?;
    client.call_ok(&words("LOCK.BREAK k"))?;
    let [del, broken] = ["del", "lock.break"].map(|name| usec_per_call(&mut client, name));
    row(
        &format!("{among}: LOCK.BREAK"),
        &format!(
            "lock.break {:.0} usec, floor: del {:.0} usec",
            broken?, del?
        ),
    );
    run_all(&mut client, &acquire_all)?;
    reset_stats(&mut client)?;
    let pinger = Pinger::start(&server)?;
    client.call_ok(&words("DEL k"))?;
    let usec = usec_per_call(&mut client, "del")?;
    row(
        &format!("{among}: DEL of it"),
        &format!("del {usec:.0} usec, {}", pinger.worst_ms()?),
    );
    Ok(())
}
