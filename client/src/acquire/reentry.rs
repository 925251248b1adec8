//! One guard more for an owner that has the lock already.

use std::sync::Arc;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::holding::binding::Binding;
use crate::holding::hold::Hold;
use crate::holding::owner::{Joined, OwnerPermit};
use crate::request::{Request, Wait};
use crate::shared::{Servers, Shared};

/// Joins the hold of the owner's other guards, if there is one, trying again
/// within the wait where a fail-over or a lost connection comes between.
pub(crate) async fn re_enter(
    client: &Shared,
    request: &Request,
    session: Option<&Arc<Binding>>,
    wait: Wait,
    owner_permit: &OwnerPermit,
) -> Result<Option<Joined>, Error> {
    let mut backoff = Backoff::default();
    loop {
        match (try_once(client, request, session, owner_permit).await, wait) {
            (Err(error), Wait::Until(deadline)) if error.may_pass() => {
                if !backoff.pause_before(deadline).await {
                    return Err(error);
                }
            }
            (decided, _) => return decided,
        }
    }
}

/// The lease starts anew, which also shows that the hold is still there. Only
/// then is it an error to ask for more than that hold is.
async fn try_once(
    client: &Shared,
    request: &Request,
    session: Option<&Arc<Binding>>,
    owner_permit: &OwnerPermit,
) -> Result<Option<Joined>, Error> {
    if let Some(shared) = owner_permit.join() {
        let mut joined = Joined::new(Arc::clone(&shared));
        let hold = &shared.hold;
        let beyond = beyond(request, session, hold);
        let lease = match beyond {
            Some(_) => hold.lease(),
            None => request.lease,
        };
        match (hold.renew(lease).await, beyond) {
            (Ok(()), Some(error)) => return Err(error),
            (Ok(()), None) => {
                joined.wish = client.renewals.add(hold, request.renew);
                return Ok(Some(joined));
            }
            // It was lost: this is a new hold. What may be left of the old one has to
            // go first, or its guards would release the new one.
            (Err(Error::Lost(_)), _) => shared.begin_release(),
            (Err(error), _) => return Err(error),
        }
    }
    if let Servers::One { .. } = client.servers
        && let Some(last) = owner_permit.releasing()
    {
        // Its release may still be on the way, and must not meet the new hold.
        match last.released().await {
            Ok(()) | Err(Error::Lost(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(forgotten) = owner_permit.forgotten() {
        // Its renewal may be on the way, and must not come after the new one's lease.
        forgotten.end_renewals().await;
    }
    Ok(None)
}

/// What is asked for that this hold is not.
fn beyond(request: &Request, session: Option<&Arc<Binding>>, hold: &Hold) -> Option<Error> {
    if request.mode.is_stricter_than(hold.mode) {
        return Some(Error::Upgrade {
            message: "the owner holds this lock in a looser mode; release it before asking for a \
                      stricter one"
                .into(),
        });
    }
    let session = session?;
    let is_bound_to_it = hold
        .session
        .as_ref()
        .is_some_and(|bound| Arc::ptr_eq(bound, session));
    (!is_bound_to_it).then_some(Error::Invalid(
        "the owner holds this lock outside of this session; release it before asking for it in \
         the session",
    ))
}
