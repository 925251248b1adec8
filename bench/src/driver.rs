//! Lock libraries of other languages: programs of their own, in `drivers/`, that are asked
//! over their standard input and answer in lines of JSON.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(90);

/// What a driver is asked to do.
#[derive(Clone)]
pub struct Question<'a> {
    /// `uncontended`, `contended`, `sections`, `hand-off` or `hold`.
    pub what: &'a str,
    /// Which library, or which kind of its clients.
    pub kind: &'a str,
    /// Where the server listens.
    pub port: u16,
    /// How many want locks.
    pub clients: usize,
    /// How many locks there are.
    pub locks: usize,
    /// How long a section lasts.
    pub section: Duration,
    /// How long nothing counts.
    pub warm_up: Duration,
    /// How long what is done counts.
    pub measure: Duration,
    /// The lease, or how long a session outlives its client.
    pub lease: Duration,
    /// How long a hand-off waits at least for all to be in the queue.
    pub settle: Duration,
}

/// What a driver answers.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Answer {
    /// It is up, and is this.
    Ready(String),
    /// What is measured begins now.
    Begin,
    /// And has ended now.
    End,
    /// Who was asked to hold a lock has it.
    Held,
    /// What it has measured.
    Done(Counts),
    /// Why it could not.
    Failed(String),
}

/// What was counted.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// How long it was counted.
    pub seconds: f64,
    /// What each pair, or each wait, took.
    pub latencies_ns: Vec<u64>,
    /// How often each client got the lock.
    pub shares: Vec<u64>,
}

/// A driver at work.
pub struct Driver {
    process: Child,
    questions: ChildStdin,
    answers: Receiver<(Instant, String)>,
    log: File,
    /// What it says of itself.
    pub ready: String,
}

impl Driver {
    /// Starts it, and waits until it says that it is ready.
    pub fn start(mut command: Command) -> Result<Self> {
        let log = tempfile::tempfile()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(log.try_clone()?);
        let mut process = redis_lock_testing::spawn(command)?;
        let questions = process.stdin.take().context("no pipe to the driver")?;
        let output = process.stdout.take().context("no pipe from the driver")?;
        let (lines, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let mut driver = Self {
            process,
            questions,
            answers,
            log,
            ready: String::new(),
        };
        match driver.answer()?.1 {
            Answer::Ready(what) => driver.ready = what,
            other => bail!("the driver says {other:?} and not that it is ready"),
        }
        Ok(driver)
    }

    fn answer(&mut self) -> Result<(Instant, Answer)> {
        let (at, line) = match self.answers.recv_timeout(PATIENCE) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => bail!("no answer within {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let mut log = String::new();
                self.log.rewind()?;
                self.log.read_to_string(&mut log)?;
                let last = log.lines().last().unwrap_or("it says nothing of it");
                bail!("the driver has ended: {last}");
            }
        };
        match serde_json::from_str(&line).with_context(|| line.clone())? {
            Answer::Failed(why) => bail!(why),
            answer => Ok((at, answer)),
        }
    }

    /// Sends a question, and returns when the driver begins with it.
    pub fn begin(&mut self, question: &Question) -> Result<()> {
        let Question {
            what,
            kind,
            port,
            clients,
            locks,
            ..
        } = question;
        writeln!(
            self.questions,
            "{what} {kind} {port} {clients} {locks} {} {} {} {} {}",
            question.section.as_micros(),
            question.warm_up.as_millis(),
            question.measure.as_millis(),
            question.lease.as_millis(),
            question.settle.as_millis(),
        )?;
        self.questions.flush()?;
        match self.answer()?.1 {
            Answer::Begin => Ok(()),
            other => bail!("the driver says {other:?} and not that it begins"),
        }
    }

    /// Has it measured, and the time of the server's processor meanwhile.
    pub fn measure(
        &mut self,
        question: &Question,
        cpu_time: impl Fn() -> Result<Duration>,
    ) -> Result<(Counts, Duration)> {
        self.begin(question)?;
        let before = cpu_time()?;
        let Answer::End = self.answer()?.1 else {
            bail!("the driver does not end");
        };
        let used = cpu_time()?.saturating_sub(before);
        match self.answer()?.1 {
            Answer::Done(counts) => Ok((counts, used)),
            other => bail!("the driver says {other:?} and not what it has measured"),
        }
    }

    /// Waits until a client that was asked to hold a lock has it, and returns since when.
    pub fn held(&mut self) -> Result<Instant> {
        match self.answer()? {
            (at, Answer::Held) => Ok(at),
            (_, other) => bail!("the driver says {other:?} and not that it holds the lock"),
        }
    }

    /// Kills it, as `kill -9` does.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Where the sources of a language's driver are.
pub fn source(language: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("drivers").join(language)
}

/// Where a language's driver is built.
pub fn target(language: &str) -> Result<PathBuf> {
    let binary = std::env::current_exe()?;
    let folder = binary.ancestors().nth(2).context("no target folder")?;
    Ok(folder.join("drivers").join(language))
}

/// Runs a tool of a language to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("no {program}"))?;
    if !output.status.success() {
        let (out, err) = (&output.stdout, &output.stderr);
        let said = [out, err].map(|said| String::from_utf8_lossy(said).into_owned());
        bail!("{program} failed: {}", said.concat());
    }
    Ok(())
}

/// Builds the driver in Java unless it is there and newer than its sources.
pub fn java() -> Result<Command> {
    let (source, target) = (source("java"), target("java")?);
    let jar = target.join("lock-driver.jar");
    let modified = |path: PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
    let main = source.join("src/main/java/LockDriver.java");
    if modified(jar) <= modified(source.join("pom.xml")).max(modified(main)) {
        let output = format!("-DoutputDirectory={}", target.display());
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "package", &output]);
        run(maven.current_dir(&source))?;
    }
    let path = format!("{0}/lock-driver.jar:{0}/lib/*", target.display());
    let mut command = Command::new("java");
    command.args(["-XX:+UseParallelGC", "-Xms512m", "-Xmx2g", "-cp", &path]);
    command.arg("LockDriver");
    Ok(command)
}
