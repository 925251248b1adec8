//! A crowd of tasks in a process that may open few files.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use redis_lock_client::LockClient;
use redis_lock_testing::{TestServer, spawn};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Where the server is, for a process that is to be the crowd.
const CROWD_OF: &str = "REDISLOCK_CROWD_OF";

/// How many files the crowd's process may have open.
const FILES: u64 = 256;

/// How many tasks are a crowd.
const CROWD: usize = 10_000;

/// How many locks the crowd shares.
const LOCKS: usize = 1000;

/// How long it may take to serve all of the crowd.
const CROWD_TIME: Duration = Duration::from_secs(120);

/// What it says when all of it wait.
const ALL_ASKED: &str = "all have asked";

#[test]
fn ten_thousand_tasks_on_a_thousand_locks_need_few_files() {
    if let Ok(url) = std::env::var(CROWD_OF) {
        return be_the_crowd(&url);
    }
    let server = TestServer::start();
    let mut holder = server.client();
    for nth in 0..LOCKS {
        let taken = holder.int(&format!("LOCK.ACQUIRE lock{nth} holder LEASE 3600000"));
        assert!(taken > 0);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let this = "ten_thousand_tasks_on_a_thousand_locks_need_few_files";
    command.args(["--exact", this, "--nocapture"]);
    command
        .env(CROWD_OF, format!("redis://{}", server.addr()))
        .stdout(Stdio::piped());
    let few = Rlimit {
        current: Some(FILES),
        maximum: Some(FILES),
    };
    // SAFETY: it makes one system call, and neither allocates nor locks.
    unsafe {
        command.pre_exec(move || setrlimit(Resource::Nofile, few).map_err(std::io::Error::from));
    }
    let mut crowd = spawn(command).unwrap();
    let mut said = BufReader::new(crowd.stdout.take().unwrap()).lines();
    let all_asked = said.any(|line| line.unwrap().contains(ALL_ASKED));
    assert!(all_asked, "the crowd ended");
    for nth in 0..LOCKS {
        assert_eq!(holder.int(&format!("LOCK.RELEASE lock{nth} holder")), 1);
    }
    said.for_each(|line| println!("{}", line.unwrap()));
    assert!(crowd.wait().unwrap().success());
    assert_eq!(holder.int("DBSIZE"), 0, "locks stay behind");
}

/// Takes each of many locks by many tasks. Half of them have names and so wait
/// each on a connection of its own. The rest of the process can open files all
/// the while.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn be_the_crowd(url: &str) {
    let client = LockClient::connect(url).await.unwrap();
    let inside: Arc<[AtomicBool]> = (0..LOCKS).map(|_| AtomicBool::new(false)).collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..CROWD {
        let nth = task % inside.len();
        let mut lock = client.lock(format!("lock{nth}"));
        if task < CROWD / 2 {
            lock = lock.owner(format!("owner{task}"));
        }
        let (inside, asked) = (Arc::clone(&inside), Arc::clone(&asked));
        tasks.spawn(async move {
            let mut acquire = Box::pin(lock.acquire());
            // It has asked when it has been polled once.
            assert!(futures_util::poll!(&mut acquire).is_pending());
            if asked.fetch_add(1, Ordering::SeqCst) + 1 == CROWD {
                println!("{ALL_ASKED}");
            }
            let guard = acquire.await.unwrap();
            assert!(!inside[nth].swap(true, Ordering::SeqCst), "two at a time");
            // Held across a turn of the others.
            tokio::task::yield_now().await;
            let opened = std::fs::File::open("/dev/null").map(drop);
            inside[nth].store(false, Ordering::SeqCst);
            guard.release().await.unwrap();
            opened
        });
    }
    let all = tokio::time::timeout(CROWD_TIME, tasks.join_all()).await;
    for opened in all.expect("every task has its turn") {
        opened.expect("files are left for the rest of the process");
    }
    client.flush().await;
}
