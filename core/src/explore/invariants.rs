//! What must hold in every state, and of every step.

use std::collections::BTreeSet;

use super::keyspace::Value;
use super::scope::{Ask, CLAIM_MS, LEASE_MS, RECHECK_MS};
use super::search::Broken;
use super::world::{Changed, Doing, PlaceKept, World};
use crate::cycle::WaitEdge;
use crate::error::LockError;
use crate::lock::{Lock, Released};
use crate::queue::WaiterId;
use crate::request::{ClientId, Limit, Owner, ReleaseExtent, ReleaseRequest, RenewRequest};
use crate::table::{Answer, HolderView, Stored};
use crate::token::FencingToken;

type Checked = Result<(), Broken>;

/// What one step of the table was seen to do.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) key: usize,
    /// The connection that asked, if any did.
    pub(super) asker: Option<usize>,
    /// Who held the lock before.
    before: Vec<HolderView>,
    /// Who waited, on all keys, and which edges there were.
    edges_before: Edges,
    pub(super) answers: Vec<(WaiterId, usize, Ask, Answer)>,
    pub(super) granted: Option<FencingToken>,
    pub(super) queued: Option<WaiterId>,
    pub(super) refused: Option<(usize, Ask, Vec<WaitEdge>)>,
    /// An owner gave its last hold back, or all were taken.
    pub(super) released: bool,
    pub(super) questions: usize,
    /// The place of who asked, if it had one already.
    pub(super) kept: Option<WaiterId>,
    /// Whose grants nobody heard of.
    pub(super) unheard: Vec<usize>,
    /// An owner that holds nothing released the lock.
    pub(super) gives_up: bool,
}

impl Seen {
    pub(super) fn before(world: &World, key: usize, asker: Option<usize>) -> Self {
        Self {
            key,
            asker,
            before: world.holders(key),
            edges_before: Edges::of(world, None),
            answers: Vec::new(),
            granted: None,
            queued: None,
            refused: None,
            released: false,
            questions: 0,
            kept: None,
            unheard: Vec::new(),
            gives_up: false,
        }
    }
}

impl Seen {
    /// Whether this owner held the lock before.
    fn held_before(&self, owner: &Owner) -> bool {
        self.before.iter().any(|one| one.owner == *owner)
    }

    /// With which token this owner held the lock before.
    pub(super) fn token_before(&self, owner: &Owner) -> Option<FencingToken> {
        let before = self.before.iter().find(|one| one.owner == *owner);
        before?.token
    }

    /// Whether the step ended this owner's holds, because somebody asked for that.
    fn is_released_by(&self, world: &World, owner: usize) -> bool {
        let asker = self.asker.map(|at| world.cast.owner_of[at]);
        self.released && asker.is_none_or(|asker| asker == owner)
    }
}

/// Checks what a step did.
pub(super) fn check_step(world: &mut World, seen: &Seen) -> Checked {
    tokens_rise(world, seen)?;
    a_lease_begins_at_its_grant(world, seen)?;
    grants_come_in_the_order_of_requests(world, seen)?;
    no_newcomer_passes_the_queue(world, seen)?;
    a_released_hold_is_bound_no_more(world, seen)?;
    nothing_is_granted_unheard(world, seen)?;
    a_place_is_for_the_first_hold(world, seen)?;
    only_a_deadlock_is_refused(world, seen)
}

/// Checks a state.
pub(super) fn check(world: &World) -> Checked {
    for key in 0..world.cast.keys.len() {
        let lock = world.data.read(key);
        if let Ok(lock) = &lock {
            holders_are_within_their_limits(world, key, lock)?;
            no_hold_is_without_an_end(world, key, lock)?;
            an_unclaimed_grant_ends_soon(world, key, lock)?;
            what_is_remembered_is_stored(world, key, lock)?;
        }
        let holders = world.holders(key);
        a_grant_stands(world, key, &holders)?;
        a_hold_ends_with_its_connection(world, key, &holders)?;
        a_hold_that_nobody_knows_of_is_over(world, key, &holders)?;
        a_session_is_kept_up(world, key, &holders)?;
        who_waits_stands_in_the_queue(world, key)?;
        the_end_of_a_place_is_planned(world, key)?;
        a_look_is_planned(world, key, &holders)?;
    }
    nothing_is_remembered_without_need(world)?;
    what_is_kept_twice_agrees(world)?;
    no_deadlock_stays(world)
}

/// Of all holders, and so of the newest too.
fn holders_are_within_their_limits(world: &World, key: usize, lock: &Lock) -> Checked {
    let count = lock.holders().len() as i64;
    for holder in lock.holders() {
        let limit = holder.limit.count_or_zero();
        if limit > 0 && count > limit {
            return Err(Broken::new(
                "holders_are_within_their_limits",
                format!(
                    "{count} hold {}, and {:?} allows {limit}",
                    world.cast.key_name(key),
                    holder.owner
                ),
            ));
        }
    }
    Ok(())
}

fn no_hold_is_without_an_end(world: &World, key: usize, lock: &Lock) -> Checked {
    let last_ms = lock.holders().iter().map(|one| one.lease_end_ms).max();
    let is_right = match last_ms {
        None => true,
        Some(last_ms) => lock.expires_at_ms().is_some() && lock.expires_at_ms() == last_ms,
    };
    if is_right {
        return Ok(());
    }
    Err(Broken::new(
        "no_hold_is_without_an_end",
        format!(
            "the last lease of {} ends at {last_ms:?}, and the key expires at {:?}",
            world.cast.key_name(key),
            lock.expires_at_ms()
        ),
    ))
}

/// The lock that the last step left behind is the one that its effects wrote.
fn what_is_remembered_is_stored(world: &World, key: usize, lock: &Lock) -> Checked {
    let Some(remembered) = world.table.remembered(world.cast.key(key)) else {
        return Ok(());
    };
    if world.changed[key] != Changed::Nothing {
        return Ok(());
    }
    is_same("what_is_remembered_is_stored", world, key, remembered, lock)
}

/// What need not be read again is what would be read.
pub(super) fn what_is_expected_is_stored(world: &World, key: usize, lock: &Lock) -> Checked {
    if world.changed[key] == Changed::Untold {
        return Ok(());
    }
    let remembered = world.table.remembered(world.cast.key(key));
    let remembered = remembered.cloned().unwrap_or_default();
    is_same("what_is_expected_is_stored", world, key, &remembered, lock)
}

fn is_same(
    invariant: &'static str,
    world: &World,
    key: usize,
    remembered: &Lock,
    stored: &Lock,
) -> Checked {
    let same_holders = remembered.holders().len() == stored.holders().len()
        && remembered
            .holders()
            .iter()
            .all(|one| stored.holder(&one.owner) == Some(one));
    // Of a free lock nothing is stored.
    let same_rest = stored.is_free()
        || remembered.last_token() == stored.last_token()
            && remembered.expires_at_ms() == stored.expires_at_ms();
    if same_holders && same_rest {
        return Ok(());
    }
    Err(Broken::new(
        invariant,
        format!(
            "{} is remembered to be held by {}, and is stored as held by {}",
            world.cast.key_name(key),
            world.sketch(remembered),
            world.sketch(stored)
        ),
    ))
}

/// A hold that was granted is there until it is given back, broken, deleted, over,
/// or ended with its connection.
fn a_grant_stands(world: &World, key: usize, holders: &[HolderView]) -> Checked {
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
            return Err(Broken::new(
                "a_grant_stands",
                format!(
                    "{} was granted {} and may rely on {} hold(s), and has {}",
                    world.cast.owner_name(number),
                    world.cast.key_name(key),
                    known.holds.max(1),
                    held.map_or("none".into(), |held| format!(
                        "{}, by {} token",
                        held.holds,
                        if stands { "that" } else { "another" }
                    )),
                ),
            ));
        }
    }
    Ok(())
}

/// Before the next command sees the lock.
fn a_hold_ends_with_its_connection(world: &World, key: usize, holders: &[HolderView]) -> Checked {
    for (number, owner) in world.cast.owners.iter().enumerate() {
        let Some(over) = world.known[key][number].over else {
            continue;
        };
        let held = holders.iter().find(|one| one.owner == *owner);
        if held.is_some_and(|held| held.token == Some(over)) {
            return Err(Broken::new(
                "a_hold_ends_with_its_connection",
                format!(
                    "the connection of {} has ended, and it still holds {}",
                    world.cast.owner_name(number),
                    world.cast.key_name(key)
                ),
            ));
        }
    }
    Ok(())
}

/// Somebody was told of each hold, or is about to hear of it.
fn a_hold_that_nobody_knows_of_is_over(
    world: &World,
    key: usize,
    holders: &[HolderView],
) -> Checked {
    for holder in holders {
        let Some(token) = holder.token else { continue };
        let number = world.owner_number(&holder.owner);
        let is_told = world.known[key][number].told == Some(token);
        let to_hear = world.connections.iter().enumerate().any(|(at, one)| {
            world.cast.owner_of[at] == number
                && matches!(one.doing, Doing::ToHear { token: its, .. } if its == token)
        });
        if !is_told && !to_hear {
            return Err(Broken::new(
                "a_hold_that_nobody_knows_of_is_over",
                format!(
                    "{} holds {}, and was never told so",
                    world.cast.owner_name(number),
                    world.cast.key_name(key)
                ),
            ));
        }
    }
    Ok(())
}

/// Holds are bound to the connection that asked for it last, and to no other.
fn a_session_is_kept_up(world: &World, key: usize, holders: &[HolderView]) -> Checked {
    for holder in holders {
        let number = world.owner_number(&holder.owner);
        let known = world.known[key][number];
        // A binding to holds that are over is not one to these.
        let expected = known
            .bound_to
            .filter(|&(_, token)| holder.token == Some(token));
        let expected = expected.map(|(client, _)| client);
        // Who keeps up what was bound to a connection that has ended is seen next.
        let is_settled = !world.table.has_ended(world.cast.key(key));
        if holder.client != expected && (is_settled || holder.client.is_some()) {
            return Err(Broken::new(
                "a_session_is_kept_up",
                format!(
                    "the holds of {} on {} are bound to {:?} instead of {expected:?}",
                    world.cast.owner_name(number),
                    world.cast.key_name(key),
                    holder.client,
                ),
            ));
        }
        let is_alive = |client| world.connection_of(client).is_some();
        if !holder.client.is_none_or(is_alive) {
            return Err(Broken::new(
                "a_session_is_kept_up",
                format!("holds are bound to {:?}, which has ended", holder.client),
            ));
        }
    }
    Ok(())
}

/// And nobody else does.
fn who_waits_stands_in_the_queue(world: &World, key: usize) -> Checked {
    let waiting = world.waiting(key);
    let view = world.table.view(
        world.cast.key(key),
        Stored::Read(Lock::default()),
        world.now(),
    );
    let over = world.places_for(key).filter(|place| world.is_over(place));
    let over: Vec<WaiterId> = over.map(|place| place.id).collect();
    let waiters = view.waiters.iter();
    let waiters: Vec<(usize, Option<ClientId>)> = waiters
        .map(|one| (world.owner_number(&one.owner), one.client))
        .collect();
    let expected = waiting.iter().filter(|(id, ..)| !over.contains(id));
    let expected: Vec<(usize, Option<ClientId>)> = expected
        .map(|&(_, at, ask)| {
            let client = (!ask.place).then(|| world.client(at));
            (world.cast.owner_of[at], client)
        })
        .collect();
    if waiters == expected && waiting.iter().all(|&(id, ..)| world.table.is_waiting(id)) {
        return Ok(());
    }
    let name = |&(owner, client): &(usize, Option<ClientId>)| match client {
        None => format!("a place of {}", world.cast.owner_name(owner)),
        Some(client) => match world.connection_of(client) {
            Some(at) => world.cast.client_name(at),
            None => "a connection that has ended".into(),
        },
    };
    let names = |all: &[(usize, Option<ClientId>)]| {
        let names = all.iter().map(name);
        names.collect::<Vec<_>>().join(", ")
    };
    Err(Broken::new(
        "who_waits_stands_in_the_queue",
        format!(
            "for {} wait: {}; and in the queue stand: {}",
            world.cast.key_name(key),
            names(&expected),
            names(&waiters)
        ),
    ))
}

/// No waiter is left behind: where there is room for the first, or will be, something
/// is planned.
fn a_look_is_planned(world: &World, key: usize, holders: &[HolderView]) -> Checked {
    let waiting = world.waiting(key);
    let Some(&(_, first, ask)) = waiting.first() else {
        return Ok(());
    };
    let broken = |why: String| {
        Err(Broken::new(
            "a_look_is_planned",
            format!(
                "{} is the first to wait for {}; {why}",
                world.cast.client_name(first),
                world.cast.key_name(key)
            ),
        ))
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

fn nothing_is_remembered_without_need(world: &World) -> Checked {
    let broken = |what: &str| {
        Err(Broken::new(
            "nothing_is_remembered_without_need",
            what.to_owned(),
        ))
    };
    let [no_deliveries, no_ended, no_sessions] = world.table.counts();
    let doing = || world.connections.iter().map(|one| one.doing);
    let nobody_hears = !doing().any(|doing| matches!(doing, Doing::ToHear { .. }));
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
        let is_large = remembered.is_some_and(|lock| lock.holders().len() > crate::bounds::few());
        if remembered.is_some() && !is_contended && !is_large {
            return broken("a lock is remembered for which nobody waits");
        }
    }
    Ok(())
}

fn what_is_kept_twice_agrees(world: &World) -> Checked {
    if world.table.agree(&world.cast.owners) {
        return Ok(());
    }
    Err(Broken::new(
        "what_is_kept_twice_agrees",
        format!("{:?}", world.table),
    ))
}

fn tokens_rise(world: &mut World, seen: &Seen) -> Checked {
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
            return Err(Broken::new(
                "tokens_rise",
                format!(
                    "{} was granted {} by a token that is {}",
                    world.cast.client_name(at),
                    world.cast.key_name(seen.key),
                    if is_new {
                        "no greater than one before"
                    } else {
                        "not that of its holds"
                    }
                ),
            ));
        }
        tokens[number] = Some(token);
        world.greatest = world.greatest.max(Some(token));
    }
    Ok(())
}

fn a_lease_begins_at_its_grant(world: &World, seen: &Seen) -> Checked {
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
            return Err(Broken::new(
                "a_lease_begins_at_its_grant",
                format!(
                    "the lease of {} ends {} ms too early",
                    world.cast.client_name(*at),
                    until_ms - holder.lease_end_ms.unwrap_or(0)
                ),
            ));
        }
    }
    Ok(())
}

/// But for re-entries, which nobody waits for.
fn grants_come_in_the_order_of_requests(world: &World, seen: &Seen) -> Checked {
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
            return Err(Broken::new(
                "grants_come_in_the_order_of_requests",
                format!(
                    "{} was handed {} before one that asked for it earlier",
                    world.cast.client_name(*at),
                    world.cast.key_name(seen.key)
                ),
            ));
        }
        last = Some(*id);
    }
    Ok(())
}

fn no_newcomer_passes_the_queue(world: &World, seen: &Seen) -> Checked {
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
    if held || handed || waiting.iter().all(|&(id, ..)| is_behind(id)) {
        return Ok(());
    }
    Err(Broken::new(
        "no_newcomer_passes_the_queue",
        format!(
            "{} was granted {} at once, and others wait for it",
            world.cast.client_name(at),
            world.cast.key_name(seen.key)
        ),
    ))
}

fn a_released_hold_is_bound_no_more(world: &World, seen: &Seen) -> Checked {
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
            return Err(Broken::new(
                "a_released_hold_is_bound_no_more",
                format!(
                    "{} holds {} no more, and is bound to a connection",
                    world.cast.owner_name(number),
                    world.cast.key_name(seen.key)
                ),
            ));
        }
    }
    Ok(())
}

/// A release ends only holds of its owner, and of the token that it names.
pub(super) fn releases_need_a_hold(
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
    if is_right {
        return Ok(());
    }
    Err(Broken::new(
        "releases_need_a_hold",
        format!("a release of an owner with {holds} hold(s) was answered by {result:?}"),
    ))
}

pub(super) fn renewals_need_a_hold(
    held: &Option<HolderView>,
    request: &RenewRequest,
    renewed: bool,
) -> Checked {
    let has_token = |held: &&HolderView| request.token.is_none() || held.token == request.token;
    if held.as_ref().filter(has_token).is_some() == renewed {
        return Ok(());
    }
    Err(Broken::new(
        "renewals_need_a_hold",
        format!("a renewal was answered by {}", i32::from(renewed)),
    ))
}

/// The server closes no connection that has not lost a session's hold.
pub(super) fn who_is_closed_has_lost_a_session(world: &World, client: ClientId) -> Checked {
    let Some(at) = world.connection_of(client) else {
        return Ok(());
    };
    let was_bound = world
        .known
        .iter()
        .flatten()
        .any(|known| known.bound_to.is_some_and(|(its, _)| its == client));
    if was_bound {
        return Ok(());
    }
    Err(Broken::new(
        "who_is_closed_has_lost_a_session",
        format!(
            "{} is closed, and holds nothing by its connection",
            world.cast.client_name(at)
        ),
    ))
}

pub(super) fn a_place_that_is_over_is_granted_nothing(world: &World, place: &PlaceKept) -> Checked {
    if !world.is_over(place) {
        return Ok(());
    }
    Err(Broken::new(
        "a_place_that_is_over_is_granted_nothing",
        "its time, or its session's connection, has ended".to_owned(),
    ))
}

pub(super) fn only_a_place_that_is_over_ends(world: &World, place: &PlaceKept) -> Checked {
    if world.is_over(place) {
        return Ok(());
    }
    Err(Broken::new(
        "only_a_place_that_is_over_ends",
        "nobody gave it up".to_owned(),
    ))
}

pub(super) fn who_asks_again_keeps_its_place(
    world: &World,
    at: usize,
    kept: Option<WaiterId>,
    queued: WaiterId,
) -> Checked {
    if kept.is_none_or(|kept| kept == queued) {
        return Ok(());
    }
    Err(Broken::new(
        "who_asks_again_keeps_its_place",
        format!("{} has another", world.cast.client_name(at)),
    ))
}

/// Whoever is to be told, also where others hold the lock.
fn the_end_of_a_place_is_planned(world: &World, key: usize) -> Checked {
    let is_late = |place: &&PlaceKept| {
        let by_ms = match world.is_over(place) {
            true => world.now_ms + 10,
            false => place.until_ms.max(world.now_ms + 10),
        };
        world.wake_at_ms().is_none_or(|wake_ms| wake_ms > by_ms)
    };
    if !world.places_for(key).any(|place| is_late(&place)) {
        return Ok(());
    }
    Err(Broken::new(
        "the_end_of_a_place_is_planned",
        format!(
            "the timer is not set for a place of {}",
            world.cast.key_name(key)
        ),
    ))
}

fn an_unclaimed_grant_ends_soon(world: &World, key: usize, lock: &Lock) -> Checked {
    for (number, owner) in world.cast.owners.iter().enumerate() {
        let Some((token, until_ms)) = world.known[key][number].unclaimed else {
            continue;
        };
        let holder = lock.holder(owner).filter(|one| one.token == Some(token));
        if holder.is_some_and(|one| one.lease_end_ms.is_none_or(|end_ms| end_ms > until_ms)) {
            return Err(Broken::new(
                "an_unclaimed_grant_ends_soon",
                format!(
                    "{} has not claimed {}, and its lease goes on",
                    world.cast.owner_name(number),
                    world.cast.key_name(key)
                ),
            ));
        }
    }
    Ok(())
}

fn nothing_is_granted_unheard(world: &World, seen: &Seen) -> Checked {
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
            return Err(Broken::new(
                "nothing_is_granted_unheard",
                format!(
                    "{} holds {}, and nobody heard of it",
                    world.cast.owner_name(number),
                    world.cast.key_name(seen.key)
                ),
            ));
        }
    }
    Ok(())
}

/// And adds none where its owner holds the lock already.
fn a_place_is_for_the_first_hold(world: &World, seen: &Seen) -> Checked {
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
            return Err(Broken::new(
                "a_place_is_for_the_first_hold",
                format!(
                    "{} has {holds} holds of {} instead of {expected}",
                    world.cast.owner_name(number),
                    world.cast.key_name(seen.key)
                ),
            ));
        }
    }
    Ok(())
}

/// Who waits for whom, by the rules in words.
#[derive(Clone, Debug, Default)]
struct Edges {
    /// Who waits, for which key, for whom.
    all: Vec<(usize, usize, usize)>,
}

impl Edges {
    /// With one request more at the end of a queue, if there is one: whose, for
    /// which key, how.
    fn of(world: &World, newcomer: Option<(usize, usize, Ask)>) -> Self {
        let mut all = Vec::new();
        for key in 0..world.cast.keys.len() {
            let waiting = world.waiting(key);
            let mut queue: Vec<(usize, Limit)> = waiting
                .iter()
                .map(|&(_, at, ask)| (world.cast.owner_of[at], ask.limit))
                .collect();
            if let Some((owner, its_key, ask)) = newcomer
                && its_key == key
            {
                queue.push((owner, ask.limit));
            }
            if queue.is_empty() {
                continue;
            }
            let holders = world.holders(key);
            let holders: Vec<usize> = holders
                .iter()
                .map(|one| world.owner_number(&one.owner))
                .collect();
            let lock = world.data.read(key).unwrap_or_default();
            let all_exclusive = lock
                .holders()
                .iter()
                .filter(|one| holders.contains(&world.owner_number(&one.owner)))
                .all(|one| one.limit == Limit::EXCLUSIVE);
            let mut seen = BTreeSet::new();
            for (at, &(owner, limit)) in queue.iter().enumerate() {
                // Only an owner's first request counts.
                if !seen.insert(owner) {
                    continue;
                }
                let before = &queue[..at];
                let last_exclusive = before
                    .iter()
                    .rposition(|&(_, limit)| limit == Limit::EXCLUSIVE);
                let exclusive = limit == Limit::EXCLUSIVE;
                // Who wants one of several permits waits for nobody in particular.
                if !exclusive && last_exclusive.is_none() && !all_exclusive {
                    continue;
                }
                let in_front = match (exclusive, last_exclusive) {
                    (true, _) => before,
                    (false, Some(last)) => &before[..=last],
                    (false, None) => &[],
                };
                let in_front = in_front.iter().map(|&(blocker, _)| blocker);
                let blockers = holders.iter().copied().chain(in_front);
                all.extend(blockers.map(|blocker| (owner, key, blocker)));
            }
        }
        Self { all }
    }

    /// The owners that wait for each other in a circle through this one.
    fn leads_back(&self, owner: usize) -> bool {
        let mut reached = BTreeSet::new();
        let mut to_follow = vec![owner];
        while let Some(one) = to_follow.pop() {
            for &(waiter, _, blocker) in &self.all {
                if waiter == one && blocker != one {
                    if blocker == owner {
                        return true;
                    }
                    if reached.insert(blocker) {
                        to_follow.push(blocker);
                    }
                }
            }
        }
        false
    }
}

fn only_a_deadlock_is_refused(world: &World, seen: &Seen) -> Checked {
    let newcomer = seen.refused.iter().map(|(at, ask, cycle)| {
        let newcomer = (world.cast.owner_of[*at], seen.key, *ask);
        (*at, Edges::of(world, Some(newcomer)), cycle.clone())
    });
    let others = seen
        .answers
        .iter()
        .filter_map(|(_, at, _, answer)| match answer {
            Answer::Refused(LockError::Deadlock { cycle }) => {
                Some((*at, Edges::default(), cycle.clone()))
            }
            _ => None,
        });
    for (at, edges, cycle) in newcomer.chain(others) {
        let number = |owner: &Owner| world.owner_number(owner);
        let is_edge = |edge: &WaitEdge| {
            let key = world.cast.keys.iter().position(|one| *one == edge.key);
            let edge = (
                number(&edge.waiter),
                key.unwrap_or(9),
                number(&edge.blocker),
            );
            edges.all.contains(&edge) || seen.edges_before.all.contains(&edge)
        };
        let is_closed = cycle.iter().zip(cycle.iter().cycle().skip(1));
        let is_closed = is_closed
            .into_iter()
            .all(|(edge, next)| edge.blocker == next.waiter);
        let begins = cycle
            .first()
            .is_some_and(|edge| edge.waiter == *world.owner(at));
        if !(begins && is_closed && cycle.iter().all(is_edge)) {
            return Err(Broken::new(
                "only_a_deadlock_is_refused",
                format!("{} was refused for {cycle:?}", world.cast.client_name(at)),
            ));
        }
    }
    Ok(())
}

/// Where nothing is left to be done, and nothing has happened untold, nobody waits for
/// each other.
fn no_deadlock_stays(world: &World) -> Checked {
    let is_quiet = world.wake_at_ms().is_none_or(|at_ms| at_ms > world.now_ms);
    let is_known = world
        .changed
        .iter()
        .all(|&changed| changed == Changed::Nothing);
    if !is_quiet
        || !is_known
        || !world
            .connections
            .iter()
            .any(|one| matches!(one.doing, Doing::Waits { .. }))
    {
        return Ok(());
    }
    // What has expired is found when it is due.
    let expires = (0..world.cast.keys.len()).any(|key| {
        world.data.is_expired(key, world.now_ms) || world.data.value(key) == Some(&Value::Text)
    });
    if expires {
        return Ok(());
    }
    let edges = Edges::of(world, None);
    match (0..world.cast.owners.len()).find(|&owner| edges.leads_back(owner)) {
        None => Ok(()),
        Some(owner) => Err(Broken::new(
            "no_deadlock_stays",
            format!("{} waits for itself", world.cast.owner_name(owner)),
        )),
    }
}
