//! The examples do what they say.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use redis_lock_testing::{Server, Signal, end_with_us, signal};

/// An example's program. Cargo has built it where it tests everything, but not
/// where it tests this alone.
fn example(name: &str, server: &str) -> Command {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
        .args(["--example", name])
        .status();
    assert!(built.unwrap().success());
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let mut command = Command::new(path.join("examples").join(name));
    command.arg(server);
    command
}

fn url(server: &Server) -> String {
    format!("redis://{}", server.addr())
}

#[test]
fn locks_are_taken_and_given_back() {
    let server = Server::start();
    for (name, says) in [
        ("mutex", "I hold orders:42 with token 1"),
        ("job", "moved, with tokens 1"),
    ] {
        let output = example(name, &url(&server)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.starts_with(says),
            "{output:?}"
        );
        assert_eq!(server.client().int("DBSIZE"), 0);
    }
}

#[test]
fn errors_are_told_to_people() {
    let plain = Server::start_plain(&[]);
    for name in ["mutex", "job", "session"] {
        let output = example(name, &url(&plain)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{output:?}");
        assert!(
            said.contains("module") && !said.contains("NoModule"),
            "{said}"
        );
    }
}

/// An example that runs until it is told to end.
struct Running(Child);

impl Running {
    fn start(name: &str, server: &Server) -> Self {
        let mut command = example(name, &url(server));
        end_with_us(&mut command, Signal::KILL);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Reads what it says until a line begins like this.
    fn await_line(&mut self, beginning: &str) {
        let mut lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let said = lines.any(|line| line.unwrap().starts_with(beginning));
        assert!(said, "it never said {beginning}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_worker_however_it_ends_is_followed_at_once() {
    let server = Server::start();
    let mut worker = Running::start("session", &server);
    worker.await_line("working");
    for end in [Signal::KILL, Signal::INT] {
        let mut next = Running::start("session", &server);
        server.await_info("lock_waiters", 1);
        signal(worker.0.id(), end).unwrap();
        next.await_line("working");
        let ended = worker.0.wait().unwrap();
        assert_eq!(ended.success(), end == Signal::INT);
        worker = next;
    }
}
