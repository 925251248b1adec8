//! `lockctl top`: holders and waiters, live.

mod sampling;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::pin::pin;

use rustix::process::Signal;

use crate::arguments::TopOptions;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::which_server::WhichServer;
use sampling::Sampler;
use screen::Screen;

/// Shows contended locks until somebody presses q, or as often as asked.
pub async fn top(server: &WhichServer, json: bool, options: &TopOptions) -> Result<Exit, Failure> {
    let mut sampler = Sampler::connect(server, options).await?;
    let times = options.times.unwrap_or(u64::MAX);
    if json {
        return print(&mut sampler, options, times).await;
    }
    if !io::stdout().is_terminal() {
        return Err(Failure::Usage("top needs a terminal, or --json"));
    }
    let mut signals = Signals::listen()?;
    let mut screen = Screen::open(&server.address(), options.interval)?;
    let mut ticks = tokio::time::interval(options.interval);
    ticks.tick().await;
    for _ in 0..times {
        let sample = match show_during(sampler.sample(), &mut screen, &mut signals).await? {
            ControlFlow::Continue(sample) => sample,
            ControlFlow::Break(exit) => return Ok(exit),
        };
        screen.add(sample);
        let next = show_during(ticks.tick(), &mut screen, &mut signals).await?;
        if let ControlFlow::Break(exit) = next {
            return Ok(exit);
        }
    }
    Ok(Exit::SUCCESS)
}

/// Shows what there is until this is done, or until somebody has seen enough.
async fn show_during<T>(
    done: impl Future<Output = T>,
    screen: &mut Screen,
    signals: &mut Signals,
) -> io::Result<ControlFlow<Exit, T>> {
    let mut done = pin!(done);
    loop {
        screen.draw()?;
        tokio::select! {
            result = &mut done => return Ok(ControlFlow::Continue(result)),
            key = screen.key() => if key?.is_break() {
                return Ok(ControlFlow::Break(Exit::SUCCESS));
            },
            signal = signals.next() => match signal {
                Signal::TSTP => screen.suspend()?,
                Signal::WINCH => {}
                signal => return Ok(ControlFlow::Break(Exit::Signal(signal.as_raw()))),
            },
        }
    }
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
