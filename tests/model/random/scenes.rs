//! Transactions of commands that are seldom drawn together by chance.

use super::{Random, acquire, far_ahead, lease, long_lease, release, renew};
use crate::commands::{
    CROWD, Command, DATABASES, ENDLESS_MS, Extent, KEYS, Mode, OWNERS, Patience, Request, STEP_MS,
};
use crate::core_side::{CoreSide, Holder};
use crate::keyspace::DbKey;
use redis_lock_core::request::Limit;

/// A time to live that is over in the next steps.
const SOON_OVER: i64 = 2 * STEP_MS;

/// A transaction of a client of this database; or nothing, and then it is to be
/// drawn by chance.
pub fn scene(
    random: &mut Random,
    core: &CoreSide,
    client: usize,
    db: usize,
    ears: i64,
) -> Vec<Command> {
    let scene = match random.below(7) {
        0 => Some(write_a_token(random, core, db)),
        1 | 2 => kill_at_the_grant(random, core, client, db),
        3 => carry_a_session(random, core, db),
        4 => Some(crowd(random)),
        5 => free_a_place(random, core, db, ears),
        _ => cut_off_permits(random, core, db),
    };
    scene.unwrap_or_default()
}

/// A lock comes free, and some of those who get it are gone before they hear.
fn kill_at_the_grant(
    random: &mut Random,
    core: &CoreSide,
    client: usize,
    db: usize,
) -> Option<Vec<Command>> {
    let mut keys = core.contended();
    keys.retain(|at| at.db == db);
    let at = one_of(random, &keys)?;
    let mut commands = free(random, core, at);
    let first = core.waiters(at).next()?.request;
    if random.percent(40) {
        commands.extend(tell_meanwhile(random, at, first));
    }
    let mut victims: Vec<usize> = if random.percent(75) {
        let of_one_owner = core.waiters(at);
        let of_one_owner = of_one_owner.filter(|waiter| waiter.request.owner == first.owner);
        of_one_owner.map(|waiter| waiter.client).collect()
    } else {
        let suits = |&other: &usize| core.has_sessions(other) || core.waits(other);
        (0..core.peers.len()).filter(suits).collect()
    };
    victims.retain(|&victim| victim != client);
    for _ in 0..1 + random.below(2) {
        if victims.is_empty() {
            break;
        }
        let victim = victims.remove(random.below(victims.len()));
        commands.push(Command::Kill(victim, core.peers[victim].id.0));
    }
    // What has ended is over before the next command sees the lock.
    if random.percent(50) {
        let key = if random.percent(67) {
            at.key
        } else {
            random.one_of(&KEYS)
        };
        let at = DbKey { db, key };
        let owner = random.one_of(&OWNERS);
        let lease = Some(long_lease(random));
        commands.push(match random.below(3) {
            0 => acquire(random, core, at, false),
            1 => renew(random, core, at, owner, lease),
            _ => release(random, core, at),
        });
    }
    Some(commands)
}

/// A lock comes free for which somebody has a place, or is no lock any more; and maybe
/// nobody listens by then.
fn free_a_place(
    random: &mut Random,
    core: &CoreSide,
    db: usize,
    ears: i64,
) -> Option<Vec<Command>> {
    let keys = KEYS.iter().map(|&key| DbKey { db, key });
    let keys: Vec<DbKey> = keys.filter(|at| !core.places(*at).is_empty()).collect();
    let at = one_of(random, &keys)?;
    let mut commands = Vec::new();
    if random.percent(50) {
        commands.push(Command::KillEars(ears));
    }
    match random.percent(20) {
        true => commands.push(Command::Set(at.key)),
        false => commands.extend(free(random, core, at)),
    }
    if random.percent(50) {
        commands.push(acquire(random, core, at, false));
    }
    Some(commands)
}

/// Takes the lock from whoever holds it.
fn free(random: &mut Random, core: &CoreSide, at: DbKey) -> Vec<Command> {
    let DbKey { key, .. } = at;
    if random.percent(25) {
        return vec![Command::Break(key, None)];
    }
    let holders = core.holders(at).into_iter();
    holders
        .map(|holder| Command::Release(key, holder.owner, None, Extent::All))
        .collect()
}

/// The owner that gets the lock is told so by other replies, too.
fn tell_meanwhile(random: &mut Random, at: DbKey, first: Request) -> Vec<Command> {
    let key = at.key;
    let lease = Some(long_lease(random));
    if random.percent(50) {
        return vec![Command::renew(key, first.owner, lease)];
    }
    let request = Request {
        lease,
        hold: random.one_of(&[None, Some(1), Some(1), Some(2)]),
        mode: Mode::Shared,
        ..first
    };
    vec![Command::Acquire(key, request, Patience::None)]
}

/// A lock that lasts as long as a connection is found elsewhere.
fn carry_a_session(random: &mut Random, core: &CoreSide, db: usize) -> Option<Vec<Command>> {
    let (key, owner) = one_of(random, &core.bound_in(db))?;
    let other = random.one_of(&KEYS);
    let (carry, to) = match random.below(4) {
        0 => (Command::Rename(key, other), other),
        1 => (Command::RenameNx(key, other), other),
        2 => (Command::Move(key, 1 - db), key),
        _ => (Command::SwapDb, key),
    };
    let at = DbKey { db, key: to };
    let lease = Some(long_lease(random));
    let then = match random.below(4) {
        0 => Command::Info(to),
        1 => renew(random, core, at, owner, lease),
        2 => release(random, core, at),
        _ => acquire(random, core, at, false),
    };
    Some(vec![carry, then])
}

/// What the two clients send in turn: the last one may wait longest.
pub fn reader_behind_writer(
    random: &mut Random,
    first: usize,
    last: usize,
) -> [(usize, Command); 4] {
    let key = random.one_of(&KEYS);
    let mut acquire = |owner, mode, patience| {
        Command::Acquire(
            key,
            Request {
                owner,
                lease: Some(long_lease(random)),
                hold: None,
                mode,
                session: false,
            },
            patience,
        )
    };
    let endless = Patience::Block(ENDLESS_MS);
    [
        (last, Command::Del(key)),
        (last, acquire("ann", Mode::Shared, Patience::None)),
        (first, acquire("bob", Mode::Exclusive, endless)),
        (last, acquire("cid", Mode::Shared, endless)),
    ]
}

/// Many share a lock; some for a moment only.
fn crowd(random: &mut Random) -> Vec<Command> {
    let key = random.one_of(&KEYS);
    let acquire = |owner| Command::share(key, owner, lease(random));
    CROWD.into_iter().map(acquire).collect()
}

/// Somebody lets a lock of permits end soon, and a holder keeps it.
fn cut_off_permits(random: &mut Random, core: &CoreSide, db: usize) -> Option<Vec<Command>> {
    let keys = KEYS.iter().map(|&key| DbKey { db, key });
    let permits: Vec<(&'static str, Holder)> = keys
        .flat_map(|at| {
            let holders = core.holders(at).into_iter();
            holders.map(move |holder| (at.key, holder))
        })
        .filter(|(_, holder)| holder.limit != Limit::EXCLUSIVE)
        .collect();
    let (key, Holder { owner, .. }) = one_of(random, &permits)?;
    let lease = long_lease(random);
    let mut keep = match random.percent(75) {
        true => Command::share(key, owner, lease),
        false => Command::renew(key, owner, Some(lease)),
    };
    if let Command::Acquire(_, request, _) = &mut keep {
        request.session = random.percent(25);
    }
    Some(vec![Command::Pexpire(key, SOON_OVER), keep])
}

/// Somebody writes a token far ahead, and the lock is copied or passed on.
fn write_a_token(random: &mut Random, core: &CoreSide, db: usize) -> Vec<Command> {
    let mut contended = core.contended();
    contended.retain(|at| at.db == db);
    let [key, other] = [random.one_of(&KEYS), random.one_of(&KEYS)];
    let at = one_of(random, &contended).unwrap_or(DbKey { db, key });
    let mut commands = vec![Command::Hset(at.key, "@fence", far_ahead(random, core))];
    if random.percent(50) {
        commands.push(Command::CopyReplace(at.key, other, random.below(DATABASES)));
    }
    if random.percent(67) {
        commands.extend(free(random, core, at));
    }
    let key = if random.percent(50) { at.key } else { other };
    commands.push(acquire(random, core, DbKey { db, key }, false));
    commands
}

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> Option<T> {
    (!choices.is_empty()).then(|| random.one_of(choices))
}
