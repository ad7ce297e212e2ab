//! What a technician and an upper system see of the running gateway.

use super::harness::{PRESS, PRESS_SIM, Rig};
use serde_json::json;

// covers: OPS-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_ever_written_to_a_machine_that_is_read_only() {
    let press = PRESS.replace(
        "owner = \"gw-test\"",
        "owner = \"gw-test\"\nread_only = true",
    );
    let mut rig = Rig::with(&press, PRESS_SIM).await;
    rig.start_up().await;
    for (id, command, args) in [
        ("W1", "eject_one", json!({})),
        ("W2", "start_cycle", json!({ "cycle": 1 })),
        ("W3", "nudge", json!({ "by": 1 })),
    ] {
        let (status, answer) = rig.submit(&rig.request(id, command, args)).await;
        assert_eq!(
            (status, answer["code"].as_str()),
            (409, Some("machine_read_only")),
            "{answer}"
        );
    }
    let (status, answer) = rig.submit(&rig.set_speed("W4", 50)).await;
    assert_eq!(
        (status, answer["code"].as_str()),
        (409, Some("machine_read_only")),
        "{answer}"
    );
    let (_, read) = rig
        .submit_wait(&rig.request("R1", "read_status", json!({})))
        .await;
    assert_eq!(read["state"], "completed", "{read}");
    assert!(rig.device.requests().iter().all(|seen| !seen.is_write()));
}

// covers: AGT-01, A25
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_of_another_gateway_is_named_with_its_owner_and_left_alone() {
    let mut rig = Rig::with(&PRESS.replace("gw-test", "gw-line9"), PRESS_SIM).await;
    rig.start().await;
    let (status, answer) = rig.submit(&rig.set_speed("OP7", 50)).await;
    assert_eq!(
        (status, answer["code"].as_str()),
        (421, Some("not_owner")),
        "{answer}"
    );
    assert_eq!(answer["owner"], "gw-line9");
    let (_, machine) = rig.get("/v1/machines/press-1").await;
    let link = &machine["link"];
    assert_eq!(link["state"], "down", "{machine}");
    assert_eq!(link["reason"], "not connected: commanded by \"gw-line9\"");
    let (status, _) = rig.get("/v1/operations/OP7").await;
    assert_eq!(status, 404, "nothing is recorded");
    assert!(
        rig.device.requests().is_empty(),
        "and nothing is asked of the device"
    );
}

// covers: CMD-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_merge_only_where_the_row_says_so() {
    let press = PRESS.replace(
        "max_queued = 1\n",
        "max_queued = 2\nduplicates = \"merge\"\nmerge = \"latest\"\n",
    );
    let mut rig = Rig::with(&press, PRESS_SIM).await;
    rig.start_up().await;
    rig.cut().await;
    for (id, speed) in [("M1", 10), ("M2", 20), ("M3", 30)] {
        let (status, answer) = rig.submit(&rig.set_speed(id, speed)).await;
        assert_eq!(
            (status, answer["state"].as_str()),
            (201, Some("queued")),
            "{answer}"
        );
    }
    assert_eq!(rig.state("M1").await, "superseded");
    assert_eq!(rig.state("M2").await, "superseded");
    rig.restore().await;
    rig.until_state("M3", "completed").await;
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (30, 1));
}

// covers: IF-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_screen_answers_what_a_technician_asks_first() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.cut().await;
    rig.submit(&rig.set_speed("OP7", 50)).await;
    let output = rig.command(&["status"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for asked in ["press-1", "1 waiting", "link_down", "local", "backlog"] {
        assert!(text.contains(asked), "{asked:?} is missing:\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.lines().count() <= 24, "one screen:\n{text}");
}

// covers: IF-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_probes_follow_the_gateway() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let metrics = async |rig: &Rig| rig.client.get("/metrics").await.unwrap().text;
    let up = |text: &str| -> Option<f64> {
        let line = text.lines().find(|line| {
            line.starts_with("holdfast_link_state{")
                && line.contains("machine=\"press-1\"")
                && line.contains("state=\"up\"")
        })?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let text = metrics(&rig).await;
    assert_eq!(up(&text), Some(1.0), "{text}");
    rig.cut().await;
    rig.until("the metric follows the link", async |rig| {
        up(&metrics(rig).await) == Some(0.0)
    })
    .await;
    assert_eq!(rig.get("/healthz").await.0, 200);
    assert_eq!(
        rig.get("/readyz").await.0,
        200,
        "a machine that is away is not a gateway that is stuck"
    );
}

// covers: F127
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_in_1970_polls_at_once_and_its_events_can_be_dated_later() {
    let mut rig = Rig::new().await;
    let since_1970_ms = jiff::Timestamp::now().as_millisecond();
    rig.clock.trusted = Some(false);
    rig.clock.step_wall(-since_1970_ms);
    rig.start_up().await;
    rig.until("an event is written", async |rig| {
        rig.sink_lines()
            .iter()
            .any(|line| line["type"] == "piece.count")
    })
    .await;
    let early = rig
        .sink_lines()
        .into_iter()
        .find(|line| line["type"] == "piece.count")
        .unwrap();
    assert!(
        early["time"].as_str().unwrap().starts_with("1970-"),
        "{early}"
    );
    assert_eq!(early["clock"]["synchronised"], false, "{early}");
    let boottime_ns: u64 = early["clock"]["boottime_ns"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(
        boottime_ns > 0 && early["clock"]["boot_id"].is_string(),
        "{early}"
    );
    rig.clock.trusted = Some(true);
    rig.clock.step_wall(since_1970_ms);
    rig.until("the step is on record", async |rig| {
        rig.sink_lines()
            .iter()
            .any(|line| line["type"] == "clock.stepped")
    })
    .await;
    let step = rig
        .sink_lines()
        .into_iter()
        .find(|line| line["type"] == "clock.stepped")
        .unwrap();
    let step_us: i64 = step["body"]["step_us"].as_str().unwrap().parse().unwrap();
    assert!((step_us / 1000 - since_1970_ms).abs() < 60_000, "{step}");
    assert!(
        step["clock"].is_null(),
        "from here on the clock is to be trusted: {step}"
    );
    let (_, done) = rig.submit_wait(&rig.set_speed("OP7", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
}

// covers: F055
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reading_of_another_device_is_no_answer() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let query = json!({ "machine": "press-1", "command": "read_status", "args": {} });
    let (status, answer) = rig.post("/v1/operations?wait=5s", query.clone()).await;
    assert_eq!(status, 200, "{answer}");
    rig.cut().await;
    rig.device.set_identity(4712);
    rig.device.restore();
    rig.until("the other device is seen", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        status["alarms"].to_string().contains("identity_mismatch")
    })
    .await;
    let (status, answer) = rig.post("/v1/operations?wait=5s", query).await;
    assert_ne!(status, 200, "{answer}");
    assert!(
        answer["detail"]
            .as_str()
            .unwrap()
            .contains("another device"),
        "{answer}"
    );
    let (_, status) = rig.get("/v1/status").await;
    let alarms = status["alarms"].to_string();
    assert!(!alarms.contains("link_down"), "one alarm says it: {alarms}");
}

// covers: IF-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_door_and_the_end_of_a_connection_are_said_for_what_they_are() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.device.set_interlock(0, false);
    rig.until("the open door is told", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        status["alarms"].to_string().contains("door closed")
    })
    .await;
    rig.device.set_interlock(0, true);
    rig.device.cut();
    rig.until("the loss is told", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        status["alarms"].to_string().contains("link_down")
    })
    .await;
    let (_, status) = rig.get("/v1/status").await;
    let alarms = status["alarms"].to_string();
    assert!(
        !alarms.contains("did not fit"),
        "the device closed it: {alarms}"
    );
}

// covers: REC-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_journal_is_moved_away_ends_instead_of_writing_where_nobody_looks() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let (_, done) = rig.submit_wait(&rig.set_speed("OP7", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    let away = rig.path().join("away");
    std::fs::rename(rig.journal_dir(), &away).unwrap();
    // Something to write comes by itself: the watched register moves.
    rig.device.set_holding(200, 1);
    let ended = rig.until_dead().await;
    assert!(!ended.success());
    assert!(rig.log().contains("was moved or removed"), "{}", rig.log());
    std::fs::rename(&away, rig.journal_dir()).unwrap();
    rig.start_up().await;
    assert_eq!(rig.operation("OP7").await["result_id"], done["result_id"]);
}
