//! From what is read to what is written and told, as the module goes it.

use super::cast::{client_id, owner_name};
use super::{Checked, Doing, KEY, Node, PlaceKept, Role, World};
use crate::acks::Acknowledgement;
use crate::explore::keyspace::Write;
use crate::explore::search::Broken;
use crate::keys::KeyRef;
use crate::lock::{Lock, Now};
use crate::queue::{Addressee, Place, WaiterId};
use crate::request::ClientId;
use crate::table::{self, Answer, Done, LockTable, Said, Step, WORK_A_WAKE};
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
        self.client.map(client_id)
    }

    fn say(&mut self, place: &Place, token: FencingToken) -> Said {
        let heard = self.world.publish(self.node, place.id, token);
        let heard = heard.unwrap_or_else(|broken| {
            self.broken.get_or_insert(broken);
            false
        });
        Said { heard, weight: 1 }
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
    pub(super) fn apply(&mut self, node: usize, step: Step) -> Checked<()> {
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
            self.nodes[node].table.client_told(client_id(at), true);
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
        self.nodes[node].table.grant_told(id, heard, 0);
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

    /// Takes a step. This client can be told of it later.
    pub(super) fn step<T>(
        &mut self,
        node: usize,
        client: Option<usize>,
        step: impl FnOnce(&mut LockTable, Now, &mut dyn table::World) -> Done<T>,
    ) -> Checked<Done<T>> {
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
        let (at, place) = self.take_place(node, id);
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

    /// A turn of each primary ends: it delivers the replies that need not be withheld
    /// any more.
    pub(super) fn end_turns(&mut self) -> Checked<()> {
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
            let ready = table.acknowledged(needed, acked, usize::MAX);
            for (id, _) in ready.replies {
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
                self.nodes[node].table.client_told(client_id(at), true);
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
            client: client.map(client_id),
        });
        table
    }

    pub(super) fn wake(&mut self, node: usize) -> Checked<()> {
        self.say(|w| format!("the timer of {} wakes", w.node_name(node)));
        let (now, before) = (self.now(node), self.stored(node));
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
