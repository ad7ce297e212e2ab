//! Owns: `events`: the log's events, and following them.
//! May call: client, text.
//! Never: skip one between the list and the stream.

use super::client::{Client, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, short_time};
use clap::Args;
use serde::Deserialize;
use serde_json::Value as Json;

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
    events: Vec<Json>,
    next: Option<String>,
}

pub(super) async fn run(client: &Client, out: &mut Out, args: EventsArgs) -> Result<Exit, Failure> {
    let mut after = args.since;
    loop {
        let params = [("after", after.as_deref()), ("limit", Some("500"))];
        let part: Part = client
            .get(&with_params("/v1/events", &params))
            .await?
            .parse()?;
        for event in &part.events {
            show(event, out);
        }
        if !out.flush() {
            return Ok(Exit::Done);
        }
        let last = part
            .events
            .last()
            .and_then(|event| event["cursor"].as_str());
        match (part.next, last) {
            (Some(next), _) => after = Some(next),
            (None, Some(last)) => {
                after = Some(last.to_owned());
                break;
            }
            (None, None) => break,
        }
    }
    if !args.follow {
        return Ok(Exit::Done);
    }
    // After a key alone nothing has come yet: the stream begins with what is new.
    let last = after.filter(|at| !at.contains('/'));
    let follow = client.stream(last.as_deref(), |data| {
        let event: Json = serde_json::from_str(data).unwrap_or(Json::Null);
        show(&event, out);
        out.flush()
    });
    follow.await?;
    if out.flush() {
        let why = "the stream ended: the gateway is stopping";
        return Err(Failure::NotReachable(why.into()));
    }
    Ok(Exit::Done)
}

/// One event a line; as JSON exactly as it came.
fn show(event: &Json, out: &mut Out) {
    if out.json() {
        out.raw(&event.to_string());
        return;
    }
    let text = |name: &str| event[name].as_str().unwrap_or("?").to_owned();
    let quality = text("quality");
    let quality = if quality == "good" {
        String::new()
    } else {
        format!(" [{quality}]")
    };
    out.line(&format!(
        "{} {}/{}/{} {} x{}{quality} {}",
        short_time(&text("time")),
        text("source"),
        text("epoch"),
        text("sequence"),
        text("type"),
        event["qty"],
        event["body"]
    ));
}
