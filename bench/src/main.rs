//! Measures the lock module against its peers and against the floors of Redis
//! itself: all in one run, in turn, several rounds.
//!
//! ```text
//! scenarios    what is measured, by name        contenders   who takes part
//! workloads    how it is measured               protocols    peers spoken over RESP, as state machines
//! swarm        thousands of them in one thread  server       a fresh one for every measurement
//! results      all figures                      targets      what must be reached
//! report       Markdown and JSON                charts       SVG
//! ```

#![forbid(unsafe_code)]

mod charts;
mod contenders;
mod measurement;
mod placement;
mod protocols;
mod replies;
mod report;
mod results;
mod scenarios;
mod server;
mod swarm;
mod targets;
mod workloads;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::utsname::uname;
use redis_lock_testing::raise_file_limit;
use subject::{Subject, version};

use contenders::Contender;
use measurement::Measurement;
use placement::{Placement, Processors};
use report::{Conditions, Name};
use results::Results;
use scenarios::Scenario;
use server::{Duty, Launcher};
use workloads::{Pace, Workload};

/// Measures the lock module against its peers.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    subject: Subject,
    /// Where the report goes
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// How often each contender is measured [default: 3, of a full run 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// All scenarios, and longer
    #[arg(long)]
    full: bool,
    /// Only these scenarios, or all whose names begin so
    #[arg(long, visible_alias = "scenario", value_name = "SCENARIO", num_args = 1..)]
    only: Vec<String>,
    /// Only these contenders
    #[arg(long, value_name = "CONTENDER", num_args = 1..)]
    contenders: Vec<String>,
    /// Print the names of all scenarios and contenders
    #[arg(long)]
    list: bool,
}

impl Options {
    /// The scenarios asked for. A name that is a scenario's means that one,
    /// any other all that begin so.
    fn scenarios(&self) -> Result<Vec<Scenario>> {
        let mut scenarios = scenarios::all();
        let names: Vec<String> = scenarios.iter().map(|s| s.name.clone()).collect();
        for wanted in &self.only {
            let is_known = names.iter().any(|name| name.starts_with(wanted));
            ensure!(is_known, "there is no scenario {wanted}: see --list");
        }
        scenarios.retain(|scenario| {
            if self.only.is_empty() {
                return self.list || self.full || !scenario.full_only;
            }
            self.only.iter().any(|wanted| {
                let is_prefix = !names.contains(wanted);
                scenario.name == *wanted || is_prefix && scenario.name.starts_with(wanted)
            })
        });
        Ok(scenarios)
    }

    fn lets_in(&self, contender: &str) -> bool {
        self.contenders.is_empty() || self.contenders.iter().any(|name| name == contender)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let scenarios = options.scenarios()?;
    let work: Vec<Workload> = scenarios.iter().map(|scenario| scenario.work).collect();
    let (mut contenders, missing) = contenders::all(&|name| options.lets_in(name), &work);
    contenders.retain(|contender| options.lets_in(contender.name()));
    if options.list {
        list(&scenarios, &contenders);
        return Ok(());
    }
    // Thousands of waiters are thousands of connections.
    raise_file_limit()?;
    let processors = Processors::choose()?;
    processors.place_clients()?;
    let launcher = Launcher {
        setup: options.subject.with_module()?,
        processors,
    };
    let pace = if options.full {
        Pace::FULL
    } else {
        Pace::QUICK
    };
    let rounds = options.rounds.unwrap_or(if options.full { 5 } else { 3 });
    let conditions = conditions(&options, &launcher, &contenders, missing, rounds)?;
    let takes_part = |scenario: &Scenario, contender: &dyn Contender| {
        // With AOF and a replica, a quick run compares us with ourselves alone.
        let durable_too = options.full || scenario.duty != Duty::Durable;
        let pinned_too = scenario.placement == Placement::Apart;
        contender.fits(scenario.work)
            && (durable_too || contender.needs_module())
            && (pinned_too || !contender.is_library())
    };
    let run = Run {
        launcher: &launcher,
        scenarios: &scenarios,
        takes_part: &takes_part,
        pace,
        rounds,
    };
    let (results, skipped) = run.measure(&mut contenders)?;

    std::fs::create_dir_all(&options.out)?;
    let names: Vec<Name> = contenders
        .iter()
        .map(|contender| Name {
            name: contender.name(),
            title: contender.title(),
        })
        .collect();
    let conditions = Conditions {
        missing: conditions.missing.into_iter().chain(skipped).collect(),
        ..conditions
    };
    let verdicts = targets::judge(&results);
    report::write(
        &options.out,
        &conditions,
        &names,
        &scenarios,
        &verdicts,
        &results,
    )?;
    charts::write(&options.out, &names, &results)?;
    print!(
        "{}",
        std::fs::read_to_string(options.out.join("results.md"))?
    );
    eprintln!(
        "\nThe report and its charts are in {}",
        options.out.display()
    );
    Ok(())
}

fn list(scenarios: &[Scenario], contenders: &[Box<dyn Contender>]) {
    println!("Scenarios:");
    for scenario in scenarios {
        println!("  {:<24} {}", scenario.name, scenario.title);
    }
    println!("Contenders:");
    for contender in contenders {
        println!("  {:<24} {}", contender.name(), contender.title());
    }
}

struct Run<'a> {
    launcher: &'a Launcher,
    scenarios: &'a [Scenario],
    takes_part: &'a dyn Fn(&Scenario, &dyn Contender) -> bool,
    pace: Pace,
    rounds: usize,
}

impl Run<'_> {
    /// Every contender once, then all of them again: what the machine does
    /// besides meets all alike. Also returns why some could not be measured.
    fn measure(&self, contenders: &mut [Box<dyn Contender>]) -> Result<(Results, Vec<String>)> {
        let mut results = Results::default();
        let mut skipped: Vec<String> = Vec::new();
        let steps = self.scenarios.len() * self.rounds * contenders.len();
        let style = "[{elapsed_precise}] {wide_bar} {pos}/{len}, {eta} left: {msg}";
        let bar = ProgressBar::new(steps as u64).with_style(ProgressStyle::with_template(style)?);
        for scenario in self.scenarios {
            for _ in 0..self.rounds {
                for contender in contenders.iter_mut() {
                    bar.set_message(format!("{} {}", scenario.name, contender.name()));
                    bar.inc(1);
                    if !(self.takes_part)(scenario, contender.as_ref()) {
                        continue;
                    }
                    match self.measure_once(scenario, contender.as_mut()) {
                        Ok(measured) => results.add(&scenario.name, contender.name(), measured),
                        Err(error) => {
                            let what = format!("{}, {}", contender.title(), scenario.title);
                            let why = format!("{what}: {error:#}");
                            if !skipped.contains(&why) {
                                skipped.push(why);
                            }
                        }
                    }
                }
            }
        }
        bar.finish_and_clear();
        Ok((results, skipped))
    }

    fn measure_once(
        &self,
        scenario: &Scenario,
        contender: &mut dyn Contender,
    ) -> Result<Measurement> {
        let with_module = contender.needs_module();
        let server = self
            .launcher
            .start(with_module, scenario.duty, scenario.placement)?;
        contender.run(scenario.work, self.pace, &server)
    }
}

fn conditions(
    options: &Options,
    launcher: &Launcher,
    contenders: &[Box<dyn Contender>],
    missing: Vec<String>,
    rounds: usize,
) -> Result<Conditions> {
    let version = version(&options.subject.info()?)?;
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("processor unknown", |(_, model)| model);
    let cores = cpus
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    let system = uname()?;
    Ok(Conditions {
        machine: format!(
            "{cpu}, {cores} processors, {} {}, load before the run {load}",
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy()
        ),
        server: format!(
            "{version} with `--save \"\"`, a fresh one for every measurement, {}; the module is \
             loaded for this module's contenders alone, so that nobody else pays for it",
            launcher.processors.describe()
        ),
        module: format!(
            "redis-lock-module {}, default settings",
            env!("CARGO_PKG_VERSION")
        ),
        run: format!(
            "{} of {rounds} rounds, all contenders in turn in each; clients that are not real \
             libraries are played by one thread, on one processor; real libraries rest for 5 ms \
             and more before each hand-off, so that more has fallen asleep by then",
            if options.full { "full" } else { "quick" }
        ),
        contenders: contenders
            .iter()
            .filter_map(|contender| contender.settings())
            .collect(),
        missing,
    })
}
