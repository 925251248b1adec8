//! A campaign against the Rust client's `Redlock`: locks on the majority of
//! several independent servers, of which a minority is hurt.
//!
//! # What is judged
//!
//! Whoever gets a guard believes to have the lock from when `acquire` returned
//! until it calls `release`, or `lost` completes, or what `valid_for` said is
//! over. All beliefs are dated by one clock in one process. Two beliefs in one
//! lock must never overlap. A belief
//! begins when the answer was there and ends before the release is called, so
//! each is dated shorter than it was. Nothing else is excused: late messages,
//! slow servers and broken connections are the client's to cope with.
//!
//! # Why a correct client is never found at fault
//!
//! There are 2f + 1 servers, and at most f of them are hurt at a time. What
//! that may do to exclusion depends on the kind:
//!
//! - A server that is **stopped, slow or cut off** remembers. Any majority that
//!   granted a hold shares a server with any other majority, and that server
//!   refuses the second, early or late. So these faults can't break exclusion,
//!   however they follow each other. What is delayed in them (a late acquire,
//!   renewal or release) takes effect after what the client did next. A client
//!   can cope with that: it knows what it left unanswered, and on each server it
//!   can name the token that it means. So late messages excuse nothing, and a
//!   server that runs again counts as sound at once.
//! - A server that is **killed and starts empty** has forgotten its vote. A hold
//!   may rest on a bare majority of f + 1, as the others may have been out of
//!   reach or taken by another at the time. Then one forgotten vote is enough
//!   for a second majority, whatever the client does: so a server that started
//!   empty *within* the life of a hold would be more than Redlock promises to
//!   survive, even if no other server is hurt. This is why Redlock asks for a
//!   delayed restart. Here a killed server stays down until each acquire that
//!   was under way when it was killed has ended, and so has the hold that came
//!   of it; or else for longer than the longest lease, as what is believed in
//!   later rests on commands that a majority of the others confirmed while it
//!   was down. So no live hold ever rests on a vote that was forgotten, and
//!   the next server may be hurt as soon as it is up.
//!
//! The bound of f has to do with progress alone: a majority can always be had.
//! `--most` lifts it. In the end, when all servers are well, every client has to
//! get every lock within a fixed time.
//!
//! # Why it would notice
//!
//! `--restart-at-once` leaves the delay of the restart out. Then a correct
//! client, too, has to be found at fault, and the campaign shows that it can.

pub mod beliefs;
pub mod plan;
pub mod workers;
