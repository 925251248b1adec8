//! The commands that the documents show of lockctl do what they say.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use redis_lock_testing::{Okay, Server};
use tempfile::TempDir;

use support::{complained, lockctl, output, said};

fn read(document: &str) -> String {
    let lockctl = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(lockctl.join(document)).unwrap()
}

/// The block of code of this document in which this stands.
fn block(document: &str, word: &str) -> String {
    let text = read(document);
    let mut blocks = text.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(word)).unwrap();
    block.split_once('\n').unwrap().1.into()
}

/// A server, and a folder with the commands that are run under locks.
struct Scene {
    server: Server,
    folder: TempDir,
}

impl Scene {
    fn set(commands: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for command in commands {
            let path = folder.path().join(command);
            fs::write(&path, format!("#!/bin/sh\necho {command} $LOCK_KEY $*\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        let server = Server::start();
        Self { server, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What a line of a shell does.
    fn typed(&self, line: &str) -> Output {
        let lockctl = Path::new(env!("CARGO_BIN_EXE_lockctl")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let here = self.folder.path();
        let path = format!("{}:{}:{path}", here.display(), lockctl.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(here);
        shell
            .env("PATH", path)
            .env("REDIS_URL", format!("redis://{}", self.server.addr()))
            .stdin(Stdio::null());
        output(&mut shell)
    }

    /// What a line of a shell writes, which must succeed.
    #[track_caller]
    fn ran(&self, line: &str) -> String {
        let ended = self.typed(line);
        assert!(ended.status.success(), "{line}: {ended:?}");
        said(&ended)
    }
}

#[test]
fn the_commands_in_the_first_lines_do_what_they_say() {
    let scene = Scene::set(&["deploy.sh", "report.sh", "read.sh", "encode.sh"]);
    let token = scene.server.client().int("LOCK.ACQUIRE broken a");
    let mut left = Vec::new();
    for line in block("README.md", "lockctl run deploy").lines() {
        let command = line.split(" #").next().unwrap().trim();
        let (_, subcommand) = command.split_once(' ').unwrap();
        match subcommand.split(' ').next().unwrap() {
            "run" => {
                // A line of a shell is zipped.
                let unzipped = command.replace("gzip", "cat");
                assert!(scene.ran(&unzipped).contains(".sh "), "{command}");
            }
            "ls" => assert_eq!(scene.ran(command), "Nobody waits for a lock.\n"),
            "break" => {
                let shown = command.rsplit(' ').next().unwrap();
                let now = command.replace(shown, &token.to_string());
                let now = now.replace("deploy", "broken");
                assert_eq!(scene.ran(&now), "broken is broken.\n");
            }
            endless => left.push(endless.to_owned()),
        }
    }
    // tests/terminal.rs, tests/tail.rs and tests/doctor.rs run these.
    assert_eq!(left, ["top", "tail", "doctor"]);
}

#[test]
fn the_cron_job_runs_on_one_host_of_two() {
    let scene = Scene::set(&["report"]);
    let url = scene.path("nightly-report.url");
    // The file with the password, made for whoever runs this test.
    let made = block("README.md", "install -m 600");
    let whoami = scene.ran("id -un").trim().to_owned();
    let made = made
        .replace("-o app", &format!("-o {whoami}"))
        .replace("/etc/nightly-report.url", url.to_str().unwrap());
    scene.ran(&made);
    let mode = fs::metadata(&url).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = fs::read_to_string(&url).unwrap();
    assert!(written.starts_with("redis://:") && written.contains('@'));
    fs::write(&url, format!("redis://{}\n", scene.server.addr())).unwrap();
    let table = block("README.md", "0 3 * * *");
    let line = table.lines().find(|line| line.contains("lockctl")).unwrap();
    let (times, command) = line.split_once("  app  ").unwrap();
    assert_eq!(times.split(' ').count(), 5);
    let command = command.replace("/etc/nightly-report.url", url.to_str().unwrap());
    assert_eq!(scene.ran(&command), "report nightly-report\n");
    // The other host, a bit later.
    assert_eq!(scene.ran(&command), "");
}

#[test]
fn what_is_installed_otherwise_is_there() {
    let scene = Scene::set(&[]);
    for shell in ["bash", "zsh", "fish"] {
        let completions = scene.ran(&format!("lockctl completions {shell}"));
        assert!(completions.contains("tail"), "{shell}");
    }
    scene.ran("mkdir man && lockctl man man");
    for page in ["lockctl", "lockctl-run", "lockctl-tail"] {
        assert!(scene.path(&format!("man/{page}.1")).exists(), "{page}");
    }
}

#[test]
fn a_line_of_tail_is_as_it_is_shown() {
    let shown = block("README.md", "$ lockctl tail");
    let mut lines = shown.lines().skip(2);
    let scene = Scene::set(&[]);
    let ended = std::thread::scope(|threads| {
        let typed = "lockctl tail --notify -n 1 orders:42";
        let tail = threads.spawn(|| scene.typed(typed));
        let mut client = scene.server.client();
        // It is not known when it listens.
        while !tail.is_finished() {
            client.int("LOCK.ACQUIRE orders:42 a");
            client.int("LOCK.RELEASE orders:42 a");
        }
        tail.join().unwrap()
    });
    let real = said(&ended);
    let form = |line: &str| {
        let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
        let line = line.trim().replace("released", "acquired");
        line.chars().map(digits).collect::<String>()
    };
    assert!(lines.all(|line| form(line) == form(&real)), "{real}");
}

#[test]
fn the_users_of_the_documents_can_do_their_work() {
    let server = Server::start();
    let mut admin = server.client();
    admin.call("CONFIG SET notify-keyspace-events Ed");
    let operations = read("../docs/operations.md");
    for line in operations.lines().filter(|it| it.starts_with("ACL ")) {
        assert_eq!(admin.call(line), Okay, "{line}");
    }
    admin.int("LOCK.ACQUIRE locks:a holder LEASE 600000");
    let mut waiter = server.client();
    waiter.send("LOCK.ACQUIRE locks:a waiter BLOCK 0");
    server.await_info("lock_waiters", 1);
    let by = |user: &str, words: &[&str]| {
        let mut command = lockctl(&server);
        let url = format!("redis://{user}:secret@{}", server.addr());
        output(command.env("REDIS_URL", url).args(words))
    };
    for user in ["observer", "operator"] {
        for words in [
            &["ls"][..],
            &["ls", "locks:a"],
            &["--json", "top", "--times", "1"],
        ] {
            let ended = by(user, words);
            assert!(said(&ended).contains("locks:a"), "{user}: {ended:?}");
        }
    }
    let refused = by("observer", &["break", "--force", "locks:a"]);
    assert!(complained(&refused).contains("NOPERM"), "{refused:?}");
    let broken = by("operator", &["break", "--force", "locks:a"]);
    assert_eq!(said(&broken), "locks:a is broken.\n");
}
