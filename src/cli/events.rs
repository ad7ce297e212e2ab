//! Owns: `events`: the log's events, and following them.
//! May call: client, text.
//! Never: skip one between the list and the stream.

use super::client::{Client, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, short_time};
use crate::api::types::StatusView;
use clap::Args;
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

/// Arguments of `events`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct EventsArgs {
    /// Behind this event (source/epoch/sequence), or behind this cursor
    #[arg(long, value_name = "KEY")]
    pub since: Option<String>,
    /// Go on as new ones come, until interrupted
    #[arg(long)]
    pub follow: bool,
}

#[derive(Deserialize)]
struct Part {
    // As they came: a digest is over these bytes.
    events: Vec<Box<RawValue>>,
    next: Option<String>,
}

pub(super) async fn run(client: &Client, out: &mut Out, args: EventsArgs) -> Result<Exit, Failure> {
    // Asked before the list, so that what comes after an empty one is not missed.
    let mut begin = if args.follow {
        let status: StatusView = client.get("/v1/status").await?.parse()?;
        Some(status.journal.commit)
    } else {
        None
    };
    let mut after = args.since;
    loop {
        let params = [("after", after.as_deref()), ("limit", Some("500"))];
        let part: Part = client
            .get(&with_params("/v1/events", &params))
            .await?
            .parse()?;
        for event in &part.events {
            show(event.get(), out);
        }
        if !out.flush() {
            return Ok(Exit::Done);
        }
        let last = part.events.last().and_then(|event| cursor(event.get()));
        match (part.next, last) {
            (Some(next), _) => after = Some(next),
            (None, Some(last)) => {
                begin = Some(last);
                break;
            }
            (None, None) => break,
        }
    }
    if !args.follow {
        return Ok(Exit::Done);
    }
    let follow = client.stream(begin.as_deref(), |data| {
        show(data, out);
        out.flush()
    });
    follow.await?;
    if out.flush() {
        let why = "the stream ended: the gateway is stopping";
        return Err(Failure::NotReachable(why.into()));
    }
    Ok(Exit::Done)
}

fn cursor(event: &str) -> Option<String> {
    let event: Json = serde_json::from_str(event).ok()?;
    event["cursor"].as_str().map(str::to_owned)
}

/// One event a line; as JSON exactly as it came.
fn show(event: &str, out: &mut Out) {
    if out.json() {
        out.raw(event);
        return;
    }
    let event: Json = serde_json::from_str(event).unwrap_or(Json::Null);
    let text = |name: &str| event[name].as_str().unwrap_or("?").to_owned();
    let quality = text("quality");
    let quality = if quality == "good" {
        String::new()
    } else {
        format!(" [{quality}]")
    };
    out.line(&format!(
        "{} {}/{}/{} {} x{}{quality}{}",
        short_time(&text("time")),
        text("source"),
        text("epoch"),
        text("sequence"),
        text("type"),
        event["qty"],
        members(&event["body"])
    ));
}

/// `name=value` of whatever there is to say, so that a line breaks between them.
fn members(body: &Json) -> String {
    let fields = body.as_object().into_iter().flatten();
    fields
        .filter(|(_, value)| !value.is_null() && value.as_str() != Some(""))
        .map(|(name, value)| format!(" {name}={value}"))
        .collect()
}
