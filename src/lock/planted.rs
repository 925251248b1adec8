//! Faults planted on purpose, to show that the fault campaign finds such.
//!
//! Only debug builds with the feature `planted-faults` have this file, and only
//! one fault is planted at a time.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::lock::record::{Effect, Effects, Lock};
use crate::lock::request::Owner;

/// What may be wrong.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// A lease does not keep others from the lock.
    ExpiryIgnored = 1,
    /// Anybody may release.
    OwnerNotChecked,
    /// A new grant gets the last token again.
    TokenReused,
    /// The last waiter in line is the first to be served.
    LastInFirstOut,
    /// A lock that comes free is handed to nobody.
    HandOffSkipped,
    /// A shared or limited lock lets everybody in.
    LimitIgnored,
    /// A hold outlives the connection that it is tied to.
    SessionOutlived,
    /// A wait that closes a cycle is not refused.
    DeadlockMissed,
}

static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants the fault of this name. Says whether there is one.
pub(crate) fn plant(name: &str) -> bool {
    let fault = match name {
        "expiry-ignored" => Fault::ExpiryIgnored,
        "owner-not-checked" => Fault::OwnerNotChecked,
        "token-reused" => Fault::TokenReused,
        "last-in-first-out" => Fault::LastInFirstOut,
        "hand-off-skipped" => Fault::HandOffSkipped,
        "limit-ignored" => Fault::LimitIgnored,
        "session-outlived" => Fault::SessionOutlived,
        "deadlock-missed" => Fault::DeadlockMissed,
        _ => return false,
    };
    PLANTED.store(fault as u8, Ordering::Relaxed);
    true
}

impl Fault {
    /// Whether this is the one.
    pub(crate) fn planted(self) -> bool {
        PLANTED.load(Ordering::Relaxed) == self as u8
    }

    /// What is right, or what is wrong if this is the one.
    pub(crate) fn instead<T>(self, right: T, wrong: impl FnOnce() -> T) -> T {
        if self.planted() { wrong() } else { right }
    }
}

/// Frees a lock that another owner holds, as though its lease were over.
pub(crate) fn ignore_expiry(lock: &mut Lock, newcomer: &Owner, effects: &mut Effects) {
    if !lock.is_free() && lock.holder(newcomer).is_none() && Fault::ExpiryIgnored.planted() {
        effects.push(Effect::Delete);
        *lock = Lock {
            last_fence: lock.last_fence,
            ..Lock::default()
        };
    }
}
