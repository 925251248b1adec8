//! `lockctl tail`: what happens to locks, as the servers post it by keyspace notifications.
//!
//! Each primary has a connection of its own. Which primaries there are is looked up again
//! and again.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use redis_lock_client::redis::aio::PubSub;
use redis_lock_client::redis::{Client, Msg, RedisError, cmd};
use serde_json::json;
use tokio::time::timeout;

use crate::arguments::TailOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::{Object, shown};
use crate::server::{Server, WITHIN, address, connect};

const SETTING: &str = "notify-keyspace-events";

/// What the server posts, and what it is called here.
const EVENTS: [(&str, &str); 4] = [
    ("lock.acquire", "acquired"),
    ("lock.release", "released"),
    ("lock.expire", "expired"),
    ("lock.break", "broken"),
];

/// How often to look which servers there are.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What is heard of a server: a message, or none once its connection has closed.
type Heard = (String, Option<Msg>);

/// The servers that are listened to.
#[derive(Default)]
struct Listening {
    heard: SelectAll<BoxStream<'static, Heard>>,
    servers: HashSet<String>,
}

/// Tells what happens until it is ended, or as many events have been told as was asked for.
pub async fn tail(server: &Server, json: bool, options: &TailOptions) -> Result<Exit, Failure> {
    let mut listening = Listening::default();
    for client in server.servers.primaries(WITHIN).await? {
        listening.add(&client, options.notify).await?;
    }
    tell("listening", &server.address(), None, json);
    let names: HashSet<&[u8]> = options.names.iter().map(|name| name.as_bytes()).collect();
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    while left > 0 {
        tokio::select! {
            Some(heard) = listening.heard.next() => match heard {
                (server, Some(message)) => {
                    let key = message.get_payload_bytes();
                    if names.is_empty() || names.contains(key) {
                        write(message.get_channel_name(), key, &server, json)?;
                        left -= 1;
                    }
                }
                (server, None) => {
                    tell("server_gone", &server, Some("the connection was closed"), json);
                    listening.servers.remove(&server);
                }
            },
            _ = ticks.tick() => listening.look(server, json, options.notify).await?,
        }
    }
    Ok(Exit::SUCCESS)
}

impl Listening {
    async fn add(&mut self, client: &Client, notify: bool) -> Result<(), Failure> {
        require_events(client, notify).await?;
        let server = address(client);
        let messages = timeout(WITHIN, subscribe(client)).await;
        let messages = messages.map_err(io::Error::from)??.into_on_message();
        let (of, end) = (server.clone(), (server.clone(), None));
        let messages = messages.map(move |message| (of.clone(), Some(message)));
        let messages = messages.chain(stream::once(std::future::ready(end)));
        self.heard.push(messages.boxed());
        self.servers.insert(server);
        Ok(())
    }

    /// Listens to the servers that have come.
    async fn look(&mut self, server: &Server, json: bool, notify: bool) -> Result<(), Failure> {
        for client in server.servers.primaries(WITHIN).await.unwrap_or_default() {
            let server = address(&client);
            if self.servers.contains(&server) {
                continue;
            }
            match self.add(&client, notify).await {
                Ok(()) => tell("server_back", &server, None, json),
                Err(failure @ Failure::NoEvents { .. }) => return Err(failure),
                Err(_) => {}
            }
        }
        Ok(())
    }
}

async fn subscribe(client: &Client) -> Result<PubSub, RedisError> {
    let mut connection = client.get_async_pubsub().await?;
    let db = client.get_connection_info().redis_settings().db();
    for (event, _) in EVENTS {
        let channel = format!("__keyevent@{db}__:{event}");
        connection.subscribe(channel).await?;
    }
    Ok(connection)
}

/// Fails unless the server posts what happens to locks, or sets it to do so.
async fn require_events(client: &Client, set: bool) -> Result<(), Failure> {
    let mut connection = connect(client).await?;
    let mut get = cmd("CONFIG");
    let get = get.arg("GET").arg(SETTING);
    let flags: HashMap<String, String> = match get.query_async(&mut connection).await {
        // Who may not ask takes what comes.
        Err(error) if error.code() == Some("NOPERM") && !set => return Ok(()),
        flags => flags?,
    };
    let Some(wanted) = missing(flags.into_values().next().unwrap_or_default()) else {
        return Ok(());
    };
    if !set {
        let server = address(client);
        return Err(Failure::NoEvents { server, wanted });
    }
    let mut set = cmd("CONFIG");
    set.arg("SET").arg(SETTING).arg(wanted);
    Ok(set.query_async(&mut connection).await?)
}

/// What the server should be set to post, if it does not post what happens to locks.
fn missing(flags: String) -> Option<String> {
    let is_posted = flags.contains(['A', 'd']);
    match (flags.contains('E'), is_posted) {
        (true, true) => None,
        (true, false) => Some(flags + "d"),
        (false, true) => Some(flags + "E"),
        (false, false) => Some(flags + "Ed"),
    }
}

fn write(channel: &str, key: &[u8], server: &str, json: bool) -> io::Result<()> {
    let event = EVENTS.iter().find(|(posted, _)| channel.ends_with(posted));
    let event = event.map_or(channel, |(_, event)| event);
    let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let told = match json {
        true => Object::default()
            .set("time", time)
            .set("event", event)
            .name("key", key)
            .set("server", server)
            .to_string(),
        false => format!("{time}  {event:8}  {}", shown(key)),
    };
    writeln!(io::stdout(), "{told}")
}

/// Tells on stderr what became of a server, if anybody is there to read it.
fn tell(event: &str, server: &str, why: Option<&str>, json: bool) {
    let told = match (json, event, why) {
        (true, ..) => json!({"event": event, "server": server, "why": why}).to_string(),
        (_, "server_gone", Some(why)) => {
            format!("lockctl: what {server} posts is not heard any more: {why}")
        }
        (_, "server_back", _) => {
            format!("lockctl: {server} is heard from now on; what it posted before is lost")
        }
        _ => format!("lockctl: listening to {server}"),
    };
    let _ = writeln!(io::stderr(), "{told}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_already_stays() {
        let missing = |flags: &str| missing(flags.into());
        assert_eq!(missing("").as_deref(), Some("Ed"));
        assert_eq!(missing("xK").as_deref(), Some("xKEd"));
        assert_eq!(missing("xE").as_deref(), Some("xEd"));
        assert_eq!(missing("AK").as_deref(), Some("AKE"));
        assert_eq!(missing("dE"), None);
        assert_eq!(missing("AKE"), None);
    }
}
