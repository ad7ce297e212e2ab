//! Owns: what of the gateway's memory can make a difference to a later decision, as one hash, for model checking.
//! May call: every file of this room.
//! Never: be built into a release; leave out what a decision reads.
//!
//! Times go in relative to now, attempts relative to the next one. Left out: histories, findings, texts, the numbers of
//! commits and of events, and the sources of events: nothing is decided about an operation by them.

use super::gateway::Gateway;
use super::ids::AttemptId;
use super::lifecycle::State;
use super::machine::Machine;
use super::record::Operation;
use super::time::{Now, Stamp};
use std::hash::{Hash, Hasher};

impl Gateway {
    /// Adds to `into` what two gateways must share that are to decide alike from here on.
    pub fn sameness(&self, now: &Now, into: &mut impl Hasher) {
        (self.is_recovery(), self.is_stopping()).hash(into);
        self.capacity_full.is_some().hash(into);
        ahead(self.next_drain_ns, now).hash(into);
        self.alarms.keys().for_each(|key| key.hash(into));
        let mut operations: Vec<&Operation> = self.operations.values().collect();
        operations.sort_by_key(|operation| operation.submitted);
        for operation in operations {
            self.sameness_of(operation, now, into);
        }
        for machine in self.machines.values() {
            machine.sameness(now, into);
        }
    }

    /// As [`Gateway::sameness`], of one operation, in memory or as it was written down.
    pub fn sameness_of(&self, operation: &Operation, now: &Now, into: &mut impl Hasher) {
        operation.id.hash(into);
        operation.state.name().hash(into);
        match &operation.state {
            State::Sending { attempt } => self.attempt_age(*attempt).hash(into),
            State::Held(reason) => reason.code().hash(into),
            State::Accepted { since } => relative(since, now).hash(into),
            State::OutcomeUnknown(_)
            | State::Queued
            | State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Completed(_)
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. } => {}
        }
        if operation.state.is_ended() {
            return;
        }
        if let Some(deadline) = operation.deadline {
            (deadline.ttl_ms, relative(&deadline.from, now)).hash(into);
            deadline.from.wall_trusted.hash(into);
        }
        (operation.request_id, operation.device_boot).hash(into);
        (operation.busy_count, operation.disconnected_at.is_some()).hash(into);
        format!("{:?}", operation.waived).hash(into);
    }

    /// How long ago an attempt was numbered, in starts and in attempts.
    #[must_use]
    pub fn attempt_age(&self, attempt: AttemptId) -> (u64, u64) {
        let starts = self.epoch.0.wrapping_sub(attempt.epoch.0);
        match starts {
            0 => (0, self.next_attempt.wrapping_sub(attempt.n)),
            _ => (starts, attempt.n),
        }
    }
}

impl Machine {
    fn sameness(&self, now: &Now, into: &mut impl Hasher) {
        (self.configured, self.link.name(), self.down_since.is_some()).hash(into);
        if let Some(gate) = &self.gate {
            relative(&gate.at, now).hash(into);
            gate.config_version.hash(into);
            format!("{:?}{:?}{:?}", gate.identity, gate.interlocks, gate.quality).hash(into);
            gate.mailbox
                .as_ref()
                .map(|blocks| (&blocks.command, &blocks.status))
                .hash(into);
        }
        self.gate.is_some().hash(into);
        (&self.in_flight, &self.probing, &self.held).hash(into);
        self.waiting.values().for_each(|id| (1, id).hash(into));
        self.unresolved.values().for_each(|id| (2, id).hash(into));
        let mut live: Vec<_> = self.live.iter().collect();
        live.sort_by_key(|(id, _)| *id);
        for (id, live) in live {
            (id, live.probe_wait_ns, ahead(live.not_before_ns, now)).hash(into);
            live.probe_ns.map(|at| ahead(at, now)).hash(into);
            live.due_ns.map(|at| ahead(at, now)).hash(into);
        }
        self.drain_due_ns.map(|at| ahead(at, now)).hash(into);
        self.unreached_due_ns.map(|at| ahead(at, now)).hash(into);
        ahead(self.next_drain_ns, now).hash(into);
        (self.gate_asked, self.burning, self.epoch_taken).hash(into);
        (self.record.last_request_id, self.record.session_epoch).hash(into);
        if let Some(burn) = &self.record.burning {
            (&burn.operation, burn.request_id, burn.tries).hash(into);
        }
    }
}

/// How far ahead; what is over is over.
fn ahead(at_ns: u64, now: &Now) -> u64 {
    at_ns.saturating_sub(now.boottime_ns)
}

/// How long ago, by the clock that counts for it: by the monotonic one within a boot, else by the wall, with this boot's age.
fn relative(from: &Stamp, now: &Now) -> (bool, i128, u64) {
    if from.boot_id == now.boot_id {
        let ago = i128::from(now.boottime_ns) - i128::from(from.boottime_ns);
        (true, ago, 0)
    } else {
        let ago = i128::from(now.wall_us) - i128::from(from.wall_us);
        (false, ago, now.boottime_ns)
    }
}
