//! What a server has done so far.

#![allow(dead_code, reason = "no test uses all of it")]

use redis_lock_testing::Client;

/// How often each command was called, as the server writes its name.
fn calls_by_name(observer: &mut Client) -> Vec<(String, u64)> {
    let info = observer.bulk("INFO commandstats");
    let of = |line: &str| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = stats.strip_prefix("calls=")?.split(',').next()?;
        Some((name.to_lowercase(), calls.parse().ok()?))
    };
    info.lines().filter_map(of).collect()
}

/// How often this command was called, a subcommand as `client|list`.
pub fn calls(observer: &mut Client, command: &str) -> u64 {
    let all = calls_by_name(observer);
    let of = |(name, calls): (String, u64)| (name == command).then_some(calls);
    all.into_iter().find_map(of).unwrap_or_default()
}

/// How often any command was called but `INFO`, with which this counts.
pub fn all_calls(observer: &mut Client) -> u64 {
    let all = calls_by_name(observer);
    let others = all.into_iter().filter(|(name, _)| name != "info");
    others.map(|(_, calls)| calls).sum()
}
