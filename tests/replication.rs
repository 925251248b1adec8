//! What replicas and the AOF get: core commands, one unit a transition.

use redis::Value;
use redis_lock_testing::{Client, Int, Play, Server, eventually};

/// A connection that the server takes for a replica.
struct Stream {
    client: Client,
}

impl Stream {
    fn of(server: &Server) -> Self {
        let mut client = server.client();
        let mut observer = server.client();
        // So the server tells the length of its snapshot before that.
        observer.call("CONFIG SET repl-diskless-sync no");
        client.send("SYNC");
        let mut header = Vec::new();
        // It sends empty lines while it prepares that.
        while !header.starts_with(b"$") || !header.ends_with(b"\n") {
            header.retain(|byte| *byte != b'\n');
            header.extend(client.connection.skip(1).unwrap());
        }
        let length = String::from_utf8_lossy(&header[1..]);
        let length = length.trim().parse().unwrap();
        client.connection.skip(length).unwrap();
        eventually("the replica is online", || {
            observer.bulk("INFO replication").contains("state=online")
        });
        let mut stream = Self { client };
        // What the server says by itself at the start is not of interest.
        observer.call("SET begin 1");
        while stream.next() != "SET begin 1" {}
        stream
    }

    /// The next command, without the server's own `PING`.
    fn next(&mut self) -> String {
        loop {
            let Value::Array(words) = self.client.reply() else {
                panic!("the stream holds something that is no command");
            };
            let words: Vec<String> = words
                .into_iter()
                .map(|word| match word {
                    Value::BulkString(word) if word.first() == Some(&HASH) => dumped(&word),
                    Value::BulkString(word) => String::from_utf8(word).unwrap(),
                    other => panic!("{other:?} is no word"),
                })
                .collect();
            let command = words.join(" ");
            if !command.eq_ignore_ascii_case("PING") && !command.starts_with("REPLCONF") {
                return command;
            }
        }
    }

    /// The stream must go on with exactly these commands.
    #[track_caller]
    fn assert_next(&mut self, expected: &[String]) {
        for command in expected {
            assert_eq!(&self.next(), command);
        }
    }
}

/// The first byte of a hash that is dumped, and of nothing else in the stream.
const HASH: u8 = 4;

/// The short words of a hash, as it is dumped with its type and the number of its fields
/// in front, and its version and a checksum behind.
fn dumped(hash: &[u8]) -> String {
    let (mut left, mut words) = (&hash[2..hash.len() - 10], Vec::new());
    while let Some((&length, rest)) = left.split_first() {
        let (word, rest) = rest.split_at(length.into());
        words.push(String::from_utf8_lossy(word));
        left = rest;
    }
    format!("{{{}}}", words.join(" "))
}

/// That this owner was granted the lock that it holds now.
fn grant(client: &mut Client, owner: &str) -> String {
    let token = client.bulk("HGET k @fence");
    let end = client.int("PEXPIRETIME k");
    format!("RESTORE k {end} {{@fence {token} {owner} 1}} REPLACE ABSTTL")
}

fn unit(commands: &[String]) -> Vec<String> {
    let mut unit = vec!["MULTI".to_string()];
    unit.extend_from_slice(commands);
    unit.push("EXEC".into());
    unit
}

#[test]
fn each_transition_is_one_unit_of_core_commands() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);

    client.call("LOCK.ACQUIRE k a");
    stream.assert_next(&[grant(&mut client, "a")]);

    client.call("LOCK.ACQUIRE k a LEASE 60000");
    let end = client.int("PEXPIRETIME k");
    stream.assert_next(&unit(&["HSET k a 2".into(), format!("PEXPIREAT k {end}")]));

    client.call("LOCK.ACQUIRE k a LEASE 1000");
    stream.assert_next(&["HSET k a 3".into()]);

    client.call("LOCK.RELEASE k a");
    stream.assert_next(&["HSET k a 2".into()]);

    client.call("LOCK.RENEW k a LEASE 90000");
    let end = client.int("PEXPIRETIME k");
    stream.assert_next(&[format!("PEXPIREAT k {end}")]);

    client.call("LOCK.RELEASE k a ALL");
    stream.assert_next(&["DEL k".into()]);
}

#[test]
fn what_changes_nothing_is_not_replicated() {
    let server = Server::start();
    let mut client = server.client();
    let mut waiter = server.client();
    client.call("LOCK.ACQUIRE k a HOLD 1 LEASE 60000");
    let mut stream = Stream::of(&server);
    client.call("LOCK.ACQUIRE k a HOLD 1 LEASE 1000");
    client.call("LOCK.ACQUIRE k b");
    client.call("LOCK.RELEASE k b");
    client.call("LOCK.RENEW k b");
    client.call("LOCK.RELEASE k a HOLD 2");
    client.call("LOCK.RELEASE k a FENCE 1");
    client.call("LOCK.ACQUIRE k a LEASE 0");
    waiter.call("LOCK.ACQUIRE k b BLOCK 5");
    client.call("SET done 1");
    stream.assert_next(&["SET done 1".into()]);
}

/// The replica acknowledges what it has had so far.
#[test]
fn who_waits_for_replicas_after_a_confirmation_waits_for_what_it_confirms() {
    Play::start().with_replica().run(
        "r stops
        h > LOCK.ACQUIRE k a LEASE 60000 -> A
        one > LOCK.ACQUIRE k a HOLD 1 LEASE 1 -> A
        one > WAIT 1 50 -> 0
        two > LOCK.ACQUIRE k a HOLD 1 LEASE 59000 -> A
        two > WAIT 1 50 -> 0
        r goes on
        three > LOCK.ACQUIRE k a HOLD 1 LEASE 1 -> A
        three > WAIT 1 0 -> 1",
    );
}

#[test]
fn a_guarded_command_and_what_ended_before_it_are_one_unit() {
    let server = Server::start();
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k over LEASE 200 SHARED");
    let token = client.int("LOCK.ACQUIRE k a LEASE 600000 SHARED");
    client.call("DEBUG SLEEP 0.25");
    let mut stream = Stream::of(&server);
    client.call(&format!("LOCK.GUARD k {token} INCR x"));
    stream.assert_next(&unit(&["HDEL k over @permit:over".into(), "INCR x".into()]));
    client.call(&format!("LOCK.GUARD k {token} SET x 5"));
    stream.assert_next(&["SET x 5".into()]);
    client.call(&format!("LOCK.GUARD k {token} GET x"));
    client.call("LOCK.GUARD k 5 SET x 6");
    client.call(&format!("LOCK.GUARD k {token} SPOP none"));
    client.call("SET done 1");
    stream.assert_next(&["SET done 1".into()]);
}

/// Those whose leases are over go with the last of them.
#[test]
fn a_release_and_the_grant_that_follows_are_one_command() {
    for mode in ["", "SHARED"] {
        let mut play = Play::start();
        if mode == "SHARED" {
            play.run(
                "o > LOCK.ACQUIRE k over LEASE 1 SHARED
                o > LOCK.ACQUIRE k too LEASE 2 SHARED
                o > DEBUG SLEEP 0.01",
            );
        }
        play.run(&format!(
            "o > LOCK.ACQUIRE k a LONG {mode}
            b > LOCK.ACQUIRE k b LEASE 60000 BLOCK 0 -> .."
        ));
        let mut stream = Stream::of(&play.server);
        play.run("o > LOCK.RELEASE k a");
        stream.assert_next(&[handed_on_to_b(play.client("o"))]);
    }
}

#[test]
fn in_a_transaction_and_in_a_script_a_grant_is_one_command_of_the_unit() {
    let server = Server::start();
    let mut client = server.client();
    let mut stream = Stream::of(&server);
    for command in ["MULTI", "SET x 1", "LOCK.ACQUIRE k a", "SET x 2", "EXEC"] {
        client.call(command);
    }
    let granted = grant(&mut client, "a");
    stream.assert_next(&unit(&["SET x 1".into(), granted, "SET x 2".into()]));
    client.call("LOCK.BREAK k");
    stream.assert_next(&["DEL k".into()]);
    let script = "redis.call('SET', 'x', '1') redis.call('LOCK.ACQUIRE', KEYS[1], 'b')";
    client.words(&[b"EVAL", script.as_bytes(), b"1", b"k"]);
    let granted = grant(&mut client, "b");
    stream.assert_next(&unit(&["SET x 1".into(), granted]));
}

#[test]
fn after_the_end_of_a_lease_and_after_del_the_grant_is_one_command() {
    let server = Server::start();
    let (mut client, mut waiter) = (server.client(), server.client());
    for freed_by in ["PEXPIRE k 20", "DEL k"] {
        client.call("LOCK.ACQUIRE k a");
        waiter.send("LOCK.ACQUIRE k b LEASE 60000 BLOCK 0");
        server.await_info("blocked_clients", 1);
        let mut stream = Stream::of(&server);
        client.call(freed_by);
        if freed_by.starts_with("PEXPIRE") {
            assert!(stream.next().starts_with("PEXPIREAT k "));
        }
        let granted = handed_on_to_b(&mut client);
        client.call("SET done 1");
        let mut commands = Vec::new();
        while commands.last().is_none_or(|last| last != "SET done 1") {
            // Valkey says UNLINK for DEL.
            commands.push(stream.next().replace("UNLINK", "DEL"));
        }
        // Whether the server deletes an expired key by itself or when the module opens it
        // decides whether that is one unit.
        commands.retain(|command| command != "MULTI" && command != "EXEC");
        assert_eq!(commands, ["DEL k".into(), granted, "SET done 1".into()]);
        waiter.reply();
        waiter.call("LOCK.RELEASE k b");
    }
}

/// Waits until b holds the lock. What must have been replicated then.
fn handed_on_to_b(client: &mut Client) -> String {
    eventually("b holds the lock", || client.call("HEXISTS k b") == Int(1));
    grant(client, "b")
}

#[test]
fn a_replica_with_the_module_or_without_holds_the_same_data() {
    let server = Server::start();
    let replicas = [false, true].map(|with_module| server.replica(with_module));
    exercise(&server);
    for replica in &replicas {
        server.assert_same_data(replica);
    }
}

/// Some of everything, on ten locks, by eight clients at once.
fn exercise(server: &Server) {
    let threads: Vec<_> = (0..8)
        .map(|i| {
            let mut client = server.client();
            std::thread::spawn(move || {
                for round in 0..100 {
                    let (key, owner) = ((i + round) % 10, format!("owner{i}"));
                    let lease = if round % 5 == 0 { 3 } else { 30_000 };
                    client.call(&format!(
                        "LOCK.ACQUIRE lock{key} {owner} LEASE {lease} BLOCK 20"
                    ));
                    match round % 4 {
                        0 => client.call(&format!("LOCK.ACQUIRE lock{key} {owner}")),
                        1 => client.call(&format!("LOCK.RENEW lock{key} {owner}")),
                        2 => client.call(&format!("DEL lock{key}")),
                        _ => Value::Nil,
                    };
                    if round % 3 != 0 {
                        client.call(&format!("LOCK.RELEASE lock{key} {owner} ALL"));
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // Something must be there to compare.
    let mut client = server.client();
    client.call("DEL lock0");
    client.call("LOCK.ACQUIRE lock0 last");
    take_for_owners_of_all_lengths(&mut client);
}

/// Of any bytes, and as long as they may be.
fn take_for_owners_of_all_lengths(client: &mut Client) {
    for length in [1, 2, 3, 4, 63, 64, 65, 1024] {
        for byte in [0, b'\n', b'1', b'x', 0xff] {
            let (key, owner) = (format!("{length}:{byte}"), vec![byte; length]);
            let words: [&[u8]; 5] = [b"LOCK.ACQUIRE", key.as_bytes(), &owner, b"LEASE", b"600000"];
            let token = client.words(&words);
            assert!(matches!(token, Value::Int(1..)), "{key}: {token:?}");
        }
    }
}

/// Written as it was, or anew.
#[test]
fn the_aof_brings_a_lock_back_with_owner_count_token_and_lease() {
    let rewrite = "o > BGREWRITEAOF
        until aof_rewrite_scheduled = 0
        until aof_rewrite_in_progress = 0
        logged Background AOF rewrite finished successfully";
    for (fsync, then) in [("always", ""), ("everysec", ""), ("always", rewrite)] {
        let server = Server::start_with(&["--appendonly", "yes", "--appendfsync", fsync]);
        take_for_owners_of_all_lengths(&mut server.client());
        Play::on(server).run(&format!(
            "o > LOCK.ACQUIRE k a LONG -> A
            {then}
            o > LOCK.ACQUIRE k a LONG -> A
            o > PEXPIRETIME k -> :end
            o > DEBUG DIGEST -> :digest
            until aof_buffer_length = 0
            crash
            o > DEBUG DIGEST -> $digest
            o > PEXPIRETIME k -> $end
            o > HGET k a -> '2'
            o > LOCK.ACQUIRE k b -> null
            o > LOCK.ACQUIRE k a HOLD 2 -> A
            o > LOCK.RELEASE k a ALL -> 1
            o > LOCK.ACQUIRE k b -> B"
        ));
    }
}
