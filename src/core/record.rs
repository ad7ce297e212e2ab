//! Owns: what is written down, as types; their postcard encoding is the journal's record format.
//! May call: value types of this room.
//! Never: change the meaning of a variant that has been released: add one.
//!
//! # Format
//! A journal block holds one [`Block`]: postcard, version [`RECORD_VERSION`]. Variants are numbered by
//! their place in the enum, so new ones go last. Every keyed record ([`Record::Operation`],
//! [`Record::Machine`], [`Record::Cursor`] …) is whole: the last one written wins, so replaying a
//! stretch of the log twice ends in the same state.

use super::contract::Exchange;
use super::ids::{AttemptId, BootId, CommitNo, Epoch, EventKey, OperationId, Sequence};
use super::intent::{Digest, Intent};
use super::lifecycle::{Actor, HeldReason, Source, State};
use super::spec::{Class, EventClass, Quality, Value};
use super::time::{Deadline, Stamp};
use serde::{Deserialize, Serialize};

/// Version of the record types here (REC-05).
pub const RECORD_VERSION: u16 = 1;
/// Most entries of an operation's history; reached only by approving over and over.
pub const HISTORY_ENTRIES_MAX: usize = 100;
/// Most attempts kept with an operation; the first and the newest are kept.
pub const ATTEMPTS_MAX: usize = 8;
/// Most findings kept with an operation; equal ones in a row are counted, not repeated.
pub const FINDINGS_MAX: usize = 16;
/// Most bytes of any free text that is recorded.
pub const TEXT_BYTES_MAX: usize = 240;

/// One atomic commit: what one input to the core decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Its number, without gaps.
    pub no: CommitNo,
    /// The epoch it was written in.
    pub epoch: Epoch,
    /// When.
    pub at: Stamp,
    /// What.
    pub records: Vec<Record>,
}

/// One fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// An operation as it now stands, whole. Key: its id.
    Operation(Box<Operation>),
    /// An event. Append only.
    Event(EventRecord),
    /// Durable facts of a machine, whole. Key: its name.
    Machine(MachineRecord),
    /// A sink's progress, whole. Key: its name.
    Cursor(CursorRecord),
    /// An event that a sink will never take. Key: sink and event key.
    DeadLetter(DeadLetter),
    /// A dead letter is settled.
    DeadLetterSettled {
        /// Which sink.
        sink: String,
        /// Which event.
        key: EventKey,
        /// `resent` or `dropped`.
        how: String,
        /// By whom.
        actor: Actor,
        /// Why.
        reason: String,
    },
    /// The gateway started.
    Start(StartRecord),
    /// Somebody was refused, or administered something (OPS-02).
    Audit {
        /// Who.
        actor: Actor,
        /// What they asked for.
        action: String,
        /// What came of it.
        result: String,
    },
    /// The gateway stopped cleanly.
    Stop,
    /// How far a source at a machine has been taken, whole. Key: machine and event type. It is written in the
    /// block of the event that it is about (EVT-04).
    Source(SourceRecord),
    /// What else there is to a sink's progress, whole. Key: its name. In one commit with its cursor.
    Sink(SinkRecord),
    /// Telemetry that was given up for want of room, whole. There is one.
    Shed(ShedRecord),
    /// The place of a record that the log no longer keeps: it was given up, or its newest state is elsewhere.
    Gone,
}

/// One thing that somebody wants done to a machine, once, with all that happened to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its identity.
    pub id: OperationId,
    /// What it means.
    pub intent: Intent,
    /// Evidence of what it means, computed before any secret was dropped.
    pub digest: Digest,
    /// Its class when it was submitted.
    pub class: Class,
    /// Where it stands.
    pub state: State,
    /// Who submitted it.
    pub actor: Actor,
    /// When it was recorded.
    pub created: Stamp,
    /// The commit in which it was first recorded: the order of submission.
    pub submitted: CommitNo,
    /// End of its validity; `None` for queries without one.
    pub deadline: Option<Deadline>,
    /// End of its replay window, microseconds since 1970, to be shown.
    pub replay_until_us: i64,
    /// Since when the link had been down when it was submitted, for the acceptance report (IF-05).
    pub disconnected_at: Option<Stamp>,
    /// The configuration version that the gate found when it was decided.
    pub version_found: Option<i64>,
    /// The same through every replay; set when it ends.
    pub result_id: Option<String>,
    /// How many older queries it stands for (POL-02).
    pub superseded_count: u32,
    /// What it is linked to.
    pub links: Links,
    /// What the device knows it by, once one was given out (mailbox, completion event).
    pub request_id: Option<u32>,
    /// The device's boot counter when the request id was given out (mailbox).
    pub device_boot: Option<u32>,
    /// A held reason that a person has set aside.
    pub waived: Option<HeldReason>,
    /// How often the device was busy.
    pub busy_count: u32,
    /// Tries.
    pub attempts: Vec<Attempt>,
    /// What verifiers and gates found.
    pub findings: Vec<Finding>,
    /// Every change of state (CMD-07).
    pub history: Vec<Transition>,
    /// How many entries after the first were left out of `history` for want of room; their events are kept.
    pub history_dropped: u32,
}

/// What an operation is linked to (CMD-08, POL-05).
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Links {
    /// It does this one again.
    pub reissue_of: Option<OperationId>,
    /// Why.
    pub reissue_reason: Option<String>,
    /// These do it again.
    pub reissued_by: Vec<OperationId>,
    /// It took this one's place.
    pub replaces: Option<OperationId>,
}

/// One try at sending.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// For tracing.
    pub id: AttemptId,
    /// When it was decided.
    pub begun: Stamp,
    /// SHA-256 over the words that were to be written (SEND-01).
    pub frame_sha256: [u8; 32],
    /// What the adapter reported; `None` until then, and for ever if the gateway died meanwhile.
    pub exchange: Option<Exchange>,
}

/// Something found that proves nothing by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Such as `readback`, `mailbox`, `gate`.
    pub method: String,
    /// When it was last found.
    pub at: Stamp,
    /// In plain words.
    pub says: String,
    /// How many times in a row.
    pub times: u32,
}

/// One change of state (CMD-07).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transition {
    /// The state before; `None` for the first.
    pub from: Option<String>,
    /// The state after.
    pub to: String,
    /// When.
    pub at: Stamp,
    /// What brought it about.
    pub source: Source,
    /// Who.
    pub actor: Actor,
    /// Which try.
    pub attempt: Option<AttemptId>,
    /// In plain words.
    pub detail: String,
}

/// One business fact (EVT-01). What a sink sends is made from it alone, so every resend is the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its name for ever.
    pub key: EventKey,
    /// Such as `piece.good`, `operation.transition`.
    pub event_type: String,
    /// Version of the body's shape.
    pub schema: u16,
    /// Wall time of the fact, microseconds since 1970.
    pub wall_us: i64,
    /// Monotonic time of the fact in the block's boot.
    pub boottime_ns: u64,
    /// See [`Quality`].
    pub quality: Quality,
    /// See [`EventClass`].
    pub class: EventClass,
    /// How many.
    pub qty: i64,
    /// JSON, encoded once.
    pub body: String,
    /// `wall_us` was not to be trusted: the boot that `boottime_ns` belongs to, so that the true time can be
    /// computed once a later `clock.stepped` tells how far off it was.
    pub unsynchronised: Option<BootId>,
}

/// What must survive about a machine.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct MachineRecord {
    /// Its name.
    pub name: String,
    /// The last mailbox or completion-event request id given out.
    pub last_request_id: u32,
    /// The last mailbox session epoch used.
    pub session_epoch: u32,
    /// The id by which one is being given up, if one is (mailbox).
    pub burning: Option<Burn>,
    /// The last value that made an event, by event type.
    pub baselines: Vec<(String, Option<Value>)>,
}

/// How far a source has been taken: what stands here has made its event, and makes no other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// Whose.
    pub machine: String,
    /// Which source: the event's type.
    pub event_type: String,
    /// Where it is read, as configured: another place is another source.
    pub place: String,
    /// When the device was read.
    pub at: Stamp,
    /// How far.
    pub state: SourceState,
}

/// See [`SourceRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceState {
    /// The count up to which pieces are accounted for.
    Counter(u64),
    /// The item that was taken last, and SHA-256 of its data.
    Handshake {
        /// The device's own number.
        item: u32,
        /// Of the words of its data.
        sha256: [u8; 32],
    },
    /// The number of the last entry that was taken; `None`: none since the device's reset.
    Ring(Option<u32>),
    /// The count that a journal knew which is a copy, or lost its end: what the device counted since may have been
    /// told already.
    CounterOfCopy(u64),
    /// As `CounterOfCopy`: the last item that such a journal knew.
    HandshakeOfCopy {
        /// See `Handshake`.
        item: u32,
        /// See `Handshake`.
        sha256: [u8; 32],
    },
}

/// Giving up a mailbox request: the no-op that must be seen done first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burn {
    /// The operation whose id is given up.
    pub operation: OperationId,
    /// The no-op's id.
    pub request_id: u32,
    /// How many no-ops were tried.
    pub tries: u32,
}

/// How far a sink has come (FWD-01), and its counters (FWD-05): `attempts` is the sum of the others.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CursorRecord {
    /// The sink's configured name.
    pub sink: String,
    /// Every event up to and with this place is finished.
    pub through: Position,
    /// Finished ones behind `through`.
    pub sparse: Vec<Position>,
    /// Taken for the first time.
    pub accepted: u64,
    /// Taken before.
    pub duplicates: u64,
    /// Same key, other content.
    pub conflicts: u64,
    /// Never takeable.
    pub malformed: u64,
    /// To be sent again.
    pub retries: u64,
}

/// Telemetry that was given up for want of room (FWD-04), until one event has told of it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShedRecord {
    /// Telemetry in commits up to and with this one is not there any more, whether it still takes up room or not.
    pub through: CommitNo,
    /// Since when, of what is not told yet.
    pub since: Option<Stamp>,
    /// The last time.
    pub last: Option<Stamp>,
    /// How many, of what is not told yet.
    pub count: u64,
    /// Which, of what is not told yet; at most [`super::shed::SHED_RANGES_MAX`] ranges.
    pub ranges: Vec<KeyRange>,
    /// How many, ever.
    pub total: u64,
}

/// Keys of one source and epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRange {
    /// See [`EventKey`].
    pub source: String,
    /// See [`EventKey`].
    pub epoch: Epoch,
    /// The first.
    pub first: Sequence,
    /// The last.
    pub last: Sequence,
    /// How many of the range are meant; all, if it is as many as the range has.
    pub count: u64,
}

/// What else there is to a sink's progress. Without one: nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SinkRecord {
    /// The sink's configured name.
    pub sink: String,
    /// What is finished beyond the cursor's watermark, in the order of the log.
    pub ahead: Vec<Ahead>,
    /// Behind this place fresh events overtake the backlog.
    pub live_from: Option<Position>,
    /// How many of the counted answers, other than retries, were to dead letters that were sent again.
    pub resent: u64,
    /// How many finished events a person had sent again.
    pub rewound: u64,
}

/// Events finished without a hole: all between two places, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    /// From here.
    pub from: Position,
    /// To here.
    pub to: Position,
    /// How many.
    pub events: u64,
}

/// A place in the log: the record at `index` of commit `no`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// Which commit.
    pub no: CommitNo,
    /// Which record in it, from 0.
    pub index: u32,
}

impl Position {
    /// Behind everything.
    pub const MAX: Self = Self {
        no: CommitNo(u64::MAX),
        index: u32::MAX,
    };
}

/// An event that a sink will never take as it is (FWD-02).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Which sink.
    pub sink: String,
    /// The event, whole: it outlives the log.
    pub event: EventRecord,
    /// `conflict` or `malformed`.
    pub status: String,
    /// In plain words.
    pub reason: String,
    /// What the sink holds under the key, if it said.
    pub kept: Option<String>,
}

/// The gateway started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartRecord {
    /// The gateway's configured name.
    pub gateway: String,
    /// The program's version.
    pub version: String,
    /// Whether the stop before was clean.
    pub clean: bool,
    /// Why this epoch began, if not by an ordinary start: salvage, copy.
    pub note: Option<String>,
}

/// What is left of an operation after its retention (CAP-03).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Its identity.
    pub id: OperationId,
    /// Evidence of what it meant.
    pub digest: Digest,
    /// The name of the state it ended in.
    pub state: String,
    /// When it was created, microseconds since 1970.
    pub created_us: i64,
}

/// What a journal knows of an id.
#[derive(Clone, Debug, PartialEq)]
pub enum Stored {
    /// All of it.
    Operation(Box<Operation>),
    /// That it once was.
    Tombstone(Tombstone),
}
