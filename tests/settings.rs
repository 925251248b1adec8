//! Settings, and what the module says while it loads.

use redis::Value;
use redis_lock_testing::scene::at;
use redis_lock_testing::{Play, Server, Setup, binary, module, text};

#[test]
fn settings_have_defaults_and_can_be_changed_within_their_range() {
    let module = module();
    let server = Server::start_plain(&["--loadmodule", module.to_str().unwrap()]);
    let mut play = Play::on(server);
    for (name, default, too_small, too_large) in [
        ("default-lease", "30000", "0", "315360000001"),
        ("max-waiters", "65536", "0", "1000000001"),
        ("max-holders", "1024", "0", "65537"),
        ("max-places", "1000000", "0", "1000000001"),
        ("claim-timeout", "2000", "0", "315360000001"),
        ("recheck-interval", "500", "0", "315360000001"),
        ("max-lease", "315360000000", "0", "315360000001"),
    ] {
        for wrong in [too_small, too_large, "-1", "many"] {
            play.run(&format!("o > CONFIG SET lock.{name} {wrong} -> !ERR"));
        }
        play.run(&format!(
            "o > CONFIG GET lock.{name} -> ['lock.{name}', '{default}']
            o > CONFIG SET lock.{name} 7 -> OK
            o > CONFIG GET lock.{name} -> ['lock.{name}', '7']"
        ));
    }
}

#[test]
fn settings_can_be_given_to_loadmodule() {
    let module = module();
    let options = ["--loadmodule", module.to_str().unwrap()];
    let args = ["default-lease", "5000", "lock.max-waiters", "3"];
    let server = Server::start_plain(&[&options[..], &args].concat());
    Play::on(server).run(
        "o > LOCK.ACQUIRE k a
        o > PTTL k -> 4000..5000
        o > CONFIG GET lock.max-waiters -> ['lock.max-waiters', '3']",
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
            "needs one of 'auto', 'no', 'publish', 'spublish'",
        ),
        (["colour", "red"], "unknown module argument 'colour'"),
    ] {
        let setup = Setup::of(binary()).module(module(), &args);
        let log = setup.start().err().unwrap().to_string();
        assert!(log.contains(reason), "{log}");
    }
}

#[test]
fn a_command_that_is_needed_and_missing_is_logged() {
    for command in "RESTORE HSET HDEL PEXPIREAT DEL CONFIG INFO PING REPLCONF".split(' ') {
        for name in ["", "another"] {
            let renamed = ["--rename-command", command, name];
            let setup = Setup::of(binary()).module(module(), &[]).options(&renamed);
            let log = setup.start().err().unwrap().to_string();
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
    let server = Server::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    assert!(server.log().contains(warning));

    let server = Server::start();
    assert!(!server.log().contains(warning));
    server
        .client()
        .call("CONFIG SET maxmemory-policy volatile-ttl");
    assert!(server.log().contains(warning));
}

#[test]
fn the_commands_tell_the_server_their_flags_and_keys() {
    let server = Server::start();
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
        let infos = client.call(&format!("COMMAND INFO {command}"));
        let Some(Value::Array(known)) = at(&infos, "0.2") else {
            panic!("{command}: {infos:?}");
        };
        for flag in flags {
            let flag = Value::SimpleString((*flag).into());
            assert!(known.contains(&flag), "{command}: {flag:?} {known:?}");
        }
        // The server would ask the module for them on its other threads, too.
        let movable = Value::SimpleString("movablekeys".into());
        assert!(!known.contains(&movable), "{command}");
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
    let server = Server::start();
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
    let server = Server::start();
    let listed = format!("{:?}", server.client().call("CONFIG GET lock.*"));
    assert!(listed.contains("max-waiters"), "{listed}");
    assert!(!listed.contains("recheck-interval"), "{listed}");
}

#[test]
fn a_module_that_is_loaded_again_has_its_defaults() {
    let mut play = Play::start();
    let defaults = [
        ("default-lease", "30000", "1234"),
        ("deadlock-detection", "yes", "no"),
        ("redisson-notify", "auto", "publish"),
    ];
    for (name, _, other) in defaults {
        play.run(&format!("o > CONFIG SET lock.{name} {other} -> OK"));
    }
    play.run(&format!(
        "o > MODULE UNLOAD lock -> OK \n o > MODULE LOAD {} -> OK",
        module().display()
    ));
    for (name, default, _) in defaults {
        play.run(&format!(
            "o > CONFIG GET lock.{name} -> ['lock.{name}', '{default}']"
        ));
    }
}

/// Nor does anybody else, by request or by default.
#[test]
fn who_waits_gets_no_longer_lease_than_is_the_longest_by_then() {
    Play::held().run(
        "w > LOCK.ACQUIRE k w BLOCKED -> ..
        o > CONFIG SET lock.max-lease 5000 -> OK
        h > LOCK.RELEASE k h -> 1
        w < token
        o > PTTL k -> 1..5000
        o > LOCK.ACQUIRE l a LEASE 5001 -> !ERR LEASE is longer
        o > LOCK.RENEW k w LEASE 5001 -> !ERR LEASE is longer
        o > LOCK.ACQUIRE l a LEASE 5000 -> token
        o > LOCK.ACQUIRE other a -> token
        o > PTTL other -> 1..5000
        o > LOCK.RENEW l a -> 1
        o > PTTL l -> 1..5000",
    );
}
