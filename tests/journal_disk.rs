//! A file system that is really full: the journal stops taking in before it is, keeps room for outcomes,
//! and an open waits for room instead of taking its lack for damage.

mod journal_common;

use holdfast::core::record::{Position, Stored};
use holdfast::journal::{Capacity, CommitError, OpenError, Opened, open};
use journal_common::*;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DISK_BYTES: u64 = 112 << 20;
const COMMITS_MAX: u64 = 10_000;
const OUTCOMES: u64 = 300;

fn free_bytes(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// Takes all that is free, as another program might.
fn take_all(path: &Path) {
    let mut file = File::create(path).unwrap();
    let chunk = vec![1; 1 << 16];
    while file.write_all(&chunk).is_ok() {}
    while file.write_all(&[1; 64]).is_ok() {}
}

fn outcome(no: u64) -> String {
    format!("outcome-{no}")
}

/// Fills the disk through the journal, then writes outcomes into the reserve, then loses the reserve to
/// another program. Ends without closing anything. Prints the last commit acknowledged.
fn fill(mount: &Path) -> u64 {
    let dir = mount.join("j");
    let (mut journal, recovered) = normal(&dir);
    let epoch = recovered.epoch;
    let mut no = recovered.next_commit.0;
    while journal.capacity() == Capacity::Ok {
        journal
            .commit(&[events(epoch, no, no * 100, 100, 200)])
            .unwrap();
        no += 1;
        assert!(no < COMMITS_MAX, "never full");
    }
    let left = free_bytes(mount);
    assert!(left > 16 << 20, "full too late: {left} bytes are free");
    let first = no;
    while no < first + OUTCOMES {
        journal
            .commit(&[block(epoch, no, vec![ended(&outcome(no), no)])])
            .unwrap();
        no += 1;
    }
    take_all(&mount.join("other"));
    assert_eq!(free_bytes(mount), 0);
    loop {
        match journal.commit(&[events(epoch, no, no * 100, 100, 200)]) {
            Ok(_) => no += 1,
            Err(CommitError::Store(_)) => break,
            Err(other) => panic!("{other}"),
        }
        assert!(no < COMMITS_MAX, "a full disk was never noticed");
    }
    // As after a failed commit: the process ends, and nothing is closed.
    std::mem::forget(journal);
    no - 1
}

fn refuse(mount: &Path) {
    match open(options(&mount.join("j"))) {
        Err(fault @ OpenError::NoRoom { .. }) => assert!(fault.passes()),
        Err(other) => panic!("{other}"),
        Ok(Opened::Normal(..)) => panic!("opened without room"),
        Ok(Opened::Recovery(_, found)) => panic!("taken for damage: {:?}", found.findings),
    }
}

fn whole(mount: &Path, last: u64) {
    let (journal, recovered) = normal(&mount.join("j"));
    // The one that failed may be there: it was never acknowledged, and never denied.
    assert!(recovered.next_commit.0 > last);
    let reader = journal.reader();
    let events = reader.events(Position::default(), usize::MAX, usize::MAX);
    let blocks: std::collections::BTreeSet<u64> =
        events.unwrap().iter().map(|(at, _, _)| at.no.0).collect();
    let mut outcomes = 0;
    for no in 1..=last {
        let id = holdfast::core::ids::OperationId::parse(&outcome(no)).unwrap();
        let known = matches!(reader.lookup(&id), Ok(Some(Stored::Operation(_))));
        outcomes += u64::from(known);
        assert!(known || blocks.contains(&no), "commit {no} is lost");
    }
    assert_eq!(outcomes, OUTCOMES);
}

/// Not a test by itself: the test below runs this binary again with this name, in a mount namespace.
#[test]
fn child() {
    let Ok(mount) = std::env::var("JOURNAL_DISK_MOUNT").map(PathBuf::from) else {
        return;
    };
    match std::env::var("JOURNAL_DISK_PHASE").as_deref() {
        Ok("fill") => {
            let last = fill(&mount);
            fs::write(mount.with_extension("last"), last.to_string()).unwrap();
            std::process::exit(0);
        }
        _ => phases(&mount),
    }
}

fn phases(mount: &Path) {
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "none"])
        .arg(mount)
        .status();
    assert!(mounted.is_ok_and(|s| s.success()), "no tmpfs");
    let filled = again("fill", mount).status().unwrap();
    assert!(filled.success(), "{filled}");
    let last = fs::read_to_string(mount.with_extension("last")).unwrap();
    refuse(mount);
    fs::remove_file(mount.join("other")).unwrap();
    // An unclean stop wants a copy first: still no room, and still no damage.
    let journal_bytes = DISK_BYTES - free_bytes(mount);
    if journal_bytes > free_bytes(mount) {
        refuse(mount);
    }
    // The operator makes the disk larger.
    let larger = Command::new("mount")
        .args(["-o", &format!("remount,size={}", DISK_BYTES * 3)])
        .arg(mount)
        .status();
    assert!(larger.is_ok_and(|s| s.success()));
    whole(mount, last.parse().unwrap());
}

fn again(phase: &str, mount: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["child", "--exact", "--nocapture"])
        .env("JOURNAL_DISK_MOUNT", mount)
        .env("JOURNAL_DISK_PHASE", phase);
    command
}

// covers: CAP-01
#[test]
fn a_full_disk_is_met_with_a_reserve_and_is_never_taken_for_damage() {
    let home = tempfile::tempdir().unwrap();
    let mount = home.path().join("disk");
    fs::create_dir(&mount).unwrap();
    let me = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "--"])
        .arg(me)
        .args(["child", "--exact", "--nocapture"])
        .env("JOURNAL_DISK_MOUNT", &mount)
        .env("JOURNAL_DISK_PHASE", "all")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
