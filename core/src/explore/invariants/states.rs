//! What must hold of a lock, and of all that is remembered, in every state.

use super::Its;
use crate::explore::world::{Changed, Doing, World};
use crate::lock::Lock;
use crate::request::{ClientId, Limit};
use crate::table::HolderView;

/// Of all holders, and so of the newest too.
pub(super) fn holders_are_within_their_limits(_: &World, lock: &Lock) -> bool {
    let count = lock.holders().len() as i64;
    let mut limits = lock.holders().iter().map(|one| one.limit.count_or_zero());
    limits.all(|limit| limit <= 0 || count <= limit)
}

pub(super) fn no_hold_is_without_an_end(_: &World, lock: &Lock) -> bool {
    match lock.holders().iter().map(|one| one.lease_end_ms).max() {
        None => true,
        Some(last_ms) => lock.expires_at_ms.is_some() && lock.expires_at_ms == last_ms,
    }
}

/// The lock that the last step left behind is the one that its effects wrote.
pub(super) fn what_is_remembered_is_stored(world: &World, key: usize, stored: &Lock) -> bool {
    let Some(remembered) = world.table.remembered(world.cast.key(key)) else {
        return true;
    };
    if world.changed[key] != Changed::Nothing {
        return true;
    }
    let mut holders = remembered.holders().iter();
    let same_holders = remembered.holders().len() == stored.holders().len()
        && holders.all(|one| stored.holder(&one.owner) == Some(one));
    // Of a free lock nothing is stored.
    let same_rest = stored.is_free()
        || remembered.last_token == stored.last_token
            && remembered.expires_at_ms == stored.expires_at_ms;
    same_holders && same_rest
}

/// A hold that was granted is there until it is given back, broken, deleted, over,
/// or ended with its connection.
pub(super) fn a_grant_stands(world: &World, its: &Its<'_>) -> bool {
    let alone = world.cast.scope.connections[its.number] == 1;
    let has_holds = |held: &HolderView| !alone || held.holds >= its.known.holds;
    let promise = its.known.promise;
    promise.is_none_or(|(token, _)| its.has(token) && its.held.is_some_and(has_holds))
}

/// Before the next command sees the lock.
pub(super) fn a_hold_ends_with_its_connection(_: &World, its: &Its<'_>) -> bool {
    its.known.over.is_none_or(|over| !its.has(over))
}

/// Somebody was told of each hold, or is about to hear of it.
pub(super) fn a_hold_that_nobody_knows_of_is_over(world: &World, its: &Its<'_>) -> bool {
    let token = its.held.and_then(|held| held.token);
    token.is_none_or(|token| {
        its.known.told == Some(token) || world.is_untold(its.key, its.number, token)
    })
}

/// Holds are bound to the connections that asked for it, of which the newest is shown.
pub(super) fn a_session_is_kept_up(world: &World, its: &Its<'_>) -> bool {
    let Some(held) = its.held else {
        return true;
    };
    // A binding to holds that are over is not one to these.
    let tied = its.known.tied.filter(|tied| its.has(tied.token));
    let is_expected = held.client == tied.map(|tied| tied.newest);
    // A lock that was moved and comes back may be a session again.
    let has_moved = world.cast.scope.moves();
    // Who keeps up what was bound to a connection that has ended is seen next.
    let is_settling = world.table.has_ended(world.cast.key(its.key)) && held.client.is_none();
    let is_alive = |client| world.connection_of(client).is_some();
    (is_expected || is_settling || has_moved) && held.client.is_none_or(is_alive)
}

/// And nobody else does.
pub(super) fn who_waits_stands_in_the_queue(world: &World, key: usize) -> bool {
    let name = world.cast.key(key);
    let view = world.table.view(name, Lock::default(), world.now());
    let waiters = view.waiters.iter();
    let waiters = waiters.map(|one| (world.owner_number(&one.request.owner), one.client()));
    let expected = world.still_waiting(key).into_iter();
    let expected = expected.map(|(_, at, ask)| {
        let client: Option<ClientId> = (!ask.place).then(|| world.client(at));
        (world.cast.owner_of[at], client)
    });
    let mut living = world.still_waiting(key).into_iter();
    waiters.eq(expected) && living.all(|(id, ..)| world.table.is_waiting(id))
}

/// No waiter is left behind: where there is room for the first, or will be, something
/// is planned.
pub(super) fn a_look_is_planned(world: &World, key: usize, holders: &[HolderView]) -> bool {
    let waiting = world.still_waiting(key);
    let Some(&(_, _, ask)) = waiting.first() else {
        return true;
    };
    let Some(at_ms) = world.table.recheck_at_ms(world.cast.key(key)) else {
        return false;
    };
    let in_ms = at_ms - world.now_ms;
    let is_awake_by = |by_ms| world.wake_at_ms().is_some_and(|wake_ms| wake_ms <= by_ms);
    if !is_awake_by(at_ms.max(world.now_ms + 10)) || in_ms > world.scope().times.recheck {
        return false;
    }
    if in_ms <= 0
        || !world.table.settings.may_grant
        || world.changed[key] == Changed::Untold
        || world.table.has_ended(world.cast.key(key))
    {
        return true;
    }
    if waiting.len() < world.waiting(key).len() {
        // Who waits behind what is over is served when the timer ends that.
        return is_awake_by(world.now_ms);
    }
    let Ok(lock) = world.data.read(key) else {
        return true;
    };
    let owns = |at: usize| holders.iter().any(|one| one.owner == *world.owner(at));
    let all = lock.holders().iter();
    let limits = all.filter(|one| holders.iter().any(|it| it.owner == one.owner));
    let strictest = limits.map(|one| one.limit).fold(ask.limit, Limit::min);
    let has_room = strictest.has_room_beside(holders.len());
    let end_ms = lock.next_lease_end_ms();
    !has_room
        && !waiting.iter().any(|&(_, at, _)| owns(at))
        && end_ms.is_none_or(|end_ms| at_ms <= end_ms + 1)
}

pub(super) fn nothing_is_remembered_without_need(world: &World) -> bool {
    let [no_deliveries, no_ended, no_sessions] = world.table.counts();
    let mut connections = world.connections.iter();
    let is_to_hear = |doing| matches!(doing, Doing::ToHear(_) | Doing::Withheld(..));
    let nobody_hears = !connections.any(|one| is_to_hear(one.doing));
    // Who is to hear of a grant is there, and what is bound or has ended sets the timer.
    (!nobody_hears || !no_ended || no_deliveries)
        && (no_sessions && no_ended || world.wake_at_ms().is_some())
        && (0..world.cast.keys.len()).all(|key| {
            let remembered = world.table.remembered(world.cast.key(key));
            remembered.is_none() || !world.waiting(key).is_empty()
        })
}

pub(super) fn what_is_kept_twice_agrees(world: &World) -> bool {
    world.table.agree()
}
