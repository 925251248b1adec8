//! `lockctl run` at a terminal: Ctrl-C, Ctrl-Z, and commands that read.
#![cfg(target_os = "linux")]

mod support;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis_lock_testing::{Signal, TestServer, eventually, signal};
use tempfile::TempDir;

/// A shell at a terminal of its own, which `script` of util-linux makes. It has
/// a folder, `$DIR`.
struct Terminal {
    shell: Child,
    dir: TempDir,
}

impl Terminal {
    /// Has an interactive shell run this, where `$L` is lockctl.
    fn run(server: &TestServer, commands: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = support::heedful("script")
            .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
            .env("DIR", dir.path())
            .env("L", env!("CARGO_BIN_EXE_lockctl"))
            .env("REDIS_URL", format!("redis://{}", server.addr()))
            // lockctl takes the other one from its command.
            .env("URL", format!("redis://{}", server.addr()))
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

    /// Suspends the process whose number is in the file `pid`, and waits until the shell says
    /// that its job is stopped.
    #[track_caller]
    fn suspend(&mut self) {
        let pid = self.read("pid");
        self.press("\x1a");
        // Until then it might read what is for the shell.
        eventually("the command is stopped", || is_stopped(pid.trim()));
        self.press("jobs > $DIR/jobs\n");
        self.await_written("jobs", "Stopped");
    }

    /// Has that process go on.
    #[track_caller]
    fn resume(&mut self) {
        let pid = self.read("pid");
        self.press("rm $DIR/jobs; fg\n");
        eventually("the command goes on", || !is_stopped(pid.trim()));
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
fn await_lock(server: &TestServer, exists: i64) {
    let mut client = server.client();
    eventually(&format!("so many locks are taken: {exists}"), || {
        client.int("EXISTS lock") == exists
    });
}

#[test]
fn ctrl_c_ends_the_script_that_runs_lockctl_as_well() {
    let server = TestServer::start();
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
    let server = TestServer::start();
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

#[test]
fn a_suspended_command_goes_on_while_its_lease_lasts() {
    let server = TestServer::start();
    for (lease, waits_for_its_end, code) in [("60s", false, 0), ("2s", true, 76)] {
        // A shell that is just forking may not be able to stop.
        let command = "touch $DIR/ready; exec sleep 3";
        let script = format!("$L run lock --lease {lease} -- sh -c '{command}'\n");
        let mut terminal = Terminal::run(&server, &script);
        terminal.await_ready();
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

/// Reads two lines from the terminal.
const READS: &str = "export READS='echo $$ > $DIR/pid; : > $DIR/ready; \
    read line; echo $line > $DIR/first; read line; echo $line > $DIR/second'";

#[test]
fn ctrl_z_stops_all_of_the_job_though_the_command_has_the_terminal() {
    let server = TestServer::start();
    for job in [
        "$L run lock -- sh -c \"$READS\"",
        "sh -c '$L run lock -- sh -c \"$READS\"; true'",
        "$L run lock -- sh -c \"$READS\" | cat",
        "$L run lock -- sh -c 'stty echo; $L run --url $URL inner -- sh -c \"$READS\"; true'",
        "$L run lock -- $L run --url $URL inner -- sh -c \"$READS\"",
    ] {
        let mut terminal = Terminal::run(&server, &format!("{READS}\n{job}\n"));
        terminal.await_ready();
        terminal.press("one\n");
        terminal.await_written("first", "one");
        // Twice, since what is to be lent again is lent for the second time.
        for _ in 0..2 {
            terminal.suspend();
            terminal.resume();
        }
        terminal.press("two\n");
        terminal.await_written("second", "two");
        await_lock(&server, 0);
        terminal.screen();
    }
}

/// Reads nothing, and starts nothing where it may be stopped: a shell that is just forking
/// may not be able to stop.
const WAITS: &str = "export WAITS='trap \": > $DIR/continued\" CONT; echo $$ > $DIR/pid; \
    : > $DIR/ready; until test -e $DIR/go; do :; done'";

#[test]
fn ctrl_z_suspends_what_runs_under_a_lockctl_in_a_lockctl() {
    let server = TestServer::start();
    let job = "$L run lock -- $L run --url $URL inner -- sh -c \"$WAITS\"";
    let mut terminal = Terminal::run(&server, &format!("{WAITS}\n{job}\n"));
    terminal.await_ready();
    for _ in 0..2 {
        terminal.suspend();
        terminal.resume();
    }
    std::fs::write(terminal.dir.path().join("go"), "").unwrap();
    await_lock(&server, 0);
}

#[test]
fn ctrl_c_ends_a_command_that_has_the_terminal_and_stops_itself() {
    let server = TestServer::start();
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
fn ctrl_z_stops_no_job_that_nobody_could_continue() {
    let server = TestServer::start();
    // There is no shell any more.
    let job = "exec $L run lock -- sh -c \"$READS\"";
    let mut terminal = Terminal::run(&server, &format!("{READS}\n{job}\n"));
    terminal.await_ready();
    terminal.press("one\n");
    terminal.await_written("first", "one");
    terminal.press("\x1atwo\n");
    terminal.await_written("second", "two");
    await_lock(&server, 0);
    let job = "exec $L run lock -- sh -c \"$WAITS\"";
    let mut terminal = Terminal::run(&server, &format!("{WAITS}\n{job}\n"));
    terminal.await_ready();
    terminal.press("\x1a");
    terminal.await_written("continued", "");
    std::fs::write(terminal.dir.path().join("go"), "").unwrap();
    await_lock(&server, 0);
}

#[test]
fn no_part_of_a_command_goes_on_that_is_stopped_for_the_terminal() {
    let server = TestServer::start();
    let writes = "while :; do echo >> $DIR/beats; done";
    let command = "timeout 60 sh -c \"$WRITES\" & \
        until test -e $DIR/beats; do sleep 0.01; done; read line < /dev/tty";
    let job = format!("$L run lock --lease 2s -- sh -c '{command}' & : > $DIR/ready");
    let mut terminal = Terminal::run(&server, &format!("export WRITES='{writes}'\n{job}\n"));
    terminal.await_ready();
    terminal.await_written("beats", "");
    // Nobody renews it.
    await_lock(&server, 0);
    let before = terminal.read("beats").len();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(terminal.read("beats").len(), before);
    terminal.press("fg\n");
    terminal.press("echo it is $?\n");
    let screen = terminal.screen();
    assert!(screen.contains("it is 76"), "{screen}");
}

/// The settings of the terminal at which a process runs.
fn settings(pid: &str) -> String {
    let terminal = std::fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
    let shown = Command::new("stty").arg("-aF").arg(terminal).output();
    String::from_utf8(shown.unwrap().stdout).unwrap()
}

#[test]
fn top_gives_the_terminal_back_while_it_is_stopped() {
    let server = TestServer::start();
    let top = r#"sh -c "echo \$\$ > $DIR/pid; touch $DIR/ready; exec $L top""#;
    let terminal = Terminal::run(&server, &format!("sh -c '{top}; exit'\n"));
    terminal.await_ready();
    let pid = std::fs::read_to_string(terminal.dir.path().join("pid")).unwrap();
    let pid = pid.trim();
    let is_raw = || settings(pid).contains("-icanon");
    eventually("top has the terminal", is_raw);
    signal(pid.parse().unwrap(), Signal::TSTP).unwrap();
    eventually("the terminal is as before", || !is_raw());
    // Before it has stopped, CONT would be lost on it.
    eventually("it has stopped", || is_stopped(pid));
    signal(pid.parse().unwrap(), Signal::CONT).unwrap();
    eventually("top has it again", is_raw);
    signal(pid.parse().unwrap(), Signal::TERM).unwrap();
}

#[test]
fn top_gives_the_terminal_back_however_it_is_ended() {
    let server = TestServer::start();
    let ended_by = [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
    ];
    for (ended_by, code) in ended_by {
        // A shell that is not interactive leaves the terminal as top left it.
        let top = r#"sh -c "echo \$\$ > $DIR/pid; touch $DIR/ready; exec $L top""#;
        let script =
            format!("stty -g > $DIR/before; {top}; echo $? > $DIR/code; stty -g > $DIR/after");
        let terminal = Terminal::run(&server, &format!("sh -c '{script}'\n"));
        terminal.await_ready();
        let read = |name| std::fs::read_to_string(terminal.dir.path().join(name)).unwrap();
        let pid = read("pid").trim().to_owned();
        eventually("top has the terminal", || {
            settings(&pid).contains("-icanon")
        });
        signal(pid.parse().unwrap(), ended_by).unwrap();
        let after = terminal.dir.path().join("after");
        eventually("it has ended", || {
            std::fs::read(&after).is_ok_and(|after| after.ends_with(b"\n"))
        });
        assert_eq!(read("code").trim(), code.to_string());
        assert_eq!(read("before"), read("after"), "{ended_by:?}");
        let screen = terminal.screen();
        let (shown, after) = (screen.rfind("\x1b[?1049h"), screen.rfind("\x1b[?1049l"));
        assert!(shown.is_some() && after > shown, "the screen is as before");
    }
}
