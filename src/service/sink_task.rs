//! Owns: one sink's task: events from the journal to the sink's lanes, its answers to the engine.
//! May call: sink, core outbox, the journal's reader, the engine's inbox, sink_state.
//! Never: forward what is not durable; move a cursor before the sink has answered (FWD-01); wait for a lane
//! while another could work, or while a person asks.

use super::clock::Clock;
use super::engine::Message;
use super::sink_state::{Rates, SinkShared, SinkState};
use crate::core::gateway::Input;
use crate::core::ids::CommitNo;
use crate::core::lifecycle::Actor;
use crate::core::outbox::{Batch, Circuit, Outbox, OutboxConfig, Verdict};
use crate::core::record::{DeadLetter, Position, Record, SinkRecord};
use crate::failpoint;
use crate::journal::Reader;
use crate::sink::{Lane, Sink};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

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
const IDLE_MS_MAX: u64 = 1_000;
/// How things stand is shown at least so often, in milliseconds.
const SHOW_MS: u64 = 200;
/// A stop waits so long for what is under way, in milliseconds; what is left then is sent again.
const STOP_MS_MAX: u64 = 5_000;
/// Room for so many batches a lane, so that one does not run dry while another is slow.
const WINDOW_BATCHES_A_LANE: usize = 4;
/// Most dead letters that wait for a lane.
const LETTERS_WAITING_MAX: usize = 64;

/// What a person asks of a sink.
pub enum SinkErrand {
    /// Send a dead letter again; the answer says whether it is settled, and comes once that is durable.
    Resend(Resend, oneshot::Sender<Result<(), String>>),
    /// Try again now; the answer says how it stood.
    Resume(oneshot::Sender<String>),
    /// Send everything behind this place again; the answer says how many events that is, or why not.
    Rewind(Position, oneshot::Sender<Result<u64, String>>),
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
}

/// A dead letter that is to be sent again, by whose wish and why.
pub struct Resend {
    /// The letter.
    pub letter: Box<DeadLetter>,
    /// Who asked.
    pub actor: Actor,
    /// Why.
    pub reason: String,
}

/// A dead letter that is to be sent again, and who waits for it.
type Letter = (Resend, oneshot::Sender<Result<(), String>>);

/// What a lane carries.
enum Load {
    Batch(Batch),
    Letter(Letter),
}

/// A lane that is back.
struct Done {
    lane: usize,
    way: Box<dyn Lane>,
    load: Load,
    verdicts: Vec<Verdict>,
}

/// What the task knows while it runs.
struct Work {
    outbox: Outbox,
    /// Those that are not under way.
    lanes: Vec<Option<Box<dyn Lane>>>,
    under_way: JoinSet<Done>,
    letters: VecDeque<Letter>,
    /// The log is looked at up to here.
    head: CommitNo,
    /// There is more; it is gathered until then.
    gather: Option<Instant>,
    /// Since when something is to be saved, on the boot clock.
    unsaved_ns: Option<u64>,
    /// As it was last made durable.
    saved: SinkRecord,
    read_error: Option<String>,
    /// Why it stands still, as far as the core was told.
    told: Option<String>,
    rates: Rates,
    shown_ns: u64,
}

impl SinkTask {
    /// Runs until told to stop; what it reached is durable then.
    pub async fn run(mut self) {
        let mut commits = self.reader.watch();
        let mut work = self.begin(*commits.borrow_and_update());
        loop {
            if work.gather.is_some_and(|at| Instant::now() >= at) {
                work.gather = None;
                work.head = *commits.borrow_and_update();
            }
            self.read(&mut work);
            self.send(&mut work);
            self.save_if_due(&mut work, false).await;
            self.tell(&mut work).await;
            self.show(&mut work);
            if *self.stop.borrow() {
                break;
            }
            let wait = self.wait(&work);
            tokio::select! {
                _ = self.stop.changed() => {}
                Some(done) = work.under_way.join_next() => {
                    self.done(&mut work, done).await;
                    // The time it was under way is time enough to gather: what is new goes with the next one.
                    work.gather = Some(Instant::now());
                }
                errand = self.errands.recv() => {
                    if let Some(errand) = errand {
                        self.errand(&mut work, errand).await;
                    }
                }
                changed = commits.changed(), if work.gather.is_none() => {
                    if changed.is_err() {
                        break;
                    }
                    // More will follow at once; one sync at the sink serves them all, and does not stand in the
                    // way of the journal's.
                    work.gather = Some(Instant::now() + Duration::from_millis(GATHER_MS));
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.finish(&mut work).await;
    }

    fn begin(&mut self, head: CommitNo) -> Work {
        let state = self.shared.state();
        let lanes: Vec<_> = std::mem::take(&mut self.sink.lanes)
            .into_iter()
            .map(Some)
            .collect();
        let defaults = OutboxConfig::default();
        let batches = lanes.len() * WINDOW_BATCHES_A_LANE;
        let config = OutboxConfig {
            lanes: lanes.len(),
            live: !lanes.iter().flatten().any(|lane| lane.keeps_order()),
            window_events_max: defaults
                .window_events_max
                .max(batches * defaults.batch_events_max),
            ..defaults
        };
        let seed = self.clock.now().boottime_ns;
        Work {
            outbox: Outbox::new(state.cursor, state.more.clone(), config, seed),
            lanes,
            under_way: JoinSet::new(),
            letters: VecDeque::new(),
            head,
            gather: None,
            unsaved_ns: None,
            saved: state.more,
            read_error: None,
            told: None,
            rates: Rates::default(),
            shown_ns: 0,
        }
    }

    fn wait(&self, work: &Work) -> Duration {
        let now = self.clock.now().boottime_ns;
        let retry = work
            .outbox
            .next_ns()
            .map(|at| at.saturating_sub(now) / 1_000_000 + 1);
        let save = work.unsaved_ns.map(|_| CURSOR_MS);
        let wait_ms = retry.into_iter().chain(save).fold(IDLE_MS_MAX, u64::min);
        // A clock that a test moves does not wake anybody.
        #[cfg(feature = "test-hooks")]
        let wait_ms = if super::clock::hooks::file().is_some() {
            wait_ms.min(20)
        } else {
            wait_ms
        };
        let wait = Duration::from_millis(wait_ms);
        match work.gather {
            Some(at) => wait.min(at.saturating_duration_since(Instant::now())),
            None => wait,
        }
    }

    /// Reads what the outbox has room for.
    fn read(&self, work: &mut Work) {
        let now = self.clock.now();
        work.outbox.split_if_old(&now, work.head);
        while let Some(want) = work.outbox.want(work.head) {
            let count = want.events_max.min(LOOK_EVENTS_MAX);
            let bytes = want.bytes_max.min(LOOK_BYTES_MAX);
            let read = || self.reader.scan(want.after, count, bytes);
            match tokio::task::block_in_place(read) {
                Ok((events, read_to)) => {
                    work.read_error = None;
                    let any = !events.is_empty() || read_to.is_some();
                    work.outbox.offer(&want, events, read_to);
                    if !any {
                        return;
                    }
                }
                Err(error) => {
                    // Looked at again at the next turn of the loop.
                    work.read_error = Some(error.to_string());
                    return;
                }
            }
        }
        work.outbox.split_if_old(&now, work.head);
    }

    /// Sets every lane to work that has something to do.
    fn send(&self, work: &mut Work) {
        for _ in 0..work.letters.len() {
            if let Some(letter) = work.letters.pop_front() {
                self.send_letter(work, letter);
            }
        }
        // In recovery mode none is written down.
        if !self.volatile {
            let standing = self.reader.dead_letter_count(&self.shared.name);
            work.outbox.letters_stand(&self.clock.now(), standing);
        }
        while let Some(batch) = work.outbox.next_batch(&self.clock.now()) {
            // A lane that the outbox has not given out is here.
            let Some(way) = work.lanes[batch.lane].take() else {
                break;
            };
            failpoint!("sink.before-deliver");
            work.under_way
                .spawn(carry(batch.lane, way, Load::Batch(batch)));
        }
    }

    fn send_letter(&self, work: &mut Work, letter: Letter) {
        let lane = work.outbox.lane_of(&letter.0.letter.event.key.source);
        if !work.outbox.hold(lane) {
            work.letters.push_back(letter);
            return;
        }
        if let Some(way) = work.lanes[lane].take() {
            work.under_way.spawn(carry(lane, way, Load::Letter(letter)));
        }
    }

    /// Takes what came of a batch.
    async fn done(&mut self, work: &mut Work, done: Result<Done, JoinError>) {
        let now = self.clock.now();
        let Done {
            lane,
            way,
            load,
            verdicts,
        } = match done {
            Ok(done) => done,
            Err(error) => {
                log::error!(
                    "sink {}: a lane ended by a fault of its own: {error}",
                    self.shared.name
                );
                let why =
                    "a lane ended by a fault of the program, told in the log; restart the gateway";
                work.outbox.stop(&now, why);
                return;
            }
        };
        work.lanes[lane] = Some(way);
        match load {
            Load::Batch(batch) => {
                failpoint!("sink.after-deliver");
                let delivered = self.letters_of(&batch, &verdicts);
                let dead_letters = work.outbox.answered(&now, batch, verdicts);
                work.unsaved_ns.get_or_insert(now.boottime_ns);
                if !dead_letters.is_empty() || !delivered.is_empty() {
                    self.save(work, dead_letters, delivered).await;
                }
            }
            Load::Letter(letter) => {
                work.outbox.release(lane);
                let verdict = verdicts.into_iter().next();
                let verdict = verdict.unwrap_or_else(|| Verdict::retry("the sink did not answer"));
                self.letter_answered(work, letter, verdict).await;
            }
        }
    }

    /// What settles the dead letters among what a sink took: a rewind goes over them, too, and one that is left
    /// would be mended, and count twice.
    fn letters_of(&self, batch: &Batch, verdicts: &[Verdict]) -> Vec<Record> {
        let sink = &self.shared.name;
        if self.volatile || self.reader.dead_letter_count(sink) == 0 {
            return Vec::new();
        }
        let taken = |verdict: &Verdict| matches!(verdict, Verdict::Accepted | Verdict::Duplicate);
        let events = batch.events.iter().zip(verdicts);
        events
            .filter(|(_, verdict)| taken(verdict))
            .map(|((_, event), _)| &event.key)
            .filter(|key| matches!(self.reader.dead_letter(sink, key), Ok(Some(_))))
            .map(|key| Record::DeadLetterSettled {
                sink: sink.clone(),
                key: key.clone(),
                how: "resent".into(),
                actor: Actor::Gateway,
                reason: "taken when it was sent again".into(),
            })
            .collect()
    }

    /// That the sink took it is recorded here, with the progress: whoever asked may have gone away.
    async fn letter_answered(&mut self, work: &mut Work, (asked, reply): Letter, verdict: Verdict) {
        let result = refusal(&verdict);
        let again = work.outbox.resent(&asked.letter, verdict);
        let settled = result.is_ok().then(|| Record::DeadLetterSettled {
            sink: self.shared.name.clone(),
            key: asked.letter.event.key,
            how: "resent".into(),
            actor: asked.actor,
            reason: asked.reason,
        });
        let settled = settled.into_iter().collect();
        work.unsaved_ns = None;
        let progress = progress(work, again.into_iter().collect(), settled);
        let (kept, durable) = oneshot::channel();
        let _ = self
            .engine
            .send(Message::Durable(Box::new(progress), kept))
            .await;
        tokio::spawn(async move {
            // Without an answer the gateway is ending, and who asked is told so.
            if durable.await.is_ok() {
                let _ = reply.send(result);
            }
        });
    }

    async fn errand(&mut self, work: &mut Work, errand: SinkErrand) {
        match errand {
            SinkErrand::Resend(_, reply) if work.letters.len() >= LETTERS_WAITING_MAX => {
                let _ = reply.send(Err(
                    "as many dead letters wait as may; try again in a moment".into(),
                ));
            }
            SinkErrand::Resend(letter, reply) => work.letters.push_back((letter, reply)),
            SinkErrand::Resume(reply) => {
                let was = work.outbox.circuit().describe(&self.clock.now());
                work.outbox.resume();
                let _ = reply.send(was);
            }
            SinkErrand::Rewind(to, reply) => {
                let result = self.rewind(work, to).await;
                let _ = reply.send(result);
            }
        }
    }

    async fn rewind(&mut self, work: &mut Work, to: Position) -> Result<u64, String> {
        let through = work.outbox.through();
        if to >= through {
            return Err("the sink has not come so far: there is nothing to send again".into());
        }
        let count = || -> Result<u64, crate::journal::ReadError> {
            let all = self.reader.backlog(to)?.events;
            let open = self.reader.backlog(through)?.events;
            Ok(all.saturating_sub(open))
        };
        let passed = tokio::task::block_in_place(count).map_err(|error| error.to_string())?;
        let events = passed + work.outbox.finished_ahead();
        work.outbox.rewind(to, events);
        self.save(work, Vec::new(), Vec::new()).await;
        Ok(events)
    }

    async fn save_if_due(&mut self, work: &mut Work, now: bool) {
        let at = self.clock.now().boottime_ns;
        let due = |since: u64| now || at.saturating_sub(since) >= CURSOR_MS * 1_000_000;
        if work.unsaved_ns.is_some_and(due) {
            self.save(work, Vec::new(), Vec::new()).await;
        }
    }

    async fn save(&mut self, work: &mut Work, dead_letters: Vec<DeadLetter>, settled: Vec<Record>) {
        work.unsaved_ns = None;
        if self.volatile {
            return;
        }
        let input = progress(work, dead_letters, settled);
        // The engine is gone only when the process is ending; then the events are sent again.
        let _ = self.engine.send(Message::Input(input)).await;
    }

    /// A sink that stands still until a person mends something is an alarm, and an event.
    async fn tell(&mut self, work: &mut Work) {
        let why = match work.outbox.circuit() {
            Circuit::Stopped { reason, .. } => Some(reason),
            Circuit::Ok | Circuit::Retrying { .. } => None,
        };
        if why != work.told {
            work.told.clone_from(&why);
            let sink = self.shared.name.clone();
            let _ = self
                .engine
                .send(Message::Input(Input::SinkStopped { sink, why }))
                .await;
        }
    }

    fn show(&self, work: &mut Work) {
        let now = self.clock.now();
        let idle = work.under_way.is_empty();
        if !idle && now.boottime_ns.saturating_sub(work.shown_ns) < SHOW_MS * 1_000_000 {
            return;
        }
        work.shown_ns = now.boottime_ns;
        let (cursor, more) = work.outbox.record();
        let finished_ahead = more.ahead.iter().map(|range| range.events).sum();
        if work.rates.is_due(&now) {
            let found = tokio::task::block_in_place(|| self.reader.backlog(cursor.through));
            let backlog = found
                .unwrap_or_default()
                .events
                .saturating_sub(finished_ahead);
            work.rates.sample(&now, backlog, &cursor, &more);
        }
        self.shared.set(SinkState {
            cursor,
            more,
            finished_ahead,
            circuit: work.outbox.circuit(),
            read_error: work.read_error.clone(),
            split: work.outbox.is_split(),
            in_flight: work.outbox.in_flight(),
            rates: work.rates.now(),
        });
    }

    /// Waits for what is under way, as long as a stop may take, and saves.
    async fn finish(&mut self, work: &mut Work) {
        let end = Instant::now() + Duration::from_millis(STOP_MS_MAX);
        while let Ok(Some(done)) = tokio::time::timeout_at(end, work.under_way.join_next()).await {
            self.done(work, done).await;
        }
        self.save_if_due(work, true).await;
        self.show(work);
    }
}

/// What is to be made durable together.
fn progress(work: &mut Work, dead_letters: Vec<DeadLetter>, settled: Vec<Record>) -> Input {
    let (cursor, more) = work.outbox.record();
    let changed = more != work.saved;
    if changed {
        work.saved.clone_from(&more);
    }
    Input::SinkProgress {
        cursor,
        more: changed.then_some(more),
        dead_letters,
        settled,
    }
}

async fn carry(lane: usize, mut way: Box<dyn Lane>, load: Load) -> Done {
    let verdicts = match &load {
        Load::Batch(batch) => way.deliver(&batch.events).await,
        // A place that no event has: the letter's own is behind the watermark.
        Load::Letter((letter, _)) => {
            let alone = [(Position::default(), letter.letter.event.clone())];
            way.deliver(&alone).await
        }
    };
    Done {
        lane,
        way,
        load,
        verdicts,
    }
}

/// Why a dead letter still is one.
fn refusal(verdict: &Verdict) -> Result<(), String> {
    match verdict {
        Verdict::Accepted | Verdict::Duplicate => Ok(()),
        Verdict::Conflict { reason, .. } => Err(format!("conflict again: {reason}")),
        Verdict::Malformed { reason } => Err(format!("malformed again: {reason}")),
        Verdict::Retry { reason, .. } => Err(format!("not taken now, it stays as it is: {reason}")),
        Verdict::Stop { reason } => Err(format!("something must be mended first: {reason}")),
    }
}
