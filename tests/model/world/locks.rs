//! The lock's own commands.

use std::time::Instant;

use super::{Expect, Grant, HOLD_COUNT, Place, Reason, Sender, Token, Waiter, World};
use crate::commands::{Block, DEFAULT_LEASE, Extent, Lease, Request};
use crate::stored::{GREATEST_TOKEN, Holder, is_short};

/// No clock of the run shows so many microseconds since 1970.
const NO_CLOCK: i64 = 1 << 52;

impl World {
    /// There is room for the one who asks, or it holds the lock.
    fn grant(&mut self, at: Place, request: Request, client: usize) -> Result<Expect, Expect> {
        let lock = self.lock(at)?;
        let held = lock.holder(request.owner).copied();
        if held.is_some_and(|held| request.mode.limit() < held.limit) {
            return Err(Expect::Error("UPGRADE"));
        }
        let held_count = held.map_or(0, |held| held.count);
        let count = request.hold.unwrap_or(held_count + 1);
        if count != held_count && count != held_count + 1 {
            return Err(HOLD_COUNT);
        }
        let stored = self.stored(at).and_then(|stored| stored.newest_token());
        let after = stored.or(self.left);
        let known = after.and_then(|token| self.value(token));
        if held.is_none() && known == Some(GREATEST_TOKEN) {
            return Err(Expect::Error("ERR"));
        }
        if lock.leftovers {
            self.remove(at);
        }
        let old_token = held.and_then(|held| held.token);
        let token = old_token.unwrap_or_else(|| {
            self.grants.push(Grant {
                place: at,
                after,
                value: known
                    .filter(|&known| known > NO_CLOCK)
                    .map(|known| known + 1),
                lost: false,
            });
            Token::OfGrant(self.grants.len() - 1)
        });
        let asked = request.lease.unwrap_or(DEFAULT_LEASE);
        // Somebody else may have let the key end before the lease.
        let key_lease = self.stored(at).and_then(|stored| stored.lease);
        let key_ends_before = key_lease.is_some_and(|lease| lease < asked);
        // Re-entry never shortens a lease. A persisted lock stays so.
        let extends = held.is_none_or(|held| held.lease.is_some_and(|old| old < asked));
        let holder = Holder {
            owner: request.owner,
            count,
            token: Some(token),
            lease: match held {
                Some(held) if !extends => held.lease,
                _ => Some(asked),
            },
            limit: held.map_or(request.mode.limit(), |held| held.limit),
            over: false,
        };
        let stored = self.databases[at.db].entry(at.key).or_default();
        stored.write(holder, old_token.is_none().then_some(token));
        if extends || key_ends_before {
            self.expire_with_the_last_lease(at);
        }
        if request.session {
            self.ties.insert((at, request.owner), (client, token));
        }
        Ok(Expect::Token(token))
    }

    /// Everybody in the queue who may have the lock gets it: from the front as
    /// many as there is room for, and whoever asks as one of its holders.
    pub(super) fn serve(&mut self, at: Place) {
        self.serve_all(at);
        self.note_holders(at);
    }

    fn serve_all(&mut self, at: Place) {
        while let Ok(lock) = self.lock(at) {
            let Some(queue) = self.queues.get_mut(&at) else {
                return;
            };
            let holds = |waiter: &Waiter| lock.holder(waiter.request.owner).is_some();
            let next = match queue.iter().position(holds) {
                Some(next) => next,
                None => match queue.front() {
                    Some(first) if lock.admits(first.request.mode.limit()) => 0,
                    _ => return,
                },
            };
            let Some(waiter) = queue.remove(next) else {
                return;
            };
            let before = lock.holder(waiter.request.owner).copied();
            let before = before.map_or(0, |held| held.count);
            let granted = self.grant(at, waiter.request, waiter.client);
            if let Ok(Expect::Token(token)) = granted {
                self.account.grants_after_wait += 1;
                self.account.hand_offs += u64::from(before == 0);
                self.note_grant(at, waiter.request, Some(waiter.client), before, token);
            } else {
                self.account.waits_refused += 1;
            }
            let answer = granted.unwrap_or_else(|error| error);
            self.answers.push((waiter.client, answer));
        }
    }

    pub(super) fn acquire(
        &mut self,
        at: Place,
        request: Request,
        block: Option<Block>,
        sender: Sender,
    ) -> Result<Expect, Expect> {
        let (client, wait) = match sender {
            Sender::Client(client) => (client, block),
            Sender::Transaction(client) => (client, None),
            Sender::Script if request.session => return Err(Expect::Error("ERR")),
            Sender::Script => (usize::MAX, None),
        };
        self.look(at)?;
        self.serve(at);
        let lock = self.lock(at)?;
        if let Some(held) = lock.holder(request.owner) {
            let reply = self.grant(at, request, client)?;
            self.account.reentries += 1;
            if let Expect::Token(token) = reply {
                self.note_grant(at, request, None, held.count, token);
            }
            return Ok(reply);
        }
        if request.hold.is_some_and(|n| n != 1) {
            return Err(HOLD_COUNT);
        }
        // No newcomer passes the queue.
        if !self.is_contended(at) && lock.admits(request.mode.limit()) {
            let token = self.grant(at, request, client)?;
            self.account.grants_immediate += 1;
            return Ok(token);
        }
        let Some(block) = wait else {
            return Ok(Expect::Nil);
        };
        if self.refuses_deadlocks && self.closes_a_cycle(at, request) {
            self.account.deadlocks_refused += 1;
            return Err(Expect::Error("DEADLOCK"));
        }
        let queue = self.queues.entry(at).or_default();
        if queue.len() >= self.max_waiters {
            self.account.queues_full += 1;
            return Err(Expect::Error("QUEUEFULL"));
        }
        queue.push_back(Waiter {
            client,
            request,
            block,
            since: Instant::now(),
        });
        self.note_holders(at);
        Ok(Expect::Waits)
    }

    /// Whether the owner, if it queued here, would wait for itself through others.
    fn closes_a_cycle(&self, at: Place, request: Request) -> bool {
        let owner = request.owner;
        let mut queue = self.queues.get(&at).into_iter().flatten();
        if queue.any(|waiter| waiter.request.owner == owner) {
            return false;
        }
        let mut reached = self.blockers(at, request);
        let mut followed = 0;
        while let Some(&blocker) = reached.get(followed) {
            if blocker == owner {
                return true;
            }
            followed += 1;
            for (&elsewhere, queue) in &self.queues {
                let its = |waiter: &&Waiter| waiter.request.owner == blocker;
                let Some(waiter) = queue.iter().find(its) else {
                    continue;
                };
                for next in self.blockers(elsewhere, waiter.request) {
                    if !reached.contains(&next) {
                        reached.push(next);
                    }
                }
            }
        }
        false
    }

    /// Who must be gone before this request can be granted here: all who hold the
    /// lock, and those in front that are not let in together with it. Nobody, if it
    /// may be let in beside some of the present holders.
    fn blockers(&self, at: Place, request: Request) -> Vec<&'static str> {
        let holders = self.lock(at).unwrap_or_default().holders;
        let queue = self.queues.get(&at).into_iter().flatten();
        let in_front: Vec<Request> = queue
            .map(|waiter| waiter.request)
            .take_while(|waiting| waiting.owner != request.owner)
            .collect();
        let every_holder_must_go = holders.iter().all(|holder| holder.limit == 1)
            || in_front
                .iter()
                .chain([&request])
                .any(|waiting| waiting.mode.limit() == 1);
        if !every_holder_must_go {
            return Vec::new();
        }
        // Those in front are let in together with this one, unless somebody from
        // them on wants the lock alone.
        let in_its_way = (0..in_front.len()).filter(|&nth| {
            let from_it_on = in_front[nth..].iter().chain([&request]);
            let mut limits = from_it_on.map(|waiting| waiting.mode.limit());
            limits.any(|limit| limit == 1)
        });
        let in_its_way = in_its_way.map(|nth| in_front[nth].owner);
        let holders = holders.iter().map(|holder| holder.owner);
        holders.chain(in_its_way).collect()
    }

    pub(super) fn release(
        &mut self,
        at: Place,
        owner: &'static str,
        fence: Option<i64>,
        extent: Extent,
    ) -> Result<Expect, Expect> {
        self.look(at)?;
        let Some(held) = self.lock(at)?.holder(owner).copied() else {
            return match extent {
                // It may be sent again, after its first reply was lost.
                Extent::Hold(1) => Ok(Expect::Int(1)),
                Extent::Hold(_) => Err(HOLD_COUNT),
                Extent::One | Extent::All => Ok(Expect::Nil),
            };
        };
        if !self.names(fence, held) {
            self.account.tokens_refused += 1;
            return Ok(Expect::Nil);
        }
        let count = match extent {
            Extent::One => held.count - 1,
            Extent::All => 0,
            Extent::Hold(n) if n == held.count || n == held.count + 1 => n - 1,
            Extent::Hold(_) => return Err(HOLD_COUNT),
        };
        if count > 0 {
            if let Some(stored) = self.stored(at) {
                stored.write(Holder { count, ..held }, None);
            }
            return Ok(Expect::Int(0));
        }
        self.last_hold_ends(at, held, Reason::Released);
        Ok(Expect::Int(1))
    }

    pub(super) fn renew(
        &mut self,
        at: Place,
        owner: &'static str,
        lease: Lease,
        fence: Option<i64>,
    ) -> Result<Expect, Expect> {
        self.look(at)?;
        let found = self.lock(at)?.holder(owner).copied();
        let held = found.filter(|held| self.names(fence, *held));
        if held.is_none() && found.is_some() {
            self.account.tokens_refused += 1;
        }
        if let Some(held) = held {
            let lease = Some(lease);
            if let Some(stored) = self.stored(at) {
                stored.write(Holder { lease, ..held }, None);
            }
            self.expire_with_the_last_lease(at);
            self.note_renewal(at, held);
            if is_short(lease) {
                // A tie to an earlier hold is found to be one.
                self.ties.remove(&(at, owner));
            }
        }
        Ok(Expect::Int(held.is_some().into()))
    }

    /// Whether `FENCE` names the token of this hold, if it was given at all.
    fn names(&self, fence: Option<i64>, held: Holder) -> bool {
        fence.is_none() || fence == held.token.and_then(|token| self.value(token))
    }
}
