//! Owns: every decision of the gateway, as pure functions and plain data.
//! May call: nothing outside this room but serde, sha2, rust_decimal, strsim and unicode-normalization.
//! Never: a clock, I/O, async, randomness, logging, or a panic that input can reach.
//!
//! The shell calls [`gateway::Gateway::handle`] with the time and an input, makes the records of the
//! [`gateway::Output`] durable, and only then performs its effects.

mod act;
pub mod c24;
pub mod contract;
pub mod event;
pub mod gateway;
pub mod ids;
pub mod intent;
pub mod jitter;
pub mod lifecycle;
pub mod machine;
pub mod mailbox;
pub mod melsec;
pub mod numbering;
pub mod outbox;
mod outcome;
pub mod place;
pub mod policy;
pub mod record;
pub mod roles;
#[cfg(feature = "test-hooks")]
mod sameness;
pub mod serial;
pub mod shed;
mod source;
pub mod spec;
pub mod spread;
mod submit;
pub mod time;
mod turn;
pub mod units;
mod upkeep;
pub mod values;
pub mod wire;

#[cfg(test)]
mod corners;
#[cfg(test)]
mod lifecycle_tests;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod source_tests;
