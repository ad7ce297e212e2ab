//! Owns: `read`: tags of a machine, each with its quality and the time it was read (EVT-06).
//! May call: client, text.
//! Never: show a value that could not be read.

use super::client::{Client, encode, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, pad, short_time};
use crate::api::types::TagView;
use serde::Deserialize;

#[derive(Deserialize)]
struct Tags {
    tags: Vec<TagView>,
}

pub(super) async fn run(
    client: &Client,
    out: &mut Out,
    machine: &str,
    tags: &[String],
    cached: bool,
) -> Result<Exit, Failure> {
    let names = (!tags.is_empty()).then(|| tags.join(","));
    let path = format!("/v1/machines/{}/tags", encode(machine));
    let now = if cached { "false" } else { "true" };
    let path = with_params(&path, &[("read", names.as_deref()), ("now", Some(now))]);
    let raw = client.get(&path).await?;
    let found: Tags = raw.parse()?;
    if out.json() {
        out.raw(&raw.text);
        return Ok(Exit::Done);
    }
    for tag in &found.tags {
        show(tag, out);
    }
    Ok(Exit::Done)
}

fn show(tag: &TagView, out: &mut Out) {
    let tone = if tag.quality == "good" {
        Tone::Plain
    } else {
        Tone::Warn
    };
    let value = match (&tag.value, tag.value.as_str()) {
        (serde_json::Value::Null, _) => "-".to_owned(),
        (_, Some(text)) => text.to_owned(),
        (value, None) => value.to_string(),
    };
    let unit = tag.unit.as_deref().unwrap_or_default();
    let read_at = tag
        .read_at
        .as_deref()
        .map_or("never read".into(), short_time);
    out.toned(
        tone,
        &format!(
            "{} {} {} {read_at}",
            pad(&tag.name, 20),
            pad(format!("{value} {unit}").trim_end(), 20),
            pad(&tag.quality, 9)
        ),
    );
    if let Some(reason) = &tag.reason {
        out.line(&format!("  {reason}"));
    }
}
