//! How long single calls of the lock table take, as more and more is remembered.
//!
//! `cargo run --release -p redis-lock-core --example growth` prints a table. The times
//! are those of the table alone: nothing is read, written or replicated.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use redis_lock_core::keys::KeyRef;
use redis_lock_core::lock::{Lock, Now};
use redis_lock_core::queue::Wait;
use redis_lock_core::request::{
    AcquireRequest, ClientId, Lease, Limit, Owner, ReleaseExtent, ReleaseRequest, RenewRequest,
};
use redis_lock_core::stored::{PERMIT_PREFIX, Reader, TOKEN_FIELD};
use redis_lock_core::table::{Acquired, Done, LockTable, Progress, Stored};
use redis_lock_core::token::FencingToken;

const START_MS: i64 = 1_700_000_000_000;
const LEASE_MS: i64 = 30_000;

fn main() {
    println!("{:<58}{:>10}{:>12}", "", "calls", "µs a call");
    for holders in [100, 1_000, 10_000] {
        renewals(holders);
    }
    for holders in [100, 1_000, 10_000] {
        keep_ups(holders);
    }
    for holders in [100, 1_000, 10_000] {
        reads(holders);
    }
    releases_of_a_writer(10_000);
    waits_of_owners_in_two_queues(10_000);
    for keys in [10_000, 100_000] {
        looks_at_contended_keys(keys);
    }
    ends_of_a_client(10_000);
    ends_of_a_client_on_one_lock(10_000);
    for holds in [100, 1_000, 10_000] {
        newcomers_after_an_end(holds);
    }
    for holds in [100, 1_000, 10_000] {
        moves_of_keys(holds);
    }
    for holds in [100, 1_000, 10_000] {
        breaks(holds);
    }
    for holds in [100, 1_000, 10_000] {
        deletions(holds);
    }
}

fn now(ms: i64) -> Now {
    Now {
        us: (START_MS + ms) * 1000,
    }
}

fn key(name: &str) -> KeyRef<'_> {
    KeyRef {
        db: 0,
        name: name.as_bytes(),
    }
}

fn owner(n: usize) -> Owner {
    Owner::new(format!("owner-{n}").as_bytes()).unwrap()
}

fn request(owner: &Owner, limit: Limit, session: Option<u64>) -> AcquireRequest {
    AcquireRequest {
        owner: owner.clone(),
        lease: Lease::from_ms(LEASE_MS).unwrap(),
        hold: None,
        limit,
        session: session.map(ClientId),
    }
}

/// A lock that one owner holds all alone.
fn held(owner: &Owner, token: FencingToken) -> Lock {
    let mut reader = Reader::default();
    reader.field(owner.as_bytes(), b"1");
    reader.field(TOKEN_FIELD, token.get().to_string().as_bytes());
    reader.finish(Some(START_MS + LEASE_MS)).unwrap()
}

fn acquire(
    table: &mut LockTable,
    key: KeyRef<'_>,
    stored: Stored,
    request: AcquireRequest,
    client: Option<u64>,
) -> Acquired {
    let wait = client.map(|client| Wait {
        client: ClientId(client),
        until_ms: None,
        channel: None,
    });
    done(table.acquire(key, stored, request, wait, now(0)))
        .result
        .unwrap()
}

/// Nothing else is asked for.
fn done<T>(progress: Progress<T>) -> Done<T> {
    match progress {
        Progress::Done(done) => done,
        Progress::Asks(_) => panic!("other locks are asked for"),
        Progress::Offers(_) => panic!("there is no place"),
    }
}

/// Takes a lock that is free, all alone.
fn take(table: &mut LockTable, key: KeyRef<'_>, owner: &Owner, session: Option<u64>) -> Lock {
    let request = request(owner, Limit::EXCLUSIVE, session);
    let free = Stored::Read(Lock::default());
    match acquire(table, key, free, request, None) {
        Acquired::Granted(token) => held(owner, token),
        other => panic!("{other:?}"),
    }
}

fn wait(table: &mut LockTable, key: KeyRef<'_>, lock: &Lock, owner: &Owner, limit: Limit) {
    let stored = Stored::Read(lock.clone());
    let queued = acquire(table, key, stored, request(owner, limit, None), Some(0));
    assert!(matches!(queued, Acquired::Queued(_)), "{queued:?}");
}

/// A lock that so many share.
fn shared_by(holders: usize, session: impl Fn(usize) -> Option<u64>) -> (LockTable, Vec<Owner>) {
    let mut table = LockTable::default();
    let owners: Vec<Owner> = (0..holders).map(owner).collect();
    // Few holders are read each time.
    let mut reader_fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (n, owner) in owners.iter().enumerate() {
        let stored = if table.expected(key("k"), None).is_some() {
            Stored::AsExpected
        } else {
            let mut reader = Reader::default();
            for (name, value) in &reader_fields {
                reader.field(name, value);
            }
            Stored::Read(reader.finish(Some(START_MS + LEASE_MS)).unwrap())
        };
        let request = request(owner, Limit::SHARED, session(n));
        let Acquired::Granted(token) = acquire(&mut table, key("k"), stored, request, None) else {
            panic!("it was not granted");
        };
        let permit = format!("0 {} {}", token.get(), START_MS + LEASE_MS);
        let permit_name = [b"@permit:", owner.as_bytes()].concat();
        reader_fields.push((owner.as_bytes().to_vec(), b"1".to_vec()));
        reader_fields.push((permit_name, permit.into_bytes()));
        let token = token.get().to_string().into_bytes();
        reader_fields.push((TOKEN_FIELD.to_vec(), token));
    }
    (table, owners)
}

fn row(what: &str, calls: usize, took: Duration) {
    let us = took.as_secs_f64() * 1e6 / calls.max(1) as f64;
    println!("{what:<58}{calls:>10}{us:>12.2}");
}

fn timed<R>(what: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let result = what();
    (result, start.elapsed())
}

fn renewals(holders: usize) {
    let (mut table, owners) = shared_by(holders, |_| None);
    let ((), took) = timed(|| {
        for owner in &owners {
            let request = RenewRequest {
                owner: owner.clone(),
                lease: Lease::from_ms(LEASE_MS).unwrap(),
                token: None,
            };
            let progress = table.renew(key("k"), Stored::AsExpected, &request, now(5));
            assert!(done(progress).result.unwrap());
        }
    });
    row(
        &format!("renewal of one of {holders} holders"),
        holders,
        took,
    );
}

fn reads(holders: usize) {
    let fields = |owner: Owner| {
        let permit = format!("0 {} {}", START_MS * 1000, START_MS + LEASE_MS);
        let permit_name = [PERMIT_PREFIX, owner.as_bytes()].concat();
        let count = (owner.as_bytes().to_vec(), b"1".to_vec());
        [count, (permit_name, permit.into_bytes())]
    };
    let mut fields: Vec<_> = (0..holders).map(owner).flat_map(fields).collect();
    fields.push((TOKEN_FIELD.to_vec(), b"1".to_vec()));
    let (lock, took) = timed(|| {
        let mut reader = Reader::of(fields.len(), None);
        for (name, value) in &fields {
            reader.field(name, value);
        }
        reader.finish(Some(START_MS + LEASE_MS))
    });
    assert_eq!(lock.unwrap().holders().len(), holders);
    row(&format!("reading a lock of {holders} holders"), 1, took);
}

fn keep_ups(holders: usize) {
    let (mut table, _) = shared_by(holders, |n| Some(n as u64));
    let (done, took) = timed(|| do_all_due(&mut table, LEASE_MS / 2, |_| Stored::AsExpected));
    assert_eq!(done, holders);
    row(
        &format!("keeping up one session of {holders} on one lock"),
        holders,
        took,
    );
}

/// Does what is due. Returns how many steps that took.
fn do_all_due(
    table: &mut LockTable,
    at_ms: i64,
    mut stored: impl FnMut(KeyRef<'_>) -> Stored,
) -> usize {
    let mut steps = 0;
    while let Some(due) = table.take_due(START_MS + at_ms) {
        let lock = stored(due.key.as_ref());
        done(table.do_due(due, Ok(lock), now(at_ms)));
        steps += 1;
    }
    steps
}

fn releases_of_a_writer(readers: usize) {
    let mut table = LockTable::default();
    let writer = owner(readers);
    let mut lock = take(&mut table, key("k"), &writer, None);
    let owners: Vec<Owner> = (0..readers).map(owner).collect();
    let ((), took) = timed(|| {
        for owner in &owners {
            wait(&mut table, key("k"), &lock, owner, Limit::SHARED);
        }
    });
    row(
        &format!("one more of {readers} readers queues"),
        readers,
        took,
    );
    let request = ReleaseRequest {
        owner: writer,
        token: None,
        extent: ReleaseExtent::One,
    };
    let stored = Stored::Read(std::mem::take(&mut lock));
    let (done, took) = timed(|| done(table.release(key("k"), stored, &request, now(1))));
    let first = done.step.answers.len();
    row(
        &format!("release with {readers} readers behind ({first} of them let in)"),
        1,
        took,
    );
    let (steps, took) = timed(|| do_all_due(&mut table, 1, |_| Stored::AsExpected));
    row("each later step that lets as many in", steps, took);
}

fn waits_of_owners_in_two_queues(waiters: usize) {
    let mut table = LockTable::default();
    let [one, other, newcomer] = [0, 1, 2].map(|n| owner(waiters + n));
    let k = take(&mut table, key("k"), &one, None);
    let l = take(&mut table, key("l"), &other, None);
    let owners: Vec<Owner> = (0..waiters).map(owner).collect();
    for owner in &owners {
        wait(&mut table, key("k"), &k, owner, Limit::EXCLUSIVE);
        wait(&mut table, key("l"), &l, owner, Limit::EXCLUSIVE);
    }
    let ((), took) = timed(|| {
        wait(&mut table, key("k"), &k, &newcomer, Limit::EXCLUSIVE);
    });
    let what = format!("one more wait, {waiters} owners stand in two queues");
    row(&what, 1, took);
    // Somebody may wait for this one, so it is searched for deadlocks.
    let holder = owner(waiters + 3);
    let m = take(&mut table, key("m"), &holder, None);
    let last = owner(waiters + 4);
    wait(&mut table, key("m"), &m, &last, Limit::EXCLUSIVE);
    let ((), took) = timed(|| {
        wait(&mut table, key("k"), &k, &holder, Limit::EXCLUSIVE);
    });
    row("  by an owner that holds a lock others wait for", 1, took);
    let read = |name: KeyRef<'_>| {
        let lock = if name == key("k") { &k } else { &l };
        Stored::Read(lock.clone())
    };
    let (steps, took) = timed(|| do_all_due(&mut table, 0, read));
    row("  each step in which its search goes on", steps, took);
    waits_in_the_worst_order(waiters / 10);
}

/// All queue for one lock, and then all for the other: each may be waited for.
fn waits_in_the_worst_order(waiters: usize) {
    let mut table = LockTable::default();
    let [k, l] = ["k", "l"].map(|name| take(&mut table, key(name), &owner(waiters), None));
    let owners: Vec<Owner> = (0..waiters).map(owner).collect();
    for owner in &owners {
        wait(&mut table, key("k"), &k, owner, Limit::EXCLUSIVE);
    }
    let ((), took) = timed(|| {
        for owner in &owners {
            wait(&mut table, key("l"), &l, owner, Limit::EXCLUSIVE);
        }
    });
    row(
        &format!("  in the worst order, each second wait of {waiters}"),
        waiters,
        took,
    );
    let read = |name: KeyRef<'_>| {
        let lock = if name == key("k") { &k } else { &l };
        Stored::Read(lock.clone())
    };
    let (steps, took) = timed(|| do_all_due(&mut table, 0, read));
    row("    each step in which their search goes on", steps, took);
}

fn looks_at_contended_keys(keys: usize) {
    let mut table = LockTable::default();
    let names: Vec<String> = (0..keys).map(|n| format!("key-{n}")).collect();
    let (a, b) = (owner(0), owner(1));
    let mut locks = Vec::new();
    for name in &names {
        let lock = take(&mut table, key(name), &a, None);
        wait(&mut table, key(name), &lock, &b, Limit::EXCLUSIVE);
        locks.push(lock);
    }
    let ((), touched) = timed(|| table.everything_touched(START_MS));
    let nth = |key: KeyRef<'_>| -> usize {
        let name = std::str::from_utf8(key.name).unwrap();
        name["key-".len()..].parse().unwrap()
    };
    let stored = |key: KeyRef<'_>| Stored::Read(locks[nth(key)].clone());
    let (steps, took) = timed(|| do_all_due(&mut table, 0, stored));
    row(
        &format!("look at one of {keys} contended keys"),
        steps,
        took,
    );
    row(&format!("flush with {keys} contended keys"), 1, touched);
}

fn ends_of_a_client(holds: usize) {
    let mut table = LockTable::default();
    let names: Vec<String> = (0..holds).map(|n| format!("key-{n}")).collect();
    let (a, b) = (owner(0), owner(1));
    let locks: Vec<Lock> = names
        .iter()
        .map(|name| take(&mut table, key(name), &a, Some(1)))
        .collect();
    let ((), took) = timed(|| table.connection_ended(ClientId(1), false));
    row(
        &format!("end of a client with {holds} bound holds"),
        1,
        took,
    );
    let stored = Stored::Read(locks[holds / 2].clone());
    let wanted = request(&b, Limit::EXCLUSIVE, None);
    let wanted_key = key(&names[holds / 2]);
    let (granted, took) = timed(|| acquire(&mut table, wanted_key, stored, wanted, None));
    assert!(matches!(granted, Acquired::Granted(_)));
    row("  the next command on one of their locks", 1, took);
    let nth = |key: KeyRef<'_>| -> usize {
        let name = std::str::from_utf8(key.name).unwrap();
        name["key-".len()..].parse().unwrap()
    };
    let stored = |key: KeyRef<'_>| Stored::Read(locks[nth(key)].clone());
    let (steps, took) = timed(|| do_all_due(&mut table, 0, stored));
    row("  each of the others, as it comes due", steps, took);
}

fn ends_of_a_client_on_one_lock(holds: usize) {
    let (mut table, _) = shared_by(holds, |_| Some(1));
    let ((), took) = timed(|| table.connection_ended(ClientId(1), false));
    row(
        &format!("end of a client with {holds} holds on one lock"),
        1,
        took,
    );
    let (steps, took) = timed(|| do_all_due(&mut table, 0, |_| Stored::AsExpected));
    row("  each step that ends them", steps, took);
}

/// All holds but a few in the middle have just ended, with one client or with as many.
fn newcomers_after_an_end(holds: usize) {
    for (clients, live) in [(1, 0), (holds, 0), (1, 1), (holds, 1)] {
        let client = |n| match n == holds / 2 && live > 0 {
            true => u64::MAX,
            false => (n % clients) as u64,
        };
        let (mut table, _) = shared_by(holds, |n| Some(client(n)));
        for client in 0..clients {
            table.connection_ended(ClientId(client as u64), false);
        }
        let what = format!("{holds} holds, {live} live, after the end of {clients}");
        let newcomer = request(&owner(holds), Limit::EXCLUSIVE, None);
        let mut broken = table.clone();
        let (progress, took) =
            timed(|| table.acquire(key("k"), Stored::AsExpected, newcomer, None, now(1)));
        let acquired = done(progress).result.unwrap();
        assert_eq!(acquired == Acquired::Busy, live > 0);
        row(&format!("{what}: a newcomer"), 1, took);
        let (progress, took) =
            timed(|| broken.break_lock(key("k"), Stored::AsExpected, None, now(1)));
        assert_eq!(done(progress).result.unwrap(), live > 0);
        row(&format!("{what}: a break"), 1, took);
    }
}

fn moves_of_keys(holds: usize) {
    let (mut table, _) = shared_by(holds, |n| Some(n as u64));
    let ((), took) = timed(|| {
        table.key_leaves(key("k"), START_MS);
        table.key_arrives(key("l"), START_MS);
    });
    row(
        &format!("rename of a lock with {holds} bound holds"),
        1,
        took,
    );
    let ((), took) = timed(|| table.databases_swapped(0, 1, START_MS));
    row(
        &format!("two databases change places, {holds} bound holds"),
        1,
        took,
    );
}

fn breaks(holds: usize) {
    let (mut table, _) = shared_by(holds, |n| Some(n as u64));
    let (progress, took) = timed(|| table.break_lock(key("k"), Stored::AsExpected, None, now(1)));
    assert!(done(progress).result.unwrap());
    row(
        &format!("break of a lock with {holds} bound holds"),
        1,
        took,
    );
    clear_away(&mut table);
}

fn deletions(holds: usize) {
    let (mut table, _) = shared_by(holds, |_| None);
    let ((), took) = timed(|| table.key_touched(key("k"), START_MS));
    row(&format!("deletion of a lock with {holds} holders"), 1, took);
    clear_away(&mut table);
}

/// Clears away what is over and forgotten.
fn clear_away(table: &mut LockTable) {
    let (steps, took) = timed(|| {
        let mut steps = 0;
        while table.wake_at_ms() == Some(0) {
            assert!(table.take_due(START_MS).is_none());
            steps += 1;
        }
        steps
    });
    if steps > 0 {
        row("  each step that clears away what is over", steps, took);
    }
}
