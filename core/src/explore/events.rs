//! What happens to keys and servers beside the commands of clients.

use std::rc::Rc;

use super::keyspace::Write;
use super::scope::{Event, LEASE_MS};
use super::search::{Checked, World as _};
use super::world::{Changed, Doing, Known, World, new_table};
use crate::explore::cast::{key_name, owner_name};
use crate::table::WaitEnd;

impl World {
    /// How many of them an event can happen to.
    pub(super) fn how_many(&self, event: Event) -> usize {
        let (owners, keys) = (self.cast.owners.len(), self.cast.keys.len());
        match event {
            Event::Leave | Event::SendAway | Event::Disconnect => self.connections.len(),
            Event::Break | Event::Delete | Event::Overwrite | Event::Rename => keys,
            Event::Redisson => owners * keys,
            Event::GoDeaf => owners,
            Event::FailOver => 2,
            Event::Swap | Event::Pause | Event::Refuse => 1,
        }
    }

    /// Whether it can happen now to the one with this number.
    pub(super) fn is_possible(&self, event: Event, at: usize) -> bool {
        let is_there = |key: usize| self.data.value(key).is_there();
        match event {
            Event::Leave => self.connections[at].doing.waiter().is_some(),
            Event::SendAway => self.connections[at].doing != Doing::Nothing,
            Event::Delete | Event::Rename => is_there(at),
            Event::Overwrite => !self.data.value(at).is_other,
            Event::Redisson => !is_there(at % self.cast.keys.len()),
            Event::Refuse => self.is_wake_due(),
            Event::FailOver => at == 0 || !self.last_write.is_empty(),
            _ => true,
        }
    }

    pub(super) fn happens(&mut self, event: Event, at: usize) -> Checked {
        match event {
            Event::Break => self.break_lock(at)?,
            Event::Delete => {
                self.say(|_| format!("DEL {}", key_name(at)));
                self.write(Write::Delete(at));
                self.change(at, true);
            }
            Event::Overwrite => {
                self.say(|_| format!("SET {} text, untold", key_name(at)));
                self.write(Write::Overwrite(at));
                self.change(at, false);
            }
            Event::Rename => self.rename(at),
            Event::Swap => self.swap(),
            Event::Redisson => {
                let (owner, key) = (at / self.cast.keys.len(), at % self.cast.keys.len());
                let names = (key_name(key), owner_name(owner));
                self.say(|_| format!("Redisson takes {} for {}", names.0, names.1));
                let name = self.cast.owners[owner].clone();
                self.write(Write::Redisson(key, name, self.now_ms + LEASE_MS));
                self.change(key, true);
            }
            Event::Leave => self.leave(at, WaitEnd::TimeUp),
            Event::SendAway => match self.connections[at].doing {
                Doing::ToHear(_) => self.miss(at),
                _ => self.leave(at, WaitEnd::Gone),
            },
            Event::Disconnect => {
                self.say(|w| format!("{} disconnects", w.cast.client_name(at)));
                self.disconnect(at);
            }
            Event::GoDeaf => {
                self.deaf[at] = !self.deaf[at];
                self.say(|w| format!("{} is deaf: {}", owner_name(at), w.deaf[at]));
            }
            Event::FailOver => self.fail_over(at == 1),
            Event::Pause => {
                let may_grant = &mut self.table.settings.may_grant;
                *may_grant = !*may_grant;
                if *may_grant {
                    self.table.everything_touched();
                }
                self.say(|w| format!("grants are possible: {}", w.table.settings.may_grant));
            }
            Event::Refuse => self.wake_refused()?,
        }
        Ok(())
    }

    pub(super) fn write(&mut self, write: Write) {
        if self.scope().has(Event::FailOver) {
            for write in std::mem::take(&mut self.last_write) {
                self.copy.write(&write);
            }
            self.last_write.push(write.clone());
        }
        self.data.write(&write);
        if self.scope().is_a_node {
            self.written.push(write);
        }
    }

    /// Somebody wrote to this key, and ended what was there.
    pub(super) fn change(&mut self, key: usize, told: bool) {
        for known in &mut self.known[key] {
            known.promise = None;
        }
        if !told {
            self.changed[key] = Changed::Untold;
            return;
        }
        self.changed[key] = self.changed[key].max(Changed::Told);
        self.touch(key);
    }

    pub(super) fn touch(&mut self, key: usize) {
        if self.table.follows_keys() {
            let cast = Rc::clone(&self.cast);
            self.table.key_touched(cast.key(key), self.now_ms);
        }
    }

    /// The server deletes a key that has expired, when it is opened or found.
    pub(super) fn notice_expiry(&mut self, key: usize) {
        if self.data.is_expired(key, self.now_ms) {
            self.say(|_| format!("{} has expired", key_name(key)));
            self.write(Write::Delete(key));
            self.changed[key] = self.changed[key].max(Changed::Told);
            self.touch(key);
        }
    }

    pub(super) fn rename(&mut self, from: usize) {
        let to = 1 - from;
        self.notice_expiry(from);
        self.notice_expiry(to);
        if !self.data.value(from).is_there() {
            return;
        }
        self.say(|_| format!("RENAME {} {}", key_name(from), key_name(to)));
        self.write(Write::Rename(from));
        self.touch(from);
        self.touch(to);
        self.changed = self.changed.map(|changed| changed.max(Changed::Told));
        self.know_anew();
    }

    pub(super) fn swap(&mut self) {
        self.say(|_| "SWAPDB".to_owned());
        self.write(Write::Swap);
        if self.table.follows_keys() {
            self.table.everything_touched();
        }
        self.changed = self.changed.map(|changed| changed.max(Changed::Told));
        self.know_anew();
    }

    /// Locks have moved: they are plain holds where they are now, of which their owners
    /// know. One that comes back may be a session again.
    pub(super) fn know_anew(&mut self) {
        for key in 0..self.cast.keys.len() {
            let lock = self.data.read(key).unwrap_or_default();
            for (owner, known) in self.cast.owners.iter().zip(&mut self.known[key]) {
                let holder = lock.holder(owner);
                *known = Known {
                    told: holder.and_then(|holder| holder.token),
                    tied: known.tied,
                    ..Known::default()
                };
            }
        }
    }

    pub(super) fn fail_over(&mut self, lacks: bool) {
        self.say(|_| format!("a replica takes over, and lacks the last write: {lacks}"));
        if !lacks {
            for write in std::mem::take(&mut self.last_write) {
                self.copy.write(&write);
            }
        }
        self.last_write.clear();
        if lacks {
            self.data = self.copy.clone();
        }
        self.table = new_table(self.scope());
        self.places.clear();
        self.changed = Default::default();
        self.retry_at_ms = None;
        for connection in &mut self.connections {
            connection.generation += 1;
            connection.doing = Doing::Nothing;
        }
        let before = self.known;
        self.know_anew();
        for (known, before) in self.known.iter_mut().flatten().zip(before.iter().flatten()) {
            known.tied = None;
            known.promise = before.promise.filter(|_| !lacks);
        }
    }
}
