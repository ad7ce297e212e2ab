//! Damage to every file of the journal: recovery mode or a whole journal, never a silent loss.

mod journal_common;

use holdfast::core::ids::{CommitNo, EventKey, OperationId, Sequence};
use holdfast::core::record::{CursorRecord, Position, Record, Stored};
use holdfast::journal::{Opened, Reader, Retention, check, export, open, salvage};
use journal_common::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const OPEN_MS_MAX: u64 = 5_000;
const EVENTS: u64 = 120;
const COMMITS: u64 = 42;

/// A journal with 40 commits of 3 events, an operation that waits and one that ended; unclean if wanted.
fn build(dir: &Path, clean: bool) {
    let (mut journal, recovered) = normal(dir);
    let epoch = recovered.epoch;
    for no in 1..=40 {
        journal
            .commit(&[events(epoch, no, no * 3 - 2, 3, 200)])
            .unwrap();
    }
    journal
        .commit(&[block(epoch, 41, vec![waiting("op-waits", 41)])])
        .unwrap();
    journal
        .commit(&[block(epoch, 42, vec![ended("op-ended", 42)])])
        .unwrap();
    if clean {
        journal.close().unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn count(reader: &Reader) -> usize {
    let found = reader
        .events(Position::default(), usize::MAX, usize::MAX)
        .unwrap();
    for (_, event, _) in &found {
        assert_eq!(
            event.body,
            format!("{:0>200}", event.key.sequence),
            "an altered event"
        );
    }
    found.len()
}

fn knows(reader: &Reader, id: &str) -> bool {
    let id = OperationId::parse(id).unwrap();
    matches!(reader.lookup(&id), Ok(Some(Stored::Operation(_))))
}

/// Opens; a journal that calls itself whole must be whole. Returns whether it did.
fn whole_or_recovery(dir: &Path, what: &str) -> bool {
    let begun = Instant::now();
    let opened = open(options(dir)).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(
        begun.elapsed() < Duration::from_millis(OPEN_MS_MAX),
        "{what}: slow"
    );
    match opened {
        Opened::Normal(journal, recovered) => {
            let reader = journal.reader();
            assert_eq!(
                count(&reader) as u64,
                EVENTS,
                "{what}: events lost in silence"
            );
            assert_eq!(recovered.next_commit, CommitNo(COMMITS + 1), "{what}");
            assert_eq!(recovered.open_operations.len(), 1, "{what}");
            assert!(
                knows(&reader, "op-waits") && knows(&reader, "op-ended"),
                "{what}"
            );
            true
        }
        Opened::Recovery(damaged, recovered) => {
            assert!(!damaged.findings().is_empty() && !recovered.findings.is_empty());
            assert!(count(&damaged.reader()) as u64 <= EVENTS);
            false
        }
    }
}

struct Seeded(u64);
impl Seeded {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 16) % end
    }
}

fn store_file(dir: &Path) -> PathBuf {
    dir.join("g-1").join("db")
}

fn used_bytes(db: &Path) -> u64 {
    let bytes = fs::read(db).unwrap();
    bytes.iter().rposition(|b| *b != 0).unwrap() as u64
}

// covers: REC-03
#[test]
fn flipped_bits_are_found_or_harmless() {
    for clean in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let whole = home.path().join("whole");
        build(&whole, clean);
        let mut seeded = Seeded(11);
        let end = used_bytes(&store_file(&whole));
        let mut found = 0;
        for round in 0..40 {
            let dir = home.path().join("damaged");
            copy(&whole, &dir);
            let at = seeded.below(end);
            let mut bytes = fs::read(store_file(&dir)).unwrap();
            bytes[at as usize] ^= 1 << (round % 8);
            fs::write(store_file(&dir), bytes).unwrap();
            found += usize::from(!whole_or_recovery(
                &dir,
                &format!("bit at {at}, clean {clean}"),
            ));
            fs::remove_dir_all(&dir).unwrap();
        }
        assert!(found > 0, "no flip was ever noticed");
    }
}

// covers: REC-03, F082
#[test]
fn every_cut_of_the_store_is_found_or_harmless() {
    let home = tempfile::tempdir().unwrap();
    let whole = home.path().join("whole");
    build(&whole, false);
    let bytes = fs::read(store_file(&whole)).unwrap();
    let magic = holdfast::journal::frame::MAGIC;
    let starts: Vec<usize> = (0..bytes.len() - 8)
        .filter(|at| bytes[*at..].starts_with(&magic))
        .collect();
    assert!(starts.len() > 40);
    let mut cuts: Vec<usize> = starts.iter().step_by(starts.len() / 20).copied().collect();
    cuts.extend(starts.iter().step_by(starts.len() / 10).map(|s| s + 150));
    cuts.extend([0, 1, 19, 20]);
    for cut in cuts {
        let dir = home.path().join("damaged");
        copy(&whole, &dir);
        fs::OpenOptions::new()
            .write(true)
            .open(store_file(&dir))
            .unwrap()
            .set_len(cut as u64)
            .unwrap();
        whole_or_recovery(&dir, &format!("cut at {cut}"));
        fs::remove_dir_all(&dir).unwrap();
    }
}

// covers: REC-03, F097
#[test]
fn zeroed_pages_are_found_or_harmless() {
    let home = tempfile::tempdir().unwrap();
    let whole = home.path().join("whole");
    build(&whole, false);
    let pages = used_bytes(&store_file(&whole)) / 4096 + 1;
    for page in 0..pages.min(24) {
        let dir = home.path().join("damaged");
        copy(&whole, &dir);
        let mut bytes = fs::read(store_file(&dir)).unwrap();
        let end = bytes.len().min((page as usize + 1) * 4096);
        bytes[page as usize * 4096..end].fill(0);
        fs::write(store_file(&dir), bytes).unwrap();
        whole_or_recovery(&dir, &format!("page {page}"));
        fs::remove_dir_all(&dir).unwrap();
    }
}

// covers: REC-03, F087, F097
#[test]
fn removed_emptied_and_halved_files_are_found_or_made_good() {
    for clean in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let whole = home.path().join("whole");
        build(&whole, clean);
        let snaps = fs::read_dir(whole.join("g-1"))
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = snaps
            .map(|name| format!("g-1/{}", name.to_string_lossy()))
            .filter(|name| !name.ends_with("blobs"))
            .collect();
        names.extend(["manifest", "high-water", "created", "lock", "clean"].map(String::from));
        for name in names {
            for harm in ["removed", "emptied", "halved", "zeroed"] {
                let dir = home.path().join("damaged");
                copy(&whole, &dir);
                let path = dir.join(&name);
                let Ok(bytes) = fs::read(&path) else {
                    fs::remove_dir_all(&dir).unwrap();
                    continue;
                };
                match harm {
                    "removed" => fs::remove_file(&path).unwrap(),
                    "emptied" => fs::write(&path, b"").unwrap(),
                    "halved" => fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
                    _ => fs::write(&path, vec![0; bytes.len()]).unwrap(),
                }
                let ok = whole_or_recovery(&dir, &format!("{name} {harm}, clean {clean}"));
                if name == "high-water" {
                    // The first slot's half still proves; nothing at all proves nothing.
                    assert!(!ok || harm == "halved", "{name} {harm} went unnoticed");
                }
                if ["manifest", "created", "lock", "clean"].contains(&name.as_str()) {
                    assert!(ok, "{name} {harm} can be made good");
                }
                fs::remove_dir_all(&dir).unwrap();
            }
        }
        let dir = home.path().join("damaged");
        copy(&whole, &dir);
        fs::remove_dir_all(dir.join("g-1")).unwrap();
        assert!(!whole_or_recovery(&dir, "the store removed"));
    }
}

// covers: REC-03, REC-04, EVT-02
#[test]
fn salvage_says_what_was_lost_and_begins_a_new_epoch() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("j");
    build(&dir, false);
    assert!(check(&dir).unwrap().ok);
    // Destroy every copy of commit 20 in the file.
    let mut bytes = fs::read(store_file(&dir)).unwrap();
    let magic = holdfast::journal::frame::MAGIC;
    for at in 0..bytes.len() - 64 {
        if bytes[at..].starts_with(&magic) && bytes[at + 10] == 1 && bytes[at + 16] == 20 {
            bytes[at + 60] ^= 0xff;
        }
    }
    fs::write(store_file(&dir), bytes).unwrap();
    let before = files_of(&dir);
    let report = check(&dir).unwrap();
    assert_eq!((report.ok, report.lost.clone()), (false, vec![(20, 20)]));
    let mut out = Vec::new();
    export(&dir, &mut out).unwrap();
    let lines = String::from_utf8(out).unwrap();
    assert_eq!(
        lines
            .lines()
            .filter(|l| l.contains("\"kind\":\"commit\""))
            .count(),
        41
    );
    let plan = salvage(&options(&dir), "dry", false).unwrap();
    assert_eq!(
        (plan.written, plan.commits_kept, plan.commits_lost),
        (false, 41, 1)
    );
    assert_eq!(files_of(&dir), before, "a reading tool wrote");

    let old_epoch = report.epoch;
    let done = salvage(&options(&dir), "disk replaced", true).unwrap();
    assert!(done.written && done.epoch.unwrap() > old_epoch);
    let (journal, recovered) = normal(&dir);
    assert!(recovered.epoch.0 > old_epoch + 1);
    assert!(recovered.note.as_deref().unwrap().contains("disk replaced"));
    let reader = journal.reader();
    assert_eq!(count(&reader) as u64, EVENTS - 3);
    assert!(knows(&reader, "op-waits") && knows(&reader, "op-ended"));
    assert_eq!(recovered.open_operations.len(), 1);
    drop((journal, reader));
    // Nothing was written since: that this journal was salvaged is still to be told.
    let (_, again) = normal(&dir);
    assert!(again.epoch > recovered.epoch);
    assert!(again.note.unwrap().contains("disk replaced"));
    assert_eq!(again.previous_epoch, recovered.epoch);
}

// covers: REC-04
#[test]
fn a_check_finds_a_store_that_is_refused_although_every_frame_is_whole() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("j");
    build(&dir, false);
    // The store's own head of its first segment: no frame of ours is touched.
    let mut bytes = fs::read(store_file(&dir)).unwrap();
    bytes[..20].fill(0);
    fs::write(store_file(&dir), bytes).unwrap();
    let before = files_of(&dir);
    let report = check(&dir).unwrap();
    assert!(report.lost.is_empty() && report.not_tried.is_none());
    assert!(!report.ok && !report.findings.is_empty());
    // The other tools judge alike, in words that say something to an operator.
    let mut out = Vec::new();
    assert_eq!(export(&dir, &mut out).unwrap(), report);
    let plan = salvage(&options(&dir), "dry", false).unwrap();
    assert_eq!((plan.written, plan.commits_kept), (false, COMMITS));
    assert_eq!(plan.report, report);
    let told = &report.findings[0].text;
    for foreign in ["backtrace", "()", "None", "Corruption", "`"] {
        assert!(!told.contains(foreign), "{told}");
    }
    assert_eq!(files_of(&dir), before, "a reading tool wrote");
    let Opened::Recovery(damaged, recovered) = open(options(&dir)).unwrap() else {
        panic!("opened");
    };
    assert_eq!(recovered.findings[0], report.findings[0]);
    drop(damaged);
    // What is whole is carried over, and then there is nothing more to do.
    assert!(
        salvage(&options(&dir), "store refused", true)
            .unwrap()
            .written
    );
    assert!(check(&dir).unwrap().ok);
    let (journal, _) = normal(&dir);
    assert_eq!(count(&journal.reader()) as u64, EVENTS);
}

// covers: REC-04
#[test]
fn a_whole_journal_is_not_salvaged() {
    let home = tempfile::tempdir().unwrap();
    for clean in [false, true] {
        let dir = home.path().join(format!("clean-{clean}"));
        build(&dir, clean);
        let before = files_of(&dir);
        for write in [false, true] {
            let error = salvage(&options(&dir), "just in case", write).unwrap_err();
            assert!(error.to_string().contains("nothing to salvage"), "{error}");
        }
        assert_eq!(files_of(&dir), before);
    }
}

fn files_of(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_of(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

/// What the journal knows its store by.
fn identity(dir: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(store_file(dir)).unwrap();
    (meta.dev(), meta.ino())
}

/// Puts the content of `from` into the files of `to`, which stay the files they are.
fn overwrite(from: &Path, to: &Path) {
    for entry in fs::read_dir(to).unwrap().flatten() {
        let source = from.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            overwrite(&source, &entry.path());
        } else if source.exists() {
            fs::write(entry.path(), fs::read(source).unwrap()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if !target.exists() && entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

// covers: EVT-02, REC-01
#[test]
fn that_a_journal_is_a_copy_is_known_until_a_commit_has_told_it() {
    let home = tempfile::tempdir().unwrap();
    let (dir, backup) = (home.path().join("j"), home.path().join("backup"));
    build(&dir, true);
    copy(&dir, &backup);
    for _ in 0..2 {
        // Starts that end before anything was written down.
        let (journal, recovered) = normal(&backup);
        assert!(recovered.note.unwrap().contains("copy"));
        drop(journal);
    }
    let (mut journal, recovered) = normal(&backup);
    let no = recovered.next_commit.0;
    journal
        .commit(&[events(recovered.epoch, no, 1, 1, 10)])
        .unwrap();
    drop(journal);
    let (_, after) = normal(&backup);
    assert_eq!(after.note, None, "it was told");
}

// covers: EVT-02, F131
#[test]
fn no_copy_and_no_loss_meets_an_epoch_given_out_before() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("j");
    let backup = home.path().join("backup");
    build(&dir, true);
    copy(&dir, &backup);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (journal, recovered) = normal(&dir);
        seen.push(recovered.epoch);
        journal.close().unwrap();
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    // The disk was set back, by whoever does that below every file: nothing here can tell.
    let set_back = |turn: &str| {
        let image = home.path().join("image");
        let before = identity(&dir);
        if turn == "take" {
            copy(&dir, &image);
        } else {
            overwrite(&image, &dir);
        }
        assert_eq!(identity(&dir), before);
    };
    set_back("take");
    for _ in 0..3 {
        let (journal, recovered) = normal(&dir);
        assert_eq!(recovered.note, None, "it cannot be seen");
        assert!(!seen.contains(&recovered.epoch), "given out again");
        seen.push(recovered.epoch);
        journal.close().unwrap();
        set_back("set back");
    }
    // A restored backup: other files.
    fs::remove_dir_all(&dir).unwrap();
    copy(&backup, &dir);
    let (journal, restored) = normal(&dir);
    assert!(!seen.contains(&restored.epoch));
    assert!(restored.note.unwrap().contains("copy"));
    drop(journal);
    // The same disk in another machine.
    let mut moved = options(&dir);
    moved.machine_id = "m2".into();
    let Opened::Normal(journal, other) = open(moved).unwrap() else {
        panic!("damaged")
    };
    assert!(other.epoch > restored.epoch);
    assert!(other.foreign.unwrap().contains("m1"), "it says from where");
    drop(journal);
    // Lost altogether.
    fs::remove_dir_all(&dir).unwrap();
    let (_, anew) = normal(&dir);
    assert!(
        !seen.contains(&anew.epoch) && anew.epoch != restored.epoch && anew.epoch != other.epoch
    );
    assert_eq!(anew.note.as_deref(), Some("created"));
}

// covers: F099
#[test]
fn a_clean_stop_sends_nothing_again() {
    let home = tempfile::tempdir().unwrap();
    let (mut journal, recovered) = normal(home.path());
    let epoch = recovered.epoch;
    journal.commit(&[events(epoch, 1, 1, 10, 200)]).unwrap();
    let cursor = CursorRecord {
        sink: "mes".into(),
        through: Position {
            no: CommitNo(1),
            index: 9,
        },
        accepted: 10,
        ..CursorRecord::default()
    };
    let record = holdfast::core::record::Record::Cursor(cursor.clone());
    journal.commit(&[block(epoch, 2, vec![record])]).unwrap();
    journal.close().unwrap();
    let (journal, recovered) = normal(home.path());
    assert!(recovered.clean);
    assert_eq!(recovered.cursors, vec![cursor.clone()]);
    assert_eq!(
        journal
            .reader()
            .events(cursor.through, 100, usize::MAX)
            .unwrap(),
        vec![]
    );
    assert_eq!(journal.reader().backlog(cursor.through).unwrap().events, 0);
    let key = EventKey {
        source: "press-1".into(),
        epoch,
        sequence: Sequence(7),
    };
    let place = journal.reader().position_of(&key).unwrap();
    assert_eq!(
        place,
        Some(Position {
            no: CommitNo(1),
            index: 6
        })
    );
}

// covers: TIME-05, TIME-06, REC-04
#[test]
fn a_wall_time_on_record_that_a_trusted_clock_contradicts_locks_nobody_out() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("journal");
    let (mut journal, recovered) = normal(&dir);
    let mut future = block(recovered.epoch, 1, vec![waiting("OP1", 1)]);
    future.at = now_at(BASE_US + 600_000 * HOUR_US);
    journal.commit(&[future]).unwrap();
    journal.close().unwrap();
    let from = |name: &str, trusted: bool, salvaged: bool| {
        let to = home.path().join(name);
        copy(&dir, &to);
        let mut options = options(&to);
        options.now.wall_trusted = trusted;
        if salvaged {
            // A whole journal has nothing to salvage.
            std::fs::remove_file(to.join("high-water")).unwrap();
            salvage(&options, "test", true).unwrap();
        }
        let Opened::Normal(_, recovered) = open(options).unwrap() else {
            panic!("damaged")
        };
        recovered.unproven_before_us
    };
    for salvaged in [false, true] {
        assert_eq!(from(&format!("a{salvaged}"), true, salvaged), BASE_US);
        // Nobody vouches for now, so the latest on record stands.
        let stands = BASE_US + 600_000 * HOUR_US;
        assert_eq!(from(&format!("b{salvaged}"), false, salvaged), stands);
    }
}

// covers: EVT-04, REC-01, REC-04
#[test]
fn how_far_a_source_is_taken_survives_restart_checkpoint_and_salvage() {
    use holdfast::core::record::{SourceRecord, SourceState};
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("j");
    let (mut journal, recovered) = normal(&dir);
    let epoch = recovered.epoch;
    let source = |kind: &str, state| SourceRecord {
        machine: "press-1".into(),
        event_type: kind.into(),
        place: "holding:220 u32".into(),
        at: now_at(BASE_US),
        state,
    };
    let handshake = |item| SourceState::Handshake {
        item,
        sha256: [7; 32],
    };
    let policy = Retention {
        keep_events_ms: 0,
        keep_operations_ms: 60_000,
        keep_tombstones_ms: 120_000,
        sinks: Vec::new(),
    };
    for no in 1..=9 {
        let unit = source("unit.done", handshake(no as u32));
        let piece = source("piece.good", SourceState::Counter(no * 10));
        let records = vec![Record::Source(unit), Record::Source(piece)];
        journal.commit(&[block(epoch, no, records)]).unwrap();
        if no == 5 {
            while journal
                .maintain(&now_at(BASE_US), &policy, 128)
                .unwrap()
                .busy()
            {}
        }
    }
    let expected = [
        source("piece.good", SourceState::Counter(90)),
        source("unit.done", handshake(9)),
    ];
    drop(journal);
    let (mut journal, recovered) = normal(&dir);
    assert_eq!(recovered.sources, expected);
    while journal
        .maintain(&now_at(BASE_US), &policy, 128)
        .unwrap()
        .busy()
    {}
    journal.close().unwrap();
    let (mut journal, recovered) = normal(&dir);
    assert_eq!(recovered.sources, expected);
    let next = recovered.next_commit.0;
    for no in next..next + 4 {
        let unit = source("unit.done", handshake(no as u32));
        let records = vec![Record::Source(unit)];
        journal
            .commit(&[block(recovered.epoch, no, records)])
            .unwrap();
    }
    drop(journal);
    // One commit is destroyed; what was taken before and after it stands.
    let mut bytes = fs::read(store_file(&dir)).unwrap();
    let magic = holdfast::journal::frame::MAGIC;
    for at in 0..bytes.len() - 64 {
        let lost = (next + 1) as u8;
        if bytes[at..].starts_with(&magic) && bytes[at + 10] == 1 && bytes[at + 16] == lost {
            bytes[at + 60] ^= 0xff;
        }
    }
    fs::write(store_file(&dir), bytes).unwrap();
    let done = salvage(&options(&dir), "a commit destroyed", true).unwrap();
    assert_eq!(done.commits_lost, 1);
    let (_journal, recovered) = normal(&dir);
    let newest = source("unit.done", handshake((next + 3) as u32));
    assert_eq!(recovered.sources, [expected[0].clone(), newest]);
}
