//! Owns: reading the gateway file, and putting it together with its machines and board.
//! May call: reader, machine, sink, board_file, check.
//! Never: stop at the first file with a problem.

use super::machine::{self, Home};
use super::problem::{Doc, Problem};
use super::reader::{Node, Table, show_duration, tables};
use super::{GatewayConfig, Role, RoleRule, Who, board_file, check, point, sink};
use crate::core::spec::MachineSpec;
use std::path::{Path, PathBuf};

/// Least journal, in bytes: what the journal's own least budget is.
pub const JOURNAL_BYTES_MIN: u64 = 64 << 20;
/// Largest journal, in bytes.
pub const JOURNAL_BYTES_MAX: u64 = 64 << 30;
/// Most machines of one gateway.
pub const MACHINES_MAX: usize = 200;
/// Longest path of a Unix socket, in bytes (unix(7)).
const SOCKET_BYTES_MAX: usize = 107;
const DAY_MS: u64 = 86_400_000;

const DEFAULT_BOARD: &str = if cfg!(target_arch = "aarch64") {
    "generic-aarch64"
} else {
    "generic-x86_64"
};

pub(super) fn board_in_use(path: &Path) -> Result<String, Vec<Problem>> {
    let doc = Doc::read(path)?;
    let entries = super::parse(&doc)?;
    let node = Table::root(&doc, &entries).get("board");
    board_name(node.as_ref()).ok_or_else(|| doc.take())
}

fn board_name(node: Option<&Node<'_>>) -> Option<String> {
    node.map_or(Some(DEFAULT_BOARD.to_owned()), point::plain_name)
}

pub(super) fn load(path: &Path, boards_dir: &Path) -> Result<GatewayConfig, Vec<Problem>> {
    check(&Doc::read(path)?, path, boards_dir)
}

/// The same of what is read already.
pub(super) fn check(
    doc: &Doc,
    path: &Path,
    boards_dir: &Path,
) -> Result<GatewayConfig, Vec<Problem>> {
    let entries = super::parse(doc)?;
    let root = Table::root(doc, &entries);
    let mut others = Vec::new();
    let mut warnings = Vec::new();

    super::schema(&root);
    let name = root.need("gateway", "the gateway's name");
    let gateway = name
        .and_then(|node| point::plain_name(&node))
        .unwrap_or_default();
    let board_node = root.get("board");
    let board_name = board_name(board_node.as_ref());
    let board =
        match board_name.map(|name| board_file::load(&name, board_node.as_ref(), boards_dir)) {
            Some(Ok(board)) => board,
            Some(Err(problems)) => {
                others.extend(problems);
                None
            }
            None => None,
        };
    if let Some(board) = &board
        && board.arch != std::env::consts::ARCH
    {
        let here = std::env::consts::ARCH;
        warnings.push(format!(
            "board {:?} is for {}, this program for {here}",
            board.name, board.arch
        ));
    }
    let state_dir = root.get("state_dir").and_then(|node| node.path());
    let state_dir = state_dir.unwrap_or_else(|| PathBuf::from("/var/lib/holdfast"));
    if let Some(node) = root.get("authority") {
        node.problem(
            node.describe(),
            "no authority: this version claims operation ids in its own journal only",
            Some("remove it".into()),
        );
    }
    let home = Home {
        gateway: &gateway,
        board: board.as_ref(),
    };
    let machines = machines(&root, path, &home, &mut others, &mut warnings);
    let (journal_budget_bytes, keep_events_ms) = journal(&root);
    let (replay_window_ms, replay_retention_ms) = replay(&root, &machines);
    let (machine_rate, total_rate) = recovery(&root);
    let (api_unix, roles) = api(&root);
    let sinks = sink::sinks(&root, &state_dir, &mut warnings);
    if sinks.is_empty() {
        warnings.push("no [[sink]]: events stay in the journal".into());
    }
    root.finish();

    let mut problems = doc.take();
    problems.extend(others);
    match board {
        Some(board) if problems.is_empty() => Ok(GatewayConfig {
            gateway,
            board,
            state_dir,
            machines,
            journal_budget_bytes,
            keep_events_ms,
            replay_window_ms,
            replay_retention_ms,
            recovery_machine_milli_per_s: machine_rate,
            recovery_total_milli_per_s: total_rate,
            api_unix,
            roles,
            sinks,
            warnings,
        }),
        _ => Err(problems),
    }
}

fn machines(
    root: &Table<'_>,
    gateway_file: &Path,
    home: &Home<'_>,
    others: &mut Vec<Problem>,
    warnings: &mut Vec<String>,
) -> Vec<MachineSpec> {
    let mut specs: Vec<MachineSpec> = Vec::new();
    let node = root.need(
        "machines",
        "an array of machine files, such as [\"machines/press-1.toml\"]",
    );
    let list = node.as_ref().and_then(Node::list).unwrap_or_default();
    if let Some(node) = node
        && (list.len() > MACHINES_MAX || list.is_empty() && node.is_array())
    {
        node.problem(
            format!("{} machines", list.len()),
            format!("1 to {MACHINES_MAX}"),
            None,
        );
    }
    // As it was named, so that messages are; absolute where a person must find it.
    let directory = gateway_file.parent().unwrap_or(Path::new("."));
    let absolute = std::path::absolute(gateway_file).unwrap_or_else(|_| gateway_file.to_owned());
    for item in list.iter().take(MACHINES_MAX) {
        let Some(text) = item.text() else { continue };
        let file = directory.join(text);
        if !file.is_file() {
            let beside = absolute.parent().unwrap_or(directory).display();
            item.wrong::<()>(
                format!("a file that exists, relative to the directory {beside}"),
                None,
            );
            continue;
        }
        match machine::read(&file, home) {
            Ok(machine) => {
                let name = machine.spec.name.clone();
                if specs.iter().any(|other| other.name == name) {
                    item.problem(
                        format!("a second machine named {name:?}"),
                        "a name of its own for every machine",
                        Some(format!("change name in {text}")),
                    );
                }
                if name == home.gateway {
                    item.problem(
                        format!("a machine named {name:?}, like the gateway"),
                        "two names: both are sources of events, whose keys must not meet",
                        Some(format!("change name in {text}")),
                    );
                }
                let conflicts = specs.iter();
                if let Some(found) = conflicts
                    .filter_map(|other| check::line_conflict(&machine.spec, other))
                    .next()
                {
                    let expected = "one protocol, one speed, one character format and one echo for everybody on a line";
                    item.problem(
                        found,
                        expected,
                        Some(format!("make them the same in {text}")),
                    );
                }
                warnings.extend(machine.warnings.iter().map(|w| format!("{name}: {w}")));
                specs.push(machine.spec);
            }
            Err(problems) => others.extend(problems),
        }
    }
    specs
}

fn section<'a>(root: &Table<'a>, key: &'static str) -> Option<Table<'a>> {
    root.get(key).and_then(|node| node.table())
}

fn journal(root: &Table<'_>) -> (u64, u64) {
    let table = section(root, "journal");
    let budget = table.as_ref().and_then(|t| t.get("budget"));
    let budget = budget.and_then(|node| node.size(JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX));
    let keep = table.as_ref().and_then(|t| t.get("keep_events"));
    let keep = keep.and_then(|node| node.duration(0, 3_650 * DAY_MS));
    if let Some(table) = table {
        table.finish();
    }
    (budget.unwrap_or(512 << 20), keep.unwrap_or(DAY_MS))
}

fn replay(root: &Table<'_>, machines: &[MachineSpec]) -> (u64, u64) {
    let table = section(root, "replay");
    let window_node = table.as_ref().and_then(|t| t.get("window"));
    let window = window_node
        .as_ref()
        .and_then(|n| n.duration(60_000, 30 * DAY_MS));
    let retention = table.as_ref().and_then(|t| t.get("retention"));
    let retention = retention.and_then(|node| node.duration(0, 3_650 * DAY_MS));
    if let Some(table) = &table {
        table.finish();
    }
    let window_ms = window.unwrap_or(DAY_MS);
    if let Some((needed_ms, why)) = check::longest_journey(machines)
        && window_ms < needed_ms
    {
        let found = format!("a replay window of {}", show_duration(window_ms));
        let least = show_duration(needed_ms);
        let expected = format!("at least {least}, as a request may be under way that long ({why})");
        let mend = Some(format!(
            "write window = {least:?} in [replay], or shorten the validity"
        ));
        match &window_node {
            Some(node) => node.problem(found, expected, mend),
            None => root.report("replay.window", &found, &expected, mend),
        }
    }
    (window_ms, retention.unwrap_or(90 * DAY_MS))
}

fn recovery(root: &Table<'_>) -> (u64, u64) {
    let table = section(root, "recovery");
    let rate = |key: &'static str, default: u64| {
        let node = table.as_ref().and_then(|t| t.get(key));
        node.and_then(|node| node.rate(1_000_000))
            .unwrap_or(default)
    };
    let rates = (rate("per_machine", 5_000), rate("total", 20_000));
    if let Some(table) = table {
        table.finish();
    }
    rates
}

fn api(root: &Table<'_>) -> (PathBuf, Vec<RoleRule>) {
    let default = PathBuf::from("/run/holdfast/api.sock");
    let Some(table) = section(root, "api") else {
        return (default, Vec::new());
    };
    let unix = table.get("unix").and_then(|node| {
        let path = node.path()?;
        if path.as_os_str().len() > SOCKET_BYTES_MAX {
            return node.wrong(format!("a path of at most {SOCKET_BYTES_MAX} bytes"), None);
        }
        Some(path)
    });
    if let Some(node) = table.get("tcp") {
        node.problem(
            node.describe(),
            "unix alone: this version serves no TCP",
            Some("remove it; for remote use, forward the socket over SSH".into()),
        );
    }
    let rules = tables(&table, "role");
    let roles = rules.iter().filter_map(role).collect();
    table.finish();
    (unix.unwrap_or(default), roles)
}

fn role(table: &Table<'_>) -> Option<RoleRule> {
    let role = table
        .need("role", "viewer, operator, resolver or admin")
        .and_then(|node| {
            node.choice(&[
                ("viewer", Role::Viewer),
                ("operator", Role::Operator),
                ("resolver", Role::Resolver),
                ("admin", Role::Admin),
            ])
        });
    let uid = table.get("uid");
    let group = table.get("group");
    let later = [table.get("token_file"), table.get("certificate_cn")];
    if let Some(node) = later.into_iter().flatten().next() {
        node.problem(
            node.describe(),
            "uid or group: tokens and certificates are for TCP, which this version does not serve",
            None,
        );
        return None;
    }
    table.finish();
    let who = match (uid, group) {
        (Some(node), None) => {
            let number = node.integer(0, u32::MAX.into())?;
            Who::Uid(u32::try_from(number).ok()?)
        }
        (None, Some(node)) => Who::Group(point::plain_name(&node)?),
        _ => {
            let mend = Some("add uid = … or group = \"…\"".to_owned());
            table.report(
                &table.path,
                "a role for nobody, or for two",
                "either uid or group",
                mend,
            );
            return None;
        }
    };
    Some(RoleRule { who, role: role? })
}
