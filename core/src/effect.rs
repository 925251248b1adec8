//! What a transition has written, in terms of core commands.

use smallvec::SmallVec;

use crate::holder::{Holder, Permit};
use crate::request::Owner;
use crate::token::FencingToken;

/// One write to the keyspace of the primary. Replicas get the core command that is named
/// here, which has the same effect on theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `HSET key owner holds [@permit:owner permit] [@fence token]`
    SetHolder {
        /// The owner.
        owner: Owner,
        /// Its new hold count.
        holds: i64,
        /// Its permit, if others may hold the lock with it.
        permit: Option<Permit>,
        /// The token, if it is new.
        new_token: Option<FencingToken>,
    },
    /// `HDEL key owner @permit:owner`
    RemoveHolder {
        /// The owner.
        owner: Owner,
    },
    /// `PEXPIREAT key at_ms`
    ExpireAt {
        /// Milliseconds since 1970.
        at_ms: i64,
    },
    /// `DEL key`
    Delete,
    /// `RESTORE key end_ms {@fence: token, owner: 1} REPLACE ABSTTL`: whatever was
    /// stored, the lock is now exactly this.
    Replace {
        /// Who holds it alone, with one hold.
        owner: Owner,
        /// Its token.
        token: FencingToken,
        /// When its lease ends, in milliseconds since 1970.
        end_ms: i64,
    },
}

/// What has to be written, in order.
pub type Effects = SmallVec<[Effect; 3]>;

impl Holder {
    pub(crate) fn written(&self, new_token: Option<FencingToken>) -> Effect {
        Effect::SetHolder {
            owner: self.owner.clone(),
            holds: self.holds,
            permit: self.permit(),
            new_token,
        }
    }
}
