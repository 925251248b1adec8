//! The house keeps its floors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn sources(under: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(under)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// Lines of code, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

#[track_caller]
fn check_absent(under: &str, words: &[&str], except: &[&str]) {
    for (path, text) in sources(under) {
        let shown = path.display().to_string();
        if except.iter().any(|part| shown.contains(part)) {
            continue;
        }
        for line in code(&text) {
            for word in words {
                assert!(!line.contains(word), "{shown} names {word}: {line}");
            }
        }
    }
}

/// That it knows no Redis and has nothing unsafe, the compiler holds.
#[test]
fn the_core_knows_no_clock() {
    let words = ["std::time", "Instant", "SystemTime", "std::io", "std::net"];
    // The exploration says how long it took.
    check_absent("core/src", &words, &["core/src/explore"]);
}

#[test]
fn only_the_server_floor_is_unsafe() {
    check_absent("src", &["unsafe "], &["src/server/"]);
    check_absent("src", &["allow(unsafe_code)"], &["src/server/mod.rs"]);
}

#[test]
fn only_one_file_names_functions_of_the_module_api() {
    check_absent("src", &["RedisModule_"], &["src/server/api.rs"]);
}

/// The modules of each floor, from the top.
type Floors = Vec<Vec<String>>;

fn floors_of_module() -> Floors {
    let floors: [&[&str]; 5] = [
        &[""],
        &["commands", "events"],
        &["manager"],
        &["server"],
        &["config"],
    ];
    let owned = |floor: &[&str]| floor.iter().map(|&module| module.to_owned()).collect();
    floors.into_iter().map(owned).collect()
}

/// As its `lib.rs` lists them, where a comment begins the next floor.
fn floors_of_client() -> Floors {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("client/src/lib.rs");
    let mut floors = vec![vec![String::new()]];
    for line in fs::read_to_string(lib).unwrap().lines() {
        let line = line.trim_start_matches("pub ");
        if line.starts_with("// ") {
            floors.push(Vec::new());
        } else if let Some(module) = line.strip_prefix("mod ") {
            floors.last_mut().unwrap().push(module.replace(';', ""));
        }
    }
    assert!(floors.len() > 3 && floors.iter().all(|floor| !floor.is_empty()));
    floors
}

#[test]
fn imports_run_down_only() {
    check_floors("src", &floors_of_module());
    check_floors("client/src", &floors_of_client());
}

#[track_caller]
fn check_floors(under: &str, floors: &Floors) {
    let floor_of = |module: &str| {
        let first = module.split("::").next().unwrap();
        floors
            .iter()
            .position(|modules| modules.iter().any(|module| module == first))
            .unwrap_or_else(|| panic!("{module} of {under} is on no floor"))
    };
    for (module, imports) in imports(under) {
        for import in imports {
            assert!(
                floor_of(&module) <= floor_of(&import),
                "{under}: {module} imports {import} from above"
            );
        }
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for under in ["src", "core/src", "client/src", "lockctl/src"] {
        let mut left = imports(under);
        assert!(left.len() > 15);
        // Who imports nothing that is left, or is imported by nobody left, is in no
        // circle.
        loop {
            let before = left.len();
            let importers: BTreeSet<String> = left.keys().cloned().collect();
            let imported: BTreeSet<String> = left.values().flatten().cloned().collect();
            left.retain(|module, imports| {
                imports.retain(|import| importers.contains(import));
                !imports.is_empty() && imported.contains(module)
            });
            if left.len() == before {
                break;
            }
        }
        assert!(left.is_empty(), "these import each other: {left:#?}");
    }
}

/// A file that has files of its own counts as one with them.
const WITH_THEIR_OWN: [&str; 4] = ["manager", "table", "queue", "sessions"];

/// The modules of a crate, each with those that it imports, but for tests. A module also
/// imports those that it declares.
fn imports(under: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut sources = sources(under);
    let of_tests = ["tests", "explore"];
    let is_tests = |path: &Path| {
        path.iter()
            .any(|part| of_tests.iter().any(|one| part == *one))
    };
    sources.retain(|(path, _)| !path.ends_with("tests.rs") && !is_tests(path));
    let module_of = |path: &Path| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(under);
        let path = path.strip_prefix(root).unwrap().with_extension("");
        let mut parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
        parts.pop_if(|last| ["mod", "lib"].contains(last));
        parts.join("::")
    };
    let known: BTreeSet<String> = sources.iter().map(|(path, _)| module_of(path)).collect();
    let room = |module: &str| {
        let all = WITH_THEIR_OWN.into_iter();
        let room = all.chain([module]).find(|room| is_within(room, module));
        room.unwrap().to_owned()
    };
    let mut all = BTreeMap::<String, BTreeSet<String>>::new();
    for (path, text) in &sources {
        let module = module_of(path);
        let text: Vec<&str> = code(text).collect();
        let text = text
            .join("\n")
            .replace("#[cfg(test)]\nuse crate::explore", "");
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        let mut paths = Vec::new();
        for (start, base) in [("crate::", ""), ("super::", parent), ("self::", &module)] {
            for (at, _) in text.match_indices(start) {
                paths_from(&text[at + start.len()..], base, &mut paths);
            }
        }
        for line in text.lines() {
            let line = line.trim_start_matches("pub(crate) ");
            let declared = line.trim_start_matches("pub ").strip_prefix("mod ");
            if let Some(declared) = declared.and_then(|name| name.strip_suffix(';')) {
                paths.push(join(&module, declared));
            }
        }
        let entry = all.entry(room(&module)).or_default();
        for mut path in paths {
            while !known.contains(&path) {
                path = path.rsplit_once("::").map_or("", |(rest, _)| rest).into();
            }
            if room(&path) != room(&module) {
                entry.insert(room(&path));
            }
        }
    }
    all
}

fn is_within(room: &str, module: &str) -> bool {
    let rest = module.strip_prefix(room);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn join(base: &str, name: &str) -> String {
    match base {
        "" => name.to_owned(),
        _ => format!("{base}::{name}"),
    }
}

/// Reads the paths that begin here, with or without braces, and returns the rest.
fn paths_from<'t>(text: &'t str, base: &str, paths: &mut Vec<String>) -> &'t str {
    let end = |c: char| !(c.is_alphanumeric() || c == '_');
    let (name, rest) = text.split_at(text.find(end).unwrap_or(text.len()));
    if let Some(mut rest) = rest.strip_prefix('{').filter(|_| name.is_empty()) {
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',']);
            match rest.strip_prefix('}') {
                Some(rest) => return rest,
                None if rest.is_empty() => return rest,
                None => {
                    let before = rest.len();
                    rest = paths_from(rest, base, paths);
                    // `*`, or whatever else is no path.
                    if rest.len() == before {
                        rest = &rest[1..];
                    }
                }
            }
        }
    }
    let path = match name {
        "" | "self" => base.to_owned(),
        _ => join(base, name),
    };
    match rest.strip_prefix("::") {
        Some(rest) if !rest.starts_with('<') => paths_from(rest, &path, paths),
        _ => {
            paths.push(path);
            rest
        }
    }
}

#[test]
fn error_codes_are_spelled_in_one_place() {
    let codes = ["\"ERR ", "WRONGTYPE", "NOTALOCK", "HOLDCOUNT", "QUEUEFULL"];
    check_absent("src", &codes, &["/tests.rs"]);
    let tests = ["/tests.rs", "/tests/", "core/src/explore"];
    let except = [&["core/src/error.rs"], tests.as_slice()].concat();
    check_absent("core/src", &codes, &except);
}
