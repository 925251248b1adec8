//! `lockctl run` at a terminal: Ctrl-C, Ctrl-Z, and commands that read.
#![cfg(target_os = "linux")]

mod support;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use redis_lock_testing::{TestServer, eventually};

/// A shell at a terminal of its own, which `script` of util-linux makes.
struct Terminal {
    shell: Child,
}

impl Terminal {
    /// Has an interactive shell run this, where `$L` is lockctl.
    fn run(server: &TestServer, commands: &str) -> Self {
        let mut shell = Command::new("script")
            .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
            .env("L", env!("CARGO_BIN_EXE_lockctl"))
            .env("REDIS_URL", format!("redis://{}", server.addr()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = shell.stdin.as_mut().unwrap();
        keys.write_all(commands.as_bytes()).unwrap();
        Self { shell }
    }

    fn press(&mut self, keys: &str) {
        let keyboard = self.shell.stdin.as_mut().unwrap();
        keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Leaves the shell. What stood on the screen.
    fn screen(mut self) -> String {
        self.press("exit\n");
        let mut screen = String::new();
        let mut stdout = self.shell.stdout.take().unwrap();
        stdout.read_to_string(&mut screen).unwrap();
        self.shell.wait().unwrap();
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[track_caller]
fn await_lock(server: &TestServer, exists: i64) {
    let mut client = server.client();
    eventually(&format!("so many locks are taken: {exists}"), || {
        client.int("EXISTS lock") == exists
    });
}

#[test]
fn ctrl_c_ends_the_script_that_runs_lockctl_as_well() {
    let server = TestServer::start();
    let script = "bash -c '$L run lock -- sleep 100; echo went  on | tr -s \" \"'\n";
    let mut terminal = Terminal::run(&server, script);
    await_lock(&server, 1);
    terminal.press("\x03");
    await_lock(&server, 0);
    terminal.press("echo it is $?\n");
    let screen = terminal.screen();
    assert!(screen.contains("it is 130"), "{screen}");
    assert!(!screen.contains("went on"), "{screen}");
}

#[test]
fn a_command_that_reads_gets_the_terminal() {
    let server = TestServer::start();
    let script = "$L run lock -- sh -c 'read line; echo \"-$line-\"; exit 7'\n";
    let mut terminal = Terminal::run(&server, script);
    await_lock(&server, 1);
    terminal.press("hello\n");
    await_lock(&server, 0);
    terminal.press("echo it is $?\n");
    let screen = terminal.screen();
    assert!(screen.contains("-hello-"), "{screen}");
    assert!(screen.contains("it is 7"), "{screen}");
}

#[test]
fn a_suspended_command_goes_on_while_its_lease_lasts_and_not_after() {
    let server = TestServer::start();
    for (lease, waits_for_its_end, code) in [("60s", false, 0), ("1s", true, 76)] {
        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        // A shell that is just forking may not be able to stop.
        let script = format!("touch {}; exec sleep 1", ready.display());
        let commands = format!("$L run lock --lease {lease} -- sh -c '{script}'\n");
        let mut terminal = Terminal::run(&server, &commands);
        eventually("the command runs", || ready.exists());
        terminal.press("\x1a");
        if waits_for_its_end {
            // Nobody renews it.
            await_lock(&server, 0);
        }
        terminal.press("jobs\nfg\n");
        await_lock(&server, 0);
        terminal.press("echo it is $?\n");
        let screen = terminal.screen();
        assert!(screen.contains("Stopped"), "{screen}");
        assert!(screen.contains(&format!("it is {code}")), "{screen}");
    }
}
