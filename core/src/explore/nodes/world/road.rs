//! From what is read to what is written and told, as the module goes it.

use super::{KEY, Node, Role, Waiting, World};
use crate::acks::Acknowledgement;
use crate::explore::cast::owner_name;
use crate::explore::form::client_id;
use crate::explore::keyspace::Write;
use crate::explore::search::{Broken, Checked, World as _};
use crate::keys::KeyRef;
use crate::lock::{Lock, Now};
use crate::queue::{Addressee, Place, WaiterId};
use crate::request::ClientId;
use crate::table::{self, Answer, LockTable, Outcome, Step, WORK_A_WAKE};
use crate::token::FencingToken;

/// Answers what a step asks.
struct Asked<'a> {
    world: &'a mut World,
    node: usize,
    client: Option<usize>,
    broken: Option<Broken>,
}

impl table::World for Asked<'_> {
    fn asker(&self) -> Option<ClientId> {
        self.client.map(|at| client_id(at, 0))
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> bool {
        let heard = self.world.publish(self.node, place.id, token);
        heard.unwrap_or_else(|broken| {
            self.broken.get_or_insert(broken);
            false
        })
    }

    fn read(&mut self, key: KeyRef<'_>) -> Lock {
        panic!("asked for {key:?}");
    }
}

impl World {
    pub(super) fn write(&mut self, node: usize, write: &Write) {
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

    pub(super) fn notice_expiry(&mut self, node: usize) {
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

    pub(super) fn read(&mut self, node: usize) -> Lock {
        self.notice_expiry(node);
        self.stored(node)
    }

    /// Writes what is to be written, and answers.
    pub(super) fn apply(&mut self, node: usize, step: Step) -> Checked {
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
            let table = &self.nodes[node].table;
            let is_granted =
                |one: &&mut Waiting| one.is_in_queue_of(node) && table.told_by(one.id).is_some();
            let granted = self.clients[at].waiting().filter(is_granted);
            let granted: Vec<WaiterId> = granted.map(|one| one.id).collect();
            for id in granted {
                let token = self.token_of(node, at).expect("it was just granted");
                self.issue(node, at, &before, token)?;
                let from = self.until(0);
                for one in self.clients[at].waiting() {
                    if (one.node, one.id) == (node, id) {
                        one.until = Some(from + one.lease);
                    }
                }
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
    ) -> Checked {
        let id = addressee.id();
        if let Addressee::Place(_) = addressee {
            return self.tell_place(node, id, answer, Some(before));
        }
        let (at, Waiting { lease, .. }) = self.take(node, id);
        if let Answer::Granted(token) = *answer {
            self.issue(node, at, before, token)?;
            self.believe(at, token, self.until(lease));
            self.nodes[node].table.client_told(client_id(at, 0), true);
        }
        Ok(())
    }

    /// The end of a place is published.
    pub(super) fn tell_place(
        &mut self,
        node: usize,
        id: WaiterId,
        answer: &Answer,
        before: Option<&Lock>,
    ) -> Checked {
        let (at, place) = self.take(node, id);
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
        self.nodes[node].table.grant_told(id, heard, 0);
        Ok(())
    }

    fn hears(&self, place: &Waiting) -> bool {
        !self.is_deaf && !place.is_left
    }

    /// Takes the one that waits by this name, and whose it is.
    fn take(&mut self, node: usize, id: WaiterId) -> (usize, Waiting) {
        let is_it = |one: &Waiting| (one.node, one.id) == (node, id);
        let mut clients = self.clients.iter_mut().enumerate();
        let found = clients.find_map(|(at, client)| {
            let place = client.places.iter().position(is_it);
            let place = place.map(|place| client.places.remove(place));
            Some((
                at,
                place.or_else(|| client.blocked.take_if(|one| is_it(one)))?,
            ))
        });
        found.expect("only who waits is answered")
    }

    /// Takes a step. This client can be told of it later.
    pub(super) fn step<T>(
        &mut self,
        node: usize,
        client: Option<usize>,
        step: impl FnOnce(&mut LockTable, Now, &mut dyn table::World) -> Outcome<T>,
    ) -> Checked<Outcome<T>> {
        let now = self.now(node);
        let mut table = std::mem::take(self.table(node, client));
        let mut asked = Asked {
            world: self,
            node,
            client,
            broken: None,
        };
        let done = step(&mut table, now, &mut asked);
        let broken = asked.broken;
        self.nodes[node].table = table;
        broken.map_or(Ok(done), Err)
    }

    /// Publishes the grant of a place. Returns whether anybody hears it.
    fn publish(&mut self, node: usize, id: WaiterId, token: FencingToken) -> Checked<bool> {
        let (at, place) = self.take(node, id);
        let heard = self.hears(&place);
        if heard {
            let before = self.stored(node);
            self.issue(node, at, &before, token)?;
            self.believe(at, token, self.until(place.lease));
        } else {
            self.say(|_| format!("{} does not hear of its grant", owner_name(at)));
        }
        Ok(heard)
    }

    /// A turn of each primary ends: it delivers the replies that need not be withheld
    /// any more.
    pub(super) fn end_turns(&mut self) -> Checked {
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
            let (replies, _) = table.acknowledged(needed, acked, usize::MAX);
            for (id, _) in replies {
                self.tell(node, id)?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, node: usize, id: WaiterId) -> Checked {
        let stored = self.read(node);
        let now = self.now(node);
        let told = self.nodes[node].table.tell(id, Ok(stored), now);
        if let Some((Addressee::Place(_), answer)) = told {
            return self.tell_place(node, id, &answer, None);
        }
        let (at, blocked) = self.take(node, id);
        let answer = told.map(|(_, answer)| answer);
        let until = blocked.until.expect("it was granted");
        let token = match answer {
            Some(Answer::Granted(token)) => Some(token),
            Some(Answer::Renewed(true)) => self.token_of(node, at),
            _ => None,
        };
        match token {
            Some(token) => {
                self.believe(at, token, until);
                self.nodes[node].table.client_told(client_id(at, 0), true);
            }
            None => {
                self.clients[at].belief = None;
                self.say(|_| format!("{} is told that its time is over", owner_name(at)));
            }
        }
        Ok(())
    }

    /// The lock table of a node, for a request of this client or by itself.
    pub(super) fn table(&mut self, node: usize, client: Option<usize>) -> &mut LockTable {
        let replicas = self.setting(node, self.scope().min_replicas);
        let timeout_ms = self.scope().acks_timeout;
        let table = &mut self.nodes[node].table;
        table.settings.acks = (replicas > 0).then(|| Acknowledgement {
            replicas,
            connected: replicas,
            timeout_ms,
            client: client.map(|at| client_id(at, 0)),
        });
        table
    }

    pub(super) fn wake(&mut self, node: usize) -> Checked {
        self.say(|w| format!("the timer of {} wakes", w.node_name(node)));
        let (now, before) = (self.now(node), self.stored(node));
        self.nodes[node].table.end_some_gone(WORK_A_WAKE);
        let over = self.nodes[node].table.give_up(now, WORK_A_WAKE);
        for (addressee, answer) in over {
            self.answer(node, &addressee, &answer, &before)?;
        }
        for _ in 0..WORK_A_WAKE {
            let now = self.now(node);
            let Some(due) = self.nodes[node].table.take_due(now.ms()) else {
                break;
            };
            let stored = self.read(node);
            let done = self.step(node, None, |table, now, world| {
                table.do_due(due, Ok(stored), now, world)
            })?;
            let step = done.step;
            self.apply(node, step)?;
        }
        self.nodes[node].table.begin_turns_anew();
        Ok(())
    }
}
