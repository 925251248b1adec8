//! A wall clock of the servers' own, which a test can set.

use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

use super::TestServer;

const SOURCE: &str = include_str!("clock/settable.c");

/// The wall clock of those servers that are started with it.
pub struct Clock {
    folder: TempDir,
    ahead_us: std::fs::File,
}

impl Clock {
    /// A clock that shows the right time. It is a library in C, which is built here.
    ///
    /// # Panics
    /// If it can't be built.
    #[expect(clippy::new_without_default, reason = "it takes a compiler")]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("settable.c"), SOURCE).unwrap();
        let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
            .args([path("settable.so"), path("settable.c")])
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "no clock: {complaint}");
        std::fs::write(path("ahead"), 0_i64.to_ne_bytes()).unwrap();
        let ahead_us = std::fs::File::options().write(true).open(path("ahead"));
        Self {
            ahead_us: ahead_us.unwrap(),
            folder,
        }
    }

    /// A server with the module that goes by this clock.
    pub fn server(&self) -> TestServer {
        let path = |name| self.folder.path().join(name).to_str().unwrap().to_owned();
        TestServer::start_in_environment(&[
            ("LD_PRELOAD", &path("settable.so")),
            ("SETTABLE_CLOCK", &path("ahead")),
        ])
    }

    /// Sets the clock so many seconds ahead of the right time.
    pub fn set_ahead(&self, seconds: i64) {
        let bytes = (seconds * 1_000_000).to_ne_bytes();
        self.ahead_us.write_all_at(&bytes, 0).unwrap();
    }
}
