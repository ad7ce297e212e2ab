//! Owns: rows C13 to C15, C17 and C18 of the acceptance: doubts, cancellations, and the report of it all.
//! May call: the harness, the scene.
//! Never: count an effect anywhere but at the device.

use super::harness::{PRESS, PRESS_SIM, Rig};
use super::link_kind::LinkKind;
use super::scene_c::{report, row};
use holdfast::simulator::{Act, Fault, Matching, Span};
use serde_json::{Value as Json, json};

/// Widest line that any output may have.
const COLUMNS_MAX: usize = 80;

/// The press with a reply timeout that leaves time to act while one is under way.
fn patient_press() -> String {
    PRESS.replace("timeout = \"300ms\"", "timeout = \"5s\"")
}

/// Sends a command whose reply is lost, and then loses the link.
async fn lose_reply_then_link(rig: &mut Rig, request: &Json, fault: Fault) {
    let writes = |rig: &Rig| {
        let requests = rig.device.requests();
        requests.iter().filter(|seen| seen.fault.is_some()).count()
    };
    let before = writes(rig);
    let effects = rig.device.effects();
    let applies = matches!(fault.act, Act::DropReply);
    rig.device.push_fault(fault);
    let (status, operation) = rig.submit(request).await;
    assert_eq!(status, 201, "{operation}");
    rig.until("the request reaches the device", async |rig| {
        writes(rig) == before + 1 && (!applies || rig.device.effects() > effects)
    })
    .await;
    rig.cut().await;
    let id = request["operation_id"].as_str().unwrap();
    let operation = rig.until_state(id, "outcome_unknown").await;
    assert_eq!(operation["family"], "in_doubt");
}

fn attempts(operation: &Json) -> usize {
    operation["attempts"].as_array().unwrap().len()
}

/// What reading the written place back has found, or null.
fn readback(operation: &Json) -> Json {
    let findings = operation["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["method"] == "readback");
    found.cloned().unwrap_or(Json::Null)
}

// covers: C13, VER-03, SEND-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_a_lost_reply_is_verified_on_return_and_never_resent() {
    for done in [true, false] {
        let mut rig = Rig::with(&patient_press(), PRESS_SIM).await;
        rig.start_up().await;
        let act = if done { Act::DropReply } else { Act::Drop };
        let eject = rig.request("EJECT", "eject_one", json!({}));
        lose_reply_then_link(&mut rig, &eject, Fault::next(Matching::Commit, act)).await;
        rig.restore().await;
        let state = if done { "completed" } else { "not_executed" };
        let settled = rig.until_state("EJECT", state).await;
        assert_eq!(settled["evidence"]["method"], "mailbox", "{settled}");
        assert_eq!(attempts(&settled), 1, "{settled}");
        assert_eq!(rig.device.holding(200), u16::from(done));
        // The mailbox is free again, and the next one is its own.
        let next = rig.request("NEXT", "eject_one", json!({}));
        let (_, next) = rig.submit_wait(&next).await;
        assert_eq!(next["state"], "completed", "{next}");
        assert_eq!(rig.device.holding(200), u16::from(done) + 1);
    }
}

// covers: C14, VER-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_a_readback_is_a_finding_and_no_proof() {
    for done in [true, false] {
        let mut rig = Rig::with(&patient_press(), PRESS_SIM).await;
        rig.start_up().await;
        let act = if done { Act::DropReply } else { Act::Drop };
        let set = rig.set_speed("SET50", 50);
        lose_reply_then_link(&mut rig, &set, Fault::next(Matching::Writes, act)).await;
        rig.restore().await;
        rig.until("the finding is recorded", async |rig| {
            readback(&rig.operation("SET50").await).is_object()
        })
        .await;
        let set = rig.operation("SET50").await;
        assert_eq!(set["state"], "outcome_unknown", "{set}");
        let finding = readback(&set);
        let says = finding["says"].as_str().unwrap();
        let expected = if done {
            "50, as sent"
        } else {
            "0, not as sent"
        };
        assert!(says.contains(expected), "{says}");
        // Another connection, another look: the same finding, no second send.
        rig.cut().await;
        rig.restore().await;
        rig.until("it is looked at again", async |rig| {
            readback(&rig.operation("SET50").await)["times"] == 2
        })
        .await;
        let set = rig.operation("SET50").await;
        assert_eq!(set["state"], "outcome_unknown", "{set}");
        assert_eq!((attempts(&set), rig.speed_writes()), (1, usize::from(done)));
        let sends = rig.device.requests();
        assert_eq!(sends.iter().filter(|seen| seen.is_write()).count(), 1);
    }
}

async fn cancel(rig: &Rig, id: &str) -> (u16, Json) {
    rig.post(&format!("/v1/operations/{id}/cancel"), json!({}))
        .await
}

async fn cancel_is_too_late(rig: &Rig, id: &str, state: &str) {
    let (status, problem) = cancel(rig, id).await;
    assert_eq!(
        (status, problem["code"].as_str(), problem["state"].as_str()),
        (409, Some("too_late"), Some(state)),
        "{problem}"
    );
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("cannot be determined"), "{detail}");
}

// covers: C15, CAN-01, CAN-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c15_cancelled_is_said_only_of_what_never_left() {
    let mut rig = Rig::with(&patient_press(), PRESS_SIM).await;
    rig.start_up().await;
    // Sending: done at once, its reply held back.
    let late = Fault::next(Matching::Writes, Act::LateReply(Span::ms(1500)));
    rig.device.set_fault(late);
    let (status, _) = rig.submit(&rig.set_speed("SENDING", 40)).await;
    assert_eq!(status, 201);
    rig.until_state("SENDING", "sending").await;
    cancel_is_too_late(&rig, "SENDING", "sending").await;
    rig.until_state("SENDING", "completed").await;
    assert_eq!(rig.speed_writes(), 1);
    // Unknown.
    let lost = Fault::next(Matching::Writes, Act::DropReply);
    let set = rig.set_speed("UNKNOWN", 45);
    lose_reply_then_link(&mut rig, &set, lost).await;
    cancel_is_too_late(&rig, "UNKNOWN", "outcome_unknown").await;
    // Queued.
    let (_, queued) = rig.submit(&rig.set_speed("QUEUED", 50)).await;
    assert_eq!(queued["state"], "queued", "{queued}");
    for _ in 0..2 {
        let (status, cancelled) = cancel(&rig, "QUEUED").await;
        assert_eq!(status, 200, "{cancelled}");
        assert_eq!(cancelled["cancelled"], true);
    }
    rig.restore().await;
    let (_, after) = rig.submit_wait(&rig.set_speed("AFTER", 60)).await;
    assert_eq!(after["state"], "completed", "{after}");
    assert_eq!(rig.state("QUEUED").await, "cancelled");
    assert_eq!(attempts(&rig.operation("QUEUED").await), 0);
    assert_eq!(rig.state("UNKNOWN").await, "outcome_unknown");
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (3, 60));
}

// covers: C17, SEND-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c17_a_write_that_was_partly_handed_over_is_unknown_with_its_bytes() {
    let mut rig = Rig::new().await;
    rig.env("HOLDFAST_BREAK_WRITE", "7");
    rig.start_up().await;
    let (status, _) = rig.submit(&rig.set_speed("SET50", 50)).await;
    assert_eq!(status, 201);
    let set = rig.until_state("SET50", "outcome_unknown").await;
    let attempt = &set["attempts"][0];
    assert_eq!(attempt["outcome"], "partly_sent", "{set}");
    assert_eq!(attempt["bytes_sent"], 7, "{set}");
    let total = attempt["bytes_total"].as_u64().unwrap();
    assert!(total > 7, "{set}");
    let reason = set["reason"].as_str().unwrap();
    assert!(reason.contains(&format!("7 of {total} bytes")), "{reason}");
    // The link comes back by itself; what was looked at then proves nothing, and nothing is resent.
    rig.until("the readback is on record", async |rig| {
        readback(&rig.operation("SET50").await).is_object()
    })
    .await;
    rig.until_link("up").await;
    let set = rig.operation("SET50").await;
    assert_eq!(
        (set["state"].as_str(), attempts(&set)),
        (Some("outcome_unknown"), 1)
    );
    // A line that others may share is drained; a connection of one's own is closed.
    let shared = matches!(
        LinkKind::from_env(),
        LinkKind::Rtu { .. } | LinkKind::C24 { .. }
    );
    if !shared {
        assert!(rig.device.connections() >= 2);
    }
    assert!(rig.device.requests().iter().all(|seen| !seen.is_write()));
    assert_eq!(rig.device.effects(), 0);
    let shown = cli(&rig, &["op", "SET50"]);
    assert!(shown.contains(&format!("7 of {total} bytes")), "{shown}");
}

/// Runs the command line; its lines fit.
fn cli(rig: &Rig, args: &[&str]) -> String {
    let output = rig.command(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {text}\n{said}");
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS_MAX, "{args:?}: {line:?}");
    }
    text
}

/// What a mixed run leaves behind: id, command, state.
const MIXED: [(&str, &str, &str); 13] = [
    ("BEFORE", "set_speed", "completed"),
    ("LOST", "set_speed", "outcome_unknown"),
    ("READ-A", "read_status", "superseded"),
    ("READ-B", "read_status", "completed"),
    ("EJECT", "eject_one", "rejected"),
    ("STOPPED", "start_cycle", "rejected"),
    ("OLD", "set_speed", "expired"),
    ("DROPPED", "set_speed", "cancelled"),
    ("SET50", "set_speed", "superseded"),
    ("SET60", "set_speed", "held"),
    ("FULL", "set_speed", "rejected"),
    ("AGAIN", "set_speed", "held"),
    ("AFTER", "eject_one", "completed"),
];

async fn mixed_run() -> Rig {
    let mut rig = Rig::with(&patient_press(), PRESS_SIM).await;
    rig.start_up().await;
    rig.submit_wait(&rig.set_speed("BEFORE", 30)).await;
    let lost = Fault::next(Matching::Writes, Act::DropReply);
    let set = rig.set_speed("LOST", 50);
    lose_reply_then_link(&mut rig, &set, lost).await;
    for (id, command, args) in [
        ("READ-A", "read_status", json!({})),
        ("READ-B", "read_status", json!({})),
        ("EJECT", "eject_one", json!({})),
        ("STOPPED", "start_cycle", json!({ "cycle": 2 })),
    ] {
        rig.submit(&rig.request(id, command, args)).await;
    }
    rig.submit(&rig.set_speed("OLD", 35)).await;
    rig.clock.pass(10_000);
    rig.until_state("OLD", "expired").await;
    rig.submit(&rig.set_speed("DROPPED", 40)).await;
    assert_eq!(cancel(&rig, "DROPPED").await.0, 200);
    rig.submit(&rig.set_speed("SET50", 50)).await;
    let mut other = rig.set_speed("SET60", 60);
    other["replaces"] = "SET50".into();
    rig.submit(&other).await;
    rig.submit(&rig.set_speed("FULL", 70)).await;
    rig.device.set_version(8);
    rig.restore().await;
    rig.until_state("SET60", "held").await;
    rig.until_state("READ-B", "completed").await;
    let body = json!({ "operation_id": "AGAIN", "reason": "the press shows the old speed" });
    let (_, again) = rig.post("/v1/operations/LOST/reissue", body).await;
    assert_eq!(again["operation_id"], "AGAIN", "{again}");
    rig.until_state("AGAIN", "held").await;
    rig.submit_wait(&rig.request("AFTER", "eject_one", json!({})))
        .await;
    rig
}

// covers: C18, IF-05, CMD-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c18_the_report_has_every_operation_once_with_all_that_decided() {
    let rig = mixed_run().await;
    let report = report(&rig).await;
    assert_eq!(report.len(), MIXED.len());
    for (id, command, state) in MIXED {
        let (row, operation) = (row(&report, id), rig.operation(id).await);
        assert_eq!(
            (row["command"].as_str(), row["state"].as_str()),
            (Some(command), Some(state)),
            "{row}"
        );
        for (of_row, of_operation) in [
            ("class", "class"),
            ("state", "state"),
            ("family", "family"),
            ("ttl", "ttl"),
            ("submitted_at", "created_at"),
            ("disconnected_at", "disconnected_at"),
            ("expected_config_version", "expected_config_version"),
            ("version_found", "version_found"),
        ] {
            assert_eq!(row[of_row], operation[of_operation], "{id}: {of_row}");
        }
        let away = !["BEFORE", "LOST", "AGAIN", "AFTER"].contains(&id);
        assert_eq!(row["disconnected_at"].is_string(), away, "{row}");
        let sent = ["BEFORE", "LOST", "READ-B", "AFTER"].contains(&id);
        assert_eq!(row["sent_at"].is_string(), sent, "{row}");
        assert!(
            row["submitted_at"].is_string() && row["ttl"].is_string(),
            "{row}"
        );
    }
    assert_eq!(row(&report, "SET60")["version_found"], 8);
    assert_eq!(row(&report, "BEFORE")["version_found"], 7);
    assert_eq!(row(&report, "READ-B")["superseded_count"], 1);
    assert_eq!(row(&report, "AGAIN")["reissue_of"], "LOST");
    assert_eq!(row(&report, "LOST")["reissued_by"], json!(["AGAIN"]));
    assert_eq!((rig.speed_writes(), rig.device.holding(200)), (2, 1));
    the_command_line_says_the_same(&rig);
}

fn the_command_line_says_the_same(rig: &Rig) {
    let text = cli(rig, &["report"]);
    let ops = cli(rig, &["ops"]);
    for (id, command, state) in MIXED {
        let heads = |text: &str, head: &str| {
            // What was superseded is one line of the report, with its successor.
            let brief = format!("{head}, not sent:");
            let fits = |line: &&str| *line == head || line.starts_with(&brief);
            text.lines().filter(fits).count()
        };
        assert_eq!(heads(&text, &format!("{id}: {state}")), 1, "{id}\n{text}");
        let listed = ops.lines().filter(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.last() == Some(&id) && words.contains(&state)
        });
        assert_eq!(listed.count(), 1, "{id}\n{ops}");
        let one = cli(rig, &["op", id]);
        assert_eq!(heads(&one, &format!("{id}: {state}")), 1, "{one}");
        assert!(one.contains(command), "{one}");
    }
    assert!(
        text.contains(&format!("{} operation(s)", MIXED.len())),
        "{text}"
    );
    let json: Json = serde_json::from_str(&rig_json(rig)).unwrap();
    assert_eq!(json["operations"].as_array().unwrap().len(), MIXED.len());
}

fn rig_json(rig: &Rig) -> String {
    let output = rig.command(&["report", "--json"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
