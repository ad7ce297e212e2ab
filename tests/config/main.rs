//! Owns: what configuration files may say, and what is told of them where they are wrong: file, line, column, what to do.
//! May call: the crate's config.
//! Never: need a device, a database or a place to send to.

mod check;
mod common;
mod receiver;
mod scatter;
mod sinks;
mod sources;
