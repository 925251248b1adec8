//! Reads the words of a command, left to right. Every usage error of an option
//! is born here: one that is unknown, repeated or unfinished is a syntax error.

use crate::error::Usage;
use crate::lock::fence::Fence;
use crate::lock::request::{HoldNumber, Lease, Limit, Owner, Timeout};
use crate::lock::stored::parse_integer;

/// The bytes of `SESSION`, the longest name of an option.
const LONGEST_OPTION: usize = 7;

/// The words that are still to be read.
pub(super) struct Args<'a> {
    words: &'a [&'a [u8]],
}

impl<'a> Args<'a> {
    /// Reads these words.
    pub(super) const fn new(words: &'a [&'a [u8]]) -> Self {
        Self { words }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    /// The owner, which every command names.
    pub(super) fn owner(&mut self) -> Result<Owner, Usage> {
        Owner::new(self.next().ok_or(Usage::Syntax)?)
    }

    /// Reads options until the words end. `read` gets each option's name in
    /// capitals and reads its value, if it has one, from these words.
    pub(super) fn options(
        mut self,
        mut read: impl FnMut(&[u8], &mut Self) -> Result<(), Usage>,
    ) -> Result<(), Usage> {
        while let Some(name) = self.next() {
            let mut capitals = [0; LONGEST_OPTION];
            // A longer word is no option, in whatever letters.
            let capitals = capitals.get_mut(..name.len()).ok_or(Usage::Syntax)?;
            capitals.copy_from_slice(name);
            capitals.make_ascii_uppercase();
            read(capitals, &mut self)?;
        }
        Ok(())
    }

    /// An option without a value.
    pub(super) fn flag(&mut self, seen: &mut bool) -> Result<(), Usage> {
        if std::mem::replace(seen, true) {
            return Err(Usage::Syntax);
        }
        Ok(())
    }

    /// `LEASE ms`
    pub(super) fn lease(&mut self, into: &mut Option<Lease>) -> Result<(), Usage> {
        self.number(into, Usage::NotAnInteger, Lease::from_ms)
    }

    /// `BLOCK ms`
    pub(super) fn timeout(&mut self, into: &mut Option<Timeout>) -> Result<(), Usage> {
        self.number(into, Usage::TimeoutOutOfRange, Timeout::from_ms)
    }

    /// `HOLD n`
    pub(super) fn hold(&mut self, into: &mut Option<HoldNumber>) -> Result<(), Usage> {
        self.number(into, Usage::NotAnInteger, HoldNumber::new)
    }

    /// `LIMIT n`
    pub(super) fn limit(&mut self, into: &mut Option<Limit>) -> Result<(), Usage> {
        self.number(into, Usage::NotAnInteger, Limit::from_count)
    }

    /// `COUNT n`
    pub(super) fn count(&mut self, into: &mut Option<usize>) -> Result<(), Usage> {
        let count = |n| usize::try_from(n).ok().filter(|&n| n >= 1);
        self.number(into, Usage::NotAnInteger, |n| {
            count(n).ok_or(Usage::CountOutOfRange)
        })
    }

    /// `FENCE token`
    pub(super) fn fence(&mut self, into: &mut Option<Fence>) -> Result<(), Usage> {
        self.number(into, Usage::NotAnInteger, Fence::new)
    }

    fn number<T>(
        &mut self,
        into: &mut Option<T>,
        not_an_integer: Usage,
        check: impl FnOnce(i64) -> Result<T, Usage>,
    ) -> Result<(), Usage> {
        let word = self.next().ok_or(Usage::Syntax)?;
        if into.is_some() {
            return Err(Usage::Syntax);
        }
        *into = Some(check(parse_integer(word).ok_or(not_an_integer)?)?);
        Ok(())
    }
}
