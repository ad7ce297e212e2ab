//! Owns: an event as it comes from another computer: read part by part, checked against its digest, and what is
//! wrong with it in words.
//! May call: event, record, ids.
//! Never: mend what was sent; re-encode a body; refuse a whole batch for one event.
//!
//! Two notations are understood: the event of `core::event`, and the CloudEvents JSON format with `source`
//! and `id = epoch-sequence`. Members that neither knows are ignored: they are no part of the digest.

use super::event::{digest, rfc3339, sha256_text};
use super::ids::{BootId, Epoch, EventKey, Sequence};
use super::record::EventRecord;
use super::spec::{EventClass, Quality};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longest source, in characters.
pub const SOURCE_CHARS_MAX: usize = 128;
/// Longest type, in characters.
pub const TYPE_CHARS_MAX: usize = 128;
/// Highest epoch and sequence that books can hold.
pub const NUMBER_MAX: u64 = i64::MAX as u64;
/// Most characters of what was sent that a reason repeats.
const SHOWN_CHARS_MAX: usize = 60;

/// The notations an event may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// As `core::event::to_json` writes it.
    Native,
    /// One element of `application/cloudevents-batch+json`.
    CloudEvents,
}

/// Why what was sent is no event. Its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// `source/epoch/sequence` as far as it could be read.
    pub key: Option<String>,
    /// Stable.
    pub code: &'static str,
    /// In plain words.
    pub reason: String,
}

/// What is wrong, before the key is known.
type Wrong = (&'static str, String);

#[derive(Deserialize)]
struct Native<'a> {
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow)]
    epoch: Option<&'a RawValue>,
    #[serde(borrow)]
    sequence: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    event_type: Option<&'a RawValue>,
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
    #[serde(borrow)]
    time: Option<&'a RawValue>,
    #[serde(borrow)]
    quality: Option<&'a RawValue>,
    #[serde(borrow)]
    qty: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
    #[serde(borrow)]
    digest: Option<&'a RawValue>,
    #[serde(borrow)]
    clock: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CloudEvent<'a> {
    #[serde(borrow)]
    specversion: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    event_type: Option<&'a RawValue>,
    #[serde(borrow)]
    time: Option<&'a RawValue>,
    #[serde(borrow)]
    datacontenttype: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    data_base64: Option<&'a RawValue>,
    #[serde(borrow)]
    schemaversion: Option<&'a RawValue>,
    #[serde(borrow)]
    quality: Option<&'a RawValue>,
    #[serde(borrow)]
    qty: Option<&'a RawValue>,
    #[serde(borrow)]
    digest: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Clock {
    boot_id: String,
    boottime_ns: String,
}

/// Reads one event. Its class is not on the wire: what has arrived is `business`.
///
/// # Errors
/// [`WireError`]: what was found and what was expected.
pub fn from_json(text: &str, notation: Notation) -> Result<EventRecord, WireError> {
    match notation {
        Notation::Native => native(text),
        Notation::CloudEvents => cloud_event(text),
    }
}

fn native(text: &str) -> Result<EventRecord, WireError> {
    let parts: Native<'_> = shape(text)?;
    let key_text = key_text(parts.source, parts.epoch, parts.sequence);
    let read = || -> Result<EventRecord, Wrong> {
        let (boottime_ns, unsynchronised) = clock(parts.clock)?;
        let event = EventRecord {
            key: EventKey {
                source: name("source", parts.source, SOURCE_CHARS_MAX)?,
                epoch: Epoch(number("epoch", parts.epoch)?),
                sequence: Sequence(number("sequence", parts.sequence)?),
            },
            event_type: name("type", parts.event_type, TYPE_CHARS_MAX)?,
            schema: schema(need("schema", parts.schema)?)?,
            wall_us: canonical_time(need("time", parts.time)?)?,
            boottime_ns,
            quality: quality(need("quality", parts.quality)?)?,
            class: EventClass::Business,
            qty: qty(need("qty", parts.qty)?)?,
            body: parts.body.map_or("null", RawValue::get).to_owned(),
            unsynchronised,
        };
        same_digest(&event, need("digest", parts.digest)?)?;
        Ok(event)
    };
    read().map_err(|wrong| with_key(key_text, wrong))
}

fn cloud_event(text: &str) -> Result<EventRecord, WireError> {
    let parts: CloudEvent<'_> = shape(text)?;
    let id = parts.id.and_then(plain);
    let source = parts.source.and_then(plain);
    let key_text = source
        .as_ref()
        .zip(id.as_ref())
        .map(|(source, id)| format!("{source}/{}", id.replacen('-', "/", 1)));
    let read = || -> Result<EventRecord, Wrong> {
        if text_of("specversion", parts.specversion)? != "1.0" {
            return Err((
                "invalid_specversion",
                "specversion: expected \"1.0\"".into(),
            ));
        }
        if parts.data_base64.is_some() {
            return Err(("invalid_data", "data_base64: expected data, as JSON".into()));
        }
        if let Some(media) = parts.datacontenttype.and_then(plain)
            && !is_json(&media)
        {
            let found = shown(&media);
            return Err((
                "invalid_data",
                format!("datacontenttype: found {found}; expected JSON"),
            ));
        }
        let (epoch, sequence) = id_parts(&text_of("id", parts.id)?)?;
        let event = EventRecord {
            key: EventKey {
                source: name("source", parts.source, SOURCE_CHARS_MAX)?,
                epoch: Epoch(epoch),
                sequence: Sequence(sequence),
            },
            event_type: name("type", parts.event_type, TYPE_CHARS_MAX)?,
            schema: parts.schemaversion.map_or(Ok(1), schema)?,
            wall_us: any_time(need("time", parts.time)?)?,
            boottime_ns: 0,
            quality: parts.quality.map_or(Ok(Quality::Good), quality)?,
            class: EventClass::Business,
            qty: parts.qty.map_or(Ok(1), qty)?,
            body: parts.data.map_or("null", RawValue::get).to_owned(),
            unsynchronised: None,
        };
        if let Some(digest) = parts.digest {
            same_digest(&event, digest)?;
        }
        Ok(event)
    };
    read().map_err(|wrong| with_key(key_text, wrong))
}

fn shape<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, WireError> {
    serde_json::from_str(text).map_err(|error| WireError {
        key: None,
        code: "malformed",
        reason: format!("found {error}; expected a JSON object, each member once"),
    })
}

fn with_key(key: Option<String>, (code, reason): Wrong) -> WireError {
    WireError { key, code, reason }
}

fn key_text(
    source: Option<&RawValue>,
    epoch: Option<&RawValue>,
    sequence: Option<&RawValue>,
) -> Option<String> {
    let part = |raw: Option<&RawValue>| raw.and_then(plain);
    Some(format!(
        "{}/{}/{}",
        part(source)?,
        part(epoch)?,
        part(sequence)?
    ))
}

/// A string as it was meant.
fn plain(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn need<'a>(field: &'static str, raw: Option<&'a RawValue>) -> Result<&'a RawValue, Wrong> {
    raw.ok_or_else(|| ("missing_member", format!("{field}: found nothing, or null")))
}

fn text_of(field: &'static str, raw: Option<&RawValue>) -> Result<String, Wrong> {
    let raw = need(field, raw)?;
    plain(raw).ok_or_else(|| {
        let found = shown(raw.get());
        (
            "invalid_member",
            format!("{field}: found {found}; expected a string"),
        )
    })
}

fn name(field: &'static str, raw: Option<&RawValue>, chars_max: usize) -> Result<String, Wrong> {
    let text = text_of(field, raw)?;
    if text.is_empty() || text.chars().count() > chars_max || text.chars().any(char::is_control) {
        let found = shown(&text);
        let code = if field == "source" {
            "invalid_source"
        } else {
            "invalid_type"
        };
        return Err((
            code,
            format!(
                "{field}: found {found:?}; expected 1 to {chars_max} characters, none of them a control character"
            ),
        ));
    }
    Ok(text)
}

/// A number of 63 bits as a string: as a JSON number, others would round it.
fn number(field: &'static str, raw: Option<&RawValue>) -> Result<u64, Wrong> {
    let code = if field == "epoch" {
        "invalid_epoch"
    } else {
        "invalid_sequence"
    };
    let raw = raw.ok_or_else(|| (code, format!("{field}: found nothing, or null")))?;
    let text = plain(raw);
    text.as_deref().and_then(number_in).ok_or_else(|| {
        let found = shown(raw.get());
        (
            code,
            format!("{field}: found {found}; expected a string of digits, at most {NUMBER_MAX}"),
        )
    })
}

fn number_in(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok().filter(|n| *n <= NUMBER_MAX)?;
    (number.to_string() == text).then_some(number)
}

fn id_parts(id: &str) -> Result<(u64, u64), Wrong> {
    let parts = id.split_once('-');
    parts
        .and_then(|(epoch, sequence)| Some((number_in(epoch)?, number_in(sequence)?)))
        .ok_or_else(|| {
            let found = shown(id);
            (
                "invalid_id",
                format!("id: found {found:?}; expected epoch-sequence, such as \"7-42\""),
            )
        })
}

fn schema(raw: &RawValue) -> Result<u16, Wrong> {
    raw.get().parse().map_err(|_| {
        let found = shown(raw.get());
        (
            "invalid_schema",
            format!("schema: found {found}; expected a number from 0 to 65535"),
        )
    })
}

fn qty(raw: &RawValue) -> Result<i64, Wrong> {
    let text = raw.get();
    let number = text.parse::<i64>().ok().filter(|n| n.to_string() == text);
    number.ok_or_else(|| {
        let found = shown(text);
        (
            "invalid_qty",
            format!("qty: found {found}; expected a whole number of 64 bits"),
        )
    })
}

fn quality(raw: &RawValue) -> Result<Quality, Wrong> {
    match plain(raw).as_deref() {
        Some("good") => Ok(Quality::Good),
        Some("uncertain") => Ok(Quality::Uncertain),
        Some("bad") => Ok(Quality::Bad),
        Some("stale") => Ok(Quality::Stale),
        _ => {
            let found = shown(raw.get());
            Err((
                "invalid_quality",
                format!("quality: found {found}; expected good, uncertain, bad or stale"),
            ))
        }
    }
}

/// The one text of an instant, as the digest has it.
fn canonical_time(raw: &RawValue) -> Result<i64, Wrong> {
    let time = plain(raw).and_then(|text| micros(&text).filter(|us| rfc3339(*us) == text));
    time.ok_or_else(|| {
        let found = shown(raw.get());
        ("invalid_time", format!("time: found {found}; expected UTC with six decimals, such as \"2026-11-30T08:00:00.000000Z\""))
    })
}

/// Any RFC 3339 time of whole microseconds.
fn any_time(raw: &RawValue) -> Result<i64, Wrong> {
    plain(raw).and_then(|text| micros(&text)).ok_or_else(|| {
        let found = shown(raw.get());
        (
            "invalid_time",
            format!("time: found {found}; expected RFC 3339, at most six decimals"),
        )
    })
}

/// Microseconds since 1970 of an RFC 3339 text; years of four digits.
fn micros(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let digits = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !marks.iter().all(|(at, mark)| bytes.get(*at) == Some(mark)) {
        return None;
    }
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    if !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut fraction_us = 0;
    if let Some(after) = rest.strip_prefix('.') {
        let length = after.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, zone) = after.split_at(length);
        // What is finer than a microsecond cannot be kept.
        if length == 0 || digits.bytes().skip(6).any(|b| b != b'0') {
            return None;
        }
        let six: String = digits.chars().chain("000000".chars()).take(6).collect();
        fraction_us = six.parse().ok()?;
        rest = zone;
    }
    let offset_minutes = match rest {
        "Z" => 0,
        _ => zone_minutes(rest)?,
    };
    let seconds = days_from_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
        - offset_minutes * 60;
    seconds.checked_mul(1_000_000)?.checked_add(fraction_us)
}

/// `+09:00`.
fn zone_minutes(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let two = |part: &str| -> Option<i64> {
        (part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit())).then(|| part.parse().ok())?
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 60 + minutes))
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days of the proleptic Gregorian calendar: years are counted from March, as in `core::event`.
fn days_from_1970(year: i64, month: i64, day: i64) -> i64 {
    const DAYS_TO_1970: i64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - DAYS_TO_1970
}

fn clock(raw: Option<&RawValue>) -> Result<(u64, Option<BootId>), Wrong> {
    let Some(raw) = raw else {
        return Ok((0, None));
    };
    let read = || {
        let clock: Clock = serde_json::from_str(raw.get()).ok()?;
        Some((
            clock.boottime_ns.parse().ok()?,
            BootId::parse(&clock.boot_id)?,
        ))
    };
    let found = read().ok_or_else(|| {
        let found = shown(raw.get());
        (
            "invalid_clock",
            format!("clock: found {found}; expected boot_id and boottime_ns, as strings"),
        )
    })?;
    Ok((found.0, Some(found.1)))
}

fn same_digest(event: &EventRecord, raw: &RawValue) -> Result<(), Wrong> {
    let computed = sha256_text(&digest(event));
    if plain(raw).as_deref() == Some(computed.as_str()) {
        return Ok(());
    }
    let found = shown(raw.get());
    Err((
        "digest_mismatch",
        format!(
            "digest: found {found}; the content as it arrived gives {computed}: it was changed on the way, or made otherwise"
        ),
    ))
}

/// `application/json`, or a type that ends in `+json`, with any parameters.
fn is_json(media: &str) -> bool {
    let bare = media
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    bare == "application/json" || bare == "text/json" || bare.ends_with("+json")
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
