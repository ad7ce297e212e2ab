//! Owns: `report`: the acceptance report, every operation once (IF-05).
//! May call: client, text.
//! Never: leave an operation out, or end before the list does.

use super::client::{Client, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, short_time, since};
use crate::api::types::ReportRow;
use serde::Deserialize;
use serde_json::{Value as Json, json};

#[derive(Deserialize)]
struct Part {
    operations: Vec<Json>,
    next: Option<String>,
}

/// Prints it.
///
/// # Errors
/// [`Failure`].
pub async fn run(client: &Client, out: &mut Out, from: Option<&str>) -> Result<Exit, Failure> {
    let from = from.map(since).transpose()?;
    let mut rows: Vec<Json> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let params = [
            ("since", from.as_deref()),
            ("after", after.as_deref()),
            ("limit", Some("500")),
        ];
        let part: Part = client
            .get(&with_params("/v1/report", &params))
            .await?
            .parse()?;
        rows.extend(part.operations);
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    if out.json() {
        out.raw(&json!({"operations": rows}).to_string());
        return Ok(Exit::Done);
    }
    let count = rows.len();
    for row in rows {
        let row: ReportRow = serde_json::from_value(row).map_err(|error| {
            Failure::NotReachable(format!("the answer cannot be read: {error}"))
        })?;
        show(&row, out);
    }
    out.line(&format!("{count} operation(s)"));
    Ok(Exit::Done)
}

fn show(row: &ReportRow, out: &mut Out) {
    if row.state == "superseded" && row.sent_at.is_none() {
        // A display makes hundreds of these; its id and its successor are all there is to say.
        out.toned(
            Tone::Faint,
            &format!(
                "{}: superseded, not sent: {} ({}/{})",
                row.operation_id, row.reason, row.machine, row.command
            ),
        );
        return;
    }
    out.toned(
        Tone::of_state(&row.state),
        &format!("{}: {}", row.operation_id, row.state),
    );
    if !row.reason.is_empty() {
        out.line(&format!("  why: {}", row.reason));
    }
    out.line(&format!(
        "  {}/{} ({}), validity {}",
        row.machine, row.command, row.class, row.ttl
    ));
    let time = |time: &Option<String>| time.as_deref().map_or("-".into(), short_time);
    out.line(&format!("  disconnected {}", time(&row.disconnected_at)));
    out.line(&format!("  submitted    {}", short_time(&row.submitted_at)));
    out.line(&format!("  sent         {}", time(&row.sent_at)));
    out.line(&format!("  {:<12} {}", row.state, time(&row.state_at)));
    let version = |v: Option<String>| v.unwrap_or_else(|| "-".into());
    out.line(&format!(
        "  version expected {}, found {}",
        version(row.expected_config_version.map(|v| v.to_string())),
        version(row.version_found.map(|v| v.to_string()))
    ));
    if row.superseded_count > 0 {
        out.line(&format!(
            "  stands for {} older queries too",
            row.superseded_count
        ));
    }
    if let Some(id) = &row.reissue_of {
        out.line(&format!("  does {id} again: two identities, one intention"));
    }
}
