//! The process that connected.

use crate::error::Error;

/// The process that connected. One that was forked from it has its connections
/// but none of its threads, so it must not use them.
#[derive(Clone, Copy)]
pub(crate) struct Process(u32);

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Returns whether this is still the same process.
    pub(crate) fn is_this(self) -> bool {
        self.0 == std::process::id()
    }

    /// Returns an error if it is not.
    pub(crate) fn check(self) -> Result<(), Error> {
        match self.is_this() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }
}
