//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::exit::NOT_ACQUIRED;

const ENVIRONMENT: &str = "\
Environment:
  LOCKCTL_URL  the server, if neither --url nor --url-file is given
  REDIS_URL    the server, if LOCKCTL_URL is not set either";

const COMMAND_ENVIRONMENT: &str = "\
Environment of the command:
  LOCK_KEY    the lock's key
  LOCK_TOKEN  its fencing token
  LOCK_OWNER  the name under which lockctl holds it
  LOCKCTL_URL and REDIS_URL stay as they are. The command must not know the
              password that is in them? Then use --url-file instead";

const RUN_EXIT_CODES: &str = "\
Exit codes:
  The command's own. If a signal ended the command, lockctl ends by the same
  signal, which a shell shows as 128 + n. The same goes for a signal that ends
  the wait for the lock. Other codes:
   75  the lock was not to be had in time; -E changes this code. It is
       EX_TEMPFAIL of sysexits.h: try again later
   76  the lock was lost before the command had ended
  125  lockctl failed: wrong usage, no answer from the server. As in timeout(1)
  126  the command can't be executed. As in a shell
  127  there is no such command. As in a shell";

const BREAK_EXIT_CODES: &str = "\
Exit codes:
    0  the lock was broken
    1  it was free, or has another token by now
  125  lockctl failed: wrong usage, no answer from the server";

const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
    0  nothing is wrong
    1  something is wrong
  125  lockctl failed: wrong usage, no answer from the server";

const RUN_USAGE: &str = "\
lockctl run [OPTIONS] NAME COMMAND [ARGUMENT]...
       lockctl run [OPTIONS] NAME -c LINE";

/// Runs commands under a lock of a Redis or Valkey server, and shows and breaks locks
///
/// The server needs the lock module, libredislock.so.
#[derive(Parser)]
#[command(version, after_long_help = ENVIRONMENT)]
pub struct Arguments {
    /// Write JSON, one line each: to stdout, and of run and failures to stderr
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// Which server.
#[derive(Args)]
#[command(next_help_heading = "Server")]
pub struct ServerOptions {
    #[arg(
        help = "The server: redis://[user:password@]host[:port][/database], rediss://... for TLS, \
                unix:///path, redis-sentinel://host,host/NAME for the primary NAME of sentinels, \
                redis-cluster://host,host for a cluster. The default is $LOCKCTL_URL, $REDIS_URL, \
                or else redis://127.0.0.1:6379",
        short,
        long,
        global = true
    )]
    pub url: Option<String>,
    /// Read the URL from the first line of FILE. Only the owner of the file may have access to it
    #[arg(long, global = true, value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// Trust the certificate authorities in FILE (PEM), and no others. Needs a URL with rediss://
    #[arg(long, global = true, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Show the certificate in FILE (PEM) to the server. Needs --key
    #[arg(long, global = true, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The private key of --cert (PEM)
    #[arg(long, global = true, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Command {
    Run(RunOptions),
    Ls(LsOptions),
    Top(TopOptions),
    Tail(TailOptions),
    Break(BreakOptions),
    Doctor(DoctorOptions),
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
/// The lock is renewed while the command runs. It is released when the command and all that it started have ended,
/// except daemons that made a session of their own. Signals are passed on to the process group.
///
/// If the lock is lost, all of it gets TERM and then KILL. If the lock can't be renewed, this happens early enough to
/// end before the lease does. What the command leaves running is ended in the same way.
///
/// lockctl can't kill what runs as another user, such as sudo. It says so, keeps the lock if it still has it, and
/// waits.
///
/// If the server does not answer at the end, lockctl ends all the same after 4 seconds. The lock ends with its lease.
#[derive(Args)]
#[command(
    override_usage = RUN_USAGE,
    after_long_help = format!("{COMMAND_ENVIRONMENT}\n\n{RUN_EXIT_CODES}")
)]
pub struct RunOptions {
    /// The lock's key. Put -- before one that begins with a dash
    pub name: OsString,
    /// Wait at most this long: 30s, 5m, or a number of seconds. 0 tries once. The default is to wait without end,
    /// also for a server that is not up
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub wait: Option<Duration>,
    /// Don't wait. The same as --wait 0
    #[arg(short, long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// How long the lock lasts if it is not renewed, 300ms at least. It is renewed every third of this time. If this
    /// machine dies, the lock stays taken for this long. If somebody breaks the lock, the next renewal finds out
    #[arg(short, long, value_name = "TIME", value_parser = lease, default_value = "30s")]
    pub lease: Duration,
    /// Share the lock with others that ask for --shared
    #[arg(short, long, conflicts_with = "limit")]
    pub shared: bool,
    /// Share the lock with others, at most N holders together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// The time from TERM to KILL: at most a third of the lease. The default is a sixth of the lease
    #[arg(short, long, value_name = "TIME", value_parser = time)]
    pub kill_after: Option<Duration>,
    /// Don't release the lock at the end: leave it taken for one more lease. Then a job that many hosts start runs
    /// once, even if their clocks differ
    #[arg(long)]
    pub keep: bool,
    /// Exit with N if the lock was not to be had in time
    #[arg(short = 'E', long, value_name = "N", default_value_t = NOT_ACQUIRED)]
    pub conflict_exit_code: u8,
    /// Tell on stderr what happens to the lock. The default is to tell of trouble only
    #[arg(short, long)]
    pub verbose: bool,
    /// Run LINE with $SHELL -c, or with sh -c if SHELL is not set
    #[arg(short = 'c', long = "command", value_name = "LINE")]
    pub line: Option<OsString>,
    /// The command and its arguments. The options of lockctl come before it
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "line",
        conflicts_with = "line"
    )]
    pub command: Vec<OsString>,
}

/// Show who holds and who waits
///
/// Shows the locks that somebody waits for, longest wait first. For a stuck lock it also shows the command that
/// breaks it. That command names the lock's token, so it does nothing once another has the lock.
#[derive(Args)]
pub struct LsOptions {
    /// Show these locks, whether or not somebody waits for them
    #[arg(conflicts_with = "count")]
    pub names: Vec<OsString>,
    /// Show at most N locks, and no more than 1000 of a server
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    #[command(flatten)]
    pub stuck: Stuck,
}

/// Show who holds and who waits, live
///
/// Shows what ls shows, again and again, with grants and releases per second, as far as it fits the terminal. Ctrl-C
/// ends it. With --json it writes a line each time and needs no terminal.
#[derive(Args)]
pub struct TopOptions {
    /// Show at most N locks, and no more than 1000 of a server
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    /// The time between two looks, 100ms at least
    #[arg(short, long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub interval: Duration,
    /// End after N looks
    #[arg(short = 't', long, value_name = "N")]
    pub times: Option<u64>,
    #[command(flatten)]
    pub stuck: Stuck,
}

/// Show what happens to locks, live
///
/// Writes a line each time a lock is acquired, released, broken, or its lease ends while somebody waits or others
/// hold it; in a cluster from all primaries. It does not show owners: ls does.
///
/// The server posts this by keyspace notifications, which are off by default. If they are off, tail ends and shows the
/// command that sets them.
#[derive(Args)]
pub struct TailOptions {
    /// Show these locks only
    pub names: Vec<OsString>,
    /// End after N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// Have the server post what is needed: add Ed to its notify-keyspace-events, until it is started again
    #[arg(long)]
    pub notify: bool,
}

/// When a lock counts as stuck.
#[derive(Args)]
pub struct Stuck {
    /// A lock is stuck when somebody has waited this long for it
    #[arg(long = "stuck-after", value_name = "TIME", value_parser = time, default_value = "10s")]
    pub after: Duration,
}

/// Take a lock from its holder, and pass it on
///
/// The holder gets no message. It finds out when it renews, or when its token is refused.
#[derive(Args)]
#[command(after_long_help = BREAK_EXIT_CODES)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct BreakOptions {
    /// The lock's key. Put -- before one that begins with a dash
    pub name: OsString,
    /// Break it only if this is its newest token, as lockctl ls shows it
    #[arg(short, long, value_name = "TOKEN", group = "which")]
    pub fence: Option<u64>,
    /// Break it whatever its token is
    #[arg(long, group = "which")]
    pub force: bool,
}

/// Look whether the servers are set up well for locks
///
/// Tells of each node whether it has the module, and the same version; which settings lose locks, or don't belong
/// together; and what each user may do with locks. It changes nothing. It wants the rights role, module|list, config|get,
/// acl|list and acl|dryrun, and says what it could not see.
#[derive(Args)]
#[command(after_long_help = DOCTOR_EXIT_CODES)]
pub struct DoctorOptions {
    /// Tell of users what they may do with this lock. The default is a lock for which they have rights
    #[arg(short = 'n', long, value_name = "NAME")]
    pub name: Option<OsString>,
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
