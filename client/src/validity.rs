//! How long a hold can be relied upon. Plain data and arithmetic: no server,
//! no timer.

use std::fmt;
use std::time::Duration;

use crate::clock::Moment;

/// Why a hold can no longer be relied upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// No renewal succeeded in time. The lock may be another's by now.
    Expired,
    /// The server says that the hold is over, or that another owner has the lock.
    Refused,
    /// The connection of the hold's [session](crate::Session) was closed, and
    /// the hold ended with it.
    Disconnected,
    /// The guards of this hold were released, dropped or forgotten.
    Released,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::Refused => "the server says that the hold has ended",
            Self::Disconnected => "the connection of its session was closed",
            Self::Released => "it was released",
        })
    }
}

/// How much shorter a lease counts here than on the server: one percent for
/// clocks that run apart, and ten milliseconds for the time it takes to notice.
/// A lease so short that this would eat it up keeps half.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 100 + Duration::from_millis(10)).min(lease / 2)
}

/// Whole milliseconds, as the server counts.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Until when a hold is valid, unless it is lost before.
///
/// What is lost stays lost: an answer that comes too late does not bring it
/// back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    valid_until: Moment,
    lost: Option<Lost>,
}

impl Validity {
    /// Of a hold that the server granted or dated by a command sent at
    /// `sent_at`. It arrived later, so the lease ends later there than counted
    /// here.
    pub(crate) fn new(sent_at: Moment, lease: Duration) -> Self {
        Self {
            valid_until: sent_at + (lease - margin(lease)),
            lost: None,
        }
    }

    /// The time that is left, or why there is none.
    pub(crate) fn left(&self, now: Moment) -> Result<Duration, Lost> {
        match self.lost {
            Some(lost) => Err(lost),
            None if now >= self.valid_until => Err(Lost::Expired),
            None => Ok(now.until(self.valid_until)),
        }
    }

    /// Counts a lease anew, from a command sent at `sent_at` and answered by now.
    pub(crate) fn extend(
        &mut self,
        sent_at: Moment,
        lease: Duration,
        now: Moment,
    ) -> Result<(), Lost> {
        match self.left(now) {
            Ok(_) => {
                let renewed = Self::new(sent_at, lease);
                self.valid_until = self.valid_until.max(renewed.valid_until);
                Ok(())
            }
            Err(lost) => {
                self.lost = Some(lost);
                Err(lost)
            }
        }
    }

    /// Notes that it is lost, unless it was before. Returns whether it was not.
    pub(crate) fn lose(&mut self, why: Lost, now: Moment) -> bool {
        let first = self.lost.is_none();
        self.lost = self.left(now).err().or(Some(why));
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn it_counts_from_sending_and_leaves_a_margin() {
        let sent_at = Moment::now();
        let validity = Validity::new(sent_at, ms(30_000));
        assert_eq!(validity.left(sent_at), Ok(ms(30_000 - 310)));
        assert_eq!(validity.left(sent_at + ms(1_000)), Ok(ms(28_690)));
        assert_eq!(validity.left(sent_at + ms(29_689)), Ok(ms(1)));
        assert_eq!(validity.left(sent_at + ms(29_690)), Err(Lost::Expired));
        assert_eq!(validity.left(sent_at + ms(90_000)), Err(Lost::Expired));
    }

    #[test]
    fn of_a_very_short_lease_half_is_kept() {
        assert_eq!(margin(ms(1)), Duration::from_micros(500));
        assert_eq!(margin(ms(20)), ms(10));
        assert_eq!(margin(ms(100)), ms(11));
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_sent() {
        let start = Moment::now();
        let mut validity = Validity::new(start, ms(1_000));
        let (sent_at, answered) = (start + ms(300), start + ms(600));
        assert_eq!(validity.extend(sent_at, ms(1_000), answered), Ok(()));
        assert_eq!(validity.left(answered), Ok(ms(1_000 - 20 - 300)));
    }

    #[test]
    fn a_renewal_that_was_overtaken_shortens_nothing() {
        let start = Moment::now();
        let mut validity = Validity::new(start + ms(500), ms(1_000));
        assert_eq!(validity.extend(start, ms(1_000), start + ms(600)), Ok(()));
        assert_eq!(validity.left(start + ms(600)), Ok(ms(880)));
    }

    #[test]
    fn an_answer_after_the_end_does_not_bring_it_back() {
        let start = Moment::now();
        let mut validity = Validity::new(start, ms(1_000));
        let late = start + ms(980);
        assert_eq!(
            validity.extend(start + ms(500), ms(1_000), late),
            Err(Lost::Expired)
        );
        assert_eq!(validity.left(start), Err(Lost::Expired));
    }

    #[test]
    fn the_first_reason_stays() {
        let start = Moment::now();
        let mut validity = Validity::new(start, ms(1_000));
        assert!(validity.lose(Lost::Refused, start));
        assert!(!validity.lose(Lost::Released, start));
        assert_eq!(validity.left(start), Err(Lost::Refused));
        assert_eq!(validity.extend(start, ms(1_000), start), Err(Lost::Refused));
        let mut expired = Validity::new(start, ms(1_000));
        assert!(expired.lose(Lost::Released, start + ms(2_000)));
        assert_eq!(expired.left(start), Err(Lost::Expired));
    }
}
