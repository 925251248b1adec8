//! Panics stop here. One that crossed into the server would abort it, and with
//! it every lock.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redis_module::logging::log_warning;

/// Runs `body`; if it panics, writes that to the server's log and returns `None`.
///
/// The state that `body` worked on may be left half-changed. That is why
/// nothing in this module panics on purpose, and why what is stored, not what
/// is remembered, decides who holds a lock.
pub(crate) fn catch<R>(what: impl Debug, body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let reason = panic.downcast_ref::<&str>().copied();
            let reason = reason.or_else(|| Some(panic.downcast_ref::<String>()?.as_str()));
            log_warning(format!("panic in {what:?}: {}", reason.unwrap_or_default()));
            None
        }
    }
}
