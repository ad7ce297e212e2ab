//! Owns: checks that look at several parts of a configuration at once.
//! May call: reader, point; core types.
//! Never: read a value itself.

use super::link::Reach;
use super::point::{self, Claim, overlap};
use super::reader::{Node, Table, show_duration};
use crate::core::mailbox::{COMMAND_WORDS, STATUS_WORDS};
use crate::core::serial::Way;
use crate::core::spec::{
    Address, Area, Completion, DataType, MachineSpec, MailboxSpec, Tag, TagGroup, Verify,
};
use std::mem::discriminant;
use std::ops::Range;

/// Time for a person to notice, look and send again, in milliseconds (CAP-03).
pub const MANUAL_RETRY_MS: u64 = 10 * 60 * 1000;

/// Refuses registers that are read or written as two different things.
pub(super) fn overlaps(claims: &[Claim<'_>]) {
    for (index, late) in claims.iter().enumerate() {
        let (area, range) = late.extent();
        let clash = claims[..index].iter().find(|early| {
            let (other, taken) = early.extent();
            area == other && overlap(&range, &taken) && !same(early, late)
        });
        if let Some(early) = clash {
            let (_, taken) = early.extent();
            late.node.problem(
                format!(
                    "{} as {} on {}, which overlaps {} as {} on {}",
                    late.what,
                    late.scalar.data_type.name(),
                    span(area, &range),
                    early.what,
                    early.scalar.data_type.name(),
                    span(area, &taken),
                ),
                "registers of its own, or the same address, type and word order",
                None,
            );
        }
    }
}

/// What a command writes must not be able to acknowledge, or to present, an item; nor may two sources share a bit.
pub(super) fn acknowledgements(claims: &[Claim<'_>]) {
    let of_handshake = |claim: &&Claim<'_>| {
        ["the ack of event", "the ready bit of event"]
            .iter()
            .any(|own| claim.what.starts_with(own))
    };
    for (index, bit) in claims
        .iter()
        .enumerate()
        .filter(|(_, claim)| of_handshake(claim))
    {
        let (area, range) = bit.extent();
        for (other_index, other) in claims.iter().enumerate() {
            let (other_area, taken) = other.extent();
            let writes = other.what.starts_with("argument");
            let meets = area == other_area && overlap(&range, &taken);
            // Of two bits the later is told.
            let shared = of_handshake(&other) && other_index < index;
            if meets && (writes || shared) {
                let late = if writes { other } else { bit };
                let early = if writes { bit } else { other };
                late.node.problem(
                    format!("{} on {}, which is {}", late.what, span(area, &taken), early.what),
                    "a place of its own: whoever writes there could acknowledge an item that is not durable",
                    None,
                );
            }
        }
    }
}

/// Refuses values that one read request cannot hold, so that none is torn (EVT-06).
pub(super) fn widths(claims: &[Claim<'_>], registers_max: u16) {
    for claim in claims
        .iter()
        .filter(|claim| !claim.what.starts_with("argument"))
    {
        let registers = claim.scalar.data_type.registers();
        if registers > registers_max {
            claim.node.problem(
                format!(
                    "{} as {}, {registers} registers",
                    claim.what,
                    claim.scalar.data_type.name()
                ),
                format!("at most {registers_max} registers, so that one request reads it whole"),
                Some("use a shorter type, or raise read_registers_max if the device allows".into()),
            );
        }
    }
}

fn same(a: &Claim<'_>, b: &Claim<'_>) -> bool {
    let wide = a.scalar.data_type.registers() > 1;
    a.scalar.address == b.scalar.address
        && a.scalar.data_type == b.scalar.data_type
        && (!wide || a.scalar.word_order == b.scalar.word_order)
}

fn span(area: Area, range: &Range<u32>) -> String {
    match area {
        Area::Modbus(table) if range.end - range.start > 1 => {
            format!("{}:{}-{}", table.name(), range.start, range.end - 1)
        }
        _ => area.range(range.start, range.end - range.start),
    }
}

fn block(address: Address, words: usize) -> (Area, Range<u32>) {
    let start = address.number();
    let end = start + u32::try_from(words).unwrap_or(u32::MAX - start);
    (address.area(), start..end)
}

/// The two blocks belong to the mailbox's own protocol alone.
pub(super) fn mailbox(
    root: &Table<'_>,
    spec: Option<&MailboxSpec>,
    claims: &[Claim<'_>],
    registers_max: u16,
) {
    let Some(spec) = spec else {
        return;
    };
    if usize::from(registers_max) < STATUS_WORDS
        && let Some(node) = root.get("mailbox")
    {
        node.problem(
            format!("a mailbox with read_registers_max = {registers_max}"),
            format!("at least {STATUS_WORDS}, so that one request reads a block whole"),
            None,
        );
    }
    let (command_area, command) = block(spec.command, COMMAND_WORDS);
    let (status_area, status) = block(spec.status, STATUS_WORDS);
    if command_area == status_area
        && overlap(&command, &status)
        && let Some(node) = root.get("mailbox")
    {
        node.problem(
            format!(
                "a command block on {} over a status block on {}",
                span(command_area, &command),
                span(status_area, &status)
            ),
            format!("two blocks apart: {COMMAND_WORDS} and {STATUS_WORDS} registers"),
            None,
        );
    }
    let blocks = [
        ("command", command_area, command),
        ("status", status_area, status),
    ];
    for claim in claims {
        let (area, range) = claim.extent();
        // What the gateway itself moves there is no event of the machine's.
        let readable = matches!(claim.scalar.data_type, DataType::U16 | DataType::U32)
            && !claim.what.starts_with("argument")
            && !claim.what.contains("event \"");
        for (name, block_area, taken) in &blocks {
            if area == *block_area && overlap(&range, taken) && !readable {
                claim.node.problem(
                    format!(
                        "{} as {} on {}, inside the mailbox's {name} block on {}",
                        claim.what,
                        claim.scalar.data_type.name(),
                        span(area, &range),
                        span(area, taken)
                    ),
                    "registers outside the mailbox, or a u16 or u32 that is only read and is no [[event]] source",
                    None,
                );
            }
        }
    }
}

/// A group that one request cannot hold needs a guard, and a group needs tags.
pub(super) fn groups(root: &Table<'_>, groups: &[TagGroup], tags: &[Tag], reach: Reach) {
    let nodes = root.get("group").and_then(|node| node.list());
    for table in nodes.unwrap_or_default().iter().filter_map(Node::table) {
        let Some(node) = table.get("name") else {
            continue;
        };
        let name = node.as_text().unwrap_or_default();
        let Some(group) = groups.iter().find(|group| group.name == name) else {
            continue;
        };
        let members = tags.iter().filter(|tag| tag.group.as_deref() == Some(name));
        let extents: Vec<_> = members.map(|tag| point::extent(&tag.at)).collect();
        let Some((area, first)) = extents.first() else {
            node.wrong::<()>("at least one tag with this group", None);
            continue;
        };
        let low = extents
            .iter()
            .map(|e| e.1.start)
            .min()
            .unwrap_or(first.start);
        let high = extents.iter().map(|e| e.1.end).max().unwrap_or(first.end);
        let most = if area.is_bits() {
            reach.read_bits
        } else {
            u32::from(reach.read_words)
        };
        let one_request = extents.iter().all(|e| e.0 == *area) && high - low <= most;
        if !one_request && group.guard.is_none() {
            node.problem(
                format!("group {name:?}, which one read request cannot hold"),
                format!("tags of one table within {most} places, or a guard"),
                Some(
                    "add guard = \"holding:…\", a value that the device changes with the group"
                        .into(),
                ),
            );
        }
    }
}

/// What is odd without being wrong.
pub(super) fn odd(spec: &MachineSpec, gateway: &str, warnings: &mut Vec<String>) {
    let has_effects = spec.commands.iter().any(|row| row.class.has_side_effect());
    let mut warn = |text: String| warnings.push(text);
    if spec.owner != gateway {
        warn(format!(
            "commanded by {:?}, so not connected to from here: commands are answered with not_owner, tags are not read",
            spec.owner
        ));
    }
    if spec.owner != gateway && !spec.events.is_empty() {
        warn(format!(
            "its [[event]] sources are not read here: {:?} takes them, if its own files say so",
            spec.owner
        ));
    }
    if has_effects && spec.gate.identity.is_none() {
        warn("no gate identity: commands cannot tell a replaced device or program".into());
    }
    if let Some(path) = changing_name(spec) {
        warn(format!(
            "{path} may be another adapter after a restart: name it by /dev/serial/by-id or by-path, and give the \
             gate an identity"
        ));
    }
    if has_effects && spec.gate.interlocks.is_empty() {
        warn("no interlocks in the gate".into());
    }
    if spec.read_only && has_effects {
        warn("read_only: every command that changes the machine is refused".into());
    }
    let (_, reconnect_ms_max) = spec.link.reconnect_ms();
    for row in &spec.commands {
        if row.queueable && row.ttl_ms < reconnect_ms_max {
            warn(format!(
                "command {:?}: ttl {} is shorter than reconnect_max {}: one that waits may expire although \
                 the device is back",
                row.name,
                show_duration(row.ttl_ms),
                show_duration(reconnect_ms_max)
            ));
        }
        if row.class.has_side_effect() && row.completion == Completion::None {
            warn(format!(
                "command {:?}: completion is none, so it always ends as outcome_unknown; let the device report \
                 what it did: completion = \"event\", or the mailbox",
                row.name
            ));
        }
    }
    let polls = spec.tags.iter().map(|tag| tag.poll_ms);
    let watches = spec.events.iter().map(|event| event.kind.poll_ms());
    if let Some(fastest) = polls.chain(watches).min()
        && fastest < spec.link.timeout_ms()
    {
        let timeout = show_duration(spec.link.timeout_ms());
        let poll = show_duration(fastest);
        warn(format!(
            "polls every {poll} but a reply may take {timeout}: some will be skipped"
        ));
    }
}

/// Unit 0 is all devices on the line, and none of them answers: it can only be written to (F031).
pub(super) fn broadcast(root: &Table<'_>, spec: &MachineSpec) {
    if !spec.link.is_broadcast() {
        return;
    }
    let gate = &spec.gate;
    let gated = gate.identity.is_some()
        || gate.config_version.is_some()
        || gate.mode.is_some()
        || !gate.interlocks.is_empty();
    let mut reads = Vec::new();
    reads.extend(gated.then(|| "the gate".to_owned()));
    reads.extend(spec.mailbox.is_some().then(|| "the mailbox".to_owned()));
    reads.extend(spec.tags.iter().map(|tag| format!("tag {:?}", tag.name)));
    reads.extend(
        spec.events
            .iter()
            .map(|e| format!("event {:?}", e.event_type)),
    );
    for row in &spec.commands {
        let (name, done) = (&row.name, &row.completion);
        if !row.action.is_write() {
            reads.push(format!("command {name:?}, which reads"));
        } else if !matches!(done, Completion::None | Completion::Reply) {
            reads.push(format!("command {name:?}, whose completion is read"));
        } else if row.verify != Verify::Manual {
            reads.push(format!(
                "command {name:?}, whose verify is {:?}",
                row.verify.name()
            ));
        }
    }
    if !reads.is_empty() {
        root.report(
            "link.unit",
            &format!("unit 0 (broadcast) with {}", reads.join(", ")),
            "only commands that write one frame, with verify = \"manual\": nothing answers a broadcast, so nothing \
             can be read",
            Some("give the reading parts a machine of their own with the device's unit".into()),
        );
    }
}

/// What is wrong with two machines on one line, in plain words.
pub(super) fn line_conflict(one: &MachineSpec, other: &MachineSpec) -> Option<String> {
    let line = |spec: &MachineSpec| {
        let on_line = spec.link.on_line()?;
        match on_line.way {
            Way::Serial(line) => Some((line.clone(), on_line.echo)),
            Way::Tcp { .. } => None,
        }
    };
    let ((one_line, one_echo), (line, echo)) = (line(one)?, line(other)?);
    let same_protocol = discriminant(&one.link) == discriminant(&other.link);
    let same = same_protocol && one_line == line && one_echo == echo;
    let what = match same_protocol {
        true => "other settings",
        false => "another protocol",
    };
    (one_line.path == line.path && !same)
        .then(|| format!("{what} for {} than machine {:?} has", line.path, other.name))
}

/// A name that the kernel gives in the order in which adapters are found.
fn changing_name(spec: &MachineSpec) -> Option<&str> {
    let Way::Serial(line) = spec.link.on_line()?.way else {
        return None;
    };
    let changing = ["/dev/ttyUSB", "/dev/ttyACM"];
    let named = changing.iter().any(|name| line.path.starts_with(name));
    named.then_some(line.path.as_str())
}

/// The longest that a request to any of the machines can be under way, and whose it is (CAP-03).
pub(super) fn longest_journey(machines: &[MachineSpec]) -> Option<(u64, String)> {
    let journeys = machines.iter().flat_map(|machine| {
        let timeout_ms = machine.link.timeout_ms();
        let (_, reconnect_ms_max) = machine.link.reconnect_ms();
        machine.commands.iter().map(move |row| {
            let ms = [timeout_ms, row.ttl_ms, row.completion_timeout_ms, reconnect_ms_max];
            let total = ms.iter().fold(MANUAL_RETRY_MS, |sum, ms| sum.saturating_add(*ms));
            let text = format!(
                "{} {}: timeout {} + validity {} + completion {} + reconnection {} + retry by hand {}",
                machine.name,
                row.name,
                show_duration(timeout_ms),
                show_duration(row.ttl_ms),
                show_duration(row.completion_timeout_ms),
                show_duration(reconnect_ms_max),
                show_duration(MANUAL_RETRY_MS),
            );
            (total, text)
        })
    });
    journeys.max_by_key(|(ms, _)| *ms)
}
