//! Owns: `submit`: from `name=value[unit]` or a JSON file to the interface's request.
//! May call: client, text, op.
//! Never: make an operation_id; only the caller knows what is a retry.

use super::client::{Client, encode, with_params};
use super::exit::{Exit, Failure};
use super::op::{readable, show_brief};
use super::text::{Out, now};
use crate::api::types::{OperationView, parse_duration_ms};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use std::path::{Path, PathBuf};

/// Longest request file; the interface takes no more.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct SubmitArgs {
    /// Which machine
    #[arg(required_unless_present = "file")]
    pub machine: Option<String>,
    /// Which command of that machine
    #[arg(required_unless_present = "file")]
    pub command: Option<String>,
    /// name=value, name=value with a unit (speed=50rpm), or name="text"
    pub args: Vec<String>,
    /// Its identity, the same for every retry; needed for all but queries
    #[arg(long)]
    pub id: Option<String>,
    /// How long it is valid, such as 10s
    #[arg(long)]
    pub ttl: Option<String>,
    /// The configuration version that is meant
    #[arg(long, value_name = "N", value_parser = version)]
    pub expect_version: Option<u32>,
    /// A waiting operation that this one takes the place of
    #[arg(long, value_name = "ID")]
    pub replaces: Option<String>,
    /// Issue time, RFC 3339; now, or that of the operation recorded under --id
    #[arg(long, value_name = "T")]
    pub issued_at: Option<String>,
    /// Wait for the end, at most so long, such as 10s; without it, exit code 0 says that it is recorded,
    /// not that it is done
    #[arg(long, value_name = "TIME")]
    pub wait: Option<String>,
    /// The request as JSON, as the interface takes it; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "command", "args", "id", "ttl", "expect_version", "replaces", "issued_at"])]
    pub file: Option<PathBuf>,
}

pub(super) async fn run(client: &Client, out: &mut Out, args: SubmitArgs) -> Result<Exit, Failure> {
    let wait_ms = wait_ms(args.wait.as_deref())?;
    let body = match &args.file {
        Some(file) => read_file(file)?,
        None => build(client, &args).await?.to_string(),
    };
    let path = with_params("/v1/operations", &[("wait", args.wait.as_deref())]);
    let raw = client.post(&path, body, wait_ms).await?;
    let answer: Json = raw.parse()?;
    if out.json() {
        out.raw(&raw.text);
    }
    if answer.get("operation_id").is_none() {
        if !out.json() {
            show_values(&answer["result"]["values"], out);
        }
        return Ok(Exit::Done);
    }
    let operation: OperationView = raw.parse()?;
    if !out.json() {
        if raw.replayed {
            out.line("recorded before, with the same meaning; nothing was sent again");
        }
        let readable = readable(client, &operation).await;
        show_brief(&operation, readable, out);
    }
    Ok(exit(&operation, args.wait.is_some()))
}

/// Without a wait, what was asked is to record it; with one, to see its end.
pub(super) fn exit(operation: &OperationView, waited: bool) -> Exit {
    match Exit::of_state(&operation.state) {
        Exit::StillOpen if !waited => Exit::Done,
        exit => exit,
    }
}

/// Reads `--expect-version`.
fn version(text: &str) -> Result<u32, String> {
    let wrong =
        "expected a whole number\n  the machine's configuration version that is meant, such as 7";
    text.parse().map_err(|_| wrong.to_owned())
}

/// Reads `--wait`.
pub(super) fn wait_ms(text: Option<&str>) -> Result<u64, Failure> {
    let Some(text) = text else {
        return Ok(0);
    };
    parse_duration_ms(text)
        .ok_or_else(|| Failure::Usage(format!("--wait {text:?}: expected a duration such as 10s")))
}

pub(super) fn show_values(values: &Json, out: &mut Out) {
    for (name, value) in values.as_object().into_iter().flatten() {
        let shown = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        out.line(&format!("{name} = {shown}"));
    }
}

fn read_file(file: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
    };
    match read {
        Ok(length) if length as u64 > FILE_BYTES_MAX => Err(Failure::Usage(format!(
            "{}: longer than {FILE_BYTES_MAX} bytes, the most a request may have",
            file.display()
        ))),
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::Usage(format!("{}: {error}", file.display()))),
    }
}

async fn build(client: &Client, args: &SubmitArgs) -> Result<Json, Failure> {
    let mut fields = Map::new();
    for text in &args.args {
        let (name, value) = parse_arg(text)?;
        if fields.insert(name.clone(), value).is_some() {
            return Err(Failure::Usage(format!("argument {name:?} is given twice")));
        }
    }
    let issued_at = match (&args.issued_at, &args.id) {
        (Some(time), _) => Some(time.clone()),
        (None, Some(id)) => Some(recorded_issue(client, id).await.unwrap_or_else(now)),
        (None, None) => None,
    };
    Ok(json!({
        "operation_id": args.id,
        "machine": args.machine,
        "command": args.command,
        "args": fields,
        "expected_config_version": args.expect_version,
        "ttl": args.ttl,
        "issued_at": issued_at.unwrap_or_else(now),
        "replaces": args.replaces,
    }))
}

/// The issue time is part of what a request means, so the same command line under the same id repeats
/// the recorded one: it is a retry, not a new intent.
async fn recorded_issue(client: &Client, id: &str) -> Option<String> {
    let raw = client.get(&format!("/v1/operations/{}", encode(id))).await;
    raw.ok()?.parse::<OperationView>().ok()?.issued_at
}

/// Reads `name=value[unit]`.
fn parse_arg(text: &str) -> Result<(String, Json), Failure> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| {
            Failure::Usage(format!(
                "{text:?}: expected name=value, such as speed=50 or speed=50rpm"
            ))
        })?;
    Ok((name.to_owned(), parse_value(value)))
}

fn parse_value(text: &str) -> Json {
    if let Some(quoted) = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
    {
        return json!(quoted);
    }
    match text {
        "true" => return json!(true),
        "false" => return json!(false),
        _ => {}
    }
    // The longest prefix that is a JSON number, so that `5e1` is one and `5eV` is 5 with a unit.
    let split = (1..=text.len())
        .rev()
        .filter(|end| text.is_char_boundary(*end))
        .find(|end| is_number(&text[..*end]));
    let Some(end) = split else {
        return json!(text);
    };
    let number: Json = serde_json::from_str(&text[..end]).unwrap_or(Json::Null);
    let unit = text[end..].trim();
    match unit.chars().next() {
        None => number,
        Some(first) if is_unit(first, unit) => json!({"value": number, "unit": unit}),
        Some(_) => json!(text),
    }
}

fn is_number(text: &str) -> bool {
    !text.ends_with(char::is_whitespace) && serde_json::from_str::<serde_json::Number>(text).is_ok()
}

fn is_unit(first: char, unit: &str) -> bool {
    let begins = first.is_alphabetic() || matches!(first, '%' | '°');
    begins
        && unit
            .chars()
            .all(|c| c.is_alphanumeric() || "%°/^*·²³".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_as_they_are_meant() {
        for (text, expected) in [
            ("50", "50"),
            ("50.0", "50.0"),
            ("5e1", "5e1"),
            ("-3", "-3"),
            ("50rpm", r#"{"unit":"rpm","value":50}"#),
            ("50 rpm", r#"{"unit":"rpm","value":50}"#),
            ("1.5m/s", r#"{"unit":"m/s","value":1.5}"#),
            ("20°C", r#"{"unit":"°C","value":20}"#),
            ("5%", r#"{"unit":"%","value":5}"#),
            ("5eV", r#"{"unit":"eV","value":5}"#),
            ("true", "true"),
            ("abc", r#""abc""#),
            ("007", r#""007""#),
            ("3D-part", r#""3D-part""#),
            ("\"50rpm\"", r#""50rpm""#),
            ("", r#""""#),
        ] {
            let expected: Json = serde_json::from_str(expected).unwrap();
            assert_eq!(parse_value(text), expected, "{text}");
        }
        assert!(parse_arg("=5").is_err());
        assert!(parse_arg("speed").is_err());
    }
}
