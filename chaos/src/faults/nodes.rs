//! What is done to the nodes.
//!
//! # Behind witnesses
//!
//! A fault begins when both replicas have synchronized with the primary, and all witnesses
//! agree on it. So the one that is promoted has not restarted since it acknowledged the holds
//! that count. A node that was killed comes back empty, as what it was at first: the old
//! primary as a primary. That loses writes, which only the grace period promises to survive.
//! In the other protected mode it comes back when all witnesses agree on another primary.
//!
//! Every node connects from a loopback address of its own, and announces proxies as the
//! addresses where others reach it. So it can be cut off from each of them, and what goes by
//! meanwhile is lost, or arrives late. With `--packets` it announces itself, and the kernel
//! loses packets, to it, from it or both. Clients have proxies of their own, one for each
//! side, so they may still reach a primary that its peers don't.

use std::time::Duration;

use anyhow::{Result, bail};
use rand::RngExt;
use rand::seq::IndexedRandom;
use redis::Value;
use redis_lock_testing::{Fate, comes_true};

use super::Faults;
use crate::clock;
use crate::fleet::{Cut, NODES, SIDES};
use crate::history::Effect::{BringsBack, EndsHolds, HoldsCommandsBack, StopsTheServer};

const FAILOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server does with its writes before it replies: it leaves them to the operating
/// system, has them on disk a second later, or has them there.
const FSYNCS: [&str; 4] = ["no", "everysec", ALWAYS, ALWAYS];
const ALWAYS: &str = "always";

/// What becomes of what is sent to a node that is cut off, and what it sends.
const CUTS: [Cut; 3] = [
    (Fate::Swallowed, [true, true]),
    (Fate::KeptBack, [true, false]),
    (Fate::KeptBack, [false, true]),
];

/// How a node is hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hurt {
    Killed,
    Stopped,
    CutOff,
    CutOffFromWitnesses,
    CutOffFromPrimary,
}

impl Faults {
    pub(super) fn set_any_fsync(&mut self) -> Result<()> {
        self.fsync = FSYNCS.choose(&mut self.rng).unwrap_or(&ALWAYS);
        let mut nodes = 0..self.fleet.nodes.len();
        nodes.try_for_each(|node| self.fleet.configure(node, "appendfsync", self.fsync))
    }

    /// The primary crashes and comes back on its data, or without them where
    /// it has promised nobody to keep them.
    pub(super) fn crash(&mut self) -> Result<bool> {
        let loses_writes = self.fsync != ALWAYS;
        let forget = loses_writes && self.rng.random_bool(0.5);
        self.admin = None;
        let from = clock::now();
        self.fleet.nodes[self.primary].server.crash();
        if loses_writes {
            self.note_effects("crash", &[EndsHolds, BringsBack], from);
        }
        self.sleep(0, 500);
        let server = &mut self.fleet.nodes[self.primary].server;
        if forget {
            let _ = std::fs::remove_dir_all(server.dir.join("appendonlydir"));
        }
        server.restart()?;
        // The new process knows of no session.
        let effects = [StopsTheServer, HoldsCommandsBack];
        self.note_effects("crash", &effects, from);
        self.set_any_fsync()?;
        Ok(true)
    }

    /// The replica of the only primary, if it is in step.
    fn replica_in_step(&self) -> Option<usize> {
        let replica = 1 - self.primary;
        let nodes = &self.fleet.nodes;
        let is_in_step = nodes[replica].follows(&nodes[self.primary]);
        is_in_step.then_some(replica)
    }

    /// The primary hands over to its replica, which is promised to lose nothing.
    pub(super) fn fail_over(&mut self) -> Result<bool> {
        let Some(replica) = self.replica_in_step() else {
            return Ok(false);
        };
        let from = clock::now();
        if self.call(&["FAILOVER", "TIMEOUT", "5000"]) != Some(Value::Okay) {
            return Ok(false);
        }
        let roles = |primary: &str, replica_is: &str| {
            let here = self.fleet.nodes[self.primary].replication();
            let there = self.fleet.nodes[replica].replication();
            let is_over = |info: &String| info.contains("master_failover_state:no-failover");
            here.is_some_and(|info| is_over(&info) && info.contains(primary))
                && there.is_some_and(|info| info.contains(replica_is))
        };
        let is_promoted = || roles("role:slave", "role:master");
        let is_given_up = || roles("role:master", "role:slave");
        if !comes_true(FAILOVER_TIMEOUT, || is_promoted() || is_given_up()) {
            bail!("the fail-over does not end");
        }
        let is_promoted = is_promoted();
        if is_promoted {
            self.admin = None;
            self.fleet.lead_to(replica);
        }
        self.note_effects("fail-over", &[HoldsCommandsBack], from);
        Ok(is_promoted)
    }

    /// The primary crashes, and its replica takes over with what it has.
    pub(super) fn promote(&mut self) -> Result<bool> {
        let Some(replica) = self.replica_in_step() else {
            return Ok(false);
        };
        let (old, from) = (self.primary, clock::now());
        self.fleet.nodes[old].server.crash();
        self.admin = self.fleet.nodes[replica].server.connect().ok();
        if self.call(&["REPLICAOF", "NO", "ONE"]) != Some(Value::Okay) {
            bail!("the replica can't be promoted");
        }
        let effects = [EndsHolds, BringsBack, StopsTheServer];
        self.note_effects("promotion", &effects, from);
        self.fleet.lead_to(replica);
        self.fleet.nodes[old].server.restart()?;
        self.fleet.configure(old, "appendfsync", self.fsync)?;
        let nodes = &self.fleet.nodes;
        nodes[old].follow(&nodes[replica])?;
        Ok(true)
    }

    /// Does this to a node. What does not reach it then is lost, or arrives later.
    fn hurt(&mut self, node: usize, how: Hurt) -> Result<()> {
        let cut = CUTS[self.rng.random_range(0..CUTS.len())];
        let others = match how {
            Hurt::Killed | Hurt::Stopped => Vec::new(),
            Hurt::CutOff => self.fleet.peers(node),
            Hurt::CutOffFromWitnesses => self.fleet.watchers(),
            Hurt::CutOffFromPrimary => vec![self.fleet.nodes[self.primary].source],
        };
        self.fleet.cut_off(node, &others, cut)?;
        let hurt = &mut self.fleet.nodes[node];
        match how {
            Hurt::Killed => hurt.server.crash(),
            Hurt::Stopped => hurt.server.stop()?,
            Hurt::CutOff => {
                // All clients still reach it, or some, or none.
                let cut_off = [0, 1, SIDES][self.rng.random_range(0..3)];
                hurt.clients[..cut_off]
                    .iter()
                    .for_each(|way| way.set(cut.0));
            }
            Hurt::CutOffFromWitnesses | Hurt::CutOffFromPrimary => {}
        }
        Ok(())
    }

    /// Ends that. A node that was killed starts as what it was at first, without data.
    fn heal(&mut self, node: usize, how: Hurt) -> Result<bool> {
        let server = &mut self.fleet.nodes[node].server;
        match how {
            Hurt::Killed => server.restart()?,
            Hurt::Stopped => server.go_on()?,
            _ => self.fleet.reconnect()?,
        }
        Ok(true)
    }

    pub(super) fn hurt_for(
        &mut self,
        node: usize,
        how: Hurt,
        from_ms: u64,
        to_ms: u64,
    ) -> Result<bool> {
        let from = clock::now();
        self.hurt(node, how)?;
        self.sleep(from_ms, to_ms);
        if how == Hurt::Killed && node != self.primary {
            // The witnesses may just have promoted it, by themselves.
            self.fleet.await_other_than(node)?;
        }
        self.heal(node, how)?;
        if how == Hurt::Stopped {
            self.note_effects("stop", &[StopsTheServer], from);
        }
        Ok(true)
    }

    /// Hurts the primary until another one has taken its place, and so long after that.
    pub(super) fn replace_primary(&mut self, how: Hurt, most_ms: u64) -> Result<bool> {
        self.hurt(self.primary, how)?;
        self.fleet.await_other_than(self.primary)?;
        self.sleep(0, most_ms);
        self.heal(self.primary, how)
    }

    /// Whoever has its place is killed, too, while the grace period lasts if there is one.
    pub(super) fn replace_twice(&mut self) -> Result<bool> {
        self.replace_primary(Hurt::Killed, 0)?;
        self.primary = self.fleet.await_well()?;
        self.replace_primary(Hurt::Killed, 500)
    }

    pub(super) fn any_replica(&mut self) -> usize {
        (self.primary + self.rng.random_range(1..NODES)) % NODES
    }

    /// The replica that would be promoted first misses what the other one has.
    pub(super) fn promote_late_one(&mut self) -> Result<bool> {
        let replica = self.any_replica();
        self.fleet.prefer(Some(replica))?;
        self.hurt(replica, Hurt::CutOffFromPrimary)?;
        self.sleep(50, 1500);
        let all = [Hurt::Killed, Hurt::Stopped, Hurt::CutOffFromWitnesses];
        let how = all[self.rng.random_range(0..all.len())];
        self.replace_primary(how, 1000)?;
        self.heal(replica, Hurt::CutOffFromPrimary)?;
        self.fleet.await_well()?;
        self.fleet.prefer(None)?;
        Ok(true)
    }

    pub(super) fn order_promotion(&mut self) -> Result<bool> {
        let (replica, how) = (self.any_replica(), self.rng.random_range(0..NODES));
        if !self.fleet.order_promotion(replica, how) {
            return Ok(false);
        }
        self.fleet.await_other_than(self.primary)?;
        Ok(true)
    }
}
