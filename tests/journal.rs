//! The journal in ordinary life: what is durable is found, what is due is dropped, space is bounded.

mod journal_common;

use holdfast::core::ids::{CommitNo, Epoch, EventKey, OperationId, Sequence};
use holdfast::core::lifecycle::{RejectReason, State};
use holdfast::core::record::{CursorRecord, DeadLetter, Position, Record, Stored};
use holdfast::journal::frame::{BLOCK_BYTES_MAX, PART_BYTES_MAX};
use holdfast::journal::store::LEAF_ENTRIES_MAX;
use holdfast::journal::{
    BUDGET_BYTES_MIN, Capacity, CommitError, Journal, OpenError, Opened, OperationQuery, Retention,
    open,
};
use journal_common::*;
use std::fs;

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

fn policy() -> Retention {
    Retention {
        keep_events_ms: 0,
        keep_operations_ms: 60_000,
        keep_tombstones_ms: 120_000,
        sinks: vec!["mes".into()],
    }
}

fn cursor(no: u64, index: u32) -> Record {
    Record::Cursor(CursorRecord {
        sink: "mes".into(),
        through: Position {
            no: CommitNo(no),
            index,
        },
        ..CursorRecord::default()
    })
}

fn settle(journal: &mut Journal, wall_us: i64) {
    let now = now_at(wall_us);
    while journal.maintain(&now, &policy(), 128).unwrap().busy() {}
}

// covers: REC-06, F143
#[test]
fn a_second_gateway_is_refused_and_told_who_runs() {
    let home = tempfile::tempdir().unwrap();
    let (_journal, _) = normal(home.path());
    let Err(error) = open(options(home.path())) else {
        panic!("two gateways on one journal")
    };
    assert!(matches!(error, OpenError::Locked { .. }));
    assert!(
        error
            .to_string()
            .contains(&format!("pid {}", std::process::id()))
    );
}

// covers: EVT-02, F133
#[test]
fn starts_that_know_nothing_of_each_other_stand_in_the_order_of_their_time() {
    let mut before = Epoch(0);
    for n in 0..20 {
        let home = tempfile::tempdir().unwrap();
        let mut options = options(home.path());
        options.now = now_at(BASE_US + n * 4_000);
        let Opened::Normal(_, begun) = open(options).unwrap() else {
            panic!("damaged");
        };
        assert!(begun.epoch > before, "{} after {before}", begun.epoch);
        before = begun.epoch;
    }
}

// covers: REC-05
#[test]
fn an_older_journal_is_taken_as_it_is_and_marked_so_that_an_older_program_refuses_it() {
    let home = tempfile::tempdir().unwrap();
    drop(normal(home.path()));
    let manifest = home.path().join("manifest");
    let marked = fs::read_to_string(&manifest).unwrap();
    assert!(marked.contains("format 2\n"), "{marked}");
    let older = "holdfast-journal\nformat 1\ngeneration 1\n";
    let text = format!("{older}crc {:08x}\n", crc32fast::hash(older.as_bytes()));
    fs::write(&manifest, text).unwrap();
    let (_, recovered) = normal(home.path());
    assert_eq!(recovered.findings, []);
    assert_eq!(fs::read_to_string(&manifest).unwrap(), marked);
}

// covers: REC-05
#[test]
fn a_newer_journal_is_refused() {
    let home = tempfile::tempdir().unwrap();
    drop(normal(home.path()));
    let newer = "holdfast-journal\nformat 3\ngeneration 1\n";
    let text = format!("{newer}crc {:08x}\n", crc32fast::hash(newer.as_bytes()));
    fs::write(home.path().join("manifest"), text).unwrap();
    assert!(matches!(
        open(options(home.path())),
        Err(OpenError::NewerSchema { found: 3, .. })
    ));
}

// covers: REC-01
#[test]
fn what_is_committed_is_found_at_once_and_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    let reader = journal.reader();
    let watch = reader.watch();
    for no in 1..=30 {
        let name = format!("op-{no}");
        let record = if no % 3 == 0 {
            ended(&name, no)
        } else {
            waiting(&name, no)
        };
        assert_eq!(
            journal.commit(&[block(epoch, no, vec![record])]).unwrap(),
            CommitNo(no)
        );
        assert!(matches!(
            reader.lookup(&id(&name)),
            Ok(Some(Stored::Operation(_)))
        ));
    }
    assert_eq!(*watch.borrow(), CommitNo(30));
    assert!(matches!(
        journal.commit(&[block(epoch, 33, vec![])]),
        Err(CommitError::OutOfOrder { .. })
    ));
    settle(&mut journal, BASE_US);
    let query = OperationQuery {
        state: Some("queued".into()),
        ..OperationQuery::default()
    };
    let (first, next) = reader.operations(&query, None, 12).unwrap();
    let (rest, end) = reader.operations(&query, next, 12).unwrap();
    let ids: Vec<String> = first
        .iter()
        .chain(&rest)
        .map(|o| o.id.to_string())
        .collect();
    let expected: Vec<String> = (1..=30)
        .filter(|n| n % 3 != 0)
        .map(|n| format!("op-{n}"))
        .collect();
    assert_eq!((ids, end), (expected, None));
    drop((journal, reader));
    let (journal, recovered) = normal(home.path());
    assert_eq!(
        (recovered.clean, recovered.open_operations.len()),
        (false, 20)
    );
    let end = Record::Operation(Box::new(operation("op-1", 1, State::Expired, BASE_US)));
    let mut journal = journal;
    journal
        .commit(&[block(recovered.epoch, 31, vec![end])])
        .unwrap();
    settle(&mut journal, BASE_US);
    let found = journal.reader().lookup(&id("op-1")).unwrap();
    assert!(matches!(found, Some(Stored::Operation(o)) if o.state == State::Expired));
    journal.close().unwrap();
    let (_, recovered) = normal(home.path());
    assert_eq!(
        (recovered.clean, recovered.open_operations.len()),
        (true, 19)
    );
}

// covers: CAP-03
#[test]
fn an_ended_operation_shrinks_and_goes_when_due_and_an_open_one_never() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    journal
        .commit(&[block(epoch, 1, vec![ended("gone", 1), waiting("stays", 1)])])
        .unwrap();
    let reader = journal.reader();
    let mut seen = Vec::new();
    for after_ms in [0, 59_999, 60_000, 119_999, 120_000] {
        settle(&mut journal, BASE_US + after_ms * 1000);
        seen.push(match reader.lookup(&id("gone")).unwrap() {
            Some(Stored::Operation(_)) => "whole",
            Some(Stored::Tombstone(_)) => "tombstone",
            None => "gone",
        });
        assert!(matches!(
            reader.lookup(&id("stays")),
            Ok(Some(Stored::Operation(_)))
        ));
    }
    assert_eq!(seen, ["whole", "whole", "tombstone", "tombstone", "gone"]);
}

// covers: CAP-03, TIME-05
#[test]
fn an_operation_recorded_before_the_clock_was_set_outlives_the_packets_that_name_it() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    // The gateway thought it was 1970; the caller's clock was right.
    let state = State::Rejected(RejectReason::Disconnected);
    let mut early = operation("OP1", 1, state, 5_000_000);
    early.intent.issued_at_us = Some(BASE_US + 1);
    early.replay_until_us = early.created.wall_us + HOUR_US;
    let records = vec![Record::Operation(Box::new(early))];
    journal
        .commit(&[block(recovered.epoch, 1, records)])
        .unwrap();
    let look = |journal: &Journal| journal.reader().lookup(&id("OP1")).unwrap();
    for wall_us in [BASE_US, BASE_US + HOUR_US] {
        settle(&mut journal, wall_us);
        assert!(matches!(look(&journal), Some(Stored::Operation(_))));
    }
    settle(&mut journal, BASE_US + HOUR_US + 60_000_001);
    assert!(matches!(look(&journal), Some(Stored::Tombstone(_))));
    assert_eq!(journal.unproven_before_us(), BASE_US, "its own beginning");
    settle(&mut journal, BASE_US + HOUR_US + 120_000_001);
    assert!(look(&journal).is_none());
    // Now its id would be new, so packets of that time are refused: in this run, and after it.
    assert_eq!(journal.unproven_before_us(), BASE_US + 1);
    journal.close().unwrap();
    let mut later = options(home.path());
    later.now = now_at(BASE_US + 2 * HOUR_US);
    let Opened::Normal(journal, recovered) = open(later).unwrap() else {
        panic!("damaged")
    };
    assert_eq!(recovered.unproven_before_us, BASE_US + 1);
    drop(journal);
    // A trusted clock that is behind the mark contradicts it: nobody is locked out until it comes true.
    assert_eq!(normal(home.path()).1.unproven_before_us, BASE_US);
}

// covers: CAP-01, F105
#[test]
fn the_log_is_trimmed_behind_every_sink_and_never_before() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    for no in 1..=20 {
        journal
            .commit(&[events(epoch, no, no * 2 - 1, 2, 50)])
            .unwrap();
    }
    settle(&mut journal, BASE_US + HOUR_US);
    let reader = journal.reader();
    let left = |reader: &holdfast::journal::Reader| {
        reader
            .events(Position::default(), 1000, usize::MAX)
            .unwrap()
            .len()
    };
    assert_eq!(left(&reader), 40, "dropped before a sink took it");
    journal
        .commit(&[block(epoch, 21, vec![cursor(10, 0)])])
        .unwrap();
    settle(&mut journal, BASE_US + HOUR_US);
    assert_eq!(left(&reader), 22);
    let backlog = reader
        .backlog(Position {
            no: CommitNo(10),
            index: 0,
        })
        .unwrap();
    assert_eq!(
        (backlog.events, backlog.oldest_wall_us),
        (21, Some(BASE_US))
    );
    journal
        .commit(&[block(epoch, 22, vec![cursor(20, 1)])])
        .unwrap();
    settle(&mut journal, BASE_US + HOUR_US);
    assert_eq!((left(&reader), journal.usage().records), (0, 0));
    drop((journal, reader));
    let (_, recovered) = normal(home.path());
    assert_eq!(recovered.next_commit, CommitNo(23));
}

// covers: FWD-02
#[test]
fn dead_letters_outlive_the_log_until_they_are_settled() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    let Record::Event(inner) = event(epoch, 1, 50) else {
        unreachable!()
    };
    let letter = DeadLetter {
        sink: "mes".into(),
        event: inner.clone(),
        status: "conflict".into(),
        reason: "other content".into(),
        kept: None,
    };
    let records = vec![
        event(epoch, 1, 50),
        Record::DeadLetter(letter.clone()),
        cursor(1, 0),
    ];
    journal.commit(&[block(epoch, 1, records)]).unwrap();
    settle(&mut journal, BASE_US + HOUR_US);
    journal.close().unwrap();
    let (mut journal, recovered) = normal(home.path());
    assert_eq!(recovered.dead_letters, vec![("mes".to_owned(), 1)]);
    assert_eq!(
        journal.reader().dead_letters("mes", None, 10).unwrap(),
        vec![letter]
    );
    let settled = Record::DeadLetterSettled {
        sink: "mes".into(),
        key: inner.key,
        how: "dropped".into(),
        actor: holdfast::core::lifecycle::Actor::Gateway,
        reason: "test".into(),
    };
    let no = recovered.next_commit.0;
    journal
        .commit(&[block(recovered.epoch, no, vec![settled])])
        .unwrap();
    assert_eq!(journal.reader().dead_letter_count("mes"), 0);
    assert_eq!(
        journal.reader().dead_letters("mes", None, 10).unwrap(),
        vec![]
    );
}

// covers: REL-02
#[test]
fn no_block_however_large_becomes_a_blob() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    // Full parts only, several leaves of them, then all rewritten by trimming from the left.
    let full = PART_BYTES_MAX - 200;
    let count = LEAF_ENTRIES_MAX as u64 * 4;
    for no in 1..=count {
        journal.commit(&[events(epoch, no, no, 1, full)]).unwrap();
    }
    let large = BLOCK_BYTES_MAX - 500;
    journal
        .commit(&[events(epoch, count + 1, count + 1, 1, large)])
        .unwrap();
    let too_large = events(epoch, count + 2, count + 2, 1, BLOCK_BYTES_MAX);
    assert!(matches!(
        journal.commit(&[too_large]),
        Err(CommitError::TooLarge { .. })
    ));
    let reader = journal.reader();
    let last = reader
        .events(
            Position {
                no: CommitNo(count),
                index: 0,
            },
            5,
            usize::MAX,
        )
        .unwrap();
    assert_eq!(last[0].1.body.len(), large);
    journal
        .commit(&[block(epoch, count + 2, vec![cursor(count - 3, 0)])])
        .unwrap();
    settle(&mut journal, BASE_US + HOUR_US);
    assert_eq!(
        fs::read_dir(home.path().join("g-1/blobs")).unwrap().count(),
        0
    );
    drop((journal, reader));
    let (journal, _) = normal(home.path());
    let last = journal.reader().events(
        Position {
            no: CommitNo(count),
            index: 0,
        },
        5,
        usize::MAX,
    );
    assert_eq!(last.unwrap()[0].1.body.len(), large);
}

// covers: EVT-01, F085
#[test]
fn every_event_is_found_by_its_key_across_epochs() {
    let home = tempfile::tempdir().unwrap();
    let mut all: Vec<(EventKey, Position)> = Vec::new();
    for _ in 0..3 {
        let (mut journal, recovered) = normal(home.path());
        let mut no = recovered.next_commit.0;
        for turn in 0..7 {
            // Now and then a commit without events of this source.
            journal
                .commit(&[block(recovered.epoch, no, vec![])])
                .unwrap();
            journal
                .commit(&[events(recovered.epoch, no + 1, turn * 2 + 1, 2, 20)])
                .unwrap();
            for index in 0..2_u32 {
                let key = EventKey {
                    source: "press-1".into(),
                    epoch: recovered.epoch,
                    sequence: Sequence(turn * 2 + 1 + u64::from(index)),
                };
                all.push((
                    key,
                    Position {
                        no: CommitNo(no + 1),
                        index,
                    },
                ));
            }
            no += 2;
        }
        let reader = journal.reader();
        for (key, position) in &all {
            assert_eq!(reader.position_of(key).unwrap(), Some(*position), "{key}");
        }
        let never = EventKey {
            source: "press-1".into(),
            epoch: Epoch(recovered.epoch.0 + 9),
            sequence: Sequence(1),
        };
        assert_eq!(reader.position_of(&never).unwrap(), None);
        let found = reader
            .events(Position::default(), usize::MAX, usize::MAX)
            .unwrap();
        let keys: Vec<EventKey> = found.into_iter().map(|(_, e, _)| e.key).collect();
        assert_eq!(
            keys,
            all.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        );
    }
}

/// Four blocks of almost a whole part each, taken by the sink at once, `rounds` times.
fn churn(journal: &mut Journal, epoch: Epoch, rounds: u64) -> bool {
    let mut full = false;
    for round in 0..rounds {
        let no = round * 5 + 1;
        let mut group: Vec<_> = (no..no + 4)
            .map(|no| events(epoch, no, no * 100, 1, 39_000))
            .collect();
        group.push(block(epoch, no + 4, vec![cursor(no + 3, 0)]));
        journal.commit(&group).unwrap();
        let now = now_at(BASE_US + HOUR_US);
        journal.maintain(&now, &policy(), 64).unwrap();
        if round % 25 == 0 {
            full |= journal.capacity() != Capacity::Ok;
        }
    }
    full
}

// covers: CAP-05, F105
#[test]
fn a_steady_flow_that_is_taken_never_fills_the_budget() {
    let home = tempfile::tempdir().unwrap();
    let budget = 80 << 20;
    let mut wanted = options(home.path());
    wanted.budget_bytes = budget;
    let Opened::Normal(mut journal, recovered) = open(wanted).unwrap() else {
        panic!("damaged")
    };
    // Twice the budget flows through.
    let full = churn(&mut journal, recovered.epoch, 1_100);
    assert!(!full, "refused although everything was taken");
    settle(&mut journal, BASE_US + HOUR_US);
    let _ = journal.capacity();
    let usage = journal.usage();
    assert!(usage.disk_bytes <= budget, "{usage:?}");
    assert!(usage.used_bytes < 1 << 20, "{usage:?}");
}

// covers: CAP-01, CAP-05
#[test]
fn a_backlog_fills_the_budget_and_draining_it_frees_it_again() {
    let home = tempfile::tempdir().unwrap();
    let mut wanted = options(home.path());
    wanted.budget_bytes = 64 << 20;
    let Opened::Normal(mut journal, recovered) = open(wanted).unwrap() else {
        panic!("damaged")
    };
    let epoch = recovered.epoch;
    journal
        .commit(&[block(epoch, 1, vec![waiting("stays", 1)])])
        .unwrap();
    let mut no = 2;
    while journal.capacity() == Capacity::Ok {
        journal
            .commit(&[events(epoch, no, no * 100, 100, 200)])
            .unwrap();
        no += 1;
        assert!(no < 10_000, "never full");
    }
    // Full: an outcome may still be written.
    journal
        .commit(&[block(epoch, no, vec![ended("stays", 1), cursor(no, 0)])])
        .unwrap();
    settle(&mut journal, BASE_US);
    assert_eq!(journal.capacity(), Capacity::Ok);
    let usage = journal.usage();
    assert!(usage.disk_bytes <= 64 << 20, "{usage:?}");
    assert!(matches!(
        journal.reader().lookup(&id("stays")),
        Ok(Some(Stored::Operation(_)))
    ));
}

/// Fills the least budget with what `make` makes of each commit's number until nothing new is taken; then the
/// sinks take everything and what ended grows old, and there must be room again by itself. Twice: what
/// is left behind by one time must not spoil the next.
fn fills_and_recovers(make: impl Fn(Epoch, u64) -> Vec<Record>) {
    const GROUP: u64 = 128;
    let home = tempfile::tempdir().unwrap();
    let mut wanted = options(home.path());
    wanted.budget_bytes = BUDGET_BYTES_MIN;
    let Opened::Normal(mut journal, recovered) = open(wanted).unwrap() else {
        panic!("damaged")
    };
    let epoch = recovered.epoch;
    let mut no = 1;
    for turn in 1..=2 {
        while journal.capacity() == Capacity::Ok {
            let group = (no..no + GROUP).map(|no| block(epoch, no, make(epoch, no)));
            journal.commit(&group.collect::<Vec<_>>()).unwrap();
            no += GROUP;
            let now = now_at(BASE_US);
            journal.maintain(&now, &policy(), GROUP as usize).unwrap();
            assert!(no < 300_000, "never full");
        }
        journal
            .commit(&[block(epoch, no, vec![cursor(no, 0)])])
            .unwrap();
        no += 1;
        settle(&mut journal, BASE_US + HOUR_US);
        let (capacity, usage) = (journal.capacity(), journal.usage());
        assert_eq!(capacity, Capacity::Ok, "turn {turn}: {usage:?}");
        assert!(usage.disk_bytes <= BUDGET_BYTES_MIN, "{usage:?}");
    }
}

// covers: CAP-01, CAP-05
#[test]
fn with_the_least_budget_a_journal_full_of_operations_recovers_by_itself() {
    fills_and_recovers(|_, no| {
        let mut record = ended(&format!("op-{no}"), no);
        if let Record::Operation(operation) = &mut record {
            operation.history[0].detail = "d".repeat(2_000);
        }
        vec![record]
    });
}

// covers: CAP-01, CAP-05
#[test]
fn with_the_least_budget_a_journal_full_of_events_recovers_by_itself() {
    fills_and_recovers(|epoch, no| vec![event(epoch, no, 2_000)]);
}

#[test]
fn others_cannot_read_the_journal() {
    use std::os::unix::fs::PermissionsExt;
    fn modes(dir: &std::path::Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let meta = entry.metadata().unwrap();
            found.push((entry.path(), meta.permissions().mode() & 0o777));
            if meta.is_dir() {
                modes(&entry.path(), found);
            }
        }
    }
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("journal");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    // As it is created, and as an older program left it.
    for _ in 0..2 {
        let (journal, _) = normal(&dir);
        drop(journal);
        let own = fs::metadata(&dir).unwrap().permissions().mode() & 0o777;
        let mut found = vec![(dir.clone(), own)];
        modes(&dir, &mut found);
        for (path, mode) in found {
            let expected = if path.is_dir() { 0o750 } else { 0o640 };
            assert_eq!(mode, expected, "{}", path.display());
            let open = expected | if path.is_dir() { 0o005 } else { 0o004 };
            fs::set_permissions(&path, fs::Permissions::from_mode(open)).unwrap();
        }
    }
}

// covers: CAP-05
#[test]
fn a_drained_backlog_is_rewritten_into_a_new_generation_that_keeps_all() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    let mut first = vec![waiting("waits", 1), ended("ended", 1)];
    first.push(event(epoch, 1, 60_000));
    journal.commit(&[block(epoch, 1, first)]).unwrap();
    for no in (2..1_602).step_by(8) {
        let group: Vec<_> = (no..no + 8)
            .map(|no| events(epoch, no, no * 100, 1, 39_000))
            .collect();
        journal.commit(&group).unwrap();
    }
    journal
        .commit(&[block(epoch, 1_602, vec![cursor(1_401, 99)])])
        .unwrap();
    let now = now_at(BASE_US);
    let mut rewritten = false;
    let mut no = 1_602;
    for _ in 0..10_000 {
        let did = journal.maintain(&now, &policy(), 64).unwrap();
        if did.copied > 0 && !did.rewritten {
            // Commits go on while it is copied.
            no += 1;
            journal
                .commit(&[block(epoch, no, vec![waiting(&format!("during-{no}"), no)])])
                .unwrap();
        }
        rewritten |= did.rewritten;
        if !did.busy() {
            break;
        }
    }
    assert!(rewritten);
    let check = |journal: &Journal| {
        let reader = journal.reader();
        for name in ["waits", "ended"] {
            assert!(
                matches!(reader.lookup(&id(name)), Ok(Some(Stored::Operation(_)))),
                "{name}"
            );
        }
        for during in 1_603..=no {
            assert!(
                reader
                    .lookup(&id(&format!("during-{during}")))
                    .unwrap()
                    .is_some()
            );
        }
        let left = reader
            .events(Position::default(), usize::MAX, usize::MAX)
            .unwrap();
        assert_eq!(left.len(), 200);
        assert_eq!(reader.durable(), CommitNo(no));
    };
    check(&journal);
    // The old generation stays until the next open; until then the budget counts both.
    let of = |name: &str| {
        let db = std::fs::metadata(home.path().join(name).join("db"));
        db.map_or(0, |db| std::os::unix::fs::MetadataExt::blocks(&db) * 512)
    };
    assert!(of("g-1") > 0 && of("g-2") > 0);
    let counted = journal.usage().disk_bytes;
    assert!(counted >= of("g-1") + of("g-2"), "{counted}");
    drop(journal);
    let (mut journal, recovered) = normal(home.path());
    assert_eq!(recovered.next_commit, CommitNo(no + 1));
    assert_eq!(of("g-1"), 0);
    check(&journal);
    let _ = journal.capacity();
    assert!(
        journal.usage().disk_bytes < 48 << 20,
        "{:?}",
        journal.usage()
    );
}
