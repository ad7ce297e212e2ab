//! Owns: the runs: record, cut the power at many moments, judge.
//! May call: recording, disk, judge.
//! Never: pass if a loss was silent, or if nothing could have been lost.

use super::disk::{Disk, History, Image};
use super::judge::{Bench, Verdict};
use super::load::{self, Effects, Random};
use super::recording::{Recorder, Told, effects_in_all, simulator_toml};
use super::tape::{Record, Tape};
use holdfast::simulator::{Simulator, SimulatorSpec};
use std::collections::BTreeMap;
use std::path::Path;

/// Replays the same choices; another one by `HOLDFAST_SEED`.
const SEED: u64 = 0x0070_6f77_6572;
/// Another number by `HOLDFAST_IMAGES`.
const IMAGES: u64 = 200;
/// Images of one recording; more are of another one.
const IMAGES_PER_RECORDING: u64 = 100;
/// Of so many images, one is also started by the real binary.
const IMAGES_PER_START: usize = 25;
/// Within so many images a deliberate fault must show.
const FAULT_IMAGES: u64 = 200;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// When power is lost: anywhere, just after something was told, just before a sync returns, while it stops or starts.
fn moments(tape: &Tape, count: u64, random: &mut Random) -> Vec<usize> {
    let all = tape.records.len();
    let marks: Vec<(usize, &str)> = tape.marks().collect();
    let syncs: Vec<usize> = (0..all)
        .filter(|at| matches!(tape.records[*at], Record::SyncEnd { .. }))
        .collect();
    // The first thing told after a start is its epoch.
    let mut starts = Vec::new();
    for (nth, (at, text)) in marks.iter().enumerate() {
        if text.starts_with("epoch") {
            starts.push((nth.checked_sub(1).map_or(0, |before| marks[before].0), *at));
        }
    }
    let one = |count: usize, random: &mut Random| random.below(count as u64) as usize;
    let mut moments: Vec<usize> = (0..count)
        .map(|_| match random.below(10) {
            0..=3 => one(all + 1, random),
            4..=6 => marks[one(marks.len(), random)].0 + 1,
            7 => syncs[one(syncs.len(), random)],
            _ => {
                let (from, to) = starts[one(starts.len(), random)];
                from + one(to - from + 1, random)
            }
        })
        .collect();
    moments.sort_unstable();
    moments
}

/// What became of all images.
#[derive(Debug, Default)]
struct Counts {
    images: usize,
    whole: usize,
    recovery: BTreeMap<String, usize>,
    refused: BTreeMap<String, usize>,
    lost: Vec<String>,
    with_loose: usize,
    torn: usize,
    /// Started by the real binary too.
    started: usize,
    recordings: usize,
    entries: usize,
    syncs: usize,
    /// Where it was met.
    places: BTreeMap<&'static str, usize>,
    /// Of what had been told by then, in all images.
    told: BTreeMap<&'static str, usize>,
}

/// What must have been met: creation, a start after a kill, a stop.
const PLACES: [&str; 5] = [
    "before the journal was created",
    "with the copy of an unclean start",
    "with half of that copy",
    "after a clean stop",
    "under way",
];

fn place(image: &Image) -> &'static str {
    let is_there = |name: &str| {
        let below = Path::new("state/journal").join(name);
        image.files.keys().any(|path| path.starts_with(&below))
    };
    if !is_there("created") {
        PLACES[0]
    } else if is_there("aside") {
        PLACES[1]
    } else if is_there("aside.copying") {
        PLACES[2]
    } else if is_there("clean") {
        PLACES[3]
    } else {
        PLACES[4]
    }
}

impl Counts {
    fn count_told(&mut self, told: &Told) {
        for (what, many) in [
            ("operations", told.operations.len()),
            ("effects", told.effects.len()),
            ("events", told.events.len()),
            ("items", told.items.len()),
        ] {
            *self.told.entry(what).or_default() += many;
        }
    }

    fn take(&mut self, moment: usize, verdict: Verdict) {
        self.images += 1;
        match verdict {
            Verdict::Whole => self.whole += 1,
            Verdict::Recovery(code) => *self.recovery.entry(code).or_default() += 1,
            Verdict::Refused(why) => *self.refused.entry(why).or_default() += 1,
            Verdict::Lost(what) => self.lost.push(format!("after entry {moment}: {what}")),
        }
    }
}

/// Records, then judges images; stops at the first loss if one is wanted.
async fn cut(seed: u64, images: u64, fault: Option<&str>, counts: &mut Counts) {
    let mut recorder = Recorder::new().await;
    let env: Vec<(&str, &str)> = fault.iter().map(|name| ("HOLDFAST_FAULT", *name)).collect();
    recorder.run(seed, &env).await;
    let tape = Tape::read(&recorder.log);
    let history = History::of(&tape, recorder.rig.path(), &["state"]);
    let mut disk = Disk::new(&history);
    let bench = Bench::new(&recorder.rig);
    bench.assert_same(&disk.whole());
    let mut random = Random::new(seed ^ 1);
    let mut told = Told::default();
    let is_sync = |record: &&Record| matches!(record, Record::SyncEnd { .. });
    counts.recordings += 1;
    counts.entries += tape.records.len();
    counts.syncs += tape.records.iter().filter(is_sync).count();
    for (nth, moment) in moments(&tape, images, &mut random).into_iter().enumerate() {
        disk.advance(moment);
        told.advance(&tape, moment);
        let image = disk.image(moment, &mut random);
        counts.with_loose += usize::from(image.loose > 0);
        counts.torn += usize::from(image.kept > 0 && image.kept < image.loose);
        *counts.places.entry(place(&image)).or_default() += 1;
        counts.count_told(&told);
        bench.lay(&image);
        counts.take(moment, bench.judge(&told));
        if fault.is_some() && !counts.lost.is_empty() {
            break;
        }
        if nth % IMAGES_PER_START == IMAGES_PER_START / 2 && fault.is_none() {
            bench.lay(&image);
            start_on(&mut recorder, &told).await;
            counts.started += 1;
        }
    }
}

/// The real binary on an image, and a machine that is new since; everything is asked for once more.
async fn start_on(recorder: &mut Recorder, told: &Told) {
    let rig = &mut recorder.rig;
    let spec = SimulatorSpec::from_toml(&simulator_toml()).unwrap();
    let old = rig.simulator.address().to_string();
    rig.simulator = Simulator::start(spec).await.unwrap();
    rig.device = rig.simulator.device();
    rig.machine_toml = rig
        .machine_toml
        .replace(&old, &rig.simulator.address().to_string());
    rig.start_up().await;
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["mode"], "normal", "{status}");
    let epoch: u64 = status["journal"]["epoch"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(epoch > told.epoch, "epoch {epoch} again");
    let book = &recorder.book;
    for id in book.ids() {
        let asked = book.get(&id);
        let (status, answer) = load::ask(&rig.client, "/v1/operations", Some(&asked.body))
            .await
            .unwrap();
        assert!(
            status != 201 || !told.operations.contains_key(&id),
            "LOST: {id} is taken anew: {answer}"
        );
    }
    rig.until("all operations come to rest", async |rig| {
        for state in ["queued", "sending", "accepted"] {
            let (_, list) = rig
                .get(&format!("/v1/operations?state={state}&limit=1000"))
                .await;
            if !list["operations"].as_array().unwrap().is_empty() {
                return false;
            }
        }
        true
    })
    .await;
    let since = Effects::of(&rig.device);
    for id in book.ids() {
        let count = effects_in_all(told, &since, &id, &book.get(&id));
        assert!(count <= 1, "TWICE: {id} had {count} effects\n{}", rig.log());
    }
    let shown = rig.events().await;
    let keys: std::collections::BTreeSet<String> = shown
        .iter()
        .map(|event| {
            let text = |name: &str| event[name].as_str().unwrap();
            format!("{}/{}/{}", text("source"), text("epoch"), text("sequence"))
        })
        .collect();
    assert_eq!(keys.len(), shown.len(), "a key stands twice");
    assert!(
        told.events.is_subset(&keys),
        "lost: {:?}",
        told.events.difference(&keys)
    );
    rig.kill();
}

// covers: REL-02, REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_power_loss_at_any_moment_nothing_told_is_lost_in_silence() {
    let (seed, images) = (
        number("HOLDFAST_SEED", SEED),
        number("HOLDFAST_IMAGES", IMAGES),
    );
    println!("HOLDFAST_SEED={seed} HOLDFAST_IMAGES={images}");
    let mut counts = Counts::default();
    while (counts.images as u64) < images {
        let more = (images - counts.images as u64).min(IMAGES_PER_RECORDING);
        let seed = seed + counts.recordings as u64;
        cut(seed, more, None, &mut counts).await;
    }
    println!("{counts:#?}");
    assert!(counts.lost.is_empty(), "{:#?}", counts.lost);
    assert!(
        counts.with_loose * 2 > counts.images,
        "too little was at stake: {counts:?}"
    );
    assert!(
        counts.torn * 8 > counts.images,
        "too little was torn: {counts:?}"
    );
    assert!(counts.started > 0, "{counts:?}");
    for place in PLACES {
        assert!(
            counts.places.contains_key(place),
            "never {place}: {counts:?}"
        );
    }
    assert!(counts.told.values().all(|many| *many > 0), "{counts:?}");
}

/// A fault that is put in on purpose is found.
async fn must_be_found(fault: &str) {
    let mut counts = Counts::default();
    cut(SEED, FAULT_IMAGES, Some(fault), &mut counts).await;
    println!("{fault}: {:?} after {} images", counts.lost, counts.images);
    assert!(!counts.lost.is_empty(), "{fault} was not found: {counts:?}");
}

// covers: REL-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_before_the_sync_is_found() {
    must_be_found("AcknowledgeBeforeSync").await;
}

// covers: REL-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_not_synced_is_found() {
    must_be_found("DirectoryNotSynced").await;
}
