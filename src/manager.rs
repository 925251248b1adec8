//! The one road to a lock: read, step, apply, propagate, notify, arm the timer, answer.
//!
//! Every change of a lock takes it: the commands, the timer that wakes at a lease's
//! end, a key that somebody else deleted, a client that was gone before it heard of
//! its grant. What is to be done is decided by the [`LockTable`] alone.
//!
//! Architecture invariant: the table is not borrowed where the server may call back: while
//! a key is opened, read or written, a command called, a client closed, woken or told.
//! There is one exception: a step may have another key read, or a message published
//! ([`Asked`]). If that key has expired, its event is ignored, and it reads as a free lock.

pub(crate) mod acks;
mod acquire;
mod due;
pub(crate) mod gate;
pub(crate) mod inspect;
mod log;
mod redisson;
mod self_fencing;

use std::cell::{Cell, RefCell, RefMut};

use redis_module::Context;

use crate::config;
use crate::server::blocked;
use crate::server::clients;
use crate::server::clock;
use crate::server::keyspace::{self, LockKey};
use crate::server::open_lock::{OpenLock, Part};
use crate::server::publish;
use crate::server::replicas;
use crate::server::server_str::ServerStr;
use crate::server::subscriptions;
use crate::server::timer;
use redis_lock_core::error::LockError;
use redis_lock_core::keys::KeyRef;
use redis_lock_core::lock::{Lock, Now, Released};
use redis_lock_core::queue::{Addressee, Place, WaiterId};
use redis_lock_core::request::{ClientId, ReleaseRequest, RenewRequest};
use redis_lock_core::table::{Answer, LockTable, Settings, Step, Transition, WaitEnd, World};
use redis_lock_core::token::FencingToken;

pub(crate) use acquire::{Patience, PlaceTime, acquire};
pub(crate) use due::on_wake;

thread_local! {
    /// Whether the data is that of another server, or of this one before it was
    /// started: it is a replica, or it loads.
    static RECEIVES: Cell<bool> = const { Cell::new(false) };

    /// The latest that the wall clock has shown since the server's cron ran last.
    static LATEST_MS: Cell<i64> = const { Cell::new(0) };

    static LOCKS: &'static RefCell<LockTable> = Box::leak(Box::default());
}

/// The lock table of this process.
///
/// It is borrowed as a `LocalKey` is, or for a step ([`table_for`]).
struct Table;

const TABLE: Table = Table;

impl Table {
    fn locks(&self) -> &'static RefCell<LockTable> {
        LOCKS.with(|locks| *locks)
    }

    fn with_borrow<R>(&self, body: impl FnOnce(&LockTable) -> R) -> R {
        body(&self.locks().borrow())
    }

    fn with_borrow_mut<R>(&self, body: impl FnOnce(&mut LockTable) -> R) -> R {
        body(&mut self.locks().borrow_mut())
    }
}

/// Gives holds back; with the last one, hands the lock off.
pub(crate) fn release(
    key: LockKey<'_>,
    request: &ReleaseRequest,
) -> Result<Option<Released>, LockError> {
    // The end of a lease matters only to waiters.
    let part = match TABLE.with_borrow(LockTable::anybody_waits) {
        true => Part::Of(&request.owner),
        false => Part::WithoutLeaseEnd(&request.owner),
    };
    let may_grant = gate::is_open(key.ctx());
    run(key, part, may_grant, |step| step.release(request))
}

/// Takes the lock from whoever holds it, if this is its newest token, and hands it
/// off. Returns whether anybody held it.
pub(crate) fn break_lock(
    key: LockKey<'_>,
    token: Option<FencingToken>,
) -> Result<Option<bool>, LockError> {
    let (part, may_grant) = (Part::Whole(None), gate::is_open(key.ctx()));
    run(key, part, may_grant, |step| step.break_lock(token))
}

/// Lets the lease end at now + lease exactly. Returns whether the owner holds the lock,
/// with the token it named.
pub(crate) fn renew(key: LockKey<'_>, request: &RenewRequest) -> Result<Option<bool>, LockError> {
    let may_grant = gate::check_replicas(key.ctx())?;
    let part = Part::Of(&request.owner);
    run(key, part, may_grant, |step| step.renew(request))
}

/// Fails unless the lock is held with this token.
pub(crate) fn guard(key: LockKey<'_>, token: FencingToken) -> Result<(), LockError> {
    let may_grant = gate::check_replicas(key.ctx())?;
    match run(key, Part::Whole(None), may_grant, |step| step.guard(token))? {
        Some(true) => Ok(()),
        _ => Err(LockError::NotHeld),
    }
}

/// Why the module must stay, beyond clients that wait, if it must.
pub(crate) fn why_in_use() -> Option<&'static str> {
    TABLE.with_borrow(|table| match table.places() {
        0 if table.remembers_holds() => Some("sessions hold locks, or have just ended"),
        0 => None,
        _ => Some("there are places in queues"),
    })
}

/// The module is unloaded now. Redisson's waiters still hear of the releases that are noted.
pub(crate) fn goes(ctx: &Context) {
    redisson::tell_noted(ctx, clock::now().steady_ms);
}

/// Begins anew, as a module that has just been loaded.
pub(crate) fn reset(ctx: &Context) {
    TABLE.locks().take();
    settings_changed(ctx);
    acks::begin(ctx);
    gate::reset();
    redisson::reset();
    RECEIVES.set(keyspace::is_replica(ctx));
}

/// This server loads its data now, or it is a replica, or neither.
pub(crate) fn set_receives(receives: bool) {
    RECEIVES.set(receives);
}

/// This happened to the key of this name. It may come where writing is not allowed, so at
/// most the key is looked at very soon.
pub(crate) fn key_event(ctx: &Context, event: &[u8], name: ServerStr<'_>) {
    // A step that is under way has borrowed the table, and sees such a change by itself.
    let is_followed = TABLE.locks().try_borrow();
    let is_followed = is_followed.is_ok_and(|table| table.follows_keys());
    if !is_followed && !RECEIVES.get() {
        return;
    }
    let db = subscriptions::db_of(ctx, event, name);
    let key = KeyRef {
        db,
        name: name.bytes(),
    };
    if RECEIVES.get() && matches!(event, b"hset" | b"restore" | b"loaded") {
        key_received(ctx, key);
    }
    if is_followed && event != b"loaded" {
        note(ctx, |table, now_ms| table.key_touched(key, now_ms));
    }
}

/// A key was received, with or without a lock in it. The tokens that are given from
/// now on are greater than its own.
fn key_received(ctx: &Context, key: KeyRef<'_>) {
    let newest = keyspace::with_named(ctx, key.name, |key| {
        OpenLock::open_unasked(key).newest_token()
    });
    if let Some(token) = newest {
        let now = clock::now();
        TABLE.with_borrow_mut(|table| table.token_received(token, now));
    }
}

/// The server's cron runs, `hz` times a second.
pub(crate) fn on_cron(ctx: &Context, hz: i32) {
    let now = clock::now();
    // What is planned by a wall clock that was set back comes too late.
    match LATEST_MS.replace(now.ms()) > now.ms() {
        true => everything_touched(ctx),
        false => arm_timer(ctx, now),
    }
    acks::on_cron(ctx);
    redisson::tell_noted(ctx, now.steady_ms);
    self_fencing::on_cron(ctx, hz);
}

/// Any key may have changed. As [`key_event`], for all of them.
pub(crate) fn everything_touched(ctx: &Context) {
    note(ctx, |table, _| table.everything_touched());
}

/// Any key may have changed. A replica looks at no lock, but has to tell the waiters that
/// it can't serve, even if no look is planned.
pub(crate) fn role_changed(ctx: &Context) {
    everything_touched(ctx);
    timer::wake_now(ctx);
}

/// A connection has ended, and with it all holds that were bound to it alone. Nothing may
/// be written now, so the next step on each of their locks ends them.
pub(crate) fn connection_ended(ctx: &Context, client: ClientId) {
    note(ctx, |table, _| table.connection_ended(client));
}

/// A grant is in the output buffer of its client.
pub(crate) fn grant_said(waiter: WaiterId) {
    TABLE.with_borrow_mut(|table| table.grant_said(waiter));
}

/// The waiter has `heard` of the grant that was on its way to it, or never will.
pub(crate) fn grant_told(ctx: &Context, waiter: WaiterId, heard: bool) {
    note(ctx, |table, now_ms| table.grant_told(waiter, heard, now_ms));
}

/// A client does not wait any more. Returns what it is to be told, if it is anything but
/// that it was not granted the lock.
pub(crate) fn waiter_left(ctx: &Context, waiter: WaiterId, leave: WaitEnd) -> Option<Answer> {
    note(ctx, |table, now_ms| {
        table.waiter_left(waiter, leave, now_ms)
    })
}

fn note<R>(ctx: &Context, what: impl FnOnce(&mut LockTable, i64) -> R) -> R {
    let now = clock::now();
    let result = TABLE.with_borrow_mut(|table| what(table, now.ms()));
    arm_timer(ctx, now);
    result
}

/// The road of a command. If its result must not be told yet, this blocks the client and
/// returns nothing.
#[inline]
fn run<R>(
    key: LockKey<'_>,
    part: Part<'_>,
    may_grant: bool,
    ask: impl FnOnce(&mut Transition<'_>) -> Result<R, LockError>,
) -> Result<Option<R>, LockError> {
    let open = OpenLock::open(key);
    let mut stored = read_lock(&open, key.as_ref(), part);
    let Ok(stored) = &mut stored else {
        TABLE.with_borrow_mut(|table| table.forget_ended(key.as_ref()));
        return stored.map(|_| None);
    };
    if stored.is_free() && keyspace::hides_expired(key.ctx(), RECEIVES.get()) {
        return Err(LockError::WritesPaused);
    }
    let now = clock::now();
    let mut done = Step::default();
    let (name, asked) = (key.as_ref(), &mut Asked(key));
    let result = table_for(key, may_grant).step(name, stored, now, asked, &mut done, ask);
    apply(key, open, now, &mut done);
    match done.withheld {
        None => result.map(Some),
        Some(id) => {
            blocked::block(key, id, 0);
            Ok(None)
        }
    }
}

/// Reads a lock.
#[inline]
fn read_lock(open: &OpenLock<'_>, key: KeyRef<'_>, part: Part<'_>) -> Result<Lock, LockError> {
    let likely = match part {
        Part::Whole(_) => TABLE.with_borrow(|table| table.sole_holder(key)),
        _ => None,
    };
    open.read(part, likely.as_ref())
}

/// The table, with what may be granted and has to be acknowledged now. As a call of its
/// own this would cost an uncontended acquire and release 37 instructions.
#[inline(always)]
fn table_for(key: LockKey<'_>, may_grant: bool) -> RefMut<'static, LockTable> {
    // Before the table is borrowed, because it may ask the server.
    let acks = acks::needed(key.ctx());
    let mut table = TABLE.locks().borrow_mut();
    table.settings.may_grant = may_grant;
    table.settings.acks = acks;
    table
}

/// The settings are read, now that the module is loaded or one of them was set.
pub(crate) fn settings_changed(ctx: &Context) {
    TABLE.with_borrow_mut(|table| {
        table.settings = Settings {
            max_lease: config::max_lease(),
            reads_other_keys: !keyspace::in_cluster(ctx),
            deadlock_detection: config::DEADLOCK_DETECTION.get() != 0,
            max_waiters: config::MAX_WAITERS.count(),
            max_holders: config::MAX_HOLDERS.count(),
            max_places: config::MAX_PLACES.count(),
            claim_timeout_ms: config::CLAIM_TIMEOUT_MS.get(),
            recheck_interval_ms: config::RECHECK_INTERVAL_MS.get(),
            log_slow_wait_ms: Some(config::LOG_SLOW_WAIT_MS.get()).filter(|ms| *ms > 0),
            ..table.settings
        };
    });
}

/// What a step for this key asks of the server while it is taken.
struct Asked<'c>(LockKey<'c>);

impl World for Asked<'_> {
    fn asker(&self) -> Option<ClientId> {
        Some(clients::running(self.0.ctx()))
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> bool {
        publish::end_of_place(self.0.ctx(), place, &Answer::Granted(token))
    }

    fn read(&mut self, other: KeyRef<'_>) -> Lock {
        let (ctx, db) = (self.0.ctx(), self.0.as_ref().db);
        keyspace::select_db(ctx, other.db);
        let stored = keyspace::with_named(ctx, other.name, |key| {
            OpenLock::open_to_read(key).read(Part::Whole(None), None)
        });
        keyspace::select_db(ctx, db);
        // What is no lock is held by nobody.
        stored.unwrap_or_default()
    }
}

/// Does what is to be done.
fn apply(key: LockKey<'_>, mut open: OpenLock<'_>, now: Now, step: &mut Step) {
    open.apply(&step.effects);
    drop(open);
    if step.stream_goes_on {
        replicas::go_on(key.ctx());
    }
    if step.freed {
        redisson::tell(key, now.steady_ms);
    }
    for &event in &step.events {
        publish::event(key, event);
    }
    for line in &step.log {
        log::write(key, line);
    }
    arm_timer(key.ctx(), now);
    for (addressee, answer) in step.answers.drain(..) {
        tell(key.ctx(), addressee, answer);
    }
}

/// Tells a waiter how its wait has ended.
fn tell(ctx: &Context, addressee: Addressee, answer: Answer) {
    match addressee {
        Addressee::Blocked(waiter, _) => blocked::answer(waiter, answer),
        Addressee::Place(place) => {
            let heard = publish::end_of_place(ctx, &place, &answer);
            if let Answer::Granted(_) = answer {
                // If replicas had to acknowledge the grant, it was made before it is told.
                grant_told(ctx, place.id, heard);
            }
        }
    }
}

/// Sets the timer for whatever is to be done next.
fn arm_timer(ctx: &Context, now: Now) {
    let now_ms = now.ms();
    LATEST_MS.set(LATEST_MS.get().max(now_ms));
    let due_ms = TABLE.with_borrow(|table| table.wake_at_ms(now));
    for at_ms in [due_ms, gate::wake_at_ms(now_ms)].into_iter().flatten() {
        timer::wake_by(ctx, at_ms, now_ms);
    }
}
