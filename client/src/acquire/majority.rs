//! Redlock: taking a lock on the majority of several independent servers.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use crate::acquire::attempt::Attempt;
use crate::acquire::handing_out::Taken;
use crate::clock::Moment;
use crate::commands;
use crate::error::Error;
use crate::holding::hold::Vote;
use crate::holding::owner::OwnerPermit;
use crate::holding::server_hold::ServerHold;
use crate::request::{Request, Wait};
use crate::servers::node::{Node, by};
use crate::shared::{Shared, as_asked};
use crate::validity::Validity;
use crate::votes::Votes;

/// Takes a lock on a majority. A task does it, so that a caller that is not polled any
/// more keeps nobody from the turns of others.
pub(crate) async fn take(
    client: &Arc<Shared>,
    nodes: &[Arc<Node>],
    request: &Request,
    wait: Wait,
    owner_permit: Option<OwnerPermit>,
) -> Result<Option<(Attempt, Taken)>, Error> {
    let (this, nodes, request) = (Arc::clone(client), nodes.to_vec(), request.clone());
    let taking = async move { take_in_turn(&this, &nodes, &request, wait, owner_permit).await };
    client.tasks.run(taking).await
}

/// Takes a lock on a majority, trying again within the wait.
///
/// Servers don't queue its waiters: those of two clients could each wait at
/// half of the servers for the other. So it asks again and again, after a
/// random time, so that two clients don't get into each other's way for ever.
async fn take_in_turn(
    client: &Shared,
    nodes: &[Arc<Node>],
    request: &Request,
    wait: Wait,
    mut owner_permit: Option<OwnerPermit>,
) -> Result<Option<(Attempt, Taken)>, Error> {
    let _permit = match wait {
        Wait::No => None,
        // One task of this client asks at a time, first come, first served.
        Wait::Until(deadline) => match by(deadline, client.queues.lock(&request.key)).await {
            Some(permit) => Some(permit),
            None => return Ok(None),
        },
    };
    let Some(response) = nodes.first().map(|node| node.timeouts().response) else {
        return Ok(None);
    };
    loop {
        // A new owner each time: what lingers of the last try can neither help
        // nor hurt this one.
        let owner = client.owner_of_attempt(request.owner.as_deref());
        let servers = nodes.iter().map(as_asked).collect();
        let mut attempt = Attempt::new(&client.tasks, servers, request, owner, owner_permit);
        let outcome = match ask_all(nodes, request, &mut attempt).await {
            Ok(Some(granted)) => return Ok(Some((attempt, granted))),
            Ok(None) => Ok(None),
            Err(error) if error.may_pass() => Err(error),
            Err(error) => return Err(error),
        };
        owner_permit = attempt.give_up();
        let pause = response * rand::random_range(50..=150) / 100;
        match wait {
            Wait::No => return outcome,
            Wait::Until(Some(deadline)) if Instant::now() + pause >= deadline => return outcome,
            Wait::Until(_) => sleep(pause).await,
        }
    }
}

/// Asks all servers at once, each for a short time.
async fn ask_all(
    nodes: &[Arc<Node>],
    request: &Request,
    attempt: &mut Attempt,
) -> Result<Option<Taken>, Error> {
    let Some(first) = nodes.first() else {
        return Ok(None);
    };
    let cmd = attempt.command();
    let sent_at = Moment::now();
    let give_up_at = Instant::now() + first.timeouts().response;
    attempt.sent();
    for (nth, node) in nodes.iter().enumerate() {
        let (node, key, cmd) = (Arc::clone(node), request.key.clone(), cmd.clone());
        let trace = attempt.trace(nth);
        trace.set(false);
        let runtime = node.runtime().clone();
        let vote = async move {
            let asked = async {
                node.connection().await?;
                trace.set(true);
                node.call(&key, &cmd).await
            };
            let answer = asked.await;
            Vote {
                nth,
                answer: answer.and_then(|reply| commands::token(&reply.value)),
            }
        };
        attempt.votes.spawn_on(vote, &runtime);
    }
    let mut votes = Votes::new(nodes.len());
    let mut tokens = vec![None; nodes.len()];
    let is_held = loop {
        match by(Some(give_up_at), attempt.votes.join_next()).await {
            Some(Some(Ok(vote))) => {
                attempt.voted(&vote);
                if let (Some(place), Ok(token)) = (tokens.get_mut(vote.nth), &vote.answer) {
                    *place = *token;
                }
                votes.count(vote.answer.map(|token| token.is_some()));
            }
            Some(Some(Err(error))) => votes.count(Err(Error::from_task(error))),
            Some(None) | None => break votes.time_is_over()?,
        }
        if let Some(decided) = votes.decided() {
            break decided?;
        }
    };
    // It may have taken so long that nothing is left of the lease.
    let is_valid = Validity::new(sent_at, request.lease)
        .left(Moment::now())
        .is_ok();
    if !is_held || !is_valid {
        return Ok(None);
    }
    let server_holds = nodes.iter().zip(tokens).enumerate();
    let server_holds = server_holds
        .map(|(nth, (node, token))| ServerHold::new(as_asked(node), token, attempt.trace(nth)));
    Ok(Some(Taken {
        server_holds: server_holds.collect(),
        sent_at,
        good_for: request.lease,
    }))
}
