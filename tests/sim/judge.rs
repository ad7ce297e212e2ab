//! Owns: the invariants: what the durable log and the core say, against the ledgers of machines and sinks.
//! May call: every file of this test.
//! Never: take the gateway's word for an effect.

use super::device::{COUNT_LAST, RING_SLOTS};
use super::plant::SINKS;
use super::world::World;
use holdfast::core::ids::OperationId;
use holdfast::core::lifecycle::State;
use holdfast::core::record::Operation;
use holdfast::core::spec::ArgValue;
use serde_json::Value as Json;
use std::collections::BTreeSet;

impl World {
    fn check(&mut self, invariant: &'static str) {
        *self.checked.entry(invariant).or_default() += 1;
    }

    /// What changed since the last time, or all of it.
    pub(crate) fn judge(&mut self, all: bool) {
        let changed = std::mem::take(&mut self.books.changed);
        let ids: BTreeSet<OperationId> = if all {
            self.books.operations.keys().cloned().collect()
        } else {
            changed
        };
        for id in ids {
            let operation = self.books.operations[&id].clone();
            self.judge_operation(&operation);
        }
        for line in &self.lines {
            let Some(items) = self.books.items.get(line.name) else {
                continue;
            };
            for entry in &items.overrun {
                let overwritten = u64::from(line.device.head) >= entry + u64::from(RING_SLOTS);
                assert!(
                    overwritten,
                    "entry {entry} of {} was called lost, and stands",
                    line.name
                );
            }
        }
    }

    fn judge_operation(&mut self, operation: &Operation) {
        let id = &operation.id;
        let (effects, written) = self.effects_of(id);
        assert!(effects <= 1, "{id}: {effects} effects");
        if !operation.class.has_side_effect() {
            return;
        }
        match &operation.state {
            State::Completed(_) => {
                assert_eq!(effects, 1, "{id} is called completed, and had no effect");
                if let (Some(words), Some((_, ArgValue::Number(number)))) =
                    (written, operation.intent.args.first())
                {
                    assert_eq!(
                        number.to_string(),
                        words[0].to_string(),
                        "{id} had another effect"
                    );
                }
            }
            State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Held(_)
            | State::Queued => {
                assert_eq!(
                    effects,
                    0,
                    "{id} is called {}, and had an effect",
                    operation.state.name()
                );
            }
            State::Sending { .. }
            | State::Accepted { .. }
            | State::OutcomeUnknown(_)
            | State::Compensated { .. } => {}
        }
        self.check(match &operation.state {
            State::Completed(_) => "completed: the whole effect is in the ledger",
            State::Sending { .. }
            | State::Accepted { .. }
            | State::OutcomeUnknown(_)
            | State::Compensated { .. } => "in doubt: at most one effect",
            _ => "not sent or proven not executed: no effect",
        });
    }

    /// What was promised before a crash stands after it.
    pub(crate) fn check_recovered(&mut self) {
        for (id, end) in &self.acknowledged {
            let Some(operation) = self.books.operations.get(id) else {
                panic!("{id} was acknowledged and is gone");
            };
            if let Some(end) = end {
                assert_eq!(
                    operation.state.name(),
                    *end,
                    "{id} was told to have ended as {end}"
                );
            }
        }
        for upstream in &self.upstreams {
            upstream.check_durable(&self.books);
        }
        for line in &self.lines {
            let none = BTreeSet::new();
            let units = self
                .books
                .items
                .get(line.name)
                .map_or(&none, |items| &items.units);
            let lost = line
                .device
                .acknowledged
                .iter()
                .find(|serial| !units.contains(serial));
            assert!(
                lost.is_none(),
                "item {lost:?} of {} was acknowledged and is gone",
                line.name
            );
        }
        let promised = self.acknowledged.len() as u64;
        *self
            .checked
            .entry("acknowledged before a crash: there after it")
            .or_default() += promised;
        self.check("start after a crash");
    }

    /// After healing: nothing is under way, nothing is lost, all is upstream, each once.
    pub(crate) fn judge_healed(&mut self) {
        self.judge(true);
        self.check_recovered();
        self.judge_operations();
        self.judge_items();
        let own = self.books.key_set();
        for (upstream, (name, _)) in self.upstreams.iter().zip(SINKS) {
            assert!(
                self.books.letters_of(name).is_empty(),
                "dead letters of {name} stand after healing"
            );
            let missing = own.iter().find(|key| !upstream.taken.contains_key(**key));
            assert!(
                missing.is_none(),
                "{missing:?} is durable and not at {name}"
            );
            assert_eq!(
                upstream.taken.len(),
                own.len(),
                "{name} has more than the journal"
            );
        }
        let events = own.len() as u64;
        *self
            .checked
            .entry("event upstream once, as it is in the journal")
            .or_default() += events;
        *self.checked.entry("unknown left by evidence").or_default() += self.books.unknown_left;
    }

    /// Taken = ended + open, and the core counts as the disk does.
    fn judge_operations(&mut self) {
        let known: BTreeSet<&OperationId> = self.submitted.iter().map(|(id, _)| id).collect();
        let (mut ended, mut open) = (0, 0);
        for (id, operation) in &self.books.operations {
            assert!(known.contains(id), "{id} was asked by nobody");
            let settled = !matches!(
                operation.state,
                State::Queued | State::Sending { .. } | State::Accepted { .. }
            );
            assert!(settled, "{id} is still {}", operation.state.name());
            if operation.state.is_ended() {
                ended += 1
            } else {
                open += 1
            }
        }
        assert_eq!(
            self.core.open().count(),
            open,
            "the core has other operations open than the disk"
        );
        assert_eq!(
            ended + open,
            self.books.operations.len(),
            "taken = ended + open"
        );
        assert!(
            self.acknowledged.len() <= ended + open,
            "more acknowledged than taken"
        );
        self.check("taken = ended + open");
    }

    fn judge_items(&mut self) {
        for (line, from) in self.lines.iter().zip(&self.pieces_from) {
            let name = line.name;
            let device = &line.device;
            let items = self
                .books
                .items
                .get(name)
                .expect("a machine that was reached has events");
            let found = items.counter_from.expect("a count was found");
            let round = COUNT_LAST + 1;
            let before = (found + round - from % round) % round;
            assert_eq!(
                items.counted,
                device.pieces - from - before,
                "pieces of {name}"
            );
            assert_eq!(items.units, device.acknowledged, "items of {name}");
            let entries_from = items.entries_from.expect("a head was found");
            let told: BTreeSet<u64> = items.entries.union(&items.overrun).copied().collect();
            assert_eq!(
                told.len(),
                items.entries.len() + items.overrun.len(),
                "an entry of {name} told and lost"
            );
            let expected: BTreeSet<u64> = (entries_from + 1..=u64::from(device.head)).collect();
            assert_eq!(told, expected, "entries of {name}");
            assert_eq!(
                items.speed,
                Some(Json::from(device.speed)),
                "the last value of {name}"
            );
        }
        self.check("items at the device = items in the journal, each once");
    }
}
