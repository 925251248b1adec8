//! Tasks of one client that take a lock together, and pass it on among themselves.
//!
//! They stand in one line here, and one task of the client stands in the server's queue
//! for all of them, for as long as any of them waits. So each grant of the server goes to
//! the first in line, and whoever releases it passes the same hold on to the next: as
//! often, and for as long after the grant, as the client allows. Then the hold goes back
//! to the server, in whose queue the next place of the client stands behind all that came
//! before it.
//!
//! The field calls it lock cohorting (Dice, Marathe, Shavit).

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::acquire::handing_out::hand_out;
use crate::acquire::single;
use crate::backoff::Backoff;
use crate::error::Error;
use crate::holding::owner::{CohortName, Cohorts, Joined};
use crate::request::{Request, Wait};
use crate::servers::node::by;
use crate::shared::{Servers, Shared};
use crate::validity::whole_ms;

/// A task that is not polled for this long when its turn has come misses it.
const MISSED_AFTER: Duration = Duration::from_secs(2);

/// How often to look for such tasks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits in the line of this request's cohort.
pub(crate) async fn take(
    client: &Arc<Shared>,
    request: &Request,
    wait: Wait,
) -> Result<Option<Joined>, Error> {
    let Wait::Until(deadline) = wait else {
        return Box::pin(take_once(client, request, wait)).await;
    };
    let name = (request.key.clone(), whole_ms(request.lease));
    loop {
        let (position, emptied) = client.cohorts.enter(&name);
        if let Some(emptied) = emptied {
            let keeper = Keeper {
                client: Arc::clone(client),
                name: name.clone(),
                emptied,
                has_ended: false,
            };
            let runtime = client.tasks.runtime();
            runtime.spawn(keeper.keep_place(request.clone()));
        }
        match by(deadline, position).await {
            Some(Some(offer)) => {
                let mut joined = offer?;
                let hold = joined.hold();
                // It may have taken a while until it was polled.
                if let Some(hold) = hold.filter(|hold| hold.valid_for().is_ok()) {
                    joined.wish = client.renewals.add(hold, request.renew);
                    return Ok(Some(joined));
                }
            }
            // It has missed its turn.
            Some(None) => {}
            // It tells why nobody got the lock, if the server does not answer.
            None => return Box::pin(take_once(client, request, Wait::No)).await,
        }
    }
}

/// Takes the lock from the server.
async fn take_once(
    client: &Shared,
    request: &Request,
    wait: Wait,
) -> Result<Option<Joined>, Error> {
    let Servers::One { node, waits, .. } = &client.servers else {
        return Err(Error::Invalid("a cohort is of one server"));
    };
    let taken = single::take(client, (node, waits), request, wait, None, None).await?;
    let Some((attempt, granted)) = taken else {
        return Ok(None);
    };
    hand_out(client, request, None, attempt, granted).map(Some)
}

/// What stands in the server's queue for a cohort.
struct Keeper {
    client: Arc<Shared>,
    name: CohortName,
    /// Told when nobody is left in line.
    emptied: Arc<Notify>,
    has_ended: bool,
}

impl Keeper {
    /// Takes the lock for the first in line, again and again, until nobody waits.
    async fn keep_place(mut self, request: Request) {
        let mut backoff = Backoff::default();
        while !self.ends() {
            let Some(taken) = self.take_while_waited_for(&request).await else {
                continue;
            };
            match taken.transpose() {
                Some(taken) => {
                    backoff = Backoff::default();
                    // Where nobody waits any more, the hold is released with this.
                    drop(self.client.cohorts.offer(&self.name, taken));
                }
                // Only `CLIENT UNBLOCK` ends such a wait without the lock.
                None => drop(backoff.pause_before(None).await),
            }
        }
    }

    /// None if nobody was left. The place in the server's queue is given up then, before
    /// the line ends.
    async fn take_while_waited_for(
        &self,
        request: &Request,
    ) -> Option<Result<Option<Joined>, Error>> {
        let mut taking = pin!(take_once(&self.client, request, Wait::Until(None)));
        loop {
            tokio::select! {
                biased;
                taken = &mut taking => return Some(taken),
                () = self.emptied.notified() => if self.client.cohorts.is_empty(&self.name) {
                    return None;
                }
            }
        }
    }

    fn ends(&mut self) -> bool {
        self.has_ended = self.client.cohorts.end_if_empty(&self.name);
        self.has_ended
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The runtime has ended.
        while !self.has_ended && !self.ends() {
            let stopped = Err(Error::Stopped);
            drop(self.client.cohorts.offer(&self.name, stopped));
        }
    }
}

/// Takes back what was offered to tasks that are not polled, as long as the client is
/// there.
pub(crate) async fn take_back_again_and_again(cohorts: Weak<Cohorts>) {
    loop {
        sleep(LOOK_EVERY).await;
        match cohorts.upgrade() {
            // Each is passed on to the next one, or released.
            Some(cohorts) => drop(cohorts.take_back(MISSED_AFTER)),
            None => return,
        }
    }
}
