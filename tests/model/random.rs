//! What happens in a run, drawn at random.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::commands::{
    Block, Command, DATABASES, Extent, KEYS, LONG_LEASES, Lease, OWNERS, Request, SHORT_LEASES,
};
use crate::world::{Dump, Place, World};

/// A source of choices: the same for the same seed.
pub struct Random(StdRng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// One of 0 to n - 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.0).unwrap()
    }

    fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let (_, choice) = choices
            .choose_weighted(&mut self.0, |&(weight, _)| weight)
            .unwrap();
        *choice
    }
}

/// What one step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Single,
    Transaction,
    Script,
    /// Ends a waiting client's connection from the server's side.
    Kill,
    /// The client closes it.
    HangUp,
    UnblockAsTimeout,
    UnblockAsError,
}

pub fn kind(random: &mut Random) -> Kind {
    random.weighted(&[
        (180, Kind::Single),
        (10, Kind::Transaction),
        (8, Kind::Script),
        (2, Kind::Kill),
        (2, Kind::HangUp),
        (2, Kind::UnblockAsTimeout),
        (2, Kind::UnblockAsError),
    ])
}

fn lease(random: &mut Random) -> Lease {
    if random.percent(4) {
        random.one_of(&SHORT_LEASES)
    } else {
        random.one_of(&LONG_LEASES)
    }
}

/// The lock's owner where there is one, often enough.
fn likely_owner(random: &mut Random, world: &World, at: Place) -> &'static str {
    match world.holder(at) {
        Ok(Some(holder)) if OWNERS.contains(&holder.owner) && random.percent(75) => holder.owner,
        _ => random.one_of(&OWNERS),
    }
}

fn fence(random: &mut Random, world: &World, at: Place) -> Option<i64> {
    let holder = world.holder(at).ok().flatten();
    let right = holder
        .and_then(|holder| holder.token)
        .and_then(|token| world.value(token));
    match random.below(10) {
        0..=4 => None,
        5..=8 => right.filter(|token| *token >= 1),
        _ => Some(right.map_or(1, |token| token.saturating_sub(1).max(1))),
    }
}

/// A hold number that fits or is next to one that does.
fn hold(random: &mut Random, world: &World, at: Place, owner: &str) -> i64 {
    let holder = world.holder(at).ok().flatten();
    let count = holder
        .filter(|holder| holder.owner == owner)
        .map_or(0, |holder| holder.count);
    (count - 1 + random.one_of(&[0, 1, 1, 1, 2, 2, 2, 3])).max(1)
}

fn acquire(random: &mut Random, world: &World, at: Place, may_wait: bool) -> Command {
    let owner = random.one_of(&OWNERS);
    let hold = random.percent(30).then(|| hold(random, world, at, owner));
    let block = random.weighted(&[
        (15, None),
        (50, Some(Block::Endless)),
        (33, Some(Block::Long)),
        (2, Some(Block::Short)),
    ]);
    Command::Acquire {
        key: at.key,
        request: Request {
            owner,
            lease: random.percent(80).then(|| lease(random)),
            hold,
        },
        block: block.filter(|_| may_wait),
    }
}

fn release(random: &mut Random, world: &World, at: Place) -> Command {
    let owner = likely_owner(random, world, at);
    Command::Release {
        key: at.key,
        owner,
        fence: fence(random, world, at),
        extent: match random.below(10) {
            0..=4 => Extent::One,
            5..=7 => Extent::Hold(hold(random, world, at, owner)),
            _ => Extent::All,
        },
    }
}

fn hset(random: &mut Random, world: &World, key: &'static str) -> Command {
    let name = random.one_of(&["ann", "bob", "stranger", "@fence", "@other"]);
    let value = match random.below(4) {
        0 => random.one_of(&[-1, 0]),
        1 if name == "@fence" => world.greatest_token() + 1_000_000,
        _ => random.one_of(&[1, 2]),
    };
    Command::Hset(key, name, value)
}

fn hdel(random: &mut Random, world: &World, at: Place) -> Command {
    let owner = likely_owner(random, world, at);
    let names = match random.below(4) {
        0 => vec!["@fence"],
        1 => vec![owner, "@fence"],
        _ => vec![owner],
    };
    Command::Hdel(at.key, names)
}

/// A command for a client of this database.
pub fn command(
    random: &mut Random,
    world: &World,
    dumps: &[Dump],
    db: usize,
    may_wait: bool,
) -> Command {
    let key = random.one_of(&KEYS);
    let other = random.one_of(&KEYS);
    let at = Place { db, key };
    let owner = likely_owner(random, world, at);
    // A key that is no lock refuses everything, which soon teaches nothing new.
    if world.holder(at).is_err() && random.percent(60) {
        return Command::Del(key);
    }
    match random.below(1000) {
        0..370 => acquire(random, world, at, may_wait),
        370..620 => release(random, world, at),
        620..680 => Command::Renew {
            key,
            owner,
            lease: random.percent(80).then(|| lease(random)),
            fence: fence(random, world, at),
        },
        680..710 => Command::RedissonLock {
            key,
            owner,
            lease: lease(random),
        },
        710..750 => Command::RedissonUnlock {
            key,
            owner,
            lease: lease(random),
        },
        750..770 => Command::Del(key),
        770..785 => Command::Unlink(key),
        785..790 => Command::Set(key),
        790..815 => Command::Rename(key, other),
        815..840 => Command::Move(key, 1 - db),
        840..860 => Command::CopyReplace {
            from: key,
            to: other,
            db: random.below(DATABASES),
        },
        860..872 => Command::Dump(key),
        872..884 if !dumps.is_empty() => Command::RestoreReplace {
            key,
            lease: random.percent(70).then(|| lease(random)),
            dump: dumps[random.below(dumps.len())].clone(),
        },
        884..900 => Command::Expire(key, random.one_of(&[-1000, LONG_LEASES[0], LONG_LEASES[1]])),
        900..930 => {
            let lease = lease(random);
            Command::Pexpire(key, if random.percent(15) { -1 } else { lease })
        }
        930..945 => Command::Persist(key),
        945..965 => hdel(random, world, at),
        965..980 => hset(random, world, key),
        980..984 => Command::FlushDb,
        984..988 => Command::FlushAll,
        988..994 => Command::SwapDb,
        _ => Command::Renew {
            key,
            owner,
            lease: Some(1),
            fence: None,
        },
    }
}
