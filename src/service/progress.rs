//! Owns: proof of progress of the journal's writer and of each machine task, and the watchdog that hangs on it.
//! May call: core time.
//! Never: call the watchdog satisfied because a timer still fires (OPS-01).

use crate::api::backend::Health;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// A part that has not moved for so long is stuck, in milliseconds.
pub const STUCK_MS_MAX: u64 = 20_000;
/// Each part moves at least so often when nothing happens, in milliseconds.
pub const BEAT_MS_MAX: u64 = 2_000;

/// When each part last moved, on the boot clock.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    parts: Arc<RwLock<BTreeMap<String, Arc<AtomicU64>>>>,
}

/// One part's pen.
#[derive(Clone, Debug)]
pub struct Beat(Arc<AtomicU64>);

impl Beat {
    /// It has moved.
    pub fn at(&self, boottime_ns: u64) {
        self.0.store(boottime_ns, Relaxed);
    }
}

impl Progress {
    /// A new part, which counts as moving now.
    #[must_use]
    pub fn part(&self, name: &str, boottime_ns: u64) -> Beat {
        let cell = Arc::new(AtomicU64::new(boottime_ns));
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        parts.insert(name.to_owned(), Arc::clone(&cell));
        Beat(cell)
    }

    /// A part that ended on purpose.
    pub fn forget(&self, name: &str) {
        self.parts
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
    }

    /// Who does not move.
    #[must_use]
    pub fn health(&self, boottime_ns: u64) -> Health {
        let parts = self.parts.read().unwrap_or_else(PoisonError::into_inner);
        let stuck: Vec<String> = parts
            .iter()
            .filter(|(_, at)| {
                boottime_ns.saturating_sub(at.load(Relaxed)) > STUCK_MS_MAX * 1_000_000
            })
            .map(|(name, _)| name.clone())
            .collect();
        Health {
            ready: stuck.is_empty() && !parts.is_empty(),
            stuck,
        }
    }
}
