//! Owns: time as the core sees it, and the one function that says whether something has expired.
//! May call: ids.
//! Never: read a clock; let wall time decide what monotonic time can.

use super::ids::BootId;
use crate::seeded::{self, Fault};
use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const NS_PER_S: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const NS_PER_MS: u64 = 1_000_000;
/// Longest validity a row or a request may state, in milliseconds (one day).
pub const TTL_MS_MAX: u64 = 24 * 3600 * 1000;

/// One reading of all clocks, taken by the shell in one place and handed in with every input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Which boot `boottime_ns` belongs to.
    pub boot_id: BootId,
    /// `CLOCK_BOOTTIME`, nanoseconds since that boot; runs during suspend (TIME-01).
    pub boottime_ns: u64,
    /// Wall time, microseconds since 1970-01-01T00:00:00Z. Shown; decides nothing within a boot.
    pub wall_us: i64,
    /// Whether `wall_us` can be relied on across a reboot (TIME-04).
    pub wall_trusted: bool,
}

/// A [`Now`] that was written down.
pub type Stamp = Now;

/// The end of a validity: monotonic within its boot, recomputed from trusted wall time after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// When the validity began to run.
    pub from: Stamp,
    /// How long it runs, in milliseconds.
    pub ttl_ms: u64,
}

/// What [`Deadline::at`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Still valid, for this many nanoseconds (always more than 0).
    Remaining(u64),
    /// `now >= deadline` (TIME-02).
    Expired,
    /// Another boot, and no wall time to trust: the row's `on_restart` decides (TIME-04).
    Unprovable,
}

impl Deadline {
    /// The one expiry rule (TIME-02): `now >= deadline` is expired. Used everywhere.
    #[must_use]
    pub fn at(&self, now: &Now) -> Validity {
        let ttl_ns = self.ttl_ms.saturating_mul(NS_PER_MS);
        let elapsed_ns = if seeded::is_on(Fault::WallClockValidity) {
            let elapsed_us = now.wall_us.saturating_sub(self.from.wall_us).max(0);
            elapsed_us.unsigned_abs().saturating_mul(1000)
        } else if now.boot_id == self.from.boot_id {
            now.boottime_ns.saturating_sub(self.from.boottime_ns)
        } else if self.from.wall_trusted && now.wall_trusted && now.wall_us >= self.from.wall_us {
            let elapsed_us = now.wall_us.abs_diff(self.from.wall_us);
            // A boot cannot have lasted longer than the time since it began, so what has run of
            // this one is a lower bound whatever the wall says.
            elapsed_us.saturating_mul(1000).max(now.boottime_ns)
        } else if now.boottime_ns >= ttl_ns {
            // This boot alone has lasted longer than the validity: expired by any clock.
            ttl_ns
        } else {
            return Validity::Unprovable;
        };
        match ttl_ns.checked_sub(elapsed_ns) {
            Some(0) if seeded::is_on(Fault::DeadlineIncluded) => Validity::Remaining(1),
            None | Some(0) => Validity::Expired,
            Some(remaining) => Validity::Remaining(remaining),
        }
    }

    /// The wall time at which the validity ends if no clock is stepped, to be shown.
    #[must_use]
    pub fn shown_wall_us(&self) -> i64 {
        let ttl_us = i64::try_from(self.ttl_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.from.wall_us.saturating_add(ttl_us)
    }
}

/// Nanoseconds from `from` to `now`: monotonic within a boot, else by the wall, never negative.
#[must_use]
pub fn elapsed_ns(from: &Stamp, now: &Now) -> u64 {
    if from.boot_id == now.boot_id {
        now.boottime_ns.saturating_sub(from.boottime_ns)
    } else {
        let by_wall = now.wall_us.saturating_sub(from.wall_us).max(0);
        u64::try_from(by_wall).unwrap_or(0).saturating_mul(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(boot: u8, seconds: f64, wall_s: i64, trusted: bool) -> Now {
        Now {
            boot_id: BootId([boot; 16]),
            boottime_ns: (seconds * 1e9) as u64,
            wall_us: wall_s * 1_000_000,
            wall_trusted: trusted,
        }
    }
    fn ten_seconds(from: Now) -> Deadline {
        Deadline {
            from,
            ttl_ms: 10_000,
        }
    }

    // covers: TIME-02, C5
    #[test]
    fn the_boundary_itself_is_expired_on_both_sides_of_one_nanosecond() {
        let deadline = ten_seconds(now(1, 3.0, 1000, true));
        let mut at = now(1, 13.0, 1010, true);
        assert_eq!(deadline.at(&at), Validity::Expired);
        at.boottime_ns -= 1;
        assert_eq!(deadline.at(&at), Validity::Remaining(1));
        at.boottime_ns += 2;
        assert_eq!(deadline.at(&at), Validity::Expired);
    }

    // covers: TIME-05
    #[test]
    fn the_end_that_is_shown_is_the_wall_time_at_the_start_and_the_validity() {
        let mut deadline = ten_seconds(now(1, 3.0, 1000, false));
        assert_eq!(deadline.shown_wall_us(), 1_010_000_000);
        deadline.ttl_ms = u64::MAX;
        assert_eq!(deadline.shown_wall_us(), i64::MAX);
    }

    // covers: TIME-01, TIME-05, F123
    #[test]
    fn wall_steps_change_nothing_within_a_boot() {
        let deadline = ten_seconds(now(1, 3.0, 1_000_000, true));
        for wall_s in [0, 1_000_000 - 86_400, 1_000_000 + 86_400] {
            for trusted in [false, true] {
                let at = now(1, 8.0, wall_s, trusted);
                assert_eq!(deadline.at(&at), Validity::Remaining(5 * NS_PER_S));
            }
        }
    }

    // covers: TIME-04
    #[test]
    fn a_reboot_is_never_a_refill() {
        let deadline = ten_seconds(now(1, 3.0, 1000, true));
        // Wall trusted: what remains is recomputed from it.
        assert_eq!(
            deadline.at(&now(2, 1.0, 1008, true)),
            Validity::Remaining(2 * NS_PER_S)
        );
        assert_eq!(deadline.at(&now(2, 1.0, 1010, true)), Validity::Expired);
        // Wall not trusted, or behind: nothing can be proven ...
        assert_eq!(deadline.at(&now(2, 1.0, 1008, false)), Validity::Unprovable);
        assert_eq!(deadline.at(&now(2, 1.0, 999, true)), Validity::Unprovable);
        // ... except that this boot alone outlasted the validity.
        assert_eq!(deadline.at(&now(2, 10.0, 0, false)), Validity::Expired);
        assert_eq!(deadline.at(&now(2, 11.0, 1002, true)), Validity::Expired);
    }
}
