//! Owns: the links to devices: what goes over the wire, what came back, and which reply fits which request.
//! May call: core (types, mailbox, values).
//! Never: decide what an outcome means for an operation; write on a link in doubt; write anything again.

mod exchange;
mod gate;
pub mod link;
mod mailbox;
mod matching;
mod melsec;
mod metered;
pub mod modbus;
mod opener;
pub mod plan;
mod remote;
pub mod source;
mod wire;
