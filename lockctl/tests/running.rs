//! `lockctl run` where nothing goes wrong: the command, its exit code, its
//! signals.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use redis_lock_testing::{Int, Server, Signal, eventually, signal};

use support::{Script, complained, heedful, lockctl, output, said};

/// A script that writes its number and that of a child that outlives it.
const TWO_PROCESSES: &str = "sleep 60 & echo $$ $! > $DIR/pids; touch $DIR/ready;";

#[test]
fn the_command_gets_the_token_and_its_exit_code_is_passed_on() {
    let server = Server::start();
    let script = "echo $LOCK_TOKEN; exit 7";
    let ended = output(lockctl(&server).args(["run", "lock", "--", "sh", "-c", script]));
    assert_eq!(ended.status.code(), Some(7));
    assert_eq!(complained(&ended), "");
    let token: i64 = said(&ended).trim().parse().unwrap();
    assert_eq!(server.client().int("EXISTS lock"), 0);
    let mut client = server.client();
    assert!(client.int("LOCK.ACQUIRE lock next") > token);
}

#[test]
fn the_lock_is_held_and_renewed_while_the_command_runs() {
    let server = Server::start();
    let script = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done; exit 3";
    let mut script = Script::start_and_await(&server, &["--lease", "2s"], script);
    let mut client = server.client();
    let first = client.int("PEXPIRETIME lock");
    eventually("it was renewed three times", || {
        client.int("PEXPIRETIME lock") > first + 1500
    });
    let fields = format!("{:?}", client.call("HKEYS lock"));
    let owner = format!(":{}:", script.lockctl());
    assert!(fields.contains(&owner), "{fields}");
    std::fs::write(script.path("go"), "").unwrap();
    assert_eq!(script.end(), (Some(3), String::new()));
    assert_eq!(client.int("EXISTS lock"), 0);
}

#[test]
fn lockctl_ends_by_the_signal_that_ended_the_command() {
    let server = Server::start();
    let ended = output(lockctl(&server).args(["run", "lock", "--", "sh", "-c", "kill -9 $$"]));
    assert_eq!(ended.status.signal(), Some(9));
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_command_that_does_not_start_has_the_codes_of_a_shell() {
    let server = Server::start();
    for (command, code) in [("/no/such/command", 127), ("/etc/passwd", 126)] {
        let ended = output(lockctl(&server).args(["run", "lock", "--", command]));
        assert_eq!(ended.status.code(), Some(code), "{command}");
        assert!(complained(&ended).contains(command));
        assert_eq!(server.client().int("EXISTS lock"), 0);
    }
}

#[test]
fn a_held_lock_is_waited_for_as_long_as_asked() {
    let server = Server::start();
    let mut holder = server.client();
    holder.int("LOCK.ACQUIRE lock holder");
    for (options, code) in [
        (&["--no-wait"][..], 75),
        (&["--wait", "0"], 75),
        (&["--wait", "100ms"], 75),
        (&["-n", "-E", "9"], 9),
    ] {
        let mut command = lockctl(&server);
        command.args(["run", "lock"]).args(options);
        let ended = output(command.args(["--", "echo", "never"]));
        assert_eq!(ended.status.code(), Some(code), "{options:?}");
        assert_eq!(said(&ended), "");
        assert_eq!(complained(&ended), "", "the exit code says it");
    }
    let mut script = Script::start(&server, &["--wait", "60s"], "exit 4");
    server.await_info("lock_waiters", 1);
    assert_eq!(holder.int("LOCK.RELEASE lock holder"), 1);
    assert_eq!(script.end().0, Some(4));
}

#[test]
fn modes_decide_who_runs_together() {
    let server = Server::start();
    let attempt = |options: &[&str]| {
        let mut command = lockctl(&server);
        command.args(["run", "lock", "--no-wait"]).args(options);
        output(command.args(["--", "true"])).status.code()
    };
    let wait = "touch $DIR/ready; sleep 60";
    let reader = Script::start_and_await(&server, &["--shared"], wait);
    assert_eq!(attempt(&["--shared"]), Some(0));
    assert_eq!(attempt(&[]), Some(75));
    reader.signal(Signal::TERM);
    eventually("it is free", || server.client().int("EXISTS lock") == 0);
    let _permit = Script::start_and_await(&server, &["--limit", "2"], wait);
    assert_eq!(attempt(&["--limit", "2"]), Some(0));
    assert_eq!(attempt(&["--limit", "1"]), Some(75));
    assert_eq!(attempt(&["--shared"]), Some(0));
}

#[test]
fn a_lock_that_is_kept_ends_with_its_lease() {
    let server = Server::start();
    let mut command = lockctl(&server);
    command.args(["run", "lock", "--keep", "--lease", "60s", "--", "sh", "-c"]);
    let ended = output(command.arg("exit 3"));
    assert_eq!(ended.status.code(), Some(3));
    let left_ms = server.client().int("PTTL lock");
    assert!((50_000..=60_000).contains(&left_ms), "{left_ms}");
}

#[test]
fn a_job_that_many_hosts_start_runs_on_one() {
    let server = Server::start();
    let options = ["--no-wait", "-E", "0", "--keep", "--lease", "60s"];
    let host = || Script::start(&server, &options, "touch $DIR/ran");
    let mut hosts: Vec<_> = (0..10).map(|_| host()).collect();
    for host in &mut hosts {
        assert_eq!(host.end(), (Some(0), String::new()));
    }
    // One whose clock is late.
    hosts.push(host());
    assert_eq!(hosts[10].end().0, Some(0));
    let ran = hosts.iter().filter(|host| host.path("ran").exists());
    assert_eq!(ran.count(), 1);
}

#[test]
fn events_are_told_in_json_on_stderr() {
    let server = Server::start();
    let ended = output(lockctl(&server).args(["--json", "run", "lock", "--", "false"]));
    let told = complained(&ended);
    let events: Vec<serde_json::Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), 2, "{told}");
    assert_eq!(events[0]["event"], "acquired");
    assert_eq!(events[0]["key"], "lock");
    assert!(events[0]["token"].as_u64().unwrap() > 0);
    assert_eq!(events[1]["event"], "released");
    assert_eq!(events[1]["exit_code"], 1);
}

#[test]
fn signals_go_to_the_whole_process_group() {
    let server = Server::start();
    let inner = "trap 'touch $DIR/inner' USR1; touch $DIR/ready; while :; do sleep 0.01; done";
    let outer = format!("trap 'touch $DIR/outer' USR1; sh -c \"{inner}\" & while :; do wait; done");
    let mut script = Script::start_and_await(&server, &[], &outer);
    script.signal(Signal::USR1);
    eventually("both have got it", || {
        script.path("inner").exists() && script.path("outer").exists()
    });
    script.signal(Signal::TERM);
    assert_eq!(script.end().0, Some(128 + 15));
}

#[test]
fn ctrl_c_ends_the_command_and_releases_the_lock() {
    let server = Server::start();
    let script = format!("{TWO_PROCESSES} wait");
    let mut script = Script::start_and_await(&server, &[], &script);
    script.signal(Signal::INT);
    let (code, told) = script.end();
    assert_eq!(code, Some(128 + 2), "{told}");
    script.assert_nothing_runs();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn a_stopped_command_can_be_ended() {
    let server = Server::start();
    let script = "echo $$ > $DIR/pids; touch $DIR/ready; kill -STOP $$";
    let mut script = Script::start_and_await(&server, &[], script);
    let status = format!("/proc/{}/stat", script.wrote("pids").trim());
    eventually("it is stopped", || {
        std::fs::read_to_string(&status).unwrap().contains(") T ")
    });
    script.signal(Signal::TERM);
    assert_eq!(script.end().0, Some(128 + 15));
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[test]
fn ctrl_c_ends_a_wait_and_leaves_no_waiter() {
    let server = Server::start();
    server.client().int("LOCK.ACQUIRE lock holder");
    let mut script = Script::start(&server, &[], "exit 0");
    server.await_info("lock_waiters", 1);
    script.signal(Signal::INT);
    assert_eq!(script.end().0, Some(128 + 2));
    server.await_info("lock_waiters", 0);
    let mut client = server.client();
    assert_eq!(client.call("LOCK.RELEASE lock holder"), Int(1));
    assert_eq!(client.int("EXISTS lock"), 0);
}

#[test]
fn what_the_command_leaves_behind_ends_before_the_release() {
    let server = Server::start();
    let script = format!("{TWO_PROCESSES} exit 5");
    let mut script = Script::start(&server, &[], &script);
    assert_eq!(script.end().0, Some(5));
    script.assert_nothing_runs();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

/// A process ends at once that has started another one. That one may be seen by nobody who lists
/// all processes in this moment.
#[test]
fn what_is_left_by_one_that_has_just_ended_ends_before_the_release() {
    let server = Server::start();
    let left = "( ( sh -c 'echo $$ >> $DIR/pids; exec sleep 60' ) & ) & echo $$ > $DIR/pids";
    for _ in 0..40 {
        let mut script = Script::start(&server, &[], left);
        assert_eq!(script.end().0, Some(0));
        script.assert_nothing_runs();
    }
}

/// A shell may have started others before it became lockctl: `>(gzip)` at the end of its line,
/// or what an entry point leaves in the background.
#[test]
#[cfg(target_os = "linux")]
fn what_lockctl_did_not_start_goes_on() {
    let server = Server::start();
    let mut shell = heedful("sh");
    let older = "sleep 60 & echo $! > $DIR/older; exec \"$0\" \"$@\"";
    shell.args(["-c", older, env!("CARGO_BIN_EXE_lockctl")]);
    shell.env("REDIS_URL", format!("redis://{}", server.addr()));
    let script = format!("{TWO_PROCESSES} exit 5");
    let mut script = Script::start_by(shell, &[], &script);
    let (code, told) = script.end();
    assert_eq!((code, told.as_str()), (Some(5), ""));
    script.assert_nothing_runs();
    let older = script.wrote("older");
    assert!(support::runs(&older));
    signal(older.trim().parse().unwrap(), Signal::KILL).unwrap();
}

/// `ps` shows a process whose first thread has ended as if all of it had.
#[test]
#[cfg(target_os = "linux")]
fn what_works_on_in_another_thread_ends_before_the_release() {
    let server = Server::start();
    let work = "import ctypes, os, pathlib, threading, time\n\
        threading.Thread(target=time.sleep, args=[60]).start()\n\
        pathlib.Path(os.environ['DIR'], 'pids').write_text(str(os.getpid()))\n\
        ctypes.CDLL(None).pthread_exit(None)";
    let shows_z = "grep -q ' Z ' /proc/$(cat $DIR/pids)/stat";
    let script = format!("python3 -c \"{work}\" & until {shows_z}; do sleep 0.01; done");
    let mut script = Script::start(&server, &[], &script);
    assert_eq!(script.end().0, Some(0));
    let left = format!("/proc/{}/task", script.wrote("pids").trim());
    assert!(!std::path::Path::new(&left).exists());
}

/// Makes a process group of its own, as an interactive shell does for each job.
#[cfg(target_os = "linux")]
const TIMEOUT: &str = "timeout 60 sh -c 'echo $$ > $DIR/pids; touch $DIR/ready; exec sleep 60'";

#[test]
#[cfg(target_os = "linux")]
fn what_runs_in_a_process_group_of_its_own_ends_with_the_command() {
    let server = Server::start();
    let mut script = Script::start_and_await(&server, &[], &format!("{TIMEOUT}; true"));
    script.signal(Signal::TERM);
    assert_eq!(script.end().0, Some(128 + 15));
    script.assert_nothing_runs();
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

/// lockctl in a PID namespace where its session and its group have no number, as in a
/// container that makes no session. The first process there is a shell that runs this script
/// with it. None where the system allows no such namespace.
#[cfg(target_os = "linux")]
fn without_a_session(server: &Server, script: &str) -> Option<Command> {
    let unshare = ["--map-root-user", "--pid", "--fork", "--mount-proc"];
    let tried = Command::new("unshare").args(unshare).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("not tested: no PID namespace may be made here");
        return None;
    }
    let mut command = heedful("unshare");
    command.args(unshare);
    command.args(["sh", "-c", script]);
    command
        .arg(env!("CARGO_BIN_EXE_lockctl"))
        .env("REDIS_URL", format!("redis://{}", server.addr()));
    Some(command)
}

#[test]
#[cfg(target_os = "linux")]
fn what_the_command_leaves_behind_ends_where_no_session_has_a_number() {
    let server = Server::start();
    // The first process of a namespace takes all others with it when it ends.
    let Some(lockctl) = without_a_session(&server, "\"$0\" \"$@\"; exit $?") else {
        return;
    };
    let ends = "trap 'touch $DIR/ended; exit' TERM; touch $DIR/ready; while :; do sleep 0.01; done";
    let script = format!(
        "ENDS=\"{ends}\"; timeout 60 sh -c \"$ENDS\" & \
        until test -e $DIR/ready; do sleep 0.01; done; exit 5"
    );
    let mut script = Script::start_by(lockctl, &[], &script);
    let (code, told) = script.end();
    assert_eq!(code, Some(5), "{told}");
    assert!(script.path("ended").exists());
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

/// A deaf process in a group of its own, and the command ends. While lockctl waits for it, a
/// stranger gets the number of the command, and makes a session and a group of that number.
#[cfg(target_os = "linux")]
const RECYCLED: &str = r#"
    "$0" "$@" bash -c 'set -m; (trap "" TERM; : > $DIR/deaf; exec sleep 60) &
        until test -e $DIR/deaf; do :; done; echo $$ > $DIR/leader' &
    lockctl=$!
    until test -s $DIR/leader; do :; done
    read leader < $DIR/leader
    while test -e /proc/$leader; do :; done
    echo $((leader - 1)) > /proc/sys/kernel/ns_last_pid
    setsid sh -c ': > $DIR/ready; exec sleep 60' &
    stranger=$!
    until test -e $DIR/ready; do :; done
    test $stranger = $leader && : > $DIR/recycled
    wait $lockctl
    code=$?
    kill -0 $stranger && : > $DIR/unharmed
    exit $code
"#;

#[test]
#[cfg(target_os = "linux")]
fn a_stranger_that_gets_the_number_of_the_command_is_left_alone() {
    let server = Server::start();
    let Some(mut lockctl) = without_a_session(&server, RECYCLED) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = ["run", "lock", "--lease", "6s", "--kill-after", "2s", "--"];
    let ended = output(lockctl.args(options).env("DIR", dir.path()));
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    if !dir.path().join("recycled").exists() {
        eprintln!("not tested: the number could not be had again");
        return;
    }
    assert!(dir.path().join("unharmed").exists(), "{ended:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_daemon_goes_on_without_the_lock_whatever_it_has_left_in_the_group() {
    let server = Server::start();
    // It never looks after the child that ends in the group.
    let daemon = "(sleep 0.01 & exec setsid sh -c 'echo $$ > $DIR/pids; exec sleep 60') &";
    let script = format!("{daemon} until test -s $DIR/pids; do sleep 0.01; done; sleep 0.1");
    let mut script = Script::start(&server, &[], &script);
    let (code, told) = script.end();
    assert_eq!((code, told.as_str()), (Some(0), ""));
    assert_eq!(server.client().int("EXISTS lock"), 0);
    let daemon = script.wrote("pids");
    assert!(support::runs(&daemon));
    signal(daemon.trim().parse().unwrap(), Signal::KILL).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_does_not_survive_a_killed_lockctl() {
    let server = Server::start();
    let script = "echo $$ > $DIR/pids; touch $DIR/ready; exec sleep 60";
    let script = Script::start_and_await(&server, &["--lease", "2s"], script);
    script.signal(Signal::KILL);
    let pid = script.wrote("pids");
    eventually("the command has gone", || !support::runs(&pid));
    eventually("its lease is over", || {
        server.client().int("EXISTS lock") == 0
    });
}

#[test]
fn what_lockctl_was_told_to_ignore_it_does_not_forward() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let command = "touch $DIR/ready; until test -e $DIR/go; do sleep 0.01; done; exit 6";
    let script = format!("trap '' HUP; exec \"$0\" run lock -- sh -c '{command}'");
    let mut child = support::heedful("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_lockctl")])
        .env("DIR", dir.path())
        .env("REDIS_URL", format!("redis://{}", server.addr()))
        .spawn()
        .unwrap();
    eventually("the command runs", || dir.path().join("ready").exists());
    signal(child.id(), Signal::HUP).unwrap();
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
}

#[test]
fn wrong_usage_and_no_server_are_lockctls_own_failures() {
    let mut server = Server::start();
    for wrong in [
        &["run"][..],
        &["run", "lock"],
        &["run", "lock", "--wait", "soon", "--", "true"],
        &["run", "lock", "--lease", "1ms", "--", "true"],
        &["run", "lock", "--kill-after", "20s", "--", "true"],
        &["break", "lock"],
    ] {
        let ended = output(lockctl(&server).args(wrong));
        assert_eq!(ended.status.code(), Some(125), "{wrong:?}");
        assert_ne!(complained(&ended), "", "{wrong:?}");
    }
    server.crash();
    let ended = output(lockctl(&server).args(["--json", "run", "--no-wait", "lock", "true"]));
    assert_eq!(ended.status.code(), Some(125));
    let told = complained(&ended);
    assert!(told.contains(r#""code":"UNAVAILABLE""#), "{told}");
}

#[test]
fn the_end_of_a_command_is_noticed_also_where_its_signal_was_blocked() {
    let server = Server::start();
    let mut deaf = heedful("env");
    deaf.args(["--block-signal=CHLD", env!("CARGO_BIN_EXE_lockctl")])
        .env("REDIS_URL", format!("redis://{}", server.addr()));
    let mut script = Script::start_by(deaf, &[], "sleep 0.5; exit 7");
    let (code, told) = script.end();
    assert_eq!(code, Some(7), "{told}");
}
