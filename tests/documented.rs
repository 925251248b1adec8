//! What the documents show as code is run: here, or by what [`RUN_BY`] names.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use redis::Value;
use redis_lock_testing::{Client, Server, Setup, TestServer, binary, module};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|_| panic!("no {path}"))
}

/// A block of code: its document, its language and its lines.
#[derive(Debug)]
struct Block {
    document: String,
    language: String,
    lines: Vec<String>,
}

/// All blocks of code in all documents.
fn blocks() -> Vec<Block> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(top().join(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = folder.join(&name);
            let is_built = ["target", "node_modules", "data"].contains(&&name[..]);
            if top().join(&path).is_dir() && !is_built && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.extend(blocks_of(path.to_str().unwrap()));
            }
        }
    }
    found
}

fn blocks_of(document: &str) -> Vec<Block> {
    let (mut found, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for line in read(document).lines() {
        match line.trim_start().strip_prefix("```") {
            None => {
                if let Some(block) = &mut open {
                    block.lines.push(line.into());
                }
            }
            Some(language) => match open.take() {
                Some(block) => found.push(block),
                None => {
                    open = Some(Block {
                        document: document.into(),
                        language: language.into(),
                        lines: Vec::new(),
                    });
                }
            },
        }
    }
    assert!(open.is_none(), "{document} has an open block");
    found
}

/// Where what a block shows is run: its document, its language, a word in it, and a test or
/// a script. What is a picture, and no code, is told apart here, too.
const RUN_BY: [(&str, &str, &str, &str); 53] = [
    ("CONTRIBUTING.md", "sh", "make help", HERE),
    ("README.md", "text", "LOCK.ACQUIRE orders:42", HERE),
    ("README.md", "sh", "make run", HERE),
    ("README.md", "python", "import redis", CHECK),
    ("README.md", "js", "ioredis", CHECK),
    ("README.md", "go", "", GO),
    ("README.md", "java", "", JAVA),
    ("README.md", "rust", "ship(", "client/tests/documented.rs"),
    ("README.md", "sh", "sudo dpkg -i", PACKAGES),
    ("RELEASE.md", "sh", "make lint", HERE),
    ("RELEASE.md", "sh", "make dist", HERE),
    ("bench/README.md", "sh", "make bench", HERE),
    ("bench/README.md", "text", "sectionMicros", "a list"),
    ("client/README.md", "rust,no_run", "", "client/src/lib.rs"),
    ("client/README.md", "toml", "", "client/tests/documented.rs"),
    ("docs/architecture.md", "text", "src/lib.rs", HERE),
    ("docs/fencing.md", "text", "NOTHELD", HERE),
    ("docs/fencing.md", "text", "LOCK.GUARD", HERE),
    ("docs/fencing.md", "text", "WATCH", "tests/guard.rs"),
    ("docs/fencing.md", "sql", "", CHECK),
    ("docs/guarantees.md", "text", "lock.min-replicas", HERE),
    ("docs/install.md", "sh", "sudo dpkg -i", PACKAGES),
    ("docs/install.md", "text", "lock_waiters:0", HERE),
    ("docs/install.md", "sh", "make build", HERE),
    ("docs/install.md", "sh", "make install", HERE),
    ("docs/install.md", "sh", "sudo rpm -i", PACKAGES),
    ("docs/install.md", "sh", "sudo tar", PACKAGES),
    ("docs/install.md", "sh", "skopeo copy", PACKAGES),
    ("docs/install.md", "dockerfile", "COPY", PACKAGES),
    ("docs/install.md", "sh", "sudo dpkg -r", PACKAGES),
    ("docs/migrating/shedlock.md", "java", "", JAVA),
    ("docs/monitoring.md", "sh", "exporter", MONITORING),
    ("docs/monitoring.md", "sh", "promtool", MONITORING),
    ("docs/monitoring.md", "sh", "prometheus --", MONITORING),
    ("docs/operations.md", "text", "ACL", "tests/rights.rs"),
    ("docs/packages.md", "python", "", PYTHON),
    ("docs/waiting.md", "session", "", "tests/documents.rs"),
    ("lockctl/README.md", "sh", "lockctl run", LOCKCTL),
    ("lockctl/README.md", "sh", "install -m", LOCKCTL),
    ("lockctl/README.md", "text", "lockctl run", LOCKCTL),
    ("lockctl/README.md", "text", "lockctl top ", JAM),
    ("lockctl/README.md", "text", "lockctl tail", LOCKCTL),
    ("lockctl/README.md", "text", "lockctl doctor", "a list"),
    (
        "packages/go/README.md",
        "sh",
        "go mod edit",
        "packages/go/test",
    ),
    ("packages/go/README.md", "go", "", GO),
    (
        "packages/node/README.md",
        "sh",
        "npm install",
        "packages/node/test",
    ),
    ("packages/node/README.md", "js", "", NODE),
    ("packages/java/README.md", "java", "", JAVA),
    ("packages/java/README.md", "xml", "", "packages/java/test"),
    (
        "packages/python/README.md",
        "sh",
        "pip install",
        "packages/python/test",
    ),
    ("packages/python/README.md", "python", "", PYTHON),
    ("redlock/README.md", "rust,no_run", "", "redlock/src/lib.rs"),
    ("redlock/README.md", "toml", "", "a list"),
];
const HERE: &str = "tests/documented.rs";
const CHECK: &str = "scripts/check-docs";
const LOCKCTL: &str = "lockctl/tests/documented.rs";
const JAM: &str = "lockctl/tests/jam.rs";
const MONITORING: &str = "tests/monitoring.rs";
const NODE: &str = "packages/node/tests/documented.test.mts";
const GO: &str = "packages/go/example_test.go";
const JAVA: &str = "packages/java/tests/src/test/java/redisnativelock/DocumentedTest.java";
const PYTHON: &str = "packages/python/tests/test_documented.py";
const PACKAGES: &str = "scripts/test-dist";

#[test]
fn each_block_of_code_in_a_document_is_run_by_something() {
    let mut runs = [0; RUN_BY.len()];
    for block in blocks() {
        let text = block.lines.join("\n");
        let run_by = RUN_BY.iter().position(|(document, language, word, _)| {
            [*document, *language] == [&block.document, &block.language] && text.contains(word)
        });
        runs[run_by.unwrap_or_else(|| panic!("nothing runs this: {block:#?}"))] += 1;
    }
    for ((document, .., word, by), runs) in RUN_BY.iter().zip(runs) {
        assert!(runs > 0, "{document} has no block with {word:?}");
        let name = document.rsplit('/').next().unwrap();
        assert!(*by == "a list" || read(by).contains(name), "{by}: {name}");
    }
}

/// The block of this document with this word.
#[track_caller]
fn block(document: &str, word: &str) -> Vec<String> {
    let mut blocks = blocks_of(document).into_iter();
    let block = blocks.find(|block| block.lines.iter().any(|line| line.contains(word)));
    block.unwrap().lines
}

/// What a document shows as the tokens of a session, and what they are now.
#[derive(Default)]
struct Tokens(BTreeMap<String, String>);

impl Tokens {
    /// A line with what the tokens are now.
    fn now(&self, line: &str) -> String {
        let replace = |line: String, (then, now): (&String, &String)| line.replace(then, now);
        self.0.iter().fold(line.to_owned(), replace)
    }

    /// Checks a reply against the line that shows it.
    #[track_caller]
    fn check(&mut self, shown: &str, reply: &Value) {
        let real = match reply {
            Value::Int(number) => format!("(integer) {number}"),
            Value::ServerError(error) => {
                format!("(error) {} {}", error.code(), error.details().unwrap())
            }
            other => format!("{other:?}"),
        };
        let token = |line: &str| line.strip_prefix("(integer) ").map(str::to_owned);
        if let (Some(then), Some(now)) = (token(shown), token(&real))
            && then.len() == 16
        {
            self.0.entry(then).or_insert(now);
        }
        let shown = self.now(shown);
        match shown.strip_suffix("...") {
            Some(begins) => assert!(real.starts_with(begins), "{real}"),
            None => assert_eq!(real, shown),
        }
    }
}

#[test]
fn the_session_on_the_front_page_is_as_it_is_shown() {
    let server = TestServer::start();
    let mut terminals = [server.client(), server.client()];
    let (mut replies, mut tokens) = ([VecDeque::new(), VecDeque::new()], Tokens::default());
    let mut shown = 0;
    for line in block("README.md", "# terminal 2").iter().skip(2) {
        // The second terminal is beside the first one.
        let halves = line.split_at(line.len().min(52));
        for (n, half) in [halves.0.trim(), halves.1.trim()].into_iter().enumerate() {
            if let Some(command) = half.strip_prefix("> ") {
                terminals[n].send(&tokens.now(command));
                match command.contains("BLOCK") {
                    true => server.await_waiters(1),
                    false => replies[n].push_back(terminals[n].reply()),
                }
            } else if half.starts_with("(integer)") {
                let reply = replies[n].pop_front();
                let reply = reply.unwrap_or_else(|| terminals[n].reply());
                tokens.check(half, &reply);
                shown += 1;
            }
        }
    }
    assert_eq!((shown, tokens.0.len()), (4, 2));
}

/// Runs a session of one terminal.
#[track_caller]
fn check_session(client: &mut Client, session: &[String], tokens: &mut Tokens) {
    for exchange in session.chunks(2) {
        let command = exchange[0].strip_prefix("> ").unwrap();
        let reply = client.call(&tokens.now(command));
        tokens.check(&exchange[1], &reply);
    }
}

#[test]
fn the_guarded_writes_are_as_they_are_shown() {
    let server = TestServer::start();
    let (mut client, mut tokens) = (server.client(), Tokens::default());
    let held = block("docs/fencing.md", "LOCK.ACQUIRE");
    check_session(&mut client, &held, &mut tokens);
    client.int("LOCK.BREAK orders:42");
    let lost = block("docs/fencing.md", "(error) NOTHELD");
    check_session(&mut client, &lost, &mut tokens);
    assert_eq!(client.bulk("HGET order:42 state"), "paid");
}

#[test]
fn the_configuration_is_that_of_a_server_that_starts() {
    let mut lines = vec![format!("loadmodule {}", module().display())];
    lines.extend(block("docs/guarantees.md", "lock.min-replicas 2"));
    let mut setup = Setup::of(binary());
    setup.config = Some(lines.join("\n"));
    let server = Server::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let mut client = Client::try_connect(server.addr()).unwrap();
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(' ').unwrap();
        if !["loadmodule", "#"].contains(&name) {
            let is_set = format!("{:?}", client.call(&format!("CONFIG GET {name}")));
            assert!(is_set.contains(value), "{line}: {is_set}");
        }
    }
}

#[test]
fn a_server_that_does_not_start_says_what_is_shown() {
    let load = format!("loadmodule {}", module().display());
    let causes = [
        (
            "the module is not loaded:",
            format!("{load}\nlock.max-lease no"),
        ),
        ("initialization failed", format!("{load}\n{load}")),
        (
            "Module Configuration detected without loadmodule directive",
            "lock.max-lease 1".into(),
        ),
        (
            "cannot open shared object file",
            "loadmodule /nowhere.so".into(),
        ),
    ];
    let document = read("docs/operations.md");
    for (says, config) in causes {
        assert!(document.contains(&format!("| `{says}`")), "{says}");
        let mut setup = Setup::of(binary());
        setup.config = Some(config);
        let error = Server::start(setup).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
        let gives_reason = error.contains("the module is not loaded:");
        assert_eq!(gives_reason, says.starts_with("the module"), "{error}");
    }
}

#[test]
fn the_counters_of_a_new_server_begin_as_they_are_shown() {
    let shown = block("docs/install.md", "lock_waiters:0");
    let info = TestServer::start().client().bulk("INFO lock");
    let real: Vec<&str> = info.lines().take(shown.len()).collect();
    assert_eq!(real, shown);
}

#[test]
fn the_targets_of_make_and_their_variables_exist() {
    let makefile = read("Makefile");
    let mut named = 0;
    for line in blocks().iter().flat_map(|block| &block.lines) {
        let Some(words) = line.trim().strip_prefix("make ") else {
            continue;
        };
        let words = words.split(" #").next().unwrap();
        let words = words.split('"').next().unwrap().split_whitespace();
        for word in words {
            let line = match word.split_once('=') {
                Some((variable, _)) => format!("\n{variable} ?="),
                None => format!("\n.PHONY: {word}\n"),
            };
            assert!(makefile.contains(&line), "no {word}");
            named += 1;
        }
    }
    assert!(named > 20, "{named}");
}

#[test]
fn the_map_of_the_project_names_what_is_there() {
    let map = block("docs/architecture.md", "src/lib.rs");
    let named = map.iter().filter(|line| !line.starts_with(' '));
    for path in named.map(|line| line.split(' ').next().unwrap()) {
        assert!(top().join(path).exists(), "no {path}");
    }
}
