//! Runs locks under faults, and checks what their clients saw.
//!
//! A campaign starts servers of its own, lets many clients take and release
//! locks, and meanwhile crashes, stops, pauses and deceives whatever it can.
//! Every client writes down what it sent and heard, and in the end
//! [`redis_lock_chaos::history`] says whether any correct lock could have answered so.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use redis_lock_chaos::campaign::Campaign;
use redis_lock_chaos::client::{Client, LEASE_MS_MAX, Shared};
use redis_lock_chaos::fleet::Guide;
use redis_lock_chaos::journal::Journal;
use redis_lock_chaos::locks::Locks;
use redis_lock_chaos::protection::Protection;
use redis_lock_chaos::report;
use redis_lock_testing::local;

/// Runs locks under faults, and checks what the clients saw.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
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

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.campaign.seed();
    let kept = match (arguments.as_client_of, &arguments.judge) {
        (Some(port), _) => {
            let number = arguments.number.unwrap_or_default();
            run_client(port, number, seed, arguments.names)
        }
        (None, Some(path)) => report::judge(path),
        (None, None) => arguments.campaign.run(seed),
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

/// Is one client, for a campaign that reads our output.
fn run_client(port: u16, number: usize, seed: u64, names: Vec<String>) -> Result<bool, String> {
    let guide = Guide::to(local(port));
    let shared = Shared {
        journal: Journal::echoing(),
        ..Shared::new(guide, Protection::none(LEASE_MS_MAX), Locks::named(names))
    };
    Client::new(number, seed, Some(0), Arc::new(shared)).run()?;
    Ok(true)
}
