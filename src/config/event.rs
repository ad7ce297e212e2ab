//! Owns: reading the event sources of one machine file.
//! May call: reader, point, machine's helpers.
//! Never: accept a source that could tear an item, acknowledge in a command's registers, or guess silently.

use super::machine::{POLL_MS_MIN, claim, claim_read, too_many, unique};
use super::point::{self, Claim};
use super::reader::{Node, Table, tables};
use crate::core::numbering::UNSTATED_STEP_MAX;
use crate::core::spec::{
    CounterSpec, DataPoint, DataType, EventClass, EventKind, EventSource, HandshakeSpec, Numbering,
    RingSpec, Scalar,
};
use crate::core::time::TTL_MS_MAX;
use rust_decimal::prelude::ToPrimitive;

/// Most entries of a device's ring.
pub const RING_ENTRIES_MAX: u16 = 4_096;
/// Most data values of one item or entry.
pub const DATA_POINTS_MAX: usize = 64;

/// What the machine's file says that its sources need.
pub(super) struct Context {
    /// Nothing may be written, so nothing can be acknowledged.
    pub(super) read_only: bool,
    /// Who commands the machine, if it is not this gateway.
    pub(super) other_owner: Option<String>,
    /// Most registers in one read.
    pub(super) registers_max: u16,
}

#[derive(Clone, Copy)]
enum Source {
    OnChange,
    Counter,
    Handshake,
    Ring,
}

pub(super) fn sources<'a>(
    root: &Table<'a>,
    context: &Context,
    claims: &mut Vec<Claim<'a>>,
    warnings: &mut Vec<String>,
) -> Vec<EventSource> {
    let mut events: Vec<EventSource> = Vec::new();
    let entries = tables(root, "event");
    too_many(root, "event", entries.len());
    for table in &entries {
        let node = table.need(
            "source",
            "\"on_change\", \"counter\", \"handshake\" or \"ring\"",
        );
        let source = node.as_ref().and_then(|node| {
            node.choice(&[
                ("on_change", Source::OnChange),
                ("counter", Source::Counter),
                ("handshake", Source::Handshake),
                ("ring", Source::Ring),
            ])
        });
        let (Some(source), Some(node)) = (source, node) else {
            continue;
        };
        let event_type = event_type(table, &events);
        let class = table.get("class").and_then(|node| {
            node.choice(&[
                ("business", EventClass::Business),
                ("telemetry", EventClass::Telemetry),
            ])
        });
        let poll = table
            .get("poll")
            .and_then(|n| n.duration(POLL_MS_MIN, TTL_MS_MAX));
        let what = event_type.clone().unwrap_or_default();
        let poll_ms = poll.unwrap_or(1_000);
        let kind = match source {
            Source::OnChange => on_change(table, &what, poll_ms, claims),
            Source::Counter => counter(table, &what, poll_ms, claims, warnings),
            Source::Handshake => handshake(table, &node, &what, poll_ms, context, claims),
            Source::Ring => ring(table, &what, poll_ms, context, claims),
        };
        table.finish();
        if let (Some(event_type), Some(kind)) = (event_type, kind) {
            events.push(EventSource {
                event_type,
                class: class.unwrap_or(EventClass::Business),
                kind,
            });
        }
    }
    events
}

fn event_type(table: &Table<'_>, events: &[EventSource]) -> Option<String> {
    let node = table.need("type", "the event's type, such as \"piece.good\"")?;
    let name = point::local_name(&node)?;
    unique(&node, &name, events.iter().map(|e| e.event_type.as_str()));
    for own in ["operation.", "source."] {
        if name.starts_with(own) {
            node.wrong::<()>(
                format!("a type that does not begin with {own:?}, the gateway's own"),
                None,
            );
        }
    }
    Some(name)
}

fn unit(table: &Table<'_>) -> Option<String> {
    let node = table.get("unit");
    node.and_then(|n| point::label(&n, point::NAME_CHARS_MAX))
}

fn on_change<'a>(
    table: &Table<'a>,
    what: &str,
    poll_ms: u64,
    claims: &mut Vec<Claim<'a>>,
) -> Option<EventKind> {
    let at = point::scalar(table, "data_type");
    let unit = unit(table);
    let deadband = table.get("deadband").and_then(|node| deadband(&node));
    let sentinels = table.get("no_value").and_then(|node| node.list());
    let at = at?;
    claim_read(claims, &format!("event {what:?}"), table, Some(at));
    let sentinels = sentinels.unwrap_or_default();
    Some(EventKind::OnChange {
        at,
        unit,
        deadband: deadband.unwrap_or(0.0),
        no_value: sentinels
            .iter()
            .filter_map(|n| point::value(n, at.data_type))
            .collect(),
        poll_ms,
    })
}

fn deadband(node: &Node<'_>) -> Option<f64> {
    let value = node.decimal()?;
    if value.is_sign_negative() {
        return node.wrong("0 or more", None);
    }
    value.to_f64()
}

fn counter<'a>(
    table: &Table<'a>,
    what: &str,
    poll_ms: u64,
    claims: &mut Vec<Claim<'a>>,
    warnings: &mut Vec<String>,
) -> Option<EventKind> {
    let at = point::scalar(table, "data_type");
    let unit = unit(table);
    let most = at.map_or(u64::MAX, |at| greatest(at.data_type).unwrap_or(u64::MAX));
    let count = |key: &'static str, min: u64, max: u64| {
        let node = table.get(key)?;
        let number = node.integer(min.into(), max.into())?;
        u64::try_from(number).ok()
    };
    let wraps_after = count("wraps_after", 1, most).unwrap_or(most);
    let max_step = count("max_step", 1, wraps_after / 2);
    let reset_to = count("reset_to", 0, wraps_after).unwrap_or(0);
    if max_step.is_none() && !table.has("max_step") {
        warnings.push(format!(
            "event {what:?}: no max_step, the most it can count in one cycle: where the count has gone down, a wrap or \
             pieces since a reset are believed up to {UNSTATED_STEP_MAX}, and no jump upwards is ever doubted"
        ));
    }
    let at = at?;
    claim_read(claims, &format!("event {what:?}"), table, Some(at));
    if greatest(at.data_type).is_none() {
        let node = table.get("data_type").or_else(|| table.get("read"))?;
        return node.wrong("a count: data_type \"u16\", \"u32\" or \"u64\"", None);
    }
    Some(EventKind::Counter(CounterSpec {
        at,
        unit,
        wraps_after,
        reset_to,
        max_step,
        poll_ms,
    }))
}

/// The greatest count of a type that can hold one.
fn greatest(data_type: DataType) -> Option<u64> {
    match data_type {
        DataType::U16 => Some(u16::MAX.into()),
        DataType::U32 => Some(u32::MAX.into()),
        DataType::U64 => Some(u64::MAX),
        _ => None,
    }
}

/// `numbers_from` and `numbers_to`, of numbers of this type.
fn numbering(table: &Table<'_>, data_type: DataType) -> Numbering {
    let most = u32::try_from(greatest(data_type).unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
    let number = |key: &'static str, min: u32| {
        let number = table.get(key)?.integer(min.into(), most.into())?;
        u32::try_from(number).ok()
    };
    let first = number("numbers_from", 0).unwrap_or(1);
    let last = number("numbers_to", first.saturating_add(1)).unwrap_or(most);
    Numbering { first, last }
}

/// A u16 or u32 that numbers items.
fn number_place(node: &Node<'_>, wide_only: bool) -> Option<Scalar> {
    let at = point::short_scalar(node, DataType::U32)?;
    let fits = match at.data_type {
        DataType::U32 => true,
        DataType::U16 => !wide_only,
        _ => false,
    };
    if fits {
        return Some(at);
    }
    let expected = if wide_only { "a u32" } else { "a u16 or u32" };
    node.wrong(format!("{expected} in holding or input registers"), None)
}

fn handshake<'a>(
    table: &Table<'a>,
    source: &Node<'a>,
    what: &str,
    poll_ms: u64,
    context: &Context,
    claims: &mut Vec<Claim<'a>>,
) -> Option<EventKind> {
    if context.read_only {
        source.problem(
            "a handshake at a machine with read_only = true",
            "a source that is only read: an acknowledgement is a write",
            Some("remove read_only, or leave this [[event]] out".into()),
        );
    }
    if let Some(owner) = &context.other_owner {
        source.problem(
            format!("a handshake at a machine that {owner:?} owns"),
            "a source that is only read: an acknowledgement is a write, and only the owner writes",
            Some("take these events at the owner, or leave this [[event]] out".into()),
        );
    }
    let bit = |key: &'static str, expected: &str| {
        let node = table.need(key, expected)?;
        Some((point::short_scalar(&node, DataType::Bool)?, node))
    };
    let ready = bit(
        "ready",
        "the bit that the device sets when item and data stand",
    );
    let ack = bit(
        "ack",
        "the bit that the gateway sets once the event is durable",
    );
    let item = table.need("item", "where the device's own number of the item stands");
    let item = item.and_then(|node| Some((number_place(&node, false)?, node)));
    let numbering = numbering(
        table,
        item.as_ref().map_or(DataType::U32, |(at, _)| at.data_type),
    );
    let data = data(table, what, claims);
    for (name, place) in [("ready bit", &ready), ("ack", &ack)] {
        let Some((at, node)) = place else { continue };
        if at.data_type != DataType::Bool {
            node.wrong::<()>(
                "a bit: a coil, or a register that is 0 or 1 (type \"bool\")",
                None,
            );
        }
        claim(
            claims,
            &format!("the {name} of event {what:?}"),
            node,
            Some(*at),
        );
    }
    let ((ready, _), (ack, ack_node), (item, item_node)) = (ready?, ack?, item?);
    claim(
        claims,
        &format!("the item number of event {what:?}"),
        &item_node,
        Some(item),
    );
    if !ack.address.area().is_writable() {
        return ack_node.wrong("a coil or a holding register, as it is written", None);
    }
    Some(EventKind::Handshake(HandshakeSpec {
        ready,
        ack,
        item,
        numbering,
        data,
        poll_ms,
    }))
}

/// `data = [{ name = …, read = …, type = …, unit = … }, …]`
fn data<'a>(table: &Table<'a>, what: &str, claims: &mut Vec<Claim<'a>>) -> Vec<DataPoint> {
    let mut points: Vec<DataPoint> = Vec::new();
    for entry in data_tables(table) {
        let name = super::machine::named(
            &entry,
            "the value's name",
            points.iter().map(|p| p.name.as_str()),
        );
        let at = point::scalar(&entry, "type");
        let unit = unit(&entry);
        entry.finish();
        if let (Some(name), Some(at)) = (name, at) {
            let claimed = format!("{name:?} of event {what:?}");
            claim_read(claims, &claimed, &entry, Some(at));
            points.push(DataPoint { name, at, unit });
        }
    }
    points
}

fn data_tables<'a>(table: &Table<'a>) -> Vec<Table<'a>> {
    let entries = tables(table, "data");
    if entries.len() > DATA_POINTS_MAX
        && let Some(node) = table.get("data")
    {
        node.problem(
            format!("{} values", entries.len()),
            format!("at most {DATA_POINTS_MAX}"),
            None,
        );
    }
    entries
}

fn ring<'a>(
    table: &Table<'a>,
    what: &str,
    poll_ms: u64,
    context: &Context,
    claims: &mut Vec<Claim<'a>>,
) -> Option<EventKind> {
    let head = table.need("head", "where the number of the newest entry stands (u32)");
    let head = head.and_then(|node| Some((number_place(&node, true)?, node)));
    let base = table.need("base", "the first register of slot 0");
    let base = base.and_then(|node| Some((point::address(&node)?, node)));
    let entries = table.need("entries", "how many slots the ring has");
    let entries = entries.and_then(|n| n.integer(2, RING_ENTRIES_MAX.into()));
    let words = table.need(
        "words",
        "how many registers an entry takes, its number included",
    );
    let words = words.and_then(|n| n.integer(2, context.registers_max.into()));
    let numbering = numbering(table, DataType::U32);
    let choices = [("newest", false), ("oldest", true)];
    let start = table.get("start").and_then(|node| node.choice(&choices));
    let words = words.and_then(|words| u16::try_from(words).ok());
    let data = ring_data(table, words);
    let (head, head_node) = head?;
    claim(
        claims,
        &format!("the head of event {what:?}"),
        &head_node,
        Some(head),
    );
    let (base, base_node) = base?;
    let (entries, words) = (u16::try_from(entries?).ok()?, words?);
    if base.area().is_bits() {
        return base_node.wrong("a holding or input register, or a word device", None);
    }
    let last = base.area().last();
    if base
        .plus(u32::from(entries) * u32::from(words) - 1)
        .is_none()
    {
        let expected =
            format!("room for {entries} entries of {words} registers; the last is {last}");
        return base_node.wrong(expected, None);
    }
    for slot in 0..entries {
        let at = Scalar {
            address: base.plus(u32::from(slot) * u32::from(words))?,
            data_type: DataType::Text(words * 2),
            word_order: head.word_order,
        };
        let claimed = format!("slot {slot} of event {what:?}");
        claim(claims, &claimed, &base_node, Some(at));
    }
    Some(EventKind::Ring(RingSpec {
        head,
        base,
        entries,
        words,
        numbering,
        from_oldest: start.unwrap_or(false),
        data,
        poll_ms,
    }))
}

/// `data = [{ name = …, word = 2, type = …, unit = … }, …]`
fn ring_data(table: &Table<'_>, words: Option<u16>) -> Vec<(u16, DataPoint)> {
    let mut points: Vec<(u16, DataPoint)> = Vec::new();
    for entry in data_tables(table) {
        let name = super::machine::named(
            &entry,
            "the value's name",
            points.iter().map(|(_, p)| p.name.as_str()),
        );
        let node = entry.need(
            "word",
            "the entry's word it begins at, counted from 0; 0 and 1 are its number",
        );
        let word = node
            .as_ref()
            .and_then(|n| n.integer(2, i128::from(words.unwrap_or(u16::MAX)) - 1))
            .and_then(|word| u16::try_from(word).ok());
        let type_node = entry.get("type");
        let data_type = type_node
            .as_ref()
            .map_or(Some(DataType::U16), point::data_type);
        let word_order = point::word_order(&entry);
        let unit = unit(&entry);
        entry.finish();
        let (Some(name), Some(word), Some(data_type)) = (name, word, data_type) else {
            continue;
        };
        let end = u32::from(word) + u32::from(data_type.registers());
        if words.is_some_and(|words| end > u32::from(words))
            && let Some(node) = &node
        {
            let width = data_type.registers();
            let expected = format!("room for its {width} registers within the entry's words");
            node.wrong::<()>(expected, None);
        }
        let at = Scalar {
            address: point::within(entry.doc, word),
            data_type,
            word_order,
        };
        points.push((word, DataPoint { name, at, unit }));
    }
    points
}
