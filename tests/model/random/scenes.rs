//! Transactions of commands that are seldom drawn together by chance.

use super::{Random, acquire, far_ahead, long_lease, release, renew};
use crate::commands::{Command, DATABASES, Extent, KEYS, Mode, OWNERS, Request};
use crate::stored::Holder;
use crate::world::{Place, World};

/// A time to live that is over soon, but not before the next command.
const SOON_OVER: i64 = 2000;

/// A transaction of a client of this database; or nothing, and then it is to be
/// drawn by chance.
pub fn scene(random: &mut Random, world: &World, client: usize, db: usize) -> Vec<Command> {
    let scene = match random.below(5) {
        0 => Some(write_a_token(random, world, db)),
        1 | 2 => kill_at_the_grant(random, world, client, db),
        3 => carry_a_session(random, world, db),
        _ => cut_off_permits(random, world, db),
    };
    scene.unwrap_or_default()
}

/// A lock comes free, and some of those who get it are gone before they hear.
fn kill_at_the_grant(
    random: &mut Random,
    world: &World,
    client: usize,
    db: usize,
) -> Option<Vec<Command>> {
    let places: Vec<Place> = world.contended().filter(|at| at.db == db).collect();
    let at = one_of(random, &places)?;
    let mut commands = free(random, world, at);
    let (_, first) = world.waiters(at).next()?;
    // Only of holds that have numbers is it plain which of them each reply tells.
    let told_meanwhile = random.percent(40);
    if told_meanwhile {
        commands.extend(tell_meanwhile(random, at, first));
    }
    let mut victims: Vec<usize> = if random.percent(75) {
        let of_one_owner = world.waiters(at);
        let of_one_owner = of_one_owner.filter(|(_, request)| request.owner == first.owner);
        of_one_owner.map(|(waiter, _)| waiter).collect()
    } else {
        let suits = |&other: &usize| world.has_sessions(other) || world.waits(other);
        (0..world.peers.len()).filter(suits).collect()
    };
    victims.retain(|&victim| victim != client);
    let count = if told_meanwhile {
        1
    } else {
        1 + random.below(2)
    };
    for _ in 0..count {
        if victims.is_empty() {
            break;
        }
        let victim = victims.remove(random.below(victims.len()));
        commands.push(Command::Kill {
            client: victim,
            id: world.peers[victim].id,
        });
    }
    // What has ended is over before the next command sees the lock.
    if random.percent(50) {
        let key = if random.percent(67) {
            at.key
        } else {
            random.one_of(&KEYS)
        };
        let at = Place { db, key };
        let owner = random.one_of(&OWNERS);
        let lease = Some(long_lease(random));
        commands.push(match random.below(3) {
            0 => acquire(random, world, at, false, false),
            1 => renew(random, world, at, owner, lease),
            _ => release(random, world, at),
        });
    }
    Some(commands)
}

/// Takes the lock from whoever holds it.
fn free(random: &mut Random, world: &World, at: Place) -> Vec<Command> {
    let Place { key, .. } = at;
    if random.percent(25) {
        return vec![Command::Break { key, fence: None }];
    }
    let holders = world.lock(at).unwrap_or_default().holders.into_iter();
    holders
        .map(|holder| Command::Release {
            key,
            owner: holder.owner,
            fence: None,
            extent: Extent::All,
        })
        .collect()
}

/// The owner that gets the lock is told so by other replies, too.
fn tell_meanwhile(random: &mut Random, at: Place, first: Request) -> Vec<Command> {
    let key = at.key;
    let lease = Some(long_lease(random));
    if random.percent(50) {
        let renew = Command::Renew {
            key,
            owner: first.owner,
            lease,
            fence: None,
        };
        // A renewal does not tell the token.
        return vec![renew, Command::Info(key)];
    }
    let request = Request {
        lease,
        hold: random.one_of(&[None, Some(1), Some(1), Some(2)]),
        mode: Mode::Shared,
        ..first
    };
    vec![Command::Acquire {
        key,
        request,
        block: None,
    }]
}

/// A lock that lasts as long as a connection is found elsewhere.
fn carry_a_session(random: &mut Random, world: &World, db: usize) -> Option<Vec<Command>> {
    let (key, owner) = one_of(random, &world.tied(db))?;
    let other = random.one_of(&KEYS);
    let (carry, to) = match random.below(4) {
        0 => (Command::Rename(key, other), other),
        1 => (Command::RenameNx(key, other), other),
        2 => (Command::Move(key, 1 - db), key),
        _ => (Command::SwapDb, key),
    };
    let at = Place { db, key: to };
    let lease = Some(long_lease(random));
    let then = match random.below(4) {
        0 => Command::Info(to),
        1 => renew(random, world, at, owner, lease),
        2 => release(random, world, at),
        _ => acquire(random, world, at, false, false),
    };
    Some(vec![carry, then])
}

/// Somebody lets a lock of permits end soon, and a holder keeps it.
fn cut_off_permits(random: &mut Random, world: &World, db: usize) -> Option<Vec<Command>> {
    let keys = KEYS.iter().map(|&key| Place { db, key });
    let permits: Vec<(&'static str, Holder)> = keys
        .flat_map(|at| {
            let holders = world.lock(at).unwrap_or_default().holders.into_iter();
            holders.map(move |holder| (at.key, holder))
        })
        .filter(|(_, holder)| holder.limit > 1 && !holder.over)
        .collect();
    let (key, Holder { owner, .. }) = one_of(random, &permits)?;
    let lease = Some(long_lease(random));
    let keep = if random.percent(75) {
        Command::Acquire {
            key,
            request: Request {
                owner,
                lease,
                hold: None,
                mode: Mode::Shared,
                session: random.percent(25),
            },
            block: None,
        }
    } else {
        Command::Renew {
            key,
            owner,
            lease,
            fence: None,
        }
    };
    Some(vec![Command::Pexpire(key, SOON_OVER), keep])
}

/// Somebody writes a token far ahead, and the lock is copied or passed on.
fn write_a_token(random: &mut Random, world: &World, db: usize) -> Vec<Command> {
    let contended: Vec<Place> = world.contended().filter(|at| at.db == db).collect();
    let [key, other] = [random.one_of(&KEYS), random.one_of(&KEYS)];
    let at = one_of(random, &contended).unwrap_or(Place { db, key });
    let mut commands = vec![Command::Hset(at.key, "@fence", far_ahead(random, world))];
    if random.percent(50) {
        commands.push(Command::CopyReplace {
            from: at.key,
            to: other,
            db: random.below(DATABASES),
        });
    }
    if random.percent(67) {
        commands.extend(free(random, world, at));
    }
    let key = if random.percent(50) { at.key } else { other };
    commands.push(acquire(random, world, Place { db, key }, false, false));
    commands
}

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> Option<T> {
    (!choices.is_empty()).then(|| random.one_of(choices))
}
