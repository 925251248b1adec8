//! Scenes as text, which read as a session does: who sends what, and what is replied.
//!
//! ```text
//! a > LOCK.ACQUIRE k a LONG -> T        T is this token from here on
//! b > LOCK.ACQUIRE k b BLOCKED -> ..    it waits for its reply
//! ears hears ch                         by RESP3; or `ears hears sharded ch`
//! ears > LOCK.ACQUIRE k c PLACED -> 0
//! a > DEL k | LOCK.BREAK k -> 1 | 0     both in one write
//! a >> DEL k | GET x -> 1 | 'text'      both in one transaction
//! b < U                                 the reply that it waited for
//! ears heard b !SUPERSEDED              whose place ended, and how; `b U 2000` with a lease
//! ears heard nothing
//! b closes                              the server knows, too; or just `b drops`
//! a sends DEL k | PING                  and reads no reply yet
//! queue k = b c                         who waits, in order, or `nobody`
//! bound k = b                           to whose connection the first hold is, or `nobody`
//! lock_waiters = 2                      a number of `INFO`
//! until lock_sessions = 0               what the server does later
//! settled                               it has done what it does by itself
//! r stops                               another server, which `r goes on` ends
//! x at r                                who connects there
//! ```
//!
//! Whoever is named connects when it is named first. In a command `$T` is a token, `$b` the id
//! of a connection, `$r` the port of a server, and `LONG`, `BLOCKED` and `PLACED` are options
//! that last. A new token has to be greater than all that were named before. A reply is shown
//! as redis-cli does, but for `!CODE`, which begins an error, `1..9`, `..9` and `1..` for
//! numbers, `token`, `closed`, and `_` for any. Where none is given, any will do that is no
//! error.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Deref;

use redis::Value;

use super::{Client, TestServer, scene};
use crate::{SOON, comes_true, pack};

/// A scene on a server.
pub struct Play {
    /// The server.
    pub server: TestServer,
    /// Others, by their names.
    pub others: BTreeMap<&'static str, TestServer>,
    observer: Client,
    actors: BTreeMap<String, Actor>,
    tokens: BTreeMap<String, i64>,
    /// The last lines, which a line that does not come true is shown with.
    played: VecDeque<String>,
}

struct Actor {
    client: Client,
    id: i64,
    addr: SocketAddr,
}

impl Actor {
    fn of(server: &TestServer) -> Self {
        let mut client = server.client();
        Self {
            id: client.int("CLIENT ID"),
            client,
            addr: server.addr(),
        }
    }
}

/// How many lines are shown of a scene that fails.
const SHOWN: usize = 40;

/// Whether a line comes true, or what is there instead.
type Seen = Result<(), String>;

impl Deref for Play {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        &self.server
    }
}

impl Play {
    /// On a new server.
    #[track_caller]
    pub fn start() -> Self {
        Self::on(TestServer::start())
    }

    /// On this server.
    #[track_caller]
    pub fn on(server: TestServer) -> Self {
        Self {
            observer: server.client(),
            server,
            others: BTreeMap::new(),
            actors: BTreeMap::new(),
            tokens: BTreeMap::new(),
            played: VecDeque::new(),
        }
    }

    /// On a new server where `h` holds the lock `k` with the token `H`, and `ears` hear
    /// the channel `ch`.
    #[track_caller]
    pub fn held() -> Self {
        Self::start().and_held("")
    }

    /// The same on this server, in a mode such as `SHARED`.
    #[track_caller]
    pub fn and_held(mut self, mode: &str) -> Self {
        self.run(&format!(
            "h > LOCK.ACQUIRE k h LONG {mode} -> H\n ears hears ch"
        ));
        self
    }

    /// With a replica `r`, which has to acknowledge what is told, for as long as it takes.
    #[track_caller]
    pub fn acknowledged() -> Self {
        let mut play = Self::start().with_replica();
        play.run(
            "o > CONFIG SET lock.min-replicas 1
            o > CONFIG SET lock.replicas-timeout 600000",
        );
        play
    }

    /// With a replica `r` that is in step.
    #[track_caller]
    pub fn with_replica(mut self) -> Self {
        self.others.insert("r", self.server.replica(true));
        scene::await_replicas(&mut self.observer, 1);
        self
    }

    /// All servers are sound, and the replica `r` has the same data.
    #[track_caller]
    pub fn assert_in_step(&self) {
        self.server.assert_sound();
        self.others.values().for_each(TestServer::assert_sound);
        self.server.assert_same_data(&self.others["r"]);
    }

    /// The connection of this name.
    #[track_caller]
    pub fn client(&mut self, name: &str) -> &mut Client {
        &mut self.actor(name).client
    }

    /// A token that was named.
    pub fn token(&self, name: &str) -> i64 {
        self.tokens[name]
    }

    /// Starts the server again on its data after a crash. All connections are gone.
    #[track_caller]
    pub fn crash_and_restart(&mut self) {
        self.actors.clear();
        self.server.crash_and_restart();
        self.observer = self.server.client();
    }

    /// Plays these lines.
    #[track_caller]
    pub fn run(&mut self, lines: &str) -> &mut Self {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut seen = Ok(());
            let mut see = |line: &str| {
                seen = self.line(line);
                seen.is_ok()
            };
            match line.strip_prefix("until ") {
                Some(line) => comes_true(SOON, || see(line)),
                None => see(line),
            };
            self.played.push_back(line.into());
            if self.played.len() > SHOWN {
                self.played.pop_front();
            }
            if let Err(why) = seen {
                let played = self.played.make_contiguous().join("\n");
                panic!("{played}\nbut: {why}");
            }
        }
        self
    }

    #[track_caller]
    fn actor(&mut self, name: &str) -> &mut Actor {
        let server = &self.server;
        let actor = self.actors.entry(name.into());
        actor.or_insert_with(|| Actor::of(server))
    }

    fn line(&mut self, line: &str) -> Seen {
        if line == "settled" {
            scene::settle(&self.server);
            return Ok(());
        }
        let line = self.with_names(line);
        let [who, what, rest] = {
            let mut words = line.splitn(3, ' ');
            [(); 3].map(|()| words.next().unwrap_or_default())
        };
        match what {
            ">" | ">>" => {
                let (commands, replies) = rest.split_once(" -> ").unwrap_or((rest, ""));
                let commands: Vec<&str> = commands.split(" | ").collect();
                let replies: Vec<&str> = replies.split(" | ").collect();
                assert!(replies == [""] || replies.len() == commands.len(), "{line}");
                self.call(who, what == ">>", &commands, &replies)
            }
            "<" => self.reply(who, rest),
            "hears" => {
                let client = &mut self.actor(who).client;
                client.call("HELLO 3");
                match rest.strip_prefix("sharded ") {
                    Some(channel) => client.subscribe(&format!("SSUBSCRIBE {channel}")),
                    None => client.subscribe(&format!("SUBSCRIBE {rest}")),
                }
                Ok(())
            }
            "heard" => self.heard(who, rest),
            "at" => {
                let actor = Actor::of(&self.others[rest]);
                self.actors.insert(who.into(), actor);
                Ok(())
            }
            "stops" | "goes" => {
                let server = self.others.get(who).unwrap_or(&self.server);
                match what {
                    "stops" => server.stop(),
                    _ => server.go_on(),
                }
                Ok(())
            }
            "sends" => {
                self.send(who, &rest.split(" | ").collect::<Vec<_>>());
                Ok(())
            }
            "drops" => self.actors.remove(who).map(drop).ok_or("nobody".into()),
            "closes" => {
                let actor = self.actors.remove(who).ok_or("nobody")?;
                let mut observer = Client::try_connect(actor.addr).ok_or("no server")?;
                drop(actor.client);
                scene::await_gone(&mut observer, actor.id);
                Ok(())
            }
            "=" => {
                let number = self.observer.info(who).to_string();
                self.agrees(&number, rest)
            }
            key if who == "queue" => {
                let queue = scene::queue(&mut self.observer, key).join(" ");
                let queue = if queue.is_empty() { "nobody" } else { &queue };
                self.agrees(queue, rest.trim_start_matches("= "))
            }
            key if who == "bound" => {
                let bound = scene::bound(&mut self.observer, key);
                let mut actors = self.actors.iter();
                let whose = actors.find(|(_, actor)| Some(actor.id) == bound);
                let whose = whose.map_or("nobody", |(name, _)| name.as_str()).to_owned();
                self.agrees(&whose, rest.trim_start_matches("= "))
            }
            _ => panic!("what is this? {line}"),
        }
    }

    /// The line with what its names stand for.
    fn with_names(&self, line: &str) -> String {
        let mut parts = line.split('$');
        let mut all = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_alphanumeric() && c != '_');
            let (name, rest) = part.split_at(end.unwrap_or(part.len()));
            let token = self.tokens.get(name).copied();
            let id = || self.actors.get(name).map(|actor| actor.id);
            let port = || self.others.get(name).map(|server| server.port().into());
            let number = token.or_else(id).or_else(port);
            let number = number.unwrap_or_else(|| panic!("{line}: who is {name}?"));
            all += &number.to_string();
            all += rest;
        }
        all.replace(" PLACED", " LONG QUEUE 600000 ch")
            .replace(" BLOCKED", " LONG BLOCK 0")
            .replace(" LONG", " LEASE 600000")
    }

    fn call(&mut self, who: &str, at_once: bool, commands: &[&str], replies: &[&str]) -> Seen {
        if at_once {
            self.call(who, false, &["MULTI"], &["OK"])?;
            for command in commands {
                self.call(who, false, &[command], &["QUEUED"])?;
            }
            self.actor(who).client.send("EXEC");
            let reply = self.actor(who).client.try_reply();
            let Some(Value::Array(parts)) = reply else {
                return self.agrees(&shown(reply), replies.first().unwrap_or(&""));
            };
            let mut replies = replies.iter().chain(std::iter::repeat(&""));
            let mut each = parts.into_iter().zip(&mut replies);
            return each.try_for_each(|(part, reply)| self.agrees(&shown(Some(part)), reply));
        }
        self.send(who, commands);
        let replies = replies.iter().chain(std::iter::repeat(&""));
        for (_, reply) in commands.iter().zip(replies) {
            if *reply == ".." {
                return self.await_blocked(who);
            }
            self.reply(who, reply)?;
        }
        Ok(())
    }

    /// Several commands in one write.
    fn send(&mut self, who: &str, commands: &[&str]) {
        let packed = commands.iter().flat_map(|command| pack(&words(command)));
        let packed: Vec<u8> = packed.collect();
        self.actor(who).client.send_bytes(&packed);
    }

    fn await_blocked(&mut self, who: &str) -> Seen {
        let (addr, id) = (self.actor(who).addr, self.actor(who).id);
        let mut observer = Client::try_connect(addr).ok_or("no server")?;
        let list = format!("CLIENT LIST ID {id}");
        let mut flags = String::new();
        let is_blocked = comes_true(SOON, || {
            let told = observer.bulk(&list);
            let mut words = told.split(' ');
            let found = words.find_map(|word| word.strip_prefix("flags="));
            flags = found.unwrap_or("gone").into();
            flags.contains('b')
        });
        is_blocked
            .then_some(())
            .ok_or(format!("does not wait: {flags}"))
    }

    fn reply(&mut self, who: &str, expected: &str) -> Seen {
        let reply = self.actor(who).client.try_reply();
        self.agrees(&shown(reply), expected)
    }

    fn heard(&mut self, who: &str, expected: &str) -> Seen {
        let ears = &mut self.actor(who).client;
        if expected == "nothing" {
            let told = ears.told_so_far();
            return told.is_empty().then_some(()).ok_or(format!("{told:?}"));
        }
        let told = ears.try_told().ok_or("nothing is heard")?;
        let (owner, result) = expected.split_once(' ').unwrap_or((expected, ""));
        let (result, lease_ms) = match result.split_once(' ') {
            Some((result, lease_ms)) if !result.starts_with('!') => (result, lease_ms),
            _ => (result, "_"),
        };
        self.agrees(&told.owner, owner)?;
        let is_so = self.agrees(&told.result.replacen('-', "!", 1), result);
        let is_so = is_so.and_then(|()| self.agrees(&told.lease_ms.to_string(), lease_ms));
        is_so.map_err(|_| format!("{told:?}"))
    }

    /// Whether a reply is what is expected, which may name a token.
    fn agrees(&mut self, shown: &str, expected: &str) -> Seen {
        let number: Option<i64> = shown.parse().ok();
        let is_so = match expected {
            "" => !shown.starts_with('!') && shown != "closed",
            "_" => true,
            "token" => number.is_some_and(|number| number > 0),
            code if code.starts_with('!') => shown.starts_with(code),
            name if is_name(name) => match (self.tokens.get(name), number) {
                (Some(token), _) => number == Some(*token),
                (None, Some(number)) if self.tokens.values().all(|token| number > *token) => {
                    self.tokens.insert(name.into(), number);
                    number > 0
                }
                _ => false,
            },
            range if range.contains("..") && !range.contains(' ') => {
                let (least, most) = range.split_once("..").unwrap();
                let bound = |text: &str, none| text.parse().unwrap_or(none);
                let range = bound(least, i64::MIN)..=bound(most, i64::MAX);
                number.is_some_and(|number| range.contains(&number))
            }
            text => shown == text,
        };
        is_so.then_some(()).ok_or_else(|| shown.into())
    }
}

fn is_name(word: &str) -> bool {
    let rest = word.strip_prefix(|c: char| c.is_ascii_uppercase());
    rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
}

/// The words of a command. One in double quotes may have spaces.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (nth, part) in command.split('"').enumerate() {
        match nth % 2 {
            0 => words.extend(part.split_whitespace().map(String::from)),
            _ => words.push(part.into()),
        }
    }
    words
}

fn shown(reply: Option<Value>) -> String {
    match reply {
        None => "closed".into(),
        Some(Value::Nil) => "null".into(),
        Some(Value::Int(number)) => number.to_string(),
        Some(Value::Okay) => "OK".into(),
        Some(Value::SimpleString(text)) => text,
        Some(Value::BulkString(text)) => format!("'{}'", String::from_utf8_lossy(&text)),
        Some(Value::ServerError(error)) => {
            format!("!{} {}", error.code(), error.details().unwrap_or_default())
        }
        Some(Value::Array(parts)) => {
            let parts: Vec<String> = parts.into_iter().map(|part| shown(Some(part))).collect();
            format!("[{}]", parts.join(", "))
        }
        Some(other) => format!("{other:?}"),
    }
}
