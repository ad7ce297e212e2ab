use super::*;
use crate::core::event::to_json;
use proptest::prelude::*;

fn event() -> EventRecord {
    EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(42),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 1_796_025_600_123_456,
        boottime_ns: 0,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: "{\"b\": 1.50,  \"a\":2}".into(),
        unsynchronised: None,
    }
}

fn bodies() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("{\"b\": 1.50,  \"a\":[2 , 3e400],\"\\u0061\":\"\\u0000\"}".to_owned()),
        Just("-0".to_owned()),
        Just("18446744073709551615.000".to_owned()),
        // Deeper than a recursive reader goes.
        Just(format!("{}{}", "[".repeat(500), "]".repeat(500))),
        ".*".prop_map(|text| serde_json::to_string(&text).unwrap()),
    ]
}

prop_compose! {
    fn events()(
        source in "[^\\p{C}]{1,128}",
        epoch in prop_oneof![0..=NUMBER_MAX, Just(NUMBER_MAX), Just((1_u64 << 53) - 1)],
        sequence in prop_oneof![0..=NUMBER_MAX, Just(NUMBER_MAX), Just(1_u64 << 53), Just(u64::from(u32::MAX))],
        event_type in "[a-z.\"\\\\]{1,40}",
        schema: u16,
        wall_us in -60_000_000_000_000_000_i64..250_000_000_000_000_000,
        quality in prop_oneof![Just(Quality::Good), Just(Quality::Uncertain), Just(Quality::Bad), Just(Quality::Stale)],
        qty: i64,
        body in bodies(),
        clock in proptest::option::of((any::<[u8; 16]>(), any::<u64>())),
    ) -> EventRecord {
        EventRecord {
            key: EventKey { source, epoch: Epoch(epoch), sequence: Sequence(sequence) },
            event_type, schema, wall_us, quality, qty, body,
            class: EventClass::Business,
            boottime_ns: clock.map_or(0, |(_, ns)| ns),
            unsynchronised: clock.map(|(boot, _)| BootId(boot)),
        }
    }
}

proptest! {
    // covers: EVT-01, F085
    #[test]
    fn what_is_written_is_read_back_whole_with_the_same_digest(event in events()) {
        let read = from_json(&to_json(&event), Notation::Native).unwrap();
        prop_assert_eq!(digest(&read), digest(&event));
        prop_assert_eq!(read, event);
    }

    // covers: ING-04
    #[test]
    fn one_changed_byte_is_another_event_or_none(event in events(), at: prop::sample::Index, with: u8) {
        let json = to_json(&event);
        let mut bytes = json.clone().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = with;
        let Ok(changed) = String::from_utf8(bytes) else { return Ok(()); };
        // Only what the digest does not cover may pass: notation of its own names and of the clock.
        if let Ok(read) = from_json(&changed, Notation::Native) {
            let content = |e: &EventRecord| (e.key.clone(), e.event_type.clone(), e.schema, e.wall_us, e.quality, e.qty, e.body.clone());
            prop_assert_eq!(content(&read), content(&event));
        }
    }

    #[test]
    fn nothing_that_is_sent_ends_in_a_panic(text in ".*") {
        let _ = from_json(&text, Notation::Native);
        let _ = from_json(&text, Notation::CloudEvents);
    }

    #[test]
    fn times_are_read_as_a_library_reads_them(us in -60_000_000_000_000_000_i64..250_000_000_000_000_000, hours in -12_i64..14) {
        prop_assert_eq!(micros(&rfc3339(us)), Some(us));
        let local = rfc3339(us + hours * 3_600_000_000).replace('Z', &format!("{}{:02}:00", if hours < 0 { '-' } else { '+' }, hours.abs()));
        prop_assert_eq!(micros(&local), Some(us));
        let by_library: jiff::Timestamp = local.parse().unwrap();
        prop_assert_eq!(by_library.as_microsecond(), us);
    }
}

fn error(change: impl Fn(&mut serde_json::Value)) -> WireError {
    let mut value: serde_json::Value = serde_json::from_str(&to_json(&event())).unwrap();
    change(&mut value);
    from_json(&value.to_string(), Notation::Native).unwrap_err()
}

// covers: B8, B12, F085
#[test]
fn each_wrong_part_is_named() {
    use serde_json::json;
    let cases = [
        ("source", json!(""), "invalid_source", "1 to 128 characters"),
        (
            "source",
            json!(null),
            "missing_member",
            "found nothing, or null",
        ),
        (
            "source",
            json!("a\u{0}b"),
            "invalid_source",
            "control character",
        ),
        (
            "epoch",
            json!(null),
            "invalid_epoch",
            "found nothing, or null",
        ),
        (
            "epoch",
            json!(7),
            "invalid_epoch",
            "expected a string of digits",
        ),
        ("epoch", json!("-1"), "invalid_epoch", "found \"-1\""),
        (
            "sequence",
            json!("9223372036854775808"),
            "invalid_sequence",
            "at most 9223372036854775807",
        ),
        (
            "sequence",
            json!("042"),
            "invalid_sequence",
            "found \"042\"",
        ),
        ("sequence", json!(""), "invalid_sequence", "found \"\""),
        ("type", json!(5), "invalid_member", "expected a string"),
        ("schema", json!(65536), "invalid_schema", "0 to 65535"),
        (
            "time",
            json!("2026-11-30T08:00:00Z"),
            "invalid_time",
            "six decimals",
        ),
        (
            "quality",
            json!("fine"),
            "invalid_quality",
            "good, uncertain",
        ),
        ("qty", json!(1.5), "invalid_qty", "whole number"),
        ("qty", json!("1"), "invalid_qty", "whole number"),
        ("qty", json!(2), "digest_mismatch", "changed on the way"),
        ("body", json!({}), "digest_mismatch", "changed on the way"),
        ("digest", json!(null), "missing_member", "digest"),
    ];
    for (member, value, code, says) in cases {
        let found = error(|event| event[member] = value.clone());
        assert_eq!(found.code, code, "{member}: {found:?}");
        assert!(found.reason.contains(says), "{member}: {found:?}");
    }
    let found = error(|event| event["qty"] = 2.into());
    assert_eq!(found.key.as_deref(), Some("press-1/7/42"));
    let twice = to_json(&event()).replace("\"qty\":1", "\"qty\":5,\"qty\":1");
    let found = from_json(&twice, Notation::Native).unwrap_err();
    assert!(found.reason.contains("duplicate field"), "{found:?}");
    let more = to_json(&event()).replace("\"qty\":1", "\"qty\":1,\"later\":{}");
    assert_eq!(from_json(&more, Notation::Native).unwrap(), event());
}

#[test]
fn a_cloud_event_is_the_same_event() {
    let sent = format!(
        "{{\"specversion\":\"1.0\",\"source\":\"press-1\",\"id\":\"7-42\",\"type\":\"piece.good\",\
         \"time\":\"2026-11-30T17:00:00.123456+09:00\",\"datacontenttype\":\"application/json; charset=utf-8\",\
         \"schemaversion\":1,\"qty\":1,\"data\":{{\"b\": 1.50,  \"a\":2}},\"digest\":\"{}\"}}",
        sha256_text(&digest(&event()))
    );
    assert_eq!(from_json(&sent, Notation::CloudEvents).unwrap(), event());
    let cases = [
        ("\"7-42\"", "\"42\"", "invalid_id"),
        ("\"7-42\"", "\"7-\"", "invalid_id"),
        ("\"1.0\"", "\"0.3\"", "invalid_specversion"),
        ("application/json", "application/xml", "invalid_data"),
        ("\"qty\":1", "\"qty\":2", "digest_mismatch"),
        (
            "\"data\":",
            "\"data_base64\":\"AA==\",\"x\":",
            "invalid_data",
        ),
        (".123456+", ".1234567+", "invalid_time"),
    ];
    for (from, to, code) in cases {
        let found = from_json(&sent.replacen(from, to, 1), Notation::CloudEvents).unwrap_err();
        assert_eq!(found.code, code, "{found:?}");
    }
}

#[test]
fn times_that_do_not_exist_are_refused() {
    for text in [
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-11-30T24:00:00Z",
        "2026-11-30T23:59:60Z",
        "2026-11-30 08:00:00Z",
        "2026-11-30T08:00:00",
        "2026-11-30T08:00:00.Z",
        "2026-11-30T08:00:00+9:00",
        "2026-11-30T08:00:00+09:60",
        "+026-11-30T08:00:00Z",
        "２026-11-30T08:00:00Z",
    ] {
        assert_eq!(micros(text), None, "{text}");
    }
    assert!(micros("2024-02-29T23:59:59.5Z").is_some());
}
