//! Owns: `holdfast receiver`: events of many gateways, over HTTP into the books.
//! May call: core types, `core::wire` for what was sent; upstream for the books; secret, patience.
//! Never: answer 200 before the commit; take an event under a name that its token does not stand for; judge
//! an event: the books do.
//!
//! | file | owns |
//! | --- | --- |
//! | `server` | listening, TLS, connections and their limits, stopping |
//! | `gate` | who may send, and for which sources |
//! | `batch` | one request: from its head to its answer |
//! | `pool` | connections to the books |
//! | `mqtt` | events from a broker, and the answers to them |
//! | `problem`, `metrics` | refusals, and what is counted |

mod batch;
#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod gate;
mod metrics;
pub mod mqtt;
mod pool;
mod problem;
mod server;

pub use gate::{GatewaySettings, TOKEN_CHARS_MIN};
pub use pool::{BooksLedger, Connect, Ledger, Opening, Pool};
pub use server::{Receiver, ReceiverError, Reloader, STOP_MS_MAX};

use std::net::SocketAddr;
use std::path::PathBuf;

/// Most connections served at once; more wait in the kernel's queue.
pub const CONNECTIONS_COUNT_MAX: usize = 256;
/// Longest body of a request.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most events in a request.
pub const EVENTS_COUNT_MAX: usize = 1_000;
/// Most requests under way at once.
pub const IN_FLIGHT_COUNT_MAX: usize = 32;
/// Longest time for a TLS handshake, for a request's head, and for an idle connection, in milliseconds.
pub const HEADER_MS_MAX: u64 = 30_000;
/// Longest time for a request's body to arrive, in milliseconds.
pub const BODY_MS_MAX: u64 = 30_000;
/// Longest time in which a caller may take nothing of its answer, in milliseconds.
pub const UNREAD_MS_MAX: u64 = 10_000;
/// Connections to the books.
pub const BOOKS_COUNT_MAX: usize = 4;

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`CONNECTIONS_COUNT_MAX`].
    pub connections: usize,
    /// See [`BODY_BYTES_MAX`].
    pub body_bytes: usize,
    /// See [`EVENTS_COUNT_MAX`].
    pub events: usize,
    /// See [`IN_FLIGHT_COUNT_MAX`].
    pub in_flight: usize,
    /// Of one gateway; it cannot keep the others out.
    pub in_flight_per_gateway: usize,
    /// See [`HEADER_MS_MAX`].
    pub header_ms: u64,
    /// See [`BODY_MS_MAX`].
    pub body_ms: u64,
    /// See [`UNREAD_MS_MAX`].
    pub unread_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS_COUNT_MAX,
            body_bytes: BODY_BYTES_MAX,
            events: EVENTS_COUNT_MAX,
            in_flight: IN_FLIGHT_COUNT_MAX,
            in_flight_per_gateway: IN_FLIGHT_COUNT_MAX / 4,
            header_ms: HEADER_MS_MAX,
            body_ms: BODY_MS_MAX,
            unread_ms: UNREAD_MS_MAX,
        }
    }
}

/// Certificate chain and key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's own first.
    pub certificate_file: PathBuf,
    /// Held like a secret.
    pub key_file: PathBuf,
}

/// What a receiver is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// `None`: without TLS.
    pub tls: Option<TlsFiles>,
    /// Who may send.
    pub gateways: Vec<GatewaySettings>,
    /// Whoever has this token may read `/metrics`; without it, callers on this computer may.
    pub metrics_token_file: Option<PathBuf>,
    /// Connections to the books.
    pub books: usize,
    /// See [`Limits`].
    pub limits: Limits,
}
