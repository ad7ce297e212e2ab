//! Owns: the places upstream that events go to, one file a kind, behind one interface.
//! May call: core types and functions.
//! Never: decide when to send or what an answer finishes (`core::outbox` does); make a key; answer
//! `Accepted` for anything that would not survive a power loss at the other side.

use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};
use std::pin::Pin;

pub mod file;
pub mod http;
pub mod mqtt;
pub mod postgres;
mod seen;
mod tls;

/// What an acknowledgement of a sink means; shown wherever the sink is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckLevel {
    /// The receiver has committed it.
    Committed,
    /// A broker has taken it; whether a receiver ever will is not known.
    Broker,
    /// It is on a disk of this computer.
    Local,
}

impl AckLevel {
    /// The name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Broker => "broker",
            Self::Local => "local",
        }
    }
}

/// What became of a batch: one verdict an event, in the order of the batch; verdicts missing at the end count
/// as `Retry`.
pub type Delivery<'a> = Pin<Box<dyn Future<Output = Vec<Verdict>> + Send + 'a>>;

/// One way to a place upstream, with a connection of its own if the place has connections; one batch is under
/// way on it at a time. It holds no progress: the cursor is the journal's, and everything else must be
/// recoverable from the place itself. It may block only inside `tokio::task::block_in_place`.
pub trait Lane: Send {
    /// Sends `batch`, and says of each event what became of it. A lane that relies on the order of a
    /// source's events answers `Retry` for all that follow the first one it could not take.
    fn deliver<'a>(&'a mut self, batch: &'a [(Position, EventRecord)]) -> Delivery<'a>;

    /// Whoever reads the place relies on the order of the log: fresh events never overtake a backlog there.
    fn keeps_order(&self) -> bool {
        false
    }
}

/// A place upstream: all events of one source go by the same lane.
pub struct Sink {
    /// Such as `file`.
    pub kind: &'static str,
    /// What its acknowledgement means.
    pub ack_level: AckLevel,
    /// At least one.
    pub lanes: Vec<Box<dyn Lane>>,
}
