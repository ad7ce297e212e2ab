//! Owns: the proof that the interface and the command line are what the contract says.
//! May call: the real server, the real program, a fake gateway.
//! Never: look inside either.

#[path = "api/fake.rs"]
mod fake;
#[path = "api/terminal.rs"]
mod terminal;

use fake::{Gateway, completed, event, operation, own_uid, stamp};
use holdfast::api::backend::{
    Act, Known, Mode, QueryError, RewindTo, Settlement, SinkAct, Verdict,
};
use holdfast::api::roles::{Role, RoleRule, Roles, Who};
use holdfast::api::server::Limits;
use holdfast::cli::exit::Failure;
use holdfast::core::contract::DeviceCode;
use holdfast::core::gateway::{Answer, Refusal};
use holdfast::core::ids::{CommitNo, EventKey};
use holdfast::core::intent::{Digest, RawValue};
use holdfast::core::lifecycle::{Evidence, HeldReason, RejectReason, State, UnknownReason};
use holdfast::core::record::Tombstone;
use serde_json::{Value as Json, json};
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn problem(result: Result<holdfast::cli::client::Raw, Failure>) -> (u16, String, Json) {
    match result {
        Err(Failure::Problem { status, body }) => {
            assert_eq!(body["status"], status);
            let code = body["code"].as_str().unwrap().to_owned();
            (status, code, body)
        }
        other => panic!("no problem: {other:?}"),
    }
}

fn submit_body(id: &str) -> String {
    json!({"operation_id": id, "machine": "press-1", "command": "set_speed", "args": {"speed": 50},
        "issued_at": "2026-11-30T08:00:00Z"})
    .to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn unknown() -> State {
    State::OutcomeUnknown(UnknownReason::NoReply {
        why: "500 ms passed".into(),
    })
}

fn failed() -> State {
    State::Failed {
        code: DeviceCode {
            family: "modbus".into(),
            code: 2,
            meaning: "illegal data address".into(),
        },
        evidence: Evidence::never_taken(1, 2, stamp(1)),
    }
}

fn conflict() -> Answer {
    let digest = |byte| Digest {
        sha256: [byte; 32],
        length: 90,
        encoding: 1,
    };
    Answer::Refused(Refusal::IdempotencyConflict {
        recorded: digest(1),
        received: digest(2),
        differing_fields: vec!["args.speed".into()],
    })
}

/// The contract's table of answers, and the program's exit code for each.
fn answers() -> Vec<(&'static str, Answer, u16, &'static str, i32)> {
    let rejected = |reason| Answer::Recorded(Box::new(operation("X", State::Rejected(reason))));
    let refused = Answer::Refused;
    let name = || "x".to_owned();
    vec![
        (
            "R1",
            rejected(RejectReason::Disconnected),
            409,
            "disconnected",
            3,
        ),
        (
            "R2",
            rejected(RejectReason::QueueFull { limit: 1 }),
            409,
            "queue_full",
            3,
        ),
        (
            "R3",
            rejected(RejectReason::NotQueueable),
            409,
            "not_queueable",
            3,
        ),
        (
            "R4",
            rejected(RejectReason::NotDelivered),
            409,
            "not_delivered",
            3,
        ),
        (
            "R5",
            rejected(RejectReason::OutsideReplayWindow),
            409,
            "outside_replay_window",
            3,
        ),
        (
            "R6",
            rejected(RejectReason::ReplaceRefused { why: name() }),
            409,
            "replace_refused",
            3,
        ),
        (
            "R7",
            rejected(RejectReason::MachineReadOnly),
            409,
            "machine_read_only",
            3,
        ),
        ("C1", conflict(), 409, "idempotency_conflict", 7),
        (
            "U1",
            refused(Refusal::UnknownMachine {
                name: name(),
                nearest: None,
            }),
            404,
            "unknown_machine",
            2,
        ),
        (
            "U2",
            refused(Refusal::UnknownCommand {
                machine: name(),
                name: name(),
                nearest: None,
            }),
            404,
            "unknown_command",
            2,
        ),
        (
            "N1",
            refused(Refusal::NotOwner {
                owner: "gw-9".into(),
            }),
            421,
            "not_owner",
            2,
        ),
        (
            "W1",
            refused(Refusal::OutsideReplayWindow { why: name() }),
            409,
            "outside_replay_window",
            3,
        ),
        (
            "V1",
            refused(Refusal::RecoveryMode),
            503,
            "recovery_mode",
            9,
        ),
        (
            "F1",
            refused(Refusal::CapacityFull(name())),
            507,
            "capacity_full",
            3,
        ),
        (
            "S1",
            refused(Refusal::StoreUnavailable(name())),
            503,
            "store_unavailable",
            9,
        ),
        ("S2", refused(Refusal::Stopping), 503, "stopping", 8),
    ]
}

// covers: IF-01, IF-02
#[test]
fn every_refusal_has_its_status_code_and_exit_code_on_the_wire() {
    let gateway = Gateway::start();
    for (id, answer, status, code, exit) in answers() {
        let is_recorded = matches!(answer, Answer::Recorded(_));
        gateway.fake.answer(id, answer);
        let found = problem(gateway.post("/v1/operations", &submit_body(id)));
        assert_eq!((found.0, found.1.as_str()), (status, code), "{id}");
        assert_eq!(found.2["operation"].is_object(), is_recorded, "{id}");
        let ran = gateway.cli(&["submit", "press-1", "set_speed", "speed=50", "--id", id]);
        assert_eq!(ran.status.code(), Some(exit), "{id}: {ran:?}");
        assert!(text(&ran.stderr).contains(code), "{ran:?}");
    }
    let owner = problem(gateway.post("/v1/operations", &submit_body("N1"))).2;
    assert_eq!(owner["owner"], "gw-9");
}

// covers: CMD-03
#[test]
fn a_conflict_shows_both_digests_lengths_encodings_and_the_fields() {
    let gateway = Gateway::start();
    gateway.fake.answer("OP7", conflict());
    let body = problem(gateway.post("/v1/operations", &submit_body("OP7"))).2;
    assert_eq!(
        body["recorded"]["digest"],
        format!("sha256:{}", "01".repeat(32))
    );
    assert_eq!(
        body["received"]["digest"],
        format!("sha256:{}", "02".repeat(32))
    );
    assert_eq!(body["recorded"]["length"], 90);
    assert_eq!(body["received"]["encoding"], 1);
    assert_eq!(body["differing_fields"], json!(["args.speed"]));
    let ran = gateway.cli(&["submit", "press-1", "set_speed", "speed=60", "--id", "OP7"]);
    assert_eq!(ran.status.code(), Some(7));
    assert!(text(&ran.stderr).contains("args.speed"));
}

// covers: IF-01
#[test]
fn a_side_effect_without_an_id_and_a_request_that_cannot_be_read_are_the_callers() {
    let gateway = Gateway::start();
    let none = r#"{"machine":"press-1","command":"set_speed"}"#;
    let found = problem(gateway.post("/v1/operations", none));
    assert_eq!((found.0, found.1.as_str()), (400, "missing_operation_id"));
    let ran = gateway.cli(&["submit", "press-1", "set_speed", "speed=50"]);
    assert_eq!(ran.status.code(), Some(2));

    let submitted = gateway.fake.submitted.lock().unwrap().len();
    let found = problem(gateway.post("/v1/operations", "{\"machine\": }"));
    assert_eq!((found.0, found.1.as_str()), (400, "malformed"));
    assert_eq!(found.2["line"], 1);
    let odd = r#"{"operation_id":"A","machine":"press-1","command":"set_speed","expect_config_version":7}"#;
    let found = problem(gateway.post("/v1/operations", odd));
    assert_eq!((found.0, found.1.as_str()), (400, "malformed"));
    assert_eq!(found.2["nearest"], "expected_config_version");
    let twice =
        r#"{"operation_id":"A","operation_id":"B","machine":"press-1","command":"set_speed"}"#;
    assert_eq!(
        problem(gateway.post("/v1/operations", twice)).1,
        "malformed"
    );
    let ttl = r#"{"operation_id":"A","machine":"press-1","command":"set_speed","ttl":"soon"}"#;
    let found = problem(gateway.post("/v1/operations", ttl));
    assert_eq!((found.0, found.1.as_str()), (422, "invalid_argument"));
    assert_eq!(found.2["field"], "ttl");
    let found = problem(gateway.post("/v1/operations?wiat=1s", &submit_body("A")));
    assert_eq!(found.2["nearest"], "wait");
    assert_eq!(
        gateway.fake.submitted.lock().unwrap().len(),
        submitted,
        "none got through"
    );
    assert_eq!(
        problem(gateway.get("/v1/operations/a%20b")).1,
        "invalid_operation_id"
    );
}

// covers: IF-01
#[test]
fn a_recorded_operation_is_201_and_its_replay_200_with_the_header() {
    let gateway = Gateway::start();
    gateway.fake.answer(
        "NEW",
        Answer::Recorded(Box::new(operation("NEW", State::Queued))),
    );
    let raw = gateway.post("/v1/operations", &submit_body("NEW")).unwrap();
    assert_eq!((raw.status, raw.replayed), (201, false));
    let body: Json = raw.parse().unwrap();
    assert_eq!(
        (&body["state"], &body["family"]),
        (&json!("queued"), &json!("not_sent"))
    );
    assert_eq!(body["history"][0]["boottime_ns"], "5000000000");
    assert_eq!(body["created_at"], "2026-11-30T08:00:00.123456Z");

    gateway.fake.answer(
        "OLD",
        Answer::Replayed(Box::new(operation("OLD", completed()))),
    );
    let raw = gateway.post("/v1/operations", &submit_body("OLD")).unwrap();
    assert_eq!((raw.status, raw.replayed), (200, true));
    assert_eq!(
        raw.parse::<Json>().unwrap()["result"]["values"]["speed"],
        50
    );
    let refused = operation("OLDR", State::Rejected(RejectReason::Disconnected));
    gateway
        .fake
        .answer("OLDR", Answer::Replayed(Box::new(refused)));
    let raw = gateway
        .post("/v1/operations", &submit_body("OLDR"))
        .unwrap();
    assert_eq!((raw.status, raw.replayed), (200, true));
}

// covers: IF-02
#[test]
fn the_exit_code_says_how_the_operation_stands() {
    let gateway = Gateway::start();
    let held = State::Held(HeldReason::VersionConflict {
        expected: 7,
        found: 8,
    });
    for (id, state, exit, waited) in [
        ("Q", State::Queued, 0, 6),
        ("H", held, 3, 3),
        ("E", State::Expired, 3, 3),
        ("D", completed(), 0, 0),
        ("F", failed(), 4, 4),
        ("U", unknown(), 5, 5),
    ] {
        gateway.fake.know(operation(id, state.clone()));
        gateway
            .fake
            .answer(id, Answer::Recorded(Box::new(operation(id, state))));
        let args = ["submit", "press-1", "set_speed", "speed=50rpm", "--id", id];
        assert_eq!(gateway.cli(&args).status.code(), Some(exit), "{id}");
        let waiting: Vec<&str> = args.iter().copied().chain(["--wait", "50ms"]).collect();
        assert_eq!(gateway.cli(&waiting).status.code(), Some(waited), "{id}");
    }
    let submitted = gateway.fake.submitted.lock().unwrap();
    let first = &submitted[0];
    assert_eq!(first.args["speed"].value, RawValue::Number("50".into()));
    assert_eq!(first.args["speed"].unit.as_deref(), Some("rpm"));
    // The same command line again means the same: its issue time is the recorded one.
    assert_eq!(first.issued_at_us, Some(stamp(0).wall_us));
}

#[test]
fn without_a_gateway_the_exit_code_is_8_and_bad_usage_is_2() {
    let gateway = Gateway::start();
    let nowhere = gateway.socket.with_file_name("none.sock");
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .env("HOLDFAST_SOCKET", &nowhere)
        .arg("status")
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(8), "{ran:?}");
    assert!(text(&ran.stderr).contains("no gateway answers"));
    assert_eq!(gateway.cli(&["frobnicate"]).status.code(), Some(2));
    let help = text(&gateway.cli(&["--help"]).stdout);
    for code in ["   0 ", "   5 ", "   9 ", "  77 ", "  78 "] {
        assert!(help.contains(code), "{code:?} in {help}");
    }
}

// covers: CMD-06
#[test]
fn a_wait_answers_at_the_end_of_the_operation() {
    let gateway = Gateway::start();
    let fake = gateway.fake.clone();
    fake.answer(
        "W",
        Answer::Recorded(Box::new(operation("W", State::Queued))),
    );
    fake.know(operation("W", completed()));
    let client = gateway.client();
    let body = submit_body("W");
    let waiting = gateway
        .runtime
        .spawn(async move { client.post("/v1/operations?wait=60s", body, 60_000).await });
    let deadline = Instant::now() + Duration::from_secs(10);
    while fake.release.receiver_count() == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        std::thread::yield_now();
    }
    assert!(!waiting.is_finished());
    fake.release.send(true).unwrap();
    let raw = gateway.runtime.block_on(waiting).unwrap().unwrap();
    assert_eq!(raw.status, 201);
    assert_eq!(raw.parse::<Json>().unwrap()["state"], "completed");
    let found = problem(gateway.get("/v1/operations/W?wait=2d"));
    assert_eq!((found.0, &found.2["field"]), (422, &json!("wait")));
}

// covers: CAN-02
#[test]
fn acts_reach_the_gateway_and_their_answers_the_caller() {
    let gateway = Gateway::start();
    let fake = &gateway.fake;
    fake.answer(
        "cancel A",
        Answer::Cancelled(Box::new(operation("A", State::Queued))),
    );
    let raw = gateway.post("/v1/operations/A/cancel", "").unwrap();
    assert_eq!(raw.parse::<Json>().unwrap()["cancelled"], true);
    assert_eq!(gateway.cli(&["cancel", "A"]).status.code(), Some(0));

    fake.answer(
        "cancel B",
        Answer::TooLate(Box::new(operation("B", unknown()))),
    );
    let found = problem(gateway.post("/v1/operations/B/cancel", "{}"));
    assert_eq!((found.0, found.1.as_str()), (409, "too_late"));
    assert_eq!(found.2["state"], "outcome_unknown");
    assert!(
        found.2["detail"]
            .as_str()
            .unwrap()
            .contains("cannot be determined")
    );
    assert_eq!(gateway.cli(&["cancel", "B"]).status.code(), Some(5));

    fake.answer(
        "resolve B",
        Answer::Done(Box::new(operation("B", completed()))),
    );
    let no_reason = gateway.post("/v1/operations/B/resolve", r#"{"as":"completed"}"#);
    assert_eq!(problem(no_reason).2["field"], "reason");
    let args = ["resolve", "B", "--as", "not-executed", "--reason", "looked"];
    assert_eq!(
        gateway.cli(&[&args[..], &["--yes"]].concat()).status.code(),
        Some(0)
    );
    assert_eq!(
        fake.acts.lock().unwrap().last(),
        Some(&Act::Resolve {
            verdict: Verdict::NotExecuted,
            reason: "looked".into(),
            by_operation: None
        })
    );
    fake.answer(
        "reissue B",
        Answer::Recorded(Box::new(operation("C", State::Queued))),
    );
    let args = [
        "reissue",
        "B",
        "--id",
        "C",
        "--reason",
        "wanted still",
        "--yes",
    ];
    assert_eq!(gateway.cli(&args).status.code(), Some(0));
    fake.answer(
        "verify B",
        Answer::Done(Box::new(operation("B", unknown()))),
    );
    assert_eq!(gateway.cli(&["verify", "B"]).status.code(), Some(5));
    let not = Refusal::NotPossible {
        id: "A".into(),
        state: "queued".into(),
        what: "cancel it".into(),
    };
    fake.answer("approve A", Answer::Refused(not));
    let approved = gateway.cli(&["approve", "A", "--yes"]);
    assert_eq!(approved.status.code(), Some(2));
    assert!(text(&approved.stderr).contains("[not_possible]"));
    assert_eq!(
        problem(gateway.post("/v1/operations/Z/verify", "")).1,
        "unknown_operation"
    );
}

// covers: CMD-09, OPS-02
#[test]
fn a_links_bytes_are_for_administrators_bounded_and_for_one_at_a_time() {
    let gateway = Gateway::start();
    let path = "/v1/machines/press-1/trace";
    for wrong in [
        r#"{}"#,
        r#"{"for":"0ms"}"#,
        r#"{"for":"61s"}"#,
        r#"{"for":5}"#,
    ] {
        assert_eq!(
            problem(gateway.post(path, wrong)).2["field"],
            "for",
            "{wrong}"
        );
    }
    let nowhere = gateway.post("/v1/machines/press-9/trace", r#"{"for":"1s"}"#);
    assert_eq!(problem(nowhere).1, "unknown_machine");
    assert!(gateway.fake.traced.lock().unwrap().is_empty());
    let shown = text(&gateway.cli(&["machine", "press-1", "--trace", "2s"]).stdout);
    assert!(
        shown.contains("08:00:00.123 > 2 bytes\n    41 00 "),
        "{shown}"
    );
    assert!(shown.contains("3 more entries were not kept"), "{shown}");
    let taken = problem(gateway.post(path, r#"{"for":"1s"}"#));
    assert_eq!((taken.0, taken.1.as_str()), (503, "busy"));
    let traced = gateway.fake.traced.lock().unwrap().clone();
    assert_eq!((traced[0].0.as_str(), traced[0].1), ("press-1", 2_000));
    let rules = vec![RoleRule {
        who: Who::Uid(own_uid()),
        role: Role::Resolver,
    }];
    gateway
        .roles
        .send_replace(Arc::new(Roles { rules, own_uid: 1 }));
    assert_eq!(problem(gateway.post(path, r#"{"for":"1s"}"#)).0, 403);
    let denied = gateway.fake.denied.lock().unwrap().clone();
    assert_eq!(denied[0].1, "trace machine press-1");
}

// covers: CMD-09, OPS-02
#[test]
fn a_viewer_may_query_and_nothing_else_and_the_refusal_is_told_to_the_journal() {
    let gateway = Gateway::start();
    let give = |role| {
        let rules = vec![RoleRule {
            who: Who::Uid(own_uid()),
            role,
        }];
        gateway
            .roles
            .send_replace(Arc::new(Roles { rules, own_uid: 1 }));
    };
    give(Role::Viewer);
    let found = problem(gateway.post("/v1/operations", &submit_body("OP7")));
    assert_eq!((found.0, found.1.as_str()), (403, "forbidden"));
    assert!(gateway.fake.submitted.lock().unwrap().is_empty());
    let denied = gateway.fake.denied.lock().unwrap().clone();
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0].1, "submit press-1/set_speed");
    assert_eq!(denied[0].0.to_string(), format!("uid:{}", own_uid()));
    let query = r#"{"machine":"press-1","command":"read_status"}"#;
    let raw = gateway.post("/v1/operations", query).unwrap();
    assert_eq!(
        raw.parse::<Json>().unwrap()["result"]["values"]["status"],
        3
    );
    assert!(gateway.get("/v1/status").is_ok());
    let ran = gateway.cli(&["submit", "press-1", "set_speed", "speed=1", "--id", "A"]);
    assert_eq!(ran.status.code(), Some(77));

    // Each role opens exactly its own acts.
    let paths = [
        ("/v1/operations/A/cancel", "", Role::Operator),
        (
            "/v1/operations/A/reissue",
            r#"{"operation_id":"B","reason":"r"}"#,
            Role::Operator,
        ),
        (
            "/v1/operations/A/resolve",
            r#"{"as":"completed","reason":"r"}"#,
            Role::Resolver,
        ),
        ("/v1/operations/A/approve", "", Role::Resolver),
        ("/v1/reload", "", Role::Admin),
        (
            "/v1/sinks/mes/dead-letters/press-1/7/42/drop",
            r#"{"reason":"r"}"#,
            Role::Admin,
        ),
        ("/v1/sinks/mes/resume", "", Role::Resolver),
        (
            "/v1/sinks/mes/rewind",
            r#"{"to":"press-1/7/42","reason":"r"}"#,
            Role::Admin,
        ),
    ];
    for role in [Role::Viewer, Role::Operator, Role::Resolver, Role::Admin] {
        give(role);
        for (path, body, least) in paths {
            let forbidden = matches!(
                gateway.post(path, body),
                Err(Failure::Problem { status: 403, .. })
            );
            assert_eq!(forbidden, role < least, "{path} as {}", role.name());
        }
    }
    gateway.roles.send_replace(Arc::new(Roles {
        rules: vec![RoleRule {
            who: Who::Uid(own_uid() + 1),
            role: Role::Admin,
        }],
        own_uid: own_uid(),
    }));
    assert_eq!(problem(gateway.get("/v1/status")).0, 403);
    assert!(gateway.get("/healthz").is_ok());
}

#[test]
fn a_query_that_cannot_be_answered_says_why() {
    let gateway = Gateway::start();
    let query = r#"{"machine":"press-1","command":"read_status"}"#;
    *gateway.fake.query.lock().unwrap() = Err(QueryError::Disconnected("cable".into()));
    let found = problem(gateway.post("/v1/operations", query));
    assert_eq!((found.0, found.1.as_str()), (409, "disconnected"));
    let ran = gateway.cli(&["submit", "press-1", "read_status"]);
    assert_eq!(ran.status.code(), Some(3));
    *gateway.fake.query.lock().unwrap() = Err(QueryError::Device("code 2".into()));
    assert_eq!(
        gateway
            .cli(&["submit", "press-1", "read_status"])
            .status
            .code(),
        Some(4)
    );
    assert_eq!(
        gateway.cli(&["read", "press-1", "speed"]).status.code(),
        Some(4)
    );
    let found = problem(gateway.get("/v1/machines/press-1/tags?read=sped"));
    assert_eq!((found.0, &found.2["nearest"]), (404, &json!("speed")));
}

// covers: IF-01, EVT-06, FWD-05, POL-12
#[test]
fn the_shapes_are_the_contracts() {
    let gateway = Gateway::start();
    let get = |path: &str| -> Json { gateway.get(path).unwrap().parse().unwrap() };
    let status = get("/v1/status");
    assert_eq!(status["mode"], "normal");
    assert_eq!(status["journal"]["budget_bytes"], "536870912");
    assert_eq!(
        status["counts"],
        json!({"queued": 1, "held": 2, "outcome_unknown": 3})
    );
    assert_eq!(status["alarms"][0]["do"], "look at the cable");
    assert_eq!(get("/v1/machines/press-1")["link"]["state"], "down");
    assert_eq!(
        problem(gateway.get("/v1/machines/pres-1")).2["nearest"],
        "press-1"
    );
    let tag = &get("/v1/machines/press-1/tags")["tags"][0];
    assert_eq!(
        (&tag["value"], &tag["quality"]),
        (&Json::Null, &json!("stale"))
    );
    let sink = &get("/v1/sinks")["sinks"][0];
    assert_eq!(sink["counters"]["attempts"], "19");
    assert_eq!(sink["backlog"]["events"], "12");
    let cells = &get("/v1/policy")["machines"][0]["commands"][0]["cells"];
    assert_eq!(cells["ttl"], json!({"value": "10s", "from": "row"}));
    assert_eq!(cells["verify"]["from"], "class_default");
    assert_eq!(get("/v1/operations")["operations"], json!([]));
    assert_eq!(
        problem(gateway.get("/v1/operations?state=lost")).1,
        "invalid_argument"
    );
    let stone = Tombstone {
        id: operation("T", State::Queued).id,
        digest: operation("T", State::Queued).digest,
        state: "completed".into(),
        created_us: 0,
    };
    gateway
        .fake
        .known
        .lock()
        .unwrap()
        .insert("T".into(), Known::Tombstone(stone));
    let stone = get("/v1/operations/T");
    assert_eq!(
        (&stone["tombstone"], &stone["family"]),
        (&json!(true), &json!("known"))
    );
    assert_eq!(
        problem(gateway.get("/v1/operations/GONE")).1,
        "unknown_operation"
    );
    let metrics = gateway.get("/metrics").unwrap().text;
    assert!(
        metrics.contains("holdfast_operations{state=\"outcome_unknown\"} 3"),
        "{metrics}"
    );
    assert!(metrics.contains("holdfast_link_state{machine=\"press-1\",state=\"down\"} 1"));
    assert!(metrics.contains("holdfast_sink_answers_total{sink=\"mes\",kind=\"retry\"} 5"));
    assert!(gateway.get("/readyz").unwrap().text.contains("true"));
    *gateway.fake.ready.lock().unwrap() = false;
    assert_eq!(gateway.get("/readyz").unwrap().status, 503);
    let api = get("/openapi.json");
    assert_eq!(api["openapi"], "3.1.0");
    assert_eq!(problem(gateway.get("/v1/nothing")).0, 404);
    assert_eq!(problem(gateway.post("/v1/status", "")).0, 405);
}

// covers: IF-02
#[test]
fn no_output_is_wider_than_80_columns_and_none_is_coloured_without_a_terminal() {
    let gateway = Gateway::start();
    let long = "L".repeat(128);
    let mut wide = operation(&long, unknown());
    wide.links.reissue_of = Some(operation("OP6", State::Queued).id);
    gateway.fake.know(wide);
    gateway.fake.know(operation("OP7", completed()));
    gateway.fake.events.lock().unwrap().push(event(1, 0, 42));
    for args in [
        vec!["status"],
        vec!["ops"],
        vec!["op", &long],
        vec!["report"],
        vec!["machine"],
        vec!["machine", "press-1"],
        vec!["policy"],
        vec!["sinks"],
        vec!["events"],
        vec!["dead-letters", "mes"],
        vec!["dead-letters", "mes", "show"],
        vec!["read", "press-1", "--cached"],
        vec!["--help"],
        vec!["submit", "--help"],
        vec!["resolve", "--help"],
        vec!["cancel", "nothing-of-that-name-is-known-here"],
    ] {
        let ran = gateway.cli(&args);
        let shown = text(&ran.stdout) + &text(&ran.stderr);
        assert!(!shown.is_empty(), "{args:?}");
        assert!(!shown.contains('\x1b'), "{args:?}");
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
    let op = text(&gateway.cli(&["op", &long]).stdout);
    assert!(op.contains("do not send it again"), "{op}");
    assert!(op.contains("500 ms passed"), "{op}");
    let status = text(&gateway.cli(&["status"]).stdout);
    assert!(status.contains("do: look at the cable"), "{status}");
    *gateway.fake.mode.lock().unwrap() = Mode::Recovery;
    let recovery = gateway.cli(&["status"]);
    assert_eq!(recovery.status.code(), Some(9));
    let said = text(&recovery.stdout);
    let next = said.lines().skip_while(|line| !line.starts_with("next:"));
    let next: Vec<&str> = next.take(2).collect();
    assert!(next[1].contains("holdfast journal check"), "{said}");
    assert!(!said.contains("ops --state held"), "{said}");
}

// covers: IF-02
#[test]
fn every_reading_command_prints_the_interfaces_json() {
    let gateway = Gateway::start();
    gateway.fake.know(operation("OP7", completed()));
    gateway.fake.events.lock().unwrap().push(event(1, 0, 42));
    for (args, member) in [
        (vec!["status"], "mode"),
        (vec!["ops"], "operations"),
        (vec!["op", "OP7"], "operation_id"),
        (vec!["report"], "operations"),
        (vec!["machine"], "machines"),
        (vec!["policy"], "machines"),
        (vec!["sinks"], "sinks"),
        (vec!["events"], "cursor"),
        (vec!["dead-letters", "mes"], "dead_letters"),
        (vec!["read", "press-1", "--cached"], "tags"),
        (vec!["version"], "version"),
    ] {
        let ran = gateway.cli(&[args.clone(), vec!["--json"]].concat());
        assert_eq!(ran.status.code(), Some(0), "{args:?}: {ran:?}");
        let json: Json = serde_json::from_slice(&ran.stdout).unwrap();
        assert!(json.get(member).is_some(), "{args:?}: {json}");
    }
    let ran = gateway.cli(&["--json", "op", "NONE"]);
    let json: Json = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        (&json["code"], ran.status.code()),
        (&json!("unknown_operation"), Some(2))
    );
    assert!(text(&gateway.cli(&["completions", "bash"]).stdout).contains("holdfast"));
    assert!(text(&gateway.cli(&["man"]).stdout).contains(".TH holdfast"));
}

// covers: FWD-06
#[test]
fn a_dead_letter_is_dropped_only_with_a_reason() {
    let gateway = Gateway::start();
    let key = "press-1/7/42";
    assert_eq!(
        gateway
            .cli(&["dead-letters", "mes", "drop", key])
            .status
            .code(),
        Some(2)
    );
    let bare = gateway.post("/v1/sinks/mes/dead-letters/press-1%2F7%2F42/drop", "{}");
    assert_eq!(problem(bare).2["field"], "reason");
    assert!(gateway.fake.settled.lock().unwrap().is_empty());
    let args = [
        "dead-letters",
        "mes",
        "drop",
        key,
        "--reason",
        "a test piece",
        "--yes",
    ];
    assert_eq!(gateway.cli(&args).status.code(), Some(0));
    gateway
        .post("/v1/sinks/mes/dead-letters/press-1/7/42/resend", "")
        .unwrap();
    let settled = gateway.fake.settled.lock().unwrap().clone();
    assert_eq!(settled[0].0.to_string(), key);
    assert_eq!(
        (&settled[0].1, settled[0].2.as_str()),
        (&Settlement::Drop, "a test piece")
    );
    assert_eq!(settled[1].1, Settlement::Resend);
    assert_eq!(
        gateway.cli(&["dead-letters", "nowhere"]).status.code(),
        Some(2)
    );
    *gateway.fake.reload.lock().unwrap() = Err("machines/press-1.toml:3: unknown key".into());
    assert_eq!(gateway.cli(&["reload"]).status.code(), Some(78));
}

// covers: FWD-06
#[test]
fn dead_letters_are_resent_in_one_go_and_mended_by_a_correction() {
    let gateway = Gateway::start();
    let all = gateway.cli(&["--json", "dead-letters", "mes", "resend", "--all"]);
    assert_eq!(all.status.code(), Some(3), "one of them stays");
    let said: Json = serde_json::from_slice(&all.stdout).unwrap();
    assert_eq!(said["settled"], 2);
    assert_eq!(said["refused"][0]["key"], "press-1/7/44");
    let page = gateway.get("/v1/sinks/mes/dead-letters?limit=2").unwrap();
    let page: Json = page.parse().unwrap();
    assert_eq!(page["next"], "press-1/7/43");
    let rest = gateway.get("/v1/sinks/mes/dead-letters?after=press-1/7/43");
    let rest: Json = rest.unwrap().parse().unwrap();
    assert_eq!(rest["dead_letters"].as_array().unwrap().len(), 1);
    assert_eq!(rest.get("next"), None);

    gateway.fake.settled.lock().unwrap().clear();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("body.json");
    std::fs::write(&file, "{\"length\": 5.0}").unwrap();
    let file = file.to_str().unwrap();
    let key = "press-1/7/42";
    let mend = |more: &[&str]| {
        let mut args = vec!["dead-letters", "mes", "mend", key, "--yes"];
        args.extend(more);
        gateway.cli(&args)
    };
    assert_eq!(mend(&["--body", file]).status.code(), Some(2), "no reason");
    assert_eq!(
        mend(&["--reason", "typo"]).status.code(),
        Some(2),
        "no body"
    );
    assert!(gateway.fake.settled.lock().unwrap().is_empty());
    let done = mend(&["--body", file, "--qty", "-1", "--reason", "typo"]);
    assert_eq!(done.status.code(), Some(0));
    assert!(text(&done.stdout).contains("mended by press-1/7/99"));
    let settled = gateway.fake.settled.lock().unwrap().clone();
    let Settlement::Mend { body, qty } = &settled[0].1 else {
        panic!("{settled:?}")
    };
    assert_eq!(
        (body.to_string(), *qty),
        ("{\"length\":5.0}".into(), Some(-1))
    );
}

#[test]
fn a_sink_is_rewound_only_with_a_reason_and_to_a_place() {
    let gateway = Gateway::start();
    for wrong in [
        vec!["sinks", "mes", "rewind", "--to", "press-1/7/42", "--yes"],
        vec!["sinks", "mes", "rewind", "--reason", "failover", "--yes"],
        vec![
            "sinks", "mes", "rewind", "--to", "x", "--reason", "r", "--yes",
        ],
        vec!["sinks", "nowhere"],
    ] {
        assert_eq!(gateway.cli(&wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert!(gateway.fake.sink_acts.lock().unwrap().is_empty());
    let args = [
        "sinks",
        "mes",
        "rewind",
        "--to",
        "press-1/7/42",
        "--reason",
        "failover",
        "--yes",
    ];
    let ran = gateway.cli(&args);
    assert!(text(&ran.stdout).contains("12 events are sent again"));
    assert_eq!(
        gateway.cli(&["sinks", "mes", "resume"]).status.code(),
        Some(0)
    );
    let acts = gateway.fake.sink_acts.lock().unwrap().clone();
    let key = EventKey::parse("press-1/7/42").unwrap();
    assert_eq!(acts[0].1, SinkAct::Rewind(RewindTo::Key(key)));
    assert_eq!(
        (acts[0].0.as_str(), acts[0].2.as_str()),
        ("mes", "failover")
    );
    assert_eq!(acts[1].1, SinkAct::Resume);
    let shown = text(&gateway.cli(&["sinks", "mes"]).stdout);
    for part in [
        "backlog 12",
        "in 10.5/s, out 41.5/s",
        "drains in 1 s",
        "1 of these answers to dead letters sent again",
    ] {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
}

/// Reads from a stream until `enough` is in it.
fn read_until(stream: &mut UnixStream, enough: &str) -> String {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut all = Vec::new();
    let mut part = [0; 4096];
    while !String::from_utf8_lossy(&all).contains(enough) {
        let length = stream.read(&mut part).unwrap();
        assert_ne!(length, 0, "ended: {}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&part[..length]);
    }
    String::from_utf8(all).unwrap()
}

fn ask(gateway: &Gateway, head: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&gateway.socket).unwrap();
    let head = format!("GET {head}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

// covers: IF-01
#[test]
fn a_stream_resumes_behind_the_commit_it_names_and_gives_an_id_with_the_last_of_a_commit() {
    let gateway = Gateway::start();
    let fake = &gateway.fake;
    fake.events
        .lock()
        .unwrap()
        .extend([event(4, 0, 1), event(5, 0, 2), event(5, 1, 3)]);
    let head = "/v1/stream HTTP/1.1\r\nhost: x\r\nlast-event-id: 4";
    let mut stream = ask(&gateway, head);
    let got = read_until(&mut stream, "id: 5");
    assert!(!got.contains("\"sequence\":\"1\""), "{got}");
    assert!(
        got.contains("\"sequence\":\"2\"") && got.contains("\"sequence\":\"3\""),
        "{got}"
    );
    assert_eq!(got.matches("id: 5").count(), 1);
    assert!(got.find("\"sequence\":\"3\"") < got.find("id: 5"), "{got}");
    assert_eq!(got.matches("event: operation.transition").count(), 2);
    // What comes later follows by itself.
    fake.events.lock().unwrap().push(event(6, 0, 4));
    fake.commits.send(CommitNo(6)).unwrap();
    read_until(&mut stream, "id: 6");
    let found = problem(gateway.runtime.block_on(async {
        match gateway.client().stream(Some("x y"), |_| true).await {
            Err(failure) => Err(failure),
            Ok(()) => panic!("a stream"),
        }
    }));
    assert_eq!(found.0, 422);
    // Stopping ends it, and the server with it.
    gateway.stop.send(true).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
}

// covers: OPS-03
#[test]
fn a_caller_that_does_not_read_its_answers_does_not_keep_its_place() {
    let gateway = Gateway::with(Limits {
        connections: 1,
        unread_ms: 200,
        ..Limits::default()
    });
    let mut deaf = UnixStream::connect(&gateway.socket).unwrap();
    deaf.set_nonblocking(true).unwrap();
    // As many questions as go in: their answers fill every buffer on the way back.
    while deaf
        .write(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
        .is_ok()
    {}
    assert_eq!(gateway.get("/healthz").unwrap().status, 200);
    drop(deaf);
}

// covers: OPS-03
#[test]
fn a_body_over_the_limit_and_a_head_that_never_ends_are_refused() {
    let gateway = Gateway::with(Limits {
        header_ms: 100,
        body_ms: 100,
        ..Limits::default()
    });
    let big = format!("{{\"machine\":\"{}\"}}", "x".repeat(64 * 1024));
    let found = problem(gateway.post("/v1/operations", &big));
    assert_eq!((found.0, found.1.as_str()), (413, "too_large"));
    let mut slow = UnixStream::connect(&gateway.socket).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    // An idle connection does not keep its place.
    let mut idle = ask(&gateway, "/healthz HTTP/1.1\r\nhost: x");
    read_until(&mut idle, "alive");
    idle.read_to_end(&mut rest).unwrap();
    let mut lazy = UnixStream::connect(&gateway.socket).unwrap();
    lazy.write_all(b"POST /v1/operations HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
        .unwrap();
    read_until(&mut lazy, "too_slow");
}

// covers: OPS-03
#[test]
fn five_hundred_callers_at_once_are_all_answered_within_the_limits() {
    let gateway = Gateway::with(Limits {
        connections: 16,
        ..Limits::default()
    });
    let queued = |id: &str| Answer::Recorded(Box::new(operation(id, State::Queued)));
    let callers: Vec<_> = (0..500)
        .map(|n| {
            let id = format!("OP{n}");
            gateway.fake.answer(&id, queued(&id));
            let client = gateway.client();
            let body = submit_body(&id);
            gateway
                .runtime
                .spawn(async move { client.post("/v1/operations", body, 0).await })
        })
        .collect();
    for caller in callers {
        let raw = gateway.runtime.block_on(caller).unwrap().unwrap();
        assert_eq!(raw.status, 201);
    }
    assert_eq!(gateway.fake.submitted.lock().unwrap().len(), 500);
}

// covers: OPS-03
#[test]
fn as_many_wait_as_may_and_the_others_are_answered_at_once() {
    let gateway = Gateway::with(Limits {
        waiting: 1,
        ..Limits::default()
    });
    gateway.fake.know(operation("Q", State::Queued));
    let client = gateway.client();
    let waiting = gateway.runtime.spawn(async move {
        client
            .get_waiting("/v1/operations/Q?wait=60s", 60_000)
            .await
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while gateway.fake.release.receiver_count() == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        std::thread::yield_now();
    }
    let raw = gateway.get("/v1/operations/Q?wait=60s").unwrap();
    assert_eq!(raw.parse::<Json>().unwrap()["state"], "queued");
    let stream = gateway
        .runtime
        .block_on(gateway.client().stream(None, |_| true));
    let Err(Failure::Problem { status, body }) = stream else {
        panic!("a stream");
    };
    assert_eq!((status, &body["code"]), (503, &json!("busy")));
    assert!(!waiting.is_finished());
}

#[test]
fn a_stop_answers_those_who_wait_with_the_state_as_it_is() {
    let mut gateway = Gateway::start();
    gateway.fake.know(operation("Q", State::Queued));
    let client = gateway.client();
    let waiting = gateway.runtime.spawn(async move {
        client
            .get_waiting("/v1/operations/Q?wait=60s", 60_000)
            .await
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while gateway.fake.release.receiver_count() == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        std::thread::yield_now();
    }
    gateway.stop.send(true).unwrap();
    let raw = gateway.runtime.block_on(waiting).unwrap().unwrap();
    assert_eq!(raw.parse::<Json>().unwrap()["state"], "queued");
    let server = gateway.server.take().unwrap();
    gateway
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), server).await })
        .unwrap()
        .unwrap();
    assert!(matches!(
        gateway.get("/healthz"),
        Err(Failure::NotReachable(_))
    ));
}

// covers: OPS-03
#[test]
fn beyond_the_limit_a_caller_waits_until_a_place_is_free() {
    let gateway = Gateway::with(Limits {
        connections: 1,
        ..Limits::default()
    });
    gateway.fake.know(operation("Q", State::Queued));
    let wait = "/v1/operations/Q?wait=60s HTTP/1.1\r\nhost: x\r\nconnection: close";
    let mut first = ask(&gateway, wait);
    let deadline = Instant::now() + Duration::from_secs(10);
    while gateway.fake.release.receiver_count() == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        std::thread::yield_now();
    }
    let mut second = ask(&gateway, "/healthz HTTP/1.1\r\nhost: x");
    second
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert!(
        second.read(&mut [0; 16]).is_err(),
        "answered beyond the limit"
    );
    gateway.fake.release.send(true).unwrap();
    read_until(&mut first, "queued");
    read_until(&mut second, "alive");
}

// covers: IF-01
#[test]
fn what_the_router_itself_refuses_is_a_problem_too() {
    let gateway = Gateway::start();
    let found = problem(gateway.get("/v1/operations/%FF"));
    assert_eq!((found.0, found.1.as_str()), (400, "malformed"));
}

// covers: EVT-01
#[test]
fn events_are_printed_byte_for_byte_and_followed_without_a_gap() {
    let gateway = Gateway::start();
    let mut first = event(1, 0, 42);
    first.1.body = "{\"b\": 1.50,  \"a\":2}".into();
    gateway.fake.events.lock().unwrap().push(first);
    let printed = text(&gateway.cli(&["events", "--json"]).stdout);
    assert!(
        printed.contains("\"body\":{\"b\": 1.50,  \"a\":2},"),
        "{printed}"
    );

    let mut follower = std::process::Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .arg("--socket")
        .arg(&gateway.socket)
        .args(["events", "--follow", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(
        lines
            .next()
            .unwrap()
            .unwrap()
            .contains("\"sequence\":\"42\"")
    );
    gateway.fake.events.lock().unwrap().push(event(2, 0, 43));
    gateway.fake.commits.send_replace(CommitNo(2));
    assert!(
        lines
            .next()
            .unwrap()
            .unwrap()
            .contains("\"sequence\":\"43\"")
    );
    gateway.stop.send(true).unwrap();
    assert_eq!(follower.wait().unwrap().code(), Some(8));
}
