//! Runs locks under faults, and checks what their clients saw.
//!
//! A campaign starts servers of its own, lets many clients take and release
//! locks, and meanwhile crashes, stops, pauses and deceives whatever it can.
//! Every client writes down what it sent and heard, and in the end
//! the checker says whether any correct lock could have answered so.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use redis_lock_chaos::campaign::Campaign;
use redis_lock_chaos::report;

/// Runs locks under faults, and checks what the clients saw.
#[derive(Parser)]
#[command(version, args_override_self = true)]
struct Arguments {
    #[command(flatten)]
    campaign: Campaign,
    /// Judge the history that an earlier campaign left in this file
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.campaign.seed();
    let kept = match &arguments.judge {
        Some(path) => report::judge(path),
        None => arguments.campaign.run(seed),
    };
    match kept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("breach of survival: {error:#}; seed {seed}");
            ExitCode::from(2)
        }
    }
}
