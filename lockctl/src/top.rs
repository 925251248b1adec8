//! `lockctl top`: holders and waiters, live.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_client::redis::cmd;
use rustix::termios::tcgetwinsize;
use serde_json::Value;

use crate::arguments::TopOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::name::Object;
use crate::server::Server;
use crate::view::{LockView, contended, ms, seconds, table};

const SHORTEST: Duration = Duration::from_millis(100);

/// From the first row and column on, nothing is shown.
const CLEARED: &str = "\x1b[H\x1b[2J";

/// Shows contended locks until somebody ends it, or as often as asked.
pub async fn top(server: &Server, json: bool, options: &TopOptions) -> Result<Exit, Failure> {
    let client = server.connect().await?;
    if !json && !io::stdout().is_terminal() {
        return Err(Failure::Usage("top needs a terminal, or --json"));
    }
    let mut ticks = tokio::time::interval(options.interval.max(SHORTEST));
    let mut before = None;
    for _ in 0..options.times.unwrap_or(u64::MAX) {
        ticks.tick().await;
        match (
            Sample::take(server, &client, options, &mut before).await,
            json,
        ) {
            (Ok(sample), true) => writeln!(io::stdout(), "{}", sample.json())?,
            (Ok(sample), false) => draw(server, &sample.lines())?,
            // The server may come back.
            (Err(failure), true) => failure.print(true),
            (Err(failure), false) => draw(server, &[failure.to_string()])?,
        }
    }
    Ok(Exit::SUCCESS)
}

/// Shows as many of these lines as fit the terminal.
fn draw(server: &Server, lines: &[String]) -> io::Result<()> {
    let (rows, columns) = match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => (usize::MAX, usize::MAX),
    };
    let title = format!("lockctl top   {}   Ctrl-C ends it", server.address());
    let lines = std::iter::once(title.as_str()).chain(lines.iter().flat_map(|it| it.lines()));
    let lines = lines
        .take(rows)
        .map(|line| line.chars().take(columns).collect::<String>());
    let mut out = io::stdout().lock();
    write!(out, "{CLEARED}{}", lines.collect::<Vec<_>>().join("\r\n"))?;
    out.flush()
}

/// What was seen at one time.
struct Sample {
    locks: Vec<LockView>,
    /// Grants and releases.
    per_second: [Option<f64>; 2],
}

/// Grants and releases since the servers started.
type Counted = (Instant, [u64; 2]);

impl Sample {
    /// Looks once. `before` is what was counted at the look before.
    async fn take(
        server: &Server,
        client: &LockClient,
        options: &TopOptions,
        before: &mut Option<Counted>,
    ) -> Result<Self, Failure> {
        let stuck_after = options.stuck.after;
        let locks = contended(server, client, options.count, stuck_after).await?;
        let at = Instant::now();
        let infos: Vec<String> = server.ask(cmd("INFO").arg("lock")).await?;
        let counted = |name| infos.iter().filter_map(move |info| counter(info, name));
        let count = |name| counted(name).sum::<u64>();
        let grants = count("lock_grants_immediate") + count("lock_grants_after_wait");
        let now = (at, [grants, count("lock_releases")]);
        let before = before.replace(now);
        Ok(Self {
            locks,
            per_second: [0, 1].map(|nth| rate(before?, now, nth)),
        })
    }

    fn waiting(&self) -> u64 {
        self.locks.iter().map(|view| view.lock.waiting).sum()
    }

    fn longest_wait(&self) -> Duration {
        let longest = self.locks.iter().filter_map(LockView::longest_wait).max();
        longest.unwrap_or_default()
    }

    fn json(&self) -> Object {
        let locks = Value::from_iter(self.locks.iter().map(LockView::json));
        Object::default()
            .set("waiting", self.waiting())
            .set("longest_wait_ms", ms(self.longest_wait()))
            .set("grants_per_second", self.per_second[0])
            .set("releases_per_second", self.per_second[1])
            .set("locks", locks)
    }

    fn lines(&self) -> Vec<String> {
        let [grants, releases] = (self.per_second)
            .map(|rate| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}")));
        let totals = format!(
            "{} contended, {} waiting, longest {}; {grants} grants/s, {releases} releases/s",
            self.locks.len(),
            self.waiting(),
            seconds(self.longest_wait()),
        );
        std::iter::once(totals).chain(table(&self.locks)).collect()
    }
}

/// A counter of `INFO lock`.
pub fn counter(info: &str, name: &str) -> Option<u64> {
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let mut counts = fields.filter(|(field, _)| *field == name);
    counts.next()?.1.trim().parse().ok()
}

/// How much a count has grown each second. A server that was started anew has none to
/// compare with.
fn rate(before: Counted, now: Counted, nth: usize) -> Option<f64> {
    let grown = now.1[nth].checked_sub(before.1[nth])?;
    let rate = grown as f64 / (now.0 - before.0).as_secs_f64();
    rate.is_finite().then(|| (rate * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_by_the_second_and_start_anew_with_the_server() {
        let first = (Instant::now(), [10, 5]);
        let later = (first.0 + Duration::from_secs(2), [40, 2]);
        assert_eq!(rate(first, later, 0), Some(15.0));
        assert_eq!(rate(first, later, 1), None);
        assert_eq!(rate(first, first, 0), None);
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let info = "# lock\r\nlock_releases_broken:3\r\nlock_releases:7\r\n";
        assert_eq!(counter(info, "lock_releases"), Some(7));
        assert_eq!(counter(info, "lock"), None);
    }
}
