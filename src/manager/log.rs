//! What the server's log says of a step.

use redis_module::Context;

use crate::server::clients;
use crate::server::keyspace::LockKey;
use redis_lock_core::cycle;
use redis_lock_core::request::ClientId;
use redis_lock_core::table::LogLine;

/// Writes a line.
pub(super) fn write(key: LockKey<'_>, line: &LogLine) {
    let ctx = key.ctx();
    match line {
        LogLine::DeadlockRefused(cycle) => {
            let all = cycle::spell(cycle, |_| true);
            ctx.log_notice(&format!("deadlock refused: {all}"));
        }
        LogLine::SlowWait {
            owner,
            client,
            waited_ms,
            holders,
            others,
        } => {
            let held_by = holders.iter().map(|(owner, client)| {
                let owner = owner.as_bytes().escape_ascii();
                let client = client.map(|client| format!(" (client {})", describe(ctx, client)));
                format!("'{owner}'{}", client.unwrap_or_default())
            });
            let others = (*others > 0).then(|| format!("{others} others"));
            let held_by: Vec<String> = held_by.chain(others).collect();
            ctx.log_notice(&format!(
                "slow wait: '{}' (client {}) has waited {waited_ms} ms for '{}' in database \
                 {}, held by {}",
                owner.as_bytes().escape_ascii(),
                describe(ctx, *client),
                key.as_ref().shown(),
                key.as_ref().db,
                held_by.join(", "),
            ));
        }
    }
}

/// A client, as the log names it.
fn describe(ctx: &Context, client: ClientId) -> String {
    let address = clients::address(ctx, client).unwrap_or_default();
    format!("id={} addr={address}", client.0)
}
