//! What the server tells by messages of places in its queues, and who here waits
//! for which.
//!
//! A message names its place by lock and owner. It may be lost, doubled or late, so
//! it decides nothing by itself: whoever waits confirms a grant before relying on
//! it, and asks again where in doubt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::ear::Ear;
use crate::error::Error;
use crate::mutex::locked;

/// How a place ended.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// The lock was granted with this token, for a lease that is short until the
    /// grant is claimed.
    Granted(u64),
    /// There is no place any more, and no grant.
    Gone,
    /// The server refused.
    Refused(Error),
}

/// A lock and an owner.
type Id = (Vec<u8>, Vec<u8>);

/// Who here waits to be told.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<Id, UnboundedSender<Told>>>);

/// One that waits to be told. An owner has one for a lock at a time.
pub(crate) struct Place {
    places: Arc<Places>,
    id: Id,
    told: UnboundedReceiver<Told>,
}

impl Places {
    /// From now on what is told of this place is kept for whoever has this.
    pub(crate) fn expect(self: &Arc<Self>, key: &[u8], owner: &[u8]) -> Place {
        let (sender, told) = unbounded_channel();
        let id = (key.to_vec(), owner.to_vec());
        locked(&self.0).insert(id.clone(), sender);
        Place {
            places: Arc::clone(self),
            id,
            told,
        }
    }

    /// Leads a message to whoever waits for it. What nobody waits for any more, and
    /// what is no such message, is nobody's.
    pub(crate) fn tell(&self, message: &[u8]) {
        if let Some((id, told)) = read(message)
            && let Some(place) = locked(&self.0).get(&id)
        {
            // Where it is gone by now, nobody has to hear it.
            let _ = place.send(told);
        }
    }

    /// Returns whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.0).is_empty()
    }
}

impl Place {
    /// Waits for what is told next.
    pub(crate) async fn told(&mut self) -> Told {
        self.told.recv().await.unwrap_or(Told::Gone)
    }
}

impl Ear for Places {
    fn hear(&self, _: &[u8], message: &[u8]) {
        self.tell(message);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.places.0).remove(&self.id);
    }
}

/// Reads a message: the number of the database, the key, the owner and the result.
fn read(message: &[u8]) -> Option<(Id, Told)> {
    let (_database, rest) = netstring(message)?;
    let (key, rest) = netstring(rest)?;
    let (owner, rest) = netstring(rest)?;
    let (result, _) = netstring(rest)?;
    let result = String::from_utf8_lossy(result);
    let told = match result.strip_prefix('-') {
        Some(refusal) => Told::Refused(Error::from_line(refusal)),
        None => match result.parse().ok()? {
            0 => Told::Gone,
            token => Told::Granted(token),
        },
    };
    Some(((key.to_vec(), owner.to_vec()), told))
}

/// The next netstring, and what follows it: `3:abc,`.
fn netstring(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let (length, rest) = bytes.split_at(colon);
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (text, rest) = rest.get(1..)?.split_at_checked(length)?;
    Some((text, rest.strip_prefix(b",")?))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn message(key: &[u8], owner: &[u8], result: &str) -> Vec<u8> {
        let mut message = Vec::new();
        for text in [b"0", key, owner, result.as_bytes()] {
            message.extend(format!("{}:", text.len()).into_bytes());
            message.extend(text);
            message.push(b',');
        }
        message
    }

    /// What is there for it by now.
    fn told(place: &mut Place) -> String {
        match place.told().now_or_never() {
            None => "nothing".into(),
            Some(Told::Granted(token)) => token.to_string(),
            Some(Told::Gone) => "gone".into(),
            Some(Told::Refused(error)) => format!("{}: {error}", error.code()),
        }
    }

    #[test]
    fn a_message_is_led_to_who_waits_for_that_lock_as_that_owner() {
        let places = Arc::new(Places::default());
        let mut first = places.expect(b"a:\r\n1,", b"\xffo");
        let mut second = places.expect(b"a:\r\n1,", b"other");
        places.tell(&message(b"a:\r\n1,", b"\xffo", "1764000000000001"));
        assert_eq!(told(&mut first), "1764000000000001");
        assert_eq!(told(&mut second), "nothing");
        places.tell(&message(b"a:\r\n1,", b"other", "0"));
        assert_eq!(told(&mut second), "gone");
        let refusal = "-NOTALOCK the key is a hash that is no lock";
        places.tell(&message(b"a:\r\n1,", b"other", refusal));
        let refusal = "NOTALOCK: NOTALOCK the key is a hash that is no lock";
        assert_eq!(told(&mut second), refusal);
    }

    #[test]
    fn what_comes_before_it_is_asked_for_is_kept() {
        let places = Arc::new(Places::default());
        let mut place = places.expect(b"k", b"o");
        places.tell(&message(b"k", b"o", "7"));
        places.tell(&message(b"k", b"o", "7"));
        assert_eq!([told(&mut place), told(&mut place)], ["7", "7"]);
    }

    #[test]
    fn nobody_hears_of_a_place_that_was_left() {
        let places = Arc::new(Places::default());
        drop(places.expect(b"k", b"o"));
        assert!(places.is_empty());
        places.tell(&message(b"k", b"o", "7"));
        let mut place = places.expect(b"k", b"o");
        assert_eq!(told(&mut place), "nothing");
        assert!(!places.is_empty());
    }

    #[test]
    fn what_is_no_such_message_is_left_aside() {
        let places = Arc::new(Places::default());
        let mut place = places.expect(b"k", b"o");
        let whole = message(b"k", b"o", "7");
        for end in 0..whole.len() {
            places.tell(&whole[..end]);
        }
        for wrong in [
            &b"hello"[..],
            b"",
            b"1:0,1:k,1:o,1:x,",
            b"1:0,1:k,1:o;1:7,",
            b"1:0,1:k,99999999999999999999:o,1:7,",
            b"-1:0,1:k,1:o,1:7,",
            b"1:0,1:k,1:o,2:-7",
        ] {
            places.tell(wrong);
        }
        assert_eq!(told(&mut place), "nothing");
        places.tell(&whole);
        assert_eq!(told(&mut place), "7");
    }
}
