//! `lockctl ls`: holders and waiters in one table.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use futures_util::stream::TryStreamExt;
use serde_json::Value;

use crate::arguments::LsOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::server::Server;
use crate::view::{LockView, contended, look, table, views};

/// Shows contended locks, or those that are named.
pub async fn ls(server: &Server, json: bool, options: &LsOptions) -> Result<Exit, Failure> {
    let client = server.connect().await?;
    let stuck_after = options.stuck.after;
    let locks = if options.names.is_empty() {
        contended(server, &client, options.count, stuck_after).await?
    } else {
        let names = options.names.iter().map(|name| name.as_bytes().to_vec());
        views(look(&client, names).try_collect().await?, stuck_after)
    };
    let told = if json {
        Value::from_iter(locks.iter().map(LockView::json)).to_string()
    } else if locks.is_empty() {
        "Nobody waits for a lock.".into()
    } else {
        table(&locks).join("\n")
    };
    writeln!(io::stdout(), "{told}")?;
    Ok(Exit::SUCCESS)
}
