//! `lockctl run`: a command under a lock.
//!
//! The command is the leader of a process group of its own, so that what it
//! starts can be signalled together. While it runs, the client renews the
//! lock. The group is ended before the lock can be another's: at once if the
//! server says that the hold is over, and in good time before the end of the
//! lease if it can't be renewed.

mod log;
mod members;
mod process_group;
mod report;
mod stderr;
mod suspension;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockClient, LockGuard, Lost};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use crate::arguments::RunOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::signals::{self, Signals};
use crate::which_server::{REDIS_URL, WhichServer};
use members::Process;
use process_group::{Change, ProcessGroup};
use report::{Event, Report};
use suspension::Suspension;
use terminal::Terminal;

/// A wait that ended without the lock leaves nothing on a server that answers
/// within this time, and on another one a lease at most.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// A command that wants the terminal and can't have it, in a group that is not stopped for
/// it, asks again after so long.
const WANTED_EVERY: Duration = Duration::from_millis(100);

/// How long a look at a lock that was not granted may take.
const LOOKED_WITHIN: Duration = Duration::from_secs(2);

/// The counter of how many more replicas have to be online before anything is granted.
const REPLICAS_MISSING: &str = "lock_replicas_missing";

/// Runs a command under a lock. Returns how to end.
pub async fn run(server: &WhichServer, json: bool, options: RunOptions) -> Result<Exit, Failure> {
    let report = Report::new(json, &options)?;
    let mut signals = Signals::listen()?;
    let grace = grace(&options)?;
    // The wait for the lock is the wait for the server, too.
    let client = server.client().default_lease(options.lease);
    let client = client.connect_lazy(&server.url)?;
    let command = command(&options, server)?;
    let guard = match take(&client, &options, &mut signals, &report).await {
        Ok(ControlFlow::Continue(guard)) => guard,
        not_taken => {
            let _ = timeout(SETTLED_WITHIN, client.flush()).await;
            return not_taken.map(|why| why.break_value().unwrap_or(Exit::FAILED));
        }
    };
    let ended = under_lock(guard, &options, command, grace, &mut signals, &report).await;
    settle(&client, &mut signals).await;
    ended
}

/// Takes the lock, or returns how to end without it.
async fn take(
    client: &LockClient,
    options: &RunOptions,
    signals: &mut Signals,
    report: &Report,
) -> Result<ControlFlow<Exit, LockGuard>, Failure> {
    let asked_at = Instant::now();
    let taken = tokio::select! {
        taken = acquire(client, options) => taken,
        exit = signals.end_before_start() => {
            report.tell(&Event::interrupted(&options.name));
            return Ok(ControlFlow::Break(exit));
        }
    };
    let waited = asked_at.elapsed();
    let guard = match taken {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            if report.tells_routine() {
                let why = why_not(client, options).await;
                report.tell(&Event::not_acquired(&options.name, waited, why));
            }
            return Ok(ControlFlow::Break(Exit::Code(options.conflict_exit_code)));
        }
        // This process was stopped or starved for so long that nothing was left
        // of the lease when it heard of the grant.
        Err(Error::Lost(why)) => {
            report.tell(&Event::lost(options.name.as_bytes(), why));
            return Ok(ControlFlow::Break(Exit::LOST));
        }
        Err(error) => return Err(error.into()),
    };
    report.tell(&Event::acquired(&guard, waited));
    Ok(ControlFlow::Continue(guard))
}

async fn under_lock(
    guard: LockGuard,
    options: &RunOptions,
    mut command: Command,
    grace: Duration,
    signals: &mut Signals,
    report: &Report,
) -> Result<Exit, Failure> {
    command
        .env("LOCK_KEY", &options.name)
        .env("LOCK_OWNER", OsStr::from_bytes(guard.owner()))
        .env("LOCK_TOKEN", guard.token().to_string());
    let mut group = match ProcessGroup::spawn(&mut command) {
        Ok(group) => group,
        Err(failure) => {
            release(guard, failure.exit(), report).await;
            return Err(failure);
        }
    };
    let outcome = supervise(&mut group, &guard, signals, grace, report).await;
    Ok(match outcome {
        Outcome::Ended(exit) if options.keep => keep(guard, exit, options, report).await,
        Outcome::Ended(exit) => release(guard, exit, report).await,
        Outcome::Lost => Exit::LOST,
    })
}

/// The command as it is typed, without the password of the server.
fn command(options: &RunOptions, server: &WhichServer) -> Result<Command, Failure> {
    let words: Vec<OsString> = match &options.line {
        Some(line) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| "sh".into());
            vec![shell, "-c".into(), line.clone()]
        }
        // In `run -- NAME -- COMMAND` the second one is no word of the command.
        None if options.command.first().is_some_and(|word| word == "--") => {
            options.command[1..].to_vec()
        }
        None => options.command.clone(),
    };
    let [program, arguments @ ..] = &words[..] else {
        return Err(Failure::Usage("no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if server.is_from_environment {
        command.env_remove(REDIS_URL);
    }
    Ok(command)
}

/// Waits until nothing is left on the server, unless somebody is in a hurry:
/// what gets no answer is tried again until the lease is over.
async fn settle(client: &LockClient, signals: &mut Signals) {
    tokio::select! {
        () = client.flush() => {}
        _ = signals.end_before_start() => {}
    }
}

/// The time from TERM to KILL.
fn grace(options: &RunOptions) -> Result<Duration, Failure> {
    let grace = options.kill_after.unwrap_or(options.lease / 6);
    match grace > options.lease / 3 {
        true => Err(Failure::Usage(
            "--kill-after is at most a third of --lease, because the rest is for renewals",
        )),
        false => Ok(grace),
    }
}

async fn acquire(client: &LockClient, options: &RunOptions) -> Result<Option<LockGuard>, Error> {
    let lock = client.lock(options.name.as_bytes()).owner(owner());
    let lock = match options.limit {
        Some(limit) => lock.limit(limit.into()),
        None if options.shared => lock.shared(),
        None => lock,
    };
    match options.wait {
        _ if options.no_wait => lock.try_acquire().await,
        Some(wait) => lock.acquire_within(wait).await,
        None => lock.acquire().await.map(Some),
    }
}

/// Why the lock was not granted, as far as the server tells it now.
async fn why_not(client: &LockClient, options: &RunOptions) -> String {
    let asked = async {
        let lock = client.lock(options.name.as_bytes()).info().await?;
        if let Some(left) = lock.grace {
            let left = left.as_millis();
            return Ok(format!("the server grants nothing for {left} ms yet"));
        }
        if !lock.holders.is_empty() {
            return Ok("another holds it".into());
        }
        let missing = client.counters().await?.get(REPLICAS_MISSING);
        Ok(match missing.filter(|missing| *missing > 0) {
            Some(missing) => format!(
                "nobody holds it, but too few replicas are online: {REPLICAS_MISSING} is {missing}"
            ),
            None => "nobody holds it now".into(),
        })
    };
    match timeout(LOOKED_WITHIN, asked).await {
        Ok(Ok(why)) => why,
        Ok(Err::<_, Error>(error)) => format!("who holds it is not known: {error}"),
        Err(_) => "who holds it is not known: the server does not answer".into(),
    }
}

/// Unique, and tells who it is: host, process, and what tells it from another
/// process that had or will have the same number.
fn owner() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    // The server takes no owner that begins with @, and none over 1024 bytes.
    let host = host.trim_start_matches('@');
    format!(
        "{host}:{}:{:08x}",
        std::process::id(),
        rand::random::<u32>()
    )
}

/// How a command ended.
enum Outcome {
    /// By itself, like this.
    Ended(Exit),
    /// Without the lock.
    Lost,
}

/// Waits for the command's end, and ends it if the lock is lost. No process of
/// the group is left after that: one that can't be ended keeps the lock, or if
/// that is lost, this process from its own end.
async fn supervise(
    group: &mut ProcessGroup,
    guard: &LockGuard,
    signals: &mut Signals,
    grace: Duration,
    report: &Report,
) -> Outcome {
    let unended = |is_lost: bool| {
        move |left: &[Process]| report.tell(&Event::unended(guard.key(), left, is_lost))
    };
    // Something to spare, for a busy machine on which KILL takes its time.
    let mut lost = pin!(lost(guard, grace + grace / 4));
    let mut terminal = Terminal::open();
    let mut suspension: Option<Suspension> = None;
    loop {
        tokio::select! {
            // Who was told to end is not stopped once more first.
            biased;
            why = &mut lost => {
                let left = match why {
                    Lost::Expired => guard.valid_for(),
                    _ => grace,
                };
                report.tell(&Event::lost(guard.key(), why));
                group.end(left.min(grace), unended(true)).await;
                terminal.take_back();
                return Outcome::Lost;
            }
            signal = signals.next() => {
                group.signal(signal);
                if signals::is_to_end(signal) {
                    if let Some(called_off) = suspension.take() {
                        called_off.undo();
                    }
                    let left = group.out_of_reach();
                    if !left.is_empty() {
                        unended(false)(&left);
                    }
                }
            }
            change = group.change() => match change {
                Change::Ended(exit) => {
                    terminal.take_back();
                    let ended = group.end(grace, unended(false));
                    return tokio::select! {
                        () = ended => Outcome::Ended(exit),
                        why = &mut lost => {
                            report.tell(&Event::lost(guard.key(), why));
                            group.end(Duration::ZERO, unended(true)).await;
                            Outcome::Lost
                        }
                    };
                }
                // Or Ctrl-C would reach only what is stopped.
                Change::Stopped(Signal::STOP) => {
                    terminal.take_back();
                }
                Change::Stopped(Signal::TTIN | Signal::TTOU) if terminal.lend(group) => {
                    group.signal(Signal::CONT);
                }
                Change::Stopped(stop) => {
                    let had_terminal = stop == Signal::TSTP && terminal.take_back();
                    suspension
                        .get_or_insert_with(|| Suspension::new(group, stop, had_terminal));
                }
            },
            suspended = suspension::halted(&mut suspension) => {
                suspended.stop_self();
                let misses_terminal = suspended.wants_terminal() && !terminal.lend(group);
                // The lease may have ended meanwhile.
                if guard.valid_for() > grace {
                    suspended.undo();
                }
                if misses_terminal {
                    sleep(WANTED_EVERY).await;
                }
                if guard.valid_for() > grace {
                    group.signal(Signal::CONT);
                }
            }
        }
    }
}

/// Completes when the hold is over, or has only the time left that it takes to
/// end the command.
async fn lost(guard: &LockGuard, reserve: Duration) -> Lost {
    let mut lost = pin!(guard.lost());
    loop {
        let left = guard.valid_for().saturating_sub(reserve);
        tokio::select! {
            biased;
            why = &mut lost => return why,
            () = sleep(left) => if guard.valid_for() <= reserve {
                return Lost::Expired;
            },
        }
    }
}

/// Gives the lock back after the command has ended.
async fn release(guard: LockGuard, exit: Exit, report: &Report) -> Exit {
    let key = guard.key().to_vec();
    let released = guard.release().await;
    conclude(&key, exit, released, report, Event::released(&key, exit))
}

/// Leaves the lock to its lease after the command has ended.
async fn keep(guard: LockGuard, exit: Exit, options: &RunOptions, report: &Report) -> Exit {
    let key = guard.key().to_vec();
    let renewed = guard.renew().await;
    guard.forget();
    let kept = Event::kept(&key, exit, options.lease);
    conclude(&key, exit, renewed, report, kept)
}

/// How to end, if the lock was held until now.
fn conclude(
    key: &[u8],
    exit: Exit,
    held: Result<(), Error>,
    report: &Report,
    as_planned: Event,
) -> Exit {
    match held {
        Ok(()) => {
            report.tell(&as_planned);
            exit
        }
        // Nobody had noticed yet, but the command ran without the lock for a while.
        Err(Error::Lost(why)) => {
            report.tell(&Event::lost(key, why));
            Exit::LOST
        }
        // The command is not to blame.
        Err(error) => {
            report.tell(&Event::unreleased(key, exit, &error));
            exit
        }
    }
}
