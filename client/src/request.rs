//! What is asked for: plain data.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::validity::whole_ms;

/// The longest lease: ten years.
const LEASE_MS_MAX: u64 = 315_360_000_000;

const OWNER_MAX_BYTES: usize = 1024;

/// The greatest limit that the server takes.
const LIMIT_MAX: u64 = (1 << 53) - 1;

/// How many may hold a lock together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One owner alone.
    Exclusive,
    /// Any number of owners that share it.
    Shared,
    /// At most this many owners: each has one of as many permits.
    Limited(u64),
}

impl Mode {
    /// How many may hold the lock together at most.
    fn limit(self) -> u64 {
        match self {
            Self::Exclusive => 1,
            Self::Shared => u64::MAX,
            Self::Limited(limit) => limit,
        }
    }

    /// Returns whether a holder in the other mode has less than this.
    pub(crate) fn is_stricter_than(self, held: Self) -> bool {
        self.limit() < held.limit()
    }
}

/// How often a hold is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renew {
    Never,
    AtMost(u32),
    Always,
}

/// How many replicas must have a grant, and how soon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) wanted: usize,
    pub(crate) within: Duration,
}

/// How often, and for how long after its grant, a hold may be passed on among the tasks
/// of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassOn {
    pub(crate) at_most: u32,
    pub(crate) within: Duration,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until then, or without end.
    Until(Option<Instant>),
}

impl Wait {
    /// At most this long from now. Ten years and more are without end.
    pub(crate) fn within(time: Duration) -> Self {
        match time {
            Duration::ZERO => Self::No,
            time if whole_ms(time) >= LEASE_MS_MAX => Self::Until(None),
            time => Self::Until(Some(Instant::now() + time)),
        }
    }

    /// When to stop waiting for something local. A request that does not wait
    /// for the lock waits this long for that.
    pub(crate) fn deadline_or(self, response: Duration) -> Option<Instant> {
        match self {
            Self::No => Some(Instant::now() + response),
            Self::Until(deadline) => deadline,
        }
    }
}

/// What a lock is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: Vec<u8>,
    /// The owner's name, if it has one.
    pub(crate) owner: Option<Vec<u8>>,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    pub(crate) renew: Renew,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) pass_on: Option<PassOn>,
}

impl Request {
    /// Whether one hold is as good for this as any other that was asked for so: nobody
    /// else can be asked to tell them apart, or to end them, as for owners with a name.
    pub(crate) fn is_like_any_other(&self) -> bool {
        self.owner.is_none()
            && self.mode == Mode::Exclusive
            && self.renew == Renew::Always
            && self.replicas.is_none()
    }

    /// Returns an error if no server would take it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !(1..=LEASE_MS_MAX).contains(&whole_ms(self.lease)) {
            return Err(Error::Invalid("a lease is 1 millisecond to 10 years"));
        }
        if let Some(owner) = &self.owner
            && (owner.is_empty() || owner.len() > OWNER_MAX_BYTES || owner.starts_with(b"@"))
        {
            return Err(Error::Invalid(
                "an owner is 1 to 1024 bytes and does not begin with @",
            ));
        }
        if let Mode::Limited(limit) = self.mode
            && !(1..=LIMIT_MAX).contains(&limit)
        {
            return Err(Error::Invalid("a limit is 1 to 2^53 - 1"));
        }
        Ok(())
    }

    /// As [`Request::check`], of a request to several independent servers,
    /// which add `suffix_bytes` to the owner's name.
    pub(crate) fn check_for_many(&self, suffix_bytes: usize) -> Result<(), Error> {
        self.check()?;
        if self.replicas.is_some() {
            return Err(Error::Invalid(
                "the servers of a Redlock are independent and have no replicas to ask",
            ));
        }
        if matches!(self.mode, Mode::Limited(2..)) {
            return Err(Error::Invalid(
                "a Redlock has no permits: the servers would give out more of them together",
            ));
        }
        if let Some(owner) = &self.owner
            && owner.len() + suffix_bytes > OWNER_MAX_BYTES
        {
            return Err(Error::Invalid("an owner of a Redlock is at most 960 bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Mode::{Exclusive, Limited, Shared};
    use super::*;

    #[test]
    fn the_fewer_may_hold_it_the_stricter_it_is() {
        let modes = [Exclusive, Limited(2), Limited(3), Shared];
        for (nth, stricter) in modes.iter().enumerate() {
            for looser in &modes[nth + 1..] {
                assert!(stricter.is_stricter_than(*looser));
                assert!(!looser.is_stricter_than(*stricter));
            }
        }
        assert!(!Limited(1).is_stricter_than(Exclusive));
        assert!(!Exclusive.is_stricter_than(Limited(1)));
    }

    fn request() -> Request {
        Request {
            key: b"k".to_vec(),
            owner: None,
            mode: Exclusive,
            lease: Duration::from_secs(30),
            renew: Renew::Always,
            replicas: None,
            pass_on: None,
        }
    }

    #[test]
    fn what_no_server_takes_is_refused_here() {
        assert!(request().check().is_ok());
        let lease = |lease| Request { lease, ..request() };
        assert!(lease(Duration::from_micros(999)).check().is_err());
        assert!(lease(Duration::from_millis(1)).check().is_ok());
        assert!(lease(Duration::MAX).check().is_err());
        let owner = |owner: &[u8]| Request {
            owner: Some(owner.to_vec()),
            ..request()
        };
        assert!(owner(b"").check().is_err());
        assert!(owner(b"@a").check().is_err());
        assert!(owner(&[b'a'; 1024]).check().is_ok());
        assert!(owner(&[b'a'; 1025]).check().is_err());
        let mode = |mode| Request { mode, ..request() };
        assert!(mode(Limited(0)).check().is_err());
        assert!(mode(Limited(LIMIT_MAX)).check().is_ok());
        assert!(mode(Limited(LIMIT_MAX + 1)).check().is_err());
    }

    #[test]
    fn several_servers_take_less() {
        assert!(request().check_for_many(64).is_ok());
        let mode = |mode| Request { mode, ..request() };
        assert!(mode(Limited(1)).check_for_many(64).is_ok());
        assert!(mode(Limited(2)).check_for_many(64).is_err());
        let owner = Request {
            owner: Some(vec![b'a'; 961]),
            ..request()
        };
        assert!(owner.check_for_many(64).is_err());
    }
}
