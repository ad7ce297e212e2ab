//! Owns: reading one machine file.
//! May call: reader, point, command, event, check.
//! Never: know the other machines.

use super::link::{Reach, link};
use super::problem::{Doc, Problem};
use super::reader::{Node, Table, tables};
use super::{check, command, event, point};
use crate::board::BoardProfile;
use crate::core::spec::{
    Area, DataType, GateSpec, IdentityCheck, Interlock, MachineSpec, MailboxSpec, ModbusArea,
    ModeCheck, Scalar, Tag, TagGroup, WordOrder,
};
use crate::core::time::TTL_MS_MAX;
use point::Claim;
use std::path::Path;
use toml::de::DeTable;

/// Shortest polling period, in milliseconds.
pub const POLL_MS_MIN: u64 = 10;
/// Most tags, events, commands or groups of one machine.
pub const ENTRIES_MAX: usize = 2_000;
/// What the gateway file says that a machine file needs.
pub(super) struct Home<'a> {
    /// The gateway's name: owner by default.
    pub(super) gateway: &'a str,
    /// Knows what its serial ports are called; `None` where its profile has problems of its own.
    pub(super) board: Option<&'a BoardProfile>,
}

/// One machine, and what is odd about it without being wrong.
pub(super) struct Machine {
    pub(super) spec: MachineSpec,
    pub(super) warnings: Vec<String>,
}

/// Reads and checks one machine file.
pub(super) fn read(file: &Path, home: &Home<'_>) -> Result<Machine, Vec<Problem>> {
    check(&Doc::read(file)?, home)
}

/// The same of what is read already.
pub(super) fn check(doc: &Doc, home: &Home<'_>) -> Result<Machine, Vec<Problem>> {
    let entries = super::parse(doc)?;
    let machine = machine(doc, &entries, home);
    let problems = doc.take();
    match machine {
        Some(machine) if problems.is_empty() => Ok(machine),
        _ => Err(problems),
    }
}

fn machine<'a>(doc: &'a Doc, entries: &'a DeTable<'a>, home: &Home<'_>) -> Option<Machine> {
    let root = Table::root(doc, entries);
    super::schema(&root);
    let name_node = root.need("name", "the machine's name, also the source of its events");
    let name = name_node.and_then(|node| point::plain_name(&node));
    let owner = root.get("owner").map(|node| point::plain_name(&node));
    let read_only = root.get("read_only").and_then(|node| node.boolean());
    let link = link(&root, home.board);
    let mut claims = Vec::new();
    let gate = gate(&root, &mut claims);
    let reach = Reach::of(link.as_ref());
    let groups = groups(&root, &mut claims);
    let tags = tags(&root, &groups, &mut claims);
    let mut warnings = Vec::new();
    let other_owner = owner
        .clone()
        .flatten()
        .filter(|owner| owner != home.gateway);
    let context = event::Context {
        read_only: read_only == Some(true),
        other_owner,
        registers_max: reach.read_words,
    };
    let events = event::sources(&root, &context, &mut claims, &mut warnings);
    let mailbox = mailbox(&root);
    let commands = {
        let context = command::Context {
            gate: &gate,
            mailbox: mailbox.as_ref(),
            reach,
        };
        command::rows(&root, &context, &mut claims, &mut warnings)
    };
    root.finish();
    check::overlaps(&claims);
    check::acknowledgements(&claims);
    check::widths(&claims, reach.read_words);
    check::mailbox(&root, mailbox.as_ref(), &claims, reach.read_words);
    check::groups(&root, &groups, &tags, reach);
    let spec = MachineSpec {
        name: name?,
        owner: owner.flatten().unwrap_or_else(|| home.gateway.to_owned()),
        read_only: read_only.unwrap_or(false),
        link: link?,
        gate,
        tags,
        groups,
        events,
        commands,
        mailbox,
    };
    check::broadcast(&root, &spec);
    check::odd(&spec, home.gateway, &mut warnings);
    Some(Machine { spec, warnings })
}

fn gate<'a>(root: &Table<'a>, claims: &mut Vec<Claim<'a>>) -> GateSpec {
    let mut gate = GateSpec {
        age_ms_max: 5_000,
        ..GateSpec::default()
    };
    let Some(table) = root.get("gate").and_then(|node| node.table()) else {
        return gate;
    };
    if let Some(check) = table.get("identity").and_then(|node| node.table()) {
        if let Some((at, equals)) = condition(&check, "the gate's identity", claims) {
            gate.identity = Some(IdentityCheck { at, equals });
        }
        check.finish();
    }
    if let Some(node) = table.get("config_version") {
        let at = point::short_scalar(&node, DataType::U16);
        gate.config_version = at.filter(|at| whole(&node, at));
        claim(
            claims,
            "the gate's config_version",
            &node,
            gate.config_version,
        );
    }
    if let Some(check) = table.get("mode").and_then(|node| node.table()) {
        gate.mode = mode(&check, claims);
    }
    let interlocks = tables(&table, "interlocks");
    for check in &interlocks {
        let name = check.need("name", "such as \"door closed\"");
        let name = name.and_then(|node| Some((point::label(&node, point::NAME_CHARS_MAX)?, node)));
        let what = name.as_ref().map_or("an interlock", |(name, _)| name);
        let found = condition(check, &format!("interlock {what:?}"), claims);
        check.finish();
        if let (Some((name, node)), Some((at, equals))) = (name, found) {
            unique(
                &node,
                &name,
                gate.interlocks.iter().map(|i| i.name.as_str()),
            );
            gate.interlocks.push(Interlock { name, at, equals });
        }
    }
    if let Some(age) = table
        .get("max_age")
        .and_then(|n| n.duration(100, TTL_MS_MAX))
    {
        gate.age_ms_max = age;
    }
    table.finish();
    gate
}

fn condition<'a>(
    table: &Table<'a>,
    what: &str,
    claims: &mut Vec<Claim<'a>>,
) -> Option<(Scalar, crate::core::spec::Value)> {
    let at = point::scalar(table, "type");
    let equals = table.need("equals", "the value that must be read");
    let at = at?;
    claim_read(claims, what, table, Some(at));
    let equals = point::value(&equals?, at.data_type)?;
    Some((at, equals))
}

fn mode<'a>(table: &Table<'a>, claims: &mut Vec<Claim<'a>>) -> Option<ModeCheck> {
    let at = point::scalar(table, "type");
    let allowed = table.need("allowed", "an array of modes, such as [1]");
    table.finish();
    let (at, allowed) = (at?, allowed?);
    claim_read(claims, "the gate's mode", table, Some(at));
    whole(&table.get("read")?, &at).then_some(())?;
    let mut modes = Vec::new();
    for node in allowed.list()? {
        let value = point::value(&node, at.data_type).and_then(|value| value.as_int());
        modes.extend(value.and_then(|value| i64::try_from(value).ok()));
    }
    if modes.is_empty() {
        return allowed.wrong("at least one mode in which commands may be sent", None);
    }
    Some(ModeCheck { at, allowed: modes })
}

/// Whether a scalar is a whole number.
fn whole(node: &Node<'_>, at: &Scalar) -> bool {
    let fits = !matches!(
        at.data_type,
        DataType::F32 | DataType::F64 | DataType::Text(_)
    );
    if !fits {
        node.problem(at.data_type.name(), "an integer type", None);
    }
    fits
}

fn groups<'a>(root: &Table<'a>, claims: &mut Vec<Claim<'a>>) -> Vec<TagGroup> {
    let mut groups: Vec<TagGroup> = Vec::new();
    for table in tables(root, "group") {
        let name = named(
            &table,
            "the group's name",
            groups.iter().map(|g| g.name.as_str()),
        );
        let guard_node = table.get("guard");
        let guard = guard_node.as_ref().and_then(|node| {
            let at = point::short_scalar(node, DataType::U16);
            claim(claims, "a group's guard", node, at);
            at
        });
        table.finish();
        groups.extend(name.map(|name| TagGroup { name, guard }));
    }
    groups
}

fn tags<'a>(root: &Table<'a>, groups: &[TagGroup], claims: &mut Vec<Claim<'a>>) -> Vec<Tag> {
    let mut tags: Vec<Tag> = Vec::new();
    let entries = tables(root, "tag");
    too_many(root, "tag", entries.len());
    for table in &entries {
        let name = named(
            table,
            "the tag's name",
            tags.iter().map(|t| t.name.as_str()),
        );
        let at = point::scalar(table, "type");
        let unit = table
            .get("unit")
            .and_then(|n| point::label(&n, point::NAME_CHARS_MAX));
        let poll = table
            .get("poll")
            .and_then(|n| n.duration(POLL_MS_MIN, TTL_MS_MAX));
        let sentinels = table.get("no_value").and_then(|node| node.list());
        let group = table
            .get("group")
            .and_then(|node| known_group(&node, groups));
        table.finish();
        let (Some(name), Some(at)) = (name, at) else {
            continue;
        };
        claim_read(claims, &format!("tag {name:?}"), table, Some(at));
        let values = sentinels.unwrap_or_default();
        tags.push(Tag {
            name,
            at,
            unit,
            poll_ms: poll.unwrap_or(1_000),
            no_value: values
                .iter()
                .filter_map(|n| point::value(n, at.data_type))
                .collect(),
            group,
        });
    }
    tags
}

fn known_group(node: &Node<'_>, groups: &[TagGroup]) -> Option<String> {
    let name = point::local_name(node)?;
    if groups.iter().any(|group| group.name == name) {
        return Some(name);
    }
    let near = crate::core::intent::nearest(&name, groups.iter().map(|g| g.name.as_str()));
    let mend = near.map_or_else(
        || format!("add [[group]] with name = {name:?}"),
        |near| format!("did you mean {near:?}?"),
    );
    node.wrong("the name of a [[group]] of this file", Some(mend))
}

fn mailbox(root: &Table<'_>) -> Option<MailboxSpec> {
    let table = root.get("mailbox")?.table()?;
    let block = |key: &'static str, words: usize, writable: bool| {
        let node = table.need(key, "the first register of the block")?;
        let address = point::address(&node)?;
        let (area_fits, expected) = match address.area() {
            Area::Melsec(device) => (!device.kind.is_bits(), "words, such as D1000"),
            Area::Modbus(area) if writable => (area == ModbusArea::Holding, "a holding register"),
            Area::Modbus(area) => (
                matches!(area, ModbusArea::Holding | ModbusArea::Input),
                "a holding or input register",
            ),
        };
        if !area_fits {
            return node.wrong(expected, None);
        }
        if address.plus(words as u32 - 1).is_none() {
            return node.wrong(format!("room for the {words} words of the block"), None);
        }
        Some(address)
    };
    let command = block("command", crate::core::mailbox::COMMAND_WORDS, true);
    let status = block("status", crate::core::mailbox::STATUS_WORDS, false);
    let stated = point::word_order(&table);
    // The blocks are laid out by the mailbox, whatever the device does with its own values.
    let word_order = match table.has("word_order") {
        true => stated,
        false => WordOrder::HighFirst,
    };
    table.finish();
    Some(MailboxSpec {
        command: command?,
        status: status?,
        word_order,
    })
}

/// `name`, checked and unique.
pub(super) fn named<'n>(
    table: &Table<'_>,
    expected: &str,
    taken: impl Iterator<Item = &'n str>,
) -> Option<String> {
    let node = table.need("name", expected)?;
    let name = point::local_name(&node)?;
    unique(&node, &name, taken);
    Some(name)
}

/// Refuses a name that is taken.
pub(super) fn unique<'n>(node: &Node<'_>, name: &str, mut taken: impl Iterator<Item = &'n str>) {
    if taken.any(|other| other == name) {
        node.wrong::<()>(
            "a name that is not used above",
            Some("rename one of the two".into()),
        );
    }
}

pub(super) fn too_many(root: &Table<'_>, key: &'static str, count: usize) {
    if count > ENTRIES_MAX
        && let Some(node) = root.get(key)
    {
        node.problem(
            format!("{count} entries"),
            format!("at most {ENTRIES_MAX}"),
            None,
        );
    }
}

/// Notes what stands on some registers.
pub(super) fn claim<'a>(
    claims: &mut Vec<Claim<'a>>,
    what: &str,
    node: &Node<'a>,
    scalar: Option<Scalar>,
) {
    claims.extend(scalar.map(|scalar| Claim {
        what: what.to_owned(),
        node: node.clone(),
        scalar,
    }));
}

/// As [`claim`], for a table with `read`.
pub(super) fn claim_read<'a>(
    claims: &mut Vec<Claim<'a>>,
    what: &str,
    table: &Table<'a>,
    scalar: Option<Scalar>,
) {
    if let Some(node) = table.get("read") {
        claim(claims, what, &node, scalar);
    }
}
