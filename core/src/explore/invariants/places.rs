//! What must hold of places in the queue.

use super::Seen;
use crate::explore::world::{PlaceKept, World};
use crate::lock::Lock;
use crate::queue::WaiterId;

pub(in crate::explore) fn a_place_that_is_over_is_granted_nothing(
    world: &World,
    place: &PlaceKept,
) -> bool {
    !world.is_over(place)
}

pub(in crate::explore) fn only_a_place_that_is_over_ends(world: &World, place: &PlaceKept) -> bool {
    world.is_over(place)
}

pub(in crate::explore) fn who_asks_again_keeps_its_position(
    _: &World,
    kept: Option<WaiterId>,
    queued: WaiterId,
) -> bool {
    kept.is_none_or(|kept| kept == queued)
}

/// Whoever is to be told, also where others hold the lock.
pub(super) fn the_end_of_a_place_is_planned(world: &World, key: usize) -> bool {
    world.places_for(key).all(|place| {
        let soon_ms = world.now_ms + 10;
        let by_ms = match world.is_over(place) {
            true => soon_ms,
            false => place.until_ms.max(soon_ms),
        };
        world.wake_at_ms().is_some_and(|wake_ms| wake_ms <= by_ms)
    })
}

pub(super) fn an_unclaimed_grant_ends_soon(world: &World, key: usize, lock: &Lock) -> bool {
    let mut owners = world.cast.owners.iter().zip(&world.known[key]);
    owners.all(|(owner, known)| {
        known.unclaimed.is_none_or(|(token, until_ms)| {
            let holder = lock.holder(owner).filter(|one| one.token == Some(token));
            holder.is_none_or(|one| one.lease_end_ms.is_some_and(|end_ms| end_ms <= until_ms))
        })
    })
}

pub(super) fn nothing_is_granted_unheard(world: &World, seen: &Seen) -> bool {
    let lock = world.data.read(seen.key).unwrap_or_default();
    let is_told = |number: usize| {
        let of_owner = |at: usize| world.cast.owner_of[at] == number;
        seen.handed().any(|(_, at, ..)| of_owner(at))
            || seen.granted.is_some() && seen.asker.is_some_and(of_owner)
    };
    let mut unheard = seen.unheard.iter();
    unheard.all(|&number| lock.holder(&world.cast.owners[number]).is_none() || is_told(number))
}

/// And adds none where its owner holds the lock already.
pub(super) fn a_place_is_for_the_first_hold(world: &World, seen: &Seen) -> bool {
    let lock = world.data.read(seen.key).unwrap_or_default();
    let owner_of = |at: usize| world.cast.owner_of[at];
    let mut by_places = seen.handed().filter(|(_, _, ask, _)| ask.place);
    by_places.all(|(_, at, ..)| {
        let by_others = seen.handed().filter(|(_, _, ask, _)| !ask.place);
        let by_others = by_others.map(|(_, at, ..)| at);
        let asker = seen.asker.filter(|_| seen.granted.is_some());
        if by_others
            .chain(asker)
            .any(|by| owner_of(by) == owner_of(at))
        {
            return true;
        }
        let owner = world.owner(at);
        let before = seen.before.iter().find(|one| one.owner == *owner);
        let expected = before.map_or(1, |one| one.holds);
        lock.holder(owner).is_none_or(|one| one.holds <= expected)
    })
}
