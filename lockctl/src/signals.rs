//! The signals that somebody sends to lockctl, which `lockctl run` forwards to its command.

use std::io;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::exit::Exit;

/// What a user or an operator sends to a program, by hand or by the terminal.
const HEARD: [Signal; 8] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::WINCH,
];

/// The signals that came.
pub struct Signals(UnboundedReceiver<Signal>);

impl Signals {
    /// Begins to listen. What this process was told to ignore, by `nohup` or by
    /// a shell that started it in the background, stays ignored.
    pub fn listen() -> io::Result<Self> {
        let (sender, receiver) = unbounded_channel();
        for number in HEARD {
            if is_ignored(number) {
                continue;
            }
            let mut coming = signal(SignalKind::from_raw(number.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while coming.recv().await.is_some() && sender.send(number).is_ok() {}
            });
        }
        Ok(Self(receiver))
    }

    /// The next one.
    pub async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // All of them are ignored.
            None => std::future::pending().await,
        }
    }

    /// The next one that ends a program, where there is no command yet to
    /// forward it to.
    pub async fn end_before_start(&mut self) -> Exit {
        loop {
            match self.next().await {
                // As the terminal would have stopped it.
                Signal::TSTP => with(libc::SIG_DFL, Signal::TSTP, || {
                    let _ = kill_process(getpid(), Signal::TSTP);
                }),
                Signal::WINCH => {}
                signal => return Exit::Signal(signal.as_raw()),
            }
        }
    }
}

/// Whether a signal asks a program to end.
pub fn is_to_end(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// Does this while a signal is ignored.
pub fn ignoring<T>(signal: Signal, act: impl FnOnce() -> T) -> T {
    with(libc::SIG_IGN, signal, act)
}

#[allow(unsafe_code, reason = "only libc tells and sets dispositions")]
fn with<T>(disposition: libc::sighandler_t, signal: Signal, act: impl FnOnce() -> T) -> T {
    // SAFETY: all zeros are a valid `sigaction`, no handler is set that could run at a bad
    // time, and afterwards all is as before.
    unsafe {
        let mut meanwhile: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        meanwhile.sa_sigaction = disposition;
        libc::sigaction(signal.as_raw(), &raw const meanwhile, &raw mut before);
        let done = act();
        libc::sigaction(signal.as_raw(), &raw const before, std::ptr::null_mut());
        done
    }
}

#[allow(unsafe_code, reason = "only libc tells and sets dispositions")]
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: all zeros are a valid `sigaction`, and without a new one nothing
    // changes.
    unsafe {
        let mut present: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal.as_raw(), std::ptr::null(), &mut present) == 0
            && present.sa_sigaction == libc::SIG_IGN
    }
}
