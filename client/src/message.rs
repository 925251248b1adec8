//! The message by which a place in the queue ends: five netstrings.

use std::time::Duration;

use crate::error::Error;

/// What the server says of a place.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) key: Vec<u8>,
    pub(crate) owner: Vec<u8>,
    pub(crate) told: Told,
}

/// How a place ended.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// The lock was granted, for a short first lease.
    Granted {
        token: u64,
        first_lease: Duration,
    },
    /// The place is gone without a grant.
    Gone,
    Refused(Error),
}

impl Message {
    /// Reads database number, key, owner, result and first lease. None if it is not the
    /// message of a place.
    pub(crate) fn read(mut payload: &[u8]) -> Option<Self> {
        let mut next = || netstring(&mut payload);
        let (_database, key, owner, result, lease) = (next()?, next()?, next()?, next()?, next()?);
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
        let told = match result {
            b"0" => Told::Gone,
            [b'-', line @ ..] => Told::Refused(Error::from_line(&String::from_utf8_lossy(line))),
            token => Told::Granted {
                token: number(token)?,
                first_lease: Duration::from_millis(number(lease)?),
            },
        };
        Some(Self {
            key: key.to_vec(),
            owner: owner.to_vec(),
            told,
        })
    }
}

/// Takes one netstring off the front: `length:bytes,`.
fn netstring<'bytes>(bytes: &mut &'bytes [u8]) -> Option<&'bytes [u8]> {
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let length: usize = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
    let (string, rest) = bytes[colon + 1..].split_at_checked(length)?;
    *bytes = rest.strip_prefix(b",")?;
    Some(string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_tells_its_first_lease() {
        let message = Message::read(b"1:0,3:a:b,2:\xff,,2:42,4:2000,").unwrap();
        assert_eq!(
            (message.key.as_slice(), message.owner.as_slice()),
            (&b"a:b"[..], &b"\xff,"[..])
        );
        assert!(
            matches!(message.told, Told::Granted { token: 42, first_lease }
            if first_lease == Duration::from_secs(2))
        );
    }

    #[test]
    fn an_end_without_a_grant_is_told_as_such() {
        let told = |payload: &[u8]| Message::read(payload).map(|message| message.told);
        assert!(matches!(told(b"1:0,1:k,1:o,1:0,1:0,"), Some(Told::Gone)));
        let refused = told(b"1:0,1:k,1:o,13:-SUPERSEDED x,1:0,");
        assert!(matches!(refused, Some(Told::Refused(Error::Superseded(words))) if words == "x"));
    }

    #[test]
    fn what_is_no_message_of_a_place_is_passed_over() {
        for payload in [
            "",
            "1:0,",
            "1:0,1:k,1:o,2:42,",
            "9:0,",
            "x",
            "1:0,1:k,1:o,1:x,1:0,",
            "99999999999999999999:",
        ] {
            assert!(Message::read(payload.as_bytes()).is_none(), "{payload}");
        }
    }
}
