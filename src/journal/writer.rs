//! Owns: committing, and saying how full the journal is.
//! May call: state, store, files, upkeep.
//! Never: answer before the flush; go on after a failed one.

use super::files::{self, HighWater, HighWaterFile, Lock};
use super::frame::Frames;
use super::hollow::Thinning;
use super::reader::{Reader, Source};
use super::state::{self, EncodeFault, Shared};
use super::store::{Store, StoreError, guarded};
use super::upkeep::Rewrite;
use super::{Meta, RECORDS_COUNT_MAX, read, write};
use crate::core::ids::{CommitNo, Epoch};
use crate::core::record::Block;
use crate::failpoint;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most changed operations that wait in memory for the trees.
pub const DIRTY_OPERATIONS_MAX: usize = 4_096;
/// Least time between two writes of the high-water file: its sync would slow every commit down. What
/// it cannot prove lost is at most this young.
const HIGH_WATER_PERIOD_MS: u64 = 20;
/// How old a measurement of the disk may be.
const DISK_AGE_MS_MAX: u64 = 1_000;
/// How long a clean stop waits for readers.
const CLOSE_MS_MAX: u64 = 5_000;

/// Why a commit failed. But for `TooLarge` and `OutOfOrder`, which change nothing, the process must
/// end: what is in the file is no longer known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Programmer: a block above [`super::frame::BLOCK_BYTES_MAX`].
    #[error("commit {no} has {bytes} bytes, more than the {max} allowed", max = super::frame::BLOCK_BYTES_MAX)]
    TooLarge {
        /// Which.
        no: CommitNo,
        /// Its size.
        bytes: usize,
    },
    /// Programmer: a number that does not follow.
    #[error("commit {found} does not follow: {expected} is next")]
    OutOfOrder {
        /// Next.
        expected: CommitNo,
        /// Given.
        found: CommitNo,
    },
    /// Operator: the disk. The gateway stops, and starts again when it can write.
    #[error("the journal cannot be written: {0}")]
    Store(String),
}

impl From<StoreError> for CommitError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.0)
    }
}
impl From<std::io::Error> for CommitError {
    fn from(error: std::io::Error) -> Self {
        Self::Store(error.to_string())
    }
}

/// Whether new things may be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Yes.
    Ok,
    /// No; outcomes of what is under way still may (CAP-01).
    Full {
        /// Which limit was met, with numbers.
        why: String,
    },
}

/// How much is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of what is kept.
    pub used_bytes: u64,
    /// Bytes allowed on the disk.
    pub budget_bytes: u64,
    /// Bytes taken on the disk.
    pub disk_bytes: u64,
    /// Events and operations.
    pub records: u64,
}

/// What was last measured.
#[derive(Clone, Copy, Default)]
pub(super) struct Disk {
    at: Option<Instant>,
    pub(super) total: u64,
    pub(super) store: u64,
    free: u64,
    /// Bytes committed since.
    committed: u64,
}

/// The one writer.
pub struct Journal {
    pub(super) dir: PathBuf,
    pub(super) budget_bytes: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) meta: Meta,
    pub(super) generation: u64,
    pub(super) next: u64,
    pub(super) chain: u32,
    pub(super) tree_bytes: i64,
    pub(super) operations: u64,
    pub(super) disk: Disk,
    pub(super) rewrite: Option<Rewrite>,
    pub(super) replaced: Option<PathBuf>,
    pub(super) thinning: Thinning,
    pub(super) high_water: Marker,
    pub(super) lock: Lock,
    /// The directory is not where it was: see [`Lock::is_in_place`].
    pub(super) displaced: bool,
}

impl Journal {
    /// Makes `blocks` durable with one flush; then, and only then, readers see them.
    ///
    /// # Errors
    /// [`CommitError`]
    pub fn commit(&mut self, blocks: &[Block]) -> Result<CommitNo, CommitError> {
        if blocks.is_empty() {
            return Ok(CommitNo(self.next - 1));
        }
        if self.displaced {
            let why = format!(
                "{} was moved or removed while it was in use",
                self.dir.display()
            );
            return Err(CommitError::Store(why));
        }
        let (frames, chain) = self.encode(blocks)?;
        self.high_water.fault()?;
        let store = self.store()?;
        failpoint!("commit.before-insert");
        guarded(|| {
            for (block, frames) in blocks.iter().zip(&frames) {
                store.put_block(block.no.0, frames)?;
            }
            failpoint!("commit.before-flush");
            store.flush()
        })?;
        failpoint!("commit.after-flush");
        if self.meta.note.take().is_some() {
            // Told, and with it all that follows from it; told twice it does no harm.
            guarded(|| {
                state::put_meta(&store, &self.meta)?;
                store.flush()
            })?;
        }
        self.next += blocks.len() as u64;
        self.chain = chain;
        let last = CommitNo(self.next - 1);
        self.publish(&store, blocks, &frames)?;
        self.shared.durable.send_replace(last);
        self.high_water.set(HighWater {
            no: last.0,
            epoch: self.meta.epoch,
            chain,
        });
        if read(&self.shared.dirty).operations.len() > DIRTY_OPERATIONS_MAX {
            // A copy under way would not see what this changes; it begins anew later.
            self.rewrite = None;
            self.checkpoint(usize::MAX)?;
        }
        Ok(last)
    }

    fn encode(&self, blocks: &[Block]) -> Result<(Vec<Frames>, u32), CommitError> {
        let mut chain = self.chain;
        let mut all = Vec::with_capacity(blocks.len());
        for (block, expected) in blocks.iter().zip(self.next..) {
            if block.no.0 != expected {
                return Err(CommitError::OutOfOrder {
                    expected: CommitNo(expected),
                    found: block.no,
                });
            }
            let (frames, next) = state::encode_block(block, chain).map_err(|e| match e {
                EncodeFault::TooLarge(bytes) => CommitError::TooLarge {
                    no: block.no,
                    bytes,
                },
                EncodeFault::Store(e) => e.into(),
            })?;
            chain = next;
            all.push(frames);
        }
        Ok((all, chain))
    }

    fn publish(
        &mut self,
        store: &Store,
        blocks: &[Block],
        frames: &[Frames],
    ) -> Result<(), CommitError> {
        let mut dirty = write(&self.shared.dirty);
        let mut strides = write(&self.shared.strides);
        for (block, frames) in blocks.iter().zip(frames) {
            guarded(|| dirty.apply(store, block))?;
            let bytes = frames.iter().map(|f| f.len() as u64).sum();
            strides.add(block.no.0, u64::from(state::events_in(block)), bytes);
            self.disk.committed += bytes;
        }
        self.tree_bytes += std::mem::take(&mut dirty.grown);
        Ok(())
    }

    pub(super) fn store(&self) -> Result<Arc<Store>, StoreError> {
        self.shared.store()
    }

    /// The running epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.meta.epoch)
    }

    /// Whether new things may be written; measures the disk once a second, and sooner when so much was
    /// written that the reserve could be touched.
    pub fn capacity(&mut self) -> Capacity {
        self.measure(false);
        let (budget, reserve) = (self.budget_bytes, reserve_bytes(self.budget_bytes));
        let usage = self.usage();
        let full = |why: String| Capacity::Full { why };
        if usage.used_bytes > live_bytes_max(budget) {
            full(format!(
                "the journal keeps {} bytes, of {} that its budget of {budget} allows",
                usage.used_bytes,
                live_bytes_max(budget)
            ))
        } else if self.disk.total > budget - reserve {
            full(format!(
                "the journal takes {} bytes on the disk, of a budget of {budget} with {reserve} kept for outcomes",
                self.disk.total
            ))
        } else if usage.records >= RECORDS_COUNT_MAX {
            full(format!(
                "the journal holds {} records, the most allowed",
                usage.records
            ))
        } else if self.disk.free < reserve {
            full(format!(
                "the disk has {} bytes free, and {reserve} are kept for outcomes",
                self.disk.free
            ))
        } else {
            Capacity::Ok
        }
    }

    pub(super) fn measure(&mut self, fresh: bool) {
        let age_max = Duration::from_millis(DISK_AGE_MS_MAX);
        let few = self.disk.committed < reserve_bytes(self.budget_bytes) / 8;
        if !fresh && few && self.disk.at.is_some_and(|at| at.elapsed() < age_max) {
            return;
        }
        self.displaced = !self.lock.is_in_place(&self.dir);
        self.disk = Disk {
            at: Some(Instant::now()),
            total: files::disk_bytes(&self.dir),
            store: files::disk_bytes(&files::generation_dir(&self.dir, self.generation)),
            // A file system that does not answer is not known to have room.
            free: files::free_bytes(&self.dir).unwrap_or(0),
            committed: 0,
        };
    }

    /// Up to when a request may have been recorded here and forgotten, microseconds since 1970; 0: never.
    #[must_use]
    pub fn unproven_before_us(&self) -> i64 {
        self.meta.unproven_before_us
    }

    /// How much is used; the disk as last measured.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let strides = read(&self.shared.strides);
        Usage {
            used_bytes: strides.bytes + u64::try_from(self.tree_bytes).unwrap_or(0),
            budget_bytes: self.budget_bytes,
            disk_bytes: self.disk.total,
            records: strides.events + self.operations,
        }
    }

    /// A reader.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Source::Live(Arc::clone(&self.shared)))
    }

    /// A clean stop: everything in the trees, everything synced, and a mark by which the next open
    /// knows every byte. Readers that remain answer with an error.
    ///
    /// # Errors
    /// [`CommitError`]
    pub fn close(mut self) -> Result<(), CommitError> {
        self.rewrite = None;
        self.checkpoint(usize::MAX)?;
        self.high_water.stop()?;
        failpoint!("close.before-mark");
        let Some(mut store) = write(&self.shared.store).take() else {
            return Ok(());
        };
        let dir = store.dir.clone();
        // The files stand still only when the last reader has let go of the store.
        let begun = Instant::now();
        let store = loop {
            match Arc::try_unwrap(store) {
                Ok(store) => break store,
                Err(held) if begun.elapsed() > Duration::from_millis(CLOSE_MS_MAX) => {
                    drop(held);
                    log::warn!(
                        "a reader did not let go of the journal: the stop counts as unclean"
                    );
                    return Ok(());
                }
                Err(held) => store = held,
            }
            std::thread::yield_now();
        };
        guarded(|| {
            drop(store);
            Ok(())
        })?;
        files::sync_tree(&dir)?;
        let text = files::describe(&dir)?;
        files::write_whole(&self.dir.join(files::CLEAN), text.as_bytes())?;
        failpoint!("close.after-mark");
        Ok(())
    }
}

/// What may be kept: the store needs about as much again for its own order.
pub(super) fn live_bytes_max(budget: u64) -> u64 {
    budget / 100 * 45
}

/// What is kept free for outcomes of operations under way.
pub(super) fn reserve_bytes(budget: u64) -> u64 {
    (budget / 8).clamp(4 << 20, 32 << 20)
}

/// Writes the high-water file beside the commits: the newest mark, one write at a time.
pub(super) struct Marker {
    state: Arc<(Mutex<Marks>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Marks {
    next: Option<HighWater>,
    stop: bool,
    fault: Option<String>,
}

impl Marker {
    pub(super) fn start(mut file: HighWaterFile) -> std::io::Result<Self> {
        let state = Arc::new((Mutex::new(Marks::default()), Condvar::new()));
        let theirs = Arc::clone(&state);
        let work = move || {
            let (marks, bell) = &*theirs;
            loop {
                let guard = marks.lock().unwrap_or_else(PoisonError::into_inner);
                let mut guard = bell
                    .wait_while(guard, |m| m.next.is_none() && !m.stop)
                    .unwrap_or_else(PoisonError::into_inner);
                let Some(mark) = guard.next.take() else {
                    return;
                };
                let stop = guard.stop;
                drop(guard);
                if let Err(e) = file.write(mark) {
                    marks.lock().unwrap_or_else(PoisonError::into_inner).fault =
                        Some(format!("high-water file: {e}"));
                    return;
                }
                if !stop {
                    let guard = marks.lock().unwrap_or_else(PoisonError::into_inner);
                    let pause = Duration::from_millis(HIGH_WATER_PERIOD_MS);
                    drop(bell.wait_timeout_while(guard, pause, |m| !m.stop));
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("high-water".into())
            .spawn(work)?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    fn set(&self, mark: HighWater) {
        let (marks, bell) = &*self.state;
        marks.lock().unwrap_or_else(PoisonError::into_inner).next = Some(mark);
        bell.notify_one();
    }

    fn fault(&self) -> Result<(), CommitError> {
        let marks = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks
            .fault
            .clone()
            .map_or(Ok(()), |fault| Err(CommitError::Store(fault)))
    }

    /// Writes what is left and ends.
    fn stop(&mut self) -> Result<(), CommitError> {
        let (marks, bell) = &*self.state;
        marks.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        bell.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            return Err(CommitError::Store("the high-water thread gave up".into()));
        }
        self.fault()
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
