use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use tempfile::TempDir;

use super::{Client, SOON, TestServer, binary, eventually, free_port, spawn};

/// How long the sentinels may take to find each other.
const DISCOVERY: Duration = Duration::from_secs(20);

/// A primary named `locks` with two replicas, all with the module, and three
/// sentinels that watch them.
pub struct Sentinels {
    /// The primary of the beginning.
    pub primary: TestServer,
    /// Its replicas.
    pub replicas: [TestServer; 2],
    sentinels: [Sentinel; 3],
}

impl Sentinels {
    /// Starts them all, and waits until every sentinel knows the others.
    ///
    /// # Panics
    /// If they don't start or don't find each other.
    pub fn start() -> Self {
        let primary = TestServer::start();
        let port = primary.addr().port().to_string();
        let options = ["--replicaof", "127.0.0.1", &port];
        let replicas = [(); 2].map(|()| TestServer::start_with(&options));
        eventually("both replicas are online", || {
            let info = primary.client().bulk("INFO replication");
            info.matches("state=online").count() == 2
        });
        let sentinels = [(); 3].map(|()| Sentinel::watch(primary.addr()));
        let ready_by = Instant::now() + DISCOVERY;
        while !sentinels.iter().all(Sentinel::is_ready) {
            assert!(Instant::now() < ready_by, "the sentinels don't see it all");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            primary,
            replicas,
            sentinels,
        }
    }

    /// Where the sentinels listen.
    pub fn addrs(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|nth| self.sentinels[nth].addr)
    }

    /// Where the sentinel at this address says that the primary is.
    pub fn primary(addr: SocketAddr) -> Option<SocketAddr> {
        let mut client = Client::try_connect(addr)?;
        client.send("SENTINEL get-master-addr-by-name locks");
        let Some(Value::Array(words)) = client.try_reply() else {
            return None;
        };
        let [Value::BulkString(host), Value::BulkString(port)] = &words[..] else {
            return None;
        };
        let text = [host.as_slice(), port].map(String::from_utf8_lossy);
        text.join(":").parse().ok()
    }
}

/// A sentinel on a free port. It dies with the test.
struct Sentinel {
    child: Child,
    addr: SocketAddr,
    dir: Option<TempDir>,
}

impl Sentinel {
    fn watch(primary: SocketAddr) -> Self {
        // Another test may take the port between our look and the sentinel's.
        (0..5)
            .find_map(|_| Self::try_watch(primary))
            .expect("a sentinel that answers")
    }

    fn try_watch(primary: SocketAddr) -> Option<Self> {
        let port = free_port();
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("sentinel.conf");
        let settings = format!(
            "port {port}\n\
             bind 127.0.0.1\n\
             sentinel monitor locks 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds locks 1000\n\
             sentinel failover-timeout locks 5000\n",
            primary.port()
        );
        std::fs::write(&conf, settings).unwrap();
        let log = std::fs::File::create(dir.path().join("sentinel.log")).unwrap();
        let mut command = Command::new(binary());
        command
            .arg(&conf)
            .arg("--sentinel")
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut sentinel = Self {
            child: spawn(command),
            addr: SocketAddr::from(([127, 0, 0, 1], port)),
            dir: Some(dir),
        };
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline && sentinel.child.try_wait().unwrap().is_none() {
            if let Some(mut client) = Client::try_connect(sentinel.addr)
                && client.try_info("process_id") == Some(sentinel.child.id().into())
            {
                return Some(sentinel);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Whether it knows both replicas and both other sentinels.
    fn is_ready(&self) -> bool {
        let info = Client::try_connect(self.addr)
            .unwrap()
            .bulk("INFO sentinel");
        info.contains("status=ok") && info.contains("slaves=2,sentinels=3")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            eprintln!("the sentinel's files stay in {}", dir.keep().display());
        }
    }
}
