//! Owns: the two tracks through the log: what is read, what is known, what is finished without a hole.
//! May call: record, time, ranges.
//! Never: move the watermark over an event that is not finished, or that was not read.

use super::lanes::lane_of;
use super::ranges::Merger;
use super::{Circuit, Outbox};
use crate::core::ids::CommitNo;
use crate::core::record::{Ahead, EventRecord, Position};
use crate::core::time::Now;
use crate::seeded::{self, Fault};
use std::ops::Bound::{Excluded, Unbounded};

/// An event that has waited for so long is backlog, and what is new does not queue behind it, in milliseconds.
pub const LIVE_AGE_MS_MAX: u64 = 10_000;
/// A second track is not begun anew while so many finished ranges stand.
pub(super) const AHEAD_RANGES_MAX: usize = 64;
/// Bytes that an event takes besides its texts, roughly.
const EVENT_OVERHEAD_BYTES: usize = 256;

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

/// Where one event beyond the watermark stands.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    Waiting(EventRecord),
    InFlight,
    Finished,
    /// Everything from here to its place was finished before it was read.
    Passed(Ahead),
}

/// What is known of the log, as far as one track goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    /// It holds what lies behind this place, up to where the next one starts.
    pub(super) start: Position,
    /// No event of the track up to here is missing in `slots`.
    pub(super) known_to: Position,
    /// How many of its events are in `slots`.
    pub(super) events: usize,
    /// Of the second track: everything up to here is finished, and how many that is.
    pub(super) through: Position,
    pub(super) passed: u64,
}

impl Track {
    pub(super) fn at(start: Position) -> Self {
        Self {
            start,
            known_to: start,
            events: 0,
            through: start,
            passed: 0,
        }
    }
}

impl Outbox {
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

    pub(super) fn track(&self, live: bool) -> Option<Track> {
        if live { self.live } else { Some(self.backlog) }
    }

    /// Files one event that was read; up to where the log is known then.
    pub(super) fn learn(
        &mut self,
        position: Position,
        event: EventRecord,
        events: &mut usize,
    ) -> Position {
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
    pub(super) fn give_up_live(&mut self) {
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

    /// What is finished beyond the watermark.
    pub(super) fn ranges(&self) -> Vec<Ahead> {
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
    pub(super) fn advance(&mut self) {
        while let Some(first) = self.slots.first_entry()
            && *first.key() <= self.backlog.known_to
        {
            match first.get() {
                Slot::Finished => self.backlog.events = self.backlog.events.saturating_sub(1),
                Slot::Passed(_) => {}
                Slot::InFlight if seeded::is_on(Fault::CursorBeforeAnswer) => {}
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
}

/// The place behind everything of commit `no`.
pub(super) fn end_of(no: CommitNo) -> Position {
    Position {
        no,
        index: u32::MAX,
    }
}

/// Bytes that an event counts as.
pub(super) fn weight(event: &EventRecord) -> usize {
    event.body.len() + event.event_type.len() + EVENT_OVERHEAD_BYTES
}
