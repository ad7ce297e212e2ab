//! Owns: reading one machine file.
//! May call: reader, point, command, event, check.
//! Never: know the other machines.

use super::problem::{Doc, Problem};
use super::reader::{Node, Table, tables};
use super::{check, command, event, point};
use crate::core::spec::{
    Address, DataType, GateSpec, IdentityCheck, Interlock, LinkSpec, MachineSpec, MailboxSpec,
    ModbusArea, ModbusTcp, ModeCheck, Scalar, Tag, TagGroup,
};
use crate::core::time::TTL_MS_MAX;
use point::Claim;
use rust_decimal::prelude::ToPrimitive;
use std::net::Ipv4Addr;
use std::path::Path;
use toml::de::DeTable;

/// Shortest polling period, in milliseconds.
pub const POLL_MS_MIN: u64 = 10;
/// Longest period or wait on a link, in milliseconds.
pub const LINK_MS_MAX: u64 = 3_600_000;
/// Longest wait between two connections unless the file says otherwise, in milliseconds: shorter than what
/// waits for the device is usually valid. A device that refuses connections while it keeps a dead one's
/// slot wants more (F141).
pub const RECONNECT_MS_MAX_DEFAULT: u64 = 5_000;
/// Most tags, events, commands or groups of one machine.
pub const ENTRIES_MAX: usize = 2_000;
/// Most registers in one read (MODBUS Application Protocol V1.1b3, 6.3).
pub const READ_REGISTERS_MAX: u16 = 125;

/// What the gateway file says that a machine file needs.
pub(super) struct Home<'a> {
    /// The gateway's name: owner by default.
    pub(super) gateway: &'a str,
}

/// One machine, and what is odd about it without being wrong.
pub(super) struct Machine {
    pub(super) spec: MachineSpec,
    pub(super) warnings: Vec<String>,
}

/// Reads and checks one machine file.
pub(super) fn read(file: &Path, home: &Home<'_>) -> Result<Machine, Vec<Problem>> {
    let doc = Doc::read(file)?;
    let entries = super::parse(&doc)?;
    let machine = machine(&doc, &entries, home);
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
    let link = link(&root);
    let mut claims = Vec::new();
    let gate = gate(&root, &mut claims);
    let registers_max = match &link {
        Some(LinkSpec::ModbusTcp(tcp)) => tcp.read_registers_max,
        None => READ_REGISTERS_MAX,
    };
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
        registers_max,
    };
    let events = event::sources(&root, &context, &mut claims, &mut warnings);
    let mailbox = mailbox(&root);
    let commands = {
        let context = command::Context {
            gate: &gate,
            mailbox: mailbox.as_ref(),
            registers_max,
        };
        command::rows(&root, &context, &mut claims, &mut warnings)
    };
    root.finish();
    check::overlaps(&claims);
    check::acknowledgements(&claims);
    check::widths(&claims, registers_max);
    check::mailbox(&root, mailbox.as_ref(), &claims, registers_max);
    check::groups(&root, &groups, &tags, registers_max);
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
    check::odd(&spec, home.gateway, &mut warnings);
    Some(Machine { spec, warnings })
}

const LATER_PROTOCOLS: &[&str] = &[
    "modbus-rtu",
    "modbus-rtu-over-tcp",
    "mc-3e",
    "mc-4e",
    "mc-3c",
    "mc-4c",
];

fn link(root: &Table<'_>) -> Option<LinkSpec> {
    let table = root.need("link", "a table [link]")?.table()?;
    let protocol = table.need("protocol", "\"modbus-tcp\"")?;
    if protocol
        .as_text()
        .is_some_and(|p| LATER_PROTOCOLS.contains(&p))
    {
        protocol.problem(
            protocol.describe(),
            "\"modbus-tcp\", the only protocol that this version speaks",
            Some("reach the device through a Modbus TCP gateway, or leave the machine out".into()),
        );
        return None;
    }
    protocol.choice(&[("modbus-tcp", ())])?;
    let address = table.need("address", "host and port, such as \"10.0.0.5:502\"");
    let place = address.and_then(|node| host_and_port(&node));
    let unit = table.need(
        "unit",
        "the unit id, an integer from 0 to 255 (255 for most devices on Ethernet)",
    );
    let unit = unit.and_then(|node| node.integer(0, 255));
    let answering = table.get("answering_unit").and_then(|n| n.integer(0, 255));
    let ms = |key: &'static str, min: u64, default: u64| {
        let node = table.get(key);
        node.and_then(|node| node.duration(min, LINK_MS_MAX))
            .unwrap_or(default)
    };
    let timeout_ms = ms("timeout", 10, 1_000);
    let reconnect_ms_min = ms("reconnect_min", 10, 500);
    let reconnect_ms_max = ms(
        "reconnect_max",
        10,
        RECONNECT_MS_MAX_DEFAULT.max(reconnect_ms_min),
    );
    let heartbeat_ms = ms("heartbeat", 100, 10_000);
    let registers = table.get("read_registers_max");
    let registers = registers.and_then(|node| node.integer(1, READ_REGISTERS_MAX.into()));
    if reconnect_ms_max < reconnect_ms_min
        && let Some(node) = table.get("reconnect_max")
    {
        node.wrong::<()>("at least reconnect_min", None);
    }
    table.finish();
    let (host, port) = place?;
    Some(LinkSpec::ModbusTcp(ModbusTcp {
        host,
        port,
        unit: byte(unit?),
        answering_unit: answering.map(byte),
        timeout_ms,
        read_registers_max: registers
            .and_then(|n| n.to_u16())
            .unwrap_or(READ_REGISTERS_MAX),
        reconnect_ms_min,
        reconnect_ms_max,
        heartbeat_ms,
    }))
}

fn byte(number: i128) -> u8 {
    u8::try_from(number).unwrap_or_default()
}

fn host_and_port(node: &Node<'_>) -> Option<(String, u16)> {
    let expected = "host and port, such as \"10.0.0.5:502\"";
    let text = node.text()?;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => (host, port),
        _ => return node.wrong(expected, Some(format!("write {:?}", format!("{text}:502")))),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let fits = !bare.is_empty()
        && bare.len() <= 253
        && bare
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'));
    // A name's last label is never all digits (RFC 1123, 2.1): this was meant as an address.
    let last = bare.rsplit('.').next().unwrap_or_default();
    let numeric = !last.is_empty() && last.chars().all(|c| c.is_ascii_digit());
    if fits && numeric && !bare.contains(':') && bare.parse::<Ipv4Addr>().is_err() {
        let mend = "an IPv4 address is four numbers from 0 to 255, without leading zeros";
        return node.wrong(expected, Some(mend.to_owned()));
    }
    match port.parse::<u16>() {
        Ok(port) if fits && port != 0 => Some((bare.to_owned(), port)),
        _ => node.wrong(expected, None),
    }
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
        let (area, offset) = point::address(&node)?;
        let area_fits = area == ModbusArea::Holding || (!writable && area == ModbusArea::Input);
        if !area_fits {
            let expected = if writable {
                "a holding register"
            } else {
                "a holding or input register"
            };
            return node.wrong(expected, None);
        }
        if usize::from(offset) + words > 65_536 {
            return node.wrong(format!("room for the {words} words of the block"), None);
        }
        Some(Address::Modbus { area, offset })
    };
    let command = block("command", crate::core::mailbox::COMMAND_WORDS, true);
    let status = block("status", crate::core::mailbox::STATUS_WORDS, false);
    let word_order = point::word_order(&table);
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
