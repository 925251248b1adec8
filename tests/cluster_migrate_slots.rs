//! Locks in a slot that moves by `CLUSTER MIGRATESLOTS` of Valkey 9: its keys arrive
//! while the old node serves it, and then it changes hands at once.

use std::ops::Deref;

use redis_lock_testing::{Client, LONG, MovingSlot, TestServer, eventually, int, status, token};

/// A slot that is moved at once.
struct Move(MovingSlot);

impl Deref for Move {
    type Target = MovingSlot;

    fn deref(&self) -> &MovingSlot {
        &self.0
    }
}

impl Move {
    /// None where the server can't do that.
    fn prepare() -> Option<Self> {
        if TestServer::start().valkey_version() < Some((9, 0)) {
            println!("skipped: CLUSTER MIGRATESLOTS needs Valkey 9");
            return None;
        }
        let moving = Self(MovingSlot::start());
        // How long the old node may wait for the new one to take over.
        moving.configure(0, "cluster-manual-failover-timeout 120000");
        Some(moving)
    }

    fn configure(&self, node: usize, setting: &str) {
        let set = self
            .cluster
            .client(node)
            .call(&format!("CONFIG SET {setting}"));
        assert_eq!(set, status("OK"));
    }

    /// Begins the move, which goes as far as `await_state` says.
    fn begin(&self) {
        let (slot, to) = (self.slot, &self.cluster.ids[1]);
        let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {to}");
        assert_eq!(self.cluster.client(0).call(&command), status("OK"));
    }

    /// Has a node stop at a step of the move, or go on.
    fn prevent(&self, node: usize, step: &str, prevented: bool) {
        let command = format!(
            "DEBUG SLOTMIGRATION PREVENT-{step} {}",
            i32::from(prevented)
        );
        assert_eq!(self.cluster.client(node).call(&command), status("OK"));
    }

    fn await_state(&self, node: usize, state: &str) {
        let mut client = self.cluster.client(node);
        eventually(&format!("the move is {state} on node {node}"), || {
            let moves = client.call("CLUSTER GETSLOTMIGRATIONS");
            format!("{moves:?}").contains(&format!("\"{state}\""))
        });
    }

    fn waiter(&self, owner: &str) -> Client {
        let node = &self.cluster.nodes[0];
        let mut waiter = self.cluster.client(0);
        let waiting = node.info("lock_waiters");
        waiter.send(&format!("LOCK.ACQUIRE {} {owner} {LONG} BLOCK 0", self.key));
        node.await_blocked(waiting + 1);
        waiter
    }

    /// A node that does not serve the slot, or not yet, grants nothing in it.
    fn assert_served_elsewhere(&self, node: usize) {
        let mut client = self.cluster.client(node);
        for asking in [false, true] {
            if asking {
                client.call("ASKING");
            }
            let error = client.error(&format!("LOCK.ACQUIRE {} stranger", self.key));
            assert!(error.starts_with("MOVED "), "{error}");
        }
    }

    fn assert_sound(&self) {
        for node in &self.cluster.nodes {
            node.assert_sound();
            assert_eq!(node.info("lock_planned_looks"), 0);
        }
    }
}

#[test]
fn a_lock_is_handed_on_by_the_old_node_until_the_new_one_serves_the_slot() {
    let Some(moving) = Move::prepare() else {
        return;
    };
    let key = &moving.key;
    let (mut holder, mut there) = (moving.cluster.client(0), moving.cluster.client(1));
    let fence = holder.int(&format!("LOCK.ACQUIRE {key} holder {LONG}"));
    let (mut next, mut last) = (moving.waiter("next"), moving.waiter("last"));

    moving.prevent(0, "PAUSE", true);
    moving.begin();
    moving.await_state(0, "waiting-to-pause");
    moving.assert_served_elsewhere(1);
    assert_eq!(holder.call(&format!("LOCK.RELEASE {key} holder")), int(1));
    let granted = token(&next.reply());
    assert!(granted > fence);
    moving.assert_served_elsewhere(1);

    moving.prevent(0, "PAUSE", false);
    moving.await_state(0, "success");
    moving.await_state(1, "success");
    assert_eq!(last.reply_error(), moving.moved());
    eventually("the old node has no key of the slot", || {
        moving.keys_on(0) == 0
    });
    moving.assert_served_elsewhere(0);
    let again = format!("LOCK.ACQUIRE {key} next {LONG} HOLD 1");
    assert_eq!(there.int(&again), granted);
    let mut last = moving.cluster.client(1);
    last.send_and_block(
        &mut there,
        &format!("LOCK.ACQUIRE {key} last {LONG} BLOCK 0"),
    );
    assert_eq!(there.call(&format!("LOCK.RELEASE {key} next")), int(1));
    assert!(token(&last.reply()) > granted);
    moving.assert_sound();
}

#[test]
fn while_writes_rest_nobody_hands_a_lock_on() {
    let Some(moving) = Move::prepare() else {
        return;
    };
    let key = &moving.key;
    moving.prevent(1, "FAILOVER", true);
    let mut holder = moving.cluster.client(0);
    let fence = holder.int(&format!("LOCK.ACQUIRE {key} holder LEASE 2000"));
    let mut waiter = moving.waiter("waiter");
    moving.begin();
    moving.await_state(1, "failover-granted");
    moving.assert_served_elsewhere(1);
    // The lease ends, and the regular looks at it pass.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    moving.prevent(1, "FAILOVER", false);
    moving.await_state(0, "success");
    let told = waiter.reply();
    let mut there = moving.cluster.client(1);
    // On a slow machine the lease was over before the writes rested.
    let newest = match told {
        redis::Value::Int(granted) => {
            assert_eq!(
                there.int(&format!("LOCK.ACQUIRE {key} waiter HOLD 1")),
                granted
            );
            assert_eq!(there.call(&format!("LOCK.RELEASE {key} waiter")), int(1));
            granted
        }
        redis::Value::ServerError(error) => {
            assert_eq!(error.code(), "MOVED");
            fence
        }
        other => panic!("{other:?}"),
    };
    assert!(there.int(&format!("LOCK.ACQUIRE {key} waiter {LONG}")) > newest);
    eventually("the old node has no key of the slot", || {
        moving.keys_on(0) == 0
    });
    moving.assert_sound();
}

#[test]
fn a_move_that_is_cancelled_leaves_nothing_behind_and_the_queue_where_it_is() {
    let Some(moving) = Move::prepare() else {
        return;
    };
    let key = &moving.key;
    let mut holder = moving.cluster.client(0);
    let fence = holder.int(&format!("LOCK.ACQUIRE {key} holder {LONG} SESSION"));
    let mut waiter = moving.waiter("waiter");
    moving.prevent(0, "PAUSE", true);
    moving.begin();
    moving.await_state(0, "waiting-to-pause");
    let cancelled = moving
        .cluster
        .client(0)
        .call("CLUSTER CANCELSLOTMIGRATIONS");
    assert_eq!(cancelled, status("OK"));
    moving.await_state(1, "failed");
    assert_eq!((moving.keys_on(0), moving.keys_on(1)), (1, 0));
    moving.assert_served_elsewhere(1);
    for count in [
        "lock_waiters",
        "lock_places",
        "lock_sessions",
        "lock_planned_looks",
    ] {
        assert_eq!(moving.cluster.nodes[1].info(count), 0, "{count}");
    }
    drop(holder);
    assert!(token(&waiter.reply()) > fence);
    moving.assert_sound();
}

/// Who holds by a connection hears of it when the server can't keep the hold up.
#[test]
fn a_session_whose_slot_has_moved_is_closed() {
    let Some(moving) = Move::prepare() else {
        return;
    };
    let key = &moving.key;
    let mut holder = moving.cluster.client(0);
    let fence = holder.int(&format!("LOCK.ACQUIRE {key} holder LEASE 3000 SESSION"));
    let id = holder.int("CLIENT ID");
    moving.begin();
    moving.await_state(0, "success");
    let mut observer = moving.cluster.client(0);
    eventually("the connection is closed", || {
        !observer.bulk("CLIENT LIST").contains(&format!("id={id} "))
    });
    let mut there = moving.cluster.client(1);
    let command = format!("LOCK.ACQUIRE {key} other {LONG} BLOCK 0");
    assert!(there.int(&command) > fence);
    eventually("nothing is bound", || {
        moving.cluster.nodes[0].info("lock_sessions") == 0
    });
    moving.assert_sound();
}
