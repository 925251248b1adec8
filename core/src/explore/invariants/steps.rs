//! What must hold of every step.

use std::collections::BTreeSet;

use super::Seen;
use crate::error::LockError;
use crate::explore::scope::Ask;
use crate::explore::world::World;
use crate::lock::Released;
use crate::queue::WaiterId;
use crate::request::{ClientId, ReleaseExtent, ReleaseRequest, RenewRequest};
use crate::table::HolderView;
use crate::token::FencingToken;

/// And a re-entry has the token of its owner's holds.
pub(super) fn tokens_rise(world: &mut World, seen: &Seen) -> bool {
    let mut tokens: Vec<Option<FencingToken>> = vec![None; world.cast.owners.len()];
    for holder in &seen.before {
        let number = world.owner_number(&holder.owner);
        tokens[number] = holder.token.filter(|_| !seen.is_released_by(world, number));
    }
    let handed = seen.handed().map(|(_, at, _, token)| (at, token));
    let asker = seen.asker.zip(seen.granted);
    let mut granted: Vec<(usize, FencingToken)> = handed.chain(asker).collect();
    if seen.kept.is_some() {
        // Others may have been served behind it.
        granted.sort_by_key(|&(_, token)| token);
    }
    granted.into_iter().all(|(at, token)| {
        let had = tokens[world.cast.owner_of[at]].replace(token);
        let is_right = match had {
            Some(had) => had == token,
            None => world.greatest < Some(token),
        };
        world.greatest = world.greatest.max(Some(token));
        is_right
    })
}

pub(super) fn a_lease_begins_at_its_grant(world: &World, seen: &Seen) -> bool {
    let lock = world.data.read(seen.key).unwrap_or_default();
    seen.handed().all(|(_, at, ask, token)| {
        let lease_ms = match ask.place {
            true => world.first_lease(ask),
            false => ask.lease_ms,
        };
        let holder = lock.holder(world.owner(at));
        let end_ms = holder
            .filter(|one| one.token == Some(token))
            .and_then(|one| one.lease_end_ms);
        end_ms.is_none_or(|end_ms| end_ms >= world.now_ms + lease_ms)
    })
}

/// But for re-entries, which nobody waits for.
pub(super) fn grants_come_in_the_order_of_requests(world: &World, seen: &Seen) -> bool {
    let waiting = world.still_waiting(seen.key);
    let held = seen.before.iter().map(|one| world.owner_number(&one.owner));
    let held = held.filter(|&number| !seen.is_released_by(world, number));
    let mut hold: BTreeSet<usize> = held.collect();
    let mut last = None;
    seen.handed().all(|(id, at, ..)| {
        if !hold.insert(world.cast.owner_of[at]) {
            return true;
        }
        let first = waiting.iter().find(|&&(other, ..)| other < id);
        let is_passed = |&(other, passed, _): &(WaiterId, usize, Ask)| {
            Some(other) != seen.queued && passed != at
        };
        let is_right = last <= Some(id) && !first.is_some_and(is_passed);
        last = Some(id);
        is_right
    })
}

pub(super) fn no_newcomer_passes_the_queue(world: &World, seen: &Seen) -> bool {
    let (Some(at), Some(_)) = (seen.asker, seen.granted) else {
        return true;
    };
    let number = world.cast.owner_of[at];
    let mut answers = seen.answers.iter();
    let waiting = world.still_waiting(seen.key);
    let is_behind = |id: WaiterId| seen.kept.is_some_and(|kept| kept < id);
    seen.held_before(&world.cast.owners[number])
        || answers.any(|(_, at, ..)| world.cast.owner_of[*at] == number)
        || waiting.iter().all(|&(id, ..)| is_behind(id))
}

pub(super) fn a_released_hold_is_bound_no_more(world: &World, seen: &Seen) -> bool {
    let (lock, key) = (
        world.data.read(seen.key).unwrap_or_default(),
        world.cast.key(seen.key),
    );
    let mut owners = world.cast.owners.iter().enumerate();
    owners.all(|(number, owner)| {
        let concerns = seen.held_before(owner) && seen.is_released_by(world, number);
        let is_bound = world.table.bound_client(key, owner).is_some();
        !concerns || !is_bound || lock.holder(owner).is_some()
    })
}

/// A release ends only holds of its owner, and of the token that it names.
pub(in crate::explore) fn releases_need_a_hold(
    _: &World,
    held: &Option<HolderView>,
    request: &ReleaseRequest,
    result: &Result<Released, LockError>,
) -> bool {
    let has_token = |held: &HolderView| request.token.is_none() || held.token == request.token;
    let held = held.as_ref().filter(|held| has_token(held));
    let holds = held.map_or(0, |held| held.holds);
    let left = match request.extent {
        ReleaseExtent::One => holds - 1,
        ReleaseExtent::All => 0,
        ReleaseExtent::Hold(hold) => hold.count_without(),
    };
    let is_of_one = matches!(request.extent, ReleaseExtent::Hold(_));
    match result {
        // A resent release of the first hold is answered as the first time.
        Ok(Released::LastHold) => left == 0 && (holds > 0 || is_of_one),
        Ok(Released::StillHeld) => left > 0,
        Ok(Released::NotHeld) => holds == 0,
        Err(_) => is_of_one,
    }
}

pub(in crate::explore) fn renewals_need_a_hold(
    _: &World,
    held: &Option<HolderView>,
    request: &RenewRequest,
    renewed: bool,
) -> bool {
    let has_token = |held: &&HolderView| request.token.is_none() || held.token == request.token;
    held.as_ref().filter(has_token).is_some() == renewed
}

/// The server begins to close no connection that has not lost a session's hold. Before it is
/// closed, its owner may ask for the lock anew, and release it.
pub(in crate::explore) fn who_is_to_be_closed_has_lost_a_session(
    world: &World,
    before: &BTreeSet<ClientId>,
) -> bool {
    let known = || world.known.iter().flatten();
    let was_bound = |client| known().any(|it| it.tied.is_some_and(|tied| tied.has(client)));
    let mut begun = world.table.to_close().difference(before).copied();
    begun.all(|it| was_bound(it) || world.replicas > 0 || world.connection_of(it).is_none())
}
