//! Owns: waiting for a moment to the microsecond: the runtime's own timer is a millisecond or two late.
//! May call: the system's timer.
//! Never: be early.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io::Result;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

/// Longer waits are the runtime's: what they are late is little beside them.
const FINE_MS_MAX: u64 = 20;

/// Waits until `moment`, and hardly longer.
pub(super) async fn until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let fine = left <= Duration::from_millis(FINE_MS_MAX);
        // Without a timer of its own, as when all descriptors are taken, it is late and no more.
        if !fine || wait(left).await.is_err() {
            sleep_until(moment).await;
        }
    }
}

#[expect(
    deprecated,
    reason = "what follows it is unsafe, for descriptors that may be closed meanwhile: this one is owned"
)]
async fn wait(left: Duration) -> Result<()> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let once = Itimerspec {
        it_interval: Timespec::default(),
        it_value: Timespec::try_from(left).map_err(std::io::Error::other)?,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
    timer.readable().await?.retain_ready();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: F025
    #[tokio::test]
    async fn no_silence_is_ever_cut_short() {
        for us in [1, 750, 1_750, 4_011, 21_000] {
            for _ in 0..20 {
                let moment = Instant::now() + Duration::from_micros(us);
                until(moment).await;
                assert!(Instant::now() >= moment, "{us} µs");
            }
        }
    }
}
