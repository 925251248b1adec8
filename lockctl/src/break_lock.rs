//! `lockctl break`: takes a lock from whoever holds it.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;

use crate::arguments::BreakOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::Name;
use crate::which_server::WhichServer;

#[derive(Serialize)]
struct Told {
    #[serde(flatten, serialize_with = "Name::as_key")]
    key: Name,
    broken: bool,
}

/// Breaks a lock. Returns with what to exit.
pub async fn break_lock(
    server: &WhichServer,
    json: bool,
    options: &BreakOptions,
) -> Result<Exit, Failure> {
    let name = options.name.as_bytes();
    let lock = server.connect().await?.lock(name);
    let broken = match options.fence {
        Some(token) => lock.break_lock(token).await?,
        None => lock.break_any().await?,
    };
    let key = Name::from(name);
    let told = if json {
        serde_json::to_string(&Told { key, broken })?
    } else if broken {
        format!("{key} is broken.")
    } else if options.fence.is_some() {
        format!("{key} is free, or its newest token is another one.")
    } else {
        format!("{key} is free.")
    };
    let written = writeln!(io::stdout(), "{told}");
    // Where nobody reads it, the exit code tells.
    written.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })?;
    Ok(if broken {
        Exit::SUCCESS
    } else {
        Exit::NOT_BROKEN
    })
}
