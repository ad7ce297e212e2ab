//! Owns: what a person may do to an operation that is on record: cancel, verify, approve, resolve, reissue.
//! May call: every file of this room.
//! Never: say "cancelled" after the send boundary (CAN-02), or resolve without a reason (VER-05).

use super::gateway::{Act, Answer, Gateway, Refusal, Token, Verdict};
use super::ids::OperationId;
use super::intent::{InvalidArgument, RawArg, RawValue, Request};
use super::lifecycle::{Actor, Completion, Evidence, Family, HeldReason, Source, State, Step};
use super::machine::LinkState;
use super::record::Operation;
use super::spec::{ArgValue, OnRestart};
use super::time::{Deadline, Validity};
use super::turn::{Cause, Turn, bounded};
use crate::seeded::{self, Fault};

impl Gateway {
    pub(super) fn act(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        act: Act,
        actor: &Actor,
        token: Token,
    ) {
        let answer = self
            .perform(turn, id, act, actor)
            .unwrap_or_else(Answer::Refused);
        turn.answer(token, answer);
    }

    fn perform(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        act: Act,
        actor: &Actor,
    ) -> Result<Answer, Refusal> {
        if self.is_recovery() {
            return Err(Refusal::RecoveryMode);
        }
        if !self.operations.contains_key(id) {
            return Err(Refusal::UnknownOperation(id.to_string()));
        }
        match act {
            Act::Cancel => self.cancel(turn, id, actor),
            Act::Verify => self.verify(turn, id),
            Act::Approve => self.approve(turn, id, actor),
            Act::Resolve {
                verdict,
                reason,
                by_operation,
            } => self.resolve(turn, id, actor, verdict, &reason, by_operation),
            Act::Reissue { new_id, reason } => self.reissue(turn, id, actor, new_id, reason),
        }
    }

    fn copy(&self, id: &OperationId) -> Result<Box<Operation>, Refusal> {
        let operation = self
            .operations
            .get(id)
            .ok_or_else(|| Refusal::UnknownOperation(id.to_string()))?;
        Ok(Box::new(operation.clone()))
    }

    fn not_possible(&self, id: &OperationId, what: &str) -> Refusal {
        Refusal::NotPossible {
            id: id.to_string(),
            state: self
                .operations
                .get(id)
                .map_or("unknown", |op| op.state.name())
                .to_owned(),
            what: what.to_owned(),
        }
    }

    /// CAN-01: cancel and send are steps of the same table, so exactly one wins.
    fn cancel(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        actor: &Actor,
    ) -> Result<Answer, Refusal> {
        let already = self
            .operations
            .get(id)
            .is_some_and(|op| matches!(op.state, State::Cancelled { .. }));
        if already {
            return Ok(Answer::Cancelled(self.copy(id)?));
        }
        let cause = Cause::of(Source::Api, actor, "");
        match self.step(turn, id, Step::Cancel(actor.clone()), cause) {
            Ok(()) => Ok(Answer::Cancelled(self.copy(id)?)),
            Err(_) => Ok(Answer::TooLate(self.copy(id)?)),
        }
    }

    fn verify(&mut self, turn: &mut Turn, id: &OperationId) -> Result<Answer, Refusal> {
        let in_doubt = self.operations.get(id).is_some_and(|op| {
            matches!(op.state, State::Accepted { .. } | State::OutcomeUnknown(_))
        });
        if !in_doubt {
            return Err(self.not_possible(id, "only an outcome in doubt can be verified"));
        }
        let up = self
            .machine_of(id)
            .is_some_and(|machine| machine.link == LinkState::Up);
        if !up {
            return Err(self.not_possible(
                id,
                "its machine is not connected; it is verified by itself once it is",
            ));
        }
        self.probe_soon(turn, id);
        let probed = self
            .machine_of(id)
            .is_some_and(|machine| machine.probing.is_some());
        if !probed {
            let what = "nothing at this device can be read about it: find out at the machine, then resolve it";
            return Err(self.not_possible(id, what));
        }
        Ok(Answer::Done(self.copy(id)?))
    }

    fn approve(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        actor: &Actor,
    ) -> Result<Answer, Refusal> {
        let Some(State::Held(held)) = self.operations.get(id).map(|op| op.state.clone()) else {
            return Err(self.not_possible(id, "only what is held can be approved"));
        };
        if held == HeldReason::ValidityUnprovable {
            // Nobody can say how much was left, so the person's word begins a validity of its own.
            if let Some(operation) = self.operations.get_mut(id) {
                let ttl_ms = operation.intent.ttl_ms;
                operation.deadline = Some(Deadline {
                    from: turn.now,
                    ttl_ms,
                });
            }
        } else if self.expire_if_due(turn, id) || self.hold_if_unprovable(turn, id) {
            return Ok(Answer::Done(self.copy(id)?));
        }
        if let Some(operation) = self.operations.get_mut(id) {
            operation.waived = Some(held.clone());
        }
        let cause = Cause::of(
            Source::Operator,
            actor,
            format!("approved in spite of: {held}"),
        );
        if self.step(turn, id, Step::Approve, cause).is_err() {
            return Err(self.not_possible(id, "only what is held can be approved"));
        }
        self.reject_or_pump(turn, id);
        Ok(Answer::Done(self.copy(id)?))
    }

    /// A machine that rebooted meanwhile cannot say what is left of the validity: that is a second decision, and
    /// whoever set the first reason aside has not made it (TIME-04).
    fn hold_if_unprovable(&mut self, turn: &mut Turn, id: &OperationId) -> bool {
        let deadline = self.operations.get(id).and_then(|op| op.deadline);
        let unprovable =
            deadline.is_some_and(|deadline| deadline.at(&turn.now) == Validity::Unprovable);
        let expires = self
            .with_row(id)
            .is_some_and(|(_, row)| row.on_restart == OnRestart::Expire);
        let step = if expires {
            Step::Expire
        } else {
            Step::Hold(HeldReason::ValidityUnprovable)
        };
        unprovable
            && self
                .step(turn, id, step, Cause::gateway(Source::Policy, ""))
                .is_ok()
    }

    fn reject_or_pump(&mut self, turn: &mut Turn, id: &OperationId) {
        let Some((name, _)) = self.with_row(id) else {
            return;
        };
        let up = self
            .machines
            .get(&name)
            .is_some_and(|machine| machine.link == LinkState::Up);
        if up {
            self.pump(turn, &name);
        } else {
            self.reject_if_it_never_waits(turn, id);
        }
    }

    /// VER-05. What is proven by the device is not a person's to change.
    fn resolve(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        actor: &Actor,
        verdict: Verdict,
        reason: &str,
        by_operation: Option<OperationId>,
    ) -> Result<Answer, Refusal> {
        if reason.trim().is_empty() {
            return Err(Refusal::InvalidArgument(InvalidArgument {
                field: "reason".into(),
                found: "nothing".into(),
                expected: "how you know: what was seen at the machine".into(),
            }));
        }
        let evidence = Evidence::from_operator(actor, &bounded(reason), turn.now);
        let step = match verdict {
            Verdict::Completed => Step::Complete(Completion::new(evidence, Vec::new())),
            Verdict::NotExecuted => Step::Deny(evidence),
            Verdict::Compensated => Step::Compensate(by_operation, evidence),
        };
        let sending = self
            .operations
            .get(id)
            .is_some_and(|op| matches!(op.state, State::Sending { .. }));
        let cause = Cause::of(Source::Operator, actor, bounded(reason));
        if sending || self.step(turn, id, step, cause).is_err() {
            return Err(self.not_possible(
                id,
                "only an unknown outcome can be resolved, and a completed one compensated",
            ));
        }
        // Its command may be gone from the files; its hold on the mailbox ends all the same.
        if let Some(spec) = self
            .machine_of(id)
            .map(|machine| std::sync::Arc::clone(&machine.spec))
        {
            self.end_burn(turn, &spec, id);
            self.pump(turn, &spec.name);
        }
        Ok(Answer::Done(self.copy(id)?))
    }

    /// CMD-08: a new identity, linked, with a reason.
    fn reissue(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        actor: &Actor,
        new_id: String,
        reason: String,
    ) -> Result<Answer, Refusal> {
        let old = self.copy(id)?;
        if let Some(known) = OperationId::parse(&new_id)
            .ok()
            .and_then(|new| self.operations.get(&new))
            && known.links.reissue_of.as_ref() == Some(id)
        {
            return Ok(Answer::Replayed(Box::new(known.clone())));
        }
        let settled = old.state.is_ended() || old.state.family() == Family::InDoubt;
        if !settled || matches!(old.state, State::Sending { .. }) {
            return Err(self.not_possible(
                id,
                "it is still open: cancel it or wait for its end before it is done again",
            ));
        }
        let mut request = Request {
            operation_id: Some(new_id),
            machine: old.intent.machine.clone(),
            command: old.intent.command.clone(),
            expected_config_version: old.intent.expected_config_version,
            ttl_ms: Some(old.intent.ttl_ms),
            issued_at_us: Some(turn.now.wall_us),
            reissue_of: Some(id.to_string()),
            reason: Some(reason),
            ..Request::default()
        };
        for (name, value) in &old.intent.args {
            let value = match value {
                ArgValue::Bool(bit) => RawValue::Bool(*bit),
                ArgValue::Number(number) => RawValue::Number(number.to_string()),
                ArgValue::Text(text) => RawValue::Text(text.clone()),
                ArgValue::Redacted(_) => {
                    let what = "it had a secret argument, which was not kept: submit it anew with reissue_of";
                    return Err(self.not_possible(id, what));
                }
            };
            request
                .args
                .insert(name.clone(), RawArg { value, unit: None });
        }
        self.admit(turn, &request, actor)
    }

    /// What is left of a validity after a start (TIME-03, TIME-04).
    pub(super) fn rebase_validity(&mut self, turn: &mut Turn, id: &OperationId) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let Some(deadline) = operation.deadline else {
            return;
        };
        if deadline.from.boot_id == turn.now.boot_id {
            return;
        }
        if let Validity::Remaining(ns) = deadline.at(&turn.now) {
            // From here on this boot's monotonic clock counts, whatever the wall does.
            let ttl_ms = match seeded::is_on(Fault::ValidityRefilled) {
                true => operation.intent.ttl_ms,
                false => ns / super::time::NS_PER_MS,
            };
            operation.deadline = Some(Deadline {
                from: turn.now,
                ttl_ms,
            });
            turn.touch(id);
        }
    }
}
