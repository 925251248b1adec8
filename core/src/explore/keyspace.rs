//! What the server stores, and what it does to it.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::form::Form;
use crate::effect::Effect;
use crate::error::LockError;
use crate::keys::KeyBuf;
use crate::lock::Lock;
use crate::request::Owner;
use crate::stored::{PERMIT_PREFIX, Reader, TOKEN_FIELD};

/// What is stored under a key: the fields of a hash, something else, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Value {
    /// Shared by states in which they are the same.
    pub(crate) fields: Rc<BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(crate) expires_at_ms: Option<i64>,
    pub(crate) is_other: bool,
}

impl Value {
    /// A string, by `SET`.
    pub(crate) fn other() -> Self {
        Self {
            is_other: true,
            ..Self::default()
        }
    }

    /// As Redisson's scripts take a lock.
    pub(crate) fn by_redisson(owner: &Owner, end_ms: i64) -> Self {
        let mut value = Self::default();
        value.set(owner.as_bytes(), 1);
        value.expires_at_ms = Some(end_ms);
        value
    }

    pub(crate) fn is_there(&self) -> bool {
        self.is_other || !self.fields.is_empty()
    }

    pub(crate) fn has(&self, field: &[u8]) -> bool {
        self.fields.contains_key(field)
    }

    pub(crate) fn set(&mut self, field: &[u8], value: impl ToString) {
        assert!(!self.is_other, "WRONGTYPE");
        Rc::make_mut(&mut self.fields).insert(field.to_vec(), value.to_string().into_bytes());
    }

    /// As `HDEL`, which deletes a hash with its last field.
    pub(crate) fn remove(&mut self, field: &[u8]) {
        Rc::make_mut(&mut self.fields).remove(field);
        if self.fields.is_empty() {
            *self = Self::default();
        }
    }

    pub(crate) fn apply(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::SetHolder {
                    owner,
                    holds,
                    permit,
                    new_token,
                } => {
                    self.set(owner.as_bytes(), holds);
                    if let Some(permit) = permit {
                        self.set(&permit_field(owner), permit.to_text());
                    }
                    if let Some(token) = new_token {
                        self.set(TOKEN_FIELD, token.get());
                    }
                }
                Effect::RemoveHolder { owner } => {
                    assert!(self.has(owner.as_bytes()), "{owner:?} held nothing");
                    self.remove(owner.as_bytes());
                    self.remove(&permit_field(owner));
                }
                Effect::ExpireAt { at_ms } => {
                    if self.is_there() {
                        self.expires_at_ms = Some(*at_ms);
                    }
                }
                Effect::Delete => *self = Self::default(),
                Effect::Replace {
                    owner,
                    token,
                    end_ms,
                } => {
                    *self = Self::by_redisson(owner, *end_ms);
                    self.set(TOKEN_FIELD, token.get());
                }
            }
        }
    }

    /// Reads the lock as the module does.
    pub(crate) fn read(&self) -> Result<Lock, LockError> {
        if self.is_other {
            return Err(LockError::WrongType);
        }
        let mut reader = Reader::default();
        for (name, value) in &*self.fields {
            reader.field(name, value);
        }
        reader.finish(self.expires_at_ms)
    }
}

pub(crate) fn permit_field(owner: &Owner) -> Vec<u8> {
    [PERMIT_PREFIX, owner.as_bytes()].concat()
}

/// What is stored under each key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keyspace {
    values: [Value; 2],
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
    pub(super) fn value(&self, key: usize) -> &Value {
        &self.values[key]
    }

    pub(super) fn read(&self, key: usize) -> Result<Lock, LockError> {
        self.value(key).read()
    }

    pub(super) fn expires_at_ms(&self, key: usize) -> Option<i64> {
        self.value(key).expires_at_ms
    }

    /// Whether the server takes the key for expired.
    pub(super) fn is_expired(&self, key: usize, now_ms: i64) -> bool {
        self.expires_at_ms(key).is_some_and(|at_ms| at_ms < now_ms)
    }

    pub(super) fn write(&mut self, write: &Write) {
        match write {
            Write::Effects(key, effects) => self.values[*key].apply(effects),
            Write::Delete(key) => self.values[*key] = Value::default(),
            Write::Overwrite(key) => self.values[*key] = Value::other(),
            Write::Redisson(key, owner, at_ms) => {
                self.values[*key] = Value::by_redisson(owner, *at_ms);
            }
            Write::Rename(from) => self.values[1 - from] = std::mem::take(&mut self.values[*from]),
            Write::Swap => self.values.reverse(),
        }
    }

    pub(super) fn take_down(&self, keys: &[KeyBuf], form: &mut Form<'_>) {
        for key in form.keys() {
            let at = keys.iter().position(|one| one == key);
            let read = at.map(|at| self.read(at));
            let lock = read.and_then(Result::ok);
            form.flag(lock.is_some());
            if let Some(lock) = lock {
                form.lock(&lock);
            }
        }
    }
}
