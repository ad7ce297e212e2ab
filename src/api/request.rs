//! Owns: reading a request's JSON strictly: no unknown name, no name twice, numbers as they were written.
//! May call: core intent types, problems.
//! Never: change a value's notation, or guess what a misspelt name meant.

use super::problem::Problem;
use super::types::{parse_duration_ms, parse_time};
use crate::core::intent::{RawArg, RawValue, Request};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Most arguments of one request.
pub const ARGS_COUNT_MAX: usize = 64;
/// How near a name must be to be suggested (Jaro-Winkler).
const NEAR_ENOUGH: f64 = 0.7;
/// How serde_json hands over a number in its own notation (`arbitrary_precision`).
const NUMBER_KEY: &str = "$serde_json::private::Number";

/// JSON that keeps names in order and numbers as text, and has no name twice.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// As written.
    Number(String),
    /// Text.
    Text(String),
    /// An array, of which only the length matters here: no request has one.
    List(usize),
    /// An object.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// What it is, for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(bit) => bit.to_string(),
            Self::Number(text) => text.clone(),
            Self::Text(text) => format!("{text:?}"),
            Self::List(_) => "a list".into(),
            Self::Object(_) => "an object".into(),
        }
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E: Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E: Error>(self, bit: bool) -> Result<Json, E> {
        Ok(Json::Bool(bit))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.to_string()))
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.to_string()))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }
    fn visit_string<E: Error>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut count = 0;
        while items.next_element::<Json>()?.is_some() {
            count += 1;
        }
        Ok(Json::List(count))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut fields: Vec<(String, Json)> = Vec::new();
        while let Some(name) = entries.next_key::<String>()? {
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom(format_args!("{name:?} is given twice")));
            }
            let value = entries.next_value::<Json>()?;
            if let (NUMBER_KEY, Json::Text(text)) = (name.as_str(), &value) {
                if text.is_empty() || !text.bytes().all(|b| b"+-.eE0123456789".contains(&b)) {
                    return Err(A::Error::custom(format_args!("{text:?} is no number")));
                }
                return Ok(Json::Number(text.clone()));
            }
            fields.push((name, value));
        }
        Ok(Json::Object(fields))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(JsonVisitor)
    }
}

/// The nearest of `names` to `name`, if any is near.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    names
        .into_iter()
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(near, _)| *near >= NEAR_ENOUGH)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

/// An object's fields, each of which must be known.
pub struct Fields(Vec<(String, Json)>);

impl Fields {
    /// Reads one JSON object; an empty body is an empty object.
    ///
    /// # Errors
    /// `malformed`, with line and column, or with the unknown name and the nearest known one.
    pub fn parse(body: &[u8], known: &[&str]) -> Result<Self, Problem> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(Vec::new()));
        }
        let json: Json = serde_json::from_slice(body).map_err(|error| {
            Problem::malformed(format!("this is not the JSON expected: {error}"))
                .with("line", error.line())
                .with("column", error.column())
        })?;
        let Json::Object(fields) = json else {
            return Err(Problem::malformed(format!(
                "found {}; expected a JSON object",
                json.shown()
            )));
        };
        if let Some((name, _)) = fields.iter().find(|(n, _)| !known.contains(&n.as_str())) {
            return Err(unknown_name(name, known));
        }
        Ok(Self(fields))
    }

    /// Takes one field; `null` is the same as absent.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        let index = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(index).1).filter(|value| *value != Json::Null)
    }

    /// Takes a text field.
    ///
    /// # Errors
    /// `invalid_argument` if it is something else.
    pub fn text(&mut self, name: &str, expected: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Text(text)) => Ok(Some(text)),
            Some(other) => Err(Problem::invalid(name, other.shown(), expected)),
        }
    }

    /// Takes a text field that must be there.
    ///
    /// # Errors
    /// `invalid_argument` if it is not, or is something else.
    pub fn required(&mut self, name: &str, expected: &str) -> Result<String, Problem> {
        self.text(name, expected)?
            .ok_or_else(|| Problem::invalid(name, "nothing", expected))
    }
}

fn unknown_name(name: &str, known: &[&str]) -> Problem {
    let near = nearest(name, known.iter().copied());
    let hint = near.map_or_else(
        || format!("expected one of: {}", known.join(", ")),
        |near| format!("did you mean {near:?}?"),
    );
    Problem::malformed(format!("unknown field {name:?}; {hint}"))
        .with("field", name)
        .with("nearest", near)
}

const REQUEST_FIELDS: [&str; 10] = [
    "operation_id",
    "machine",
    "command",
    "args",
    "expected_config_version",
    "ttl",
    "issued_at",
    "replaces",
    "reissue_of",
    "reason",
];

/// Reads `POST /v1/operations`.
///
/// # Errors
/// `malformed` or `invalid_argument`.
pub fn parse_request(body: &[u8]) -> Result<Request, Problem> {
    let mut fields = Fields::parse(body, &REQUEST_FIELDS)?;
    let operation_id = fields.text("operation_id", "text")?;
    let machine = fields.required("machine", "the name of a machine")?;
    let command = fields.required("command", "the name of a command of that machine")?;
    let args = match fields.take("args") {
        None => BTreeMap::new(),
        Some(Json::Object(args)) => parse_args(args)?,
        Some(other) => {
            return Err(Problem::invalid(
                "args",
                other.shown(),
                "an object, such as {\"speed\": 50}",
            ));
        }
    };
    Ok(Request {
        operation_id,
        machine,
        command,
        args,
        expected_config_version: parse_version(&mut fields)?,
        ttl_ms: parse_ttl(&mut fields)?,
        issued_at_us: parse_issued_at(&mut fields)?,
        replaces: fields.text("replaces", "an operation_id")?,
        reissue_of: fields.text("reissue_of", "an operation_id")?,
        reason: fields.text("reason", "text")?,
    })
}

fn parse_args(args: Vec<(String, Json)>) -> Result<BTreeMap<String, RawArg>, Problem> {
    if args.len() > ARGS_COUNT_MAX {
        return Err(Problem::invalid(
            "args",
            format!("{} arguments", args.len()),
            format!("at most {ARGS_COUNT_MAX}"),
        ));
    }
    args.into_iter()
        .map(|(name, value)| Ok((name.clone(), parse_arg(&format!("args.{name}"), value)?)))
        .collect()
}

fn parse_arg(field: &str, value: Json) -> Result<RawArg, Problem> {
    const EXPECTED: &str = "a number, text, true or false, or {\"value\": 50, \"unit\": \"rpm\"}";
    let scalar = |value: Json| match value {
        Json::Bool(bit) => Ok(RawValue::Bool(bit)),
        Json::Number(text) => Ok(RawValue::Number(text)),
        Json::Text(text) => Ok(RawValue::Text(text)),
        other => Err(Problem::invalid(field, other.shown(), EXPECTED)),
    };
    let Json::Object(parts) = value else {
        return Ok(RawArg {
            value: scalar(value)?,
            unit: None,
        });
    };
    const KNOWN: [&str; 2] = ["value", "unit"];
    if let Some((name, _)) = parts.iter().find(|(n, _)| !KNOWN.contains(&n.as_str())) {
        return Err(unknown_name(name, &KNOWN));
    }
    let mut parts = Fields(parts);
    let value = parts
        .take("value")
        .ok_or_else(|| Problem::invalid(field, "no \"value\"", EXPECTED))?;
    Ok(RawArg {
        value: scalar(value)?,
        unit: parts.text("unit", "the name of a unit")?,
    })
}

fn parse_version(fields: &mut Fields) -> Result<Option<u32>, Problem> {
    const NAME: &str = "expected_config_version";
    const EXPECTED: &str = "a whole number from 0 to 4294967295";
    match fields.take(NAME) {
        None => Ok(None),
        Some(Json::Number(text)) => text
            .parse()
            .map(Some)
            .map_err(|_| Problem::invalid(NAME, text, EXPECTED)),
        Some(other) => Err(Problem::invalid(NAME, other.shown(), EXPECTED)),
    }
}

fn parse_ttl(fields: &mut Fields) -> Result<Option<u64>, Problem> {
    const EXPECTED: &str = "a duration such as \"10s\" (units ms, s, min, h, d)";
    fields
        .text("ttl", EXPECTED)?
        .map(|text| {
            parse_duration_ms(&text)
                .ok_or_else(|| Problem::invalid("ttl", format!("{text:?}"), EXPECTED))
        })
        .transpose()
}

fn parse_issued_at(fields: &mut Fields) -> Result<Option<i64>, Problem> {
    const EXPECTED: &str = "a time such as \"2026-11-30T08:00:00Z\" (RFC 3339)";
    fields
        .text("issued_at", EXPECTED)?
        .map(|text| {
            parse_time(&text)
                .map_err(|_| Problem::invalid("issued_at", format!("{text:?}"), EXPECTED))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(body: &str) -> Problem {
        parse_request(body.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_number_stays_as_it_was_written() {
        for written in [
            "50",
            "50.0",
            "5e1",
            "5E+1",
            "-0.10",
            "184467440737095516160",
        ] {
            let body =
                format!("{{\"machine\":\"m\",\"command\":\"c\",\"args\":{{\"x\":{written}}}}}");
            let request = parse_request(body.as_bytes()).unwrap();
            let RawValue::Number(kept) = &request.args["x"].value else {
                panic!("{:?}", request.args);
            };
            assert_eq!(
                kept.to_lowercase().replace('+', ""),
                written.to_lowercase().replace('+', "")
            );
        }
    }

    #[test]
    fn a_whole_request_is_read() {
        let request = parse_request(
            br#"{"operation_id":"OP7","machine":"press-1","command":"set_speed",
            "args":{"speed":{"value":50,"unit":"rpm"},"on":true,"lot":"A"},
            "expected_config_version":7,"ttl":"10s","issued_at":"2026-11-30T08:00:00Z","replaces":null}"#,
        )
        .unwrap();
        assert_eq!(request.args["speed"].unit.as_deref(), Some("rpm"));
        assert_eq!(request.args["on"].value, RawValue::Bool(true));
        assert_eq!(request.expected_config_version, Some(7));
        assert_eq!(request.ttl_ms, Some(10_000));
        assert_eq!(request.issued_at_us, Some(1_796_025_600_000_000));
        assert_eq!(request.replaces, None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        let found = problem(r#"{"machine":"m","command":"c","expected_version":7}"#);
        assert_eq!(found.code, "malformed");
        assert_eq!(found.members["nearest"], "expected_config_version");
        let found =
            problem(r#"{"machine":"m","command":"c","args":{"x":{"value":1,"units":"V"}}}"#);
        assert_eq!(found.members["nearest"], "unit");
    }

    #[test]
    fn a_name_given_twice_is_refused_at_any_depth() {
        for body in [
            r#"{"machine":"m","machine":"m","command":"c"}"#,
            r#"{"machine":"m","command":"c","args":{"x":1,"x":2}}"#,
        ] {
            let found = problem(body);
            assert_eq!(found.code, "malformed");
            assert!(found.detail.contains("twice"), "{}", found.detail);
        }
    }

    #[test]
    fn broken_json_is_refused_with_its_place() {
        let found = problem("{\"machine\":\n \"m\",,}");
        assert_eq!(found.code, "malformed");
        assert_eq!(found.members["line"], 2);
        assert_eq!(found.members["column"], 6);
        assert_eq!(problem("[1]").code, "malformed");
        let deep = "[".repeat(100_000);
        assert_eq!(problem(&deep).code, "malformed");
    }

    #[test]
    fn a_field_of_the_wrong_kind_says_what_was_expected() {
        for (part, field) in [
            (r#""ttl":10"#, "ttl"),
            (r#""ttl":"10""#, "ttl"),
            (r#""issued_at":"yesterday""#, "issued_at"),
            (
                r#""expected_config_version":7.5"#,
                "expected_config_version",
            ),
            (r#""expected_config_version":-1"#, "expected_config_version"),
            (r#""args":{"x":[1]}"#, "args.x"),
            (r#""args":{"x":null}"#, "args.x"),
            (r#""args":[]"#, "args"),
            (r#""operation_id":7"#, "operation_id"),
        ] {
            let found = problem(&format!("{{\"machine\":\"m\",\"command\":\"c\",{part}}}"));
            assert_eq!(found.code, "invalid_argument", "{part}");
            assert_eq!(found.members["field"], field);
            assert!(
                found.members["expected"]
                    .as_str()
                    .is_some_and(|e| !e.is_empty())
            );
        }
        assert_eq!(problem(r#"{"command":"c"}"#).members["field"], "machine");
    }

    #[test]
    fn the_parsers_own_number_key_is_no_way_in() {
        let found = problem(
            r#"{"machine":"m","command":"c","args":{"x":{"$serde_json::private::Number":"NaN"}}}"#,
        );
        assert_eq!(found.code, "malformed");
    }
}
