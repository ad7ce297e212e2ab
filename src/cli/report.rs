//! Owns: `report`: the acceptance report, every operation once (IF-05).
//! May call: client, text.
//! Never: leave an operation out, or end before the list does.

use super::client::{Client, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, short_time, since};
use crate::api::types::ReportRow;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::collections::HashMap;

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
    let rows: Vec<ReportRow> = serde_json::from_value(Json::Array(rows))
        .map_err(|error| Failure::NotReachable(format!("the answer cannot be read: {error}")))?;
    for entry in entries(&rows) {
        match entry.last {
            Some(last) => show_run(entry.first, last, entry.count, out),
            None => show(entry.first, out),
        }
    }
    out.line(&format!("{count} operation(s)"));
    Ok(Exit::Done)
}

/// One row, or a run of readings each of which gave way to the next.
struct Entry<'r> {
    first: &'r ReportRow,
    last: Option<&'r ReportRow>,
    count: usize,
}

fn gave_way(row: &ReportRow) -> bool {
    row.state == "superseded" && row.sent_at.is_none() && row.class == "query"
}

/// In the order of the report; what else was submitted meanwhile does not end a run.
fn entries(rows: &[ReportRow]) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut runs: HashMap<(&str, &str), usize> = HashMap::new();
    for row in rows {
        let of = (row.machine.as_str(), row.command.as_str());
        if gave_way(row)
            && let Some(entry) = runs.get(&of).and_then(|at| entries.get_mut(*at))
        {
            entry.last = Some(row);
            entry.count += 1;
            continue;
        }
        if gave_way(row) {
            runs.insert(of, entries.len());
        } else {
            runs.remove(&of);
        }
        entries.push(Entry {
            first: row,
            last: None,
            count: 1,
        });
    }
    entries
}

fn show_run(first: &ReportRow, last: &ReportRow, count: usize, out: &mut Out) {
    out.toned(
        Tone::Faint,
        &format!(
            "{} … {}: each superseded by the next, not sent ({count} of {}/{})",
            first.operation_id, last.operation_id, first.machine, first.command
        ),
    );
}

fn show(row: &ReportRow, out: &mut Out) {
    if row.state == "superseded" && row.sent_at.is_none() {
        // Its id and its successor are all there is to say.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, command: &str, class: &str, state: &str) -> ReportRow {
        ReportRow {
            operation_id: id.into(),
            machine: "press-1".into(),
            command: command.into(),
            class: class.into(),
            state: state.into(),
            ..ReportRow::default()
        }
    }

    // covers: IF-05
    #[test]
    fn readings_that_gave_way_are_one_line_and_nothing_else_is() {
        let rows = [
            row("R1", "read", "query", "superseded"),
            row("S1", "set", "absolute_set", "superseded"),
            row("R2", "read", "query", "superseded"),
            row("S2", "set", "absolute_set", "superseded"),
            row("R3", "read", "query", "completed"),
            row("R4", "read", "query", "superseded"),
            row("R5", "read", "query", "completed"),
        ];
        let entries = entries(&rows);
        let shown: Vec<_> = entries
            .iter()
            .map(|e| {
                (
                    &*e.first.operation_id,
                    e.last.map(|l| &*l.operation_id),
                    e.count,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("R1", Some("R2"), 2),
                ("S1", None, 1),
                ("S2", None, 1),
                ("R3", None, 1),
                ("R4", None, 1),
                ("R5", None, 1),
            ]
        );
        assert_eq!(entries.iter().map(|e| e.count).sum::<usize>(), rows.len());
    }
}
