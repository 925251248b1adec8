//! Measures this module beside its peers, each with a real library and a real server, in
//! one run, and writes the table of `docs/performance.md`.
//!
//! ```text
//! libraries   who takes part, and their drivers   servers   what they lock with
//! table       what is written                     rust_driver   the driver of Rust libraries
//! ```

#![forbid(unsafe_code)]

mod libraries;
mod rust_driver;
mod servers;
mod table;

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use redis_lock_testing::{processors, raise_file_limit};
use subject::Subject;
use subject::driver::{Driver, Question};

use libraries::{LIBRARIES, Library};
use servers::{Server, Setting, on_processor};
use table::{Cell, Row};

/// No cell is measured for longer, whatever the machine does.
const LONGEST: Duration = Duration::from_secs(15);

/// Measures this module beside its peers.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    subject: Subject,
    /// The document whose table is written
    #[arg(long, default_value = "docs/performance.md")]
    document: PathBuf,
    /// Only these libraries
    #[arg(long, num_args = 1..)]
    only: Vec<String>,
    /// How long each cell is measured, in seconds; a hand-off five times as long
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How many want locks
    #[arg(long, num_args = 1.., default_values_t = [1, 8, 64, 512])]
    contenders: Vec<usize>,
    /// How many locks there are
    #[arg(long, num_args = 1.., default_values_t = [1, 16, 1_000])]
    locks: Vec<usize>,
    /// How many wait while memory is measured
    #[arg(long, default_value_t = 500)]
    waiters: usize,
    /// The lease, or how long a session outlives its client, in seconds
    #[arg(long, default_value_t = 5.0)]
    lease: f64,
    /// Answers what a run asks of a Rust library
    #[arg(long, hide = true)]
    drive: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.drive {
        return rust_driver::drive();
    }
    raise_file_limit()?;
    for name in &options.only {
        let is_known = LIBRARIES.iter().any(|library| library.name == name);
        ensure!(is_known, "there is no library {name}");
    }
    // One processor for the clients, one for the server.
    let allowed = processors()?;
    let clients = *allowed.first().context("no processor to run on")?;
    let server = *allowed.get(1).unwrap_or(&clients);
    let began = Instant::now();
    let mut rows = Vec::new();
    for library in &LIBRARIES {
        let wanted = options.only.is_empty() || options.only.iter().any(|n| n == library.name);
        for setting in [Setting::Durable, Setting::Fast] {
            let Some(described) = library.server.describe(setting).filter(|_| wanted) else {
                continue;
            };
            eprintln!("{:?} {}, {described}", began.elapsed(), library.title);
            let bench = Bench {
                options: &options,
                library,
                setting,
                clients,
                server,
            };
            rows.push(bench.row(described));
            // A run that is broken off leaves what it has measured.
            let text = table::write(&options, &rows, began.elapsed(), clients != server)?;
            table::put(&options.document, &text)?;
        }
    }
    print!("{}", table::written(&options.document)?);
    Ok(())
}

/// One library with one setting of its server.
struct Bench<'a> {
    options: &'a Options,
    library: &'a Library,
    setting: Setting,
    clients: usize,
    server: usize,
}

impl Bench<'_> {
    /// Measures all that there is of it.
    fn row(&self, setting: &'static str) -> Row {
        let mut row = Row::new(self.library.title, setting);
        match self.library.driver() {
            Ok(driver) => {
                let driver = on_processor(self.clients, &driver);
                row.add(Cell::Memory, self.memory(&driver));
                row.add(Cell::AfterKill, self.after_kill(&driver));
                if let Err(error) = self.figures(&driver, &mut row) {
                    row.reason(error);
                }
            }
            Err(error) => row.reason(error),
        }
        row
    }

    fn start(&self, clients: usize) -> Result<Server> {
        let (kind, subject) = (self.library.server, &self.options.subject);
        Server::start(kind, self.setting, clients, subject, self.server)
    }

    fn question<'a>(&'a self, what: &'a str, port: u16) -> Question<'a> {
        let measure = Duration::from_secs_f64(self.options.seconds);
        Question {
            what,
            kind: self.library.name,
            port,
            clients: 1,
            locks: 1,
            section: Duration::ZERO,
            warm_up: (measure / 2).min(Duration::from_millis(500)),
            measure,
            lease: Duration::from_secs_f64(self.options.lease),
            settle: Duration::from_millis(self.library.looks_after_ms),
        }
    }

    /// KiB a waiter, with its connections.
    fn memory(&self, driver: &Command) -> Result<f64> {
        let count = self.options.waiters;
        let server = self.start(count + 1)?;
        let question = self.question("hold", server.port);
        let mut holder = Driver::start(again(driver))?;
        holder.begin(&question)?;
        holder.held()?;
        let before = server.memory_kib()?;
        let mut waiters = Driver::start(again(driver))?;
        waiters.begin(&Question {
            clients: count,
            ..question
        })?;
        // Their requests are on their way.
        let mut last = before;
        for _ in 0..20 {
            sleep(Duration::from_millis(500));
            let now = server.memory_kib()?;
            let grows = now > last + last / 100;
            last = now;
            if !grows {
                break;
            }
        }
        Ok(last.saturating_sub(before) as f64 / count as f64)
    }

    /// Milliseconds from the holder's `kill -9` until the next one has the lock.
    fn after_kill(&self, driver: &Command) -> Result<f64> {
        let server = self.start(2)?;
        let question = self.question("hold", server.port);
        let mut waiter = Driver::start(again(driver))?;
        let mut holder = Driver::start(again(driver))?;
        holder.begin(&question)?;
        holder.held()?;
        waiter.begin(&question)?;
        sleep(Duration::from_millis(500));
        let from = Instant::now();
        holder.kill()?;
        let held = waiter.held()?;
        ensure!(held > from, "two held the lock together");
        Ok((held - from).as_secs_f64() * 1e3)
    }

    /// What one driver measures on one server.
    fn figures(&self, driver: &Command, row: &mut Row) -> Result<()> {
        let options = self.options;
        let most = options.contenders.iter().copied().max().unwrap_or(1);
        let server = self.start(most + 2)?;
        let mut driver = Driver::start(again(driver))?;
        let mut ask = |question: &Question| driver.measure(question, || server.cpu_time());
        let mut question = self.question("uncontended", server.port);
        let (counts, cpu) = loop {
            let (counts, cpu) = ask(&question)?;
            // A busy machine may stand still for as long as a short cell.
            if !counts.latencies_ns.is_empty() || question.measure > LONGEST {
                break (counts, cpu);
            }
            question.measure *= 4;
        };
        let pairs = counts.latencies_ns.len();
        ensure!(pairs > 0, "no pair was done in {:?}", question.measure);
        row.quantiles(Cell::Pair, &counts.latencies_ns);
        row.add(Cell::Cpu, Ok(cpu.as_secs_f64() * 1e6 / pairs as f64));
        let (counts, _) = ask(&Question {
            clients: 2,
            measure: Duration::from_secs_f64(5.0 * options.seconds),
            ..self.question("hand-off", server.port)
        })?;
        row.quantiles(Cell::HandOff, &counts.latencies_ns);
        for &locks in &options.locks {
            for &clients in &options.contenders {
                let (counts, _) = ask(&Question {
                    clients,
                    locks,
                    ..self.question("sections", server.port)
                })?;
                let sections = counts.shares.iter().sum::<u64>() as f64;
                row.add(Cell::Sections(locks), Ok(sections / counts.seconds));
            }
        }
        Ok(())
    }
}

/// A command that can be started once more.
fn again(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    again
}
