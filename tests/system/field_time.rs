//! Owns: clocks that are stepped, wrong, untrusted or begun anew.
//! May call: the harness and its common questions.
//! Never: let a test's own wall clock decide.

use super::field_common::key;
use super::harness::Rig;
use serde_json::json;
use std::time::{Duration, Instant};

const HOUR_MS: i64 = 3_600_000;
const YEAR_MS: i64 = 365 * 24 * HOUR_MS;

// covers: F123
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stepped_wall_clock_moves_no_interval() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    for step in [-HOUR_MS, HOUR_MS, HOUR_MS, -HOUR_MS] {
        // A validity runs, the link backs off, and the polls stand still.
        rig.cut().await;
        let id = format!("T{}", rig.events().await.len());
        let (_, queued) = rig.submit(&rig.set_speed(&id, 50)).await;
        assert_eq!(queued["state"], "queued", "{queued}");
        let known = rig.events_of("clock.stepped").await.len();
        rig.clock.step_wall(step);
        rig.until("the step is recorded", async |rig| {
            rig.events_of("clock.stepped").await.len() > known
        })
        .await;
        let events = rig.events_of("clock.stepped").await;
        let us: i64 = events.last().unwrap()["body"]["step_us"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((us / 1000 - step).abs() < 2_000, "{us} for {step} ms");
        assert_eq!(
            rig.state(&id).await,
            "queued",
            "the step used its validity up"
        );
        let back = Instant::now();
        rig.restore().await;
        assert!(
            back.elapsed() < Duration::from_secs(5),
            "the back-off was moved"
        );
        rig.until_state(&id, "completed").await;
        // Polls keep their beat: neither a burst nor a pause of an hour.
        let from = rig.device.requests().len();
        let begun = Instant::now();
        rig.polls(20).await;
        let asked = rig.device.requests().len() - from;
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(asked < 200, "{asked} requests for 20 polls");
        rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    }
    // A validity that has run out has, whichever way the wall was moved.
    rig.cut().await;
    rig.submit(&rig.set_speed("TX", 60)).await;
    rig.clock.step_wall(-HOUR_MS);
    rig.clock.pass(10_001);
    rig.until_state("TX", "expired").await;
    assert_eq!(rig.speed_writes(), 4);
}

// covers: F125
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_without_power_and_wrong_clocks_delete_no_event() {
    let mut rig = Rig::new().await;
    std::fs::write(rig.path().join("events"), "in the way").unwrap();
    rig.start_up().await;
    rig.make_events(20).await;
    let before = rig.events().await;
    rig.cut().await;
    let (_, queued) = rig.submit(&rig.set_speed("V1", 50)).await;
    assert_eq!(queued["state"], "queued", "{queued}");
    assert!(rig.stop().await.success());
    // Twenty years ahead, and nobody vouches for it: nothing is deleted, the command waits for a person.
    rig.clock.reboot(false);
    rig.clock.step_wall(20 * YEAR_MS);
    rig.start().await;
    rig.until_state("V1", "held").await;
    let (operation, events) = (rig.operation("V1").await, rig.events().await);
    assert_eq!(operation["code"], "validity_unprovable", "{operation}");
    assert_eq!(
        events
            .iter()
            .take(before.len())
            .map(key)
            .collect::<Vec<_>>(),
        before.iter().map(key).collect::<Vec<_>>()
    );
    assert!(rig.stop().await.success());
    // The clock is set right, four hours after the power went.
    rig.clock.step_wall(4 * HOUR_MS - 20 * YEAR_MS);
    rig.clock.trusted = Some(true);
    rig.clock.pass(0);
    std::fs::remove_file(rig.path().join("events")).unwrap();
    rig.start().await;
    rig.until("every event is sent", async |rig| {
        let sent: Vec<_> = rig.sink_lines().iter().map(key).collect();
        before.iter().all(|event| sent.contains(&key(event)))
    })
    .await;
    assert_eq!(rig.state("V1").await, "held");
    assert_eq!(rig.speed_writes(), 0);
}

// covers: F125
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_command_expires_over_a_reboot_only_by_a_trusted_clock() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.cut().await;
    rig.submit(&rig.set_speed("V2", 50)).await;
    assert!(rig.stop().await.success());
    rig.clock.reboot(true);
    rig.clock.step_wall(4 * HOUR_MS);
    rig.start().await;
    rig.until_state("V2", "expired").await;
    rig.restore().await;
    rig.polls(5).await;
    assert_eq!(rig.speed_writes(), 0);
}

// Of the 1970 boot, all but what TLS and each event's own boot mark would need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_boot_in_1970_works_at_once_and_keeps_its_order_after_the_sync() {
    let mut rig = Rig::new().await;
    let since_1970 = jiff::Timestamp::now().as_millisecond();
    rig.clock.reboot(false);
    rig.clock.step_wall(-since_1970);
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    rig.make_events(3).await;
    // The caller's clock is right; a gateway whose own is not lets it command.
    let mut request = rig.set_speed("B1", 50);
    request["issued_at"] = jiff::Timestamp::now().to_string().into();
    let (_, done) = rig.submit_wait(&request).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert!(
        done["created_at"]
            .as_str()
            .unwrap()
            .starts_with("1970-01-01")
    );
    // A validity runs there as anywhere.
    rig.cut().await;
    let mut late = rig.set_speed("B2", 60);
    late["issued_at"] = jiff::Timestamp::now().to_string().into();
    assert_eq!(rig.submit(&late).await.1["state"], "queued");
    rig.clock.pass(11_000);
    rig.until_state("B2", "expired").await;
    rig.restore().await;
    // After ten minutes the time comes.
    rig.clock.pass(600_000);
    rig.clock.trusted = Some(true);
    rig.clock.step_wall(since_1970);
    rig.until("the step is recorded", async |rig| {
        !rig.events_of("clock.stepped").await.is_empty()
    })
    .await;
    rig.make_events(2).await;
    let stepped = rig.events_of("clock.stepped").await;
    assert_eq!(stepped.len(), 1, "{stepped:?}");
    let body = &stepped[0]["body"];
    assert_eq!(body["trusted"], true, "{body}");
    let step_us: i64 = body["step_us"].as_str().unwrap().parse().unwrap();
    assert!((step_us / 1000 - since_1970).abs() < 2_000, "{body}");
    // By their keys the events are in one order, and the offset makes true times of the early ones.
    let events = rig.events_of("piece.count").await;
    let order: Vec<_> = events.iter().map(key).collect();
    assert!(order.is_sorted(), "{order:?}");
    let values: Vec<_> = events
        .iter()
        .map(|event| event["body"]["value"].clone())
        .collect();
    assert_eq!(json!(values), json!([0, 1, 2, 3, 4, 5]));
    let at = |n: usize| -> i64 {
        let time: jiff::Timestamp = events[n]["time"].as_str().unwrap().parse().unwrap();
        time.as_microsecond()
    };
    assert!(at(0) < 24 * HOUR_MS * 1000, "recorded in 1970");
    assert!(at(3) + step_us < at(4), "true times keep the order");
    rig.until("all of it is sent", async |rig| {
        rig.sink_lines()
            .iter()
            .filter(|line| line["type"] == "piece.count")
            .count()
            == 6
    })
    .await;
}
