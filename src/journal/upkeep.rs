//! Owns: upkeep in bounded slices: checkpoint, trimming, retention, rewriting into a new generation.
//! May call: writer's fields, state, store, files, hollow.
//! Never: drop what a sink has not taken, an operation that has not ended, or anything by a clock
//! that is not trusted (but for acknowledged events when space is short).

use super::files;
use super::frame::{HEAD_BYTES, Head, Kind};
use super::hollow;
use super::state::{self, ends_key};
use super::store::{self, Store, StoreError, guarded};
use super::writer::{CommitError, Journal, live_bytes_max};
use super::{no_key, order_key, read, write};
use crate::core::ids::OperationId;
use crate::core::record::{Block, CursorRecord, Operation, Tombstone};
use crate::core::time::Now;
use crate::failpoint;
use std::sync::Arc;

/// A store is rewritten when it takes this many times what it keeps ...
pub const REWRITE_FACTOR: u64 = 4;
/// ... and more than this.
pub const REWRITE_BYTES_MIN: u64 = 48 << 20;

/// How long things are kept, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Events that every sink has taken, in milliseconds.
    pub keep_events_ms: u64,
    /// Ended operations whole, in milliseconds after their end and their replay window (CAP-03).
    pub keep_operations_ms: u64,
    /// Their tombstones, in milliseconds after the same moment.
    pub keep_tombstones_ms: u64,
    /// The configured sinks: what one of them has not taken is kept.
    pub sinks: Vec<String>,
}

/// What a slice of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Records written into the trees.
    pub settled: usize,
    /// Blocks dropped from the log.
    pub trimmed: usize,
    /// Commits whose telemetry was given up, and from which it was taken.
    pub hollowed: usize,
    /// Operations shrunk to tombstones.
    pub shrunk: usize,
    /// Tombstones dropped.
    pub dropped: usize,
    /// Entries copied into a new generation.
    pub copied: usize,
    /// A new generation is in use.
    pub rewritten: bool,
}

impl Maintained {
    /// Whether another slice would find work at once.
    #[must_use]
    pub fn busy(&self) -> bool {
        *self != Self::default()
    }
}

/// A new generation under way.
pub(super) struct Rewrite {
    generation: u64,
    store: Store,
    tree: usize,
    after: Option<Vec<u8>>,
}

fn due(base_us: i64, keep_ms: u64, now: &Now) -> bool {
    let keep_us = i64::try_from(keep_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
    base_us.saturating_add(keep_us) <= now.wall_us
}

impl Journal {
    /// One slice of upkeep of about `entries_max` entries. Call it when idle and every so many
    /// commits; [`Maintained::busy`] says whether to call again.
    ///
    /// # Errors
    /// [`CommitError`]: as after a failed commit, the process must end.
    pub fn maintain(
        &mut self,
        now: &Now,
        policy: &Retention,
        entries_max: usize,
    ) -> Result<Maintained, CommitError> {
        let mut did = Maintained::default();
        if self.rewrite.is_some() {
            self.rewrite_slice(entries_max, &mut did)?;
            return Ok(did);
        }
        if now.wall_trusted && self.meta.unproven_before_us > now.wall_us {
            self.meta.unproven_before_us = now.wall_us;
            let store = self.store()?;
            self.put_meta(&store)?;
        }
        did.settled = self.checkpoint(entries_max)?;
        let short = self.usage().used_bytes > live_bytes_max(self.budget_bytes) / 2;
        did.trimmed = self.trim(now, policy, entries_max, short)?;
        did.hollowed = self.hollow()?;
        if now.wall_trusted {
            self.sweep(now, policy, entries_max, &mut did)?;
        }
        if !did.busy() {
            self.measure(true);
            self.begin_rewrite_if_worth_it()?;
            if self.rewrite.is_some() {
                self.rewrite_slice(entries_max, &mut did)?;
            }
        }
        Ok(did)
    }

    /// Writes what changed into the trees; when all of it is there, records so.
    pub(super) fn checkpoint(&mut self, entries_max: usize) -> Result<usize, CommitError> {
        let store = self.store()?;
        let mut settled = 0;
        loop {
            let next = {
                let dirty = read(&self.shared.dirty);
                dirty.operations.values().next().cloned()
            };
            let Some((no, operation)) = next else { break };
            if settled >= entries_max {
                return Ok(settled);
            }
            let (grown, new) = guarded(|| state::settle(&store, no, &operation))?;
            self.tree_bytes += grown;
            self.operations += u64::from(new);
            write(&self.shared.dirty).operations.remove(&operation.id);
            settled += 1;
        }
        settled += self.settle_keyed(&store)?;
        if self.meta.derived_through < self.next - 1 {
            failpoint!("checkpoint.before-flush");
            guarded(|| store.flush())?;
            failpoint!("checkpoint.after-flush");
            self.meta.derived_through = self.next - 1;
            self.put_meta(&store)?;
            settled += 1;
        }
        Ok(settled)
    }

    fn settle_keyed(&mut self, store: &Store) -> Result<usize, CommitError> {
        let no = self.next - 1;
        let mut dirty = write(&self.shared.dirty);
        let changed = std::mem::take(&mut dirty.changed);
        let mut grown = 0;
        for key in &changed {
            let frames = match key.split_once('/') {
                None if key == state::SHED_KEY => {
                    Some(store::framed(Kind::Shed, no, 0, &dirty.shed))
                }
                Some(("machine", name)) => dirty
                    .machines
                    .get(name)
                    .map(|m| store::framed(Kind::Machine, no, 0, m)),
                Some(("source", _)) => dirty
                    .sources
                    .get(key)
                    .map(|s| store::framed(Kind::Source, no, 0, s)),
                Some(("sink", name)) => dirty
                    .sinks
                    .get(name)
                    .map(|s| store::framed(Kind::Sink, no, 0, s)),
                Some((_, name)) => dirty
                    .cursors
                    .get(name)
                    .map(|c| store::framed(Kind::Cursor, no, 0, c)),
                None => None,
            };
            if let Some(frames) = frames {
                let frames = frames?;
                grown += guarded(|| store::put(&store.keyed, key.as_bytes(), &frames))?;
            }
        }
        self.tree_bytes += grown;
        Ok(changed.len())
    }

    pub(super) fn put_meta(&mut self, store: &Store) -> Result<(), CommitError> {
        self.tree_bytes += guarded(|| {
            let grown = state::put_meta(store, &self.meta)?;
            store.flush()?;
            Ok(grown)
        })?;
        Ok(())
    }

    /// Drops the oldest blocks that nobody needs any more.
    fn trim(
        &mut self,
        now: &Now,
        policy: &Retention,
        entries_max: usize,
        short: bool,
    ) -> Result<usize, CommitError> {
        let store = self.store()?;
        let cursors: Vec<CursorRecord> = {
            let dirty = read(&self.shared.dirty);
            let known = |sink: &String| dirty.cursors.get(sink).cloned().unwrap_or_default();
            policy.sinks.iter().map(known).collect()
        };
        // Each with the last commit that it stands for.
        let mut gone: Vec<(Head, u64, u64)> = Vec::new();
        let mut no = self.meta.trimmed_through + 1;
        while no <= self.meta.derived_through && gone.len() < entries_max {
            let Some((head, body)) = guarded(|| state::get_block(&store, no))? else {
                break;
            };
            let old = short || (now.wall_trusted && due(head.wall_us, policy.keep_events_ms, now));
            if !old || !taken(&cursors, &head, &body)? {
                break;
            }
            let bytes = body.len() + HEAD_BYTES * usize::from(head.parts);
            let through = hollow::through(&head, &body)?;
            gone.push((head, bytes as u64, through));
            no = through + 1;
        }
        let (Some((first, ..)), Some((last, _, through))) = (gone.first(), gone.last()) else {
            return Ok(0);
        };
        self.meta.trimmed_through = *through;
        self.meta.trimmed_chain = last.chain;
        self.put_meta(&store)?;
        failpoint!("trim.before-remove");
        guarded(|| store.remove_blocks(first.no, *through))?;
        let mut strides = write(&self.shared.strides);
        for (head, bytes, _) in &gone {
            strides.remove(head.no, u64::from(head.events), *bytes);
        }
        Ok(gone.len())
    }

    /// Shrinks ended operations to tombstones, and drops tombstones, when their time has come.
    fn sweep(
        &mut self,
        now: &Now,
        policy: &Retention,
        entries_max: usize,
        did: &mut Maintained,
    ) -> Result<(), CommitError> {
        let store = self.store()?;
        for (key, base, id) in due_ends(&store, b'o', policy.keep_operations_ms, now, entries_max)?
        {
            let tree_key = id.as_str().as_bytes();
            let stored = guarded(|| store::get(&store.done, tree_key))?;
            if let Some((head, body)) = stored.filter(|(head, _)| head.kind == Kind::Operation) {
                let operation: Operation = store::parse(tree_key, &body)?;
                // Another end since: its own key comes later.
                if state::retention_base_us(&operation) == base {
                    self.tree_bytes += guarded(|| shrink(&store, &head, &operation, base))?;
                    did.shrunk += 1;
                }
            }
            guarded(|| Ok(store.ends.remove(&key)?))?;
        }
        let due = due_ends(&store, b't', policy.keep_tombstones_ms, now, entries_max)?;
        self.raise_unproven(&store, &due)?;
        for (key, _, id) in due {
            let tree_key = id.as_str().as_bytes();
            let stored = guarded(|| store::get(&store.done, tree_key))?;
            if stored.is_some_and(|(head, _)| head.kind == Kind::Tombstone) {
                self.tree_bytes -= guarded(|| store::remove(&store.done, tree_key))?;
                self.operations = self.operations.saturating_sub(1);
                did.dropped += 1;
            }
            guarded(|| Ok(store.ends.remove(&key)?))?;
        }
        Ok(())
    }

    /// Once a tombstone is gone its id would be new, so what was issued up to then is refused from here on: a clock
    /// that was far ahead for a moment, or a window that was widened, must not bring a packet back to life.
    fn raise_unproven(&mut self, store: &Store, due: &[End]) -> Result<(), CommitError> {
        let mut issued_us = self.meta.unproven_before_us;
        for (_, _, id) in due {
            let stored = guarded(|| store::get(&store.done, id.as_str().as_bytes()))?;
            if let Some((head, _)) = stored.filter(|(head, _)| head.kind == Kind::Tombstone) {
                issued_us = issued_us.max(head.wall_us);
            }
        }
        if issued_us > self.meta.unproven_before_us {
            self.meta.unproven_before_us = issued_us;
            self.put_meta(store)?;
        }
        Ok(())
    }

    fn begin_rewrite_if_worth_it(&mut self) -> Result<(), CommitError> {
        let (live, file) = (self.usage().used_bytes, self.disk.store);
        if self.disk.total > self.budget_bytes / 2
            && let Some(old) = self.replaced.take()
        {
            std::fs::remove_dir_all(old)?;
            self.measure(true);
        }
        let tight = self.disk.total > self.budget_bytes / 2 && file > live * 2;
        if file < REWRITE_BYTES_MIN.min(self.budget_bytes / 2)
            || !(file > live * REWRITE_FACTOR || tight)
        {
            return Ok(());
        }
        let generation = self.generation + 1;
        let dir = files::generation_dir(&self.dir, generation);
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        self.rewrite = Some(Rewrite {
            generation,
            store: guarded(|| Store::open(&dir))?,
            tree: 0,
            after: None,
        });
        failpoint!("rewrite.begun");
        Ok(())
    }

    /// Copies a slice; at the end catches up and switches.
    fn rewrite_slice(
        &mut self,
        entries_max: usize,
        did: &mut Maintained,
    ) -> Result<(), CommitError> {
        let from = self.store()?;
        let Some(mut rewrite) = self.rewrite.take() else {
            return Ok(());
        };
        let copied = guarded(|| rewrite.copy(&from, entries_max))?;
        did.copied += copied;
        if copied >= entries_max {
            self.rewrite = Some(rewrite);
            return Ok(());
        }
        self.switch(&from, rewrite)?;
        did.rewritten = true;
        Ok(())
    }

    fn switch(&mut self, from: &Store, rewrite: Rewrite) -> Result<(), CommitError> {
        let Rewrite {
            generation,
            store: new,
            ..
        } = rewrite;
        guarded(|| catch_up(from, &new))?;
        self.meta.identity = files::identity(&new.dir.join("db"))?;
        guarded(|| {
            state::put_meta(&new, &self.meta)?;
            new.flush()
        })?;
        if !new.blob_free() {
            return Err(CommitError::Store(
                "the new generation has blob files".into(),
            ));
        }
        files::sync_tree(&new.dir)?;
        failpoint!("rewrite.before-switch");
        files::write_manifest(&self.dir, generation)?;
        failpoint!("rewrite.after-switch");
        let old = files::generation_dir(&self.dir, self.generation);
        self.generation = generation;
        *write(&self.shared.store) = Some(Arc::new(new));
        self.replaced = Some(old);
        self.measure(true);
        Ok(())
    }
}

/// Whether every sink has taken all events of the block.
fn taken(cursors: &[CursorRecord], head: &Head, body: &[u8]) -> Result<bool, StoreError> {
    if head.events == 0 {
        return Ok(true);
    }
    let Some(least) = cursors.iter().map(|c| c.through).min() else {
        return Ok(true);
    };
    if least.no.0 != head.no {
        return Ok(least.no.0 > head.no);
    }
    let block: Block = store::parse(&no_key(head.no), body)?;
    let behind = block.records.iter().skip(least.index as usize + 1);
    Ok(!behind
        .clone()
        .any(|r| matches!(r, crate::core::record::Record::Event(_))))
}

type End = (Vec<u8>, i64, OperationId);

fn due_ends(
    store: &Store,
    what: u8,
    keep_ms: u64,
    now: &Now,
    max: usize,
) -> Result<Vec<End>, StoreError> {
    guarded(|| {
        let mut found = Vec::new();
        for entry in store.ends.scan_prefix([what]).take(max) {
            let (key, _) = entry?;
            let base = key
                .get(1..9)
                .and_then(|b| b.try_into().ok())
                .map(u64::from_be_bytes);
            let base = base.and_then(|b| i64::try_from(b).ok()).unwrap_or(0);
            if !due(base, keep_ms, now) {
                break;
            }
            let id = String::from_utf8_lossy(key.get(9..).unwrap_or_default()).into_owned();
            let id = OperationId::parse(&id)
                .map_err(|e| StoreError(format!("an operation id in `ends`: {e}")))?;
            found.push((key.to_vec(), base, id));
        }
        Ok(found)
    })
}

fn shrink(store: &Store, head: &Head, operation: &Operation, base: i64) -> Result<i64, StoreError> {
    let tombstone = Tombstone {
        id: operation.id.clone(),
        digest: operation.digest,
        state: operation.state.name().into(),
        created_us: operation.created.wall_us,
    };
    // By the caller's clock: that is what a packet is let in by.
    let issued_us = operation.intent.issued_at_us.unwrap_or(0);
    let frames = store::framed(Kind::Tombstone, head.no, issued_us, &tombstone)?;
    store
        .ends
        .insert(ends_key(b't', base, &operation.id), &[])?;
    let grown = store::put(&store.done, operation.id.as_str().as_bytes(), &frames)?;
    store
        .order
        .remove(order_key(operation.submitted, &operation.id))?;
    Ok(grown)
}

impl Rewrite {
    fn copy(&mut self, from: &Store, entries_max: usize) -> Result<usize, StoreError> {
        let mut copied = 0;
        while copied < entries_max {
            let (framed, bare) = (from.framed(), from.bare());
            let (source, into) = if self.tree == 0 {
                (&from.log, Into::Log(&self.store))
            } else if self.tree < framed.len() {
                let target = self.store.framed()[self.tree];
                (framed[self.tree], Into::Framed(target))
            } else if self.tree < framed.len() + bare.len() {
                let at = self.tree - framed.len();
                (bare[at], Into::Bare(self.store.bare()[at]))
            } else {
                break;
            };
            let (n, last) = copy_range(source, &into, self.after.as_deref(), entries_max - copied)?;
            copied += n;
            self.after = last;
            if self.after.is_none() {
                self.tree += 1;
            }
        }
        Ok(copied)
    }
}

/// What entries are copied into.
enum Into<'a> {
    Log(&'a Store),
    Framed(&'a sled::Tree),
    Bare(&'a sled::Tree),
}

/// Copies entries behind `after`; returns how many, and where to go on if not at the end.
fn copy_range(
    from: &sled::Tree,
    into: &Into<'_>,
    after: Option<&[u8]>,
    max: usize,
) -> Result<(usize, Option<Vec<u8>>), StoreError> {
    use std::ops::Bound::{Excluded, Unbounded};
    let begin = after.map_or(Unbounded, Excluded);
    let mut n = 0;
    for entry in from.range::<&[u8], _>((begin, Unbounded)) {
        let (key, value) = entry?;
        match into {
            Into::Bare(to) => {
                to.insert(&key, value)?;
            }
            Into::Log(_) | Into::Framed(_) if !store::is_first(&value) => {}
            Into::Log(to) => {
                let (head, frames) = framed_anew(from, &key, &value)?;
                to.put_block(head.no, &frames)?;
            }
            Into::Framed(to) => {
                store::put(to, &key, &framed_anew(from, &key, &value)?.1)?;
            }
        }
        n += 1;
        if n >= max {
            return Ok((n, Some(key.to_vec())));
        }
    }
    Ok((n, None))
}

/// A value's frames; every part is checked on the way.
fn framed_anew(
    from: &sled::Tree,
    key: &[u8],
    first: &[u8],
) -> Result<(Head, super::frame::Frames), StoreError> {
    let (head, body) = store::assemble(from, key, first)?;
    let facts = super::frame::Facts {
        kind: head.kind,
        no: head.no,
        wall_us: head.wall_us,
        events: head.events,
        chain: head.chain,
    };
    let frames = super::frame::encode(facts, &body)
        .ok_or_else(|| StoreError(format!("a value of {} bytes is too large", body.len())))?;
    Ok((head, frames))
}

/// Brings the new store up to date: the log's end, and the small trees again. No checkpoint, sweep or
/// trim ran since the copy began, so nothing else changed.
fn catch_up(from: &Store, to: &Store) -> Result<(), StoreError> {
    let last = to.last_block()?.map(no_key);
    let after = last.as_ref().map(|key| &key[..]);
    copy_range(&from.log, &Into::Log(to), after, usize::MAX)?;
    to.dead.clear()?;
    copy_range(&from.dead, &Into::Framed(&to.dead), None, usize::MAX)?;
    Ok(())
}
