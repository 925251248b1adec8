//! Processes that a test starts.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has a process get this signal when the thread that starts it ends, so that
/// a test that is killed leaves nothing behind.
pub fn end_with_test(command: &mut Command, signal: Signal) -> &mut Command {
    let before_exec =
        move || set_parent_process_death_signal(Some(signal)).map_err(std::io::Error::from);
    // SAFETY: it makes one system call, and neither allocates nor locks.
    unsafe { command.pre_exec(before_exec) }
}
