//! Measures this module beside plain commands and its peers, each with a real server, in one
//! run, and writes a table of `docs/performance.md`.
//!
//! ```text
//! libraries   who takes part, and their drivers   servers   what they lock with
//! table       what is written                     rust_driver   the driver of Rust libraries
//! ```

mod libraries;
pub mod rust_driver;
mod servers;
mod table;

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use redis_lock_testing::{processors, raise_file_limit};

use crate::Subject;
use crate::driver::{Counts, Driver, Question};

use libraries::{Does, Library};
pub use libraries::{MAIN, PEERS};
use servers::{Server, Setting, on_processor};
use table::{Cell, Row};

/// Where no holder dies: what a machine that stands still does not end.
const LONG_LEASE: Duration = Duration::from_secs(30);

/// No cell is measured for longer, whatever the machine does.
const LONGEST: Duration = Duration::from_secs(15);

#[derive(Args)]
pub struct Options {
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
    /// The lease of a holder that is killed, or how long its session outlives it, in seconds
    #[arg(long, default_value_t = 5.0)]
    lease: f64,
}

/// Measures these libraries into the table that this target of `make` writes.
pub fn run(options: &Options, target: &str, libraries: &[Library]) -> Result<()> {
    raise_file_limit()?;
    for name in &options.only {
        let is_known = libraries.iter().any(|library| library.name == name);
        ensure!(is_known, "there is no library {name}");
    }
    // A processor for the clients, and one for the server. On one processor they hand over by
    // a switch of tasks, on two by waking a sleeping one; left to the kernel it is now the
    // one, now the other.
    let allowed = processors()?;
    let clients = *allowed.first().context("no processor to run on")?;
    let server = *allowed.get(1).unwrap_or(&clients);
    let began = Instant::now();
    let mut rows = Vec::new();
    for library in libraries {
        let wanted = options.only.is_empty() || options.only.iter().any(|n| n == library.name);
        for setting in [Setting::Durable, Setting::Fast] {
            let Some(described) = library.server.describe(setting).filter(|_| wanted) else {
                continue;
            };
            eprintln!("{:?} {}, {described}", began.elapsed(), library.title);
            let bench = Bench {
                options,
                library,
                setting,
                clients,
                server,
            };
            rows.push(bench.row(described)?);
            // A run that is broken off leaves what it has measured.
            let text = table::write(options, &rows, began.elapsed(), clients != server)?;
            table::put(&options.document, target, &text)?;
        }
    }
    print!("{}", table::written(&options.document, target)?);
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
    fn row(&self, setting: &'static str) -> Result<Row> {
        let version = self.library.server.version(&self.options.subject)?;
        let mut row = Row::new(self.library.title, setting, version);
        let does = self.library.does;
        match self.library.driver() {
            Ok(driver) => {
                let driver = on_processor(self.clients, &driver);
                if does >= Does::Waits {
                    row.add(Cell::Memory, self.memory(&driver));
                }
                if does == Does::All {
                    row.add(Cell::AfterKill, self.after_kill(&driver));
                }
                self.figures(&driver, &mut row);
            }
            Err(error) => row.reason(error),
        }
        Ok(row)
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

    /// What a driver measures on a server. After a failure both are started anew.
    fn figures(&self, driver: &Command, row: &mut Row) {
        let options = self.options;
        let mut running = None;
        let mut question = self.question("uncontended", 0);
        question.lease = LONG_LEASE;
        let pair = loop {
            let measured = self.ask(&mut running, driver, &question);
            // A busy machine may stand still for as long as a short cell.
            let is_empty = |(counts, _): &(Counts, Duration)| counts.latencies_ns.is_empty();
            if !measured.as_ref().is_ok_and(is_empty) || question.measure > LONGEST {
                break measured;
            }
            question.measure *= 4;
        };
        match pair {
            Ok((counts, cpu)) => {
                row.quantiles(Cell::Pair, &counts.latencies_ns);
                let pairs = counts.latencies_ns.len().max(1) as f64;
                row.add(Cell::Cpu, Ok(cpu.as_secs_f64() * 1e6 / pairs));
            }
            Err(error) => row.reason(error),
        }
        if self.library.does == Does::Pairs {
            return;
        }
        question.measure = Duration::from_secs_f64(5.0 * options.seconds);
        (question.what, question.clients) = ("hand-off", 2);
        match self.ask(&mut running, driver, &question) {
            Ok((counts, _)) => row.quantiles(Cell::HandOff, &counts.latencies_ns),
            Err(error) => row.reason(error),
        }
        question.what = "sections";
        question.measure = Duration::from_secs_f64(options.seconds);
        for &locks in &options.locks {
            for &clients in &options.contenders {
                (question.clients, question.locks) = (clients, locks);
                let measured = self.ask(&mut running, driver, &question);
                let a_second = |(counts, _): (Counts, Duration)| {
                    counts.shares.iter().sum::<u64>() as f64 / counts.seconds
                };
                row.add(Cell::Sections(locks), measured.map(a_second));
            }
        }
    }

    fn ask(
        &self,
        running: &mut Option<(Server, Driver)>,
        driver: &Command,
        question: &Question,
    ) -> Result<(Counts, Duration)> {
        let (server, mut driver) = match running.take() {
            Some(running) => running,
            None => {
                let most = self.options.contenders.iter().max();
                let server = self.start(most.copied().unwrap_or(1) + 2)?;
                (server, Driver::start(again(driver))?)
            }
        };
        let question = Question {
            port: server.port,
            ..question.clone()
        };
        let measured = driver.measure(&question, || server.cpu_time())?;
        *running = Some((server, driver));
        Ok(measured)
    }
}

/// A command that can be started once more.
fn again(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args());
    again
}
