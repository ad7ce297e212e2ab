//! Owns: every route of the contract's section 2: permission, reading the request, showing the answer.
//! May call: the backend, views, problems.
//! Never: answer anything but what the backend said.

use super::backend::{Act, Backend, Known, Verdict};
use super::problem::{Problem, rejected, too_late};
use super::reads::{
    events, healthz, machine, machines, openapi, operation, operations, readyz, report,
    show_metrics, show_policy, show_stream, status, tags,
};
use super::request::{Fields, nearest, parse_request};
use super::roles::{Permission, Roles};
use super::server::{Limits, stopped};
use super::sinks;
use super::types::{OperationView, parse_duration_ms, view_known, view_operation, view_values};
use crate::core::gateway::{Answer, Refusal};
use crate::core::ids::OperationId;
use crate::core::lifecycle::{Actor, State as OpState};
use crate::core::record::Operation;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Json, Router};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Says that an answer is of an operation recorded before (CMD-02).
pub const REPLAYED: HeaderName = HeaderName::from_static("operation-replayed");

pub(super) type Params = BTreeMap<String, String>;
pub(super) type Outcome = Result<Response, Problem>;

/// What every route has at hand.
#[derive(Clone)]
pub struct App {
    pub(super) backend: Arc<dyn Backend>,
    roles: watch::Receiver<Arc<Roles>>,
    pub(super) limits: Limits,
    waiting: Arc<Semaphore>,
    pub(super) shutdown: watch::Receiver<bool>,
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

    pub(super) async fn require(
        &self,
        actor: &Actor,
        what: Permission,
        action: &str,
    ) -> Result<(), Problem> {
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

    pub(super) fn wait_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.waiting.clone().try_acquire_owned().ok()
    }

    /// Waits for an end, at most `wait_ms`; answers at once when too many wait, or when stopping.
    pub(super) async fn wait(
        &self,
        id: &OperationId,
        wait_ms: u64,
    ) -> Result<Option<Known>, Problem> {
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
        same("post", "/v1/machines/{machine}/trace", post(trace)),
        same("get", "/v1/policy", get(show_policy)),
        same("get", "/v1/events", get(events)),
        same("get", "/v1/sinks", get(sinks::list_sinks)),
        same(
            "get",
            "/v1/sinks/{sink}/dead-letters",
            get(sinks::dead_letters),
        ),
        route(
            "post",
            "/v1/sinks/{sink}/dead-letters/{key}/resend",
            LETTER,
            post(sinks::settle),
        ),
        route(
            "post",
            "/v1/sinks/{sink}/dead-letters/{key}/drop",
            LETTER,
            MethodRouter::new(),
        ),
        route(
            "post",
            "/v1/sinks/{sink}/dead-letters/{key}/mend",
            LETTER,
            MethodRouter::new(),
        ),
        same("post", "/v1/sinks/{sink}/resume", post(sinks::resume)),
        same("post", "/v1/sinks/{sink}/rewind", post(sinks::rewind)),
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
        .layer(axum::middleware::map_response(as_problem))
        .with_state(app)
}

/// What the router refuses by itself, such as a path that is no UTF-8, in the form of all problems.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_plain = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_none_or(|media| media.as_bytes().starts_with(b"text/plain"));
    if status.is_client_error() && is_plain {
        let detail = "the path or its parameters cannot be read: expected percent-encoded UTF-8";
        return Problem::new(status, "malformed", detail).into_response();
    }
    response
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
pub(super) struct Body(pub(super) Bytes);

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

pub(super) fn known(params: &Params, names: &[&str]) -> Result<(), Problem> {
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

pub(super) fn wait_ms(params: &Params, limits: &Limits) -> Result<u64, Problem> {
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

pub(super) fn parse_id(text: &str) -> Result<OperationId, Problem> {
    OperationId::parse(text).map_err(|error| Refusal::from(error).into())
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

pub(super) fn busy() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "busy",
        "as many requests wait here as may; try again in a moment, or without waiting",
    )
}

/// Longest look at a link's bytes, in milliseconds.
const TRACE_MS_MAX: u64 = 60_000;

/// `{"for": "5s"}`: the bytes show what commands carry, so that only an administrator sees them.
async fn trace(
    State(app): State<App>,
    Extension(actor): Extension<Actor>,
    Path(machine): Path<String>,
    body: Body,
) -> Outcome {
    const FOR: &str = "a duration from 1ms to 1min, such as \"5s\"";
    let action = format!("trace machine {machine}");
    app.require(&actor, Permission::Administer, &action).await?;
    let mut fields = Fields::parse(&body.0, &["for"])?;
    let text = fields.required("for", FOR)?;
    let ms = parse_duration_ms(&text).filter(|ms| (1..=TRACE_MS_MAX).contains(ms));
    let ms = ms.ok_or_else(|| Problem::invalid("for", format!("{text:?}"), FOR))?;
    if !app.backend.machines().iter().any(|m| m.name == machine) {
        return Err(super::reads::unknown_machine(&app, &machine));
    }
    let _permit = app.wait_permit().ok_or_else(busy)?;
    let mut shutdown = app.shutdown.clone();
    let found = tokio::select! {
        found = app.backend.trace(machine.clone(), ms, actor) => found?,
        () = stopped(&mut shutdown) => return Err(Refusal::Stopping.into()),
    };
    let (lines, left_out) = found.ok_or_else(|| {
        let detail = "somebody looks at this machine's link already; try again when that is over";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
    })?;
    Ok(Json(json!({"machine": machine, "trace": lines, "left_out": left_out})).into_response())
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

pub(super) fn written_reason(fields: &mut Fields) -> Result<String, Problem> {
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

#[cfg(test)]
mod tests {
    use super::super::reads::OPENAPI;
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
