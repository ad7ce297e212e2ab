//! Owns: `status`: a technician's first questions on one screen (IF-03).
//! May call: client, text.
//! Never: hide what is wrong below what is well.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, ago, bytes, pad};
use crate::api::types::{MachineView, SinkView, StatusView};
use std::path::Path;

pub(super) async fn run(client: &Client, out: &mut Out, config: &Path) -> Result<Exit, Failure> {
    let raw = client.get("/v1/status").await?;
    let status: StatusView = raw.parse()?;
    if out.json() {
        out.raw(&raw.text);
    } else {
        show(&status, config, out);
    }
    Ok(if status.mode == "recovery" {
        Exit::Recovery
    } else {
        Exit::Done
    })
}

fn show(status: &StatusView, config: &Path, out: &mut Out) {
    let tone = if status.mode == "normal" {
        Tone::Good
    } else {
        Tone::Bad
    };
    out.toned(
        tone,
        &format!(
            "{}: {}, up {} (version {})",
            status.gateway,
            status.mode,
            ago(&status.started_at, &status.now),
            status.version
        ),
    );
    let journal = &status.journal;
    let tone = if journal.state == "ok" {
        Tone::Plain
    } else {
        Tone::Bad
    };
    let line = if journal.state == "damaged" {
        // Nothing else is known of it.
        "journal damaged".to_owned()
    } else {
        format!(
            "journal {}, {} of {}, commit {}",
            journal.state,
            bytes(&journal.used_bytes),
            bytes(&journal.budget_bytes),
            journal.commit
        )
    };
    out.toned(tone, &line);
    if status.mode == "recovery" {
        out.line("next: stop the gateway, then see what is lost and what can be saved:");
        out.command(&format!("holdfast journal check {}", journal_dir(config)));
    }
    let counts = &status.counts;
    let tone = match (counts.outcome_unknown, counts.held) {
        (0, 0) => Tone::Plain,
        (0, _) => Tone::Warn,
        _ => Tone::Bad,
    };
    out.toned(
        tone,
        &format!(
            "operations: {} waiting, {} held, {} with unknown outcome",
            counts.queued, counts.held, counts.outcome_unknown
        ),
    );
    show_alarms(status, out);
    out.line("");
    out.toned(Tone::Head, "MACHINES");
    for machine in &status.machines {
        show_machine(machine, &status.now, out);
    }
    out.toned(Tone::Head, "SINKS");
    for sink in &status.sinks {
        show_sink(sink, &status.now, out);
    }
    if status.mode == "recovery" {
        return;
    }
    if counts.outcome_unknown > 0 {
        out.line("next: holdfast ops --state outcome_unknown");
    }
    if counts.held > 0 {
        out.line("next: holdfast ops --state held");
    }
}

/// Where the journal lies, as the configuration at hand says; which one the gateway has is not known here.
fn journal_dir(config: &Path) -> String {
    let read = std::fs::read_to_string(config).ok();
    let table: Option<toml::Table> = read.and_then(|text| toml::from_str(&text).ok());
    let Some(table) = table else {
        return "STATE_DIR/journal".into();
    };
    let state_dir = table.get("state_dir").and_then(toml::Value::as_str);
    let state_dir = state_dir.unwrap_or("/var/lib/holdfast");
    Path::new(state_dir).join("journal").display().to_string()
}

fn show_alarms(status: &StatusView, out: &mut Out) {
    for alarm in &status.alarms {
        let tone = if alarm.severity == "critical" {
            Tone::Bad
        } else {
            Tone::Warn
        };
        let since = ago(&alarm.since, &status.now);
        out.toned(
            tone,
            &format!(
                "{} {}: {} (for {since})",
                alarm.severity.to_uppercase(),
                alarm.code,
                alarm.text
            ),
        );
        out.line(&format!("  do: {}", alarm.mend));
    }
}

pub(super) fn show_machine(machine: &MachineView, now: &str, out: &mut Out) {
    let link = &machine.link;
    let tone = match link.state.as_str() {
        "up" => Tone::Good,
        "down" => Tone::Bad,
        _ => Tone::Warn,
    };
    let mut line = format!(
        "{} {} for {}: {} waiting, {} held, {} unknown",
        pad(&machine.name, 16),
        pad(&link.state, 10),
        ago(&link.since, now),
        machine.queued,
        machine.held,
        machine.outcome_unknown
    );
    if machine.read_only {
        line.push_str(", read only");
    }
    out.toned(tone, &line);
    if link.state != "up" && !link.reason.is_empty() {
        out.line(&format!("  {}", link.reason));
    }
    if let Some(id) = &machine.in_flight {
        out.line(&format!("  under way: {id}"));
    }
}

pub(super) fn show_sink(sink: &SinkView, now: &str, out: &mut Out) {
    let tone = if sink.state.starts_with("ok") {
        Tone::Good
    } else {
        Tone::Warn
    };
    let oldest = sink
        .backlog
        .oldest_at
        .as_ref()
        .map(|at| format!(", oldest {}", ago(at, now)))
        .unwrap_or_default();
    out.toned(
        tone,
        &format!(
            "{} {} ({}) {}: backlog {} ({}){oldest}",
            pad(&sink.name, 16),
            sink.kind,
            ack_level(&sink.ack_level),
            sink.state,
            sink.backlog.events,
            bytes(&sink.backlog.bytes)
        ),
    );
    if sink.dead_letters > 0 {
        out.toned(
            Tone::Bad,
            &format!(
                "  {} dead letter(s): holdfast dead-letters {}",
                sink.dead_letters, sink.name
            ),
        );
    }
}

/// A broker's receipt is no commit, and must not read like one.
fn ack_level(name: &str) -> &str {
    match name {
        "broker" => "broker-acked",
        other => other,
    }
}
