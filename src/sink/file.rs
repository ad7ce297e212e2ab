//! Owns: the `file` sink: a directory of `events-<n>.jsonl`, one event a line.
//! May call: sys, durable; core types, `core::event` for the line; this room's interface; `seen`.
//! Never: answer before the line is on the disk; leave half a line; delete a file with a line in it unless
//! `keep` is set.
//!
//! # Files
//! `events-<n>.jsonl`, `n` with twelve digits, so names sort by age whatever the clock says. Lines are
//! only ever added, to the file with the highest `n`. A batch is one write and one `fdatasync`, and
//! stands in one file; a file that would grow over `file_bytes_max` is closed and the next begun.
//!
//! # After a crash
//! A line that was written but not answered is sent again by the gateway (A14). So at the start the
//! keys of the newest files are read: a key that is there is a `Duplicate`, or a `Conflict` if its line has
//! another digest, and no second line is written. What follows the last whole line of the newest file was
//! never answered, and is cut.
//!
//! # A disk that is full
//! What was written of the batch is cut off again and the batch is to be retried; the next try opens
//! the file anew and believes only what it reads there.

use super::seen::{Line, Seen};
use super::{AckLevel, Delivery, Lane, Sink};
use crate::core::event::to_json;
use crate::core::ids::EventKey;
use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};
use crate::durable;
use crate::sys;
use rustix::fs::FlockOperation;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest line that is written.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Size at which a file is closed, unless configured.
pub const FILE_BYTES_DEFAULT: u64 = 16 * 1024 * 1024;
/// Least size at which a file may be closed.
pub const FILE_BYTES_MIN: u64 = 4 * 1024;
/// Files are read at the start, newest first, until so many bytes are read; the others only when an
/// event is offered that might stand in them.
pub const TAIL_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// What is configured of a `file` sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSinkConfig {
    /// The directory; made if missing.
    pub dir: PathBuf,
    /// A file is closed before it grows over this.
    pub file_bytes_max: u64,
    /// Most files; the oldest are deleted beyond it. `None`: nothing is ever deleted.
    pub keep: Option<usize>,
}

impl FileSinkConfig {
    /// Default sizes, nothing deleted.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            file_bytes_max: FILE_BYTES_DEFAULT,
            keep: None,
        }
    }
}

/// Why a `file` sink cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileSinkError {
    /// Operator.
    #[error(
        "event directory {dir}: {what}: {error}; expected a directory that this user may write to"
    )]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// Operator.
    #[error(
        "event directory {dir} is in use by another process; give every gateway and every sink its own"
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
}

/// The sink of `config`. The directory is opened when it is first needed, and again after a failure: a full or
/// missing disk must not keep the gateway from its machines.
#[must_use]
pub fn sink(config: FileSinkConfig) -> Sink {
    Sink {
        kind: "file",
        ack_level: AckLevel::Local,
        lanes: vec![Box::new(Lazy { config, open: None })],
    }
}

struct Lazy {
    config: FileSinkConfig,
    open: Option<FileSink>,
}

impl Lazy {
    fn deliver_blocking(&mut self, batch: &[(Position, EventRecord)]) -> Vec<Verdict> {
        if self.open.is_none() {
            match FileSink::open(self.config.clone()) {
                Ok(sink) => self.open = Some(sink),
                Err(error) => return vec![Verdict::retry(error.to_string()); batch.len()],
            }
        }
        let open = self.open.as_mut();
        open.map(|sink| sink.deliver(batch)).unwrap_or_default()
    }
}

impl Lane for Lazy {
    fn deliver<'a>(&'a mut self, batch: &'a [(Position, EventRecord)]) -> Delivery<'a> {
        Box::pin(async move { tokio::task::block_in_place(|| self.deliver_blocking(batch)) })
    }

    fn keeps_order(&self) -> bool {
        true
    }
}

/// A directory of JSON lines.
#[derive(Debug)]
pub struct FileSink {
    config: FileSinkConfig,
    /// Holds the lock, and is synced when a name in it changes.
    dir: File,
    /// Numbers of the files there are, in order.
    files: BTreeSet<u64>,
    /// Numbers of those whose keys are not in `seen`.
    unread: BTreeSet<u64>,
    /// The newest file, ready to be added to; `None` before the first line and after a failure.
    open: Option<OpenFile>,
    /// After a failed write: the file, and the length up to which it is known to be durable.
    cut_to: Option<(u64, u64)>,
    seen: Seen,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    bytes: u64,
}

impl FileSink {
    /// Opens the directory: takes its lock, cuts what was torn, reads the keys of the newest files.
    ///
    /// # Errors
    /// [`FileSinkError`]: the directory cannot be made, read or written, or is in use.
    pub fn open(config: FileSinkConfig) -> Result<Self, FileSinkError> {
        Self::open_reading(config, TAIL_BYTES_MAX)
    }

    fn open_reading(config: FileSinkConfig, tail_bytes_max: u64) -> Result<Self, FileSinkError> {
        let failed = |what, error| FileSinkError::Io {
            dir: config.dir.clone(),
            what,
            error,
        };
        let dir = lock_dir(&config.dir).map_err(|error| failed("cannot be opened", error))?;
        let dir = dir.ok_or_else(|| FileSinkError::InUse {
            dir: config.dir.clone(),
        })?;
        let files = list(&config.dir).map_err(|error| failed("cannot be listed", error))?;
        let mut sink = Self {
            dir,
            unread: files.clone(),
            files,
            open: None,
            cut_to: None,
            seen: Seen::default(),
            config: config.clone(),
        };
        sink.dir
            .sync_all()
            .and_then(|()| sink.open_newest())
            .and_then(|()| sink.read_tail(tail_bytes_max))
            .map_err(|error| failed("its newest files cannot be read", error))?;
        Ok(sink)
    }

    fn path(&self, n: u64) -> PathBuf {
        self.config.dir.join(format!("events-{n:012}.jsonl"))
    }

    /// Opens the file with the highest number for adding, cuts what is torn, and learns its keys.
    fn open_newest(&mut self) -> io::Result<()> {
        self.open = None;
        let Some(n) = self.files.last().copied() else {
            return Ok(());
        };
        let path = self.path(n);
        let file = OpenOptions::new().read(true).append(true).open(&path)?;
        if let Some((of, bytes)) = self.cut_to
            && of == n
            && file.metadata()?.len() > bytes
        {
            file.set_len(bytes)?;
        }
        // A line that is found here is answered `Duplicate`, so it must be as durable as one written.
        // What a sync that failed left behind is called clean by the kernel and still shown: it is read from the disk.
        file.sync_all()?;
        sys::forget_pages(&file);
        self.cut_to = None;
        let length = file.metadata()?.len();
        let whole = self.learn_keys(&path)?;
        if whole < length {
            log::warn!(
                "{}: cut {} bytes behind the last whole line; they were never acknowledged and are sent again",
                path.display(),
                length - whole
            );
            file.set_len(whole)?;
            file.sync_all()?;
        }
        self.unread.remove(&n);
        if whole == 0 {
            // Whether its name is durable nobody knows: it is made anew.
            return self.delete(n);
        }
        self.open = Some(OpenFile { file, bytes: whole });
        Ok(())
    }

    /// Learns the keys of older files, newest first, up to so many bytes.
    fn read_tail(&mut self, bytes_max: u64) -> io::Result<()> {
        let mut bytes = self.open.as_ref().map_or(0, |open| open.bytes);
        while let Some(n) = self.unread.last().copied() {
            let path = self.path(n);
            bytes += path.metadata()?.len();
            if bytes > bytes_max {
                break;
            }
            self.learn_keys(&path)?;
            self.unread.remove(&n);
        }
        self.seen.opened();
        Ok(())
    }

    /// Learns the keys of all files that are not read yet. One that is gone is left out: somebody
    /// deleted it, and what stood in it is forgotten.
    fn read_all(&mut self) -> io::Result<()> {
        while let Some(n) = self.unread.last().copied() {
            let path = self.path(n);
            match self.learn_keys(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    log::warn!("{}: is gone; its events are forgotten", path.display());
                    self.files.remove(&n);
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            self.unread.remove(&n);
        }
        Ok(())
    }

    /// Learns the keys in one file; the length up to and with its last whole line.
    fn learn_keys(&mut self, path: &Path) -> io::Result<u64> {
        let mut whole = 0;
        let mut damaged = 0_u64;
        let mut damaged_before_whole = 0;
        for_each_line(path, |end, line| {
            if let Some(line) = line {
                self.seen.insert(&line.key);
                whole = end;
                damaged_before_whole = damaged;
            } else {
                damaged += 1;
            }
        })?;
        if damaged_before_whole > 0 {
            log::warn!(
                "{}: {damaged_before_whole} line(s) are no events; left as they are",
                path.display()
            );
        }
        Ok(whole)
    }

    /// Whether a line of this key was written, as far as the files tell.
    fn is_written(&mut self, key: &EventKey) -> io::Result<bool> {
        if self.seen.contains(key) {
            return Ok(true);
        }
        if self.unread.is_empty() || self.seen.is_new(key) {
            return Ok(false);
        }
        self.read_all()?;
        Ok(self.seen.contains(key))
    }

    /// The digests under which these keys were written, newest file first.
    fn written(&self, keys: &BTreeSet<&EventKey>) -> io::Result<BTreeMap<EventKey, Line>> {
        let mut found = BTreeMap::new();
        for n in self.files.iter().rev() {
            if found.len() == keys.len() {
                break;
            }
            let result = for_each_line(&self.path(*n), |_, line| {
                if let Some(line) = line
                    && keys.contains(&line.key)
                {
                    found.entry(line.key.clone()).or_insert(line);
                }
            });
            match result {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Decides on every event that needs no line, and collects the lines of the others.
    fn sort(&mut self, batch: &[(Position, EventRecord)]) -> io::Result<Sorted> {
        let mut sorted = Sorted::default();
        let mut keys = BTreeSet::new();
        for (_, event) in batch {
            let verdict = if !keys.insert(&event.key) {
                Some(Verdict::retry("the same key stands twice in one batch"))
            } else if self.is_written(&event.key)? {
                sorted.again.push(sorted.verdicts.len());
                None
            } else {
                match line_of(event) {
                    Ok(line) => {
                        sorted.lines.extend_from_slice(line.as_bytes());
                        sorted.new.push(sorted.verdicts.len());
                        None
                    }
                    Err(reason) => Some(Verdict::Malformed { reason }),
                }
            };
            sorted.verdicts.push(verdict);
        }
        let again: BTreeSet<_> = sorted.again.iter().map(|i| &batch[*i].1.key).collect();
        let written = if again.is_empty() {
            BTreeMap::new()
        } else {
            self.written(&again)?
        };
        for index in &sorted.again {
            let event = &batch[*index].1;
            sorted.verdicts[*index] = Some(compare(event, written.get(&event.key)));
        }
        Ok(sorted)
    }

    /// Adds whole lines and makes them durable; afterwards all of them stand in the file, or none.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.ready(lines.len() as u64)?;
        let Some(open) = &mut self.open else {
            return Err(io::Error::other("no file is open"));
        };
        let result = open
            .file
            .write_all(lines)
            .and_then(|()| open.file.sync_data());
        if result.is_ok() {
            open.bytes += lines.len() as u64;
        } else {
            // Whatever of it reached the file is cut. After a failed sync nobody knows what is on the
            // disk, so the file is opened anew before the next line, and cut then if not now.
            self.cut_to = self.files.last().map(|n| (*n, open.bytes));
            if let Err(error) = open.file.set_len(open.bytes) {
                log::error!("event file: a partly written batch cannot be cut off yet: {error}");
            }
            self.open = None;
        }
        result
    }

    /// Sees to it that the newest file is open, is the one in the directory, and has room.
    fn ready(&mut self, bytes: u64) -> io::Result<()> {
        if let Some(open) = &self.open {
            let found = open.file.metadata()?;
            if found.nlink() == 0 || found.len() != open.bytes {
                log::warn!(
                    "event file: somebody deleted or changed it; the directory is read again"
                );
                self.open = None;
            }
        }
        if self.open.is_none() {
            self.reopen()?;
        }
        let limit = self.config.file_bytes_max.max(FILE_BYTES_MIN);
        match &self.open {
            Some(open) if open.bytes == 0 || open.bytes + bytes <= limit => Ok(()),
            _ => self.begin_next(),
        }
    }

    /// Reads the directory again, which may have been taken away and made anew meanwhile.
    fn reopen(&mut self) -> io::Result<()> {
        let (ours, found) = (self.dir.metadata()?, self.config.dir.metadata()?);
        self.files = list(&self.config.dir)?;
        self.unread.retain(|n| self.files.contains(n));
        if (ours.dev(), ours.ino()) != (found.dev(), found.ino()) {
            let in_use = || io::Error::other("in use by another process");
            self.dir = lock_dir(&self.config.dir)?.ok_or_else(in_use)?;
            self.unread = self.files.clone();
        }
        self.open_newest()
    }

    /// Begins the next file; deletes the oldest if `keep` says so.
    fn begin_next(&mut self) -> io::Result<()> {
        let n = self.files.last().map_or(1, |n| n + 1);
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(0o640)
            .open(self.path(n))?;
        self.files.insert(n);
        self.open = None;
        // The name must be durable before a line in the file can be. Where that failed a later sync proves nothing.
        if let Err(error) = self.dir.sync_all() {
            let _ = self.delete(n);
            return Err(error);
        }
        self.open = Some(OpenFile { file, bytes: 0 });
        if let Some(keep) = self.config.keep {
            while self.files.len() > keep.max(1) {
                self.delete_oldest()?;
            }
        }
        Ok(())
    }

    fn delete_oldest(&mut self) -> io::Result<()> {
        let Some(n) = self.files.first().copied() else {
            return Ok(());
        };
        self.delete(n)?;
        log::warn!(
            "{}: deleted, the oldest beyond `keep`",
            self.path(n).display()
        );
        self.dir.sync_all()
    }

    fn delete(&mut self, n: u64) -> io::Result<()> {
        match std::fs::remove_file(self.path(n)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.files.remove(&n);
        self.unread.remove(&n);
        Ok(())
    }
}

impl FileSink {
    /// Writes the lines of `batch` and makes them durable, or none of them; blocks meanwhile.
    pub fn deliver(&mut self, batch: &[(Position, EventRecord)]) -> Vec<Verdict> {
        let sorted = match self.sort(batch) {
            Ok(sorted) => sorted,
            Err(error) => {
                let verdict = self.cannot("its files cannot be read", &error);
                return vec![verdict; batch.len()];
            }
        };
        let written = if sorted.lines.is_empty() {
            Ok(())
        } else {
            self.append(&sorted.lines)
        };
        let of_new = match written {
            Ok(()) => {
                for index in &sorted.new {
                    self.seen.insert(&batch[*index].1.key);
                }
                Verdict::Accepted
            }
            Err(error) => self.cannot("cannot be written", &error),
        };
        let verdicts = sorted.verdicts.into_iter();
        verdicts
            .map(|verdict| verdict.unwrap_or_else(|| of_new.clone()))
            .collect()
    }

    fn cannot(&self, what: &str, error: &io::Error) -> Verdict {
        let dir = self.config.dir.display();
        Verdict::retry(match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!(
                    "event directory {dir}: the disk is full; make room, delivery goes on by itself"
                )
            }
            _ => format!("event directory {dir}: {what}: {error}"),
        })
    }
}

/// What becomes of a batch.
#[derive(Default)]
struct Sorted {
    /// One an event; `None`: decided by the writing.
    verdicts: Vec<Option<Verdict>>,
    /// Indices of events that get a line.
    new: Vec<usize>,
    /// Indices of events whose key is written already.
    again: Vec<usize>,
    lines: Vec<u8>,
}

/// The line of an event, with its end; or why it can have none.
fn line_of(event: &EventRecord) -> Result<String, String> {
    let mut line = to_json(event);
    if line.len() >= LINE_BYTES_MAX {
        let found = line.len();
        return Err(format!(
            "the event takes {found} bytes; a line holds fewer than {LINE_BYTES_MAX}"
        ));
    }
    if line.contains('\n') {
        return Err("the event's body holds a line break; a line ends at the first".into());
    }
    if let Err(error) = serde_json::from_str::<IgnoredAny>(&line) {
        return Err(format!("the event's body is no JSON: {error}"));
    }
    line.push('\n');
    Ok(line)
}

/// An event whose key is written already: the same, or other content (ING-04: by the digest alone).
fn compare(event: &EventRecord, written: Option<&Line>) -> Verdict {
    let digest = crate::core::event::sha256_text(&crate::core::event::digest(event));
    match written {
        Some(line) if line.digest != digest => Verdict::Conflict {
            reason: format!(
                "the file holds {} under this key, the event is {digest}",
                line.digest
            ),
            kept: Some(line.text.clone()),
        },
        // Its file is gone: it was written, and more is not known.
        _ => Verdict::Duplicate,
    }
}

/// Makes the directory if need be, and locks it; `None`: somebody else has it.
fn lock_dir(path: &Path) -> io::Result<Option<File>> {
    durable::create_dir(path, 0o750)?;
    let dir = File::open(path)?;
    match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(dir)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The numbers of the event files in a directory; other files are nobody's business here.
fn list(dir: &Path) -> io::Result<BTreeSet<u64>> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("events-")?.strip_suffix(".jsonl"))
            .filter(|digits| digits.len() == 12);
        files.extend(number.and_then(|digits| digits.parse::<u64>().ok()));
    }
    Ok(files)
}

/// Hands every line to `each`, with the offset of its end; `None`: it is no event, or has no end.
fn for_each_line(path: &Path, mut each: impl FnMut(u64, Option<Line>)) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(64 * 1024, File::open(path)?);
    let mut line = Vec::new();
    let mut end = 0;
    loop {
        line.clear();
        // A file of NUL bytes has no line ends: it must not be read into memory whole.
        let limit = LINE_BYTES_MAX as u64;
        let read = io::Read::take(&mut reader, limit).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        end += read as u64;
        let text = line.strip_suffix(b"\n").unwrap_or_default();
        each(end, Line::parse(text));
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
