//! How safe what a server has written is.

use redis_lock_testing::Setup;

/// What a server does with its writes before it replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// It has them on disk.
    Always,
    /// It has them on disk a second later.
    EverySecond,
    /// It leaves that to the operating system.
    No,
}

impl Fsync {
    /// This server with an append-only file that is written so.
    pub fn of(self, setup: &Setup) -> Setup {
        let name = match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::No => "no",
        };
        setup
            .clone()
            .options(&["--appendonly", "yes", "--appendfsync", name])
    }
}
