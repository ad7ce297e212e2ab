//! Owns: how records and states are shown in the contract's shapes.
//! May call: core types, the backend's shapes, types.
//! Never: decide anything; re-encode an event's body.

use super::backend::{self, Known, Mode};
use super::types::{
    AlarmView, AttemptView, BacklogView, CountsView, FindingView, JournalView, LinkView, LinksView,
    MachineView, OperationView, ReportRow, SinkCountersView, SinkView, StatusView, TagView,
    TransitionView, show_duration_ms, time,
};
use crate::core::contract::Outcome;
use crate::core::event::{quality_name, rfc3339, sha256_text, to_json};
use crate::core::ids::EventKey;
use crate::core::intent::Digest;
use crate::core::lifecycle::{Evidence, State};
use crate::core::record::{
    Attempt, DeadLetter, EventRecord, Finding, Operation, Position, Transition,
};
use crate::core::spec::{ArgValue, Value};
use serde_json::{Value as Json, json};

/// A value as JSON; what JSON cannot say (NaN, infinities) is `null`.
#[must_use]
pub fn view_value(value: &Value) -> Json {
    match value {
        Value::Bool(bit) => json!(bit),
        Value::Int(number) => serde_json::from_str(&number.to_string()).unwrap_or(Json::Null),
        Value::Float(number) => json!(number),
        Value::Text(text) => json!(text),
    }
}

/// Named values as one object, in their order.
#[must_use]
pub fn view_values(values: &[(String, Value)]) -> Json {
    Json::Object(
        values
            .iter()
            .map(|(name, value)| (name.clone(), view_value(value)))
            .collect(),
    )
}

fn view_arg(value: &ArgValue) -> Json {
    match value {
        ArgValue::Bool(bit) => json!(bit),
        ArgValue::Number(number) => serde_json::from_str(&number.to_string()).unwrap_or(Json::Null),
        ArgValue::Text(text) => json!(text),
        ArgValue::Redacted(_) => json!({"secret": true}),
    }
}

/// A digest with all that CMD-03 asks for.
#[must_use]
pub fn view_digest(digest: &Digest) -> Json {
    json!({"digest": sha256_text(&digest.sha256), "length": digest.length, "encoding": digest.encoding})
}

/// Evidence as the contract shows it.
#[must_use]
pub fn view_evidence(evidence: &Evidence) -> Json {
    json!({
        "method": evidence.method().name(),
        "at": time(evidence.at()),
        "detail": {"says": evidence.detail()},
    })
}

fn state_code(state: &State) -> Option<String> {
    match state {
        State::Held(reason) => Some(reason.code().into()),
        State::Rejected(reason) => Some(reason.code().into()),
        _ => None,
    }
}

fn result(operation: &Operation) -> Option<Json> {
    let State::Completed(done) = &operation.state else {
        return None;
    };
    let mut result = json!({"summary": done.evidence().detail()});
    if !done.values().is_empty() {
        result["values"] = view_values(done.values());
    }
    Some(result)
}

/// An operation as the contract shows it.
#[must_use]
pub fn view_operation(operation: &Operation) -> OperationView {
    let intent = &operation.intent;
    OperationView {
        operation_id: operation.id.to_string(),
        machine: intent.machine.clone(),
        command: intent.command.clone(),
        class: operation.class.name().into(),
        args: Json::Object(
            intent
                .args
                .iter()
                .map(|(name, value)| (name.clone(), view_arg(value)))
                .collect(),
        ),
        state: operation.state.name().into(),
        family: operation.state.family().name().into(),
        reason: operation.state.reason(),
        code: state_code(&operation.state),
        result_id: operation.result_id.clone(),
        result: result(operation),
        evidence: operation.state.evidence().map(view_evidence),
        digest: sha256_text(&operation.digest.sha256),
        canonical_length: operation.digest.length,
        encoding: operation.digest.encoding,
        actor: operation.actor.to_string(),
        issued_at: intent.issued_at_us.map(rfc3339),
        created_at: time(&operation.created),
        ttl: show_duration_ms(intent.ttl_ms),
        deadline: operation.deadline.map(|d| rfc3339(d.shown_wall_us())),
        replay_until: rfc3339(operation.replay_until_us),
        expected_config_version: intent.expected_config_version,
        version_found: operation.version_found,
        disconnected_at: operation.disconnected_at.as_ref().map(time),
        superseded_count: operation.superseded_count,
        links: LinksView {
            reissue_of: operation.links.reissue_of.as_ref().map(ToString::to_string),
            reissue_reason: operation.links.reissue_reason.clone(),
            reissued_by: operation
                .links
                .reissued_by
                .iter()
                .map(ToString::to_string)
                .collect(),
            replaces: operation.links.replaces.as_ref().map(ToString::to_string),
        },
        attempts: operation.attempts.iter().map(view_attempt).collect(),
        findings: operation.findings.iter().map(view_finding).collect(),
        history: operation
            .history
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                // The first is always kept; what was left out for want of room came right after it.
                let dropped = if index == 0 {
                    0
                } else {
                    operation.history_dropped as usize
                };
                view_transition(index + 1 + dropped, entry)
            })
            .collect(),
        tombstone: false,
    }
}

/// What is known of an id, as the contract shows it.
#[must_use]
pub fn view_known(known: &Known) -> OperationView {
    match known {
        Known::Operation(operation) => view_operation(operation),
        Known::Tombstone(stone) => OperationView {
            operation_id: stone.id.to_string(),
            family: family_of(&stone.state).into(),
            state: stone.state.clone(),
            reason: "its retention is over: only this is left of it".into(),
            digest: sha256_text(&stone.digest.sha256),
            canonical_length: stone.digest.length,
            encoding: stone.digest.encoding,
            created_at: rfc3339(stone.created_us),
            tombstone: true,
            ..OperationView::default()
        },
    }
}

/// The family of a state by its name.
#[must_use]
pub fn family_of(state: &str) -> &'static str {
    match state {
        "sending" | "accepted" | "outcome_unknown" => "in_doubt",
        "completed" | "failed" | "not_executed" | "compensated" => "known",
        _ => "not_sent",
    }
}

fn view_attempt(attempt: &Attempt) -> AttemptView {
    let exchange = attempt.exchange.as_ref();
    let outcome = exchange.map(|e| view_outcome(&e.outcome));
    AttemptView {
        attempt_id: attempt.id.to_string(),
        begun_at: time(&attempt.begun),
        frame: sha256_text(&attempt.frame_sha256),
        outcome: outcome.as_ref().map(|(name, _)| (*name).to_owned()),
        detail: outcome.and_then(|(_, detail)| detail),
        request: exchange
            .map(|e| e.request_ident.clone())
            .filter(|ident| !ident.is_empty()),
        bytes_sent: exchange.map(|e| e.bytes_sent),
        bytes_total: exchange.map(|e| e.bytes_total),
        sent_at: exchange.and_then(|e| e.sent_at.as_ref()).map(time),
        replied_at: exchange.and_then(|e| e.replied_at.as_ref()).map(time),
        reply: exchange
            .filter(|e| !e.reply.is_empty())
            .map(|e| e.reply.iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

fn view_outcome(outcome: &Outcome) -> (&'static str, Option<String>) {
    let code = |code: &crate::core::contract::DeviceCode| {
        Some(format!(
            "{} {:#04x} ({})",
            code.family, code.code, code.meaning
        ))
    };
    match outcome {
        Outcome::NotSent { why } => ("not_sent", Some(why.clone())),
        Outcome::PartlySent { why } => ("partly_sent", Some(why.clone())),
        Outcome::SentNoReply { why } => ("sent_no_reply", Some(why.clone())),
        Outcome::DeviceRefused(found) => ("device_refused", code(found)),
        Outcome::DeviceBusy(found) => ("device_busy", code(found)),
        Outcome::DeviceUnclear(found) => ("device_unclear", code(found)),
        Outcome::DeviceAccepted => ("device_accepted", None),
        Outcome::DeviceReplied(_) => ("device_replied", None),
    }
}

fn view_finding(finding: &Finding) -> FindingView {
    FindingView {
        method: finding.method.clone(),
        at: time(&finding.at),
        says: finding.says.clone(),
        times: finding.times,
    }
}

fn view_transition(n: usize, entry: &Transition) -> TransitionView {
    TransitionView {
        n,
        from: entry.from.clone(),
        to: entry.to.clone(),
        at: time(&entry.at),
        boottime_ns: entry.at.boottime_ns.to_string(),
        boot_id: entry.at.boot_id.to_string(),
        source: serde_json::to_value(entry.source)
            .ok()
            .and_then(|name| name.as_str().map(str::to_owned))
            .unwrap_or_default(),
        actor: entry.actor.to_string(),
        attempt_id: entry.attempt.map(|id| id.to_string()),
        detail: entry.detail.clone(),
    }
}

/// Status as the contract shows it.
#[must_use]
pub fn view_status(status: &backend::Status) -> StatusView {
    StatusView {
        mode: match status.mode {
            Mode::Normal => "normal",
            Mode::Recovery => "recovery",
            Mode::Stopping => "stopping",
        }
        .into(),
        gateway: status.gateway.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        started_at: time(&status.started),
        now: time(&status.now),
        journal: JournalView {
            state: status.journal.state.clone(),
            used_bytes: status.journal.used_bytes.to_string(),
            budget_bytes: status.journal.budget_bytes.to_string(),
            commit: status.journal.commit.to_string(),
            epoch: status.journal.epoch.to_string(),
            telemetry_dropped: status.journal.telemetry_dropped.to_string(),
        },
        machines: status.machines.iter().map(view_machine).collect(),
        sinks: status.sinks.iter().map(view_sink).collect(),
        counts: CountsView {
            queued: status.counts.0,
            held: status.counts.1,
            outcome_unknown: status.counts.2,
        },
        alarms: status
            .alarms
            .iter()
            .map(|alarm| AlarmView {
                code: alarm.code.clone(),
                severity: alarm.severity.clone(),
                since: time(&alarm.since),
                text: alarm.text.clone(),
                mend: alarm.mend.clone(),
            })
            .collect(),
    }
}

/// A machine as the contract shows it.
#[must_use]
pub fn view_machine(machine: &backend::MachineStatus) -> MachineView {
    MachineView {
        name: machine.name.clone(),
        owner: machine.owner.clone(),
        read_only: machine.read_only,
        link: LinkView {
            state: machine.link.clone(),
            since: time(&machine.since),
            reason: machine.reason.clone(),
        },
        model: machine.model.clone(),
        in_flight: machine.in_flight.as_ref().map(ToString::to_string),
        queued: machine.queued,
        held: machine.held,
        outcome_unknown: machine.outcome_unknown,
        counters: machine
            .counters
            .iter()
            .map(|(name, count)| (name.clone(), json!(count.to_string())))
            .collect(),
    }
}

/// A tag as the contract shows it.
#[must_use]
pub fn view_tag(tag: &backend::TagStatus) -> TagView {
    TagView {
        name: tag.name.clone(),
        value: tag.value.as_ref().map_or(Json::Null, view_value),
        unit: tag.unit.clone(),
        quality: quality_name(tag.quality).into(),
        reason: tag.reason.clone(),
        read_at: tag.read_at.as_ref().map(time),
    }
}

/// A sink as the contract shows it.
#[must_use]
pub fn view_sink(sink: &backend::SinkStatus) -> SinkView {
    let (events, bytes, oldest_us) = sink.backlog;
    let [accepted, duplicates, conflicts, malformed, retries] = sink.counters;
    let attempts = sink
        .counters
        .iter()
        .fold(0_u64, |sum, n| sum.saturating_add(*n));
    let per_s = |milli: u64| milli as f64 / 1000.0;
    let (trend, drains_in) = trend(events, sink.rates_milli);
    SinkView {
        name: sink.name.clone(),
        kind: sink.kind.clone(),
        ack_level: sink.ack_level.clone(),
        state: sink.state.clone(),
        backlog: BacklogView {
            events: events.to_string(),
            bytes: bytes.to_string(),
            oldest_at: oldest_us.map(rfc3339),
        },
        counters: SinkCountersView {
            attempts: attempts.to_string(),
            accepted: accepted.to_string(),
            duplicates: duplicates.to_string(),
            conflicts: conflicts.to_string(),
            malformed: malformed.to_string(),
            retries: retries.to_string(),
            resent: sink.resent.to_string(),
            rewound: sink.rewound.to_string(),
        },
        dead_letters: sink.dead_letters,
        circuit: sink.circuit.into(),
        in_per_s: sink.rates_milli.map(|(new, _)| per_s(new)),
        out_per_s: sink.rates_milli.map(|(_, done)| per_s(done)),
        trend: trend.into(),
        drains_in,
        overtaking: sink.overtaking,
        lanes: sink.lanes,
        in_flight: sink.in_flight,
    }
}

/// Which way a backlog goes, and how long until it is gone at this pace.
fn trend(events: u64, rates_milli: Option<(u64, u64)>) -> (&'static str, Option<String>) {
    match rates_milli {
        _ if events == 0 => ("drained", None),
        None => ("not_measured", None),
        Some((new, done)) if done > new => {
            let seconds = (u128::from(events) * 1000).div_ceil(u128::from(done - new));
            let ms = u64::try_from(seconds)
                .unwrap_or(u64::MAX)
                .saturating_mul(1000);
            ("draining", Some(show_duration_ms(ms)))
        }
        Some((new, done)) if done < new => ("growing", None),
        Some(_) => ("standing", None),
    }
}

/// A row of the acceptance report.
#[must_use]
pub fn view_report(operation: &Operation) -> ReportRow {
    let view = view_operation(operation);
    ReportRow {
        sent_at: view.attempts.iter().find_map(|a| a.sent_at.clone()),
        state_at: view.history.last().map(|entry| entry.at.clone()),
        operation_id: view.operation_id,
        machine: view.machine,
        command: view.command,
        class: view.class,
        disconnected_at: view.disconnected_at,
        submitted_at: view.created_at,
        ttl: view.ttl,
        expected_config_version: view.expected_config_version,
        version_found: view.version_found,
        state: view.state,
        family: view.family,
        reason: view.reason,
        superseded_count: view.superseded_count,
        reissue_of: view.links.reissue_of,
        reissued_by: view.links.reissued_by,
    }
}

/// A place in the log as a cursor.
#[must_use]
pub fn cursor(position: &Position) -> String {
    format!("{}.{}", position.no, position.index)
}

/// Reads a cursor.
#[must_use]
pub fn parse_cursor(text: &str) -> Option<Position> {
    let (no, index) = text.split_once('.')?;
    Some(Position {
        no: crate::core::ids::CommitNo(no.parse().ok()?),
        index: index.parse().ok()?,
    })
}

/// A list of events as JSON text: their bodies stay byte for byte as they were recorded.
#[must_use]
pub fn view_events(events: &[(Position, EventRecord)], next: Option<&Position>) -> String {
    let mut out = String::from("{\"events\":[");
    for (index, (position, event)) in events.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let json = to_json(event);
        out.push_str(&json[..json.len() - 1]);
        out.push_str(&format!(",\"cursor\":\"{}\"}}", cursor(position)));
    }
    out.push(']');
    if let Some(next) = next {
        out.push_str(&format!(",\"next\":\"{}\"", cursor(next)));
    }
    out.push('}');
    out
}

/// Dead letters as JSON text, with both contents (FWD-06).
#[must_use]
pub fn view_dead_letters(letters: &[DeadLetter], next: Option<&EventKey>) -> String {
    let text = |text: &str| Json::from(text).to_string();
    let rows: Vec<String> = letters
        .iter()
        .map(|letter| {
            format!(
                "{{\"key\":{},\"status\":{},\"reason\":{},\"event\":{},\"kept\":{}}}",
                text(&letter.event.key.to_string()),
                text(&letter.status),
                text(&letter.reason),
                to_json(&letter.event),
                letter.kept.as_deref().map_or("null".into(), text),
            )
        })
        .collect();
    let next = next.map(|key| format!(",\"next\":{}", text(&key.to_string())));
    format!(
        "{{\"dead_letters\":[{}]{}}}",
        rows.join(","),
        next.unwrap_or_default()
    )
}
