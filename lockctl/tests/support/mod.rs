//! What the tests of several failure modes share.

#![allow(dead_code, reason = "no test uses all of it")]

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use redis_lock_testing::{SOON, TestServer, eventually};
use tempfile::TempDir;

/// `lockctl` for this server.
pub fn lockctl(server: &TestServer) -> Command {
    // Tests that a shell runs in the background ignore Ctrl-C, and whatever
    // they start would too.
    let mut command = Command::new("env");
    command
        .args(["--default-signal", env!("CARGO_BIN_EXE_lockctl")])
        .env("REDIS_URL", format!("redis://{}", server.addr()))
        .stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    child.spawn().unwrap().wait_with_output().unwrap()
}

/// What it wrote to stdout.
pub fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What it wrote to stderr.
pub fn complained(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The exit code, or 128 + n if signal n ended it.
pub fn shell_code(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// Sends a signal, by its name without `SIG`.
pub fn signal(pid: u32, name: &str) {
    let pid = pid.to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.unwrap().success());
}

/// A shell script that runs under the lock `lock`. It has a folder, `$DIR`.
pub struct Script {
    lockctl: Child,
    dir: TempDir,
}

impl Script {
    /// Starts it.
    pub fn start(server: &TestServer, options: &[&str], script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lockctl = lockctl(server)
            .args(["run", "lock"])
            .args(options)
            .args(["--", "sh", "-c", script])
            .env("DIR", dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { lockctl, dir }
    }

    /// Starts it and waits until it has written the file `ready`.
    #[track_caller]
    pub fn start_and_await(server: &TestServer, options: &[&str], script: &str) -> Self {
        let script = Self::start(server, options, script);
        eventually("the script runs", || script.path("ready").exists());
        script
    }

    /// A file in its folder.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// What it has written to a file.
    pub fn wrote(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The number of lockctl's process.
    pub fn lockctl(&self) -> u32 {
        self.lockctl.id()
    }

    /// Sends lockctl a signal.
    pub fn signal(&self, name: &str) {
        signal(self.lockctl.id(), name);
    }

    /// Waits for lockctl's end. Its exit code as a shell has it, and what it told.
    #[track_caller]
    pub fn end(&mut self) -> (Option<i32>, String) {
        use std::io::Read;
        let deadline = Instant::now() + SOON;
        while self.lockctl.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "lockctl does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let code = shell_code(self.lockctl.wait().unwrap());
        let mut told = String::new();
        let mut stderr = self.lockctl.stderr.take().unwrap();
        stderr.read_to_string(&mut told).unwrap();
        (code, told)
    }

    /// Checks that no process is left whose number the script wrote to `pids`.
    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        let pids = self.wrote("pids");
        assert!(!pids.is_empty());
        for pid in pids.split_whitespace() {
            let process = Path::new("/proc").join(pid);
            assert!(!process.exists(), "process {pid} is left");
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.lockctl.kill();
        let _ = self.lockctl.wait();
    }
}
