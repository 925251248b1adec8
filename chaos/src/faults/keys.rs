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
        let text = lines.concat();
        let lock = text.contains("{k}").then(|| self.any_lock());
        let (database, key) = lock.as_deref().map_or((0, ""), database_and_key);
        let ms = self.rng.random_range(1..=50).to_string();
        let [db, other] = [database, 1 - database].map(|database| database.to_string());
        let mut client = String::new();
        if text.contains("{client}") {
            let Some(id) = self.any_connection(&[" cmd=lock."]) else {
                return Ok(false);
            };
            client = id;
        }
        let from = clock::now();
        let done = self.interfere_with(what, effects, lock.as_deref(), |faults| {
            for (index, line) in lines.iter().enumerate() {
                if index > 0 {
                    faults.sleep(0, 50);
                }
                let words = line.split(' ').map(|word| match word {
                    "{k}" => key,
                    "{ms}" => &ms,
                    "{db}" => &db,
                    "{other}" => &other,
                    "{client}" => &client,
                    word => word,
                });
                faults.call(&words.collect::<Vec<_>>())?;
            }
            Some(true)
        });
        if text.contains("{other}") {
            let (there, journal) = (in_database(1 - database, key), &self.shared.journal);
            journal.interfered(what, &[Effect::BringsBack], Some(&there), from);
        }
        done
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

    /// No lock can be taken, and all can be given back.
    pub(super) fn out_of_memory(&mut self) -> Result<bool, String> {
        self.call(&["CONFIG", "SET", "maxmemory", "1"]);
        self.sleep(0, 300);
        Ok(self.call(&["CONFIG", "SET", "maxmemory", "0"]) == Some(Value::Okay))
    }
}
