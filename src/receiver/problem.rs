//! Owns: what a caller is told when the whole request is refused: problem details with stable codes (RFC 9457).
//! May call: nothing of this crate.
//! Never: change a code that has been released.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    /// What was found, what was expected, what to do next.
    pub(super) detail: String,
    pub(super) retry_after_s: Option<u64>,
    /// What follows on this connection cannot be told from the rest of this request.
    pub(super) close: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retry_after_s: None,
            close: false,
        }
    }
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }
    pub(super) fn after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }
    pub(super) fn closing(mut self) -> Self {
        self.close = true;
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": format!("urn:holdfast:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or("problem"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        let media = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, media);
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
