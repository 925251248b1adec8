//! The driver of the Rust client: README.md says what it is told.

use std::collections::HashMap;
use std::error::Error as _;
use std::fs;
use std::io::{Write, stdin, stdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis_lock_client::{Error, Lock, LockClient, LockGuard, Servers};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// What is asked of it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Call {
    id: u64,
    call: String,
    of: u64,
    client: String,
    kind: String,
    urls: Vec<String>,
    service: String,
    user: String,
    password: Option<String>,
    ca_file: Option<String>,
    prefix: String,
    key: String,
    key_hex: Option<String>,
    wait_ms: Option<u64>,
    lease_ms: Option<u64>,
    at_least_ms: Option<u64>,
    shared: bool,
    limit: Option<u64>,
    renew: Option<bool>,
    with: String,
    file: String,
    tasks: u64,
    times: u64,
}

/// The name of an error, and what it says.
struct Failure(&'static str, String);

type Answer = Result<Value, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let name = match &error {
            _ if fault("names-no-error") => "Other",
            Error::Lost(_) => "LockLost",
            Error::Deadlock { .. } => "Deadlock",
            Error::NoReplicas { .. } => "NotSafe",
            Error::Superseded { .. } => "Superseded",
            Error::NoModule => "NoModule",
            Error::NoPermission { .. } => "NoPermission",
            Error::Unavailable { .. } => "Unavailable",
            _ => "Other",
        };
        let cause = error.source().map(|cause| format!(": {cause}"));
        Self(name, format!("{error}{}", cause.unwrap_or_default()))
    }
}

/// Whether this fault is planted: the runner has to notice it.
fn fault(name: &str) -> bool {
    std::env::var("CONFORMANCE_FAULT").is_ok_and(|planted| planted == name)
}

/// A hold, its lock, and when it began.
struct Held {
    guard: Arc<LockGuard>,
    lock: Lock,
    since: SystemTime,
}

/// What calls share.
#[derive(Default)]
struct Shared {
    clients: HashMap<String, LockClient>,
    guards: HashMap<u64, Held>,
    cancels: HashMap<u64, oneshot::Sender<()>>,
    finishes: HashMap<u64, oneshot::Sender<bool>>,
}

#[derive(Default)]
struct Driver(Mutex<Shared>);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let driver = Arc::new(Driver::default());
    let (begin, mut begun) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            let _ = begin.send(line);
        }
    });
    while let Some(line) = begun.recv().await {
        let call: Call = serde_json::from_str(&line)?;
        let (cancel, cancelled) = oneshot::channel();
        driver.shared().cancels.insert(call.id, cancel);
        let driver = Arc::clone(&driver);
        tokio::spawn(async move {
            let answer = tokio::select! {
                answer = driver.answer(&call) => answer,
                Ok(()) = cancelled, if !fault("cancels-nothing") => {
                    Err(Failure("Cancelled", String::new()))
                }
            };
            driver.shared().cancels.remove(&call.id);
            write(
                call.id,
                match answer {
                    Ok(value) => json!({ "ok": value }),
                    Err(Failure(name, text)) => json!({ "error": name, "text": text }),
                },
            );
        });
    }
    Ok(())
}

fn other(error: &impl ToString) -> Answer {
    Err(Failure("Other", error.to_string()))
}

fn unsupported(why: &str) -> Answer {
    Err(Failure("Unsupported", why.into()))
}

fn write(id: u64, mut line: Value) {
    let now = clock_gettime(ClockId::Monotonic);
    let at = Duration::try_from(now).unwrap_or_default().as_secs_f64() * 1e3;
    line["id"] = id.into();
    line["at"] = at.into();
    let mut out = stdout().lock();
    // Where nobody reads any more, nobody needs it.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

impl Driver {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, call: &Call) -> Answer {
        match call.call.as_str() {
            "connect" => self.connect(call),
            "acquire" => self.acquire(call).await,
            "release" => self.release(call.of).await,
            "renew" if call.lease_ms.is_some() => unsupported("a lease stays as it is"),
            "renew" => {
                self.guard(call.of)?.renew().await?;
                Ok(json!({}))
            }
            "valid_for" => Ok(json!({ "ms": self.valid_for(call.of) })),
            "lost" => {
                let lost = self.guard(call.of)?.lost();
                lost.await;
                if fault("tells-no-loss") {
                    std::future::pending::<()>().await;
                }
                Ok(json!({}))
            }
            "cancel" => {
                let cancel = self.shared().cancels.remove(&call.of);
                let _ = cancel.map(|cancel| cancel.send(()));
                Ok(json!({}))
            }
            "run" => self.run(call).await,
            "finish" => {
                let finish = self.shared().finishes.remove(&call.of);
                let _ = finish.map(|finish| finish.send(call.with == "value"));
                Ok(json!({}))
            }
            "count" => self.count(call).await,
            "clock" => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                Ok(json!({ "wall_ms": now.unwrap_or_default().as_secs_f64() * 1e3 }))
            }
            "close" => {
                let client = self.shared().clients.remove(&call.client);
                self.shared().guards.clear();
                if let Some(client) = client {
                    // What goes on in the background may be for a server that is gone.
                    let _ = tokio::time::timeout(Duration::from_secs(5), client.flush()).await;
                }
                Ok(json!({}))
            }
            unknown => other(&format!("no call {unknown}")),
        }
    }

    fn connect(&self, call: &Call) -> Answer {
        let scheme = call.urls[0].split_once("://").unwrap_or_default().0;
        let hosts: Vec<_> = call
            .urls
            .iter()
            .map(|url| &url[scheme.len() + 3..])
            .collect();
        let kind = match call.kind.as_str() {
            "one" => String::new(),
            kind => format!("-{kind}"),
        };
        let user = match &call.password {
            None => String::new(),
            Some(password) => format!("{}:{password}@", call.user),
        };
        let url = format!(
            "{scheme}{kind}://{user}{}/{}",
            hosts.join(","),
            call.service
        );
        let mut builder = LockClient::builder().key_prefix(&call.prefix);
        if let Some(lease_ms) = call.lease_ms {
            builder = builder.default_lease(Duration::from_millis(lease_ms));
        }
        let client = builder.connect_lazy(servers(&url, call.ca_file.as_deref())?)?;
        self.shared().clients.insert(call.client.clone(), client);
        Ok(json!({}))
    }

    fn client(&self, call: &Call) -> Result<LockClient, Failure> {
        let client = self.shared().clients.get(&call.client).cloned();
        client.ok_or_else(|| Failure("Other", format!("no client {}", call.client)))
    }

    fn lock(&self, call: &Call) -> Result<Lock, Failure> {
        let client = self.client(call)?;
        let mut key = match &call.key_hex {
            Some(hex) => (0..hex.len() / 2)
                .filter_map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok())
                .collect(),
            None => call.key.clone().into_bytes(),
        };
        if fault("excludes-nobody") {
            static NUMBER: AtomicU64 = AtomicU64::new(0);
            let number = NUMBER.fetch_add(1, Ordering::SeqCst);
            key.extend(format!("{}-{number}", std::process::id()).bytes());
        }
        if fault("lets-keys-be-text") {
            key = String::from_utf8_lossy(&key).into_owned().into_bytes();
        }
        let mut lock = client.lock(&key);
        if fault("acquires-twice") {
            lock = client.job().lock(&key);
        }
        let long = fault("takes-long-leases").then_some(600_000);
        if let Some(lease_ms) = long.or(call.lease_ms) {
            lock = lock.lease(Duration::from_millis(lease_ms));
        }
        if call.shared && !fault("knows-no-modes") {
            lock = lock.shared();
        }
        if let Some(limit) = call.limit.filter(|_| !fault("knows-no-modes")) {
            lock = lock.limit(limit);
        }
        Ok(lock.renew(call.renew.unwrap_or(true) && !fault("never-renews")))
    }

    async fn acquire(&self, call: &Call) -> Answer {
        let lock = self.lock(call)?;
        if fault("leaks-connections") {
            std::mem::forget(self.client(call)?.session().await?);
        }
        let asked = SystemTime::now();
        let wait_ms = call.wait_ms.or_else(|| fault("gives-up").then_some(200));
        let guard = match wait_ms {
            Some(0) => lock.try_acquire().await?,
            Some(wait_ms) => lock.acquire_within(Duration::from_millis(wait_ms)).await?,
            None => Some(lock.acquire().await?),
        };
        let Some(guard) = guard else {
            return Err(Failure("LockBusy", String::new()));
        };
        if fault("hangs-when-slow") && asked.elapsed().is_ok_and(|it| it.as_millis() > 200) {
            std::future::pending::<()>().await;
        }
        if fault("acquires-twice") {
            std::mem::forget(lock.acquire().await?);
        }
        let token = guard.token();
        let (guard, since) = (Arc::new(guard), SystemTime::now());
        let held = Held { guard, lock, since };
        self.shared().guards.insert(call.id, held);
        Ok(json!({ "token": if fault("makes-tokens-up") { 1 } else { token } }))
    }

    fn guard(&self, of: u64) -> Result<Arc<LockGuard>, Failure> {
        let shared = self.shared();
        let guard = shared.guards.get(&of).map(|held| Arc::clone(&held.guard));
        guard.ok_or_else(|| Failure("LockLost", "it was released".into()))
    }

    fn valid_for(&self, of: u64) -> f64 {
        let shared = self.shared();
        let Some(Held { guard, since, .. }) = shared.guards.get(&of) else {
            return 0.0;
        };
        let left = if fault("never-looks-at-the-clock") {
            Duration::from_secs(30)
        } else if fault("counts-from-the-reply") {
            Duration::from_secs(60)
        } else if fault("goes-by-the-wall-clock") {
            Duration::from_secs(30).saturating_sub(since.elapsed().unwrap_or_default())
        } else if fault("believes-in-a-second") {
            guard.valid_for().min(Duration::from_secs(1))
        } else {
            guard.valid_for()
        };
        left.as_secs_f64() * 1e3
    }

    async fn release(&self, of: u64) -> Answer {
        let held = self.shared().guards.remove(&of);
        let Some(Held { guard, lock, .. }) = held else {
            return Ok(json!({ "released": false }));
        };
        let Some(guard) = Arc::into_inner(guard) else {
            return other(&"a renewal is under way");
        };
        if fault("releases-by-force") {
            let _ = guard.release().await;
            let _ = lock.break_lock(None).await;
            return Ok(json!({ "released": true }));
        }
        if fault("never-releases") {
            guard.forget();
            return Ok(json!({ "released": true }));
        }
        match guard.release().await {
            Ok(()) => Ok(json!({ "released": true })),
            Err(Error::Lost(_) | Error::Unavailable { .. }) => Ok(json!({ "released": false })),
            Err(error) => Err(error.into()),
        }
    }

    async fn run(&self, call: &Call) -> Answer {
        if call.wait_ms.is_some() || call.at_least_ms.is_some() {
            return unsupported("Lock::run has neither");
        }
        let (finish, finished) = oneshot::channel();
        self.shared().finishes.insert(call.id, finish);
        let id = call.id;
        let work = async |guard: Arc<LockGuard>| {
            write(id, json!({ "event": "began", "token": guard.token() }));
            finished.await
        };
        let lock = self.lock(call)?;
        let end = lock.run(work).await;
        match end? {
            _ if fault("hides-the-work") => Err(Failure("Unavailable", String::new())),
            Ok(true) => Ok(json!({ "value": 42 })),
            _ => Err(Failure("WorkFailed", "as it was told to".into())),
        }
    }

    async fn count(&self, call: &Call) -> Answer {
        let backwards = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..call.tasks {
            let (lock, file, times) = (self.lock(call)?, call.file.clone(), call.times);
            let backwards = Arc::clone(&backwards);
            tasks.push(tokio::spawn(async move {
                for _ in 0..times {
                    let guard = lock.acquire().await?;
                    let told = fs::read_to_string(&file).unwrap_or_default();
                    let mut told = told
                        .split(' ')
                        .map(|n| n.parse::<u64>().unwrap_or_default());
                    let [count, token] = [(); 2].map(|()| told.next().unwrap_or_default());
                    tokio::task::yield_now().await;
                    let _ = fs::write(&file, format!("{} {}", count + 1, guard.token()));
                    backwards.fetch_add(u64::from(token >= guard.token()), Ordering::SeqCst);
                    // One that gets no answer goes on in the background.
                    let _ = guard.release().await;
                }
                Ok::<_, Error>(times)
            }));
        }
        let mut done = 0;
        for task in tasks {
            done += task.await.or_else(|panic| other(&panic).map(|_| Ok(0)))??;
        }
        Ok(json!({ "done": done, "backwards": backwards.load(Ordering::SeqCst) }))
    }
}

fn servers(url: &str, ca_file: Option<&str>) -> Result<Servers, Failure> {
    match ca_file {
        #[cfg(feature = "tls")]
        Some(ca_file) => {
            let root_cert = fs::read(ca_file).map_err(|it| Failure("Other", it.to_string()))?;
            let certificates = redis_lock_client::redis::TlsCertificates {
                client_tls: None,
                root_cert: Some(root_cert),
            };
            Ok(Servers::with_certificates(url, certificates)?)
        }
        _ => Ok(Servers::try_from(url)?),
    }
}
