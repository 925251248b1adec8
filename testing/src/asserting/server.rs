use std::ops::{Deref, DerefMut};
use std::process::ExitStatus;

use super::client::Client;
use super::{binary, eventually, module};
use crate::{SOON, Server, Setup, comes_true};

/// With this argument the module does not look at contended locks by itself, as
/// it does twice a second. So an event that it does not hear makes a test fail.
/// A test of those looks sets `lock.recheck-interval` before anybody waits.
pub const NO_REGULAR_LOOKS: [&str; 2] = ["recheck-interval", "3600000"];

/// A server with a directory of its own, which stays if the test fails. It
/// panics where a [`Server`] returns an error.
pub struct TestServer(Server);

impl Deref for TestServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for TestServer {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}

fn plain() -> Setup {
    let (debug, module) = ("--enable-debug-command", "--enable-module-command");
    Setup::of(binary()).options(&[debug, "yes", module, "yes"])
}

impl TestServer {
    /// A server with the module, for tests.
    pub(super) fn setup() -> Setup {
        let mut setup = plain().module(module());
        setup.module_args = NO_REGULAR_LOOKS.map(String::from).to_vec();
        setup
    }

    #[track_caller]
    pub(super) fn launch(setup: Setup) -> Self {
        Self(Server::start(setup).unwrap_or_else(|error| panic!("{error}")))
    }

    /// A server with the module.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with the module and these options, as on its command line.
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Self {
        Self::launch(Self::setup().options(options))
    }

    /// A server without the module.
    #[track_caller]
    pub fn start_plain(options: &[&str]) -> Self {
        Self::launch(plain().options(options))
    }

    /// Runs the server to its end with options, as on its command line, or
    /// module arguments that it can't start with. Returns its log.
    #[track_caller]
    pub fn log_of_failed_start(options: &[&str], module_args: &[&str]) -> String {
        let mut setup = Setup::of(binary()).options(options).module(module());
        setup.module_args = module_args.iter().map(ToString::to_string).collect();
        match Server::start(setup) {
            Ok(server) => panic!("the server started:\n{}", server.log()),
            Err(error) => error.into(),
        }
    }

    /// Kills the server as a crash would, and starts it again on its data.
    #[track_caller]
    pub fn crash_and_restart(&mut self) {
        self.crash();
        self.restart();
    }

    /// Starts the server again on its data.
    #[track_caller]
    pub fn restart(&mut self) {
        // Its port may be somebody else's for a moment.
        let restarted = comes_true(SOON, || self.0.restart().is_ok());
        assert!(restarted, "no restart:\n{}", self.log());
    }

    /// Stops it, until [`TestServer::go_on`].
    #[track_caller]
    pub fn stop(&self) {
        self.0.stop().unwrap();
    }

    /// Has it go on after [`TestServer::stop`].
    #[track_caller]
    pub fn go_on(&self) {
        self.0.go_on().unwrap();
    }

    /// Waits until the server ends by itself.
    #[track_caller]
    pub fn await_end(&mut self) -> ExitStatus {
        self.0.await_end().unwrap_or_else(|error| panic!("{error}"))
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
        let redis = || self.version_in("redis_version").unwrap();
        self.valkey_version().unwrap_or_else(redis)
    }

    /// The version of Valkey, if the server is that.
    pub fn valkey_version(&self) -> Option<(u32, u32)> {
        self.version_in("valkey_version")
    }

    /// How many connections a client has beside the one that all its commands share: one
    /// that hears, where the server blocks none that has subscribed.
    pub fn subscribers(&self) -> i64 {
        i64::from(self.valkey_version() >= Some((8, 1)))
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
        Client::try_connect(self.addr()).expect("the server takes connections")
    }

    /// A new connection that hears this channel.
    #[track_caller]
    pub fn subscriber(&self, channel: &str) -> Client {
        let mut subscriber = self.client().in_resp3();
        subscriber.subscribe(&format!("SUBSCRIBE {channel}"));
        subscriber
    }

    /// A number from `INFO`.
    #[track_caller]
    pub fn info(&self, field: &str) -> i64 {
        self.client().info(field)
    }

    /// Waits until exactly this many clients are blocked.
    #[track_caller]
    pub fn await_blocked(&self, count: i64) {
        self.await_info("blocked_clients", count);
    }

    /// Waits until exactly this many wait for locks, by places or blocked.
    #[track_caller]
    pub fn await_waiters(&self, count: i64) {
        self.await_info("lock_waiters", count);
    }

    #[track_caller]
    fn await_info(&self, field: &str, count: i64) {
        let mut client = self.client();
        eventually(&format!("{field}: {count}"), || client.info(field) == count);
    }

    /// Starts a replica of this server and waits until it is in step.
    #[track_caller]
    pub fn replica(&self, with_module: bool) -> Self {
        let setup = if with_module { Self::setup() } else { plain() };
        let replica = self.0.replica(setup);
        Self(replica.unwrap_or_else(|error| panic!("{error}")))
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
