//! The demo, as a visitor runs it: real time, its own gateway, its own verdict.

use super::harness::HOLDFAST;
use std::process::{Command, Stdio};

/// Runs it in a directory of its own, so that what it leaves behind can be looked at.
fn play(args: &[&str], temp: &std::path::Path) -> (Option<i32>, String, String) {
    let done = Command::new(HOLDFAST)
        .args(["demo", "--once"])
        .args(args)
        .env("TMPDIR", temp)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

// covers: C1, C2, C4, A4
#[test]
fn the_demo_goes_as_it_says() {
    let temp = tempfile::tempdir().unwrap();
    let (code, told, complaints) = play(&[], temp.path());
    assert_eq!(code, Some(0), "{told}\n{complaints}");
    assert_eq!(complaints, "", "{told}");
    let one_line = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for key in [
        "EJECT-1, relative, at t=2: rejected disconnected",
        "SET-1 after the return: expired",
        "SET-1, effects at press-1: 0",
        "EJECT-1, effects at press-1: 0",
        "readings that reached press-1: 1",
        "readings it stands for: 51",
        "SET-2, version still 7: completed, found 7",
        "SET-2, effects at press-2: 1",
        "SET-3, version now 8: held version_conflict, found 8",
        "SET-3, effects at press-3: 0",
        "OP7 was outcome_unknown first: true",
        "OP7, evidence: mailbox",
        "OP7 again, effects at press-1: 1",
        // The report: four kinds of operation and every reading.
        "57 operation(s)",
        "Everything is as it should be.",
    ] {
        assert!(one_line.contains(key), "{key:?} is missing in\n{told}");
    }
    for line in told.lines() {
        assert!(line.chars().count() <= 80, "wider than 80: {line}");
        assert!(!line.contains('\x1b'), "a colour, and no terminal: {line}");
    }
    let left: Vec<_> = std::fs::read_dir(temp.path()).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn a_directory_with_an_earlier_demo_is_not_touched() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("state")).unwrap();
    let (code, told, complaints) = play(&["--dir", temp.path().to_str().unwrap()], temp.path());
    assert_eq!((code, told.as_str()), (Some(2), ""));
    assert!(complaints.contains("earlier demo"), "{complaints}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
}
