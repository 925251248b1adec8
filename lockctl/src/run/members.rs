//! What the command has started, in whatever process group it is.
//!
//! All of it descends from this process, which adopts those whose parent has ended. A
//! daemon that makes a session of its own has left.

use std::collections::HashMap;
use std::fmt;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// What it runs, as `ps` shows it.
    pub name: String,
    /// Its process group.
    pub group: i32,
    pub state: State,
}

/// The state of a process, as the letter that `ps` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State(pub char);

impl State {
    /// By a signal, or by who traces it.
    pub fn is_stopped(&self) -> bool {
        matches!(self.0, 'T' | 't')
    }

    /// In the middle of a system call that no signal ends.
    pub fn is_in_call(&self) -> bool {
        self.0 == 'D'
    }

    fn has_ended(&self) -> bool {
        matches!(self.0, 'Z' | 'X')
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

/// A line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    process: Process,
    parent: i32,
    /// 0 where its leader is outside of the namespace, as in some containers.
    session: i32,
}

/// The processes of this session that descend from this one and have not ended. None where
/// the system does not list processes in `/proc`.
pub fn living() -> Option<Vec<Process>> {
    let own = getpid().as_raw_nonzero().get();
    // Or it is that of another namespace.
    let listed = std::fs::read_link("/proc/self").ok()?;
    if listed.to_str() != Some(own.to_string().as_str()) {
        return None;
    }
    let session = Stat::read(own)?.session;
    let entries = std::fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Some(living_among(pids.filter_map(Stat::read), own, session))
}

/// Those that may not be signalled, since they run as another user.
pub fn out_of_reach(living: Vec<Process>) -> Vec<Process> {
    let answer = |process: &Process| Some(test_kill_process(Pid::from_raw(process.pid)?));
    let is_out = |process: &Process| answer(process).is_some_and(is_out_of_reach);
    living.into_iter().filter(is_out).collect()
}

fn is_out_of_reach(answer: rustix::io::Result<()>) -> bool {
    answer == Err(Errno::PERM)
}

fn living_among(stats: impl Iterator<Item = Stat>, ancestor: i32, session: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Stat>> = HashMap::new();
    for stat in stats {
        children.entry(stat.parent).or_default().push(stat);
    }
    let (mut found, mut parents) = (Vec::new(), vec![ancestor]);
    while let Some(parent) = parents.pop() {
        for stat in children.remove(&parent).unwrap_or_default() {
            parents.push(stat.process.pid);
            if stat.session == session && !stat.process.state.has_ended() {
                found.push(stat.process);
            }
        }
    }
    found.sort_by_key(|process| process.pid);
    found
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(&String::from_utf8_lossy(&line))
    }

    fn parse(line: &str) -> Option<Self> {
        // The name may have any characters in it.
        let (head, fields) = line.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        let mut fields = fields.split(' ');
        let state = State(fields.next()?.chars().next()?);
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        let name = name.to_owned();
        Some(Self {
            process: Process {
                pid: pid.parse().ok()?,
                name,
                group,
                state,
            },
            parent,
            session,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_means_out_of_reach() {
        assert!(is_out_of_reach(Err(Errno::PERM)));
        assert!(!is_out_of_reach(Err(Errno::SRCH)));
        assert!(!is_out_of_reach(Ok(())));
    }

    #[test]
    fn those_of_a_session_that_descend_from_a_process_are_found() {
        let lines = [
            "10 (lockctl) S 1 10 5 0 -1",
            "11 (a) R (b) S 10 11 5 0 -1",
            "12 (timeout) S 11 12 5 0 -1",
            "13 (ended) Z 11 11 5 0 -1",
            // A daemon, and what it has started.
            "14 (daemon) S 11 14 14 0 -1",
            "15 (work) S 14 14 14 0 -1",
            "16 (another) S 1 16 5 0 -1",
            "",
        ];
        let stats = lines.iter().filter_map(|line| Stat::parse(line));
        let found = living_among(stats, 10, 5);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.name.as_str(), it.group))
            .collect();
        assert_eq!(found, [("a) R (b", 11), ("timeout", 12)]);
    }
}
