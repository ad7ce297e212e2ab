//! Owns: reading a board profile, overriding or compiled in.
//! May call: reader; board.
//! Never: reach hardware.

use super::point;
use super::problem::{Doc, Problem};
use super::reader::{Node, Table, tables};
use crate::board::{self, BoardProfile, DMI_FIELDS, Fact, Identity, Nic, Rs485};
use crate::board::{SerialMode, SerialPort, StorageKind};
use crate::core::intent::nearest;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

/// Most overriding profiles that are listed.
const PROFILES_SHOWN_MAX: usize = 50;
/// Most entries of any list in a profile.
const ENTRIES_MAX: usize = 32;
/// Longest description, source or note, in characters.
const TEXT_CHARS_MAX: usize = 400;
/// Longest name of a driver or of hardware, in characters.
const HARDWARE_CHARS_MAX: usize = 80;

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
    check(&doc, name)
}

/// The same of what is read already.
pub(super) fn check(doc: &Doc, name: &str) -> Result<Option<BoardProfile>, Vec<Problem>> {
    let entries = super::parse(doc)?;
    let profile = profile(&Table::root(doc, &entries), name);
    let problems = doc.take();
    if problems.is_empty() {
        Ok(profile)
    } else {
        Err(problems)
    }
}

/// The names of all profiles, overriding and compiled in, in order.
pub(super) fn names(boards_dir: &Path) -> Vec<String> {
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
    known
}

fn unknown(name: &str, node: &Node<'_>, file: &Path, boards_dir: &Path) {
    let known = names(boards_dir);
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
    let not_documented = not_documented(root);
    let battery = if not_documented.contains(&Fact::BatteryClock) {
        root.get("battery_clock")
    } else {
        root.need(
            "battery_clock",
            "whether a battery keeps the clock: true or false",
        )
    };
    let battery = battery.map_or(Some(false), |node| node.boolean());
    let text = |key: &'static str| root.get(key).and_then(|node| long(&node));
    let kinds = root.get("storage_kinds");
    let profile = BoardProfile {
        name: name.to_owned(),
        arch: arch.unwrap_or_default().to_owned(),
        description: text("description").unwrap_or_default(),
        sources: texts(root, "sources"),
        not_documented,
        identity: identity(root),
        battery_clock: battery.unwrap_or_default(),
        serial: serial(root),
        watchdog: root.get("watchdog").and_then(|node| device(&node)),
        watchdog_driver: hardware(root, "watchdog_driver"),
        storage_kinds: kinds.map_or_else(Vec::new, |node| choices(&node, StorageKind::NAMES)),
        power_loss_protection: root
            .get("power_loss_protection")
            .and_then(|node| node.boolean()),
        storage: text("storage").unwrap_or_default(),
        nics: nics(root),
        notes: texts(root, "notes"),
    };
    root.finish();
    (arch.is_some() && battery.is_some()).then_some(profile)
}

fn long(node: &Node<'_>) -> Option<String> {
    point::label(node, TEXT_CHARS_MAX)
}

fn hardware(table: &Table<'_>, key: &'static str) -> Option<String> {
    let node = table.get(key)?;
    point::label(&node, HARDWARE_CHARS_MAX)
}

/// A list that is not longer than it may be.
fn entries<'a>(node: &Node<'a>) -> Vec<Node<'a>> {
    let list = node.list().unwrap_or_default();
    if list.len() > ENTRIES_MAX {
        let found = format!("{} entries", list.len());
        node.problem(found, format!("at most {ENTRIES_MAX}"), None);
    }
    list.into_iter().take(ENTRIES_MAX).collect()
}

fn texts(table: &Table<'_>, key: &'static str) -> Vec<String> {
    let list = table.get(key).map(|node| entries(&node));
    let list = list.into_iter().flatten();
    list.filter_map(|node| long(&node)).collect()
}

/// Words out of a few, each at most once.
fn choices<T: Copy + PartialEq>(node: &Node<'_>, names: &[(&'static str, T)]) -> Vec<T> {
    let mut all = Vec::new();
    for entry in entries(node) {
        match entry.choice(names) {
            Some(value) if all.contains(&value) => {
                entry.wrong::<()>("each word once", None);
            }
            Some(value) => all.push(value),
            None => {}
        }
    }
    all
}

/// What the sources do not say must not be said by the profile either.
fn not_documented(root: &Table<'_>) -> Vec<Fact> {
    let Some(node) = root.get("not_documented") else {
        return Vec::new();
    };
    let facts = choices(&node, Fact::NAMES);
    for fact in &facts {
        let key = board::name_of(Fact::NAMES, fact);
        if root.has(key) {
            let found = format!("{key:?}, which the profile says");
            let mend = format!("remove {key:?} here, or {key} = … there");
            node.problem(found, "what the sources do not say", Some(mend));
        }
    }
    facts
}

fn identity(root: &Table<'_>) -> Identity {
    let Some(table) = root.get("identity").and_then(|node| node.table()) else {
        return Identity::default();
    };
    let mut dmi = BTreeMap::new();
    let fields = table.get("dmi").and_then(|node| node.table());
    for (name, node) in fields.iter().flat_map(Table::named) {
        if !DMI_FIELDS.contains(&name.as_str()) {
            let near = nearest(&name, DMI_FIELDS.iter().copied());
            let mend = near.map(|near| format!("did you mean {near:?}?"));
            let expected = format!("one of {}", DMI_FIELDS.join(", "));
            node.problem(format!("the unknown field {name:?}"), expected, mend);
        } else if let Some(value) = point::label(&node, HARDWARE_CHARS_MAX) {
            dmi.insert(name, value);
        }
    }
    let names = texts(&table, "device_tree");
    table.finish();
    Identity {
        dmi,
        device_tree: names,
    }
}

/// A device file; a link to one, such as those that udev makes, will do.
fn device(node: &Node<'_>) -> Option<std::path::PathBuf> {
    let path = node.path()?;
    if path.starts_with("/dev") && path.components().count() > 2 {
        Some(path)
    } else {
        node.wrong("a device file under /dev", None)
    }
}

/// `[[serial]]`, or the older `[serial]` with the ports' names as keys.
fn serial(root: &Table<'_>) -> BTreeMap<String, SerialPort> {
    let Some(node) = root.get("serial") else {
        return BTreeMap::new();
    };
    if node.is_table() {
        return serial_by_name(&node);
    }
    let mut ports: BTreeMap<String, SerialPort> = BTreeMap::new();
    for entry in entries(&node) {
        let Some(table) = entry.table() else { continue };
        let name_node = table.need("name", "the port's name, such as \"com1\"");
        let name = name_node.as_ref().and_then(point::plain_name);
        let port = serial_port(&table, &ports);
        table.finish();
        let (Some(node), Some(name), Some(port)) = (name_node, name, port) else {
            continue;
        };
        match ports.entry(name) {
            Entry::Vacant(place) => {
                place.insert(port);
            }
            Entry::Occupied(_) => {
                node.wrong::<()>("a name of its own", None);
            }
        }
    }
    ports
}

fn serial_port(table: &Table<'_>, before: &BTreeMap<String, SerialPort>) -> Option<SerialPort> {
    let path = table.need("path", "a device file such as \"/dev/ttyS0\"");
    let device = path.as_ref().and_then(device);
    if let (Some(node), Some(device)) = (&path, &device)
        && let Some((other, _)) = before.iter().find(|(_, port)| port.device == *device)
    {
        let expected = format!("a device file of its own: {other:?} has this one");
        node.wrong::<()>(expected, None);
    }
    let modes = table.get("modes");
    let modes = modes.map_or_else(Vec::new, |node| choices(&node, SerialMode::NAMES));
    let rs485_node = table.get("rs485");
    let rs485 = rs485_node
        .as_ref()
        .and_then(|node| node.choice(Rs485::NAMES));
    if let (Some(node), Some(_)) = (&rs485_node, rs485)
        && !modes.contains(&SerialMode::Rs485)
    {
        let mend = Some("add \"rs485\" to modes, or remove rs485 = …".to_owned());
        node.wrong::<()>("none: modes does not name \"rs485\"", mend);
    }
    Some(SerialPort {
        device: device?,
        modes,
        rs485,
        driver: hardware(table, "driver"),
        note: table.get("note").and_then(|node| long(&node)),
    })
}

fn serial_by_name(node: &Node<'_>) -> BTreeMap<String, SerialPort> {
    let mut ports = BTreeMap::new();
    for (name, node) in node.table().iter().flat_map(Table::named) {
        let Some(port) = node.table() else { continue };
        let path = port.need("device", "a device file such as \"/dev/ttyS0\"");
        let path = path.and_then(|node| device(&node));
        let switched = port.get("rs485").and_then(|node| node.boolean());
        port.finish();
        let switched = switched == Some(true);
        if let Some(device) = path {
            let port = SerialPort {
                device,
                modes: switched.then_some(SerialMode::Rs485).into_iter().collect(),
                rs485: switched.then_some(Rs485::Kernel),
                driver: None,
                note: None,
            };
            ports.insert(name, port);
        }
    }
    ports
}

fn nics(root: &Table<'_>) -> Vec<Nic> {
    let mut all = tables(root, "nic");
    all.truncate(ENTRIES_MAX);
    let nic = |table: &Table<'_>| {
        let label = table.need("label", "the port's name on the case");
        let nic = Nic {
            label: label
                .and_then(|node| point::label(&node, HARDWARE_CHARS_MAX))
                .unwrap_or_default(),
            name: hardware(table, "name"),
            driver: hardware(table, "driver"),
        };
        table.finish();
        nic
    };
    all.iter().map(nic).collect()
}
