//! Owns: the runs: record, cut the power at many moments, judge.
//! May call: recording, disk, judge.
//! Never: pass if a loss was silent, or if nothing could have been lost.

use super::disk::{Disk, History};
use super::judge::{Bench, Verdict};
use super::load::{self, Effects, Random};
use super::recording::{Recorder, Told, effects_in_all};
use super::tape::{Record, Tape};
use holdfast::simulator::{Simulator, SimulatorSpec};
use std::collections::BTreeMap;

/// Replays the same choices; another one by `HOLDFAST_SEED`.
const SEED: u64 = 0x0070_6f77_6572;
/// Another number by `HOLDFAST_IMAGES`.
const IMAGES: u64 = 240;
/// Of so many images, one is also started by the real binary.
const IMAGES_PER_START: usize = 20;
/// Within so many images a deliberate fault must show.
const FAULT_IMAGES: u64 = 200;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// When power is lost: anywhere, just after something was told, just before a sync returns.
fn moments(tape: &Tape, count: u64, random: &mut Random) -> Vec<usize> {
    let all = tape.records.len();
    let told: Vec<usize> = tape.marks().map(|(at, _)| at + 1).collect();
    let syncs: Vec<usize> = (0..all)
        .filter(|at| matches!(tape.records[*at], Record::SyncEnd { .. }))
        .collect();
    let mut moments: Vec<usize> = (0..count)
        .map(|_| {
            let of = |from: &[usize], random: &mut Random| {
                from[random.below(from.len() as u64) as usize]
            };
            match random.below(10) {
                0..=4 => random.below(all as u64 + 1) as usize,
                5..=7 => of(&told, random),
                _ => of(&syncs, random),
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
    started: usize,
}

impl Counts {
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
async fn cut(seed: u64, images: u64, fault: Option<&str>) -> Counts {
    let mut recorder = Recorder::new().await;
    let env: Vec<(&str, &str)> = fault.iter().map(|name| ("HOLDFAST_FAULT", *name)).collect();
    recorder.run(seed, &env).await;
    let tape = Tape::read(&recorder.log);
    let history = History::of(&tape, recorder.rig.path(), &["state"]);
    let mut disk = Disk::new(&history);
    let bench = Bench::new(&recorder.rig);
    bench.assert_same(&disk.whole());
    let mut random = Random::new(seed ^ 1);
    let (mut told, mut counts) = (Told::default(), Counts::default());
    for (nth, moment) in moments(&tape, images, &mut random).into_iter().enumerate() {
        disk.advance(moment);
        told.advance(&tape, moment);
        let image = disk.image(moment, &mut random);
        counts.with_loose += usize::from(image.loose > 0);
        counts.torn += usize::from(image.kept > 0 && image.kept < image.loose);
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
    counts
}

/// The real binary on an image, and a machine that is new since; everything is asked for once more.
async fn start_on(recorder: &mut Recorder, told: &Told) {
    let rig = &mut recorder.rig;
    let spec = SimulatorSpec::from_toml(&load::sim_toml(super::harness::PRESS_SIM)).unwrap();
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
    let counts = cut(seed, images, None).await;
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
}

/// A fault that is put in on purpose is found.
async fn must_be_found(fault: &str) {
    let counts = cut(SEED, FAULT_IMAGES, Some(fault)).await;
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
