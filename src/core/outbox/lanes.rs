//! Owns: the lanes: what goes by which, in what share, and when a failing lane or sink is tried again.
//! May call: record, time.
//! Never: put two batches on a lane, or send to a sink that is away but by one lane.

use super::tracks::{Slot, weight};
use super::{BACKOFF_MS_MAX, Batch, Circuit, Outbox};
use crate::core::record::{EventRecord, Position, TEXT_BYTES_MAX};
use crate::core::time::{NS_PER_MS, Now, Stamp};
use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::sayings::bounded;

/// Events sent to a failing sink to find out whether it is back.
pub const PROBE_EVENTS_MAX: usize = 1;
/// While fresh events and backlog both wait, one in so many of a batch is backlog.
pub const BACKLOG_SHARE_ONE_IN: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct LaneState {
    pub(super) waiting: BTreeSet<Position>,
    pub(super) busy: bool,
    /// Fresh events sent in a row while backlog waited, where a batch is one event.
    pub(super) live_run: usize,
    /// Failed tries in a row.
    pub(super) failures: u32,
    pub(super) next_ns: u64,
    pub(super) trouble: Option<(Stamp, String)>,
}

/// What became of a batch, for the circuit.
pub(super) struct Outcome {
    pub(super) lane: usize,
    pub(super) sent_ns: u64,
    pub(super) finished: usize,
    pub(super) failure: Option<(String, u64)>,
}

impl Outbox {
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
    pub(super) fn free_lane(&self, now: &Now) -> Option<(usize, usize)> {
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
    pub(super) fn fill(&mut self, number: usize, room: usize) -> Vec<(Position, EventRecord)> {
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
    pub(super) fn take(
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

    /// The way of a source's events.
    #[must_use]
    pub fn lane_of(&self, source: &str) -> usize {
        lane_of(source, self.lanes.len())
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

    /// Opens or closes the circuit, and the lane's own, after a batch.
    pub(super) fn judge(&mut self, now: &Now, outcome: Outcome) {
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
    pub(super) fn jittered_ms(&mut self, failures: u32) -> u64 {
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
    pub(super) fn forget_failures(&mut self) {
        self.failures = 0;
        self.next_ns = 0;
        self.trouble = None;
    }
}

/// FNV-1a of the source: the same lane through every restart with as many lanes.
pub(super) fn lane_of(source: &str, lanes: usize) -> usize {
    let hash = source
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    usize::try_from(hash % lanes.max(1) as u64).unwrap_or(0)
}
