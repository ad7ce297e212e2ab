//! Owns: reading the command policy table, and holding every row against its class (POL).
//! May call: reader, point, machine's helpers; core's table of classes.
//! Never: let a row be laxer than its class without `i_accept`, or laxer than the rules at all.

use super::machine::{claim, named, too_many};
use super::point::{self, Claim};
use super::reader::{Node, Table, show_duration, tables};
use crate::core::intent::{RawValue, check_value, type_range};
use crate::core::mailbox::PARAMETER_WORDS_MAX;
use crate::core::policy::{
    ClassDefaults, Waiting, class_defaults, default_completion, default_verify,
};
use crate::core::spec::{
    Action, Address, ArgSpec, Class, Completion, DataType, DoneSpec, GateSpec, MailboxSpec,
    ModbusArea, OnRestart, Origin, ReplaceRule, Row, Scalar, Verify,
};
use crate::core::time::TTL_MS_MAX;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Most registers in one write (MODBUS Application Protocol V1.1b3, 6.12).
pub const WRITE_REGISTERS_MAX: usize = 123;
/// Most coils in one write (6.11).
pub const WRITE_COILS_MAX: usize = 1_968;
/// Most operations of one command that a row may let wait.
pub const MAX_QUEUED_MAX: u32 = 1_000;

/// What rows refer to.
pub(super) struct Context<'c> {
    pub(super) gate: &'c GateSpec,
    pub(super) mailbox: Option<&'c MailboxSpec>,
    pub(super) registers_max: u16,
}

/// Reads every `[[command]]`.
pub(super) fn rows<'a>(
    root: &Table<'a>,
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
    warnings: &mut Vec<String>,
) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let entries = tables(root, "command");
    too_many(root, "command", entries.len());
    for table in &entries {
        let name = named(
            table,
            "the command's name",
            rows.iter().map(|r| r.name.as_str()),
        );
        let Some(class) = class(table) else {
            continue;
        };
        let name = name.unwrap_or_default();
        rows.extend(row(table, name, class, context, claims, warnings));
    }
    rows
}

fn class(table: &Table<'_>) -> Option<Class> {
    let all = [
        Class::Query,
        Class::AbsoluteSet,
        Class::RelativeAction,
        Class::ModeChange,
        Class::RecipeWrite,
    ];
    let choices = all.map(|class| (class.name(), class));
    table
        .need("class", "what kind of thing the command does")?
        .choice(&choices)
}

/// One row under construction: what it may accept, and where its cells came from.
struct Draft<'t, 'a> {
    table: &'t Table<'a>,
    class: Class,
    defaults: ClassDefaults,
    i_accept: Option<String>,
    accepted: RefCell<bool>,
    origins: RefCell<BTreeMap<String, Origin>>,
}

impl<'a> Draft<'_, 'a> {
    /// The row's value, or else the default; notes which.
    fn cell<T>(&self, key: &str, value: Option<T>, default: T) -> T {
        let origin = if value.is_some() {
            Origin::Row
        } else {
            Origin::ClassDefault
        };
        self.origins.borrow_mut().insert(key.to_owned(), origin);
        value.unwrap_or(default)
    }

    /// Something laxer than the class: allowed only with `i_accept` (POL-01).
    fn lax(&self, node: &Node<'a>, expected: &str) {
        if self.i_accept.is_some() {
            self.accepted.replace(true);
        } else {
            node.problem(
                format!(
                    "{}, laxer than the class {}",
                    node.describe(),
                    self.class.name()
                ),
                expected,
                Some("or add i_accept = \"…\" naming the device contract that justifies it".into()),
            );
        }
    }
}

fn row<'a>(
    table: &Table<'a>,
    name: String,
    class: Class,
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
    warnings: &mut Vec<String>,
) -> Option<Row> {
    refuse_safety(table);
    let draft = Draft {
        table,
        class,
        defaults: class_defaults(class),
        i_accept: table
            .get("i_accept")
            .and_then(|node| point::label(&node, 400)),
        accepted: RefCell::new(false),
        origins: RefCell::default(),
    };
    let args = args(table);
    let action = action(table, class, &args, context, claims);
    let queueable = queueable(&draft);
    let ttl_ms = ttl(&draft);
    let max_queued = max_queued(&draft);
    let (replace, merge_latest) = giving_way(&draft);
    let precondition = precondition(&draft, context);
    let on_restart = {
        let choices = [("expire", OnRestart::Expire), ("hold", OnRestart::Hold)];
        let given = table
            .get("on_restart")
            .and_then(|node| node.choice(&choices));
        draft.cell("on_restart", given, draft.defaults.on_restart)
    };
    let timeout = table
        .get("completion_timeout")
        .and_then(|n| n.duration(100, TTL_MS_MAX));
    let completion_timeout_ms = draft.cell(
        "completion_timeout",
        timeout,
        draft.defaults.completion_timeout_ms,
    );
    let interlocks = interlocks(&draft, context);
    let completion = action
        .as_ref()
        .map(|action| completion(&draft, action, context, claims));
    let verify = match (&action, &completion) {
        (Some(action), Some(completion)) => verify(&draft, action, completion),
        _ => Verify::Manual,
    };
    let device_contract_mailbox = device_contract(&draft, action.as_ref());
    for key in ["completion", "verify", "done", "request_id", "interlocks"] {
        table.get(key);
    }
    table.finish();
    if draft.i_accept.is_some() && !draft.accepted.take() {
        warnings.push(format!(
            "command {name:?}: i_accept justifies nothing, the row is not laxer than its class"
        ));
    }
    Some(Row {
        name,
        class,
        queueable,
        ttl_ms,
        max_queued,
        replace,
        precondition,
        on_restart,
        completion: completion?,
        completion_timeout_ms,
        verify,
        interlocks,
        args,
        action: action?,
        device_contract_mailbox,
        merge_latest,
        i_accept: draft.i_accept,
        origins: draft.origins.into_inner(),
    })
}

fn refuse_safety(table: &Table<'_>) {
    if let Some(node) = table.get("safety")
        && node.boolean() == Some(true)
    {
        node.problem(
            "safety = true",
            "no safety function here: stopping and protecting belong to the machine's own safety system",
            Some("remove this command; a gateway can be cut off at any moment".into()),
        );
    }
}

fn queueable(draft: &Draft<'_, '_>) -> bool {
    let node = draft.table.get("queueable");
    let given = node.as_ref().and_then(Node::boolean);
    let result = draft.cell("queueable", given, draft.defaults.queueable());
    let Some(node) = node.filter(|_| given == Some(true)) else {
        return result;
    };
    match draft.defaults.waiting {
        Waiting::AsNewest => {}
        Waiting::Never => node.problem(
            "queueable = true",
            format!(
                "false: a {} is refused at once while the link is down, it never waits",
                draft.class.name()
            ),
            Some("remove it; the caller decides anew when the machine is back".into()),
        ),
        waiting @ (Waiting::IfStated | Waiting::IfJustified) => {
            let stated = [("precondition", "\"config_version\""), ("ttl", "\"10s\"")];
            for (key, example) in stated {
                if !draft.table.has(key) {
                    node.problem(
                        format!("queueable = true without {key}"),
                        format!("{key} stated in the row, as what waits must say what it was meant for and how long"),
                        Some(format!("add {key} = {example}")),
                    );
                }
            }
            if waiting == Waiting::IfJustified {
                draft.lax(&node, "false");
            }
        }
    }
    result
}

fn ttl(draft: &Draft<'_, '_>) -> u64 {
    let node = draft.table.get("ttl");
    let given = node.as_ref().and_then(|node| node.duration(1, TTL_MS_MAX));
    if let (Some(node), Some(ms)) = (&node, given)
        && ms > draft.defaults.ttl_ms_max
    {
        let most = show_duration(draft.defaults.ttl_ms_max);
        draft.lax(node, &format!("at most {most}"));
    }
    draft.cell("ttl", given, draft.defaults.ttl_ms)
}

fn max_queued(draft: &Draft<'_, '_>) -> u32 {
    let node = draft.table.get("max_queued");
    let most = if draft.defaults.more_queued {
        MAX_QUEUED_MAX
    } else {
        draft.defaults.max_queued
    };
    let given = node.and_then(|node| node.integer(1, most.into()));
    let given = given.and_then(|number| u32::try_from(number).ok());
    draft.cell("max_queued", given, draft.defaults.max_queued)
}

/// `replace` and `duplicates`: whether one that waits may give way to a newer one.
fn giving_way(draft: &Draft<'_, '_>) -> (ReplaceRule, bool) {
    let table = draft.table;
    let rules = [
        ("never", ReplaceRule::Never),
        ("same_operator", ReplaceRule::SameOperator),
    ];
    let replace_node = table.get("replace");
    let replace = replace_node.as_ref().and_then(|node| node.choice(&rules));
    let duplicates_node = table.get("duplicates");
    let duplicates = duplicates_node
        .as_ref()
        .and_then(|n| n.choice(&[("merge", true), ("by_id", false)]));
    let rule = table.get("merge");
    let merge = duplicates == Some(true);
    match (&rule, &duplicates_node) {
        (Some(node), _) => {
            node.choice(&[("latest", ())]);
            if !merge {
                node.wrong::<()>("merge only beside duplicates = \"merge\"", None);
            }
        }
        (None, Some(node)) if merge => {
            node.wrong::<()>(
                "a named rule beside it",
                Some("add merge = \"latest\"".into()),
            );
        }
        (None, _) => {}
    }
    if !draft.defaults.replaceable {
        let allowed = format!("none: a {} never gives way to another", draft.class.name());
        let lax_replace = replace_node.filter(|_| replace == Some(ReplaceRule::SameOperator));
        for node in lax_replace
            .iter()
            .chain(duplicates_node.iter().filter(|_| merge))
        {
            node.wrong::<()>(&allowed, Some("remove it".into()));
        }
    }
    (
        draft.cell("replace", replace, draft.defaults.replace),
        draft.cell("duplicates", duplicates, false),
    )
}

fn precondition(draft: &Draft<'_, '_>, context: &Context<'_>) -> bool {
    let node = draft.table.get("precondition");
    let choices = [("config_version", true), ("none", false)];
    let given = node.as_ref().and_then(|node| node.choice(&choices));
    let result = draft.cell("precondition", given, draft.defaults.precondition);
    if let (Some(node), Some(false), true) = (&node, given, draft.defaults.precondition) {
        draft.lax(node, "\"config_version\"");
    }
    if result && context.gate.config_version.is_none() {
        let mend = Some("add config_version = \"holding:…\" to [gate]".to_owned());
        let expected = "a [gate] that reads the device's config_version to compare with";
        match &node {
            Some(node) => node.problem("a precondition with nothing to check it", expected, mend),
            None => draft.table.report(
                &format!("{}.precondition", draft.table.path),
                "the class's precondition with nothing to check it",
                expected,
                mend,
            ),
        }
    }
    result
}

fn interlocks(draft: &Draft<'_, '_>, context: &Context<'_>) -> Vec<String> {
    let all: Vec<String> = context
        .gate
        .interlocks
        .iter()
        .map(|i| i.name.clone())
        .collect();
    let node = draft.table.get("interlocks");
    let given = node.as_ref().and_then(|node| {
        let mut names = Vec::new();
        for item in node.list()? {
            let Some(name) = item.text() else { continue };
            if all.iter().any(|known| known == name) {
                names.push(name.to_owned());
            } else {
                let near = crate::core::intent::nearest(name, all.iter().map(String::as_str));
                let mend = near.map(|near| format!("did you mean {near:?}?"));
                item.wrong::<()>("the name of an interlock of [gate]", mend);
            }
        }
        Some(names)
    });
    if let (Some(node), Some(names)) = (&node, &given)
        && draft.class.has_side_effect()
        && all.iter().any(|name| !names.contains(name))
    {
        draft.lax(node, "every interlock of [gate]");
    }
    // A reading changes nothing, so nothing need hold for it.
    let default = if draft.class.has_side_effect() {
        all
    } else {
        Vec::new()
    };
    draft.cell("interlocks", given, default)
}

fn args(table: &Table<'_>) -> Vec<ArgSpec> {
    let Some(named) = table.get("args").and_then(|node| node.table()) else {
        return Vec::new();
    };
    let args = named.named().into_iter();
    args.filter_map(|(name, node)| arg(name, &node)).collect()
}

fn arg(name: String, node: &Node<'_>) -> Option<ArgSpec> {
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
    if let Some((low, high)) = type_range(spec.data_type) {
        for (node, bound) in [(&min_node, min), (&max_node, max)] {
            if let (Some(node), Some(bound)) = (node, bound)
                && (bound < low || bound > high)
            {
                let name = spec.data_type.name();
                node.wrong::<()>(format!("a bound inside {name}: {low} to {high}"), None);
            }
        }
    }
    if let (Some(node), Some(low), Some(high)) = (&max_node, min, max)
        && low > high
    {
        node.wrong::<()>(format!("at least min, which is {low}"), None);
    }
    spec.default = default_node.and_then(|node| default(&node, &spec));
    Some(spec)
}

fn default(node: &Node<'_>, spec: &ArgSpec) -> Option<crate::core::spec::ArgValue> {
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

/// Exactly one of `read`, `write`, `mailbox`.
fn action<'a>(
    table: &Table<'a>,
    class: Class,
    args: &[ArgSpec],
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<Action> {
    let (read, write, mailbox) = (table.get("read"), table.get("write"), table.get("mailbox"));
    let request_id_node = table.get("request_id");
    let request_id = request_id_node
        .as_ref()
        .and_then(|n| n.choice(&[("append", ())]));
    if let Some(node) = request_id_node.filter(|_| write.is_none()) {
        node.wrong::<()>("request_id only beside write", None);
    }
    match (class, read, write, mailbox) {
        (Class::Query, Some(node), None, None) => {
            if let Some(node) = table.get("args") {
                node.wrong::<()>("no args: a query reads what the row names", None);
            }
            let points = read_points(&node, context, claims);
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

fn read_points<'a>(
    node: &Node<'a>,
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Option<Vec<(String, Scalar)>> {
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
            if at.data_type.registers() > context.registers_max {
                let most = context.registers_max;
                table.report(
                    &table.path,
                    &at.data_type.name(),
                    &format!("at most {most} registers"),
                    None,
                );
            }
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
    let (area, offset) = point::address(node)?;
    if !area.is_writable() {
        let expected = "coil or holding: the protocol cannot write to the other tables";
        return node.wrong(expected, None);
    }
    let mixed = area == ModbusArea::Coil
        && (request_id || args.iter().any(|arg| arg.data_type != DataType::Bool));
    if mixed {
        node.problem(
            "coils and registers in one command",
            "one write frame, as half of two could be applied",
            mailbox_mend(context),
        );
        return None;
    }
    let words: usize = args
        .iter()
        .map(|a| usize::from(a.data_type.registers()))
        .sum();
    let words = words + if request_id { 2 } else { 0 };
    let most = if area == ModbusArea::Coil {
        WRITE_COILS_MAX
    } else {
        WRITE_REGISTERS_MAX
    };
    if words == 0 {
        let mend = Some("add args; for a fixed value, an argument with a default".to_owned());
        return node.wrong("args: without any there is nothing to write", mend);
    }
    if words > most {
        node.problem(
            format!("{words} words to write"),
            format!("at most {most}, one write frame, as half of two could be applied"),
            mailbox_mend(context),
        );
        return None;
    }
    if usize::from(offset) + words > 65_536 {
        return node.wrong(
            format!("room for {words} words: the last place is 65535"),
            None,
        );
    }
    claim_args(node, args, area, offset, claims);
    Some(Action::Write {
        start: Address::Modbus { area, offset },
        request_id,
    })
}

fn claim_args<'a>(
    node: &Node<'a>,
    args: &[ArgSpec],
    area: ModbusArea,
    offset: u16,
    claims: &mut Vec<Claim<'a>>,
) {
    let mut at = offset;
    for arg in args {
        let scalar = Scalar {
            address: Address::Modbus { area, offset: at },
            data_type: arg.data_type,
            word_order: arg.word_order,
        };
        claim(
            claims,
            &format!("argument {:?}", arg.name),
            node,
            Some(scalar),
        );
        at = at.saturating_add(arg.data_type.registers());
    }
}

fn mailbox_mend(context: &Context<'_>) -> Option<String> {
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

fn completion<'a>(
    draft: &Draft<'_, 'a>,
    action: &Action,
    context: &Context<'_>,
    claims: &mut Vec<Claim<'a>>,
) -> Completion {
    let names = ["reply", "mailbox", "event", "query", "none"];
    let node = draft.table.get("completion");
    let name = node
        .as_ref()
        .and_then(|node| node.choice(&names.map(|name| (name, name))));
    let done_node = draft.table.get("done");
    let done = done_node
        .as_ref()
        .and_then(|node| done(node, context, claims));
    let default = default_completion(draft.class, action);
    if let Some(node) = done_node
        .as_ref()
        .filter(|_| !matches!(name, Some("event" | "query")))
    {
        node.wrong::<()>("done only beside completion = \"event\" or \"query\"", None);
    }
    let Some((node, name)) = node.zip(name) else {
        return draft.cell("completion", None, default);
    };
    let is_mailbox = matches!(action, Action::Mailbox { .. });
    if is_mailbox != (name == "mailbox") {
        let expected = match action {
            Action::Mailbox { .. } => "\"mailbox\", as the command goes there",
            _ => "another: this command does not go to the mailbox",
        };
        node.wrong::<()>(expected, Some("remove it".into()));
        return default;
    }
    let found = match name {
        "reply" => {
            if !draft.defaults.reply_completes {
                draft.lax(&node, "\"mailbox\", \"event\", \"query\" or \"none\": a matched write reply says that the device took it, not that it did it");
            }
            Completion::Reply
        }
        "mailbox" => Completion::Mailbox,
        "none" => Completion::None,
        _ => {
            if !matches!(
                action,
                Action::Write {
                    request_id: true,
                    ..
                }
            ) {
                node.wrong::<()>(
                    "a write that carries the request id, so that the device can report it",
                    Some("add request_id = \"append\"".into()),
                );
            }
            if done_node.is_none() {
                node.wrong::<()>(
                    "done beside it: where the device says what it finished",
                    Some("add done = { id = \"holding:…\", result = \"holding:…\" }".into()),
                );
            }
            let Some(done) = done else { return default };
            if name == "event" {
                Completion::Event(done)
            } else {
                Completion::Query(done)
            }
        }
    };
    draft.cell("completion", Some(found), default)
}

fn done<'a>(
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
        if area != other || span > u32::from(context.registers_max) {
            return node.wrong(
                "registers near the id's, so that one request reads both",
                None,
            );
        }
        result = Some(at);
    }
    Some(DoneSpec { id, result })
}

fn verify(draft: &Draft<'_, '_>, action: &Action, completion: &Completion) -> Verify {
    let all = [
        Verify::Mailbox,
        Verify::ResultQuery,
        Verify::Event,
        Verify::Readback,
        Verify::Manual,
    ];
    let node = draft.table.get("verify");
    let given = node
        .as_ref()
        .and_then(|node| node.choice(&all.map(|v| (v.name(), v))));
    if let (Some(node), Some(given)) = (&node, given) {
        let missing = match given {
            Verify::Mailbox if !matches!(action, Action::Mailbox { .. }) => {
                Some("a command that goes to the mailbox: mailbox = { opcode = … }")
            }
            Verify::ResultQuery | Verify::Event
                if !matches!(completion, Completion::Event(_) | Completion::Query(_)) =>
            {
                Some("completion = \"event\" or \"query\", with done = { … }, to look at")
            }
            Verify::Readback if !matches!(action, Action::Write { .. }) => {
                Some("a command that writes, so that there is something to read back")
            }
            _ => None,
        };
        if let Some(expected) = missing {
            node.wrong::<()>(expected, None);
        }
    }
    draft.cell(
        "verify",
        given,
        default_verify(draft.class, action, completion),
    )
}

fn device_contract(draft: &Draft<'_, '_>, action: Option<&Action>) -> bool {
    let node = draft.table.get("device_contract");
    let given = node
        .as_ref()
        .and_then(|n| n.choice(&[("mailbox", true), ("none", false)]));
    if let (Some(node), Some(true)) = (&node, given)
        && !matches!(action, Some(Action::Mailbox { .. }))
    {
        let expected = "a command that goes to the mailbox, as only that knows request ids";
        node.wrong::<()>(expected, None);
    }
    draft.cell("device_contract", given, false)
}
