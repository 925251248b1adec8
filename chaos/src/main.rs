//! Runs locks under faults, and checks what their clients saw.
//!
//! A campaign starts servers of its own, lets many clients take and release
//! locks, and meanwhile crashes, stops, pauses and deceives whatever it can.
//! Every client writes down what it sent and heard, and in the end
//! [`redis_lock_chaos::history`] says whether any correct lock could have answered so.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use redis_lock_chaos::campaign::{self, Campaign, Topology};
use redis_lock_chaos::library::workers::Kind;
use redis_lock_chaos::{commands, failover, library};

/// Runs locks under faults, and checks what the clients saw.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
    /// Who takes the locks
    #[arg(long, value_enum, default_value_t = Who::Commands)]
    client: Who,
    /// Where the locks are, but for those of a Redlock
    #[arg(long, value_enum, default_value_t = Topology::One)]
    topology: Topology,
    /// How many clients send bare commands at a time: 20, through fail-overs 8
    #[arg(long)]
    clients: Option<usize>,
    /// How many locks they share; on one server these are the exclusive ones, and there
    /// are a few others
    #[arg(long, default_value_t = 4)]
    locks: usize,
    #[command(flatten, next_help_heading = "Bare commands on one server")]
    commands: commands::Options,
    #[command(flatten, next_help_heading = "Bare commands through fail-overs")]
    failover: failover::Options,
    #[command(flatten, next_help_heading = "Libraries")]
    library: library::Options,
    /// Judge the history that an earlier campaign left in this file
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    /// Be one client, on this port, for a campaign that reads our output
    #[arg(long, hide = true, requires = "number")]
    as_client_of: Option<u16>,
    /// The number of that client
    #[arg(long, hide = true)]
    number: Option<usize>,
    /// The locks of that client
    #[arg(hide = true)]
    names: Vec<String>,
}

/// Who takes the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Who {
    /// Bare commands of the module.
    Commands,
    /// The Rust client, with leases that it renews.
    Library,
    /// The Rust client, by sessions.
    Session,
    /// Redlock, on several servers.
    Redlock,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.campaign.seed();
    if let (Some(port), Some(number)) = (arguments.as_client_of, arguments.number) {
        commands::run_client(port, number, seed, arguments.names);
        return ExitCode::SUCCESS;
    }
    let kept = match &arguments.judge {
        Some(path) => commands::judge(path),
        None => run(&arguments, seed),
    };
    match kept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("breach of survival: {error}; seed {seed}");
            ExitCode::from(2)
        }
    }
}

/// Runs a campaign. Returns whether it came out as it should.
fn run(arguments: &Arguments, seed: u64) -> Result<bool, String> {
    let Arguments {
        campaign,
        client,
        topology,
        locks,
        ..
    } = arguments;
    println!("seed {seed}, {} s, {campaign}", campaign.duration);
    let (setup, dir) = (campaign.setup()?, campaign::directory()?);
    let course = (seed, Duration::from_secs(campaign.duration));
    let by_library = |kind| {
        let servers = (&setup, dir.path());
        library::run(
            &arguments.library,
            (kind, *topology),
            *locks,
            servers,
            course,
        )
    };
    let kept = match (client, topology) {
        (Who::Commands, Topology::One) if arguments.failover.workload.is_some() => {
            Err("a workload wants --topology sentinel or cluster".into())
        }
        (Who::Commands, Topology::One) => {
            let many = (arguments.clients.unwrap_or(20), *locks);
            commands::run(
                &arguments.commands,
                many,
                (setup.clone(), dir.path()),
                course,
            )
        }
        (Who::Commands, Topology::Sentinel | Topology::Cluster) => {
            let (many, servers) = (
                (arguments.clients.unwrap_or(8), *locks),
                (&setup, dir.path()),
            );
            failover::run(&arguments.failover, *topology, many, servers, course)
        }
        (Who::Library, _) => by_library(Kind::Client),
        (Who::Session, _) => by_library(Kind::Session),
        (Who::Redlock, _) => by_library(Kind::Redlock),
    };
    if let (Ok(_), Some(path)) = (&kept, &campaign.history) {
        let copied = std::fs::copy(dir.path().join("history.jsonl"), path);
        copied.map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if !matches!(kept, Ok(true)) {
        println!("logs and history are in {}", dir.keep().display());
    }
    kept
}
