//! What is done to the nodes.
//!
//! # Behind witnesses
//!
//! A fault begins when both replicas have synchronized with the primary, and all witnesses
//! agree on it. So the one that is promoted has not restarted since it acknowledged the holds
//! that count. A node that was killed comes back empty, as what it was at first: the old
//! primary as a primary. That loses writes, which only the grace period promises to survive.
//! In the other protected mode it comes back when all witnesses agree on another primary, so
//! nobody asks it.
//!
//! Each node announces the address of a proxy as its own, and that of another one as its
//! place on the bus of a cluster. Clients reach it by others, one for each side. So a primary
//! can be cut off from its peers while clients still reach it, or from everybody. Every node
//! connects from a loopback address of its own, by which a proxy can cut off one replica, or
//! what a node sends on the bus. What goes by meanwhile is lost, or arrives late.

use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use redis::Value;
use redis_lock_testing::{Fate, comes_true};

use super::Faults;
use crate::clock;
use crate::fleet::{DOWN_AFTER_MS, NODES};
use crate::history::Effect;

const FAILOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server does with its writes before it replies: it leaves them to the operating
/// system, has them on disk a second later, or has them there.
const FSYNCS: [&str; 4] = ["no", "everysec", ALWAYS, ALWAYS];
const ALWAYS: &str = "always";

impl Faults {
    pub(super) fn set_any_fsync(&mut self) -> Result<(), String> {
        self.fsync = FSYNCS.choose(&mut self.rng).unwrap_or(&ALWAYS);
        let mut nodes = 0..self.fleet.nodes.len();
        nodes.try_for_each(|node| self.fleet.configure(node, "appendfsync", self.fsync))
    }

    pub(super) fn stop_server(&mut self) -> Result<bool, String> {
        let from = clock::now();
        self.stop_for(self.primary, 50, 1500)?;
        self.note_effects("server stop", &[Effect::StopsTheServer], from);
        Ok(true)
    }

    /// The primary crashes and comes back on its data, or without them where
    /// it has promised nobody to keep them.
    pub(super) fn crash(&mut self) -> Result<bool, String> {
        let loses_writes = self.fsync != ALWAYS;
        let forget = loses_writes && self.rng.random_bool(0.5);
        self.admin = None;
        let from = clock::now();
        self.fleet.nodes[self.primary].server.crash();
        if loses_writes {
            self.note_effects("crash", &[Effect::EndsHolds, Effect::BringsBack], from);
        }
        self.sleep(0, 500);
        let server = &mut self.fleet.nodes[self.primary].server;
        if forget {
            server.forget();
        }
        server.restart()?;
        // The new process knows of no session.
        let effects = [Effect::StopsTheServer, Effect::HoldsCommandsBack];
        self.note_effects("crash", &effects, from);
        self.set_any_fsync()?;
        Ok(true)
    }

    /// The replica of the only primary, if it is in step.
    fn replica_in_step(&self) -> Option<usize> {
        let replica = 1 - self.primary;
        let nodes = &self.fleet.nodes;
        nodes[replica]
            .follows(&nodes[self.primary])
            .then_some(replica)
    }

    /// The primary hands over to its replica, which is promised to lose nothing.
    pub(super) fn fail_over(&mut self) -> Result<bool, String> {
        let Some(replica) = self.replica_in_step() else {
            return Ok(false);
        };
        let from = clock::now();
        if self.call(&["FAILOVER", "TIMEOUT", "5000"]) != Some(Value::Okay) {
            return Ok(false);
        }
        let mut promoted = None;
        let is_over = comes_true(FAILOVER_TIMEOUT, || {
            let [here, there] = [self.primary, replica].map(|node| {
                let info = self.fleet.nodes[node].replication();
                info.unwrap_or_default()
            });
            let [was, is] = ["role:slave", "role:master"].map(|role| there.contains(role));
            let other = if is { "role:slave" } else { "role:master" };
            let is_over = here.contains("master_failover_state:no-failover");
            promoted = (is_over && (is || was) && here.contains(other)).then_some(is);
            promoted.is_some()
        });
        if !is_over {
            return Err("the fail-over does not end".into());
        }
        if promoted == Some(true) {
            self.admin = None;
            self.fleet.lead_to(replica);
        }
        self.note_effects("fail-over", &[Effect::HoldsCommandsBack], from);
        Ok(promoted == Some(true))
    }

    /// The primary crashes, and its replica takes over with what it has.
    pub(super) fn promote(&mut self) -> Result<bool, String> {
        let Some(replica) = self.replica_in_step() else {
            return Ok(false);
        };
        let (old, from) = (self.primary, clock::now());
        self.fleet.nodes[old].server.crash();
        self.admin = self.fleet.nodes[replica].server.connect().ok();
        if self.call(&["REPLICAOF", "NO", "ONE"]) != Some(Value::Okay) {
            return Err("the replica can't be promoted".into());
        }
        let effects = [
            Effect::EndsHolds,
            Effect::BringsBack,
            Effect::StopsTheServer,
        ];
        self.note_effects("promotion", &effects, from);
        self.fleet.lead_to(replica);
        self.fleet.nodes[old].server.restart()?;
        self.fleet.configure(old, "appendfsync", self.fsync)?;
        let nodes = &self.fleet.nodes;
        nodes[old].follow(&nodes[replica])?;
        Ok(true)
    }

    /// Notes something that happens to the primary.
    fn note_primary(&mut self, what: &str) {
        self.note(format!("node {}, the primary, is {what}", self.primary + 1));
    }

    /// How messages are lost for a while: for good, or until it is over.
    fn any_cut(&mut self) -> (Fate, &'static str) {
        if self.rng.random_bool(0.5) {
            (Fate::Swallowed, "messages are lost")
        } else {
            (Fate::KeptBack, "messages arrive later")
        }
    }

    fn any_replica(&mut self) -> usize {
        (self.primary + self.rng.random_range(1..NODES)) % NODES
    }

    fn await_promotion(&mut self) -> Result<(), String> {
        let new = self.fleet.await_other_than(self.primary)?;
        self.note(format!("all witnesses name node {}", new + 1));
        Ok(())
    }

    fn kill_primary(&mut self) {
        self.fleet.nodes[self.primary].server.crash();
        self.note_primary("killed");
    }

    /// Starts a killed node as what it was at first, without data.
    fn restart(&mut self, node: usize) -> Result<bool, String> {
        self.fleet.nodes[node].server.restart()?;
        self.note(format!("node {} is back, and empty", node + 1));
        Ok(true)
    }

    pub(super) fn kill(&mut self) -> Result<bool, String> {
        self.kill_primary();
        self.await_promotion()?;
        self.sleep(0, 500);
        self.restart(self.primary)
    }

    pub(super) fn kill_and_restart(&mut self) -> Result<bool, String> {
        self.kill_primary();
        self.restart(self.primary)
    }

    pub(super) fn stop_briefly(&mut self) -> Result<bool, String> {
        self.stop_for(self.primary, 50, DOWN_AFTER_MS - 100)
    }

    pub(super) fn stop_replica(&mut self) -> Result<bool, String> {
        let replica = self.any_replica();
        self.stop_for(replica, 50, 4 * DOWN_AFTER_MS)
    }

    fn stop_for(&mut self, node: usize, from_ms: u64, to_ms: u64) -> Result<bool, String> {
        self.fleet.nodes[node].server.stop()?;
        self.note(format!("node {} is stopped", node + 1));
        self.sleep(from_ms, to_ms);
        self.go_on(node)
    }

    fn go_on(&mut self, node: usize) -> Result<bool, String> {
        self.fleet.nodes[node].server.go_on()?;
        self.note(format!("node {} goes on", node + 1));
        Ok(true)
    }

    fn stop_primary(&mut self) -> Result<(), String> {
        self.fleet.nodes[self.primary].server.stop()?;
        self.note_primary("stopped");
        Ok(())
    }

    pub(super) fn stop(&mut self) -> Result<bool, String> {
        self.stop_primary()?;
        self.await_promotion()?;
        self.sleep(0, 1000);
        self.go_on(self.primary)
    }

    /// Some clients still reach it, or all.
    pub(super) fn cut_off_from_peers(&mut self) -> Result<bool, String> {
        let (fate, how) = self.any_cut();
        self.fleet.cut_off_from_peers(self.primary, fate);
        let node = &self.fleet.nodes[self.primary];
        let whom = match self.rng.random_range(0..2 * node.clients.len()) {
            side if side < node.clients.len() => {
                node.clients[side].set(fate);
                "its peers and some of the clients"
            }
            _ => "its peers",
        };
        self.note_primary(&format!("cut off from {whom}, {how}"));
        self.await_promotion()?;
        self.sleep(0, 2000);
        self.reconnect()
    }

    pub(super) fn cut_off(&mut self) -> Result<bool, String> {
        let (fate, how) = self.any_cut();
        self.fleet.cut_off_from_peers(self.primary, fate);
        for way in &self.fleet.nodes[self.primary].clients {
            way.set(fate);
        }
        self.note_primary(&format!("cut off from everybody, {how}"));
        self.await_promotion()?;
        self.sleep(0, 1000);
        self.reconnect()
    }

    fn reconnect(&mut self) -> Result<bool, String> {
        self.fleet.reconnect();
        self.note("all nodes are connected again".to_owned());
        Ok(true)
    }

    fn cut_off_replica(&mut self, replica: usize) {
        let (fate, how) = self.any_cut();
        self.fleet.cut_off_replica(self.primary, replica, fate);
        self.note(format!(
            "node {} hears nothing of the primary, {how}",
            replica + 1
        ));
    }

    pub(super) fn delay_replica(&mut self) -> Result<bool, String> {
        let replica = self.any_replica();
        self.cut_off_replica(replica);
        self.sleep(50, 2500);
        self.reconnect()
    }

    /// The replica that would be promoted first misses what the other one has.
    pub(super) fn promote_late_one(&mut self) -> Result<bool, String> {
        let (primary, replica) = (self.primary, self.any_replica());
        self.fleet.prefer(Some(replica))?;
        self.cut_off_replica(replica);
        self.sleep(50, 1500);
        let how = self.rng.random_range(0..3);
        match how {
            0 => self.kill_primary(),
            1 => self.stop_primary()?,
            _ => {
                self.fleet.cut_off_from_witnesses(primary, Fate::Swallowed);
                self.note_primary("cut off from the witnesses");
            }
        }
        self.await_promotion()?;
        self.sleep(0, 1000);
        match how {
            0 => self.restart(primary)?,
            1 => self.go_on(primary)?,
            _ => true,
        };
        self.reconnect()?;
        self.fleet.await_well()?;
        self.fleet.prefer(None)?;
        Ok(true)
    }

    pub(super) fn kill_replica(&mut self) -> Result<bool, String> {
        let replica = self.any_replica();
        self.fleet.nodes[replica].server.crash();
        self.note(format!("node {}, a replica, is killed", replica + 1));
        self.sleep(0, 3 * DOWN_AFTER_MS);
        // The witnesses may just have promoted it, by themselves.
        self.fleet.await_other_than(replica)?;
        self.restart(replica)
    }

    pub(super) fn order_promotion(&mut self) -> Result<bool, String> {
        let (replica, how) = (self.any_replica(), self.rng.random_range(0..NODES));
        if !self.fleet.order_promotion(replica, how) {
            return Ok(false);
        }
        self.note("a replica is ordered to be the primary".to_owned());
        self.await_promotion()?;
        Ok(true)
    }
}
