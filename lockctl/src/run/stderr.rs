//! Stderr, which a thread of its own writes: a pipe that nobody reads, or a terminal that
//! is halted, must not keep lockctl from its lock and its command.

use std::io::{self, Write};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::Duration;

/// How many lines wait to be written. What comes on top is not told.
const LINES_MAX: usize = 1024;

/// How long each line is waited for, so that it comes before what the command says next.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where lines for stderr go, each with whom to tell that it is written.
pub struct Stderr(SyncSender<(String, Sender<()>)>);

impl Stderr {
    /// Starts the thread.
    pub fn open() -> io::Result<Self> {
        let (lines, coming) = mpsc::sync_channel::<(String, Sender<()>)>(LINES_MAX);
        let write = move || {
            for (line, written) in coming {
                // Nobody may be there to read it, which is no reason to end the command.
                let _ = writeln!(io::stderr(), "{line}");
                let _ = written.send(());
            }
        };
        thread::Builder::new().name("stderr".into()).spawn(write)?;
        Ok(Self(lines))
    }

    /// Writes a line, and waits for that a little.
    pub fn tell(&self, line: String) {
        let (written, is_written) = mpsc::channel();
        if self.0.try_send((line, written)).is_ok() {
            let _ = is_written.recv_timeout(PATIENCE);
        }
    }
}
