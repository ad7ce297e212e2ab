//! Owns: what the raw bytes of a journal's files prove, without opening the store.
//! May call: frame, files.
//! Never: change a file; believe a frame whose CRC does not match.

use super::files;
use super::frame::{self, Head, Kind, MAGIC};
use super::hollow;
use super::state::{Strides, events_in, source_key};
use super::store::{StoreError, parse};
use super::{Meta, no_key};
use crate::core::ids::{CommitNo, OperationId};
use crate::core::record::{
    Block, CursorRecord, DeadLetter, MachineRecord, Operation, Record, ShedRecord, SinkRecord,
    SourceRecord, Stored, Tombstone,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tokio::sync::watch;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 4 << 20;
const FRAME_BYTES_MAX: usize = frame::HEAD_BYTES + frame::PART_BYTES_MAX;

/// Where a part's body lies.
#[derive(Clone, Copy, Debug)]
struct At {
    file: usize,
    offset: u64,
    len: u32,
}

struct BlockAt {
    head: Head,
    epoch: u64,
    parts: Vec<At>,
}

enum OperationAt {
    Block(u64),
    Value(Head, Vec<At>),
}

/// What is proven. It holds places, not content: content is read when asked for.
pub(super) struct Evidence {
    files: Vec<File>,
    blocks: BTreeMap<u64, BlockAt>,
    operations: HashMap<OperationId, (u64, OperationAt)>,
    order: BTreeMap<(CommitNo, OperationId), ()>,
    pub(super) machines: BTreeMap<String, (u64, MachineRecord)>,
    pub(super) cursors: BTreeMap<String, (u64, CursorRecord)>,
    /// By [`source_key`].
    pub(super) sources: BTreeMap<String, (u64, SourceRecord)>,
    pub(super) sinks: BTreeMap<String, (u64, SinkRecord)>,
    pub(super) shed: (u64, ShedRecord),
    /// Runs of which nothing is kept: first and last commit.
    hollow: BTreeMap<u64, u64>,
    dead: BTreeMap<(String, String), (u64, Option<DeadLetter>)>,
    pub(super) meta: Meta,
    /// Frames whose CRC does not match: torn, altered, or the rest of overwritten ones.
    pub(super) bad_frames: u64,
    pub(super) last_epoch: u64,
    pub(super) highest_wall_us: i64,
    strides: Strides,
    pub(super) durable: watch::Sender<CommitNo>,
}

type PartKey = (Kind, u64, u32, u8);

impl Evidence {
    /// Nothing.
    pub(super) fn none() -> Self {
        Self {
            files: Vec::new(),
            blocks: BTreeMap::new(),
            operations: HashMap::new(),
            order: BTreeMap::new(),
            machines: BTreeMap::new(),
            cursors: BTreeMap::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            shed: Default::default(),
            hollow: BTreeMap::new(),
            dead: BTreeMap::new(),
            meta: Meta::default(),
            bad_frames: 0,
            last_epoch: 0,
            highest_wall_us: 0,
            strides: Strides::default(),
            durable: watch::Sender::new(CommitNo(0)),
        }
    }

    /// Scans the copy aside and every generation's file.
    pub(super) fn scan(dir: &Path) -> Result<Self, StoreError> {
        let mut evidence = Self::none();
        let mut paths: Vec<PathBuf> = vec![dir.join(files::ASIDE).join("db")];
        let generations = files::generations(dir).into_iter();
        paths.extend(generations.map(|g| files::generation_dir(dir, g).join("db")));
        for path in paths.into_iter().filter(|path| path.is_file()) {
            let failed = |e: std::io::Error| StoreError(format!("{}: {e}", path.display()));
            let file = File::open(&path).map_err(failed)?;
            let index = evidence.files.len();
            evidence.files.push(file.try_clone().map_err(failed)?);
            evidence.scan_file(index, file).map_err(failed)?;
        }
        evidence.settle();
        Ok(evidence)
    }

    fn scan_file(&mut self, index: usize, mut file: File) -> std::io::Result<()> {
        let mut parts: HashMap<PartKey, At> = HashMap::new();
        let mut window: Vec<u8> = Vec::new();
        let mut base = 0_u64;
        loop {
            let held = window.len();
            let n = file
                .by_ref()
                .take(CHUNK_BYTES as u64)
                .read_to_end(&mut window)?;
            let end = window.len() == held;
            // A frame that may go on behind the window waits for the next round.
            let safe = if end {
                n + held
            } else {
                window.len().saturating_sub(FRAME_BYTES_MAX)
            };
            let mut at = 0;
            while let Some(found) = find_magic(&window[at..]) {
                let place = at + found;
                if place >= safe {
                    break;
                }
                at = place + 1;
                match frame::decode(&window[place..]) {
                    Ok((head, body)) => {
                        let offset = base + (place + frame::HEAD_BYTES) as u64;
                        let here = At {
                            file: index,
                            offset,
                            len: head.len,
                        };
                        at = place + frame::HEAD_BYTES + body.len();
                        let body = body.to_vec();
                        self.found(head, here, &body, &mut parts);
                    }
                    Err(_) => self.bad_frames += 1,
                }
            }
            if end {
                return Ok(());
            }
            let keep_from = safe.max(at).min(window.len());
            window.drain(..keep_from);
            base += keep_from as u64;
        }
    }

    fn found(&mut self, head: Head, here: At, body: &[u8], parts: &mut HashMap<PartKey, At>) {
        if head.parts <= 1 {
            self.take(head, vec![here], body);
            return;
        }
        let key = |part| (head.kind, head.no, head.chain, part);
        parts.insert(key(head.part), here);
        let all: Option<Vec<At>> = (0..head.parts)
            .map(|part| parts.get(&key(part)).copied())
            .collect();
        if let Some(all) = all
            && let Ok(body) = self.body(&all)
        {
            self.take(head, all, &body);
        }
    }

    /// Takes a whole value. Newer ones replace older ones; equal ones are met many times.
    fn take(&mut self, head: Head, parts: Vec<At>, body: &[u8]) {
        match head.kind {
            Kind::Block | Kind::Thinned => self.take_block(head, parts, body),
            Kind::Hollow => {
                if let Ok(through) = hollow::through(&head, body) {
                    let known = self.hollow.entry(head.no).or_default();
                    *known = through.max(*known);
                }
            }
            Kind::Shed => {
                if let Ok(shed) = postcard::from_bytes::<ShedRecord>(body) {
                    self.take_shed(head.no, shed);
                }
            }
            Kind::Operation | Kind::Tombstone => {
                let id = if head.kind == Kind::Operation {
                    postcard::from_bytes::<Operation>(body).ok().map(|o| {
                        self.order.insert((o.submitted, o.id.clone()), ());
                        o.id
                    })
                } else {
                    postcard::from_bytes::<Tombstone>(body).ok().map(|t| t.id)
                };
                if let Some(id) = id {
                    // A tombstone has the commit number of what it replaced.
                    let rank = head.no * 2 + u64::from(head.kind == Kind::Tombstone);
                    newer(
                        &mut self.operations,
                        id,
                        rank,
                        OperationAt::Value(head, parts),
                    );
                }
            }
            Kind::Machine => {
                if let Ok(machine) = postcard::from_bytes::<MachineRecord>(body) {
                    newer_ordered(&mut self.machines, machine.name.clone(), head.no, machine);
                }
            }
            Kind::Cursor => {
                if let Ok(cursor) = postcard::from_bytes::<CursorRecord>(body) {
                    newer_ordered(&mut self.cursors, cursor.sink.clone(), head.no, cursor);
                }
            }
            Kind::Source => {
                if let Ok(source) = postcard::from_bytes::<SourceRecord>(body) {
                    newer_ordered(&mut self.sources, source_key(&source), head.no, source);
                }
            }
            Kind::Sink => {
                if let Ok(sink) = postcard::from_bytes::<SinkRecord>(body) {
                    newer_ordered(&mut self.sinks, sink.sink.clone(), head.no, sink);
                }
            }
            Kind::DeadLetter => {
                if let Ok(letter) = postcard::from_bytes::<DeadLetter>(body) {
                    let key = (letter.sink.clone(), letter.event.key.to_string());
                    newer_ordered(&mut self.dead, key, head.no, Some(letter));
                }
            }
            Kind::Meta => {
                if let Ok(meta) = postcard::from_bytes::<Meta>(body)
                    && (meta.epoch, meta.trimmed_through, meta.derived_through)
                        >= (
                            self.meta.epoch,
                            self.meta.trimmed_through,
                            self.meta.derived_through,
                        )
                {
                    self.last_epoch = self.last_epoch.max(meta.epoch);
                    self.meta = meta;
                }
            }
        }
    }

    fn take_shed(&mut self, no: u64, shed: ShedRecord) {
        if no >= self.shed.0 {
            self.shed = (no, shed);
        }
    }

    fn take_block(&mut self, head: Head, parts: Vec<At>, body: &[u8]) {
        let known = self.blocks.get(&head.no);
        if known.is_some_and(|known| known.head.chain == head.chain) {
            return;
        }
        let Ok(block) = postcard::from_bytes::<Block>(body) else {
            self.bad_frames += 1;
            return;
        };
        // The same number twice: the one never acknowledged is of an older epoch.
        if known.is_some_and(|known| known.epoch > block.epoch.0) {
            return;
        }
        let epoch = block.epoch.0;
        self.last_epoch = self.last_epoch.max(epoch);
        self.highest_wall_us = self.highest_wall_us.max(head.wall_us);
        self.blocks.insert(head.no, BlockAt { head, epoch, parts });
    }

    /// Derives the rest from the blocks that were chosen.
    fn settle(&mut self) {
        for no in self.blocks.keys().copied().collect::<Vec<_>>() {
            let Ok(Some(block)) = self.block(no) else {
                continue;
            };
            let bytes = self.blocks.get(&no).map_or(0, |b| u64::from(b.head.len));
            self.strides.add(no, u64::from(events_in(&block)), bytes);
            for record in block.records {
                match record {
                    Record::Operation(operation) => {
                        self.order
                            .insert((operation.submitted, operation.id.clone()), ());
                        newer(
                            &mut self.operations,
                            operation.id,
                            no * 2,
                            OperationAt::Block(no),
                        );
                    }
                    Record::Machine(m) => newer_ordered(&mut self.machines, m.name.clone(), no, m),
                    Record::Cursor(c) => newer_ordered(&mut self.cursors, c.sink.clone(), no, c),
                    Record::Source(s) => newer_ordered(&mut self.sources, source_key(&s), no, s),
                    Record::Sink(s) => newer_ordered(&mut self.sinks, s.sink.clone(), no, s),
                    Record::DeadLetter(letter) => {
                        let key = (letter.sink.clone(), letter.event.key.to_string());
                        newer_ordered(&mut self.dead, key, no, Some(letter));
                    }
                    Record::DeadLetterSettled { sink, key, .. } => {
                        newer_ordered(&mut self.dead, (sink, key.to_string()), no, None);
                    }
                    Record::Shed(shed) => self.take_shed(no, shed),
                    Record::Event(_)
                    | Record::Start(_)
                    | Record::Audit { .. }
                    | Record::Stop
                    | Record::Gone => {}
                }
            }
        }
        let last = self.blocks.keys().next_back().copied().unwrap_or(0);
        let last = self.hollow.values().copied().fold(last, u64::max);
        self.durable
            .send_replace(CommitNo(last.max(self.meta.trimmed_through)));
    }

    fn body(&self, parts: &[At]) -> Result<Vec<u8>, StoreError> {
        let mut body = Vec::new();
        for part in parts {
            let begin = body.len();
            body.resize(begin + part.len as usize, 0);
            self.files[part.file]
                .read_exact_at(&mut body[begin..], part.offset)
                .map_err(|e| StoreError(format!("reading what was proven: {e}")))?;
        }
        Ok(body)
    }

    /// Whether nothing at all was found.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.operations.is_empty() && self.meta.derived_through == 0
    }
    /// First and last block that are proven.
    pub(super) fn bounds(&self) -> Option<(u64, u64)> {
        Some((
            *self.blocks.keys().next()?,
            *self.blocks.keys().next_back()?,
        ))
    }
    /// Commits that were acknowledged by `high_water` or lie between proven ones, and are not there.
    pub(super) fn missing(&self, high_water: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut next = self.meta.trimmed_through + 1;
        let blocks = self.blocks.keys().map(|no| (*no, *no));
        let mut there: Vec<(u64, u64)> = blocks
            .chain(self.hollow.iter().map(|(no, through)| (*no, *through)))
            .collect();
        there.sort_unstable();
        for (no, through) in there {
            if no > next {
                gaps.push((next, no - 1));
            }
            next = next.max(through + 1);
        }
        if next <= high_water {
            gaps.push((next, high_water));
        }
        gaps
    }
    /// Whether nothing of commit `no` was kept, and it is not lost.
    pub(super) fn is_hollow(&self, no: u64) -> bool {
        let run = self.hollow.range(..=no);
        run.rev().any(|(_, through)| no <= *through)
    }
    pub(super) fn block(&self, no: u64) -> Result<Option<Block>, StoreError> {
        let Some(at) = self.blocks.get(&no) else {
            return Ok(None);
        };
        let body = self.body(&at.parts)?;
        parse(&no_key(no), &body).map(Some)
    }
    pub(super) fn block_numbers(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        self.blocks.range(from..).map(|(no, _)| *no)
    }
    pub(super) fn next_block(&self, after: u64) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
        let next = self.blocks.range(after.saturating_add(1)..).next();
        next.map(|(_, at)| Ok((at.head, self.body(&at.parts)?)))
            .transpose()
    }
    pub(super) fn behind(&self, no: u64) -> (u64, u64, u64) {
        self.strides.behind(no)
    }
    pub(super) fn lookup(&self, id: &OperationId) -> Result<Option<Stored>, StoreError> {
        match self.operations.get(id) {
            None => Ok(None),
            Some((_, OperationAt::Value(head, parts))) => {
                let body = self.body(parts)?;
                super::reader::parse_stored(head, id.as_str().as_bytes(), &body).map(Some)
            }
            Some((_, OperationAt::Block(no))) => {
                let records = self.block(*no)?.map(|b| b.records).unwrap_or_default();
                let newest = records.into_iter().rev().find_map(|record| match record {
                    Record::Operation(o) if o.id == *id => Some(Stored::Operation(o)),
                    _ => None,
                });
                Ok(newest)
            }
        }
    }
    /// Every id, with the commit that changed it last.
    pub(super) fn ids(&self) -> impl Iterator<Item = (&OperationId, u64)> {
        self.operations.iter().map(|(id, (rank, _))| (id, rank / 2))
    }
    pub(super) fn order(&self, begin: u64, max: usize) -> BTreeSet<(CommitNo, OperationId)> {
        let all = self.order.keys().skip_while(|(no, _)| no.0 < begin);
        all.take(max).cloned().collect()
    }
    pub(super) fn dead_letters(&self, sink: &str, limit: usize) -> Vec<DeadLetter> {
        let all = self.dead.iter().filter(|((s, _), _)| s == sink);
        all.filter_map(|(_, (_, letter))| letter.clone())
            .take(limit)
            .collect()
    }
    /// Every dead letter that waits, with its commit.
    pub(super) fn all_dead_letters(&self) -> impl Iterator<Item = (u64, &DeadLetter)> {
        self.dead
            .values()
            .filter_map(|(no, letter)| Some((*no, letter.as_ref()?)))
    }
}

fn find_magic(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|b| *b == MAGIC[0]) {
        at += found;
        if bytes[at..].starts_with(&MAGIC) {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn newer<V>(map: &mut HashMap<OperationId, (u64, V)>, id: OperationId, rank: u64, value: V) {
    if map.get(&id).is_none_or(|(known, _)| *known < rank) {
        map.insert(id, (rank, value));
    }
}

/// At an equal number the later one wins: within a block, order counts.
fn newer_ordered<K: Ord, V>(map: &mut BTreeMap<K, (u64, V)>, key: K, no: u64, value: V) {
    if map.get(&key).is_none_or(|(known, _)| *known <= no) {
        map.insert(key, (no, value));
    }
}
