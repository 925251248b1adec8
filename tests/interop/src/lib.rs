//! Drives Redisson, in processes of its own, for tests of the lock module.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use redis_lock_chaos::history::Nanos;
use redis_lock_testing::{Client, Play, SOON, eventually};

/// The versions of Redisson that `make interop` builds a process for: the
/// newest, and the last of those before that many still run.
pub fn versions() -> impl Iterator<Item = &'static str> {
    include_str!("../redisson/versions").lines()
}

/// The lease that Redisson's watchdog renews, unless a test is about that.
const WATCHDOG_MS: u64 = 30_000;

/// A play with a thread `a` of Redisson, and others.
///
/// ```text
/// a: lock k -> ok       what it does, and what comes of it, or the class of the exception
/// a: lock k -> ..       it waits for the release: it has tried once, listens, and tried again
/// a: -> ok              what comes of that
/// ```
pub struct Scene {
    /// The server, and those who talk to it.
    pub play: Play,
    /// Redisson.
    pub redisson: Redisson,
}

impl Scene {
    /// A scene with this version of Redisson.
    pub fn set(version: &str) -> Self {
        Self::set_with_watchdog(version, WATCHDOG_MS)
    }

    /// As [`Scene::set`], with a watchdog that renews leases of `watchdog_ms`.
    pub fn set_with_watchdog(version: &str, watchdog_ms: u64) -> Self {
        println!("Redisson {version}");
        let play = Play::start();
        let redisson = Redisson::start(version, Topology::Single, play.addr(), watchdog_ms);
        Self { play, redisson }
    }

    /// Plays these lines.
    #[track_caller]
    pub fn run(&mut self, lines: &str) -> &mut Self {
        for line in lines.lines().map(str::trim) {
            let is_name = |name: &str| name.len() == 1 && name.starts_with(char::is_lowercase);
            match line.split_once(": ").filter(|(name, _)| is_name(name)) {
                Some((thread, line)) => self.line(thread, line),
                None => _ = self.play.run(line),
            }
        }
        self
    }

    #[track_caller]
    fn line(&mut self, thread: &str, line: &str) {
        let line = self.play.with_names(line);
        let (command, expected) = line.split_once("-> ").unwrap();
        match (command.trim(), expected) {
            (command, "..") => {
                let observer = self.play.client("o");
                return self.redisson.send_and_wait(observer, thread, command);
            }
            ("", _) => {}
            (command, _) => self.redisson.send(thread, command),
        }
        let result = self.redisson.answer(thread).result;
        let is_so = self.play.agrees(&result, expected);
        assert!(is_so.is_ok(), "{line}, and not {result}");
    }
}

/// Plays these lines with each version of Redisson.
#[track_caller]
pub fn play(lines: &str) {
    for version in versions() {
        Scene::set(version).run(lines);
    }
}

/// How Redisson finds the server.
#[derive(Clone, Copy)]
pub enum Topology {
    /// One server.
    Single,
    /// A cluster, of which it is told one node.
    Cluster,
}

/// What a thread of Redisson's answered.
#[derive(Debug)]
pub struct Answer {
    /// When the thread began.
    pub sent: Nanos,
    /// When it was done.
    pub answered: Nanos,
    /// What came of it, or the class of the exception.
    pub result: String,
}

/// A process that locks with Redisson. It vanishes, as a crash would make it,
/// when it is dropped.
pub struct Redisson {
    child: Child,
    input: ChildStdin,
    answers: HashMap<String, Receiver<Answer>>,
    new_threads: Sender<(String, Sender<Answer>)>,
}

impl Redisson {
    /// Starts a process with this version and a watchdog that renews leases of
    /// `watchdog_ms`.
    pub fn start(version: &str, topology: Topology, addr: SocketAddr, watchdog_ms: u64) -> Self {
        let built = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../target/interop")
            .join(format!("redisson-{version}"));
        assert!(
            built.join("peer.jar").exists(),
            "{} holds no peer.jar: run `make interop`, which builds it",
            built.display()
        );
        let mut class_path = built.join("peer.jar").into_os_string();
        class_path.push(":");
        class_path.push(built.join("lib/*"));
        let mut child = Command::new("java")
            .args([
                "-XX:+UseSerialGC",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            ])
            .arg("-classpath")
            .arg(class_path)
            .arg("redislock.Peer")
            .arg(match topology {
                Topology::Single => "single",
                Topology::Cluster => "cluster",
            })
            .arg(format!("redis://{addr}"))
            .arg(watchdog_ms.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a JDK: `make interop` installs one");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("Redisson lives");
        assert_eq!(line, "ready\n", "Redisson {version} did not start");
        let (new_threads, arrivals) = channel();
        thread::spawn(move || distribute(output, &arrivals));
        Self {
            input: child.stdin.take().expect("it is piped"),
            child,
            answers: HashMap::new(),
            new_threads,
        }
    }

    /// Lets a thread begin a command on a lock: `lock orders:42`.
    pub fn send(&mut self, thread: &str, command: &str) {
        if !self.answers.contains_key(thread) {
            let (sender, receiver) = channel();
            self.answers.insert(thread.to_owned(), receiver);
            self.new_threads
                .send((thread.to_owned(), sender))
                .expect("Redisson lives");
        }
        writeln!(self.input, "{thread} {command}").expect("Redisson lives");
    }

    /// What a thread has answered, if that came within this time.
    pub fn answer_within(&self, thread: &str, patience: Duration) -> Option<Answer> {
        match self.answers[thread].recv_timeout(patience) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("Redisson has died"),
        }
    }

    /// What a thread answers to the command that it works on.
    #[track_caller]
    pub fn answer(&self, thread: &str) -> Answer {
        self.answer_within(thread, SOON)
            .unwrap_or_else(|| panic!("Redisson's thread {thread} does not answer"))
    }

    /// Lets a thread do a command, and returns what came of it.
    #[track_caller]
    pub fn call(&mut self, thread: &str, command: &str) -> String {
        self.send(thread, command);
        self.answer(thread).result
    }

    /// Lets a thread begin to lock, and waits until it waits: it tries once,
    /// listens for the release, and tries once more.
    #[track_caller]
    pub fn send_and_wait(&mut self, observer: &mut Client, thread: &str, command: &str) {
        let before = scripts_run(observer);
        self.send(thread, command);
        eventually("Redisson waits for the release", || {
            scripts_run(observer) >= before + 2
        });
    }
}

/// How many scripts the server has run to their end.
fn scripts_run(observer: &mut Client) -> u64 {
    let stats = observer.bulk("INFO commandstats");
    let number = |line: &str, name: &str| -> u64 {
        let value = line
            .split([':', ','])
            .find_map(|one| one.strip_prefix(name));
        value
            .and_then(|value| value.trim().parse().ok())
            .unwrap_or(0)
    };
    stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"))
        .map(|line| number(line, "calls=") - number(line, "failed_calls="))
        .sum()
}

/// No process of Redisson's listens for the release of `k` any more.
pub const NOBODY_LISTENS: &str = "until o > PUBSUB NUMSUB redisson_lock__channel:{k} \
     -> ['redisson_lock__channel:{k}', 0]";

/// Gives each thread the answers that are its own, until Redisson ends.
fn distribute(output: BufReader<ChildStdout>, arrivals: &Receiver<(String, Sender<Answer>)>) {
    let mut threads = HashMap::new();
    for line in output.lines().map_while(Result::ok) {
        threads.extend(arrivals.try_iter());
        let mut words = line.splitn(4, ' ');
        let thread = words.next().and_then(|name| threads.get(name));
        let mut time = || words.next()?.parse().ok();
        let (Some(thread), Some(sent), Some(answered)) = (thread, time(), time()) else {
            eprintln!("Redisson: {line}");
            continue;
        };
        let result = words.next().unwrap_or_default().to_owned();
        // A test that has ended wants no more answers.
        let _ = thread.send(Answer {
            sent,
            answered,
            result,
        });
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
