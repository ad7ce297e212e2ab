//! Owns: `dead-letters`: list, show, resend, drop (FWD-06).
//! May call: client, text.
//! Never: drop one without a reason.

use super::Settle;
use super::client::{Client, encode};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, confirm};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value as Json, json};

/// Arguments of `dead-letters`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DeadLettersArgs {
    /// Of which sink
    pub sink: String,
    /// What to do; without it they are listed
    pub action: Option<Settle>,
    /// Which one: source/epoch/sequence
    pub key: Option<String>,
    /// Why, for those who read the history later; needed to drop one
    #[arg(long)]
    pub reason: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Deserialize)]
struct Letters {
    dead_letters: Vec<Json>,
}

pub(super) async fn run(
    client: &Client,
    out: &mut Out,
    args: DeadLettersArgs,
) -> Result<Exit, Failure> {
    let base = format!("/v1/sinks/{}/dead-letters", encode(&args.sink));
    let (resend, key) = match (args.action, &args.key) {
        (None | Some(Settle::Show), key) => {
            return list(client, out, &base, args.action.is_some(), key.as_deref()).await;
        }
        (Some(action), Some(key)) => (action == Settle::Resend, key),
        (Some(_), None) => {
            let what = "name the dead letter by its key: source/epoch/sequence";
            return Err(Failure::Usage(what.into()));
        }
    };
    if !resend && args.reason.is_none() {
        return Err(Failure::Usage(
            "dropping a dead letter takes --reason".into(),
        ));
    }
    if !resend {
        let what = format!("{key} will never reach {}.", args.sink);
        confirm(&what, args.yes)?;
    }
    let how = if resend { "resend" } else { "drop" };
    let body = args
        .reason
        .map_or(json!({}), |reason| json!({"reason": reason}));
    let path = format!("{base}/{}/{how}", encode(key));
    let raw = client.post(&path, body.to_string(), 0).await?;
    if out.json() {
        out.raw(&raw.text);
    } else {
        let done = if resend {
            "will be sent again"
        } else {
            "dropped"
        };
        out.line(&format!("{key}: {done}"));
    }
    Ok(Exit::Done)
}

async fn list(
    client: &Client,
    out: &mut Out,
    base: &str,
    whole: bool,
    key: Option<&str>,
) -> Result<Exit, Failure> {
    let raw = client.get(base).await?;
    let mut all: Letters = raw.parse()?;
    if let Some(key) = key {
        all.dead_letters.retain(|letter| letter["key"] == key);
        if all.dead_letters.is_empty() {
            return Err(Failure::Usage(format!(
                "no dead letter {key:?} stands here"
            )));
        }
    }
    if out.json() {
        out.raw(&json!({"dead_letters": all.dead_letters}).to_string());
        return Ok(Exit::Done);
    }
    if all.dead_letters.is_empty() {
        out.line("no dead letters");
    }
    for letter in &all.dead_letters {
        let text = |name: &str| letter[name].as_str().unwrap_or("-").to_owned();
        out.toned(Tone::Warn, &format!("{} {}", text("key"), text("status")));
        out.line(&format!("  why: {}", text("reason")));
        if whole {
            out.line(&format!("  ours: {}", letter["event"]));
            out.line(&format!("  theirs: {}", text("kept")));
        }
    }
    Ok(Exit::Done)
}
