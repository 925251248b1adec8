//! The campaign against `Redlock` finds no two holders of one lock, and would.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use redis_lock_chaos::clock;
use redis_lock_chaos::redlock::beliefs::{self, Claim, Held, Journal};
use redis_lock_chaos::redlock::plan::{Plan, Rules};
use redis_lock_chaos::redlock::workers::{Client, look};
use redis_lock_redlock::LockGuard;
use redis_lock_testing::{Fate, Setup, binary, module};

fn campaign(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlock"));
    command.arg("--server").arg(binary());
    command.arg("--module").arg(module());
    command.args(arguments).output().unwrap()
}

/// Finds no breach in a short campaign.
#[track_caller]
fn assert_sound(arguments: &[&str]) {
    let output = campaign(&[&["--duration", "8"], arguments].concat());
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    println!("{}", report.lines().last().unwrap_or_default());
    assert!(output.status.success(), "{report}{errors}");
    assert!(report.contains("breaches: 0;"), "{report}{errors}");
}

#[test]
fn three_servers_let_nobody_in_besides_a_holder() {
    assert_sound(&["--seed", "1", "--servers", "3"]);
}

#[test]
fn five_servers_let_nobody_in_besides_a_holder() {
    assert_sound(&["--seed", "2", "--servers", "5"]);
}

/// Redlock does not promise to survive a server that starts empty at once.
#[test]
#[ignore = "make planted"]
fn a_campaign_finds_a_server_that_starts_empty_too_soon() {
    let duration = ["--duration", "120", "--servers", "3", "--seed", "1"];
    let output = campaign(&[&duration[..], &["--restart-at-once"]].concat());
    let report = String::from_utf8_lossy(&output.stdout);
    println!("{report}");
    assert!(!output.status.success(), "{report}");
    assert!(report.contains("breach: two had lock-"), "{report}");
}

/// Three servers, and two clients of them. The first client has no way to the
/// third server, so its hold rests on the other two.
struct Scene {
    plan: Plan,
    journal: Arc<Journal>,
    clients: [Client; 2],
    _dir: tempfile::TempDir,
}

impl Scene {
    async fn start() -> Self {
        let setup = Setup::of(binary()).module(module());
        let dir = tempfile::tempdir().unwrap();
        let journal = Arc::new(Journal::default());
        let (rng_of_plan, for_plan) = (StdRng::seed_from_u64(1), Arc::clone(&journal));
        let plan = Plan::start(rng_of_plan, setup, dir.path(), 3, for_plan, Rules::fair(3));
        let mut plan = plan.unwrap();
        let mut clients = Vec::new();
        for number in 1..=2 {
            let urls = plan.ways().unwrap();
            plan.set(2, 0, Fate::Down);
            clients.push(Client::connect(number, &urls).await.unwrap());
        }
        Self {
            plan,
            journal,
            clients: clients.try_into().ok().unwrap(),
            _dir: dir,
        }
    }

    /// Takes the lock, as soon as it can be had.
    async fn take(&self, client: usize) -> (LockGuard, Held) {
        loop {
            let claim = Claim {
                key: "lock".into(),
                task: (client, 1),
                lease_ms: 60_000,
                renewed: false,
            };
            let asked = self.journal.ask(claim.clone());
            let lock = self.clients[client - 1].lock(&claim);
            // A busy machine may answer too late.
            if let Ok(Some(guard)) = lock.acquire_within(Duration::from_secs(1)).await {
                let mut held = asked.granted();
                look(&mut held, || guard.valid_for());
                return (guard, held);
            }
        }
    }
}

#[tokio::test]
async fn a_vote_forgotten_within_a_hold_is_found() {
    let mut scene = Scene::start().await;
    let first = scene.take(1).await;
    assert!(!scene.journal.is_over(clock::now()));
    scene.plan.kill(0);
    scene.plan.start_empty(0).unwrap();
    let second = scene.take(2).await;
    first.1.end("released");
    second.1.end("released");
    let breaches = beliefs::check(&scene.journal.beliefs());
    assert_eq!(breaches.len(), 1, "{breaches:?}");
    assert_eq!(breaches[0].first.claim.task, (1, 1));
    assert_eq!(breaches[0].second.claim.task, (2, 1));
}

#[tokio::test]
async fn a_vote_forgotten_after_a_hold_is_no_fault() {
    let mut scene = Scene::start().await;
    let (guard, held) = scene.take(1).await;
    scene.plan.kill(0);
    let killed_at = clock::now();
    held.end("released");
    // The server that is killed can't hear of it.
    drop(guard);
    assert!(scene.journal.is_over(killed_at));
    scene.plan.start_empty(0).unwrap();
    scene.take(2).await.1.end("released");
    assert!(beliefs::check(&scene.journal.beliefs()).is_empty());
}
