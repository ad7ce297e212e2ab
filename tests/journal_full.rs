//! The journal at its budget: telemetry makes room and is told, business stays, and nothing else is touched.

mod journal_common;

use holdfast::core::ids::{CommitNo, Epoch};
use holdfast::core::record::{Block, CursorRecord, EventRecord, Position, Record, ShedRecord};
use holdfast::core::spec::EventClass;
use holdfast::journal::{
    BUDGET_BYTES_MIN, Capacity, Journal, Opened, Pressure, Retention, check, open, salvage,
};
use journal_common::*;
use std::path::Path;

fn policy() -> Retention {
    Retention {
        keep_events_ms: 0,
        keep_operations_ms: 60_000,
        keep_tombstones_ms: 120_000,
        sinks: vec!["mes".into()],
    }
}

fn small(dir: &Path) -> (Journal, holdfast::journal::Recovered) {
    let mut wanted = options(dir);
    wanted.budget_bytes = BUDGET_BYTES_MIN;
    match open(wanted).unwrap() {
        Opened::Normal(journal, recovered) => (*journal, recovered),
        Opened::Recovery(_, recovered) => panic!("damaged: {:?}", recovered.findings),
    }
}

/// A minute of a machine: telemetry, and now and then a piece.
fn minute(epoch: Epoch, no: u64) -> Block {
    const EVENTS: u64 = 60;
    let mut minute = events(epoch, no, (no - 1) * EVENTS + 1, EVENTS, 250);
    for (record, n) in minute.records.iter_mut().zip(0_u64..) {
        if let Record::Event(event) = record
            && !(n == 30 && no.is_multiple_of(7))
        {
            event.class = EventClass::Telemetry;
        }
    }
    minute
}

/// What the engine does between two rounds; the keys given up.
fn make_room(journal: &mut Journal, epoch: Epoch, no: &mut u64, shed: &mut ShedRecord) -> u64 {
    let mut slices = 0;
    while slices < 8
        && journal
            .maintain(&now_at(BASE_US), &policy(), 64)
            .unwrap()
            .busy()
    {
        slices += 1;
    }
    if journal.pressure() != Pressure::High {
        return 0;
    }
    let Some(slice) = journal.sheddable(&policy()).unwrap() else {
        return 0;
    };
    assert!(slice.through > shed.through);
    shed.through = slice.through;
    shed.total += slice.keys.len() as u64;
    let record = Record::Shed(shed.clone());
    journal.commit(&[block(epoch, *no, vec![record])]).unwrap();
    *no += 1;
    slice.keys.len() as u64
}

fn all_events(journal: &Journal) -> Vec<EventRecord> {
    let reader = journal.reader();
    let mut found = Vec::new();
    let mut after = Position::default();
    loop {
        let page = reader.events(after, 1_000, 1 << 20).unwrap();
        let Some((last, _, _)) = page.last() else {
            return found;
        };
        after = *last;
        found.extend(page.into_iter().map(|(_, event, _)| event));
    }
}

// covers: FWD-04, CAP-05, F103
#[test]
fn days_of_telemetry_that_nobody_takes_drop_the_oldest_and_never_a_business_event() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = small(home.path());
    let epoch = recovered.epoch;
    let mut shed = ShedRecord::default();
    let (mut no, mut given_up, mut written, mut pieces) = (1, 0, 0_u64, 0_usize);
    // Thrice what may be kept.
    while written < 300_000 {
        let minute = minute(epoch, no);
        for record in &minute.records {
            if let Record::Event(event) = record {
                written += 1;
                pieces += usize::from(event.class == EventClass::Business);
            }
        }
        journal.commit(&[minute]).unwrap();
        no += 1;
        given_up += make_room(&mut journal, epoch, &mut no, &mut shed);
        assert_eq!(journal.capacity(), Capacity::Ok, "after {written} events");
    }
    assert!(given_up > 100_000, "{given_up}");
    let left = all_events(&journal);
    assert_eq!(
        left.len() as u64,
        written - given_up,
        "some are gone untold"
    );
    let business = left.iter().filter(|e| e.class == EventClass::Business);
    assert_eq!(business.count(), pieces, "a piece was given up");
    let telemetry: Vec<u64> = left
        .iter()
        .filter(|e| e.class == EventClass::Telemetry)
        .map(|e| e.key.sequence.0)
        .collect();
    assert!(telemetry.is_sorted(), "the order of the log");
    while journal
        .maintain(&now_at(BASE_US), &policy(), 256)
        .unwrap()
        .busy()
    {}
    let usage = journal.usage();
    assert!(usage.disk_bytes <= BUDGET_BYTES_MIN, "{usage:?}");
    journal.close().unwrap();
    assert!(check(home.path()).unwrap().ok);
    // The next start finds the same, to the byte.
    let (mut journal, recovered) = small(home.path());
    assert_eq!(recovered.shed, shed);
    let _ = journal.capacity();
    assert_eq!(journal.usage().records, usage.records);
    let drift = journal.usage().used_bytes.abs_diff(usage.used_bytes);
    assert!(drift < 4_096, "{:?} {usage:?}", journal.usage());
    let again = all_events(&journal);
    assert_eq!(again, left);
    // Taken at last, all of it makes room, runs and thinned blocks too.
    let cursor = CursorRecord {
        sink: "mes".into(),
        through: Position {
            no: CommitNo(no),
            index: 0,
        },
        ..CursorRecord::default()
    };
    journal
        .commit(&[block(recovered.epoch, no, vec![Record::Cursor(cursor)])])
        .unwrap();
    let later = now_at(BASE_US + HOUR_US);
    while journal.maintain(&later, &policy(), 256).unwrap().busy() {}
    assert!(
        journal.usage().used_bytes < 1 << 20,
        "{:?}",
        journal.usage()
    );
}

// covers: FWD-04, REC-04
#[test]
fn what_was_given_up_is_no_loss_to_a_salvage() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = small(home.path());
    let epoch = recovered.epoch;
    let mut shed = ShedRecord::default();
    let mut no = 1;
    let mut given_up = 0;
    while given_up < 20_000 {
        journal.commit(&[minute(epoch, no)]).unwrap();
        no += 1;
        given_up += make_room(&mut journal, epoch, &mut no, &mut shed);
    }
    while journal
        .maintain(&now_at(BASE_US), &policy(), 256)
        .unwrap()
        .busy()
    {}
    let left = all_events(&journal);
    journal.close().unwrap();
    std::fs::remove_file(home.path().join("high-water")).unwrap();
    let done = salvage(&options(home.path()), "test", true).unwrap();
    assert_eq!(done.commits_lost, 0, "{:?}", done.report.lost);
    let (journal, recovered) = small(home.path());
    assert_eq!(recovered.shed, shed);
    assert_eq!(all_events(&journal), left);
}

// covers: FWD-04
#[test]
fn what_every_sink_has_taken_is_not_told_as_given_up() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = small(home.path());
    let epoch = recovered.epoch;
    let mut no = 1;
    while no < 200 {
        journal.commit(&[minute(epoch, no)]).unwrap();
        no += 1;
    }
    // The sink has the second half of commit 100 still to take; one of it is taken out of turn.
    let cursor = CursorRecord {
        sink: "mes".into(),
        through: Position {
            no: CommitNo(100),
            index: 57,
        },
        sparse: vec![Position {
            no: CommitNo(100),
            index: 59,
        }],
        ..CursorRecord::default()
    };
    journal
        .commit(&[block(epoch, no, vec![Record::Cursor(cursor)])])
        .unwrap();
    journal.maintain(&now_at(BASE_US), &policy(), 10).unwrap();
    let slice = journal.sheddable(&policy()).unwrap().unwrap();
    let first = slice.keys[0].sequence.0;
    assert_eq!(first, 99 * 60 + 59, "index 58 is the only one left there");
    assert_eq!(slice.keys[1].sequence.0, 100 * 60 + 1);
}

// covers: F105, CAP-05
#[test]
fn a_hundred_thousand_events_that_are_taken_at_once_are_never_refused() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = small(home.path());
    let epoch = recovered.epoch;
    let mut no = 1;
    for round in 0..1_000_u64 {
        let cursor = CursorRecord {
            sink: "mes".into(),
            through: Position {
                no: CommitNo(no),
                index: 99,
            },
            accepted: (round + 1) * 100,
            ..CursorRecord::default()
        };
        journal
            .commit(&[events(epoch, no, round * 100 + 1, 100, 700)])
            .unwrap();
        journal
            .commit(&[block(epoch, no + 1, vec![Record::Cursor(cursor)])])
            .unwrap();
        no += 2;
        let now = now_at(BASE_US);
        // Kept a day for who may have lost them, but for want of room.
        let keep = Retention {
            keep_events_ms: 86_400_000,
            ..policy()
        };
        journal.maintain(&now, &keep, 64).unwrap();
        assert_eq!(journal.capacity(), Capacity::Ok, "round {round}");
        assert_ne!(journal.pressure(), Pressure::High, "round {round}");
    }
    let usage = journal.usage();
    assert!(
        usage.records > 10_000,
        "what there is room for is kept: {usage:?}"
    );
    assert!(usage.disk_bytes <= BUDGET_BYTES_MIN, "{usage:?}");
}
