//! Owns: one sink's task: events from the journal to the sink, its answers to the engine.
//! May call: sink, core outbox, the journal's reader, the engine's inbox.
//! Never: forward what is not durable; move a cursor before the sink has answered (FWD-01).

use super::clock::Clock;
use super::engine::Message;
use crate::core::gateway::Input;
use crate::core::outbox::{Outbox, OutboxConfig, Verdict};
use crate::core::record::{CursorRecord, DeadLetter, EventRecord, Position, Record};
use crate::failpoint;
use crate::journal::Reader;
use crate::sink::Sink;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// A cursor that moved is made durable at least so often, in milliseconds: until then a crash costs a resend
/// of so much, under the same keys.
const CURSOR_MS: u64 = 1_000;
/// Events are gathered for so long before they are sent, in milliseconds.
const GATHER_MS: u64 = 50;
/// Events looked at in one step.
const LOOK_EVENTS_MAX: usize = 1_000;
/// Bytes looked at in one step.
const LOOK_BYTES_MAX: usize = 1 << 20;
/// Longest wait when nothing happens, in milliseconds.
const IDLE_MS_MAX: u64 = 5_000;

/// What everybody may see of a sink.
#[derive(Debug)]
pub struct SinkShared {
    /// As configured.
    pub name: String,
    /// Such as `file`.
    pub kind: String,
    /// See `AckLevel`.
    pub ack_level: String,
    state: Mutex<(CursorRecord, String)>,
}

impl SinkShared {
    /// As it stands before the task runs.
    #[must_use]
    pub fn new(name: &str, kind: &str, ack_level: &str, cursor: CursorRecord) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            ack_level: ack_level.to_owned(),
            state: Mutex::new((cursor, "ok".into())),
        }
    }
    /// Its progress and its circuit, in words.
    #[must_use]
    pub fn state(&self) -> (CursorRecord, String) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What a person asks of a sink.
pub enum SinkErrand {
    /// Send a dead letter again; the answer says whether it is settled.
    Resend(Box<DeadLetter>, oneshot::Sender<Result<(), String>>),
}

/// One sink's task.
pub struct SinkTask {
    /// Sends.
    pub sink: Sink,
    /// What it shows.
    pub shared: Arc<SinkShared>,
    /// Reads the log.
    pub reader: Reader,
    /// Reads the clocks.
    pub clock: Clock,
    /// Takes progress.
    pub engine: mpsc::Sender<Message>,
    /// What people ask.
    pub errands: mpsc::Receiver<SinkErrand>,
    /// To stop.
    pub stop: watch::Receiver<bool>,
    /// In recovery mode nothing can be written down: the sink is fed what can be proven, from the start of
    /// its last durable cursor, and its progress lasts as long as the process (REC-03).
    pub volatile: bool,
    /// The journal could not be read the last time.
    pub read_failed: bool,
}

struct Unsaved {
    cursor: Option<CursorRecord>,
    since_ns: u64,
}

impl SinkTask {
    /// Runs until told to stop; what it reached is durable then.
    pub async fn run(mut self) {
        let (cursor, _) = self.shared.state();
        let seed = self.clock.now().boottime_ns;
        let mut outbox = Outbox::new(cursor, OutboxConfig::default(), seed);
        let mut commits = self.reader.watch();
        let mut unsaved = Unsaved {
            cursor: None,
            since_ns: 0,
        };
        loop {
            commits.borrow_and_update();
            let busy = self.step(&mut outbox, &mut unsaved).await;
            self.save_if_due(&mut unsaved, false).await;
            if *self.stop.borrow() {
                break;
            }
            if busy {
                continue;
            }
            let wait = self.wait_ms(&outbox, &unsaved);
            tokio::select! {
                _ = self.stop.changed() => {}
                changed = commits.changed(), if outbox.next_ns().is_none() => {
                    if changed.is_err() {
                        break;
                    }
                    // More will follow at once; one sync at the sink serves them all, and does not stand in the
                    // way of the journal's.
                    tokio::time::sleep(Duration::from_millis(GATHER_MS)).await;
                }
                errand = self.errands.recv() => {
                    if let Some(errand) = errand {
                        self.errand(&mut outbox, errand).await;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            }
        }
        self.save_if_due(&mut unsaved, true).await;
    }

    fn wait_ms(&self, outbox: &Outbox, unsaved: &Unsaved) -> u64 {
        let now = self.clock.now().boottime_ns;
        let retry = outbox
            .next_ns()
            .map(|at| at.saturating_sub(now) / 1_000_000 + 1);
        let save = unsaved.cursor.as_ref().map(|_| CURSOR_MS);
        retry
            .into_iter()
            .chain(save)
            .min()
            .unwrap_or(IDLE_MS_MAX)
            .min(IDLE_MS_MAX)
    }

    /// One batch, if there is one. Whether there was.
    async fn step(&mut self, outbox: &mut Outbox, unsaved: &mut Unsaved) -> bool {
        let now = self.clock.now();
        if outbox.next_ns().is_some_and(|at| at > now.boottime_ns) {
            return false;
        }
        if std::mem::take(&mut self.read_failed) {
            outbox.resume();
        }
        let available = match self
            .reader
            .events(outbox.through(), LOOK_EVENTS_MAX, LOOK_BYTES_MAX)
        {
            Ok(found) => found
                .into_iter()
                .map(|(position, event, _)| (position, event))
                .collect::<Vec<_>>(),
            Err(error) => {
                // Looked at again at the next turn of the loop.
                self.read_failed = true;
                outbox.stop(&now, &error.to_string());
                self.show(outbox);
                return false;
            }
        };
        let Some(batch) = outbox.next_batch(&now, &available) else {
            self.show(outbox);
            return false;
        };
        failpoint!("sink.before-deliver");
        let verdicts = self.deliver(&batch.events).await;
        failpoint!("sink.after-deliver");
        let answers = batch.pair(verdicts);
        let now = self.clock.now();
        let progress = outbox.answered(&now, batch, answers);
        let held_back = progress.retry_at_ns.is_some();
        if progress.dead_letters.is_empty() {
            if unsaved.cursor.is_none() {
                unsaved.since_ns = now.boottime_ns;
            }
            unsaved.cursor = Some(progress.cursor);
        } else {
            unsaved.cursor = None;
            self.save(progress.cursor, progress.dead_letters).await;
        }
        self.show(outbox);
        !held_back
    }

    async fn deliver(&mut self, batch: &[(Position, EventRecord)]) -> Vec<Verdict> {
        match self.sink.lanes.first_mut() {
            Some(lane) => lane.deliver(batch).await,
            None => Vec::new(),
        }
    }

    async fn save_if_due(&mut self, unsaved: &mut Unsaved, now: bool) {
        let age_ns = self
            .clock
            .now()
            .boottime_ns
            .saturating_sub(unsaved.since_ns);
        if (now || age_ns >= CURSOR_MS * 1_000_000)
            && let Some(cursor) = unsaved.cursor.take()
        {
            self.save(cursor, Vec::new()).await;
        }
    }

    async fn save(&mut self, cursor: CursorRecord, dead_letters: Vec<DeadLetter>) {
        if self.volatile {
            return;
        }
        // The engine is gone only when the process is ending; then the events are sent again.
        let _ = self
            .engine
            .send(Message::Input(Input::SinkProgress {
                cursor,
                dead_letters,
            }))
            .await;
    }

    async fn errand(&mut self, outbox: &mut Outbox, errand: SinkErrand) {
        let SinkErrand::Resend(letter, reply) = errand;
        // A place that no event has: the letter's own is behind the watermark.
        let alone = [(Position::default(), letter.event.clone())];
        let verdict = self.deliver(&alone).await.pop();
        let verdict = verdict.unwrap_or_else(|| Verdict::retry("the sink did not answer"));
        let words = format!("{verdict:?}");
        let resent = outbox.resent(&letter, verdict);
        self.save(resent.cursor, resent.letter.into_iter().collect())
            .await;
        self.show(outbox);
        let _ = reply.send(if resent.settled { Ok(()) } else { Err(words) });
    }

    fn show(&self, outbox: &Outbox) {
        let words = outbox.circuit().describe(&self.clock.now());
        *self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (outbox.cursor(), words);
    }
}

/// What settles a dead letter, for the journal.
#[must_use]
pub fn settled(
    letter: &DeadLetter,
    how: &str,
    actor: crate::core::lifecycle::Actor,
    reason: &str,
) -> Record {
    Record::DeadLetterSettled {
        sink: letter.sink.clone(),
        key: letter.event.key.clone(),
        how: how.to_owned(),
        actor,
        reason: reason.to_owned(),
    }
}
