//! Owns: a disk that answers with errors: what the real binary does, what it has told, what is there afterwards.
//! May call: recording, disk, pages, judge.
//! Never: count a fault that was not met.

use super::disk::{Disk, History};
use super::judge::{Bench, Verdict};
use super::load::{self, Kind, Random};
use super::pages::{self, Pages};
use super::recording::{Recorder, Told};
use super::tape::{Record, Tape};
use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Instant;

const SEED: u64 = 0x0065_696f;
/// Power losses looked at behind each series of faults.
const IMAGES: u64 = 24;

/// What a fault must lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    /// The process ends, and says why.
    End,
    /// It goes on; what could not be done is done later.
    GoOn,
    /// One of the two.
    Either,
}

/// One fault: as the preloaded library is told, met at the start or under load.
struct Case {
    fault: String,
    at_start: bool,
    must: Must,
}

fn under_load(
    kind: &str,
    what: &str,
    times: u32,
    part: &str,
    must: Must,
    nth: &[u32],
) -> Vec<Case> {
    let case = |n: &u32| Case {
        fault: format!("{kind}:{n}:{what}:{times}:{part}"),
        at_start: false,
        must,
    };
    nth.iter().map(case).collect()
}

fn at_start(kind: &str, what: &str, times: u32, part: &str, nth: &[u32]) -> Vec<Case> {
    let case = |n: &u32| Case {
        fault: format!("{kind}:{n}:{what}:{times}:{part}"),
        at_start: true,
        must: Must::Either,
    };
    nth.iter().map(case).collect()
}

/// What became of the cases.
#[derive(Debug, Default)]
struct Outcomes {
    cases: usize,
    ended: usize,
    went_on: usize,
    /// Starts that a fault ended or that came through.
    starts_ended: usize,
    starts_through: usize,
    starts_in_recovery: usize,
    verdicts: BTreeMap<String, usize>,
    /// What was lost in silence.
    lost: Vec<String>,
}

/// Meets every case in turn, on one journal; then cuts the power at moments since. Nothing may be lost.
async fn meet(cases: &[Case], pages: Pages) -> Outcomes {
    let outcomes = meet_with(cases, pages, &[]).await;
    assert!(outcomes.lost.is_empty(), "LOST in silence: {outcomes:#?}");
    outcomes
}

async fn meet_with(cases: &[Case], pages: Pages, env: &[(&'static str, &'static str)]) -> Outcomes {
    let mut recorder = Recorder::new().await;
    recorder.always = env.to_vec();
    let mut outcomes = Outcomes::default();
    recorder.watch(&[]);
    recorder.rig.start_up().await;
    recorder.load_some().await;
    for case in cases {
        println!("{} {:?}", case.fault, case.must);
        outcomes.cases += 1;
        let before = failures(&recorder);
        if case.at_start {
            meet_at_start(&mut recorder, case, &mut outcomes).await;
        } else {
            meet_under_load(&mut recorder, case, &mut outcomes).await;
        }
        assert!(failures(&recorder) > before, "{} was never met", case.fault);
        if recorder.rig.gateway.is_none() {
            let (log, root) = (&recorder.log, recorder.rig.path());
            pages::lose(pages, log, root, &["state"], &recorder.disk_dir());
        }
        check_whole(&mut recorder).await;
    }
    load::check_events(&mut recorder.rig).await;
    assert!(
        recorder.rig.stop().await.success(),
        "{}",
        recorder.rig.log()
    );
    cut_power(&recorder, &mut outcomes);
    outcomes
}

fn failures(recorder: &Recorder) -> usize {
    let tape = Tape::read(&recorder.log);
    tape.records
        .iter()
        .filter(|record| matches!(record, Record::Failed))
        .count()
}

/// A start that meets the fault, after a stop without notice.
async fn meet_at_start(recorder: &mut Recorder, case: &Case, outcomes: &mut Outcomes) {
    recorder.kill().await;
    std::fs::write(recorder.arm_file(), "").unwrap();
    recorder.watch(&[("HOLDFAST_SHIM_FAIL", &case.fault)]);
    let told = recorder.rig.log().len();
    recorder.rig.spawn();
    let ended = until_ready_or_ended(recorder).await;
    std::fs::remove_file(recorder.arm_file()).unwrap();
    if let Some(status) = ended {
        assert_told(recorder, case, told, status);
        outcomes.starts_ended += 1;
        return;
    }
    let (_, status) = recorder.rig.get("/v1/status").await;
    if status["mode"] == "recovery" {
        // Told, and nothing is sent; the next start finds everything.
        assert!(status.to_string().contains("recovery_mode"), "{status}");
        recorder.kill_at_rest();
        outcomes.starts_in_recovery += 1;
    } else {
        outcomes.starts_through += 1;
    }
}

async fn until_ready_or_ended(recorder: &mut Recorder) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        let child = recorder.rig.gateway.as_mut().unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            recorder.rig.gateway = None;
            return Some(status);
        }
        if recorder
            .rig
            .client
            .get("/readyz")
            .await
            .is_ok_and(|raw| raw.status == 200)
        {
            return None;
        }
        assert!(
            begun.elapsed() < super::harness::PATIENCE,
            "{}",
            recorder.rig.log()
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

async fn meet_under_load(recorder: &mut Recorder, case: &Case, outcomes: &mut Outcomes) {
    recorder.kill().await;
    recorder.watch(&[("HOLDFAST_SHIM_FAIL", &case.fault)]);
    recorder.rig.start_up().await;
    let told = recorder.rig.log().len();
    std::fs::write(recorder.arm_file(), "").unwrap();
    let ended = recorder.load_until_ended(case.must == Must::End).await;
    std::fs::remove_file(recorder.arm_file()).unwrap();
    match ended {
        Some(status) => {
            assert_ne!(
                case.must,
                Must::GoOn,
                "{}: it ended\n{}",
                case.fault,
                recorder.rig.log()
            );
            assert_told(recorder, case, told, status);
            outcomes.ended += 1;
        }
        None => {
            assert_ne!(
                case.must,
                Must::End,
                "{}: it went on\n{}",
                case.fault,
                recorder.rig.log()
            );
            outcomes.went_on += 1;
        }
    }
}

/// It ended by itself, not by a signal, with words that an operator can use.
fn assert_told(recorder: &Recorder, case: &Case, from: usize, status: ExitStatus) {
    let log = recorder.rig.log();
    let said = &log[from..];
    assert!(
        status.code().is_some_and(|code| code != 0),
        "{}: {status}\n{said}",
        case.fault
    );
    let clear = [
        "cannot be written",
        "cannot be used",
        "cannot be read or written",
        "high-water file",
    ];
    assert!(
        clear.iter().any(|text| said.contains(text)),
        "{}: {said}",
        case.fault
    );
    assert!(!said.contains("panicked"), "{}: {said}", case.fault);
}

/// Without the fault it starts, and everything that was told still holds.
async fn check_whole(recorder: &mut Recorder) {
    if recorder.rig.gateway.is_none() {
        recorder.watch(&[]);
        recorder.rig.start_up().await;
    }
    let tape = Tape::read(&recorder.log);
    let mut told = Told::default();
    told.advance(&tape, usize::MAX);
    let rig = &mut recorder.rig;
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["mode"], "normal", "{status}");
    for (id, state) in &told.operations {
        let (status, operation) = rig.get(&format!("/v1/operations/{id}")).await;
        assert_eq!(status, 200, "LOST: {id} was told {state}: {operation}");
        if load::is_final(state) {
            assert_eq!(operation["state"], state.as_str(), "CHANGED: {id}");
        }
    }
    let effects = load::Effects::of(&rig.device);
    for id in recorder.book.ids() {
        let count = effects.count(&recorder.book.get(&id));
        assert!(count <= 1, "TWICE: {id} had {count} effects");
    }
    let (id, body) = recorder.book.new_request(Kind::Length);
    let (_, done) = rig.submit_wait(&body).await;
    assert_eq!(done["state"], "completed", "{id}: {done}");
}

/// Power losses at moments of the whole series: what a failed sync should have written is not on the disk.
fn cut_power(recorder: &Recorder, outcomes: &mut Outcomes) {
    let tape = Tape::read(&recorder.log);
    let history = History::of(&tape, recorder.rig.path(), &["state"]);
    let (mut disk, bench) = (Disk::new(&history), Bench::new(&recorder.rig));
    let mut random = Random::new(SEED);
    let first = tape
        .records
        .iter()
        .position(|record| matches!(record, Record::Failed))
        .unwrap();
    let behind = (tape.records.len() - first) as u64;
    let mut moments: Vec<usize> = (0..IMAGES)
        .map(|_| first + random.below(behind + 1) as usize)
        .collect();
    // A cursor moves on the disk once a second and at a stop: only at the end are all that could be wrong in one.
    moments.push(tape.records.len());
    moments.sort_unstable();
    let mut told = Told::default();
    for moment in moments {
        disk.advance(moment);
        told.advance(&tape, moment);
        bench.lay(&disk.image(moment, &mut random));
        let name = match bench.judge(&told) {
            Verdict::Whole => "whole".to_owned(),
            Verdict::Recovery(code) => format!("recovery: {code}"),
            Verdict::Refused(why) => format!("refused: {why}"),
            Verdict::Lost(what) => {
                let lost = format!("power lost after entry {moment}: {what}");
                outcomes.lost.push(lost);
                "lost".to_owned()
            }
        };
        *outcomes.verdicts.entry(name).or_default() += 1;
    }
}

// covers: REC-01, CAP-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_store_end_the_process_and_nothing_told_is_lost() {
    let db = "journal/g-1/db";
    let mut cases = under_load("write", "EIO", 1, db, Must::End, &[1, 2, 7]);
    cases.extend(under_load("write", "ENOSPC", 1, db, Must::End, &[1, 4]));
    cases.extend(under_load("write", "ENOSPC", 0, db, Must::End, &[3]));
    cases.extend(under_load("write", "SHORT", 3, db, Must::GoOn, &[1, 4]));
    println!("{:#?}", meet(&cases, Pages::Kept).await);
}

fn failing_syncs() -> Vec<Case> {
    let db = "journal/g-1/db";
    let mut cases = under_load("fsync", "EIO", 1, db, Must::End, &[1, 2, 3, 5, 9]);
    cases.extend(under_load(
        "fsync",
        "EIO",
        1,
        "high-water",
        Must::End,
        &[1, 3],
    ));
    cases.extend(under_load("write", "EIO", 1, "high-water", Must::End, &[2]));
    cases
}

async fn no_failed_sync_counts(pages: Pages) {
    let outcomes = meet(&failing_syncs(), pages).await;
    println!("{outcomes:#?}");
    let verdicts: Vec<&String> = outcomes.verdicts.keys().collect();
    assert_eq!(verdicts, ["whole"], "{outcomes:?}");
}

// covers: REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_failed_once_is_never_taken_for_good() {
    no_failed_sync_counts(Pages::Forgotten).await;
}

// covers: REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_the_kernel_only_remembers_are_not_built_on() {
    no_failed_sync_counts(Pages::Kept).await;
}

// covers: FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_sink_stop_no_command_and_every_event_gets_there() {
    let part = "/events/";
    let mut cases = under_load("write", "EIO", 2, part, Must::GoOn, &[1]);
    cases.extend(under_load("write", "ENOSPC", 1, part, Must::GoOn, &[2]));
    cases.extend(under_load("write", "SHORT", 2, part, Must::GoOn, &[1]));
    cases.extend(under_load("fsync", "EIO", 1, part, Must::GoOn, &[1, 2]));
    println!("{:#?}", meet(&cases, Pages::Kept).await);
}

// covers: REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_meets_an_error_ends_or_comes_through_and_takes_nothing_for_lost() {
    let part = "journal";
    let mut cases = at_start("open", "EIO", 1, part, &[1, 2, 4, 7, 11, 16]);
    cases.extend(at_start("fsync", "EIO", 1, part, &[1, 2, 3, 4]));
    cases.extend(at_start("rename", "EIO", 1, part, &[1]));
    cases.extend(at_start("write", "EIO", 1, part, &[1, 2, 3, 6]));
    cases.extend(at_start("write", "ENOSPC", 1, part, &[2, 5]));
    cases.extend(at_start("change", "EROFS", 0, part, &[1, 4, 9, 14, 20]));
    cases.extend(at_start("change", "EROFS", 0, "high-water+", &[1, 2, 3]));
    println!("{:#?}", meet(&cases, Pages::Kept).await);
}

// covers: REC-01, CAP-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_becomes_read_only_ends_the_process_and_nothing_told_is_lost() {
    let mut cases = under_load("change", "EROFS", 0, "/", Must::End, &[1, 6, 20]);
    // The store itself has met no error yet when the process ends.
    cases.extend(under_load(
        "change",
        "EROFS",
        0,
        "high-water+",
        Must::End,
        &[1, 2],
    ));
    println!("{:#?}", meet(&cases, Pages::Kept).await);
}

/// The file system becomes read-only at each change of the sink's file in turn: odd ones are the write of a batch, even
/// ones its sync. What was written then is shown by the kernel, and is not on the disk.
fn read_only_at_the_sink() -> Vec<Case> {
    under_load(
        "change",
        "EROFS",
        0,
        "/events/+",
        Must::End,
        &[1, 2, 3, 4, 6],
    )
}

// covers: REC-01, FWD-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_could_not_be_synced_is_no_proof_of_itself() {
    println!("{:#?}", meet(&read_only_at_the_sink(), Pages::Kept).await);
}

/// The check of the check: a kernel that does not forget the sink's pages is a start that does not read the disk.
// covers: REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_believes_what_only_the_kernel_remembers_is_found() {
    let remembers = [("HOLDFAST_SHIM_REMEMBERS", "/events/")];
    let outcomes = meet_with(&read_only_at_the_sink(), Pages::Kept, &remembers).await;
    println!("{outcomes:#?}");
    assert!(
        outcomes
            .lost
            .iter()
            .any(|lost| lost.contains("is not in the sink")),
        "{outcomes:?}"
    );
}
