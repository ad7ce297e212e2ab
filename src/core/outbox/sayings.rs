//! Owns: what a sink can say of an event, what it means for the sink as a whole, and dead letters.
//! May call: record, time.
//! Never: keep more of a text from outside than its bound.

use crate::core::record::{DeadLetter, EventRecord, TEXT_BYTES_MAX};
use crate::core::time::{NS_PER_S, Now, Stamp, elapsed_ns};

/// Most bytes kept of what a sink says it holds under a key.
pub const KEPT_BYTES_MAX: usize = 64 * 1024;

/// Most dead letters of one sink: it makes no more tries while so many stand, as they outlive the log and its
/// budget. What was under way then still adds its own.
pub const DEAD_LETTERS_MAX: u64 = 10_000;
/// With so many dead letters of one sink, a new one is kept without what the sink holds under its key: at most
/// 32 MiB a sink.
pub const KEPT_LETTERS_MAX: u64 = 512;

/// What a sink said of one event (FWD-02).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken, for the first time. Finishes the event.
    Accepted,
    /// Taken before, with the same content. Finishes the event.
    Duplicate,
    /// The key is taken by other content. Goes to the dead letters.
    Conflict {
        /// In plain words.
        reason: String,
        /// What the sink holds under the key, if it said.
        kept: Option<String>,
    },
    /// Never takeable as it is. Goes to the dead letters.
    Malformed {
        /// In plain words.
        reason: String,
    },
    /// Not now. The same event is sent again under the same key.
    Retry {
        /// In plain words.
        reason: String,
        /// The sink asks to be left alone for so long (`Retry-After`), in milliseconds.
        after_ms: Option<u64>,
    },
    /// Not until a person has mended something, such as a missing table or permission. Counted as a retry.
    Stop {
        /// What must be mended, in plain words.
        reason: String,
    },
}

impl Verdict {
    /// Not now, and no wish about when.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry {
            reason: reason.into(),
            after_ms: None,
        }
    }
}

/// Whether a sink can be reached, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// It answers.
    Ok,
    /// It does not take events at the moment.
    Retrying {
        /// Since when.
        since: Stamp,
        /// Next try, on the boot clock.
        next_ns: u64,
        /// Failed tries in a row.
        failures: u32,
        /// What the last one said.
        reason: String,
    },
    /// No try is made until somebody mends something.
    Stopped {
        /// Since when.
        since: Stamp,
        /// What must be mended.
        reason: String,
    },
}

impl Circuit {
    /// `ok`, `retrying` or `stopped`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Retrying { .. } => "retrying",
            Self::Stopped { .. } => "stopped",
        }
    }

    /// One line for a technician.
    #[must_use]
    pub fn describe(&self, now: &Now) -> String {
        match self {
            Self::Ok => "ok".into(),
            Self::Retrying {
                since,
                next_ns,
                failures,
                reason,
            } => format!(
                "retrying for {} s ({failures} tries), next in {} s: {reason}",
                elapsed_ns(since, now) / NS_PER_S,
                next_ns.saturating_sub(now.boottime_ns).div_ceil(NS_PER_S),
            ),
            Self::Stopped { since, reason } => format!(
                "stopped {} s ago: {reason}",
                elapsed_ns(since, now) / NS_PER_S
            ),
        }
    }
}

/// The dead letter that a verdict makes, if it makes one.
pub(super) fn dead_letter(sink: &str, event: EventRecord, verdict: Verdict) -> Option<DeadLetter> {
    let (status, reason, kept) = match verdict {
        Verdict::Conflict { reason, kept } => ("conflict", reason, kept),
        Verdict::Malformed { reason } => ("malformed", reason, None),
        Verdict::Accepted | Verdict::Duplicate | Verdict::Retry { .. } | Verdict::Stop { .. } => {
            return None;
        }
    };
    Some(DeadLetter {
        sink: sink.to_owned(),
        event,
        status: status.to_owned(),
        reason: bounded(&reason, TEXT_BYTES_MAX),
        kept: kept.map(|kept| bounded(&kept, KEPT_BYTES_MAX)),
    })
}

/// At most so many bytes of a text that came from outside.
pub(super) fn bounded(text: &str, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
