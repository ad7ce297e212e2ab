//! Owns: what must hold of every message on the acknowledgement topic, for proofs.
//! May call: waiting of this room; core's verdicts.
//! Never: be part of a release.

use super::waiting::{Heard, Waiting};
use crate::core::outbox::Verdict;

/// A message, with the correlation data of the first event, with others, or without.
pub(crate) fn acknowledgement(correlation: u8, payload: &[u8]) {
    const KEYS: [&str; 2] = ["press-1/7/41", "press-1/7/42"];
    const DIGESTS: [&str; 2] = ["sha256:01", "sha256:02"];
    let events = KEYS.iter().zip(DIGESTS);
    let events = events.map(|(key, digest)| ((*key).to_owned(), digest.to_owned()));
    let mut waiting = Waiting::new(events, true);
    let first = format!("{} {}", KEYS[0], DIGESTS[0]);
    let given = match correlation % 4 {
        0 | 1 => Some(first.as_bytes()),
        2 => payload.get(..payload.len() / 2),
        _ => None,
    };
    let heard = waiting.heard(given, payload, correlation & 0x80 != 0);
    let verdicts = waiting.verdicts(None, 1);
    let settled = |verdict: &Verdict| !matches!(verdict, Verdict::Retry { .. });
    let settled: Vec<bool> = verdicts.iter().map(settled).collect();
    if correlation & 0x80 != 0 {
        assert!(matches!(heard, Heard::Nothing(_)), "a retained one counts");
    }
    if heard != Heard::Decided {
        assert_eq!(settled, [false, false], "settled by no answer");
    }
    assert_ne!(settled, [true, true], "one answer settles one event");
    assert!(
        given != Some(first.as_bytes()) || !settled[1],
        "the other one"
    );
}
