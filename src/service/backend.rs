//! Owns: the running gateway as the interface sees it: questions to the engine, reads of the journal.
//! May call: api's trait, the engine's inbox, the journal's reader, the machine and sink tasks.
//! Never: decide about an operation; answer before the engine has.

use super::alarm_log::mend;
use super::clock::Clock;
use super::engine::{Message, Snapshot, Switchboard};
use super::errand::Errand;
use super::machine_task::Shared;
use super::probe::trace_line;
use super::progress::Progress;
use super::sink_state::SinkShared;
use super::sink_task::SinkErrand;
use crate::api::backend::{
    Act, Alarm, Backend, EventsAfter, Health, JournalStatus, Known, MachineStatus, Mode,
    OperationFilter, Page, QueryError, ReadError, Reply, Settlement, SinkAct, SinkStatus, Status,
    TagStatus, Trace,
};
use crate::core::gateway::{Answer, Refusal};
use crate::core::ids::{CommitNo, EventKey, OperationId};
use crate::core::intent::{self, Request};
use crate::core::lifecycle::Actor;
use crate::core::outbox::Circuit;
use crate::core::place::parse_place;
use crate::core::record::{DeadLetter, EventRecord, Operation, Position, Record, Stored};
use crate::core::spec::{Action, Class, MachineSpec, Quality, Scalar, Tag, Value};
use crate::core::time::Stamp;
use crate::journal::{OperationQuery, Reader};
use crate::plc::secrets::is_secret;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Most events in one answer.
const EVENTS_PAGE_MAX: usize = 1_000;
/// Most bytes of events in one answer.
const EVENTS_BYTES_MAX: usize = 4 << 20;
/// Most dead letters in one answer.
const DEAD_LETTERS_PAGE_MAX: usize = 1_000;
/// Longest wait for a read of the device, in milliseconds, on top of the link's own timeouts.
const READ_MS_MAX: u64 = 10_000;

/// Everything behind the interface.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

/// What a [`Gate`] is made of.
pub struct Inner {
    /// The gateway's configured name.
    pub gateway: String,
    /// Since when it runs.
    pub started: Stamp,
    /// The engine.
    pub engine: mpsc::Sender<Message>,
    /// The journal.
    pub reader: Reader,
    /// The clocks.
    pub clock: Clock,
    /// The machine tasks' inboxes.
    pub board: Switchboard,
    /// What the machine tasks show.
    pub machines: RwLock<Vec<Arc<Shared>>>,
    /// What the sink tasks show, and their inboxes.
    pub sinks: Vec<(Arc<SinkShared>, mpsc::Sender<SinkErrand>)>,
    /// Proof of progress.
    pub progress: Progress,
    /// Asks for a reload, and hears what came of it.
    pub reload: mpsc::Sender<ReloadRequest>,
    /// The running epoch.
    pub epoch: u64,
    /// Damage was found: nothing is written down (REC-03).
    pub recovery: bool,
    /// Query waits that share one read (POL-02), by machine and command.
    pub queries: Mutex<HashMap<(String, String), Vec<QueryWaiter>>>,
}

/// Somebody asks for a reload, and waits for what came of it.
pub type ReloadRequest = (Actor, oneshot::Sender<Result<String, String>>);

/// Somebody who waits for a query without an identity.
pub type QueryWaiter = oneshot::Sender<Result<Vec<(String, Value)>, QueryError>>;

impl Gate {
    /// The interface's view of `inner`.
    #[must_use]
    pub fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }
    /// What it is made of.
    #[must_use]
    pub fn inner(&self) -> &Inner {
        &self.0
    }

    pub(super) async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.0.engine.send(message(reply)).await.ok()?;
        answer.await.ok()
    }

    fn machine(&self, name: &str) -> Option<Arc<Shared>> {
        let machines = self
            .0
            .machines
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        machines
            .iter()
            .find(|machine| machine.spec.name == name)
            .cloned()
    }

    fn machine_or(&self, name: &str) -> Result<Arc<Shared>, ReadError> {
        self.machine(name)
            .ok_or_else(|| ReadError::NotFound(format!("no machine {name:?} here")))
    }

    /// Reads the journal away from the runtime's workers.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, crate::journal::ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let reader = self.0.reader.clone();
        let done = tokio::task::spawn_blocking(move || read(&reader)).await;
        match done {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(ReadError::Store(error.0)),
            Err(error) => Err(ReadError::Store(error.to_string())),
        }
    }

    async fn known(&self, id: OperationId) -> Result<Option<Known>, ReadError> {
        let look = id.clone();
        if let Some(Some(operation)) = self.ask(|reply| Message::Look(look, reply)).await {
            return Ok(Some(Known::Operation(operation)));
        }
        let stored = self.read(move |reader| reader.lookup(&id)).await?;
        Ok(stored.map(|stored| match stored {
            Stored::Operation(operation) => Known::Operation(operation),
            Stored::Tombstone(tombstone) => Known::Tombstone(tombstone),
        }))
    }

    async fn read_device(
        &self,
        machine: &str,
        points: Vec<(String, Scalar)>,
    ) -> Result<Vec<(String, Value)>, String> {
        let (reply, answer) = oneshot::channel();
        if self
            .0
            .board
            .send(machine, Errand::Read { points, reply })
            .is_err()
        {
            return Err("the machine's task does not run".into());
        }
        match tokio::time::timeout(Duration::from_millis(READ_MS_MAX), answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the machine's task ended".into()),
            Err(_) => Err(format!("no answer within {READ_MS_MAX} ms")),
        }
    }

    /// As [`Gate::read_device`], and what another device answers is no answer (F055).
    async fn read_ours(
        &self,
        machine: &str,
        points: Vec<(String, Scalar)>,
    ) -> Result<Vec<(String, Value)>, String> {
        let values = self.read_device(machine, points).await?;
        if self.is_another_device(machine).await {
            return Err(super::machine_task::NOT_OURS.into());
        }
        Ok(values)
    }

    /// A query without an identity: of all that wait on a machine and command, one is sent (POL-02).
    async fn query_now(
        &self,
        request: Request,
        wait_ms: u64,
    ) -> Result<Vec<(String, Value)>, QueryError> {
        let shared = self.machine(&request.machine).ok_or_else(|| {
            let machines = self
                .0
                .machines
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            let names = machines.iter().map(|machine| machine.spec.name.as_str());
            Refusal::UnknownMachine {
                name: request.machine.clone(),
                nearest: intent::nearest(&request.machine, names).map(str::to_owned),
            }
        })?;
        if shared.spec.owner != self.0.gateway {
            return Err(Refusal::NotOwner {
                owner: shared.spec.owner.clone(),
            }
            .into());
        }
        let names = shared.spec.commands.iter().map(|row| row.name.as_str());
        let row = shared
            .spec
            .row(&request.command)
            .ok_or_else(|| Refusal::UnknownCommand {
                machine: request.machine.clone(),
                name: request.command.clone(),
                nearest: intent::nearest(&request.command, names).map(str::to_owned),
            })?;
        let (Class::Query, Action::Read { points }) = (row.class, &row.action) else {
            return Err(Refusal::MissingOperationId.into());
        };
        intent::canonicalise(&request, row).map_err(Refusal::from)?;
        let key = (request.machine.clone(), request.command.clone());
        let (reply, answer) = oneshot::channel();
        let first = {
            let mut waiting = self
                .0
                .queries
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let waiters = waiting.entry(key.clone()).or_default();
            waiters.retain(|waiter| !waiter.is_closed());
            waiters.push(reply);
            waiters.len() == 1
        };
        if first {
            let (gate, points) = (self.clone(), points.clone());
            tokio::spawn(async move { gate.answer_queries(key, shared, points).await });
        }
        let limit = Duration::from_millis(wait_ms.max(READ_MS_MAX));
        let connected = self
            .machine(&request.machine)
            .is_some_and(|machine| *machine.connected.borrow());
        let limit = if connected {
            limit
        } else {
            Duration::from_millis(wait_ms)
        };
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(QueryError::Device("the gateway is stopping".into())),
            Err(_) => Err(QueryError::Disconnected(
                "the wait is over, and the link is not back".into(),
            )),
        }
    }

    async fn answer_queries(
        &self,
        key: (String, String),
        shared: Arc<Shared>,
        points: Vec<(String, Scalar)>,
    ) {
        let mut connected = shared.connected.subscribe();
        let back = async { connected.wait_for(|connected| *connected).await.is_ok() };
        let anybody = async {
            // Nobody waits any more: nothing is asked of the device.
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let mut waiting = self
                    .0
                    .queries
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let waiters = waiting.entry(key.clone()).or_default();
                waiters.retain(|waiter| !waiter.is_closed());
                if waiters.is_empty() {
                    waiting.remove(&key);
                    return;
                }
            }
        };
        tokio::select! {
            true = back => {}
            () = anybody => return,
            else => return,
        }
        let result = self
            .read_ours(&key.0, points)
            .await
            .map_err(QueryError::Device);
        let waiters = self
            .0
            .queries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
        for waiter in waiters.unwrap_or_default() {
            let _ = waiter.send(result.clone());
        }
    }

    fn sink_status(&self) -> Vec<SinkStatus> {
        let status = |(sink, _): &(Arc<SinkShared>, _)| {
            let now = self.0.clock.now();
            let state = sink.state();
            let cursor = &state.cursor;
            let behind = self.0.reader.backlog(cursor.through).unwrap_or_default();
            let events = behind.events.saturating_sub(state.finished_ahead);
            let open = u128::from(behind.bytes) * u128::from(events);
            let bytes = open / u128::from(behind.events.max(1));
            SinkStatus {
                name: sink.name.clone(),
                kind: sink.kind.clone(),
                ack_level: sink.ack_level.clone(),
                state: match &state.read_error {
                    Some(error) => format!("stopped: {error}"),
                    None => state.circuit.describe(&now),
                },
                circuit: state.circuit.name(),
                backlog: (
                    events,
                    u64::try_from(bytes).unwrap_or(u64::MAX),
                    behind.oldest_wall_us.filter(|_| events > 0),
                ),
                rates_milli: state.rates,
                overtaking: state.split,
                lanes: sink.lanes,
                in_flight: state.in_flight,
                resent: state.more.resent,
                rewound: state.more.rewound,
                counters: [
                    cursor.accepted,
                    cursor.duplicates,
                    cursor.conflicts,
                    cursor.malformed,
                    cursor.retries,
                ],
                dead_letters: self.0.reader.dead_letter_count(&sink.name),
            }
        };
        self.0.sinks.iter().map(status).collect()
    }

    /// Since the first of the failures in a row.
    fn failing_since(&self, sink: &str) -> Option<Stamp> {
        let mut sinks = self.0.sinks.iter();
        let (shared, _) = sinks.find(|(shared, _)| shared.name == sink)?;
        match shared.state().circuit {
            Circuit::Ok => None,
            Circuit::Retrying { since, .. } | Circuit::Stopped { since, .. } => Some(since),
        }
    }

    async fn status_now(&self) -> Status {
        let snapshot = self.ask(Message::Snapshot).await;
        let now = self.0.clock.now();
        let mut status = Status {
            mode: Mode::Stopping,
            gateway: self.0.gateway.clone(),
            started: self.0.started,
            now,
            journal: JournalStatus {
                state: "ok".into(),
                used_bytes: 0,
                budget_bytes: 0,
                commit: self.0.reader.durable(),
                epoch: self.0.epoch,
                telemetry_dropped: 0,
            },
            machines: Vec::new(),
            sinks: tokio::task::block_in_place(|| self.sink_status()),
            counts: (0, 0, 0),
            alarms: Vec::new(),
        };
        let Some(snapshot) = snapshot else {
            return status;
        };
        self.fill(&mut status, snapshot);
        status
    }

    fn fill(&self, status: &mut Status, snapshot: Snapshot) {
        status.mode = match (snapshot.stopping, snapshot.recovery) {
            (true, _) => Mode::Stopping,
            (false, true) => Mode::Recovery,
            (false, false) => Mode::Normal,
        };
        status.journal.used_bytes = snapshot.usage.used_bytes;
        status.journal.budget_bytes = snapshot.usage.budget_bytes;
        status.journal.telemetry_dropped = snapshot.shed_total;
        status.journal.state = match (snapshot.recovery, &snapshot.full) {
            (true, _) => "damaged".into(),
            (false, Some(_)) => "full".into(),
            (false, None) => "ok".into(),
        };
        let first = |stamps: Vec<Stamp>| stamps.into_iter().min_by_key(|stamp| stamp.wall_us);
        let held_since = first(
            snapshot
                .machines
                .iter()
                .filter_map(|m| m.held_since)
                .collect(),
        );
        let unknown_since = first(
            snapshot
                .machines
                .iter()
                .filter_map(|m| m.unknown_since)
                .collect(),
        );
        for machine in snapshot.machines {
            status.counts.0 += machine.queued;
            status.counts.1 += machine.held;
            status.counts.2 += machine.unknown;
            let Some(shared) = self.machine(&machine.name) else {
                continue;
            };
            status.machines.push(MachineStatus {
                name: machine.name,
                owner: shared.spec.owner.clone(),
                read_only: shared.spec.read_only,
                link: machine.link.name().to_owned(),
                since: machine.since,
                reason: match &shared.spec.owner {
                    owner if *owner != self.0.gateway => {
                        format!("not connected: commanded by {owner:?}")
                    }
                    _ => machine.reason,
                },
                model: shared.model(),
                in_flight: machine.in_flight,
                queued: machine.queued,
                held: machine.held,
                outcome_unknown: machine.unknown,
                counters: shared.counters(),
            });
            if let Some(closed) = machine.gate_closed {
                status.alarms.push(Alarm {
                    code: "gate_closed".into(),
                    severity: "warning".into(),
                    since: status.now,
                    text: format!("{}: no command can pass: {closed}", shared.spec.name),
                    mend: "put the machine into order; what is held then needs an approval".into(),
                });
            }
            status
                .alarms
                .extend(shared.notes().into_iter().map(|text| Alarm {
                    code: "address_refused".into(),
                    severity: "warning".into(),
                    since: status.now,
                    text: format!("{}: {text}", shared.spec.name),
                    mend: "correct the address, then holdfast reload".into(),
                }));
        }
        status
            .alarms
            .extend(snapshot.alarms.into_iter().map(|alarm| {
                let (severity, mend) = mend(&alarm.code);
                Alarm {
                    code: alarm.code,
                    severity: severity.into(),
                    since: alarm.since,
                    text: alarm.text,
                    mend: mend.into(),
                }
            }));
        let standing: Vec<Alarm> = status
            .sinks
            .iter()
            // A stopped one is an alarm of the core's.
            .filter(|sink| sink.state != "ok" && sink.circuit != "stopped")
            .map(|sink| Alarm {
                code: "sink_not_taking".into(),
                severity: "warning".into(),
                since: self.failing_since(&sink.name).unwrap_or(status.now),
                text: format!("sink {}: {}", sink.name, sink.state),
                mend: "events wait in the journal and are sent by themselves; see holdfast sinks"
                    .into(),
            })
            .collect();
        status.alarms.extend(standing);
        if status.counts.2 > 0 {
            status.alarms.push(Alarm {
                code: "outcome_unknown".into(),
                severity: "warning".into(),
                since: unknown_since.unwrap_or(status.now),
                text: format!(
                    "{} operation(s) may or may not have had their effect",
                    status.counts.2
                ),
                mend: "holdfast ops --state outcome_unknown, then holdfast op ID".into(),
            });
        }
        if status.counts.1 > 0 {
            status.alarms.push(Alarm {
                code: "held".into(),
                severity: "warning".into(),
                since: held_since.unwrap_or(status.now),
                text: format!(
                    "{} operation(s) wait for a person's decision",
                    status.counts.1
                ),
                mend: "holdfast ops --state held, then approve, cancel or reissue".into(),
            });
        }
    }
}

impl Backend for Gate {
    fn submit(&self, request: Request, actor: Actor) -> Reply<Answer> {
        let gate = self.clone();
        Box::pin(async move {
            let answer = gate
                .ask(|reply| Message::Submit(Box::new(request), actor, reply))
                .await;
            answer.unwrap_or(Answer::Refused(Refusal::Stopping))
        })
    }

    fn query(
        &self,
        request: Request,
        _actor: Actor,
        wait_ms: u64,
    ) -> Reply<Result<Vec<(String, Value)>, QueryError>> {
        let gate = self.clone();
        Box::pin(async move { gate.query_now(request, wait_ms).await })
    }

    fn act(&self, id: OperationId, act: Act, actor: Actor) -> Reply<Answer> {
        let gate = self.clone();
        Box::pin(async move {
            let answer = gate.ask(|reply| Message::Act(id, act, actor, reply)).await;
            answer.unwrap_or(Answer::Refused(Refusal::Stopping))
        })
    }

    fn wait(&self, id: OperationId, wait_ms: u64) -> Reply<Result<Option<Known>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move {
            let watched = id.clone();
            let ended = gate.ask(|reply| Message::Ended(watched, reply));
            // Whether it ended or the wait did, its state now is the answer.
            let _ = tokio::time::timeout(Duration::from_millis(wait_ms), ended).await;
            gate.known(id).await
        })
    }

    fn operation(&self, id: OperationId) -> Reply<Result<Option<Known>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move { gate.known(id).await })
    }

    fn operations(
        &self,
        filter: OperationFilter,
    ) -> Reply<Result<Page<Operation, CommitNo>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move {
            let query = OperationQuery {
                machine: filter.machine,
                state: filter.state,
                since_us: filter.since_us,
            };
            let (items, next) = gate
                .read(move |reader| reader.operations(&query, filter.after, filter.limit))
                .await?;
            Ok(Page { items, next })
        })
    }

    fn events(
        &self,
        after: EventsAfter,
        limit: usize,
    ) -> Reply<Result<Page<(Position, EventRecord), Position>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move {
            let limit = limit.clamp(1, EVENTS_PAGE_MAX);
            let position = match after {
                EventsAfter::Start => Position::default(),
                EventsAfter::Position(position) => position,
                EventsAfter::Key(key) => {
                    let wanted = key.clone();
                    let found = gate.read(move |reader| reader.position_of(&wanted)).await?;
                    found.ok_or_else(|| ReadError::NotFound(format!("no event {key} is kept")))?
                }
            };
            // A page may be cut short by its bytes: only a look behind it says whether it is the last.
            let (found, next) = gate
                .read(move |reader| {
                    let found = reader.events(position, limit, EVENTS_BYTES_MAX)?;
                    let last = found.last().map(|(position, ..)| *position);
                    let more = match last {
                        Some(last) => !reader.events(last, 1, 0)?.is_empty(),
                        None => false,
                    };
                    Ok((found, last.filter(|_| more)))
                })
                .await?;
            let items = found
                .into_iter()
                .map(|(position, event, _)| (position, event))
                .collect();
            Ok(Page { items, next })
        })
    }

    fn commits(&self) -> watch::Receiver<CommitNo> {
        self.0.reader.watch()
    }

    fn status(&self) -> Reply<Status> {
        let gate = self.clone();
        Box::pin(async move { gate.status_now().await })
    }

    fn machines(&self) -> Vec<Arc<MachineSpec>> {
        let machines = self
            .0
            .machines
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        machines
            .iter()
            .map(|machine| Arc::clone(&machine.spec))
            .collect()
    }

    fn tags(&self, machine: String) -> Reply<Result<Vec<TagStatus>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move {
            let shared = gate.machine_or(&machine)?;
            let mut tags = shared.tags(&gate.0.clock.now());
            gate.mark_mismatch(&machine, &mut tags).await;
            Ok(tags)
        })
    }

    fn read_now(
        &self,
        machine: String,
        tags: Vec<String>,
    ) -> Reply<Result<Vec<TagStatus>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move {
            let shared = gate.machine_or(&machine)?;
            let mut points = Vec::new();
            for name in &tags {
                let tag = shared.spec.tags.iter().find(|tag| tag.name == *name);
                let tag = tag.cloned().or_else(|| place_as_tag(&shared.spec, name));
                let tag = tag.ok_or_else(|| {
                    let known = shared.spec.tags.iter().map(|tag| tag.name.as_str());
                    let nearest = intent::nearest(name, known)
                        .map(|near| format!("; did you mean {near:?}?"));
                    ReadError::NotFound(format!(
                        "machine {machine:?} has no tag {name:?}{}",
                        nearest.unwrap_or_default()
                    ))
                })?;
                let point = (tag.name.clone(), tag.at);
                points.push((tag, point));
            }
            let asked = points.iter().map(|(_, point)| point.clone()).collect();
            let values = gate.read_device(&machine, asked).await.map_err(|why| {
                if *shared.connected.borrow() {
                    ReadError::Device(why)
                } else {
                    ReadError::Disconnected(why)
                }
            })?;
            let now = gate.0.clock.now();
            let status = points.into_iter().map(|(tag, _)| {
                let value = values
                    .iter()
                    .find(|(name, _)| *name == tag.name)
                    .map(|(_, value)| value.clone());
                let none = value
                    .as_ref()
                    .is_some_and(|value| tag.no_value.contains(value));
                TagStatus {
                    name: tag.name,
                    quality: if value.is_some() && !none {
                        Quality::Good
                    } else {
                        Quality::Bad
                    },
                    reason: none.then(|| "the device says \"no value\"".to_owned()),
                    value: value.filter(|_| !none),
                    unit: tag.unit,
                    read_at: Some(now),
                }
            });
            let mut status: Vec<TagStatus> = status.collect();
            gate.mark_mismatch(&machine, &mut status).await;
            Ok(status)
        })
    }

    fn trace(
        &self,
        machine: String,
        ms: u64,
        actor: Actor,
    ) -> Reply<Result<Option<Trace>, Refusal>> {
        let gate = self.clone();
        Box::pin(async move {
            let shared = gate.machine(&machine).ok_or(Refusal::Stopping)?;
            let Some(tap) = shared.tap.get() else {
                return Err(Refusal::Stopping);
            };
            // On record first: who saw bytes is known even if the gateway ends meanwhile.
            let record = Record::Audit {
                actor,
                action: format!("trace machine {machine} for {ms} ms"),
                result: "asked for".into(),
            };
            gate.keep_record(record).await?;
            let Some(look) = tap.open(&gate.0.clock.now(), ms) else {
                return Ok(None);
            };
            tokio::time::sleep(Duration::from_millis(ms)).await;
            let (entries, left_out) = look.end();
            Ok(Some((entries.iter().map(trace_line).collect(), left_out)))
        })
    }

    fn dead_letters(
        &self,
        sink: String,
        after: Option<EventKey>,
        limit: usize,
    ) -> Reply<Result<Page<DeadLetter, EventKey>, ReadError>> {
        let gate = self.clone();
        Box::pin(async move {
            if !gate.0.sinks.iter().any(|(shared, _)| shared.name == sink) {
                return Err(ReadError::NotFound(format!("no sink {sink:?} here")));
            }
            let limit = limit.clamp(1, DEAD_LETTERS_PAGE_MAX);
            let items = gate
                .read(move |reader| reader.dead_letters(&sink, after.as_ref(), limit))
                .await?;
            let more = items.len() == limit;
            let next = items.last().filter(|_| more);
            let next = next.map(|letter| letter.event.key.clone());
            Ok(Page { items, next })
        })
    }

    fn settle_dead_letter(
        &self,
        sink: String,
        key: EventKey,
        how: Settlement,
        reason: String,
        actor: Actor,
    ) -> Reply<Result<Option<EventKey>, Refusal>> {
        let gate = self.clone();
        Box::pin(async move { gate.settle(sink, key, how, reason, actor).await })
    }

    fn act_on_sink(
        &self,
        sink: String,
        act: SinkAct,
        reason: String,
        actor: Actor,
    ) -> Reply<Result<String, Refusal>> {
        let gate = self.clone();
        Box::pin(async move { gate.act_on(sink, act, reason, actor).await })
    }

    fn denied(&self, actor: Actor, action: String) -> Reply<()> {
        let gate = self.clone();
        Box::pin(async move {
            log::warn!("refused: {actor}: {action}");
            let record = Box::new(Record::Audit {
                actor,
                action,
                result: "forbidden".into(),
            });
            gate.ask(|reply| Message::Keep(record, reply))
                .await
                .unwrap_or_default();
        })
    }

    fn reload(&self, actor: Actor) -> Reply<Result<String, String>> {
        let gate = self.clone();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let gone = || "the gateway is stopping".to_owned();
            gate.0
                .reload
                .send((actor, reply))
                .await
                .map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        })
    }

    fn health(&self) -> Health {
        self.0.progress.health(self.0.clock.now().boottime_ns)
    }
}

/// A place that was typed, unless a secret argument is written to it.
fn place_as_tag(spec: &MachineSpec, text: &str) -> Option<Tag> {
    let at = parse_place(&spec.link, text)
        .ok()
        .filter(|at| !is_secret(spec, at))?;
    Some(Tag {
        name: text.to_owned(),
        at,
        unit: None,
        poll_ms: 0,
        no_value: Vec::new(),
        group: None,
    })
}

impl Gate {
    async fn is_another_device(&self, machine: &str) -> bool {
        let Some(snapshot) = self.ask(Message::Snapshot).await else {
            return false;
        };
        let stands = |alarm: &crate::core::gateway::Alarm| {
            alarm.code == "identity_mismatch" && alarm.about == machine
        };
        snapshot.alarms.iter().any(stands)
    }

    /// What another device answers is not this machine's value (F055).
    async fn mark_mismatch(&self, machine: &str, tags: &mut [TagStatus]) {
        if self.is_another_device(machine).await {
            for tag in tags {
                tag.value = None;
                tag.quality = Quality::Bad;
                tag.reason = Some(super::machine_task::NOT_OURS.into());
            }
        }
    }
}
