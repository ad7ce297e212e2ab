//! Owns: the shapes of the interface, as the contract fixes them, and how its times and durations are written.
//! May call: core types.
//! Never: decide anything; show a 64-bit counter as a number, or a time without its sub-seconds.

pub use super::view::*;
use crate::core::event::rfc3339;
use crate::core::time::Stamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// Every name a state has in the interface.
pub const STATE_NAMES: [&str; 13] = [
    "queued",
    "held",
    "rejected",
    "expired",
    "cancelled",
    "superseded",
    "sending",
    "accepted",
    "outcome_unknown",
    "completed",
    "failed",
    "not_executed",
    "compensated",
];

/// `GET /v1/operations/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // The names are the contract's own.
pub struct OperationView {
    pub operation_id: String,
    pub machine: String,
    pub command: String,
    pub class: String,
    pub args: Json,
    pub state: String,
    pub family: String,
    pub reason: String,
    pub code: Option<String>,
    pub result_id: Option<String>,
    pub result: Option<Json>,
    pub evidence: Option<Json>,
    pub digest: String,
    pub canonical_length: u32,
    pub encoding: u16,
    pub actor: String,
    pub issued_at: Option<String>,
    pub created_at: String,
    pub ttl: String,
    pub deadline: Option<String>,
    pub replay_until: String,
    pub expected_config_version: Option<u32>,
    pub version_found: Option<i64>,
    pub disconnected_at: Option<String>,
    pub superseded_count: u32,
    pub links: LinksView,
    pub attempts: Vec<AttemptView>,
    pub findings: Vec<FindingView>,
    pub history: Vec<TransitionView>,
    /// Present and true where only a tombstone is left (CAP-03).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tombstone: bool,
}

/// What an operation is linked to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct LinksView {
    pub reissue_of: Option<String>,
    pub reissue_reason: Option<String>,
    pub reissued_by: Vec<String>,
    pub replaces: Option<String>,
}

/// One try at sending.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct AttemptView {
    pub attempt_id: String,
    pub begun_at: String,
    pub frame: String,
    pub outcome: Option<String>,
    pub detail: Option<String>,
    pub request: Option<String>,
    pub bytes_sent: Option<u32>,
    pub bytes_total: Option<u32>,
    pub sent_at: Option<String>,
    pub replied_at: Option<String>,
    /// Hexadecimal.
    pub reply: Option<String>,
}

/// Something found that proves nothing by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct FindingView {
    pub method: String,
    pub at: String,
    pub says: String,
    pub times: u32,
}

/// One change of state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TransitionView {
    pub n: usize,
    pub from: Option<String>,
    pub to: String,
    pub at: String,
    pub boottime_ns: String,
    pub boot_id: String,
    pub source: String,
    pub actor: String,
    pub attempt_id: Option<String>,
    pub detail: String,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct StatusView {
    pub mode: String,
    pub gateway: String,
    pub version: String,
    pub started_at: String,
    pub now: String,
    pub journal: JournalView,
    pub machines: Vec<MachineView>,
    pub sinks: Vec<SinkView>,
    pub counts: CountsView,
    pub alarms: Vec<AlarmView>,
}

/// State of the journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct JournalView {
    pub state: String,
    pub used_bytes: String,
    pub budget_bytes: String,
    pub commit: String,
    pub epoch: String,
    pub telemetry_dropped: String,
}

/// What is open over all machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct CountsView {
    pub queued: usize,
    pub held: usize,
    pub outcome_unknown: usize,
}

/// An alarm that stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct AlarmView {
    pub code: String,
    pub severity: String,
    pub since: String,
    pub text: String,
    #[serde(rename = "do")]
    pub mend: String,
}

/// `GET /v1/machines/{m}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MachineView {
    pub name: String,
    pub owner: String,
    pub read_only: bool,
    pub link: LinkView,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub in_flight: Option<String>,
    pub queued: usize,
    pub held: usize,
    pub outcome_unknown: usize,
    pub counters: Map<String, Json>,
}

/// State of one link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct LinkView {
    pub state: String,
    pub since: String,
    pub reason: String,
}

/// One polled value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TagView {
    pub name: String,
    pub value: Json,
    pub unit: Option<String>,
    pub quality: String,
    pub reason: Option<String>,
    pub read_at: Option<String>,
}

/// Bytes that went over a link at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TraceLine {
    pub at: String,
    /// `sent`, `received` or `unasked`.
    pub way: String,
    pub length: usize,
    pub hex: String,
    pub ascii: String,
    /// They may carry a secret argument, and are not shown.
    pub hidden: bool,
}

/// State of one sink.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct SinkView {
    pub name: String,
    pub kind: String,
    pub ack_level: String,
    pub state: String,
    pub backlog: BacklogView,
    pub circuit: String,
    pub counters: SinkCountersView,
    pub dead_letters: u64,
    pub in_per_s: Option<f64>,
    pub out_per_s: Option<f64>,
    pub trend: String,
    pub drains_in: Option<String>,
    pub overtaking: bool,
    pub lanes: usize,
    pub in_flight: usize,
}

/// What a sink has not finished.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct BacklogView {
    pub events: String,
    pub bytes: String,
    pub oldest_at: Option<String>,
}

/// A sink's counters; `attempts` is the sum of the others (FWD-05).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct SinkCountersView {
    pub attempts: String,
    pub accepted: String,
    pub duplicates: String,
    pub conflicts: String,
    pub malformed: String,
    pub retries: String,
    pub resent: String,
    pub rewound: String,
}

/// One row of the acceptance report (IF-05).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ReportRow {
    pub operation_id: String,
    pub machine: String,
    pub command: String,
    pub class: String,
    pub disconnected_at: Option<String>,
    pub submitted_at: String,
    pub ttl: String,
    pub expected_config_version: Option<u32>,
    pub version_found: Option<i64>,
    pub state: String,
    pub family: String,
    pub reason: String,
    pub sent_at: Option<String>,
    pub state_at: Option<String>,
    pub superseded_count: u32,
    pub reissue_of: Option<String>,
    pub reissued_by: Vec<String>,
}

/// A stamp's wall time.
#[must_use]
pub fn time(stamp: &Stamp) -> String {
    rfc3339(stamp.wall_us)
}

/// Reads RFC 3339 into microseconds since 1970.
///
/// # Errors
/// What is wrong with it.
pub fn parse_time(text: &str) -> Result<i64, String> {
    text.parse::<jiff::Timestamp>()
        .map(jiff::Timestamp::as_microsecond)
        .map_err(|error| error.to_string())
}

/// Reads a duration such as `500ms`, `10s`, `5min`, `24h`, `90d` into milliseconds.
#[must_use]
pub fn parse_duration_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let unit_ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(unit_ms)
}

/// Shows milliseconds in the largest unit that holds them exactly.
#[must_use]
pub fn show_duration_ms(ms: u64) -> String {
    for (unit_ms, unit) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1000, "s"),
    ] {
        if ms >= unit_ms && ms.is_multiple_of(unit_ms) {
            return format!("{}{unit}", ms / unit_ms);
        }
    }
    format!("{ms}ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lifecycle::State;
    use crate::core::spec::Value;

    #[test]
    fn durations_are_read_and_shown_in_their_largest_exact_unit() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("90s", 90_000),
            ("5min", 300_000),
            ("24h", 86_400_000),
        ] {
            assert_eq!(parse_duration_ms(text), Some(ms));
            let shown = show_duration_ms(ms);
            assert_eq!(parse_duration_ms(&shown), Some(ms));
        }
        assert_eq!(show_duration_ms(90_000), "90s");
        assert_eq!(show_duration_ms(86_400_000), "1d");
        assert_eq!(show_duration_ms(0), "0ms");
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 parsec",
            "99999999999999999999s",
        ] {
            assert_eq!(parse_duration_ms(bad), None, "{bad}");
        }
    }

    #[test]
    fn whole_numbers_of_any_width_are_shown_exactly() {
        let big = Value::Int(i128::from(u64::MAX));
        assert_eq!(view_value(&big).to_string(), "18446744073709551615");
        assert_eq!(view_value(&Value::Float(f64::NAN)), Json::Null);
    }

    #[test]
    fn every_state_name_has_the_family_of_its_state() {
        assert_eq!(STATE_NAMES.len(), 13);
        assert_eq!(
            State::Queued.family().name(),
            family_of(State::Queued.name())
        );
        assert_eq!(State::Expired.family().name(), family_of("expired"));
        assert_eq!(family_of("outcome_unknown"), "in_doubt");
        assert_eq!(family_of("compensated"), "known");
    }
}
