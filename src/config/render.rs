//! Owns: the policy table as text, 80 columns wide, each cell with where it came from (POL-12).
//! May call: core types, reader's durations.
//! Never: show anything but what the rows hold.

use super::reader::show_duration;
use crate::core::spec::{
    Action, ArgSpec, ArgValue, LinkSpec, MachineSpec, OnRestart, Origin, ReplaceRule, Row,
};
use std::fmt::Write;

/// Width of a terminal over SSH, in characters.
pub(super) const COLUMNS: usize = 80;

/// The policy of every machine.
#[must_use]
pub fn render_policy(machines: &[MachineSpec]) -> String {
    let mut out = String::new();
    for machine in machines {
        let LinkSpec::ModbusTcp(link) = &machine.link;
        let read_only = if machine.read_only { ", read only" } else { "" };
        let title = format!(
            "{}: modbus-tcp {}:{} unit {}, owner {}{read_only}",
            machine.name, link.host, link.port, link.unit, machine.owner
        );
        line(&mut out, "", &title);
        for row in &machine.commands {
            command(&mut out, row);
        }
        if machine.commands.is_empty() {
            line(&mut out, "  ", "no commands");
        }
        out.push('\n');
    }
    line(
        &mut out,
        "",
        "row: stated in the machine's file; class: default of the class",
    );
    out
}

fn command(out: &mut String, row: &Row) {
    let action = match &row.action {
        Action::Read { points } => format!("reads {}", places(points)),
        Action::Write { start, request_id } => {
            let id = if *request_id {
                ", request id appended"
            } else {
                ""
            };
            format!("writes {start}{id}")
        }
        Action::Mailbox { opcode } => format!("mailbox opcode {opcode}"),
    };
    line(
        out,
        "  ",
        &format!("{} ({}) {action}", row.name, row.class.name()),
    );
    let yes = |bit: bool| if bit { "yes" } else { "no" }.to_owned();
    let cells = [
        ("queueable", yes(row.queueable)),
        ("ttl", show_duration(row.ttl_ms)),
        ("max_queued", row.max_queued.to_string()),
        (
            "replace",
            match row.replace {
                ReplaceRule::Never => "never".into(),
                ReplaceRule::SameOperator => "same_operator".into(),
            },
        ),
        (
            "precondition",
            if row.precondition {
                "config_version"
            } else {
                "none"
            }
            .into(),
        ),
        (
            "on_restart",
            match row.on_restart {
                OnRestart::Expire => "expire".into(),
                OnRestart::Hold => "hold".into(),
            },
        ),
        ("completion", row.completion.name().into()),
        (
            "completion_timeout",
            show_duration(row.completion_timeout_ms),
        ),
        ("verify", row.verify.name().into()),
        (
            "duplicates",
            if row.merge_latest {
                "merge latest"
            } else {
                "by_id"
            }
            .into(),
        ),
        (
            "device_contract",
            if row.device_contract_mailbox {
                "mailbox"
            } else {
                "none"
            }
            .into(),
        ),
    ];
    let widths = [(15, 14), (18, 13)];
    for pair in cells.chunks(2) {
        let mut text = "  ".to_owned();
        for ((key, value), (key_width, value_width)) in pair.iter().zip(widths) {
            let from = origin(row, key);
            let _ = write!(text, "  {key:<key_width$} {value:<value_width$} {from:<5}");
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    let interlocks = match row.interlocks.join(", ") {
        none if none.is_empty() => "none".to_owned(),
        names => names,
    };
    line(
        out,
        "    ",
        &format!("interlocks: {interlocks} ({})", origin(row, "interlocks")),
    );
    for arg in &row.args {
        line(out, "    ", &format!("arg {}", argument(arg)));
    }
    if let Some(contract) = &row.i_accept {
        line(out, "    ", &format!("i_accept {contract}"));
    }
}

fn origin(row: &Row, key: &str) -> &'static str {
    match row.origins.get(key) {
        Some(Origin::Row) => "row",
        Some(Origin::ClassDefault) | None => "class",
    }
}

fn places(points: &[(String, crate::core::spec::Scalar)]) -> String {
    let places: Vec<_> = points
        .iter()
        .map(|(_, at)| at.address.to_string())
        .collect();
    places.join(", ")
}

fn argument(arg: &ArgSpec) -> String {
    let mut text = format!("{}: {}", arg.name, arg.data_type.name());
    if let Some(unit) = &arg.unit {
        let _ = write!(text, " {unit}");
    }
    if let Some(min) = arg.min {
        let _ = write!(text, ", at least {min}");
    }
    if let Some(max) = arg.max {
        let _ = write!(text, ", at most {max}");
    }
    match &arg.default {
        Some(ArgValue::Bool(bit)) => _ = write!(text, ", default {bit}"),
        Some(ArgValue::Number(number)) => _ = write!(text, ", default {number}"),
        Some(ArgValue::Text(value)) => _ = write!(text, ", default {value:?}"),
        Some(ArgValue::Redacted(_)) | None => {}
    }
    if arg.secret {
        text.push_str(", secret");
    }
    text
}

/// Appends `text`, indented, broken at spaces so that no line is wider than [`COLUMNS`].
fn line(out: &mut String, indent: &str, text: &str) {
    let mut width = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if width == 0 {
            out.push_str(indent);
            width = indent.chars().count();
        } else if width + 1 + length > COLUMNS {
            let _ = write!(out, "\n{indent}  ");
            width = indent.chars().count() + 2;
        } else {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out.push('\n');
}
