//! Elsewhere than on Linux there is no [`KernelTimer`]: the server's own timers do.

/// There is none.
pub(super) enum KernelTimer {}

/// What would be called when the moment has come.
pub(super) type Due = fn();

impl KernelTimer {
    /// Returns none.
    pub(super) fn new(_due: Due) -> Option<Self> {
        None
    }

    /// There is none to set.
    pub(super) fn set(&self, _due_ms: i64) -> bool {
        match *self {}
    }
}
