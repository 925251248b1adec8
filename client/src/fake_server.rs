//! A server for unit tests: it answers as it is told to, and notes what it was
//! asked and when.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::clock::Moment;
use crate::error::Error;
use crate::holding::hold::{Grant, Hold};
use crate::holding::server_hold::{ServerHold, Trace};
use crate::request::Mode;
use crate::servers::connection::ConnectionName;
use crate::servers::node::{Ask, Reply};

/// What it does when it is asked.
#[derive(Clone)]
pub(crate) enum Answer {
    /// It replies with a number.
    Says(i64),
    /// It takes this long to do that.
    SaysAfter(Duration, i64),
    /// It refuses, or can't be reached.
    Fails(Error),
    /// It is silent for this long, and then can't be reached.
    IsSilent(Duration),
}

/// A server that renews and releases, if not told otherwise.
pub(crate) struct FakeServer {
    begun: Instant,
    next: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<(Duration, String)>>,
    may_linger: AtomicBool,
}

impl FakeServer {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            next: Mutex::default(),
            asked: Mutex::default(),
            may_linger: AtomicBool::new(false),
        })
    }

    /// What it does next, before it is as usual again.
    pub(crate) fn will(&self, answers: impl IntoIterator<Item = Answer>) {
        self.next.lock().unwrap().extend(answers);
    }

    /// From now on, what it did not answer may yet be carried out.
    pub(crate) fn lets_linger(&self) {
        self.may_linger.store(true, Ordering::SeqCst);
    }

    /// What it was asked, and when.
    pub(crate) fn asked(&self) -> Vec<(Duration, String)> {
        self.asked.lock().unwrap().clone()
    }

    /// What it was asked, in order.
    pub(crate) fn commands(&self) -> Vec<String> {
        self.asked().into_iter().map(|(_, asked)| asked).collect()
    }

    /// How often it was asked for this.
    pub(crate) fn count(&self, command: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        let asked = asked.iter().filter(|(_, asked)| asked.starts_with(command));
        asked.count()
    }

    /// A hold on it with token 7, granted just now.
    pub(crate) fn hold(self: &Arc<Self>, lease: Duration) -> Arc<Hold> {
        Self::hold_on(&[self], lease)
    }

    /// As [`FakeServer::hold`], on several.
    pub(crate) fn hold_on(servers: &[&Arc<Self>], lease: Duration) -> Arc<Hold> {
        let held = |server: &&Arc<Self>| {
            ServerHold::new(Arc::new(Arc::clone(server)), Some(7), Trace::left())
        };
        let grant = Grant {
            key: b"k".to_vec(),
            owner: b"o".to_vec(),
            mode: Mode::Exclusive,
            lease,
            server_holds: servers.iter().map(held).collect(),
            sent_at: Moment::now(),
            good_for: lease,
            session: None,
            in_use: None,
            stragglers: JoinSet::new(),
        };
        Arc::new(Hold::new(grant, Handle::current()))
    }

    fn note(&self, asked: String) {
        let at = self.begun.elapsed();
        self.asked.lock().unwrap().push((at, asked));
    }
}

/// What `LOCK.INFO` replies while the hold is there, or is not.
fn info(is_held: bool) -> Value {
    let text = |text: &str| Value::BulkString(text.into());
    let holder = vec![
        (text("owner"), text("o")),
        (text("holds"), Value::Int(1)),
        (text("fence"), Value::Int(7)),
    ];
    let holders = match is_held {
        true => vec![Value::Map(holder)],
        false => Vec::new(),
    };
    Value::Map(vec![
        (text("holders"), Value::Array(holders)),
        (text("waiting"), Value::Int(0)),
        (text("waiters"), Value::Array(Vec::new())),
    ])
}

impl Ask for Arc<FakeServer> {
    fn ask<'a>(&'a self, _: &'a [u8], cmd: &'a Cmd) -> BoxFuture<'a, Result<Reply, Error>> {
        let words = cmd.args_iter().map(|word| match word {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => "?".into(),
        });
        let asked = words.collect::<Vec<_>>().join(" ");
        let is_info = asked.starts_with("LOCK.INFO");
        self.note(asked);
        let sent_at = Moment::now();
        let answer = self.next.lock().unwrap().pop_front();
        Box::pin(async move {
            let number = match answer.unwrap_or(Answer::Says(1)) {
                Answer::Says(number) => number,
                Answer::SaysAfter(time, number) => {
                    sleep(time).await;
                    number
                }
                Answer::Fails(error) => return Err(error),
                Answer::IsSilent(time) => {
                    sleep(time).await;
                    return Err(Error::timed_out());
                }
            };
            Ok(Reply {
                value: match is_info {
                    true => info(number == 1),
                    false => Value::Int(number),
                },
                sent_at,
                resent: false,
            })
        })
    }

    fn may_linger(&self) -> bool {
        self.may_linger.load(Ordering::SeqCst)
    }

    fn close<'a>(
        &'a self,
        _: &'a [u8],
        name: &'a ConnectionName,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.note(format!("close {}", name.id));
        Box::pin(async { Ok(()) })
    }
}
