//! A campaign of fail-overs: locks on a primary with two replicas under
//! Sentinel, where primaries die, stand still and are cut off, and replicas that
//! lag behind take over.
//!
//! # What is judged
//!
//! One history of all clients, whoever was the primary, and no fail-over is
//! excused in it ([`crate::history`]):
//!
//! - **Exclusion**: certain holds of two owners in one lock never overlap.
//! - **Tokens**: a later holding has a greater token.
//! - **Possession**: a hold that was told is kept, where the mode promises that
//!   ([`Protection::keeps_holds`]).
//!
//! Order and prompt hand-offs are not promised across fail-overs. But when the
//! faults are over every client has to get every lock.
//!
//! # The modes
//!
//! - `plain`: nothing protects. Replication is asynchronous, so breaches have to
//!   be found. This shows that the campaign can find them.
//! - `min-replicas`: grants are told when both replicas have them.
//! - `grace`: a new primary grants nothing before the leases of the old one are
//!   over, and a primary without both replicas takes no writes.
//!
//! # What the clients keep to
//!
//! - An owner is there for one holding. Who released a hold, or was told that it
//!   has none, never asks again as that owner.
//! - Who holds counts its lease from when it sent the request, less what it keeps
//!   in hand, and sends no more renewals when that is over. A grant that may have
//!   waited is renewed at once.
//! - `NOREPLICAS` is not believed, neither as a yes nor as a no: in the history
//!   the outcome is unknown. The client asks again with `HOLD`, or releases.
//! - The clocks of all nodes and clients are that of one machine.
//! - A client asks a sentinel who is the primary, and works with a node only
//!   while that says so itself.
//!
//! # Why a correct server is never found at fault
//!
//! - A fault begins when both replicas have synchronized with the primary, and
//!   the sentinels see them all. So the one that is promoted has not restarted
//!   since it was told of the holds that count.
//! - A primary that was killed comes back empty, as the primary that it was. That
//!   loses writes, which only the grace period promises to survive. In the other
//!   protected mode, it comes back when all sentinels agree on another one.
//! - A primary that is no longer the one may say that it knows nothing of a hold.
//!   It says nothing about who holds then, so this is no breach: where some
//!   sentinel names another node just after the answer, the answer counts as an
//!   error. All who were granted anything by another node know of that from a
//!   sentinel, and the sentinels are never hurt.
//!
//! # How nodes are cut off
//!
//! Each node is known to its peers, the replicas and the sentinels, by the
//! address of a proxy, which it announces as its own; and to the clients by two
//! more proxies, one for each half of them. So a primary can be cut off from its
//! peers while clients still reach it, or from everybody. Every replica connects
//! from a loopback address of its own, by which the proxy can cut off one of
//! them. A primary opens no connections, so it is cut off in both directions.
//! What goes by meanwhile is lost or arrives late.

pub mod clients;
pub mod faults;
pub mod fleet;
pub mod protection;
pub mod story;
