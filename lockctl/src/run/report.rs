//! What `lockctl run` tells on stderr. Stdout is the command's.

use std::fmt::Display;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use redis_lock_client::{Error, LockGuard, Lost};

use super::members::Process;
use super::stderr::Stderr;
use crate::arguments::RunOptions;
use crate::exit::Exit;
use crate::name::{Object, shown};
use crate::view::ms;

/// How often a failure is told that goes on.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Of these events the exit code tells enough, as with flock(1).
const ROUTINE: [&str; 5] = [
    "acquired",
    "not_acquired",
    "interrupted",
    "released",
    "kept",
];

/// Tells what happens to a lock.
pub struct Report {
    json: bool,
    verbose: bool,
    key: Vec<u8>,
    stderr: Stderr,
    /// The code of the failure that was told last.
    told: Option<(String, Instant)>,
}

impl Report {
    pub fn new(json: bool, options: &RunOptions) -> io::Result<Self> {
        Ok(Self {
            json,
            verbose: options.verbose,
            key: options.name.as_bytes().into(),
            stderr: Stderr::open()?,
            told: None,
        })
    }

    /// Whether it tells more than trouble.
    pub fn tells_routine(&self) -> bool {
        self.json || self.verbose
    }

    pub fn acquired(&self, guard: &LockGuard, waited: Duration) {
        let (owner, token, waited) = (guard.owner(), guard.token(), ms(waited));
        let fields = Object::default().name("owner", owner).set("token", token);
        let by = format!("taken by {} with token {token}", shown(owner));
        let text = format!("{by} after {waited} ms");
        self.tell("acquired", &text, fields.set("waited_ms", waited));
    }

    pub fn not_acquired(&self, waited: Duration, why: &str) {
        let waited = ms(waited);
        let text = format!("not granted within {waited} ms: {why}");
        let fields = Object::default().set("waited_ms", waited).set("why", why);
        self.tell("not_acquired", &text, fields);
    }

    pub fn interrupted(&self) {
        let text = "the wait was interrupted";
        self.tell("interrupted", text, Object::default());
    }

    /// The server grants nothing now, or is not there, and the wait goes on.
    pub fn waiting_on(&mut self, error: &Error) {
        let (event, when) = match error {
            Error::Unavailable { .. } => ("server_gone", "without the server"),
            _ => ("server_refuses", "while the server refuses"),
        };
        self.failed(event, &format!("waiting on {when}: {error}"), error);
    }

    pub fn not_renewed(&mut self, guard: &LockGuard, error: &Error) {
        let left = ms(guard.valid_for());
        let text = format!("not renewed: {error}, left {left} ms");
        self.failed("not_renewed", &text, error);
    }

    fn failed(&mut self, event: &str, text: &str, error: &Error) {
        if let Some((code, at)) = &self.told
            && code == error.code()
            && at.elapsed() < TOLD_EVERY
        {
            return;
        }
        self.told = Some((error.code().into(), Instant::now()));
        self.tell(event, text, why(error.code(), error));
    }

    pub fn lost(&self, lost: Lost) {
        let code = match lost {
            Lost::Expired => "EXPIRED",
            Lost::Refused => "REFUSED",
            Lost::Disconnected => "DISCONNECTED",
            Lost::Released => "RELEASED",
            _ => "LOST",
        };
        let text = format!("lost before the command had ended: {lost}");
        self.tell("lost", &text, why(code, &lost));
    }

    /// What can't be ended still runs, `lost` without the lock.
    pub fn unended(&self, processes: &[Process], lost: bool) {
        let names: Vec<_> = processes.iter().map(Process::to_string).collect();
        let names = match &names[..] {
            [] => "a process that can't be ended".into(),
            names => format!("process {}, which this user may not end,", names.join(", ")),
        };
        let text = match lost {
            true => format!("lost, but {names} still runs: another may hold the lock"),
            false => format!("{names} still runs: the lock stays taken until it ends"),
        };
        let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
        let fields = Object::default().set("pids", pids).set("lost", lost);
        self.tell("unended", &text, fields);
    }

    pub fn released(&self, exit: Exit) {
        let code = exit.code();
        let text = format!("released; the command exited with {code}");
        let fields = Object::default().set("exit_code", code);
        self.tell("released", &text, fields);
    }

    pub fn kept(&self, exit: Exit, lease: Duration) {
        let (code, lease) = (exit.code(), ms(lease));
        let text = format!("stays taken for {lease} ms; the command exited with {code}");
        let fields = Object::default().set("exit_code", code);
        self.tell("kept", &text, fields.set("lease_ms", lease));
    }

    /// The lock could not be given back, or not in time.
    pub fn unreleased(&self, exit: Exit, code: &str, error: &impl Display) {
        let text = format!("could not be released: {error}. It ends with its lease");
        let fields = why(code, error).set("exit_code", exit.code());
        self.tell("unreleased", &text, fields);
    }

    fn tell(&self, event: &str, text: &str, fields: Object) {
        if self.json {
            let object = Object::default().set("event", event).name("key", &self.key);
            self.stderr.tell(object.and(fields).to_string());
        } else if self.verbose || !ROUTINE.contains(&event) {
            self.stderr
                .tell(format!("lockctl: {}: {text}", shown(&self.key)));
        }
    }
}

fn why(code: &str, why: &impl Display) -> Object {
    Object::default()
        .set("code", code)
        .set("why", why.to_string())
}
