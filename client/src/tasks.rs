//! What goes on after a call has returned.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::error::Error;
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

    /// Has a task do this, as long as somebody waits for it. Once nobody does, what it
    /// drops is waited for as any other task.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let mut awaited = Awaited {
            task: Some(self.runtime.spawn(work)),
            tasks: self,
        };
        let done = match &mut awaited.task {
            Some(task) => task.await,
            None => return Err(Error::Stopped),
        };
        awaited.task = None;
        done.unwrap_or_else(|error| Err(Error::from_task(error)))
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

/// A task for which somebody waits.
struct Awaited<'a, T: Send + 'static> {
    task: Option<JoinHandle<T>>,
    tasks: &'a Tasks,
}

impl<T: Send + 'static> Drop for Awaited<'_, T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take()
            && self.tasks.process.is_this()
        {
            task.abort();
            self.tasks.spawn(async { drop(task.await) });
        }
    }
}
