//! Faults planted on purpose, to show that the fault campaign finds such.
//!
//! Only debug builds with the feature `planted-faults` have this file, and only
//! one fault is planted at a time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::lock::fence::{Fence, FenceClock};
use crate::lock::record::{Effect, Effects, Lock, Now};
use crate::lock::request::{AcquireRequest, Lease, Limit, Owner, RenewRequest};

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
    /// A reader does not wait behind those that wait.
    ReaderBarges,
    /// When the first in line leaves, the second is forgotten.
    WaiterDropped,
    /// A grant to a client that was gone is not taken back.
    GrantToTheDead,
    /// The lease of a waiter begins before its grant.
    LeaseFromEnqueue,
    /// A renewal takes a lock that is free.
    LateRenewal,
    /// An owner gets the token of its former holding again.
    OwnTokenAgain,
    /// Replicas don't hear when a lease ends.
    ExpiryNotPropagated,
    /// A key is never looked at before half a second is over.
    LooksLate,
}

static PLANTED: AtomicU8 = AtomicU8::new(0);
static STRIKES_EVERY: AtomicU64 = AtomicU64::new(1);
static CHANCES: AtomicU64 = AtomicU64::new(0);

/// Plants the fault of this name. After a slash the name may say that only each
/// so-manyth chance is taken. Says whether there is such a fault.
pub(crate) fn plant(name: &str) -> bool {
    let (name, every) = name.split_once('/').unwrap_or((name, "1"));
    let fault = match name {
        "expiry-ignored" => Fault::ExpiryIgnored,
        "owner-not-checked" => Fault::OwnerNotChecked,
        "token-reused" => Fault::TokenReused,
        "last-in-first-out" => Fault::LastInFirstOut,
        "hand-off-skipped" => Fault::HandOffSkipped,
        "limit-ignored" => Fault::LimitIgnored,
        "session-outlived" => Fault::SessionOutlived,
        "deadlock-missed" => Fault::DeadlockMissed,
        "reader-barges" => Fault::ReaderBarges,
        "waiter-dropped" => Fault::WaiterDropped,
        "grant-to-the-dead" => Fault::GrantToTheDead,
        "lease-from-enqueue" => Fault::LeaseFromEnqueue,
        "late-renewal" => Fault::LateRenewal,
        "own-token-again" => Fault::OwnTokenAgain,
        "expiry-not-propagated" => Fault::ExpiryNotPropagated,
        "looks-late" => Fault::LooksLate,
        _ => return false,
    };
    let Ok(every @ 1..) = every.parse() else {
        return false;
    };
    STRIKES_EVERY.store(every, Ordering::Relaxed);
    PLANTED.store(fault as u8, Ordering::Relaxed);
    true
}

impl Fault {
    /// Whether this is the one.
    pub(crate) fn planted(self) -> bool {
        PLANTED.load(Ordering::Relaxed) == self as u8
    }

    /// Whether this is the one, and takes this chance.
    pub(crate) fn strikes(self) -> bool {
        let every = STRIKES_EVERY.load(Ordering::Relaxed);
        self.planted() && (CHANCES.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every)
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

/// What is left of the lease of a request that has waited since then, if it
/// began at that time.
pub(crate) fn lease_from_enqueue(lease: Lease, since_us: i64) -> Lease {
    if !Fault::LeaseFromEnqueue.planted() {
        return lease;
    }
    let waited_ms = now().ms() - since_us / 1000;
    Lease::from_ms((lease.ms() - waited_ms).max(1)).unwrap_or(lease)
}

/// Takes the lock for an owner that does not hold it any more.
pub(crate) fn renew_late(lock: &mut Lock, request: &RenewRequest, now: Now, effects: &mut Effects) {
    if lock.is_free() && request.fence.is_none() && Fault::LateRenewal.strikes() {
        let request = AcquireRequest {
            owner: request.owner.clone(),
            lease: request.lease,
            limit: Limit::EXCLUSIVE,
            hold: None,
            session: None,
        };
        // Without a token that the stored one allows there is no fault.
        let _ = lock.acquire(&request, true, now, &mut FenceClock::default(), effects);
    }
}

/// The token of a new holding of this owner.
pub(crate) fn own_token_again(owner: &Owner, token: Fence) -> Fence {
    thread_local! {
        static LAST: RefCell<HashMap<Owner, Fence>> = RefCell::default();
    }
    if !Fault::OwnTokenAgain.planted() {
        return token;
    }
    LAST.with_borrow_mut(|last| match last.get(owner) {
        Some(&former) if Fault::OwnTokenAgain.strikes() => former,
        _ => {
            last.insert(owner.clone(), token);
            token
        }
    })
}

/// When a key is looked at that should be at this time.
pub(crate) fn look_late(at_ms: i64) -> i64 {
    Fault::LooksLate.instead(at_ms, || at_ms.max(now().ms() + 500))
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let us = since.map_or(0, |since| since.as_micros());
    Now {
        us: i64::try_from(us).unwrap_or(i64::MAX),
    }
}
