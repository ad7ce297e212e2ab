//! Owns: the whole decision of the gateway: `(now, input) -> records to make durable, effects for after`.
//! May call: every file of this room.
//! Never: act; wait; know what time it is but by `now`.

use super::ids::InvalidOperationId;
use super::intent::{Digest, InvalidArgument};
use super::record::Operation;

/// What a caller is told about a request that names an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Recorded and durable. Its state may be any, `Rejected` among them.
    Recorded(Box<Operation>),
    /// The id was known with the same intent: as it stands (CMD-02).
    Replayed(Box<Operation>),
    /// The cancellation won (CAN-01).
    Cancelled(Box<Operation>),
    /// The cancellation lost: cannot be determined, or already ended (CAN-02).
    TooLate(Box<Operation>),
    /// Approved, resolved, or told to be verified.
    Done(Box<Operation>),
    /// Nothing was recorded under this id.
    Refused(Refusal),
}

/// Why nothing was recorded, by who must act.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Caller: a side effect needs an identity (CMD-01).
    #[error(
        "this command changes the machine, so it needs an operation_id: make one, and use the same for every retry"
    )]
    MissingOperationId,
    /// Caller.
    #[error(transparent)]
    InvalidOperationId(#[from] InvalidOperationId),
    /// Caller.
    #[error("no machine {name:?} here{}", did_you_mean(.nearest))]
    UnknownMachine {
        /// As asked.
        name: String,
        /// The nearest one there is.
        nearest: Option<String>,
    },
    /// Caller.
    #[error("machine {machine:?} has no command {name:?}{}", did_you_mean(.nearest))]
    UnknownCommand {
        /// The machine.
        machine: String,
        /// As asked.
        name: String,
        /// The nearest one there is.
        nearest: Option<String>,
    },
    /// Caller.
    #[error("no operation {0:?} is recorded here")]
    UnknownOperation(String),
    /// Caller.
    #[error(transparent)]
    InvalidArgument(#[from] InvalidArgument),
    /// Caller: a new intent needs a new id (CMD-03).
    #[error("this operation_id is taken by a request that means something else (differs in {}); a new intent needs a new operation_id", .differing_fields.join(", "))]
    IdempotencyConflict {
        /// What is on record, untouched.
        recorded: Digest,
        /// What was asked now.
        received: Digest,
        /// Names of the fields that differ; empty where only a tombstone is left to compare with.
        differing_fields: Vec<String>,
    },
    /// Caller (AGT-01).
    #[error("this machine is commanded by {owner:?} alone: ask there")]
    NotOwner {
        /// The owning gateway.
        owner: String,
    },
    /// Caller: only a tombstone is left, or `issued_at` is too old or too far ahead (TIME-06, CAP-03).
    #[error(
        "the replay window of this request is over ({why}); if it is still wanted, issue it anew under a new operation_id"
    )]
    OutsideReplayWindow {
        /// In plain words.
        why: String,
    },
    /// Caller: the state does not allow it.
    #[error("not possible: operation {id:?} is {state}; {what}")]
    NotPossible {
        /// Which operation.
        id: String,
        /// The name of its state.
        state: String,
        /// What would be possible.
        what: String,
    },
    /// Operator (REC-03).
    #[error(
        "the gateway is in recovery mode after damage to its journal: reads are answered, nothing is sent"
    )]
    RecoveryMode,
    /// Operator (CAP-01).
    #[error("no room: {0}")]
    CapacityFull(String),
    /// Disk.
    #[error("the journal cannot be written: {0}")]
    StoreUnavailable(String),
    /// Nobody: it is stopping.
    #[error("the gateway is stopping; send the same request again in a moment")]
    Stopping,
}

fn did_you_mean(name: &Option<String>) -> String {
    name.as_ref()
        .map(|name| format!("; did you mean {name:?}?"))
        .unwrap_or_default()
}
