//! What the command has started, in whatever process group it is.
//!
//! All of it descends from this process, which adopts those whose parent has ended. A
//! daemon that makes a session of its own has left.

use std::collections::HashMap;
use std::fmt;
use std::io;

use rustix::process::{Pid, getpid};

/// A process, by its line of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// What it runs, as `ps` shows it.
    name: String,
    /// The letter that `ps` shows.
    state: char,
    parent: i32,
    /// Its process group.
    pub group: i32,
    /// 0 where its leader is outside of the namespace, as in some containers.
    session: i32,
    /// How many are left. The state is that of the first one, which may have ended.
    threads: u32,
    /// When it was started.
    started: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

/// The processes of this session that descend from this one and have not ended. A shell that
/// became this process may have started others before: those do not count.
pub fn living(before: &[Process]) -> io::Result<Vec<Process>> {
    let own = getpid().as_raw_nonzero().get();
    let listed = std::fs::read_link("/proc/self")?;
    let process = Process::read(own).filter(|_| listed.to_str() == Some(&own.to_string()));
    let other = || io::Error::other("it is not that of this PID namespace");
    let session = process.ok_or_else(other)?.session;
    let entries = std::fs::read_dir("/proc")?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all = pids
        .filter_map(Process::read)
        .filter(|it| !it.is_among(before));
    Ok(living_among(all, own, session))
}

/// The process group of this one, if it has a number in this namespace.
pub fn own_group() -> Option<Pid> {
    let own = Process::read(getpid().as_raw_nonzero().get())?;
    Pid::from_raw(own.group)
}

fn living_among(all: impl Iterator<Item = Process>, ancestor: i32, session: i32) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut parents) = (Vec::new(), vec![ancestor]);
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            parents.push(process.pid);
            let has_ended = matches!(process.state, 'Z' | 'X') && process.threads < 2;
            if process.session == session && !has_ended {
                found.push(process);
            }
        }
    }
    found.sort_by_key(|process| process.pid);
    found
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let line = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(&String::from_utf8_lossy(&line))
    }

    fn parse(line: &str) -> Option<Self> {
        // The name may have any characters in it.
        let (head, fields) = line.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        // Each number is that of proc(5), less three.
        let fields: Vec<_> = fields.split(' ').collect();
        let number = |nth: usize| fields.get(nth)?.parse().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.into(),
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            threads: fields.get(17)?.parse().ok()?,
            started: (*fields.get(19)?).into(),
        })
    }

    fn is_among(&self, others: &[Self]) -> bool {
        let is_it = |other: &Self| (other.pid, &other.started) == (self.pid, &self.started);
        others.iter().any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_session_that_descend_from_a_process_are_found() {
        // Up to the session, then the threads.
        let lines = [
            ("10 (lockctl) S 1 10 5", 1),
            ("11 (a) R (b) S 10 11 5", 1),
            ("12 (timeout) S 11 12 5", 1),
            ("13 (ended) Z 11 11 5", 1),
            // A daemon, and what it has started.
            ("14 (daemon) S 11 14 14", 1),
            ("15 (work) S 14 14 14", 1),
            ("16 (another) S 1 16 5", 1),
            ("17 (thread) Z 11 11 5", 2),
        ];
        let stats = lines.iter().filter_map(|(line, threads)| {
            let between = "0 -1 4194304 0 0 0 0 0 0 0 0 20 0";
            Process::parse(&format!("{line} {between} {threads} 0 4711 0"))
        });
        let found = living_among(stats, 10, 5);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.name.as_str(), it.group))
            .collect();
        assert_eq!(found, [("a) R (b", 11), ("timeout", 12), ("thread", 11)]);
        assert_eq!(Process::parse(""), None);
    }
}
