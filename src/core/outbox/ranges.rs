//! Owns: putting finished events together into ranges.
//! May call: record.
//! Never: join two ranges that an unfinished event may lie between.

use crate::core::record::Ahead;

/// Collects ranges.
#[derive(Default)]
pub(super) struct Merger(Vec<Ahead>);

impl Merger {
    /// A range of its own.
    pub(super) fn add(&mut self, range: Ahead) {
        self.0.push(range);
    }
    /// A range that follows the last one without a hole.
    pub(super) fn extend(&mut self, range: Ahead) {
        match self.0.last_mut() {
            Some(last) => {
                last.to = range.to;
                last.events += range.events;
            }
            None => self.0.push(range),
        }
    }
    /// All of them, in the order of the log.
    pub(super) fn sorted(mut self) -> Vec<Ahead> {
        self.0.sort_by_key(|range| range.from);
        self.0
    }
}
