//! `lockctl doctor`: whether the servers are set up well for locks. It changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use redis_lock_client::Error;
use redis_lock_client::redis::aio::MultiplexedConnection;
use redis_lock_client::redis::{
    Client, Cmd, ConnectionAddr, FromRedisValue, Value, cmd, from_redis_value,
};
use serde_json::json;

use crate::arguments::DoctorOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::shown;
use crate::server::{Server, address, connect};

/// How much longer than leases and the lag of replicas a grace period is, in ms.
const GRACE_SPARE: u64 = 2000;

/// What is read of each node's settings.
const SETTINGS: &str = "lock.* maxmemory-policy appendonly appendfsync min-replicas-to-write \
    min-replicas-max-lag timeout cluster-enabled";

/// What users do with a lock K, as they may type it.
const RIGHTS: [(&str, &str); 7] = [
    ("take", "LOCK.ACQUIRE K owner"),
    ("renew", "LOCK.RENEW K owner"),
    ("release", "LOCK.RELEASE K owner"),
    ("guard", "LOCK.GUARD K 1 GET K"),
    ("look at", "LOCK.INFO K"),
    ("break", "LOCK.BREAK K"),
    ("delete", "DEL K"),
];

const GOOD: &str = "good";
/// Some may want it so.
const NOTE: &str = "note";
const WRONG: &str = "wrong";

/// A server, and what was found of it.
struct Node {
    address: String,
    connection: MultiplexedConnection,
    /// Of the module, as `MODULE LIST` has it.
    version: Option<u64>,
    settings: BTreeMap<String, String>,
    users: BTreeSet<String>,
    found: Vec<(&'static str, String)>,
}

/// Looks at all nodes. Returns with what to exit.
pub async fn doctor(server: &Server, json: bool, options: &DoctorOptions) -> Result<Exit, Failure> {
    let mut nodes: Vec<Node> = Vec::new();
    for (client, connection) in server.primaries().await? {
        let mut primary = Node::look(&client, connection).await;
        let clients = primary.replicas(&client).await;
        primary.check_restart();
        primary.check_fail_over(clients.len() as u64);
        let mut replicas = Vec::new();
        for client in clients {
            match connect(&client).await {
                Ok(connection) => {
                    let mut replica = Node::look(&client, connection).await;
                    replica.check_like(&primary);
                    replicas.push(replica);
                }
                Err(error) => {
                    let replica = address(&client);
                    primary.add(WRONG, format!("Its replica {replica} fails: {error}"));
                }
            }
        }
        nodes.push(primary);
        nodes.append(&mut replicas);
    }
    let newest = nodes.iter().filter_map(|node| node.version).max();
    let users = nodes.first().map(|first| first.users.clone());
    for node in &mut nodes {
        if node.version.is_some() && node.version < newest {
            node.add(WRONG, "Other nodes have a newer module: update it");
        }
        if !node.users.is_empty() && Some(&node.users) != users.as_ref() {
            node.add(NOTE, "Its users are not those of the first node");
        }
    }
    if let Some(first) = nodes.first_mut() {
        first.check_users(options).await;
    }
    let mut exit = Exit::SUCCESS;
    for node in &nodes {
        for (kind, what) in &node.found {
            if *kind == WRONG {
                exit = Exit::FOUND;
            }
            let node = &node.address;
            let line = match json {
                true => json!({"finding": kind, "server": node, "what": what}).to_string(),
                false => format!("{kind:5}  {node}  {what}"),
            };
            writeln!(io::stdout(), "{line}")?;
        }
    }
    Ok(exit)
}

impl Node {
    async fn look(client: &Client, connection: MultiplexedConnection) -> Self {
        let mut node = Self {
            address: address(client),
            connection,
            version: None,
            settings: BTreeMap::new(),
            users: BTreeSet::new(),
            found: Vec::new(),
        };
        let settings: Vec<_> = SETTINGS.split_whitespace().collect();
        let settings = node.ask(cmd("CONFIG").arg("GET").arg(settings)).await;
        node.settings = settings.unwrap_or_default();
        let users = node.ask(cmd("ACL").arg("LIST")).await;
        node.users = users.unwrap_or_default();
        let modules = node.ask(cmd("MODULE").arg("LIST")).await;
        let modules: Option<Vec<BTreeMap<String, Value>>> = modules;
        for module in modules.iter().flatten() {
            let field = |name| module.get(name).cloned().unwrap_or(Value::Nil);
            if field("name") == Value::BulkString(b"lock".into()) {
                node.version = from_redis_value(field("ver")).ok();
            }
        }
        if let Some(version) = node.version {
            // 200 is 0.2.0.
            let [major, minor, patch] = [version / 10_000, version / 100 % 100, version % 100];
            let what = format!("It has version {major}.{minor}.{patch} of the module");
            node.add(GOOD, what);
        } else if modules.is_some() {
            node.add(WRONG, "It has no lock module: load libredislock.so");
        }
        node
    }

    fn add(&mut self, kind: &'static str, what: impl Into<String>) {
        let finding = (kind, what.into());
        if !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    /// What it replies; none where the user may not ask, or something is wrong.
    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Option<T> {
        match command.query_async(&mut self.connection).await {
            Ok(reply) => Some(reply),
            Err(error) => {
                let kind = match error.code() {
                    Some("NOPERM") => NOTE,
                    _ => WRONG,
                };
                self.add(kind, format!("Not all is seen: {}", Error::from(error)));
                None
            }
        }
    }

    /// Its replicas, each reached as it is itself.
    async fn replicas(&mut self, client: &Client) -> Vec<Client> {
        let role: Vec<Value> = self.ask(&cmd("ROLE")).await.unwrap_or_default();
        let [_, _, listed] = &role[..] else {
            if !role.is_empty() {
                self.add(WRONG, "It is a replica: name its primary by --url");
            }
            return Vec::new();
        };
        let listed: Vec<(String, u16, u64)> = from_redis_value(listed.clone()).unwrap_or_default();
        let info = client.get_connection_info();
        let replica = |(to, at, _)| {
            let mut addr = info.addr().clone();
            match &mut addr {
                ConnectionAddr::TcpTls { host, port, .. } => (*host, *port) = (to, at),
                _ => addr = ConnectionAddr::Tcp(to, at),
            }
            Client::open(info.clone().set_addr(addr)).ok()
        };
        listed.into_iter().filter_map(replica).collect()
    }

    fn text(&self, setting: &str) -> &str {
        self.settings.get(setting).map_or("", String::as_str)
    }

    fn number(&self, setting: &str) -> u64 {
        self.text(setting).parse().unwrap_or_default()
    }

    /// What a restart, memory that runs short, and idle connections do to locks.
    fn check_restart(&mut self) {
        if self.settings.is_empty() {
            return;
        }
        if self.text("maxmemory-policy") != "noeviction" {
            let advice = "CONFIG SET maxmemory-policy noeviction";
            self.add(WRONG, format!("It may evict locks that are held: {advice}"));
        }
        if self.number("timeout") > 0 {
            self.add(WRONG, "It ends idle sessions: CONFIG SET timeout 0");
        }
        let is_covered = self.number("lock.grace-period") > 0;
        let (kind, what) = match (self.text("appendonly"), self.text("appendfsync")) {
            ("yes", "always") => (GOOD, "A restart forgets no lock"),
            _ if is_covered => (GOOD, "A restart grants nothing before old leases end"),
            ("yes", _) => (NOTE, "A crash forgets: CONFIG SET appendfsync always"),
            _ => (NOTE, "A restart forgets: CONFIG SET appendonly yes"),
        };
        self.add(kind, what);
    }

    /// What a fail-over does to locks.
    fn check_fail_over(&mut self, replicas: u64) {
        let setting = |name| self.number(name);
        let asked = setting("lock.min-replicas");
        let written = setting("min-replicas-to-write");
        let grace = setting("lock.grace-period");
        let needed = setting("min-replicas-max-lag") * 1000 + GRACE_SPARE;
        let needed = needed.saturating_add(setting("lock.max-lease"));
        let advice = format!("CONFIG SET lock.min-replicas {replicas}");
        let (kind, what) = if self.settings.is_empty() {
            return;
        } else if asked.max(written) > replicas {
            let what = "It grants nothing with so few replicas: bring them back, or lower \
                lock.min-replicas and min-replicas-to-write if they are gone for good";
            (WRONG, what.into())
        } else if grace > 0 && grace < needed {
            let what = format!(
                "Its grace period is {grace} ms, and old leases need {needed}: \
                set lock.max-lease to the longest lease, and lock.grace-period to that, \
                min-replicas-max-lag and 2 seconds"
            );
            (WRONG, what)
        } else if grace > 0 && written < replicas {
            let what = "It goes on granting when replicas have left it, which a grace period can't \
                make good: CONFIG SET min-replicas-to-write";
            (WRONG, format!("{what} {replicas}"))
        } else if replicas == 0 {
            return;
        } else if grace > 0 || asked == replicas {
            let what = format!("A fail-over keeps locks apart, if {replicas} are all its replicas");
            (GOOD, what)
        } else if asked > 0 {
            let what = "A fail-over to a replica that was not awaited may forget locks";
            (NOTE, format!("{what}: {advice}"))
        } else {
            let what = "A fail-over may forget locks";
            (NOTE, format!("{what}: {advice}, or set a grace period"))
        };
        self.add(kind, what);
    }

    /// A replica is set as its primary, since it may be promoted.
    fn check_like(&mut self, primary: &Self) {
        for (name, here) in self.settings.clone() {
            let there = primary.text(&name);
            if here != there && !there.is_empty() {
                let what = format!("It has {name} {here}, and its primary {there}: set both alike");
                self.add(WRONG, what);
            }
        }
    }

    /// What each user may do with locks.
    async fn check_users(&mut self, options: &DoctorOptions) {
        for rules in self.users.clone() {
            let words: Vec<_> = rules.split(' ').collect();
            let [_, user, words @ ..] = &words[..] else {
                continue;
            };
            let key = options.name.as_ref().map(|name| name.as_bytes().to_vec());
            let key = key.unwrap_or_else(|| key_of(words));
            let mut rights = Vec::new();
            for (right, command) in RIGHTS {
                if self.may(user, command, &key).await {
                    rights.push(right);
                }
            }
            if rights.is_empty() || !words.contains(&"on") {
                continue;
            }
            // As the client does, to wait without a connection for each wait.
            let is_cluster = self.text("cluster-enabled") == "yes";
            let subscribe = if is_cluster {
                "ssubscribe"
            } else {
                "subscribe"
            };
            let waits = self
                .may(user, &format!("{subscribe} redislock:0"), &key)
                .await;
            let can = |right| rights.contains(&right);
            let blocks =
                format!("; each wait keeps a connection without +{subscribe} &redislock:*");
            let (kind, advice) = if can("take") && !(can("renew") && can("release")) {
                (WRONG, "; add +lock.renew +lock.release")
            } else if can("take") && !waits {
                (NOTE, &*blocks)
            } else if can("delete") && !can("break") {
                (NOTE, "; to delete one passes it on, so take away +del")
            } else if can("break") && words.contains(&"nopass") {
                (NOTE, ", without a password")
            } else {
                (GOOD, "")
            };
            let (rights, key) = (rights.join(", "), shown(&key));
            let what = format!("User {user} may {rights} locks like {key}{advice}");
            self.add(kind, what);
        }
    }

    async fn may(&mut self, user: &str, command: &str, key: &[u8]) -> bool {
        let mut dry_run = cmd("ACL");
        dry_run.arg("DRYRUN").arg(user);
        for word in command.split(' ') {
            dry_run.arg(if word == "K" { key } else { word.as_bytes() });
        }
        let reply: Option<String> = self.ask(&dry_run).await;
        reply.as_deref() == Some("OK")
    }
}

/// A key for which a user with these rules has rights, as far as they tell.
fn key_of(rules: &[&str]) -> Vec<u8> {
    let patterns = rules.iter().filter_map(|rule| rule.split_once('~'));
    let pattern = patterns.map(|(_, pattern)| pattern).next();
    match pattern.unwrap_or_default().replace('*', "") {
        key if key.is_empty() => b"lock".into(),
        key => key.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_the_rules_of_a_user() {
        let key = |rules: &str| key_of(&rules.split(' ').collect::<Vec<_>>());
        assert_eq!(key("on ~locks:* +@all"), b"locks:");
        assert_eq!(key("on %R~locks:* +@all"), b"locks:");
        assert_eq!(key("on ~* +@all"), b"lock");
        assert_eq!(key("on +@all"), b"lock");
    }
}
