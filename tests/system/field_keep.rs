//! Owns: what must be there, once and only once, after outages, kills, bad starts and old backups.
//! May call: the harness and its common questions.
//! Never: trust a count that the gateway alone gives.

use super::field_common::key;
use super::harness::{HOLDFAST, Rig};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The place where the sink wants its directory is taken by a file.
fn block_sink(rig: &Rig) {
    std::fs::write(rig.path().join("events"), "in the way").unwrap();
}
fn unblock_sink(rig: &Rig) {
    std::fs::remove_file(rig.path().join("events")).unwrap();
}
async fn sink(rig: &Rig) -> Json {
    rig.get("/v1/sinks").await.1["sinks"][0].clone()
}
fn number(value: &Json) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}
async fn until_drained(rig: &mut Rig) {
    // Back-off is waited out on the movable clock.
    rig.until("the sink has everything", async |rig| {
        rig.clock.pass(61_000);
        rig.sink_lines().len() >= rig.events().await.len()
            && sink(rig).await["backlog"]["events"] == "0"
    })
    .await;
}
fn keys(events: &[Json]) -> Vec<(String, u64, u64)> {
    events.iter().map(key).collect()
}
fn all_different(keys: &[(String, u64, u64)]) {
    let set: BTreeSet<_> = keys.iter().collect();
    assert_eq!(set.len(), keys.len(), "a key was given out twice: {keys:?}");
}

// covers: F073
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_delivered_again_and_again_is_executed_once() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let request = rig.set_speed("C-17", 50);
    let (_, first) = rig.submit_wait(&request).await;
    assert_eq!(first["state"], "completed", "{first}");
    for _ in 0..3 {
        rig.cut().await;
        assert_eq!(
            rig.submit(&request).await.1["result_id"],
            first["result_id"]
        );
        rig.restore().await;
        assert_eq!(
            rig.submit(&request).await.1["result_id"],
            first["result_id"]
        );
    }
    assert!(rig.stop().await.success());
    rig.start_up().await;
    assert_eq!(
        rig.submit(&request).await.1["result_id"],
        first["result_id"]
    );
    rig.kill();
    rig.start_up().await;
    assert_eq!(
        rig.submit(&request).await.1["result_id"],
        first["result_id"]
    );
    // Long after: the record itself is trimmed away, and still nothing is done twice.
    rig.clock.pass((91 * 24 + 12) * 3_600_000);
    rig.until("the record itself is gone", async |rig| {
        let (_, list) = rig.get("/v1/operations").await;
        list["operations"].as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!(rig.submit(&request).await.0, 409);
    rig.kill();
    rig.start_up().await;
    rig.until("only a tombstone is left", async |rig| {
        rig.operation("C-17").await["tombstone"] == true
    })
    .await;
    let (status, answer) = rig.submit(&request).await;
    assert_eq!(
        (status, &answer["code"]),
        (409, &json!("outside_replay_window")),
        "{answer}"
    );
    // And when even that is gone, the packet is too old to be a new one.
    rig.clock.pass(10 * 24 * 3_600_000);
    rig.kill();
    rig.start_up().await;
    assert_eq!(rig.submit(&request).await.0, 409);
    rig.polls(5).await;
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (50, 1));
}

// covers: F075
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_under_way_after_a_kill_behind_the_plcs_reply() {
    for (id, command, args) in [
        ("K1", "set_speed", json!({ "speed": 50 })),
        ("K2", "nudge", json!({ "by": 1 })),
        ("K3", "start_cycle", json!({ "cycle": 2 })),
        ("K4", "eject_one", json!({})),
    ] {
        let mut rig = Rig::new().await;
        rig.env("HOLDFAST_KILL_AT", "link.after-reply");
        rig.start_up().await;
        let mut request = rig.request(id, command, args);
        if command == "set_speed" {
            request["expected_config_version"] = 7.into();
        }
        let client = rig.client.clone();
        let body = request.to_string();
        let asked = tokio::spawn(async move { client.post("/v1/operations", body, 5_000).await });
        rig.until_dead().await;
        let _ = asked.await;
        let effects = rig.device.effects();
        assert!(effects >= 1, "{command}: the device has done it");
        rig.start_up().await;
        rig.clock.pass(60_000);
        rig.until("it is no longer under way", async |rig| {
            !matches!(
                rig.state(id).await.as_str(),
                "queued" | "sending" | "accepted"
            )
        })
        .await;
        let (_, machine) = rig.get("/v1/machines/press-1").await;
        assert!(machine["in_flight"].is_null(), "{machine}");
        let state = rig.state(id).await;
        let honest = matches!(state.as_str(), "completed" | "outcome_unknown");
        assert!(honest, "{command} had its effect and is called {state}");
        assert_eq!(rig.device.effects(), effects, "{command} was sent again");
    }
}

// covers: F079
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_events_are_sent_and_old_set_points_are_not() {
    let mut rig = Rig::new().await;
    block_sink(&rig);
    rig.start_up().await;
    rig.make_events(10).await;
    rig.cut().await;
    let (_, queued) = rig.submit(&rig.set_speed("OLD", 50)).await;
    assert_eq!(queued["state"], "queued", "{queued}");
    rig.clock.step_wall(-3_600_000);
    rig.clock.pass(9_000);
    assert_eq!(rig.state("OLD").await, "queued");
    rig.clock.pass(600_000);
    rig.until_state("OLD", "expired").await;
    rig.restore().await;
    unblock_sink(&rig);
    until_drained(&mut rig).await;
    assert_eq!(rig.speed_writes(), 0);
    let lines = rig.sink_lines();
    let pieces: Vec<&Json> = lines
        .iter()
        .filter(|line| line["type"] == "piece.count")
        .map(|line| &line["body"]["value"])
        .collect();
    assert_eq!(
        pieces,
        (0..=10)
            .map(Json::from)
            .collect::<Vec<_>>()
            .iter()
            .collect::<Vec<_>>()
    );
    // What was dropped is on record, with its reason.
    let dropped = lines.iter().filter(|line| {
        line["type"] == "operation.transition" && line["body"].to_string().contains("expired")
    });
    assert_eq!(dropped.count(), 1);
}

// covers: F091
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_with_a_wrong_file_touches_no_backlog() {
    let mut rig = Rig::new().await;
    block_sink(&rig);
    rig.start_up().await;
    rig.make_events(20).await;
    let before = keys(&rig.events().await);
    rig.kill();
    let journal = fingerprint(&rig.journal_dir());
    let good = (rig.gateway_toml.clone(), rig.machine_toml.clone());
    for (gateway, machine) in [
        (good.0.replace("schema = 1", "schema = 99"), good.1.clone()),
        (
            good.0.replace("kind = \"file\"", "kind = \"fiel\""),
            good.1.clone(),
        ),
        (
            good.0.clone(),
            good.1.replace("holding:100", "holding:70000"),
        ),
    ] {
        (rig.gateway_toml, rig.machine_toml) = (gateway, machine);
        rig.spawn();
        assert_eq!(rig.until_dead().await.code(), Some(78), "{}", rig.log());
        assert_eq!(fingerprint(&rig.journal_dir()), journal);
    }
    (rig.gateway_toml, rig.machine_toml) = good;
    rig.start_up().await;
    let after = keys(&rig.events().await);
    assert_eq!(after[..before.len()], before);
    unblock_sink(&rig);
    until_drained(&mut rig).await;
    let sent = keys(&rig.sink_lines());
    assert!(before.iter().all(|key| sent.contains(key)));
}

fn fingerprint(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files.extend(fingerprint(&entry.path()));
        } else {
            let bytes = std::fs::read(entry.path()).unwrap();
            files.push((entry.path().display().to_string(), bytes));
        }
    }
    files.sort();
    files
}

// covers: F085
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_64_bits_are_the_same_digits_everywhere() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.make_events(2).await;
    until_drained(&mut rig).await;
    let events = rig.events().await;
    let lines = rig.sink_lines();
    for event in &events {
        let (_, epoch, _) = key(event);
        assert!(
            epoch > 1 << 53,
            "an epoch that a float would round: {epoch}"
        );
        let sent = lines.iter().find(|line| key(line) == key(event)).unwrap();
        assert_eq!(sent["epoch"], event["epoch"]);
    }
    // A cursor made of such digits leads on exactly.
    for (n, event) in events.iter().enumerate() {
        let after = event["cursor"].as_str().unwrap();
        let (_, page) = rig.get(&format!("/v1/events?limit=1&after={after}")).await;
        if let Some(next) = events.get(n + 1) {
            assert_eq!(key(&page["events"][0]), key(next));
        }
    }
    let (_, status) = rig.get("/v1/status").await;
    assert_eq!(number(&status["journal"]["epoch"]), key(&events[0]).1);
}

// covers: F099
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_resends_nothing_and_a_kill_only_what_was_under_way() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.make_events(10).await;
    until_drained(&mut rig).await;
    assert!(rig.stop().await.success());
    rig.start_up().await;
    until_drained(&mut rig).await;
    let counters = sink(&rig).await["counters"].clone();
    assert_eq!(counters["duplicates"], "0", "sent again after a clean stop");
    let sent = rig.sink_lines();
    all_different(&keys(&sent));
    assert!(rig.stop().await.success());
    // Dies between the sink's answer and its being written down.
    rig.env("HOLDFAST_KILL_AT", "sink.after-deliver");
    rig.device.set_holding(200, 777);
    rig.spawn();
    rig.until_dead().await;
    let under_way = rig.sink_lines().len() - sent.len();
    assert!(under_way > 0);
    rig.start_up().await;
    until_drained(&mut rig).await;
    let lines = rig.sink_lines();
    all_different(&keys(&lines));
    assert_eq!(lines[..sent.len()], sent, "what was sent is not touched");
    let duplicates = sink(&rig).await["counters"]["duplicates"].clone();
    assert_eq!(
        number(&duplicates),
        under_way as u64,
        "the window, and no more"
    );
    let recorded = keys(&rig.events().await);
    assert_eq!(keys(&lines), recorded, "identical keys, none missing");
}

// covers: F103, F111
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_removes_nothing_unsent_and_every_event_is_accounted_for() {
    let mut rig = Rig::new().await;
    rig.gateway_toml += "[journal]\nkeep_events = \"1h\"\n";
    block_sink(&rig);
    rig.start_up().await;
    rig.make_events(15).await;
    let before = keys(&rig.events().await);
    for _ in 0..3 {
        rig.clock.pass(3_600_000);
        rig.polls(20).await;
    }
    let events = rig.events().await;
    assert_eq!(keys(&events)[..before.len()], before);
    // A sink that takes nothing moves no cursor: all of it waits, and the counters say so.
    rig.until("all wait", async |rig| {
        let shown = sink(rig).await;
        let waiting = number(&shown["backlog"]["events"]);
        shown["counters"]["accepted"] == "0" && waiting == rig.events().await.len() as u64
    })
    .await;
    let (_, status) = rig.get("/v1/status").await;
    let alarms = status["alarms"].as_array().unwrap();
    let alarm = alarms.iter().find(|a| a["code"] == "sink_not_taking");
    // Since its first failure, hours ago.
    let hour = |time: &serde_json::Value| time.as_str().unwrap()[..13].to_owned();
    assert_ne!(hour(&alarm.unwrap()["since"]), hour(&status["now"]));
    unblock_sink(&rig);
    until_drained(&mut rig).await;
    let produced = rig.sink_lines().len() as u64;
    let shown = sink(&rig).await;
    let ended = ["accepted", "duplicates", "conflicts", "malformed"]
        .map(|name| number(&shown["counters"][name]));
    assert_eq!(ended.iter().sum::<u64>(), produced, "{shown}");
    assert_eq!(ended[0], produced, "{shown}");
    let sent = keys(&rig.sink_lines());
    assert_eq!(sent[..before.len()], before);
}

// covers: F119
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_configuration_sends_the_backlog_as_it_was_recorded() {
    let mut rig = Rig::new().await;
    block_sink(&rig);
    rig.start_up().await;
    rig.make_events(10).await;
    let before = rig.events().await;
    // Another type, another place, another unit; first while running, then over a restart.
    rig.machine_toml = rig
        .machine_toml
        .replace("type = \"piece.count\"", "type = \"piece.good\"")
        .replace("read = \"holding:200\"", "read = \"holding:201\"");
    let (status, answer) = rig.reload().await;
    assert_eq!(status, 200, "{answer}");
    rig.until_link("up").await;
    assert!(rig.stop().await.success());
    rig.gateway_toml = rig
        .gateway_toml
        .replace("/events\"", "/events-2\"\nrotate_size = \"1MiB\"");
    rig.start_up().await;
    let place = rig.path().join("events-2");
    rig.until("the new place has it all", async |rig| {
        let shown = sink(rig).await;
        shown["backlog"]["events"] == "0" && place.exists()
    })
    .await;
    unblock_sink(&rig);
    std::fs::rename(&place, rig.path().join("events")).unwrap();
    let lines = rig.sink_lines();
    for (event, line) in before.iter().zip(&lines) {
        for part in [
            "source", "epoch", "sequence", "type", "time", "qty", "body", "digest",
        ] {
            assert_eq!(event[part], line[part], "{part}");
        }
    }
    assert!(lines.len() > before.len());
}

// covers: F131, F133
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_given_out_twice_not_even_over_an_old_backup() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.make_events(3).await;
    assert!(rig.stop().await.success());
    let backup = rig.path().join("backup");
    copy(&rig.path().join("state"), &backup);
    rig.start_up().await;
    rig.make_events(3).await;
    rig.kill();
    rig.start_up().await;
    rig.make_events(3).await;
    let first = rig.events().await;
    // Over a clean stop and a kill the order is total: epochs never fall, sequences rise within them.
    for source in ["press-1", "gw-test"] {
        let order: Vec<(u64, u64)> = keys(&first)
            .into_iter()
            .filter(|key| key.0 == source)
            .map(|key| (key.1, key.2))
            .collect();
        assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "{order:?}");
    }
    assert!(rig.stop().await.success());
    let mut given = keys(&rig.sink_lines());
    std::fs::remove_dir_all(rig.path().join("state")).unwrap();
    copy(&backup, &rig.path().join("state"));
    rig.start_up().await;
    let restored = rig.events().await.len();
    rig.make_events(3).await;
    let again = rig.events().await;
    let fresh: Vec<_> = keys(&again)
        .into_iter()
        .filter(|key| key.1 > given.iter().map(|given| given.1).max().unwrap())
        .collect();
    assert!(!fresh.is_empty(), "a backup opens a new epoch");
    assert!(restored < first.len(), "the backup is older");
    let news = again.iter().filter(|event| {
        event["type"] == "piece.count" && event["body"]["value"].as_u64() > Some(9)
    });
    let news: Vec<_> = news.map(key).collect();
    assert_eq!(news.len(), 3, "{news:?}");
    given.extend(news);
    all_different(&given);
    assert!(rig.log().contains("a new epoch"), "it is announced");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

// covers: F143
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_living_owner_of_the_lock_keeps_a_start_out() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.kill();
    let lock = rig.journal_dir().join("lock");
    let own = std::process::id().to_string();
    for content in ["1\n", own.as_str(), "", "999999999", "no number"] {
        std::fs::write(&lock, content).unwrap();
        rig.start_up().await;
        rig.kill();
    }
    rig.start_up().await;
    let pid = rig.gateway.as_ref().unwrap().id().to_string();
    let second = Command::new(HOLDFAST)
        .arg("run")
        .env("HOLDFAST_CONFIG", rig.path().join("holdfast.toml"))
        .env("HOLDFAST_TEST_CLOCK", rig.path().join("clock"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    let says = String::from_utf8_lossy(&second.stderr);
    assert!(says.contains(&pid), "{says}");
    let (_, done) = rig.submit_wait(&rig.set_speed("L1", 5)).await;
    assert_eq!(done["state"], "completed", "the first goes on: {done}");
}

// covers: F097
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_that_a_power_cut_emptied_resets_no_sequence() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.make_events(2).await;
    assert!(rig.stop().await.success());
    let journal = rig.journal_dir();
    let sound = rig.path().join("sound");
    copy(&journal, &sound);
    let small: Vec<_> = std::fs::read_dir(&journal)
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name != "lock")
        .collect();
    assert!(!small.is_empty());
    let given = keys(&rig.sink_lines());
    for name in &small {
        let whole = std::fs::read(sound.join(name)).unwrap();
        let damages: [(&str, Option<Vec<u8>>); 5] = [
            ("empty", Some(Vec::new())),
            ("zeros", Some(vec![0; whole.len()])),
            ("half", Some(whole[..whole.len() / 2].to_vec())),
            ("missing", None),
            ("stale copy beside", Some(whole.clone())),
        ];
        for (damage, bytes) in damages {
            std::fs::remove_dir_all(&journal).unwrap();
            copy(&sound, &journal);
            match bytes {
                Some(bytes) => std::fs::write(journal.join(name), bytes).unwrap(),
                None => std::fs::remove_file(journal.join(name)).unwrap(),
            }
            if damage == "stale copy beside" {
                std::fs::write(journal.join(format!("{name}.tmp")), "half a file").unwrap();
            }
            rig.start().await;
            let found = keys(&rig.events().await);
            let what = format!("{name} {damage}: {}", rig.log());
            assert!(given.iter().all(|key| found.contains(key)), "lost: {what}");
            let (_, status) = rig.get("/v1/status").await;
            if status["mode"] == "normal" {
                rig.until_link("up").await;
                let value = rig.device.holding(200) + 1;
                rig.device.set_holding(200, value);
                rig.until("a new event", async |rig| {
                    let pieces = rig.events_of("piece.count").await;
                    pieces.iter().any(|event| event["body"]["value"] == value)
                })
                .await;
                let all = keys(&rig.events().await);
                all_different(&all);
            } else {
                assert_eq!(status["mode"], "recovery", "{what}");
                assert!(rig.alarms().await.contains(&"recovery_mode".to_owned()));
            }
            rig.kill();
        }
    }
}
