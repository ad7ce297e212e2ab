//! Owns: `op`: one operation with its timeline, why it stands there, and what can be done next.
//! May call: client, text.
//! Never: suggest repeating what may have had its effect without saying so.

use super::client::{Client, encode, with_params};
use super::exit::{Exit, Failure};
use super::submit::{show_values, wait_ms};
use super::text::{Out, Step, Tone, now, short_time};
use crate::api::types::{FindingView, OperationView, parse_time};
use clap::Args;
use serde_json::Value as Json;

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
        let readable = readable(client, &operation).await;
        show(&operation, readable, out);
    }
    Ok(if args.wait.is_some() {
        Exit::of_state(&operation.state)
    } else {
        Exit::Done
    })
}

/// Whether the device can be asked about it: not where its row says that a person finds out.
pub(super) async fn readable(client: &Client, operation: &OperationView) -> bool {
    if operation.state != "outcome_unknown" {
        return true;
    }
    let path = with_params("/v1/policy", &[("machine", Some(&*operation.machine))]);
    let Ok(policy) = client.get(&path).await.and_then(|raw| raw.parse::<Json>()) else {
        return true;
    };
    let rows = policy["machines"][0]["commands"].as_array();
    let row = rows.and_then(|rows| rows.iter().find(|row| row["name"] == *operation.command));
    row.is_none_or(|row| row["cells"]["verify"]["value"] != "manual")
}

/// Its state, the reason, and what can be done next.
pub(super) fn show_brief(operation: &OperationView, readable: bool, out: &mut Out) {
    show_state(operation, out);
    for step in next_steps(operation, readable, &now()) {
        out.step(&step);
    }
}

/// What a verification found, and what can be done next but for verifying once more.
pub(super) fn show_found(operation: &OperationView, out: &mut Out) {
    show_state(operation, out);
    if operation.state == "outcome_unknown" || operation.state == "accepted" {
        match operation.findings.iter().max_by(|a, b| a.at.cmp(&b.at)) {
            Some(newest) => out.line(&format!("  found: {}", finding_text(newest))),
            None => out.line("  found: nothing yet"),
        }
    }
    let again = format!("holdfast verify {}", operation.operation_id);
    for step in next_steps(operation, true, &now()) {
        if step.command.as_ref() != Some(&again) {
            out.step(&step);
        }
    }
}

/// One finding on one line.
pub(super) fn finding_text(finding: &FindingView) -> String {
    let times = if finding.times > 1 {
        format!(" ({} times)", finding.times)
    } else {
        String::new()
    };
    format!(
        "{}  {}: {}{times}",
        short_time(&finding.at),
        finding.method,
        finding.says
    )
}

fn show_state(operation: &OperationView, out: &mut Out) {
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
}

fn show(operation: &OperationView, readable: bool, out: &mut Out) {
    show_brief(operation, readable, out);
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
        out.line(&finding_text(finding));
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

/// What a person can do about an operation in this state. `readable`: the device can be asked about it.
pub(super) fn next_steps(operation: &OperationView, readable: bool, now: &str) -> Vec<Step> {
    let id = &operation.operation_id;
    let anew = "if it is still wanted, submit it under a new id: this one had no effect";
    let reissue = format!("holdfast reissue {id} --id NEW --reason \"…\"");
    let look = format!("holdfast op {id} --wait 10s");
    match operation.state.as_str() {
        _ if operation.tombstone => vec![],
        "queued" => vec![Step::run(
            "wait for the machine, or withdraw it",
            format!("holdfast cancel {id}"),
        )],
        "held" => held_steps(operation, now),
        "sending" => vec![Step::run("nothing; look again", look)],
        "accepted" => vec![Step::run(
            "the machine has not reported completion; look again",
            look,
        )],
        "outcome_unknown" => unknown_steps(id, readable, reissue),
        "failed" => vec![Step::run(
            "the device refused it, it had no effect; mend the cause, then do it again",
            reissue,
        )],
        "not_executed" => vec![Step::run("it had no effect; to do it again", reissue)],
        "superseded" => vec![Step::words("follow the operation that took its place")],
        "rejected" | "expired" | "cancelled" => vec![Step::words(anew)],
        _ => vec![],
    }
}

fn unknown_steps(id: &str, readable: bool, reissue: String) -> Vec<Step> {
    let mut steps = vec![Step::words(
        "do not send it again: it may have had its effect",
    )];
    if readable {
        steps.push(Step::run(
            "ask the device (reads only)",
            format!("holdfast verify {id}"),
        ));
    }
    let find = if readable {
        "or find out at the machine"
    } else {
        "the device cannot be asked about it; find out at the machine"
    };
    steps.push(Step::run(
        format!("{find}, then say completed, not-executed or compensated"),
        format!("holdfast resolve {id} --as WHAT --reason \"…\""),
    ));
    steps.push(Step::run(
        "only if a second effect does no harm, do it again",
        reissue,
    ));
    steps
}

/// By the reason: what was found decides what has to be true before it may go.
fn held_steps(operation: &OperationView, now: &str) -> Vec<Step> {
    let id = &operation.operation_id;
    let code = operation.code.as_deref().unwrap_or_default();
    let cancel = |what: &str| Step::run(what, format!("holdfast cancel {id}"));
    let approve = |what: String| Step::run(what, format!("holdfast approve {id}"));
    let late = operation
        .deadline
        .as_deref()
        .is_some_and(|deadline| is_over(deadline, now));
    // A validity that nobody can prove begins anew with the approval; any other ends it.
    if late && code != "validity_unprovable" {
        return vec![cancel(
            "its validity is over: submit it anew under a new id if it is still wanted, and cancel this one",
        )];
    }
    let until = operation.deadline.as_deref().map_or(String::new(), |at| {
        format!(", only until {}", short_time(at))
    });
    let first = match code {
        "identity_mismatch" => vec![
            Step::words(
                "do not send it: another device answers at this address. Check which one it is: cable, address, an exchanged controller, the identity in the machine's file",
            ),
            approve(format!("once the right device answers{until}")),
        ],
        "version_conflict" => vec![
            Step::words(
                "look at the machine: what does this command mean under the configuration it has now? Better submit it anew with the right --expect-version",
            ),
            approve(format!("to send it all the same{until}")),
        ],
        "interlock_open" => vec![approve(format!("close the interlock, then{until}"))],
        "mode_not_allowed" => vec![approve(format!(
            "set the machine to a mode that allows commands, then{until}"
        ))],
        "bad_quality" => vec![approve(format!(
            "mend what makes the machine's data unreliable, then{until}"
        ))],
        "validity_unprovable" => vec![approve(format!(
            "if it is still wanted: approving begins a new validity of {}",
            operation.ttl
        ))],
        "permission_lost" => vec![approve(format!(
            "if it shall be done although its submitter may no longer submit{until}"
        ))],
        "configuration_changed" => vec![
            Step::run(
                "compare it with the command's row as it is now",
                format!("holdfast policy {}", operation.machine),
            ),
            approve(format!("if it still fits{until}")),
        ],
        _ => vec![approve(format!("look at the machine, then{until}"))],
    };
    let mut steps = first;
    steps.push(cancel("to give it up"));
    steps
}

fn is_over(deadline: &str, now: &str) -> bool {
    match (parse_time(deadline), parse_time(now)) {
        (Ok(deadline), Ok(now)) => now >= deadline,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::STATE_NAMES;

    const NOW: &str = "2026-11-30T08:00:00Z";

    fn held(code: &str, deadline: &str) -> Vec<Step> {
        let operation = OperationView {
            operation_id: "OP7".into(),
            state: "held".into(),
            code: Some(code.into()),
            ttl: "10s".into(),
            deadline: Some(deadline.into()),
            ..OperationView::default()
        };
        next_steps(&operation, true, NOW)
    }

    fn all(steps: &[Step]) -> String {
        let text = |step: &Step| format!("{} {}", step.what, step.command.as_deref().unwrap_or(""));
        steps.iter().map(text).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn whatever_is_not_finished_says_what_to_do_next() {
        for state in STATE_NAMES {
            let operation = OperationView {
                operation_id: "OP7".into(),
                state: state.into(),
                ..OperationView::default()
            };
            let finished = matches!(state, "completed" | "compensated");
            let steps = next_steps(&operation, true, NOW);
            assert_eq!(steps.is_empty(), finished, "{state}");
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
        let steps = next_steps(&operation, true, NOW);
        assert!(steps[0].what.contains("do not send it again"));
        assert_eq!(steps[1].command.as_deref(), Some("holdfast verify OP7"));
        assert!(all(&steps[2..]).contains("holdfast resolve OP7"));
        let by_hand = all(&next_steps(&operation, false, NOW));
        assert!(!by_hand.contains("verify"), "{by_hand}");
        assert!(by_hand.contains("find out at the machine"), "{by_hand}");
    }

    #[test]
    fn what_is_held_is_let_go_for_its_own_reason_only() {
        let later = "2026-11-30T08:00:09.000000Z";
        for (code, says) in [
            ("version_conflict", "--expect-version"),
            ("interlock_open", "close the interlock"),
            ("mode_not_allowed", "mode that allows"),
            ("bad_quality", "unreliable"),
            ("validity_unprovable", "a new validity of 10s"),
            ("permission_lost", "may no longer submit"),
            ("configuration_changed", "holdfast policy"),
            ("identity_mismatch", "which one it is"),
        ] {
            let text = all(&held(code, later));
            assert!(text.contains(says), "{code}: {text}");
            assert!(text.contains("holdfast approve OP7"), "{code}: {text}");
            assert!(text.contains("holdfast cancel OP7"), "{code}: {text}");
        }
        assert!(!all(&held("identity_mismatch", later)).contains("all the same"));
        assert!(all(&held("version_conflict", later)).contains("until 2026-11-30 08:00:09"));
    }

    #[test]
    fn what_is_held_beyond_its_validity_is_not_to_be_approved() {
        let text = all(&held("version_conflict", NOW));
        assert!(text.contains("its validity is over"), "{text}");
        assert!(!text.contains("approve"), "{text}");
        assert!(all(&held("validity_unprovable", NOW)).contains("approve"));
    }
}
