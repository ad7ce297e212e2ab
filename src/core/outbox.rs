//! Owns: one sink's progress through the events: what to read, what to send next, what an answer finishes,
//! when to try again (FWD-01 to FWD-05).
//! May call: record, time, jitter, and the files below.
//! Never: reach a sink; call an event finished that no answer named; let one sink's state depend on
//! another's.
//!
//! One [`Outbox`] a sink. The shell reads what [`Outbox::want`] names, offers it, hands the batches it gets
//! to the sink's lanes, and brings back what the sink said. Of what follows, [`Outbox::record`] and the dead
//! letters go into one commit. Killed before that commit, the gateway sends the same events under the same
//! keys again, and the sink answers `duplicate` (A14); the other order would lose them.
//!
//! # Lanes
//! All events of a source go by one lane, one batch at a time, so a source's events keep their order. A lane
//! that fails waits alone as long as another one succeeds; when none does the whole sink counts as away, and
//! one lane at a time tries.
//!
//! # Two tracks
//! After an outage of days a fresh event would wait behind all of them. So when the oldest event that waits
//! is old, a second track begins at the head of the log: fresh events take the larger part of every batch,
//! the backlog the rest, and all of the room that is left over. They are one again when the backlog is
//! drained. Within a track the order is that of the log; between them it is not, and a sink tells events
//! apart by their key alone. A sink that is a file keeps to one track.
//!
//! What is finished is a watermark plus the ranges finished beyond it, so a restart resends only what was
//! never finished, however far ahead the second track is.

mod lanes;
mod ranges;
mod sayings;
mod tracks;

use super::jitter::Jitter;
use super::record::{
    Ahead, CursorRecord, DeadLetter, EventRecord, Position, SinkRecord, TEXT_BYTES_MAX,
};
use super::time::Now;
pub use lanes::{BACKLOG_SHARE_ONE_IN, PROBE_EVENTS_MAX};
use lanes::{LaneState, Outcome};
pub use sayings::{Circuit, DEAD_LETTERS_MAX, KEPT_BYTES_MAX, KEPT_LETTERS_MAX, Verdict};
use sayings::{bounded, dead_letter};
use std::collections::{BTreeMap, BTreeSet};
pub use tracks::{LIVE_AGE_MS_MAX, Want};
use tracks::{Slot, Track, weight};

/// Most events of one track that may be looked at beyond what is finished; bounds the cursor's record.
pub const WINDOW_EVENTS_MAX: usize = 10_000;
/// Most events in one batch.
pub const BATCH_EVENTS_MAX: usize = 1_000;
/// Longest wait before a retry that a configuration or a sink may ask for, in milliseconds.
pub const BACKOFF_MS_MAX: u64 = 15 * 60 * 1000;

/// Bounds of one sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxConfig {
    /// Most events in a batch, 1 to [`BATCH_EVENTS_MAX`].
    pub batch_events_max: usize,
    /// Most bytes in a batch; one event larger than this goes alone.
    pub batch_bytes_max: usize,
    /// Most events of a track beyond what is finished, 1 to [`WINDOW_EVENTS_MAX`].
    pub window_events_max: usize,
    /// Nothing more is read while so many bytes of events are at hand.
    pub window_bytes_max: usize,
    /// Batches under way at once, one a lane.
    pub lanes: usize,
    /// Fresh events may overtake a backlog.
    pub live: bool,
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
            window_bytes_max: 4 << 20,
            lanes: 1,
            live: false,
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
            window_events_max: self.window_events_max.clamp(1, WINDOW_EVENTS_MAX),
            window_bytes_max: self.window_bytes_max.max(1),
            lanes: self.lanes.max(1),
            backoff_ms_min: self.backoff_ms_min.clamp(1, backoff_ms_max),
            backoff_ms_max,
            ..self
        }
    }
}

/// Events handed out together. Comes back through [`Outbox::answered`], whatever became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Counted from 1 since the start; for tracing, and so that no answer counts twice.
    pub id: u64,
    /// By which lane.
    pub lane: usize,
    /// When it was handed out.
    pub sent_ns: u64,
    /// Oldest first in each track, the fresh ones before the backlog.
    pub events: Vec<(Position, EventRecord)>,
}

/// One sink's progress. See the head of this file.
#[derive(Clone, Debug)]
pub struct Outbox {
    /// Counters and watermark; `sparse` stays empty.
    cursor: CursorRecord,
    /// Counters; `ahead` and `live_from` stay empty.
    more: SinkRecord,
    config: OutboxConfig,
    /// Every event known beyond what is finished, of both tracks.
    slots: BTreeMap<Position, Slot>,
    /// Finished ranges that reading has not reached, by where they begin.
    ahead: BTreeMap<Position, Ahead>,
    backlog: Track,
    live: Option<Track>,
    /// Bytes of what waits.
    bytes: usize,
    lanes: Vec<LaneState>,
    /// Where the search for a free lane begins, so that none starves.
    next_lane: usize,
    /// Batches under way.
    in_flight: BTreeSet<u64>,
    /// Batches under way that were let go of.
    void: BTreeSet<u64>,
    last_batch: u64,
    circuit: Circuit,
    /// Dead letters that stand, as far as it knows.
    letters: u64,
    /// When the last failure was seen: a success of something sent before it proves nothing.
    failed_ns: u64,
    /// When the sink last took something.
    ok_ns: Option<u64>,
    jitter: Jitter,
}

impl Outbox {
    /// Goes on from `cursor` and `more`. Equal seeds give equal waits; sinks and gateways should differ in it.
    #[must_use]
    pub fn new(
        cursor: CursorRecord,
        more: SinkRecord,
        config: OutboxConfig,
        jitter_seed: u64,
    ) -> Self {
        let (mut cursor, mut more, config) = (cursor, more, config.clamped());
        let single = |at: Position| Ahead {
            from: at,
            to: at,
            events: 1,
        };
        let ahead = std::mem::take(&mut cursor.sparse).into_iter().map(single);
        let ahead = ahead.chain(std::mem::take(&mut more.ahead));
        let mut outbox = Self {
            ahead: ahead
                .filter(|range| range.to > cursor.through)
                .map(|range| (range.from, range))
                .collect(),
            backlog: Track::at(cursor.through),
            live: more.live_from.take().map(Track::at),
            more: SinkRecord {
                sink: cursor.sink.clone(),
                ..more
            },
            cursor,
            lanes: vec![LaneState::default(); config.lanes],
            config,
            slots: BTreeMap::new(),
            bytes: 0,
            next_lane: 0,
            in_flight: BTreeSet::new(),
            void: BTreeSet::new(),
            last_batch: 0,
            circuit: Circuit::Ok,
            letters: 0,
            failed_ns: 0,
            ok_ns: None,
            jitter: Jitter::new(jitter_seed),
        };
        if let Some(live) = &mut outbox.live
            && let Some(done) = outbox.ahead.remove(&live.start)
        {
            (live.through, live.known_to, live.passed) = (done.to, done.to, done.events);
        }
        outbox.advance();
        outbox
    }

    /// Progress as it stands, to be made durable in one commit with the dead letters that came with it.
    #[must_use]
    pub fn record(&self) -> (CursorRecord, SinkRecord) {
        let more = SinkRecord {
            ahead: self.ranges(),
            live_from: self.live.map(|live| live.start),
            ..self.more.clone()
        };
        (self.cursor.clone(), more)
    }

    /// Every event up to here is finished.
    #[must_use]
    pub fn through(&self) -> Position {
        self.cursor.through
    }

    /// How many events are finished behind [`Outbox::through`].
    #[must_use]
    pub fn finished_ahead(&self) -> u64 {
        self.ranges().iter().map(|range| range.events).sum()
    }

    /// Fresh events overtake a backlog at the moment.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.live.is_some()
    }

    /// Batches under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Tries made, one an event: the sum of the counters, which exclude each other (FWD-05).
    #[must_use]
    pub fn attempts(&self) -> u64 {
        let c = &self.cursor;
        c.accepted + c.duplicates + c.conflicts + c.malformed + c.retries
    }

    /// Takes what the sink said of `batch`, in its order; the dead letters that come of it. An event that no
    /// verdict names counts as `Retry`; a second return of the same batch changes nothing.
    pub fn answered(&mut self, now: &Now, batch: Batch, verdicts: Vec<Verdict>) -> Vec<DeadLetter> {
        let lane = batch.lane.min(self.lanes.len() - 1);
        let mut dead_letters = Vec::new();
        let counts = self.in_flight.remove(&batch.id);
        if counts || self.void.remove(&batch.id) {
            self.lanes[lane].busy = false;
        }
        if !counts {
            return dead_letters;
        }
        let mut outcome = Outcome {
            lane,
            sent_ns: batch.sent_ns,
            finished: 0,
            failure: None,
        };
        let mut stopped = None;
        let mut verdicts = verdicts.into_iter();
        for (position, event) in batch.events {
            let verdict = verdicts
                .next()
                .unwrap_or_else(|| Verdict::retry("the sink did not answer for this event"));
            self.count(&verdict);
            match verdict {
                Verdict::Retry { reason, after_ms } => {
                    self.wait_again(lane, position, event);
                    let asked = outcome.failure.as_ref().map_or(0, |(_, ms)| *ms);
                    outcome.failure = Some((reason, asked.max(after_ms.unwrap_or(0))));
                }
                Verdict::Stop { reason } => {
                    self.wait_again(lane, position, event);
                    stopped = Some(reason);
                }
                verdict => {
                    outcome.finished += 1;
                    self.slots.insert(position, Slot::Finished);
                    dead_letters.extend(self.dead_letter(event, verdict));
                }
            }
        }
        self.advance();
        self.judge(now, outcome);
        if let Some(reason) = stopped {
            self.stop(now, &reason);
        }
        dead_letters
    }

    fn wait_again(&mut self, lane: usize, position: Position, event: EventRecord) {
        self.bytes += weight(&event);
        self.lanes[lane].waiting.insert(position);
        self.slots.insert(position, Slot::Waiting(event));
    }

    /// Takes what the sink said of a dead letter that somebody sent again (FWD-06): the letter as it now
    /// stands, if the sink refused it again.
    pub fn resent(&mut self, letter: &DeadLetter, verdict: Verdict) -> Option<DeadLetter> {
        self.count(&verdict);
        let again = matches!(verdict, Verdict::Retry { .. } | Verdict::Stop { .. });
        self.more.resent += u64::from(!again);
        self.dead_letter(letter.event.clone(), verdict)
    }

    /// So many dead letters stand. With too many the sink stands still until a person has settled some (CAP-05).
    pub fn letters_stand(&mut self, now: &Now, letters: u64) {
        self.letters = letters;
        if letters >= DEAD_LETTERS_MAX {
            let reason = format!(
                "{letters} dead letters stand, and at most {DEAD_LETTERS_MAX} may: settle dead letters \
                 first (mend, resend or drop them), then resume the sink"
            );
            self.stop(now, &reason);
        }
    }

    fn dead_letter(&mut self, event: EventRecord, verdict: Verdict) -> Option<DeadLetter> {
        let mut letter = dead_letter(&self.cursor.sink, event, verdict)?;
        if self.letters >= KEPT_LETTERS_MAX {
            letter.kept = None;
        }
        self.letters += 1;
        Some(letter)
    }

    /// Goes back: everything behind `to` is sent again, `events` of which were finished. What is under way
    /// is let go of: its answers change nothing, and it is sent again.
    pub fn rewind(&mut self, to: Position, events: u64) {
        let (mut cursor, mut more) = self.record();
        cursor.through = to;
        more.rewound += events;
        (more.ahead, more.live_from) = (Vec::new(), None);
        let fresh = Self::new(cursor, more, self.config, 0);
        let void = self.void.union(&self.in_flight).copied().collect();
        let busy = self.lanes.iter().map(|lane| lane.busy);
        let lanes = busy.map(|busy| LaneState {
            busy,
            ..LaneState::default()
        });
        *self = Self {
            lanes: lanes.collect(),
            void,
            last_batch: self.last_batch,
            circuit: self.circuit.clone(),
            letters: self.letters,
            failed_ns: self.failed_ns,
            ok_ns: self.ok_ns,
            jitter: self.jitter.clone(),
            ..fresh
        };
    }

    /// Makes no more tries: something must be mended first, such as a missing permission.
    pub fn stop(&mut self, now: &Now, reason: &str) {
        let since = match &self.circuit {
            Circuit::Stopped { since, .. } => *since,
            _ => *now,
        };
        self.circuit = Circuit::Stopped {
            since,
            reason: bounded(reason, TEXT_BYTES_MAX),
        };
    }

    /// Tries again now, stopped or waiting.
    pub fn resume(&mut self) {
        self.circuit = Circuit::Ok;
        for lane in &mut self.lanes {
            lane.forget_failures();
        }
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
}

#[cfg(test)]
#[path = "outbox/tests.rs"]
mod tests;
