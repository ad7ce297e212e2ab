//! Owns: every route of the contract's section 2: permission, reading the request, showing the answer.
//! May call: the backend, views, problems.
//! Never: answer anything but what the backend said.

use super::backend::{Act, Backend, EventsAfter, Known, OperationFilter, Verdict};
use super::problem::{Problem, rejected, too_late};
use super::request::{Fields, nearest, parse_request};
use super::roles::{Permission, Roles};
use super::server::{Limits, stopped};
use super::types::{
    OperationView, STATE_NAMES, parse_cursor, parse_duration_ms, parse_time, view_dead_letters,
    view_events, view_known, view_machine, view_operation, view_report, view_sink, view_status,
    view_tag, view_values,
};
use super::{metrics, policy, stream};
use crate::core::gateway::{Answer, Refusal};
use crate::core::ids::{CommitNo, EventKey, OperationId};
use crate::core::lifecycle::{Actor, State as OpState};
use crate::core::record::Operation;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The OpenAPI 3.1 document.
pub const OPENAPI: &str = include_str!("openapi.json");
/// Rows of a list when the caller names no `limit`.
pub const LIST_COUNT_DEFAULT: usize = 100;
/// Most rows of a list.
pub const LIST_COUNT_MAX: usize = 1000;
/// Says that an answer is of an operation recorded before (CMD-02).
pub const REPLAYED: HeaderName = HeaderName::from_static("operation-replayed");

type Params = BTreeMap<String, String>;
type Outcome = Result<Response, Problem>;

/// What every route has at hand.
#[derive(Clone)]
pub struct App {
    backend: Arc<dyn Backend>,
    roles: watch::Receiver<Arc<Roles>>,
    limits: Limits,
    waiting: Arc<Semaphore>,
    shutdown: watch::Receiver<bool>,
}

impl App {
    /// Puts it together.
    #[must_use]
    pub fn new(
        backend: Arc<dyn Backend>,
        roles: watch::Receiver<Arc<Roles>>,
        limits: Limits,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        Self {
            backend,
            roles,
            limits,
            waiting: Arc::new(Semaphore::new(limits.waiting)),
            shutdown,
        }
    }

    async fn require(&self, actor: &Actor, what: Permission, action: &str) -> Result<(), Problem> {
        let roles = self.roles.borrow().clone();
        if roles.may(actor, what) {
            return Ok(());
        }
        self.backend.denied(actor.clone(), action.to_owned()).await;
        let is = roles.role_of(actor).map_or("none", |role| role.name());
        Err(Problem::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            format!(
                "{actor} may not {action}: its role is {is}, needed is {}; an administrator can give it under [[api.role]]",
                what.least_role().name()
            ),
        )
        .with("role", is)
        .with("needed", what.least_role().name()))
    }

    fn wait_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.waiting.clone().try_acquire_owned().ok()
    }

    /// Waits for an end, at most `wait_ms`; answers at once when too many wait, or when stopping.
    async fn wait(&self, id: &OperationId, wait_ms: u64) -> Result<Option<Known>, Problem> {
        let mut shutdown = self.shutdown.clone();
        if wait_ms > 0
            && let Some(_permit) = self.wait_permit()
        {
            tokio::select! {
                found = self.backend.wait(id.clone(), wait_ms) => return Ok(found?),
                () = stopped(&mut shutdown) => {}
            }
        }
        Ok(self.backend.operation(id.clone()).await?)
    }
}

/// One route: method, its path in the OpenAPI document, its path here, its handler.
pub struct Route {
    /// In lower case.
    pub method: &'static str,
    /// As in the OpenAPI document.
    pub path: &'static str,
    here: &'static str,
    handler: MethodRouter<App>,
}

/// Every route there is.
#[must_use]
pub fn table() -> Vec<Route> {
    let route = |method, path, here, handler| Route {
        method,
        path,
        here,
        handler,
    };
    let same = |method, path, handler| route(method, path, path, handler);
    const LETTER: &str = "/v1/sinks/{sink}/dead-letters/{*rest}";
    vec![
        same("post", "/v1/operations", post(submit)),
        same("get", "/v1/operations", get(operations)),
        same("get", "/v1/operations/{id}", get(operation)),
        same("post", "/v1/operations/{id}/cancel", post(cancel)),
        same("post", "/v1/operations/{id}/verify", post(verify)),
        same("post", "/v1/operations/{id}/approve", post(approve)),
        same("post", "/v1/operations/{id}/resolve", post(resolve)),
        same("post", "/v1/operations/{id}/reissue", post(reissue)),
        same("get", "/v1/status", get(status)),
        same("get", "/v1/machines", get(machines)),
        same("get", "/v1/machines/{machine}", get(machine)),
        same("get", "/v1/machines/{machine}/tags", get(tags)),
        same("get", "/v1/policy", get(show_policy)),
        same("get", "/v1/events", get(events)),
        same("get", "/v1/sinks", get(sinks)),
        same("get", "/v1/sinks/{sink}/dead-letters", get(dead_letters)),
        route(
            "post",
            "/v1/sinks/{sink}/dead-letters/{key}/resend",
            LETTER,
            post(settle),
        ),
        route(
            "post",
            "/v1/sinks/{sink}/dead-letters/{key}/drop",
            LETTER,
            MethodRouter::new(),
        ),
        same("get", "/v1/report", get(report)),
        same("get", "/v1/stream", get(show_stream)),
        same("post", "/v1/reload", post(reload)),
        same("get", "/metrics", get(show_metrics)),
        same("get", "/healthz", get(healthz)),
        same("get", "/readyz", get(readyz)),
        same("get", "/openapi.json", get(openapi)),
    ]
}

/// All routes, over one [`App`].
#[must_use]
pub fn router(app: App) -> Router {
    let body_bytes = app.limits.body_bytes;
    table()
        .into_iter()
        .fold(Router::new(), |router, route| {
            router.route(route.here, route.handler)
        })
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(body_bytes))
        .with_state(app)
}

async fn no_such_path(request: Request) -> Problem {
    let path = request.uri().path().to_owned();
    Problem::new(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is nothing at {path}; GET /openapi.json lists all there is"),
    )
}

async fn no_such_method(request: Request) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!(
            "{} is not for {}; GET /openapi.json lists all there is",
            request.method(),
            request.uri().path()
        ),
    )
}

/// A request's body, within its limits of size and time.
struct Body(Bytes);

impl FromRequest<App> for Body {
    type Rejection = Problem;
    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let limits = app.limits;
        let read = Bytes::from_request(request, app);
        match tokio::time::timeout(Duration::from_millis(limits.body_ms), read).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let detail = format!("the body is over {} bytes", limits.body_bytes);
                Err(Problem::new(error.status(), "too_large", detail))
            }
            Ok(Err(error)) => Err(Problem::malformed(error.body_text())),
            Err(_) => Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "too_slow",
                format!("the body did not arrive within {} ms", limits.body_ms),
            )),
        }
    }
}

fn known(params: &Params, names: &[&str]) -> Result<(), Problem> {
    let Some(name) = params.keys().find(|name| !names.contains(&name.as_str())) else {
        return Ok(());
    };
    let near = nearest(name, names.iter().copied());
    let hint = near.map_or_else(
        || format!("expected one of: {}", names.join(", ")),
        |near| format!("did you mean {near:?}?"),
    );
    Err(
        Problem::malformed(format!("unknown parameter {name:?}; {hint}"))
            .with("field", name.as_str())
            .with("nearest", near),
    )
}

fn wait_ms(params: &Params, limits: &Limits) -> Result<u64, Problem> {
    let Some(text) = params.get("wait") else {
        return Ok(0);
    };
    let longest = super::types::show_duration_ms(limits.wait_ms);
    parse_duration_ms(text)
        .filter(|ms| *ms <= limits.wait_ms)
        .ok_or_else(|| {
            Problem::invalid(
                "wait",
                format!("{text:?}"),
                format!("a duration up to {longest}"),
            )
        })
}

fn limit(params: &Params) -> Result<usize, Problem> {
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

fn parse_id(text: &str) -> Result<OperationId, Problem> {
    OperationId::parse(text).map_err(|error| Refusal::from(error).into())
}

fn raw_json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn list<T: Serialize>(name: &str, items: Vec<T>, next: Option<String>) -> Outcome {
    let mut body = json!({ name: items });
    if let Some(next) = next {
        body["next"] = json!(next);
    }
    Ok(Json(body).into_response())
}

fn recorded(operation: &Operation) -> Outcome {
    match &operation.state {
        OpState::Rejected(reason) => Err(rejected(reason, operation)),
        _ => Ok((StatusCode::CREATED, Json(view_operation(operation))).into_response()),
    }
}

fn replayed(view: OperationView) -> Response {
    let header = [(REPLAYED, HeaderValue::from_static("true"))];
    (StatusCode::OK, header, Json(view)).into_response()
}

/// Shows the answer to a submission, after waiting for its end if that was asked.
async fn answer_submission(app: &App, answer: Answer, wait_ms: u64) -> Outcome {
    let (first, is_replay) = match answer {
        Answer::Recorded(operation) => (operation, false),
        Answer::Replayed(operation) => (operation, true),
        Answer::Refused(refusal) => return Err(refusal.into()),
        other => return answer_act(other),
    };
    let mut last = Known::Operation(first);
    if let Known::Operation(operation) = &last
        && !operation.state.is_ended()
        && wait_ms > 0
    {
        // What was recorded stands, whatever the wait found.
        if let Some(found) = app.wait(&operation.id, wait_ms).await.ok().flatten() {
            last = found;
        }
    }
    match last {
        Known::Operation(operation) if !is_replay => recorded(&operation),
        known => Ok(replayed(view_known(&known))),
    }
}

fn answer_act(answer: Answer) -> Outcome {
    match answer {
        Answer::Recorded(operation) => recorded(&operation),
        Answer::Replayed(operation) => Ok(replayed(view_operation(&operation))),
        Answer::Done(operation) => Ok(Json(view_operation(&operation)).into_response()),
        Answer::Cancelled(operation) => Ok(Json(
            json!({"cancelled": true, "operation": view_operation(&operation)}),
        )
        .into_response()),
        Answer::TooLate(operation) => Err(too_late(&operation)),
        Answer::Refused(refusal) => Err(refusal.into()),
    }
}

async fn submit(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Query(params): Query<Params>,
    body: Body,
) -> Outcome {
    known(&params, &["wait"])?;
    let wait_ms = wait_ms(&params, &app.limits)?;
    let request = parse_request(&body.0)?;
    let machines = app.backend.machines();
    let row = machines
        .iter()
        .find(|machine| machine.name == request.machine)
        .and_then(|machine| machine.row(&request.command));
    let is_query = row.is_some_and(|row| !row.class.has_side_effect());
    let action = format!("submit {}/{}", request.machine, request.command);
    if is_query && request.operation_id.is_none() {
        app.require(&actor, Permission::Query, &action).await?;
        return query(&app, request, actor, wait_ms).await;
    }
    app.require(&actor, Permission::Submit, &action).await?;
    let answer = app.backend.submit(request, actor).await;
    answer_submission(&app, answer, wait_ms).await
}

async fn query(
    app: &App,
    request: crate::core::intent::Request,
    actor: Actor,
    wait_ms: u64,
) -> Outcome {
    let _permit = match (wait_ms, app.wait_permit()) {
        (0, _) => None,
        (_, Some(permit)) => Some(permit),
        (_, None) => return Err(busy()),
    };
    let (machine, command) = (request.machine.clone(), request.command.clone());
    let values = app.backend.query(request, actor, wait_ms).await?;
    Ok(Json(json!({
        "machine": machine,
        "command": command,
        "result": {"values": view_values(&values)},
    }))
    .into_response())
}

fn busy() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "busy",
        "as many requests wait here as may; try again in a moment, or without waiting",
    )
}

async fn operation(
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

fn filter(params: &Params, names: &[&str]) -> Result<OperationFilter, Problem> {
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

async fn operations(
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

async fn report(
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

async fn act(app: &App, actor: Actor, id: &str, needed: Permission, act: Act) -> Outcome {
    let name = match &act {
        Act::Cancel => "cancel",
        Act::Verify => "verify",
        Act::Approve => "approve",
        Act::Resolve { .. } => "resolve",
        Act::Reissue { .. } => "reissue",
    };
    app.require(&actor, needed, &format!("{name} {id}")).await?;
    let id = parse_id(id)?;
    answer_act(app.backend.act(id, act, actor).await)
}

async fn cancel(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Body,
) -> Outcome {
    Fields::parse(&body.0, &[])?;
    act(&app, actor, &id, Permission::Cancel, Act::Cancel).await
}

async fn verify(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Body,
) -> Outcome {
    Fields::parse(&body.0, &[])?;
    act(&app, actor, &id, Permission::Submit, Act::Verify).await
}

async fn approve(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Body,
) -> Outcome {
    Fields::parse(&body.0, &[])?;
    act(&app, actor, &id, Permission::Resolve, Act::Approve).await
}

async fn resolve(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Body,
) -> Outcome {
    const AS: &str = "completed, not_executed or compensated";
    let mut fields = Fields::parse(&body.0, &["as", "reason", "evidence", "by_operation"])?;
    let verdict = match fields.required("as", AS)?.as_str() {
        "completed" => Verdict::Completed,
        "not_executed" | "not-executed" => Verdict::NotExecuted,
        "compensated" => Verdict::Compensated,
        other => return Err(Problem::invalid("as", format!("{other:?}"), AS)),
    };
    let mut reason = written_reason(&mut fields)?;
    if let Some(evidence) = fields.text("evidence", "text: where it can be seen")? {
        reason = format!("{reason} (evidence: {evidence})");
    }
    let by_operation = fields
        .text("by_operation", "an operation_id")?
        .map(|id| parse_id(&id))
        .transpose()?;
    let what = Act::Resolve {
        verdict,
        reason,
        by_operation,
    };
    act(&app, actor, &id, Permission::Resolve, what).await
}

fn written_reason(fields: &mut Fields) -> Result<String, Problem> {
    const EXPECTED: &str = "a reason in words, for those who read the history later";
    let reason = fields.required("reason", EXPECTED)?;
    if reason.trim().is_empty() {
        return Err(Problem::invalid("reason", "blank text", EXPECTED));
    }
    Ok(reason)
}

async fn reissue(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(id): Path<String>,
    body: Body,
) -> Outcome {
    let mut fields = Fields::parse(&body.0, &["operation_id", "reason"])?;
    let new_id = fields
        .text("operation_id", "a new operation_id")?
        .ok_or_else(|| Problem::from(Refusal::MissingOperationId))?;
    let reason = written_reason(&mut fields)?;
    let what = Act::Reissue { new_id, reason };
    act(&app, actor, &id, Permission::Submit, what).await
}

async fn status(State(app): State<App>, Extension(actor): Extension<Actor>) -> Outcome {
    app.require(&actor, Permission::Query, "read the status")
        .await?;
    Ok(Json(view_status(&app.backend.status().await)).into_response())
}

async fn machines(State(app): State<App>, Extension(actor): Extension<Actor>) -> Outcome {
    app.require(&actor, Permission::Query, "list machines")
        .await?;
    let status = app.backend.status().await;
    let items = status.machines.iter().map(view_machine).collect();
    list("machines", items, None)
}

async fn machine(
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

fn unknown_machine(app: &App, name: &str) -> Problem {
    let machines = app.backend.machines();
    let near = nearest(name, machines.iter().map(|machine| machine.name.as_str()));
    Refusal::UnknownMachine {
        name: name.into(),
        nearest: near.map(str::to_owned),
    }
    .into()
}

async fn tags(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
    Query(params): Query<Params>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read tags").await?;
    known(&params, &["read", "now"])?;
    let machines = app.backend.machines();
    let spec = machines.iter().find(|machine| machine.name == name);
    let spec = spec.ok_or_else(|| unknown_machine(&app, &name))?;
    let mut wanted: Vec<String> = Vec::new();
    for tag in params.get("read").iter().flat_map(|names| names.split(',')) {
        let known = || spec.tags.iter().map(|tag| tag.name.as_str());
        if !known().any(|known| known == tag) {
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

async fn show_policy(
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

async fn events(
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

async fn sinks(State(app): State<App>, Extension(actor): Extension<Actor>) -> Outcome {
    app.require(&actor, Permission::Query, "list sinks").await?;
    let status = app.backend.status().await;
    list("sinks", status.sinks.iter().map(view_sink).collect(), None)
}

async fn dead_letters(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(sink): Path<String>,
) -> Outcome {
    app.require(&actor, Permission::Query, "read dead letters")
        .await?;
    let letters = app.backend.dead_letters(sink).await?;
    Ok(raw_json(view_dead_letters(&letters)))
}

/// `…/{source}/{epoch}/{sequence}/resend|drop`: a key has slashes, encoded or not.
async fn settle(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path((sink, rest)): Path<(String, String)>,
    body: Body,
) -> Outcome {
    let action = format!("settle dead letter {sink}/{rest}");
    app.require(&actor, Permission::Administer, &action).await?;
    let (key, resend) = match rest.rsplit_once('/') {
        Some((key, "resend")) => (key, true),
        Some((key, "drop")) => (key, false),
        _ => {
            let detail = "a dead letter can be sent to …/{key}/resend or …/{key}/drop";
            return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
    };
    let key = EventKey::parse(key)
        .ok_or_else(|| Problem::invalid("key", format!("{key:?}"), "source/epoch/sequence"))?;
    let mut fields = Fields::parse(&body.0, &["reason"])?;
    let reason = if resend {
        fields.text("reason", "text")?.unwrap_or_default()
    } else {
        written_reason(&mut fields)?
    };
    let settled = app
        .backend
        .settle_dead_letter(sink, key.clone(), resend, reason, actor);
    settled.await?;
    let how = if resend { "resent" } else { "dropped" };
    Ok(Json(json!({"key": key.to_string(), "settled": how})).into_response())
}

async fn show_stream(
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

async fn reload(State(app): State<App>, Extension(actor): Extension<Actor>, body: Body) -> Outcome {
    app.require(&actor, Permission::Administer, "reload the configuration")
        .await?;
    Fields::parse(&body.0, &[])?;
    match app.backend.reload(actor).await {
        Ok(says) => Ok(Json(json!({"reloaded": true, "detail": says})).into_response()),
        Err(why) => Err(Problem::new(
            StatusCode::CONFLICT,
            "configuration_refused",
            format!("nothing was changed: {why}"),
        )),
    }
}

async fn show_metrics(State(app): State<App>, Extension(actor): Extension<Actor>) -> Outcome {
    app.require(&actor, Permission::Query, "read metrics")
        .await?;
    let text = metrics::render(&app.backend.status().await, &app.backend.health());
    Ok(([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response())
}

async fn healthz() -> Response {
    Json(json!({"alive": true})).into_response()
}

async fn readyz(State(app): State<App>) -> Response {
    let health = app.backend.health();
    let status = if health.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({"ready": health.ready, "stuck": health.stuck});
    (status, Json(body)).into_response()
}

async fn openapi() -> Response {
    raw_json(OPENAPI.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    // covers: IF-01
    #[test]
    fn the_openapi_document_and_the_router_have_the_same_routes() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let documented: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys();
                methods
                    .filter(|key| *key != "parameters")
                    .map(|method| (method.clone(), path.clone()))
            })
            .collect();
        let routed: BTreeSet<(String, String)> = table()
            .iter()
            .map(|route| (route.method.to_owned(), route.path.to_owned()))
            .collect();
        assert_eq!(documented, routed);
    }

    // covers: IF-01
    #[test]
    fn every_reference_in_the_openapi_document_leads_somewhere() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let mut found = 0;
        for part in OPENAPI.split("\"$ref\"").skip(1) {
            let target = part.split('"').nth(1).unwrap();
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
            found += 1;
        }
        assert!(found > 10);
    }
}
