//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::exit::NOT_ACQUIRED;

const ENVIRONMENT: &str = "\
Environment:
  REDIS_URL    the server, if --url does not say
  LOCK_TOKEN   set for the command of `lockctl run`: the fencing token of its lock";

const EXIT_CODES: &str = "\
Exit codes:
  The command's own. If a signal ended the command, lockctl ends by it
  too, which a shell shows as 128 + n; and so it does if a signal ends
  its wait for the lock. The others are
   75  the lock was not to be had in time (EX_TEMPFAIL of sysexits.h:
       try again later); -E changes it
   76  the lock was lost before the command had ended
  125  lockctl itself failed, as with timeout(1)
  126  the command can't be executed, as in a shell
  127  there is no such command, as in a shell";

const BREAK_EXIT_CODES: &str = "\
Exit codes:
    0  the lock was broken
    1  it was free, or has another token by now
  125  lockctl itself failed: wrong usage, no answer from the server";

/// Runs commands under a lock of a Redis or Valkey server, and shows and breaks locks
///
/// The server needs the lock module, libredislock.so.
#[derive(Parser)]
#[command(version, after_long_help = ENVIRONMENT)]
pub struct Arguments {
    #[arg(
        help = "The server: redis://[user:password@]host[:port][/database], unix:///path",
        short,
        long,
        global = true,
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379"
    )]
    pub url: String,
    /// Write JSON: ls, top and break to stdout, run and failures to stderr, a line each
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Run(RunOptions),
    Ls(LsOptions),
    Top(TopOptions),
    Break(BreakOptions),
    /// Write a shell's completions to stdout
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write the man pages to a folder
    Man {
        /// Which folder
        directory: PathBuf,
    },
}

/// Run a command under a lock
///
/// The lock is renewed for as long as the command runs, and released when it and all of its process group
/// have ended. Signals go to the command's process group.
///
/// If the lock is lost, or can't be renewed and is about to be lost, the process group gets TERM, and KILL
/// before the lease is over. The same happens to what is left of the process group when the command ends.
#[derive(Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct RunOptions {
    /// The lock's key
    pub name: OsString,
    /// Wait at most so long for the lock: 30s, 5m, or a number of seconds; 0 tries once. Without it, waits
    /// without end
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub wait: Option<Duration>,
    /// Don't wait, the same as --wait 0
    #[arg(short, long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// The lease, renewed every third of it. It is how long the lock stays taken if this machine dies, and
    /// after a third of it at most a lock that somebody broke is noticed
    #[arg(short, long, value_name = "TIME", value_parser = lease, default_value = "30s")]
    pub lease: Duration,
    /// Share the lock with all who ask for it in this mode
    #[arg(short, long, conflicts_with = "limit")]
    pub shared: bool,
    /// Be one of at most N holders
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// The time from TERM to KILL, at most a third of the lease. A sixth of the lease if not given
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub kill_after: Option<Duration>,
    /// Don't release the lock when the command has ended: leave it taken for one lease more. So a job runs once
    /// where hosts with clocks that differ start it
    #[arg(long)]
    pub keep: bool,
    /// Exit with N if the lock is not to be had in time
    #[arg(short = 'E', long, value_name = "N", default_value_t = NOT_ACQUIRED)]
    pub conflict_exit_code: u8,
    /// Tell on stderr what happens to the lock. Without it, only trouble is told
    #[arg(short, long)]
    pub verbose: bool,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Show who holds and who waits
///
/// Contended locks, longest wait first, with the command that safely breaks the stuck ones: it names the token
/// just seen, so it does nothing to whoever holds the lock by then.
#[derive(Args)]
pub struct LsOptions {
    /// Show these locks, contended or not
    #[arg(conflicts_with = "count")]
    pub names: Vec<OsString>,
    /// Show at most N locks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    #[command(flatten)]
    pub stuck: Stuck,
}

/// Show who holds and who waits, live
///
/// Longest wait first, with grants and releases per second and the longest wait over time. Ends with q.
/// With --json it writes a line each time and needs no terminal.
#[derive(Args)]
pub struct TopOptions {
    /// Show at most N locks
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    /// Look so often
    #[arg(short, long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub interval: Duration,
    /// End after looking N times
    #[arg(short = 't', long, value_name = "N")]
    pub times: Option<u64>,
    #[command(flatten)]
    pub stuck: Stuck,
}

/// When a lock counts as stuck.
#[derive(Args)]
pub struct Stuck {
    /// A lock is stuck if somebody has waited for it so long
    #[arg(long = "stuck-after", value_name = "TIME", value_parser = time, default_value = "10s")]
    pub after: Duration,
}

/// Take a lock from whoever holds it, and pass it on
///
/// Whoever held it is not told, other than by its next renewal or by its token.
#[derive(Args)]
#[command(after_long_help = BREAK_EXIT_CODES)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct BreakOptions {
    /// The lock's key
    pub name: OsString,
    /// Only if this is its newest token, as lockctl ls shows it
    #[arg(short, long, value_name = "TOKEN", group = "which")]
    pub fence: Option<u64>,
    /// Whatever its token is
    #[arg(long, group = "which")]
    pub force: bool,
}

/// A time with its unit, or a number of seconds as flock(1) takes it.
fn time(text: &str) -> Result<Duration, String> {
    let time = match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    time.map_err(|why| format!("{why}; write 500ms, 30s, 5m or a number of seconds"))
}

/// Shorter leases end before a renewal can be relied upon to arrive.
fn lease(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(300);
    match time(text)? {
        lease if lease < SHORTEST => Err("a lease is 300ms at least".into()),
        lease => Ok(lease),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(100);
    match time(text)? {
        interval if interval < SHORTEST => Err("an interval is 100ms at least".into()),
        interval => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "-1", "soon", "NaN", "1e300"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(lease("0").is_err());
    }
}
