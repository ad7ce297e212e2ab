//! Killed at random under load, again and again: nothing acknowledged is lost, nothing is done twice.

use super::harness::{PRESS, PRESS_SIM, Rig};
use super::load::{self, Book, Effects, Random};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Replays with the same choices and kill times; another one by `HOLDFAST_SEED`.
const SEED: u64 = 0x0048_6f6c_6466_6173;
/// Another number by `HOLDFAST_ROUNDS`.
const ROUNDS: u64 = 200;
/// Who submits at once.
const CALLERS: u64 = 4;
/// Operations of earlier rounds that are looked at again after each start.
const SAMPLE: u64 = 15;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// It runs, is not in recovery mode, and its epoch is above all before.
async fn check_start(rig: &Rig, last_epoch: &mut u64) {
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["mode"], "normal", "{status}\n{}", rig.log());
    let epoch: u64 = status["journal"]["epoch"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(epoch > *last_epoch, "epoch {epoch} after {last_epoch}");
    *last_epoch = epoch;
}

/// Loads the gateway, then kills it.
async fn load_and_kill(rig: &mut Rig, book: &Arc<Book>, random: &mut Random) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..CALLERS {
        let (book, client, stop) = (Arc::clone(book), rig.client.clone(), Arc::clone(&stop));
        let seed = random.next();
        tasks.push(tokio::spawn(async move {
            book.call_until(client, seed, stop).await;
        }));
    }
    let ticker = tokio::spawn(load::tick_until(rig.device.clone(), Arc::clone(&stop)));
    // The fault itself: a kill, and sometimes a lost connection before, at random moments.
    if random.one_in(5) {
        tokio::time::sleep(Duration::from_millis(random.below(150))).await;
        rig.device.close_connections();
    }
    tokio::time::sleep(Duration::from_millis(5 + random.below(280))).await;
    rig.kill();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a caller's check failed");
    }
    ticker.await.unwrap();
}

// covers: REL-01, REC-01, REC-02, SEND-01, CMD-02, CMD-05, CMD-07, EVT-01, EVT-02, ST-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_under_load_nothing_told_is_lost_and_nothing_is_done_twice() {
    let (seed, rounds) = (
        number("HOLDFAST_SEED", SEED),
        number("HOLDFAST_ROUNDS", ROUNDS),
    );
    println!("HOLDFAST_SEED={seed} HOLDFAST_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let mut rig = Rig::with(&load::machine_toml(PRESS), &load::sim_toml(PRESS_SIM)).await;
    let book = Arc::new(Book::default());
    let (mut last_epoch, mut in_start, mut checked) = (0, 0, 0);
    let begun = Instant::now();
    for _ in 0..rounds {
        if random.one_in(5) {
            in_start += 1;
            rig.spawn();
            tokio::time::sleep(Duration::from_millis(random.below(200))).await;
            rig.kill();
            continue;
        }
        rig.start().await;
        check_start(&rig, &mut last_epoch).await;
        let ids = book.ids();
        let mut look: Vec<String> = ids.iter().rev().take(40).cloned().collect();
        for _ in 0..SAMPLE.min(ids.len() as u64) {
            look.push(ids[random.below(ids.len() as u64) as usize].clone());
        }
        checked += look.len();
        book.verify(&rig.client, &rig.device, &look).await;
        load_and_kill(&mut rig, &book, &mut random).await;
    }
    rig.start_up().await;
    check_start(&rig, &mut last_epoch).await;
    // A mailbox proves what became of its commands; they are not left unknown.
    let ids = book.ids();
    rig.until("every mailbox command has its proof", async |rig| {
        let path = "/v1/operations?state=outcome_unknown&limit=1000";
        let (_, list) = rig.get(path).await;
        let open = list["operations"].as_array().unwrap();
        open.iter()
            .all(|operation| operation["command"] != "eject_marked")
    })
    .await;
    book.verify(&rig.client, &rig.device, &ids).await;
    let effects = Effects::of(&rig.device);
    effects.all_asked_for(&book);
    let events = load::check_events(&mut rig).await;
    assert!(rig.stop().await.success(), "{}", rig.log());
    println!(
        "{rounds} rounds in {:.1} s, {in_start} killed while starting; {} operations asked for, {checked} looked at \
         after a kill and all at the end, {} effects, {} values read, {} refusals, {events} events; {:?}",
        begun.elapsed().as_secs_f64(),
        book.len(),
        effects.total(),
        book.values_read.load(Ordering::Relaxed),
        book.refused.load(Ordering::Relaxed),
        book.states()
    );
    let completed = book.states().get("completed").copied().unwrap_or(0);
    assert!(
        completed as u64 >= rounds,
        "too little load: {:?}",
        book.states()
    );
}
