//! Whether the machine had time: what tests of promptness are judged against.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::{processors, stay_on};

/// How long a sleeper sleeps.
const TICK: Duration = Duration::from_millis(1);
/// Judgements that a scene needs.
const JUDGEMENTS: usize = 3;
/// How long a judge tries to get them. A machine that has no time for that long shows
/// nothing either way.
const PATIENCE: Duration = Duration::from_secs(60);

/// A thread on each processor that only sleeps, again and again. Where one is
/// woken late, so may be anybody else.
pub struct Control {
    sleepers: Vec<Sleeper>,
}

/// From when to when it slept: where that took much too long, and its last sleep.
type Sleeper = Arc<Mutex<Vec<(Instant, Instant)>>>;

impl Control {
    /// Starts the threads. They end with this.
    pub fn start() -> Self {
        let processors = processors().unwrap().into_iter();
        let sleepers = processors.map(sleep_on).collect();
        Self { sleepers }
    }

    /// The longest time that one of them overslept between two moments.
    pub fn stalled(&self, from: Instant, to: Instant) -> Duration {
        let stalls = self.sleepers.iter().map(|sleeper| {
            let slept_until = || sleeper.lock().unwrap().last().map(|sleep| sleep.1);
            while slept_until() < Some(to) {
                thread::sleep(TICK);
            }
            let sleeps = sleeper.lock().unwrap();
            let within = sleeps.iter().filter(|sleep| sleep.0 < to && sleep.1 > from);
            let overslept = within.map(|sleep| (sleep.1 - sleep.0).saturating_sub(TICK));
            overslept.max()
        });
        stalls.max().flatten().unwrap_or_default()
    }
}

fn sleep_on(processor: usize) -> Sleeper {
    let sleeps = Arc::new(Mutex::new(vec![(Instant::now(), Instant::now())]));
    let noted = Arc::downgrade(&sleeps);
    thread::spawn(move || {
        // It may have been taken from us meanwhile. Then another will do.
        let _ = stay_on(processor);
        while let Some(sleeps) = noted.upgrade() {
            thread::sleep(TICK);
            let mut sleeps = sleeps.lock().unwrap();
            let (begun, ended) = sleeps[sleeps.len() - 1];
            if ended - begun <= 2 * TICK {
                sleeps.pop();
            }
            sleeps.push((ended, Instant::now()));
        }
    });
    sleeps
}

/// Judges how promptly things happen. What is late counts only if the machine
/// had time for it; else the scene is played again.
pub struct Judge {
    what: &'static str,
    limit: Duration,
    control: Control,
    begun: Instant,
    judged: usize,
}

impl Judge {
    /// A judge of something that takes less than this.
    pub fn new(what: &'static str, limit: Duration) -> Self {
        Self {
            what,
            limit,
            control: Control::start(),
            begun: Instant::now(),
            judged: 0,
        }
    }

    /// Whether the scene has to be played again.
    pub fn wants_more(&self) -> bool {
        self.judged < JUDGEMENTS && self.begun.elapsed() < PATIENCE
    }

    /// Judges what took from then to then.
    #[track_caller]
    pub fn judge(&mut self, begun: Instant, ended: Instant) {
        let took = ended.saturating_duration_since(begun);
        if took < self.limit {
            self.judged += 1;
            return;
        }
        let stalled = self.control.stalled(begun, ended);
        let (what, limit) = (self.what, self.limit);
        assert!(
            stalled > limit / 5,
            "{what}: took {took:?} and not {limit:?}; the machine stalled for {stalled:?}"
        );
        eprintln!("{what}: not judged, as the machine stalled for {stalled:?}");
    }
}
