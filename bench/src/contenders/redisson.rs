//! Real Redisson and its `RLock`, in a JVM of its own that is asked over its standard input and
//! answers in lines of JSON.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Contender;
use crate::measurement::{MS, Measurement, US, histogram, jain};
use crate::server::Server;
use crate::workloads::{Pace, Workload};

/// All kinds, by name.
pub const NAMES: [&str; 2] = ["redisson", "redisson-apart"];

/// A kind of clients.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The clients are threads of one process, so that a release
    /// wakes one of them.
    Lock,
    /// The clients are as apart as in processes of their own.
    Apart,
}

/// Clients with a `RedissonClient` each soon fill a JVM with threads.
const MOST_APART: usize = 101;
/// So many threads still start and end within moments.
const MOST_TOGETHER: usize = 1001;

impl Kind {
    fn fits(self, work: Workload) -> bool {
        let clients = match work {
            Workload::Uncontended { .. } => return self == Self::Lock,
            Workload::HandOff { waiters } => waiters + 1,
            Workload::Contended { clients, .. } => clients,
            Workload::OneProcess { .. } => return self == Self::Lock,
            _ => return false,
        };
        match self {
            Self::Apart => clients <= MOST_APART,
            Self::Lock => clients <= MOST_TOGETHER,
        }
    }
}

/// Redisson with one kind of clients.
pub struct Redisson {
    kind: Kind,
    jvm: Rc<RefCell<Jvm>>,
}

struct Jvm {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    settings: String,
}

/// What the JVM answers.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Answer {
    /// It is up, warm, and has these settings.
    Ready(String),
    /// What is measured begins now.
    Begin,
    /// And has ended now.
    End,
    /// What it has measured.
    Done {
        seconds: f64,
        latencies_ns: Vec<u64>,
        /// How often each client got the lock.
        shares: Vec<u64>,
    },
    /// Why it could not.
    Failed(String),
}

/// Whether any kind can do the work.
pub fn fits(work: Workload) -> bool {
    [Kind::Lock, Kind::Apart]
        .into_iter()
        .any(|kind| kind.fits(work))
}

/// All kinds, in one JVM. Builds it if need be.
pub fn all() -> Result<[Redisson; 2]> {
    let jvm = Rc::new(RefCell::new(Jvm::start(&build()?)?));
    Ok([Kind::Lock, Kind::Apart].map(|kind| Redisson {
        kind,
        jvm: jvm.clone(),
    }))
}

/// Builds the Java side unless it is there and newer than its sources. Returns
/// its folder.
fn build() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("redisson");
    let pom = source.join("pom.xml");
    let main = source.join("src/main/java/RedissonBench.java");
    let binary = std::env::current_exe()?;
    let target = binary.ancestors().nth(2).context("no target folder")?;
    let target = target.join("redisson");
    let jar = target.join("redisson-bench.jar");
    let modified = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    if modified(&jar) > modified(&pom).max(modified(&main)) {
        return Ok(target);
    }
    let built = Command::new("mvn")
        .args(["-q", "-B", "package"])
        .arg(format!("-DoutputDirectory={}", target.display()))
        .current_dir(&source)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .context("no Maven: `scripts/install-missing redisson` installs it")?;
    if !built.status.success() {
        bail!("Maven failed:\n{}", String::from_utf8_lossy(&built.stdout));
    }
    Ok(target)
}

impl Jvm {
    fn start(folder: &Path) -> Result<Self> {
        let path = format!("{0}/redisson-bench.jar:{0}/lib/*", folder.display());
        let mut process = Command::new("java")
            .args(["-XX:+UseParallelGC", "-Xms512m", "-Xmx2g", "-cp", &path])
            .arg("RedissonBench")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("can't start java")?;
        let questions = process.stdin.take().context("no pipe to the JVM")?;
        let answers = process.stdout.take().context("no pipe from the JVM")?;
        let mut jvm = Self {
            process,
            questions,
            answers: BufReader::new(answers),
            settings: String::new(),
        };
        match jvm.answer()? {
            Answer::Ready(settings) => jvm.settings = settings,
            _ => bail!("the JVM does not say that it is ready"),
        }
        Ok(jvm)
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the JVM has ended");
        }
        match serde_json::from_str(&line)? {
            Answer::Failed(why) => bail!("Redisson: {why}"),
            answer => Ok(answer),
        }
    }

    fn ask(&mut self, question: &str, server: &Server) -> Result<Done> {
        writeln!(self.questions, "{question}")?;
        self.questions.flush()?;
        let Answer::Begin = self.answer()? else {
            bail!("the JVM does not begin");
        };
        let cpu = server.cpu_time()?;
        let Answer::End = self.answer()? else {
            bail!("the JVM does not end");
        };
        let cpu = server.cpu_time()? - cpu;
        let Answer::Done {
            seconds,
            latencies_ns,
            shares,
        } = self.answer()?
        else {
            bail!("the JVM does not say what it has measured");
        };
        let mut latencies = histogram();
        for latency in latencies_ns {
            latencies.record(latency)?;
        }
        Ok(Done {
            seconds,
            cpu_us: cpu.as_secs_f64() * 1e6,
            latencies,
            shares,
        })
    }
}

struct Done {
    seconds: f64,
    cpu_us: f64,
    latencies: hdrhistogram::Histogram<u64>,
    shares: Vec<u64>,
}

impl Drop for Jvm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Contender for Redisson {
    fn name(&self) -> &'static str {
        NAMES[self.kind as usize]
    }

    fn title(&self) -> &'static str {
        match self.kind {
            Kind::Lock => "Redisson `RLock`, real, one process",
            Kind::Apart => "Redisson `RLock`, real, a process each",
        }
    }

    fn settings(&self) -> Option<String> {
        (self.kind == Kind::Lock).then(|| {
            let settings = &self.jvm.borrow().settings;
            format!(
                "{settings}; \"a process each\": a RedissonClient for each client, all in one JVM \
                 and on the same netty threads; the JVM may use every processor"
            )
        })
    }

    fn fits(&self, work: Workload) -> bool {
        self.kind.fits(work)
    }

    fn run(&mut self, work: Workload, pace: Pace, server: &Server) -> Result<Measurement> {
        let (what, clients, locks, section_us, pace) = match work {
            Workload::Uncontended { clients } => ("uncontended", clients, clients, 0, pace),
            Workload::HandOff { waiters } => ("hand-off", waiters + 1, 1, 0, pace),
            Workload::Contended { clients, section } => {
                ("contended", clients, 1, section.as_micros(), pace)
            }
            Workload::OneProcess { tasks, locks } => ("contended", tasks, locks, 0, Pace::CROWD),
            _ => bail!("the JVM can't do this"),
        };
        let question = format!(
            "{what} {} {} {clients} {locks} {section_us} {} {}",
            match self.kind {
                Kind::Lock => "lock",
                Kind::Apart => "apart",
            },
            server.addr().port(),
            pace.warm_up.as_millis() * 5,
            pace.measure.as_millis()
        );
        let done = self.jvm.borrow_mut().ask(&question, server)?;
        let mut measurement = Measurement::default();
        let times = done.shares.iter().sum::<u64>() as f64;
        match work {
            Workload::Uncontended { .. } => {
                measurement.figure("pairs/s", times / done.seconds);
                measurement.figure("server CPU µs/pair", done.cpu_us / times);
                measurement.quantiles("pair p50 µs", "pair p99 µs", US, &done.latencies);
            }
            Workload::HandOff { .. } => {
                measurement.quantiles("hand-off p50 µs", "hand-off p99 µs", US, &done.latencies);
            }
            _ => {
                measurement.figure("sections/s", times / done.seconds);
                measurement.figure("Jain's fairness", jain(&done.shares));
                measurement.figure("server CPU µs/section", done.cpu_us / times);
                measurement.quantiles("wait p50 ms", "wait p99 ms", MS, &done.latencies);
            }
        }
        Ok(measurement)
    }
}
