//! Owns: admission: who may become an operation, and what the policy says to it at once.
//! May call: every file of this room.
//! Never: let one id mean two things (CMD-03), or an old packet become a new operation (TIME-06).

use super::gateway::{Answer, Gateway, OPEN_OPERATIONS_MAX, Refusal, Token};
use super::ids::OperationId;
use super::intent::{self, Digest, Intent, Request};
use super::lifecycle::{Actor, RejectReason, Source, State, Step};
use super::machine::{LinkState, WAITING_MAX, not_connected};
use super::record::{Links, Operation};
use super::spec::{Class, MachineSpec, ReplaceRule, Row};
use super::time::{Deadline, NS_PER_MS, elapsed_ns};
use super::turn::{Cause, Turn, bounded, push_history, transition_body};
use crate::seeded::{self, Fault};
use std::sync::Arc;

/// How far ahead of the gateway's clock a caller's may be, in milliseconds.
const CLOCK_AHEAD_MS_MAX: u64 = 5 * 60 * 1000;

/// A request that has passed every check of form.
struct Candidate {
    id: OperationId,
    spec: Arc<MachineSpec>,
    row: Row,
    intent: Intent,
    digest: Digest,
    reissue_of: Option<OperationId>,
    reason: Option<String>,
}

impl Gateway {
    pub(super) fn submit(
        &mut self,
        turn: &mut Turn,
        request: &Request,
        actor: &Actor,
        token: Token,
    ) {
        let answer = match self.admit(turn, request, actor) {
            Ok(answer) => answer,
            Err(refusal) => Answer::Refused(refusal),
        };
        turn.answer(token, answer);
    }

    pub(super) fn admit(
        &mut self,
        turn: &mut Turn,
        request: &Request,
        actor: &Actor,
    ) -> Result<Answer, Refusal> {
        let candidate = match self.check_form(request) {
            Ok(candidate) => candidate,
            Err(refusal) => return self.known_without_row(request).ok_or(refusal),
        };
        if let Some(known) = self.known(turn, &candidate)? {
            return Ok(known);
        }
        self.check_room(turn, &candidate)?;
        let id = candidate.id.clone();
        self.record(turn, candidate, actor);
        let operation = self.operations.get(&id).cloned();
        operation
            .map(|operation| Answer::Recorded(Box::new(operation)))
            .ok_or_else(|| Refusal::UnknownOperation(id.to_string()))
    }

    /// CMD-02 for an operation whose command or machine has left the files: what was asked can no longer be
    /// checked against a schema, what became of it can still be told.
    fn known_without_row(&self, request: &Request) -> Option<Answer> {
        let id = OperationId::parse(request.operation_id.as_deref()?).ok()?;
        let operation = self.operations.get(&id)?;
        let same = operation.intent.machine == request.machine
            && operation.intent.command == request.command;
        let gone = self.with_row(&id).is_none();
        (same && gone).then(|| Answer::Replayed(Box::new(operation.clone())))
    }

    fn check_form(&self, request: &Request) -> Result<Candidate, Refusal> {
        let machine = self
            .machines
            .get(&request.machine)
            .filter(|machine| machine.configured)
            .ok_or_else(|| Refusal::UnknownMachine {
                name: bounded(&request.machine),
                nearest: intent::nearest(
                    &request.machine,
                    self.machines
                        .iter()
                        .filter(|(_, machine)| machine.configured)
                        .map(|(name, _)| name.as_str()),
                )
                .map(str::to_owned),
            })?;
        let spec = Arc::clone(&machine.spec);
        if spec.owner != self.settings.gateway {
            return Err(Refusal::NotOwner {
                owner: spec.owner.clone(),
            });
        }
        let row = spec
            .row(&request.command)
            .cloned()
            .ok_or_else(|| Refusal::UnknownCommand {
                machine: spec.name.clone(),
                name: bounded(&request.command),
                nearest: intent::nearest(
                    &request.command,
                    spec.commands.iter().map(|row| row.name.as_str()),
                )
                .map(str::to_owned),
            })?;
        let id = request
            .operation_id
            .as_deref()
            .ok_or(Refusal::MissingOperationId)?;
        let id = OperationId::parse(id)?;
        let intent = intent::canonicalise(request, &row)?;
        let digest = intent::digest(&intent);
        let reissue_of = request
            .reissue_of
            .as_deref()
            .map(OperationId::parse)
            .transpose()?;
        let reason = request
            .reason
            .as_deref()
            .map(bounded)
            .filter(|reason| !reason.trim().is_empty());
        if reissue_of.is_some() && reason.is_none() {
            return Err(Refusal::InvalidArgument(intent::InvalidArgument {
                field: "reason".into(),
                found: "nothing".into(),
                expected: "why the operation is done again (required with reissue_of)".into(),
            }));
        }
        if let Some(old) = &reissue_of
            && !self.operations.contains_key(old)
        {
            return Err(Refusal::UnknownOperation(old.to_string()));
        }
        Ok(Candidate {
            id,
            spec,
            row,
            intent,
            digest,
            reissue_of,
            reason,
        })
    }

    /// CMD-02, CMD-03: what an id that is on record gets.
    fn known(&mut self, turn: &mut Turn, candidate: &Candidate) -> Result<Option<Answer>, Refusal> {
        let window_ns = self.settings.replay_window_ms.saturating_mul(NS_PER_MS);
        if let Some(operation) = self.operations.get(&candidate.id) {
            if operation.digest != candidate.digest {
                let differing = intent::difference(&operation.intent, &candidate.intent);
                let recorded = operation.digest;
                return Err(self.conflict(turn, candidate, recorded, differing));
            }
            let over = elapsed_ns(&operation.created, &turn.now) >= window_ns;
            if over && operation.class.has_side_effect() && operation.state.is_ended() {
                return Err(Refusal::OutsideReplayWindow {
                    why: format!(
                        "operation {} is on record, and can still be read",
                        candidate.id
                    ),
                });
            }
            return Ok(Some(Answer::Replayed(Box::new(operation.clone()))));
        }
        if let Some(tombstone) = self.tombstones.get(&candidate.id)
            && !seeded::is_on(Fault::ReplayAfterTombstone)
        {
            if tombstone.digest != candidate.digest {
                let recorded = tombstone.digest;
                return Err(self.conflict(turn, candidate, recorded, Vec::new()));
            }
            return Err(Refusal::OutsideReplayWindow {
                why: format!(
                    "operation {} ended as {} and was archived",
                    candidate.id, tombstone.state
                ),
            });
        }
        Ok(None)
    }

    fn conflict(
        &mut self,
        turn: &mut Turn,
        candidate: &Candidate,
        recorded: Digest,
        differing: Vec<String>,
    ) -> Refusal {
        let side = |digest: &Digest| {
            serde_json::json!({
                "digest": super::event::sha256_text(&digest.sha256),
                "length": digest.length,
                "encoding": digest.encoding,
            })
        };
        let body = serde_json::json!({
            "operation_id": candidate.id.as_str(),
            "recorded": side(&recorded),
            "received": side(&candidate.digest),
            "differing_fields": differing,
        });
        self.emit(turn, &candidate.spec.name, "operation.conflict", body);
        Refusal::IdempotencyConflict {
            recorded,
            received: candidate.digest,
            differing_fields: differing,
        }
    }

    /// Whether a new operation may be recorded at all.
    fn check_room(&self, turn: &Turn, candidate: &Candidate) -> Result<(), Refusal> {
        if self.is_recovery() {
            return Err(Refusal::RecoveryMode);
        }
        if let Some(foreign) = &self.start.foreign {
            return Err(Refusal::ForeignJournal(foreign.clone()));
        }
        if self.is_stopping() {
            return Err(Refusal::Stopping);
        }
        if let Some(issued_us) = candidate.intent.issued_at_us {
            self.check_window(turn, issued_us)?;
        }
        if let Some(why) = &self.capacity_full {
            return Err(Refusal::CapacityFull(why.clone()));
        }
        if self.open_count >= OPEN_OPERATIONS_MAX {
            let why = format!(
                "{OPEN_OPERATIONS_MAX} operations are open, the most that may be; resolve or cancel some"
            );
            return Err(Refusal::CapacityFull(why));
        }
        Ok(())
    }

    /// TIME-06. A clock that is not trusted still gives a lower bound: the highest wall time on record.
    fn check_window(&self, turn: &Turn, issued_us: i64) -> Result<(), Refusal> {
        let us = |ms: u64| i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        let window_us = us(self.settings.replay_window_ms);
        let ahead_us = us(CLOCK_AHEAD_MS_MAX);
        if issued_us <= self.unproven_before_us() {
            return Err(Refusal::OutsideReplayWindow {
                why: "what was known here of requests issued then is gone (the journal began later, was restored or salvaged, or \
                      they are past their retention), and it may have been executed; find out at the machine"
                    .into(),
            });
        }
        let trusted = turn.now.wall_trusted;
        let at_least_us = if trusted {
            turn.now.wall_us
        } else {
            self.highest_wall_us
        };
        if at_least_us.saturating_sub(issued_us) >= window_us {
            return Err(Refusal::OutsideReplayWindow {
                why: format!(
                    "issued_at is {} s old, the window is {} s",
                    at_least_us.saturating_sub(issued_us) / 1_000_000,
                    window_us / 1_000_000
                ),
            });
        }
        if trusted && issued_us.saturating_sub(turn.now.wall_us) > ahead_us {
            return Err(Refusal::OutsideReplayWindow {
                why: format!(
                    "issued_at is {} s ahead of this gateway's clock; compare the clocks",
                    issued_us.saturating_sub(turn.now.wall_us) / 1_000_000
                ),
            });
        }
        Ok(())
    }

    /// From here on it is an operation; the policy decides at once.
    fn record(&mut self, turn: &mut Turn, candidate: Candidate, actor: &Actor) {
        let Candidate {
            id,
            spec,
            row,
            intent,
            digest,
            reissue_of,
            reason,
        } = candidate;
        let down_since = self
            .machines
            .get(&spec.name)
            .and_then(|machine| machine.down_since);
        let window_us =
            i64::try_from(self.settings.replay_window_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        let replaces = intent.replaces.clone();
        let mut operation = Operation {
            id: id.clone(),
            deadline: Some(Deadline {
                from: turn.now,
                ttl_ms: intent.ttl_ms,
            }),
            intent,
            digest,
            class: row.class,
            state: State::Queued,
            actor: actor.clone(),
            created: turn.now,
            submitted: turn.no,
            replay_until_us: turn.now.wall_us.saturating_add(window_us),
            disconnected_at: down_since,
            version_found: None,
            result_id: None,
            superseded_count: 0,
            links: Links {
                reissue_of: reissue_of.clone(),
                reissue_reason: reissue_of.as_ref().and(reason),
                reissued_by: Vec::new(),
                replaces: replaces.clone(),
            },
            request_id: None,
            device_boot: None,
            waived: None,
            busy_count: 0,
            attempts: Vec::new(),
            findings: Vec::new(),
            history: Vec::new(),
            history_dropped: 0,
        };
        let cause = Cause::of(Source::Api, actor, "recorded");
        push_history(&mut operation, &turn.now, None, &cause);
        let body = transition_body(&operation, None, &cause);
        self.operations.insert(id.clone(), operation);
        self.open_count += 1;
        turn.touch(&id);
        turn.about = Some(id.clone());
        self.emit(turn, &spec.name, "operation.transition", body);
        turn.about = None;
        self.place(&id);
        if let Some(old) = reissue_of {
            self.link_reissue(turn, &old, &id);
        }
        if let Some(refused) = self.policy(turn, &id, &spec, &row, replaces.as_ref(), actor) {
            let _ = self.step(
                turn,
                &id,
                Step::Reject(refused),
                Cause::gateway(Source::Policy, ""),
            );
            return;
        }
        self.pump(turn, &spec.name);
    }

    fn link_reissue(&mut self, turn: &mut Turn, old: &OperationId, new: &OperationId) {
        const REISSUES_KEPT_MAX: usize = 16;
        if let Some(operation) = self.operations.get_mut(old)
            && operation.links.reissued_by.len() < REISSUES_KEPT_MAX
        {
            operation.links.reissued_by.push(new.clone());
            turn.touch(old);
        }
    }

    /// The policy table at submission. `Some`: refused.
    fn policy(
        &mut self,
        turn: &mut Turn,
        id: &OperationId,
        spec: &MachineSpec,
        row: &Row,
        replaces: Option<&OperationId>,
        actor: &Actor,
    ) -> Option<RejectReason> {
        if spec.read_only && row.class.has_side_effect() {
            return Some(RejectReason::MachineReadOnly);
        }
        if let Some(old) = replaces
            && let Err(why) = self.replace(turn, old, id, row, actor)
        {
            return Some(RejectReason::ReplaceRefused { why });
        }
        let up = self
            .machines
            .get(&spec.name)
            .is_some_and(|machine| machine.link == LinkState::Up);
        if row.class == Class::Query {
            self.coalesce(turn, &spec.name, id);
            return None;
        }
        if row.merge_latest {
            self.merge(turn, &spec.name, id, actor);
        }
        if !up && !row.queueable {
            return Some(self.why_not_now(&spec.name, row));
        }
        let limit = if row.queueable {
            row.max_queued
        } else {
            u32::try_from(WAITING_MAX).unwrap_or(u32::MAX)
        };
        let waiting = self.waiting_of(&spec.name, &row.name, id).len();
        (waiting >= limit as usize).then_some(RejectReason::QueueFull { limit })
    }

    /// A link that stands, but to another device or with its gate unread, is said so.
    fn why_not_now(&self, name: &str, row: &Row) -> RejectReason {
        let mismatch = self
            .alarms
            .contains_key(&("identity_mismatch".to_owned(), name.to_owned()));
        let gate = self.machines.get(name).and_then(|machine| {
            let (check, gate) = (machine.spec.gate.identity.as_ref()?, machine.gate.as_ref()?);
            Some(super::lifecycle::HeldReason::IdentityMismatch {
                expected: check.equals.to_string(),
                found: gate
                    .identity
                    .as_ref()
                    .map_or_else(|| "unreadable".into(), ToString::to_string),
            })
        });
        match gate {
            Some(held) if mismatch => RejectReason::Gate(held),
            _ => not_connected(row),
        }
    }

    /// What else of the same command waits, in the order of submission.
    fn waiting_of(&self, machine: &str, command: &str, but: &OperationId) -> Vec<OperationId> {
        let waiting = self
            .machines
            .get(machine)
            .map(|machine| machine.waiting.values());
        waiting
            .into_iter()
            .flatten()
            .filter(|id| *id != but)
            .filter(|id| {
                self.operations
                    .get(*id)
                    .is_some_and(|op| op.intent.command == command)
            })
            .cloned()
            .collect()
    }

    /// POL-02: a query waits as one, the newest asked.
    fn coalesce(&mut self, turn: &mut Turn, machine: &str, id: &OperationId) {
        let Some(command) = self.operations.get(id).map(|op| op.intent.command.clone()) else {
            return;
        };
        let mut stands_for = 0_u32;
        for old in self.waiting_of(machine, &command, id) {
            let before = self
                .operations
                .get(&old)
                .map_or(0, |op| op.superseded_count);
            let cause = Cause::gateway(Source::Policy, "a newer reading was asked for");
            if self
                .step(turn, &old, Step::Supersede(id.clone()), cause)
                .is_ok()
            {
                stands_for = stands_for.saturating_add(before).saturating_add(1);
            }
        }
        if let Some(operation) = self.operations.get_mut(id) {
            operation.superseded_count = stands_for;
        }
    }

    /// CMD-11, rule `latest`.
    fn merge(&mut self, turn: &mut Turn, machine: &str, id: &OperationId, actor: &Actor) {
        let Some(command) = self.operations.get(id).map(|op| op.intent.command.clone()) else {
            return;
        };
        for old in self.waiting_of(machine, &command, id) {
            if self
                .operations
                .get(&old)
                .is_some_and(|op| same_person(&op.actor, actor))
            {
                let cause = Cause::gateway(Source::Policy, "merged: the latest stands");
                let _ = self.step(turn, &old, Step::Supersede(id.clone()), cause);
            }
        }
    }

    /// POL-05: in the same commit the old one gives way, or nothing changes.
    fn replace(
        &mut self,
        turn: &mut Turn,
        old: &OperationId,
        new: &OperationId,
        row: &Row,
        actor: &Actor,
    ) -> Result<(), String> {
        let operation = self
            .operations
            .get(old)
            .ok_or_else(|| format!("{old} is not on record"))?;
        let command = (&operation.intent.machine, &operation.intent.command);
        let wanted = self
            .operations
            .get(new)
            .map(|op| (&op.intent.machine, &op.intent.command));
        if Some(command) != wanted {
            return Err(format!("{old} is another command"));
        }
        if row.replace == ReplaceRule::Never {
            return Err("this command cannot be replaced".into());
        }
        if !same_person(&operation.actor, actor) {
            return Err(format!(
                "{old} was submitted by {}, only they may replace it",
                operation.actor
            ));
        }
        if operation.state != State::Queued {
            return Err(format!(
                "{old} is {}; only what is queued can be replaced",
                operation.state.name()
            ));
        }
        let cause = Cause::of(Source::Api, actor, "replaced");
        self.step(turn, old, Step::Supersede(new.clone()), cause)
            .map_err(|refused| refused.to_string())
    }
}

/// Groups may have changed meanwhile; the person is the same.
fn same_person(a: &Actor, b: &Actor) -> bool {
    match (a, b) {
        (Actor::Uid { uid: a, .. }, Actor::Uid { uid: b, .. }) => a == b,
        _ => a == b,
    }
}
