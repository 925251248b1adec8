//! What strangers do to the keys of locks.

use rand::RngExt;
use redis::Value;
use redis_lock_testing::reply_text;

use super::Faults;
use crate::clock;
use crate::history::Effect;
use crate::locks::{database_and_key, in_database};

impl Faults {
    /// Runs these commands on one lock, or on none in particular, with a pause between them.
    pub(super) fn run_commands(
        &mut self,
        what: &'static str,
        effects: &[Effect],
        lines: &[&str],
    ) -> Result<bool, String> {
        let lock = lines.concat().contains("{k}").then(|| self.any_lock());
        let key = lock.as_deref().map_or("", |lock| database_and_key(lock).1);
        let ms = self.rng.random_range(1..=50).to_string();
        self.interfere_with(what, effects, lock.as_deref(), |faults| {
            for (index, line) in lines.iter().enumerate() {
                if index > 0 {
                    faults.sleep(0, 50);
                }
                let words = line.split(' ').map(|word| match word {
                    "{k}" => key,
                    "{ms}" => &ms,
                    word => word,
                });
                faults.call(&words.collect::<Vec<_>>())?;
            }
            Some(true)
        })
    }

    /// Does something to one lock, or to all, and notes its effects.
    fn interfere_with(
        &mut self,
        what: &'static str,
        effects: &[Effect],
        lock: Option<&str>,
        action: impl FnOnce(&mut Self) -> Option<bool>,
    ) -> Result<bool, String> {
        let database = lock.map_or(0, |lock| database_and_key(lock).0);
        let select = ["SELECT", &database.to_string()];
        let from = clock::now();
        let done = self.call(&select).and_then(|_| action(self));
        self.shared.journal.interfered(what, effects, lock, from);
        done.ok_or_else(|| format!("the server did not answer to {what}"))
    }

    /// A lock, in either database.
    fn any_lock(&mut self) -> String {
        let key = self.shared.locks.any_at_all(&mut self.rng);
        let database = i64::from(self.rng.random_bool(0.25));
        in_database(database, &key)
    }

    /// Removes one owner from a lock.
    pub(super) fn hdel(&mut self) -> Result<bool, String> {
        let lock = self.any_lock();
        let (_, key) = database_and_key(&lock);
        self.interfere_with("hdel", &[Effect::EndsHolds], Some(&lock), |faults| {
            let Value::Array(fields) = faults.call(&["HKEYS", key])? else {
                return Some(false);
            };
            let owner = fields
                .into_iter()
                .filter_map(reply_text)
                .find(|field| !field.starts_with('@'));
            match owner {
                Some(owner) => {
                    let removed = faults.call(&["HDEL", key, &owner])?;
                    Some(removed == Value::Int(1))
                }
                None => Some(false),
            }
        })
    }

    /// A lock as it was a moment ago.
    pub(super) fn restore(&mut self) -> Result<bool, String> {
        let lock = self.any_lock();
        let (_, key) = database_and_key(&lock);
        let effects = [Effect::EndsHolds, Effect::BringsBack];
        self.interfere_with("restore", &effects, Some(&lock), |faults| {
            let Value::BulkString(dump) = faults.call(&["DUMP", key])? else {
                return Some(false);
            };
            faults.sleep(0, 50);
            let [restore, key, ttl, replace] = ["RESTORE", key, "100", "REPLACE"];
            let words = [
                restore.as_bytes(),
                key.as_bytes(),
                ttl.as_bytes(),
                &dump,
                replace.as_bytes(),
            ];
            Some(faults.call(&words)? == Value::Okay)
        })
    }

    /// The lock of the other database comes over this one.
    pub(super) fn copy(&mut self) -> Result<bool, String> {
        let lock = self.any_lock();
        let (database, key) = database_and_key(&lock);
        let effects = [Effect::EndsHolds, Effect::BringsBack];
        self.interfere_with("copy", &effects, Some(&lock), |faults| {
            let [from, to] = [1 - database, database].map(|database| database.to_string());
            faults.call(&["SELECT", &from])?;
            let copied = faults.call(&["COPY", key, key, "DB", &to, "REPLACE"])?;
            Some(copied == Value::Int(1))
        })
    }

    /// A lock goes to the other database, if it is free there.
    pub(super) fn move_away(&mut self) -> Result<bool, String> {
        let lock = self.any_lock();
        let (database, key) = database_and_key(&lock);
        let there = in_database(1 - database, key);
        let from = clock::now();
        let moved = self.interfere_with("move", &[Effect::EndsHolds], Some(&lock), |faults| {
            let to = (1 - database).to_string();
            Some(faults.call(&["MOVE", key, &to])? == Value::Int(1))
        });
        let journal = &self.shared.journal;
        journal.interfered("move", &[Effect::BringsBack], Some(&there), from);
        moved
    }

    /// No lock can be taken, and all can be given back.
    pub(super) fn out_of_memory(&mut self) -> Result<bool, String> {
        self.call(&["CONFIG", "SET", "maxmemory", "1"]);
        self.sleep(0, 300);
        Ok(self.call(&["CONFIG", "SET", "maxmemory", "0"]) == Some(Value::Okay))
    }

    /// A lock is deleted, and somebody who may wait for it dies in the same turn.
    pub(super) fn kill_in_multi(&mut self) -> Result<bool, String> {
        let lock = self.any_lock();
        let (_, key) = database_and_key(&lock);
        let Some(id) = self.any_connection(&[" cmd=lock."]) else {
            return Ok(false);
        };
        let effects = [Effect::EndsHolds];
        self.interfere_with("kill in multi", &effects, Some(&lock), |faults| {
            faults.call(&["MULTI"])?;
            faults.call(&["DEL", key])?;
            faults.call(&["CLIENT", "KILL", "ID", &id])?;
            Some(matches!(faults.call(&["EXEC"])?, Value::Array(_)))
        })
    }
}
