//! Owns: answering questions from what is durable, or from what could be proven after damage.
//! May call: state, store, evidence.
//! Never: change anything; show a commit before it is durable.

use super::evidence::Evidence;
use super::frame::{Head, Kind};
use super::hollow;
use super::read;
use super::state::{self, Shared};
use super::store::{self, Store, StoreError, guarded};
use crate::core::ids::{BootId, CommitNo, EventKey, OperationId};
use crate::core::record::{
    Block, DeadLetter, EventRecord, Operation, Position, Record, Stored, Tombstone,
};
use crate::core::spec::EventClass;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;

/// Most operations looked at for one page of a filtered list.
pub const SCAN_OPERATIONS_MAX: usize = 2_000;

/// Most blocks looked at in one step of a scan.
const SCAN_BLOCKS_MAX: usize = 10_000;

/// Events with their places, and up to which commit all was looked at, if to the end of one.
pub type Scanned = (Vec<(Position, EventRecord)>, Option<CommitNo>);

/// Why a read failed: the disk, or damage that came since the open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot be read: {0}; run `holdfast journal check`")]
pub struct ReadError(pub String);

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        Self(error.0)
    }
}

/// Which operations to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationQuery {
    /// Of this machine.
    pub machine: Option<String>,
    /// In this state, by its API name.
    pub state: Option<String>,
    /// Created at or after, microseconds since 1970.
    pub since_us: Option<i64>,
}

/// What a sink has still to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Events.
    pub events: u64,
    /// Bytes in the log, approximately.
    pub bytes: u64,
    /// Wall time of the commit of the oldest.
    pub oldest_wall_us: Option<i64>,
}

/// Answers questions; as many copies as wanted, from any thread.
#[derive(Clone)]
pub struct Reader(Source);

#[derive(Clone)]
pub(super) enum Source {
    Live(Arc<Shared>),
    Proven(Arc<Evidence>),
}

impl Reader {
    pub(super) fn new(source: Source) -> Self {
        Self(source)
    }

    /// The last durable commit.
    #[must_use]
    pub fn durable(&self) -> CommitNo {
        match &self.0 {
            Source::Live(shared) => *shared.durable.borrow(),
            Source::Proven(evidence) => *evidence.durable.borrow(),
        }
    }

    /// Tells of every new durable commit.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<CommitNo> {
        match &self.0 {
            Source::Live(shared) => shared.durable.subscribe(),
            Source::Proven(evidence) => evidence.durable.subscribe(),
        }
    }

    /// What is known of `id`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn lookup(&self, id: &OperationId) -> Result<Option<Stored>, ReadError> {
        match &self.0 {
            Source::Live(shared) => Ok(guarded(|| lookup_live(shared, id))?),
            Source::Proven(evidence) => Ok(evidence.lookup(id)?),
        }
    }

    /// Operations in the order of their submission, behind `after`, at most `limit`; and where to go
    /// on, if there may be more.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn operations(
        &self,
        query: &OperationQuery,
        after: Option<CommitNo>,
        limit: usize,
    ) -> Result<(Vec<Operation>, Option<CommitNo>), ReadError> {
        let candidates = self.candidates(after)?;
        let full = candidates.len() > SCAN_OPERATIONS_MAX;
        let mut found = Vec::new();
        let mut last = None;
        for (no, id) in candidates.into_iter().take(SCAN_OPERATIONS_MAX) {
            if found.len() >= limit && last != Some(no) {
                return Ok((found, last));
            }
            if let Some(Stored::Operation(operation)) = self.lookup(&id)? {
                let fits = query
                    .machine
                    .as_ref()
                    .is_none_or(|m| *m == operation.intent.machine)
                    && query
                        .state
                        .as_ref()
                        .is_none_or(|s| s == operation.state.name())
                    && query
                        .since_us
                        .is_none_or(|since| operation.created.wall_us >= since);
                if fits {
                    found.push(*operation);
                }
            }
            last = Some(no);
        }
        Ok((found, last.filter(|_| full)))
    }

    /// The next operations behind `after`, one more than are looked at.
    fn candidates(
        &self,
        after: Option<CommitNo>,
    ) -> Result<BTreeSet<(CommitNo, OperationId)>, ReadError> {
        let begin = after.map_or(0, |no| no.0.saturating_add(1));
        match &self.0 {
            Source::Live(shared) => Ok(guarded(|| candidates_live(shared, begin))?),
            Source::Proven(evidence) => Ok(evidence.order(begin, SCAN_OPERATIONS_MAX + 1)),
        }
    }

    /// The next block behind `after`: its head and body.
    fn next_block(&self, after: u64) -> Result<Option<(Head, Vec<u8>)>, ReadError> {
        match &self.0 {
            Source::Live(shared) => {
                let durable = self.durable().0;
                let store = shared.store()?;
                Ok(guarded(|| next_live(&store, after, durable))?)
            }
            Source::Proven(evidence) => Ok(evidence.next_block(after)?),
        }
    }

    fn next(&self, after: u64) -> Result<Option<Block>, ReadError> {
        let Some((head, body)) = self.next_block(after)? else {
            return Ok(None);
        };
        Ok(Some(store::parse(&super::no_key(head.no), &body)?))
    }

    /// Blocks behind `after`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn blocks(&self, after: CommitNo, limit: usize) -> Result<Vec<Block>, ReadError> {
        let mut found: Vec<Block> = Vec::new();
        let mut at = after.0;
        while found.len() < limit {
            let Some(block) = self.next(at)? else { break };
            at = block.no.0;
            found.push(block);
        }
        Ok(found)
    }

    /// Events behind `after`: at most `limit`, and at most `max_bytes` of bodies unless the first
    /// alone is larger.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn events(
        &self,
        after: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(Position, EventRecord, BootId)>, ReadError> {
        let mut found = Vec::new();
        let mut bytes = 0_usize;
        let mut at = after.no.0.saturating_sub(1);
        let shed = self.shed_through();
        while found.len() < limit {
            let Some((head, body)) = self.next_block(at)? else {
                break;
            };
            at = head.no;
            if head.events == 0 {
                continue;
            }
            let block: Block = store::parse(&super::no_key(head.no), &body)?;
            let (no, boot) = (block.no, block.at.boot_id);
            for (record, index) in block.records.into_iter().zip(0_u32..) {
                let position = Position { no, index };
                let Record::Event(event) = record else {
                    continue;
                };
                if position <= after || (no <= shed && event.class == EventClass::Telemetry) {
                    continue;
                }
                bytes = bytes.saturating_add(event.body.len());
                if found.len() >= limit || (bytes > max_bytes && !found.is_empty()) {
                    return Ok(found);
                }
                found.push((position, event, boot));
            }
        }
        Ok(found)
    }

    /// Telemetry up to there was given up.
    fn shed_through(&self) -> CommitNo {
        match &self.0 {
            Source::Live(shared) => read(&shared.dirty).shed.through,
            Source::Proven(evidence) => evidence.shed.1.through,
        }
    }

    /// As [`Reader::events`], for whoever reads on and on: also up to which commit all was looked at, if to
    /// the end of one.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn scan(
        &self,
        after: Position,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Scanned, ReadError> {
        let mut found = Vec::new();
        let mut bytes = 0_usize;
        let mut at = after
            .no
            .0
            .saturating_sub(u64::from(after.index != u32::MAX));
        let shed = self.shed_through();
        for _ in 0..SCAN_BLOCKS_MAX {
            let durable = self.durable();
            let Some((head, body)) = self.next_block(at)? else {
                return Ok((found, Some(durable)));
            };
            if head.events > 0 {
                let block: Block = store::parse(&super::no_key(head.no), &body)?;
                for (record, index) in block.records.into_iter().zip(0_u32..) {
                    let position = Position {
                        no: block.no,
                        index,
                    };
                    let Record::Event(event) = record else {
                        continue;
                    };
                    let shed = block.no <= shed && event.class == EventClass::Telemetry;
                    if position <= after || shed {
                        continue;
                    }
                    bytes = bytes.saturating_add(event.body.len());
                    if found.len() >= limit || (bytes > max_bytes && !found.is_empty()) {
                        return Ok((found, None));
                    }
                    found.push((position, event));
                }
            }
            at = head.no;
            if found.len() >= limit {
                break;
            }
        }
        Ok((found, Some(CommitNo(at))))
    }

    /// Where the event of `key` is, if the log still holds it.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn position_of(&self, key: &EventKey) -> Result<Option<Position>, ReadError> {
        let (mut below, mut above) = (0, self.durable().0.saturating_add(1));
        while below + 1 < above {
            let middle = below + (above - below) / 2;
            match self.compare(key, middle, above)? {
                Place::Here(position) => return Ok(Some(position)),
                Place::Behind(no) => below = no,
                Place::Before => above = middle,
            }
        }
        Ok(None)
    }

    /// Where `key` lies as seen from the first block at or behind `from` that says anything about it.
    fn compare(&self, key: &EventKey, from: u64, above: u64) -> Result<Place, ReadError> {
        let mut at = from.saturating_sub(1);
        loop {
            let Some(block) = self.next(at)?.filter(|b| b.no.0 < above) else {
                return Ok(Place::Before);
            };
            at = block.no.0;
            match block.epoch.cmp(&key.epoch) {
                std::cmp::Ordering::Less => return Ok(Place::Behind(at)),
                std::cmp::Ordering::Greater => return Ok(Place::Before),
                std::cmp::Ordering::Equal => {}
            }
            let mut last = None;
            for (record, index) in block.records.iter().zip(0_u32..) {
                if let Record::Event(event) = record
                    && event.key.source == key.source
                {
                    if event.key == *key {
                        return Ok(Place::Here(Position {
                            no: block.no,
                            index,
                        }));
                    }
                    last = Some(event.key.sequence);
                }
            }
            match last {
                Some(sequence) if sequence < key.sequence => return Ok(Place::Behind(at)),
                Some(_) => return Ok(Place::Before),
                None => {}
            }
        }
    }

    /// What lies behind `after`, cheaply: counted by strides, read only where a stride is cut.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn backlog(&self, after: Position) -> Result<Backlog, ReadError> {
        let oldest = self.events(after, 1, 0)?;
        let Some((first, _, _)) = oldest.first() else {
            return Ok(Backlog::default());
        };
        let Some((head, body)) = self.next_block(first.no.0.saturating_sub(1))? else {
            return Ok(Backlog::default());
        };
        let block: Block = store::parse(&super::no_key(head.no), &body)?;
        let rest =
            block.records.iter().zip(0_u32..).filter(|(record, index)| {
                matches!(record, Record::Event(_)) && *index >= first.index
            });
        let mut sum = Backlog {
            events: rest.count() as u64,
            bytes: u64::from(head.len),
            oldest_wall_us: Some(head.wall_us),
        };
        let (events, bytes, end) = match &self.0 {
            Source::Live(shared) => read(&shared.strides).behind(head.no),
            Source::Proven(evidence) => evidence.behind(head.no),
        };
        sum.events += events;
        sum.bytes += bytes;
        let mut at = head.no;
        while let Some((head, body)) = self.next_block(at)?.filter(|(head, _)| head.no <= end) {
            sum.events += u64::from(head.events);
            sum.bytes += body.len() as u64;
            at = head.no;
        }
        Ok(sum)
    }

    /// The place before the first event that is not older than `wall_us`, by the wall clock of its commit: if that
    /// clock was stepped, rather a place too early than one too late.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn place_before(&self, wall_us: i64) -> Result<Position, ReadError> {
        let mut at = 0;
        while let Some((head, _)) = self
            .next_block(at)?
            .filter(|(head, _)| head.wall_us < wall_us)
        {
            at = head.no;
        }
        Ok(Position {
            no: CommitNo(at),
            index: u32::MAX,
        })
    }

    /// Dead letters of `sink` that wait, in the order of their keys as text, behind `after`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn dead_letters(
        &self,
        sink: &str,
        after: Option<&EventKey>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, ReadError> {
        match &self.0 {
            Source::Live(shared) => {
                let store = shared.store()?;
                Ok(guarded(|| dead_live(&store, sink, after, limit))?)
            }
            Source::Proven(evidence) => {
                let mut all = evidence.dead_letters(sink, usize::MAX);
                let after = after.map(ToString::to_string);
                all.retain(|letter| after.as_ref() < Some(&letter.event.key.to_string()));
                all.truncate(limit);
                Ok(all)
            }
        }
    }

    /// The dead letter of `key`, if it stands.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn dead_letter(&self, sink: &str, key: &EventKey) -> Result<Option<DeadLetter>, ReadError> {
        let Source::Live(shared) = &self.0 else {
            let mut all = self.dead_letters(sink, None, usize::MAX)?;
            all.retain(|letter| letter.event.key == *key);
            return Ok(all.pop());
        };
        let store = shared.store()?;
        let place = state::dead_key(sink, key);
        let found = guarded(|| store::get(&store.dead, &place))?;
        Ok(found
            .map(|(_, body)| store::parse(&place, &body))
            .transpose()?)
    }

    /// How many dead letters of `sink` wait.
    #[must_use]
    pub fn dead_letter_count(&self, sink: &str) -> u64 {
        match &self.0 {
            Source::Live(shared) => read(&shared.dirty).dead.get(sink).copied().unwrap_or(0),
            Source::Proven(evidence) => evidence.dead_letters(sink, usize::MAX).len() as u64,
        }
    }
}

enum Place {
    Here(Position),
    Behind(u64),
    Before,
}

fn lookup_live(shared: &Shared, id: &OperationId) -> Result<Option<Stored>, StoreError> {
    if let Some((_, operation)) = read(&shared.dirty).operations.get(id) {
        return Ok(Some(Stored::Operation(Box::new((**operation).clone()))));
    }
    let store = shared.store()?;
    lookup_store(&store, id)
}

/// Looks into `done` first: an operation is put there before it leaves `open`.
fn lookup_store(store: &Store, id: &OperationId) -> Result<Option<Stored>, StoreError> {
    let key = id.as_str().as_bytes();
    // Twice, since between the two looks it may move from `open` to `done`.
    for tree in [&store.done, &store.open, &store.done] {
        if let Some((head, body)) = store::get(tree, key)? {
            return Ok(Some(parse_stored(&head, key, &body)?));
        }
    }
    Ok(None)
}

pub(super) fn parse_stored(head: &Head, key: &[u8], body: &[u8]) -> Result<Stored, StoreError> {
    Ok(if head.kind == Kind::Tombstone {
        Stored::Tombstone(store::parse::<Tombstone>(key, body)?)
    } else {
        Stored::Operation(Box::new(store::parse(key, body)?))
    })
}

fn candidates_live(
    shared: &Shared,
    begin: u64,
) -> Result<BTreeSet<(CommitNo, OperationId)>, StoreError> {
    let mut found: BTreeSet<(CommitNo, OperationId)> = read(&shared.dirty)
        .operations
        .values()
        .filter(|(_, operation)| operation.submitted.0 >= begin)
        .map(|(_, operation)| (operation.submitted, operation.id.clone()))
        .collect();
    let store = shared.store()?;
    for entry in store
        .order
        .range(super::no_key(begin)..)
        .take(SCAN_OPERATIONS_MAX + 1)
    {
        let (key, _) = entry?;
        let (no, id) = key.split_at(8);
        let no = u64::from_be_bytes(no.try_into().unwrap_or_default());
        if let Ok(id) = OperationId::parse(&String::from_utf8_lossy(id)) {
            found.insert((CommitNo(no), id));
        }
    }
    while found.len() > SCAN_OPERATIONS_MAX + 1 {
        found.pop_last();
    }
    Ok(found)
}

fn next_live(
    store: &Store,
    after: u64,
    durable: u64,
) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
    let mut after = after;
    loop {
        // Numbers have no gaps, so the next one is there unless the log begins later, ends, or is hollow there.
        let Some(next) = after.checked_add(1).filter(|next| *next <= durable) else {
            return Ok(None);
        };
        let found = match state::get_block(store, next)? {
            Some(found) => Some(found),
            None => first_from(store, next)?,
        };
        match found {
            Some((head, body)) if head.kind == Kind::Hollow => {
                after = hollow::through(&head, &body)?;
            }
            Some((head, body)) => {
                // A sink that drains a backlog reads the log from end to end.
                store::touch(&store.log, &super::no_key(head.no), body.len())?;
                return Ok(Some((head, body)).filter(|(head, _)| head.no <= durable));
            }
            None => return Ok(None),
        }
    }
}

fn first_from(store: &Store, no: u64) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
    for entry in store.log.range(super::no_key(no)..) {
        let (key, value) = entry?;
        if store::is_first(&value) {
            return store::assemble(&store.log, &key, &value).map(Some);
        }
    }
    Ok(None)
}

fn dead_live(
    store: &Store,
    sink: &str,
    after: Option<&EventKey>,
    limit: usize,
) -> Result<Vec<DeadLetter>, StoreError> {
    let mut found = Vec::new();
    let prefix = format!("{sink}\0").into_bytes();
    let begin = after.map_or_else(|| prefix.clone(), |key| state::dead_key(sink, key));
    for entry in store.dead.range(begin.clone()..) {
        let (key, value) = entry?;
        if found.len() >= limit || !key.starts_with(&prefix) {
            break;
        }
        if store::is_first(&value) && (after.is_none() || key[..] != begin[..]) {
            let (_, body) = store::assemble(&store.dead, &key, &value)?;
            found.push(store::parse(&key, &body)?);
        }
    }
    Ok(found)
}
