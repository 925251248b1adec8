//! What is done to the nodes. One fault at a time: each is over, and all nodes
//! have found together again, before the next begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use redis_lock_testing::Fate;

use crate::clock;
use crate::failover::clients::Shared;
use crate::failover::fleet::{DOWN_AFTER_MS, Fleet, NODES};
use crate::history::{Effect, Nanos};

const BACK_AT_ONCE: &str = "primary killed, back at once";

type Fault = fn(&mut Faults) -> Result<(), String>;

/// The kinds of faults, each as often as it stands here.
const FAULTS: [(&str, Fault); 14] = [
    ("primary killed", Faults::kill),
    (BACK_AT_ONCE, Faults::kill_and_restart),
    ("primary stopped for a moment", Faults::stop_briefly),
    ("primary stopped", Faults::stop),
    ("primary stopped", Faults::stop),
    ("primary cut off from its peers", Faults::cut_off_from_peers),
    ("primary cut off from its peers", Faults::cut_off_from_peers),
    ("primary cut off", Faults::cut_off),
    ("late replica promoted", Faults::promote_late_one),
    ("late replica promoted", Faults::promote_late_one),
    ("replica late", Faults::delay_replica),
    ("replica killed", Faults::kill_replica),
    ("replica stopped", Faults::stop_replica),
    ("promotion by command", Faults::order_promotion),
];

/// The names of all kinds.
pub fn names() -> BTreeSet<&'static str> {
    FAULTS.iter().map(|&(name, _)| name).collect()
}

/// What happened, and when.
pub struct Event {
    /// When.
    pub at: Nanos,
    /// What, for the reader.
    pub what: String,
}

/// What decides about the faults, and what it knows.
pub struct Faults {
    /// The nodes.
    pub fleet: Fleet,
    /// What has happened.
    pub events: Vec<Event>,
    /// How often each fault was injected.
    pub counts: BTreeMap<&'static str, usize>,
    kinds: Vec<(&'static str, Fault)>,
    rng: StdRng,
    shared: Arc<Shared>,
    primary: usize,
}

impl Faults {
    /// Faults for a fleet, of these kinds or, if none is named, of all.
    pub fn new(
        fleet: Fleet,
        rng: StdRng,
        shared: Arc<Shared>,
        only: &[String],
    ) -> Result<Self, String> {
        let primary = fleet.await_well()?;
        let mut kinds = FAULTS.to_vec();
        kinds.retain(|(name, _)| only.is_empty() || only.iter().any(|one| one == name));
        if !shared.protection.survives_an_empty_start() || shared.workload.is_some() {
            kinds.retain(|(name, _)| *name != BACK_AT_ONCE);
        }
        if kinds.is_empty() {
            return Err(format!("in this mode there is no fault of {only:?}"));
        }
        Ok(Self {
            fleet,
            events: Vec::new(),
            counts: BTreeMap::new(),
            kinds,
            rng,
            shared,
            primary,
        })
    }

    /// Injects one fault, and waits until all is well again.
    pub fn inject(&mut self) -> Result<(), String> {
        let (name, fault) = self.kinds[self.rng.random_range(0..self.kinds.len())];
        let from = clock::now();
        fault(self).map_err(|error| format!("{error}, in the fault \"{name}\""))?;
        let primary = self.fleet.await_well();
        self.primary = primary.map_err(|error| format!("{error} after the fault \"{name}\""))?;
        self.note(format!(
            "all is well, with node {} as primary",
            self.primary + 1
        ));
        // It excuses no hold, but commands may have been delayed.
        let effects = [Effect::HoldsCommandsBack];
        (self.shared.journal).interfered(name, &effects, None, from);
        *self.counts.entry(name).or_default() += 1;
        self.fleet.examine()
    }

    fn note(&mut self, what: String) {
        let at = clock::now();
        self.events.push(Event { at, what });
    }

    /// Notes something that happens to the primary.
    fn note_primary(&mut self, what: &str) {
        self.note(format!("node {}, the primary, is {what}", self.primary + 1));
    }

    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.rng.random_range(from_ms..=to_ms);
        thread::sleep(Duration::from_millis(ms));
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
    fn restart(&mut self, node: usize) -> Result<(), String> {
        self.fleet.nodes[node].server.restart()?;
        self.note(format!("node {} is back, and empty", node + 1));
        Ok(())
    }

    fn kill(&mut self) -> Result<(), String> {
        self.kill_primary();
        self.await_promotion()?;
        self.sleep(0, 500);
        self.restart(self.primary)
    }

    fn kill_and_restart(&mut self) -> Result<(), String> {
        self.kill_primary();
        self.restart(self.primary)
    }

    fn stop_briefly(&mut self) -> Result<(), String> {
        self.stop_for(self.primary, 50, DOWN_AFTER_MS - 100)
    }

    fn stop_replica(&mut self) -> Result<(), String> {
        let replica = self.any_replica();
        self.stop_for(replica, 50, 4 * DOWN_AFTER_MS)
    }

    fn stop_for(&mut self, node: usize, from_ms: u64, to_ms: u64) -> Result<(), String> {
        self.fleet.nodes[node].server.stop()?;
        self.note(format!("node {} is stopped", node + 1));
        self.sleep(from_ms, to_ms);
        self.go_on(node)
    }

    fn go_on(&mut self, node: usize) -> Result<(), String> {
        self.fleet.nodes[node].server.go_on()?;
        self.note(format!("node {} goes on", node + 1));
        Ok(())
    }

    fn stop(&mut self) -> Result<(), String> {
        self.fleet.nodes[self.primary].server.stop()?;
        self.note_primary("stopped");
        self.await_promotion()?;
        self.sleep(0, 1000);
        self.go_on(self.primary)
    }

    /// Some clients still reach it, or all.
    fn cut_off_from_peers(&mut self) -> Result<(), String> {
        let (fate, how) = self.any_cut();
        self.fleet.cut_off_from_peers(self.primary, fate);
        let node = &self.fleet.nodes[self.primary];
        let both = self.rng.random_bool(0.5);
        if !both {
            let side = self.rng.random_range(0..node.clients.len());
            node.clients[side].set(fate);
        }
        let whom = if both {
            "its peers"
        } else {
            "its peers and half of the clients"
        };
        self.note_primary(&format!("cut off from {whom}, {how}"));
        self.await_promotion()?;
        self.sleep(0, 2000);
        self.reconnect()
    }

    fn cut_off(&mut self) -> Result<(), String> {
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

    fn reconnect(&mut self) -> Result<(), String> {
        self.fleet.reconnect();
        self.note("all nodes are connected again".to_owned());
        Ok(())
    }

    fn cut_off_replica(&mut self, replica: usize) {
        let (fate, how) = self.any_cut();
        let source = self.fleet.nodes[replica].source;
        self.fleet.nodes[self.primary].peers.set_from(source, fate);
        self.note(format!(
            "node {} hears nothing of the primary, {how}",
            replica + 1
        ));
    }

    fn delay_replica(&mut self) -> Result<(), String> {
        let replica = self.any_replica();
        self.cut_off_replica(replica);
        self.sleep(50, 2500);
        self.reconnect()
    }

    /// The replica that would be promoted first misses what the other one has.
    fn promote_late_one(&mut self) -> Result<(), String> {
        let (primary, replica) = (self.primary, self.any_replica());
        self.fleet.prefer(replica)?;
        self.cut_off_replica(replica);
        self.sleep(50, 1500);
        let how = self.rng.random_range(0..3);
        match how {
            0 => self.kill_primary(),
            1 => {
                self.fleet.nodes[primary].server.stop()?;
                self.note_primary("stopped");
            }
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
            _ => {}
        }
        self.reconnect()?;
        self.fleet.await_well()?;
        self.fleet.prefer_nobody()
    }

    fn kill_replica(&mut self) -> Result<(), String> {
        let replica = self.any_replica();
        self.fleet.nodes[replica].server.crash();
        self.note(format!("node {}, a replica, is killed", replica + 1));
        self.sleep(0, 3 * DOWN_AFTER_MS);
        // The witnesses may just have promoted it, by themselves.
        self.fleet.await_other_than(replica)?;
        self.restart(replica)
    }

    fn order_promotion(&mut self) -> Result<(), String> {
        let (replica, how) = (self.any_replica(), self.rng.random_range(0..NODES));
        if !self.fleet.order_promotion(replica, how) {
            return Ok(());
        }
        self.note("a replica is ordered to be the primary".to_owned());
        self.await_promotion()
    }
}
