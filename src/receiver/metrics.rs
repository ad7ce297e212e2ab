//! Owns: what is counted of the receiver, and its text for Prometheus.
//! May call: core's verdicts, what mqtt counts.
//! Never: label by what a stranger sends.

use super::mqtt::MqttStats;
use crate::core::outbox::Verdict;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Media type of [`Metrics::render`].
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) type Labels = Vec<(&'static str, String)>;

/// All of it.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    events: Family<Labels, Counter>,
    requests: Family<Labels, Counter>,
    in_flight: Gauge,
    connections: Gauge,
    seconds: Histogram,
}

impl Metrics {
    pub(super) fn new(mqtt: Option<&MqttStats>) -> Self {
        let mut registry = Registry::with_prefix("holdfast_receiver");
        let events = Family::default();
        let requests = Family::default();
        let (in_flight, connections) = (Gauge::default(), Gauge::default());
        let seconds = Histogram::new(exponential_buckets(0.001, 2.0, 16));
        registry.register(
            "events",
            "Events by gateway and what became of them",
            events.clone(),
        );
        registry.register(
            "requests",
            "Requests for ingest by status",
            requests.clone(),
        );
        registry.register("in_flight", "Requests under way", in_flight.clone());
        registry.register("connections", "Connections open", connections.clone());
        registry.register(
            "ingest_seconds",
            "From a whole request to its commit",
            seconds.clone(),
        );
        if let Some(mqtt) = mqtt {
            registry.register(
                "mqtt_received",
                "Messages from the broker",
                mqtt.received.clone(),
            );
            registry.register(
                "mqtt_messages",
                "Messages from the broker by what became of them",
                mqtt.messages.clone(),
            );
            registry.register(
                "mqtt_connections",
                "Times that the subscription at the broker stood",
                mqtt.connections.clone(),
            );
        }
        Self {
            registry,
            events,
            requests,
            in_flight,
            connections,
            seconds,
        }
    }

    pub(super) fn events(&self, gateway: &str, verdicts: &[Verdict]) {
        for verdict in verdicts {
            let labels = vec![
                ("gateway", gateway.to_owned()),
                ("status", status(verdict).to_owned()),
            ];
            self.events.get_or_create(&labels).inc();
        }
    }

    pub(super) fn request(&self, status: u16) {
        let labels = vec![("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    pub(super) fn took(&self, time: Duration) {
        self.seconds.observe(time.as_secs_f64());
    }

    /// One more connection, until what is returned is dropped.
    pub(super) fn connection(&self) -> Counted {
        Counted::new(&self.connections)
    }

    /// One more request under way, until what is returned is dropped.
    pub(super) fn under_way(&self) -> Counted {
        Counted::new(&self.in_flight)
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

pub(super) struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The name of a verdict in every answer.
pub(super) fn status(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Accepted => "accepted",
        Verdict::Duplicate => "duplicate",
        Verdict::Conflict { .. } => "conflict",
        Verdict::Malformed { .. } => "malformed",
        Verdict::Retry { .. } | Verdict::Stop { .. } => "retry",
    }
}
