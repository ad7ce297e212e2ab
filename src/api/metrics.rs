//! Owns: what Prometheus sees (IF-04), made anew from the status at every scrape.
//! May call: the backend's shapes.
//! Never: count anything itself.

use super::backend::{Health, Mode, Status};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Media type of [`render`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// States a link can be in.
const LINK_STATES: [&str; 4] = ["down", "connecting", "gate", "up"];

type Labels = Vec<(String, String)>;
type Gauges = Family<Labels, Gauge>;
type Counters = Family<Labels, Counter>;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn set(family: &Gauges, pairs: &[(&str, &str)], value: impl TryInto<i64>) {
    family
        .get_or_create(&labels(pairs))
        .set(value.try_into().unwrap_or(i64::MAX));
}

fn count(family: &Counters, pairs: &[(&str, &str)], value: u64) {
    family.get_or_create(&labels(pairs)).inc_by(value);
}

/// The status as OpenMetrics text.
#[must_use]
pub fn render(status: &Status, health: &Health) -> String {
    let mut registry = Registry::with_prefix("holdfast");
    gateway(&mut registry, status, health);
    machines(&mut registry, status);
    sinks(&mut registry, status);
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = encode(&mut text, &registry);
    text
}

fn gauges(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let family = Gauges::default();
    registry.register(name, help, family.clone());
    family
}

fn counters(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    registry.register(name, help, family.clone());
    family
}

fn gateway(registry: &mut Registry, status: &Status, health: &Health) {
    let ready = gauges(registry, "ready", "Journal and machine tasks make progress");
    set(&ready, &[], i64::from(health.ready));
    let mode = gauges(registry, "mode", "1 for the mode the gateway is in");
    for (name, is) in [
        ("normal", Mode::Normal),
        ("recovery", Mode::Recovery),
        ("stopping", Mode::Stopping),
    ] {
        set(&mode, &[("mode", name)], i64::from(status.mode == is));
    }
    let bytes = gauges(registry, "journal_bytes", "Bytes of the journal");
    set(&bytes, &[("kind", "used")], status.journal.used_bytes);
    set(&bytes, &[("kind", "budget")], status.journal.budget_bytes);
    let ok = gauges(
        registry,
        "journal_ok",
        "1 unless the journal is full or damaged",
    );
    set(&ok, &[], i64::from(status.journal.state == "ok"));
    let dropped = counters(
        registry,
        "journal_telemetry_dropped",
        "Telemetry events given up for want of room",
    );
    count(&dropped, &[], status.journal.telemetry_dropped);
    let commits = counters(registry, "journal_commits", "Commits made durable");
    count(&commits, &[], status.journal.commit.0);
    let operations = gauges(registry, "operations", "Operations that are open, by state");
    set(&operations, &[("state", "queued")], status.counts.0);
    set(&operations, &[("state", "held")], status.counts.1);
    set(
        &operations,
        &[("state", "outcome_unknown")],
        status.counts.2,
    );
    let alarms = gauges(registry, "alarm", "1 for every alarm that stands");
    for alarm in &status.alarms {
        let pairs = [("code", alarm.code.as_str()), ("severity", &alarm.severity)];
        set(&alarms, &pairs, 1);
    }
}

fn machines(registry: &mut Registry, status: &Status) {
    let link = gauges(registry, "link_state", "1 for the state a link is in");
    let open = gauges(
        registry,
        "machine_operations",
        "Open operations of a machine, by state",
    );
    let counted = counters(registry, "link_events", "What happened on a link, by kind");
    for machine in &status.machines {
        let name = machine.name.as_str();
        for state in LINK_STATES {
            let pairs = [("machine", name), ("state", state)];
            set(&link, &pairs, i64::from(machine.link == state));
        }
        set(
            &open,
            &[("machine", name), ("state", "queued")],
            machine.queued,
        );
        set(&open, &[("machine", name), ("state", "held")], machine.held);
        let unknown = [("machine", name), ("state", "outcome_unknown")];
        set(&open, &unknown, machine.outcome_unknown);
        for (kind, value) in &machine.counters {
            count(&counted, &[("machine", name), ("kind", kind)], *value);
        }
    }
}

fn sinks(registry: &mut Registry, status: &Status) {
    let backlog = gauges(
        registry,
        "sink_backlog_events",
        "Events a sink has not finished",
    );
    let bytes = gauges(
        registry,
        "sink_backlog_bytes",
        "Bytes a sink has not finished",
    );
    let age = gauges(
        registry,
        "sink_backlog_age_seconds",
        "Age of the oldest of them",
    );
    let letters = gauges(registry, "sink_dead_letters", "Dead letters that stand");
    let answers = counters(registry, "sink_answers", "Answers of a sink, by kind");
    for sink in &status.sinks {
        let name = [("sink", sink.name.as_str())];
        set(&backlog, &name, sink.backlog.0);
        set(&bytes, &name, sink.backlog.1);
        let oldest_us = sink.backlog.2.unwrap_or(status.now.wall_us);
        let age_us = status.now.wall_us.saturating_sub(oldest_us).max(0);
        set(&age, &name, age_us / 1_000_000);
        set(&letters, &name, sink.dead_letters);
        let kinds = ["accepted", "duplicate", "conflict", "malformed", "retry"];
        for (kind, value) in kinds.iter().zip(sink.counters) {
            count(&answers, &[("sink", &sink.name), ("kind", kind)], value);
        }
    }
}
