//! Owns: what a source at a machine becomes: its events and how far it is taken, in one block (EVT-03, EVT-04).
//! May call: every file of this room.
//! Never: acknowledge, or move on at the device, what is not durable; take a read error for a zero.

use super::contract::{Presented, PresentedItem, RingReading};
use super::event::rfc3339;
use super::gateway::{Effect, Gateway};
use super::ids::ConnectionNo;
use super::machine::Machine;
use super::numbering::{Follows, Growth, growth};
use super::record::{Record, SourceRecord, SourceState};
use super::spec::{
    CounterSpec, DataPoint, DataType, EventClass, EventKind, EventSource, HandshakeSpec,
    MachineSpec, Quality, RingSpec, Scalar, Value, WordOrder,
};
use super::time::{NS_PER_MS, Stamp, elapsed_ns};
use super::turn::{Turn, bounded};
use super::upkeep::{Observation, json_value};
use super::values;
use crate::seeded::{self, Fault};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Most entries of a ring that are asked for at once.
pub(super) const RING_ENTRIES_MAX: u64 = 16;
/// How often an entry may carry another number than its place says before it is given up.
const MISREAD_TRIES_MAX: u32 = 3;
/// The greatest whole number that every reader of JSON keeps exact.
const JSON_INTEGER_MAX: u64 = 1 << 53;

/// Names a source: machine and event type.
pub(super) type SourceKey = (String, String);

/// What is known of a source while this process runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Its ring is being read.
    asked: bool,
    /// The entry that stood out of its place, and how often.
    misread: Option<(u32, u32)>,
    /// What about its readings fits no rule.
    unclear: Option<String>,
    /// Something of it could not be taken for want of room.
    waited: bool,
    /// Its ring was read empty behind entries that were taken.
    emptied: bool,
}

/// What one reading of a counter said.
#[derive(Clone, Copy, Debug)]
struct Counted {
    value: u64,
    at: Stamp,
    since: Option<Stamp>,
}

/// Why what lies between the last that is known and what is found may be in the books already.
const COPY: &str = "the journal is a copy, or lost its end";

/// Whose source, and what it is.
struct Taken<'a> {
    spec: &'a MachineSpec,
    source: &'a EventSource,
    at: Stamp,
}

impl Taken<'_> {
    fn key(&self) -> SourceKey {
        (self.spec.name.clone(), self.source.event_type.clone())
    }
}

impl Gateway {
    /// The machine and the index of its source; `None` where nothing may be taken.
    fn open_connection(&self, name: &str) -> Option<ConnectionNo> {
        self.machines.get(name).and_then(Machine::open_connection)
    }

    fn source_of(&self, name: &str, event_type: &str) -> Option<(Arc<MachineSpec>, usize)> {
        if self.is_recovery() {
            return None;
        }
        let spec = Arc::clone(&self.machines.get(name).filter(|m| m.configured)?.spec);
        let index = spec
            .events
            .iter()
            .position(|source| source.event_type == event_type)?;
        Some((spec, index))
    }

    /// How far it is taken; another place is another source.
    fn progress(&self, taken: &Taken<'_>) -> Option<(SourceState, Stamp)> {
        let record = self.sources.get(&taken.key())?;
        (record.place == place_of(&taken.source.kind)).then(|| (record.state.clone(), record.at))
    }

    fn set_progress(&mut self, turn: &mut Turn, taken: &Taken<'_>, state: SourceState) {
        let record = SourceRecord {
            machine: taken.spec.name.clone(),
            event_type: taken.source.event_type.clone(),
            place: place_of(&taken.source.kind),
            at: taken.at,
            state,
        };
        if !seeded::is_on(Fault::BaselineNotDurable) {
            turn.keep(Record::Source(record.clone()));
        }
        self.sources.insert(taken.key(), record);
        if let Some(memory) = self.source_memory.get_mut(&taken.key()) {
            memory.waited = false;
        }
    }

    fn event(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        body: Json,
        quality: Quality,
        qty: u64,
    ) {
        let (name, kind) = (&taken.spec.name, &taken.source.event_type);
        let qty = i64::try_from(qty).unwrap_or(i64::MAX);
        self.emit_full(
            turn,
            name,
            kind,
            body,
            taken.source.class,
            quality,
            taken.at,
            qty,
        );
    }

    /// Something about the source itself: it counts nothing.
    fn remark(&mut self, turn: &mut Turn, taken: &Taken<'_>, what: &str, mut body: Json) {
        body["event_type"] = taken.source.event_type.as_str().into();
        body["source"] = taken.source.kind.name().into();
        let (name, class) = (&taken.spec.name, taken.source.class);
        self.emit_full(turn, name, what, body, class, Quality::Good, taken.at, 0);
    }

    /// Whether something may be taken now. If not, it stays with the device, and one alarm says so (FWD-04).
    pub(super) fn has_room(&mut self, turn: &mut Turn, name: &str, source: &EventSource) -> bool {
        if self.capacity_full.is_none() {
            return true;
        }
        let key = (name.to_owned(), source.event_type.clone());
        self.source_memory.entry(key).or_default().waited = true;
        if source.class == EventClass::Business {
            let text = format!(
                "events of {name} are not taken while the journal has no room; the device keeps what it can"
            );
            self.set_alarm(turn, "events_not_taken", name, Some(text));
        }
        false
    }

    /// What was read of a source fits no rule: it is not taken, and an alarm says why.
    fn set_unclear(&mut self, turn: &mut Turn, taken: &Taken<'_>, why: Option<String>) {
        let memory = self.source_memory.entry(taken.key()).or_default();
        if memory.unclear == why {
            return;
        }
        memory.unclear = why;
        let name = &taken.spec.name;
        let all: Vec<String> = self
            .source_memory
            .iter()
            .filter(|((machine, _), _)| machine == name)
            .filter_map(|((_, kind), memory)| Some(format!("{kind}: {}", memory.unclear.as_ref()?)))
            .collect();
        let text = (!all.is_empty()).then(|| bounded(&all.join("; ")));
        self.set_alarm(turn, "source_unclear", name, text);
    }

    /// Other sources may stand in the files now: what was unclear about the old ones shows again, or is mended.
    pub(super) fn forget_sources(&mut self, turn: &mut Turn) {
        // What had to wait for room still did: its next difference covers all of it.
        self.source_memory.retain(|_, memory| memory.waited);
        for memory in self.source_memory.values_mut() {
            *memory = Memory {
                waited: true,
                ..Memory::default()
            };
        }
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            self.set_alarm(turn, "source_unclear", &name, None);
            if self.capacity_full.is_none() {
                self.set_alarm(turn, "events_not_taken", &name, None);
            }
        }
    }

    /// The link is gone: what was asked of it is asked again.
    pub(super) fn forget_asked(&mut self, name: &str) {
        for ((machine, _), memory) in &mut self.source_memory {
            if machine == name {
                memory.asked = false;
            }
        }
    }
}

/// `counter`.
impl Gateway {
    /// This journal does not know all that was told. What the device counted since is claimed by nobody: told again it
    /// would count twice in the books, and one remark names both counts (B11).
    pub(super) fn doubt_counts(&mut self, turn: &mut Turn) {
        for record in self.sources.values_mut() {
            record.state = match record.state {
                SourceState::Counter(last) => SourceState::CounterOfCopy(last),
                SourceState::Handshake { item, sha256 } => {
                    SourceState::HandshakeOfCopy { item, sha256 }
                }
                _ => continue,
            };
            turn.keep(Record::Source(record.clone()));
        }
    }

    /// A count was read. What could not be read says nothing about it.
    pub(super) fn counted(
        &mut self,
        turn: &mut Turn,
        name: &str,
        event_type: &str,
        read: Observation,
    ) {
        let Some(value) = read
            .value
            .as_ref()
            .filter(|_| read.quality == Quality::Good)
        else {
            return;
        };
        let Some(value) = count_of(value) else {
            return;
        };
        let seen = Counted {
            value,
            at: read.at,
            since: read.since,
        };
        let Some((spec, index)) = self.source_of(name, event_type) else {
            return;
        };
        let source = &spec.events[index];
        let EventKind::Counter(counter) = &source.kind else {
            return;
        };
        let taken = Taken {
            spec: &spec,
            source,
            at: seen.at,
        };
        if seen.value > counter.wraps_after {
            let why = format!(
                "it reads {}, above wraps_after = {}; correct the machine's file",
                seen.value, counter.wraps_after
            );
            self.set_unclear(turn, &taken, Some(why));
            return;
        }
        self.set_unclear(turn, &taken, None);
        let before = self.progress(&taken);
        if matches!(before, Some((SourceState::Counter(before), _)) if before == seen.value) {
            if let Some(machine) = self.machines.get_mut(name) {
                machine.unheard.remove(event_type);
            }
            return;
        }
        if !self.has_room(turn, name, source) {
            // The newest is looked at again once there is room.
            if let Some(machine) = self.machines.get_mut(name) {
                machine.unheard.insert(event_type.to_owned(), read);
            }
            return;
        }
        match before {
            Some((SourceState::Counter(before), at)) => {
                self.grown(turn, &taken, counter, (before, at), seen);
            }
            Some((SourceState::CounterOfCopy(last), at)) => self.remark(
                turn,
                &taken,
                "source.baseline",
                json!({
                    "found": whole(seen.value),
                    "unit": counter.unit,
                    "last": whole(last),
                    "since": rfc3339(at.wall_us),
                    "why": format!("{COPY}: what was counted since may have been told"),
                }),
            ),
            _ => self.remark(
                turn,
                &taken,
                "source.baseline",
                json!({ "found": whole(seen.value), "unit": counter.unit }),
            ),
        }
        self.set_progress(turn, &taken, SourceState::Counter(seen.value));
    }

    fn grown(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        counter: &CounterSpec,
        (before, at): (u64, Stamp),
        seen: Counted,
    ) {
        let waited = self
            .source_memory
            .get(&taken.key())
            .is_some_and(|memory| memory.waited);
        let over = match seen.since {
            _ if waited => "journal_full",
            Some(_) => "poll",
            None => "absence",
        };
        let since = seen.since.filter(|_| !waited).unwrap_or(at);
        let cycles = cycles(counter, &since, &seen.at);
        let mut body = json!({
            "from": whole(before),
            "to": whole(seen.value),
            "unit": counter.unit,
            "over": over,
            "since": rfc3339(since.wall_us),
        });
        match growth(counter, before, seen.value, cycles) {
            Growth::None => {}
            Growth::By { qty, wrapped } => {
                body["wrapped"] = wrapped.into();
                self.event(turn, taken, body, Quality::Good, qty);
            }
            Growth::Reset { since } => {
                let counted = since.map(whole);
                body["counted"] = counted.clone().into();
                self.remark(turn, taken, "source.reset", body.clone());
                if let Some(qty) = since.filter(|qty| *qty > 0) {
                    if let Some(body) = body.as_object_mut() {
                        body.remove("counted");
                    }
                    body["from"] = whole(counter.reset_to);
                    body["after_reset"] = true.into();
                    // What was counted between the last reading and the reset nobody knows.
                    self.event(turn, taken, body, Quality::Good, qty);
                }
            }
        }
    }
}

/// How many cycles can have gone by; `None`: nobody knows, as no clock reaches over.
fn cycles(counter: &CounterSpec, since: &Stamp, at: &Stamp) -> Option<u64> {
    let known = since.boot_id == at.boot_id || (since.wall_trusted && at.wall_trusted);
    known.then(|| {
        let cycle_ns = counter.poll_ms.saturating_mul(NS_PER_MS).max(1);
        // A reading that is late for its cycle holds some of the next.
        elapsed_ns(since, at) / cycle_ns + 2
    })
}

/// `handshake`.
impl Gateway {
    pub(super) fn presented(
        &mut self,
        turn: &mut Turn,
        name: &str,
        event_type: &str,
        seen: &Presented,
        at: Stamp,
    ) {
        let Some((spec, index)) = self.source_of(name, event_type) else {
            return;
        };
        let source = &spec.events[index];
        // Without the right to acknowledge, nothing is taken either (OPS-04, AGT-01).
        let may_write = !spec.read_only && spec.owner == self.settings.gateway;
        let EventKind::Handshake(handshake) = &source.kind else {
            return;
        };
        let taken = Taken {
            spec: &spec,
            source,
            at,
        };
        if !may_write {
            return;
        }
        // Before its gate was passed a machine is told nothing: the next look is another occasion.
        let connection = self.open_connection(name);
        let acknowledge = |turn: &mut Turn, item: Option<u32>| {
            turn.effects
                .extend(connection.map(|connection| Effect::Acknowledge {
                    machine: name.to_owned(),
                    connection,
                    event_type: event_type.to_owned(),
                    item,
                }));
        };
        let Some(item) = seen.item.as_ref().filter(|_| seen.ready) else {
            if seen.ack && !seen.ready {
                acknowledge(turn, None);
            }
            return;
        };
        let (before, of_copy) = match self.progress(&taken) {
            Some((SourceState::Handshake { item, sha256 }, _)) => (Some((item, sha256)), false),
            Some((SourceState::HandshakeOfCopy { item, sha256 }, _)) => {
                (Some((item, sha256)), true)
            }
            _ => (None, false),
        };
        let follows = before.map_or(Follows::Next, |(before, _)| {
            handshake.numbering.follows(before, item.number)
        });
        if follows == Follows::Outside || !handshake.numbering.holds(item.number) {
            let why = format!(
                "the device presents item {}, outside {} to {}, and it is not acknowledged; number items, or \
                 correct numbers_from and numbers_to",
                item.number, handshake.numbering.first, handshake.numbering.last
            );
            self.set_unclear(turn, &taken, Some(why));
            return;
        }
        self.set_unclear(turn, &taken, None);
        let known = before.is_some() && follows == Follows::Same;
        if seen.ack {
            // An acknowledgement never stands while something is presented that is not durable.
            if !known {
                acknowledge(turn, None);
            }
            return;
        }
        let sha256 = item_sha256(item);
        if !(known && before.is_some_and(|(_, known)| known == sha256)) {
            if !self.has_room(turn, name, source) {
                return;
            }
            self.take_item(
                turn,
                &taken,
                handshake,
                before.map(|(item, _)| (item, of_copy)),
                item,
                follows,
            );
            let state = SourceState::Handshake {
                item: item.number,
                sha256,
            };
            self.set_progress(turn, &taken, state);
        }
        acknowledge(turn, Some(item.number));
    }

    fn take_item(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        handshake: &HandshakeSpec,
        before: Option<(u32, bool)>,
        item: &PresentedItem,
        follows: Follows,
    ) {
        let numbering = handshake.numbering;
        let (data, quality) = data_json(handshake.data.iter(), &item.words);
        let body = json!({ "item": item.number, "data": data });
        match (before, follows) {
            (None, _) => {
                self.remark(
                    turn,
                    taken,
                    "source.baseline",
                    json!({ "found": item.number }),
                );
            }
            (Some(_), Follows::Same) => {
                // The same number means the same item; that its data differ is kept as evidence.
                self.remark(turn, taken, "source.conflict", body);
                return;
            }
            (Some((before, of_copy)), Follows::Jump { missing }) => {
                let mut gap = json!({
                    "first": numbering.ahead(before, 1),
                    "last": numbering.back(item.number, 1),
                    "missing": whole(missing),
                });
                if of_copy {
                    gap["why"] = format!("{COPY}: these items may have been told").into();
                }
                self.remark(turn, taken, "source.gap", gap);
            }
            (Some((before, _)), Follows::Reset) => {
                let reset = json!({ "last": before, "found": item.number });
                self.remark(turn, taken, "source.reset", reset);
            }
            (Some(_), Follows::Next | Follows::Outside) => {}
        }
        self.event(turn, taken, body, quality, 1);
    }
}

/// SHA-256 over the words of an item's data, each part preceded by its length.
fn item_sha256(item: &PresentedItem) -> [u8; 32] {
    let mut hash = Sha256::new();
    for words in &item.words {
        hash.update((words.len() as u64).to_be_bytes());
        for word in words {
            hash.update(word.to_be_bytes());
        }
    }
    hash.finalize().into()
}

/// Each value with its own quality; the worst of them is the event's (EVT-06, F063).
fn data_json<'a>(
    points: impl Iterator<Item = &'a DataPoint>,
    words: &[Vec<u16>],
) -> (Json, Quality) {
    let mut all = serde_json::Map::new();
    let mut worst = Quality::Good;
    for (point, words) in points.zip(words) {
        let entry = match values::decode(words, &point.at) {
            Ok(value) => {
                json!({ "value": json_value(&value), "unit": point.unit, "quality": "good" })
            }
            Err(why) => {
                worst = Quality::Uncertain;
                json!({ "value": null, "unit": point.unit, "quality": "bad", "reason": bounded(&why) })
            }
        };
        all.insert(point.name.clone(), entry);
    }
    (all.into(), worst)
}

/// `ring`.
impl Gateway {
    /// The number of the newest entry was read.
    pub(super) fn ring_head(
        &mut self,
        turn: &mut Turn,
        name: &str,
        event_type: &str,
        head: u32,
        at: Stamp,
    ) {
        let Some((spec, index)) = self.source_of(name, event_type) else {
            return;
        };
        let source = &spec.events[index];
        let EventKind::Ring(ring) = &source.kind else {
            return;
        };
        let taken = Taken {
            spec: &spec,
            source,
            at,
        };
        let empty = ring.numbering.first > 0 && head == ring.numbering.first - 1;
        if !empty && !ring.numbering.holds(head) {
            let why = format!(
                "its head reads {head}, outside {} to {}; correct numbers_from and numbers_to",
                ring.numbering.first, ring.numbering.last
            );
            self.set_unclear(turn, &taken, Some(why));
            return;
        }
        let asked = self.source_memory.entry(taken.key()).or_default().asked;
        let through = match self.progress(&taken) {
            Some((SourceState::Ring(through), _)) => Some(through),
            _ => None,
        };
        // A PLC that starts may show an empty ring for one reading: if the next is where it stood, nothing happened.
        let memory = self.source_memory.entry(taken.key()).or_default();
        let was_emptied = std::mem::replace(&mut memory.emptied, empty);
        if empty && !was_emptied && matches!(through, Some(Some(_))) {
            return;
        }
        let reset = match through {
            Some(Some(last)) => {
                (was_emptied && last != head)
                    || ring.numbering.follows(last, head) == Follows::Reset
            }
            _ => false,
        };
        let caught_up = match through {
            Some(Some(through)) => through == head,
            Some(None) => empty,
            None => false,
        };
        if asked || caught_up || !self.has_room(turn, name, source) {
            return;
        }
        match through {
            None => self.ring_begins(turn, &taken, ring, head, empty),
            Some(Some(last)) if reset => {
                self.remark(
                    turn,
                    &taken,
                    "source.reset",
                    json!({ "last": last, "found": head }),
                );
                self.set_progress(turn, &taken, SourceState::Ring(None));
            }
            Some(_) => {}
        }
        self.ask_ring(turn, &taken, ring, head, empty);
    }

    /// First contact: nothing that came before is claimed, unless the file says so.
    fn ring_begins(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        ring: &RingSpec,
        head: u32,
        empty: bool,
    ) {
        let through = if empty {
            None
        } else if ring.from_oldest {
            let oldest = oldest(ring, head);
            (oldest != ring.numbering.first).then(|| ring.numbering.back(oldest, 1))
        } else {
            Some(head)
        };
        let body = json!({ "found": head, "from_oldest": ring.from_oldest });
        self.remark(turn, taken, "source.baseline", body);
        self.set_progress(turn, taken, SourceState::Ring(through));
    }

    /// Asks for what is not taken yet, from the oldest that the ring still holds.
    fn ask_ring(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        ring: &RingSpec,
        head: u32,
        empty: bool,
    ) {
        let Some((SourceState::Ring(through), _)) = self.progress(taken) else {
            return;
        };
        if empty || through == Some(head) {
            return;
        }
        let Some(connection) = self.open_connection(&taken.spec.name) else {
            return;
        };
        let expected = expected(ring, through);
        let behind = ring.numbering.steps(expected, head);
        let first = if behind >= u64::from(ring.entries) {
            oldest(ring, head)
        } else {
            expected
        };
        let count = (ring.numbering.steps(first, head) + 1).min(RING_ENTRIES_MAX);
        self.source_memory.entry(taken.key()).or_default().asked = true;
        turn.effects.push(Effect::ReadRing {
            machine: taken.spec.name.clone(),
            connection,
            event_type: taken.source.event_type.clone(),
            first,
            count: u16::try_from(count).unwrap_or(1),
        });
    }

    /// Entries were read, and the head once more after them.
    pub(super) fn ring_read(
        &mut self,
        turn: &mut Turn,
        name: &str,
        event_type: &str,
        reading: Result<RingReading, String>,
    ) {
        let key = (name.to_owned(), event_type.to_owned());
        self.source_memory.entry(key).or_default().asked = false;
        let Some((spec, index)) = self.source_of(name, event_type) else {
            return;
        };
        // What failed is asked for again at the next look at the head.
        let (EventKind::Ring(ring), Ok(reading)) = (&spec.events[index].kind, reading) else {
            return;
        };
        let taken = Taken {
            spec: &spec,
            source: &spec.events[index],
            at: reading.at,
        };
        let Some((SourceState::Ring(through), _)) = self.progress(&taken) else {
            return;
        };
        let next = expected(ring, through);
        let last = ring.numbering.ahead(
            reading.first,
            (reading.entries.len() as u64).saturating_sub(1),
        );
        // The device began anew meanwhile, or this reading is of another time: the next head tells.
        let now = ring.numbering.follows(last, reading.head);
        if matches!(now, Follows::Reset | Follows::Outside)
            || through == Some(reading.head)
            || ring.numbering.steps(next, reading.first) > ring.numbering.steps(next, last)
            || ring.numbering.steps(next, last) > ring.numbering.steps(next, reading.head)
            || !self.has_room(turn, name, taken.source)
        {
            return;
        }
        if self.take_entries(turn, &taken, ring, next, &reading) {
            self.ask_ring(turn, &taken, ring, reading.head, false);
        }
    }

    /// Whether all that was read is settled, so that more may be asked for.
    fn take_entries(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        ring: &RingSpec,
        next: u32,
        reading: &RingReading,
    ) -> bool {
        let numbering = ring.numbering;
        let mut lost = numbering.steps(next, reading.first);
        let mut through = None;
        let mut settled = true;
        let mut unclear = None;
        for (index, words) in reading.entries.iter().enumerate() {
            let number = numbering.ahead(reading.first, index as u64);
            let found = entry_number(ring, words);
            let overwritten = numbering.steps(number, reading.head) >= u64::from(ring.entries);
            if found == Some(number) && !overwritten {
                self.overrun(turn, taken, ring, number, std::mem::take(&mut lost));
                self.take_entry(turn, taken, ring, number, words);
            } else if overwritten || self.given_up(taken, number) {
                lost += 1;
            } else {
                unclear = Some(format!(
                    "entry {number} carries {}; an entry's first two words are its number, in the head's word order",
                    found.map_or("no number".into(), |found| format!("the number {found}"))
                ));
                settled = false;
                break;
            }
            through = Some(number);
        }
        if let Some(number) = through {
            self.overrun(turn, taken, ring, numbering.ahead(number, 1), lost);
            self.set_progress(turn, taken, SourceState::Ring(Some(number)));
        }
        self.set_unclear(turn, taken, unclear);
        settled
    }

    /// An entry that does not carry its number may be in the making; after some tries it is lost.
    fn given_up(&mut self, taken: &Taken<'_>, number: u32) -> bool {
        let memory = self.source_memory.entry(taken.key()).or_default();
        let tries = match memory.misread {
            Some((known, tries)) if known == number => tries + 1,
            _ => 1,
        };
        memory.misread = (tries < MISREAD_TRIES_MAX).then_some((number, tries));
        tries >= MISREAD_TRIES_MAX
    }

    /// `lost` entries before `next` were never read.
    fn overrun(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        ring: &RingSpec,
        next: u32,
        lost: u64,
    ) {
        if lost > 0 {
            let body = json!({
                "first": ring.numbering.back(next, lost),
                "last": ring.numbering.back(next, 1),
                "missing": whole(lost),
            });
            self.remark(turn, taken, "source.overrun", body);
        }
    }

    fn take_entry(
        &mut self,
        turn: &mut Turn,
        taken: &Taken<'_>,
        ring: &RingSpec,
        number: u32,
        words: &[u16],
    ) {
        if ring.data.is_empty() {
            let words = words.get(2..).unwrap_or_default();
            let body = json!({ "entry": number, "words": words });
            self.event(turn, taken, body, Quality::Good, 1);
            return;
        }
        let parts: Vec<Vec<u16>> = ring
            .data
            .iter()
            .map(|(word, point)| entry_part(*word, &point.at, words))
            .collect();
        let (data, quality) = data_json(ring.data.iter().map(|(_, point)| point), &parts);
        let body = json!({ "entry": number, "data": data });
        self.event(turn, taken, body, quality, 1);
    }
}

/// The number that must come next.
fn expected(ring: &RingSpec, through: Option<u32>) -> u32 {
    through.map_or(ring.numbering.first, |through| {
        ring.numbering.ahead(through, 1)
    })
}

/// The oldest entry that a ring with this head holds.
fn oldest(ring: &RingSpec, head: u32) -> u32 {
    let behind =
        u64::from(head - ring.numbering.first).min(u64::from(ring.entries).saturating_sub(1));
    ring.numbering.back(head, behind)
}

fn entry_number(ring: &RingSpec, words: &[u16]) -> Option<u32> {
    let at = Scalar {
        data_type: DataType::U32,
        ..ring.head
    };
    let number = values::decode(words.get(..2)?, &at).ok()?.as_int()?;
    u32::try_from(number).ok()
}

/// The words of a value in an entry; too few if it goes past the entry.
fn entry_part(word: u16, at: &Scalar, words: &[u16]) -> Vec<u16> {
    let from = usize::from(word);
    let to = from + usize::from(at.data_type.registers());
    words.get(from..to).unwrap_or_default().to_vec()
}

/// A count as JSON: text where a number would not stay exact.
fn whole(number: u64) -> Json {
    if number <= JSON_INTEGER_MAX {
        number.into()
    } else {
        number.to_string().into()
    }
}

/// What a reading of a counter counts; `None`: it is no count.
fn count_of(value: &Value) -> Option<u64> {
    u64::try_from(value.as_int()?).ok()
}

/// Where a source is read, so that a changed file does not make events out of two unrelated numbers.
fn place_of(kind: &EventKind) -> String {
    let scalar = |at: &Scalar| {
        let order = match at.word_order {
            WordOrder::HighFirst => "",
            WordOrder::LowFirst => " low_first",
        };
        format!("{} {}{order}", at.address, at.data_type.name())
    };
    match kind {
        EventKind::OnChange { at, .. } => scalar(at),
        EventKind::Counter(counter) => scalar(&counter.at),
        EventKind::Handshake(handshake) => scalar(&handshake.item),
        EventKind::Ring(ring) => format!(
            "{}, {} of {} from {}",
            scalar(&ring.head),
            ring.entries,
            ring.words,
            ring.base
        ),
    }
}
