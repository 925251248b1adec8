//! What messages say of places in queues.

use redis::{PushKind, Value};

/// What has become of a place in a queue, as its message tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Where it was published.
    pub channel: String,
    /// The number of the database.
    pub db: i64,
    /// The lock.
    pub key: Vec<u8>,
    /// Who had the place.
    pub owner: String,
    /// A token, `0`, or `-CODE text`.
    pub result: String,
    /// How long the first lease of the grant is, in milliseconds; 0 where there is none.
    pub lease_ms: i64,
}

impl Told {
    /// What a connection heard, if it is such a message: in RESP3 it is pushed, and in
    /// RESP2 a reply of three words.
    pub fn of(heard: &Value) -> Option<Self> {
        let is_message =
            |word: &Value| matches!(word, Value::BulkString(it) if it.ends_with(b"message"));
        let data = match heard {
            Value::Push {
                kind: PushKind::Message | PushKind::SMessage,
                data,
            } => data,
            Value::Array(words) if words.first().is_some_and(is_message) => &words[1..],
            _ => return None,
        };
        let [Value::BulkString(channel), Value::BulkString(message)] = data else {
            return None;
        };
        Self::parse(channel, message)
    }

    /// The token of a grant, which it has to be.
    #[track_caller]
    pub fn token(&self) -> i64 {
        match self.result.parse() {
            Ok(token) if token > 0 => token,
            _ => panic!("{self:?} is no grant"),
        }
    }

    /// Reads a message of five netstrings.
    pub fn parse(channel: &[u8], message: &[u8]) -> Option<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut rest = message;
        let mut netstring = || {
            let colon = rest.iter().position(|&byte| byte == b':')?;
            let length = std::str::from_utf8(&rest[..colon]).ok()?;
            let (text, after) = rest[colon + 1..].split_at_checked(length.parse().ok()?)?;
            rest = after.strip_prefix(b",")?;
            Some(text)
        };
        let told = Self {
            channel: text(channel),
            db: text(netstring()?).parse().ok()?,
            key: netstring()?.to_vec(),
            owner: text(netstring()?),
            result: text(netstring()?),
            lease_ms: text(netstring()?).parse().ok()?,
        };
        rest.is_empty().then_some(told)
    }
}
