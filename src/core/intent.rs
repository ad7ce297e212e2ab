//! Owns: what a request means: canonical encoding, units, digest, and the difference of two intents.
//! May call: ids, spec.
//! Never: use the digest as an identity, or let key order, white space or notation change it.

use super::ids::OperationId;
use super::spec::ArgValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the canonical encoding (CMD-04).
pub const ENCODING_VERSION: u16 = 1;

/// A request as it came in, before any check.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Request {
    /// Checked against CMD-01 by the gateway.
    pub operation_id: Option<String>,
    /// Which machine.
    pub machine: String,
    /// Which row of its policy table.
    pub command: String,
    /// By name.
    pub args: BTreeMap<String, RawArg>,
    /// The configuration version that the caller has in mind.
    pub expected_config_version: Option<u32>,
    /// Validity, in milliseconds; the row's default if absent.
    pub ttl_ms: Option<u64>,
    /// When the caller issued it, microseconds since 1970 (TIME-06).
    pub issued_at_us: Option<i64>,
    /// A waiting operation that this one takes the place of (POL-05).
    pub replaces: Option<String>,
    /// An earlier operation that this one does again (CMD-08); not part of the intent.
    pub reissue_of: Option<String>,
    /// Why it is done again; not part of the intent.
    pub reason: Option<String>,
}

/// An argument as the caller wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct RawArg {
    /// The value.
    pub value: RawValue,
    /// Its unit; the schema's if absent.
    pub unit: Option<String>,
}

/// A JSON scalar, its number still in the caller's notation.
#[derive(Clone, Debug, PartialEq)]
pub enum RawValue {
    /// `true`, `false`.
    Bool(bool),
    /// Such as `50`, `50.0`, `5e1`.
    Number(String),
    /// Text.
    Text(String),
}

/// The part of a request that means something, checked and normalised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Which machine.
    pub machine: String,
    /// Which command.
    pub command: String,
    /// In the schema's order, defaults filled in.
    pub args: Vec<(String, ArgValue)>,
    /// The configuration version that the caller has in mind.
    pub expected_config_version: Option<u32>,
    /// Validity, in milliseconds, default filled in.
    pub ttl_ms: u64,
    /// When the caller issued it, microseconds since 1970; `None` only for queries.
    pub issued_at_us: Option<i64>,
    /// What it takes the place of.
    pub replaces: Option<OperationId>,
}

/// Evidence of an intent's content; never its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// SHA-256 over the canonical encoding.
    pub sha256: [u8; 32],
    /// Length of the canonical encoding, in bytes.
    pub length: u32,
    /// See [`ENCODING_VERSION`].
    pub encoding: u16,
}

/// What is wrong with one field of a request; the caller mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {found}; expected {expected}")]
pub struct InvalidArgument {
    /// Such as `args.speed` or `ttl`.
    pub field: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}
