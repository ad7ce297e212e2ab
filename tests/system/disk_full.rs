//! A disk without room: refused with the reason, outcomes still kept, and back to work by itself.

use super::harness::{PATIENCE, PRESS, PRESS_SIM, Rig};
use super::load::{self, Book, Random, ask};
use serde_json::{Value as Json, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tempfile::TempDir;

/// A file system of its own; gone when dropped.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// In memory.
    pub(crate) fn new(mebibytes: u32) -> Self {
        let dir = tempfile::Builder::new().prefix("hfdisk").tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], dir.path());
        Self { dir }
    }
    /// As on a device: ext4 in a file of its own.
    fn ext4(mebibytes: u32) -> Self {
        let dir = tempfile::Builder::new().prefix("hfdisk").tempdir().unwrap();
        let image = dir.path().with_extension("image");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(u64::from(mebibytes) << 20).unwrap();
        run("mkfs.ext4", &["-q", "-m", "0"], &image);
        let name = image.to_str().unwrap();
        run("mount", &["-o", "loop", name], dir.path());
        // The loop device keeps it until it is unmounted.
        std::fs::remove_file(&image).unwrap();
        Self { dir }
    }
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }
    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        stat.f_bavail * stat.f_frsize
    }
    /// Somebody else takes the room, but for so much.
    pub(crate) fn fill(&self, leave_bytes: u64) {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .unwrap();
        let block = vec![0x55; 4096];
        while self.free_bytes() >= leave_bytes + 4096 {
            if file.write_all(&block).is_err() {
                break;
            }
        }
    }
    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Runs a program of the system, or fails: without it nothing is proven.
fn run(program: &str, args: &[&str], path: &Path) {
    let done = Command::new(program)
        .args(args)
        .arg(path)
        .output()
        .unwrap_or_else(|error| panic!("{program} (util-linux, e2fsprogs): {error}"));
    assert!(
        done.status.success(),
        "this test mounts a small file system, which takes root: {program} {args:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A rig whose journal lives on `disk`, with a cycle that takes a while.
async fn rig_on(disk: &SmallDisk) -> Rig {
    let machine = load::machine_toml(PRESS).replace("\"3s\"", "\"60s\"");
    let sim = load::sim_toml(PRESS_SIM).replace("\"200ms\"", "\"4s\"");
    let mut rig = Rig::with(&machine, &sim).await;
    let own = format!("{}/state", rig.path().display());
    let small = format!("{}/state", disk.path().display());
    std::fs::create_dir(&small).unwrap();
    rig.gateway_toml = rig.gateway_toml.replace(&own, &small);
    rig.gateway_toml += "[journal]\nbudget = \"64MiB\"\n";
    rig
}

/// Submits new commands until one is refused for want of room; that one's body.
async fn until_refused(rig: &mut Rig, book: &Book) -> (String, Json) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (id, body) = book.new_request(load::Kind::Length);
        let (status, answer) = ask(&rig.client, "/v1/operations?wait=2s", Some(&body))
            .await
            .unwrap_or_else(|| panic!("no answer\n{}", rig.log()));
        match status {
            507 => {
                assert_eq!(answer["code"], "capacity_full", "{answer}");
                assert!(
                    answer["detail"].as_str().unwrap().contains("bytes"),
                    "{answer}"
                );
                return (id, body);
            }
            201 => book.hear(&id, &answer),
            _ => panic!("{status} {answer}"),
        }
        assert!(Instant::now() < deadline, "never refused\n{}", rig.log());
    }
}

/// What a full disk must leave possible.
async fn check_full(rig: &Rig) {
    let query = json!({ "machine": "press-1", "command": "read_status", "args": {} });
    let (status, answer) = ask(&rig.client, "/v1/operations?wait=2s", Some(&query))
        .await
        .unwrap();
    assert_eq!(status, 200, "a query is answered: {answer}");
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["journal"]["state"], "full", "{status}");
    assert_eq!(status["mode"], "normal", "{status}");
    let alarms = status["alarms"].as_array().unwrap();
    let alarm = alarms
        .iter()
        .find(|alarm| alarm["code"] == "journal_full")
        .unwrap_or_else(|| panic!("no alarm: {status}"));
    assert_eq!(alarm["severity"], "critical");
    assert!(
        alarm["do"].as_str().unwrap().contains("free disk space"),
        "{alarm}"
    );
}

/// The service manager: starts it again whenever it ends by itself.
async fn supervise_until(rig: &mut Rig, what: &str, done: impl AsyncFn(&Rig) -> bool) -> usize {
    let deadline = Instant::now() + PATIENCE * 2;
    let mut starts = 0;
    while !done(rig).await {
        assert!(Instant::now() < deadline, "in vain: {what}\n{}", rig.log());
        let ended = rig
            .gateway
            .as_mut()
            .is_none_or(|child| child.try_wait().unwrap().is_some());
        if ended {
            rig.kill();
            rig.spawn();
            starts += 1;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    starts
}

async fn is_ready(rig: &Rig) -> bool {
    rig.client
        .get("/readyz")
        .await
        .is_ok_and(|raw| raw.status == 200)
}

async fn check_whole(rig: &mut Rig, book: &Book) {
    rig.until_link("up").await;
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["mode"], "normal", "{status}\n{}", rig.log());
    book.verify(&rig.client, &rig.device, &book.ids()).await;
    load::Effects::of(&rig.device).all_asked_for(book);
}

// covers: CAP-02, F093
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_little_room_commands_are_refused_and_outcomes_are_kept() {
    let disk = SmallDisk::new(48);
    let mut rig = rig_on(&disk).await;
    rig.start_up().await;
    let book = Book::default();
    let (known, known_body) = book.new_request(load::Kind::Length);
    let (_, done) = rig.submit_wait(&known_body).await;
    assert_eq!(done["state"], "completed", "{done}");
    book.hear(&known, &done);
    let cycle = rig.request("CYCLE", "start_cycle", json!({ "cycle": 3 }));
    let (status, _) = rig.submit(&cycle).await;
    assert_eq!(status, 201);
    rig.until_state("CYCLE", "accepted").await;

    disk.fill(1 << 20);
    let (refused, refused_body) = until_refused(&mut rig, &book).await;
    check_full(&rig).await;
    // Nothing of the refused one was kept or sent; what is known still answers.
    let (status, _) = ask(&rig.client, &format!("/v1/operations/{refused}"), None)
        .await
        .unwrap();
    assert_eq!(status, 404);
    let (status, again) = ask(&rig.client, "/v1/operations", Some(&known_body))
        .await
        .unwrap();
    assert_eq!((status, &again["result_id"]), (200, &done["result_id"]));
    // The machine reports the end of the cycle while there is no room for anything new.
    let ended = rig.until_state("CYCLE", "completed").await;
    assert_eq!(ended["family"], "known");
    check_full(&rig).await;

    disk.make_room();
    rig.until("it takes commands again by itself", async |rig| {
        let answer = ask(&rig.client, "/v1/operations?wait=5s", Some(&refused_body)).await;
        answer.is_some_and(|(status, answer)| {
            if status == 201 {
                book.hear(&refused, &answer);
            }
            status == 201
        })
    })
    .await;
    assert_eq!(rig.state(&refused).await, "completed");
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["journal"]["state"], "ok", "{status}");
    book.verify(&rig.client, &rig.device, &book.ids()).await;
    rig.kill();
    rig.start_up().await;
    assert_eq!(rig.state("CYCLE").await, "completed");
    book.verify(&rig.client, &rig.device, &book.ids()).await;
}

// covers: CAP-02, F093, REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_filled_to_the_last_byte_under_load_loses_nothing() {
    filled_to_the_last_byte(&SmallDisk::new(48), 3).await;
}

// covers: CAP-02, F093, REC-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_on_ext4() {
    filled_to_the_last_byte(&SmallDisk::ext4(64), 3).await;
}

async fn filled_to_the_last_byte(disk: &SmallDisk, turns: u64) {
    let mut rig = rig_on(disk).await;
    let book = Arc::new(Book::default());
    rig.start_up().await;
    let mut random = Random::new(93);
    for turn in 0..turns {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for caller in 0..3 {
            let (book, client, stop) = (Arc::clone(&book), rig.client.clone(), Arc::clone(&stop));
            let seed = Random::new(turn * 8 + caller).next();
            tasks.push(tokio::spawn(async move {
                book.call_until(client, seed, stop).await
            }));
        }
        tasks.push(tokio::spawn(load::tick_until(
            rig.device.clone(),
            Arc::clone(&stop),
        )));
        let before = book.len();
        let load = 20 + random.below(60) as usize;
        rig.until("the load is there", async |_| book.len() > before + load)
            .await;
        disk.fill(0);
        let refused = book.refused.load(Ordering::Relaxed);
        supervise_until(
            &mut rig,
            "it refuses, or has ended and waits for room",
            async |rig| {
                book.refused.load(Ordering::Relaxed) > refused
                    || rig.log().contains("No space")
                    || rig.log().contains("are free")
            },
        )
        .await;
        if turn == turns - 1 {
            // Killed and started again while there is no room at all.
            rig.kill();
            rig.spawn();
            let told = rig.log().len();
            supervise_until(&mut rig, "it says what it waits for", async |rig| {
                rig.log().len() > told || is_ready(rig).await
            })
            .await;
        }
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("a caller's check failed");
        }
        disk.make_room();
        let starts = supervise_until(&mut rig, "it is back by itself", is_ready).await;
        println!("turn {turn}: started again {starts} times after there was room");
        check_whole(&mut rig, &book).await;
        let (id, body) = book.new_request(load::Kind::Length);
        rig.until("commands are taken", async |rig| {
            let answer = ask(&rig.client, "/v1/operations?wait=5s", Some(&body)).await;
            answer.is_some_and(|(status, answer)| {
                if status < 300 {
                    book.hear(&id, &answer);
                }
                status < 300
            })
        })
        .await;
        assert_eq!(rig.state(&id).await, "completed");
    }
    load::check_events(&mut rig).await;
    println!("{} operations: {:?}", book.len(), book.states());
}

// covers: FWD-01, F093
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_sink_directory_stops_no_command_and_gets_every_event_once_later() {
    let disk = SmallDisk::new(4);
    let mut rig = Rig::with(&load::machine_toml(PRESS), &load::sim_toml(PRESS_SIM)).await;
    // The harness reads the lines where it always does.
    std::fs::create_dir(disk.path().join("events")).unwrap();
    std::os::unix::fs::symlink(disk.path().join("events"), rig.path().join("events")).unwrap();
    rig.start_up().await;
    let book = Book::default();
    let mut random = Random::new(1);
    let (id, body) = book.new_request(load::Kind::Length);
    book.send(&rig.client, &id, &body, &mut random).await;
    rig.until("the first lines are there", async |rig| {
        !rig.sink_lines().is_empty()
    })
    .await;
    disk.fill(0);
    // More than fits in the last block of the file.
    for _ in 0..40 {
        let (id, body) = book.new_request(load::Kind::Length);
        let (status, done) = rig.submit_wait(&body).await;
        assert_eq!(
            (status, done["state"].as_str()),
            (201, Some("completed")),
            "{done}"
        );
        book.hear(&id, &done);
    }
    rig.until("status says that the sink waits", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        let alarms = status["alarms"].as_array().unwrap();
        alarms.iter().any(|alarm| {
            alarm["code"] == "sink_not_taking"
                && alarm["text"].as_str().unwrap().contains("the disk is full")
        })
    })
    .await;
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["journal"]["state"], "ok", "{status}");
    rig.kill();
    rig.start_up().await;
    disk.make_room();
    rig.clock.pass(120_000);
    let events = load::check_events(&mut rig).await;
    assert!(events > 80, "{events}");
    book.verify(&rig.client, &rig.device, &book.ids()).await;
}

// covers: CAP-02, F093, REC-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_waits_for_room_and_takes_nothing_for_damage() {
    for (disk, clean) in [
        (SmallDisk::new(48), true),
        (SmallDisk::ext4(64), true),
        (SmallDisk::ext4(64), false),
    ] {
        let mut rig = rig_on(&disk).await;
        let book = Book::default();
        rig.start_up().await;
        for _ in 0..20 {
            let (id, body) = book.new_request(load::Kind::Mailbox);
            let (_, done) = rig.submit_wait(&body).await;
            book.hear(&id, &done);
        }
        // Room for the copy, for the store's first writes, for neither.
        for leave_bytes in [0, 256 << 10, 6 << 20] {
            if clean {
                assert!(rig.stop().await.success(), "{}", rig.log());
            } else {
                rig.kill();
            }
            disk.fill(leave_bytes);
            let told = rig.log().len();
            rig.spawn();
            supervise_until(
                &mut rig,
                "it says what it waits for, or runs",
                async |rig| is_ready(rig).await || rig.log()[told..].contains("ERROR"),
            )
            .await;
            disk.make_room();
            supervise_until(&mut rig, "it is back by itself", is_ready).await;
            check_whole(&mut rig, &book).await;
        }
    }
}

// covers: CAP-01, CAP-05, F093
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_at_its_budget_refuses_with_another_reason_than_a_full_disk() {
    let mut rig = Rig::with(&load::machine_toml(PRESS), &load::sim_toml(PRESS_SIM)).await;
    rig.gateway_toml += "[journal]\nbudget = \"64MiB\"\n";
    rig.start_up().await;
    let book = Book::default();
    let (known, known_body) = book.new_request(load::Kind::Mailbox);
    let (_, done) = rig.submit_wait(&known_body).await;
    book.hear(&known, &done);
    // The budget is what the directory takes on the disk, whatever takes it.
    let ballast = rig.journal_dir().join("ballast");
    std::fs::write(&ballast, vec![0x55; 62 << 20]).unwrap();
    let (refused, body) = until_refused(&mut rig, &book).await;
    check_full(&rig).await;
    let (_, status) = rig.get("/v1/status").await;
    assert!(
        status.to_string().contains("of a budget of 67108864"),
        "{status}"
    );
    assert_eq!(status["journal"]["budget_bytes"], "67108864");
    let (status, again) = ask(&rig.client, "/v1/operations", Some(&known_body))
        .await
        .unwrap();
    assert_eq!((status, &again["result_id"]), (200, &done["result_id"]));
    std::fs::remove_file(&ballast).unwrap();
    rig.until("it takes commands again by itself", async |rig| {
        let answer = ask(&rig.client, "/v1/operations?wait=5s", Some(&body)).await;
        answer.is_some_and(|(status, _)| status == 201)
    })
    .await;
    assert_eq!(rig.state(&refused).await, "completed");
    book.verify(&rig.client, &rig.device, &book.ids()).await;
}
