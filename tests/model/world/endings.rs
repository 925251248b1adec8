//! How connections end, and what is over with them.

use std::collections::BTreeMap;

use super::{Expect, Place, Reason, Token, World};
use crate::commands::Request;
use crate::stored::Holder;

/// What the owner of a lock is told of its holds in one step, from the first
/// grant on that is told to a client that waited.
#[derive(Debug)]
pub(super) struct Telling {
    token: Token,
    /// How many holds the owner had before.
    before: i64,
    told: Vec<Told>,
}

/// One who is told.
#[derive(Clone, Copy, Debug)]
struct Told {
    says: Says,
    /// The client that waited, if it did. It hears at the end of the step, if
    /// it is still connected.
    waited: Option<usize>,
    session: bool,
}

#[derive(Clone, Copy, Debug)]
enum Says {
    AtLeast(i64),
    OneMore,
}

impl Telling {
    /// The holds that the owner believes to have.
    fn holds(&self) -> i64 {
        self.told
            .iter()
            .fold(self.before, |holds, told| match told.says {
                Says::AtLeast(least) => holds.max(least),
                Says::OneMore => holds + 1,
            })
    }
}

impl World {
    /// Notes a grant that a client hears of: at the end of the step, if it waited.
    pub(super) fn note_grant(
        &mut self,
        at: Place,
        request: Request,
        waited: Option<usize>,
        before: i64,
        token: Token,
    ) {
        let says = request.hold.map_or(Says::OneMore, Says::AtLeast);
        let session = request.session;
        let told = Told {
            says,
            waited,
            session,
        };
        self.note_told((at, request.owner), told, before, token);
    }

    /// Notes that an owner is told that it holds the lock.
    pub(super) fn note_renewal(&mut self, at: Place, held: Holder) {
        let told = Told {
            says: Says::AtLeast(1),
            waited: None,
            session: false,
        };
        if let Some(token) = held.token {
            self.note_told((at, held.owner), told, held.count, token);
        }
    }

    fn note_told(&mut self, of: (Place, &'static str), told: Told, before: i64, token: Token) {
        let known = self.tellings.get(&of).map(|telling| telling.token);
        if known != Some(token) {
            if told.waited.is_none() {
                return;
            }
            let told = Vec::new();
            let telling = Telling {
                token,
                before,
                told,
            };
            self.tellings.insert(of, telling);
        }
        if let Some(telling) = self.tellings.get_mut(&of) {
            telling.told.push(told);
        }
    }

    /// The client's connection ends, and what is tied to it. Its grant, if it was
    /// to hear of one, adds nothing.
    pub fn disconnects(&mut self, client: usize) {
        self.account.waits_abandoned += u64::from(self.waits(client));
        self.leaves(client);
        self.loses_its_grant(client);
        let ties = std::mem::take(&mut self.ties);
        let (ended, kept) = ties.into_iter().partition(|(_, tie)| tie.0 == client);
        self.ties = kept;
        let ended: BTreeMap<_, _> = ended;
        for (of, (_, token)) in ended {
            self.session_ends(of, token);
        }
    }

    fn loses_its_grant(&mut self, client: usize) {
        let (lost, kept) = std::mem::take(&mut self.answers)
            .into_iter()
            .partition(|(to, _)| *to == client);
        self.answers = kept;
        let lost: Vec<(usize, Expect)> = lost;
        for (_, answer) in lost {
            if let Expect::Token(Token::OfGrant(n)) = answer {
                self.grants[n].lost = true;
            }
        }
        let is_it = |told: &Told| told.waited == Some(client);
        let mut tellings = self.tellings.iter_mut();
        let found = tellings.find(|(_, telling)| telling.told.iter().any(is_it));
        if let Some((&of, telling)) = found {
            telling.told.retain(|told| !is_it(told));
            let (left, token) = (telling.holds(), telling.token);
            self.leave(of, token, left, Reason::Undelivered);
        }
    }

    /// All holds end but those that other clients are to hear of.
    fn session_ends(&mut self, of: (Place, &'static str), token: Token) {
        let mut left = 0;
        if let Some(telling) = self.tellings.get_mut(&of)
            && telling.token == token
        {
            telling.before = 0;
            telling.told.retain(|told| told.waited.is_some());
            left = telling.holds();
            let mut newest_first = telling.told.iter().rev();
            if let Some(other) = newest_first.find(|told| told.session)
                && let Some(client) = other.waited
            {
                self.ties.insert(of, (client, token));
                return;
            }
        }
        self.leave(of, token, left, Reason::SessionEnded);
    }

    /// Leaves the owner at most so many of its holds.
    fn leave(&mut self, of: (Place, &'static str), token: Token, left: i64, reason: Reason) {
        let (at, owner) = of;
        // If the lock is none any more, there is nothing to end.
        if self.look(at).is_err() {
            return;
        }
        let held = self.lock(at).unwrap_or_default().holder(owner).copied();
        if let Some(held) = held.filter(|held| self.is_token(token, held.token)) {
            if left == 0 {
                self.last_hold_ends(at, held, reason);
            } else if left < held.count
                && let Some(stored) = self.stored(at)
            {
                let count = left;
                stored.write(Holder { count, ..held }, None);
            }
        }
        self.note_holders(at);
        // Whoever looks next hands the lock on.
        if let Some(token) = self.left {
            self.left_by_ended.insert(at, token);
        }
    }

    pub(super) fn last_hold_ends(&mut self, at: Place, held: Holder, reason: Reason) {
        self.remove_holder(at, held.owner);
        self.expire_with_the_last_lease(at);
        self.ties.remove(&(at, held.owner));
        self.tellings.remove(&(at, held.owner));
        match reason {
            Reason::Released => self.account.releases += 1,
            Reason::SessionEnded => self.account.releases_session += 1,
            Reason::Undelivered => self.account.grants_undelivered += 1,
        }
        self.account.timed_holds += u64::from(held.token.is_some());
    }
}
