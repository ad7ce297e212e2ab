//! Owns: the application acknowledgement of one event over a broker: its message and its correlation data.
//! May call: core types.
//! Never: name an event by anything but its key and its digest (F117).
//!
//! # Message
//! `{"key":"press-1/7/42","digest":"sha256:…","status":"accepted"}`, and `reason`, `kept`, `after_ms` where
//! there is one. Its correlation data is that of the event's message, byte for byte: the key, one space, the
//! digest.

use crate::core::ids::EventKey;
use crate::core::outbox::Verdict;
use serde::{Deserialize, Serialize};

/// Longest acknowledgement that is read or sent, in bytes.
pub const ACK_BYTES_MAX: usize = 128 * 1024;

/// The message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckMessage {
    /// `source/epoch/sequence`, as the event's message had it; empty if it could not be read.
    #[serde(default)]
    pub key: String,
    /// The digest of what was judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// `accepted`, `duplicate`, `conflict`, `malformed` or `retry`.
    pub status: String,
    /// In plain words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// After a conflict: what the books hold under the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// After `retry`: the wish to be left alone for so long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
}

impl AckMessage {
    /// What to tell a sender. `Stop` is told as `retry`: it is the receiver that must be mended.
    #[must_use]
    pub fn of(key: &str, digest: Option<String>, verdict: &Verdict) -> Self {
        let (status, reason, kept, after_ms) = match verdict {
            Verdict::Accepted => ("accepted", None, None, None),
            Verdict::Duplicate => ("duplicate", None, None, None),
            Verdict::Conflict { reason, kept } => ("conflict", Some(reason), kept.clone(), None),
            Verdict::Malformed { reason } => ("malformed", Some(reason), None, None),
            Verdict::Retry { reason, after_ms } => ("retry", Some(reason), None, *after_ms),
            Verdict::Stop { reason } => ("retry", Some(reason), None, None),
        };
        Self {
            key: key.to_owned(),
            digest,
            status: status.to_owned(),
            reason: reason.cloned(),
            kept,
            after_ms,
        }
    }

    /// What it says, if its status is one of the five.
    #[must_use]
    pub fn verdict(self) -> Option<Verdict> {
        let reason = self
            .reason
            .unwrap_or_else(|| format!("the receiver answered {:?} without a reason", self.status));
        Some(match self.status.as_str() {
            "accepted" => Verdict::Accepted,
            "duplicate" => Verdict::Duplicate,
            "conflict" => Verdict::Conflict {
                reason,
                kept: self.kept,
            },
            "malformed" => Verdict::Malformed { reason },
            "retry" => Verdict::Retry {
                reason,
                after_ms: self.after_ms,
            },
            _ => return None,
        })
    }
}

/// The correlation data of an event's message.
#[must_use]
pub fn correlation(key: &EventKey, digest: &str) -> String {
    format!("{key} {digest}")
}

/// The key and the digest that a correlation names.
#[must_use]
pub fn split_correlation(correlation: &str) -> Option<(&str, &str)> {
    correlation.rsplit_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_survives_the_way_but_stop_which_is_the_receivers_own() {
        for verdict in [
            Verdict::Accepted,
            Verdict::Duplicate,
            Verdict::Conflict {
                reason: "other".into(),
                kept: Some("{}".into()),
            },
            Verdict::Malformed {
                reason: "no qty".into(),
            },
            Verdict::Retry {
                reason: "later".into(),
                after_ms: Some(5),
            },
        ] {
            let text = serde_json::to_string(&AckMessage::of("a/1/2", None, &verdict)).unwrap();
            let back: AckMessage = serde_json::from_str(&text).unwrap();
            assert_eq!(back.verdict(), Some(verdict), "{text}");
        }
        let stop = AckMessage::of(
            "a/1/2",
            None,
            &Verdict::Stop {
                reason: "no table".into(),
            },
        );
        assert_eq!(stop.verdict(), Some(Verdict::retry("no table")));
        let odd = AckMessage {
            status: "ok".into(),
            ..AckMessage::default()
        };
        assert_eq!(odd.verdict(), None);
    }
}
