//! Owns: the places upstream that events go to, one file a kind, behind one interface.
//! May call: core types and functions.
//! Never: decide when to send or what an answer finishes (`core::outbox` does); make a key; answer
//! `Accepted` for anything that would not survive a power loss at the other side.

use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};

pub mod file;
mod seen;

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

/// One place upstream. It is called from a thread of its own, so it may block, and it holds no
/// progress: the cursor is the journal's, and everything else must be recoverable from the place itself.
pub trait Sink: Send {
    /// Such as `file`.
    fn kind(&self) -> &'static str;

    /// See [`AckLevel`].
    fn ack_level(&self) -> AckLevel;

    /// Sends `batch`, and says of each event what became of it, in the order of the batch; verdicts
    /// missing at the end count as `Retry`. A sink that relies on the order of a source's events answers
    /// `Retry` for all that follow the first one it could not take.
    fn deliver(&mut self, batch: &[(Position, EventRecord)]) -> Vec<Verdict>;
}
