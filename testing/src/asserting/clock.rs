//! A wall clock of the servers' own, which a test can set.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use tempfile::TempDir;

use crate::{Server, Setup};

const SOURCE: &str = include_str!("clock/settable.c");
/// How many bytes each number in its file has.
const WIDTH: u64 = 8;

/// The wall clock of those processes that are started with it.
pub struct Clock {
    /// What has a process go by this clock.
    pub environment: [(String, String); 2],
    setting: File,
    _folder: TempDir,
}

impl Clock {
    /// A clock that shows the right time. It is a library in C, which is built here.
    #[expect(clippy::new_without_default, reason = "it takes a compiler")]
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("settable.c"), SOURCE).unwrap();
        let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([path("settable.so"), path("settable.c"), "-ldl".into()])
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "no clock: {complaint}");
        let setting = File::create(path("setting")).unwrap();
        setting.set_len(3 * WIDTH).unwrap();
        let variable = |name: &str, file| (name.into(), path(file).display().to_string());
        Self {
            environment: [
                variable("LD_PRELOAD", "settable.so"),
                variable("SETTABLE_CLOCK", "setting"),
            ],
            setting,
            _folder: folder,
        }
    }

    /// A server with the module that goes by this clock.
    pub fn server(&self) -> Server {
        self.server_with(&[])
    }

    /// The same, with these options, as on its command line.
    pub fn server_with(&self, options: &[&str]) -> Server {
        let mut setup = Setup::tested().options(options);
        setup.environment.extend(self.environment.clone());
        setup.start().unwrap()
    }

    /// Sets the clock this many seconds ahead of the right time.
    pub fn set_ahead(&self, seconds: i64) {
        self.write(0, seconds * 1_000_000);
    }

    /// Stops the clock at this millisecond since 1970.
    pub fn stop_at_ms(&self, ms: i64) {
        self.write(1, ms * 1000);
    }

    /// Has this clock and the ones that nobody sets gain so many microseconds a second.
    pub fn gain_ppm(&self, ppm: i64) {
        self.write(2, ppm);
    }

    /// Writes one of the three numbers that the library reads.
    fn write(&self, nth: u64, number: i64) {
        let written = self
            .setting
            .write_all_at(&number.to_ne_bytes(), nth * WIDTH);
        written.unwrap();
    }
}
