//! What the server stores, and what it does to it.

use super::form::Form;
use crate::error::LockError;
use crate::holder::Permit;
use crate::keys::KeyBuf;
use crate::lock::{Effect, Lock};
use crate::request::Owner;
use crate::stored::{PERMIT_PREFIX, Reader, TOKEN_FIELD};
use crate::token::FencingToken;

/// What is stored under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Hash(Hash),
    Text,
}

/// A hash that has only fields of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hash {
    counts: Vec<(Owner, i64)>,
    permits: Vec<(Owner, Permit)>,
    token: Option<FencingToken>,
    pub(super) expires_at_ms: Option<i64>,
}

impl Hash {
    /// As Redisson's scripts take a lock.
    pub(super) fn by_redisson(owner: Owner, expires_at_ms: i64) -> Self {
        Self {
            counts: vec![(owner, 1)],
            expires_at_ms: Some(expires_at_ms),
            ..Self::default()
        }
    }

    pub(super) fn fields(&self) -> usize {
        self.counts.len() + self.permits.len() + usize::from(self.token.is_some())
    }

    /// Reads the lock as the module does.
    pub(super) fn read(&self) -> Result<Lock, LockError> {
        let mut reader = Reader::default();
        for (owner, holds) in &self.counts {
            reader.field(owner.as_bytes(), holds.to_string().as_bytes());
        }
        for (owner, permit) in &self.permits {
            let field = [PERMIT_PREFIX, owner.as_bytes()].concat();
            reader.field(&field, permit.to_text().as_bytes());
        }
        if let Some(token) = self.token {
            reader.field(TOKEN_FIELD, token.get().to_string().as_bytes());
        }
        reader.finish(self.expires_at_ms)
    }
}

fn set<T>(fields: &mut Vec<(Owner, T)>, owner: &Owner, value: T) {
    match fields.iter_mut().find(|(one, _)| one == owner) {
        Some((_, old)) => *old = value,
        None => fields.push((owner.clone(), value)),
    }
}

/// What is stored under each key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keyspace {
    values: [Option<Value>; 2],
}

/// A write, as it is replicated.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// A step's, as one.
    Effects(usize, Vec<Effect>),
    /// `DEL key`, which is what the end of a key is replicated as too.
    Delete(usize),
    /// `SET key text`
    Overwrite(usize),
    /// Redisson's scripts take the lock.
    Redisson(usize, Owner, i64),
    /// `RENAME`, from here to the other.
    Rename(usize),
    /// `SWAPDB`
    Swap,
}

impl Keyspace {
    pub(super) fn value(&self, key: usize) -> Option<&Value> {
        self.values[key].as_ref()
    }

    pub(super) fn read(&self, key: usize) -> Result<Lock, LockError> {
        match self.value(key) {
            None => Ok(Lock::default()),
            Some(Value::Text) => Err(LockError::WrongType),
            Some(Value::Hash(hash)) => hash.read(),
        }
    }

    pub(super) fn expires_at_ms(&self, key: usize) -> Option<i64> {
        match self.value(key)? {
            Value::Hash(hash) => hash.expires_at_ms,
            Value::Text => None,
        }
    }

    /// Whether the server takes the key for expired.
    pub(super) fn is_expired(&self, key: usize, now_ms: i64) -> bool {
        self.expires_at_ms(key).is_some_and(|at_ms| at_ms < now_ms)
    }

    pub(super) fn write(&mut self, write: &Write) {
        match write {
            Write::Effects(key, effects) => {
                for effect in effects {
                    apply(&mut self.values[*key], effect);
                }
            }
            Write::Delete(key) => self.values[*key] = None,
            Write::Overwrite(key) => self.values[*key] = Some(Value::Text),
            Write::Redisson(key, owner, at_ms) => {
                self.values[*key] = Some(Value::Hash(Hash::by_redisson(owner.clone(), *at_ms)));
            }
            Write::Rename(from) => self.values[1 - from] = self.values[*from].take(),
            Write::Swap => self.values.reverse(),
        }
    }

    pub(super) fn take_down(&self, keys: &[KeyBuf], form: &mut Form<'_>) {
        for key in form.keys() {
            let at = keys.iter().position(|one| one == key);
            let value = at.and_then(|at| self.value(at));
            match value {
                None => form.number(0),
                Some(Value::Text) => form.number(1),
                Some(Value::Hash(hash)) => {
                    form.number(2);
                    form.token(hash.token);
                    form.time(hash.expires_at_ms);
                    for owner in form.owners() {
                        let count = hash.counts.iter().find(|(one, _)| one == owner);
                        form.number(count.map_or(0, |(_, count)| *count));
                        let permit = hash.permits.iter().find(|(one, _)| one == owner);
                        form.flag(permit.is_some());
                        if let Some((_, permit)) = permit {
                            form.number(permit.limit.count_or_zero());
                            form.token(Some(permit.token));
                            form.time(Some(permit.lease_end_ms));
                        }
                    }
                }
            }
        }
    }
}

fn apply(value: &mut Option<Value>, effect: &Effect) {
    match effect {
        Effect::Delete => *value = None,
        Effect::Replace {
            owner,
            token,
            end_ms,
        } => {
            *value = Some(Value::Hash(Hash {
                token: Some(*token),
                ..Hash::by_redisson(owner.clone(), *end_ms)
            }));
        }
        Effect::SetHolder {
            owner,
            holds,
            permit,
            new_token,
        } => {
            let Value::Hash(hash) = value.get_or_insert_with(|| Value::Hash(Hash::default()))
            else {
                panic!("WRONGTYPE: a hash field is set in a string");
            };
            set(&mut hash.counts, owner, *holds);
            if let Some(permit) = permit {
                set(&mut hash.permits, owner, *permit);
            }
            hash.token = new_token.or(hash.token);
        }
        Effect::RemoveHolder { owner } => {
            let Some(Value::Hash(hash)) = value else {
                return;
            };
            hash.counts.retain(|(one, _)| one != owner);
            hash.permits.retain(|(one, _)| one != owner);
            if hash.fields() == 0 {
                *value = None;
            }
        }
        Effect::ExpireAt { at_ms } => {
            if let Some(Value::Hash(hash)) = value {
                hash.expires_at_ms = Some(*at_ms);
            }
        }
    }
}
