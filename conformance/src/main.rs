//! The conformance suite: the same scenarios for the packages of all languages, against
//! real servers. README.md tells how it works.
//!
//! ```text
//! scenario   what happens, and what is expected     process   a driver
//! bed        servers and networks                   player    plays one
//! ```

mod bed;
mod player;
mod process;
mod scenario;
mod table;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use redis_lock_testing::{Control, Error, Result};

use bed::{Bed, now_ms};
use player::{Player, Record, Stop};
use process::{Language, Process};
use scenario::Scenario;
use table::Outcome;

/// Where a thread that only sleeps oversleeps by so much, nobody can be told in time.
const STALL: Duration = Duration::from_millis(10);

/// How often a scenario is tried that is judged by times.
const TRIES: usize = 10;

/// Plays the conformance suite, or what of it is asked for.
#[derive(Parser)]
struct Options {
    /// Only languages with this in their name
    #[arg(long)]
    language: Vec<String>,
    /// Only scenarios with this in their name
    #[arg(long, default_value = "")]
    only: String,
    /// All client libraries and worlds of each language, not only the first
    #[arg(long)]
    all_variants: bool,
    /// Each scenario with the fault that is planted for it: it has to fail
    #[arg(long)]
    planted: bool,
    /// Where the packages are, each in a folder
    #[arg(long, default_value = "packages")]
    packages: PathBuf,
    /// How many are played at once
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Write the table into this document, between its markers
    #[arg(long)]
    write: Option<PathBuf>,
    /// Where what was said and logged is kept, of what fails
    #[arg(long, default_value = "target/conformance")]
    logs: PathBuf,
}

/// One scenario for one language, or for all at once.
struct Job<'r> {
    scenario: &'r Scenario,
    languages: Vec<&'r Language>,
}

struct Run<'r> {
    options: &'r Options,
    /// A whole path: drivers may be elsewhere.
    logs: PathBuf,
    control: Control,
    jobs: Mutex<VecDeque<Job<'r>>>,
    outcomes: Mutex<Vec<(&'r Scenario, &'r Language, Outcome)>>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    let begun = Instant::now();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut scenarios = scenario::read(&folder)?;
    scenarios.retain(|it| it.name.contains(&options.only));
    let mut languages = Language::all(&options.packages, options.all_variants)?;
    let wanted = &options.language;
    let is_wanted = |it: &Language| wanted.iter().any(|name| it.title().contains(name));
    languages.retain(|it| wanted.is_empty() || is_wanted(it));
    if languages.is_empty() || scenarios.is_empty() {
        return Err(Error::msg(
            "no language or no scenario has this in its name",
        ));
    }
    languages.iter().try_for_each(Language::build)?;
    // Whoever catches a panic tells of it.
    std::panic::set_hook(Box::new(|_| {}));
    let run = Run {
        options,
        logs: std::path::absolute(&options.logs)?,
        control: Control::start(),
        jobs: Mutex::default(),
        outcomes: Mutex::default(),
    };
    // Those that are judged by times come last, and by themselves: they only wait.
    for is_timed in [false, true] {
        for scenario in scenarios.iter().filter(|it| it.timed == is_timed) {
            let (mut jobs, all) = (locked(&run.jobs), Vec::from_iter(&languages));
            let languages = match scenario.mixed {
                true => vec![all],
                false => all.into_iter().map(|it| vec![it]).collect(),
            };
            jobs.extend(languages.into_iter().map(|languages| Job {
                scenario,
                languages,
            }));
        }
        std::thread::scope(|scope| {
            for _ in 0..options.workers {
                scope.spawn(|| run.work());
            }
        });
    }
    let outcomes = locked(&run.outcomes);
    let table = table::of(&scenarios, &languages, &outcomes);
    println!("\n{table}\n{:.0} seconds", begun.elapsed().as_secs_f64());
    if let Some(document) = &options.write {
        table::write(document, &table)?;
    }
    let failed = |scenario: &Scenario| {
        let mut of = outcomes.iter().filter(|(of, ..)| of.name == scenario.name);
        of.any(|(.., outcome)| matches!(outcome, Outcome::Failed(_)))
    };
    let wrong = scenarios.iter().filter(|it| failed(it) != options.planted);
    Ok(wrong
        .inspect(|it| println!("not as it has to be: {}", it.name))
        .count()
        == 0)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'r> Run<'r> {
    fn work(&self) {
        loop {
            let Some(job) = locked(&self.jobs).pop_front() else {
                return;
            };
            let begun = Instant::now();
            let had_no_time = || Outcome::Failed("the machine had no time for it".into());
            let outcome = (0..TRIES).find_map(|_| self.outcome_of(&job));
            let outcome = outcome.unwrap_or_else(had_no_time);
            let titles: Vec<_> = job.languages.iter().map(|it| it.title()).collect();
            let (who, what) = (titles.join(" + "), &job.scenario.name);
            println!(
                "{outcome} {:5.1} s  {who}: {what}",
                begun.elapsed().as_secs_f64()
            );
            let of_each = |language| (job.scenario, language, outcome.clone());
            locked(&self.outcomes).extend(job.languages.into_iter().map(of_each));
        }
    }

    /// Plays a scenario. None if the machine had no time for it.
    fn outcome_of(&self, job: &Job<'r>) -> Option<Outcome> {
        let name = format!("{}-{}", job.languages[0].title(), job.scenario.name);
        let name = name.replace(|letter: char| !letter.is_alphanumeric(), "-");
        let (logs, mut record) = (self.logs.join(name), Record::default());
        let played = catch_unwind(AssertUnwindSafe(|| self.play(job, &logs, &mut record)));
        let outcome = match played {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Unsupported(why))) => Outcome::Unsupported(why),
            Ok(Err(Stop::Failed(why))) => Outcome::Failed(why),
            Err(panic) => Outcome::Failed(said(&*panic)),
        };
        let Outcome::Failed(why) = outcome else {
            let _ = std::fs::remove_dir_all(&logs);
            return Some(outcome);
        };
        if job.scenario.timed && self.had_no_time(record.lease_end_ms) {
            return None;
        }
        let _ = std::fs::write(logs.join("record"), format!("{}{why}\n", record.text));
        Some(Outcome::Failed(format!(
            "{why}\n           {}",
            logs.display()
        )))
    }

    fn play(
        &self,
        job: &Job<'r>,
        logs: &Path,
        record: &mut Record,
    ) -> std::result::Result<(), Stop> {
        let mut scenario = job.scenario.clone();
        if scenario.mixed {
            let actors = 0..job.languages.len().max(2);
            scenario.actors = actors.map(|n| n.to_string()).collect();
        }
        let _ = std::fs::remove_dir_all(logs);
        std::fs::create_dir_all(logs)?;
        let bed = Bed::start(&scenario)?;
        let clock = bed.clock.iter().flat_map(|clock| clock.environment.clone());
        let fault = ("CONFORMANCE_FAULT".to_owned(), scenario.fault.clone());
        let fault = self.options.planted.then_some(fault);
        let environment: Vec<_> = clock.chain(fault).collect();
        let mut processes = Vec::new();
        for (actor, language) in scenario.actors.iter().zip(job.languages.iter().cycle()) {
            let log = logs.join(format!("{actor}.log"));
            processes.push(Process::start(language, &log, &environment)?);
        }
        let mut player = Player::new(&scenario, bed, processes, record);
        match player.play(&logs.join("count").to_string_lossy()) {
            // With the player go the servers, and their logs stay.
            Err(Stop::Failed(why)) => resume_unwind(Box::new(why)),
            played => played,
        }
    }

    /// Whether it had none when a loss had to be told, before the end of this lease.
    fn had_no_time(&self, lease_end_ms: Option<f64>) -> bool {
        let now = (Instant::now(), now_ms());
        let moment = |ms: f64| now.0 - Duration::from_secs_f64((now.1 - ms).max(0.0) / 1e3);
        lease_end_ms.is_some_and(|end| {
            let (from, to) = (moment(end - 200.0), moment(end + 200.0));
            self.control.stalled(from, to) > STALL
        })
    }
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "it panicked".into())
}
