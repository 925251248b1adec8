//! Measures the lock module against its peers and against the floors of Redis
//! itself, all in one run, in turn, several rounds.

mod clients;
mod placement;
mod server;
mod swarm;
mod wire;
mod workloads;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use clients::PROTOCOLS;
use placement::Placement;
use server::Launcher;
use workloads::Workload;

/// Measures the lock module against its peers.
#[derive(Parser)]
struct Options {
    /// The server's binary
    #[arg(long, env = "REDISLOCK_SERVER", default_value = "redis-server")]
    server: PathBuf,
    /// The module
    #[arg(
        long,
        env = "REDISLOCK_MODULE",
        default_value = "target/release/libredislock.so"
    )]
    module: PathBuf,
    /// How often each contender is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only scenarios whose names begin so
    #[arg(long, value_name = "SCENARIO", num_args = 1..)]
    only: Vec<String>,
    /// Where the server runs, seen from its clients
    #[arg(long, value_enum, default_value = "apart")]
    placement: Placement,
    /// Only these contenders
    #[arg(long, value_name = "CONTENDER", num_args = 1..)]
    contenders: Vec<String>,
}

fn scenarios() -> Vec<(&'static str, Workload)> {
    vec![
        ("uncontended-1", Workload::Uncontended { clients: 1 }),
        ("uncontended-50", Workload::Uncontended { clients: 50 }),
        ("pipelined-cpu", Workload::Pipelined),
        ("hand-off-1", Workload::HandOff { waiters: 1 }),
        ("hand-off-10", Workload::HandOff { waiters: 10 }),
        ("hand-off-100", Workload::HandOff { waiters: 100 }),
        ("hand-off-1000", Workload::HandOff { waiters: 1000 }),
        ("hand-off-5000", Workload::HandOff { waiters: 5000 }),
    ]
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let launcher = Launcher {
        binary: options.server,
        module: options.module.canonicalize()?,
        placement: options.placement,
    };
    options.placement.place_clients()?;
    let ours = launcher.start(true, &[])?;
    let plain = launcher.start(false, &[])?;
    let chosen = |name: &str| {
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|only| name.starts_with(only.as_str()))
    };
    for (name, workload) in scenarios().into_iter().filter(|(name, _)| chosen(name)) {
        let mut values: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
        for _ in 0..options.rounds {
            for (n, protocol) in PROTOCOLS.iter().enumerate() {
                if !options.contenders.is_empty()
                    && !options.contenders.iter().any(|c| c == protocol.name)
                {
                    continue;
                }
                let server = if protocol.needs_module { &ours } else { &plain };
                server.flush()?;
                if let Some(measurement) = workloads::run(workload, protocol, server)? {
                    for figure in measurement.figures {
                        values
                            .entry((n, figure.metric))
                            .or_default()
                            .push(figure.value);
                    }
                }
            }
        }
        for ((n, metric), mut values) in values {
            values.sort_by(f64::total_cmp);
            println!(
                "{name:<15} {:<22} {metric:<20} {:>10.2}  ({:.2} to {:.2})",
                PROTOCOLS[n].name,
                values[values.len() / 2],
                values[0],
                values[values.len() - 1],
            );
        }
    }
    Ok(())
}
