//! Random histories: commands of a few owners, other clients that write, and time.

use proptest::prelude::*;

use super::*;

const OWNERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const KEYS: [KeyRef<'static>; 2] = [K, L];

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        who: usize,
        key: usize,
        lease_ms: i64,
        hold: Option<i64>,
        limit: Limit,
        session: bool,
        patient: bool,
    },
    Release {
        who: usize,
        key: usize,
        extent: ReleaseExtent,
    },
    Renew {
        who: usize,
        key: usize,
        lease_ms: i64,
    },
    Break {
        key: usize,
    },
    /// The connection of some request ends.
    End {
        client: prop::sample::Index,
    },
    /// A waiter's time is up.
    Leave {
        waiter: prop::sample::Index,
    },
    /// A grant on its way is heard of, or not.
    Tell {
        client: prop::sample::Index,
        heard: bool,
    },
    Time {
        ms: i64,
    },
    /// The wall clock is set.
    Clock {
        by_ms: i64,
        is_late: bool,
    },
    Due,
    Delete {
        key: usize,
    },
    /// `HDEL key owner`
    RemoveOwner {
        who: usize,
        key: usize,
    },
    /// Redisson's script takes a lock that is free.
    Redisson {
        who: usize,
        key: usize,
    },
    Persist {
        key: usize,
    },
    Rename,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..OWNERS.len();
    let key = || 0..KEYS.len();
    let lease = || 1..2000_i64;
    let hold_count = prop_oneof![3 => Just(None), 1 => (1..4_i64).prop_map(Some)];
    let limit = prop_oneof![
        2 => Just(Limit::EXCLUSIVE),
        3 => Just(Limit::SHARED),
        3 => (2..=3_i64).prop_map(|count| Limit::from_count(count).unwrap()),
    ];
    let extent = prop_oneof![
        4 => Just(ReleaseExtent::One),
        1 => Just(ReleaseExtent::All),
        2 => (1..4_i64).prop_map(|n| ReleaseExtent::Hold(hold_number(n))),
    ];
    let any = any::<prop::sample::Index>;
    let acquire = (
        (who(), key(), lease()),
        (hold_count, limit),
        (prop::bool::weighted(0.3), prop::bool::weighted(0.8)),
    );
    let step = prop_oneof![
        16 => acquire.prop_map(|((who, key, lease_ms), (hold, limit), (session, patient))| {
            Step::Acquire { who, key, lease_ms, hold, limit, session, patient }
        }),
        8 => (who(), key(), extent)
            .prop_map(|(who, key, extent)| Step::Release { who, key, extent }),
        2 => (who(), key(), lease())
            .prop_map(|(who, key, lease_ms)| Step::Renew { who, key, lease_ms }),
        1 => key().prop_map(|key| Step::Break { key }),
        2 => any().prop_map(|client| Step::End { client }),
        2 => any().prop_map(|waiter| Step::Leave { waiter }),
        6 => (any(), prop::bool::weighted(0.8))
            .prop_map(|(client, heard)| Step::Tell { client, heard }),
        4 => prop_oneof![0..3_i64, 0..1500_i64].prop_map(|ms| Step::Time { ms }),
        2 => (prop_oneof![-3000..3000_i64, -9..9_i64], prop::bool::ANY)
            .prop_map(|(by_ms, is_late)| Step::Clock { by_ms, is_late }),
        4 => Just(Step::Due),
        1 => key().prop_map(|key| Step::Delete { key }),
        1 => (who(), key()).prop_map(|(who, key)| Step::RemoveOwner { who, key }),
        1 => (who(), key()).prop_map(|(who, key)| Step::Redisson { who, key }),
        1 => key().prop_map(|key| Step::Persist { key }),
        1 => Just(Step::Rename),
    ];
    prop::collection::vec(step, 1..80)
}

/// A server, and what its clients know of it.
struct History {
    server: Server,
    next_client: u64,
    /// Clients with a connection.
    connected: Vec<ClientId>,
    /// Clients that have been granted the lock and do not know it yet.
    on_their_way: Vec<ClientId>,
    /// Who took which lock by Redisson's script. Such a hold gets its token with the
    /// first request of its owner that is served, also where that asks for no other.
    by_redisson: Vec<(usize, usize)>,
    /// Who asked, of those that wait: key, waiter, owner.
    queued: Vec<(usize, WaiterId, usize)>,
    newest: Option<FencingToken>,
}

impl History {
    fn new(reads_all: bool) -> Self {
        let mut server = Server::new();
        server.tells = false;
        server.reads_all = reads_all;
        Self {
            server,
            next_client: 0,
            connected: Vec::new(),
            on_their_way: Vec::new(),
            by_redisson: Vec::new(),
            queued: Vec::new(),
            newest: None,
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let server = &mut self.server;
        match *step {
            Step::Acquire {
                who,
                key,
                lease_ms,
                hold,
                limit,
                session,
                patient,
            } => {
                self.next_client += 1;
                let client = ClientId(self.next_client);
                let mut ask = ask(OWNERS[who]).lease(lease_ms);
                ask.client = client;
                ask.is_patient = patient;
                ask.request.limit = limit;
                ask.request.hold = hold.map(hold_number);
                ask.request.session = session.then_some(client);
                self.connected.push(client);
                let held_before = server
                    .value(KEYS[key])
                    .fields
                    .contains_key(OWNERS[who].as_bytes());
                let in_front = self.queued.iter().filter(|queued| queued.0 == key).count();
                let answered = server.answers.len();
                match server.acquire(KEYS[key], ask) {
                    Ok(Acquired::Queued(id)) => self.queued.push((key, id, who)),
                    Ok(Acquired::Granted(token)) => {
                        let is_new = self.newest.is_none_or(|newest| token > newest);
                        let served = server.answers.len() - answered;
                        prop_assert!(
                            held_before
                                || is_new && served >= in_front
                                || server
                                    .answers
                                    .iter()
                                    .any(|(_, answer)| { *answer == Answer::Granted(token) }),
                            "a newcomer passed the queue"
                        );
                        prop_assert_eq!(server.token(KEYS[key], OWNERS[who]), token);
                    }
                    Ok(Acquired::Busy) | Err(_) => {}
                }
            }
            Step::Release { who, key, extent } => {
                let _ = server.release_as(KEYS[key], OWNERS[who], extent, None);
            }
            Step::Renew { who, key, lease_ms } => {
                server.renew(KEYS[key], OWNERS[who], lease_ms);
            }
            Step::Break { key } => {
                server.break_lock(KEYS[key], None);
            }
            Step::End { client } => {
                if !self.connected.is_empty() {
                    let at = client.index(self.connected.len());
                    let client = self.connected.remove(at);
                    self.on_their_way.retain(|other| *other != client);
                    let waits = server.clients.iter().find(|(_, waits)| **waits == client);
                    if let Some((&id, _)) = waits {
                        server.leave(id);
                        self.queued.retain(|queued| queued.1 != id);
                    }
                    server.table.connection_ended(client, false);
                    let mut owners = KEYS.iter().flat_map(|key| OWNERS.map(|name| (*key, name)));
                    let bound = owners.any(|(key, name)| {
                        server.table.bound_client(key, &owner(name)) == Some(client)
                    });
                    prop_assert!(!bound, "it is bound to {:?} yet", client);
                }
            }
            Step::Leave { waiter } => {
                if !self.queued.is_empty() {
                    let at = waiter.index(self.queued.len());
                    let (_, id, _) = self.queued.remove(at);
                    server.leave(id);
                }
            }
            Step::Tell { client, heard } => {
                if !self.on_their_way.is_empty() {
                    let at = client.index(self.on_their_way.len());
                    let client = self.on_their_way.remove(at);
                    server.table.grant_told(client, heard);
                }
            }
            Step::Time { ms } => server.sleep(ms),
            Step::Clock { by_ms, is_late } => self.set_clock(by_ms, is_late)?,
            Step::Due => server.run(),
            Step::Delete { key } => server.delete(KEYS[key]),
            Step::RemoveOwner { who, key } => server.write(KEYS[key], |value| {
                value.fields.remove(OWNERS[who].as_bytes());
            }),
            Step::Redisson { who, key } => {
                server.expire();
                let end_ms = server.ms() + 1000;
                if !server.keys.contains_key(&KEYS[key].into()) {
                    server.write(KEYS[key], |value| {
                        value.set(OWNERS[who].as_bytes(), 1);
                        value.expires_at_ms = Some(end_ms);
                    });
                    self.by_redisson.push((who, key));
                }
            }
            Step::Persist { key } => {
                // A count with neither an expiry nor a token is no lock.
                if server.value(KEYS[key]).fields.contains_key(TOKEN_FIELD) {
                    server.write(KEYS[key], |value| value.expires_at_ms = None);
                }
            }
            Step::Rename => {
                server.expire();
                if server.keys.contains_key(&K.into()) {
                    server.rename(K, L);
                    let moved = self.by_redisson.iter().filter(|(_, key)| *key == 0);
                    let moved: Vec<_> = moved.map(|(who, _)| (*who, 1)).collect();
                    self.by_redisson.extend(moved);
                }
            }
        }
        Ok(())
    }

    /// The wall clock is set. Where the lock is known, leases run as if it was not.
    fn set_clock(&mut self, by_ms: i64, is_late: bool) -> Result<(), TestCaseError> {
        let server = &mut self.server;
        server.run();
        let (before, before_ms) = (KEYS.map(|key| server.lock(key)), server.ms());
        let known = KEYS.map(|key| {
            let bound = server.table.stepped.bound_keys();
            server.table.queues.contended(key) || bound.into_iter().any(|one| one.as_ref() == key)
        });
        match is_late {
            true => server.set_clock_late(by_ms),
            false => server.set_clock(by_ms),
        }
        server.run();
        let left_ms = |held: &Holder, now_ms| held.lease_end_ms.map(|end_ms| end_ms - now_ms);
        for ((key, before), _) in KEYS.into_iter().zip(before).zip(known).filter(|one| one.1) {
            let after = server.lock(key);
            let lasts = |holder: &&Holder| holder.lease_end_ms >= Some(before_ms);
            for held in before.holders().iter().filter(lasts) {
                let still = after.holder(&held.owner);
                prop_assert!(still.is_some(), "{:?} lost {:?}", held, key);
                let still = still.unwrap();
                prop_assert_eq!((still.token, still.holds), (held.token, held.holds));
                let left_ms = [left_ms(still, server.ms()), left_ms(held, before_ms)];
                // A session may have been renewed at once.
                let is_bound = server.table.sessions.binding_of(key, &held.owner);
                prop_assert!(
                    left_ms[0] == left_ms[1] || is_bound.is_some() && left_ms[0] > left_ms[1]
                );
            }
        }
        Ok(())
    }

    /// What is true after each step.
    fn check(&mut self, clients: &[(WaiterId, ClientId)]) -> Result<(), TestCaseError> {
        let mut last: [Option<WaiterId>; KEYS.len()] = Default::default();
        for (id, answer) in self.server.told() {
            let at = self.queued.iter().position(|queued| queued.1 == id);
            let (key, _, who) = self.queued.remove(at.expect("nobody is answered twice"));
            let Answer::Granted(token) = answer else {
                continue;
            };
            let client = clients.iter().find(|(waiter, _)| *waiter == id).unwrap().1;
            self.on_their_way.push(client);
            // Whoever was passed was passed by one that holds the lock.
            let passed = self.queued.iter().any(|one| one.0 == key && one.1 < id);
            if passed {
                let lock = self.server.lock(KEYS[key]);
                let reenters = lock
                    .holder(&owner(OWNERS[who]))
                    .is_some_and(|one| one.holds > 1)
                    || self.by_redisson.contains(&(who, key));
                prop_assert!(reenters || last[key].is_some() || self.newest >= Some(token));
            }
            last[key] = Some(id);
        }
        for key in KEYS {
            let lock = self.server.lock(key);
            let count = lock.holders().len();
            if let Some(strictest) = lock.strictest_limit() {
                prop_assert!(count <= 1 || strictest.has_room_beside(count - 1));
            }
            let tokens = lock.holders().iter().filter_map(|holder| holder.token);
            self.newest = self.newest.max(tokens.max());
            if let Some(noted) = self.server.table.remembered.untouched(key)
                && !self.server.reads_all
            {
                let plain = crate::lock::tests::sorted(noted.clone());
                prop_assert_eq!(plain, crate::lock::tests::sorted(lock));
            }
            // Where somebody could have the lock, a look is planned in time.
            if self.server.table.queues.contended(key) {
                let wake_ms = self.server.table.wake_at_ms();
                let soon_ms = self.server.ms() + 500;
                prop_assert!(wake_ms.is_some_and(|at_ms| at_ms <= soon_ms));
            }
        }
        Ok(())
    }

    fn play(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            let before: Vec<_> = self
                .server
                .clients
                .iter()
                .map(|(id, client)| (*id, *client))
                .collect();
            self.run(step)?;
            self.check(&before)?;
        }
        Ok(())
    }

    /// Everybody goes away, and time passes.
    fn end(&mut self) -> Result<(), TestCaseError> {
        for (_, id, _) in std::mem::take(&mut self.queued) {
            self.server.leave(id);
        }
        for client in std::mem::take(&mut self.on_their_way) {
            self.server.table.grant_told(client, true);
        }
        for client in std::mem::take(&mut self.connected) {
            self.server.table.connection_ended(client, true);
        }
        for key in KEYS {
            self.server.delete(key);
        }
        self.server.run();
        self.server.table.take_clients_to_close(usize::MAX);
        self.server.check_nothing_is_left();
        Ok(())
    }
}

proptest! {
    #[test]
    fn locks_keep_their_promises_whatever_happens(steps in steps()) {
        let mut history = History::new(false);
        history.play(&steps)?;
        history.end()?;
    }

    #[test]
    fn a_table_that_reads_nothing_twice_decides_alike(steps in steps()) {
        let (mut kept, mut anew) = (History::new(false), History::new(true));
        for step in &steps {
            kept.play(std::slice::from_ref(step))?;
            anew.play(std::slice::from_ref(step))?;
            prop_assert_eq!(&kept.server.effects, &anew.server.effects);
            prop_assert_eq!(&kept.queued, &anew.queued);
            for key in KEYS {
                let [one, other] = [&kept, &anew].map(|one| one.server.value(key));
                prop_assert_eq!(one.fields, other.fields);
                prop_assert_eq!(one.expires_at_ms, other.expires_at_ms);
            }
        }
    }
}
