//! Rows A1 to A7, A15, A16, A18 to A20, A22, A23: one identity, one effect, one answer.

use super::harness::Rig;
use holdfast::simulator::{Act, Fault, Matching};
use serde_json::{Value as Json, json};

pub(super) fn eject(rig: &Rig, id: &str) -> Json {
    rig.request(id, "eject_one", json!({}))
}
/// Nothing at the device can say whether it was done.
pub(super) fn set_length(rig: &Rig, id: &str, length: u32) -> Json {
    rig.request(id, "set_length", json!({ "length": length }))
}
/// The states it went through.
pub(super) fn steps(operation: &Json) -> Vec<&str> {
    let history = operation["history"].as_array().unwrap();
    history.iter().map(|h| h["to"].as_str().unwrap()).collect()
}
/// Whether a submission was refused so.
pub(super) fn refused((status, body): &(u16, Json), with: u16, code: &str) {
    assert_eq!((*status, &body["code"]), (with, &json!(code)), "{body}");
}
async fn rig_up() -> Rig {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig
}
async fn completed(rig: &Rig, request: &Json) -> Json {
    let (status, operation) = rig.submit_wait(request).await;
    assert_eq!(
        (status, &operation["state"]),
        (201, &json!("completed")),
        "{operation}"
    );
    operation
}
/// A link that is not tried again for a while after a timeout, so that what stands then can be seen.
async fn rig_with_lost_reply(matching: Matching) -> Rig {
    let mut rig = Rig::new().await;
    rig.machine_toml = rig
        .machine_toml
        .replace("reconnect_min = \"50ms\"", "reconnect_min = \"3s\"")
        .replace("reconnect_max = \"200ms\"", "reconnect_max = \"3s\"");
    rig.start_up().await;
    rig.device.set_fault(Fault::next(matching, Act::DropReply));
    rig
}

// covers: A1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_intent_again_is_the_same_result() {
    let rig = rig_up().await;
    let request = rig.set_speed("OP7", 50);
    let first = completed(&rig, &request).await;
    for _ in 0..2 {
        let raw = rig.client.post("/v1/operations", request.to_string(), 0);
        let raw = raw.await.unwrap();
        assert!(raw.replayed && raw.status == 200, "{raw:?}");
        let again: Json = serde_json::from_str(&raw.text).unwrap();
        assert_eq!(again, first);
    }
    assert_eq!(rig.operation("OP7").await, first);
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (1, 50));
}

// covers: A2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_intent_under_a_known_id_is_a_conflict() {
    let rig = rig_up().await;
    let request = rig.set_speed("OP7", 50);
    let first = completed(&rig, &request).await;
    let mut other = request.clone();
    other["args"]["speed"] = 60.into();
    let answer = rig.submit(&other).await;
    refused(&answer, 409, "idempotency_conflict");
    let (recorded, received) = (&answer.1["recorded"], &answer.1["received"]);
    assert_eq!(recorded["digest"], first["digest"]);
    assert_ne!(recorded["digest"], received["digest"]);
    for side in [recorded, received] {
        assert!(side["length"].as_u64().is_some_and(|n| n > 0), "{side}");
        assert_eq!(side["encoding"], first["encoding"]);
    }
    assert_eq!(answer.1["differing_fields"], json!(["args.speed"]));
    assert_eq!(rig.operation("OP7").await, first);
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (1, 50));
}

// covers: A3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_intent_written_in_other_ways() {
    let rig = rig_up().await;
    let request = rig.set_speed("OP7", 120);
    let first = completed(&rig, &request).await;
    let at = request["issued_at"].as_str().unwrap();
    let turned = format!(
        "{{\n\"issued_at\" : \"{at}\",\t\"expected_config_version\":7, \"args\":{{ \"speed\":120.0 }},\
         \"command\":\"set_speed\",\"machine\":\"press-1\", \"operation_id\":\"OP7\" }}\r\n"
    );
    let unit = |value: &str, unit: &str| {
        format!(
            r#"{{"operation_id":"OP7","machine":"press-1","command":"set_speed","expected_config_version":7,
            "issued_at":"{at}","args":{{"speed":{{"value":{value},"unit":"{unit}"}}}}}}"#
        )
    };
    for body in [
        turned,
        unit("120", "rpm"),
        unit("2", "1/s"),
        unit("1.2e2", "1/min"),
    ] {
        let (status, again) = rig.post_text("/v1/operations", body.clone()).await;
        assert_eq!((status, &again), (200, &first), "{body}");
    }
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (1, 120));
}

// covers: A4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_found_in_the_mailbox() {
    let mut rig = rig_with_lost_reply(Matching::Commit).await;
    let request = eject(&rig, "OP7");
    assert_eq!(rig.submit(&request).await.0, 201);
    rig.until_state("OP7", "outcome_unknown").await;
    rig.device.cut();
    let (status, again) = rig.submit(&request).await;
    assert_eq!(
        (status, &again["state"]),
        (200, &json!("outcome_unknown")),
        "{again}"
    );
    assert_eq!(again["result_id"], Json::Null);
    assert_eq!(rig.operation("OP7").await["family"], "in_doubt");
    rig.device.restore();
    let operation = rig.until_state("OP7", "completed").await;
    assert_eq!(
        steps(&operation),
        ["queued", "sending", "outcome_unknown", "completed"]
    );
    assert_eq!(operation["evidence"]["method"], "mailbox", "{operation}");
    assert_eq!(operation["history"][3]["source"], "verifier");
    let (status, again) = rig.submit(&request).await;
    assert_eq!((status, &again), (200, &operation));
    assert_eq!(rig.device.holding(200), 1);
}

// covers: A5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_that_nothing_can_tell_stays_unknown_until_a_person_does() {
    let mut rig = rig_with_lost_reply(Matching::Writes).await;
    let request = set_length(&rig, "OP7", 70_000);
    assert_eq!(rig.submit(&request).await.0, 201);
    rig.until_state("OP7", "outcome_unknown").await;
    // Over a reconnection, and over a restart.
    rig.until_link("up").await;
    completed(&rig, &eject(&rig, "E1")).await;
    assert_eq!(rig.state("OP7").await, "outcome_unknown");
    rig.kill();
    rig.start_up().await;
    completed(&rig, &eject(&rig, "E2")).await;
    let (status, again) = rig.submit(&request).await;
    assert_eq!(
        (status, &again["state"]),
        (200, &json!("outcome_unknown")),
        "{again}"
    );
    refused(
        &rig.post("/v1/operations/OP7/verify", json!({})).await,
        409,
        "not_possible",
    );
    let says = json!({ "as": "completed", "reason": "measured at the stop" });
    let (status, operation) = rig.post("/v1/operations/OP7/resolve", says).await;
    assert_eq!(
        (status, &operation["state"]),
        (200, &json!("completed")),
        "{operation}"
    );
    assert_eq!(
        steps(&operation),
        ["queued", "sending", "outcome_unknown", "completed"]
    );
    let by = &operation["history"][3];
    assert_eq!(by["source"], "operator");
    assert!(
        by["detail"]
            .as_str()
            .unwrap()
            .contains("measured at the stop"),
        "{by}"
    );
    assert_eq!(operation["evidence"]["method"], "operator");
    assert_eq!(operation["attempts"][0]["outcome"], "sent_no_reply");
    let (status, again) = rig.submit(&request).await;
    assert_eq!((status, &again), (200, &operation));
    assert_eq!(
        (
            rig.device.effects_of_register(102),
            rig.device.holding_u32(102)
        ),
        (1, 70_000)
    );
}

/// The press, whose end of a cycle is reported by hand.
fn by_hand(sim_toml: &str) -> String {
    sim_toml.split("[done]").next().unwrap().to_owned()
}

// covers: A6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_until_the_completion_event_with_the_id() {
    let mut rig = Rig::with(super::harness::PRESS, &by_hand(super::harness::PRESS_SIM)).await;
    rig.start_up().await;
    let request = rig.request("OP7", "start_cycle", json!({ "cycle": 4 }));
    assert_eq!(rig.submit(&request).await.0, 201);
    let accepted = rig.until_state("OP7", "accepted").await;
    let (status, again) = rig.submit(&request).await;
    assert_eq!((status, &again), (200, &accepted));
    assert_eq!(again["family"], "in_doubt");
    // Another id done says nothing about this one.
    let id = rig.device.holding_u32(501);
    rig.device.set_holding(511, rig.device.holding(502) + 1);
    let reads = rig.device.requests().len();
    rig.until("the gateway looks at it", async |rig| {
        let seen = rig.device.requests();
        let looked = |seen: &&holdfast::simulator::Seen| seen.start() == Some(510);
        seen[reads.min(seen.len())..].iter().filter(looked).count() >= 2
    })
    .await;
    assert_eq!(rig.state("OP7").await, "accepted");
    rig.device.set_holding(510, (id >> 16) as u16);
    rig.device.set_holding(511, id as u16);
    let operation = rig.until_state("OP7", "completed").await;
    assert_eq!(
        steps(&operation),
        ["queued", "sending", "accepted", "completed"]
    );
    assert_eq!(operation["evidence"]["method"], "event", "{operation}");
    let (status, again) = rig.submit(&request).await;
    assert_eq!((status, &again), (200, &operation));
    assert_eq!(rig.device.effects_of_register(500), 1);
}

// covers: A7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_and_never_heard_of_again_is_unknown_at_its_timeout() {
    let mut rig = rig_up().await;
    rig.clock.freeze();
    let request = rig.request("OP7", "nudge", json!({ "by": 3 }));
    assert_eq!(rig.submit(&request).await.0, 201);
    let accepted = rig.until_state("OP7", "accepted").await;
    rig.clock.pass(1_999);
    assert_eq!(rig.submit(&request).await, (200, accepted));
    rig.clock.pass(1);
    let unknown = rig.until_state("OP7", "outcome_unknown").await;
    assert_eq!(
        steps(&unknown),
        ["queued", "sending", "accepted", "outcome_unknown"]
    );
    assert_eq!(unknown["result_id"], Json::Null);
    assert_eq!(rig.submit(&request).await, (200, unknown));
    let says = json!({ "as": "completed", "reason": "it has moved" });
    let (status, resolved) = rig.post("/v1/operations/OP7/resolve", says).await;
    assert_eq!((status, &resolved["state"]), (200, &json!("completed")));
    assert_eq!(rig.device.effects_of_register(150), 1);
}

// covers: A15, CAP-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replay_window_has_an_exact_end() {
    let mut rig = Rig::commissioned().await;
    rig.gateway_toml += "[replay]\nwindow = \"12m\"\n";
    rig.clock.freeze();
    rig.start_up().await;
    let request = rig.set_speed("OP7", 50);
    let first = completed(&rig, &request).await;
    rig.clock.pass(719_999);
    assert_eq!(rig.submit(&request).await, (200, first.clone()));
    for _ in ["at the end", "after it"] {
        rig.clock.pass(1);
        refused(&rig.submit(&request).await, 409, "outside_replay_window");
        assert_eq!(rig.operation("OP7").await, first);
    }
    assert_eq!(rig.speed_writes(), 1);
    // It was approved anew, so it has a new id.
    completed(&rig, &rig.set_speed("OP8", 50)).await;
    assert_eq!(rig.speed_writes(), 2);
}

// covers: A16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_the_tombstone_nor_its_end_makes_an_old_request_new() {
    let mut rig = Rig::new().await;
    rig.gateway_toml += "[replay]\nwindow = \"12m\"\nretention = \"0s\"\n";
    rig.start_up().await;
    let request = rig.set_speed("OP7", 50);
    let first = completed(&rig, &request).await;
    rig.clock.pass(721_000);
    assert!(rig.stop().await.success());
    rig.start_up().await;
    rig.until("only a tombstone is left", async |rig| {
        rig.operation("OP7").await["tombstone"] == true
    })
    .await;
    let stone = rig.operation("OP7").await;
    assert_eq!(stone["state"], "completed");
    assert_eq!(stone["digest"], first["digest"]);
    refused(&rig.submit(&request).await, 409, "outside_replay_window");
    let other = rig.set_speed("OP7", 60);
    refused(&rig.submit(&other).await, 409, "idempotency_conflict");
    rig.clock.pass(1_441_000);
    rig.until("the tombstone is gone", async |rig| {
        rig.get("/v1/operations/OP7").await.0 == 404
    })
    .await;
    assert!(rig.stop().await.success());
    rig.start_up().await;
    refused(&rig.submit(&request).await, 409, "outside_replay_window");
    assert_eq!(rig.get("/v1/operations/OP7").await.0, 404);
    assert_eq!((rig.speed_writes(), rig.device.holding(100)), (1, 50));
}

// covers: A18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_changes_no_answer() {
    let mut rig = rig_up().await;
    let mut requests = vec![rig.set_speed("DONE", 50), set_length(&rig, "UNKNOWN", 9)];
    completed(&rig, &requests[0]).await;
    rig.device
        .set_fault(Fault::next(Matching::Writes, Act::DropReply));
    assert_eq!(rig.submit(&requests[1]).await.0, 201);
    rig.until_state("UNKNOWN", "outcome_unknown").await;
    rig.cut().await;
    requests.push(eject(&rig, "REFUSED"));
    refused(&rig.submit(&requests[2]).await, 409, "disconnected");
    rig.restore().await;
    let mut before = Vec::new();
    for request in &requests {
        before.push(rig.submit(request).await);
    }
    for killed in [true, false] {
        if killed {
            rig.kill();
        } else {
            assert!(rig.stop().await.success());
        }
        rig.start_up().await;
        for (request, before) in requests.iter().zip(&before) {
            let (status, after) = rig.submit(request).await;
            assert_eq!(status, 200);
            assert_eq!(after["state"], before.1["state"]);
            assert_eq!(after["result_id"], before.1["result_id"], "{after}");
            assert_eq!(after["history"], before.1["history"]);
        }
    }
    let effects = (
        rig.speed_writes(),
        rig.device.effects_of_register(102),
        rig.device.holding(200),
    );
    assert_eq!(effects, (1, 1, 0));
}

// covers: A20
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_without_an_identity_is_nothing() {
    let rig = rig_up().await;
    for mut request in [rig.set_speed("x", 50), eject(&rig, "x")] {
        request.as_object_mut().unwrap().remove("operation_id");
        refused(&rig.submit(&request).await, 400, "missing_operation_id");
    }
    let (_, list) = rig.get("/v1/operations").await;
    assert_eq!(list["operations"], json!([]));
    assert_eq!((rig.speed_writes(), rig.device.holding(200)), (0, 0));
}

// covers: A22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doing_an_unknown_one_again_shows_two_identities_and_one_intention() {
    let mut rig = rig_up().await;
    rig.device
        .set_fault(Fault::next(Matching::Writes, Act::DropReply));
    let request = set_length(&rig, "OP7", 70_000);
    assert_eq!(rig.submit(&request).await.0, 201);
    rig.until_state("OP7", "outcome_unknown").await;
    rig.until_link("up").await;
    let again = json!({ "operation_id": "OP8", "reason": "the stop has not moved" });
    let (status, body) = rig.post("/v1/operations/OP7/reissue", again.clone()).await;
    assert_eq!(status, 201, "{body}");
    let new = rig.until_state("OP8", "completed").await;
    let old = rig.operation("OP7").await;
    assert_eq!(old["state"], "outcome_unknown");
    assert_eq!(
        (&new["links"]["reissue_of"], &old["links"]["reissued_by"]),
        (&json!("OP7"), &json!(["OP8"]))
    );
    assert_eq!(new["links"]["reissue_reason"], "the stop has not moved");
    assert_eq!(new["args"], old["args"]);
    let (status, body) = rig.post("/v1/operations/OP7/reissue", again).await;
    assert_eq!((status, &body["result_id"]), (200, &new["result_id"]));
    let (_, report) = rig.get("/v1/report").await;
    let row = |id: &str| {
        let rows = report["operations"].as_array().unwrap();
        let mut rows = rows.iter().filter(|row| row["operation_id"] == id);
        let row = rows.next().unwrap().clone();
        assert!(rows.next().is_none(), "{report}");
        row
    };
    assert_eq!(row("OP8")["reissue_of"], "OP7");
    assert_eq!(row("OP7")["reissued_by"], json!(["OP8"]));
    assert_eq!(rig.device.effects_of_register(102), 2);
}

// covers: A23, OPS-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_may_look_and_not_command() {
    let mut rig = rig_up().await;
    let request = rig.set_speed("OP7", 50);
    completed(&rig, &request).await;
    assert!(rig.stop().await.success());
    let uid = rustix::process::geteuid().as_raw();
    rig.gateway_toml += &format!("[[api.role]]\nuid = {uid}\nrole = \"viewer\"\n");
    rig.start_up().await;
    for request in [rig.set_speed("OP8", 60), eject(&rig, "OP9"), request] {
        refused(&rig.submit(&request).await, 403, "forbidden");
    }
    refused(
        &rig.post("/v1/operations/OP7/cancel", json!({})).await,
        403,
        "forbidden",
    );
    assert_eq!(rig.state("OP7").await, "completed");
    for id in ["OP8", "OP9"] {
        assert_eq!(rig.get(&format!("/v1/operations/{id}")).await.0, 404);
    }
    assert_eq!((rig.speed_writes(), rig.device.holding(200)), (1, 0));
    let who = format!("uid:{uid}");
    let told: Vec<Json> = rig.events().await;
    let told: Vec<&Json> = told
        .iter()
        .filter(|event| event["type"] == "access.denied")
        .map(|event| &event["body"])
        .collect();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told.iter().all(|body| body["actor"] == who), "{told:?}");
    assert_eq!(told[1]["action"], "submit press-1/eject_one");
    assert!(rig.stop().await.success());
    let dir = rig.journal_dir();
    let out = rig.command(&["journal", "export", dir.to_str().unwrap()]);
    let out = { out }.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(text.matches("\"Audit\":{").count(), 4, "{text}");
}
