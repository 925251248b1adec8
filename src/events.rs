//! What the server tells the module without a command of ours: somebody did
//! something to a key, a connection ended, a database was flushed, a setting
//! changed.
//!
//! Architecture invariant: nothing here decides or writes; it tells the manager.

use redis_module::server_events::{LoadingSubevent, ServerRole};
use redis_module::{Context, InfoContext, RedisResult};
use redis_module_macros::{
    config_changed_event_handler, info_command_handler, loading_event_handler,
    role_changed_event_handler,
};

use crate::config;
use crate::manager::{self, acks, gate, inspect};
use crate::server::blocked;
use crate::server::hooks::Hooks;
use crate::server::keyspace;
use crate::server::panics;
use crate::server::replicas;
use redis_lock_core::grace;
use redis_lock_core::metrics::Metrics;
use redis_lock_core::table::Totals;

/// The functions that hear what happens to keys, connections and waiters. Mostly it does not
/// matter which event it was: if somebody waits for the key, the table looks at it and sees.
pub(crate) static HOOKS: Hooks = Hooks {
    key_event: manager::key_event,
    everything_touched: manager::everything_touched,
    connection_ended: manager::connection_ended,
    waiter_left: manager::waiter_left,
    replicas_changed: acks::replicas_changed,
    turn_ends: |ctx| {
        if acks::awaits_replicas() {
            acks::turn_ends(ctx);
            blocked::wake_answered();
        }
    },
    grant_said: manager::grant_said,
    grant_told: manager::grant_told,
    on_cron: manager::on_cron,
    on_wake: manager::on_wake,
};

/// A replica that takes over has heard of changes as its primary's commands, or has
/// loaded a data set without hearing of any.
#[role_changed_event_handler]
fn on_role_changed(ctx: &Context, role: ServerRole) {
    panics::catch("a role event", || {
        let is_primary = role == ServerRole::Primary;
        manager::set_receives(!is_primary);
        gate::role_changed(ctx, is_primary);
        manager::role_changed(ctx);
    });
}

/// A server loads data, or has loaded its own and begins to serve it.
#[loading_event_handler]
fn on_loading(ctx: &Context, stage: LoadingSubevent) {
    panics::catch("a loading event", || {
        let is_over = matches!(stage, LoadingSubevent::Ended | LoadingSubevent::Failed);
        manager::set_receives(!is_over || keyspace::is_replica(ctx));
        if stage == LoadingSubevent::Ended {
            gate::server_started(ctx);
        }
    });
}

/// `INFO lock`
#[info_command_handler]
fn on_info(ctx: &InfoContext, for_crash_report: bool) -> RedisResult<()> {
    if for_crash_report {
        // The state may be what crashed.
        return Ok(());
    }
    // A section without a name of its own has that of the module.
    let mut section = ctx.builder().add_section("");
    section = section.field("version", env!("CARGO_PKG_VERSION"))?;
    for (name, number) in inspect::totals(info_fields) {
        section = section.field(&name, number.to_string())?;
    }
    section.build_section()?.build_info()?;
    Ok(())
}

/// Plain numbers with names that stay, so that exporters can take them as they
/// are. The server puts the module's name in front of each.
fn info_fields(totals: &Totals, metrics: &Metrics) -> Vec<(String, u64)> {
    let counts = totals.counts;
    let mut fields: Vec<(String, u64)> = [
        ("waiters", unsigned(counts.waiters)),
        ("places", unsigned(counts.places)),
        ("contended_keys", unsigned(counts.contended_keys)),
        ("planned_looks", unsigned(counts.planned_rechecks)),
        ("sessions", unsigned(totals.sessions)),
        ("longest_wait_ms", unsigned(totals.longest_wait_ms)),
        ("grants_immediate", metrics.grants_immediate),
        ("grants_after_wait", metrics.grants_after_wait),
        ("hand_offs", metrics.hand_offs),
        ("reentries", metrics.reentries),
        ("grants_undelivered", metrics.grants_undelivered),
        ("replies_withheld", unsigned(totals.withheld)),
        ("replies_unacknowledged", metrics.replies_unacknowledged),
        ("claims", metrics.claims),
        ("grants_unclaimed", metrics.grants_unclaimed),
        ("places_unheard", metrics.places_unheard),
        ("wait_timeouts", metrics.wait_timeouts),
        ("waits_abandoned", metrics.waits_abandoned),
        ("waits_refused", metrics.waits_refused),
        ("releases", metrics.releases),
        ("releases_expired", metrics.releases_expired),
        ("releases_session", metrics.releases_session),
        ("releases_broken", metrics.releases_broken),
        ("releases_deleted", metrics.releases_deleted),
        ("superseded", metrics.superseded),
        ("deadlocks_refused", metrics.deadlocks_refused),
        ("tokens_refused", metrics.tokens_refused),
        ("queues_full", metrics.queues_full),
        ("grace_ms", unsigned(gate::grace_left_ms())),
        ("replicas_missing", unsigned(acks::replicas_missing())),
    ]
    .map(|(name, number)| (name.to_owned(), number))
    .into();
    for (what, times) in [("wait", &metrics.waits), ("hold", &metrics.holds)] {
        let summary = times.summary();
        fields.extend([
            (format!("{what}_count"), summary.count),
            (format!("{what}_us_p50"), summary.p50_us),
            (format!("{what}_us_p99"), summary.p99_us),
            (format!("{what}_us_p999"), summary.p999_us),
            (format!("{what}_us_max"), summary.max_us),
        ]);
    }
    fields
}

fn unsigned(number: impl TryInto<u64>) -> u64 {
    number.try_into().unwrap_or(0)
}

#[config_changed_event_handler]
fn on_setting_changed(ctx: &Context, names: &[&str]) {
    panics::catch("a settings event", || {
        if names.contains(&"maxmemory-policy") {
            warn_if_locks_may_be_evicted(ctx);
        }
        manager::settings_changed(ctx);
        if names.contains(&"lock.grace-period") {
            gate::grace_period_set(ctx);
        }
        if names.contains(&"lock.min-replicas") {
            acks::requirement_set(ctx);
        }
        let is_of_replicas =
            |name: &&str| name.starts_with("min-replicas-") || name.starts_with("min-slaves-");
        let demand_set = names.iter().any(is_of_replicas);
        if demand_set {
            gate::demand_set(ctx);
        }
        if demand_set || names.contains(&"lock.grace-period") || names.contains(&"lock.max-lease") {
            warn_if_grace_falls_short(ctx);
        }
    });
}

/// A lock is a key with an expiry, and every policy but `noeviction` may evict
/// such a key: its holder would lose it without a sign.
pub(crate) fn warn_if_locks_may_be_evicted(ctx: &Context) {
    if let Some(policy) = config::of_server(ctx, "maxmemory-policy")
        && policy != "noeviction"
    {
        ctx.log_warning(&format!(
            "maxmemory-policy is '{policy}': the server may evict locks that are held. \
             Set 'maxmemory-policy noeviction' on a server that keeps locks."
        ));
    }
}

/// With a grace period, the settings should add up to what it is for.
pub(crate) fn warn_if_grace_falls_short(ctx: &Context) {
    let max_lag_ms = replicas::demand(ctx).map(|demand| demand.max_lag_s.saturating_mul(1000));
    let (length_ms, max_lease) = (config::GRACE_PERIOD_MS.get(), config::max_lease());
    if let Some(why) = grace::shortcoming(length_ms, max_lease.ms(), max_lag_ms) {
        ctx.log_warning(why);
    }
}
