//! Owns: reading a board profile, overriding or compiled in.
//! May call: reader; board.
//! Never: reach hardware.

use super::point;
use super::problem::{Doc, Problem};
use super::reader::{Node, Table};
use crate::board::{self, BoardProfile, SerialPort};
use crate::core::intent::nearest;
use std::collections::BTreeMap;
use std::path::Path;

/// Most overriding profiles that a message names.
const PROFILES_SHOWN_MAX: usize = 50;

/// The profile `node` names: from `boards_dir` if it is there, else compiled in. `Err` holds the problems of
/// the profile's own file; a name that nobody knows is reported at `node`.
pub(super) fn load(
    name: &str,
    node: Option<&Node<'_>>,
    boards_dir: &Path,
) -> Result<Option<BoardProfile>, Vec<Problem>> {
    let file = boards_dir.join(format!("{name}.toml"));
    let doc = if file.exists() {
        Doc::read(&file)?
    } else if let Some(text) = board::built_in(name) {
        let shown = format!("boards/{name}.toml (compiled in)");
        Doc::decode(Path::new(&shown), text.as_bytes())?
    } else {
        if let Some(node) = node {
            unknown(name, node, &file, boards_dir);
        }
        return Ok(None);
    };
    let entries = super::parse(&doc)?;
    let profile = profile(&Table::root(&doc, &entries), name);
    let problems = doc.take();
    if problems.is_empty() {
        Ok(profile)
    } else {
        Err(problems)
    }
}

fn unknown(name: &str, node: &Node<'_>, file: &Path, boards_dir: &Path) {
    let mut known: Vec<String> = board::BUILT_IN.iter().map(|b| b.0.to_owned()).collect();
    let files = std::fs::read_dir(boards_dir).into_iter().flatten();
    for path in files
        .flatten()
        .map(|entry| entry.path())
        .take(PROFILES_SHOWN_MAX)
    {
        if path.extension().is_some_and(|e| e == "toml")
            && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
        {
            known.push(stem.to_owned());
        }
    }
    known.sort();
    known.dedup();
    let near = nearest(name, known.iter().map(String::as_str));
    let mend = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("name one of these, or add {}", file.display()),
    };
    let expected = format!("the name of a board profile: {}", known.join(", "));
    node.wrong::<()>(expected, Some(mend));
}

fn profile(root: &Table<'_>, name: &str) -> Option<BoardProfile> {
    super::schema(root);
    if let Some(node) = root.need("name", "the profile's name")
        && node.text().is_some_and(|own| own != name)
    {
        node.wrong::<()>(format!("{name:?}, as the file is called"), None);
    }
    let arch = root.need("arch", "x86_64 or aarch64");
    let arch = arch.and_then(|n| n.choice(&[("x86_64", "x86_64"), ("aarch64", "aarch64")]));
    let text = |key: &'static str| root.get(key).and_then(|node| point::label(&node, 400));
    let description = text("description").unwrap_or_default();
    let storage = text("storage").unwrap_or_default();
    let battery = root.need(
        "battery_clock",
        "whether a battery keeps the clock: true or false",
    );
    let battery = battery.and_then(|node| node.boolean());
    let watchdog = root.get("watchdog").and_then(|node| node.path());
    let serial = serial(root);
    root.finish();
    Some(BoardProfile {
        name: name.to_owned(),
        arch: arch?.to_owned(),
        description,
        battery_clock: battery?,
        serial,
        watchdog,
        storage,
    })
}

fn serial(root: &Table<'_>) -> BTreeMap<String, SerialPort> {
    let mut ports = BTreeMap::new();
    let table = root.get("serial").and_then(|node| node.table());
    for (name, node) in table.iter().flat_map(Table::named) {
        let Some(port) = node.table() else { continue };
        let device = port.need("device", "a device file such as \"/dev/ttyS0\"");
        let device = device.and_then(|node| node.path());
        let rs485 = port.get("rs485").and_then(|node| node.boolean());
        port.finish();
        if let Some(device) = device {
            let rs485 = rs485.unwrap_or(false);
            ports.insert(name, SerialPort { device, rs485 });
        }
    }
    ports
}
