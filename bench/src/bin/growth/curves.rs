//! What a command costs against how many there are of something, and what the longest
//! turn of the event loop is when all of them come to an end at once.

use std::path::Path;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use redis_lock_testing::{Connection, Error, Result, Server, Told, comes_true, info_field};
use subject::chart::{Labels, Line, draw};

use crate::{LONG_LEASE, Options, Pinger, reset_stats, row, run_all, start, usec_per_call, words};

/// How often each command is measured, and each time how many of them.
const ROUNDS: usize = 15;
const A_ROUND: usize = 100;

/// How long a place is kept.
const A_DAY_MS: &str = "86400000";

/// The commands that make the n-th of what there is much of.
type Make = fn(usize) -> Vec<String>;

/// What becomes more and more, and what it is that is measured then.
struct Curve {
    label: &'static str,
    most: fn(&Options) -> usize,
    make: Make,
    /// The n-th command that is measured, and what undoes it.
    measured: fn(usize) -> String,
    undo: fn(usize) -> Option<String>,
}

fn hold(lock: &str, owner: &str, more: &str) -> String {
    format!("LOCK.ACQUIRE {lock} {owner} LEASE {LONG_LEASE}{more}")
}

fn place(lock: &str, owner: &str, more: &str) -> String {
    hold(lock, owner, &format!("{more} QUEUE {A_DAY_MS} told"))
}

fn release(lock: &str, owner: &str) -> String {
    format!("LOCK.RELEASE {lock} {owner}")
}

/// Who has the n-th place in the queue of `k`, or holds it if nobody is before.
fn in_line(n: usize) -> String {
    match n {
        0 => hold("k", "o0", ""),
        n => place("k", &format!("o{n}"), ""),
    }
}

fn contended(n: usize) -> Vec<String> {
    let lock = format!("l{n}");
    vec![hold(&lock, "h", ""), place(&lock, "w", "")]
}

const CURVES: [Curve; 10] = [
    Curve {
        label: "acquire, locks held",
        most: |options| options.locks,
        make: |n| vec![hold(&format!("l{n}"), "h", "")],
        measured: |n| hold(&format!("m{n}"), "o", ""),
        undo: |n| Some(release(&format!("m{n}"), "o")),
    },
    Curve {
        label: "renew, locks held",
        most: |options| options.locks,
        make: |n| vec![hold(&format!("l{n}"), "h", "")],
        measured: |n| format!("LOCK.RENEW l{} h LEASE {LONG_LEASE}", n % 100),
        undo: |_| None,
    },
    Curve {
        label: "new place, waiters on the lock",
        most: |options| options.crowd,
        make: |n| vec![in_line(n)],
        measured: |n| place("k", &format!("m{n}"), ""),
        undo: |n| Some(release("k", &format!("m{n}"))),
    },
    Curve {
        label: "release, waiters on the lock",
        most: |options| options.crowd,
        make: |n| vec![in_line(n)],
        // Each in its turn, to the end of the queue again.
        measured: |n| release("k", &format!("o{n}")),
        undo: |n| Some(place("k", &format!("again{n}"), "")),
    },
    Curve {
        label: "new place, contended locks",
        most: |options| options.crowd,
        make: contended,
        measured: |n| place(&format!("l{}", n % 100), &format!("m{n}"), ""),
        undo: |n| Some(release(&format!("l{}", n % 100), &format!("m{n}"))),
    },
    Curve {
        label: "renew, contended locks",
        most: |options| options.crowd,
        make: contended,
        measured: |n| format!("LOCK.RENEW l{} h LEASE {LONG_LEASE}", n % 100),
        undo: |_| None,
    },
    Curve {
        label: "new holder, holders of the lock",
        most: |options| options.crowd,
        make: |n| vec![hold("k", &format!("o{n}"), " SHARED")],
        measured: |n| hold("k", &format!("m{n}"), " SHARED"),
        undo: |n| Some(release("k", &format!("m{n}"))),
    },
    Curve {
        label: "renew, holders of the lock",
        most: |options| options.crowd,
        make: |n| vec![hold("k", &format!("o{n}"), " SHARED")],
        measured: |n| format!("LOCK.RENEW k o{} LEASE {LONG_LEASE}", n % 100),
        undo: |_| None,
    },
    Curve {
        label: "acquire, sessions of the connection",
        most: |options| options.crowd,
        make: |n| vec![hold(&format!("l{n}"), "h", " SESSION")],
        measured: |n| hold(&format!("m{n}"), "o", " SESSION"),
        undo: |n| Some(release(&format!("m{n}"), "o")),
    },
    Curve {
        label: "release, sessions of the connection",
        most: |options| options.crowd,
        make: |n| vec![hold(&format!("l{n}"), "h", " SESSION")],
        measured: |n| release(&format!("l{n}"), "h"),
        undo: |n| Some(hold(&format!("l{n}"), "h", " SESSION")),
    },
];

/// Measures all curves, and draws them where that is asked for.
pub fn curves(options: &Options) -> Result<()> {
    let mut lines = Vec::new();
    for curve in &CURVES {
        let mut points = Vec::new();
        let most = (curve.most)(options);
        for count in [100, 1_000, 10_000, 100_000, 1_000_000] {
            // As many as a round needs, at least.
            if count <= most.max(100) {
                let usec = at(options, curve, count)?;
                row(
                    &format!("{}: {count}", curve.label),
                    &format!("{usec:.1} usec"),
                );
                points.push((count as f64, usec));
            }
        }
        lines.push(Line {
            label: curve.label.replacen(", ", " / ", 1),
            points,
        });
    }
    if let Some(folder) = &options.out {
        chart(folder, &lines)?;
    }
    Ok(())
}

fn chart(folder: &Path, lines: &[Line]) -> Result<()> {
    let labels = Labels {
        file: "growth.svg",
        title: "A command against how many there are",
        x: "how many (log)",
        y: "µs of the server a command, median (log)",
    };
    std::fs::create_dir_all(folder)?;
    draw(folder, &labels, lines).map_err(Error::new)
}

/// Somebody who hears of all grants, and claims each where `claims` says so.
fn listen(server: &Server, claims: bool) -> Result<()> {
    let (mut listener, mut claimer) = (server.connect()?, server.connect()?);
    listener.call_ok(&["SUBSCRIBE", "told"])?;
    // It ends with the server.
    spawn(move || {
        let mut claimed = 0;
        loop {
            match listener.next_within(Duration::from_millis(1))? {
                Some(heard) => {
                    if let Some(told) = Told::of(&heard).filter(|told| claims && told.result != "0")
                    {
                        let key = String::from_utf8_lossy(&told.key).into_owned();
                        let (owner, token) = (&told.owner, &told.result);
                        let claim =
                            format!("LOCK.RENEW {key} {owner} LEASE {LONG_LEASE} FENCE {token}");
                        claimer.send(&words(&claim))?;
                        claimed += 1;
                    }
                }
                None if claimed == 0 => {}
                None => {
                    claimer.reply()?;
                    claimed -= 1;
                }
            }
            // Who sends without end and never reads comes to a stand.
            if claimed > 500 {
                for _ in 0..claimed {
                    claimer.reply()?;
                }
                claimed = 0;
            }
        }
        #[allow(unreachable_code)]
        Ok::<(), Error>(())
    });
    Ok(())
}

fn all(count: usize, make: Make) -> Vec<String> {
    (0..count).flat_map(make).collect()
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
        let measured: Vec<String> = numbers.clone().map(curve.measured).collect();
        reset_stats(&mut connection)?;
        for line in &measured {
            connection.call_ok(&words(line))?;
        }
        let name = words(&measured[0])[0].to_lowercase();
        rounds.push(usec_per_call(&mut connection, &name)?);
        run_all(
            &mut connection,
            &numbers.filter_map(curve.undo).collect::<Vec<_>>(),
        )?;
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

/// Something that happens to as many at once.
struct Event {
    label: &'static str,
    make: Make,
    happens: Happens,
    /// Whether those who are granted a lock claim it.
    claims: bool,
    /// The field of `INFO lock` that has this value when all is over.
    over: (&'static str, &'static str),
}

enum Happens {
    Command(&'static str),
    ConnectionCloses,
    /// What `make` says lasts this long, and is over then.
    TimeIsOver,
}

/// How long after the last was made everything is over whose time is over at once.
const SHORT_MS: &str = "20000";

const EVENTS: [Event; 10] = [
    Event {
        label: "a writer's release, readers behind it",
        make: |n| match n {
            0 => vec![hold("k", "o0", "")],
            n => vec![place("k", &format!("o{n}"), " SHARED")],
        },
        happens: Happens::Command("LOCK.RELEASE k o0"),
        claims: true,
        over: ("lock_waiters", "0"),
    },
    Event {
        label: "a writer's release, readers behind it that claim nothing",
        make: |n| match n {
            0 => vec![hold("k", "o0", "")],
            n => vec![place("k", &format!("o{n}"), " SHARED")],
        },
        happens: Happens::Command("LOCK.RELEASE k o0"),
        claims: false,
        over: ("lock_waiters", "0"),
    },
    Event {
        label: "DEL of a lock, waiters on it",
        make: |n| vec![in_line(n)],
        happens: Happens::Command("DEL k"),
        claims: true,
        over: ("lock_grants_after_wait", "1"),
    },
    Event {
        label: "DEL of a shared lock, holders of it",
        make: |n| vec![hold("k", &format!("o{n}"), " SHARED")],
        happens: Happens::Command("DEL k"),
        claims: true,
        over: ("lock_sessions", "0"),
    },
    Event {
        label: "SET in a lock's place, waiters on it",
        make: |n| vec![in_line(n)],
        happens: Happens::Command("SET k v"),
        claims: true,
        over: ("lock_waiters", "0"),
    },
    Event {
        label: "FLUSHALL, contended locks",
        make: contended,
        happens: Happens::Command("FLUSHALL"),
        claims: true,
        over: ("lock_waiters", "0"),
    },
    Event {
        label: "the connection closes, sessions of it",
        make: |n| vec![hold(&format!("l{n}"), "h", " SESSION")],
        happens: Happens::ConnectionCloses,
        claims: true,
        over: ("lock_sessions", "0"),
    },
    Event {
        label: "the connection closes, sessions of it on one lock",
        make: |n| vec![hold("k", &format!("o{n}"), " SHARED SESSION")],
        happens: Happens::ConnectionCloses,
        claims: true,
        over: ("lock_sessions", "0"),
    },
    Event {
        label: "the time of places is over, waiters on a lock",
        make: |n| match n {
            0 => vec![in_line(0)],
            n => vec![hold(
                "k",
                &format!("o{n}"),
                &format!(" QUEUE {SHORT_MS} told"),
            )],
        },
        happens: Happens::TimeIsOver,
        claims: true,
        over: ("lock_waiters", "0"),
    },
    Event {
        label: "leases are over, contended locks",
        make: |n| {
            let lock = format!("l{n}");
            let short = format!("LOCK.ACQUIRE {lock} h LEASE {SHORT_MS}");
            vec![short, place(&lock, "w", "")]
        },
        happens: Happens::TimeIsOver,
        claims: true,
        over: ("lock_waiters", "0"),
    },
];

/// Has all of them happen to a crowd.
pub fn events(options: &Options) -> Result<()> {
    let wanted = |event: &&Event| match &options.event {
        Some(wanted) => event.label.contains(wanted.as_str()),
        None => true,
    };
    for event in EVENTS.iter().filter(wanted) {
        happen(options, event)?;
    }
    floors(options)?;
    shown(options)
}

/// The longest command of those that took more than a millisecond.
fn slowest(connection: &mut Connection) -> Result<String> {
    let reply = connection.call_ok(&["SLOWLOG", "GET", "-1"])?;
    let redis::Value::Array(entries) = reply else {
        return Err(Error::new("no slow log"));
    };
    let slow = entries.iter().filter_map(|entry| match entry {
        redis::Value::Array(fields) => match (&fields[2], &fields[3]) {
            (redis::Value::Int(usec), redis::Value::Array(words)) => match &words[0] {
                redis::Value::BulkString(name) => Some((*usec, String::from_utf8_lossy(name))),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let slow = slow.filter(|(_, name)| !["SLOWLOG", "CONFIG"].contains(&name.as_ref()));
    Ok(match slow.max_by_key(|(usec, _)| *usec) {
        Some((usec, name)) => format!("slowest command {name} {usec} usec"),
        None => "no command above 1 ms".into(),
    })
}

fn watch_slow(connection: &mut Connection) -> Result<()> {
    connection.call_ok(&["CONFIG", "SET", "slowlog-log-slower-than", "1000"])?;
    connection.call_ok(&["SLOWLOG", "RESET"])?;
    Ok(())
}

fn happen(options: &Options, event: &Event) -> Result<()> {
    let server = start(options)?;
    listen(&server, event.claims)?;
    let (mut connection, mut observer) = (server.connect()?, server.connect()?);
    watch_slow(&mut observer)?;
    run_all(&mut connection, &all(options.crowd, event.make))?;
    let slowest_before = slowest(&mut observer)?;
    watch_slow(&mut observer)?;
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
    let patience = Duration::from_secs(60);
    let from = Instant::now();
    let is_over = || {
        sleep(Duration::from_millis(20));
        let info = observer.info_section("lock");
        info.is_ok_and(|info| info_field(&info, field).is_ok_and(|now| now == wanted))
    };
    let ends = comes_true(patience, is_over);
    let all_ms = from.elapsed().as_millis();
    // What is left to be done is done meanwhile.
    sleep(Duration::from_secs(2));
    let worst = pinger.worst_ms()?;
    row(
        &format!("{}: {}", event.label, options.crowd),
        &format!(
            "{} after {all_ms} ms, {worst}, {}; before: {slowest_before}",
            if ends { "over" } else { "not over" },
            slowest(&mut observer)?
        ),
    );
    drop(open);
    Ok(())
}

/// What the server's own hashes cost to delete and to expire.
fn floors(options: &Options) -> Result<()> {
    let server = start(options)?;
    let mut connection = server.connect()?;
    let field = |n| {
        vec![format!(
            "HSET hash o{n} 1 @permit:o{n} 0-1790000000000000-1790000000000"
        )]
    };
    let hash = |n| vec![format!("HSET l{n} h 1 @fence 1790000000000000")];
    for (what, make, line) in [
        (
            "floor, DEL of a hash, fields of two",
            field as Make,
            "DEL hash",
        ),
        ("floor, FLUSHALL, hashes", hash as Make, "FLUSHALL"),
    ] {
        run_all(&mut connection, &all(options.crowd, make))?;
        reset_stats(&mut connection)?;
        connection.call_ok(&words(line))?;
        let name = words(line)[0].to_lowercase();
        let usec = usec_per_call(&mut connection, &name)?;
        row(
            &format!("{what}: {}", options.crowd),
            &format!("{usec:.0} usec"),
        );
    }
    let short = |n| {
        let expire = format!("PEXPIRE l{n} {SHORT_MS}");
        vec![format!("HSET l{n} h 1 @fence 1790000000000000"), expire]
    };
    run_all(&mut connection, &all(options.crowd, short))?;
    let pinger = Pinger::start(&server)?;
    let no_key_is_left = || {
        sleep(Duration::from_millis(20));
        let keys = connection.call_ok(&["DBSIZE"]);
        keys.is_ok_and(|keys| keys == redis::Value::Int(0))
    };
    let ends = comes_true(Duration::from_secs(60), no_key_is_left);
    row(
        &format!(
            "floor, the time of hashes without locks is over: {}",
            options.crowd
        ),
        &format!(
            "{}, {}",
            if ends { "over" } else { "not over" },
            pinger.worst_ms()?
        ),
    );
    Ok(())
}

/// What shows a crowd as a whole.
fn shown(options: &Options) -> Result<()> {
    let looks: [(&str, Make, &str); 4] = [
        ("waiters on a lock", |n| vec![in_line(n)], "LOCK.INFO k"),
        (
            "holders of a shared lock",
            |n| vec![hold("k", &format!("o{n}"), " SHARED")],
            "LOCK.INFO k",
        ),
        ("contended locks", contended, "LOCK.LIST COUNT 10"),
        ("contended locks", contended, "INFO lock"),
    ];
    for (label, make, line) in looks {
        let server = start(options)?;
        let mut connection = server.connect()?;
        run_all(&mut connection, &all(options.crowd, make))?;
        reset_stats(&mut connection)?;
        for _ in 0..5 {
            connection.call_ok(&words(line))?;
        }
        let name = words(line)[0].to_lowercase();
        let usec = usec_per_call(&mut connection, &name)?;
        row(
            &format!("{line}, {label}: {}", options.crowd),
            &format!("{usec:.0} usec"),
        );
    }
    Ok(())
}
