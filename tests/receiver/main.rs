//! Owns: what `holdfast receiver` answers, and what it refuses, over real sockets; the books are in memory.
//! May call: the receiver, the http sink.
//! Never: need a database: that is the system tests' matter.

mod client;
mod requests;
mod server;
mod sink;
mod stage;
