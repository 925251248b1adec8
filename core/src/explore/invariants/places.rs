//! What must hold of places in the queue.

use super::{Checked, Seen, ensure};
use crate::explore::cast::{key_name, owner_name};
use crate::explore::world::{PlaceKept, World};
use crate::lock::Lock;
use crate::queue::WaiterId;
use crate::table::Answer;

pub(in crate::explore) fn a_place_that_is_over_is_granted_nothing(
    world: &World,
    place: &PlaceKept,
) -> Checked {
    ensure(!world.is_over(place), || {
        "its time, or its session's connection, has ended".to_owned()
    })
}

pub(in crate::explore) fn only_a_place_that_is_over_ends(
    world: &World,
    place: &PlaceKept,
) -> Checked {
    ensure(world.is_over(place), || "nobody gave it up".to_owned())
}

pub(in crate::explore) fn who_asks_again_keeps_its_position(
    world: &World,
    at: usize,
    kept: Option<WaiterId>,
    queued: WaiterId,
) -> Checked {
    ensure(kept.is_none_or(|kept| kept == queued), || {
        format!("{} has another", world.cast.client_name(at))
    })
}

/// Whoever is to be told, also where others hold the lock.
pub(super) fn the_end_of_a_place_is_planned(world: &World, key: usize) -> Checked {
    let is_late = |place: &&PlaceKept| {
        let by_ms = match world.is_over(place) {
            true => world.now_ms + 10,
            false => place.until_ms.max(world.now_ms + 10),
        };
        world.wake_at_ms().is_none_or(|wake_ms| wake_ms > by_ms)
    };
    ensure(!world.places_for(key).any(|place| is_late(&place)), || {
        format!("the timer is not set for a place of {}", key_name(key))
    })
}

pub(super) fn an_unclaimed_grant_ends_soon(world: &World, key: usize, lock: &Lock) -> Checked {
    for (number, owner) in world.cast.owners.iter().enumerate() {
        let Some((token, until_ms)) = world.known[key][number].unclaimed else {
            continue;
        };
        let holder = lock.holder(owner).filter(|one| one.token == Some(token));
        if holder.is_some_and(|one| one.lease_end_ms.is_none_or(|end_ms| end_ms > until_ms)) {
            let (owner, key) = (owner_name(number), key_name(key));
            return Err(format!(
                "{owner} has not claimed {key}, and its lease goes on"
            ));
        }
    }
    Ok(())
}

pub(super) fn nothing_is_granted_unheard(world: &World, seen: &Seen) -> Checked {
    let lock = world.data.read(seen.key).unwrap_or_default();
    let is_told = |number: usize| {
        let of_owner = |at: usize| world.cast.owner_of[at] == number;
        let is_granted = |answer: &Answer| matches!(answer, Answer::Granted(_));
        let mut answers = seen.answers.iter();
        answers.any(|(_, at, _, answer)| of_owner(*at) && is_granted(answer))
            || seen.granted.is_some() && seen.asker.is_some_and(of_owner)
    };
    for &number in &seen.unheard {
        if lock.holder(&world.cast.owners[number]).is_some() && !is_told(number) {
            let (owner, key) = (owner_name(number), key_name(seen.key));
            return Err(format!("{owner} holds {key}, and nobody heard of it"));
        }
    }
    Ok(())
}

/// And adds none where its owner holds the lock already.
pub(super) fn a_place_is_for_the_first_hold(world: &World, seen: &Seen) -> Checked {
    let lock = world.data.read(seen.key).unwrap_or_default();
    let granted = seen.answers.iter();
    let granted = granted.filter(|(.., answer)| matches!(answer, Answer::Granted(_)));
    let by_places = granted.clone().filter(|(_, _, ask, _)| ask.place);
    for (_, at, ..) in by_places {
        let (number, owner) = (world.cast.owner_of[*at], world.owner(*at));
        let is_its = |&at: &usize| world.cast.owner_of[at] == number;
        let by_others = granted.clone().filter(|(_, _, ask, _)| !ask.place);
        let by_others = by_others.map(|(_, at, ..)| *at);
        let asker = seen.asker.filter(|_| seen.granted.is_some());
        if by_others.chain(asker).any(|at| is_its(&at)) {
            continue;
        }
        let before = seen.before.iter().find(|one| one.owner == *owner);
        let expected = before.map_or(1, |one| one.holds);
        let holds = lock.holder(owner).map_or(expected, |one| one.holds);
        if holds > expected {
            let (owner, key) = (owner_name(number), key_name(seen.key));
            return Err(format!(
                "{owner} has {holds} holds of {key} instead of {expected}"
            ));
        }
    }
    Ok(())
}
