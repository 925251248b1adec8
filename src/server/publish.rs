//! Messages: to the owners of places, to Redisson's waiters, and to those who subscribe to
//! what happens to keys.

use std::ffi::CStr;

use redis_module::{
    CallOptionsBuilder, CallReply, CallResult, Context, RedisString, RedisValue, raw,
};
use smallvec::SmallVec;

use crate::server::acl::User;
use crate::server::api::api;
use crate::server::keyspace::{self, LockKey};
use crate::server::reply::refusal_text;
use crate::server::server_str::{self, ServerStr, StaticStr};
use redis_lock_core::queue::Place;
use redis_lock_core::table::{Answer, LockEvent};

/// Publishes what has become of a place: five netstrings, the number of the database, the
/// key, the owner, the result, and how long the first lease of a grant is. Returns whether
/// anybody heard it on this node.
///
/// In a cluster it is a sharded message. Replicas don't get it: their data may be behind
/// what it tells.
pub(crate) fn end_of_place(ctx: &Context, place: &Place, answer: &Answer) -> bool {
    let [mut db, mut token, mut lease_ms] = [itoa::Buffer::new(); 3];
    let refusal;
    let result = match answer {
        Answer::Granted(granted) => token.format(granted.get()),
        Answer::NotGranted | Answer::Renewed(_) => "0",
        Answer::Refused(error) => {
            let user = || User::of(ctx, place.client);
            refusal = format!("-{}", refusal_text(ctx, error, user));
            &refusal
        }
    };
    let first_lease_ms = match answer {
        Answer::Granted(_) => place.first_lease.ms(),
        _ => 0,
    };
    let key = place.key.as_ref();
    let parts = [
        db.format(key.db).as_bytes(),
        key.name,
        place.owner.as_bytes(),
        result.as_bytes(),
        lease_ms.format(first_lease_ms).as_bytes(),
    ];
    let channel = server_str::make(&place.channel);
    let message = server_str::make(&netstrings(parts));
    publish(ctx, &channel, ServerStr::from(&message))
}

/// Publishes a message, in a cluster a sharded one. Returns whether anybody heard it on
/// this node.
fn publish(ctx: &Context, channel: &RedisString, message: ServerStr<'_>) -> bool {
    // SAFETY: the context is alive, and the strings live through the call.
    unsafe {
        let publish = match keyspace::in_cluster(ctx) {
            true => api!(publish_message_shard),
            false => api!(publish_message),
        };
        publish(ctx.ctx, channel.inner, message.inner()) > 0
    }
}

thread_local! {
    /// The message that Redisson's unlock script publishes.
    static UNLOCKED: StaticStr = StaticStr::new(b"0");
}

/// Whether anybody on this node listens to this very channel: to a pattern does not count.
pub(crate) fn is_listened_to(ctx: &Context, channel: &[u8]) -> bool {
    let count: &[u8] = match keyspace::in_cluster(ctx) {
        true => b"SHARDNUMSUB",
        false => b"NUMSUB",
    };
    let counted = ctx.call("PUBSUB", &[count, channel]);
    let none = Some(&RedisValue::Integer(0));
    !matches!(counted, Ok(RedisValue::Array(words)) if words.last() == none)
}

/// Notifies those who have subscribed to this event, of the module class: `d` in
/// `notify-keyspace-events`.
pub(crate) fn event(key: LockKey<'_>, event: LockEvent) {
    let name: &'static CStr = match event {
        LockEvent::Acquired => c"lock.acquire",
        LockEvent::Released => c"lock.release",
        LockEvent::Expired => c"lock.expire",
        LockEvent::Broken => c"lock.break",
    };
    let (ctx, class) = (key.ctx().ctx, raw::REDISMODULE_NOTIFY_MODULE);
    // SAFETY: the context and the key's name are alive, the event's name lasts.
    unsafe { api!(notify_keyspace_event)(ctx, class, name.as_ptr(), key.name().inner()) };
}

/// Each part with its length in front of it.
fn netstrings(parts: [&[u8]; 5]) -> SmallVec<[u8; 256]> {
    let mut all = SmallVec::new();
    for part in parts {
        all.extend_from_slice(itoa::Buffer::new().format(part.len()).as_bytes());
        all.push(b':');
        all.extend_from_slice(part);
        all.push(b',');
    }
    all
}

/// Publishes by `PUBLISH` or `SPUBLISH` what Redisson's `RLock` publishes when it is
/// unlocked. Subscribers of replicas get it as well.
pub(crate) fn release_to_all(ctx: &Context, key: &[u8], command: &str) {
    let options = CallOptionsBuilder::new().replicate().build();
    let (channel, message) = (redisson_channel(key), UNLOCKED.with(StaticStr::get));
    // A waiter that hears nothing tries again when the lease would have ended, so
    // an error needs no handling.
    let _: CallResult<'_> = ctx.call_ext(command, &options, &[&channel, message.bytes()]);
}

/// The same, if a client of this node listens. Returns whether one does.
pub(crate) fn release_to_listeners(ctx: &Context, key: &[u8]) -> bool {
    let channel = redisson_channel(key);
    // A message is compared with all patterns, and a sharded one goes to all replicas.
    if !is_listened_to(ctx, &channel) {
        return false;
    }
    let message = UNLOCKED.with(StaticStr::get);
    publish(ctx, &server_str::make(&channel), message)
}

/// Whether anybody on this node listens to any channel that a release could be published
/// on, as far as the server tells.
pub(crate) fn anybody_listens(ctx: &Context) -> bool {
    let none = match keyspace::in_cluster(ctx) {
        true => "pubsubshard_channels:0\r",
        false => "pubsub_channels:0\r",
    };
    let options = CallOptionsBuilder::new().build();
    let reply: CallResult<'_> = ctx.call_ext("INFO", &options, &["stats"]);
    let Ok(CallReply::String(info)) = &reply else {
        return true;
    };
    !String::from_utf8_lossy(info.as_bytes()).contains(none)
}

/// Redisson puts braces around the key, for its slot, unless it has one already.
fn redisson_channel(key: &[u8]) -> SmallVec<[u8; 128]> {
    const PREFIX: &[u8] = b"redisson_lock__channel:{";
    let has_brace = key.contains(&b'{');
    let mut channel = SmallVec::from_slice(PREFIX);
    channel.truncate(PREFIX.len() - usize::from(has_brace));
    channel.extend_from_slice(key);
    if !has_brace {
        channel.push(b'}');
    }
    channel
}

#[cfg(test)]
mod tests {
    use super::{netstrings, redisson_channel};

    #[test]
    fn each_part_of_a_message_says_how_long_it_is() {
        let parts = [&b"0"[..], b"a:b,", b"", b"-X y", b"0"];
        assert_eq!(netstrings(parts)[..], b"1:0,4:a:b,,0:,4:-X y,1:0,"[..]);
    }

    #[test]
    fn the_channel_has_braces_once() {
        assert_eq!(redisson_channel(b"k")[..], *b"redisson_lock__channel:{k}");
        assert_eq!(
            redisson_channel(b"{a}b")[..],
            *b"redisson_lock__channel:{a}b"
        );
    }
}
