//! What the server knows of the commands: the flags by which it runs them, and
//! what it tells in `COMMAND DOCS`, `COMMAND INFO` and the hints that `redis-cli` shows while one types.

use std::ffi::CStr;

use crate::server::registration::{ArgDoc, CommandDoc, KeyChange};

const LEASE: ArgDoc = ArgDoc::OptionalNumber(c"lease", c"LEASE");
const BLOCK: ArgDoc = ArgDoc::OptionalNumber(c"block", c"BLOCK");
const HOLD: ArgDoc = ArgDoc::OptionalNumber(c"hold", c"HOLD");
const FENCE: ArgDoc = ArgDoc::OptionalNumber(c"fence", c"FENCE");

const COMPLEXITY: &CStr =
    c"O(log N + H + M) where N is the number of clients waiting for the lock, H that of its holders and M that of owners waiting for several locks.";

/// `LOCK.ACQUIRE`
pub(super) const ACQUIRE: CommandDoc = CommandDoc {
    name: c"lock.acquire",
    flags: c"write deny-oom blocking fast",
    summary: c"Takes a lock for an owner, waiting for it if asked to. Replies its fencing token.",
    complexity: COMPLEXITY,
    min_words: 3,
    key_change: Some(KeyChange::Update),
    args: &[
        ArgDoc::Key,
        ArgDoc::Word(c"owner"),
        LEASE,
        BLOCK,
        HOLD,
        ArgDoc::OptionalOneOf(
            c"mode",
            &[
                ArgDoc::Flag(c"shared", c"SHARED"),
                ArgDoc::OptionalNumber(c"limit", c"LIMIT"),
            ],
        ),
        ArgDoc::OptionalFlag(c"session", c"SESSION"),
    ],
};

/// `LOCK.RELEASE`
pub(super) const RELEASE: CommandDoc = CommandDoc {
    name: c"lock.release",
    flags: c"write fast",
    summary: c"Gives one hold of a lock back, and with the last one hands the lock on.",
    complexity: COMPLEXITY,
    min_words: 3,
    key_change: Some(KeyChange::Delete),
    args: &[
        ArgDoc::Key,
        ArgDoc::Word(c"owner"),
        FENCE,
        ArgDoc::OptionalOneOf(c"extent", &[HOLD, ArgDoc::Flag(c"all", c"ALL")]),
    ],
};

/// `LOCK.RENEW`
pub(super) const RENEW: CommandDoc = CommandDoc {
    name: c"lock.renew",
    flags: c"write fast",
    summary: c"Sets the end of a lock's lease, if the owner holds the lock.",
    complexity: c"O(H) where H is the number of the lock's holders.",
    min_words: 3,
    key_change: Some(KeyChange::Update),
    args: &[ArgDoc::Key, ArgDoc::Word(c"owner"), LEASE, FENCE],
};
/// `LOCK.INFO`
pub(super) const INFO: CommandDoc = CommandDoc {
    name: c"lock.info",
    flags: c"readonly fast",
    summary: c"Tells who holds a lock and who waits for it.",
    complexity:
        c"O(N + H) where N is the number of clients waiting for the lock and H that of its holders.",
    min_words: 2,
    key_change: Some(KeyChange::None),
    args: &[ArgDoc::Key],
};

/// `LOCK.LIST`
pub(super) const LIST: CommandDoc = CommandDoc {
    name: c"lock.list",
    flags: c"readonly",
    summary: c"Lists the locks that clients wait for, longest wait first.",
    complexity: c"O(K log K) where K is the number of locks that clients wait for.",
    min_words: 1,
    key_change: None,
    args: &[ArgDoc::OptionalNumber(c"count", c"COUNT")],
};

/// `LOCK.BREAK`
pub(super) const BREAK: CommandDoc = CommandDoc {
    name: c"lock.break",
    flags: c"write fast",
    summary: c"Takes a lock from whoever holds it and hands it on.",
    complexity: COMPLEXITY,
    min_words: 2,
    key_change: Some(KeyChange::Delete),
    args: &[ArgDoc::Key, FENCE],
};
