//! `lockctl break`: takes a lock from whoever holds it.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use redis_lock_client::redis;
use serde_json::json;

use crate::arguments::BreakOptions;
use crate::connection::Connection;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::quoting::shown;

/// Breaks a lock. Says with what to exit.
pub async fn break_lock(url: &str, json: bool, options: &BreakOptions) -> Result<Exit, Failure> {
    let mut connection = Connection::open(url).await?;
    let name = options.name.as_bytes();
    let mut cmd = redis::cmd("LOCK.BREAK");
    cmd.arg(name);
    if let Some(token) = options.fence {
        cmd.arg("FENCE").arg(token);
    }
    let broken: bool = connection.ask(&cmd).await?;
    let key = shown(name);
    let told = if json {
        json!({"key": key, "broken": broken}).to_string()
    } else if broken {
        format!("{key} is broken.")
    } else if options.fence.is_some() {
        format!("{key} is free, or its newest token is another one.")
    } else {
        format!("{key} is free.")
    };
    writeln!(io::stdout(), "{told}")?;
    Ok(if broken {
        Exit::SUCCESS
    } else {
        Exit::NOT_BROKEN
    })
}
