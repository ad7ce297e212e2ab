//! Owns: the engine thread: the core and the journal, and the order "write it down, then act".
//! May call: core, journal, and the channels of the other tasks.
//! Never: perform an effect whose record is not durable (SEND-01, REC-01); go on after a failed commit.

use super::alarm_log::AlarmLog;
use super::clock::Clock;
use super::errand::Errand;
use super::progress::{BEAT_MS_MAX, Beat};
use crate::core::gateway::{
    Act, Alarm, Answer, CORRECTION, Correction, Effect, Gateway, Input, Output, Refusal, Settings,
    Token,
};
use crate::core::ids::{EventKey, OperationId};
use crate::core::intent::Request;
use crate::core::lifecycle::{Actor, State};
use crate::core::machine::LinkState;
use crate::core::record::{Block, Operation, Record, Stored};
use crate::core::spec::MachineSpec;
use crate::core::time::{Now, Stamp};
use crate::failpoint;
use crate::journal::{
    Capacity, CommitError, Damaged, Journal, Pressure, Retention, Sheddable, Usage,
};
use crate::seeded::{self, Fault};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Most messages that wait for the engine; beyond, senders wait.
pub const WAITING_MESSAGES_MAX: usize = 1024;
/// Most messages decided in one round, and so committed with one flush.
const ROUND_MESSAGES_MAX: usize = 256;
/// Upkeep is done at least every so many commits, however busy the engine is.
const UPKEEP_COMMITS_MAX: u64 = 200;
/// A stop waits so long for the exchanges that are under way, in milliseconds.
const STOP_MS_MAX: u64 = 10_000;
/// Entries that one slice of upkeep may touch.
const UPKEEP_ENTRIES_MAX: usize = 64;
/// Upkeep is looked at so often when nothing happens, in milliseconds.
const UPKEEP_MS: u64 = 1_000;

/// What the engine is asked.
pub enum Message {
    /// Something happened; nobody waits for an answer.
    Input(Input),
    /// A request.
    Submit(Box<Request>, Actor, oneshot::Sender<Answer>),
    /// Something about one operation.
    Act(OperationId, Act, Actor, oneshot::Sender<Answer>),
    /// An operation that is in memory, if it is.
    Look(OperationId, oneshot::Sender<Option<Box<Operation>>>),
    /// Tell when it has ended; at once if it has.
    Ended(OperationId, oneshot::Sender<()>),
    /// Decide, and say so once it is durable.
    Durable(Box<Input>, oneshot::Sender<()>),
    /// Make a record durable, then say so.
    Keep(Box<Record>, oneshot::Sender<()>),
    /// Mend a dead letter, then say under which key; `None`: it does not stand any more.
    Correct(Box<Correction>, oneshot::Sender<Option<EventKey>>),
    /// The configuration was read again and passed every check.
    Reconfigure(
        Vec<Arc<MachineSpec>>,
        Box<Settings>,
        Actor,
        oneshot::Sender<()>,
    ),
    /// How things stand.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Take nothing new, finish what is under way, close the journal.
    Stop,
}

/// How things stand, as the core sees them.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Damage was found.
    pub recovery: bool,
    /// Stopping.
    pub stopping: bool,
    /// Now.
    pub now: Stamp,
    /// By machine: link, since, reason, in flight, queued, held, unknown.
    pub machines: Vec<MachineSnapshot>,
    /// Those that stand.
    pub alarms: Vec<Alarm>,
    /// The journal's use.
    pub usage: Usage,
    /// Why it is full, if it is.
    pub full: Option<String>,
    /// Telemetry events given up for want of room, ever.
    pub shed_total: u64,
}

/// One machine of a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct MachineSnapshot {
    /// Its name.
    pub name: String,
    /// How its link stands.
    pub link: LinkState,
    /// Since when.
    pub since: Stamp,
    /// Why.
    pub reason: String,
    /// Under way.
    pub in_flight: Option<OperationId>,
    /// How many.
    pub queued: usize,
    /// How many.
    pub held: usize,
    /// How many.
    pub unknown: usize,
    /// What of the gate is closed for every command, though the link is up.
    pub gate_closed: Option<String>,
    /// Since when the oldest that is held has been.
    pub held_since: Option<Stamp>,
    /// Since when the oldest that is unknown has been.
    pub unknown_since: Option<Stamp>,
}

/// Sends errands to the machine tasks, which come and go with the configuration.
#[derive(Clone, Default)]
pub struct Switchboard(Arc<Mutex<HashMap<String, mpsc::UnboundedSender<Errand>>>>);

impl Switchboard {
    /// A machine task is there. Its queue is bounded by the core: one job, one gate reading, one probe and
    /// one burn at a time, and for each look at a source one answer to it.
    pub fn connect(&self, machine: &str, to: mpsc::UnboundedSender<Errand>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(machine.to_owned(), to);
    }
    /// It is gone.
    pub fn disconnect(&self, machine: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(machine);
    }
    /// Hands an errand over.
    ///
    /// # Errors
    /// The errand: no task is there to take it.
    pub fn send(&self, machine: &str, errand: Errand) -> Result<(), Box<Errand>> {
        let board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match board.get(machine) {
            Some(to) => to.send(errand).map_err(|unsent| Box::new(unsent.0)),
            None => Err(Box::new(errand)),
        }
    }
}

/// A journal to write to, or only what damage left to read.
pub enum Store {
    /// Whole.
    Open(Box<Journal>),
    /// Recovery mode (REC-03).
    ReadOnly(Box<Damaged>),
}

/// The engine.
pub struct Engine {
    /// Decides.
    pub core: Gateway,
    /// Remembers.
    pub store: Store,
    /// Reads the clocks.
    pub clock: Clock,
    /// Questions.
    pub inbox: mpsc::Receiver<Message>,
    /// The machine tasks.
    pub board: Switchboard,
    /// Proof of progress.
    pub beat: Beat,
    /// How long things are kept.
    pub retention: Retention,
}

/// Why the engine ended.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Disk: what is in the file is no longer known, so nothing more may be promised.
    #[error("{0}; the gateway ends, so that its next start finds out what is on the disk")]
    Commit(#[from] CommitError),
    /// Nobody outside: a fault of the program.
    #[error("the engine ended by a fault of its own, told above; the gateway ends with it")]
    Fault,
}

struct Round {
    waiters: HashMap<Token, oneshot::Sender<Answer>>,
    ended: HashMap<OperationId, Vec<oneshot::Sender<()>>>,
    kept: Vec<oneshot::Sender<()>>,
    corrected: Vec<(EventKey, oneshot::Sender<Option<EventKey>>)>,
    /// Dead letters that this round settles, by sink and key.
    settling: HashSet<(String, EventKey)>,
    /// What errands came to that nobody took, for the next round.
    returned: Vec<Input>,
    told: AlarmLog,
    next_token: u64,
    commits: u64,
    busy: bool,
    upkeep_at: Instant,
    stop_by: Option<Instant>,
}

impl Engine {
    /// Runs until told to stop, or until the journal cannot be written.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn run(self) -> Result<(), EngineError> {
        let held = match &self.store {
            Store::Open(journal) => Some(journal.reader()),
            Store::ReadOnly(_) => None,
        };
        let result = self.run_to_the_end();
        if result.is_err() {
            // Closing the store would write and sync once more, and panic where that fails: the reason why the
            // gateway ends would never be told.
            std::mem::forget(held);
        }
        result
    }

    fn run_to_the_end(mut self) -> Result<(), EngineError> {
        let mut round = Round {
            waiters: HashMap::new(),
            ended: HashMap::new(),
            kept: Vec::new(),
            corrected: Vec::new(),
            settling: HashSet::new(),
            returned: Vec::new(),
            told: AlarmLog::default(),
            next_token: 0,
            commits: 0,
            busy: false,
            upkeep_at: Instant::now(),
            stop_by: None,
        };
        let timer = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| CommitError::Store(error.to_string()))?;
        let now = self.clock.now();
        let first = self.core.handle(&now, Input::Started);
        self.finish(&mut round, vec![first])?;
        loop {
            let wait = self.wait(&round);
            let message =
                timer.block_on(async { tokio::time::timeout(wait, self.inbox.recv()).await });
            let message = match message {
                Ok(Some(message)) => Some(message),
                Ok(None) => break,
                Err(_) => None,
            };
            self.round(&mut round, message)?;
            // What is still under way then is unknown, and the next start says so (REC-02).
            if round
                .stop_by
                .is_some_and(|by| self.core.is_quiet() || Instant::now() >= by)
            {
                break;
            }
        }
        match self.store {
            Store::Open(journal) => Ok(journal.close()?),
            Store::ReadOnly(_) => Ok(()),
        }
    }

    fn wait(&self, round: &Round) -> Duration {
        let now = self.clock.now();
        let due = self
            .core
            .next_due_ns()
            .map(|due| Duration::from_nanos(due.saturating_sub(now.boottime_ns)));
        let upkeep = if round.busy || !round.returned.is_empty() {
            Duration::ZERO
        } else {
            Duration::from_millis(UPKEEP_MS.min(BEAT_MS_MAX))
        };
        let wait = due.unwrap_or(upkeep).min(upkeep);
        // A clock that a test moves does not wake anybody.
        #[cfg(feature = "test-hooks")]
        let wait = if super::clock::hooks::file().is_some() {
            wait.min(Duration::from_millis(10))
        } else {
            wait
        };
        wait
    }

    /// Decides on everything that waits, commits it with one flush, and acts.
    fn round(&mut self, round: &mut Round, first: Option<Message>) -> Result<(), EngineError> {
        let now = self.clock.now();
        self.beat.at(now.boottime_ns);
        let mut outputs = self.watch_capacity(&now)?;
        for input in std::mem::take(&mut round.returned) {
            outputs.extend(self.decide(&now, input));
        }
        let mut next = first;
        let mut taken = 0;
        while let Some(message) = next {
            if let Some(output) = self.take(round, &now, message) {
                outputs.push(output);
            }
            taken += 1;
            next = if taken < ROUND_MESSAGES_MAX {
                self.inbox.try_recv().ok()
            } else {
                None
            };
        }
        if self
            .core
            .next_due_ns()
            .is_some_and(|due| due <= now.boottime_ns)
        {
            outputs.push(self.core.handle(&now, Input::Tick));
        }
        self.finish(round, outputs)?;
        self.upkeep(round, &now, taken)
    }

    /// Near the budget telemetry is given up, and at it nothing new is taken.
    fn watch_capacity(&mut self, now: &Now) -> Result<Vec<Output>, EngineError> {
        let mut outputs = Vec::new();
        let Store::Open(journal) = &mut self.store else {
            return Ok(outputs);
        };
        let pressure = journal.pressure();
        if pressure == Pressure::High
            && let Some(slice) = journal.sheddable(&self.retention)?
        {
            let Sheddable { through, keys } = slice;
            outputs.push(self.core.handle(now, Input::Shed { through, keys }));
        } else if let Some(over) = self.core.shed_over(now, pressure == Pressure::Low) {
            outputs.push(self.core.handle(now, over));
        }
        let full = match journal.capacity() {
            Capacity::Ok => None,
            Capacity::Full { why } => Some(why),
        };
        if full.is_some() != self.core.capacity_full().is_some() {
            outputs.push(self.core.handle(now, Input::Capacity(full)));
        }
        Ok(outputs)
    }

    fn take(&mut self, round: &mut Round, now: &Now, message: Message) -> Option<Output> {
        match message {
            Message::Input(input) => self.decide(now, input),
            Message::Submit(request, actor, reply) => {
                let token = round.token(reply);
                let input = Input::Submit {
                    request: *request,
                    actor,
                    token,
                };
                self.decide_for(round, now, input, token)
            }
            Message::Act(id, act, actor, reply) => {
                let token = round.token(reply);
                self.decide_for(
                    round,
                    now,
                    Input::Act {
                        id,
                        act,
                        actor,
                        token,
                    },
                    token,
                )
            }
            Message::Look(id, reply) => {
                let _ = reply.send(self.core.operation(&id).cloned().map(Box::new));
                None
            }
            Message::Ended(id, reply) => {
                if self
                    .core
                    .operation(&id)
                    .is_some_and(|operation| !operation.state.is_ended())
                {
                    // Waits that ended by themselves leave nothing behind, however long this stays open.
                    let waiting = round.ended.entry(id).or_default();
                    waiting.retain(|waiter| !waiter.is_closed());
                    waiting.push(reply);
                } else {
                    let _ = reply.send(());
                }
                None
            }
            Message::Keep(record, reply) => {
                // As with a correction: what is not written is not said to be.
                if self.core.is_recovery() {
                    return None;
                }
                round.kept.push(reply);
                self.decide(now, Input::Keep { record: *record })
            }
            Message::Durable(input, reply) => {
                if self.core.is_recovery() {
                    return None;
                }
                round.kept.push(reply);
                self.decide(now, *input)
            }
            Message::Correct(correction, reply) => {
                // Decided here, where one comes after the other: two who mend one letter at once would make two
                // corrections of it.
                let letter = &correction.letter;
                let letter = (letter.sink.clone(), letter.event.key.clone());
                if !self.stands(&letter) || !round.settling.insert(letter) {
                    let _ = reply.send(None);
                    return None;
                }
                let output = self.decide(now, Input::Correct(correction))?;
                let records = output.blocks.iter().flat_map(|block| &block.records);
                let key = records.into_iter().find_map(|record| match record {
                    Record::Event(event) if event.event_type == CORRECTION => Some(&event.key),
                    _ => None,
                });
                // In recovery mode nothing is written, and the question ends without an answer.
                round.corrected.extend(key.cloned().map(|key| (key, reply)));
                Some(output)
            }
            Message::Reconfigure(machines, settings, actor, reply) => {
                round.kept.push(reply);
                self.decide(
                    now,
                    Input::Reconfigured {
                        machines,
                        settings,
                        actor,
                    },
                )
            }
            Message::Snapshot(reply) => {
                let _ = reply.send(self.snapshot(now));
                None
            }
            Message::Stop => {
                self.core.stop();
                round.stop_by = Some(Instant::now() + Duration::from_millis(STOP_MS_MAX));
                None
            }
        }
    }

    /// Whether nobody has settled this dead letter yet.
    fn stands(&self, (sink, key): &(String, EventKey)) -> bool {
        match &self.store {
            Store::Open(journal) => {
                let letter = journal.reader().dead_letter(sink, key);
                letter.is_ok_and(|letter| letter.is_some())
            }
            Store::ReadOnly(_) => false,
        }
    }

    /// Looks up what the input is about, then lets the core decide.
    fn decide(&mut self, now: &Now, input: Input) -> Option<Output> {
        if let Err(why) = self.recall(&input) {
            log::error!("{why}");
            return None;
        }
        Some(self.core.handle(now, input))
    }

    fn decide_for(
        &mut self,
        round: &mut Round,
        now: &Now,
        input: Input,
        token: Token,
    ) -> Option<Output> {
        // An id that cannot be looked up may be taken: deciding without knowing could repeat an effect.
        if let Err(why) = self.recall(&input) {
            if let Some(reply) = round.waiters.remove(&token) {
                let _ = reply.send(Answer::Refused(Refusal::StoreUnavailable(why)));
            }
            return None;
        }
        Some(self.core.handle(now, input))
    }

    fn recall(&mut self, input: &Input) -> Result<(), String> {
        let missing = self.core.missing(input);
        if missing.is_empty() {
            return Ok(());
        }
        let reader = match &self.store {
            Store::Open(journal) => journal.reader(),
            Store::ReadOnly(damaged) => damaged.reader(),
        };
        for id in missing {
            let stored: Option<Stored> = reader.lookup(&id).map_err(|error| error.to_string())?;
            if let Some(stored) = stored {
                self.core.recall(stored);
            }
        }
        Ok(())
    }

    /// Durable first; then, and only then, the effects.
    fn finish(&mut self, round: &mut Round, outputs: Vec<Output>) -> Result<(), EngineError> {
        let mut blocks = Vec::new();
        let mut effects = Vec::new();
        let mut ended = Vec::new();
        for output in outputs {
            blocks.extend(output.blocks);
            effects.extend(output.effects);
            ended.extend(output.ended);
        }
        if seeded::is_on(Fault::AcknowledgeBeforeSync) {
            let answers = effects.extract_if(.., |effect| matches!(effect, Effect::Answer { .. }));
            for answer in answers.collect::<Vec<_>>() {
                self.perform(round, answer);
            }
        }
        if let Store::Open(journal) = &mut self.store
            && !blocks.is_empty()
        {
            failpoint!("engine.before-commit");
            record_points(&blocks, "before-commit");
            journal.commit(&blocks)?;
            round.commits += blocks.len() as u64;
            failpoint!("engine.after-commit");
            record_points(&blocks, "durable");
        }
        self.core.committed();
        round.told.tell(self.core.alarms());
        for effect in effects {
            self.perform(round, effect);
        }
        for (key, reply) in round.corrected.drain(..) {
            let _ = reply.send(Some(key));
        }
        round.settling.clear();
        for reply in round.kept.drain(..) {
            let _ = reply.send(());
        }
        for id in ended {
            for waiter in round.ended.remove(&id).unwrap_or_default() {
                let _ = waiter.send(());
            }
        }
        Ok(())
    }

    fn perform(&mut self, round: &mut Round, effect: Effect) {
        if let Effect::Answer { token, answer } = effect {
            failpoint!("engine.before-answer");
            if let Some(reply) = round.waiters.remove(&token) {
                // A caller that went away asks again with the same id.
                let _ = reply.send(*answer);
            }
            return;
        }
        if let Effect::Run { .. } = effect {
            failpoint!("engine.before-run");
        }
        let Some((machine, errand)) = Errand::of(effect) else {
            return;
        };
        // While a machine's task is exchanged nobody takes them: then nothing was sent, and that is known.
        if let Err(errand) = self.board.send(&machine, errand) {
            round
                .returned
                .extend(errand.refused(&machine, "its link is not running"));
        }
    }

    fn upkeep(&mut self, round: &mut Round, now: &Now, taken: usize) -> Result<(), EngineError> {
        let Store::Open(journal) = &mut self.store else {
            return Ok(());
        };
        // Between messages if there is a moment, and now and then if there never is one.
        let due = round.upkeep_at.elapsed() >= Duration::from_millis(UPKEEP_MS);
        if due || (round.busy && taken == 0) || round.commits >= UPKEEP_COMMITS_MAX {
            round.commits = 0;
            round.upkeep_at = Instant::now();
            round.busy = journal
                .maintain(now, &self.retention, UPKEEP_ENTRIES_MAX)?
                .busy();
            self.core.forgot_until(journal.unproven_before_us());
        }
        Ok(())
    }

    /// What is open of machines that are in no file any more still waits for somebody.
    fn machines_not_configured(&self, now: &Now) -> Vec<MachineSnapshot> {
        let mut open: HashMap<&str, Vec<&Operation>> = HashMap::new();
        for operation in self.core.open() {
            let machine = operation.intent.machine.as_str();
            if !self.core.machines().contains_key(machine) {
                open.entry(machine).or_default().push(operation);
            }
        }
        let snapshot = |(name, open): (&str, Vec<&Operation>)| {
            let of = |wanted: fn(&State) -> bool| {
                open.iter()
                    .copied()
                    .filter(move |operation| wanted(&operation.state))
            };
            let held = || of(|state| matches!(state, State::Held(_)));
            let unknown = || of(|state| matches!(state, State::OutcomeUnknown(_)));
            MachineSnapshot {
                name: name.to_owned(),
                link: LinkState::Down,
                since: *now,
                reason: "not configured any more".into(),
                in_flight: None,
                queued: of(|state| *state == State::Queued).count(),
                held: held().count(),
                unknown: unknown().count(),
                gate_closed: None,
                held_since: oldest(held()),
                unknown_since: oldest(unknown()),
            }
        };
        open.into_iter().map(snapshot).collect()
    }

    fn snapshot(&mut self, now: &Now) -> Snapshot {
        let (usage, full) = match &mut self.store {
            Store::Open(journal) => (
                journal.usage(),
                self.core.capacity_full().map(str::to_owned),
            ),
            Store::ReadOnly(_) => (Usage::default(), None),
        };
        let mut machines = self.machines_not_configured(now);
        machines.extend(self.core.machines().values().map(|machine| {
            let held = machine.held.iter().filter_map(|id| self.core.operation(id));
            let unknown: Vec<&Operation> = machine
                .unresolved
                .values()
                .filter_map(|id| self.core.operation(id))
                .filter(|operation| matches!(operation.state, State::OutcomeUnknown(_)))
                .collect();
            MachineSnapshot {
                name: machine.spec.name.clone(),
                link: machine.link,
                since: machine.since,
                reason: machine.reason.clone(),
                in_flight: machine.in_flight.clone(),
                queued: machine.waiting.len(),
                held: machine.held.len(),
                unknown: unknown.len(),
                gate_closed: machine.gate_closed().map(|held| held.to_string()),
                held_since: oldest(held),
                unknown_since: oldest(unknown.into_iter()),
            }
        }));
        Snapshot {
            recovery: self.core.is_recovery(),
            stopping: self.core.is_stopping(),
            now: *now,
            machines,
            alarms: self.core.alarms().cloned().collect(),
            usage,
            full,
            shed_total: self.core.shed_total(),
        }
    }
}

/// Kill points that only the commit of an operation, of what a source gave, or of how far a sink has come passes,
/// whatever else is committed around it: `op.before-commit`, with the state that it brings `op.completed.durable`,
/// `source.durable`, `cursor.durable`.
#[cfg(feature = "test-hooks")]
fn record_points(blocks: &[Block], when: &str) {
    for record in blocks.iter().flat_map(|block| &block.records) {
        if let Record::Operation(operation) = record {
            crate::sys::kill_point(&format!("op.{when}"));
            crate::sys::kill_point(&format!("op.{}.{when}", operation.state.name()));
        }
        if let Record::Source(_) = record {
            crate::sys::kill_point(&format!("source.{when}"));
        }
        if let Record::Cursor(_) = record {
            crate::sys::kill_point(&format!("cursor.{when}"));
        }
    }
}
#[cfg(not(feature = "test-hooks"))]
fn record_points(_: &[Block], _: &str) {}

/// When the first of them came to stand where it stands.
fn oldest<'a>(operations: impl Iterator<Item = &'a Operation>) -> Option<Stamp> {
    let stamps = operations.filter_map(|operation| operation.history.last().map(|entry| entry.at));
    stamps.min_by_key(|stamp| stamp.wall_us)
}

impl Round {
    fn token(&mut self, reply: oneshot::Sender<Answer>) -> Token {
        self.next_token += 1;
        let token = Token(self.next_token);
        self.waiters.insert(token, reply);
        token
    }
}
