//! Owns: the tests of canonical form, digest and difference.
//! May call: the module under test.
//! Never: anything else.

use super::*;
use crate::core::spec::{
    Action, Address, Class, Completion, ModbusArea, OnRestart, ReplaceRule, Verify, WordOrder,
};
use proptest::prelude::*;

fn spec(name: &str, data_type: DataType, unit: Option<&str>) -> ArgSpec {
    ArgSpec {
        name: name.into(),
        data_type,
        word_order: WordOrder::HighFirst,
        unit: unit.map(str::to_owned),
        min: None,
        max: None,
        default: None,
        secret: false,
    }
}

fn row() -> Row {
    let mut speed = spec("speed", DataType::U16, Some("rpm"));
    (speed.min, speed.max) = (Some(Decimal::ZERO), Some(Decimal::from(3000)));
    let mut ramp = spec("ramp", DataType::F32, Some("s"));
    ramp.default = Some(ArgValue::Number(Decimal::new(25, 1)));
    let mut pin = spec("pin", DataType::Text(8), None);
    pin.secret = true;
    pin.default = Some(ArgValue::Text("0000".into()));
    let mut slow = spec("slow", DataType::Bool, None);
    slow.default = Some(ArgValue::Bool(false));
    Row {
        name: "set_speed".into(),
        class: Class::AbsoluteSet,
        queueable: true,
        ttl_ms: 10_000,
        max_queued: 1,
        stop: false,
        replace: ReplaceRule::Never,
        precondition: true,
        on_restart: OnRestart::Hold,
        completion: Completion::Reply,
        completion_timeout_ms: 30_000,
        verify: Verify::Readback,
        interlocks: vec![],
        args: vec![speed, ramp, pin, slow],
        action: Action::Write {
            start: Address::Modbus {
                area: ModbusArea::Holding,
                offset: 100,
            },
            request_id: false,
        },
        device_contract_mailbox: false,
        merge_latest: false,
        i_accept: None,
        origins: BTreeMap::new(),
    }
}

fn raw(value: RawValue, unit: Option<&str>) -> RawArg {
    RawArg {
        value,
        unit: unit.map(str::to_owned),
    }
}

fn request(speed: &str, unit: Option<&str>) -> Request {
    Request {
        operation_id: Some("OP7".into()),
        machine: "press-1".into(),
        command: "set_speed".into(),
        args: BTreeMap::from([("speed".into(), raw(RawValue::Number(speed.into()), unit))]),
        expected_config_version: Some(7),
        issued_at_us: Some(1_000_000),
        ..Request::default()
    }
}

fn with(name: &str, value: RawValue) -> Request {
    let mut request = request("50", None);
    request.args.insert(name.into(), raw(value, None));
    request
}

fn error(request: &Request) -> InvalidArgument {
    canonicalise(request, &row()).unwrap_err()
}

// covers: CMD-04, A3
#[test]
fn one_meaning_has_one_digest() {
    let plain = canonicalise(&request("50", None), &row()).unwrap();
    for (number, unit) in [
        ("50.0", None),
        ("5e1", None),
        ("5E+1", Some("rpm")),
        ("500e-1", Some("1/min")),
        ("50.000000000000000000000000000000000000000", None),
    ] {
        let same = canonicalise(&request(number, unit), &row()).unwrap();
        assert_eq!(digest(&same), digest(&plain), "{number} {unit:?}");
        assert_eq!(same, plain);
    }
    let hertz = canonicalise(&request("1.5", Some("1/s")), &row()).unwrap();
    assert_eq!(hertz, canonicalise(&request("90", None), &row()).unwrap());

    let mut spelled_out = with("ramp", RawValue::Number("2.50".into()));
    spelled_out.ttl_ms = Some(10_000);
    let default = canonicalise(&spelled_out, &row()).unwrap();
    assert_eq!(digest(&default), digest(&plain));

    let composed = canonicalise(&with("pin", RawValue::Text("\u{e9}".into())), &row()).unwrap();
    let apart = canonicalise(&with("pin", RawValue::Text("e\u{301}".into())), &row()).unwrap();
    assert_eq!(digest(&composed), digest(&apart));
    assert_ne!(digest(&composed), digest(&plain));
}

// covers: CMD-03, A2
#[test]
fn differing_fields_are_named() {
    let old = canonicalise(&request("50", None), &row()).unwrap();
    let mut other = with("slow", RawValue::Bool(true));
    other.args.get_mut("speed").unwrap().value = RawValue::Number("51".into());
    other.ttl_ms = Some(9_000);
    other.issued_at_us = Some(2_000_000);
    other.expected_config_version = Some(8);
    other.replaces = Some("OP6".into());
    other.machine = "press-2".into();
    let new = canonicalise(&other, &row()).unwrap();
    assert_eq!(
        difference(&old, &new),
        [
            "machine",
            "args.speed",
            "args.slow",
            "expected_config_version",
            "ttl",
            "issued_at",
            "replaces"
        ]
    );
    assert!(difference(&old, &old).is_empty());
    assert_eq!(digest(&old).encoding, ENCODING_VERSION);
    assert_eq!(digest(&old).length as usize, encode(&old).len());
}

// covers: CMD-04
#[test]
fn the_encoding_of_version_1_is_fixed() {
    let intent = canonicalise(&request("50", None), &row()).unwrap();
    let mut bytes = vec![0, 1];
    let mut text = |text: &[u8]| {
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text);
    };
    text(b"press-1");
    text(b"set_speed");
    bytes.extend([0, 0, 0, 4]);
    let mut text = |text: &[u8]| {
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text);
    };
    for (name, value) in [
        (&b"speed"[..], &b"\x0150"[..]),
        (b"ramp", b"\x012.5"),
        (b"pin", b"\x020000"),
        (b"slow", b"\x00\x00"),
    ] {
        text(name);
        text(value);
    }
    bytes.extend([1, 0, 0, 0, 7]);
    bytes.extend(10_000_u64.to_be_bytes());
    bytes.push(1);
    bytes.extend(1_000_000_i64.to_be_bytes());
    bytes.push(0);
    assert_eq!(encode(&intent), bytes);
}

// covers: CMD-10, CMD-03
#[test]
fn a_redacted_secret_still_shows_whether_it_differs() {
    let clear = canonicalise(&with("pin", RawValue::Text("1234".into())), &row()).unwrap();
    let mut stored = clear.clone();
    redact(&mut stored, &row());
    assert!(!format!("{stored:?}").contains("1234"));
    assert!(!encode(&stored).windows(4).any(|w| w == b"1234"));
    assert!(difference(&stored, &clear).is_empty());
    let other = canonicalise(&with("pin", RawValue::Text("9999".into())), &row()).unwrap();
    assert_eq!(difference(&stored, &other), ["args.pin"]);
    assert_eq!(stored.args[0], clear.args[0]);
    let twice = {
        let mut again = stored.clone();
        redact(&mut again, &row());
        again
    };
    assert_eq!(twice, stored);
}

// covers: CMD-10
#[test]
fn an_error_does_not_repeat_a_secret() {
    let refused = error(&with("pin", RawValue::Text("hunter2hunter2".into())));
    assert!(!refused.to_string().contains("hunter2"), "{refused}");
    let refused = error(&with("pin", RawValue::Number("271828".into())));
    assert!(!refused.to_string().contains("271828"), "{refused}");
}

// covers: CMD-04
#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    for (request, field, says) in [
        (
            with("sped", RawValue::Bool(true)),
            "args.sped",
            "did you mean \"speed\"?",
        ),
        (request("3001", None), "args.speed", "from 0 to 3000 rpm"),
        (request("-1", None), "args.speed", "from 0 to 3000 rpm"),
        (request("50.5", None), "args.speed", "a whole number"),
        (request("51", Some("1/h")), "args.speed", "one of rpm, 1/s"),
        (request("1", Some("Hz")), "args.speed", "one of rpm, 1/s"),
        (request("NaN", None), "args.speed", "a number"),
        (
            request("1e400", None),
            "args.speed",
            "28 significant digits",
        ),
        (
            request(&"1".repeat(29), None),
            "args.speed",
            "28 significant digits",
        ),
        (
            with("speed", RawValue::Text("NaN".into())),
            "args.speed",
            "the text \"NaN\"",
        ),
        (
            with("speed", RawValue::Text("50".into())),
            "args.speed",
            "a whole number",
        ),
        (
            with("speed", RawValue::Bool(true)),
            "args.speed",
            "the boolean true",
        ),
        (
            with("slow", RawValue::Number("1".into())),
            "args.slow",
            "true or false",
        ),
        (
            with("slow", RawValue::Text("on".into())),
            "args.slow",
            "true or false",
        ),
    ] {
        let refused = error(&request);
        assert_eq!(refused.field, field);
        assert!(refused.to_string().contains(says), "{refused}");
    }
    let mut missing = request("50", None);
    missing.args.clear();
    assert_eq!(error(&missing).field, "args.speed");
}

// covers: TIME-06, CMD-04
#[test]
fn the_fields_beside_the_arguments_are_checked() {
    for (change, field) in [
        (
            Request {
                ttl_ms: Some(0),
                ..request("1", None)
            },
            "ttl",
        ),
        (
            Request {
                ttl_ms: Some(10_001),
                ..request("1", None)
            },
            "ttl",
        ),
        (
            Request {
                issued_at_us: None,
                ..request("1", None)
            },
            "issued_at",
        ),
        (
            Request {
                expected_config_version: None,
                ..request("1", None)
            },
            "expected_config_version",
        ),
        (
            Request {
                replaces: Some("a b".into()),
                ..request("1", None)
            },
            "replaces",
        ),
    ] {
        assert_eq!(error(&change).field, field);
    }
    let mut query = row();
    (query.class, query.precondition) = (Class::Query, false);
    let bare = Request {
        issued_at_us: None,
        expected_config_version: None,
        ..request("1", None)
    };
    assert_eq!(canonicalise(&bare, &query).unwrap().issued_at_us, None);
}

#[test]
fn numbers_are_read_exactly_or_not_at_all() {
    assert_eq!(parse_number("0.1"), Some(Decimal::new(1, 1)));
    assert_eq!(parse_number("-0.0"), Some(Decimal::ZERO));
    assert_eq!(parse_number("0e99999999999999999"), Some(Decimal::ZERO));
    for bad in [
        "", "-", ".5", "1.", "1e", "1e+", "+1", "0x10", "NaN", "inf", "1 ", "--1", "1e-29",
    ] {
        assert_eq!(parse_number(bad), None, "{bad:?}");
    }
}

/// The same number in another notation.
fn respelled(number: i64, shift: u32, zeros: usize, capital: bool) -> String {
    let sign = if number < 0 { "-" } else { "" };
    let digits = format!("{:0>1$}", number.unsigned_abs(), shift as usize + 1);
    let (whole, fraction) = digits.split_at(digits.len() - shift as usize);
    let e = if capital { 'E' } else { 'e' };
    format!("{sign}{whole}.{fraction}0{}{e}{shift}", "0".repeat(zeros))
}

proptest! {
    // covers: CMD-04
    #[test]
    fn notation_never_changes_the_digest(speed in 0_i64..=3000, shift in 0_u32..8, zeros in 0_usize..40,
                                         capital: bool, explicit_defaults: bool) {
        let plain = canonicalise(&request(&speed.to_string(), None), &row()).unwrap();
        let mut other = request(&respelled(speed, shift, zeros, capital), Some("r/min"));
        if explicit_defaults {
            other.args.insert("ramp".into(), raw(RawValue::Number("2500".into()), Some("ms")));
            other.args.insert("slow".into(), raw(RawValue::Bool(false), None));
            other.ttl_ms = Some(10_000);
        }
        other.reason = Some("not part of the intent".into());
        let other = canonicalise(&other, &row()).unwrap();
        prop_assert_eq!(encode(&other), encode(&plain));
        prop_assert_eq!(digest(&other), digest(&plain));
    }

    // covers: CMD-04
    #[test]
    fn any_change_of_meaning_changes_the_digest(a in meaning(), b in meaning()) {
        let (one, two) = (canonicalise(&a, &row()).unwrap(), canonicalise(&b, &row()).unwrap());
        prop_assert_eq!(one == two, digest(&one) == digest(&two));
        prop_assert_eq!(one == two, difference(&one, &two).is_empty());
        let mut stored = one.clone();
        redact(&mut stored, &row());
        prop_assert_eq!(difference(&stored, &two), difference(&one, &two));
    }

    #[test]
    fn no_text_makes_the_number_reader_panic(text in "[-+.eE0-9a-z]{0,40}") {
        if let Some(number) = parse_number(&text) {
            prop_assert_eq!(parse_number(&number.to_string()), Some(number));
        }
    }
}

/// Requests from a space so small that two of them are often the same.
fn meaning() -> impl Strategy<Value = Request> {
    let text = prop_oneof![Just("0000"), Just("a"), Just("ab")];
    (
        0_u16..3,
        text,
        any::<bool>(),
        7_u32..9,
        1_i64..3,
        prop_oneof![Just(None), Just(Some("OP6"))],
    )
        .prop_map(|(speed, pin, slow, version, issued, replaces)| {
            let mut request = with("pin", RawValue::Text(pin.into()));
            request
                .args
                .insert("slow".into(), raw(RawValue::Bool(slow), None));
            request.args.insert(
                "speed".into(),
                raw(RawValue::Number(speed.to_string()), None),
            );
            request.expected_config_version = Some(version);
            request.issued_at_us = Some(issued);
            request.replaces = replaces.map(str::to_owned);
            request
        })
}
