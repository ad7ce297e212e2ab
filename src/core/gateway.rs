//! Owns: the whole decision of the gateway: `(now, input) -> records to make durable, effects for after`.
//! May call: every file of this room.
//! Never: act; wait; know what time it is but by `now`.

use super::contract::{
    Exchange, GateReading, Job, MailboxRequest, Presented, Probe, ProbeAnswer, RingReading,
};
use super::ids::{
    AttemptId, CommitNo, ConnectionNo, Epoch, EventKey, InvalidOperationId, OperationId, Sequence,
};
use super::intent::{Digest, InvalidArgument, Request};
use super::jitter::Jitter;
use super::lifecycle::Actor;
use super::machine::Machine;
use super::record::{
    Block, CursorRecord, DeadLetter, MachineRecord, Operation, Record, ShedRecord, SinkRecord,
    SourceRecord, Stored, Tombstone,
};
use super::roles::Roles;
use super::source::{Memory, SourceKey};
use super::spec::{MachineSpec, Quality, Value};
use super::time::{Deadline, Now, Stamp};
use super::turn::Turn;
use super::upkeep::Observation;
use crate::seeded::{self, Fault};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Type of the event that says what another should have been.
pub const CORRECTION: &str = "correction";
/// Most operations that may be open at once, over all machines (CAP-01).
pub const OPEN_OPERATIONS_MAX: usize = 10_000;
/// Most operations that one block holds.
const BLOCK_OPERATIONS_MAX: usize = 64;
/// Ended operations kept in memory, so that retries need no disk read.
const ENDED_KEPT_MAX: usize = 256;

/// What the gateway is told to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its configured name; the `source` of its own events.
    pub gateway: String,
    /// Replay window, in milliseconds (TIME-06).
    pub replay_window_ms: u64,
    /// Most drained commands a second and machine, in thousandths (POL-08).
    pub drain_per_machine_milli: u64,
    /// Most drained commands a second over all machines, in thousandths (POL-08).
    pub drain_total_milli: u64,
    /// Who may do what.
    pub roles: Roles,
}

/// Routes an answer back to who asked; means nothing to the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// What a person or a program may ask of one operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Withdraw it, if no byte has left.
    Cancel,
    /// Look into its unknown outcome now.
    Verify,
    /// Let a held one go on.
    Approve,
    /// Say what happened, with a reason (VER-05).
    Resolve {
        /// What is claimed.
        verdict: Verdict,
        /// Why.
        reason: String,
        /// The operation that made up for it.
        by_operation: Option<OperationId>,
    },
    /// Do it again under a new identity, with a reason (CMD-08). Its `issued_at` is now.
    Reissue {
        /// The new identity.
        new_id: String,
        /// Why.
        reason: String,
    },
}

/// A person's resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It had its effect.
    Completed,
    /// It had none.
    NotExecuted,
    /// It was made up for.
    Compensated,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The gateway starts, with what its journal held.
    Started,
    /// A request came in.
    Submit {
        /// As it came.
        request: Request,
        /// From whom.
        actor: Actor,
        /// For the answer.
        token: Token,
    },
    /// Somebody asks something of one operation.
    Act {
        /// Which.
        id: OperationId,
        /// What.
        act: Act,
        /// Who.
        actor: Actor,
        /// For the answer.
        token: Token,
    },
    /// A link changed.
    Link {
        /// Whose.
        machine: String,
        /// How.
        change: LinkChange,
    },
    /// The gate's registers were read, or could not be.
    Gate {
        /// Whose.
        machine: String,
        /// What they said.
        reading: Result<GateReading, String>,
    },
    /// An exchange ended.
    Exchanged {
        /// With whom.
        machine: String,
        /// For which operation.
        operation: OperationId,
        /// In which try.
        attempt: AttemptId,
        /// How.
        exchange: Exchange,
    },
    /// The exchange that was to give an id up ended; the next probe says what it did.
    Burned {
        /// With whom.
        machine: String,
        /// How.
        exchange: Exchange,
    },
    /// A probe was answered.
    Probed {
        /// By whom.
        machine: String,
        /// For which operation.
        operation: OperationId,
        /// With what.
        answer: ProbeAnswer,
    },
    /// A watched value was read.
    Observed {
        /// From whom.
        machine: String,
        /// Whose source: the event's type.
        event_type: String,
        /// `None` if there is nothing honest to show.
        value: Option<Value>,
        /// See [`Quality`].
        quality: Quality,
        /// Why it is not good.
        reason: Option<String>,
        /// When it was read.
        at: Stamp,
        /// When the same connection read it last, unchanged; `None`: not over this connection.
        since: Option<Stamp>,
    },
    /// A handshake was looked at.
    Presented {
        /// Whose.
        machine: String,
        /// Which source: the event's type.
        event_type: String,
        /// How it stands.
        seen: Presented,
        /// When it was read.
        at: Stamp,
    },
    /// A ring's head was read.
    RingHead {
        /// Whose.
        machine: String,
        /// Which source: the event's type.
        event_type: String,
        /// The number of the newest entry.
        head: u32,
        /// When it was read.
        at: Stamp,
    },
    /// What [`Effect::ReadRing`] came to.
    RingRead {
        /// Whose.
        machine: String,
        /// Which source: the event's type.
        event_type: String,
        /// The entries, or why there are none.
        reading: Result<RingReading, String>,
    },
    /// A sink came further.
    SinkProgress {
        /// Its progress, whole.
        cursor: CursorRecord,
        /// What else there is to it, whole; `None`: as it was.
        more: Option<SinkRecord>,
        /// Events that it will never take.
        dead_letters: Vec<DeadLetter>,
        /// The end of a dead letter that it has now taken.
        settled: Vec<Record>,
    },
    /// A sink stands still until a person mends something; `None`: it goes on.
    SinkStopped {
        /// Which.
        sink: String,
        /// What must be mended.
        why: Option<String>,
    },
    /// A dead letter is mended: an event of its own says what should have been, and settles it.
    Correct(Box<Correction>),
    /// Something to be kept as it is: a denied request, a settled dead letter.
    Keep {
        /// What.
        record: Record,
    },
    /// The journal has room, or has not, and why.
    Capacity(Option<String>),
    /// The journal is near its budget: telemetry up to `through` is given up.
    Shed {
        /// The last commit of the slice.
        through: CommitNo,
        /// What is in it that some sink has not taken, in the order of the log.
        keys: Vec<EventKey>,
    },
    /// See [`Gateway::shed_over`].
    ShedOver,
    /// The configuration was read again.
    Reconfigured {
        /// The machines, whole.
        machines: Vec<Arc<MachineSpec>>,
        /// The settings, whole.
        settings: Box<Settings>,
        /// Who had it read.
        actor: Actor,
    },
    /// Time passed.
    Tick,
}

/// What a person says in place of an event that a sink never takes. The event itself is frozen (EVT-01): its
/// key and its content stay on record, and what is said now has a key of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// The dead letter.
    pub letter: DeadLetter,
    /// The body as it should have been, JSON.
    pub body: serde_json::Value,
    /// How many are to be counted with it.
    pub qty: i64,
    /// Why, and by whom.
    pub reason: String,
    /// See `reason`.
    pub actor: Actor,
}

/// How a link changed.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkChange {
    /// A connection is being made.
    Connecting,
    /// A connection stands, and a probe read passed.
    Up(ConnectionNo),
    /// It is gone.
    Down {
        /// Why.
        reason: String,
    },
}

/// What the shell does once the records are durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer who asked.
    Answer {
        /// Whom.
        token: Token,
        /// What.
        answer: Box<Answer>,
    },
    /// Hand a job to the link; the answer is [`Input::Exchanged`].
    Run {
        /// Whose link.
        machine: String,
        /// The connection by whose gate it was decided, and the only one that it may go out over.
        connection: ConnectionNo,
        /// For which operation.
        operation: OperationId,
        /// In which try.
        attempt: AttemptId,
        /// What.
        job: Job,
        /// Not to be handed over at or after this (TIME-02).
        deadline: Option<Deadline>,
    },
    /// Read the gate; the answer is [`Input::Gate`].
    ReadGate {
        /// Whose.
        machine: String,
    },
    /// Look into an outcome; the answer is [`Input::Probed`].
    Probe {
        /// Whose link.
        machine: String,
        /// See [`Effect::Run`].
        connection: ConnectionNo,
        /// For which operation.
        operation: OperationId,
        /// What to read.
        probe: Probe,
    },
    /// Commit the no-op by which an id is given up; the answer is [`Input::Burned`].
    Burn {
        /// Whose link.
        machine: String,
        /// See [`Effect::Run`].
        connection: ConnectionNo,
        /// The no-op.
        request: MailboxRequest,
    },
    /// Set or clear a handshake's acknowledgement. Nothing answers: it is decided anew at the next look.
    Acknowledge {
        /// Whose link.
        machine: String,
        /// See [`Effect::Run`].
        connection: ConnectionNo,
        /// Which source: the event's type.
        event_type: String,
        /// To be set while the device presents this item, whose event is durable; `None`: to be cleared.
        item: Option<u32>,
    },
    /// Read entries of a ring; the answer is [`Input::RingRead`].
    ReadRing {
        /// Whose link.
        machine: String,
        /// See [`Effect::Run`].
        connection: ConnectionNo,
        /// Which source: the event's type.
        event_type: String,
        /// The first entry's number.
        first: u32,
        /// How many at most.
        count: u16,
    },
}

/// What one input decided.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Output {
    /// To be made durable first, together; usually one, and none if nothing is to be written.
    pub blocks: Vec<Block>,
    /// To be done then, in this order.
    pub effects: Vec<Effect>,
    /// Operations that ended.
    pub ended: Vec<OperationId>,
}

/// An alarm that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Stable, such as `journal_full`, `identity_mismatch`, `link_down`.
    pub code: String,
    /// The machine it is about; empty for the gateway.
    pub about: String,
    /// Since when.
    pub since: Stamp,
    /// What is wrong.
    pub text: String,
}

/// Everything the gateway knows and decides by.
#[derive(Clone)]
pub struct Gateway {
    pub(super) settings: Settings,
    pub(super) epoch: Epoch,
    pub(super) next_commit: CommitNo,
    pub(super) next_attempt: u64,
    pub(super) machines: BTreeMap<String, Machine>,
    /// Facts of machines that are not configured now: one that comes back must not give out an id again.
    pub(super) absent: BTreeMap<String, MachineRecord>,
    pub(super) operations: HashMap<OperationId, Operation>,
    pub(super) tombstones: HashMap<OperationId, Tombstone>,
    pub(super) ended: VecDeque<OperationId>,
    pub(super) open_count: usize,
    pub(super) timers: BTreeSet<(u64, OperationId)>,
    pub(super) sequences: HashMap<String, Sequence>,
    pub(super) alarms: BTreeMap<(String, String), Alarm>,
    /// How far the sources are taken; those of machines that are gone are kept, for they may come back.
    pub(super) sources: BTreeMap<SourceKey, SourceRecord>,
    pub(super) source_memory: BTreeMap<SourceKey, Memory>,
    pub(super) capacity_full: Option<String>,
    pub(super) events_left_out: u64,
    pub(super) highest_wall_us: i64,
    pub(super) start: StartFacts,
    pub(super) shed: ShedRecord,
    unproven_before_us: i64,
    pub(super) next_drain_ns: u64,
    pub(super) jitter: Jitter,
    pub(super) last_now_ns: u64,
    wall_offset_us: Option<i64>,
    recovery: bool,
    stopping: bool,
}

/// What a journal gave back.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The epoch of this start.
    pub epoch: Epoch,
    /// The number of the first commit to make.
    pub next_commit: CommitNo,
    /// Every operation that has not ended.
    pub operations: Vec<Operation>,
    /// Every machine's durable facts.
    pub machines: Vec<MachineRecord>,
    /// How far the sources at the machines were taken.
    pub sources: Vec<SourceRecord>,
    /// The highest wall time on record, microseconds since 1970.
    pub highest_wall_us: i64,
    /// Before this wall time, microseconds since 1970, an operation may have been recorded and lost; 0: none.
    pub unproven_before_us: i64,
    /// The journal is created, salvaged or a copy: what was given out after it was written is not in it.
    pub new_incarnation: bool,
    /// The epoch of the start before; 0: there was none, or it is not known.
    pub previous_epoch: Epoch,
    /// Why this epoch began, if not by an ordinary start.
    pub note: Option<String>,
    /// Whether the stop before was clean.
    pub clean: bool,
    /// The journal is another computer's, and nobody has said that this one takes its place.
    pub foreign: Option<String>,
    /// Telemetry that was given up, as far as it is on record.
    pub shed: ShedRecord,
    /// Damage was found (REC-03).
    pub recovery: bool,
}

/// What is told about this start.
#[derive(Clone)]
pub(super) struct StartFacts {
    pub(super) previous_epoch: Epoch,
    pub(super) note: Option<String>,
    pub(super) clean: bool,
    pub(super) foreign: Option<String>,
}

impl Gateway {
    /// A gateway that knows what its journal held; [`Input::Started`] must be its first input.
    #[must_use]
    pub fn new(
        settings: Settings,
        specs: Vec<Arc<MachineSpec>>,
        restored: Restored,
        now: &Now,
        seed: u64,
    ) -> Self {
        let mut absent: BTreeMap<String, MachineRecord> = restored
            .machines
            .into_iter()
            .map(|record| (record.name.clone(), record))
            .collect();
        let machines = specs
            .into_iter()
            .map(|spec| {
                let record = machine_record(
                    &mut absent,
                    &spec.name,
                    restored.epoch,
                    restored.new_incarnation,
                );
                (spec.name.clone(), Machine::new(spec, record, now))
            })
            .collect();
        let open_count = restored.operations.len();
        let epoch = if seeded::is_on(Fault::EpochNotAdvanced) && restored.previous_epoch.0 > 0 {
            restored.previous_epoch
        } else {
            restored.epoch
        };
        Self {
            settings,
            epoch,
            next_commit: restored.next_commit,
            next_attempt: 1,
            machines,
            absent,
            operations: restored
                .operations
                .into_iter()
                .map(|op| (op.id.clone(), op))
                .collect(),
            tombstones: HashMap::new(),
            ended: VecDeque::new(),
            open_count,
            timers: BTreeSet::new(),
            sequences: HashMap::new(),
            alarms: BTreeMap::new(),
            sources: restored
                .sources
                .into_iter()
                .map(|record| {
                    let key = (record.machine.clone(), record.event_type.clone());
                    (key, record)
                })
                .collect(),
            source_memory: BTreeMap::new(),
            capacity_full: None,
            events_left_out: 0,
            highest_wall_us: restored.highest_wall_us,
            shed: restored.shed,
            start: StartFacts {
                previous_epoch: restored.previous_epoch,
                note: restored.note,
                clean: restored.clean,
                foreign: restored.foreign,
            },
            unproven_before_us: restored.unproven_before_us,
            next_drain_ns: 0,
            jitter: Jitter::new(seed),
            last_now_ns: now.boottime_ns,
            wall_offset_us: None,
            recovery: restored.recovery,
            stopping: false,
        }
    }

    /// Ids that `input` is about and that memory does not hold: the shell looks them up and hands what it
    /// finds to [`Gateway::recall`] first.
    #[must_use]
    pub fn missing(&self, input: &Input) -> Vec<OperationId> {
        let mut named: Vec<Option<OperationId>> = Vec::new();
        let parse = |text: &Option<String>| {
            text.as_deref()
                .and_then(|text| OperationId::parse(text).ok())
        };
        if let Input::Submit { request, .. } = input {
            named.extend([
                parse(&request.operation_id),
                parse(&request.replaces),
                parse(&request.reissue_of),
            ]);
        }
        if let Input::Act { id, act, .. } = input {
            named.push(Some(id.clone()));
            if let Act::Reissue { new_id, .. } = act {
                named.push(OperationId::parse(new_id).ok());
            }
        }
        named
            .into_iter()
            .flatten()
            .filter(|id| !self.operations.contains_key(id) && !self.tombstones.contains_key(id))
            .collect()
    }

    /// Takes in what the journal knows of an id.
    pub fn recall(&mut self, stored: Stored) {
        match stored {
            Stored::Operation(operation) => {
                if operation.state.is_ended() {
                    self.ended.push_back(operation.id.clone());
                }
                self.operations
                    .entry(operation.id.clone())
                    .or_insert(*operation);
            }
            Stored::Tombstone(tombstone) => {
                self.tombstones.insert(tombstone.id.clone(), tombstone);
            }
        }
    }

    /// Decides. Nothing that it returns may be done before `block` is durable.
    pub fn handle(&mut self, now: &Now, input: Input) -> Output {
        let mut turn = Turn::new(*now, self.next_commit);
        self.last_now_ns = self.last_now_ns.max(now.boottime_ns);
        self.watch_clock(&mut turn);
        match input {
            Input::Submit {
                request,
                actor,
                token,
            } => self.submit(&mut turn, &request, &actor, token),
            Input::Act {
                id,
                act,
                actor,
                token,
            } => self.act(&mut turn, &id, act, &actor, token),
            Input::Started => self.started(&mut turn),
            Input::Link { machine, change } => self.link_changed(&mut turn, &machine, change),
            Input::Gate { machine, reading } => self.gate_read(&mut turn, &machine, reading),
            Input::Exchanged {
                machine,
                operation,
                attempt,
                exchange,
            } => {
                self.exchanged(&mut turn, &machine, &operation, attempt, exchange);
            }
            Input::Burned { machine, exchange } => self.burned(&mut turn, &machine, &exchange),
            Input::Probed {
                machine,
                operation,
                answer,
            } => {
                self.probed(&mut turn, &machine, &operation, answer);
            }
            Input::Observed {
                machine,
                event_type,
                value,
                quality,
                reason,
                at,
                since,
            } => {
                let seen = Observation {
                    value,
                    quality,
                    reason,
                    at,
                    since,
                };
                self.observed(&mut turn, &machine, &event_type, seen);
            }
            Input::Presented {
                machine,
                event_type,
                seen,
                at,
            } => self.presented(&mut turn, &machine, &event_type, &seen, at),
            Input::RingHead {
                machine,
                event_type,
                head,
                at,
            } => self.ring_head(&mut turn, &machine, &event_type, head, at),
            Input::RingRead {
                machine,
                event_type,
                reading,
            } => self.ring_read(&mut turn, &machine, &event_type, reading),
            Input::SinkProgress {
                cursor,
                more,
                dead_letters,
                settled,
            } => {
                turn.keep(Record::Cursor(cursor));
                turn.kept
                    .extend(more.map(|more| (None, Record::Sink(more))));
                for letter in dead_letters {
                    turn.keep(Record::DeadLetter(letter));
                }
                turn.kept
                    .extend(settled.into_iter().map(|record| (None, record)));
            }
            Input::SinkStopped { sink, why } => {
                let text = why.map(|why| format!("sink {sink} stands still: {why}"));
                self.set_alarm(&mut turn, "sink_stopped", &format!("sink {sink}"), text);
            }
            Input::Correct(correction) => self.correct(&mut turn, *correction),
            Input::Keep { record } => self.keep(&mut turn, record),
            Input::Capacity(full) => self.set_capacity(&mut turn, full),
            Input::Shed { through, keys } => self.shed(&mut turn, through, &keys),
            Input::ShedOver => self.tell_shed(&mut turn),
            Input::Reconfigured {
                machines,
                settings,
                actor,
            } => self.reconfigured(&mut turn, machines, *settings, &actor),
            Input::Tick => self.tick(&mut turn),
        }
        self.finish(turn)
    }

    /// The boot-relative time, in nanoseconds, at which [`Input::Tick`] is next wanted.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let drains = self
            .machines
            .values()
            .filter_map(|machine| machine.drain_due_ns);
        let unreached = self
            .machines
            .values()
            .filter_map(|machine| machine.unreached_due_ns);
        timer.into_iter().chain(drains).chain(unreached).min()
    }

    /// Before this wall time an id that is not on record proves nothing: its record may be lost.
    #[must_use]
    pub(super) fn unproven_before_us(&self) -> i64 {
        self.unproven_before_us
    }
    /// The journal may have forgotten ids of requests issued up to then.
    pub fn forgot_until(&mut self, issued_us: i64) {
        self.unproven_before_us = issued_us;
    }
    /// Damage was found, so nothing is decided or written (REC-03).
    #[must_use]
    pub fn is_recovery(&self) -> bool {
        self.recovery
    }
    /// Why nothing new is taken, if nothing is (CAP-01).
    #[must_use]
    pub fn capacity_full(&self) -> Option<&str> {
        self.capacity_full.as_deref()
    }
    /// From now on nothing new is taken.
    pub fn stop(&mut self) {
        self.stopping = true;
    }
    /// See [`Gateway::stop`].
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }
    /// An operation that memory holds.
    #[must_use]
    pub fn operation(&self, id: &OperationId) -> Option<&Operation> {
        self.operations.get(id)
    }
    /// Every operation that has not ended.
    pub fn open(&self) -> impl Iterator<Item = &Operation> {
        self.operations
            .values()
            .filter(|operation| !operation.state.is_ended())
    }
    /// The machines, for status.
    #[must_use]
    pub fn machines(&self) -> &BTreeMap<String, Machine> {
        &self.machines
    }
    /// The alarms that stand.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.values()
    }
    /// Whether every exchange that was begun has ended: the moment to stop.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.machines
            .values()
            .all(|machine| machine.in_flight.is_none())
    }

    /// A wall clock that is stepped changes nothing, and is recorded (TIME-05).
    fn watch_clock(&mut self, turn: &mut Turn) {
        const STEP_US_MIN: u64 = 1_000_000;
        let boot_us = i64::try_from(turn.now.boottime_ns / 1000).unwrap_or(i64::MAX);
        let offset_us = turn.now.wall_us.saturating_sub(boot_us);
        if let Some(before) = self.wall_offset_us.replace(offset_us)
            && before.abs_diff(offset_us) > STEP_US_MIN
        {
            let body = serde_json::json!({
                "step_us": (offset_us - before).to_string(),
                "trusted": turn.now.wall_trusted,
            });
            let source = self.settings.gateway.clone();
            self.emit(turn, &source, "clock.stepped", body);
        }
        if turn.now.wall_trusted {
            // A mark ahead of a trusted clock was made by a wrong one, and would refuse everything until it comes true.
            self.unproven_before_us = self.unproven_before_us.min(turn.now.wall_us);
            self.highest_wall_us = self.highest_wall_us.max(turn.now.wall_us);
        }
    }

    /// Who was refused is told to the sinks as well: the log itself is trimmed (OPS-02).
    /// The correction and the end of the dead letter stand in one commit.
    fn correct(&mut self, turn: &mut Turn, correction: Correction) {
        let Correction {
            letter,
            body,
            qty,
            reason,
            actor,
        } = correction;
        let event = letter.event;
        let said = serde_json::json!({
            "corrects": event.key.to_string(),
            "type": event.event_type,
            "sink": letter.sink,
            "status": letter.status,
            "reason": reason,
            "by": actor.to_string(),
            "body": body,
        });
        // The fact's own time, as trustworthy as it was.
        let at = Now {
            boot_id: event.unsynchronised.unwrap_or(turn.now.boot_id),
            boottime_ns: event.boottime_ns,
            wall_us: event.wall_us,
            wall_trusted: event.unsynchronised.is_none(),
        };
        let source = event.key.source.clone();
        let (class, quality) = (event.class, event.quality);
        self.emit_full(turn, &source, CORRECTION, said, class, quality, at, qty);
        turn.keep(Record::DeadLetterSettled {
            sink: letter.sink,
            key: event.key,
            how: "mended".into(),
            actor,
            reason,
        });
    }

    fn keep(&mut self, turn: &mut Turn, record: Record) {
        if let Record::Audit {
            actor,
            action,
            result,
        } = &record
            && result == "forbidden"
        {
            let body = serde_json::json!({ "actor": actor.to_string(), "action": action });
            let source = self.settings.gateway.clone();
            self.emit(turn, &source, "access.denied", body);
        }
        turn.keep(record);
    }

    fn set_capacity(&mut self, turn: &mut Turn, full: Option<String>) {
        let text = full
            .as_ref()
            .map(|why| format!("the journal takes nothing new: {why}"));
        self.set_alarm(turn, "journal_full", "", text);
        self.capacity_full = full;
        if self.capacity_full.is_some() {
            return;
        }
        let left_out = std::mem::take(&mut self.events_left_out);
        if left_out > 0 {
            let source = self.settings.gateway.clone();
            self.emit(
                turn,
                &source,
                "events.left_out",
                serde_json::json!({ "count": left_out }),
            );
        }
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            let unheard = self
                .machines
                .get_mut(&name)
                .map(|machine| std::mem::take(&mut machine.unheard));
            for (event_type, seen) in unheard.unwrap_or_default() {
                self.observed(turn, &name, &event_type, seen);
            }
            self.set_alarm(turn, "events_not_taken", &name, None);
        }
    }

    fn finish(&mut self, turn: Turn) -> Output {
        for id in &turn.touched {
            self.set_timer(id);
        }
        let mut output = Output {
            blocks: Vec::new(),
            effects: turn.effects,
            ended: turn.ended,
        };
        if !self.recovery {
            for records in self.records(&turn.touched, &turn.machines, turn.kept) {
                output.blocks.push(Block {
                    no: self.next_commit,
                    epoch: self.epoch,
                    at: turn.now,
                    records,
                });
                self.next_commit = CommitNo(self.next_commit.0 + 1);
            }
        }
        output
    }

    /// What the turn writes: one block, unless so many operations moved at once (a link with a full queue was
    /// lost, a gateway starts) that it would not fit. Then each operation goes with its last event, in the
    /// order of the events.
    fn records(
        &self,
        touched: &[OperationId],
        machines: &[String],
        kept: Vec<(Option<OperationId>, Record)>,
    ) -> Vec<Vec<Record>> {
        let operation = |id: &OperationId| {
            let operation = self.operations.get(id)?;
            Some(Record::Operation(Box::new(operation.clone())))
        };
        let machine =
            |name: &String| Some(Record::Machine(self.machines.get(name)?.record.clone()));
        let mut whole: Vec<Record> = machines.iter().filter_map(machine).collect();
        if touched.len() <= BLOCK_OPERATIONS_MAX {
            whole.extend(touched.iter().filter_map(operation));
            whole.extend(kept.into_iter().map(|(_, record)| record));
            return if whole.is_empty() {
                Vec::new()
            } else {
                vec![whole]
            };
        }
        let mut last: HashMap<OperationId, usize> = HashMap::new();
        for (index, (about, _)) in kept.iter().enumerate() {
            if let Some(id) = about {
                last.insert(id.clone(), index);
            }
        }
        whole.extend(
            touched
                .iter()
                .filter(|id| !last.contains_key(*id))
                .filter_map(operation),
        );
        let mut blocks = vec![whole];
        for (index, (about, record)) in kept.into_iter().enumerate() {
            let mut unit = vec![record];
            if let Some(id) = about.filter(|id| last.get(id) == Some(&index)) {
                unit.extend(operation(&id));
            }
            match blocks.last_mut() {
                Some(block) if block.len() < BLOCK_OPERATIONS_MAX => block.append(&mut unit),
                _ => blocks.push(unit),
            }
        }
        blocks.retain(|block| !block.is_empty());
        blocks
    }

    /// Everything that was decided so far is durable. Only now may memory forget ended operations: one that the
    /// journal does not hold yet would be taken for new.
    pub fn committed(&mut self) {
        while self.ended.len() > ENDED_KEPT_MAX {
            let Some(id) = self.ended.pop_front() else {
                break;
            };
            if self
                .operations
                .get(&id)
                .is_some_and(|operation| operation.state.is_ended())
                && !self.ended.contains(&id)
            {
                self.operations.remove(&id);
            }
        }
        if self.tombstones.len() > ENDED_KEPT_MAX {
            self.tombstones.clear();
        }
    }
}

/// The durable facts of a machine, taken out of `known`. Where nobody knows which request ids were given out (a new
/// machine, a new incarnation of the journal), a device may still show one of them as done: then the ids go on far
/// ahead, by a random stride, as two incarnations may begin from the same copy.
pub(super) fn machine_record(
    known: &mut BTreeMap<String, MachineRecord>,
    name: &str,
    epoch: Epoch,
    new_incarnation: bool,
) -> MachineRecord {
    /// More than any machine is commanded between a backup and its return.
    const STRIDE_MIN: u32 = 1 << 24;
    /// The low bits of an epoch that was drawn are random.
    const STRIDE_RANDOM_MASK: u64 = (1 << 26) - 1;
    let found = known.remove(name);
    let known_whole = found.is_some() && !new_incarnation;
    let mut record = found.unwrap_or_else(|| MachineRecord {
        name: name.to_owned(),
        ..MachineRecord::default()
    });
    if !known_whole {
        let random = (epoch.0 & STRIDE_RANDOM_MASK) as u32;
        record.last_request_id = record.last_request_id.wrapping_add(STRIDE_MIN + random);
    }
    record
}

/// What a caller is told about a request that names an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Recorded and durable. Its state may be any, `Rejected` among them.
    Recorded(Box<Operation>),
    /// The id was known with the same intent: as it stands (CMD-02).
    Replayed(Box<Operation>),
    /// The cancellation won (CAN-01).
    Cancelled(Box<Operation>),
    /// The cancellation lost: cannot be determined, or already ended (CAN-02).
    TooLate(Box<Operation>),
    /// Approved, resolved, or told to be verified.
    Done(Box<Operation>),
    /// Nothing was recorded under this id.
    Refused(Refusal),
}

/// Why nothing was recorded, by who must act.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// Caller: a side effect needs an identity (CMD-01).
    #[error(
        "this command changes the machine, so it needs an operation_id: make one, and use the same for every retry"
    )]
    MissingOperationId,
    /// Caller.
    #[error(transparent)]
    InvalidOperationId(#[from] InvalidOperationId),
    /// Caller.
    #[error("no machine {name:?} here{}", did_you_mean(.nearest))]
    UnknownMachine {
        /// As asked.
        name: String,
        /// The nearest one there is.
        nearest: Option<String>,
    },
    /// Caller.
    #[error("machine {machine:?} has no command {name:?}{}", did_you_mean(.nearest))]
    UnknownCommand {
        /// The machine.
        machine: String,
        /// As asked.
        name: String,
        /// The nearest one there is.
        nearest: Option<String>,
    },
    /// Caller.
    #[error("no operation {0:?} is recorded here")]
    UnknownOperation(String),
    /// Caller.
    #[error(transparent)]
    InvalidArgument(#[from] InvalidArgument),
    /// Caller: a new intent needs a new id (CMD-03).
    #[error("this operation_id is taken by a request that means something else (differs in {}); a new intent needs a new operation_id", .differing_fields.join(", "))]
    IdempotencyConflict {
        /// What is on record, untouched.
        recorded: Digest,
        /// What was asked now.
        received: Digest,
        /// Names of the fields that differ; empty where only a tombstone is left to compare with.
        differing_fields: Vec<String>,
    },
    /// Caller (AGT-01).
    #[error("this machine is commanded by {owner:?} alone: ask there")]
    NotOwner {
        /// The owning gateway.
        owner: String,
    },
    /// Caller: only a tombstone is left, or `issued_at` is too old or too far ahead (TIME-06, CAP-03).
    #[error(
        "the replay window of this request is over ({why}); if it is still wanted, issue it anew under a new operation_id"
    )]
    OutsideReplayWindow {
        /// In plain words.
        why: String,
    },
    /// Caller: the state does not allow it.
    #[error("not possible: operation {id:?} is {state}; {what}")]
    NotPossible {
        /// Which operation.
        id: String,
        /// The name of its state.
        state: String,
        /// What would be possible.
        what: String,
    },
    /// Operator (REC-03).
    #[error(
        "the gateway is in recovery mode after damage to its journal: reads are answered, nothing is sent"
    )]
    RecoveryMode,
    /// Operator: a cloned or moved journal.
    #[error(
        "{0}, and both may run: nothing is sent from here until somebody says that this one takes the other's place (holdfast journal adopt)"
    )]
    ForeignJournal(String),
    /// Operator (CAP-01).
    #[error("no room: {0}")]
    CapacityFull(String),
    /// Disk.
    #[error("the journal cannot be written: {0}")]
    StoreUnavailable(String),
    /// Nobody: it is stopping.
    #[error("the gateway is stopping; send the same request again in a moment")]
    Stopping,
}

fn did_you_mean(name: &Option<String>) -> String {
    name.as_ref()
        .map(|name| format!("; did you mean {name:?}?"))
        .unwrap_or_default()
}
