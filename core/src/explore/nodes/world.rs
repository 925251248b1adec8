//! Nodes with a lock table each, what is on its way between them, and clients that
//! believe what they were told.

mod clients;
mod road;
mod streams;

use std::rc::Rc;

use smallvec::SmallVec;

use super::scope::{Expected, Scope};
use crate::explore::cast::owner_name;
use crate::explore::cast::{Cast, Order};
use crate::explore::form::Form;
use crate::explore::keyspace::{Keyspace, Write};
use crate::explore::scope::BEGIN_MS;
use crate::explore::search::{self, Broken, Checked, World as _};
use crate::grace::Grace;
use crate::keys::KeyRef;
use crate::lock::{Lock, Now};
use crate::queue::WaiterId;
use crate::table::{LockTable, Settings};
use crate::token::FencingToken;

/// How many nodes there are at most.
const NODES: usize = 3;

/// The one key.
const KEY: KeyRef<'_> = KeyRef { db: 0, name: b"k" };

/// How often a contended lock is looked at for no other reason, in ticks.
const RECHECK: i64 = 1;

/// How long a grant to a place lasts that nobody claims, in ticks.
const CLAIM: i64 = 1;

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
    table: LockTable,
    data: Keyspace,
    role: Role,
    /// The promotion that it is the result of, or that its primary is.
    epoch: u8,
    promoted_at: Option<i64>,
    grace: Grace,
    /// How much it has written as a primary.
    offset: i64,
    peers: [Peer; NODES],
}

/// A request that is not answered yet. Its client waits for it blocked, for the lock or for
/// replicas to acknowledge what it is told, or has a place in a queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    node: usize,
    id: WaiterId,
    /// How long its first lease is.
    lease: i64,
    /// Until when a client may rely on what it is told, as soon as that is known.
    until: Option<i64>,
    /// The client has given the lock up on another node, and does not listen to this
    /// one any more.
    is_left: bool,
}

impl Waiting {
    /// Whether it is not granted anything yet.
    fn is_in_queue_of(&self, node: usize) -> bool {
        self.node == node && self.until.is_none()
    }
}

#[derive(Clone, Debug, Default)]
struct Client {
    blocked: Option<Waiting>,
    /// The places that it was not told the end of.
    places: SmallVec<[Waiting; 2]>,
    /// The token by which it believes that it holds the lock, and until when.
    belief: Option<(FencingToken, i64)>,
}

impl Client {
    fn waiting(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.places.iter_mut().chain(&mut self.blocked)
    }
}

/// Nodes, their clients, and time.
#[derive(Clone, Debug)]
pub(super) struct World {
    cast: Rc<Cast<Scope>>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    ticks: i64,
    steps: i64,
    promotions_left: u8,
    /// Nobody hears what is published.
    is_deaf: bool,
    /// The greatest token that anybody was told.
    greatest_told: Option<FencingToken>,
    /// What was said, where somebody listens, and all tokens in the order of their grants.
    said: Option<String>,
    tokens: Vec<FencingToken>,
}

impl World {
    fn scope(&self) -> &Scope {
        &self.cast.scope
    }

    fn now(&self, node: usize) -> Now {
        let ms = BEGIN_MS + self.ticks + self.scope().clocks[node];
        // Each step takes a moment, so that no two have the same time.
        Now {
            us: ms * 1000 + self.steps,
            steady_ms: ms,
        }
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
        self.since_promotion(node)
            .is_none_or(|since| since >= no_renewal)
    }

    fn is_expired(&self, node: usize) -> bool {
        self.nodes[node].data.is_expired(0, self.now(node).ms())
    }

    fn stored(&self, node: usize) -> Lock {
        self.nodes[node].data.read(0).unwrap_or_default()
    }

    /// The token by which this owner holds the lock on a node.
    fn token_of(&self, node: usize, client: usize) -> Option<FencingToken> {
        if self.is_expired(node) {
            return None;
        }
        self.stored(node).holder(&self.cast.owners[client])?.token
    }

    /// A node in words.
    fn node_name(&self, node: usize) -> String {
        let role = match self.nodes[node].role {
            Role::Primary => "primary",
            Role::Replica { .. } => "replica",
        };
        format!("n{} ({role})", node + 1)
    }

    /// A token as a small number: its place in the order of the grants.
    fn short(&self, token: FencingToken) -> usize {
        self.tokens.iter().take_while(|&&one| one != token).count() + 1
    }

    fn pass(&mut self) {
        self.ticks += 1;
        self.say(|w| format!("it is {}", w.ticks));
        for node in 0..self.nodes.len() {
            if self.is_primary(node) {
                self.set_grace(node);
            }
        }
        let now = self.ticks;
        for client in &mut self.clients {
            client.belief = client.belief.filter(|&(_, until)| until >= now);
        }
    }

    /// A node that becomes a primary knows of each hold that anybody was told of, if all
    /// others acknowledge what is told.
    fn what_was_told_is_known(&self, node: usize) -> Checked {
        let others = self.nodes.len() - 1;
        let scope = self.scope();
        if scope.expected != Expected::Holds || scope.min_replicas != [others; 2] {
            return Ok(());
        }
        for (at, client) in self.clients.iter().enumerate() {
            if let Some((token, until)) = client.belief
                && self.token_of(node, at) != Some(token)
            {
                let (owner, token) = (owner_name(at), self.short(token));
                return Err(Broken::new(
                    "what_was_told_is_known",
                    format!("{owner} believes in token {token} until {until}"),
                ));
            }
        }
        Ok(())
    }

    /// No two owners believe at one time that they hold the lock.
    fn owners_exclude_each_other(&self) -> Checked {
        let clients = self.clients.iter().enumerate();
        let believers = clients.filter_map(|(at, client)| {
            let (token, until) = client.belief?;
            let (owner, token) = (owner_name(at), self.short(token));
            Some(format!("{owner} by token {token} until {until}"))
        });
        let believers: Vec<String> = believers.collect();
        if believers.len() < 2 {
            return Ok(());
        }
        let shown_by = format!("k is held in the eyes of {}", believers.join(" and "));
        Err(Broken::new("owners_exclude_each_other", shown_by))
    }
}

impl search::World for World {
    type Scope = Scope;
    type Action = Action;

    fn new(scope: Scope) -> Self {
        let node = Node {
            table: new_table(),
            data: Keyspace::default(),
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
        Self {
            cast: Cast::new(scope, &vec![1; scope.owners], 1, scope.clocks),
            nodes,
            clients: vec![Client::default(); scope.owners],
            ticks: 0,
            steps: 0,
            promotions_left: scope.promotions,
            is_deaf: false,
            greatest_told: None,
            said: None,
            tokens: Vec::new(),
        }
    }

    fn actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        for client in 0..self.clients.len() {
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
        self.steps += 1;
        let lease = |lease: u8| self.scope().leases[usize::from(lease)];
        match action {
            Action::Acquire(at, node, ms) => {
                let lease = lease(ms);
                self.acquire(at.into(), node.into(), lease, false)?;
            }
            Action::Queue(at, node, ms) => {
                let lease = lease(ms);
                self.acquire(at.into(), node.into(), lease, true)?;
            }
            Action::Renew(at, node, ms) => {
                let lease = lease(ms);
                self.renew(at.into(), node.into(), lease)?;
            }
            Action::Release(at, node) => self.release(at.into(), node.into())?,
            Action::GiveUp(at) => self.give_up(at.into())?,
            Action::Apply(at) => self.apply_next(at.into()),
            Action::Resync(at) => self.resync(at.into()),
            Action::Follow(at, to) => self.follow(at.into(), to.into())?,
            Action::Promote(at) => self.promote(at.into())?,
            Action::Restart(at) => self.restart(at.into()),
            Action::Wake(node) => self.wake(node.into())?,
            Action::Expire(node) => self.notice_expiry(node.into()),
            Action::Pass => self.pass(),
            Action::Ears => {
                self.is_deaf = !self.is_deaf;
                self.say(|w| match w.is_deaf {
                    true => "nobody hears what is published".to_owned(),
                    false => "what is published is heard".to_owned(),
                });
            }
        }
        self.end_turns()?;
        self.owners_exclude_each_other()
    }

    fn cast(&self) -> &Cast<Scope> {
        &self.cast
    }

    /// The slowest clock shows true time: what is over by it is over everywhere.
    fn now_ms(&self) -> i64 {
        BEGIN_MS + self.ticks
    }

    fn generations(&self) -> Vec<u64> {
        vec![0; self.clients.len()]
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
            node.table.take_down(form);
            node.data.take_down(&self.cast.keys, form);
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
                    let mut data = node.data.clone();
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
            let client = &self.clients[at];
            form.count(client.places.len());
            form.flag(client.blocked.is_some());
            for &node in &order.nodes {
                let all = client.places.iter().chain(&client.blocked);
                for one in all.filter(|one| one.node == node) {
                    form.count(place(node).unwrap_or(usize::MAX));
                    form.waiter(Some(one.id));
                    form.flag(one.is_left);
                    form.number(match one.until {
                        Some(until) => (until - self.ticks).max(-1),
                        None => -1 - one.lease,
                    });
                }
            }
            form.token(client.belief.map(|(token, _)| token));
            form.number(client.belief.map_or(-1, |(_, until)| until - self.ticks));
        }
        if self.scope().expected == Expected::Holds {
            form.token(self.greatest_told);
        }
        form.number(self.promotions_left.into());
        form.flag(self.is_deaf);
    }
}

fn new_table() -> LockTable {
    let mut table = LockTable::default();
    table.settings = Settings {
        recheck_interval_ms: RECHECK,
        claim_timeout_ms: CLAIM,
        ..Settings::default()
    };
    table
}
