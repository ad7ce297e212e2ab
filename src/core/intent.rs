//! Owns: what a request means: canonical encoding, units, digest, and the difference of two intents.
//! May call: ids, spec, time, units.
//! Never: use the digest as an identity, or let key order, white space or notation change it.

use super::ids::OperationId;
use super::spec::{ArgSpec, ArgValue, DataType, Row};
use super::units::{self, UnitError};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use unicode_normalization::UnicodeNormalization;

/// Version of the canonical encoding (CMD-04).
pub const ENCODING_VERSION: u16 = 1;
/// Most significant digits of a number: what a [`Decimal`] always holds.
pub const NUMBER_DIGITS_MAX: usize = 28;
/// Most characters of a caller's value that an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// A request as it came in, before any check.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Request {
    /// Checked against CMD-01 by the gateway.
    pub operation_id: Option<String>,
    /// Which machine.
    pub machine: String,
    /// Which row of its policy table.
    pub command: String,
    /// By name.
    pub args: BTreeMap<String, RawArg>,
    /// The configuration version that the caller has in mind.
    pub expected_config_version: Option<u32>,
    /// Validity, in milliseconds; the row's default if absent.
    pub ttl_ms: Option<u64>,
    /// When the caller issued it, microseconds since 1970 (TIME-06).
    pub issued_at_us: Option<i64>,
    /// A waiting operation that this one takes the place of (POL-05).
    pub replaces: Option<String>,
    /// An earlier operation that this one does again (CMD-08); not part of the intent.
    pub reissue_of: Option<String>,
    /// Why it is done again; not part of the intent.
    pub reason: Option<String>,
}

/// An argument as the caller wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawArg {
    /// The value.
    pub value: RawValue,
    /// Its unit; the schema's if absent.
    pub unit: Option<String>,
}

/// A JSON scalar, its number still in the caller's notation.
#[derive(Clone, Debug, PartialEq)]
pub enum RawValue {
    /// `true`, `false`.
    Bool(bool),
    /// Such as `50`, `50.0`, `5e1`.
    Number(String),
    /// Text.
    Text(String),
}

/// The part of a request that means something, checked and normalised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Which machine.
    pub machine: String,
    /// Which command.
    pub command: String,
    /// In the schema's order, defaults filled in.
    pub args: Vec<(String, ArgValue)>,
    /// The configuration version that the caller has in mind.
    pub expected_config_version: Option<u32>,
    /// Validity, in milliseconds, default filled in.
    pub ttl_ms: u64,
    /// When the caller issued it, microseconds since 1970; `None` only for queries.
    pub issued_at_us: Option<i64>,
    /// What it takes the place of.
    pub replaces: Option<OperationId>,
}

/// Evidence of an intent's content; never its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// SHA-256 over the canonical encoding.
    pub sha256: [u8; 32],
    /// Length of the canonical encoding, in bytes.
    pub length: u32,
    /// See [`ENCODING_VERSION`].
    pub encoding: u16,
}

/// What is wrong with one field of a request; the caller mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {found}; expected {expected}")]
pub struct InvalidArgument {
    /// Such as `args.speed` or `ttl`.
    pub field: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

impl InvalidArgument {
    fn new(field: &str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// The one of `candidates` that is most like `name`, if any is like it at all.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |candidate: &&str| strsim::jaro_winkler(name, candidate);
    candidates
        .into_iter()
        .map(|candidate| (likeness(&candidate), candidate))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// Checks `request` against `row` and brings it into the one form that all requests of the same
/// meaning share (CMD-04).
///
/// # Errors
/// The first field that is wrong, with what was found and expected. A secret's value is not repeated.
pub fn canonicalise(request: &Request, row: &Row) -> Result<Intent, InvalidArgument> {
    refuse_unknown_args(request, row)?;
    let args = row
        .args
        .iter()
        .map(|spec| Ok((spec.name.clone(), arg(request.args.get(&spec.name), spec)?)))
        .collect::<Result<_, _>>()?;
    if row.precondition && request.expected_config_version.is_none() {
        return Err(InvalidArgument::new(
            "expected_config_version",
            "nothing",
            "the configuration version this command is meant for (the row has a precondition)",
        ));
    }
    if row.class.has_side_effect() && request.issued_at_us.is_none() {
        return Err(InvalidArgument::new(
            "issued_at",
            "nothing",
            "the time at which the command was issued, the same in every retry",
        ));
    }
    Ok(Intent {
        machine: request.machine.clone(),
        command: row.name.clone(),
        args,
        expected_config_version: request.expected_config_version,
        ttl_ms: ttl(request.ttl_ms, row.ttl_ms)?,
        issued_at_us: request.issued_at_us,
        replaces: replaces(request.replaces.as_deref())?,
    })
}

fn refuse_unknown_args(request: &Request, row: &Row) -> Result<(), InvalidArgument> {
    let names = || row.args.iter().map(|spec| spec.name.as_str());
    let Some(unknown) = request.args.keys().find(|n| !names().any(|k| k == *n)) else {
        return Ok(());
    };
    let expected = match nearest(unknown, names()) {
        Some(near) => format!("an argument of this command; did you mean {near:?}?"),
        None if row.args.is_empty() => "no argument: this command has none".to_owned(),
        None => format!("one of {}", names().collect::<Vec<_>>().join(", ")),
    };
    let unknown = shown(unknown);
    Err(InvalidArgument::new(
        &format!("args.{unknown}"),
        "an unknown argument",
        expected,
    ))
}

fn ttl(asked_ms: Option<u64>, row_ms: u64) -> Result<u64, InvalidArgument> {
    match asked_ms {
        None => Ok(row_ms),
        Some(0) => Err(InvalidArgument::new("ttl", "0 ms", "more than 0")),
        Some(ms) if ms > row_ms => Err(InvalidArgument::new(
            "ttl",
            format!("{ms} ms"),
            format!("at most {row_ms} ms, the longest validity of this command"),
        )),
        Some(ms) => Ok(ms),
    }
}

fn replaces(text: Option<&str>) -> Result<Option<OperationId>, InvalidArgument> {
    text.map(OperationId::parse)
        .transpose()
        .map_err(|error| InvalidArgument::new("replaces", error.to_string(), "an operation_id"))
}

/// One argument, checked, in the schema's unit; the default where the caller gave none.
fn arg(given: Option<&RawArg>, spec: &ArgSpec) -> Result<ArgValue, InvalidArgument> {
    let field = format!("args.{}", spec.name);
    let Some(given) = given else {
        return spec.default.clone().ok_or_else(|| {
            InvalidArgument::new(&field, "nothing", format!("{} (no default)", wanted(spec)))
        });
    };
    check_value(&given.value, given.unit.as_deref(), spec).map_err(|mut error| {
        error.field = field;
        if spec.secret {
            error.found = "a value that does not fit (not shown: it is secret)".to_owned();
        }
        error
    })
}

/// Checks and normalises one value, as a caller's argument or as a configured default.
///
/// # Errors
/// What is wrong; `field` is the argument's bare name.
pub fn check_value(
    value: &RawValue,
    unit: Option<&str>,
    spec: &ArgSpec,
) -> Result<ArgValue, InvalidArgument> {
    let wrong = |found: String, expected: String| InvalidArgument::new(&spec.name, found, expected);
    match (spec.data_type, value) {
        (DataType::Bool | DataType::Text(_), _) if unit.is_some() => Err(wrong(
            format!("the unit {:?}", shown(unit.unwrap_or_default())),
            format!("{}, without a unit", wanted(spec)),
        )),
        (DataType::Bool, RawValue::Bool(bit)) => Ok(ArgValue::Bool(*bit)),
        (DataType::Text(bytes_max), RawValue::Text(text)) => {
            let text: String = text.nfc().collect();
            if text.contains('\0') {
                Err(wrong("text with a NUL".into(), "text without NUL".into()))
            } else if text.len() > usize::from(bytes_max) {
                Err(wrong(
                    format!("text of {} bytes", text.len()),
                    format!("at most {bytes_max} bytes"),
                ))
            } else {
                Ok(ArgValue::Text(text))
            }
        }
        (DataType::Bool | DataType::Text(_), other) => Err(wrong(describe(other), wanted(spec))),
        (_, RawValue::Number(text)) => number(text, unit, spec).map(ArgValue::Number),
        (_, other) => Err(wrong(describe(other), wanted(spec))),
    }
}

fn number(text: &str, unit: Option<&str>, spec: &ArgSpec) -> Result<Decimal, InvalidArgument> {
    let wrong = |found: String, expected: String| InvalidArgument::new(&spec.name, found, expected);
    let given = parse_number(text).ok_or_else(|| {
        wrong(
            format!("{:?}", shown(text)),
            format!("a number of at most {NUMBER_DIGITS_MAX} significant digits"),
        )
    })?;
    let value = match (unit, spec.unit.as_deref()) {
        (None, _) => given,
        (Some(unit), None) => {
            let found = format!("the unit {:?}", shown(unit));
            return Err(wrong(found, "a number without a unit".into()));
        }
        (Some(from), Some(to)) => units::convert(given, from, to).map_err(|error| match error {
            UnitError::NotComparable => wrong(
                format!("the unit {:?}", shown(from)),
                format!("one of {}", units::comparable(to).join(", ")),
            ),
            UnitError::Inexact => wrong(
                format!("{given} {from}, which has no exact value in {to}"),
                format!("the value in {to}"),
            ),
        })?,
    };
    let low = [type_range(spec.data_type).map(|r| r.0), spec.min];
    let high = [type_range(spec.data_type).map(|r| r.1), spec.max];
    let inside = low.into_iter().flatten().all(|low| value >= low)
        && high.into_iter().flatten().all(|high| value <= high);
    let whole = type_range(spec.data_type).is_none() || value.is_integer();
    if inside && whole {
        Ok(value)
    } else {
        Err(wrong(shown(&value.to_string()), wanted(spec)))
    }
}

/// Least and greatest value of an integer type. Any [`Decimal`] fits an `f32` or `f64`.
#[must_use]
pub fn type_range(data_type: DataType) -> Option<(Decimal, Decimal)> {
    let range = |low: i128, high: i128| {
        Some((
            Decimal::from_i128_with_scale(low, 0),
            Decimal::from_i128_with_scale(high, 0),
        ))
    };
    match data_type {
        DataType::I16 => range(i16::MIN.into(), i16::MAX.into()),
        DataType::U16 => range(0, u16::MAX.into()),
        DataType::I32 => range(i32::MIN.into(), i32::MAX.into()),
        DataType::U32 => range(0, u32::MAX.into()),
        DataType::I64 => range(i64::MIN.into(), i64::MAX.into()),
        DataType::U64 => range(0, u64::MAX.into()),
        DataType::Bool | DataType::F32 | DataType::F64 | DataType::Text(_) => None,
    }
}

/// Reads a JSON number exactly: `50`, `50.0` and `5e1` are one value. `None`: no number (NaN and the
/// infinities are none), or one that needs more than [`NUMBER_DIGITS_MAX`] digits.
#[must_use]
pub fn parse_number(text: &str) -> Option<Decimal> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (coefficient, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((coefficient, exponent)) => (coefficient, parse_exponent(exponent)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = match coefficient.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (coefficient, ""),
    };
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(Decimal::ZERO);
    }
    let dropped = i64::try_from(digits.len() - significant.len()).ok()?;
    let places = i64::try_from(fraction.len()).ok()?;
    let power = exponent.checked_sub(places)?.checked_add(dropped)?;
    decimal(negative, significant, power)
}

fn parse_exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// `significant * 10^power`.
fn decimal(negative: bool, significant: &str, power: i64) -> Option<Decimal> {
    let zeros = usize::try_from(power.max(0)).ok()?;
    let scale = u32::try_from(power.min(0).unsigned_abs()).ok()?;
    if significant.len().checked_add(zeros)? > NUMBER_DIGITS_MAX || scale > 28 {
        return None;
    }
    let mantissa: i128 = significant.parse().ok()?;
    let mantissa = mantissa.checked_mul(10_i128.checked_pow(u32::try_from(zeros).ok()?)?)?;
    let signed = if negative { -mantissa } else { mantissa };
    Decimal::try_from_i128_with_scale(signed, scale).ok()
}

fn wanted(spec: &ArgSpec) -> String {
    let mut text = match spec.data_type {
        DataType::Bool => "true or false".to_owned(),
        DataType::Text(bytes) => format!("text of at most {bytes} bytes"),
        DataType::F32 | DataType::F64 => "a number".to_owned(),
        DataType::I16 | DataType::U16 | DataType::I32 => "a whole number".to_owned(),
        DataType::U32 | DataType::I64 | DataType::U64 => "a whole number".to_owned(),
    };
    let range = type_range(spec.data_type);
    let low = spec.min.or(range.map(|r| r.0));
    let high = spec.max.or(range.map(|r| r.1));
    match (low, high) {
        (Some(low), Some(high)) => text.push_str(&format!(" from {low} to {high}")),
        (Some(low), None) => text.push_str(&format!(" of at least {low}")),
        (None, Some(high)) => text.push_str(&format!(" of at most {high}")),
        (None, None) => {}
    }
    if let Some(unit) = &spec.unit {
        text.push_str(&format!(" {unit}"));
    }
    text
}

fn describe(value: &RawValue) -> String {
    match value {
        RawValue::Bool(bit) => format!("the boolean {bit}"),
        RawValue::Number(text) => format!("the number {}", shown(text)),
        RawValue::Text(text) => format!("the text {:?}", shown(text)),
    }
}

fn shown(text: &str) -> String {
    let mut cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if cut.len() < text.len() {
        cut.push('\u{2026}');
    }
    cut
}

/// The canonical encoding, version [`ENCODING_VERSION`].
///
/// The version (2 bytes), then machine, command, the number of arguments, each argument's name and value,
/// expected configuration version, validity, issue time, what it replaces. Numbers are big-endian, texts
/// and values are preceded by their length (4 bytes), optional fields by 0 or 1 (1 byte); a value begins
/// with its kind (1 byte: 0 bit, 1 number as decimal text, 2 text, 3 SHA-256 of a redacted one).
#[must_use]
pub fn encode(intent: &Intent) -> Vec<u8> {
    let mut to = Vec::with_capacity(128);
    to.extend(ENCODING_VERSION.to_be_bytes());
    put(&mut to, intent.machine.as_bytes());
    put(&mut to, intent.command.as_bytes());
    to.extend(length(intent.args.len()));
    for (name, value) in &intent.args {
        put(&mut to, name.as_bytes());
        put(&mut to, &encode_value(value));
    }
    let version = intent.expected_config_version;
    put_option(&mut to, version.map(u32::to_be_bytes));
    to.extend(intent.ttl_ms.to_be_bytes());
    put_option(&mut to, intent.issued_at_us.map(i64::to_be_bytes));
    to.push(u8::from(intent.replaces.is_some()));
    if let Some(id) = &intent.replaces {
        put(&mut to, id.as_str().as_bytes());
    }
    to
}

fn encode_value(value: &ArgValue) -> Vec<u8> {
    let tagged = |tag: u8, bytes: &[u8]| [&[tag], bytes].concat();
    match value {
        ArgValue::Bool(bit) => tagged(0, &[u8::from(*bit)]),
        ArgValue::Number(number) => tagged(1, number.normalize().to_string().as_bytes()),
        ArgValue::Text(text) => tagged(2, text.as_bytes()),
        ArgValue::Redacted(sha256) => tagged(3, sha256),
    }
}

fn length(length: usize) -> [u8; 4] {
    // No request comes near 4 GiB; one that did would still not collide, for its bytes follow.
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(length(bytes.len()));
    to.extend(bytes);
}

fn put_option<const N: usize>(to: &mut Vec<u8>, bytes: Option<[u8; N]>) {
    to.push(u8::from(bytes.is_some()));
    to.extend(bytes.into_iter().flatten());
}

/// Evidence of what `intent` means; to be taken before any secret is redacted.
#[must_use]
pub fn digest(intent: &Intent) -> Digest {
    let bytes = encode(intent);
    Digest {
        sha256: Sha256::digest(&bytes).into(),
        length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        encoding: ENCODING_VERSION,
    }
}

/// Names of the fields in which two intents differ, in the order of the encoding. A redacted value is
/// compared by its hash.
#[must_use]
pub fn difference(a: &Intent, b: &Intent) -> Vec<String> {
    let mut fields = Vec::new();
    let mut note = |differs: bool, name: &str| {
        if differs {
            fields.push(name.to_owned());
        }
    };
    note(a.machine != b.machine, "machine");
    note(a.command != b.command, "command");
    let of = |intent: &Intent, name: &str| -> Option<[u8; 32]> {
        let found = intent.args.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| fingerprint(value))
    };
    let mut seen = BTreeSet::new();
    for (name, _) in a.args.iter().chain(&b.args) {
        if seen.insert(name) {
            note(of(a, name) != of(b, name), &format!("args.{name}"));
        }
    }
    note(
        a.expected_config_version != b.expected_config_version,
        "expected_config_version",
    );
    note(a.ttl_ms != b.ttl_ms, "ttl");
    note(a.issued_at_us != b.issued_at_us, "issued_at");
    note(a.replaces != b.replaces, "replaces");
    fields
}

fn fingerprint(value: &ArgValue) -> [u8; 32] {
    match value {
        ArgValue::Redacted(sha256) => *sha256,
        clear => Sha256::digest(encode_value(clear)).into(),
    }
}

/// Replaces the value of every argument that `row` calls secret by its hash (CMD-10). The hash serves
/// [`difference`]; where a secret has few possible values it can be guessed, as the digest's can.
pub fn redact(intent: &mut Intent, row: &Row) {
    let is_secret = |name: &str| row.args.iter().any(|spec| spec.secret && spec.name == name);
    for (name, value) in &mut intent.args {
        if is_secret(name) {
            *value = ArgValue::Redacted(fingerprint(value));
        }
    }
}

/// Replaces the value of every argument by its hash.
pub fn redact_all(intent: &mut Intent) {
    for (_, value) in &mut intent.args {
        *value = ArgValue::Redacted(fingerprint(value));
    }
}

#[cfg(test)]
mod tests;
