//! Owns: what one input has decided so far: touched operations, events, effects; and how a step is taken.
//! May call: every file of this room.
//! Never: let an operation change state without a history entry and an event (CMD-07, EVT-03).

use super::gateway::Answer;
use super::gateway::{Alarm, Effect, Gateway, Token};
use super::ids::{AttemptId, CommitNo, EventKey, OperationId, Sequence};
use super::lifecycle::{Actor, NotAllowed, Source, State, Step, next};
use super::record::{
    EventRecord, FINDINGS_MAX, Finding, HISTORY_ENTRIES_MAX, Operation, Record, TEXT_BYTES_MAX,
    Transition,
};
use super::spec::{EventClass, Quality};
use super::time::Now;

/// Events of the gateway's own that are not written at a full journal: a link that flaps could use up what is
/// kept for outcomes (CAP-01).
const SHED_WHEN_FULL: &[&str] = &["link.changed", "clock.stepped"];

/// One turn of the core.
pub(super) struct Turn {
    pub(super) now: Now,
    pub(super) no: CommitNo,
    pub(super) touched: Vec<OperationId>,
    pub(super) machines: Vec<String>,
    /// Each with the operation it is about, if it is about one.
    pub(super) kept: Vec<(Option<OperationId>, Record)>,
    /// What [`Turn::keep`] is about.
    pub(super) about: Option<OperationId>,
    pub(super) effects: Vec<Effect>,
    pub(super) ended: Vec<OperationId>,
}

/// Who takes a step, and why.
#[derive(Clone, Debug)]
pub(super) struct Cause {
    pub(super) source: Source,
    pub(super) actor: Actor,
    pub(super) attempt: Option<AttemptId>,
    pub(super) detail: String,
}

impl Cause {
    /// The gateway's own.
    pub(super) fn gateway(source: Source, detail: impl Into<String>) -> Self {
        Self {
            source,
            actor: Actor::Gateway,
            attempt: None,
            detail: detail.into(),
        }
    }
    /// A person's or a program's.
    pub(super) fn of(source: Source, actor: &Actor, detail: impl Into<String>) -> Self {
        Self {
            source,
            actor: actor.clone(),
            attempt: None,
            detail: detail.into(),
        }
    }
}

impl Turn {
    pub(super) fn new(now: Now, no: CommitNo) -> Self {
        Self {
            now,
            no,
            touched: Vec::new(),
            machines: Vec::new(),
            kept: Vec::new(),
            about: None,
            effects: Vec::new(),
            ended: Vec::new(),
        }
    }
    pub(super) fn touch(&mut self, id: &OperationId) {
        if !self.touched.contains(id) {
            self.touched.push(id.clone());
        }
    }
    pub(super) fn touch_machine(&mut self, name: &str) {
        if !self.machines.iter().any(|known| known == name) {
            self.machines.push(name.to_owned());
        }
    }
    pub(super) fn keep(&mut self, record: Record) {
        self.kept.push((self.about.clone(), record));
    }
    pub(super) fn answer(&mut self, token: Token, answer: Answer) {
        self.effects.push(Effect::Answer {
            token,
            answer: Box::new(answer),
        });
    }
}

/// Cuts a text to what a record may hold, at a character boundary.
pub(super) fn bounded(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl Gateway {
    /// Takes one step of the lifecycle: state, history, event, result id, and what ending brings.
    pub(super) fn step(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        step: Step,
        cause: Cause,
    ) -> Result<(), NotAllowed> {
        if self.is_recovery() {
            // What cannot be written down does not happen (REC-03).
            return Err(NotAllowed {
                state: "read-only after damage to the journal",
                step: step.name(),
            });
        }
        let Some(operation) = self.operations.get_mut(id) else {
            return Err(NotAllowed {
                state: "not in memory",
                step: step.name(),
            });
        };
        let state = next(&operation.state, step)?;
        let from = operation.state.name();
        let was_ended = operation.state.is_ended();
        operation.state = state;
        push_history(operation, &turn.now, Some(from), &cause);
        turn.touch(id);
        let (machine, body) = (
            operation.intent.machine.clone(),
            transition_body(operation, Some(from), &cause),
        );
        let ended = operation.state.is_ended();
        if ended && !was_ended {
            operation.result_id = Some(format!("{}-{}", self.epoch, turn.no));
            self.open_count = self.open_count.saturating_sub(1);
            self.ended.push_back(id.clone());
            turn.ended.push(id.clone());
            self.drop_secrets(id);
        }
        turn.about = Some(id.clone());
        self.emit(turn, &machine, "operation.transition", body);
        turn.about = None;
        self.place(id);
        Ok(())
    }

    /// Secrets live as long as the operation is open (CMD-10).
    fn drop_secrets(&mut self, id: &OperationId) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let row = self
            .machines
            .get(&operation.intent.machine)
            .and_then(|machine| machine.spec.row(&operation.intent.command));
        match row {
            Some(row) => super::intent::redact(&mut operation.intent, row),
            // Its schema is gone, so any argument may have been one.
            None => super::intent::redact_all(&mut operation.intent),
        }
    }

    /// An event of the gateway itself, with its key (EVT-01).
    pub(super) fn emit(
        &mut self,
        turn: &mut Turn,
        source: &str,
        event_type: &str,
        body: serde_json::Value,
    ) {
        // A link that flaps for days must not stop production; that it is down is an alarm.
        let class = match event_type {
            "link.changed" => EventClass::Telemetry,
            _ => EventClass::Business,
        };
        self.emit_full(
            turn,
            source,
            event_type,
            body,
            class,
            Quality::Good,
            turn.now,
            1,
        );
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of an event")]
    pub(super) fn emit_full(
        &mut self,
        turn: &mut Turn,
        source: &str,
        event_type: &str,
        body: serde_json::Value,
        class: EventClass,
        quality: Quality,
        at: Now,
        qty: i64,
    ) {
        if self.is_recovery() {
            return;
        }
        if self.capacity_full.is_some() && SHED_WHEN_FULL.contains(&event_type) {
            // The reserve is for outcomes; how many were left out is told once there is room.
            self.events_left_out += 1;
            return;
        }
        let sequence = self.sequences.entry(source.to_owned()).or_default();
        *sequence = Sequence(sequence.0 + 1);
        turn.keep(Record::Event(EventRecord {
            key: EventKey {
                source: source.to_owned(),
                epoch: self.epoch,
                sequence: *sequence,
            },
            event_type: event_type.to_owned(),
            schema: 1,
            wall_us: at.wall_us,
            boottime_ns: at.boottime_ns,
            quality,
            class,
            qty,
            body: body.to_string(),
            unsynchronised: (!at.wall_trusted).then_some(at.boot_id),
        }));
    }

    /// Raises an alarm, changes its text, or (with `None`) clears it; an event only when that changes.
    pub(super) fn set_alarm(
        &mut self,
        turn: &mut Turn,
        code: &str,
        about: &str,
        text: Option<String>,
    ) {
        let key = (code.to_owned(), about.to_owned());
        let before = self.alarms.get(&key).map(|alarm| alarm.text.clone());
        if before == text {
            return;
        }
        let source = if about.is_empty() || code == "sink_stopped" {
            self.settings.gateway.clone()
        } else {
            about.to_owned()
        };
        let kind = if text.is_some() {
            "alarm.raised"
        } else {
            "alarm.cleared"
        };
        let since = self.alarms.get(&key).map_or(turn.now, |alarm| alarm.since);
        let body = serde_json::json!({ "code": code, "text": text.as_ref().or(before.as_ref()) });
        match text {
            Some(text) => {
                let alarm = Alarm {
                    code: code.to_owned(),
                    about: about.to_owned(),
                    since,
                    text,
                };
                self.alarms.insert(key, alarm);
            }
            None => {
                self.alarms.remove(&key);
            }
        }
        if self.capacity_full.is_some() && code != "journal_full" {
            self.events_left_out += 1;
            return;
        }
        self.emit(turn, &source, kind, body);
    }
}

/// A finding beside the state; equal ones in a row are counted. Whether it is new, and so worth a record.
pub(super) fn find(operation: &mut Operation, now: &Now, method: &str, says: String) -> bool {
    let says = bounded(&says);
    if let Some(last) = operation
        .findings
        .iter_mut()
        .rev()
        .find(|found| found.method == method)
        && last.says == says
    {
        last.times = last.times.saturating_add(1);
        last.at = *now;
        return false;
    }
    if operation.findings.len() >= FINDINGS_MAX {
        // The first tells how it began; the newest tell how it stands.
        operation.findings.remove(1);
    }
    operation.findings.push(Finding {
        method: method.to_owned(),
        at: *now,
        says,
        times: 1,
    });
    true
}

/// Writes a change of state into the history (CMD-07).
pub(super) fn push_history(
    operation: &mut Operation,
    now: &Now,
    from: Option<&str>,
    cause: &Cause,
) {
    if operation.history.len() >= HISTORY_ENTRIES_MAX {
        operation.history.remove(1);
        operation.history_dropped = operation.history_dropped.saturating_add(1);
    }
    let detail = if cause.detail.is_empty() {
        operation.state.reason()
    } else {
        cause.detail.clone()
    };
    operation.history.push(Transition {
        from: from.map(str::to_owned),
        to: operation.state.name().to_owned(),
        at: *now,
        source: cause.source,
        actor: cause.actor.without_groups(),
        attempt: cause.attempt,
        detail: bounded(&detail),
    });
}

/// The body of the event that goes with a change of state.
pub(super) fn transition_body(
    operation: &Operation,
    from: Option<&str>,
    cause: &Cause,
) -> serde_json::Value {
    let by = match &operation.state {
        State::Superseded { by } => Some(by.to_string()),
        _ => None,
    };
    serde_json::json!({
        "operation_id": operation.id.as_str(),
        "command": operation.intent.command,
        "from": from,
        "to": operation.state.name(),
        "family": operation.state.family().name(),
        "reason": bounded(&operation.state.reason()),
        "actor": cause.actor.to_string(),
        "by": by,
    })
}
