//! `rediss://`: lockctl talks to a server whose certificate it trusts, and to no
//! other.
#![cfg(feature = "tls-rustls")]

mod support;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Output;

use redis_lock_testing::{Authority, Server, Setup};

use support::{complained, output, said};

const HERE: &str = "127.0.0.1";

/// `lockctl` for this server, with these options.
fn lockctl(server: &Server, options: &[&OsStr], arguments: &[&str]) -> Output {
    let mut command = support::heedful(env!("CARGO_BIN_EXE_lockctl"));
    let url = format!("rediss://{}", server.tls_addr());
    command.args(["--json", "--url", &url]).args(options);
    output(command.args(arguments))
}

fn trusting(authority: &Path) -> [&OsStr; 2] {
    ["--cacert".as_ref(), authority.as_os_str()]
}

#[track_caller]
fn assert_trusted(server: &Server, options: &[&OsStr]) {
    let ran = lockctl(server, options, &["run", "lock", "echo", "x"]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(said(&ran), "x\n");
    for subcommand in [&["ls"][..], &["top", "--times", "1"]] {
        let ended = lockctl(server, options, subcommand);
        assert!(ended.status.success(), "{subcommand:?}: {ended:?}");
    }
}

/// All refuse it at once, and what waits without end does so, too.
#[track_caller]
fn assert_refused(server: &Server, options: &[&OsStr], why: &str) {
    for subcommand in [
        &["run", "lock", "echo", "never"][..],
        &["run", "--no-wait", "lock", "echo", "never"],
        &["ls"],
        &["break", "lock", "--force"],
    ] {
        let ended = lockctl(server, options, subcommand);
        assert_eq!(ended.status.code(), Some(125), "{subcommand:?}: {ended:?}");
        assert_eq!(said(&ended), "");
        let told = complained(&ended);
        assert!(told.to_lowercase().contains(why), "{told}");
    }
}

#[test]
fn the_authority_in_the_file_is_trusted_and_no_other() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let certificate = authority.certificate(HERE);
    let server = Setup::tested().tls(&certificate, None).start().unwrap();
    assert_trusted(&server, &trusting(authority.pem.path()));
    assert_refused(&server, &trusting(stranger.pem.path()), "certificate");
    // None of the system's has signed it.
    assert_refused(&server, &[], "certificate");
}

#[test]
fn a_certificate_of_another_name_or_time_is_refused() {
    let authority = Authority::new();
    let elsewhere = authority.certificate("elsewhere.example");
    for wrong in [elsewhere, authority.certificate_until(HERE, 2002)] {
        let server = Setup::tested().tls(&wrong, None).start().unwrap();
        assert_refused(&server, &trusting(authority.pem.path()), "certificate");
    }
}

#[test]
fn a_server_that_asks_is_shown_a_certificate() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let certificate = authority.certificate(HERE);
    let setup = Setup::tested().tls(&certificate, Some(&clients));
    let server = setup.start().unwrap();
    let trusted = authority.pem.path();
    let right = clients.certificate("client");
    let wrong = authority.certificate("client");
    let [right, wrong] = [&right, &wrong].map(|certificate| {
        let [option, file] = trusting(trusted);
        let shown = [
            "--cert".as_ref(),
            certificate.pem.path().as_os_str(),
            "--key".as_ref(),
            certificate.key.path().as_os_str(),
        ];
        [vec![option, file], shown.to_vec()].concat()
    });
    assert_trusted(&server, &right);
    for refused in [&wrong[..], &trusting(trusted)] {
        let ended = lockctl(&server, refused, &["ls"]);
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    }
}

#[test]
fn certificates_that_would_not_be_used_are_refused() {
    let authority = Authority::new();
    let file = authority.pem.path();
    let file = file.to_str().unwrap();
    for (options, code) in [
        (
            &["--url", "redis://127.0.0.1", "--cacert", file][..],
            "USAGE",
        ),
        (&["--url", "rediss://127.0.0.1", "--cert", file], "USAGE"),
        (&["--url", "rediss://127.0.0.1", "--key", file], "USAGE"),
        (&["--url", "rediss://a", "--cacert", "/none"], "CERTIFICATE"),
    ] {
        let mut command = support::heedful(env!("CARGO_BIN_EXE_lockctl"));
        let ended = output(command.args(["ls", "--json"]).args(options));
        assert_eq!(ended.status.code(), Some(125), "{options:?}");
        let told = complained(&ended);
        assert!(told.contains(&format!(r#""code":"{code}""#)), "{told}");
    }
}
