//! Settings, and what the module says while it loads.

use redis::Value;
use redis_lock_testing::{TestServer, module, status, text};

#[test]
fn settings_have_defaults_and_can_be_changed_within_their_range() {
    let module = redis_lock_testing::module();
    let server = TestServer::start_plain(&["--loadmodule", module.to_str().unwrap()]);
    let mut client = server.client();
    for (name, default, too_small, too_large) in [
        ("lock.default-lease", "30000", "0", "315360000001"),
        ("lock.max-waiters", "65536", "0", "1000000001"),
        ("lock.max-holders", "1024", "0", "65537"),
        ("lock.max-places", "1000000", "0", "1000000001"),
        ("lock.claim-timeout", "2000", "0", "315360000001"),
        ("lock.recheck-interval", "500", "0", "315360000001"),
        ("lock.max-lease", "315360000000", "0", "315360000001"),
    ] {
        let get = format!("CONFIG GET {name}");
        let current = |value: &str| Value::Array(vec![text(name), text(value)]);
        assert_eq!(client.call(&get), current(default));
        for wrong in [too_small, too_large, "-1", "many"] {
            assert!(
                client
                    .error(&format!("CONFIG SET {name} {wrong}"))
                    .starts_with("ERR ")
            );
        }
        assert_eq!(client.call(&get), current(default));
        assert_eq!(client.call(&format!("CONFIG SET {name} 7")), status("OK"));
        assert_eq!(client.call(&get), current("7"));
    }
}

#[test]
fn settings_can_be_given_to_loadmodule() {
    let module = redis_lock_testing::module();
    let module = module.to_str().unwrap();
    let args = ["default-lease", "5000", "lock.max-waiters", "3"];
    let options = [["--loadmodule", module].as_slice(), &args].concat();
    let server = TestServer::start_plain(&options);
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a");
    let ttl = client.int("PTTL k");
    assert!((4_000..=5_000).contains(&ttl), "{ttl}");
    assert_eq!(
        client.call("CONFIG GET lock.max-waiters"),
        Value::Array(vec![text("lock.max-waiters"), text("3")])
    );
}

#[test]
fn a_wrong_module_argument_keeps_the_server_from_starting_and_the_log_says_why() {
    for (args, reason) in [
        (
            ["default-lease", "0"],
            "needs a number from 1 to 315360000000",
        ),
        (
            ["max-waiters", "many"],
            "needs a number from 1 to 1000000000",
        ),
        (
            ["redisson-notify", "loudly"],
            "needs 'auto', 'no', 'publish' or 'spublish'",
        ),
        (["colour", "red"], "unknown module argument 'colour'"),
    ] {
        let log = TestServer::log_of_failed_start(&args);
        assert!(log.contains(reason), "{log}");
    }
}

#[test]
fn a_command_that_is_needed_and_missing_is_logged() {
    for command in [
        "RESTORE",
        "HSET",
        "HDEL",
        "PEXPIREAT",
        "DEL",
        "CONFIG",
        "INFO",
        "PING",
        "REPLCONF",
    ] {
        for name in ["", "another"] {
            let renamed = ["--rename-command", command, name];
            let log = TestServer::log_of_failed_start_with(&renamed, &[]);
            let said = |line: &str| {
                let mut words = line.split(|c: char| !c.is_ascii_alphabetic());
                line.contains("<lock>") && words.any(|word| word.eq_ignore_ascii_case(command))
            };
            assert!(log.lines().any(said), "{command} {name}: {log}");
        }
    }
}

#[test]
fn a_policy_that_may_evict_locks_is_warned_of_when_loading_and_when_set() {
    let warning = "the server may evict locks that are held";
    let server = TestServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    assert!(server.log().contains(warning));

    let server = TestServer::start();
    assert!(!server.log().contains(warning));
    server
        .client()
        .call("CONFIG SET maxmemory-policy volatile-ttl");
    assert!(server.log().contains(warning));
}

#[test]
fn the_commands_tell_the_server_their_flags_and_keys() {
    let server = TestServer::start();
    let mut client = server.client();
    for (command, flags) in [
        (
            "lock.acquire",
            ["write", "denyoom", "blocking", "fast"].as_slice(),
        ),
        ("lock.release", &["write", "fast"]),
        ("lock.renew", &["write", "blocking", "fast"]),
        ("lock.guard", &["write"]),
    ] {
        let Value::Array(infos) = client.call(&format!("COMMAND INFO {command}")) else {
            panic!("no list of commands");
        };
        let Value::Array(info) = &infos[0] else {
            panic!("{command} is not known");
        };
        let Value::Array(known) = &info[2] else {
            panic!("{command} has no flags");
        };
        for flag in flags {
            assert!(
                known.contains(&status(flag)),
                "{command} is not {flag}: {known:?}"
            );
        }
        // The server would ask the module for them on its other threads, too.
        assert!(!known.contains(&status("movablekeys")), "{command}");
    }
    for command in [
        "LOCK.ACQUIRE mykey owner BLOCK 0",
        "LOCK.GUARD mykey 5 SET other 1",
    ] {
        let keys = client.call(&format!("COMMAND GETKEYS {command}"));
        assert_eq!(keys, Value::Array(vec![text("mykey")]), "{command}");
    }
}

#[test]
fn the_server_documents_the_commands_with_all_their_options() {
    let server = TestServer::start();
    let mut client = server.client();
    for (command, options) in [
        (
            "lock.acquire",
            ["LEASE", "BLOCK", "HOLD", "SHARED", "LIMIT", "SESSION"].as_slice(),
        ),
        ("lock.release", &["FENCE", "HOLD", "ALL"]),
        ("lock.renew", &["LEASE", "FENCE"]),
        ("lock.guard", &["key", "token", "command", "arg"]),
    ] {
        let docs = format!("{:?}", client.call(&format!("COMMAND DOCS {command}")));
        for word in ["summary", "complexity", "since"].iter().chain(options) {
            let word = format!("{:?}", text(word));
            assert!(
                docs.contains(&word),
                "{command} says nothing of {word}: {docs}"
            );
        }
    }
}

#[test]
fn a_setting_for_tests_is_not_listed() {
    let server = TestServer::start();
    let listed = format!("{:?}", server.client().call("CONFIG GET lock.*"));
    assert!(listed.contains("max-waiters"), "{listed}");
    assert!(!listed.contains("recheck-interval"), "{listed}");
}

#[test]
fn a_module_that_is_loaded_again_has_its_defaults() {
    let server = TestServer::start();
    let mut client = server.client();
    let defaults = [
        ("lock.default-lease", "30000", "1234"),
        ("lock.deadlock-detection", "yes", "no"),
        ("lock.redisson-notify", "auto", "publish"),
    ];
    for (name, _, other) in defaults {
        assert_eq!(
            client.call(&format!("CONFIG SET {name} {other}")),
            status("OK")
        );
    }
    assert_eq!(client.call("MODULE UNLOAD lock"), status("OK"));
    let load = format!("MODULE LOAD {}", module().display());
    assert_eq!(client.call(&load), status("OK"));
    for (name, default, _) in defaults {
        let expected = Value::Array(vec![text(name), text(default)]);
        assert_eq!(client.call(&format!("CONFIG GET {name}")), expected);
    }
}

#[test]
fn who_waits_gets_no_longer_lease_than_is_the_longest_by_then() {
    let server = TestServer::start();
    let (mut client, mut waiter) = (server.client(), server.client());
    client.int("LOCK.ACQUIRE k a");
    waiter.send_and_block(&mut client, "LOCK.ACQUIRE k b LEASE 60000 BLOCK 0");
    assert_eq!(client.call("CONFIG SET lock.max-lease 5000"), status("OK"));
    assert_eq!(client.int("LOCK.RELEASE k a"), 1);
    assert!(matches!(waiter.reply(), Value::Int(_)));
    assert!(client.int("PTTL k") <= 5000);
}

#[test]
fn no_lease_is_longer_than_the_longest() {
    let server = TestServer::start();
    let mut client = server.client();
    let set = "CONFIG SET lock.max-lease 5000";
    assert_eq!(client.call(set), status("OK"));
    for command in ["LOCK.ACQUIRE k a LEASE", "LOCK.RENEW k a LEASE"] {
        let error = client.error(&format!("{command} 5001"));
        assert!(error.starts_with("ERR LEASE is longer"), "{error}");
    }
    client.int("LOCK.ACQUIRE k a LEASE 5000");
    // A longer default counts as the longest.
    client.int("LOCK.ACQUIRE other a");
    assert!(client.int("PTTL other") <= 5000);
    assert_eq!(client.int("LOCK.RENEW k a"), 1);
    assert!(client.int("PTTL k") <= 5000);
}
