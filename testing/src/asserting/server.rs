//! What tests ask of a server, which panics where it fails.

use super::{Client, binary, eventually, module};
use crate::{Server, Setup};

/// With this argument the module does not look at contended locks by itself, as
/// it does twice a second. So an event that it does not hear makes a test fail.
/// A test of those looks sets `lock.recheck-interval` before anybody waits.
pub const NO_REGULAR_LOOKS: [&str; 2] = ["recheck-interval", "3600000"];

impl Setup {
    fn plain() -> Self {
        let (debug, module) = ("--enable-debug-command", "--enable-module-command");
        Self::of(binary()).options(&[debug, "yes", module, "yes"])
    }

    /// A server with the module, for tests.
    pub fn tested() -> Self {
        Self::plain().module(module(), &NO_REGULAR_LOOKS)
    }
}

impl Server {
    /// A server with the module.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with the module and these options, as on its command line.
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Self {
        Setup::tested().options(options).start().unwrap()
    }

    /// A server without the module.
    #[track_caller]
    pub fn start_plain(options: &[&str]) -> Self {
        Setup::plain().options(options).start().unwrap()
    }

    /// Checks that the server lives and has reported no crash.
    #[track_caller]
    pub fn assert_sound(&self) {
        assert!(self.info("process_id") > 0);
        let log = self.log();
        assert!(!log.contains("BUG REPORT START"), "{log}");
    }

    /// The server's version, of Valkey its own.
    pub fn version(&self) -> (u32, u32) {
        let valkey = self.valkey_version();
        valkey.or_else(|| self.version_in("redis_version")).unwrap()
    }

    /// The version of Valkey, if the server is that.
    pub fn valkey_version(&self) -> Option<(u32, u32)> {
        self.version_in("valkey_version")
    }

    fn version_in(&self, field: &str) -> Option<(u32, u32)> {
        let info = self.client().bulk("INFO server");
        let version = crate::info_field(&info, field).ok()?;
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        Some((numbers.next()?, numbers.next()?))
    }

    /// A new connection.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::open(self.addr()).unwrap()
    }

    /// A number from `INFO`.
    #[track_caller]
    pub fn info(&self, field: &str) -> i64 {
        self.client().info(field)
    }

    /// Waits until a number from `INFO` is this.
    #[track_caller]
    pub fn await_info(&self, field: &str, count: i64) {
        let mut client = self.client();
        eventually(&format!("{field}: {count}"), || client.info(field) == count);
    }

    /// Starts a replica of this server and waits until it is in step.
    #[track_caller]
    pub fn replica(&self, with_module: bool) -> Self {
        let setup = match with_module {
            true => Setup::tested(),
            false => Setup::plain(),
        };
        self.replica_with(setup).unwrap()
    }

    /// Checks that this server and its replica hold the same data.
    #[track_caller]
    pub fn assert_same_data(&self, replica: &Self) {
        let mut here = self.client();
        let mut there = replica.client();
        // A key that expires between two questions makes a difference that the
        // replica makes good at once.
        eventually("the replica holds the same data", || {
            here.info("master_repl_offset") == there.info("slave_repl_offset")
                && here.call("DEBUG DIGEST") == there.call("DEBUG DIGEST")
        });
        let ends = "local ends = {} local keys = redis.call('KEYS', '*') table.sort(keys) \
            for n, key in ipairs(keys) do ends[n] = redis.call('PEXPIRETIME', key) end return ends";
        let ends = [b"EVAL", ends.as_bytes(), b"0"];
        assert_eq!(here.words(&ends), there.words(&ends));
    }
}
