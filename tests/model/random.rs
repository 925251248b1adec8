//! What happens in a run, drawn at random.

mod scenes;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::commands::{
    CHANNELS, Command, DATABASES, ENDLESS_MS, Extent, KEYS, LONG_MS, Lease, Mode, OWNERS, Patience,
    QUEUE_MS, Request, SHORT_LEASES, SHORT_MS, UNIT_OF_LEASES,
};
use crate::core_side::{CoreSide, Grant, Holder};
use crate::keyspace::{DbKey, Dump};
use redis_lock_core::token::TOKEN_MAX;

pub use scenes::{reader_behind_writer, scene};

/// A source of choices: the same for the same seed.
pub struct Random {
    source: StdRng,
    /// How many long leases were drawn.
    leases: Lease,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self {
            source: StdRng::seed_from_u64(seed),
            leases: 0,
        }
    }

    /// One of 0 to n - 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.source.random_range(0..n)
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.source).unwrap()
    }

    fn weighted<T: Copy>(&mut self, choices: &[(usize, T)]) -> T {
        let (_, choice) = choices
            .choose_weighted(&mut self.source, |&(weight, _)| weight)
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
    /// The client asks the server to close it.
    Quit,
    UnblockAsTimeout,
    UnblockAsError,
    /// Deadlocks are refused from now on, or not any more; or more or fewer
    /// may wait for a lock, or have places.
    Setting,
    /// Somebody begins to listen to a channel, or ceases to.
    Ears,
    /// Who was told of a grant to its place says so, maybe too late.
    Claim,
    /// Nobody does anything until something is due, maybe for hours.
    TimePasses,
    /// Somebody shares a lock, a client waits to have it alone, and one behind that to
    /// share it, too.
    ReaderBehindWriter,
}

pub fn kind(random: &mut Random) -> Kind {
    random.weighted(&[
        (180, Kind::Single),
        (20, Kind::Transaction),
        (8, Kind::Script),
        (2, Kind::Kill),
        (2, Kind::HangUp),
        (2, Kind::Quit),
        (3, Kind::Setting),
        (2, Kind::UnblockAsTimeout),
        (2, Kind::UnblockAsError),
        (4, Kind::TimePasses),
        (3, Kind::ReaderBehindWriter),
        (5, Kind::Ears),
        (20, Kind::Claim),
    ])
}

/// Half a unit of leases to two and a half, and each a second longer than those drawn
/// before, so that seldom two end together.
fn long_lease(random: &mut Random) -> Lease {
    random.leases += 1;
    let units = random.one_of(&[1, 2, 3]);
    units * UNIT_OF_LEASES - UNIT_OF_LEASES / 2 + random.leases * 1000
}

fn lease(random: &mut Random) -> Lease {
    if random.percent(4) {
        random.one_of(&SHORT_LEASES)
    } else {
        long_lease(random)
    }
}

/// One of the lock's holders where there are any, often enough.
fn likely_owner(random: &mut Random, core: &CoreSide, at: DbKey) -> &'static str {
    let holders = core.holders(at).into_iter();
    let owners: Vec<&'static str> = holders.map(|holder| holder.owner).collect();
    if !owners.is_empty() && random.percent(75) {
        random.one_of(&owners)
    } else {
        random.one_of(&OWNERS)
    }
}

fn held(core: &CoreSide, at: DbKey, owner: &str) -> Option<Holder> {
    let mut holders = core.holders(at).into_iter();
    holders.find(|holder| holder.owner == owner)
}

fn fence(random: &mut Random, core: &CoreSide, at: DbKey, owner: &str) -> Option<i64> {
    let right = held(core, at, owner).and_then(|holder| holder.token);
    near(random, right)
}

/// No token, the right one if there is one that can be sent, or another.
fn near(random: &mut Random, right: Option<i64>) -> Option<i64> {
    match random.below(10) {
        0..=4 => None,
        5..=8 => right.filter(|token| *token >= 1),
        _ => Some(right.map_or(1, |token| token.saturating_sub(1).max(1))),
    }
}

/// A hold number that fits or is next to one that does.
fn hold(random: &mut Random, core: &CoreSide, at: DbKey, owner: &str) -> i64 {
    let count = held(core, at, owner).map_or(0, |holder| holder.count);
    (count - 1 + random.one_of(&[0, 1, 1, 1, 2, 2, 2, 3])).max(1)
}

/// What a client sends that lost its connection while it waited, or another
/// thread of the same owner.
fn send_again(random: &mut Random, key: &'static str, request: Request) -> Command {
    let hold = random.one_of(&[Some(1), Some(1), request.hold]);
    let session = request.session || random.percent(15);
    let lease = Some(long_lease(random));
    Command::Acquire(
        key,
        Request {
            hold,
            session,
            lease,
            ..request
        },
        Patience::Block(ENDLESS_MS),
    )
}

fn queue(random: &mut Random) -> Patience {
    let ms = random.weighted(&[(1, QUEUE_MS[0]), (9, QUEUE_MS[1])]);
    let channel = random.one_of(&CHANNELS);
    Patience::Queue(ms, channel)
}

/// What somebody sends who has a place, or thinks so.
fn ask_again(random: &mut Random, key: &'static str, owner: &'static str, mode: Mode) -> Command {
    let others = [Mode::Exclusive, Mode::Shared, Mode::Limit(2)];
    let other = random.one_of(&others);
    let request = Request {
        owner,
        lease: Some(long_lease(random)),
        hold: random.one_of(&[None, None, Some(1), Some(2)]),
        mode: random.weighted(&[(6, mode), (1, other)]),
        session: random.percent(25),
    };
    let queue = queue(random);
    Command::Acquire(
        key,
        request,
        random.weighted(&[(8, queue), (2, Patience::None)]),
    )
}

/// What somebody sends who was told of a grant, and in which database.
pub fn claim(random: &mut Random, core: &CoreSide) -> Option<(usize, Command)> {
    let last = *core.grants.last()?;
    let any = random.one_of(&core.grants);
    let Grant { at, owner, token } = random.weighted(&[(4, last), (1, any)]);
    let key = at.key;
    let lease = Some(long_lease(random));
    let command = match random.below(10) {
        0 => Command::Release(key, owner, Some(token), Extent::One),
        1 | 2 => ask_again(random, key, owner, Mode::Shared),
        _ => Command::Renew(
            key,
            owner,
            lease,
            random.one_of(&[Some(token), Some(token), Some(token), None]),
        ),
    };
    Some((at.db, command))
}

fn acquire(random: &mut Random, core: &CoreSide, at: DbKey, may_wait: bool) -> Command {
    let waiting: Vec<Request> = core.waiters(at).map(|waiter| waiter.request).collect();
    if may_wait && !waiting.is_empty() && random.percent(25) {
        let request = random.one_of(&waiting);
        return send_again(random, at.key, request);
    }
    let places = core.places(at);
    if !places.is_empty() && random.percent(25) {
        let (owner, mode) = random.one_of(&places);
        return ask_again(random, at.key, owner, mode);
    }
    let owner = random.one_of(&OWNERS);
    let hold = random.percent(30).then(|| hold(random, core, at, owner));
    let queue = queue(random);
    let patience = random.weighted(&[
        (15, Patience::None),
        (40, Patience::Block(ENDLESS_MS)),
        (23, Patience::Block(LONG_MS)),
        (2, Patience::Block(SHORT_MS)),
        (50, queue),
    ]);
    let patience = match patience {
        Patience::Block(_) if !may_wait => Patience::None,
        patience => patience,
    };
    let mode = random.weighted(&[
        (50, Mode::Exclusive),
        (3, Mode::Limit(1)),
        (25, Mode::Shared),
        (12, Mode::Limit(2)),
        (10, Mode::Limit(3)),
    ]);
    let session = random.percent(15);
    let lease = if session {
        // A short one would be kept up, many times between two steps.
        Some(long_lease(random))
    } else {
        random.percent(80).then(|| lease(random))
    };
    Command::Acquire(
        at.key,
        Request {
            owner,
            lease,
            hold,
            mode,
            session,
        },
        patience,
    )
}

fn renew(
    random: &mut Random,
    core: &CoreSide,
    at: DbKey,
    owner: &'static str,
    lease: Option<Lease>,
) -> Command {
    Command::Renew(at.key, owner, lease, fence(random, core, at, owner))
}

fn release(random: &mut Random, core: &CoreSide, at: DbKey) -> Command {
    let places = core.places(at);
    let owner = match places.is_empty() || random.percent(85) {
        true => likely_owner(random, core, at),
        false => random.one_of(&places).0,
    };
    Command::Release(
        at.key,
        owner,
        fence(random, core, at, owner),
        match random.below(10) {
            0..=4 => Extent::One,
            5..=7 => Extent::Hold(hold(random, core, at, owner)),
            _ => Extent::All,
        },
    )
}

/// A token that the clock of the run does not reach, or not soon.
fn far_ahead(random: &mut Random, core: &CoreSide) -> i64 {
    let ahead = core.keyspace.now_ms * 1000 + 10_000_000_000;
    random.one_of(&[ahead, ahead, ahead, TOKEN_MAX - 1, TOKEN_MAX])
}

fn hset(random: &mut Random, core: &CoreSide, key: &'static str) -> Command {
    let name = random.one_of(&["ann", "bob", "stranger", "@fence", "@other", "@permit:ann"]);
    let value = match random.below(4) {
        0 => random.one_of(&[-1, 0]),
        1 if name == "@fence" => far_ahead(random, core),
        _ => random.one_of(&[1, 2]),
    };
    Command::Hset(key, name, value)
}

/// As the owners of the run, in their order.
const PERMIT_FIELDS: [&str; OWNERS.len()] =
    ["@permit:ann", "@permit:bob", "@permit:cid", "@permit:dan"];

fn permit_field(owner: &str) -> &'static str {
    let position = OWNERS.iter().position(|known| *known == owner);
    PERMIT_FIELDS[position.unwrap()]
}

fn hdel(random: &mut Random, core: &CoreSide, at: DbKey) -> Command {
    let owner = likely_owner(random, core, at);
    let names = match random.below(6) {
        0 => vec!["@fence"],
        1 => vec![owner, "@fence"],
        2 => vec![permit_field(owner)],
        3 => vec![permit_field(owner), owner],
        _ => vec![owner],
    };
    Command::Hdel(at.key, names)
}

/// A command for a client of this database.
pub fn command(
    random: &mut Random,
    core: &CoreSide,
    dumps: &[Dump],
    db: usize,
    may_wait: bool,
) -> Command {
    let key = random.one_of(&KEYS);
    let other = random.one_of(&KEYS);
    let at = DbKey { db, key };
    let owner = likely_owner(random, core, at);
    // A key that is no lock refuses everything, which soon teaches nothing new.
    if !core.is_lock(at) && random.percent(60) {
        return Command::Del(key);
    }
    match random.below(1080) {
        0..370 => acquire(random, core, at, may_wait),
        370..620 => release(random, core, at),
        620..680 => {
            let lease = long_lease(random);
            let lease = random.percent(80).then_some(lease);
            renew(random, core, at, owner, lease)
        }
        680..710 => Command::RedissonLock(key, owner, lease(random)),
        710..750 => Command::RedissonUnlock(key, owner, lease(random)),
        750..770 => Command::Del(key),
        770..785 => Command::Unlink(key),
        785..790 => Command::Set(key),
        790..808 => Command::Rename(key, other),
        808..815 => Command::RenameNx(key, other),
        815..840 => Command::Move(key, 1 - db),
        840..860 => Command::CopyReplace(key, other, random.below(DATABASES)),
        860..872 => Command::Dump(key),
        872..884 if !dumps.is_empty() => Command::RestoreReplace(
            key,
            random.percent(70).then(|| lease(random)),
            dumps[random.below(dumps.len())].clone(),
        ),
        884..900 => match random.percent(33) {
            true => Command::Expire(key, -1000),
            false => Command::Expire(key, long_lease(random)),
        },
        900..930 => {
            let lease = lease(random);
            Command::Pexpire(key, if random.percent(15) { -1 } else { lease })
        }
        930..945 => Command::Persist(key),
        945..965 => hdel(random, core, at),
        965..980 => hset(random, core, key),
        980..984 => Command::FlushDb,
        984..988 => Command::FlushAll,
        988..992 => Command::SwapDb,
        1000..1020 => Command::Break(key, near(random, core.newest_token(at))),
        1020..1035 => Command::Guard(key, core.newest_token(at).unwrap_or(1)),
        1035..1060 => Command::Info(key),
        1060.. => Command::List(random.one_of(&[None, Some(1), Some(2)])),
        // The server would keep up the short lease of a session.
        _ if !core.bound_in(db).contains(&(key, owner)) => {
            let lease = random.one_of(&SHORT_LEASES);
            renew(random, core, at, owner, Some(lease))
        }
        _ => Command::Pexpire(key, random.one_of(&SHORT_LEASES)),
    }
}
