//! Owns: the command policy table as the interface shows it, each cell with its origin (POL-12).
//! May call: core spec, views.
//! Never: hold a default: it shows what the running gateway has.

use super::types::show_duration_ms;
use crate::core::spec::{
    Action, ArgSpec, ArgValue, MachineSpec, OnRestart, Origin, ReplaceRule, Row,
};
use serde_json::{Map, Value as Json, json};

/// The tables of all `machines`.
#[must_use]
pub fn view_policy<'a>(machines: impl IntoIterator<Item = &'a MachineSpec>) -> Json {
    let tables: Vec<Json> = machines
        .into_iter()
        .map(|machine| {
            let rows: Vec<Json> = machine.commands.iter().map(view_row).collect();
            json!({"machine": machine.name, "owner": machine.owner, "read_only": machine.read_only, "commands": rows})
        })
        .collect();
    json!({"machines": tables})
}

fn view_row(row: &Row) -> Json {
    let cells: [(&str, Json); 14] = [
        ("queueable", json!(row.queueable)),
        ("ttl", json!(show_duration_ms(row.ttl_ms))),
        ("max_queued", json!(row.max_queued)),
        ("stop", json!(row.stop)),
        (
            "replace",
            json!(match row.replace {
                ReplaceRule::Never => "never",
                ReplaceRule::SameOperator => "same_operator",
            }),
        ),
        (
            "precondition",
            json!(if row.precondition {
                "config_version"
            } else {
                "none"
            }),
        ),
        (
            "on_restart",
            json!(match row.on_restart {
                OnRestart::Expire => "expire",
                OnRestart::Hold => "hold",
            }),
        ),
        ("completion", json!(row.completion.name())),
        (
            "completion_timeout",
            json!(show_duration_ms(row.completion_timeout_ms)),
        ),
        ("verify", json!(row.verify.name())),
        ("interlocks", json!(row.interlocks)),
        (
            "duplicates",
            json!(if row.merge_latest {
                "merge latest"
            } else {
                "by_id"
            }),
        ),
        (
            "device_contract",
            json!(if row.device_contract_mailbox {
                "mailbox"
            } else {
                "none"
            }),
        ),
        ("i_accept", json!(row.i_accept)),
    ];
    let cells: Map<String, Json> = cells
        .into_iter()
        .map(|(name, value)| {
            let from = match row.origins.get(name) {
                Some(Origin::Row) => "row",
                Some(Origin::ClassDefault) | None => "class_default",
            };
            (name.to_owned(), json!({"value": value, "from": from}))
        })
        .collect();
    let args: Vec<Json> = row.args.iter().map(view_arg).collect();
    json!({"name": row.name, "class": row.class.name(), "action": view_action(&row.action), "cells": cells, "args": args})
}

/// What it does at the device, in a few words.
fn view_action(action: &Action) -> String {
    match action {
        Action::Read { points } => {
            let places = points.iter().map(|(_, at)| at.address.to_string());
            format!("reads {}", places.collect::<Vec<_>>().join(", "))
        }
        Action::Write { start, request_id } => {
            let id = if *request_id {
                ", the request id behind the arguments"
            } else {
                ""
            };
            format!("writes {start}{id}")
        }
        Action::Scatter { places, request_id } => {
            let places: Vec<String> = places.iter().map(ToString::to_string).collect();
            let id = request_id.map_or_else(String::new, |at| format!(", the request id to {at}"));
            format!("writes {} in one frame{id}", places.join(", "))
        }
        Action::Mailbox { opcode } => format!("mailbox opcode {opcode}"),
        Action::Remote { order } => format!("remote {}", order.name()),
    }
}

fn view_arg(arg: &ArgSpec) -> Json {
    json!({
        "name": arg.name,
        "type": arg.data_type.name(),
        "unit": arg.unit,
        "min": arg.min.map(|number| number.to_string()),
        "max": arg.max.map(|number| number.to_string()),
        "default": arg.default.as_ref().filter(|_| !arg.secret).map(|value| match value {
            ArgValue::Bool(bit) => bit.to_string(),
            ArgValue::Number(number) => number.to_string(),
            ArgValue::Text(text) => text.clone(),
            ArgValue::Redacted(_) => "secret".into(),
        }),
        "secret": arg.secret,
    })
}
