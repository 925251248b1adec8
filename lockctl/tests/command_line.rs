//! The command line of `lockctl run`, and what its command finds in its
//! environment.

mod support;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use redis_lock_testing::Server;
use tempfile::TempDir;

use support::{complained, lockctl, output, said};

/// What the command wrote, which must have succeeded.
#[track_caller]
fn ran(server: &Server, arguments: &[&str]) -> String {
    let ended = output(lockctl(server).args(arguments));
    assert!(ended.status.success(), "{arguments:?}: {ended:?}");
    said(&ended)
}

#[test]
fn a_command_needs_no_dashes_before_it() {
    let server = Server::start();
    for (arguments, written) in [
        (&["run", "lock", "echo", "-n", "x"][..], "x"),
        (&["run", "--no-wait", "lock", "echo", "--json"], "--json\n"),
        (&["run", "lock", "--no-wait", "echo", "x"], "x\n"),
        (
            &["run", "lock", "echo", "a", "--", "--wait"],
            "a -- --wait\n",
        ),
        (&["run", "lock", "--", "echo", "--", "-x"], "-- -x\n"),
        (&["run", "--wait", "1", "--", "lock", "echo", "-x"], "-x\n"),
        (&["run", "--", "-lock", "printenv", "LOCK_KEY"], "-lock\n"),
        (&["run", "--", "-lock", "--", "echo", "-x"], "-x\n"),
    ] {
        assert_eq!(ran(&server, arguments), written, "{arguments:?}");
    }
}

#[test]
fn a_line_is_run_by_the_users_shell() {
    let server = Server::start();
    let line = ["run", "-c", "echo $LOCK_KEY; exit 0", "lock"];
    assert_eq!(ran(&server, &line), "lock\n");
    assert_eq!(ran(&server, &["run", "lock", "-c", "echo x | cat"]), "x\n");
    let dir = tempfile::tempdir().unwrap();
    let shell = file(&dir, "shell", "#!/bin/sh\necho mine \"$@\"\n", 0o700);
    let mut mine = lockctl(&server);
    mine.env("SHELL", shell).args(["run", "lock", "-c", "a b"]);
    assert_eq!(said(&output(&mut mine)), "mine -c a b\n");
    let mut none = lockctl(&server);
    none.env_remove("SHELL")
        .args(["run", "lock", "-c", "echo $0"]);
    assert_eq!(said(&output(&mut none)), "sh\n");
    let both = ["run", "-c", "true", "lock", "true"];
    assert_eq!(output(lockctl(&server).args(both)).status.code(), Some(125));
}

#[test]
fn the_command_is_told_its_lock() {
    let server = Server::start();
    let script = "echo $LOCK_KEY; echo $LOCK_OWNER; echo $LOCK_TOKEN; redis-cli -p $0 HGETALL a:b";
    let port = server.addr().port().to_string();
    let told = ran(&server, &["run", "a:b", "sh", "-c", script, &port]);
    let [key, owner, token, rest @ ..] = &told.lines().collect::<Vec<_>>()[..] else {
        panic!("{told}");
    };
    assert_eq!(*key, "a:b");
    let mut stored = rest.to_vec();
    stored.sort_unstable();
    let mut expected = vec![*owner, "1", "@fence", *token];
    expected.sort_unstable();
    assert_eq!(stored, expected);
}

/// A file with this in it and this mode.
fn file(dir: &TempDir, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

/// A URL with a user's password, which the server lets in.
fn url_with_password(server: &Server) -> String {
    let user = server
        .client()
        .call("ACL SETUSER app on >sesame ~* &* +@all");
    assert_eq!(user, redis_lock_testing::Okay);
    // Nobody gets in without.
    server.client().call("ACL SETUSER default off");
    format!("redis://app:sesame@{}", server.addr())
}

#[test]
fn the_command_is_not_told_the_password_in_a_file() {
    let server = Server::start();
    let url = url_with_password(&server);
    let mut by_option = lockctl(&server);
    by_option.env_remove("REDIS_URL").args(["--url", &url]);
    let dir = tempfile::tempdir().unwrap();
    let mut by_file = lockctl(&server);
    by_file.env_remove("REDIS_URL");
    by_file
        .arg("--url-file")
        .arg(file(&dir, "url", &url, 0o600));
    for mut lockctl in [by_option, by_file] {
        let ended = output(lockctl.args(["run", "lock", "env"]));
        let told = said(&ended);
        assert!(told.contains("LOCK_TOKEN="), "{ended:?}");
        assert!(!told.contains("sesame"), "{told}");
        assert!(!told.contains("REDIS_URL"), "{told}");
    }
}

#[test]
fn the_urls_in_the_environment_stay_for_the_command() {
    let server = Server::start();
    let url = format!("redis://{}", server.addr());
    let inner = "$LOCKCTL run inner printenv LOCK_KEY REDIS_URL LOCKCTL_URL";
    let ran = |redis_url: &str, lockctl_url: &str| {
        let mut command = lockctl(&server);
        command
            .env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl"))
            .env("REDIS_URL", redis_url)
            .env("LOCKCTL_URL", lockctl_url)
            .args(["run", "outer", "sh", "-c", inner]);
        said(&output(&mut command))
    };
    // The command is an application of another server's.
    let own = "redis://its-own";
    assert_eq!(ran(own, &url), format!("inner\n{own}\n{url}\n"));
    let mut without = lockctl(&server);
    without.args(["run", "lock", "printenv", "REDIS_URL"]);
    assert_eq!(said(&output(&mut without)), format!("{url}\n"));
}

#[test]
fn a_url_of_the_commands_own_is_left_to_it() {
    let server = Server::start();
    let own = "redis://its-own";
    let mut lockctl = lockctl(&server);
    lockctl.env("REDIS_URL", own);
    lockctl.args(["--url", &format!("redis://{}", server.addr())]);
    let ended = output(lockctl.args(["run", "lock", "printenv", "REDIS_URL"]));
    assert_eq!(said(&ended).trim(), own);
}

#[test]
fn a_file_with_a_url_is_for_its_owner_alone() {
    let server = Server::start();
    let url = format!("{}\n", url_with_password(&server));
    let dir = tempfile::tempdir().unwrap();
    let attempt = |path: PathBuf| {
        let mut lockctl = lockctl(&server);
        lockctl.args(["run", "--json", "--url-file"]).arg(path);
        output(lockctl.args(["lock", "true"]))
    };
    for (mode, code) in [(0o600, 0), (0o400, 0), (0o640, 125), (0o604, 125)] {
        let ended = attempt(file(&dir, &format!("{mode:o}"), &url, mode));
        assert_eq!(ended.status.code(), Some(code), "{mode:o}: {ended:?}");
        let told = complained(&ended);
        assert!(!told.contains("sesame"), "{told}");
        let is_refused = told.contains(r#""code":"URLFILE""#) && told.contains("chmod 600");
        assert_eq!(is_refused, code == 125, "{told}");
    }
    for nothing in [dir.path().join("none"), file(&dir, "empty", "\n", 0o600)] {
        let ended = attempt(nothing);
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
        assert!(complained(&ended).contains(r#""code":"URLFILE""#));
    }
}

#[test]
fn wrong_usage_is_told_in_json_too() {
    let server = Server::start();
    for wrong in [
        &["run", "--json"][..],
        &["--json", "run", "--shared", "--limit", "2", "lock", "true"],
        &["ls", "--no-such", "--json"],
        &["run", "--json", "--kill-after", "20s", "lock", "true"],
    ] {
        let ended = output(lockctl(&server).args(wrong));
        assert_eq!(ended.status.code(), Some(125), "{wrong:?}");
        let told: serde_json::Value = serde_json::from_str(&complained(&ended)).unwrap();
        assert_eq!(told["error"]["code"], "USAGE", "{told}");
    }
}

#[test]
fn two_ways_to_name_the_server_are_one_too_many() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let url = file(&dir, "url", "redis://127.0.0.1", 0o600);
    let mut lockctl = lockctl(&server);
    lockctl.args(["--url", "redis://127.0.0.1", "ls", "--url-file"]);
    let ended = output(lockctl.arg(url));
    assert_eq!(ended.status.code(), Some(125));
    assert!(complained(&ended).contains("--url-file"), "{ended:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn help_that_can_not_be_written_is_a_failure() {
    let server = Server::start();
    for words in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut lockctl = lockctl(&server);
        let ended = lockctl.args(words).stdout(full).status().unwrap();
        assert_eq!(ended.code(), Some(125), "{words:?}");
    }
}
