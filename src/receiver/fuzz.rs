//! Owns: what must hold of the bodies that a receiver is given, for proofs.
//! May call: batch, gate of this room; core's notations.
//! Never: be part of a release; reach the books.

use super::batch;
use super::gate::Known;
use crate::core::wire::Notation;

/// Events in one body.
const EVENTS_COUNT_MAX: usize = 16;

/// The body of a request for ingest by gateway `gw`.
pub(crate) fn ingest(body: &[u8], notation: Notation) {
    let known = Known::named("gw");
    let Ok(taken) = batch::parse(&known, notation, body, EVENTS_COUNT_MAX) else {
        return;
    };
    assert!(!taken.id.is_empty());
    assert!((1..=EVENTS_COUNT_MAX).contains(&taken.items.len()));
    for item in &taken.items {
        // What the books refuse is known before they see it, or it has a key of its own.
        let whole = item.key.is_some() && item.row.epoch.is_some() && item.row.sequence.is_some();
        assert!(item.row.defect.is_some() || whole, "a row without a key");
        assert!(item.code.is_none() || item.row.defect.is_some());
        if let Some(defect) = &item.row.defect {
            assert!(defect.item.len() <= 2 * body.len() + 1024, "it has grown");
        }
    }
}
