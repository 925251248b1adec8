//! The processes of a group that this one may not signal.

use std::fmt;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A process.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// What it runs, as `ps` shows it.
    pub name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

/// Those of a process group that this process may not signal, since they run as
/// another user. None where the system does not list processes in `/proc`.
pub fn out_of_reach(group: Pid) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let group = group.as_raw_nonzero().get();
    let mut found: Vec<_> = pids
        .filter_map(|pid: i32| {
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            let name = member_name(&String::from_utf8_lossy(&stat), group)?;
            is_out_of_reach(test_kill_process(Pid::from_raw(pid)?)).then_some(Process { pid, name })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn is_out_of_reach(answer: rustix::io::Result<()>) -> bool {
    answer == Err(Errno::PERM)
}

/// The name of a process, from its line in `/proc`, if it is of this group and
/// has not ended yet.
fn member_name(stat: &str, group: i32) -> Option<String> {
    // The name may have any characters in it.
    let (head, fields) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let mut fields = fields.split(' ');
    let (state, _parent, its_group) = (fields.next()?, fields.next()?, fields.next()?);
    let is_member = its_group.parse() == Ok(group) && state != "Z";
    is_member.then(|| name.to_owned())
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
    fn members_are_told_by_their_group_whatever_their_name() {
        let stat = "12 (a) R (b) S 1 34 34 0 -1";
        assert_eq!(member_name(stat, 34).as_deref(), Some("a) R (b"));
        assert_eq!(member_name(stat, 1), None);
        assert_eq!(member_name("12 (a) Z 1 34 34 0 -1", 34), None);
        assert_eq!(member_name("", 34), None);
    }
}
