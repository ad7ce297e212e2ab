//! Owns: what went over one machine's link, byte by byte, while somebody looks.
//! May call: core time.
//! Never: keep more than its bounds; keep a byte of an exchange that may carry a secret argument.

use crate::core::time::{NS_PER_MS, Stamp};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most entries that one look keeps; what comes after them is counted.
pub const TRACE_ENTRIES_MAX: usize = 1_000;
/// Most bytes kept of one entry.
pub const TRACE_ENTRY_BYTES_MAX: usize = 600;
/// Longest look, in milliseconds.
pub const TRACE_MS_MAX: u64 = 60_000;

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceWay {
    /// To the device.
    Sent,
    /// From the device.
    Received,
    /// From the line, while nothing was asked.
    Unasked,
}

impl TraceWay {
    /// By its name outside.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Unasked => "unasked",
        }
    }
}

/// Bytes that the kernel took or gave at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// When.
    pub at: Stamp,
    /// See [`TraceWay`].
    pub way: TraceWay,
    /// At most [`TRACE_ENTRY_BYTES_MAX`] of them; none if they are hidden.
    pub bytes: Vec<u8>,
    /// How many there were.
    pub length: usize,
    /// They may carry a secret argument.
    pub hidden: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<TraceEntry>,
    left_out: u64,
    /// Nothing is kept at or after this, by the boot clock.
    until_ns: u64,
    hidden: bool,
    /// So far.
    looks: u64,
}

#[derive(Debug, Default)]
struct Shared {
    on: AtomicBool,
    state: Mutex<State>,
}

/// One look; ends when it is dropped.
#[derive(Debug)]
pub struct Look {
    tap: Tap,
    number: u64,
}

impl Look {
    /// Ends it: what was kept, in order, and how many entries were not.
    #[must_use]
    pub fn end(self) -> (Vec<TraceEntry>, u64) {
        self.take()
    }

    fn take(&self) -> (Vec<TraceEntry>, u64) {
        let mut state = self.tap.state();
        // Its time was over, and somebody else's has begun.
        if state.looks != self.number {
            return (Vec::new(), 0);
        }
        self.tap.0.on.store(false, Relaxed);
        let left_out = std::mem::take(&mut state.left_out);
        (state.entries.drain(..).collect(), left_out)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let _ = self.take();
    }
}

/// Where a link shows its bytes; all clones are one. It keeps nothing until somebody looks.
#[derive(Clone, Debug, Default)]
pub struct Tap(Arc<Shared>);

impl Tap {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to look, for `ms` and no longer; `None` if somebody looks already.
    #[must_use]
    pub fn open(&self, now: &Stamp, ms: u64) -> Option<Look> {
        let mut state = self.state();
        if self.0.on.load(Relaxed) && now.boottime_ns < state.until_ns {
            return None;
        }
        state.entries.clear();
        state.looks += 1;
        state.left_out = 0;
        state.until_ns = now.boottime_ns + ms.min(TRACE_MS_MAX) * NS_PER_MS;
        self.0.on.store(true, Relaxed);
        Some(Look {
            tap: self.clone(),
            number: state.looks,
        })
    }

    /// From now on bytes may carry a secret, or no longer.
    pub(super) fn hide(&self, hidden: bool) {
        self.state().hidden = hidden;
    }

    pub(super) fn is_hiding(&self) -> bool {
        self.state().hidden
    }

    /// Bytes went this way.
    pub(super) fn note(&self, way: TraceWay, at: &Stamp, bytes: &[u8]) {
        if !self.0.on.load(Relaxed) || bytes.is_empty() {
            return;
        }
        let mut state = self.state();
        if at.boottime_ns >= state.until_ns {
            self.0.on.store(false, Relaxed);
            return;
        }
        if state.entries.len() >= TRACE_ENTRIES_MAX {
            state.left_out += 1;
            return;
        }
        let hidden = state.hidden;
        let kept = match hidden {
            true => &[],
            false => &bytes[..bytes.len().min(TRACE_ENTRY_BYTES_MAX)],
        };
        state.entries.push_back(TraceEntry {
            at: *at,
            way,
            bytes: kept.to_vec(),
            length: bytes.len(),
            hidden,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::BootId;
    use crate::core::time::Now;

    fn at(ms: u64) -> Now {
        Now {
            boot_id: BootId([0; 16]),
            boottime_ns: ms * NS_PER_MS,
            wall_us: 0,
            wall_trusted: false,
        }
    }

    #[test]
    fn a_look_is_bounded_in_time_entries_and_bytes_and_there_is_one_at_a_time() {
        let tap = Tap::default();
        tap.note(TraceWay::Sent, &at(0), &[1]);
        let look = tap.open(&at(1), 10).unwrap();
        assert!(tap.open(&at(5), 10).is_none());
        tap.note(TraceWay::Sent, &at(5), &[7; TRACE_ENTRY_BYTES_MAX + 1]);
        for _ in 0..TRACE_ENTRIES_MAX {
            tap.note(TraceWay::Received, &at(6), &[1]);
        }
        let (entries, left_out) = look.end();
        assert_eq!((entries.len(), left_out), (TRACE_ENTRIES_MAX, 1));
        assert_eq!(entries[0].bytes.len(), TRACE_ENTRY_BYTES_MAX);
        assert_eq!(entries[0].length, TRACE_ENTRY_BYTES_MAX + 1);
        let late = tap.open(&at(20), 10).unwrap();
        tap.note(TraceWay::Sent, &at(30), &[1]);
        let next = tap.open(&at(31), 10).expect("its time was over");
        tap.note(TraceWay::Sent, &at(32), &[1]);
        assert_eq!(late.end(), (Vec::new(), 0));
        assert_eq!(next.end().0.len(), 1);
    }

    // covers: CMD-10
    #[test]
    fn bytes_that_may_carry_a_secret_are_counted_and_not_kept() {
        let tap = Tap::default();
        let look = tap.open(&at(0), 10).unwrap();
        tap.hide(true);
        tap.note(TraceWay::Sent, &at(1), b"1234");
        tap.hide(false);
        tap.note(TraceWay::Sent, &at(2), b"5678");
        let (entries, _) = look.end();
        assert_eq!(
            (
                entries[0].bytes.as_slice(),
                entries[0].length,
                entries[0].hidden
            ),
            (&[][..], 4, true)
        );
        assert_eq!(entries[1].bytes, b"5678");
    }
}
