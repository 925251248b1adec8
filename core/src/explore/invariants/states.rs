//! What must hold of a lock, and of all that is remembered, in every state.

use super::{Checked, ensure};
use crate::explore::cast::{key_name, owner_name};
use crate::explore::scope::RECHECK_MS;
use crate::explore::world::{Changed, Doing, World};
use crate::lock::Lock;
use crate::queue::WaiterId;
use crate::request::{ClientId, Limit};
use crate::table::HolderView;

/// Of all holders, and so of the newest too.
pub(super) fn holders_are_within_their_limits(key: usize, lock: &Lock) -> Checked {
    let count = lock.holders().len() as i64;
    for holder in lock.holders() {
        let limit = holder.limit.count_or_zero();
        if limit > 0 && count > limit {
            return Err(format!(
                "{count} hold {}, and {:?} allows {limit}",
                key_name(key),
                holder.owner
            ));
        }
    }
    Ok(())
}

pub(super) fn no_hold_is_without_an_end(key: usize, lock: &Lock) -> Checked {
    let last_ms = lock.holders().iter().map(|one| one.lease_end_ms).max();
    let is_right = match last_ms {
        None => true,
        Some(last_ms) => lock.expires_at_ms.is_some() && lock.expires_at_ms == last_ms,
    };
    ensure(is_right, || {
        format!(
            "the last lease of {} ends at {last_ms:?}, and the key expires at {:?}",
            key_name(key),
            lock.expires_at_ms
        )
    })
}

/// The lock that the last step left behind is the one that its effects wrote.
pub(super) fn what_is_remembered_is_stored(world: &World, key: usize, lock: &Lock) -> Checked {
    let Some(remembered) = world.table.remembered(world.cast.key(key)) else {
        return Ok(());
    };
    if world.changed[key] != Changed::Nothing {
        return Ok(());
    }
    is_same(world, key, remembered, lock)
}

fn is_same(world: &World, key: usize, remembered: &Lock, stored: &Lock) -> Checked {
    let same_holders = remembered.holders().len() == stored.holders().len()
        && remembered
            .holders()
            .iter()
            .all(|one| stored.holder(&one.owner) == Some(one));
    // Of a free lock nothing is stored.
    let same_rest = stored.is_free()
        || remembered.last_token == stored.last_token
            && remembered.expires_at_ms == stored.expires_at_ms;
    ensure(same_holders && same_rest, || {
        format!(
            "{} is remembered to be held by {}, and is stored as held by {}",
            key_name(key),
            world.sketch(remembered),
            world.sketch(stored)
        )
    })
}

/// A hold that was granted is there until it is given back, broken, deleted, over,
/// or ended with its connection.
pub(super) fn a_grant_stands(world: &World, key: usize, holders: &[HolderView]) -> Checked {
    for (number, owner) in world.cast.owners.iter().enumerate() {
        let known = world.known[key][number];
        let Some((token, _)) = known.promise else {
            continue;
        };
        let held = holders.iter().find(|one| one.owner == *owner);
        let stands = held.is_some_and(|held| held.token == Some(token));
        let alone = world.cast.scope.connections[number] == 1;
        let has_holds = held.is_some_and(|held| !alone || held.holds >= known.holds);
        if !stands || !has_holds {
            return Err(format!(
                "{} was granted {} and may rely on {} hold(s), and has {}",
                owner_name(number),
                key_name(key),
                known.holds.max(1),
                held.map_or("none".into(), |held| format!(
                    "{}, by {} token",
                    held.holds,
                    if stands { "that" } else { "another" }
                )),
            ));
        }
    }
    Ok(())
}

/// Before the next command sees the lock.
pub(super) fn a_hold_ends_with_its_connection(
    world: &World,
    key: usize,
    holders: &[HolderView],
) -> Checked {
    for (number, owner) in world.cast.owners.iter().enumerate() {
        let Some(over) = world.known[key][number].over else {
            continue;
        };
        let held = holders.iter().find(|one| one.owner == *owner);
        if held.is_some_and(|held| held.token == Some(over)) {
            let (owner, key) = (owner_name(number), key_name(key));
            return Err(format!(
                "the connection of {owner} has ended, and it still holds {key}"
            ));
        }
    }
    Ok(())
}

/// Somebody was told of each hold, or is about to hear of it.
pub(super) fn a_hold_that_nobody_knows_of_is_over(
    world: &World,
    key: usize,
    holders: &[HolderView],
) -> Checked {
    for holder in holders {
        let Some(token) = holder.token else { continue };
        let number = world.owner_number(&holder.owner);
        let is_told = world.known[key][number].told == Some(token);
        if !is_told && !world.is_untold(key, number, token) {
            let (owner, key) = (owner_name(number), key_name(key));
            return Err(format!("{owner} holds {key}, and was never told so"));
        }
    }
    Ok(())
}

/// Holds are bound to the connections that asked for it, of which the newest is shown.
pub(super) fn a_session_is_kept_up(world: &World, key: usize, holders: &[HolderView]) -> Checked {
    for holder in holders {
        let number = world.owner_number(&holder.owner);
        let known = world.known[key][number];
        // A binding to holds that are over is not one to these.
        let expected = known.tied.filter(|tied| holder.token == Some(tied.token));
        let expected = expected.map(|tied| tied.newest);
        // A lock that was moved and comes back may be a session again.
        let has_moved = world.cast.scope.moves();
        // Who keeps up what was bound to a connection that has ended is seen next.
        let is_settled = !world.table.has_ended(world.cast.key(key));
        let differs = holder.client != expected && (is_settled || holder.client.is_some());
        if differs && !has_moved {
            return Err(format!(
                "the holds of {} on {} are bound to {:?} instead of {expected:?}",
                owner_name(number),
                key_name(key),
                holder.client,
            ));
        }
        let is_alive = |client| world.connection_of(client).is_some();
        if !holder.client.is_none_or(is_alive) {
            return Err(format!(
                "holds are bound to {:?}, which has ended",
                holder.client
            ));
        }
    }
    Ok(())
}

/// And nobody else does.
pub(super) fn who_waits_stands_in_the_queue(world: &World, key: usize) -> Checked {
    let waiting = world.waiting(key);
    let view = world
        .table
        .view(world.cast.key(key), Lock::default(), world.now());
    let over = world.places_for(key).filter(|place| world.is_over(place));
    let over: Vec<WaiterId> = over.map(|place| place.id).collect();
    let waiters = view.waiters.iter();
    let waiters: Vec<(usize, Option<ClientId>)> = waiters
        .map(|one| (world.owner_number(&one.request.owner), one.client()))
        .collect();
    let expected = waiting.iter().filter(|(id, ..)| !over.contains(id));
    let expected: Vec<(usize, Option<ClientId>)> = expected
        .map(|&(_, at, ask)| {
            let client = (!ask.place).then(|| world.client(at));
            (world.cast.owner_of[at], client)
        })
        .collect();
    let living = world.still_waiting(key);
    if waiters == expected && living.iter().all(|one| world.table.is_waiting(one.0)) {
        return Ok(());
    }
    let name = |&(owner, client): &(usize, Option<ClientId>)| match client {
        None => format!("a place of {}", owner_name(owner)),
        Some(client) => match world.connection_of(client) {
            Some(at) => world.cast.client_name(at),
            None => "a connection that has ended".into(),
        },
    };
    let names = |all: &[(usize, Option<ClientId>)]| {
        let names = all.iter().map(name);
        names.collect::<Vec<_>>().join(", ")
    };
    Err(format!(
        "for {} wait: {}; and in the queue stand: {}",
        key_name(key),
        names(&expected),
        names(&waiters)
    ))
}

/// No waiter is left behind: where there is room for the first, or will be, something
/// is planned.
pub(super) fn a_look_is_planned(world: &World, key: usize, holders: &[HolderView]) -> Checked {
    let waiting = world.still_waiting(key);
    let Some(&(_, first, ask)) = waiting.first() else {
        return Ok(());
    };
    let broken = |why: String| {
        let (client, key) = (world.cast.client_name(first), key_name(key));
        Err(format!("{client} is the first to wait for {key}; {why}"))
    };
    let Some(at_ms) = world.table.recheck_at_ms(world.cast.key(key)) else {
        return broken("no look is planned".into());
    };
    if world
        .wake_at_ms()
        .is_none_or(|wake_ms| wake_ms > at_ms.max(world.now_ms + 10))
    {
        return broken("the timer is not set for the next look".into());
    }
    let in_ms = at_ms - world.now_ms;
    if in_ms > RECHECK_MS {
        return broken(format!("the next look is in {in_ms} ms"));
    }
    if in_ms <= 0
        || !world.table.settings.may_grant
        || world.changed[key] == Changed::Untold
        || world.table.has_ended(world.cast.key(key))
    {
        return Ok(());
    }
    let Ok(lock) = world.data.read(key) else {
        return Ok(());
    };
    let owns = |at: usize| holders.iter().any(|one| one.owner == *world.owner(at));
    let limits = lock.holders().iter().filter(|one| {
        let is_there = |holder: &HolderView| holder.owner == one.owner;
        holders.iter().any(is_there)
    });
    let strictest = limits.map(|one| one.limit).fold(ask.limit, Limit::min);
    if strictest.has_room_beside(holders.len()) || waiting.iter().any(|&(_, at, _)| owns(at)) {
        return broken(format!(
            "there is room for it, and the next look is in {in_ms} ms"
        ));
    }
    let end_ms = lock.next_lease_end_ms();
    if end_ms.is_some_and(|end_ms| at_ms > end_ms + 1) {
        return broken("the next look is after the next end of a lease".into());
    }
    Ok(())
}

pub(super) fn nothing_is_remembered_without_need(world: &World) -> Checked {
    let broken = |what: &str| Err(what.to_owned());
    let [no_deliveries, no_ended, no_sessions] = world.table.counts();
    let doing = || world.connections.iter().map(|one| one.doing);
    let nobody_hears =
        !doing().any(|doing| matches!(doing, Doing::ToHear { .. } | Doing::Withheld { .. }));
    if nobody_hears && no_ended && !no_deliveries {
        return broken("nobody is to hear of a grant, and one is on its way");
    }
    if !(no_sessions && no_ended) && world.wake_at_ms().is_none() {
        return broken("something is bound or has ended, and no timer is set");
    }
    for key in 0..world.cast.keys.len() {
        let name = world.cast.key(key);
        let remembered = world.table.remembered(name);
        let is_contended = !world.waiting(key).is_empty();
        if remembered.is_some() && !is_contended {
            return broken("a lock is remembered for which nobody waits");
        }
    }
    Ok(())
}

pub(super) fn what_is_kept_twice_agrees(world: &World) -> Checked {
    ensure(world.table.agree(), || format!("{:?}", world.table))
}
