//! Self-fencing: a primary that its replicas may have left grants nothing and keeps
//! nothing up.
//!
//! The server refuses commands by `min-replicas-to-write`, with a count that is up to
//! a second old, and says nothing of what a module does by itself. So the good
//! replicas are counted anew whenever it matters, from what each has acknowledged last.
//!
//! # After a pause
//! A server that was stopped finds acknowledgements in its sockets that were sent long
//! before, and takes them for new ones. So after a pause only those count that are of
//! something written since: all replicas are asked for one.

use std::cell::Cell;

use redis_module::Context;

use crate::server::replicas::{self, Demand};
use crate::server::{clock, keyspace, timer};
#[cfg(feature = "planted-faults")]
use redis_lock_core::planted::Fault;

/// A server that has not run for this long was paused. One whose cron runs less often by
/// its settings (`hz`) may take twice its time.
const PAUSE_MS: i64 = 500;

/// How often replicas are asked again for an acknowledgement.
const ASK_AGAIN_MS: i64 = 100;

/// Beyond which offset of the stream an acknowledgement counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beyond {
    /// Any will do.
    Nothing,
    /// There was a pause, and nobody has looked since how much was written.
    NotKnownYet,
    /// What was written before the pause.
    Offset(i64),
}

#[derive(Clone, Copy)]
struct State {
    demand: Demand,
    /// When the server was last seen to run. All times are since the start of the
    /// machine.
    ran_ms: i64,
    pause_ms: i64,
    beyond: Beyond,
    /// When the replicas were counted, and whether they were enough.
    counted: Option<(i64, bool)>,
    /// When the replicas were asked.
    asked_ms: i64,
    is_to_ask: bool,
}

thread_local! {
    /// Nothing where the server demands nothing of its replicas.
    static STATE: Cell<Option<State>> = const { Cell::new(None) };
}

/// Begins anew: the server has started, its role or the settings have changed.
pub(super) fn begin(ctx: &Context) {
    let ran_ms = clock::since_boot_ms();
    STATE.set(replicas::demand(ctx).map(|demand| State {
        demand,
        ran_ms,
        pause_ms: PAUSE_MS,
        beyond: Beyond::Nothing,
        counted: None,
        asked_ms: 0,
        is_to_ask: false,
    }));
}

/// Whether there are as many good replicas as the server demands.
#[inline]
pub(super) fn has_enough_replicas(ctx: &Context) -> bool {
    #[cfg(feature = "planted-faults")]
    if Fault::NotFenced.planted() {
        return true;
    }
    match STATE.get() {
        None => true,
        Some(state) => keyspace::is_replica(ctx) || state.has_enough(ctx),
    }
}

/// The server's cron runs, `hz` times a second.
pub(super) fn on_cron(ctx: &Context, hz: i32) {
    let Some(mut state) = STATE.get() else {
        return;
    };
    state.pause_ms = PAUSE_MS.max(2000 / i64::from(hz.max(1)));
    state.note_run(clock::since_boot_ms());
    STATE.set(Some(state));
    if state.beyond == Beyond::NotKnownYet {
        has_enough_replicas(ctx);
    }
}

/// Asks the replicas, if they have to be. It comes where the module may write, and
/// writes nothing else.
pub(super) fn ask_if_needed(ctx: &Context) {
    if let Some(state) = STATE.get().filter(|state| state.is_to_ask)
        && !keyspace::must_not_write(ctx)
    {
        STATE.set(Some(State {
            is_to_ask: false,
            asked_ms: clock::since_boot_ms(),
            ..state
        }));
        replicas::ask_for_acknowledgements(ctx);
    }
}

impl State {
    fn note_run(&mut self, now_ms: i64) {
        if now_ms - self.ran_ms > self.pause_ms {
            self.beyond = Beyond::NotKnownYet;
            self.counted = None;
        }
        self.ran_ms = now_ms;
    }

    fn has_enough(mut self, ctx: &Context) -> bool {
        let now_ms = clock::since_boot_ms();
        self.note_run(now_ms);
        if let Some((counted_ms, was_enough)) = self.counted
            && counted_ms == now_ms
        {
            return was_enough;
        }
        let beyond = match self.beyond {
            Beyond::Nothing => None,
            Beyond::NotKnownYet => Some(i64::MAX),
            Beyond::Offset(offset) => Some(offset),
        };
        let stream = replicas::look(ctx).unwrap_or_default();
        if self.beyond == Beyond::NotKnownYet {
            self.beyond = Beyond::Offset(stream.written);
        }
        let is_enough = stream.good(self.demand.max_lag_s, beyond) >= self.demand.count;
        self.counted = Some((now_ms, is_enough));
        if !is_enough && beyond.is_some() && now_ms - self.asked_ms >= ASK_AGAIN_MS {
            self.is_to_ask = true;
            let wall_ms = clock::now().ms();
            timer::wake_by(ctx, wall_ms, wall_ms);
        }
        STATE.set(Some(self));
        is_enough
    }
}
