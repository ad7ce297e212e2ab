//! Owns: `policy`: the command policy table, each cell with where its value came from (POL-12).
//! May call: client, text.
//! Never: leave a cell out.

use super::client::{Client, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, pad};
use serde_json::Value as Json;

pub(super) async fn run(
    client: &Client,
    out: &mut Out,
    machine: Option<&str>,
) -> Result<Exit, Failure> {
    let raw = client
        .get(&with_params("/v1/policy", &[("machine", machine)]))
        .await?;
    if out.json() {
        out.raw(&raw.text);
        return Ok(Exit::Done);
    }
    show_policy(&raw.parse()?, out);
    Ok(Exit::Done)
}

/// Prints the tables as `GET /v1/policy` has them; a `*` marks what the row itself says.
pub fn show_policy(policy: &Json, out: &mut Out) {
    let list = |value: &Json| value.as_array().cloned().unwrap_or_default();
    for machine in list(&policy["machines"]) {
        let read_only = if machine["read_only"] == true {
            ", read only"
        } else {
            ""
        };
        out.toned(
            Tone::Head,
            &format!(
                "{} (commanded by {}{read_only})",
                word(&machine["machine"]),
                word(&machine["owner"])
            ),
        );
        for row in list(&machine["commands"]) {
            out.toned(
                Tone::Head,
                &format!(
                    "  {} ({}) {}",
                    word(&row["name"]),
                    word(&row["class"]),
                    word(&row["action"])
                ),
            );
            for (name, cell) in row["cells"].as_object().into_iter().flatten() {
                let mark = if cell["from"] == "row" { "*" } else { " " };
                out.line(&format!(
                    "  {mark} {} {}",
                    pad(name, 20),
                    word(&cell["value"])
                ));
            }
            for arg in list(&row["args"]) {
                out.line(&format!("    argument {}", argument(&arg)));
            }
        }
    }
    out.toned(
        Tone::Faint,
        "* as the machine's file says; the others are the class's defaults",
    );
}

fn argument(arg: &Json) -> String {
    let mut text = format!("{}: {}", word(&arg["name"]), word(&arg["type"]));
    for (name, label) in [
        ("unit", ""),
        ("min", "from "),
        ("max", "to "),
        ("default", "default "),
    ] {
        if !arg[name].is_null() {
            text.push_str(&format!(" {label}{}", word(&arg[name])));
        }
    }
    if arg["secret"] == true {
        text.push_str(" (secret)");
    }
    text
}

fn word(value: &Json) -> String {
    match value {
        Json::Null => "-".into(),
        Json::String(text) => text.clone(),
        Json::Bool(true) => "yes".into(),
        Json::Bool(false) => "no".into(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(word).collect();
            if items.is_empty() {
                "-".into()
            } else {
                items.join(", ")
            }
        }
        other => other.to_string(),
    }
}
