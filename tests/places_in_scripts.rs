//! Places in transactions, scripts and pipelines, where no client can block.

use redis::Value;
use redis_lock_testing::{Client, Int, Play, Told, text};

/// A script that asks for a place for `k`.
fn place(owner: &str, options: &str) -> String {
    let ask = format!("'LOCK.ACQUIRE','k','{owner}','QUEUE',60000,'ch'{options}");
    format!("EVAL \"return redis.pcall({ask})\" 0")
}

#[test]
fn a_transaction_takes_places_and_what_it_frees_is_told() {
    let mut play = Play::held().with_replica();
    play.run(
        "h >> LOCK.ACQUIRE k a PLACED | LOCK.ACQUIRE k b PLACED BLOCK 0 -> 0 | !ERR
        h >> LOCK.ACQUIRE k b PLACED | LOCK.RELEASE k h | LOCK.RELEASE k a -> 0 | 1 | 1
        h >> LOCK.ACQUIRE k c PLACED | LOCK.ACQUIRE l c PLACED -> 0 | token
        ears heard a token
        ears heard b token
        ears heard nothing
        queue k = c",
    );
    play.run("in step");
}

#[test]
fn a_script_takes_a_place_that_outlives_its_caller_and_what_it_frees_is_told() {
    let [plain, session] = [place("a", ""), place("b", ",'SESSION'")];
    Play::held().run(&format!(
        "caller > {plain} -> 0
        caller closes
        h > EVAL \"return redis.call('LOCK.RELEASE','k','h')\" 0 -> 1
        ears heard a A
        h > {plain} -> A
        h > {session} -> !ERR
        queue k = nobody"
    ));
}

/// All that comes until the reply to a `PING`, arrays taken apart.
#[track_caller]
fn until_pong(client: &mut Client) -> Vec<Value> {
    client.send("PING");
    let mut all = Vec::new();
    loop {
        match client.connection.reply().unwrap() {
            Value::SimpleString(pong) if pong == "PONG" => return all,
            Value::Array(parts) => all.extend(parts),
            other => all.push(other),
        }
    }
}

/// Its own message may come before the reply of the command that caused it, on Redis 7.0
/// even within the reply of `EXEC`. So only what comes in all is looked at.
#[test]
fn a_connection_that_hears_what_its_own_transaction_caused_hears_it_once() {
    let mut play = Play::held();
    play.run(
        "ears > LOCK.ACQUIRE k a PLACED -> 0
        ears > MULTI -> OK
        ears > LOCK.RELEASE k h -> QUEUED
        ears > ECHO after -> QUEUED
        ears sends EXEC",
    );
    let all = until_pong(play.client("ears"));
    assert_eq!(all.len(), 3, "{all:?}");
    let mut told = None;
    for value in all {
        match value {
            Value::Push { data, .. } => {
                let [Value::BulkString(channel), Value::BulkString(message)] = &data[..] else {
                    panic!("{data:?}");
                };
                assert_eq!(told.replace(Told::parse(channel, message).unwrap()), None);
            }
            reply => assert!(reply == Int(1) || reply == text("after"), "{reply:?}"),
        }
    }
    let fence = told.unwrap().token();
    play.run(&format!("h > HGET k @fence -> '{fence}'"));
}

#[test]
fn a_connection_hears_the_message_of_its_own_release_beside_the_reply() {
    Play::held().run(
        "ears > LOCK.ACQUIRE k a PLACED -> 0
        ears > LOCK.RELEASE k h -> 1
        ears heard a A
        ears > LOCK.RENEW k a LONG FENCE $A -> 1",
    );
}

#[test]
fn a_pipeline_of_places_is_replied_in_order_on_one_connection() {
    let mut play = Play::held();
    let all = |command: &dyn Fn(usize) -> String, reply: &str| {
        let commands: Vec<String> = (0..1000).map(command).collect();
        let replies = [reply; 1000].join(" | ");
        format!("ears > {} -> {replies}", commands.join(" | "))
    };
    play.run(&all(&|i| format!("LOCK.ACQUIRE k {i} PLACED"), "0"));
    play.run("ears > LOCK.RELEASE k h -> 1");
    play.run(&all(&|i| format!("LOCK.RELEASE k {i}"), "1"));
    play.run("each 0..999: ears heard # T#");
    play.run("ears heard nothing \n h > LOCK.RELEASE k 999 -> null");
}

/// A script has no connection, and its client no address. One turn of the event loop:
/// nothing looks at the lock in between.
#[test]
fn a_place_that_a_script_asked_for_and_another_script_finds_slow_is_logged() {
    let mut play = Play::held();
    play.run(&format!(
        "h > CONFIG SET lock.log-slow-wait 20
        h > {} -> 0
        h > DEBUG SLEEP 0.05 | {} -> OK | 0",
        place("a", ""),
        place("b", "")
    ));
    assert!(play.log().contains("slow wait: 'a' (client id="));
}
