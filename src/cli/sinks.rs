//! Owns: `sinks`: where events go to, how far they are, and what was answered.
//! May call: client, text, status.
//! Never: call a broker's receipt a commit: the acknowledgement's level is always shown.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::status::show_sink;
use super::text::{Out, now};
use crate::api::types::SinkView;
use serde::Deserialize;

#[derive(Deserialize)]
struct Sinks {
    sinks: Vec<SinkView>,
}

pub(super) async fn run(client: &Client, out: &mut Out) -> Result<Exit, Failure> {
    let raw = client.get("/v1/sinks").await?;
    if out.json() {
        out.raw(&raw.text);
        return Ok(Exit::Done);
    }
    let all: Sinks = raw.parse()?;
    let now = now();
    for sink in &all.sinks {
        show_sink(sink, &now, out);
        let c = &sink.counters;
        out.line(&format!(
            "  {} attempts: {} accepted, {} duplicates, {} conflicts, {} malformed, {} retries",
            c.attempts, c.accepted, c.duplicates, c.conflicts, c.malformed, c.retries
        ));
    }
    Ok(Exit::Done)
}
