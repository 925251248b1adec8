//! What all clones of a client share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::error::Error;
use crate::holding::owner::{Cohorts, Owners};
use crate::holding::renewal::Renewals;
use crate::keyed::KeyedMutex;
use crate::request::PassOn;
use crate::servers::node::{Ask, Node};
use crate::servers::waiting::Waits;
use crate::tasks::Tasks;

/// How many bytes are added to an owner's name for one attempt, at most.
pub(crate) const ATTEMPT_SUFFIX_BYTES: usize = 64;

/// What all clones of a client share.
pub(crate) struct Shared {
    pub(crate) servers: Servers,
    pub(crate) default_lease: Duration,
    pub(crate) key_prefix: Vec<u8>,
    /// Unique to this client.
    name: String,
    owners_made: AtomicU64,
    /// Which of this client's tasks wait for which lock of a Redlock.
    pub(crate) queues: KeyedMutex<Vec<u8>, ()>,
    /// The holds of owners with a name, by lock and owner.
    pub(crate) owners: Owners,
    /// Whether and how its tasks pass holds on, and which of them wait for that.
    pub(crate) pass_on: Option<PassOn>,
    pub(crate) cohorts: Arc<Cohorts>,
    pub(crate) renewals: Renewals,
    pub(crate) tasks: Tasks,
}

/// What locks are asked of.
pub(crate) enum Servers {
    /// One server, or what is asked as one.
    One {
        node: Arc<Node>,
        waits: Arc<Waits>,
        /// How many sessions there may be.
        sessions: Arc<Semaphore>,
    },
    /// The majority of several.
    Many(Vec<Arc<Node>>),
}

impl Shared {
    pub(crate) fn new(
        servers: Servers,
        default_lease: Duration,
        key_prefix: Vec<u8>,
        pass_on: Option<PassOn>,
        renewals: Renewals,
        tasks: Tasks,
    ) -> Arc<Self> {
        Arc::new(Self {
            servers,
            default_lease,
            key_prefix,
            name: format!("{:032x}", rand::random::<u128>()),
            owners_made: AtomicU64::new(0),
            queues: KeyedMutex::default(),
            owners: Owners::default(),
            pass_on,
            cohorts: Arc::default(),
            renewals,
            tasks,
        })
    }

    /// Returns an error in a process that was forked from the client's.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.tasks.process().check()
    }

    /// Waits until all that was given back is given back, or its lease is over.
    pub(crate) async fn flush(&self) {
        if self.tasks.process().is_this() {
            self.cohorts.settled().await;
        }
        self.tasks.idle().await;
    }

    /// An owner that nobody else is.
    pub(crate) fn new_owner(&self) -> Vec<u8> {
        self.suffix().into_bytes()
    }

    /// The owner of one attempt on several servers, so that nothing that lingers
    /// of another one can touch its hold.
    pub(crate) fn owner_of_attempt(&self, name: Option<&[u8]>) -> Vec<u8> {
        match name {
            None => self.new_owner(),
            Some(name) => [name, b":", self.suffix().as_bytes()].concat(),
        }
    }

    fn suffix(&self) -> String {
        let serial = self.owners_made.fetch_add(1, Ordering::Relaxed);
        format!("{}:{serial}", self.name)
    }

    /// The server, of a client that has one.
    pub(crate) fn node(&self) -> Result<&Arc<Node>, Error> {
        match &self.servers {
            Servers::One { node, .. } => Ok(node),
            Servers::Many(_) => Err(Error::Invalid(
                "the servers of a Redlock are independent: ask each of them",
            )),
        }
    }
}

/// A server as holds see it.
pub(crate) fn as_asked(node: &Arc<Node>) -> Arc<dyn Ask> {
    Arc::new(Arc::clone(node))
}
