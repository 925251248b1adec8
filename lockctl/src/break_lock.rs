//! `lockctl break`: takes a lock from whoever holds it.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use crate::arguments::BreakOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::{Object, shown};
use crate::server::Server;

/// Breaks a lock. Returns with what to exit.
pub async fn break_lock(
    server: &Server,
    json: bool,
    options: &BreakOptions,
) -> Result<Exit, Failure> {
    let key = options.name.as_bytes();
    let lock = server.connect().await?.lock(key);
    let broken = lock.break_lock(options.fence).await?;
    let told = match (json, broken, options.fence) {
        (true, ..) => Object::default()
            .name("key", key)
            .set("broken", broken)
            .to_string(),
        (_, true, _) => format!("{} is broken.", shown(key)),
        (_, _, Some(_)) => format!(
            "{} is free, or its newest token is another one.",
            shown(key)
        ),
        _ => format!("{} is free.", shown(key)),
    };
    let written = writeln!(io::stdout(), "{told}");
    // Where nobody reads it, the exit code tells.
    written.or_else(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error),
    })?;
    Ok(match broken {
        true => Exit::SUCCESS,
        false => Exit::FOUND,
    })
}
