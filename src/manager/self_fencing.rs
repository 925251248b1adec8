//! Self-fencing: a primary that its replicas may have left grants nothing and keeps
//! nothing up.
//!
//! The server refuses commands by `min-replicas-to-write`, with a count that is up to a
//! second old, and does not check what a module writes by itself. So the good replicas are
//! counted anew whenever it matters, from the last acknowledgement of each.
//!
//! # After a pause
//! A server that was stopped finds old acknowledgements in its sockets, and takes them for
//! new ones. So after a pause only those count that cover something written since. All
//! replicas are asked for one.

use std::cell::Cell;

use redis_module::Context;

use crate::server::replicas::{self, Demand};
use crate::server::{clock, keyspace, timer};
#[cfg(feature = "planted-faults")]
use redis_lock_core::planted::Fault;

/// A server that has not run for this long was paused. With a low `hz`, two intervals of
/// its cron count instead.
const PAUSE_MS: i64 = 500;

/// How often replicas are asked again for an acknowledgement.
const ASK_AGAIN_MS: i64 = 100;

#[derive(Clone, Copy)]
struct State {
    demand: Demand,
    /// When the server was last seen to run. All times are since the start of the
    /// machine.
    ran_ms: i64,
    pause_ms: i64,
    /// After a pause, how much of the stream was written before it: an acknowledgement of
    /// no more does not count. [`NOT_KNOWN`] until somebody looks.
    paused_at: Option<i64>,
    /// When the replicas were counted, and whether they were enough.
    counted: Option<(i64, bool)>,
    /// When the replicas were asked.
    asked_ms: i64,
}

/// No acknowledgement reaches this far.
const NOT_KNOWN: i64 = i64::MAX;

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
        paused_at: None,
        counted: None,
        asked_ms: 0,
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
    if state.paused_at == Some(NOT_KNOWN) {
        has_enough_replicas(ctx);
    }
}

/// Asks the replicas, if they have to be. It comes where the module may write, and
/// writes nothing else.
pub(super) fn ask_if_needed(ctx: &Context) {
    let now_ms = clock::since_boot_ms();
    if let Some(state) = STATE.get().filter(|state| state.is_to_ask(now_ms)) {
        let asked_ms = now_ms;
        STATE.set(Some(State { asked_ms, ..state }));
        if !keyspace::must_not_write(ctx) {
            replicas::ask_for_acknowledgements(ctx);
        }
    }
}

impl State {
    fn note_run(&mut self, now_ms: i64) {
        if now_ms - self.ran_ms > self.pause_ms {
            self.paused_at = Some(NOT_KNOWN);
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
        let stream = replicas::look(ctx).unwrap_or_default();
        let is_enough = stream.good(self.demand.max_lag_s, self.paused_at) >= self.demand.count;
        if self.paused_at == Some(NOT_KNOWN) {
            self.paused_at = Some(stream.written);
        }
        self.counted = Some((now_ms, is_enough));
        STATE.set(Some(self));
        if self.is_to_ask(now_ms) {
            timer::wake_now(ctx);
        }
        is_enough
    }

    /// Whether the replicas have to acknowledge something newer before they count.
    fn is_to_ask(self, now_ms: i64) -> bool {
        let lacks_some = matches!(self.counted, Some((_, false)));
        lacks_some && self.paused_at.is_some() && now_ms - self.asked_ms >= ASK_AGAIN_MS
    }
}
