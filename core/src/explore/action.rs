//! What can happen, and that it does.

use super::cast::Cast;
use super::keyspace::{Value, Write};
use super::scope::{LEASE_MS, Scope};
use super::world::{Checked, Connection, Doing, World};
use super::{invariants, search};
use crate::table::Leave;

/// Something that a client, the server or time may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `LOCK.ACQUIRE`, by a connection, one of the scope's.
    Acquire(u8, u8, u8),
    /// `LOCK.RELEASE`, by a connection, one of the scope's.
    Release(u8, u8, u8),
    /// `LOCK.RENEW`, by a connection, one of the scope's.
    Renew(u8, u8, u8),
    /// `LOCK.BREAK`
    Break(u8),
    /// `DEL`
    Delete(u8),
    /// `SET`, of which the module is not told.
    Overwrite(u8),
    /// The server finds a key that has expired.
    Expire(u8),
    /// `RENAME` of this key to the other.
    Rename(u8),
    /// `SWAPDB`; the two keys are one in two databases.
    Swap,
    /// Redisson's scripts take the lock for the owner of this connection.
    Redisson(u8, u8),
    /// Time passes, until something can happen that could not before.
    Pass,
    /// The timer wakes the module.
    Wake,
    /// The same, while the server refuses every write.
    WakeRefused,
    /// A waiter's time is up, or `CLIENT UNBLOCK` has it be.
    TimeUp(u8),
    /// `CLIENT UNBLOCK ... ERROR`
    SendAway(u8),
    /// A connection ends.
    Disconnect(u8),
    /// A client hears of its grant.
    Hear(u8),
    /// A client was sent away before it heard of its grant.
    Miss(u8),
    /// Nothing may be granted from now on, or again.
    MayGrant,
    /// Replicas acknowledge all that was written.
    Acknowledge,
    /// Who listens to the messages to this owner's places goes away, or comes back.
    Listen(u8),
    /// A replica takes over. It may lack the last write.
    FailOver(bool),
}

impl search::World for World {
    type Scope = Scope;
    type Action = Action;

    fn new(scope: Scope) -> Self {
        Self::new(&Cast::new(scope))
    }

    fn actions(&self, actions: &mut Vec<Action>) {
        self.actions(actions);
    }

    fn act(&mut self, action: Action) -> Checked<()> {
        self.act(action)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint()
    }

    fn listen(&mut self) {
        self.said = Some(String::new());
    }

    fn said(&mut self) -> String {
        self.said.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl World {
    /// All that can happen now.
    pub(super) fn actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        let scope = self.scope();
        let keys = 0..self.cast.keys.len() as u8;
        let options = |count: usize| 0..count as u8;
        for at in options(self.connections.len()) {
            match self.connections[usize::from(at)].doing {
                Doing::Nothing => {
                    for key in keys.clone() {
                        for ask in options(scope.asks.len()) {
                            actions.push(Action::Acquire(at, key, ask));
                        }
                        for what in options(scope.releases.len()) {
                            actions.push(Action::Release(at, key, what));
                        }
                        for what in options(scope.renewals.len()) {
                            actions.push(Action::Renew(at, key, what));
                        }
                    }
                }
                Doing::Waits { .. } | Doing::Withheld { .. } => {
                    if scope.leaves {
                        actions.push(Action::TimeUp(at));
                    }
                    if scope.sends_away {
                        actions.push(Action::SendAway(at));
                    }
                }
                Doing::ToHear { .. } => {
                    actions.push(Action::Hear(at));
                    if scope.sends_away {
                        actions.push(Action::Miss(at));
                    }
                }
            }
            if scope.disconnects {
                actions.push(Action::Disconnect(at));
            }
        }
        for key in keys.clone() {
            let at = usize::from(key);
            if scope.breaks {
                actions.push(Action::Break(key));
            }
            let is_there = self.data.value(at).is_some();
            if is_there && self.data.is_expired(at, self.now_ms) {
                actions.push(Action::Expire(key));
            }
            if scope.deletes && is_there {
                actions.push(Action::Delete(key));
            }
            if scope.overwrites && self.data.value(at) != Some(&Value::Text) {
                actions.push(Action::Overwrite(key));
            }
            if scope.renames && is_there {
                actions.push(Action::Rename(key));
            }
            if scope.redisson && !is_there {
                for owner in options(self.cast.owners.len()) {
                    actions.push(Action::Redisson(owner, key));
                }
            }
        }
        if scope.goes_deaf {
            let owners = options(self.cast.owners.len());
            actions.extend(owners.map(Action::Listen));
        }
        if scope.pauses_grants {
            actions.push(Action::MayGrant);
        }
        if self.table.awaits_replicas() {
            actions.push(Action::Acknowledge);
        }
        if scope.swaps {
            actions.push(Action::Swap);
        }
        if self.is_wake_due() {
            actions.push(Action::Wake);
            if scope.refuses_writes {
                actions.push(Action::WakeRefused);
            }
        }
        // A turn of the server's event loop, in which grants are told, takes no time.
        let to_hear = |one: &Connection| matches!(one.doing, Doing::ToHear { .. });
        let is_turn_over = !self.is_wake_due() && !self.connections.iter().any(to_hear);
        if (scope.is_late || is_turn_over) && self.next_time().is_some() {
            actions.push(Action::Pass);
        }
        if scope.fails_over {
            actions.push(Action::FailOver(false));
            if !self.last_write.is_empty() {
                actions.push(Action::FailOver(true));
            }
        }
    }

    /// Does it.
    pub(super) fn act(&mut self, action: Action) -> Checked<()> {
        self.steps += 1;
        match action {
            Action::Acquire(at, key, ask) => {
                let ask = self.scope().asks[usize::from(ask)];
                self.acquire(at.into(), key.into(), ask)?;
            }
            Action::Release(at, key, what) => {
                let what = self.scope().releases[usize::from(what)];
                self.release(at.into(), key.into(), what)?;
            }
            Action::Renew(at, key, what) => {
                let what = self.scope().renewals[usize::from(what)];
                self.renew(at.into(), key.into(), what)?;
            }
            Action::Break(key) => self.break_lock(key.into())?,
            Action::Delete(key) => {
                let key = usize::from(key);
                self.say(|w| format!("DEL {}", w.cast.key_name(key)));
                self.write(Write::Delete(key));
                self.change(key, true);
            }
            Action::Overwrite(key) => {
                let key = usize::from(key);
                self.say(|w| format!("SET {} text, untold", w.cast.key_name(key)));
                self.write(Write::Overwrite(key));
                self.change(key, false);
            }
            Action::Expire(key) => self.notice_expiry(key.into()),
            Action::Rename(from) => self.rename(from.into()),
            Action::Swap => self.swap(),
            Action::Redisson(owner, key) => {
                let (owner, key) = (usize::from(owner), usize::from(key));
                self.say(|w| {
                    let (owner, key) = (w.cast.owner_name(owner), w.cast.key_name(key));
                    format!("Redisson takes {key} for {owner}")
                });
                let name = self.cast.owners[owner].clone();
                self.write(Write::Redisson(key, name, self.now_ms + LEASE_MS));
                self.change(key, true);
            }
            Action::Pass => {
                let next_ms = self.next_time().expect("a time to come");
                self.say(|w| format!("{} ms pass", next_ms - w.now_ms));
                self.now_ms = next_ms;
            }
            Action::Wake => self.wake()?,
            Action::WakeRefused => self.wake_refused()?,
            Action::TimeUp(at) => self.leave(at.into(), Leave::TimeUp),
            Action::SendAway(at) => self.leave(at.into(), Leave::Gone),
            Action::Disconnect(at) => {
                self.say(|w| format!("{} disconnects", w.cast.client_name(at.into())));
                self.disconnect(at.into());
            }
            Action::Hear(at) => self.hear(at.into()),
            Action::Miss(at) => self.miss(at.into()),
            Action::MayGrant => {
                let may_grant = &mut self.table.settings.may_grant;
                *may_grant = !*may_grant;
                if *may_grant {
                    self.table.everything_touched();
                }
                self.say(|w| format!("grants are possible: {}", w.table.settings.may_grant));
            }
            Action::Acknowledge => self.acknowledge()?,
            Action::Listen(owner) => {
                let owner = usize::from(owner);
                let is_deaf = &mut self.deaf[owner];
                *is_deaf = !*is_deaf;
                let listens = if *is_deaf {
                    "nobody listens"
                } else {
                    "somebody listens"
                };
                self.say(|w| format!("{listens} for {}", w.cast.owner_name(owner)));
            }
            Action::FailOver(lacks) => self.fail_over(lacks),
        }
        self.forget_what_has_gone();
        invariants::check(self)
    }
}
