//! What the tests of several failure modes share.

#![allow(dead_code, reason = "no test uses all of it")]

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use redis_lock_testing::{SOON, Server, Signal, end_with_us, eventually, signal};
use tempfile::TempDir;

/// `lockctl` for this server.
pub fn lockctl(server: &Server) -> Command {
    let mut command = heedful(env!("CARGO_BIN_EXE_lockctl"));
    command
        .env("REDIS_URL", format!("redis://{}", server.addr()))
        .stdin(Stdio::null());
    command
}

/// A program that hears Ctrl-C. Tests that a shell runs in the background
/// ignore it, and whatever they start would too. If the test is killed, the
/// program is asked to end.
pub fn heedful(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    end_with_us(&mut command, Signal::TERM);
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

/// A shell script that runs under the lock `lock`. It has a folder, `$DIR`.
pub struct Script {
    lockctl: Child,
    dir: TempDir,
}

impl Script {
    /// Starts it.
    pub fn start(server: &Server, options: &[&str], script: &str) -> Self {
        Self::start_by(lockctl(server), options, script)
    }

    /// Starts it by this lockctl.
    pub fn start_by(lockctl: Command, options: &[&str], script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let told = File::create(dir.path().join("told")).unwrap();
        Self::start_in(dir, lockctl, options, script, told.into())
    }

    /// Starts it, with this stderr.
    pub fn start_telling(
        server: &Server,
        options: &[&str],
        script: &str,
        stderr: impl Into<Stdio>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_in(dir, lockctl(server), options, script, stderr.into())
    }

    fn start_in(
        dir: TempDir,
        mut lockctl: Command,
        options: &[&str],
        script: &str,
        stderr: Stdio,
    ) -> Self {
        // The script may be another user's.
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        let lockctl = lockctl
            .args(["run", "lock"])
            .args(options)
            .args(["--", "sh", "-c", script])
            .env("DIR", dir.path())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        Self { lockctl, dir }
    }

    /// Starts it and waits until it has written the file `ready`.
    #[track_caller]
    pub fn start_and_await(server: &Server, options: &[&str], script: &str) -> Self {
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
    pub fn signal(&self, what: Signal) {
        signal(self.lockctl.id(), what).unwrap();
    }

    /// Waits until lockctl has told this many lines with all these words.
    #[track_caller]
    pub fn await_told(&self, lines: usize, words: &[&str]) {
        let fits = |line: &&str| words.iter().all(|word| line.contains(word));
        let mut told = String::new();
        eventually(&format!("it tells {lines} times {words:?}"), || {
            told = self.told();
            told.lines().filter(fits).count() >= lines || !runs(&self.lockctl().to_string())
        });
        let enough = told.lines().filter(fits).count() >= lines;
        assert!(enough, "it told, and not {words:?}:\n{told}");
    }

    /// What lockctl and the script wrote to stderr so far.
    pub fn told(&self) -> String {
        self.wrote("told")
    }

    /// Waits for lockctl's end. Its exit code as a shell has it, and what it told.
    #[track_caller]
    pub fn end(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + SOON;
        while self.lockctl.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "lockctl does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        let code = shell_code(self.lockctl.wait().unwrap());
        (code, self.told())
    }

    /// Checks that no process runs whose number the script wrote to `pids`.
    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        let pids = self.wrote("pids");
        assert!(!pids.is_empty());
        for pid in pids.split_whitespace() {
            assert!(!runs(pid), "process {pid} is left");
        }
    }
}

/// Whether a process runs. One that has ended may still wait to be seen by
/// whoever adopted it.
pub fn runs(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    status.is_ok_and(|status| !status.contains(") Z "))
}

impl Drop for Script {
    fn drop(&mut self) {
        if let Ok(None) = self.lockctl.try_wait() {
            // It ends what it has started; killed it could not.
            self.signal(Signal::TERM);
            let deadline = Instant::now() + SOON;
            while let Ok(None) = self.lockctl.try_wait()
                && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.lockctl.kill();
        let _ = self.lockctl.wait();
    }
}
