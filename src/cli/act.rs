//! Owns: `cancel`, `verify`, `approve`, `resolve`, `reissue`: what a person does to one operation.
//! May call: client, text, op.
//! Never: do what cannot be taken back without asking the person who sits there.

use super::client::{Client, encode};
use super::exit::{Exit, Failure};
use super::op::show_brief;
use super::submit::exit;
use super::text::{Out, confirm};
use crate::api::types::OperationView;
use clap::{Args, ValueEnum};
use serde_json::{Value as Json, json};

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
    /// The operation that made up for it
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

async fn post(
    client: &Client,
    out: &mut Out,
    id: &str,
    act: &str,
    body: &Json,
) -> Result<OperationView, Failure> {
    let path = format!("/v1/operations/{}/{act}", encode(id));
    let raw = client.post(&path, body.to_string(), 0).await?;
    if out.json() {
        out.raw(&raw.text);
    }
    let answer: Json = raw.parse()?;
    let operation = match answer.get("operation") {
        Some(inner) => inner.clone(),
        None => answer,
    };
    let operation: OperationView = serde_json::from_value(operation)
        .map_err(|error| Failure::NotReachable(format!("the answer cannot be read: {error}")))?;
    if !out.json() {
        show_brief(&operation, out);
    }
    Ok(operation)
}

pub(super) async fn cancel(client: &Client, out: &mut Out, args: IdArgs) -> Result<Exit, Failure> {
    post(client, out, &args.id, "cancel", &json!({})).await?;
    Ok(Exit::Done)
}

pub(super) async fn verify(client: &Client, out: &mut Out, args: IdArgs) -> Result<Exit, Failure> {
    let operation = post(client, out, &args.id, "verify", &json!({})).await?;
    Ok(exit(&operation, true))
}

pub(super) async fn approve(
    client: &Client,
    out: &mut Out,
    args: SureArgs,
) -> Result<Exit, Failure> {
    let what = format!(
        "{} will be sent to the machine although it was held.",
        args.id
    );
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
    let what = format!("{} will be recorded as {verdict}, on your word.", args.id);
    confirm(&what, args.yes)?;
    let mut body = json!({"as": verdict, "reason": args.reason});
    if let Some(by) = &args.by {
        body["by_operation"] = json!(by);
    }
    post(client, out, &args.id, "resolve", &body).await?;
    Ok(Exit::Done)
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
