//! Owns: the routes of sinks and their dead letters.
//! May call: the backend, views, problems.
//! Never: answer anything but what the backend said.

use super::backend::{RewindTo, Settlement, SinkAct};
use super::problem::Problem;
use super::reads::{limit, list, raw_json};
use super::request::Fields;
use super::roles::Permission;
use super::routes::{App, Body, Outcome, Params, known, written_reason};
use super::types::{parse_time, view_dead_letters, view_sink};
use crate::core::ids::EventKey;
use crate::core::lifecycle::Actor;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde_json::json;
use serde_json::value::RawValue;

pub(super) async fn list_sinks(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
) -> Outcome {
    app.require(&actor, Permission::Query, "list sinks").await?;
    let status = app.backend.status().await;
    list("sinks", status.sinks.iter().map(view_sink).collect(), None)
}

pub(super) async fn dead_letters(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(sink): Path<String>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read dead letters")
        .await?;
    known(&params, &["after", "limit"])?;
    let after = params.get("after").map(|text| parse_key("after", text));
    let page = app
        .backend
        .dead_letters(sink, after.transpose()?, limit(&params)?)
        .await?;
    Ok(raw_json(view_dead_letters(&page.items, page.next.as_ref())))
}

fn parse_key(field: &str, text: &str) -> Result<EventKey, Problem> {
    EventKey::parse(text)
        .ok_or_else(|| Problem::invalid(field, format!("{text:?}"), "source/epoch/sequence"))
}

/// `…/{source}/{epoch}/{sequence}/resend|drop|mend`: a key has slashes, encoded or not.
pub(super) async fn settle(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path((sink, rest)): Path<(String, String)>,
    body: Body,
) -> Outcome {
    let action = format!("settle dead letter {sink}/{rest}");
    app.require(&actor, Permission::Administer, &action).await?;
    let (key, what) = rest.rsplit_once('/').unwrap_or_default();
    let (how, done, reason) = match what {
        "resend" => {
            let mut fields = Fields::parse(&body.0, &["reason"])?;
            let reason = fields.text("reason", "text")?.unwrap_or_default();
            (Settlement::Resend, "resent", reason)
        }
        "drop" => {
            let mut fields = Fields::parse(&body.0, &["reason"])?;
            (Settlement::Drop, "dropped", written_reason(&mut fields)?)
        }
        "mend" => {
            let (how, reason) = mending(&body.0)?;
            (how, "mended", reason)
        }
        _ => {
            let detail =
                "a dead letter can be sent to …/{key}/resend, …/{key}/drop or …/{key}/mend";
            return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
    };
    let key = parse_key("key", key)?;
    let correction = app
        .backend
        .settle_dead_letter(sink, key.clone(), how, reason, actor)
        .await?;
    let mut answer = json!({"key": key.to_string(), "settled": done});
    if let Some(correction) = correction {
        answer["correction"] = json!(correction.to_string());
    }
    Ok(Json(answer).into_response())
}

/// `{"body": …, "qty": 1, "reason": "…"}`.
fn mending(body: &[u8]) -> Result<(Settlement, String), Problem> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Mending<'a> {
        #[serde(borrow)]
        body: &'a RawValue,
        qty: Option<i64>,
        #[serde(default)]
        reason: String,
    }
    let given: Mending<'_> = serde_json::from_slice(body)
        .map_err(|error| Problem::malformed(format!("this is not the JSON expected: {error}")))?;
    if given.reason.trim().is_empty() {
        let expected = "a reason in words, for those who read the history later";
        return Err(Problem::invalid("reason", "nothing", expected));
    }
    let body = serde_json::from_str(given.body.get())
        .map_err(|error| Problem::malformed(format!("body: {error}")))?;
    let qty = given.qty;
    Ok((Settlement::Mend { body, qty }, given.reason))
}

pub(super) async fn resume(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(sink): Path<String>,
    body: Body,
) -> Outcome {
    let action = format!("resume sink {sink}");
    app.require(&actor, Permission::Resolve, &action).await?;
    let mut fields = Fields::parse(&body.0, &["reason"])?;
    let reason = fields.text("reason", "text")?.unwrap_or_default();
    act(&app, sink, SinkAct::Resume, reason, actor).await
}

pub(super) async fn rewind(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(sink): Path<String>,
    body: Body,
) -> Outcome {
    const TO: &str =
        "an event's key (source/epoch/sequence), or a time such as 2026-11-30T08:00:00Z";
    let action = format!("rewind sink {sink}");
    app.require(&actor, Permission::Administer, &action).await?;
    let mut fields = Fields::parse(&body.0, &["to", "reason"])?;
    let to = fields.required("to", TO)?;
    let reason = written_reason(&mut fields)?;
    let to = match (EventKey::parse(&to), parse_time(&to)) {
        (Some(key), _) => RewindTo::Key(key),
        (None, Ok(wall_us)) => RewindTo::Time(wall_us),
        (None, Err(_)) => return Err(Problem::invalid("to", format!("{to:?}"), TO)),
    };
    act(&app, sink, SinkAct::Rewind(to), reason, actor).await
}

async fn act(app: &App, sink: String, act: SinkAct, reason: String, actor: Actor) -> Outcome {
    let done = app
        .backend
        .act_on_sink(sink.clone(), act, reason, actor)
        .await?;
    Ok(Json(json!({"sink": sink, "detail": done})).into_response())
}
