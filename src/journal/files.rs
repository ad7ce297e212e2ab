//! Owns: the files beside the store: lock, manifest, high water, marker, clean mark, copy aside.
//! May call: rustix, crc32fast.
//! Never: decide what a finding means; leave a file half written where a whole one was.
//!
//! | name | holds |
//! | --- | --- |
//! | `lock` | locked while a gateway runs; its text, the pid, only informs (F143) |
//! | `created` | present once the journal was created whole |
//! | `manifest` | format version and current generation |
//! | `high-water` | two slots: the last durable commit, epoch, chain |
//! | `clean` | after a clean stop: length and CRC-32 of every file of the store |
//! | `g-N/` | the store of generation N |
//! | `foreign` | present while nobody has said that this computer takes the place of the one that wrote the journal |
//! | `adopted` | that somebody has, and why; taken over at the next open |
//! | `aside/` | the store as it was before an open after an unclean stop |

use crate::seeded::{self, Fault};
use crate::sys;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The lock file.
pub(super) const LOCK: &str = "lock";
/// The marker of a whole creation.
pub(super) const CREATED: &str = "created";
/// The manifest.
pub(super) const MANIFEST: &str = "manifest";
/// The high-water file.
pub(super) const HIGH_WATER: &str = "high-water";
/// The mark of a clean stop.
pub(super) const CLEAN: &str = "clean";
/// The journal came from another computer.
pub(super) const FOREIGN: &str = "foreign";
/// Somebody said that this is right.
pub(super) const ADOPTED: &str = "adopted";
/// The copy.
pub(super) const ASIDE: &str = "aside";
const SLOT_BYTES: usize = 48;
const SLOT_STRIDE_BYTES: u64 = 4096;
const SLOT_MAGIC: [u8; 8] = *b"HFHIGHW1";
/// Most bytes read of any small file here.
const SMALL_FILE_BYTES_MAX: u64 = 64 * 1024;

/// Where a check puts its copy of the store, for as long as it runs.
pub(super) const CHECK_COPY: &str = "check-copy";
/// Mode of directories: the gateway's user, and its group to read. Files are the same, without execution.
pub(super) const DIR_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

/// Creates a directory, and what is missing above it, closed to others.
pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(dir)
}

/// Opens a file for writing anew, closed to others.
fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Takes from everything in `dir` what others, and writing groups, may do with it: the store creates its
/// files by itself. Who may not change that is not the owner, and whoever made them answers for them.
pub(super) fn close_to_others(dir: &Path) -> io::Result<()> {
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        // The store deletes its old snapshots beside us.
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        let most = if meta.is_dir() {
            todo.extend(fs::read_dir(&path)?.flatten().map(|entry| entry.path()));
            DIR_MODE
        } else if meta.is_file() {
            FILE_MODE
        } else {
            continue;
        };
        let mode = meta.mode() & 0o7777;
        let closed = mode & (most | 0o7000);
        if mode != closed {
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(closed));
        }
    }
    Ok(())
}

/// Makes names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    if seeded::is_on(Fault::DirectoryNotSynced) {
        return Ok(());
    }
    File::open(dir)?.sync_all()
}

/// Writes a small file whole or not at all.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = create_file(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

pub(super) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(SMALL_FILE_BYTES_MAX)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Holds the lock as long as it lives.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

/// Why there is no lock.
pub(super) enum LockFault {
    /// Another process has it; what the file says about it.
    Held(String),
    Io(io::Error),
}

impl Lock {
    /// Whether the file that is locked is still the one by that name: if not, the directory was moved or
    /// removed, and another process may begin where this one believes to be alone (REC-06).
    pub(super) fn is_in_place(&self, dir: &Path) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
        match (self.file.metadata(), fs::metadata(dir.join(LOCK))) {
            (Ok(ours), Ok(there)) => place(ours) == place(there),
            _ => false,
        }
    }

    /// The kernel's lock decides; the content informs.
    pub(super) fn take(dir: &Path) -> Result<Self, LockFault> {
        let lock = Self::hold(dir, true)?;
        let text = format!("pid {}\n", std::process::id());
        if lock.file.set_len(0).is_ok() {
            let _ = lock.file.write_all_at(text.as_bytes(), 0);
        }
        Ok(lock)
    }

    /// Takes the lock without writing anything; `None` if there is no lock file.
    pub(super) fn probe(dir: &Path) -> Result<Option<Self>, LockFault> {
        if dir.join(LOCK).exists() {
            Self::hold(dir, false).map(Some)
        } else {
            Ok(None)
        }
    }

    fn hold(dir: &Path, create: bool) -> Result<Self, LockFault> {
        let path = dir.join(LOCK);
        let open = |write: bool| {
            OpenOptions::new()
                .read(true)
                .write(write)
                .create(write)
                .truncate(false)
                .mode(FILE_MODE)
                .open(&path)
        };
        let file = match open(create) {
            // Read-only content can still be locked; it only cannot inform.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => open(false),
            other => other,
        }
        .map_err(LockFault::Io)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = read_small(&path).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).trim().to_owned();
                return Err(LockFault::Held(if text.is_empty() {
                    "unnamed".into()
                } else {
                    text
                }));
            }
            Err(e) => return Err(LockFault::Io(e.into())),
        }
        Ok(Self { file })
    }
}

/// The last durable commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct HighWater {
    pub(super) no: u64,
    pub(super) epoch: u64,
    pub(super) chain: u32,
}

/// The high-water file, open for writing.
pub(super) struct HighWaterFile {
    file: File,
    turn: u64,
}

impl HighWaterFile {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(HIGH_WATER);
        let turn = read_slots(&path).map_or(0, |slots| slots.map(|s| s.0).max().unwrap_or(0));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)?;
        if file.metadata()?.len() < SLOT_STRIDE_BYTES * 2 {
            // Real blocks, so that a later write changes no metadata and needs no room.
            file.write_all_at(&[0; SLOT_BYTES], SLOT_STRIDE_BYTES)?;
            file.write_all_at(
                &vec![0; 4096 - SLOT_BYTES],
                SLOT_STRIDE_BYTES + SLOT_BYTES as u64,
            )?;
            file.sync_all()?;
        }
        Ok(Self { file, turn })
    }

    /// Writes the older slot and syncs it.
    pub(super) fn write(&mut self, mark: HighWater) -> io::Result<()> {
        self.turn += 1;
        self.file
            .write_all_at(&slot(self.turn, mark), (self.turn % 2) * SLOT_STRIDE_BYTES)?;
        self.file.sync_data()
    }
}

/// One slot, whole.
pub(super) fn slot(turn: u64, mark: HighWater) -> Vec<u8> {
    let mut slot = Vec::with_capacity(SLOT_BYTES);
    slot.extend_from_slice(&SLOT_MAGIC);
    slot.extend_from_slice(&turn.to_le_bytes());
    slot.extend_from_slice(&mark.no.to_le_bytes());
    slot.extend_from_slice(&mark.epoch.to_le_bytes());
    slot.extend_from_slice(&mark.chain.to_le_bytes());
    slot.resize(SLOT_BYTES - 4, 0);
    let crc = crc32fast::hash(&slot);
    slot.extend_from_slice(&crc.to_le_bytes());
    slot
}

fn read_slots(path: &Path) -> io::Result<impl Iterator<Item = (u64, HighWater)>> {
    let bytes = read_small(path)?;
    Ok(slots(&bytes).collect::<Vec<_>>().into_iter())
}

/// The slots among the bytes of the file that are whole.
pub(super) fn slots(bytes: &[u8]) -> impl Iterator<Item = (u64, HighWater)> {
    let number = |slot: &[u8], at: usize| -> Option<u64> {
        Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?))
    };
    [0, SLOT_STRIDE_BYTES as usize]
        .into_iter()
        .filter_map(move |at| {
            let slot = bytes.get(at..at + SLOT_BYTES)?;
            let stated = u32::from_le_bytes(slot[SLOT_BYTES - 4..].try_into().ok()?);
            let whole =
                slot.starts_with(&SLOT_MAGIC) && crc32fast::hash(&slot[..SLOT_BYTES - 4]) == stated;
            let mark = HighWater {
                no: number(slot, 16)?,
                epoch: number(slot, 24)?,
                chain: u32::from_le_bytes(slot[32..36].try_into().ok()?),
            };
            whole.then_some((number(slot, 8)?, mark))
        })
}

/// The newest whole slot; `None` if the file is not there or no slot is whole.
pub(super) fn read_high_water(dir: &Path) -> Option<HighWater> {
    read_slots(&dir.join(HIGH_WATER))
        .ok()?
        .max_by_key(|(turn, _)| *turn)
        .map(|(_, mark)| mark)
}

/// Writes the manifest: the switch from one generation to the next.
pub(super) fn write_manifest(dir: &Path, generation: u64) -> io::Result<()> {
    write_whole(&dir.join(MANIFEST), manifest_text(generation).as_bytes())
}

/// Its text.
pub(super) fn manifest_text(generation: u64) -> String {
    let text = format!(
        "holdfast-journal\nformat {}\ngeneration {generation}\n",
        super::frame::JOURNAL_VERSION
    );
    let crc = crc32fast::hash(text.as_bytes());
    format!("{text}crc {crc:08x}\n")
}

/// What the manifest says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manifest {
    Missing,
    Damaged,
    Newer(u16),
    Older(u64),
    Generation(u64),
}

pub(super) fn read_manifest(dir: &Path) -> Manifest {
    let Ok(bytes) = read_small(&dir.join(MANIFEST)) else {
        return Manifest::Missing;
    };
    parse_manifest(&String::from_utf8_lossy(&bytes)).unwrap_or(Manifest::Damaged)
}

pub(super) fn parse_manifest(text: &str) -> Option<Manifest> {
    let (body, crc) = text.rsplit_once("crc ")?;
    let stated = u32::from_str_radix(crc.trim(), 16).ok()?;
    if crc32fast::hash(body.as_bytes()) != stated {
        return None;
    }
    let mut lines = body.lines().skip(1);
    let format: u16 = lines.next()?.strip_prefix("format ")?.parse().ok()?;
    if format > super::frame::JOURNAL_VERSION {
        return Some(Manifest::Newer(format));
    }
    let generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
    Some(if format < super::frame::JOURNAL_VERSION {
        Manifest::Older(generation)
    } else {
        Manifest::Generation(generation)
    })
}

/// Where a generation's store is.
pub(super) fn generation_dir(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("g-{generation}"))
}

/// The generations that are there, in order.
pub(super) fn generations(dir: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<u64> = entries
        .filter_map(|e| {
            e.ok()?
                .file_name()
                .to_str()?
                .strip_prefix("g-")?
                .parse()
                .ok()
        })
        .collect();
    found.sort_unstable();
    found
}

/// Every plain file below `dir`, sorted.
pub(super) fn files_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(next)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                todo.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Bytes that `dir` takes on the disk.
pub(super) fn disk_bytes(dir: &Path) -> u64 {
    let files = files_below(dir).unwrap_or_default();
    let sizes = files.iter().filter_map(|f| fs::metadata(f).ok());
    sizes.map(|m| m.blocks() * 512).sum()
}

/// Bytes free for this user on the file system of `dir`.
pub(super) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// What a clean stop leaves: every file of the store with length and CRC-32.
pub(super) fn describe(store: &Path) -> io::Result<String> {
    let mut text = String::new();
    for path in files_below(store)? {
        let mut hasher = crc32fast::Hasher::new();
        let mut file = File::open(&path)?;
        let mut buffer = vec![0; 1 << 18];
        let mut len = 0;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            len += n;
        }
        let name = path
            .strip_prefix(store)
            .unwrap_or(&path)
            .display()
            .to_string();
        text += &format!("{name} {len} {:08x}\n", hasher.finalize());
    }
    let crc = crc32fast::hash(text.as_bytes());
    Ok(format!("{text}crc {crc:08x}\n"))
}

/// Syncs every file and directory of a store once (the store itself does not at creation).
pub(super) fn sync_tree(store: &Path) -> io::Result<()> {
    for path in files_below(store)? {
        File::open(&path)?.sync_all()?;
    }
    if store.join("blobs").is_dir() {
        sync_dir(&store.join("blobs"))?;
    }
    sync_dir(store)?;
    store.parent().map_or(Ok(()), sync_dir)
}

/// Reads of the store are from now on what is on the disk. Where a sync has failed, the kernel calls the pages clean
/// and still shows them: what is read there could be built on, and would be gone after the next power loss.
pub(super) fn read_from_disk(store: &Path) -> io::Result<()> {
    for path in files_below(store)? {
        let file = File::open(&path)?;
        file.sync_data()?;
        sys::forget_pages(&file);
    }
    Ok(())
}

/// Deletes half-written snapshots: the store cannot open past them.
pub(super) fn delete_generating(store: &Path) -> io::Result<()> {
    for path in files_below(store)? {
        if path.extension().is_some_and(|e| e == "generating") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Why there is no copy.
pub(super) enum CopyFault {
    NoRoom { needed: u64, free: u64 },
    Io(io::Error),
}

impl From<io::Error> for CopyFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Copies `from` to `to`, sharing blocks where the file system can.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<(), CopyFault> {
    let beside = to.with_extension("copying");
    if beside.exists() {
        fs::remove_dir_all(&beside)?;
    }
    create_dir(&beside)?;
    let result = copy_files(from, &beside);
    if result.is_err() {
        let _ = fs::remove_dir_all(&beside);
    }
    result?;
    sync_dir(&beside)?;
    fs::rename(&beside, to)?;
    if let Some(parent) = to.parent() {
        sync_dir(parent)?;
    }
    Ok(())
}

fn copy_files(from: &Path, to: &Path) -> Result<(), CopyFault> {
    for path in files_below(from)? {
        let target = to.join(path.strip_prefix(from).unwrap_or(&path));
        if let Some(parent) = target.parent() {
            create_dir(parent)?;
        }
        let source = File::open(&path)?;
        let copy = create_file(&target)?;
        if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
            let (needed, free) = (source.metadata()?.len(), free_bytes(to)?);
            if needed > free {
                return Err(CopyFault::NoRoom { needed, free });
            }
            match io::copy(&mut &source, &mut &copy) {
                Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                    return Err(CopyFault::NoRoom { needed, free });
                }
                other => other?,
            };
        }
        copy.sync_all()?;
    }
    Ok(())
}

/// What a file is, beyond its content: differs for every copy of it.
pub(super) fn identity(path: &Path) -> io::Result<String> {
    let stat = rustix::fs::statx(
        rustix::fs::CWD,
        path,
        rustix::fs::AtFlags::empty(),
        rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME,
    )?;
    Ok(format!(
        "{}:{}:{}:{}.{}",
        stat.stx_dev_major,
        stat.stx_dev_minor,
        stat.stx_ino,
        stat.stx_btime.tv_sec,
        stat.stx_btime.tv_nsec
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: F097
    #[test]
    fn the_high_water_survives_the_loss_of_either_slot() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = HighWaterFile::open(dir.path()).unwrap();
        let mark = |no| HighWater {
            no,
            epoch: 3,
            chain: 9,
        };
        file.write(mark(1)).unwrap();
        file.write(mark(2)).unwrap();
        assert_eq!(read_high_water(dir.path()), Some(mark(2)));
        let path = dir.path().join(HIGH_WATER);
        let whole = fs::read(&path).unwrap();
        for (slot, rest) in [(0, 1), (1, 2)] {
            let mut bytes = whole.clone();
            bytes[slot * 4096 + 20] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(read_high_water(dir.path()), Some(mark(rest)));
        }
        fs::write(&path, vec![0; whole.len()]).unwrap();
        assert_eq!(read_high_water(dir.path()), None);
    }

    // covers: F143, REC-06
    #[test]
    fn the_lock_decides_and_its_content_only_informs() {
        let dir = tempfile::tempdir().unwrap();
        for content in [
            "",
            "pid 1\n",
            "garbage \u{0}",
            &format!("pid {}", std::process::id()),
        ] {
            fs::write(dir.path().join(LOCK), content).unwrap();
            let lock = Lock::take(dir.path()).ok().unwrap();
            let Err(LockFault::Held(who)) = Lock::take(dir.path()) else {
                panic!("two holders");
            };
            assert_eq!(who, format!("pid {}", std::process::id()));
            drop(lock);
        }
    }

    // covers: REC-05
    #[test]
    fn a_manifest_is_whole_or_damaged_and_a_newer_one_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_manifest(dir.path()), Manifest::Missing);
        write_manifest(dir.path(), 12).unwrap();
        assert_eq!(read_manifest(dir.path()), Manifest::Generation(12));
        let path = dir.path().join(MANIFEST);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("12", "13")).unwrap();
        assert_eq!(read_manifest(dir.path()), Manifest::Damaged);
        let newer = "holdfast-journal\nformat 9\ngeneration 1\n";
        let crc = crc32fast::hash(newer.as_bytes());
        fs::write(&path, format!("{newer}crc {crc:08x}\n")).unwrap();
        assert_eq!(read_manifest(dir.path()), Manifest::Newer(9));
    }
}
