//! Makes of a grant a hold that is looked after.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::attempt::Attempt;
use crate::clock::Moment;
use crate::error::Error;
use crate::holding::binding::Binding;
use crate::holding::hold::{Grant, Hold};
use crate::holding::owner::{Joined, Passing, SharedHold};
use crate::holding::server_hold::ServerHold;
use crate::request::Request;
use crate::shared::Shared;
use crate::validity::whole_ms;

/// What the servers granted.
pub(crate) struct Taken {
    pub(crate) server_holds: Vec<ServerHold>,
    /// When the command was sent from which the lease counts.
    pub(crate) sent_at: Moment,
    /// For how long it is good from then on, at least.
    pub(crate) good_for: Duration,
}

/// Makes a hold of a grant, with one guard that nobody has yet.
pub(crate) fn hand_out(
    client: &Shared,
    request: &Request,
    session: Option<&Arc<Binding>>,
    attempt: Attempt,
    taken: Taken,
) -> Result<Joined, Error> {
    let owner = attempt.owner.clone();
    let handover = attempt.granted();
    let grant = Grant {
        key: request.key.clone(),
        owner,
        mode: request.mode,
        lease: request.lease,
        server_holds: taken.server_holds,
        sent_at: taken.sent_at,
        good_for: taken.good_for,
        session: session.cloned(),
        in_use: handover.in_use,
        stragglers: handover.stragglers,
    };
    let hold = Arc::new(Hold::new(grant, client.tasks.runtime().clone()));
    if let Some(session) = session {
        session.bind(hold.validity());
    }
    let id = request.owner.clone();
    let id = id.map(|owner| (request.key.clone(), owner));
    let owner = id.map(|id| (client.owners.clone(), id));
    let passing = request.pass_on.map(|pass_on| Passing {
        cohorts: Arc::clone(&client.cohorts),
        cohort: (request.key.clone(), whole_ms(request.lease)),
        left: pass_on.at_most,
        until: taken.sent_at + pass_on.within,
    });
    let shared = SharedHold::new(Arc::clone(&hold), client.tasks.clone(), owner, passing);
    let shared = Arc::new(shared);
    if let Some(mut owner) = handover.owner_permit {
        owner.set(&shared);
    }
    let mut joined = Joined::new(shared);
    // An answer may take longer than the lease.
    hold.valid_for().map_err(Error::Lost)?;
    joined.wish = client.renewals.add(&hold, request.renew);
    tracing::debug!(
        key = %String::from_utf8_lossy(&hold.key),
        owner = %String::from_utf8_lossy(&hold.owner),
        token = hold.token,
        "a lock was taken"
    );
    Ok(joined)
}
