//! Owns: what is durable: the log of commits, what is derived from it, and saying what was lost.
//! May call: core's value types, sys, sled.
//! Never: answer before a commit is durable, or open an empty journal over an existing one.
//!
//! The log is the truth: one framed block per commit. Everything else in the store is derived from it
//! up to a recorded commit number. A commit is one insert per block and one flush for the group.

mod computer;
mod evidence;
mod files;
pub mod frame;
#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod hollow;
#[cfg(feature = "test-hooks")]
pub mod log_bytes;
mod open;
mod reader;
mod salvage;
mod state;
pub mod store;
mod upkeep;
mod writer;

use crate::core::ids::{CommitNo, Epoch, OperationId};
use crate::core::record::{
    CursorRecord, MachineRecord, Operation, ShedRecord, SinkRecord, SourceRecord,
};
use crate::core::time::Now;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

pub use hollow::{Pressure, Sheddable};
pub use open::open;
pub use reader::{Backlog, OperationQuery, ReadError, Reader, SCAN_OPERATIONS_MAX, Scanned};
pub use salvage::{Damaged, Report, SalvageReport, ToolError, adopt, check, export, salvage};
pub use upkeep::{Maintained, REWRITE_BYTES_MIN, REWRITE_FACTOR, Retention};
pub use writer::{Capacity, CommitError, DIRTY_OPERATIONS_MAX, Journal, Usage};

/// Most records in the journal.
pub const RECORDS_COUNT_MAX: u64 = 50_000_000;
/// Least budget that can be configured.
pub const BUDGET_BYTES_MIN: u64 = 64 << 20;

/// What [`open`] needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The journal's directory.
    pub dir: PathBuf,
    /// Most bytes on the disk.
    pub budget_bytes: u64,
    /// The gateway's configured name.
    pub gateway: String,
    /// All clocks.
    pub now: Now,
    /// When the program was built, microseconds since 1970: no epoch is drawn before it.
    pub build_wall_us: i64,
    /// Which computer this is: the machine id of its operating system, then `mac=…` and `serial=…` as far
    /// as they are known. A journal from another one is a copy.
    pub machine_id: String,
    /// How long opening the store may take before it counts as damaged.
    pub open_timeout: Duration,
}

/// What [`open`] found.
pub enum Opened {
    /// All there; ready to write.
    Normal(Box<Journal>, Recovered),
    /// Damage: what can be proven, read-only (REC-03).
    Recovery(Box<Damaged>, Recovered),
}

/// What is known after opening.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The epoch of this start, durable already. In recovery: the last one known.
    pub epoch: Epoch,
    /// The number the next commit must have.
    pub next_commit: CommitNo,
    /// Operations that have not ended.
    pub open_operations: Vec<Operation>,
    /// Machines.
    pub machines: Vec<MachineRecord>,
    /// Sinks' progress.
    pub cursors: Vec<CursorRecord>,
    /// How far the sources at the machines were taken.
    pub sources: Vec<SourceRecord>,
    /// What else there is to sinks' progress.
    pub sinks: Vec<SinkRecord>,
    /// Telemetry that was given up.
    pub shed: ShedRecord,
    /// Dead letters that wait, by sink.
    pub dead_letters: Vec<(String, u64)>,
    /// The latest wall time in the log, microseconds since 1970.
    pub highest_wall_us: i64,
    /// Whether the stop before was clean.
    pub clean: bool,
    /// The epoch before; 0: there was none, or it is not known.
    pub previous_epoch: Epoch,
    /// Why this epoch began, if not by an ordinary start.
    pub note: Option<String>,
    /// The journal was written on another computer, which may still run, and nobody has said yet that this one is
    /// to go on in its place: nothing may be sent to a machine.
    pub foreign: Option<String>,
    /// An operation from before this wall time, microseconds since 1970, may have been recorded and lost
    /// (salvage, restored copy): an id that is not on record proves nothing for it. 0: no such time.
    pub unproven_before_us: i64,
    /// What was found wrong; empty when all is well.
    pub findings: Vec<Finding>,
}

/// One thing found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable, such as `log_behind_high_water`.
    pub code: String,
    /// What was found and what was expected.
    pub text: String,
}

impl Finding {
    pub(crate) fn new(code: &str, text: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            text: text.into(),
        }
    }
}

/// Why there is no journal at all. Every one says who must act.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Operator: another gateway runs (REC-06).
    #[error(
        "the journal {dir} is in use by another gateway ({holder}); stop that one, or give this one its own state_dir"
    )]
    Locked {
        /// Which journal.
        dir: String,
        /// What its lock file says.
        holder: String,
    },
    /// Operator: the program is too old (REC-05).
    #[error(
        "the journal has format {found}, this program knows up to {known}; start a newer holdfast"
    )]
    NewerSchema {
        /// Of the journal.
        found: u16,
        /// Of this program.
        known: u16,
    },
    /// Operator, or time: opening is tried again when there is room.
    #[error(
        "opening the journal needs {needed} bytes (after an unclean stop it is copied first), and {free} are free; free some space, then it goes on by itself"
    )]
    NoRoom {
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// Whoever built the program.
    #[error(
        "the store's sync does not go through this program's sync_file_range, so power loss could lose records; this build must not be used"
    )]
    SymbolNotEffective,
    /// Operator: the file system.
    #[error("the journal's files cannot be used: {0}; mend the file system or its permissions")]
    Io(#[from] std::io::Error),
}

impl OpenError {
    /// Whether trying again later can help by itself.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Self::NoRoom { .. } => true,
            Self::Io(e) => e.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        }
    }
}

/// The part of the store that says how the rest is to be read.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Everything derived is so up to here.
    pub(crate) derived_through: u64,
    /// The log may begin behind this.
    pub(crate) trimmed_through: u64,
    /// The chain there.
    pub(crate) trimmed_chain: u32,
    /// The running or last epoch.
    pub(crate) epoch: u64,
    /// Which file the store is in.
    pub(crate) identity: String,
    /// On which machine.
    pub(crate) machine_id: String,
    /// Of which gateway.
    pub(crate) gateway: String,
    /// Why the journal began, if not as a new one.
    pub(crate) note: Option<String>,
    /// What was recorded before this wall time may be missing here: a salvage, or a copy from before.
    /// Microseconds since 1970; 0: nothing is missing.
    pub(crate) unproven_before_us: i64,
}

/// Key of [`Meta`] in its tree.
pub(crate) const META_KEY: &[u8] = b"meta";

/// A number as a key that sorts.
pub(crate) fn no_key(no: u64) -> [u8; 8] {
    no.to_be_bytes()
}

/// Key in `order`: the order of submission.
pub(crate) fn order_key(no: CommitNo, id: &OperationId) -> Vec<u8> {
    [&no.0.to_be_bytes()[..], id.as_str().as_bytes()].concat()
}

/// Locks even if a panic poisoned it: what is behind these locks is replaced whole.
pub(crate) fn read<T>(lock: &std::sync::RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
pub(crate) fn write<T>(lock: &std::sync::RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
