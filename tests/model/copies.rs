//! Copies of what a server stores: replicas, and servers that load its files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::Value;
use redis_lock_testing::{
    Client, Result, SOON, Server, Setup, TestServer, binary, comes_true, eventually, module,
    reply_text, status,
};

use crate::commands::DATABASES;

/// What a server says to a replica, or to a file, of a version that it does not know.
const TOO_NEW: &str = "Can't handle RDB format version";

/// A server's binary, and the module or none.
struct Kind {
    binary: PathBuf,
    module: Option<PathBuf>,
}

impl Kind {
    fn setup(&self) -> Setup {
        let setup = Setup::of(&self.binary).options(&["--enable-debug-command", "yes"]);
        match &self.module {
            Some(module) => setup.module(module),
            None => setup,
        }
    }

    fn name(&self) -> String {
        let version = Command::new(&self.binary).arg("--version").output();
        let version = String::from_utf8(version.unwrap().stdout).unwrap();
        let words: Vec<&str> = version.split(' ').collect();
        let with = match self.module {
            Some(_) => "with",
            None => "without",
        };
        format!("{} {} {with} the module", words[0], words[2])
    }
}

/// The server itself with the module and without, and each that `REDISLOCK_COPIES` names,
/// without.
fn kinds() -> Vec<Kind> {
    let others = std::env::var("REDISLOCK_COPIES").unwrap_or_default();
    let others = others.split_whitespace().map(PathBuf::from);
    let own = PathBuf::from(binary());
    let plain = [own.clone()].into_iter();
    let plain = plain.chain(others.filter(|other| *other != own));
    let plain = plain.map(|binary| Kind {
        binary,
        module: None,
    });
    let with_module = Kind {
        binary: own.clone(),
        module: Some(module()),
    };
    [with_module].into_iter().chain(plain).collect()
}

/// All that a server stores: its digest, and when each key ends, of which that says nothing.
#[derive(Debug, PartialEq)]
struct Data {
    digest: String,
    ends_ms: BTreeMap<(usize, Vec<u8>), Value>,
}

impl Data {
    fn of(server: &Server) -> Self {
        let mut client = Client::try_connect(server.addr()).expect("the server takes connections");
        let mut ends_ms = BTreeMap::new();
        for db in 0..DATABASES {
            assert_eq!(client.call(&format!("SELECT {db}")), status("OK"));
            // A key whose time is over goes with that.
            let Value::Array(keys) = client.call("KEYS *") else {
                panic!("KEYS did not answer a list");
            };
            for key in keys {
                let Value::BulkString(key) = key else {
                    panic!("KEYS did not answer names");
                };
                let end_ms = client.words(&[b"PEXPIRETIME", &key]);
                ends_ms.insert((db, key), end_ms);
            }
        }
        let digest = reply_text(client.call("DEBUG DIGEST")).unwrap();
        Self { digest, ends_ms }
    }
}

/// A server that is to store what another one does.
struct Copy {
    what: String,
    server: Server,
}

impl Copy {
    fn assert_is(&self, expected: &Data) {
        let mut found = Data::of(&self.server);
        comes_true(SOON, || {
            found = Data::of(&self.server);
            found == *expected
        });
        assert_eq!(found, *expected, "{} differs", self.what);
    }
}

/// Replicas that have followed a server from its beginning.
pub struct Replicas(Vec<Copy>);

impl Replicas {
    /// Of each kind that can follow it.
    pub fn of(server: &Server) -> Self {
        let start = |kind: Kind| {
            let what = format!("replica, {}", kind.name());
            started(what, server.replica(kind.setup()))
        };
        Self(kinds().into_iter().filter_map(start).collect())
    }

    /// Checks that each of them has what the server has.
    pub fn check(&self, server: &Server) {
        let expected = Data::of(server);
        self.0.iter().for_each(|copy| copy.assert_is(&expected));
    }

    /// What they are.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|copy| copy.what.as_str())
    }
}

/// The copy, unless it is of a version that does not know that of the server.
fn started(what: String, server: Result<Server>) -> Option<Copy> {
    match server {
        Ok(server) => Some(Copy { what, server }),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains(TOO_NEW), "{what}: {error}");
            println!("{what}: can't read what the server writes");
            None
        }
    }
}

/// Checks that each server that loads the AOF or the RDB file has what the server has.
pub fn check_files(server: &TestServer) {
    let expected = Data::of(server);
    println!("{}, {} keys", expected.digest, expected.ends_ms.len());
    assert!(!expected.ends_ms.is_empty(), "nothing is stored");
    let mut client = server.client();
    assert_eq!(client.call("SAVE"), status("OK"));
    eventually("the AOF is written", || {
        client.info("aof_buffer_length") == 0
    });
    for (name, file, is_aof) in [("AOF", "appendonlydir", "yes"), ("RDB", "dump.rdb", "no")] {
        for (number, kind) in kinds().into_iter().enumerate() {
            let folder = server.dir().join(format!("{name}-{number}"));
            fs::create_dir(&folder).unwrap();
            copy(&server.dir().join(file), &folder);
            let setup = kind
                .setup()
                .options(&["--appendonly", is_aof])
                .in_dir(folder);
            let what = format!("{name}, {}", kind.name());
            if let Some(copy) = started(what, Server::start(setup)) {
                copy.assert_is(&expected);
                println!("{}: the same", copy.what);
            }
        }
    }
}

/// Copies a file, or a folder with its files, into a folder.
fn copy(from: &Path, folder: &Path) {
    let to = folder.join(from.file_name().unwrap());
    if from.is_file() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        copy(&entry.unwrap().path(), &to);
    }
}
