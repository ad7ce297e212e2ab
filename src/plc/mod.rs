//! Owns: the links to devices: what goes over the wire, what came back, and which reply fits which request.
//! May call: core (types, mailbox, values), sys (the mode of a serial driver).
//! Never: decide what an outcome means for an operation; write on a link in doubt; write anything again.

pub mod diagnose;
mod diagnose_c24;
mod diagnose_line;
mod echo;
mod exchange;
#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod gate;
mod holders;
pub mod link;
mod loopback;
mod mailbox;
mod matching;
mod melsec;
mod metered;
pub mod modbus;
mod opener;
pub mod plan;
pub mod port;
mod remote;
mod rtu;
pub mod scatter;
pub mod secrets;
pub mod serial;
mod silence;
pub mod source;
pub mod tap;
mod turns;
mod wire;
