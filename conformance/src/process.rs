//! Drivers: what there is, and their processes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis_lock_testing::{Error, Result, Signal, comes_true, signal, spawn};
use serde_json::{Map, Value, json};

/// A column of the table.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Language {
    /// The name of its folder.
    pub name: String,
    /// Which of several worlds or client libraries.
    pub variant: Option<String>,
    driver: PathBuf,
}

impl Language {
    /// Those whose drivers are in the packages of this project, and Rust.
    pub fn all(packages: &Path, all_variants: bool) -> Result<Vec<Self>> {
        let rust = Self {
            name: "rust".into(),
            variant: None,
            driver: std::env::current_exe()?.with_file_name("driver"),
        };
        let mut found = vec![rust];
        let folders = std::fs::read_dir(packages)?;
        let folders = folders.map(|it| Ok(it?.path().canonicalize()?));
        let mut folders: Vec<_> = folders.collect::<Result<_>>()?;
        folders.sort();
        for folder in folders {
            let driver = folder.join("conformance/driver");
            if !driver.exists() {
                continue;
            }
            let name = folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let variants = std::fs::read_to_string(folder.join("conformance/variants"));
            let variants = variants.unwrap_or_default();
            let mut variants: Vec<_> = variants.lines().map(|it| Some(it.to_owned())).collect();
            if variants.is_empty() {
                variants.push(None);
            }
            let wanted = if all_variants { variants.len() } else { 1 };
            for variant in variants.into_iter().take(wanted) {
                let (name, driver) = (name.clone(), driver.clone());
                found.push(Self {
                    name,
                    variant,
                    driver,
                });
            }
        }
        Ok(found)
    }

    /// What it is called in the table.
    pub fn title(&self) -> String {
        let name = self.name[..1].to_uppercase() + &self.name[1..];
        match &self.variant {
            Some(variant) => format!("{name}, {variant}"),
            None => name,
        }
    }

    /// Has its driver install and build what it needs.
    pub fn build(&self) -> Result<()> {
        if self.name == "rust" {
            return Ok(());
        }
        let mut command = Command::new(&self.driver);
        let status = command
            .arg("--build")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        let failed = || Error::msg(format!("{} --build: {status}", self.driver.display()));
        status.success().then_some(()).ok_or_else(failed)
    }
}

/// Lines by the number of their call. With 0 there is what is no answer, and the end.
type Heard = (Mutex<HashMap<u64, Vec<Value>>>, Condvar);

/// A driver that runs.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    heard: Arc<Heard>,
    next_id: u64,
    /// Whether it was killed.
    pub is_killed: bool,
}

impl Process {
    /// Starts one, which logs to this file.
    pub fn start(
        language: &Language,
        log: &Path,
        environment: &[(String, String)],
    ) -> Result<Self> {
        let mut command = Command::new(&language.driver);
        command
            .args(&language.variant)
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?);
        let mut child = spawn(command)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or_else(|| Error::msg("no stdout"))?;
        let heard = Arc::new(Heard::default());
        let hearing = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout)
                .lines()
                .map_while(std::io::Result::ok)
            {
                let line: Value = serde_json::from_str(&line)
                    .unwrap_or_else(|_| json!({ "id": 0, "error": "Protocol", "text": line }));
                let id = line["id"].as_u64().unwrap_or_default();
                let mut heard = hearing.0.lock().unwrap_or_else(PoisonError::into_inner);
                heard.entry(id).or_default().push(line);
                hearing.1.notify_all();
            }
            let mut heard = hearing.0.lock().unwrap_or_else(PoisonError::into_inner);
            heard.entry(0).or_default();
            hearing.1.notify_all();
        });
        Ok(Self {
            child,
            stdin,
            heard,
            next_id: 1,
            is_killed: false,
        })
    }

    /// Tells it something. Returns the number of the call.
    pub fn tell(&mut self, call: &str, mut args: Map<String, Value>) -> Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        args.insert("id".into(), id.into());
        args.insert("call".into(), call.into());
        let line = Value::Object(args).to_string() + "\n";
        let stdin = self
            .stdin
            .as_mut()
            .ok_or_else(|| Error::msg("the driver has ended"))?;
        stdin.write_all(line.as_bytes())?;
        Ok(id)
    }

    /// The answer to a call, if it comes within this time: one object with the time, the
    /// error if it is one, and what else there is. Where an event is asked for, that, or
    /// the answer if there was none.
    pub fn answer(&self, id: u64, is_event: bool, within: Duration) -> Option<Value> {
        let deadline = Instant::now() + within;
        let mut heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let lines = heard.get(&id).map_or(&[][..], Vec::as_slice);
            let is_meant = |line: &&Value| is_event || line["event"].is_null();
            if let Some(line) = lines.iter().find(is_meant) {
                let mut line = line.clone();
                if let Some(Value::Object(fields)) = line.get("ok").cloned() {
                    for (name, value) in fields {
                        line[name.as_str()] = value;
                    }
                }
                return Some(line);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || heard.contains_key(&0) {
                return None;
            }
            let waited = self.heard.1.wait_timeout(heard, left);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, what: Signal) -> Result<()> {
        signal(self.child.id(), what)
    }

    /// Closes its stdin, after which it has to end.
    pub fn end(mut self) -> Result<()> {
        self.stdin = None;
        if comes_true(Duration::from_secs(10), || {
            matches!(self.child.try_wait(), Ok(Some(_)))
        }) {
            return Ok(());
        }
        Err(Error::msg("a driver does not end when its stdin does"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
