//! Owns: what lies upstream of a gateway: the broker, and what its messages look like.
//! May call: core types.
//! Never: decide when an event is sent, or what a verdict finishes.

pub mod ack;
pub mod broker;
pub mod topic;
