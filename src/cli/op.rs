//! Owns: `op`: one operation with its timeline, why it stands there, and what can be done next.
//! May call: client, text.
//! Never: suggest repeating what may have had its effect without saying so.

use super::client::{Client, encode, with_params};
use super::exit::{Exit, Failure};
use super::submit::{show_values, wait_ms};
use super::text::{Out, Tone, short_time};
use crate::api::types::OperationView;
use clap::Args;

/// Arguments of `op`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct OpArgs {
    /// Which operation
    pub id: String,
    /// Wait for its end, at most so long; the exit code then says how it ended
    #[arg(long, value_name = "TIME")]
    pub wait: Option<String>,
}

pub(super) async fn run(client: &Client, out: &mut Out, args: OpArgs) -> Result<Exit, Failure> {
    let wait = wait_ms(args.wait.as_deref())?;
    let path = format!("/v1/operations/{}", encode(&args.id));
    let path = with_params(&path, &[("wait", args.wait.as_deref())]);
    let raw = client.get_waiting(&path, wait).await?;
    let operation: OperationView = raw.parse()?;
    if out.json() {
        out.raw(&raw.text);
    } else {
        show(&operation, out);
    }
    Ok(if args.wait.is_some() {
        Exit::of_state(&operation.state)
    } else {
        Exit::Done
    })
}

/// Its state, the reason, and what can be done next.
pub(super) fn show_brief(operation: &OperationView, out: &mut Out) {
    out.toned(
        Tone::of_state(&operation.state),
        &format!("{}: {}", operation.operation_id, operation.state),
    );
    if !operation.reason.is_empty() {
        out.line(&format!("  why: {}", operation.reason));
    }
    if let Some(result) = &operation.result {
        show_values(&result["values"], out);
    }
    for step in next_steps(operation) {
        out.line(&format!("  next: {step}"));
    }
}

fn show(operation: &OperationView, out: &mut Out) {
    show_brief(operation, out);
    if operation.tombstone {
        out.line(&format!("  created {}", short_time(&operation.created_at)));
        out.line(&format!("  digest {}", operation.digest));
        return;
    }
    out.line("");
    show_facts(operation, out);
    out.toned(Tone::Head, "TIMELINE");
    for entry in &operation.history {
        out.toned(
            Tone::of_state(&entry.to),
            &format!(
                "{}  {}  ({} {})",
                short_time(&entry.at),
                entry.to,
                entry.source,
                entry.actor
            ),
        );
        if !entry.detail.is_empty() {
            out.line(&format!("    {}", entry.detail));
        }
    }
    show_attempts(operation, out);
    if !operation.findings.is_empty() {
        out.toned(Tone::Head, "FINDINGS (they prove nothing by themselves)");
    }
    for finding in &operation.findings {
        let times = if finding.times > 1 {
            format!(" ({} times)", finding.times)
        } else {
            String::new()
        };
        out.line(&format!(
            "{}  {}: {}{times}",
            short_time(&finding.at),
            finding.method,
            finding.says
        ));
    }
}

fn show_facts(operation: &OperationView, out: &mut Out) {
    out.line(&format!(
        "  {}/{} ({}), by {}",
        operation.machine, operation.command, operation.class, operation.actor
    ));
    for (name, value) in operation.args.as_object().into_iter().flatten() {
        out.line(&format!("  {name} = {value}"));
    }
    let deadline = operation
        .deadline
        .as_deref()
        .map_or("none".into(), short_time);
    out.line(&format!("  validity {} (until {deadline})", operation.ttl));
    if let Some(expected) = operation.expected_config_version {
        let found = operation
            .version_found
            .map_or("not read yet".into(), |v| format!("found {v}"));
        out.line(&format!(
            "  configuration version: expected {expected}, {found}"
        ));
    }
    if let Some(id) = &operation.result_id {
        out.line(&format!("  result {id}"));
    }
    if operation.superseded_count > 0 {
        out.line(&format!(
            "  stands for {} older queries too",
            operation.superseded_count
        ));
    }
    let links = &operation.links;
    if let Some(id) = &links.reissue_of {
        let why = links.reissue_reason.as_deref().unwrap_or("no reason given");
        out.line(&format!("  does {id} again: {why}"));
    }
    for id in &links.reissued_by {
        out.line(&format!("  done again by {id}"));
    }
    if let Some(id) = &links.replaces {
        out.line(&format!("  takes the place of {id}"));
    }
    out.line(&format!(
        "  digest {}, {} bytes, encoding {}",
        operation.digest, operation.canonical_length, operation.encoding
    ));
    out.line(&format!(
        "  may be replayed until {}",
        short_time(&operation.replay_until)
    ));
}

fn show_attempts(operation: &OperationView, out: &mut Out) {
    if !operation.attempts.is_empty() {
        out.toned(Tone::Head, "ATTEMPTS");
    }
    for attempt in &operation.attempts {
        let outcome = attempt
            .outcome
            .as_deref()
            .unwrap_or("no report: the gateway stopped, or it is under way");
        let bytes = match (attempt.bytes_sent, attempt.bytes_total) {
            (Some(sent), Some(total)) => format!(", {sent} of {total} bytes handed over"),
            _ => String::new(),
        };
        out.line(&format!("{}  {outcome}{bytes}", attempt.attempt_id));
        for detail in [&attempt.detail, &attempt.request].into_iter().flatten() {
            out.line(&format!("    {detail}"));
        }
        if let Some(reply) = &attempt.reply {
            out.line(&format!("    reply {reply}"));
        }
    }
}

/// What a person can do about an operation in this state.
pub(super) fn next_steps(operation: &OperationView) -> Vec<String> {
    let id = &operation.operation_id;
    let anew = "if it is still wanted, submit it under a new id: this one had no effect";
    match operation.state.as_str() {
        _ if operation.tombstone => vec![],
        "queued" => vec![format!("wait for the machine, or: holdfast cancel {id}")],
        "held" => vec![
            format!("look at the machine; to send it all the same: holdfast approve {id}"),
            format!("to give it up: holdfast cancel {id}"),
        ],
        "sending" => vec![format!("nothing; look again: holdfast op {id} --wait 10s")],
        "accepted" => vec![format!(
            "the machine has not reported completion; look again: holdfast op {id} --wait 10s"
        )],
        "outcome_unknown" => vec![
            "do not send it again: it may have had its effect".into(),
            format!("ask the device (reads only): holdfast verify {id}"),
            format!(
                "or look at the machine and say what happened: holdfast resolve {id} --as completed|not-executed|compensated --reason \"…\""
            ),
            format!(
                "only if a second effect does no harm: holdfast reissue {id} --id NEW --reason \"…\""
            ),
        ],
        "failed" => vec![format!(
            "mend the cause, then: holdfast reissue {id} --id NEW --reason \"…\" (the device refused it: no effect)"
        )],
        "not_executed" => vec![format!(
            "it had no effect; to do it again: holdfast reissue {id} --id NEW --reason \"…\""
        )],
        "superseded" => vec!["follow the operation that took its place".into()],
        "rejected" | "expired" | "cancelled" => vec![anew.into()],
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::STATE_NAMES;

    #[test]
    fn whatever_is_not_finished_says_what_to_do_next() {
        for state in STATE_NAMES {
            let operation = OperationView {
                operation_id: "OP7".into(),
                state: state.into(),
                ..OperationView::default()
            };
            let finished = matches!(state, "completed" | "compensated");
            assert_eq!(next_steps(&operation).is_empty(), finished, "{state}");
        }
    }

    // covers: ST-05
    #[test]
    fn an_unknown_outcome_is_first_of_all_not_to_be_repeated() {
        let operation = OperationView {
            operation_id: "OP7".into(),
            state: "outcome_unknown".into(),
            ..OperationView::default()
        };
        let steps = next_steps(&operation);
        assert!(steps[0].contains("do not send it again"));
        assert!(steps[1].contains("holdfast verify OP7"));
        assert!(steps[2].contains("holdfast resolve OP7"));
    }
}
