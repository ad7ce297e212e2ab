//! Owns: what a caller is told when the answer is no: RFC 9457 problem details with stable codes.
//! May call: core types, views.
//! Never: change a code that has been released.

use super::backend::{QueryError, ReadError};
use super::types::{view_digest, view_operation};
use crate::core::gateway::Refusal;
use crate::core::intent::InvalidArgument;
use crate::core::lifecycle::{Family, RejectReason};
use crate::core::record::Operation;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value as Json, json};

/// Seconds after which a caller may try again, where the gateway's state is the cause.
pub const RETRY_AFTER_S: u32 = 1;

/// One problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable.
    pub code: &'static str,
    /// In plain words: what was found, what was expected, what to do next.
    pub detail: String,
    /// Further members.
    pub members: Map<String, Json>,
}

impl Problem {
    /// A problem without further members.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            members: Map::new(),
        }
    }
    /// Adds a member.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.members.insert(name.into(), value.into());
        self
    }
    /// 400: the request cannot be understood.
    #[must_use]
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }
    /// 422: one field is wrong.
    #[must_use]
    pub fn invalid(field: &str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        InvalidArgument {
            field: field.into(),
            found: found.into(),
            expected: expected.into(),
        }
        .into()
    }
    /// The document.
    #[must_use]
    pub fn body(&self) -> Json {
        let mut body = json!({
            "type": format!("urn:holdfast:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or("problem"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        for (name, value) in &self.members {
            body[name] = value.clone();
        }
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body().to_string()).into_response();
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

impl From<InvalidArgument> for Problem {
    fn from(error: InvalidArgument) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_argument",
            error.to_string(),
        )
        .with("field", error.field)
        .with("found", error.found)
        .with("expected", error.expected)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        let plain = |status, code| Self::new(status, code, detail.clone());
        match refusal {
            Refusal::MissingOperationId => plain(StatusCode::BAD_REQUEST, "missing_operation_id"),
            Refusal::InvalidOperationId(_) => {
                plain(StatusCode::BAD_REQUEST, "invalid_operation_id")
            }
            Refusal::UnknownMachine { nearest, .. } => {
                plain(StatusCode::NOT_FOUND, "unknown_machine").with("nearest", nearest)
            }
            Refusal::UnknownCommand { nearest, .. } => {
                plain(StatusCode::NOT_FOUND, "unknown_command").with("nearest", nearest)
            }
            Refusal::UnknownOperation(_) => plain(StatusCode::NOT_FOUND, "unknown_operation"),
            Refusal::InvalidArgument(error) => error.into(),
            Refusal::IdempotencyConflict {
                recorded,
                received,
                differing_fields,
            } => plain(StatusCode::CONFLICT, "idempotency_conflict")
                .with("recorded", view_digest(&recorded))
                .with("received", view_digest(&received))
                .with("differing_fields", differing_fields),
            Refusal::NotOwner { owner } => {
                plain(StatusCode::MISDIRECTED_REQUEST, "not_owner").with("owner", owner)
            }
            Refusal::OutsideReplayWindow { .. } => {
                plain(StatusCode::CONFLICT, "outside_replay_window")
            }
            Refusal::NotPossible { id, state, what } => plain(StatusCode::CONFLICT, "not_possible")
                .with("operation_id", id)
                .with("state", state)
                .with("possible", what),
            Refusal::RecoveryMode => plain(StatusCode::SERVICE_UNAVAILABLE, "recovery_mode"),
            Refusal::ForeignJournal(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "foreign_journal"),
            Refusal::CapacityFull(_) => plain(StatusCode::INSUFFICIENT_STORAGE, "capacity_full"),
            Refusal::StoreUnavailable(_) => {
                plain(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
            }
            Refusal::Stopping => plain(StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        let detail = error.to_string();
        match error {
            ReadError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "not_found", detail),
            ReadError::Device(_) => Self::new(StatusCode::BAD_GATEWAY, "device_error", detail),
            ReadError::Disconnected(_) => Self::new(StatusCode::CONFLICT, "disconnected", detail),
            ReadError::Store(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", detail)
            }
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        let detail = error.to_string();
        match error {
            QueryError::Refused(refusal) => refusal.into(),
            QueryError::Disconnected(_) => Self::new(StatusCode::CONFLICT, "disconnected", detail),
            QueryError::Device(_) => Self::new(StatusCode::BAD_GATEWAY, "device_error", detail),
        }
    }
}

/// 409 for an operation that was recorded as Rejected.
#[must_use]
pub fn rejected(reason: &RejectReason, operation: &Operation) -> Problem {
    let view = serde_json::to_value(view_operation(operation)).unwrap_or(Json::Null);
    Problem::new(StatusCode::CONFLICT, reason.code(), reason.to_string()).with("operation", view)
}

/// 409 for a cancellation that lost (CAN-02).
#[must_use]
pub fn too_late(operation: &Operation) -> Problem {
    let state = operation.state.name();
    let detail = if operation.state.family() == Family::InDoubt {
        format!(
            "too late to cancel: it is {state}, and whether it had its effect cannot be determined from here"
        )
    } else {
        format!("too late to cancel: it has already ended as {state}")
    };
    let view = serde_json::to_value(view_operation(operation)).unwrap_or(Json::Null);
    Problem::new(StatusCode::CONFLICT, "too_late", detail)
        .with("state", state)
        .with("operation", view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::InvalidOperationId;
    use crate::core::intent::Digest;

    // covers: IF-01, CMD-03
    #[test]
    fn every_refusal_has_its_status_and_code() {
        let digest = |byte| Digest {
            sha256: [byte; 32],
            length: 40,
            encoding: 1,
        };
        let name = || "x".to_owned();
        let table = [
            (Refusal::MissingOperationId, 400, "missing_operation_id"),
            (
                Refusal::InvalidOperationId(InvalidOperationId::Empty),
                400,
                "invalid_operation_id",
            ),
            (
                Refusal::UnknownMachine {
                    name: name(),
                    nearest: None,
                },
                404,
                "unknown_machine",
            ),
            (
                Refusal::UnknownCommand {
                    machine: name(),
                    name: name(),
                    nearest: Some(name()),
                },
                404,
                "unknown_command",
            ),
            (Refusal::UnknownOperation(name()), 404, "unknown_operation"),
            (
                Refusal::IdempotencyConflict {
                    recorded: digest(1),
                    received: digest(2),
                    differing_fields: vec!["args.speed".into()],
                },
                409,
                "idempotency_conflict",
            ),
            (Refusal::NotOwner { owner: name() }, 421, "not_owner"),
            (
                Refusal::OutsideReplayWindow { why: name() },
                409,
                "outside_replay_window",
            ),
            (
                Refusal::NotPossible {
                    id: name(),
                    state: name(),
                    what: name(),
                },
                409,
                "not_possible",
            ),
            (Refusal::RecoveryMode, 503, "recovery_mode"),
            (Refusal::ForeignJournal("x".into()), 503, "foreign_journal"),
            (Refusal::CapacityFull(name()), 507, "capacity_full"),
            (Refusal::StoreUnavailable(name()), 503, "store_unavailable"),
            (Refusal::Stopping, 503, "stopping"),
        ];
        for (refusal, status, code) in table {
            let problem = Problem::from(refusal.clone());
            assert_eq!((problem.status.as_u16(), problem.code), (status, code));
            assert_eq!(problem.body()["detail"], refusal.to_string());
        }
        let conflict = Problem::from(Refusal::IdempotencyConflict {
            recorded: digest(1),
            received: digest(2),
            differing_fields: vec!["args.speed".into()],
        })
        .body();
        assert_eq!(conflict["recorded"]["length"], 40);
        assert_eq!(conflict["received"]["encoding"], 1);
        assert_eq!(
            conflict["received"]["digest"],
            format!("sha256:{}", "02".repeat(32))
        );
        assert_eq!(conflict["differing_fields"], json!(["args.speed"]));
    }

    #[test]
    fn a_wrong_field_says_what_was_expected() {
        let body = Problem::invalid("ttl", "10", "a duration such as \"10s\"").body();
        assert_eq!(body["status"], 422);
        assert_eq!(body["field"], "ttl");
        assert_eq!(body["expected"], "a duration such as \"10s\"");
    }
}
