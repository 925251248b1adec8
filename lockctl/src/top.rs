//! `lockctl top`: holders and waiters, live.

mod sampling;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use crate::arguments::TopOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use sampling::Sampler;
use screen::Screen;

/// Shows contended locks until somebody presses q, or as often as asked.
pub async fn top(url: &str, json: bool, options: &TopOptions) -> Result<Exit, Failure> {
    let mut sampler = Sampler::connect(url, options).await?;
    let times = options.times.unwrap_or(u64::MAX);
    if json {
        return print(&mut sampler, options, times).await;
    }
    if !io::stdout().is_terminal() {
        return Err(Failure::Usage("top needs a terminal, or --json"));
    }
    let mut screen = Screen::open(sampler.address(), options.interval)?;
    for _ in 0..times {
        let next_at = Instant::now() + options.interval;
        screen.add(sampler.sample().await);
        if screen.show_until(next_at)?.is_break() {
            break;
        }
    }
    Ok(Exit::SUCCESS)
}

/// Writes a line of JSON each time. Where the server does not answer, that is
/// told and tried again.
async fn print(sampler: &mut Sampler, options: &TopOptions, times: u64) -> Result<Exit, Failure> {
    let mut ticks = tokio::time::interval(options.interval);
    for _ in 0..times {
        ticks.tick().await;
        match sampler.sample().await {
            Ok(sample) => writeln!(io::stdout(), "{}", serde_json::to_string(&sample)?)?,
            Err(failure) => failure.print(true),
        }
    }
    Ok(Exit::SUCCESS)
}
