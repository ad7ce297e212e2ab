//! Owns: what the interface needs of the running gateway, as one trait, and the shapes it shows.
//! May call: core types, the shapes of a trace.
//! Never: know how the gateway does it.

use super::types::TraceLine;
pub use crate::core::gateway::{Act, Verdict};
use crate::core::gateway::{Answer, Refusal};
use crate::core::ids::{CommitNo, EventKey, OperationId};
use crate::core::intent::Request;
use crate::core::lifecycle::Actor;
use crate::core::record::{DeadLetter, EventRecord, Operation, Position, Tombstone};
use crate::core::spec::{MachineSpec, Quality, Value};
use crate::core::time::Stamp;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// An answer to come.
pub type Reply<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is known of an id.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// All of it.
    Operation(Box<Operation>),
    /// Only that it once was.
    Tombstone(Tombstone),
}

/// Which operations to list.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct OperationFilter {
    /// Of this machine.
    pub machine: Option<String>,
    /// In this state, by its API name.
    pub state: Option<String>,
    /// Created at or after, microseconds since 1970.
    pub since_us: Option<i64>,
    /// Behind this one, as [`Page::next`] gave it.
    pub after: Option<CommitNo>,
    /// At most so many.
    pub limit: usize,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T, C> {
    /// In order.
    pub items: Vec<T>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<C>,
}

/// A part of the log's events, each with its place.
pub type EventsPage = Page<(Position, EventRecord), Position>;

/// Where to begin in the events.
#[derive(Clone, Debug, PartialEq)]
pub enum EventsAfter {
    /// At the oldest that is kept.
    Start,
    /// Behind this place.
    Position(Position),
    /// Behind the event of this key.
    Key(EventKey),
}

/// What is done with a dead letter.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// The sink is asked once more; settled if it takes it.
    Resend,
    /// Given up.
    Drop,
    /// An event of its own says what should have been.
    Mend {
        /// The body as it should have been.
        body: serde_json::Value,
        /// How many are to be counted with it; `None`: as many as the event had, unless it is a conflict.
        qty: Option<i64>,
    },
}

/// What can be done to a sink.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkAct {
    /// Try again now.
    Resume,
    /// Send everything from there on again.
    Rewind(RewindTo),
}

/// From where on events are sent again.
#[derive(Clone, Debug, PartialEq)]
pub enum RewindTo {
    /// This event, and all behind it.
    Key(EventKey),
    /// Those of this time and later, microseconds since 1970.
    Time(i64),
}

/// Why a read could not be answered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReadError {
    /// Caller.
    #[error("{0}")]
    NotFound(String),
    /// Device: refused, or too slow.
    #[error("{0}")]
    Device(String),
    /// Link.
    #[error("{0}")]
    Disconnected(String),
    /// Disk.
    #[error("the journal cannot be read: {0}")]
    Store(String),
}

/// The gateway's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All is open.
    Normal,
    /// Damage was found: reads only (REC-03).
    Recovery,
    /// It is going down.
    Stopping,
}

/// An alarm that stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// Stable, such as `recovery_mode`, `journal_full`, `identity_mismatch`, `link_down`.
    pub code: String,
    /// `critical`, `warning` or `info`.
    pub severity: String,
    /// Since when.
    pub since: Stamp,
    /// What is wrong.
    pub text: String,
    /// What to do next.
    pub mend: String,
}

/// State of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalStatus {
    /// `ok`, `full` or `damaged`.
    pub state: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
    /// The last durable commit.
    pub commit: CommitNo,
    /// The running epoch.
    pub epoch: u64,
    /// Telemetry events given up for want of room, ever (FWD-04).
    pub telemetry_dropped: u64,
}

/// State of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineStatus {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub owner: String,
    /// See [`MachineSpec::read_only`].
    pub read_only: bool,
    /// `down`, `connecting`, `gate` or `up`.
    pub link: String,
    /// Since when.
    pub since: Stamp,
    /// Why, in plain words.
    pub reason: String,
    /// What its CPU calls itself over this connection, where it was asked and says so.
    pub model: Option<String>,
    /// What is under way.
    pub in_flight: Option<OperationId>,
    /// How many wait, are held, are unknown.
    pub queued: usize,
    /// See `queued`.
    pub held: usize,
    /// See `queued`.
    pub outcome_unknown: usize,
    /// Link counters by name, such as `stale_reply`, `timeouts`, `reconnects`, `polls`, `polls_skipped`.
    pub counters: Vec<(String, u64)>,
}

/// One polled value.
#[derive(Clone, Debug, PartialEq)]
pub struct TagStatus {
    /// Its name.
    pub name: String,
    /// `None` unless there is something honest to show.
    pub value: Option<Value>,
    /// Its unit.
    pub unit: Option<String>,
    /// See [`Quality`].
    pub quality: Quality,
    /// Why it is not good, in plain words.
    pub reason: Option<String>,
    /// When it was read.
    pub read_at: Option<Stamp>,
}

/// State of one sink.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkStatus {
    /// Its name.
    pub name: String,
    /// Such as `file`.
    pub kind: String,
    /// What an acknowledgement means: `committed`, `broker` or `local`.
    pub ack_level: String,
    /// `ok`, `retrying` or `stopped`, and why.
    pub state: String,
    /// The first of these words.
    pub circuit: &'static str,
    /// Events not yet finished, their bytes, the oldest's wall time in microseconds.
    pub backlog: (u64, u64, Option<i64>),
    /// In the order: accepted, duplicates, conflicts, malformed, retries.
    pub counters: [u64; 5],
    /// Dead letters that stand.
    pub dead_letters: u64,
    /// Events a second over the last half minute, new and finished, in thousandths; `None` until measured.
    pub rates_milli: Option<(u64, u64)>,
    /// Fresh events overtake a backlog.
    pub overtaking: bool,
    /// How many batches may be under way, and how many are.
    pub lanes: usize,
    /// See `lanes`.
    pub in_flight: usize,
    /// How many of the counted answers, other than retries, were to dead letters sent again.
    pub resent: u64,
    /// How many finished events were sent again by a person's wish.
    pub rewound: u64,
}

/// Bytes of a link, and how many entries were not kept.
pub type Trace = (Vec<TraceLine>, u64);

/// Everything `GET /v1/status` shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// See [`Mode`].
    pub mode: Mode,
    /// The gateway's configured name.
    pub gateway: String,
    /// Since when it runs.
    pub started: Stamp,
    /// Now.
    pub now: Stamp,
    /// See [`JournalStatus`].
    pub journal: JournalStatus,
    /// All of them.
    pub machines: Vec<MachineStatus>,
    /// All of them.
    pub sinks: Vec<SinkStatus>,
    /// Waiting, held, unknown, over all machines.
    pub counts: (usize, usize, usize),
    /// Those that stand.
    pub alarms: Vec<Alarm>,
}

/// Whether the gateway proves progress (`/healthz`, `/readyz`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The journal's writer and every machine task moved within their limits.
    pub ready: bool,
    /// What does not move.
    pub stuck: Vec<String>,
}

/// The running gateway, as the interface sees it.
pub trait Backend: Send + Sync + 'static {
    /// Admits a request; the answer comes once it is durable (REC-01).
    fn submit(&self, request: Request, actor: Actor) -> Reply<Answer>;
    /// A query without an identity: the value now, or when the link is back, or the wait ends (contract,
    /// section 2). `wait_ms` 0: do not wait for the link.
    fn query(
        &self,
        request: Request,
        actor: Actor,
        wait_ms: u64,
    ) -> Reply<Result<Vec<(String, Value)>, QueryError>>;
    /// Does something to one operation.
    fn act(&self, id: OperationId, act: Act, actor: Actor) -> Reply<Answer>;
    /// Waits until the operation has ended, or `wait_ms` is over; its state then.
    fn wait(&self, id: OperationId, wait_ms: u64) -> Reply<Result<Option<Known>, ReadError>>;
    /// What is known of an id.
    fn operation(&self, id: OperationId) -> Reply<Result<Option<Known>, ReadError>>;
    /// Lists operations in the order of their submission.
    fn operations(
        &self,
        filter: OperationFilter,
    ) -> Reply<Result<Page<Operation, CommitNo>, ReadError>>;
    /// Lists events in the order of the log.
    fn events(&self, after: EventsAfter, limit: usize) -> Reply<Result<EventsPage, ReadError>>;
    /// Changes whenever a commit has become durable; for streams.
    fn commits(&self) -> tokio::sync::watch::Receiver<CommitNo>;
    /// See [`Status`].
    fn status(&self) -> Reply<Status>;
    /// The machines as configured.
    fn machines(&self) -> Vec<Arc<MachineSpec>>;
    /// The last polled values of one machine.
    fn tags(&self, machine: String) -> Reply<Result<Vec<TagStatus>, ReadError>>;
    /// Reads tags from the device now, each by its name or as a place (`holding:100/u32`).
    fn read_now(
        &self,
        machine: String,
        tags: Vec<String>,
    ) -> Reply<Result<Vec<TagStatus>, ReadError>>;
    /// Looks at the bytes of a machine's link for `ms`, on record; then what went, and how many entries were not
    /// kept. `None`: somebody looks already.
    fn trace(
        &self,
        machine: String,
        ms: u64,
        actor: Actor,
    ) -> Reply<Result<Option<Trace>, Refusal>>;
    /// Dead letters of a sink, in the order of their keys as text.
    fn dead_letters(
        &self,
        sink: String,
        after: Option<EventKey>,
        limit: usize,
    ) -> Reply<Result<Page<DeadLetter, EventKey>, ReadError>>;
    /// Settles one; the key of what was said in its place, if it was mended.
    fn settle_dead_letter(
        &self,
        sink: String,
        key: EventKey,
        how: Settlement,
        reason: String,
        actor: Actor,
    ) -> Reply<Result<Option<EventKey>, Refusal>>;
    /// Does something to a sink; what came of it, in words.
    fn act_on_sink(
        &self,
        sink: String,
        act: SinkAct,
        reason: String,
        actor: Actor,
    ) -> Reply<Result<String, Refusal>>;
    /// Journals that somebody was refused (OPS-02).
    fn denied(&self, actor: Actor, action: String) -> Reply<()>;
    /// Re-reads the configuration: all or nothing (CFG-03). `Err`: why nothing changed.
    fn reload(&self, actor: Actor) -> Reply<Result<String, String>>;
    /// See [`Health`].
    fn health(&self) -> Health;
}

/// Why a query without an identity was not answered with values.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QueryError {
    /// Caller.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The link is down, and the wait is over.
    #[error("machine is not connected: {0}")]
    Disconnected(String),
    /// The device refused the read, or did not answer.
    #[error("{0}")]
    Device(String),
}
