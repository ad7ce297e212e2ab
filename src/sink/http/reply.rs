//! Owns: what an answer means for each event that was sent.
//! May call: core's verdicts.
//! Never: read an acknowledgement into anything but a result that names index and key.

use crate::core::outbox::{BACKOFF_MS_MAX, Verdict};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Most characters kept of what a server says of itself.
const SAID_CHARS_MAX: usize = 300;

/// An answer, whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) retry_after: Option<String>,
    pub(super) body: Vec<u8>,
}

/// What it means.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// One verdict an event.
    Each(Vec<Verdict>),
    /// The same for all: `Retry` or `Stop`.
    All(Verdict),
    /// Fewer or smaller ones may be taken.
    TooLarge(String),
    /// Something in it can never be taken, or the place takes nothing of this kind.
    Refused(String),
    /// Something in it is held already.
    AlreadyThere,
}

#[derive(Deserialize)]
struct Results<'a> {
    batch_id: Option<String>,
    #[serde(borrow)]
    results: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Line {
    index: usize,
    key: String,
    status: String,
    code: Option<String>,
    reason: Option<String>,
    retry_after_ms: Option<u64>,
    kept: Option<String>,
}

/// The meaning of `reply` to a batch with these keys.
pub(super) fn judge(reply: &Reply, batch_id: &str, keys: &[&str]) -> Outcome {
    let said = said(reply);
    let named = || results(reply, batch_id, keys);
    match reply.status {
        200 => named().unwrap_or_else(|why| {
            Outcome::All(Verdict::retry(format!(
                "status 200, but no acknowledgement: {why}; is something between here and the receiver? {said}"
            )))
        }),
        409 => named().unwrap_or_else(|_| {
            if says_duplicate(reply) {
                Outcome::AlreadyThere
            } else {
                let words = said.strip_prefix("status 409, ").unwrap_or("nothing more");
                Outcome::Refused(format!("status 409 says {words}"))
            }
        }),
        413 => Outcome::TooLarge(format!("larger than the receiver takes: {said}")),
        400 | 422 => Outcome::Refused(format!("the receiver refused it: {said}")),
        401 | 407 => stop(format!("the receiver does not know this gateway: {said}; give it a token that the receiver has: token_file")),
        403 => stop(format!("the receiver does not permit it: {said}; permit this gateway and its sources there")),
        408 | 425 | 429 | 500..=599 => Outcome::All(Verdict::Retry {
            reason: format!("the receiver cannot take it now: {said}"),
            after_ms: reply.retry_after.as_deref().and_then(after_ms),
        }),
        201..=299 => Outcome::All(Verdict::retry(format!(
            "no acknowledgement: a receiver answers 200 and names each event: {said}"
        ))),
        _ => stop(format!("there is no receiver of events at this URL: {said}; check url")),
    }
}

fn stop(reason: String) -> Outcome {
    Outcome::All(Verdict::Stop { reason })
}

/// One verdict an event, if the answer is one to this batch.
fn results(reply: &Reply, batch_id: &str, keys: &[&str]) -> Result<Outcome, String> {
    let bare = media_type(reply);
    if !bare.eq_ignore_ascii_case("application/json") {
        return Err(format!("found {bare:?}; expected application/json"));
    }
    let parsed: Results<'_> = serde_json::from_slice(&reply.body)
        .map_err(|error| format!("it is not what a receiver answers ({error})"))?;
    if parsed.batch_id.is_some_and(|answered| answered != batch_id) {
        return Err("it answers another batch".into());
    }
    let mut found: Vec<Option<Verdict>> = vec![None; keys.len()];
    for raw in parsed.results {
        let Ok(line) = serde_json::from_str::<Line>(raw.get()) else {
            continue;
        };
        let (Some(place), Some(key)) = (found.get_mut(line.index), keys.get(line.index)) else {
            continue;
        };
        if *key != line.key {
            continue;
        }
        let verdict = verdict(line);
        *place = match place.take() {
            Some(other) if other != verdict => Some(Verdict::retry(
                "the receiver answered two different things for this event",
            )),
            _ => Some(verdict),
        };
    }
    let unnamed = || Verdict::retry("the receiver did not answer for this event");
    Ok(Outcome::Each(
        found
            .into_iter()
            .map(|verdict| verdict.unwrap_or_else(unnamed))
            .collect(),
    ))
}

fn verdict(line: Line) -> Verdict {
    let said = [line.code.as_deref(), line.reason.as_deref()];
    let said: Vec<&str> = said.into_iter().flatten().collect();
    let reason = if said.is_empty() {
        format!(
            "the receiver said {:?} and no more",
            shortened(&line.status)
        )
    } else {
        shortened(&said.join(": "))
    };
    match line.status.as_str() {
        "accepted" => Verdict::Accepted,
        "duplicate" => Verdict::Duplicate,
        "conflict" => Verdict::Conflict {
            reason,
            kept: line.kept,
        },
        "malformed" => Verdict::Malformed { reason },
        "retry" => Verdict::Retry {
            reason,
            after_ms: line.retry_after_ms,
        },
        other => Verdict::retry(format!(
            "the receiver said {:?}, which means nothing here",
            shortened(other)
        )),
    }
}

/// Whether a refusal without results is a receiver's word that it holds the event already. Anything between here and
/// there may answer 409 and speak of a duplicate in its own matters: only the code of a problem counts.
fn says_duplicate(reply: &Reply) -> bool {
    #[derive(Deserialize)]
    struct Problem {
        code: String,
    }
    media_type(reply).eq_ignore_ascii_case("application/problem+json")
        && serde_json::from_slice::<Problem>(&reply.body)
            .is_ok_and(|problem| problem.code == "duplicate")
}

/// `Content-Type` without its parameters.
fn media_type(reply: &Reply) -> &str {
    let bare = reply.content_type.split(';').next();
    bare.unwrap_or_default().trim()
}

/// `Retry-After`: seconds, or a date.
fn after_ms(text: &str) -> Option<u64> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Some(seconds.saturating_mul(1000).min(BACKOFF_MS_MAX));
    }
    let at = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp();
    let ms = at.as_millisecond() - jiff::Timestamp::now().as_millisecond();
    Some(u64::try_from(ms).unwrap_or(0).min(BACKOFF_MS_MAX))
}

/// The status, and what the server says of it, in one line.
fn said(reply: &Reply) -> String {
    #[derive(Deserialize)]
    struct Problem {
        title: Option<String>,
        code: Option<String>,
        detail: Option<String>,
    }
    let status = format!("status {}", reply.status);
    let text = match serde_json::from_slice::<Problem>(&reply.body) {
        Ok(problem) => {
            let parts = [problem.code.or(problem.title), problem.detail];
            parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
        }
        Err(_) => String::from_utf8_lossy(&reply.body).into_owned(),
    };
    let text = shortened(text.trim());
    if text.is_empty() {
        status
    } else {
        format!("{status}, {text}")
    }
}

/// On one line, bounded.
fn shortened(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = clean.clone().take(SAID_CHARS_MAX).collect();
    if clean.count() > SAID_CHARS_MAX {
        short.push('…');
    }
    short
}
