//! The servers of a scenario, and the network to them.

use std::collections::HashMap;
use std::net::Shutdown;
use std::time::{Duration, SystemTime};

use redis_lock_testing::scene::{BEGIN_MOVE, END_MOVE, MIGRATE_KEY};
use redis_lock_testing::{
    Authority, Clock, Connection, Error, Fate, Play, Proxy, Result, Sentinels, Server, Setup,
    sentinel,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::scenario::{Kind, Node, Scenario};

enum Servers {
    Single(Vec<Server>),
    Tls(Box<Server>, Box<Authority>),
    Sentinel(Box<Sentinels>),
    Cluster(Box<Play>),
}

/// All that.
pub struct Bed {
    servers: Servers,
    proxy: Option<Proxy>,
    /// The wall clock of the actors, if it is one of their own.
    pub clock: Option<Clock>,
    connections: HashMap<String, Connection>,
}

/// Milliseconds of the clock that drivers answer by.
pub fn now_ms() -> f64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic));
    now.unwrap_or_default().as_secs_f64() * 1e3
}

impl Bed {
    /// Starts them.
    pub fn start(scenario: &Scenario) -> Result<Self> {
        let options: Vec<&str> = scenario.options.iter().map(String::as_str).collect();
        let servers = match scenario.bed {
            Kind::One => Servers::Single(vec![Server::start_with(&options)]),
            Kind::Plain => Servers::Single(vec![Server::start_plain(&options)]),
            Kind::Replica => {
                let primary = Server::start_with(&options);
                let replica = primary.replica(true);
                Servers::Single(vec![primary, replica])
            }
            Kind::Tls => {
                let authority = Authority::new();
                let certificate = authority.certificate("127.0.0.1");
                let server = Setup::tested().tls(&certificate, None).start()?;
                Servers::Tls(Box::new(server), Box::new(authority))
            }
            Kind::Sentinel => Servers::Sentinel(Box::new(Sentinels::start())),
            Kind::Cluster => Servers::Cluster(Box::new(Play::moving())),
        };
        let mut bed = Self {
            servers,
            proxy: None,
            clock: scenario.clock.then(Clock::new),
            connections: HashMap::new(),
        };
        if scenario.proxy {
            bed.proxy = Some(Proxy::to(bed.server(0)?.addr())?);
        }
        Ok(bed)
    }

    /// What a driver is told to connect to.
    pub fn way(&self) -> Map<String, Value> {
        let url = |addr| format!("redis://{addr}");
        let way = match &self.servers {
            Servers::Single(servers) => {
                let addr = self
                    .proxy
                    .as_ref()
                    .map_or_else(|| servers[0].addr(), Proxy::addr);
                json!({ "kind": "one", "urls": [url(addr)] })
            }
            Servers::Tls(server, authority) => json!({
                "kind": "one", "urls": [format!("rediss://{}", server.tls_addr())],
                "ca_file": authority.pem.path(),
            }),
            Servers::Sentinel(sentinels) => json!({
                "kind": "sentinel", "urls": sentinels.addrs().map(url), "service": "locks",
            }),
            Servers::Cluster(moving) => {
                let nodes = [&moving.server].into_iter().chain(moving.others.values());
                let urls: Vec<_> = nodes.map(|node| url(node.addr())).collect();
                json!({ "kind": "cluster", "urls": urls })
            }
        };
        way.as_object().cloned().unwrap_or_default()
    }

    /// A key in the slot that can move.
    pub fn key(&self) -> Option<String> {
        match &self.servers {
            Servers::Cluster(moving) => Some(moving.with_names("$key")),
            _ => None,
        }
    }

    fn server(&mut self, node: Node) -> Result<&mut Server> {
        let mut nodes: Vec<_> = match &mut self.servers {
            Servers::Single(servers) => servers.iter_mut().collect(),
            Servers::Tls(server, ..) => vec![server],
            Servers::Cluster(moving) => {
                let Play { server, others, .. } = &mut **moving;
                [server].into_iter().chain(others.values_mut()).collect()
            }
            Servers::Sentinel(sentinels) => {
                let named = sentinels.addrs().map(sentinel::primary);
                let is_primary =
                    |server: &&mut Server| named.iter().all(|it| *it == Some(server.addr()));
                let all = [&mut sentinels.primary].into_iter();
                let all = all.chain(&mut sentinels.replicas);
                all.filter(|it| node >= 0 || is_primary(it)).collect()
            }
        };
        let number = usize::try_from(node).unwrap_or_default();
        if number >= nodes.len() {
            return Err(Error::msg(format!("there is no server {number}")));
        }
        Ok(nodes.swap_remove(number))
    }

    fn proxy(&self) -> Result<&Proxy> {
        self.proxy
            .as_ref()
            .ok_or_else(|| Error::msg("there is no proxy"))
    }

    /// Asks for something: `NOW`, the time; `END key`, when its lease ends, both in
    /// milliseconds of `CLOCK_MONOTONIC`; `REPLY name`, the next reply on that connection;
    /// `INFO field`, a number; `proxy.affected`; `HEARD channel`, how many hear it; `FILE
    /// path`, how far it was counted; `TELL channel key owner result`, a message of a
    /// place, which so many hear; or any command, whose reply this is.
    pub fn ask(&mut self, what: &str, at: Node) -> Result<Value> {
        let words: Vec<&str> = what.split(' ').collect();
        let answer = match words[..] {
            ["NOW"] => now_ms().into(),
            ["proxy.affected"] => self.proxy()?.affected().into(),
            ["REPLY", on] => {
                let connection = self.connections.get_mut(on);
                let nothing = || Error::msg(format!("nothing was sent on {on}"));
                json_of(&connection.ok_or_else(nothing)?.reply()?)
            }
            ["HEARD", "null"] => 1.into(),
            ["HEARD", channel] => {
                let heard = self
                    .server(at)?
                    .connect()?
                    .call(&["PUBSUB", "NUMSUB", channel])?;
                json_of(&heard)[1].clone()
            }
            ["TELL", channel, key, owner, ref result @ ..] => {
                let told = ["0", key, owner, &result.join(" "), "0"];
                let message = told.map(|part| format!("{}:{part},", part.len())).concat();
                json_of(
                    &self
                        .server(at)?
                        .connect()?
                        .call(&["PUBLISH", channel, &message])?,
                )
            }
            ["FILE", ref file @ ..] => {
                let text = std::fs::read_to_string(file.join(" "))?;
                let count = text
                    .split(' ')
                    .next()
                    .and_then(|count| count.parse::<u64>().ok());
                json!({ "count": count })
            }
            ["INFO", field] => self.server(at)?.connect()?.info(field)?.into(),
            ["END", key] => {
                let reply = self.server(at)?.connect()?.call(&["PEXPIRETIME", key])?;
                let (wall, now) = (SystemTime::now(), now_ms());
                let wall = wall
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .map_err(Error::msg)?;
                let end = json_of(&reply).as_f64().filter(|end| *end > 0.0);
                let end = end.ok_or_else(|| Error::msg(format!("{key} has no lease")))?;
                (end - wall.as_secs_f64() * 1e3 + now).into()
            }
            _ => {
                let reply = self.server(at)?.connect()?.call(&bytes_of(&words))?;
                reply_of(&words, &reply)
            }
        };
        Ok(answer)
    }

    /// Sends a command on the connection of this name.
    pub fn send(&mut self, command: &str, on: &str) -> Result<()> {
        let words: Vec<&str> = command.split(' ').collect();
        if !self.connections.contains_key(on) {
            let connection = self.server(0)?.connect()?;
            self.connections.insert(on.into(), connection);
        }
        let connection = self.connections.get_mut(on);
        connection.map_or(Ok(()), |connection| connection.send(&bytes_of(&words)))
    }

    /// Does something: to the server (`stop`, `go_on`, `kill`, `restart`), to the cluster
    /// (`move`, of the slot that can move), to the clock of the actors (`set_clock`, so many ms
    /// ahead), or to the network: whatever `Fate` names, `hang_up`, `half_close`, `silence`.
    pub fn act(&mut self, act: &str, at: Node, ms: i64, word: &str, error: &str) -> Result<()> {
        let fate = match act {
            "stop" | "go_on" | "kill" | "restart" => {
                let server = self.server(at)?;
                match act {
                    "stop" => server.stop()?,
                    "go_on" => server.go_on()?,
                    "kill" => server.crash(),
                    _ => server.restart()?,
                }
                return Ok(());
            }
            "move" => {
                if let Servers::Cluster(moving) = &mut self.servers {
                    moving.run(BEGIN_MOVE).run(MIGRATE_KEY).run(END_MOVE);
                }
                return Ok(());
            }
            "set_clock" => {
                let clock = self
                    .clock
                    .as_ref()
                    .ok_or_else(|| Error::msg("there is no clock"))?;
                clock.set_ahead(ms / 1000);
                return Ok(());
            }
            "hang_up" | "half_close" | "silence" => {
                let proxy = self.proxy()?;
                match act {
                    "hang_up" => proxy.hang_up(Shutdown::Both),
                    "half_close" => proxy.hang_up(Shutdown::Write),
                    _ => proxy.swallow_on(|| true),
                }
                return Ok(());
            }
            "passes" => Fate::Passes,
            "delayed" => Fate::Delayed(Duration::from_millis(ms.unsigned_abs())),
            "kept_back" => Fate::KeptBack,
            "swallowed" => Fate::Swallowed,
            "down" => Fate::Down,
            "commands_held" => Fate::CommandsHeld,
            "commands_swallowed" => Fate::CommandsSwallowed,
            "replies_lost" => Fate::RepliesLost(100),
            "replies_swallowed" => Fate::RepliesSwallowed(100),
            "replies_kept_back" => Fate::RepliesKeptBack,
            "messages_lost" => Fate::Messages(0),
            "messages_doubled" => Fate::Messages(2),
            "refuses" => Fate::Refuses(String::from(word).leak(), String::from(error).leak()),
            unknown => return Err(Error::msg(format!("nobody can {unknown}"))),
        };
        self.proxy()?.set(fate);
        Ok(())
    }
}

/// The words of a command; `hex:` begins one of any bytes.
fn bytes_of(words: &[&str]) -> Vec<Vec<u8>> {
    let bytes = |word: &&str| match word.strip_prefix("hex:") {
        Some(hex) => (0..hex.len() / 2)
            .filter_map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok())
            .collect(),
        None => word.as_bytes().to_vec(),
    };
    words.iter().map(bytes).collect()
}

fn json_of(reply: &redis::Value) -> Value {
    match reply {
        redis::Value::Nil => Value::Null,
        redis::Value::Okay => "OK".into(),
        redis::Value::Int(number) => (*number).into(),
        redis::Value::BulkString(text) => String::from_utf8_lossy(text).into(),
        redis::Value::SimpleString(text) => text.as_str().into(),
        redis::Value::Array(items) => items.iter().map(json_of).collect(),
        redis::Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            json!({ "error": format!("{} {details}", error.code()) })
        }
        other => format!("{other:?}").into(),
    }
}

/// A reply, where those of LOCK.INFO are maps.
fn reply_of(words: &[&str], reply: &redis::Value) -> Value {
    let reply = json_of(reply);
    if words[0] == "LOCK.INFO" {
        maps_of(reply)
    } else {
        reply
    }
}

fn maps_of(value: Value) -> Value {
    match value {
        Value::Array(items) if items.first().is_some_and(Value::is_string) => {
            let pairs = items.chunks_exact(2).map(|pair| {
                let name = pair[0].as_str().unwrap_or_default();
                (name.to_owned(), maps_of(pair[1].clone()))
            });
            Value::Object(pairs.collect())
        }
        Value::Array(items) => items.into_iter().map(maps_of).collect(),
        value => value,
    }
}
