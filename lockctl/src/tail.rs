//! `lockctl tail`: what happens to locks, as the servers post it.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use redis_lock_client::{Heard, LockEvent};
use serde::Serialize;
use serde_json::json;

use crate::arguments::TailOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::Name;
use crate::which_server::WhichServer;

/// What happened to a lock.
#[derive(Serialize)]
struct Told<'heard> {
    /// When lockctl heard of it.
    time: String,
    event: &'static str,
    #[serde(flatten, serialize_with = "Name::as_key")]
    key: Name,
    server: &'heard str,
}

/// Tells what happens until it is ended, or as many events have been told as was asked for.
pub async fn tail(
    server: &WhichServer,
    json: bool,
    options: &TailOptions,
) -> Result<Exit, Failure> {
    let client = server.connect().await?;
    if options.notify {
        client.post_events().await?;
    }
    let mut events = client.events().await?;
    tell("listening", &server.address(), None, json);
    let names: HashSet<&[u8]> = options.names.iter().map(|name| name.as_bytes()).collect();
    let mut left = options.count.unwrap_or(u64::MAX);
    while left > 0
        && let Some(heard) = events.next().await
    {
        match heard {
            Heard::Event {
                event, key, server, ..
            } if names.is_empty() || names.contains(&key[..]) => {
                write(event, key.into(), &server, json)?;
                left -= 1;
            }
            Heard::Gone { server, why, .. } => {
                tell("server_gone", &server, Some(&why.to_string()), json);
            }
            Heard::Back { server, .. } => tell("server_back", &server, None, json),
            _ => {}
        }
    }
    Ok(Exit::SUCCESS)
}

fn write(event: LockEvent, key: Name, server: &str, json: bool) -> Result<(), Failure> {
    let event = match event {
        LockEvent::Acquired => "acquired",
        LockEvent::Released => "released",
        LockEvent::Expired => "expired",
        LockEvent::Broken => "broken",
        _ => return Ok(()),
    };
    let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let told = match json {
        true => serde_json::to_string(&Told {
            time,
            event,
            key,
            server,
        })?,
        false => format!("{time}  {event:8}  {key}"),
    };
    Ok(writeln!(io::stdout(), "{told}")?)
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
