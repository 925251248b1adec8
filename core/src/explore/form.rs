//! The form of a state: what is left of it without names.
//!
//! Owners, keys and connections are interchangeable; tokens and waiters matter by
//! their rank (a token also by how far it is ahead of time, where clocks differ), and
//! times by how far away they are. So each part of a state writes
//! itself into a [`Form`], in an order that depends on no name, and the fingerprint of
//! a state is the smallest one over all ways to order its names.

use crate::keys::{KeyBuf, KeyRef};
use crate::lock::Lock;
use crate::queue::WaiterId;
use crate::request::{ClientId, HoldNumber, Owner};
use crate::token::FencingToken;

/// An order of all names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) owners: Vec<Owner>,
    pub(crate) keys: Vec<KeyBuf>,
    pub(crate) connections: Vec<usize>,
}

/// All ways to order so many.
pub(super) fn orders_of(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let with_last = |others: Vec<usize>| {
        (0..count).map(move |at| [&others[..at], &[last], &others[at..]].concat())
    };
    orders_of(last).into_iter().flat_map(with_last).collect()
}

/// How many times a connection can be made anew.
const GENERATIONS: u64 = 1000;

/// The client of a connection that was made anew so often.
pub(super) fn client_id(at: usize, generation: u64) -> ClientId {
    ClientId((at as u64 + 1) * GENERATIONS + generation)
}

/// Tokens and waiters of a state, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks {
    tokens: Vec<i64>,
    waiters: Vec<u64>,
}

/// Takes a state down.
pub(crate) struct Form<'n> {
    names: &'n Names,
    /// How often each connection was made anew.
    generations: &'n [u64],
    now_ms: i64,
    ranks: Ranks,
    /// The ranks are still being collected.
    collects: bool,
    hash: u64,
    stream: Stream,
}

/// A replication stream.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// How far it reaches.
    end: i64,
    /// What is so far from its end or farther is alike.
    far: i64,
    /// How far each replica has acknowledged it.
    acknowledged: Vec<Option<i64>>,
}

impl<'n> Form<'n> {
    /// Collects tokens and waiters.
    pub(super) fn collecting(names: &'n Names, generations: &'n [u64], now_ms: i64) -> Self {
        Self {
            names,
            generations,
            now_ms,
            ranks: Ranks::default(),
            collects: true,
            hash: 0,
            stream: Stream::default(),
        }
    }

    /// The form of the same state by another order of names.
    pub(super) fn hashing(self, names: &'n Names) -> Self {
        let mut ranks = self.ranks;
        if self.collects {
            ranks.tokens.sort_unstable();
            ranks.tokens.dedup();
            ranks.waiters.sort_unstable();
            ranks.waiters.dedup();
        }
        Self {
            names,
            ranks,
            collects: false,
            hash: 0x9e37_79b9_7f4a_7c15,
            stream: Stream::default(),
            ..self
        }
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.hash
    }

    pub(crate) fn keys(&self) -> &'n [KeyBuf] {
        &self.names.keys
    }

    pub(crate) fn owners(&self) -> &'n [Owner] {
        &self.names.owners
    }

    pub(crate) fn number(&mut self, number: i64) {
        let mixed = u128::from(self.hash ^ number.cast_unsigned()) * 0x5851_f42d_4c95_7f2d;
        let (low, high) = (mixed as u64, (mixed >> 64) as u64);
        self.hash = (low ^ high)
            .rotate_left(23)
            .wrapping_add(0x1234_5678_9abc_def1);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.number(i64::try_from(count).unwrap_or(-1));
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.number(flag.into());
    }

    pub(crate) fn text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.number(byte.into()));
        self.count(text.len());
    }

    pub(crate) fn owner(&mut self, owner: &Owner) {
        let at = self.names.owners.iter().position(|one| one == owner);
        self.number(at.map_or(-1, |at| at as i64));
    }

    pub(crate) fn key(&mut self, key: KeyRef<'_>) {
        let at = self.names.keys.iter().position(|one| one.as_ref() == key);
        self.number(at.map_or(-1, |at| at as i64));
    }

    pub(crate) fn client(&mut self, client: Option<ClientId>) {
        let Some(ClientId(id)) = client else {
            return self.number(-1);
        };
        let connection = (id / GENERATIONS) as usize - 1;
        let mut connections = self.names.connections.iter();
        let at = connections.position(|&one| one == connection);
        self.number(at.map_or(-2, |at| at as i64));
        // Of those that have ended, none comes back.
        self.flag(self.generations.get(connection) == Some(&(id % GENERATIONS)));
    }

    pub(crate) fn token(&mut self, token: Option<FencingToken>) {
        let Some(token) = token.map(FencingToken::get) else {
            return self.number(-1);
        };
        if self.collects {
            self.ranks.tokens.push(token);
        } else {
            let rank = self.ranks.tokens.binary_search(&token);
            self.number(rank.map_or(-2, |rank| rank as i64));
            // One that a clock gave which is ahead may be ahead of others' next ones.
            self.number((token / 1000 - self.now_ms).max(0));
        }
    }

    pub(crate) fn waiter(&mut self, id: Option<WaiterId>) {
        let Some(WaiterId(id)) = id else {
            return self.number(-1);
        };
        if self.collects {
            self.ranks.waiters.push(id);
        } else {
            let rank = self.ranks.waiters.binary_search(&id);
            self.number(rank.map_or(-2, |rank| rank as i64));
        }
    }

    /// The offsets that come next are of this stream, of which at most this much is on its
    /// way to each replica, and which each has acknowledged so far.
    pub(crate) fn stream(
        &mut self,
        end: i64,
        lag: usize,
        acknowledged: impl Iterator<Item = Option<i64>>,
    ) {
        self.stream = Stream {
            end,
            far: lag as i64 + 1,
            acknowledged: acknowledged.collect(),
        };
    }

    /// An offset that replicas have to acknowledge.
    pub(crate) fn offset(&mut self, offset: Option<i64>) {
        let from_end = offset.map_or(-1, |offset| self.stream.end - offset);
        self.number(from_end.min(self.stream.far));
        for at in 0..self.stream.acknowledged.len() {
            self.flag(self.stream.acknowledged[at] >= offset);
        }
    }

    /// A time at which something happens, in milliseconds, if ever. All that is over is
    /// alike.
    pub(crate) fn time(&mut self, at_ms: Option<i64>) {
        let at_ms = at_ms.filter(|&at_ms| at_ms != i64::MAX);
        self.number(at_ms.map_or(i64::MIN, |at_ms| (at_ms - self.now_ms).max(-1)));
    }

    /// A hold that lasts until then.
    pub(super) fn until(&mut self, hold: Option<(FencingToken, i64)>) {
        self.token(hold.map(|(token, _)| token));
        self.time(hold.map(|(_, until_ms)| until_ms));
    }

    pub(crate) fn hold(&mut self, hold: Option<HoldNumber>) {
        self.number(hold.map_or(-1, HoldNumber::count_with));
    }

    /// The order of the holders does not matter.
    pub(crate) fn lock(&mut self, lock: &Lock) {
        self.token(lock.last_token);
        self.time(lock.expires_at_ms);
        self.count(lock.leftovers);
        for owner in self.names.owners.iter() {
            let holder = lock.holder(owner);
            self.flag(holder.is_some());
            if let Some(holder) = holder {
                self.number(holder.holds);
                self.token(holder.token);
                self.time(holder.lease_end_ms);
                self.number(holder.limit.count_or_zero());
            }
        }
    }
}
