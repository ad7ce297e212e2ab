//! A process that writes the journal is killed, at every kill point and at random; then everything it
//! acknowledged is there.

mod journal_common;

use holdfast::core::ids::{CommitNo, OperationId};
use holdfast::core::record::{CursorRecord, Position, Record};
use holdfast::journal::{Opened, Retention, open};
use journal_common::*;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
#[cfg(feature = "test-hooks")]
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Blocks of the large backlog that are not taken: more than one segment of the store.
const LEFT_COMMITS: u64 = 200;
const WAIT_MS_MAX: u64 = 30_000;

/// The killed process: writes, and notes in a file beside the journal what was acknowledged.
fn write_until_killed(home: &Path, large: bool) {
    let mut acknowledged = OpenOptions::new()
        .append(true)
        .create(true)
        .open(home.join("acknowledged"))
        .unwrap();
    let Opened::Normal(mut journal, recovered) = open(options(&home.join("j"))).unwrap() else {
        panic!("damaged");
    };
    writeln!(acknowledged, "epoch {}", recovered.epoch).unwrap();
    let (epoch, bytes, commits) = (
        recovered.epoch,
        if large { 39_000 } else { 200 },
        if large { 1_700 } else { 60 },
    );
    let first = recovered.next_commit.0;
    let policy = Retention {
        keep_operations_ms: u64::MAX,
        keep_tombstones_ms: u64::MAX,
        sinks: vec!["mes".into()],
        ..Retention::default()
    };
    for no in first..first + commits {
        let name = format!("op-{no}");
        let operation = if no % 2 == 0 {
            waiting(&name, no)
        } else {
            ended(&name, no)
        };
        let mut records = vec![event(epoch, no - first + 1, bytes), operation];
        // Large: a backlog builds up, and all but its end is taken at once. The end keeps the store's file
        // from being cut, so that it is always large enough to be rewritten.
        if !large || no == first + commits - 1 {
            let through = Position {
                no: CommitNo(no - if large { LEFT_COMMITS } else { 1 }),
                index: 99,
            };
            records.push(Record::Cursor(CursorRecord {
                sink: "mes".into(),
                through,
                ..CursorRecord::default()
            }));
        }
        journal.commit(&[block(epoch, no, records)]).unwrap();
        writeln!(acknowledged, "commit {no}").unwrap();
        if no % 8 == 0 && !large {
            journal
                .maintain(&now_at(BASE_US + HOUR_US), &policy, 64)
                .unwrap();
        }
    }
    while journal
        .maintain(&now_at(BASE_US + HOUR_US), &policy, 64)
        .unwrap()
        .busy()
    {}
    journal.close().unwrap();
}

/// Not a test by itself: the tests below run this binary again with this name.
#[test]
fn child() {
    if let Ok(home) = std::env::var("JOURNAL_CHILD_HOME") {
        write_until_killed(
            Path::new(&home),
            std::env::var("JOURNAL_CHILD_LARGE").is_ok(),
        );
    }
}

fn spawn(home: &Path, point: Option<&str>, large: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact"])
        .env("JOURNAL_CHILD_HOME", home)
        .env("HOLDFAST_KILL_AT", point.unwrap_or("nowhere"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if large {
        command.env("JOURNAL_CHILD_LARGE", "1");
    }
    command.spawn().unwrap()
}

fn said(home: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(home.join("acknowledged")) {
        file.read_to_string(&mut text).unwrap();
    }
    text
}

fn numbers(text: &str, what: &str) -> Vec<u64> {
    text.lines()
        .filter_map(|l| l.strip_prefix(what)?.trim().parse().ok())
        .collect()
}

/// Everything acknowledged is there, and the epoch is new.
fn everything_is_there(home: &Path, what: &str) {
    let text = said(home);
    let last = numbers(&text, "commit ").into_iter().max().unwrap_or(0);
    let opened = open(options(&home.join("j"))).unwrap_or_else(|e| panic!("{what}: {e}"));
    let Opened::Normal(journal, recovered) = opened else {
        panic!("{what}: recovery mode after a kill");
    };
    assert!(
        recovered.next_commit.0 > last,
        "{what}: {last} was acknowledged"
    );
    assert!(
        numbers(&text, "epoch ")
            .iter()
            .all(|e| *e < recovered.epoch.0),
        "{what}: epoch again"
    );
    let reader = journal.reader();
    for no in 1..=last {
        let id = OperationId::parse(&format!("op-{no}")).unwrap();
        assert!(
            reader.lookup(&id).unwrap().is_some(),
            "{what}: {id} is lost"
        );
    }
    let open = recovered
        .open_operations
        .iter()
        .filter(|o| o.submitted.0 <= last)
        .count() as u64;
    assert_eq!(open, last / 2, "{what}");
    if last > 0 {
        let after = Position {
            no: CommitNo(last - 1),
            index: 99,
        };
        let events = reader.events(after, 10, usize::MAX).unwrap();
        assert_eq!(
            events[0].0.no,
            CommitNo(last),
            "{what}: the event not yet taken is lost"
        );
    }
}

// covers: REL-01, REC-01
#[cfg(feature = "test-hooks")]
#[test]
fn killed_at_every_point_nothing_acknowledged_is_lost() {
    let small = [
        "create.before-meta",
        "create.before-manifest",
        "create.before-marker",
        "create.after-marker",
        "open.before-store",
        "open.before-copy",
        "open.after-epoch",
        "commit.before-insert:30",
        "commit.before-flush:30",
        "commit.after-flush:30",
        "checkpoint.before-flush:3",
        "checkpoint.after-flush:3",
        "trim.before-remove:2",
        "close.before-mark",
        "close.after-mark",
    ];
    let large = [
        "rewrite.begun",
        "rewrite.before-switch",
        "rewrite.after-switch",
    ];
    let all = small
        .iter()
        .map(|p| (*p, false))
        .chain(large.iter().map(|p| (*p, true)));
    for (point, large) in all {
        let home = tempfile::tempdir().unwrap();
        // `open.before-copy` is passed only after an unclean stop.
        if point == "open.before-copy" {
            spawn(home.path(), Some("commit.after-flush:9"), false)
                .wait()
                .unwrap();
        }
        let status = spawn(home.path(), Some(point), large).wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "{point} was not reached: {status}"
        );
        everything_is_there(home.path(), point);
        // And it goes on from there.
        let status = spawn(home.path(), None, false).wait().unwrap();
        assert!(status.success(), "{point}: {status}");
        everything_is_there(home.path(), point);
    }
}

// covers: REL-01, REC-01, F075
#[test]
fn killed_at_random_over_and_over_nothing_acknowledged_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let mut seed = 5_u64;
    for round in 0..12 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let before = numbers(&said(home.path()), "commit ").len();
        let wanted = before + (seed >> 33) as usize % 40 + 1;
        let mut child = spawn(home.path(), None, false);
        let begun = Instant::now();
        while numbers(&said(home.path()), "commit ").len() < wanted {
            assert!(
                begun.elapsed() < Duration::from_millis(WAIT_MS_MAX),
                "no progress"
            );
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        everything_is_there(home.path(), &format!("round {round}"));
    }
    assert!(
        fs::metadata(home.path().join("acknowledged"))
            .unwrap()
            .len()
            > 500
    );
}
