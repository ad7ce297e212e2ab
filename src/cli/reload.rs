//! Owns: `reload`: the configuration, all or nothing (CFG-03).
//! May call: client, text.
//! Never: read the configuration itself.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::text::Out;
use serde_json::Value as Json;

pub(super) async fn run(client: &Client, out: &mut Out) -> Result<Exit, Failure> {
    let raw = client.post("/v1/reload", "{}".into(), 0).await?;
    if out.json() {
        out.raw(&raw.text);
    } else {
        let answer: Json = raw.parse()?;
        out.line(answer["detail"].as_str().unwrap_or("reloaded"));
    }
    Ok(Exit::Done)
}
