//! `lockctl run`: a command under a lock.
//!
//! The command is the leader of a process group of its own, so that all it
//! starts can be signalled together. While it runs, the client renews the
//! lock. The group is ended before the lock can be another's: at once if the
//! server says that the hold is over, and in good time before the end of the
//! lease if it can't be renewed.

mod process_group;
mod report;
mod signals;
mod terminal;

use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, Lock, LockClient, LockGuard, Lost};
use rustix::process::Signal;
use tokio::time::sleep;

use crate::arguments::RunOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use process_group::{Change, ProcessGroup};
use report::{Event, Report};
use signals::Signals;
use terminal::Terminal;

/// A process that was killed is gone after so long, unless the system is stuck.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// Runs a command under a lock. Says how to end.
pub async fn run(url: &str, json: bool, options: RunOptions) -> Result<Exit, Failure> {
    let report = Report::new(json, options.verbose);
    let mut signals = Signals::listen()?;
    let grace = grace(&options)?;
    let builder = LockClient::builder().default_lease(options.lease);
    let client = tokio::select! {
        client = builder.connect(url) => client?,
        exit = signals.end_before_start() => return Ok(exit),
    };
    let ended = under_lock(&client, &options, grace, &mut signals, &report).await;
    settle(&client, &mut signals).await;
    ended
}

async fn under_lock(
    client: &LockClient,
    options: &RunOptions,
    grace: Duration,
    signals: &mut Signals,
    report: &Report,
) -> Result<Exit, Failure> {
    let asked_at = Instant::now();
    let taken = tokio::select! {
        taken = lock(client, options).acquire() => taken,
        exit = signals.end_before_start() => {
            report.tell(&Event::interrupted(&options.name));
            return Ok(exit);
        }
    };
    let waited = asked_at.elapsed();
    let guard = match taken {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            report.tell(&Event::not_acquired(&options.name, waited));
            return Ok(Exit::Code(options.conflict_exit_code));
        }
        // This process was stopped or starved for so long that nothing was left
        // of the lease when it heard of the grant.
        Err(Error::Lost(why)) => {
            report.tell(&Event::lost(options.name.as_bytes(), why));
            return Ok(Exit::LOST);
        }
        Err(error) => return Err(error.into()),
    };
    report.tell(&Event::acquired(&guard, waited));
    let mut group = ProcessGroup::spawn(&options.command, guard.token())?;
    Ok(match supervise(&mut group, &guard, signals, grace).await {
        Outcome::Ended(exit) if options.keep => keep(guard, exit, options, report).await,
        Outcome::Ended(exit) => release(guard, exit, report).await,
        Outcome::Lost(why) => {
            report.tell(&Event::lost(guard.key(), why));
            Exit::LOST
        }
    })
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

fn lock(client: &LockClient, options: &RunOptions) -> Lock {
    let lock = client.lock(options.name.as_bytes()).owner(owner());
    let lock = match options.limit {
        Some(limit) => lock.limit(limit.into()),
        None if options.shared => lock.shared(),
        None => lock,
    };
    let wait = if options.no_wait {
        Some(Duration::ZERO)
    } else {
        options.wait
    };
    match wait {
        Some(wait) => lock.wait(wait),
        None => lock,
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
    /// By us.
    Lost(Lost),
}

/// Waits for the command's end, and ends it if the lock is lost. No process of
/// the group is left after that.
async fn supervise(
    group: &mut ProcessGroup,
    guard: &LockGuard,
    signals: &mut Signals,
    grace: Duration,
) -> Outcome {
    // Something to spare, for a busy machine on which KILL takes its time.
    let mut lost = pin!(lost(guard, grace + grace / 4));
    let mut terminal = Terminal::open();
    loop {
        tokio::select! {
            why = &mut lost => {
                let left = match why {
                    Lost::Expired => guard.valid_for(),
                    _ => grace,
                };
                group.end(left.min(grace)).await;
                terminal.take_back();
                return Outcome::Lost(why);
            }
            signal = signals.next() => group.signal(signal),
            change = group.change() => match change {
                Change::Ended(exit) => {
                    terminal.take_back();
                    let ended = group.end(grace);
                    return tokio::select! {
                        () = ended => Outcome::Ended(exit),
                        why = &mut lost => {
                            group.end(Duration::ZERO).await;
                            Outcome::Lost(why)
                        }
                    };
                }
                Change::Stopped(stop) if terminal.lend(group, stop) => group.signal(Signal::CONT),
                Change::Stopped(Signal::STOP) => {}
                Change::Stopped(_) => {
                    terminal.take_back();
                    signals::stop_self();
                    // The lease may have ended meanwhile.
                    if guard.valid_for() > grace {
                        group.signal(Signal::CONT);
                    }
                }
            },
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
