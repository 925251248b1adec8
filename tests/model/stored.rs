//! What a key holds, and what lock that is, if any.

use std::collections::BTreeMap;

use crate::commands::{LONGEST_SHORT_LEASE, Lease, OWNERS, UNIT_OF_LEASES};
use crate::world::{Expect, NOT_A_LOCK, Token, WRONG_TYPE};

/// No token is greater.
pub const GREATEST_TOKEN: i64 = (1 << 53) - 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub content: Content,
    /// The key's time to live, as it was last set.
    pub lease: Option<Lease>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Text,
    Hash(Hash),
}

/// The fields of a hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    pub named: BTreeMap<&'static str, Field>,
    /// The field `@fence`.
    pub fence: Option<Token>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Number(i64),
    Permit(Permit),
}

/// What a holder has beside its count where others may hold the lock with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    limit: i64,
    token: Token,
    lease: Lease,
    over: bool,
}

/// What `DUMP` answered, and what it stands for.
#[derive(Clone, Debug)]
pub struct Dump {
    pub bytes: Vec<u8>,
    pub content: Content,
}

/// One of those who hold a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holder {
    pub owner: &'static str,
    pub count: i64,
    pub token: Option<Token>,
    pub lease: Option<Lease>,
    /// How many may hold the lock together.
    pub limit: i64,
    /// Its lease is over, and nobody has looked at the lock since.
    pub over: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Lock {
    pub holders: Vec<Holder>,
    /// There are permits of owners that somebody removed, and no holders.
    pub leftovers: bool,
}

/// A lease that the run waits for.
pub fn is_short(lease: Option<Lease>) -> bool {
    lease.is_some_and(|lease| lease <= LONGEST_SHORT_LEASE)
}

/// What remains of a long lease while the run lasts.
pub fn in_units(lease: Lease) -> Lease {
    (lease + UNIT_OF_LEASES - 1) / UNIT_OF_LEASES
}

/// As the owners of the run, in their order.
const PERMIT_FIELDS: [&str; OWNERS.len()] =
    ["@permit:ann", "@permit:bob", "@permit:cid", "@permit:dan"];

/// The field of the owner's permit. None but the owners of the run have one.
pub fn permit_field(owner: &str) -> Option<&'static str> {
    let position = OWNERS.iter().position(|known| *known == owner);
    position.map(|position| PERMIT_FIELDS[position])
}

impl Lock {
    pub fn holder(&self, owner: &str) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.owner == owner)
    }

    /// Whether one holder more is within its limit and within that of the others.
    pub fn admits(&self, limit: i64) -> bool {
        let limits = self.holders.iter().map(|holder| holder.limit);
        let holders = i64::try_from(self.holders.len()).unwrap();
        limits.fold(limit, i64::min) > holders
    }
}

impl Default for Stored {
    fn default() -> Self {
        Self {
            content: Content::Hash(Hash::default()),
            lease: None,
        }
    }
}

impl Stored {
    /// The lock that this is, or why it is none.
    pub fn lock(&self) -> Result<Lock, Expect> {
        let Content::Hash(hash) = &self.content else {
            return Err(WRONG_TYPE);
        };
        if hash.len() > 1 && hash.fence.is_none() {
            return Err(NOT_A_LOCK);
        }
        if matches!(hash.fence, Some(Token::Written(n)) if n < 1) {
            return Err(NOT_A_LOCK);
        }
        let mut lock = Lock::default();
        let mut counts = Vec::new();
        for (&name, &field) in &hash.named {
            match field {
                Field::Permit(_) => lock.leftovers = true,
                Field::Number(count) if count >= 1 && !name.starts_with('@') => {
                    counts.push((name, count));
                }
                Field::Number(_) => return Err(NOT_A_LOCK),
            }
        }
        let alone = counts.len() == 1;
        for (owner, count) in counts {
            lock.leftovers = false;
            let permit = permit_field(owner).and_then(|field| hash.named.get(field));
            lock.holders.push(match permit {
                Some(Field::Permit(permit)) => Holder {
                    owner,
                    count,
                    token: Some(permit.token),
                    lease: Some(permit.lease),
                    limit: permit.limit,
                    over: permit.over,
                },
                _ if alone && (hash.fence.is_some() || self.lease.is_some()) => Holder {
                    owner,
                    count,
                    token: hash.fence,
                    lease: self.lease,
                    limit: 1,
                    over: false,
                },
                _ => return Err(NOT_A_LOCK),
            });
        }
        Ok(lock)
    }

    /// The token of the last grant.
    pub fn newest_token(&self) -> Option<Token> {
        match &self.content {
            Content::Hash(hash) => hash.fence,
            Content::Text => None,
        }
    }

    /// Writes what the holder has now.
    pub fn write(&mut self, holder: Holder, new_token: Option<Token>) {
        let Content::Hash(hash) = &mut self.content else {
            return;
        };
        let count = Field::Number(holder.count);
        hash.named.insert(holder.owner, count);
        hash.fence = new_token.or(hash.fence);
        if holder.limit == 1 {
            self.lease = holder.lease;
        } else if let (Some(field), Some(token), Some(lease)) =
            (permit_field(holder.owner), holder.token, holder.lease)
        {
            let permit = Permit {
                limit: holder.limit,
                token,
                lease,
                over: false,
            };
            hash.named.insert(field, Field::Permit(permit));
        }
    }

    /// Lets the time of short permits pass. Says whether there were any.
    pub fn end_short_permits(&mut self) -> bool {
        let Content::Hash(hash) = &mut self.content else {
            return false;
        };
        let mut any = false;
        for field in hash.named.values_mut() {
            if let Field::Permit(permit) = field
                && is_short(Some(permit.lease))
                && !permit.over
            {
                permit.over = true;
                any = true;
            }
        }
        any
    }
}

impl Hash {
    pub fn len(&self) -> usize {
        self.named.len() + usize::from(self.fence.is_some())
    }

    pub fn number(&self, name: &str) -> i64 {
        match self.named.get(name) {
            Some(Field::Number(value)) => *value,
            _ => 0,
        }
    }

    pub fn remove_holder(&mut self, owner: &str) {
        self.named.remove(owner);
        if let Some(permit) = permit_field(owner) {
            self.named.remove(permit);
        }
    }

    /// All fields, as the run's script lists them.
    pub fn listing(&self, value: impl Fn(Token) -> Option<i64>) -> String {
        let value = |token| value(token).unwrap_or(0);
        let mut fields = BTreeMap::new();
        if let Some(token) = self.fence {
            fields.insert("@fence", value(token).to_string());
        }
        for (&name, field) in &self.named {
            let text = match field {
                Field::Number(number) => number.to_string(),
                Field::Permit(permit) => {
                    let limit = match permit.limit {
                        i64::MAX => 0,
                        limit => limit,
                    };
                    let left = match permit.over {
                        true => "over".into(),
                        false => in_units(permit.lease).to_string(),
                    };
                    format!("{limit}/{}/{left}", value(permit.token))
                }
            };
            fields.insert(name, text);
        }
        let fields = fields.iter().map(|(name, text)| format!(" {name}={text}"));
        fields.collect()
    }
}
