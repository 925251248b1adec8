//! What goes from node to node, and who is the primary.

use super::{Action, Role, World, new_table};
use crate::error::LockError;
use crate::explore::keyspace::Keyspace;
use crate::explore::search::{Checked, World as _};
use crate::grace::Grace;
use crate::table::{WORK_A_WAKE, WaitEnd};

impl World {
    pub(super) fn node_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let number = at as u8;
        let node = &self.nodes[at];
        match &node.role {
            Role::Primary => {
                let is_due = node.table.wake_at_ms(self.now(at));
                let is_due = is_due.is_some_and(|at_ms| at_ms <= self.now(at).ms());
                if is_due && (self.may_write(at) || !self.scope().binds_hand_offs) {
                    actions.push(Action::Wake(number));
                }
                if self.is_expired(at) {
                    actions.push(Action::Expire(number));
                }
            }
            Role::Replica { of, stream } => {
                if self.is_primary(*of) {
                    match stream {
                        Some(stream) if !stream.is_empty() => actions.push(Action::Apply(number)),
                        Some(_) => {}
                        None => actions.push(Action::Resync(number)),
                    }
                }
                if self.promotions_left > 0 {
                    actions.push(Action::Promote(number));
                }
                if self.scope().restarts {
                    actions.push(Action::Restart(number));
                }
            }
        }
        for (to, primary) in self.nodes.iter().enumerate() {
            if to != at && self.is_primary(to) && primary.epoch > node.epoch {
                actions.push(Action::Follow(number, to as u8));
            }
        }
    }

    pub(super) fn apply_next(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Role::Replica {
            of,
            stream: Some(stream),
        } = &mut node.role
        else {
            return;
        };
        let write = stream.remove(0);
        node.data.write(&write);
        let (of, behind) = (*of, stream.len() as i64);
        let acked = self.nodes[of].offset - behind;
        self.nodes[of].peers[at].acked = Some(acked);
        self.receive_token(at);
        self.say(|w| match behind {
            0 => format!("{} gets the last write", w.node_name(at)),
            _ => format!("{} gets one write more", w.node_name(at)),
        });
    }

    /// A replica keeps the greatest token that it receives.
    pub(super) fn receive_token(&mut self, at: usize) {
        let now = self.now(at);
        if let Some(token) = self.stored(at).last_token {
            self.nodes[at].table.token_received(token, now);
        }
    }

    pub(super) fn resync(&mut self, at: usize) {
        let Role::Replica { of, .. } = self.nodes[at].role else {
            return;
        };
        self.nodes[at].data = self.nodes[of].data.clone();
        self.nodes[at].role = Role::Replica {
            of,
            stream: Some(Vec::new()),
        };
        self.nodes[of].peers[at].acked = Some(self.nodes[of].offset);
        self.receive_token(at);
        self.say(|w| {
            let (replica, primary) = (w.node_name(at), w.node_name(of));
            format!("{replica} is given all data of {primary}")
        });
    }

    /// A node is no replica of its primary any more, which does not notice.
    fn leave_primary(&mut self, at: usize) {
        if let Role::Replica { of, .. } = self.nodes[at].role {
            self.nodes[of].peers[at].left_at = Some(self.ticks);
        }
    }

    pub(super) fn follow(&mut self, at: usize, to: usize) -> Checked {
        self.say(|w| {
            let (name, primary) = (w.node_name(at), w.node_name(to));
            format!("{name} becomes a replica of {primary}")
        });
        self.leave_primary(at);
        if self.is_primary(at) {
            let table = &mut self.nodes[at].table;
            for (addressee, answer) in table.forget_places(&LockError::Unblocked, usize::MAX) {
                self.tell_place(at, addressee.id(), &answer, None)?;
            }
            let now_ms = self.now(at).ms();
            for client in &mut self.clients {
                if let Some(blocked) = client.blocked.take_if(|one| one.node == at) {
                    let table = &mut self.nodes[at].table;
                    table.waiter_left(blocked.id, WaitEnd::Gone, now_ms);
                }
            }
            self.nodes[at].table.forget_connections(WORK_A_WAKE);
            self.nodes[at].peers = Default::default();
            for node in &mut self.nodes {
                if let Role::Replica { of, stream } = &mut node.role
                    && *of == at
                {
                    *stream = None;
                }
            }
        }
        let epoch = self.nodes[to].epoch;
        let node = &mut self.nodes[at];
        node.role = Role::Replica {
            of: to,
            stream: None,
        };
        node.epoch = epoch;
        node.promoted_at = None;
        node.grace = Grace::default();
        Ok(())
    }

    pub(super) fn promote(&mut self, at: usize) -> Checked {
        self.say(|w| format!("{} is promoted", w.node_name(at)));
        self.what_was_told_is_known(at)?;
        self.leave_primary(at);
        self.promotions_left -= 1;
        let last = self.nodes.iter().map(|node| node.epoch).max();
        let ticks = self.ticks;
        let grace = self.scope().grace;
        let node = &mut self.nodes[at];
        node.role = Role::Primary;
        node.grace = Grace::begin(ticks, grace);
        node.epoch = last.unwrap_or_default() + 1;
        node.promoted_at = Some(ticks);
        node.offset = 0;
        node.peers = Default::default();
        node.table.everything_touched();
        self.set_grace(at);
        Ok(())
    }

    pub(super) fn set_grace(&mut self, node: usize) {
        let may_grant = !self.is_in_grace(node);
        let table = &mut self.nodes[node].table;
        let resumes = may_grant && !table.settings.may_grant;
        table.settings.may_grant = may_grant;
        if resumes {
            table.everything_touched();
            self.say(|w| format!("the grace period of {} is over", w.node_name(node)));
        }
    }

    pub(super) fn restart(&mut self, at: usize) {
        self.say(|w| format!("{} restarts empty", w.node_name(at)));
        let node = &mut self.nodes[at];
        node.data = Keyspace::default();
        node.table = new_table();
        if let Role::Replica { stream, .. } = &mut node.role {
            *stream = None;
        }
    }
}
