//! What Redis itself stores, and what its commands do with that.

use std::collections::BTreeMap;

use redis::Value;

use crate::commands::{Command, DATABASES, Lease};
use crate::replies::Expect;

/// A key of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DbKey {
    pub db: usize,
    pub key: &'static str,
}

/// What the server tells the module of a key.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Touched(DbKey),
    /// Databases were flushed, or swapped.
    AllTouched,
}

/// The fields of a small hash, in the order in which they were first set.
pub type Fields = Vec<(String, String)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Text,
    Hash(Fields),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub content: Content,
    pub expires_at_ms: Option<i64>,
}

/// What `DUMP` gave.
#[derive(Clone, Debug)]
pub struct Dump {
    pub bytes: Vec<u8>,
    pub content: Content,
}

#[derive(Default)]
pub struct Keyspace {
    pub now_ms: i64,
    databases: [BTreeMap<&'static str, Stored>; DATABASES],
    /// What happened since somebody took these.
    events: Vec<Event>,
}

/// The server's name for a value that is of another type than the command's.
const WRONG_TYPE: &str = "WRONGTYPE";

type Reply = Result<i64, &'static str>;
type Found = Result<Option<i64>, &'static str>;

impl Stored {
    fn is_over(&self, now_ms: i64) -> bool {
        self.expires_at_ms.is_some_and(|at_ms| at_ms < now_ms)
    }

    fn fields(&mut self) -> Result<&mut Fields, &'static str> {
        match &mut self.content {
            Content::Hash(fields) => Ok(fields),
            Content::Text => Err(WRONG_TYPE),
        }
    }
}

// What the module does to keys, of which the server tells nobody.
impl Keyspace {
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What is there, whether or not it was deleted when its time was over.
    pub fn peek(&self, at: DbKey) -> Option<&Stored> {
        let stored = self.databases[at.db].get(at.key)?;
        (!stored.is_over(self.now_ms)).then_some(stored)
    }

    /// As whoever uses a key finds it. One whose time is over is deleted then.
    pub fn get(&mut self, at: DbKey) -> Option<&mut Stored> {
        let database = &mut self.databases[at.db];
        if database.get(at.key)?.is_over(self.now_ms) {
            database.remove(at.key);
            self.events.push(Event::Touched(at));
            return None;
        }
        database.get_mut(at.key)
    }

    pub fn remove(&mut self, at: DbKey) -> Option<Stored> {
        self.get(at)?;
        self.databases[at.db].remove(at.key)
    }

    fn put(&mut self, at: DbKey, stored: Stored) {
        self.databases[at.db].insert(at.key, stored);
    }

    /// Returns whether the field is a new one.
    pub fn set_field(
        &mut self,
        at: DbKey,
        name: &str,
        value: String,
    ) -> Result<bool, &'static str> {
        if self.get(at).is_none() {
            self.overwrite(at, Content::Hash(Vec::new()), None);
        }
        let Some(stored) = self.get(at) else {
            return Ok(false);
        };
        let fields = stored.fields()?;
        match fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => {
                fields.push((name.into(), value));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether there was such a field. A hash goes with its last.
    pub fn remove_field(&mut self, at: DbKey, name: &str) -> Result<bool, &'static str> {
        let Some(stored) = self.get(at) else {
            return Ok(false);
        };
        let fields = stored.fields()?;
        let before = fields.len();
        fields.retain(|(known, _)| known != name);
        let (left, removed) = (fields.len(), fields.len() < before);
        if left == 0 {
            self.remove(at);
        }
        Ok(removed)
    }

    fn field(&mut self, at: DbKey, name: &str) -> Result<Option<String>, &'static str> {
        let Some(stored) = self.get(at) else {
            return Ok(None);
        };
        let fields = stored.fields()?;
        let found = fields.iter().find(|(known, _)| known == name);
        Ok(found.map(|(_, value)| value.clone()))
    }

    /// All that is stored, a key a line, as the run's script lists it.
    pub fn listing(&self) -> String {
        let mut lines = String::new();
        for (db, database) in self.databases.iter().enumerate() {
            for (key, stored) in database {
                if stored.is_over(self.now_ms) {
                    continue;
                }
                lines += &format!("{db} {key}");
                match &stored.content {
                    Content::Text => lines += " text",
                    Content::Hash(fields) => {
                        for (name, value) in fields {
                            lines += &format!(" {name}={value}");
                        }
                    }
                }
                lines += &format!(" until {}\n", stored.expires_at_ms.unwrap_or(-1));
            }
        }
        lines
    }
}

// The server's own commands.
impl Keyspace {
    /// Runs a command that is none of a lock.
    pub fn run(&mut self, db: usize, command: &Command) -> Expect {
        let at = |key| DbKey { db, key };
        let reply = match *command {
            Command::Dump(key) if self.get(at(key)).is_some() => return Expect::SomeBytes,
            Command::Dump(_) => Ok(None),
            Command::RedissonLock(key, owner, lease) => self.redisson_lock(at(key), owner, lease),
            Command::RedissonUnlock(key, owner, lease) => {
                self.redisson_unlock(at(key), owner, lease)
            }
            Command::Del(key) | Command::Unlink(key) => Ok(Some(self.delete(at(key)))),
            Command::RenameNx(from, to) => self.rename_nx(at(from), at(to)).map(Some),
            Command::Move(key, db) => Ok(Some(self.move_to(at(key), DbKey { db, key }))),
            Command::CopyReplace(from, to, db) => {
                self.copy(at(from), DbKey { db, key: to }).map(Some)
            }
            Command::Expire(key, lease) | Command::Pexpire(key, lease) => {
                Ok(Some(self.expire(at(key), lease)))
            }
            Command::Persist(key) => Ok(Some(self.persist(at(key)))),
            Command::Hdel(key, ref names) => self.hdel(at(key), names).map(Some),
            Command::Hset(key, name, value) => {
                let is_new = self.set_field(at(key), name, value.to_string());
                if is_new.is_ok() {
                    self.touched(at(key));
                }
                is_new.map(|is_new| Some(is_new.into()))
            }
            ref other => match self.run_to_ok(db, other) {
                Ok(()) => return Expect::OK,
                Err(code) => Err(code),
            },
        };
        match reply {
            Ok(None) => Expect::Reply(Value::Nil),
            Ok(Some(number)) => Expect::Reply(Value::Int(number)),
            Err(code) => Expect::Code(code),
        }
    }

    /// Those that are answered with `OK`.
    fn run_to_ok(&mut self, db: usize, command: &Command) -> Result<(), &'static str> {
        let at = |key| DbKey { db, key };
        match *command {
            Command::Set(key) => self.overwrite(at(key), Content::Text, None),
            Command::Rename(from, to) => self.rename(at(from), at(to))?,
            Command::RestoreReplace(key, lease, ref dump) => {
                self.overwrite(at(key), dump.content.clone(), lease);
                self.touched(at(key));
            }
            Command::FlushDb => self.databases[db].clear(),
            Command::FlushAll => self.databases = Default::default(),
            Command::SwapDb => self.databases.swap(0, 1),
            ref other => panic!("{other:?} is not the server's own"),
        }
        if let Command::FlushDb | Command::FlushAll | Command::SwapDb = command {
            self.events.push(Event::AllTouched);
        }
        Ok(())
    }

    pub fn overwrite(&mut self, at: DbKey, content: Content, lease: Option<Lease>) {
        self.get(at);
        let expires_at_ms = lease.map(|lease| self.now_ms + lease);
        let stored = Stored {
            content,
            expires_at_ms,
        };
        self.databases[at.db].insert(at.key, stored);
    }

    fn touched(&mut self, at: DbKey) {
        self.events.push(Event::Touched(at));
    }

    fn delete(&mut self, at: DbKey) -> i64 {
        let removed = self.remove(at).is_some();
        if removed {
            self.touched(at);
        }
        removed.into()
    }

    fn carry(&mut self, from: DbKey, to: DbKey) {
        if let Some(stored) = self.remove(from) {
            self.put(to, stored);
            self.events
                .extend([Event::Touched(from), Event::Touched(to)]);
        }
    }

    fn rename(&mut self, from: DbKey, to: DbKey) -> Result<(), &'static str> {
        self.get(from).ok_or("ERR")?;
        if from != to {
            self.get(to);
            self.carry(from, to);
        }
        Ok(())
    }

    fn rename_nx(&mut self, from: DbKey, to: DbKey) -> Reply {
        self.get(from).ok_or("ERR")?;
        Ok(self.move_to(from, to))
    }

    fn move_to(&mut self, from: DbKey, to: DbKey) -> i64 {
        if self.get(from).is_none() || self.get(to).is_some() {
            return 0;
        }
        self.carry(from, to);
        1
    }

    fn copy(&mut self, from: DbKey, to: DbKey) -> Reply {
        if from == to {
            return Err("ERR");
        }
        let Some(stored) = self.get(from).cloned() else {
            return Ok(0);
        };
        self.get(to);
        self.put(to, stored);
        self.touched(to);
        Ok(1)
    }

    fn expire(&mut self, at: DbKey, lease: Lease) -> i64 {
        let ends_ms = self.now_ms + lease;
        let Some(stored) = self.get(at) else {
            return 0;
        };
        stored.expires_at_ms = Some(ends_ms);
        if lease <= 0 {
            self.databases[at.db].remove(at.key);
        }
        self.touched(at);
        1
    }

    fn persist(&mut self, at: DbKey) -> i64 {
        let ended = self.get(at).and_then(|stored| stored.expires_at_ms.take());
        if ended.is_some() {
            self.touched(at);
        }
        ended.is_some().into()
    }

    fn hdel(&mut self, at: DbKey, names: &[&str]) -> Reply {
        let mut removed = 0;
        for name in names {
            removed += i64::from(self.remove_field(at, name)?);
        }
        if removed > 0 {
            self.touched(at);
        }
        Ok(removed)
    }

    /// `HINCRBY`
    fn add(&mut self, at: DbKey, name: &str, by: i64) -> Reply {
        let before = self.field(at, name)?;
        let before = before.map_or(Ok(0), |text| text.parse::<i64>());
        let sum = before.map_err(|_| "ERR")? + by;
        self.set_field(at, name, sum.to_string())?;
        self.touched(at);
        Ok(sum)
    }

    fn redisson_lock(&mut self, at: DbKey, owner: &str, lease: Lease) -> Found {
        if self.get(at).is_none() || self.field(at, owner)?.is_some() {
            self.add(at, owner, 1)?;
            self.expire(at, lease);
            return Ok(None);
        }
        let now_ms = self.now_ms;
        let ends_ms = self.get(at).and_then(|stored| stored.expires_at_ms);
        Ok(Some(ends_ms.map_or(-1, |ends_ms| ends_ms - now_ms)))
    }

    fn redisson_unlock(&mut self, at: DbKey, owner: &str, lease: Lease) -> Found {
        if self.field(at, owner)?.is_none() {
            return Ok(None);
        }
        if self.add(at, owner, -1)? > 0 {
            self.expire(at, lease);
            return Ok(Some(0));
        }
        self.delete(at);
        Ok(Some(1))
    }
}
