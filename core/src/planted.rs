//! Faults planted on purpose, to show that the fault campaign finds such.
//!
//! Only debug builds with the feature `planted-faults` have this file, and only
//! one fault is planted at a time.
//!
//! A scene finds each of those that a campaign is asked for (`chaos/tests/scenes.rs`),
//! and `offset-too-early`, `reentry-in-grace`, `not-fenced` and `place-outlived` are found by
//! their scenes alone. The others are for the search of the core, `explore`.

use std::cell::Cell;

/// What may be wrong.
#[derive(Clone, Copy)]
pub enum Fault {
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
    /// A hold outlives the connection that it is bound to.
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
    /// A key is looked at half a second too late.
    LooksLate,
    /// A lock for which somebody has just queued is not planned to be looked at.
    RecheckNotPlanned,
    /// A hand-off lets in the first of several readers alone.
    OneReaderOnly,
    /// Holds that were given back stay bound to their connection.
    BindingKept,
    /// A lease ends a millisecond too early.
    LeaseEndsEarly,
    /// A waiter stays in the queue when its time is up.
    WaiterKept,
    /// The first holders of a contended lock are remembered for ever.
    NotesKept,
    /// A waiter is let in by the limits of the holders, without its own.
    NewcomersLimitIgnored,
    /// A grant is told before replicas have acknowledged it.
    AcknowledgementNotAwaited,
    /// A reply waits for the offset of the turn before.
    OffsetTooEarly,
    /// A hand-off is told before replicas have acknowledged it.
    HandOffNotCovered,
    /// Renewals count before replicas have acknowledged them.
    RenewalNotCovered,
    /// Locks are granted in a grace period as at any time.
    GraceIgnored,
    /// A holder is granted its lock again in a grace period.
    ReentryInGrace,
    /// What the module writes by itself is not bound by `min-replicas-to-write`.
    NotFenced,
    /// A place that is asked for again goes to the end of the queue.
    PlaceNotKept,
    /// A place is granted the lock though nobody hears of it.
    GrantUnheard,
    /// A place is granted the lock though its time is over.
    PlaceOutlived,
    /// A session is kept up though nobody has claimed its grant.
    UnclaimedKept,
    /// A request that a later one took over is still served.
    EarlierServed,
    /// A session moves to the connection that asked last.
    TieMoved,
    /// One hold of a grant that is not told stays.
    GivenBackTooLittle,
    /// With a grant that is not told all holds go.
    GivenBackTooMuch,
    /// An owner that asks again passes those in front of it.
    FrontPassed,
}

/// The faults by their names.
pub const FAULTS: [(&str, Fault); 39] = [
    ("expiry-ignored", Fault::ExpiryIgnored),
    ("owner-not-checked", Fault::OwnerNotChecked),
    ("token-reused", Fault::TokenReused),
    ("last-in-first-out", Fault::LastInFirstOut),
    ("hand-off-skipped", Fault::HandOffSkipped),
    ("limit-ignored", Fault::LimitIgnored),
    ("session-outlived", Fault::SessionOutlived),
    ("deadlock-missed", Fault::DeadlockMissed),
    ("reader-barges", Fault::ReaderBarges),
    ("waiter-dropped", Fault::WaiterDropped),
    ("grant-to-the-dead", Fault::GrantToTheDead),
    ("lease-from-enqueue", Fault::LeaseFromEnqueue),
    ("late-renewal", Fault::LateRenewal),
    ("own-token-again", Fault::OwnTokenAgain),
    ("expiry-not-propagated", Fault::ExpiryNotPropagated),
    ("rechecks-late", Fault::LooksLate),
    ("recheck-not-planned", Fault::RecheckNotPlanned),
    ("one-reader-only", Fault::OneReaderOnly),
    ("binding-kept", Fault::BindingKept),
    ("lease-ends-early", Fault::LeaseEndsEarly),
    ("waiter-kept", Fault::WaiterKept),
    ("notes-kept", Fault::NotesKept),
    ("newcomers-limit-ignored", Fault::NewcomersLimitIgnored),
    (
        "acknowledgement-not-awaited",
        Fault::AcknowledgementNotAwaited,
    ),
    ("offset-too-early", Fault::OffsetTooEarly),
    ("hand-off-not-covered", Fault::HandOffNotCovered),
    ("renewal-not-covered", Fault::RenewalNotCovered),
    ("grace-ignored", Fault::GraceIgnored),
    ("reentry-in-grace", Fault::ReentryInGrace),
    ("not-fenced", Fault::NotFenced),
    ("place-not-kept", Fault::PlaceNotKept),
    ("grant-unheard", Fault::GrantUnheard),
    ("place-outlived", Fault::PlaceOutlived),
    ("unclaimed-kept", Fault::UnclaimedKept),
    ("earlier-served", Fault::EarlierServed),
    ("tie-moved", Fault::TieMoved),
    ("given-back-too-little", Fault::GivenBackTooLittle),
    ("given-back-too-much", Fault::GivenBackTooMuch),
    ("front-passed", Fault::FrontPassed),
];

// The server has one thread that matters, and each test has its own.
thread_local! {
    static PLANTED: Cell<u8> = const { Cell::new(0) };
    static STRIKES_EVERY: Cell<u64> = const { Cell::new(1) };
    static CHANCES: Cell<u64> = const { Cell::new(0) };
}

/// Plants the fault of this name. After a slash the name may say that only each
/// so-manyth chance is taken. Returns whether there is such a fault.
pub fn plant(name: &str) -> bool {
    let (name, every) = name.split_once('/').unwrap_or((name, "1"));
    let Some((_, fault)) = FAULTS.iter().find(|(one, _)| *one == name) else {
        return false;
    };
    let Ok(every @ 1..) = every.parse() else {
        return false;
    };
    STRIKES_EVERY.set(every);
    PLANTED.set(*fault as u8);
    true
}

impl Fault {
    /// Whether this is the one.
    pub fn planted(self) -> bool {
        PLANTED.get() == self as u8
    }

    /// Whether this is the one, and takes this chance.
    pub fn strikes(self) -> bool {
        let chance = CHANCES.get() + 1;
        CHANCES.set(chance);
        self.planted() && chance.is_multiple_of(STRIKES_EVERY.get())
    }

    /// What is right, or what is wrong if this is the one.
    pub fn instead<T>(self, right: T, wrong: impl FnOnce() -> T) -> T {
        if self.planted() { wrong() } else { right }
    }
}
