//! What must hold of every step.

use std::collections::BTreeSet;

use super::{Checked, Seen, ensure};
use crate::error::LockError;
use crate::explore::cast::{key_name, owner_name};
use crate::explore::scope::{Ask, CLAIM_MS, LEASE_MS};
use crate::explore::world::World;
use crate::lock::Released;
use crate::queue::WaiterId;
use crate::request::{ClientId, ReleaseExtent, ReleaseRequest, RenewRequest};
use crate::table::{Answer, HolderView};
use crate::token::FencingToken;

pub(super) fn tokens_rise(world: &mut World, seen: &Seen) -> Checked {
    let mut tokens: Vec<Option<FencingToken>> = vec![None; world.cast.owners.len()];
    for holder in &seen.before {
        let number = world.owner_number(&holder.owner);
        tokens[number] = holder.token.filter(|_| !seen.is_released_by(world, number));
    }
    let handed = seen
        .answers
        .iter()
        .filter_map(|(_, at, _, answer)| match answer {
            Answer::Granted(token) => Some((*at, *token)),
            _ => None,
        });
    let asker = seen.asker.zip(seen.granted);
    let mut granted: Vec<(usize, FencingToken)> = handed.chain(asker).collect();
    if seen.kept.is_some() {
        // Others may have been served behind it.
        granted.sort_by_key(|&(_, token)| token);
    }
    for (at, token) in granted {
        let number = world.cast.owner_of[at];
        let is_new = tokens[number].is_none();
        let is_right = match tokens[number] {
            Some(had) => had == token,
            None => world.greatest.is_none_or(|greatest| greatest < token),
        };
        if !is_right {
            return Err(format!(
                "{} was granted {} by a token that is {}",
                world.cast.client_name(at),
                key_name(seen.key),
                if is_new {
                    "no greater than one before"
                } else {
                    "not that of its holds"
                }
            ));
        }
        tokens[number] = Some(token);
        world.greatest = world.greatest.max(Some(token));
    }
    Ok(())
}

pub(super) fn a_lease_begins_at_its_grant(world: &World, seen: &Seen) -> Checked {
    let lock = world.data.read(seen.key).unwrap_or_default();
    for (_, at, ask, answer) in &seen.answers {
        let Answer::Granted(token) = answer else {
            continue;
        };
        let holder = lock.holder(world.owner(*at));
        let Some(holder) = holder.filter(|one| one.token == Some(*token)) else {
            continue;
        };
        let lease_ms = if ask.place { CLAIM_MS } else { LEASE_MS };
        let until_ms = world.now_ms + lease_ms;
        if holder.lease_end_ms.is_some_and(|end_ms| end_ms < until_ms) {
            return Err(format!(
                "the lease of {} ends {} ms too early",
                world.cast.client_name(*at),
                until_ms - holder.lease_end_ms.unwrap_or(0)
            ));
        }
    }
    Ok(())
}

/// But for re-entries, which nobody waits for.
pub(super) fn grants_come_in_the_order_of_requests(world: &World, seen: &Seen) -> Checked {
    let waiting = world.still_waiting(seen.key);
    let held = seen.before.iter().map(|one| world.owner_number(&one.owner));
    let held = held.filter(|&number| !seen.is_released_by(world, number));
    let mut hold: BTreeSet<usize> = held.collect();
    let mut last = None;
    for (id, at, _, answer) in &seen.answers {
        let number = world.cast.owner_of[*at];
        if !matches!(answer, Answer::Granted(_)) || !hold.insert(number) {
            continue;
        }
        let passed = waiting.iter().find(|(other, ..)| other < id);
        let is_passed = |&(other, passed, ..): &(WaiterId, usize, Ask)| {
            Some(other) != seen.queued && passed != *at
        };
        if last > Some(*id) || passed.is_some_and(is_passed) {
            let (client, key) = (world.cast.client_name(*at), key_name(seen.key));
            return Err(format!(
                "{client} was handed {key} before one that asked for it earlier"
            ));
        }
        last = Some(*id);
    }
    Ok(())
}

pub(super) fn no_newcomer_passes_the_queue(world: &World, seen: &Seen) -> Checked {
    let (Some(at), Some(_)) = (seen.asker, seen.granted) else {
        return Ok(());
    };
    let number = world.cast.owner_of[at];
    let held = seen
        .before
        .iter()
        .any(|one| world.owner_number(&one.owner) == number);
    let handed = seen
        .answers
        .iter()
        .any(|(_, at, ..)| world.cast.owner_of[*at] == number);
    let waiting = world.still_waiting(seen.key);
    let is_behind = |id: WaiterId| seen.kept.is_some_and(|kept| kept < id);
    ensure(
        held || handed || waiting.iter().all(|&(id, ..)| is_behind(id)),
        || {
            format!(
                "{} was granted {} at once, and others wait for it",
                world.cast.client_name(at),
                key_name(seen.key)
            )
        },
    )
}

pub(super) fn a_released_hold_is_bound_no_more(world: &World, seen: &Seen) -> Checked {
    if !seen.released {
        return Ok(());
    }
    let lock = world.data.read(seen.key).unwrap_or_default();
    let asker = seen.asker.map(|at| world.cast.owner_of[at]);
    for (number, owner) in world.cast.owners.iter().enumerate() {
        let concerns = seen.held_before(owner) && asker.is_none_or(|asker| asker == number);
        let is_bound = world
            .table
            .bound_client(world.cast.key(seen.key), owner)
            .is_some();
        if concerns && is_bound && lock.holder(owner).is_none() {
            let (owner, key) = (owner_name(number), key_name(seen.key));
            return Err(format!(
                "{owner} holds {key} no more, and is bound to a connection"
            ));
        }
    }
    Ok(())
}

/// A release ends only holds of its owner, and of the token that it names.
pub(in crate::explore) fn releases_need_a_hold(
    held: &Option<HolderView>,
    request: &ReleaseRequest,
    result: &Result<Released, LockError>,
) -> Checked {
    let has_token = |held: &HolderView| request.token.is_none() || held.token == request.token;
    let held = held.as_ref().filter(|held| has_token(held));
    let holds = held.map_or(0, |held| held.holds);
    let left = match request.extent {
        ReleaseExtent::One => holds - 1,
        ReleaseExtent::All => 0,
        ReleaseExtent::Hold(hold) => hold.count_without(),
    };
    let is_right = match result {
        // A resent release of the first hold is answered as the first time.
        Ok(Released::LastHold) => {
            left == 0 && (holds > 0 || matches!(request.extent, ReleaseExtent::Hold(_)))
        }
        Ok(Released::StillHeld) => left > 0,
        Ok(Released::NotHeld) => holds == 0,
        Err(_) => matches!(request.extent, ReleaseExtent::Hold(_)),
    };
    ensure(is_right, || {
        format!("a release of an owner with {holds} hold(s) was answered by {result:?}")
    })
}

pub(in crate::explore) fn renewals_need_a_hold(
    held: &Option<HolderView>,
    request: &RenewRequest,
    renewed: bool,
) -> Checked {
    let has_token = |held: &&HolderView| request.token.is_none() || held.token == request.token;
    ensure(held.as_ref().filter(has_token).is_some() == renewed, || {
        format!("a renewal was answered by {}", i32::from(renewed))
    })
}

/// The server closes no connection that has not lost a session's hold.
pub(in crate::explore) fn who_is_closed_has_lost_a_session(
    world: &World,
    client: ClientId,
) -> Checked {
    let Some(at) = world.connection_of(client) else {
        return Ok(());
    };
    let was_bound = world
        .known
        .iter()
        .flatten()
        .any(|known| known.tied.is_some_and(|tied| tied.has(client)));
    // Before it is closed, its owner may release the lock elsewhere.
    ensure(was_bound || world.cast.scope.acks, || {
        format!(
            "{} is closed, and holds nothing by its connection",
            world.cast.client_name(at)
        )
    })
}
