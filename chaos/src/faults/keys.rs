//! What strangers do to the keys of locks.

use anyhow::{Result, bail};
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
    ) -> Result<bool> {
        let text = lines.concat();
        let lock = text.contains("{k}").then(|| self.any_lock());
        let (database, key) = lock.as_deref().map_or((0, ""), database_and_key);
        let [db, other] = [database, 1 - database].map(|number| number.to_string().into_bytes());
        let ms = self.rng.random_range(1..=50).to_string().into_bytes();
        let from = clock::now();
        self.call(&["SELECT".as_bytes(), &db]);
        let mut meant = vec![
            ("{k}", key.into()),
            ("{ms}", ms),
            ("{db}", db),
            ("{other}", other),
        ];
        for name in ["{client}", "{blocked}", "{subscriber}", "{owner}", "{dump}"] {
            if text.contains(name) {
                let Some(value) = self.look_up(name, key) else {
                    return Ok(false);
                };
                meant.push((name, value));
            }
        }
        let mut replies = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                self.sleep(0, 50);
            }
            let words = line.split(' ').map(|word| {
                let known = meant.iter().find(|(name, _)| *name == word);
                known.map_or(word.as_bytes(), |(_, value)| value)
            });
            replies.extend(self.call(&words.collect::<Vec<_>>()));
        }
        let (journal, span) = (&self.shared.journal, (from, clock::now()));
        journal.interfered(what, effects, lock.as_deref(), span);
        if text.contains("{other}") {
            let there = in_database(1 - database, key);
            journal.interfered(what, &[Effect::BringsBack], Some(&there), span);
        }
        match replies.len() == lines.len() {
            true => Ok(true),
            false => bail!("the server did not answer"),
        }
    }

    /// What a name in a command stands for now, if there is such a thing.
    fn look_up(&mut self, name: &str, key: &str) -> Option<Vec<u8>> {
        match name {
            "{client}" => self.any_connection(&[" cmd=lock."]),
            "{blocked}" => self.any_connection(&[" cmd=lock.", " flags=b"]),
            "{subscriber}" => self.any_connection(&[" sub=1 "]),
            "{owner}" => {
                let fields = self.call(&["HKEYS", key])?.into_sequence().ok()?;
                let mut fields = fields.into_iter().filter_map(reply_text);
                Some(fields.find(|field| !field.starts_with('@'))?.into_bytes())
            }
            _ => match self.call(&["DUMP", key])? {
                Value::BulkString(dump) => Some(dump),
                _ => None,
            },
        }
    }

    /// A lock, in either database.
    fn any_lock(&mut self) -> String {
        let key = self.shared.locks.any_at_all(&mut self.rng);
        let database = i64::from(self.rng.random_bool(0.25));
        in_database(database, &key)
    }
}
