//! Owns: the one place where clocks are read.
//! May call: core time, sys.
//! Never: let wall time be trusted that nobody vouches for (TIME-04).

use crate::core::ids::BootId;
use crate::core::time::Now;
use crate::sys;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

/// All clocks of this computer.
#[derive(Clone, Debug)]
pub struct Clock {
    boot_id: BootId,
    battery_clock: bool,
    not_before_us: i64,
}

impl Clock {
    /// `battery_clock`: the board's profile says that wall time survives a power cut. No wall time before
    /// `not_before_us` (the program's build) is trusted.
    ///
    /// # Errors
    /// The kernel does not say which boot this is.
    pub fn new(battery_clock: bool, not_before_us: i64) -> std::io::Result<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let boot_id = BootId::parse(&text)
            .ok_or_else(|| std::io::Error::other(format!("boot_id {text:?} is not a UUID")))?;
        Ok(Self {
            boot_id,
            battery_clock,
            not_before_us,
        })
    }

    /// One reading of all of them.
    #[must_use]
    pub fn now(&self) -> Now {
        let boottime = clock_gettime(ClockId::Boottime);
        let wall = clock_gettime(ClockId::Realtime);
        let boottime_ns = u64::try_from(boottime.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(boottime.tv_nsec).unwrap_or(0);
        let wall_us = wall.tv_sec * 1_000_000 + wall.tv_nsec / 1000;
        let vouched = self.battery_clock || sys::clock_synchronised();
        let now = Now {
            boot_id: self.boot_id,
            boottime_ns,
            wall_us,
            wall_trusted: vouched && wall_us >= self.not_before_us,
        };
        #[cfg(feature = "test-hooks")]
        let now = hooks::moved(now, self.not_before_us);
        now
    }

    /// As a function, for the rooms that may not know this one.
    #[must_use]
    pub fn reader(&self) -> Arc<dyn Fn() -> Now + Send + Sync> {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }
}

/// Clocks that a test moves: `HOLDFAST_TEST_CLOCK` names a file with lines `boot_ns`, `wall_us` (in place of the
/// real ones: they stand still), `boot_ms`, `wall_ms` (added), `boot_id`, `trusted`; taken in their order.
#[cfg(feature = "test-hooks")]
pub(super) mod hooks {
    use super::{BootId, Now};

    pub(in crate::service) fn file() -> Option<std::path::PathBuf> {
        std::env::var_os("HOLDFAST_TEST_CLOCK").map(Into::into)
    }

    pub(super) fn moved(mut now: Now, not_before_us: i64) -> Now {
        let Some(text) = file().and_then(|path| std::fs::read_to_string(path).ok()) else {
            return now;
        };
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let value = value.trim();
            match key.trim() {
                "boot_ns" => now.boottime_ns = value.parse().unwrap_or(now.boottime_ns),
                "wall_us" => now.wall_us = value.parse().unwrap_or(now.wall_us),
                "boot_ms" => {
                    let ns = value.parse::<i64>().unwrap_or(0).saturating_mul(1_000_000);
                    now.boottime_ns = now.boottime_ns.saturating_add_signed(ns);
                }
                "wall_ms" => now.wall_us += value.parse::<i64>().unwrap_or(0) * 1000,
                "boot_id" => now.boot_id = BootId::parse(value).unwrap_or(now.boot_id),
                "trusted" => now.wall_trusted = value == "true",
                _ => {}
            }
        }
        now.wall_trusted &= now.wall_us >= not_before_us;
        now
    }
}
