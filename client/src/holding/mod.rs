//! What there is of a lock that is held: how long it can be relied upon, its renewal, its
//! release, the connection that it may be bound to, and the guards that share it.

pub(crate) mod binding;
pub(crate) mod hold;
pub(crate) mod owner;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod server_hold;
pub(crate) mod wishes;
