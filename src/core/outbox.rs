//! Owns: one sink's progress through the events: what to read, what to send next, what an answer finishes,
//! when to try again (FWD-01 to FWD-05).
//! May call: record, time, jitter, `outbox_ranges`.
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

use super::ids::CommitNo;
use super::jitter::Jitter;
use super::outbox_ranges::Merger;
use super::record::{
    Ahead, CursorRecord, DeadLetter, EventRecord, Position, SinkRecord, TEXT_BYTES_MAX,
};
use super::time::{NS_PER_MS, NS_PER_S, Now, Stamp, elapsed_ns};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// Most events of one track that may be looked at beyond what is finished; bounds the cursor's record.
pub const WINDOW_EVENTS_MAX: usize = 10_000;
/// Most events in one batch.
pub const BATCH_EVENTS_MAX: usize = 1_000;
/// Events sent to a failing sink to find out whether it is back.
pub const PROBE_EVENTS_MAX: usize = 1;
/// Longest wait before a retry that a configuration or a sink may ask for, in milliseconds.
pub const BACKOFF_MS_MAX: u64 = 15 * 60 * 1000;
/// Most bytes kept of what a sink says it holds under a key.
pub const KEPT_BYTES_MAX: usize = 64 * 1024;
/// An event that has waited for so long is backlog, and what is new does not queue behind it, in milliseconds.
pub const LIVE_AGE_MS_MAX: u64 = 10_000;
/// While fresh events and backlog both wait, one in so many of a batch is backlog.
pub const BACKLOG_SHARE_ONE_IN: usize = 4;
/// A second track is not begun anew while so many finished ranges stand.
const AHEAD_RANGES_MAX: usize = 64;
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

/// What to read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Events behind this place.
    pub after: Position,
    /// At most so many.
    pub events_max: usize,
    /// At most so many bytes, or one event.
    pub bytes_max: usize,
    live: bool,
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
#[derive(Clone, Debug)]
enum Slot {
    Waiting(EventRecord),
    InFlight,
    Finished,
    /// Everything from here to its place was finished before it was read.
    Passed(Ahead),
}

/// What is known of the log, as far as one track goes.
#[derive(Clone, Copy, Debug)]
struct Track {
    /// It holds what lies behind this place, up to where the next one starts.
    start: Position,
    /// No event of the track up to here is missing in `slots`.
    known_to: Position,
    /// How many of its events are in `slots`.
    events: usize,
    /// Of the second track: everything up to here is finished, and how many that is.
    through: Position,
    passed: u64,
}

impl Track {
    fn at(start: Position) -> Self {
        Self {
            start,
            known_to: start,
            events: 0,
            through: start,
            passed: 0,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct LaneState {
    waiting: BTreeSet<Position>,
    busy: bool,
    /// Fresh events sent in a row while backlog waited, where a batch is one event.
    live_run: usize,
    /// Failed tries in a row.
    failures: u32,
    next_ns: u64,
    trouble: Option<(Stamp, String)>,
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
    /// When the last failure was seen: a success of something sent before it proves nothing.
    failed_ns: u64,
    /// When the sink last took something.
    ok_ns: Option<u64>,
    jitter: Jitter,
}

/// What became of a batch, for the circuit.
struct Outcome {
    lane: usize,
    sent_ns: u64,
    finished: usize,
    failure: Option<(String, u64)>,
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

    /// Whether the sink answers; the worst lane, if only some do.
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        let lanes = self.lanes.iter().enumerate();
        let worst = lanes.max_by_key(|(_, lane)| lane.failures);
        match (&self.circuit, worst) {
            (Circuit::Ok, Some((number, lane))) if lane.failures > 0 => {
                let Some((since, reason)) = &lane.trouble else {
                    return Circuit::Ok;
                };
                let which = match self.lanes.len() {
                    1 => String::new(),
                    lanes => format!("lane {} of {lanes}: ", number + 1),
                };
                Circuit::Retrying {
                    since: *since,
                    next_ns: lane.next_ns,
                    failures: lane.failures,
                    reason: format!("{which}{reason}"),
                }
            }
            _ => self.circuit.clone(),
        }
    }

    /// Tries made, one an event: the sum of the counters, which exclude each other (FWD-05).
    #[must_use]
    pub fn attempts(&self) -> u64 {
        let c = &self.cursor;
        c.accepted + c.duplicates + c.conflicts + c.malformed + c.retries
    }

    /// What to read next, if there is room for it; the log is durable up to `head`. Comes back through
    /// [`Outbox::offer`].
    #[must_use]
    pub fn want(&self, head: CommitNo) -> Option<Want> {
        if matches!(self.circuit, Circuit::Stopped { .. })
            || self.bytes >= self.config.window_bytes_max
        {
            return None;
        }
        let wanted = |live: bool, track: &Track, end: Position| {
            let room = self.config.window_events_max.saturating_sub(track.events);
            // Read by the batch, not by the event.
            let enough = self
                .config
                .batch_events_max
                .min(self.config.window_events_max / 2);
            (track.known_to < end && room > 0 && room >= enough).then(|| Want {
                after: track.known_to,
                events_max: room,
                bytes_max: self.config.window_bytes_max - self.bytes,
                live,
            })
        };
        let live = self.live.as_ref();
        let fresh = live.and_then(|track| wanted(true, track, end_of(head)));
        let end = live.map_or(end_of(head), |live| live.start);
        fresh.or_else(|| wanted(false, &self.backlog, end))
    }

    /// Takes the events that were read for `want`, in the order of the log, none left out that still exists;
    /// `read_to` if the log was read to that commit's end.
    pub fn offer(
        &mut self,
        want: &Want,
        events: Vec<(Position, EventRecord)>,
        read_to: Option<CommitNo>,
    ) {
        let end = match (&self.live, want.live) {
            (Some(live), false) => live.start,
            _ => Position::MAX,
        };
        let Some(mut track) = self.track(want.live).filter(|t| t.known_to == want.after) else {
            return;
        };
        let mut complete = read_to.map(end_of);
        for (position, event) in events {
            if position > end {
                complete = Some(end);
                break;
            }
            if position > track.known_to {
                track.known_to = self.learn(position, event, &mut track.events);
            }
        }
        track.known_to = track.known_to.max(complete.unwrap_or_default().min(end));
        // Ranges that were passed without meeting an event of theirs: the journal keeps none of it any more.
        let known_to = track.known_to;
        let (from, to) = (want.after, known_to);
        self.ahead
            .retain(|_, range| range.to <= from || range.to > to);
        match &mut self.live {
            Some(live) if want.live => *live = track,
            _ => self.backlog = track,
        }
        self.advance();
    }

    fn track(&self, live: bool) -> Option<Track> {
        if live { self.live } else { Some(self.backlog) }
    }

    /// Files one event that was read; up to where the log is known then.
    fn learn(&mut self, position: Position, event: EventRecord, events: &mut usize) -> Position {
        let before = self.ahead.range(..=position).next_back();
        if let Some(range) = before.map(|(_, range)| *range)
            && range.to >= position
        {
            self.ahead.remove(&range.from);
            self.slots.insert(range.to, Slot::Passed(range));
            return range.to;
        }
        *events += 1;
        // One that was under way when its track was given up is there already.
        if !self.slots.contains_key(&position) {
            self.bytes += weight(&event);
            let lane = lane_of(&event.key.source, self.lanes.len());
            self.lanes[lane].waiting.insert(position);
            self.slots.insert(position, Slot::Waiting(event));
        }
        position
    }

    /// Lets fresh events overtake if what waits is old; the log is durable up to `head`.
    pub fn split_if_old(&mut self, now: &Now, head: CommitNo) {
        if !self.config.live || self.circuit != Circuit::Ok || self.ahead.len() >= AHEAD_RANGES_MAX
        {
            return;
        }
        let track = self.live.unwrap_or(self.backlog);
        let behind = (Excluded(track.start), Unbounded);
        let firsts = self
            .lanes
            .iter()
            .filter_map(|lane| lane.waiting.range(behind).next());
        let Some(Slot::Waiting(oldest)) = firsts.min().and_then(|first| self.slots.get(first))
        else {
            return;
        };
        let age_us = now.wall_us.saturating_sub(oldest.wall_us);
        let soon_gone =
            track.events <= self.config.batch_events_max && track.known_to >= end_of(head);
        if age_us < i64::try_from(LIVE_AGE_MS_MAX * 1_000).unwrap_or(i64::MAX) || soon_gone {
            return;
        }
        if self.live.is_some() {
            self.give_up_live();
        }
        self.live = Some(Track::at(end_of(head)));
    }

    /// The second track has become backlog itself: what it finished is kept, the rest is read again in turn.
    fn give_up_live(&mut self) {
        let ranges = self.ranges();
        let Some(live) = self.live.take() else { return };
        self.ahead = ranges
            .into_iter()
            .filter(|range| range.to > self.backlog.known_to)
            .map(|range| (range.from, range))
            .collect();
        let known_to = self.backlog.known_to;
        let bytes = &mut self.bytes;
        let lanes = &mut self.lanes;
        self.slots.retain(|position, slot| match slot {
            _ if *position <= known_to => true,
            Slot::InFlight => true,
            Slot::Waiting(event) if *position > live.start => {
                *bytes -= weight(event);
                for lane in lanes.iter_mut() {
                    lane.waiting.remove(position);
                }
                false
            }
            Slot::Waiting(_) => true,
            Slot::Finished | Slot::Passed(_) => false,
        });
    }

    /// What to send now, if anything.
    pub fn next_batch(&mut self, now: &Now) -> Option<Batch> {
        let (lane, room) = self.free_lane(now)?;
        let events = self.fill(lane, room);
        self.lanes[lane].busy = true;
        self.next_lane = lane + 1;
        self.last_batch += 1;
        self.in_flight.insert(self.last_batch);
        Some(Batch {
            id: self.last_batch,
            lane,
            sent_ns: now.boottime_ns,
            events,
        })
    }

    /// A lane that has something to send and may, and how many events that may be.
    fn free_lane(&self, now: &Now) -> Option<(usize, usize)> {
        // After one failure the whole batch is tried again; what fails twice in a row is probed, so that a
        // large batch is not sent over and over to nobody.
        let room = |failures: u32| match failures {
            0 | 1 => self.config.batch_events_max,
            _ => PROBE_EVENTS_MAX,
        };
        let count = self.lanes.len();
        let mut order = (0..count).map(|n| (self.next_lane + n) % count);
        match &self.circuit {
            Circuit::Stopped { .. } => None,
            Circuit::Retrying {
                next_ns, failures, ..
            } => {
                let due = now.boottime_ns >= *next_ns && self.in_flight.is_empty();
                let lane = order.find(|n| {
                    let lane = &self.lanes[*n];
                    !lane.busy && !lane.waiting.is_empty()
                });
                lane.filter(|_| due).map(|n| (n, room(*failures)))
            }
            Circuit::Ok => order
                .find(|n| {
                    let lane = &self.lanes[*n];
                    !lane.busy && !lane.waiting.is_empty() && lane.next_ns <= now.boottime_ns
                })
                .map(|n| (n, room(self.lanes[n].failures))),
        }
    }

    /// Takes a batch out of what waits for the lane.
    fn fill(&mut self, number: usize, room: usize) -> Vec<(Position, EventRecord)> {
        let start = self.live.map_or(Position::MAX, |live| live.start);
        let lane = &mut self.lanes[number];
        let fresh = lane.waiting.range((Excluded(start), Unbounded)).next();
        let both = fresh.is_some() && lane.waiting.first().is_some_and(|first| *first <= start);
        let share = match room {
            _ if !both => room,
            1 => usize::from(lane.live_run + 1 < BACKLOG_SHARE_ONE_IN),
            _ => room - room.div_ceil(BACKLOG_SHARE_ONE_IN),
        };
        lane.live_run = if both && share == 1 {
            lane.live_run + 1
        } else {
            0
        };
        let bytes_max = self.config.batch_bytes_max;
        let mut events = Vec::new();
        let fresh_bytes_max = if both {
            bytes_max - bytes_max / BACKLOG_SHARE_ONE_IN
        } else {
            bytes_max
        };
        let mut bytes = 0;
        self.take(
            number,
            (start, Position::MAX),
            share,
            (&mut bytes, fresh_bytes_max),
            &mut events,
        );
        self.take(
            number,
            (Position::default(), start),
            room,
            (&mut bytes, bytes_max),
            &mut events,
        );
        self.bytes -= bytes;
        events
    }

    /// Moves what waits behind `span.0`, up to `span.1`, into `events`, until there are `count` or `bytes_max`
    /// is reached.
    fn take(
        &mut self,
        lane: usize,
        span: (Position, Position),
        count: usize,
        (bytes, bytes_max): (&mut usize, usize),
        events: &mut Vec<(Position, EventRecord)>,
    ) {
        let waiting = &mut self.lanes[lane].waiting;
        while events.len() < count {
            let next = waiting.range((Excluded(span.0), Unbounded)).next().copied();
            let Some(position) = next.filter(|next| *next <= span.1) else {
                return;
            };
            let Some(slot) = self.slots.get_mut(&position) else {
                waiting.remove(&position);
                continue;
            };
            if let Slot::Waiting(event) = slot
                && !events.is_empty()
                && *bytes + weight(event) > bytes_max
            {
                return;
            }
            waiting.remove(&position);
            if let Slot::Waiting(event) = std::mem::replace(slot, Slot::InFlight) {
                *bytes += weight(&event);
                events.push((position, event));
            }
        }
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
                    dead_letters.extend(dead_letter(&self.cursor.sink, event, verdict));
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

    /// Takes a lane for something else than a batch, if it is free.
    pub fn hold(&mut self, lane: usize) -> bool {
        let free = self.lanes.get_mut(lane).filter(|lane| !lane.busy);
        free.map(|lane| lane.busy = true).is_some()
    }

    /// The lane that was held is free again.
    pub fn release(&mut self, lane: usize) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.busy = false;
        }
    }

    fn wait_again(&mut self, lane: usize, position: Position, event: EventRecord) {
        self.bytes += weight(&event);
        self.lanes[lane].waiting.insert(position);
        self.slots.insert(position, Slot::Waiting(event));
    }

    /// The way of a source's events.
    #[must_use]
    pub fn lane_of(&self, source: &str) -> usize {
        lane_of(source, self.lanes.len())
    }

    /// Takes what the sink said of a dead letter that somebody sent again (FWD-06): the letter as it now
    /// stands, if the sink refused it again.
    pub fn resent(&mut self, letter: &DeadLetter, verdict: Verdict) -> Option<DeadLetter> {
        self.count(&verdict);
        let again = matches!(verdict, Verdict::Retry { .. } | Verdict::Stop { .. });
        self.more.resent += u64::from(!again);
        dead_letter(&self.cursor.sink, letter.event.clone(), verdict)
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

    /// When something that waits for a retry may next be sent, on the boot clock.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        match &self.circuit {
            Circuit::Retrying { next_ns, .. } => Some(*next_ns),
            Circuit::Stopped { .. } => None,
            Circuit::Ok => {
                let failing = self
                    .lanes
                    .iter()
                    .filter(|lane| lane.failures > 0 && !lane.busy);
                failing.map(|lane| lane.next_ns).min()
            }
        }
    }

    /// What is finished beyond the watermark.
    fn ranges(&self) -> Vec<Ahead> {
        let live = self.live;
        let mut merger = Merger::default();
        if let Some(live) = live.filter(|live| live.passed > 0) {
            merger.add(Ahead {
                from: live.start,
                to: live.through,
                events: live.passed,
            });
        }
        for range in self.ahead.values() {
            merger.add(*range);
        }
        // Neighbours in `slots` are neighbours in the log where all of it is known.
        let whole = |position: Position| match live {
            Some(live) if position > live.start => (position <= live.known_to).then_some(true),
            _ => (position <= self.backlog.known_to).then_some(false),
        };
        let mut last = None;
        for (position, slot) in &self.slots {
            let here = whole(*position);
            let joins = last.is_some() && last == here;
            last = here;
            let range = match slot {
                Slot::Waiting(_) | Slot::InFlight => {
                    last = None;
                    continue;
                }
                Slot::Passed(range) => *range,
                Slot::Finished => Ahead {
                    from: *position,
                    to: *position,
                    events: 1,
                },
            };
            if joins {
                merger.extend(range);
            } else {
                merger.add(range);
            }
        }
        merger.sorted()
    }

    /// Moves the watermark, and the second track's beginning, over everything that is finished without a hole.
    fn advance(&mut self) {
        while let Some(first) = self.slots.first_entry()
            && *first.key() <= self.backlog.known_to
        {
            match first.get() {
                Slot::Finished => self.backlog.events = self.backlog.events.saturating_sub(1),
                Slot::Passed(_) => {}
                Slot::Waiting(_) | Slot::InFlight => break,
            }
            self.cursor.through = first.remove_entry().0;
        }
        let Some(mut live) = self.live.take() else {
            return;
        };
        while let Some((position, slot)) =
            self.slots.range((Excluded(live.start), Unbounded)).next()
            && *position <= live.known_to
        {
            match slot {
                Slot::Finished => {
                    live.events = live.events.saturating_sub(1);
                    live.passed += 1;
                }
                Slot::Passed(range) => live.passed += range.events,
                Slot::Waiting(_) | Slot::InFlight => break,
            }
            live.through = *position;
            self.slots.remove(&live.through);
        }
        let drained = self.backlog.known_to >= live.start
            && self
                .slots
                .first_key_value()
                .is_none_or(|(first, _)| *first > live.start);
        if !drained {
            self.live = Some(live);
            return;
        }
        if live.passed > 0 {
            self.cursor.through = live.through;
        }
        self.backlog = Track {
            start: Position::default(),
            ..live
        };
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

    /// Opens or closes the circuit, and the lane's own, after a batch.
    fn judge(&mut self, now: &Now, outcome: Outcome) {
        let Outcome {
            lane,
            sent_ns,
            finished,
            failure,
        } = outcome;
        if finished > 0 {
            self.ok_ns = Some(now.boottime_ns);
        }
        // A sink that took part of the batch is there.
        let is_back = finished > 0 && sent_ns >= self.failed_ns;
        if is_back && matches!(self.circuit, Circuit::Retrying { .. }) {
            self.circuit = Circuit::Ok;
        }
        let Some((reason, asked_ms)) = failure else {
            if finished > 0 {
                self.lanes[lane].forget_failures();
            }
            return;
        };
        let failures = match finished {
            0 => self.lanes[lane].failures.saturating_add(1),
            _ => 1,
        };
        let reason = bounded(&reason, TEXT_BYTES_MAX);
        let alone = finished > 0 || self.ok_ns.is_some_and(|ok_ns| ok_ns > sent_ns);
        let (before, first_since) = match &self.circuit {
            Circuit::Stopped { .. } => return,
            Circuit::Ok => (0, *now),
            // Sent before the failure that is known: the same outage, not another try.
            Circuit::Retrying { .. } if sent_ns <= self.failed_ns => return,
            Circuit::Retrying {
                failures, since, ..
            } => (*failures, *since),
        };
        let tries = if alone {
            failures
        } else {
            before.saturating_add(1)
        };
        let wait_ms = self.jittered_ms(tries).max(asked_ms.min(BACKOFF_MS_MAX));
        let next_ns = now
            .boottime_ns
            .saturating_add(wait_ms.saturating_mul(NS_PER_MS));
        if alone {
            let lane = &mut self.lanes[lane];
            lane.failures = failures;
            lane.next_ns = next_ns;
            let since = lane.trouble.take().map_or(*now, |(since, _)| since);
            lane.trouble = Some((since, reason));
            return;
        }
        self.failed_ns = now.boottime_ns;
        self.circuit = Circuit::Retrying {
            since: first_since,
            next_ns,
            failures: tries,
            reason,
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

impl LaneState {
    fn forget_failures(&mut self) {
        self.failures = 0;
        self.next_ns = 0;
        self.trouble = None;
    }
}

/// The place behind everything of commit `no`.
fn end_of(no: CommitNo) -> Position {
    Position {
        no,
        index: u32::MAX,
    }
}

/// FNV-1a of the source: the same lane through every restart with as many lanes.
fn lane_of(source: &str, lanes: usize) -> usize {
    let hash = source
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    usize::try_from(hash % lanes.max(1) as u64).unwrap_or(0)
}

/// Bytes that an event counts as.
fn weight(event: &EventRecord) -> usize {
    event.body.len() + event.event_type.len() + EVENT_OVERHEAD_BYTES
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
