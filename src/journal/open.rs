//! Owns: opening: lock, copy aside, the store under a watchdog, verification, the epoch of this start.
//! May call: files, store, state, salvage, durable.
//! Never: start an empty journal over an existing one; let the store touch unproven files without a copy.

use super::computer::{self, Computer};
use super::evidence::Evidence;
use super::files::{self, CopyFault, HighWater, HighWaterFile, Lock, LockFault, Manifest};
use super::frame::{self, JOURNAL_VERSION, Kind};
use super::hollow::{self, Thinning};
use super::salvage::Damaged;
use super::state::{self, Dirty, Shared, Strides};
use super::store::{self, Store, StoreError, guarded};
use super::writer::{Disk, Journal, Marker};
use super::{Finding, Meta, OpenError, Opened, Options, Recovered, no_key};
use crate::core::ids::{CommitNo, Epoch};
use crate::core::record::{Block, Operation};
use crate::core::time::Now;
use crate::durable;
use crate::failpoint;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, RwLock, mpsc};
use std::time::Duration;
use tokio::sync::watch;

/// Least free bytes for an open: it writes an epoch, and the store takes whole segments. Without room it
/// would look like damage.
const OPEN_FREE_BYTES_MIN: u64 = 2 * store::SEGMENT_BYTES as u64;
/// Low bits of a drawn epoch that are random.
const EPOCH_RANDOM_BITS: u32 = 20;
/// Bits above them that count parts of a second: starts a millisecond apart stand in their order.
const EPOCH_PART_BITS: u32 = 10;

/// Opens the journal in `options.dir`, or creates it.
///
/// # Errors
/// [`OpenError`]: nothing could be said about the journal. Damage is no error: see [`Opened`].
pub fn open(options: Options) -> Result<Opened, OpenError> {
    durable::create_dir(&options.dir, files::DIR_MODE)?;
    let lock = take_lock(&options.dir)?;
    files::close_to_others(&options.dir)?;
    if let Manifest::Newer(found) = files::read_manifest(&options.dir) {
        return Err(OpenError::NewerSchema {
            found,
            known: JOURNAL_VERSION,
        });
    }
    let free = files::free_bytes(&options.dir)?;
    if free < OPEN_FREE_BYTES_MIN {
        return Err(OpenError::NoRoom {
            needed: OPEN_FREE_BYTES_MIN,
            free,
        });
    }
    if never_created(&options.dir)? {
        create(&options)?;
    }
    let generation = match find_generation(&options.dir) {
        Ok(generation) => generation,
        Err(finding) => return Ok(damaged(&options, lock, vec![finding])),
    };
    let store_dir = files::generation_dir(&options.dir, generation);
    let clean = take_clean_mark(&options.dir, &store_dir)?;
    if !clean {
        files::read_from_disk(&store_dir)?;
        copy_aside(&options.dir, &store_dir)?;
    }
    files::delete_generating(&store_dir)?;
    failpoint!("open.before-store");
    let high_water = files::read_high_water(&options.dir);
    let loaded = match load_watched(&store_dir, high_water, options.open_timeout) {
        Ok(loaded) => loaded,
        Err(finding) => return Ok(damaged(&options, lock, vec![finding])),
    };
    let held = loaded.store.log.clone();
    let opened = finish(options, lock, generation, loaded, clean);
    match &opened {
        // Closing would write and sync once more, and panic where that fails: the reason would never be told.
        Err(error) if !error.passes() => std::mem::forget(held),
        _ => drop(guarded(|| {
            drop(held);
            Ok(())
        })),
    }
    opened
}

fn take_lock(dir: &Path) -> Result<Lock, OpenError> {
    Lock::take(dir).map_err(|fault| match fault {
        LockFault::Held(holder) => OpenError::Locked {
            dir: dir.display().to_string(),
            holder,
        },
        LockFault::Io(e) => OpenError::Io(e),
    })
}

/// Whether creation never finished: no marker, no high water, and no commit in any file.
fn never_created(dir: &Path) -> Result<bool, OpenError> {
    if dir.join(files::CREATED).exists() || files::read_high_water(dir).is_some_and(|h| h.no > 0) {
        return Ok(false);
    }
    let evidence = Evidence::scan(dir).map_err(|e| std::io::Error::other(e.0))?;
    Ok(evidence.is_empty())
}

/// Creates everything anew; the marker comes last.
fn create(options: &Options) -> Result<(), OpenError> {
    let dir = &options.dir;
    for generation in files::generations(dir) {
        fs::remove_dir_all(files::generation_dir(dir, generation))?;
    }
    for name in [files::MANIFEST, files::HIGH_WATER, files::CLEAN] {
        let path = dir.join(name);
        if path.exists() {
            fs::remove_file(path)?;
        }
    }
    let store_dir = files::generation_dir(dir, 1);
    let io = |e: StoreError| OpenError::Io(std::io::Error::other(e.0));
    let store = guarded(|| Store::open(&store_dir)).map_err(io)?;
    failpoint!("create.before-meta");
    let meta = Meta {
        epoch: draw_epoch(options, 0)?,
        identity: files::identity(&store_dir.join("db"))?,
        machine_id: options.machine_id.clone(),
        gateway: options.gateway.clone(),
        note: Some("created".into()),
        // A journal may have been here before: a partition that is not mounted, a directory that was removed.
        unproven_before_us: if options.now.wall_trusted {
            options.now.wall_us
        } else {
            0
        },
        ..Meta::default()
    };
    guarded(|| {
        state::put_meta(&store, &meta)?;
        store.flush()
    })
    .map_err(io)?;
    drop(store);
    files::sync_tree(&store_dir)?;
    failpoint!("create.before-manifest");
    files::write_manifest(dir, 1)?;
    HighWaterFile::open(dir)?.write(HighWater {
        no: 0,
        epoch: meta.epoch,
        chain: 0,
    })?;
    files::sync_dir(dir)?;
    failpoint!("create.before-marker");
    files::write_whole(&dir.join(files::CREATED), b"created\n")?;
    if let Some(parent) = dir.parent() {
        files::sync_dir(parent)?;
    }
    failpoint!("create.after-marker");
    Ok(())
}

/// The epoch of a start: from wall time, random in its low bits, and above `known`. What was given out after this
/// state was saved cannot be read from it, if the disk was set back; wall time goes on, and the random bits tell two
/// starts from the same state apart. A clock from before the build stands for nothing, and more bits are random.
pub(super) fn draw_epoch(options: &Options, known: u64) -> Result<u64, OpenError> {
    let goes = options.now.wall_us >= options.build_wall_us;
    let wall_us = u64::try_from(options.now.wall_us.max(options.build_wall_us)).unwrap_or(0);
    let (seconds, part_us) = (wall_us / 1_000_000, wall_us % 1_000_000);
    let mut random = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let random_bits = if goes {
        EPOCH_RANDOM_BITS
    } else {
        EPOCH_RANDOM_BITS + EPOCH_PART_BITS
    };
    let low = u64::from_le_bytes(random) & ((1 << random_bits) - 1);
    let part = if goes {
        (part_us << EPOCH_PART_BITS) / 1_000_000
    } else {
        0
    };
    let ticks = seconds << EPOCH_PART_BITS | part;
    let drawn = (ticks << EPOCH_RANDOM_BITS | low) & (u64::MAX >> 1);
    Ok(if drawn > known {
        drawn
    } else {
        // The same moment, or a clock that went back: stay above, and still unlikely to meet another's.
        (known + 1 + low) & (u64::MAX >> 1)
    })
}

/// Up to when a record may be lost. A wall time on record that a trusted clock contradicts was a wrong one, and would
/// refuse every request until it comes true.
pub(super) fn unproven_before_us(now: &Now, highest_wall_us: i64) -> i64 {
    if now.wall_trusted {
        now.wall_us
    } else {
        now.wall_us.max(highest_wall_us)
    }
}

/// Which store is current. A lost manifest is made good if there is only one.
pub(super) fn find_generation(dir: &Path) -> Result<u64, Finding> {
    let there = files::generations(dir);
    let generation = match (files::read_manifest(dir), there.as_slice()) {
        (Manifest::Generation(generation) | Manifest::Older(generation), _) => generation,
        (_, [only]) => *only,
        (_, several) => {
            return Err(Finding::new(
                "manifest_lost",
                format!("the manifest is lost, and generations {several:?} are there"),
            ));
        }
    };
    let db = files::generation_dir(dir, generation).join("db");
    match fs::metadata(&db) {
        Ok(meta) if meta.len() > 0 => Ok(generation),
        Ok(_) => Err(Finding::new(
            "store_empty",
            format!("{} is empty", db.display()),
        )),
        Err(e) => Err(Finding::new(
            "store_missing",
            format!("{}: {e}", db.display()),
        )),
    }
}

/// Whether the last stop was clean and not a byte has changed since. The mark counts once.
fn take_clean_mark(dir: &Path, store_dir: &Path) -> Result<bool, OpenError> {
    let path = dir.join(files::CLEAN);
    let Ok(stated) = files::read_small(&path) else {
        return Ok(false);
    };
    let clean = files::describe(store_dir)?.into_bytes() == stated;
    fs::remove_file(&path)?;
    files::sync_dir(dir)?;
    Ok(clean)
}

/// Keeps what is there before the store may change it. One from an open that never ended stays.
fn copy_aside(dir: &Path, store_dir: &Path) -> Result<(), OpenError> {
    let aside = dir.join(files::ASIDE);
    if aside.exists() {
        return Ok(());
    }
    failpoint!("open.before-copy");
    files::copy_tree(store_dir, &aside).map_err(|fault| match fault {
        CopyFault::NoRoom { needed, free } => OpenError::NoRoom { needed, free },
        CopyFault::Io(e) => OpenError::Io(e),
    })
}

/// Runs `work` on a thread of its own; gives it up after `limit` (the store has been seen to hang).
pub(super) fn watched<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (tell, hear) = mpsc::channel();
    std::thread::Builder::new()
        .name("journal-open".into())
        .spawn(move || {
            let _ = tell.send(work());
        })
        .map_err(|e| StoreError(format!("no thread: {e}")))?;
    hear.recv_timeout(limit).unwrap_or_else(|_| {
        Err(StoreError(format!(
            "opening did not end within {} ms",
            limit.as_millis()
        )))
    })
}

fn load_watched(
    dir: &Path,
    high_water: Option<HighWater>,
    limit: Duration,
) -> Result<Loaded, Finding> {
    let theirs = dir.to_owned();
    watched(limit, move || guarded(|| Ok(load(&theirs, high_water))))
        .unwrap_or_else(|e| Err(Finding::new("store_does_not_open", e.0)))
}

/// What opening the store in `dir` would find. It changes the store: give it a copy.
pub(super) fn try_open(
    dir: &Path,
    high_water: Option<HighWater>,
    limit: Duration,
) -> Option<Finding> {
    let loaded = match load_watched(dir, high_water, limit) {
        Ok(loaded) => loaded,
        Err(finding) => return Some(finding),
    };
    let closed = guarded(|| {
        drop(loaded);
        Ok(())
    });
    closed
        .err()
        .map(|e| Finding::new("store_does_not_close", e.0))
}

/// Everything that a verified store says.
struct Loaded {
    store: Store,
    symbol: bool,
    meta: Meta,
    dirty: Dirty,
    strides: Strides,
    last: u64,
    chain: u32,
    last_epoch: u64,
    highest_wall_us: i64,
    operations: u64,
    tree_bytes: i64,
    open_operations: Vec<Operation>,
}

/// Opens the store and proves that nothing acknowledged is missing.
fn load(dir: &Path, high_water: Option<HighWater>) -> Result<Loaded, Finding> {
    let damage = |code: &'static str| move |e: StoreError| Finding::new(code, e.0);
    let store = Store::open(dir).map_err(damage("store_does_not_open"))?;
    let high_water = high_water.ok_or_else(|| {
        Finding::new(
            "high_water_lost",
            "the high-water file is lost: nothing proves that the log is whole",
        )
    })?;
    if !store.blob_free() {
        return Err(Finding::new(
            "blob_found",
            "the store has blob files, which are not synced",
        ));
    }
    let meta = state::get_meta(&store)
        .map_err(damage("meta_damaged"))?
        .ok_or_else(|| {
            Finding::new(
                "meta_missing",
                "the store does not say how it is to be read",
            )
        })?;
    let mut loaded = Loaded {
        symbol: store
            .symbol_is_effective()
            .map_err(damage("store_not_writable"))?,
        store,
        last: meta.trimmed_through,
        chain: meta.trimmed_chain,
        last_epoch: meta.epoch,
        meta,
        dirty: Dirty::default(),
        strides: Strides::default(),
        highest_wall_us: i64::MIN,
        operations: 0,
        tree_bytes: 0,
        open_operations: Vec::new(),
    };
    loaded.read_log(high_water)?;
    loaded.read_trees().map_err(damage("tree_damaged"))?;
    loaded.replay().map_err(damage("log_damaged"))?;
    Ok(loaded)
}

impl Loaded {
    fn read_log(&mut self, high_water: HighWater) -> Result<(), Finding> {
        let damage = |e: StoreError| Finding::new("log_damaged", e.0);
        let trimmed = self.meta.trimmed_through;
        // What a trim that was cut short left behind.
        for entry in self.store.log.range(..store::block_end(trimmed)) {
            let (key, _) = entry.map_err(|e| damage(e.into()))?;
            self.store.log.remove(key).map_err(|e| damage(e.into()))?;
        }
        let mut last_body = Vec::new();
        let mut runs = Vec::new();
        let log = self.store.log.clone();
        for entry in log.iter() {
            let (key, value) = entry.map_err(|e| damage(e.into()))?;
            if !store::is_first(&value) {
                continue;
            }
            let (head, body) = store::assemble(&log, &key, &value).map_err(damage)?;
            store::touch(&log, &key, value.len()).map_err(damage)?;
            let through = hollow::through(&head, &body).map_err(damage)?;
            if head.no <= self.last && runs.last().is_some_and(|(_, to)| through <= *to) {
                // A run took it in, and was cut short before it was removed.
                continue;
            }
            let chain = match head.kind {
                Kind::Thinned | Kind::Hollow => head.chain,
                _ => frame::chain(self.chain, &body),
            };
            let follows = head.no == self.last + 1 && key.as_ref() == no_key(head.no);
            if !follows || chain != head.chain {
                let expected = self.last + 1;
                return Err(Finding::new(
                    "log_gap",
                    format!(
                        "commit {} does not follow; expected {expected} of the chain",
                        head.no
                    ),
                ));
            }
            (self.last, self.chain) = (through, chain);
            if head.kind == Kind::Hollow {
                runs.push((head.no, through));
            }
            self.highest_wall_us = self.highest_wall_us.max(head.wall_us);
            let bytes = body.len() + frame::HEAD_BYTES * usize::from(head.parts);
            self.strides
                .add(head.no, u64::from(head.events), bytes as u64);
            if through == high_water.no && chain != high_water.chain {
                return Err(Finding::new(
                    "chain_differs",
                    format!("commit {through} is not the one that was acknowledged"),
                ));
            }
            last_body = if head.kind == Kind::Hollow {
                Vec::new()
            } else {
                body
            };
        }
        for (first, through) in runs {
            self.store
                .remove_blocks(first + 1, through)
                .map_err(damage)?;
        }
        if self.last < high_water.no {
            return Err(Finding::new(
                "log_behind_high_water",
                format!(
                    "the log ends at commit {}, and {} was acknowledged: {} commits are lost",
                    self.last,
                    high_water.no,
                    high_water.no - self.last
                ),
            ));
        }
        self.last_epoch = self.last_epoch.max(high_water.epoch);
        if !last_body.is_empty() {
            let block: Block = store::parse(&no_key(self.last), &last_body).map_err(damage)?;
            self.last_epoch = self.last_epoch.max(block.epoch.0);
        }
        Ok(())
    }

    /// Reads every value of the trees: a damaged one must be found now, not when it is asked for.
    fn read_trees(&mut self) -> Result<(), StoreError> {
        let Self { store, dirty, .. } = self;
        for tree in [&store.open, &store.done] {
            for entry in tree.iter() {
                let (key, value) = entry?;
                self.tree_bytes += value.len() as i64;
                if store::is_first(&value) {
                    store::assemble(tree, &key, &value)?;
                    self.operations += 1;
                }
            }
        }
        for entry in store.keyed.iter() {
            let (key, value) = entry?;
            self.tree_bytes += value.len() as i64;
            if !store::is_first(&value) {
                continue;
            }
            let (_, body) = store::assemble(&store.keyed, &key, &value)?;
            if key == state::SHED_KEY.as_bytes() {
                dirty.shed = store::parse(&key, &body)?;
            } else if key.starts_with(b"machine/") {
                let machine: crate::core::record::MachineRecord = store::parse(&key, &body)?;
                dirty.machines.insert(machine.name.clone(), machine);
            } else if key.starts_with(b"source/") {
                let source: crate::core::record::SourceRecord = store::parse(&key, &body)?;
                dirty.sources.insert(state::source_key(&source), source);
            } else if key.starts_with(b"sink/") {
                let sink: crate::core::record::SinkRecord = store::parse(&key, &body)?;
                dirty.sinks.insert(sink.sink.clone(), sink);
            } else {
                let cursor: crate::core::record::CursorRecord = store::parse(&key, &body)?;
                dirty.cursors.insert(cursor.sink.clone(), cursor);
            }
        }
        for entry in store.dead.iter() {
            let (key, value) = entry?;
            self.tree_bytes += value.len() as i64;
            if store::is_first(&value) {
                store::assemble(&store.dead, &key, &value)?;
                let sink = key.split(|b| *b == 0).next().unwrap_or_default();
                let sink = String::from_utf8_lossy(sink).into_owned();
                *dirty.dead.entry(sink).or_default() += 1;
            }
        }
        for tree in store.bare() {
            for entry in tree.iter() {
                entry?;
            }
        }
        Ok(())
    }

    /// Applies the log behind what is derived, and gathers the open operations.
    fn replay(&mut self) -> Result<(), StoreError> {
        for no in self.meta.derived_through.max(self.meta.trimmed_through) + 1..=self.last {
            let (_, body) = state::get_block(&self.store, no)?
                .ok_or_else(|| StoreError(format!("commit {no} is missing")))?;
            let block: Block = store::parse(&no_key(no), &body)?;
            self.dirty.apply(&self.store, &block)?;
        }
        self.tree_bytes += std::mem::take(&mut self.dirty.grown);
        for entry in self.store.open.iter() {
            let (key, value) = entry?;
            if store::is_first(&value) {
                let (_, body) = store::assemble(&self.store.open, &key, &value)?;
                let operation: Operation = store::parse(&key, &body)?;
                let ended = self.store.done.contains_key(&key)?;
                if !ended && !self.dirty.operations.contains_key(&operation.id) {
                    self.open_operations.push(operation);
                }
            }
        }
        let replayed = self.dirty.operations.values();
        let open = replayed.filter(|(_, operation)| !operation.state.is_ended());
        self.open_operations
            .extend(open.map(|(_, operation)| (**operation).clone()));
        self.open_operations
            .sort_by_key(|operation| operation.submitted);
        Ok(())
    }
}

/// Begins the epoch of this start, durably, and hands out the writer.
fn finish(
    options: Options,
    lock: Lock,
    generation: u64,
    loaded: Loaded,
    clean: bool,
) -> Result<Opened, OpenError> {
    if !loaded.symbol {
        return Err(OpenError::SymbolNotEffective);
    }
    let mut meta = loaded.meta;
    let identity = files::identity(&loaded.store.dir.join("db"))?;
    let computer = computer::compare(&meta.machine_id, &options.machine_id);
    let fresh = loaded.last == 0 && meta.note.as_deref() == Some("created");
    let mut note = meta.note.clone();
    if identity != meta.identity || computer != Computer::Same {
        if note.is_none() {
            note = Some("this journal is a copy of another, or was moved".into());
        }
        if !fresh {
            meta.unproven_before_us = meta
                .unproven_before_us
                .max(unproven_before_us(&options.now, loaded.highest_wall_us));
        }
    }
    if options.now.wall_trusted {
        meta.unproven_before_us = meta.unproven_before_us.min(options.now.wall_us);
    }
    if computer == Computer::Another && !fresh {
        // Before the new computer is on record: the next start must not take this for settled.
        files::write_whole(
            &options.dir.join(files::FOREIGN),
            foreign(&meta, &options).as_bytes(),
        )?;
    }
    if let Some(reason) = adoption(&options.dir)? {
        note = Some(reason);
    }
    // It stands until the first commit of this start, which tells of it: a start that does not get so far must
    // not be the one that knew.
    meta.note.clone_from(&note);
    meta.epoch = draw_epoch(&options, loaded.last_epoch)?;
    meta.identity = identity;
    meta.machine_id = computer::merged(&meta.machine_id, &options.machine_id);
    meta.gateway.clone_from(&options.gateway);
    let begun = guarded(|| {
        state::put_meta(&loaded.store, &meta)?;
        loaded.store.flush()
    });
    if let Err(e) = begun {
        let finding = Finding::new("store_not_writable", e.0);
        return Ok(damaged(&options, lock, vec![finding]));
    }
    failpoint!("open.after-epoch");
    end_adoption(&options.dir)?;
    settle_files(&options.dir, generation)?;
    let mark = HighWater {
        no: loaded.last,
        epoch: meta.epoch,
        chain: loaded.chain,
    };
    let mut high_water = HighWaterFile::open(&options.dir)?;
    high_water.write(mark)?;
    let recovered = Recovered {
        epoch: Epoch(meta.epoch),
        next_commit: CommitNo(loaded.last + 1),
        open_operations: loaded.open_operations,
        machines: loaded.dirty.machines.values().cloned().collect(),
        cursors: loaded.dirty.cursors.values().cloned().collect(),
        sources: loaded.dirty.sources.values().cloned().collect(),
        sinks: loaded.dirty.sinks.values().cloned().collect(),
        shed: loaded.dirty.shed.clone(),
        dead_letters: loaded.dirty.dead.clone().into_iter().collect(),
        highest_wall_us: loaded.highest_wall_us.max(0),
        clean,
        previous_epoch: Epoch(if loaded.last == 0 {
            0
        } else {
            loaded.last_epoch
        }),
        note,
        foreign: read_foreign(&options.dir),
        unproven_before_us: meta.unproven_before_us,
        findings: Vec::new(),
    };
    let shared = Shared {
        store: RwLock::new(Some(Arc::new(loaded.store))),
        dirty: RwLock::new(loaded.dirty),
        strides: RwLock::new(loaded.strides),
        durable: watch::Sender::new(CommitNo(loaded.last)),
    };
    let journal = Journal {
        dir: options.dir,
        budget_bytes: options.budget_bytes.max(super::BUDGET_BYTES_MIN),
        shared: Arc::new(shared),
        meta,
        generation,
        next: loaded.last + 1,
        chain: loaded.chain,
        tree_bytes: loaded.tree_bytes,
        operations: loaded.operations,
        disk: Disk::default(),
        rewrite: None,
        replaced: None,
        thinning: Thinning::default(),
        high_water: Marker::start(high_water)?,
        lock,
        displaced: false,
    };
    Ok(Opened::Normal(Box::new(journal), recovered))
}

/// What a person is told about a journal from another computer.
fn foreign(meta: &Meta, options: &Options) -> String {
    format!(
        "the journal of gateway {:?} was written on another computer ({}), this one is {}",
        meta.gateway, meta.machine_id, options.machine_id
    )
}

/// Whether the journal waits for somebody to say that this computer is to go on with it. That the file is there
/// decides; its text informs.
fn read_foreign(dir: &Path) -> Option<String> {
    let path = dir.join(files::FOREIGN);
    let there = path.try_exists().unwrap_or(true);
    there.then(|| {
        let text = files::read_small(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text)
            .trim_matches(['\0', '\n'])
            .to_owned();
        if text.is_empty() {
            "the journal was written on another computer".to_owned()
        } else {
            text
        }
    })
}

/// Somebody said that this computer takes the place of the other one: the reason, once.
fn adoption(dir: &Path) -> Result<Option<String>, OpenError> {
    let path = dir.join(files::ADOPTED);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = files::read_small(&path)?;
    let reason = String::from_utf8_lossy(&bytes);
    Ok(Some(format!(
        "adopted from another computer: {}",
        reason.trim()
    )))
}

/// The store knows of the adoption: nothing waits for a person any more.
fn end_adoption(dir: &Path) -> Result<(), OpenError> {
    if !dir.join(files::ADOPTED).exists() {
        return Ok(());
    }
    for name in [files::FOREIGN, files::ADOPTED] {
        let path = dir.join(name);
        if path.exists() {
            fs::remove_file(path)?;
            files::sync_dir(dir)?;
        }
    }
    Ok(())
}

/// Everything is proven: drop the copy and other generations, make good manifest and marker.
fn settle_files(dir: &Path, generation: u64) -> Result<(), OpenError> {
    if files::read_manifest(dir) != Manifest::Generation(generation) {
        files::write_manifest(dir, generation)?;
    }
    if !dir.join(files::CREATED).exists() {
        files::write_whole(&dir.join(files::CREATED), b"created\n")?;
    }
    let others = files::generations(dir)
        .into_iter()
        .filter(|g| *g != generation);
    let stale = others.map(|g| files::generation_dir(dir, g));
    let copies = [
        files::ASIDE,
        "aside.copying",
        files::CHECK_COPY,
        "check-copy.copying",
    ];
    let copies = copies.into_iter().map(|name| dir.join(name));
    for path in stale.chain(copies).filter(|path| path.exists()) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

fn damaged(options: &Options, lock: Lock, findings: Vec<Finding>) -> Opened {
    let (damaged, recovered) = Damaged::gather(&options.dir, Some(lock), findings);
    Opened::Recovery(Box::new(damaged), recovered)
}
