//! Places that ended with a connection, as they are seen step by step, against places that
//! are all ended at once.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

const KEYS: [KeyRef<'static>; 2] = [K, L];
const OWNERS: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        who: usize,
        key: usize,
        client: u64,
        limit: i64,
        session: bool,
        waits: Option<bool>,
    },
    Release(usize, usize),
    Renew(usize, usize),
    Break(usize),
    View(usize),
    End(u64),
    Sleep(i64),
    Settle,
    Run,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (who, key, client) = (|| 0..OWNERS.len(), || 0..KEYS.len(), || 1..4_u64);
    let limit = prop_oneof![3 => Just(1), 2 => Just(2), 2 => Just(i64::MAX)];
    let waits = prop_oneof![1 => Just(None), 1 => Just(Some(false)), 4 => Just(Some(true))];
    let acquire = (
        who(),
        key(),
        client(),
        limit,
        prop::bool::weighted(0.8),
        waits,
    );
    let step = prop_oneof![
        12 => acquire.prop_map(|(who, key, client, limit, session, waits)| {
            Step::Acquire { who, key, client, limit, session, waits }
        }),
        8 => (who(), key()).prop_map(|(who, key)| Step::Release(who, key)),
        1 => (who(), key()).prop_map(|(who, key)| Step::Renew(who, key)),
        1 => key().prop_map(Step::Break),
        1 => key().prop_map(Step::View),
        2 => client().prop_map(Step::End),
        1 => (1..2 * TIMEOUT_MS).prop_map(Step::Sleep),
        2 => Just(Step::Settle),
        1 => Just(Step::Run),
    ];
    prop::collection::vec(step, 1..80)
}

struct World {
    server: Server,
    is_eager: bool,
    /// A connection that has ended comes back as another one.
    lives: [u64; 6],
    /// Clients that wait for a reply.
    busy: BTreeMap<u64, WaiterId>,
    told: Vec<(WaiterId, Answer)>,
}

impl World {
    fn new(is_eager: bool) -> Self {
        Self {
            server: Server::replicated(),
            is_eager,
            lives: [0; 6],
            busy: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    fn client(&self, of: u64) -> u64 {
        of + 10 * self.lives[of as usize]
    }

    fn note(&mut self, told: Vec<(WaiterId, Answer)>) {
        for (id, _) in &told {
            self.busy.retain(|_, waits| waits != id);
            self.server.clients.remove(id);
        }
        self.told.extend(told);
    }

    fn run(&mut self) {
        for _ in 0..9 {
            let given_up = self.server.give_up();
            self.note(given_up);
            self.server.run();
            let answers = self.server.told();
            for (id, answer) in &answers {
                if let (Some((client, _)), Answer::Granted(_)) =
                    (self.busy.iter().find(|(_, waits)| *waits == id), answer)
                {
                    self.server.table.client_told(ClientId(*client), true);
                }
            }
            self.note(answers);
        }
    }

    fn take(&mut self, step: &Step) -> String {
        let server = &mut self.server;
        match *step {
            Step::Acquire {
                who,
                key,
                client,
                limit,
                session,
                waits,
            } => {
                let client = self.client(client);
                if self.busy.contains_key(&client) {
                    return String::new();
                }
                let mut asks = ask(OWNERS[who]).by(client);
                asks.request.limit = match limit {
                    i64::MAX => Limit::SHARED,
                    count => Limit::from_count(count).unwrap(),
                };
                let is_place = waits == Some(true);
                if session {
                    asks = asks.session();
                }
                match waits {
                    None => asks = asks.now(),
                    Some(true) => asks = asks.place(),
                    Some(false) => {}
                }
                let until_ms = is_place.then(|| self.server.ms() + 20_000);
                let result = self.server.acquire_until(KEYS[key], asks, until_ms);
                let superseded = Answer::Refused(LockError::Superseded);
                let answers = &mut self.server.answers;
                let taken_over = answers.extract_if(.., |(_, answer)| *answer == superseded);
                for (id, answer) in taken_over {
                    self.busy.retain(|_, waits| *waits != id);
                    self.told.push((id, answer));
                }
                match result {
                    Ok(Acquired::Granted(_)) => {
                        let id = self.server.withheld.unwrap();
                        self.busy.insert(client, id);
                    }
                    Ok(Acquired::Queued(id)) if !is_place => {
                        self.busy.insert(client, id);
                    }
                    _ => {}
                }
                format!("{result:?}")
            }
            Step::Release(who, key) => {
                let extent = ReleaseExtent::All;
                format!(
                    "{:?}",
                    server.release_as(KEYS[key], OWNERS[who], extent, None)
                )
            }
            Step::Renew(who, key) => {
                server.asks_by(ClientId(999));
                let renewed = server.renew(KEYS[key], OWNERS[who], LEASE_MS);
                let id = server.withheld;
                if let Some(id) = id {
                    let now_ms = server.ms();
                    server.table.waiter_left(id, Leave::Gone, now_ms);
                }
                renewed.to_string()
            }
            Step::Break(key) => server.break_lock(KEYS[key], None).to_string(),
            Step::View(key) => {
                let (now, stored) = (server.now(), server.lock(KEYS[key]));
                server.table.end_untold_on(KEYS[key]);
                format!("{:?}", server.table.view(KEYS[key], stored, now).holders)
            }
            Step::End(client) => {
                let life = &mut self.lives[client as usize];
                let ended = client + 10 * *life;
                *life += 1;
                server.disconnect(ended);
                if let Some(id) = self.busy.remove(&ended) {
                    let now_ms = server.ms();
                    server.table.waiter_left(id, Leave::Gone, now_ms);
                    server.clients.remove(&id);
                }
                while self.is_eager
                    && let Some(id) = server.table.outbox.next_ended()
                {
                    server.table.end_untold(id);
                }
                String::new()
            }
            Step::Sleep(ms) => {
                server.sleep(ms);
                String::new()
            }
            Step::Settle => {
                let mut told = self.server.settle();
                for _ in 0..3 {
                    told.extend(self.server.settle());
                }
                self.note(told);
                String::new()
            }
            Step::Run => {
                self.run();
                self.seen()
            }
        }
    }

    fn seen(&mut self) -> String {
        self.told.sort_by_key(|(id, _)| *id);
        let holders = KEYS.map(|key| self.server.holders(key));
        let metrics = self.server.metrics();
        format!("{:?} {holders:?} {}", self.told, metrics.releases)
    }
}

#[test]
fn what_is_ended_later_is_over_as_soon() {
    let config = Config::default();
    let mut runner = TestRunner::new(Config {
        cases: config.cases.max(1024),
        source_file: Some(file!()),
        ..config
    });
    let ended = std::cell::Cell::new(0);
    let result = runner.run(&steps(), |steps| {
        crate::bounds::set(steps.len() % 2 == 1);
        let mut worlds = [false, true].map(World::new);
        for step in steps.iter().chain([&Step::Settle, &Step::Run]) {
            let [lazy, eager] = &mut worlds;
            ended.set(ended.get() + usize::from(lazy.server.table.outbox.any_ended()));
            prop_assert_eq!(lazy.take(step), eager.take(step), "at {:?}", step);
            prop_assert!(lazy.server.table.agree());
        }
        for world in &mut worlds {
            for client in 1..6 {
                world.take(&Step::End(client));
            }
            world.run();
        }
        let [lazy, eager] = &mut worlds;
        prop_assert_eq!(lazy.seen(), eager.seen());
        Ok(())
    });
    println!("{} steps where some had ended", ended.get());
    if let Err(error) = result {
        panic!("{error}");
    }
}
