//! What all clones of a client share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::bond::Bond;
use crate::clock::Moment;
use crate::command;
use crate::error::Error;
use crate::register::Orphan;
use crate::router::{Answer, Router};

/// How soon a hold is kept up, and a short first lease claimed. Work that is done sooner
/// spares both.
pub(crate) const CLAIM_AFTER: Duration = Duration::from_millis(20);

/// The longest pause between tries to give back a hold or a place.
const SETTLE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Called with each failure that no caller gets.
pub(crate) type OnFailure = Arc<dyn Fn(&Error) + Send + Sync>;

type Later = Box<dyn FnOnce() + Send>;

pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    pub(crate) default_lease: Duration,
    pub(crate) key_prefix: Vec<u8>,
    pub(crate) on_failure: Option<OnFailure>,
    /// The process that connected. A fork shares the connections with it.
    process: u32,
    /// The tasks that still give something back.
    settling: TaskTracker,
    /// Work that begins after a delay: see [`begin_later`].
    later: mpsc::UnboundedSender<Later>,
}

/// By which connections a lock is asked for.
#[derive(Clone)]
pub(crate) enum Road {
    Client,
    Session(Arc<Bond>),
}

impl Shared {
    pub(crate) fn new(
        router: Arc<Router>,
        orphans: mpsc::UnboundedReceiver<Orphan>,
        default_lease: Duration,
        key_prefix: Vec<u8>,
        on_failure: Option<OnFailure>,
    ) -> Arc<Self> {
        let (later, waiting) = mpsc::unbounded_channel();
        let shared = Arc::new(Self {
            router,
            default_lease,
            key_prefix,
            on_failure,
            process: std::process::id(),
            settling: TaskTracker::new(),
            later,
        });
        // Only a closed tracker can be waited for, and it takes further tasks all the same.
        shared.settling.close();
        shared.router.runtime.spawn(begin_later(waiting));
        let releasing = release_orphans(Arc::downgrade(&shared), orphans);
        shared.router.runtime.spawn(releasing);
        shared
    }

    /// Refuses to work in a forked process.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(Error::Forked),
        }
    }

    pub(crate) fn report(&self, error: &Error) {
        if let Some(on_failure) = &self.on_failure {
            // What is done in the background goes on if it panics.
            let _ = catch_unwind(AssertUnwindSafe(|| on_failure(error)));
        }
    }

    pub(crate) async fn ask(&self, key: &[u8], command: &Cmd) -> Result<Answer, Error> {
        self.check_process()?;
        // Boxed, so that it is not part of the type of every future that awaits it.
        Box::pin(self.router.ask(key, command, None)).await
    }

    /// Runs something in the background that [`Shared::flush`] waits for. Whoever may be
    /// called in a forked process asks for that first.
    pub(crate) fn settle(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.settling.spawn_on(work, &self.router.runtime);
    }

    pub(crate) async fn flush(&self) {
        if self.check_process().is_ok() {
            self.settling.wait().await;
        }
    }

    /// Has something begin in a moment, in the client's runtime.
    pub(crate) fn later(&self, begin: impl FnOnce() + Send + 'static) {
        let _ = self.later.send(Box::new(begin));
    }

    /// Sends a release again and again until it is answered, or until what it ends is over
    /// anyway. It takes the same road as that, so as not to overtake it.
    pub(crate) async fn release(
        self: &Arc<Self>,
        road: &Road,
        key: &[u8],
        release: &Cmd,
        until: Moment,
    ) -> Result<Answer, Error> {
        let mut backoff = Backoff::up_to(SETTLE_PAUSE_MAX);
        loop {
            self.check_process()?;
            let released = match road.is_over() {
                true => Road::Client.ask(self, key, release, None).await,
                false => road.ask(self, key, release, None).await,
            };
            match released {
                Ok(answer) => return Ok(answer),
                // There is no such hold.
                Err(error @ (Error::Stopped | Error::HoldCount(_))) => return Err(error),
                Err(error) => {
                    self.report(&error);
                    if Moment::now() >= until {
                        // In a session the server would keep it up for ever.
                        road.end();
                        return Err(error);
                    }
                }
            }
            backoff.pause_before(None).await;
        }
    }
}

impl Road {
    /// Sends a command, after listening to the channel if there is one.
    pub(crate) async fn ask(
        &self,
        shared: &Shared,
        key: &[u8],
        command: &Cmd,
        channel: Option<&[u8]>,
    ) -> Result<Answer, Error> {
        match self {
            Self::Client => shared.router.ask(key, command, channel).await,
            Self::Session(bond) => {
                let link = match channel {
                    Some(channel) => {
                        let listening = shared.router.listen(key, channel).await;
                        Some(listening.map_err(Error::unsent)?)
                    }
                    None => None,
                };
                bond.ask(&shared.router, key, command, link).await
            }
        }
    }

    /// Returns whether its connections are closed for good.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Session(bond) if bond.closed.is_closed())
    }

    /// Ends a session.
    pub(crate) fn end(&self) {
        if let Self::Session(bond) = self {
            bond.closed.close();
        }
    }

    /// Waits until its connections are closed.
    pub(crate) async fn over(&self) {
        match self {
            Self::Client => std::future::pending().await,
            Self::Session(bond) => bond.closed.closed().await,
        }
    }
}

/// Begins such work once or twice `CLAIM_AFTER` later: most of it is not needed any more then.
async fn begin_later(mut later: mpsc::UnboundedReceiver<Later>) {
    let mut begun = Vec::new();
    while later.recv_many(&mut begun, usize::MAX).await > 0 {
        sleep(CLAIM_AFTER).await;
        begun.drain(..).for_each(|begin| begin());
    }
}

/// Gives back what was granted to waits that had ended.
async fn release_orphans(shared: Weak<Shared>, mut orphans: mpsc::UnboundedReceiver<Orphan>) {
    while let Some(Orphan { name, token }) = orphans.recv().await {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let working = Arc::clone(&shared);
        shared.settle(async move {
            let (key, owner) = name;
            let release = command::release(&key, &owner, Some(token), None);
            let until = Moment::now() + working.default_lease;
            let _ = working.release(&Road::Client, &key, &release, until).await;
        });
    }
}
