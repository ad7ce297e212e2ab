//! Owns: `cancel`, `verify`, `approve`, `resolve`, `reissue`: what a person does to one operation.
//! May call: client, text, op.
//! Never: do what cannot be taken back without asking the person who sits there.

use super::client::{Client, Raw, encode};
use super::exit::{Exit, Failure};
use super::op::{finding_text, readable, show_brief, show_found};
use super::submit::exit;
use super::text::{Out, can_ask, complain, confirm};
use crate::api::types::OperationView;
use clap::{Args, ValueEnum};
use serde_json::{Value as Json, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a finding is waited for, in milliseconds.
const FINDING_MS_MAX: u64 = 5_000;
/// Between two looks, in milliseconds.
const LOOK_MS: u64 = 50;
/// Most findings in a question.
const FINDINGS_SHOWN_MAX: usize = 3;

/// Which operation.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct IdArgs {
    /// Which operation
    pub id: String,
}

/// Which operation, and whether to ask.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct SureArgs {
    /// Which operation
    pub id: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// What a person says has happened.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum As {
    /// It had its effect
    Completed,
    /// It had none
    NotExecuted,
    /// It was made up for
    Compensated,
}

/// Arguments of `resolve`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ResolveArgs {
    /// Which operation
    pub id: String,
    /// What happened
    #[arg(long = "as", value_name = "WHAT")]
    pub verdict: As,
    /// How you know, for those who read the history later
    #[arg(long)]
    pub reason: String,
    /// The operation that made up for it, with --as compensated
    #[arg(long, value_name = "ID")]
    pub by: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `reissue`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ReissueArgs {
    /// Which operation
    pub id: String,
    /// The new identity
    #[arg(long = "id", value_name = "NEW")]
    pub new_id: String,
    /// Why it is done again
    #[arg(long)]
    pub reason: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

async fn send(
    client: &Client,
    id: &str,
    act: &str,
    body: &Json,
) -> Result<(Raw, OperationView), Failure> {
    let path = format!("/v1/operations/{}/{act}", encode(id));
    let raw = client.post(&path, body.to_string(), 0).await?;
    let answer: Json = raw.parse()?;
    let operation = match answer.get("operation") {
        Some(inner) => inner.clone(),
        None => answer,
    };
    let operation = serde_json::from_value(operation)
        .map_err(|error| Failure::NotReachable(format!("the answer cannot be read: {error}")))?;
    Ok((raw, operation))
}

async fn post(
    client: &Client,
    out: &mut Out,
    id: &str,
    act: &str,
    body: &Json,
) -> Result<OperationView, Failure> {
    let (raw, operation) = send(client, id, act, body).await?;
    if out.json() {
        out.raw(&raw.text);
    } else {
        let readable = readable(client, &operation).await;
        show_brief(&operation, readable, out);
    }
    Ok(operation)
}

pub(super) async fn cancel(client: &Client, out: &mut Out, args: IdArgs) -> Result<Exit, Failure> {
    post(client, out, &args.id, "cancel", &json!({})).await?;
    Ok(Exit::Done)
}

/// The answer comes before the device's: what it says is waited for.
pub(super) async fn verify(client: &Client, out: &mut Out, args: IdArgs) -> Result<Exit, Failure> {
    let (mut raw, mut operation) = send(client, &args.id, "verify", &json!({})).await?;
    let path = format!("/v1/operations/{}", encode(&args.id));
    let until = Instant::now() + Duration::from_millis(FINDING_MS_MAX);
    while Instant::now() < until {
        // Whoever may verify and not look is content with the first answer.
        let Ok(newer) = client.get(&path).await else {
            break;
        };
        let seen: OperationView = newer.parse()?;
        let news = seen.state != operation.state || seen.findings != operation.findings;
        if news {
            (raw, operation) = (newer, seen);
            break;
        }
        sleep(Duration::from_millis(LOOK_MS)).await;
    }
    if out.json() {
        out.raw(&raw.text);
    } else {
        show_found(&operation, out);
    }
    Ok(exit(&operation, true))
}

pub(super) async fn approve(
    client: &Client,
    out: &mut Out,
    args: SureArgs,
) -> Result<Exit, Failure> {
    let mut what = format!(
        "{} will be sent to the machine although it was held.",
        args.id
    );
    if !args.yes && can_ask() {
        what.push_str(&stands(client, &args.id).await.0);
    }
    confirm(&what, args.yes)?;
    let operation = post(client, out, &args.id, "approve", &json!({})).await?;
    Ok(exit(&operation, false))
}

pub(super) async fn resolve(
    client: &Client,
    out: &mut Out,
    args: ResolveArgs,
) -> Result<Exit, Failure> {
    let verdict = match args.verdict {
        As::Completed => "completed",
        As::NotExecuted => "not_executed",
        As::Compensated => "compensated",
    };
    if matches!(args.verdict, As::Compensated) && args.by.is_none() {
        complain(
            "warning: no operation is named that made up for it; `--by ID` links it, for those who read the history",
        );
    }
    let mut what = format!("{} will be recorded as {verdict}, on your word.", args.id);
    if !args.yes && can_ask() {
        what.push_str(&found_so_far(client, &args.id).await);
    }
    confirm(&what, args.yes)?;
    let mut body = json!({"as": verdict, "reason": args.reason});
    if let Some(by) = &args.by {
        body["by_operation"] = json!(by);
    }
    post(client, out, &args.id, "resolve", &body).await?;
    Ok(Exit::Done)
}

/// Its state as a line of a question, and the operation.
async fn stands(client: &Client, id: &str) -> (String, Option<OperationView>) {
    let path = format!("/v1/operations/{}", encode(id));
    let raw = client.get(&path).await;
    match raw.and_then(|raw| raw.parse::<OperationView>()) {
        Ok(operation) => {
            let line = format!("\nIt is {}: {}", operation.state, operation.reason);
            (line, Some(operation))
        }
        // If it cannot be read now, the answer to the act will say why.
        Err(_) => (String::new(), None),
    }
}

/// What was found at the device, for a person to hold their word against.
async fn found_so_far(client: &Client, id: &str) -> String {
    let (mut text, Some(operation)) = stands(client, id).await else {
        return String::new();
    };
    if operation.findings.is_empty() {
        text.push_str("\nNothing was found at the device about it.");
    } else {
        text.push_str("\nWhat was found at the device, the newest last:");
    }
    let older = operation.findings.len().saturating_sub(FINDINGS_SHOWN_MAX);
    for finding in &operation.findings[older..] {
        text.push_str(&format!("\n  {}", finding_text(finding)));
    }
    text
}

pub(super) async fn reissue(
    client: &Client,
    out: &mut Out,
    args: ReissueArgs,
) -> Result<Exit, Failure> {
    let what = format!(
        "{} will be done again as {}. If its outcome is unknown, the effect may happen twice.",
        args.id, args.new_id
    );
    confirm(&what, args.yes)?;
    let body = json!({"operation_id": args.new_id, "reason": args.reason});
    let operation = post(client, out, &args.id, "reissue", &body).await?;
    Ok(exit(&operation, false))
}
