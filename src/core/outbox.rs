//! Owns: one sink's progress through the events: what to send next, what an answer finishes, when to
//! try again (FWD-01 to FWD-05).
//! May call: record, time, jitter.
//! Never: reach a sink; call an event finished that no answer named; let one sink's state depend on
//! another's.
//!
//! One [`Outbox`] a sink. The shell offers the events behind [`CursorRecord::through`] in the order of
//! the log, hands the batch it gets to the sink, and brings back what the sink said. Of the
//! [`Progress`] that follows, the cursor and the dead letters go into one commit. Killed before that
//! commit, the gateway sends the same events under the same keys again, and the sink answers
//! `duplicate` (A14); the other order would lose them.
//!
//! The cursor is a watermark plus the events finished behind it, so one event that must be retried
//! holds nothing back but the window, and a restart resends only what was never finished.

use super::jitter::Jitter;
use super::record::{CursorRecord, DeadLetter, EventRecord, Position, TEXT_BYTES_MAX};
use super::time::{NS_PER_MS, NS_PER_S, Now, Stamp, elapsed_ns};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::Excluded;

/// Most events of one sink that may be looked at beyond its watermark; bounds the cursor record.
pub const WINDOW_EVENTS_MAX: usize = 10_000;
/// Most events in one batch.
pub const BATCH_EVENTS_MAX: usize = 1_000;
/// Events sent to a failing sink to find out whether it is back.
pub const PROBE_EVENTS_MAX: usize = 1;
/// Longest wait before a retry that a configuration or a sink may ask for, in milliseconds.
pub const BACKOFF_MS_MAX: u64 = 15 * 60 * 1000;
/// Most bytes kept of what a sink says it holds under a key.
pub const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Bytes that an event takes besides its texts, roughly.
const EVENT_OVERHEAD_BYTES: usize = 256;

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

/// Bounds of one sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// Most events in a batch, 1 to [`BATCH_EVENTS_MAX`].
    pub batch_events_max: usize,
    /// Most bytes in a batch; one event larger than this goes alone.
    pub batch_bytes_max: usize,
    /// Most events beyond the watermark, 1 to [`WINDOW_EVENTS_MAX`].
    pub window_events_max: usize,
    /// Most batches under way at once; 1 keeps the order of the log through retries.
    pub batches_in_flight_max: usize,
    /// Longest first wait before a retry, in milliseconds; doubles with every failure.
    pub backoff_ms_min: u64,
    /// Longest wait before a retry, in milliseconds, at most [`BACKOFF_MS_MAX`].
    pub backoff_ms_max: u64,
}

impl Default for OutboxConfig {
    fn default() -> Self {
        Self {
            batch_events_max: 100,
            batch_bytes_max: 256 * 1024,
            window_events_max: 1_000,
            batches_in_flight_max: 1,
            backoff_ms_min: 500,
            backoff_ms_max: 60_000,
        }
    }
}

impl OutboxConfig {
    /// The nearest configuration that is inside the bounds of this file.
    fn clamped(self) -> Self {
        let backoff_ms_max = self.backoff_ms_max.clamp(1, BACKOFF_MS_MAX);
        Self {
            batch_events_max: self.batch_events_max.clamp(1, BATCH_EVENTS_MAX),
            batch_bytes_max: self.batch_bytes_max,
            window_events_max: self.window_events_max.clamp(1, WINDOW_EVENTS_MAX),
            batches_in_flight_max: self.batches_in_flight_max.max(1),
            backoff_ms_min: self.backoff_ms_min.clamp(1, backoff_ms_max),
            backoff_ms_max,
        }
    }
}

/// Events handed out together. Comes back through [`Outbox::answered`], whatever became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Counted from 1 since the start; for tracing, and so that no answer counts twice.
    pub id: u64,
    /// When it was handed out.
    pub sent_ns: u64,
    /// In the order of the log.
    pub events: Vec<(Position, EventRecord)>,
}

impl Batch {
    /// Names each verdict's event; verdicts are in the order of the batch, missing ones at its end.
    #[must_use]
    pub fn pair(&self, verdicts: Vec<Verdict>) -> Vec<(Position, Verdict)> {
        let positions = self.events.iter().map(|(position, _)| *position);
        positions.zip(verdicts).collect()
    }
}

/// What follows from an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// To be made durable, with the dead letters in the same commit.
    pub cursor: CursorRecord,
    /// Events that this sink will never take.
    pub dead_letters: Vec<DeadLetter>,
    /// When to call [`Outbox::next_batch`] again at the earliest, on the boot clock; `None`: now.
    pub retry_at_ns: Option<u64>,
}

/// What follows from sending a dead letter again (FWD-06).
#[derive(Clone, Debug, PartialEq)]
pub struct Resent {
    /// To be made durable in the same commit.
    pub cursor: CursorRecord,
    /// The sink holds the event now: the letter is settled.
    pub settled: bool,
    /// The letter as it now stands, if the sink refused it again.
    pub letter: Option<DeadLetter>,
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

/// Where one event beyond the watermark stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Waiting,
    InFlight,
    Finished,
}

/// One sink's progress. See the head of this file.
#[derive(Clone, Debug)]
pub struct Outbox {
    /// Counters and watermark; `sparse` stays empty here, `slots` has it.
    cursor: CursorRecord,
    config: OutboxConfig,
    /// Every event known beyond the watermark.
    slots: BTreeMap<Position, Slot>,
    /// No event up to here is missing in `slots`; the watermark cannot pass it.
    known_to: Position,
    /// Batches under way.
    in_flight: BTreeSet<u64>,
    last_batch: u64,
    circuit: Circuit,
    /// When the last failure was seen: a success of something sent before it proves nothing.
    failed_ns: u64,
    jitter: Jitter,
}

impl Outbox {
    /// Goes on from `cursor`. Equal seeds give equal waits; sinks and gateways should differ in it.
    #[must_use]
    pub fn new(cursor: CursorRecord, config: OutboxConfig, jitter_seed: u64) -> Self {
        let mut cursor = cursor;
        let slots = std::mem::take(&mut cursor.sparse)
            .into_iter()
            .filter(|position| *position > cursor.through)
            .map(|position| (position, Slot::Finished))
            .collect();
        Self {
            known_to: cursor.through,
            cursor,
            config: config.clamped(),
            slots,
            in_flight: BTreeSet::new(),
            last_batch: 0,
            circuit: Circuit::Ok,
            failed_ns: 0,
            jitter: Jitter::new(jitter_seed),
        }
    }

    /// The cursor as it stands: watermark, what is finished behind it, counters.
    #[must_use]
    pub fn cursor(&self) -> CursorRecord {
        let finished = self
            .slots
            .iter()
            .filter(|(_, slot)| **slot == Slot::Finished);
        CursorRecord {
            sparse: finished.map(|(position, _)| *position).collect(),
            ..self.cursor.clone()
        }
    }

    /// The events to offer begin behind this place.
    #[must_use]
    pub fn through(&self) -> Position {
        self.cursor.through
    }

    /// How many events [`Outbox::next_batch`] makes use of.
    #[must_use]
    pub fn window(&self) -> usize {
        self.config.window_events_max
    }

    /// Whether the sink answers.
    #[must_use]
    pub fn circuit(&self) -> &Circuit {
        &self.circuit
    }

    /// Tries made, one an event: the sum of the counters, which exclude each other (FWD-05).
    #[must_use]
    pub fn attempts(&self) -> u64 {
        let c = &self.cursor;
        c.accepted + c.duplicates + c.conflicts + c.malformed + c.retries
    }

    /// What to send now, if anything. `available` are the events behind [`Outbox::through`] in the
    /// order of the log, none left out that still exists, [`Outbox::window`] of them if there are so
    /// many.
    pub fn next_batch(
        &mut self,
        now: &Now,
        available: &[(Position, EventRecord)],
    ) -> Option<Batch> {
        self.learn(available);
        let room = self.room(now)?;
        let mut bytes = 0;
        let mut events = Vec::new();
        for (position, event) in available {
            if events.len() == room {
                break;
            }
            if self.slots.get(position) != Some(&Slot::Waiting) {
                continue;
            }
            bytes += event.body.len() + event.event_type.len() + EVENT_OVERHEAD_BYTES;
            if bytes > self.config.batch_bytes_max && !events.is_empty() {
                break;
            }
            events.push((*position, event.clone()));
        }
        if events.is_empty() {
            return None;
        }
        for (position, _) in &events {
            self.slots.insert(*position, Slot::InFlight);
        }
        self.last_batch += 1;
        self.in_flight.insert(self.last_batch);
        Some(Batch {
            id: self.last_batch,
            sent_ns: now.boottime_ns,
            events,
        })
    }

    /// Takes what the sink said of `batch`. An event that no answer names counts as `Retry`; an answer
    /// for an event that is not in the batch, a second one for the same event, and a second return of
    /// the same batch change nothing.
    pub fn answered(
        &mut self,
        now: &Now,
        batch: Batch,
        answers: Vec<(Position, Verdict)>,
    ) -> Progress {
        let mut dead_letters = Vec::new();
        if self.in_flight.remove(&batch.id) {
            let mut named = BTreeMap::new();
            for (position, verdict) in answers {
                named.entry(position).or_insert(verdict);
            }
            let sent_ns = batch.sent_ns;
            let mut finished = 0_usize;
            let mut failure: Option<(String, u64)> = None;
            let mut stopped = None;
            for (position, event) in batch.events {
                let verdict = named
                    .remove(&position)
                    .unwrap_or_else(|| Verdict::retry("the sink did not answer for this event"));
                self.count(&verdict);
                match verdict {
                    Verdict::Retry { reason, after_ms } => {
                        self.slots.insert(position, Slot::Waiting);
                        let asked = failure.as_ref().map_or(0, |(_, ms)| *ms);
                        failure = Some((reason, asked.max(after_ms.unwrap_or(0))));
                    }
                    Verdict::Stop { reason } => {
                        self.slots.insert(position, Slot::Waiting);
                        stopped = Some(reason);
                    }
                    verdict => {
                        finished += 1;
                        self.slots.insert(position, Slot::Finished);
                        dead_letters.extend(dead_letter(&self.cursor.sink, event, verdict));
                    }
                }
            }
            self.advance();
            self.judge(now, sent_ns, finished, failure);
            if let Some(reason) = stopped {
                self.stop(now, &reason);
            }
        }
        Progress {
            cursor: self.cursor(),
            dead_letters,
            retry_at_ns: self.next_ns(),
        }
    }

    /// Takes what the sink said of a dead letter that somebody sent again (FWD-06).
    pub fn resent(&mut self, letter: &DeadLetter, verdict: Verdict) -> Resent {
        self.count(&verdict);
        let settled = matches!(verdict, Verdict::Accepted | Verdict::Duplicate);
        Resent {
            cursor: self.cursor(),
            settled,
            letter: dead_letter(&self.cursor.sink, letter.event.clone(), verdict),
        }
    }

    /// Makes no more tries: something must be mended first, such as a missing permission.
    pub fn stop(&mut self, now: &Now, reason: &str) {
        self.circuit = Circuit::Stopped {
            since: *now,
            reason: bounded(reason, TEXT_BYTES_MAX),
        };
    }

    /// Tries again now, stopped or waiting.
    pub fn resume(&mut self) {
        self.circuit = Circuit::Ok;
    }

    /// When the next try may be made, on the boot clock; `None`: now, or not at all if stopped.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        match &self.circuit {
            Circuit::Retrying { next_ns, .. } => Some(*next_ns),
            Circuit::Ok | Circuit::Stopped { .. } => None,
        }
    }

    /// Takes note of events up to the window, and lets go of waiting ones that the journal dropped
    /// (FWD-04: a gap event says which).
    fn learn(&mut self, available: &[(Position, EventRecord)]) {
        let Some((last, _)) = available.last() else {
            return;
        };
        let offered = |position: &Position| {
            available
                .binary_search_by_key(position, |(position, _)| *position)
                .is_ok()
        };
        self.slots.retain(|position, slot| {
            *slot != Slot::Waiting || position > last || offered(position)
        });
        let mut known = self.slots.range(..=self.known_to).count();
        for (position, _) in available {
            if *position <= self.known_to {
                continue;
            }
            // What was finished before a restart, and is no longer offered, is counted when it is
            // passed: the window bounds all of it together, and can never be full of finished ones.
            let passed = self
                .slots
                .range((Excluded(self.known_to), Excluded(*position)));
            let passed: Vec<Position> = passed.map(|(position, _)| *position).collect();
            self.known_to = passed.last().copied().unwrap_or(self.known_to);
            known = (known + passed.len()).saturating_sub(self.advance());
            if known >= self.config.window_events_max {
                break;
            }
            self.slots.entry(*position).or_insert(Slot::Waiting);
            self.known_to = *position;
            known += 1;
        }
        self.advance();
    }

    /// How many events may be sent now.
    fn room(&self, now: &Now) -> Option<usize> {
        match &self.circuit {
            Circuit::Stopped { .. } => None,
            Circuit::Retrying {
                next_ns, failures, ..
            } => {
                let due = now.boottime_ns >= *next_ns && self.in_flight.is_empty();
                // After one failure the whole batch is tried again; a sink that fails twice in a row
                // is probed, so that a large batch is not sent over and over to nobody.
                due.then_some(match failures {
                    0 | 1 => self.config.batch_events_max,
                    _ => PROBE_EVENTS_MAX,
                })
            }
            Circuit::Ok => (self.in_flight.len() < self.config.batches_in_flight_max)
                .then_some(self.config.batch_events_max),
        }
    }

    /// Moves the watermark over everything that is finished without a hole; how many events that is.
    fn advance(&mut self) -> usize {
        let mut passed = 0;
        while let Some(first) = self.slots.first_entry() {
            if *first.get() != Slot::Finished || *first.key() > self.known_to {
                break;
            }
            self.cursor.through = first.remove_entry().0;
            passed += 1;
        }
        passed
    }

    fn count(&mut self, verdict: &Verdict) {
        let counter = match verdict {
            Verdict::Accepted => &mut self.cursor.accepted,
            Verdict::Duplicate => &mut self.cursor.duplicates,
            Verdict::Conflict { .. } => &mut self.cursor.conflicts,
            Verdict::Malformed { .. } => &mut self.cursor.malformed,
            Verdict::Retry { .. } | Verdict::Stop { .. } => &mut self.cursor.retries,
        };
        *counter += 1;
    }

    /// Opens or closes the circuit after a batch.
    fn judge(&mut self, now: &Now, sent_ns: u64, finished: usize, failure: Option<(String, u64)>) {
        let (before, first_since) = match &self.circuit {
            Circuit::Stopped { .. } => return,
            Circuit::Ok => (0, *now),
            Circuit::Retrying {
                failures, since, ..
            } => (*failures, *since),
        };
        let Some((reason, asked_ms)) = failure else {
            if before > 0 && sent_ns >= self.failed_ns {
                self.circuit = Circuit::Ok;
            }
            return;
        };
        // A sink that took part of the batch is there: its wait does not grow.
        let failures = if finished > 0 {
            1
        } else {
            before.saturating_add(1)
        };
        let wait_ms = self.jittered_ms(failures).max(asked_ms.min(BACKOFF_MS_MAX));
        self.failed_ns = now.boottime_ns;
        self.circuit = Circuit::Retrying {
            since: first_since,
            next_ns: now
                .boottime_ns
                .saturating_add(wait_ms.saturating_mul(NS_PER_MS)),
            failures,
            reason: bounded(&reason, TEXT_BYTES_MAX),
        };
    }

    /// Full jitter: anything from 1 ms to the exponential bound, so that gateways which lost the same
    /// sink do not come back to it together.
    fn jittered_ms(&mut self, failures: u32) -> u64 {
        let doublings = failures.saturating_sub(1).min(32);
        let bound = self
            .config
            .backoff_ms_min
            .saturating_mul(1 << doublings)
            .min(self.config.backoff_ms_max);
        1 + self.jitter.below(bound)
    }
}

/// The dead letter that a verdict makes, if it makes one.
fn dead_letter(sink: &str, event: EventRecord, verdict: Verdict) -> Option<DeadLetter> {
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
fn bounded(text: &str, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
