//! Owns: the sled database of one generation: its settings, its trees, framed values in them.
//! May call: sled, frame, files.
//! Never: let a value be so large that a leaf of them becomes a blob (blob files are not synced).

use super::files;
use super::frame::{self, Facts, HEAD_BYTES, Head, Kind, PART_BYTES_MAX};
use crate::sys;
use serde::{Serialize, de::DeserializeOwned};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of the store's segments.
pub const SEGMENT_BYTES: usize = 4 << 20;
/// The store's page cache.
pub const CACHE_BYTES: u64 = 8 << 20;
/// How often the store writes by itself; nothing relies on it but its collection of free segments.
pub const FLUSHER_PERIOD_MS: u64 = 500;
/// Most entries a leaf can ever hold: it splits above 16, and a merge adds a leaf of fewer than 4.
pub const LEAF_ENTRIES_MAX: usize = 24;
/// Longest key: an operation id or a sink and event key, and a part's suffix.
pub const KEY_BYTES_MAX: usize = 400;
/// Empty neighbours of a large block of the log: a split leaves so many entries in the left leaf.
const FILLERS_COUNT: u8 = 9;
/// Blocks whose neighbours are laid at once, before the first of them.
const FILLERS_AHEAD_COMMITS: u64 = 64;
/// A large block.
const LARGE_BYTES_MIN: usize = 4_096;
/// Accesses to a large block by which a pass over the log makes the page cache evict.
const TOUCHES_COUNT: usize = 32;
/// What the store adds to an entry and to a leaf, generously.
const ENTRY_EXTRA_BYTES: usize = 32;

/// The store's own rule: a message above this becomes a blob.
pub const MESSAGE_BYTES_MAX: usize = SEGMENT_BYTES / 4 - 20 - 64;
const _: () = assert!(
    LEAF_ENTRIES_MAX * (PART_BYTES_MAX + HEAD_BYTES + KEY_BYTES_MAX + ENTRY_EXTRA_BYTES)
        < MESSAGE_BYTES_MAX
);

/// What is wrong when the store does not understand its own file.
const INDEX_DAMAGED: &str =
    "the store cannot make sense of its own file; the records in it may still be whole";

/// What the store said, or that it panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

impl From<sled::Error> for StoreError {
    fn from(error: sled::Error) -> Self {
        use sled::Error::{CollectionNotFound, Corruption, Io, ReportableBug, Unsupported};
        Self(match error {
            Io(e) => format!("the store's file cannot be read or written: {e}"),
            Corruption { .. } => INDEX_DAMAGED.to_owned(),
            ReportableBug(what) | Unsupported(what) => index_damaged(&what),
            CollectionNotFound(_) => index_damaged("a part of it is missing"),
        })
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self(format!(
            "the store's file cannot be read or written: {error}"
        ))
    }
}

/// Runs `work`, turning a panic inside the store into an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(StoreError(index_damaged(text)))
    })
}

/// That, and what the store says as far as it is in words: its own types and traces mean nothing to an operator.
fn index_damaged(said: &str) -> String {
    let line = said.lines().next().unwrap_or_default().trim();
    let foreign = ["`", "{", "::", "()", "None", "Some(", "PLEASE"];
    if line.is_empty() || foreign.iter().any(|mark| line.contains(mark)) {
        INDEX_DAMAGED.to_owned()
    } else {
        format!("{INDEX_DAMAGED} ({line})")
    }
}

/// The open database of one generation.
pub(super) struct Store {
    pub(super) dir: PathBuf,
    db: sled::Db,
    pub(super) log: sled::Tree,
    pub(super) open: sled::Tree,
    pub(super) done: sled::Tree,
    pub(super) order: sled::Tree,
    pub(super) ends: sled::Tree,
    pub(super) keyed: sled::Tree,
    pub(super) dead: sled::Tree,
    pub(super) meta: sled::Tree,
    /// Blocks below this have their empty neighbours.
    laid_below: AtomicU64,
}

impl Store {
    /// Opens or creates the database in `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self, StoreError> {
        files::create_dir(dir)?;
        let db = sled::Config::new()
            .path(dir)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSHER_PERIOD_MS))
            .open()?;
        files::close_to_others(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            log: db.open_tree("log")?,
            open: db.open_tree("open")?,
            done: db.open_tree("done")?,
            order: db.open_tree("order")?,
            ends: db.open_tree("ends")?,
            keyed: db.open_tree("keyed")?,
            dead: db.open_tree("dead")?,
            meta: db.open_tree("meta")?,
            laid_below: AtomicU64::new(0),
            db,
        })
    }

    /// Trees whose values are framed.
    pub(super) fn framed(&self) -> [&sled::Tree; 6] {
        [
            &self.log,
            &self.open,
            &self.done,
            &self.keyed,
            &self.dead,
            &self.meta,
        ]
    }
    /// Trees whose keys say everything.
    pub(super) fn bare(&self) -> [&sled::Tree; 2] {
        [&self.order, &self.ends]
    }

    /// Stores a block of the log.
    ///
    /// A leaf is written anew, with all it holds, when it splits (by the number of its entries) and
    /// every tenth change. Empty neighbours laid ahead split while they cost nothing, so that a large
    /// block finds a leaf of its own and is written once.
    pub(super) fn put_block(&self, no: u64, frames: &[Vec<u8>]) -> Result<i64, StoreError> {
        if is_large(&frames[0]) && no >= self.laid_below.load(Ordering::Relaxed) {
            let end = no.saturating_add(FILLERS_AHEAD_COMMITS);
            for filler in (no..end).flat_map(fillers) {
                self.log.insert(filler, &[])?;
            }
            self.laid_below.store(end, Ordering::Relaxed);
        }
        put(&self.log, &super::no_key(no), frames)
    }

    /// Removes the blocks `from` to `through`: the large values first, then their empty neighbours. A
    /// leaf is written anew while it is being emptied, and so it is small by then.
    pub(super) fn remove_blocks(&self, from: u64, through: u64) -> Result<(), StoreError> {
        let begin = super::no_key(from.saturating_sub(1));
        let range = (
            Bound::Excluded(begin.to_vec()),
            Bound::Excluded(block_end(through)),
        );
        let mut empty = Vec::new();
        for entry in self.log.range::<Vec<u8>, _>(range) {
            let (key, value) = entry?;
            if value.is_empty() {
                empty.push(key);
            } else {
                self.log.remove(key)?;
            }
        }
        for key in empty {
            self.log.remove(key)?;
        }
        Ok(())
    }

    /// Number of the last block.
    pub(super) fn last_block(&self) -> Result<Option<u64>, StoreError> {
        for entry in self.log.iter().rev() {
            let (key, value) = entry?;
            if is_first(&value) {
                return Ok(<[u8; 8]>::try_from(&key[..]).ok().map(u64::from_be_bytes));
            }
        }
        Ok(None)
    }

    /// Makes everything inserted so far durable.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.db.flush()?;
        Ok(())
    }

    /// Whether the store's flush really ends in this binary's sync: one must be counted.
    pub(super) fn symbol_is_effective(&self) -> Result<bool, StoreError> {
        let before = sys::sync_count();
        self.meta.insert(b"probe", &before.to_le_bytes())?;
        self.flush()?;
        self.meta
            .insert(b"probe", &before.wrapping_add(1).to_le_bytes())?;
        self.flush()?;
        self.meta.remove(b"probe")?;
        Ok(sys::sync_count() > before)
    }

    /// That no blob has come to be; one would not survive power loss.
    pub(super) fn blob_free(&self) -> bool {
        match std::fs::read_dir(self.dir.join("blobs")) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) => true,
        }
    }
}

fn extra_key(key: &[u8], no: u64, part: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 10);
    out.extend_from_slice(key);
    out.push(0);
    out.extend_from_slice(&no.to_be_bytes());
    out.push(part);
    out
}

/// Stores `frames` under `key`. The first part goes last: it makes the others count.
/// Returns by how many bytes the tree grew or shrank.
pub(super) fn put(tree: &sled::Tree, key: &[u8], frames: &[Vec<u8>]) -> Result<i64, StoreError> {
    let no = frame::decode(&frames[0]).map_or(0, |(head, _)| head.no);
    let mut grown = 0_i64;
    for (frame, part) in frames.iter().zip(0_u8..).skip(1) {
        let old = tree.insert(extra_key(key, no, part), frame.as_slice())?;
        grown += frame.len() as i64 - old.map_or(0, |old| old.len() as i64);
    }
    let first = &frames[0];
    let old = tree.insert(key, first.as_slice())?;
    grown += first.len() as i64;
    if let Some(old) = old {
        grown -= old.len() as i64;
        grown -= remove_extras(tree, key, &old, no)?;
    }
    Ok(grown)
}

fn remove_extras(
    tree: &sled::Tree,
    key: &[u8],
    first: &[u8],
    keep_no: u64,
) -> Result<i64, StoreError> {
    let Ok((head, _)) = frame::decode(first) else {
        return Ok(0);
    };
    let mut freed = 0;
    if head.no != keep_no {
        for part in 1..head.parts {
            let old = tree.remove(extra_key(key, head.no, part))?;
            freed += old.map_or(0, |old| old.len() as i64);
        }
    }
    Ok(freed)
}

/// Removes what is stored under `key`; returns the bytes freed.
pub(super) fn remove(tree: &sled::Tree, key: &[u8]) -> Result<i64, StoreError> {
    match tree.remove(key)? {
        Some(first) => Ok(first.len() as i64 + remove_extras(tree, key, &first, u64::MAX)?),
        None => Ok(0),
    }
}

fn at(key: &[u8]) -> String {
    match <[u8; 8]>::try_from(key) {
        Ok(no) => format!("commit {}", u64::from_be_bytes(no)),
        Err(_) => format!("key {:?}", String::from_utf8_lossy(key)),
    }
}

/// Completes the value of `key` whose first part is `first`.
pub(super) fn assemble(
    tree: &sled::Tree,
    key: &[u8],
    first: &[u8],
) -> Result<(Head, Vec<u8>), StoreError> {
    let bad = |why: String| StoreError(format!("{}: {why}", at(key)));
    let (head, body) = frame::decode(first).map_err(|fault| bad(fault.to_string()))?;
    let mut body = body.to_vec();
    for part in 1..head.parts {
        let frame = tree
            .get(extra_key(key, head.no, part))?
            .ok_or_else(|| bad(format!("part {part} of {} is missing", head.parts)))?;
        let (other, more) = frame::decode(&frame).map_err(|fault| bad(fault.to_string()))?;
        if (other.no, other.part, other.chain) != (head.no, part, head.chain) {
            return Err(bad(format!("part {part} belongs to another value")));
        }
        body.extend_from_slice(more);
    }
    Ok((head, body))
}

/// Reads what is stored under `key`.
pub(super) fn get(tree: &sled::Tree, key: &[u8]) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
    match tree.get(key)? {
        Some(first) => assemble(tree, key, &first).map(Some),
        None => Ok(None),
    }
}

/// Lets the page cache notice that it is over its limit while the log is read from end to end: it counts
/// accesses in batches, per shard, and a pass over few large pages would never complete one.
pub(super) fn touch(log: &sled::Tree, key: &[u8], bytes: usize) -> Result<(), StoreError> {
    if bytes >= LARGE_BYTES_MIN {
        for _ in 0..TOUCHES_COUNT {
            log.contains_key(key)?;
        }
    }
    Ok(())
}

fn is_large(first: &[u8]) -> bool {
    first.len() >= LARGE_BYTES_MIN
}

/// Where the keys of block `no` end; the empty neighbours of the next one begin.
pub(super) fn block_end(no: u64) -> Vec<u8> {
    [&super::no_key(no)[..], &[0xff]].concat()
}

/// They sort right before the block.
fn fillers(no: u64) -> impl Iterator<Item = Vec<u8>> {
    let before = no.saturating_sub(1).to_be_bytes();
    (0..FILLERS_COUNT).map(move |n| [&before[..], &[0xff, n]].concat())
}

/// Whether `value` is the first part of something, not a further one and not an empty neighbour.
pub(super) fn is_first(value: &[u8]) -> bool {
    !value.is_empty() && frame::decode(value).map_or(true, |(head, _)| head.part == 0)
}

/// postcard, and a frame around it.
pub(super) fn framed<T: Serialize>(
    kind: Kind,
    no: u64,
    wall_us: i64,
    value: &T,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let body = postcard::to_stdvec(value).map_err(|e| StoreError(format!("encoding: {e}")))?;
    let facts = Facts {
        kind,
        no,
        wall_us,
        events: 0,
        chain: frame::chain(0, &body),
    };
    frame::encode(facts, &body)
        .ok_or_else(|| StoreError(format!("a value of {} bytes is too large", body.len())))
}

/// Decodes a body.
pub(super) fn parse<T: DeserializeOwned>(key: &[u8], body: &[u8]) -> Result<T, StoreError> {
    postcard::from_bytes(body)
        .map_err(|e| StoreError(format!("{}: cannot be decoded: {e}", at(key))))
}
