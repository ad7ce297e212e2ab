//! Owns: one machine's task: its link through connections and losses, its polls, the engine's errands.
//! May call: plc, core types, the engine's inbox.
//! Never: let a poll go before a command; send for anyone but the engine (OPS-04).

use super::clock::Clock;
use super::engine::Message;
use super::errand::Errand;
use super::progress::{BEAT_MS_MAX, Beat};
use crate::api::backend::TagStatus;
use crate::core::contract::{Job, Outcome, Reply};
use crate::core::gateway::{Input, LinkChange};
use crate::core::ids::ConnectionNo;
use crate::core::machine::identity_mismatch;
use crate::core::spec::{EventKind, MachineSpec, Quality, Value};
use crate::core::time::{NS_PER_MS, Stamp};
use crate::failpoint;
use crate::plc::link::{Link, Model, Reading};
use crate::plc::plan::{PointId, PollPlan};
use crate::plc::port::Ports;
use crate::plc::source::SourcePlan;
use crate::plc::tap::Tap;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// A tag that has not been read for so many of its cycles is stale.
const STALE_CYCLES_MAX: u64 = 3;
/// Between two log lines about a machine that is not reached, in milliseconds.
const UNREACHED_LOG_MS_MIN: u64 = 60_000;
/// What is said of a value that some other device gives.
pub(super) const NOT_OURS: &str = "config_mismatch: another device, or another program, answers";

/// What everybody may see of a machine.
#[derive(Debug)]
pub struct Shared {
    /// As configured.
    pub spec: Arc<MachineSpec>,
    readings: RwLock<HashMap<usize, Seen>>,
    counters: RwLock<Vec<(String, u64)>>,
    notes: RwLock<Vec<String>>,
    model: RwLock<Option<Model>>,
    /// Where its link's bytes can be looked at, once its task is there.
    pub tap: OnceLock<Tap>,
    /// Whether a connection stands.
    pub connected: watch::Sender<bool>,
}

/// The last reading of a tag, and the last value that was worth showing.
#[derive(Clone, Debug)]
struct Seen {
    value: Option<Value>,
    quality: Quality,
    reason: Option<String>,
    at: Stamp,
}

impl Shared {
    /// Nothing read yet.
    #[must_use]
    pub fn new(spec: Arc<MachineSpec>) -> Self {
        Self {
            spec,
            readings: RwLock::default(),
            counters: RwLock::default(),
            notes: RwLock::default(),
            model: RwLock::default(),
            tap: OnceLock::new(),
            connected: watch::Sender::new(false),
        }
    }

    /// Counters by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.counters
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What the CPU calls itself over this connection; `None`: it was not asked, or does not say.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        let model = self.model.read().unwrap_or_else(PoisonError::into_inner);
        model.as_ref().map(ToString::to_string)
    }

    fn show_model(&self, model: Option<Model>) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = model;
    }

    /// What the device refuses to be polled for.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.notes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The tags as they stand; what was not read in time is stale, and never a zero (EVT-06).
    #[must_use]
    pub fn tags(&self, now: &Stamp) -> Vec<TagStatus> {
        let readings = self.readings.read().unwrap_or_else(PoisonError::into_inner);
        let connected = *self.connected.borrow();
        let tag = |(index, tag): (usize, &crate::core::spec::Tag)| {
            let seen = readings.get(&index);
            let late = |seen: &Seen| {
                let age_ns = crate::core::time::elapsed_ns(&seen.at, now);
                !connected || age_ns > tag.poll_ms.saturating_mul(STALE_CYCLES_MAX) * NS_PER_MS
            };
            let (quality, reason) = match seen {
                None => (Quality::Bad, Some("not read yet".to_owned())),
                Some(seen) if seen.quality == Quality::Good && late(seen) => {
                    let why = if connected {
                        "not read in its cycle"
                    } else {
                        "not connected"
                    };
                    (Quality::Stale, Some(why.to_owned()))
                }
                Some(seen) => (seen.quality, seen.reason.clone()),
            };
            TagStatus {
                name: tag.name.clone(),
                value: seen.and_then(|seen| seen.value.clone()),
                unit: tag.unit.clone(),
                quality,
                reason,
                read_at: seen.map(|seen| seen.at),
            }
        };
        self.spec.tags.iter().enumerate().map(tag).collect()
    }

    fn keep(&self, index: usize, reading: &Reading) {
        let mut readings = self
            .readings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let last = readings.get(&index).and_then(|seen| seen.value.clone());
        // A device that is only busy has not changed its mind about the last good value.
        let value = if reading.quality == Quality::Stale {
            last
        } else {
            reading.value.clone()
        };
        let seen = Seen {
            value,
            quality: reading.quality,
            reason: reading.reason.clone(),
            at: reading.at,
        };
        readings.insert(index, seen);
    }
}

/// One machine's task.
pub struct MachineTask {
    spec: Arc<MachineSpec>,
    shared: Arc<Shared>,
    link: Link,
    plan: PollPlan,
    sources: SourcePlan,
    /// What taking events wants of the link, while commands go first.
    put_off: VecDeque<Errand>,
    clock: Clock,
    engine: mpsc::Sender<Message>,
    errands: mpsc::UnboundedReceiver<Errand>,
    stop: watch::Receiver<Option<&'static str>>,
    beat: Beat,
    observed: HashMap<usize, (Option<Value>, Quality)>,
    /// When each counter was last read over this connection.
    counted_at: HashMap<usize, Stamp>,
    gate_at_ns: u64,
    /// The one that stands, or stood last.
    connection: ConnectionNo,
    /// Whether the configured device answers; `None` until the gate was read over this connection.
    identified: Option<bool>,
    polls: u64,
    /// The CPU has not said what it is when it was asked: it is not asked again.
    model_unknown: bool,
    /// When the log said last that the machine is not reached.
    unreached_said_ns: Option<u64>,
    /// Still to be asked over this connection.
    model_due: bool,
    seed: crate::core::jitter::Jitter,
}

/// Why the task left a connection.
enum Left {
    Stopped,
    Lost(String),
}

impl MachineTask {
    /// A task that is not running yet.
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        ports: &Ports,
        clock: Clock,
        engine: mpsc::Sender<Message>,
        errands: mpsc::UnboundedReceiver<Errand>,
        stop: watch::Receiver<Option<&'static str>>,
        beat: Beat,
    ) -> Self {
        let spec = Arc::clone(&shared.spec);
        let seed =
            crate::core::jitter::Jitter::new(clock.now().boottime_ns ^ spec.name.len() as u64);
        let link = Link::on(ports, &spec, clock.reader());
        let _ = shared.tap.set(link.tap());
        Self {
            link,
            plan: PollPlan::new(&spec),
            sources: SourcePlan::new(&spec),
            put_off: VecDeque::new(),
            spec,
            shared,
            clock,
            engine,
            errands,
            stop,
            beat,
            observed: HashMap::new(),
            counted_at: HashMap::new(),
            gate_at_ns: 0,
            connection: next_connection(),
            identified: None,
            polls: 0,
            model_unknown: false,
            unreached_said_ns: None,
            model_due: false,
            seed,
        }
    }

    /// Runs until told to stop.
    pub async fn run(mut self) {
        self.show_counters();
        while self.stop.borrow().is_none() {
            self.tell(Input::Link {
                machine: self.spec.name.clone(),
                change: LinkChange::Connecting,
            })
            .await;
            self.await_line().await;
            let stopped = self.stop.borrow().is_some();
            let left = if stopped {
                Left::Stopped
            } else {
                match self.link.connect().await {
                    Ok(()) => self.connected().await,
                    Err(error) => Left::Lost(error.to_string()),
                }
            };
            self.link.yield_turn();
            let (reason, stopped) = match left {
                Left::Stopped => (self.why_stopped().to_owned(), true),
                Left::Lost(reason) => (reason, false),
            };
            // A way that stands while the unit behind it does not is used again (F043).
            if stopped || !self.link.is_open() {
                self.link.disconnect(&reason);
            }
            self.lost(&reason).await;
            if stopped || self.pause().await {
                break;
            }
        }
        let why = self.why_stopped();
        self.link.disconnect(why);
        // What came in the meantime is answered, and nothing more can come: no operation is left under way.
        self.errands.close();
        while let Some(errand) = self.errands.recv().await {
            self.refuse(errand, why).await;
        }
    }

    fn why_stopped(&self) -> &'static str {
        self.stop.borrow().unwrap_or("its task has ended")
    }

    /// Waits until a line that others use too is this machine's; nobody else waits for that.
    async fn await_line(&mut self) {
        let turn = self.link.turn();
        tokio::pin!(turn);
        loop {
            tokio::select! {
                biased;
                () = &mut turn => return,
                _ = self.stop.changed() => return,
                Some(errand) = self.errands.recv() => {
                    let refused = errand.refused(&self.spec.name, "waiting for the line");
                    if let Some(input) = refused {
                        let _ = self.engine.send(Message::Input(input)).await;
                    }
                }
                () = tokio::time::sleep(Duration::from_millis(BEAT_MS_MAX)) => {
                    self.beat.at(self.clock.now().boottime_ns);
                }
            }
        }
    }

    /// The same for a poll, unless an errand comes first (SEND-07).
    async fn errand_before_line(&mut self) -> Option<Errand> {
        tokio::select! {
            biased;
            errand = self.errands.recv() => errand,
            () = self.link.turn() => None,
        }
    }

    async fn connected(&mut self) -> Left {
        log::info!("{}: connected", self.spec.name);
        self.identified = self.spec.gate.identity.is_none().then_some(true);
        self.connection = next_connection();
        self.shared.connected.send_replace(true);
        self.model_due = !self.model_unknown;
        self.gate_at_ns = self.clock.now().boottime_ns;
        self.tell(Input::Link {
            machine: self.spec.name.clone(),
            change: LinkChange::Up(self.connection),
        })
        .await;
        loop {
            self.beat.at(self.clock.now().boottime_ns);
            // Commands first: an errand that waits goes before any poll (SEND-07).
            if let Ok(errand) = self.errands.try_recv() {
                self.take(errand).await;
            } else if let Some(errand) = self.put_off.pop_front() {
                self.errand(errand).await;
            } else if self.poll_once().await {
                // Something was due, and was done.
            } else if let Some(errand) = self.idle().await {
                self.take(errand).await;
            }
            self.link.yield_turn();
            if self.stop.borrow().is_some() && self.errands.is_empty() {
                return Left::Stopped;
            }
            if !self.link.is_connected() {
                if self.link.is_open() {
                    return Left::Lost(format!(
                        "unit {} is offline behind its gateway; the connection to that stands",
                        self.link.unit()
                    ));
                }
                return Left::Lost(self.link.why_ended().to_owned());
            }
        }
    }

    /// Does an errand; one of taking events waits until no other does.
    async fn take(&mut self, errand: Errand) {
        if errand.is_of_source() {
            self.put_off.push_back(errand);
        } else {
            self.errand(errand).await;
        }
    }

    /// Waits for an errand, the next poll, or a stop.
    async fn idle(&mut self) -> Option<Errand> {
        let now = self.clock.now().boottime_ns;
        let polls = [self.plan.next_due_ns(), self.sources.next_due_ns()];
        let due = polls.into_iter().flatten().min();
        let due = due.unwrap_or(u64::MAX).min(self.gate_due_ns());
        let wait = due.saturating_sub(now).min(BEAT_MS_MAX * NS_PER_MS);
        tokio::select! {
            biased;
            errand = self.errands.recv() => errand,
            _ = self.stop.changed() => None,
            () = tokio::time::sleep(Duration::from_nanos(wait)) => None,
        }
    }

    /// The gate is kept fresh, so that a command need not wait for it.
    fn gate_due_ns(&self) -> u64 {
        let age_ns = self.spec.gate.age_ms_max.saturating_mul(NS_PER_MS);
        self.gate_at_ns.saturating_add(age_ns / 2)
    }

    /// One step of polling, if one is due. Whether one was.
    async fn poll_once(&mut self) -> bool {
        let now = self.clock.now().boottime_ns;
        // Who answers comes before what it says (F055).
        let gate = self.identified.is_none() || self.gate_due_ns() <= now;
        // Then who has waited longest: polls that fill the line leave handshakes and rings their turn.
        let (polls, sources) = (self.plan.next_due_ns(), self.sources.next_due_ns());
        let polls_first = polls.unwrap_or(u64::MAX) <= sources.unwrap_or(u64::MAX);
        let (step, source) = match (gate, polls_first) {
            (true, _) => (None, None),
            (false, true) => (self.plan.due(now).into_iter().next(), None),
            (false, false) => (None, self.sources.due(now)),
        };
        let model = !gate && std::mem::take(&mut self.model_due);
        let idle = step.is_none() && source.is_none() && !self.link.heartbeat_due();
        if !gate && !model && idle {
            return false;
        }
        if let Some(errand) = self.errand_before_line().await {
            self.take(errand).await;
            return true;
        }
        if gate {
            self.read_gate().await;
            return true;
        }
        if model {
            self.ask_model().await;
            return true;
        }
        if let Some(step) = step {
            let readings = self.link.poll(&mut self.plan, &step).await;
            self.polls += 1;
            for reading in readings {
                self.publish(reading).await;
            }
            self.show_counters();
            return true;
        }
        if let Some(index) = source {
            self.look(index).await;
            return true;
        }
        // Its failure closes the link, which the caller sees.
        let _ = self.link.heartbeat().await;
        true
    }

    /// For people to see: no command depends on it. One that comes meanwhile waits for this one request, and a device
    /// that is silent to it loses its connection once a start: it is not asked again.
    async fn ask_model(&mut self) {
        let model = self.link.ask_model().await;
        let model = model.unwrap_or_default();
        self.model_unknown = model.is_none();
        self.shared.show_model(model);
    }

    async fn publish(&mut self, mut reading: Reading) {
        let own = self.identified == Some(true);
        if !own {
            reading.value = None;
            reading.quality = Quality::Bad;
            reading.reason = Some(NOT_OURS.to_owned());
        }
        match reading.id {
            PointId::Tag(index) => self.shared.keep(index, &reading),
            // Another device's values are no event of this machine; its own are seen when it is back.
            PointId::Event(_) if !own => {}
            PointId::Event(index) => {
                // A device that is only busy has said nothing about the value.
                if reading.quality == Quality::Stale {
                    return;
                }
                let seen = (reading.value.clone(), reading.quality);
                let Some(source) = self.spec.events.get(index) else {
                    return;
                };
                let mut since = None;
                if matches!(source.kind, EventKind::Counter(_)) {
                    // What could not be read says nothing about a count.
                    if reading.value.is_none() {
                        return;
                    }
                    since = self.counted_at.insert(index, reading.at);
                }
                if self.observed.get(&index) == Some(&seen) {
                    return;
                }
                let input = Input::Observed {
                    machine: self.spec.name.clone(),
                    event_type: source.event_type.clone(),
                    value: reading.value,
                    quality: reading.quality,
                    reason: reading.reason,
                    at: reading.at,
                    since,
                };
                self.observed.insert(index, seen);
                self.tell(input).await;
            }
        }
    }

    /// Looks at a handshake or a ring; the core decides what is taken.
    async fn look(&mut self, index: usize) {
        let spec = Arc::clone(&self.spec);
        let Some(source) = spec.events.get(index) else {
            return;
        };
        let machine = spec.name.clone();
        let event_type = source.event_type.clone();
        let found = match &source.kind {
            EventKind::Handshake(handshake) => {
                let seen = self.link.read_handshake(handshake).await;
                seen.map(|seen| {
                    let at = self.clock.now();
                    let idle = !seen.ready && !seen.ack;
                    (!idle).then_some(Input::Presented {
                        machine,
                        event_type,
                        seen,
                        at,
                    })
                })
            }
            EventKind::Ring(ring) => {
                let head = self.link.read_ring_head(ring).await;
                head.map(|head| {
                    let at = self.clock.now();
                    Some(Input::RingHead {
                        machine,
                        event_type,
                        head,
                        at,
                    })
                })
            }
            EventKind::OnChange { .. } | EventKind::Counter(_) => Ok(None),
        };
        self.polls += 1;
        let now = self.clock.now().boottime_ns;
        self.sources.looked(index, now, found.as_ref().err());
        match found {
            // Another device's items are none of this machine's, and nothing is acknowledged to it (F055).
            Ok(Some(input)) if self.identified == Some(true) => {
                failpoint!("source.after-read");
                self.tell(input).await;
            }
            Ok(_) => {}
            Err(error) => log::debug!("{}: {}: {error}", spec.name, source.event_type),
        }
        self.show_counters();
    }

    /// Does what the core decided about a source.
    async fn source_errand(&mut self, errand: Errand) {
        let spec = Arc::clone(&self.spec);
        let kind = |wanted: &str| {
            let source = spec
                .events
                .iter()
                .find(|source| source.event_type == wanted);
            source.map(|source| &source.kind)
        };
        match errand {
            Errand::Acknowledge {
                event_type, item, ..
            } => {
                let Some(EventKind::Handshake(handshake)) = kind(&event_type) else {
                    return;
                };
                if self.identified != Some(true) || spec.read_only {
                    return;
                }
                failpoint!("source.before-ack");
                match self.link.acknowledge(handshake, item).await {
                    Ok(_) => {}
                    Err(error) => log::warn!("{}: {event_type}: {error}", spec.name),
                }
                failpoint!("source.after-ack");
            }
            Errand::ReadRing {
                event_type,
                first,
                count,
                ..
            } => {
                let Some(EventKind::Ring(ring)) = kind(&event_type) else {
                    return;
                };
                let reading = self.link.read_ring(ring, first, count).await;
                failpoint!("source.after-read");
                self.tell(Input::RingRead {
                    machine: spec.name.clone(),
                    event_type,
                    reading: reading.map_err(|error| error.to_string()),
                })
                .await;
            }
            _ => {}
        }
    }

    async fn read_gate(&mut self) {
        let reading = self
            .link
            .read_gate()
            .await
            .map_err(|error| error.to_string());
        self.gate_at_ns = self.clock.now().boottime_ns;
        self.identified = Some(match &reading {
            Ok(reading) => identity_mismatch(&self.spec, reading).is_none(),
            Err(_) => self.spec.gate.identity.is_none(),
        });
        self.tell(Input::Gate {
            machine: self.spec.name.clone(),
            reading,
        })
        .await;
    }

    async fn errand(&mut self, errand: Errand) {
        if let Some(why) = errand.barred(self.connection, self.identified) {
            return self.refuse(errand, why).await;
        }
        let machine = self.spec.name.clone();
        self.link.hurry(!errand.is_of_source());
        match errand {
            Errand::Run {
                operation,
                attempt,
                job,
                deadline,
                ..
            } => {
                failpoint!("link.before-first-byte");
                let exchange = self.link.run_before(&job, deadline).await;
                failpoint!("link.after-reply");
                self.tell(Input::Exchanged {
                    machine,
                    operation,
                    attempt,
                    exchange,
                })
                .await;
            }
            Errand::ReadGate => self.read_gate().await,
            Errand::Probe {
                operation, probe, ..
            } => {
                let answer = self.link.probe(&probe).await;
                self.tell(Input::Probed {
                    machine,
                    operation,
                    answer,
                })
                .await;
            }
            errand @ (Errand::Acknowledge { .. } | Errand::ReadRing { .. }) => {
                self.source_errand(errand).await;
            }
            Errand::Burn { request, .. } => {
                let exchange = self.link.run(&Job::Mailbox(request)).await;
                self.tell(Input::Burned { machine, exchange }).await;
            }
            Errand::Read { points, reply } => {
                let exchange = self.link.run(&Job::Read { points }).await;
                let _ = reply.send(match exchange.outcome {
                    Outcome::DeviceReplied(Reply::Values(values)) => Ok(values),
                    other => Err(read_failure(&other)),
                });
            }
        }
        self.link.hurry(false);
        self.show_counters();
    }

    /// The link is gone: what the engine still wants was not sent, and it is told so.
    async fn lost(&mut self, reason: &str) {
        let was = self.shared.connected.send_replace(false);
        if was {
            log::warn!("{}: connection lost: {reason}", self.spec.name);
        } else if self.stop.borrow().is_none() {
            self.say_unreached(reason);
        }
        self.observed.clear();
        self.counted_at.clear();
        self.shared.show_model(None);
        self.show_counters();
        let change = LinkChange::Down {
            reason: reason.to_owned(),
        };
        self.tell(Input::Link {
            machine: self.spec.name.clone(),
            change,
        })
        .await;
        while let Some(errand) = self.put_off.pop_front() {
            self.refuse(errand, reason).await;
        }
        while let Ok(errand) = self.errands.try_recv() {
            self.refuse(errand, reason).await;
        }
    }

    /// Once, and not at every try (F038).
    fn say_unreached(&mut self, reason: &str) {
        let now_ns = self.clock.now().boottime_ns;
        let pause_ns = UNREACHED_LOG_MS_MIN * NS_PER_MS;
        let due = |said: u64| now_ns.saturating_sub(said) >= pause_ns;
        if self.unreached_said_ns.is_none_or(due) {
            self.unreached_said_ns = Some(now_ns);
            log::warn!("{}: not reached: {reason}", self.spec.name);
        }
    }

    async fn refuse(&mut self, errand: Errand, reason: &str) {
        if let Some(input) = errand.refused(&self.spec.name, reason) {
            self.tell(input).await;
        }
    }

    /// Waits before the next connection, as long as the link says. Whether to stop.
    async fn pause(&mut self) -> bool {
        let random = self.seed.below(u64::from(u32::MAX) + 1);
        let wait_ms = self
            .link
            .backoff_ms(u32::try_from(random).unwrap_or(u32::MAX));
        let until = tokio::time::Instant::now() + Duration::from_millis(wait_ms);
        loop {
            self.beat.at(self.clock.now().boottime_ns);
            let step = until.min(tokio::time::Instant::now() + Duration::from_millis(BEAT_MS_MAX));
            tokio::select! {
                biased;
                _ = self.stop.changed() => return true,
                errand = self.errands.recv() => match errand {
                    Some(errand) => self.refuse(errand, "waiting to reconnect").await,
                    None => return true,
                },
                () = tokio::time::sleep_until(step) => {
                    if step == until {
                        return false;
                    }
                }
            }
        }
    }

    fn show_counters(&mut self) {
        let mut counters = self.link.counters();
        counters.push(("polls".into(), self.polls));
        let now = self.clock.now().boottime_ns;
        counters.push(("polls_skipped".into(), self.plan.skipped(now)));
        *self
            .shared
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner) = counters;
        let mut notes = self.plan.notes();
        notes.extend(self.sources.notes());
        *self
            .shared
            .notes
            .write()
            .unwrap_or_else(PoisonError::into_inner) = notes;
    }

    async fn tell(&mut self, input: Input) {
        // The engine is gone only when the process is ending.
        let _ = self.engine.send(Message::Input(input)).await;
    }
}

/// A number that no connection of this process has had: not even those of the task that this one takes over from.
fn next_connection() -> ConnectionNo {
    static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
    ConnectionNo(CONNECTIONS.fetch_add(1, Relaxed))
}

fn read_failure(outcome: &Outcome) -> String {
    match outcome {
        Outcome::NotSent { why } | Outcome::PartlySent { why } | Outcome::SentNoReply { why } => {
            why.clone()
        }
        Outcome::DeviceRefused(code) | Outcome::DeviceBusy(code) | Outcome::DeviceUnclear(code) => {
            format!("the device answers {code}")
        }
        Outcome::DeviceAccepted | Outcome::DeviceReplied(_) => "the reply carries no values".into(),
    }
}
