//! Owns: the local HTTP/JSON interface: routes, roles, problem details, event stream.
//! May call: core types, and the gateway through [`backend::Backend`] only.
//! Never: decide about an operation, or reach the journal or a device.

pub mod backend;
pub mod metrics;
pub mod policy;
pub mod problem;
pub mod reads;
pub mod request;
pub mod roles;
pub mod routes;
pub mod server;
mod sinks;
pub mod stream;
pub mod types;
pub mod view;
