//! Owns: one machine's link: at most one connection, what is read and written over it, and its counts.
//! May call: the files of this room; core types, values.
//! Never: send while in doubt, send anything twice, or say "connected" before a read was answered.

use super::exchange::{Ask, Called, End, Proof, Session};
use super::gate::gate_places;
use super::loopback::{self, Loopback};
use super::metered::{Clock, Tally, count};
use super::opener::Opener;
use super::plan::{Limits, PointId, PollPlan, ReadRequest, Span, StepEnd, merge};
use super::port::{Manners, Ports};
use super::scatter::{How, Scatter, Scattered};
use super::secrets::Secrets;
use super::tap::Tap;
use super::turns::{Purpose, Turn};
use crate::core::c24::C24Frame;
use crate::core::contract::{DeviceCode, Exchange, Job, Outcome, Reply};
use crate::core::serial::Way;
use crate::core::spec::{
    Address, GateSpec, LinkSpec, MachineSpec, MailboxSpec, Quality, Scalar, Value,
};
use crate::core::time::{Deadline, NS_PER_MS, Stamp, Validity};
use crate::core::values;
use crate::sys::LineErrors;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Why a job was not handed over that would have been in time when it was decided.
pub(super) const TOO_LATE: &str = "its validity ended before the first byte could be handed over";
/// Most readings of a guarded group before its values are called uncertain (F051).
pub const GUARD_TRIES_MAX: usize = 3;
/// Longest wait before a device is tried again that was silent and refused nothing, in milliseconds: one
/// that is back is read within ten seconds, whatever the configured longest (F059).
pub const SILENT_WAIT_MS_MAX: u64 = 5_000;

/// Why the link, or the device behind it, does not serve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// No connection is open.
    #[error("not connected")]
    NotConnected,
    /// The host name means nothing here, or no route leads there.
    #[error("{address} cannot be reached: {why}; check address, cable and network")]
    Unreachable {
        /// As configured.
        address: String,
        /// The system's words.
        why: String,
    },
    /// Something is there and takes no connection: no server, or all its slots are taken.
    #[error(
        "{address} refuses the connection; check the port, and whether other clients hold all of the device's connections"
    )]
    Refused {
        /// As configured.
        address: String,
    },
    /// Nothing answered in time.
    #[error("no connection to {address} within {timeout_ms} ms; is the device on?")]
    ConnectTimeout {
        /// As configured.
        address: String,
        /// As configured.
        timeout_ms: u64,
    },
    /// The serial port, or the way to it, as the system has it.
    #[error("{0}")]
    Port(String),
    /// The peer or the network ended the connection.
    #[error("connection lost: {0}")]
    Lost(String),
    /// No matching reply; the connection was dropped.
    #[error("no valid reply: {0}")]
    NoReply(String),
    /// A gateway answers, the unit behind it does not: the connection stays (F043).
    #[error("unit {unit} is offline behind its gateway: exception {code:02X} ({meaning})")]
    UnitOffline {
        /// The configured unit.
        unit: u8,
        /// The exception.
        code: u32,
        /// Its name.
        meaning: String,
    },
    /// The device answers with a code of its own.
    #[error("the device answers {what} with {code}")]
    Exception {
        /// What was read.
        what: String,
        /// The exception or end code.
        code: DeviceCode,
        /// It names the place or the length: until the configuration changes it will be said again.
        mendable: bool,
    },
    /// No request can do it; the connection is not at fault.
    #[error("not possible: {0}")]
    NotPossible(String),
    /// The mailbox's blocks were asked of a machine that has none.
    #[error("this machine has no mailbox")]
    NoMailbox,
}

/// A polled value, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What it is for.
    pub id: PointId,
    /// `None`: there is no value; never a stand-in (F063).
    pub value: Option<Value>,
    /// Good, uncertain, stale (busy: the last good value may be kept) or bad.
    pub quality: Quality,
    /// Why it is not good.
    pub reason: Option<String>,
    /// When it was read, or failed to be.
    pub at: Stamp,
}

/// What a CPU calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Such as `Q06UDVCPU`.
    pub name: String,
    /// Its number in the manual's list.
    pub code: u16,
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:04X})", self.name, self.code)
    }
}

/// One machine's link.
pub struct Link {
    pub(super) spec: LinkSpec,
    opener: Opener,
    pub(super) mailbox: Option<MailboxSpec>,
    pub(super) gate: GateSpec,
    pub(super) limits: Limits,
    probe: Span,
    pub(super) clock: Clock,
    tally: Arc<Tally>,
    session: Option<Session>,
    /// Identifies the next request, over all connections of this link.
    ident: u16,
    ready: bool,
    last_reply: Option<Stamp>,
    /// Of the job under way.
    deadline: Option<Deadline>,
    /// Why the last connection ended.
    ended: String,
    /// Since the last connection that proved itself.
    failures: u32,
    /// Nothing answered at the last try: no slot of the device can be at stake.
    silent: bool,
    /// For the next request, on a line that others use too.
    turn: Option<Turn>,
    /// What is done is for a command.
    urgent: bool,
    secrets: Secrets,
    /// A late reply may carry a secret.
    secret_due: bool,
    /// On a line whose replies say not what they answer: one may still be on its way.
    pub(super) doubted: bool,
    /// What the device makes of a loopback test.
    pub(super) loopback: Loopback,
    /// What this connection can read at once of scattered places.
    pub(super) scatter: Scatter,
    /// It was said that the device does not know such a command.
    pub(super) scatter_noted: bool,
}

/// Words that were read, by place.
pub(super) struct Words(pub(super) Vec<(Span, Vec<u16>)>);

impl Words {
    /// The words of a value, as they were read.
    pub(super) fn raw(&self, at: &Scalar) -> Option<Vec<u16>> {
        let words = self.0.iter().find_map(|(span, words)| span.part(at, words));
        words.map(<[u16]>::to_vec)
    }

    pub(super) fn value(&self, at: &Scalar) -> Result<Value, String> {
        let words = self.0.iter().find_map(|(span, words)| span.part(at, words));
        values::decode(
            words.ok_or_else(|| format!("{} was not read", at.address))?,
            at,
        )
    }

    pub(super) fn values(
        &self,
        points: &[(String, Scalar)],
    ) -> Result<Vec<(String, Value)>, String> {
        let named = |(name, at): &(String, Scalar)| Ok((name.clone(), self.value(at)?));
        points.iter().map(named).collect()
    }
}

impl Link {
    /// A link that is not connected yet, on a line of its own.
    #[must_use]
    pub fn new(spec: &MachineSpec, clock: Clock) -> Self {
        Self::on(&Ports::default(), spec, clock)
    }

    /// A link that is not connected yet; it shares its line with those of the same `ports` that name it too.
    #[must_use]
    pub fn on(ports: &Ports, spec: &MachineSpec, clock: Clock) -> Self {
        Self {
            spec: spec.link.clone(),
            opener: Opener::new(&spec.link, ports),
            mailbox: spec.mailbox.clone(),
            gate: spec.gate.clone(),
            limits: Limits::of(&spec.link),
            probe: probe_place(spec),
            // Begun anywhere, so that a restarted gateway does not begin where its predecessor did.
            ident: (clock().boottime_ns >> 16) as u16,
            clock,
            tally: Arc::default(),
            session: None,
            ready: false,
            last_reply: None,
            deadline: None,
            ended: String::new(),
            failures: 0,
            silent: false,
            turn: None,
            urgent: false,
            secrets: Secrets::of(spec),
            secret_due: false,
            doubted: false,
            loopback: Loopback::default(),
            scatter: Limits::of(&spec.link).scatter,
            scatter_noted: false,
        }
    }

    /// What will identify the next request.
    pub(super) fn next_ident(&self) -> u16 {
        self.ident
    }

    /// Whether what follows is for a command: on a line that others use too it goes before their polls.
    pub fn hurry(&mut self, urgent: bool) {
        self.urgent = urgent;
    }

    /// Waits until the line is this link's for one request; at once where nobody shares it. May be dropped while
    /// it waits. What follows uses the turn, or [`Link::yield_turn`] gives it up.
    pub async fn turn(&mut self) {
        let purpose = match (self.ready, self.urgent) {
            (false, _) => Purpose::Probe,
            (true, true) => Purpose::Command,
            (true, false) => Purpose::Poll,
        };
        if let (Some(port), None) = (&self.opener.port, &self.turn) {
            self.turn = Some(port.turn(purpose).await);
        }
    }

    /// Gives up a turn that was not used.
    pub fn yield_turn(&mut self) {
        self.turn = None;
    }

    /// Opens the connection, if none is open, and has a read answered over it.
    ///
    /// # Errors
    /// [`LinkError`]. After [`LinkError::UnitOffline`] the connection stays open for the next call.
    pub async fn connect(&mut self) -> Result<(), LinkError> {
        self.failures = self.failures.saturating_add(1);
        let timeouts = self.tally.timeouts.load(Relaxed);
        let connected = self.try_connect().await;
        self.silent = match &connected {
            Err(LinkError::ConnectTimeout { .. } | LinkError::Unreachable { .. }) => true,
            _ => self.tally.timeouts.load(Relaxed) > timeouts,
        };
        connected
    }

    async fn try_connect(&mut self) -> Result<(), LinkError> {
        // Of a job whose future was dropped.
        self.deadline = None;
        if self.session.as_ref().is_none_or(Session::is_closed) {
            // One connection per device: the old one is closed before a new one is opened (F141).
            self.disconnect("a new connection");
            self.turn().await;
            let (clock, tally) = (self.clock.clone(), Arc::clone(&self.tally));
            let opened = self.opener.open(&self.spec, clock, tally).await;
            self.session = Some(opened.map_err(|error| {
                count(&self.tally.connect_failures);
                if let Some(turn) = self.turn.take() {
                    turn.found_nobody(Duration::ZERO);
                }
                self.connect_error(&error)
            })?);
            count(&self.tally.connects);
            self.scatter = self.limits.scatter;
            // The reply to a request of whoever had the line before may still be on its way.
            self.doubted |= !loopback::has_identity(&self.spec);
        }
        // What never answers is there as far as anybody can know.
        if self.spec.is_broadcast() {
            self.ready = true;
            self.failures = 0;
            return Ok(());
        }
        let mut proven = self.prove_line().await?;
        let read = self.read_spans(&[self.probe]).await;
        match read {
            Ok(_) => {}
            // The unit itself has judged the request: it is alive.
            Err(called) if called.end.is_judged() => {}
            Err(called) => {
                self.prove_after_read(false).await?;
                return Err(self.error(&called, &self.probe.to_string()));
            }
        }
        proven |= self.prove_after_read(true).await?;
        // That may have been the late reply to an earlier request, and its own reply comes only now: it must
        // not be taken for the next one's.
        if let (true, Some(port), Some(manners)) = (
            self.doubted && !proven,
            &self.opener.port,
            Manners::of(&self.spec),
        ) {
            port.settle(&manners);
        }
        self.doubted = false;
        self.ready = true;
        self.failures = 0;
        Ok(())
    }

    /// How long to wait before the next [`Link::connect`], by any `random` number: uniform between the
    /// least wait and that doubled for each failure, never above the configured longest (F141), nor, while
    /// nothing answers at all, above [`SILENT_WAIT_MS_MAX`].
    #[must_use]
    pub fn backoff_ms(&self, random: u32) -> u64 {
        let (least, most) = self.spec.reconnect_ms();
        let longest = match self.silent {
            true => most.min(SILENT_WAIT_MS_MAX.max(least)),
            false => most,
        };
        let doubled = least.saturating_mul(1 << self.failures.min(20));
        let spread = doubled.min(longest).saturating_sub(least);
        let share = u128::from(spread) * u128::from(random) / u128::from(u32::MAX);
        least.min(longest) + u64::try_from(share).unwrap_or(spread)
    }

    /// Whether a read was answered over the connection that is open now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.ready && self.is_open()
    }

    /// The unit that is asked.
    #[must_use]
    pub fn unit(&self) -> u8 {
        self.spec.unit()
    }

    /// Whether the TCP connection stands: not the same as the unit being there (F043).
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| !session.is_closed())
    }

    /// Why the last connection ended, in plain words.
    #[must_use]
    pub fn why_ended(&self) -> &str {
        &self.ended
    }

    /// Ends the connection with a reset, so that nothing that is still queued arrives later (F060).
    pub fn disconnect(&mut self, why: &str) {
        if let Some(session) = self.session.take() {
            log::debug!("{}: disconnected: {why}", self.spec.address());
            session.abort();
        }
        self.ready = false;
    }

    /// Whether nothing was answered for the heartbeat time (F069).
    #[must_use]
    pub fn heartbeat_due(&self) -> bool {
        if self.spec.is_broadcast() {
            return false;
        }
        let now = (self.clock)();
        let limit_ns = self.spec.heartbeat_ms().saturating_mul(NS_PER_MS);
        self.last_reply
            .is_none_or(|last| crate::core::time::elapsed_ns(&last, &now) >= limit_ns)
    }

    /// A read for its own sake: it finds a dead connection before a command does.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn heartbeat(&mut self) -> Result<(), LinkError> {
        if !self.is_open() {
            return Err(LinkError::NotConnected);
        }
        match self.read_spans(&[self.probe]).await {
            Ok(_) => Ok(()),
            Err(called) if called.end.is_judged() || called.end.is_busy() => Ok(()),
            Err(called) => Err(self.error(&called, &self.probe.to_string())),
        }
    }

    /// Does one job, to its one outcome (SEND-02). A future that is dropped halfway leaves the link
    /// closed, never a frame that goes on later.
    pub async fn run(&mut self, job: &Job) -> Exchange {
        self.run_before(job, None).await
    }

    /// As [`Link::run`], but nothing is handed over at or after `deadline`: between the decision to send and
    /// the first byte the disk or an earlier request may have taken its time (TIME-02).
    pub async fn run_before(&mut self, job: &Job, deadline: Option<Deadline>) -> Exchange {
        self.deadline = deadline;
        let exchange = self.run_now(job).await;
        self.deadline = None;
        exchange
    }

    async fn run_now(&mut self, job: &Job) -> Exchange {
        if self.is_too_late() {
            return not_sent(TOO_LATE.into());
        }
        match job {
            Job::Read { points } => self.run_read(points).await,
            Job::Write { start, words } => {
                let (start, words) = (*start, words.clone());
                self.run_write(&Ask::Write { start, words }).await
            }
            Job::Scatter { parts } => self.run_write(&Ask::Scatter(parts.clone())).await,
            Job::Remote(order) => self.run_remote(*order).await,
            Job::Mailbox(request) => self.run_mailbox(request).await,
        }
    }

    /// Whether the job under way may not be handed over any more.
    pub(super) fn is_too_late(&self) -> bool {
        let valid =
            |deadline: Deadline| matches!(deadline.at(&(self.clock)()), Validity::Remaining(_));
        self.deadline.is_some_and(|deadline| !valid(deadline))
    }

    async fn run_write(&mut self, ask: &Ask) -> Exchange {
        let called = self.call(ask).await;
        let outcome = match (&called.end, ask) {
            (End::Code(coded), Ask::Scatter(_)) => coded.clone().of_scattered_write(),
            (end, _) => write_outcome(end),
        };
        let outcome = match (outcome, &self.spec) {
            // An end code is no echo: it says that the request was done, and repeats nothing of it.
            (Outcome::DeviceReplied(Reply::WriteEcho), LinkSpec::Mc(_)) => {
                let by = "the device answered: end code 0000".into();
                Outcome::DeviceReplied(Reply::Confirmed { by })
            }
            (Outcome::DeviceReplied(Reply::WriteEcho), LinkSpec::C24(_)) => {
                let by = "the serial module acknowledged the write (ACK)".into();
                Outcome::DeviceReplied(Reply::Confirmed { by })
            }
            (outcome, _) => outcome,
        };
        called.exchange(outcome)
    }

    async fn run_read(&mut self, points: &[(String, Scalar)]) -> Exchange {
        let places: Vec<Scalar> = points.iter().map(|(_, at)| *at).collect();
        let wide = merge(&places, self.limits.over_gaps());
        let narrow = merge(&places, self.limits.without_gaps());
        if wide.is_empty() {
            return not_sent("nothing to read".into());
        }
        let apart = wide.len() > 1 && self.scatter.over(&narrow).is_some();
        let mut read = match apart {
            true => self.read_apart(&narrow).await,
            false => self.read_spans_traced(&wide).await,
        };
        let refused = matches!(
            &read,
            Err(Called { end: End::Code(coded), .. }) if coded.proof == Proof::RefusedPlace
        );
        if refused && !apart && narrow != wide {
            read = self.read_spans_traced(&narrow).await;
        }
        match read {
            Err(called) => called.exchange(read_outcome(&called.end)),
            Ok((words, called)) => called.exchange(match words.values(points) {
                Ok(values) => Outcome::DeviceReplied(Reply::Values(values)),
                Err(meaning) => Outcome::DeviceUnclear(DeviceCode {
                    family: "value".into(),
                    code: 0,
                    meaning,
                }),
            }),
        }
    }

    /// Does one step of the plan; between steps the caller may let a command go first (SEND-07).
    ///
    /// Nothing is returned while the plan still looks for the part that the device refuses.
    pub async fn poll(&mut self, plan: &mut PollPlan, step: &ReadRequest) -> Vec<Reading> {
        let read = self.read_step(step).await;
        let now = (self.clock)();
        let end = match &read {
            Ok(_) => StepEnd::Read,
            Err(called) => match &called.end {
                end if end.is_unknown_command() && self.tries_otherwise(step) => StepEnd::Again,
                End::Code(coded) => match coded.proof {
                    Proof::RefusedPlace | Proof::RefusedLength => {
                        StepEnd::Refused(coded.code.clone())
                    }
                    Proof::Busy => StepEnd::Busy,
                    _ => StepEnd::Failed,
                },
                _ => StepEnd::Failed,
            },
        };
        plan.scattering(self.scatter);
        let busy = end == StepEnd::Busy;
        let settled = plan.finish(step, end, now.boottime_ns);
        let (words, doubt) = match read {
            Ok(read) => read,
            Err(_) if !settled => return Vec::new(),
            Err(called) => {
                let what: Vec<String> = step.spans.iter().map(Span::to_string).collect();
                let reason = self.error(&called, &what.join(", ")).to_string();
                let quality = if busy { Quality::Stale } else { Quality::Bad };
                return without_value(step, quality, &reason, now);
            }
        };
        let reading = |point: &super::plan::Point| {
            let (value, quality, reason) = match words.value(&point.at) {
                Ok(value) if values::is_no_value(&value, &point.no_value) => (
                    None,
                    Quality::Bad,
                    Some(format!("the device says \"no value\" ({value})")),
                ),
                Ok(value) if doubt.is_some() => (Some(value), Quality::Uncertain, doubt.clone()),
                Ok(value) => (Some(value), Quality::Good, None),
                Err(why) => (None, Quality::Bad, Some(why)),
            };
            Reading {
                id: point.id,
                value,
                quality,
                reason,
                at: now,
            }
        };
        step.points.iter().map(reading).collect()
    }

    async fn read_step(&mut self, step: &ReadRequest) -> Result<(Words, Option<String>), Called> {
        let Some(guard) = step.guard else {
            return Ok((self.read_at_once(step).await?, step.torn.clone()));
        };
        let guard_place = [Span::of(&guard)];
        let mut before = self.read_spans(&guard_place).await?;
        for tries_left in (0..GUARD_TRIES_MAX).rev() {
            let words = self.read_at_once(step).await?;
            let after = self.read_spans(&guard_place).await?;
            if before.0 == after.0 {
                return Ok((words, None));
            }
            if tries_left == 0 {
                let doubt = format!(
                    "guard {} changed in each of {GUARD_TRIES_MAX} readings",
                    guard.address
                );
                return Ok((words, Some(doubt)));
            }
            before = after;
        }
        Err(Called::not_sent("nothing was read"))
    }

    /// The places of a step, by one request where the plan has one.
    async fn read_at_once(&mut self, step: &ReadRequest) -> Result<Words, Called> {
        let Some(scattered) = &step.scattered else {
            return self.read_spans(&step.spans).await;
        };
        Ok(self.read_scattered(scattered).await?.0)
    }

    async fn read_scattered(&mut self, scattered: &Scattered) -> Result<(Words, Called), Called> {
        let called = self.call(&Ask::Scattered(scattered.clone())).await;
        let End::Words(all) = &called.end else {
            return Err(called);
        };
        let mut rest = all.as_slice();
        let mut words = Words(Vec::new());
        for span in &scattered.spans {
            let (own, others) = rest.split_at(rest.len().min(span.count.into()));
            words.0.push((*span, own.to_vec()));
            rest = others;
        }
        Ok((words, called))
    }

    /// Places that stand apart: by one request if the device knows one for them, and otherwise one after another.
    pub(super) async fn read_apart(&mut self, spans: &[Span]) -> Result<(Words, Called), Called> {
        while let Some(scattered) = self.scatter.over(spans) {
            match self.read_scattered(&scattered).await {
                Err(called) if called.end.is_unknown_command() => self.knows_not(scattered.how),
                read => return read,
            }
        }
        self.read_spans_traced(spans).await
    }

    /// The device does not know the request of `step`, which another may do; `false`: none may.
    fn tries_otherwise(&mut self, step: &ReadRequest) -> bool {
        let how = step.scattered.as_ref().map(|scattered| scattered.how);
        how.map(|how| self.knows_not(how)).is_some()
    }

    /// Takes note that the device does not know these requests: until the next connection scattered places are
    /// read in another way.
    fn knows_not(&mut self, how: How) {
        self.scatter = self.scatter.without(how);
        if !std::mem::replace(&mut self.scatter_noted, true) {
            log::warn!(
                "{}: the device does not know {how}: scattered places take more requests",
                self.spec.address()
            );
        }
    }

    /// Where the bytes of this link can be looked at.
    #[must_use]
    pub fn tap(&self) -> Tap {
        self.tally.tap.clone()
    }

    /// What the serial driver has counted on the line since it was opened, where it counts.
    #[must_use]
    pub fn line_errors(&self) -> Option<LineErrors> {
        self.opener.port.as_ref()?.line_errors()
    }

    /// The read by which a connection proves itself.
    #[must_use]
    pub fn proof(&self) -> Span {
        self.probe
    }

    /// That read again, and here a refusal is an error too: to be alive is not yet to give what is asked for. With the
    /// time from its first byte to the last of its reply, in nanoseconds.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn ask_proof(&mut self) -> Result<Option<u64>, LinkError> {
        let (_, called) = self
            .read_spans_traced(&[self.probe])
            .await
            .map_err(|called| self.error(&called, &self.probe.to_string()))?;
        let stamps = called.meter.sent_at.zip(called.meter.replied_at);
        Ok(stamps.map(|(sent, replied)| crate::core::time::elapsed_ns(&sent, &replied)))
    }

    /// Asks the CPU's model; `None`: the protocol has no such request, or the device answers it with a code.
    ///
    /// # Errors
    /// [`LinkError`]: no reply to it came, and the connection is closed.
    pub async fn ask_model(&mut self) -> Result<Option<Model>, LinkError> {
        let has_model = match &self.spec {
            LinkSpec::Mc(_) => true,
            LinkSpec::C24(link) => link.frame != C24Frame::C1,
            LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => false,
        };
        if !has_model {
            return Ok(None);
        }
        let called = self.call(&Ask::Model).await;
        match called.end {
            End::Model(name, code) => Ok(Some(Model { name, code })),
            End::Code(_) => Ok(None),
            _ => Err(self.error(&called, "the CPU's model")),
        }
    }

    /// Counts since the start, by name.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, u64)> {
        let tally = &self.tally;
        let counts = [
            ("requests", &tally.requests),
            ("timeouts", &tally.timeouts),
            ("stale_reply", &tally.stale_reply),
            ("wrong_unit", &tally.wrong_unit),
            ("misfits", &tally.misfits),
            ("noise_bytes", &tally.noise_bytes),
            ("exceptions", &tally.exceptions),
            ("connects", &tally.connects),
            ("connect_failures", &tally.connect_failures),
            ("aborts", &tally.aborts),
        ];
        counts
            .map(|(name, counter)| (name.to_owned(), counter.load(Relaxed)))
            .to_vec()
    }

    pub(super) async fn call(&mut self, ask: &Ask) -> Called {
        let turn = match self.quiet_line().await {
            Ok(turn) => turn,
            Err(why) => return Called::not_sent(why),
        };
        // Others may have had the line meanwhile (TIME-02).
        if turn.is_some() && ask.is_order() && self.is_too_late() {
            return Called::not_sent(TOO_LATE);
        }
        let Some(session) = &mut self.session else {
            return Called::not_sent("not connected");
        };
        let secret = self.secrets.touch(ask);
        let hidden = secret || self.secret_due;
        self.tally.tap.hide(hidden);
        let ident = self.ident;
        self.ident = self.ident.wrapping_add(1);
        self.secret_due |= secret;
        // Also if this future is dropped halfway: the reply may come all the same.
        let doubted = std::mem::replace(&mut self.doubted, true);
        let mut called = session.call(ident, ask).await;
        if hidden {
            called.conceal();
        }
        let unmatched = !called.end.is_matched() && !matches!(called.end, End::NotSent(_));
        self.doubted = doubted || unmatched;
        // A reply of its own to the request, and so none to an earlier one is still to come.
        self.secret_due &= !called.end.is_matched();
        if let (Some(turn), Some(line), false) =
            (&turn, self.spec.on_line(), called.end.is_matched())
        {
            turn.found_nobody(Duration::from_millis(line.settle_ms));
        }
        drop(turn);
        match &called.end {
            End::Code(coded) if coded.proof == Proof::Offline => self.ready = false,
            end if end.is_matched() => self.last_reply = called.meter.replied_at,
            // No frame could do it, and the line was not touched.
            End::NotSent(_) if !session.is_closed() => {}
            _ => {
                self.doubted |= matches!(self.spec, LinkSpec::Mc(_));
                self.disconnect("no matching reply");
                self.ended = self.error(&called, "the last request").to_string();
            }
        }
        called
    }

    /// The turn on a shared line, and that line quiet; nothing where the line is this link's alone.
    async fn quiet_line(&mut self) -> Result<Option<Turn>, String> {
        let (Some(port), Some(manners)) = (self.opener.port.clone(), Manners::of(&self.spec))
        else {
            return Ok(None);
        };
        if self.turn.is_none() {
            // What is under way is not kept waiting by what others have yet to begin.
            self.turn = Some(match self.ready {
                true => port.turn(Purpose::Command).await,
                false => port.turn(Purpose::Probe).await,
            });
        }
        let turn = self.turn.take();
        if self.session.as_ref().is_none_or(Session::is_closed) {
            self.disconnect("the line was closed");
            return Err("the line was closed".into());
        }
        if let Err(error) = port.quiet(&manners, &self.clock, &self.tally).await {
            let why = error.to_string();
            self.disconnect(&why);
            self.ended.clone_from(&why);
            return Err(why);
        }
        Ok(turn)
    }

    /// Reads `spans` in their order; the first that fails ends it.
    pub(super) async fn read_spans(&mut self, spans: &[Span]) -> Result<Words, Called> {
        Ok(self.read_spans_traced(spans).await?.0)
    }

    /// The same, with the last exchange.
    async fn read_spans_traced(&mut self, spans: &[Span]) -> Result<(Words, Called), Called> {
        let mut words = Words(Vec::new());
        let mut last = Called::not_sent("nothing to read");
        for span in spans {
            if let Err(why) = self.limits.check(*span) {
                return Err(Called::not_sent(why));
            }
            last = self.call(&Ask::Read(*span)).await;
            match &last.end {
                End::Words(read) => words.0.push((*span, read.clone())),
                _ => return Err(last),
            }
        }
        Ok((words, last))
    }

    /// A block, in as many requests as the device's limit asks for: its CRC says if it was torn.
    pub(super) async fn read_block(
        &mut self,
        start: Address,
        length: usize,
    ) -> Result<(Vec<u16>, Called), Called> {
        let mut words = Vec::with_capacity(length);
        let mut last = Called::not_sent("nothing to read");
        while words.len() < length {
            let rest = length - words.len();
            let Some(place) = start.plus(words.len() as u32) else {
                return Err(Called::not_sent(format!(
                    "{length} words from {start} go past the last place"
                )));
            };
            let span = Span {
                area: place.area(),
                start: place.number(),
                count: rest.min(usize::from(self.limits.registers_max)) as u16,
            };
            let (read, called) = self.read_spans_traced(&[span]).await?;
            words.extend(read.0.into_iter().flat_map(|(_, words)| words));
            last = called;
        }
        Ok((words, last))
    }

    fn connect_error(&self, error: &std::io::Error) -> LinkError {
        let address = self.spec.address();
        let line = self.spec.on_line();
        if line.is_some_and(|line| matches!(line.way, Way::Serial(_))) {
            return LinkError::Port(error.to_string());
        }
        match error.kind() {
            ErrorKind::TimedOut => LinkError::ConnectTimeout {
                address,
                timeout_ms: self.spec.timeout_ms(),
            },
            ErrorKind::ConnectionRefused => LinkError::Refused { address },
            _ => LinkError::Unreachable {
                address,
                why: error.to_string(),
            },
        }
    }

    pub(super) fn error(&self, called: &Called, what: &str) -> LinkError {
        match &called.end {
            End::Code(coded) if coded.proof == Proof::Offline => LinkError::UnitOffline {
                unit: self.spec.unit(),
                code: coded.code.code,
                meaning: coded.code.meaning.clone(),
            },
            End::Code(coded) => LinkError::Exception {
                what: what.to_owned(),
                code: coded.code.clone(),
                mendable: matches!(coded.proof, Proof::RefusedPlace | Proof::RefusedLength),
            },
            End::NotSent(why) if self.is_open() => LinkError::NotPossible(why.clone()),
            End::NotSent(why) => LinkError::Lost(why.clone()),
            End::PartlySent(why) | End::NoReply(why) => LinkError::NoReply(why.clone()),
            End::Words(_) | End::Echo | End::Model(..) | End::Unconfirmable(_) => {
                LinkError::NoReply("not what was asked for".into())
            }
        }
    }
}

pub(super) fn not_sent(why: String) -> Exchange {
    let called = Called::not_sent(why.clone());
    called.exchange(Outcome::NotSent { why })
}

pub(super) fn write_outcome(end: &End) -> Outcome {
    match end.clone() {
        End::Code(coded) => coded.of_write(),
        End::NotSent(why) => Outcome::NotSent { why },
        End::PartlySent(why) => Outcome::PartlySent { why },
        End::NoReply(why) | End::Unconfirmable(why) => Outcome::SentNoReply { why },
        End::Echo => Outcome::DeviceReplied(Reply::WriteEcho),
        End::Words(_) | End::Model(..) => Outcome::SentNoReply {
            why: "a read's reply to a write".into(),
        },
    }
}

fn read_outcome(end: &End) -> Outcome {
    match end.clone() {
        End::Code(coded) => coded.of_read(),
        _ => write_outcome(end),
    }
}

fn without_value(step: &ReadRequest, quality: Quality, why: &str, at: Stamp) -> Vec<Reading> {
    let reading = |point: &super::plan::Point| Reading {
        id: point.id,
        value: None,
        quality,
        reason: Some(why.to_owned()),
        at,
    };
    step.points.iter().map(reading).collect()
}

/// The read by which a connection proves itself: the first place that the configuration names.
fn probe_place(spec: &MachineSpec) -> Span {
    let one = |address: Address| Span {
        area: address.area(),
        start: address.number(),
        count: 1,
    };
    let mailbox = spec.mailbox.as_ref().map(|mailbox| one(mailbox.status));
    let tags = spec.tags.iter().map(|tag| tag.at);
    let events = spec.events.iter().map(|event| event.kind.first_place());
    let first = gate_places(&spec.gate)
        .into_iter()
        .chain(tags)
        .chain(events)
        .next();
    let first = first.map(|at| Span::of(&at)).or(mailbox);
    first.unwrap_or_else(|| one(super::opener::first_place(&spec.link)))
}
