//! Owns: the file sink by itself, met by an error at every change it makes to its disk in turn; then power is lost after
//! every answer it gave.
//! May call: the sink, disk, pages, tape, a child process of this test binary.
//! Never: call an event taken that the sink did not call so.

use super::disk::{Disk, History, Image};
use super::load::Random;
use super::pages::{self, Pages};
use super::tape::{self, Record, Tape};
use holdfast::core::event::to_json;
use holdfast::core::ids::{CommitNo, Epoch, EventKey, Sequence};
use holdfast::core::outbox::Verdict;
use holdfast::core::record::{EventRecord, Position};
use holdfast::core::spec::{EventClass, Quality};
use holdfast::sink::file::{FILE_BYTES_MIN, FileSinkConfig, sink};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Three files of the least size.
const EVENTS: u64 = 32;
const BATCH_EVENTS_MAX: u64 = 4;
/// A batch is offered so often before the process ends.
const TRIES_MAX: u32 = 4;
/// Names the root in the environment of the process that plays the sink.
const ROOT: &str = "HOLDFAST_SINK_ALONE";
/// A fault that is still met at this change would go on for ever.
const CHANGES_MAX: u32 = 200;

/// What the sink's directory is within, and itself.
const DIRS: [&str; 3] = ["of", "of/press-1", "of/press-1/events"];

fn dir(root: &Path) -> PathBuf {
    root.join(DIRS[2])
}

fn event(sequence: u64) -> (Position, EventRecord) {
    let record = EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(sequence),
        },
        event_type: "unit.done".into(),
        schema: 1,
        wall_us: 1_796_025_600_000_000,
        boottime_ns: 1,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: format!("{{\"item\":{sequence}}}"),
        unsynchronised: None,
    };
    let position = Position {
        no: CommitNo(sequence),
        index: 0,
    };
    (position, record)
}

/// The process that is watched: offers everything from the first event on; enters what is taken; ends at what is not.
async fn play(root: &Path) {
    let config = FileSinkConfig {
        file_bytes_max: FILE_BYTES_MIN,
        ..FileSinkConfig::new(dir(root))
    };
    let mut lane = sink(config).lanes.remove(0);
    let log = PathBuf::from(std::env::var_os("HOLDFAST_SHIM_LOG").unwrap());
    let (mut next, mut size) = (1, 1);
    while next <= EVENTS {
        let batch: Vec<_> = (next..(next + size).min(EVENTS + 1)).map(event).collect();
        let mut tries = 0;
        loop {
            let verdicts = lane.deliver(&batch).await;
            if verdicts
                .iter()
                .all(|v| matches!(v, Verdict::Accepted | Verdict::Duplicate))
            {
                break;
            }
            let again = |v: &Verdict| matches!(v, Verdict::Retry { .. });
            assert!(verdicts.iter().all(again), "{verdicts:?}");
            tries += 1;
            if tries == TRIES_MAX {
                return;
            }
        }
        tape::mark(&log, &format!("taken {}", next + batch.len() as u64 - 1));
        next += batch.len() as u64;
        size = size % BATCH_EVENTS_MAX + 1;
    }
}

/// A disk, and one process after another on it.
struct Stand {
    home: tempfile::TempDir,
    shim: PathBuf,
    there: &'static [&'static str],
}

impl Stand {
    fn new(shim: &Path, there: &'static [&'static str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        for name in ["root", "held"] {
            std::fs::create_dir(home.path().join(name)).unwrap();
        }
        for name in there {
            std::fs::create_dir(home.path().join("root").join(name)).unwrap();
        }
        std::fs::write(home.path().join("armed"), "").unwrap();
        Self {
            home,
            shim: shim.to_owned(),
            there,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn run(&self, test: &str, more: &[(&str, &str)]) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("LD_PRELOAD", &self.shim)
            .env(ROOT, self.path("root"))
            .env("HOLDFAST_SHIM_ROOT", self.path("root"))
            .env("HOLDFAST_SHIM_LOG", self.path("log"))
            .env("HOLDFAST_SHIM_ARM", self.path("armed"))
            .env("HOLDFAST_SHIM_DISK", self.path("held"))
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{more:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn tape(&self) -> Tape {
        Tape::read(&self.path("log"))
    }

    /// Power is lost after every answer, and at the end: what was called taken and is not there.
    fn losses(&self, counts: &mut Counts) -> Vec<String> {
        let tape = self.tape();
        let history = History::of(&tape, &self.path("root"), self.there);
        let (mut disk, mut random) = (Disk::new(&history), Random::new(1));
        let (mut lost, mut taken) = (Vec::new(), 0);
        for (at, text) in tape.marks() {
            let through: u64 = text.strip_prefix("taken ").unwrap().parse().unwrap();
            taken = taken.max(through);
            disk.advance(at);
            for image in [disk.least(at), disk.image(at, &mut random)] {
                counts.images += 1;
                if let Some(missing) = first_missing(&image, taken) {
                    lost.push(format!("at {at}: {missing} of the {taken} taken"));
                }
            }
        }
        assert_eq!(taken, EVENTS, "not everything was taken in the end");
        lost
    }

    /// What is seen without a power loss: every event once.
    fn assert_each_once(&self, fault: &str) {
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(dir(&self.path("root"))).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(
                text.is_empty() || text.ends_with('\n'),
                "{fault}: half a line"
            );
            lines.extend(text.lines().map(str::to_owned));
        }
        lines.sort();
        let mut wanted: Vec<String> = (1..=EVENTS).map(|n| to_json(&event(n).1)).collect();
        wanted.sort();
        assert_eq!(lines, wanted, "{fault}");
    }
}

fn first_missing(image: &Image, through: u64) -> Option<u64> {
    let lines: BTreeSet<&[u8]> = image
        .files
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "jsonl"))
        .flat_map(|(_, bytes)| bytes.split(|byte| *byte == b'\n'))
        .collect();
    (1..=through).find(|n| !lines.contains(to_json(&event(*n).1).as_bytes()))
}

#[derive(Debug, Default)]
struct Counts {
    faults: usize,
    /// Behind which the kernel showed what was not on the disk.
    differed: usize,
    images: usize,
    lost: Vec<String>,
}

/// One error from the `n`-th change on, met by the first process; the second one finds what `pages` says. Whether it was met.
fn meet(
    stand: &Stand,
    fault: &str,
    test: &str,
    pages: Pages,
    more: &[(&str, &str)],
    counts: &mut Counts,
) -> bool {
    let with: Vec<_> = more
        .iter()
        .copied()
        .chain([("HOLDFAST_SHIM_FAIL", fault)])
        .collect();
    stand.run(test, &with);
    let met = stand
        .tape()
        .records
        .iter()
        .any(|record| matches!(record, Record::Failed));
    let root = stand.path("root");
    let differed = pages::lose(
        pages,
        &stand.path("log"),
        &root,
        stand.there,
        &stand.path("held"),
    );
    stand.run(test, more);
    if met {
        counts.faults += 1;
        counts.differed += usize::from(differed);
    }
    stand.assert_each_once(fault);
    let lost = stand.losses(counts);
    counts.lost.extend(
        lost.first()
            .map(|first| format!("{fault} {pages:?}: {first}")),
    );
    met
}

/// Every fault at every change.
fn meet_all(
    test: &str,
    there: &'static [&'static str],
    faults: &[(&str, &str, u32)],
    more: &[(&str, &str)],
) -> Counts {
    let home = tempfile::tempdir().unwrap();
    let shim = tape::build_shim(home.path());
    let mut counts = Counts::default();
    for pages in [Pages::Kept, Pages::Forgotten] {
        for (kind, what, times) in faults {
            let mut n = 1;
            while meet(
                &Stand::new(&shim, there),
                &format!("{kind}:{n}:{what}:{times}:/"),
                test,
                pages,
                more,
                &mut counts,
            ) {
                n += 1;
                assert!(n < CHANGES_MAX, "{kind} {what} never ends");
            }
        }
    }
    println!("{counts:#?}");
    counts
}

/// The process that a test starts is the test itself, told so by its environment.
async fn plays() -> bool {
    match std::env::var_os(ROOT) {
        Some(root) => {
            play(Path::new(&root)).await;
            true
        }
        None => false,
    }
}

// covers: FWD-01, REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_change_of_the_sink_fails_what_it_called_taken_is_on_the_disk() {
    if plays().await {
        return;
    }
    let test = "sink_alone::whatever_change_of_the_sink_fails_what_it_called_taken_is_on_the_disk";
    let faults = [
        ("change", "EIO", 1),
        ("change", "EIO", 2),
        ("change", "EIO", 3),
        ("change", "ENOSPC", 1),
        ("change", "EROFS", 0),
        ("write", "SHORT", 1),
        ("open", "EIO", 1),
    ];
    let counts = meet_all(test, &DIRS, &faults, &[]);
    assert!(counts.faults > 200 && counts.differed > 20, "{counts:?}");
    assert!(counts.lost.is_empty(), "{:#?}", counts.lost);
}

/// One error while directories are made, which can still be taken away then. Of directories that were left by a disk that
/// takes nothing more a later sync is believed: they may be an operator's.
// covers: FWD-01, REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_whose_name_did_not_last_is_made_again() {
    if plays().await {
        return;
    }
    let test = "sink_alone::a_directory_whose_name_did_not_last_is_made_again";
    let counts = meet_all(test, &[], &[("change", "EIO", 1), ("open", "EIO", 1)], &[]);
    assert!(counts.faults > 50, "{counts:?}");
    assert!(counts.lost.is_empty(), "{:#?}", counts.lost);
}

/// The check of the check.
// covers: FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_believes_the_kernel_after_a_failed_sync_is_found_at_every_sync() {
    if plays().await {
        return;
    }
    let test =
        "sink_alone::a_sink_that_believes_the_kernel_after_a_failed_sync_is_found_at_every_sync";
    let remembers = [("HOLDFAST_SHIM_REMEMBERS", "/events/")];
    let counts = meet_all(test, &DIRS, &[("change", "EROFS", 0)], &remembers);
    assert!(counts.lost.len() >= 10, "{counts:?}");
}
