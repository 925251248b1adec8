//! Many holds, many waits, few connections and files, and nothing sent while they wait.

mod support;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use redis_lock_client::LockClient;
use redis_lock_testing::{SOON, Server, spawn};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::task::JoinSet;

use support::{
    calls, calls_but_pings, connect, start, subscribers, take, take_away, url, waiters, within,
};

const CROWD: usize = 10_000;

/// How long it may take to serve all of a crowd.
const CROWD_TIME: Duration = Duration::from_secs(120);

/// Where the server is, for a process that is to be the crowd.
const CROWD_OF: &str = "REDISLOCK_CROWD_OF";

/// How many files the crowd's process may have open.
const FILES: u64 = 64;

/// How often a client may ask whether its connection still answers.
const PING_EVERY: Duration = Duration::from_secs(2);

#[test]
fn ten_thousand_holds_and_ten_thousand_waits_need_few_files() {
    if let Ok(url) = std::env::var(CROWD_OF) {
        return be_the_crowd(&url);
    }
    let server = Server::start();
    let mut observer = server.client();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let this = "ten_thousand_holds_and_ten_thousand_waits_need_few_files";
    command.args(["--exact", this, "--nocapture"]);
    command.env(CROWD_OF, url(&server));
    let few = Rlimit {
        current: Some(FILES),
        maximum: Some(FILES),
    };
    // SAFETY: it makes one system call, and neither allocates nor locks.
    unsafe {
        command.pre_exec(move || setrlimit(Resource::Nofile, few).map_err(std::io::Error::from));
    }
    let before = observer.info("connected_clients");
    let mut crowd = spawn(command).unwrap();
    let mut most = 0;
    let ended = loop {
        most = observer.info("connected_clients").max(most);
        match crowd.try_wait().unwrap() {
            Some(ended) => break ended,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(ended.success());
    assert!(
        most <= before + 2 + subscribers(&server),
        "{most} connections"
    );
    assert_eq!(observer.int("DBSIZE"), 0, "locks stay behind");
}

/// Holds very many locks, and waits for as many, each held by another task.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn be_the_crowd(url: &str) {
    // Some holds are renewed meanwhile.
    let builder = LockClient::builder().default_lease(Duration::from_secs(20));
    let builder = builder.response_timeout(SOON);
    let client = builder.connect(url).await.unwrap();
    let acquires = (0..CROWD).map(|nth| client.lock(format!("lock{nth}")).acquire());
    let holds: JoinSet<_> = acquires.collect();
    let holds = within(CROWD_TIME, "all hold", holds.join_all()).await;
    let holds: Vec<_> = holds.into_iter().map(Result::unwrap).collect();
    let acquires = (0..CROWD).map(|nth| client.lock(format!("lock{nth}")).acquire());
    let mut waits: JoinSet<_> = acquires.collect();
    let last = client.lock(format!("lock{}", CROWD - 1));
    within(CROWD_TIME, "all wait", async {
        while last.info().await.unwrap().waiting == 0 {
            assert!(waits.try_join_next().is_none());
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    std::fs::File::open("/dev/null").expect("files are left for the rest");
    assert!(holds.iter().all(|guard| !guard.valid_for().is_zero()));
    drop(holds);
    let taken = within(CROWD_TIME, "all have had their turns", waits.join_all()).await;
    assert_eq!(taken.into_iter().filter(Result::is_ok).count(), CROWD);
    within(CROWD_TIME, "all is given back", client.flush()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_vain_sends_nothing_but_a_ping_for_all() {
    const WAITERS: i64 = 500;
    let server = Server::start();
    let mut observer = server.client();
    let client = connect(&server).await;
    let mut waits = JoinSet::new();
    for nth in 0..WAITERS {
        take_away(&mut observer, &format!("lock{nth}"));
        waits.spawn(client.lock(format!("lock{nth}")).acquire());
    }
    waiters(&server, WAITERS).await;
    let (begun, before) = (Instant::now(), calls_but_pings(&mut observer));
    let pings_before = calls(&mut observer, "ping");
    while begun.elapsed() < 3 * PING_EVERY {
        assert_eq!(calls_but_pings(&mut observer), before, "others than pings");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // For what sends commands, and for what hears.
    let due = 2.0 * begun.elapsed().div_duration_f64(PING_EVERY);
    let pings = calls(&mut observer, "ping") - pings_before;
    assert!(pings as f64 <= due + 2.0, "{pings} pings, {due} are due");
    waits.shutdown().await;
    client.flush().await;
    assert_eq!(server.info("lock_waiters"), 0);
}

/// A task that polls many futures, and some of them not for a while, holds nobody else up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_sent_past_many_acquires_that_nobody_polls() {
    const LEASE: Duration = Duration::from_secs(1);
    let (server, client) = start().await;
    let session = client.session().await.unwrap();
    let held = session.lock("held").lease(LEASE).acquire().await.unwrap();
    let renewed = client.lock("renewed").lease(LEASE).acquire().await.unwrap();
    let locks = (0..400).map(|n| match n % 2 {
        0 => session.lock(format!("{n}")),
        _ => client.lock(format!("{n}")),
    });
    let mut all: Vec<_> = locks.map(|lock| Box::pin(lock.acquire())).collect();
    for acquire in &mut all {
        let _ = support::poll_once(acquire).await;
    }
    tokio::time::sleep(3 * LEASE).await;
    for guard in [&held, &renewed] {
        assert!(!guard.valid_for().is_zero(), "{guard:?}");
    }
    let other = tokio::spawn(client.lock("of another").acquire());
    support::granted(other).await.release().await.unwrap();
    drop((held, renewed, all, session));
    soon_free(&server, &client).await;
}

async fn soon_free(server: &Server, client: &LockClient) {
    support::soon("all is done", client.flush()).await;
    support::eventually("all is free", || server.client().int("DBSIZE") == 0).await;
    take(client, "lock").await.release().await.unwrap();
}
