//! `lockctl run` at a terminal: Ctrl-C, Ctrl-Z, and commands that read.
#![cfg(target_os = "linux")]

mod support;

use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

use redis_lock_testing::{Server, eventually};
use tempfile::TempDir;

/// A shell at a terminal of its own, which `script` of util-linux makes. It has
/// a folder, `$DIR`.
struct Terminal {
    shell: Child,
    dir: TempDir,
}

impl Terminal {
    /// Has an interactive shell run this, where `$L` is lockctl.
    fn run(server: &Server, commands: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = support::heedful("script")
            .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
            .env("DIR", dir.path())
            .env("L", env!("CARGO_BIN_EXE_lockctl"))
            .env("REDIS_URL", format!("redis://{}", server.addr()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = shell.stdin.as_mut().unwrap();
        keys.write_all(commands.as_bytes()).unwrap();
        Self { shell, dir }
    }

    /// Waits until the command has written the file `ready`.
    #[track_caller]
    fn await_ready(&self) {
        self.await_written("ready", "");
    }

    /// Waits until a file is there, with these words in it.
    #[track_caller]
    fn await_written(&self, name: &str, words: &str) {
        let file = self.dir.path().join(name);
        eventually(&format!("{name} has {words:?}"), || {
            std::fs::read_to_string(&file).is_ok_and(|text| text.contains(words))
        });
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap()
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

fn is_stopped(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.contains(") T ")
}

/// The foreground group of the terminal at which a process runs.
fn foreground(pid: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(5).unwrap().to_owned()
}

#[track_caller]
fn await_lock(server: &Server, exists: i64) {
    let mut client = server.client();
    eventually(&format!("so many locks are taken: {exists}"), || {
        client.int("EXISTS lock") == exists
    });
}

#[test]
fn ctrl_c_ends_the_script_that_runs_lockctl_as_well() {
    let server = Server::start();
    let command = "touch $DIR/ready; exec sleep 60";
    let script = format!("$L run lock -- sh -c \"{command}\"; echo went  on | tr -s \" \"");
    let mut terminal = Terminal::run(&server, &format!("bash -c '{script}'\n"));
    terminal.await_ready();
    terminal.press("\x03");
    await_lock(&server, 0);
    terminal.press("echo it is $?\n");
    let screen = terminal.screen();
    assert!(screen.contains("it is 130"), "{screen}");
    assert!(!screen.contains("went on"), "{screen}");
}

#[test]
fn a_command_that_reads_gets_the_terminal() {
    let server = Server::start();
    let command = "touch $DIR/ready; read line; echo \"-$line-\"; exit 7";
    let script = format!("$L run lock -- sh -c '{command}'\n");
    let mut terminal = Terminal::run(&server, &script);
    terminal.await_ready();
    terminal.press("hello\n");
    await_lock(&server, 0);
    terminal.press("echo it is $?\n");
    let screen = terminal.screen();
    assert!(screen.contains("-hello-"), "{screen}");
    assert!(screen.contains("it is 7"), "{screen}");
}

/// Reads two lines from the terminal.
const READS: &str = "export READS='echo $$ > $DIR/pid; : > $DIR/ready; \
    read line; echo $line > $DIR/first; read line; echo $line > $DIR/second'";

#[test]
fn ctrl_z_suspends_nothing_that_runs_under_a_lock() {
    let server = Server::start();
    for job in [
        "$L run lock -- sh -c \"$READS\"",
        "$L run lock -- sh -c 'stty echo; $L run inner -- sh -c \"$READS\"; true'",
        "$L run lock -- $L run inner -- sh -c \"$READS\"",
        // Nobody could continue it.
        "exec $L run lock -- sh -c \"$READS\"",
    ] {
        let mut terminal = Terminal::run(&server, &format!("{READS}\n{job}\n"));
        terminal.await_ready();
        terminal.press("\x1a");
        terminal.press("one\n");
        terminal.await_written("first", "one");
        // It has the terminal by now.
        terminal.press("\x1a");
        terminal.press("two\n");
        terminal.await_written("second", "two");
        await_lock(&server, 0);
    }
}

#[test]
fn a_command_in_the_background_gets_the_terminal_with_its_job() {
    let server = Server::start();
    let job = "$L run lock --lease 1s -- sh -c \"$READS\" &";
    let mut terminal = Terminal::run(&server, &format!("{READS}\n{job}\n"));
    terminal.await_ready();
    let pid = terminal.read("pid");
    eventually("it wants the terminal", || is_stopped(pid.trim()));
    // Its lock is renewed meanwhile.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(server.client().int("EXISTS lock"), 1);
    terminal.press("fg\n");
    eventually("it goes on", || !is_stopped(pid.trim()));
    terminal.press("one\n");
    terminal.await_written("first", "one");
    terminal.press("two\n");
    terminal.await_written("second", "two");
    await_lock(&server, 0);
}

#[test]
fn ctrl_z_suspends_a_wait() {
    let server = Server::start();
    server.client().int("LOCK.ACQUIRE lock a LEASE 600000");
    let mut terminal = Terminal::run(&server, "$L run lock true\n");
    server.await_info("lock_waiters", 1);
    terminal.press("\x1a");
    terminal.press("jobs > $DIR/jobs\n");
    terminal.await_written("jobs", "Stopped");
    server.client().int("DEL lock");
    terminal.press("fg; echo it is $?\n");
    await_lock(&server, 0);
    terminal.press("echo done > $DIR/done\n");
    terminal.await_written("done", "done");
    let screen = terminal.screen();
    assert!(screen.contains("it is 0"), "{screen}");
}

#[test]
fn ctrl_c_ends_a_command_that_has_the_terminal_and_stops_itself() {
    let server = Server::start();
    let command = "echo $$ > $DIR/pid; : > $DIR/ready; read line; kill -STOP $$";
    let mut terminal = Terminal::run(&server, &format!("$L run lock -- sh -c '{command}'\n"));
    terminal.await_ready();
    let pid = terminal.read("pid");
    terminal.press("go\n");
    eventually("it is stopped", || is_stopped(pid.trim()));
    eventually("the terminal is not its own", || {
        foreground(pid.trim()) != pid.trim()
    });
    terminal.press("\x03");
    await_lock(&server, 0);
}

#[test]
fn top_shows_what_fits_the_terminal_until_ctrl_c() {
    let server = Server::start();
    let mut client = server.client();
    for n in 0..30 {
        client.int(&format!("LOCK.ACQUIRE lock{n} a LEASE 600000"));
        client.int(&format!("LOCK.ACQUIRE lock{n} b QUEUE 600000 c"));
    }
    let top = "stty rows 20 cols 60; echo $$ > $DIR/pid; touch $DIR/ready; exec $L top -i 100ms";
    let mut terminal = Terminal::run(&server, &format!("sh -c '{top}'\n"));
    terminal.await_ready();
    std::thread::sleep(Duration::from_millis(700));
    terminal.press("\x03");
    terminal.press("echo it is $?\n");
    let screen = terminal.screen();
    assert!(screen.contains("it is 130"), "{screen}");
    let shown = screen.split("\x1b[H\x1b[2J").nth(2).expect(&screen);
    assert!(shown.contains("30 contended, 30 waiting"), "{shown}");
    assert_eq!(shown.lines().count(), 20, "{shown}");
    assert!(
        shown.lines().all(|line| line.trim_end().len() <= 60),
        "{shown}"
    );
}
