//! Copies of what a server stores: replicas, and servers that load its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::Value;
use redis_lock_testing::{
    Okay, Result, SOON, Server, Setup, binary, comes_true, eventually, module, reply_text,
};

use crate::commands::DATABASES;

/// What is in the line in which a server says that it does not know the version of a stream,
/// of a file, or of that with which an AOF begins.
const TOO_NEW: [[&str; 2]; 3] = [
    ["Can't handle RDB format", "version"],
    ["Wrong signature", "DB"],
    ["Bad file format reading the append only file", ".base.rdb"],
];

/// A server's binary, and the module or none.
struct Kind {
    binary: PathBuf,
    module: Option<PathBuf>,
}

impl Kind {
    fn setup(&self) -> Setup {
        let setup = Setup::of(&self.binary).options(&["--enable-debug-command", "yes"]);
        match &self.module {
            Some(module) => setup.module(module, &[]),
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

type DbKeys = Vec<(usize, Vec<u8>)>;

/// What a server stores: the digest of all, and when keys end, of which that says nothing.
#[derive(Debug, PartialEq)]
struct Data {
    digest: String,
    ends_ms: Vec<Value>,
}

impl Data {
    fn of(server: &Server, keys: &DbKeys) -> Self {
        let mut client = server.client();
        let end_ms = |(db, key): &(usize, Vec<u8>)| {
            assert_eq!(client.call(&format!("SELECT {db}")), Okay);
            client.words(&[b"PEXPIRETIME", key])
        };
        let ends_ms = keys.iter().map(end_ms).collect();
        let digest = reply_text(client.call("DEBUG DIGEST")).unwrap();
        Self { digest, ends_ms }
    }
}

/// The keys whose time is not over. What else is there, only the digest tells.
pub fn keys(server: &Server) -> DbKeys {
    let mut client = server.client();
    let of_database = |db| {
        assert_eq!(client.call(&format!("SELECT {db}")), Okay);
        let Value::Array(keys) = client.call("KEYS *") else {
            panic!("KEYS did not answer a list");
        };
        let key = move |key| match key {
            Value::BulkString(key) => (db, key),
            other => panic!("{other:?} is no name"),
        };
        keys.into_iter().map(key)
    };
    (0..DATABASES).flat_map(of_database).collect()
}

/// A server that is to store what another one does.
struct Copy {
    what: String,
    server: Server,
}

impl Copy {
    fn assert_has(&self, keys: &DbKeys, expected: &Data) {
        let mut found = Data::of(&self.server, keys);
        comes_true(SOON, || {
            found = Data::of(&self.server, keys);
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
            started(what, server.replica_with(kind.setup()))
        };
        Self(kinds().into_iter().filter_map(start).collect())
    }

    /// Checks that each of them has what the server has.
    pub fn check(&self, server: &Server) {
        let keys = keys(server);
        let expected = Data::of(server, &keys);
        let copies = self.0.iter();
        copies.for_each(|copy| copy.assert_has(&keys, &expected));
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
            let says =
                |line: &str, reason: [&str; 2]| reason.iter().all(|part| line.contains(part));
            let is_too_new = |line: &str| TOO_NEW.iter().any(|reason| says(line, *reason));
            assert!(error.lines().any(is_too_new), "{what}: {error}");
            println!("{what}: can't read what the server writes");
            None
        }
    }
}

/// Checks that each server that loads the AOF or the RDB file has what the server has.
pub fn check_files(server: &Server) {
    let keys = keys(server);
    let expected = Data::of(server, &keys);
    println!("{}, {} keys", expected.digest, keys.len());
    let mut client = server.client();
    assert_eq!(client.call("SAVE"), Okay);
    eventually("the AOF is written", || {
        client.info("aof_buffer_length") == 0
    });
    for (name, file, is_aof) in [("AOF", "appendonlydir", "yes"), ("RDB", "dump.rdb", "no")] {
        for (number, kind) in kinds().into_iter().enumerate() {
            let folder = server.dir.join(format!("{name}-{number}"));
            fs::create_dir(&folder).unwrap();
            copy(&server.dir.join(file), &folder);
            let mut setup = kind.setup().options(&["--appendonly", is_aof]);
            setup.dir = Some(folder);
            let what = format!("{name}, {}", kind.name());
            if let Some(copy) = started(what, setup.start()) {
                copy.assert_has(&keys, &expected);
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
