//! A wall clock of the servers' own, which a test can set.

use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

use super::{TestServer, eventually};

const SOURCE: &str = include_str!("clock/settable.c");

/// The wall clock of those processes that are started with it.
pub struct Clock {
    folder: TempDir,
    setting: std::fs::File,
    times_set: Cell<i64>,
}

/// Where in the file each number is, in bytes.
const AHEAD_US: u64 = 0;
const STANDS_AT_US: u64 = 8;
const TIMES_SET: u64 = 16;
const TIMES_FOLLOWED: u64 = 24;
const LENGTH: usize = 32;

impl Clock {
    /// A clock that shows the right time. It is a library in C, which is built here.
    #[expect(clippy::new_without_default, reason = "it takes a compiler")]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("settable.c"), SOURCE).unwrap();
        let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
            .args([path("settable.so"), path("settable.c"), "-ldl".into()])
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "no clock: {complaint}");
        std::fs::write(path("setting"), [0; LENGTH]).unwrap();
        let mut setting = std::fs::File::options();
        let setting = setting.read(true).write(true).open(path("setting"));
        Self {
            setting: setting.unwrap(),
            times_set: Cell::new(0),
            folder,
        }
    }

    /// A server with the module that goes by this clock.
    pub fn server(&self) -> TestServer {
        self.server_with(&[])
    }

    /// The same, with these options, as on its command line.
    pub fn server_with(&self, options: &[&str]) -> TestServer {
        let mut setup = TestServer::setup().options(options);
        setup.environment.extend(self.environment());
        TestServer::launch(setup)
    }

    /// What has a process go by this clock.
    pub fn environment(&self) -> [(String, String); 2] {
        let path = |name| self.folder.path().join(name).to_str().unwrap().to_owned();
        let variable = |name: &str, file| (name.to_owned(), path(file));
        [
            variable("LD_PRELOAD", "settable.so"),
            variable("SETTABLE_CLOCK", "setting"),
        ]
    }

    /// Sets the clock this many seconds ahead of the right time.
    pub fn set_ahead(&self, seconds: i64) {
        self.write(AHEAD_US, seconds * 1_000_000);
        self.is_set();
    }

    /// Stops the clock at this millisecond since 1970.
    pub fn stop_at_ms(&self, ms: i64) {
        self.write(STANDS_AT_US, ms * 1000);
        self.is_set();
    }

    /// Waits until what the kernel was asked to tell of this clock goes by how it was
    /// set last. It takes a server that goes by this clock, and by one of its own.
    pub fn await_timers(&self) {
        eventually("the timers go by the clock", || {
            self.read(TIMES_FOLLOWED) == self.times_set.get()
        });
    }

    fn is_set(&self) {
        self.times_set.set(self.times_set.get() + 1);
        self.write(TIMES_SET, self.times_set.get());
    }

    fn write(&self, at: u64, number: i64) {
        self.setting
            .write_all_at(&number.to_ne_bytes(), at)
            .unwrap();
    }

    fn read(&self, at: u64) -> i64 {
        let mut bytes = [0; 8];
        self.setting.read_exact_at(&mut bytes, at).unwrap();
        i64::from_ne_bytes(bytes)
    }
}
