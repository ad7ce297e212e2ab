//! Owns: who may send: tokens, the name each stands for, the sources it may send, requests under way of each.
//! May call: secret.
//! Never: tell a caller which part of a token was wrong; let one gateway use up what is there for all.

use super::problem::Problem;
use crate::secret::{self, Secret};
use axum::http::{HeaderMap, StatusCode, header};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Least length of a token, in characters: it is the only proof of who calls.
pub const TOKEN_CHARS_MIN: usize = 16;
/// Seconds after which a gateway with too much under way may try again.
const BUSY_RETRY_S: u64 = 1;

/// One gateway that may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Under this name and no other.
    pub name: String,
    /// Holds its token.
    pub token_file: PathBuf,
    /// Events of these sources alone; `None`: of all.
    pub sources: Option<BTreeSet<String>>,
}

/// A gateway that is known.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    token: Secret,
    sources: Option<BTreeSet<String>>,
    in_flight: Arc<Semaphore>,
}

impl Known {
    /// One that may send everything.
    #[cfg(feature = "test-hooks")]
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            token: Secret::new(""),
            sources: None,
            in_flight: Arc::new(Semaphore::new(1)),
        }
    }

    pub(super) fn may_send(&self, source: &str) -> bool {
        let sources = self.sources.as_ref();
        sources.is_none_or(|sources| sources.contains(source))
    }

    /// Room for one more request of this gateway.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.in_flight)
            .try_acquire_owned()
            .map_err(|_| {
                Problem::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too_many_requests",
                    format!(
                        "gateway {:?} has as many requests under way as one gateway may",
                        self.name
                    ),
                )
                .after(BUSY_RETRY_S)
            })
    }
}

/// All that are known, as their files say at one time.
#[derive(Debug)]
pub(super) struct Gate {
    gateways: Vec<Arc<Known>>,
    metrics: Option<Secret>,
}

impl Gate {
    /// Reads the tokens. What is wrong with them, in words, otherwise.
    pub(super) fn open(
        gateways: &[GatewaySettings],
        metrics: Option<&PathBuf>,
        in_flight_each: usize,
    ) -> Result<Self, String> {
        let mut known: Vec<Arc<Known>> = Vec::new();
        for gateway in gateways {
            let token = secret::read(&gateway.token_file).map_err(|error| error.to_string())?;
            let file = gateway.token_file.display();
            if token.reveal().chars().count() < TOKEN_CHARS_MIN {
                return Err(format!(
                    "{file}: found a token of less than {TOKEN_CHARS_MIN} characters; expected one that cannot be \
                     guessed, such as of: openssl rand -hex 32"
                ));
            }
            if let Some(other) = known.iter().find(|other| other.token == token) {
                return Err(format!(
                    "{file}: found the token of gateway {:?}; expected a token of its own for every gateway",
                    other.name
                ));
            }
            known.push(Arc::new(Known {
                name: gateway.name.clone(),
                token,
                sources: gateway.sources.clone(),
                in_flight: Arc::new(Semaphore::new(in_flight_each)),
            }));
        }
        let metrics = metrics.map(|path| secret::read(path)).transpose();
        Ok(Self {
            gateways: known,
            metrics: metrics.map_err(|error| error.to_string())?,
        })
    }

    /// Whose token the request carries. All are compared, so that the time tells nothing.
    pub(super) fn who(&self, headers: &HeaderMap) -> Result<Arc<Known>, Problem> {
        let unknown = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail);
        let Some(token) = bearer(headers) else {
            return Err(unknown(
                "found no token; expected Authorization: Bearer …, the token of a gateway",
            ));
        };
        let mut found = None;
        for known in &self.gateways {
            if known.token.matches(token) {
                found = Some(known);
            }
        }
        found.map(Arc::clone).ok_or_else(|| {
            unknown("found a token that is none of a gateway here; give this gateway's token to the receiver")
        })
    }

    /// Whether `/metrics` may be shown.
    pub(super) fn may_measure(&self, headers: &HeaderMap, from_here: bool) -> bool {
        match &self.metrics {
            Some(token) => bearer(headers).is_some_and(|given| token.matches(given)),
            None => from_here,
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
