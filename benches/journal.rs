//! What a commit costs beside the least it can cost: an append of the same encoded bytes and an
//! `fdatasync`, in turns. Then: bytes written per payload byte over two million events, and an open
//! with a million live.
//!
//! Payload is the encoded block of each commit, as framed: about 245 bytes for an event whose body has
//! 200. Bytes written are counted three ways: what the process handed to the kernel (`wchar`), what the
//! kernel accounts to the process (`write_bytes`; with large folios it counts a whole folio for one
//! dirty page, so it overstates), and what reached the block device of the directory, file system
//! metadata and all other writers included: it is the wear, but exact only on a device of its own
//! (such as a loop mount; `JOURNAL_BENCH_DIR` says where to run).

#[path = "../tests/journal_common/mod.rs"]
mod journal_common;

use holdfast::core::ids::{CommitNo, Epoch};
use holdfast::core::record::{Block, CursorRecord, Position, Record};
use holdfast::journal::{Journal, Retention};
use journal_common::{BASE_US, HOUR_US, block, events, normal, now_at};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

const ROUNDS: u64 = 400;
const EVENT_BYTES: usize = 200;
const EVENTS_PER_BLOCK: u64 = 100;
const EVENTS_LONG_RUN: u64 = 2_000_000;
const EVENTS_LIVE: u64 = 1_000_000;
const FRAME_HEAD_BYTES: usize = 48;
const MAINTAIN_EVERY_COMMITS: u64 = 8;

fn proc_field(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(name)).unwrap_or("0 0");
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// Bytes handed to the kernel, accounted by it, and written by the device of `dir`.
fn written(dir: &Path) -> [u64; 3] {
    let device = fs::metadata(dir).map(|m| m.dev()).unwrap_or(0);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"));
    let sectors = stat
        .ok()
        .and_then(|s| s.split_whitespace().nth(6)?.parse::<u64>().ok());
    [
        proc_field("/proc/self/io", "wchar:"),
        proc_field("/proc/self/io", "write_bytes:"),
        sectors.unwrap_or(0) * 512,
    ]
}

fn median_us(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Run {
    journal: Journal,
    epoch: Epoch,
    no: u64,
    sequence: u64,
}

impl Run {
    fn begin(dir: &Path) -> Self {
        let (journal, recovered) = normal(dir);
        Self {
            journal,
            epoch: recovered.epoch,
            no: recovered.next_commit.0,
            sequence: 1,
        }
    }
    fn next(&mut self, n: u64) -> Block {
        let block = events(self.epoch, self.no, self.sequence, n, EVENT_BYTES);
        self.no += 1;
        self.sequence += n;
        block
    }
    fn commit(&mut self, block: Block) -> f64 {
        let begun = Instant::now();
        self.journal.commit(&[block]).expect("commit");
        begun.elapsed().as_secs_f64() * 1e6
    }
}

/// The block as it is stored: a frame's head and the encoded block.
fn framed(block: &Block) -> Vec<u8> {
    let body = postcard::to_stdvec(block).expect("encoding");
    [&[7; FRAME_HEAD_BYTES][..], &body].concat()
}

/// Commits and raw appends of the same size, in turns.
fn compare(home: &Path, n: u64) {
    let dir = home.join(format!("compare-{n}"));
    let mut run = Run::begin(&dir);
    let mut raw = File::create(home.join(format!("raw-{n}"))).expect("raw file");
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let block = run.next(n);
        let bytes = framed(&block);
        ours.push(run.commit(block));
        let begun = Instant::now();
        raw.write_all(&bytes)
            .and_then(|()| raw.sync_data())
            .expect("raw");
        floor.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    let (sum, sum_floor) = (ours.iter().sum::<f64>(), floor.iter().sum::<f64>());
    let (p50, p50_floor) = (median_us(&mut ours), median_us(&mut floor));
    println!(
        "commit of {n:>3} x {EVENT_BYTES} B: p50 {p50:7.0} us, floor {p50_floor:7.0} us, ratio {:.2}; events/s {:.0} of {:.0} raw ({:.2})",
        p50 / p50_floor,
        ROUNDS as f64 * n as f64 / sum * 1e6,
        ROUNDS as f64 * n as f64 / sum_floor * 1e6,
        sum_floor / sum
    );
}

/// Events flow through: written, taken by the sink, trimmed.
fn flow(home: &Path) {
    let mut run = Run::begin(&home.join("flow"));
    let policy = Retention {
        keep_events_ms: 0,
        keep_operations_ms: 1,
        keep_tombstones_ms: 1,
        sinks: vec!["mes".into()],
    };
    let (mut before, mut payload) = (written(home), 0);
    let begun = Instant::now();
    for count in 1..=EVENTS_LONG_RUN / EVENTS_PER_BLOCK {
        let block = run.next(EVENTS_PER_BLOCK);
        payload += framed(&block).len() as u64;
        run.commit(block);
        if count % MAINTAIN_EVERY_COMMITS == 0 {
            let cursor = CursorRecord {
                sink: "mes".into(),
                through: Position {
                    no: CommitNo(run.no - 1),
                    index: u32::MAX,
                },
                ..CursorRecord::default()
            };
            let cursor = block_of(&mut run, Record::Cursor(cursor));
            run.commit(cursor);
            let now = now_at(BASE_US + HOUR_US);
            run.journal.maintain(&now, &policy, 256).expect("maintain");
        }
        if count % (EVENTS_LONG_RUN / EVENTS_PER_BLOCK / 4) == 0 {
            let now = written(home);
            let per = |way: usize| (now[way] - before[way]) as f64 / payload as f64;
            let _ = run.journal.capacity();
            println!(
                "flow: {:>9} events, per payload byte {:.2} handed over, {:.2} accounted, {:.2} on the device; disk {} MiB, RSS {} MiB, {:.0} s",
                count * EVENTS_PER_BLOCK,
                per(0),
                per(1),
                per(2),
                run.journal.usage().disk_bytes >> 20,
                proc_field("/proc/self/status", "VmRSS:") >> 10,
                begun.elapsed().as_secs_f64()
            );
            (before, payload) = (now, 0);
        }
    }
}

fn block_of(run: &mut Run, record: Record) -> Block {
    let block = block(run.epoch, run.no, vec![record]);
    run.no += 1;
    block
}

fn fill(dir: &Path) {
    let mut run = Run::begin(dir);
    for _ in 0..EVENTS_LIVE / EVENTS_PER_BLOCK {
        let block = run.next(EVENTS_PER_BLOCK);
        run.commit(block);
    }
    run.journal.close().expect("close");
}

/// Opening is measured in a process of its own: its memory is the opening's alone.
fn open_once(dir: &Path) {
    let begun = Instant::now();
    let (mut journal, recovered) = normal(dir);
    let seconds = begun.elapsed().as_secs_f64();
    let _ = journal.capacity();
    println!(
        "open with {} records ({}): {seconds:.2} s, RSS {} MiB (peak {}), disk {} MiB",
        journal.usage().records,
        if recovered.clean {
            "clean stop"
        } else {
            "killed"
        },
        proc_field("/proc/self/status", "VmRSS:") >> 10,
        proc_field("/proc/self/status", "VmHWM:") >> 10,
        journal.usage().disk_bytes >> 20
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(dir) = args
        .iter()
        .position(|a| a == "open-once")
        .and_then(|at| args.get(at + 1))
    {
        return open_once(Path::new(dir));
    }
    let place = std::env::var("JOURNAL_BENCH_DIR").unwrap_or_else(|_| ".".into());
    let home = tempfile::tempdir_in(place).expect("a directory on a real disk");
    compare(home.path(), 1);
    compare(home.path(), EVENTS_PER_BLOCK);
    flow(home.path());
    let dir = home.path().join("live");
    fill(&dir);
    for _ in 0..2 {
        // The first opens after a clean stop, and is not closed: the second opens after a kill.
        let me = std::env::current_exe().expect("own path");
        let status = std::process::Command::new(me)
            .arg("open-once")
            .arg(&dir)
            .status();
        assert!(status.is_ok_and(|s| s.success()), "opening failed");
    }
}
