//! Lending the terminal to the command.
//!
//! The command's process group is not the terminal's foreground group, so that
//! Ctrl-C reaches lockctl and whatever script it runs in, as with any other
//! program; lockctl forwards it. A command that reads from the terminal is
//! stopped by that, and only then becomes the foreground group. Ctrl-Z reaches
//! that group alone then, so lockctl takes the terminal back, stops its own
//! group, and lends the terminal again when it goes on.

use std::fs::File;

use rustix::process::{Pid, Signal, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::process_group::ProcessGroup;
use crate::signals::ignoring;

/// The terminal, if there is one.
pub struct Terminal {
    tty: Option<File>,
    lent: bool,
}

impl Terminal {
    /// The terminal that controls this process.
    pub fn open() -> Self {
        Self {
            tty: File::options().read(true).write(true).open("/dev/tty").ok(),
            lent: false,
        }
    }

    /// Makes the group the foreground group, if this process may decide it.
    pub fn lend(&mut self, group: &ProcessGroup) -> bool {
        let tty = self.tty.as_ref();
        let lent = tty.is_some_and(|tty| is_foreground(tty) && pass(tty, group.id()));
        self.lent |= lent;
        lent
    }

    /// Becomes the foreground group again. Returns false where it was not lent.
    pub fn take_back(&mut self) -> bool {
        let was_lent = std::mem::take(&mut self.lent);
        if let Some(tty) = &self.tty
            && was_lent
        {
            // Or this process would be stopped for it.
            ignoring(Signal::TTOU, || pass(tty, getpgrp()));
        }
        was_lent
    }
}

/// Not where the foreground group is outside of the namespace. There this process's own
/// group has no number, either, and could not become it again.
fn is_foreground(tty: &File) -> bool {
    tcgetpgrp(tty).is_ok_and(|foreground| foreground == getpgrp())
}

fn pass(tty: &File, group: Pid) -> bool {
    tcsetpgrp(tty, group).is_ok()
}
