//! Stderr, which a thread of its own writes: a pipe that nobody reads, or a terminal that
//! is halted, must not keep lockctl from its lock and its command.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::Duration;

/// How many lines wait to be written. What comes on top is not told.
const LINES_MAX: usize = 1024;

/// How long each line is waited for, so that it comes before what the command says next.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long the last ones are waited for, when lockctl ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A line, and whom to tell that it is written. None of them is the last word.
type Line = (Option<String>, Sender<()>);

/// Where lines for stderr go.
#[derive(Clone)]
pub struct Stderr {
    lines: SyncSender<Line>,
    /// How many are not written yet.
    unwritten: Arc<AtomicUsize>,
}

impl Stderr {
    /// Starts the thread.
    pub fn open() -> io::Result<Self> {
        let (lines, coming) = mpsc::sync_channel::<Line>(LINES_MAX);
        let unwritten = Arc::new(AtomicUsize::new(0));
        let this = Self {
            lines,
            unwritten: Arc::clone(&unwritten),
        };
        let write = move || {
            for (line, written) in coming {
                if let Some(line) = line {
                    // Nobody may be there to read it, which is no reason to end the command.
                    let _ = writeln!(io::stderr(), "{line}");
                }
                unwritten.fetch_sub(1, Ordering::SeqCst);
                let _ = written.send(());
            }
        };
        thread::Builder::new().name("stderr".into()).spawn(write)?;
        Ok(this)
    }

    /// Writes a line. Waits for it a little, unless others wait already.
    pub fn tell(&self, line: String) {
        let is_first = self.unwritten.load(Ordering::SeqCst) == 0;
        self.send(Some(line), if is_first { PATIENCE } else { Duration::ZERO });
    }

    /// Waits until all is written, if somebody reads it.
    pub fn finish(&self) {
        if self.unwritten.load(Ordering::SeqCst) > 0 {
            self.send(None, FAREWELL);
        }
    }

    fn send(&self, line: Option<String>, patience: Duration) {
        let (written, is_written) = mpsc::channel();
        self.unwritten.fetch_add(1, Ordering::SeqCst);
        match self.lines.try_send((line, written)) {
            Ok(()) => drop(is_written.recv_timeout(patience)),
            Err(_) => drop(self.unwritten.fetch_sub(1, Ordering::SeqCst)),
        }
    }
}
