//! Owns: one machine as the core sees it: link, gate, what waits, what is in doubt, and when to send.
//! May call: every file of this room.
//! Never: let anything pass the gate unchecked, or two writes be under way at once (SEND-07).

use super::contract::{GateReading, Job, MailboxRequest};
use super::gateway::{Effect, Gateway, LinkChange};
use super::ids::{AttemptId, CommitNo, ConnectionNo, OperationId};
use super::lifecycle::{HeldReason, RejectReason, Source, State, Step};
use super::mailbox;
use super::record::{ATTEMPTS_MAX, Attempt, MachineRecord, Operation};
use super::roles::Permission;
use super::spec::{Action, Class, Interlock, MachineSpec, MailboxSpec, Quality, Row};
use super::spread::Part;
use super::time::{NS_PER_MS, NS_PER_S, Now, Stamp, Validity, elapsed_ns};
use super::turn::{Cause, Turn, find};
use super::upkeep::Observation;
use super::values;
use crate::seeded::{self, Fault};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Most operations of one machine that may wait while its link is up.
pub const WAITING_MAX: usize = 1024;
/// A machine that was not reached for so long since it was first tried is an alarm, in milliseconds.
const FIRST_LINK_MS_MAX: u64 = 5_000;

/// One machine.
#[derive(Clone)]
pub struct Machine {
    /// As configured.
    pub spec: Arc<MachineSpec>,
    /// Still in the files; one that is not stays while something of it is open, and takes nothing new.
    pub configured: bool,
    /// What survives.
    pub record: MachineRecord,
    /// How the link stands.
    pub link: LinkState,
    /// The connection that stands, whether or not its gate was passed.
    pub(super) connection: Option<ConnectionNo>,
    /// Since when it has stood so.
    pub since: Stamp,
    /// Since when no command could pass; `None` while the gate is open.
    pub down_since: Option<Stamp>,
    /// Why, in plain words.
    pub reason: String,
    /// The last gate reading over this connection.
    pub gate: Option<GateReading>,
    /// What is under way.
    pub in_flight: Option<OperationId>,
    /// What waits, in the order of submission.
    pub waiting: BTreeMap<CommitNo, OperationId>,
    /// What a person must decide.
    pub held: BTreeSet<OperationId>,
    /// What was sent and is not proven.
    pub unresolved: BTreeMap<CommitNo, OperationId>,
    pub(super) live: HashMap<OperationId, Live>,
    pub(super) drain_due_ns: Option<u64>,
    /// When it is an alarm that it was never reached; `None`: not tried yet, reached, or told already.
    pub(super) unreached_due_ns: Option<u64>,
    pub(super) next_drain_ns: u64,
    pub(super) gate_asked: bool,
    pub(super) probing: Option<OperationId>,
    pub(super) burning: bool,
    pub(super) epoch_taken: bool,
    /// Watched values that changed while the journal was full, by event type.
    pub(super) unheard: BTreeMap<String, Observation>,
    /// The quality that the last event of a watched value had, by event type.
    pub(super) heard_as: BTreeMap<String, Quality>,
}

/// How a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// No connection.
    Down,
    /// One is being made.
    Connecting,
    /// One stands; the gate has not been passed.
    Gate,
    /// Commands may pass.
    Up,
}

impl LinkState {
    /// No connection stands, whether or not one is being tried.
    fn is_away(self) -> bool {
        matches!(self, Self::Down | Self::Connecting)
    }

    /// The name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Connecting => "connecting",
            Self::Gate => "gate",
            Self::Up => "up",
        }
    }
}

/// What is known of an open operation while this process runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// Not to be sent before, boot-relative nanoseconds.
    pub(super) not_before_ns: u64,
    /// To be probed next; `None`: not by itself.
    pub(super) probe_ns: Option<u64>,
    /// The wait before the probe after that.
    pub(super) probe_wait_ns: u64,
    /// Its entry in the timers.
    pub(super) due_ns: Option<u64>,
}

impl Machine {
    pub(super) fn new(spec: Arc<MachineSpec>, record: MachineRecord, now: &Now) -> Self {
        Self {
            spec,
            configured: true,
            record,
            link: LinkState::Down,
            connection: None,
            since: *now,
            down_since: Some(*now),
            reason: "not connected yet".into(),
            gate: None,
            in_flight: None,
            waiting: BTreeMap::new(),
            held: BTreeSet::new(),
            unresolved: BTreeMap::new(),
            live: HashMap::new(),
            drain_due_ns: None,
            unreached_due_ns: None,
            next_drain_ns: 0,
            gate_asked: false,
            probing: None,
            burning: false,
            epoch_taken: false,
            unheard: BTreeMap::new(),
            heard_as: BTreeMap::new(),
        }
    }

    /// The connection whose gate was passed: orders go out over it.
    pub(super) fn open_connection(&self) -> Option<ConnectionNo> {
        self.connection.filter(|_| self.link == LinkState::Up)
    }

    /// What the alarm of a machine says that no command can reach.
    fn why_down(&self) -> String {
        let (name, reason) = (&self.spec.name, &self.reason);
        if self.link.is_away() {
            format!("{name} is not connected: {reason}")
        } else {
            format!("{name} is connected, and cannot be commanded yet: {reason}")
        }
    }

    /// The operation that the mailbox is taken by: until it is settled, no other may use it.
    pub(super) fn mailbox_taken_by<'a>(
        &self,
        operations: &'a HashMap<OperationId, Operation>,
    ) -> Option<&'a Operation> {
        self.unresolved
            .values()
            .filter_map(|id| operations.get(id))
            .find(|operation| {
                let row = self.spec.row(&operation.intent.command);
                operation.request_id.is_some()
                    && row.is_none_or(|row| matches!(row.action, Action::Mailbox { .. }))
            })
    }
}

impl Machine {
    /// Why commands would be stopped at the gate now, whatever they are; the link is up, and yet nothing passes.
    #[must_use]
    pub fn gate_closed(&self) -> Option<HeldReason> {
        let gate = self.gate.as_ref().filter(|_| self.link == LinkState::Up)?;
        mode_and_quality(&self.spec, gate).or_else(|| open_interlock(&self.spec, gate, |_| true))
    }
}

fn link_down(machine: &str) -> (String, String) {
    ("link_down".to_owned(), machine.to_owned())
}

/// What the gate says to one operation.
enum Clearance {
    /// Go; the configuration version that was found.
    Go(Option<i64>),
    /// The gate must be read again first.
    Ask,
    /// Not as things stand.
    Stop(HeldReason),
}

impl Gateway {
    /// Puts an operation where its state belongs.
    pub(super) fn place(&mut self, id: &OperationId) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let Some(machine) = self.machines.get_mut(&operation.intent.machine) else {
            return;
        };
        let order = operation.submitted;
        machine.waiting.remove(&order);
        machine.held.remove(id);
        machine.unresolved.remove(&order);
        match operation.state {
            State::Queued => {
                machine.waiting.insert(order, id.clone());
            }
            State::Held(_) => {
                machine.held.insert(id.clone());
            }
            State::Sending { .. } | State::Accepted { .. } | State::OutcomeUnknown(_) => {
                machine.unresolved.insert(order, id.clone());
            }
            State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Completed(_)
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. } => {
                if let Some(due) = machine.live.remove(id).and_then(|live| live.due_ns) {
                    self.timers.remove(&(due, id.clone()));
                }
            }
        }
    }

    /// A link came, went, or is being tried.
    pub(super) fn link_changed(&mut self, turn: &mut Turn, name: &str, change: LinkChange) {
        self.forget_asked(name);
        let alarmed = self.alarms.contains_key(&link_down(name));
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.connection = match change {
            LinkChange::Up(connection) => Some(connection),
            LinkChange::Connecting | LinkChange::Down { .. } => None,
        };
        let (state, reason) = match change {
            LinkChange::Connecting => (LinkState::Connecting, machine.reason.clone()),
            LinkChange::Up(_) => (
                LinkState::Gate,
                "connected; the gate is being read".to_owned(),
            ),
            LinkChange::Down { reason } => (LinkState::Down, reason),
        };
        let was = machine.link;
        machine.link = state;
        machine.reason.clone_from(&reason);
        // Attempts to reconnect do not begin the outage anew.
        if was.is_away() != state.is_away() || !state.is_away() {
            machine.since = turn.now;
        }
        machine.gate = None;
        machine.gate_asked = false;
        machine.probing = None;
        match state {
            LinkState::Gate => {
                machine.gate_asked = true;
                turn.effects.push(Effect::ReadGate {
                    machine: name.to_owned(),
                });
            }
            LinkState::Down | LinkState::Connecting => {
                if matches!(was, LinkState::Up | LinkState::Gate) || machine.down_since.is_none() {
                    self.link_lost(turn, name, &reason);
                } else if !alarmed {
                    let due = turn.now.boottime_ns + FIRST_LINK_MS_MAX * NS_PER_MS;
                    machine.unreached_due_ns.get_or_insert(due);
                }
            }
            LinkState::Up => {}
        }
        self.say_why_down(name);
    }

    /// Machines that were never reached, once their time is over.
    pub(super) fn tell_unreached(&mut self, turn: &mut Turn) {
        let now = turn.now.boottime_ns;
        let mut away = Vec::new();
        for machine in self.machines.values_mut() {
            if machine.unreached_due_ns.is_some_and(|due| due <= now) {
                machine.unreached_due_ns = None;
                if machine.configured && machine.down_since.is_some() {
                    away.push((machine.spec.name.clone(), machine.why_down()));
                }
            }
        }
        for (name, text) in away {
            // Something is connected; that it is another device is the one alarm.
            let other = ("identity_mismatch".to_owned(), name.clone());
            if !self.alarms.contains_key(&other) {
                self.set_alarm(turn, "link_down", &name, Some(text));
            }
        }
    }

    /// The alarm gives the reason of now. That is no event: a reason that alternates would fill the journal of a
    /// machine that is away for weeks.
    fn say_why_down(&mut self, name: &str) {
        let alarm = self.alarms.get_mut(&link_down(name));
        if let (Some(alarm), Some(machine)) = (alarm, self.machines.get(name)) {
            alarm.text = machine.why_down();
        }
    }

    fn link_lost(&mut self, turn: &mut Turn, name: &str, reason: &str) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.down_since.get_or_insert(turn.now);
        machine.drain_due_ns = None;
        for live in machine.live.values_mut() {
            live.probe_ns = None;
        }
        let waiting: Vec<OperationId> = machine.waiting.values().cloned().collect();
        self.emit(
            turn,
            name,
            "link.changed",
            serde_json::json!({ "link": "down", "reason": reason }),
        );
        self.set_alarm(
            turn,
            "link_down",
            name,
            Some(format!("{name} is not connected: {reason}")),
        );
        for id in waiting {
            self.reject_if_it_never_waits(turn, &id);
        }
    }

    /// POL-09: what may not wait is refused, and does not slip into the queue.
    pub(super) fn reject_if_it_never_waits(&mut self, turn: &mut Turn, id: &OperationId) {
        let Some((_, row)) = self.with_row(id) else {
            return;
        };
        if row.class == Class::Query || row.queueable {
            return;
        }
        let reason = not_connected(&row);
        let cause = Cause::gateway(Source::Policy, "the link was lost before it was sent");
        let _ = self.step(turn, id, Step::Reject(reason), cause);
    }

    /// The gate was read.
    pub(super) fn gate_read(
        &mut self,
        turn: &mut Turn,
        name: &str,
        reading: Result<GateReading, String>,
    ) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.gate_asked = false;
        if !matches!(machine.link, LinkState::Gate | LinkState::Up) {
            return;
        }
        let reading = match reading {
            Ok(reading) => reading,
            Err(why) => {
                machine.reason = format!("the gate could not be read: {why}");
                machine.gate = None;
                self.say_why_down(name);
                return;
            }
        };
        if machine.spec.gate.identity.is_some() && reading.identity.is_none() {
            // Not read is not the same as another: nothing passes, and nothing needs a person for it.
            machine.reason = "its identity could not be read".into();
            machine.gate = None;
            self.say_why_down(name);
            return;
        }
        let mismatch = identity_mismatch(&machine.spec, &reading);
        // Another device's ids are no measure of this one's.
        if mismatch.is_none() {
            self.follow_mailbox(turn, name, &reading);
        }
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.gate = Some(reading);
        match mismatch {
            Some(held) => self.wrong_device(turn, name, held),
            None => self.gate_passed(turn, name),
        }
        self.pump(turn, name);
    }

    /// Another device answers: nothing is written to it, and what waits is for a person (F055).
    fn wrong_device(&mut self, turn: &mut Turn, name: &str, held: HeldReason) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        if machine.link != LinkState::Gate {
            machine.since = turn.now;
        }
        machine.link = LinkState::Gate;
        machine.reason = held.to_string();
        machine.down_since.get_or_insert(turn.now);
        let waiting: Vec<OperationId> = machine.waiting.values().cloned().collect();
        // Something is connected; that it is another device is the one alarm.
        self.set_alarm(turn, "link_down", name, None);
        self.set_alarm(
            turn,
            "identity_mismatch",
            name,
            Some(format!("{name}: {held}")),
        );
        for id in waiting {
            let side_effect = self
                .operations
                .get(&id)
                .is_some_and(|op| op.class.has_side_effect());
            if side_effect {
                self.stopped_at_gate(turn, &id, held.clone());
            }
        }
    }

    fn gate_passed(&mut self, turn: &mut Turn, name: &str) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        if machine.link == LinkState::Up {
            return;
        }
        machine.link = LinkState::Up;
        machine.since = turn.now;
        machine.reason = "connected".into();
        machine.down_since = None;
        machine.unreached_due_ns = None;
        let interval = interval_ns(self.settings.drain_per_machine_milli);
        machine.next_drain_ns = turn.now.boottime_ns + self.jitter.below(interval);
        let unresolved: Vec<OperationId> = machine.unresolved.values().cloned().collect();
        self.set_alarm(turn, "link_down", name, None);
        self.set_alarm(turn, "identity_mismatch", name, None);
        self.emit(
            turn,
            name,
            "link.changed",
            serde_json::json!({ "link": "up" }),
        );
        for id in unresolved {
            self.probe_soon(turn, &id);
        }
    }

    /// The mailbox's latched blocks say which ids are used up (design of the mailbox).
    fn follow_mailbox(&mut self, turn: &mut Turn, name: &str, reading: &GateReading) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        let (Some(spec), Some(blocks)) = (&machine.spec.mailbox, &reading.mailbox) else {
            return;
        };
        let order = spec.word_order;
        let (id, epoch) = mailbox::command_ids(&blocks.command, order);
        let mut last = machine.record.last_request_id;
        let accepted = mailbox::decode_status(&blocks.status, order)
            .ok()
            .map(|status| status.last_accepted);
        for seen in std::iter::once(id).chain(accepted) {
            if mailbox::id_after(seen, last) {
                last = seen;
            }
        }
        let mut changed = last != machine.record.last_request_id;
        machine.record.last_request_id = last;
        if !machine.epoch_taken {
            machine.epoch_taken = true;
            let base = if mailbox::id_after(epoch, machine.record.session_epoch) {
                epoch
            } else {
                machine.record.session_epoch
            };
            machine.record.session_epoch = base.wrapping_add(1);
            changed = true;
        }
        if changed {
            turn.touch_machine(name);
        }
    }

    /// Sends what may be sent, one at a time, in the order of submission (POL-08).
    pub(super) fn pump(&mut self, turn: &mut Turn, name: &str) {
        while let Some(id) = self.next_to_send(turn, name) {
            let Some((machine, row)) = self.with_row(&id) else {
                let why = "its command is no longer configured".to_owned();
                let cause = Cause::gateway(Source::Policy, "");
                let _ = self.step(
                    turn,
                    &id,
                    Step::Hold(HeldReason::ConfigurationChanged { why }),
                    cause,
                );
                continue;
            };
            debug_assert_eq!(machine, name);
            match self.clearance(turn, &id, &row) {
                Clearance::Go(version) => {
                    self.begin(turn, name, &id, &row, version);
                    return;
                }
                Clearance::Ask => {
                    self.ask_gate(turn, name);
                    return;
                }
                Clearance::Stop(held) => self.stopped_at_gate(turn, &id, held),
            }
        }
    }

    fn ask_gate(&mut self, turn: &mut Turn, name: &str) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        if !machine.gate_asked {
            machine.gate_asked = true;
            turn.effects.push(Effect::ReadGate {
                machine: name.to_owned(),
            });
        }
    }

    /// POL-07 for what may wait; refused where the class never waits for a person.
    fn stopped_at_gate(&mut self, turn: &mut Turn, id: &OperationId, held: HeldReason) {
        let waits = self.with_row(id).is_none_or(|(_, row)| {
            row.queueable || matches!(row.class, Class::AbsoluteSet | Class::RecipeWrite)
        });
        let found = self
            .machine_of(id)
            .and_then(|machine| machine.gate.as_ref()?.config_version);
        if let Some(operation) = self.operations.get_mut(id) {
            operation.version_found = found;
        }
        if let Some(operation) = self.operations.get_mut(id) {
            find(operation, &turn.now, "gate", held.to_string());
        }
        let step = if waits {
            Step::Hold(held)
        } else {
            Step::Reject(RejectReason::Gate(held))
        };
        let _ = self.step(turn, id, step, Cause::gateway(Source::Policy, ""));
    }

    /// The first waiting operation that may go now. Expired ones end here (TIME-02).
    fn next_to_send(&mut self, turn: &mut Turn, name: &str) -> Option<OperationId> {
        let machine = self.machines.get_mut(name)?;
        machine.drain_due_ns = None;
        if self.stopping_now() {
            return None;
        }
        let machine = self.machines.get(name)?;
        if machine.open_connection().is_none() || machine.in_flight.is_some() {
            return None;
        }
        let mailbox_taken = machine.mailbox_taken_by(&self.operations).is_some()
            || machine.record.burning.is_some();
        let candidates: Vec<OperationId> = machine.waiting.values().cloned().collect();
        let mut blocked = false;
        for id in candidates {
            if self.expire_if_due(turn, &id) {
                continue;
            }
            let machine = self.machines.get_mut(name)?;
            let Some(operation) = self.operations.get(&id) else {
                continue;
            };
            let query = operation.class == Class::Query;
            let early = machine
                .live
                .get(&id)
                .is_some_and(|live| live.not_before_ns > turn.now.boottime_ns);
            let row = machine.spec.row(&operation.intent.command);
            let wants_mailbox = row.is_some_and(|row| matches!(row.action, Action::Mailbox { .. }));
            if early || (wants_mailbox && mailbox_taken) || (blocked && !query) {
                blocked = true;
                continue;
            }
            if operation.disconnected_at.is_some() {
                let due = machine.next_drain_ns.max(self.next_drain_ns);
                if due > turn.now.boottime_ns {
                    machine.drain_due_ns = Some(due);
                    return None;
                }
            }
            return Some(id);
        }
        None
    }

    fn stopping_now(&self) -> bool {
        self.is_stopping() || self.is_recovery()
    }

    /// Ends what is over. Whether it was.
    pub(super) fn expire_if_due(&mut self, turn: &mut Turn, id: &OperationId) -> bool {
        let Some(operation) = self.operations.get(id) else {
            return false;
        };
        let over = operation
            .deadline
            .is_some_and(|deadline| deadline.at(&turn.now) == Validity::Expired);
        over && self
            .step(turn, id, Step::Expire, Cause::gateway(Source::Policy, ""))
            .is_ok()
    }

    /// POL-06, in its order. Every check's finding is kept.
    fn clearance(&mut self, turn: &mut Turn, id: &OperationId, row: &Row) -> Clearance {
        let Some(operation) = self.operations.get(id) else {
            return Clearance::Ask;
        };
        let Some(machine) = self.machines.get(&operation.intent.machine) else {
            return Clearance::Ask;
        };
        let Some(gate) = &machine.gate else {
            return Clearance::Ask;
        };
        if row.class == Class::Query {
            return Clearance::Go(gate.config_version);
        }
        let age_ns = elapsed_ns(&gate.at, &turn.now);
        if age_ns > machine.spec.gate.age_ms_max.saturating_mul(NS_PER_MS) {
            return Clearance::Ask;
        }
        let stop = gate_checks(&machine.spec, row, operation, gate).or_else(|| {
            let may = self
                .settings
                .roles
                .may(&operation.actor, Permission::Submit);
            (!may).then_some(HeldReason::PermissionLost)
        });
        if let Some(held) = stop {
            return Clearance::Stop(held);
        }
        let version = gate.config_version;
        let says = gate_findings(&machine.spec, gate);
        if operation.disconnected_at.is_some()
            && let Some(operation) = self.operations.get_mut(id)
        {
            find(operation, &turn.now, "gate", says);
        }
        Clearance::Go(version)
    }

    /// `Queued` to `Sending`, and the job for after (SEND-01).
    fn begin(
        &mut self,
        turn: &mut Turn,
        name: &str,
        id: &OperationId,
        row: &Row,
        version: Option<i64>,
    ) {
        let machine = self.machines.get(name);
        let Some(connection) = machine.and_then(Machine::open_connection) else {
            return;
        };
        let job = match self.job(turn, name, id, row) {
            Ok(job) => job,
            Err(why) => {
                let held = HeldReason::ConfigurationChanged { why };
                let _ = self.step(
                    turn,
                    id,
                    Step::Hold(held),
                    Cause::gateway(Source::Policy, ""),
                );
                return self.pump(turn, name);
            }
        };
        let attempt = AttemptId {
            epoch: self.epoch,
            n: self.next_attempt,
        };
        self.next_attempt += 1;
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        operation.version_found = version;
        if operation.attempts.len() >= ATTEMPTS_MAX {
            operation.attempts.remove(1);
        }
        operation.attempts.push(Attempt {
            id: attempt,
            begun: turn.now,
            frame_sha256: job_sha256(&job),
            exchange: None,
        });
        let drained = operation.disconnected_at.is_some();
        let cause = Cause {
            attempt: Some(attempt),
            ..Cause::gateway(Source::Policy, "every check passed")
        };
        if self.step(turn, id, Step::Begin(attempt), cause).is_err() {
            return;
        }
        if let Some(machine) = self.machines.get_mut(name) {
            machine.in_flight = Some(id.clone());
            if drained {
                let now = turn.now.boottime_ns;
                let own = interval_ns(self.settings.drain_per_machine_milli);
                let all = interval_ns(self.settings.drain_total_milli);
                machine.next_drain_ns = now + own + self.jitter.below(own / 2);
                self.next_drain_ns = now + all + self.jitter.below(all / 2);
            }
        }
        let deadline = self
            .operations
            .get(id)
            .and_then(|operation| operation.deadline);
        turn.effects.push(Effect::Run {
            machine: name.to_owned(),
            connection,
            operation: id.clone(),
            attempt,
            job,
            deadline,
        });
    }

    /// The words that will go out, or why there are none.
    fn job(
        &mut self,
        turn: &mut Turn,
        name: &str,
        id: &OperationId,
        row: &Row,
    ) -> Result<Job, String> {
        let operation = self.operations.get(id).ok_or("it is not in memory")?;
        let mailbox = self
            .machines
            .get(name)
            .and_then(|machine| machine.spec.mailbox.as_ref())
            .map(|mailbox| mailbox.command.area());
        let places = row.written();
        let mut encoded: Vec<Vec<u16>> = Vec::new();
        for (n, spec) in row.args.iter().enumerate() {
            let found = operation
                .intent
                .args
                .iter()
                .find(|(arg, _)| *arg == spec.name);
            let (_, value) = found.ok_or_else(|| format!("argument {} is missing", spec.name))?;
            let place = places.as_ref().and_then(|places| places.get(n));
            let area = place.map(|at| at.address.area()).or(mailbox);
            encoded.push(match area {
                Some(area) => values::encode_in(value, spec.data_type, spec.word_order, area)?,
                None => values::encode(value, spec.data_type, spec.word_order)?,
            });
        }
        match &row.action {
            Action::Read { points } => Ok(Job::Read {
                points: points.clone(),
            }),
            Action::Write { start, request_id } => {
                let mut words = encoded.concat();
                if *request_id {
                    let id = self.take_request_id(turn, name, id)?;
                    words.extend(mailbox::split_u32(id, row.id_order()));
                }
                Ok(Job::Write {
                    start: *start,
                    words,
                })
            }
            Action::Scatter { places, request_id } => {
                let mut parts: Vec<Part> = places.iter().copied().zip(encoded).collect();
                if let Some(at) = request_id {
                    let id = self.take_request_id(turn, name, id)?;
                    let words = mailbox::split_u32(id, row.id_order());
                    parts.push((*at, words.to_vec()));
                }
                Ok(Job::Scatter { parts })
            }
            Action::Mailbox { opcode } => self
                .mailbox_request(turn, name, id, *opcode, encoded.concat())
                .map(Job::Mailbox),
            Action::Remote { order } => Ok(Job::Remote(*order)),
        }
    }

    fn mailbox_request(
        &mut self,
        turn: &mut Turn,
        name: &str,
        id: &OperationId,
        opcode: u16,
        parameters: Vec<u16>,
    ) -> Result<MailboxRequest, String> {
        const TICK_NS: u64 = 100 * NS_PER_MS;
        let request_id = self.take_request_id(turn, name, id)?;
        let machine = self
            .machines
            .get(name)
            .ok_or("its machine is not configured")?;
        let spec = machine
            .spec
            .mailbox
            .as_ref()
            .ok_or("its machine has no mailbox")?;
        let boot = machine
            .gate
            .as_ref()
            .and_then(|gate| boot_counter(spec, gate));
        let session_epoch = machine.record.session_epoch;
        let operation = self.operations.get_mut(id).ok_or("it is not in memory")?;
        operation.device_boot = boot;
        let ticks = match operation.deadline.map(|deadline| deadline.at(&turn.now)) {
            // Rounded down: the device may refuse too early, and never acts too late.
            Some(Validity::Remaining(ns)) => {
                u16::try_from((ns / TICK_NS).max(1)).unwrap_or(u16::MAX)
            }
            Some(Validity::Expired | Validity::Unprovable) => {
                return Err("its validity is over".into());
            }
            None => 0,
        };
        let expected_config_version = match operation.intent.expected_config_version {
            None => 0xFFFF,
            Some(version) => u16::try_from(version)
                .ok()
                .filter(|version| *version != 0xFFFF)
                .ok_or_else(|| {
                    format!("configuration version {version} does not fit the mailbox (0 to 65534)")
                })?,
        };
        Ok(MailboxRequest {
            session_epoch,
            opcode,
            request_id,
            parameters,
            expected_config_version,
            validity_ticks: ticks,
        })
    }

    /// A request id is given out once, and is durable with the `Sending` that uses it.
    pub(super) fn take_request_id(
        &mut self,
        turn: &mut Turn,
        name: &str,
        id: &OperationId,
    ) -> Result<u32, String> {
        let machine = self
            .machines
            .get_mut(name)
            .ok_or("its machine is not configured")?;
        let mut next = machine.record.last_request_id.wrapping_add(1);
        if next & 0xFFFF == 0 {
            // A fresh device's commit word is 0, and 0 would be no change of it.
            next = next.wrapping_add(1);
        }
        machine.record.last_request_id = next;
        if !seeded::is_on(Fault::RequestIdNotDurable) {
            turn.touch_machine(name);
        }
        if let Some(operation) = self.operations.get_mut(id) {
            operation.request_id = Some(next);
        }
        Ok(next)
    }

    /// The machine's name and the policy row of an operation.
    pub(super) fn with_row(&self, id: &OperationId) -> Option<(String, Row)> {
        let operation = self.operations.get(id)?;
        let machine = self.machines.get(&operation.intent.machine)?;
        let row = machine.spec.row(&operation.intent.command)?;
        Some((machine.spec.name.clone(), row.clone()))
    }
}

/// What a caller hears whose command cannot wait.
pub(super) fn not_connected(row: &Row) -> RejectReason {
    match row.class {
        Class::ModeChange if row.stop => RejectReason::NotDelivered,
        Class::AbsoluteSet | Class::RecipeWrite => RejectReason::NotQueueable,
        Class::Query | Class::RelativeAction | Class::ModeChange => RejectReason::Disconnected,
    }
}

pub(super) fn boot_counter(spec: &MailboxSpec, gate: &GateReading) -> Option<u32> {
    let blocks = gate.mailbox.as_ref()?;
    mailbox::decode_status(&blocks.status, spec.word_order)
        .ok()
        .map(|status| status.boot_counter)
}

fn interval_ns(rate_milli: u64) -> u64 {
    (NS_PER_S * 1000) / rate_milli.max(1)
}

/// Another device, or another program, than the one that is configured (POL-06).
#[must_use]
pub fn identity_mismatch(spec: &MachineSpec, gate: &GateReading) -> Option<HeldReason> {
    let check = spec.gate.identity.as_ref()?;
    let found = gate.identity.as_ref();
    let differs = found != Some(&check.equals) && !seeded::is_on(Fault::IdentityUnchecked);
    differs.then(|| HeldReason::IdentityMismatch {
        expected: check.equals.to_string(),
        found: found.map_or_else(|| "unreadable".to_owned(), ToString::to_string),
    })
}

/// Identity, mode, quality, version, interlocks (POL-06).
fn gate_checks(
    spec: &MachineSpec,
    row: &Row,
    operation: &Operation,
    gate: &GateReading,
) -> Option<HeldReason> {
    if let Some(held) = identity_mismatch(spec, gate) {
        return Some(held);
    }
    mode_and_quality(spec, gate)
        .or_else(|| version_conflict(operation, gate))
        .or_else(|| {
            open_interlock(spec, gate, |name| {
                row.interlocks.iter().any(|lock| lock == name)
            })
        })
}

fn mode_and_quality(spec: &MachineSpec, gate: &GateReading) -> Option<HeldReason> {
    if let Some(check) = &spec.gate.mode {
        match gate.mode {
            Some(mode) if check.allowed.contains(&mode) => {}
            Some(found) => return Some(HeldReason::ModeNotAllowed { found }),
            None => {
                return Some(HeldReason::Quality {
                    why: "its mode could not be read".into(),
                });
            }
        }
    }
    (gate.quality != Quality::Good).then(|| HeldReason::Quality {
        why: "the gate could not be read whole".into(),
    })
}

fn open_interlock(
    spec: &MachineSpec,
    gate: &GateReading,
    counts: impl Fn(&str) -> bool,
) -> Option<HeldReason> {
    let open = |lock: &&Interlock| {
        let found = gate.interlocks.iter().find(|(name, _)| *name == lock.name);
        counts(&lock.name) && found.is_none_or(|(_, value)| *value != lock.equals)
    };
    let lock = spec.gate.interlocks.iter().find(open)?;
    Some(HeldReason::Interlock {
        name: lock.name.clone(),
    })
}

fn version_conflict(operation: &Operation, gate: &GateReading) -> Option<HeldReason> {
    let expected = operation.intent.expected_config_version?;
    let Some(found) = gate.config_version else {
        return Some(HeldReason::Quality {
            why: "its configuration version could not be read".into(),
        });
    };
    if found == i64::from(expected) || seeded::is_on(Fault::VersionUnchecked) {
        return None;
    }
    let held = HeldReason::VersionConflict { expected, found };
    // A person has looked at exactly this difference and set it aside.
    (operation.waived.as_ref() != Some(&held)).then_some(held)
}

fn gate_findings(spec: &MachineSpec, gate: &GateReading) -> String {
    let mut says = Vec::new();
    if let Some(identity) = &gate.identity {
        says.push(format!("identity {identity}"));
    }
    if let (Some(mode), true) = (gate.mode, spec.gate.mode.is_some()) {
        says.push(format!("mode {mode}"));
    }
    says.push("quality good".into());
    if let Some(version) = gate.config_version {
        says.push(format!("configuration version {version}"));
    }
    says.push(format!(
        "{} interlock(s) closed",
        spec.gate.interlocks.len()
    ));
    says.push("permission still held".into());
    format!("passed: {}", says.join(", "))
}

fn job_sha256(job: &Job) -> [u8; 32] {
    let mut hash = Sha256::new();
    match job {
        Job::Read { points } => points
            .iter()
            .for_each(|(_, at)| hash.update(at.address.to_string())),
        Job::Write { start, words } => {
            hash.update(start.to_string());
            words
                .iter()
                .for_each(|word| hash.update(word.to_be_bytes()));
        }
        Job::Scatter { parts } => parts.iter().for_each(|(at, words)| {
            hash.update(at.to_string());
            words
                .iter()
                .for_each(|word| hash.update(word.to_be_bytes()));
        }),
        Job::Mailbox(request) => {
            hash.update(request.opcode.to_be_bytes());
            hash.update(request.request_id.to_be_bytes());
            request
                .parameters
                .iter()
                .for_each(|word| hash.update(word.to_be_bytes()));
        }
        Job::Remote(order) => hash.update(order.name()),
    }
    hash.finalize().into()
}
