//! Owns: which event keys a directory of JSON lines holds, in little memory.
//! May call: core ids.
//! Never: read a file; forget a key.
//!
//! Events of one source are numbered without gaps within an epoch and come in that order, so what was
//! written of one (source, epoch) is nearly always one range. Ranges, and not only the highest number:
//! a dead letter that is sent again comes late, and must not be taken for written because its
//! successors are.

use crate::core::ids::{Epoch, EventKey, Sequence};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The keys that were read or written.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// By epoch and source: the first number of each range, and its last.
    ranges: BTreeMap<Epoch, BTreeMap<String, BTreeMap<u64, u64>>>,
    /// The highest epoch that was there before the first event of this run.
    epoch_at_open: Option<Epoch>,
}

impl Seen {
    /// The newest files are read: from here on, what is new can be told.
    pub(super) fn opened(&mut self) {
        self.epoch_at_open = self.ranges.keys().next_back().copied();
    }

    pub(super) fn insert(&mut self, key: &EventKey) {
        let sources = self.ranges.entry(key.epoch).or_default();
        if !sources.contains_key(&key.source) {
            sources.insert(key.source.clone(), BTreeMap::new());
        }
        let Some(ranges) = sources.get_mut(&key.source) else {
            return;
        };
        let n = key.sequence.0;
        let before = ranges.range(..=n).next_back().map(|(a, b)| (*a, *b));
        let (first, mut last) = match before {
            Some((_, last)) if n <= last => return,
            Some((first, last)) if last.checked_add(1) == Some(n) => (first, n),
            _ => (n, n),
        };
        if let Some(after) = n.checked_add(1).and_then(|next| ranges.remove(&next)) {
            last = after;
        }
        ranges.insert(first, last);
    }

    pub(super) fn contains(&self, key: &EventKey) -> bool {
        let n = key.sequence.0;
        self.of(key)
            .and_then(|ranges| ranges.range(..=n).next_back())
            .is_some_and(|(_, last)| n <= *last)
    }

    /// Whether no older file can hold it: its epoch began after all that was read at the start, or its
    /// source and epoch are known and it is above all of theirs.
    pub(super) fn is_new(&self, key: &EventKey) -> bool {
        if self
            .epoch_at_open
            .is_some_and(|at_open| key.epoch > at_open)
        {
            return true;
        }
        self.of(key)
            .and_then(|ranges| ranges.last_key_value())
            .is_some_and(|(_, last)| key.sequence.0 > *last)
    }

    fn of(&self, key: &EventKey) -> Option<&BTreeMap<u64, u64>> {
        self.ranges.get(&key.epoch)?.get(&key.source)
    }
}

/// One written event, as far as a comparison needs it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) key: EventKey,
    pub(super) digest: String,
    /// All of it.
    pub(super) text: String,
}

impl Line {
    /// Reads one line without its end; `None`: it is no event.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Parts {
            source: String,
            epoch: String,
            sequence: String,
            digest: String,
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let parts: Parts = serde_json::from_str(text).ok()?;
        Some(Self {
            key: EventKey {
                source: parts.source,
                epoch: Epoch(parts.epoch.parse().ok()?),
                sequence: Sequence(parts.sequence.parse().ok()?),
            },
            digest: parts.digest,
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(epoch: u64, sequence: u64) -> EventKey {
        EventKey {
            source: "press-1".into(),
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
        }
    }

    #[test]
    fn any_order_of_insertion_ends_in_the_same_ranges() {
        let orders: [&[u64]; 4] = [
            &[1, 2, 3, 5, 9],
            &[9, 5, 3, 2, 1],
            &[2, 9, 1, 5, 3],
            &[3, 1, 2, 2, 9, 5, 5],
        ];
        for order in orders {
            let mut seen = Seen::default();
            for n in order {
                seen.insert(&key(7, *n));
            }
            assert_eq!(
                seen.of(&key(7, 0)).unwrap(),
                &BTreeMap::from([(1, 3), (5, 5), (9, 9)])
            );
            let held: Vec<u64> = (0..12).filter(|n| seen.contains(&key(7, *n))).collect();
            assert_eq!(held, [1, 2, 3, 5, 9]);
            assert!(!seen.contains(&key(8, 1)));
        }
    }

    #[test]
    fn the_ends_of_the_number_range_are_numbers_like_others() {
        let mut seen = Seen::default();
        for n in [
            u64::MAX,
            u64::MAX - 1,
            0,
            (1 << 53) - 1,
            1 << 53,
            u64::from(u32::MAX),
        ] {
            seen.insert(&key(7, n));
            assert!(seen.contains(&key(7, n)));
        }
        assert!(!seen.contains(&key(7, 1)));
        assert!(!seen.contains(&key(7, u64::MAX - 2)));
    }

    #[test]
    fn new_is_only_what_no_older_file_can_hold() {
        let mut seen = Seen::default();
        seen.insert(&key(7, 40));
        seen.opened();
        assert!(seen.is_new(&key(7, 41)));
        assert!(!seen.is_new(&key(7, 39)));
        assert!(!seen.is_new(&key(6, 41)));
        assert!(seen.is_new(&key(8, 1)));
    }
}
