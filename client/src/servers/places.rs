//! What the server tells by messages of places in its queues, and who here waits
//! for which.
//!
//! A message names its place by lock and owner. It may be lost, doubled or late, so
//! it decides nothing by itself: whoever waits confirms a grant before relying on
//! it, and asks again where in doubt.
//!
//! Whoever releases a lock asks, in the same write, once more for the next one here
//! that waits for it. If the lock goes to that place, the reply has the token and the
//! full lease, and nothing is left to be confirmed. If it goes elsewhere, the same
//! request again has kept the place, and no more. A reply that nobody takes, because its
//! task is not polled, is taken back and released.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use std::time::Duration;

use redis::Cmd;
use tokio::sync::{Notify, oneshot};

use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::mutex::locked;
use crate::servers::ear::Ear;

/// How a place ended.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// The lock was granted with this token, for a lease that is short until the
    /// grant is claimed.
    Granted(u64),
    /// The same, in reply to a request that was sent then: it is claimed.
    Replied(u64, Moment),
    /// There is no place any more, and no grant; or nobody knows.
    Gone,
    /// The server refused.
    Refused(Error),
}

/// Who here waits to be told, by lock, and in the order of coming.
#[derive(Default)]
pub(crate) struct Places {
    waiting: Mutex<HashMap<Vec<u8>, Line>>,
    came: AtomicU64,
}

/// Those who wait for one lock. Boxed, because a tree has room for several wherever
/// there is one.
type Line = BTreeMap<u64, Box<Waiting>>;

struct Waiting {
    owner: Vec<u8>,
    told: VecDeque<Told>,
    /// Whether it had not heard of that when it was looked at last.
    is_late: bool,
    wake: Arc<Notify>,
    /// What asks for the place again, and for which lease, once the server has it,
    /// unless only a session may ask.
    request: Option<(Cmd, Duration)>,
    asked: Option<Asked>,
}

/// Somebody else asks for this one.
struct Asked {
    /// Completes when that is answered, or never will be.
    answered: oneshot::Receiver<()>,
    /// What a message has told meanwhile. The reply may make it needless.
    told: Option<Told>,
}

/// One that waits to be told. An owner has one for a lock at a time.
pub(crate) struct Place {
    places: Arc<Places>,
    key: Vec<u8>,
    serial: u64,
    wake: Arc<Notify>,
    /// Completes when what was asked for it before it left is answered.
    asked: Option<oneshot::Receiver<()>>,
}

/// A request for one that waits, sent by another.
pub(crate) struct AskedFor {
    places: Arc<Places>,
    pub(crate) key: Vec<u8>,
    serial: u64,
    pub(crate) request: Cmd,
    answered: Option<oneshot::Sender<()>>,
}

impl Places {
    /// From now on what is told of this place is kept for whoever has this.
    pub(crate) fn expect(self: &Arc<Self>, key: &[u8], owner: &[u8]) -> Place {
        let (serial, wake) = (self.came.fetch_add(1, Ordering::Relaxed), Arc::default());
        let waiting = Waiting {
            owner: owner.to_vec(),
            told: VecDeque::new(),
            is_late: false,
            wake: Arc::clone(&wake),
            request: None,
            asked: None,
        };
        let mut all = locked(&self.waiting);
        let line = all.entry(key.to_vec()).or_default();
        line.insert(serial, Box::new(waiting));
        drop(all);
        Place {
            places: Arc::clone(self),
            key: key.to_vec(),
            serial,
            wake,
            asked: None,
        }
    }

    /// Leads a message to whoever waits for it. What nobody waits for any more, and
    /// what is no such message, is nobody's.
    pub(crate) fn tell(&self, message: &[u8]) {
        let Some((key, owner, told)) = read(message) else {
            return;
        };
        let mut all = locked(&self.waiting);
        let mut line = all.get_mut(key).into_iter().flat_map(BTreeMap::values_mut);
        let Some(waiting) = line.find(|waiting| waiting.owner == owner) else {
            return;
        };
        match &mut waiting.asked {
            Some(asked) => asked.told = Some(told),
            None => {
                waiting.tell(told);
                waiting.wake.notify_one();
            }
        }
    }

    /// The request of the first one here that waits for this lock, for whoever
    /// releases it to send. None if nobody waits or has to ask alone.
    pub(crate) fn ask_for_next(self: &Arc<Self>, key: &[u8]) -> Option<AskedFor> {
        let mut all = locked(&self.waiting);
        // Who has not heard yet what it was told waits no more, for all that is known.
        let mut line = all.get_mut(key)?.iter_mut();
        let (&serial, first) = line.find(|(_, waiting)| waiting.told.is_empty())?;
        if first.asked.is_some() {
            return None;
        }
        let (request, _) = first.request.clone()?;
        Some(self.asked_for(key, serial, first, request))
    }

    /// Takes back what was replied for those that have not been polled since the last
    /// call. Returns the releases to be sent, and after which time none is needed. Until
    /// one is dropped, nobody asks for that place.
    pub(crate) fn take_back(self: &Arc<Self>) -> Vec<(AskedFor, Duration)> {
        let mut taken = Vec::new();
        for (key, line) in &mut *locked(&self.waiting) {
            for (&serial, waiting) in line {
                let Some(&Told::Replied(token, _)) = waiting.told.front() else {
                    continue;
                };
                if std::mem::replace(&mut waiting.is_late, true)
                    && let Some((_, lease)) = waiting.request
                {
                    waiting.told.clear();
                    let release = commands::release(key, &waiting.owner, Some(token));
                    taken.push((self.asked_for(key, serial, waiting, release), lease));
                }
            }
        }
        taken
    }

    fn asked_for(
        self: &Arc<Self>,
        key: &[u8],
        serial: u64,
        waiting: &mut Waiting,
        request: Cmd,
    ) -> AskedFor {
        let (answered, receiver) = oneshot::channel();
        waiting.asked = Some(Asked {
            answered: receiver,
            told: None,
        });
        AskedFor {
            places: Arc::clone(self),
            key: key.to_vec(),
            serial,
            request,
            answered: Some(answered),
        }
    }

    /// Returns whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.waiting).is_empty()
    }

    /// Changes what is known of one, if it still waits.
    fn change<T>(
        &self,
        key: &[u8],
        serial: u64,
        change: impl FnOnce(&mut Waiting) -> T,
    ) -> Option<T> {
        let mut all = locked(&self.waiting);
        let waiting = all.get_mut(key)?.get_mut(&serial)?;
        Some(change(waiting))
    }
}

impl Waiting {
    fn tell(&mut self, told: Told) {
        self.told.push_back(told);
        self.is_late = false;
    }
}

impl Place {
    /// The server has it: from now on others may ask for it by this request.
    pub(crate) fn may_be_asked_for(&self, request: Cmd, lease: Duration) {
        let note = |waiting: &mut Waiting| waiting.request = Some((request, lease));
        self.places.change(&self.key, self.serial, note);
    }

    /// Waits until what others have asked for it is answered.
    pub(crate) async fn answered(&self) {
        let is_asked = |waiting: &mut Waiting| waiting.asked.is_some();
        while self.places.change(&self.key, self.serial, is_asked) == Some(true) {
            self.wake.notified().await;
        }
    }

    /// It asks anew, and what was told before is true no more.
    pub(crate) fn forget_what_was_told(&mut self) {
        let forget = |waiting: &mut Waiting| waiting.told.clear();
        self.places.change(&self.key, self.serial, forget);
    }

    /// Waits for what is told next.
    pub(crate) async fn told(&mut self) -> Told {
        let next = |waiting: &mut Waiting| waiting.told.pop_front();
        loop {
            match self.places.change(&self.key, self.serial, next) {
                Some(Some(told)) => return told,
                Some(None) => self.wake.notified().await,
                None => return Told::Gone,
            }
        }
    }

    /// Leaves, so that nobody asks for it from now on. Completes when what somebody
    /// asked before is answered, or never will be.
    pub(crate) async fn leave(&mut self) {
        if let Some(asked) = self.forget().and_then(|waiting| waiting.asked) {
            self.asked = Some(asked.answered);
        }
        if let Some(answered) = &mut self.asked {
            // It may have been dropped as well.
            let _ = answered.await;
            self.asked = None;
        }
    }

    fn forget(&self) -> Option<Box<Waiting>> {
        let mut all = locked(&self.places.waiting);
        let line = all.get_mut(&self.key)?;
        let waiting = line.remove(&self.serial);
        if line.is_empty() {
            all.remove(&self.key);
        }
        waiting
    }
}

impl Ear for Places {
    fn hear(&self, _: &[u8], message: &[u8]) {
        self.tell(message);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.forget();
    }
}

impl AskedFor {
    /// Tells whoever waits what was replied to a request that was sent then.
    pub(crate) fn answer(mut self, reply: Result<Option<u64>, Error>, sent_at: Moment) {
        self.tell(|told| match (reply, told) {
            (Ok(Some(token)), _) => Some(Told::Replied(token, sent_at)),
            // It is still in line, or what was told came after the reply.
            (Ok(None), told) => told,
            // It has to ask by itself, whatever there is.
            (Err(_), _) => Some(Told::Gone),
        });
    }

    fn tell(&mut self, told: impl FnOnce(Option<Told>) -> Option<Told>) {
        let tell = |waiting: &mut Waiting| {
            let meanwhile = waiting.asked.take().and_then(|asked| asked.told);
            if let Some(told) = told(meanwhile) {
                waiting.tell(told);
            }
            waiting.wake.notify_one();
        };
        self.places.change(&self.key, self.serial, tell);
        if let Some(answered) = self.answered.take() {
            let _ = answered.send(());
        }
    }
}

impl Drop for AskedFor {
    fn drop(&mut self) {
        if self.answered.is_some() {
            self.tell(|_| Some(Told::Gone));
        }
    }
}

/// Reads a message: the number of the database, the key, the owner, the result, and the first
/// lease, which nothing here relies on: a grant is claimed before it counts.
fn read(message: &[u8]) -> Option<(&[u8], &[u8], Told)> {
    let (_database, rest) = netstring(message)?;
    let (key, rest) = netstring(rest)?;
    let (owner, rest) = netstring(rest)?;
    let (result, rest) = netstring(rest)?;
    let (_first_lease, _) = netstring(rest)?;
    let result = String::from_utf8_lossy(result);
    let told = match result.strip_prefix('-') {
        Some(refusal) => Told::Refused(Error::from_line(refusal)),
        None => match result.parse().ok()? {
            0 => Told::Gone,
            token => Told::Granted(token),
        },
    };
    Some((key, owner, told))
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
        for text in [b"0", key, owner, result.as_bytes(), b"2000"] {
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
            Some(Told::Replied(token, _)) => format!("{token} replied"),
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

    const LEASE: Duration = Duration::from_secs(30);

    /// One that waits and that others may ask for.
    fn in_line(places: &Arc<Places>, owner: &[u8]) -> Place {
        let place = places.expect(b"k", owner);
        let request = redis::cmd(&String::from_utf8_lossy(owner));
        place.may_be_asked_for(request, LEASE);
        place
    }

    #[test]
    fn the_first_in_line_is_asked_for_and_once_at_a_time() {
        let places = Arc::new(Places::default());
        assert!(places.ask_for_next(b"k").is_none());
        let new = places.expect(b"k", b"new");
        let (_first, _second) = (in_line(&places, b"first"), in_line(&places, b"second"));
        assert!(places.ask_for_next(b"k").is_none(), "it asks by itself");
        drop(new);
        let asked = places.ask_for_next(b"k").unwrap();
        assert_eq!(asked.request.args_iter().count(), 1);
        assert!(places.ask_for_next(b"k").is_none());
        drop(asked);
        assert!(places.ask_for_next(b"k").is_some());
        assert!(places.ask_for_next(b"other").is_none());
    }

    #[test]
    fn a_reply_with_the_token_makes_the_message_needless() {
        let places = Arc::new(Places::default());
        let mut place = in_line(&places, b"o");
        let asked = places.ask_for_next(b"k").unwrap();
        places.tell(&message(b"k", b"o", "7"));
        assert_eq!(told(&mut place), "nothing");
        asked.answer(Ok(Some(7)), Moment::now());
        places.tell(&message(b"k", b"o", "7"));
        assert_eq!([told(&mut place), told(&mut place)], ["7 replied", "7"]);
    }

    #[test]
    fn a_message_beside_a_reply_without_a_token_is_told() {
        let places = Arc::new(Places::default());
        let mut place = in_line(&places, b"o");
        places
            .ask_for_next(b"k")
            .unwrap()
            .answer(Ok(None), Moment::now());
        assert_eq!(told(&mut place), "nothing");
        let asked = places.ask_for_next(b"k").unwrap();
        places.tell(&message(b"k", b"o", "7"));
        asked.answer(Ok(None), Moment::now());
        assert_eq!(told(&mut place), "7");
    }

    #[test]
    fn whoever_was_asked_for_in_vain_asks_by_itself() {
        let places = Arc::new(Places::default());
        let mut place = in_line(&places, b"o");
        let asked = places.ask_for_next(b"k").unwrap();
        places.tell(&message(b"k", b"o", "7"));
        asked.answer(Err(Error::timed_out()), Moment::now());
        assert_eq!(told(&mut place), "gone");
        drop(places.ask_for_next(b"k"));
        assert_eq!(told(&mut place), "gone");
    }

    #[test]
    fn whoever_leaves_waits_until_what_was_asked_for_it_is_answered() {
        let places = Arc::new(Places::default());
        assert!(in_line(&places, b"o").leave().now_or_never().is_some());
        let mut place = in_line(&places, b"o");
        let asked = places.ask_for_next(b"k").unwrap();
        for _ in 0..2 {
            assert!(place.leave().now_or_never().is_none());
            assert!(places.is_empty());
        }
        asked.answer(Ok(Some(7)), Moment::now());
        assert!(place.leave().now_or_never().is_some());
    }

    #[test]
    fn who_has_not_heard_what_it_was_told_is_not_asked_for_again() {
        let places = Arc::new(Places::default());
        let (mut first, mut second) = (in_line(&places, b"first"), in_line(&places, b"second"));
        let ask = || places.ask_for_next(b"k").unwrap();
        ask().answer(Ok(Some(7)), Moment::now());
        ask().answer(Ok(Some(8)), Moment::now());
        assert!(places.ask_for_next(b"k").is_none());
        assert_eq!(told(&mut second), "8 replied");
        assert_eq!(told(&mut first), "7 replied");
        ask().answer(Ok(Some(9)), Moment::now());
        assert_eq!(told(&mut first), "9 replied");
    }

    #[test]
    fn what_nobody_takes_is_taken_back_and_released() {
        let places = Arc::new(Places::default());
        let (mut late, mut awake) = (in_line(&places, b"late"), in_line(&places, b"awake"));
        for token in [7, 8] {
            let asked = places.ask_for_next(b"k").unwrap();
            asked.answer(Ok(Some(token)), Moment::now());
        }
        assert!(places.take_back().is_empty());
        assert_eq!(told(&mut awake), "8 replied");
        let (release, lease) = places.take_back().pop().unwrap();
        let sent = release.request.get_packed_command();
        assert_eq!(
            sent,
            commands::release(b"k", b"late", Some(7)).get_packed_command()
        );
        assert_eq!(lease, LEASE);
        assert!(places.take_back().is_empty());
        assert_eq!(told(&mut late), "nothing");
        assert!(
            late.answered().now_or_never().is_none(),
            "it asks too early"
        );
        drop(release);
        assert!(late.answered().now_or_never().is_some());
        assert_eq!(told(&mut late), "gone");
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
            b"1:0,1:k,1:o,1:x,1:9,",
            b"1:0,1:k,1:o;1:7,1:9,",
            b"1:0,1:k,99999999999999999999:o,1:7,1:9,",
            b"-1:0,1:k,1:o,1:7,1:9,",
            b"1:0,1:k,1:o,1:7,",
            b"1:0,1:k,1:o,1:7,1:9",
        ] {
            places.tell(wrong);
        }
        assert_eq!(told(&mut place), "nothing");
        places.tell(&whole);
        assert_eq!(told(&mut place), "7");
    }
}
