//! What happens to keys and servers beside the commands of clients.

use std::rc::Rc;

use super::keyspace::Write;
use super::scope::Event;
use super::search::World as _;
use super::world::{Changed, Doing, World, new_table};
use crate::explore::cast::key_name;

impl World {
    pub(super) fn write(&mut self, write: Write) {
        if self.scope().has(Event::FailOver) {
            for write in std::mem::take(&mut self.last_write) {
                self.copy.write(&write);
            }
            self.last_write.push(write.clone());
        }
        self.data.write(&write);
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
        self.say(|_| {
            let (from, to) = (key_name(from), key_name(to));
            format!("RENAME {from} {to}")
        });
        self.write(Write::Rename(from));
        let cast = Rc::clone(&self.cast);
        if self.table.follows_keys() {
            self.table.key_touched(cast.key(from), self.now_ms);
            self.table.key_touched(cast.key(to), self.now_ms);
        }
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
    fn know_anew(&mut self) {
        for key in 0..self.cast.keys.len() {
            let lock = self.data.read(key).unwrap_or_default();
            for (owner, known) in self.cast.owners.iter().zip(&mut self.known[key]) {
                let holder = lock.holder(owner);
                known.told = holder.and_then(|holder| holder.token);
                known.promise = None;
                known.over = None;
                known.unclaimed = None;
                known.holds = 0;
            }
        }
    }

    pub(super) fn fail_over(&mut self, lacks: bool) {
        self.say(|_| match lacks {
            true => "a replica takes over that lacks the last write".to_owned(),
            false => "a replica takes over".to_owned(),
        });
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
        self.places = Default::default();
        self.changed = Default::default();
        self.retry_at_ms = None;
        for connection in &mut self.connections {
            connection.generation += 1;
            connection.doing = Doing::Nothing;
        }
        for key in 0..self.cast.keys.len() {
            let lock = self.data.read(key).unwrap_or_default();
            for owner in 0..self.cast.owners.len() {
                let holder = lock.holder(&self.cast.owners[owner]);
                let known = &mut self.known[key][owner];
                known.tied = None;
                known.over = None;
                known.unclaimed = None;
                known.holds = 0;
                known.told = holder.and_then(|holder| holder.token);
                if lacks {
                    known.promise = None;
                }
            }
        }
    }
}
