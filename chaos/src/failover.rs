//! A campaign of fail-overs: locks on a primary with two replicas, where
//! primaries die, stand still and are cut off, and replicas that lag behind take
//! over. Sentinels see to that, or the other primaries of a cluster. They are
//! the witnesses: all others learn from them who is the primary.
//!
//! # What is judged
//!
//! One history of all clients, whoever was the primary, and no fail-over is
//! excused in it ([`crate::history`]):
//!
//! - **Exclusion**: certain holds of two owners in one lock never overlap.
//! - **Tokens**: a later holding has a greater token.
//! - **Possession**: a hold that was told is kept, where the mode promises that
//!   ([`protection::Protection::keeps_holds`]).
//!
//! Order and prompt hand-offs are not promised across fail-overs. But when the
//! faults are over every client has to get every lock.
//!
//! # The modes
//!
//! - `plain`: nothing protects. Replication is asynchronous, so breaches have to
//!   be found.
//! - `min-replicas`: grants are told when both replicas have them.
//! - `grace`: a new primary grants nothing before the leases of the old one are
//!   over, and a primary without both replicas takes no writes.
//!
//! # What the clients keep to
//!
//! - Some wait by a place in the queue, and are told by a message. They claim at once
//!   what they are told. Their connections hear a channel that no other one hears. Where
//!   the server blocks no connection that has subscribed, they have another one for that.
//! - An owner is there for one holding. Who released a hold, or was told that it
//!   has none, never asks again as that owner: a hold that the old primary had
//!   ended may be in the data of the new one, with its old token.
//! - Who holds counts its lease from when it sent the request, less what it keeps
//!   in hand, and sends no more renewals when that is over. A grant that may have
//!   waited is renewed at once.
//! - `NOREPLICAS` is not believed, neither as a yes nor as a no: in the history
//!   the outcome is unknown. The client asks again with `HOLD`, or releases. Nor is
//!   `UNBLOCKED`, which a primary that is demoted says of all that it withholds.
//! - The clocks of all nodes and clients are that of one machine.
//! - A client asks a witness who is the primary, and works with a node only if
//!   that says so itself.
//!
//! # Why a correct server is never found at fault
//!
//! - A fault begins when both replicas have synchronized with the primary, and
//!   all witnesses agree on it. So the one that is promoted has not restarted
//!   since it acknowledged the holds that count.
//! - A node that was killed comes back empty, as what it was at first: the old
//!   primary as a primary. That loses writes, which only the grace period promises
//!   to survive. In the other protected mode it comes back when all witnesses
//!   agree on another primary, so nobody asks it.
//! - A primary that is no longer the one may say that it knows nothing of a hold.
//!   That is no breach, as it grants nothing by that: where some witness names
//!   another node just after the answer, it is dismissed. Whoever was
//!   granted something by that other node had it named by a witness, and
//!   witnesses are never hurt. With a grace period, what was told before a start
//!   or a promotion may be lost, and an `ACQUIRE` that was sent within it tells of
//!   no hold.
//!
//! # Why it would notice
//!
//! Besides `plain`, a protection that is too weak has to be found at fault:
//! `--mode min-replicas --replicas 1`, and `--mode grace --grace 500`. In a
//! cluster that may take long: a primary that the others don't hear soon takes
//! no writes, so fewer holds outlive it.
//!
//! # How nodes are cut off
//!
//! Each node announces the address of a proxy as its own, and that of another one
//! as its place on the bus of a cluster. Clients reach it by two more, one for
//! each half of them. So a primary can be cut off from its peers while clients
//! still reach it, or from everybody. Every node connects from a loopback address
//! of its own, by which a proxy can cut off one replica, or what a node sends on
//! the bus. What goes by meanwhile is lost, or arrives late.

pub mod clients;
pub mod faults;
pub mod fleet;
pub mod protection;
pub mod story;
