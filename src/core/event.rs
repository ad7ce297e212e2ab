//! Owns: the one canonical form of an event: its JSON, its digest, and how its time is written.
//! May call: record.
//! Never: re-encode a body: it is bytes that were frozen when the event was recorded (EVT-01).
//!
//! # Digest
//! SHA-256 over the parts below, each preceded by its length as 8 bytes, big endian; all are text in
//! UTF-8: the tag `holdfast-event-1`, the key as `source/epoch/sequence`, the type, the schema in
//! decimal, the time, the quality, the quantity in decimal, the body, all as in the JSON. The quantity is
//! a part because the same key with another one is a conflict, not a duplicate (B2). A receiver can
//! recompute it. `clock`, shown where the wall clock was not to be trusted, is no part of it.

use super::record::EventRecord;
use super::spec::Quality;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// Names the parts, their order and their notation.
pub const DIGEST_TAG: &str = "holdfast-event-1";
const US_PER_S: i64 = 1_000_000;
const S_PER_DAY: i64 = 86_400;

/// SHA-256 over the event's content (see the head of this file).
#[must_use]
pub fn digest(event: &EventRecord) -> [u8; 32] {
    let key = event.key.to_string();
    let schema = event.schema.to_string();
    let time = rfc3339(event.wall_us);
    let qty = event.qty.to_string();
    let mut hash = Sha256::new();
    for part in [
        DIGEST_TAG,
        &key,
        &event.event_type,
        &schema,
        &time,
        quality_name(event.quality),
        &qty,
        body(event),
    ] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

/// The event as every interface and sink shows it, its body embedded byte for byte; one line.
#[must_use]
pub fn to_json(event: &EventRecord) -> String {
    let mut out = String::with_capacity(256 + event.body.len());
    out.push_str("{\"source\":");
    push_text(&mut out, &event.key.source);
    let _ = write!(
        out,
        ",\"epoch\":\"{}\",\"sequence\":\"{}\",\"type\":",
        event.key.epoch, event.key.sequence
    );
    push_text(&mut out, &event.event_type);
    let _ = write!(
        out,
        ",\"schema\":{},\"time\":\"{}\",\"quality\":\"{}\",\"qty\":{},\"body\":{},\"digest\":\"{}\"",
        event.schema,
        rfc3339(event.wall_us),
        quality_name(event.quality),
        event.qty,
        body(event),
        sha256_text(&digest(event)),
    );
    if let Some(boot) = event.unsynchronised {
        let _ = write!(
            out,
            ",\"clock\":{{\"synchronised\":false,\"boot_id\":\"{boot}\",\"boottime_ns\":\"{}\"}}",
            event.boottime_ns
        );
    }
    out.push('}');
    out
}

/// The body as it is shown: a missing one is `null`.
fn body(event: &EventRecord) -> &str {
    if event.body.is_empty() {
        "null"
    } else {
        &event.body
    }
}

/// The name of a quality in every interface.
#[must_use]
pub fn quality_name(quality: Quality) -> &'static str {
    match quality {
        Quality::Good => "good",
        Quality::Uncertain => "uncertain",
        Quality::Bad => "bad",
        Quality::Stale => "stale",
    }
}

/// `sha256:` and 64 hexadecimal digits.
#[must_use]
pub fn sha256_text(sha256: &[u8; 32]) -> String {
    let mut text = String::with_capacity(71);
    text.push_str("sha256:");
    for byte in sha256 {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Microseconds since 1970 as RFC 3339 in UTC, always with six decimals, so that equal times are equal
/// texts.
#[must_use]
pub fn rfc3339(wall_us: i64) -> String {
    let seconds = wall_us.div_euclid(US_PER_S);
    let micros = wall_us.rem_euclid(US_PER_S);
    let (year, month, day) = civil(seconds.div_euclid(S_PER_DAY));
    let of_day = seconds.rem_euclid(S_PER_DAY);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Year, month and day of a day counted from 1970-01-01, in the proleptic Gregorian calendar: years are
/// counted from March, so that the leap day is the last of its year.
fn civil(day: i64) -> (i64, i64, i64) {
    const DAYS_TO_1970: i64 = 719_468; // from 0000-03-01
    const DAYS_PER_ERA: i64 = 146_097; // 400 years
    let from_era_0 = day + DAYS_TO_1970;
    let era = from_era_0.div_euclid(DAYS_PER_ERA);
    let of_era = from_era_0.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_month)
}

fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::{Epoch, EventKey, Sequence};
    use crate::core::spec::EventClass;

    fn event(body: &str) -> EventRecord {
        EventRecord {
            key: EventKey {
                source: "press-1".into(),
                epoch: Epoch(7),
                sequence: Sequence(42),
            },
            event_type: "piece.good".into(),
            schema: 1,
            wall_us: 1_796_025_600_123_456,
            boottime_ns: 5,
            quality: Quality::Good,
            class: EventClass::Business,
            qty: 1,
            body: body.into(),
            unsynchronised: None,
        }
    }

    #[test]
    fn time_is_written_the_same_for_every_calendar_edge() {
        for (us, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_709_164_800_000_000, "2024-02-29T00:00:00.000000Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (1_796_025_600_123_456, "2026-11-30T08:00:00.123456Z"),
        ] {
            assert_eq!(rfc3339(us), text);
            let by_library = jiff::Timestamp::from_microsecond(us).unwrap();
            assert_eq!(rfc3339(us), format!("{by_library:.6}"));
        }
    }

    #[test]
    fn the_json_holds_the_body_byte_for_byte() {
        let json = to_json(&event("{\"b\": 1.50,  \"a\":2}"));
        assert!(json.contains("\"body\":{\"b\": 1.50,  \"a\":2},"), "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["sequence"], "42");
        assert_eq!(value["time"], "2026-11-30T08:00:00.123456Z");
        assert_eq!(
            value["digest"],
            sha256_text(&digest(&event("{\"b\": 1.50,  \"a\":2}")))
        );
    }

    #[test]
    fn a_name_with_quotes_stays_one_json_string() {
        let mut odd = event("null");
        odd.event_type = "a\"b\\c\nd".into();
        let value: serde_json::Value = serde_json::from_str(&to_json(&odd)).unwrap();
        assert_eq!(value["type"], "a\"b\\c\nd");
    }

    // covers: EVT-01
    #[test]
    fn the_digest_is_of_the_content_and_of_nothing_else() {
        let base = digest(&event("{}"));
        let mut same = event("{}");
        same.boottime_ns = 99;
        assert_eq!(digest(&same), base);
        let mut moved = event("{}");
        moved.key.sequence = Sequence(43);
        assert_ne!(digest(&moved), base);
        assert_ne!(digest(&event("{ }")), base);
        let mut more = event("{}");
        more.qty = 2;
        assert_ne!(digest(&more), base);
        // Lengths keep neighbouring parts apart.
        let mut one = event("{}");
        one.event_type = "ab".into();
        one.schema = 11;
        let mut other = event("{}");
        other.event_type = "ab1".into();
        other.schema = 1;
        assert_ne!(digest(&one), digest(&other));
    }

    #[test]
    fn the_digest_does_not_change_between_versions() {
        assert_eq!(
            sha256_text(&digest(&event("{\"lot\":\"A\"}"))),
            "sha256:9dc201dcaf899754f6330df101045ad9ec78535634054e4d0c14473cfe653889"
        );
    }
}
