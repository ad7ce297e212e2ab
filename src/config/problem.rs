//! Owns: what is wrong with a configuration file and where; the text of one file, safely decoded.
//! May call: nothing of this crate.
//! Never: stop at the first problem; guess an encoding and go on.

use crate::core::place::Notation;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Largest configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most problems that are kept of one file.
pub const PROBLEMS_MAX: usize = 200;

/// One thing to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file.
    pub file: PathBuf,
    /// Counted from 1.
    pub line: usize,
    /// Characters, counted from 1.
    pub column: usize,
    /// Such as `command[0].ttl`; empty for the file as a whole.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
    /// What to write instead, where that can be said.
    pub mend: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file.display(), self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "found {}; expected {}", self.found, self.expected)?;
        if let Some(mend) = &self.mend {
            write!(f, "; {mend}")?;
        }
        Ok(())
    }
}

/// One file's text, and what was found wrong with it so far.
pub(super) struct Doc {
    /// As it was named.
    pub(super) file: PathBuf,
    /// Without a byte order mark.
    pub(super) text: String,
    problems: RefCell<Vec<Problem>>,
    /// How this document writes addresses; known once its link was read.
    pub(super) dialect: Cell<Dialect>,
}

/// How addresses are written.
#[derive(Clone, Copy, Default)]
pub(super) enum Dialect {
    /// `area:offset`.
    #[default]
    Modbus,
    /// A device and its number.
    Melsec(Notation),
}

impl Doc {
    /// Reads and decodes a file.
    pub(super) fn read(file: &Path) -> Result<Self, Vec<Problem>> {
        let io = |error: std::io::Error| vec![at_start(file, error.to_string(), "a readable file")];
        let length = std::fs::metadata(file).map_err(io)?.len();
        if length > FILE_BYTES_MAX {
            let found = format!("a file of {length} bytes");
            let expected = format!("at most {FILE_BYTES_MAX} bytes");
            return Err(vec![at_start(file, found, expected)]);
        }
        let bytes = std::fs::read(file).map_err(io)?;
        Self::decode(file, &bytes)
    }

    /// Decodes a file's bytes: UTF-8, with or without a byte order mark, and nothing else.
    pub(super) fn decode(file: &Path, bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let utf16 = |name: &str| {
            let mut problem = at_start(file, format!("a {name} file"), "UTF-8");
            problem.mend = Some("save it again as UTF-8".into());
            vec![problem]
        };
        if bytes.starts_with(&[0xFF, 0xFE]) || looks_utf16(bytes, 1) {
            return Err(utf16("UTF-16LE"));
        }
        if bytes.starts_with(&[0xFE, 0xFF]) || looks_utf16(bytes, 0) {
            return Err(utf16("UTF-16BE"));
        }
        let bytes = bytes.strip_prefix(&[0xEF, 0xBB, 0xBF]).unwrap_or(bytes);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let (good, bad) = bytes.split_at(error.valid_up_to());
                let (line, column) = place(&String::from_utf8_lossy(good), good.len());
                let found = format!("the byte 0x{:02X}, {}", bad[0], legacy_name(bytes));
                let mut problem = at_start(file, found, "UTF-8");
                (problem.line, problem.column) = (line, column);
                problem.mend = Some("save it again as UTF-8".into());
                return Err(vec![problem]);
            }
        };
        let doc = Self {
            file: file.to_owned(),
            text: text.to_owned(),
            problems: RefCell::default(),
            dialect: Cell::default(),
        };
        if let Some(index) = text.find('\0') {
            let mend =
                Some("remove it; the file may have been cut off while it was written".into());
            doc.report(
                index..index,
                "",
                "a NUL character".into(),
                "text".into(),
                mend,
            );
            return Err(doc.take());
        }
        Ok(doc)
    }

    /// Notes a problem.
    pub(super) fn report(
        &self,
        span: Range<usize>,
        key: &str,
        found: String,
        expected: String,
        mend: Option<String>,
    ) {
        let (line, column) = place(&self.text, span.start);
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            problems.push(Problem {
                file: self.file.clone(),
                line,
                column,
                key: key.to_owned(),
                found,
                expected,
                mend,
            });
        }
    }

    /// The problems noted so far, in the order of the file.
    pub(super) fn take(&self) -> Vec<Problem> {
        let mut problems = self.problems.take();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }
}

/// A problem of a file as a whole.
pub(super) fn at_start(
    file: &Path,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> Problem {
    Problem {
        file: file.to_owned(),
        line: 1,
        column: 1,
        key: String::new(),
        found: found.into(),
        expected: expected.into(),
        mend: None,
    }
}

/// Line and column, both from 1, of a byte offset.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |index| index + 1);
    let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// ASCII text in UTF-16 without a mark has a zero in every other byte.
fn looks_utf16(bytes: &[u8], zero_at: usize) -> bool {
    let pairs = bytes.chunks_exact(2).take(8);
    pairs.len() >= 2
        && pairs
            .into_iter()
            .all(|p| p[zero_at] == 0 && p[1 - zero_at] != 0)
}

/// Which legacy encoding the bytes would be valid in, as far as their structure tells.
fn legacy_name(bytes: &[u8]) -> &'static str {
    let cp932 = |lead: u8, trail: u8| {
        matches!(lead, 0x81..=0x9F | 0xE0..=0xFC) && matches!(trail, 0x40..=0x7E | 0x80..=0xFC)
    };
    let gbk = |lead: u8, trail: u8| {
        matches!(lead, 0x81..=0xFE) && matches!(trail, 0x40..=0x7E | 0x80..=0xFE)
    };
    let kana = |byte: u8| matches!(byte, 0xA1..=0xDF);
    let japanese = valid_in(bytes, cp932, kana);
    let chinese = valid_in(bytes, gbk, |_| false);
    match (japanese, chinese) {
        (true, false) => "as in CP932 (Shift_JIS)",
        (false, true) => "as in GBK (or Big5)",
        (true, true) => "as in CP932 (Shift_JIS) or GBK",
        (false, false) => "which is no UTF-8 (a Windows code page?)",
    }
}

fn valid_in(bytes: &[u8], pair: impl Fn(u8, u8) -> bool, single: impl Fn(u8) -> bool) -> bool {
    let mut rest = bytes;
    loop {
        rest = match rest {
            [] => return true,
            [byte, tail @ ..] if byte.is_ascii() || single(*byte) => tail,
            [lead, trail, tail @ ..] if pair(*lead, *trail) => tail,
            _ => return false,
        };
    }
}
