//! Owns: one request for ingest: from its head to its answer.
//! May call: gate, pool, problem, metrics; core::wire for the events; upstream's rows.
//! Never: read a body before its sender is known; answer 200 before the commit; leave an index without a result;
//! let a caller that goes away end a call to the books half-way.

use super::Limits;
use super::gate::{Gate, Known};
use super::metrics::{Metrics, status};
use super::pool::Pool;
use super::problem::Problem;
use crate::core::outbox::Verdict;
use crate::core::wire::{Notation, WireError, from_json};
use crate::failpoint;
use crate::upstream::Row;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Longest batch id, in characters.
const BATCH_ID_CHARS_MAX: usize = 64;
/// Most bytes of an answer that repeat what the books hold under keys in conflict.
const KEPT_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Seconds after which to try again while the books cannot be reached.
const AWAY_RETRY_S: u64 = 2;
/// Seconds after which to try again while a person must mend something here.
const MEND_RETRY_S: u64 = 30;
/// Seconds after which to try again while too much is under way.
const BUSY_RETRY_S: u64 = 1;

/// Most bytes read of a request that is refused.
const REFUSED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest time for them, in milliseconds.
const REFUSED_MS_MAX: u64 = 5_000;

/// What every request shares.
pub(super) struct App {
    pub(super) gate: watch::Receiver<Arc<Gate>>,
    pub(super) pool: Arc<Pool>,
    pub(super) limits: Limits,
    /// Held until a request has its answer, whether its caller is still there or not.
    pub(super) in_flight: Arc<Semaphore>,
    pub(super) metrics: Metrics,
    pub(super) stopping: watch::Receiver<bool>,
}

/// `POST /v1/events:batch`.
pub(super) async fn ingest(app: &Arc<App>, request: Request<Body>) -> Response {
    let response = match take(app, request).await {
        Ok(response) => response,
        Err(problem) => {
            log::info!(
                "receiver: {} {}: {}",
                problem.status.as_u16(),
                problem.code,
                problem.detail
            );
            problem.into_response()
        }
    };
    app.metrics.request(response.status().as_u16());
    response
}

async fn take(app: &Arc<App>, request: Request<Body>) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let Admitted {
        gateway,
        notation,
        permits,
    } = match admit(app, &head.headers) {
        Ok(admitted) => admitted,
        Err(problem) => return Err(refuse(body, problem).await),
    };
    let body = read(body, app.limits).await?;
    // In a task of its own: a caller that goes away must not end it half-way, and a stop waits for it.
    let app = Arc::clone(app);
    let work = tokio::spawn(async move {
        let _under_way = (permits, app.metrics.under_way());
        answer(&app, &gateway, notation, &body).await
    });
    work.await.unwrap_or_else(|_| {
        // It is not known here whether it was committed: sent again, the books know.
        Err(Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the request was not finished; send it again",
        ))
    })
}

/// A request whose body may be read.
struct Admitted {
    gateway: Arc<Known>,
    notation: Notation,
    permits: [OwnedSemaphorePermit; 2],
}

fn admit(app: &App, headers: &HeaderMap) -> Result<Admitted, Problem> {
    let gateway = app.gate.borrow().who(headers)?;
    let notation = notation(headers)?;
    declared_length(headers, app.limits.body_bytes)?;
    let permits = [gateway.enter()?, enter(app)?];
    Ok(Admitted {
        gateway,
        notation,
        permits,
    })
}

/// The rest of a refused request is read and thrown away, in bounds: a connection that is closed on somebody who
/// still sends takes the answer with it.
async fn refuse(body: Body, problem: Problem) -> Problem {
    let within = Duration::from_millis(REFUSED_MS_MAX);
    let mut rest = Limited::new(body, REFUSED_BYTES_MAX);
    let whole = async {
        while let Some(frame) = rest.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    match tokio::time::timeout(within, whole).await {
        Ok(true) => problem,
        _ => problem.closing(),
    }
}

fn notation(headers: &HeaderMap) -> Result<Notation, Problem> {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let bare = media
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    let encoded = headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|value| value != "identity");
    match bare.to_ascii_lowercase().as_str() {
        "application/json" if !encoded => Ok(Notation::Native),
        "application/cloudevents-batch+json" if !encoded => Ok(Notation::CloudEvents),
        _ => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            format!(
                "found {bare:?}{}; expected application/json or application/cloudevents-batch+json, not compressed",
                if encoded { ", compressed" } else { "" }
            ),
        )),
    }
}

fn too_large(bytes_max: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too_large",
        format!("a request is at most {bytes_max} bytes; send fewer events in it"),
    )
}

fn declared_length(headers: &HeaderMap, bytes_max: usize) -> Result<(), Problem> {
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let length = length.and_then(|text| text.parse::<u64>().ok());
    match length {
        Some(length) if length > bytes_max as u64 => Err(too_large(bytes_max)),
        _ => Ok(()),
    }
}

fn enter(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    if *app.stopping.borrow() {
        let detail = "the receiver is stopping; try again";
        return Err(
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail).after(AWAY_RETRY_S),
        );
    }
    Arc::clone(&app.in_flight).try_acquire_owned().map_err(|_| {
        let detail = "as many requests are under way as the receiver takes at once";
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", detail).after(BUSY_RETRY_S)
    })
}

async fn read(body: Body, limits: Limits) -> Result<Bytes, Problem> {
    let within = Duration::from_millis(limits.body_ms);
    let whole = Limited::new(body, limits.body_bytes).collect();
    match tokio::time::timeout(within, whole).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(too_large(limits.body_bytes).closing())
        }
        Ok(Err(error)) => {
            Err(Problem::malformed(format!("the body did not come whole: {error}")).closing())
        }
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "slow_body",
            format!("the body did not come within {} ms", limits.body_ms),
        )
        .closing()),
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    gateway: String,
    batch_id: String,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

/// One event of a batch, on its way into the books.
pub(super) struct Item {
    pub(super) key: Option<String>,
    pub(super) code: Option<&'static str>,
    pub(super) row: Row,
}

pub(super) struct Batch {
    pub(super) id: String,
    pub(super) items: Vec<Item>,
}

async fn answer(
    app: &App,
    gateway: &Known,
    notation: Notation,
    body: &[u8],
) -> Result<Response, Problem> {
    let begun = Instant::now();
    let Batch { id, items } = parse(gateway, notation, body, app.limits.events)?;
    let mut rows = Vec::with_capacity(items.len());
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        names.push((item.key, item.code));
        rows.push(item.row);
    }
    failpoint!("receiver.before-books");
    let mut verdicts = match app.pool.take_for(&gateway.name).await {
        Ok(mut books) => books.ingest(&gateway.name, &id, &rows).await,
        Err(error) => vec![error.verdict(); rows.len()],
    };
    failpoint!("receiver.before-reply");
    // What has no verdict was not answered for.
    verdicts.resize(
        rows.len(),
        Verdict::retry("the books did not answer for this event"),
    );
    app.metrics.took(begun.elapsed());
    app.metrics.events(&gateway.name, &verdicts);
    nothing_taken(&verdicts)?;
    Ok(results(&id, names, verdicts))
}

pub(super) fn parse(
    gateway: &Known,
    notation: Notation,
    body: &[u8],
    events_max: usize,
) -> Result<Batch, Problem> {
    let text = std::str::from_utf8(body)
        .map_err(|error| Problem::malformed(format!("the body is not UTF-8: {error}")))?;
    let shape = |error: serde_json::Error, expected: &str| {
        Problem::malformed(format!(
            "the body is not a batch: {error}; expected {expected}"
        ))
    };
    let (id, events) = match notation {
        Notation::Native => {
            let expected = "{\"gateway\": …, \"batch_id\": …, \"events\": […]}";
            let envelope: Envelope<'_> =
                serde_json::from_str(text).map_err(|error| shape(error, expected))?;
            if envelope.gateway != gateway.name {
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "wrong_gateway",
                    format!(
                        "found gateway {:?}; this token is of {:?}",
                        envelope.gateway, gateway.name
                    ),
                ));
            }
            (envelope.batch_id, envelope.events)
        }
        Notation::CloudEvents => {
            let events = serde_json::from_str(text)
                .map_err(|error| shape(error, "an array of CloudEvents"))?;
            // The format has none: of its content, so that a trace finds its resends.
            let hash = Sha256::digest(body);
            let hex: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            (format!("cloudevents-{hex}"), events)
        }
    };
    let printable = |c: char| c.is_ascii_graphic();
    if id.is_empty() || id.len() > BATCH_ID_CHARS_MAX || !id.chars().all(printable) {
        return Err(Problem::malformed(format!(
            "batch_id: expected 1 to {BATCH_ID_CHARS_MAX} printable ASCII characters"
        )));
    }
    if events.is_empty() {
        return Err(Problem::malformed(format!(
            "found no events; expected 1 to {events_max}"
        )));
    }
    if events.len() > events_max {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_many_events",
            format!(
                "found {} events; a request holds at most {events_max}",
                events.len()
            ),
        ));
    }
    let items = events
        .into_iter()
        .map(|raw| item(gateway, notation, raw.get()));
    Ok(Batch {
        id,
        items: items.collect::<Result<_, _>>()?,
    })
}

/// An event that is no event goes to the books too: as a dead letter, as it came.
fn item(gateway: &Known, notation: Notation, raw: &str) -> Result<Item, Problem> {
    match from_json(raw, notation) {
        Ok(event) if gateway.may_send(&event.key.source) => Ok(Item {
            key: Some(event.key.to_string()),
            code: None,
            row: Row::from_event(&event),
        }),
        // Of the whole request: a rule here is at fault or the gateway's name, and none of its events.
        Ok(event) => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "source_not_permitted",
            format!(
                "gateway {:?} may not send events of source {:?}",
                gateway.name, event.key.source
            ),
        )),
        Err(WireError { key, code, reason }) => Ok(Item {
            key,
            code: Some(code),
            row: Row::malformed(code, &reason, raw),
        }),
    }
}

/// If the books took nothing and refused nothing, it is a matter of this place, not of the events.
fn nothing_taken(verdicts: &[Verdict]) -> Result<(), Problem> {
    let mut first = None;
    let mut after_ms = 0;
    let mut mend = None;
    for verdict in verdicts {
        match verdict {
            Verdict::Retry {
                reason,
                after_ms: asked,
            } => {
                first = first.or(Some(reason));
                after_ms = after_ms.max(asked.unwrap_or(0));
            }
            Verdict::Stop { reason } => mend = mend.or(Some(reason)),
            _ => return Ok(()),
        }
    }
    let unavailable = |code, reason: &str| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            code,
            format!("nothing was taken: {reason}"),
        )
    };
    match (mend, first) {
        (Some(reason), _) => {
            log::error!("receiver: the books need attention: {reason}");
            Err(unavailable("store_needs_attention", reason).after(MEND_RETRY_S))
        }
        (None, Some(reason)) => Err(unavailable("store_unavailable", reason)
            .after(AWAY_RETRY_S.max(after_ms.div_ceil(1000)))),
        (None, None) => Ok(()),
    }
}

#[derive(Serialize)]
struct Line {
    index: usize,
    key: Option<String>,
    status: &'static str,
    code: Option<&'static str>,
    reason: Option<String>,
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
}

#[derive(Default, Serialize)]
struct Counts {
    received: usize,
    accepted: usize,
    duplicate: usize,
    conflict: usize,
    malformed: usize,
    retry: usize,
}

#[derive(Serialize)]
struct Results<'a> {
    batch_id: &'a str,
    results: Vec<Line>,
    counts: Counts,
}

fn results(
    id: &str,
    names: Vec<(Option<String>, Option<&'static str>)>,
    verdicts: Vec<Verdict>,
) -> Response {
    let mut counts = Counts {
        received: verdicts.len(),
        ..Counts::default()
    };
    let mut kept_bytes = 0;
    let mut lines = Vec::with_capacity(verdicts.len());
    for (index, ((key, code), verdict)) in names.into_iter().zip(verdicts).enumerate() {
        let mut line = Line {
            index,
            key,
            status: status(&verdict),
            code,
            reason: None,
            retry_after_ms: None,
            kept: None,
        };
        match verdict {
            Verdict::Accepted => counts.accepted += 1,
            Verdict::Duplicate => counts.duplicate += 1,
            Verdict::Conflict { reason, kept } => {
                counts.conflict += 1;
                line.reason = Some(reason);
                line.kept = kept.filter(|kept| {
                    kept_bytes += kept.len();
                    kept_bytes <= KEPT_BYTES_MAX
                });
            }
            Verdict::Malformed { reason } => {
                counts.malformed += 1;
                line.reason = Some(reason);
            }
            Verdict::Retry { reason, after_ms } => {
                counts.retry += 1;
                line.reason = Some(reason);
                line.retry_after_ms = after_ms;
            }
            Verdict::Stop { reason } => {
                counts.retry += 1;
                line.reason = Some(reason);
                line.retry_after_ms = Some(MEND_RETRY_S * 1000);
            }
        }
        lines.push(line);
    }
    let answer = Results {
        batch_id: id,
        results: lines,
        counts,
    };
    // Strings and numbers: it does not fail, and an empty answer would acknowledge nothing.
    let text = serde_json::to_string(&answer).unwrap_or_default();
    let mut response = text.into_response();
    let media = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}
