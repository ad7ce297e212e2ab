//! Owns: `ops`: the list of operations.
//! May call: client, text.
//! Never: cut an id short.

use super::client::{Client, with_params};
use super::exit::{Exit, Failure};
use super::machine;
use super::text::{COLUMNS, Out, Tone, pad, short_time, since, wrap};
use crate::api::types::{OperationView, STATE_NAMES};
use crate::core::intent::nearest;
use clap::Args;
use serde::Deserialize;

/// Arguments of `ops`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct OpsArgs {
    /// Of this machine
    #[arg(long)]
    pub machine: Option<String>,
    /// In this state: queued, held, rejected, expired, cancelled, superseded, sending, accepted,
    /// outcome_unknown, completed, failed, not_executed, compensated
    #[arg(long, value_parser = state)]
    pub state: Option<String>,
    /// Since when: RFC 3339, or how long ago, such as 24h
    #[arg(long, value_name = "T")]
    pub since: Option<String>,
}

/// Reads `--state`.
fn state(text: &str) -> Result<String, String> {
    if STATE_NAMES.contains(&text) {
        return Ok(text.to_owned());
    }
    let near = nearest(text, STATE_NAMES).map(|near| format!("\n  did you mean {near:?}?"));
    let all = wrap(&format!("  one of: {}", STATE_NAMES.join(", "))).join("\n");
    Err(format!("no such state{}\n{all}", near.unwrap_or_default()))
}

#[derive(Deserialize)]
struct Part {
    operations: Vec<OperationView>,
    next: Option<String>,
}

pub(super) async fn run(client: &Client, out: &mut Out, args: OpsArgs) -> Result<Exit, Failure> {
    let since = args.since.as_deref().map(since).transpose()?;
    let mut after: Option<String> = None;
    let mut count = 0_usize;
    loop {
        let path = with_params(
            "/v1/operations",
            &[
                ("machine", args.machine.as_deref()),
                ("state", args.state.as_deref()),
                ("since", since.as_deref()),
                ("after", after.as_deref()),
                ("limit", Some("500")),
            ],
        );
        let raw = client.get(&path).await?;
        let part: Part = raw.parse()?;
        if let (Some(name), None, true) = (&args.machine, &after, part.operations.is_empty()) {
            // One that is no longer configured may have operations; one that has none must exist.
            machine::must_exist(client, name).await?;
        }
        if out.json() {
            out.raw(&raw.text);
        } else {
            if count == 0 && !part.operations.is_empty() {
                out.toned(
                    Tone::Head,
                    &row("CREATED", "STATE", "MACHINE/COMMAND", "ID"),
                );
            }
            for operation in &part.operations {
                show(operation, out);
            }
        }
        count += part.operations.len();
        after = part.next;
        if after.is_none() || !out.flush() {
            break;
        }
    }
    if count == 0 && !out.json() {
        out.line("no operations");
    }
    Ok(Exit::Done)
}

fn row(created: &str, state: &str, what: &str, id: &str) -> String {
    format!(
        "{} {} {} {id}",
        pad(created, 19),
        pad(state, 15),
        pad(what, 22)
    )
}

fn show(operation: &OperationView, out: &mut Out) {
    let created: String = short_time(&operation.created_at).chars().take(19).collect();
    let what = format!("{}/{}", operation.machine, operation.command);
    let tone = Tone::of_state(&operation.state);
    let whole = row(&created, &operation.state, &what, &operation.operation_id);
    if whole.chars().count() <= COLUMNS {
        out.toned(tone, &whole);
    } else {
        out.toned(tone, row(&created, &operation.state, &what, "").trim_end());
        out.line(&format!("  {}", operation.operation_id));
    }
}
