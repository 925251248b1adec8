//! Lending the terminal to the command.
//!
//! The command's process group is not the terminal's foreground group, so that
//! Ctrl-C reaches lockctl and whatever script it runs in, as with any other
//! program; lockctl forwards it. A command that reads from the terminal is
//! stopped by that, and only then becomes the foreground group.

use std::fs::File;

use rustix::process::{Pid, Signal};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::members::own_group;
use super::process_group::ProcessGroup;
use crate::signals::ignoring;

/// Names the group of the outermost lockctl, which has the terminal for those under it.
pub const GROUP: &str = "LOCKCTL_GROUP";

/// The group of the outermost lockctl.
pub fn outermost() -> Option<Pid> {
    let outer = std::env::var(GROUP).ok().and_then(|text| text.parse().ok());
    outer.and_then(Pid::from_raw).or_else(own_group)
}

/// The terminal, if there is one.
pub struct Terminal {
    tty: Option<File>,
    /// By which group.
    lent: Option<Pid>,
}

impl Terminal {
    /// The terminal that controls this process.
    pub fn open() -> Self {
        Self {
            tty: File::options().read(true).write(true).open("/dev/tty").ok(),
            lent: None,
        }
    }

    /// Makes the group the foreground group, if lockctl may decide it: not where the
    /// foreground group is a stranger, or outside of the namespace.
    pub fn lend(&mut self, group: &ProcessGroup) -> bool {
        let Some(tty) = &self.tty else {
            return false;
        };
        let foreground = tcgetpgrp(tty).ok();
        let own = foreground.filter(|it| [own_group(), outermost()].contains(&Some(*it)));
        let lent = own.filter(|_| pass(tty, group.id()));
        self.lent = self.lent.or(lent);
        lent.is_some()
    }

    /// Takes it back, if it was lent.
    pub fn take_back(&mut self) {
        if let (Some(tty), Some(group)) = (&self.tty, self.lent.take()) {
            pass(tty, group);
        }
    }
}

fn pass(tty: &File, group: Pid) -> bool {
    // Or this process would be stopped for it, where it is in the background.
    ignoring(Signal::TTOU, || tcsetpgrp(tty, group).is_ok())
}
