//! Owns: what happens without a caller: start, reconfiguration, timers, watched values.
//! May call: every file of this room.
//! Never: refill a validity (TIME-04), or call an outcome known because time passed (ST-05).

use super::gateway::{Gateway, Settings, machine_record};
use super::ids::OperationId;
use super::lifecycle::{Actor, HeldReason, Source, State, Step, UnknownReason};
use super::machine::{LinkState, Machine};
use super::spec::{EventKind, MachineSpec, OnRestart, Quality, Value};
use super::time::{Deadline, NS_PER_MS, Stamp, Validity};
use super::turn::{Cause, Turn, bounded};
use crate::seeded::{self, Fault};
use std::collections::BTreeSet;
use std::sync::Arc;

/// No timer fires sooner than this after it was set, so that nothing can spin.
const TIMER_NS_MIN: u64 = NS_PER_MS;

/// What was read of a watched value.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    /// `None` if there is nothing honest to show.
    pub(super) value: Option<Value>,
    pub(super) quality: Quality,
    pub(super) reason: Option<String>,
    pub(super) at: Stamp,
    /// When the same connection read it last, unchanged.
    pub(super) since: Option<Stamp>,
}

impl Gateway {
    /// REC-02 and TIME-03, TIME-04: the first input after a start.
    pub(super) fn started(&mut self, turn: &mut Turn) {
        let mut ids: Vec<OperationId> = self.operations.keys().cloned().collect();
        ids.sort();
        // A wall clock behind what is on record vouches for nothing across a reboot (TIME-04).
        let now = turn.now;
        turn.now.wall_trusted &= now.wall_us >= self.highest_wall_us;
        for id in ids {
            self.place(&id);
            if self.is_recovery() {
                continue;
            }
            self.rebase_validity(turn, &id);
            self.after_restart(turn, &id);
            self.set_timer(&id);
        }
        turn.now = now;
        self.announce_start(turn);
        if self.start.note.is_some() && !self.is_recovery() {
            self.doubt_counts(turn);
        }
        if self.is_recovery() {
            let text =
                "damage was found in the journal: reads are answered, nothing is sent".to_owned();
            self.set_alarm(turn, "recovery_mode", "", Some(text));
        }
    }

    /// Each start names the one before it. Two starts that name the same one tell whoever has the events of both that
    /// the disk was set back, or that two computers run from one image.
    fn announce_start(&mut self, turn: &mut Turn) {
        let gateway = self.settings.gateway.clone();
        let text = self.start.foreign.as_ref().map(|foreign| {
            format!("{foreign}: no machine is touched until somebody says which of the two goes on")
        });
        self.set_alarm(turn, "foreign_journal", "", text);
        self.alarm_shed(turn);
        let previous = self.start.previous_epoch;
        let body = serde_json::json!({
            "previous_epoch": (previous.0 > 0).then(|| previous.to_string()),
            "first_commit": turn.no.to_string(),
            "clean": self.start.clean,
            "note": self.start.note,
        });
        self.emit(turn, &gateway, "gateway.started", body);
    }

    fn after_restart(&mut self, turn: &mut Turn, id: &OperationId) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let state = operation.state.clone();
        match state {
            State::Sending { attempt } => {
                let cause = Cause {
                    attempt: Some(attempt),
                    ..Cause::gateway(Source::Recovery, "")
                };
                let step = if seeded::is_on(Fault::ResendAfterDoubt) {
                    Step::Return
                } else {
                    Step::Doubt(UnknownReason::Restart)
                };
                let _ = self.step(turn, id, step, cause);
            }
            State::Queued => self.queued_after_restart(turn, id),
            State::Accepted { since } => {
                // Its completion timeout ran on a clock that is gone.
                if since.boot_id != turn.now.boot_id {
                    self.completion_timed_out(turn, id);
                } else {
                    self.doubt_without_row(turn, id);
                }
            }
            State::Held(_) | State::OutcomeUnknown(_) => {}
            State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Completed(_)
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. } => {}
        }
    }

    /// Nothing says any more how long an accepted operation may take: it is unknown now, not accepted for ever.
    fn doubt_without_row(&mut self, turn: &mut Turn, id: &OperationId) {
        if self.with_row(id).is_none() {
            self.completion_timed_out(turn, id);
        }
    }

    fn queued_after_restart(&mut self, turn: &mut Turn, id: &OperationId) {
        let cause = Cause::gateway(Source::Recovery, "");
        let Some(validity) = self
            .operations
            .get(id)
            .and_then(|op| op.deadline)
            .map(|d: Deadline| d.at(&turn.now))
        else {
            return;
        };
        let Some((name, row)) = self.with_row(id) else {
            let why = "its command is no longer configured".to_owned();
            let _ = self.step(
                turn,
                id,
                Step::Hold(HeldReason::ConfigurationChanged { why }),
                cause,
            );
            return;
        };
        let step = match (validity, row.on_restart) {
            (Validity::Expired, _) | (Validity::Unprovable, OnRestart::Expire) => {
                Some(Step::Expire)
            }
            (Validity::Unprovable, OnRestart::Hold) => {
                Some(Step::Hold(HeldReason::ValidityUnprovable))
            }
            (Validity::Remaining(_), _) => None,
        };
        match step {
            Some(step) => {
                let _ = self.step(turn, id, step, cause);
            }
            None => {
                // The connection it was meant for is gone.
                let down_since = self
                    .machines
                    .get(&name)
                    .and_then(|machine| machine.down_since);
                if let Some(operation) = self.operations.get_mut(id) {
                    operation.disconnected_at = operation.disconnected_at.or(down_since);
                }
                self.reject_if_it_never_waits(turn, id);
            }
        }
    }

    /// Timers that are due.
    pub(super) fn tick(&mut self, turn: &mut Turn) {
        self.tell_unreached(turn);
        let now = turn.now.boottime_ns;
        let mut due: Vec<OperationId> = Vec::new();
        while let Some((at, id)) = self.timers.first().cloned() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, id.clone()));
            if let Some(machine) = self.machine_of(&id)
                && let Some(live) = machine.live.get_mut(&id)
            {
                live.due_ns = None;
            }
            due.push(id);
        }
        for id in due {
            self.timer_fired(turn, &id);
            self.set_timer(&id);
        }
        let drains: Vec<String> = self
            .machines
            .values()
            .filter(|machine| machine.drain_due_ns.is_some_and(|at| at <= now))
            .map(|machine| machine.spec.name.clone())
            .collect();
        for name in drains {
            self.pump(turn, &name);
        }
    }

    fn timer_fired(&mut self, turn: &mut Turn, id: &OperationId) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        match operation.state.clone() {
            State::Queued => {
                if !self.expire_if_due(turn, id) {
                    let name = self.operations.get(id).map(|op| op.intent.machine.clone());
                    if let Some(name) = name {
                        self.pump(turn, &name);
                    }
                }
            }
            State::Accepted { since } => {
                if self
                    .completion_ns(id, &since)
                    .is_some_and(|at| at <= turn.now.boottime_ns)
                {
                    self.completion_timed_out(turn, id);
                } else {
                    self.probe_if_due(turn, id);
                }
            }
            State::OutcomeUnknown(_) => self.probe_if_due(turn, id),
            State::Held(_)
            | State::Sending { .. }
            | State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Completed(_)
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. } => {}
        }
    }

    /// When an accepted operation becomes unknown, boot-relative; at once if it was accepted in another boot.
    fn completion_ns(&self, id: &OperationId, since: &Stamp) -> Option<u64> {
        let (_, row) = self.with_row(id)?;
        Some(
            since
                .boottime_ns
                .saturating_add(row.completion_timeout_ms.saturating_mul(NS_PER_MS)),
        )
    }

    /// Files an operation's next due time.
    pub(super) fn set_timer(&mut self, id: &OperationId) {
        let due = self.due_ns(id);
        let Some(machine) = self.machine_of(id) else {
            return;
        };
        if due.is_none() && !machine.live.contains_key(id) {
            return;
        }
        let before =
            std::mem::replace(&mut machine.live.entry(id.clone()).or_default().due_ns, due);
        if let Some(before) = before {
            self.timers.remove(&(before, id.clone()));
        }
        if let Some(due) = due {
            self.timers.insert((due, id.clone()));
        }
    }

    fn due_ns(&self, id: &OperationId) -> Option<u64> {
        let operation = self.operations.get(id)?;
        let machine = self.machines.get(&operation.intent.machine)?;
        let live = machine.live.get(id);
        let probe = live
            .and_then(|live| live.probe_ns)
            .filter(|_| machine.link == LinkState::Up && machine.probing.is_none());
        match &operation.state {
            State::Queued => {
                let deadline = operation.deadline?;
                let end = deadline
                    .from
                    .boottime_ns
                    .saturating_add(deadline.ttl_ms.saturating_mul(NS_PER_MS));
                let retry = live
                    .map(|live| live.not_before_ns)
                    .filter(|at| *at > self.last_now_ns);
                retry.into_iter().chain([end]).min()
            }
            State::Accepted { since } => {
                let end = self.completion_ns(id, since);
                probe.into_iter().chain(end).min()
            }
            State::OutcomeUnknown(_) => probe,
            State::Held(_)
            | State::Sending { .. }
            | State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Completed(_)
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. } => None,
        }
        .map(|due| due.max(self.last_now_ns + TIMER_NS_MIN))
    }

    /// A watched value (EVT-03). What made the last event is durable with that event.
    pub(super) fn observed(
        &mut self,
        turn: &mut Turn,
        name: &str,
        event_type: &str,
        seen: Observation,
    ) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        let spec = Arc::clone(&machine.spec);
        let mut sources = spec.events.iter();
        let Some(source) = sources.find(|source| source.event_type == event_type) else {
            return;
        };
        let (unit, deadband, class) = match &source.kind {
            EventKind::OnChange { unit, deadband, .. } => (unit, *deadband, source.class),
            EventKind::Counter(_) => return self.counted(turn, name, event_type, seen),
            EventKind::Handshake(_) | EventKind::Ring(_) => return,
        };
        let baselines = &mut machine.record.baselines;
        let index = baselines.iter().position(|(known, _)| known == event_type);
        let before = index.map(|index| baselines[index].1.clone());
        let value = seen.value.clone();
        let as_before = |before: &Option<Value>| {
            let assumed = match before {
                Some(_) => Quality::Good,
                None => Quality::Bad,
            };
            let heard_as = machine.heard_as.get(event_type).copied();
            !moved(before.as_ref(), value.as_ref(), deadband)
                && heard_as.unwrap_or(assumed) == seen.quality
        };
        if before.as_ref().is_some_and(as_before) {
            machine.unheard.remove(event_type);
            return;
        }
        if !self.has_room(turn, name, source) {
            // No key is given out, and the newest value is looked at again once there is room (FWD-04).
            if let Some(machine) = self.machines.get_mut(name) {
                machine.unheard.insert(event_type.to_owned(), seen);
            }
            return;
        }
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.heard_as.insert(event_type.to_owned(), seen.quality);
        match index {
            Some(index) => machine.record.baselines[index].1.clone_from(&value),
            None => machine
                .record
                .baselines
                .push((event_type.to_owned(), value.clone())),
        }
        turn.touch_machine(name);
        let mut body = serde_json::json!({
            "value": value.as_ref().map(json_value),
            "previous": before.flatten().as_ref().map(json_value),
            "unit": unit,
        });
        if let Some(reason) = &seen.reason {
            body["reason"] = bounded(reason).into();
        }
        self.emit_full(
            turn,
            name,
            event_type,
            body,
            class,
            seen.quality,
            seen.at,
            1,
        );
    }

    /// CFG-03: the new configuration stands from here on, whole.
    pub(super) fn reconfigured(
        &mut self,
        turn: &mut Turn,
        specs: Vec<Arc<MachineSpec>>,
        settings: Settings,
        actor: &Actor,
    ) {
        self.settings = settings;
        self.forget_sources(turn);
        let mut before = std::mem::take(&mut self.machines);
        let mut come_back = BTreeSet::new();
        for spec in specs {
            let machine = match before.remove(&spec.name) {
                Some(mut machine) => {
                    machine.spec = spec;
                    machine.configured = true;
                    machine
                }
                None => {
                    come_back.insert(spec.name.clone());
                    let record = machine_record(&mut self.absent, &spec.name, self.epoch, false);
                    Machine::new(spec, record, &turn.now)
                }
            };
            self.machines.insert(machine.spec.name.clone(), machine);
        }
        // One that is gone from the files, and still has something open, stays until that has ended.
        for (name, mut machine) in before {
            machine.configured = false;
            // Nobody mends the link of a machine that is to be gone.
            for code in ["link_down", "identity_mismatch", "events_not_taken"] {
                self.set_alarm(turn, code, &name, None);
            }
            if machine.waiting.is_empty()
                && machine.held.is_empty()
                && machine.unresolved.is_empty()
            {
                self.absent.insert(name, machine.record);
            } else {
                self.machines.insert(name, machine);
            }
        }
        // What a machine left open before this start is its own again: counted, verified, and in the mailbox's way.
        let own_again: Vec<OperationId> = self
            .open()
            .filter(|operation| come_back.contains(&operation.intent.machine))
            .map(|operation| operation.id.clone())
            .collect();
        for id in own_again {
            self.place(&id);
            self.set_timer(&id);
        }
        let accepted: Vec<OperationId> = self
            .open()
            .filter(|operation| matches!(operation.state, State::Accepted { .. }))
            .map(|operation| operation.id.clone())
            .collect();
        for id in accepted {
            self.doubt_without_row(turn, &id);
        }
        let gateway = self.settings.gateway.clone();
        self.emit(
            turn,
            &gateway,
            "configuration.reloaded",
            serde_json::json!({ "by": actor.to_string() }),
        );
    }
}

fn moved(before: Option<&Value>, after: Option<&Value>, deadband: f64) -> bool {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::Bool(_) | Value::Text(_) => None,
    };
    match (before, after) {
        (Some(before), Some(after)) => match (number(before), number(after)) {
            (Some(a), Some(b)) if deadband > 0.0 => (a - b).abs() > deadband,
            _ => before != after,
        },
        (before, after) => before != after,
    }
}

/// A read value as JSON; a number that JSON cannot hold becomes its text.
pub(super) fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(bit) => (*bit).into(),
        Value::Int(number) => match i64::try_from(*number) {
            Ok(number) => number.into(),
            Err(_) => number.to_string().into(),
        },
        Value::Float(number) => serde_json::Number::from_f64(*number)
            .map_or_else(|| number.to_string().into(), serde_json::Value::Number),
        Value::Text(text) => text.clone().into(),
    }
}
