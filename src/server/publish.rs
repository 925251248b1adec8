//! Tells Redisson's waiters that a lock came free.

use redis_module::{CallOptionsBuilder, CallResult};

use crate::server::keyspace::LockKey;

/// The message that Redisson's unlock script publishes.
const UNLOCKED: &[u8] = b"0";

/// Publishes, by `PUBLISH` or `SPUBLISH`, what Redisson's `RLock` publishes
/// when it is unlocked. Subscribers of replicas get it as well.
pub(crate) fn release_to_redisson(key: LockKey<'_>, command: &str) {
    let options = CallOptionsBuilder::new().replicate().build();
    let channel = redisson_channel(key.name().bytes());
    // A waiter that hears nothing tries again when the lease would have ended, so
    // an error needs no handling.
    let _: CallResult<'_> = key
        .ctx()
        .call_ext(command, &options, &[channel.as_slice(), UNLOCKED]);
}

/// Redisson puts braces around the key, for its slot, unless it has one already.
fn redisson_channel(key: &[u8]) -> Vec<u8> {
    const PREFIX: &[u8] = b"redisson_lock__channel:";
    if key.contains(&b'{') {
        [PREFIX, key].concat()
    } else {
        [PREFIX, b"{", key, b"}"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::redisson_channel;

    #[test]
    fn the_channel_has_braces_once() {
        assert_eq!(redisson_channel(b"k"), b"redisson_lock__channel:{k}");
        assert_eq!(redisson_channel(b"{a}b"), b"redisson_lock__channel:{a}b");
    }
}
