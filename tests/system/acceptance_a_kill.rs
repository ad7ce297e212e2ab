//! Rows A8 to A13: the gateway is killed at every place between a request and its answer.

use super::acceptance_a::{eject, set_length, steps};
use super::harness::Rig;
use holdfast::cli::exit::Failure;
use holdfast::simulator::{Act, Fault, Matching};
use serde_json::{Value as Json, json};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

const KILLED: Option<i32> = Some(9);
const PATIENCE: Duration = super::harness::PATIENCE;

/// A request that the gateway does not live to answer.
async fn lose(rig: &mut Rig, request: &Json) {
    let path = "/v1/operations?wait=10s";
    let answer = rig.client.post(path, request.to_string(), 10_000).await;
    assert!(
        matches!(answer, Err(Failure::NotReachable(_))),
        "the caller was answered: {answer:?}"
    );
    assert_eq!(rig.until_dead().await.signal(), KILLED);
}

/// Starts a gateway that dies at `point`, and lets it die over `request`.
async fn die_at(rig: &mut Rig, point: &str, request: &Json) {
    rig.env("HOLDFAST_KILL_AT", point);
    rig.start_up().await;
    lose(rig, request).await;
}

/// The next start, with the link away: unknown, to a query and to a resubmission. Then the link comes back.
async fn unknown_after_restart(rig: &mut Rig, request: &Json) {
    let id = request["operation_id"].as_str().unwrap();
    rig.device.cut();
    rig.start().await;
    let operation = rig.operation(id).await;
    assert_eq!(operation["state"], "outcome_unknown", "{operation}");
    assert_eq!(operation["family"], "in_doubt");
    assert_eq!(operation["result_id"], Json::Null);
    let (status, again) = rig.submit(request).await;
    assert_eq!(
        (status, &again["state"]),
        (200, &json!("outcome_unknown")),
        "{again}"
    );
    rig.restore().await;
}

/// Nothing at the device can say it, so it stays unknown until a person does.
async fn resolve(rig: &mut Rig, request: &Json, verdict: &str) {
    let id = request["operation_id"].as_str().unwrap();
    // Something else goes through meanwhile: the connection and the verifier have had their turn.
    let other = eject(rig, "OTHER");
    assert_eq!(rig.submit_wait(&other).await.1["state"], "completed");
    assert_eq!(rig.state(id).await, "outcome_unknown");
    let body = json!({ "as": verdict, "reason": "seen at the machine" });
    let (status, operation) = rig
        .post(&format!("/v1/operations/{id}/resolve"), body)
        .await;
    assert_eq!(
        (status, &operation["state"]),
        (200, &json!(verdict)),
        "{operation}"
    );
    assert_eq!(operation["evidence"]["method"], "operator");
    let (status, again) = rig.submit(request).await;
    assert_eq!(
        (status, &again["result_id"]),
        (200, &operation["result_id"])
    );
}

/// The verifier ends it by the mailbox's record.
async fn verified(rig: &mut Rig, request: &Json, state: &str) {
    let id = request["operation_id"].as_str().unwrap();
    let operation = rig.until_state(id, state).await;
    assert_eq!(operation["evidence"]["method"], "mailbox", "{operation}");
    let by = operation["history"].as_array().unwrap().last().unwrap();
    assert_eq!(by["source"], "verifier", "{operation}");
    assert_eq!(
        steps(&operation)[steps(&operation).len() - 2..],
        ["outcome_unknown", state]
    );
    let (status, again) = rig.submit(request).await;
    assert_eq!(
        (status, &again["result_id"]),
        (200, &operation["result_id"])
    );
}

// covers: A8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_the_record_is_durable() {
    for link_up in [true, false] {
        let mut rig = Rig::commissioned().await;
        let request = rig.set_speed("OP7", 50);
        rig.env("HOLDFAST_KILL_AT", "op.before-commit");
        rig.start_up().await;
        if !link_up {
            rig.cut().await;
        }
        lose(&mut rig, &request).await;
        assert_eq!(rig.speed_writes(), 0);
        rig.device.restore();
        rig.start_up().await;
        let (status, found) = rig.get("/v1/operations/OP7").await;
        assert_eq!(
            (status, &found["code"]),
            (404, &json!("unknown_operation")),
            "{found}"
        );
        let (status, operation) = rig.submit_wait(&request).await;
        assert_eq!(
            (status, &operation["state"]),
            (201, &json!("completed")),
            "{operation}"
        );
        assert_eq!((rig.speed_writes(), rig.device.holding(100)), (1, 50));
    }
}

// covers: A9
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_record_is_durable_before_sending() {
    for (point, in_time) in [
        ("op.queued.durable", true),
        ("op.queued.durable", false),
        ("engine.before-answer", true),
    ] {
        let mut rig = Rig::commissioned().await;
        let request = rig.set_speed("OP7", 50);
        rig.env("HOLDFAST_KILL_AT", point);
        rig.start_up().await;
        rig.cut().await;
        lose(&mut rig, &request).await;
        assert_eq!(rig.speed_writes(), 0);
        if !in_time {
            rig.clock.pass(10_000);
        }
        rig.start().await;
        let state = if in_time { "queued" } else { "expired" };
        assert_eq!(rig.state("OP7").await, state);
        let (status, again) = rig.submit(&request).await;
        assert_eq!((status, &again["state"]), (200, &json!(state)), "{again}");
        rig.restore().await;
        let state = if in_time { "completed" } else { "expired" };
        let ended = rig.until_state("OP7", state).await;
        assert_eq!(rig.speed_writes(), usize::from(in_time), "{ended}");
    }
}

// covers: A10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_sending_is_durable_before_the_first_byte() {
    for point in ["engine.before-run", "link.before-first-byte"] {
        let mut rig = Rig::commissioned().await;
        let request = eject(&rig, "OP7");
        die_at(&mut rig, point, &request).await;
        unknown_after_restart(&mut rig, &request).await;
        verified(&mut rig, &request, "not_executed").await;
        assert_eq!(rig.device.holding(200), 0);

        let mut rig = Rig::commissioned().await;
        let request = set_length(&rig, "OP7", 70_000);
        die_at(&mut rig, point, &request).await;
        unknown_after_restart(&mut rig, &request).await;
        resolve(&mut rig, &request, "not_executed").await;
        assert_eq!(rig.device.effects_of_register(102), 0);
    }
}

/// A link on which the bytes arrive and no reply leaves.
async fn silent_rig(matching: Matching) -> Rig {
    let mut rig = Rig::commissioned().await;
    rig.machine_toml = rig
        .machine_toml
        .replace("timeout = \"300ms\"", "timeout = \"10s\"");
    rig.device.set_fault(Fault::next(matching, Act::DropReply));
    rig.start_up().await;
    rig
}

async fn kill_once(
    rig: &mut Rig,
    request: &Json,
    done: impl Fn(&holdfast::simulator::Device) -> bool,
) {
    let (client, body) = (rig.client.clone(), request.to_string());
    let caller = tokio::spawn(async move {
        let path = "/v1/operations?wait=10s";
        client.post(path, body, 10_000).await
    });
    assert!(
        rig.device.wait_for(PATIENCE, done).await,
        "no effect\n{}",
        rig.log()
    );
    rig.kill();
    let answer = caller.await.unwrap();
    assert!(
        matches!(answer, Err(Failure::NotReachable(_))),
        "{answer:?}"
    );
}

// covers: A11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_bytes_before_the_reply() {
    let mut rig = silent_rig(Matching::Commit).await;
    let request = eject(&rig, "OP7");
    kill_once(&mut rig, &request, |device| device.holding(200) == 1).await;
    unknown_after_restart(&mut rig, &request).await;
    verified(&mut rig, &request, "completed").await;
    assert_eq!(rig.device.holding(200), 1);

    let mut rig = silent_rig(Matching::Writes).await;
    let request = set_length(&rig, "OP7", 70_000);
    let written = |device: &holdfast::simulator::Device| device.effects_of_register(102) == 1;
    kill_once(&mut rig, &request, written).await;
    unknown_after_restart(&mut rig, &request).await;
    resolve(&mut rig, &request, "completed").await;
    assert_eq!(rig.device.effects_of_register(102), 1);
}

// covers: A12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_reply_before_the_result_is_durable() {
    for point in ["link.after-reply", "op.completed.before-commit"] {
        let mut rig = Rig::commissioned().await;
        let request = eject(&rig, "OP7");
        die_at(&mut rig, point, &request).await;
        assert_eq!(rig.device.holding(200), 1);
        unknown_after_restart(&mut rig, &request).await;
        verified(&mut rig, &request, "completed").await;
        assert_eq!(rig.device.holding(200), 1);

        let mut rig = Rig::commissioned().await;
        let request = set_length(&rig, "OP7", 70_000);
        die_at(&mut rig, point, &request).await;
        assert_eq!(rig.device.effects_of_register(102), 1);
        unknown_after_restart(&mut rig, &request).await;
        resolve(&mut rig, &request, "completed").await;
        assert_eq!(rig.device.effects_of_register(102), 1);
    }
}

// covers: A13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_result_is_durable_before_the_caller_is_answered() {
    let mut rig = Rig::commissioned().await;
    let request = rig.set_speed("OP7", 50);
    die_at(&mut rig, "op.completed.durable", &request).await;
    assert_eq!(rig.speed_writes(), 1);
    rig.start_up().await;
    let operation = rig.operation("OP7").await;
    assert_eq!(operation["state"], "completed", "{operation}");
    assert_eq!(operation["evidence"]["method"], "reply");
    assert!(operation["result_id"].is_string(), "{operation}");
    let (status, again) = rig.submit_wait(&request).await;
    assert_eq!((status, &again), (200, &operation));
    assert_eq!(rig.speed_writes(), 1);
}
