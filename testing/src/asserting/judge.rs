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
    sleepers: Vec<Arc<Mutex<Sleeper>>>,
}

struct Sleeper {
    awake: Instant,
    /// From when to when it slept much too long.
    stalls: Vec<(Instant, Instant)>,
}

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
            loop {
                let sleeper = sleeper.lock().unwrap();
                if sleeper.awake >= to {
                    let stalls = sleeper.stalls.iter();
                    let within = stalls.filter(|stall| stall.0 < to && stall.1 > from);
                    return within.map(|stall| stall.1 - stall.0 - TICK).max();
                }
                drop(sleeper);
                thread::sleep(TICK);
            }
        });
        stalls.max().flatten().unwrap_or_default()
    }
}

fn sleep_on(processor: usize) -> Arc<Mutex<Sleeper>> {
    let sleeper = Arc::new(Mutex::new(Sleeper {
        awake: Instant::now(),
        stalls: Vec::new(),
    }));
    let noted = Arc::downgrade(&sleeper);
    thread::spawn(move || {
        // It may have been taken from us meanwhile. Then another will do.
        let _ = stay_on(processor);
        while let Some(noted) = noted.upgrade() {
            thread::sleep(TICK);
            let mut noted = noted.lock().unwrap();
            let before = std::mem::replace(&mut noted.awake, Instant::now());
            if noted.awake - before > 2 * TICK {
                let stall = (before, noted.awake);
                noted.stalls.push(stall);
            }
        }
    });
    sleeper
}

/// Judges how promptly things happen. What is late counts only if the machine
/// had time for it; else the scene is played again.
pub struct Judge {
    what: &'static str,
    limit: Duration,
    control: Control,
    begun: Instant,
    judged: usize,
    not_judged: usize,
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
            not_judged: 0,
        }
    }

    /// Whether the scene has to be played again.
    pub fn wants_more(&self) -> bool {
        let wants = self.judged < JUDGEMENTS && self.begun.elapsed() < PATIENCE;
        if !wants {
            let (judged, not_judged) = (self.judged, self.not_judged);
            eprintln!("{}: {judged} judged, {not_judged} not judged", self.what);
        }
        wants
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
        self.not_judged += 1;
    }
}
