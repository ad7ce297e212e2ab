//! Owns: what the durable log says, read record by record, and what each record must fit.
//! May call: core's records.
//! Never: look at what the core has in memory.

use holdfast::core::ids::{EventKey, OperationId};
use holdfast::core::lifecycle::State;
use holdfast::core::record::{
    Block, CursorRecord, DeadLetter, EventRecord, MachineRecord, Operation, Position, Record,
    SinkRecord, SourceRecord,
};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What the events of one machine add up to.
#[derive(Default)]
pub(crate) struct Items {
    /// The count that was found first.
    pub(crate) counter_from: Option<u64>,
    pub(crate) counted: u64,
    pub(crate) units: BTreeSet<u64>,
    /// The head that was found first.
    pub(crate) entries_from: Option<u64>,
    pub(crate) entries: BTreeSet<u64>,
    pub(crate) overrun: BTreeSet<u64>,
    pub(crate) speed: Option<Json>,
}

/// Everything that is durable.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) log: Vec<Block>,
    pub(crate) operations: BTreeMap<OperationId, Operation>,
    /// Those that changed since they were judged last.
    pub(crate) changed: BTreeSet<OperationId>,
    pub(crate) machines: BTreeMap<String, MachineRecord>,
    pub(crate) sources: BTreeMap<(String, String), SourceRecord>,
    pub(crate) cursors: BTreeMap<String, CursorRecord>,
    pub(crate) sinks: BTreeMap<String, SinkRecord>,
    pub(crate) letters: BTreeMap<(String, EventKey), DeadLetter>,
    pub(crate) keys: HashMap<EventKey, u64>,
    pub(crate) items: BTreeMap<String, Items>,
    pub(crate) highest_wall_us: i64,
    next_sequence: HashMap<(String, u64), u64>,
    /// Ends of operations, by the name of the state, for the report.
    pub(crate) unknown_left: u64,
}

/// What an event is, for comparing one copy with another.
pub(crate) fn print_of(event: &EventRecord) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (
        &event.key,
        &event.event_type,
        event.wall_us,
        event.qty,
        &event.body,
    )
        .hash(&mut hasher);
    hasher.finish()
}

impl Books {
    pub(crate) fn read(blocks: Vec<Block>) -> Self {
        let mut books = Self::default();
        for block in blocks {
            books.enter(block);
        }
        books
    }

    pub(crate) fn enter(&mut self, block: Block) {
        self.highest_wall_us = self.highest_wall_us.max(block.at.wall_us);
        for record in &block.records {
            match record {
                Record::Operation(operation) => self.operation(operation),
                Record::Event(event) => self.event(event),
                Record::Machine(machine) => {
                    self.machines.insert(machine.name.clone(), machine.clone());
                }
                Record::Source(source) => {
                    let key = (source.machine.clone(), source.event_type.clone());
                    self.sources.insert(key, source.clone());
                }
                Record::Cursor(cursor) => {
                    self.cursors.insert(cursor.sink.clone(), cursor.clone());
                }
                Record::Sink(sink) => {
                    self.sinks.insert(sink.sink.clone(), sink.clone());
                }
                Record::DeadLetter(letter) => {
                    let key = (letter.sink.clone(), letter.event.key.clone());
                    self.letters.insert(key, letter.clone());
                }
                Record::DeadLetterSettled { sink, key, .. } => {
                    self.letters.remove(&(sink.clone(), key.clone()));
                }
                Record::Shed(_)
                | Record::Start(_)
                | Record::Audit { .. }
                | Record::Stop
                | Record::Gone => {}
            }
        }
        self.log.push(block);
    }

    /// An unknown outcome ends by evidence alone, and what has ended stays as it is.
    fn operation(&mut self, operation: &Operation) {
        if let Some(before) = self.operations.get(&operation.id) {
            let (was, is) = (&before.state, &operation.state);
            if matches!(was, State::OutcomeUnknown(_)) && was != is {
                let by_evidence = matches!(
                    is,
                    State::Accepted { .. }
                        | State::Completed(_)
                        | State::Failed { .. }
                        | State::NotExecuted { .. }
                        | State::OutcomeUnknown(_)
                );
                assert!(
                    by_evidence,
                    "unknown left without evidence: {} is {}",
                    operation.id,
                    is.name()
                );
                self.unknown_left += 1;
            }
            assert!(
                !was.is_ended() || was == is,
                "{} had ended as {} and is {}",
                operation.id,
                was.name(),
                is.name()
            );
            assert_eq!(
                before.digest, operation.digest,
                "{} means something else now",
                operation.id
            );
        }
        self.operations
            .insert(operation.id.clone(), operation.clone());
        self.changed.insert(operation.id.clone());
    }

    fn event(&mut self, event: &EventRecord) {
        let print = print_of(event);
        assert!(
            self.keys.insert(event.key.clone(), print).is_none(),
            "key twice: {}",
            event.key
        );
        let track = (event.key.source.clone(), event.key.epoch.0);
        let next = self.next_sequence.entry(track).or_insert(1);
        assert_eq!(event.key.sequence.0, *next, "{} does not follow", event.key);
        *next += 1;
        let body: Json = serde_json::from_str(&event.body).expect("a body is JSON");
        let items = self.items.entry(event.key.source.clone()).or_default();
        match event.event_type.as_str() {
            "piece.good" => items.counted += u64::try_from(event.qty).expect("a quantity"),
            "unit.done" => {
                let serial = body["data"]["serial"]["value"].as_u64().expect("a serial");
                assert!(
                    items.units.insert(serial),
                    "item {serial} of {} twice",
                    event.key.source
                );
            }
            "log.entry" => {
                let entry = body["entry"].as_u64().expect("an entry");
                assert!(
                    items.entries.insert(entry),
                    "entry {entry} of {} twice",
                    event.key.source
                );
                assert_eq!(
                    body["words"][0].as_u64(),
                    Some(entry),
                    "entry {entry} has another's words"
                );
            }
            "speed.changed" => {
                let before = items
                    .speed
                    .replace(body["value"].clone())
                    .unwrap_or(Json::Null);
                assert_eq!(
                    before, body["previous"],
                    "a value of {} is missing or told twice",
                    event.key.source
                );
            }
            "source.overrun" => {
                let (first, last) = (body["first"].as_u64(), body["last"].as_u64());
                for entry in first.expect("first")..=last.expect("last") {
                    assert!(items.overrun.insert(entry), "entry {entry} overrun twice");
                }
            }
            "source.baseline" => {
                let found = body["found"].as_u64();
                let place = match body["event_type"].as_str() {
                    Some("piece.good") => &mut items.counter_from,
                    Some("log.entry") => &mut items.entries_from,
                    _ => return,
                };
                assert!(
                    place.is_none(),
                    "a second baseline of {}: {body}",
                    event.key.source
                );
                *place = found;
            }
            "source.reset" | "source.gap" | "source.conflict" => {
                panic!(
                    "{} of {}, and its device did nothing of the kind: {body}",
                    event.event_type, event.key.source
                )
            }
            _ => {}
        }
    }

    /// Events behind a place, as the journal's reader gives them.
    pub(crate) fn scan(
        &self,
        after: Position,
        count: usize,
    ) -> (Vec<(Position, EventRecord)>, bool) {
        let mut found = Vec::new();
        let from = (after.no.0.saturating_sub(1) as usize).min(self.log.len());
        for block in &self.log[from..] {
            for (record, index) in block.records.iter().zip(0_u32..) {
                let position = Position {
                    no: block.no,
                    index,
                };
                if let Record::Event(event) = record
                    && position > after
                {
                    if found.len() >= count {
                        return (found, false);
                    }
                    found.push((position, event.clone()));
                }
            }
        }
        (found, true)
    }

    pub(crate) fn letters_of(&self, sink: &str) -> Vec<DeadLetter> {
        let own = self.letters.iter().filter(|((name, _), _)| name == sink);
        own.map(|(_, letter)| letter.clone()).collect()
    }

    pub(crate) fn key_set(&self) -> HashSet<&EventKey> {
        self.keys.keys().collect()
    }
}
