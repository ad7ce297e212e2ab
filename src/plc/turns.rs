//! Owns: whose request goes next on a line that several machines share.
//! May call: the runtime's channels and clock.
//! Never: let a request wait behind more than the one that is under way and its own kind; lose a turn whose
//! taker has gone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// Longest time that a look for a silent unit waits behind polls, in milliseconds.
const PROBE_WAIT_MS_MAX: u64 = 2_000;
/// After a look that found nobody, the others have the line for this many times as long as it took.
const PROBE_REST_FACTOR: u32 = 1;

/// What a turn is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A command, or what belongs to one; also the rest of what was begun.
    Command,
    /// A poll.
    Poll,
    /// Whether a unit that did not answer is back.
    Probe,
}

struct Waiter {
    purpose: Purpose,
    since: Instant,
    go: oneshot::Sender<Turn>,
}

#[derive(Default)]
struct Queue {
    taken: bool,
    waiting: VecDeque<Waiter>,
    /// No look for a silent unit before this.
    probe_after: Option<Instant>,
}

impl Queue {
    /// Commands, then looks that have waited long, then polls, then looks; each by age.
    fn next(&mut self, long: Duration) -> Option<Waiter> {
        let rank = |waiter: &Waiter| match waiter.purpose {
            Purpose::Command => 0,
            Purpose::Probe if waiter.since.elapsed() >= long => 1,
            Purpose::Poll => 2,
            Purpose::Probe => 3,
        };
        let ranked = self.waiting.iter().enumerate();
        let (first, _) = ranked.min_by_key(|(place, waiter)| (rank(waiter), *place))?;
        self.waiting.remove(first)
    }
}

/// The order of a line.
#[derive(Clone)]
pub(super) struct Turns {
    queue: Arc<Mutex<Queue>>,
    probe_wait: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            queue: Arc::default(),
            probe_wait: Duration::from_millis(PROBE_WAIT_MS_MAX),
        }
    }
}

/// The right to one exchange; whoever is next gets it when this is dropped.
pub(super) struct Turn {
    turns: Turns,
    purpose: Purpose,
    since: Instant,
}

impl Turns {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn; may be dropped while it waits.
    pub(super) async fn take(&self, purpose: Purpose) -> Turn {
        loop {
            let rest = self.queue().probe_after;
            if let (Purpose::Probe, Some(rest)) = (purpose, rest) {
                sleep_until(rest).await;
            }
            let turn = self.line_up(purpose).await;
            // Another look may have found nobody meanwhile.
            let rest = self.queue().probe_after;
            if purpose != Purpose::Probe || rest.is_none_or(|rest| rest <= Instant::now()) {
                return turn;
            }
        }
    }

    async fn line_up(&self, purpose: Purpose) -> Turn {
        let came = {
            let mut queue = self.queue();
            if !queue.taken {
                queue.taken = true;
                None
            } else {
                let (go, came) = oneshot::channel();
                queue.waiting.retain(|waiter| !waiter.go.is_closed());
                let since = Instant::now();
                queue.waiting.push_back(Waiter { purpose, since, go });
                Some(came)
            }
        };
        match came {
            None => self.turn(purpose),
            // A waiter's sender goes only with the queue, which this holds.
            Some(came) => match came.await {
                Ok(turn) => turn,
                Err(_) => std::future::pending().await,
            },
        }
    }

    fn turn(&self, purpose: Purpose) -> Turn {
        Turn {
            turns: self.clone(),
            purpose,
            since: Instant::now(),
        }
    }

    fn pass_on(&self) {
        let next = {
            let mut queue = self.queue();
            let next = queue.next(self.probe_wait);
            queue.taken = next.is_some();
            next
        };
        if let Some(waiter) = next {
            // One that has gone gives its turn back by dropping it, which passes it on again.
            let _ = waiter.go.send(self.turn(waiter.purpose));
        }
    }
}

impl Turn {
    /// Nobody answered: if it was a look, and the line needs `settle` now, the others go first for a while.
    pub(super) fn found_nobody(&self, settle: Duration) {
        if self.purpose == Purpose::Probe {
            let cost = self.since.elapsed() + settle;
            let rest = Instant::now() + settle + cost * PROBE_REST_FACTOR;
            self.turns.queue().probe_after = Some(rest);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines up `purposes` behind a turn that is taken, and says in which order they came on.
    async fn order(purposes: &[Purpose], probe_wait: Duration) -> Vec<usize> {
        let turns = Turns {
            probe_wait,
            ..Turns::default()
        };
        let first = turns.take(Purpose::Poll).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for (n, purpose) in purposes.iter().copied().enumerate() {
            let (taken, order) = (turns.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _turn = taken.take(purpose).await;
                order.lock().unwrap().push(n);
            }));
            while turns.queue().waiting.len() <= n {
                tokio::task::yield_now().await;
            }
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        Arc::try_unwrap(order).unwrap().into_inner().unwrap()
    }

    // covers: SEND-07, F033
    #[tokio::test]
    async fn commands_go_first_and_a_look_waits_behind_polls_but_not_for_ever() {
        use Purpose::{Command, Poll, Probe};
        let lined_up = [Probe, Poll, Poll, Command, Probe, Command];
        let soon = order(&lined_up, Duration::MAX).await;
        assert_eq!(soon, [3, 5, 1, 2, 0, 4]);
        assert_eq!(order(&lined_up, Duration::ZERO).await, [3, 5, 0, 4, 1, 2]);
    }

    // covers: F033
    #[tokio::test]
    async fn after_a_look_that_found_nobody_the_others_have_the_line_for_a_while() {
        let turns = Turns::default();
        let began = Instant::now();
        let look = turns.take(Purpose::Probe).await;
        look.found_nobody(Duration::from_millis(20));
        drop(look);
        drop(turns.take(Purpose::Poll).await);
        drop(turns.take(Purpose::Command).await);
        drop(turns.take(Purpose::Probe).await);
        assert!(began.elapsed() >= Duration::from_millis(40));
    }

    #[tokio::test]
    async fn a_turn_whose_taker_has_gone_is_passed_on() {
        let turns = Turns::default();
        let first = turns.take(Purpose::Poll).await;
        let gone = turns.take(Purpose::Command);
        assert!(tokio::time::timeout(Duration::ZERO, gone).await.is_err());
        assert_eq!(turns.queue().waiting.len(), 1);
        drop(first);
        assert!(!turns.queue().taken);
    }
}
