//! Other commands, as Redis has them.

use super::{Expect, Place, Token, WRONG_TYPE, World};
use crate::commands::Lease;
use crate::stored::{Content, Field, Hash};

impl World {
    pub(super) fn rename(&mut self, from: Place, to: Place) -> Expect {
        match self.carry(from, to) {
            Some(()) => Expect::Ok,
            None => Expect::Error("ERR"),
        }
    }

    pub(super) fn rename_nx(&mut self, from: Place, to: Place) -> Expect {
        if self.stored(from).is_none() {
            return Expect::Error("ERR");
        }
        self.move_to(from, to)
    }

    pub(super) fn move_to(&mut self, from: Place, to: Place) -> Expect {
        if self.stored(to).is_some() {
            return Expect::Int(0);
        }
        Expect::Int(self.carry(from, to).is_some().into())
    }

    /// A key is found elsewhere, and with it what is tied to its holds. Who
    /// waits stays.
    fn carry(&mut self, from: Place, to: Place) -> Option<()> {
        let stored = self.remove(from)?;
        self.put(to, stored);
        let tied = self.ties.keys().filter(|(at, _)| *at == from);
        let owners: Vec<&'static str> = tied.map(|(_, owner)| *owner).collect();
        for owner in owners {
            if let Some(tie) = self.ties.remove(&(from, owner)) {
                self.ties.insert((to, owner), tie);
            }
        }
        Some(())
    }

    /// Who waits, waits for the key of that name in its database.
    pub(super) fn swap_databases(&mut self) -> Expect {
        self.databases.swap(0, 1);
        let ties = std::mem::take(&mut self.ties).into_iter();
        let swapped = |at: Place| Place {
            db: 1 - at.db,
            ..at
        };
        self.ties = ties
            .map(|((at, owner), tie)| ((swapped(at), owner), tie))
            .collect();
        Expect::Ok
    }

    pub(super) fn copy(&mut self, from: Place, to: Place) -> Expect {
        if from == to {
            return Expect::Error("ERR");
        }
        let Some(stored) = self.stored(from).cloned() else {
            return Expect::Int(0);
        };
        self.put(to, stored);
        Expect::Int(1)
    }

    pub(super) fn expire(&mut self, at: Place, lease: Lease) -> Expect {
        let Some(stored) = self.stored(at) else {
            return Expect::Int(0);
        };
        stored.lease = Some(lease);
        if lease < 0 {
            self.remove(at);
        }
        Expect::Int(1)
    }

    pub(super) fn persist(&mut self, at: Place) -> Expect {
        let ended = self.stored(at).and_then(|stored| stored.lease.take());
        Expect::Int(ended.is_some().into())
    }

    pub(super) fn hdel(&mut self, at: Place, names: &[&str]) -> Expect {
        let Some(stored) = self.stored(at) else {
            return Expect::Int(0);
        };
        let Content::Hash(hash) = &mut stored.content else {
            return WRONG_TYPE;
        };
        let mut removed = 0;
        for &name in names {
            let found = if name == "@fence" {
                hash.fence.take().is_some()
            } else {
                hash.named.remove(name).is_some()
            };
            removed += i64::from(found);
        }
        if hash.len() == 0 {
            self.remove(at);
        }
        Expect::Int(removed)
    }

    /// The hash, which is made if there is none.
    fn hash(&mut self, at: Place) -> Option<&mut Hash> {
        let stored = self.databases[at.db].entry(at.key).or_default();
        match &mut stored.content {
            Content::Hash(hash) => Some(hash),
            Content::Text => None,
        }
    }

    pub(super) fn hset(&mut self, at: Place, name: &'static str, value: i64) -> Expect {
        let Some(hash) = self.hash(at) else {
            return WRONG_TYPE;
        };
        let is_new = if name == "@fence" {
            hash.fence.replace(Token::Written(value)).is_none()
        } else {
            hash.named.insert(name, Field::Number(value)).is_none()
        };
        Expect::Int(is_new.into())
    }

    fn has_field(&mut self, at: Place, name: &str) -> Result<bool, Expect> {
        match self.stored(at).map(|stored| &stored.content) {
            None => Ok(false),
            Some(Content::Hash(hash)) => Ok(hash.named.contains_key(name)),
            Some(Content::Text) => Err(WRONG_TYPE),
        }
    }

    /// `HINCRBY`
    fn add(&mut self, at: Place, name: &'static str, by: i64) -> i64 {
        let Some(hash) = self.hash(at) else {
            return 0;
        };
        let value = hash.number(name) + by;
        hash.named.insert(name, Field::Number(value));
        value
    }

    pub(super) fn redisson_lock(
        &mut self,
        at: Place,
        owner: &'static str,
        lease: Lease,
    ) -> Result<Expect, Expect> {
        if self.stored(at).is_none() || self.has_field(at, owner)? {
            self.add(at, owner, 1);
            self.expire(at, lease);
            return Ok(Expect::Nil);
        }
        Ok(Expect::SomeTtl)
    }

    pub(super) fn redisson_unlock(
        &mut self,
        at: Place,
        owner: &'static str,
        lease: Lease,
    ) -> Result<Expect, Expect> {
        if !self.has_field(at, owner)? {
            return Ok(Expect::Nil);
        }
        if self.add(at, owner, -1) > 0 {
            self.expire(at, lease);
            return Ok(Expect::Int(0));
        }
        self.remove(at);
        Ok(Expect::Int(1))
    }
}
