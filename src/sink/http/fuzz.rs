//! Owns: what must hold of every answer to a batch over HTTP, for proofs.
//! May call: reply of this room; core's verdicts.
//! Never: be part of a release.

use super::reply::{Outcome, Reply, judge};
use crate::core::outbox::Verdict;

/// Status, head and body of an answer to a batch of three events.
pub(crate) fn answer(status: u16, retry_after: Option<String>, problem: bool, body: &[u8]) {
    const KEYS: [&str; 3] = ["press-1/7/41", "press-1/7/42", "press-1/7/43"];
    let media = match problem {
        true => "application/problem+json",
        false => "application/json; charset=utf-8",
    };
    let reply = Reply {
        status,
        content_type: media.to_owned(),
        retry_after,
        body: body.to_vec(),
    };
    let Outcome::Each(verdicts) = judge(&reply, "batch-1", &KEYS) else {
        return;
    };
    assert!(matches!(status, 200 | 409), "{status} acknowledges nothing");
    assert_eq!(verdicts.len(), KEYS.len(), "one verdict an event");
    for (key, verdict) in KEYS.iter().zip(&verdicts) {
        if matches!(verdict, Verdict::Retry { .. } | Verdict::Stop { .. }) {
            continue;
        }
        // Settled: then the answer has named the event. Escapes may hide the name.
        let named = body.windows(key.len()).any(|part| part == key.as_bytes());
        assert!(named || body.contains(&b'\\'), "{key} was not answered for");
    }
}
