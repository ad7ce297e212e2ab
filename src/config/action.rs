//! Owns: reading what a command does: its arguments, what it writes or reads, where the device reports it.
//! May call: reader, point, scatter, machine's helpers; core's argument check.
//! Never: let a command need more than one write frame (POL-11).

use super::command::Context;
use super::machine::{claim, claim_read, named};
use super::point::{self, Claim};
use super::problem::Dialect;
use super::reader::{Node, Table};
use super::scatter;
use crate::core::intent::{RawValue, check_value, type_range};
use crate::core::mailbox::PARAMETER_WORDS_MAX;
use crate::core::melsec::Remote;
use crate::core::place::Notation;
use crate::core::spec::{
    Action, Address, ArgSpec, ArgValue, Class, DataType, DoneSpec, Scalar, WordOrder,
};
use rust_decimal::Decimal;

/// An argument, and the place of its own where it has one.
pub(super) struct Arg<'a> {
    pub(super) spec: ArgSpec,
    pub(super) place: Option<Node<'a>>,
}

pub(super) fn args<'a>(table: &Table<'a>) -> Vec<Arg<'a>> {
    let Some(named) = table.get("args").and_then(|node| node.table()) else {
        return Vec::new();
    };
    let args = named.named().into_iter();
    args.filter_map(|(name, node)| arg(name, &node)).collect()
}

fn arg<'a>(name: String, node: &Node<'a>) -> Option<Arg<'a>> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || name.chars().count() > point::NAME_CHARS_MAX || !name.chars().all(allowed)
    {
        node.problem(
            format!("the name {name:?}"),
            "letters, digits, _ and -",
            None,
        );
        return None;
    }
    let table = node.table()?;
    let type_node = table.need("type", "a data type such as \"u16\"");
    let data_type = type_node.and_then(|node| point::data_type(&node));
    let word_order = point::word_order(&table);
    let unit_node = table.get("unit");
    let unit = unit_node
        .as_ref()
        .and_then(|n| point::label(n, point::NAME_CHARS_MAX));
    let (min_node, max_node) = (table.get("min"), table.get("max"));
    let min = min_node.as_ref().and_then(Node::decimal);
    let max = max_node.as_ref().and_then(Node::decimal);
    let default_node = table.get("default");
    let secret = table.get("secret").and_then(|node| node.boolean());
    let place = table.get("write");
    table.finish();
    let mut spec = ArgSpec {
        name,
        data_type: data_type?,
        word_order,
        unit,
        min,
        max,
        default: None,
        secret: secret.unwrap_or(false),
    };
    let numeric = !matches!(spec.data_type, DataType::Bool | DataType::Text(_));
    for node in [&unit_node, &min_node, &max_node].into_iter().flatten() {
        if !numeric {
            node.wrong::<()>(
                format!("no unit, min or max for a {}", spec.data_type.name()),
                None,
            );
        }
    }
    let bounds = [(min_node.as_ref(), min), (max_node.as_ref(), max)];
    // One mistake, one message: what else does not fit follows from a wrong bound.
    if bounds_fit(&spec, bounds) {
        spec.default = default_node.and_then(|node| default(&node, &spec));
    }
    Some(Arg { spec, place })
}

/// Whether the bounds are inside the type, and in order.
fn bounds_fit(spec: &ArgSpec, bounds: [(Option<&Node<'_>>, Option<Decimal>); 2]) -> bool {
    let mut fit = true;
    if let Some((low, high)) = type_range(spec.data_type) {
        for (node, bound) in bounds {
            if let (Some(node), Some(bound)) = (node, bound)
                && (bound < low || bound > high)
            {
                let name = spec.data_type.name();
                node.wrong::<()>(format!("a bound inside {name}: {low} to {high}"), None);
                fit = false;
            }
        }
    }
    let [(_, min), (max_node, max)] = bounds;
    if let (true, Some(node), Some(low), Some(high)) = (fit, max_node, min, max)
        && low > high
    {
        node.wrong::<()>(format!("at least min, which is {low}"), None);
        fit = false;
    }
    fit
}

fn default(node: &Node<'_>, spec: &ArgSpec) -> Option<ArgValue> {
    if spec.secret {
        node.problem(
            "a default for a secret",
            "no secret in this file",
            Some("remove it".into()),
        );
        return None;
    }
    let raw = match (node.as_bool(), node.as_text(), node.number_text()) {
        (Some(bit), _, _) => RawValue::Bool(bit),
        (_, Some(text), _) => RawValue::Text(text.to_owned()),
        (_, _, Some(number)) => RawValue::Number(number),
        _ => return node.wrong("a number, a string, true or false", None),
    };
    match check_value(&raw, None, spec) {
        Ok(value) => Some(value),
        Err(error) => {
            node.problem(error.found, error.expected, None);
            None
        }
    }
}

/// Exactly one of `read`, `write`, `mailbox`, `remote`; or each argument has a `write` of its own.
pub(super) fn action<'a>(
    table: &Table<'a>,
    class: Class,
    args: &[Arg<'a>],
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<Action> {
    let (read, write, mailbox) = (table.get("read"), table.get("write"), table.get("mailbox"));
    let request_id_node = table.get("request_id");
    if let Some(own) = args.iter().find_map(|arg| arg.place.as_ref()) {
        let remote = table.get("remote");
        let beside = [&read, &write, &mailbox, &remote].into_iter().flatten();
        return match (class, beside.into_iter().next()) {
            (Class::Query, _) => own.wrong("no args: a query reads what the row names", None),
            (_, Some(other)) => other.wrong(
                "nothing beside arguments that each have a write of their own",
                Some("remove it, or write from the arguments".into()),
            ),
            (_, None) => scatter::action(own, request_id_node.as_ref(), args, context, claims),
        };
    }
    let args: Vec<ArgSpec> = args.iter().map(|arg| arg.spec.clone()).collect();
    let args = args.as_slice();
    let request_id = request_id_node
        .as_ref()
        .and_then(|n| n.choice(&[("append", ())]));
    if let Some(node) = request_id_node.filter(|_| write.is_none()) {
        node.wrong::<()>("request_id only beside write", None);
    }
    if let Some(node) = table.get("remote") {
        let beside = [&read, &write, &mailbox].into_iter().flatten().next();
        return remote_action(&node, beside, class, args);
    }
    match (class, read, write, mailbox) {
        (Class::Query, Some(node), None, None) => {
            if let Some(node) = table.get("args") {
                node.wrong::<()>("no args: a query reads what the row names", None);
            }
            let points = read_points(table, &node, claims);
            Some(Action::Read { points: points? })
        }
        (Class::Query, _, Some(node), _) | (Class::Query, _, _, Some(node)) => node.wrong(
            "read: a query never writes",
            Some("give the command another class".into()),
        ),
        (_, Some(node), _, _) if class != Class::Query => node.wrong(
            "write or mailbox: only a query reads",
            Some("use class = \"query\"".into()),
        ),
        (_, _, Some(node), None) => {
            write_action(&node, args, request_id.is_some(), context, claims)
        }
        (_, _, None, Some(node)) => mailbox_action(&node, args, context),
        (_, _, Some(_), Some(node)) => node.wrong("either write or mailbox", None),
        _ => {
            let (key, example) = match class {
                Class::Query => ("read", "read = \"holding:…\""),
                _ => (
                    "write",
                    "write = \"holding:…\", or mailbox = { opcode = … }",
                ),
            };
            let path = format!("{}.{key}", table.path);
            table.report(
                &path,
                "nothing",
                "what the command does",
                Some(format!("add {example}")),
            );
            None
        }
    }
}

/// `remote = "run"`: tells a MELSEC CPU, and looks at its operating state.
fn remote_action(
    node: &Node<'_>,
    beside: Option<&Node<'_>>,
    class: Class,
    args: &[ArgSpec],
) -> Option<Action> {
    let order = node.choice(&Remote::NAMES)?;
    if let Some(other) = beside {
        return other.wrong("nothing beside remote: one command does one thing", None);
    }
    if matches!(node.doc.dialect.get(), Dialect::Modbus) {
        return node.wrong(
            "write or mailbox: only a MELSEC CPU knows remote operations",
            None,
        );
    }
    if let Dialect::Melsec(Notation { one_c: true, .. }) = node.doc.dialect.get() {
        return node.wrong("write: 1C frames carry no remote operation here", None);
    }
    if class != Class::ModeChange {
        return node.wrong(
            "class = \"mode_change\" beside it",
            Some("a remote operation changes the mode of the CPU".into()),
        );
    }
    if !args.is_empty() {
        return node.wrong("no args beside it: the order says it all", None);
    }
    Some(Action::Remote { order })
}

/// One value, `read` with `type` and `word_order` beside it, or several, each a table with them.
fn read_points<'a>(
    row: &Table<'a>,
    node: &Node<'a>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<Vec<(String, Scalar)>> {
    if node.as_text().is_some() {
        let tags = claims.iter().filter(|claim| claim.what.starts_with("tag "));
        let tags: Vec<Scalar> = tags.map(|claim| claim.scalar).collect();
        let tag_at = |address| tags.iter().find(|tag| tag.address == address).copied();
        let at = point::scalar_like(row, "type", tag_at)?;
        claim(claims, "a query's read", node, Some(at));
        return Some(vec![("value".to_owned(), at)]);
    }
    if !node.is_array() {
        let at = point::short_scalar(node, DataType::U16)?;
        claim(claims, "a query's read", node, Some(at));
        return Some(vec![("value".to_owned(), at)]);
    }
    let mut points: Vec<(String, Scalar)> = Vec::new();
    for table in node.tables()? {
        let name = named(
            &table,
            "the value's name",
            points.iter().map(|(n, _)| n.as_str()),
        );
        let at = point::scalar(&table, "type");
        table.finish();
        if let (Some(name), Some(at)) = (name, at) {
            claim_read(claims, &format!("value {name:?}"), &table, Some(at));
            points.push((name, at));
        }
    }
    if points.is_empty() {
        return node.wrong("at least one value to read", None);
    }
    Some(points)
}

fn write_action<'a>(
    node: &Node<'a>,
    args: &[ArgSpec],
    request_id: bool,
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<Action> {
    let start = point::address(node)?;
    let area = start.area();
    if !area.is_writable() {
        let expected = "coil or holding: the protocol cannot write to the other tables";
        return node.wrong(expected, None);
    }
    if area.is_bits() && !bits_only(node, args, request_id, context) {
        return None;
    }
    let words: usize = args
        .iter()
        .map(|a| usize::from(a.data_type.registers()))
        .sum();
    let words = words + if request_id { 2 } else { 0 };
    let most = if area.is_bits() {
        context.reach.write_bits
    } else {
        context.reach.write_words
    };
    if words == 0 {
        let example = if area.is_bits() {
            "args = { on = { type = \"bool\", default = true } }; a caller may still send false"
        } else {
            "args = { value = { type = \"u16\" } }; where it is always 1: min = 1, max = 1, default = 1"
        };
        return node.wrong(
            "args beside it: without any there is nothing to write",
            Some(format!("add {example}")),
        );
    }
    if words > most {
        node.problem(
            format!("{words} words to write"),
            format!("at most {most}, one write frame, as half of two could be applied"),
            mailbox_mend(context),
        );
        return None;
    }
    if start.plus(words as u32 - 1).is_none() {
        let last = area.last();
        return node.wrong(
            format!("room for {words} words: the last place is {last}"),
            None,
        );
    }
    claim_args(node, args, request_id, start, claims);
    Some(Action::Write { start, request_id })
}

/// Refuses what a single bit cannot take.
fn bits_only(node: &Node<'_>, args: &[ArgSpec], request_id: bool, context: &Context<'_>) -> bool {
    let (bit, words) = match node.doc.dialect.get() {
        Dialect::Modbus => ("coil", "holding"),
        Dialect::Melsec(_) => ("bit device", "a word device such as D"),
    };
    let wide = args.iter().find(|arg| arg.data_type != DataType::Bool);
    let bits = args.iter().any(|arg| arg.data_type == DataType::Bool);
    match wide {
        None if !request_id => return true,
        Some(arg) if !bits && !request_id => node.problem(
            format!(
                "a {} for argument {:?} of type {}",
                bit,
                arg.name,
                arg.data_type.name()
            ),
            format!("a bool argument: a {bit} takes one bit"),
            Some(format!("give it type = \"bool\", or write to {words}")),
        ),
        _ => node.problem(
            format!("{bit}s and registers in one command"),
            "one write frame, as half of two could be applied",
            mailbox_mend(context),
        ),
    }
    false
}

fn claim_args<'a>(
    node: &Node<'a>,
    args: &[ArgSpec],
    request_id: bool,
    start: Address,
    claims: &mut Vec<Claim<'a>>,
) {
    let mut at = Some(start);
    let mut next = |what: &str, data_type: DataType, word_order: WordOrder| {
        let Some(address) = at else { return };
        at = address.plus(data_type.registers().into());
        let scalar = Scalar {
            address,
            data_type,
            word_order,
        };
        claim(claims, what, node, Some(scalar));
    };
    for arg in args {
        next(
            &format!("argument {:?}", arg.name),
            arg.data_type,
            arg.word_order,
        );
    }
    if request_id {
        next(
            "argument (the request id)",
            DataType::U32,
            args.last()
                .map_or(start.area().word_order(), |arg| arg.word_order),
        );
    }
}

pub(super) fn mailbox_mend(context: &Context<'_>) -> Option<String> {
    Some(match context.mailbox {
        Some(_) => "hand it to the mailbox: mailbox = { opcode = … }".to_owned(),
        None => "add [mailbox] and hand it over there: mailbox = { opcode = … }".to_owned(),
    })
}

fn mailbox_action(node: &Node<'_>, args: &[ArgSpec], context: &Context<'_>) -> Option<Action> {
    let table = node.table()?;
    let opcode = table.need("opcode", "the machine's number for it, 1 to 65535");
    let opcode = opcode.and_then(|node| node.integer(1, 65_535));
    table.finish();
    if context.mailbox.is_none() {
        node.problem(
            "a mailbox command without a mailbox",
            "a table [mailbox] in this file",
            Some("add [mailbox] with command = … and status = …".into()),
        );
    }
    let words: usize = args
        .iter()
        .map(|a| usize::from(a.data_type.registers()))
        .sum();
    if words > PARAMETER_WORDS_MAX {
        node.problem(
            format!("{words} parameter words"),
            format!("at most {PARAMETER_WORDS_MAX}, what the mailbox carries"),
            Some("use fewer or narrower arguments".into()),
        );
    }
    Some(Action::Mailbox {
        opcode: u16::try_from(opcode?).ok()?,
    })
}

pub(super) fn done<'a>(
    node: &Node<'a>,
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<DoneSpec> {
    let table = node.table()?;
    let id_node = table.need("id", "the registers (u32) of the last finished request id");
    let result_node = table.get("result");
    table.finish();
    let id_node = id_node?;
    let id = point::short_scalar(&id_node, DataType::U32)?;
    if id.data_type != DataType::U32 {
        return id_node.wrong("two registers, type \"u32\"", None);
    }
    claim(claims, "the finished request id", &id_node, Some(id));
    let mut result = None;
    if let Some(node) = &result_node {
        let at = point::short_scalar(node, DataType::U16)?;
        claim(claims, "the finished request's result", node, Some(at));
        let ((area, a), (other, b)) = (point::extent(&id), point::extent(&at));
        let span = a.end.max(b.end) - a.start.min(b.start);
        if area != other || span > u32::from(context.reach.read_words) {
            return node.wrong(
                "registers near the id's, so that one request reads both",
                None,
            );
        }
        result = Some(at);
    }
    Some(DoneSpec { id, result })
}
