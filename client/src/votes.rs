//! Counting what several servers say. One server is a majority of one.

use crate::error::Error;
use crate::validity::Lost;

/// The votes so far.
pub(crate) struct Votes {
    servers: usize,
    yes: usize,
    no: usize,
    failed: usize,
    last: Option<Error>,
}

impl Votes {
    pub(crate) const fn new(servers: usize) -> Self {
        Self {
            servers,
            yes: 0,
            no: 0,
            failed: 0,
            last: None,
        }
    }

    pub(crate) fn count(&mut self, vote: Result<bool, Error>) {
        match vote {
            Ok(true) => self.yes += 1,
            Ok(false) => self.no += 1,
            Err(error) => {
                self.failed += 1;
                self.last = Some(error);
            }
        }
    }

    /// Returns whether a majority said yes, once that can't change any more.
    pub(crate) fn decided(&mut self) -> Option<Result<bool, Error>> {
        let quorum = self.servers / 2 + 1;
        if self.yes >= quorum {
            return Some(Ok(true));
        }
        if self.servers - self.no < quorum {
            return Some(Ok(false));
        }
        let open = self.servers - self.yes - self.no - self.failed;
        (open == 0).then(|| Err(self.failure()))
    }

    /// What to say when those who did not answer in time have failed.
    pub(crate) fn time_is_over(&mut self) -> Result<bool, Error> {
        while self.yes + self.no + self.failed < self.servers {
            self.count(Err(Error::timed_out()));
        }
        self.decided().unwrap_or(Ok(false))
    }

    fn failure(&mut self) -> Error {
        let last = self.last.take().unwrap_or(Error::Lost(Lost::Refused));
        if self.servers == 1 {
            return last;
        }
        Error::NoMajority {
            servers: self.servers,
            failed: self.failed,
            last: Box::new(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of these votes: `y`, `n`, or `e` for an error.
    fn outcome(servers: usize, cast: &str) -> Option<Result<bool, Error>> {
        let mut votes = Votes::new(servers);
        for vote in cast.chars() {
            votes.count(match vote {
                'y' => Ok(true),
                'n' => Ok(false),
                _ => Err(Error::timed_out()),
            });
        }
        votes.decided()
    }

    #[test]
    fn a_majority_decides_as_soon_as_it_is_one() {
        assert!(matches!(outcome(5, "yyy"), Some(Ok(true))));
        assert!(matches!(outcome(5, "yeyey"), Some(Ok(true))));
        assert!(matches!(outcome(5, "nnn"), Some(Ok(false))));
        assert!(outcome(5, "yynn").is_none());
        assert!(outcome(5, "").is_none());
        assert!(matches!(outcome(1, "y"), Some(Ok(true))));
        assert!(matches!(outcome(1, "n"), Some(Ok(false))));
    }

    #[test]
    fn failures_are_no_refusals() {
        assert!(matches!(
            outcome(5, "yyeee"),
            Some(Err(Error::NoMajority {
                servers: 5,
                failed: 3,
                ..
            }))
        ));
        assert!(matches!(
            outcome(5, "yynne"),
            Some(Err(Error::NoMajority { failed: 1, .. }))
        ));
        assert!(matches!(
            outcome(1, "e"),
            Some(Err(Error::Unavailable { .. }))
        ));
        let mut votes = Votes::new(3);
        votes.count(Ok(true));
        assert!(matches!(
            votes.time_is_over(),
            Err(Error::NoMajority { failed: 2, .. })
        ));
    }
}
