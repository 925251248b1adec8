//! `lockctl run`: a command under a lock.
//!
//! The command is the leader of a process group of its own, so that what it
//! starts can be signalled together. While it runs, the client renews the
//! lock. The group is ended before the lock can be another's: at once if the
//! server says that the hold is over, and in good time before the end of the
//! lease if it can't be renewed.

mod members;
mod process_group;
mod report;
mod stderr;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};

use redis_lock_client::redis::cmd;
use redis_lock_client::{Error, LockClient, LockGuard, Lost};
use rustix::process::Signal;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::{sleep, timeout};

use crate::arguments::RunOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::server::Server;
use crate::signals::{self, Signals};
use crate::top::counter;
use process_group::{Change, ProcessGroup};
use report::Report;
use terminal::Terminal;

/// How long lockctl waits at its end for an answer, and then for nothing to be left at the
/// server. What is left ends with its lease.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// How soon a command that wants the terminal gets it, if it can be had. While lockctl is in
/// the background it can't.
const WANTED_EVERY: Duration = Duration::from_millis(100);

/// The counter of how many more replicas have to be online before anything is granted.
const REPLICAS_MISSING: &str = "lock_replicas_missing";

/// What a command under a lock is seen by.
struct Watch {
    signals: Signals,
    /// What the client could not do, and tries again.
    failures: Receiver<Error>,
    report: Report,
}

/// Runs a command under a lock. Returns how to end.
pub async fn run(server: &Server, json: bool, options: RunOptions) -> Result<Exit, Failure> {
    let grace = grace(&options)?;
    let command = command(&options)?;
    let (sender, failures) = mpsc::channel(16);
    let mut watch = Watch {
        signals: Signals::listen()?,
        failures,
        report: Report::new(json, &options)?,
    };
    // The wait for the lock is the wait for the server, too.
    let client = LockClient::builder()
        .default_lease(options.lease)
        .on_failure(move |error| drop(sender.try_send(error.clone())))
        .connect_lazy(server.servers.clone())?;
    let ended = match take(server, &client, &options, &mut watch).await {
        Ok(ControlFlow::Continue(guard)) => {
            under_lock(guard, &options, command, grace, &mut watch).await
        }
        Ok(ControlFlow::Break(exit)) => Ok(exit),
        Err(failure) => Err(failure),
    };
    let _ = timeout(SETTLED_WITHIN, client.flush()).await;
    ended
}

/// Takes the lock, or returns how to end without it.
async fn take(
    server: &Server,
    client: &LockClient,
    options: &RunOptions,
    watch: &mut Watch,
) -> Result<ControlFlow<Exit, LockGuard>, Failure> {
    let asked_at = Instant::now();
    let mut taken = pin!(acquire(client, options));
    let taken = loop {
        tokio::select! {
            taken = &mut taken => break taken?,
            exit = watch.signals.end_before_start() => {
                watch.report.interrupted();
                return Ok(ControlFlow::Break(exit));
            }
            Some(error) = watch.failures.recv() => watch.report.waiting_on(&error),
        }
    };
    let (waited, report) = (asked_at.elapsed(), &watch.report);
    if let Some(guard) = taken {
        report.acquired(&guard, waited);
        return Ok(ControlFlow::Continue(guard));
    }
    if report.tells_routine() {
        let why = match timeout(SETTLED_WITHIN, why_not(server, client, options)).await {
            Ok(Ok(why)) => why,
            Ok(Err(failure)) => format!("who holds it is not known: {failure}"),
            Err(_) => "who holds it is not known: the server does not answer".into(),
        };
        report.not_acquired(waited, &why);
    }
    Ok(ControlFlow::Break(Exit::Code(options.conflict_exit_code)))
}

/// Waits for the lock as long as asked.
async fn acquire(client: &LockClient, options: &RunOptions) -> Result<Option<LockGuard>, Error> {
    let begun = Instant::now();
    let wait = options.wait.or(options.no_wait.then_some(Duration::ZERO));
    let left = || wait.map(|wait| wait.saturating_sub(begun.elapsed()));
    loop {
        let job = client.job().named(owner())?;
        let lock = job.lock(options.name.as_bytes());
        let lock = match options.limit {
            Some(limit) => lock.limit(limit.into()),
            None if options.shared => lock.shared(),
            None => lock,
        };
        let taken = async {
            let guard = match left() {
                Some(left) => lock.acquire_within(left).await?,
                None => Some(lock.acquire().await?),
            };
            // After a wait the first lease is short, and a renewal makes it a full one.
            if let Some(guard) = &guard
                && guard.valid_for() < options.lease / 2
            {
                guard.renew().await?;
            }
            Ok::<_, Error>(guard)
        };
        match taken.await {
            // This process, or the renewal, was late.
            Err(error)
                if left() != Some(Duration::ZERO)
                    && (error.is_retryable() || matches!(error, Error::Lost(_))) => {}
            taken => return taken,
        }
    }
}

/// Why the lock was not granted, as far as the server tells it now.
async fn why_not(
    server: &Server,
    client: &LockClient,
    options: &RunOptions,
) -> Result<String, Failure> {
    let lock = client.lock(options.name.as_bytes()).info().await?;
    if let Some(left) = lock.grace {
        let left = left.as_millis();
        return Ok(format!("the server grants nothing for {left} ms yet"));
    }
    if !lock.holders.is_empty() {
        return Ok("another holds it".into());
    }
    let infos: Vec<String> = server.ask(cmd("INFO").arg("lock")).await?;
    let missing = |info: &String| counter(info, REPLICAS_MISSING);
    let missing = infos.iter().filter_map(missing).max();
    Ok(match missing.filter(|missing| *missing > 0) {
        Some(missing) => format!(
            "nobody holds it, but too few replicas are online: {REPLICAS_MISSING} is {missing}"
        ),
        None => "nobody holds it now".into(),
    })
}

/// Tells who it is: host and process. The client adds what tells it from another process
/// that had or will have the same number.
fn owner() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    // No owner begins with @.
    format!("{}:{}", host.trim_start_matches('@'), std::process::id())
}

/// Runs the command. Returns how to end.
async fn under_lock(
    guard: LockGuard,
    options: &RunOptions,
    mut command: Command,
    grace: Duration,
    watch: &mut Watch,
) -> Result<Exit, Failure> {
    command
        .env("LOCK_KEY", &options.name)
        .env("LOCK_OWNER", OsStr::from_bytes(guard.owner()))
        .env("LOCK_TOKEN", guard.token().to_string());
    if let Some(group) = terminal::outermost() {
        command.env(terminal::GROUP, group.to_string());
    }
    let mut group = match ProcessGroup::spawn(&mut command) {
        Ok(group) => group,
        Err(failure) => {
            give_back(guard, failure.exit(), None, &watch.report).await;
            return Err(failure);
        }
    };
    let keep = options.keep.then_some(options.lease);
    Ok(match supervise(&mut group, &guard, grace, watch).await {
        Some(exit) => give_back(guard, exit, keep, &watch.report).await,
        None => Exit::LOST,
    })
}

/// The command as it is typed.
fn command(options: &RunOptions) -> Result<Command, Failure> {
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
    Ok(command)
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

/// Waits for the command's end, and ends it if the lock is lost. Returns how it ended; none
/// if the lock was lost. No process of the group is left after that: one that can't be ended
/// keeps the lock, or if that is lost, this process from its own end.
async fn supervise(
    group: &mut ProcessGroup,
    guard: &LockGuard,
    grace: Duration,
    watch: &mut Watch,
) -> Option<Exit> {
    let report = &mut watch.report;
    // Something to spare, for a busy machine on which KILL takes its time.
    let mut lost = pin!(lost(guard, grace + grace / 4));
    let mut terminal = Terminal::open();
    let mut wants_terminal = false;
    loop {
        tokio::select! {
            // A lock that is lost comes first.
            biased;
            why = &mut lost => {
                let left = match why {
                    Lost::Expired => guard.valid_for(),
                    _ => grace,
                };
                report.lost(why);
                group.end(left.min(grace), |left| report.unended(left, true)).await;
                terminal.take_back();
                return None;
            }
            Some(error) = watch.failures.recv() => report.not_renewed(guard, &error),
            signal = watch.signals.next() => {
                if signal != Signal::TSTP {
                    group.signal(signal);
                }
                if signals::is_to_end(signal) {
                    let left = group.out_of_reach();
                    if !left.is_empty() {
                        report.unended(&left, false);
                    }
                }
            }
            change = group.change() => match change {
                Change::Ended(exit) => {
                    terminal.take_back();
                    let ended = group.end(grace, |left| report.unended(left, false));
                    return tokio::select! {
                        () = ended => Some(exit),
                        why = &mut lost => {
                            report.lost(why);
                            let ended = group.end(Duration::ZERO, |left| report.unended(left, true));
                            ended.await;
                            None
                        }
                    };
                }
                // Or Ctrl-C would reach only what is stopped.
                Change::Stopped(Signal::STOP) => {
                    terminal.take_back();
                }
                // Nobody would renew the lock of a command that is suspended.
                Change::Stopped(Signal::TSTP) => group.signal(Signal::CONT),
                Change::Stopped(_) => wants_terminal = true,
            },
            () = sleep(WANTED_EVERY), if wants_terminal => {
                if terminal.lend(group) {
                    wants_terminal = false;
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

/// Gives the lock back after the command has ended, or leaves it to a last lease. Returns
/// how to end.
async fn give_back(guard: LockGuard, exit: Exit, keep: Option<Duration>, report: &Report) -> Exit {
    let given_back = async {
        match keep {
            None => guard.release().await,
            // Where no answer comes in time, it must not be dropped: that would give it back.
            Some(_) => ManuallyDrop::new(guard).renew().await,
        }
    };
    match (timeout(SETTLED_WITHIN, given_back).await, keep) {
        (Ok(Ok(())), None) => report.released(exit),
        (Ok(Ok(())), Some(lease)) => report.kept(exit, lease),
        // Nobody had noticed yet, but the command ran without the lock for a while.
        (Ok(Err(Error::Lost(why))), _) => {
            report.lost(why);
            return Exit::LOST;
        }
        // The command is not to blame.
        (Ok(Err(error)), _) => report.unreleased(exit, error.code(), &error),
        (Err(_), _) => report.unreleased(exit, "UNAVAILABLE", &"no answer in time"),
    }
    exit
}
