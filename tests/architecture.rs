//! Owns: the proof that the rooms of the source depend on each other one way only.
//! May call: the file system, to read the source.
//! Never: judge by more than the text says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which rooms a room may name, besides itself. `main` and `lib` name rooms only to declare or start
/// them. A room that is missing here fails the test: its place must be thought about first.
const MAY_CALL: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("sys", &[]),
    ("failpoint", &[]),
    // Deliberate faults for the proofs; nothing in a release, and open to every room.
    ("seeded", &[]),
    // Passwords and tokens as files.
    ("secret", &[]),
    // Directories whose names stay.
    ("durable", &[]),
    ("journal", &["core", "sys", "failpoint", "durable"]),
    ("plc", &["core", "sys", "failpoint"]),
    (
        "sink",
        &["core", "sys", "failpoint", "durable", "secret", "upstream"],
    ),
    ("patience", &[]),
    ("api", &["core", "patience"]),
    ("config", &["core", "board", "secret"]),
    ("board", &["core"]),
    ("simulator", &["core"]),
    (
        "receiver",
        &["core", "failpoint", "patience", "secret", "upstream"],
    ),
    // The books: their SQL and the way to them.
    ("upstream", &["core", "failpoint", "secret"]),
    ("cli", &["api", "core"]),
    (
        "service",
        &[
            "core",
            "sys",
            "failpoint",
            "journal",
            "plc",
            "secret",
            "sink",
            "api",
            "config",
            "board",
        ],
    ),
    // What must hold of every decoder: a door for proofs, not in a release, so it may see all rooms.
    (
        "fuzzing",
        &[
            "core",
            "journal",
            "plc",
            "simulator",
            "config",
            "board",
            "api",
            "receiver",
            "sink",
            "upstream",
        ],
    ),
    // The binary.
    ("main", &["local", "cli"]),
    (
        "local",
        &[
            "board",
            "core",
            "journal",
            "config",
            "service",
            "simulator",
            "receiver",
            "secret",
            "upstream",
            "api",
            "cli",
        ],
    ),
    ("lib", &[]),
];

/// What the pure core may not name: everything that acts, waits, or differs from run to run.
const NOT_IN_CORE: &[&str] = &[
    "tokio",
    "std::fs",
    "std::net",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "std::sync::mpsc",
    "std::time",
    "SystemTime",
    "Instant::now",
    "sled",
    "rustix",
    "jiff",
    "rand::",
    "getrandom",
    "log::",
    "println!",
    "eprintln!",
];

struct Source {
    path: PathBuf,
    room: String,
    text: String,
    /// Without comments and without tests.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(source(&root, path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 10, "the source was not found");
    found
}

fn source(root: &Path, path: PathBuf) -> Source {
    let text = fs::read_to_string(&path).unwrap();
    let inside = path.strip_prefix(root).unwrap();
    let first = inside.components().next().unwrap().as_os_str();
    let room = Path::new(first).with_extension("");
    let name = path.file_stem().unwrap().to_string_lossy();
    let is_tests = name == "tests"
        || name.starts_with("tests_")
        || name.ends_with("_tests")
        || inside.components().any(|part| part.as_os_str() == "tests");
    Source {
        code: if is_tests {
            String::new()
        } else {
            code_of(&text)
        },
        room: room.to_string_lossy().into_owned(),
        text,
        path,
    }
}

/// The text without comments, strings and what follows `#[cfg(test)]` up to the end of its item.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    let mut skipped_indent: Option<usize> = None;
    let mut pending = false;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let content = line.trim();
        if let Some(of) = skipped_indent {
            // rustfmt puts the closing brace of an item at the item's own indent.
            if indent == of && content.starts_with('}') {
                skipped_indent = None;
            }
            continue;
        }
        if content.starts_with("#[cfg(test)]") {
            pending = true;
            continue;
        }
        if pending {
            if content.starts_with("#[") {
                continue;
            }
            pending = false;
            if !content.ends_with(';') && !content.ends_with('}') {
                skipped_indent = Some(indent);
            }
            continue;
        }
        code.push_str(&without_strings(content));
        code.push('\n');
    }
    code
}

/// One line without its comment and the insides of its string literals.
fn without_strings(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    let mut in_string = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_string => {
                chars.next();
            }
            '"' => in_string = !in_string,
            '\'' if !in_string && chars.peek() == Some(&'"') => {
                chars.next();
            }
            '/' if !in_string && chars.peek() == Some(&'/') => break,
            c if !in_string => out.push(c),
            _ => {}
        }
    }
    out
}

/// The rooms that `crate::…` paths name, `use crate::{a, b::c}` included.
fn rooms_named(code: &str) -> Vec<String> {
    let mut named = Vec::new();
    for (at, prefix) in code
        .match_indices("crate::")
        .chain(code.match_indices("holdfast::"))
    {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            named.extend(group_heads(group));
        } else {
            named.push(first_name(rest));
        }
    }
    named.retain(|name| !name.is_empty());
    named
}

fn first_name(text: &str) -> String {
    text.trim_start()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// The first names of `a, b::{c, d}, e}`.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (index, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.push(first_name(&group[start..index]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.push(first_name(&group[start..index]));
                start = index + 1;
            }
            _ => {}
        }
    }
    heads
}

fn report(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn rooms_depend_one_way_only() {
    let may_call: BTreeMap<_, _> = MAY_CALL.iter().copied().collect();
    let mut findings = Vec::new();
    let mut checked = 0;
    for source in sources() {
        let path = source.path.display();
        let Some(allowed) = may_call.get(&*source.room) else {
            findings.push(format!(
                "{path}: room {:?} has no place in MAY_CALL",
                source.room
            ));
            continue;
        };
        for name in rooms_named(&source.code) {
            checked += 1;
            let is_room = may_call.contains_key(&*name);
            let is_own = name == source.room || name == "seeded";
            if is_room && !is_own && !allowed.contains(&&*name) {
                findings.push(format!("{path}: {} may not name {name}", source.room));
            }
        }
    }
    assert!(
        checked > 10,
        "no dependency was found at all: the search is broken"
    );
    report(&findings);
}

#[test]
fn the_core_names_nothing_that_acts_waits_or_differs_from_run_to_run() {
    let mut findings = Vec::new();
    let room = include_str!("../src/core/mod.rs");
    // A file that only tests are built with may ask its environment which seed to play.
    let for_tests = |source: &Source| {
        let name = source
            .path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy();
        room.contains(&format!("#[cfg(test)]\nmod {name};"))
    };
    let sources = sources();
    let core = sources.iter().filter(|source| source.room == "core");
    for source in core.filter(|source| !for_tests(source)) {
        for (number, line) in source.code.lines().enumerate() {
            for word in NOT_IN_CORE {
                if names(line, word) {
                    let path = source.path.display();
                    findings.push(format!("{path}, code line {}: {word}: {line}", number + 1));
                }
            }
        }
    }
    report(&findings);
}

/// Whether `word` stands in `line`, and not as the end of a longer name.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let word_end = word.ends_with(|c: char| c.is_alphanumeric());
        !(part(before) || word_end && part(after))
    })
}

// covers: OPS-03
#[test]
fn unsafe_stands_in_one_named_module() {
    let mut findings = Vec::new();
    for source in sources() {
        if source.room == "sys" {
            continue;
        }
        for line in source.text.lines() {
            let code = without_strings(line);
            if names(&code, "unsafe") || code.contains("allow(unsafe_code)") {
                findings.push(format!("{}: {}", source.path.display(), line.trim()));
            }
        }
    }
    report(&findings);
}

#[test]
fn every_file_opens_with_what_it_owns_may_call_and_never_does() {
    let mut findings = Vec::new();
    for source in sources() {
        // main.rs and lib.rs describe the whole, and tests belong to the file that they test.
        if matches!(&*source.room, "main" | "lib") || source.code.is_empty() {
            continue;
        }
        let head: String = source
            .text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect::<Vec<_>>()
            .join("\n");
        let places: Vec<_> = ["//! Owns: ", "//! May call: ", "//! Never: "]
            .iter()
            .map(|key| head.find(key))
            .collect();
        let in_order = places.iter().all(Option::is_some) && places.is_sorted();
        if !in_order || places[0] != Some(0) {
            findings.push(format!(
                "{}: opens without `//! Owns: `, `//! May call: `, `//! Never: ` in this order",
                source.path.display()
            ));
        }
    }
    report(&findings);
}

/// Units that a bound's name may end in before `_MAX` or `_MIN`.
const UNITS: &[&str] = &[
    "NS",
    "US",
    "MS",
    "S",
    "BYTES",
    "CHARS",
    "WORDS",
    "BITS",
    "REGISTERS",
    "COILS",
    "POINTS",
    "EVENTS",
    "ENTRIES",
    "FILES",
    "RECORDS",
    "ITEMS",
];

#[test]
fn bounds_are_numbers_that_bound_something() {
    let mut seen = BTreeMap::new();
    let mut findings = Vec::new();
    for source in sources() {
        let lines = source.code.lines().filter(|line| line.contains("const "));
        for line in lines {
            let Some((name, value)) = bound(line) else {
                continue;
            };
            if value == 0 || value > 1 << 40 {
                findings.push(format!("{}: {name} = {value}", source.path.display()));
            }
            seen.insert(name, value);
        }
    }
    for (name, least) in &seen {
        let Some(most) = name
            .strip_suffix("_MIN")
            .and_then(|stem| seen.get(&format!("{stem}_MAX")))
        else {
            continue;
        };
        if least > most {
            findings.push(format!("{name} = {least} is over its _MAX, {most}"));
        }
    }
    let with_unit = seen.keys().filter(|name| {
        let stem = name.trim_end_matches("_MAX").trim_end_matches("_MIN");
        UNITS
            .iter()
            .any(|unit| stem == *unit || stem.ends_with(&format!("_{unit}")))
    });
    assert!(
        with_unit.count() > 5,
        "no bound was found: the search is broken"
    );
    report(&findings);
}

/// Name and value of `const X_MAX: T = a * b * c;`, where it is a product of plain numbers.
fn bound(line: &str) -> Option<(String, u128)> {
    let (name, rest) = line.split_once("const ")?.1.split_once(':')?;
    if !name.ends_with("_MAX") && !name.ends_with("_MIN") {
        return None;
    }
    let value = rest.split_once('=')?.1.trim().strip_suffix(';')?;
    let mut product = value.split('*').map(|factor| {
        let digits: String = factor.trim().chars().filter(|c| *c != '_').collect();
        digits.parse::<u128>().ok()
    });
    let value = product.try_fold(1_u128, |all, one| all.checked_mul(one?))?;
    Some((name.to_owned(), value))
}

#[test]
fn the_searches_of_this_file_find_what_they_look_for() {
    let code = code_of(
        "use crate::{plc::Link, core};\nlet a = \"crate::api\"; // crate::cli\nlet b = crate::sink::x();\n\
         #[cfg(test)]\nmod tests {\n    use crate::journal::J;\n}\nuse crate::board::B;\n",
    );
    assert_eq!(rooms_named(&code), ["plc", "core", "sink", "board"]);
    assert!(names("use std::time::Duration;", "std::time"));
    assert!(!names("use super::time::Now;", "std::time"));
    assert!(!names("let catalog = 1;", "log::"));
    assert_eq!(
        bound("pub const TTL_MS_MAX: u64 = 24 * 3600 * 1_000;"),
        Some(("TTL_MS_MAX".into(), 86_400_000))
    );
}
