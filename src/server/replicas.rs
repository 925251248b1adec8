//! The replicas of this server, as it knows them.

use redis_module::{CallOptionsBuilder, CallReply, CallResult, Context, RedisValue};

use crate::server::api::api;

/// What the server demands of its replicas before it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// `min-replicas-to-write`, 1 or more.
    pub(crate) count: usize,
    /// `min-replicas-max-lag`, in seconds, 1 or more.
    pub(crate) max_lag_s: i64,
}

/// What the server knows of its replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replicas {
    /// How many are good.
    pub(crate) good: usize,
    /// How much of its stream this server has written, in bytes.
    pub(crate) written: i64,
}

/// What the server demands, if it demands anything.
pub(crate) fn demand(ctx: &Context) -> Option<Demand> {
    let count = usize::try_from(setting(ctx, "min-replicas-to-write")?).ok()?;
    let max_lag_s = setting(ctx, "min-replicas-max-lag")?;
    (count > 0 && max_lag_s > 0).then_some(Demand { count, max_lag_s })
}

fn setting(ctx: &Context, name: &str) -> Option<i64> {
    let RedisValue::Array(reply) = ctx.call("CONFIG", &["GET", name]).ok()? else {
        return None;
    };
    match reply.get(1)? {
        RedisValue::SimpleString(text) => text.parse().ok(),
        _ => None,
    }
}

/// Counts the good replicas: those that have the whole data set and whose last
/// acknowledgement is at most so many seconds old, and is of more than `beyond` bytes
/// of the stream if that is given.
///
/// The server's own count, by which it refuses commands, is made once a second. What
/// `INFO` says of each replica is of this moment.
pub(crate) fn count(ctx: &Context, max_lag_s: i64, beyond: Option<i64>) -> Replicas {
    let options = CallOptionsBuilder::new().build();
    let reply: CallResult<'_> = ctx.call_ext("INFO", &options, &["replication"]);
    match &reply {
        Ok(CallReply::String(info)) => read(info.as_bytes(), max_lag_s, beyond),
        _ => Replicas::default(),
    }
}

fn read(info: &[u8], max_lag_s: i64, beyond: Option<i64>) -> Replicas {
    let mut replicas = Replicas::default();
    let Ok(info) = std::str::from_utf8(info) else {
        return replicas;
    };
    for line in info.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name == "master_repl_offset" {
            replicas.written = value.parse().unwrap_or(0);
        } else if let Some(number) = name.strip_prefix("slave")
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            let words = value.split(',').filter_map(|word| word.split_once('='));
            let field = |name| words.clone().find(|word| word.0 == name).map(|word| word.1);
            let number = |name| field(name).and_then(|value| value.parse::<i64>().ok());
            // An acknowledgement from the future is one before the clock was set back.
            let is_recent = number("lag").is_some_and(|lag_s| (0..=max_lag_s).contains(&lag_s));
            let is_beyond = beyond.is_none_or(|beyond| number("offset") > Some(beyond));
            if is_recent && is_beyond && field("state") == Some("online") {
                replicas.good += 1;
            }
        }
    }
    replicas
}

/// Asks all replicas to acknowledge at once what they have received. Where anything
/// else is replicated with it, what they acknowledge may be less.
pub(crate) fn ask_for_acknowledgements(ctx: &Context) {
    // SAFETY: the context is alive, and may write. In the format, A keeps the command
    // from the AOF, and c is a string of C.
    unsafe {
        (api().replicate)(
            ctx.ctx,
            c"REPLCONF".as_ptr(),
            c"Acc".as_ptr(),
            c"GETACK".as_ptr(),
            c"*".as_ptr(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &[u8] = b"# Replication\r\nrole:master\r\nconnected_slaves:4\r\n\
        min_slaves_good_slaves:4\r\n\
        slave0:ip=127.0.0.1,port=1,state=online,offset=100,lag=1\r\n\
        slave1:ip=::1,port=2,state=online,offset=120,lag=3,type=replica\r\n\
        slave2:ip=127.0.0.1,port=3,state=send_bulk,offset=0,lag=0\r\n\
        slave3:ip=127.0.0.1,port=4,state=online,offset=90,lag=-5\r\n\
        slave_priority:100\r\nmaster_repl_offset:130\r\n";

    #[track_caller]
    fn check(max_lag_s: i64, beyond: Option<i64>, good: usize) {
        let written = 130;
        assert_eq!(read(INFO, max_lag_s, beyond), Replicas { good, written });
    }

    #[test]
    fn a_replica_is_good_that_is_online_and_has_just_acknowledged() {
        check(0, None, 0);
        check(1, None, 1);
        check(2, None, 1);
        check(3, None, 2);
    }

    #[test]
    fn what_is_acknowledged_may_have_to_be_more_than_something() {
        check(3, Some(99), 2);
        check(3, Some(100), 1);
        check(3, Some(120), 0);
    }

    #[test]
    fn what_can_not_be_read_has_no_replicas() {
        assert_eq!(read(b"\xff", 10, None), Replicas::default());
        assert_eq!(read(b"slave0:nothing", 10, None), Replicas::default());
    }
}
