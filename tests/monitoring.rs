//! What redis_exporter and Prometheus make of the counters, by what `monitoring/` has for
//! them. `make test-monitoring` installs both.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis_lock_testing::{
    Client, Int, Okay, SOON, Server, comes_true, eventually_within, local, spawn,
};
use serde_json::Value as Json;
use tempfile::TempDir;

/// How long Prometheus may take to scrape and to evaluate on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("monitoring")
        .join(name)
}

/// A program that serves HTTP on a port of its own. It ends with this.
struct Program {
    child: Child,
    addr: SocketAddr,
    dir: TempDir,
}

impl Program {
    /// Starts it and waits until it answers. `prepare` gives it its address and a folder.
    fn start(name: &str, prepare: impl Fn(&mut Command, &str, &Path)) -> Self {
        let mut log = String::new();
        // Somebody may take a port between our look and the program's.
        for _ in 0..5 {
            let dir = tempfile::tempdir().unwrap();
            let addr = TcpListener::bind(local(0)).unwrap().local_addr().unwrap();
            let mut command = Command::new(name);
            let output = File::create(dir.path().join("log")).unwrap();
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(output).current_dir(dir.path());
            prepare(&mut command, &addr.to_string(), dir.path());
            let child = spawn(command).unwrap();
            let mut program = Self { child, addr, dir };
            let answers = comes_true(PATIENCE, || {
                program.has_ended() || program.get("/metrics").is_some()
            });
            if answers && !program.has_ended() {
                return program;
            }
            log = fs::read_to_string(program.dir.path().join("log")).unwrap();
        }
        panic!("{name} does not start:\n{log}");
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// What it answers, if it does and says that all is well.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        // The answer to HTTP/1.0 ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let is_well = head.lines().next()?.contains(" 200 ");
        is_well.then(|| body.into())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The line of a document that begins with this.
fn line_of(document: &str, begins: &str) -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(top.join(document)).unwrap();
    let mut lines = document.lines();
    lines.find(|line| line.starts_with(begins)).unwrap().into()
}

/// The words of a command in `docs/monitoring.md`, with files in this folder.
fn documented(program: &str, folder: &Path) -> Vec<String> {
    let line = line_of("docs/monitoring.md", &format!("{program} "));
    let folder = format!("{}/", folder.display());
    let words = line.split(' ').skip(1);
    words
        .map(|word| word.replace("monitoring/", &folder))
        .collect()
}

/// The redis_exporter of the documents.
fn exporter(server: &Server) -> Program {
    exporter_by(server, &documented(EXPORTER, &shipped("")))
}

const EXPORTER: &str = "prometheus-redis-exporter";

/// A redis_exporter with these arguments, for this server.
fn exporter_by(server: &Server, arguments: &[String]) -> Program {
    let rights = line_of("docs/operations.md", "ACL SETUSER exporter ");
    let made = server.client().call(&rights);
    assert_eq!(made, Okay);
    let here = server.addr().to_string();
    Program::start(EXPORTER, |command, addr, _| {
        let words = arguments.iter();
        command.args(words.map(|word| word.replace("127.0.0.1:6379", &here)));
        command.args(["--web.listen-address", addr]);
        command.args(["--redis.user", "exporter", "--redis.password", "secret"]);
    })
}

/// What a line of the exporter's begins with where it tells a number of the script's.
const TOLD: &str = "redis_script_values{key=\"";

/// The numbers of the script, by name.
fn told(metrics: &str) -> Vec<(&str, &str)> {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(TOLD));
    lines.map(|line| line.split_once("\"} ").unwrap()).collect()
}

/// The numbers of `INFO lock`, by name.
fn numbers(info: &str) -> Vec<(&str, &str)> {
    info.lines()
        .filter_map(|line| line.trim().split_once(':'))
        .filter(|(_, number)| number.parse::<i64>().is_ok())
        .collect()
}

#[test]
#[ignore = "needs redis_exporter: make test-monitoring"]
fn the_exporter_tells_all_of_info_lock_by_the_script_and_nothing_of_it_without() {
    let server = Server::start();
    let mut client = server.client();
    client.int("LOCK.ACQUIRE k a LEASE 600000");
    let mut without = documented(EXPORTER, &shipped(""));
    let script = without.split_off(without.len() - 2);
    assert_eq!(script[0], "--script");
    let bare = exporter_by(&server, &without).get("/metrics").unwrap();
    assert!(bare.contains("redis_up 1") && !bare.contains("lock_waiters"));
    let with_script = exporter(&server);
    let metrics = with_script.get("/metrics").unwrap();
    let info = client.bulk("INFO lock");
    let mut expected = numbers(&info);
    assert!(expected.contains(&("lock_grants_immediate", "1")));
    expected.push(("lock_errors_noreplicas", "0"));
    expected.sort_unstable();
    assert_eq!(told(&metrics), expected);
    assert!(metrics.contains("redis_exporter_last_scrape_error{err=\"\"} 0"));
    // Its user needs no right that it does not have.
    let errors = client.bulk("INFO errorstats");
    assert!(!errors.contains("NOPERM"), "{errors}");
}

#[test]
#[ignore = "needs redis_exporter: make test-monitoring"]
fn replicas_that_are_missing_are_told_where_nothing_can_be_written() {
    let server = Server::start_with(&["--min-replicas-to-write", "1"]);
    let exporter = exporter(&server);
    let refused = server.client().error("LOCK.ACQUIRE k a");
    assert!(refused.starts_with("NOREPLICAS "), "{refused}");
    let metrics = exporter.get("/metrics").unwrap();
    assert!(told(&metrics).contains(&("lock_errors_noreplicas", "1")));
}

/// A Prometheus that asks an exporter often.
fn prometheus(exporter: &Program) -> Program {
    let config = fs::read_to_string(shipped("prometheus.yml")).unwrap();
    let often = config
        .replace("interval: 15s", "interval: 500ms")
        .replace("localhost:9121", &exporter.addr.to_string());
    Program::start("prometheus", |command, addr, dir| {
        fs::write(dir.join("prometheus.yml"), &often).unwrap();
        fs::copy(shipped("alerts.yml"), dir.join("alerts.yml")).unwrap();
        let words = documented("prometheus", dir);
        let data = dir.join("data").display().to_string();
        let words = words.iter();
        command.args(words.map(|word| word.replace("/tmp/prometheus", &data)));
        command.arg(format!("--web.listen-address={addr}"));
    })
}

/// What Prometheus answers to a query.
fn query(prometheus: &Program, query: &str) -> Vec<Json> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let Some(answer) = prometheus.get(&format!("/api/v1/query?query={encoded}")) else {
        return Vec::new();
    };
    let answer: Json = serde_json::from_str(&answer).unwrap();
    answer["data"]["result"].as_array().unwrap().clone()
}

/// The queries of the dashboard, as Grafana sends them where all servers are chosen.
fn queries(dashboard: &Json) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    targets
        .map(|target| {
            let query = target["expr"].as_str().unwrap();
            query
                .replace("$instance", ".*")
                .replace("$__rate_interval", "1m")
        })
        .collect()
}

/// A lock that is held, a client that waits for it and a place: no more fit in its queue.
fn full_queue(server: &Server) -> [Client; 2] {
    let (mut client, mut waiter) = (server.client(), server.client());
    client.call("CONFIG SET lock.max-waiters 2");
    client.int("LOCK.ACQUIRE k a LEASE 600000");
    waiter.send("LOCK.ACQUIRE k b BLOCK 0");
    server.await_info("lock_waiters", 1);
    assert_eq!(client.call("LOCK.ACQUIRE k c QUEUE 600000 mine"), Int(0));
    [client, waiter]
}

#[test]
#[ignore = "needs Prometheus and redis_exporter: make test-monitoring"]
fn prometheus_answers_each_panel_of_the_dashboard_and_fires_an_alert() {
    let server = Server::start();
    let [mut client, _waiter] = full_queue(&server);
    let exporter = exporter(&server);
    let prometheus = prometheus(&exporter);
    let dashboard = fs::read_to_string(shipped("dashboard.json")).unwrap();
    let dashboard: Json = serde_json::from_str(&dashboard).unwrap();
    let queries = queries(&dashboard);
    assert!(queries.len() > 40, "{}", queries.len());
    for expression in &queries {
        eventually_within(PATIENCE, expression, || {
            !query(&prometheus, expression).is_empty()
        });
    }
    for (panel, shown) in [("Waiting now", "2"), ("Contended locks now", "1")] {
        let mut panels = dashboard["panels"].as_array().unwrap().iter();
        let nth = panels.position(|found| found["title"] == panel).unwrap();
        assert_eq!(query(&prometheus, &queries[nth])[0]["value"][1], shown);
    }
    // The names from which one chooses servers.
    let servers = &dashboard["templating"]["list"][1]["query"]["query"];
    let servers = servers.as_str().unwrap().strip_prefix("label_values(");
    let (selector, label) = servers.unwrap().rsplit_once(", ").unwrap();
    let label = label.strip_suffix(')').unwrap();
    let instance = &query(&prometheus, selector)[0]["metric"][label];
    assert_eq!(*instance, exporter.addr.to_string());

    let refused = client.error("LOCK.ACQUIRE k d QUEUE 600000 mine");
    assert!(refused.starts_with("QUEUEFULL "), "{refused}");
    let firing = r#"ALERTS{alertname="LockQueueFull", alertstate="firing"}"#;
    eventually_within(PATIENCE, firing, || !query(&prometheus, firing).is_empty());
    let rules: Json = serde_json::from_str(&prometheus.get("/api/v1/rules").unwrap()).unwrap();
    for rule in rules["data"]["groups"][0]["rules"].as_array().unwrap() {
        assert_eq!(rule["lastError"], Json::Null, "{rule}");
    }
}

#[test]
#[ignore = "needs Prometheus: make test-monitoring"]
fn the_alerts_pass_their_own_tests_and_name_what_there_is() {
    let passed = Command::new("promtool")
        .args(documented("promtool", &shipped("")))
        .output();
    let passed = passed.unwrap();
    let said = [passed.stdout, passed.stderr].concat();
    assert!(
        passed.status.success(),
        "{}",
        String::from_utf8_lossy(&said)
    );
    let alerts = fs::read_to_string(shipped("alerts.yml")).unwrap();
    let tested = fs::read_to_string(shipped("alerts_test.yml")).unwrap();
    let server = Server::start();
    let exporter = exporter(&server);
    let metrics = exporter.get("/metrics").unwrap();
    let there: BTreeSet<_> = told(&metrics).into_iter().map(|(name, _)| name).collect();
    let keys = alerts.split("key=").skip(1);
    let keys = keys.flat_map(|rest| rest.split('"').nth(1).unwrap().split('|'));
    for key in keys {
        assert!(there.contains(key), "{key}");
    }
    let alerts = alerts.lines();
    for alert in alerts.filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("- alertname: {alert}\n");
        assert!(tested.contains(&fires), "no test in which {alert} fires");
    }
}
