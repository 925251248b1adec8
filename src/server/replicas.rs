//! The replicas of this server, as it knows them.
//!
//! `INFO` tells of each replica how far it has acknowledged the stream, and when, as of
//! this moment. `ROLE` does not tell when; the server's own count of good replicas, by
//! which it refuses commands, is up to a second old; and `WAIT`, called by a module,
//! answers for another client than the one that wrote.
//!
//! # When replicas are asked
//! Where replies are withheld, at the end of the turn in which they were: what is
//! acknowledged then covers them. After a pause of the server, by the wake timer: ends of
//! turns are followed only where replies are withheld, because that costs each turn a
//! call.

use std::cell::Cell;

use redis_module::{CallOptionsBuilder, CallReply, CallResult, Context};

use crate::config;
use crate::server::api::api;

/// What the server demands of its replicas before it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// `min-replicas-to-write`, 1 or more.
    pub(crate) count: usize,
    /// `min-replicas-max-lag`, in seconds, 1 or more.
    pub(crate) max_lag_s: i64,
}

/// The replication stream of a primary.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    /// How many bytes of it are written.
    pub(crate) written: i64,
    /// The replicas that are online: they have the whole data set.
    pub(crate) online: Vec<Replica>,
}

/// A replica, as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    /// How many bytes of the stream it has acknowledged.
    pub(crate) acknowledged: i64,
    /// How many seconds ago it acknowledged anything.
    pub(crate) lag_s: i64,
}

/// What the server demands, if it demands anything.
pub(crate) fn demand(ctx: &Context) -> Option<Demand> {
    let count = config::of_server(ctx, "min-replicas-to-write")?;
    let max_lag_s = config::of_server(ctx, "min-replicas-max-lag")?;
    let (count, max_lag_s) = (count.parse().ok()?, max_lag_s.parse().ok()?);
    (count > 0 && max_lag_s > 0).then_some(Demand { count, max_lag_s })
}

impl Stream {
    /// Counts the good replicas: those whose last acknowledgement is at most `max_lag_s`
    /// seconds old, and is of more than `beyond` bytes of the stream if that is given.
    pub(crate) fn good(&self, max_lag_s: i64, beyond: Option<i64>) -> usize {
        let is_good = |replica: &&Replica| {
            // An acknowledgement from the future is one before the clock was set back.
            let is_recent = (0..=max_lag_s).contains(&replica.lag_s);
            is_recent && beyond.is_none_or(|beyond| replica.acknowledged > beyond)
        };
        self.online.iter().filter(is_good).count()
    }
}

thread_local! {
    /// How many replicas are online, where that is known.
    static ONLINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// How many replicas are online, where they are followed.
pub(crate) fn online(ctx: &Context) -> usize {
    let known = ONLINE.get();
    known.unwrap_or_else(|| look(ctx).map_or(0, |stream| stream.online.len()))
}

/// A replica has come or gone. One that leaves may still be in the server's list.
pub(crate) fn forget_online() {
    ONLINE.set(None);
}

/// The stream, if this server is a primary. What is written in this turn of the event
/// loop is in it.
pub(crate) fn look(ctx: &Context) -> Option<Stream> {
    let options = CallOptionsBuilder::new().build();
    let reply: CallResult<'_> = ctx.call_ext("INFO", &options, &["replication"]);
    let Ok(CallReply::String(info)) = &reply else {
        return None;
    };
    let stream = read(info.as_bytes())?;
    ONLINE.set(Some(stream.online.len()));
    Some(stream)
}

fn read(info: &[u8]) -> Option<Stream> {
    let (mut stream, mut is_primary) = (Stream::default(), false);
    for line in std::str::from_utf8(info).ok()?.lines() {
        match line.split_once(':') {
            Some(("role", role)) => is_primary = role == "master",
            Some(("master_repl_offset", written)) => stream.written = written.parse().ok()?,
            Some((name, replica)) if is_replica(name) => stream.online.extend(read_online(replica)),
            _ => {}
        }
    }
    is_primary.then_some(stream)
}

/// Whether this is the name of a line about a replica.
fn is_replica(name: &str) -> bool {
    let number = name.strip_prefix("slave");
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A replica, if it is online.
fn read_online(line: &str) -> Option<Replica> {
    let words = line.split(',').filter_map(|word| word.split_once('='));
    let field = |name| words.clone().find(|word| word.0 == name).map(|word| word.1);
    let number = |name| field(name)?.parse::<i64>().ok();
    (field("state")? == "online").then_some(Replica {
        acknowledged: number("offset")?,
        lag_s: number("lag")?,
    })
}

/// Has the stream reach further, by a command that changes nothing.
pub(crate) fn go_on(ctx: &Context) {
    // SAFETY: the context is alive, and may write. In the format, A keeps the command
    // from the AOF.
    unsafe { api!(replicate)(ctx.ctx, c"PING".as_ptr(), c"A".as_ptr()) };
}

/// Asks all replicas to acknowledge at once what they have received. If anything else is
/// replicated with it, what they acknowledge may be less.
pub(crate) fn ask_for_acknowledgements(ctx: &Context) {
    // SAFETY: the context is alive, and may write. In the format, A keeps the command
    // from the AOF, and c is a string of C.
    unsafe {
        api!(replicate)(
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
        assert_eq!(read(INFO).unwrap().good(max_lag_s, beyond), good);
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
    fn all_that_are_online_may_have_acknowledged_the_stream() {
        let stream = read(INFO).unwrap();
        let acknowledged: Vec<i64> = stream.online.iter().map(|one| one.acknowledged).collect();
        assert_eq!((stream.written, acknowledged), (130, vec![100, 120, 90]));
    }

    #[test]
    fn who_is_no_primary_has_no_stream() {
        let replica = String::from_utf8_lossy(INFO).replace("role:master", "role:slave");
        assert_eq!(read(replica.as_bytes()), None);
    }

    #[test]
    fn what_can_not_be_read_has_no_replicas() {
        assert_eq!(read(b"\xff"), None);
        let stream = read(b"role:master\r\nslave0:nothing\r\nslave1:state=online\r\n");
        assert_eq!(stream, Some(Stream::default()));
    }
}
