//! Owns: what the writer and its readers share, and how a block changes what is derived from the log.
//! May call: store, frame.
//! Never: show what is not durable.

use super::frame::{self, Facts, Frames, Head, Kind};
use super::store::{self, Store, StoreError};
use super::{META_KEY, Meta, no_key, order_key};
use crate::core::ids::{CommitNo, EventKey, OperationId};
use crate::core::record::{
    Block, CursorRecord, MachineRecord, Operation, Record, ShedRecord, SinkRecord, SourceRecord,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, RwLock};
use tokio::sync::watch;

/// Commits whose events are counted together, for backlogs.
const STRIDE_COMMITS: u64 = 64;

/// What readers see.
pub(super) struct Shared {
    /// `None` after a clean stop.
    pub(super) store: RwLock<Option<Arc<Store>>>,
    pub(super) dirty: RwLock<Dirty>,
    pub(super) strides: RwLock<Strides>,
    pub(super) durable: watch::Sender<CommitNo>,
}

impl Shared {
    pub(super) fn store(&self) -> Result<Arc<Store>, StoreError> {
        let store = super::read(&self.store).clone();
        store.ok_or_else(|| StoreError("it is closed".into()))
    }
}

/// What the trees do not hold yet, and the few keyed records, whole.
#[derive(Default)]
pub(super) struct Dirty {
    /// Operations by id, with the commit that changed them last.
    pub(super) operations: HashMap<OperationId, (u64, Arc<Operation>)>,
    pub(super) machines: BTreeMap<String, MachineRecord>,
    pub(super) cursors: BTreeMap<String, CursorRecord>,
    /// By [`source_key`].
    pub(super) sources: BTreeMap<String, SourceRecord>,
    pub(super) sinks: BTreeMap<String, SinkRecord>,
    pub(super) shed: ShedRecord,
    /// Keys in `keyed` that are to be written.
    pub(super) changed: BTreeSet<String>,
    /// Dead letters that wait, by sink.
    pub(super) dead: BTreeMap<String, u64>,
    /// By how much the trees have grown.
    pub(super) grown: i64,
}

/// Key of the [`ShedRecord`] in `keyed`.
pub(super) const SHED_KEY: &str = "shed";
/// Key of a machine in `keyed`.
pub(super) fn machine_key(name: &str) -> String {
    format!("machine/{name}")
}
/// Key of a cursor in `keyed`.
pub(super) fn cursor_key(sink: &str) -> String {
    format!("cursor/{sink}")
}
/// Key of a source's progress in `keyed`.
pub(super) fn source_key(source: &SourceRecord) -> String {
    format!("source/{}/{}", source.machine, source.event_type)
}
/// Key of what else there is to a sink in `keyed`.
pub(super) fn sink_key(sink: &str) -> String {
    format!("sink/{sink}")
}
/// Key in `dead`.
pub(super) fn dead_key(sink: &str, key: &EventKey) -> Vec<u8> {
    format!("{sink}\0{key}").into_bytes()
}

impl Dirty {
    /// Takes over what `block` says; the store gets dead letters at once, they are rare.
    pub(super) fn apply(&mut self, store: &Store, block: &Block) -> Result<(), StoreError> {
        for record in &block.records {
            match record {
                Record::Operation(operation) => {
                    let value = (block.no.0, Arc::new((**operation).clone()));
                    self.operations.insert(operation.id.clone(), value);
                }
                Record::Machine(machine) => {
                    self.changed.insert(machine_key(&machine.name));
                    self.machines.insert(machine.name.clone(), machine.clone());
                }
                Record::Cursor(cursor) => {
                    self.changed.insert(cursor_key(&cursor.sink));
                    self.cursors.insert(cursor.sink.clone(), cursor.clone());
                }
                Record::Source(source) => {
                    let key = source_key(source);
                    self.changed.insert(key.clone());
                    self.sources.insert(key, source.clone());
                }
                Record::Sink(sink) => {
                    self.changed.insert(sink_key(&sink.sink));
                    self.sinks.insert(sink.sink.clone(), sink.clone());
                }
                Record::DeadLetter(letter) => {
                    let key = dead_key(&letter.sink, &letter.event.key);
                    if !store.dead.contains_key(&key)? {
                        *self.dead.entry(letter.sink.clone()).or_default() += 1;
                    }
                    let frames =
                        store::framed(Kind::DeadLetter, block.no.0, block.at.wall_us, letter)?;
                    self.grown += store::put(&store.dead, &key, &frames)?;
                }
                Record::DeadLetterSettled { sink, key, .. } => {
                    let freed = store::remove(&store.dead, &dead_key(sink, key))?;
                    if let Some(count) = self.dead.get_mut(sink).filter(|_| freed > 0) {
                        *count = count.saturating_sub(1);
                    }
                    self.grown -= freed;
                }
                Record::Shed(shed) => {
                    self.changed.insert(SHED_KEY.to_owned());
                    self.shed = shed.clone();
                }
                Record::Event(_)
                | Record::Start(_)
                | Record::Audit { .. }
                | Record::Stop
                | Record::Gone => {}
            }
        }
        Ok(())
    }
}

/// Events and bytes of the log, counted by strides of commits.
#[derive(Default)]
pub(super) struct Strides {
    counts: BTreeMap<u64, (u64, u64)>,
    pub(super) events: u64,
    pub(super) bytes: u64,
}

impl Strides {
    pub(super) fn add(&mut self, no: u64, events: u64, bytes: u64) {
        let stride = self.counts.entry(no / STRIDE_COMMITS).or_default();
        stride.0 += events;
        stride.1 += bytes;
        self.events += events;
        self.bytes += bytes;
    }
    pub(super) fn remove(&mut self, no: u64, events: u64, bytes: u64) {
        let key = no / STRIDE_COMMITS;
        if let Some(stride) = self.counts.get_mut(&key) {
            stride.0 = stride.0.saturating_sub(events);
            stride.1 = stride.1.saturating_sub(bytes);
            if stride.1 == 0 {
                self.counts.remove(&key);
            }
        }
        self.events = self.events.saturating_sub(events);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
    /// Sums of the strides wholly behind `no`, and the last commit of `no`'s own stride.
    pub(super) fn behind(&self, no: u64) -> (u64, u64, u64) {
        let own = no / STRIDE_COMMITS;
        let sum = self
            .counts
            .range(own + 1..)
            .fold((0, 0), |sum, (_, stride)| {
                (sum.0 + stride.0, sum.1 + stride.1)
            });
        (sum.0, sum.1, (own + 1) * STRIDE_COMMITS - 1)
    }
}

/// Events in a block.
pub(super) fn events_in(block: &Block) -> u32 {
    let events = block
        .records
        .iter()
        .filter(|r| matches!(r, Record::Event(_)));
    u32::try_from(events.count()).unwrap_or(u32::MAX)
}

/// Why a block cannot be framed.
pub(super) enum EncodeFault {
    /// Its size.
    TooLarge(usize),
    Store(StoreError),
}

/// A block's frames and its chain.
pub(super) fn encode_block(block: &Block, before: u32) -> Result<(Frames, u32), EncodeFault> {
    let body = postcard::to_stdvec(block).map_err(|e| {
        EncodeFault::Store(StoreError(format!("encoding commit {}: {e}", block.no)))
    })?;
    let chain = frame::chain(before, &body);
    let facts = Facts {
        kind: Kind::Block,
        no: block.no.0,
        wall_us: block.at.wall_us,
        events: events_in(block),
        chain,
    };
    let frames = frame::encode(facts, &body).ok_or(EncodeFault::TooLarge(body.len()))?;
    Ok((frames, chain))
}

/// Writes [`Meta`].
pub(super) fn put_meta(store: &Store, meta: &Meta) -> Result<i64, StoreError> {
    let frames = store::framed(Kind::Meta, meta.derived_through, 0, meta)?;
    store::put(&store.meta, META_KEY, &frames)
}

/// Reads [`Meta`].
pub(super) fn get_meta(store: &Store) -> Result<Option<Meta>, StoreError> {
    store::get(&store.meta, META_KEY)?
        .map(|(_, body)| store::parse(META_KEY, &body))
        .transpose()
}

/// Reads a block of the log.
pub(super) fn get_block(store: &Store, no: u64) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
    store::get(&store.log, &no_key(no))
}

/// When an ended operation's retention begins to run.
pub(super) fn retention_base_us(operation: &Operation) -> i64 {
    let ended = operation
        .history
        .last()
        .map_or(operation.created.wall_us, |t| t.at.wall_us);
    // A clock that was set meanwhile may have recorded it decades ago, while a packet of it is let in by the
    // caller's own time (TIME-06): its record must outlive that.
    let window_us = operation
        .replay_until_us
        .saturating_sub(operation.created.wall_us);
    let last_packet = operation
        .intent
        .issued_at_us
        .map_or(i64::MIN, |issued| issued.saturating_add(window_us));
    operation.replay_until_us.max(ended).max(last_packet)
}

/// Key in `ends`: `o` for whole operations, `t` for tombstones, then the time, then the id.
pub(super) fn ends_key(what: u8, base_us: i64, id: &OperationId) -> Vec<u8> {
    let mut key = vec![what];
    key.extend_from_slice(&u64::try_from(base_us).unwrap_or(0).to_be_bytes());
    key.extend_from_slice(id.as_str().as_bytes());
    key
}

/// Writes an operation into the trees; says by how much they grew and whether it was new to them.
pub(super) fn settle(
    store: &Store,
    no: u64,
    operation: &Operation,
) -> Result<(i64, bool), StoreError> {
    let key = operation.id.as_str().as_bytes();
    let frames = store::framed(Kind::Operation, no, operation.created.wall_us, operation)?;
    let grown = if operation.state.is_ended() {
        let base = retention_base_us(operation);
        store
            .ends
            .insert(ends_key(b'o', base, &operation.id), &[])?;
        store::put(&store.done, key, &frames)? - store::remove(&store.open, key)?
    } else {
        store::put(&store.open, key, &frames)?
    };
    let order = order_key(operation.submitted, &operation.id);
    let new = store.order.insert(order, &[])?.is_none();
    Ok((grown, new))
}
