//! Owns: reading the command policy table, and holding every row against its class (POL).
//! May call: reader, point, action, machine's helpers; core's table of classes.
//! Never: let a row be laxer than its class without `i_accept`, or laxer than the rules at all.

use super::action;
use super::link::Reach;
use super::machine::{named, too_many};
use super::point::{self, Claim};
use super::reader::{Node, Table, show_duration, tables};
use crate::core::policy::{
    ClassDefaults, Waiting, class_defaults, default_completion, default_verify,
};
use crate::core::spec::{
    Action, Class, Completion, GateSpec, MailboxSpec, OnRestart, Origin, ReplaceRule, Row, Verify,
};
use crate::core::time::TTL_MS_MAX;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Most operations of one command that a row may let wait.
pub const MAX_QUEUED_MAX: u32 = 1_000;

/// What rows refer to.
pub(super) struct Context<'c> {
    pub(super) gate: &'c GateSpec,
    pub(super) mailbox: Option<&'c MailboxSpec>,
    pub(super) reach: Reach,
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
    let args = action::args(table);
    let action = action::action(table, class, &args, context, claims);
    let args = args.into_iter().map(|arg| arg.spec).collect();
    let queueable = queueable(&draft);
    let ttl_ms = ttl(&draft);
    let max_queued = max_queued(&draft);
    let stop = stop(&draft);
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
        stop,
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

/// A stop that cannot be delivered is said so at once (POL-03).
fn stop(draft: &Draft<'_, '_>) -> bool {
    let Some(node) = draft.table.get("stop") else {
        return false;
    };
    let given = node.boolean();
    if given == Some(true) && draft.class != Class::ModeChange {
        node.problem(
            "stop = true",
            "only in a command of class mode_change",
            None,
        );
    }
    draft.cell("stop", given, false)
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
        let items = node.list()?;
        for item in &items {
            let Some(name) = item.text() else { continue };
            if all.iter().any(|known| known == name) {
                names.push(name.to_owned());
            } else {
                let near = crate::core::intent::nearest(name, all.iter().map(String::as_str));
                let mend = near.map(|near| format!("did you mean {near:?}?"));
                item.wrong::<()>("the name of an interlock of [gate]", mend);
            }
        }
        // A wrong name is one mistake: that the right one is missing follows from it.
        (names.len() == items.len()).then_some(names)
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
        .and_then(|node| action::done(node, context, claims));
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
            let seen = matches!(action, Action::Remote { .. });
            if !draft.defaults.reply_completes && !seen {
                draft.lax(&node, "\"mailbox\", \"event\", \"query\" or \"none\": a matched write reply says that the device took it, not that it did it");
            }
            Completion::Reply
        }
        "mailbox" => Completion::Mailbox,
        "none" => Completion::None,
        _ => {
            if !action.writes_request_id() {
                node.wrong::<()>(
                    "a write that carries the request id, so that the device can report it",
                    Some(match action {
                        Action::Scatter { .. } => {
                            "add request_id = \"…\", a place of its own".into()
                        }
                        _ => "add request_id = \"append\"".into(),
                    }),
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
            Verify::Readback if !action.is_write() => {
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
        && action.is_some_and(|action| !matches!(action, Action::Mailbox { .. }))
    {
        let expected = "a command that goes to the mailbox, as only that knows request ids";
        node.wrong::<()>(expected, None);
    }
    draft.cell("device_contract", given, false)
}
