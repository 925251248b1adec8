//! How lockctl ends.

use std::process::ExitCode;

/// The lock was not to be had. The command line can change this one.
pub const NOT_ACQUIRED: u8 = 75;

/// How lockctl ends. The help of each subcommand says why the codes are these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal, as the command did, so that a script that runs lockctl
    /// knows what Ctrl-C was for.
    Signal(i32),
}

impl Exit {
    pub const SUCCESS: Self = Self::Code(0);
    /// `break` found nothing to break, or `doctor` something wrong.
    pub const FOUND: Self = Self::Code(1);
    /// The lock was lost.
    pub const LOST: Self = Self::Code(76);
    /// lockctl itself failed.
    pub const FAILED: Self = Self::Code(125);
    /// The command can't be executed.
    pub const NOT_EXECUTABLE: Self = Self::Code(126);
    /// There is no such command.
    pub const NOT_FOUND: Self = Self::Code(127);

    /// What a shell makes of it.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
        }
    }

    /// Ends so. Returns only what is left to be returned from `main`.
    pub fn leave(self) -> ExitCode {
        if let Self::Signal(signal) = self {
            die_of(signal);
        }
        ExitCode::from(self.code())
    }
}

/// Ends this process by a signal, without a core file of its own.
#[allow(unsafe_code, reason = "only libc sets dispositions")]
fn die_of(signal: i32) {
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    // SAFETY: no handler is set that could run at a bad time.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
