//! `lockctl ls`: holders and waiters in one table.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use comfy_table::{ContentArrangement, Table, presets};

use crate::arguments::LsOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::Name;
use crate::view::{self, HolderView, LockView, WaiterView, seconds};
use crate::which_server::WhichServer;

/// Shows contended locks, or those that are named.
pub async fn ls(server: &WhichServer, json: bool, options: &LsOptions) -> Result<Exit, Failure> {
    let client = server.connect().await?;
    let stuck_after = options.stuck.after;
    let locks = if options.names.is_empty() {
        view::contended(&client, options.count, stuck_after).await?
    } else {
        let names = options.names.iter().map(|name| name.as_bytes().to_vec());
        view::named(&client, names, stuck_after).await?
    };
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&locks)?)?;
    } else if locks.is_empty() {
        writeln!(out, "Nobody waits for a lock.")?;
    } else {
        write(&mut out, &locks)?;
    }
    Ok(Exit::SUCCESS)
}

fn write(out: &mut impl Write, locks: &[LockView]) -> io::Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(HEADER)
        .add_rows(locks.iter().flat_map(rows));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    writeln!(out, "{}", table.trim_fmt())?;
    if let Some(grace) = view::grace(locks) {
        writeln!(out, "\n{grace}")?;
    }
    let stuck: Vec<_> = locks
        .iter()
        .filter_map(|lock| lock.safe_break.as_ref())
        .collect();
    if !stuck.is_empty() {
        writeln!(out, "\n{STUCK}")?;
        for command in stuck {
            writeln!(out, "  {command}")?;
        }
    }
    Ok(())
}

/// What the commands that break stuck locks are for.
pub const STUCK: &str = "Stuck. This passes a lock on if its holder is still the same:";

/// The columns. `LEFT` is what is left of a holder's lease, and of the time
/// that a waiter will wait.
pub const HEADER: [&str; 8] = [
    "LOCK",
    "OWNER",
    "IS",
    "MODE",
    "WAITED",
    "LEFT",
    "TOKEN",
    "BLOCKED BY",
];

/// A row for each holder and waiter of a lock.
pub fn rows(lock: &LockView) -> Vec<[String; 8]> {
    let holders = lock.holders.iter().map(|holder| holder_row(lock, holder));
    let waiters = (1..).zip(&lock.waiters);
    let waiters = waiters.map(|(turn, waiter)| waiter_row(lock, turn, waiter));
    let mut rows: Vec<_> = holders.chain(waiters).collect();
    if rows.is_empty() {
        let mut row = HEADER.map(|_| String::new());
        row[0] = lock.key.to_string();
        row[2] = "free".into();
        rows.push(row);
    }
    rows
}

fn holder_row(lock: &LockView, holder: &HolderView) -> [String; 8] {
    [
        lock.key.to_string(),
        holder.owner.to_string(),
        match holder.holds {
            1 => "holder".into(),
            holds => format!("holder x{holds}"),
        },
        mode(lock.mode.unwrap_or_default(), lock.limit),
        String::new(),
        holder.ttl_ms.map_or_else(String::new, seconds),
        holder
            .token
            .map_or_else(String::new, |token| token.to_string()),
        match waits_for(holder) {
            Some(keys) => format!("waits for {keys}"),
            None => String::new(),
        },
    ]
}

fn waiter_row(lock: &LockView, turn: usize, waiter: &WaiterView) -> [String; 8] {
    [
        lock.key.to_string(),
        waiter.owner.to_string(),
        format!("waiter {turn}"),
        mode(waiter.mode, waiter.limit),
        seconds(waiter.waited_ms),
        waiter.timeout_ms.map_or_else(|| "forever".into(), seconds),
        String::new(),
        match turn {
            1 => some(&blockers(lock)),
            _ => format!("waiter {}", turn - 1),
        },
    ]
}

/// In which mode, for eyes.
fn mode(mode: &str, limit: Option<u64>) -> String {
    match (mode, limit) {
        ("limited", Some(limit)) => format!("limit {limit}"),
        _ => mode.into(),
    }
}

/// Who blocks the first in line, and what those wait for themselves.
fn blockers(lock: &LockView) -> Vec<String> {
    let owners: HashSet<_> = lock.blocked_by.iter().collect();
    let holders = lock.holders.iter();
    holders
        .filter(|holder| owners.contains(&holder.owner))
        .map(|holder| match waits_for(holder) {
            Some(keys) => format!("{} (waits for {keys})", holder.owner),
            None => holder.owner.to_string(),
        })
        .collect()
}

fn waits_for(holder: &HolderView) -> Option<String> {
    let keys: Vec<_> = holder.waits_for.iter().map(Name::to_string).collect();
    (!keys.is_empty()).then(|| some(&keys))
}

/// The first of these, and how many more there are.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    match names.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}
