//! Owns: the names of things: operations, attempts, events, epochs, commits, boots.
//! May call: nothing.
//! Never: make an identity out of a port, an address, a time or a transport's sequence number.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest `operation_id`, in characters (CMD-01).
pub const OPERATION_ID_CHARS_MAX: usize = 128;

/// What a caller named one thing it wants done, the same through every retry.
///
/// 1 to [`OPERATION_ID_CHARS_MAX`] characters of `A-Z a-z 0-9 . _ : -` (CMD-01).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperationId(String);

/// Why a text is no [`OperationId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOperationId {
    /// Nothing was given.
    #[error("an operation_id is 1 to 128 characters long; this one is empty")]
    Empty,
    /// Too many characters.
    #[error("an operation_id is 1 to 128 characters long; this one has {0}")]
    TooLong(usize),
    /// A character outside the allowed set.
    #[error(
        "an operation_id is made of A-Z a-z 0-9 . _ : -; found {found:?} at character {position}"
    )]
    Character {
        /// The character.
        found: char,
        /// Its place, counted from 1.
        position: usize,
    },
}

impl OperationId {
    /// Checks `text` against CMD-01.
    ///
    /// # Errors
    /// [`InvalidOperationId`], with what was found and where.
    pub fn parse(text: &str) -> Result<Self, InvalidOperationId> {
        if text.is_empty() {
            return Err(InvalidOperationId::Empty);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
        if let Some((index, found)) = text.chars().enumerate().find(|(_, c)| !allowed(*c)) {
            return Err(InvalidOperationId::Character {
                found,
                position: index + 1,
            });
        }
        if text.len() > OPERATION_ID_CHARS_MAX {
            return Err(InvalidOperationId::TooLong(text.len()));
        }
        Ok(Self(text.to_owned()))
    }

    /// The id as the caller wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for OperationId {
    type Error = InvalidOperationId;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<OperationId> for String {
    fn from(id: OperationId) -> Self {
        id.0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One start of a gateway's journal: +1 at every start, drawn anew for a new incarnation (EVT-02).
/// 63 bits.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct Epoch(pub u64);

/// A place in one source's events within one epoch: 1, 2, 3 … without gaps.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct Sequence(pub u64);

/// The number of a journal commit: 1, 2, 3 … without gaps, over all epochs of one journal.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct CommitNo(pub u64);

/// A try at sending an operation, for tracing only; shown as `epoch-n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptId {
    /// The epoch in which the try was begun.
    pub epoch: Epoch,
    /// Counted from 1 within the epoch.
    pub n: u64,
}

/// One connection to a machine, numbered by the shell; no number is given twice within a process.
///
/// What was decided by a gate that was read over one connection goes out over that one, or not at all (POL-06).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionNo(pub u64);

/// The kernel's boot id (`/proc/sys/kernel/random/boot_id`): which boot a monotonic time belongs to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// Reads the kernel's text form, `8-4-4-4-12` hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex: String = text.trim().chars().filter(|c| *c != '-').collect();
        if hex.len() != 32 {
            return None;
        }
        let mut bytes = [0; 16];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(index * 2..index * 2 + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The one name of an event, for ever (EVT-01): shown as `source/epoch/sequence`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EventKey {
    /// The machine's configured name, or the gateway's.
    pub source: String,
    /// See [`Epoch`].
    pub epoch: Epoch,
    /// See [`Sequence`].
    pub sequence: Sequence,
}

impl EventKey {
    /// Reads `source/epoch/sequence`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(3, '/');
        let sequence = Sequence(parts.next()?.parse().ok()?);
        let epoch = Epoch(parts.next()?.parse().ok()?);
        let source = parts.next().filter(|s| !s.is_empty())?.to_owned();
        Some(Self {
            source,
            epoch,
            sequence,
        })
    }
}

macro_rules! show_number {
    ($($name:ty),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
show_number!(Epoch, Sequence, CommitNo);

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.n)
    }
}

impl fmt::Display for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.source, self.epoch, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: CMD-01
    #[test]
    fn an_operation_id_is_checked_character_by_character() {
        assert!(OperationId::parse("OP7").is_ok());
        assert!(OperationId::parse("line3:2026-11-30_a.b").is_ok());
        assert_eq!(OperationId::parse(""), Err(InvalidOperationId::Empty));
        assert!(OperationId::parse(&"x".repeat(128)).is_ok());
        assert_eq!(
            OperationId::parse(&"x".repeat(129)),
            Err(InvalidOperationId::TooLong(129))
        );
        assert_eq!(
            OperationId::parse("OP 7"),
            Err(InvalidOperationId::Character {
                found: ' ',
                position: 3
            })
        );
        assert!(OperationId::parse("OP\u{2076}").is_err());
    }

    #[test]
    fn a_boot_id_survives_its_text_form() {
        let text = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        assert_eq!(BootId::parse(text).unwrap().to_string(), text);
        assert_eq!(BootId::parse("short"), None);
    }

    #[test]
    fn an_event_key_survives_its_text_form() {
        let text = "press-1/7/42";
        assert_eq!(EventKey::parse(text).unwrap().to_string(), text);
        assert_eq!(EventKey::parse("/7/42"), None);
        assert_eq!(EventKey::parse("press-1/42"), None);
    }
}
