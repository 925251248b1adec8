//! What goes on after a call has returned.

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::process::Process;

/// Tasks in the runtime in which the client was connected, whichever runtime
/// makes the calls.
#[derive(Clone)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    runtime: Handle,
    process: Process,
}

impl Tasks {
    /// Tasks for this runtime, of this process.
    pub(crate) fn new(runtime: Handle) -> Self {
        let tracker = TaskTracker::new();
        // A closed tracker takes tasks all the same, and tells when there are none.
        tracker.close();
        Self {
            tracker,
            runtime,
            process: Process::this(),
        }
    }

    /// Starts a task. Where the runtime has shut down, nothing happens.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn_on(task, &self.runtime);
    }

    /// Waits until no task is left. In a process that was forked nobody would
    /// end them, so it does not.
    pub(crate) async fn idle(&self) {
        if self.process.is_this() {
            self.tracker.wait().await;
        }
    }

    /// The process that connected.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}
