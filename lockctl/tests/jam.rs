//! What `lockctl ls`, `top` and `break` tell of a jam: 3 locks, 2 readers, 20
//! waiters, and a deadlock refused. README.md has its picture.

mod support;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redis::Value;
use redis_lock_testing::{Fate, Okay, Proxy, SOON, Server, Signal, need_files, redis_cli, signal};
use serde_json::Value as Json;

use support::{complained, lockctl, output, said};

/// The script that makes the jam, for as long as this lives.
struct Jam {
    script: Child,
    refused: String,
}

impl Jam {
    fn make(server: &Server) -> Self {
        let mut script = support::heedful("bash")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/jam.sh"))
            .args(["-p", &server.addr().port().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(script.stdout.take().unwrap());
        let mut lines = said.lines().map(Result::unwrap);
        let refused = lines.next().expect("what was refused");
        assert_eq!(lines.next().as_deref(), Some("the jam stands"));
        Self { script, refused }
    }
}

impl Drop for Jam {
    fn drop(&mut self) {
        let _ = signal(self.script.id(), Signal::TERM);
        self.script.wait().unwrap();
    }
}

/// What `lockctl ls --json` says.
fn listed(server: &Server) -> Vec<Json> {
    let listed = output(lockctl(server).args(["ls", "--json", "--stuck-after", "0"]));
    assert!(listed.status.success(), "{listed:?}");
    match serde_json::from_str(&said(&listed)).unwrap() {
        Json::Array(locks) => locks,
        other => panic!("{other} is no list"),
    }
}

fn owners(lock: &Json, which: &str) -> Vec<String> {
    let people = lock[which].as_array().unwrap().iter();
    people
        .map(|it| it["owner"].as_str().unwrap().to_owned())
        .collect()
}

fn numbered(name: &str, numbers: std::ops::RangeInclusive<u32>) -> Vec<String> {
    numbers.map(|number| format!("{name}-{number}")).collect()
}

#[test]
fn a_jam_is_told_as_it_is() {
    let server = Server::start();
    let jam = Jam::make(&server);
    assert_eq!(
        jam.refused,
        "refused: DEADLOCK 'web-1' waits for 'nightly jobs' held by 'batch-1', \
         'batch-1' waits for 'orders:42' held by 'web-1'"
    );
    let locks = listed(&server);
    let keys: Vec<_> = locks
        .iter()
        .map(|lock| lock["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["orders:42", "reports", "nightly jobs"]);
    let [orders, reports, nightly] = &locks[..] else {
        panic!("three locks");
    };

    assert_eq!(owners(orders, "holders"), ["web-1"]);
    let mut waiters = vec!["batch-1".to_owned()];
    waiters.extend(numbered("worker", 1..=9));
    assert_eq!(owners(orders, "waiters"), waiters);
    assert_eq!(orders["blocked_by"], serde_json::json!(["web-1"]));
    assert_eq!(orders["holders"][0]["waits_for"], serde_json::json!([]));

    assert_eq!(reports["mode"], "shared");
    assert_eq!(owners(reports, "holders"), ["reader-1", "reader-2"]);
    assert_eq!(reports["waiting"], 6);
    let readers = serde_json::json!(["reader-1", "reader-2"]);
    assert_eq!(reports["blocked_by"], readers);
    assert_eq!(reports["waiters"][1]["owner"], "reader-3");

    assert_eq!(owners(nightly, "holders"), ["batch-1"]);
    assert_eq!(
        nightly["holders"][0]["waits_for"],
        serde_json::json!(["orders:42"])
    );
    assert_eq!(owners(nightly, "waiters"), numbered("batch", 2..=5));

    let waiting: u64 = locks
        .iter()
        .map(|lock| lock["waiting"].as_u64().unwrap())
        .sum();
    assert_eq!(waiting, 20);
    assert_eq!(server.info("lock_waiters"), 20);
    server_tells_the_same(&server, &locks);
    the_table_has_them_all(&server, &locks);
}

/// Checks what is listed against `LOCK.LIST` and `LOCK.INFO` themselves.
fn server_tells_the_same(server: &Server, locks: &[Json]) {
    let mut client = server.client();
    let Value::Array(list) = client.call("LOCK.LIST") else {
        panic!("no list");
    };
    assert_eq!(list.len(), locks.len());
    for (listed, lock) in list.iter().zip(locks) {
        let key = lock["key"].as_str().unwrap();
        let said = format!("{listed:?}");
        assert!(said.contains(key), "{said}");
        assert!(
            said.contains(&format!("int({})", lock["waiting"])),
            "{said}"
        );
        let info = client.words(&[b"LOCK.INFO", key.as_bytes()]);
        let info = format!("{info:?}");
        for owner in owners(lock, "holders")
            .iter()
            .chain(&owners(lock, "waiters"))
        {
            assert!(info.contains(owner), "{info}");
        }
        let token = lock["token"].as_u64().unwrap();
        assert!(info.contains(&format!("int({token})")), "{info}");
    }
}

fn the_table_has_them_all(server: &Server, locks: &[Json]) {
    let table = said(&output(lockctl(server).args(["ls", "--stuck-after", "0"])));
    for lock in locks {
        let key = lock["key"].as_str().unwrap();
        let rows = table.lines().filter(|line| line.starts_with(key)).count();
        let expected = owners(lock, "holders").len() + owners(lock, "waiters").len();
        assert_eq!(rows, expected, "{table}");
        let command = lock["safe_break"].as_str().unwrap();
        assert!(table.contains(&format!("  {command}\n")), "{table}");
    }
    assert!(table.contains("batch-1 (waits for orders:42)"), "{table}");
    let calm = said(&output(lockctl(server).args(["ls", "--stuck-after", "1h"])));
    assert!(!calm.contains("lockctl break"), "{calm}");
}

/// The exit code of a command line that somebody types where lockctl is
/// installed.
fn typed(server: &Server, line: &str) -> Option<i32> {
    let installed = Path::new(env!("CARGO_BIN_EXE_lockctl")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut shell = Command::new("bash");
    shell
        .args(["-c", line])
        .env("PATH", format!("{}:{path}", installed.display()))
        .env("REDIS_URL", format!("redis://{}", server.addr()));
    output(&mut shell).status.code()
}

#[test]
fn whatever_a_stuck_lock_is_called_its_command_breaks_it() {
    let server = Server::start();
    let mut client = server.client();
    let keys: [&[u8]; 8] = [
        b"-f",
        b"",
        b"it's \"$HOME\" `ls` \\",
        "größe".as_bytes(),
        b"line\nline\n",
        b"\xff\xfe1",
        b"\x1b[31m",
        b"~",
    ];
    let mut waiters: Vec<_> = keys.iter().map(|_| server.client()).collect();
    for (key, waiter) in keys.iter().zip(&mut waiters) {
        client.words(&[b"LOCK.ACQUIRE", key, b"alice"]);
        let acquire = [&b"LOCK.ACQUIRE"[..], key, b"bob", b"BLOCK", b"0"];
        waiter.connection.send(&acquire).unwrap();
    }
    server.await_info("lock_waiters", keys.len() as i64);
    let locks = listed(&server);
    assert_eq!(locks.len(), keys.len());
    for lock in locks {
        let command = lock["safe_break"].as_str().unwrap();
        assert_eq!(typed(&server, command), Some(0), "{command}");
    }
    server.await_info("lock_waiters", 0);
}

#[test]
fn bytes_that_are_no_text_are_told_exactly() {
    let server = Server::start();
    let mut client = server.client();
    // A byte, and the four letters with which it is shown.
    for name in [&b"\xff"[..], br"\xff"] {
        client.words(&[b"LOCK.ACQUIRE", name, name]);
        let mut waiter = server.client();
        let acquire = [&b"LOCK.ACQUIRE"[..], name, b"bob", b"BLOCK", b"0"];
        waiter.connection.send(&acquire).unwrap();
        server.await_info("lock_waiters", 1);
        let lock = listed(&server).remove(0);
        let base64 = match name {
            b"\xff" => Json::from("/w=="),
            _ => Json::Null,
        };
        assert_eq!(lock["key"], r"\xff");
        assert_eq!(lock["key_base64"], base64);
        assert_eq!(lock["holders"][0]["owner"], r"\xff");
        assert_eq!(lock["holders"][0]["owner_base64"], base64);
        assert_eq!(lock["blocked_by"], serde_json::json!([r"\xff"]));
        assert_eq!(lock["blocked_by_base64"][0], base64);
        client.words(&[b"DEL", name]);
        assert!(matches!(waiter.reply(), Value::Int(_)));
        let mut broken = lockctl(&server);
        broken.args(["--json", "break", "--force", "--"]);
        let broken = output(broken.arg(OsStr::from_bytes(name)));
        let told: Json = serde_json::from_str(&said(&broken)).unwrap();
        assert_eq!(told["key_base64"], base64);
    }
}

#[test]
fn what_is_told_grows_with_holders_plus_waiters() {
    const EACH: usize = 1000;
    need_files(2 * EACH as u64);
    let server = Server::start_with(&["--maxclients", "4000"]);
    let mut client = server.client();
    for n in 0..EACH {
        client.int(&format!("LOCK.ACQUIRE lock reader-{n} SHARED LEASE 600000"));
    }
    let mut writers: Vec<_> = (0..EACH).map(|_| server.client()).collect();
    for (n, writer) in writers.iter_mut().enumerate() {
        writer.send(&format!("LOCK.ACQUIRE lock writer-{n} BLOCK 0"));
    }
    server.await_info("lock_waiters", EACH as i64);
    for options in [&["ls"][..], &["ls", "--json"]] {
        let told = said(&output(lockctl(&server).args(options)));
        let each = told.len() / (2 * EACH);
        assert!(each < 250, "{options:?}: {each} bytes for each");
        assert!(told.contains("writer-999"));
    }
}

#[test]
fn the_command_that_is_shown_breaks_the_lock_and_only_once() {
    let server = Server::start();
    let _jam = Jam::make(&server);
    let nightly = &listed(&server)[2];
    assert_eq!(nightly["key"], "nightly jobs");
    let command = nightly["safe_break"].as_str().unwrap();
    let port = server.addr().port().to_string();
    for code in [0, 1] {
        assert_eq!(typed(&server, command), Some(code), "{command}");
    }
    let state = redis_cli(&["-p", &port, "LOCK.INFO", "nightly jobs"]).unwrap();
    assert!(state.contains("batch-2\nholds\n1"), "{state}");
}

#[test]
fn break_says_whether_it_did() {
    let server = Server::start();
    let token = server.client().int("LOCK.ACQUIRE lock alice");
    let attempt = |which: &[&str], code, json: Json| {
        let ended = output(
            lockctl(&server)
                .args(["--json", "break", "lock"])
                .args(which),
        );
        assert_eq!(ended.status.code(), Some(code), "{which:?}");
        let told: Json = serde_json::from_str(&said(&ended)).unwrap();
        assert_eq!(told, json);
    };
    let (not_broken, broken) = (
        serde_json::json!({"key": "lock", "broken": false}),
        serde_json::json!({"key": "lock", "broken": true}),
    );
    attempt(&["--fence", "1"], 1, not_broken.clone());
    attempt(&["--fence", &token.to_string()], 0, broken.clone());
    attempt(&["--force"], 1, not_broken);
    server.client().int("LOCK.ACQUIRE lock bob");
    attempt(&["--force"], 0, broken);
}

#[test]
fn locks_that_are_named_are_shown_contended_or_not() {
    let server = Server::start();
    server.client().int("LOCK.ACQUIRE held alice");
    let table = said(&output(lockctl(&server).args(["ls", "held", "free"])));
    let rows: Vec<_> = table.lines().skip(1).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(
        rows[0].starts_with("held  alice  holder  exclusive"),
        "{table}"
    );
    assert!(rows[1].starts_with("free"), "{table}");
    let none = said(&output(lockctl(&server).arg("ls")));
    assert_eq!(none, "Nobody waits for a lock.\n");
}

#[test]
fn who_may_not_look_at_a_lock_is_told_that_and_not_that_nobody_waits() {
    let server = Server::start();
    let mut client = server.client();
    client.int("LOCK.ACQUIRE lock a LEASE 600000");
    client.int("LOCK.ACQUIRE lock b LEASE 600000 QUEUE 600000 c");
    let user = "ACL SETUSER lister on >secret ~* +lock.list +info +client|info";
    assert_eq!(client.call(user), Okay);
    let url = format!("redis://lister:secret@{}", server.addr());
    for (options, code) in [(&["ls"][..], 125), (&["top", "--json", "--times", "1"], 0)] {
        let ended = output(lockctl(&server).env("REDIS_URL", &url).args(options));
        assert_eq!(ended.status.code(), Some(code), "{ended:?}");
        assert_eq!(said(&ended), "");
        let told = complained(&ended);
        assert!(told.contains("NOPERM"), "{told}");
        assert!(told.contains("lock.info"), "{told}");
    }
}

#[test]
fn many_locks_take_few_round_trips() {
    const LOCKS: u32 = 400;
    let server = Server::start();
    let mut client = server.client();
    let names: Vec<_> = (0..LOCKS).map(|n| format!("lock{n}")).collect();
    for name in &names {
        client.int(&format!("LOCK.ACQUIRE {name} a LEASE 600000"));
        client.int(&format!("LOCK.ACQUIRE {name} b QUEUE 600000 c"));
    }
    let far = Proxy::to(server.addr()).unwrap();
    // One by one they would take twice as long as anything may.
    far.set(Fate::Delayed(SOON / LOCKS));
    let url = format!("redis://{}", far.addr());
    let keys = |options: &[&str]| {
        let begun = Instant::now();
        let mut command = lockctl(&server);
        command.args(["ls", "--json"]).env("REDIS_URL", &url);
        let listed = said(&output(command.args(options)));
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        let listed: Vec<Json> = serde_json::from_str(&listed).unwrap();
        let keys = listed.iter().map(|lock| lock["key"].as_str().unwrap());
        keys.map(str::to_owned).collect::<Vec<_>>()
    };
    let named: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(keys(&named), names);
    assert_eq!(keys(&["--count", "400"]).len(), names.len());
}

#[test]
fn who_waits_for_a_permit_is_shown_with_its_limit() {
    let server = Server::start();
    let mut client = server.client();
    for asking in [
        "a LIMIT 1",
        "b QUEUE 600000 c LIMIT 3",
        "r QUEUE 600000 c SHARED",
    ] {
        client.int(&format!("LOCK.ACQUIRE pool {asking}"));
    }
    let table = said(&output(lockctl(&server).arg("ls")));
    assert!(table.contains("waiter 1  limit 3 "), "{table}");
    assert!(table.contains("waiter 2  shared "), "{table}");
    let waiters = &listed(&server)[0]["waiters"];
    assert_eq!(
        [&waiters[0]["limit"], &waiters[1]["limit"]],
        [&Json::from(3), &Json::Null]
    );
}

#[test]
fn top_writes_a_line_each_time_and_counts_by_the_second() {
    let server = Server::start();
    let _jam = Jam::make(&server);
    let options = ["top", "--json", "--interval", "200ms", "--times", "2"];
    let mut top = lockctl(&server)
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut samples = lines.map(|line| serde_json::from_str::<Json>(&line.unwrap()).unwrap());
    let first = samples.next().unwrap();
    assert_eq!(first["waiting"], 20);
    assert_eq!(first["grants_per_second"], Json::Null);
    assert!(first["longest_wait_ms"].as_u64().unwrap() > 0);
    assert_eq!(first["locks"][0]["key"], "orders:42");
    // Until the second sample is there: nobody knows when it is taken.
    let is_read = AtomicBool::new(false);
    let second = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            while !is_read.load(Ordering::Relaxed) {
                client.int("LOCK.ACQUIRE other alice");
                client.int("LOCK.RELEASE other alice");
            }
        });
        let second = samples.next();
        is_read.store(true, Ordering::Relaxed);
        second.unwrap()
    });
    assert!(
        second["grants_per_second"].as_f64().unwrap() > 0.0,
        "{second}"
    );
    assert!(
        second["releases_per_second"].as_f64().unwrap() > 0.0,
        "{second}"
    );
    assert!(top.wait().unwrap().success());
}

#[test]
fn top_needs_a_terminal_or_json_and_a_server() {
    let mut server = Server::start();
    let ended = output(lockctl(&server).arg("top"));
    assert_eq!(ended.status.code(), Some(125));
    assert!(support::complained(&ended).contains("--json"));
    server.crash();
    for subcommand in [
        &["top", "--json"][..],
        &["ls"],
        &["break", "lock", "--force"],
    ] {
        let ended = output(lockctl(&server).args(subcommand));
        assert_eq!(ended.status.code(), Some(125), "{subcommand:?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let server = Server::start();
    server.client().int("LOCK.ACQUIRE lock alice");
    for subcommand in [
        &["completions", "bash"][..],
        &["--help"],
        &["ls", "lock"],
        &["ls", "lock", "--json"],
        &["top", "--json"],
        &["break", "lock", "--force"],
    ] {
        // Nobody reads what is written.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = lockctl(&server)
            .args(subcommand)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(support::complained(&ended), "", "{subcommand:?}");
        assert_eq!(ended.status.code(), Some(0), "{subcommand:?}");
    }
}

#[test]
fn a_grace_period_is_told() {
    let server = Server::start_with(&["--lock.grace-period", "600000"]);
    let shown = said(&output(lockctl(&server).args(["ls", "k"])));
    assert!(
        shown.contains("Grace period: nothing is granted for"),
        "{shown}"
    );
    let listed = said(&output(lockctl(&server).args(["ls", "--json", "k"])));
    let locks: Json = serde_json::from_str(&listed).unwrap();
    let left_ms = locks[0]["grace_ms"].as_u64().unwrap();
    assert!((1..=600_000).contains(&left_ms), "{left_ms}");
    let set = server.client().call("CONFIG SET lock.grace-period 0");
    assert_eq!(set, Value::Okay);
    let shown = said(&output(lockctl(&server).args(["ls", "k"])));
    assert!(!shown.contains("Grace"), "{shown}");
}
