//! The users that `docs/operations.md` makes may do what it says, and no more.

use std::fs;
use std::path::Path;

use redis::Value;
use redis_lock_testing::{Client, Okay, Play, Server};

/// A server with the users of the document.
fn server() -> Server {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(top.join("docs/operations.md")).unwrap();
    let server = Server::start();
    let mut client = server.client();
    let lines = document.lines();
    let users = lines.filter(|line| line.starts_with("ACL SETUSER "));
    let mut made = Vec::new();
    for line in users {
        assert_eq!(client.call(line), Okay, "{line}");
        made.push(line.split(' ').nth(2).unwrap());
    }
    assert_eq!(made, USERS);
    server
}

/// A connection of this user.
fn connect(server: &Server, user: &str) -> Client {
    let mut client = server.client();
    let let_in = client.call(&format!("AUTH {user} secret"));
    assert_eq!(let_in, Okay);
    client
}

fn is_refused(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOPERM")
}

/// What somebody may want to do, and which users may. `TOKEN` is that of a hold.
const WISHES: [(&str, &[&str]); 46] = [
    ("LOCK.ACQUIRE locks:a o", &["worker", "guarded"]),
    ("LOCK.ACQUIRE locks:a o BLOCK 1", &["worker", "guarded"]),
    ("LOCK.ACQUIRE locks:a o SESSION", &["worker", "guarded"]),
    ("LOCK.ACQUIRE locks:a o QUEUE 9 locks:ch", &["worker"]),
    ("LOCK.ACQUIRE locks:a o QUEUE 9 other:ch", &[]),
    ("LOCK.ACQUIRE other:a o", &[]),
    ("LOCK.RENEW locks:a o", &["worker", "guarded"]),
    ("LOCK.RENEW other:a o", &[]),
    ("LOCK.RELEASE locks:a o", &["worker", "guarded"]),
    ("LOCK.RELEASE other:a o", &[]),
    (
        "LOCK.GUARD locks:held TOKEN HSET orders:1 f v",
        &["guarded"],
    ),
    ("LOCK.GUARD locks:held TOKEN HSET other:1 f v", &[]),
    ("LOCK.GUARD locks:held TOKEN DEL orders:1", &[]),
    ("LOCK.GUARD other:a TOKEN HSET orders:1 f v", &[]),
    ("LOCK.INFO locks:a", &["observer", "operator"]),
    ("LOCK.INFO other:a", &[]),
    ("LOCK.LIST", &["observer", "operator"]),
    ("LOCK.BREAK locks:a", &["operator"]),
    ("LOCK.BREAK other:a", &[]),
    ("INFO lock", &INFORMED),
    ("INFO everything", &INFORMED),
    ("PING", &["worker", "guarded"]),
    ("CLIENT SETNAME n", &["worker", "guarded", "exporter"]),
    ("CLIENT INFO", &["observer", "operator"]),
    ("CLIENT LIST", &["operator"]),
    ("CLIENT KILL ID 999999", &["operator"]),
    ("CLIENT UNBLOCK 999999", &["operator"]),
    ("CLIENT PAUSE 0", &[]),
    ("SUBSCRIBE locks:ch", &["worker"]),
    ("SSUBSCRIBE locks:ch", &["worker"]),
    ("SUBSCRIBE other:ch", &[]),
    ("SUBSCRIBE __keyevent@0__:lock.acquire", &["listener"]),
    ("SUBSCRIBE __keyevent@0__:expired", &[]),
    ("PSUBSCRIBE *", &[]),
    ("PUBLISH locks:ch x", &[]),
    ("HSET orders:1 f v", &["guarded"]),
    ("HSET locks:a f v", &["guarded"]),
    ("DEL locks:a", &[]),
    ("GET locks:a", &[]),
    ("SET locks:a v", &[]),
    ("KEYS *", &[]),
    ("SCAN 0", &[]),
    ("EVAL return(0) 0", &["exporter"]),
    ("CONFIG GET lock.*", &["exporter"]),
    ("CONFIG SET lock.max-lease 1", &[]),
    ("FLUSHALL", &[]),
];

/// Who is there.
const USERS: [&str; 6] = [
    "worker", "guarded", "observer", "operator", "listener", "exporter",
];

/// Who may read `INFO`: client libraries ask for it when they connect.
const INFORMED: [&str; 5] = ["worker", "guarded", "observer", "operator", "exporter"];

#[test]
fn each_user_may_do_what_is_written_and_no_more() {
    let server = server();
    let token = server.client().int("LOCK.ACQUIRE locks:held admin");
    for user in USERS {
        for (wish, users) in WISHES {
            let mut client = connect(&server, user);
            let reply = client.call(&wish.replace("TOKEN", &token.to_string()));
            let may = users.contains(&user);
            assert_eq!(is_refused(&reply), !may, "{user}: {wish}: {reply:?}");
        }
    }
}

#[test]
fn a_script_reads_nothing_that_its_user_may_not_read() {
    let server = server();
    server.client().call("SET secret v");
    let mut exporter = connect(&server, "exporter");
    for (call, may) in [("'INFO', 'lock'", true), ("'GET', 'secret'", false)] {
        let script = format!("return redis.call({call})");
        let reply = exporter.words(&[b"EVAL", script.as_bytes(), b"0"]);
        assert_eq!(matches!(reply, Value::ServerError(_)), !may, "{reply:?}");
    }
}

/// Where the rules of a user name a command of a module, Redis 7.2 and later and Valkey
/// before 9.1 would end by an assertion when it is unloaded, and Valkey 9.1 refuses.
#[test]
fn the_module_is_unloaded_only_where_no_rule_names_its_commands() {
    let mut play = Play::start();
    // Redis 7.0 has no category of the module's commands, and reads no rules anew.
    if play.version() < (7, 2) {
        return;
    }
    play.run(
        "each +lock.acquire -lock.break (+lock.info): o > ACL SETUSER worker reset # -> OK ; o > MODULE UNLOAD lock -> !ERR
        o > ACL SETUSER worker reset +@lock -> OK
        o > MODULE UNLOAD lock -> OK
        sound",
    );
}
