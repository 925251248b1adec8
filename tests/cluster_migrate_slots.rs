//! Locks in a slot that moves by `CLUSTER MIGRATESLOTS` of Valkey 9: its keys arrive
//! while the old node serves it, and then it changes hands at once.

use redis::Value;
use redis_lock_testing::{Play, TestServer};

/// A slot that is moved at once. None where the server can't do that.
fn moving() -> Option<Play> {
    if TestServer::start().valkey_version() < Some((9, 0)) {
        println!("skipped: CLUSTER MIGRATESLOTS needs Valkey 9");
        return None;
    }
    let mut play = Play::moving();
    // How long the old node may wait for the new one to take over.
    play.run("o > CONFIG SET cluster-manual-failover-timeout 120000 -> OK");
    Some(play)
}

const BEGIN: &str = "o > CLUSTER MIGRATESLOTS SLOTSRANGE $slot $slot NODE $id1 -> OK";

const MOVED: &str = "until o > CLUSTER GETSLOTMIGRATIONS -> ~'success'
    until o@n1 > CLUSTER GETSLOTMIGRATIONS -> ~'success'
    until o > CLUSTER COUNTKEYSINSLOT $slot -> 0";

/// A node that does not serve the slot, or not yet, grants nothing in it.
const NOT_AT_0: &str = "stranger > LOCK.ACQUIRE $key stranger -> !MOVED
    stranger > ASKING -> OK
    stranger > LOCK.ACQUIRE $key stranger -> !MOVED";
const NOT_AT_1: &str = "stranger@n1 > LOCK.ACQUIRE $key stranger -> !MOVED
    stranger@n1 > ASKING -> OK
    stranger@n1 > LOCK.ACQUIRE $key stranger -> !MOVED";

const NOTHING_PLANNED: &str = "sound
    lock_planned_looks = 0
    each n1 n2: #.lock_planned_looks = 0";

#[test]
fn a_lock_is_handed_on_by_the_old_node_until_the_new_one_serves_the_slot() {
    let Some(mut play) = moving() else {
        return;
    };
    play.run(&format!(
        "h > LOCK.ACQUIRE $key h LONG -> H
        next > LOCK.ACQUIRE $key next BLOCKED -> ..
        last > LOCK.ACQUIRE $key last BLOCKED -> ..
        o > DEBUG SLOTMIGRATION PREVENT-PAUSE 1 -> OK
        {BEGIN}
        until o > CLUSTER GETSLOTMIGRATIONS -> ~'waiting-to-pause'
        {NOT_AT_1}
        h > LOCK.RELEASE $key h -> 1
        next < N
        {NOT_AT_1}
        o > DEBUG SLOTMIGRATION PREVENT-PAUSE 0 -> OK
        {MOVED}
        last < !MOVED $slot 127.0.0.1:$n1
        {NOT_AT_0}
        o@n1 > LOCK.ACQUIRE $key next LONG HOLD 1 -> N
        last@n1 > LOCK.ACQUIRE $key last BLOCKED -> ..
        o@n1 > LOCK.RELEASE $key next -> 1
        last@n1 < L
        {NOTHING_PLANNED}"
    ));
}

#[test]
fn while_writes_rest_nobody_hands_a_lock_on() {
    let Some(mut play) = moving() else {
        return;
    };
    play.run(&format!(
        "o@n1 > DEBUG SLOTMIGRATION PREVENT-FAILOVER 1 -> OK
        h > LOCK.ACQUIRE $key h LEASE 2000 -> H
        w > LOCK.ACQUIRE $key w BLOCKED -> ..
        {BEGIN}
        until o@n1 > CLUSTER GETSLOTMIGRATIONS -> ~'failover-granted'
        {NOT_AT_1}"
    ));
    // The lease ends, and the regular looks at it pass.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    play.run(&format!(
        "o@n1 > DEBUG SLOTMIGRATION PREVENT-FAILOVER 0 -> OK\n{MOVED}"
    ));
    // On a slow machine the lease was over before the writes rested.
    match play.client("w").reply() {
        Value::Int(granted) => play.run(&format!(
            "o@n1 > LOCK.ACQUIRE $key w HOLD 1 -> {granted}
            o@n1 > LOCK.ACQUIRE $key w HOLD 1 -> W
            o@n1 > LOCK.RELEASE $key w -> 1"
        )),
        Value::ServerError(error) if error.code() == "MOVED" => &mut play,
        other => panic!("{other:?}"),
    };
    play.run("o@n1 > LOCK.ACQUIRE $key w LONG -> N")
        .run(NOTHING_PLANNED);
}

#[test]
fn a_move_that_is_cancelled_leaves_nothing_behind_and_the_queue_where_it_is() {
    let Some(mut play) = moving() else {
        return;
    };
    play.run(&format!(
        "h > LOCK.ACQUIRE $key h LONG SESSION -> H
        w > LOCK.ACQUIRE $key w BLOCKED -> ..
        o > DEBUG SLOTMIGRATION PREVENT-PAUSE 1 -> OK
        {BEGIN}
        until o > CLUSTER GETSLOTMIGRATIONS -> ~'waiting-to-pause'
        o > CLUSTER CANCELSLOTMIGRATIONS -> OK
        until o@n1 > CLUSTER GETSLOTMIGRATIONS -> ~'failed'
        o > CLUSTER COUNTKEYSINSLOT $slot -> 1
        o@n1 > CLUSTER COUNTKEYSINSLOT $slot -> 0
        {NOT_AT_1}
        each waiters places sessions planned_looks: n1.lock_# = 0
        h drops
        w < W
        {NOTHING_PLANNED}"
    ));
}

/// Who holds by a connection hears of it when the server can't keep the hold up.
#[test]
fn a_session_whose_slot_has_moved_is_closed() {
    let Some(mut play) = moving() else {
        return;
    };
    play.run(&format!(
        "h > LOCK.ACQUIRE $key h LEASE 3000 SESSION -> H
        {BEGIN}
        until o > CLUSTER GETSLOTMIGRATIONS -> ~'success'
        h < closed
        o@n1 > LOCK.ACQUIRE $key other LONG BLOCK 0 -> O
        until lock_sessions = 0
        {NOTHING_PLANNED}"
    ));
}
