//! Owns: what becomes of an operation after its send boundary: replies, verification, giving up.
//! May call: every file of this room.
//! Never: end a doubt without evidence (ST-05), or take a readback for a proof (VER-02).

use super::contract::{
    Exchange, MailboxBlocks, MailboxRequest, Outcome, Probe, ProbeAnswer, Reply,
};
use super::gateway::{Effect, Gateway};
use super::ids::{AttemptId, OperationId};
use super::lifecycle::{
    Completion as Done, Evidence, Meaning, Method, RejectReason, Source, State, Step,
    UnknownReason, meaning,
};
use super::machine::not_connected;
use super::mailbox::{self, Verdict};
use super::record::{Burn, Operation};
use super::spec::{Class, Completion, DoneSpec, MachineSpec, Row, Scalar, Value, Verify};
use super::time::{NS_PER_MS, NS_PER_S};
use super::turn::{Cause, Turn, find};
use crate::seeded::{self, Fault};

/// How often "busy" is taken for "ask again" before it is taken for a refusal.
const BUSY_RETRIES_MAX: u32 = 5;
/// Wait after "busy", and after a request that could not be handed over.
const RETRY_WAIT_NS: u64 = 300 * NS_PER_MS;
/// First wait between two looks at an accepted operation.
const WATCH_WAIT_NS_MIN: u64 = 100 * NS_PER_MS;
/// Longest wait between two looks at an accepted operation.
const WATCH_WAIT_NS_MAX: u64 = 2 * NS_PER_S;
/// First wait between two looks at an unknown outcome.
const VERIFY_WAIT_NS_MIN: u64 = NS_PER_S;
/// Longest wait between two looks at an unknown outcome.
const VERIFY_WAIT_NS_MAX: u64 = 60 * NS_PER_S;
/// How often an id is tried to be given up before it is left to a person: the device remembers four.
const BURN_TRIES_MAX: u32 = 3;

impl Gateway {
    /// An exchange ended (SEND-02).
    pub(super) fn exchanged(
        &mut self,
        turn: &mut Turn,
        name: &str,
        id: &OperationId,
        attempt: AttemptId,
        exchange: Exchange,
    ) {
        if let Some(machine) = self.machines.get_mut(name)
            && machine.in_flight.as_ref() == Some(id)
        {
            machine.in_flight = None;
        }
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let (sent, total) = (exchange.bytes_sent, exchange.bytes_total);
        let at = exchange.replied_at.unwrap_or(turn.now);
        // A request id is given out once, so what the device says of it before a byte has left is another writer's.
        let outcome = match exchange.outcome.clone() {
            outcome @ Outcome::NotSent { .. } => outcome,
            _ if sent == 0 => Outcome::NotSent {
                why:
                    "the device has this request's id on record already: is there a second writer?"
                        .into(),
            },
            outcome => outcome,
        };
        if let Some(kept) = operation
            .attempts
            .iter_mut()
            .find(|kept| kept.id == attempt)
        {
            kept.exchange = Some(exchange);
        }
        turn.touch(id);
        let in_time = operation.state == State::Sending { attempt }
            || (seeded::is_on(Fault::StaleReplyAccepted)
                && matches!(operation.state, State::Sending { .. }));
        let late = matches!(operation.state, State::OutcomeUnknown(_));
        if in_time {
            self.conclude(turn, id, attempt, meaning(&outcome, sent, total, at), false);
        } else if late
            && matches!(
                outcome,
                Outcome::DeviceReplied(_) | Outcome::DeviceRefused(_)
            )
        {
            // SEND-05: a late reply that matches is evidence for the operation it belongs to.
            self.conclude(turn, id, attempt, meaning(&outcome, sent, total, at), true);
        }
        self.probe_soon_if_in_doubt(turn, id);
        self.pump(turn, name);
    }

    fn conclude(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        attempt: AttemptId,
        meaning: Meaning,
        late: bool,
    ) {
        let cause = Cause {
            attempt: Some(attempt),
            ..Cause::gateway(Source::Link, "")
        };
        match meaning {
            Meaning::NotSent(why) => self.not_sent(turn, id, &why),
            Meaning::Busy(code) => {
                let Some((_, row)) = self.with_row(id) else {
                    return;
                };
                let Some(operation) = self.operations.get_mut(id) else {
                    return;
                };
                operation.busy_count += 1;
                let again = operation.busy_count <= BUSY_RETRIES_MAX
                    && (row.queueable || row.class == Class::Query);
                if again {
                    self.back_to_queue(turn, id, cause, "the device is busy");
                } else {
                    let evidence = Evidence::of_refusal(&code, Method::Reply, turn.now);
                    let _ = self.step(turn, id, Step::Fail(code, evidence), cause);
                }
            }
            Meaning::Step(step) => {
                let _ = self.step(turn, id, step, cause);
            }
            Meaning::Replied(reply) => self.replied(turn, id, reply, late, cause),
        }
    }

    /// What a matched reply is worth is for the row's completion contract to say (POL-10).
    fn replied(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        reply: Reply,
        late: bool,
        cause: Cause,
    ) {
        let completion = self.with_row(id).map(|(_, row)| row.completion);
        let now = turn.now;
        let step = match (&reply, completion) {
            (Reply::Mailbox(echo), _) => mailbox_end(echo, &now),
            (Reply::Values(values), _) => Step::Complete(Done::new(
                Evidence::from_reply(&reply, now, late),
                values.clone(),
            )),
            (Reply::WriteEcho | Reply::Confirmed { .. }, Some(Completion::Reply)) => {
                Step::Complete(Done::new(
                    Evidence::from_reply(&reply, now, late),
                    Vec::new(),
                ))
            }
            (Reply::WriteEcho | Reply::Confirmed { .. }, _) => Step::Accept(now),
        };
        let _ = self.step(turn, id, step, cause);
    }

    /// SEND-03: only what was not sent goes back to the policy (POL-09).
    fn not_sent(&mut self, turn: &mut Turn, id: &OperationId, why: &str) {
        let Some((_, row)) = self.with_row(id) else {
            return;
        };
        let cause = Cause::gateway(Source::Link, format!("not sent: {why}"));
        self.back_to_queue(turn, id, cause, why);
        if row.class != Class::Query && !row.queueable {
            let reason = match not_connected(&row) {
                RejectReason::NotQueueable => RejectReason::Disconnected,
                other => other,
            };
            let cause = Cause::gateway(Source::Policy, format!("not sent: {why}"));
            let _ = self.step(turn, id, Step::Reject(reason), cause);
        }
    }

    fn back_to_queue(&mut self, turn: &mut Turn, id: &OperationId, cause: Cause, why: &str) {
        if self
            .step(
                turn,
                id,
                Step::Return,
                Cause {
                    detail: format!("back to the queue: {why}"),
                    ..cause
                },
            )
            .is_err()
        {
            return;
        }
        let not_before_ns = turn.now.boottime_ns + RETRY_WAIT_NS;
        if let Some(machine) = self.machine_of(id) {
            machine.live.entry(id.clone()).or_default().not_before_ns = not_before_ns;
        }
        self.expire_if_due(turn, id);
    }

    pub(super) fn machine_of(&mut self, id: &OperationId) -> Option<&mut super::machine::Machine> {
        let name = &self.operations.get(id)?.intent.machine;
        self.machines.get_mut(name)
    }

    fn probe_soon_if_in_doubt(&mut self, turn: &mut Turn, id: &OperationId) {
        let in_doubt = self.operations.get(id).is_some_and(|operation| {
            matches!(
                operation.state,
                State::Accepted { .. } | State::OutcomeUnknown(_)
            )
        });
        if in_doubt {
            self.probe_soon(turn, id);
        }
    }

    /// Begins, or begins anew, to look into an operation that is in doubt (VER-04).
    pub(super) fn probe_soon(&mut self, turn: &mut Turn, id: &OperationId) {
        let accepted = self
            .operations
            .get(id)
            .is_some_and(|op| matches!(op.state, State::Accepted { .. }));
        let probeable = self.probe_for(id).is_some();
        let now = turn.now.boottime_ns;
        if let Some(machine) = self.machine_of(id) {
            let live = machine.live.entry(id.clone()).or_default();
            live.probe_ns = probeable.then_some(now);
            live.probe_wait_ns = if accepted {
                WATCH_WAIT_NS_MIN
            } else {
                VERIFY_WAIT_NS_MIN
            };
        }
        self.probe_if_due(turn, id);
        self.set_timer(id);
    }

    /// What can be read about an operation that is in doubt, if anything can.
    fn probe_for(&self, id: &OperationId) -> Option<Probe> {
        let operation = self.operations.get(id)?;
        let machine = self.machines.get(&operation.intent.machine)?;
        let row = machine.spec.row(&operation.intent.command)?;
        match &operation.state {
            State::Accepted { .. } => match &row.completion {
                Completion::Mailbox => operation.request_id.map(|_| Probe::Mailbox),
                Completion::Event(done) | Completion::Query(done) => {
                    Some(Probe::Done(done.clone()))
                }
                Completion::Reply | Completion::None => None,
            },
            State::OutcomeUnknown(_) => verify_probe(row, operation),
            _ => None,
        }
    }

    /// Asks the device now, if it is time and the link is there.
    pub(super) fn probe_if_due(&mut self, turn: &mut Turn, id: &OperationId) {
        let Some(probe) = self.probe_for(id) else {
            return;
        };
        let now = turn.now.boottime_ns;
        let readback = matches!(probe, Probe::Readback { .. });
        let Some(machine) = self.machine_of(id) else {
            return;
        };
        let Some(connection) = machine.open_connection() else {
            return;
        };
        if machine.probing.is_some() {
            return;
        }
        let Some(live) = machine.live.get_mut(id) else {
            return;
        };
        if live.probe_ns.is_none_or(|due| due > now) {
            return;
        }
        // A value read back proves nothing the second time either: once a connection.
        live.probe_ns = (!readback).then_some(now + live.probe_wait_ns);
        live.probe_wait_ns = (live.probe_wait_ns * 2).min(VERIFY_WAIT_NS_MAX);
        machine.probing = Some(id.clone());
        let machine = machine.spec.name.clone();
        turn.effects.push(Effect::Probe {
            machine,
            connection,
            operation: id.clone(),
            probe,
        });
    }

    /// A probe was answered.
    pub(super) fn probed(
        &mut self,
        turn: &mut Turn,
        name: &str,
        id: &OperationId,
        answer: ProbeAnswer,
    ) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.probing = None;
        let spec = std::sync::Arc::clone(&machine.spec);
        let in_doubt = self.operations.get(id).is_some_and(|operation| {
            matches!(
                operation.state,
                State::Accepted { .. } | State::OutcomeUnknown(_)
            )
        });
        if in_doubt {
            match answer {
                ProbeAnswer::Mailbox(blocks) => self.judge_mailbox(turn, &spec, id, &blocks),
                ProbeAnswer::Done { id: done, result } => {
                    self.judge_done(turn, &spec, id, done, result)
                }
                ProbeAnswer::Values(values) => self.note_readback(turn, &spec, id, &values),
                ProbeAnswer::Failed(why) => {
                    self.note(turn, id, "verifier", format!("could not read: {why}"))
                }
            }
            self.cap_watch(id);
        }
        self.probe_next(turn, name);
        self.set_timer(id);
        self.pump(turn, name);
    }

    /// An accepted operation is looked at more often than an unknown one.
    fn cap_watch(&mut self, id: &OperationId) {
        let accepted = self
            .operations
            .get(id)
            .is_some_and(|op| matches!(op.state, State::Accepted { .. }));
        if let Some(machine) = self.machine_of(id)
            && let Some(live) = machine.live.get_mut(id)
            && accepted
        {
            live.probe_wait_ns = live.probe_wait_ns.min(WATCH_WAIT_NS_MAX);
        }
    }

    /// One probe at a time: the next one that is due.
    fn probe_next(&mut self, turn: &mut Turn, name: &str) {
        let Some(machine) = self.machines.get(name) else {
            return;
        };
        let unresolved: Vec<OperationId> = machine.unresolved.values().cloned().collect();
        for id in unresolved {
            self.probe_if_due(turn, &id);
        }
    }

    fn note(&mut self, turn: &mut Turn, id: &OperationId, method: &str, says: String) {
        if let Some(operation) = self.operations.get_mut(id)
            && find(operation, &turn.now, method, says)
        {
            turn.touch(id);
        }
    }

    /// VER-03.
    fn judge_mailbox(
        &mut self,
        turn: &mut Turn,
        spec: &MachineSpec,
        id: &OperationId,
        blocks: &MailboxBlocks,
    ) {
        let Some(mailbox) = &spec.mailbox else { return };
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let Some(request_id) = operation.request_id else {
            return;
        };
        let boot = operation.device_boot;
        let accepted = matches!(operation.state, State::Accepted { .. });
        // It had its time to be called accepted; only its end says more.
        let overdue = matches!(
            operation.state,
            State::OutcomeUnknown(UnknownReason::CompletionTimeout)
        );
        let cause = Cause::gateway(Source::Verifier, "");
        match mailbox::judge(blocks, mailbox.word_order, request_id, boot) {
            Verdict::Done(echo) => {
                self.end_burn(turn, spec, id);
                let _ = self.step(turn, id, mailbox_end(&echo, &turn.now), cause);
            }
            Verdict::Pending if accepted => {}
            Verdict::Pending => {
                self.note(
                    turn,
                    id,
                    "mailbox",
                    "the device took it and is not done".into(),
                );
                if !overdue {
                    let _ = self.step(turn, id, Step::Accept(turn.now), cause);
                }
            }
            Verdict::CutOff => {
                let says = "the PLC took it and restarted before it said that it was done: a person must find out";
                self.note(turn, id, "mailbox", says.into());
                if accepted {
                    let doubt = Step::Doubt(UnknownReason::DeviceRestart);
                    let _ = self.step(turn, id, doubt, cause);
                }
            }
            Verdict::NotTaken => self.not_taken(turn, spec, id, blocks, request_id),
            Verdict::Rebooted if seeded::is_on(Fault::PlcRestartIgnored) => {
                self.not_taken(turn, spec, id, blocks, request_id);
            }
            Verdict::Rebooted => {
                let says = "the PLC has restarted and its record does not name this request: a person must find out";
                self.note(turn, id, "mailbox", says.into());
            }
            Verdict::Forgotten => {
                let says = "later requests have pushed this one out of the device's record: a person must find out";
                self.note(turn, id, "mailbox", says.into());
            }
            Verdict::Corrupt(why) => {
                self.note(
                    turn,
                    id,
                    "mailbox",
                    format!("the record cannot be relied on, and is read again: {why}"),
                );
            }
        }
    }

    /// Not taken so far. It becomes `NotExecuted` only once a higher id was done: then a copy that was held
    /// up on the way would be refused (design of the mailbox).
    fn not_taken(
        &mut self,
        turn: &mut Turn,
        spec: &MachineSpec,
        id: &OperationId,
        blocks: &MailboxBlocks,
        request_id: u32,
    ) {
        let says = "the device's record does not name this request: not taken so far";
        self.note(turn, id, "mailbox", says.into());
        let Some(mailbox) = &spec.mailbox else { return };
        if seeded::is_on(Fault::NotTakenAsNotExecuted) {
            let step = Step::Deny(Evidence::never_taken(request_id, request_id, turn.now));
            let _ = self.step(turn, id, step, Cause::gateway(Source::Verifier, ""));
            return;
        }
        let burning = self
            .machines
            .get(&spec.name)
            .and_then(|machine| machine.record.burning.clone());
        if let Some(burn) = burning.filter(|burn| burn.operation == *id) {
            // A no-op that was refused proves nothing about what comes after it.
            let burned = mailbox::judge(blocks, mailbox.word_order, burn.request_id, None);
            if matches!(burned, Verdict::Done(echo) if echo.result == 0) {
                let evidence = Evidence::never_taken(request_id, burn.request_id, turn.now);
                self.end_burn(turn, spec, id);
                let _ = self.step(
                    turn,
                    id,
                    Step::Deny(evidence),
                    Cause::gateway(Source::Verifier, ""),
                );
            } else {
                self.burn(turn, spec, id, burn.tries);
            }
        } else {
            self.burn(turn, spec, id, 0);
        }
    }

    /// Gives an id up by a no-op with a higher one.
    fn burn(&mut self, turn: &mut Turn, spec: &MachineSpec, id: &OperationId, tries: u32) {
        let Some(machine) = self.machines.get(&spec.name) else {
            return;
        };
        let Some(connection) = machine.open_connection() else {
            return;
        };
        if spec.read_only || machine.burning || machine.in_flight.is_some() {
            return;
        }
        if tries >= BURN_TRIES_MAX {
            let says = "the device does not take the no-op that would give this request up: a person must find out";
            return self.note(turn, id, "mailbox", says.into());
        }
        let kept = self
            .operations
            .get(id)
            .and_then(|operation| operation.request_id);
        let Ok(request_id) = self.take_request_id(turn, &spec.name, id) else {
            return;
        };
        if let Some(operation) = self.operations.get_mut(id) {
            operation.request_id = kept;
        }
        let Some(machine) = self.machines.get_mut(&spec.name) else {
            return;
        };
        machine.burning = true;
        machine.record.burning = Some(Burn {
            operation: id.clone(),
            request_id,
            tries: tries + 1,
        });
        turn.touch_machine(&spec.name);
        let request = MailboxRequest {
            session_epoch: machine.record.session_epoch,
            opcode: 0,
            request_id,
            parameters: Vec::new(),
            expected_config_version: 0xFFFF,
            validity_ticks: 0,
        };
        turn.effects.push(Effect::Burn {
            machine: spec.name.clone(),
            connection,
            request,
        });
        self.note(
            turn,
            id,
            "mailbox",
            format!("given up by a no-op with the higher request id {request_id}"),
        );
    }

    /// The no-op's exchange ended: what it did is read, never guessed.
    pub(super) fn burned(&mut self, turn: &mut Turn, name: &str, _exchange: &Exchange) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        machine.burning = false;
        if let Some(burn) = machine.record.burning.clone() {
            self.probe_soon(turn, &burn.operation);
        }
        self.pump(turn, name);
    }

    pub(super) fn end_burn(&mut self, turn: &mut Turn, spec: &MachineSpec, id: &OperationId) {
        if let Some(machine) = self.machines.get_mut(&spec.name)
            && machine
                .record
                .burning
                .as_ref()
                .is_some_and(|burn| burn.operation == *id)
        {
            machine.record.burning = None;
            turn.touch_machine(&spec.name);
        }
    }

    fn judge_done(
        &mut self,
        turn: &mut Turn,
        spec: &MachineSpec,
        id: &OperationId,
        done: u32,
        result: i64,
    ) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let watched = spec
            .row(&operation.intent.command)
            .is_some_and(|row| matches!(row.completion, Completion::Event(_)));
        if operation.request_id != Some(done) {
            let unknown = matches!(operation.state, State::OutcomeUnknown(_));
            if unknown {
                let says = format!(
                    "the device last finished request {done}; this one is not proven by it"
                );
                self.note(turn, id, "query", says);
            }
            return;
        }
        let evidence = Evidence::from_done(done, result, watched, turn.now);
        let step = if result == 0 {
            Step::Complete(Done::new(evidence, Vec::new()))
        } else {
            let code = super::contract::DeviceCode {
                family: "done".into(),
                code: u32::try_from(result).unwrap_or(u32::MAX),
                meaning: "the device's own failure code".into(),
            };
            Step::Fail(code, evidence)
        };
        let _ = self.step(turn, id, step, Cause::gateway(Source::Verifier, ""));
    }

    /// VER-02: recorded beside the unknown, whatever it says.
    fn note_readback(
        &mut self,
        turn: &mut Turn,
        spec: &MachineSpec,
        id: &OperationId,
        values: &[(String, Value)],
    ) {
        let Some(operation) = self.operations.get(id) else {
            return;
        };
        let Some(row) = spec.row(&operation.intent.command) else {
            return;
        };
        let says: Vec<String> = values
            .iter()
            .map(|(name, value)| compare(row, operation, name, value))
            .collect();
        if seeded::is_on(Fault::ReadbackAsProof) {
            let evidence = Evidence::from_reply(&Reply::Values(values.to_vec()), turn.now, true);
            let step = Step::Complete(Done::new(evidence, Vec::new()));
            let _ = self.step(turn, id, step, Cause::gateway(Source::Verifier, ""));
            return;
        }
        self.note(turn, id, "readback", says.join("; "));
    }

    /// ST-04: accepted and never heard of again.
    pub(super) fn completion_timed_out(&mut self, turn: &mut Turn, id: &OperationId) {
        let cause = Cause::gateway(Source::Policy, "");
        if self
            .step(
                turn,
                id,
                Step::Doubt(UnknownReason::CompletionTimeout),
                cause,
            )
            .is_ok()
        {
            self.probe_soon(turn, id);
        }
    }
}

fn compare(row: &Row, operation: &Operation, name: &str, value: &Value) -> String {
    let sent = operation
        .intent
        .args
        .iter()
        .find(|(arg, _)| arg == name)
        .map(|(_, sent)| sent);
    let secret = row.args.iter().any(|arg| arg.name == name && arg.secret);
    let equal = sent.is_some_and(|sent| super::values::equals(sent, value));
    let shown = if secret {
        "(secret)".to_owned()
    } else {
        value.to_string()
    };
    if equal {
        format!("{name} reads {shown}, as sent; not proof that this operation did it")
    } else {
        format!("{name} reads {shown}, not as sent; not proof that this operation was not executed")
    }
}

fn mailbox_end(echo: &super::contract::MailboxEcho, now: &super::time::Now) -> Step {
    let evidence = Evidence::from_mailbox(echo, *now);
    if echo.result == 0 {
        Step::Complete(Done::new(evidence, Vec::new()))
    } else {
        Step::Fail(mailbox::code(echo.result), evidence)
    }
}

fn verify_probe(row: &Row, operation: &Operation) -> Option<Probe> {
    match row.verify {
        Verify::Mailbox => operation.request_id.map(|_| Probe::Mailbox),
        Verify::ResultQuery | Verify::Event => done_spec(row).cloned().map(Probe::Done),
        Verify::Readback => readback_points(row).map(|points| Probe::Readback { points }),
        Verify::Manual => None,
    }
}

fn done_spec(row: &Row) -> Option<&DoneSpec> {
    match &row.completion {
        Completion::Event(done) | Completion::Query(done) => Some(done),
        Completion::Reply | Completion::Mailbox | Completion::None => None,
    }
}

/// Where the arguments were written.
fn readback_points(row: &Row) -> Option<Vec<(String, Scalar)>> {
    let names = row.args.iter().map(|arg| arg.name.clone());
    Some(names.zip(row.written()?).collect())
}
