//! Nodes, what is on its way between them, and clients that believe what they were told.

mod clients;
mod streams;

use std::rc::Rc;

use super::scope::Scope;
use crate::explore::cast::{Cast, Order};
use crate::explore::form::Form;
use crate::explore::keyspace::Write;
use crate::explore::scope::BEGIN_MS;
use crate::explore::search::{self, Checked, World as _, broken};
use crate::explore::world::World as Server;
use crate::grace::Grace;
use crate::token::FencingToken;

/// How many nodes there are at most.
const NODES: usize = 3;

/// Something that a client, a node or time may do. A tick is a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// `LOCK.ACQUIRE key owner HOLD 1`: a client, a node, a lease.
    Acquire(u8, u8, u8),
    /// The same with `QUEUE`.
    Queue(u8, u8, u8),
    /// `LOCK.RENEW`: a client, a node, a lease.
    Renew(u8, u8, u8),
    /// `LOCK.RELEASE key owner ALL`: a client, a node.
    Release(u8, u8),
    /// A client's time is up: it waits no more, or is told `NOREPLICAS`.
    GiveUp(u8),
    /// A replica gets the next write.
    Apply(u8),
    /// A replica gets the whole data set.
    Resync(u8),
    /// A node becomes a replica of another one.
    Follow(u8, u8),
    /// A replica becomes a primary.
    Promote(u8),
    /// A replica restarts, and has lost its data.
    Restart(u8),
    /// The timer of a primary wakes the module.
    Wake(u8),
    /// A primary finds that the key has expired.
    Expire(u8),
    /// A tick passes.
    Pass,
    /// Nobody hears what is published any more, or all do again.
    Ears,
}

#[derive(Clone, Debug)]
enum Role {
    Primary,
    Replica {
        of: usize,
        /// What is on its way. None: it needs the whole data set.
        stream: Option<Vec<Write>>,
    },
}

/// What a primary knows of another node.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// How much it has acknowledged.
    acked: Option<i64>,
    /// When it ceased to be a replica of this primary. As long as it is one, it
    /// acknowledges all the time that it is there.
    left_at: Option<i64>,
}

#[derive(Clone, Debug)]
struct Node {
    server: Server,
    role: Role,
    /// The promotion that it is the result of, or that its primary is.
    epoch: u8,
    promoted_at: Option<i64>,
    grace: Grace,
    /// How much it has written as a primary.
    offset: i64,
    peers: [Peer; NODES],
}

/// Nodes, their clients, and time.
#[derive(Clone, Debug)]
pub(super) struct World {
    cast: Rc<Cast<Scope>>,
    nodes: Vec<Node>,
    /// The token by which each client believes that it holds the lock, and until when.
    beliefs: Vec<Option<(FencingToken, i64)>>,
    ticks: i64,
    promotions_left: u8,
    /// The greatest token that anybody was told.
    greatest_told: Option<FencingToken>,
    /// What was said, where somebody listens.
    said: Option<String>,
}

impl World {
    fn scope(&self) -> &Scope {
        &self.cast.scope
    }

    fn is_primary(&self, node: usize) -> bool {
        matches!(self.nodes[node].role, Role::Primary)
    }

    /// One of the settings of a primary: the first one's, or a promoted one's.
    fn setting(&self, node: usize, of_each: [usize; 2]) -> usize {
        of_each[usize::from(self.nodes[node].epoch > 0)]
    }

    /// Whether the primary counts enough replicas as good ones.
    fn may_write(&self, node: usize) -> bool {
        let all = 0..self.nodes.len();
        let good = all.filter(|&other| {
            let role = &self.nodes[other].role;
            let is_there = matches!(role, Role::Replica { of, .. } if *of == node);
            is_there || self.silence(node, other).is_some()
        });
        good.count() >= self.setting(node, self.scope().min_replicas_to_write)
    }

    /// For how long a replica that went away has been silent, as long as it counts as
    /// a good one.
    fn silence(&self, primary: usize, other: usize) -> Option<i64> {
        let scope = self.scope();
        let silence = self.ticks - self.nodes[primary].peers[other].left_at?;
        (scope.is_fenced() && silence <= scope.max_lag + scope.ack_delay).then_some(silence)
    }

    fn since_promotion(&self, node: usize) -> Option<i64> {
        Some(self.ticks - self.nodes[node].promoted_at?)
    }

    fn is_in_grace(&self, node: usize) -> bool {
        self.nodes[node].grace.left_ms(self.ticks) > 0
    }

    fn may_renew(&self, node: usize) -> bool {
        let no_renewal = self.scope().no_renewal;
        let since = self.since_promotion(node);
        since.is_none_or(|since| since >= no_renewal)
    }

    /// The token by which this owner holds the lock on a node.
    fn token_of(&self, node: usize, client: usize) -> Option<FencingToken> {
        let server = &self.nodes[node].server;
        if server.data.is_expired(0, server.now_ms) {
            return None;
        }
        let lock = server.data.read(0).unwrap_or_default();
        lock.holder(&self.cast.owners[client])?.token
    }

    /// A node in words.
    fn node_name(&self, node: usize) -> String {
        let role = match self.nodes[node].role {
            Role::Primary => "primary",
            Role::Replica { .. } => "replica",
        };
        format!("n{} ({role})", node + 1)
    }

    fn short(&self, token: FencingToken) -> i64 {
        self.nodes[0].server.short(token)
    }

    fn pass(&mut self) {
        self.ticks += 1;
        self.say(|w| format!("it is {}", w.ticks));
        for node in 0..self.nodes.len() {
            self.nodes[node].server.now_ms += 1;
            if self.is_primary(node) {
                self.set_grace(node);
            }
        }
        let now = self.ticks;
        for belief in &mut self.beliefs {
            *belief = belief.filter(|&(_, until)| until >= now);
        }
    }

    /// A node that becomes a primary knows of each hold that anybody was told of, if all
    /// others acknowledge what is told.
    fn what_was_told_is_known(&self, node: usize) -> Checked {
        let others = self.nodes.len() - 1;
        if !self.is_to_hold() || self.scope().min_replicas != [others; 2] {
            return Ok(());
        }
        let mut beliefs = self.beliefs.iter().enumerate();
        let is_known = |token, at| self.token_of(node, at) == Some(token);
        match beliefs.all(|(at, belief)| belief.is_none_or(|(token, _)| is_known(token, at))) {
            true => Ok(()),
            false => broken("what_was_told_is_known", format!("{:?}", self.beliefs)),
        }
    }

    /// No two owners believe at one time that they hold the lock.
    fn owners_exclude_each_other(&self) -> Checked {
        match self.beliefs.iter().flatten().count() < 2 {
            true => Ok(()),
            false => broken("owners_exclude_each_other", format!("{:?}", self.beliefs)),
        }
    }
}

impl search::World for World {
    type Scope = Scope;
    type Action = Action;

    fn new(scope: Scope) -> Self {
        let node = Node {
            server: Server::new(scope.of_a_server()),
            role: Role::Replica {
                of: 0,
                stream: Some(Vec::new()),
            },
            epoch: 0,
            promoted_at: None,
            grace: Grace::default(),
            offset: 0,
            peers: Default::default(),
        };
        let mut nodes = vec![node; scope.clocks.len()];
        nodes[0].role = Role::Primary;
        for (node, ahead) in nodes.iter_mut().zip(scope.clocks) {
            node.server.now_ms += ahead;
        }
        Self {
            cast: Cast::new(scope, &vec![1; scope.owners], 1, scope.clocks),
            nodes,
            beliefs: vec![None; scope.owners],
            ticks: 0,
            promotions_left: scope.promotions,
            greatest_told: None,
            said: None,
        }
    }

    fn actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        for client in 0..self.beliefs.len() {
            self.client_actions(client, actions);
        }
        for node in 0..self.nodes.len() {
            self.node_actions(node, actions);
        }
        actions.push(Action::Pass);
        if self.scope().goes_deaf {
            actions.push(Action::Ears);
        }
    }

    fn act(&mut self, action: Action) -> Checked {
        for node in &mut self.nodes {
            node.server.steps += 1;
        }
        let leases = self.scope().leases;
        let lease = |lease: u8| leases[usize::from(lease)];
        match action {
            Action::Acquire(at, node, ms) => {
                self.acquire(at.into(), node.into(), lease(ms), false)?;
            }
            Action::Queue(at, node, ms) => self.acquire(at.into(), node.into(), lease(ms), true)?,
            Action::Renew(at, node, ms) => self.renew(at.into(), node.into(), lease(ms))?,
            Action::Release(at, node) => self.release(at.into(), node.into())?,
            Action::GiveUp(at) => self.give_up(at.into())?,
            Action::Apply(at) => self.apply_next(at.into()),
            Action::Resync(at) => self.resync(at.into()),
            Action::Follow(at, to) => self.follow(at.into(), to.into())?,
            Action::Promote(at) => self.promote(at.into())?,
            Action::Restart(at) => self.restart(at.into()),
            Action::Wake(node) => self.on(node.into(), Server::wake)?,
            Action::Expire(node) => self.on(node.into(), |server| {
                server.notice_expiry(0);
                Ok(())
            })?,
            Action::Pass => self.pass(),
            Action::Ears => {
                for node in &mut self.nodes {
                    node.server.deaf = node.server.deaf.map(|deaf| !deaf);
                }
                self.say(|w| format!("all are deaf: {}", w.nodes[0].server.deaf[0]));
            }
        }
        self.end_turns()?;
        self.owners_exclude_each_other()
    }

    fn cast(&self) -> &Cast<Scope> {
        &self.cast
    }

    /// The slowest clock shows true time: what is over by it is over everywhere.
    fn moment(&self) -> (i64, Vec<u64>) {
        let (_, generations) = self.nodes[0].server.moment();
        (BEGIN_MS + self.ticks, generations)
    }

    fn said(&mut self) -> &mut Option<String> {
        &mut self.said
    }

    fn take_down(&self, order: &Order, form: &mut Form<'_>) {
        let place = |node: usize| order.nodes.iter().position(|&one| one == node);
        for &at in &order.nodes {
            let node = &self.nodes[at];
            form.number(node.epoch.into());
            let acked = order.nodes.iter().map(|&other| node.peers[other].acked);
            form.stream(node.offset, self.scope().lag, acked);
            node.server.table.take_down(form);
            node.server.data.take_down(&self.cast.keys, form);
            match &node.role {
                Role::Primary => {
                    form.number(-1);
                    form.number(node.grace.left_ms(self.ticks));
                    let counts = self.scope().no_renewal;
                    let since = self.since_promotion(at);
                    form.number(since.map_or(counts, |since| since.min(counts)));
                    for &other in &order.nodes {
                        form.number(self.silence(at, other).unwrap_or(-1));
                    }
                }
                Role::Replica { of, stream } => {
                    form.count(place(*of).unwrap_or(usize::MAX));
                    form.flag(stream.is_some());
                    let mut data = node.server.data.clone();
                    let writes = stream.iter().flatten();
                    form.count(writes.clone().count());
                    for write in writes {
                        data.write(write);
                        data.take_down(&self.cast.keys, form);
                    }
                }
            }
        }
        for &at in &order.owners {
            let belief = self.beliefs[at];
            form.flag(self.blocked_on(at).is_some());
            for &node in &order.nodes {
                self.nodes[node].server.take_down_waits(at, form);
            }
            form.token(belief.map(|(token, _)| token));
            form.number(belief.map_or(-1, |(_, until)| until - self.ticks));
        }
        if self.is_to_hold() {
            form.token(self.greatest_told);
        }
        form.number(self.promotions_left.into());
        form.flag(self.nodes[0].server.deaf[0]);
    }
}
