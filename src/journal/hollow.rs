//! Owns: giving up telemetry at the budget: what may go, and taking it out of the log (FWD-04).
//! May call: writer's fields, state, store.
//! Never: take out what the core has not recorded as given up, or anything of class business.
//!
//! What goes lies between what stays, and numbers, chain and places must stay as they are. A block of which
//! something stays is thinned: each record that goes leaves [`Record::Gone`] in its place. Where nothing stays,
//! neighbours become one run, so that a day of telemetry between two business events takes up a few bytes.
//! A thinned block and a run keep the chain of what they were; their CRC vouches for it.
//!
//! Killed in between, a run may cover blocks that are still there: the next open removes them.

use super::frame::{self, Facts, HEAD_BYTES, Head, Kind};
use super::store::{self, Store, StoreError, guarded};
use super::writer::{CommitError, Journal, live_bytes_max};
use super::{RECORDS_COUNT_MAX, no_key, read, state, write};
use crate::core::ids::{CommitNo, EventKey};
use crate::core::record::{Ahead, Block, CursorRecord, Position, Record};
use crate::core::spec::EventClass;
use crate::failpoint;

/// Commits looked at in one slice.
const SLICE_COMMITS_MAX: u64 = 512;
/// Keys given up in one slice.
const SLICE_KEYS_MAX: usize = 1_000;
/// No more is given up in one slice than this part of what may be kept, so that it is not more than needed.
const SLICE_PARTS: u64 = 64;
/// Telemetry is given up from so much of what may be kept, in percent. Business events have the rest; and a store
/// that is rewritten when it takes twice what it keeps stays within the budget with its copy beside it ...
const HIGH_PERCENT: u64 = 50;
/// ... and there is room again below so much.
const LOW_PERCENT: u64 = 35;

/// How near the budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// There is room.
    Low,
    /// Nothing is given up, and nothing is over.
    Middle,
    /// Telemetry is to be given up.
    High,
}

/// Telemetry that may be given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheddable {
    /// The last commit looked at.
    pub through: CommitNo,
    /// What some sink has not taken, in the order of the log.
    pub keys: Vec<EventKey>,
}

/// How far this start has come.
#[derive(Default)]
pub(super) struct Thinning {
    /// Looked at for what may be given up.
    looked: u64,
    /// Taken out of the log.
    done: u64,
    /// The run that ends at `done`.
    run: Option<Run>,
}

#[derive(Clone, Copy)]
struct Run {
    first: u64,
    through: u64,
    chain: u32,
    wall_us: i64,
}

/// The last commit that a value of the log stands for.
pub(super) fn through(head: &Head, body: &[u8]) -> Result<u64, StoreError> {
    match head.kind {
        Kind::Hollow => body
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| StoreError(format!("commit {}: a run without its end", head.no))),
        _ => Ok(head.no),
    }
}

impl Journal {
    /// How near the budget is; high only when all that was given up has been taken out already.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        let usage = self.usage();
        let above = |percent| {
            usage.used_bytes > live_bytes_max(self.budget_bytes) / 100 * percent
                || usage.records > RECORDS_COUNT_MAX / 100 * percent
        };
        let done = self.thinning.done.max(self.meta.trimmed_through);
        if above(HIGH_PERCENT) && done >= self.shed_through() {
            Pressure::High
        } else if above(LOW_PERCENT) {
            Pressure::Middle
        } else {
            Pressure::Low
        }
    }

    fn shed_through(&self) -> u64 {
        read(&self.shared.dirty).shed.through.0
    }

    /// The oldest telemetry that may be given up, if there is any in the next slice of the log.
    ///
    /// # Errors
    /// [`CommitError`]: as after a failed commit, the process must end.
    pub fn sheddable(
        &mut self,
        policy: &super::Retention,
    ) -> Result<Option<Sheddable>, CommitError> {
        let store = self.store()?;
        let cursors = self.cursors_of(policy);
        let begin = self.thinning.looked.max(self.shed_through());
        let begin = begin.max(self.meta.trimmed_through);
        let bytes_max = live_bytes_max(self.budget_bytes) / SLICE_PARTS;
        let mut keys = Vec::new();
        let mut bytes = 0;
        let mut no = begin;
        while no < self.meta.derived_through
            && no - begin < SLICE_COMMITS_MAX
            && keys.len() < SLICE_KEYS_MAX
            && bytes < bytes_max
        {
            let Some((head, body)) = guarded(|| state::get_block(&store, no + 1))? else {
                break;
            };
            no = through(&head, &body)?;
            if head.events > 0 {
                let block: Block = store::parse(&no_key(no), &body)?;
                let before = keys.len();
                keys.extend(untaken(&block, &cursors));
                if keys.len() > before {
                    bytes += body.len() as u64;
                }
            }
        }
        self.thinning.looked = no;
        let through = CommitNo(no);
        Ok((!keys.is_empty()).then_some(Sheddable { through, keys }))
    }

    /// How far each sink has come: its cursor, and what it has taken out of turn.
    fn cursors_of(&self, policy: &super::Retention) -> Vec<(CursorRecord, Vec<Ahead>)> {
        let dirty = read(&self.shared.dirty);
        let known = |sink: &String| {
            let ahead = dirty.sinks.get(sink).map(|sink| sink.ahead.clone());
            let cursor = dirty.cursors.get(sink).cloned();
            (cursor.unwrap_or_default(), ahead.unwrap_or_default())
        };
        policy.sinks.iter().map(known).collect()
    }

    /// Takes a slice of what was given up out of the log; how many commits that were.
    pub(super) fn hollow(&mut self) -> Result<usize, CommitError> {
        let end = self.shed_through().min(self.meta.derived_through);
        let begin = self.thinning.done.max(self.meta.trimmed_through);
        if begin >= end {
            return Ok(0);
        }
        let store = self.store()?;
        if begin != self.thinning.done {
            self.thinning.run = None;
        }
        let mut work = Work {
            store: &store,
            strides: Vec::new(),
            run: self.thinning.run,
            grown: false,
            covered: Vec::new(),
        };
        let mut no = begin;
        while no < end && no - begin < SLICE_COMMITS_MAX {
            let Some((head, body)) = guarded(|| state::get_block(&store, no + 1))? else {
                break;
            };
            no = through(&head, &body)?;
            guarded(|| work.take(head, no, &body))?;
        }
        guarded(|| work.end_run(no))?;
        failpoint!("hollow.before-flush");
        guarded(|| store.flush())?;
        self.thinning.run = work.run;
        self.thinning.done = no;
        let mut strides = write(&self.shared.strides);
        for (no, before, after) in work.strides {
            strides.remove(no, before.0, before.1);
            if after != (0, 0) {
                strides.add(no, after.0, after.1);
            }
        }
        Ok(usize::try_from(no - begin).unwrap_or(usize::MAX))
    }
}

/// Telemetry of a block that some sink has not taken.
fn untaken(block: &Block, sinks: &[(CursorRecord, Vec<Ahead>)]) -> Vec<EventKey> {
    let waits = |position: &Position| {
        sinks.iter().any(|(cursor, ahead)| {
            let within = |run: &Ahead| run.from <= *position && *position <= run.to;
            cursor.through < *position
                && !cursor.sparse.contains(position)
                && !ahead.iter().any(within)
        })
    };
    let no = block.no;
    let records = block.records.iter().zip(0_u32..);
    records
        .filter_map(|(record, index)| match record {
            Record::Event(event)
                if event.class == EventClass::Telemetry && waits(&Position { no, index }) =>
            {
                Some(event.key.clone())
            }
            _ => None,
        })
        .collect()
}

/// Whether a record of a derived block may leave the log: its newest state is in the trees, or it was given up.
fn may_go(record: &Record) -> bool {
    match record {
        Record::Event(event) => event.class == EventClass::Telemetry,
        Record::Operation(_)
        | Record::Machine(_)
        | Record::Cursor(_)
        | Record::Source(_)
        | Record::Sink(_)
        | Record::Shed(_)
        | Record::Gone => true,
        Record::DeadLetter(_)
        | Record::DeadLetterSettled { .. }
        | Record::Start(_)
        | Record::Audit { .. }
        | Record::Stop => false,
    }
}

/// Events and bytes.
type Size = (u64, u64);

/// One slice.
struct Work<'a> {
    store: &'a Store,
    /// Commit, events and bytes before, events and bytes after.
    strides: Vec<(u64, Size, Size)>,
    run: Option<Run>,
    grown: bool,
    /// Commits that the run has taken in since it was last written.
    covered: Vec<u64>,
}

impl Work<'_> {
    fn take(&mut self, head: Head, through: u64, body: &[u8]) -> Result<(), StoreError> {
        let before = size(&head, body);
        if head.kind == Kind::Hollow {
            self.extend(&head, through, before);
            return Ok(());
        }
        let mut block: Block = store::parse(&no_key(head.no), body)?;
        if block.records.iter().all(may_go) {
            self.extend(&head, through, before);
            return Ok(());
        }
        self.end_run(head.no)?;
        // Parts are not exchanged together, so what has several stays whole until nothing of it is needed.
        let telemetry = |record: &Record| may_go(record) && !matches!(record, Record::Gone);
        if head.parts > 1 || !block.records.iter().any(telemetry) {
            return Ok(());
        }
        for record in block.records.iter_mut().filter(|record| may_go(record)) {
            *record = Record::Gone;
        }
        let body = postcard::to_stdvec(&block)
            .map_err(|e| StoreError(format!("encoding commit {}: {e}", head.no)))?;
        let facts = Facts {
            kind: Kind::Thinned,
            no: head.no,
            wall_us: head.wall_us,
            events: state::events_in(&block),
            chain: head.chain,
        };
        let frames = encoded(facts, &body)?;
        self.store
            .log
            .insert(no_key(head.no), frames[0].as_slice())?;
        let after = (u64::from(facts.events), frames[0].len() as u64);
        self.strides.push((head.no, before, after));
        Ok(())
    }

    /// The run takes in what follows it.
    fn extend(&mut self, head: &Head, through: u64, before: Size) {
        let first = self.run.map_or(head.no, |run| run.first);
        if self.run.is_some() || head.kind != Kind::Hollow {
            self.grown = true;
            self.covered.push(head.no);
            self.strides.push((head.no, before, (0, 0)));
        }
        self.run = Some(Run {
            first,
            through,
            chain: head.chain,
            wall_us: head.wall_us,
        });
    }

    /// Writes the run as it stands, and removes what it has taken in; one that does not end at `at` is over.
    fn end_run(&mut self, at: u64) -> Result<(), StoreError> {
        let Some(run) = self.run else { return Ok(()) };
        if self.grown {
            let facts = Facts {
                kind: Kind::Hollow,
                no: run.first,
                wall_us: run.wall_us,
                events: 0,
                chain: run.chain,
            };
            let frames = encoded(facts, &run.through.to_le_bytes())?;
            self.store
                .log
                .insert(no_key(run.first), frames[0].as_slice())?;
            failpoint!("hollow.before-remove");
            self.store.remove_blocks(run.first + 1, run.through)?;
            if self.covered.first() == Some(&run.first) {
                let bytes = frames[0].len() as u64;
                self.strides.push((run.first, (0, 0), (0, bytes)));
            }
            self.grown = false;
            self.covered.clear();
        }
        if run.through != at {
            self.run = None;
        }
        Ok(())
    }
}

fn size(head: &Head, body: &[u8]) -> Size {
    let bytes = body.len() + HEAD_BYTES * usize::from(head.parts);
    (u64::from(head.events), bytes as u64)
}

fn encoded(facts: Facts, body: &[u8]) -> Result<frame::Frames, StoreError> {
    frame::encode(facts, body)
        .filter(|frames| frames.len() == 1)
        .ok_or_else(|| StoreError(format!("commit {} grew while it was thinned", facts.no)))
}
