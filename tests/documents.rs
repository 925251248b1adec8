//! What the documents show as code is run, here or by what [`RUN_BY`] names, and what they
//! name is there.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use redis::{PushKind, Value};
use redis_lock_testing::{Client, Server, Setup, binary, module, reply_text};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|_| panic!("no {path}"))
}

/// All Markdown files of the project.
fn documents() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(top().join(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = folder.join(&name);
            let is_built = ["target", "node_modules", "data"].contains(&&name[..]);
            if top().join(&path).is_dir() && !is_built && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path.to_str().unwrap().into());
            }
        }
    }
    found
}

/// A block of code: its document, its language and its lines.
#[derive(Debug)]
struct Block {
    document: String,
    language: String,
    lines: Vec<String>,
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
    ("docs/waiting.md", "session", "", HERE),
    ("lockctl/README.md", "sh", "lockctl run", LOCKCTL),
    ("lockctl/README.md", "sh", "install -m", LOCKCTL),
    ("lockctl/README.md", "text", "lockctl run", LOCKCTL),
    ("lockctl/README.md", "text", "lockctl top ", JAM),
    ("lockctl/README.md", "text", "lockctl tail", LOCKCTL),
    ("lockctl/README.md", "text", "lockctl doctor", "a list"),
    ("packages/go/README.md", "sh", "go mod edit", GO_TEST),
    ("packages/go/README.md", "go", "", GO),
    ("packages/node/README.md", "sh", "npm install", NODE_TEST),
    ("packages/node/README.md", "js", "", NODE),
    ("packages/java/README.md", "java", "", JAVA),
    ("packages/java/README.md", "xml", "", "packages/java/test"),
    (
        "packages/python/README.md",
        "sh",
        "pip install",
        PYTHON_TEST,
    ),
    ("packages/python/README.md", "python", "", PYTHON),
    ("redlock/README.md", "rust,no_run", "", "redlock/src/lib.rs"),
    ("redlock/README.md", "toml", "", "a list"),
];
const HERE: &str = "tests/documents.rs";
const CHECK: &str = "scripts/check-docs";
const LOCKCTL: &str = "lockctl/tests/documented.rs";
const JAM: &str = "lockctl/tests/jam.rs";
const MONITORING: &str = "tests/monitoring.rs";
const NODE: &str = "packages/node/tests/documented.test.mts";
const GO: &str = "packages/go/example_test.go";
const JAVA: &str = "packages/java/tests/src/test/java/redisnativelock/DocumentedTest.java";
const PYTHON: &str = "packages/python/tests/test_documented.py";
const GO_TEST: &str = "packages/go/test";
const NODE_TEST: &str = "packages/node/test";
const PYTHON_TEST: &str = "packages/python/test";
const PACKAGES: &str = "scripts/test-dist";

#[test]
fn each_block_of_code_in_a_document_is_run_by_something() {
    let mut runs = [0; RUN_BY.len()];
    for block in documents().iter().flat_map(|document| blocks_of(document)) {
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

/// Terminals beside each other, and what tokens that a document shows are now.
struct Session {
    server: Server,
    terminals: [Client; 2],
    printed: [VecDeque<String>; 2],
    tokens: BTreeMap<String, String>,
}

/// The tokens in a line: they differ each time.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_digit());
    words.filter(|word| word.len() == 16)
}

/// A reply, or what is pushed to who has subscribed, as redis-cli prints it.
fn printed(value: &Value) -> Vec<String> {
    let line = match value {
        Value::Push { kind, data } => {
            let kind = match kind {
                PushKind::Subscribe => "subscribe",
                PushKind::Message => "message",
                other => panic!("{other:?}"),
            };
            let parts = data.iter().flat_map(printed);
            let parts = [format!("\"{kind}\"")].into_iter().chain(parts).zip(1..);
            return parts.map(|(part, n)| format!("{n}) {part}")).collect();
        }
        Value::Int(number) => format!("(integer) {number}"),
        Value::BulkString(text) => format!("\"{}\"", String::from_utf8_lossy(text)),
        Value::Okay => "OK".into(),
        Value::ServerError(error) => {
            format!("(error) {} {}", error.code(), error.details().unwrap())
        }
        other => panic!("{other:?}"),
    };
    vec![line]
}

impl Session {
    fn begin() -> Self {
        let server = Server::start();
        Self {
            terminals: [server.client(), server.client().in_resp3()],
            server,
            printed: Default::default(),
            tokens: BTreeMap::new(),
        }
    }

    /// Plays what a document shows, where the second terminal begins in this column.
    #[track_caller]
    fn play(&mut self, lines: &[String], column: usize) {
        let is_comment = |half: &str| {
            let begins = ["#", "$ ", "(waits", "(9.14s)", "Reading messages"];
            half.is_empty() || begins.iter().any(|begins| half.starts_with(begins))
        };
        for line in lines {
            let halves = line.split_at(line.len().min(column));
            for (n, half) in [halves.0.trim(), halves.1.trim()].into_iter().enumerate() {
                let now = |line: String, (then, now): (&String, &String)| line.replace(then, now);
                if let Some(command) = half.strip_prefix("> ") {
                    let command = self.tokens.iter().fold(command.into(), now);
                    self.terminals[n].send(&command);
                    if command.contains("BLOCK") {
                        self.server.await_info("lock_waiters", 1);
                    }
                } else if !is_comment(half) {
                    if self.printed[n].is_empty() {
                        let reply = self.terminals[n].connection.reply().unwrap();
                        self.printed[n].extend(printed(&reply));
                    }
                    let real = self.printed[n].pop_front().unwrap();
                    for (then, now) in tokens(half).zip(tokens(&real)) {
                        self.tokens.entry(then.into()).or_insert(now.into());
                    }
                    let shown = self.tokens.iter().fold(half.to_owned(), now);
                    match shown.strip_suffix("...") {
                        Some(begins) => assert!(real.starts_with(begins), "{real}"),
                        None => assert_eq!(real, shown),
                    }
                }
            }
        }
        // No more was told than is shown.
        for (terminal, printed) in self.terminals.iter_mut().zip(&self.printed) {
            assert_eq!(terminal.told_so_far(), []);
            assert!(printed.is_empty(), "{printed:?}");
        }
    }
}

#[test]
fn the_sessions_of_two_terminals_are_as_they_are_shown() {
    for document in ["README.md", "docs/waiting.md"] {
        let lines = block(document, "# terminal 2");
        let column = lines[0].find("# terminal 2").unwrap();
        let mut session = Session::begin();
        session.play(&lines, column);
        assert_eq!(session.tokens.len(), 2, "{document}");
    }
}

#[test]
fn the_guarded_writes_are_as_they_are_shown() {
    let mut session = Session::begin();
    session.play(&block("docs/fencing.md", "LOCK.ACQUIRE"), usize::MAX);
    session.terminals[0].int("LOCK.BREAK orders:42");
    session.play(&block("docs/fencing.md", "(error) NOTHELD"), usize::MAX);
    assert_eq!(session.terminals[0].bulk("HGET order:42 state"), "paid");
}

#[test]
fn the_configuration_is_that_of_a_server_that_starts() {
    let mut lines = vec![format!("loadmodule {}", module().display())];
    lines.extend(block("docs/guarantees.md", "lock.min-replicas 2"));
    let mut setup = Setup::of(binary());
    setup.config = Some(lines.join("\n"));
    let server = setup.start().unwrap();
    let mut client = server.client();
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
        let error = setup.start().err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
        let gives_reason = error.contains("the module is not loaded:");
        assert_eq!(gives_reason, says.starts_with("the module"), "{error}");
    }
}

#[test]
fn the_counters_of_a_new_server_begin_as_they_are_shown() {
    let shown = block("docs/install.md", "lock_waiters:0");
    let info = Server::start().client().bulk("INFO lock");
    let real: Vec<&str> = info.lines().take(shown.len()).collect();
    assert_eq!(real, shown);
}

#[test]
fn the_targets_of_make_and_their_variables_exist() {
    let makefile = read("Makefile");
    let mut named = 0;
    let blocks: Vec<_> = documents().iter().flat_map(|it| blocks_of(it)).collect();
    for line in blocks.iter().flat_map(|block| &block.lines) {
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

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn each_test_that_holds_a_promise_exists() {
    let document = read("docs/guarantees.md");
    let (_, tests) = document.split_once("## The tests that hold").unwrap();
    let mut source = String::new();
    let mut named = 0;
    for word in quoted(tests) {
        if word.ends_with(".rs") {
            source = read(word);
        } else if !word.contains(['.', ' ']) {
            let is_there = source.contains(&format!("fn {word}("));
            assert!(is_there, "no test {word}");
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}

/// What stands in backquotes in the first two columns of those rows of tables in
/// `docs/operations.md` that begin with this.
fn documented(begins_with: &str) -> BTreeMap<String, String> {
    let document = read("docs/operations.md");
    let mut rows = BTreeMap::new();
    for row in document.lines().filter_map(|line| line.strip_prefix("| `")) {
        if row.starts_with(begins_with) {
            let (name, more) = row.split_once("` | ").unwrap();
            let (second, _) = more.split_once(" |").unwrap();
            let before = rows.insert(name.to_owned(), second.to_owned());
            assert_eq!(before, None, "{name} twice");
        }
    }
    rows
}

#[test]
fn the_settings_and_their_defaults_are_those_of_the_server() {
    let module = module();
    let server = Server::start_plain(&["--loadmodule", module.to_str().unwrap()]);
    let Value::Array(words) = server.client().call("CONFIG GET lock.*") else {
        panic!("no list");
    };
    let text = |word: &Value| reply_text(word.clone()).unwrap();
    let pairs = words.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1])));
    let pairs: BTreeMap<String, String> = pairs.collect();
    assert_eq!(documented("lock."), pairs);
    assert_eq!(packaged_settings(), pairs);
}

/// The settings in the configuration that a package brings, commented out.
fn packaged_settings() -> BTreeMap<String, String> {
    let configuration = read("packaging/lock.conf");
    let lines = configuration.lines();
    let lines = lines.filter_map(|line| line.strip_prefix("# lock."));
    let settings = lines.filter_map(|line| line.split_once(' '));
    settings
        .map(|(name, value)| (format!("lock.{name}"), value.into()))
        .collect()
}

#[test]
fn the_fields_of_info_lock_are_those_of_the_server() {
    let info = Server::start().client().bulk("INFO lock");
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let fields: Vec<&str> = fields.map(|(name, _)| name).collect();
    let documented: Vec<String> = documented("lock_").into_keys().collect();
    let mut sorted = fields.clone();
    sorted.sort_unstable();
    assert_eq!(documented, sorted);
}

/// The lines of a document that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !is_fence && !in_code
    })
}

/// The anchors of its headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let stays = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
            title
                .chars()
                .filter(stays)
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut followed = 0;
    for document in documents() {
        let text = read(&document);
        let links = prose(&text).flat_map(|line| line.split("](").skip(1));
        for link in links.filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let from = top().join(&document);
            let target = match file {
                "" => from,
                file => from.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{document}: {link}");
            if !anchor.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let is_there = anchors(&text).iter().any(|known| known == anchor);
                assert!(is_there, "{document}: no heading for {link}");
            }
            followed += 1;
        }
    }
    assert!(followed > 50, "{followed}");
}
