//! Short campaigns of each kind find nothing, and find what is done wrong on purpose.

mod side_by_side;

use std::process::Command;
use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_redlock::Redlock;
use redis_lock_testing::{Server, Setup, binary, eventually, module};

/// Whether a campaign comes out as it should, and what it says.
fn campaign(arguments: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redis-lock-chaos"));
    command.arg("--server").arg(binary());
    command.arg("--module").arg(module());
    // What a fault is called has spaces in it.
    let only = arguments.split_once(" --only ");
    let (arguments, only) = only.map_or((arguments, None), |(head, only)| (head, Some(only)));
    command.args(arguments.split_whitespace());
    if let Some(only) = only {
        command.args(["--only", only]);
    }
    let output = command.output().unwrap();
    let report = [output.stdout, output.stderr].concat();
    let report = String::from_utf8_lossy(&report).into_owned();
    println!("{}", report.lines().last().unwrap_or_default());
    (output.status.success(), report)
}

/// Short campaigns of each kind, with one promotion of a replica that lags, and without faults.
const SOUND: [&str; 11] = [
    "--duration 15 --seed 1",
    "--client library --seconds 6 --seed 1",
    "--client session --seconds 6 --seed 2",
    "--client library --seconds 10 --seed 3 --topology cluster",
    "--client session --seconds 10 --seed 4 --topology sentinel",
    "--client redlock --duration 8 --seed 1 --servers 3",
    "--client redlock --duration 8 --seed 2 --servers 5",
    "--without-faults --duration 3 --seed 1 --topology sentinel --mode plain",
    "--duration 1 --seed 1 --topology sentinel --only late replica promoted",
    "--duration 1 --seed 1 --topology sentinel --mode grace --lease-max 700 --only late replica promoted",
    // Though nothing protects the locks themselves.
    "--duration 1 --seed 1 --topology sentinel --mode plain --workload guarded-set --only late replica promoted",
];

#[test]
fn short_campaigns_of_each_kind_find_nothing() {
    side_by_side::play(SOUND.to_vec(), |arguments| {
        let (succeeds, report) = campaign(arguments);
        let is_sound = succeeds && report.contains("breaches: 0");
        (!is_sound).then(|| format!("{arguments}: {report}"))
    });
}

/// Two owners in one lock are found.
#[track_caller]
fn assert_found(arguments: &str) {
    let (succeeds, report) = campaign(arguments);
    let is_found = report.contains("breach of exclusion: 2 owners");
    assert!(!succeeds && is_found, "{report}");
}

#[test]
fn acquires_that_are_given_up_and_crowds_leave_nothing() {
    let arguments = "--client library --seconds 0 --cancels 5000 --crowd 500 --seed 5";
    let (succeeds, report) = campaign(arguments);
    assert!(succeeds, "{report}");
    assert!(report.contains("5000 acquires given up"), "{report}");
    assert!(report.contains("500 holds and waits"), "{report}");
}

#[test]
fn work_that_goes_on_after_a_release_is_found() {
    assert_found("--client library --seconds 60 --seed 6 --planted releases-too-early");
}

#[test]
fn work_that_goes_on_after_a_loss_is_found() {
    assert_found("--client library --seconds 60 --seed 6 --planted ignores-loss");
}

#[test]
#[ignore = "make planted"]
fn votes_that_are_forgotten_at_once_are_found() {
    assert_found("--client redlock --duration 120 --seed 1 --servers 3 --restart-at-once");
}

/// What the campaign against Redlock would show, and without luck.
#[tokio::test]
async fn a_vote_forgotten_within_a_hold_lets_a_second_holder_in() {
    let start = || Server::start(Setup::of(binary()).module(module())).unwrap();
    let mut servers = [start(), start(), start()];
    let urls = servers
        .each_ref()
        .map(|server| format!("redis://{}", server.addr()));
    // Longer than a busy machine takes to answer.
    let response = Duration::from_secs(30);
    let connect = async || {
        let urls = urls.iter().map(String::as_str);
        Redlock::connect_with(LockClient::builder(), response, urls).await
    };
    let (first, second) = (connect().await.unwrap(), connect().await.unwrap());
    // A renewal would tell the first one, sooner or later.
    let lock = |one: &Redlock| one.lock("lock").lease(2 * response).renew(false);
    let [first, second] = [&first, &second].map(lock);
    // The hold rests on two of them: on the third one another has the lock for a while.
    let mut third = servers[2].connect().unwrap();
    third.call_ok(&["LOCK.ACQUIRE", "lock", "another"]).unwrap();
    let held = first.try_acquire().await.unwrap().expect("two votes");
    let refused = second.try_acquire().await;
    assert!(!matches!(refused, Ok(Some(_))));
    eventually("the third one has answered all", || {
        let asked = third.info_section("commandstats").unwrap();
        asked.contains("cmdstat_lock.acquire:calls=3,")
    });
    third.call_ok(&["LOCK.BREAK", "lock"]).unwrap();
    servers[0].crash();
    servers[0].restart().unwrap();
    let also_held = second.acquire_within(2 * response).await.unwrap();
    let _also_held = also_held.expect("two other votes");
    assert!(!held.valid_for().is_zero(), "the first hold is over");
}
