//! Owns: the books in PostgreSQL: their schema, the one call that enters events, the connection; the way to a
//! broker, and the forms of what is said over it.
//! May call: core types, secret.
//! Never: enter an event but by `holdfast.ingest`; call an event taken before its transaction is committed; fall
//! back to a connection without TLS.
//!
//! Several gateways, lanes and receivers may enter the same events at once: the unique constraint on the
//! event's key decides, and nothing in this process does.

pub mod ack;
mod books;
pub mod broker;
mod ca;
pub mod check;
mod row;
pub mod schema;
mod target;
pub mod topic;
mod trouble;

pub use books::{BATCH_ROWS_MAX, Books, CALL_MS_MAX};
pub use ca::{CA_BYTES_MAX, read_ca};
pub use row::{Defect, ITEM_BYTES_MAX, Row};
pub use schema::{Roles, init};
pub use target::Target;
pub use trouble::UpstreamError;

/// The schema that this program writes to.
pub const SCHEMA_VERSION: i32 = 1;
