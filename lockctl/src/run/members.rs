//! What the command has started, in whatever process group it is.
//!
//! All of it descends from this process, which adopts those whose parent has ended. A
//! daemon that makes a session of its own has left.

use std::collections::HashMap;
use std::fmt;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

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
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

/// The processes of this session that descend from this one and have not ended.
pub fn living() -> io::Result<Vec<Process>> {
    let own = getpid().as_raw_nonzero().get();
    let listed = std::fs::read_link("/proc/self")?;
    let process = Process::read(own).filter(|_| listed.to_str() == Some(&own.to_string()));
    let other = || io::Error::other("it is not that of this PID namespace");
    let session = process.ok_or_else(other)?.session;
    let entries = std::fs::read_dir("/proc")?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(living_among(pids.filter_map(Process::read), own, session))
}

/// The process group of this one, if it has a number in this namespace.
pub fn own_group() -> Option<Pid> {
    let own = Process::read(getpid().as_raw_nonzero().get())?;
    Pid::from_raw(own.group)
}

/// Those that may not be signalled, since they run as another user.
pub fn out_of_reach() -> Vec<Process> {
    let answer = |process: &Process| Some(test_kill_process(Pid::from_raw(process.pid)?));
    let is_out = |process: &Process| answer(process) == Some(Err(Errno::PERM));
    let living = living().unwrap_or_default();
    living.into_iter().filter(is_out).collect()
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
            if process.session == session && !matches!(process.state, 'Z' | 'X') {
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
        let mut fields = fields.split(' ');
        let state = fields.next()?.chars().next()?;
        let mut number = || fields.next()?.parse().ok();
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.into(),
            state,
            parent: number()?,
            group: number()?,
            session: number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let stats = lines.iter().filter_map(|line| Process::parse(line));
        let found = living_among(stats, 10, 5);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.name.as_str(), it.group))
            .collect();
        assert_eq!(found, [("a) R (b", 11), ("timeout", 12)]);
    }
}
