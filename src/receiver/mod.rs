//! Owns: what takes events from gateways and enters them into the books.
//! May call: core types, upstream.
//! Never: answer before the commit.

pub mod mqtt;
