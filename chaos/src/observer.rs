//! Watches which clients the server has blocked, so that the order in which
//! they queued is known, and notes when the server or this machine stood still.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use redis_lock_testing::{Connection, reply_text};

use crate::client::Shared;
use crate::clock;
use crate::history::{Effect, MS, Nanos};
use crate::journal::Journal;

const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Who takes longer than this to answer, or to wake up, stood still.
const PROMPT: Nanos = 45 * MS;

/// Looks until the faults are over.
pub fn watch(shared: &Shared) {
    let (journal, go_on) = (&shared.journal, || !shared.is_over());
    let mut connected: Option<(SocketAddr, Connection)> = None;
    while go_on() {
        let slept = clock::now();
        thread::sleep(LOOK_EVERY);
        note_a_stop(journal, "a slow machine", slept);
        let primary = shared.guide.primary(0).unwrap_or_default();
        let addr = shared.guide.way(primary, None);
        let Some((_, connection)) = connected.as_mut().filter(|(to, _)| *to == addr) else {
            connected = Connection::open(addr).ok().map(|new| (addr, new));
            continue;
        };
        let before = journal.waiting();
        let asked = clock::now();
        let list = connection.call_while(&["CLIENT", "LIST"], go_on);
        let list = list.and_then(reply_text);
        note_a_stop(journal, "a slow server", asked);
        let Some(list) = list else {
            connected = None;
            continue;
        };
        let seen = clock::now();
        let blocked = list
            .lines()
            .filter_map(blocked_connection)
            .filter_map(|id| Some((id, *before.get(&id)?)));
        journal.seen_blocked(blocked, seen);
    }
}

/// Notes what began at this time and took too long.
fn note_a_stop(journal: &Journal, what: &str, from: Nanos) {
    let until = clock::now();
    if until - from > PROMPT {
        journal.interfered(what, &[Effect::StopsTheServer], None, (from, until));
    }
}

/// The id of the client in a line of `CLIENT LIST`, if it is blocked.
fn blocked_connection(line: &str) -> Option<i64> {
    let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
    let blocked = field("flags=")?.contains('b');
    blocked.then(|| field("id=")?.parse().ok()).flatten()
}
