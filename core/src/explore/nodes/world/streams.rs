//! What goes from node to node, and who is the primary.

use super::{Action, Role, Server, World};
use crate::explore::keyspace::{Keyspace, Write};
use crate::explore::search::{Checked, World as _};
use crate::explore::world::new_table;
use crate::grace::Grace;

impl World {
    pub(super) fn node_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let number = at as u8;
        let node = &self.nodes[at];
        match &node.role {
            Role::Primary => {
                if node.server.is_wake_due()
                    && (self.may_write(at) || !self.scope().binds_hand_offs)
                {
                    actions.push(Action::Wake(number));
                }
                if node.server.data.is_expired(0, node.server.now_ms) {
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

    /// A write of a primary goes to its replicas.
    pub(super) fn send(&mut self, node: usize, write: &Write) {
        let scope = self.scope();
        let (lag, by_old_acks) = (scope.lag, scope.tells_by_old_acks);
        if by_old_acks && matches!(write, Write::Effects(_, effects) if effects.is_empty()) {
            return;
        }
        self.nodes[node].offset += 1;
        let offset = self.nodes[node].offset;
        for at in 0..self.nodes.len() {
            let replica = &mut self.nodes[at];
            let Role::Replica { of, stream } = &mut replica.role else {
                continue;
            };
            if *of != node {
                continue;
            }
            match stream {
                Some(_) if lag == 0 => {
                    replica.server.data.write(write);
                    self.nodes[node].peers[at].acked = Some(offset);
                    self.receive_token(at);
                }
                Some(writes) if writes.len() < lag => writes.push(write.clone()),
                _ => *stream = None,
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
        node.server.data.write(&write);
        let (of, behind) = (*of, stream.len() as i64);
        let acked = self.nodes[of].offset - behind;
        self.nodes[of].peers[at].acked = Some(acked);
        self.receive_token(at);
        self.say(|w| format!("{} gets a write, of {}", w.node_name(at), behind + 1));
    }

    /// A replica keeps the greatest token that it receives.
    pub(super) fn receive_token(&mut self, at: usize) {
        let server = &mut self.nodes[at].server;
        let lock = server.data.read(0).unwrap_or_default();
        if let Some(token) = lock.last_token {
            let now = server.now();
            server.table.token_received(token, now);
        }
    }

    pub(super) fn resync(&mut self, at: usize) {
        let Role::Replica { of, .. } = self.nodes[at].role else {
            return;
        };
        self.nodes[at].server.data = self.nodes[of].server.data.clone();
        self.nodes[at].role = Role::Replica {
            of,
            stream: Some(Vec::new()),
        };
        self.nodes[of].peers[at].acked = Some(self.nodes[of].offset);
        self.receive_token(at);
        self.say(|w| format!("{} is given all of {}", w.node_name(at), w.node_name(of)));
    }

    /// A node is no replica of its primary any more, which does not notice.
    fn leave_primary(&mut self, at: usize) {
        if let Role::Replica { of, .. } = self.nodes[at].role {
            self.nodes[of].peers[at].left_at = Some(self.ticks);
        }
    }

    pub(super) fn follow(&mut self, at: usize, to: usize) -> Checked {
        self.say(|w| format!("{} follows {}", w.node_name(at), w.node_name(to)));
        self.leave_primary(at);
        if self.is_primary(at) {
            self.on(at, Server::demote)?;
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
        let (grace, [_, replicas]) = (self.scope().grace, self.scope().min_replicas);
        let node = &mut self.nodes[at];
        node.role = Role::Primary;
        node.grace = Grace::begin(ticks, grace);
        node.epoch = last.unwrap_or_default() + 1;
        node.promoted_at = Some(ticks);
        node.offset = 0;
        node.peers = Default::default();
        node.server.replicas = replicas;
        node.server.greatest = None;
        node.server.table.everything_touched();
        node.server.know_anew();
        self.set_grace(at);
        Ok(())
    }

    pub(super) fn set_grace(&mut self, node: usize) {
        let may_grant = !self.is_in_grace(node);
        let table = &mut self.nodes[node].server.table;
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
        node.server.data = Keyspace::default();
        node.server.table = new_table(node.server.scope());
        if let Role::Replica { stream, .. } = &mut node.role {
            *stream = None;
        }
    }
}
