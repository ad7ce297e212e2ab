//! Owns: the proofs of the outbox: examples, and any order of answers, crashes and drops.
//! May call: the outbox and the types it uses.
//! Never: read a clock; time is a number here.

use super::lanes::*;
use super::tracks::*;
use super::*;
use crate::core::ids::{BootId, CommitNo, Epoch, EventKey, Sequence};
use crate::core::spec::{EventClass, Quality};
use crate::core::time::NS_PER_MS;
use proptest::prelude::*;
use std::collections::HashMap;

fn at(ms: u64) -> Now {
    Now {
        boot_id: BootId([1; 16]),
        boottime_ns: ms * NS_PER_MS,
        wall_us: 0,
        wall_trusted: false,
    }
}

fn place(n: u64) -> Position {
    // Commits hold other records too, so places are not dense.
    Position {
        no: CommitNo(n / 3 + 1),
        index: (n % 3) as u32 * 2,
    }
}

fn event(n: u64) -> (Position, EventRecord) {
    let record = EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(n),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 0,
        boottime_ns: 0,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: "{}".into(),
        unsynchronised: None,
    };
    (place(n), record)
}

fn log_of(range: std::ops::RangeInclusive<u64>) -> Vec<(Position, EventRecord)> {
    range.map(event).collect()
}

fn outbox(config: OutboxConfig) -> Outbox {
    let cursor = CursorRecord {
        sink: "mes".into(),
        ..CursorRecord::default()
    };
    Outbox::new(cursor, SinkRecord::default(), config, 1)
}

type Log = Vec<(Position, EventRecord)>;

fn head_of(log: &Log) -> CommitNo {
    log.last().map_or(CommitNo(0), |(position, _)| position.no)
}

/// What the shell does: reads what is wanted, as a journal would offer it.
fn feed(outbox: &mut Outbox, log: &Log) {
    let head = head_of(log);
    while let Some(want) = outbox.want(head) {
        let start = log.partition_point(|(position, _)| *position <= want.after);
        let end = log.len().min(start + want.events_max);
        let read_to = (end == log.len()).then_some(head);
        outbox.offer(&want, log[start..end].to_vec(), read_to);
    }
}

fn next(outbox: &mut Outbox, now: &Now, log: &Log) -> Option<Batch> {
    feed(outbox, log);
    outbox.next_batch(now)
}

fn positions(batch: &Batch) -> Vec<Position> {
    batch.events.iter().map(|(position, _)| *position).collect()
}

fn sequences(batch: &Batch) -> Vec<u64> {
    batch.events.iter().map(|e| e.1.key.sequence.0).collect()
}

fn accept(outbox: &mut Outbox, now: &Now, batch: Batch) {
    let verdicts = vec![Verdict::Accepted; batch.events.len()];
    outbox.answered(now, batch, verdicts);
}

fn conflict() -> Verdict {
    Verdict::Conflict {
        reason: "other quantity".into(),
        kept: Some("{\"qty\":2}".into()),
    }
}

fn malformed() -> Verdict {
    Verdict::Malformed {
        reason: "no qty".into(),
    }
}

/// An event of `source` whose fact was at `wall_s`.
fn event_of(n: u64, source: &str, wall_s: i64) -> (Position, EventRecord) {
    let (position, mut record) = event(n);
    record.key.source = source.into();
    record.wall_us = wall_s * 1_000_000;
    (position, record)
}

fn at_s(second: u64) -> Now {
    Now {
        wall_us: i64::try_from(second).unwrap() * 1_000_000,
        ..at(second * 1_000)
    }
}

// covers: FWD-02, FWD-03, FWD-05, F109
#[test]
fn a_batch_taken_in_part_is_settled_event_by_event() {
    let log = log_of(1..=10);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = next(&mut outbox, &at(0), &log).unwrap();
    assert_eq!(batch.events.len(), 10);
    // Six were stored, then the sink failed.
    outbox.answered(&at(1), batch, vec![Verdict::Accepted; 6]);
    assert_eq!(outbox.through(), place(6));
    let (cursor, _) = outbox.record();
    assert_eq!((cursor.accepted, cursor.retries), (6, 4));
    let retry_at = outbox.next_ns().unwrap();
    assert_eq!(next(&mut outbox, &at(1), &log), None);
    // On the resend it calls two of them duplicates: they are delivered.
    let later = at(retry_at.div_ceil(NS_PER_MS));
    let batch = next(&mut outbox, &later, &log).unwrap();
    assert_eq!(sequences(&batch), [7, 8, 9, 10]);
    let said = [Verdict::Duplicate, Verdict::Accepted];
    let said = [
        said[0].clone(),
        said[0].clone(),
        said[1].clone(),
        said[1].clone(),
    ];
    outbox.answered(&later, batch, said.into());
    assert_eq!(outbox.through(), place(10));
    assert_eq!(outbox.next_ns(), None);
    let (cursor, more) = outbox.record();
    assert!(more.ahead.is_empty());
    assert_eq!((cursor.accepted, cursor.duplicates), (8, 2));
    assert_eq!(outbox.attempts(), 14);
    assert_eq!(outbox.circuit(), Circuit::Ok);
}

// covers: FWD-02, F111
#[test]
fn what_a_sink_never_takes_becomes_a_dead_letter_and_holds_up_nobody() {
    let log = log_of(1..=4);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = next(&mut outbox, &at(0), &log).unwrap();
    let said = vec![
        Verdict::Accepted,
        conflict(),
        malformed(),
        Verdict::Accepted,
    ];
    let letters = outbox.answered(&at(1), batch, said);
    assert_eq!(outbox.through(), place(4));
    assert_eq!(outbox.next_ns(), None);
    let letters: Vec<_> = letters
        .iter()
        .map(|l| {
            (
                l.event.key.sequence.0,
                &*l.status,
                &*l.reason,
                l.kept.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        letters,
        [
            (2, "conflict", "other quantity", Some("{\"qty\":2}")),
            (3, "malformed", "no qty", None)
        ]
    );
    let (c, _) = outbox.record();
    assert_eq!(
        (
            c.accepted,
            c.duplicates,
            c.conflicts,
            c.malformed,
            c.retries
        ),
        (2, 0, 1, 1, 0)
    );
}

// covers: F103
#[test]
fn a_sink_that_answers_nothing_moves_nothing() {
    let log = log_of(1..=3);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = next(&mut outbox, &at(0), &log).unwrap();
    outbox.answered(&at(1), batch, Vec::new());
    assert_eq!(outbox.through(), Position::default());
    assert_eq!(outbox.record().0.retries, 3);
    assert!(outbox.next_ns().is_some());
}

// covers: F099
#[test]
fn after_a_clean_stop_nothing_is_sent_again() {
    let log = log_of(1..=3);
    let mut first = outbox(OutboxConfig::default());
    let batch = next(&mut first, &at(0), &log).unwrap();
    accept(&mut first, &at(1), batch);
    let (cursor, more) = first.record();
    let mut second = Outbox::new(cursor, more, OutboxConfig::default(), 1);
    assert_eq!(next(&mut second, &at(2), &log), None);
}

// covers: FWD-01, F119
#[test]
fn a_failing_sink_is_asked_ever_more_rarely_with_full_jitter_and_in_small() {
    let log = log_of(1..=50);
    let config = OutboxConfig {
        backoff_ms_min: 100,
        backoff_ms_max: 1_600,
        ..OutboxConfig::default()
    };
    let waits_of = |seed| {
        let mut outbox = Outbox::new(CursorRecord::default(), SinkRecord::default(), config, seed);
        let mut now_ns = 0;
        let mut waits = Vec::new();
        for try_no in 0..200 {
            let now = Now {
                boottime_ns: now_ns,
                ..at(0)
            };
            let batch = next(&mut outbox, &now, &log).unwrap();
            assert_eq!(
                batch.events.len(),
                if try_no < 2 { 50 } else { PROBE_EVENTS_MAX }
            );
            outbox.answered(&now, batch, Vec::new());
            let next_ns = outbox.next_ns().unwrap();
            let early = Now {
                boottime_ns: next_ns - 1,
                ..at(0)
            };
            assert_eq!(outbox.next_batch(&early), None);
            waits.push((next_ns - now_ns) / NS_PER_MS);
            now_ns = next_ns;
        }
        assert_eq!(outbox.circuit().name(), "retrying");
        // The first success ends it: whole batches, at once.
        let now = Now {
            boottime_ns: now_ns,
            ..at(0)
        };
        let batch = outbox.next_batch(&now).unwrap();
        accept(&mut outbox, &now, batch);
        assert_eq!(outbox.next_ns(), None);
        assert_eq!(outbox.next_batch(&now).unwrap().events.len(), 49);
        waits
    };
    let waits = waits_of(1);
    for (n, wait) in waits.iter().enumerate() {
        let bound = (100 << n.min(10)).min(1_600);
        assert!((1..=bound).contains(wait), "wait {n} is {wait} ms");
    }
    let late = &waits[4..];
    assert!(late.iter().any(|w| *w < 400) && late.iter().any(|w| *w > 1_200));
    assert_eq!(waits, waits_of(1));
    assert_ne!(waits, waits_of(2));
}

#[test]
fn a_wish_of_the_sink_is_honoured_within_bounds() {
    let log = log_of(1..=1);
    for (asked, at_least) in [(5_000, 5_000), (u64::MAX, BACKOFF_MS_MAX)] {
        let mut outbox = outbox(OutboxConfig::default());
        let batch = next(&mut outbox, &at(0), &log).unwrap();
        let said = vec![Verdict::Retry {
            reason: "503".into(),
            after_ms: Some(asked),
        }];
        outbox.answered(&at(0), batch, said);
        assert_eq!(outbox.next_ns().unwrap(), at_least * NS_PER_MS);
    }
}

/// Sources of lanes 0 and 1 of two.
fn sources_of_two_lanes(outbox: &Outbox) -> [String; 2] {
    let name_in = |lane| {
        let mut names = (0..).map(|n| format!("press-{n}"));
        names.find(|name| outbox.lane_of(name) == lane).unwrap()
    };
    [name_in(0), name_in(1)]
}

fn two_lanes(config: OutboxConfig) -> (Outbox, [String; 2]) {
    let outbox = outbox(OutboxConfig { lanes: 2, ..config });
    let sources = sources_of_two_lanes(&outbox);
    (outbox, sources)
}

// covers: FWD-01
#[test]
fn a_source_keeps_to_its_lane_and_a_slow_lane_holds_up_no_other() {
    let (mut outbox, sources) = two_lanes(OutboxConfig {
        batch_events_max: 5,
        window_events_max: 50,
        ..OutboxConfig::default()
    });
    // Every other event is of the slow lane's source.
    let log: Log = (1..=400)
        .map(|n| event_of(n, &sources[(n % 2) as usize], 0))
        .collect();
    let slow = next(&mut outbox, &at(0), &log).unwrap();
    let mut finished = 0;
    while let Some(batch) = next(&mut outbox, &at(1), &log) {
        assert_ne!(batch.lane, slow.lane, "one batch at a time on a lane");
        let source = &sources[batch.lane];
        assert!(batch.events.iter().all(|(_, e)| e.key.source == *source));
        finished += batch.events.len();
        accept(&mut outbox, &at(1), batch);
    }
    // The window is what stops the other in the end.
    assert!((20..=26).contains(&finished), "{finished}");
    assert!(outbox.finished_ahead() >= 20);
    accept(&mut outbox, &at(2), slow);
    assert!(next(&mut outbox, &at(2), &log).is_some());
}

// covers: FWD-01
#[test]
fn a_lane_that_fails_alone_waits_alone_and_an_outage_is_probed_by_one() {
    let (mut outbox, sources) = two_lanes(OutboxConfig {
        batch_events_max: 2,
        ..OutboxConfig::default()
    });
    let log: Log = (1..=100)
        .map(|n| event_of(n, &sources[(n % 2) as usize], 0))
        .collect();
    let first = next(&mut outbox, &at(0), &log).unwrap();
    let second = next(&mut outbox, &at(0), &log).unwrap();
    accept(&mut outbox, &at(1), first);
    let lane = second.lane;
    outbox.answered(&at(2), second, Vec::new());
    assert_eq!(outbox.circuit().name(), "retrying");
    let other = outbox.next_batch(&at(2)).unwrap();
    assert_ne!(other.lane, lane);
    assert_eq!(outbox.next_batch(&at(2)), None);
    // Now nothing is taken any more.
    let later = at(60_000);
    let again = outbox.next_batch(&later).unwrap();
    outbox.answered(&later, again, Vec::new());
    outbox.answered(&later, other, Vec::new());
    let Circuit::Retrying { failures, .. } = outbox.circuit() else {
        panic!("{:?}", outbox.circuit())
    };
    assert_eq!(failures, 1, "one outage, however many batches it met");
    let back = at(200_000);
    let probe = outbox.next_batch(&back).unwrap();
    assert_eq!(outbox.next_batch(&back), None, "one at a time");
    accept(&mut outbox, &back, probe);
    assert!(outbox.next_batch(&back).is_some());
    assert!(outbox.next_batch(&at(300_000)).is_some());
}

#[test]
fn a_success_of_what_was_sent_before_a_failure_does_not_end_the_wait() {
    let (mut outbox, sources) = two_lanes(OutboxConfig::default());
    let log: Log = (1..=2)
        .map(|n| event_of(n, &sources[(n % 2) as usize], 0))
        .collect();
    let first = next(&mut outbox, &at(0), &log).unwrap();
    let second = next(&mut outbox, &at(0), &log).unwrap();
    assert_eq!(outbox.next_batch(&at(0)), None);
    outbox.answered(&at(5), second, Vec::new());
    let before = outbox.next_ns();
    assert!(before.is_some());
    accept(&mut outbox, &at(5), first);
    assert_eq!(outbox.next_ns(), before);
}

#[test]
fn a_stopped_sink_is_left_alone_until_somebody_resumes_it() {
    let log = log_of(1..=2);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = next(&mut outbox, &at(0), &log).unwrap();
    let why = "permission denied for function ingest";
    let said = vec![Verdict::Stop { reason: why.into() }; 2];
    outbox.answered(&at(0), batch, said);
    assert_eq!(outbox.next_batch(&at(1_000_000)), None);
    let words = outbox.circuit().describe(&at(60_000));
    assert!(words.contains("60 s ago: permission"), "{words}");
    assert_eq!(outbox.record().0.retries, 2);
    outbox.resume();
    let batch = next(&mut outbox, &at(1_000_000), &log).unwrap();
    assert_eq!(sequences(&batch), [1, 2]);
}

#[test]
fn texts_from_outside_are_bounded_and_cut_between_characters() {
    let verdict = Verdict::Conflict {
        reason: "語".repeat(1_000),
        kept: Some("語".repeat(100_000)),
    };
    let letter = dead_letter("mes", event(9).1, verdict).unwrap();
    assert_eq!(letter.reason.len(), TEXT_BYTES_MAX / 3 * 3);
    assert_eq!(letter.kept.unwrap().len(), KEPT_BYTES_MAX / 3 * 3);
}

// covers: FWD-06
#[test]
fn a_dead_letter_sent_again_stays_one_unless_the_sink_holds_the_event() {
    let mut outbox = outbox(OutboxConfig::default());
    let letter = dead_letter("mes", event(9).1, malformed()).unwrap();
    let again = outbox.resent(&letter, conflict()).unwrap();
    assert_eq!(again.status, "conflict");
    assert_eq!(outbox.resent(&letter, Verdict::retry("away")), None);
    assert_eq!(outbox.resent(&letter, Verdict::Accepted), None);
    let (cursor, more) = outbox.record();
    assert_eq!(cursor.through, Position::default());
    assert_eq!((outbox.attempts(), more.resent), (3, 2));
}

#[test]
fn a_lane_that_carries_a_dead_letter_is_given_no_batch() {
    let log = log_of(1..=2);
    let mut outbox = outbox(OutboxConfig::default());
    assert!(outbox.hold(0));
    assert!(!outbox.hold(0));
    assert_eq!(next(&mut outbox, &at(0), &log), None);
    outbox.release(0);
    assert!(next(&mut outbox, &at(0), &log).is_some());
}

#[test]
fn batches_are_bounded_by_bytes_and_one_larger_event_goes_alone() {
    let mut log = log_of(1..=4);
    log[1].1.body = "x".repeat(2_000);
    let mut outbox = outbox(OutboxConfig {
        batch_bytes_max: 1_000,
        ..OutboxConfig::default()
    });
    let mut sizes = Vec::new();
    while let Some(batch) = next(&mut outbox, &at(0), &log) {
        sizes.push(batch.events.len());
        accept(&mut outbox, &at(0), batch);
    }
    assert_eq!(sizes, [1, 1, 2]);
}

#[test]
fn nothing_more_is_read_while_enough_bytes_wait() {
    let mut log = log_of(1..=100);
    for (_, event) in &mut log {
        event.body = "x".repeat(10_000);
    }
    let mut outbox = outbox(OutboxConfig {
        window_bytes_max: 100_000,
        ..OutboxConfig::default()
    });
    let want = outbox.want(head_of(&log)).unwrap();
    assert_eq!(want.bytes_max, 100_000);
    outbox.offer(&want, log[..10].to_vec(), None);
    assert_eq!(outbox.want(head_of(&log)), None);
    let batch = outbox.next_batch(&at(0)).unwrap();
    assert_eq!(batch.events.len(), 10);
    assert!(outbox.want(head_of(&log)).is_some());
}

#[test]
fn a_smaller_window_after_a_restart_cannot_starve_what_is_open() {
    let log = log_of(1..=20);
    // As the first version wrote it: place by place.
    let cursor = CursorRecord {
        sparse: (5..=20).map(place).collect(),
        ..CursorRecord::default()
    };
    let config = OutboxConfig {
        window_events_max: 2,
        ..OutboxConfig::default()
    };
    let mut outbox = Outbox::new(cursor, SinkRecord::default(), config, 1);
    let mut sent = Vec::new();
    while let Some(batch) = next(&mut outbox, &at(0), &log) {
        sent.extend(sequences(&batch));
        accept(&mut outbox, &at(0), batch);
    }
    assert_eq!(sent, [1, 2, 3, 4]);
    assert_eq!(outbox.through(), place(20));
    assert!(outbox.record().1.ahead.is_empty());
}

#[test]
fn finished_events_that_the_journal_dropped_are_passed() {
    let mut log = log_of(1..=9);
    let cursor = CursorRecord {
        sparse: vec![place(2), place(3)],
        ..CursorRecord::default()
    };
    log.retain(|(position, _)| ![place(2), place(3)].contains(position));
    let config = OutboxConfig {
        window_events_max: 3,
        ..OutboxConfig::default()
    };
    let mut outbox = Outbox::new(cursor, SinkRecord::default(), config, 1);
    let batch = next(&mut outbox, &at(0), &log).unwrap();
    assert_eq!(positions(&batch), [place(1), place(4), place(5)]);
    accept(&mut outbox, &at(0), batch);
    assert_eq!(outbox.through(), place(5));
    assert!(outbox.record().1.ahead.is_empty());
}

// covers: F111
#[test]
fn second_and_surplus_answers_change_nothing() {
    let log = log_of(1..=2);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = next(&mut outbox, &at(0), &log).unwrap();
    outbox.answered(&at(1), batch.clone(), vec![Verdict::Accepted; 9]);
    let before = outbox.record();
    assert_eq!(outbox.attempts(), 2);
    outbox.answered(&at(2), batch, vec![conflict(); 2]);
    assert_eq!(outbox.record(), before);
}

fn live() -> OutboxConfig {
    OutboxConfig {
        live: true,
        batch_events_max: 10,
        window_events_max: 100,
        ..OutboxConfig::default()
    }
}

/// Adds an event in a commit of its own: nothing is ever added to one that was read.
fn add(log: &mut Log, wall_s: i64) {
    let last = log.last().map_or(0, |(_, event)| event.key.sequence.0);
    log.push(event_of((last / 3 + 1) * 3, "press-1", wall_s));
}

/// So many events of the past.
fn old_log(count: u64) -> Log {
    (1..=count)
        .map(|n| event_of(n, "press-1", i64::try_from(n).unwrap()))
        .collect()
}

#[test]
fn what_is_fresh_does_not_wait_behind_days_of_backlog_nor_the_backlog_behind_what_is_fresh() {
    let mut outbox = outbox(live());
    let mut log = old_log(3_000);
    let mut sent_at: HashMap<Position, u64> = HashMap::new();
    let mut second = 20_000;
    loop {
        let now = at_s(second);
        feed(&mut outbox, &log);
        outbox.split_if_old(&now, head_of(&log));
        feed(&mut outbox, &log);
        // The sink manages one batch of ten a second; one event a second is new.
        let batch = outbox.next_batch(&now).unwrap();
        for position in positions(&batch) {
            let before = sent_at.insert(position, second);
            assert!(before.is_none(), "{position:?} twice");
        }
        accept(&mut outbox, &now, batch);
        let (_, more) = outbox.record();
        assert!(more.ahead.len() <= 1, "{:?}", more.ahead);
        if !outbox.is_split() {
            break;
        }
        second += 1;
        add(&mut log, i64::try_from(second).unwrap());
    }
    // Nine of ten a second are the backlog's.
    assert!((20_325..20_340).contains(&second), "{second}");
    for (position, event) in &log[3_000..] {
        let late = sent_at[position] as i64 - event.wall_us / 1_000_000;
        assert!(late <= 1, "{position:?} came {late} s late");
    }
    assert_eq!(sent_at.len(), log.len());
    assert_eq!(outbox.through(), log.last().unwrap().0);
    assert!(outbox.record().1.ahead.is_empty());
}

#[test]
fn a_restart_amid_two_tracks_sends_nothing_again_that_was_finished() {
    let mut log = old_log(3_000);
    let mut first = outbox(live());
    feed(&mut first, &log);
    first.split_if_old(&at_s(20_000), head_of(&log));
    assert!(first.is_split());
    let last_old = log.last().unwrap().0;
    for _ in 0..50 {
        add(&mut log, 20_000);
    }
    let mut finished = BTreeSet::new();
    for _ in 0..5 {
        let batch = next(&mut first, &at_s(20_001), &log).unwrap();
        finished.extend(positions(&batch));
        accept(&mut first, &at_s(20_001), batch);
    }
    assert!(finished.iter().any(|p| *p > last_old));
    assert!(finished.iter().any(|p| *p < last_old));
    let (cursor, more) = first.record();
    assert!(more.live_from.is_some());
    assert_eq!(more.ahead.len(), 1);
    let mut second = Outbox::new(cursor, more.clone(), live(), 2);
    assert_eq!(second.record().1, more);
    while let Some(batch) = next(&mut second, &at_s(20_002), &log) {
        for position in positions(&batch) {
            assert!(finished.insert(position), "{position:?} again");
        }
        accept(&mut second, &at_s(20_002), batch);
    }
    assert_eq!(finished.len(), log.len());
    assert_eq!(second.through(), log.last().unwrap().0);
    let nothing = SinkRecord {
        sink: "mes".into(),
        ..SinkRecord::default()
    };
    assert_eq!(second.record().1, nothing);
}

#[test]
fn a_track_that_has_become_backlog_itself_gives_way_to_a_new_one() {
    let mut log = old_log(3_000);
    let mut outbox = outbox(live());
    let mut finished = BTreeSet::new();
    // Outage after outage, in each of which two hundred events come.
    for outage in 1..=100_u64 {
        let now = at_s(outage * 20_000);
        let second = i64::try_from(outage * 20_000).unwrap();
        (0..200).for_each(|_| add(&mut log, second - 100));
        feed(&mut outbox, &log);
        outbox.split_if_old(&now, head_of(&log));
        (0..3).for_each(|_| add(&mut log, second));
        let batch = next(&mut outbox, &now, &log).unwrap();
        let places = positions(&batch);
        if outage < 60 {
            let fresh = log.last().unwrap().0;
            assert!(places.contains(&fresh), "outage {outage}: {places:?}");
        }
        finished.extend(places);
        accept(&mut outbox, &now, batch);
        let (_, more) = outbox.record();
        let ranges = more.ahead.len();
        assert!(ranges <= AHEAD_RANGES_MAX + 1, "{ranges}");
    }
    let end = at_s(100 * 20_000);
    while let Some(batch) = next(&mut outbox, &end, &log) {
        for position in positions(&batch) {
            assert!(finished.insert(position), "{position:?} again");
        }
        accept(&mut outbox, &end, batch);
    }
    assert_eq!(finished.len(), log.len());
    assert_eq!(outbox.through(), log.last().unwrap().0);
}

#[test]
fn a_file_keeps_the_order_of_the_log() {
    let mut log = old_log(3_000);
    let mut outbox = outbox(OutboxConfig {
        live: false,
        ..live()
    });
    add(&mut log, 20_000);
    let mut last = Position::default();
    feed(&mut outbox, &log);
    outbox.split_if_old(&at_s(20_000), head_of(&log));
    while let Some(batch) = next(&mut outbox, &at_s(20_000), &log) {
        for position in positions(&batch) {
            assert!(position > last);
            last = position;
        }
        accept(&mut outbox, &at_s(20_000), batch);
    }
    assert_eq!(last, log.last().unwrap().0);
}

#[test]
fn a_rewound_sink_sends_everything_behind_that_place_again_and_what_was_under_way_too() {
    let log = log_of(1..=30);
    let mut outbox = outbox(OutboxConfig {
        batch_events_max: 10,
        ..OutboxConfig::default()
    });
    for _ in 0..2 {
        let batch = next(&mut outbox, &at(0), &log).unwrap();
        accept(&mut outbox, &at(0), batch);
    }
    let under_way = next(&mut outbox, &at(0), &log).unwrap();
    outbox.rewind(place(5), 15);
    assert_eq!(outbox.through(), place(5));
    assert_eq!(
        next(&mut outbox, &at(1), &log),
        None,
        "its lane is not back yet"
    );
    let letters = outbox.answered(&at(2), under_way, vec![malformed(); 10]);
    assert!(letters.is_empty());
    let mut again = Vec::new();
    while let Some(batch) = next(&mut outbox, &at(3), &log) {
        again.extend(sequences(&batch));
        let said = vec![Verdict::Duplicate; batch.events.len()];
        outbox.answered(&at(3), batch, said);
    }
    assert_eq!(again, (6..=30).collect::<Vec<u64>>());
    let (cursor, more) = outbox.record();
    assert_eq!(
        (cursor.accepted, cursor.duplicates, more.rewound),
        (20, 25, 15)
    );
    // Produced = finished, less what was finished twice by a person's wish.
    assert_eq!(outbox.attempts() - more.rewound, 30);
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    /// Which batch under way, and what is said of its events in turn; `None`: nothing more.
    Answer(usize, Vec<Option<Verdict>>),
    /// The last progress was, or was not, durable.
    Crash(bool),
    Wait(u64),
    /// New events of these sources.
    Grow(Vec<u8>),
    /// The journal drops its oldest telemetry, as far as it was not read.
    Drop(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        10 => Just(Some(Verdict::Accepted)),
        2 => Just(Some(Verdict::Duplicate)),
        1 => Just(Some(conflict())),
        1 => Just(Some(malformed())),
        2 => Just(Some(Verdict::retry("busy"))),
        1 => Just(None),
    ];
    let step = prop_oneof![
        8 => Just(Step::Send),
        8 => (0..4_usize, proptest::collection::vec(verdict, 1..12))
            .prop_map(|(which, said)| Step::Answer(which, said)),
        1 => any::<bool>().prop_map(Step::Crash),
        3 => (0..20_000_u64).prop_map(Step::Wait),
        2 => proptest::collection::vec(0..5_u8, 1..12).prop_map(Step::Grow),
        1 => (1..4_u64).prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The outbox beside a plain account of what was said.
struct Run {
    outbox: Outbox,
    config: OutboxConfig,
    durable: (CursorRecord, SinkRecord),
    under_way: Vec<Batch>,
    log: Log,
    next: u64,
    now_ms: u64,
    /// How often an answer finished each event since the last crash, and what was durable at it.
    finished: BTreeMap<Position, u32>,
    said: u64,
    letters: u64,
}

fn is_finished(position: Position, (cursor, more): &(CursorRecord, SinkRecord)) -> bool {
    position <= cursor.through
        || more
            .ahead
            .iter()
            .any(|range| range.from <= position && position <= range.to)
}

impl Run {
    fn new(config: OutboxConfig) -> Self {
        let outbox = outbox(config);
        let mut run = Self {
            durable: outbox.record(),
            outbox,
            config,
            under_way: Vec::new(),
            log: Vec::new(),
            next: 1,
            now_ms: 0,
            finished: BTreeMap::new(),
            said: 0,
            letters: 0,
        };
        run.grow(&[0, 1, 2, 3, 4].repeat(10));
        run
    }

    fn now(&self) -> Now {
        Now {
            wall_us: i64::try_from(self.now_ms).unwrap() * 1_000,
            ..at(self.now_ms)
        }
    }

    fn grow(&mut self, sources: &[u8]) {
        for source in sources {
            let second = i64::try_from(self.now_ms / 1_000).unwrap();
            self.log
                .push(event_of(self.next, &format!("press-{source}"), second));
            self.next += 1;
        }
        // The head is the end of a commit: nothing is added to one that was read.
        self.next = (self.next / 3 + 1) * 3;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send => self.send(),
            Step::Answer(which, said) => {
                if !self.under_way.is_empty() {
                    let batch = self.under_way.remove(which % self.under_way.len());
                    self.answer(batch, &said);
                }
            }
            Step::Crash(durable) => {
                if durable {
                    self.durable = self.outbox.record();
                }
                self.crash();
            }
            Step::Wait(ms) => self.now_ms += ms,
            Step::Grow(sources) => self.grow(&sources),
            Step::Drop(count) => {
                let read: Vec<Position> = self.outbox.slots.keys().copied().collect();
                let state = self.outbox.record();
                let mut left = count;
                self.log.retain(|(position, _)| {
                    let keep =
                        left == 0 || read.contains(position) || is_finished(*position, &state);
                    left -= u64::from(!keep);
                    keep
                });
            }
        }
        self.check();
    }

    fn send(&mut self) {
        let now = self.now();
        feed(&mut self.outbox, &self.log);
        self.outbox.split_if_old(&now, head_of(&self.log));
        feed(&mut self.outbox, &self.log);
        if let Some(batch) = self.outbox.next_batch(&now) {
            // One batch a lane, a source by one lane, in the order of the log within a track.
            assert!(self.under_way.iter().all(|other| other.lane != batch.lane));
            let mut last: HashMap<(bool, &str), Position> = HashMap::new();
            let start = self.outbox.live.map_or(Position::MAX, |live| live.start);
            for (position, event) in &batch.events {
                assert_eq!(self.outbox.lane_of(&event.key.source), batch.lane);
                let before = last.insert((*position > start, &event.key.source), *position);
                assert!(before.is_none_or(|before| before < *position));
            }
            self.under_way.push(batch);
        }
    }

    fn answer(&mut self, batch: Batch, said: &[Option<Verdict>]) {
        let mut verdicts = Vec::new();
        self.said += batch.events.len() as u64;
        for (index, position) in positions(&batch).into_iter().enumerate() {
            let Some(verdict) = said[index % said.len()].clone() else {
                break;
            };
            if !matches!(verdict, Verdict::Retry { .. }) {
                *self.finished.entry(position).or_default() += 1;
            }
            if matches!(
                verdict,
                Verdict::Conflict { .. } | Verdict::Malformed { .. }
            ) {
                self.letters += 1;
            }
            verdicts.push(verdict);
        }
        let before = self.outbox.record().0;
        let now = self.now();
        let letters = self.outbox.answered(&now, batch, verdicts);
        let after = self.outbox.record().0;
        let refused = after.conflicts + after.malformed;
        assert_eq!(
            letters.len() as u64,
            refused - before.conflicts - before.malformed
        );
    }

    /// All but the durable progress is lost, and so is what was said of events behind it.
    fn crash(&mut self) {
        self.under_way.clear();
        let (cursor, more) = self.durable.clone();
        self.letters = cursor.conflicts + cursor.malformed;
        self.outbox = Outbox::new(cursor, more, self.config, 2);
        self.said = self.outbox.attempts();
        let durable = &self.durable;
        self.finished.retain(|p, _| is_finished(*p, durable));
        assert_eq!(self.outbox.record(), self.durable);
    }

    fn check(&self) {
        let state = self.outbox.record();
        let (cursor, more) = &state;
        // Every event finishes exactly once ...
        assert!(
            self.finished.values().all(|times| *times == 1),
            "{:?}",
            self.finished
        );
        // ... and the watermark and what is beyond it are exactly those, never one more.
        for (position, _) in &self.log {
            assert_eq!(
                is_finished(*position, &state),
                self.finished.contains_key(position),
                "{position:?} {state:?}"
            );
        }
        assert!(more.ahead.iter().all(|range| range.to > cursor.through));
        let behind = self
            .finished
            .keys()
            .filter(|p| **p > cursor.through)
            .count();
        assert_eq!(self.outbox.finished_ahead(), behind as u64);
        // Counters exclude each other and add up.
        assert_eq!(self.outbox.attempts(), self.said);
        assert_eq!(cursor.conflicts + cursor.malformed, self.letters);
        let finished = self.finished.len() as u64;
        let counted = cursor.accepted + cursor.duplicates + cursor.conflicts + cursor.malformed;
        assert_eq!(counted, finished);
        // Bounds.
        let tracks = 2;
        assert!(self.outbox.slots.len() <= tracks * self.config.window_events_max + 64);
        let waiting: usize = self
            .outbox
            .slots
            .values()
            .map(|slot| match slot {
                Slot::Waiting(event) => weight(event),
                _ => 0,
            })
            .sum();
        assert_eq!(self.outbox.bytes, waiting);
        assert!(self.under_way.len() <= self.config.lanes);
    }

    /// Everything healed: all that is left goes out.
    fn finish(&mut self) {
        for _ in 0..600 {
            self.now_ms += BACKOFF_MS_MAX;
            self.step(Step::Send);
            self.step(Step::Answer(0, vec![Some(Verdict::Accepted)]));
        }
        for (position, _) in &self.log {
            assert!(
                self.finished.contains_key(position),
                "{position:?} was never sent"
            );
        }
        assert!(self.outbox.record().1.ahead.is_empty());
    }
}

// covers: CAP-05, FWD-02
#[test]
fn dead_letters_are_bounded_and_the_sink_stands_still_before_more_are_made() {
    let mut outbox = Outbox::new(
        CursorRecord::default(),
        SinkRecord::default(),
        OutboxConfig::default(),
        1,
    );
    let want = outbox.want(CommitNo(2)).unwrap();
    outbox.offer(&want, vec![event(0), event(1), event(2)], None);
    outbox.letters_stand(&at(0), KEPT_LETTERS_MAX - 1);
    let batch = outbox.next_batch(&at(10_000)).unwrap();
    let conflict = || Verdict::Conflict {
        reason: "other content".into(),
        kept: Some("theirs".into()),
    };
    let verdicts = vec![conflict(), conflict(), Verdict::retry("not now")];
    let letters = outbox.answered(&at(10_000), batch, verdicts);
    let kept: Vec<_> = letters
        .iter()
        .map(|letter| letter.kept.as_deref())
        .collect();
    assert_eq!(kept, [Some("theirs"), None]);
    outbox.letters_stand(&at(20_000), DEAD_LETTERS_MAX);
    assert!(outbox.next_batch(&at(900_000)).is_none());
    let Circuit::Stopped { reason, .. } = outbox.circuit() else {
        panic!("{:?}", outbox.circuit());
    };
    assert!(reason.contains("settle dead letters"), "{reason}");
    outbox.letters_stand(&at(900_000), DEAD_LETTERS_MAX - 1);
    outbox.resume();
    assert!(outbox.next_batch(&at(900_001)).is_some());
}

proptest! {
    // covers: FWD-01, FWD-02, FWD-03, FWD-05, F103, F109, F111
    #[test]
    fn no_order_of_answers_crashes_and_drops_loses_or_repeats_an_event(
        steps in steps(),
        batch_events_max in 1..8_usize,
        window_events_max in 1..20_usize,
        lanes in 1..4_usize,
        live in any::<bool>(),
    ) {
        let mut run = Run::new(OutboxConfig {
            batch_events_max,
            window_events_max,
            lanes,
            live,
            ..OutboxConfig::default()
        });
        for step in steps {
            run.step(step);
        }
        run.finish();
    }
}
