//! The examples do what they say.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use redis_lock_testing::{Judge, Signal, TestServer, end_with_us, signal};

/// An example's program. Cargo has built it where it tests everything, but not
/// where it tests this alone.
fn example(name: &str, servers: &[TestServer]) -> Command {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
        .args(["--example", name])
        .status();
    assert!(built.unwrap().success());
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let mut command = Command::new(path.join("examples").join(name));
    let urls = servers
        .iter()
        .map(|server| format!("redis://{}", server.addr()));
    command.args(urls);
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_quickstart_takes_a_lock_and_gives_it_back() {
    let server = [TestServer::start()];
    let said = output(example("quickstart", &server));
    assert!(said.starts_with("I hold orders:42 with token 1"), "{said}");
    assert_eq!(server[0].client().int("EXISTS orders:42"), 0);
}

#[test]
fn the_redlock_holds_on_a_majority() {
    let mut servers: Vec<_> = (0..3).map(|_| TestServer::start()).collect();
    servers[0].crash();
    // It does not wait long for a server, so on a busy machine it may fail.
    let mut tries = (0..20).map(|_| example("redlock", &servers).output().unwrap());
    let held = tries.find(|ran| ran.status.success()).unwrap();
    assert!(held.stdout.starts_with(b"held for 2"), "{held:?}");
}

/// An example that runs until it is told to end.
struct Running(Child);

impl Running {
    fn start(name: &str, server: &[TestServer]) -> Self {
        let mut command = example(name, server);
        end_with_us(&mut command, Signal::KILL);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Reads what it says until a line begins like this.
    fn await_line(&mut self, beginning: &str) {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        for line in lines {
            if line.unwrap().starts_with(beginning) {
                return;
            }
        }
        panic!("it never said {beginning}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_service_hands_over_when_it_is_told_to_end() {
    let server = [TestServer::start()];
    let mut one = Running::start("service", &server);
    one.await_line("leading");
    let mut other = Running::start("service", &server);
    other.await_line("standing by");
    server[0].await_waiters(1);
    signal(one.0.id(), Signal::INT).unwrap();
    other.await_line("leading");
    assert!(one.0.wait().unwrap().success());
}

#[test]
fn a_worker_killed_without_warning_is_followed_at_once() {
    let server = [TestServer::start()];
    let mut worker = Running::start("session", &server);
    worker.await_line("working");
    // The server does it in 5 ms.
    let at_once = Duration::from_millis(100);
    let mut judge = Judge::new("from a kill to the next worker", at_once);
    while judge.wants_more() {
        let mut next = Running::start("session", &server);
        server[0].await_waiters(1);
        let (killed, killed_at) = (Instant::now(), SystemTime::now());
        worker.0.kill().unwrap();
        next.await_line("working");
        // A token is the wall clock at the grant in microseconds.
        let granted: u64 = server[0]
            .client()
            .bulk("HGET worker @fence")
            .parse()
            .unwrap();
        let granted_at = SystemTime::UNIX_EPOCH + Duration::from_micros(granted);
        let waited = granted_at.duration_since(killed_at).unwrap_or_default();
        judge.judge(killed, killed + waited);
        worker = next;
    }
}
