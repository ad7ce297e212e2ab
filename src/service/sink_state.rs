//! Owns: what everybody may see of a sink, and how fast it goes.
//! May call: core types.
//! Never: show a rate that was not measured.

use crate::core::outbox::Circuit;
use crate::core::record::{CursorRecord, SinkRecord};
use crate::core::time::{NS_PER_S, Now};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Rates are over so many samples, one a second.
const SAMPLES_MAX: usize = 30;

/// What everybody may see of a sink.
#[derive(Debug)]
pub struct SinkShared {
    /// As configured.
    pub name: String,
    /// Such as `file`.
    pub kind: String,
    /// See `AckLevel`.
    pub ack_level: String,
    /// How many batches may be under way.
    pub lanes: usize,
    state: Mutex<SinkState>,
}

/// How a sink stands.
#[derive(Clone, Debug)]
pub struct SinkState {
    /// How far it has come, and what it answered.
    pub cursor: CursorRecord,
    /// What else there is to it.
    pub more: SinkRecord,
    /// Events finished beyond the watermark.
    pub finished_ahead: u64,
    /// Whether it answers.
    pub circuit: Circuit,
    /// The journal cannot be read.
    pub read_error: Option<String>,
    /// Fresh events overtake a backlog.
    pub split: bool,
    /// Batches under way.
    pub in_flight: usize,
    /// Events a second, new and finished, in thousandths, once measured.
    pub rates: Option<(u64, u64)>,
}

impl SinkShared {
    /// As it stands before the task runs.
    #[must_use]
    pub fn new(
        name: &str,
        (kind, ack_level, lanes): (&str, &str, usize),
        cursor: CursorRecord,
        more: SinkRecord,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            ack_level: ack_level.to_owned(),
            lanes,
            state: Mutex::new(SinkState {
                cursor,
                finished_ahead: more.ahead.iter().map(|range| range.events).sum(),
                more,
                circuit: Circuit::Ok,
                read_error: None,
                split: false,
                in_flight: 0,
                rates: None,
            }),
        }
    }
    /// How it stands.
    #[must_use]
    pub fn state(&self) -> SinkState {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
    /// It stands so now.
    pub fn set(&self, state: SinkState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    backlog: i128,
    finished: i128,
}

/// How many events come, and how many are finished.
#[derive(Debug, Default)]
pub(super) struct Rates(VecDeque<Sample>);

impl Rates {
    /// A second has passed since the last sample.
    #[must_use]
    pub(super) fn is_due(&self, now: &Now) -> bool {
        self.0
            .back()
            .is_none_or(|last| now.boottime_ns.saturating_sub(last.at_ns) >= NS_PER_S)
    }

    /// Takes note of how things stand.
    pub(super) fn sample(
        &mut self,
        now: &Now,
        backlog: u64,
        cursor: &CursorRecord,
        more: &SinkRecord,
    ) {
        let c = cursor;
        let answers = c.accepted + c.duplicates + c.conflicts + c.malformed;
        if self.0.len() >= SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Sample {
            at_ns: now.boottime_ns,
            backlog: i128::from(backlog),
            // Those sent again by a person's wish are no progress beyond what was.
            finished: i128::from(answers) - i128::from(more.resent) - i128::from(more.rewound),
        });
    }

    /// Events a second, new and finished, in thousandths.
    #[must_use]
    pub(super) fn now(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let ns = last.at_ns.saturating_sub(first.at_ns);
        if ns == 0 {
            return None;
        }
        let milli = |events: i128| {
            let milli = events.max(0) * 1_000 * i128::from(NS_PER_S) / i128::from(ns);
            u64::try_from(milli).unwrap_or(u64::MAX)
        };
        let finished = last.finished - first.finished;
        Some((
            milli(last.backlog - first.backlog + finished),
            milli(finished),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::BootId;

    #[test]
    fn what_comes_and_what_goes_is_told_apart() {
        let mut rates = Rates::default();
        assert_eq!(rates.now(), None);
        for second in 0..100_u64 {
            let now = Now {
                boot_id: BootId([1; 16]),
                boottime_ns: second * NS_PER_S,
                wall_us: 0,
                wall_trusted: true,
            };
            assert!(rates.is_due(&now));
            let cursor = CursorRecord {
                accepted: 40 * second,
                conflicts: second,
                ..CursorRecord::default()
            };
            // Ten a second come, 41 go.
            rates.sample(&now, 10_000 - 31 * second, &cursor, &SinkRecord::default());
            assert!(!rates.is_due(&now));
        }
        assert_eq!(rates.now(), Some((10_000, 41_000)));
    }
}
