//! Nodes with a lock table each, what is on its way between them, and clients that
//! believe what they were told.

use std::fmt::Write as _;
use std::rc::Rc;

use smallvec::SmallVec;

use super::scope::{Expected, Scope};
use crate::acks::Acknowledgement;
use crate::deliveries::Recipient;
use crate::error::LockError;
use crate::explore::form::{Form, GENERATIONS, Names, orders_of};
use crate::explore::keyspace::{Keyspace, Write};
use crate::explore::scope::BEGIN_MS;
use crate::explore::search::{self, Broken};
use crate::grace::Grace;
use crate::keys::{KeyBuf, KeyRef};
use crate::lock::{Lock, Now, Released};
use crate::queue::{Addressee, Wait, WaiterId};
use crate::request::{
    AcquireRequest, ClientId, HoldNumber, Lease, Limit, Owner, ReleaseExtent, ReleaseRequest,
    RenewRequest,
};
use crate::table::{
    Acquired, Answer, Done, Leave, LockTable, Progress, Settings, Step, Stored, WORK_A_WAKE,
};
use crate::token::FencingToken;

/// At most so many nodes there are.
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

/// Who is there.
#[derive(Debug)]
pub(super) struct Cast {
    scope: Scope,
    owners: Vec<Owner>,
    keys: Vec<KeyBuf>,
    orders: Vec<Order>,
}

/// One way to order the names.
#[derive(Debug)]
struct Order {
    names: Names,
    owners: Vec<usize>,
    nodes: Vec<usize>,
}

impl Cast {
    fn new(scope: Scope) -> Rc<Self> {
        let names = [b"a", b"b", b"c"].into_iter().take(scope.owners);
        let owners: Vec<Owner> = names.map(|name| Owner::new(name).unwrap()).collect();
        let keys: Vec<KeyBuf> = vec![KEY.into()];
        let mut orders = Vec::new();
        let all_nodes: Vec<usize> = (0..scope.clocks.len()).collect();
        for nodes in orders_of(&all_nodes) {
            let clocks = nodes.iter().map(|&at| scope.clocks[at]);
            if !clocks.eq(scope.clocks.iter().copied()) {
                continue;
            }
            for of_owners in orders_of(&(0..owners.len()).collect::<Vec<_>>()) {
                let names = Names {
                    owners: of_owners.iter().map(|&at| owners[at].clone()).collect(),
                    keys: keys.clone(),
                    connections: of_owners.iter().map(|&at| client_id(at).0).collect(),
                };
                orders.push(Order {
                    names,
                    owners: of_owners,
                    nodes: nodes.clone(),
                });
            }
        }
        Rc::new(Self {
            scope,
            owners,
            keys,
            orders,
        })
    }
}

fn client_id(client: usize) -> ClientId {
    ClientId((client as u64 + 1) * GENERATIONS)
}

fn owner_name(client: usize) -> &'static str {
    ["a", "b", "c"][client]
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

/// What a client is doing.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    /// It waits for the lock, or for replicas to acknowledge what it is told.
    Waits {
        node: usize,
        id: WaiterId,
        lease: i64,
        /// Until when it may rely on what it is told, as soon as that is known.
        until: Option<i64>,
    },
}

#[derive(Clone, Debug)]
struct Client {
    doing: Doing,
    /// The token by which it believes that it holds the lock, and until when.
    belief: Option<(FencingToken, i64)>,
    /// The places that it was not told the end of.
    places: SmallVec<[PlaceKept; 2]>,
}

impl Client {
    /// Its place in the queue of a node.
    fn place_on(&mut self, node: usize) -> Option<&mut PlaceKept> {
        let mut places = self.places.iter_mut();
        places.find(|place| place.is_in_queue_of(node))
    }
}

/// A place in a queue.
#[derive(Clone, Copy, Debug)]
struct PlaceKept {
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

impl PlaceKept {
    /// Whether it is not granted anything yet.
    fn is_in_queue_of(&self, node: usize) -> bool {
        self.node == node && self.until.is_none()
    }
}

/// Where somebody listens: what was said, and all tokens in the order of their grants.
#[derive(Clone, Debug, Default)]
struct Said {
    text: String,
    tokens: Vec<FencingToken>,
}

/// Nodes, their clients, and time.
#[derive(Clone, Debug)]
pub(super) struct World {
    cast: Rc<Cast>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    ticks: i64,
    steps: i64,
    promotions_left: u8,
    /// Nobody hears what is published.
    is_deaf: bool,
    /// The greatest token that anybody was told.
    greatest_told: Option<FencingToken>,
    said: Option<Said>,
}

type Checked<T> = Result<T, Broken>;

impl World {
    fn scope(&self) -> &Scope {
        &self.cast.scope
    }

    fn now(&self, node: usize) -> Now {
        let ms = BEGIN_MS + self.ticks + self.scope().clocks[node];
        // Each step takes a moment, so that no two have the same time.
        Now {
            us: ms * 1000 + self.steps,
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
        let Some(self_fencing) = self.scope().self_fencing else {
            return true;
        };
        let all = 0..self.nodes.len();
        let good = all.filter(|&other| {
            let role = &self.nodes[other].role;
            let is_there = matches!(role, Role::Replica { of, .. } if *of == node);
            is_there || self.silence(node, other).is_some()
        });
        good.count() >= self.setting(node, self_fencing.min_replicas_to_write)
    }

    /// For how long a replica that went away has been silent, as long as it counts as
    /// a good one.
    fn silence(&self, primary: usize, other: usize) -> Option<i64> {
        let self_fencing = self.scope().self_fencing?;
        let silence = self.ticks - self.nodes[primary].peers[other].left_at?;
        (silence <= self_fencing.max_lag + self_fencing.ack_delay).then_some(silence)
    }

    fn since_promotion(&self, node: usize) -> Option<i64> {
        Some(self.ticks - self.nodes[node].promoted_at?)
    }

    fn is_in_grace(&self, node: usize) -> bool {
        self.nodes[node].grace.left_ms(self.ticks) > 0
    }

    fn may_renew(&self, node: usize) -> bool {
        let no_renewal = self.scope().self_fencing.map_or(0, |one| one.no_renewal);
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

    fn client_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let client = &self.clients[at];
        let number = at as u8;
        if !matches!(client.doing, Doing::Nothing) {
            actions.push(Action::GiveUp(number));
            return;
        }
        let believes = client.belief.is_some();
        let leases = 0..self.scope().leases.len() as u8;
        for node in 0..self.nodes.len() {
            if !self.is_primary(node) || !self.may_write(node) {
                continue;
            }
            let to = node as u8;
            let ask = |lease| Action::Acquire(number, to, lease);
            actions.extend(leases.clone().map(ask));
            if self.scope().place > 0 {
                let ask = |lease| Action::Queue(number, to, lease);
                actions.extend(leases.clone().map(ask));
            }
            if (believes || self.scope().renews_what_is_over) && self.may_renew(node) {
                let ask = |lease| Action::Renew(number, to, lease);
                actions.extend(leases.clone().map(ask));
            }
            let mut places = client.places.iter();
            let has_place = places.any(|place| place.is_in_queue_of(node));
            if believes || has_place || self.token_of(node, at).is_some() {
                actions.push(Action::Release(number, to));
            }
        }
    }

    fn node_actions(&self, at: usize, actions: &mut Vec<Action>) {
        let number = at as u8;
        let node = &self.nodes[at];
        match &node.role {
            Role::Primary => {
                let self_fencing = self.scope().self_fencing;
                let is_bound = self_fencing.is_none_or(|one| one.binds_hand_offs);
                let is_due = node.table.wake_at_ms();
                let is_due = is_due.is_some_and(|at_ms| at_ms <= self.now(at).ms());
                if is_due && (self.may_write(at) || !is_bound) {
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

    fn say(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.said.is_some() {
            let what = what(self);
            if let Some(said) = &mut self.said {
                if !said.text.is_empty() {
                    said.text.push_str("; ");
                }
                let _ = write!(said.text, "{what}");
            }
        }
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
        let tokens = self.said.iter().flat_map(|said| &said.tokens);
        tokens
            .take_while(|&&one| one != token)
            .count()
            .saturating_add(1)
    }

    fn write(&mut self, node: usize, write: &Write) {
        let lag = self.scope().lag;
        self.nodes[node].data.write(write);
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
                    replica.data.write(write);
                    self.nodes[node].peers[at].acked = Some(offset);
                    self.receive_token(at);
                }
                Some(writes) if writes.len() < lag => writes.push(write.clone()),
                _ => *stream = None,
            }
        }
    }

    fn notice_expiry(&mut self, node: usize) {
        if self.is_expired(node) {
            self.say(|w| format!("k has expired on {}", w.node_name(node)));
            self.write(node, &Write::Delete(0));
            let now_ms = self.now(node).ms();
            let table = &mut self.nodes[node].table;
            if table.follows_keys() {
                table.key_touched(KEY, now_ms);
            }
        }
    }

    fn read(&mut self, node: usize) -> Stored {
        self.notice_expiry(node);
        Stored::Read(self.stored(node))
    }

    /// Writes what is to be written, and answers.
    fn apply(&mut self, node: usize, step: Step) -> Checked<()> {
        let before = self.stored(node);
        if !step.effects.is_empty() {
            self.write(node, &Write::Effects(0, step.effects.to_vec()));
        }
        if step.stream_goes_on && !self.scope().tells_by_old_acks {
            self.write(node, &Write::Effects(0, Vec::new()));
        }
        for (addressee, answer) in step.answers {
            self.answer(node, &addressee, &answer, &before)?;
        }
        for at in 0..self.clients.len() {
            let place = self.clients[at].place_on(node).copied();
            if let Some(place) = place
                && self.nodes[node].table.told_by(place.id).is_some()
            {
                let token = self.token_of(node, at).expect("it was just granted");
                self.issue(node, at, &before, token)?;
                let until = Some(self.until(place.lease));
                if let Some(place) = self.clients[at].place_on(node) {
                    place.until = until;
                }
            }
            let until = match self.clients[at].doing {
                Doing::Waits {
                    node: its_node,
                    id,
                    lease,
                    until: None,
                } if its_node == node && self.nodes[node].table.told_by(id).is_some() => {
                    Some(self.until(lease))
                }
                _ => continue,
            };
            let token = self.token_of(node, at).expect("it was just granted");
            self.issue(node, at, &before, token)?;
            if let Doing::Waits { until: its, .. } = &mut self.clients[at].doing {
                *its = until;
            }
        }
        Ok(())
    }

    /// Somebody who waits on this node is told something.
    fn answer(
        &mut self,
        node: usize,
        addressee: &Addressee,
        answer: &Answer,
        before: &Lock,
    ) -> Checked<()> {
        let id = addressee.id();
        if let Addressee::Place(_) = addressee {
            return self.tell_place(node, id, answer, Some(before));
        }
        let (at, lease) = self.waiting(node, id);
        self.clients[at].doing = Doing::Nothing;
        if let Answer::Granted(token) = *answer {
            self.issue(node, at, before, token)?;
            self.believe(at, token, self.until(lease));
            self.nodes[node].table.grant_told(client_id(at), true);
        }
        Ok(())
    }

    /// The end of a place is published.
    fn tell_place(
        &mut self,
        node: usize,
        id: WaiterId,
        answer: &Answer,
        before: Option<&Lock>,
    ) -> Checked<()> {
        let (at, place) = self.take_place(node, id);
        let Answer::Granted(token) = *answer else {
            self.say(|w| {
                let (owner, name) = (owner_name(at), w.node_name(node));
                format!("the place of {owner} on {name} ends: {answer:?}")
            });
            return Ok(());
        };
        if let Some(before) = before {
            self.issue(node, at, before, token)?;
        }
        let until = place.until.unwrap_or(self.until(place.lease));
        let heard = self.hears(&place);
        match heard {
            true => self.believe(at, token, until),
            false => self.say(|_| format!("{} does not hear of its grant", owner_name(at))),
        }
        let table = &mut self.nodes[node].table;
        table.grant_told(Recipient::Place(id), heard);
        Ok(())
    }

    fn hears(&self, place: &PlaceKept) -> bool {
        !self.is_deaf && !place.is_left
    }

    /// Takes the place of this name, and whose it is.
    fn take_place(&mut self, node: usize, id: WaiterId) -> (usize, PlaceKept) {
        let mut clients = self.clients.iter_mut().enumerate();
        let found = clients.find_map(|(at, client)| {
            let mut places = client.places.iter();
            let place = places.position(|place| place.node == node && place.id == id)?;
            Some((at, client.places.remove(place)))
        });
        found.expect("only who has a place is told its end")
    }

    /// Publishes what is offered to places, and takes the step to its end. There are no
    /// other locks to be looked at.
    fn carry_out<T>(&mut self, node: usize, mut progress: Progress<T>) -> Checked<Done<T>> {
        loop {
            let offer = match progress {
                Progress::Done(done) => return Ok(done),
                Progress::Asks(question) => panic!("asked for {:?}", question.asked()),
                Progress::Offers(offer) => offer,
            };
            let (id, token) = (offer.place().id, offer.token());
            let (at, place) = self.take_place(node, id);
            let heard = self.hears(&place);
            if heard {
                let before = self.stored(node);
                self.issue(node, at, &before, token)?;
                self.believe(at, token, self.until(place.lease));
            } else {
                self.say(|_| format!("{} does not hear of its grant", owner_name(at)));
            }
            progress = self.nodes[node].table.offered(*offer, heard);
        }
    }

    /// The client that waits by this name, and the lease that it asked for.
    fn waiting(&self, node: usize, id: WaiterId) -> (usize, i64) {
        let mut clients = self.clients.iter().enumerate();
        let waiting = clients.find_map(|(at, client)| match client.doing {
            Doing::Waits {
                node: its_node,
                id: its,
                lease,
                ..
            } if its_node == node && its == id => Some((at, lease)),
            _ => None,
        });
        waiting.expect("only who waits is answered")
    }

    /// Until when a client may rely on a lease that begins now.
    fn until(&self, lease: i64) -> i64 {
        self.ticks + lease - self.scope().in_hand
    }

    /// A token was given to this owner.
    fn issue(&mut self, node: usize, at: usize, before: &Lock, token: FencingToken) -> Checked<()> {
        let holder = before.holder(&self.cast.owners[at]);
        // A message may come before the reply.
        let is_told = self.clients[at]
            .belief
            .is_some_and(|(known, _)| known == token);
        let is_new = !is_told && holder.is_none_or(|holder| holder.token != Some(token));
        if is_new && let Some(said) = &mut self.said {
            said.tokens.push(token);
        }
        self.say(|w| {
            let (name, owner, token) = (w.node_name(node), owner_name(at), w.short(token));
            let again = if is_new { "" } else { " again" };
            format!("{name} grants k to {owner}{again}, token {token}")
        });
        let is_to_rise = is_new && self.scope().expected == Expected::Holds;
        if is_to_rise && Some(token) <= self.greatest_told {
            return Err(Broken::new(
                "tokens_rise",
                format!("{} is given a token below one told before", owner_name(at)),
            ));
        }
        Ok(())
    }

    /// A turn of each primary ends: it delivers the replies that need not be withheld
    /// any more.
    fn end_turns(&mut self) -> Checked<()> {
        for node in 0..self.nodes.len() {
            if !self.is_primary(node) || !self.nodes[node].table.awaits_replicas() {
                continue;
            }
            let needed = self.setting(node, self.scope().min_replicas);
            let Node {
                table,
                peers,
                offset,
                ..
            } = &mut self.nodes[node];
            table.offset_known(*offset);
            let acked = peers.iter().filter_map(|peer| peer.acked).collect();
            for (id, _) in table.acknowledged(needed, acked, usize::MAX) {
                self.tell(node, id)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, node: usize, id: WaiterId) -> Checked<()> {
        let stored = self.read(node);
        let now = self.now(node);
        let told = self.nodes[node].table.tell(id, Ok(stored), now);
        if let Some((Addressee::Place(_), answer)) = told {
            return self.tell_place(node, id, &answer, None);
        }
        let (at, _) = self.waiting(node, id);
        let answer = told.map(|(_, answer)| answer);
        let doing = std::mem::replace(&mut self.clients[at].doing, Doing::Nothing);
        let until = match doing {
            Doing::Waits { until, .. } => until.expect("it was granted"),
            Doing::Nothing => unreachable!("it waits"),
        };
        let token = match answer {
            Some(Answer::Granted(token)) => Some(token),
            Some(Answer::Renewed(true)) => self.token_of(node, at),
            _ => None,
        };
        match token {
            Some(token) => {
                self.believe(at, token, until);
                self.nodes[node].table.grant_told(client_id(at), true);
            }
            None => {
                self.clients[at].belief = None;
                self.say(|_| format!("{} is told that its time is over", owner_name(at)));
            }
        }
        Ok(())
    }

    /// A client hears of its hold.
    fn believe(&mut self, at: usize, token: FencingToken, until: i64) {
        self.greatest_told = self.greatest_told.max(Some(token));
        let belief = &mut self.clients[at].belief;
        let until = belief.map_or(until, |(_, before)| until.max(before));
        if until < self.ticks {
            self.say(|_| format!("{} hears of it too late", owner_name(at)));
            return;
        }
        *belief = Some((token, until));
        self.say(|w| {
            let (name, token) = (owner_name(at), w.short(token));
            format!("{name} believes that it holds k by token {token} until {until}")
        });
    }

    /// The lock table of a node, for a request of this client or by itself.
    fn table(&mut self, node: usize, client: Option<usize>) -> &mut LockTable {
        let replicas = self.setting(node, self.scope().min_replicas);
        let timeout_ms = self.scope().acks_timeout;
        let table = &mut self.nodes[node].table;
        table.settings.acks = (replicas > 0).then(|| Acknowledgement {
            replicas,
            connected: replicas,
            timeout_ms,
            client: client.map(client_id),
        });
        table
    }

    /// How long the first lease of a place is for which this one is asked.
    fn first_lease(&self, node: usize, lease: i64) -> i64 {
        let acks = match self.setting(node, self.scope().min_replicas) {
            0 => 0,
            _ => self.scope().acks_timeout,
        };
        lease.min(CLAIM + acks)
    }

    fn acquire(&mut self, at: usize, node: usize, lease: i64, queue: bool) -> Checked<()> {
        self.say(|w| {
            let (owner, name) = (owner_name(at), w.node_name(node));
            let how = if queue { ", or a place" } else { "" };
            format!("{owner} acquires k for {lease}{how} on {name}")
        });
        let stored = self.read(node);
        let before = self.stored(node);
        let owner = self.cast.owners[at].clone();
        let reenters = before.holder(&owner).is_some()
            && self
                .scope()
                .self_fencing
                .is_some_and(|one| one.reenters_in_grace);
        let request = AcquireRequest {
            owner,
            lease: Lease::from_ms(lease).unwrap(),
            hold: HoldNumber::new(1).ok(),
            limit: Limit::EXCLUSIVE,
            session: None,
        };
        let now = self.now(node);
        let wait = (queue || self.scope().waits).then(|| Wait {
            client: client_id(at),
            until_ms: queue.then_some(now.ms() + self.scope().place),
            channel: queue.then(|| b"channel"[..].into()),
        });
        let may_grant = !self.is_in_grace(node);
        let table = self.table(node, Some(at));
        table.settings.may_grant = may_grant || reenters;
        let progress = table.acquire(KEY, stored, request, wait, now);
        let done = self.carry_out(node, progress)?;
        self.nodes[node].table.settings.may_grant = may_grant;
        let acquired = done.result.expect("no owner is at fault");
        let withheld = done.step.withheld;
        self.apply(node, done.step)?;
        match acquired {
            Acquired::Granted(token) => {
                if queue {
                    // It is granted in the stead of its place, unless that was before.
                    let places = &mut self.clients[at].places;
                    places.retain(|place| !place.is_in_queue_of(node));
                }
                self.issue(node, at, &before, token)?;
                self.reply(node, at, withheld, token, lease);
            }
            Acquired::Queued(id) if queue => {
                self.say(|_| "it has a place".to_owned());
                let (lease, until) = (self.first_lease(node, lease), None);
                let place = PlaceKept {
                    node,
                    id,
                    lease,
                    until,
                    is_left: false,
                };
                let places = &mut self.clients[at].places;
                places.retain(|place| !place.is_in_queue_of(node));
                places.push(place);
            }
            Acquired::Queued(id) => {
                self.say(|_| "it waits".to_owned());
                self.clients[at].doing = Doing::Waits {
                    node,
                    id,
                    lease,
                    until: None,
                };
            }
            Acquired::Busy => self.say(|_| "null".to_owned()),
        }
        Ok(())
    }

    /// A client that asked for this lease is told now of its hold, or waits by this name.
    fn reply(
        &mut self,
        node: usize,
        at: usize,
        withheld: Option<WaiterId>,
        token: FencingToken,
        lease: i64,
    ) {
        let until = self.until(lease);
        match withheld {
            Some(id) => {
                self.clients[at].doing = Doing::Waits {
                    node,
                    id,
                    lease,
                    until: Some(until),
                };
            }
            None => self.believe(at, token, until),
        }
    }

    fn renew(&mut self, at: usize, node: usize, lease: i64) -> Checked<()> {
        let until = self.until(lease);
        // A renewal may shorten the lease, and its reply may be lost.
        let belief = &mut self.clients[at].belief;
        *belief = belief.map(|(token, before)| (token, before.min(until)));
        let token = belief.map(|(token, _)| token);
        let token = token.filter(|_| self.scope().place > 0);
        let stored = self.read(node);
        let request = RenewRequest {
            owner: self.cast.owners[at].clone(),
            lease: Lease::from_ms(lease).unwrap(),
            token,
        };
        let now = self.now(node);
        let progress = self.table(node, Some(at)).renew(KEY, stored, &request, now);
        let done = self.carry_out(node, progress)?;
        let renewed = done.result == Ok(true);
        let withheld = done.step.withheld;
        self.apply(node, done.step)?;
        self.say(|w| {
            let (owner, name) = (owner_name(at), w.node_name(node));
            let renewed = i32::from(renewed);
            format!("{owner} renews k for {lease} on {name}: {renewed}")
        });
        match self.token_of(node, at).filter(|_| renewed) {
            Some(token) => self.reply(node, at, withheld, token, lease),
            None => self.clients[at].belief = None,
        }
        Ok(())
    }

    fn release(&mut self, at: usize, node: usize) -> Checked<()> {
        self.clients[at].belief = None;
        for place in &mut self.clients[at].places {
            place.is_left |= place.node != node;
        }
        let stored = self.read(node);
        let request = ReleaseRequest {
            owner: self.cast.owners[at].clone(),
            token: None,
            extent: ReleaseExtent::All,
        };
        let now = self.now(node);
        let progress = self
            .table(node, Some(at))
            .release(KEY, stored, &request, now);
        let done = self.carry_out(node, progress)?;
        self.apply(node, done.step)?;
        let released = done.result.expect("a release is no fault");
        self.say(|w| {
            let (owner, name) = (owner_name(at), w.node_name(node));
            let reply = match released {
                Released::NotHeld => "null",
                Released::StillHeld => "0",
                Released::LastHold => "1",
            };
            format!("{owner} releases k on {name}: {reply}")
        });
        Ok(())
    }

    fn give_up(&mut self, at: usize) -> Checked<()> {
        let doing = std::mem::replace(&mut self.clients[at].doing, Doing::Nothing);
        if let Doing::Waits { node, id, .. } = doing {
            let now_ms = self.now(node).ms();
            let table = &mut self.nodes[node].table;
            let told = table.waiter_left(id, Leave::TimeUp, now_ms);
            self.say(|_| match told {
                None => format!("{} waits no more", owner_name(at)),
                Some(_) => format!("{} is told NOREPLICAS", owner_name(at)),
            });
            if told.is_some() {
                // What is over is ended before anything else happens.
                return self.wake(node);
            }
        }
        Ok(())
    }

    fn apply_next(&mut self, at: usize) {
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
    fn receive_token(&mut self, at: usize) {
        let now = self.now(at);
        if let Some(token) = self.stored(at).last_token() {
            self.nodes[at].table.token_received(token, now);
        }
    }

    fn resync(&mut self, at: usize) {
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

    fn follow(&mut self, at: usize, to: usize) -> Checked<()> {
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
                if let Doing::Waits { node, id, .. } = client.doing
                    && node == at
                {
                    let table = &mut self.nodes[at].table;
                    table.waiter_left(id, Leave::Gone, now_ms);
                    client.doing = Doing::Nothing;
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

    fn promote(&mut self, at: usize) -> Checked<()> {
        self.say(|w| format!("{} is promoted", w.node_name(at)));
        self.what_was_told_is_known(at)?;
        self.leave_primary(at);
        self.promotions_left -= 1;
        let last = self.nodes.iter().map(|node| node.epoch).max();
        let (ticks, now_ms) = (self.ticks, self.now(at).ms());
        let grace = self.scope().self_fencing.map_or(0, |one| one.grace);
        let node = &mut self.nodes[at];
        node.role = Role::Primary;
        node.grace = Grace::begin(ticks, grace);
        node.epoch = last.unwrap_or_default() + 1;
        node.promoted_at = Some(ticks);
        node.offset = 0;
        node.peers = Default::default();
        node.table.everything_touched(now_ms);
        self.set_grace(at);
        Ok(())
    }

    fn set_grace(&mut self, node: usize) {
        let may_grant = !self.is_in_grace(node);
        let now_ms = self.now(node).ms();
        let table = &mut self.nodes[node].table;
        let resumes = may_grant && !table.settings.may_grant;
        table.settings.may_grant = may_grant;
        if resumes {
            table.grants_resume(now_ms);
            self.say(|w| format!("the grace period of {} is over", w.node_name(node)));
        }
    }

    fn restart(&mut self, at: usize) {
        self.say(|w| format!("{} restarts empty", w.node_name(at)));
        let node = &mut self.nodes[at];
        node.data = Keyspace::default();
        node.table = new_table();
        if let Role::Replica { stream, .. } = &mut node.role {
            *stream = None;
        }
    }

    fn wake(&mut self, node: usize) -> Checked<()> {
        self.say(|w| format!("the timer of {} wakes", w.node_name(node)));
        let (now_ms, before) = (self.now(node).ms(), self.stored(node));
        let over = self.nodes[node].table.give_up(now_ms, WORK_A_WAKE);
        for (addressee, answer) in over {
            self.answer(node, &addressee, &answer, &before)?;
        }
        for _ in 0..WORK_A_WAKE {
            let now = self.now(node);
            let Some(due) = self.nodes[node].table.take_due(now.ms()) else {
                break;
            };
            let stored = self.read(node);
            let progress = self.table(node, None).do_due(due, Ok(stored), now);
            let step = self.carry_out(node, progress)?.step;
            self.apply(node, step)?;
        }
        self.nodes[node].table.begin_turns_anew();
        Ok(())
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
    fn what_was_told_is_known(&self, node: usize) -> Checked<()> {
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
    fn owners_exclude_each_other(&self) -> Checked<()> {
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
                    let counts = self.scope().self_fencing.map_or(0, |one| one.no_renewal);
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
            for &node in &order.nodes {
                let places = client.places.iter();
                for kept in places.filter(|kept| kept.node == node) {
                    form.count(place(node).unwrap_or(usize::MAX));
                    form.waiter(Some(kept.id));
                    form.number(kept.lease);
                    form.flag(kept.is_left);
                    let left = kept.until.map(|until| until - self.ticks);
                    form.number(left.map_or(-2, |left| left.max(-1)));
                }
            }
            form.token(client.belief.map(|(token, _)| token));
            form.number(client.belief.map_or(-1, |(_, until)| until - self.ticks));
            match client.doing {
                Doing::Nothing => form.number(0),
                Doing::Waits {
                    node,
                    id,
                    lease,
                    until,
                } => {
                    form.number(1);
                    form.count(place(node).unwrap_or(usize::MAX));
                    form.waiter(Some(id));
                    match until {
                        None => form.number(-lease),
                        Some(until) => form.number((until - self.ticks).max(-1)),
                    }
                }
            }
        }
        if self.scope().expected == Expected::Holds {
            form.token(self.greatest_told);
        }
        form.number(self.promotions_left.into());
        form.flag(self.is_deaf);
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
        let client = Client {
            doing: Doing::Nothing,
            belief: None,
            places: SmallVec::new(),
        };
        Self {
            cast: Cast::new(scope),
            nodes,
            clients: vec![client; scope.owners],
            ticks: 0,
            steps: 0,
            promotions_left: scope.promotions,
            is_deaf: false,
            greatest_told: None,
            said: None,
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

    fn act(&mut self, action: Action) -> Checked<()> {
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

    /// The smallest one over all orders of names.
    fn fingerprint(&self) -> u64 {
        let orders = &self.cast.orders;
        // The slowest clock shows true time: what is over by it is over everywhere.
        let mut form = Form::collecting(&orders[0].names, BEGIN_MS + self.ticks);
        self.take_down(&orders[0], &mut form);
        let mut smallest = u64::MAX;
        for order in orders {
            let mut hashing = form.hashing(&order.names);
            self.take_down(order, &mut hashing);
            smallest = smallest.min(hashing.fingerprint());
            form = hashing;
        }
        smallest
    }

    fn listen(&mut self) {
        self.said = Some(Said::default());
    }

    fn said(&mut self) -> String {
        let said = self.said.as_mut().map(|said| &mut said.text);
        said.map(std::mem::take).unwrap_or_default()
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
