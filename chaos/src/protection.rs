//! What the servers are told to do about fail-overs, and by which clocks they do it.

use std::fmt::{self, Display};

use redis_lock_testing::Clock;

use crate::fleet::NODES;

/// How long what is told by a message lasts unclaimed.
pub const CLAIM_TIMEOUT_MS: u64 = 600;

/// How long a primary waits for acknowledgements.
const REPLICAS_TIMEOUT_MS: u64 = 500;

/// What the grace period has to be longer than the longest lease: a replica may
/// lag for a second (`min-replicas-max-lag`), which is looked at each second.
const BEYOND_LEASE_MS: u64 = 3200;

/// The means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// None.
    Plain,
    /// Grants are told when replicas have acknowledged them.
    MinReplicas,
    /// Nothing is granted for a while after a start or a promotion.
    Grace,
}

/// The means, and what it depends on.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    /// The means.
    pub mode: Mode,
    /// No lease is longer.
    pub lease_max_ms: u64,
    /// How many microseconds a second one node gains and another loses, if clocks differ.
    pub drift_ppm: Option<i64>,
}

impl Protection {
    /// None, where no lease is longer than this.
    pub fn none(lease_max_ms: u64) -> Self {
        Self {
            mode: Mode::Plain,
            lease_max_ms,
            drift_ppm: None,
        }
    }

    pub fn settings(&self) -> Vec<(&'static str, String)> {
        // All of them have to have it, or to be there.
        let replicas = (NODES - 1).to_string();
        let mut settings = match self.mode {
            Mode::Plain => Vec::new(),
            Mode::MinReplicas => vec![
                ("lock.min-replicas", replicas),
                ("lock.replicas-timeout", REPLICAS_TIMEOUT_MS.to_string()),
            ],
            Mode::Grace => vec![
                ("min-replicas-to-write", replicas),
                ("min-replicas-max-lag", "1".to_owned()),
                ("lock.max-lease", self.lease_max_ms.to_string()),
                ("lock.grace-period", self.grace_ms().to_string()),
            ],
        };
        settings.push(("lock.claim-timeout", CLAIM_TIMEOUT_MS.to_string()));
        settings
    }

    /// The clock of this node, if not the machine's: up to a second ahead or behind at first.
    pub fn clock(&self, node: usize) -> Option<Clock> {
        let (drift_ppm, clock) = (self.drift_ppm?, Clock::new());
        let seconds = [0, 1, -1][node % 3];
        clock.set_ahead(seconds);
        clock.gain_ppm(seconds * drift_ppm);
        Some(clock)
    }

    /// How long what is told by a message lasts unclaimed.
    pub fn claim_ms(&self) -> u64 {
        CLAIM_TIMEOUT_MS + self.acknowledged_ms()
    }

    pub fn response_ms(&self) -> u64 {
        500 + self.acknowledged_ms()
    }

    fn acknowledged_ms(&self) -> u64 {
        match self.mode {
            Mode::MinReplicas => REPLICAS_TIMEOUT_MS,
            Mode::Plain | Mode::Grace => 0,
        }
    }

    /// How long nothing is granted after a promotion.
    pub fn grace_ms(&self) -> u64 {
        match self.mode {
            Mode::Grace => self.lease_max_ms + BEYOND_LEASE_MS,
            Mode::Plain | Mode::MinReplicas => 0,
        }
    }

    /// Whether a hold that was told is there after a fail-over. With a grace
    /// period it may be lost, though nobody else gets the lock too early.
    pub fn keeps_holds(&self) -> bool {
        self.mode != Mode::Grace
    }

    /// Whether a primary that restarts empty may be the primary again. Replicas
    /// that have what it forgot forget it, too.
    pub fn survives_an_empty_start(&self) -> bool {
        self.mode != Mode::MinReplicas
    }
}

impl Display for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, lease_max_ms) = (self.mode, self.lease_max_ms);
        write!(formatter, "mode {mode:?}, leases up to {lease_max_ms} ms")?;
        for (name, value) in self.settings() {
            write!(formatter, ", {name} {value}")?;
        }
        if let Some(ppm) = self.drift_ppm {
            write!(formatter, ", clocks 2 s apart that drift by {ppm} ppm")?;
        }
        Ok(())
    }
}
