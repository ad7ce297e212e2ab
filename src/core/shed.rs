//! Owns: what is told of telemetry that was given up for want of room (FWD-04).
//! May call: every file of this room.
//! Never: give up a business event; lose count of what was given up.
//!
//! While sinks are away and the journal is at its budget, the oldest telemetry that a sink has not taken is given up,
//! slice by slice. What was given up is one durable record that grows; when there is room again it becomes
//! one event, `events.dropped`, with the keys as ranges and how many there were.

use super::gateway::{Gateway, Input};
use super::ids::{CommitNo, EventKey};
use super::record::{KeyRange, Record, ShedRecord};
use super::time::{NS_PER_S, Now, elapsed_ns};
use super::turn::Turn;

/// Most ranges kept; beyond, the two with the least between them become one, and its count says how many of it
/// were given up.
pub const SHED_RANGES_MAX: usize = 256;
/// What was given up is told after so long without more of it, even if there is no room yet.
pub const SHED_QUIET_S: u64 = 600;

impl ShedRecord {
    /// Takes in keys, in the order of the log. Keys that cannot be joined to others any more are left over.
    fn add(&mut self, keys: &[EventKey]) {
        for key in keys {
            self.count += 1;
            self.total += 1;
            let last = self
                .ranges
                .iter_mut()
                .rev()
                .find(|range| range.source == key.source && range.epoch == key.epoch);
            match last {
                Some(range) if range.last.0.checked_add(1) == Some(key.sequence.0) => {
                    range.last = key.sequence;
                    range.count += 1;
                }
                _ => {
                    self.ranges.push(KeyRange {
                        source: key.source.clone(),
                        epoch: key.epoch,
                        first: key.sequence,
                        last: key.sequence,
                        count: 1,
                    });
                    if self.ranges.len() > SHED_RANGES_MAX {
                        self.join_nearest();
                    }
                }
            }
        }
    }

    /// Joins the two ranges of one source and epoch that have the least between them.
    fn join_nearest(&mut self) {
        let mut best: Option<(u64, usize, usize)> = None;
        for (at, range) in self.ranges.iter().enumerate() {
            let next = self.ranges.iter().enumerate().skip(at + 1);
            let next = next
                .into_iter()
                .find(|(_, other)| other.source == range.source && other.epoch == range.epoch);
            if let Some((other_at, other)) = next {
                let between = other.first.0.saturating_sub(range.last.0);
                if best.is_none_or(|(least, _, _)| between < least) {
                    best = Some((between, at, other_at));
                }
            }
        }
        if let Some((_, at, other_at)) = best {
            let other = self.ranges.remove(other_at);
            self.ranges[at].last = other.last;
            self.ranges[at].count += other.count;
        }
    }

    /// Whether nothing more can be taken in: each range is of a source and epoch of its own.
    fn is_full(&self) -> bool {
        self.ranges.len() > SHED_RANGES_MAX
    }
}

impl Gateway {
    /// Events up to `through` are given up, as far as they are telemetry.
    pub(super) fn shed(&mut self, turn: &mut Turn, through: CommitNo, keys: &[EventKey]) {
        self.shed.through = self.shed.through.max(through);
        self.shed.since.get_or_insert(turn.now);
        self.shed.last = Some(turn.now);
        self.shed.add(keys);
        self.alarm_shed(turn);
        if self.shed.is_full() {
            self.tell_shed(turn);
        } else {
            turn.keep(Record::Shed(self.shed.clone()));
        }
    }

    /// The alarm of what is being given up; its text stays the same while that lasts.
    pub(super) fn alarm_shed(&mut self, turn: &mut Turn) {
        let text = (self.shed.count > 0).then(|| {
            "the journal is at its budget, so the oldest telemetry that a sink has not taken is dropped; \
             business events are kept"
                .to_owned()
        });
        self.set_alarm(turn, "telemetry_dropped", "", text);
    }

    /// There is room again, or nothing was given up for long: one event says all of it.
    pub(super) fn tell_shed(&mut self, turn: &mut Turn) {
        if self.shed.count == 0 {
            return;
        }
        let range = |range: &KeyRange| {
            serde_json::json!({
                "source": range.source,
                "epoch": range.epoch.to_string(),
                "first": range.first.to_string(),
                "last": range.last.to_string(),
                "count": range.count.to_string(),
            })
        };
        let wall = |stamp: &Option<Now>| stamp.map(|at| super::event::rfc3339(at.wall_us));
        let whole = |range: &KeyRange| range.last.0 - range.first.0 + 1 == range.count;
        let body = serde_json::json!({
            "class": "telemetry",
            "count": self.shed.count.to_string(),
            "since": wall(&self.shed.since),
            "until": wall(&self.shed.last),
            "ranges": self.shed.ranges.iter().map(range).collect::<Vec<_>>(),
            "exact": self.shed.ranges.iter().all(whole),
        });
        let gateway = self.settings.gateway.clone();
        self.emit(turn, &gateway, "events.dropped", body);
        self.shed = ShedRecord {
            through: self.shed.through,
            total: self.shed.total,
            ..ShedRecord::default()
        };
        turn.keep(Record::Shed(self.shed.clone()));
        self.alarm_shed(turn);
    }

    /// What is to be told now: `room` says that the journal is well below its budget again.
    #[must_use]
    pub fn shed_over(&self, now: &Now, room: bool) -> Option<Input> {
        let quiet = self
            .shed
            .last
            .is_some_and(|last| elapsed_ns(&last, now) >= SHED_QUIET_S * NS_PER_S);
        (self.shed.count > 0 && (room || quiet)).then_some(Input::ShedOver)
    }

    /// Telemetry given up since the journal was created.
    #[must_use]
    pub fn shed_total(&self) -> u64 {
        self.shed.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::{Epoch, Sequence};

    fn key(source: &str, sequence: u64) -> EventKey {
        EventKey {
            source: source.into(),
            epoch: Epoch(7),
            sequence: Sequence(sequence),
        }
    }

    // covers: FWD-04, F103
    #[test]
    fn what_is_given_up_is_told_as_ranges_and_counted_to_the_last() {
        let mut shed = ShedRecord::default();
        shed.add(&[
            key("a", 1),
            key("b", 5),
            key("a", 2),
            key("a", 4),
            key("b", 6),
        ]);
        let told: Vec<_> = shed
            .ranges
            .iter()
            .map(|r| (r.source.as_str(), r.first.0, r.last.0, r.count))
            .collect();
        assert_eq!(told, [("a", 1, 2, 2), ("b", 5, 6, 2), ("a", 4, 4, 1)]);
        assert_eq!((shed.count, shed.total), (5, 5));
    }

    // covers: FWD-04
    #[test]
    fn however_scattered_the_record_stays_small_and_no_key_is_outside_its_ranges() {
        let mut shed = ShedRecord::default();
        let keys: Vec<EventKey> = (0..5_000_u64)
            .map(|n| key(if n % 3 == 0 { "a" } else { "b" }, 1 + n * 3 + n % 2))
            .collect();
        for slice in keys.chunks(100) {
            shed.add(slice);
        }
        assert!(shed.ranges.len() <= SHED_RANGES_MAX);
        assert_eq!(shed.count, 5_000);
        assert_eq!(shed.ranges.iter().map(|r| r.count).sum::<u64>(), 5_000);
        for key in &keys {
            let inside = |r: &KeyRange| {
                r.source == key.source && r.first <= key.sequence && key.sequence <= r.last
            };
            assert!(shed.ranges.iter().any(inside), "{key}");
        }
    }
}
