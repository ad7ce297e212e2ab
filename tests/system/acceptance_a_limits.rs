//! Rows A17, A19, A21, A26: full, damaged, and many at once.

use super::acceptance_a::{eject, refused, set_length};
use super::harness::{PATIENCE, Rig};
use holdfast::api::server::CONNECTIONS_COUNT_MAX;
use holdfast::cli::exit::Failure;
use holdfast::simulator::Cause;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

// covers: A21
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_at_once_under_one_id() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let body = eject(&rig, "OP7").to_string();
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let (client, body) = (rig.client.clone(), body.clone());
        callers.spawn(async move {
            let path = "/v1/operations?wait=20s";
            client.post(path, body, 20_000).await.unwrap()
        });
    }
    let answers = callers.join_all().await;
    let results: HashSet<String> = answers
        .iter()
        .map(|raw| serde_json::from_str::<Json>(&raw.text).unwrap())
        .map(|operation| {
            assert_eq!(operation["state"], "completed", "{operation}");
            operation["result_id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(results.len(), 1);
    let fresh = answers.iter().filter(|raw| raw.status == 201).count();
    assert_eq!((fresh, answers.len()), (1, 64));
    assert!(
        answers
            .iter()
            .all(|raw| raw.replayed == (raw.status == 200))
    );
    let operation = rig.operation("OP7").await;
    assert_eq!(operation["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(rig.device.holding(200), 1);
}

/// Submits commands that may not wait, while nothing is connected, until there is no room for their refusals.
async fn fill(rig: &Rig) {
    const WORKERS: usize = 32;
    const EACH_MAX: usize = 1_000;
    let full = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (client, full) = (rig.client.clone(), Arc::clone(&full));
        let request = eject(rig, "");
        workers.spawn(async move {
            for n in 0..EACH_MAX {
                if full.load(Ordering::Relaxed) {
                    return;
                }
                let mut request = request.clone();
                request["operation_id"] = format!("{:.<120}", format!("F-{worker}-{n}")).into();
                let answer = client.post("/v1/operations", request.to_string(), 0).await;
                match answer {
                    Err(Failure::Problem { status: 507, .. }) => {
                        full.store(true, Ordering::Relaxed)
                    }
                    Err(Failure::Problem { status: 409, .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
    }
    workers.join_all().await;
    assert!(full.load(Ordering::Relaxed), "it never was full");
}

// covers: A17, CAP-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_journal_takes_nothing_new_and_forgets_nothing_old() {
    const KEPT_BYTES: usize = 48 << 20;
    let mut rig = Rig::new().await;
    rig.gateway_toml += "[journal]\nbudget = \"64MiB\"\n";
    rig.start_up().await;
    // Somebody's copy in the journal's directory takes most of the budget; operations fill the rest.
    let copy = rig.journal_dir().join("kept-by-hand");
    std::fs::write(&copy, vec![0x5A; KEPT_BYTES]).unwrap();
    let request = rig.set_speed("OP7", 50);
    let (_, first) = rig.submit_wait(&request).await;
    assert_eq!(first["state"], "completed", "{first}");
    rig.cut().await;
    fill(&rig).await;
    rig.restore().await;

    let new = eject(&rig, "OP8");
    refused(&rig.submit(&new).await, 507, "capacity_full");
    assert_eq!(rig.get("/v1/operations/OP8").await.0, 404);
    assert_eq!(rig.submit(&request).await, (200, first.clone()));
    assert_eq!(rig.operation("OP7").await, first);
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["journal"]["state"], "full", "{status}");
    let alarm = |status: &Json| {
        let alarms = status["alarms"].as_array().unwrap();
        alarms.iter().any(|alarm| alarm["code"] == "journal_full")
    };
    assert!(alarm(&status), "{status}");
    let raised =
        |event: &Json| event["type"] == "alarm.raised" && event["body"]["code"] == "journal_full";
    assert!(rig.events().await.iter().any(raised));
    assert_eq!((rig.speed_writes(), rig.device.holding(200)), (1, 0));

    // Room is made, and the same request goes through.
    std::fs::remove_file(&copy).unwrap();
    rig.until("there is room", async |rig| {
        !alarm(&rig.get("/v1/status").await.1)
    })
    .await;
    let (status, operation) = rig.submit_wait(&new).await;
    assert_eq!(
        (status, &operation["state"]),
        (201, &json!("completed")),
        "{operation}"
    );
    assert_eq!((rig.speed_writes(), rig.device.holding(200)), (1, 1));
}

/// Inverts a byte behind every place in the store where the id stands.
pub(super) fn damage(rig: &Rig, id: &str) {
    let generation = std::fs::read_dir(rig.journal_dir()).unwrap().flatten();
    let mut stores = generation
        .map(|entry| entry.path().join("db"))
        .filter(|path| path.exists());
    let db = stores.next().expect("a store");
    let mut bytes = std::fs::read(&db).unwrap();
    let places: Vec<usize> = (0..bytes.len() - id.len())
        .filter(|at| bytes[*at..].starts_with(id.as_bytes()))
        .collect();
    assert!(!places.is_empty(), "{id} does not stand in {db:?}");
    for at in places {
        bytes[at] ^= 0xFF;
    }
    std::fs::write(db, bytes).unwrap();
}

// covers: A19, REC-03, REC-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_journal_is_read_only_until_it_is_salvaged() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let request = rig.set_speed("OP7", 50);
    assert_eq!(rig.submit_wait(&request).await.1["state"], "completed");
    let damaged = set_length(&rig, "DAMAGED-OPERATION", 9);
    assert_eq!(rig.submit_wait(&damaged).await.1["state"], "completed");
    let last = eject(&rig, "OP9");
    assert_eq!(rig.submit_wait(&last).await.1["state"], "completed");
    let epoch = |status: &Json| -> u64 {
        let text = status["journal"]["epoch"].as_str().unwrap();
        text.parse().unwrap()
    };
    let (_, status) = rig.get("/v1/status").await;
    let before = epoch(&status);
    assert!(rig.stop().await.success());
    damage(&rig, "DAMAGED-OPERATION");

    rig.start().await;
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(
        (&status["mode"], &status["journal"]["state"]),
        (&json!("recovery"), &json!("damaged"))
    );
    let alarms = status["alarms"].as_array().unwrap();
    assert!(alarms.iter().any(|alarm| alarm["code"] == "recovery_mode"));
    assert_eq!(rig.get("/v1/operations").await.0, 200);
    assert_eq!(rig.get("/v1/events").await.0, 200);
    assert_eq!(rig.operation("OP7").await["state"], "completed");
    refused(
        &rig.submit(&eject(&rig, "OP10")).await,
        503,
        "recovery_mode",
    );
    let unmade = rig.submit(&damaged).await;
    assert!(unmade.0 == 503 || unmade.0 == 200, "{unmade:?}");
    refused(
        &rig.post(
            "/v1/operations/OP7/resolve",
            json!({"as": "compensated", "reason": "x"}),
        )
        .await,
        503,
        "recovery_mode",
    );
    let effects = |rig: &Rig| {
        (
            rig.speed_writes(),
            rig.device.effects_of_register(102),
            rig.device.holding(200),
        )
    };
    assert_eq!(effects(&rig), (1, 1, 1));
    assert!(rig.stop().await.success());

    let dir = rig.journal_dir();
    let dir = dir.to_str().unwrap();
    let checked = rig.command(&["journal", "check", dir]).output().unwrap();
    assert_eq!(checked.status.code(), Some(9));
    let nothing = rig.command(&["journal", "salvage", dir, "--write", "--yes"]);
    assert!(!{ nothing }.status().unwrap().success(), "without a reason");
    let reason = "a disk was replaced";
    let args = [
        "journal", "salvage", dir, "--write", "--reason", reason, "--yes",
    ];
    let salvaged = rig.command(&args).output().unwrap();
    assert_eq!(salvaged.status.code(), Some(0), "{salvaged:?}");

    rig.start_up().await;
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(status["mode"], "normal");
    assert!(epoch(&status) > before);
    let (code, again) = rig.submit(&request).await;
    assert_eq!(
        (code, &again["state"]),
        (200, &json!("completed")),
        "{again}"
    );
    let next = eject(&rig, "OP10");
    assert_eq!(rig.submit_wait(&next).await.1["state"], "completed");
    assert_eq!(effects(&rig), (1, 1, 2));
}

/// One caller: the same request until it is answered for good, with a growing pause.
async fn caller(client: holdfast::cli::client::Client, request: Json, n: u64) -> usize {
    let mut tries = 0;
    let give_up = Instant::now() + 3 * PATIENCE;
    loop {
        tries += 1;
        let path = "/v1/operations?wait=2s";
        let answer = client.post(path, request.to_string(), 2_000).await;
        match answer {
            Ok(raw) => {
                let operation: Json = serde_json::from_str(&raw.text).unwrap();
                match operation["state"].as_str().unwrap() {
                    "completed" => return tries,
                    "queued" | "sending" => {}
                    other => panic!("{other}: {operation}"),
                }
            }
            Err(Failure::NotReachable(_)) => {}
            Err(Failure::Problem { status: 503, .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
        assert!(Instant::now() < give_up, "{}", request["operation_id"]);
        let pause = (10 << tries.min(6)) + n % 50;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Sockets that the process holds open.
fn sockets(pid: u32) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

// covers: A26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_callers_meet_a_service_that_comes_back() {
    const CALLERS: usize = 500;
    let mut rig = Rig::new().await;
    rig.machine_toml = rig.machine_toml.replace(
        "queueable = false",
        "queueable = true\nttl = \"60s\"\nmax_queued = 1000\nprecondition = \"config_version\"",
    );
    rig.start_up().await;
    let own_sockets = sockets(rig.gateway.as_ref().unwrap().id());
    rig.kill();
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let mut request = set_length(&rig, &format!("C-{n}"), n as u32);
        request["expected_config_version"] = 7.into();
        callers.spawn(caller(rig.client.clone(), request, n as u64));
    }
    rig.spawn();
    let pid = rig.gateway.as_ref().unwrap().id();
    let done = Arc::new(AtomicBool::new(false));
    let most = Arc::new(AtomicUsize::new(0));
    let watch = {
        let (done, most) = (Arc::clone(&done), Arc::clone(&most));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(sockets(pid), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
    };
    let tries = callers.join_all().await;
    done.store(true, Ordering::Relaxed);
    watch.await.unwrap();
    assert!(tries.iter().any(|tries| *tries > 1), "nobody had to retry");
    let most = most.load(Ordering::Relaxed);
    assert!(
        (own_sockets + 1..=CONNECTIONS_COUNT_MAX + own_sockets).contains(&most),
        "{most} sockets at once, of which {own_sockets} are no caller's"
    );
    let written: Vec<Vec<u16>> = rig
        .device
        .ledger()
        .into_iter()
        .filter_map(|effect| match effect.cause {
            Cause::Write {
                start: 102, words, ..
            } => Some(words),
            _ => None,
        })
        .collect();
    let distinct: HashSet<&Vec<u16>> = written.iter().collect();
    assert_eq!((written.len(), distinct.len()), (CALLERS, CALLERS));
    assert_eq!(rig.state("C-0").await, "completed");
}
