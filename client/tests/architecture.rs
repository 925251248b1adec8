//! The house keeps its floors: imports run down only, as `lib.rs` lists the
//! modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// For tests alone, so it may use whatever they use.
const OF_TESTS: &str = "fake_server";

fn read(module: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    fs::read_to_string(source.join(format!("{module}.rs"))).unwrap()
}

/// The modules of each floor, from the top. A comment begins the next one.
fn floors() -> Vec<Vec<String>> {
    let mut floors: Vec<Vec<String>> = Vec::new();
    for line in read("lib").lines() {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        if line.starts_with("// ") {
            floors.push(Vec::new());
        } else if let Some(module) = line
            .strip_prefix("mod ")
            .and_then(|it| it.strip_suffix(';'))
            && module != OF_TESTS
        {
            floors.last_mut().unwrap().push(module.to_string());
        }
    }
    floors
}

/// What each module imports, its tests aside.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let modules: Vec<String> = floors().concat();
    let imported = |module: &String| {
        let text = read(module);
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let used = code.split("crate::").skip(1).flat_map(|rest| {
            // `crate::{one, two}` or `crate::one::..`.
            let rest = rest.strip_prefix('{').unwrap_or(rest);
            let end = rest.find(['}', ';', '(', '\n']).unwrap_or(rest.len());
            let names = rest[..end].split(", ").map(|name| {
                let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
                name[..end.unwrap_or(name.len())].to_string()
            });
            names.collect::<Vec<_>>()
        });
        used.filter(|name| modules.contains(name) && name != module)
            .collect()
    };
    let all = modules.iter();
    all.map(|module| (module.clone(), imported(module)))
        .collect()
}

#[test]
fn no_module_imports_from_a_floor_above_it() {
    let floors = floors();
    assert!(floors.len() > 3 && floors.iter().all(|floor| !floor.is_empty()));
    let floor_of = |module: &str| {
        let mut floors = floors.iter();
        floors.position(|floor| floor.iter().any(|it| it == module))
    };
    for (module, imported) in imports() {
        for other in imported {
            assert!(
                floor_of(&other) >= floor_of(&module),
                "{module} imports {other} from above"
            );
        }
    }
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let mut left = imports();
    assert!(left["lock"].contains("single") && left["single"].contains("attempt"));
    // Those that import nothing that is left can go.
    loop {
        let standing: BTreeSet<_> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, imported| imported.iter().any(|other| standing.contains(other)));
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "a circle among {left:?}");
}
