//! What must hold in every state, and of every step.

mod deadlocks;
mod places;
mod states;
mod steps;

use crate::cycle::WaitEdge;
use crate::explore::scope::Ask;
use crate::explore::search::{Checked, broken};
use crate::explore::world::{Known, World};
use crate::queue::WaiterId;
use crate::request::Owner;
use crate::table::{Answer, HolderView};
use crate::token::FencingToken;
use deadlocks::Edges;

pub(super) use places::{
    a_place_that_is_over_is_granted_nothing, only_a_place_that_is_over_ends,
    who_asks_again_keeps_its_position,
};
pub(super) use steps::{
    releases_need_a_hold, renewals_need_a_hold, who_is_to_be_closed_has_lost_a_session,
};

/// Checks an invariant, whose name is that of its function.
macro_rules! holds {
    ($file:ident::$name:ident($world:expr $(, $arg:expr)*)) => {
        match $file::$name($world $(, $arg)*) {
            true => Ok(()),
            false => broken(stringify!($name), $world.picture()),
        }
    };
}
pub(super) use holds;

/// What one step of the table was seen to do.
#[derive(Debug, Default)]
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
    /// The asker's waiter whose position its request takes over.
    pub(super) kept: Option<WaiterId>,
    /// The owners whose grants nobody heard of.
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
            ..Self::default()
        }
    }

    /// Whether this owner held the lock before.
    fn held_before(&self, owner: &Owner) -> bool {
        self.before.iter().any(|one| one.owner == *owner)
    }

    /// With which token this owner held the lock before.
    pub(super) fn token_before(&self, owner: &Owner) -> Option<FencingToken> {
        let before = self.before.iter().find(|one| one.owner == *owner);
        before?.token
    }

    /// Whether this owner had this hold before, also where it got its token only now, or
    /// another of its connections was handed it by this step.
    pub(super) fn had(&self, world: &World, owner: usize, token: FencingToken) -> bool {
        let known = &world.known[self.key][owner];
        let owner = &world.cast.owners[owner];
        let mut before = self.before.iter();
        before.any(|one| one.owner == *owner && one.token.is_none_or(|its| its == token))
            || known.promise.is_some_and(|(its, _)| its == token)
    }

    /// The waiters that were granted the lock: by which connection, how, with which token.
    fn handed(&self) -> impl Iterator<Item = (WaiterId, usize, Ask, FencingToken)> {
        let answers = self.answers.iter();
        answers.filter_map(|&(id, at, ask, ref answer)| match answer {
            Answer::Granted(token) => Some((id, at, ask, *token)),
            _ => None,
        })
    }

    /// Whether the step ended this owner's holds, because somebody asked for that.
    fn is_released_by(&self, world: &World, owner: usize) -> bool {
        let asker = self.asker.map(|at| world.cast.owner_of[at]);
        self.released && asker.is_none_or(|asker| asker == owner)
    }
}

/// Checks what a step did.
pub(super) fn check_step(world: &mut World, seen: &Seen) -> Checked {
    holds!(steps::tokens_rise(world, seen))?;
    holds!(steps::a_lease_begins_at_its_grant(world, seen))?;
    holds!(steps::grants_come_in_the_order_of_requests(world, seen))?;
    holds!(steps::no_newcomer_passes_the_queue(world, seen))?;
    holds!(steps::a_released_hold_is_bound_no_more(world, seen))?;
    holds!(places::nothing_is_granted_unheard(world, seen))?;
    holds!(places::a_place_is_for_the_first_hold(world, seen))?;
    holds!(deadlocks::only_a_deadlock_is_refused(world, seen))
}

/// What an owner has of a lock, and what it knows.
pub(super) struct Its<'a> {
    pub(super) key: usize,
    pub(super) number: usize,
    pub(super) held: Option<&'a HolderView>,
    pub(super) known: &'a Known,
}

impl Its<'_> {
    /// Whether it holds the lock by this token.
    fn has(&self, token: FencingToken) -> bool {
        self.held.is_some_and(|held| held.token == Some(token))
    }
}

/// Checks a state.
pub(super) fn check(world: &World) -> Checked {
    for key in 0..world.cast.keys.len() {
        let lock = world.data.read(key);
        if let Ok(lock) = &lock {
            holds!(states::holders_are_within_their_limits(world, lock))?;
            holds!(states::no_hold_is_without_an_end(world, lock))?;
            holds!(places::an_unclaimed_grant_ends_soon(world, key, lock))?;
            holds!(states::what_is_remembered_is_stored(world, key, lock))?;
        }
        let holders = world.holders(key);
        for (number, owner) in world.cast.owners.iter().enumerate() {
            let its = Its {
                key,
                number,
                held: holders.iter().find(|one| one.owner == *owner),
                known: &world.known[key][number],
            };
            holds!(states::a_grant_stands(world, &its))?;
            holds!(states::a_hold_ends_with_its_connection(world, &its))?;
            holds!(states::a_hold_that_nobody_knows_of_is_over(world, &its))?;
            holds!(states::a_session_is_kept_up(world, &its))?;
        }
        holds!(states::who_waits_stands_in_the_queue(world, key))?;
        holds!(places::the_end_of_a_place_is_planned(world, key))?;
        holds!(states::a_look_is_planned(world, key, &holders))?;
    }
    holds!(states::nothing_is_remembered_without_need(world))?;
    holds!(states::what_is_kept_twice_agrees(world))?;
    holds!(deadlocks::no_deadlock_stays(world))
}
