//! A timer of the kernel, which the server's event loop watches as it does a socket.
//!
//! The server's own timers are late by up to two milliseconds: they count whole
//! milliseconds from now, and the event loop rounds its sleep up to whole ones
//! (`RM_CreateTimer` and `aeApiPoll` of Redis 7.0 to 8.2). This one is late by
//! what the kernel needs to wake a process.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use redis_module::raw;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::server::api::api;
use crate::server::panics;

/// A timer that is set to one moment of the wall clock at a time.
pub(super) struct KernelTimer {
    fd: OwnedFd,
}

/// What is called when the moment has come. It may not write to the keyspace.
pub(super) type Due = fn();

impl KernelTimer {
    /// Returns none if the process may not open any more files, or not enough for the
    /// server to watch this one.
    pub(super) fn new(due: Due) -> Option<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Realtime, flags).ok()?;
        // SAFETY: `on_readable` expects a `Due` for its data, and gets one.
        let status = unsafe {
            let (fd, mask) = (fd.as_raw_fd(), raw::REDISMODULE_EVENTLOOP_READABLE as c_int);
            (api().event_loop_add)(fd, mask, Some(on_readable), due as *mut c_void)
        };
        (status == raw::REDISMODULE_OK as c_int).then_some(Self { fd })
    }

    /// Sets the timer to this moment, in milliseconds since 1970, and no other.
    /// Returns whether the kernel took it.
    pub(super) fn set(&self, due_ms: i64) -> bool {
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let due = Timespec {
            tv_sec: due_ms / 1000,
            tv_nsec: due_ms % 1000 * 1_000_000,
        };
        let once = Itimerspec {
            it_interval: never,
            it_value: due,
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &once).is_ok()
    }
}

impl Drop for KernelTimer {
    fn drop(&mut self) {
        let mask = raw::REDISMODULE_EVENTLOOP_READABLE as c_int;
        // SAFETY: the server watches this file, which is closed after this.
        unsafe { (api().event_loop_del)(self.fd.as_raw_fd(), mask) };
    }
}

unsafe extern "C" fn on_readable(fd: c_int, due: *mut c_void, _mask: c_int) {
    panics::catch("a timer of the kernel", || {
        // SAFETY: the server watches the file, so it is open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut times_due = [0; 8];
        // The timer may have been set to a later moment in between.
        if rustix::io::read(fd, &mut times_due).is_err() {
            return;
        }
        // SAFETY: `KernelTimer::new` is the only place that has the server call
        // this, and the data is a `Due`.
        let due = unsafe { std::mem::transmute::<*mut c_void, Due>(due) };
        due();
    });
}
