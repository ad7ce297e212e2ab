//! Owns: the log that the preloaded library and the test write together, read back; building that library.
//! May call: the C compiler.
//! Never: accept a log with something in it that cannot be replayed.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

const MAGIC: u32 = 0x5254_4648;
const HEAD_BYTES: usize = 40;
const MARK: u32 = 9;

/// Compiles the library into `dir`.
pub(crate) fn build_shim(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_loss/shim.c");
    let library = dir.join("shim.so");
    let status = Command::new("cc")
        .args([
            "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
        ])
        .args([&library, &source])
        .arg("-lpthread")
        .status()
        .expect("a C compiler, cc, is needed");
    assert!(status.success(), "cc: {status}");
    library
}

/// One entry.
#[derive(Debug)]
pub(crate) enum Record {
    Create {
        path: PathBuf,
        ino: u64,
    },
    Write {
        ino: u64,
        at: u64,
        data: Range<usize>,
    },
    Length {
        ino: u64,
        bytes: u64,
    },
    SyncBegin {
        ino: u64,
        token: u64,
    },
    SyncEnd {
        token: u64,
        failed: bool,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Unlink {
        path: PathBuf,
    },
    MakeDir {
        path: PathBuf,
        ino: u64,
    },
    Mark(String),
    Failed,
}

/// The whole log.
pub(crate) struct Tape {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Record>,
}

impl Tape {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the log is there: the library was loaded");
        let (mut records, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let (record, next) = parse(&bytes, at);
            records.push(record);
            at = next;
        }
        Self { bytes, records }
    }

    /// What the test entered, with its place.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.records.iter().enumerate();
        all.filter_map(|(at, record)| match record {
            Record::Mark(text) => Some((at, text.as_str())),
            _ => None,
        })
    }
}

fn parse(bytes: &[u8], at: usize) -> (Record, usize) {
    let head = &bytes[at..at + HEAD_BYTES];
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    assert_eq!(word(0), MAGIC, "the log is damaged at {at}");
    let path_at = at + HEAD_BYTES;
    let data_at = path_at + word(32) as usize;
    let data = data_at..data_at + word(36) as usize;
    let path = || PathBuf::from(text(&bytes[path_at..data_at]));
    let (ino, a) = (long(8), long(16));
    let record = match word(4) {
        1 => Record::Create { path: path(), ino },
        2 => Record::Write {
            ino,
            at: a,
            data: data.clone(),
        },
        3 => Record::Length { ino, bytes: a },
        4 => Record::SyncBegin { ino, token: a },
        5 => Record::SyncEnd {
            token: a,
            failed: long(24) != 0,
        },
        6 => Record::Rename {
            from: path(),
            to: text(&bytes[data.clone()]).into(),
        },
        7 => Record::Unlink { path: path() },
        8 => Record::MakeDir { path: path(), ino },
        MARK => Record::Mark(text(&bytes[data.clone()])),
        10 => panic!("a {} below the root cannot be replayed", path().display()),
        11 => Record::Failed,
        kind => panic!("kind {kind} at {at}"),
    };
    (record, data.end)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Enters what the test has seen, behind all that was logged before it was seen.
pub(crate) fn mark(log: &Path, text: &str) {
    let mut entry = Vec::with_capacity(HEAD_BYTES + text.len());
    entry.extend_from_slice(&MAGIC.to_le_bytes());
    entry.extend_from_slice(&MARK.to_le_bytes());
    entry.resize(HEAD_BYTES - 4, 0);
    entry.extend_from_slice(&u32::try_from(text.len()).unwrap().to_le_bytes());
    entry.extend_from_slice(text.as_bytes());
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(log)
        .unwrap();
    // One write: entries of two processes never mix.
    assert_eq!(file.write(&entry).unwrap(), entry.len());
}
