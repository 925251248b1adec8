//! A minority of a Redlock's servers is hurt at any time: of 2f + 1 servers at most f.
//! So a majority can always be had. What that may do to exclusion depends on the kind:
//!
//! - A server that is **stopped, slow or cut off** remembers. Any two majorities share a server,
//!   which refuses the second, early or late. What is delayed takes effect after what the
//!   client did next, but the client knows what it left unanswered, and can name the token that
//!   it means. So late messages excuse nothing, and a server that runs again counts as sound.
//! - A server that is **killed and starts empty** has forgotten its vote. A hold may rest on a
//!   bare majority, so one forgotten vote *within* its life is enough for a second one, whatever
//!   the client does. This is why Redlock asks for a delayed restart: here a killed server
//!   stays down for longer than the longest lease. No live hold ever rests on a vote that was
//!   forgotten, and the next server may be hurt as soon as it is up.
//!
//! `--restart-at-once` leaves the delay out. Then a correct Redlock has to be found at fault.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::RngExt;
use rand::rngs::StdRng;
use redis_lock_testing::Fate;

use crate::client::LEASE_MS_MAX;
use crate::clock;
use crate::fleet::{Fleet, SIDES};
use crate::history::Nanos;

/// How often to look whether something is due.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// A killed server starts this much later than the longest lease.
const SLACK_MS: u64 = 100;

const KILLED: &str = "killed and emptied";

/// What is wrong with a server.
struct Wound {
    server: usize,
    kind: &'static str,
    since: Nanos,
    heals_at: Instant,
}

/// What is wrong with the servers, and what may be.
pub struct Minority {
    /// Whether a killed server starts again while holds rest on its votes, which
    /// is not fair.
    restart_at_once: bool,
    rng: StdRng,
    wounds: Vec<Wound>,
    next: Instant,
}

impl Minority {
    /// Nothing is wrong yet. This is asked of the servers.
    pub fn new(restart_at_once: bool, rng: StdRng) -> Self {
        Self {
            restart_at_once,
            rng,
            wounds: Vec::new(),
            next: Instant::now(),
        }
    }

    /// Hurts a server or heals one, if it is time. Returns what that one suffered.
    pub fn step(&mut self, fleet: &mut Fleet) -> Result<Option<(&'static str, Nanos)>> {
        let is_due = |wound: &Wound| Instant::now() >= wound.heals_at;
        if let Some(due) = self.wounds.iter().position(is_due) {
            let wound = self.wounds.swap_remove(due);
            self.pause();
            heal(fleet, &wound)?;
            return Ok(Some((wound.kind, wound.since)));
        }
        let is_sound = |&server: &usize| self.wounds.iter().all(|one| one.server != server);
        let sound: Vec<usize> = (0..fleet.nodes.len()).filter(is_sound).collect();
        if Instant::now() >= self.next && sound.len() > fleet.nodes.len() / 2 + 1 {
            let server = sound[self.rng.random_range(0..sound.len())];
            let wound = self.hurt(fleet, server)?;
            self.wounds.push(wound);
            self.pause();
        }
        thread::sleep(LOOK_EVERY);
        Ok(None)
    }

    /// Heals all.
    pub fn end(&mut self, fleet: &mut Fleet) -> Result<()> {
        for wound in self.wounds.drain(..) {
            thread::sleep(wound.heals_at.saturating_duration_since(Instant::now()));
            heal(fleet, &wound)?;
        }
        Ok(())
    }

    /// What comes next often comes at once.
    fn pause(&mut self) {
        let pause_ms = match self.rng.random_range(0..10) {
            0..6 => 0,
            6..9 => self.rng.random_range(1..=100),
            _ => self.rng.random_range(100..=1000),
        };
        self.next = Instant::now() + Duration::from_millis(pause_ms);
    }

    fn hurt(&mut self, fleet: &mut Fleet, server: usize) -> Result<Wound> {
        let since = clock::now();
        let long = self.rng.random_bool(0.5);
        let mut ms = self
            .rng
            .random_range(if long { 200..=1500 } else { 10..=200 });
        // Some clients may reach a server that others can't.
        let mut sides = [(); SIDES].map(|()| self.rng.random_bool(0.5));
        sides[self.rng.random_range(0..SIDES)] = true;
        let (kind, fate) = match self.rng.random_range(0..10) {
            0..4 => (KILLED, Fate::Down),
            4..7 => ("stopped", Fate::Passes),
            7 => {
                let delay = Duration::from_millis(self.rng.random_range(5..=200));
                ("slow", Fate::Delayed(delay))
            }
            8 => ("cut off, messages kept back", Fate::KeptBack),
            _ => ("cut off, messages lost", Fate::Swallowed),
        };
        match kind {
            KILLED => {
                fleet.set(server, [true; SIDES], fate);
                fleet.nodes[server].server.crash();
                // A vote may have been cast until now.
                ms = match self.restart_at_once {
                    true => 0,
                    false => LEASE_MS_MAX + SLACK_MS,
                };
            }
            "stopped" => fleet.nodes[server].server.stop()?,
            _ => fleet.set(server, sides, fate),
        }
        Ok(Wound {
            server,
            kind,
            since,
            heals_at: Instant::now() + Duration::from_millis(ms),
        })
    }
}

fn heal(fleet: &mut Fleet, wound: &Wound) -> Result<()> {
    let server = &mut fleet.nodes[wound.server].server;
    if wound.kind == KILLED {
        // It comes back empty.
        server.restart()?;
    } else {
        let examined = server.examine();
        examined.with_context(|| format!("it was {}", wound.kind))?;
        server.go_on()?;
    }
    fleet.set(wound.server, [true; SIDES], Fate::Passes);
    Ok(())
}
