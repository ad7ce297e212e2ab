//! Owns: proofs about sources at the machine: what a device counted, presented or logged is told once.
//! May call: every file of this room.
//! Never: look into the core to find out what the device did.

use super::contract::{Presented, PresentedItem, RingReading};
use super::gateway::{Effect, Input, LinkChange};
use super::ids::ConnectionNo;
use super::record::EventRecord;
use super::scenarios::{Stage, holding, press};
use super::spec::{
    CounterSpec, DataPoint, DataType, EventClass, EventKind, EventSource, HandshakeSpec,
    MachineSpec, Numbering, Quality, RingSpec, Value,
};
use proptest::prelude::*;
use serde_json::Value as Json;
use std::collections::BTreeMap;

const ENTRIES: u32 = 8;
const NUMBERS: Numbering = Numbering {
    first: 1,
    last: u32::MAX,
};

fn source(event_type: &str, kind: EventKind) -> EventSource {
    EventSource {
        event_type: event_type.into(),
        class: EventClass::Business,
        kind,
    }
}

fn machine() -> MachineSpec {
    let mut spec = press("press-1");
    let data = |name: &str, offset| DataPoint {
        name: name.into(),
        at: holding(offset, DataType::U16),
        unit: None,
    };
    spec.events = vec![
        source(
            "piece.good",
            EventKind::Counter(CounterSpec {
                at: holding(200, DataType::U16),
                unit: Some("pieces".into()),
                wraps_after: 65_535,
                reset_to: 0,
                max_step: Some(50),
                poll_ms: 1_000,
            }),
        ),
        source(
            "unit.done",
            EventKind::Handshake(HandshakeSpec {
                ready: holding(20, DataType::Bool),
                ack: holding(21, DataType::Bool),
                item: holding(220, DataType::U32),
                numbering: NUMBERS,
                data: vec![data("good", 222)],
                poll_ms: 1_000,
            }),
        ),
        source(
            "log.entry",
            EventKind::Ring(RingSpec {
                head: holding(400, DataType::U32),
                base: holding(402, DataType::U16).address,
                entries: ENTRIES as u16,
                words: 3,
                numbering: NUMBERS,
                from_oldest: false,
                data: Vec::new(),
                poll_ms: 1_000,
            }),
        ),
    ];
    spec
}

/// A gateway whose machine is connected; its gate was passed.
fn stage() -> Stage {
    stage_of(machine())
}
fn stage_of(spec: MachineSpec) -> Stage {
    let mut stage = Stage::with(vec![spec]);
    stage.up(7);
    stage
}
/// The process dies and starts again, and connects.
fn restart(stage: &mut Stage) {
    stage.restart(true, true);
    stage.up(7);
}

fn of_type<'a>(stage: &'a Stage, kind: &'a str) -> impl Iterator<Item = &'a EventRecord> {
    stage
        .events
        .iter()
        .filter(move |event| event.event_type == kind)
}
fn body(event: &EventRecord) -> Json {
    serde_json::from_str(&event.body).unwrap()
}
fn total(stage: &Stage) -> i64 {
    of_type(stage, "piece.good").map(|event| event.qty).sum()
}
/// What the device and its readers do goes on in time.
fn tick(stage: &mut Stage) {
    stage.now.boottime_ns += 1_000_000_000;
    stage.now.wall_us += 1_000_000;
}
/// The input is decided upon, and the process dies before anything of it is durable.
fn decide_and_die(stage: &mut Stage, input: Input) {
    let now = stage.now;
    let _ = stage.core.handle(&now, input);
    restart(stage);
}

fn count(stage: &Stage, value: u64, since: bool) -> Input {
    let mut last = stage.now;
    last.boottime_ns -= 1_000_000_000;
    Input::Observed {
        machine: "press-1".into(),
        event_type: "piece.good".into(),
        value: Some(Value::Int(value.into())),
        quality: Quality::Good,
        reason: None,
        at: stage.now,
        since: since.then_some(last),
    }
}

// covers: EVT-03, EVT-06
#[test]
fn the_first_count_is_a_baseline_and_no_pieces_and_a_failed_read_is_nothing() {
    let mut stage = stage();
    let first = count(&stage, 4_000, false);
    stage.input(first);
    assert_eq!(
        (of_type(&stage, "source.baseline").count(), total(&stage)),
        (1, 0)
    );
    assert_eq!(of_type(&stage, "source.baseline").next().unwrap().qty, 0);
    tick(&mut stage);
    let commits = stage.commits;
    stage.input(Input::Observed {
        machine: "press-1".into(),
        event_type: "piece.good".into(),
        value: None,
        quality: Quality::Bad,
        reason: Some("timeout".into()),
        at: stage.now,
        since: None,
    });
    assert_eq!(stage.commits, commits);
    let more = count(&stage, 4_007, true);
    stage.input(more.clone());
    stage.input(more);
    assert_eq!(total(&stage), 7);
    let event = of_type(&stage, "piece.good").next().unwrap();
    let body = body(event);
    assert_eq!(
        (&body["from"], &body["to"], &body["over"]),
        (&4_000.into(), &4_007.into(), &"poll".into())
    );
    // What the counter is read from is another one now: no pieces are made out of the difference.
    let mut spec = machine();
    if let EventKind::Counter(counter) = &mut spec.events[0].kind {
        counter.at = holding(210, DataType::U16);
    }
    stage.specs = vec![spec.into()];
    restart(&mut stage);
    let other = count(&stage, 4_050, false);
    stage.input(other);
    assert_eq!(
        (of_type(&stage, "source.baseline").count(), total(&stage)),
        (2, 7)
    );
}

// covers: B11, EVT-03
#[test]
fn a_copy_of_the_journal_claims_nothing_that_may_have_been_told_and_says_so() {
    let mut stage = stage();
    for value in [100, 110] {
        tick(&mut stage);
        let input = count(&stage, value, true);
        stage.input(input);
    }
    let old_copy = stage.sources.clone();
    tick(&mut stage);
    let told = count(&stage, 125, true);
    stage.input(told);
    assert_eq!(total(&stage), 25);
    // The copy is put back; the process dies once more before the device is read.
    stage.sources = old_copy;
    stage.new_incarnation = true;
    restart(&mut stage);
    stage.new_incarnation = false;
    restart(&mut stage);
    tick(&mut stage);
    let found = count(&stage, 130, false);
    stage.input(found);
    assert_eq!(total(&stage), 25, "no piece is told twice");
    let remark = body(of_type(&stage, "source.baseline").last().unwrap());
    assert_eq!(
        (&remark["last"], &remark["found"]),
        (&110.into(), &130.into())
    );
    tick(&mut stage);
    let more = count(&stage, 133, true);
    stage.input(more);
    assert_eq!(total(&stage), 28);
}

// covers: B11, EVT-03
#[test]
fn items_that_a_copy_does_not_know_are_not_said_to_be_lost() {
    let mut stage = stage();
    let item = |stage: &mut Stage, ack, number, good| {
        let input = presented(stage, true, ack, number, good);
        acknowledged(&stage.input(input))
    };
    assert_eq!(item(&mut stage, false, 7, 1), [Some(7)]);
    stage.new_incarnation = true;
    restart(&mut stage);
    stage.new_incarnation = false;
    assert_eq!(item(&mut stage, false, 7, 1), [Some(7)]);
    assert_eq!(of_type(&stage, "unit.done").count(), 1, "told before");
    assert_eq!(item(&mut stage, false, 10, 2), [Some(10)]);
    assert_eq!(item(&mut stage, false, 12, 3), [Some(12)]);
    let gaps: Vec<Json> = of_type(&stage, "source.gap").map(body).collect();
    assert_eq!(gaps.len(), 2);
    let why = gaps[0]["why"].as_str().unwrap_or_default();
    assert!(why.contains("may have been told"), "{}", gaps[0]);
    assert_eq!(
        (&gaps[1]["first"], &gaps[1]["why"]),
        (&11.into(), &Json::Null)
    );
}

// covers: EVT-03
#[test]
fn a_reset_is_an_event_that_counts_only_what_came_after_it() {
    let mut stage = stage();
    for (value, pieces) in [
        (20_000, 0),
        (20_010, 10),
        (12, 22),
        (30_000, 22),
        (30_001, 23),
    ] {
        tick(&mut stage);
        let input = count(&stage, value, true);
        stage.input(input);
        assert_eq!(total(&stage), pieces, "at {value}");
    }
    let resets: Vec<Json> = of_type(&stage, "source.reset").map(body).collect();
    assert_eq!(resets.len(), 2);
    assert_eq!(
        (&resets[0]["from"], &resets[0]["to"], &resets[0]["counted"]),
        (&20_010.into(), &12.into(), &12.into())
    );
    // Nobody made 29 988 pieces in a second: it was set, and no quantity is made up.
    assert_eq!(
        (&resets[1]["to"], &resets[1]["counted"]),
        (&30_000.into(), &Json::Null)
    );
}

// covers: FWD-04, EVT-03
#[test]
fn at_a_full_journal_nothing_is_taken_from_the_device_and_nothing_is_lost_by_it() {
    let mut stage = stage();
    let baseline = count(&stage, 100, false);
    stage.input(baseline);
    stage.input(head(1, &stage));
    stage.input(Input::Capacity(Some("no room".into())));
    let events = stage.events.len();
    for value in [110, 120, 130] {
        tick(&mut stage);
        let input = count(&stage, value, true);
        stage.input(input);
    }
    let item = presented(&stage, true, false, 1, 5);
    assert!(stage.input(item.clone()).is_empty(), "no acknowledgement");
    stage.input(head(3, &stage));
    assert!(
        stage
            .effects
            .iter()
            .all(|effect| !matches!(effect, Effect::ReadRing { .. }))
    );
    assert_eq!(stage.events.len(), events);
    let alarms: Vec<&str> = stage
        .core
        .alarms()
        .map(|alarm| alarm.code.as_str())
        .collect();
    assert_eq!(alarms, ["events_not_taken", "journal_full"]);
    stage.input(Input::Capacity(None));
    assert_eq!(total(&stage), 30);
    let pieces = body(of_type(&stage, "piece.good").next().unwrap());
    assert_eq!(pieces["over"], "journal_full");
    assert_eq!(stage.core.alarms().count(), 0);
    assert_eq!(acknowledged(&stage.input(item)), [Some(1)]);
    stage.input(head(3, &stage));
    assert!(matches!(
        stage.effects.last(),
        Some(Effect::ReadRing {
            first: 2,
            count: 2,
            ..
        })
    ));
}

// covers: OPS-04, AGT-01
#[test]
fn nothing_is_acknowledged_where_nothing_may_be_written() {
    for (read_only, owner) in [(true, "gw"), (false, "another")] {
        let mut spec = machine();
        spec.read_only = read_only;
        spec.owner = owner.into();
        let mut stage = stage_of(spec);
        let item = presented(&stage, true, false, 1, 5);
        assert!(stage.input(item).is_empty());
        let stale = presented(&stage, false, true, 1, 5);
        assert!(stage.input(stale).is_empty());
        assert_eq!(of_type(&stage, "unit.done").count(), 0);
    }
}

// covers: EVT-03, EVT-06, F039, F063
#[test]
fn a_watched_value_that_cannot_be_read_is_no_value_with_its_reason_and_comes_back_as_what_it_is() {
    let mut stage = Stage::new();
    let seen = |stage: &mut Stage, value: Option<i128>, quality, reason: Option<&str>| {
        stage.input(Input::Observed {
            machine: "press-1".into(),
            event_type: "speed.changed".into(),
            value: value.map(Value::Int),
            quality,
            reason: reason.map(str::to_owned),
            at: stage.now,
            since: None,
        });
        let events: Vec<_> = of_type(stage, "speed.changed").collect();
        let last = events
            .last()
            .map(|event| (event.quality, body(event)))
            .unwrap();
        (events.len(), last.0, last.1)
    };
    seen(&mut stage, Some(50), Quality::Good, None);
    let (count, quality, bad) = seen(&mut stage, None, Quality::Bad, Some("exception 04"));
    assert_eq!((count, quality), (2, Quality::Bad));
    assert_eq!(
        (&bad["value"], &bad["reason"]),
        (&Json::Null, &"exception 04".into())
    );
    let (count, _, back) = seen(&mut stage, Some(50), Quality::Good, None);
    assert_eq!(
        (count, &back["value"], &back["previous"]),
        (3, &50.into(), &Json::Null)
    );
    // The same value, now in doubt, is another statement; said once.
    assert_eq!(
        seen(&mut stage, Some(50), Quality::Uncertain, Some("torn")).0,
        4
    );
    assert_eq!(
        seen(&mut stage, Some(51), Quality::Uncertain, Some("torn")).0,
        4,
        "inside the deadband"
    );
    assert_eq!(
        seen(&mut stage, Some(50), Quality::Good, None).1,
        Quality::Good
    );
}

fn presented(stage: &Stage, ready: bool, ack: bool, number: u32, good: u16) -> Input {
    let item = ready.then(|| PresentedItem {
        number,
        words: vec![vec![good]],
    });
    Input::Presented {
        machine: "press-1".into(),
        event_type: "unit.done".into(),
        seen: Presented { ready, ack, item },
        at: stage.now,
    }
}

fn acknowledged(effects: &[Effect]) -> Vec<Option<u32>> {
    let of = |effect: &Effect| match effect {
        Effect::Acknowledge { item, .. } => Some(*item),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

// covers: EVT-04, EVT-03
#[test]
fn an_item_is_acknowledged_when_it_is_durable_and_again_as_often_as_it_takes() {
    let mut stage = stage();
    let item = |stage: &mut Stage, ack, number, good| {
        let input = presented(stage, true, ack, number, good);
        acknowledged(&stage.input(input))
    };
    // An acknowledgement that stands from before anybody knows is taken back first.
    assert_eq!(item(&mut stage, true, 7, 1), [None]);
    assert_eq!(item(&mut stage, false, 7, 1), [Some(7)]);
    assert_eq!(
        item(&mut stage, false, 7, 1),
        [Some(7)],
        "it was lost on the way"
    );
    assert_eq!(item(&mut stage, true, 7, 1), [], "the device has it");
    let gone = presented(&stage, false, true, 7, 1);
    assert_eq!(acknowledged(&stage.input(gone)), [None]);
    restart(&mut stage);
    assert_eq!(item(&mut stage, false, 7, 1), [Some(7)]);
    assert_eq!(of_type(&stage, "unit.done").count(), 1);
    // The same number with other data: the item stands as it was told, the difference is kept.
    assert_eq!(item(&mut stage, false, 7, 2), [Some(7)]);
    assert_eq!(of_type(&stage, "unit.done").count(), 1);
    assert_eq!(
        body(of_type(&stage, "source.conflict").next().unwrap())["data"]["good"]["value"],
        2
    );
    // 8 and 9 were lost at the device; then it begins anew; and 0 is no number.
    assert_eq!(item(&mut stage, false, 10, 3), [Some(10)]);
    let gap = body(of_type(&stage, "source.gap").next().unwrap());
    assert_eq!(
        (&gap["first"], &gap["last"], &gap["missing"]),
        (&8.into(), &9.into(), &2.into())
    );
    assert_eq!(item(&mut stage, false, 1, 4), [Some(1)]);
    assert_eq!(
        body(of_type(&stage, "source.reset").next().unwrap())["last"],
        10
    );
    assert_eq!(item(&mut stage, false, 0, 4), []);
    assert!(
        stage
            .core
            .alarms()
            .any(|alarm| alarm.code == "source_unclear" && alarm.text.contains("item 0"))
    );
    assert_eq!(item(&mut stage, false, 2, 4), [Some(2)]);
    assert_eq!(stage.core.alarms().count(), 0);
    let items: Vec<u64> = of_type(&stage, "unit.done")
        .map(|e| body(e)["item"].as_u64().unwrap())
        .collect();
    assert_eq!(items, [7, 10, 1, 2]);
}

// covers: POL-06, EVT-04
#[test]
fn a_device_is_told_nothing_before_its_gate_was_passed_over_this_very_connection() {
    let mut stage = stage();
    stage.input(head(0, &stage));
    let asked = |stage: &mut Stage| {
        let item = presented(stage, true, false, 7, 1);
        let mut effects = stage.input(item);
        effects.extend(stage.input(head(3, stage)));
        let of = |effect: &Effect| match effect {
            Effect::Acknowledge { connection, .. } | Effect::ReadRing { connection, .. } => {
                Some(*connection)
            }
            _ => None,
        };
        effects.iter().filter_map(of).collect::<Vec<_>>()
    };
    stage.down();
    assert_eq!(asked(&mut stage), []);
    stage.connect();
    assert_eq!(asked(&mut stage), []);
    assert_eq!(
        of_type(&stage, "unit.done").count(),
        1,
        "and yet it is told"
    );
    stage.gate(4711, 7, true);
    let now = ConnectionNo(stage.connections);
    assert_eq!(asked(&mut stage), [now, now]);
}

// covers: CFG-03
#[test]
fn what_was_unclear_about_a_source_goes_with_the_file_that_said_so() {
    let mut stage = stage();
    let nameless = presented(&stage, true, false, 0, 5);
    stage.input(nameless.clone());
    assert_eq!(stage.core.alarms().count(), 1);
    let mut spec = machine();
    if let EventKind::Handshake(handshake) = &mut spec.events[1].kind {
        handshake.numbering.first = 0;
    }
    stage.input(Input::Reconfigured {
        machines: vec![spec.into()],
        settings: Box::new(super::scenarios::settings()),
        actor: super::scenarios::person(0),
    });
    assert_eq!(stage.core.alarms().count(), 0);
    assert_eq!(acknowledged(&stage.input(nameless)), [Some(0)]);
}

fn head(number: u32, stage: &Stage) -> Input {
    Input::RingHead {
        machine: "press-1".into(),
        event_type: "log.entry".into(),
        head: number,
        at: stage.now,
    }
}

/// A ring as the device keeps it.
#[derive(Default)]
struct Ring {
    slots: BTreeMap<u32, Vec<u16>>,
    head: u32,
}

fn entry(number: u32) -> Vec<u16> {
    vec![
        (number >> 16) as u16,
        number as u16,
        number.wrapping_mul(7) as u16,
    ]
}

impl Ring {
    fn write(&mut self, entries: u32) {
        for _ in 0..entries {
            self.head += 1;
            self.slots.insert(self.head % ENTRIES, entry(self.head));
        }
    }
    fn slot(&self, number: u32) -> Vec<u16> {
        self.slots
            .get(&(number % ENTRIES))
            .cloned()
            .unwrap_or(vec![0; 3])
    }
}

fn ring_read(stage: &Stage, first: u32, entries: Vec<Vec<u16>>, head: u32) -> Input {
    Input::RingRead {
        machine: "press-1".into(),
        event_type: "log.entry".into(),
        reading: Ok(RingReading {
            at: stage.now,
            first,
            entries,
            head,
        }),
    }
}

/// Numbers told as entries or as lost, in the order of the events.
fn told(stage: &Stage) -> Vec<u64> {
    let mut told = Vec::new();
    for event in &stage.events {
        let body = body(event);
        match event.event_type.as_str() {
            "log.entry" => {
                let number = body["entry"].as_u64().unwrap();
                assert_eq!(body["words"], serde_json::json!([entry(number as u32)[2]]));
                told.push(number);
            }
            "source.overrun" => {
                told.extend(body["first"].as_u64().unwrap()..=body["last"].as_u64().unwrap());
            }
            _ => {}
        }
    }
    told
}

// covers: EVT-03, EVT-04
#[test]
fn an_entry_that_was_overwritten_while_it_was_read_is_lost_and_not_told() {
    let mut stage = stage();
    stage.input(head(0, &stage));
    let mut ring = Ring::default();
    ring.write(3);
    stage.input(head(3, &stage));
    let entries: Vec<_> = (1..=3).map(|n| ring.slot(n)).collect();
    // Nine more are written before the head is read again: slots 1 to 3 were being overwritten.
    stage.input(ring_read(&stage, 1, entries, 12));
    assert_eq!(told(&stage), [1, 2, 3]);
    assert_eq!(of_type(&stage, "log.entry").count(), 0);
    // A slot that does not carry its number yet is looked at again, and given up at last.
    ring.write(9);
    let half = |ring: &Ring| {
        let mut entries: Vec<_> = (5..=8).map(|n| ring.slot(n)).collect();
        entries[1] = entry(0);
        entries
    };
    stage.input(head(12, &stage));
    stage.input(ring_read(&stage, 5, half(&ring), 12));
    assert_eq!(told(&stage), [1, 2, 3, 4, 5]);
    assert!(
        stage
            .core
            .alarms()
            .any(|alarm| alarm.code == "source_unclear")
    );
    for _ in 0..2 {
        stage.input(head(12, &stage));
        let again: Vec<_> = half(&ring).split_off(1);
        stage.input(ring_read(&stage, 6, again, 12));
    }
    assert_eq!(told(&stage), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(stage.core.alarms().count(), 0);
    let rest: Vec<_> = (9..=12).map(|n| ring.slot(n)).collect();
    stage.input(ring_read(&stage, 9, rest, 12));
    assert_eq!(told(&stage), (1..=12).collect::<Vec<_>>());
    // A PLC that starts shows an empty ring once, and then what it had: nothing happened.
    for number in [0, 12] {
        let seen = stage.effects.len();
        stage.input(head(number, &stage));
        assert_eq!(stage.effects.len(), seen, "nothing is asked for");
    }
    assert_eq!(of_type(&stage, "source.reset").count(), 0);
    // It begins anew: numbers from the first on are entries, not a gap of billions.
    stage.input(head(2, &stage));
    assert_eq!(of_type(&stage, "source.reset").count(), 1);
    assert!(matches!(
        stage.effects.last(),
        Some(Effect::ReadRing {
            first: 1,
            count: 2,
            ..
        })
    ));
}

#[derive(Clone, Debug)]
enum Step {
    Make(u64),
    Poll,
    Repeat,
    DieUnwritten,
    Restart,
    Reset,
    Full(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..=50).prop_map(Step::Make),
        1 => Just(Step::Poll),
        1 => Just(Step::Repeat),
        1 => Just(Step::DieUnwritten),
        1 => Just(Step::Restart),
        1 => Just(Step::Reset),
        1 => any::<bool>().prop_map(Step::Full),
    ]
}

proptest! {
    // covers: EVT-03, EVT-04, FWD-04
    #[test]
    fn whatever_happens_the_quantities_add_up_to_the_pieces_made(
        start in 0_u64..=65_535, steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut stage = stage();
        let (mut shown, mut made, mut over, mut full) = (start, 0_u64, false, false);
        let baseline = count(&stage, shown, false);
        stage.input(baseline);
        for step in steps.into_iter().chain([Step::Full(false), Step::Make(1)]) {
            tick(&mut stage);
            match step {
                Step::Make(pieces) => {
                    shown = (shown + pieces) % 65_536;
                    made += pieces;
                }
                Step::Poll | Step::Repeat => {}
                Step::DieUnwritten => {
                    let input = count(&stage, shown, false);
                    decide_and_die(&mut stage, input);
                    (over, full) = (false, false);
                }
                Step::Restart => {
                    restart(&mut stage);
                    (over, full) = (false, false);
                }
                // At a moment when all was read, and where it cannot be taken for a wrap.
                Step::Reset if !full && shown < 40_000 => shown = 0,
                Step::Reset => {}
                Step::Full(now) => {
                    full = now;
                    stage.input(Input::Capacity(now.then(|| "no room".into())));
                }
            }
            let input = count(&stage, shown, over);
            stage.input(input.clone());
            stage.input(input);
            over = true;
        }
        prop_assert_eq!(total(&stage), i64::try_from(made).unwrap());
        prop_assert!(stage.events.iter().all(|event| event.qty >= 0));
    }

    // covers: EVT-03, EVT-04
    #[test]
    fn whatever_happens_each_item_of_a_handshake_is_one_event(choices in proptest::collection::vec(0_u8..12, 1..300)) {
        let mut stage = stage();
        let (mut ready, mut ack, mut number, mut presented_items) = (false, false, 0_u32, Vec::new());
        let mut asked: Option<Option<u32>> = None;
        for choice in choices.into_iter().chain(std::iter::repeat_n([0, 1, 2], 4).flatten()) {
            match choice {
                // The device's scan.
                0 | 3 | 4 => {
                    if ready && ack {
                        ready = false;
                    } else if !ready && !ack {
                        number += 1;
                        ready = true;
                        presented_items.push(number);
                    }
                }
                // A look, and what the core wants.
                1 | 5 | 6 => {
                    if ready || ack {
                        let input = presented(&stage, ready, ack, number, number as u16);
                        let wanted = acknowledged(&stage.input(input));
                        asked = wanted.last().copied().or(asked);
                    }
                }
                // It is written: only while the very item is presented.
                2 | 7 | 8 => match asked.take() {
                    Some(Some(item)) if ready && number == item => {
                        ack = true;
                        let told = of_type(&stage, "unit.done").count();
                        prop_assert_eq!(told, presented_items.len(), "acknowledged before it was durable");
                    }
                    Some(None) => ack = false,
                    _ => {}
                },
                // It is lost.
                9 => asked = None,
                10 => {
                    let input = presented(&stage, ready, ack, number, number as u16);
                    decide_and_die(&mut stage, input);
                    asked = None;
                }
                _ => {
                    restart(&mut stage);
                    asked = None;
                }
            }
        }
        let input = presented(&stage, ready, ack, number, number as u16);
        if ready {
            stage.input(input);
        }
        let told: Vec<u64> = of_type(&stage, "unit.done").map(|e| body(e)["item"].as_u64().unwrap()).collect();
        // One that is presented while an acknowledgement still has to go down is told after that.
        let made: Vec<u64> = presented_items.iter().map(|n| u64::from(*n)).collect();
        prop_assert!(told == made || (ack && told[..] == made[..made.len() - 1]), "{:?} {:?}", told, made);
        prop_assert_eq!(of_type(&stage, "source.gap").count(), 0);
    }

    // covers: EVT-03, EVT-04
    #[test]
    fn whatever_happens_each_entry_of_a_ring_is_told_once_or_named_as_lost(
        steps in proptest::collection::vec((0_u8..7, 0_u32..6, 0_u32..6), 1..120),
    ) {
        let mut stage = stage();
        stage.input(head(0, &stage));
        let mut ring = Ring::default();
        let mut asked: Option<(u32, u16)> = None;
        let read = |stage: &mut Stage, ring: &mut Ring, (first, count): (u32, u16), meanwhile: u32, die: bool| {
            let entries: Vec<_> = (first..first + u32::from(count)).map(|n| ring.slot(n)).collect();
            ring.write(meanwhile);
            let input = ring_read(stage, first, entries, ring.head);
            if die {
                decide_and_die(stage, input);
                return Vec::new();
            }
            stage.input(input)
        };
        let wanted = |effects: Vec<Effect>| effects.into_iter().find_map(|effect| match effect {
            Effect::ReadRing { first, count, .. } => Some((first, count)),
            _ => None,
        });
        for (choice, some, more) in steps {
            match choice {
                0 | 1 => ring.write(some * more),
                2 => {
                    let input = head(ring.head, &stage);
                    asked = wanted(stage.input(input)).or(asked);
                }
                3 | 4 => if let Some(request) = asked.take() {
                    asked = wanted(read(&mut stage, &mut ring, request, some, false));
                },
                5 => if let Some(request) = asked.take() {
                    read(&mut stage, &mut ring, request, some, true);
                },
                _ => {
                    asked = None;
                    let change = LinkChange::Down { reason: "cable".into() };
                    stage.input(Input::Link { machine: "press-1".into(), change });
                    stage.up(7);
                }
            }
        }
        stage.input(Input::Link { machine: "press-1".into(), change: LinkChange::Connecting });
        stage.up(7);
        let mut request = wanted(stage.input(head(ring.head, &stage)));
        while let Some(some) = request {
            request = wanted(read(&mut stage, &mut ring, some, 0, false));
        }
        prop_assert_eq!(told(&stage), (1..=u64::from(ring.head)).collect::<Vec<_>>());
    }
}
