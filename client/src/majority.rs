//! Redlock: a lock on the majority of several independent servers.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use crate::acquire::{Taken, queue};
use crate::commands;
use crate::error::Error;
use crate::hold::{Place, margin};
use crate::lock::{Lock, Wait};
use crate::node::by;
use crate::pending::{OwnerTurn, Pending};
use crate::votes::Votes;

/// Takes a lock on a majority, trying again within the wait.
///
/// Servers don't queue its waiters: those of two clients could each wait at
/// half of the servers for the other. So it asks again and again, after a
/// random time, so that two clients don't get into each other's way for ever.
pub(crate) async fn take(
    lock: &Lock,
    wait: Wait,
    mut turn: Option<OwnerTurn>,
) -> Result<Option<Taken>, Error> {
    let inner = &lock.inner;
    let _place = match wait {
        Wait::No => None,
        Wait::Until(deadline) => match queue(lock, deadline).await {
            Some((place, _)) => Some(place),
            None => return Ok(None),
        },
    };
    loop {
        // A new owner each time: what lingers of the last try can neither help
        // nor hurt this one.
        let mut pending = Pending::new(lock, turn);
        let outcome = match ask_all(lock, &mut pending).await {
            Ok(Some((places, sent_at))) => {
                return Ok(Some(Taken {
                    pending,
                    places,
                    sent_at,
                }));
            }
            Ok(None) => Ok(None),
            Err(error) if error.may_pass() => Err(error),
            Err(error) => return Err(error),
        };
        turn = pending.give_up();
        let pause = inner.nodes[0].patience().response * rand::random_range(50..=150) / 100;
        match wait {
            Wait::No => return outcome,
            Wait::Until(Some(deadline)) if Instant::now() + pause >= deadline => return outcome,
            Wait::Until(_) => sleep(pause).await,
        }
    }
}

/// Asks all servers at once, each for a short time.
async fn ask_all(
    lock: &Lock,
    pending: &mut Pending,
) -> Result<Option<(Vec<Place>, Instant)>, Error> {
    let nodes = &lock.inner.nodes;
    let cmd = pending.command();
    let sent_at = Instant::now();
    pending.sent();
    for (nth, node) in nodes.iter().enumerate() {
        let (node, key, cmd) = (Arc::clone(node), pending.key.clone(), cmd.clone());
        pending.asks.spawn(async move {
            let reply = node.call(&key, &cmd).await;
            (nth, reply.and_then(|reply| commands::token(&reply.value)))
        });
    }
    let give_up_at = sent_at + nodes[0].patience().response;
    let mut votes = Votes::new(nodes.len());
    let mut tokens = vec![None; nodes.len()];
    let is_held = loop {
        match by(Some(give_up_at), pending.asks.join_next()).await {
            Some(Some(Ok((nth, answer)))) => {
                tokens[nth] = answer.as_ref().ok().copied().flatten();
                votes.count(answer.map(|token| token.is_some()));
            }
            // The runtime shuts down.
            Some(Some(Err(_))) => votes.count(Err(Error::timed_out())),
            Some(None) | None => break votes.time_is_over()?,
        }
        if let Some(decided) = votes.decided() {
            break decided?;
        }
    };
    // It may have taken so long that nothing is left of the lease.
    let valid_until = sent_at + (pending.lease - margin(pending.lease));
    if !is_held || Instant::now() >= valid_until {
        return Ok(None);
    }
    let places = nodes.iter().zip(tokens).map(|(node, token)| Place {
        node: Arc::clone(node),
        token,
    });
    Ok(Some((places.collect(), sent_at)))
}
