//! Owns: the proofs of the `file` sink, on real files.
//! May call: the sink, the file system, a child process of this test binary.
//! Never: leave anything mounted or lying about.

use super::*;
use crate::core::ids::{CommitNo, Epoch, Sequence};
use crate::core::spec::{EventClass, Quality};
use std::process::Command;
use tempfile::TempDir;

fn event(epoch: u64, sequence: u64, body: &str) -> (Position, EventRecord) {
    let key = EventKey {
        source: "press-1".into(),
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
    };
    let record = EventRecord {
        key,
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 1_796_025_600_000_000,
        boottime_ns: 1,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: body.into(),
        unsynchronised: None,
    };
    let position = Position {
        no: CommitNo(sequence),
        index: 0,
    };
    (position, record)
}

fn events(range: std::ops::RangeInclusive<u64>) -> Vec<(Position, EventRecord)> {
    range.map(|n| event(7, n, "{}")).collect()
}

fn open(dir: &TempDir) -> FileSink {
    FileSink::open(FileSinkConfig::new(dir.path())).unwrap()
}

/// The sequences in the directory, in the order of the files and lines; every line must be an event.
fn sequences(dir: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    for n in list(dir).unwrap() {
        let text = std::fs::read_to_string(dir.join(format!("events-{n:012}.jsonl"))).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        found.extend(text.lines().map(|line| {
            let line = Line::parse(line.as_bytes()).unwrap();
            line.key.sequence.0
        }));
    }
    found
}

fn first_file(dir: &TempDir) -> PathBuf {
    dir.path().join("events-000000000001.jsonl")
}

// covers: A14, FWD-07, F099
#[test]
fn what_is_sent_again_after_a_restart_is_a_duplicate_and_no_second_line() {
    let dir = TempDir::new().unwrap();
    assert_eq!(
        open(&dir).deliver(&events(1..=5)),
        vec![Verdict::Accepted; 5]
    );
    // The cursor was not durable: 3 to 5 come again, 6 is new.
    let mut sink = open(&dir);
    let mut expected = vec![Verdict::Duplicate; 3];
    expected.push(Verdict::Accepted);
    assert_eq!(sink.deliver(&events(3..=6)), expected);
    assert_eq!(sink.deliver(&events(6..=6)), vec![Verdict::Duplicate]);
    assert_eq!(sequences(dir.path()), [1, 2, 3, 4, 5, 6]);
    let text = std::fs::read_to_string(first_file(&dir)).unwrap();
    assert_eq!(text.lines().next().unwrap(), to_json(&event(7, 1, "{}").1));
}

// covers: F082
#[test]
fn a_file_torn_at_any_byte_loses_only_the_torn_line_and_gets_it_again() {
    let dir = TempDir::new().unwrap();
    open(&dir).deliver(&events(1..=3));
    let whole = std::fs::read(first_file(&dir)).unwrap();
    let line = whole.len() / 3;
    for cut in 0..=whole.len() {
        std::fs::write(first_file(&dir), &whole[..cut]).unwrap();
        let mut sink = open(&dir);
        let kept = cut / line;
        assert_eq!(
            sequences(dir.path()),
            (1..=kept as u64).collect::<Vec<_>>(),
            "cut at {cut}"
        );
        let verdicts = sink.deliver(&events(1..=3));
        let duplicates = verdicts.iter().filter(|v| **v == Verdict::Duplicate);
        assert_eq!(duplicates.count(), kept);
        assert_eq!(std::fs::read(first_file(&dir)).unwrap(), whole);
    }
}

// covers: F097
#[test]
fn nul_bytes_and_empty_files_after_a_power_loss_do_not_stop_the_sink() {
    let dir = TempDir::new().unwrap();
    open(&dir).deliver(&events(1..=2));
    let whole = std::fs::read(first_file(&dir)).unwrap();
    let mut nul = whole.clone();
    nul.extend_from_slice(&[0; 3 * LINE_BYTES_MAX]);
    std::fs::write(first_file(&dir), &nul).unwrap();
    std::fs::write(dir.path().join("events-000000000002.jsonl"), b"").unwrap();
    std::fs::write(dir.path().join("events-000000000003.tmp"), b"x").unwrap();
    let mut sink = open(&dir);
    assert_eq!(sink.deliver(&events(2..=2)), vec![Verdict::Duplicate]);
    assert_eq!(sink.deliver(&events(3..=3)), vec![Verdict::Accepted]);
    drop(sink);
    // The same in the newest file: nothing of it is left, and whether its name is durable nobody knows.
    let newest = dir.path().join("events-000000000002.jsonl");
    std::fs::write(&newest, [0; 4096]).unwrap();
    let mut sink = open(&dir);
    assert!(!newest.exists());
    assert_eq!(
        sink.deliver(&events(3..=4)),
        vec![Verdict::Duplicate, Verdict::Accepted]
    );
    assert_eq!(sequences(dir.path()), [1, 2, 3, 4]);
}

#[test]
fn damage_among_whole_lines_is_left_for_a_person_and_not_cut() {
    let dir = TempDir::new().unwrap();
    open(&dir).deliver(&events(1..=3));
    let mut bytes = std::fs::read(first_file(&dir)).unwrap();
    bytes[10] = 0;
    std::fs::write(first_file(&dir), &bytes).unwrap();
    let mut sink = open(&dir);
    assert_eq!(std::fs::read(first_file(&dir)).unwrap(), bytes);
    assert_eq!(
        sink.deliver(&events(2..=3)),
        vec![Verdict::Duplicate, Verdict::Duplicate]
    );
}

#[test]
fn a_directory_that_is_taken_away_is_waited_for_and_used_again() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("events");
    let mut sink = FileSink::open(FileSinkConfig::new(&path)).unwrap();
    sink.deliver(&events(1..=1));
    std::fs::remove_dir_all(&path).unwrap();
    let verdicts = sink.deliver(&events(2..=2));
    assert!(matches!(verdicts[0], Verdict::Retry { .. }), "{verdicts:?}");
    assert!(!path.exists(), "nothing is written where the directory was");
    std::fs::create_dir(&path).unwrap();
    assert_eq!(sink.deliver(&events(2..=2)), vec![Verdict::Accepted]);
    assert_eq!(sequences(&path), [2]);
    let second = FileSink::open(FileSinkConfig::new(&path));
    assert!(matches!(second, Err(FileSinkError::InUse { .. })));
}

// covers: FWD-02
#[test]
fn another_content_under_a_written_key_is_a_conflict_that_shows_both() {
    let dir = TempDir::new().unwrap();
    open(&dir).deliver(&events(1..=2));
    let mut sink = open(&dir);
    let verdicts = sink.deliver(&[event(7, 2, "{\"lot\":\"B\"}"), event(7, 3, "{}")]);
    let Verdict::Conflict { reason, kept } = &verdicts[0] else {
        panic!("{verdicts:?}");
    };
    assert!(reason.contains("sha256:"), "{reason}");
    assert_eq!(kept.as_deref(), Some(&*to_json(&event(7, 2, "{}").1)));
    assert_eq!(verdicts[1], Verdict::Accepted);
    assert_eq!(sequences(dir.path()), [1, 2, 3]);
}

// covers: FWD-02
#[test]
fn an_event_that_makes_no_line_is_malformed_and_holds_up_nobody() {
    let dir = TempDir::new().unwrap();
    let mut sink = open(&dir);
    let large = format!("\"{}\"", "x".repeat(LINE_BYTES_MAX));
    let verdicts = sink.deliver(&[
        event(7, 1, "{"),
        event(7, 2, "{\n}"),
        event(7, 3, &large),
        event(7, 4, "{}"),
    ]);
    for verdict in &verdicts[..3] {
        assert!(matches!(verdict, Verdict::Malformed { .. }), "{verdict:?}");
    }
    assert_eq!(verdicts[3], Verdict::Accepted);
    // Mended and sent again, it comes behind its successors, and is no duplicate of theirs.
    assert_eq!(sink.deliver(&events(2..=2)), vec![Verdict::Accepted]);
    assert_eq!(sequences(dir.path()), [4, 2]);
}

#[test]
fn one_key_twice_in_a_batch_is_one_line() {
    let dir = TempDir::new().unwrap();
    let mut sink = open(&dir);
    let verdicts = sink.deliver(&[event(7, 1, "{}"), event(7, 1, "{}")]);
    assert_eq!(verdicts[0], Verdict::Accepted);
    assert!(matches!(verdicts[1], Verdict::Retry { .. }));
    assert_eq!(sink.deliver(&events(1..=1)), vec![Verdict::Duplicate]);
    assert_eq!(sequences(dir.path()), [1]);
}

// covers: F085
#[test]
fn numbers_at_the_end_of_their_range_are_written_and_recognised() {
    let dir = TempDir::new().unwrap();
    let batch = [
        event(7, u64::from(u32::MAX), "{}"),
        event(7, (1 << 53) + 1, "{}"),
        event(7, u64::MAX - 1, "{}"),
        event(u64::MAX >> 1, u64::MAX, "{}"),
    ];
    assert_eq!(open(&dir).deliver(&batch), vec![Verdict::Accepted; 4]);
    assert_eq!(open(&dir).deliver(&batch), vec![Verdict::Duplicate; 4]);
}

fn small(dir: &TempDir, keep: Option<usize>) -> FileSinkConfig {
    FileSinkConfig {
        file_bytes_max: FILE_BYTES_MIN,
        keep,
        ..FileSinkConfig::new(dir.path())
    }
}

// covers: FWD-07
#[test]
fn files_are_closed_by_size_and_nothing_is_deleted_unless_keep_is_set() {
    let dir = TempDir::new().unwrap();
    let mut sink = FileSink::open(small(&dir, None)).unwrap();
    for n in 1..=100 {
        assert_eq!(sink.deliver(&events(n..=n)), vec![Verdict::Accepted]);
    }
    assert_eq!(sequences(dir.path()), (1..=100).collect::<Vec<_>>());
    let files = list(dir.path()).unwrap();
    assert!(files.len() > 3, "{files:?}");
    for n in files {
        assert!(sink.path(n).metadata().unwrap().len() <= FILE_BYTES_MIN);
    }
}

// covers: FWD-07
#[test]
fn keep_bounds_the_number_of_files_and_takes_the_oldest() {
    let dir = TempDir::new().unwrap();
    let mut sink = FileSink::open(small(&dir, Some(2))).unwrap();
    for n in 1..=100 {
        assert_eq!(sink.deliver(&events(n..=n)), vec![Verdict::Accepted]);
        assert!(list(dir.path()).unwrap().len() <= 2);
    }
    let kept = sequences(dir.path());
    assert_eq!(kept, (*kept.first().unwrap()..=100).collect::<Vec<_>>());
    assert!(kept.len() > 5);
}

// covers: F115
#[test]
fn a_key_in_a_file_too_old_to_be_read_at_the_start_is_still_found() {
    let dir = TempDir::new().unwrap();
    let mut sink = FileSink::open(small(&dir, None)).unwrap();
    for n in 1..=100 {
        sink.deliver(&events(n..=n));
    }
    drop(sink);
    let mut sink = FileSink::open_reading(small(&dir, None), 1).unwrap();
    assert!(!sink.unread.is_empty());
    // New ones need no look at the old files.
    assert_eq!(sink.deliver(&events(101..=101)), vec![Verdict::Accepted]);
    assert_eq!(sink.deliver(&[event(8, 1, "{}")]), vec![Verdict::Accepted]);
    assert!(!sink.unread.is_empty());
    // The oldest was deleted by hand meanwhile (F087): what stood in it is forgotten, no more.
    std::fs::remove_file(first_file(&dir)).unwrap();
    assert_eq!(sink.deliver(&events(60..=60)), vec![Verdict::Duplicate]);
    assert!(sink.unread.is_empty());
    assert_eq!(sink.deliver(&events(1..=1)), vec![Verdict::Accepted]);
}

#[test]
fn a_file_that_is_deleted_or_changed_under_the_sink_is_noticed_before_a_line_is_lost() {
    let dir = TempDir::new().unwrap();
    let mut sink = open(&dir);
    sink.deliver(&events(1..=2));
    std::fs::remove_file(first_file(&dir)).unwrap();
    assert_eq!(sink.deliver(&events(3..=3)), vec![Verdict::Accepted]);
    assert_eq!(sequences(dir.path()), [3]);
    std::fs::write(first_file(&dir), b"").unwrap();
    assert_eq!(sink.deliver(&events(4..=4)), vec![Verdict::Accepted]);
    assert_eq!(sequences(dir.path()), [4]);
}

#[test]
fn a_second_sink_on_the_same_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let _first = open(&dir);
    let second = FileSink::open(FileSinkConfig::new(dir.path()));
    assert!(matches!(second, Err(FileSinkError::InUse { .. })));
}

const FULL_DISK_DIR: &str = "FULL_DISK_DIR";
/// In blocks of 512 bytes, as `ulimit -f` counts.
const FILE_LIMIT_BLOCKS: u64 = 64;

/// Runs in a child process, where the file system (a 64 KiB one, mounted for it alone) or the limit on
/// the size of a file ends in the middle of a batch.
fn fill_the_disk(dir: &Path) {
    let config = FileSinkConfig::new(dir);
    let mut sink = FileSink::open(config.clone()).unwrap();
    let mut taken = 0;
    let full = loop {
        assert!(taken < 1000, "the disk never became full");
        let verdicts = sink.deliver(&events(taken + 1..=taken + 20));
        if verdicts != vec![Verdict::Accepted; 20] {
            break verdicts;
        }
        taken += 20;
    };
    assert!(taken > 0);
    for verdict in &full {
        assert!(matches!(verdict, Verdict::Retry { .. }), "{full:?}");
    }
    // Nothing of the batch that failed is left, and trying again changes nothing.
    assert_eq!(sequences(dir), (1..=taken).collect::<Vec<_>>());
    sink.deliver(&events(taken + 1..=taken + 20));
    assert_eq!(sequences(dir), (1..=taken).collect::<Vec<_>>());
    make_room(dir);
    assert_eq!(
        sink.deliver(&events(taken - 1..=taken + 20))[..3],
        [Verdict::Duplicate, Verdict::Duplicate, Verdict::Accepted]
    );
    assert_eq!(sequences(dir), (1..=taken + 20).collect::<Vec<_>>());
}

fn make_room(dir: &Path) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Fsize);
    limit.current = limit.maximum;
    setrlimit(Resource::Fsize, limit).unwrap();
    let ballast = dir.join("ballast");
    if ballast.exists() {
        std::fs::remove_file(ballast).unwrap();
    }
}

// covers: F093
#[test]
fn a_full_disk_leaves_no_half_line_and_delivery_goes_on_when_there_is_room() {
    if let Some(dir) = std::env::var_os(FULL_DISK_DIR) {
        return fill_the_disk(Path::new(&dir));
    }
    let this = std::env::current_exe().unwrap();
    let name = "a_full_disk_leaves_no_half_line_and_delivery_goes_on_when_there_is_room";
    let run = |program: &[&str], script: &str, dir: &Path| {
        let output = Command::new(program[0])
            .args(&program[1..])
            .args(["sh", "-c", script, "sh"])
            .arg(&this)
            .arg(format!("sink::file::tests::{name}"))
            .env(FULL_DISK_DIR, dir)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.success() && text.contains("1 passed"), text)
    };
    let mount = "mount -t tmpfs -o size=64k tmpfs \"$FULL_DISK_DIR\" \
        && head -c 40960 /dev/zero > \"$FULL_DISK_DIR/ballast\" \
        && exec \"$1\" --exact \"$2\"";
    // Without the right to mount, a limit on the size of a file ends a write in the same place.
    let limit =
        format!("trap '' XFSZ; ulimit -S -f {FILE_LIMIT_BLOCKS}; exec \"$1\" --exact \"$2\"");
    let dir = TempDir::new().unwrap();
    let (passed, text) = run(&["env"], &limit, dir.path());
    assert!(passed, "{text}");
    let may_mount = Command::new("unshare")
        .args(["--mount", "true"])
        .status()
        .is_ok_and(|status| status.success());
    if may_mount {
        let dir = TempDir::new().unwrap();
        let (passed, text) = run(&["unshare", "--mount"], mount, dir.path());
        assert!(passed, "{text}");
    }
}
