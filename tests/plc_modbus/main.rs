//! Owns: the proof that the Modbus TCP link says what the bytes prove, against a server of exact bytes.
//! May call: the crate's plc room and its types.
//! Never: sleep to synchronise; touch a network other than loopback.

mod exchange;
mod gate_first;
mod mailbox;
mod polling;
mod server;
mod sources;
