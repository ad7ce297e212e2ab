//! Owns: the routes that only read, and what their lists have in common.
//! May call: the backend, views, problems.
//! Never: change anything, or answer anything but what the backend said.

use super::backend::{EventsAfter, OperationFilter};
use super::problem::Problem;
use super::request::nearest;
use super::roles::Permission;
use super::routes::{App, Outcome, Params, busy, known, parse_id, wait_ms};
use super::types::{
    STATE_NAMES, parse_cursor, parse_time, view_events, view_known, view_machine, view_operation,
    view_report, view_status, view_tag,
};
use super::{metrics, policy, stream};
use crate::core::gateway::Refusal;
use crate::core::ids::{CommitNo, EventKey};
use crate::core::lifecycle::Actor;
use crate::core::place::{NoPlace, parse_place};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// The OpenAPI 3.1 document.
pub const OPENAPI: &str = include_str!("openapi.json");
/// Rows of a list when the caller names no `limit`.
pub const LIST_COUNT_DEFAULT: usize = 100;
/// Most rows of a list.
pub const LIST_COUNT_MAX: usize = 1000;

pub(super) fn filter(params: &Params, names: &[&str]) -> Result<OperationFilter, Problem> {
    known(params, names)?;
    let state = params.get("state").cloned();
    if let Some(name) = &state
        && !STATE_NAMES.contains(&name.as_str())
    {
        let expected = format!("one of: {}", STATE_NAMES.join(", "));
        return Err(Problem::invalid("state", format!("{name:?}"), expected));
    }
    let since_us = params
        .get("since")
        .map(|text| {
            parse_time(text).map_err(|_| {
                let expected = "a time such as 2026-11-30T08:00:00Z (RFC 3339)";
                Problem::invalid("since", format!("{text:?}"), expected)
            })
        })
        .transpose()?;
    let after = params
        .get("after")
        .map(|text| {
            text.parse().map(CommitNo).map_err(|_| {
                Problem::invalid("after", format!("{text:?}"), "\"next\" of the part before")
            })
        })
        .transpose()?;
    Ok(OperationFilter {
        machine: params.get("machine").cloned(),
        state,
        since_us,
        after,
        limit: limit(params)?,
    })
}

pub(super) async fn operations(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "list operations")
        .await?;
    let filter = filter(&params, &["machine", "state", "since", "after", "limit"])?;
    let page = app.backend.operations(filter).await?;
    let items = page.items.iter().map(view_operation).collect();
    list("operations", items, page.next.map(|next| next.to_string()))
}

pub(super) async fn report(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read the report")
        .await?;
    let filter = filter(&params, &["machine", "state", "since", "after", "limit"])?;
    let page = app.backend.operations(filter).await?;
    let items = page.items.iter().map(view_report).collect();
    list("operations", items, page.next.map(|next| next.to_string()))
}

pub(super) async fn status(State(app): State<App>, Extension(actor): Extension<Actor>) -> Outcome {
    app.require(&actor, Permission::Query, "read the status")
        .await?;
    Ok(Json(view_status(&app.backend.status().await)).into_response())
}

pub(super) async fn machines(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
) -> Outcome {
    app.require(&actor, Permission::Query, "list machines")
        .await?;
    let status = app.backend.status().await;
    let items = status.machines.iter().map(view_machine).collect();
    list("machines", items, None)
}

pub(super) async fn machine(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read a machine")
        .await?;
    let status = app.backend.status().await;
    let found = status.machines.iter().find(|machine| machine.name == name);
    let found = found.ok_or_else(|| unknown_machine(&app, &name))?;
    Ok(Json(view_machine(found)).into_response())
}

pub(super) fn unknown_machine(app: &App, name: &str) -> Problem {
    let machines = app.backend.machines();
    let near = nearest(name, machines.iter().map(|machine| machine.name.as_str()));
    Refusal::UnknownMachine {
        name: name.into(),
        nearest: near.map(str::to_owned),
    }
    .into()
}

pub(super) async fn tags(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read tags").await?;
    known(&params, &["read", "now"])?;
    let now = match params.get("now").map(String::as_str) {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            return Err(Problem::invalid(
                "now",
                format!("{other:?}"),
                "true or false",
            ));
        }
    };
    let machines = app.backend.machines();
    let spec = machines.iter().find(|machine| machine.name == name);
    let spec = spec.ok_or_else(|| unknown_machine(&app, &name))?;
    let mut wanted: Vec<String> = Vec::new();
    for tag in params.get("read").iter().flat_map(|names| names.split(',')) {
        let known = || spec.tags.iter().map(|tag| tag.name.as_str());
        // Any place at all, and not only those that a person has named for viewers.
        if !known().any(|known| known == tag) {
            match parse_place(&spec.link, tag) {
                Ok(_) if now => {
                    let action = format!("read {tag} of {name}");
                    app.require(&actor, Permission::Submit, &action).await?;
                    wanted.push(tag.to_owned());
                    continue;
                }
                Err(NoPlace::Malformed(expected)) if now => {
                    return Err(Problem::invalid("read", format!("{tag:?}"), expected)
                        .with("nearest", nearest(tag, known())));
                }
                _ => {}
            }
            let near = nearest(tag, known());
            let hint = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "unknown_tag",
                format!("machine {name:?} has no tag {tag:?}{hint}"),
            )
            .with("nearest", near));
        }
        wanted.push(tag.to_owned());
    }
    let found = if now {
        if wanted.is_empty() {
            wanted = spec.tags.iter().map(|tag| tag.name.clone()).collect();
        }
        app.backend.read_now(name, wanted).await?
    } else {
        let mut found = app.backend.tags(name).await?;
        found.retain(|tag| wanted.is_empty() || wanted.contains(&tag.name));
        found
    };
    list("tags", found.iter().map(view_tag).collect(), None)
}

pub(super) async fn show_policy(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read the policy")
        .await?;
    known(&params, &["machine"])?;
    let machines = app.backend.machines();
    let wanted = params.get("machine");
    if let Some(name) = wanted
        && !machines.iter().any(|machine| machine.name == *name)
    {
        return Err(unknown_machine(&app, name));
    }
    let shown = machines
        .iter()
        .map(Arc::as_ref)
        .filter(|machine| wanted.is_none_or(|name| machine.name == *name));
    Ok(Json(policy::view_policy(shown)).into_response())
}

pub(super) async fn events(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read events")
        .await?;
    known(&params, &["after", "limit"])?;
    let after = match params.get("after") {
        None => EventsAfter::Start,
        Some(text) => parse_cursor(text)
            .map(EventsAfter::Position)
            .or_else(|| EventKey::parse(text).map(EventsAfter::Key))
            .ok_or_else(|| {
                let expected = "a cursor, or source/epoch/sequence";
                Problem::invalid("after", format!("{text:?}"), expected)
            })?,
    };
    let page = app.backend.events(after, limit(&params)?).await?;
    Ok(raw_json(view_events(&page.items, page.next.as_ref())))
}

pub(super) async fn show_stream(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    headers: HeaderMap,
) -> Outcome {
    app.require(&actor, Permission::Query, "follow the stream")
        .await?;
    let last = headers
        .get("last-event-id")
        .map(|value| value.to_str().unwrap_or("?"));
    let newest = *app.backend.commits().borrow();
    let at = stream::start(last, newest).ok_or_else(|| {
        let found = format!("{:?}", last.unwrap_or_default());
        Problem::invalid("Last-Event-ID", found, "an id that this stream gave")
    })?;
    let permit = app.wait_permit().ok_or_else(busy)?;
    let events = stream::follow(app.backend.clone(), at, app.shutdown.clone(), permit);
    Ok(Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response())
}

pub(super) async fn show_metrics(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read metrics")
        .await?;
    let text = metrics::render(&app.backend.status().await, &app.backend.health());
    Ok(([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response())
}

pub(super) async fn healthz() -> Response {
    Json(json!({"alive": true})).into_response()
}

pub(super) async fn readyz(State(app): State<App>) -> Response {
    let health = app.backend.health();
    let status = if health.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({"ready": health.ready, "stuck": health.stuck});
    (status, Json(body)).into_response()
}

pub(super) async fn openapi() -> Response {
    raw_json(OPENAPI.to_owned())
}

pub(super) fn limit(params: &Params) -> Result<usize, Problem> {
    let Some(text) = params.get("limit") else {
        return Ok(LIST_COUNT_DEFAULT);
    };
    text.parse()
        .ok()
        .filter(|limit| (1..=LIST_COUNT_MAX).contains(limit))
        .ok_or_else(|| {
            Problem::invalid(
                "limit",
                format!("{text:?}"),
                format!("1 to {LIST_COUNT_MAX}"),
            )
        })
}

pub(super) fn raw_json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

pub(super) fn list<T: Serialize>(name: &str, items: Vec<T>, next: Option<String>) -> Outcome {
    let mut body = json!({ name: items });
    if let Some(next) = next {
        body["next"] = json!(next);
    }
    Ok(Json(body).into_response())
}

pub(super) async fn operation(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read an operation")
        .await?;
    known(&params, &["wait"])?;
    let wait_ms = wait_ms(&params, &app.limits)?;
    let id = parse_id(&id)?;
    match app.wait(&id, wait_ms).await? {
        Some(found) => Ok(Json(view_known(&found)).into_response()),
        None => Err(Refusal::UnknownOperation(id.to_string()).into()),
    }
}
