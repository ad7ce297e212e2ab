//! Owns: two files that are good, and how a test says what must be said of a change to one.
//! May call: the crate's config.
//! Never: know what is right.

use holdfast::config::{GatewayConfig, Problem, load};
use std::fs;

pub(crate) const GATEWAY: &str = r#"schema = 1
gateway = "gw-line3"
board = "generic-x86_64"
machines = ["press-1.toml"]
[replay]
window = "24h"
[api]
unix = "/run/holdfast/api.sock"
[[sink]]
name = "local"
kind = "file"
path = "/var/lib/holdfast/events"
"#;

pub(crate) const MACHINE: &str = r#"schema = 1
name = "press-1"
[link]
protocol = "modbus-tcp"
address = "127.0.0.1:1502"
unit = 1
[gate]
identity = { read = "holding:110", equals = 4711 }
config_version = "holding:120"
interlocks = [{ name = "door closed", read = "coil:3", equals = true }]
[[tag]]
name = "speed"
read = "holding:100"
type = "u16"
poll = "500ms"
[[command]]
name = "set_speed"
class = "absolute_set"
write = "holding:100"
args = { speed = { type = "u16", unit = "rpm", min = 0, max = 3000 } }
queueable = true
ttl = "10s"
precondition = "config_version"
[[command]]
name = "eject_one"
class = "relative_action"
mailbox = { opcode = 3 }
[[command]]
name = "read_status"
class = "query"
read = "holding:5160"
[mailbox]
command = "holding:300"
status = "holding:340"
"#;

pub(crate) fn load_bytes(gateway: &[u8], machine: &[u8]) -> Result<GatewayConfig, Vec<Problem>> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("holdfast.toml"), gateway).unwrap();
    fs::write(dir.path().join("press-1.toml"), machine).unwrap();
    load(
        &dir.path().join("holdfast.toml"),
        &dir.path().join("boards"),
    )
}

pub(crate) fn text(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("{p}\n")).collect()
}

/// Line and column of the first `needle`, both from 1.
pub(crate) fn place(text: &str, needle: &str) -> (usize, usize) {
    let offset = text.find(needle).unwrap_or_else(|| panic!("no {needle:?}"));
    let before = &text[..offset];
    let line = before.lines().count() + usize::from(before.is_empty() || before.ends_with('\n'));
    let start = before.rfind('\n').map_or(0, |index| index + 1);
    (line, before[start..].chars().count() + 1)
}

/// A file with one thing changed must be refused at `at`, and the message must say all of `says`.
pub(crate) fn refused(gateway: &str, machine: &str, at: (&str, &str), says: &[&str]) {
    let problems = load_bytes(gateway.as_bytes(), machine.as_bytes()).expect_err(at.1);
    let source = if at.0 == "press-1.toml" {
        machine
    } else {
        gateway
    };
    let (line, column) = place(source, at.1);
    let found = problems.iter().find(|p| {
        p.file.ends_with(at.0) && (p.line, p.column) == (line, column) && {
            let shown = p.to_string();
            says.iter().all(|part| shown.contains(part))
        }
    });
    assert!(
        found.is_some(),
        "no {}:{line}:{column} with {says:?} in\n{}",
        at.0,
        text(&problems)
    );
    let shown = found.unwrap().to_string();
    assert!(
        shown.contains(&format!("{}:{line}:{column}: ", at.0)),
        "{shown}"
    );
}
